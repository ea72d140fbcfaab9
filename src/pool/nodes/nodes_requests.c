/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other nodes ask of us, on connections that they made: our free memory (NODE), to hold regions of a set (INSTALL, in
 * nodes_install.c), to say what a set is (DESCRIBE), to append to one of ours (APPEND), what we have of it (RESYNC), to take note of what they filled (READY) and to let go (FORGET). They have
 * proved the token; what they send is checked all the same.
 */
#include "pool/nodes/nodes_internal.h"

#include "base/clock.h"

#include "base/crc32c.h"
#include "cluster/catchup.h"
#include "base/log.h"
#include "leat/leat.h"
#include "rpc/conn.h"
#include "pool/source/access.h"
#include "pool/region/region.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

static int on_node(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    AUTO_MESSAGE(node_ask) who;
    if (proto_node_ask_get(m->body, m->frame.body_bytes, &who) < 0)
        return LEAT_CORRUPT;
    session->incarnation = who.says ? who.incarnation : 0;
    session->node = membership_find(c->members, who.name); /* MEMBER_NONE is RPC_NODE_UNKNOWN */
    struct bytes_out body = {0};
    proto_node_reply_put(&body,
                         &(struct proto_node_reply){.name = c->config.self,
                                                    .cap_bytes = c->pool->budget.cap_bytes,
                                                    .free_bytes = pool_free_bytes(c->pool),
                                                    .region_bytes = c->pool->config.region_bytes,
                                                    .used_bytes = atomic_load(&c->pool->budget.used_bytes),
                                                    .incarnation = c->incarnation});
    conn_send(session->conn, PROTO_REPLY, m->frame.type, m->frame.id, 0, &body, NULL, 0);
    bytes_out_fini(&body);
    return 0;
}

void nodes_describe(const struct wset *ws, struct bytes_out *out)
{
    struct proto_ws m = {.generation = atomic_load(&ws->live->generation),
                         .version = ws->version,
                         .flags = ws->flags,
                         .mode = ws->mode,
                         .owner_uid = ws->owner_uid,
                         .owner_gid = ws->owner_gid,
                         .region_bytes = ws->region_bytes,
                         .pinned_end = ws->pinned_end,
                         .index_bytes = ws->index.blob_bytes,
                         .live_bytes = ws->live->total_bytes,
                         .name = ws->name,
                         .uri = ws->spec,
                         .nnodes = ws->nnodes,
                         .nodes = ws->nodes,
                         .nregions = ws->nregions};
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    m.regions = calloc(ws->nregions ? ws->nregions : 1, sizeof(*m.regions));
    for (uint32_t g = 0; m.regions && g < ws->nregions; g++)
        m.regions[g] =
            (struct proto_region){.gid = g, .node = wset_region_node(ws, g), .generation = m.generation};
    if (m.regions)
        proto_ws_put(out, &m);
    else
        out->failed = true;
    free(m.regions);
}

/* --- DESCRIBE ------------------------------------------------------------------------------------------------------------- */

static void describe_sent(void *user, int status)
{
    wset_unref(user);
}

static void describe_opened(struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    struct rpc_session *session = r->user;
    struct leat_error other;
    if (ws && ws->nnodes == 0) {
        error_set(&other, LEAT_UNSUPPORTED, "the set lives on one node alone: open it there");
        err = &other;
    }
    if (err) {
        conn_send_error(session->conn, r->type, r->id, err);
        return;
    }
    struct bytes_out body = {0};
    nodes_describe(ws, &body);
    nodes_holder(ws, session);
    conn_send_payload(session->conn, PROTO_REPLY, r->type, r->id, &body, ws->index.blob, ws->index.blob_bytes,
                      describe_sent, wset_ref(ws));
    bytes_out_fini(&body);
}

/* DESCRIBE and APPEND: on behalf of a client of another node. */
static int on_describe(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_describe d;
    struct proto_open o;
    struct access *access = NULL;
    int rc = proto_describe_next(&in, &d);
    if (rc < 0 || (rc = proto_open_get(d.open, d.open_bytes, &o)) < 0)
        return rc;
    if (bytes_left(&in) > 0)
        rc = nodes_unseal_access(c, session, m->body, in.pos, m->body + in.pos, bytes_left(&in), &access);
    struct open_request *r = rc == 0 ? calloc(1, sizeof(*r)) : NULL;
    if (r)
        *r = (struct open_request){.flags = o.flags,
                                   .uid = d.uid,
                                   .gid = d.gid,
                                   .pool_bytes = o.pool_bytes,
                                   .name = TAKE_PTR(o.name),
                                   .uri = TAKE_PTR(o.uri),
                                   .access = TAKE_PTR(access),
                                   .local = true,
                                   .append = m->frame.type == PROTO_APPEND,
                                   .type = m->frame.type,
                                   .id = m->frame.id,
                                   .opened = describe_opened,
                                   .user = session};
    proto_open_fini(&o);
    access_unref(access);
    if (!r)
        return rc < 0 ? rc : -ENOMEM;
    pool_open(c->pool, r);
    return 0;
}

/* --- what is where ----------------------------------------------------------------------------------------------------------- */

#define TELL_BYTES   (MIB / PROTO_READY_RECORD * PROTO_READY_RECORD) /* of records, before the next are sent */
#define TELL_SAMPLES 4096u                                           /* of a pushed set at a time */

/* All of a large set at once, or a little of each of many, would be more than a connection may have queued. */
struct catchup_job {
    struct list node; /* link->catchup_queue; the first is under way */
    struct node_link *link;
    struct wset *ws;      /* a reference */
    struct catchup state; /* at: segment, or sample of a pushed set */
    struct bytes_out records;
    size_t sent; /* of them */
};

static void tell_part(void *user, uint64_t i, unsigned f, const struct index_part *part, uint64_t offset,
                      uint64_t bytes)
{
    struct catchup_job *t = user;
    struct wset *ws = t->ws;
    if (wset_sample_state(ws, i) == LIVE_FAILED) {
        proto_ready_record_put(
            &t->records, &(struct proto_ready_record){i, f, 0, offset, bytes, wset_failure_get(ws, i, NULL)});
        return;
    }
    /* A whole part's CRC is on record; a piece of one is computed again. */
    uint32_t crc = 0;
    if (bytes == part->bytes && wset_part_known(ws, i, f)) {
        crc = ws->crc[i * ws->index.header->nfields + f];
    } else {
        for (uint64_t at = 0; at < bytes;) {
            uint64_t address = part->address + offset + at;
            uint64_t n = MIN(bytes - at, ws->region_bytes - address % ws->region_bytes);
            const uint8_t *data = wset_address(ws, address, n);
            if (!data)
                return;
            crc = crc32c(crc, data, n);
            at += n;
        }
    }
    proto_ready_record_put(&t->records, &(struct proto_ready_record){i, f, crc, offset, bytes, 0});
}

/* Also of samples that are not whole yet: the rest is told by whoever holds it. */
static void tell_piece(void *user, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes, uint32_t crc)
{
    proto_ready_record_put(&((struct catchup_job *)user)->records,
                           &(struct proto_ready_record){i, f, crc, offset, bytes, 0});
}

static void job_pushed(struct catchup_job *t)
{
    struct wset *ws = t->ws;
    struct index_part part;
    uint64_t end = MIN(t->state.at + TELL_SAMPLES, ws->index.header->nsamples);
    for (; t->state.at < end; t->state.at++) {
        for (unsigned f = 0; f < ws->index.header->nfields; f++) {
            if (index_part(&ws->index, t->state.at, f, &part) && part.bytes > 0)
                wset_pieces(ws, t->state.at, f, tell_piece, t);
        }
    }
}

/* Steps through the version before, which was complete; then our segments. */
static uint64_t old_step(const struct wset *ws)
{
    return MIN(ws->region_bytes, wset_segment_bytes(&ws->index));
}

static uint64_t filled_units(const struct wset *ws)
{
    return ws->first_new_address / old_step(ws) + ws->nsegments;
}

static void job_filled(struct catchup_job *t)
{
    struct wset *ws = t->ws;
    uint64_t step = old_step(ws), unit = t->state.at++, old = ws->first_new_address / step;
    uint64_t begin = unit * step, end;
    if (unit < old) {
        if (ws->regions[begin / ws->region_bytes].region)
            wset_parts_in(ws, begin, begin + step, tell_part, t);
    } else if (fill_segment_done(t->link->cluster->pool->fill, ws, (uint32_t)(unit - old), &begin, &end)) {
        wset_parts_in(ws, begin, end, tell_part, t);
    }
}

/* The next records. False: that was all. */
static bool job_make(struct catchup_job *t)
{
    const bool pushed = t->ws->flags & PROTO_WS_PUSHED;
    const uint64_t end = pushed ? t->ws->index.header->nsamples : filled_units(t->ws);
    bytes_out_reset(&t->records);
    t->sent = 0;
    while (t->state.at < end && t->records.len < TELL_BYTES && !t->records.failed) {
        if (pushed)
            job_pushed(t);
        else
            job_filled(t);
    }
    if (t->records.failed)
        log_error("out of memory: a node is not notified of what was loaded of %s", t->ws->spec);
    return t->records.len && !t->records.failed;
}

static void job_free(struct catchup_job *t)
{
    list_remove(&t->node);
    bytes_out_fini(&t->records);
    wset_unref(t->ws);
    free(t);
}

static void job_sent(void *user, int status);

/* The next portion, of the first catchup that has one. */
static void tell_on(struct node_link *link)
{
    struct catchup_job *t;
    while ((t = list_first(&link->catchup_queue, struct catchup_job, node))) {
        enum catchup_action action = catchup_next(&t->state, wset_has_ended(t->ws));
        while (action == CATCHUP_MAKE)
            action = catchup_made(&t->state, t->sent < t->records.len || job_make(t));
        if (action == CATCHUP_SEND) {
            const uint8_t *from = t->records.data + t->sent;
            size_t bytes = MIN(TELL_BYTES, t->records.len - t->sent);
            t->sent += bytes;
            nodes_send_records(link->cluster, t->ws, (unsigned)(link - link->cluster->links), from, bytes,
                               job_sent, t); /* which may be the end of it */
        }
        if (action != CATCHUP_DONE)
            return;
        job_free(t);
    }
}

static void job_sent(void *user, int status)
{
    struct catchup_job *t = user;
    struct node_link *link = t->link;
    if (catchup_sent(&t->state, status == 0)) {
        tell_on(link);
        return;
    }
    /* The connection is going: when there is another one all is told again. */
    list_for_each_safe (node, &link->catchup_queue)
        job_free(container_of(node, struct catchup_job, node));
}

void nodes_catch_up(struct cluster *c, struct wset *ws, unsigned n)
{
    struct node_link *link = &c->links[n];
    if (!cluster_is_up(c, n))
        return;
    nodes_send_places(c, ws, n);
    list_for_each (node, &link->catchup_queue) {
        struct catchup_job *t = container_of(node, struct catchup_job, node);
        if (t->ws == ws) {
            catchup_request(&t->state);
            return;
        }
    }
    struct catchup_job *t = calloc(1, sizeof(*t));
    if (!t) {
        log_error("out of memory: a node is not notified of what was loaded of %s", ws->spec);
        return;
    }
    *t = (struct catchup_job){.link = link, .ws = wset_ref(ws)};
    list_init(&t->node);
    list_push_back(&link->catchup_queue, &t->node);
    tell_on(link);
}

static int on_resync(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct proto_set_flags asked;
    if (proto_set_flags_get(m->body, m->frame.body_bytes, &asked) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = pool_find_uuid(c->pool, asked.uuid);
    bool known = ws && session->node < c->config.nnodes, here = known;
    for (uint32_t g = 0; here && g < ws->nregions; g++)
        here = wset_region_node(ws, g) != c->self || ws->regions[g].region;
    if (!here) {
        struct leat_error err;
        error_set(&err, LEAT_NOT_FOUND,
                  known ? "this node restarted and does not hold its regions of the set"
                        : "the set is not here (any more)");
        conn_send_error(session->conn, m->frame.type, m->frame.id, &err);
        return 0;
    }
    if (asked.flags & RESYNC_HOLD)
        nodes_holder(ws, session);
    if (asked.flags & RESYNC_TELL)
        nodes_catch_up(c, ws, session->node);
    struct bytes_out body = {0};
    proto_resync_reply_put(&body, &(struct proto_resync_reply){atomic_load(&ws->pending_bytes) == 0});
    conn_send(session->conn, PROTO_REPLY, m->frame.type, m->frame.id, 0, &body, NULL, 0);
    bytes_out_fini(&body);
    return 0;
}

static int on_moved(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_moved moved;
    if (conn_version(session->conn) < 3 || proto_moved_next(&in, &moved) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = pool_find_uuid(c->pool, moved.uuid);
    for (uint32_t k = 0; ws && k < moved.n; k++) {
        struct proto_place at;
        proto_place_next(&in, &at);
        nodes_place_take(c, ws, at.gid, at.node, at.generation);
    }
    return 0;
}

static int on_ready(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_ready ready;
    if (proto_ready_next(&in, &ready) < 0)
        return LEAT_CORRUPT;
    /* Version 3 names it in NODE, before anything else: without it records of a past life would be believed. */
    if (session->incarnation == 0 && conn_version(session->conn) >= 3) {
        log_warning("a node sent READY before NODE with its incarnation: its connection is closed");
        return LEAT_CORRUPT;
    }
    if (!membership_is_current(c->members, session->node, session->incarnation)) {
        log_debug("READY records of another life of node %" PRIu32 " are dropped", session->node);
        return 0;
    }
    struct wset *ws = pool_find_uuid(c->pool, ready.uuid);
    for (uint32_t k = 0; ws && k < ready.n; k++) {
        struct proto_ready_record r;
        proto_ready_record_next(&in, &r);
        if (r.status < 0 && r.sample < ws->index.header->nsamples)
            wset_failure(ws, r.sample, r.status, "another node could not load it (see the log there)");
        wset_piece(ws, r.sample, r.field, r.offset, r.bytes, r.crc, r.status);
    }
    if (ws)
        wset_progressed(ws);
    return 0;
}

void nodes_holder(struct wset *ws, const struct rpc_session *session)
{
    NODES_SET_EVENT(ws->pool->cluster, ws, session->node, .type = SET_ON_HOLD, .conn = session->serial);
}

static int on_commit(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    return nodes_on_commit(c, m->body, m->frame.body_bytes);
}

static int on_forget(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct proto_set_flags said;
    if (proto_set_flags_get(m->body, m->frame.body_bytes, &said) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = pool_find_uuid(c->pool, said.uuid);
    if (ws && (said.flags & 1))
        pool_drop(c->pool, ws, said.flags & 2 ? POOL_DROP_FORCE : POOL_SWEEP);
    else if (ws)
        NODES_SET_EVENT(c, ws, session->node, .type = SET_ON_FORGET);
    return 0;
}

/* A node with several addresses comes back by another one, if it lives. One that has a single address is as good as dead. */
void nodes_session_closed(struct cluster *c, struct rpc_session *session)
{
    pool_open_forget(c->pool, session);
    nodes_detach_installs(c, session);
    unsigned n = session->node;
    if (n >= c->config.nnodes)
        return;
    bool others = net_addresses_count(c->config.nodes[n]) > 1;
    if (others)
        nodes_link_event(c, n, LINK_ON_INBOUND_LOST);
    list_for_each_safe (node, &c->pool->sets)
        NODES_SET_EVENT(c, container_of(node, struct wset, node), n, .type = SET_ON_INBOUND_LOST,
                        .conn = session->serial, .may_return = others);
}

int cluster_message(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    static const struct {
        uint16_t type;
        uint8_t kind;
        int (*handle)(struct cluster *, struct rpc_session *, struct conn_message *);
    } table[] = {
        {PROTO_NODE, PROTO_REQUEST, on_node},         {PROTO_INSTALL, PROTO_REQUEST, nodes_on_install},
        {PROTO_APPEND, PROTO_REQUEST, on_describe},   {PROTO_COMMIT, PROTO_EVENT, on_commit},
        {PROTO_DESCRIBE, PROTO_REQUEST, on_describe}, {PROTO_RESYNC, PROTO_REQUEST, on_resync},
        {PROTO_READY, PROTO_EVENT, on_ready},         {PROTO_FORGET, PROTO_EVENT, on_forget},
        {PROTO_ACCESS, PROTO_EVENT, nodes_on_access}, {PROTO_MOVED, PROTO_EVENT, on_moved},
        {PROTO_URGENT, PROTO_EVENT, nodes_on_urgent},
    };
    for (unsigned k = 0; k < ARRAY_LEN(table); k++) {
        if (table[k].type == m->frame.type && table[k].kind == m->frame.kind)
            return m->frame.payload_bytes && m->frame.type != PROTO_INSTALL ? LEAT_CORRUPT
                                                                            : table[k].handle(c, session, m);
    }
    return LEAT_CORRUPT;
}
