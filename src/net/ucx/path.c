/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path.c: the client's paths: connected, closed when they broke, and connected again after a pause, while there are reads.
 *
 *   CONNECTING ──▶ UP ──▶ CLOSING ──▶ CLOSED ──▶ (pause) ──▶ asks where the far rail is now ──▶ CONNECTING ...
 *                                                            └─▶ (twice in vain) the rail is opened again ──▶ CONNECTING
 *
 * The daemon may have opened its rail again (serve_rail.c): it then listens at another address, and the keys
 * that are here no longer hold. So the address and incarnation are requested before each try, and all keys
 * again when the incarnation is another one; other paths read in that time. The daemon accepts only a client
 * that was sent the current incarnation. A rail that is closed there is requested again after the next pause.
 *
 * A rail that nothing uses any more, and on which connecting failed twice since its last connection, may be
 * one whose device was reset or replaced: its context speaks to a device that is gone. It is closed, which
 * releases the device, and opened again: another context and worker, and whatever is registered is registered
 * with it again. Where it cannot be opened it stays closed, and that is tried after each pause.
 *
 * Invariants: a rail is closed only when each of its paths, of all endpoints, is CLOSED with nothing out. A
 * renewed registration gets a new number, since the far end's key of the old one is no longer valid. See
 * ucx.c for the rest.
 */
#include "net/ucx/endpoint.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <sys/epoll.h>

#define MEND_NS      (50 * NS_PER_MS) /* between checks of a path that waits for slices in flight */
#define TRIES_A_RAIL 2

void reconnect_at(struct ucx_ctx *ctx, uint64_t ns)
{
    if (ctx->reconnect_ns == 0 || ns < ctx->reconnect_ns)
        ctx->reconnect_ns = ns;
}

/* --- closing ------------------------------------------------------------------------------------------------------------- */

static void on_closed(void *request, ucs_status_t status, void *arg)
{
    struct ucx_path *p = arg;
    p->state = PATH_CLOSED;
    p->endpoint->ctx->look = true;
    p->endpoint->ctx->ucx->ucp_request_free(request);
}

void path_close(struct ucx_path *p)
{
    const struct ucx_symbols *ucx = p->endpoint->ctx->ucx;
    if (p->state >= PATH_CLOSING)
        return;
    p->state = PATH_CLOSING;
    stripe_failed(&p->endpoint->stripe[p - p->endpoint->paths], clock_now_ns());
    reconnect_at(p->endpoint->ctx, 1);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE,
                                 .cb.send = on_closed,
                                 .user_data = p};
    if (!UCS_PTR_IS_PTR(ucx->ucp_ep_close_nbx(p->ep, &param)))
        p->state = PATH_CLOSED;
    p->endpoint->ctx->look = true;
}

/* --- connecting ---------------------------------------------------------------------------------------------------------- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_path *p = arg;
    struct ucx_ctx *ctx = p->endpoint->ctx;
    log_debug("rail %s: node %" PRIu32 ": %s", ctx->rails[p->rail].name, p->endpoint->node_id,
              ctx->ucx->ucs_status_string(status));
    path_broke(p);
}

static void on_up(void *request, ucs_status_t status, void *arg)
{
    struct coming *coming = arg;
    struct ucx_path *p = coming->path;
    if (p) {
        p->coming = NULL;
        if (status == UCS_OK && p->state == PATH_CONNECTING && !p->failed) {
            p->state = PATH_UP;
            p->endpoint->ctx->tries[p->rail] = 0;
            stripe_up(&p->endpoint->stripe[p - p->endpoint->paths]);
        } else {
            path_broke(p);
        }
        p->endpoint->ctx->look = true;
    }
    if (request)
        coming->ucx->ucp_request_free(request);
    list_remove(&coming->node);
    free(coming);
}

/* Connects it: it is UP, or has failed, later. */
int path_begin(struct ucx_path *p, struct leat_error *err)
{
    struct ucx_ctx *ctx = p->endpoint->ctx;
    const struct ucx_rail *rail = &ctx->rails[p->rail];
    bool bind = rail->address.sin6_family == p->far.sin6_family;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      (bind ? UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR : 0),
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID,
        .sockaddr = {(const struct sockaddr *)&p->far, ucx_address_len(&p->far)},
        .local_sockaddr = {(const struct sockaddr *)&rail->address, ucx_address_len(&rail->address)},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {on_error, p}};
    if (!rail->worker)
        return error_set(err, LEAT_UNSUPPORTED, "rail %s is not there", rail->name);
    struct coming *coming = malloc(sizeof(*coming));
    if (!coming)
        return error_set(err, -ENOMEM, "out of memory");
    *coming = (struct coming){.path = p, .ucx = ctx->ucx};
    list_init(&coming->node);
    ctx->tries[p->rail]++;
    ucs_status_t status = ctx->ucx->ucp_ep_create(rail->worker, &params, &p->ep);
    if (status != UCS_OK) {
        char text[80];
        ucx_address_print((const struct sockaddr *)&p->far, text);
        free(coming);
        return error_set(err, ucx_errno(status), "rail %s cannot connect to %s: %s", rail->name, text,
                         ctx->ucx->ucs_status_string(status));
    }
    p->state = PATH_CONNECTING;
    p->coming = coming;
    list_push_back(&ctx->comings, &coming->node);
    p->began_ns = clock_now_ns();
    reconnect_at(ctx, p->began_ns + ctx->connect_ns);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_up,
                                 .user_data = coming};
    ucs_status_ptr_t request = ctx->ucx->ucp_ep_flush_nbx(p->ep, &param);
    if (!UCS_PTR_IS_PTR(request))
        on_up(NULL, UCS_PTR_STATUS(request), coming);
    return 0;
}

/* Nothing is left of its connection. */
static void path_forget(struct ucx_path *p)
{
    struct net_endpoint *ep = p->endpoint;
    const unsigned k = (unsigned)(p - ep->paths);
    for (uint32_t g = 0; g < ep->nkeys; g++) /* they were unpacked for that connection */
        if (ep->keys[g].rkey[k])
            ep->ctx->ucx->ucp_rkey_destroy(TAKE_PTR(ep->keys[g].rkey[k]));
    if (p->coming)
        TAKE_PTR(p->coming)->path = NULL;
}

/* --- where the far rails are ------------------------------------------------------------------------------------------------ */

void rails_tell(const struct ucx_ctx *ctx, struct bytes_out *body)
{
    bytes_put_u32(body, ctx->nrails);
    for (unsigned i = 0; i < ctx->nrails; i++)
        bytes_put_u64(body, ctx->secrets[i]);
}

int rails_take(struct bytes_in *in, struct far_rail *ret_rail)
{
    char text[80] = "";
    struct far_rail rail = {.incarnation = bytes_get_u32(in)};
    uint32_t len = bytes_get_u32(in);
    const void *bytes = len < sizeof(text) ? bytes_get(in, len) : NULL;
    if (!bytes || (len == 0) != (rail.incarnation == 0))
        return LEAT_CORRUPT;
    memcpy(text, bytes, len);
    if (len && ucx_address_parse(text, &rail.address) < 0)
        return LEAT_CORRUPT;
    *ret_rail = rail;
    return 0;
}

/* Our rail for one of theirs: in its subnet, and used by the fewest paths so far. */
unsigned rail_choose(const struct net_endpoint *ep, const struct sockaddr_in6 *far)
{
    const struct ucx_ctx *ctx = ep->ctx;
    unsigned best = 0, best_cost = UINT32_MAX;
    for (unsigned r = 0; r < ctx->nrails; r++) {
        unsigned cost =
            (ctx->rails[r].worker ? 0 : 100000) + (ucx_same_subnet(&ctx->rails[r], far) ? 0 : 1000);
        for (unsigned i = 0; i < ep->npaths; i++)
            cost += ep->paths[i].rail == r;
        if (cost < best_cost) {
            best = r;
            best_cost = cost;
        }
    }
    return best;
}

static int rails_ask(struct net_endpoint *ep)
{
    struct bytes_out body = {0};
    rails_tell(ep->ctx, &body);
    int rc = endpoint_request(ep, PROTO_RDMA_CONNECT, &body);
    bytes_out_fini(&body);
    if (rc == 0)
        ep->connect_id = ep->next_id;
    return rc;
}

static void path_told(struct ucx_path *p, const struct far_rail *far)
{
    struct net_endpoint *ep = p->endpoint;
    if (p->state != PATH_CLOSED) {
        if (p->state < PATH_CLOSING && p->incarnation != far->incarnation) /* it has not noticed yet */
            path_broke(p);
        return;
    }
    /* Another one asked. What is out on this one is its rail's, which stays until then. */
    if (p->out || p->asks)
        return;
    p->asked = true;
    p->renewing = false;
    p->incarnation = far->incarnation;
    if (far->incarnation == 0)
        return;
    p->far = far->address;
    if (!ucx_same_subnet(&ep->ctx->rails[p->rail], &p->far))
        p->rail = rail_choose(ep, &p->far);
}

int rails_came(struct net_endpoint *ep)
{
    struct bytes_in in = bytes_in_of(ep->body, ep->frame.body_bytes);
    struct far_rail rails[NET_RDMA_RAILS_MAX] = {0};
    if (ep->frame.id != ep->connect_id)
        return LEAT_CORRUPT;
    ep->connect_id = 0;
    if (ep->frame.status == 0) { /* else all are closed to us */
        uint32_t n = bytes_get_u32(&in);
        int rc = in.bad || n > NET_RDMA_RAILS_MAX ? LEAT_CORRUPT : 0;
        for (uint32_t i = 0; i < n && rc == 0; i++)
            rc = rails_take(&in, &rails[i]);
        rc = rc ? rc : bytes_in_done(&in);
        if (rc)
            return rc;
    }
    for (unsigned i = 0; i < ep->npaths; i++)
        path_told(&ep->paths[i], &rails[ep->paths[i].far_rail]);
    reconnect_at(ep->ctx, 1);
    return 0;
}

/* --- rails ------------------------------------------------------------------------------------------------------------------- */

int rail_watch(struct ucx_ctx *ctx, unsigned r)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, ctx->rails[r].fd, &event) < 0 ? -errno : 0;
}

static bool rail_is_quiet(const struct ucx_ctx *ctx, unsigned r)
{
    list_for_each (node, &ctx->endpoints) {
        const struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        for (unsigned i = 0; i < ep->npaths; i++) {
            const struct ucx_path *p = &ep->paths[i];
            if (p->rail == r && (p->state != PATH_CLOSED || p->out || p->asks))
                return false;
        }
    }
    return true;
}

static void rail_close(struct ucx_ctx *ctx, unsigned r)
{
    struct ucx_rail *rail = &ctx->rails[r];
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        for (unsigned i = 0; i < ep->npaths; i++)
            if (ep->paths[i].rail == r)
                path_forget(&ep->paths[i]);
    }
    list_for_each (node, &ctx->memories)
        memory_leave(ctx, container_of(node, struct net_memory, node), r);
    /* A forked process may have a duplicate, of which epoll would continue to report events. */
    epoll_ctl(ctx->epoll_fd, EPOLL_CTL_DEL, rail->fd, NULL);
    ucx_rail_close(rail);
}

static int rail_open(struct ucx_ctx *ctx, unsigned r, struct leat_error *err)
{
    const struct net_rdma_config config = {.tls = ctx->tls, .put = ctx->put};
    struct ucx_rail rail;
    int rc = ucx_rail_open(&config, &ctx->wanted[r], ctx->secrets[r], &rail, err);
    if (rc)
        return rc;
    ctx->rails[r] = rail;
    if ((rc = rail_watch(ctx, r)) < 0)
        error_sys(err, rc, "cannot watch rail %s", rail.name);
    list_for_each (node, &ctx->memories) {
        struct net_memory *m = container_of(node, struct net_memory, node);
        rc = rc ? rc : memory_join(ctx, m, r, err);
    }
    if (rc) {
        rail_close(ctx, r);
        return rc;
    }
    /* Now: a rail that takes only some of them is tried again and again */
    list_for_each (node, &ctx->memories)
        memory_number(ctx, container_of(node, struct net_memory, node));
    return 0;
}

void rail_again(struct ucx_ctx *ctx, unsigned r)
{
    struct leat_error why = {0};
    if ((ctx->rails[r].worker && ctx->tries[r] < TRIES_A_RAIL) || !rail_is_quiet(ctx, r))
        return;
    if (ctx->rails[r].worker)
        rail_close(ctx, r);
    ctx->tries[r] = 0;
    if (rail_open(ctx, r, &why))
        log_debug("rail %s stays closed: %s", ctx->rails[r].name, why.message);
    else
        log_info("rail %s was opened again", ctx->rails[r].name);
}

/* --- mending ------------------------------------------------------------------------------------------------------------------ */

/* 0: its far rail is known, and all keys are of that. 1: requested. -errno: not now. */
static int path_ready(struct ucx_path *p)
{
    struct net_endpoint *ep = p->endpoint;
    int rc = 0;
    if (!p->asked)
        rc = ep->connect_id ? 0 : rails_ask(ep);
    else if (p->incarnation == 0)
        return LEAT_UNSUPPORTED;
    else if (keys_fit(p) == KEYS_FIT)
        return 0;
    else if (keys_fit(p) == KEYS_LACK) {
        rc = p->renewing ? LEAT_STALE : keys_renew(p); /* LEAT_STALE: asked for, and refused */
        p->renewing = true;
    }
    ep->ctx->look = true;
    return rc ? rc : 1;
}

static void path_again(struct ucx_path *p, uint64_t now)
{
    struct net_endpoint *ep = p->endpoint;
    const unsigned k = (unsigned)(p - ep->paths);
    struct leat_error why = {0};
    int rc = path_ready(p);
    if (rc > 0)
        return;
    p->asked = p->renewing = false;
    if (rc == 0) {
        rail_again(ep->ctx, p->rail);
        path_forget(p);
        p->serial++;
        p->failed = false;
        rc = path_begin(p, &why);
    }
    if (rc) {
        log_debug("rail %s: no way to node %" PRIu32 " for now: %s", ep->ctx->rails[p->rail].name,
                  ep->node_id, why.message[0] ? why.message : "it is closed there");
        stripe_failed(&ep->stripe[k], now);
    }
}

/* When it needs attention next; 0: it is well. */
static uint64_t reconnect_path(struct ucx_path *p, uint64_t now)
{
    const struct stripe_path *stripe = &p->endpoint->stripe[p - p->endpoint->paths];
    const uint64_t until = p->began_ns + p->endpoint->ctx->connect_ns;
    if (p->state == PATH_CONNECTING && now >= until) /* UCX reports no such timeout */
        path_broke(p);
    if (p->state == PATH_CLOSED && stripe_try(stripe, now) && p->out == 0 && p->asks == 0)
        path_again(p, now);
    switch (p->state) {
    case PATH_UP:
        return 0;
    case PATH_CONNECTING:
        return p->failed ? 0 : until;
    default:
        return MAX(stripe->down_until_ns, now + MEND_NS);
    }
}

void paths_reconnect(struct ucx_ctx *ctx)
{
    uint64_t now;
    if (ctx->reconnect_ns == 0 || (now = clock_now_ns()) < ctx->reconnect_ns)
        return;
    ctx->reconnect_ns = 0;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        for (unsigned i = 0; ep->fd >= 0 && i < ep->npaths; i++) {
            uint64_t next = reconnect_path(&ep->paths[i], now);
            if (next)
                reconnect_at(ctx, next);
        }
    }
}

void paths_time_anew(struct ucx_ctx *ctx)
{
    uint64_t now = clock_now_ns();
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        for (unsigned i = 0; i < ep->npaths; i++)
            if (ep->paths[i].state == PATH_CONNECTING)
                ep->paths[i].began_ns = now;
    }
}
