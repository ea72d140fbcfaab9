/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: gates, types, the functions that need no handle, and the module itself. */
#include "module.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

PyTypeObject *client_type, *set_type, *ring_type, *iter_type, *holder_type, *memory_type, *plan_type,
    *batch_type, *fast_iter_type, *scan_type;

/* --- gate ------------------------------------------------------------------------------------------------------ */

unsigned fork_generation;

static void on_fork_child(void)
{
    fork_generation++;
}

void gate_init(struct gate *gate)
{
    atomic_init(&gate->state, 0);
    gate->generation = fork_generation;
}

bool gate_enter(struct gate *gate)
{
    if (gate->generation != fork_generation)
        return false;
    long state = atomic_load(&gate->state);
    do {
        if (state & 1)
            return false;
    } while (!atomic_compare_exchange_weak(&gate->state, &state, state + 2));
    return true;
}

bool gate_leave(struct gate *gate)
{
    return atomic_fetch_sub(&gate->state, 2) == 3 && gate->generation == fork_generation;
}

bool gate_close(struct gate *gate)
{
    return atomic_fetch_or(&gate->state, 1) == 0 && gate->generation == fork_generation;
}

bool gate_is_closed(const struct gate *gate)
{
    return atomic_load(&gate->state) & 1;
}

PyObject *gate_refuse(const struct gate *gate, const char *what)
{
    if (gate->generation != fork_generation)
        PyErr_Format(PyExc_ValueError, "%s belongs to the process that forked this one", what);
    else
        PyErr_Format(PyExc_ValueError, "%s is closed", what);
    return NULL;
}

struct away away_begin(void)
{
    struct away away;
    PyErr_Fetch(&away.type, &away.value, &away.trace);
    away.thread = PyEval_SaveThread();
    return away;
}

void away_end(struct away *away)
{
    PyEval_RestoreThread(away->thread);
    if (away->type)
        PyErr_Restore(away->type, away->value, away->trace);
}

/* --- objects ----------------------------------------------------------------------------------------------------- */

void *object_new(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

void object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* --- plan -------------------------------------------------------------------------------------------------------- */

struct plan_object {
    PyObject ob_base;
    struct leat_plan plan;
    PyObject *args; /* what the plan points to */
    Py_buffer skips, parts;
};

static void plan_dealloc(struct plan_object *self)
{
    PyBuffer_Release(&self->skips);
    PyBuffer_Release(&self->parts);
    Py_XDECREF(self->args);
    object_free((PyObject *)self);
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs && PyDict_Size(kwargs))
        return PyErr_Format(PyExc_TypeError, "Plan() takes no keyword arguments");
    struct plan_object *self = object_new(type);
    if (!self)
        return NULL;
    struct leat_plan *p = &self->plan;
    struct leat_error err = {0};
    if (!PyArg_ParseTuple(args, "O&O&O&O&|zy*y*O&O&O&O&i", to_u64, &p->n, to_u64, &p->seed, to_u64, &p->epoch,
                          to_u64, &p->block, &p->fingerprint, &self->skips, &self->parts, to_u64,
                          &p->first_position, to_unsigned, &p->batch_size, to_unsigned, &p->rank, to_unsigned,
                          &p->world_size, &p->keep_tail)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    Py_INCREF(args);
    self->args = args;
    p->skips = self->skips.buf;
    p->nskips = (uint64_t)self->skips.len / 16;
    p->nparts = (uint64_t)self->parts.len / 16;
    p->weights = self->parts.buf;
    p->lengths = p->nparts ? p->weights + p->nparts : NULL;
    int rc = leat_plan_init(p, &err);
    if (rc) {
        Py_DECREF((PyObject *)self);
        return raise_error(rc, &err);
    }
    return (PyObject *)self;
}

static PyObject *plan_fill(struct plan_object *self, PyObject *args)
{
    uint64_t first;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "O&w*", to_u64, &first, &out))
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_plan_ids(&self->plan, first, (uint64_t)out.len / 8, out.buf);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&out);
    if (rc)
        return PyErr_Format(PyExc_IndexError, "an epoch of no samples");
    Py_RETURN_NONE;
}

static PyObject *plan_step(struct plan_object *self, PyObject *args)
{
    uint64_t step, first;
    unsigned count;
    if (!PyArg_ParseTuple(args, "O&", to_u64, &step))
        return NULL;
    if (leat_plan_step(&self->plan, step, &first, &count))
        return PyErr_Format(PyExc_IndexError, "step %llu of %llu", (unsigned long long)step,
                            (unsigned long long)self->plan.steps);
    return Py_BuildValue("KI", (unsigned long long)first, count);
}

static PyObject *plan_find(struct plan_object *self, PyObject *args)
{
    uint64_t step, count;
    Py_buffer runs;
    struct leat_plan_run run;
    struct leat_error err = {0};
    if (!PyArg_ParseTuple(args, "y*O&", &runs, to_u64, &step))
        return NULL;
    int rc =
        leat_plan_find(&self->plan, runs.buf, (uint64_t)runs.len / sizeof(run), step, &run, &count, &err);
    PyBuffer_Release(&runs);
    if (rc)
        return PyErr_Format(PyExc_ValueError, "%s", err.message);
    return Py_BuildValue("KKKK", (unsigned long long)run.position, (unsigned long long)count,
                         (unsigned long long)run.global_batch, (unsigned long long)run.batch_size);
}

static PyMethodDef plan_methods[] = {
    {"fill", (PyCFunction)plan_fill, METH_VARARGS, "fill(first, out: writable buffer of uint64)"},
    {"step", (PyCFunction)plan_step, METH_VARARGS, "step(step) -> (first, count)"},
    {"find", (PyCFunction)plan_find, METH_VARARGS,
     "find(runs: buffer of uint64, step) -> (first, count, global batch, batch size)"},
    {0},
};
static PyMemberDef plan_members[] = {
    {"length", T_ULONGLONG, offsetof(struct plan_object, plan.length), READONLY, NULL},
    {"steps", T_ULONGLONG, offsetof(struct plan_object, plan.steps), READONLY, NULL},
    {0},
};
static PyType_Slot plan_slots[] = {{Py_tp_new, plan_new},
                                   {Py_tp_dealloc, plan_dealloc},
                                   {Py_tp_methods, plan_methods},
                                   {Py_tp_members, plan_members},
                                   {0}};
PyType_Spec plan_spec = {"leat._leat.Plan", sizeof(struct plan_object), 0, Py_TPFLAGS_DEFAULT, plan_slots};

/* --- functions --------------------------------------------------------------------------------------------------- */

static PyObject *module_generation(PyObject *module, PyObject *none)
{
    return PyLong_FromUnsignedLong(fork_generation);
}

static PyObject *module_share(PyObject *module, PyObject *args)
{
    uint64_t n, first, end;
    unsigned rank, world;
    if (!PyArg_ParseTuple(args, "O&II", to_u64, &n, &rank, &world))
        return NULL;
    leat_share(n, rank, world, &first, &end);
    return Py_BuildValue("KK", (unsigned long long)first, (unsigned long long)end);
}

static PyObject *module_counters(PyObject *module, PyObject *none)
{
    struct leat_error err = {0};
    char *json;
    int rc = leat_counters(&json, &err);
    if (rc)
        return raise_error(rc, &err);
    PyObject *text = PyUnicode_DecodeUTF8(json, (Py_ssize_t)strlen(json), "replace");
    leat_free(json);
    return text;
}

static PyMethodDef module_methods[] = {
    MODULE_SET_ERROR_MAKER,
    {"generation", module_generation, METH_NOARGS, "how often this line of processes has forked"},
    {"share", module_share, METH_VARARGS, "share(nsamples, rank, world_size) -> (first, end)"},
    {"counters", module_counters, METH_NOARGS, "counters of this process, as JSON"},
    {"dlpack", module_dlpack, METH_VARARGS,
     "dlpack(buffer, code, bits, versioned, read_only, copied) -> capsule"},
    {"dlpack_cuda", module_dlpack_cuda, METH_VARARGS,
     "dlpack_cuda(owner, address, device, shape, code, bits, versioned) -> capsule"},
    {0},
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "leat._leat",
                                        .m_doc = "The C under leat: handles of libleat.", .m_size = -1,
                                        .m_methods = module_methods};

static int add_type(PyObject *module, PyTypeObject **ret_type, PyType_Spec *spec)
{
    *ret_type = (PyTypeObject *)PyType_FromSpec(spec);
    return *ret_type ? PyModule_AddType(module, *ret_type) : -1;
}

PyMODINIT_FUNC PyInit__leat(void);
PyMODINIT_FUNC PyInit__leat(void)
{
    pthread_atfork(NULL, NULL, on_fork_child);
    PyObject *module = PyModule_Create(&module_def);
    if (!module)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    if (add_type(module, &client_type, &client_spec) < 0 || add_type(module, &set_type, &set_spec) < 0 ||
        add_type(module, &ring_type, &ring_spec) < 0 || add_type(module, &iter_type, &iter_spec) < 0 ||
        add_type(module, &holder_type, &holder_spec) < 0 ||
        add_type(module, &memory_type, &memory_spec) < 0 || add_type(module, &plan_type, &plan_spec) < 0 ||
        add_type(module, &batch_type, &batch_spec) < 0 ||
        add_type(module, &fast_iter_type, &fast_iter_spec) < 0 ||
        add_type(module, &scan_type, &scan_spec) < 0 ||
        PyModule_AddStringConstant(module, "version", leat_version()) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
