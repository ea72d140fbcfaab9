/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c: one connection, from accept to close.
 *
 * Happy path: bytes come, an exchange is taken for them, its head is read and shown, its body is handed on, its answer sent; then the
 * exchange goes back, and the idle connection costs a few hundred bytes. link_drive goes from step to step until the socket, the handler
 * or fairness make it wait.
 * Failure modes: a peer that ends, breaks framing or is too slow ends its exchange with `over` and the connection with it; where it may
 * still be sending, the connection lingers, so that it can read the answer before a reset throws it away.
 * Invariants: a handler is only ever called from link_drive, ticks and messages, never from inside a call that it makes itself; what it
 * changes is seen when it returns (`driving`), or in the reactor's next turn (`ready`). After link_close the link is gone.
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

static void to_list(struct http_link *link, struct list *list)
{
    list_remove(&link->node);
    list_push_back(list, &link->node);
}

void exchange_over(struct exchange *ex, int rc)
{
    struct reactor_stats *stats = &ex->link->reactor->stats;
    ex->shown = false;
    exchange_forget(ex->link->reactor, ex);
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
    if (!ex->link->driving)
        reactor_ready(ex->link);
}

void link_close(struct http_link *link, int rc)
{
    struct http_reactor *reactor = link->reactor;
    struct http_server *server = reactor->server;
    if (link->ex) {
        if (link->ex->shown)
            exchange_over(link->ex, rc ? rc : -ECANCELED);
        exchange_give(reactor, TAKE_PTR(link->ex));
    }
    loop_remove(&link->source);
    list_remove(&link->node);
    list_remove(&link->ready_node);
    if (link->ssl) {
        if (rc == 0 && link->state != LINK_HANDSHAKE)
            link_tls_bye(link);
        SSL_free(link->ssl);
    }
    close(link->source.fd);
    reactor->lingerers -= link->extra;
    atomic_fetch_sub_explicit(&reactor->stats.conns, 1, memory_order_relaxed);
    free(link);
    budget_release(&server->budget, sizeof(*link));
    if (atomic_fetch_sub(&server->conns, 1) == 1) {
        pthread_mutex_lock(&server->stop_lock);
        pthread_cond_broadcast(&server->stop_cond);
        pthread_mutex_unlock(&server->stop_lock);
    }
}

static void linger(struct http_link *link)
{
    if (link->ex)
        exchange_give(link->reactor, TAKE_PTR(link->ex));
    if (link->ssl && link->state != LINK_HANDSHAKE)
        link_tls_bye(link);
    shutdown(link->source.fd, SHUT_WR);
    link->state = LINK_LINGER;
    link->since_ns = clock_now_ns();
    link->window_bytes = link->bytes_in;
    link->readable = true;
    to_list(link, &link->reactor->active);
}

static void count_overload(struct http_reactor *reactor)
{
    bump(&reactor->stats.overload, 1);
    bump(&reactor->stats.refused, 1);
}

/* Whoever does not take it is closed all the same. */
static void say_overload(struct http_reactor *reactor, int fd)
{
    const struct bytes_out *text = &reactor->server->overload;
    ssize_t n = send(fd, text->data, text->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
}

/* No memory for a request: what can be said without any. */
static void overload(struct http_link *link)
{
    count_overload(link->reactor);
    if (!link->ssl)
        say_overload(link->reactor, link->source.fd);
    else if (link->state != LINK_HANDSHAKE)
        link_tls_write(link, link->reactor->server->overload.data, link->reactor->server->overload.len);
    linger(link);
}

void link_refuse(struct http_link *link, unsigned status, const char *message)
{
    struct exchange *ex = link->ex;
    if (ex->req.began_ns == 0)
        ex->req.began_ns = clock_now_ns();
    ex->close_after = true;
    ex->body_ended = false;
    answer_refusal(link->reactor->server, ex, status, message);
}

/* --- steps --------------------------------------------------------------------------------------------------------------- */

static enum step handshake_step(struct http_link *link)
{
    int rc = link_tls_handshake(link);
    if (rc == 0)
        return STEP_WAIT;
    if (rc < 0) {
        bump(&link->reactor->stats.handshakes_failed, 1);
        link_close(link, rc);
        return STEP_GONE;
    }
    bump(&link->reactor->stats.handshakes, 1);
    bump(&link->reactor->stats.resumed, SSL_session_reused(link->ssl) == 1);
    link->state = LINK_IDLE;
    link->since_ns = clock_now_ns();
    to_list(link, &link->reactor->idle);
    return STEP_ON;
}

static bool is_stopping(struct http_reactor *reactor)
{
    return atomic_load_explicit(&reactor->stop, memory_order_relaxed) != STOP_NOT;
}

static enum step idle_step(struct http_link *link)
{
    if (!link->readable) {
        if (!is_stopping(link->reactor))
            return STEP_WAIT;
        link_close(link, 0);
        return STEP_GONE;
    }
    link->ex = exchange_take(link->reactor, link);
    if (!link->ex) {
        overload(link);
        return STEP_ON;
    }
    link->state = LINK_HEAD;
    link->window_ns = 0;
    to_list(link, &link->reactor->active);
    return STEP_ON;
}

static void become_idle(struct http_link *link)
{
    exchange_give(link->reactor, TAKE_PTR(link->ex));
    link->state = LINK_IDLE;
    link->since_ns = clock_now_ns();
    to_list(link, &link->reactor->idle);
}

static enum step head_step(struct http_link *link)
{
    enum step step = input_head(link);
    if (step != STEP_WAIT || link->ex->have > 0)
        return step;
    become_idle(link);
    return STEP_ON; /* waits there, or closes */
}

static enum step next_message(struct http_link *link)
{
    struct exchange *ex = link->ex;
    size_t more = ex->have - ex->at;
    if (is_stopping(link->reactor)) {
        link_close(link, 0);
        return STEP_GONE;
    }
    if (more == 0) {
        become_idle(link);
        return STEP_ON;
    }
    /* The next one is here already: it goes to a new exchange, whose buffer may be smaller than what there is of it. */
    struct exchange *next = exchange_take(link->reactor, link);
    if (!next || (more > next->cap && !exchange_grow(link->reactor->server, next, more))) {
        exchange_give(link->reactor, next);
        overload(link);
        return STEP_ON;
    }
    memcpy(next->buf, ex->buf + ex->at, more);
    next->have = more;
    next->req.began_ns = clock_now_ns();
    exchange_give(link->reactor, ex);
    link->ex = next;
    link->state = LINK_HEAD;
    link->window_ns = 0;
    return STEP_ON;
}

/* The answer is with the kernel. */
static enum step finish(struct http_link *link)
{
    struct exchange *ex = link->ex;
    struct reactor_stats *stats = &link->reactor->stats;
    histogram_add(&stats->latency, clock_now_ns() - ex->req.began_ns);
    bump(&stats->answers[ex->req.status / 100], 1);
    if (ex->shown)
        exchange_over(ex, 0);
    if (ex->close_after && ex->body_ended && ex->have == ex->at) {
        link_close(link, 0);
        return STEP_GONE;
    }
    if (ex->close_after) {
        linger(link);
        return STEP_ON;
    }
    if (!ex->body_ended) {
        link->state = LINK_DRAIN;
        return STEP_ON;
    }
    return next_message(link);
}

static enum step request_step(struct http_link *link)
{
    struct exchange *ex = link->ex;
    if (ex->abort_rc) {
        link_close(link, ex->abort_rc);
        return STEP_GONE;
    }
    if (ex->npieces) {
        size_t moved = 0;
        int rc = output_send(link, &moved);
        if (rc < 0) {
            link_close(link, rc);
            return STEP_GONE;
        }
        return rc == 0 && moved < QUANTUM_BYTES ? STEP_WAIT : STEP_ON;
    }
    if (ex->answered && ex->last)
        return finish(link);
    if (ex->answered) {
        if (ex->asked || !ex->req.ops || !ex->req.ops->more)
            return STEP_WAIT;
        ex->asked = true;
        ex->req.ops->more(&ex->req);
        return STEP_ON;
    }
    return input_wanted(ex) ? input_body(link) : STEP_WAIT;
}

static enum step linger_step(struct http_link *link)
{
    /* Below TLS: nobody looks at it any more. */
    ssize_t n = recv(link->source.fd, link->reactor->scratch, SCRATCH, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return STEP_WAIT;
    link->bytes_in += n > 0 ? (size_t)n : 0;
    if (n > 0 && link->bytes_in - link->window_bytes <= LINGER_BYTES)
        return STEP_ON;
    link->state = LINK_HANDSHAKE; /* its TLS has said good-bye */
    link_close(link, 0);
    return STEP_GONE;
}

static enum step drain_step(struct http_link *link)
{
    if (!link->ex->body_ended)
        return input_drain(link);
    return next_message(link);
}

static enum step (*const steps[])(struct http_link *link) = {
    [LINK_HANDSHAKE] = handshake_step, [LINK_IDLE] = idle_step,   [LINK_HEAD] = head_step,
    [LINK_REQUEST] = request_step,     [LINK_DRAIN] = drain_step, [LINK_LINGER] = linger_step,
};

/* --- waiting ------------------------------------------------------------------------------------------------------------- */

enum waits { WAITS_IN, WAITS_OUT, WAITS_HANDLER };

static enum waits waits_for(const struct http_link *link)
{
    const struct exchange *ex = link->ex;
    if (link->state != LINK_REQUEST)
        return WAITS_IN;
    if (ex->npieces)
        return ex->warming ? WAITS_HANDLER : WAITS_OUT;
    return input_wanted(ex) ? WAITS_IN : WAITS_HANDLER;
}

static void arm(struct http_link *link)
{
    uint32_t events = 0;
    switch (waits_for(link)) {
    case WAITS_IN:
        events = link->io_other ? EPOLLOUT : EPOLLIN;
        break;
    case WAITS_OUT:
        events = link->io_other ? EPOLLIN : EPOLLOUT;
        break;
    case WAITS_HANDLER:
        /* A pipeline's next request, or the peer's end: which of them is looked at when it comes. */
        events = link->deaf ? 0 : link->readable ? EPOLLRDHUP : EPOLLIN;
        break;
    }
    if (loop_modify(&link->source, events) < 0)
        link_close(link, -errno);
}

void link_drive(struct http_link *link)
{
    uint64_t moved = link->bytes_in + link->bytes_out;
    link->driving = true;
    for (unsigned i = 0;; i++) {
        enum step step = steps[link->state](link);
        if (step == STEP_GONE)
            return;
        if (step == STEP_WAIT)
            break;
        if (i >= STEPS_MAX || link->bytes_in + link->bytes_out - moved >= QUANTUM_BYTES) {
            link->driving = false;
            reactor_ready(link);
            return;
        }
    }
    link->driving = false;
    arm(link);
}

/* While the handler thinks: more bytes, or the peer's end? */
static void look(struct http_link *link, uint32_t events)
{
    char byte;
    struct exchange *ex = link->ex;
    ssize_t n = recv(link->source.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    link->readable = true;
    if ((events & EPOLLRDHUP) || n == 0) {
        link->deaf = true;
        link->driving = true;
        if (ex->shown && ex->req.ops && ex->req.ops->left)
            ex->req.ops->left(&ex->req);
    }
    link_drive(link);
}

static void progress(struct loop_source *source, uint32_t events)
{
    struct http_link *link = container_of(source, struct http_link, source);
    if (events & (EPOLLERR | EPOLLHUP)) {
        link_close(link, LEAT_PEER_GONE);
        return;
    }
    if (link->state == LINK_REQUEST && waits_for(link) == WAITS_HANDLER) {
        look(link, events);
        return;
    }
    /* Where TLS has to write before it can read on (new keys), room to write is what a read has waited for. */
    if (events & (link->io_other ? EPOLLIN | EPOLLOUT : EPOLLIN))
        link->readable = true;
    link_drive(link);
}

/* --- its beginning ------------------------------------------------------------------------------------------------------- */

/* On the thread that will own it. */
static void begin(struct http_link *link)
{
    struct http_reactor *reactor = link->reactor;
    struct http_server *server = reactor->server;
    link->since_ns = clock_now_ns();
    list_push_back(&reactor->active, &link->node);
    if (reactor->failed || loop_add(reactor->loop, &link->source) < 0 || reactor->stopped >= STOP_BREAK) {
        link_close(link, -ECANCELED);
        return;
    }
    if (link->extra) {
        reactor->lingerers++;
        link->state = LINK_IDLE;
        if (server->listeners[link->listener].what.tls) {
            count_overload(reactor);
            linger(link); /* in no language that it would understand */
        } else {
            overload(link);
        }
    } else if (server->listeners[link->listener].what.tls) {
        link->state = LINK_HANDSHAKE;
        if (link_tls_begin(link) < 0) {
            link_close(link, -ENOMEM);
            return;
        }
    } else {
        link->state = LINK_IDLE;
        to_list(link, &reactor->idle);
    }
    link->readable = true; /* those who connect have something to say */
    link_drive(link);
}

void link_arrive(struct http_message *message, struct http_request *none)
{
    begin(container_of(message, struct http_link, message));
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

void link_open(struct http_reactor *reactor, unsigned listener, int fd, bool over_limit)
{
    static const int on = 1;
    struct http_server *server = reactor->server;
    AUTO_CLOSE int taken = fd;
    struct http_link *link = NULL;
    if (!(over_limit && reactor->lingerers >= LINGERERS_MAX) &&
        budget_reserve(&server->budget, sizeof(*link)) == 0) {
        link = calloc(1, sizeof(*link));
        if (!link)
            budget_release(&server->budget, sizeof(*link));
    }
    if (!link) {
        count_overload(reactor);
        if (!server->listeners[listener].what.tls)
            say_overload(reactor, fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* of no meaning to unix sockets */
    list_init(&link->node);
    list_init(&link->ready_node);
    link->source = (struct loop_source){.fd = TAKE_FD(taken), .events = EPOLLIN, .progress = progress};
    link->reactor = over_limit ? reactor : emptiest(reactor);
    link->listener = (uint16_t)listener;
    link->extra = over_limit;
    atomic_fetch_add(&server->conns, 1);
    atomic_fetch_add_explicit(&link->reactor->stats.conns, 1, memory_order_relaxed);
    if (link->reactor == reactor) {
        begin(link);
        return;
    }
    link->message = (struct http_message){.ref = {link->reactor, UINT32_MAX, 0}, .fn = link_arrive};
    http_post(&link->message);
}

/* --- deadlines ----------------------------------------------------------------------------------------------------------- */

/* What the peer has sent, and what it has taken: not what lies in the kernel for it. */
static uint64_t peer_moved(const struct http_link *link)
{
    int queued = 0;
    if (ioctl(link->source.fd, SIOCOUTQ, &queued) < 0)
        queued = 0;
    uint64_t out = link->bytes_out > (uint64_t)queued ? link->bytes_out - (uint64_t)queued : 0;
    return link->bytes_in + out;
}

static void too_slow(struct http_link *link, bool may_answer)
{
    bump(&link->reactor->stats.timeouts, 1);
    if (!may_answer) {
        link_close(link, LEAT_PEER_GONE);
        return;
    }
    if (link->ex->shown)
        exchange_over(link->ex, LEAT_PEER_GONE);
    link->state = LINK_REQUEST;
    link->driving = true;
    link_refuse(link, 408, "the request came too slowly, or not to its end");
    link_drive(link);
}

void link_tick(struct http_link *link, uint64_t now)
{
    const struct http_server_config *config = &link->reactor->server->config;
    switch (link->state) {
    case LINK_IDLE:
        if (now - link->since_ns > config->idle_ns)
            link_close(link, 0);
        return;
    case LINK_HANDSHAKE:
        if (now - link->since_ns > config->head_ns)
            too_slow(link, false);
        return;
    case LINK_LINGER:
        if (now - link->since_ns > MIN(LINGER_NS, config->slow_ns))
            link_close(link, LEAT_PEER_GONE);
        return;
    case LINK_HEAD:
        /* Without a first byte there is no request yet that could be too slow: its turn to be read has not come. */
        if (link->ex->req.began_ns && now - link->ex->req.began_ns > config->head_ns)
            too_slow(link, true);
        return;
    default:
        break;
    }
    enum waits waits = waits_for(link);
    if (waits == WAITS_HANDLER) {
        link->window_ns = 0;
        return;
    }
    if (link->window_ns && now - link->window_ns < config->slow_ns)
        return;
    uint64_t moved = peer_moved(link);
    if (link->window_ns && moved - link->window_bytes < config->slow_bytes) {
        too_slow(link, waits == WAITS_IN && link->state == LINK_REQUEST);
        return;
    }
    link->window_ns = now;
    link->window_bytes = moved;
}
