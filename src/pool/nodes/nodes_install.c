/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets that come from another node: INSTALL (we are to hold regions of it) and what DESCRIBE answers (our clients want to read it).
 *
 *   description and index arrive ─▶ validated (a thread) ─▶ taken over ─▶ prepared, until COMMIT ─▶ accepted
 *                                                                   └▶ or hosted at once: a node that was started anew
 *
 * The other node has proved the token; what it sends is checked all the same. Failure modes: a list of nodes that is not ours, a
 * name that is taken, no room, a version before that we do not have or that somebody else appends to: refused, nothing stays. Its
 * connection ends meanwhile: what is not prepared yet goes, what is waits for a COMMIT of others (nodes_place.c).
 */
#include "pool/nodes/nodes_internal.h"

#include "base/clock.h"
#include "cluster/installs.h"
#include "leat/leat.h"
#include "rpc/conn.h"
#include "pool/pool_internal.h"
#include "pool/work.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#define INDEX_BLOB_MAX   (64 * GIB)
#define COMPLETE_LOOK_NS (20 * NS_PER_MS)

struct pending_install {
    struct work work;
    struct list node; /* cluster.pending_installs, of an INSTALL */
    struct cluster *cluster;
    uint8_t *body;
    uint32_t body_bytes;
    int fd;
    struct proto_ws m;
    struct wset *ws; /* validated; the reference is ours until it is listed */
    struct leat_error err;
    /* of a DESCRIBE */
    nodes_adopted_fn adopted;
    void *user;
    /* of an INSTALL */
    struct rpc_session *session; /* NULL: it closed */
    uint16_t type;
    uint64_t id;
    struct proto_install more;
    struct loop_timer timer;
    uint64_t since_ns;
    void *map;
    uint64_t bytes;
};

static void pending_install_free(struct pending_install *a)
{
    loop_timer_clear(&a->timer);
    list_remove(&a->node);
    if (a->fd >= 0)
        close(a->fd);
    proto_ws_fini(&a->m);
    free(a->body);
    free(a);
}

/* Makes ws what `m` says. The node table must be ours. */
static int take_description(struct cluster *c, struct wset *ws, const struct proto_ws *m,
                            struct leat_error *err)
{
    if (m->nnodes != c->config.nnodes)
        return error_set(err, LEAT_INVALID,
                         "the other node's list has %u nodes, ours %u: they must be the same", m->nnodes,
                         c->config.nnodes);
    for (unsigned n = 0; n < m->nnodes; n++) {
        if (strcmp(m->nodes[n].address, c->config.nodes[n]) != 0)
            return error_set(err, LEAT_INVALID, "node %u is %s there and %s here: the lists must be the same",
                             n, m->nodes[n].address, c->config.nodes[n]);
    }
    ws->region_bytes = m->region_bytes;
    if (m->region_bytes < 4096 || (m->region_bytes & (m->region_bytes - 1)) ||
        m->nregions !=
            div_up(MIN(align_up(ws->index.header->address_end, 4096), m->pinned_end), m->region_bytes))
        return error_set(err, LEAT_CORRUPT, "its region table does not fit its index");
    memcpy(ws->uuid, m->uuid, PROTO_UUID);
    atomic_store(&ws->live->generation, m->generation);
    ws->version = m->version;
    ws->flags = m->flags & (PROTO_WS_STREAMED | PROTO_WS_EXPLICIT | PROTO_WS_PUSHED);
    ws->mode = m->mode;
    ws->owner_uid = m->owner_uid;
    ws->owner_gid = m->owner_gid;
    ws->pinned_end = m->pinned_end;
    ws->regions = calloc(MAX(m->nregions, 1u), sizeof(*ws->regions));
    ws->nregions = ws->regions ? m->nregions : 0;
    int rc = ws->regions ? cluster_name_nodes(c, ws) : -ENOMEM;
    if (rc < 0)
        return error_sys(err, rc, "no memory for the tables of the set");
    for (uint32_t g = 0; g < m->nregions; g++) {
        if (m->regions[g].gid != g || m->regions[g].node >= m->nnodes)
            return error_set(err, LEAT_CORRUPT, "its region table is out of order");
        wset_region_put(ws, g, m->regions[g].node);
    }
    if (ws->remote && !ws->access) {
        rc = pool_access_for(c->pool, m->owner_uid, m->uri, &ws->access, err);
        if (rc < 0)
            return rc;
    }
    return pool_name(ws, m->name, m->uri) < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

static void validate(struct work *work)
{
    struct pending_install *a = container_of(work, struct pending_install, work);
    /* It goes on to our clients: none of them may change it for the others. */
    a->err.code = pool_index_seal(a->fd, &a->err);
    if (a->err.code == 0)
        a->err.code = pool_set_new(a->cluster->pool, a->fd, false, &a->ws, &a->err);
    if (a->err.code == 0)
        a->fd = -1;
}

/* --- DESCRIBE's answer -------------------------------------------------------------------------------------------------- */

/* New here. Regions that the table gives us were lost with an earlier life of this daemon: they are filled again. */
static int replica_list(struct cluster *c, struct wset *ws, struct leat_error *err)
{
    bool ours = cluster_hosts(ws, c->self) && !(ws->flags & PROTO_WS_PUSHED);
    int rc = ours ? pool_host(c->pool, ws, 0, err) : 0;
    if (rc < 0)
        return rc;
    if (!ours) {
        if (ws->flags & PROTO_WS_STREAMED)
            wset_pin(ws, ws->pinned_end);
        pool_list(c->pool, ws, WSET_LIVE);
        wset_settle_empty(ws);
        ws->loaded = ws->flags & PROTO_WS_PUSHED;
        if (cluster_hosts(ws, c->self))
            wset_node_lost(ws, c->self);
    }
    ws->holding = true;
    nodes_set_taken(c, ws, SET_ON_TAKEN);
    return 0;
}

static void adopt_end(struct pending_install *a, struct wset *ws)
{
    a->adopted(a->user, ws, ws ? NULL : &a->err);
    pending_install_free(a);
}

static void adopt_validated(struct work *work)
{
    struct pending_install *a = container_of(work, struct pending_install, work);
    struct cluster *c = a->cluster;
    struct wset *ws = a->ws;
    if (work->cancelled)
        a->err.code = error_set(&a->err, -ECANCELED, "the daemon is ending");
    struct wset *known = a->err.code == 0 ? pool_find_uuid(c->pool, a->m.uuid) : NULL;
    if (known) { /* another request was faster */
        wset_unref(ws);
        nodes_commit(c, known);
        adopt_end(a, known);
        return;
    }
    if (a->err.code == 0)
        a->err.code = take_description(c, ws, &a->m, &a->err);
    if (a->err.code == 0)
        a->err.code = replica_list(c, ws, &a->err);
    if (a->err.code < 0)
        wset_unref(TAKE_PTR(ws));
    adopt_end(a, ws);
}

int nodes_adopt(struct cluster *c, struct peer_reply *reply, nodes_adopted_fn done, void *user,
                struct leat_error *err)
{
    struct pending_install *a = calloc(1, sizeof(*a));
    if (!a)
        return error_set(err, -ENOMEM, "out of memory");
    *a = (struct pending_install){.work = {.run = validate, .done = adopt_validated},
                                  .cluster = c,
                                  .fd = -1,
                                  .adopted = done,
                                  .user = user};
    int rc = 0;
    list_init(&a->node);
    if (proto_ws_get(reply->body, reply->body_bytes, &a->m) < 0)
        rc = error_set(err, LEAT_CORRUPT, "a node sent a broken description of a set");
    struct wset *known = rc == 0 ? pool_find_uuid(c->pool, a->m.uuid) : NULL;
    if (known) {
        nodes_commit(c, known); /* or it would not have been described */
        adopt_end(a, known);
        return 0;
    }
    if (rc == 0 && reply->payload_fd < 0)
        rc = error_set(err, LEAT_CORRUPT, "a node sent a description without its index");
    if (rc < 0) {
        pending_install_free(a);
        return rc;
    }
    a->fd = TAKE_FD(reply->payload_fd);
    work_start(c->pool, &a->work);
    return 0;
}

/* --- INSTALL ------------------------------------------------------------------------------------------------------------ */

static void install_end(struct pending_install *a)
{
    if (a->session && a->err.code < 0)
        conn_send_error(a->session->conn, a->type, a->id, &a->err);
    else if (a->session)
        conn_send(a->session->conn, PROTO_REPLY, a->type, a->id, 0, NULL, NULL, 0);
    pending_install_free(a);
}

static void install_prepared(void *user, const struct leat_error *err)
{
    struct pending_install *a = user;
    if (err)
        a->err = *err;
    install_end(a);
}

/* The version before, which the new one shares our regions with. When it can be, no other set is made from
 * it since. */
static enum install_before find_before(const struct pending_install *a, struct wset *old)
{
    const struct wset *ws = a->ws;
    static const uint8_t none[PROTO_UUID];
    if (memcmp(a->more.replaces, none, PROTO_UUID) == 0)
        return INSTALL_FIRST;
    if (!old)
        return INSTALL_MISSING;
    bool fits = a->more.first_new_address == (uint64_t)old->nregions * old->region_bytes &&
                ws->region_bytes == old->region_bytes && ws->nregions >= old->nregions &&
                ws->pinned_end >= ws->index.header->address_end && /* all of it has a place */
                ws->index.header->nsamples >= old->index.header->nsamples &&
                ws->index.header->nfields == old->index.header->nfields && ws->owner_uid == old->owner_uid &&
                strcmp(ws->name, old->name) == 0 && !(old->flags & (PROTO_WS_STREAMED | PROTO_WS_PUSHED));
    for (uint32_t g = 0; fits && g < old->nregions; g++)
        fits = wset_region_node(ws, g) == wset_region_node(old, g);
    if (!fits)
        return INSTALL_MISFIT;
    if (old->appender && old->appender != ws)
        return INSTALL_APPENDING;
    if (old->peers.nlost)
        return INSTALL_LOST;
    old->appender = ws;
    return wset_complete(old) ? INSTALL_COMPLETE : INSTALL_INCOMPLETE;
}

static int refuse_before(enum install_before before, const char *name, struct leat_error *err)
{
    switch (before) {
    case INSTALL_MISSING:
        return error_set(err, LEAT_STALE, "the version that it follows is not here");
    case INSTALL_MISFIT:
        return error_set(err, LEAT_CORRUPT, "it does not fit the version that it follows");
    case INSTALL_APPENDING:
        return error_set(err, LEAT_BUSY, "'%s' is being appended to already: append when that is done", name);
    case INSTALL_LOST:
        return error_set(err, LEAT_PEER_GONE, "a node that holds part of '%s' is gone there", name);
    default:
        return error_set(err, LEAT_BUSY, "'%s' is still being loaded there: append when it is complete",
                         name);
    }
}

/* Taken over at once: 0. */
static int install_host(struct pending_install *a)
{
    int rc = pool_host(a->cluster->pool, a->ws, 0, &a->err);
    if (rc == 0)
        nodes_set_taken(a->cluster, a->ws, SET_ON_TAKEN);
    return rc;
}

static void install_go(struct pending_install *a)
{
    struct cluster *c = a->cluster;
    struct wset *ws = a->ws, *old = pool_find_uuid(c->pool, a->more.replaces), *named;
    struct install i = {.gone = !a->session || atomic_load(&c->pool->stopping),
                        .known = pool_find_uuid(c->pool, ws->uuid) != NULL,
                        .prepare = a->more.flags & INSTALL_PREPARE,
                        .since_ns = a->since_ns};
    i.over_limit = !i.gone && !i.known && pool_sets_check(c->pool, ws->owner_uid, &a->err) < 0;
    if (!i.gone && !i.known && !i.over_limit) {
        i.before = find_before(a, old);
        named = ws->name[0] ? pool_find_own_name(c->pool, ws->name, ws->owner_uid) : NULL;
        i.named = named && named != old;
    }
    int rc = 0;
    switch (install_step(&i, clock_now_ns())) {
    case INSTALL_WAIT:
        loop_timer_set(c->loop, &a->timer, clock_now_ns() + COMPLETE_LOOK_NS);
        return;
    case INSTALL_REFUSE_GONE:
        rc = error_set(&a->err, -ECANCELED, "the node that asked is gone");
        break;
    case INSTALL_REFUSE_KNOWN:
        rc = error_set(&a->err, LEAT_INVALID, "the set is installed here already");
        break;
    case INSTALL_REFUSE_LIMIT:
        rc = a->err.code;
        break;
    case INSTALL_REFUSE_BEFORE:
        rc = refuse_before(i.before, ws->name, &a->err);
        break;
    case INSTALL_REFUSE_NAMED:
        rc = error_set(&a->err, LEAT_INVALID, "there is another working set '%s' here: drop it first",
                       ws->name);
        break;
    case INSTALL_DO_PREPARE:
        nodes_holder(ws, a->session);
        ws->replaces = old ? wset_ref(old) : NULL;
        ws->first_new_address = old ? a->more.first_new_address : 0;
        ws->peers.placer = a->session->node;
        rc = pool_prepare(c->pool, ws, 0, install_prepared, a);
        if (rc == 0)
            return;
        error_set(&a->err, rc, "out of memory");
        install_end(a);
        return; /* it has released ws */
    case INSTALL_DO_HOST:
        nodes_holder(ws, a->session);
        rc = install_host(a);
        break;
    }
    if (rc < 0) {
        if (old && old->appender == ws)
            old->appender = NULL;
        wset_unref(ws);
    }
    a->err.code = rc;
    install_end(a);
}

void nodes_detach_installs(struct cluster *c, const struct rpc_session *session)
{
    list_for_each (node, &c->pending_installs) {
        struct pending_install *a = container_of(node, struct pending_install, node);
        if (a->session == session)
            a->session = NULL;
    }
}

/* After pool_stop: only those that wait for their timer are left. */
void nodes_end_pending_installs(struct cluster *c)
{
    list_for_each_safe (node, &c->pending_installs) {
        struct pending_install *a = container_of(node, struct pending_install, node);
        if (!a->timer.due_ns)
            continue;
        wset_unref(a->ws);
        pending_install_free(a);
    }
}

static void install_again(struct loop_timer *timer)
{
    install_go(container_of(timer, struct pending_install, timer));
}

static void install_validated(struct work *work)
{
    struct pending_install *a = container_of(work, struct pending_install, work);
    if (a->err.code == 0)
        a->err.code = take_description(a->cluster, a->ws, &a->m, &a->err);
    if (a->err.code < 0) {
        wset_unref(a->ws);
        install_end(a);
        return;
    }
    a->timer.fire = install_again;
    a->since_ns = clock_now_ns();
    install_go(a);
}

static int install_parse(struct pending_install *a)
{
    struct bytes_in in = bytes_in_of(a->body, a->body_bytes);
    int rc = proto_ws_next(&in, &a->m);
    return rc < 0 ? rc : proto_install_get(in.data + in.pos, bytes_left(&in), &a->more);
}

static void install_arrived(void *user, int status)
{
    struct pending_install *a = user;
    munmap(a->map, a->bytes);
    if (status < 0) {
        pending_install_free(a);
        return;
    }
    if (install_parse(a) < 0)
        error_set(&a->err, LEAT_CORRUPT, "a node sent a broken description of a set");
    else if (pool_find_uuid(a->cluster->pool, a->m.uuid))
        error_set(&a->err, LEAT_INVALID, "the set is installed here already");
    if (a->err.code < 0)
        install_end(a);
    else
        work_start(a->cluster->pool, &a->work);
}

int nodes_on_install(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    if (m->frame.payload_bytes == 0 || m->frame.payload_bytes > INDEX_BLOB_MAX)
        return LEAT_CORRUPT;
    struct pending_install *a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    *a = (struct pending_install){.work = {.run = validate, .done = install_validated},
                                  .cluster = c,
                                  .session = session,
                                  .type = m->frame.type,
                                  .id = m->frame.id,
                                  .body = malloc(m->frame.body_bytes ? m->frame.body_bytes : 1),
                                  .body_bytes = m->frame.body_bytes,
                                  .fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                                  .map = MAP_FAILED,
                                  .bytes = m->frame.payload_bytes};
    list_init(&a->node);
    list_push_back(&c->pending_installs, &a->node);
    if (a->body && a->fd >= 0 && fallocate(a->fd, 0, 0, (off_t)a->bytes) == 0)
        a->map = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    if (a->map == MAP_FAILED) {
        pending_install_free(a);
        return -ENOMEM;
    }
    memcpy(a->body, m->body, m->frame.body_bytes);
    conn_receive_payload(session->conn, a->map, a->bytes, install_arrived, a);
    return 0;
}
