/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c: Ring (a view of libleat: slots that batches land in), Iter (an epoch read ahead), Holder (a batch,
 * or a lease).
 *
 * A Holder gives its slot or lease back when it was released and no array over it is left, or when it is
 * collected: a slot is never written while an array or a batch refers to it.
 */
#include "module.h"

#include <stdlib.h>
#include <string.h>

/* --- Holder -------------------------------------------------------------------------------------------------------- */

void holder_drop(struct holder_object *self)
{
    if (self->batch && leat_batch_memory(self->batch, NULL) == LEAT_MEMORY_HOST) {
        leat_batch_release(self->batch);
    } else if (self->batch) {
        /* Kernels that were launched on the last tensor may still run when it goes. The driver may make us wait. */
        struct away away = away_begin();
        if (leat_batch_release_on_stream(self->batch, self->stream, NULL))
            leat_batch_release(self->batch); /* the device is lost: nothing runs */
        away_end(&away);
    }
    if (self->hold) {
        leat_hold_release(self->hold);
        set_leave(self->set);
    }
    if (self->scan) {
        leat_scan_release(self->scan->scan, self->number);
        scan_leave(self->scan);
    }
}

static struct holder_object *holder_new(void)
{
    struct holder_object *self = object_new(holder_type);
    if (self)
        gate_init(&self->gate);
    return self;
}

PyObject *holder_of_batch(struct ring_object *ring, struct leat_batch *batch)
{
    struct holder_object *self = holder_new();
    if (!self) {
        leat_batch_release(batch);
        return NULL;
    }
    Py_INCREF((PyObject *)ring);
    self->ring = ring;
    self->batch = batch;
    return (PyObject *)self;
}

PyObject *holder_of_sample(struct scan_object *scan, const struct leat_scan_sample *sample)
{
    struct holder_object *self = holder_new();
    if (!self) {
        leat_scan_release(scan->scan, sample->number);
        scan_leave(scan);
        return NULL;
    }
    Py_INCREF((PyObject *)scan);
    self->scan = scan;
    self->number = sample->number;
    self->data = sample->data;
    self->bytes = sample->bytes;
    return (PyObject *)self;
}

static void holder_dealloc(struct holder_object *self)
{
    if (gate_close(&self->gate))
        holder_drop(self);
    Py_XDECREF((PyObject *)self->set);
    Py_XDECREF((PyObject *)self->ring);
    Py_XDECREF((PyObject *)self->scan);
    object_free((PyObject *)self);
}

static PyObject *holder_release(struct holder_object *self, PyObject *none)
{
    if (gate_close(&self->gate))
        holder_drop(self);
    Py_RETURN_NONE;
}

static PyObject *holder_released(struct holder_object *self, void *closure)
{
    return PyBool_FromLong(gate_is_closed(&self->gate));
}

static bool enter_batch(struct holder_object *self)
{
    if (!self->batch) {
        PyErr_SetString(PyExc_TypeError, "not a batch");
        return false;
    }
    if (gate_enter(&self->gate))
        return true;
    if (self->gate.generation == fork_generation)
        PyErr_SetString(PyExc_ValueError, "the batch was released");
    else
        gate_refuse(&self->gate, "the batch");
    return false;
}

static void leave_holder(struct holder_object *self)
{
    if (gate_leave(&self->gate))
        holder_drop(self);
}

/* (n, position, slot, ids as bytes) */
static PyObject *holder_info(struct holder_object *self, PyObject *none)
{
    if (!enter_batch(self))
        return NULL;
    unsigned n = leat_batch_size(self->batch);
    PyObject *info = Py_BuildValue("IKIy#", n, (unsigned long long)leat_batch_position(self->batch),
                                   leat_batch_slot(self->batch), (const char *)leat_batch_ids(self->batch),
                                   (Py_ssize_t)(8ull * n));
    leave_holder(self);
    return info;
}

/* One byte for each sample: 1 where it has this field. */
static PyObject *holder_present(struct holder_object *self, PyObject *args)
{
    unsigned field;
    if (!PyArg_ParseTuple(args, "I", &field) || !enter_batch(self))
        return NULL;
    unsigned n = leat_batch_size(self->batch);
    PyObject *mask = PyBytes_FromStringAndSize(NULL, n);
    char *bytes = mask ? PyBytes_AsString(mask) : NULL;
    for (unsigned i = 0; mask && i < n; i++)
        bytes[i] = leat_batch_present(self->batch, field, i) > 0;
    leave_holder(self);
    return mask;
}

/* Ends this handle at once: the slot is free again when fd turns readable. Refused while arrays look at it. */
static PyObject *holder_release_after(struct holder_object *self, PyObject *args)
{
    struct leat_event event = {.size = sizeof(event)};
    if (!PyArg_ParseTuple(args, "i", &event.fd) || !enter_batch(self))
        return NULL;
    long alone = 2;
    if (!atomic_compare_exchange_strong(&self->gate.state, &alone, 1)) {
        leave_holder(self);
        PyErr_SetString(PyExc_BufferError,
                        "arrays over this batch still exist; delete them, then release after an event");
        return NULL;
    }
    struct leat_error err = {0};
    int rc = leat_batch_release_after(self->batch, &event, &err);
    if (rc) {
        atomic_store(&self->gate.state, 0);
        return raise_error(rc, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *holder_place(struct holder_object *self, PyObject *none)
{
    int device;
    if (!enter_batch(self))
        return NULL;
    enum leat_memory memory = leat_batch_memory(self->batch, &device);
    leave_holder(self);
    return Py_BuildValue("ii", (int)memory, device);
}

static PyObject *holder_record_stream(struct holder_object *self, PyObject *args)
{
    uint64_t stream;
    if (!PyArg_ParseTuple(args, "O&", to_u64, &stream) || !enter_batch(self))
        return NULL;
    bool other = self->recorded && self->stream != (void *)(uintptr_t)stream;
    if (!other) {
        self->stream = (void *)(uintptr_t)stream;
        self->recorded = true;
    }
    leave_holder(self);
    if (other) {
        PyErr_SetString(PyExc_ValueError,
                        "another stream was recorded for this batch: let one wait for the other");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef holder_methods[] = {
    {"info", (PyCFunction)holder_info, METH_NOARGS, "info() -> (n, position, slot, ids)"},
    {"present", (PyCFunction)holder_present, METH_VARARGS, "present(field) -> bytes, one for each sample"},
    {"release", (PyCFunction)holder_release, METH_NOARGS, "release()"},
    {"release_after", (PyCFunction)holder_release_after, METH_VARARGS, "release_after(fd)"},
    {"place", (PyCFunction)holder_place, METH_NOARGS, "place() -> (enum leat_memory, device)"},
    {"record_stream", (PyCFunction)holder_record_stream, METH_VARARGS, "record_stream(address)"},
    {0},
};
static PyGetSetDef holder_getset[] = {{"released", (getter)holder_released, NULL, "bool", NULL}, {0}};
static PyType_Slot holder_slots[] = {
    {Py_tp_dealloc, holder_dealloc}, {Py_tp_methods, holder_methods}, {Py_tp_getset, holder_getset}, {0}};
PyType_Spec holder_spec = {"leat._leat.Holder", sizeof(struct holder_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, holder_slots};

PyObject *set_hold(struct set_object *set, PyObject *args)
{
    uint64_t index, timeout_ns;
    unsigned field;
    if (!PyArg_ParseTuple(args, "O&IO&", to_u64, &index, &field, to_u64, &timeout_ns))
        return NULL;
    if (!gate_enter(&set->gate)) /* left when the lease ends */
        return gate_refuse(&set->gate, "the working set");
    struct holder_object *self = holder_new();
    struct leat_error err = {0};
    struct leat_hold *hold = NULL;
    int rc = -ENOMEM;
    if (self) {
        Py_BEGIN_ALLOW_THREADS;
        rc = leat_hold(set->ws, index, field, timeout_ns, &hold, &self->data, &self->bytes, &err);
        Py_END_ALLOW_THREADS;
    }
    if (rc || PyErr_Occurred()) {
        if (rc == 0)
            leat_hold_release(hold);
        set_leave(set);
        Py_XDECREF((PyObject *)self);
        return raise_error(rc ? rc : LEAT_CANCELED, &err);
    }
    Py_INCREF((PyObject *)set);
    self->set = set;
    self->hold = hold;
    return (PyObject *)self;
}

/* --- Ring ---------------------------------------------------------------------------------------------------------- */

static void ring_drop(struct ring_object *self)
{
    struct away away = away_begin();
    leat_view_close(self->view);
    away_end(&away);
    set_leave(self->set);
}

static PyObject *ring_close(struct ring_object *self, PyObject *none)
{
    if (gate_close(&self->gate))
        ring_drop(self);
    Py_RETURN_NONE;
}

static void ring_dealloc(struct ring_object *self)
{
    if (self->view && gate_close(&self->gate))
        ring_drop(self);
    PyMem_Free(self->fields);
    Py_XDECREF((PyObject *)self->set);
    object_free((PyObject *)self);
}

static void ring_leave(struct ring_object *self)
{
    if (gate_leave(&self->gate))
        ring_drop(self);
}

static int ring_fields(struct ring_object *self, PyObject *fields)
{
    if (fields == Py_None)
        return 0;
    Py_ssize_t n = PySequence_Size(fields);
    if (n < 0)
        return -1;
    self->fields = PyMem_Calloc((size_t)n + 1, sizeof(*self->fields));
    if (!self->fields) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t number;
        PyObject *item = PySequence_GetItem(fields, i);
        int ok = item && to_u64(item, &number);
        Py_XDECREF(item);
        if (!ok)
            return -1;
        self->fields[i] = (unsigned)number;
    }
    self->nfields = (unsigned)n;
    return 0;
}

PyObject *set_load(struct set_object *set, PyObject *args)
{
    struct leat_view_options o = {.size = sizeof(o)};
    PyObject *fields;
    if (!PyArg_ParseTuple(args, "IIOO&zIi|IIzI", &o.batch_size, &o.slots, &fields, to_u64, &o.max_batch_bytes,
                          &o.transport, &o.memory, &o.device, &o.window, &o.window_step, &o.fingerprint,
                          &o.flags))
        return NULL;
    struct ring_object *self = object_new(ring_type);
    if (!self || ring_fields(self, fields) < 0) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    o.fields = self->fields;
    o.nfields = self->nfields;
    gate_init(&self->gate);
    if (!gate_enter(&set->gate)) { /* left when the ring is closed */
        Py_DECREF((PyObject *)self);
        return gate_refuse(&set->gate, "the working set");
    }
    Py_INCREF((PyObject *)set);
    self->set = set;
    struct leat_error err = {0};
    struct leat_view *view = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_load(set->ws, &o, &view, &err);
    Py_END_ALLOW_THREADS;
    if (rc) {
        set_leave(set);
        Py_DECREF((PyObject *)self);
        return raise_error(rc, &err);
    }
    self->view = view;
    return (PyObject *)self;
}

static PyObject *ring_read_batch(struct ring_object *self, PyObject *args)
{
    PyObject *list;
    uint64_t timeout_ns, length;
    struct ids ids;
    if (!PyArg_ParseTuple(args, "OO&O&", &list, to_u64, &timeout_ns, to_u64, &length) ||
        ids_get(list, length, &ids) < 0)
        return NULL;
    if (!gate_enter(&self->gate)) {
        ids_fini(&ids);
        return gate_refuse(&self->gate, "the ring of batches");
    }
    struct leat_error err = {0};
    struct leat_batch *batch = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_read_batch(self->view, ids.ids, ids.n, timeout_ns, &batch, &err);
    Py_END_ALLOW_THREADS;
    ids_fini(&ids);
    if (rc == 0 && PyErr_Occurred())
        leat_batch_release(batch);
    ring_leave(self);
    if (rc || PyErr_Occurred())
        return raise_error(rc ? rc : LEAT_CANCELED, &err);
    return holder_of_batch(self, batch);
}

static PyObject *iter_new(struct ring_object *self, const struct leat_iter_options *o)
{
    struct iter_object *iter = object_new(iter_type);
    if (!iter)
        return NULL;
    gate_init(&iter->gate);
    if (!gate_enter(&self->gate)) { /* left when the iterator is closed */
        Py_DECREF((PyObject *)iter);
        return gate_refuse(&self->gate, "the ring of batches");
    }
    struct leat_error err = {0};
    struct leat_iter *handle = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = leat_iterate(self->view, o, &handle, &err);
    Py_END_ALLOW_THREADS;
    if (rc) {
        ring_leave(self);
        Py_DECREF((PyObject *)iter);
        return raise_error(rc, &err);
    }
    Py_INCREF((PyObject *)self);
    iter->ring = self;
    iter->iter = handle;
    return (PyObject *)iter;
}

static PyObject *ring_stat(struct ring_object *self, PyObject *none)
{
    struct leat_view_stat s = {.size = sizeof(s)};
    struct leat_error err = {0};
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the ring of batches");
    int rc = leat_view_stat(self->view, &s, &err);
    ring_leave(self);
    if (rc)
        return raise_error(rc, &err);
    return Py_BuildValue("{s:s,s:i,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "delivery", s.delivery, "device",
                         s.device, "slots", (unsigned long long)s.slots, "slot_bytes",
                         (unsigned long long)s.slot_bytes, "pinned_bytes", (unsigned long long)s.pinned_bytes,
                         "device_bytes", (unsigned long long)s.device_bytes, "bounced_bytes",
                         (unsigned long long)s.bounced_bytes, "copies", (unsigned long long)s.copies, "lags",
                         (unsigned long long)s.lags, "direct_bytes", (unsigned long long)s.direct_bytes);
}

static PyObject *ring_iterate(struct ring_object *self, PyObject *args)
{
    struct leat_iter_options o = {.size = sizeof(o)};
    if (!PyArg_ParseTuple(args, "O&O&O&IIIO&iI", to_u64, &o.seed, to_u64, &o.epoch, to_u64, &o.block,
                          &o.flags, &o.rank, &o.world_size, to_u64, &o.first_position, &o.keep_tail,
                          &o.ahead))
        return NULL;
    return iter_new(self, &o);
}

/* plan(ids: buffer of uint64, ends: the same or None, ahead, block) */
static PyObject *ring_plan(struct ring_object *self, PyObject *args)
{
    struct leat_iter_options o = {.size = sizeof(o)};
    PyObject *ends_object, *result = NULL;
    Py_buffer ids, ends = {0};
    if (!PyArg_ParseTuple(args, "y*OI|O&", &ids, &ends_object, &o.ahead, to_u64, &o.block))
        return NULL;
    if ((ends_object == Py_None || PyObject_GetBuffer(ends_object, &ends, PyBUF_SIMPLE) == 0) &&
        lengths_of(&ids, &o.ids, &o.nids) == 0 &&
        (ends_object == Py_None || lengths_of(&ends, &o.ends, &o.nends) == 0))
        result = iter_new(self, &o);
    PyBuffer_Release(&ids);
    if (ends.obj)
        PyBuffer_Release(&ends);
    return result;
}

static PyMethodDef ring_methods[] = {
    {"read_batch", (PyCFunction)ring_read_batch, METH_VARARGS,
     "read_batch(ids, timeout_ns, length) -> Holder"},
    {"iterate", (PyCFunction)ring_iterate, METH_VARARGS,
     "iterate(seed, epoch, block, flags, rank, world_size, first_position, keep_tail, ahead) -> Iter"},
    {"stat", (PyCFunction)ring_stat, METH_NOARGS, "stat() -> dict"},
    {"plan", (PyCFunction)ring_plan, METH_VARARGS, "plan(ids, ends, ahead, block=0) -> Iter"},
    {"close", (PyCFunction)ring_close, METH_NOARGS, "close()"},
    {0},
};
static PyType_Slot ring_slots[] = {{Py_tp_dealloc, ring_dealloc}, {Py_tp_methods, ring_methods}, {0}};
PyType_Spec ring_spec = {"leat._leat.Ring", sizeof(struct ring_object), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, ring_slots};

/* --- Iter ---------------------------------------------------------------------------------------------------------- */

/* Waits for the thread that reads ahead: without the GIL. */
void iter_drop(struct iter_object *self)
{
    Py_BEGIN_ALLOW_THREADS;
    if (self->kept)
        leat_batch_release(self->kept);
    leat_iter_close(self->iter);
    Py_END_ALLOW_THREADS;
    ring_leave(self->ring);
}

static PyObject *iter_close(struct iter_object *self, PyObject *none)
{
    if (gate_close(&self->gate))
        iter_drop(self);
    Py_RETURN_NONE;
}

static void iter_dealloc(struct iter_object *self)
{
    if (self->iter && gate_close(&self->gate))
        iter_drop(self);
    Py_XDECREF((PyObject *)self->ring);
    object_free((PyObject *)self);
}

int iter_take(struct iter_object *iter, uint64_t timeout_ns, struct leat_batch **ret_batch,
              struct leat_error *err)
{
    struct leat_batch *batch = atomic_exchange(&iter->kept, NULL);
    int rc = 0;
    if (!batch) {
        Py_BEGIN_ALLOW_THREADS;
        rc = leat_next(iter->iter, timeout_ns, &batch, err);
        Py_END_ALLOW_THREADS;
    }
    if (rc == 0 && batch && PyErr_Occurred()) {
        atomic_store(&iter->kept, batch);
        batch = NULL;
    }
    if (rc == 0)
        *ret_batch = batch;
    return rc;
}

static PyObject *iter_next(struct iter_object *self, PyObject *args)
{
    uint64_t timeout_ns;
    if (!PyArg_ParseTuple(args, "O&", to_u64, &timeout_ns))
        return NULL;
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the iterator");
    struct leat_error err = {0};
    struct leat_batch *batch = NULL;
    int rc = iter_take(self, timeout_ns, &batch, &err);
    PyObject *result = NULL;
    if (rc)
        raise_error(rc, &err);
    else if (batch)
        result = holder_of_batch(self->ring, batch);
    else if (!PyErr_Occurred())
        Py_INCREF(result = Py_None);
    if (gate_leave(&self->gate))
        iter_drop(self);
    return result;
}

static PyObject *iter_info(struct iter_object *self, PyObject *none)
{
    if (!gate_enter(&self->gate))
        return gate_refuse(&self->gate, "the iterator");
    PyObject *info = Py_BuildValue("KK", (unsigned long long)leat_iter_steps(self->iter),
                                   (unsigned long long)leat_iter_block(self->iter));
    if (gate_leave(&self->gate))
        iter_drop(self);
    return info;
}

static PyMethodDef iter_methods[] = {
    {"next", (PyCFunction)iter_next, METH_VARARGS,
     "next(timeout_ns) -> Holder, or None at the end of the epoch"},
    {"info", (PyCFunction)iter_info, METH_NOARGS, "info() -> (steps, block)"},
    {"close", (PyCFunction)iter_close, METH_NOARGS, "close()"},
    {0},
};
static PyType_Slot iter_slots[] = {{Py_tp_dealloc, iter_dealloc}, {Py_tp_methods, iter_methods}, {0}};
PyType_Spec iter_spec = {"leat._leat.Iter", sizeof(struct iter_object), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, iter_slots};
