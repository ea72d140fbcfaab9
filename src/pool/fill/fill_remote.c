/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote part of a range. Its extents become reads of a backend session, straight into their place in the
 * pool. The session cuts large ones and sends many small ones at a time:
 *
 *   fill_remote_add ──▶ a free slot ──▶ backend_submit ...  (no slot free: wait for one)
 *   fill_remote_finish ──▶ wait for all; what has arrived without a gap is handed on while the rest is in flight
 *
 * Loads are many at a time, without an order between them:
 *
 *   fill_remote_loads ──▶ load_ask: reads for the free slots ──▶ fill_load_join: the next load ──▶ wait for a read ──▶ load_less: done()
 *
 * Each thread has sessions of its own, one for each access that it used lately; they close when it has been
 * idle for a while.
 * Failure modes: the error of a read becomes a bad range with the backend's message, which names address,
 * range and cause. Dropping the set, or ending the daemon, wakes the wait (fill_remote_wake). The session is
 * closed then, as nothing may be written to the destination any more.
 * Invariants: READS_MAX reads at most, which bounds their memory. A slot is free or in flight, and none is in
 * flight between ranges. A load returns to the caller when its requests, and each of its reads, are over.
 */
#include "pool/fill/fill_internal.h"

#include "backend/backend.h"
#include "base/clock.h"
#include "pool/source/access.h"
#include "pool/set/wset.h"

#include <inttypes.h>
#include <stdio.h>

#define READS_MAX    1024u
#define ORDER_MAX    4096u /* reads begun behind one that has not ended */
#define SESSIONS_MAX 4u
#define PATH_BYTES   (2 * 4096)
#define DROPPED      "cancelled, as the set was dropped"

struct read_session {
    struct backend *backend; /* NULL: free */
    struct access *access;   /* a reference */
    uint64_t used;
    struct backend_stats told; /* as far as counted */
};

struct slot {
    struct backend_read read;
    struct fill_remote *remote;
    struct backend_file *file; /* NULL: the slot is free */
    struct fill_load *load;    /* that it is of; NULL: of the range that is being read */
    uint64_t begin, end;       /* addresses */
    uint64_t place;            /* of a range: in the order of addresses */
};

struct fill_remote {
    struct fill_thread *thread;
    struct read_session sessions[SESSIONS_MAX];
    uint64_t clock;
    struct read_session *session; /* of the range that is being read */
    bool cancelled;
    unsigned nbusy, nfree;
    uint64_t loading_bytes; /* of loads that have not ended */
    unsigned free[READS_MAX];
    /* Reads in the order of their addresses: [first, last) modulo ORDER_MAX. Those before `first` have all ended. */
    uint64_t first, last;
    uint64_t begins[ORDER_MAX];
    bool ended[ORDER_MAX];
    struct slot slots[READS_MAX];
};

uint64_t fill_remote_bytes(const struct index *index, unsigned connections)
{
    const char *root = index_string(index, index->header->root);
    bool ours = access_store_uri(*root ? root : index_string(index, index->sources[0].path));
    return sizeof(struct fill_remote) + (ours ? BACKEND_STORE_BYTES : backend_session_bytes(connections));
}

static struct fill_remote *remote_get(struct fill_thread *t)
{
    if (t->remote)
        return t->remote;
    struct fill_remote *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->thread = t;
    for (unsigned k = 0; k < READS_MAX; k++)
        r->free[k] = READS_MAX - 1 - k;
    r->nfree = READS_MAX;
    t->remote = r;
    return r;
}

/* --- sessions ---------------------------------------------------------------------------------------------------------------- */

static void count(struct fill_counters *c, struct read_session *s)
{
    struct backend_stats now;
    backend_stats(s->backend, &now);
    if (access_is_store(s->access)) {
        atomic_fetch_add(&c->bytes_stored, now.bytes_in - s->told.bytes_in);
        atomic_fetch_add(&c->bytes_direct, now.bytes_direct - s->told.bytes_direct);
        atomic_fetch_add(&c->bytes_buffered, now.bytes_buffered - s->told.bytes_buffered);
        atomic_fetch_add(&c->bytes_padding, now.bytes_padding - s->told.bytes_padding);
        s->told = now;
        return;
    }
    atomic_fetch_add(&c->remote_requests, now.requests - s->told.requests);
    atomic_fetch_add(&c->remote_retries, now.retries - s->told.retries);
    atomic_fetch_add(&c->remote_throttled, now.throttled - s->told.throttled);
    atomic_fetch_add(&c->remote_checked, now.checked - s->told.checked);
    atomic_fetch_add(&c->remote_unchecked, now.unchecked - s->told.unchecked);
    atomic_fetch_add(&c->remote_connections, now.connections - s->told.connections);
    atomic_fetch_add(&c->bytes_remote, now.bytes_in - s->told.bytes_in);
    s->told = now;
}

static void session_close(struct read_session *s)
{
    backend_free(s->backend);
    access_unref(s->access);
    *s = (struct read_session){0};
}

static int session_get(struct fill_remote *r, struct access *access, struct read_session **ret,
                       struct leat_error *err)
{
    struct read_session *victim = &r->sessions[0];
    for (unsigned k = 0; k < SESSIONS_MAX; k++) {
        struct read_session *s = &r->sessions[k];
        if (s->backend && s->access == access) {
            s->used = ++r->clock;
            *ret = s;
            return 0;
        }
        if (!s->backend || (victim->backend && s->used < victim->used))
            victim = s;
    }
    struct backend *backend;
    int rc = access_backend(access, fill_connections(r->thread), NULL, &backend, err);
    if (rc < 0)
        return rc;
    if (victim->backend)
        session_close(victim);
    *victim = (struct read_session){.backend = backend, .access = access_ref(access), .used = ++r->clock};
    *ret = victim;
    return 0;
}

void fill_remote_close(struct fill_thread *t)
{
    for (unsigned k = 0; t->remote && k < SESSIONS_MAX; k++) {
        if (t->remote->sessions[k].backend)
            session_close(&t->remote->sessions[k]);
    }
    free(TAKE_PTR(t->remote));
}

bool fill_remote_open(const struct fill_thread *t)
{
    return t->remote != NULL;
}

/* --- reads ------------------------------------------------------------------------------------------------------------------- */

static void load_read_done(struct fill_remote *r, struct fill_load *load, int rc, const char *why);

static void read_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct slot *slot = container_of(read, struct slot, read);
    struct fill_remote *r = slot->remote;
    const char *why = rc == 0 ? "" : err ? err->message : strerror(-rc);
    backend_close(TAKE_PTR(slot->file));
    r->free[r->nfree++] = (unsigned)(slot - r->slots);
    r->nbusy--;
    if (slot->load) {
        load_read_done(r, slot->load, rc, why);
        return;
    }
    if (rc < 0)
        fill_bad_add(r->thread, slot->begin, slot->end, rc, "%.190s", why);
    r->ended[slot->place % ORDER_MAX] = true;
    while (r->first < r->last && r->ended[r->first % ORDER_MAX])
        r->first++;
}

static int session_enter(struct fill_remote *r, struct wset *ws, struct leat_error *err)
{
    int rc = session_get(r, ws->access, &r->session, err);
    if (rc == 0)
        fill_remote_waits(r->thread, r->session->backend);
    return rc;
}

static void session_leave(struct fill_remote *r)
{
    fill_remote_waits(r->thread, NULL);
    r->session = NULL;
}

/* Waits until a read has ended, or less; returns how many did. Negative: cancelled, and no read touches its
 * destination from then on. */
static int session_wait(struct fill_remote *r, const struct wset *ws, struct fill_counters *counters)
{
    struct read_session *s = r->session;
    int n = fill_remote_cancelled(r->thread, ws) ? -ECANCELED : backend_wait(s->backend, 1, -1);
    count(counters, s);
    if (n < 0) {
        session_leave(r);
        session_close(s);
        assert(r->nbusy == 0);
    }
    return n;
}

/* Waits until there are at most `busy` reads, and at most `behind` since the first that has not ended. False:
 * cancelled, and none is left. */
static bool wait_for(struct fill_remote *r, struct wset *ws, unsigned busy, uint64_t behind, uint64_t walked,
                     struct fill_counters *counters)
{
    struct fill_thread *t = r->thread;
    while (r->nbusy > busy || r->last - r->first > behind) {
        int n = session_wait(r, ws, counters);
        if (n < 0) {
            r->cancelled = true;
            return false;
        }
        /* Below that everything is there, or bad; small local files in between are only being read ahead. */
        if (t->arrived && n > 0 && t->nahead == 0)
            t->arrived(t->arrived_user, r->first < r->last ? r->begins[r->first % ORDER_MAX] : walked);
    }
    return true;
}

/* [begin, end) of extent e to dst, by a slot that is free. load NULL: of the range that is being read. */
static int read_begin(struct fill_remote *r, const struct index *index, const struct index_extent *e,
                      uint64_t begin, uint64_t end, uint8_t *dst, struct fill_load *load,
                      struct fill_counters *counters, struct leat_error *err)
{
    char uri[PATH_BYTES];
    struct backend_file *file;
    const struct index_source *source = &index->sources[e->source];
    int len = index_source_path(index, e->source, uri, sizeof(uri));
    if (len < 0 || (size_t)len >= sizeof(uri))
        return error_set(err, -ENAMETOOLONG, "its address is too long");
    if (e->kind != INDEX_EXTENT_RAW)
        return error_set(err, LEAT_UNSUPPORTED,
                         "%.150s: only files with their samples as stored can be read from a remote", uri);
    int rc =
        backend_open(r->session->backend, uri, index_string(index, source->etag), source->bytes, &file, err);
    if (rc < 0)
        return rc;
    backend_expect_modified(file, source->mtime_ns / (int64_t)NS_PER_S);
    struct slot *slot = &r->slots[r->free[--r->nfree]];
    *slot = (struct slot){.read = {.file = file,
                                   .offset = e->source_offset + (begin - e->address),
                                   .bytes = end - begin,
                                   .shared = load && end - begin < source->bytes,
                                   .dst = dst,
                                   .done = read_done},
                          .remote = r,
                          .file = file,
                          .load = load,
                          .begin = begin,
                          .end = end,
                          .place = r->last};
    if (load) {
        load->inside++;
    } else {
        r->begins[r->last % ORDER_MAX] = begin;
        r->ended[r->last++ % ORDER_MAX] = false;
    }
    r->nbusy++;
    atomic_fetch_add_explicit(&counters->files_opened, 1, memory_order_relaxed);
    backend_submit(r->session->backend, &slot->read);
    return 0;
}

void fill_remote_add(struct fill_thread *t, struct wset *ws, const struct index_extent *e, uint64_t begin,
                     uint64_t end, uint8_t *dst, struct fill_counters *counters)
{
    struct fill_remote *r = remote_get(t);
    struct leat_error err = {0};
    int rc = r ? 0 : -ENOMEM;
    if (rc == 0 && r->cancelled)
        rc = error_set(&err, -ECANCELED, DROPPED);
    if (rc == 0 && !r->session)
        rc = session_enter(r, ws, &err);
    if (rc == 0 && !wait_for(r, ws, READS_MAX - 1, ORDER_MAX - 1, begin, counters))
        rc = error_set(&err, -ECANCELED, DROPPED);
    if (rc == 0)
        rc = read_begin(r, &ws->index, e, begin, end, dst, NULL, counters, &err);
    if (rc < 0)
        fill_bad_add(t, begin, end, rc, "%.190s", err.message[0] ? err.message : strerror(-rc));
}

uint64_t fill_remote_first_byte_ns(const struct fill_thread *t, const struct wset *ws)
{
    for (unsigned k = 0; t->remote && k < SESSIONS_MAX; k++) {
        if (t->remote->sessions[k].backend && t->remote->sessions[k].access == ws->access)
            return t->remote->sessions[k].told.first_byte_ns;
    }
    return 0;
}

bool fill_remote_busy(const struct fill_thread *t)
{
    return t->remote && t->remote->nbusy > 0;
}

void fill_remote_finish(struct fill_thread *t, struct wset *ws, uint64_t end, struct fill_counters *counters)
{
    struct fill_remote *r = t->remote;
    if (!r)
        return;
    if (r->session)
        wait_for(r, ws, 0, 0, end, counters);
    session_leave(r);
    r->cancelled = false;
}

/* --- loads ------------------------------------------------------------------------------------------------------------------- */

/* The first failure counts; no more of the load is requested. */
static void load_spoil(struct fill_load *load, int rc, const char *why)
{
    if (load->status == 0) {
        load->status = rc;
        load->message = strdup(why);
    }
}

/* One of its reads, or the request loop, is over. The last returns it to the caller. */
static void load_less(struct fill_remote *r, struct fill_load *load)
{
    if (--load->inside > 0)
        return;
    r->loading_bytes -= load->bytes;
    char *message = TAKE_PTR(load->message);
    load->done(load, load->status, message ? message : strerror(-load->status));
    free(message);
}

static void load_read_done(struct fill_remote *r, struct fill_load *load, int rc, const char *why)
{
    if (rc < 0)
        load_spoil(load, rc, why);
    load_less(r, load);
}

/* Asks for as much of it as there are slots for. True: that was all. */
static bool load_ask(struct fill_remote *r, struct fill_load *load, struct fill_counters *counters)
{
    const struct index *index = &load->ws->index;
    const uint64_t load_end = load->address + load->bytes;
    for (uint64_t k = index_extent_at(index, load->next); k < index->header->nextents; k++) {
        const struct index_extent extent = index->extents[k], *e = &extent;
        if (load->status < 0)
            break;
        if (!index_extent_sound(index, e)) {
            load_spoil(load, LEAT_CORRUPT, INDEX_DAMAGED);
            dataset_index_forget(load->ws->spec);
            break;
        }
        if (e->address >= load_end)
            break;
        if (r->nfree == 0)
            return false;
        uint64_t begin = MAX(e->address, load->next), end = MIN(e->address + e->bytes, load_end);
        if (begin >= end)
            continue;
        uint8_t *dst = load->dst + (begin - load->address);
        struct leat_error err = {0};
        int rc = 0;
        if (e->kind == INDEX_EXTENT_ZERO)
            memset(dst, 0, end - begin);
        else
            rc = read_begin(r, index, e, begin, end, dst, load, counters, &err);
        load->next = end;
        if (rc < 0)
            load_spoil(load, rc, err.message[0] ? err.message : strerror(-rc));
    }
    load_less(r, load);
    return true;
}

static bool load_begin(struct fill_remote *r, struct fill_load *load)
{
    if (!fill_load_backed(load))
        return false;
    load->next = load->address;
    load->inside = 1; /* the request loop */
    load->status = 0;
    load->message = NULL;
    r->loading_bytes += load->bytes;
    return true;
}

static struct fill_load *load_next(struct fill_remote *r, const struct wset *ws)
{
    struct fill_load *load;
    do {
        load = r->nfree ? fill_load_join(r->thread, ws, r->loading_bytes) : NULL;
    } while (load && !load_begin(r, load));
    return load;
}

void fill_remote_loads(struct fill_thread *t, struct wset *ws, struct fill_load *load,
                       struct fill_counters *counters)
{
    struct fill_remote *r = remote_get(t);
    struct leat_error err = {0};
    int rc = r ? session_enter(r, ws, &err) : -ENOMEM;
    if (rc < 0) {
        load->done(load, rc, err.message[0] ? err.message : strerror(-rc));
        return;
    }
    if (!load_begin(r, load))
        load = load_next(r, ws);
    while (load || r->nbusy) {
        if (load && load_ask(r, load, counters))
            load = NULL;
        if (!load && (load = load_next(r, ws)))
            continue;
        if (r->nbusy && session_wait(r, ws, counters) < 0) {
            if (load) {
                load_spoil(load, -ECANCELED, DROPPED);
                load_less(r, load);
            }
            return;
        }
    }
    session_leave(r);
}
