/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c: the keys of regions that a daemon sends, as a client takes them in. What is not shaped as keys are on our own rails never
 * reaches UCX (ucx_shape_fits), and breaks the endpoint, as does a key that was not asked for. See ucx.c.
 */
#include "net/ucx/endpoint.h"

static int take_key(struct net_endpoint *ep, struct bytes_in *in)
{
    uint32_t gid = bytes_get_u32(in), generation = bytes_get_u32(in);
    uint64_t addr = bytes_get_u64(in), bytes = bytes_get_u64(in);
    uint32_t nrails = bytes_get_u32(in);
    if (in->bad || gid >= ep->nkeys || nrails == 0 || nrails > NET_RDMA_RAILS_MAX)
        return LEAT_CORRUPT;
    struct key *key = &ep->keys[gid];
    if (key->state != KEY_ASKED || key->asked_id != ep->frame.id)
        return LEAT_CORRUPT;
    if (generation != ep->generation)
        return LEAT_STALE;
    for (uint32_t i = 0; i < nrails; i++) {
        uint32_t len = bytes_get_u32(in);
        const void *packed = len <= PROTO_KEY_BYTES ? bytes_get(in, len) : NULL;
        if (!packed || !ucx_shape_fits(&ep->ctx->shape, packed, len))
            return LEAT_CORRUPT;
        if (!(key->packed[i] = ucx_key_copy(packed, len)))
            return -ENOMEM;
    }
    key->addr = addr;
    key->bytes = bytes;
    key->state = KEY_HERE;
    return 0;
}

static void refuse_keys(struct net_endpoint *ep, int status)
{
    for (uint32_t i = 0; i < ep->nkeys; i++)
        if (ep->keys[i].state == KEY_ASKED && ep->keys[i].asked_id == ep->frame.id) {
            ep->keys[i].state = KEY_REFUSED;
            ep->keys[i].status = status;
        }
    ep->refused = true;
}

int keys_came(struct net_endpoint *ep)
{
    if (ep->frame.status < 0) {
        refuse_keys(ep, ep->frame.status);
        return 0;
    }
    struct bytes_in in = bytes_in_of(ep->body, ep->frame.body_bytes);
    uint32_t n = bytes_get_u32(&in);
    if (in.bad || n > PROTO_KEYS_MAX)
        return LEAT_CORRUPT;
    for (uint32_t i = 0; i < n; i++) {
        int rc = take_key(ep, &in);
        if (rc)
            return rc;
    }
    return bytes_in_done(&in);
}
