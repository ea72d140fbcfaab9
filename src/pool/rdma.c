/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma.c: who may read the pool by RDMA, and with which keys.
 *
 * Nothing of UCX is touched before somebody asks. Then the rails are opened once; a failure is remembered and
 * answered to whoever asks next, so that a host without RDMA looks for it once. Failure modes: memory for a region that is not yet
 * filled is reserved before it is registered, so that lack of it is LEAT_NO_SPACE here, not a killed daemon. Invariant: keys
 * are given for regions of the connection's working set only, and none after it was dropped by force.
 */
#include "pool/rdma.h"

#include "base/log.h"
#include "pool/pool.h"
#include "pool/wset.h"

#include <inttypes.h>
#include <stdio.h>

static int rails(struct pool *pool, struct net_rdma_server **ret_server, struct leat_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&pool->rdma_lock);
    if (!pool->rdma && !pool->rdma_why.code) {
        rc = net_rdma_server_new(&pool->config.rdma.net, &pool->rdma, &pool->rdma_why);
        if (rc)
            log_info("no RDMA: %s", pool->rdma_why.message);
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
                         "RDMA is for user %u there, who runs leatd, and not for user %u: who reads by RDMA "
                         "could write into the pool as well (rdma_users = anybody in [net] accepts that)",
                         geteuid(), uid);
    return 0;
}

static int find_region(struct wset *ws, uint32_t gid, struct region **ret_region, struct leat_error *err)
{
    struct region *r = gid < ws->nregions ? ws->regions[gid].region : NULL;
    if (atomic_load(&ws->revoked))
        return error_set(err, LEAT_STALE, "the working set was dropped");
    if (!r)
        return error_set(err, LEAT_INVALID, "region %" PRIu32 " is not here", gid);
    int rc = atomic_load(&r->rdma.known) ? 0 : region_reserve(r, 0, r->used_bytes);
    if (rc)
        return error_sys(err, rc == -ENOMEM ? LEAT_NO_SPACE : rc, "region %" PRIu32 " of %" PRIu64 " bytes",
                         gid, r->used_bytes);
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
    bytes_put_u32(reply, gid);
    bytes_put_u32(reply, atomic_load(&ws->live->generation));
    return net_rdma_put_keys(server, &r->rdma, r->addr, r->used_bytes, reply, err);
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
    if (type == PROTO_RDMA_VIEW)
        return net_rdma_peer_view(*peer, in, err);
    if (type == PROTO_RDMA_PUT)
        return net_rdma_peer_put(*peer, in, put_source, ws, later, err);
    uint32_t n = bytes_get_u32(in);
    if (in->bad || n > PROTO_KEYS_MAX || bytes_left(in) != n * 4ull)
        return LEAT_CORRUPT;
    bytes_put_u32(reply, n);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = put_region(ws, server, bytes_get_u32(in), reply, err);
    return rc;
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
