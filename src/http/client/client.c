/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls wait at their origin until a connection has room. Connections are opened up to the limit before requests share one, as an answer
 * that is behind another waits for it; small ones share because the round trips are what they cost.
 *
 * Failure modes: a name that does not resolve, and an origin none of whose addresses answers, end the calls that wait there. Deadlines
 * and silence are looked at every TICK_NS: exact to that.
 */
#include <netdb.h>
#include <stdio.h>
#include <strings.h>
#include <sys/epoll.h>

#include "http/client/client_internal.h"
#include "base/clock.h"

/* --- calls ------------------------------------------------------------------------------------------------------------- */

void client_enter(struct http_client *client)
{
    client->inside++;
}

static void pool_dispatch(struct http_pool *pool);

void client_leave(struct http_client *client)
{
    struct http_conn *conn;
    while (client->inside == 1 && !client->freeing && (client->kicked || !list_empty(&client->flush))) {
        if (client->kicked) {
            client->kicked = false;
            list_for_each (node, &client->pools)
                pool_dispatch(container_of(node, struct http_pool, node));
        }
        while ((conn = list_first(&client->flush, struct http_conn, flush_node))) {
            list_remove(&conn->flush_node);
            http_conn_send(conn);
        }
    }
    if (--client->inside)
        return;
    while ((conn = list_first(&client->dead, struct http_conn, node))) {
        list_remove(&conn->node);
        http_conn_free(conn);
    }
}

static void unqueue(struct http_client *client, struct http_pool *pool, struct http_call *call)
{
    list_remove(&call->node);
    if (call->queued) {
        call->queued = false;
        pool->nwaiting--;
        client->stats.waiting--;
    }
}

static struct http_pool *pool_find(struct http_client *client, const struct http_origin *origin)
{
    list_for_each (node, &client->pools) {
        struct http_pool *pool = container_of(node, struct http_pool, node);
        if (pool->origin.port == origin->port && pool->origin.tls == origin->tls &&
            strcasecmp(pool->origin.host, origin->host) == 0)
            return pool;
    }
    return NULL;
}

void call_finish(struct http_client *client, struct http_call *call, int rc, const struct leat_error *err)
{
    const struct http_origin *o = &call->pool->origin;
    struct leat_error none; /* written where it is used: clearing it each time shows with small objects */
    unqueue(client, call->pool, call);
    call->conn = NULL;
    if (rc < 0 && (!err || !err->message[0]))
        error_sys(&none, rc, "%s:%u", o->host, o->port);
    call->done(call, rc, rc < 0 ? (err && err->message[0] ? err : &none) : NULL);
}

static void wait_in_front(struct http_pool *pool, struct http_call *call, bool front)
{
    list_remove(&call->node);
    if (front)
        list_push_front(&pool->waiting, &call->node);
    else
        list_push_back(&pool->waiting, &call->node);
    call->queued = true;
    call->conn = NULL;
    pool->nwaiting++;
    pool->client->stats.waiting++;
}

void call_again(struct http_pool *pool, struct http_call *call, const struct leat_error *err)
{
    bool touched = call->conn && call->conn->sending != call; /* it may have been acted upon */
    if ((touched && !call->repeatable) || call->tries > TRIES_MAX || pool->client->freeing) {
        call_finish(pool->client, call, pool->client->freeing ? -ECANCELED : LEAT_PEER_GONE, err);
        return;
    }
    pool->client->stats.repeated++;
    call->received = 0;
    call->status = 0;
    call->text.len = 0;
    wait_in_front(pool, call, true);
}

int http_call_start(struct http_client *client, struct http_call *call)
{
    call->status = 0;
    call->received = 0;
    call->text = (struct bytes_out){0};
    call->conn = NULL;
    call->queued = false;
    call->tries = 0;
    call->started_ns = clock_now_ns();
    call->pool = NULL;
    list_init(&call->node);
    if (client->freeing)
        return -ECANCELED;
    struct http_pool *pool = pool_find(client, call->origin);
    if (!pool) {
        pool = calloc(1, sizeof(*pool));
        if (pool) {
            pool->client = client;
            pool->origin = *call->origin;
            pool->pipeline = client->config.pipeline;
            list_init(&pool->conns);
            list_init(&pool->waiting);
            list_push_back(&client->pools, &pool->node);
        }
    }
    if (!pool)
        return -ENOMEM;
    call->pool = pool;
    client->stats.calls++;
    wait_in_front(pool, call, false);
    client->kicked = true;
    if (client->inside == 0)
        loop_timer_set(client->loop, &client->kick, 1); /* on its way from the loop, not from in here */
    return 0;
}

/* Out of all lists. The connection that may still bring its answer, which then has to be closed; or NULL. */
static struct http_conn *detach(struct http_client *client, struct http_call *call)
{
    struct http_conn *conn = call->conn;
    if (!conn) {
        if (call->queued)
            unqueue(client, call->pool, call);
        return NULL;
    }
    /* TLS may have taken bytes of it without reporting it yet: they would go out under the name of the next call. */
    bool unsent = conn->sending == call && conn->sent == 0 && !conn->stuck;
    bool behind = false;
    for (struct list *at = conn->sending ? conn->sending->node.next : &conn->calls; at != &conn->calls;
         at = at->next)
        behind |= at == &call->node;
    if (conn->sending == call) {
        struct list *next = call->node.next;
        conn->sending = unsent && next != &conn->calls ? container_of(next, struct http_call, node) : NULL;
    }
    list_remove(&call->node);
    conn->ncalls--;
    call->conn = NULL;
    if (unsent || behind || conn->state == CONN_DEAD)
        return NULL;
    conn->answering = false;
    conn->completed++; /* so that the next one is not taken for the culprit */
    return conn;
}

static void abandon(struct http_conn *conn)
{
    struct leat_error err;
    if (conn && conn->state != CONN_DEAD)
        http_conn_close(conn, error_set(&err, -ECANCELED, "another call on the connection was cancelled"),
                        &err);
}

void http_call_cancel(struct http_client *client, struct http_call *call)
{
    client_enter(client);
    abandon(detach(client, call));
    client_leave(client);
}

/* --- origins ----------------------------------------------------------------------------------------------------------- */

void pool_fail(struct http_pool *pool, int rc, const struct leat_error *err)
{
    struct list now = {&now, &now};
    /* Only those that wait now: done() may start more. */
    while (!list_empty(&pool->waiting)) {
        struct list *node = pool->waiting.next;
        list_remove(node);
        list_push_back(&now, node);
    }
    struct http_call *call;
    while ((call = list_first(&now, struct http_call, node)))
        call_finish(pool->client, call, rc, err);
}

void pool_attempt_failed(struct http_pool *pool, unsigned address, int rc, const struct leat_error *err)
{
    if (address < RESOLVE_MAX)
        pool->addresses[address].failed_ns = clock_now_ns();
    pool->failed_in_order++;
    pool->client->kicked = true;
    /* A certificate that is wrong is so everywhere. */
    bool final = rc == LEAT_DENIED || pool->failed_in_order >= pool->naddresses;
    if (!final || pool->nconns)
        return;
    pool->failed_in_order = 0;
    pool->resolved_ns = 0; /* it may have moved */
    pool_fail(pool, rc, err);
}

static void take_addresses(struct http_pool *pool, const struct resolve_list *list)
{
    for (unsigned i = 0; i < list->n; i++)
        pool->addresses[i] = (struct http_address){.to = list->found[i]};
    pool->naddresses = list->n;
    pool->next_address %= list->n;
    pool->resolved_ns = clock_now_ns();
}

static void resolving_end(struct http_pool *pool)
{
    loop_remove(&pool->resolved);
    resolve_free(TAKE_PTR(pool->resolving));
}

static void on_resolved(struct loop_source *source, uint32_t events)
{
    struct http_pool *pool = container_of(source, struct http_pool, resolved);
    struct http_client *client = pool->client;
    struct resolve_list list;
    int rc = resolve_result(pool->resolving, &list);
    if (rc == -EAGAIN)
        return;
    client_enter(client);
    resolving_end(pool);
    if (rc == 0) {
        take_addresses(pool, &list);
        client->kicked = true;
    } else if (pool->resolved_ns) {
        pool->resolved_ns = clock_now_ns(); /* the old ones serve on */
    } else {
        struct leat_error err;
        /* A resolver that does not answer may do so later; a name that is not there stays away. */
        rc = list.gai == EAI_AGAIN ? -EHOSTUNREACH : LEAT_NOT_FOUND;
        error_set(&err, rc, "%s: no address for this name (%s)", pool->origin.host,
                  list.gai ? gai_strerror(list.gai) : "none given");
        pool_fail(pool, rc, &err);
    }
    client_leave(client);
}

static int resolve_origin(struct http_pool *pool)
{
    char address[sizeof(pool->origin.host) + 8];
    struct resolve_list written = {.n = 1};
    snprintf(address, sizeof(address), "%s:%u", pool->origin.host, pool->origin.port);
    if (resolve_numeric(address, &written.found[0]) == 0) {
        take_addresses(pool, &written);
        return 0;
    }
    int rc = resolve_start(address, AI_ADDRCONFIG, &pool->resolving);
    if (rc < 0)
        return rc;
    pool->resolved =
        (struct loop_source){.fd = resolve_fd(pool->resolving), .events = EPOLLIN, .progress = on_resolved};
    rc = loop_add(pool->client->loop, &pool->resolved);
    if (rc < 0)
        resolve_free(TAKE_PTR(pool->resolving));
    return rc;
}

/* Addresses at hand? A name is asked again now and then, while the old ones serve. */
static bool pool_resolved(struct http_pool *pool)
{
    uint64_t now = clock_now_ns();
    if (!pool->resolving && pool->resolved_ns <= now &&
        (pool->resolved_ns == 0 || now - pool->resolved_ns > RESOLVED_NS)) {
        int rc = resolve_origin(pool);
        if (rc < 0 && pool->resolved_ns == 0) {
            struct leat_error err;
            error_sys(&err, rc, "%s", pool->origin.host);
            pool_fail(pool, rc, &err);
        }
    }
    return pool->resolved_ns != 0;
}

/* The open connection that this call should take, or NULL. */
static struct http_conn *pool_free_bytes(struct http_pool *pool, const struct http_call *call, bool share)
{
    struct http_conn *best = NULL;
    list_for_each (node, &pool->conns) {
        struct http_conn *conn = container_of(node, struct http_conn, node);
        if (conn->state != CONN_OPEN || conn->last)
            continue;
        if (conn->ncalls == 0)
            return conn;
        if (!share || conn->ncalls >= pool->pipeline || (best && best->ncalls <= conn->ncalls))
            continue;
        struct http_call *last = container_of(conn->calls.prev, struct http_call, node);
        if (last->small && call->small && call->repeatable && last->body_len == 0)
            best = conn;
    }
    return best;
}

static void pool_dispatch(struct http_pool *pool)
{
    struct http_client *client = pool->client;
    struct http_call *call;
    while ((call = list_first(&pool->waiting, struct http_call, node))) {
        bool full = pool->nconns >= client->config.connections;
        struct http_conn *conn = pool_free_bytes(pool, call, full && pool->pipeline > 1);
        if (!conn)
            break;
        unqueue(client, pool, call);
        http_conn_take(conn, call);
    }
    if (pool->nconns == 0 && pool->failed_in_order >= pool->naddresses)
        pool->failed_in_order = 0; /* the open ones are gone now: all again */
    while (pool->nwaiting > pool->nconnecting && pool->nconns < client->config.connections &&
           pool_resolved(pool) && (pool->failed_in_order < pool->naddresses || pool->nconns == 0)) {
        struct leat_error err = {0};
        unsigned address = RESOLVE_MAX;
        int rc = http_conn_open(pool, &address, &err);
        if (rc < 0)
            pool_attempt_failed(pool, address, rc, &err);
        if (rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE)
            break; /* one that ends makes room */
    }
}

/* --- time -------------------------------------------------------------------------------------------------------------- */

void http_client_flush(struct http_client *client)
{
    loop_timer_clear(&client->kick);
    client_enter(client); /* leaving does it */
    client_leave(client);
}

static void kick(struct loop_timer *timer)
{
    http_client_flush(container_of(timer, struct http_client, kick));
}

static void expire(struct http_client *client, struct http_call *call, uint64_t now)
{
    struct leat_error err;
    const struct http_origin *o = &call->pool->origin;
    error_set(&err, LEAT_TIMED_OUT, "%s:%u: not done after %.1f s%s", o->host, o->port,
              (double)(now - call->started_ns) / NS_PER_S,
              call->queued   ? " (no connection was free)"
              : call->status ? ""
                             : " (no answer)");
    struct http_conn *conn = detach(client, call);
    call_finish(client, call, LEAT_TIMED_OUT, &err);
    abandon(conn); /* last, as others' done() may run in there */
}

static struct http_call *find_expired(struct http_pool *pool, uint64_t now)
{
    list_for_each (node, &pool->waiting) {
        struct http_call *call = container_of(node, struct http_call, node);
        if (call->deadline_ns && now >= call->deadline_ns)
            return call;
    }
    list_for_each (at, &pool->conns) {
        struct http_conn *conn = container_of(at, struct http_conn, node);
        list_for_each (node, &conn->calls) {
            struct http_call *call = container_of(node, struct http_call, node);
            if (call->deadline_ns && now >= call->deadline_ns)
                return call;
        }
    }
    return NULL;
}

static struct http_conn *find_silent(struct http_pool *pool, uint64_t now, struct leat_error *ret_err)
{
    const struct http_client_config *config = &pool->client->config;
    list_for_each (node, &pool->conns) {
        struct http_conn *conn = container_of(node, struct http_conn, node);
        uint64_t silent = now - conn->heard_ns;
        const char *host = pool->origin.host;
        unsigned port = pool->origin.port;
        if (conn->state != CONN_OPEN && now - conn->began_ns > config->connect_ns) {
            error_set(ret_err, LEAT_TIMED_OUT, "%s:%u: no connection within %.1f s", host, port,
                      (double)config->connect_ns / NS_PER_S);
            return conn;
        }
        if (conn->patient && silent > TICK_NS)
            http_conn_hasten(conn);
        if (conn->state == CONN_OPEN && conn->ncalls == 0 && silent > config->keep_ns) {
            *ret_err = (struct leat_error){0};
            return conn;
        }
        if (conn->state == CONN_OPEN && conn->ncalls && silent > config->silence_ns) {
            error_set(ret_err, LEAT_TIMED_OUT, "%s:%u: no data for %.1f s", host, port,
                      (double)config->silence_ns / NS_PER_S);
            conn->answering = true; /* it is this call that hangs */
            return conn;
        }
    }
    return NULL;
}

static void tick(struct loop_timer *timer)
{
    struct http_client *client = container_of(timer, struct http_client, tick);
    uint64_t now = clock_now_ns();
    client_enter(client);
    list_for_each (node, &client->pools) {
        struct http_pool *pool = container_of(node, struct http_pool, node);
        struct http_call *call;
        struct http_conn *conn;
        struct leat_error err;
        while ((call = find_expired(pool, now)))
            expire(client, call, now);
        while ((conn = find_silent(pool, now, &err))) {
            bool connecting = conn->state != CONN_OPEN;
            http_conn_close(conn, err.message[0] ? LEAT_TIMED_OUT : 0, &err);
            if (connecting)
                pool_attempt_failed(pool, conn->address, LEAT_TIMED_OUT, &err);
        }
        client->kicked |= pool->nwaiting != 0;
    }
    client_leave(client);
    loop_timer_set(client->loop, &client->tick, now + TICK_NS);
}

/* --- the client -------------------------------------------------------------------------------------------------------- */

uint64_t http_connection_bytes(void)
{
    /* TLS: a record each way, and OpenSSL's own state of a connection (measured: 12 to 20 KiB). */
    const uint64_t error_text = 64 * KIB, tls = 2 * 17 * KIB + 20 * KIB;
    return sizeof(struct http_conn) + CONN_BUFFER + error_text + tls;
}

int http_client_new(struct loop *loop, const struct http_client_config *config,
                    struct http_client **ret_client, struct leat_error *err)
{
    struct http_client *client = calloc(1, sizeof(*client));
    if (!client)
        return -ENOMEM;
    client->loop = loop;
    client->config = *config;
    struct http_client_config *c = &client->config;
    c->connections = c->connections ? c->connections : 16;
    c->pipeline = c->pipeline ? c->pipeline : 8;
    c->connect_ns = c->connect_ns ? c->connect_ns : 5 * NS_PER_S;
    c->silence_ns = c->silence_ns ? c->silence_ns : 20 * NS_PER_S;
    c->keep_ns = c->keep_ns ? c->keep_ns : 15 * NS_PER_S;
    list_init(&client->pools);
    list_init(&client->flush);
    list_init(&client->dead);
    client->tick.fire = tick;
    client->kick.fire = kick;
    c->ca_file = client->ca_file = config->ca_file ? strdup(config->ca_file) : NULL;
    int rc = config->ca_file && !client->ca_file ? -ENOMEM : 0;
    /* Authorities take 40 ms of CPU to read: not where no request needs them. */
    if (rc == 0 && config->ca_file && config->tls)
        rc = tls_context(config, &client->tls, err);
    if (rc < 0) {
        free(client->ca_file);
        free(client);
        return rc;
    }
    loop_timer_set(loop, &client->tick, clock_now_ns() + TICK_NS);
    *ret_client = client;
    return 0;
}

void http_client_free(struct http_client *client)
{
    if (!client)
        return;
    client->freeing = true;
    client_enter(client);
    loop_timer_clear(&client->tick);
    loop_timer_clear(&client->kick);
    list_for_each (node, &client->pools) {
        struct http_pool *pool = container_of(node, struct http_pool, node);
        struct http_conn *conn;
        struct leat_error err;
        error_set(&err, -ECANCELED, "%s:%u: the client was closed", pool->origin.host, pool->origin.port);
        while ((conn = list_first(&pool->conns, struct http_conn, node)))
            http_conn_close(conn, -ECANCELED, &err);
        pool_fail(pool, -ECANCELED, &err);
        if (pool->resolving)
            resolving_end(pool);
    }
    client_leave(client);
    struct http_pool *pool;
    while ((pool = list_first(&client->pools, struct http_pool, node))) {
        list_remove(&pool->node);
        if (pool->session)
            SSL_SESSION_free(pool->session);
        free(pool);
    }
    SSL_CTX_free(client->tls);
    free(client->ca_file);
    free(client);
}

void http_client_stats(const struct http_client *client, struct http_client_stats *ret_stats)
{
    *ret_stats = client->stats;
}
