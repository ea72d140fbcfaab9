/* SPDX-License-Identifier: Apache-2.0 */
/* client.c: Client: the connection to the daemon, and what is asked of it by name. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"socket",     (char *)"job",   (char *)"pool_bytes",
                            (char *)"timeout_ns", (char *)"flags", NULL};
    struct leat_client_options o = {.size = sizeof(o), .interrupt = waiting_interrupt};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zzO&O&I", names, &o.socket, &o.job, to_u64,
                                     &o.pool_bytes, to_u64, &o.timeout_ns, &o.flags))
        return NULL;
    struct leat_error err = {0};
    struct leat_client *client;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_connect(&o, &client, &err);
    Py_END_ALLOW_THREADS;
    if (rc == 0 && PyErr_Occurred())
        leat_disconnect(client);
    if (rc || PyErr_Occurred())
        return raise_error(rc ? rc : LEAT_CANCELED, &err);
    struct client_object *self = object_new(type);
    if (!self) {
        leat_disconnect(client);
        return NULL;
    }
    self->client = client;
    gate_init(&self->gate);
    return (PyObject *)self;
}

static void disconnect(struct client_object *self)
{
    struct away away = away_begin();
    leat_disconnect(self->client);
    away_end(&away);
}

static void leave(struct client_object *self)
{
    if (gate_leave(&self->gate))
        disconnect(self);
}

static PyObject *client_close(struct client_object *self, PyObject *none)
{
    if (gate_close(&self->gate))
        disconnect(self);
    Py_RETURN_NONE;
}

static void client_dealloc(struct client_object *self)
{
    if (self->client && gate_close(&self->gate))
        disconnect(self);
    object_free((PyObject *)self);
}

/* None, or what _base/storage.py makes. Its strings are those of the tuple. */
static int take_s3(PyObject *given, struct leat_s3_options *s3, const struct leat_s3_options **ret)
{
    if (given == Py_None)
        return 0;
    *ret = s3;
    return PyArg_ParseTuple(given, "Izzzzzzzz", &s3->flags, &s3->endpoint, &s3->region, &s3->profile,
                            &s3->style, &s3->ca_file, &s3->access_key, &s3->secret_key, &s3->token)
               ? 0
               : -1;
}

static PyObject *client_open(struct client_object *self, PyObject *args)
{
    const char *uri;
    struct leat_open_options o = {.size = sizeof(o)};
    struct leat_s3_options s3 = {.size = sizeof(s3)};
    struct waiting w = {0};
    PyObject *storage;
    if (!PyArg_ParseTuple(args, "yzIO&O&OO", &uri, &o.name, &o.flags, to_u64, &o.pool_bytes, to_u64,
                          &o.timeout_ns, &w.callback, &storage) ||
        take_s3(storage, &s3, &o.s3) < 0)
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    o.progress = waiting_progress;
    o.progress_user = &w;
    struct leat_error err = {0};
    struct leat_ws *ws = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_open(self->client, uri, &o, &ws, &err);
    Py_END_ALLOW_THREADS;
    leave(self);
    if (waiting_end(&w, rc, &err) < 0) {
        if (rc == 0)
            leat_close(ws);
        return NULL;
    }
    PyObject *set = set_new(ws);
    if (!set)
        leat_close(ws);
    return set;
}

static PyObject *client_append(struct client_object *self, PyObject *args)
{
    const char *name, *uri;
    struct leat_open_options o = {.size = sizeof(o), .flags = LEAT_OPEN_WAIT};
    struct leat_s3_options s3 = {.size = sizeof(s3)};
    struct waiting w = {0};
    PyObject *storage;
    if (!PyArg_ParseTuple(args, "syO&OO", &name, &uri, to_u64, &o.timeout_ns, &w.callback, &storage) ||
        take_s3(storage, &s3, &o.s3) < 0)
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    o.progress = waiting_progress;
    o.progress_user = &w;
    struct leat_error err = {0};
    uint64_t length = 0;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_append(self->client, name, uri, &o, &length, &err);
    Py_END_ALLOW_THREADS;
    leave(self);
    return waiting_end(&w, rc, &err) < 0 ? NULL : PyLong_FromUnsignedLongLong(length);
}

static PyObject *client_scan(struct client_object *self, PyObject *args)
{
    const char *uri;
    struct leat_scan_options o = {.size = sizeof(o)};
    struct leat_s3_options s3 = {.size = sizeof(s3)};
    PyObject *storage;
    if (!PyArg_ParseTuple(args, "yyO&O&O", &uri, &o.after, to_u64, &o.window_bytes, to_u64, &o.timeout_ns,
                          &storage) ||
        take_s3(storage, &s3, &o.s3) < 0)
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    struct leat_error err = {0};
    struct leat_scan *scan = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_scan(self->client, uri, &o, &scan, &err);
    Py_END_ALLOW_THREADS;
    leave(self);
    PyObject *result = NULL;
    if (rc || PyErr_Occurred())
        raise_error(rc ? rc : LEAT_CANCELED, &err);
    else
        result = scan_new(scan);
    if (!result)
        leat_scan_close(scan);
    return result;
}

static PyObject *client_query(struct client_object *self, PyObject *args)
{
    int query;
    const char *arg;
    if (!PyArg_ParseTuple(args, "iz", &query, &arg))
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    struct leat_error err = {0};
    char *text = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_query(self->client, (enum leat_query)query, arg, &text, &err);
    Py_END_ALLOW_THREADS;
    leave(self);
    if (rc)
        return raise_error(rc, &err);
    PyObject *result =
        PyErr_Occurred() ? NULL : PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
    leat_free(text);
    return result;
}

static PyObject *client_drop(struct client_object *self, PyObject *args)
{
    const char *name;
    unsigned flags;
    uint64_t timeout_ns;
    if (!PyArg_ParseTuple(args, "sIO&", &name, &flags, to_u64, &timeout_ns))
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    struct leat_error err = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_drop(self->client, name, flags, timeout_ns, &err);
    Py_END_ALLOW_THREADS;
    leave(self);
    if (rc || PyErr_Occurred())
        return raise_error(rc ? rc : LEAT_CANCELED, &err);
    Py_RETURN_NONE;
}

static PyObject *client_stop(struct client_object *self, PyObject *args)
{
    int force;
    if (!PyArg_ParseTuple(args, "p", &force))
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    struct leat_error err = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_stop(self->client, force, &err);
    Py_END_ALLOW_THREADS;
    leave(self);
    if (rc || PyErr_Occurred())
        return raise_error(rc ? rc : LEAT_CANCELED, &err);
    Py_RETURN_NONE;
}

/* --- create ------------------------------------------------------------------------------------------------------ */

struct create {
    struct leat_create_field *fields;
    uint64_t (*shapes)[LEAT_MAX_DIMS];
    Py_buffer *lengths; /* [nfields]: of raw fields */
    unsigned nfields;
    const char **keys; /* into the strings of the list, which the caller holds */
};

static int create_fields(struct create *c, PyObject *fields)
{
    Py_ssize_t n = PyList_Size(fields);
    if (n <= 0 || n > 256) {
        PyErr_SetString(PyExc_ValueError, "between 1 and 256 fields");
        return -1;
    }
    c->nfields = (unsigned)n;
    c->fields = PyMem_Calloc((size_t)n, sizeof(*c->fields));
    c->shapes = PyMem_Calloc((size_t)n, sizeof(*c->shapes));
    c->lengths = PyMem_Calloc((size_t)n, sizeof(*c->lengths));
    if (!c->fields || !c->shapes || !c->lengths) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        struct leat_create_field *f = &c->fields[i];
        PyObject *shape;
        f->size = sizeof(*f);
        if (!PyArg_ParseTuple(PyList_GetItem(fields, i), "ssO!z*", &f->name, &f->dtype, &PyTuple_Type, &shape,
                              &c->lengths[i]))
            return -1;
        if (lengths_of(&c->lengths[i], &f->lengths, &f->nlengths) < 0)
            return -1;
        f->ndim = (unsigned)PyTuple_Size(shape);
        f->shape = c->shapes[i];
        if (f->ndim > LEAT_MAX_DIMS) {
            PyErr_Format(PyExc_ValueError, "at most %d dimensions", LEAT_MAX_DIMS);
            return -1;
        }
        for (unsigned d = 0; d < f->ndim; d++)
            if (!to_u64(PyTuple_GetItem(shape, d), &c->shapes[i][d]))
                return -1;
    }
    return 0;
}

static int create_keys(struct create *c, PyObject *keys, uint64_t nsamples)
{
    if (keys == Py_None)
        return 0;
    if ((uint64_t)PyList_Size(keys) != nsamples) {
        PyErr_SetString(PyExc_ValueError, "as many keys as samples");
        return -1;
    }
    c->keys = PyMem_Calloc(nsamples + 1, sizeof(*c->keys));
    if (!c->keys) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t i = 0; i < nsamples; i++) {
        char *key; /* a NUL inside is a ValueError */
        if (PyBytes_AsStringAndSize(PyList_GetItem(keys, (Py_ssize_t)i), &key, NULL) < 0)
            return -1;
        c->keys[i] = key;
    }
    return 0;
}

static PyObject *client_create(struct client_object *self, PyObject *args)
{
    const char *name;
    PyObject *fields, *keys;
    struct leat_create_options o = {.size = sizeof(o)};
    if (!PyArg_ParseTuple(args, "sO!O&OI", &name, &PyList_Type, &fields, to_u64, &o.nsamples, &keys,
                          &o.flags))
        return NULL;
    struct create c = {0};
    struct leat_error err = {0};
    int rc = create_fields(&c, fields) || create_keys(&c, keys, o.nsamples) ? 1 : 0;
    o.fields = c.fields;
    o.nfields = c.nfields;
    o.keys = c.keys;
    o.nkeys = c.keys ? o.nsamples : 0;
    if (rc == 0 && !gate_enter(&self->gate)) {
        gate_refuse(&self->gate, "the connection");
        rc = 1;
    }
    if (rc == 0) {
        Py_BEGIN_ALLOW_THREADS;
        rc = leat_create(self->client, name, &o, &err);
        Py_END_ALLOW_THREADS;
        leave(self);
    }
    for (unsigned f = 0; c.lengths && f < c.nfields; f++)
        PyBuffer_Release(&c.lengths[f]);
    PyMem_Free(c.lengths);
    PyMem_Free(c.fields);
    PyMem_Free(c.shapes);
    PyMem_Free(c.keys);
    if (rc < 0)
        raise_error(rc, &err);
    if (rc || PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *client_socket(struct client_object *self, void *closure)
{
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the connection");
    PyObject *path = PyUnicode_DecodeFSDefault(leat_client_socket(self->client));
    leave(self);
    return path;
}

static PyMethodDef client_methods[] = {
    {"open", (PyCFunction)client_open, METH_VARARGS,
     "open(uri, name, flags, pool_bytes, timeout_ns, progress, storage) -> Set"},
    {"append", (PyCFunction)client_append, METH_VARARGS,
     "append(name, uri, timeout_ns, progress, storage) -> int"},
    {"create", (PyCFunction)client_create, METH_VARARGS,
     "create(name, [(field, dtype, shape, lengths or None)], n, keys, flags)"},
    {"scan", (PyCFunction)client_scan, METH_VARARGS,
     "scan(uri, after, window_bytes, timeout_ns, storage) -> Scan"},
    {"query", (PyCFunction)client_query, METH_VARARGS, "query(kind, arg) -> str"},
    {"drop", (PyCFunction)client_drop, METH_VARARGS, "drop(name, flags, timeout_ns)"},
    {"stop", (PyCFunction)client_stop, METH_VARARGS, "stop(force)"},
    {"close", (PyCFunction)client_close, METH_NOARGS, "close()"},
    {0},
};
static PyGetSetDef client_getset[] = {
    {"socket", (getter)client_socket, NULL, "the daemon's socket path", NULL}, {0}};
static PyType_Slot client_slots[] = {{Py_tp_new, client_new},
                                     {Py_tp_dealloc, client_dealloc},
                                     {Py_tp_methods, client_methods},
                                     {Py_tp_getset, client_getset},
                                     {0}};
PyType_Spec client_spec = {"leat._leat.Client", sizeof(struct client_object), 0, Py_TPFLAGS_DEFAULT,
                           client_slots};
