/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c: the keys of regions that a daemon sends, as a client takes them in. Bytes that are not shaped like
 * keys of our own rails never reach UCX (ucx_shape_fits); they break the endpoint, as does a key that was not
 * asked for. See ucx.c.
 *
 * A key belongs to one incarnation of the daemon's rail, and is used on connections to that alone: a path to
 * a reopened rail is connected when all keys that are here are of the new incarnation (keys_renew). A path
 * that brings a key of another incarnation is broken.
 */
#include "net/ucx/endpoint.h"

/* The paths that its parts are not good for. */
static void break_paths(struct net_endpoint *ep, const struct key *key)
{
    for (unsigned i = 0; i < ep->npaths; i++) {
        struct ucx_path *p = &ep->paths[i];
        if (p->state < PATH_CLOSING &&
            (!key->packed[p->far_rail] || key->incarnation[p->far_rail] != p->incarnation))
            path_broke(p);
    }
}

static int take_part(struct net_endpoint *ep, struct key *key, unsigned rail, struct bytes_in *in)
{
    uint32_t incarnation = bytes_get_u32(in), len = bytes_get_u32(in);
    const void *packed = len <= PROTO_KEY_BYTES ? bytes_get(in, len) : NULL;
    uint8_t *copy = NULL;
    if (!packed || (len && !ucx_shape_fits(&ep->ctx->shape, packed, len)))
        return LEAT_CORRUPT;
    if (len && !(copy = ucx_key_copy(packed, len)))
        return -ENOMEM;
    free(key->packed[rail]);
    key->packed[rail] = copy;
    key->incarnation[rail] = incarnation;
    return 0;
}

static int take_key(struct net_endpoint *ep, struct bytes_in *in)
{
    uint32_t gid = bytes_get_u32(in), generation = bytes_get_u32(in);
    uint64_t addr = bytes_get_u64(in), bytes = bytes_get_u64(in);
    uint32_t nrails = bytes_get_u32(in);
    if (in->bad || gid >= ep->nkeys || nrails == 0 || nrails > NET_RDMA_RAILS_MAX)
        return LEAT_CORRUPT;
    struct key *key = &ep->keys[gid];
    if ((key->state != KEY_ASKED && !key->renewed) || key->asked_id != ep->frame.id)
        return LEAT_CORRUPT;
    if (generation != ep->generation || (key->renewed && (addr != key->addr || bytes != key->bytes)))
        return LEAT_STALE;
    for (uint32_t i = 0; i < nrails; i++) {
        int rc = take_part(ep, key, i, in);
        if (rc)
            return rc;
    }
    key->addr = addr;
    key->bytes = bytes;
    key->state = KEY_HERE;
    key->renewed = false;
    break_paths(ep, key);
    return 0;
}

static void refuse_keys(struct net_endpoint *ep, int status)
{
    for (uint32_t i = 0; i < ep->nkeys; i++) {
        struct key *key = &ep->keys[i];
        if (key->asked_id != ep->frame.id)
            continue;
        key->renewed = false; /* what is here is good for the other rails */
        if (key->state == KEY_ASKED) {
            key->state = KEY_REFUSED;
            key->status = status;
            ep->refused = true;
        }
    }
}

int keys_came(struct net_endpoint *ep)
{
    reconnect_at(ep->ctx, 1); /* some path may have waited for them */
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

static bool fits(const struct key *key, const struct ucx_path *p)
{
    return key->state != KEY_HERE ||
           (key->packed[p->far_rail] && key->incarnation[p->far_rail] == p->incarnation);
}

enum keys_fit keys_fit(const struct ucx_path *p)
{
    const struct net_endpoint *ep = p->endpoint;
    bool lack = false;
    for (uint32_t i = 0; i < ep->nkeys; i++) {
        if (fits(&ep->keys[i], p))
            continue;
        if (ep->keys[i].renewed)
            return KEYS_ASKED;
        lack = true;
    }
    return lack ? KEYS_LACK : KEYS_FIT;
}

int keys_renew(const struct ucx_path *p)
{
    struct net_endpoint *ep = p->endpoint;
    uint32_t gids[PROTO_KEYS_MAX], n = 0;
    int rc = 0;
    for (uint32_t i = 0; i < ep->nkeys && rc == 0; i++) {
        if (!fits(&ep->keys[i], p) && !ep->keys[i].renewed)
            gids[n++] = i;
        if (n == PROTO_KEYS_MAX || (n && i + 1 == ep->nkeys)) {
            rc = endpoint_ask_keys(ep, gids, n);
            n = 0;
        }
    }
    return rc;
}
