/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rails.c: the endpoints by which one view, or the single reads of a working set, reach the nodes that hold its regions.
 *
 * The node we talk to is read through shared memory, the others through connections that our daemon opens and
 * authenticates for us (BROKER), so that no token ever reaches this process. Failure modes: a node that cannot be
 * reached is LEAT_PEER_GONE with its address. Invariants: one thread at a time; `unquiesced` operations still own their
 * destinations, and rails_free waits for them by tearing their connections down.
 */
#include "client/client.h"

#include "base/clock.h"

/* The table that this user's processes share. Whatever goes wrong, a private one does. */
static void credit_ask(struct leat_client *client)
{
    pthread_mutex_lock(&client->credit_lock);
    if (!client->credit_asked) {
        struct net_reply reply;
        const struct rpc_how how = {.deadline_ns = client_deadline(client, 0)};
        client->credit_asked = true;
        if (rpc_call(client, PROTO_CREDITS, NULL, NULL, 0, &how, &reply, NULL) == 0) {
            struct bytes_in in = bytes_in_of(reply.body.data, reply.body.len);
            uint32_t slot = bytes_get_u32(&in);
            if (bytes_in_done(&in) == 0 && reply.nfds == 1 && slot < CREDIT_SLOTS &&
                credit_table_map(reply.fds[0], &client->credits) == 0)
                client->credit_slot = slot;
            net_reply_fini(&reply);
        }
    }
    pthread_mutex_unlock(&client->credit_lock);
}

int rails_new(struct leat_ws *ws, uint64_t inflight_bytes, bool no_shm, struct rails **ret_rails)
{
    struct rails *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->ws = ws;
    r->local_node = no_shm ? UINT32_MAX : ws->local_node;
    r->all_local = ws->all_local && !no_shm;
    r->endpoints = calloc((size_t)ws->info.nnodes + 1, sizeof(struct net_endpoint *));
    int rc = r->endpoints ? net_shm_new(&r->shm) : -ENOMEM;
    if (!rc && !r->all_local) {
        rc = net_tcp_new(&r->tcp);
        if (!rc && !ws->all_local)
            credit_ask(ws->client);
        if (!rc)
            rc = credit_init(&r->credit, ws->client->credits, ws->client->credit_slot, 0, inflight_bytes,
                             ws->all_local);
    }
    if (rc) {
        rails_free(r);
        return rc;
    }
    *ret_rails = r;
    return 0;
}

static struct net_ctx *ctx_of(struct rails *r, uint32_t node)
{
    return rails_is_local(r, node) ? r->shm : r->tcp;
}

static int broker(struct rails *r, uint32_t node, const struct rpc_how *how, int *ret_fd,
                  struct leat_error *err)
{
    struct bytes_out body = {0};
    struct net_reply reply;
    bytes_put_u64(&body, r->ws->info.ws);
    bytes_put_u32(&body, r->ws->info.nodes[node].id);
    int rc = rpc_call(r->ws->client, PROTO_BROKER, &body, NULL, 0, how, &reply, err);
    bytes_out_fini(&body);
    if (rc)
        return error_prefix(err, rc, "node %s", r->ws->info.nodes[node].address);
    if (reply.nfds != 1)
        rc = error_set(err, LEAT_CORRUPT, "the daemon brokered a connection and sent no descriptor");
    else
        *ret_fd = TAKE_FD(reply.fds[0]);
    net_reply_fini(&reply);
    return rc;
}

int rails_connect(struct rails *r, uint32_t node, const struct rpc_how *how, struct leat_error *err)
{
    const struct proto_ws *info = &r->ws->info;
    if (r->endpoints[node])
        return 0;
    struct net_peer peer = {.node = info->nodes[node].id,
                            .address = info->nodes[node].address,
                            .generation = info->generation,
                            .connected_fd = -1,
                            .regions = r->ws->maps,
                            .nregions = info->nregions,
                            .region_bytes = info->region_bytes};
    if (!rails_is_local(r, node)) {
        int rc = broker(r, node, how, &peer.connected_fd, err);
        if (rc)
            return rc;
        peer.regions = NULL;
    }
    struct net_ctx *ctx = ctx_of(r, node);
    int rc = ctx->ops->connect(ctx, &peer, how->deadline_ns, &r->endpoints[node], err);
    if (rc && peer.connected_fd >= 0)
        close(peer.connected_fd); /* an endpoint owns it only once it is there */
    return rc;
}

void rails_disconnect(struct rails *r, uint32_t node)
{
    struct net_endpoint *endpoint = TAKE_PTR(r->endpoints[node]);
    struct net_ctx *ctx = ctx_of(r, node);
    if (endpoint)
        ctx->ops->disconnect(ctx, endpoint);
}

void rails_free(struct rails *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->endpoints && i < r->ws->info.nnodes; i++)
        if (r->endpoints[i])
            rails_disconnect(r, i);
    /* What was torn down is quiesced by the next polls; a bounded number, should a transport break its word. */
    for (unsigned i = 0; r->tcp && r->unquiesced && i < 1000; i++)
        rails_progress(r, 1);
    credit_fini(&r->credit);
    if (r->tcp)
        net_free(r->tcp);
    if (r->shm)
        net_free(r->shm);
    free(r->endpoints);
    free(r);
}
