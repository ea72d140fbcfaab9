/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c: a framed connection driven by a loop.
 *
 * Happy path: progress() reads available bytes into one input buffer and hands every whole frame (header and
 * body) to the owner's message(). Then it sends the queued replies in as few sendmsg calls as it can. A
 * payload is not part of a frame's buffer: message() names its destination and the bytes are received there.
 *
 * Failure modes: a peer that sends no frame, sizes past the limits, half a message before it hangs up, or
 * more or fewer descriptors than it says is closed with LEAT_CORRUPT; one that hangs up between frames, with
 * LEAT_PEER_GONE; one that does not read its replies, with LEAT_NO_SPACE once limits.out_bytes wait for it,
 * or its budget is exceeded; lack of memory, with -ENOMEM. Where the kernel has no room for output it is
 * tried again until it has.
 *
 * Invariants:
 * 1. closed() comes at most once, never from inside conn_send or conn_receive_payload, never after conn_free.
 * 2. done() of a payload comes exactly once: later than the call that named the payload (but at once when that
 *    call could not take it), at the latest from conn_free.
 * 3. The input buffer grows as bytes arrive, not as a header promises: a peer pays for what it makes us hold.
 * 4. Every descriptor received is the owner's (taken), or closed here.
 */
#include "rpc/conn.h"
#include "base/clock.h"
#include "base/fdpass.h"
#include "wire/leat/messages.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define IN_FIRST      (16 * KIB)
#define IN_KEEP       (256 * KIB) /* a larger buffer is given back once it is empty */
#define READ_PER_TURN (1 * MIB)   /* so that one peer does not starve the others of its loop */
#define SEND_PER_TURN (8 * MIB)
#define SEND_IOVS     64
#define REST_NS       (10 * NS_PER_MS)
#define UNREAD_NS     (1 * NS_PER_MS) /* doubles, up to */
#define UNREAD_MAX_NS (128 * NS_PER_MS)
#define OUT_BYTES     (64 * MIB)
#define FD_CHARGE     (16 * KIB) /* a queued descriptor counts as this much output */
#define RECEIVED_FDS  4          /* at a time: a request has one at most */

_Static_assert(PROTO_FDS_MAX <= FDPASS_MAX, "the descriptors of one frame go with one sendmsg");

struct out_item {
    struct list node;
    size_t head_bytes; /* frame and body */
    const uint8_t *payload;
    uint64_t payload_bytes;
    uint64_t sent; /* of head and payload together */
    void (*done)(void *user, int status);
    void *user;
    unsigned nfds;
    uint8_t *head; /* behind fds */
    int fds[];     /* duplicates; closed once sent */
};

struct conn {
    struct loop *loop;
    struct loop_source source;
    struct loop_timer later; /* for callbacks that must not run inside a call */
    const struct conn_ops *ops;
    void *user;
    uint64_t out_limit;
    uint32_t body_limit, fds_limit;
    bool is_unix;
    uint8_t version;
    uint32_t uid; /* of a unix peer; else UINT32_MAX */
    struct conn_budget *budget;
    uint64_t charged; /* to it, by us */
    bool over_budget;

    unsigned depth; /* of progress() and timers on the stack: conn_free waits for 0 */
    bool freed, closed;
    uint64_t unread_ns; /* the last pause for a peer that has not read */
    bool resting;       /* the kernel had no room: not asked again before `later` fires */
    int pending_close;  /* a status to close with, later */

    uint8_t *in;
    size_t in_cap, in_pos, in_end;
    int fds[RECEIVED_FDS]; /* received, not yet part of a message */
    unsigned nfds;

    uint8_t *payload; /* being received; NULL: none */
    uint64_t payload_bytes, payload_got;
    void (*payload_done)(void *user, int status);
    void *payload_user;

    struct list out;  /* struct out_item */
    struct list sent; /* whole, done() still to be called */
    uint64_t out_queued;
};

static void release(struct conn *conn)
{
    if (!conn->freed || conn->depth > 0)
        return;
    free(conn->in); /* not before: a message's body is valid until its callback returns */
    free(conn);
}

static void close_fds(int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* LEAT_NO_SPACE: this connection keeps more than before, and the budget is exceeded. */
static int budget_update(struct conn *conn)
{
    struct conn_budget *b = conn->budget;
    if (!b)
        return 0;
    uint64_t input = conn->in_cap > IN_KEEP ? conn->in_cap : 0;
    uint64_t before = conn->charged, now = conn->out_queued + input;
    b->used_bytes += now - before;
    conn->charged = now;
    if (now <= before || b->used_bytes <= b->limit_bytes)
        return 0;
    conn->over_budget = true;
    return LEAT_NO_SPACE;
}

static void budget_leave(struct conn *conn)
{
    if (conn->budget)
        conn->budget->used_bytes -= conn->charged;
    conn->budget = NULL;
}

bool conn_over_budget(const struct conn *conn)
{
    return conn->over_budget;
}

static void item_free(struct out_item *item)
{
    list_remove(&item->node);
    close_fds(item->fds, item->nfds);
    free(item);
}

static void run_later(struct conn *conn)
{
    if (conn->later.due_ns == 0 || conn->resting)
        loop_timer_set(conn->loop, &conn->later, 1);
    conn->resting = false;
}

/* Memory is short, or too many descriptors of this user are in flight (ETOOMANYREFS). */
static bool no_room(int error)
{
    return error == ENOBUFS || error == ENOMEM || error == ETOOMANYREFS;
}

static void rest(struct conn *conn, uint64_t ns)
{
    if (conn->later.due_ns == 0) {
        conn->resting = true;
        loop_timer_set(conn->loop, &conn->later, clock_now_ns() + ns);
    }
}

/* A peer that does not read for long is tried less often, or it would wake us a thousand times a second. */
static void rest_unread(struct conn *conn)
{
    if (conn->later.due_ns == 0)
        conn->unread_ns = MIN(MAX(conn->unread_ns * 2, UNREAD_NS), UNREAD_MAX_NS);
    rest(conn, conn->unread_ns);
}

/* Descriptors go only to a peer that has read everything before: one that does not read
 * keeps those of one frame in flight. */
static bool unread(const struct conn *conn)
{
    int bytes = 0;
    return conn->is_unix && ioctl(conn->source.fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

/* done() of everything sent; the owner may free the connection in any of them. */
static void deliver_sent(struct conn *conn)
{
    struct out_item *item;
    while (!conn->freed && (item = list_first(&conn->sent, struct out_item, node))) {
        void (*done)(void *, int) = item->done;
        void *user = item->user;
        item_free(item);
        if (done)
            done(user, 0);
    }
}

static void drop_output(struct conn *conn, int status)
{
    struct list *lists[] = {&conn->sent, &conn->out};
    for (unsigned i = 0; i < 2; i++) {
        struct out_item *item;
        while ((item = list_first(lists[i], struct out_item, node))) {
            void (*done)(void *, int) = item->done;
            void *user = item->user;
            item_free(item);
            if (done)
                done(user, i == 0 ? 0 : status);
        }
    }
    conn->out_queued = 0;
}

static void drop_payload(struct conn *conn, int status)
{
    void (*done)(void *, int) = conn->payload_done;
    conn->payload = NULL;
    conn->payload_done = NULL;
    if (done)
        done(conn->payload_user, status);
}

/* The connection is over. Inside progress() or a timer only. */
static void close_now(struct conn *conn, int status)
{
    if (conn->closed || conn->freed)
        return;
    conn->closed = true;
    budget_leave(conn);
    loop_remove(&conn->source);
    loop_timer_clear(&conn->later);
    conn->depth++;
    drop_output(conn, status);
    if (!conn->freed)
        drop_payload(conn, status);
    if (!conn->freed)
        conn->ops->closed(conn, status);
    conn->depth--;
}

/* The connection will be over: from inside calls of the owner. */
static void close_later(struct conn *conn, int status)
{
    if (conn->closed || conn->freed || conn->pending_close < 0)
        return;
    conn->pending_close = status;
    run_later(conn);
}

/* --- output ---------------------------------------------------------------------------------------------------- */

static unsigned gather_output(struct conn *conn, struct iovec *iov, struct out_item **ret_first)
{
    unsigned n = 0;
    struct out_item *first = NULL;
    list_for_each (node, &conn->out) {
        struct out_item *item = container_of(node, struct out_item, node);
        /* Descriptors go with the first byte of their frame, so such a frame starts a sendmsg. */
        if (n + 2 > SEND_IOVS || (first && item->nfds))
            break;
        if (!first)
            first = item;
        uint64_t at = item->sent;
        if (at < item->head_bytes)
            iov[n++] = (struct iovec){item->head + at, item->head_bytes - at};
        uint64_t p = at > item->head_bytes ? at - item->head_bytes : 0;
        if (p < item->payload_bytes)
            iov[n++] = (struct iovec){(void *)(item->payload + p), item->payload_bytes - p};
        if (item->payload_bytes > MIB)
            break;
    }
    *ret_first = first;
    return n;
}

static void output_sent(struct conn *conn, uint64_t bytes)
{
    while (bytes) {
        struct out_item *item = list_first(&conn->out, struct out_item, node);
        uint64_t left = item->head_bytes + item->payload_bytes - item->sent;
        uint64_t step = MIN(left, bytes);
        if (item->nfds) {
            conn->out_queued -= item->nfds * FD_CHARGE;
            close_fds(item->fds, item->nfds);
            item->nfds = 0;
        }
        item->sent += step;
        bytes -= step;
        if (step < left)
            return;
        conn->out_queued -= sizeof(*item) + item->head_bytes;
        list_remove(&item->node);
        list_push_back(&conn->sent, &item->node);
    }
}

/* 0: all sent or the socket is full; -errno. Frames without done() are freed at once. */
static int flush(struct conn *conn)
{
    uint64_t total = 0;
    while (!list_empty(&conn->out) && total < SEND_PER_TURN) {
        struct iovec iov[SEND_IOVS];
        struct out_item *first;
        union fdpass_control control;
        struct msghdr msg = {.msg_iov = iov};
        msg.msg_iovlen = gather_output(conn, iov, &first);
        if (first->nfds && unread(conn)) {
            rest_unread(conn);
            break;
        }
        fdpass_attach(&msg, &control, first->fds, first->nfds);
        ssize_t n = sendmsg(conn->source.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0 && no_room(errno)) {
            rest(conn, REST_NS);
            break;
        }
        if (n < 0)
            return errno == EPIPE || errno == ECONNRESET ? LEAT_PEER_GONE : -errno;
        conn->unread_ns = 0;
        output_sent(conn, (uint64_t)n);
        total += (uint64_t)n;
    }
    list_for_each_safe (node, &conn->sent) {
        struct out_item *item = container_of(node, struct out_item, node);
        if (!item->done)
            item_free(item);
    }
    budget_update(conn); /* less than before */
    return 0;
}

static int want_events(struct conn *conn)
{
    return loop_modify(&conn->source, EPOLLIN | (list_empty(&conn->out) || conn->resting ? 0 : EPOLLOUT));
}

/* From calls of the owner. Inside progress() the frames wait for its end, so that replies share a sendmsg. */
static void flush_soon(struct conn *conn)
{
    if (conn->depth > 0)
        return;
    int rc = flush(conn);
    if (rc == 0)
        rc = want_events(conn);
    if (rc < 0)
        close_later(conn, rc);
    if (!list_empty(&conn->sent))
        run_later(conn); /* done() never comes from inside the call that queued */
}

static struct out_item *item_new(const struct proto_frame *frame, const struct bytes_out *body)
{
    size_t fds_bytes = frame->nfds * sizeof(int);
    struct out_item *item = malloc(sizeof(*item) + fds_bytes + PROTO_FRAME + frame->body_bytes);
    if (!item)
        return NULL;
    memset(item, 0, sizeof(*item));
    list_init(&item->node);
    item->head = (uint8_t *)item->fds + fds_bytes;
    item->head_bytes = PROTO_FRAME + frame->body_bytes;
    proto_frame_put(item->head, frame);
    if (frame->body_bytes)
        memcpy(item->head + PROTO_FRAME, body->data, frame->body_bytes);
    return item;
}

static int item_dup_fds(struct out_item *item, const int *fds, unsigned nfds)
{
    for (unsigned i = 0; i < nfds; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return -errno;
        item->fds[item->nfds++] = fd;
    }
    return 0;
}

static void queue(struct conn *conn, struct proto_frame frame, const struct bytes_out *body, const int *fds,
                  const void *payload, void (*done)(void *, int), void *user)
{
    int rc = -ENOMEM;
    struct out_item *item = NULL;
    size_t body_bytes = body ? body->len : 0;
    frame.version = conn->version;
    frame.body_bytes = (uint32_t)body_bytes;
    if (conn->closed || conn->freed) {
        rc = LEAT_PEER_GONE;
        goto fail;
    }
    if (body && body->failed)
        goto fail;
    rc = LEAT_NO_SPACE;
    if (body_bytes > PROTO_BODY_MAX || frame.nfds > PROTO_FDS_MAX || frame.payload_bytes > PROTO_PAYLOAD_MAX)
        goto fail;
    /* The whole cost here: a reply of a frame alone is mostly its item. */
    uint64_t charge = sizeof(*item) + PROTO_FRAME + body_bytes + frame.nfds * FD_CHARGE;
    if (conn->out_queued + charge > conn->out_limit)
        goto fail;
    rc = -ENOMEM;
    item = item_new(&frame, body);
    if (!item)
        goto fail;
    rc = item_dup_fds(item, fds, frame.nfds);
    if (rc < 0)
        goto fail;
    item->payload = payload;
    item->payload_bytes = frame.payload_bytes;
    item->done = done;
    item->user = user;
    conn->out_queued += charge;
    list_push_back(&conn->out, &item->node);
    rc = budget_update(conn);
    if (rc < 0)
        close_later(conn, rc);
    else
        flush_soon(conn);
    return;
fail:
    if (item)
        item_free(item);
    if (done)
        done(user, rc);
    close_later(conn, rc);
}

void conn_send(struct conn *conn, uint8_t kind, uint16_t type, uint64_t id, int status,
               const struct bytes_out *body, const int *fds, unsigned nfds)
{
    struct proto_frame frame = {.kind = kind, .type = type, .id = id, .status = status, .nfds = nfds};
    queue(conn, frame, body, fds, NULL, NULL, NULL);
}

void conn_send_error(struct conn *conn, uint16_t type, uint64_t id, const struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    proto_error_text_put(&body, err->message[0] ? err->message : leat_strerror(err->code));
    conn_send(conn, PROTO_REPLY, type, id, err->code < 0 ? err->code : -EIO, &body, NULL, 0);
}

void conn_send_payload(struct conn *conn, uint8_t kind, uint16_t type, uint64_t id,
                       const struct bytes_out *body, const void *payload, uint64_t bytes,
                       void (*done)(void *user, int status), void *user)
{
    struct proto_frame frame = {.kind = kind, .type = type, .id = id, .payload_bytes = bytes};
    queue(conn, frame, body, NULL, payload, done, user);
}

/* --- input ----------------------------------------------------------------------------------------------------- */

void conn_receive_payload(struct conn *conn, void *dst, uint64_t bytes, void (*done)(void *user, int status),
                          void *user)
{
    assert(!conn->payload_done && done);
    conn->payload = dst;
    conn->payload_bytes = bytes;
    conn->payload_got = 0;
    conn->payload_done = done;
    conn->payload_user = user;
}

/* Room for at least one more byte of the frame at in_pos. */
static int make_room(struct conn *conn, size_t need)
{
    size_t have = conn->in_end - conn->in_pos;
    if (conn->in_pos > 0 && (have == 0 || conn->in_end == conn->in_cap)) {
        memmove(conn->in, conn->in + conn->in_pos, have);
        conn->in_pos = 0;
        conn->in_end = have;
    }
    if (have == 0 && conn->in_cap > IN_KEEP) {
        free(conn->in);
        conn->in = NULL;
        conn->in_cap = 0;
    }
    if (conn->in_end < conn->in_cap)
        return 0;
    size_t cap = MAX(need, conn->in_cap + IN_FIRST);
    cap = MIN(cap, conn->in_cap ? conn->in_cap * 2 : IN_FIRST);
    uint8_t *in = realloc(conn->in, cap);
    if (!in)
        return -ENOMEM;
    conn->in = in;
    conn->in_cap = cap;
    return 0;
}

/* Bytes read, 0 at the end, or -errno (-EAGAIN: nothing there). */
static ssize_t receive(struct conn *conn, void *buf, size_t bytes)
{
    struct iovec iov = {buf, bytes};
    ssize_t n = fdpass_receive(conn->source.fd, conn->uid, &iov, 1, conn->fds, conn->fds_limit, &conn->nfds);
    return n == -ECONNRESET || n == -EPIPE ? LEAT_PEER_GONE : n;
}

/* Gives the owner the frame at in_pos. */
static int dispatch(struct conn *conn, const struct proto_frame *frame)
{
    if (frame->nfds > conn->nfds)
        return LEAT_CORRUPT;
    int fds[PROTO_FDS_MAX];
    memcpy(fds, conn->fds, frame->nfds * sizeof(int));
    conn->nfds -= frame->nfds;
    memmove(conn->fds, conn->fds + frame->nfds, conn->nfds * sizeof(int));

    struct conn_message message = {
        .frame = *frame, .body = conn->in + conn->in_pos + PROTO_FRAME, .fds = fds};
    conn->in_pos += PROTO_FRAME + frame->body_bytes;
    const uint32_t uid = conn->uid;
    int rc = conn->ops->message(conn, &message);
    fdpass_close_all(fds, frame->nfds, uid);
    if (conn->freed || rc < 0)
        return rc < 0 ? rc : 0;
    if (frame->payload_bytes == 0)
        return conn->payload_done ? LEAT_INVALID : 0;
    /* The owner did not expect a payload with this message: the peer speaks nonsense. */
    if (!conn->payload_done || conn->payload_bytes != frame->payload_bytes)
        return LEAT_CORRUPT;
    return 0;
}

static void finish_payload(struct conn *conn)
{
    if (conn->payload_done && conn->payload_got == conn->payload_bytes)
        drop_payload(conn, 0);
}

/* Dispatches every whole frame that is buffered. *ret_need: bytes of the frame that is not whole yet. */
static int consume(struct conn *conn, size_t *ret_need)
{
    *ret_need = PROTO_FRAME;
    while (!conn->freed && conn->pending_close == 0) {
        size_t have = conn->in_end - conn->in_pos;
        if (conn->payload_done) {
            uint64_t step = MIN((uint64_t)have, conn->payload_bytes - conn->payload_got);
            if (step)
                memcpy(conn->payload + conn->payload_got, conn->in + conn->in_pos, step);
            conn->payload_got += step;
            conn->in_pos += step;
            if (conn->payload_got < conn->payload_bytes)
                return 0;
            finish_payload(conn);
            continue;
        }
        if (have < PROTO_FRAME)
            break;
        struct proto_frame frame;
        int rc = proto_frame_get(conn->in + conn->in_pos, &frame);
        if (rc < 0)
            return rc;
        if ((frame.nfds && !conn->is_unix) || frame.body_bytes > conn->body_limit)
            return LEAT_CORRUPT;
        *ret_need = PROTO_FRAME + (size_t)frame.body_bytes;
        if (have < *ret_need)
            return 0;
        *ret_need = PROTO_FRAME;
        rc = dispatch(conn, &frame);
        if (rc < 0)
            return rc;
    }
    /* Descriptors arrive with the first byte of their frame: with nothing buffered, none may be left over. */
    if (!conn->freed && conn->nfds > 0 && conn->in_end == conn->in_pos)
        return LEAT_CORRUPT;
    return 0;
}

static int read_input(struct conn *conn)
{
    size_t budget = READ_PER_TURN;
    while (budget > 0 && !conn->freed && conn->pending_close == 0) {
        size_t need = PROTO_FRAME;
        int rc = consume(conn, &need);
        if (rc < 0 || conn->freed || conn->pending_close < 0)
            return rc;
        ssize_t n;
        size_t asked;
        if (conn->payload_done) {
            asked = (size_t)MIN(conn->payload_bytes - conn->payload_got, (uint64_t)budget);
            n = receive(conn, conn->payload + conn->payload_got, asked);
            if (n > 0)
                conn->payload_got += (uint64_t)n;
        } else {
            rc = make_room(conn, need);
            if (rc < 0)
                return rc;
            asked = conn->in_cap - conn->in_end;
            n = receive(conn, conn->in + conn->in_end, asked);
            if (n > 0)
                conn->in_end += (size_t)n;
        }
        if (n == -EAGAIN)
            return 0;
        if (n < 0)
            return (int)n;
        if (n == 0)
            return conn->payload_done || conn->in_end != conn->in_pos ? LEAT_CORRUPT : LEAT_PEER_GONE;
        budget -= MIN(budget, (size_t)n);
        rc = consume(conn, &need);
        if (rc < 0)
            return rc;
        /* A short read on a stream socket means that it is empty now; unix ones also stop at descriptors. */
        if ((size_t)n < asked && !conn->is_unix)
            return 0;
    }
    return 0;
}

static void progress(struct loop_source *source, uint32_t events)
{
    struct conn *conn = container_of(source, struct conn, source);
    conn->depth++;
    int rc = 0;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP))
        rc = read_input(conn);
    if (!conn->freed && rc == 0)
        rc = budget_update(conn);
    if (!conn->freed) {
        /* Queued replies go out even when the rest of the input was nonsense. */
        int sent = conn->closed ? 0 : flush(conn);
        deliver_sent(conn);
        if (rc == 0)
            rc = conn->pending_close < 0 ? conn->pending_close : sent;
    }
    if (!conn->freed && !conn->closed && rc == 0)
        rc = want_events(conn);
    if (rc < 0)
        close_now(conn, rc);
    conn->depth--;
    release(conn);
}

static void later_fired(struct loop_timer *timer)
{
    struct conn *conn = container_of(timer, struct conn, later);
    conn->depth++;
    conn->resting = false;
    deliver_sent(conn);
    if (!conn->freed && conn->pending_close == 0) {
        int rc = flush(conn);
        if (rc == 0)
            rc = want_events(conn);
        conn->pending_close = rc;
    }
    if (conn->pending_close < 0)
        close_now(conn, conn->pending_close);
    conn->depth--;
    release(conn);
}

/* --- life ------------------------------------------------------------------------------------------------------ */

int conn_new(struct loop *loop, int fd, const struct conn_ops *ops, void *user,
             const struct conn_limits *limits, struct conn **ret_conn)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &len) < 0)
        return -errno;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    AUTO_FREE struct conn *conn = calloc(1, sizeof(*conn));
    if (!conn)
        return -ENOMEM;
    conn->loop = loop;
    conn->ops = ops;
    conn->user = user;
    conn->version = PROTO_VERSION_MIN;
    conn->body_limit = limits && limits->body_bytes ? limits->body_bytes : PROTO_BODY_MAX;
    conn->out_limit = limits && limits->out_bytes ? limits->out_bytes : OUT_BYTES;
    conn->fds_limit = limits && limits->no_fds ? 0 : RECEIVED_FDS;
    conn->is_unix = address.ss_family == AF_UNIX;
    conn->uid = UINT32_MAX;
    uint32_t gid;
    int32_t pid;
    conn->source.fd = fd;
    conn_credentials(conn, &conn->uid, &gid, &pid);
    fdpass_prepare(fd);
    conn->source = (struct loop_source){.fd = fd, .events = EPOLLIN, .progress = progress};
    conn->later.fire = later_fired;
    list_init(&conn->later.node);
    list_init(&conn->out);
    list_init(&conn->sent);
    int rc = loop_add(loop, &conn->source);
    if (rc < 0)
        return rc;
    *ret_conn = TAKE_PTR(conn);
    return 0;
}

static void tear_down(struct conn *conn, bool close_fd)
{
    conn->freed = true;
    budget_leave(conn);
    loop_remove(&conn->source);
    loop_timer_clear(&conn->later);
    if (close_fd)
        fdpass_hang_up(conn->source.fd, conn->uid);
    conn->depth++; /* an owner that frees twice from a callback is caught by the assert, not by the heap */
    drop_output(conn, -ECANCELED);
    drop_payload(conn, -ECANCELED);
    conn->depth--;
    fdpass_close_all(conn->fds, conn->nfds, conn->uid);
    conn->nfds = 0;
    release(conn);
}

void conn_free(struct conn *conn)
{
    if (!conn)
        return;
    assert(!conn->freed);
    tear_down(conn, true);
}

int conn_release_fd(struct conn *conn)
{
    if (conn->closed || conn->pending_close < 0)
        return LEAT_PEER_GONE;
    int rc = flush(conn); /* the reply that ends a handshake may be queued by the very callback we are in */
    if (rc < 0)
        return rc;
    if (!list_empty(&conn->out) || !list_empty(&conn->sent) || conn->in_end != conn->in_pos ||
        conn->payload_done || conn->nfds)
        return -EBUSY;
    int fd = conn->source.fd;
    tear_down(conn, false);
    return fd;
}

void conn_trust(struct conn *conn)
{
    conn->body_limit = PROTO_BODY_MAX;
    conn->fds_limit = RECEIVED_FDS;
    conn->out_limit = OUT_BYTES;
}

void conn_share_budget(struct conn *conn, struct conn_budget *budget)
{
    conn->budget = budget;
}

uint64_t conn_queued(const struct conn *conn)
{
    return conn->out_queued;
}

void *conn_user(const struct conn *conn)
{
    return conn->user;
}

void conn_set_version(struct conn *conn, unsigned version)
{
    conn->version = (uint8_t)version;
}

unsigned conn_version(const struct conn *conn)
{
    return conn->version;
}

int conn_fd(const struct conn *conn)
{
    return conn->source.fd;
}

int conn_credentials(const struct conn *conn, uint32_t *ret_uid, uint32_t *ret_gid, int32_t *ret_pid)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (!conn->is_unix)
        return LEAT_UNSUPPORTED;
    if (getsockopt(conn->source.fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return -errno;
    *ret_uid = cred.uid;
    *ret_gid = cred.gid;
    *ret_pid = cred.pid;
    return 0;
}
