/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c: Memory: bytes of a Holder as an object with the buffer protocol (a shape, a format, read-only or not), and
 * DLPack capsules over any buffer.
 *
 * DLPack: https://dmlc.github.io/dlpack/latest/c_api.html (1.0: DLManagedTensorVersioned). A capsule keeps the buffer it was made
 * from; its deleter may run in any thread, so it takes the GIL itself. Device memory is no buffer: there it keeps an owner.
 */
#include "module.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 8

struct memory_object {
    PyObject ob_base;
    struct holder_object *holder;
    const void *data;
    Py_ssize_t bytes, itemsize;
    bool read_only;
    int cuda;  /* -1, or the device that `data` is an address of */
    int keeps; /* inside the gate as long as it lives: NumPy's constructor keeps this, and no export of it */
    int ndim;
    Py_ssize_t shape[MAX_DIMS], strides[MAX_DIMS];
    char *format, short_format[8]; /* the first is the second, if it fits */
};

enum { PART_DATA, PART_OFFSETS };

/* Where field `field` of the holder lies. Called inside the holder's gate. */
static int memory_place(struct memory_object *self, unsigned field, int part)
{
    struct holder_object *h = self->holder;
    uint64_t bytes = h->bytes;
    self->data = h->data;
    if (h->batch && part == PART_OFFSETS) {
        self->data = leat_batch_offsets(h->batch, field);
        bytes = 8 * (leat_batch_size(h->batch) + 1ull);
    } else if (h->batch) {
        self->data = leat_batch_data(h->batch, field, &bytes);
        int device;
        if (leat_batch_memory(h->batch, &device) == LEAT_MEMORY_CUDA)
            self->cuda = device;
    }
    if (!self->data && bytes) {
        PyErr_SetString(PyExc_ValueError,
                        part == PART_OFFSETS ? "this field has no offsets" : "no such field");
        return -1;
    }
    self->bytes = (Py_ssize_t)bytes;
    return 0;
}

static int memory_shape(struct memory_object *self, PyObject *shape)
{
    Py_ssize_t ndim = PyTuple_Size(shape), stride = self->itemsize;
    if (ndim < 0 || ndim > MAX_DIMS)
        return PyErr_Format(PyExc_ValueError, "at most %d dimensions", MAX_DIMS), -1;
    for (Py_ssize_t d = 0; d < ndim; d++) {
        self->shape[d] = PyLong_AsSsize_t(PyTuple_GetItem(shape, d));
        if (self->shape[d] < 0)
            return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_ValueError, "negative extent"), -1);
    }
    self->ndim = (int)ndim;
    for (Py_ssize_t d = ndim; d-- > 0;) {
        self->strides[d] = stride;
        if (__builtin_mul_overflow(stride, self->shape[d], &stride))
            stride = -1;
    }
    if (stride != self->bytes)
        return PyErr_Format(PyExc_ValueError, "the shape takes %zd bytes, there are %zd", stride,
                            self->bytes),
               -1;
    return 0;
}

static PyObject *memory_make(PyTypeObject *type, struct holder_object *holder, unsigned field, int part,
                             const char *format, Py_ssize_t itemsize, PyObject *shape, bool read_only,
                             bool keeps)
{
    if (itemsize <= 0)
        return PyErr_Format(PyExc_ValueError, "items of %zd bytes", itemsize);
    if (!gate_enter(&holder->gate))
        return gate_refuse(&holder->gate, holder->batch ? "the batch" : "the view");
    struct memory_object *self = object_new(type);
    int rc = -1;
    if (self) {
        Py_INCREF((PyObject *)holder);
        self->holder = holder;
        self->itemsize = itemsize;
        self->cuda = -1;
        self->read_only = read_only;
        size_t chars = strlen(format) + 1;
        self->format = chars <= sizeof(self->short_format) ? self->short_format : PyMem_Malloc(chars);
        if (self->format)
            memcpy(self->format, format, chars);
        else
            PyErr_NoMemory();
        rc = self->format ? memory_place(self, field, part) : -1;
    }
    if (rc == 0 && shape == Py_None && self->bytes % itemsize == 0) {
        self->ndim = 1;
        self->shape[0] = self->bytes / itemsize;
        self->strides[0] = itemsize;
    } else if (rc == 0 && shape == Py_None) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of items of %zd", self->bytes,
                     itemsize);
        rc = -1;
    } else if (rc == 0) {
        rc = memory_shape(self, shape);
    }
    if (self)
        self->keeps = rc == 0 && (keeps || self->cuda >= 0);
    if ((!self || !self->keeps) && gate_leave(&holder->gate))
        holder_drop(holder); /* another thread released it during this call */
    if (rc)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Memory(holder, field, part, format, itemsize, shape, read_only, keeps=False); shape None: one dimension of whole items. */
static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct holder_object *holder;
    unsigned field;
    int part, read_only, keeps = 0;
    const char *format;
    Py_ssize_t itemsize;
    PyObject *shape;
    if (kwargs && PyDict_Size(kwargs))
        return PyErr_Format(PyExc_TypeError, "Memory() takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "O!IisnOp|p", holder_type, &holder, &field, &part, &format, &itemsize, &shape,
                          &read_only, &keeps))
        return NULL;
    return memory_make(type, holder, field, part, format, itemsize, shape, read_only, keeps);
}

PyObject *memory_of_field(struct holder_object *holder, unsigned field)
{
    return memory_make(memory_type, holder, field, PART_DATA, "B", 1, Py_None, false, true);
}

static void memory_dealloc(struct memory_object *self)
{
    if (self->format != self->short_format)
        PyMem_Free(self->format);
    if (self->holder && self->keeps && gate_leave(&self->holder->gate))
        holder_drop(self->holder);
    Py_XDECREF((PyObject *)self->holder);
    object_free((PyObject *)self);
}

static int memory_getbuffer(struct memory_object *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    if (self->cuda >= 0) {
        PyErr_Format(PyExc_BufferError, "this memory is of CUDA device %d, not the CPU's", self->cuda);
        return -1;
    }
    if ((flags & PyBUF_WRITABLE) && self->read_only) {
        PyErr_SetString(PyExc_BufferError,
                        "this memory belongs to the pool and is read-only: copy it to write");
        return -1;
    }
    if (!gate_enter(&self->holder->gate)) {
        PyErr_SetString(PyExc_BufferError, "this memory was released");
        return -1;
    }
    view->buf = (void *)(uintptr_t)(self->data ? self->data : "");
    view->len = self->bytes;
    view->readonly = self->read_only;
    view->itemsize = self->itemsize;
    view->format = (flags & PyBUF_FORMAT) ? self->format : NULL;
    view->ndim = (flags & PyBUF_ND) ? self->ndim : 1;
    view->shape = (flags & PyBUF_ND) ? self->shape : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    Py_INCREF((PyObject *)self);
    view->obj = (PyObject *)self;
    return 0;
}

static void memory_releasebuffer(struct memory_object *self, Py_buffer *view)
{
    if (gate_leave(&self->holder->gate))
        holder_drop(self->holder);
}

static PyObject *memory_holder(struct memory_object *self, void *closure)
{
    Py_INCREF((PyObject *)self->holder);
    return (PyObject *)self->holder;
}

static PyObject *memory_nbytes(struct memory_object *self, void *closure)
{
    return PyLong_FromSsize_t(self->bytes);
}

static PyObject *memory_address(struct memory_object *self, void *closure)
{
    return PyLong_FromVoidPtr((void *)(uintptr_t)self->data);
}

static PyGetSetDef memory_getset[] = {{"address", (getter)memory_address, NULL, "int", NULL},
                                      {"holder", (getter)memory_holder, NULL, "what keeps the memory", NULL},
                                      {"nbytes", (getter)memory_nbytes, NULL, "bytes", NULL},
                                      {0}};
static PyType_Slot memory_slots[] = {{Py_tp_new, memory_new},
                                     {Py_tp_dealloc, memory_dealloc},
                                     {Py_tp_getset, memory_getset},
                                     {Py_bf_getbuffer, memory_getbuffer},
                                     {Py_bf_releasebuffer, memory_releasebuffer},
                                     {0}};
PyType_Spec memory_spec = {"leat._leat.Memory", sizeof(struct memory_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, memory_slots};

/* --- DLPack -------------------------------------------------------------------------------------------------------- */

struct dl_device {
    int32_t type, id;
};
struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
};
struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct dl_type dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
};
struct dl_managed_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags;
    struct dl_tensor tensor;
};
#define DL_CPU            1
#define DL_CUDA           2
#define DL_FLAG_READ_ONLY 1u
#define DL_FLAG_COPIED    2u

struct dl_box {
    union {
        struct dl_managed legacy;
        struct dl_managed_versioned versioned;
    };
    Py_buffer buffer;
    PyObject *owner; /* of device memory, which is no buffer */
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
};

static void box_free(struct dl_box *box)
{
    /* At exit consumers may outlive the interpreter: then there is nothing to give back. */
    if (Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        if (box->owner)
            Py_DECREF(box->owner);
        else
            PyBuffer_Release(&box->buffer);
        PyGILState_Release(gil);
    }
    free(box);
}

static void delete_legacy(struct dl_managed *managed)
{
    box_free(managed->context);
}

static void delete_versioned(struct dl_managed_versioned *managed)
{
    box_free(managed->context);
}

/* A consumer renames the capsule that it takes; only one that was never taken is ours to free. */
static void capsule_free(PyObject *capsule)
{
    struct dl_box *box = NULL;
    if (PyCapsule_IsValid(capsule, "dltensor"))
        box = ((struct dl_managed *)PyCapsule_GetPointer(capsule, "dltensor"))->context;
    else if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        box = ((struct dl_managed_versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned"))->context;
    if (box)
        box_free(box);
}

/* The capsule of box->buffer, whose items have `bits` bits; takes the box. */
static PyObject *box_capsule(struct dl_box *box, struct dl_device device, unsigned code, unsigned bits,
                             bool versioned, uint64_t flags)
{
    const Py_buffer *b = &box->buffer;
    if (b->ndim > MAX_DIMS || b->itemsize * 8 != (Py_ssize_t)bits) {
        box_free(box);
        return PyErr_Format(PyExc_BufferError, "not an array that DLPack describes");
    }
    struct dl_tensor tensor = {.data = b->buf,
                               .device = device,
                               .ndim = b->ndim,
                               .dtype = {.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1},
                               .shape = box->shape,
                               .strides = box->strides};
    for (int d = 0; d < b->ndim; d++) {
        box->shape[d] = b->shape[d];
        box->strides[d] = b->strides[d] / b->itemsize;
    }
    PyObject *capsule;
    if (versioned) {
        box->versioned = (struct dl_managed_versioned){
            .version = {1, 0}, .context = box, .deleter = delete_versioned, .flags = flags, .tensor = tensor};
        capsule = PyCapsule_New(&box->versioned, "dltensor_versioned", capsule_free);
    } else {
        box->legacy = (struct dl_managed){.tensor = tensor, .context = box, .deleter = delete_legacy};
        capsule = PyCapsule_New(&box->legacy, "dltensor", capsule_free);
    }
    if (!capsule)
        box_free(box);
    return capsule;
}

PyObject *module_dlpack(PyObject *module, PyObject *args)
{
    PyObject *object;
    unsigned code, bits;
    int versioned, read_only, copied;
    if (!PyArg_ParseTuple(args, "OIIppp", &object, &code, &bits, &versioned, &read_only, &copied))
        return NULL;
    struct dl_box *box = calloc(1, sizeof(*box));
    if (!box)
        return PyErr_NoMemory();
    if (PyObject_GetBuffer(object, &box->buffer, PyBUF_STRIDES | (read_only ? 0 : PyBUF_WRITABLE)) < 0) {
        free(box);
        return NULL;
    }
    return box_capsule(box, (struct dl_device){.type = DL_CPU}, code, bits, versioned,
                       (read_only ? DL_FLAG_READ_ONLY : 0) | (copied ? DL_FLAG_COPIED : 0));
}

PyObject *module_dlpack_cuda(PyObject *module, PyObject *args)
{
    PyObject *owner, *shape, *address;
    struct dl_device device = {.type = DL_CUDA};
    unsigned code, bits;
    int versioned;
    Py_ssize_t rows = 0; /* of dimension 1 as it lies in memory, of which the shape has the first; 0: all */
    if (!PyArg_ParseTuple(args, "OOiO!IIp|n", &owner, &address, &device.id, &PyTuple_Type, &shape, &code,
                          &bits, &versioned, &rows))
        return NULL;
    void *data = PyLong_AsVoidPtr(address);
    Py_ssize_t ndim = PyTuple_Size(shape), extents[MAX_DIMS], strides[MAX_DIMS], stride = bits / 8;
    if (PyErr_Occurred())
        return NULL;
    if (ndim > MAX_DIMS)
        return PyErr_Format(PyExc_BufferError, "at most %d dimensions", MAX_DIMS);
    for (Py_ssize_t d = ndim; d-- > 0; stride *= d == 1 && rows ? rows : extents[d]) {
        strides[d] = stride;
        extents[d] = PyLong_AsSsize_t(PyTuple_GetItem(shape, d));
        if (extents[d] < 0)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "negative extent");
    }
    struct dl_box *box = calloc(1, sizeof(*box));
    if (!box)
        return PyErr_NoMemory();
    Py_INCREF(owner);
    box->owner = owner;
    box->buffer = (Py_buffer){
        .buf = data, .itemsize = bits / 8, .ndim = (int)ndim, .shape = extents, .strides = strides};
    return box_capsule(box, device, code, bits, versioned, 0);
}
