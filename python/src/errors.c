/* SPDX-License-Identifier: Apache-2.0 */
/* errors.c: struct leat_error as a Python exception. In each extension: all of them raise what leat._base.errors makes. */
#include "errors.h"

#include <string.h>

static PyObject *error_maker; /* f(code, name, message) -> exception */

PyObject *raise_error(int rc, const struct leat_error *err)
{
    if (PyErr_Occurred())
        return NULL;
    const char *name = leat_strerror(rc);
    const char *text = err && err->message[0] ? err->message : name;
    /* Messages quote paths, which need not be UTF-8. */
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
    if (!message)
        return NULL;
    if (!error_maker) {
        PyErr_SetObject(PyExc_RuntimeError, message);
        Py_DECREF(message);
        return NULL;
    }
    PyObject *error = PyObject_CallFunction(error_maker, "isN", rc, name, message);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

PyObject *module_set_error_maker(PyObject *module, PyObject *maker)
{
    PyObject *old = error_maker;
    Py_INCREF(maker);
    error_maker = maker;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}
