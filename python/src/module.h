/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: leat._leat, the C under the Python package: one Python type for each handle of <leat/leat.h>, and nothing that
 * Python can do as well itself.
 *
 *   module.c  types, small functions              client.c  Client: connect, open, drop, query
 *   convert.c arguments, ids, progress, signals   set.c     Set: one working set
 *   memory.c  Memory: buffer protocol, DLPack     ring.c    Ring, Iter, Holder: slots and leases
 *   scan.c    Scan: a prefix once, in its order
 *   fast_iter.c    FastIter, BatchBase: plain batches from the iterator to the loop
 *   errors.c  exceptions: shared with the other extensions
 *
 * Invariants
 *  - A handle is freed once, by the last to leave its gate after it was closed: a call in another thread, an array over
 *    a slot and close() may come in any order. Nothing here relies on the GIL for that.
 *  - A handle made before fork() is neither used nor freed by the child: its memory is the parent's business.
 *  - The GIL is released around everything that may wait or copies much. Waits end on Ctrl-C: the library asks
 *    waiting_interrupt every so often, which runs signal handlers. An exception of theirs is set when the call returns, whatever
 *    the call itself came to: raised() after each.
 */
#ifndef LEAT_PYTHON_MODULE_H
#define LEAT_PYTHON_MODULE_H

#include "errors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <leat/leat.h>

/* --- gate: counts those inside a handle; the last to leave after close frees it ------------------------------------ */

struct gate {
    _Atomic long state;  /* 2 * users + closed */
    unsigned generation; /* of the process that made the handle */
};

extern unsigned fork_generation;

void gate_init(struct gate *gate);
/* False when closed, or when this is a forked child: nothing may be touched. */
bool gate_enter(struct gate *gate);
/* True: the caller frees the handle now. */
bool gate_leave(struct gate *gate);
bool gate_close(struct gate *gate);
bool gate_is_closed(const struct gate *gate);
/* The exception for a gate that could not be entered. */
PyObject *gate_refuse(const struct gate *gate, const char *what);

/* --- types ----------------------------------------------------------------------------------------------------- */

struct client_object {
    PyObject ob_base;
    struct leat_client *client;
    struct gate gate;
};

struct set_object {
    PyObject ob_base;
    struct leat_ws *ws;
    struct gate gate; /* rings and holds count as users: "views must be closed first" */
};

struct ring_object {
    PyObject ob_base;
    struct set_object *set;
    struct leat_view *view;
    struct gate gate;
    unsigned *fields; /* by number in the set */
    unsigned nfields;
};

struct iter_object {
    PyObject ob_base;
    struct ring_object *ring;
    struct leat_iter *iter;
    struct gate gate;
    struct leat_batch *_Atomic kept; /* came while a signal handler raised: it is the next one */
};

struct scan_object {
    PyObject ob_base;
    struct leat_scan *scan;
    struct gate gate; /* samples that are held count as users */
};

/* Keeps memory of the pool or of a slot in place: a batch, a lease or a sample of a scan. */
struct holder_object {
    PyObject ob_base;
    struct gate gate; /* exported buffers are its users */
    struct leat_batch *batch;
    struct leat_hold *hold;
    struct set_object *set;   /* of a hold */
    struct ring_object *ring; /* of a batch */
    struct scan_object *scan; /* of a sample */
    uint64_t number;
    bool recorded;    /* stream was named: it may be the default one, which is NULL */
    void *stream;     /* CUDA: the slot is free when what is on it by then has finished */
    const void *data; /* of a hold or a sample */
    uint64_t bytes;
};

extern PyTypeObject *client_type, *set_type, *ring_type, *iter_type, *holder_type, *memory_type, *plan_type,
    *batch_type, *fast_iter_type, *scan_type;
extern PyType_Spec client_spec, set_spec, ring_spec, iter_spec, holder_spec, memory_spec, plan_spec,
    batch_spec, fast_iter_spec, scan_spec;

PyObject *set_new(struct leat_ws *ws);
PyObject *scan_new(struct leat_scan *scan);
void scan_leave(struct scan_object *scan);
void set_leave(struct set_object *set);
/* Gives back the slot or the lease. */
void holder_drop(struct holder_object *holder);

/* A Holder of it, or NULL with an exception set and the batch released. */
PyObject *holder_of_batch(struct ring_object *ring, struct leat_batch *batch);
/* The same of a sample that leat_scan_next gave, inside the scan's gate, which is left with it. */
PyObject *holder_of_sample(struct scan_object *scan, const struct leat_scan_sample *sample);
/* leat_next without the GIL, from inside the gate. If a signal handler raised, its error is set and there
 * is no batch. */
int iter_take(struct iter_object *iter, uint64_t timeout_ns, struct leat_batch **ret_batch,
              struct leat_error *err);
/* Ends an iterator whose gate was left last. */
void iter_drop(struct iter_object *iter);

/* Around the end of a handle, which may wait for a peer or a device: leaves the GIL, and keeps an exception that is pending, as at a dealloc. */
struct away {
    PyThreadState *thread;
    PyObject *type, *value, *trace;
};
struct away away_begin(void);
void away_end(struct away *away);

/* Frees an object of a heap type. */
void object_free(PyObject *self);
/* A fresh object of one of the types above, zeroed. */
void *object_new(PyTypeObject *type);
PyObject *set_load(struct set_object *self, PyObject *args);
PyObject *set_hold(struct set_object *self, PyObject *args);
/* All of a field's bytes in a batch, writable, as one dimension. It is inside the gate for as long as it lives. */
PyObject *memory_of_field(struct holder_object *holder, unsigned field);
PyObject *module_dlpack(PyObject *module, PyObject *args);
PyObject *module_dlpack_cuda(PyObject *module, PyObject *args);

/* --- convert.c --------------------------------------------------------------------------------------------------- */

/* "O&" converters: an int of [0, 2^64), and one that `unsigned` holds. */
int to_u64(PyObject *object, void *ret);
int to_unsigned(PyObject *object, void *ret);

/* Numbers of samples out of whatever Python calls a list of integers. */
struct ids {
    const uint64_t *ids;
    unsigned n;
    uint64_t *owned;
    Py_buffer buffer;
    bool has_buffer;
};
int ids_get(PyObject *object, uint64_t length, struct ids *ret_ids);
void ids_fini(struct ids *ids);

/* A long call: the user's callback (None: only signals), and the exception that ended it. */
struct waiting {
    PyObject *callback;
    PyObject *type, *value, *trace;
};
/* A buffer of uint64 (or none) as the library takes lengths. 0, or -1 with an exception set. */
int lengths_of(const Py_buffer *buffer, const uint64_t **ret_lengths, uint64_t *ret_n);
int waiting_progress(const struct leat_progress *progress, void *waiting);
/* Turns the end of such a call into Python's view of it: 0, or -1 with an exception set. */
int waiting_end(struct waiting *waiting, int rc, const struct leat_error *err);
/* The interrupt hook of every connection: runs Python's signal handlers. Their exceptions stay set in the
 * waiting thread. */
int waiting_interrupt(void *none);

#endif
