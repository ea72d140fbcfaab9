/* SPDX-License-Identifier: Apache-2.0 */
/* none.c: for a Leat that was built without UCX's headers: every call returns that reason. */
#include "net/rdma.h"

#include <stdio.h>
#include <sys/resource.h>

static int missing(struct leat_error *err)
{
    return error_set(err, LEAT_UNSUPPORTED,
                     "Leat was built without UCX (Debian: apt install libucx-dev, and build again)");
}

int net_rdma_new(const struct net_rdma_config *config, struct net_ctx **ret_ctx, struct leat_error *err)
{
    return missing(err);
}

bool net_rdma_likely(void)
{
    return false;
}

unsigned net_rdma_totals(const struct net_rdma_total **ret_totals)
{
    *ret_totals = NULL;
    return 0;
}

void net_rdma_report(struct net_rdma_report *ret_report)
{
    struct rlimit limit = {0};
    *ret_report = (struct net_rdma_report){0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    ret_report->memlock_unlimited = limit.rlim_cur == RLIM_INFINITY;
    ret_report->memlock_bytes = limit.rlim_cur;
    snprintf(ret_report->ucx_text, sizeof(ret_report->ucx_text), "built without UCX");
}

bool net_rdma_may_put(const struct net_memory *memory)
{
    return false;
}

unsigned net_rdma_paths(const struct net_endpoint *endpoint,
                        struct net_path_info ret_info[NET_RDMA_RAILS_MAX])
{
    return 0;
}

int net_rdma_server_new(const struct net_rdma_config *config, struct net_rdma_server **ret_server,
                        struct leat_error *err)
{
    return missing(err);
}

void net_rdma_server_free(struct net_rdma_server *server) {}

void net_rdma_slot_close(struct net_rdma_slot *slot)
{
    slot->closed = true;
}

int net_rdma_peer_new(struct net_rdma_server *server, struct net_rdma_peer **ret_peer)
{
    return LEAT_UNSUPPORTED;
}

void net_rdma_peer_free(struct net_rdma_peer *peer) {}

void net_rdma_peer_ref(struct net_rdma_peer *peer) {}

void net_rdma_peer_unref(struct net_rdma_peer *peer) {}

int net_rdma_peer_connect(struct net_rdma_peer *peer, struct bytes_in *in, struct bytes_out *reply,
                          struct leat_error *err)
{
    return missing(err);
}

int net_rdma_put_keys(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
                      struct bytes_out *reply, struct leat_error *err)
{
    return missing(err);
}

int net_rdma_peer_view(struct net_rdma_peer *peer, struct bytes_in *in, struct leat_error *err)
{
    return missing(err);
}

int net_rdma_peer_put(struct net_rdma_peer *peer, struct bytes_in *in, net_rdma_source_fn source, void *user,
                      const struct net_later *later, struct leat_error *err)
{
    return missing(err);
}

void net_rdma_server_stats(struct net_rdma_server *server, struct net_rdma_stats *ret_stats)
{
    *ret_stats = (struct net_rdma_stats){0};
}
