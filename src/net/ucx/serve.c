/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c: the daemon's half of RDMA.
 *
 * Happy path: one thread a rail waits for its worker. A client says on its authenticated data connection by which secrets its
 * rails will be known; it is then a peer, and a connection that shows one of them is accepted. It asks for keys; the first who does
 * has the region registered with every rail. From there on it reads by itself.
 *
 * Failure modes: a connection without a known secret is turned away; one that breaks is closed on its rail, and nothing else
 * happens: the client notices at its own end, asks for another data connection and begins anew. A region that cannot be registered is the
 * asking client's error, with the limit that stands in the way.
 *
 * Invariants:
 * 1. A worker, its listener and its endpoints are touched by its rail's thread alone; registration goes through the context,
 *    which is shared (mt_workers_shared), by whoever needs it.
 * 2. When net_rdma_slot_close returns no NIC can reach the memory any more: it waits for puts out of it; reads that were under
 *    way fail at the reader.
 * 3. Once a peer is off the list no connection is accepted in its name; the message that closes those it has comes later to
 *    each rail's thread than whatever accepted them.
 */
#include "net/ucx/serve.h"

#include "base/log.h"
#include "net/topo/topo.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/epoll.h>

#define END_TURNS 5000 /* of a millisecond, for puts to come back */

/* Of every slot, held for a moment. Who registers a region, or takes its registration down, has marked its slot `busy` and holds no lock
 * meanwhile: only who wants the same region waits. */
static pthread_mutex_t slot_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t slot_changed = PTHREAD_COND_INITIALIZER;

/* --- connections: on the rail's thread ----------------------------------------------------------------------------- */

static void ep_free(struct serve_ep *e)
{
    list_for_each_safe (node, &e->keys) {
        struct view_key *key = container_of(node, struct view_key, node);
        e->rail->rail.ucx->ucp_rkey_destroy(key->rkey);
        free(key);
    }
    free(e);
}

void serve_ep_done(struct serve_ep *e)
{
    if (--e->out == 0 && e->closed)
        ep_free(e);
}

/* What was out of it comes back by its callbacks. */
static void close_ep(struct serve_rail *r, struct serve_ep *e)
{
    const struct ucx_symbols *ucx = r->rail.ucx;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    e->closed = true;
    e->out++;
    list_remove(&e->node);
    ucs_status_ptr_t request = ucx->ucp_ep_close_nbx(e->ep, &param);
    if (UCS_PTR_IS_PTR(request))
        ucx->ucp_request_free(request); /* it goes on by itself */
    atomic_fetch_sub(&r->connections, 1);
    serve_ep_done(e);
    r->look = true;
}

struct serve_ep *serve_find(struct serve_rail *r, uint64_t serial)
{
    struct serve_ep *found = NULL;
    list_for_each (node, &r->eps) { /* the newest, if the client connected anew */
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
                close_ep(r, e);
        }
        serve_puts_look(r);
    }
}

static void progress(struct loop_source *source, uint32_t events)
{
    struct serve_rail *r = container_of(source, struct serve_rail, source);
    ucx_rail_progress(&r->rail);
    serve_look(r);
}

static int arm(struct loop_source *source)
{
    return ucx_rail_arm(&container_of(source, struct serve_rail, source)->rail);
}

/* Whose secret it is, and of which of its rails; 0: nobody's. */
static uint64_t find_peer(struct net_rdma_server *server, uint64_t secret, unsigned *ret_far)
{
    uint64_t serial = 0;
    pthread_mutex_lock(&server->lock);
    list_for_each (node, &server->peers) {
        const struct net_rdma_peer *peer = container_of(node, struct net_rdma_peer, node);
        for (unsigned i = 0; i < peer->n && !serial; i++)
            if (secret && peer->secrets[i] == secret) {
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

static void on_connection(ucp_conn_request_h request, void *arg)
{
    struct serve_rail *r = arg;
    const struct ucx_symbols *ucx = r->rail.ucx;
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};
    uint64_t serial = 0;
    unsigned far = 0;
    if (ucx->ucp_conn_request_query(request, &attr) == UCS_OK &&
        (attr.field_mask & UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID))
        serial = find_peer(r->server, attr.client_id, &far);
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

/* --- rails ------------------------------------------------------------------------------------------------------------ */

static void *thread_main(void *arg)
{
    struct serve_rail *r = arg;
    loop_run(r->loop);
    loop_remove(&r->source);
    list_for_each_safe (node, &r->eps)
        close_ep(r, container_of(node, struct serve_ep, node));
    for (unsigned i = 0; (i == 0 || r->puts) && i < END_TURNS; i++) {
        ucx_rail_progress(&r->rail);
        serve_look(r);
        if (r->puts)
            usleep(1000);
    }
    return NULL;
}

static int listen_on(struct serve_rail *r, struct leat_error *err)
{
    const struct ucx_symbols *ucx = r->rail.ucx;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&r->rail.address, ucx_address_len(&r->rail.address)},
        .conn_handler = {on_connection, r}};
    ucs_status_t status = ucx->ucp_listener_create(r->rail.worker, &params, &r->listener);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    if (status == UCS_OK)
        status = ucx->ucp_listener_query(r->listener, &attr);
    if (status != UCS_OK)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "rail %s cannot take connections: %s (is rdma_cm loaded, and /dev/infiniband/rdma_cm "
            "there for us?)",
            r->rail.name, ucx->ucs_status_string(status));
    ucx_address_print((const struct sockaddr *)&attr.sockaddr, r->address);
    return 0;
}

static void rail_stop(struct serve_rail *r)
{
    if (r->running) {
        loop_stop(r->loop);
        pthread_join(r->thread, NULL);
    }
    loop_free(r->loop);
    if (r->listener)
        r->rail.ucx->ucp_listener_destroy(r->listener);
    ucx_rail_close(&r->rail);
    *r = (struct serve_rail){0};
}

static int rail_start(struct net_rdma_server *server, struct serve_rail *r,
                      const struct net_rdma_config *config, const struct ucx_wanted *wanted,
                      struct leat_error *err)
{
    const char *name = wanted->name;
    *r = (struct serve_rail){.server = server, .number = (unsigned)(r - server->rails)};
    list_init(&r->eps);
    list_init(&r->waiting);
    int rc = ucx_rail_open(config, wanted, 0, &r->rail, err);
    if (rc == 0)
        rc = listen_on(r, err);
    if (rc == 0 && (rc = loop_new(&r->loop)) < 0)
        error_sys(err, rc, "rail %s: cannot start its loop", name);
    r->source = (struct loop_source){.fd = r->rail.fd, .events = EPOLLIN, .arm = arm, .progress = progress};
    if (rc == 0 && (rc = loop_add(r->loop, &r->source)) < 0)
        error_sys(err, rc, "rail %s: cannot watch it", name);
    if (rc == 0 && (rc = -pthread_create(&r->thread, NULL, thread_main, r)) < 0)
        error_sys(err, rc, "rail %s: cannot start its thread", name);
    if (rc < 0) {
        rail_stop(r);
        return rc;
    }
    r->running = true;
    pthread_setname_np(r->thread, "leat-rdma");
    topo_pin_to_rail(r->thread, name);
    return 0;
}

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
    struct leat_error why = {0};
    for (unsigned i = 0; i < found.n; i++) {
        int one = rail_start(server, &server->rails[server->n], config, &found.rails[i], &why);
        if (one < 0 && found.n > 1)
            log_warning("going on without a rail: %s", why.message);
        if (one < 0)
            rc = one;
        else
            server->n++;
    }
    if (server->n)
        rc = ucx_shape_take(&server->rails[0].rail, &server->shape, &why);
    if (rc && (server->n == 0 || !server->shape.bytes)) {
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
        rail_stop(&server->rails[i]);
    pthread_mutex_destroy(&server->lock);
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
            close_ep(c.rail, e);
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
    pthread_mutex_unlock(&server->lock);
    bytes_put_u32(reply, server->n);
    for (unsigned i = 0; i < server->n; i++)
        bytes_put_str(reply, server->rails[i].address);
    return 0;
}

/* --- registration: any thread ------------------------------------------------------------------------------------------ */

static void memory_free(struct net_rdma_memory *m)
{
    if (!m)
        return;
    for (unsigned i = 0; i < m->server->n; i++) {
        const struct ucx_rail *rail = &m->server->rails[i].rail;
        if (m->key[i])
            rail->ucx->ucp_rkey_buffer_release(m->key[i]);
        if (m->memh[i])
            rail->ucx->ucp_mem_unmap(rail->context, m->memh[i]);
    }
    atomic_fetch_sub(&m->server->registered_bytes, m->bytes);
    atomic_fetch_sub(&m->server->registrations, 1);
    free(m);
}

static int memory_new(struct net_rdma_server *server, void *addr, uint64_t bytes,
                      struct net_rdma_memory **ret_memory, struct leat_error *err)
{
    struct net_rdma_memory *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, -ENOMEM, "out of memory for a registration");
    m->server = server;
    m->bytes = bytes;
    atomic_fetch_add(&server->registrations, 1);
    atomic_fetch_add(&server->registered_bytes, bytes);
    for (unsigned i = 0; i < server->n; i++) {
        struct ucx_rail *rail = &server->rails[i].rail;
        int rc = ucx_rail_map(rail, addr, bytes, true, -1, &m->memh[i], err);
        ucs_status_t status =
            rc ? UCS_OK : rail->ucx->ucp_rkey_pack(rail->context, m->memh[i], &m->key[i], &m->key_bytes[i]);
        if (status != UCS_OK)
            rc = error_set(err, ucx_errno(status), "rail %s gives no key: %s", rail->name,
                           rail->ucx->ucs_status_string(status));
        if (rc) {
            memory_free(m);
            return rc;
        }
    }
    *ret_memory = m;
    return 0;
}

/* With slot_lock held, which is let go while the region is registered. 0: slot->memory is there as long as the lock is held. */
static int slot_memory(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
                       struct leat_error *err)
{
    while (slot->busy)
        pthread_cond_wait(&slot_changed, &slot_lock);
    if (slot->closed)
        return error_set(err, LEAT_STALE, "the region was given back");
    if (slot->memory)
        return 0;
    slot->busy = true;
    pthread_mutex_unlock(&slot_lock);
    struct net_rdma_memory *memory = NULL;
    int rc = memory_new(server, addr, bytes, &memory, err);
    pthread_mutex_lock(&slot_lock);
    slot->busy = false;
    pthread_cond_broadcast(&slot_changed);
    slot->memory = memory;
    if (rc == 0)
        atomic_store(&slot->known, true);
    if (rc == 0 && slot->closed) /* who closes it waits for us, and takes the registration down */
        rc = error_set(err, LEAT_STALE, "the region was given back");
    return rc;
}

int net_rdma_put_keys(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
                      struct bytes_out *reply, struct leat_error *err)
{
    atomic_fetch_add(&server->key_requests, 1);
    pthread_mutex_lock(&slot_lock);
    int rc = slot_memory(server, slot, addr, bytes, err);
    if (rc == 0) {
        const struct net_rdma_memory *m = slot->memory;
        bytes_put_u64(reply, (uintptr_t)addr);
        bytes_put_u64(reply, bytes);
        bytes_put_u32(reply, server->n);
        for (unsigned i = 0; i < server->n; i++) {
            bytes_put_u32(reply, (uint32_t)m->key_bytes[i]);
            bytes_put(reply, m->key[i], m->key_bytes[i]);
        }
    }
    pthread_mutex_unlock(&slot_lock);
    return rc;
}

int serve_use(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
              struct net_rdma_memory **ret_memory, struct leat_error *err)
{
    pthread_mutex_lock(&slot_lock);
    int rc = slot_memory(server, slot, addr, bytes, err);
    if (rc == 0) {
        slot->memory->users++;
        *ret_memory = slot->memory;
    }
    pthread_mutex_unlock(&slot_lock);
    return rc;
}

void serve_unuse(struct net_rdma_memory *memory)
{
    pthread_mutex_lock(&slot_lock);
    if (--memory->users == 0)
        pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
}

void net_rdma_slot_close(struct net_rdma_slot *slot)
{
    pthread_mutex_lock(&slot_lock);
    slot->closed = true;
    while (slot->busy || (slot->memory && slot->memory->users))
        pthread_cond_wait(&slot_changed, &slot_lock);
    struct net_rdma_memory *memory = TAKE_PTR(slot->memory);
    slot->busy = true;
    pthread_mutex_unlock(&slot_lock);
    memory_free(memory);
    pthread_mutex_lock(&slot_lock);
    slot->busy = false;
    pthread_cond_broadcast(&slot_changed);
    pthread_mutex_unlock(&slot_lock);
}

void net_rdma_server_stats(struct net_rdma_server *server, struct net_rdma_stats *ret_stats)
{
    struct net_rdma_stats s = {.registrations = atomic_load(&server->registrations),
                               .registered_bytes = atomic_load(&server->registered_bytes),
                               .key_requests = atomic_load(&server->key_requests),
                               .nrails = server->n};
    for (unsigned i = 0; i < server->n; i++) {
        const struct serve_rail *r = &server->rails[i];
        snprintf(s.rails[i].name, sizeof(s.rails[i].name), "%s", r->rail.name);
        s.rails[i].connections = atomic_load(&r->connections);
        s.rails[i].refused = atomic_load(&r->refused);
        s.rails[i].errors = atomic_load(&r->errors);
        s.rails[i].put_bytes = atomic_load(&r->put_bytes);
    }
    *ret_stats = s;
}
