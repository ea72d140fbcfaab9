/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.c: reads over TCP (or any stream socket): one request carries many ranges, the reply's payload is
 * received straight into the destinations and checksummed while it is still in the cache.
 *
 * Happy path: submit() encodes an op as one READ (neighbouring ranges merged on the wire; more than one READ
 * when it has too many ranges) and sends it. Replies come in the order of requests. A recvmsg scatters up to
 * CHUNK bytes into the destinations of the request at the head (neighbouring ones as one). When that ends the
 * payload, it takes the next reply's frame too; the frame of a reply that nothing can follow comes with its
 * payload. Then the pieces are checksummed. poll() sleeps in that recvmsg where one endpoint alone owes
 * something, or where several may be waited for in order (net_ctx.poll_in_order): then in the one that was
 * asked first. Otherwise, and for a while after a recvmsg that slept long, it sleeps in epoll.
 *
 * Failure modes: an error reply fails the reads of its request and so its op, nothing else. A deadline that
 * passes, a dead peer or nonsense from it closes the socket. Every op on it is DONE and QUIESCED at once, for
 * bytes land by our own recvmsg only: -ETIMEDOUT past the deadline, -EBADMSG for the op with the nonsense,
 * -ECONNRESET for the others. The endpoint then refuses with -ECONNRESET; its owner connects again.
 *
 * Invariants:
 * 1. ep->ops holds exactly the ops in flight, in the order of submission; the first request's op is the first
 *    of them.
 * 2. op->cursor, op->cursor_bytes are where the next payload byte of its op lands; only the head request's op
 *    moves.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/forkfd.h"
#include "rpc/conn.h"
#include "net/events.h"

#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define CHUNK            (256 * KIB) /* received, then checksummed while hot in L2 */
#define IOVS             512
#define BYTES_PER_TURN   (8 * MIB) /* of one endpoint, before the others and the deadlines get their turn */
#define ERROR_BODY_MAX   (4 + PROTO_STR_MAX)
#define ENDPOINTS_A_POLL 32
#define SLEEP_MS         10 /* how long a recvmsg may sleep before deadlines are looked at again */
#define NAP_NS           (2 * NS_PER_MS)   /* longer than that, and other endpoints may have more to report */
#define RESTLESS_NS      (100 * NS_PER_MS) /* after that no endpoint is waited for alone for so long */
#define SETTLED          32                /* sleeps in a row after which epoll forgets the sockets */

struct tcp_request {
    struct net_op *op;
    uint64_t id, bytes;
    uint32_t first, end; /* reads of op */
};

enum rx_state { RX_FRAME, RX_PAYLOAD, RX_ERROR };

struct net_endpoint {
    struct tcp_ctx *ctx;
    struct list node;
    int fd; /* -1: torn down */
    uint8_t version;
    struct forkfd forkfd;
    bool watched, want_out; /* by epoll */
    bool may_sleep;         /* a recvmsg without MSG_DONTWAIT comes back after SLEEP_MS */
    struct list ops;

    struct tcp_request *requests; /* a ring; cap is a power of two */
    uint32_t request_cap, request_head, request_tail;
    uint64_t next_id;
    struct bytes_out out;
    size_t out_sent;

    enum rx_state rx;
    uint8_t frame[PROTO_FRAME];
    size_t frame_got;
    uint64_t payload_left;
    uint32_t error_left;
    int error_status;
    uint32_t lost; /* the server's last report */
};

struct tcp_ctx {
    struct net_ctx base;
    int epoll_fd;
    bool event_fd_given; /* the caller sleeps on epoll_fd: every endpoint stays watched */
    struct list endpoints;
    struct forkfd forkfd;
    struct list events;
    struct list told;         /* stays empty: DONE and QUIESCED come together here */
    uint64_t min_deadline_ns; /* of all ops in flight; 0: none. May be too early, never too late */
    unsigned in_flight;       /* ops */
    uint64_t ids;             /* of ops, in the order of submission */
    uint64_t restless_ns; /* until then no thread sleeps in a recvmsg while several endpoints owe something */
    unsigned sleeps;      /* in recvmsg since epoll was asked last, SETTLED at most */
};

static struct tcp_request *head_request(struct net_endpoint *ep)
{
    return ep->request_head == ep->request_tail ? NULL
                                                : &ep->requests[ep->request_head & (ep->request_cap - 1)];
}

static void op_over(struct tcp_ctx *ctx, struct net_op *op, int status)
{
    list_remove(&op->node);
    op->status = op->status ? op->status : status;
    ctx->in_flight--;
    net_op_done(&ctx->base, op, &ctx->events);
    net_op_quiesced(op, &ctx->events);
}

/* Every op still out ends with `first` (the one at the head) and `others`; ops past `now` with -ETIMEDOUT. */
static void tear_down(struct net_endpoint *ep, int first, int others, uint64_t now)
{
    struct net_op *op;
    /* epoll forgets a closed descriptor only when no forked process has a duplicate of it. */
    if (ep->fd >= 0 && ep->watched)
        epoll_ctl(ep->ctx->epoll_fd, EPOLL_CTL_DEL, ep->fd, NULL);
    ep->watched = ep->want_out = false;
    forkfd_close(&ep->forkfd);
    int status = first;
    while ((op = list_first(&ep->ops, struct net_op, node))) {
        int s = now && op->deadline_ns && op->deadline_ns <= now ? LEAT_TIMED_OUT : status;
        /* The rest of the op did not come; reads that had come are not distinguished. */
        for (uint32_t i = 0; i < op->n; i++)
            if (op->reads[i].status == 0)
                op->reads[i].status = s;
        op->status = 0;
        op_over(ep->ctx, op, s);
        status = others;
    }
    ep->request_head = ep->request_tail = 0;
    bytes_out_reset(&ep->out);
    ep->out_sent = 0;
}

/* --- sending --------------------------------------------------------------------------------------------------- */

static int watch(struct net_endpoint *ep, bool want)
{
    struct epoll_event event = {.events = EPOLLIN | (ep->want_out ? EPOLLOUT : 0), .data.ptr = ep};
    if (want == ep->watched)
        return 0;
    if (epoll_ctl(ep->ctx->epoll_fd, want ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, ep->fd, &event) < 0)
        return -errno;
    ep->watched = want;
    return 0;
}

static int want_out(struct net_endpoint *ep, bool want)
{
    struct epoll_event event = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = ep};
    if (want == ep->want_out)
        return 0;
    if (ep->watched && epoll_ctl(ep->ctx->epoll_fd, EPOLL_CTL_MOD, ep->fd, &event) < 0)
        return -errno;
    ep->want_out = want;
    return 0;
}

static int flush(struct net_endpoint *ep)
{
    int rc = net_send_queued(ep->fd, &ep->out, &ep->out_sent);
    return rc == 0 || rc == -EAGAIN ? want_out(ep, rc != 0) : rc;
}

static int push_request(struct net_endpoint *ep, const struct tcp_request *request)
{
    if (ep->request_tail - ep->request_head == ep->request_cap) {
        uint32_t cap = ep->request_cap ? ep->request_cap * 2 : 16, n = 0;
        struct tcp_request *ring = malloc(cap * sizeof(*ring));
        if (!ring)
            return -ENOMEM;
        for (uint32_t i = ep->request_head; i != ep->request_tail; i++)
            ring[n++] = ep->requests[i & (ep->request_cap - 1)];
        free(ep->requests);
        ep->requests = ring;
        ep->request_cap = cap;
        ep->request_head = 0;
        ep->request_tail = n;
    }
    ep->requests[ep->request_tail++ & (ep->request_cap - 1)] = *request;
    return 0;
}

/* Encodes reads [first, …) as one READ; ret_request->end is where the next one starts. Room is made for as
 * many ranges as there may be, and what merging leaves of it is given back. */
static void encode(struct net_endpoint *ep, struct net_op *op, uint32_t first,
                   struct tcp_request *ret_request)
{
    uint32_t i = first, n = 0, most = MIN(op->n - first, PROTO_READS_MAX);
    struct proto_range run = {0};
    *ret_request = (struct tcp_request){.op = op, .id = ep->next_id++, .first = first};
    uint8_t *at = bytes_room(&ep->out, PROTO_FRAME + 4 + (size_t)most * PROTO_RANGE);
    if (!at)
        return;
    uint8_t *range = at + PROTO_FRAME + 4;
    for (; i < op->n; i++) {
        const struct net_read *r = &op->reads[i];
        if (r->bytes == 0)
            continue;
        if (run.bytes && run.gid == r->mr_gid && run.offset + run.bytes == r->offset &&
            r->bytes <= UINT32_MAX - run.bytes) {
            run.bytes += r->bytes;
        } else {
            if (n == PROTO_READS_MAX)
                break;
            if (run.bytes) {
                proto_range_write(range, &run);
                range += PROTO_RANGE;
            }
            run = (struct proto_range){.gid = r->mr_gid, .bytes = r->bytes, .offset = r->offset};
            n++;
        }
        ret_request->bytes += r->bytes;
    }
    if (run.bytes)
        proto_range_write(range, &run);
    ret_request->end = i;
    ep->out.len -= (size_t)(most - n) * PROTO_RANGE;
    struct proto_frame frame = {.version = ep->version,
                                .kind = PROTO_REQUEST,
                                .type = PROTO_READ,
                                .id = ret_request->id,
                                .body_bytes = 4 + n * PROTO_RANGE};
    proto_frame_put(at, &frame);
    for (int b = 0; b < 4; b++)
        at[PROTO_FRAME + b] = (uint8_t)(n >> (8 * b));
}

static int tcp_submit(struct net_endpoint *ep, struct net_op *op)
{
    struct tcp_ctx *ctx = ep->ctx;
    if (ep->fd < 0)
        return LEAT_PEER_GONE;
    uint64_t bytes = 0;
    uint32_t requests_before = ep->request_tail - ep->request_head;
    size_t out_before = ep->out.len;
    for (uint32_t i = 0; i < op->n; i++) {
        op->reads[i].crc = 0;
        op->reads[i].status = 0;
        bytes += op->reads[i].bytes;
    }
    for (uint32_t i = 0; bytes && i < op->n;) {
        struct tcp_request request;
        encode(ep, op, i, &request);
        if (ep->out.failed || push_request(ep, &request) < 0) {
            /* Nothing was sent yet: the op was never here. */
            ep->request_tail = ep->request_head + requests_before;
            ep->out.len = out_before;
            ep->out.failed = false;
            return -ENOMEM;
        }
        i = request.end;
    }
    net_op_begin(&ctx->base, ep, op, bytes);
    op->id = ++ctx->ids;
    ctx->in_flight++;
    list_init(&op->node);
    if (bytes == 0) {
        op_over(ctx, op, 0);
        return 0;
    }
    list_push_back(&ep->ops, &op->node);
    if (op->deadline_ns && (ctx->min_deadline_ns == 0 || op->deadline_ns < ctx->min_deadline_ns))
        ctx->min_deadline_ns = op->deadline_ns;
    /* The op was taken: poll reports a connection that turns out to be dead. */
    if (flush(ep) < 0)
        tear_down(ep, LEAT_PEER_GONE, LEAT_PEER_GONE, 0);
    return 0;
}

/* --- receiving ------------------------------------------------------------------------------------------------- */

static void request_over(struct net_endpoint *ep)
{
    struct tcp_request *rq = head_request(ep);
    struct net_op *op = rq->op;
    bool last = rq->end == op->n;
    ep->request_head++;
    ep->rx = RX_FRAME;
    ep->frame_got = 0;
    if (last)
        op_over(ep->ctx, op, 0);
}

static int frame_came(struct net_endpoint *ep)
{
    struct tcp_request *rq = head_request(ep);
    struct proto_frame f;
    int rc = proto_frame_get(ep->frame, &f);
    if (rc < 0)
        return rc;
    if (!rq || f.version != ep->version || f.kind != PROTO_REPLY || f.type != PROTO_READ || f.id != rq->id ||
        f.nfds)
        return LEAT_CORRUPT;
    /* The op's cursor may stand before reads that an error reply passed over. */
    rq->op->cursor = rq->first;
    rq->op->cursor_bytes = 0;
    if (f.status < 0) {
        if (f.body_bytes > ERROR_BODY_MAX || f.payload_bytes)
            return LEAT_CORRUPT;
        rq->op->status = rq->op->status ? rq->op->status : f.status;
        for (uint32_t i = rq->first; i < rq->end; i++)
            rq->op->reads[i].status = f.status;
        ep->rx = RX_ERROR;
        ep->error_left = f.body_bytes;
        if (ep->error_left == 0)
            request_over(ep);
        return 0;
    }
    if (f.body_bytes || f.payload_bytes != rq->bytes)
        return LEAT_CORRUPT;
    ep->ctx->base.stats.lost_segments += f.lost - ep->lost; /* modulo 2^32 */
    rq->op->lost_segments += f.lost - ep->lost;
    ep->lost = f.lost;
    ep->rx = RX_PAYLOAD;
    ep->payload_left = f.payload_bytes;
    if (ep->payload_left == 0)
        request_over(ep);
    return 0;
}

/* The next up to `room` bytes of an op's destinations, from byte `skip` of read `at`. Returns how many iovecs. */
static unsigned scatter_payload(const struct net_op *op, uint32_t at, uint32_t skip, uint64_t room,
                                struct iovec *iov, unsigned most, uint64_t *ret_bytes)
{
    uint64_t left = room;
    unsigned n = 0;
    for (; left; at++, skip = 0) {
        const struct net_read *r = &op->reads[at];
        uint64_t bytes = MIN((uint64_t)(r->bytes - skip), left);
        char *dst = (char *)r->dst + skip;
        if (bytes == 0)
            continue;
        if (n && (char *)iov[n - 1].iov_base + iov[n - 1].iov_len == dst)
            iov[n - 1].iov_len += (size_t)bytes;
        else if (n == most)
            break;
        else
            iov[n++] = (struct iovec){dst, (size_t)bytes};
        left -= bytes;
    }
    *ret_bytes = room - left;
    return n;
}

/* Where the next bytes go: destinations up to CHUNK, with the frame ahead of them or behind. */
static unsigned scatter(struct net_endpoint *ep, struct iovec *iov, uint8_t *junk, size_t junk_bytes,
                        size_t *ret_asked)
{
    struct tcp_request *rq = head_request(ep);
    bool last = ep->request_tail - ep->request_head == 1;
    uint64_t bytes;
    if (ep->rx == RX_ERROR) {
        iov[0] = (struct iovec){junk, MIN((size_t)ep->error_left, junk_bytes)};
        *ret_asked = iov[0].iov_len;
        return 1;
    }
    if (ep->rx == RX_FRAME) {
        iov[0] = (struct iovec){ep->frame + ep->frame_got, PROTO_FRAME - ep->frame_got};
        *ret_asked = iov[0].iov_len;
        /* Nothing can follow this reply, so what is behind its frame is the payload, or else the text of an error, which
         * does no harm there: the op has failed then. */
        if (!last)
            return 1;
        unsigned n = 1 + scatter_payload(rq->op, rq->first, 0, MIN((uint64_t)CHUNK, rq->bytes), iov + 1,
                                         IOVS - 1, &bytes);
        *ret_asked += (size_t)bytes;
        return n;
    }
    unsigned n = scatter_payload(rq->op, rq->op->cursor, rq->op->cursor_bytes,
                                 MIN((uint64_t)CHUNK, ep->payload_left), iov, IOVS - 1, &bytes);
    *ret_asked = (size_t)bytes;
    if (bytes == ep->payload_left && !last) {
        iov[n++] = (struct iovec){ep->frame, PROTO_FRAME};
        *ret_asked += PROTO_FRAME;
    }
    return n;
}

/* Checksums `bytes` that have landed behind the cursor. */
static void landed(struct net_endpoint *ep, uint64_t bytes)
{
    struct net_op *op = head_request(ep)->op;
    ep->payload_left -= bytes;
    while (bytes) {
        struct net_read *r = &op->reads[op->cursor];
        uint32_t step = (uint32_t)MIN(bytes, (uint64_t)(r->bytes - op->cursor_bytes));
        r->crc = crc32c(r->crc, (char *)r->dst + op->cursor_bytes, step);
        op->cursor_bytes += step;
        bytes -= step;
        if (op->cursor_bytes == r->bytes) {
            op->cursor++;
            op->cursor_bytes = 0;
        }
    }
}

static int received(struct net_endpoint *ep, size_t bytes)
{
    while (bytes) {
        size_t step;
        int rc = 0;
        if (ep->rx == RX_PAYLOAD) {
            step = (size_t)MIN((uint64_t)bytes, ep->payload_left);
            landed(ep, step);
            if (ep->payload_left == 0)
                request_over(ep);
        } else if (ep->rx == RX_ERROR) {
            step = MIN(bytes, (size_t)ep->error_left);
            ep->error_left -= (uint32_t)step;
            if (ep->error_left == 0)
                request_over(ep);
        } else {
            step = MIN(bytes, PROTO_FRAME - ep->frame_got);
            ep->frame_got += step;
            if (step == 0 || list_empty(&ep->ops)) /* more than the replies we asked for */
                rc = LEAT_CORRUPT;
            else if (ep->frame_got == PROTO_FRAME)
                rc = frame_came(ep);
        }
        if (rc < 0)
            return rc;
        bytes -= step;
    }
    return 0;
}

/* `sleep`: waits a little if nothing is there. */
static int receive(struct net_endpoint *ep, bool sleep)
{
    uint64_t budget = BYTES_PER_TURN;
    for (;;) {
        struct iovec iov[IOVS];
        uint8_t junk[512];
        size_t asked;
        struct msghdr msg = {.msg_iov = iov};
        msg.msg_iovlen = scatter(ep, iov, junk, sizeof(junk), &asked);
        ssize_t n = recvmsg(ep->fd, &msg, sleep ? 0 : MSG_DONTWAIT);
        if (n < 0 && errno == EINTR && !sleep)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : LEAT_PEER_GONE;
        if (n == 0)
            return LEAT_PEER_GONE;
        sleep = false;
        int rc = received(ep, (size_t)n);
        if (rc < 0)
            return rc;
        budget -= MIN(budget, (uint64_t)n);
        if ((size_t)n < asked || budget == 0 || list_empty(&ep->ops))
            return 0; /* short: nothing more is there now */
    }
}

/* --- progress -------------------------------------------------------------------------------------------------- */

static void progress(struct net_endpoint *ep, uint32_t events, bool sleep)
{
    int rc = 0;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        rc = receive(ep, sleep);
    if (rc == 0 && (events & EPOLLOUT))
        rc = flush(ep);
    if (rc < 0)
        tear_down(ep, rc == LEAT_CORRUPT ? LEAT_CORRUPT : LEAT_PEER_GONE, LEAT_PEER_GONE, 0);
}

static void check_deadlines(struct tcp_ctx *ctx, uint64_t now)
{
    uint64_t min = 0;
    if (ctx->min_deadline_ns == 0 || now < ctx->min_deadline_ns)
        return;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        bool late = false;
        list_for_each (op_node, &ep->ops) {
            uint64_t due = container_of(op_node, struct net_op, node)->deadline_ns;
            late |= due && due <= now;
        }
        if (late)
            tear_down(ep, LEAT_PEER_GONE, LEAT_PEER_GONE, now);
        list_for_each (op_node, &ep->ops) {
            uint64_t due = container_of(op_node, struct net_op, node)->deadline_ns;
            if (due && (min == 0 || due < min))
                min = due;
        }
    }
    ctx->min_deadline_ns = min;
}

static struct net_op *first_op(const struct net_endpoint *ep)
{
    return list_first(&ep->ops, struct net_op, node);
}

/*
 * In whose recvmsg to sleep: that of the only endpoint that owes something, or, if they may be waited for in
 * order, of the one that was asked first. What the others send waits in their sockets: one wake-up then finds
 * much, where epoll would report each piece. After a while epoll forgets all of them: a watched socket takes
 * a lock and walks its waiters with each segment. Adding one again costs more than some segments. NULL: in
 * none.
 */
static struct net_endpoint *sleeper(struct tcp_ctx *ctx, uint64_t now)
{
    struct net_endpoint *first = NULL;
    unsigned owing = 0;
    if (ctx->event_fd_given)
        return NULL;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        const struct net_op *op = ep->fd >= 0 ? first_op(ep) : NULL;
        if (!op)
            continue;
        if (!ep->may_sleep || ep->want_out)
            return NULL;
        owing++;
        if (!first || op->id < first_op(first)->id)
            first = ep;
    }
    if (owing > 1 && (!ctx->base.poll_in_order || now < ctx->restless_ns))
        return NULL;
    if (ctx->sleeps < SETTLED) {
        ctx->sleeps++;
        return first;
    }
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        if (ep->fd >= 0 && watch(ep, false) < 0)
            return NULL;
    }
    return first;
}

static int watch_all(struct tcp_ctx *ctx)
{
    ctx->sleeps = 0;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        int rc = ep->fd >= 0 ? watch(ep, true) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int tcp_poll(struct net_ctx *base, struct net_event *events, unsigned max, int timeout_ms)
{
    struct tcp_ctx *ctx = container_of(base, struct tcp_ctx, base);
    uint64_t now = clock_now_ns(), before;
    const uint64_t until = timeout_ms > 0 ? now + (uint64_t)timeout_ms * NS_PER_MS : 0;
    for (;;) {
        unsigned n = net_events_take(&ctx->events, &ctx->told, events, max);
        if (n > 0 || ctx->in_flight == 0)
            return (int)n;
        int wait = timeout_ms > 0 ? clock_left_ms(until, now) : timeout_ms;
        if (ctx->min_deadline_ns) {
            int due = clock_left_ms(ctx->min_deadline_ns, now);
            wait = wait < 0 ? due : MIN(wait, due);
        }
        struct net_endpoint *sleeps = wait < 0 || wait >= SLEEP_MS ? sleeper(ctx, now) : NULL;
        struct epoll_event ready[ENDPOINTS_A_POLL];
        int k = 0;
        if (sleeps)
            progress(sleeps, EPOLLIN, true);
        else if ((k = watch_all(ctx)) == 0)
            k = epoll_wait(ctx->epoll_fd, ready, ENDPOINTS_A_POLL, wait);
        if (k < 0 && errno != EINTR)
            return -errno;
        /* One endpoint's progress never touches another, so no entry here can have gone stale. */
        for (int i = 0; i < k; i++)
            progress(ready[i].data.ptr, ready[i].events, false);
        before = now;
        now = clock_now_ns();
        /* Where that takes long its server is slow, or stopped, and the others get their turn. */
        if (sleeps && now - before > NAP_NS)
            ctx->restless_ns = now + RESTLESS_NS;
        check_deadlines(ctx, now);
        if (list_empty(&ctx->events) && (timeout_ms == 0 || (timeout_ms > 0 && now >= until)))
            return 0;
    }
}

/* --- life ------------------------------------------------------------------------------------------------------ */

/* The first rail that answers. */
static int dial_any(const char *addresses, uint64_t deadline_ns, int *ret_fd, struct leat_error *err)
{
    int rc = error_set(err, LEAT_INVALID, "node has no address");
    while (addresses && *addresses) {
        size_t len = strcspn(addresses, ",");
        AUTO_FREE char *one = strndup(addresses, len);
        if (!one)
            return error_set(err, -ENOMEM, "no memory to connect");
        rc = net_dial(one, deadline_ns, ret_fd, err);
        if (rc == 0 || rc == LEAT_TIMED_OUT)
            return rc;
        addresses += len + (addresses[len] == ',');
    }
    return rc;
}

static int tcp_connect(struct net_ctx *base, const struct net_peer *peer, uint64_t deadline_ns,
                       struct net_endpoint **ret_endpoint, struct leat_error *err)
{
    struct tcp_ctx *ctx = container_of(base, struct tcp_ctx, base);
    struct net_endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return error_set(err, -ENOMEM, "no memory for an endpoint");
    ep->ctx = ctx;
    ep->fd = peer->connected_fd;
    ep->version = peer->version ? (uint8_t)peer->version : PROTO_VERSION;
    list_init(&ep->ops);
    int rc = 0;
    if (ep->fd < 0)
        rc = dial_any(peer->address, deadline_ns, &ep->fd, err);
    if (rc == 0) {
        int on = 1;
        setsockopt(ep->fd, IPPROTO_TCP, TCP_NODELAY, &on,
                   sizeof(on)); /* a unix socket refuses, and has no need */
        const struct timeval nap = {.tv_usec = SLEEP_MS * 1000};
        int flags = fcntl(ep->fd, F_GETFL);
        ep->may_sleep = setsockopt(ep->fd, SOL_SOCKET, SO_RCVTIMEO, &nap, sizeof(nap)) == 0 && flags >= 0 &&
                        fcntl(ep->fd, F_SETFL, flags & ~O_NONBLOCK) == 0;
        rc = watch(ep, true);
        if (rc < 0) {
            error_sys(err, rc, "cannot watch the connection to node %" PRIu32, peer->node);
            if (peer->connected_fd < 0)
                close(ep->fd);
        }
    }
    if (rc < 0) {
        free(ep);
        return rc;
    }
    forkfd_watch(&ep->forkfd, &ep->fd);
    list_push_back(&ctx->endpoints, &ep->node);
    *ret_endpoint = ep;
    return 0;
}

static void tcp_disconnect(struct net_ctx *base, struct net_endpoint *ep)
{
    if (!ep)
        return;
    tear_down(ep, LEAT_PEER_GONE, LEAT_PEER_GONE, 0);
    list_remove(&ep->node);
    bytes_out_fini(&ep->out);
    free(ep->requests);
    free(ep);
}

static int tcp_mem_register(struct net_ctx *ctx, void *addr, uint64_t bytes, int device,
                            struct net_memory **ret_memory)
{
    *ret_memory = NULL;
    return 0;
}

static void tcp_mem_deregister(struct net_ctx *ctx, struct net_memory *memory) {}

static int tcp_event_fd(struct net_ctx *base)
{
    struct tcp_ctx *ctx = container_of(base, struct tcp_ctx, base);
    ctx->event_fd_given = true;
    return watch_all(ctx) < 0 ? -1 : ctx->epoll_fd;
}

static void tcp_free(struct net_ctx *base)
{
    struct tcp_ctx *ctx = container_of(base, struct tcp_ctx, base);
    list_for_each_safe (node, &ctx->endpoints)
        tcp_disconnect(base, container_of(node, struct net_endpoint, node));
    forkfd_close(&ctx->forkfd);
    free(ctx);
}

static const struct net_ops tcp_ops = {
    .name = "tcp",
    .mem_register = tcp_mem_register,
    .mem_deregister = tcp_mem_deregister,
    .connect = tcp_connect,
    .disconnect = tcp_disconnect,
    .submit = tcp_submit,
    .poll = tcp_poll,
    .event_fd = tcp_event_fd,
    .free = tcp_free,
};

int net_tcp_new(struct net_ctx **ret_ctx)
{
    struct tcp_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx)
        return -ENOMEM;
    ctx->base.ops = &tcp_ops;
    list_init(&ctx->endpoints);
    list_init(&ctx->events);
    list_init(&ctx->told);
    ctx->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (ctx->epoll_fd < 0) {
        int rc = -errno;
        free(ctx);
        return rc;
    }
    forkfd_watch(&ctx->forkfd, &ctx->epoll_fd);
    *ret_ctx = &ctx->base;
    return 0;
}
