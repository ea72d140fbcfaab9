/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucx.c: reads by RDMA: a transport of net.h over UCX.
 *
 * Happy path: connect() asks on the brokered data connection where the far rails are, and begins a path to
 * each from the rail of ours that shares its subnet. submit() takes an op in. The op waits for the keys of
 * its regions, requested on the same connection when first needed, and for a path that is up. Then it is cut
 * into slices. Each takes the path that is predicted to bring it first (net/flow/stripe.h). A slice is a get
 * straight into the destination. With the last one back the op's reads are checksummed where they lie, and it
 * is DONE and QUIESCED.
 *
 *   flight: WAITING (keys, path) ──▶ FLYING (slices out) ──▶ DONE and QUIESCED
 *              └──────────────┬───────────┘
 *                deadline, dead peer, disconnect: DONE with a status ─── every slice back, every path closed ──▶ QUIESCED
 *
 * Failure modes: a path that breaks is closed, its slices then go by the others, and it is tried again after a pause, while there are
 * reads (path.c); the last one takes the endpoint with it. A put that failed after it may have begun breaks its path. A refused key fails
 * the ops that need it. A passed deadline and the end of the data connection close everything: what was out is DONE at once, and QUIESCED
 * when UCX has given each slice back and has closed the paths, which takes the queue pairs down: nothing lands after that.
 *
 * Invariants:
 * 1. A flight is on exactly one list of its endpoint: waiting, flying or held (DONE, not yet QUIESCED).
 * 2. After DONE its reads' statuses are not written any more, after QUIESCED its op is not touched.
 * 3. A path is created CONNECTING, turns UP once, then CLOSING, then CLOSED, and perhaps CONNECTING again; keys are unpacked when it is
 *    UP, not before (UCX would remember that it cannot reach the memory one-sided, and have the far CPU do it).
 * 4. No callback of UCX closes anything: it leaves a mark, and settle() acts after progress.
 * 5. A slice goes out again only when the connection that lost it is closed, and a path connects again only when UCX gave all its slices
 *    back and the far end answered all its PUTs: one that it had not begun would be written by the new connection.
 */
#include "net/ucx/endpoint.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/setting.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#define BODY_MAX         (4 * MIB) /* of a reply: PROTO_KEYS_MAX regions with the keys of every rail */
#define ENDPOINTS_A_POLL 32
#define DEATH_MS         200
#define FREE_NS          (5 * NS_PER_S)

static struct ucx_ctx *ctx_of(struct net_ctx *base)
{
    return container_of(base, struct ucx_ctx, base);
}

/* --- the data connection: sending -------------------------------------------------------------------------------------- */

static int want_out(struct net_endpoint *ep, bool want)
{
    if (want == ep->want_out)
        return 0;
    struct epoll_event event = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = ep};
    if (epoll_ctl(ep->ctx->epoll_fd, EPOLL_CTL_MOD, ep->fd, &event) < 0)
        return -errno;
    ep->want_out = want;
    return 0;
}

static int flush(struct net_endpoint *ep)
{
    int rc = net_send_queued(ep->fd, &ep->out, &ep->out_sent);
    return rc == 0 || rc == -EAGAIN ? want_out(ep, rc != 0) : rc;
}

/* --- the end ----------------------------------------------------------------------------------------------------------- */

/* What is out ends with `status`, ops past `now` (0: none are) with LEAT_TIMED_OUT. */
static void tear_down(struct net_endpoint *ep, int status, uint64_t now)
{
    struct ucx_ctx *ctx = ep->ctx;
    if (ep->fd >= 0)
        epoll_ctl(ctx->epoll_fd, EPOLL_CTL_DEL, ep->fd, NULL);
    forkfd_close(&ep->forkfd);
    for (unsigned i = 0; i < ep->npaths; i++)
        path_close(&ep->paths[i]);
    struct list *lists[] = {&ep->waiting, &ep->flying};
    for (unsigned l = 0; l < 2; l++)
        list_for_each_safe (node, lists[l]) {
            struct flight *f = container_of(node, struct flight, node);
            int s = now && f->op->deadline_ns && f->op->deadline_ns <= now ? LEAT_TIMED_OUT : status;
            for (uint32_t i = 0; i < f->op->n; i++)
                if (f->op->reads[i].status == 0)
                    f->op->reads[i].status = s;
            flight_done(f, s);
            list_remove(&f->node);
            list_push_back(&ep->held, &f->node);
            if (l == 0)
                flight_quiesced(f); /* nothing of it was sent */
        }
    ctx->look = true;
}

static void endpoint_free(struct net_endpoint *ep)
{
    const struct ucx_symbols *ucx = ep->ctx->ucx;
    for (uint32_t g = 0; ep->keys && g < ep->nkeys; g++)
        for (unsigned i = 0; i < NET_RDMA_RAILS_MAX; i++) {
            if (ep->keys[g].rkey[i])
                ucx->ucp_rkey_destroy(ep->keys[g].rkey[i]);
            free(ep->keys[g].packed[i]);
        }
    for (unsigned i = 0; i < ep->npaths; i++)
        if (ep->paths[i].coming)
            ep->paths[i].coming->path = NULL;
    list_remove(&ep->node);
    bytes_out_fini(&ep->out);
    free(ep->keys);
    free(ep->body);
    free(ep);
}

/* After progress: closes what broke, returns what is quiesced. */
static void settle_endpoint(struct net_endpoint *ep)
{
    unsigned alive = 0, closing = 0;
    if (ep->came)
        stripe_turn(ep->stripe, ep->npaths, clock_now_ns());
    ep->came = false;
    for (unsigned i = 0; i < ep->npaths; i++) {
        if (ep->paths[i].failed)
            path_close(&ep->paths[i]);
        alive += ep->paths[i].state < PATH_CLOSING;
        closing += ep->paths[i].state == PATH_CLOSING;
    }
    if (ep->fd >= 0 && alive == 0)
        tear_down(ep, LEAT_PEER_GONE, 0);
    /* Requests without an answer: with every queue pair gone it cannot come any more. */
    while (ep->fd < 0 && closing == 0 && !list_empty(&ep->asks))
        ask_over(ep, list_first(&ep->asks, struct ask, node), LEAT_PEER_GONE);
    list_for_each (node, &ep->asks) {
        struct ask *ask = container_of(node, struct ask, node);
        if (ask->path->state == PATH_CLOSED)
            ask_lost(ep, ask);
    }
    endpoint_resend(ep);
    list_for_each_safe (node, &ep->held) {
        struct flight *f = container_of(node, struct flight, node);
        if (f->out == 0 && closing == 0)
            flight_quiesced(f);
    }
    if (ep->fd >= 0 && (ep->out.len || !list_empty(&ep->waiting))) {
        int rc = endpoint_start(ep);
        rc = rc ? rc : flush(ep);
        if (rc)
            tear_down(ep, rc, 0);
    }
    if (ep->disconnected && closing == 0 && list_empty(&ep->held))
        endpoint_free(ep);
}

static void settle(struct ucx_ctx *ctx)
{
    while (ctx->look) {
        ctx->look = false;
        list_for_each_safe (node, &ctx->endpoints)
            settle_endpoint(container_of(node, struct net_endpoint, node));
    }
}

static void check_deadlines(struct ucx_ctx *ctx)
{
    uint64_t now, min = 0;
    if (ctx->min_deadline_ns == 0 || (now = clock_now_ns()) < ctx->min_deadline_ns)
        return;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        struct list *lists[] = {&ep->waiting, &ep->flying};
        uint64_t first = 0;
        for (unsigned l = 0; l < 2; l++)
            list_for_each (f, lists[l]) {
                uint64_t due = container_of(f, struct flight, node)->op->deadline_ns;
                if (due && (first == 0 || due < first))
                    first = due;
            }
        if (first && first <= now)
            tear_down(ep, LEAT_PEER_GONE, now);
        else if (first && (min == 0 || first < min))
            min = first;
    }
    ctx->min_deadline_ns = min;
}

/* --- the data connection: receiving --------------------------------------------------------------------------------------- */

static void keep_reason(struct net_endpoint *ep, int status)
{
    struct bytes_in in = bytes_in_of(ep->body, ep->frame.body_bytes);
    AUTO_FREE char *message = bytes_get_str(&in, PROTO_STR_MAX);
    log_debug("node %" PRIu32 ": %s", ep->node_id, message ? message : leat_strerror(status));
    if (message)
        snprintf(ep->ctx->base.why.message, sizeof(ep->ctx->base.why.message), "%s", message);
    ep->ctx->base.why.code = message ? status : 0;
}

/* Errors that a daemon returns to a PUT before it writes a byte (put.c). After any other error bytes may
 * still be on their way into a destination, and only closed paths keep them out. */
static bool put_refused(int status)
{
    static const int refusals[] = {LEAT_INVALID,     LEAT_STALE,    LEAT_DENIED,
                                   LEAT_UNSUPPORTED, LEAT_NO_SPACE, -ENOMEM};
    for (unsigned i = 0; i < ARRAY_LEN(refusals); i++)
        if (status == refusals[i])
            return true;
    return false;
}

static int message_came(struct net_endpoint *ep)
{
    struct ask *ask;
    int status = ep->frame.status;
    ep->ctx->look = true;
    if (status > 0)
        return LEAT_CORRUPT;
    if (status < 0)
        keep_reason(ep, status);
    switch (ep->frame.type) {
    case PROTO_RDMA_KEYS:
        return keys_came(ep);
    case PROTO_RDMA_CONNECT:
        return rails_came(ep);
    case PROTO_RDMA_VIEW:
        return status;
    case PROTO_RDMA_PUT:
        ask = ask_find(ep, ep->frame.id);
        if (!ask)
            return LEAT_CORRUPT;
        if (status && !put_refused(status)) {
            if (status != LEAT_PEER_GONE)
                return status;
            /* Its bytes must not land any more once another path asks for them. */
            if (ask->path->state < PATH_CLOSING)
                path_broke(ask->path);
            ask_lost(ep, ask);
        }
        ask_over(ep, ask, status);
        return 0;
    default:
        return LEAT_CORRUPT;
    }
}

static int frame_came(struct net_endpoint *ep)
{
    int rc = proto_frame_get(ep->head, &ep->frame);
    if (rc < 0)
        return rc;
    if (ep->frame.version != ep->version || ep->frame.kind != PROTO_REPLY || ep->frame.nfds ||
        ep->frame.payload_bytes || ep->frame.body_bytes > BODY_MAX)
        return LEAT_CORRUPT;
    free(ep->body);
    ep->have = 0;
    ep->in_body = true;
    ep->body = malloc(ep->frame.body_bytes ? ep->frame.body_bytes : 1);
    return ep->body ? 0 : -ENOMEM;
}

static int receive(struct net_endpoint *ep)
{
    for (;;) {
        uint8_t *at = ep->in_body ? ep->body : ep->head;
        size_t want = ep->in_body ? ep->frame.body_bytes : PROTO_FRAME;
        if (ep->have == want) {
            int rc = ep->in_body ? message_came(ep) : frame_came(ep);
            if (rc)
                return rc;
            if (at != ep->head) {
                ep->in_body = false;
                ep->have = 0;
            }
            continue;
        }
        ssize_t n = recv(ep->fd, at + ep->have, want - ep->have, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : LEAT_PEER_GONE;
        if (n == 0)
            return LEAT_PEER_GONE;
        ep->have += (size_t)n;
    }
}

static void serve_socket(struct net_endpoint *ep, uint32_t events)
{
    int rc = 0;
    if (ep->fd < 0)
        return;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        rc = receive(ep);
    if (rc == 0 && (events & EPOLLOUT))
        rc = flush(ep);
    if (rc)
        tear_down(ep, rc, 0);
}

/* --- poll ------------------------------------------------------------------------------------------------------------------ */

static int ucx_submit(struct net_endpoint *ep, struct net_op *op)
{
    if (ep->fd < 0)
        return LEAT_PEER_GONE;
    int rc = flight_new(ep, op);
    if (rc)
        return rc;
    if (ep->ctx->reconnect_ns && ep->ctx->in_flight == 1)
        paths_time_anew(ep->ctx);
    rc = endpoint_start(ep);
    rc = rc ? rc : flush(ep);
    if (rc)
        tear_down(ep, rc, 0);
    return 0;
}

static bool progress(struct ucx_ctx *ctx)
{
    bool more = false;
    for (unsigned i = 0; i < ctx->nrails; i++)
        more |= ucx_rail_progress(&ctx->rails[i]);
    return more;
}

/* 1: a rail has more to do; else the result of epoll_wait. */
static int wait_and_serve(struct ucx_ctx *ctx, int timeout_ms)
{
    struct epoll_event ready[ENDPOINTS_A_POLL];
    bool busy = false;
    if (timeout_ms != 0)
        for (unsigned i = 0; i < ctx->nrails; i++)
            busy |= ucx_rail_arm(&ctx->rails[i]) == -EBUSY;
    int n = epoll_wait(ctx->epoll_fd, ready, ENDPOINTS_A_POLL, busy ? 0 : timeout_ms);
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    /* A rail's entry is NULL. Endpoints are freed by settle() only. */
    for (int i = 0; i < n; i++)
        if (ready[i].data.ptr)
            serve_socket(ready[i].data.ptr, ready[i].events);
    return 0;
}

static int ucx_poll(struct net_ctx *base, struct net_event *events, unsigned max, int timeout_ms)
{
    struct ucx_ctx *ctx = ctx_of(base);
    uint64_t until = timeout_ms > 0 ? clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS : 0;
    for (;;) {
        unsigned n = net_events_take(&ctx->events, &ctx->told, events, max);
        if (n > 0 || ctx->in_flight == 0)
            return (int)n;
        bool more = progress(ctx);
        settle(ctx);
        int wait = timeout_ms > 0 ? clock_poll_ms(until) : timeout_ms;
        uint64_t wake = ctx->min_deadline_ns;
        if (ctx->reconnect_ns && (!wake || ctx->reconnect_ns < wake))
            wake = ctx->reconnect_ns;
        if (wake) {
            int due = clock_poll_ms(wake);
            wait = wait < 0 ? due : MIN(wait, due);
        }
        int rc = wait_and_serve(ctx, more || !list_empty(&ctx->events) ? 0 : wait);
        if (rc < 0)
            return rc;
        check_deadlines(ctx);
        settle(ctx);
        paths_reconnect(ctx);
        settle(ctx);
        if (list_empty(&ctx->events) && (timeout_ms == 0 || (timeout_ms > 0 && clock_now_ns() >= until)))
            return 0;
    }
}

/* --- connecting ---------------------------------------------------------------------------------------------------------- */

static int add_path(struct net_endpoint *ep, unsigned far_rail, const struct far_rail *far,
                    struct leat_error *err)
{
    struct ucx_ctx *ctx = ep->ctx;
    struct ucx_path *p = &ep->paths[ep->npaths];
    *p = (struct ucx_path){.endpoint = ep,
                           .rail = rail_choose(ep, &far->address),
                           .far_rail = far_rail,
                           .far = far->address,
                           .incarnation = far->incarnation};
    ep->stripe[ep->npaths] =
        (struct stripe_path){.nominal_bytes_per_s = ctx->rails[p->rail].nominal_bytes_per_s,
                             .penalty_ns = ctx->rails[p->rail].penalty_ns,
                             .down = true};
    if (!ctx->rails[p->rail].worker || far->incarnation == 0) { /* it may be there later */
        p->state = PATH_CLOSED;
        p->failed = true;
        stripe_failed(&ep->stripe[ep->npaths++], clock_now_ns());
        reconnect_at(ctx, 1);
        return 0;
    }
    int rc = path_begin(p, err);
    ep->npaths += rc == 0;
    return rc;
}

static int ask_rails(struct net_endpoint *ep, int fd, uint64_t deadline_ns, struct net_reply *reply,
                     struct leat_error *err)
{
    struct ucx_ctx *ctx = ep->ctx;
    struct bytes_out body = {0};
    rails_tell(ctx, &body);
    int rc = body.failed ? -ENOMEM
                         : net_frame_send(fd, ep->version, PROTO_REQUEST, PROTO_RDMA_CONNECT, ++ep->next_id,
                                          &body, NULL, 0, deadline_ns);
    bytes_out_fini(&body);
    if (rc == 0)
        rc = net_frame_receive(fd, reply, deadline_ns);
    if (rc)
        return error_sys(err, rc, "node %" PRIu32 " does not answer", ep->node_id);
    rc = net_reply_status(reply, err);
    if (rc == 0 && (reply->frame.type != PROTO_RDMA_CONNECT || reply->frame.payload_bytes))
        rc = error_set(err, LEAT_CORRUPT, "node %" PRIu32 " sent another reply than was asked for",
                       ep->node_id);
    if (rc)
        net_reply_fini(reply);
    return rc;
}

static int add_paths(struct net_endpoint *ep, const struct net_reply *reply, struct leat_error *err)
{
    struct bytes_in in = bytes_in_of(reply->body.data, reply->body.len);
    uint32_t n = bytes_get_u32(&in);
    struct leat_error why = {0};
    int rc = in.bad || n == 0 || n > NET_RDMA_RAILS_MAX
                 ? error_set(&why, LEAT_CORRUPT, "node %" PRIu32 " has %" PRIu32 " rails", ep->node_id, n)
                 : 0;
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct far_rail far;
        int one = rails_take(&in, &far);
        if (one)
            rc = error_set(&why, one, "node %" PRIu32 " sent an invalid address", ep->node_id);
        else
            one = add_path(ep, i, &far, &why);
        if (one == -ENOMEM)
            rc = one;
    }
    if (!rc && ep->npaths == 0)
        rc = why.code;
    return rc ? error_set(err, rc, "%s", why.message) : 0;
}

static void ucx_disconnect(struct net_ctx *base, struct net_endpoint *ep)
{
    if (!ep)
        return;
    ep->disconnected = true;
    tear_down(ep, LEAT_PEER_GONE, 0);
    settle(ctx_of(base));
}

/* A refusing rail does not show whether the node just died or its rails are closed to us. The data connection
 * shows it, if not at once. */
static bool far_end_died(int connected_fd)
{
    struct pollfd p = {.fd = connected_fd, .events = POLLRDHUP};
    return poll(&p, 1, DEATH_MS) == 1 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* Waits until a path is up, to report an unreachable peer while the caller can still use another transport.
 * LEAT_UNSUPPORTED: none came up. */
static int wait_path(struct net_endpoint *ep, int connected_fd, uint64_t deadline_ns, struct leat_error *err)
{
    struct ucx_ctx *ctx = ep->ctx;
    uint64_t until = clock_now_ns() + ctx->connect_ns;
    if (deadline_ns && deadline_ns < until)
        until = deadline_ns;
    for (;;) {
        unsigned alive = 0;
        bool more = progress(ctx);
        for (unsigned i = 0; i < ep->npaths; i++) {
            if (ep->paths[i].state == PATH_UP && !ep->paths[i].failed)
                return 0;
            alive += !ep->paths[i].failed;
        }
        if (alive == 0 || clock_now_ns() >= until) {
            if (far_end_died(connected_fd))
                return error_set(err, LEAT_PEER_GONE,
                                 "its connection ended while rails were being connected");
            return error_set(err, LEAT_UNSUPPORTED, "no rail reaches it (%s)",
                             alive ? "no answer; LEAT_RDMA_CONNECT=SECONDS gives them longer"
                                   : "refused, or no route");
        }
        int rc = wait_and_serve(ctx, more ? 0 : MIN(clock_poll_ms(until), 100));
        if (rc < 0)
            return error_sys(err, rc, "cannot wait for a rail");
    }
}

static int watch(struct ucx_ctx *ctx, int fd, struct net_endpoint *ep)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = ep};
    return epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int ucx_connect(struct net_ctx *base, const struct net_peer *peer, uint64_t deadline_ns,
                       struct net_endpoint **ret_endpoint, struct leat_error *err)
{
    struct ucx_ctx *ctx = ctx_of(base);
    if (peer->connected_fd < 0)
        return error_set(err, LEAT_INVALID, "RDMA needs an authenticated connection");
    struct net_endpoint *ep = calloc(1, sizeof(*ep));
    struct key *keys = calloc(peer->nregions ? peer->nregions : 1, sizeof(*keys));
    if (!ep || !keys) {
        free(ep);
        free(keys);
        return error_set(err, -ENOMEM, "no memory for an endpoint");
    }
    *ep = (struct net_endpoint){.ctx = ctx,
                                .fd = -1,
                                .version = peer->version ? (uint8_t)peer->version : PROTO_VERSION,
                                .node_id = peer->node,
                                .generation = peer->generation,
                                .nkeys = peer->nregions,
                                .keys = keys};
    list_init(&ep->waiting);
    list_init(&ep->flying);
    list_init(&ep->held);
    list_init(&ep->asks);
    list_init(&ep->lost);
    list_push_back(&ctx->endpoints, &ep->node);
    for (unsigned i = 0; i < ctx->nrails; i++)
        rail_again(ctx, i);
    struct net_reply reply;
    int rc = ask_rails(ep, peer->connected_fd, deadline_ns, &reply, err);
    if (rc == 0) {
        rc = add_paths(ep, &reply, err);
        net_reply_fini(&reply);
    }
    if (rc == 0)
        rc = wait_path(ep, peer->connected_fd, deadline_ns, err);
    if (rc == 0 && (rc = watch(ctx, peer->connected_fd, ep)) < 0)
        error_sys(err, rc, "cannot watch the connection to node %" PRIu32, peer->node);
    if (rc) {
        ucx_disconnect(base, ep);
        return rc;
    }
    ep->fd = peer->connected_fd;
    forkfd_watch(&ep->forkfd, &ep->fd);
    *ret_endpoint = ep;
    return 0;
}

unsigned net_rdma_paths(const struct net_endpoint *ep, struct net_path_info ret_info[NET_RDMA_RAILS_MAX])
{
    for (unsigned k = 0; k < ep->npaths; k++)
        ret_info[k] = (struct net_path_info){.up = ep->paths[k].state == PATH_UP && !ep->paths[k].failed,
                                             .bytes = ep->stripe[k].total_bytes,
                                             .put_bytes = ep->paths[k].put_bytes,
                                             .rate_bytes_per_s = ep->stripe[k].rate_bytes_per_s,
                                             .name = ep->ctx->rails[ep->paths[k].rail].name};
    return ep->npaths;
}

/* --- memory and life ------------------------------------------------------------------------------------------------------ */

static int ucx_event_fd(struct net_ctx *base)
{
    return ctx_of(base)->epoll_fd;
}

static void ucx_free(struct net_ctx *base)
{
    struct ucx_ctx *ctx = ctx_of(base);
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        ep->disconnected = true;
        tear_down(ep, LEAT_PEER_GONE, 0);
    }
    settle(ctx);
    for (uint64_t until = clock_now_ns() + FREE_NS; !list_empty(&ctx->endpoints);) {
        progress(ctx);
        settle(ctx);
        if (clock_now_ns() >= until) { /* what UCX still holds may not be freed under it */
            log_error("a rail stays open: UCX does not complete its operations");
            forkfd_close(&ctx->forkfd);
            return;
        }
        usleep(100);
    }
    list_for_each_safe (node, &ctx->memories)
        ucx_mem_deregister(base, container_of(node, struct net_memory, node));
    for (unsigned i = 0; i < ctx->nrails; i++)
        ucx_rail_close(&ctx->rails[i]);
    list_for_each_safe (node, &ctx->comings)
        free(container_of(node, struct coming, node));
    list_for_each_safe (node, &ctx->spares)
        free(container_of(node, struct slice, node));
    forkfd_close(&ctx->forkfd);
    free(ctx->tls);
    free(ctx);
}

static const struct net_ops ucx_ops = {
    .name = "rdma",
    .caps = NET_CAP_ONE_SIDED | NET_CAP_REGISTER,
    .mem_register = ucx_mem_register,
    .mem_deregister = ucx_mem_deregister,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .submit = ucx_submit,
    .poll = ucx_poll,
    .event_fd = ucx_event_fd,
    .free = ucx_free,
};

static int open_rail(struct ucx_ctx *ctx, const struct net_rdma_config *config,
                     const struct ucx_wanted *wanted, struct leat_error *err)
{
    const unsigned r = ctx->nrails;
    uint64_t secret = 0;
    while (secret == 0)
        if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
            return error_sys(err, -errno, "no random numbers");
    int rc = ucx_rail_open(config, wanted, secret, &ctx->rails[r], err);
    if (rc == 0 && (rc = rail_watch(ctx, r)) < 0) {
        error_sys(err, rc, "cannot watch rail %s", wanted->name);
        ucx_rail_close(&ctx->rails[r]);
    }
    if (rc)
        return rc;
    ctx->secrets[r] = secret;
    ctx->wanted[r] = *wanted;
    ctx->nrails++;
    return 0;
}

/* Opens the rails to use, nearest first; reserves only where none of them can be opened. */
static int open_rails(struct ucx_ctx *ctx, const struct net_rdma_config *config, struct leat_error *err)
{
    struct ucx_found found;
    int rc = ucx_rails_find(config, false, &found, err);
    for (unsigned i = 0; !rc && i < found.n && (i < found.use || ctx->nrails == 0); i++) {
        struct leat_error why = {0};
        int one = open_rail(ctx, config, &found.rails[i], &why);
        if (one < 0) {
            error_set(err, one, "%s", why.message);
            log_debug("%s", why.message);
        }
    }
    if (rc == 0 && ctx->nrails == 0)
        rc = err && err->code < 0 ? err->code : LEAT_UNSUPPORTED;
    return rc ? rc : ucx_shape_take(&ctx->rails[0], &ctx->shape, err);
}

static int connect_limit(struct ucx_ctx *ctx, struct leat_error *err)
{
    const char *env = secure_getenv("LEAT_RDMA_CONNECT");
    unsigned seconds = 3;
    int rc = env && env[0] ? setting_count(&seconds, "LEAT_RDMA_CONNECT", env, 1, 600, err) : 0;
    ctx->connect_ns = seconds * NS_PER_S;
    return rc;
}

int net_rdma_new(const struct net_rdma_config *config, struct net_ctx **ret_ctx, struct leat_error *err)
{
    static const struct net_rdma_config defaults;
    struct leat_error why = {0};
    struct ucx_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx)
        return error_set(err, -ENOMEM, "no memory for a transport");
    ctx->base.ops = &ucx_ops;
    ctx->put = config && config->put;
    ctx->tls = config && config->tls ? strdup(config->tls) : NULL;
    if (config && config->tls && !ctx->tls) {
        free(ctx);
        return error_set(err, -ENOMEM, "no memory for a transport");
    }
    struct list *lists[] = {&ctx->endpoints, &ctx->memories, &ctx->spares,
                            &ctx->comings,   &ctx->events,   &ctx->told};
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    ctx->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (ctx->epoll_fd < 0) {
        int rc = error_sys(err, -errno, "cannot make an epoll");
        free(ctx->tls);
        free(ctx);
        return rc;
    }
    forkfd_watch(&ctx->forkfd, &ctx->epoll_fd);
    int rc = connect_limit(ctx, &why);
    if (rc == 0)
        rc = ucx_load(&ctx->ucx, &why);
    if (rc == 0)
        rc = open_rails(ctx, config ? config : &defaults, &why);
    if (rc) {
        ucx_free(&ctx->base);
        return error_set(err, rc, "%s", why.message);
    }
    *ret_ctx = &ctx->base;
    return 0;
}
