/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: Scan: a remote prefix, once, in its order; each sample a Holder, which keeps its bytes in the
 * window. */
#include "module.h"

#include <string.h>

/* Ends the scan at the daemon, and unmaps the window. */
static void scan_drop(struct scan_object *self)
{
    struct away away = away_begin();
    leat_scan_close(self->scan);
    away_end(&away);
}

void scan_leave(struct scan_object *self)
{
    if (gate_leave(&self->gate))
        scan_drop(self);
}

PyObject *scan_new(struct leat_scan *scan)
{
    struct scan_object *self = object_new(scan_type);
    if (!self)
        return NULL;
    self->scan = scan;
    gate_init(&self->gate);
    return (PyObject *)self;
}

static PyObject *scan_close(struct scan_object *self, PyObject *none)
{
    if (gate_close(&self->gate))
        scan_drop(self);
    Py_RETURN_NONE;
}

static void scan_dealloc(struct scan_object *self)
{
    if (self->scan && gate_close(&self->gate))
        scan_drop(self);
    object_free((PyObject *)self);
}

static PyObject *scan_next(struct scan_object *self, PyObject *args)
{
    uint64_t timeout_ns;
    if (!PyArg_ParseTuple(args, "O&", to_u64, &timeout_ns))
        return NULL;
    if (!gate_enter(&self->gate)) /* left when the sample is released */
        return gate_refuse(&self->gate, "the scan");
    struct leat_scan_sample s = {.size = sizeof(s)};
    struct leat_error err = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_scan_next(self->scan, timeout_ns, &s, &err);
    Py_END_ALLOW_THREADS;
    PyObject *result = NULL;
    if (rc || PyErr_Occurred())
        result = raise_error(rc ? rc : LEAT_CANCELED, &err);
    else if (!s.key)
        result = Py_NewRef(Py_None);
    if (rc || !s.key || PyErr_Occurred()) {
        if (rc == 0 && s.key)
            leat_scan_release(self->scan, s.number);
        scan_leave(self);
        return result;
    }
    PyObject *holder = holder_of_sample(self, &s); /* leaves the gate when it fails */
    return holder ? Py_BuildValue("NNsL", holder,
                                  PyUnicode_DecodeUTF8(s.key, (Py_ssize_t)strlen(s.key), "surrogateescape"),
                                  s.etag, (long long)s.modified)
                  : NULL;
}

static PyMethodDef scan_methods[] = {
    {"next", (PyCFunction)scan_next, METH_VARARGS,
     "next(timeout_ns) -> (Holder, key, etag, modified) or None"},
    {"close", (PyCFunction)scan_close, METH_NOARGS, "close()"},
    {0},
};
static PyType_Slot scan_slots[] = {{Py_tp_dealloc, scan_dealloc}, {Py_tp_methods, scan_methods}, {0}};
PyType_Spec scan_spec = {"leat._leat.Scan", sizeof(struct scan_object), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, scan_slots};
