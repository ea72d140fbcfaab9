/* SPDX-License-Identifier: Apache-2.0 */
/* rdma.h: what a data connection needs to read by RDMA: rails, opened at first use, and keys of regions. */
#ifndef POOL_RDMA_H
#define POOL_RDMA_H

#include "rpc/conn.h"
#include "net/rdma.h"
#include "wire/leat/messages.h"

struct pool;
struct wset;

enum pool_rdma_users { RDMA_SAME_USER, RDMA_NOBODY, RDMA_ANYBODY };

struct pool_rdma_config {
    struct net_rdma_config net;
    /* Which users get keys, and with them a connection to UCX in this process. SAME_USER: the user that the
     * daemon runs as, and root. */
    enum pool_rdma_users users;
};

/* A request of a data connection of user `uid`, bound to ws; *peer lives as long as it. As net_serve_target.request. */
int pool_rdma_request(struct pool *pool, struct wset *ws, uint32_t uid, struct net_rdma_peer **peer,
                      uint16_t type, struct bytes_in *in, struct bytes_out *reply,
                      const struct net_later *later, struct leat_error *err);
/* When no region is left. */
void pool_rdma_stop(struct pool *pool);
/* Why there are no rails, once they were asked for; false: they were not, or there are. */
bool pool_rdma_why(struct pool *pool, char *buf, size_t size);
/* False: the rails were never opened. */
bool pool_rdma_stats(struct pool *pool, struct net_rdma_stats *ret_stats);

#endif
