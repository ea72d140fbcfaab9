/* SPDX-License-Identifier: Apache-2.0 */
/* set.c: Set: one working set: what the index holds, single samples, push and verify. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

PyObject *set_new(struct leat_ws *ws)
{
    struct set_object *self = object_new(set_type);
    if (!self)
        return NULL;
    self->ws = ws;
    gate_init(&self->gate);
    return (PyObject *)self;
}

static void set_drop(struct set_object *self)
{
    struct away away = away_begin();
    leat_close(self->ws);
    away_end(&away);
}

void set_leave(struct set_object *self)
{
    if (gate_leave(&self->gate))
        set_drop(self);
}

static bool enter(struct set_object *self)
{
    if (gate_enter(&self->gate))
        return true;
    gate_refuse(&self->gate, "the working set");
    return false;
}

static PyObject *set_close(struct set_object *self, PyObject *none)
{
    if (gate_close(&self->gate))
        set_drop(self);
    Py_RETURN_NONE;
}

static void set_dealloc(struct set_object *self)
{
    if (self->ws && gate_close(&self->gate))
        set_drop(self);
    object_free((PyObject *)self);
}

/* --- what the index holds: no waiting, the GIL is kept ------------------------------------------------------------- */

static PyObject *set_length(struct set_object *self, void *closure)
{
    if (!enter(self))
        return NULL;
    uint64_t n = leat_ws_length(self->ws);
    set_leave(self);
    return PyLong_FromUnsignedLongLong(n);
}

static PyObject *set_uri(struct set_object *self, void *closure)
{
    if (!enter(self))
        return NULL;
    PyObject *uri = PyUnicode_DecodeFSDefault(leat_ws_uri(self->ws));
    set_leave(self);
    return uri;
}

static PyObject *set_fingerprint(struct set_object *self, void *closure)
{
    if (!enter(self))
        return NULL;
    PyObject *text = PyUnicode_FromString(leat_ws_fingerprint(self->ws));
    set_leave(self);
    return text;
}

static PyObject *field_tuple(const struct leat_field *f)
{
    unsigned ndim = f->ndim <= LEAT_MAX_DIMS ? f->ndim : LEAT_MAX_DIMS;
    PyObject *shape = PyTuple_New(ndim);
    for (unsigned d = 0; shape && d < ndim; d++) {
        PyObject *extent = PyLong_FromUnsignedLongLong(f->shape[d]);
        if (!extent || PyTuple_SetItem(shape, d, extent) < 0) {
            Py_DECREF(shape);
            return NULL;
        }
    }
    if (!shape)
        return NULL;
    return Py_BuildValue("ssNKKN", f->name, f->dtype, shape, (unsigned long long)f->max_bytes,
                         (unsigned long long)f->fixed_bytes, PyBool_FromLong(f->is_label));
}

static PyObject *set_fields(struct set_object *self, PyObject *none)
{
    if (!enter(self))
        return NULL;
    unsigned n = leat_ws_fields(self->ws);
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < n; i++) {
        struct leat_field f = {.size = sizeof(f)};
        int rc = leat_ws_field(self->ws, i, &f);
        PyObject *item = rc ? raise_error(rc, NULL) : field_tuple(&f);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    set_leave(self);
    return list;
}

/* report(loader, title, flags, verdict, rank, world_size, epoch, samples, length, batch, step, total_samples, total_bytes, rate, bytes_rate,
 * waiting, order) -> sent? Keeps the GIL: it does not wait. */
static PyObject *set_report(struct set_object *self, PyObject *args)
{
    struct leat_report r = {.size = sizeof(r)};
    unsigned verdict;
    unsigned long long loader, epoch, samples, length, batch, step, total, bytes, order;
    if (!PyArg_ParseTuple(args, "KzIIIIKKKKKKKdddK", &loader, &r.title, &r.flags, &verdict, &r.rank,
                          &r.world_size, &epoch, &samples, &length, &batch, &step, &total, &bytes,
                          &r.samples_per_s, &r.bytes_per_s, &r.waiting, &order) ||
        !enter(self))
        return NULL;
    r.loader = loader;
    r.verdict = (enum leat_verdict)verdict;
    r.epoch = epoch;
    r.samples = samples;
    r.length = length;
    r.batch_samples = batch;
    r.step_samples = step;
    r.total_samples = total;
    r.total_bytes = bytes;
    r.order = order;
    struct leat_error err = {0};
    int rc = leat_ws_report(self->ws, &r, &err);
    set_leave(self);
    if (rc && rc != LEAT_BUSY)
        return raise_error(rc, &err);
    return PyBool_FromLong(rc == 0);
}

static PyObject *name_string(const char *text, size_t len)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)len, "surrogateescape");
}

static PyObject *set_classes(struct set_object *self, PyObject *none)
{
    if (!enter(self))
        return NULL;
    uint64_t n = leat_ws_classes(self->ws);
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < n; i++) {
        size_t len = 0;
        const char *name = leat_ws_class(self->ws, i, &len);
        PyObject *item = name_string(name ? name : "", len);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    set_leave(self);
    return list;
}

static PyObject *set_key(struct set_object *self, PyObject *args)
{
    uint64_t index;
    char buf[LEAT_KEY_BUF];
    size_t len = 0;
    if (!PyArg_ParseTuple(args, "O&", to_u64, &index) || !enter(self))
        return NULL;
    const char *key = leat_ws_key(self->ws, index, buf, sizeof(buf), &len);
    PyObject *text = key ? name_string(key, len) : NULL;
    if (!key)
        PyErr_Format(PyExc_IndexError, "sample %llu of a working set of %llu samples",
                     (unsigned long long)index, (unsigned long long)leat_ws_length(self->ws));
    set_leave(self);
    return text;
}

/* None: no such key; the caller has the better message. */
static PyObject *set_index(struct set_object *self, PyObject *args)
{
    const char *key;
    Py_ssize_t len;
    uint64_t index;
    if (!PyArg_ParseTuple(args, "y#", &key, &len) || !enter(self))
        return NULL;
    int rc = leat_ws_index(self->ws, key, (size_t)len, &index);
    set_leave(self);
    if (rc == LEAT_NOT_FOUND)
        Py_RETURN_NONE;
    return rc ? raise_error(rc, NULL) : PyLong_FromUnsignedLongLong(index);
}

static PyObject *set_field_bytes(struct set_object *self, PyObject *args)
{
    uint64_t index, bytes;
    unsigned field;
    if (!PyArg_ParseTuple(args, "O&I", to_u64, &index, &field) || !enter(self))
        return NULL;
    int rc = leat_ws_field_bytes(self->ws, index, field, &bytes);
    set_leave(self);
    if (rc == LEAT_NOT_FOUND)
        Py_RETURN_NONE;
    return rc ? raise_error(rc, NULL) : PyLong_FromUnsignedLongLong(bytes);
}

/* (path, offset), or None */
static PyObject *set_source(struct set_object *self, PyObject *args)
{
    uint64_t index, offset;
    unsigned field;
    size_t len;
    char path[4096];
    if (!PyArg_ParseTuple(args, "O&I", to_u64, &index, &field) || !enter(self))
        return NULL;
    int rc = leat_ws_source(self->ws, index, field, path, sizeof(path), &len, &offset);
    set_leave(self);
    if (rc || len >= sizeof(path))
        Py_RETURN_NONE;
    PyObject *text = PyUnicode_DecodeFSDefault(path);
    return text ? Py_BuildValue("NK", text, (unsigned long long)offset) : NULL;
}

/* --- what waits ---------------------------------------------------------------------------------------------------- */

static PyObject *rails_of(struct leat_ws *ws, uint64_t n)
{
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < n; i++) {
        struct leat_rail r = {.size = sizeof(r)};
        if (leat_ws_rail(ws, i, &r))
            break;
        PyObject *one = Py_BuildValue("{sssssssssKsK}", "node", r.node, "name", r.name, "transport",
                                      r.transport, "state", r.state, "bytes", (unsigned long long)r.bytes,
                                      "rate", (unsigned long long)r.rate_bytes_per_s);
        if (!one || PyList_Append(list, one) < 0)
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *set_stat(struct set_object *self, PyObject *none)
{
    struct leat_ws_stat s = {.size = sizeof(s)};
    struct leat_error err = {0};
    if (!enter(self))
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_ws_stat(self->ws, &s, &err);
    Py_END_ALLOW_THREADS;
    PyObject *rails = rc ? NULL : rails_of(self->ws, s.rails);
    if (!rc && !rails) {
        set_leave(self);
        return NULL;
    }
    PyObject *stat =
        rc ? raise_error(rc, &err)
           : Py_BuildValue(
                 "{sKsKsKsKsKsKsKsKsKsNsIsIsssKs{sKsKsKsKsKsK}sN}", "samples", (unsigned long long)s.samples,
                 "resident_samples", (unsigned long long)s.resident_samples, "failed_samples",
                 (unsigned long long)s.failed_samples, "payload_bytes", (unsigned long long)s.payload_bytes,
                 "resident_bytes", (unsigned long long)s.resident_bytes, "pool_bytes",
                 (unsigned long long)s.pool_bytes, "regions", (unsigned long long)s.regions, "region_bytes",
                 (unsigned long long)s.region_bytes, "page_bytes", (unsigned long long)s.page_bytes,
                 "streamed", PyBool_FromLong(s.streamed), "generation", s.generation, "version", s.version,
                 "transport", s.transport ? s.transport : "", "lost_samples",
                 (unsigned long long)s.lost_samples, "delivered", "shm", (unsigned long long)s.shm_bytes,
                 "tcp", (unsigned long long)s.tcp_bytes, "rdma_read", (unsigned long long)s.rdma_read_bytes,
                 "rdma_write", (unsigned long long)s.rdma_write_bytes, "streamed",
                 (unsigned long long)s.streamed_bytes, "bounced", (unsigned long long)s.bounced_bytes,
                 "rails", rails);
    set_leave(self);
    return stat;
}

static PyObject *set_wait(struct set_object *self, PyObject *args)
{
    uint64_t timeout_ns;
    struct waiting w = {0};
    struct leat_error err = {0};
    if (!PyArg_ParseTuple(args, "O&O", to_u64, &timeout_ns, &w.callback) || !enter(self))
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_ws_wait(self->ws, waiting_progress, &w, timeout_ns, &err);
    Py_END_ALLOW_THREADS;
    set_leave(self);
    if (waiting_end(&w, rc, &err) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *set_verify(struct set_object *self, PyObject *args)
{
    unsigned flags;
    uint64_t bad = 0;
    struct waiting w = {0};
    struct leat_error err = {0};
    if (!PyArg_ParseTuple(args, "IO", &flags, &w.callback) || !enter(self))
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_verify(self->ws, flags, waiting_progress, &w, &bad, &err);
    Py_END_ALLOW_THREADS;
    set_leave(self);
    return waiting_end(&w, rc, &err) < 0 ? NULL : PyLong_FromUnsignedLongLong(bad);
}

/* The GIL must be held, and is released inside. 0, or -1 with an exception set. */
static int read_waiting(struct set_object *self, uint64_t index, unsigned field, void *buf, uint64_t cap,
                        uint64_t timeout_ns, uint64_t *ret_bytes)
{
    struct leat_error err = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_read(self->ws, index, field, buf, cap, timeout_ns, ret_bytes, &err);
    Py_END_ALLOW_THREADS;
    if (rc)
        raise_error(rc, &err);
    return rc || PyErr_Occurred() ? -1 : 0;
}

static PyObject *set_read_bytes(struct set_object *self, PyObject *args)
{
    uint64_t index, timeout_ns, bytes, got = 0;
    unsigned field;
    struct leat_error err = {0};
    if (!PyArg_ParseTuple(args, "O&IO&", to_u64, &index, &field, to_u64, &timeout_ns) || !enter(self))
        return NULL;
    PyObject *result = NULL;
    int rc = leat_ws_field_bytes(self->ws, index, field, &bytes);
    if (rc)
        raise_error(rc, &err);
    else
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (result && (read_waiting(self, index, field, PyBytes_AsString(result), bytes, timeout_ns, &got) < 0))
        Py_CLEAR(result);
    set_leave(self);
    if (result && got != bytes) {
        Py_CLEAR(result);
        PyErr_SetString(PyExc_RuntimeError, "a sample is shorter than its index says");
    }
    return result;
}

static PyObject *set_read_into(struct set_object *self, PyObject *args)
{
    uint64_t index, timeout_ns, got = 0;
    unsigned field;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "O&Iw*O&", to_u64, &index, &field, &out, to_u64, &timeout_ns))
        return NULL;
    int rc = -1;
    if (enter(self)) {
        rc = read_waiting(self, index, field, out.buf, (uint64_t)out.len, timeout_ns, &got);
        set_leave(self);
    }
    PyBuffer_Release(&out);
    return rc ? NULL : PyLong_FromUnsignedLongLong(got);
}

#define MAX_FIELDS 256

struct push {
    Py_buffer data[MAX_FIELDS], lengths[MAX_FIELDS];
    struct leat_push_field fields[MAX_FIELDS];
    unsigned n;
};

/* list: (buffer, lengths or None) for each field. 0, or -1 with an exception set. */
static int push_fields(struct push *p, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    if (count > MAX_FIELDS) {
        PyErr_Format(PyExc_ValueError, "at most %d fields", MAX_FIELDS);
        return -1;
    }
    for (; p->n < (unsigned)count; p->n++) {
        Py_buffer *data = &p->data[p->n], *lengths = &p->lengths[p->n];
        struct leat_push_field *f = &p->fields[p->n];
        if (!PyArg_ParseTuple(PyList_GetItem(list, p->n), "y*z*", data, lengths))
            return -1;
        f->size = sizeof(*f);
        f->data = data->buf;
        f->bytes = (uint64_t)data->len;
        if (lengths_of(lengths, &f->lengths, &f->nlengths) < 0) {
            p->n++;
            return -1;
        }
    }
    return 0;
}

static PyObject *set_push(struct set_object *self, PyObject *args)
{
    uint64_t first, timeout_ns;
    unsigned n;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O&IO!O&", to_u64, &first, &n, &PyList_Type, &list, to_u64, &timeout_ns))
        return NULL;
    struct push *p = PyMem_Calloc(1, sizeof(*p));
    if (!p)
        return PyErr_NoMemory();
    struct leat_error err = {0};
    int rc = push_fields(p, list) < 0 || !enter(self) ? 1 : 0;
    if (rc == 0) {
        Py_BEGIN_ALLOW_THREADS;
        rc = leat_push(self->ws, first, n, p->fields, p->n, timeout_ns, &err);
        Py_END_ALLOW_THREADS;
        set_leave(self);
    }
    for (unsigned f = 0; f < p->n; f++) {
        PyBuffer_Release(&p->data[f]);
        PyBuffer_Release(&p->lengths[f]);
    }
    PyMem_Free(p);
    if (rc < 0)
        raise_error(rc, &err);
    if (rc || PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef set_methods[] = {
    {"fields", (PyCFunction)set_fields, METH_NOARGS,
     "[(name, dtype, shape, max_bytes, fixed_bytes, is_label)]"},
    {"classes", (PyCFunction)set_classes, METH_NOARGS, "names of classes"},
    {"key", (PyCFunction)set_key, METH_VARARGS, "key(index) -> str"},
    {"index", (PyCFunction)set_index, METH_VARARGS, "index(key: bytes) -> int or None"},
    {"field_bytes", (PyCFunction)set_field_bytes, METH_VARARGS, "field_bytes(index, field) -> int or None"},
    {"source", (PyCFunction)set_source, METH_VARARGS, "source(index, field) -> (path, offset) or None"},
    {"stat", (PyCFunction)set_stat, METH_NOARGS, "stat() -> dict"},
    {"report", (PyCFunction)set_report, METH_VARARGS, "report(...) -> sent?"},
    {"wait", (PyCFunction)set_wait, METH_VARARGS, "wait(timeout_ns, progress)"},
    {"verify", (PyCFunction)set_verify, METH_VARARGS, "verify(flags, progress) -> int"},
    {"read_bytes", (PyCFunction)set_read_bytes, METH_VARARGS,
     "read_bytes(index, field, timeout_ns) -> bytes"},
    {"read_into", (PyCFunction)set_read_into, METH_VARARGS,
     "read_into(index, field, out, timeout_ns) -> int"},
    {"hold", (PyCFunction)set_hold, METH_VARARGS, "hold(index, field, timeout_ns) -> Holder"},
    {"load", (PyCFunction)set_load, METH_VARARGS,
     "load(batch_size, slots, fields, max_batch_bytes, transport, memory, device, window, step, fingerprint) "
     "-> Ring"},
    {"push", (PyCFunction)set_push, METH_VARARGS, "push(first, n, [(buffer, lengths or None)], timeout_ns)"},
    {"close", (PyCFunction)set_close, METH_NOARGS, "close()"},
    {0},
};
static PyGetSetDef set_getset[] = {
    {"length", (getter)set_length, NULL, "samples", NULL},
    {"uri", (getter)set_uri, NULL, "opens the same set in another process", NULL},
    {"fingerprint", (getter)set_fingerprint, NULL, "32 hex digits", NULL},
    {0}};
static PyType_Slot set_slots[] = {
    {Py_tp_dealloc, set_dealloc}, {Py_tp_methods, set_methods}, {Py_tp_getset, set_getset}, {0}};
PyType_Spec set_spec = {"leat._leat.Set", sizeof(struct set_object), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, set_slots};
