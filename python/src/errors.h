/* SPDX-License-Identifier: Apache-2.0 */
/* errors.h: what the extensions raise. */
#ifndef LEAT_PYTHON_ERRORS_H
#define LEAT_PYTHON_ERRORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "leat/leat.h"

/* Raises the Python exception of a failed call, through the function that leat._base.errors registered. Returns NULL. */
PyObject *raise_error(int rc, const struct leat_error *err);

/* _set_error_maker(f): f(code, name, message) -> exception. */
PyObject *module_set_error_maker(PyObject *module, PyObject *maker);
#define MODULE_SET_ERROR_MAKER                                                                               \
    {                                                                                                        \
        "_set_error_maker", module_set_error_maker, METH_O, "registers f(code, name, message) -> exception"  \
    }

#endif
