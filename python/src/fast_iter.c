/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fast_iter.c: FastIter: the way of batches that need no Python: from the iterator to the loop. BatchBase: what a batch is made of.
 *
 *   next ──▶ armed? ──▶ leat_next ──▶ a batch object with its slot in it ──▶ counted here, reported about once a second
 *              └─ no ──▶ self._step(): Python (epoch.py) does one step, and arms this path where the next ones are plain
 *
 * leat._loader.epoch.Epoch is a FastIter. It takes over these counters (take) before each use: a state, stats, a report.
 *
 * Failure modes: a sample that cannot be read disarms: Python reads the step again, and names, replaces or raises. Whatever else the
 * library says is raised, and the next call tries again.
 * Invariants: one thread is inside at a time, as steps come in order; a signal handler that runs inside may enter again. The counters have
 * a lock of their own, so that no reader of them waits for a batch.
 */
#include "module.h"

#include <pthread.h>
#include <stdlib.h>
#include <structmember.h>
#include <time.h>

/* --- BatchBase ------------------------------------------------------------------------------------------------------- */

struct batch_object {
    PyObject ob_base;
    PyObject *holder, *fields, *set, *values, *ids, *valid;
    PyObject *
        dense; /* {name: (type of arrays, number of the field, shape, dtype)}; NULL: Python makes all arrays */
    Py_ssize_t n;
    unsigned long long position;
    unsigned slot;
};

static void batch_dealloc(struct batch_object *self)
{
    Py_XDECREF(self->values); /* arrays before what they lie in */
    Py_XDECREF(self->holder);
    Py_XDECREF(self->fields);
    Py_XDECREF(self->set);
    Py_XDECREF(self->ids);
    Py_XDECREF(self->valid);
    Py_XDECREF(self->dense);
    object_free((PyObject *)self);
}

#ifndef Py_GIL_DISABLED
/* type(shape, dtype, memory): an array over the slot, which it keeps. */
static PyObject *array_of(struct holder_object *holder, PyObject *how)
{
    unsigned long field = PyLong_AsUnsignedLong(PyTuple_GetItem(how, 1));
    PyObject *memory = PyErr_Occurred() ? NULL : memory_of_field(holder, (unsigned)field);
    if (!memory)
        return NULL;
    PyObject *array = PyObject_CallFunctionObjArgs(PyTuple_GetItem(how, 0), PyTuple_GetItem(how, 2),
                                                   PyTuple_GetItem(how, 3), memory, NULL);
    Py_DECREF(memory);
    return array;
}

/* From inside, holding self->values: release() may put another dict in its place. */
static PyObject *find_value(struct batch_object *self, PyObject *values, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(values, name);
    if (value)
        return Py_INCREF(value), value;
    PyObject *how = self->dense && !PyErr_Occurred() ? PyDict_GetItemWithError(self->dense, name) : NULL;
    if (PyErr_Occurred())
        return NULL;
    if (!how)
        return PyObject_CallMethod((PyObject *)self, "_get", "(O)", name);
    value = array_of((struct holder_object *)self->holder, how);
    if (value && PyDict_SetItem(values, name, value) < 0)
        Py_CLEAR(value);
    return value;
}

/* batch[name]: what was asked before, and plain arrays, without Python; _get does the rest. A holder may be one of Python's (OwnMemory). */
static PyObject *batch_subscript(struct batch_object *self, PyObject *name)
{
    PyObject *values = self->values, *value;
    if (!values || !self->holder || !PyObject_TypeCheck(self->holder, holder_type) ||
        gate_is_closed(&((struct holder_object *)self->holder)->gate))
        return PyObject_CallMethod((PyObject *)self, "_get", "(O)", name);
    Py_INCREF(values);
    value = find_value(self, values, name);
    Py_DECREF(values);
    return value;
}
#else
/* Other threads may be inside this batch as well: Python's own locks. */
static PyObject *batch_subscript(struct batch_object *self, PyObject *name)
{
    return PyObject_CallMethod((PyObject *)self, "_get", "(O)", name);
}
#endif

static PyMemberDef batch_members[] = {
    {"_holder", T_OBJECT_EX, offsetof(struct batch_object, holder), 0, NULL},
    {"_fields", T_OBJECT_EX, offsetof(struct batch_object, fields), 0, NULL},
    {"_set", T_OBJECT_EX, offsetof(struct batch_object, set), 0, NULL},
    {"_values", T_OBJECT_EX, offsetof(struct batch_object, values), 0, NULL},
    {"_ids", T_OBJECT_EX, offsetof(struct batch_object, ids), 0, NULL},
    {"_valid", T_OBJECT_EX, offsetof(struct batch_object, valid), 0, NULL},
    {"_n", T_PYSSIZET, offsetof(struct batch_object, n), 0, NULL},
    {"position", T_ULONGLONG, offsetof(struct batch_object, position), 0, NULL},
    {"slot", T_UINT, offsetof(struct batch_object, slot), 0, NULL},
    {0},
};
static PyType_Slot batch_slots[] = {
    {Py_tp_dealloc, batch_dealloc}, {Py_tp_members, batch_members}, {Py_mp_subscript, batch_subscript}, {0}};
PyType_Spec batch_spec = {"leat._leat.BatchBase", sizeof(struct batch_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, batch_slots};

/* --- FastIter ------------------------------------------------------------------------------------------------------------ */

#define RECENT 128u /* of stats.WINDOW */

struct counted {
    uint64_t batches;
    double wait_s, consume_s;
    struct {
        double waited, consumed;
    } recent[RECENT]; /* the last of `batches` */
};

struct fast_iter_object {
    PyObject ob_base;
    pthread_mutex_t turn;       /* who is inside; recursive */
    pthread_mutex_t count_lock; /* guards counted */
    struct counted counted;
    struct iter_object *iter; /* armed: this, and what follows */
    PyTypeObject *type;       /* a subclass of BatchBase */
    PyObject *fields, *set, *valid, *dense;
    uint64_t left, timeout_ns;     /* steps; 0: not armed */
    PyObject *late[3];             /* an exception, for the next call */
    double returned_at, report_at; /* seconds, as time.perf_counter counts; 0: nothing was returned */
};

static double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static PyObject *fast_iter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct fast_iter_object *self = object_new(type);
    if (!self)
        return NULL;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&self->turn, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_mutex_init(&self->count_lock, NULL);
    return (PyObject *)self;
}

static void disarm(struct fast_iter_object *self)
{
    self->left = 0;
    Py_CLEAR(self->iter);
    Py_CLEAR(self->type);
    Py_CLEAR(self->fields);
    Py_CLEAR(self->set);
    Py_CLEAR(self->valid);
    Py_CLEAR(self->dense);
}

static void fast_iter_dealloc(struct fast_iter_object *self)
{
    disarm(self);
    for (unsigned i = 0; i < 3; i++)
        Py_XDECREF(self->late[i]);
    pthread_mutex_destroy(&self->count_lock);
    pthread_mutex_destroy(&self->turn);
    object_free((PyObject *)self);
}

/* arm(iter, batch type, fields, set, valid, dense, steps, timeout_ns): the next steps are as the iterator gives them. */
static PyObject *fast_iter_arm(struct fast_iter_object *self, PyObject *args)
{
    PyObject *iter, *type, *fields, *set, *valid, *dense;
    uint64_t left, timeout_ns;
    if (!PyArg_ParseTuple(args, "O!O!OOOO!O&O&", iter_type, &iter, &PyType_Type, &type, &fields, &set, &valid,
                          &PyDict_Type, &dense, to_u64, &left, to_u64, &timeout_ns))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, batch_type))
        return PyErr_Format(PyExc_TypeError, "not a type of batches");
    disarm(self);
    Py_INCREF(iter);
    Py_INCREF(type);
    Py_INCREF(fields);
    Py_INCREF(set);
    Py_INCREF(valid);
    Py_INCREF(dense);
    self->iter = (struct iter_object *)iter;
    self->type = (PyTypeObject *)type;
    self->fields = fields;
    self->set = set;
    self->valid = valid;
    self->dense = dense;
    self->left = left;
    self->timeout_ns = timeout_ns;
    Py_RETURN_NONE;
}

static PyObject *fast_iter_disarm(struct fast_iter_object *self, PyObject *none)
{
    self->left = 0; /* another thread may be inside, with what it is armed with */
    Py_RETURN_NONE;
}

/* take() -> (batches, seconds waited, seconds consumed, [(waited, consumed) of the last ones]) since it was asked last. */
static PyObject *fast_iter_take(struct fast_iter_object *self, PyObject *none)
{
    struct counted c;
    pthread_mutex_lock(&self->count_lock);
    bool any = self->counted.batches > 0;
    if (any) {
        c = self->counted;
        self->counted.batches = 0;
        self->counted.wait_s = self->counted.consume_s = 0;
    }
    pthread_mutex_unlock(&self->count_lock);
    if (!any)
        Py_RETURN_NONE;
    PyObject *recent = PyList_New(0);
    for (uint64_t i = c.batches > RECENT ? c.batches - RECENT : 0; recent && i < c.batches; i++) {
        PyObject *one = Py_BuildValue("dd", c.recent[i % RECENT].waited, c.recent[i % RECENT].consumed);
        if (!one || PyList_Append(recent, one) < 0)
            Py_CLEAR(recent);
        Py_XDECREF(one);
    }
    return recent ? Py_BuildValue("KddN", (unsigned long long)c.batches, c.wait_s, c.consume_s, recent)
                  : NULL;
}

static void count(struct fast_iter_object *self, double waited, double consumed)
{
    pthread_mutex_lock(&self->count_lock);
    struct counted *c = &self->counted;
    c->recent[c->batches % RECENT].waited = waited;
    c->recent[c->batches % RECENT].consumed = consumed;
    c->batches++;
    c->wait_s += waited;
    c->consume_s += consumed;
    pthread_mutex_unlock(&self->count_lock);
}

/* A LoadedBatch, as its __init__ makes it. Takes the batch. */
static PyObject *batch_new(struct fast_iter_object *self, struct leat_batch *batch)
{
    struct holder_object *holder = (struct holder_object *)holder_of_batch(self->iter->ring, batch);
    struct batch_object *made = holder ? object_new(self->type) : NULL;
    if (!made) {
        Py_XDECREF((PyObject *)holder);
        return NULL;
    }
    made->holder = (PyObject *)holder;
    Py_INCREF(self->fields);
    Py_INCREF(self->set);
    Py_INCREF(self->valid);
    Py_INCREF(self->dense);
    made->fields = self->fields;
    made->set = self->set;
    made->valid = self->valid;
    made->dense = self->dense;
    made->n = leat_batch_size(batch);
    made->position = leat_batch_position(batch);
    made->slot = leat_batch_slot(batch);
    made->values = PyDict_New();
    made->ids = PyBytes_FromStringAndSize((const char *)leat_batch_ids(batch), 8 * made->n);
    if (!made->values || !made->ids)
        Py_CLEAR(made);
    return (PyObject *)made;
}

/* One batch with no Python in it. *ret_step: Python is to do this step instead. */
static PyObject *next_plain(struct fast_iter_object *self, bool *ret_step)
{
    struct iter_object *iter = self->iter;
    double now = clock_s(), consumed = self->returned_at > 0 ? now - self->returned_at : 0;
    *ret_step = true;
    if (!gate_enter(&iter->gate))
        return NULL;
    struct leat_error err = {0};
    struct leat_batch *batch = NULL;
    Py_INCREF((PyObject *)iter); /* a signal handler may arm it again */
    int rc = iter_take(iter, self->timeout_ns, &batch, &err);
    bool raised = PyErr_Occurred() != NULL, left = self->left && self->iter == iter;
    PyObject *result = NULL;
    *ret_step = !raised && (rc == LEAT_CORRUPT || rc == LEAT_NOT_FOUND || rc == LEAT_BUSY ||
                            (!rc && !batch) || (!rc && !left));
    if (rc && !*ret_step)
        raise_error(rc, &err);
    else if (batch && left)
        result = batch_new(self, batch);
    else if (batch)
        leat_batch_release(batch);
    if (*ret_step)
        self->left = 0;
    if (gate_leave(&iter->gate))
        iter_drop(iter);
    Py_DECREF((PyObject *)iter);
    if (!result)
        return NULL;
    self->left--;
    self->returned_at = clock_s();
    count(self, self->returned_at - now, consumed);
    return result;
}

/* Python reports progress. An error that a signal handler raises in it comes with the next step: this
 * batch is delivered. */
static void tell(struct fast_iter_object *self)
{
    PyObject *told = PyObject_CallMethod((PyObject *)self, "_tell", NULL);
    if (!told)
        PyErr_Fetch(&self->late[0], &self->late[1], &self->late[2]);
    Py_XDECREF(told);
}

static PyObject *fast_iter_next(struct fast_iter_object *self)
{
    if (pthread_mutex_trylock(&self->turn)) {
        Py_BEGIN_ALLOW_THREADS;
        pthread_mutex_lock(&self->turn);
        Py_END_ALLOW_THREADS;
    }
    PyObject *result = NULL;
    bool step = true;
    if (self->late[0]) {
        PyErr_Restore(self->late[0], self->late[1], self->late[2]);
        self->late[0] = self->late[1] = self->late[2] = NULL;
        step = false;
    } else if (self->left) {
        result = next_plain(self, &step);
        if (result && (self->returned_at >= self->report_at || !self->left))
            tell(self);
    }
    if (step)
        result = PyObject_CallMethod((PyObject *)self, "_step", NULL);
    pthread_mutex_unlock(&self->turn);
    return result;
}

static PyMethodDef fast_iter_methods[] = {
    {"arm", (PyCFunction)fast_iter_arm, METH_VARARGS,
     "arm(iter, batch type, fields, set, valid, dense, steps, timeout_ns)"},
    {"disarm", (PyCFunction)fast_iter_disarm, METH_NOARGS, "disarm()"},
    {"take", (PyCFunction)fast_iter_take, METH_NOARGS, "take() -> what was counted since, or None"},
    {0},
};
static PyMemberDef fast_iter_members[] = {
    {"returned_at", T_DOUBLE, offsetof(struct fast_iter_object, returned_at), 0, NULL},
    {"report_at", T_DOUBLE, offsetof(struct fast_iter_object, report_at), 0, NULL},
    {0},
};
static PyType_Slot fast_iter_slots[] = {{Py_tp_new, fast_iter_new},
                                        {Py_tp_dealloc, fast_iter_dealloc},
                                        {Py_tp_iter, PyObject_SelfIter},
                                        {Py_tp_iternext, fast_iter_next},
                                        {Py_tp_methods, fast_iter_methods},
                                        {Py_tp_members, fast_iter_members},
                                        {0}};
PyType_Spec fast_iter_spec = {"leat._leat.FastIter", sizeof(struct fast_iter_object), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, fast_iter_slots};
