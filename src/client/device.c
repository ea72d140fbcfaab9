/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c: views whose batches are in pinned memory, or in the memory of a GPU.
 *
 *   slot->memory (pinned; gather lands here, every CRC is checked here) ─ copies, the library's stream ─▶ device memory ─▶ HELD
 *
 * A batch is handed out when its copy is done, or with LEAT_LOAD_ASYNC at once: leat_batch_wait_on_stream. Its slot is free again
 * when it was given back, what was on the consumer's stream by then has finished, and its own copy has (`copying`).
 *
 * Failure modes: the copy fails or the device is lost: -EIO, no batch; the deadline passes first: LEAT_TIMED_OUT, no batch. In both cases
 * the slot stays in RELEASING until the copy can neither read nor write it any more.
 * Invariants: neither half of a slot is written or freed while a copy or a consumer's stream uses it; only checked bytes are copied.
 */
#include "client/client.h"

#include <time.h>

#include "base/clock.h"
#include "base/ledger.h"

#define SPINS    200 /* questions in a row before the first sleep: a batch of some MB takes that long */
#define SLEEP_NS (20 * NS_PER_US)

int device_open(struct leat_view *v, const struct leat_view_options *o, struct leat_error *err)
{
    v->memory = o->memory;
    v->device = o->device;
    v->async = o->flags & LEAT_LOAD_ASYNC;
    if (o->memory == LEAT_MEMORY_HOST)
        return 0;
    int rc = gpu_open(o->device, &v->gpu, err);
    return rc ? error_prefix(err, rc, "batches %s CUDA device %d",
                             o->memory == LEAT_MEMORY_PINNED ? "pinned for" : "in the memory of", o->device)
              : 0;
}

int device_slot_new(struct leat_view *v, struct view_slot *slot, struct leat_error *err)
{
    return v->gpu ? gpu_buffer_new(v->gpu, slot->memory, v->slot_bytes, v->memory == LEAT_MEMORY_CUDA,
                                   &slot->buffer, err)
                  : 0;
}

bool device_copying(struct view_slot *slot)
{
    if (slot->copying && gpu_buffer_busy(slot->buffer, NULL) <= 0)
        slot->copying = false;
    return slot->copying;
}

static int wait_copied(struct leat_view *v, struct view_slot *slot, const struct rpc_how *how,
                       struct leat_error *err)
{
    const struct leat_client *client = v->ws->client;
    uint64_t look_ns = 0;
    int rc;
    for (unsigned asked = 0; (rc = gpu_buffer_busy(slot->buffer, err)) > 0; asked++) {
        if (asked < SPINS)
            continue;
        if (client_gives_up(client, how, &look_ns))
            return client_gave_up_error(err);
        if (how->deadline_ns && clock_now_ns() >= how->deadline_ns)
            return error_set(err, LEAT_TIMED_OUT, "the copy to CUDA device %d was not done by the deadline",
                             v->device);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    slot->copying = false;
    return rc;
}

int device_deliver(struct leat_view *v, struct view_slot *slot, const struct rpc_how *how,
                   struct leat_error *err)
{
    if (v->memory != LEAT_MEMORY_CUDA)
        return 0;
    uint64_t total = 0, copies = 0;
    int rc = 0, marked;
    slot->copying = true;
    for (unsigned f = 0; f < v->nfields && !rc; f++) {
        const struct view_field *field = &v->fields[f];
        uint64_t bytes =
            slot->offsets[f] ? slot->offsets[f][slot->batch.n] : slot->batch.n * field->fixed_bytes;
        if (!bytes)
            continue;
        rc = gpu_buffer_copy(slot->buffer, field->data_offset, bytes, err);
        total += rc ? 0 : bytes;
        copies += !rc;
    }
    marked = gpu_buffer_mark(slot->buffer, rc ? NULL : err); /* those that were begun, at least */
    rc = rc ? rc : marked;
    atomic_fetch_add_explicit(&v->bounced_bytes, total, memory_order_relaxed);
    atomic_fetch_add_explicit(&v->copies, copies, memory_order_relaxed);
    ledger_add(LEDGER_BOUNCE, total);
    delivered(v->ws, DELIVERED_BOUNCED, total);
    if (!rc && !v->async)
        rc = wait_copied(v, slot, how, err);
    return rc;
}

/* --- the consumer's streams ---------------------------------------------------------------------------------------- */

static int check(const struct leat_batch *batch, struct leat_error *err)
{
    if (!batch)
        return error_set(err, LEAT_INVALID, "batch is NULL");
    if (batch->view->fork_count != client_fork_count())
        return client_forked_error(err);
    if (!batch->view->gpu)
        return error_set(err, LEAT_INVALID,
                         "a batch in host memory has no CUDA stream: load its view as pinned or cuda");
    return 0;
}

int leat_batch_wait_on_stream(const struct leat_batch *batch, void *stream, struct leat_error *err)
{
    int rc = check(batch, err);
    if (rc || batch->view->memory != LEAT_MEMORY_CUDA)
        return rc; /* pinned: it is there */
    return gpu_buffer_wait_on(batch->view->slots[batch->slot].buffer, stream, err);
}

int leat_batch_release_on_stream(struct leat_batch *batch, void *stream, struct leat_error *err)
{
    int rc = check(batch, err);
    if (rc)
        return rc;
    struct gpu_buffer *buffer = batch->view->slots[batch->slot].buffer;
    rc = gpu_buffer_use(buffer, stream, err);
    if (rc)
        return rc;
    const struct view_event event = {.finished = gpu_buffer_used, .user = buffer, .fd = -1};
    view_give_back(batch, &event);
    return 0;
}

int leat_view_stat(const struct leat_view *view, struct leat_view_stat *ret_stat, struct leat_error *err)
{
    if (!view || !ret_stat)
        return error_set(err, LEAT_INVALID, "%s is NULL", view ? "ret_stat" : "view");
    const struct leat_view_stat out = {
        .memory = view->memory,
        .device = view->device,
        .slots = view->nslots,
        .slot_bytes = view->slot_bytes,
        .delivery = view->memory == LEAT_MEMORY_CUDA     ? "bounce"
                    : view->memory == LEAT_MEMORY_PINNED ? "pinned"
                                                         : "host",
        .pinned_bytes = view->gpu ? view->nslots * view->slot_bytes : 0,
        .device_bytes = view->memory == LEAT_MEMORY_CUDA ? view->nslots * view->slot_bytes : 0,
        .bounced_bytes = view->bounced_bytes,
        .copies = view->copies,
        .lags = view->lags,
    };
    return options_give("leat_view_stat", ret_stat, offsetof(struct leat_view_stat, memory), &out,
                        sizeof(out), err);
}
