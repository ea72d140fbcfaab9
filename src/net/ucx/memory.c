/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c: the client's registrations: destinations, known to every rail that is open. A rail that is opened
 * again registers them again (path.c). See ucx.c.
 */
#include "net/ucx/endpoint.h"

void memory_number(struct ucx_ctx *ctx, struct net_memory *m)
{
    m->id = ctx->ids < PROTO_VIEWS_MAX ? ctx->ids++ : PROTO_VIEWS_MAX;
}

int memory_join(struct ucx_ctx *ctx, struct net_memory *m, unsigned r, struct leat_error *err)
{
    struct ucx_rail *rail = &ctx->rails[r];
    int rc = ucx_rail_map(rail, m->addr, m->bytes, false, m->device, &m->memh[r], err);
    ucs_status_t status = UCS_OK;
    if (rc == 0 && (ctx->put || m->device >= 0))
        status = ctx->ucx->ucp_rkey_pack(rail->context, m->memh[r], &m->key[r], &m->key_bytes[r]);
    if (status != UCS_OK)
        rc = error_set(err, ucx_errno(status), "rail %s gives no key: %s", rail->name,
                       ctx->ucx->ucs_status_string(status));
    /* Memory that UCX could not register has a key as well: the far end would send to our CPU. */
    if (rc == 0 && m->device >= 0 && !ucx_shape_fits(&ctx->shape, m->key[r], m->key_bytes[r]))
        rc = error_set(err, LEAT_UNSUPPORTED, "rail %s gives no key of the memory of GPU %d", rail->name,
                       m->device);
    return rc;
}

void memory_leave(struct ucx_ctx *ctx, struct net_memory *m, unsigned r)
{
    if (m->key[r])
        ctx->ucx->ucp_rkey_buffer_release(TAKE_PTR(m->key[r]));
    if (m->memh[r])
        ctx->ucx->ucp_mem_unmap(ctx->rails[r].context, TAKE_PTR(m->memh[r]));
}

void ucx_mem_deregister(struct net_ctx *base, struct net_memory *memory)
{
    struct ucx_ctx *ctx = container_of(base, struct ucx_ctx, base);
    if (!memory)
        return;
    for (unsigned i = 0; i < ctx->nrails; i++)
        memory_leave(ctx, memory, i);
    ctx->ndevices -= memory->device >= 0;
    list_remove(&memory->node);
    free(memory);
}

int ucx_mem_register(struct net_ctx *base, void *addr, uint64_t bytes, int device,
                     struct net_memory **ret_memory)
{
    struct ucx_ctx *ctx = container_of(base, struct ucx_ctx, base);
    struct net_memory *m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    *m = (struct net_memory){.addr = addr, .bytes = bytes, .device = device};
    memory_number(ctx, m);
    ctx->ndevices += device >= 0;
    list_push_back(&ctx->memories, &m->node);
    for (unsigned i = 0; i < ctx->nrails; i++) {
        int rc = ctx->rails[i].worker ? memory_join(ctx, m, i, &base->why) : 0;
        if (rc) {
            ucx_mem_deregister(base, m);
            return rc;
        }
    }
    *ret_memory = m;
    return 0;
}

bool net_rdma_may_put(const struct net_memory *memory)
{
    return memory->id < PROTO_VIEWS_MAX;
}
