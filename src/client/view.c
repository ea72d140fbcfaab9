/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c: the ring of batch buffers that a consumer and the fills share.
 *
 * README.md has the states of a slot. It is one mapping of all fields, page-aligned, reserved and touched as needed:
 *
 *   │ field 0: batch_size * fixed bytes, or the cap of a ragged one │ pad to 64 │ field 1 … │
 *
 * Failure modes: every slot held: LEAT_BUSY naming the holders, nothing is overwritten; a quarantined slot whose peer stays
 * frozen comes back once the connection is torn down, which happens when no other slot is left.
 * Invariants: only the holder of fill_lock takes slots; any thread gives them back; the memory lives until
 * the handle and the last held batch are gone, and that of a slot in RELEASING until its event has come (orphans).
 */
#include "client/client.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "leat-config.h"

#define DEFAULT_SLOTS 4u
#define MAX_SLOTS     256u
#define MAX_BATCH     (1u << 24)
#define ASK_MS        1 /* between two questions whether an event has come that has no descriptor */
#define HUGE_PAGE     (2 * MIB)
#define LOAD_FLAGS    (LEAT_LOAD_ASYNC | LEAT_LOAD_DIRECT | LEAT_LOAD_DIRECT_IF_POSSIBLE)
#define GPU_ALIGN     256 /* as cuMemAlloc's memory, and as DLPack asks for */

/* --- states ------------------------------------------------------------------------------------------------------ */

#define P(state) (1u << SLOT_##state)
/* QUARANTINE leads to RELEASING: a read can be done and not quiesced, so a copy to a device may have begun. */
static const uint32_t slot_moves[SLOT_STATES] = {
    [SLOT_FREE] = P(FILLING),
    [SLOT_FILLING] = P(HELD) | P(RELEASING) | P(QUARANTINE) | P(FREE),
    [SLOT_HELD] = P(RELEASING) | P(FREE),
    [SLOT_RELEASING] = P(FREE),
    [SLOT_QUARANTINE] = P(RELEASING),
};
#undef P

/* Under lock. */
static void slot_move(struct view_slot *slot, enum slot_state to)
{
    static const char *const names[SLOT_STATES] = {"FREE", "FILLING", "HELD", "RELEASING", "QUARANTINE"};
    assert(to < SLOT_STATES && (slot_moves[slot->state] >> to & 1));
    log_debug("slot %u: %s -> %s", slot->batch.slot, names[slot->state], names[to]);
    slot->state = to;
}

/* --- layout ------------------------------------------------------------------------------------------------------ */

static int lay_out_field(struct leat_view *v, unsigned f, unsigned field, uint64_t max_batch_bytes,
                         struct leat_error *err)
{
    struct leat_field info = {.size = sizeof(info)};
    struct view_field *out = &v->fields[f];
    if (leat_ws_field(v->ws, field, &info))
        return error_set(err, LEAT_INVALID, "field %u of a working set with %u", field,
                         leat_ws_fields(v->ws));
    *out = (struct view_field){.field = field,
                               .fixed_bytes = info.fixed_bytes,
                               .part_bytes = info.fixed_bytes,
                               .label = info.is_label};
    if (v->part_ids) {
        if (!info.fixed_bytes || info.is_label)
            return error_set(err, LEAT_INVALID,
                             "field %s has no fixed length: windows are of arrays, choose their fields",
                             info.name);
        if (mul_overflows(info.fixed_bytes, v->window, &info.fixed_bytes))
            return error_set(err, LEAT_NO_SPACE, "windows of %u samples do not fit into memory", v->window);
        out->fixed_bytes = info.max_bytes = info.fixed_bytes;
    }
    if (mul_overflows(v->batch_size, info.max_bytes, &out->cap_bytes))
        return error_set(err, LEAT_NO_SPACE,
                         "batches of %u samples of up to %llu bytes do not fit into memory", v->batch_size,
                         (unsigned long long)info.max_bytes);
    if (!info.fixed_bytes && max_batch_bytes)
        out->cap_bytes = MIN(out->cap_bytes, max_batch_bytes);
    out->data_offset = v->slot_bytes;
    uint64_t end;
    if (add_overflows(v->slot_bytes, out->cap_bytes, &end) || end > 1ull << 46)
        return error_set(err, LEAT_NO_SPACE,
                         "a batch buffer of more than 64 TiB: set max_batch_bytes or a smaller batch");
    v->slot_bytes = align_up(MAX(end, v->slot_bytes + 1), v->memory == LEAT_MEMORY_HOST ? 64 : GPU_ALIGN);
    return 0;
}

/* One mapping for all slots, on a border of huge pages: a slot alone may be smaller than one (a batch of 64 samples of 4 KiB is an
 * eighth), and each 4 KiB written to base pages costs a walk of the page tables. Each slot's part is unmapped on its own. */
static int map_ring(struct leat_view *v)
{
    uint64_t slots_bytes, asked;
    if (mul_overflows(v->nslots, v->slot_bytes, &slots_bytes) ||
        add_overflows(slots_bytes, 2 * HUGE_PAGE, &asked))
        return -ENOMEM;
    /* Pages that a device reads must not be replaced when a child of fork() makes them copy-on-write: pinned ones are shared. */
    int kind = v->memory == LEAT_MEMORY_HOST ? MAP_PRIVATE : MAP_SHARED;
    void *at = mmap(NULL, asked, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return -ENOMEM;
    uint64_t ahead = align_up((uintptr_t)at, HUGE_PAGE) - (uintptr_t)at;
    /* A last huge page that the slots would fill less than half stays of base pages. */
    uint64_t huge = align_down(slots_bytes + HUGE_PAGE / 2, HUGE_PAGE), bytes = MAX(slots_bytes, huge);
    uint8_t *ring = (uint8_t *)at + ahead;
    if (ahead)
        munmap(at, ahead);
    munmap(ring + bytes, asked - ahead - bytes);
    if (huge)
        madvise(ring, huge, MADV_HUGEPAGE);
    for (unsigned s = 0; s < v->nslots; s++)
        v->slots[s].memory = ring + s * v->slot_bytes;
    v->spare = ring + slots_bytes;
    v->spare_bytes = bytes - slots_bytes;
    return 0;
}

static int init_slot(struct leat_view *v, struct view_slot *slot, unsigned number, struct leat_error *err)
{
    slot->batch = (struct leat_batch){.view = v, .slot = number};
    slot->batch.ids = calloc(v->batch_size, sizeof(uint64_t));
    slot->offsets = calloc(v->nfields, sizeof(*slot->offsets));
    if (!slot->batch.ids || !slot->offsets)
        return -ENOMEM;
    for (unsigned f = 0; f < v->nfields; f++) {
        if (v->fields[f].fixed_bytes)
            continue;
        slot->offsets[f] = calloc((size_t)v->batch_size + 1, sizeof(uint64_t));
        if (!slot->offsets[f])
            return -ENOMEM;
    }
    int rc = gather_new(v->rails, v->batch_size * v->window * v->nfields,
                        v->batch_size * v->window * v->nfields, &slot->gather);
    rc = rc ? rc : rails_register(v->rails, slot->memory, v->slot_bytes, &slot->registered, err);
    return rc ? rc : device_slot_new(v, slot, err);
}

/* --- events ---------------------------------------------------------------------------------------------------------- */

static bool fd_ready(int fd, int timeout_ms)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    return poll(&pfd, 1, timeout_ms) >
           0; /* an error or hang-up ends the wait as well: no signal can follow */
}

/* True once: the event is used up then. */
static bool event_came(struct view_event *event)
{
    if (event->finished) {
        if (!event->finished(event->user))
            return false;
    } else {
        if (!fd_ready(event->fd, 0))
            return false;
        close(event->fd);
    }
    *event = (struct view_event){.fd = -1};
    return true;
}

/* Of a slot in RELEASING, under lock: nothing reads it any more. */
static bool is_released(struct view_slot *slot)
{
    bool waits = slot->event.finished || slot->event.fd >= 0;
    return (!waits || event_came(&slot->event)) && !device_copying(slot);
}

/*
 * Memory of slots whose view was freed while something still read them. No thread waits for it: making or
 * freeing a view frees the slots that are no longer read. If a program opens no further view, the memory
 * stays until it ends.
 */
struct orphan {
    struct list node;
    struct view_slot slot; /* event, memory and what the device has of it */
    uint64_t bytes;
};
static struct list orphans = {&orphans, &orphans};
static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;

/* The pages of pinned slots are shared: they would go with the last mapping of the ring, and one slot in use would keep those of all. */
static void free_memory(struct view_slot *slot, uint64_t bytes)
{
    bool shared = slot->buffer;
    gpu_buffer_free(slot->buffer);
    if (shared)
        madvise(slot->memory, bytes, MADV_REMOVE);
    if (slot->memory)
        munmap(slot->memory, bytes);
}

static void free_orphans(void)
{
    pthread_mutex_lock(&orphans_lock);
    list_for_each_safe (at, &orphans) {
        struct orphan *orphan = container_of(at, struct orphan, node);
        if (!is_released(&orphan->slot))
            continue;
        list_remove(&orphan->node);
        free_memory(&orphan->slot, orphan->bytes);
        free(orphan);
    }
    pthread_mutex_unlock(&orphans_lock);
}

void view_forget_orphans(void)
{
    list_init(&orphans);
    pthread_mutex_init(&orphans_lock, NULL);
}

/* Without memory for a note the slot's own stays mapped for good: something may still read it. */
static void orphan_slot(struct leat_view *v, struct view_slot *slot)
{
    struct orphan *orphan = malloc(sizeof(*orphan));
    if (orphan) {
        *orphan = (struct orphan){.slot = {.event = slot->event,
                                           .memory = slot->memory,
                                           .buffer = slot->buffer,
                                           .copying = slot->copying},
                                  .bytes = v->slot_bytes};
        pthread_mutex_lock(&orphans_lock);
        list_push_back(&orphans, &orphan->node);
        pthread_mutex_unlock(&orphans_lock);
    } else if (slot->event.fd >= 0) {
        close(slot->event.fd);
    }
    slot->event = (struct view_event){.fd = -1};
    slot->memory = NULL;
    slot->buffer = NULL;
}

static void fini_slot(struct leat_view *v, struct view_slot *slot)
{
    if (slot->state != SLOT_FREE && !is_released(slot))
        orphan_slot(v, slot);
    for (unsigned f = 0; slot->offsets && f < v->nfields; f++)
        free(slot->offsets[f]);
    free(slot->offsets);
    free(slot->batch.ids);
    gather_free(slot->gather);
    free_memory(slot, v->slot_bytes);
}

/* --- life ------------------------------------------------------------------------------------------------------------ */

static void view_free(struct leat_view *v)
{
    rails_quiesce(v->rails); /* first: what is in quarantine */
    if (v->rails && v->rails->unquiesced) {
        log_error("a rail does not end its operations: the memory of a view is left to it");
        return;
    }
    for (unsigned s = 0; v->slots && v->rails && s < v->nslots; s++) {
        rails_deregister(v->rails, v->slots[s].registered);
        rails_deregister(v->rails, v->slots[s].direct);
    }
    rails_free(v->rails);
    for (unsigned s = 0; v->slots && s < v->nslots; s++)
        fini_slot(v, &v->slots[s]);
    gpu_unref(v->gpu);
    if (v->spare_bytes)
        munmap(v->spare, v->spare_bytes);
    pthread_cond_destroy(&v->freed);
    pthread_mutex_destroy(&v->lock);
    tlock_fini(&v->fill_lock);
    ws_unref(v->ws);
    free(v->slots);
    free(v->fields);
    free(v->wait_ids);
    free(v->part_ids);
    free(v->wants);
    free(v);
    free_orphans();
}

void view_unref(struct leat_view *view)
{
    if (view && atomic_fetch_sub(&view->refs, 1) == 1)
        view_free(view);
}

static int check_transport(const struct leat_ws *ws, const char *asked, struct leat_error *err)
{
    struct transport_set transports;
    if (transport_set(asked, &transports) < 0)
        return error_set(
            err, LEAT_INVALID,
            "transport '%s': \"shm\", \"tcp\", \"rdma\", \"rdma-write\", \"shm+tcp\" and \"shm+rdma\" are "
            "possible, NULL or \"auto\" choose",
            asked ? asked : "of LEAT_TRANSPORT");
    if (transports.tcp || transports.rdma || ws->all_local)
        return 0; /* our own node serves connections as well */
    return error_set(
        err, LEAT_UNSUPPORTED,
        "transport %s was required, but part of %s is on other hosts: it is read by %s from here",
        asked ? asked : "of LEAT_TRANSPORT", ws->uri, ws->transport);
}

static int check_memory(const struct leat_view_options *o, struct leat_error *err)
{
    switch (o->memory) {
    case LEAT_MEMORY_HOST:
        if (o->flags & LEAT_LOAD_ASYNC)
            return error_set(err, LEAT_INVALID, "LEAT_LOAD_ASYNC of host memory: nothing is copied");
        return o->device ? error_set(err, LEAT_INVALID, "device %d of host memory: it has none", o->device)
                         : 0;
    case LEAT_MEMORY_PINNED:
    case LEAT_MEMORY_CUDA:
        if (o->device < 0)
            return error_set(err, LEAT_INVALID, "CUDA device %d: they are numbered from 0", o->device);
        return 0;
    default:
        return error_set(err, LEAT_INVALID, "memory %u is not one of enum leat_memory", o->memory);
    }
}

static int check_direct(const struct leat_view_options *o, struct leat_error *err)
{
    struct transport_set transports;
    if (!(o->flags & (LEAT_LOAD_DIRECT | LEAT_LOAD_DIRECT_IF_POSSIBLE)))
        return 0;
    if (o->memory != LEAT_MEMORY_CUDA)
        return error_set(err, LEAT_INVALID, "LEAT_LOAD_DIRECT is of batches in LEAT_MEMORY_CUDA");
    if ((o->flags & LEAT_LOAD_DIRECT) && transport_set(o->transport, &transports) == 0 && !transports.rdma)
        return error_set(err, LEAT_INVALID,
                         "LEAT_LOAD_DIRECT: only RDMA reaches a device's memory, and this "
                         "view's transport leaves it out");
    return 0;
}

static int take_view_options(const struct leat_ws *ws, const struct leat_view_options *options,
                             struct leat_view_options *ret, struct leat_error *err)
{
    if (!options)
        return error_set(err, LEAT_INVALID, "leat_view_options with size and batch_size are required");
    int rc = options_take("leat_view_options", options, offsetof(struct leat_view_options, slots), ret,
                          sizeof(*ret), err);
    if (rc)
        return rc;
    if (ret->batch_size == 0 || ret->batch_size > MAX_BATCH)
        return error_set(err, LEAT_INVALID, "batch_size %u: 1 to %u are possible", ret->batch_size,
                         MAX_BATCH);
    if (ret->slots == 0)
        ret->slots = DEFAULT_SLOTS;
    if (ret->slots > MAX_SLOTS)
        return error_set(err, LEAT_INVALID, "%u slots: 1 to %u are possible", ret->slots, MAX_SLOTS);
    if (ret->fields && ret->nfields == 0)
        return error_set(err, LEAT_INVALID, "an empty list of fields: give some, or NULL for all");
    if (!ret->fields)
        ret->nfields = leat_ws_fields(ws);
    if (ret->nfields > INDEX_MAX_FIELDS || (uint64_t)ret->nfields * ret->batch_size > UINT32_MAX / 4)
        return error_set(err, LEAT_INVALID, "%u fields of %u samples are too many", ret->nfields,
                         ret->batch_size);
    ret->window = MAX(ret->window, 1u);
    ret->window_step = MAX(ret->window_step, 1u);
    if (ret->window > leat_ws_length(ws) ||
        (uint64_t)ret->nfields * ret->batch_size > UINT32_MAX / 4 / ret->window)
        return error_set(err, LEAT_INVALID, "windows of %u samples, of a set of %llu, in batches of %u",
                         ret->window, (unsigned long long)leat_ws_length(ws), ret->batch_size);
    if (ret->fingerprint && strlen(ret->fingerprint) != 32)
        return error_set(err, LEAT_INVALID, "a fingerprint is 32 hexadecimal digits");
    if (ret->flags & ~LOAD_FLAGS || ret->reserved)
        return error_set(err, LEAT_INVALID,
                         "flags 0x%x of a view: LEAT_LOAD_ASYNC, LEAT_LOAD_DIRECT and "
                         "LEAT_LOAD_DIRECT_IF_POSSIBLE are known",
                         ret->flags);
    rc = check_direct(ret, err);
    if (rc)
        return rc;
    rc = check_memory(ret, err);
    return rc ? rc : check_transport(ws, ret->transport, err);
}

static int build_view(struct leat_view *v, const struct leat_view_options *o, struct leat_error *err)
{
    v->batch_size = o->batch_size;
    v->nslots = o->slots;
    v->nfields = o->nfields;
    v->fields = calloc(v->nfields, sizeof(*v->fields));
    v->slots = calloc(v->nslots, sizeof(*v->slots));
    v->window = o->window;
    v->step = o->window_step;
    v->length = (leat_ws_length(v->ws) - v->window) / v->step + 1;
    memcpy(v->fingerprint, o->fingerprint ? o->fingerprint : v->ws->fingerprint, sizeof(v->fingerprint));
    const size_t most = (size_t)v->batch_size * v->window; /* samples of the set in a batch */
    const bool windows = v->window > 1 || v->step > 1;
    v->wait_ids = calloc(most, sizeof(*v->wait_ids));
    if (windows)
        v->part_ids = calloc(most, sizeof(*v->part_ids));
    /* Samples that may have to be fetched: streamed ones, and those of a node that may be lost. */
    bool fetches = (v->ws->info.flags & PROTO_WS_STREAMED) || v->ws->info.nnodes > 1;
    if (fetches)
        v->wants = calloc(most * v->nfields, sizeof(*v->wants));
    if (!v->fields || !v->slots || !v->wait_ids || (windows && !v->part_ids) || (!v->wants && fetches))
        return error_set(err, -ENOMEM, "out of memory for a view");
    for (unsigned s = 0; s < v->nslots; s++)
        v->slots[s].event.fd = -1;
    int rc = device_open(v, o, err);
    if (rc)
        return rc;
    for (unsigned f = 0; f < v->nfields; f++) {
        rc = lay_out_field(v, f, o->fields ? o->fields[f] : f, o->max_batch_bytes, err);
        if (rc)
            return rc;
    }
    v->slot_bytes = align_up(MAX(v->slot_bytes, 1ull), (uint64_t)sysconf(_SC_PAGESIZE));
    struct transport_set transports;
    struct leat_error why = {0};
    rc = transport_set(o->transport, &transports);
    if (o->flags & LEAT_LOAD_DIRECT)
        transports.tcp = false;
    rc = rc ? rc : rails_new(v->ws, o->inflight_bytes, &transports, &v->rails, &why);
    rc = rc ? rc : map_ring(v);
    for (unsigned s = 0; !rc && s < v->nslots; s++)
        rc = init_slot(v, &v->slots[s], s, &why);
    rc = rc ? rc : device_make_direct(v, o, &why);
    if (!rc || why.code)
        return rc ? error_set(err, rc, "%s", why.message) : 0;
    return error_set(err, rc, "out of memory for %u batch buffers of %llu bytes", v->nslots,
                     (unsigned long long)v->slot_bytes);
}

int leat_load(struct leat_ws *ws, const struct leat_view_options *options, struct leat_view **ret_view,
              struct leat_error *err)
{
    struct leat_view_options o;
    if (!ws || !ret_view)
        return error_set(err, LEAT_INVALID, "%s is NULL", ws ? "ret_view" : "ws");
    int rc = ws_check(ws, err);
    if (!rc)
        rc = take_view_options(ws, options, &o, err);
    if (rc)
        return rc;
    free_orphans();
    struct leat_view *v = calloc(1, sizeof(*v));
    if (!v)
        return error_set(err, -ENOMEM, "out of memory for a view");
    v->refs = 1;
    v->fork_count = ws->client->fork_count;
    v->ws = ws_ref(ws);
    tlock_init(&v->fill_lock);
    pthread_mutex_init(&v->lock, NULL);
    cond_init(&v->freed);
    rc = build_view(v, &o, err);
    if (rc) {
        view_free(v);
        return rc;
    }
    *ret_view = v;
    return 0;
}

void leat_view_close(struct leat_view *view)
{
    if (view && view->fork_count == client_fork_count())
        view_unref(view);
}

/* --- slots: taking ----------------------------------------------------------------------------------------------------- */

static struct view_slot *find_free(struct leat_view *v)
{
    for (unsigned i = 0; i < v->nslots; i++) {
        struct view_slot *slot = &v->slots[(v->next_slot + i) % v->nslots];
        if (slot->state == SLOT_QUARANTINE && !slot->gather->unquiesced)
            slot_move(slot, SLOT_RELEASING);
        if (slot->state == SLOT_RELEASING && is_released(slot))
            slot_move(slot, SLOT_FREE);
        /* A batch can be whole before its reads are quiesced, and given back before that: nothing may land
         * in the next one. */
        if (slot->state == SLOT_FREE && !slot->gather->unquiesced) {
            v->next_slot = (slot->batch.slot + 1) % v->nslots;
            return slot;
        }
    }
    return NULL;
}

static unsigned count_state(const struct leat_view *v, enum slot_state state)
{
    unsigned n = 0;
    for (unsigned s = 0; s < v->nslots; s++)
        n += v->slots[s].state == state;
    return n;
}

static int all_held_error(const struct leat_view *v, struct leat_error *err)
{
    char holders[200];
    size_t used = 0;
    holders[0] = 0;
    for (unsigned s = 0; s < v->nslots && used < sizeof(holders) - 32; s++)
        if (v->slots[s].state == SLOT_HELD)
            used += (size_t)snprintf(holders + used, sizeof(holders) - used, "%s%llu", used ? ", " : "",
                                     (unsigned long long)v->slots[s].batch.sequence);
    return error_set(err, LEAT_BUSY, "all %u slots of the view are held, by batches %s: release one first",
                     v->nslots, holders);
}

bool view_starved(struct leat_view *v, struct leat_error *err)
{
    pthread_mutex_lock(&v->lock);
    bool starved = true;
    for (unsigned s = 0; s < v->nslots; s++)
        starved = starved && v->slots[s].state == SLOT_HELD && !v->slots[s].batch.undelivered;
    if (starved)
        all_held_error(v, err);
    pthread_mutex_unlock(&v->lock);
    return starved;
}

/* Tears down what the quarantined slots wait for: a peer that has been silent past its deadline. */
static void break_quarantine(struct leat_view *v)
{
    for (uint32_t node = 0; node < v->ws->info.nnodes; node++)
        if (!rails_is_local(v->rails, node))
            rails_disconnect(v->rails, node);
    for (unsigned i = 0; i < 1000 && v->rails->unquiesced; i++)
        rails_progress(v->rails, 1);
}

/* Under lock. Waits a little for whatever may free a slot. */
static void wait_for_release(struct leat_view *v, uint64_t deadline_ns)
{
    int left = clock_poll_ms(deadline_ns), ms = left < 0 ? POLL_MS : MIN(left, POLL_MS);
    int fd = -1;
    for (unsigned s = 0; s < v->nslots; s++) {
        if (v->slots[s].state != SLOT_RELEASING)
            continue;
        fd = v->slots[s].event.fd;
        if (fd < 0)
            ms = MIN(ms, ASK_MS);
    }
    if (fd >= 0) {
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the slot's own may go while we sleep */
        pthread_mutex_unlock(&v->lock);
        if (fd >= 0) {
            fd_ready(fd, ms);
            close(fd);
        }
        pthread_mutex_lock(&v->lock);
        return;
    }
    cond_wait_until(&v->freed, &v->lock, clock_now_ns() + (uint64_t)ms * NS_PER_MS);
}

/* Under lock: an error if no slot that was given back can report its end, or 0. */
static int no_pending_release(const struct leat_view *v, struct leat_error *err)
{
    const struct gpu_buffer *refused = NULL;
    for (unsigned s = 0; s < v->nslots; s++) {
        const struct view_slot *slot = &v->slots[s];
        if (slot->state != SLOT_RELEASING || !slot->buffer || !gpu_buffer_refused(slot->buffer, NULL))
            return 0;
        refused = slot->buffer;
    }
    int rc = refused ? gpu_buffer_refused(refused, err) : 0;
    return rc ? error_prefix(err, rc, "no slot of the view is free") : 0;
}

/* Under lock: why there is nothing to wait for, or 0. */
static int no_slot(const struct leat_view *v, bool wait_held, const struct client_rpc_how *how,
                   struct leat_error *err)
{
    unsigned held = count_state(v, SLOT_HELD);
    if (how->cancel && *how->cancel)
        return client_cancelled_error(err);
    if (held == v->nslots && !wait_held)
        return all_held_error(v, err);
    if (how->deadline_ns && clock_now_ns() >= how->deadline_ns)
        return error_set(err, LEAT_TIMED_OUT,
                         "no slot of the view was given back within the deadline (%u held of %u)", held,
                         v->nslots);
    return held ? 0 : no_pending_release(v, err);
}

int view_slot_take(struct leat_view *v, bool wait_held, const struct client_rpc_how *how,
                   struct view_slot **ret_slot, struct leat_error *err)
{
    const struct leat_client *client = v->ws->client;
    uint64_t poll_ns = 0;
    bool lagged = false;
    int rc = tlock_take(&v->fill_lock, client, how, "reading a batch", err);
    if (rc)
        return rc;
    if (unlikely(v->rails->unquiesced))
        rails_progress(v->rails, 0);
    struct view_slot *slot;
    pthread_mutex_lock(&v->lock);
    while (!(slot = find_free(v)) && !(rc = no_slot(v, wait_held, how, err))) {
        if (count_state(v, SLOT_HELD) + count_state(v, SLOT_RELEASING) < v->nslots) {
            pthread_mutex_unlock(&v->lock);
            break_quarantine(v);
            pthread_mutex_lock(&v->lock);
            continue;
        }
        lagged = lagged || count_state(v, SLOT_RELEASING);
        tlock_give(&v->fill_lock); /* an iterator may wait here for long; others may read concurrently */
        wait_for_release(v, how->deadline_ns);
        pthread_mutex_unlock(&v->lock);
        rc = client_cancelled(client, how, &poll_ns)
                 ? client_cancelled_error(err)
                 : tlock_take(&v->fill_lock, client, how, "reading a batch", err);
        if (rc)
            return rc;
        pthread_mutex_lock(&v->lock);
    }
    if (slot) {
        slot_move(slot, SLOT_FILLING);
        v->lags += lagged; /* now, so that a thread that waits for this batch sees the new count */
        *ret_slot = slot;
    }
    pthread_mutex_unlock(&v->lock);
    if (!slot)
        tlock_give(&v->fill_lock);
    return rc;
}

struct leat_batch *view_slot_hold(struct leat_view *v, struct view_slot *slot, uint64_t position,
                                  bool undelivered)
{
    pthread_mutex_lock(&v->lock);
    slot_move(slot, SLOT_HELD);
    slot->batch.sequence = ++v->sequence;
    slot->batch.position = position;
    slot->batch.undelivered = undelivered;
    atomic_fetch_add(&v->refs, 1);
    pthread_mutex_unlock(&v->lock);
    return &slot->batch;
}

void view_slot_drop(struct leat_view *v, struct view_slot *slot)
{
    pthread_mutex_lock(&v->lock);
    slot_move(slot, slot->gather->unquiesced ? SLOT_QUARANTINE
                    : device_copying(slot)   ? SLOT_RELEASING
                                             : SLOT_FREE);
    if (slot->state != SLOT_FREE)
        atomic_fetch_add_explicit(&client_counters.quarantined, 1, memory_order_relaxed);
    pthread_mutex_unlock(&v->lock);
}

/* --- batches: looking and giving back ------------------------------------------------------------------------------------ */

static struct view_slot *slot_of(const struct leat_batch *batch)
{
    return &batch->view->slots[batch->slot];
}

unsigned leat_batch_size(const struct leat_batch *batch)
{
    return batch->n;
}

const uint64_t *leat_batch_ids(const struct leat_batch *batch)
{
    return batch->ids;
}

uint64_t leat_batch_position(const struct leat_batch *batch)
{
    return batch->position;
}

unsigned leat_batch_slot(const struct leat_batch *batch)
{
    return batch->slot;
}

enum leat_memory leat_batch_memory(const struct leat_batch *batch, int *ret_device)
{
    if (ret_device)
        *ret_device = batch->view->device;
    return batch->view->memory;
}

void *leat_batch_data(const struct leat_batch *batch, unsigned f, uint64_t *ret_bytes)
{
    const struct leat_view *v = batch->view;
    if (f >= v->nfields)
        return NULL;
    const struct view_slot *slot = slot_of(batch);
    if (ret_bytes)
        *ret_bytes = slot->offsets[f] ? slot->offsets[f][batch->n] : batch->n * v->fields[f].fixed_bytes;
    uint8_t *memory = v->memory == LEAT_MEMORY_CUDA ? gpu_buffer_device(slot->buffer) : slot->memory;
    return memory + v->fields[f].data_offset;
}

const uint64_t *leat_batch_offsets(const struct leat_batch *batch, unsigned f)
{
    return f < batch->view->nfields ? slot_of(batch)->offsets[f] : NULL;
}

int leat_batch_present(const struct leat_batch *batch, unsigned f, unsigned i)
{
    struct index_part part;
    const struct leat_view *v = batch->view;
    if (f >= v->nfields || i >= batch->n)
        return 0;
    return v->fields[f].label ||
           index_part(&v->ws->index, batch->ids[i] * v->step, v->fields[f].field, &part);
}

void view_give_back(struct leat_batch *batch, const struct view_event *event)
{
    struct leat_view *v = batch->view;
    struct view_slot *slot = slot_of(batch);
    pthread_mutex_lock(&v->lock);
    assert(slot->state == SLOT_HELD);
    if (event)
        slot->event = *event;
    slot_move(slot, event || device_copying(slot) ? SLOT_RELEASING : SLOT_FREE);
    pthread_cond_broadcast(&v->freed);
    pthread_mutex_unlock(&v->lock);
    view_unref(v);
}

void leat_batch_release(struct leat_batch *batch)
{
    if (batch && batch->view->fork_count == client_fork_count())
        view_give_back(batch, NULL);
}

int leat_batch_release_after(struct leat_batch *batch, const struct leat_event *event, struct leat_error *err)
{
    struct leat_event e;
    if (!batch || !event)
        return error_set(err, LEAT_INVALID, "%s is NULL", batch ? "event" : "batch");
    if (batch->view->fork_count != client_fork_count())
        return client_forked_error(err);
    int rc = options_take("leat_event", event, offsetof(struct leat_event, user), &e, sizeof(e), err);
    if (rc)
        return rc;
    struct view_event own = {.finished = e.finished, .user = e.user, .fd = -1};
    if (!own.finished)
        own.fd = fcntl(e.fd, F_DUPFD_CLOEXEC, 0);
    if (!own.finished && own.fd < 0)
        return error_sys(err, errno == EBADF ? LEAT_INVALID : -errno, "cannot keep descriptor %d", e.fd);
    view_give_back(batch, &own);
    return 0;
}
