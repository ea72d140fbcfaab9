/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c: views whose batches are in pinned memory, or in the memory of a GPU.
 *
 *   slot->memory (pinned; gather lands here, every CRC is checked here) ─ copies, the library's stream ─▶ device memory ─▶ HELD
 *   other nodes' pieces by RDMA, of a view that is `direct` ─────────────────────────────────────────────▶ device memory ─ CRCs ─▶ HELD
 *
 * Of a batch that came in part directly only what did not is copied, around those pieces. Samples with such pieces are then checked
 * as a whole, where they lie, by the device (gpu/check.c); one that differs is looked at once more before it counts: a NIC's
 * writes have no order with their completion, and the second check is some time later.
 *
 * A batch is handed out when its copy is done, or with LEAT_LOAD_ASYNC at once: leat_batch_wait_on_stream. Its slot is free again
 * when it was given back, what was on the consumer's stream by then has finished, and its own copy has (`copying`).
 *
 * A stream that takes no event keeps its slot. If all slots that were given back are such, a waiting thread gets the stream's error.
 *
 * Failure modes: the copy fails or the device is lost: -EIO, no batch; the deadline passes first: LEAT_TIMED_OUT, no batch. In both cases
 * the slot stays in RELEASING until the copy can neither read nor write it any more.
 * A sample that differs on the device: as in gather.c. A rail that does not reach the device's memory: the view is not direct, or
 * LEAT_UNSUPPORTED where that was required.
 * Invariants: neither half of a slot is written or freed while a copy or a consumer's stream uses it; only checked bytes are copied;
 * a batch with pieces that came directly is handed out after its check, also with LEAT_LOAD_ASYNC.
 */
#include "client/client.h"

#include <time.h>

#include "base/clock.h"
#include "base/ledger.h"
#include "base/log.h"

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

static int wait_copied(struct leat_view *v, struct view_slot *slot, const struct client_rpc_how *how,
                       struct leat_error *err)
{
    const struct leat_client *client = v->ws->client;
    uint64_t poll_ns = 0;
    int rc;
    for (unsigned asked = 0; (rc = gpu_buffer_busy(slot->buffer, err)) > 0; asked++) {
        if (asked < SPINS)
            continue;
        if (client_cancelled(client, how, &poll_ns))
            return client_cancelled_error(err);
        if (how->deadline_ns && clock_now_ns() >= how->deadline_ns)
            return error_set(err, LEAT_TIMED_OUT, "the copy to CUDA device %d was not done by the deadline",
                             v->device);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    slot->copying = false;
    return rc;
}

/* --- straight to the device ------------------------------------------------------------------------------------------ */

static int make_slot_direct(struct leat_view *v, struct view_slot *slot, struct leat_error *err)
{
    void *device = gpu_buffer_device(slot->buffer);
    int rc = gpu_buffer_for_nic(slot->buffer, err);
    rc = rc ? rc : gpu_buffer_checks(slot->buffer, (uint64_t)v->batch_size * v->window * v->nfields, err);
    return rc ? rc : rails_register_device(v->rails, device, v->slot_bytes, v->device, &slot->direct, err);
}

int device_make_direct(struct leat_view *v, const struct leat_view_options *o, struct leat_error *err)
{
    struct leat_error why = {0};
    int rc = 0;
    if (!(o->flags & (LEAT_LOAD_DIRECT | LEAT_LOAD_DIRECT_IF_POSSIBLE)))
        return 0;
    if (v->rails->all_local)
        rc = error_set(&why, LEAT_UNSUPPORTED, "all of %s is in this host's memory, which no NIC sends",
                       v->ws->uri);
    for (unsigned s = 0; s < v->nslots && !rc; s++)
        rc = make_slot_direct(v, &v->slots[s], &why);
    if (rc && (o->flags & LEAT_LOAD_DIRECT))
        return error_set(err, rc, "batches straight into the memory of CUDA device %d: %s", v->device,
                         why.message);
    if (rc) {
        log_info("batches reach CUDA device %d through pinned memory: %s", v->device, why.message);
        for (unsigned s = 0; s < v->nslots; s++) {
            rails_deregister(v->rails, TAKE_PTR(v->slots[s].direct));
            gpu_buffer_no_checks(v->slots[s].buffer);
        }
        return 0;
    }
    v->direct = true;
    for (unsigned s = 0; s < v->nslots; s++)
        v->slots[s].gather->direct = (struct gather_direct){.host = v->slots[s].memory,
                                                            .device = gpu_buffer_device(v->slots[s].buffer),
                                                            .bytes = v->slot_bytes,
                                                            .memory = v->slots[s].direct};
    return 0;
}

static uint64_t bytes_of(struct gather *g, const struct gather_part *part)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < part->npieces; k++)
        bytes += gather_read(g, part->first + k)->bytes;
    return bytes;
}

/* Puts the check of what came directly behind the copies. */
static int check_begin(struct view_slot *slot, struct leat_error *err)
{
    struct gather *g = slot->gather;
    gpu_buffer_check_none(slot->buffer);
    for (uint32_t i = 0; i < g->nparts; i++) {
        const struct gather_part *part = &g->parts[i];
        if (!gather_part_is_direct(g, part))
            continue;
        const uint8_t *first = gather_read(g, part->first)->dst;
        uint64_t offset =
            (uint64_t)(gather_is_direct(g, gather_read(g, part->first)) ? first - g->direct.device
                                                                        : first - g->direct.host);
        gpu_buffer_check(slot->buffer, offset, bytes_of(g, part));
    }
    return gpu_buffer_check_run(slot->buffer, err);
}

/* The first part whose checksum differs, or NULL. Asked once for each run of the check. */
static const struct gather_part *find_bad(struct leat_view *v, struct view_slot *slot)
{
    struct gather *g = slot->gather;
    const struct gather_part *bad = NULL;
    for (uint32_t i = 0; i < g->nparts && !bad; i++) {
        const struct gather_part *part = &g->parts[i];
        if (!gather_part_is_direct(g, part))
            continue;
        if (gpu_buffer_checked(slot->buffer, bytes_of(g, part)) != ws_crc(v->ws, part->sample, part->field))
            bad = part;
    }
    return bad;
}

static int check_end(struct leat_view *v, struct view_slot *slot, const struct client_rpc_how *how,
                     struct leat_error *err)
{
    const struct gather_part *bad = find_bad(v, slot);
    if (!bad)
        return 0;
    slot->copying = true;
    int rc = gpu_buffer_check_run(slot->buffer, err);
    int marked = gpu_buffer_mark(slot->buffer, rc ? NULL : err);
    rc = rc ? rc : marked;
    rc = rc ? rc : wait_copied(v, slot, how, err);
    bad = rc ? NULL : find_bad(v, slot);
    return bad ? gather_mismatch(v->ws, bad->sample, bad->field, slot->gather->moves, err) : rc;
}

/* --- delivery --------------------------------------------------------------------------------------------------------- */

struct copies {
    uint64_t bytes, n, direct_bytes;
    uint32_t at; /* reads before it were passed by */
};

static int copy_range(struct view_slot *slot, uint64_t from, uint64_t to, struct copies *c,
                      struct leat_error *err)
{
    int rc = from < to ? gpu_buffer_copy(slot->buffer, from, to - from, err) : 0;
    c->bytes += rc ? 0 : to - from;
    c->n += !rc && from < to;
    return rc;
}

/* The part of [from, to) that is not on the device yet. Reads lie in the order of fields, and of samples
 * within them. */
static int copy_rest(struct view_slot *slot, uint64_t from, uint64_t to, struct copies *c,
                     struct leat_error *err)
{
    struct gather *g = slot->gather;
    for (; g->ndirect && c->at < g->nreads; c->at++) {
        const struct net_read *r = gather_read(g, c->at);
        if (!gather_is_direct(g, r))
            continue;
        uint64_t offset = (uint64_t)((uint8_t *)r->dst - g->direct.device);
        if (offset >= to)
            break;
        int rc = copy_range(slot, from, offset, c, err);
        if (rc)
            return rc;
        from = offset + r->bytes;
        c->direct_bytes += r->bytes;
    }
    return copy_range(slot, from, to, c, err);
}

static int copy_fields(struct leat_view *v, struct view_slot *slot, struct leat_error *err)
{
    struct copies c = {0};
    int rc = 0;
    for (unsigned f = 0; f < v->nfields && !rc; f++) {
        const struct view_field *field = &v->fields[f];
        uint64_t bytes =
            slot->offsets[f] ? slot->offsets[f][slot->batch.n] : slot->batch.n * field->fixed_bytes;
        rc = copy_rest(slot, field->data_offset, field->data_offset + bytes, &c, err);
    }
    atomic_fetch_add_explicit(&v->bounced_bytes, c.bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&v->direct_bytes, c.direct_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&v->copies, c.n, memory_order_relaxed);
    ledger_add(LEDGER_BOUNCE, c.bytes);
    delivered(v->ws, DELIVERED_BOUNCED, c.bytes);
    return rc;
}

int device_deliver(struct leat_view *v, struct view_slot *slot, const struct client_rpc_how *how,
                   struct leat_error *err)
{
    const bool direct = slot->gather->ndirect;
    if (v->memory != LEAT_MEMORY_CUDA)
        return 0;
    slot->copying = true;
    int rc = copy_fields(v, slot, err);
    if (!rc && direct)
        rc = check_begin(slot, err);
    int marked = gpu_buffer_mark(slot->buffer, rc ? NULL : err); /* those that were begun, at least */
    rc = rc ? rc : marked;
    if (!rc && (direct || !v->async))
        rc = wait_copied(v, slot, how, err);
    return rc || !direct ? rc : check_end(v, slot, how, err);
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
    struct leat_error why = {0};
    rc = gpu_buffer_use(buffer, stream, &why);
    if (rc && gpu_buffer_lost(buffer))
        return error_set(err, rc, "%s", why.message);
    if (rc)
        log_warning("a slot is in use until its stream takes an event: %s", why.message);
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
        .delivery = view->direct                         ? "direct"
                    : view->memory == LEAT_MEMORY_CUDA   ? "bounce"
                    : view->memory == LEAT_MEMORY_PINNED ? "pinned"
                                                         : "host",
        .pinned_bytes = view->gpu ? view->nslots * view->slot_bytes : 0,
        .device_bytes = view->memory == LEAT_MEMORY_CUDA ? view->nslots * view->slot_bytes : 0,
        .bounced_bytes = view->bounced_bytes,
        .copies = view->copies,
        .lags = view->lags,
        .direct_bytes = view->direct_bytes,
    };
    return options_give("leat_view_stat", ret_stat, offsetof(struct leat_view_stat, memory), &out,
                        sizeof(out), err);
}
