/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delivery.c: how the bytes of a set came to this process: sums by mechanism, and by each way to a node.
 *
 * Where a read is done (gather.c, stream.c, device.c) its bytes are added to its set's sums and to the
 * process's. The bytes of each path only its transport knows: after each batch the endpoints' totals are
 * compared with those seen last, and the difference is added to the way's, which all views of the set have in
 * common. Failure modes: without memory for a way its bytes count for the mechanism alone. Invariants: a way
 * is never removed before its set, and nothing of it but the figures changes; `seen` belongs to the one
 * endpoint that its end has now.
 */
#include "client/client.h"

#include "rpc/addresses.h"
#include "net/rdma.h"

#include <stdio.h>

const char *const delivery_names[DELIVERIES] = {"shm",        "tcp",      "rdma_read",
                                                "rdma_write", "streamed", "bounced"};

struct path_stats {
    struct path_stats *next;
    uint32_t node;
    bool rdma;
    char name[NET_ADDRESS_BYTES];
    _Atomic uint64_t bytes, rate_bytes_per_s;
    _Atomic unsigned endpoints, up; /* that have it; of those, by which it is connected */
};

struct delivery_seen {
    struct path_stats *way; /* NULL: not looked for yet */
    uint64_t bytes, put_bytes;
    bool up;
};

void delivered(struct leat_ws *ws, enum delivery how, uint64_t bytes)
{
    if (!bytes)
        return;
    atomic_fetch_add_explicit(&ws->delivered[how], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&client_counters.delivered[how], bytes, memory_order_relaxed);
}

static struct path_stats *find_way(struct leat_ws *ws, uint32_t node, bool rdma, const char *name)
{
    pthread_mutex_lock(&ws->path_stats_lock);
    struct path_stats **at = &ws->path_stats;
    while (*at && ((*at)->node != node || (*at)->rdma != rdma || strcmp((*at)->name, name) != 0))
        at = &(*at)->next;
    if (!*at && (*at = calloc(1, sizeof(**at)))) {
        (*at)->node = node;
        (*at)->rdma = rdma;
        snprintf((*at)->name, sizeof((*at)->name), "%s", name);
    }
    struct path_stats *found = *at;
    pthread_mutex_unlock(&ws->path_stats_lock);
    return found;
}

static unsigned look(const struct rails *r, const struct rails_end *end,
                     struct net_path_info info[NET_RDMA_RAILS_MAX])
{
    if (end->ctx == r->rdma)
        return net_rdma_paths(end->endpoint, info);
    unsigned n = net_paths_info(end->endpoint, info);
    if (n == 1) {
        info[0].bytes = end->sole_op.total_bytes;
        info[0].rate_bytes_per_s = end->sole_op.rate_bytes_per_s;
    }
    return n;
}

static void note_way(struct path_stats *way, struct delivery_seen *seen, const struct net_path_info *info,
                     bool over)
{
    bool up = info->up && !over;
    if (!seen->way)
        atomic_fetch_add(&way->endpoints, 1);
    seen->way = way;
    atomic_fetch_add_explicit(&way->bytes, info->bytes - seen->bytes, memory_order_relaxed);
    if (info->rate_bytes_per_s)
        atomic_store_explicit(&way->rate_bytes_per_s, info->rate_bytes_per_s, memory_order_relaxed);
    if (up != seen->up)
        atomic_fetch_add(&way->up, up ? 1 : -1u);
    seen->up = up;
    if (over)
        atomic_fetch_sub(&way->endpoints, 1);
}

static void note_path(struct rails *r, uint32_t node, unsigned k, const struct net_path_info *info, bool over)
{
    struct leat_ws *ws = r->ws;
    struct rails_end *end = &r->ends[node];
    struct delivery_seen *seen = &end->seen[k];
    bool rdma = end->ctx == r->rdma;
    uint64_t came = info->bytes - seen->bytes, put = info->put_bytes - seen->put_bytes;
    char name[NET_ADDRESS_BYTES];
    delivered(ws, rdma ? DELIVERED_RDMA_READ : DELIVERED_TCP, came - put);
    delivered(ws, DELIVERED_RDMA_WRITE, put);
    struct path_stats *way = seen->way;
    if (!way) {
        if (info->name)
            snprintf(name, sizeof(name), "%s", info->name);
        else
            net_addresses_at(ws->info.nodes[node].address, k, name);
        way = find_way(ws, node, rdma, name);
    }
    if (way)
        note_way(way, seen, info, over);
    seen->bytes = info->bytes;
    seen->put_bytes = info->put_bytes;
}

void delivery_note(struct rails *r, uint32_t node, bool over)
{
    struct rails_end *end = &r->ends[node];
    struct net_path_info info[NET_RDMA_RAILS_MAX];
    if (!end->endpoint || end->ctx == r->shm)
        return;
    if (!end->seen && !(end->seen = calloc(NET_RDMA_RAILS_MAX, sizeof(*end->seen))))
        return;
    unsigned n = look(r, end, info);
    for (unsigned k = 0; k < n; k++)
        note_path(r, node, k, &info[k], over);
    if (over) {
        memset(end->seen, 0, NET_RDMA_RAILS_MAX * sizeof(*end->seen));
        end->sole_op = (struct stripe_path){0};
    }
}

void delivery_free(struct leat_ws *ws)
{
    while (ws->path_stats) {
        struct path_stats *way = ws->path_stats;
        ws->path_stats = way->next;
        free(way);
    }
}

uint64_t delivery_paths(struct leat_ws *ws)
{
    uint64_t n = 0;
    pthread_mutex_lock(&ws->path_stats_lock);
    for (const struct path_stats *way = ws->path_stats; way; way = way->next)
        n++;
    pthread_mutex_unlock(&ws->path_stats_lock);
    return n;
}

int leat_ws_rail(struct leat_ws *ws, uint64_t i, struct leat_rail *ret_rail)
{
    if (!ret_rail)
        return LEAT_INVALID;
    pthread_mutex_lock(&ws->path_stats_lock);
    const struct path_stats *way = ws->path_stats;
    while (way && i--)
        way = way->next;
    pthread_mutex_unlock(&ws->path_stats_lock);
    if (!way)
        return LEAT_NOT_FOUND;
    const struct leat_rail out = {.node = ws->info.nodes[way->node].address,
                                  .name = way->name,
                                  .transport = way->rdma ? "rdma" : "tcp",
                                  .state = way->up          ? "up"
                                           : way->endpoints ? "down"
                                                            : "closed",
                                  .bytes = way->bytes,
                                  .rate_bytes_per_s = way->rate_bytes_per_s};
    return options_give("leat_rail", ret_rail, offsetof(struct leat_rail, node), &out, sizeof(out), NULL);
}
