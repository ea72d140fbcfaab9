/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prep.c: leat._prep, an extension of its own so that only who decodes pictures loads libjpeg. Transform: parameters and threads, and
 * run() over a batch; size() and decode_into() for single images. The GIL is released around all decoding.
 *
 * A forked child makes threads of its own on its first run: the parent's are not there.
 */
#include "errors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "prep/pool.h"

struct threads_of_process {
    pid_t pid;
    struct prep_pool *pool;
};

struct transform_object {
    PyObject ob_base;
    struct prep_params params;
    bool chw;
    unsigned threads;
    struct threads_of_process *_Atomic own; /* of the process that ran it last; NULL: none did */
};

static const int item_bytes[] = {[PREP_U8] = 1, [PREP_F32] = 4, [PREP_BF16] = 2};

static PyObject *transform_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int mode, filter, format, chw, accept, ignore, exact;
    unsigned threads;
    unsigned long long max_pixels;
    struct prep_params p;
    prep_params_init(&p);
    if (!PyArg_ParseTuple(args, "iiipII(dd)(dd)dI(fff)(fff)KpppI", &mode, &filter, &format, &chw,
                          &p.out_height, &p.out_width, &p.scale[0], &p.scale[1], &p.ratio[0], &p.ratio[1],
                          &p.flip, &p.resize, &p.mean[0], &p.mean[1], &p.mean[2], &p.std[0], &p.std[1],
                          &p.std[2], &max_pixels, &accept, &ignore, &exact, &threads))
        return NULL;
    p.mode = (enum prep_mode)mode;
    p.filter = (enum prep_filter_kind)filter;
    p.format = (enum prep_format)format;
    p.max_pixels = max_pixels;
    p.accept_damaged = accept;
    p.ignore_orientation = ignore;
    p.exact = exact;
    struct leat_error err = {0};
    int rc = prep_params_check(&p, &err);
    if (rc)
        return raise_error(rc, &err);
    prep_params_layout(&p, chw);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct transform_object *self = (struct transform_object *)alloc(type, 0);
    if (!self)
        return NULL;
    self->params = p;
    self->chw = chw;
    self->threads = threads;
    return (PyObject *)self;
}

/* Those inherited by fork are left alone: their state is not ours. */
static void threads_free(struct threads_of_process *own)
{
    if (own && own->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS;
        prep_pool_free(own->pool);
        Py_END_ALLOW_THREADS;
        free(own);
    }
}

static void transform_free(PyObject *object)
{
    struct transform_object *self = (struct transform_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    threads_free(self->own);
    release(object);
    Py_DECREF(type);
}

struct batch {
    struct prep_params params;
    const Py_buffer *in;
    const uint64_t *indices;
    uint64_t seed, epoch;
    uint8_t *out;
    Py_ssize_t stride;
    struct leat_error *errors;
};

static void one(void *arg, size_t i, struct prep_scratch *scratch)
{
    struct batch *b = arg;
    struct leat_error *err = &b->errors[i];
    err->code = 0;
    err->code = prep_image(&b->params, b->in[i].buf, (size_t)b->in[i].len, b->seed, b->epoch, b->indices[i],
                           b->out + (Py_ssize_t)i * b->stride, scratch, err);
}

/* The strides of `out` into params; out must be n samples of the transform's shape and items. */
static int place(const struct transform_object *self, const Py_buffer *out, Py_ssize_t n,
                 struct prep_params *params)
{
    Py_ssize_t h = (Py_ssize_t)params->out_height, w = (Py_ssize_t)params->out_width;
    int y = self->chw ? 2 : 1, x = self->chw ? 3 : 2, c = self->chw ? 1 : 3;
    if (out->ndim != 4 || out->shape[0] < n || out->shape[y] != h || out->shape[x] != w ||
        out->shape[c] != 3 || out->itemsize != item_bytes[params->format]) {
        PyErr_Format(
            PyExc_ValueError,
            "out: wanted is an array of at least %zd x %s for %zd x %zd pixels, of items of %d bytes", n,
            self->chw ? "3 x height x width" : "height x width x 3", h, w, item_bytes[params->format]);
        return -1;
    }
    params->stride_y = out->strides[y];
    params->stride_x = out->strides[x];
    params->stride_c = out->strides[c];
    return 0;
}

/* Without a GIL several threads may come first: one of them has made it. */
static struct prep_pool *pool_of(struct transform_object *self)
{
    struct threads_of_process *own = self->own, *made;
    if (own && own->pid == getpid())
        return own->pool;
    if (!(made = malloc(sizeof(*made))))
        return (struct prep_pool *)PyErr_NoMemory();
    made->pid = getpid();
    struct leat_error err = {0};
    int rc = prep_pool_new(self->threads, &made->pool, &err);
    if (rc) {
        free(made);
        return (struct prep_pool *)raise_error(rc, &err);
    }
    if (atomic_compare_exchange_strong(&self->own, &own, made))
        return made->pool;
    threads_free(made);
    return own->pool;
}

static PyObject *failures_of(const struct leat_error *errors, Py_ssize_t n)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; i < n && list; i++) {
        if (!errors[i].code)
            continue;
        PyObject *one_of = Py_BuildValue("(nis)", i, errors[i].code, errors[i].message);
        if (!one_of || PyList_Append(list, one_of) < 0)
            Py_CLEAR(list);
        Py_XDECREF(one_of);
    }
    return list;
}

static PyObject *transform_run(struct transform_object *self, PyObject *args)
{
    PyObject *buffers, *numbers, *out_object, *failures = NULL;
    unsigned long long seed, epoch;
    if (!PyArg_ParseTuple(args, "OOKKO", &buffers, &numbers, &seed, &epoch, &out_object))
        return NULL;
    Py_ssize_t n = PySequence_Size(buffers), opened = 0;
    if (n < 0 || PySequence_Size(numbers) != n)
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_ValueError, "as many indices as buffers are wanted");
    Py_buffer out = {0}, *in = calloc((size_t)n + 1, sizeof(*in));
    uint64_t *indices = calloc((size_t)n + 1, sizeof(*indices));
    struct leat_error *errors = calloc((size_t)n + 1, sizeof(*errors));
    struct prep_params params = self->params;
    struct prep_pool *pool = NULL;
    if (!in || !indices || !errors)
        PyErr_NoMemory();
    else if (PyObject_GetBuffer(out_object, &out, PyBUF_STRIDES | PyBUF_WRITABLE) == 0 &&
             place(self, &out, n, &params) == 0)
        pool = pool_of(self);
    for (; pool && opened < n; opened++) {
        PyObject *number = PySequence_GetItem(numbers, opened), *buffer = PySequence_GetItem(buffers, opened);
        PyObject *index = number ? PyNumber_Index(number) : NULL;
        indices[opened] = index ? PyLong_AsUnsignedLongLong(index) : 0;
        int rc =
            index && buffer && !PyErr_Occurred() ? PyObject_GetBuffer(buffer, &in[opened], PyBUF_SIMPLE) : -1;
        Py_XDECREF(index);
        Py_XDECREF(number);
        Py_XDECREF(buffer);
        if (rc < 0)
            break;
    }
    if (pool && opened == n) {
        struct batch batch = {params, in, indices, seed, epoch, out.buf, n ? out.strides[0] : 0, errors};
        Py_BEGIN_ALLOW_THREADS;
        prep_pool_run(pool, (size_t)n, one, &batch);
        Py_END_ALLOW_THREADS;
        failures = failures_of(errors, n);
    }
    while (opened > 0)
        PyBuffer_Release(&in[--opened]);
    if (out.obj)
        PyBuffer_Release(&out);
    free(in);
    free(indices);
    free(errors);
    return failures;
}

/* Samples that lie one behind the other, as in a slot. */
struct packed {
    struct prep_params params;
    const uint8_t *values;
    const uint64_t *offsets, *indices;
    unsigned height, width; /* 0: each begins with a header of its own */
    uint64_t seed, epoch;
    uint8_t *out;
    Py_ssize_t stride;
    struct leat_error *errors;
};

static void one_packed(void *arg, size_t i, struct prep_scratch *scratch)
{
    struct packed *b = arg;
    struct leat_error *err = &b->errors[i];
    const uint8_t *bytes = b->values + b->offsets[i];
    size_t n = b->offsets[i + 1] - b->offsets[i];
    void *dst = b->out + (Py_ssize_t)i * b->stride;
    err->code = 0;
    if (b->width)
        err->code = prep_pixels(&b->params, bytes, b->width, b->height, b->seed, b->epoch, b->indices[i], dst,
                                scratch, err);
    else
        err->code = prep_image(&b->params, bytes, n, b->seed, b->epoch, b->indices[i], dst, scratch, err);
}

/* Offsets lie within the values, in order, and far enough apart for pixels of the size given. */
static bool offsets_fit(const struct packed *b, Py_ssize_t n, Py_ssize_t bytes)
{
    uint64_t least = 3 * (uint64_t)b->width * b->height;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (b->offsets[i] > b->offsets[i + 1] || b->offsets[i + 1] > (uint64_t)bytes ||
            b->offsets[i + 1] - b->offsets[i] < least)
            return false;
    }
    return true;
}

static PyObject *transform_run_packed(struct transform_object *self, PyObject *args)
{
    PyObject *out_object, *failures = NULL;
    Py_buffer values = {0}, offsets = {0}, numbers = {0}, out = {0};
    unsigned long long seed, epoch;
    unsigned height, width;
    if (!PyArg_ParseTuple(args, "y*y*y*KKOII", &values, &offsets, &numbers, &seed, &epoch, &out_object,
                          &height, &width))
        return NULL;
    Py_ssize_t n = numbers.len / 8;
    struct packed batch = {.params = self->params,
                           .values = values.buf,
                           .offsets = offsets.buf,
                           .indices = numbers.buf,
                           .height = height,
                           .width = width,
                           .seed = seed,
                           .epoch = epoch,
                           .errors = calloc((size_t)n + 1, sizeof(*batch.errors))};
    struct prep_pool *pool = NULL;
    if (!batch.errors)
        PyErr_NoMemory();
    else if (offsets.len / 8 != n + 1 || height > 65535 || width > 65535 || !height != !width ||
             !offsets_fit(&batch, n, values.len))
        PyErr_SetString(PyExc_ValueError,
                        "offsets: wanted is one more than indices, in order, within the values");
    else if (PyObject_GetBuffer(out_object, &out, PyBUF_STRIDES | PyBUF_WRITABLE) == 0 &&
             place(self, &out, n, &batch.params) == 0)
        pool = pool_of(self);
    if (pool) {
        batch.out = out.buf;
        batch.stride = out.strides[0];
        Py_BEGIN_ALLOW_THREADS;
        prep_pool_run(pool, (size_t)n, one_packed, &batch);
        Py_END_ALLOW_THREADS;
        failures = failures_of(batch.errors, n);
    }
    free(batch.errors);
    if (out.obj)
        PyBuffer_Release(&out);
    PyBuffer_Release(&values);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&numbers);
    return failures;
}

static PyObject *transform_crop(struct transform_object *self, PyObject *args)
{
    unsigned width, height;
    unsigned long long seed, epoch, index;
    if (!PyArg_ParseTuple(args, "IIKKK", &width, &height, &seed, &epoch, &index))
        return NULL;
    if (!width || !height || width > 65535 || height > 65535)
        return PyErr_Format(PyExc_ValueError, "%u x %u: a JPEG's edges are 1 to 65535", width, height);
    struct prep_crop crop;
    prep_random_crop(&self->params, width, height, seed, epoch, index, &crop);
    return Py_BuildValue("(IIIIN)", crop.left, crop.top, crop.width, crop.height, PyBool_FromLong(crop.flip));
}

static PyMethodDef transform_methods[] = {
    {"run", (PyCFunction)transform_run, METH_VARARGS,
     "run(buffers, indices, seed, epoch, out) -> [(i, code, message)] of those that failed"},
    {"run_packed", (PyCFunction)transform_run_packed, METH_VARARGS,
     "run_packed(values, offsets, indices, seed, epoch, out, height, width) -> the same; samples lie in "
     "`values`"},
    {"crop", (PyCFunction)transform_crop, METH_VARARGS,
     "crop(width, height, seed, epoch, index) -> left, top, width, height, flip"},
    {0},
};
static PyType_Slot transform_slots[] = {
    {Py_tp_new, transform_new}, {Py_tp_dealloc, transform_free}, {Py_tp_methods, transform_methods}, {0}};
static PyType_Spec transform_spec = {"leat._prep.Transform", sizeof(struct transform_object), 0,
                                     Py_TPFLAGS_DEFAULT, transform_slots};

/* ---- single images ---- */

static PyObject *module_size(PyObject *module, PyObject *args)
{
    Py_buffer in;
    unsigned long long max_pixels;
    int ignore;
    if (!PyArg_ParseTuple(args, "y*Kp", &in, &max_pixels, &ignore))
        return NULL;
    struct prep_scratch *scratch;
    struct prep_size size;
    struct leat_error err = {0};
    int rc = prep_scratch_new(&scratch);
    if (!rc) {
        Py_BEGIN_ALLOW_THREADS;
        rc = prep_jpeg_size(in.buf, (size_t)in.len, max_pixels, ignore, scratch, &size, &err);
        prep_scratch_free(scratch);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&in);
    return rc ? raise_error(rc, &err) : Py_BuildValue("(III)", size.width, size.height, size.orientation);
}

/* The whole image, upright, to the size of `out`: height x width x 3. */
static int resize(const Py_buffer *in, const Py_buffer *out, uint64_t max_pixels, bool ignore,
                  struct leat_error *err)
{
    struct prep_scratch *scratch;
    int rc = prep_scratch_new(&scratch);
    if (rc)
        return rc;
    struct prep_params p;
    prep_params_init(&p);
    p.format = PREP_U8;
    p.out_height = (unsigned)out->shape[0];
    p.out_width = (unsigned)out->shape[1];
    p.max_pixels = max_pixels;
    p.ignore_orientation = ignore;
    p.exact = true;
    prep_params_layout(&p, false);
    struct prep_size size = {0};
    rc = prep_jpeg_size(in->buf, (size_t)in->len, max_pixels, ignore, scratch, &size, err);
    struct prep_crop all = {.width = size.width, .height = size.height};
    if (!rc && size.width == p.out_width && size.height == p.out_height) {
        rc = prep_jpeg_decode(in->buf, (size_t)in->len, max_pixels, false, ignore, out->buf, (size_t)out->len,
                              scratch, err);
    } else if (!rc) {
        rc = prep_params_check(&p, err);
        if (!rc)
            rc = prep_jpeg_crop(&p, in->buf, (size_t)in->len, &all, out->buf, scratch, err);
    }
    prep_scratch_free(scratch);
    return rc;
}

static PyObject *module_resize_into(PyObject *module, PyObject *args)
{
    Py_buffer in, out;
    PyObject *out_object;
    unsigned long long max_pixels;
    int ignore;
    if (!PyArg_ParseTuple(args, "y*OKp", &in, &out_object, &max_pixels, &ignore))
        return NULL;
    if (PyObject_GetBuffer(out_object, &out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&in);
        return NULL;
    }
    struct leat_error err = {0};
    int rc;
    if (out.ndim != 3 || out.itemsize != 1 || out.shape[2] != 3 || out.shape[0] < 1 || out.shape[1] < 1 ||
        out.shape[0] > 65535 || out.shape[1] > 65535) {
        rc = error_set(&err, LEAT_INVALID, "out: wanted is height x width x 3 of uint8");
    } else {
        Py_BEGIN_ALLOW_THREADS;
        rc = resize(&in, &out, max_pixels, ignore, &err);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (rc)
        return raise_error(rc, &err);
    Py_RETURN_NONE;
}

static PyObject *module_decode_into(PyObject *module, PyObject *args)
{
    Py_buffer in, out;
    unsigned long long max_pixels;
    int accept, ignore;
    if (!PyArg_ParseTuple(args, "y*w*Kpp", &in, &out, &max_pixels, &accept, &ignore))
        return NULL;
    struct prep_scratch *scratch;
    struct leat_error err = {0};
    int rc = prep_scratch_new(&scratch);
    if (!rc) {
        Py_BEGIN_ALLOW_THREADS;
        rc = prep_jpeg_decode(in.buf, (size_t)in.len, max_pixels, accept, ignore, out.buf, (size_t)out.len,
                              scratch, &err);
        prep_scratch_free(scratch);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (rc)
        return raise_error(rc, &err);
    Py_RETURN_NONE;
}

/* Decimal digits with a sign and white space around them; false for whatever else int() may take. */
static bool parse_number(const char *text, size_t n, int64_t *ret_number)
{
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
        n--;
    for (; n && (*text == ' ' || *text == '\n'); text++)
        n--;
    bool minus = n && *text == '-';
    text += minus;
    n -= minus;
    if (!n || n > 18)
        return false;
    int64_t number = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        number = number * 10 + (text[i] - '0');
    }
    *ret_number = minus ? -number : number;
    return true;
}

static PyObject *module_numbers(PyObject *module, PyObject *args)
{
    Py_buffer values, offsets, out;
    if (!PyArg_ParseTuple(args, "y*y*w*", &values, &offsets, &out))
        return NULL;
    Py_ssize_t n = out.len / 8;
    const uint64_t *at = offsets.buf;
    PyObject *others = NULL;
    if (offsets.len / 8 != n + 1)
        PyErr_SetString(PyExc_ValueError, "offsets: wanted is one more than numbers");
    else
        others = PyList_New(0);
    for (Py_ssize_t i = 0; others && i < n; i++) {
        if (at[i] <= at[i + 1] && at[i + 1] <= (uint64_t)values.len &&
            parse_number((const char *)values.buf + at[i], at[i + 1] - at[i], (int64_t *)out.buf + i))
            continue;
        PyObject *number = PyLong_FromSsize_t(i);
        if (!number || PyList_Append(others, number) < 0)
            Py_CLEAR(others);
        Py_XDECREF(number);
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&out);
    return others;
}

static PyMethodDef module_methods[] = {
    {"size", module_size, METH_VARARGS,
     "size(bytes, max_pixels, ignore_orientation) -> width, height, orientation"},
    {"decode_into", module_decode_into, METH_VARARGS,
     "decode_into(bytes, out, max_pixels, accept_damaged, ignore_orientation)"},
    {"resize_into", module_resize_into, METH_VARARGS,
     "resize_into(bytes, out, max_pixels, ignore_orientation): the whole image to the size of out"},
    {"numbers", module_numbers, METH_VARARGS,
     "numbers(values, offsets, out) -> places of those that are no plain decimal numbers"},
    MODULE_SET_ERROR_MAKER,
    {0},
};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "leat._prep",
                                        .m_doc = "JPEGs to samples", .m_size = -1,
                                        .m_methods = module_methods};

PyMODINIT_FUNC PyInit__prep(void);
PyMODINIT_FUNC PyInit__prep(void)
{
    PyObject *module = PyModule_Create(&module_def), *type = module ? PyType_FromSpec(&transform_spec) : NULL;
#ifdef Py_GIL_DISABLED
    if (module)
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    if (!type || PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
