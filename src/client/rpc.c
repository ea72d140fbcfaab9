/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.c: one socket, many threads, no thread of our own (a Python process forks when it likes).
 *
 * A caller queues its waiter, writes its request, then waits. A caller that finds no reader becomes the
 * reader: it polls the socket and hands each frame to the waiter whose id it carries, its own or another's,
 * until its own reply is there; then it leaves and wakes the rest, of whom one takes over. Frames are taken
 * in piecewise without blocking, so half a message never holds up a caller past its deadline.
 *
 * Failure modes: EOF or garbage kills the client: every waiter and every later call gets LEAT_PEER_GONE
 * (garbage: LEAT_CORRUPT). A deadline that passes sends CANCEL; the reply that still comes finds no waiter
 * and is dropped, its descriptors closed. A request that could not be written whole leaves the stream out of
 * step, so that kills the client too.
 *
 * Invariants: rx belongs to the reader; a waiter is on the list until it is done or its caller has left; no
 * callback runs under a lock.
 */
#include "client/client.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"

#define LOOKED_NS NS_PER_MS

struct client_rpc_waiter {
    struct list node;
    uint64_t id;
    bool done, has_progress;
    struct net_reply reply;
    struct leat_progress progress;
};

/* --- life ---------------------------------------------------------------------------------------------------- */

int client_new(int fd, const char *socket, uint64_t timeout_ns, struct leat_client **ret_client)
{
    struct leat_client *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->socket = strdup(socket);
    if (!c->socket) {
        free(c);
        return -ENOMEM;
    }
    c->refs = 1;
    c->fork_count = client_fork_count();
    c->fd = fd;
    c->version = PROTO_VERSION_MIN;
    c->timeout_ns = timeout_ns;
    c->next_id = 1;
    list_init(&c->calls);
    list_init(&c->sets);
    pthread_mutex_init(&c->send_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    cond_init(&c->wake);
    pthread_mutex_init(&c->credit_lock, NULL);
    forkfd_watch(&c->forkfd, &c->fd); /* a child that kept it would keep our leases after our death */
    *ret_client = c;
    return 0;
}

struct leat_client *client_ref(struct leat_client *client)
{
    atomic_fetch_add(&client->refs, 1);
    return client;
}

void client_unref(struct leat_client *client)
{
    if (!client || atomic_fetch_sub(&client->refs, 1) != 1)
        return;
    forkfd_close(&client->forkfd);
    net_reply_fini(&client->rx.reply);
    pthread_cond_destroy(&client->wake);
    pthread_mutex_destroy(&client->lock);
    pthread_mutex_destroy(&client->send_lock);
    pthread_mutex_destroy(&client->credit_lock);
    credit_table_unmap(client->credits);
    free(client->socket);
    free(client);
}

uint64_t client_deadline(const struct leat_client *client, uint64_t timeout_ns)
{
    if (timeout_ns == 0)
        timeout_ns = client->timeout_ns;
    if (timeout_ns == UINT64_MAX)
        return 0;
    uint64_t deadline;
    return add_overflows(clock_now_ns(), timeout_ns, &deadline) ? 0 : deadline;
}

int client_rpc_dead_error(const struct leat_client *client, struct leat_error *err)
{
    int dead = client->dead;
    if (dead == LEAT_PEER_GONE)
        return error_set(err, dead, "the daemon at %s is gone; open again to start over", client->socket);
    if (dead == -EMFILE)
        return error_set(
            err, dead,
            "the daemon at %s sent descriptors for which this process has no room: raise its limit of open "
            "files (ulimit -n) and open again",
            client->socket);
    return error_set(err, dead, "the connection to the daemon at %s broke off: %s", client->socket,
                     leat_strerror(dead));
}

/* Nothing can be sent or received any more. Shutting down wakes threads that wait for the socket, and the
 * daemon. */
static void die(struct leat_client *c, int rc)
{
    int alive = 0;
    bool kept = rc == -ENOMEM || rc == -EMFILE || rc == LEAT_CORRUPT;
    if (atomic_compare_exchange_strong(&c->dead, &alive, kept ? rc : LEAT_PEER_GONE))
        shutdown(c->fd, SHUT_RDWR);
}

/* --- handing them out ------------------------------------------------------------------------------------------ */

static void on_progress(struct client_rpc_waiter *w, const struct net_reply *reply)
{
    struct proto_progress m;
    if (proto_progress_get(reply->body.data, reply->body.len, &m) < 0)
        return;
    w->progress = (struct leat_progress){.size = sizeof(w->progress),
                                         .stage = (enum leat_stage)m.stage,
                                         .samples_done = m.samples_done,
                                         .samples_total = m.samples_total,
                                         .bytes_done = m.bytes_done,
                                         .bytes_total = m.bytes_total};
    w->has_progress = true;
}

static void on_revoked(struct leat_client *c, const struct net_reply *reply)
{
    struct proto_revoked m; /* its generation is in the live table as well */
    if (proto_revoked_get(reply->body.data, reply->body.len, &m) < 0)
        return;
    list_for_each (node, &c->sets) {
        struct leat_ws *ws = container_of(node, struct leat_ws, node);
        if (ws->info.ws == m.ws)
            atomic_store(&ws->revoked, true);
    }
}

/* Under lock. Takes the reply if it has a waiter, or if it is an event. */
static bool dispatch(struct leat_client *c, struct net_reply *reply)
{
    if (reply->frame.kind == PROTO_EVENT && reply->frame.type == PROTO_REVOKED)
        on_revoked(c, reply);
    list_for_each (node, &c->calls) {
        struct client_rpc_waiter *w = container_of(node, struct client_rpc_waiter, node);
        if (w->id != reply->frame.id)
            continue;
        if (reply->frame.kind == PROTO_EVENT && reply->frame.type == PROTO_PROGRESS) {
            on_progress(w, reply);
        } else if (reply->frame.kind == PROTO_REPLY) {
            list_remove(&w->node);
            w->reply = *reply;
            w->done = true;
            return true;
        }
        break;
    }
    return false;
}

/* A reply whose caller has left: its grants are given back, or the daemon would keep them until we
 * disconnect. */
static void drop_reply(struct leat_client *c, struct net_reply *reply)
{
    uint16_t type = reply->frame.type;
    struct bytes_in in = bytes_in_of(reply->body.data, reply->body.len);
    struct proto_id granted; /* each of these replies begins with it */
    if (reply->frame.kind == PROTO_REPLY && reply->frame.status >= 0 && !proto_id_next(&in, &granted)) {
        if (type == PROTO_OPEN || type == PROTO_APPEND)
            client_rpc_post_id(c, PROTO_CLOSE, granted.id);
        else if (type == PROTO_FETCH)
            client_rpc_post_id(c, PROTO_RELEASE, granted.id);
        else if (type == PROTO_SCAN)
            client_rpc_post_id(c, PROTO_SCAN_END, granted.id);
    }
    net_reply_fini(reply);
}

/* The reader's turn: everything that is there, waiting up to timeout_ms for something. */
static void pump(struct leat_client *c, int timeout_ms)
{
    struct pollfd pfd = {.fd = c->fd, .events = POLLIN};
    int n = poll(&pfd, 1, timeout_ms);
    if (n <= 0)
        return;
    for (;;) {
        struct net_reply reply;
        int rc = net_frame_step(c->fd, &c->rx, &reply);
        if (rc > 0 && reply.frame.payload_bytes) {
            net_reply_fini(&reply);
            rc = LEAT_CORRUPT;
        }
        if (rc == 0)
            return;
        if (rc < 0) {
            die(c, rc);
            return;
        }
        pthread_mutex_lock(&c->lock);
        bool taken = dispatch(c, &reply);
        pthread_mutex_unlock(&c->lock);
        if (!taken)
            drop_reply(c, &reply);
    }
}

int client_rpc_poll(struct leat_client *client)
{
    if (client->dead)
        return client->dead;
    /* One system call when nothing has come, which is nearly always. */
    struct pollfd pfd = {.fd = client->fd, .events = POLLIN};
    if (poll(&pfd, 1, 0) <= 0)
        return 0;
    pthread_mutex_lock(&client->lock);
    bool mine = !client->reading;
    if (mine)
        client->reading = true;
    pthread_mutex_unlock(&client->lock);
    if (!mine)
        return client->dead; /* the reader notices it */
    pump(client, 0);
    pthread_mutex_lock(&client->lock);
    client->reading = false;
    pthread_cond_broadcast(&client->wake);
    pthread_mutex_unlock(&client->lock);
    return client->dead;
}

int client_rpc_look(struct leat_client *client)
{
    uint64_t now_ns = clock_now_ns();
    if (now_ns - atomic_load_explicit(&client->looked_ns, memory_order_relaxed) < LOOKED_NS)
        return client->dead;
    atomic_store_explicit(&client->looked_ns, now_ns, memory_order_relaxed);
    return client_rpc_poll(client);
}

/* --- calls ------------------------------------------------------------------------------------------------------ */

static int send_locked(struct leat_client *c, uint16_t type, uint64_t id, const struct bytes_out *body,
                       const int *fds, unsigned nfds, uint64_t deadline_ns)
{
    static const struct bytes_out empty;
    int rc = c->dead;
    if (!rc) {
        rc = net_frame_send(c->fd, c->version, PROTO_REQUEST, type, id, body ? body : &empty, fds, nfds,
                            deadline_ns);
        if (rc && rc != LEAT_INVALID) /* too long: nothing was sent */
            die(c, rc);
    }
    return rc;
}

static int send_frame(struct leat_client *c, uint16_t type, uint64_t id, const struct bytes_out *body,
                      const int *fds, unsigned nfds, uint64_t deadline_ns)
{
    pthread_mutex_lock(&c->send_lock);
    int rc = send_locked(c, type, id, body, fds, nfds, deadline_ns);
    pthread_mutex_unlock(&c->send_lock);
    return rc;
}

/* -EAGAIN: another thread is sending, or the daemon does not read. A socket that is writable has room for
 * a short frame. */
static int send_frame_now(struct leat_client *c, uint16_t type, uint64_t id, const struct bytes_out *body)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    if (pthread_mutex_trylock(&c->send_lock))
        return -EAGAIN;
    int rc = poll(&p, 1, 0) == 1 ? send_locked(c, type, id, body, NULL, 0, client_deadline(c, 0)) : -EAGAIN;
    pthread_mutex_unlock(&c->send_lock);
    return rc;
}

void client_rpc_post(struct leat_client *client, uint16_t type, const struct bytes_out *body)
{
    if (client->dead || (body && body->failed))
        return;
    pthread_mutex_lock(&client->lock);
    uint64_t id = client->next_id++;
    pthread_mutex_unlock(&client->lock);
    send_frame(client, type, id, body, NULL, 0, client_deadline(client, 0));
}

void client_rpc_post_id(struct leat_client *client, uint16_t type, uint64_t id)
{
    AUTO_BYTES struct bytes_out body = {0};
    proto_id_put(&body, &(struct proto_id){id});
    client_rpc_post(client, type, &body);
}

int client_rpc_post_now(struct leat_client *client, uint16_t type, const struct bytes_out *body)
{
    if (body && body->failed)
        return -ENOMEM;
    pthread_mutex_lock(&client->lock);
    uint64_t id = client->next_id++;
    pthread_mutex_unlock(&client->lock);
    return send_frame_now(client, type, id, body);
}

/* Under lock: reads, or waits for the reading thread. */
static void take_turn(struct leat_client *c, const struct client_rpc_how *how)
{
    if (c->reading) {
        cond_wait_until(&c->wake, &c->lock, client_sleep_until(c, how));
        return;
    }
    c->reading = true;
    pthread_mutex_unlock(&c->lock);
    pump(c, client_sleep_ms(c, how));
    pthread_mutex_lock(&c->lock);
    c->reading = false;
    pthread_cond_broadcast(&c->wake);
}

/* Under lock: waits for the waiter's reply, 0; or why the wait ended without it. */
static int wait_done(struct leat_client *c, struct client_rpc_waiter *w, const struct client_rpc_how *given)
{
    struct client_rpc_how how = *given;
    uint64_t poll_ns = 0;
    for (;;) {
        if (w->done)
            return 0;
        if (c->dead)
            return c->dead;
        bool progress = w->has_progress;
        if (progress) {
            w->has_progress = false;
            if (how.deadline_ns && how.progress_extends_ns)
                how.deadline_ns = clock_now_ns() + how.progress_extends_ns;
        }
        struct leat_progress seen = w->progress;
        pthread_mutex_unlock(&c->lock);
        bool stop = client_cancelled(c, &how, &poll_ns);
        if (progress && how.progress)
            stop = how.progress(&seen, how.progress_user) || stop;
        pthread_mutex_lock(&c->lock);
        if (stop)
            return w->done ? 0 : LEAT_CANCELED;
        if (progress || w->done || c->dead)
            continue;
        if (how.deadline_ns && clock_now_ns() >= how.deadline_ns)
            return LEAT_TIMED_OUT;
        take_turn(c, &how);
    }
}

static int reply_error(struct net_reply *reply, struct leat_error *err)
{
    int status = reply->frame.status;
    AUTO_FREE char *text = proto_error_text(reply->body.data, reply->body.len);
    error_set(err, status, "%s", text && *text ? text : leat_strerror(status));
    net_reply_fini(reply);
    return status;
}

int client_rpc_call(struct leat_client *client, uint16_t type, const struct bytes_out *body, const int *fds,
                    unsigned nfds, const struct client_rpc_how *how, struct net_reply *ret_reply,
                    struct leat_error *err)
{
    if (body && body->failed)
        return error_set(err, -ENOMEM, "out of memory for a request to the daemon");
    struct client_rpc_waiter w = {0};
    pthread_mutex_lock(&client->lock);
    w.id = client->next_id++;
    list_push_back(&client->calls, &w.node);
    pthread_mutex_unlock(&client->lock);

    int rc = send_frame(client, type, w.id, body, fds, nfds, how->deadline_ns);
    pthread_mutex_lock(&client->lock);
    if (!w.done && (!rc || client->dead))
        rc = wait_done(client, &w, how);
    else if (w.done)
        rc = 0;
    list_remove(&w.node);
    if (rc && client->dead)
        pthread_cond_broadcast(&client->wake);
    pthread_mutex_unlock(&client->lock);

    if (rc == 0) {
        if (w.reply.frame.status < 0)
            return reply_error(&w.reply, err);
        *ret_reply = w.reply;
        return 0;
    }
    if (client->dead)
        return client_rpc_dead_error(client, err);
    if (rc == LEAT_INVALID)
        return error_set(err, rc, "a request of %zu bytes to the daemon is too long", body ? body->len : 0);
    client_rpc_post_id(client, PROTO_CANCEL, w.id);
    if (rc == LEAT_TIMED_OUT)
        return error_set(err, rc, "the daemon at %s did not answer within the deadline", client->socket);
    return client_cancelled_error(err);
}

/* --- calls without a waiting thread --------------------------------------------------------------------------------- */

struct client_rpc_pending {
    struct client_rpc_waiter waiter;
};

static int begin(struct leat_client *client, uint16_t type, const struct bytes_out *body, bool now,
                 struct client_rpc_pending **ret_pending)
{
    struct client_rpc_pending *p = body && body->failed ? NULL : calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    pthread_mutex_lock(&client->lock);
    p->waiter.id = client->next_id++;
    list_push_back(&client->calls, &p->waiter.node);
    pthread_mutex_unlock(&client->lock);
    int rc = now ? send_frame_now(client, type, p->waiter.id, body)
                 : send_frame(client, type, p->waiter.id, body, NULL, 0, client_deadline(client, 0));
    if (rc) {
        client_rpc_forget(client, p);
        return rc;
    }
    *ret_pending = p;
    return 0;
}

int client_rpc_begin(struct leat_client *client, uint16_t type, const struct bytes_out *body,
                     struct client_rpc_pending **ret_pending)
{
    return begin(client, type, body, false, ret_pending);
}

int client_rpc_begin_now(struct leat_client *client, uint16_t type, const struct bytes_out *body,
                         struct client_rpc_pending **ret_pending)
{
    return begin(client, type, body, true, ret_pending);
}

bool client_rpc_ready(struct leat_client *client, const struct client_rpc_pending *pending)
{
    pthread_mutex_lock(&client->lock);
    bool ready = pending->waiter.done || client->dead;
    pthread_mutex_unlock(&client->lock);
    return ready;
}

int client_rpc_take(struct leat_client *client, struct client_rpc_pending *pending,
                    struct net_reply *ret_reply, struct leat_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&client->lock);
    bool done = pending->waiter.done;
    list_remove(&pending->waiter.node);
    pthread_mutex_unlock(&client->lock);
    if (!done)
        rc = client_rpc_dead_error(client, err);
    else if (pending->waiter.reply.frame.status < 0)
        rc = reply_error(&pending->waiter.reply, err);
    else
        *ret_reply = pending->waiter.reply;
    free(pending);
    return rc;
}

void client_rpc_forget(struct leat_client *client, struct client_rpc_pending *pending)
{
    if (!pending)
        return;
    pthread_mutex_lock(&client->lock);
    list_remove(&pending->waiter.node);
    pthread_mutex_unlock(&client->lock);
    if (pending->waiter.done)
        drop_reply(client, &pending->waiter.reply);
    free(pending);
}

void client_rpc_cancel(struct leat_client *client, struct client_rpc_pending *pending)
{
    client_rpc_post_id(client, PROTO_CANCEL, pending->waiter.id);
    client_rpc_forget(client, pending);
}

/* Under lock. */
static int first_done(struct client_rpc_pending *const *pendings, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (pendings[i] && pendings[i]->waiter.done)
            return (int)i;
    return -1;
}

int client_rpc_wait_any(struct leat_client *c, struct client_rpc_pending *const *pendings, unsigned n,
                        const struct client_rpc_how *how, struct leat_error *err)
{
    uint64_t poll_ns = 0;
    int rc = 0, found;
    pthread_mutex_lock(&c->lock);
    while ((found = first_done(pendings, n)) < 0 && !c->dead) {
        pthread_mutex_unlock(&c->lock);
        rc = client_cancelled(c, how, &poll_ns) ? LEAT_CANCELED : 0;
        pthread_mutex_lock(&c->lock);
        if (rc == 0 && how->deadline_ns && clock_now_ns() >= how->deadline_ns)
            rc = LEAT_TIMED_OUT;
        if (rc || first_done(pendings, n) >= 0)
            break;
        take_turn(c, how);
    }
    found = found < 0 ? first_done(pendings, n) : found;
    pthread_mutex_unlock(&c->lock);
    if (found >= 0)
        return found;
    if (c->dead)
        return client_rpc_dead_error(c, err);
    if (rc == LEAT_TIMED_OUT)
        return error_set(err, rc, "the daemon at %s did not answer within the deadline", c->socket);
    return client_cancelled_error(err);
}
