/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rails.c: the endpoints by which one view, or the single reads of a working set, reach the nodes that hold
 * its regions.
 *
 * The node we talk to is read through shared memory, the others through connections that our daemon opens and
 * authenticates for us (BROKER), so that no token ever reaches this process: by RDMA where both ends have it
 * (the connection then carries keys), else by TCP. Failure modes: a node that cannot be reached is
 * LEAT_PEER_GONE with its address. If RDMA is not required and fails, TCP takes its place on that node, with
 * a line in the log, and RDMA is not tried again for RDMA_PAUSE_NS. Invariants: one thread at a time;
 * `unquiesced` operations still own their destinations, and rails_quiesce waits for them by tearing their
 * connections down: registrations and memory go after that.
 */
#include "client/client.h"

#include "base/clock.h"
#include "base/log.h"
#include "rpc/addresses.h"
#include "net/rdma.h"
#include "net/topo/topo.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define RDMA_PAUSE_NS (30 * NS_PER_S)
#define MEND_NS       NS_PER_MS
#define QUIESCE_NS    (2 * NS_PER_S)
#define ANY_RAIL      UINT32_MAX

int transport_set(const char *transport, struct transport_set *ret_transports)
{
    static const struct {
        const char *name;
        struct transport_set transports;
    } known[] = {{"shm", {.shm = true}},
                 {"tcp", {.tcp = true}},
                 {"rdma", {.rdma = true}},
                 {"rdma-read", {.rdma = true}},
                 {"rdma-write", {.rdma = true, .put = true}},
                 {"shm+tcp", {.shm = true, .tcp = true}},
                 {"shm+rdma", {.shm = true, .rdma = true}}};
    if (!transport)
        transport = secure_getenv("LEAT_TRANSPORT");
    if (!transport || !transport[0] || strcmp(transport, "auto") == 0) {
        *ret_transports = (struct transport_set){.shm = true, .tcp = true, .rdma = true};
        return 0;
    }
    for (unsigned i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(transport, known[i].name) == 0) {
            *ret_transports = known[i].transports;
            return 0;
        }
    return LEAT_INVALID;
}

/* The table that this user's processes share. Whatever goes wrong, a private one does. */
static void credit_ask(struct leat_client *client)
{
    pthread_mutex_lock(&client->credit_lock);
    if (!client->credit_asked) {
        struct net_reply reply;
        const struct client_rpc_how how = {.deadline_ns = client_deadline(client, 0)};
        client->credit_asked = true;
        if (client_rpc_call(client, PROTO_CREDITS, NULL, NULL, 0, &how, &reply, NULL) == 0) {
            struct proto_credits m;
            if (proto_credits_get(reply.body.data, reply.body.len, &m) == 0 && reply.nfds == 1 &&
                m.slot < CREDIT_SLOTS && credit_table_map(reply.fds[0], &client->credits) == 0)
                client->credit_slot = m.slot;
            net_reply_fini(&reply);
        }
    }
    pthread_mutex_unlock(&client->credit_lock);
}

static int open_tcp(struct rails *r)
{
    struct net_ctx *tcp;
    int rc = net_tcp_new(&tcp);
    return rc ? rc : net_paths_new(tcp, &r->tcp);
}

static int open_rdma(struct rails *r, struct leat_error *err)
{
    struct leat_error why = {0};
    bool required = !r->transports.tcp;
    if (!r->transports.rdma || (!required && !net_rdma_likely()))
        return 0;
    const struct net_rdma_config config = {.put = r->transports.put};
    int rc = net_rdma_new(&config, &r->rdma, &why);
    if (rc && !required) {
        log_info("reading by TCP: %s", why.message);
        return 0;
    }
    return rc ? error_set(err, rc, "transport rdma was required: %s", why.message) : 0;
}

static unsigned rails_of(const struct rails *r, uint32_t node)
{
    return MIN(net_addresses_count(r->ws->info.nodes[node].address), NET_PATHS_MAX);
}

static void credits_close(struct rails *r)
{
    for (unsigned k = 0; k < r->ncredits; k++)
        credit_fini(&r->credit[k]);
    r->ncredits = 0;
}

static int credits_open(struct rails *r)
{
    const struct leat_ws *ws = r->ws;
    int rc = 0;
    if (!r->near)
        credit_ask(ws->client);
    /* A limit that was fixed is the view's, whatever the rails. */
    for (uint32_t node = 0; node < ws->info.nnodes && !r->inflight_bytes && !r->near; node++)
        r->ncredits = MAX(r->ncredits, MIN(rails_of(r, node), CREDIT_RAILS));
    r->ncredits = MAX(r->ncredits, 1u);
    for (unsigned k = 0; k < r->ncredits && !rc; k++)
        rc = credit_init(&r->credit[k], ws->client->credits, ws->client->credit_slot, k, r->inflight_bytes,
                         r->near);
    return rc;
}

/* TCP and its credit. */
static int open_remote(struct rails *r)
{
    int rc = r->transports.tcp ? open_tcp(r) : 0;
    return rc ? rc : credits_open(r);
}

int rails_widen(struct rails *r, struct leat_error *err)
{
    if (r->all_local && !r->transports.tcp)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "part of %s has moved to another host, and its view may not read by TCP: load it again",
            r->ws->uri);
    /* What was asked for is answered, or has given its credit up. */
    struct credit before[CREDIT_RAILS];
    const unsigned nbefore = r->ncredits;
    memcpy(before, r->credit, sizeof(before));
    r->ncredits = 0;
    r->near = false;
    int rc = r->all_local ? open_remote(r) : credits_open(r);
    if (rc) {
        credits_close(r);
        if (r->all_local && r->tcp)
            net_free(TAKE_PTR(r->tcp));
        memcpy(r->credit, before, sizeof(before));
        r->ncredits = nbefore;
        r->near = true;
        return error_set(err, rc, "out of memory");
    }
    for (unsigned k = 0; k < nbefore; k++)
        credit_fini(&before[k]);
    r->all_local = false;
    return 0;
}

int rails_new(struct leat_ws *ws, uint64_t inflight_bytes, const struct transport_set *transports,
              struct rails **ret_rails, struct leat_error *err)
{
    struct rails *r = calloc(1, sizeof(*r));
    if (!r)
        return error_set(err, -ENOMEM, "out of memory");
    r->ws = ws;
    r->transports = *transports;
    r->local_node = transports->shm ? ws->local_node : UINT32_MAX;
    r->inflight_bytes = inflight_bytes;
    r->near = ws->all_local;
    r->all_local = r->near && transports->shm;
    r->ends = calloc((size_t)ws->info.nnodes + 1, sizeof(*r->ends));
    int rc = r->ends ? net_shm_new(&r->shm) : -ENOMEM;
    if (!rc && !r->all_local)
        rc = open_remote(r);
    if (rc)
        error_set(err, rc, "out of memory");
    if (!rc && !r->all_local)
        rc = open_rdma(r, err);
    if (rc) {
        rails_free(r);
        return rc;
    }
    *ret_rails = r;
    return 0;
}

int rails_register(struct rails *r, void *addr, uint64_t bytes, struct net_memory **ret_memory,
                   struct leat_error *err)
{
    if (!r->rdma)
        return 0;
    int rc = r->rdma->ops->mem_register(r->rdma, addr, bytes, -1, ret_memory);
    if (rc == 0)
        return 0;
    const char *why = r->rdma->why.code == rc ? r->rdma->why.message : leat_strerror(rc);
    if (!r->transports.tcp)
        return error_set(err, rc, "transport rdma was required: %s", why);
    /* One that cannot take the destinations is of no use to this view. */
    log_warning("reading by TCP: %s", why);
    net_free(TAKE_PTR(r->rdma));
    return 0;
}

int rails_register_device(struct rails *r, void *addr, uint64_t bytes, int device,
                          struct net_memory **ret_memory, struct leat_error *err)
{
    if (!r->rdma)
        return error_set(err, LEAT_UNSUPPORTED, "nothing is read by RDMA here");
    int rc = r->rdma->ops->mem_register(r->rdma, addr, bytes, device, ret_memory);
    return rc ? error_set(err, rc, "%s", r->rdma->why.code == rc ? r->rdma->why.message : leat_strerror(rc))
              : 0;
}

bool rails_reach_device(const struct rails *r, uint32_t node, const struct net_memory *memory)
{
    return memory && r->ends[node].endpoint && r->ends[node].ctx == r->rdma && net_rdma_may_put(memory);
}

void rails_deregister(struct rails *r, struct net_memory *memory)
{
    if (r && r->rdma && memory)
        r->rdma->ops->mem_deregister(r->rdma, memory);
}

static void broker_body(struct rails *r, uint32_t node, uint32_t rail, struct bytes_out *body)
{
    proto_broker_put(body, &(struct proto_broker){.ws = r->ws->info.ws,
                                                  .node = r->ws->info.nodes[node].id,
                                                  .by_rail = rail != ANY_RAIL,
                                                  .rail = rail});
}

/* peer's connection and its version. */
static int brokered(struct rails *r, uint32_t node, int rc, struct net_reply *reply, struct net_peer *peer,
                    struct leat_error *err)
{
    /* The set is the same, but that node has released it: as good as lost, until our daemon
     * notices. */
    if (rc == LEAT_STALE && !ws_check_generation(r->ws, NULL))
        rc = LEAT_PEER_GONE;
    if (rc)
        return error_prefix(err, rc, "node %s", r->ws->info.nodes[node].address);
    return ws_brokered(reply, &peer->connected_fd, &peer->version, err);
}

static int broker(struct rails *r, uint32_t node, const struct client_rpc_how *how, struct net_peer *peer,
                  struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    broker_body(r, node, ANY_RAIL, &body);
    int rc = client_rpc_call(r->ws->client, PROTO_BROKER, &body, NULL, 0, how, &reply, err);
    return brokered(r, node, rc, &reply, peer, err);
}

static int connect_by(struct rails *r, uint32_t node, struct net_ctx *ctx, const struct net_peer *peer,
                      const struct client_rpc_how *how, struct leat_error *err)
{
    struct rails_end *end = &r->ends[node];
    int rc = ctx->ops->connect(ctx, peer, how->deadline_ns, &end->endpoint, err);
    if (rc == 0)
        end->ctx = ctx;
    return rc;
}

/* --- several rails to a node ----------------------------------------------------------------------------------------- */

static bool same_address(const struct sockaddr_in6 *a, const struct sockaddr_storage *b)
{
    if (a->sin6_family != b->ss_family)
        return false;
    return b->ss_family == AF_INET
               ? memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                        &((const struct sockaddr_in *)(const void *)b)->sin_addr, sizeof(struct in_addr)) == 0
               : memcmp(&a->sin6_addr, &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                        sizeof(a->sin6_addr)) == 0;
}

/* The rate of the interface that a rail leaves by, and its distance from this process, from the host's
 * topology. */
static void rails_hint(struct rails *r, uint32_t node, unsigned rail, int fd)
{
    struct sockaddr_storage ours = {0};
    socklen_t len = sizeof(ours);
    const struct topo_request transports = {.kind = TOPO_TCP, .gpu = TOPO_GPU_FROM_ENV};
    if (!r->topo_asked && topo_choose_here(&transports, &r->topo, NULL))
        r->topo = NULL; /* all are alike then */
    r->topo_asked = true;
    if (!r->topo || getsockname(fd, (struct sockaddr *)&ours, &len) < 0)
        return;
    for (unsigned i = 0; i < r->topo->n; i++)
        for (unsigned k = 0; k < r->topo->rails[i].naddresses; k++)
            if (same_address(&r->topo->rails[i].addresses[k], &ours)) {
                net_paths_hint(r->ends[node].endpoint, rail, r->topo->rails[i].nominal_bytes_per_s,
                               r->topo->rails[i].penalty_ns);
                return;
            }
}

/* For stat(): the most rails that any node is read by now. */
static void tell_rails(struct rails *r)
{
    static const char *const names[2][NET_PATHS_MAX + 1] = {
        {"tcp", "tcp", "tcp x2", "tcp x3", "tcp x4", "tcp x5", "tcp x6", "tcp x7", "tcp x8"},
        {"shm+tcp", "shm+tcp", "shm+tcp x2", "shm+tcp x3", "shm+tcp x4", "shm+tcp x5", "shm+tcp x6",
         "shm+tcp x7", "shm+tcp x8"}};
    unsigned most = 0;
    for (uint32_t node = 0; node < r->ws->info.nnodes; node++) {
        struct net_path_info info[NET_PATHS_MAX];
        const struct rails_end *end = &r->ends[node];
        if (end->endpoint && end->ctx == r->rdma)
            return; /* already logged */
        unsigned up = 0, n = end->endpoint && end->ctx == r->tcp ? net_paths_info(end->endpoint, info) : 0;
        for (unsigned k = 0; k < n; k++)
            up += info[k].up;
        most = MAX(most, up);
    }
    const char *now = names[r->ws->local_node != UINT32_MAX && r->transports.shm][most];
    __atomic_store_n(&r->ws->transport, now, __ATOMIC_RELAXED);
}

static int dial_begin(struct rails *r, uint32_t node, unsigned rail, bool now)
{
    AUTO_BYTES struct bytes_out body = {0};
    broker_body(r, node, rail, &body);
    return now ? client_rpc_begin_now(r->ws->client, PROTO_BROKER, &body, &r->ends[node].dials[rail])
               : client_rpc_begin(r->ws->client, PROTO_BROKER, &body, &r->ends[node].dials[rail]);
}

static int dial_take(struct rails *r, uint32_t node, unsigned rail, struct net_peer *peer,
                     struct leat_error *err)
{
    struct net_reply reply;
    int rc = client_rpc_take(r->ws->client, TAKE_PTR(r->ends[node].dials[rail]), &reply, err);
    return brokered(r, node, rc, &reply, peer, err);
}

static void dials_forget(struct rails *r, uint32_t node)
{
    for (unsigned k = 0; k < NET_PATHS_MAX; k++)
        client_rpc_forget(r->ws->client, TAKE_PTR(r->ends[node].dials[k]));
}

/* All rails are dialled at once; the first that is there is read by, and the others join when they come. */
static int connect_rails(struct rails *r, uint32_t node, const struct net_peer *peer,
                         const struct client_rpc_how *how, struct leat_error *err)
{
    struct rails_end *end = &r->ends[node];
    unsigned n = rails_of(r, node);
    struct leat_error why = {0};
    int rc = 0, first = 0;
    for (unsigned k = 0; k < n && rc == 0; k++)
        rc = end->dials[k] ? 0 : dial_begin(r, node, k, false);
    if (rc)
        error_sys(err, rc, "cannot ask for a connection to node %s", peer->address);
    for (unsigned left = n; left && rc == 0; left--) {
        int k = client_rpc_wait_any(r->ws->client, end->dials, n, how, err);
        if (k < 0) {
            rc = k;
            break;
        }
        struct net_peer rail = *peer;
        rail.path = (unsigned)k;
        rail.npaths = n;
        int code = dial_take(r, node, (unsigned)k, &rail, &why);
        if (code == 0 && (code = connect_by(r, node, r->tcp, &rail, how, &why)))
            close(rail.connected_fd);
        if (code == 0) {
            rails_hint(r, node, (unsigned)k, rail.connected_fd);
            tell_rails(r);
            return 0;
        }
        log_info("%s", why.message);
        first = first ? first : error_set(err, code, "%s", why.message);
    }
    dials_forget(r, node);
    return rc ? rc : first;
}

static void rail_came(struct rails *r, uint32_t node, unsigned k)
{
    struct rails_end *end = &r->ends[node];
    struct leat_error why = {0};
    struct net_peer peer = {.node = r->ws->info.nodes[node].id, .connected_fd = -1, .path = k};
    int rc = dial_take(r, node, k, &peer, &why);
    if (rc == 0 && (rc = net_paths_add(end->endpoint, &peer, 0, &why)))
        close(peer.connected_fd);
    if (rc) {
        log_debug("%s", why.message);
        net_paths_failed(end->endpoint, k, clock_now_ns());
        return;
    }
    rails_hint(r, node, k, peer.connected_fd);
}

/* Rails that are not there: those that came join, those whose pause is over are dialled. Never waits. */
static void rails_reconnect(struct rails *r)
{
    uint64_t now = clock_now_ns();
    if (now - r->reconnect_ns < MEND_NS)
        return;
    r->reconnect_ns = now;
    bool polled = false;
    for (uint32_t node = 0; node < r->ws->info.nnodes; node++) {
        struct rails_end *end = &r->ends[node];
        if (!end->endpoint || end->ctx != r->tcp)
            continue;
        unsigned wanted = net_paths_wanted(end->endpoint, now);
        for (unsigned k = 0; k < NET_PATHS_MAX; k++) {
            if (!end->dials[k] && (wanted >> k & 1) && dial_begin(r, node, k, true))
                net_paths_failed(end->endpoint, k, now);
            if (end->dials[k] && !polled)
                polled = client_rpc_poll(r->ws->client) == 0 || true;
            if (end->dials[k] && client_rpc_ready(r->ws->client, end->dials[k]))
                rail_came(r, node, k);
        }
    }
    tell_rails(r);
}

/* --- one node ---------------------------------------------------------------------------------------------------------- */

/* By RDMA, if that may be: 0, or why not. *ret_broken: it ended in the midst of a message, and the connection is good for nothing else. */
static int connect_rdma(struct rails *r, uint32_t node, const struct net_peer *peer,
                        const struct client_rpc_how *how, bool *ret_broken, struct leat_error *err)
{
    struct rails_end *end = &r->ends[node];
    struct leat_error why = {0};
    int rc = connect_by(r, node, r->rdma, peer, how, &why);
    if (rc == 0) {
        const char *now = r->transports.put                                       ? "rdma-write"
                          : r->ws->local_node == UINT32_MAX || !r->transports.shm ? "rdma"
                                                                                  : "shm+rdma";
        __atomic_store_n(&r->ws->transport, now, __ATOMIC_RELAXED);
        return 0;
    }
    end->rdma_again_ns = clock_now_ns() + RDMA_PAUSE_NS;
    *ret_broken = rc == LEAT_PEER_GONE || rc == LEAT_TIMED_OUT || rc == LEAT_CORRUPT;
    if (r->tcp && !*ret_broken)
        log_warning("node %s is read by TCP: %s", r->ws->info.nodes[node].address, why.message);
    return error_set(err, rc, "node %s by RDMA: %s", r->ws->info.nodes[node].address, why.message);
}

static int connect_remote(struct rails *r, uint32_t node, struct net_peer *peer,
                          const struct client_rpc_how *how, struct leat_error *err)
{
    bool rdma = r->rdma && (!r->tcp || clock_now_ns() >= r->ends[node].rdma_again_ns), broken = false;
    if (!rdma && rails_of(r, node) > 1)
        return connect_rails(r, node, peer, how, err);
    int rc = broker(r, node, how, peer, err);
    if (rc == 0 && rdma) {
        rc = connect_rdma(r, node, peer, how, &broken, err);
        if (rc && r->tcp && !broken && rails_of(r, node) > 1) {
            close(TAKE_FD(peer->connected_fd)); /* its rail is not known */
            return connect_rails(r, node, peer, how, err);
        }
        rdma = rc == 0 || !r->tcp || broken;
    }
    if (!rdma && peer->connected_fd >= 0)
        rc = connect_by(r, node, r->tcp, peer, how, err);
    if (rc && peer->connected_fd >= 0)
        close(peer->connected_fd); /* an endpoint owns it only once it is there */
    return rc;
}

int rails_connect(struct rails *r, uint32_t node, const struct client_rpc_how *how, struct leat_error *err)
{
    const struct proto_ws *info = &r->ws->info;
    if (r->ends[node].endpoint)
        return 0;
    struct net_peer peer = {.node = info->nodes[node].id,
                            .address = info->nodes[node].address,
                            .generation = info->generation,
                            .connected_fd = -1,
                            .regions = r->ws->maps,
                            .nregions = info->nregions,
                            .region_bytes = info->region_bytes};
    if (rails_is_local(r, node))
        return connect_by(r, node, r->shm, &peer, how, err);
    peer.regions = NULL;
    return connect_remote(r, node, &peer, how, err);
}

/* --- credit ------------------------------------------------------------------------------------------------------------ */

uint64_t rails_piece_bytes(const struct rails *r)
{
    uint64_t stage = credit_piece_bytes(&r->credit[0]);
    for (unsigned k = 1; k < r->ncredits; k++)
        if (credit_measured(&r->credit[k])) /* one that nothing came by says nothing */
            stage = MIN(stage, credit_piece_bytes(&r->credit[k]));
    return stage;
}

uint64_t rails_limit(const struct rails *r)
{
    uint64_t limit = 0;
    for (unsigned k = 0; k < r->ncredits; k++)
        limit += credit_limit(&r->credit[k]);
    return limit;
}

void rails_rest(struct rails *r)
{
    for (unsigned k = 0; k < r->ncredits; k++)
        credit_rest(&r->credit[k]);
}

int rails_pick(struct rails *r, uint32_t node, uint64_t bytes, uint64_t left, unsigned refused)
{
    const struct rails_end *end = &r->ends[node];
    if (r->ncredits == 1 || !end->endpoint || end->ctx != r->tcp)
        return refused & 1 ? -1 : 0;
    return net_paths_pick(end->endpoint, bytes, left, refused, clock_now_ns());
}

int rails_submit(struct rails *r, uint32_t node, struct net_op *op)
{
    return r->ends[node].ctx->ops->submit(r->ends[node].endpoint, op);
}

int rails_poll(struct rails *r, struct net_event *events, unsigned max, int timeout_ms)
{
    struct net_ctx *ctx[] = {r->rdma, r->tcp};
    int n = 0;
    if (r->tcp && net_paths_any_wanted(r->tcp))
        rails_reconnect(r);
    for (unsigned i = 0; i < 2; i++) {
        struct net_ctx *other = ctx[1 - i];
        if (!ctx[i])
            continue;
        /* Waiting for one of two is waiting for neither for long: some nodes by RDMA and others by TCP is not the rule. */
        bool both = i == 0 && other && other->stats.in_flight_bytes;
        int wait = both && timeout_ms != 0 ? 1 : timeout_ms;
        int got = ctx[i]->ops->poll(ctx[i], events + n, max - (unsigned)n, n ? 0 : wait);
        if (got < 0)
            return n ? n : got;
        n += got;
        if ((unsigned)n == max)
            break;
    }
    return n;
}

void rails_disconnect(struct rails *r, uint32_t node)
{
    struct rails_end *end = &r->ends[node];
    delivery_note(r, node, true);
    struct net_endpoint *endpoint = TAKE_PTR(end->endpoint);
    dials_forget(r, node);
    if (endpoint)
        end->ctx->ops->disconnect(end->ctx, endpoint);
}

void rails_quiesce(struct rails *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->ends && i < r->ws->info.nnodes; i++)
        rails_disconnect(r, i);
    /* The next polls quiesce closed endpoints; but not for ever, should a NIC hang. */
    uint64_t until = clock_now_ns() + QUIESCE_NS;
    while ((r->tcp || r->rdma) && r->unquiesced && clock_now_ns() < until)
        rails_progress(r, 1);
}

void rails_free(struct rails *r)
{
    if (!r)
        return;
    rails_quiesce(r);
    credits_close(r);
    if (r->rdma)
        net_free(r->rdma);
    if (r->tcp)
        net_free(r->tcp);
    if (r->shm)
        net_free(r->shm);
    for (uint32_t i = 0; r->ends && i < r->ws->info.nnodes; i++)
        free(r->ends[i].seen);
    free(r->ends);
    free(r->topo);
    free(r);
}
