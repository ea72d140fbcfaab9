/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: a call is posted to the control loop, done there, and the worker that waits for it is woken.
 * Failure modes: a loop that ends first: pool_bridge_close ends the waits. Invariants: a call belongs to its worker and to the message that
 * is posted, and is freed by the last of them; a message that the loop dropped leaves its call to the bridge's end.
 */
#include "serve/admin/pool_bridge.h"

#include <pthread.h>

#include "loop/loop.h"
#include "daemon/server.h"

struct pool_bridge {
    struct admin_pool pool;
    struct loop *loop;
    struct server *server;
    pthread_mutex_t lock; /* guards what follows, and each call's `done` and `left` */
    pthread_cond_t cond;
    bool closed;
    struct list posted; /* calls that the loop has not run */
};

struct call {
    struct list node; /* posted */
    struct pool_bridge *bridge;
    bool all, drop, force, done, left; /* left: no request waits for it */
    uint32_t query;
    char *arg, *text;
    int rc;
    struct leat_error err;
};

static void call_free(struct call *call)
{
    free(call->arg);
    free(call->text);
    free(call);
}

static void on_loop(void *arg)
{
    struct call *call = arg;
    struct pool_bridge *b = call->bridge;
    pthread_mutex_lock(&b->lock);
    list_remove(&call->node);
    bool wanted = !b->closed && !call->left;
    pthread_mutex_unlock(&b->lock);
    if (wanted && call->drop)
        call->rc = server_drop(b->server, call->arg, call->force, &call->err);
    else if (wanted)
        call->rc = server_query(b->server, call->query, call->arg, call->all, &call->text, &call->err);
    pthread_mutex_lock(&b->lock);
    call->done = true;
    bool left = call->left;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
    if (left)
        call_free(call);
}

/* Takes the call. */
static int ask(struct pool_bridge *b, struct call *call, char **ret_text, struct leat_error *err)
{
    call->bridge = b;
    list_init(&call->node);
    pthread_mutex_lock(&b->lock);
    int rc = b->closed ? LEAT_PEER_GONE : 0;
    if (rc == 0)
        list_push_back(&b->posted, &call->node);
    pthread_mutex_unlock(&b->lock);
    if (rc == 0)
        rc = loop_post(b->loop, on_loop, call);
    pthread_mutex_lock(&b->lock);
    if (rc < 0)
        list_remove(&call->node);
    while (rc == 0 && !call->done && !b->closed)
        pthread_cond_wait(&b->cond, &b->lock);
    bool mine = rc < 0 || call->done;
    call->left = !mine;
    pthread_mutex_unlock(&b->lock);
    if (!mine || rc < 0) {
        if (mine)
            call_free(call);
        return error_set(err, rc < 0 ? rc : LEAT_PEER_GONE,
                         rc == -ENOMEM ? "out of memory" : "the daemon ends");
    }
    rc = call->rc;
    if (err)
        *err = call->err;
    if (rc == 0 && ret_text)
        *ret_text = TAKE_PTR(call->text);
    call_free(call);
    return rc;
}

static struct call *call_new(const char *arg)
{
    struct call *call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->arg = strdup(arg ? arg : "");
    if (!call->arg) {
        free(call);
        return NULL;
    }
    return call;
}

static int on_query(void *user, enum leat_query query, const char *arg, bool all, char **ret_text,
                    struct leat_error *err)
{
    struct call *call = call_new(arg);
    if (!call)
        return error_set(err, -ENOMEM, "out of memory");
    call->query = query;
    call->all = all;
    return ask(user, call, ret_text, err);
}

static int on_drop(void *user, const char *name, bool force, struct leat_error *err)
{
    struct call *call = call_new(name);
    if (!call)
        return error_set(err, -ENOMEM, "out of memory");
    call->drop = true;
    call->force = force;
    return ask(user, call, NULL, err);
}

int pool_bridge_new(struct loop *loop, struct server *server, struct pool_bridge **ret_bridge)
{
    struct pool_bridge *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->pool = (struct admin_pool){.user = b, .query = on_query, .drop = on_drop};
    b->loop = loop;
    b->server = server;
    list_init(&b->posted);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->cond, NULL);
    *ret_bridge = b;
    return 0;
}

const struct admin_pool *pool_bridge_pool(struct pool_bridge *bridge)
{
    return &bridge->pool;
}

void pool_bridge_close(struct pool_bridge *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->closed = true;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

void pool_bridge_free(struct pool_bridge *b)
{
    if (!b)
        return;
    struct call *call;
    while ((call = list_first(&b->posted, struct call, node))) { /* the loop went without running them */
        list_remove(&call->node);
        call_free(call);
    }
    pthread_cond_destroy(&b->cond);
    pthread_mutex_destroy(&b->lock);
    free(b);
}
