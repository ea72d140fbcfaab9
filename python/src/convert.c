/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c: between Python's objects and <leat/leat.h>: ids, progress, signals. */
#include "module.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int to_u64(PyObject *object, void *ret)
{
    PyObject *number = PyNumber_Index(object);
    if (!number)
        return 0;
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return 0;
    *(uint64_t *)ret = value;
    return 1;
}

int to_unsigned(PyObject *object, void *ret)
{
    uint64_t value;
    if (!to_u64(object, &value))
        return 0;
    if (value > UINT_MAX) {
        PyErr_Format(PyExc_OverflowError, "%llu is more than %u", (unsigned long long)value, UINT_MAX);
        return 0;
    }
    *(unsigned *)ret = (unsigned)value;
    return 1;
}

int lengths_of(const Py_buffer *buffer, const uint64_t **ret_lengths, uint64_t *ret_n)
{
    if (buffer->len % 8 || (uintptr_t)buffer->buf % 8) {
        PyErr_SetString(PyExc_ValueError, "lengths are uint64");
        return -1;
    }
    *ret_lengths = buffer->buf;
    *ret_n = (uint64_t)buffer->len / 8;
    return 0;
}

/* --- ids ------------------------------------------------------------------------------------------------------- */

static int bad_id(int64_t id, uint64_t length)
{
    PyErr_Format(PyExc_IndexError, "sample %lld of a working set of %llu samples", (long long)id,
                 (unsigned long long)length);
    return -1;
}

static uint64_t *room(unsigned n)
{
    uint64_t *ids = PyMem_Malloc((n ? n : 1) * sizeof(*ids));
    if (!ids)
        PyErr_NoMemory();
    return ids;
}

/* Takes the array as it is; a copy only when it holds negative numbers, which count from the end. */
static int from_array(struct ids *ids, bool is_signed, uint64_t length)
{
    const int64_t *in = ids->buffer.buf;
    bool negative = false;
    for (unsigned i = 0; i < ids->n; i++) {
        if ((uint64_t)in[i] < length)
            continue;
        if (!is_signed || in[i] >= 0 || (uint64_t) - (in[i] + 1) >= length) {
            if (!is_signed) {
                PyErr_Format(PyExc_IndexError, "sample %llu of a working set of %llu samples",
                             (unsigned long long)in[i], (unsigned long long)length);
                return -1;
            }
            return bad_id(in[i], length);
        }
        negative = true;
    }
    ids->ids = ids->buffer.buf;
    if (!negative)
        return 0;
    ids->owned = room(ids->n);
    if (!ids->owned)
        return -1;
    for (unsigned i = 0; i < ids->n; i++)
        ids->owned[i] = in[i] < 0 ? (uint64_t)in[i] + length : (uint64_t)in[i];
    ids->ids = ids->owned;
    return 0;
}

static int from_sequence(PyObject *object, uint64_t length, struct ids *ids)
{
    Py_ssize_t n = PySequence_Size(object);
    if (n < 0)
        return -1;
    if (n > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "more than 2^32 - 1 samples in one batch");
        return -1;
    }
    ids->n = (unsigned)n;
    ids->owned = room(ids->n);
    if (!ids->owned)
        return -1;
    ids->ids = ids->owned;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(object, i);
        if (!item)
            return -1;
        if (PyBool_Check(item)) { /* a mask, surely: as numbers it would be samples 0 and 1 */
            Py_DECREF(item);
            PyErr_SetString(PyExc_TypeError,
                            "ids are numbers of samples, not True and False: numpy.flatnonzero(mask)");
            return -1;
        }
        PyObject *number = PyNumber_Index(item);
        Py_DECREF(item);
        if (!number)
            return -1;
        int overflow;
        long long id = PyLong_AsLongLongAndOverflow(number, &overflow);
        Py_DECREF(number);
        if (id == -1 && !overflow && PyErr_Occurred())
            return -1;
        if (overflow || (id >= 0 ? (uint64_t)id >= length : (uint64_t) - (id + 1) >= length))
            return bad_id(overflow ? INT64_MAX : id, length);
        ids->owned[i] = id < 0 ? (uint64_t)id + length : (uint64_t)id;
    }
    return 0;
}

int ids_get(PyObject *object, uint64_t length, struct ids *ret_ids)
{
    struct ids ids = {0};
    int rc;
    if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &ids.buffer, PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS) < 0)
            PyErr_Clear(); /* strided: taken one by one */
        else
            ids.has_buffer = true;
    }
    const char *format = ids.has_buffer && ids.buffer.format ? ids.buffer.format : "";
    if (format[0] == '<' || format[0] == '=' || format[0] == '@')
        format++;
    bool is_signed = strcmp(format, "q") == 0 || strcmp(format, "l") == 0;
    if (ids.has_buffer && ids.buffer.ndim == 1 && ids.buffer.itemsize == 8 &&
        (is_signed || strcmp(format, "Q") == 0 || strcmp(format, "L") == 0) &&
        ids.buffer.len / 8 <= (Py_ssize_t)UINT32_MAX) {
        ids.n = (unsigned)(ids.buffer.len / 8);
        rc = from_array(&ids, is_signed, length);
    } else {
        rc = from_sequence(object, length, &ids);
    }
    if (rc) {
        ids_fini(&ids);
        return -1;
    }
    *ret_ids = ids;
    return 0;
}

void ids_fini(struct ids *ids)
{
    if (ids->has_buffer)
        PyBuffer_Release(&ids->buffer);
    PyMem_Free(ids->owned);
}

/* --- waiting ----------------------------------------------------------------------------------------------------- */

int waiting_progress(const struct leat_progress *p, void *user)
{
    struct waiting *w = user;
    PyGILState_STATE gil = PyGILState_Ensure();
    int rc = PyErr_Occurred() ? -1 : PyErr_CheckSignals();
    if (rc == 0 && w->callback && w->callback != Py_None) {
        PyObject *result =
            PyObject_CallFunction(w->callback, "iKKKK", (int)p->stage, (unsigned long long)p->samples_done,
                                  (unsigned long long)p->samples_total, (unsigned long long)p->bytes_done,
                                  (unsigned long long)p->bytes_total);
        rc = result ? 0 : -1;
        Py_XDECREF(result);
    }
    if (rc && !w->type)
        PyErr_Fetch(&w->type, &w->value, &w->trace);
    else if (rc)
        PyErr_Clear();
    PyGILState_Release(gil);
    return rc;
}

int waiting_interrupt(void *none)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    int stop = PyErr_Occurred() || PyErr_CheckSignals() < 0;
    PyGILState_Release(gil);
    return stop;
}

int waiting_end(struct waiting *w, int rc, const struct leat_error *err)
{
    if (w->type) {
        PyErr_Restore(w->type, w->value, w->trace);
        return -1;
    }
    if (rc == 0 && !PyErr_Occurred())
        return 0;
    if (rc)
        raise_error(rc, err); /* unless a signal handler has raised */
    return -1;
}
