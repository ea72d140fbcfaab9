/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links, placement and the life of sets that span nodes; what other nodes ask of us is in nodes_requests.c.
 *
 * Failure modes. A node that cannot be reached is left out of placement, and another one coordinates. One that refuses its share
 * ends the placement: those that accepted are told to forget. One that dies takes its regions along: wset_node_lost.
 */
#include "pool/nodes/nodes_internal.h"
#include "pool/pool_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "leat/leat.h"
#include "pool/source/access.h"
#include "cluster/catchup.h"
#include "pool/region/region.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>

#define READY_QUEUED (8 * MIB) /* for one node, of what is told as it is made */

static unsigned link_number(const struct node_link *link)
{
    return (unsigned)(link - link->cluster->links);
}

bool cluster_is_up(const struct cluster *c, unsigned n)
{
    const struct node_link *link = &c->links[n];
    return link->state.state == LINK_UP && peer_state(link->peer) == PEER_UP;
}

void cluster_send(struct cluster *c, unsigned n, uint16_t type, const struct bytes_out *body)
{
    if (cluster_is_up(c, n))
        peer_event(c->links[n].peer, type, body);
}

struct reinstall {
    struct cluster *cluster;
    struct wset *ws; /* a reference */
    unsigned node;
};

static void reinstalled(void *user, struct peer_reply *reply)
{
    struct reinstall *r = user;
    if (reply->status == 0)
        log_info("node %s fills its regions of %s again", r->cluster->config.nodes[r->node], r->ws->spec);
    else if (reply->status != LEAT_PEER_GONE)
        log_info("node %s does not fill its regions of %s again: %s", r->cluster->config.nodes[r->node],
                 r->ws->spec, reply->message);
    /* It was dropped here since: FORGET came before the host had it. */
    if (reply->status == 0 && wset_has_ended(r->ws))
        nodes_send_forget(r->cluster, r->ws, r->node, false, false);
    wset_unref(r->ws);
    free(r);
}

/* Node n was started anew: it is asked for its regions of ws as when the set was placed. Of several who ask the first is heard. */
static void reinstall(struct cluster *c, struct wset *ws, unsigned n)
{
    struct reinstall *r = malloc(sizeof(*r));
    if (!r)
        return;
    *r = (struct reinstall){c, wset_ref(ws), n};
    if (nodes_install(c, ws, n, 0, reinstalled, r) < 0) {
        wset_unref(ws);
        free(r);
    }
}

static void resync_answer(void *user, struct peer_reply *reply)
{
    struct resync *r = user;
    struct wset *ws = pool_find_uuid(r->cluster->pool, r->uuid);
    struct proto_resync_reply m = {0};
    if (reply->status == 0)
        proto_resync_reply_get(reply->body, reply->body_bytes, &m);
    enum set_event_type type = reply->status == LEAT_PEER_GONE   ? SET_ON_SILENT
                               : reply->status == LEAT_NOT_FOUND ? SET_ON_LACKING
                               : reply->status < 0               ? SET_ON_REFUSED
                               : m.filled == 1                   ? SET_ON_COMPLETE
                                                                 : SET_ON_FILLING;
    if (ws)
        NODES_SET_EVENT(r->cluster, ws, r->node, .type = type);
    free(r);
}

/* RESYNC and FORGET. */
static void put_flags(const struct wset *ws, uint32_t flags, struct bytes_out *body)
{
    struct proto_set_flags m = {.flags = flags};
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    proto_set_flags_put(body, &m);
}

void nodes_resync(struct cluster *c, struct wset *ws, unsigned n, uint32_t flags)
{
    struct resync *r = n < ws->peers.n && cluster_is_up(c, n) ? malloc(sizeof(*r)) : NULL;
    if (!r)
        return;
    *r = (struct resync){.cluster = c, .node = n};
    memcpy(r->uuid, ws->uuid, PROTO_UUID);
    struct bytes_out body = {0};
    put_flags(ws, flags, &body);
    if (peer_call(c->links[n].peer, PROTO_RESYNC, &body, NULL, 0, NULL, resync_answer, r) < 0)
        free(r);
    else
        ws->peers.at[n].asked = true;
    bytes_out_fini(&body);
}

bool cluster_hosts(const struct wset *ws, unsigned n)
{
    for (uint32_t g = 0; g < ws->nregions; g++) {
        if (wset_region_node(ws, g) == n)
            return true;
    }
    return false;
}

/* A host is to keep ws: for clients of this node, or until it is placed. */
static uint32_t hold_flag(const struct wset *ws)
{
    return ws->holding || (wset_is_uncommitted(ws) && ws->peers.placer == MEMBER_NONE) ? RESYNC_HOLD : 0;
}

static void set_act(struct cluster *c, struct wset *ws, unsigned n, unsigned actions)
{
    if (actions & SET_COMMIT)
        nodes_send_commit(c, ws, n);
    if (actions & SET_CATCH_UP)
        nodes_catch_up(c, ws, n);
    if (actions & (SET_ASK_ALL | SET_ASK))
        nodes_resync(c, ws, n, hold_flag(ws) | (actions & SET_ASK_ALL ? RESYNC_TELL : 0));
    if (actions & SET_LOSE)
        wset_node_lost(ws, n);
    if (actions & SET_REGAIN)
        wset_node_back(ws, n);
    if (actions & (SET_LOSE | SET_REGAIN))
        wset_progressed(ws);
    if (actions & SET_REINSTALL)
        reinstall(c, ws, n);
    if (actions & SET_DROP)
        pool_drop(c->pool, ws, POOL_SWEEP);
}

/* One that is being prepared moves when it is: pool/prepare.c. */
static void note_orphan(struct wset *ws)
{
    enum wset_phase to = ws->peers.orphaned_ns ? WSET_ORPHANED : WSET_PREPARED;
    if (wset_is_committable(ws) && !wset_phase_in(ws, 1u << to))
        wset_move(ws, to);
}

void nodes_set_event(struct cluster *c, struct wset *ws, unsigned n, struct set_event e)
{
    if (n >= ws->peers.n)
        return;
    e.host = cluster_hosts(ws, n);
    e.up = cluster_is_up(c, n);
    e.prepared = wset_is_uncommitted(ws);
    e.in_use = ws->leases > 0 || (ws->flags & PROTO_WS_EXPLICIT);
    e.refill = !(ws->flags & PROTO_WS_PUSHED) && wset_is_findable(ws);
    unsigned actions = set_nodes_step(&ws->peers, n, &e, clock_now_ns());
    note_orphan(ws);
    set_act(c, ws, n, actions);
}

void nodes_set_taken(struct cluster *c, struct wset *ws, enum set_event_type type)
{
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (n != c->self)
            NODES_SET_EVENT(c, ws, n, .type = type);
    }
}

static void sets_event(struct cluster *c, unsigned n, enum set_event_type type)
{
    list_for_each_safe (node, &c->pool->sets)
        NODES_SET_EVENT(c, container_of(node, struct wset, node), n, .type = type);
}

static void member_changed(void *user, uint32_t n, enum member_change change)
{
    struct cluster *c = user;
    switch (change) {
    case MEMBER_UP:
        log_info("node %s is up", c->config.nodes[n]);
        access_cache_share(c->pool, n);
        sets_event(c, n, SET_ON_UP);
        nodes_urgent_up(c, n);
        break;
    case MEMBER_RESTARTED:
        log_info("node %s was restarted", c->config.nodes[n]);
        sets_event(c, n, SET_ON_LOST);
        nodes_link_event(c, n, LINK_ON_RESTARTED);
        break;
    case MEMBER_DOWN:
        sets_event(c, n, SET_ON_LOST);
    }
}

/* Its answer to NODE: what it has. */
static void link_update(struct node_link *link, const struct peer_reply *reply)
{
    struct bytes_in in = bytes_in_of(reply->body, reply->body_bytes);
    AUTO_MESSAGE(node_reply) m = {0};
    if (proto_node_reply_next(&in, &m) < 0)
        return;
    link->known = true;
    link->cap_bytes = m.cap_bytes;
    link->used_bytes = m.used_bytes;
    membership_incarnation(link->cluster->members, link_number(link), m.incarnation);
}

/*
 * Another node answers than the one that is meant. A name or an address that leads to another host leads to a daemon that has the
 * token and the same list: it would take regions that are not its own, and no node would fill them.
 */
static void link_reject(struct node_link *link, const char *name)
{
    const char *meant = link->cluster->config.nodes[link_number(link)];
    char why[320];
    snprintf(why, sizeof(why),
             "%.140s answers there: does the name or address lead to the right host, and is nodes the same "
             "on both?",
             name ? name : "no node");
    peer_reject(link->peer, LEAT_INVALID, why);
    if (peer_state(link->peer) != PEER_DOWN && !link->logged_wrong) {
        log_warning("an address of node %s is not its own: %s", meant, why);
        link->logged_wrong = true;
    }
}

static void answered(void *user, struct peer_reply *reply)
{
    struct node_link *link = user;
    struct cluster *c = link->cluster;
    unsigned n = link_number(link);
    if (reply->status < 0 || peer_state(link->peer) != PEER_UP) {
        nodes_link_event(c, n, LINK_ON_UNANSWERED);
        return;
    }
    struct bytes_in in = bytes_in_of(reply->body, reply->body_bytes);
    AUTO_MESSAGE(name) m = {0};
    bool right = proto_name_next(&in, &m) == 0 && strcmp(m.name, c->config.nodes[n]) == 0;
    if (nodes_link_event(c, n, right ? LINK_ON_IDENTIFIED : LINK_ON_OTHER) & LINK_REJECT)
        link_reject(link, m.name);
    if (right)
        link_update(link, reply);
}

int nodes_ask(struct cluster *c, unsigned n, peer_reply_fn answer, void *user)
{
    struct peer *peer = c->links[n].peer;
    AUTO_BYTES struct bytes_out body = {0};
    proto_node_ask_put(&body, &(struct proto_node_ask){.name = c->config.self,
                                                       .says = peer_version(peer) > 2,
                                                       .incarnation = c->incarnation});
    return peer_call(peer, PROTO_NODE, &body, NULL, 0, NULL, answer, user);
}

/* Who and what is there? It learns who we are, too. */
static void link_ask(struct node_link *link)
{
    if (nodes_ask(link->cluster, link_number(link), answered, link) < 0)
        nodes_link_event(link->cluster, link_number(link), LINK_ON_UNANSWERED);
}

unsigned nodes_link_event(struct cluster *c, unsigned n, enum link_event event)
{
    struct node_link *link = &c->links[n];
    unsigned actions = link_step(&link->state, event, clock_now_ns());
    if (actions & LINK_ASK)
        link_ask(link);
    if (actions & LINK_BECAME_UP) {
        link->logged_down = 0;
        peer_accept(link->peer);
        membership_up(c->members, n);
    }
    if (actions & LINK_WENT_DOWN)
        membership_down(c->members, n);
    if (actions & LINK_DISCONNECT)
        peer_fail(link->peer, LEAT_TIMED_OUT, "the node does not answer");
    if (actions & LINK_EXPIRE)
        sets_event(c, n, SET_ON_EXPIRE);
    return actions;
}

static void tick(struct loop_timer *timer)
{
    struct cluster *c = container_of(timer, struct cluster, tick);
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (n != c->self)
            nodes_link_event(c, n, LINK_ON_TICK);
    }
    /* A node that came back fills its regions again: when it is through, they are there again. */
    list_for_each (node, &c->pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        for (unsigned n = 0; ws->peers.nlost && n < ws->peers.n; n++) {
            if (ws->peers.at[n].lost)
                NODES_SET_EVENT(c, ws, n, .type = SET_ON_TICK);
        }
    }
    access_cache_tick(c->pool);
    nodes_drop_orphans(c);
    loop_timer_set(c->loop, &c->tick, clock_now_ns() + LINK_TICK_NS);
}

static void link_up(struct peer *peer)
{
    struct node_link *link = peer_user(peer);
    nodes_link_event(link->cluster, link_number(link), LINK_ON_CONNECTED);
}

static void link_down(struct peer *peer, int status, const char *message)
{
    struct node_link *link = peer_user(peer);
    struct cluster *c = link->cluster;
    unsigned n = link_number(link);
    if (link->logged_down != status) {
        log_warning("node %s cannot be reached: %s", c->config.nodes[n], message);
        link->logged_down = status;
    }
    nodes_link_event(c, n, LINK_ON_DISCONNECTED);
}

struct data_dial {
    struct list node;
    struct cluster *cluster;
    struct peer *peer;
    uint8_t uuid[PROTO_UUID];
    uint32_t to, rail;        /* of that node */
    struct loop_timer reaper; /* a peer is not freed from inside its own callback */
    cluster_dialed_fn done;
    void *user;
};

unsigned cluster_nodes(const struct cluster *c)
{
    return c->config.nnodes;
}

void cluster_node(const struct cluster *c, unsigned n, struct cluster_node_view *ret)
{
    const struct node_link *link = &c->links[n];
    bool self = n == c->self;
    *ret = (struct cluster_node_view){
        .address = c->config.nodes[n],
        .self = self,
        .connected = self || cluster_is_up(c, n),
        .known = self || link->known,
        .cap_bytes = self ? c->pool->budget.cap_bytes : link->cap_bytes,
        .used_bytes = self ? atomic_load(&c->pool->budget.used_bytes) : link->used_bytes,
    };
}

static bool all_reachable(const struct cluster *c)
{
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (n != c->self && !cluster_is_up(c, n))
            return false;
    }
    return true;
}

/* --- who fills what is told -------------------------------------------------------------------------------------- */

struct ready_post {
    struct cluster *cluster;
    struct wset *ws;
    struct bytes_out records;
};

/* One that takes records in more slowly than they are made is told by and by: its connection ends when too much waits for it. */
static void ready_on_loop(void *arg)
{
    struct ready_post *p = arg;
    struct cluster *c = p->cluster;
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (!cluster_is_up(c, n))
            continue;
        if (catchup_instead(p->records.len, peer_queued(c->links[n].peer), READY_QUEUED))
            nodes_catch_up(c, p->ws, n);
        else
            nodes_send_records(c, p->ws, n, p->records.data, p->records.len, NULL, NULL);
    }
    wset_unref(p->ws);
    bytes_out_fini(&p->records);
    free(p);
}

void nodes_send_records(struct cluster *c, struct wset *ws, unsigned n, const void *records, size_t bytes,
                        void (*done)(void *user, int status), void *user)
{
    struct bytes_out body = {0};
    struct proto_ready m = {.n = (uint32_t)(bytes / PROTO_READY_RECORD)};
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    proto_ready_put(&body, &m);
    bytes_put(&body, records, bytes);
    peer_event_done(c->links[n].peer, PROTO_READY, &body, done, user);
    bytes_out_fini(&body);
}

static void nodes_ready(struct cluster *c, struct wset *ws, struct bytes_out *records)
{
    struct ready_post *p = records->failed ? NULL : malloc(sizeof(*p));
    if (p) {
        *p = (struct ready_post){c, wset_ref(ws), *records};
        *records = (struct bytes_out){0};
        if (loop_post(c->loop, ready_on_loop, p) == 0)
            return;
        wset_unref(ws);
        bytes_out_fini(&p->records);
        free(p);
    }
    log_error("out of memory: other nodes are not notified of what was loaded of %s", ws->spec);
}

/* --- regions that move ---------------------------------------------------------------------------------- */

void nodes_send_places(struct cluster *c, const struct wset *ws, unsigned n)
{
    struct proto_moved m = {0};
    if (!cluster_is_up(c, n) || peer_version(c->links[n].peer) < 3 || !ws->live->moves)
        return;
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    AUTO_BYTES struct bytes_out body = {0}, places = {0};
    for (uint32_t g = 0; g < ws->nregions; g++) {
        uint64_t place = atomic_load(&ws->places[g]);
        if (place >> 32)
            proto_place_put(&places, &(struct proto_place){g, (uint32_t)place, (uint32_t)(place >> 32)});
        m.n += place >> 32 > 0;
    }
    proto_moved_put(&body, &m);
    bytes_put(&body, places.data, places.len);
    if (places.failed || body.failed)
        log_error("out of memory: node %s is not notified of regions of %s that moved", c->config.nodes[n],
                  ws->spec);
    else
        peer_event(c->links[n].peer, PROTO_MOVED, &body);
}

bool nodes_place_take(struct cluster *c, struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation)
{
    if (!wset_region_moves(ws, gid, node, generation))
        return false;
    bool was = cluster_hosts(ws, node);
    wset_region_move(ws, gid, node, generation);
    if (!was && node != c->self)
        NODES_SET_EVENT(c, ws, node, .type = SET_ON_TAKEN);
    return true;
}

bool nodes_region_move(struct cluster *c, struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation)
{
    if (!nodes_place_take(c, ws, gid, node, generation))
        return false;
    for (unsigned n = 0; n < c->config.nnodes; n++)
        nodes_send_places(c, ws, n);
    return true;
}

/* --- asking another node for a set ---------------------------------------------------------------------------------- */

struct describing {
    struct list node;
    struct cluster *cluster;
    struct open_request *request;
    char *spec;     /* NULL: by name */
    unsigned first; /* by name: asked before the others, or MEMBER_NONE */
    bool no_others; /* no other node is asked any more */
    bool begun;
    bool tried[]; /* one for each member */
};

static void describe_next(struct describing *d);

static void describe_end(struct describing *d, struct wset *ws, const struct leat_error *err)
{
    list_remove(&d->node);
    pool_answer(d->cluster->pool, d->request, ws, err);
    free(d->spec);
    free(d);
}

static void adopted(void *user, struct wset *ws, const struct leat_error *err)
{
    describe_end(user, ws, err);
}

static void described(void *user, struct peer_reply *reply)
{
    struct describing *d = user;
    struct leat_error err = {0};
    if (reply->status == LEAT_UNSUPPORTED && d->spec)
        d->no_others = true; /* it has a set of its own, that others cannot read there */
    /* Whether an append was made there before the node went nobody knows: it is not asked for twice. */
    bool elsewhere = reply->status == LEAT_PEER_GONE && !d->request->append;
    if (elsewhere || (reply->status == LEAT_NOT_FOUND && !d->spec) || d->no_others) {
        describe_next(d);
        return;
    }
    int rc = reply->status < 0 ? error_set(&err, reply->status, "%s", reply->message)
                               : nodes_adopt(d->cluster, reply, adopted, d, &err);
    if (rc < 0)
        describe_end(d, NULL, &err);
}

static bool may_coordinate(const void *user, uint32_t n)
{
    const struct describing *d = user;
    return !d->no_others && !d->tried[n] && (n == d->cluster->self || cluster_is_up(d->cluster, n));
}

static unsigned coordinator(const struct describing *d)
{
    return membership_coordinator(d->cluster->members, d->spec, may_coordinate, d);
}

/* With what its opener brought to read it, sealed. */
static int describe_put(struct cluster *c, unsigned n, const struct open_request *r, struct bytes_out *body)
{
    struct proto_open o = {.flags = r->flags, .pool_bytes = r->pool_bytes, .name = r->name, .uri = r->uri};
    struct bytes_out head = {0}, open = {0};
    proto_open_put(&open, &o);
    proto_describe_put(
        &head, &(struct proto_describe){
                   .uid = r->uid, .gid = r->gid, .open_bytes = (uint32_t)open.len, .open = open.data});
    bytes_put(body, head.data, head.len);
    int rc = head.failed || open.failed || body->failed ? -ENOMEM : 0;
    if (rc == 0 && access_signed(r->access))
        rc = nodes_seal_access(c, n, r->access, head.data, head.len, body);
    bytes_out_fini(&head);
    bytes_out_fini(&open);
    return rc;
}

static void describe_next(struct describing *d)
{
    struct cluster *c = d->cluster;
    struct open_request *r = d->request;
    unsigned n = d->spec ? coordinator(d) : d->begun ? MEMBER_NONE : d->first;
    for (unsigned k = 0; !d->spec && k < c->config.nnodes && n == MEMBER_NONE; k++) {
        if (k != c->self && may_coordinate(d, k))
            n = k;
    }
    if (n == c->self || (n == MEMBER_NONE && d->spec)) {
        /* This node is the coordinator: open locally. */
        list_remove(&d->node);
        r->local = true;
        free(d->spec);
        free(d);
        if (r->opened)
            pool_open(c->pool, r);
        else
            pool_answer(c->pool, r, NULL, NULL);
        return;
    }
    struct leat_error err;
    if (n == MEMBER_NONE) {
        error_set(&err, LEAT_NOT_FOUND, "no working set '%s' on any node: see `leat ls`",
                  r->append ? r->name : r->uri + strlen("leat://"));
        describe_end(d, NULL, &err);
        return;
    }
    d->tried[n] = d->begun = true;
    struct bytes_out body = {0};
    int rc = describe_put(c, n, r, &body);
    if (rc == 0)
        rc = peer_call(c->links[n].peer, r->append ? PROTO_APPEND : PROTO_DESCRIBE, &body, NULL, 0, NULL,
                       described, d);
    bytes_out_fini(&body);
    if (rc < 0)
        describe_next(d);
}

static struct describing *describing_new(struct cluster *c, struct open_request *r)
{
    struct describing *d = calloc(1, sizeof(*d) + c->config.nnodes);
    if (d) {
        d->cluster = c;
        d->request = r;
        d->first = MEMBER_NONE;
    }
    return d;
}

static void describe_begin(struct describing *d)
{
    list_push_back(&d->cluster->describing, &d->node);
    describe_next(d);
}

static bool nodes_open(struct cluster *c, struct open_request *r, const char *spec)
{
    struct describing *d = r->local ? NULL : describing_new(c, r);
    if (!d)
        return false;
    if (spec && (!(d->spec = strdup(spec)) || coordinator(d) == c->self)) {
        free(d->spec);
        free(d);
        return false;
    }
    describe_begin(d);
    return true;
}

/* Appends to one set are made by one node, so that they meet: the first of its hosts that is alive. */
static unsigned append_node(const struct cluster *c, const struct wset *ws)
{
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (cluster_hosts(ws, n) && (n == c->self || cluster_is_up(c, n)))
            return n;
    }
    return c->self;
}

static bool nodes_append(struct cluster *c, struct open_request *r)
{
    const struct wset *ws = pool_find_name(c->pool, r->name, r->uid, r->gid);
    unsigned n = ws ? append_node(c, ws) : MEMBER_NONE;
    struct describing *d = r->local || n == c->self ? NULL : describing_new(c, r);
    if (!d)
        return false;
    d->first = n;
    describe_begin(d);
    return true;
}

static void nodes_open_forget(struct cluster *c, const void *user)
{
    list_for_each (node, &c->describing) {
        struct describing *d = container_of(node, struct describing, node);
        if (d->request->user == user)
            d->request->opened = NULL;
    }
}

/* --- ending ---------------------------------------------------------------------------------------------------------- */

void nodes_send_forget(struct cluster *c, const struct wset *ws, unsigned n, bool end, bool force)
{
    struct bytes_out body = {0};
    put_flags(ws, (end ? 1u : 0) | (force ? 2u : 0), &body);
    cluster_send(c, n, PROTO_FORGET, &body);
    bytes_out_fini(&body);
}

static void nodes_forget(struct cluster *c, struct wset *ws, bool end, bool force)
{
    for (unsigned n = 0; ws->nnodes && n < c->config.nnodes; n++) {
        if (n != c->self)
            nodes_send_forget(c, ws, n, end, force);
    }
}

static void nodes_release(struct cluster *c, struct wset *ws)
{
    if (ws->nnodes == 0 || !ws->holding)
        return;
    ws->holding = false;
    nodes_forget(c, ws, false, false);
}

static void nodes_retain(struct cluster *c, struct wset *ws)
{
    if (ws->nnodes == 0 || ws->holding)
        return;
    ws->holding = true;
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (n != c->self && cluster_hosts(ws, n))
            nodes_resync(c, ws, n, RESYNC_HOLD);
    }
}

/* --- data connections for clients ------------------------------------------------------------------------------------- */

static void dial_free(struct data_dial *d)
{
    if (d->done)
        d->done(d->user, -ECANCELED, 0, "the daemon is ending");
    loop_timer_clear(&d->reaper);
    list_remove(&d->node);
    peer_free(d->peer);
    free(d);
}

static void dial_reap(struct loop_timer *timer)
{
    dial_free(container_of(timer, struct data_dial, reaper));
}

static void dial_end(struct data_dial *d, int fd, const char *message)
{
    if (d->done)
        d->done(d->user, fd, peer_version(d->peer), message);
    else if (fd >= 0)
        close(fd);
    d->done = NULL;
    d->reaper.fire = dial_reap;
    loop_timer_set(d->cluster->loop, &d->reaper, clock_now_ns());
}

/* What follows is done, but for RAIL_ASK, if that is returned. `rail`: of NET_ADDRESSES_MAX. */
static unsigned rail_event(const struct data_dial *d, unsigned rail, enum rail_event event, const char *why)
{
    const struct cluster *c = d->cluster;
    struct rail_state none = {0}, *s = rail < NET_ADDRESSES_MAX ? &c->links[d->to].rails[rail] : &none;
    unsigned actions = rail_step(&s->state, event, d->rail != CLUSTER_ANY_RAIL);
    if (event == RAIL_ON_UP || event == RAIL_ON_DOWN)
        snprintf(s->why, sizeof(s->why), "%s", s->state == CLUSTER_RAIL_DOWN ? why : "");
    char address[NET_ADDRESS_BYTES];
    if (actions & (RAIL_LOG_UP | RAIL_LOG_DOWN))
        net_addresses_at(c->config.nodes[d->to], rail, address);
    if (actions & RAIL_LOG_DOWN)
        log_warning("rail %s is down: %s", address, why);
    if (actions & RAIL_LOG_UP)
        log_info("rail %s is up", address);
    return actions;
}

enum cluster_rail_state cluster_rail(const struct cluster *c, unsigned n, unsigned k, const char **ret_why)
{
    const struct node_link *link = &c->links[n];
    *ret_why = link->rails[k].why;
    /* What answers for all of the node answers for the address that it came by. */
    if (cluster_is_up(c, n) && peer_address(link->peer) == k)
        return CLUSTER_RAIL_UP;
    return link->rails[k].state;
}

/* A rail that leads to another node of the list would be asked for regions which that one has not got. */
static bool dial_is_right(const struct data_dial *d, const char *name)
{
    uint32_t n = membership_find(d->cluster->members, name);
    return n == MEMBER_NONE || n == d->to;
}

static void dial_up(struct peer *peer)
{
    struct data_dial *d = peer_user(peer);
    if (!dial_is_right(d, peer_name(peer))) {
        char why[320];
        snprintf(why, sizeof(why), "%.140s answers there: does the address lead to the right host?",
                 peer_name(peer));
        peer_reject(peer, LEAT_PEER_GONE, why);
        return;
    }
    rail_event(d, peer_address(peer), RAIL_ON_UP, "");
    int fd = peer_release_fd(peer);
    dial_end(d, fd, fd < 0 ? strerror(-fd) : "");
}

static void dial_down(struct peer *peer, int status, const char *message)
{
    struct data_dial *d = peer_user(peer);
    enum rail_event event = status == LEAT_STALE      ? RAIL_ON_STALE
                            : cluster_refused(status) ? RAIL_ON_REFUSED
                                                      : RAIL_ON_DOWN;
    unsigned actions = rail_event(d, d->rail, event, message);
    struct wset *ws = actions & RAIL_ASK ? pool_find_uuid(d->cluster->pool, d->uuid) : NULL;
    if (ws)
        nodes_resync(d->cluster, ws, d->to, RESYNC_TELL | hold_flag(ws));
    if (d->done)
        dial_end(d, status, message);
}

static const struct peer_ops dial_ops = {.up = dial_up, .down = dial_down};

int cluster_dial(struct cluster *c, struct wset *ws, const struct cluster_dial_to *to, cluster_dialed_fn done,
                 void *user)
{
    struct data_dial *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    *d = (struct data_dial){.cluster = c, .to = to->node, .rail = to->rail, .done = done, .user = user};
    struct peer_config pc = {.address = c->config.nodes[to->node],
                             .answered = c->links[to->node].answered,
                             .rail = to->rail == CLUSTER_ANY_RAIL ? -1 : (int)to->rail,
                             .listen = c->config.self,
                             .hello = {.version_min = PROTO_VERSION_MIN,
                                       .version_max = (uint8_t)to->version_max,
                                       .role = PROTO_ROLE_DATA,
                                       .acting_uid = to->uid,
                                       .acting_gid = to->gid,
                                       .generation = atomic_load(&ws->live->generation)},
                             .token = c->config.token,
                             .token_len = c->config.token_len,
                             .ops = &dial_ops,
                             .user = d};
    memcpy(pc.hello.uuid, ws->uuid, PROTO_UUID);
    memcpy(d->uuid, ws->uuid, PROTO_UUID);
    int rc = peer_new(c->loop, &pc, &d->peer);
    if (rc < 0) {
        free(d);
        return rc;
    }
    list_push_back(&c->dials, &d->node);
    return 0;
}

/* --- start and stop ---------------------------------------------------------------------------------------------------- */

static const struct pool_nodes_ops nodes_ops = {.open = nodes_open,
                                                .append = nodes_append,
                                                .open_forget = nodes_open_forget,
                                                .place = nodes_place,
                                                .all_reachable = all_reachable,
                                                .retain = nodes_retain,
                                                .release = nodes_release,
                                                .forget = nodes_forget,
                                                .filled = nodes_ready,
                                                .urge = nodes_urge,
                                                .advanced = nodes_urgent_advanced,
                                                .share_access = nodes_share_access};
static const struct peer_ops link_ops = {.up = link_up, .down = link_down};

int cluster_new(struct loop *loop, struct pool *pool, const struct cluster_config *config,
                struct cluster **ret_cluster, struct leat_error *err)
{
    struct cluster *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, -ENOMEM, "out of memory");
    c->loop = loop;
    c->pool = pool;
    c->config = *config;
    while (c->incarnation == 0)
        if (getrandom(&c->incarnation, sizeof(c->incarnation), 0) < 0)
            c->incarnation = clock_now_ns() ^ (uint64_t)getpid() << 32;
    list_init(&c->describing);
    list_init(&c->dials);
    list_init(&c->pending_installs);
    int rc =
        membership_static_new(config->nodes, config->nnodes, config->self, c->incarnation, &c->members, err);
    if (rc == 0 && !(c->links = calloc(config->nnodes, sizeof(*c->links))))
        rc = error_set(err, -ENOMEM, "out of memory");
    if (rc < 0) {
        membership_free(c->members);
        free(c);
        return rc;
    }
    c->self = c->members->self;
    c->members->changed = member_changed;
    c->members->user = c;
    for (unsigned n = 0; n < config->nnodes; n++) {
        c->links[n].cluster = c;
        list_init(&c->links[n].catchup_queue);
    }
    for (unsigned n = 0; rc == 0 && n < config->nnodes; n++) {
        if (n == c->self)
            continue;
        struct peer_config pc = {.address = config->nodes[n],
                                 .answered = c->links[n].answered,
                                 .rail = -1,
                                 .hello = {.version_min = PROTO_VERSION_MIN,
                                           .version_max = PROTO_VERSION,
                                           .role = PROTO_ROLE_PEER},
                                 .token = config->token,
                                 .token_len = config->token_len,
                                 .stay = true,
                                 .ops = &link_ops,
                                 .user = &c->links[n]};
        rc = peer_new(loop, &pc, &c->links[n].peer);
        if (rc < 0)
            error_set(err, rc, "out of memory");
    }
    if (rc < 0) {
        cluster_free(c);
        return rc;
    }
    c->tick.fire = tick;
    c->urgent_timer.fire = nodes_urgent_fire;
    loop_timer_set(loop, &c->tick, clock_now_ns() + LINK_TICK_NS);
    pool->cluster = c;
    pool->nodes = &nodes_ops;
    *ret_cluster = c;
    return 0;
}

void cluster_free(struct cluster *c)
{
    if (!c)
        return;
    c->pool->cluster = NULL;
    c->pool->nodes = NULL;
    loop_timer_clear(&c->tick);
    loop_timer_clear(&c->urgent_timer);
    /* Whoever waits for an answer gets one, and frees what it has. */
    for (unsigned n = 0; n < c->config.nnodes; n++) {
        if (c->links[n].peer)
            peer_fail(c->links[n].peer, -ECANCELED, "the daemon is ending");
    }
    for (unsigned n = 0; n < c->config.nnodes; n++)
        peer_free(c->links[n].peer);
    list_for_each_safe (node, &c->dials)
        dial_free(container_of(node, struct data_dial, node));
    nodes_end_pending_installs(c);
    membership_free(c->members);
    free(c->links);
    free(c);
}
