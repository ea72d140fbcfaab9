/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c: a queue for each priority, one lock, threads.
 *
 * Happy path: a worker takes what is short first, and what is long while fewer than `long_max` run; runs it without the lock, and posts it to its
 * request's reactor. Failure modes: a full priority is the caller's -EAGAIN. Invariants: work that was taken is posted exactly once, also when the
 * workers end.
 */
#include "http/server/workers.h"

#include <pthread.h>
#include <signal.h>

#include "base/clock.h"

#define THREADS_MAX 256u

struct http_workers {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t cond;
    struct list queues[HTTP_PRIORITIES];
    struct fairq fairq; /* of what has a party */
    unsigned queued[HTTP_PRIORITIES], running[HTTP_PRIORITIES];
    unsigned long_max, queue_max, nthreads;
    bool ending;
    uint64_t done, refused;
    pthread_t threads[];
};

/* Under the lock; NULL: nothing that may run now. *ret_party: NULL for what has none. */
static struct http_work *next(struct http_workers *w, struct fairq_source **ret_party)
{
    enum http_priority priority = HTTP_PRIORITY_SHORT;
    *ret_party = NULL;
    if (list_empty(&w->queues[priority])) {
        struct fairq_item *turn = fairq_pop(&w->fairq, ret_party);
        if (turn)
            return container_of(turn, struct http_work, turn);
        priority = HTTP_PRIORITY_LONG;
        if (list_empty(&w->queues[priority]) || w->running[priority] >= w->long_max)
            return NULL;
    }
    struct http_work *work = list_first(&w->queues[priority], struct http_work, turn.node);
    list_remove(&work->turn.node);
    w->queued[priority]--;
    w->running[priority]++;
    return work;
}

static void come_back(struct http_message *message, struct http_request *req)
{
    struct http_work *work = container_of(message, struct http_work, message);
    work->done(work, req);
}

static void *worker_main(void *arg)
{
    struct http_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct http_work *work = NULL;
        struct fairq_source *party;
        while (!w->ending && !(work = next(w, &party)))
            pthread_cond_wait(&w->cond, &w->lock);
        if (w->ending)
            break;
        enum http_priority priority = work->priority;
        pthread_mutex_unlock(&w->lock);
        uint64_t began_ns = party ? clock_now_ns() : 0;
        work->run(work);
        http_post(&work->message); /* gone from here on */
        pthread_mutex_lock(&w->lock);
        w->done++;
        if (party) {
            unsigned more = fairq_done(&w->fairq, party, clock_now_ns() - began_ns);
            for (more = MIN(more - 1, w->fairq.queued); more; more--) /* this one takes one of them */
                pthread_cond_signal(&w->cond);
            continue;
        }
        w->running[priority]--;
        if (priority == HTTP_PRIORITY_LONG && !list_empty(&w->queues[HTTP_PRIORITY_LONG]))
            pthread_cond_signal(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int http_workers_new(unsigned threads, unsigned queue_max, struct http_workers **ret_workers,
                     struct leat_error *err)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads == 0)
        threads = cpus < 2 ? 4 : (unsigned)MIN(2 * cpus, 32L);
    threads = MIN(threads, THREADS_MAX);
    struct http_workers *w = calloc(1, sizeof(*w) + threads * sizeof(w->threads[0]));
    if (!w)
        return error_set(err, -ENOMEM, "no memory for %u worker threads", threads);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->cond, NULL);
    for (unsigned i = 0; i < HTTP_PRIORITIES; i++)
        list_init(&w->queues[i]);
    w->queue_max = queue_max ? queue_max : 1024;
    fairq_init(&w->fairq, threads, w->queue_max);
    w->long_max = threads > 1 ? threads - MAX(threads / 4, 1u) : 1;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    for (; rc == 0 && w->nthreads < threads; w->nthreads += rc == 0)
        rc = pthread_create(&w->threads[w->nthreads], NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        rc = error_sys(err, -rc, "worker thread %u of %u cannot be started", w->nthreads + 1, threads);
        http_workers_free(w);
        return rc;
    }
    *ret_workers = w;
    return 0;
}

static void cancel(struct http_work *work)
{
    work->cancelled = true;
    http_post(&work->message);
}

void http_workers_free(struct http_workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->nthreads; i++)
        pthread_join(w->threads[i], NULL);
    for (unsigned priority = 0; priority < HTTP_PRIORITIES; priority++) {
        struct http_work *work;
        while ((work = list_first(&w->queues[priority], struct http_work, turn.node))) {
            list_remove(&work->turn.node);
            cancel(work);
        }
    }
    struct fairq_item *turn;
    while ((turn = fairq_drain(&w->fairq)))
        cancel(container_of(turn, struct http_work, turn));
    fairq_fini(&w->fairq);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int http_work_start(struct http_workers *w, struct http_ref ref, enum http_priority priority,
                    struct http_work *work)
{
    int rc = 0;
    work->message = (struct http_message){.ref = ref, .fn = come_back};
    work->priority = priority;
    work->cancelled = false;
    list_init(&work->turn.node);
    pthread_mutex_lock(&w->lock);
    if (w->ending || (!work->party && w->queued[priority] >= w->queue_max)) {
        rc = -EAGAIN;
    } else if (work->party) {
        rc = fairq_push(&w->fairq, work->party, &work->turn) < 0 ? -EAGAIN : 0;
    } else {
        list_push_back(&w->queues[priority], &work->turn.node);
        w->queued[priority]++;
    }
    w->refused += rc < 0;
    if (rc == 0)
        pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

void http_workers_stats(struct http_workers *w, struct http_workers_stats *ret_stats)
{
    pthread_mutex_lock(&w->lock);
    *ret_stats = (struct http_workers_stats){.threads = w->nthreads, .done = w->done, .refused = w->refused};
    for (unsigned priority = 0; priority < HTTP_PRIORITIES; priority++) {
        ret_stats->running += w->running[priority];
        ret_stats->queued[priority] = w->queued[priority];
    }
    ret_stats->running += w->fairq.running;
    ret_stats->waiting = w->fairq.queued;
    pthread_mutex_unlock(&w->lock);
}
