/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm.c: regions of this host, mapped: a read is one copy with its checksum fused in, done inside submit().
 *
 * Nothing is ever in flight, so there are no credits, no deadlines and no quarantine; poll() only reports the
 * two events. A dead owner is not noticed here (the memory stays mapped), but by the client's socket.
 */
#include "base/crc32c.h"
#include "base/ledger.h"
#include "net/events.h"

struct net_endpoint {
    struct shm_ctx *ctx;
    struct net_peer peer; /* `regions` is by reference: the caller maps regions as they come */
};

struct shm_ctx {
    struct net_ctx base;
    struct list events;
};

static inline const char *source_of(const struct net_endpoint *ep, const struct net_read *r)
{
    if (unlikely(r->mr_gid >= ep->peer.nregions))
        return NULL;
    const char *region = ep->peer.regions[r->mr_gid];
    if (unlikely(!region || r->offset > ep->peer.region_bytes ||
                 r->bytes > ep->peer.region_bytes - r->offset))
        return NULL;
    return region + r->offset;
}

static int shm_submit(struct net_endpoint *ep, struct net_op *op)
{
    struct shm_ctx *ctx = ep->ctx;
    uint64_t copied = 0;
    int status = 0;
    const char *next = op->n ? source_of(ep, &op->reads[0]) : NULL;
    for (uint32_t i = 0; i < op->n; i++) {
        struct net_read *r = &op->reads[i];
        const char *src = next;
        next = i + 1 < op->n ? source_of(ep, &op->reads[i + 1]) : NULL;
        if (unlikely(!src)) {
            r->crc = 0;
            r->status = LEAT_INVALID;
            status = status ? status : LEAT_INVALID;
            continue;
        }
        r->crc = crc32c_copy_ahead(0, r->dst, src, r->bytes, next, next ? op->reads[i + 1].bytes : 0);
        r->status = 0;
        copied += r->bytes;
    }
    ledger_add(LEDGER_GATHER, copied);
    net_op_begin(&ctx->base, ep, op, copied);
    op->status = status;
    net_op_done(&ctx->base, op, &ctx->events);
    net_op_quiesced(op, &ctx->events);
    return 0;
}

static int shm_mem_register(struct net_ctx *ctx, void *addr, uint64_t bytes, int device,
                            struct net_memory **ret_memory)
{
    *ret_memory = NULL;
    return 0;
}

static void shm_mem_deregister(struct net_ctx *ctx, struct net_memory *memory) {}

static int shm_connect(struct net_ctx *base, const struct net_peer *peer, uint64_t deadline_ns,
                       struct net_endpoint **ret_endpoint, struct leat_error *err)
{
    if (!peer->regions && peer->nregions)
        return error_set(err, LEAT_INVALID, "shared memory: node %u has no mapped regions", peer->node);
    struct net_endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return error_set(err, -ENOMEM, "no memory for an endpoint");
    ep->ctx = container_of(base, struct shm_ctx, base);
    ep->peer = *peer;
    *ret_endpoint = ep;
    return 0;
}

static void shm_disconnect(struct net_ctx *ctx, struct net_endpoint *ep)
{
    free(ep);
}

static int shm_poll(struct net_ctx *base, struct net_event *events, unsigned max, int timeout_ms)
{
    struct shm_ctx *ctx = container_of(base, struct shm_ctx, base);
    return (int)net_events_take(&ctx->events, NULL, events, max);
}

static int shm_event_fd(struct net_ctx *ctx)
{
    return -1;
}

static void shm_free(struct net_ctx *base)
{
    free(container_of(base, struct shm_ctx, base));
}

static const struct net_ops shm_ops = {
    .name = "shm",
    .caps = NET_CAP_INLINE | NET_CAP_ONE_SIDED,
    .mem_register = shm_mem_register,
    .mem_deregister = shm_mem_deregister,
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .submit = shm_submit,
    .poll = shm_poll,
    .event_fd = shm_event_fd,
    .free = shm_free,
};

int net_shm_new(struct net_ctx **ret_ctx)
{
    struct shm_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx)
        return -ENOMEM;
    ctx->base.ops = &shm_ops;
    list_init(&ctx->events);
    *ret_ctx = &ctx->base;
    return 0;
}
