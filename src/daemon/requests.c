/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of clients, one function a message. A request is answered once: at once, or by a `pending` that
 * waits for samples, staging or leases. A client is charged for everything that it gets (handles, pendings,
 * fetches: CLIENT_*_MAX), and loses it with its connection. Bodies are hostile: each is parsed whole before
 * anything is done; a bad one closes the connection.
 */
#include "base/array.h"
#include "daemon/server_internal.h"

#include "base/clock.h"
#include "leat/leat.h"
#include "pool/source/access.h"
#include "pool/pool_internal.h"
#include "pool/region/region.h"
#include "pool/fill/stream_window.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <inttypes.h>

#define URGENT_MAX        4096u /* samples of one WAIT that go first */
#define URGENT_AHEAD      256u  /* the same, of other nodes: from the first that is not there */
#define FETCH_SAMPLES_MAX (1u << 20)
#define FETCH_RUNS_MAX    (1u << 18) /* of one answer: 7 MiB of it */

static void reply(struct client *c, uint16_t type, uint64_t id, const struct bytes_out *body, const int *fds,
                  unsigned nfds)
{
    conn_send(c->session.conn, PROTO_REPLY, type, id, 0, body, fds, nfds);
}

int requests_reply(struct client *c, const struct conn_message *m, const struct bytes_out *body,
                   const int *fds, unsigned nfds)
{
    reply(c, m->frame.type, m->frame.id, body, fds, nfds);
    return 0;
}

/* --- handles ----------------------------------------------------------------------------------------------------- */

struct wset *client_handle(struct client *c, uint64_t id, struct leat_error *err)
{
    for (unsigned k = 0; k < c->nhandles; k++) {
        if (c->handles[k].id == id)
            return c->handles[k].ws;
    }
    error_set(err, LEAT_STALE, "this working set is not open (any more)");
    return NULL;
}

static int handle_add(struct client *c, struct wset *ws, uint64_t *ret_id, struct leat_error *err)
{
    if (c->nhandles == CLIENT_HANDLES_MAX)
        return error_set(err, LEAT_BUSY, "this process has %u working sets open: close some", c->nhandles);
    if (array_reserve(&c->handles, &c->handles_cap, c->nhandles + 1) < 0)
        return error_set(err, -ENOMEM, "out of memory");
    *ret_id = c->next_id++;
    c->handles[c->nhandles++] = (struct handle){*ret_id, ws};
    pool_lease(ws);
    return 0;
}

static void drops_advance(struct server *s, struct wset *ws);

static void handle_close(struct client *c, unsigned k)
{
    struct wset *ws = wset_ref(c->handles[k].ws);
    loaders_forget(c, c->handles[k].id);
    c->handles[k] = c->handles[--c->nhandles];
    pool_unlease(ws);
    drops_advance(c->server, ws);
    wset_unref(ws);
}

/* --- pendings ---------------------------------------------------------------------------------------------------- */

static void fetch_free(struct fetch *f)
{
    for (uint32_t k = 0; k < f->n; k++)
        stream_window_put(f->entries[k]);
    list_remove(&f->node);
    free(f->entries);
    quota_give(&f->ws->pool->shares, f->uid, QUOTA_RANGES, f->cap);
    wset_unref(f->ws); /* whose window the entries are in */
    free(f);
}

/* A lease that was granted goes back. */
static void fetch_end(struct client *c, struct fetch *f)
{
    c->nfetches--;
    fetch_free(f);
}

static void pending_free(struct pending *p)
{
    list_remove(&p->client_node);
    list_remove(&p->set_node);
    loop_timer_clear(&p->timer);
    struct server_times *times = &p->client->server->times;
    if (p->kind != PENDING_DROP)
        histogram_add(p->kind == PENDING_WAIT ? &times->wait : &times->fetch, clock_now_ns() - p->began_ns);
    if (p->fetch)
        fetch_free(p->fetch);
    p->client->npendings--;
    quota_give(&p->ws->pool->shares, p->client->uid, QUOTA_WAITING, p->n);
    free(p->samples);
    wset_unref(p->ws);
    free(p);
}

struct pending *pending_new(struct client *c, const struct proto_frame *f, struct wset *ws,
                            enum pending_kind kind, struct leat_error *err)
{
    struct pending *p = c->npendings < CLIENT_PENDINGS_MAX ? calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        if (c->npendings < CLIENT_PENDINGS_MAX)
            error_set(err, -ENOMEM, "out of memory");
        else
            error_set(err, LEAT_BUSY, "%u requests of this process are waiting already", c->npendings);
        return NULL;
    }
    c->npendings++;
    *p = (struct pending){.client = c,
                          .ws = wset_ref(ws),
                          .kind = kind,
                          .type = f->type,
                          .id = f->id,
                          .began_ns = clock_now_ns()};
    list_init(&p->set_node);
    list_push_back(&c->pendings, &p->client_node);
    list_push_back(&ws->waiters, &p->set_node);
    return p;
}

void pending_refuse(struct pending *p, const struct leat_error *err)
{
    conn_send_error(p->client->session.conn, p->type, p->id, err);
    pending_free(p);
}

static int revoked_error(struct wset *ws, struct leat_error *err)
{
    return error_set(err, LEAT_STALE, "working set %s was dropped by force",
                     ws->name[0] ? ws->name : ws->spec);
}

/* For samples that are not there yet. A set that was dropped at another node loads no more, here or there:
 * the wait would never end. */
static bool wait_goes_on(struct pending *p)
{
    struct leat_error err;
    struct wset *ws = p->ws;
    if (!wset_has_ended(ws))
        return true;
    error_set(&err, LEAT_STALE, "working set %s was dropped before it was whole: open it again",
              ws->name[0] ? ws->name : ws->spec);
    pending_refuse(p, &err);
    return false;
}

/* Answers when every sample is there, or one failed. */
static bool wait_advance(struct pending *p)
{
    struct leat_error err;
    struct wset *ws = p->ws;
    if (wset_is_revoked(ws)) {
        revoked_error(ws, &err);
        pending_refuse(p, &err);
        return true;
    }
    if (p->n == 0) {
        if (!wset_complete(ws))
            return !wait_goes_on(p);
        if (atomic_load(&ws->live->failed_samples) > 0) {
            wset_failure_any(ws, &err);
            pending_refuse(p, &err);
            return true;
        }
    }
    for (; p->at < p->n; p->at++) {
        enum live_state state = wset_sample_state(ws, p->samples[p->at]);
        if (state == LIVE_FAILED) {
            wset_failure_get(ws, p->samples[p->at], &err);
            pending_refuse(p, &err);
            return true;
        }
        if (state == LIVE_ABSENT || state == LIVE_LOADING) {
            if (wset_parts_of(ws, p->samples[p->at]) > 0)
                return !wait_goes_on(p);
            wset_settle_empty(ws);
        }
    }
    reply(p->client, p->type, p->id, NULL, NULL, 0);
    pending_free(p);
    return true;
}

/* What other nodes load: as much of it as there is room for, and more when samples have arrived. False: there is no more room. */
static bool wait_urge(struct pending *p)
{
    const struct pool *pool = p->ws->pool;
    if (!pool->nodes || !p->ws->nnodes)
        return false;
    for (p->urged = MAX(p->urged, p->at); p->urged < p->n && p->urged - p->at < URGENT_AHEAD; p->urged++) {
        if (!pool->nodes->urge(pool->cluster, p->ws, p->samples[p->urged]))
            return false;
    }
    return true;
}

static bool fetch_advance(struct pending *p)
{
    struct fetch *f = p->fetch;
    uint32_t nruns = 0;
    for (uint32_t k = 0; k < f->n; k++) {
        struct stream_window_entry *e = f->entries[k];
        if (e->state == STREAM_WINDOW_FAILED) {
            struct leat_error err;
            error_set(&err, e->code, "samples %" PRIu64 " to %" PRIu64 ": %s", e->first,
                      e->first + e->count - 1, e->message ? e->message : "out of memory while loading");
            pending_refuse(p, &err);
            return true;
        }
        if (e->state == STREAM_WINDOW_LOADING)
            return false;
        nruns += e->nruns;
    }
    struct proto_fetched m = {.lease = f->id, .runs = calloc(nruns ? nruns : 1, sizeof(*m.runs))};
    for (uint32_t k = 0; m.runs && k < f->n; k++) {
        for (uint32_t r = 0; r < f->entries[k]->nruns; r++)
            m.runs[m.nruns++] = f->entries[k]->runs[r];
    }
    AUTO_BYTES struct bytes_out body = {0};
    body.failed = !m.runs;
    proto_fetched_put(&body, &m);
    proto_fetched_fini(&m);
    p->fetch = NULL;
    list_push_back(&p->client->fetches, &f->node);
    p->client->nfetches++;
    reply(p->client, p->type, p->id, &body, NULL, 0);
    pending_free(p);
    return true;
}

bool pending_drop_advance(struct pending *p)
{
    if (p->ws->leases > 0)
        return false;
    pool_drop(p->client->server->pool, p->ws, POOL_DROP);
    reply(p->client, p->type, p->id, NULL, NULL, 0);
    pending_free(p);
    return true;
}

void requests_advance(struct wset *ws)
{
    bool room = true; /* for samples that other nodes load */
    wset_ref(ws);
    list_for_each_safe (node, &ws->waiters) {
        struct pending *p = container_of(node, struct pending, set_node);
        if (p->kind == PENDING_FETCH)
            fetch_advance(p);
        else if (p->kind == PENDING_WAIT && !wait_advance(p))
            room = room && wait_urge(p);
    }
    /* Another one is the first next time: of those that are too many for the room that there is, each gets some. */
    struct pending *first = list_first(&ws->waiters, struct pending, set_node);
    if (first && ws->nnodes) {
        list_remove(&first->set_node);
        list_push_back(&ws->waiters, &first->set_node);
    }
    wset_unref(ws);
}

static void drops_advance(struct server *s, struct wset *ws)
{
    list_for_each_safe (node, &ws->waiters) {
        struct pending *p = container_of(node, struct pending, set_node);
        if (p->kind == PENDING_DROP)
            pending_drop_advance(p);
    }
}

void requests_client_gone(struct client *c)
{
    pool_open_forget(c->server->pool, c);
    scans_client_gone(c);
    list_for_each_safe (node, &c->pendings)
        pending_free(container_of(node, struct pending, client_node));
    list_for_each_safe (node, &c->fetches)
        fetch_end(c, container_of(node, struct fetch, node));
    while (c->nhandles > 0)
        handle_close(c, c->nhandles - 1);
}

void requests_revoked(struct server *s, struct wset *ws)
{
    list_for_each_safe (node, &s->clients) {
        struct client *c = container_of(node, struct client, node);
        for (unsigned k = 0; k < c->nhandles; k++) {
            if (c->handles[k].ws != ws)
                continue;
            AUTO_BYTES struct bytes_out body = {0};
            proto_revoked_put(&body,
                              &(struct proto_revoked){.ws = c->handles[k].id,
                                                      .generation = atomic_load(&ws->live->generation)});
            conn_send(c->session.conn, PROTO_EVENT, PROTO_REVOKED, 0, 0, &body, NULL, 0);
        }
    }
    requests_advance(ws);
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

static void send_ws(struct client *c, uint16_t type, uint64_t id, struct wset *ws)
{
    struct leat_error err;
    struct proto_ws m = {0};
    AUTO_BYTES struct bytes_out body = {0};
    if (handle_add(c, ws, &m.ws, &err) < 0) {
        conn_send_error(c->session.conn, type, id, &err);
        return;
    }
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    m.generation = atomic_load(&ws->live->generation);
    m.version = ws->version;
    m.flags = ws->flags;
    m.mode = ws->mode;
    m.owner_uid = ws->owner_uid;
    m.owner_gid = ws->owner_gid;
    m.region_bytes = ws->region_bytes;
    m.pinned_end = ws->pinned_end;
    m.index_bytes = ws->index.blob_bytes;
    m.live_bytes = ws->live->total_bytes;
    m.name = ws->name;
    m.uri = ws->spec;
    m.nnodes = ws->nnodes ? ws->nnodes : 1;
    m.nodes = calloc(m.nnodes, sizeof(*m.nodes));
    for (uint32_t n = 0; m.nodes && n < ws->nnodes; n++) {
        m.nodes[n].id = n;
        if (n != ws->self_node)
            m.nodes[n] = ws->nodes[n];
    }
    m.nregions = ws->nregions;
    m.regions = calloc(ws->nregions ? ws->nregions : 1, sizeof(*m.regions));
    for (uint32_t g = 0; m.regions && g < ws->nregions; g++)
        m.regions[g] = (struct proto_region){
            .gid = g, .node = wset_region_node(ws, g), .page_bytes = 0, .generation = m.generation};
    if (m.regions && m.nodes)
        proto_ws_put(&body, &m);
    else
        body.failed = true;
    free(m.regions);
    free(m.nodes);
    reply(c, type, id, &body, (int[]){ws->index_fd, ws->live_fd_ro}, 2);
}

static void opened(struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    struct client *c = r->user;
    c->nopening--;
    histogram_add(&c->server->times.open, clock_now_ns() - r->began_ns);
    if (ws)
        send_ws(c, r->type, r->id, ws);
    else
        conn_send_error(c->session.conn, r->type, r->id, err);
}

void requests_progress(struct client *c, uint64_t id, const struct proto_progress *m)
{
    AUTO_BYTES struct bytes_out body = {0};
    proto_progress_put(&body, m);
    conn_send(c->session.conn, PROTO_EVENT, PROTO_PROGRESS, id, 0, &body, NULL, 0);
}

static void open_progress(struct open_request *r, uint64_t samples, uint64_t bytes)
{
    requests_progress(
        r->user, r->id,
        &(struct proto_progress){.stage = LEAT_STAGE_INDEX, .samples_done = samples, .bytes_done = bytes});
}

static int on_open(struct client *c, struct conn_message *m, struct leat_error *err)
{
    AUTO_MESSAGE(open) o;
    if (proto_open_get(m->body, m->frame.body_bytes, &o) < 0)
        return LEAT_CORRUPT;
    if (c->nopening == CLIENT_OPENING_MAX)
        return error_set(err, LEAT_BUSY, "this process is opening %u working sets already", c->nopening);
    struct open_request *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    *r = (struct open_request){.uid = c->uid,
                               .gid = c->gid,
                               .groups = source_groups_ref(c->groups),
                               .flags = o.flags,
                               .pool_bytes = o.pool_bytes,
                               .name = TAKE_PTR(o.name),
                               .uri = TAKE_PTR(o.uri),
                               .append = m->frame.type == PROTO_APPEND,
                               .type = m->frame.type,
                               .id = m->frame.id,
                               .began_ns = clock_now_ns(),
                               .opened = opened,
                               .progress = open_progress,
                               .user = c};
    int rc = o.has_access ? access_new(&o.access, !c->server->pool->config.opener.system, &r->access) : 0;
    explicit_bzero((void *)(uintptr_t)m->body, m->frame.body_bytes); /* it may hold keys */
    if (rc < 0) {
        source_groups_unref(r->groups);
        free(r->name);
        free(r->uri);
        free(r);
        return rc;
    }
    c->nopening++;
    pool_open(c->server->pool, r);
    return 0;
}

static void created(struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    struct client *c = r->user;
    c->nopening--;
    if (ws)
        reply(c, r->type, r->id, NULL, NULL, 0);
    else
        conn_send_error(c->session.conn, r->type, r->id, err);
}

static int on_create(struct client *c, struct conn_message *m, struct leat_error *err)
{
    AUTO_MESSAGE(create) asked;
    if (proto_create_get(m->body, m->frame.body_bytes, &asked) < 0 || m->frame.nfds != 1)
        return LEAT_CORRUPT;
    /* A memfd that can no longer change, or what is validated is not what is used. */
    int seals = fcntl(m->fds[0], F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK))
        return error_set(err, LEAT_INVALID, "the index must be a memfd sealed against writing and shrinking");
    if (c->nopening == CLIENT_OPENING_MAX)
        return error_set(err, LEAT_BUSY, "this process is opening %u working sets already", c->nopening);
    struct open_request *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    *r = (struct open_request){.uid = c->uid,
                               .gid = c->gid,
                               .groups = source_groups_ref(c->groups),
                               .flags = asked.flags,
                               .name = TAKE_PTR(asked.name),
                               .type = m->frame.type,
                               .id = m->frame.id,
                               .opened = created,
                               .user = c};
    c->nopening++;
    pool_create(c->server->pool, r, TAKE_FD(m->fds[0]));
    return 0;
}

/* With its last handle on ws gone, a client's pending requests would keep its memory from others. */
static void pendings_end(struct client *c, const struct wset *ws)
{
    struct leat_error err;
    for (unsigned k = 0; k < c->nhandles; k++)
        if (c->handles[k].ws == ws)
            return;
    error_set(&err, -ECANCELED, "the working set was closed while a request for it waited: open it again");
    list_for_each_safe (node, &c->pendings) {
        struct pending *p = container_of(node, struct pending, client_node);
        if (p->ws == ws && p->kind != PENDING_DROP)
            pending_refuse(p, &err);
    }
}

static int on_close(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_id handle;
    if (proto_id_get(m->body, m->frame.body_bytes, &handle) < 0)
        return LEAT_CORRUPT;
    for (unsigned k = 0; k < c->nhandles; k++) {
        if (c->handles[k].id == handle.id) {
            struct wset *ws = wset_ref(c->handles[k].ws);
            handle_close(c, k);
            pendings_end(c, ws);
            wset_unref(ws);
            break;
        }
    }
    return requests_reply(c, m, NULL, NULL, 0);
}

static int on_regions(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_regions asked;
    if (proto_regions_get(m->body, m->frame.body_bytes, &asked) < 0 || asked.count > PROTO_FDS_MAX)
        return LEAT_CORRUPT;
    struct wset *ws = client_handle(c, asked.ws, err);
    if (!ws)
        return LEAT_STALE;
    struct proto_gid gids[PROTO_FDS_MAX];
    uint32_t n = 0;
    int fds[PROTO_FDS_MAX];
    if (asked.first == PROTO_STREAM_WINDOW && ws->window) {
        gids[n].gid = asked.first;
        fds[n++] = stream_window_region(ws->window)->fd_ro;
    }
    for (uint64_t g = asked.first; g < (uint64_t)asked.first + asked.count && g < ws->nregions; g++) {
        if (ws->regions[g].region) {
            gids[n].gid = (uint32_t)g;
            fds[n++] = ws->regions[g].region->fd_ro;
        }
    }
    AUTO_BYTES struct bytes_out body = {0};
    proto_regions_reply_put(&body, &(struct proto_regions_reply){n});
    for (uint32_t k = 0; k < n; k++)
        proto_gid_put(&body, &gids[k]);
    return requests_reply(c, m, &body, fds, n);
}

/* --- samples ----------------------------------------------------------------------------------------------------- */

static int on_wait(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_wait asked;
    if (proto_wait_next(&in, &asked) < 0)
        return LEAT_CORRUPT;
    const uint32_t n = asked.n;
    struct wset *ws = client_handle(c, asked.ws, err);
    if (!ws)
        return LEAT_STALE;
    struct pending *p = pending_new(c, &m->frame, ws, PENDING_WAIT, err);
    if (!p)
        return err->code;
    uint64_t has = 0;
    if (quota_take(&ws->pool->shares, c->uid, QUOTA_WAITING, n, USER_WAITING_MAX, &has) < 0) {
        pending_free(p);
        return error_set(err, LEAT_BUSY,
                         "%u more samples to wait for, where user %u waits for %" PRIu64
                         " already and %u are allowed: wait for fewer at a time",
                         n, c->uid, has, USER_WAITING_MAX);
    }
    p->n = n;
    p->samples = n ? malloc(n * sizeof(*p->samples)) : NULL;
    if (n && !p->samples) {
        pending_free(p);
        return error_set(err, -ENOMEM, "out of memory");
    }
    for (uint32_t k = 0; k < n; k++) {
        struct proto_id sample;
        proto_id_next(&in, &sample);
        p->samples[k] = sample.id;
        if (sample.id >= ws->index.header->nsamples) {
            pending_free(p);
            return error_set(err, LEAT_INVALID, "sample %" PRIu64 " of a set of %" PRIu64, sample.id,
                             ws->index.header->nsamples);
        }
    }
    if (wait_advance(p))
        return 0;
    /* The first ones: a reader of a whole set cannot have all of it first. */
    for (uint32_t k = p->at; k < n && k - p->at < URGENT_MAX; k++)
        fill_urgent(c->server->pool->fill, ws, p->samples[k]);
    wait_urge(p);
    return 0;
}

/* The next range of a FETCH or PREFETCH; none of it is empty or beyond the set. */
static int next_span(const struct wset *ws, struct bytes_in *in, struct proto_span *ret,
                     struct leat_error *err)
{
    uint64_t end;
    proto_span_next(in, ret);
    if (ret->count == 0 || add_overflows(ret->first, ret->count, &end) || end > ws->index.header->nsamples)
        return error_set(err, LEAT_INVALID, "samples %" PRIu64 " + %" PRIu64 " of a set of %" PRIu64,
                         ret->first, ret->count, ws->index.header->nsamples);
    return 0;
}

static int fetch_begin(struct client *c, struct wset *ws, struct fetch *f, struct bytes_in *in, uint32_t n,
                       struct leat_error *err)
{
    struct stream_window *st;
    int rc = pool_stream_window(c->server->pool, ws, &st, err);
    for (uint32_t k = 0; rc == 0 && k < n; k++) {
        struct proto_span span;
        rc = next_span(ws, in, &span, err);
        if (rc < 0)
            return rc;
        const uint64_t last = span.first + span.count - 1;
        rc = stream_window_get(st, span.first, span.count, &f->entries[k]);
        if (rc == 0)
            f->n++;
        else if (rc == -EAGAIN || rc == LEAT_NO_SPACE)
            rc = error_set(err, rc == -EAGAIN ? LEAT_BUSY : LEAT_NO_SPACE,
                           "the window of %" PRIu64 " bytes has no room for samples %" PRIu64 " to %" PRIu64
                           " (%" PRIu64 " bytes are held by readers): raise the set's share of the pool",
                           stream_window_bytes(st), span.first, last, stream_window_held_bytes(st));
        else
            error_set(err, rc, "out of memory");
    }
    return rc;
}

/* Neighbours become one run, as far as a region goes. */
static int resident_runs(const struct wset *ws, uint64_t address, uint64_t bytes, struct proto_fetched *m,
                         uint32_t *cap)
{
    while (bytes > 0) {
        uint64_t offset = address % ws->region_bytes, n = MIN(bytes, ws->region_bytes - offset);
        struct proto_run *last = m->nruns ? &m->runs[m->nruns - 1] : NULL;
        if (last && last->address + last->bytes == address && offset > 0) {
            last->bytes += n;
        } else {
            if (m->nruns == FETCH_RUNS_MAX)
                return LEAT_NO_SPACE;
            if (array_reserve(&m->runs, cap, m->nruns + 1) < 0)
                return -ENOMEM;
            m->runs[m->nruns++] = (struct proto_run){.address = address,
                                                     .bytes = n,
                                                     .gid = (uint32_t)(address / ws->region_bytes),
                                                     .offset = offset};
        }
        address += n;
        bytes -= n;
    }
    return 0;
}

/* Samples of a set that is in the pool whole: their places there; no window is made for them. */
static int fetch_resident(const struct wset *ws, struct bytes_in *in, uint32_t n, struct proto_fetched *m,
                          struct leat_error *err)
{
    uint64_t samples = 0;
    uint32_t cap = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct proto_span span;
        int rc = next_span(ws, in, &span, err);
        if (rc < 0)
            return rc;
        samples += span.count;
        if (samples > FETCH_SAMPLES_MAX)
            return error_set(err, LEAT_NO_SPACE, "a fetch has at most %u samples: ask for fewer at a time",
                             FETCH_SAMPLES_MAX);
        for (uint64_t i = span.first; i < span.first + span.count; i++) {
            enum live_state state = wset_sample_state(ws, i);
            if (state == LIVE_FAILED)
                return wset_failure_get((struct wset *)ws, i, err);
            if (state != LIVE_RESIDENT)
                return error_set(err, LEAT_BUSY, "sample %" PRIu64 " is still being loaded: wait for it", i);
            struct index_part part;
            for (unsigned f = 0; f < ws->index.header->nfields; f++) {
                if (!index_part(&ws->index, i, f, &part) || part.bytes == 0)
                    continue;
                int code = resident_runs(ws, part.address, part.bytes, m, &cap);
                if (code < 0)
                    return error_set(err, code,
                                     "a fetch has at most %u pieces: ask for fewer samples at a time",
                                     FETCH_RUNS_MAX);
            }
        }
    }
    return 0;
}

static int fetch_answer_resident(struct client *c, const struct wset *ws, const struct conn_message *asked,
                                 struct bytes_in *in, uint32_t n, struct leat_error *err)
{
    AUTO_MESSAGE(fetched) m = {.lease = c->next_id++};
    int rc = fetch_resident(ws, in, n, &m, err);
    if (rc < 0)
        return rc;
    AUTO_BYTES struct bytes_out body = {0};
    proto_fetched_put(&body, &m);
    return requests_reply(c, asked, &body, NULL, 0);
}

static int on_fetch(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_fetch asked;
    if (proto_fetch_next(&in, &asked) < 0 || asked.n == 0)
        return LEAT_CORRUPT;
    const uint32_t n = asked.n;
    struct wset *ws = client_handle(c, asked.ws, err);
    if (!ws)
        return LEAT_STALE;
    if (wset_is_revoked(ws))
        return revoked_error(ws, err);
    if (ws->flags & PROTO_WS_PUSHED)
        return error_set(
            err, LEAT_PEER_GONE,
            "the node that held them is gone, and a set that was pushed has no source to read them "
            "from again");
    if (ws->nnodes == 0 && !(ws->flags & PROTO_WS_STREAMED))
        return fetch_answer_resident(c, ws, m, &in, n, err);
    if (c->nfetches >= CLIENT_FETCHES_MAX)
        return error_set(err, LEAT_BUSY, "this process holds %u fetched ranges: release some", c->nfetches);
    struct pending *p = pending_new(c, &m->frame, ws, PENDING_FETCH, err);
    if (!p)
        return err->code;
    uint64_t has = 0;
    if (quota_take(&ws->pool->shares, c->uid, QUOTA_RANGES, n, USER_RANGES_MAX, &has) < 0) {
        pending_free(p);
        return error_set(err, LEAT_BUSY,
                         "%u more ranges to fetch, where user %u holds %" PRIu64
                         " already and %u are allowed: release some",
                         n, c->uid, has, USER_RANGES_MAX);
    }
    p->fetch = calloc(1, sizeof(*p->fetch));
    if (!p->fetch)
        quota_give(&ws->pool->shares, c->uid, QUOTA_RANGES, n);
    if (p->fetch) {
        p->fetch->cap = n;
        p->fetch->uid = c->uid;
        list_init(&p->fetch->node);
        p->fetch->ws = wset_ref(ws);
        p->fetch->id = c->next_id++;
        p->fetch->entries = calloc(n, sizeof(*p->fetch->entries));
    }
    int rc = p->fetch && p->fetch->entries ? fetch_begin(c, ws, p->fetch, &in, n, err)
                                           : error_set(err, -ENOMEM, "out of memory");
    if (rc < 0)
        pending_free(p);
    else
        fetch_advance(p);
    return rc;
}

/* A hint: what cannot be had now is simply not there ahead of time. */
static int on_prefetch(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_fetch asked;
    if (proto_fetch_next(&in, &asked) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = client_handle(c, asked.ws, NULL);
    if (!ws || !ws->window || wset_is_revoked(ws))
        return 0;
    for (uint32_t k = 0; k < asked.n; k++) {
        struct proto_span span;
        struct stream_window_entry *entry;
        if (next_span(ws, &in, &span, NULL) < 0 ||
            stream_window_get(ws->window, span.first, span.count, &entry) < 0)
            break;
        stream_window_put(entry);
    }
    return 0;
}

static int on_release(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_id lease;
    if (proto_id_get(m->body, m->frame.body_bytes, &lease) < 0)
        return LEAT_CORRUPT;
    list_for_each (node, &c->fetches) {
        struct fetch *f = container_of(node, struct fetch, node);
        if (f->id == lease.id) {
            fetch_end(c, f);
            break;
        }
    }
    return 0;
}

static int on_cancel(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_id request;
    if (proto_id_get(m->body, m->frame.body_bytes, &request) < 0)
        return LEAT_CORRUPT;
    scans_cancel(c, request.id);
    list_for_each_safe (node, &c->pendings) {
        struct pending *p = container_of(node, struct pending, client_node);
        if (p->id == request.id) {
            error_set(err, -ECANCELED, "cancelled");
            pending_refuse(p, err);
        }
    }
    return 0;
}

int requests_dispatch(struct client *c, struct conn_message *m)
{
    static const struct {
        uint16_t type;
        int (*handle)(struct client *, struct conn_message *, struct leat_error *);
    } table[] = {
        {PROTO_OPEN, on_open},
        {PROTO_APPEND, on_open},
        {PROTO_CREATE, on_create},
        {PROTO_CLOSE, on_close},
        {PROTO_REGIONS, on_regions},
        {PROTO_WAIT, on_wait},
        {PROTO_FETCH, on_fetch},
        {PROTO_RELEASE, on_release},
        {PROTO_CANCEL, on_cancel},
        {PROTO_PREFETCH, on_prefetch},
        {PROTO_BROKER, requests_broker},
        {PROTO_QUERY, requests_query},
        {PROTO_DROP, requests_drop},
        {PROTO_STOP, requests_stop},
        {PROTO_VERIFY, requests_verify},
        {PROTO_CREDITS, requests_credits},
        {PROTO_REPORT, loaders_report_request},
        {PROTO_SCAN, requests_scan},
        {PROTO_SCAN_NEXT, requests_scan_next},
        {PROTO_SCAN_END, requests_scan_end},
    };
    if (m->frame.payload_bytes > 0)
        return LEAT_CORRUPT;
    struct leat_error err = {0};
    unsigned k = 0;
    while (k < ARRAY_LEN(table) && table[k].type != m->frame.type)
        k++;
    int rc =
        k < ARRAY_LEN(table)
            ? table[k].handle(c, m, &err)
            : error_set(&err, LEAT_UNSUPPORTED,
                        "this daemon does not know request %u: is it older than the client?", m->frame.type);
    if (rc == 0 || err.code == 0)
        return rc;
    conn_send_error(c->session.conn, m->frame.type, m->frame.id, &err);
    return 0;
}
