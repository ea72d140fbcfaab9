/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c: the daemon's half of RDMA: connections and peers. Rails are serve_rail.c's, registrations serve_memory.c's.
 *
 * Happy path: one thread a rail waits for its worker. A client sends the secrets of its rails on its
 * authenticated data connection. It is then a peer, and a connection that shows one of them is accepted. The
 * first request for a region's keys registers it with every rail. From there on the client reads by itself.
 *
 * Failure modes: a connection without a known secret is refused. One that breaks is closed on its rail, and
 * nothing else happens: the client notices at its own end, asks for another data connection and begins again.
 * A region that cannot be registered is the asking client's error, with the limit that stands in the way.
 *
 * Invariants:
 * 1. A worker, its listener and its endpoints are touched by its rail's thread alone; registration goes through the context,
 *    which is shared (mt_workers_shared), by any thread.
 * 2. When net_rdma_slot_close returns no NIC can reach the memory any more: it waits for puts out of it; reads that were under
 *    way fail at the reader.
 * 3. Once a peer is off the list no connection is accepted in its name. The message that closes its
 *    connections reaches each rail's thread after whatever accepted them.
 */
#include "net/ucx/serve.h"

#include "base/log.h"
#include "net/ucx/verbs.h"

#include <stdio.h>

/* --- connections: on the rail's thread ----------------------------------------------------------------------------- */

void serve_ep_forget_keys(struct serve_ep *e)
{
    list_for_each_safe (node, &e->keys) {
        struct view_key *key = container_of(node, struct view_key, node);
        e->rail->rail.ucx->ucp_rkey_destroy(key->rkey);
        list_remove(node);
        free(key);
    }
}

void serve_ep_done(struct serve_ep *e)
{
    if (--e->out || !e->closed)
        return;
    serve_ep_forget_keys(e);
    list_remove(&e->node);
    free(e);
}

void serve_ep_close(struct serve_rail *r, struct serve_ep *e)
{
    const struct ucx_symbols *ucx = r->rail.ucx;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    e->closed = true;
    e->out++;
    list_remove(&e->node);
    list_push_back(&r->ended, &e->node);
    ucs_status_ptr_t request = ucx->ucp_ep_close_nbx(e->ep, &param);
    if (UCS_PTR_IS_PTR(request))
        ucx->ucp_request_free(request); /* UCX completes it */
    atomic_fetch_sub(&r->connections, 1);
    serve_ep_done(e);
    r->look = true;
}

struct serve_ep *serve_find(struct serve_rail *r, uint64_t serial)
{
    struct serve_ep *found = NULL;
    list_for_each (node, &r->eps) { /* the newest, if the client connected again */
        struct serve_ep *e = container_of(node, struct serve_ep, node);
        if (e->serial == serial && !e->failed)
            found = e;
    }
    return found;
}

/* Within progress: closed after it. */
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct serve_rail *r = arg;
    list_for_each (node, &r->eps) {
        struct serve_ep *e = container_of(node, struct serve_ep, node);
        if (e->ep != ep)
            continue;
        e->failed = r->look = true;
        if (status != UCS_ERR_CONNECTION_RESET) /* a client that left */
            atomic_fetch_add(&r->errors, 1);
        log_debug("rail %s: a connection ended: %s", r->rail.name, r->rail.ucx->ucs_status_string(status));
    }
}

void serve_look(struct serve_rail *r)
{
    while (r->look) {
        r->look = false;
        list_for_each_safe (node, &r->eps) {
            struct serve_ep *e = container_of(node, struct serve_ep, node);
            if (e->failed)
                serve_ep_close(r, e);
        }
        serve_puts_look(r);
    }
}

/* The peer whose secret this is, and which of its rails. 0: unknown, or a peer that does not know yet that
 * the rail was opened again, and so holds old keys. */
static uint64_t find_peer(const struct serve_rail *r, uint64_t secret, unsigned *ret_far)
{
    struct net_rdma_server *server = r->server;
    const uint32_t incarnation = atomic_load(&r->incarnation);
    uint64_t serial = 0;
    pthread_mutex_lock(&server->lock);
    list_for_each (node, &server->peers) {
        const struct net_rdma_peer *peer = container_of(node, struct net_rdma_peer, node);
        for (unsigned i = 0; i < peer->n && !serial; i++)
            if (secret && peer->secrets[i] == secret && peer->told[r->number] == incarnation) {
                serial = peer->serial;
                *ret_far = i;
            }
    }
    pthread_mutex_unlock(&server->lock);
    return serial;
}

static unsigned count_eps(const struct serve_rail *r, uint64_t serial)
{
    unsigned n = 0;
    list_for_each (node, &r->eps)
        n += container_of(node, struct serve_ep, node)->serial == serial;
    return n;
}

static void on_up(void *request, ucs_status_t status, void *arg)
{
    struct serve_ep *e = arg;
    struct serve_rail *r = e->rail;
    e->up = status == UCS_OK;
    e->failed |= status != UCS_OK;
    r->look = true;
    if (request)
        r->rail.ucx->ucp_request_free(request);
    serve_ep_done(e);
}

void serve_on_connection(ucp_conn_request_h request, void *arg)
{
    struct serve_rail *r = arg;
    const struct ucx_symbols *ucx = r->rail.ucx;
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};
    uint64_t serial = 0;
    unsigned far = 0;
    if (ucx->ucp_conn_request_query(request, &attr) == UCS_OK &&
        (attr.field_mask & UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID))
        serial = find_peer(r, attr.client_id, &far);
    struct serve_ep *e = serial && count_eps(r, serial) < PEER_ENDPOINTS_MAX ? calloc(1, sizeof(*e)) : NULL;
    if (!e) {
        atomic_fetch_add(&r->refused, 1);
        ucx->ucp_listener_reject(r->listener, request);
        return;
    }
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .conn_request = request,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {on_error, r}};
    ucs_status_t status = ucx->ucp_ep_create(r->rail.worker, &params, &e->ep);
    if (status != UCS_OK) { /* the request is used up */
        log_debug("rail %s: a connection failed: %s", r->rail.name, ucx->ucs_status_string(status));
        atomic_fetch_add(&r->errors, 1);
        free(e);
        return;
    }
    e->rail = r;
    e->serial = serial;
    e->far = far;
    list_init(&e->keys);
    list_push_back(&r->eps, &e->node);
    atomic_fetch_add(&r->connections, 1);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_up,
                                 .user_data = e};
    e->out++;
    ucs_status_ptr_t up = ucx->ucp_ep_flush_nbx(e->ep, &param);
    if (!UCS_PTR_IS_PTR(up))
        on_up(NULL, UCS_PTR_STATUS(up), e);
}

/* --- the server ------------------------------------------------------------------------------------------------------- */

int net_rdma_server_new(const struct net_rdma_config *config, struct net_rdma_server **ret_server,
                        struct leat_error *err)
{
    struct ucx_found found;
    const struct ucx_symbols *ucx;
    int rc = ucx_rails_find(config, true, &found, err);
    if (rc == 0)
        rc = ucx_load(&ucx, err);
    if (rc)
        return rc;
    struct net_rdma_server *server = calloc(1, sizeof(*server));
    if (!server)
        return error_set(err, -ENOMEM, "out of memory for the rails");
    pthread_mutex_init(&server->lock, NULL);
    list_init(&server->peers);
    list_init(&server->memories);
    server->tls = config->tls ? strdup(config->tls) : NULL;
    struct leat_error why = {0};
    if (config->tls && !server->tls)
        found.n = 0, rc = error_set(&why, -ENOMEM, "out of memory for the rails");
    const bool emulates = ucx_is_tcp(config) || !ucx_refuse_emulation();
    struct serve_rail *open = NULL;
    for (unsigned i = 0; i < found.n && rc == 0; i++) {
        struct serve_rail *r = &server->rails[server->n];
        rc = serve_rail_start(server, r, &found.rails[i], &why);
        server->n += rc == 0;
        if (rc == 0 && atomic_load(&r->up))
            open = r;
        else if (rc == 0 && found.n > 1)
            log_warning("continuing without a rail until its device is there: %s", why.message);
    }
    if (rc == 0)
        rc = open ? ucx_shape_take(&open->rail, &server->shape, &why) : why.code;
    server->may_write = !server->shape.read_only || emulates;
    if (rc) {
        net_rdma_server_free(server);
        return error_set(err, rc, "%s", why.message);
    }
    *ret_server = server;
    return 0;
}

void net_rdma_server_free(struct net_rdma_server *server)
{
    if (!server)
        return;
    assert(list_empty(&server->peers));
    for (unsigned i = 0; i < server->n; i++)
        serve_rail_stop(&server->rails[i]);
    pthread_mutex_destroy(&server->lock);
    free(server->tls);
    free(server);
}

/* --- peers: any thread --------------------------------------------------------------------------------------------- */

int net_rdma_peer_new(struct net_rdma_server *server, struct net_rdma_peer **ret_peer)
{
    struct net_rdma_peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return -ENOMEM;
    peer->server = server;
    atomic_init(&peer->refs, 1);
    pthread_mutex_lock(&server->lock);
    peer->serial = ++server->serials;
    list_push_front(&server->peers, &peer->node);
    pthread_mutex_unlock(&server->lock);
    *ret_peer = peer;
    return 0;
}

void net_rdma_peer_ref(struct net_rdma_peer *peer)
{
    atomic_fetch_add(&peer->refs, 1);
}

void net_rdma_peer_unref(struct net_rdma_peer *peer)
{
    if (atomic_fetch_sub(&peer->refs, 1) != 1)
        return;
    for (unsigned i = 0; i < PROTO_VIEWS_MAX; i++)
        serve_view_free(peer->views[i]);
    free(peer);
}

struct closing {
    struct serve_rail *rail;
    uint64_t serial;
};

static void close_posted(void *arg)
{
    struct closing c = *(struct closing *)arg;
    free(arg);
    list_for_each_safe (node, &c.rail->eps) {
        struct serve_ep *e = container_of(node, struct serve_ep, node);
        if (e->serial == c.serial)
            serve_ep_close(c.rail, e);
    }
    serve_look(c.rail);
}

void net_rdma_peer_free(struct net_rdma_peer *peer)
{
    if (!peer)
        return;
    struct net_rdma_server *server = peer->server;
    pthread_mutex_lock(&server->lock);
    list_remove(&peer->node);
    peer->gone = true;
    pthread_mutex_unlock(&server->lock);
    for (unsigned i = 0; peer->n && i < server->n; i++) {
        struct closing *c;
        /* It must not fail: the client would keep a way to read. */
        while (!(c = malloc(sizeof(*c))))
            usleep(1000);
        *c = (struct closing){&server->rails[i], peer->serial};
        while (loop_post(server->rails[i].loop, close_posted, c) < 0)
            usleep(1000);
    }
    net_rdma_peer_unref(peer);
}

int net_rdma_peer_connect(struct net_rdma_peer *peer, struct bytes_in *in, struct bytes_out *reply,
                          struct leat_error *err)
{
    struct net_rdma_server *server = peer->server;
    uint32_t n = bytes_get_u32(in);
    uint64_t secrets[NET_RDMA_RAILS_MAX] = {0};
    if (in->bad || n == 0 || n > NET_RDMA_RAILS_MAX)
        return error_set(err, LEAT_INVALID, "1 to %u rails", NET_RDMA_RAILS_MAX);
    for (uint32_t i = 0; i < n; i++)
        secrets[i] = bytes_get_u64(in);
    if (bytes_in_done(in) < 0)
        return LEAT_CORRUPT;
    pthread_mutex_lock(&server->lock);
    memcpy(peer->secrets, secrets, sizeof(secrets));
    peer->n = n;
    bytes_put_u32(reply, server->n);
    for (unsigned i = 0; i < server->n; i++) {
        const struct serve_rail *r = &server->rails[i];
        peer->told[i] = r->address[0] ? atomic_load(&r->incarnation) : 0;
        bytes_put_u32(reply, peer->told[i]);
        bytes_put_str(reply, r->address);
    }
    pthread_mutex_unlock(&server->lock);
    return 0;
}

/* --- what there is to tell ------------------------------------------------------------------------------------------------ */

void net_rdma_server_stats(struct net_rdma_server *server, struct net_rdma_stats *ret_stats)
{
    struct net_rdma_stats s = {.registrations = atomic_load(&server->registrations),
                               .registered_bytes = atomic_load(&server->registered_bytes),
                               .key_requests = atomic_load(&server->key_requests),
                               .may_write = server->may_write,
                               .nrails = server->n};
    for (unsigned i = 0; i < server->n; i++) {
        const struct serve_rail *r = &server->rails[i];
        snprintf(s.rails[i].name, sizeof(s.rails[i].name), "%s", r->wanted.name);
        s.rails[i].up = atomic_load(&r->up);
        s.rails[i].connections = atomic_load(&r->connections);
        s.rails[i].refused = atomic_load(&r->refused);
        s.rails[i].errors = atomic_load(&r->errors);
        s.rails[i].put_bytes = atomic_load(&r->put_bytes);
    }
    *ret_stats = s;
}
