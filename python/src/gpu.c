/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c: leat._gpu, an extension of its own over src/gpu for the slots that Python fills. Device: one GPU; Buffer: memory of the
 * caller's, pinned, with memory of the device beside it where wanted.
 *
 *   Buffer ─ send(spans) ─▶ wait ─▶ handed out ─ use(stream) ─▶ idle? ─ … ─▶ close
 *
 * Failure modes: the driver's words as an exception. An event that cannot be put on a stream now is tried again by idle(), which says
 * what is wrong: until then the buffer counts as used. A device that is lost uses nothing any more.
 * Invariants: the memory stays pinned, and its owner referenced, until the device does nothing with it any more: a Buffer that goes
 * before that leaves its memory for good. A forked child touches neither: they are its parent's. One thread at a time per Buffer.
 */
#include "errors.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/gpu.h"

#define SPINS    200 /* questions in a row before the first sleep: a batch of some MB takes that long */
#define SLEEP_NS (20 * NS_PER_US)

struct device_object {
    PyObject ob_base;
    struct gpu *gpu;
    pid_t pid;
};

struct buffer_object {
    PyObject ob_base;
    struct gpu_buffer *buffer;
    PyObject *owner; /* of the pinned memory */
    pid_t pid;
    uint64_t bytes;
    bool copying, used;
};

static PyTypeObject *device_type, *buffer_type;
static void *object_new(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

static void object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* --- Device ---------------------------------------------------------------------------------------------------------- */

static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int ordinal;
    if (!PyArg_ParseTuple(args, "i", &ordinal))
        return NULL;
    struct device_object *self = object_new(type);
    if (!self)
        return NULL;
    struct leat_error err = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS; /* the first use of a device takes a second */
    rc = gpu_open(ordinal, &self->gpu, &err);
    Py_END_ALLOW_THREADS;
    if (rc) {
        Py_DECREF((PyObject *)self);
        return raise_error(rc, &err);
    }
    self->pid = getpid();
    return (PyObject *)self;
}

static void device_dealloc(struct device_object *self)
{
    if (self->pid == getpid())
        gpu_unref(self->gpu);
    object_free((PyObject *)self);
}

static PyType_Slot device_slots[] = {{Py_tp_new, device_new}, {Py_tp_dealloc, device_dealloc}, {0}};
static PyType_Spec device_spec = {"leat._gpu.Device", sizeof(struct device_object), 0, Py_TPFLAGS_DEFAULT,
                                  device_slots};

/* --- Buffer ---------------------------------------------------------------------------------------------------------- */

/* Buffer(device, address, nbytes, on_device, owner) */
static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct device_object *device;
    PyObject *address, *owner;
    unsigned long long bytes;
    int on_device;
    if (!PyArg_ParseTuple(args, "O!OKpO", device_type, &device, &address, &bytes, &on_device, &owner))
        return NULL;
    void *host = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    if (device->pid != getpid())
        return PyErr_Format(PyExc_RuntimeError,
                            "a CUDA device that was opened before fork(): use spawn or forkserver");
    struct buffer_object *self = object_new(type);
    if (!self)
        return NULL;
    struct leat_error err = {0};
    struct gpu_buffer *buffer = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS; /* pinning some hundred MB takes long */
    rc = gpu_buffer_new(device->gpu, host, bytes, on_device, &buffer, &err);
    Py_END_ALLOW_THREADS;
    if (rc) {
        Py_DECREF((PyObject *)self);
        return raise_error(rc, &err);
    }
    Py_INCREF(owner);
    *self = (struct buffer_object){
        .ob_base = self->ob_base, .buffer = buffer, .owner = owner, .pid = getpid(), .bytes = bytes};
    return (PyObject *)self;
}

/* 1: the device uses it. 0: it does not. -errno: not known yet. */
static int buffer_state(struct buffer_object *self, struct leat_error *err)
{
    if (self->copying && gpu_buffer_busy(self->buffer, NULL) > 0)
        return 1;
    self->copying = false;
    if (self->used && !gpu_buffer_used(self->buffer)) {
        int rc = gpu_buffer_refused(self->buffer, err);
        return rc ? rc : 1;
    }
    self->used = false;
    return 0;
}

static PyObject *buffer_close(struct buffer_object *self, PyObject *none)
{
    struct gpu_buffer *buffer = self->buffer;
    self->buffer = NULL;
    if (!buffer || self->pid != getpid())
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS; /* freeing memory of the device waits for it */
    gpu_buffer_free(buffer);
    Py_END_ALLOW_THREADS;
    Py_CLEAR(self->owner);
    Py_RETURN_NONE;
}

static void buffer_dealloc(struct buffer_object *self)
{
    if (self->buffer && self->pid == getpid() && buffer_state(self, NULL) == 0)
        Py_DECREF(buffer_close(self, NULL));
    if (!self->buffer || self->pid != getpid())
        Py_XDECREF(self->owner);
    object_free((PyObject *)self);
}

static bool buffer_check(const struct buffer_object *self)
{
    if (!self->buffer)
        PyErr_SetString(PyExc_ValueError, "the buffer was closed");
    else if (self->pid != getpid())
        PyErr_SetString(PyExc_RuntimeError,
                        "memory of a GPU that was opened before fork(): use spawn or forkserver");
    else
        return true;
    return false;
}

/* send(spans): copies each (offset, bytes), later. */
static PyObject *buffer_send(struct buffer_object *self, PyObject *spans)
{
    if (!buffer_check(self))
        return NULL;
    Py_ssize_t n = PyTuple_Check(spans) ? PyTuple_Size(spans) : -1;
    if (n < 0 || !gpu_buffer_device(self->buffer))
        return PyErr_Format(PyExc_TypeError, "a tuple of spans, to memory of a device");
    struct leat_error err = {0};
    int rc = 0;
    self->copying = true;
    for (Py_ssize_t i = 0; i < n && !rc; i++) {
        unsigned long long offset, bytes;
        if (!PyArg_ParseTuple(PyTuple_GetItem(spans, i), "KK", &offset, &bytes))
            break;
        if (offset > self->bytes || bytes > self->bytes - offset) {
            PyErr_SetString(PyExc_ValueError, "a span outside of the buffer");
            break;
        }
        rc = bytes ? gpu_buffer_copy(self->buffer, offset, bytes, &err) : 0;
    }
    int marked = gpu_buffer_mark(self->buffer, rc ? NULL : &err); /* those that were begun, at least */
    if (PyErr_Occurred())
        return NULL;
    rc = rc ? rc : marked;
    if (rc)
        return raise_error(rc, &err);
    Py_RETURN_NONE;
}

/* wait(ns) -> still under way. Raises what became of the copy. */
static PyObject *buffer_wait(struct buffer_object *self, PyObject *args)
{
    unsigned long long ns;
    if (!PyArg_ParseTuple(args, "K", &ns) || !buffer_check(self))
        return NULL;
    if (!self->copying)
        Py_RETURN_FALSE;
    struct leat_error err = {0};
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    uint64_t end = clock_now_ns() + ns;
    for (unsigned asked = 0; (rc = gpu_buffer_busy(self->buffer, &err)) > 0; asked++) {
        if (asked < SPINS)
            continue;
        if (clock_now_ns() >= end)
            break;
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    Py_END_ALLOW_THREADS;
    self->copying = rc > 0;
    if (rc < 0)
        return raise_error(rc, &err);
    return PyBool_FromLong(rc);
}

/* use(stream): what is on it by now uses the buffer. */
static PyObject *buffer_use(struct buffer_object *self, PyObject *args)
{
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "K", &stream) || !buffer_check(self))
        return NULL;
    self->used = true;
    Py_BEGIN_ALLOW_THREADS;
    gpu_buffer_use(self->buffer, (void *)(uintptr_t)stream, NULL); /* a refusal: idle() tries again */
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* idle() -> the device does not use it. Raises where that is not known. */
static PyObject *buffer_idle(struct buffer_object *self, PyObject *none)
{
    if (!buffer_check(self))
        return NULL;
    struct leat_error err = {0};
    int state = buffer_state(self, &err);
    return state < 0 ? raise_error(state, &err) : PyBool_FromLong(state == 0);
}

static PyObject *buffer_address(struct buffer_object *self, void *closure)
{
    return self->buffer ? PyLong_FromVoidPtr(gpu_buffer_device(self->buffer)) : PyLong_FromLong(0);
}

static PyMethodDef buffer_methods[] = {
    {"send", (PyCFunction)buffer_send, METH_O, "send(((offset, bytes), ...))"},
    {"wait", (PyCFunction)buffer_wait, METH_VARARGS, "wait(ns) -> bool: still under way"},
    {"use", (PyCFunction)buffer_use, METH_VARARGS, "use(stream)"},
    {"idle", (PyCFunction)buffer_idle, METH_NOARGS, "idle() -> bool"},
    {"close", (PyCFunction)buffer_close, METH_NOARGS, "close()"},
    {0},
};
static PyGetSetDef buffer_getset[] = {
    {"address", (getter)buffer_address, NULL, "of the device's memory; 0: none", NULL}, {0}};
static PyType_Slot buffer_slots[] = {{Py_tp_new, buffer_new},
                                     {Py_tp_dealloc, buffer_dealloc},
                                     {Py_tp_methods, buffer_methods},
                                     {Py_tp_getset, buffer_getset},
                                     {0}};
static PyType_Spec buffer_spec = {"leat._gpu.Buffer", sizeof(struct buffer_object), 0, Py_TPFLAGS_DEFAULT,
                                  buffer_slots};

/* --- the module ------------------------------------------------------------------------------------------------------ */

static PyMethodDef module_methods[] = {
    MODULE_SET_ERROR_MAKER,
    {0},
};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "leat._gpu",
                                        .m_doc = "Memory that a GPU copies from and to", .m_size = -1,
                                        .m_methods = module_methods};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **ret_type)
{
    *ret_type = (PyTypeObject *)PyType_FromSpec(spec);
    return *ret_type ? PyModule_AddType(module, *ret_type) : -1;
}

PyMODINIT_FUNC PyInit__gpu(void);
PyMODINIT_FUNC PyInit__gpu(void)
{
    PyObject *module = PyModule_Create(&module_def);
#ifdef Py_GIL_DISABLED
    if (module)
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    if (module &&
        (add_type(module, &device_spec, &device_type) || add_type(module, &buffer_spec, &buffer_type)))
        Py_CLEAR(module);
    return module;
}
