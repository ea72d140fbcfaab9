/* SPDX-License-Identifier: Apache-2.0 */
/* What a client may say about RDMA on its data connection: the first byte chooses the request, the rest is its body. No UCX is touched. */
#include "net/conn.h"
#include "net/ucx/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int no_source(void *user, const struct proto_range *range, struct net_rdma_slot **ret_slot,
                     uint8_t **ret_addr, uint64_t *ret_bytes, struct leat_error *err)
{
    return error_set(err, LEAT_INVALID, "there are no regions");
}

/* Several requests, each with its length ahead, so that a view can be known when a put names it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct net_rdma_server server = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .n = 1, .sample_key = {1}, .sample_key_bytes = 10};
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
        if (what % 3 == 0)
            net_rdma_peer_connect(peer, &one, &reply, &err);
        else if (what % 3 == 1)
            net_rdma_peer_view(peer, &one, &err);
        else
            net_rdma_peer_put(peer, &one, no_source, NULL, &later, &err);
        bytes_out_fini(&reply);
    }
    peer->n = 0; /* no rail runs that could be told */
    net_rdma_peer_free(peer);
    return 0;
}
