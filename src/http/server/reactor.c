/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reactor.c: a thread, its loop, and what it owns: connections, exchanges, the table by which other threads name requests.
 *
 * Happy path of a turn: sockets that are ready, then messages, then links that can continue without waiting; a tick now and then for deadlines.
 * All reactors wait on the same listening sockets; the one that accepts gives the connection to the reactor that has the fewest.
 * Failure modes: no descriptor left: one that is kept for it is released to take and close what waits; where that is gone as well, the reactor does not
 * listen until its next tick, rather than spin.
 * Invariants: a ref names slot and generation; a slot's generation changes when its request is over, so an old ref finds nothing.
 */
#include "http/server/server_internal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/log.h"

#define ACCEPTS_PER_TURN 32u
#define NO_SLOT          UINT32_MAX

/* --- exchanges ----------------------------------------------------------------------------------------------------------- */

static uint64_t exchange_bytes(const struct exchange *ex)
{
    return sizeof(*ex) + ex->cap;
}

static bool slot_take(struct http_reactor *reactor, struct exchange *ex)
{
    if (reactor->free_slot == NO_SLOT) {
        uint32_t n = reactor->nslots ? reactor->nslots * 2 : 64;
        struct slot *slots = reallocarray(reactor->slots, n, sizeof(*slots));
        if (!slots)
            return false;
        reactor->slots = slots;
        for (uint32_t i = n; i-- > reactor->nslots;) {
            slots[i] = (struct slot){.next_free = reactor->free_slot};
            reactor->free_slot = i;
        }
        reactor->nslots = n;
    }
    ex->slot = reactor->free_slot;
    reactor->free_slot = reactor->slots[ex->slot].next_free;
    reactor->slots[ex->slot].ex = ex;
    return true;
}

void exchange_forget(struct http_reactor *reactor, struct exchange *ex)
{
    if (ex->slot == NO_SLOT)
        return;
    struct slot *slot = &reactor->slots[ex->slot];
    slot->ex = NULL;
    slot->generation++;
    slot->next_free = reactor->free_slot;
    reactor->free_slot = ex->slot;
    ex->slot = NO_SLOT;
}

static void exchange_free(struct exchange *ex)
{
    bytes_out_fini(&ex->head);
    free(ex->buf);
    free(ex);
}

static struct exchange *exchange_new(void)
{
    struct exchange *ex = calloc(1, sizeof(*ex));
    if (!ex)
        return NULL;
    ex->buf = malloc(HEAD_BUFFER);
    ex->cap = HEAD_BUFFER;
    ex->slot = NO_SLOT;
    list_init(&ex->spare_node);
    http_reader_init_request(&ex->reader, 0);
    if (!ex->buf) {
        exchange_free(ex);
        return NULL;
    }
    return ex;
}

struct exchange *exchange_take(struct http_reactor *reactor, struct http_server_conn *conn)
{
    struct http_server *server = reactor->server;
    if (budget_reserve(&server->budget, sizeof(struct exchange) + HEAD_BUFFER) < 0)
        return NULL;
    struct exchange *ex = list_first(&reactor->spare, struct exchange, spare_node);
    if (ex) {
        list_remove(&ex->spare_node);
        reactor->nspare--;
    } else {
        ex = exchange_new();
    }
    if (!ex || !slot_take(reactor, ex)) {
        if (ex)
            exchange_free(ex);
        budget_release(&server->budget, sizeof(struct exchange) + HEAD_BUFFER);
        return NULL;
    }
    ex->conn = conn;
    bump(&reactor->stats.busy, 1);
    return ex;
}

/* All that a message has set; the reader's table of headers and the buffers are left as they are. */
static void exchange_reset(struct exchange *ex)
{
    memset(&ex->req, 0, sizeof(ex->req));
    http_reader_reset(&ex->reader);
    ex->conn = NULL;
    ex->shown = false;
    ex->abort_rc = 0;
    ex->at = ex->have = 0;
    ex->mode = BODY_UNWANTED;
    ex->body_ended = ex->continue_owed = false;
    ex->body_left = ex->raw = ex->payload = 0;
    ex->into = NULL;
    ex->into_len = ex->into_got = 0;
    ex->answered = ex->close_after = ex->last = ex->chunked = ex->asked = ex->no_body = false;
    ex->total = ex->given = 0;
    ex->npieces = ex->piece_at = 0;
    ex->record = 0;
    ex->warm_until = 0;
}

void exchange_give(struct http_reactor *reactor, struct exchange *ex)
{
    if (!ex)
        return;
    exchange_forget(reactor, ex);
    warm_forget(ex);
    budget_release(&reactor->server->budget, exchange_bytes(ex) + ex->head_charged);
    atomic_fetch_sub_explicit(&reactor->stats.busy, 1, memory_order_relaxed);
    if (ex->pieces && ex->pieces != ex->inline_pieces)
        free(ex->pieces);
    ex->pieces = NULL;
    if (reactor->nspare >= SPARE_MAX || ex->cap != HEAD_BUFFER) {
        exchange_free(ex);
        return;
    }
    if (ex->head.cap > HEAD_BUFFER)
        bytes_out_fini(&ex->head);
    ex->head_charged = 0;
    exchange_reset(ex);
    list_push_front(&reactor->spare, &ex->spare_node);
    reactor->nspare++;
}

bool exchange_grow(struct http_server *server, struct exchange *ex, size_t cap)
{
    if (cap <= ex->cap)
        return true;
    if (budget_reserve(&server->budget, cap - ex->cap) < 0)
        return false;
    char *buf = realloc(ex->buf, cap);
    if (!buf) {
        budget_release(&server->budget, cap - ex->cap);
        return false;
    }
    ex->buf = buf;
    ex->cap = cap;
    return true;
}

struct http_ref http_request_ref(const struct http_request *req)
{
    const struct exchange *ex = container_of(req, struct exchange, req);
    struct http_reactor *reactor = ex->conn->reactor;
    return (struct http_ref){reactor, ex->slot, reactor->slots[ex->slot].generation};
}

struct http_request *reactor_find(struct http_ref ref)
{
    struct http_reactor *reactor = ref.reactor;
    if (ref.slot >= reactor->nslots || reactor->slots[ref.slot].generation != ref.generation ||
        !reactor->slots[ref.slot].ex)
        return NULL;
    return &reactor->slots[ref.slot].ex->req;
}

/* --- messages ------------------------------------------------------------------------------------------------------------ */

static void wake(struct http_reactor *reactor)
{
    uint64_t one = 1;
    ssize_t n = write(reactor->wake.fd, &one, sizeof(one));
    (void)n; /* full: it wakes anyway */
}

void http_post(struct http_message *message)
{
    struct http_reactor *reactor = message->ref.reactor;
    struct http_message *head = atomic_load_explicit(&reactor->posted, memory_order_relaxed);
    do {
        message->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&reactor->posted, &head, message, memory_order_release,
                                                    memory_order_relaxed));
    if (!head)
        wake(reactor);
}

static void run_messages(struct http_reactor *reactor)
{
    struct http_message *newest = atomic_exchange_explicit(&reactor->posted, NULL, memory_order_acquire),
                        *oldest = NULL;
    while (newest) {
        struct http_message *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct http_message *message = oldest;
        oldest = message->next;
        message->fn(message, reactor_find(message->ref));
    }
}

void reactor_ready(struct http_server_conn *conn)
{
    if (list_empty(&conn->ready_node))
        list_push_back(&conn->reactor->ready, &conn->ready_node);
}

static void run_ready(struct http_reactor *reactor)
{
    struct list now;
    if (list_empty(&reactor->ready))
        return;
    /* Those that become ready during it wait for the next turn. */
    list_init(&now);
    now.next = reactor->ready.next;
    now.prev = reactor->ready.prev;
    now.next->prev = now.prev->next = &now;
    list_init(&reactor->ready);
    struct http_server_conn *conn;
    while ((conn = list_first(&now, struct http_server_conn, ready_node))) {
        list_remove(&conn->ready_node);
        sconn_drive(conn);
    }
}

static int arm(struct loop_source *source)
{
    struct http_reactor *reactor = container_of(source, struct http_reactor, wake);
    return list_empty(&reactor->ready) ? 0 : -EBUSY;
}

/* --- accepting ----------------------------------------------------------------------------------------------------------- */

/* False: there was not even one to take and close what waits. */
static bool no_descriptor(struct http_reactor *reactor, int listen_fd)
{
    uint64_t now = clock_now_ns();
    if (now - reactor->emfile_logged_ns > 60 * NS_PER_S || reactor->emfile_logged_ns == 0) {
        log_warning("http: no file descriptor is left for new connections: raise the limit (ulimit -n)");
        reactor->emfile_logged_ns = now;
    }
    if (reactor->spare_fd >= 0)
        close(reactor->spare_fd);
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        close(fd);
    bool again = fd < 0 && (errno == EMFILE || errno == ENFILE);
    reactor->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return !again;
}

/* Waiting connections cannot be accepted, and epoll would report them continuously, at the cost of a whole
 * core: not watched until the next tick. */
static void rest(struct reactor_listener *l)
{
    loop_remove(&l->source);
    l->resting = true;
}

static void end_rest(struct http_reactor *reactor)
{
    for (unsigned i = 0; i < reactor->server->nlisteners && reactor->stopped < STOP_NO_MORE; i++) {
        struct reactor_listener *l = &reactor->listeners[i];
        if (l->resting && loop_add(reactor->loop, &l->source) == 0)
            l->resting = false;
    }
}

static void accept_most(struct reactor_listener *l, unsigned most)
{
    struct http_reactor *reactor = l->reactor;
    struct http_server *server = reactor->server;
    for (unsigned i = 0; i < most; i++) {
        int fd = accept4(l->source.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            int why = errno;
            if (why == ECONNABORTED || why == EINTR)
                continue;
            bool full = why == EMFILE || why == ENFILE;
            if (full ? !no_descriptor(reactor, l->source.fd) : why == ENOBUFS || why == ENOMEM)
                rest(l);
            return;
        }
        bump(&reactor->stats.accepted, 1);
        bool over_limit = atomic_load(&server->conns) >= server->config.connections_max;
        sconn_open(reactor, l->index, fd, over_limit);
    }
}

static void accept_some(struct loop_source *source, uint32_t events)
{
    accept_most(container_of(source, struct reactor_listener, source), ACCEPTS_PER_TURN);
}

/* --- stopping ------------------------------------------------------------------------------------------------------------ */

static void close_list(struct list *list, int rc)
{
    struct http_server_conn *conn;
    while ((conn = list_first(list, struct http_server_conn, node)))
        sconn_close(conn, rc);
}

/* Idle as far as we know: what has come since its last turn is a request to be answered; where there is nothing, it closes. */
static void hear_out_idle(struct http_reactor *reactor)
{
    struct http_server_conn *conn;
    while ((conn = list_first(&reactor->idle, struct http_server_conn, node))) {
        conn->readable = true;
        sconn_drive(conn);
    }
}

static void obey(struct http_reactor *reactor)
{
    int level = atomic_load(&reactor->stop);
    if (level == reactor->stopped)
        return;
    if (reactor->stopped < STOP_NO_MORE && level >= STOP_NO_MORE) {
        for (unsigned i = 0; i < reactor->server->nlisteners; i++) {
            if (level == STOP_NO_MORE &&
                !reactor->failed) /* earlier connections may have sent requests as well */
                accept_most(&reactor->listeners[i], BACKLOG);
            loop_remove(&reactor->listeners[i].source);
        }
        if (level == STOP_NO_MORE)
            hear_out_idle(reactor);
    }
    if (level >= STOP_BREAK) {
        close_list(&reactor->idle, 0);
        close_list(&reactor->active, -ECANCELED);
    }
    if (level >= STOP_END)
        loop_stop(reactor->loop);
    struct http_server *server = reactor->server;
    pthread_mutex_lock(&server->stop_lock);
    for (int l = reactor->stopped + 1; l <= level; l++)
        server->stop_acked[l]++;
    reactor->stopped = level;
    pthread_cond_broadcast(&server->stop_cond);
    pthread_mutex_unlock(&server->stop_lock);
}

void reactor_stop(struct http_reactor *reactor, int level)
{
    atomic_store(&reactor->stop, level);
    if (reactor->wake.fd >= 0)
        wake(reactor);
}

static void woken(struct http_reactor *reactor)
{
    uint64_t count;
    ssize_t n = read(reactor->wake.fd, &count, sizeof(count));
    (void)n;
    run_messages(reactor);
    obey(reactor);
}

static void progress(struct loop_source *source, uint32_t events)
{
    struct http_reactor *reactor = container_of(source, struct http_reactor, wake);
    if (events & EPOLLIN)
        woken(reactor);
    run_ready(reactor);
}

/* --- deadlines ----------------------------------------------------------------------------------------------------------- */

static uint64_t tick_ns(const struct http_server_config *config)
{
    uint64_t least = MIN(config->head_ns, config->idle_ns);
    least = MIN(least, config->slow_ns) / 4;
    least = MIN(least, NS_PER_S);
    return MAX(least, 5 * NS_PER_MS);
}

static void tick(struct loop_timer *timer)
{
    struct http_reactor *reactor = container_of(timer, struct http_reactor, tick);
    const struct http_server_config *config = &reactor->server->config;
    uint64_t now = clock_now_ns();
    /* The longest idle stand first. */
    struct http_server_conn *conn;
    while ((conn = list_first(&reactor->idle, struct http_server_conn, node)) &&
           now - conn->since_ns > config->idle_ns)
        sconn_tick(conn, now);
    /* A sconn_tick may close its own conn, and, by way of `over`, no other. */
    list_for_each_safe (node, &reactor->active)
        sconn_tick(container_of(node, struct http_server_conn, node), now);
    if (reactor->stopped >= STOP_BREAK)
        close_list(&reactor->active, -ECANCELED);
    end_rest(reactor);
    loop_timer_set(reactor->loop, &reactor->tick, now + tick_ns(config));
}

const char *reactor_date(struct http_reactor *reactor)
{
    time_t now = time(NULL);
    if (now != reactor->date_at) {
        http_date_format(now, reactor->date);
        reactor->date_at = now;
    }
    return reactor->date;
}

/* --- the thread ---------------------------------------------------------------------------------------------------------- */

/* Its connections end, and others take the new ones. Workers can still post to it, and stopping the server
 * does not wait for ever. */
static void go_without_loop(struct http_reactor *reactor)
{
    reactor->failed = true;
    for (unsigned i = 0; i < reactor->server->nlisteners; i++)
        loop_remove(&reactor->listeners[i].source);
    close_list(&reactor->idle, 0);
    close_list(&reactor->active, -ECANCELED);
    while (reactor->stopped < STOP_END) {
        struct pollfd wake = {.fd = reactor->wake.fd, .events = POLLIN};
        poll(&wake, 1, -1);
        woken(reactor);
    }
}

static void *reactor_main(void *arg)
{
    struct http_reactor *reactor = arg;
    int rc = loop_run(reactor->loop);
    if (rc < 0) {
        log_error("http: one of %u threads has closed its connections and takes no more, as it cannot wait "
                  "for them: %s; "
                  "start the server again",
                  reactor->server->nreactors, strerror(-rc));
        go_without_loop(reactor);
    }
    run_messages(reactor);
    return NULL;
}

int reactor_init(struct http_reactor *reactor, struct http_server *server)
{
    reactor->server = server;
    reactor->free_slot = NO_SLOT;
    reactor->spare_fd = -1;
    reactor->wake = (struct loop_source){.fd = -1, .events = EPOLLIN, .arm = arm, .progress = progress};
    reactor->tick = (struct loop_timer){.fire = tick};
    list_init(&reactor->idle);
    list_init(&reactor->active);
    list_init(&reactor->ready);
    list_init(&reactor->spare);
    reactor->scratch = malloc(SCRATCH);
    reactor->listeners = calloc(server->nlisteners, sizeof(*reactor->listeners));
    if (!reactor->scratch || !reactor->listeners)
        return -ENOMEM;
    reactor->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    reactor->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (reactor->wake.fd < 0)
        return -errno;
    int rc = loop_new(&reactor->loop);
    if (rc == 0)
        rc = loop_add(reactor->loop, &reactor->wake);
    for (unsigned i = 0; rc == 0 && i < server->nlisteners; i++) {
        struct reactor_listener *l = &reactor->listeners[i];
        l->reactor = reactor;
        l->index = i;
        l->source = (struct loop_source){
            .fd = server->listeners[i].fd, .events = EPOLLIN | EPOLLEXCLUSIVE, .progress = accept_some};
        rc = loop_add(reactor->loop, &l->source);
    }
    if (rc == 0)
        loop_timer_set(reactor->loop, &reactor->tick, clock_now_ns() + tick_ns(&server->config));
    return rc;
}

int reactor_start(struct http_reactor *reactor)
{
    /* Signals are for the program's own threads; SIGPIPE for no thread: OpenSSL and sendfile know no
     * MSG_NOSIGNAL. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&reactor->thread, NULL, reactor_main, reactor);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    reactor->started = rc == 0;
    return -rc;
}

void reactor_fini(struct http_reactor *reactor)
{
    if (reactor->started) {
        reactor_stop(reactor, STOP_END);
        pthread_join(reactor->thread, NULL);
    }
    struct exchange *ex;
    while (reactor->spare.next && (ex = list_first(&reactor->spare, struct exchange, spare_node))) {
        list_remove(&ex->spare_node);
        exchange_free(ex);
    }
    loop_free(reactor->loop);
    if (reactor->wake.fd > 0)
        close(reactor->wake.fd);
    if (reactor->spare_fd > 0)
        close(reactor->spare_fd);
    free(reactor->listeners);
    free(reactor->slots);
    free(reactor->scratch);
}
