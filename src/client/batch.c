/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c: ReadBatch, read and hold: which samples are there, which must be waited for, and where their bytes go.
 *
 *   ids ──▶ live states ──▶ WAIT for those not resident (one call a batch)
 *       ──▶ labels out of the index; resident parts to gather; streamed parts to stream_read
 *       ──▶ generation looked at once more ──▶ copied on to a device ──▶ the slot is held by the caller
 *
 * Failure modes: whatever fails, the slot goes back to the ring (or quarantine) and no batch comes out; the error names
 * the sample. Invariants: in the steady state of a set in shared memory a batch allocates nothing and makes no system
 * call, but for one in a millisecond (is the daemon alive?).
 */
#include "client/client.h"

#include "base/crc32c.h"
#include "base/ledger.h"

struct client_counters client_counters;

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* --- waiting ---------------------------------------------------------------------------------------------------------- */

/* Not in the pool now, but to be had through our daemon: streamed, or lost with the node that held it. */
static bool by_fetch(unsigned state)
{
    return state == LIVE_STREAMED || state == LIVE_LOST;
}

/* Sees to it that every sample is resident or streamed. *ret_streamed: some are. GATHER_MOVED: one that was there is gone again. */
static int make_ready(struct leat_ws *ws, const uint64_t *ids, unsigned n, uint64_t *scratch,
                      const struct client_rpc_how *how, bool *ret_streamed, struct leat_error *err)
{
    const uint64_t nsamples = ws->index.header->nsamples;
    uint32_t absent = 0;
    bool streamed = false;
    for (unsigned i = 0; i < n; i++) {
        if (unlikely(ids[i] >= nsamples))
            return ws_bad_index(ws, ids[i], err);
        unsigned state = ws_state(ws, ids[i]);
        if (likely(state == LIVE_RESIDENT))
            continue;
        if (by_fetch(state))
            streamed = true;
        else
            scratch[absent++] = ids[i];
    }
    *ret_streamed = streamed;
    if (likely(!absent))
        return 0;
    count(&client_counters.waits, 1);
    for (uint32_t at = 0; at < absent; at += PROTO_IDS_MAX) {
        int rc = ws_wait(ws, scratch + at, MIN(absent - at, PROTO_IDS_MAX), how, err);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < absent; i++) {
        unsigned state = ws_state(ws, scratch[i]);
        if (by_fetch(state))
            *ret_streamed = true;
        else if (state == LIVE_ABSENT || state == LIVE_LOADING)
            return GATHER_MOVED;
        else if (state != LIVE_RESIDENT)
            return error_set(err, -EIO,
                             "the daemon reports that sample %llu is there, its live table has state %u",
                             (unsigned long long)scratch[i], state);
    }
    return 0;
}

/* --- batches ------------------------------------------------------------------------------------------------------------ */

struct fill {
    struct leat_view *view;
    struct view_slot *slot;
    const uint64_t *ids; /* of the set, as n is: those of windows one after another */
    unsigned n;
    bool streamed;
    uint32_t nwants;
    uint64_t block;
    const struct client_rpc_how *how;
};

static int add_part(struct fill *fill, uint64_t id, unsigned field, const struct index_part *part, void *dst,
                    struct leat_error *err)
{
    if (unlikely(fill->streamed) && by_fetch(ws_state(fill->view->ws, id))) {
        fill->view->wants[fill->nwants++] =
            (struct stream_want){.sample = id, .field = field, .part = *part, .dst = dst};
        return 0;
    }
    return gather_add(fill->slot->gather, id, field, part, dst, fill->how, err);
}

static int add_fixed(struct fill *fill, const struct view_field *f, uint8_t *data, struct leat_error *err)
{
    const struct index *index = &fill->view->ws->index;
    if (f->label) {
        uint32_t *labels = (uint32_t *)data;
        for (unsigned i = 0; i < fill->n; i++)
            labels[i] = index->labels[fill->ids[i]];
        return 0;
    }
    for (unsigned i = 0; i < fill->n; i++) {
        struct index_part part;
        if (unlikely(!index_part(index, fill->ids[i], f->field, &part) || part.bytes != f->part_bytes))
            return error_set(err, LEAT_CORRUPT, "sample %llu has another length than its field",
                             (unsigned long long)fill->ids[i]);
        int rc = add_part(fill, fill->ids[i], f->field, &part, data + i * f->part_bytes, err);
        if (unlikely(rc))
            return rc;
    }
    return 0;
}

static int add_ragged(struct fill *fill, const struct view_field *f, uint8_t *data, uint64_t *offsets,
                      struct leat_error *err)
{
    const struct index *index = &fill->view->ws->index;
    uint64_t end = 0;
    for (unsigned i = 0; i < fill->n; i++) {
        struct index_part part;
        offsets[i] = end;
        if (!index_part(index, fill->ids[i], f->field, &part))
            continue;
        if (unlikely(part.bytes > f->cap_bytes - end)) {
            char what[256];
            return error_set(err, LEAT_NO_SPACE,
                             "%s does not fit: the field's buffer of a batch is %llu bytes (max_batch_bytes)",
                             ws_describe(fill->view->ws, fill->ids[i], f->field, what),
                             (unsigned long long)f->cap_bytes);
        }
        int rc = add_part(fill, fill->ids[i], f->field, &part, data + end, err);
        if (unlikely(rc))
            return rc;
        end += part.bytes;
    }
    offsets[fill->n] = end;
    return 0;
}

static int fill_once(struct fill *fill, struct leat_error *err)
{
    struct leat_view *v = fill->view;
    struct view_slot *slot = fill->slot;
    const struct client_rpc_how *how = fill->how;
    int rc = make_ready(v->ws, fill->ids, fill->n, v->wait_ids, how, &fill->streamed, err);
    if (rc)
        return rc;
    if (unlikely(fill->streamed && !v->wants))
        return error_set(err, -EIO, "the daemon streams samples of a set that it said was all in the pool");
    gather_reset(slot->gather);
    fill->nwants = 0;
    for (unsigned f = 0; f < v->nfields; f++) {
        uint8_t *data = slot->memory + v->fields[f].data_offset;
        rc = slot->offsets[f] ? add_ragged(fill, &v->fields[f], data, slot->offsets[f], err)
                              : add_fixed(fill, &v->fields[f], data, err);
        if (rc)
            return rc;
    }
    rc = gather_run(slot->gather, how, err);
    if (!rc && fill->nwants)
        rc = stream_read(v->ws, v->wants, fill->nwants, fill->block, how, err);
    rc = rc ? rc : ws_check_generation(v->ws, err);
    return rc ? rc : device_deliver(v, slot, how, err);
}

#define MOVES_MAX 8 /* a node that comes and goes while one batch is read */

static int moved_error(const struct leat_ws *ws, struct leat_error *err)
{
    return error_set(err, LEAT_PEER_GONE, "samples of %s went away again and again while they were read",
                     ws->uri);
}

static int fill_slot(struct fill *fill, struct leat_error *err)
{
    int rc = GATHER_MOVED;
    for (unsigned i = 0; i < MOVES_MAX && rc == GATHER_MOVED && !fill->slot->gather->unquiesced; i++)
        rc = fill_once(fill, err);
    return rc == GATHER_MOVED ? moved_error(fill->view->ws, err) : rc;
}

static void count_batch(const struct leat_view *v, const struct leat_batch *batch)
{
    uint64_t bytes = 0, field_bytes;
    for (unsigned f = 0; f < v->nfields; f++)
        if (leat_batch_data(batch, f, &field_bytes))
            bytes += field_bytes;
    count(&client_counters.batches, 1);
    count(&client_counters.samples, batch->n);
    count(&client_counters.bytes, bytes);
}

/* The samples of the set in these windows. */
static int open_windows(struct leat_view *v, struct fill *fill, struct leat_error *err)
{
    uint64_t *at = v->part_ids;
    for (unsigned i = 0; i < fill->n; i++) {
        if (fill->ids[i] >= v->length)
            return error_set(err, LEAT_INVALID, "window %llu of %llu", (unsigned long long)fill->ids[i],
                             (unsigned long long)v->length);
        for (unsigned j = 0; j < v->window; j++)
            *at++ = fill->ids[i] * v->step + j;
    }
    fill->ids = v->part_ids;
    fill->n *= v->window;
    return 0;
}

int batch_fill(struct leat_view *v, const uint64_t *ids, unsigned n, const struct fill_how *fill_how,
               struct leat_batch **ret_batch, struct leat_error *err)
{
    struct client_rpc_how how = {.deadline_ns = client_deadline(v->ws->client, fill_how->timeout_ns),
                                 .cancel = fill_how->cancel};
    struct view_slot *slot;
    const struct client_rpc_how patient = {.cancel = fill_how->cancel};
    int rc = view_slot_take(v, fill_how->iterator, fill_how->iterator ? &patient : &how, &slot, err);
    if (!rc) {
        if (fill_how->iterator)
            how.deadline_ns = client_deadline(v->ws->client, fill_how->timeout_ns);
        memcpy(slot->batch.ids, ids, n * sizeof(*ids));
        slot->batch.n = n;
        struct fill fill = {
            .view = v, .slot = slot, .ids = slot->batch.ids, .n = n, .how = &how, .block = fill_how->block};
        rc = ws_check(v->ws, err);
        if (!rc && v->part_ids)
            rc = open_windows(v, &fill, err);
        if (!rc)
            rc = fill_slot(&fill, err);
        if (!rc) {
            *ret_batch = view_slot_hold(v, slot, fill_how->position, fill_how->iterator);
            count_batch(v, *ret_batch);
        } else {
            view_slot_drop(v, slot);
        }
        tlock_give(&v->fill_lock);
    }
    if (rc == LEAT_TIMED_OUT)
        count(&client_counters.timeouts, 1);
    if (rc == LEAT_STALE)
        count(&client_counters.stale, 1);
    return rc;
}

int leat_read_batch(struct leat_view *view, const uint64_t *ids, unsigned n, uint64_t timeout_ns,
                    struct leat_batch **ret_batch, struct leat_error *err)
{
    if (!view || !ret_batch || (!ids && n))
        return error_set(err, LEAT_INVALID, "%s is NULL", !view ? "view" : !ret_batch ? "ret_batch" : "ids");
    if (n == 0 || n > view->batch_size)
        return error_set(err, LEAT_INVALID, "%u samples asked of a view whose batch_size is %u", n,
                         view->batch_size);
    if (view->fork_count != client_fork_count())
        return client_forked_error(err);
    return batch_fill(view, ids, n, &(struct fill_how){.timeout_ns = timeout_ns}, ret_batch, err);
}

/* --- single samples --------------------------------------------------------------------------------------------------------- */

/* The first step of read and hold: the part, and its state. Labels: *ret_label. */
static int find_part(struct leat_ws *ws, uint64_t index, unsigned field, const struct client_rpc_how *how,
                     struct index_part *ret_part, bool *ret_streamed, const uint32_t **ret_label,
                     struct leat_error *err)
{
    *ret_label = NULL;
    if (!ws)
        return error_set(err, LEAT_INVALID, "ws is NULL");
    int rc = ws_check(ws, err);
    if (rc)
        return rc;
    if (index >= ws->index.header->nsamples)
        return ws_bad_index(ws, index, err);
    if (field >= ws->index.header->nfields)
        return error_set(err, LEAT_NOT_FOUND, "field %u of a working set with %u", field,
                         ws->index.header->nfields);
    if (ws->index.fields[field].kind == INDEX_FIELD_LABEL) {
        *ret_label = &ws->index.labels[index];
        return 0;
    }
    if (!index_part(&ws->index, index, field, ret_part)) {
        char what[256];
        return error_set(err, LEAT_NOT_FOUND, "%s is absent", ws_describe(ws, index, field, what));
    }
    uint64_t scratch[1];
    rc = GATHER_MOVED;
    for (unsigned i = 0; i < MOVES_MAX && rc == GATHER_MOVED; i++)
        rc = make_ready(ws, &index, 1, scratch, how, ret_streamed, err);
    return rc == GATHER_MOVED ? moved_error(ws, err) : rc;
}

/* The part in one piece of this host's pool, or NULL. */
static const uint8_t *direct(struct leat_ws *ws, const struct index_part *part,
                             const struct client_rpc_how *how, int *ret_rc, struct leat_error *err)
{
    uint64_t gid = part->address / ws->info.region_bytes, offset = part->address % ws->info.region_bytes;
    const uint32_t moves = ws_moves(ws);
    *ret_rc = 0;
    if (gid >= ws->info.nregions || part->bytes > ws->info.region_bytes - offset ||
        ws_region_node(ws, gid) != ws->local_node)
        return NULL;
    if (!ws_region(ws, (uint32_t)gid)) {
        *ret_rc = ws_map_region(ws, (uint32_t)gid, how, err);
        if (*ret_rc && ws_moves(ws) != moves)
            *ret_rc = 0; /* it has left since: not here, then */
        if (!ws_region(ws, (uint32_t)gid))
            return NULL;
    }
    return (const uint8_t *)ws_region(ws, (uint32_t)gid) + offset;
}

static int verdict(struct leat_ws *ws, uint64_t index, unsigned field, uint32_t crc, uint32_t moves,
                   struct leat_error *err)
{
    int rc = ws_check_generation(ws, err);
    if (rc || crc == ws_crc(ws, index, field))
        return rc;
    return gather_mismatch(ws, index, field, moves, err);
}

/* A sample in pieces, or on another node. On a timeout nothing may land in the caller's buffer any more, so what is
 * still out is torn down before returning. */
static int read_by_rails(struct leat_ws *ws, uint64_t index, unsigned field, const struct index_part *part,
                         void *buf, const struct client_rpc_how *how, struct leat_error *err)
{
    int rc = tlock_take(&ws->read_lock, ws->client, how, "reading a sample of another node", err);
    if (rc)
        return rc;
    struct transport_set transports;
    if (!ws->rails && (rc = transport_set(NULL, &transports)))
        error_set(err, rc, "LEAT_TRANSPORT is not the name of a transport");
    if (!ws->rails && !rc)
        rc = rails_new(ws, 0, &transports, &ws->rails, err);
    if (!rc && !ws->gather && (rc = gather_new(ws->rails, 1, 16, &ws->gather)))
        error_set(err, rc, "out of memory");
    if (rc) {
        tlock_give(&ws->read_lock);
        return rc;
    }
    gather_reset(ws->gather);
    rc = gather_add(ws->gather, index, field, part, buf, how, err);
    if (!rc)
        rc = gather_run(ws->gather, how, err);
    for (uint32_t node = 0; ws->gather->unquiesced && node < ws->info.nnodes; node++)
        if (!rails_is_local(ws->rails, node))
            rails_disconnect(ws->rails, node);
    while (ws->gather->unquiesced)
        rails_progress(ws->rails, 1);
    tlock_give(&ws->read_lock);
    return rc ? rc : ws_check_generation(ws, err);
}

static int read_once(struct leat_ws *ws, uint64_t index, unsigned field, void *buf, uint64_t cap,
                     const struct client_rpc_how *how, uint64_t *ret_bytes, struct leat_error *err)
{
    struct index_part part = {.bytes = sizeof(uint32_t)};
    const uint32_t *label;
    bool streamed = false;
    int rc = find_part(ws, index, field, how, &part, &streamed, &label, err);
    if (rc)
        return rc;
    *ret_bytes = part.bytes;
    if (part.bytes > cap) {
        char what[256];
        return error_set(err, LEAT_NO_SPACE, "%s takes %llu bytes, the buffer has %llu",
                         ws_describe(ws, index, field, what), (unsigned long long)part.bytes,
                         (unsigned long long)cap);
    }
    if (label) {
        memcpy(buf, label, sizeof(*label));
        return 0;
    }
    if (part.bytes == 0)
        return 0;
    if (streamed) {
        struct stream_want want = {.sample = index, .field = field, .part = part, .dst = buf};
        return stream_read(ws, &want, 1, 0, how, err);
    }
    const uint32_t moves = ws_moves(ws);
    const uint8_t *at = direct(ws, &part, how, &rc, err);
    if (rc)
        return rc;
    if (!at)
        return read_by_rails(ws, index, field, &part, buf, how, err);
    ledger_add(LEDGER_GATHER, part.bytes);
    delivered(ws, DELIVERED_SHM, part.bytes);
    return verdict(ws, index, field, crc32c_copy(0, buf, at, part.bytes), moves, err);
}

int leat_read(struct leat_ws *ws, uint64_t index, unsigned field, void *buf, uint64_t cap,
              uint64_t timeout_ns, uint64_t *ret_bytes, struct leat_error *err)
{
    const struct client_rpc_how how = {.deadline_ns = ws ? client_deadline(ws->client, timeout_ns) : 0};
    uint64_t bytes = 0;
    int rc = GATHER_MOVED;
    for (unsigned i = 0; i < MOVES_MAX && rc == GATHER_MOVED; i++)
        rc = read_once(ws, index, field, buf, cap, &how, &bytes, err);
    if (rc == GATHER_MOVED)
        return moved_error(ws, err);
    if (ret_bytes && (rc == 0 || rc == LEAT_NO_SPACE))
        *ret_bytes = bytes;
    if (!rc) {
        count(&client_counters.samples, 1);
        count(&client_counters.bytes, bytes);
    }
    return rc;
}

struct leat_hold {
    struct leat_ws *ws;
};

int leat_hold(struct leat_ws *ws, uint64_t index, unsigned field, uint64_t timeout_ns,
              struct leat_hold **ret_hold, const void **ret_data, uint64_t *ret_bytes, struct leat_error *err)
{
    struct index_part part = {.bytes = sizeof(uint32_t)};
    const uint32_t *label;
    bool streamed = false;
    const struct client_rpc_how how = {.deadline_ns = ws ? client_deadline(ws->client, timeout_ns) : 0};
    if (!ret_hold || !ret_data || !ret_bytes)
        return error_set(err, LEAT_INVALID, "an output of leat_hold is NULL");
    int rc = find_part(ws, index, field, &how, &part, &streamed, &label, err);
    const uint32_t moves = rc ? 0 : ws_moves(ws);
    const uint8_t *at = rc ? NULL : label ? (const uint8_t *)label : NULL;
    if (!rc && !at && !streamed)
        at = direct(ws, &part, &how, &rc, err);
    if (rc)
        return rc;
    if (!at) {
        char what[256];
        return error_set(err, LEAT_UNSUPPORTED, "%s is not in one piece in this host's pool: use leat_read",
                         ws_describe(ws, index, field, what));
    }
    if (!label) {
        rc = verdict(ws, index, field, crc32c(0, at, part.bytes), moves, err);
        if (rc)
            return rc == GATHER_MOVED ? moved_error(ws, err) : rc;
    }
    struct leat_hold *hold = malloc(sizeof(*hold));
    if (!hold)
        return error_set(err, -ENOMEM, "out of memory");
    hold->ws = ws_ref(ws); /* the set's handle is the lease: it stays open as long as this */
    *ret_hold = hold;
    *ret_data = at;
    *ret_bytes = part.bytes;
    return 0;
}

void leat_hold_release(struct leat_hold *hold)
{
    if (!hold || client_forked(hold->ws->client))
        return;
    ws_unref(hold->ws);
    free(hold);
}
