/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma.c: which users may read the pool by RDMA, and with which keys.
 *
 * UCX is not touched before the first request. Then the rails are opened once. A failure is remembered for
 * AGAIN_NS and answered to later requests: a host without RDMA seldom looks for it, and one whose NIC comes
 * late finds it. Failure modes: memory for a region that is not yet filled is reserved before it is
 * registered, so that lack of it is LEAT_NO_SPACE here, not a killed daemon. Both take a while, and a data
 * thread serves others: it hands unregistered regions to the pool's works, which answer. For puts these begin
 * when a client announces its first view; an earlier put is parked with them. Invariant: keys are given for
 * regions of the connection's working set only, and none after it was dropped by force.
 */
#include "pool/rdma.h"

#include "base/clock.h"
#include "base/log.h"
#include "loop/loop.h"
#include "pool/pool.h"
#include "pool/work.h"
#include "pool/set/wset.h"

#include <inttypes.h>
#include <stdio.h>

#define AGAIN_NS (30 * NS_PER_S)

static int rails(struct pool *pool, struct net_rdma_server **ret_server, struct leat_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&pool->rdma_lock);
    if (!pool->rdma && clock_now_ns() >= pool->rdma_again_ns) {
        struct leat_error why = {0};
        rc = net_rdma_server_new(&pool->config.rdma.net, &pool->rdma, &why);
        if (rc && strcmp(why.message, pool->rdma_why.message) != 0)
            log_info("no RDMA: %s", why.message);
        pool->rdma_why = why;
        pool->rdma_again_ns = clock_now_ns() + AGAIN_NS;
    }
    if (pool->rdma)
        *ret_server = pool->rdma;
    else
        rc = error_set(err, pool->rdma_why.code, "%s", pool->rdma_why.message);
    pthread_mutex_unlock(&pool->rdma_lock);
    return rc;
}

static int may(const struct pool *pool, uint32_t uid, struct leat_error *err)
{
    if (pool->config.rdma.users == RDMA_NOBODY)
        return error_set(err, LEAT_UNSUPPORTED, "RDMA is switched off there (rdma_users = nobody in [net])");
    if (pool->config.rdma.users == RDMA_SAME_USER && uid != geteuid() && uid != 0)
        return error_set(err, LEAT_DENIED,
                         "RDMA is for user %u there, which runs leatd, and not for user %u: a reader by RDMA "
                         "talks to UCX in the daemon, which trusts its peers (rdma_users = anybody in [net] "
                         "accepts that)",
                         geteuid(), uid);
    return 0;
}

static int find_region(struct wset *ws, uint32_t gid, struct region **ret_region, struct leat_error *err)
{
    struct region *r = gid < ws->nregions ? ws->regions[gid].region : NULL;
    if (wset_is_revoked(ws))
        return error_set(err, LEAT_STALE, "the working set was dropped");
    if (!r)
        return error_set(err, LEAT_INVALID, "region %" PRIu32 " is not here", gid);
    int rc = atomic_load(&r->rdma.known) ? 0 : region_reserve(r, 0, r->used_bytes);
    if (rc)
        return error_sys(err, rc == -ENOMEM ? LEAT_NO_SPACE : rc, "region %" PRIu32 " of %" PRIu64 " bytes",
                         gid, r->used_bytes);
    if (wset_written(ws)) /* dropped by force in between: the reservation goes again */
        return error_set(err, LEAT_STALE, "the working set was dropped");
    *ret_region = r;
    return 0;
}

static int put_source(void *user, const struct proto_range *range, struct net_rdma_slot **ret_slot,
                      uint8_t **ret_addr, uint64_t *ret_bytes, struct leat_error *err)
{
    struct region *r = NULL;
    int rc = find_region(user, range->gid, &r, err);
    if (rc)
        return rc;
    *ret_slot = &r->rdma;
    *ret_addr = r->addr;
    *ret_bytes = r->used_bytes;
    return 0;
}

static int put_region(struct wset *ws, struct net_rdma_server *server, uint32_t gid, struct bytes_out *reply,
                      struct leat_error *err)
{
    struct region *r = NULL;
    int rc = find_region(ws, gid, &r, err);
    if (rc)
        return rc;
    proto_key_put(reply, &(struct proto_key){.gid = gid, .generation = atomic_load(&ws->live->generation)});
    return net_rdma_put_keys(server, &r->rdma, r->addr, r->used_bytes, reply, err);
}

/* Regions to be registered, off the data threads. */
struct keys_work {
    struct work work;
    struct wset *ws; /* a reference */
    struct net_rdma_server *server;
    bool answer;                /* else no client waits for it */
    struct net_rdma_peer *peer; /* a reference: of a put, whose request is `put`; else NULL */
    struct bytes_out put;
    struct net_later later;
    struct bytes_out reply;
    int status;
    struct leat_error err;
    uint32_t n;
    uint32_t gids[];
};

static int put_regions(struct wset *ws, struct net_rdma_server *server, const uint32_t *gids, uint32_t n,
                       struct bytes_out *reply, struct leat_error *err)
{
    int rc = 0;
    proto_keys_put(reply, &(struct proto_keys){n});
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = put_region(ws, server, gids[i], reply, err);
    return rc == 0 && reply->failed ? error_set(err, -ENOMEM, "out of memory for an answer") : rc;
}

static void keys_run(struct work *work)
{
    struct keys_work *k = container_of(work, struct keys_work, work);
    struct pool *pool = k->ws->pool;
    if (k->peer) {
        struct bytes_in in = bytes_in_of(k->put.data, k->put.len);
        k->status = net_rdma_peer_put(k->peer, &in, put_source, k->ws, &k->later, &k->err);
        return;
    }
    if (k->answer) {
        k->status = put_regions(k->ws, k->server, k->gids, k->n, &k->reply, &k->err);
        return;
    }
    for (uint32_t i = 0; i < k->n && !atomic_load(&pool->stopping); i++) {
        put_region(k->ws, k->server, k->gids[i], &k->reply, NULL); /* a request for it gets the reason */
        bytes_out_reset(&k->reply);
    }
}

static void keys_free(struct keys_work *k)
{
    bytes_out_fini(&k->reply);
    bytes_out_fini(&k->put);
    if (k->peer)
        net_rdma_peer_unref(k->peer);
    wset_unref(k->ws);
    free(k);
}

static void keys_done(struct work *work)
{
    struct keys_work *k = container_of(work, struct keys_work, work);
    if (!k->answer)
        atomic_store(&k->ws->rdma_preparing, false);
    else if (!work->cancelled &&
             k->status !=
                 NET_LATER) /* else the connection ends with the pool, or the rail's thread answers */
        net_server_answer_body(&k->later, k->status, k->status ? k->err.message : NULL, &k->reply);
    keys_free(k);
}

static void keys_start(void *arg)
{
    struct keys_work *k = arg;
    work_start(k->ws->pool, &k->work);
}

static struct keys_work *keys_new(struct wset *ws, struct net_rdma_server *server, uint32_t n)
{
    struct keys_work *k = calloc(1, sizeof(*k) + n * sizeof(k->gids[0]));
    if (!k)
        return NULL;
    k->work = (struct work){.run = keys_run, .done = keys_done};
    k->ws = wset_ref(ws);
    k->server = server;
    return k;
}

/* 0, or -ENOMEM, and it is gone. */
static int keys_post(struct keys_work *k)
{
    int rc = loop_post(k->ws->pool->loop, keys_start, k);
    if (rc)
        keys_free(k);
    return rc;
}

static bool is_known(const struct wset *ws, uint32_t gid)
{
    const struct region *r = gid < ws->nregions ? ws->regions[gid].region : NULL;
    return !r || atomic_load(&r->rdma.known); /* where it is not here there is nothing to wait for */
}

static int on_keys(struct wset *ws, struct net_rdma_server *server, struct bytes_in *in,
                   struct bytes_out *reply, const struct net_later *later, struct leat_error *err)
{
    uint32_t gids[PROTO_KEYS_MAX];
    struct proto_keys asked;
    bool known = true;
    if (proto_keys_next(in, &asked) < 0)
        return LEAT_CORRUPT;
    for (uint32_t i = 0; i < asked.n; i++) {
        struct proto_gid region;
        proto_gid_next(in, &region);
        gids[i] = region.gid;
        known = known && is_known(ws, gids[i]);
    }
    if (known)
        return put_regions(ws, server, gids, asked.n, reply, err);
    struct keys_work *k = keys_new(ws, server, asked.n);
    if (k) {
        k->answer = true;
        k->later = *later;
        k->n = asked.n;
        memcpy(k->gids, gids, asked.n * sizeof(gids[0]));
    }
    if (!k || keys_post(k) < 0)
        return error_set(err, -ENOMEM, "out of memory for a request");
    return NET_LATER;
}

/* A client that announces a view will ask for puts. */
static void prepare_puts(struct wset *ws, struct net_rdma_server *server)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < ws->nregions; g++)
        n += !is_known(ws, g);
    if (n == 0 || atomic_exchange(&ws->rdma_preparing, true)) /* one work is enough for a set */
        return;
    struct keys_work *k = keys_new(ws, server, n);
    for (uint32_t g = 0; k && g < ws->nregions && k->n < n; g++)
        if (!is_known(ws, g))
            k->gids[k->n++] = g;
    if (!k || keys_post(k)) /* they are registered when they are requested */
        atomic_store(&ws->rdma_preparing, false);
}

static bool puts_known(const struct wset *ws, struct bytes_in in)
{
    struct proto_puts put;
    bool known = true;
    if (proto_puts_next(&in, &put) < 0)
        return true; /* it is refused without them */
    for (uint32_t i = 0; i < put.n && known; i++) {
        struct proto_put_range put_range;
        proto_put_range_next(&in, &put_range);
        known = is_known(ws, put_range.gid);
    }
    return known;
}

static int on_put(struct wset *ws, struct net_rdma_server *server, struct net_rdma_peer *peer,
                  struct bytes_in *in, const struct net_later *later, struct leat_error *err)
{
    if (puts_known(ws, *in))
        return net_rdma_peer_put(peer, in, put_source, ws, later, err);
    struct keys_work *k = keys_new(ws, server, 0);
    if (!k)
        return error_set(err, -ENOMEM, "out of memory for a request");
    bytes_put(&k->put, in->data + in->pos, bytes_left(in));
    k->answer = true;
    k->later = *later;
    net_rdma_peer_ref(peer);
    k->peer = peer;
    if (k->put.failed)
        keys_free(k);
    else if (keys_post(k) == 0)
        return NET_LATER;
    return error_set(err, -ENOMEM, "out of memory for a request");
}

int pool_rdma_request(struct pool *pool, struct wset *ws, uint32_t uid, struct net_rdma_peer **peer,
                      uint16_t type, struct bytes_in *in, struct bytes_out *reply,
                      const struct net_later *later, struct leat_error *err)
{
    struct net_rdma_server *server = NULL;
    if (type < PROTO_RDMA_CONNECT || type > PROTO_RDMA_PUT)
        return LEAT_CORRUPT;
    int rc = may(pool, uid, err);
    if (rc == 0)
        rc = rails(pool, &server, err);
    if (rc)
        return rc;
    if (type == PROTO_RDMA_CONNECT) {
        if (!*peer && (rc = net_rdma_peer_new(server, peer)))
            return error_set(err, rc, "out of memory for a connection");
        return net_rdma_peer_connect(*peer, in, reply, err);
    }
    if (!*peer)
        return LEAT_CORRUPT;
    if (type == PROTO_RDMA_VIEW) {
        rc = net_rdma_peer_view(*peer, in, err);
        if (rc == 0)
            prepare_puts(ws, server);
        return rc;
    }
    if (type == PROTO_RDMA_PUT)
        return on_put(ws, server, *peer, in, later, err);
    return on_keys(ws, server, in, reply, later, err);
}

void pool_rdma_stop(struct pool *pool)
{
    struct net_rdma_stats stats;
    if (pool_rdma_stats(pool, &stats) &&
        stats.registrations == 0) /* else a set is still held: it ends with us */
        net_rdma_server_free(TAKE_PTR(pool->rdma));
}

bool pool_rdma_why(struct pool *pool, char *buf, size_t size)
{
    pthread_mutex_lock(&pool->rdma_lock);
    bool failed = pool->rdma_why.code != 0;
    if (failed)
        snprintf(buf, size, "%s", pool->rdma_why.message);
    pthread_mutex_unlock(&pool->rdma_lock);
    return failed;
}

bool pool_rdma_stats(struct pool *pool, struct net_rdma_stats *ret_stats)
{
    pthread_mutex_lock(&pool->rdma_lock);
    struct net_rdma_server *server = pool->rdma;
    pthread_mutex_unlock(&pool->rdma_lock);
    if (server)
        net_rdma_server_stats(server, ret_stats);
    return server != NULL;
}
