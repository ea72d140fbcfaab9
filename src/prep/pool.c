/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c: a generation counter says that there is work; an atomic counter hands it out; the last to leave says that it is done.
 * Invariant: `item`, `arg` and `n` change only while no thread is inside (busy == 0), under the lock.
 */
#include "prep/pool.h"

#include <pthread.h>
#include <signal.h>

#define MAX_THREADS 256

struct prep_pool {
    pthread_mutex_t turn; /* held for a whole run */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    uint64_t generation;
    unsigned busy; /* threads that have not yet finished this generation */
    bool closing;
    void (*item)(void *, size_t, struct prep_scratch *);
    void *arg;
    size_t n;
    atomic_size_t next;
    unsigned workers; /* started threads */
    struct worker {
        struct prep_pool *pool;
        struct prep_scratch *scratch;
        pthread_t thread;
    } all[]; /* the last is the caller of a run */
};

static void take(struct prep_pool *pool, struct prep_scratch *scratch)
{
    for (size_t i; (i = atomic_fetch_add(&pool->next, 1)) < pool->n;)
        pool->item(pool->arg, i, scratch);
}

static void *work(void *arg)
{
    struct worker *self = arg;
    struct prep_pool *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->generation == seen && !pool->closing)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->closing)
            break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->lock);
        take(pool, self->scratch);
        pthread_mutex_lock(&pool->lock);
        if (!--pool->busy)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int prep_pool_new(unsigned threads, struct prep_pool **ret_pool, struct leat_error *err)
{
    if (!threads || threads > MAX_THREADS)
        return error_set(err, LEAT_INVALID, "%u threads: wanted are 1 to %u", threads, MAX_THREADS);
    struct prep_pool *pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->all[0]));
    if (!pool)
        return error_sys(err, -ENOMEM, "threads");
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    /* Signals are for the threads of the program that uses us. */
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int rc = 0;
    for (unsigned i = 0; i < threads && !rc; i++) {
        pool->all[i].pool = pool;
        rc = prep_scratch_new(&pool->all[i].scratch);
        if (!rc && i + 1 < threads) {
            rc = -pthread_create(&pool->all[i].thread, NULL, work, &pool->all[i]);
            pool->workers += !rc;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        prep_pool_free(pool);
        return error_sys(err, rc, "starting %u threads", threads - 1);
    }
    *ret_pool = pool;
    return 0;
}

void prep_pool_free(struct prep_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->workers; i++)
        pthread_join(pool->all[i].thread, NULL);
    for (unsigned i = 0; i <= pool->workers; i++) /* that of a run's caller, too */
        prep_scratch_free(pool->all[i].scratch);
    pthread_mutex_destroy(&pool->turn);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    free(pool);
}

void prep_pool_run(struct prep_pool *pool, size_t n,
                   void (*item)(void *arg, size_t i, struct prep_scratch *scratch), void *arg)
{
    pthread_mutex_lock(&pool->turn);
    pthread_mutex_lock(&pool->lock);
    pool->item = item;
    pool->arg = arg;
    pool->n = n;
    atomic_store(&pool->next, 0);
    pool->busy = pool->workers;
    pool->generation++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    take(pool, pool->all[pool->workers].scratch);
    pthread_mutex_lock(&pool->lock);
    while (pool->busy)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->turn);
}
