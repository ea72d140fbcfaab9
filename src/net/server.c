/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c: the threads that serve READ and WRITE on data connections, and pass other requests on to the
 * target.
 *
 * Happy path: a connection's input is parsed into its reply queue, which is nothing but an array of iovecs:
 * the reply's frame, then one iovec for each range, pointing into region memory. sendmsg takes as many as the
 * socket takes, so that the replies of several requests share a call and no payload byte is touched in user
 * space. A WRITE's payload is received straight into the region; requests behind it wait for it.
 *
 *   iov[] … | sent | frame | range range range | frame | range … | free …
 *                  ^iov_head (may be half sent)                   ^iov_tail
 *
 * Failure modes: a range that resolve() refuses fails its request alone, with an error reply; nonsense closes
 * the connection; a peer that does not read is not read from any more (QUEUE_IOVS), so it costs no memory.
 * Lack of memory closes it.
 *
 * Invariants:
 * 1. A connection lives on one thread, and touches its target's memory on that thread only: after unref() there, or
 *    once net_server_free has joined the threads, none does.
 * 2. unref() comes once for each net_server_add that succeeded, on the data thread.
 */
#include "base/array.h"
#include "rpc/conn.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/ledger.h"
#include "base/fdpass.h"
#include "net/flow/losses.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define IN_FIRST      (16 * KIB)
#define BODY_MAX      (4 + 12 + (size_t)PROTO_READS_MAX * 16)
#define QUEUE_REPLIES 256
/* With as many waiting, no further request is parsed; one request may add PROTO_READS_MAX. */
#define QUEUE_IOVS 4096
#define SEND_BYTES (4 * MIB)
/* Of what is sent next: small samples lie anywhere, and sendmsg finds none in the cache. */
#define PREFETCH_BYTES (256 * KIB)
#define BYTES_PER_TURN (16 * MIB)
#define MESSAGE_MAX    160

struct reply {
    unsigned niov; /* iovecs not sent yet */
    uint8_t *body; /* owned: of an answer that the target gave; its iovec is the second */
    uint8_t head[PROTO_FRAME + 4 + MESSAGE_MAX];
};

struct data_conn {
    struct list node;
    struct data_thread *thread;
    struct loop_source source;
    struct net_serve_target *target;
    uint64_t serial;  /* within its thread: names the connection of a later answer */
    unsigned waiting; /* requests that will be answered later */
    uint8_t version;  /* of its frames, from the first one on; 0: none came */
    bool readable;    /* until a recvmsg finds nothing, or not as much as it asked for */
    bool ended;       /* the peer has sent its last: its end must be read even behind a short recvmsg */

    uint8_t *in;
    size_t in_cap, in_pos, in_end;

    struct iovec *iov;
    size_t iov_cap, iov_head, iov_tail;
    struct reply replies[QUEUE_REPLIES]; /* a ring */
    unsigned reply_head, reply_count;

    bool tells_losses; /* not over loopback or a unix socket: nothing is lost there */
    bool near;         /* and its send buffer is small */
    struct losses losses;

    /* A WRITE whose payload is on its way. */
    bool writing;
    struct iovec *write_iov;
    unsigned write_niov, write_at;
    uint64_t write_left, write_id, write_first;
    uint32_t write_count;
    int write_status;
    char write_message[MESSAGE_MAX];
};

struct data_thread {
    struct net_server *server;
    pthread_t thread;
    struct loop *loop;
    struct list conns;
    uint64_t serials;
    _Atomic uint64_t connections, requests, bytes_sent, bytes_received, errors;
    uint8_t sink[64 * KIB]; /* for the payload of a WRITE that was refused */
};

struct net_server {
    unsigned n;
    struct data_thread threads[];
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void conn_close(struct data_conn *c)
{
    loop_remove(&c->source);
    list_remove(&c->node);
    const uint32_t uid = c->target->uid;
    c->target->unref(c->target);
    atomic_fetch_sub(&c->thread->connections, 1);
    fdpass_hang_up(c->source.fd, uid); /* last: a peer that sees the end may count on the rest */
    for (unsigned i = 0; i < c->reply_count; i++)
        free(c->replies[(c->reply_head + i) % QUEUE_REPLIES].body);
    free(c->in);
    free(c->iov);
    free(c->write_iov);
    free(c);
}

/* --- replies --------------------------------------------------------------------------------------------------- */

/* Room for n more iovecs behind the tail. */
static int iov_reserve(struct data_conn *c, size_t n)
{
    if (c->iov_head == c->iov_tail)
        c->iov_head = c->iov_tail = 0;
    if (n <= c->iov_cap - c->iov_tail)
        return 0;
    size_t used = c->iov_tail - c->iov_head;
    if (c->iov_head) {
        memmove(c->iov, c->iov + c->iov_head, used * sizeof(*c->iov));
        c->iov_head = 0;
        c->iov_tail = used;
    }
    return array_reserve(&c->iov, &c->iov_cap, used + n);
}

/*
 * What waits in the send queue was copied out of the region and will be copied again: the less of it, the
 * likelier it is still in the cache then. Measured over loopback: a tenth to a quarter less CPU and more
 * throughput than with the automatic buffer (up to 4 MiB). The same holds between containers of a host, and
 * where the round trip is so short that NEAR_SNDBUF covers the path: 7 GB/s for each connection at NEAR_US.
 * Farther away only the unsent part is limited, because bytes in flight must cover bandwidth times delay. The
 * receiver's buffer stays automatic: a fixed SO_RCVBUF lost a quarter.
 */
#define UNSENT_BYTES (128 * 1024)
#define NEAR_SNDBUF  (384 * 1024)
#define NEAR_US      50u

static void tune_near(struct data_conn *c)
{
    int sndbuf = NEAR_SNDBUF, unsent = 0;
    setsockopt(c->source.fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf));
    /* As if it was never set. */
    setsockopt(c->source.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    c->near = true;
}

static uint32_t lost_so_far(struct data_conn *c)
{
    if (!c->tells_losses)
        return 0;
    uint32_t lost = losses_of(&c->losses, c->source.fd, clock_now_ns());
    if (!c->near && c->losses.min_rtt_us <= NEAR_US)
        tune_near(c);
    return lost;
}

/* The frame of the next reply; its iovec is the first of `niov`, the rest (payload) the caller has put behind it. */
static void push_reply(struct data_conn *c, uint16_t type, uint64_t id, int status, const char *message,
                       size_t head_at, uint64_t payload_bytes)
{
    struct reply *r = &c->replies[(c->reply_head + c->reply_count++) % QUEUE_REPLIES];
    struct proto_frame frame = {.version = c->version,
                                .kind = PROTO_REPLY,
                                .type = type,
                                .status = status,
                                .lost = lost_so_far(c),
                                .id = id,
                                .payload_bytes = payload_bytes};
    size_t bytes = PROTO_FRAME;
    r->body = NULL;
    if (status < 0) {
        uint32_t len = (uint32_t)strnlen(message, MESSAGE_MAX);
        for (int i = 0; i < 4; i++)
            r->head[PROTO_FRAME + i] = (uint8_t)(len >> (8 * i));
        memcpy(r->head + PROTO_FRAME + 4, message, len);
        frame.body_bytes = 4 + len;
        bytes += frame.body_bytes;
        count(&c->thread->errors, 1);
    }
    proto_frame_put(r->head, &frame);
    c->iov[head_at] = (struct iovec){r->head, bytes};
    r->niov = (unsigned)(c->iov_tail - head_at);
}

/* Two iovecs are reserved. Takes the body. */
static void push_answer(struct data_conn *c, uint16_t type, uint64_t id, int status, const char *message,
                        struct bytes_out *body)
{
    size_t head_at = c->iov_tail++;
    if (status == 0 && body->len)
        c->iov[c->iov_tail++] = (struct iovec){body->data, body->len};
    push_reply(c, type, id, status, message, head_at, 0);
    if (status < 0 || !body->len) {
        bytes_out_fini(body);
        return;
    }
    struct reply *r = &c->replies[(c->reply_head + c->reply_count - 1) % QUEUE_REPLIES];
    struct proto_frame again = {.version = c->version,
                                .kind = PROTO_REPLY,
                                .type = type,
                                .id = id,
                                .body_bytes = (uint32_t)body->len};
    proto_frame_put(r->head, &again);
    r->body = body->data;
}

static void output_sent(struct data_conn *c, size_t bytes)
{
    count(&c->thread->bytes_sent, bytes);
    if (c->target->sent_bytes)
        atomic_fetch_add_explicit(c->target->sent_bytes, bytes, memory_order_relaxed);
    while (bytes) {
        struct iovec *v = &c->iov[c->iov_head];
        if (bytes < v->iov_len) {
            v->iov_base = (char *)v->iov_base + bytes;
            v->iov_len -= bytes;
            return;
        }
        bytes -= v->iov_len;
        c->iov_head++;
        struct reply *r = &c->replies[c->reply_head];
        if (--r->niov == 0) {
            free(r->body);
            /* Restarts when it is empty: most connections never touch more than the first page of it. */
            c->reply_head = --c->reply_count ? (c->reply_head + 1) % QUEUE_REPLIES : 0;
        }
    }
}

/* 1: something went out and there may be room for more; 0: nothing to send or the socket is full; -errno. */
static int flush(struct data_conn *c, uint64_t *budget)
{
    if (c->iov_head == c->iov_tail)
        return 0;
    struct msghdr msg = {.msg_iov = c->iov + c->iov_head};
    uint64_t bytes = 0;
    size_t n = 0;
    for (; c->iov_head + n < c->iov_tail && n < IOV_MAX && bytes < SEND_BYTES; n++) {
        if (bytes < PREFETCH_BYTES)
            crc32c_copy_prefetch(msg.msg_iov[n].iov_base, msg.msg_iov[n].iov_len);
        bytes += msg.msg_iov[n].iov_len;
    }
    msg.msg_iovlen = n;
    ssize_t sent;
    do
        sent = sendmsg(c->source.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    output_sent(c, (size_t)sent);
    *budget -= MIN(*budget, (uint64_t)sent);
    return (uint64_t)sent == bytes ? 1 : 0; /* a short one means that the socket is full */
}

/* --- requests -------------------------------------------------------------------------------------------------- */

static void describe(char *buf, const struct proto_range *r, int status)
{
    snprintf(buf, MESSAGE_MAX, "region %" PRIu32 ", offset %" PRIu64 ", %" PRIu32 " bytes: %s", r->gid,
             r->offset, r->bytes, leat_strerror(status));
}

static int serve_read(struct data_conn *c, const struct proto_frame *frame, struct bytes_in in)
{
    uint32_t n = bytes_get_u32(&in);
    if (in.bad || n > PROTO_READS_MAX || frame->payload_bytes || bytes_left(&in) != (size_t)n * 16)
        return LEAT_CORRUPT;
    int rc = iov_reserve(c, n + 1);
    if (rc < 0)
        return rc;
    size_t head_at = c->iov_tail++;
    uint64_t payload = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct proto_range r;
        int status = LEAT_INVALID;
        proto_range_get(&in, &r);
        void *at = c->target->resolve(c->target, r.gid, r.offset, r.bytes, false, &status);
        if (!at) {
            char message[MESSAGE_MAX];
            describe(message, &r, status);
            c->iov_tail = head_at + 1;
            push_reply(c, PROTO_READ, frame->id, status < 0 ? status : LEAT_INVALID, message, head_at, 0);
            return 0;
        }
        if (r.bytes == 0)
            continue;
        c->iov[c->iov_tail++] = (struct iovec){at, r.bytes};
        payload += r.bytes;
    }
    push_reply(c, PROTO_READ, frame->id, 0, NULL, head_at, payload);
    return 0;
}

static int finish_write(struct data_conn *c)
{
    c->writing = false;
    free(c->write_iov);
    c->write_iov = NULL;
    int rc = iov_reserve(c, 1);
    if (rc < 0)
        return rc;
    int status = c->write_status;
    if (status == 0 && c->target->written)
        status = c->target->written(c->target, c->write_first, c->write_count);
    if (status < 0 && !c->write_message[0])
        snprintf(c->write_message, MESSAGE_MAX, "samples from %" PRIu64 ": %s", c->write_first,
                 leat_strerror(status));
    size_t head_at = c->iov_tail++;
    push_reply(c, PROTO_WRITE, c->write_id, status < 0 ? status : 0, c->write_message, head_at, 0);
    return 0;
}

static int begin_write(struct data_conn *c, const struct proto_frame *frame, struct bytes_in in)
{
    uint64_t first = bytes_get_u64(&in);
    uint32_t samples = bytes_get_u32(&in), n = bytes_get_u32(&in);
    if (in.bad || n > PROTO_READS_MAX || bytes_left(&in) != (size_t)n * 16)
        return LEAT_CORRUPT;
    c->write_iov = calloc(n ? n : 1, sizeof(*c->write_iov));
    if (!c->write_iov)
        return -ENOMEM;
    c->writing = true;
    c->write_id = frame->id;
    c->write_first = first;
    c->write_count = samples;
    c->write_left = frame->payload_bytes;
    c->write_niov = c->write_at = 0;
    c->write_status = 0;
    c->write_message[0] = 0;
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct proto_range r;
        proto_range_get(&in, &r);
        total += r.bytes;
        if (c->write_status < 0)
            continue;
        int status = LEAT_INVALID;
        void *at = c->target->resolve(c->target, r.gid, r.offset, r.bytes, true, &status);
        if (!at) {
            c->write_status = status < 0 ? status : LEAT_INVALID;
            describe(c->write_message, &r, c->write_status);
        } else if (r.bytes) {
            c->write_iov[c->write_niov++] = (struct iovec){at, r.bytes};
        }
    }
    if (total != frame->payload_bytes)
        return LEAT_CORRUPT;
    return c->write_left == 0 ? finish_write(c) : 0;
}

/* Requests that only the target understands. */
static int serve_other(struct data_conn *c, const struct proto_frame *frame, struct bytes_in in)
{
    struct bytes_out body = {0};
    struct leat_error err = {0};
    if (!c->target->request || frame->payload_bytes)
        return LEAT_CORRUPT;
    int rc = iov_reserve(c, 2);
    if (rc < 0)
        return rc;
    const struct net_later later = {
        .thread = c->thread, .conn = c->serial, .id = frame->id, .type = frame->type};
    rc = c->target->request(c->target, frame->type, &in, &body, &later, &err);
    if (rc == NET_LATER) {
        bytes_out_fini(&body);
        c->waiting++;
        return 0;
    }
    if (rc == 0 && body.failed)
        rc = error_set(&err, -ENOMEM, "out of memory for an answer");
    if (rc == LEAT_CORRUPT) {
        bytes_out_fini(&body);
        return rc;
    }
    push_answer(c, frame->type, frame->id, rc, err.message, &body);
    return 0;
}

static int serve_frame(struct data_conn *c, const struct proto_frame *frame, const uint8_t *body)
{
    struct bytes_in in = bytes_in_of(body, frame->body_bytes);
    if (!c->version) /* what was agreed on when it was made */
        c->version = (uint8_t)proto_version_common(frame->version, frame->version);
    if (frame->kind != PROTO_REQUEST || !c->version || frame->version != c->version)
        return LEAT_CORRUPT;
    count(&c->thread->requests, 1);
    if (frame->type == PROTO_READ)
        return serve_read(c, frame, in);
    if (frame->type == PROTO_WRITE)
        return begin_write(c, frame, in);
    return serve_other(c, frame, in);
}

static void write_landed(struct data_conn *c, size_t bytes)
{
    count(&c->thread->bytes_received, bytes);
    c->write_left -= bytes;
    while (bytes && c->write_status == 0) {
        struct iovec *v = &c->write_iov[c->write_at];
        size_t step = MIN(bytes, v->iov_len);
        v->iov_base = (char *)v->iov_base + step;
        v->iov_len -= step;
        bytes -= step;
        if (v->iov_len == 0)
            c->write_at++;
    }
}

/* The part of a payload that was read together with its frame. */
static void write_from_buffer(struct data_conn *c)
{
    while (c->write_left && c->in_pos < c->in_end) {
        size_t step = (size_t)MIN((uint64_t)(c->in_end - c->in_pos), c->write_left);
        if (c->write_status == 0) {
            struct iovec *v = &c->write_iov[c->write_at];
            step = MIN(step, v->iov_len);
            memcpy(v->iov_base, c->in + c->in_pos, step);
            ledger_add(LEDGER_BOUNCE, step);
        }
        c->in_pos += step;
        write_landed(c, step);
    }
}

static bool queue_full(const struct data_conn *c)
{
    return c->reply_count + c->waiting >= QUEUE_REPLIES || c->iov_tail - c->iov_head >= QUEUE_IOVS;
}

/* Serves what is buffered. *ret_need: bytes that the frame at in_pos needs in all. */
static int consume(struct data_conn *c, size_t *ret_need)
{
    *ret_need = PROTO_FRAME;
    while (!queue_full(c)) {
        if (c->writing) {
            write_from_buffer(c);
            if (c->write_left)
                return 0;
            int rc = finish_write(c);
            if (rc < 0)
                return rc;
            continue;
        }
        size_t have = c->in_end - c->in_pos;
        if (have < PROTO_FRAME)
            return 0;
        struct proto_frame frame;
        int rc = proto_frame_get(c->in + c->in_pos, &frame);
        if (rc < 0 || frame.body_bytes > BODY_MAX || frame.nfds)
            return LEAT_CORRUPT;
        *ret_need = PROTO_FRAME + (size_t)frame.body_bytes;
        if (have < *ret_need)
            return 0;
        const uint8_t *body = c->in + c->in_pos + PROTO_FRAME;
        c->in_pos += *ret_need;
        *ret_need = PROTO_FRAME;
        rc = serve_frame(c, &frame, body);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- the socket ------------------------------------------------------------------------------------------------ */

static int make_room(struct data_conn *c, size_t need)
{
    size_t have = c->in_end - c->in_pos;
    if (c->in_pos) {
        memmove(c->in, c->in + c->in_pos, have);
        c->in_pos = 0;
        c->in_end = have;
    }
    if (c->in_end < c->in_cap)
        return 0;
    size_t cap = MAX(need, c->in_cap + IN_FIRST);
    cap = MIN(cap, c->in_cap ? c->in_cap * 2 : IN_FIRST);
    uint8_t *in = realloc(c->in, cap);
    if (!in)
        return -ENOMEM;
    c->in = in;
    c->in_cap = cap;
    return 0;
}

/* 1: something came; 0: nothing there; -errno, LEAT_PEER_GONE at the end. */
static int receive(struct data_conn *c, size_t need, uint64_t *budget, bool *ret_empty)
{
    struct iovec sink = {c->thread->sink, (size_t)MIN(c->write_left, (uint64_t)sizeof(c->thread->sink))},
                 buffer;
    struct iovec *iov = &buffer;
    unsigned niov = 1, none = 0;
    size_t asked = 0;
    if (c->writing && c->write_status == 0) {
        iov = c->write_iov + c->write_at;
        niov = MIN(c->write_niov - c->write_at, (unsigned)IOV_MAX);
    } else if (c->writing) {
        iov = &sink;
    } else {
        int rc = make_room(c, need);
        if (rc < 0)
            return rc;
        buffer = (struct iovec){c->in + c->in_end, c->in_cap - c->in_end};
    }
    for (unsigned i = 0; i < niov; i++)
        asked += iov[i].iov_len;
    /* Nothing here takes descriptors. */
    ssize_t n = fdpass_receive(c->source.fd, c->target->uid, iov, niov, NULL, 0, &none);
    if (n == -EAGAIN)
        return 0;
    if (n <= 0)
        return n == 0 ? LEAT_PEER_GONE : (int)n;
    *ret_empty = (size_t)n < asked;
    *budget -= MIN(*budget, (uint64_t)n);
    if (c->writing)
        write_landed(c, (size_t)n);
    else
        c->in_end += (size_t)n;
    return 1;
}

/* Serves, sends and reads until the socket is idle in both directions, or (1) the turn is over. */
static int serve(struct data_conn *c)
{
    uint64_t budget = BYTES_PER_TURN;
    for (;;) {
        size_t need;
        int rc = consume(c, &need);
        if (rc < 0)
            return rc;
        int sent = flush(c, &budget);
        if (sent < 0)
            return sent;
        if (budget == 0)
            return 1;
        if (sent > 0)
            continue; /* there may be more, or room to parse more */
        if (!c->readable || queue_full(c))
            return 0;
        bool empty = false;
        int got = receive(c, need, &budget, &empty);
        if (got < 0)
            return got;
        if (got == 0 || (empty && !c->ended))
            c->readable = false;
    }
}

/* Edge-triggered, for both directions at once: what does not fit the socket's buffer costs no epoll_ctl. A
 * caller that takes an edge continues until the socket refuses, or asks for the edge again. */
#define EVENTS (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)

static void progress(struct loop_source *source, uint32_t events)
{
    struct data_conn *c = container_of(source, struct data_conn, source);
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        c->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        c->ended = true;
    int rc = serve(c);
    if (rc > 0) {
        source->events = 0;
        rc = loop_modify(source, EVENTS); /* the others' turn; epoll looks at this one again */
    }
    /* A full queue gets no room any more. */
    if (rc < 0 || ((events & (EPOLLHUP | EPOLLERR)) && queue_full(c)))
        conn_close(c);
}

/* --- answers that come later ----------------------------------------------------------------------------------- */

struct answer {
    struct net_later later;
    int status;
    char message[MESSAGE_MAX];
    struct bytes_out body;
};

static void answer_posted(void *arg)
{
    struct answer a = *(struct answer *)arg;
    struct data_conn *c = NULL;
    free(arg);
    list_for_each (node, &a.later.thread->conns) {
        struct data_conn *one = container_of(node, struct data_conn, node);
        c = one->serial == a.later.conn ? one : c;
    }
    if (c)
        c->waiting--;
    if (!c || iov_reserve(c, 2) < 0) {
        bytes_out_fini(&a.body);
        if (c)
            conn_close(c);
        return;
    }
    push_answer(c, a.later.type, a.later.id, a.status, a.message, &a.body);
    progress(&c->source, 0);
}

void net_server_answer(const struct net_later *later, int status, const char *message)
{
    net_server_answer_body(later, status, message, &(struct bytes_out){0});
}

void net_server_answer_body(const struct net_later *later, int status, const char *message,
                            struct bytes_out *body)
{
    struct answer *a;
    /* It must not fail: the requester waits for it. */
    while (!(a = calloc(1, sizeof(*a))))
        usleep(1000);
    a->later = *later;
    a->status = status;
    a->body = *body;
    *body = (struct bytes_out){0};
    if (message)
        snprintf(a->message, sizeof(a->message), "%s", message);
    while (loop_post(later->thread->loop, answer_posted, a) < 0)
        usleep(1000);
}

/* --- threads --------------------------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    struct data_thread *t = arg;
    loop_run(t->loop);
    list_for_each_safe (node, &t->conns)
        conn_close(container_of(node, struct data_conn, node));
    return NULL;
}

static void stop_threads(struct net_server *server, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        loop_stop(server->threads[i].loop);
        pthread_join(server->threads[i].thread, NULL);
        loop_free(server->threads[i].loop);
    }
    free(server);
}

int net_server_new(unsigned threads, struct net_server **ret_server)
{
    threads = threads ? threads : 1;
    struct net_server *server = calloc(1, sizeof(*server) + threads * sizeof(server->threads[0]));
    if (!server)
        return -ENOMEM;
    for (unsigned i = 0; i < threads; i++) {
        struct data_thread *t = &server->threads[i];
        t->server = server;
        list_init(&t->conns);
        int rc = loop_new(&t->loop);
        if (rc == 0) {
            rc = -pthread_create(&t->thread, NULL, thread_main, t);
            if (rc < 0)
                loop_free(t->loop);
        }
        if (rc < 0) {
            stop_threads(server, i);
            return rc;
        }
        pthread_setname_np(t->thread, "leat-data");
    }
    server->n = threads;
    *ret_server = server;
    return 0;
}

void net_server_free(struct net_server *server)
{
    if (server)
        stop_threads(server, server->n);
}

static void add_posted(void *arg)
{
    struct data_conn *c = arg;
    c->serial = ++c->thread->serials;
    list_push_back(&c->thread->conns, &c->node);
    if (loop_add(c->thread->loop, &c->source) < 0)
        conn_close(c);
}

/* Both ends have the same address: this host. */
static bool same_host(int fd)
{
    struct sockaddr_in6 here = {0}, there = {0}; /* large enough for IPv4 too */
    socklen_t here_len = sizeof(here), there_len = sizeof(there);
    if (getsockname(fd, (struct sockaddr *)&here, &here_len) < 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_len) < 0 || here.sin6_family != there.sin6_family)
        return false;
    if (here.sin6_family == AF_INET6)
        return memcmp(&here.sin6_addr, &there.sin6_addr, sizeof(here.sin6_addr)) == 0;
    return here.sin6_family == AF_INET &&
           ((struct sockaddr_in *)&here)->sin_addr.s_addr == ((struct sockaddr_in *)&there)->sin_addr.s_addr;
}

static void tune_socket(struct data_conn *c)
{
    const int fd = c->source.fd;
    int on = 1, unsent = UNSENT_BYTES;
    /* Best effort: a unix socket refuses the first ones, and needs none. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    if (same_host(fd))
        tune_near(c);
    else
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
}

static bool goes_over_a_network(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    if (getpeername(fd, (struct sockaddr *)&a, &len) < 0)
        return false;
    if (a.ss_family == AF_INET6)
        return !IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&a)->sin6_addr);
    return a.ss_family == AF_INET &&
           ntohl(((struct sockaddr_in *)&a)->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET;
}

int net_server_add(struct net_server *server, int fd, struct net_serve_target *target)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    struct data_thread *t = &server->threads[0];
    for (unsigned i = 1; i < server->n; i++)
        if (atomic_load(&server->threads[i].connections) < atomic_load(&t->connections))
            t = &server->threads[i];
    struct data_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    list_init(&c->node);
    c->thread = t;
    c->target = target;
    c->tells_losses = goes_over_a_network(fd);
    c->source = (struct loop_source){.fd = fd, .events = EVENTS, .progress = progress};
    c->losses.min_rtt_us = UINT32_MAX;
    fdpass_prepare(fd);
    tune_socket(c);
    atomic_fetch_add(&t->connections, 1);
    int rc = loop_post(t->loop, add_posted, c);
    if (rc < 0) {
        atomic_fetch_sub(&t->connections, 1);
        free(c);
    }
    return rc;
}

void net_server_stats(struct net_server *server, struct net_server_stats *ret_stats)
{
    struct net_server_stats s = {0};
    for (unsigned i = 0; i < server->n; i++) {
        struct data_thread *t = &server->threads[i];
        s.connections += atomic_load_explicit(&t->connections, memory_order_relaxed);
        s.requests += atomic_load_explicit(&t->requests, memory_order_relaxed);
        s.bytes_sent += atomic_load_explicit(&t->bytes_sent, memory_order_relaxed);
        s.bytes_received += atomic_load_explicit(&t->bytes_received, memory_order_relaxed);
        s.errors += atomic_load_explicit(&t->errors, memory_order_relaxed);
    }
    *ret_stats = s;
}
