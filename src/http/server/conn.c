/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c: one connection, from accept to close.
 *
 * Happy path: bytes come, an exchange is taken for them, its head is read and shown, its body is handed on, its answer sent; then the
 * exchange goes back, and the idle connection costs a few hundred bytes. sconn_drive goes from step to step until the socket, the handler
 * or fairness make it wait.
 * Failure modes: a peer that ends, breaks framing or is too slow ends its exchange with `over` and the connection with it; where it may
 * still be sending, the connection lingers, so that it can read the answer before a reset throws it away.
 * Invariants: a handler is only ever called from sconn_drive, ticks and messages, never from inside a call that it makes itself; what it
 * changes is seen when it returns (`driving`), or in the reactor's next turn (`ready`). After sconn_close the conn is gone.
 */
#include "http/server/server_internal.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "base/clock.h"

#define STEPS_MAX 64u /* of small messages in a pipeline, before others have their turn */

static void to_list(struct http_server_conn *conn, struct list *list)
{
    list_remove(&conn->node);
    list_push_back(list, &conn->node);
}

void exchange_over(struct exchange *ex, int rc)
{
    struct reactor_stats *stats = &ex->conn->reactor->stats;
    ex->shown = false;
    exchange_forget(ex->conn->reactor, ex);
    warm_forget(ex);
    if (rc < 0) {
        bump(&stats->answers[0], 1);
        if (rc == LEAT_PEER_GONE)
            bump(&stats->aborted, 1);
    }
    if (ex->req.ops && ex->req.ops->over)
        ex->req.ops->over(&ex->req, rc);
}

void exchange_wake(struct exchange *ex)
{
    if (!ex->conn->driving)
        reactor_ready(ex->conn);
}

void sconn_close(struct http_server_conn *conn, int rc)
{
    struct http_reactor *reactor = conn->reactor;
    struct http_server *server = reactor->server;
    if (conn->ex) {
        if (conn->ex->shown)
            exchange_over(conn->ex, rc ? rc : -ECANCELED);
        exchange_give(reactor, TAKE_PTR(conn->ex));
    }
    loop_remove(&conn->source);
    list_remove(&conn->node);
    list_remove(&conn->ready_node);
    if (conn->ssl) {
        if (rc == 0 && conn->state != SCONN_HANDSHAKE)
            sconn_tls_bye(conn);
        SSL_free(conn->ssl);
    }
    close(conn->source.fd);
    reactor->lingerers -= conn->extra;
    atomic_fetch_sub_explicit(&reactor->stats.conns, 1, memory_order_relaxed);
    free(conn);
    budget_release(&server->budget, sizeof(*conn));
    if (atomic_fetch_sub(&server->conns, 1) == 1) {
        pthread_mutex_lock(&server->stop_lock);
        pthread_cond_broadcast(&server->stop_cond);
        pthread_mutex_unlock(&server->stop_lock);
    }
}

static void linger(struct http_server_conn *conn)
{
    if (conn->ex)
        exchange_give(conn->reactor, TAKE_PTR(conn->ex));
    if (conn->ssl && conn->state != SCONN_HANDSHAKE)
        sconn_tls_bye(conn);
    shutdown(conn->source.fd, SHUT_WR);
    conn->state = SCONN_LINGER;
    conn->since_ns = clock_now_ns();
    conn->window_bytes = conn->bytes_in;
    conn->readable = true;
    to_list(conn, &conn->reactor->active);
}

static void count_overload(struct http_reactor *reactor)
{
    bump(&reactor->stats.overload, 1);
    bump(&reactor->stats.refused, 1);
}

/* A peer that does not take it is closed all the same. */
static void say_overload(struct http_reactor *reactor, int fd)
{
    const struct bytes_out *text = &reactor->server->overload;
    ssize_t n = send(fd, text->data, text->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
}

/* No memory for a request: what can be said without any. */
static void overload(struct http_server_conn *conn)
{
    count_overload(conn->reactor);
    if (!conn->ssl)
        say_overload(conn->reactor, conn->source.fd);
    else if (conn->state != SCONN_HANDSHAKE)
        sconn_tls_write(conn, conn->reactor->server->overload.data, conn->reactor->server->overload.len);
    linger(conn);
}

void sconn_refuse(struct http_server_conn *conn, unsigned status, const char *message)
{
    struct exchange *ex = conn->ex;
    if (ex->req.began_ns == 0)
        ex->req.began_ns = clock_now_ns();
    ex->close_after = true;
    ex->body_ended = false;
    respond_refusal(conn->reactor->server, ex, status, message);
}

/* --- steps --------------------------------------------------------------------------------------------------------------- */

static enum step handshake_step(struct http_server_conn *conn)
{
    int rc = sconn_tls_handshake(conn);
    if (rc == 0)
        return STEP_WAIT;
    if (rc < 0) {
        bump(&conn->reactor->stats.handshakes_failed, 1);
        sconn_close(conn, rc);
        return STEP_GONE;
    }
    bump(&conn->reactor->stats.handshakes, 1);
    bump(&conn->reactor->stats.resumed, SSL_session_reused(conn->ssl) == 1);
    conn->state = SCONN_IDLE;
    conn->since_ns = clock_now_ns();
    to_list(conn, &conn->reactor->idle);
    return STEP_ON;
}

static bool is_stopping(struct http_reactor *reactor)
{
    return atomic_load_explicit(&reactor->stop, memory_order_relaxed) != STOP_NOT;
}

static enum step idle_step(struct http_server_conn *conn)
{
    if (!conn->readable) {
        if (!is_stopping(conn->reactor))
            return STEP_WAIT;
        sconn_close(conn, 0);
        return STEP_GONE;
    }
    conn->ex = exchange_take(conn->reactor, conn);
    if (!conn->ex) {
        overload(conn);
        return STEP_ON;
    }
    conn->state = SCONN_HEAD;
    conn->window_ns = 0;
    to_list(conn, &conn->reactor->active);
    return STEP_ON;
}

static void become_idle(struct http_server_conn *conn)
{
    exchange_give(conn->reactor, TAKE_PTR(conn->ex));
    conn->state = SCONN_IDLE;
    conn->since_ns = clock_now_ns();
    to_list(conn, &conn->reactor->idle);
}

static enum step head_step(struct http_server_conn *conn)
{
    enum step step = input_head(conn);
    if (step != STEP_WAIT || conn->ex->have > 0)
        return step;
    become_idle(conn);
    return STEP_ON; /* waits there, or closes */
}

static enum step next_message(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    size_t more = ex->have - ex->at;
    if (is_stopping(conn->reactor)) {
        sconn_close(conn, 0);
        return STEP_GONE;
    }
    if (more == 0) {
        become_idle(conn);
        return STEP_ON;
    }
    /* The next one is here already: it goes to a new exchange, whose buffer may be smaller than what there is of it. */
    struct exchange *next = exchange_take(conn->reactor, conn);
    if (!next || (more > next->cap && !exchange_grow(conn->reactor->server, next, more))) {
        exchange_give(conn->reactor, next);
        overload(conn);
        return STEP_ON;
    }
    memcpy(next->buf, ex->buf + ex->at, more);
    next->have = more;
    next->req.began_ns = clock_now_ns();
    exchange_give(conn->reactor, ex);
    conn->ex = next;
    conn->state = SCONN_HEAD;
    conn->window_ns = 0;
    return STEP_ON;
}

/* The answer is with the kernel. */
static enum step finish(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    struct reactor_stats *stats = &conn->reactor->stats;
    histogram_add(&stats->latency, clock_now_ns() - ex->req.began_ns);
    bump(&stats->answers[ex->req.status / 100], 1);
    if (ex->shown)
        exchange_over(ex, 0);
    if (ex->close_after && ex->body_ended && ex->have == ex->at) {
        sconn_close(conn, 0);
        return STEP_GONE;
    }
    if (ex->close_after) {
        linger(conn);
        return STEP_ON;
    }
    if (!ex->body_ended) {
        conn->state = SCONN_DRAIN;
        return STEP_ON;
    }
    return next_message(conn);
}

static enum step request_step(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    if (ex->abort_rc) {
        sconn_close(conn, ex->abort_rc);
        return STEP_GONE;
    }
    if (ex->npieces) {
        size_t moved = 0;
        int rc = output_send(conn, &moved);
        if (rc < 0) {
            sconn_close(conn, rc);
            return STEP_GONE;
        }
        return rc == 0 && moved < QUANTUM_BYTES ? STEP_WAIT : STEP_ON;
    }
    if (ex->answered && ex->last)
        return finish(conn);
    if (ex->answered) {
        if (ex->asked || !ex->req.ops || !ex->req.ops->more)
            return STEP_WAIT;
        ex->asked = true;
        ex->req.ops->more(&ex->req);
        return STEP_ON;
    }
    return input_wanted(ex) ? input_body(conn) : STEP_WAIT;
}

static enum step linger_step(struct http_server_conn *conn)
{
    /* Below TLS: no layer reads it any more. */
    ssize_t n = recv(conn->source.fd, conn->reactor->scratch, SCRATCH, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return STEP_WAIT;
    conn->bytes_in += n > 0 ? (size_t)n : 0;
    if (n > 0 && conn->bytes_in - conn->window_bytes <= LINGER_BYTES)
        return STEP_ON;
    conn->state = SCONN_HANDSHAKE; /* its TLS has said good-bye */
    sconn_close(conn, 0);
    return STEP_GONE;
}

static enum step drain_step(struct http_server_conn *conn)
{
    if (!conn->ex->body_ended)
        return input_drain(conn);
    return next_message(conn);
}

static enum step (*const steps[])(struct http_server_conn *conn) = {
    [SCONN_HANDSHAKE] = handshake_step, [SCONN_IDLE] = idle_step,   [SCONN_HEAD] = head_step,
    [SCONN_REQUEST] = request_step,     [SCONN_DRAIN] = drain_step, [SCONN_LINGER] = linger_step,
};

/* --- waiting ------------------------------------------------------------------------------------------------------------- */

enum waits { WAITS_IN, WAITS_OUT, WAITS_HANDLER };

static enum waits waits_for(const struct http_server_conn *conn)
{
    const struct exchange *ex = conn->ex;
    if (conn->state != SCONN_REQUEST)
        return WAITS_IN;
    if (ex->npieces)
        return ex->warming ? WAITS_HANDLER : WAITS_OUT;
    return input_wanted(ex) ? WAITS_IN : WAITS_HANDLER;
}

static void arm(struct http_server_conn *conn)
{
    uint32_t events = 0;
    switch (waits_for(conn)) {
    case WAITS_IN:
        events = conn->io_other ? EPOLLOUT : EPOLLIN;
        break;
    case WAITS_OUT:
        events = conn->io_other ? EPOLLIN : EPOLLOUT;
        break;
    case WAITS_HANDLER:
        /* A pipeline's next request, or the peer's end: which of them is looked at when it comes. */
        events = conn->read_closed ? 0 : conn->readable ? EPOLLRDHUP : EPOLLIN;
        break;
    }
    if (loop_modify(&conn->source, events) < 0)
        sconn_close(conn, -errno);
}

void sconn_drive(struct http_server_conn *conn)
{
    uint64_t moved = conn->bytes_in + conn->bytes_out;
    conn->driving = true;
    for (unsigned i = 0;; i++) {
        enum step step = steps[conn->state](conn);
        if (step == STEP_GONE)
            return;
        if (step == STEP_WAIT)
            break;
        if (i >= STEPS_MAX || conn->bytes_in + conn->bytes_out - moved >= QUANTUM_BYTES) {
            conn->driving = false;
            reactor_ready(conn);
            return;
        }
    }
    conn->driving = false;
    arm(conn);
}

/* While the handler thinks: more bytes, or the peer's end? */
static void look(struct http_server_conn *conn, uint32_t events)
{
    char byte;
    struct exchange *ex = conn->ex;
    ssize_t n = recv(conn->source.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    conn->readable = true;
    if ((events & EPOLLRDHUP) || n == 0) {
        conn->read_closed = true;
        conn->driving = true;
        if (ex->shown && ex->req.ops && ex->req.ops->left)
            ex->req.ops->left(&ex->req);
    }
    sconn_drive(conn);
}

static void progress(struct loop_source *source, uint32_t events)
{
    struct http_server_conn *conn = container_of(source, struct http_server_conn, source);
    if (events & (EPOLLERR | EPOLLHUP)) {
        sconn_close(conn, LEAT_PEER_GONE);
        return;
    }
    if (conn->state == SCONN_REQUEST && waits_for(conn) == WAITS_HANDLER) {
        look(conn, events);
        return;
    }
    /* Where TLS has to write before it can read on (new keys), room to write is what a read has waited for. */
    if (events & (conn->io_other ? EPOLLIN | EPOLLOUT : EPOLLIN))
        conn->readable = true;
    sconn_drive(conn);
}

/* --- its beginning ------------------------------------------------------------------------------------------------------- */

/* On the thread that will own it. */
static void begin(struct http_server_conn *conn)
{
    struct http_reactor *reactor = conn->reactor;
    struct http_server *server = reactor->server;
    conn->since_ns = clock_now_ns();
    list_push_back(&reactor->active, &conn->node);
    if (reactor->failed || loop_add(reactor->loop, &conn->source) < 0 || reactor->stopped >= STOP_BREAK) {
        sconn_close(conn, -ECANCELED);
        return;
    }
    if (conn->extra) {
        reactor->lingerers++;
        conn->state = SCONN_IDLE;
        if (server->listeners[conn->listener].what.tls) {
            count_overload(reactor);
            linger(conn); /* in no language that it would understand */
        } else {
            overload(conn);
        }
    } else if (server->listeners[conn->listener].what.tls) {
        conn->state = SCONN_HANDSHAKE;
        if (sconn_tls_begin(conn) < 0) {
            sconn_close(conn, -ENOMEM);
            return;
        }
    } else {
        conn->state = SCONN_IDLE;
        to_list(conn, &reactor->idle);
    }
    conn->readable = true; /* a new connection usually has a request */
    sconn_drive(conn);
}

void sconn_arrive(struct http_message *message, struct http_request *none)
{
    begin(container_of(message, struct http_server_conn, message));
}

/* The reactor with the fewest, of those that take any; this one where it makes no difference. */
static struct http_reactor *emptiest(struct http_reactor *reactor)
{
    struct http_server *server = reactor->server;
    struct http_reactor *best = reactor;
    uint64_t least = atomic_load_explicit(&reactor->stats.conns, memory_order_relaxed);
    for (unsigned i = 0; i < server->nreactors; i++) {
        uint64_t n = atomic_load_explicit(&server->reactors[i].stats.conns, memory_order_relaxed);
        if (n < least && !atomic_load_explicit(&server->reactors[i].failed, memory_order_relaxed)) {
            least = n;
            best = &server->reactors[i];
        }
    }
    return best;
}

void sconn_open(struct http_reactor *reactor, unsigned listener, int fd, bool over_limit)
{
    static const int on = 1;
    struct http_server *server = reactor->server;
    AUTO_CLOSE int taken = fd;
    struct http_server_conn *conn = NULL;
    if (!(over_limit && reactor->lingerers >= LINGERERS_MAX) &&
        budget_reserve(&server->budget, sizeof(*conn)) == 0) {
        conn = calloc(1, sizeof(*conn));
        if (!conn)
            budget_release(&server->budget, sizeof(*conn));
    }
    if (!conn) {
        count_overload(reactor);
        if (!server->listeners[listener].what.tls)
            say_overload(reactor, fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* of no meaning to unix sockets */
    list_init(&conn->node);
    list_init(&conn->ready_node);
    conn->source = (struct loop_source){.fd = TAKE_FD(taken), .events = EPOLLIN, .progress = progress};
    conn->reactor = over_limit ? reactor : emptiest(reactor);
    conn->listener = (uint16_t)listener;
    conn->extra = over_limit;
    atomic_fetch_add(&server->conns, 1);
    atomic_fetch_add_explicit(&conn->reactor->stats.conns, 1, memory_order_relaxed);
    if (conn->reactor == reactor) {
        begin(conn);
        return;
    }
    conn->message = (struct http_message){.ref = {conn->reactor, UINT32_MAX, 0}, .fn = sconn_arrive};
    http_post(&conn->message);
}

/* --- deadlines ----------------------------------------------------------------------------------------------------------- */

/* Bytes that the peer has sent and taken; bytes in the kernel's buffers do not count. */
static uint64_t peer_moved(const struct http_server_conn *conn)
{
    int queued = 0;
    if (ioctl(conn->source.fd, SIOCOUTQ, &queued) < 0)
        queued = 0;
    uint64_t out = conn->bytes_out > (uint64_t)queued ? conn->bytes_out - (uint64_t)queued : 0;
    return conn->bytes_in + out;
}

static void too_slow(struct http_server_conn *conn, bool may_answer)
{
    bump(&conn->reactor->stats.timeouts, 1);
    if (!may_answer) {
        sconn_close(conn, LEAT_PEER_GONE);
        return;
    }
    if (conn->ex->shown)
        exchange_over(conn->ex, LEAT_PEER_GONE);
    conn->state = SCONN_REQUEST;
    conn->driving = true;
    sconn_refuse(conn, 408, "the request was too slow, or incomplete");
    sconn_drive(conn);
}

void sconn_tick(struct http_server_conn *conn, uint64_t now)
{
    const struct http_server_config *config = &conn->reactor->server->config;
    switch (conn->state) {
    case SCONN_IDLE:
        if (now - conn->since_ns > config->idle_ns)
            sconn_close(conn, 0);
        return;
    case SCONN_HANDSHAKE:
        if (now - conn->since_ns > config->head_ns)
            too_slow(conn, false);
        return;
    case SCONN_LINGER:
        if (now - conn->since_ns > MIN(LINGER_NS, config->slow_ns))
            sconn_close(conn, LEAT_PEER_GONE);
        return;
    case SCONN_HEAD:
        /* Without a first byte there is no request yet that could be too slow: its turn to be read has not come. */
        if (conn->ex->req.began_ns && now - conn->ex->req.began_ns > config->head_ns)
            too_slow(conn, true);
        return;
    default:
        break;
    }
    enum waits waits = waits_for(conn);
    if (waits == WAITS_HANDLER) {
        conn->window_ns = 0;
        return;
    }
    if (conn->window_ns && now - conn->window_ns < config->slow_ns)
        return;
    uint64_t moved = peer_moved(conn);
    if (conn->window_ns && moved - conn->window_bytes < config->slow_bytes) {
        too_slow(conn, waits == WAITS_IN && conn->state == SCONN_REQUEST);
        return;
    }
    conn->window_ns = now;
    conn->window_bytes = moved;
}
