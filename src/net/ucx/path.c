/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path.c: the client's paths: connected, closed when they broke, and connected again after a pause, while there are reads.
 *
 *   CONNECTING ──▶ UP ──▶ CLOSING ──▶ CLOSED ──▶ (pause) ──▶ CONNECTING ...
 *                                            └─▶ (twice in vain) the rail is opened anew ──▶ CONNECTING
 *
 * A rail that nothing uses any more, and on which connecting failed twice since something was connected by it, may be one whose device
 * was reset, or went and came back: its context speaks to what is no more. It is closed, which lets go of the device, and opened
 * anew: another context and worker, and whatever is registered is registered with it again. Where it cannot be opened
 * it stays closed, and that is tried after each pause.
 *
 * Invariants: a rail is closed only when each of its paths, of all endpoints, is CLOSED with nothing out. A registration that came anew
 * goes by a new number, since what the far end was told of the old one has a key that is good no more. See ucx.c for the rest.
 */
#include "net/ucx/endpoint.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <sys/epoll.h>

#define MEND_NS      (50 * NS_PER_MS) /* between looks at a path that waits for what is still out */
#define TRIES_A_RAIL 2

void mend_at(struct ucx_ctx *ctx, uint64_t ns)
{
    if (ctx->mend_ns == 0 || ns < ctx->mend_ns)
        ctx->mend_ns = ns;
}

/* --- closing ------------------------------------------------------------------------------------------------------------- */

static void on_closed(void *request, ucs_status_t status, void *arg)
{
    struct path *p = arg;
    p->state = PATH_CLOSED;
    p->endpoint->ctx->look = true;
    p->endpoint->ctx->ucx->ucp_request_free(request);
}

void path_close(struct path *p)
{
    const struct ucx_symbols *ucx = p->endpoint->ctx->ucx;
    if (p->state >= PATH_CLOSING)
        return;
    p->state = PATH_CLOSING;
    stripe_failed(&p->endpoint->stripe[p - p->endpoint->paths], clock_now_ns());
    mend_at(p->endpoint->ctx, 1);
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
    struct path *p = arg;
    struct ucx_ctx *ctx = p->endpoint->ctx;
    log_debug("rail %s: node %" PRIu32 ": %s", ctx->rails[p->rail].name, p->endpoint->node_id,
              ctx->ucx->ucs_status_string(status));
    path_broke(p);
}

static void on_up(void *request, ucs_status_t status, void *arg)
{
    struct coming *coming = arg;
    struct path *p = coming->path;
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
int path_begin(struct path *p, struct leat_error *err)
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
    mend_at(ctx, p->began_ns + CONNECT_NS);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_up,
                                 .user_data = coming};
    ucs_status_ptr_t request = ctx->ucx->ucp_ep_flush_nbx(p->ep, &param);
    if (!UCS_PTR_IS_PTR(request))
        on_up(NULL, UCS_PTR_STATUS(request), coming);
    return 0;
}

/* Nothing is left of its connection. */
static void path_forget(struct path *p)
{
    struct net_endpoint *ep = p->endpoint;
    const unsigned k = (unsigned)(p - ep->paths);
    for (uint32_t g = 0; g < ep->nkeys; g++) /* they were unpacked for that connection */
        if (ep->keys[g].rkey[k])
            ep->ctx->ucx->ucp_rkey_destroy(TAKE_PTR(ep->keys[g].rkey[k]));
    if (p->coming)
        TAKE_PTR(p->coming)->path = NULL;
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
            const struct path *p = &ep->paths[i];
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
    /* Another process that was forked may have a duplicate, of which epoll would go on to tell. */
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
        if (rc == 0 && (rc = memory_join(ctx, m, r, err)) == 0)
            memory_number(ctx, m);
    }
    if (rc)
        rail_close(ctx, r);
    return rc;
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
        log_info("rail %s was opened anew", ctx->rails[r].name);
}

/* --- mending ------------------------------------------------------------------------------------------------------------------ */

static void path_again(struct path *p, uint64_t now)
{
    struct net_endpoint *ep = p->endpoint;
    const unsigned k = (unsigned)(p - ep->paths);
    struct leat_error why = {0};
    rail_again(ep->ctx, p->rail);
    path_forget(p);
    p->serial++;
    p->failed = false;
    if (path_begin(p, &why)) {
        log_debug("%s", why.message);
        stripe_failed(&ep->stripe[k], now);
    }
}

/* When it is to be looked after next; 0: it is well. */
static uint64_t mend_path(struct path *p, uint64_t now)
{
    const struct stripe_path *stripe = &p->endpoint->stripe[p - p->endpoint->paths];
    if (p->state == PATH_CONNECTING && now >= p->began_ns + CONNECT_NS) /* nobody else would say so */
        path_broke(p);
    if (p->state == PATH_CLOSED && stripe_try(stripe, now) && p->out == 0 && p->asks == 0)
        path_again(p, now);
    switch (p->state) {
    case PATH_UP:
        return 0;
    case PATH_CONNECTING:
        return p->failed ? 0 : p->began_ns + CONNECT_NS;
    default:
        return MAX(stripe->down_until_ns, now + MEND_NS);
    }
}

void paths_mend(struct ucx_ctx *ctx)
{
    uint64_t now;
    if (ctx->mend_ns == 0 || (now = clock_now_ns()) < ctx->mend_ns)
        return;
    ctx->mend_ns = 0;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        for (unsigned i = 0; ep->fd >= 0 && i < ep->npaths; i++) {
            uint64_t next = mend_path(&ep->paths[i], now);
            if (next)
                mend_at(ctx, next);
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
