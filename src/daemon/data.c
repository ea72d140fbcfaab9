/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data connections: what a data thread may touch on behalf of one (a reference to a working set, its regions
 * and nothing else), and how a client gets one. This daemon gives one over a TCP pair of its own. For another
 * node it makes the handshake for the client, so that the token never leaves daemons.
 */
#include "daemon/server_internal.h"

#include "base/crc32c.h"
#include "pool/nodes/nodes.h"
#include "pool/region/region.h"
#include "pool/set/wset.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>

struct data_target {
    struct net_serve_target target; /* first */
    struct wset *ws;                /* a reference */
    struct pool *pool;
    uint32_t uid; /* the user that is charged for it */
    bool may_write;
    struct net_rdma_peer *peer; /* NULL: it reads over this connection */
};

static void *data_resolve(struct net_serve_target *target, uint32_t gid, uint64_t offset, uint64_t bytes,
                          bool write, int *ret_status)
{
    struct data_target *d = container_of(target, struct data_target, target);
    struct wset *ws = d->ws;
    *ret_status = wset_is_revoked(ws) ? LEAT_STALE : LEAT_INVALID;
    if (*ret_status == LEAT_STALE || gid >= ws->nregions || !ws->regions[gid].region)
        return NULL;
    struct region *r = ws->regions[gid].region;
    if (bytes > r->used_bytes || offset > r->used_bytes - bytes || (write && !d->may_write))
        return NULL;
    return r->addr + offset;
}

/* `noted`: the region whose page size was looked at last, once for a run of parts in it. */
static void pushed_part(struct wset *ws, uint64_t i, unsigned f, const struct index_part *part,
                        struct bytes_out *records, const struct region **noted)
{
    /* Region by region: what lies on other hosts is reported from there. */
    for (uint64_t at = 0; at < part->bytes;) {
        uint64_t address = part->address + at;
        uint64_t n = MIN(part->bytes - at, ws->region_bytes - address % ws->region_bytes);
        const uint8_t *data = wset_address(ws, address, n);
        if (data) {
            const struct region *region = ws->regions[address / ws->region_bytes].region;
            if (region != *noted)
                wset_note_pages(ws, region);
            *noted = region;
            uint32_t crc = crc32c(0, data, n);
            wset_piece(ws, i, f, at, n, crc, 0);
            if (ws->nnodes)
                proto_ready_record_put(records, &(struct proto_ready_record){i, f, crc, at, n, 0});
        }
        at += n;
    }
}

static int data_written(struct net_serve_target *target, uint64_t first, uint32_t count)
{
    struct wset *ws = container_of(target, struct data_target, target)->ws;
    uint64_t end;
    if (add_overflows(first, count, &end) || end > ws->index.header->nsamples)
        return LEAT_INVALID;
    if (wset_written(ws))
        return LEAT_STALE;
    struct index_part part;
    AUTO_BYTES struct bytes_out records = {0};
    const struct region *noted = NULL;
    for (uint64_t i = first; i < end; i++) {
        if (wset_sample_state(ws, i) != LIVE_ABSENT)
            continue; /* written before: readers may rely on it */
        for (unsigned f = 0; f < ws->index.header->nfields; f++) {
            if (index_part(&ws->index, i, f, &part) && part.bytes > 0)
                pushed_part(ws, i, f, &part, &records, &noted);
        }
    }
    if (records.len && ws->pool->nodes)
        ws->pool->nodes->filled(ws->pool->cluster, ws, &records);
    wset_progressed(ws);
    return wset_written(ws) ? LEAT_STALE : 0;
}

static void data_unref(struct net_serve_target *target)
{
    data_target_free(container_of(target, struct data_target, target));
}

void data_target_free(struct data_target *d)
{
    if (!d)
        return;
    quota_give(&d->pool->shares, d->uid, QUOTA_DATA, 1);
    net_rdma_peer_free(d->peer);
    wset_written(d->ws); /* a push that was cut off, or a read that was under way */
    wset_unref(d->ws);   /* the pool may go with the last one */
    free(d);
}

static int data_request(struct net_serve_target *target, uint16_t type, struct bytes_in *in,
                        struct bytes_out *reply, const struct net_later *later, struct leat_error *err)
{
    struct data_target *d = container_of(target, struct data_target, target);
    return pool_rdma_request(d->ws->pool, d->ws, d->uid, &d->peer, type, in, reply, later, err);
}

int data_target_new(struct server *s, struct wset *ws, uint32_t uid, struct data_target **ret_target,
                    struct leat_error *err)
{
    unsigned most = s->pool->config.limits.user_data;
    uint64_t has = 0;
    int rc = quota_take(&s->pool->shares, uid, QUOTA_DATA, 1, most, &has);
    if (rc == -EDQUOT)
        return error_set(err, LEAT_BUSY,
                         "user %u has %" PRIu64 " data connections, and a user may have %u: end readers over "
                         "TCP, or raise user_data_connections in [limits] of leatd.conf",
                         uid, has, most);
    struct data_target *d = rc == 0 ? calloc(1, sizeof(*d)) : NULL;
    if (rc == 0 && !d)
        quota_give(&s->pool->shares, uid, QUOTA_DATA, 1);
    if (!d)
        return error_set(err, -ENOMEM, "out of memory");
    *d = (struct data_target){.pool = s->pool,
                              .uid = uid,
                              .target = {.uid = uid,
                                         .resolve = data_resolve,
                                         .written = data_written,
                                         .unref = data_unref,
                                         .request = data_request},
                              .ws = wset_ref(ws),
                              .may_write =
                                  (ws->flags & PROTO_WS_PUSHED) && (uid == ws->owner_uid || uid == 0)};
    *ret_target = d;
    return 0;
}

/* Counts bytes sent by the rail that this connection came in by; NULL: none, or "any" address. */
static _Atomic uint64_t *rail_of(struct server *s, int fd)
{
    struct sockaddr_storage ours = {0};
    socklen_t len = sizeof(ours);
    if (getsockname(fd, (struct sockaddr *)&ours, &len) < 0)
        return NULL;
    for (unsigned k = 0; k < s->nlisteners; k++)
        if (s->listeners[k].address.ss_family == ours.ss_family &&
            memcmp(&s->listeners[k].address, &ours, len) == 0)
            return &s->pool->rail_sent_bytes[k];
    return NULL;
}

int data_serve(struct server *s, struct data_target *target, int fd)
{
    target->target.sent_bytes = rail_of(s, fd);
    return net_server_add(s->pool->server, fd, &target->target);
}

/* A TCP connection to ourselves, both ends ours: what `transport=tcp` reads through on one host. */
static int tcp_pair(int ret_fds[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, b, peer;
    socklen_t len = sizeof(a);
    AUTO_CLOSE int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    AUTO_CLOSE int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Other processes of this host can fill the listener's queue before us: the loop would wait for all of
     * the kernel's attempts. */
    struct timeval attempt = {.tv_sec = 1}, no_limit = {0};
    setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &attempt, sizeof(attempt));
    if (listener < 0 || one < 0 || bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&a, &len) < 0 ||
        connect(one, (struct sockaddr *)&a, sizeof(a)) < 0)
        return -errno;
    len = sizeof(peer);
    AUTO_CLOSE int two = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
    len = sizeof(b);
    if (two < 0 || getsockname(one, (struct sockaddr *)&b, &len) < 0)
        return -errno;
    if (peer.sin_port != b.sin_port || peer.sin_addr.s_addr != b.sin_addr.s_addr)
        return LEAT_DENIED; /* another process connected in between: not our end */
    int on = 1;
    setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &no_limit, sizeof(no_limit));
    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(two, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ret_fds[0] = TAKE_FD(one);
    ret_fds[1] = TAKE_FD(two);
    return 0;
}

struct brokering {
    struct pool *pool;
    uint64_t client; /* its serial: it may be gone */
    uint16_t type;
    uint64_t id;
    char node[256];
};

struct client *client_alive(struct pool *pool, uint64_t serial)
{
    struct server *s = pool->user;
    if (!s)
        return NULL;
    list_for_each (node, &s->clients) {
        struct client *c = container_of(node, struct client, node);
        if (c->session.serial == serial)
            return c;
    }
    return NULL;
}

/* How the client is to speak on it; one of version 2 can only speak that. */
static void send_brokered(struct client *c, uint16_t type, uint64_t id, int fd, unsigned version)
{
    AUTO_BYTES struct bytes_out body = {0};
    if (conn_version(c->session.conn) > 2)
        proto_brokered_put(&body, &(struct proto_brokered){.says = true, .version = (uint8_t)version});
    conn_send(c->session.conn, PROTO_REPLY, type, id, 0, &body, &fd, 1);
}

/* A node that refuses is not gone: the client gets its answer. LEAT_PEER_GONE would have it read the samples
 * from their source, which is slow, with no message about it. */
static void brokered(void *user, int fd, unsigned version, const char *message)
{
    struct brokering *b = user;
    struct client *c = client_alive(b->pool, b->client);
    struct leat_error err;
    if (c)
        c->ndialing--;
    if (c && fd >= 0) {
        send_brokered(c, b->type, b->id, fd, version);
    } else if (c) {
        error_set(&err, cluster_refused(fd) ? fd : LEAT_PEER_GONE, "node %s: %s", b->node, message);
        conn_send_error(c->session.conn, b->type, b->id, &err);
    }
    if (fd >= 0)
        close(fd);
    free(b);
}

static int broker_dial(struct client *c, struct wset *ws, uint32_t node, uint32_t rail,
                       const struct proto_frame *f, struct leat_error *err)
{
    if (rail != CLUSTER_ANY_RAIL && rail >= net_addresses_count(ws->nodes[node].address))
        return error_set(err, LEAT_NOT_FOUND, "node %s has no rail %u", ws->nodes[node].address, rail);
    if (c->ndialing == CLIENT_DIALING_MAX)
        return error_set(err, LEAT_BUSY, "this process is making %u connections already", c->ndialing);
    struct brokering *b = malloc(sizeof(*b));
    int rc = -ENOMEM;
    if (b) {
        *b = (struct brokering){
            .pool = c->server->pool, .client = c->session.serial, .type = f->type, .id = f->id};
        snprintf(b->node, sizeof(b->node), "%s", ws->nodes[node].address);
        c->ndialing++;
        const struct cluster_dial_to to = {.node = node,
                                           .rail = rail,
                                           .uid = c->uid,
                                           .gid = c->gid,
                                           .version_max = conn_version(c->session.conn)};
        rc = cluster_dial(c->server->pool->cluster, ws, &to, brokered, b);
        c->ndialing -= rc < 0;
    }
    if (rc < 0) {
        free(b);
        return error_sys(err, rc, "cannot connect to node %s", ws->nodes[node].address);
    }
    return 0;
}

int requests_broker(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_broker to;
    if (proto_broker_get(m->body, m->frame.body_bytes, &to) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = client_handle(c, to.ws, err);
    if (!ws)
        return LEAT_STALE;
    if (to.node != ws->self_node) {
        if (ws->nnodes == 0 || to.node >= ws->nnodes || !c->server->pool->cluster)
            return error_set(err, LEAT_NOT_FOUND, "node %u is not part of this working set", to.node);
        return broker_dial(c, ws, to.node, to.by_rail ? to.rail : CLUSTER_ANY_RAIL, &m->frame, err);
    }
    int fds[2] = {-1, -1};
    struct data_target *target = NULL;
    int rc = data_target_new(c->server, ws, c->uid, &target, err);
    if (rc < 0)
        return rc;
    rc = tcp_pair(fds);
    if (rc == 0 && (rc = data_serve(c->server, target, fds[1])) < 0) {
        close(fds[0]);
        close(fds[1]);
    }
    if (rc < 0) {
        data_target_free(target);
        return error_sys(err, rc, "cannot make a data connection");
    }
    send_brokered(c, m->frame.type, m->frame.id, fds[0], conn_version(c->session.conn));
    close(fds[0]);
    return 0;
}
