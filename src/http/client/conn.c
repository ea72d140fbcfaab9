/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection: connects, shakes hands, sends requests in order, receives answers in the same order.
 *
 * Happy path of an answer: its head comes into the buffer, with the first bytes of the payload, which are copied to their destination (a
 * first read for a large answer is short, so that this is little); the rest is received there straight away. Small answers come several
 * in one read.
 *
 * Failure modes: whatever breaks a connection ends the call whose answer was under way and sends those behind it to
 * wait again. A body that is shorter or longer than was said, or a head that is no HTTP, ends the connection too.
 * Invariants: `calls` are in the order of their requests; the reader is the first one's; a call leaves the list before its done() runs; a
 * connection is freed only when no call is inside the client (client_leave).
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "http/client/client_internal.h"
#include "base/clock.h"

#define LARGE         (64 * KIB)
#define FIRST_READ    (4 * KIB) /* of a large answer: its head and little more */
#define QUANTUM_BYTES (4 * MIB) /* then the other connections have a turn */
#define STRAIGHT                                                                                             \
    (4 * KIB) /* less than this is left of a body: it comes through the buffer, with what follows */
#define SEND_PIECES 16
#define RECV_PIECES 64u /* of a place, in one call */
/* With more than this to come, the socket reports nothing before so much is there: a third less CPU at 1 MiB a request, as the thread
 * is woken less often. One that brings it too slowly is looked at by the tick (http_conn_hasten). */
#define PATIENT (256 * KIB)

static void conn_progress(struct loop_source *source, uint32_t events);
static int conn_arm(struct loop_source *source);

static void want(struct http_conn *conn, uint32_t events)
{
    if (conn->state != CONN_DEAD)
        loop_modify(&conn->source, events); /* of a descriptor that is in: it does not fail */
}

/* --- its life ---------------------------------------------------------------------------------------------------------- */

/* In turn, without those that failed a moment ago as long as there are others. */
static unsigned choose_address(struct http_pool *pool)
{
    uint64_t now = clock_now_ns();
    for (unsigned i = 0; i < pool->naddresses; i++) {
        unsigned n = pool->next_address++ % pool->naddresses;
        const struct http_address *a = &pool->addresses[n];
        if (a->failed_ns == 0 || now - a->failed_ns > SHUNNED_NS)
            return n;
    }
    return pool->next_address++ % pool->naddresses;
}

int http_conn_open(struct http_pool *pool, unsigned *ret_address, struct leat_error *err)
{
    unsigned address = *ret_address = choose_address(pool);
    const struct resolve_address *a = &pool->addresses[address].to;
    struct http_conn *conn = calloc(1, sizeof(*conn));
    if (!conn)
        return -ENOMEM;
    int rc = 0, one = 1;
    conn->pool = pool;
    conn->address = address;
    list_init(&conn->node);
    list_init(&conn->flush_node);
    list_init(&conn->calls);
    http_reader_init_response(&conn->reader, CONN_BUFFER);
    conn->source.events = EPOLLOUT;
    conn->source.progress = conn_progress;
    conn->source.arm = conn_arm;
    conn->began_ns = conn->heard_ns = clock_now_ns();
    conn->source.fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (conn->source.fd < 0) {
        rc = error_sys(err, -errno, "a socket to %s", pool->origin.host);
    } else {
        setsockopt(conn->source.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (connect(conn->source.fd, (const struct sockaddr *)&a->at, a->len) < 0 && errno != EINPROGRESS)
            rc = error_sys(err, -errno, "%s:%u", pool->origin.host, pool->origin.port);
        else
            rc = loop_add(pool->client->loop, &conn->source);
    }
    if (rc < 0) {
        if (conn->source.fd >= 0)
            close(conn->source.fd);
        free(conn);
        return rc;
    }
    list_push_back(&pool->conns, &conn->node);
    pool->nconns++;
    pool->nconnecting++;
    pool->client->stats.open++;
    return 0;
}

void http_conn_free(struct http_conn *conn)
{
    SSL_free(conn->ssl);
    close(conn->source.fd);
    free(conn->buf);
    free(conn);
}

void http_conn_close(struct http_conn *conn, int rc, const struct leat_error *err)
{
    struct http_pool *pool = conn->pool;
    struct http_client *client = pool->client;
    if (conn->state == CONN_DEAD)
        return;
    bool was_open = conn->state == CONN_OPEN;
    if (!was_open)
        pool->nconnecting--;
    conn->state = CONN_DEAD;
    loop_remove(&conn->source);
    if (conn->ssl && rc == 0)
        tls_bye(conn);
    /* Nothing lands any more, though the descriptor lives a little longer. */
    shutdown(conn->source.fd, SHUT_RDWR);
    pool->nconns--;
    client->stats.open--;
    list_remove(&conn->flush_node);
    list_remove(&conn->node);
    list_push_back(&client->dead, &conn->node);
    if (was_open && (rc == LEAT_PEER_GONE || rc == 0) && conn->ncalls > 1 && conn->completed < 4)
        pool->pipeline = 1; /* it answers one request and hangs up: some do */

    client_enter(client);
    struct http_call *first = list_first(&conn->calls, struct http_call, node);
    if (first && (conn->answering || conn->completed == 0)) {
        conn->ncalls--;
        call_finish(client, first, rc < 0 ? rc : LEAT_PEER_GONE, err);
    } else if (first) {
        /* Those behind it were not looked at; a connection without answers ends its first. */
        first->tries++;
    }
    while (!list_empty(&conn->calls)) {
        /* From the last to the first, as each goes to the front of those that wait. */
        struct http_call *call = container_of(conn->calls.prev, struct http_call, node);
        conn->ncalls--;
        call_again(pool, call, err);
    }
    client->kicked = true;
    client_leave(client);
}

static void fail(struct http_conn *conn, int rc, const struct leat_error *why)
{
    struct leat_error err = {0};
    const struct http_origin *o = &conn->pool->origin;
    if (why->message[0])
        error_set(&err, rc, "%s:%u: %s", o->host, o->port, why->message);
    else
        error_sys(&err, rc, "%s:%u", o->host, o->port);
    if (conn->state == CONN_OPEN) {
        http_conn_close(conn, rc, &err);
        return;
    }
    /* Never was one: another address, or an error for waiting calls. */
    struct http_pool *pool = conn->pool;
    client_enter(pool->client);
    http_conn_close(conn, rc, &err);
    pool_attempt_failed(pool, conn->address, rc, &err);
    client_leave(pool->client);
}

/* --- bytes ------------------------------------------------------------------------------------------------------------- */

static ssize_t conn_read(struct http_conn *conn, void *buf, size_t len, struct leat_error *err)
{
    if (conn->ssl)
        return tls_read(conn, buf, len, err);
    ssize_t n = recv(conn->source.fd, buf, len, 0);
    return n < 0 ? -errno : n;
}

/* Sends what is left of the requests, several in one call where there are. */
void http_conn_send(struct http_conn *conn)
{
    struct leat_error err = {0};
    while (conn->sending) {
        struct iovec iov[SEND_PIECES];
        int n = 0;
        size_t skip = conn->sent;
        for (struct list *at = &conn->sending->node; at != &conn->calls && n + 2 <= SEND_PIECES;
             at = at->next) {
            struct http_call *call = container_of(at, struct http_call, node);
            const struct iovec parts[2] = {{(void *)call->head, call->head_len},
                                           {(void *)call->body, call->body_len}};
            for (int p = 0; p < 2; p++) {
                size_t len = parts[p].iov_len, cut = MIN(skip, len);
                skip -= cut;
                if (len > cut)
                    iov[n++] = (struct iovec){(char *)parts[p].iov_base + cut, len - cut};
            }
        }
        ssize_t sent;
        if (conn->ssl) {
            sent = n ? tls_write(conn, iov[0].iov_base, iov[0].iov_len, &err) : 0;
        } else {
            struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
            sent = sendmsg(conn->source.fd, &msg, MSG_NOSIGNAL);
            sent = sent < 0 ? -errno : sent;
        }
        conn->stuck = conn->ssl && sent == -EAGAIN ? true : sent > 0 ? false : conn->stuck;
        if (sent == -EAGAIN || sent == -EINTR) {
            want(conn, EPOLLIN | EPOLLOUT);
            return;
        }
        if (sent < 0 && !conn->sending->repeatable && conn->sent == 0 && !conn->stuck) {
            fail(conn, sent == -EPIPE ? LEAT_PEER_GONE : (int)sent, &err);
            return; /* nothing of it went out: another connection may take it */
        }
        if (sent < 0) {
            /*
             * The answer may be here nevertheless (the refusal of a large body), and is read before anything else is heard; there is
             * nothing more to read than that, so reading ends this too.
             */
            conn->last = true;
            conn->sending = NULL;
            shutdown(conn->source.fd, SHUT_WR);
            break;
        }
        conn->sent += (size_t)sent;
        conn->heard_ns = clock_now_ns();
        while (conn->sending && conn->sent >= conn->sending->head_len + conn->sending->body_len) {
            conn->sent -= conn->sending->head_len + conn->sending->body_len;
            struct list *next = conn->sending->node.next;
            conn->sending = next == &conn->calls ? NULL : container_of(next, struct http_call, node);
        }
    }
    want(conn, EPOLLIN);
}

void http_conn_take(struct http_conn *conn, struct http_call *call)
{
    list_push_back(&conn->calls, &call->node);
    conn->ncalls++;
    call->conn = conn;
    if (conn->ncalls == 1)
        conn->heard_ns = clock_now_ns();
    conn->asked_ns = conn->ncalls == 1 ? conn->heard_ns : 0;
    if (!conn->sending) {
        conn->sending = call;
        conn->sent = 0;
    }
    list_remove(&conn->flush_node);
    list_push_back(&conn->pool->client->flush, &conn->flush_node);
}

static void patience(struct http_conn *conn, bool patient)
{
    int low = patient ? (int)PATIENT : 1;
    if (conn->patient == patient || conn->ssl)
        return;
    if (setsockopt(conn->source.fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)) == 0)
        conn->patient = patient;
}

void http_conn_hasten(struct http_conn *conn)
{
    conn->hasty = true;
    patience(conn, false);
}

/* --- answers ----------------------------------------------------------------------------------------------------------- */

static struct http_call *current(struct http_conn *conn)
{
    return list_first(&conn->calls, struct http_call, node);
}

/* The first call's answer is complete. False: the connection is gone. */
static bool answered(struct http_conn *conn)
{
    struct http_client *client = conn->pool->client;
    struct http_call *call = current(conn);
    bool keep = conn->reader.keep_alive && !conn->last && conn->sending != call;
    bool unsent = conn->sending == call;
    conn->completed++;
    conn->answering = conn->hasty = false;
    conn->part = PART_HEAD;
    conn->body_left = 0;
    http_reader_reset(&conn->reader);
    list_remove(&call->node);
    call->conn = NULL;
    conn->ncalls--;
    if (unsent)
        conn->sending = NULL;
    conn->pool->failed_in_order = 0;
    call_finish(client, call, 0, NULL);
    if (conn->state == CONN_DEAD)
        return false;
    if (!keep) {
        http_conn_close(conn, 0, NULL);
        return false;
    }
    if (conn->ncalls == 0 && conn->have > conn->at) {
        struct leat_error err;
        error_set(&err, LEAT_CORRUPT, "unexpected data after the response");
        fail(conn, LEAT_CORRUPT, &err);
        return false;
    }
    return true;
}

static int keep_text(struct http_call *call, const void *data, size_t len)
{
    size_t max = call->text_max ? call->text_max : 64 * KIB;
    size_t room = call->text.len < max ? max - call->text.len : 0;
    bytes_put(&call->text, data, MIN(len, room));
    return call->text.failed ? -ENOMEM : 0;
}

static int feed(struct http_call *call, const void *data, size_t len)
{
    call->received += len;
    call->conn->pool->client->stats.bytes_in += len;
    return call->sink_text ? keep_text(call, data, len) : call->sink(call, data, len);
}

static int chunk_sink(void *user, const void *data, size_t len)
{
    struct http_call *call = user;
    if (!call->dst.at)
        return feed(call, data, len);
    if (len > call->dst_bytes - call->received)
        return LEAT_CORRUPT;
    pieces_put(&call->place, data, len);
    call->received += len;
    call->conn->pool->client->stats.bytes_in += len;
    return 0;
}

/* The head of an answer is whole. 0, or what ends the call. */
static int take_head(struct http_conn *conn, struct leat_error *err)
{
    struct http_call *call = current(conn);
    struct http_reader *r = &conn->reader;
    const char *buf = conn->buf + conn->at;
    call->status = r->status;
    call->sink_text = false;
    int rc = call->on_head ? call->on_head(call, r, buf, err) : 0;
    if (rc < 0)
        return rc;
    call->place = call->dst;
    if (!call->dst.at && !call->sink)
        call->sink_text = true;
    conn->at += r->head_bytes;
    switch (r->body) {
    case HTTP_BODY_NONE:
        conn->body_left = 0;
        conn->part = PART_SINK;
        return 0;
    case HTTP_BODY_CHUNKED:
        conn->part = PART_CHUNKED;
        conn->body_left = UINT64_MAX;
        return 0;
    case HTTP_BODY_LENGTH:
        conn->body_left = r->body_bytes;
        break;
    case HTTP_BODY_UNTIL_CLOSE:
        conn->body_left = UINT64_MAX;
        break;
    }
    conn->part = call->dst.at ? PART_DST : PART_SINK;
    if (call->dst.at && r->body == HTTP_BODY_LENGTH && conn->body_left > call->dst_bytes)
        return error_set(err, LEAT_CORRUPT, "the response has %llu bytes, requested were %llu",
                         (unsigned long long)conn->body_left, (unsigned long long)call->dst_bytes);
    return 0;
}

/* Makes what it can of the bytes in the buffer. 1: a call was answered; 0: more bytes are wanted; -1: the connection is gone. */
static int digest(struct http_conn *conn)
{
    struct leat_error err = {0};
    struct http_call *call = current(conn);
    size_t have = conn->have - conn->at;
    int rc = 0;
    if (conn->part == PART_HEAD) {
        if (have == 0)
            return 0;
        conn->answering = true;
        rc = http_head_feed(&conn->reader, conn->buf + conn->at, have, call->method, &err);
        if (rc == 0)
            return 0;
        if (rc > 0 && conn->reader.status / 100 == 1) {
            if (conn->reader.status == 101)
                rc = error_set(&err, LEAT_CORRUPT, "unexpected 101 Switching Protocols");
            else {
                conn->at += conn->reader.head_bytes; /* an interim answer: the real one follows */
                http_reader_reset(&conn->reader);
                return 1;
            }
        }
        if (rc > 0)
            rc = take_head(conn, &err);
        if (conn->state == CONN_DEAD)
            return -1;
        have = conn->have - conn->at;
    }
    size_t used = 0;
    if (rc == 0 && conn->part == PART_CHUNKED && have) {
        rc = http_body_feed(&conn->reader, conn->buf + conn->at, have, chunk_sink, call, &used, &err);
        if (rc == LEAT_CORRUPT && !err.message[0]) /* chunk_sink's, which has nowhere to say it */
            error_set(&err, rc, "more bytes than were requested");
        if (conn->reader.ended)
            conn->body_left = 0;
    } else if (rc == 0 && conn->part != PART_HEAD && conn->part != PART_CHUNKED) {
        used = (size_t)MIN((uint64_t)have, conn->body_left);
        if (used && conn->part == PART_DST) {
            if (used > call->dst_bytes - call->received) {
                rc = error_set(&err, LEAT_CORRUPT, "more bytes than were requested");
            } else {
                pieces_put(&call->place, conn->buf + conn->at, used);
                call->received += used;
                conn->pool->client->stats.bytes_in += used;
            }
        } else if (used) {
            rc = feed(call, conn->buf + conn->at, used);
        }
        if (conn->body_left != UINT64_MAX)
            conn->body_left -= used;
    }
    if (conn->state == CONN_DEAD)
        return -1;
    if (rc < 0) {
        fail(conn, rc, &err);
        return -1;
    }
    conn->at += used;
    if (conn->body_left == 0 && conn->part != PART_HEAD)
        return answered(conn) ? 1 : -1;
    return 0;
}

/* The peer closed. */
static void ended(struct http_conn *conn)
{
    struct leat_error err = {0};
    struct http_call *call = current(conn);
    if (!call) {
        http_conn_close(conn, 0, NULL);
        return;
    }
    if (conn->part != PART_HEAD && conn->reader.body == HTTP_BODY_UNTIL_CLOSE) {
        conn->last = true;
        answered(conn);
        return;
    }
    if (conn->part == PART_HEAD)
        error_set(&err, LEAT_PEER_GONE,
                  conn->answering ? "closed in the middle of an answer's head" : "closed without an answer");
    else if (conn->body_left == UINT64_MAX)
        error_set(&err, LEAT_PEER_GONE, "closed after %llu bytes of an answer without its end",
                  (unsigned long long)call->received);
    else
        error_set(&err, LEAT_PEER_GONE, "closed after %llu bytes of %llu", (unsigned long long)call->received,
                  (unsigned long long)(call->received + conn->body_left));
    fail(conn, LEAT_PEER_GONE, &err);
}

/* An idle connection has no buffer: no budget is charged for idle sessions (docs/decisions/0089). */
static int buffer_get(struct http_conn *conn)
{
    if (!conn->buf)
        conn->buf = malloc(CONN_BUFFER);
    return conn->buf ? 0 : -ENOMEM;
}

static void buffer_put(struct http_conn *conn)
{
    if (conn->ncalls || conn->at < conn->have)
        return;
    free(TAKE_PTR(conn->buf));
    conn->at = conn->have = 0;
}

/* To where the body is to be, several pieces of it in one call. Answers what conn_read does. */
static ssize_t read_straight(struct http_conn *conn, struct pieces *place, uint64_t room, size_t *ret_asked,
                             struct leat_error *err)
{
    ssize_t n;
    pieces_skip(place, 0);
    if (conn->ssl || place->left >= room) {
        *ret_asked = (size_t)MIN(place->left, room);
        n = conn_read(conn, place->at, *ret_asked, err);
    } else {
        struct iovec iov[RECV_PIECES];
        struct msghdr msg = {.msg_iov = iov};
        msg.msg_iovlen = pieces_iov(*place, room, iov, RECV_PIECES, ret_asked);
        n = recvmsg(conn->source.fd, &msg, 0);
        n = n < 0 ? -errno : n;
    }
    if (n > 0)
        pieces_skip(place, (uint64_t)n);
    return n;
}

/* Straight to where the body is to be where much of it is missing, else into the buffer. Answers what conn_read does. */
static ssize_t read_next(struct http_conn *conn, struct http_call *call, bool *ret_straight,
                         size_t *ret_asked, struct leat_error *err)
{
    uint64_t room =
        call && conn->part == PART_DST ? MIN(conn->body_left, call->dst_bytes - call->received) : 0;
    *ret_straight = conn->at == conn->have && room >= STRAIGHT;
    if (*ret_straight)
        return read_straight(conn, &call->place, room, ret_asked, err);
    if (conn->at == conn->have)
        conn->at = conn->have = 0;
    if (conn->have == CONN_BUFFER) {
        memmove(conn->buf, conn->buf + conn->at, conn->have - conn->at);
        conn->have -= conn->at;
        conn->at = 0;
    }
    *ret_asked = CONN_BUFFER - conn->have;
    if (call && conn->part == PART_HEAD && call->dst_bytes > LARGE && conn->have < FIRST_READ)
        *ret_asked = FIRST_READ - conn->have;
    return conn_read(conn, conn->buf + conn->have, *ret_asked, err);
}

static void note_first_byte(struct http_conn *conn)
{
    struct http_client_stats *stats = &conn->pool->client->stats;
    uint64_t ns = conn->heard_ns - conn->asked_ns;
    if (conn->asked_ns && (!stats->first_byte_ns || ns < stats->first_byte_ns))
        stats->first_byte_ns = ns;
    conn->asked_ns = 0;
}

static void receive_some(struct http_conn *conn)
{
    struct http_client_stats *stats = &conn->pool->client->stats;
    struct leat_error err = {0};
    uint64_t turn = 0;
    conn->more = false;
    for (;;) {
        struct http_call *call = current(conn);
        bool straight;
        size_t asked;
        ssize_t n = read_next(conn, call, &straight, &asked, &err);
        if (n == -EAGAIN || n == -EINTR)
            return;
        if (n == 0) {
            ended(conn);
            return;
        }
        if (n < 0) {
            fail(conn, n == -EPIPE ? LEAT_PEER_GONE : (int)n, &err);
            return;
        }
        conn->heard_ns = clock_now_ns();
        note_first_byte(conn);
        turn += (uint64_t)n;
        if (straight) {
            call->received += (uint64_t)n;
            stats->bytes_in += (uint64_t)n;
            stats->bytes_straight += (uint64_t)n;
            if (conn->body_left != UINT64_MAX)
                conn->body_left -= (uint64_t)n;
            if (conn->body_left == 0 && !answered(conn))
                return;
        } else {
            conn->have += (size_t)n;
            if (!call) {
                error_set(&err, LEAT_CORRUPT, "unexpected data after the response");
                fail(conn, LEAT_CORRUPT, &err);
                return;
            }
            int rc = 1;
            while (rc == 1 && conn->ncalls)
                rc = digest(conn);
            if (rc < 0)
                return;
        }
        if (conn->ncalls == 0)
            return;
        if (!conn->ssl && (size_t)n < asked)
            return; /* that was all: what comes now is reported */
        if (turn >= QUANTUM_BYTES) {
            conn->more = true;
            return;
        }
    }
}

static void conn_receive(struct http_conn *conn)
{
    struct leat_error err = {0};
    if (buffer_get(conn) < 0) {
        error_set(&err, -ENOMEM, "out of memory for an answer");
        fail(conn, -ENOMEM, &err);
        return;
    }
    receive_some(conn);
    buffer_put(conn);
    if (conn->state != CONN_DEAD)
        patience(conn, conn->part == PART_DST && !conn->hasty && conn->body_left > PATIENT &&
                           conn->body_left != UINT64_MAX);
}

static int conn_arm(struct loop_source *source)
{
    return container_of(source, struct http_conn, source)->more ? -EBUSY : 0;
}

static void opened(struct http_conn *conn)
{
    struct http_pool *pool = conn->pool;
    pool->addresses[conn->address].failed_ns = 0;
    conn->state = CONN_OPEN;
    pool->nconnecting--;
    pool->failed_in_order = 0;
    pool->client->stats.connections++;
    conn->heard_ns = clock_now_ns();
    want(conn, EPOLLIN);
    pool->client->kicked = true;
}

static void conn_progress(struct loop_source *source, uint32_t events)
{
    struct http_conn *conn = container_of(source, struct http_conn, source);
    struct http_client *client = conn->pool->client;
    struct leat_error err = {0};
    struct tls_quiet quiet;
    bool tls = conn->pool->origin.tls;
    client_enter(client);
    if (tls)
        tls_quiet_enter(&quiet);
    if (conn->state == CONN_CONNECTING) {
        int code = 0;
        socklen_t len = sizeof(code);
        int rc = getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0 ? -errno : -code;
        if (rc == 0 && conn->pool->origin.tls) {
            conn->state = CONN_HANDSHAKE;
            rc = tls_begin(conn, &err);
        } else if (rc == 0) {
            opened(conn);
        }
        if (rc < 0)
            fail(conn, rc, &err);
    }
    if (conn->state == CONN_HANDSHAKE) {
        uint32_t wanted = 0;
        int rc = tls_handshake(conn, &wanted, &err);
        if (rc == 1)
            opened(conn);
        else if (rc == 0)
            want(conn, wanted);
        else
            fail(conn, rc, &err);
    }
    if (conn->state == CONN_OPEN && conn->sending)
        http_conn_send(conn);
    if (conn->state == CONN_OPEN && (events & ~(uint32_t)EPOLLOUT || conn->more || conn->ssl))
        conn_receive(conn);
    client->kicked |= conn->pool->nwaiting != 0; /* there may be room for another */
    if (tls)
        tls_quiet_leave(&quiet);
    client_leave(client);
}
