/* SPDX-License-Identifier: Apache-2.0 */
/* What a client may say about RDMA on its data connection, and the keys that a daemon may answer with. No UCX is touched. */
#include "rpc/conn.h"
#include "net/ucx/endpoint.h"
#include "net/ucx/serve.h"

#define SHAPE                                                                                                \
    {                                                                                                        \
        .head = {1}, .bytes = 10                                                                             \
    }
#define KEYS 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int no_source(void *user, const struct proto_range *range, struct net_rdma_slot **ret_slot,
                     uint8_t **ret_addr, uint64_t *ret_bytes, struct leat_error *err)
{
    return error_set(err, LEAT_INVALID, "there are no regions");
}

/* A daemon's answer: a byte for its status, then its body. */
static void answer(struct bytes_in *in)
{
    static struct ucx_ctx ctx = {.shape = SHAPE};
    struct key keys[KEYS] = {{.state = KEY_ASKED, .asked_id = 1}, {.state = KEY_ASKED, .asked_id = 1}};
    struct net_endpoint ep = {.ctx = &ctx, .generation = 1, .nkeys = KEYS, .keys = keys};
    ep.frame.id = 1;
    ep.frame.status = bytes_get_u8(in) % 8 == 7 ? LEAT_STALE : 0;
    ep.frame.body_bytes = (uint32_t)bytes_left(in);
    ep.body = malloc(ep.frame.body_bytes + 1u); /* of its own: reading past its end is noticed */
    if (ep.body) {
        if (ep.frame.body_bytes)
            memcpy(ep.body, bytes_get(in, ep.frame.body_bytes), ep.frame.body_bytes);
        keys_came(&ep);
    }
    free(ep.body);
    for (unsigned i = 0; i < KEYS; i++)
        for (unsigned k = 0; k < NET_RDMA_RAILS_MAX; k++)
            free(keys[i].packed[k]);
}

/* Several requests, each with its length ahead, so that a view can be known when a put names it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct net_rdma_server server = {.lock = PTHREAD_MUTEX_INITIALIZER, .n = 1, .shape = SHAPE};
    struct net_rdma_peer *peer;
    struct bytes_in in = bytes_in_of(data, size);
    const struct net_later later = {0};
    list_init(&server.peers);
    if (net_rdma_peer_new(&server, &peer) < 0)
        return 0;
    while (bytes_left(&in)) {
        unsigned what = bytes_get_u8(&in);
        size_t len = bytes_get_u8(&in);
        len = MIN(len, bytes_left(&in));
        struct bytes_in one = bytes_in_of(bytes_get(&in, len), len);
        struct bytes_out reply = {0};
        struct leat_error err = {0};
        if (what % 4 == 0)
            net_rdma_peer_connect(peer, &one, &reply, &err);
        else if (what % 4 == 1)
            net_rdma_peer_view(peer, &one, &err);
        else if (what % 4 == 3)
            answer(&one);
        else
            net_rdma_peer_put(peer, &one, no_source, NULL, &later, &err);
        bytes_out_fini(&reply);
    }
    peer->n = 0; /* no rail runs that could be notified */
    net_rdma_peer_free(peer);
    return 0;
}
