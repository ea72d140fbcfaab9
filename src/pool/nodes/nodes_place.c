/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One set on several nodes, all of them or none.
 *
 *   NODE to all: what is free ─▶ map of regions ─▶ prepare here ─▶ INSTALL on the hosts, which prepare it ─▶ all have: commit here,
 *   COMMIT to every node, and each that hears of it tells all others, so that it reaches those whom we did not live to tell
 *
 * Failure modes: a node refuses its share, or goes: who prepared it is told to FORGET, and nothing was ever seen of it. We go in
 * the middle: nodes keep what they prepared for SET_ORPHAN_NS, in which a COMMIT of another may reach them, and then drop it.
 * Invariant: no node fills, and none says READY, before every host has the set listed.
 */
#include "pool/nodes/nodes_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "leat/leat.h"
#include "cluster/placement.h"
#include "cluster/placing.h"
#include "pool/pool_internal.h"

#include <stdio.h>

struct placing {
    struct cluster *cluster;
    struct wset *ws; /* a reference */
    uint64_t limit;
    pool_prepared_fn done;
    void *user;
    struct placing_state state;
    struct leat_error err;
    struct placing_node {
        uint64_t free_bytes;
        bool accepted;
    } nodes[]; /* one for each member */
};

struct placing_call {
    struct placing *placing;
    unsigned node;
};

/* --- COMMIT ------------------------------------------------------------------------------------------------------------ */

/* To all, hosts or not: one that has the version before as a reader must not find it by its name any more. */
static void tell_commit(struct cluster *c, const struct proto_commit *m)
{
    struct bytes_out body = {0};
    proto_commit_put(&body, m);
    for (unsigned n = 0; n < c->config.nnodes; n++)
        cluster_send(c, n, PROTO_COMMIT, &body);
    bytes_out_fini(&body);
}

void nodes_send_commit(struct cluster *c, const struct wset *ws, unsigned n)
{
    struct proto_commit m = {0}; /* a node that has prepared it knows which version is before it */
    if (wset_is_uncommitted(ws) || !cluster_hosts(ws, n))
        return;
    struct bytes_out body = {0};
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    proto_commit_put(&body, &m);
    cluster_send(c, n, PROTO_COMMIT, &body);
    bytes_out_fini(&body);
}

void nodes_commit(struct cluster *c, struct wset *ws)
{
    struct proto_commit m = {0};
    if (!wset_is_committable(ws))
        return;
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    if (ws->replaces)
        memcpy(m.replaces, ws->replaces->uuid, PROTO_UUID);
    pool_commit(c->pool, ws);
    tell_commit(c, &m);
}

int nodes_on_commit(struct cluster *c, const void *body, size_t len)
{
    struct proto_commit m;
    if (proto_commit_get(body, len, &m) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = pool_find_uuid(c->pool, m.uuid), *before = pool_find_uuid(c->pool, m.replaces);
    if (ws && wset_is_committable(ws)) {
        nodes_commit(c, ws);
        nodes_set_taken(c, ws, SET_ON_COMMITTED);
    } else if (!ws && before)
        pool_supersede(c->pool, before);
    return 0;
}

void nodes_drop_orphans(struct cluster *c)
{
    list_for_each_safe (node, &c->pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (!wset_is_uncommitted(ws) || !set_nodes_orphaned(&ws->peers, clock_now_ns()))
            continue;
        log_info("the node that was to complete %s went away: it is dropped",
                 ws->name[0] ? ws->name : ws->spec);
        pool_drop(c->pool, ws, POOL_SWEEP);
    }
}

/* --- placing ------------------------------------------------------------------------------------------------------------- */

/* Every host has it, and is still there. */
static int hosts_check(struct placing *p)
{
    struct cluster *c = p->cluster;
    struct wset *ws = p->ws, *old = ws->replaces;
    if (atomic_load(&c->pool->stopping))
        return error_set(&p->err, -ECANCELED, "the daemon is ending");
    if (wset_has_ended(ws) || (old && wset_has_ended(old)))
        return error_set(&p->err, LEAT_STALE, "'%s' was dropped in the meantime", ws->name);
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (n != c->self && cluster_hosts(ws, n) && (!cluster_is_up(c, n) || ws->peers.at[n].lost))
            return error_set(&p->err, LEAT_PEER_GONE, "node %s went away", c->config.nodes[n]);
    }
    return 0;
}

static void placing_end(struct placing *p, enum placing_action action)
{
    struct cluster *c = p->cluster;
    struct wset *ws = p->ws;
    if (action == PLACING_COMMIT)
        p->err.code = hosts_check(p);
    if (p->err.code == 0) {
        nodes_commit(c, ws);
    } else {
        for (unsigned n = 0; n < c->config.nnodes; n++) {
            if (p->nodes[n].accepted)
                nodes_send_forget(c, ws, n, true, true);
        }
        if (wset_is_uncommitted(ws))
            pool_drop(c->pool, ws, POOL_SWEEP);
    }
    p->done(p->user, p->err.code < 0 ? &p->err : NULL);
    wset_unref(ws);
    free(p);
}

static void placing_answer(struct placing *p);

static void installed(void *user, struct peer_reply *reply)
{
    struct placing_call *call = user;
    struct placing *p = call->placing;
    if (reply->status == 0)
        p->nodes[call->node].accepted = true;
    else if (p->err.code == 0)
        error_set(&p->err, reply->status, "node %s: %.180s", p->cluster->config.nodes[call->node],
                  reply->message);
    free(call);
    placing_answer(p);
}

struct install_call {
    struct wset *ws; /* a reference, for the blob on its way */
    peer_reply_fn answer;
    void *user;
    unsigned refs; /* the answer, and the blob */
};

static void install_call_unref(struct install_call *call)
{
    if (--call->refs > 0)
        return;
    wset_unref(call->ws);
    free(call);
}

static void install_answered(void *user, struct peer_reply *reply)
{
    struct install_call *call = user;
    call->answer(call->user, reply);
    install_call_unref(call);
}

/* It may be sent after the answer: from a node that refuses early. */
static void blob_sent(void *user, int status)
{
    install_call_unref(user);
}

static void put_install(const struct wset *ws, uint32_t flags, struct bytes_out *body)
{
    struct proto_install m = {.flags = flags};
    if (ws->replaces) {
        m.first_new_address = ws->first_new_address;
        memcpy(m.replaces, ws->replaces->uuid, PROTO_UUID);
    }
    nodes_describe(ws, body);
    proto_install_put(body, &m);
}

int nodes_install(struct cluster *c, struct wset *ws, unsigned n, uint32_t flags, peer_reply_fn answer,
                  void *user)
{
    struct install_call *call = malloc(sizeof(*call));
    if (!call)
        return -ENOMEM;
    *call = (struct install_call){wset_ref(ws), answer, user, 2};
    if (ws->remote)
        nodes_send_access(c, n, ws->owner_uid, ws->spec, ws->access);
    if (ws->replaces) /* it compares where their common regions are */
        nodes_send_places(c, ws->replaces, n);
    struct bytes_out body = {0};
    put_install(ws, flags, &body);
    int rc = body.failed ? -ENOMEM
                         : peer_call(c->links[n].peer, PROTO_INSTALL, &body, ws->index.blob,
                                     ws->index.blob_bytes, blob_sent, install_answered, call);
    bytes_out_fini(&body);
    if (rc < 0) {
        wset_unref(call->ws);
        free(call);
    }
    return rc;
}

static int install_on(struct placing *p, unsigned n)
{
    struct placing_call *call = malloc(sizeof(*call));
    if (!call)
        return -ENOMEM;
    *call = (struct placing_call){p, n};
    int rc = nodes_install(p->cluster, p->ws, n, INSTALL_PREPARE, installed, call);
    if (rc < 0)
        free(call);
    else
        placing_sent(&p->state);
    return rc;
}

static void install_on_hosts(struct placing *p)
{
    for (unsigned n = 0; p->err.code == 0 && n < p->cluster->config.nnodes; n++) {
        int rc = n != p->cluster->self && cluster_hosts(p->ws, n) ? install_on(p, n) : 0;
        if (rc < 0)
            error_set(&p->err, rc == -ENOTCONN ? LEAT_PEER_GONE : rc, "node %s went away",
                      p->cluster->config.nodes[n]);
    }
    placing_answer(p);
}

static void prepared_here(void *user, const struct leat_error *err)
{
    struct placing *p = user;
    if (err)
        p->err = *err;
    placing_answer(p);
}

/* Takes a window and its tables out of what a node has free: a quarter, as on a host by itself. False: it does not fit. */
static bool take_window(const struct wset *ws, uint64_t *free_bytes, uint64_t *ret_window,
                        uint64_t *ret_taken)
{
    uint64_t least = 4 * (ws->index.header->max_sample_bytes + 8 * KIB);
    *ret_window = align_up(MAX(*free_bytes / 4, least), ws->region_bytes);
    *ret_taken = align_up(*ret_window + pool_window_tables(ws, *ret_window), ws->region_bytes);
    if (*ret_taken > *free_bytes)
        return false;
    *free_bytes -= *ret_taken;
    return true;
}

/* What does not fit is streamed by each reader's daemon, through a window of its own; pushed and appended samples have to fit. */
static int leave_window(struct placing *p, uint64_t need, uint64_t total)
{
    struct wset *ws = p->ws;
    const unsigned self = p->cluster->self, nnodes = p->cluster->config.nnodes;
    uint64_t taken, other, left = 0;
    if ((ws->flags & PROTO_WS_PUSHED) || ws->replaces ||
        !take_window(ws, &p->nodes[self].free_bytes, &ws->window_bytes, &taken)) {
        ws->window_bytes = 0;
        char needs[32], has[32];
        size_format(need, needs);
        size_format(total, has);
        return error_set(&p->err, LEAT_NO_SPACE, "%s %s and all nodes together have %s free",
                         ws->replaces ? "the new samples need" : "the set needs", needs, has);
    }
    for (unsigned n = 0; n < nnodes; n++) {
        uint64_t window;
        if (n != self && !take_window(ws, &p->nodes[n].free_bytes, &window, &other))
            p->nodes[n].free_bytes = 0; /* whoever reads there has at least that little to read through */
        left += align_down(p->nodes[n].free_bytes, ws->region_bytes);
    }
    ws->pinned_end = MIN(left, total > taken ? total - taken : 0);
    ws->flags |= PROTO_WS_STREAMED;
    return 0;
}

/* Everybody has said what is free: the map is made. Regions of the version before stay where they are. */
static int map_regions(struct placing *p)
{
    struct cluster *c = p->cluster;
    struct wset *ws = p->ws;
    uint64_t region = ws->region_bytes, total = 0, first = ws->first_new_address / region;
    uint64_t need = align_up(ws->index.header->address_end, 4096) - ws->first_new_address;
    AUTO_FREE struct placement_node *nodes = calloc(c->config.nnodes, sizeof(*nodes));
    p->nodes[c->self].free_bytes = pool_free_bytes(c->pool);
    uint64_t tables = wset_table_bytes(&ws->index, true, &c->pool->set_config);
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        /* Beside regions: the tables, which we have already, and scratch for one thread at least. */
        uint64_t least = (n == c->self ? 0 : tables) + ws->scratch_each;
        p->nodes[n].free_bytes -= MIN(p->nodes[n].free_bytes, least);
        total += align_down(p->nodes[n].free_bytes, region);
    }
    total = MIN(total, p->limit);
    int rc = need > total ? leave_window(p, need, total) : 0;
    if (rc < 0)
        return rc;
    for (unsigned n = 0; nodes && n < c->config.nnodes; n++)
        nodes[n] = (struct placement_node){p->nodes[n].free_bytes, p->nodes[n].free_bytes / region};
    ws->nregions = (uint32_t)(first + div_up(MIN(need, ws->pinned_end), region));
    ws->regions = calloc(MAX(ws->nregions, 1u), sizeof(*ws->regions));
    AUTO_FREE uint32_t *map = calloc(MAX(ws->nregions, 1u), sizeof(*map));
    rc = nodes && ws->regions && map
             ? placement_map(nodes, c->config.nnodes, ws->nregions - (uint32_t)first, map)
             : -ENOMEM;
    if (rc == 0)
        rc = cluster_name_nodes(c, ws);
    for (uint32_t g = 0; rc == 0 && g < ws->nregions; g++)
        wset_region_put(ws, g, g < first ? wset_region_node(ws->replaces, g) : map[g - first]);
    if (rc < 0)
        ws->nregions = ws->regions ? ws->nregions : 0;
    return rc < 0 ? error_set(&p->err, rc, "cannot place its regions: %s", strerror(-rc)) : 0;
}

int cluster_name_nodes(struct cluster *c, struct wset *ws)
{
    ws->nodes = calloc(c->config.nnodes, sizeof(*ws->nodes));
    if (!ws->nodes || set_nodes_init(&ws->peers, c->config.nnodes) < 0)
        return -ENOMEM;
    ws->nnodes = c->config.nnodes;
    ws->self_node = c->self;
    for (unsigned n = 0; n < ws->nnodes; n++) {
        ws->nodes[n].id = n;
        snprintf(ws->nodes[n].address, sizeof(ws->nodes[n].address), "%s", c->config.nodes[n]);
    }
    return wset_places_make(ws);
}

static void map_and_prepare(struct placing *p)
{
    struct pool *pool = p->cluster->pool;
    int rc = atomic_load(&pool->stopping) ? error_set(&p->err, -ECANCELED, "the daemon is ending")
                                          : map_regions(p);
    if (rc < 0)
        wset_unref(p->ws); /* the first reference, which nobody has taken yet */
    else if ((rc = pool_prepare(pool, p->ws, 0, prepared_here, p)) < 0)
        error_set(&p->err, rc, "out of memory");
    if (rc < 0)
        placing_answer(p);
}

/* p may be gone afterwards. */
static void placing_answer(struct placing *p)
{
    enum placing_action action = placing_answered(&p->state, p->err.code == 0);
    if (action == PLACING_PREPARE)
        map_and_prepare(p);
    else if (action == PLACING_INSTALL)
        install_on_hosts(p);
    else if (action != PLACING_WAIT)
        placing_end(p, action);
}

static void offered(void *user, struct peer_reply *reply)
{
    struct placing_call *call = user;
    struct placing *p = call->placing;
    if (reply->status == 0) {
        struct bytes_in in = bytes_in_of(reply->body, reply->body_bytes);
        AUTO_MESSAGE(node_reply) m;
        p->nodes[call->node].free_bytes = proto_node_reply_next(&in, &m) < 0 ? 0 : m.free_bytes;
    }
    free(call);
    placing_answer(p);
}

int nodes_place(struct cluster *c, struct wset *ws, uint64_t limit, pool_prepared_fn done, void *user)
{
    struct placing *p = calloc(1, sizeof(*p) + c->config.nnodes * sizeof(p->nodes[0]));
    if (!p) {
        wset_unref(ws);
        return -ENOMEM;
    }
    *p = (struct placing){.cluster = c,
                          .ws = wset_ref(ws),
                          .limit = limit ? limit : UINT64_MAX,
                          .done = done,
                          .user = user,
                          .state = placing_begin()};
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        struct placing_call *call = cluster_is_up(c, n) ? malloc(sizeof(*call)) : NULL;
        if (!call)
            continue;
        *call = (struct placing_call){.placing = p, .node = n};
        if (nodes_ask(c, n, offered, call) < 0)
            free(call);
        else
            placing_sent(&p->state);
    }
    placing_answer(p);
    return 0;
}
