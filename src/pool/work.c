/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/work.h"

#include "loop/loop.h"
#include "pool/pool.h"

#include <pthread.h>
#include <unistd.h>

#define WORKS_MAX 4u

static void works_start(struct pool *pool);

static void done_on_loop(void *arg)
{
    struct work *w = arg;
    struct pool *pool = w->pool;
    list_remove(&w->node);
    pool->working -= w->running;
    w->cancelled = w->cancelled || atomic_load(&pool->stopping);
    w->done(w);
    works_start(pool);
}

static void post_done(struct work *w)
{
    while (loop_post(w->pool->loop, done_on_loop, w) < 0)
        usleep(10000); /* out of memory: the requester is still waiting */
}

static void *work_main(void *arg)
{
    struct work *w = arg;
    struct pool *pool = w->pool;
    w->run(w);
    post_done(w);
    atomic_fetch_sub(&pool->threads, 1);
    return NULL;
}

static int thread_start(struct pool *pool, struct work *w)
{
    pthread_t thread;
    atomic_fetch_add(&pool->threads, 1);
    int rc = -pthread_create(&thread, NULL, work_main, w);
    if (rc == 0)
        pthread_detach(thread);
    else
        atomic_fetch_sub(&pool->threads, 1);
    return rc;
}

static void works_start(struct pool *pool)
{
    list_for_each_safe (node, &pool->works) {
        struct work *w = container_of(node, struct work, node);
        if (w->running || w->cancelled)
            continue;
        if (pool->working >= WORKS_MAX)
            return;
        w->running = true;
        pool->working++;
        if (thread_start(pool, w) == 0)
            continue;
        w->run(w);
        post_done(w);
    }
}

static void init(struct pool *pool, struct work *w)
{
    w->pool = pool;
    w->running = w->cancelled = false;
    list_init(&w->node);
}

int work_start_now(struct pool *pool, struct work *w)
{
    init(pool, w);
    return thread_start(pool, w);
}

void work_start(struct pool *pool, struct work *w)
{
    init(pool, w);
    list_push_back(&pool->works, &w->node);
    if (atomic_load(&pool->stopping))
        work_cancel_waiting(pool);
    else
        works_start(pool);
}

void work_cancel_waiting(struct pool *pool)
{
    list_for_each (node, &pool->works) {
        struct work *w = container_of(node, struct work, node);
        if (w->running || w->cancelled)
            continue;
        w->cancelled = true;
        post_done(w);
    }
}
