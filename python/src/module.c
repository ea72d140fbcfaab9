/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: gates, types, the functions that need no handle, and the module itself. */
#include "module.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *client_type, *set_type, *ring_type, *iter_type, *holder_type, *memory_type, *order_type,
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

/* --- order ------------------------------------------------------------------------------------------------------- */

struct order_object {
    PyObject ob_base;
    struct leat_order order;
};

static PyObject *order_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    uint64_t n, seed, epoch, block;
    const char *fingerprint = NULL;
    if (kwargs && PyDict_Size(kwargs))
        return PyErr_Format(PyExc_TypeError, "Order() takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "O&O&O&O&|z", to_u64, &n, to_u64, &seed, to_u64, &epoch, to_u64, &block,
                          &fingerprint))
        return NULL;
    struct order_object *self = object_new(type);
    if (!self)
        return NULL;
    struct leat_error err = {0};
    int rc = leat_order_init(&self->order, n, seed, epoch, block, fingerprint, &err);
    if (rc) {
        Py_DECREF((PyObject *)self);
        return raise_error(rc, &err);
    }
    return (PyObject *)self;
}

static PyObject *order_at(struct order_object *self, PyObject *args)
{
    uint64_t position;
    if (!PyArg_ParseTuple(args, "O&", to_u64, &position))
        return NULL;
    if (position >= self->order.n)
        return PyErr_Format(PyExc_IndexError, "position %llu of an order of %llu",
                            (unsigned long long)position, (unsigned long long)self->order.n);
    return PyLong_FromUnsignedLongLong(leat_order_at(&self->order, position));
}

static PyObject *order_fill(struct order_object *self, PyObject *args)
{
    uint64_t first;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "O&w*", to_u64, &first, &out))
        return NULL;
    uint64_t count = (uint64_t)out.len / 8;
    if (first > self->order.n || count > self->order.n - first) {
        PyBuffer_Release(&out);
        return PyErr_Format(PyExc_IndexError, "positions past the end of an order of %llu",
                            (unsigned long long)self->order.n);
    }
    Py_BEGIN_ALLOW_THREADS;
    uint64_t *ids = out.buf;
    for (uint64_t done = 0; done < count;) {
        unsigned step = count - done < (1u << 30) ? (unsigned)(count - done) : 1u << 30;
        leat_order_fill(&self->order, first + done, step, ids + done);
        done += step;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&out);
    Py_RETURN_NONE;
}

static PyMethodDef order_methods[] = {
    {"at", (PyCFunction)order_at, METH_VARARGS, "at(position) -> int"},
    {"fill", (PyCFunction)order_fill, METH_VARARGS, "fill(first, out: writable buffer of uint64)"},
    {0},
};
static PyType_Slot order_slots[] = {
    {Py_tp_new, order_new}, {Py_tp_dealloc, object_free}, {Py_tp_methods, order_methods}, {0}};
PyType_Spec order_spec = {"leat._leat.Order", sizeof(struct order_object), 0, Py_TPFLAGS_DEFAULT,
                          order_slots};

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
        add_type(module, &memory_type, &memory_spec) < 0 || add_type(module, &order_type, &order_spec) < 0 ||
        add_type(module, &batch_type, &batch_spec) < 0 ||
        add_type(module, &fast_iter_type, &fast_iter_spec) < 0 ||
        add_type(module, &scan_type, &scan_spec) < 0 ||
        PyModule_AddStringConstant(module, "version", leat_version()) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
