/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c: pread in a small pool of threads.
 *
 * Happy path: submit() appends to `todo`; a thread takes the first request, reads it to its end and appends
 * it to `finished`; reap(), in the owner's thread, takes that list and calls done(). With depth 1 there is no
 * thread: reap() makes the read itself. That form is also the debugging aid: a stack trace shows the caller.
 *
 * Failure modes: fewer threads than asked can be started: the pool works with those it has, and `depth` says how many.
 * A read that hangs (a dead NFS server) hangs its thread, and free() with it, as its buffer may still be written.
 *
 * Invariants
 * 1. todo, finished and stop are under the lock; everything else is the owner's.
 * 2. The eventfd is readable when reap() would find something: `finished` is not empty, or depth is 1 and `todo` is not.
 * 3. done() runs with the lock free, in the owner's thread.
 */
#include "disk/engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#define WORKER_DEPTH_MAX   256
#define WORKER_STACK_BYTES (256 * KIB)

struct worker {
    struct disk_engine e;
    int event_fd;
    bool closing;
    unsigned n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct disk_queue todo, finished;
    bool stop;
    pthread_t threads[];
};

static struct worker *worker_of(struct disk_engine *e)
{
    return container_of(e, struct worker, e);
}

static void *thread_main(void *arg)
{
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct disk_read *req;
        while (!w->stop && !w->todo.head)
            pthread_cond_wait(&w->work, &w->lock);
        if (w->stop)
            break;
        req = disk_queue_pop(&w->todo);
        pthread_mutex_unlock(&w->lock);
        req->result = disk_pread_all(req);
        pthread_mutex_lock(&w->lock);
        if (!w->finished.head) {
            disk_event_set(w->event_fd);
            pthread_cond_signal(&w->done);
        }
        disk_queue_push(&w->finished, req);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int worker_submit(struct disk_engine *e, struct disk_read **reqs, unsigned n)
{
    struct worker *w = worker_of(e);
    if (w->closing)
        return -ECANCELED;
    if (n == 0)
        return 0;
    pthread_mutex_lock(&w->lock);
    for (unsigned i = 0; i < n; i++) {
        reqs[i]->got = 0;
        disk_queue_push(&w->todo, reqs[i]);
    }
    e->in_flight += n;
    if (w->n_threads == 0)
        disk_event_set(w->event_fd);
    else if (n == 1)
        pthread_cond_signal(&w->work);
    else
        pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

/* Depth 1. At least one request a call, so that reap(0) in an event loop makes progress. */
static int reap_alone(struct worker *w, unsigned min_done)
{
    unsigned count = 0;
    while (w->todo.head && count < MAX(min_done, 1u)) {
        struct disk_read *req = disk_queue_pop(&w->todo);
        if (!w->todo.head)
            disk_event_clear(w->event_fd);
        disk_request_finish(&w->e, req, disk_pread_all(req));
        count++;
    }
    return (int)count;
}

static int worker_reap(struct disk_engine *e, unsigned min_done)
{
    struct worker *w = worker_of(e);
    if (w->n_threads == 0)
        return reap_alone(w, min_done);
    unsigned count = 0;
    do {
        pthread_mutex_lock(&w->lock);
        while (!w->finished.head && count < min_done && e->in_flight > 0)
            pthread_cond_wait(&w->done, &w->lock);
        struct disk_queue list = w->finished;
        w->finished = (struct disk_queue){0};
        if (list.head)
            disk_event_clear(w->event_fd);
        pthread_mutex_unlock(&w->lock);
        for (struct disk_read *req; (req = disk_queue_pop(&list)); count++)
            disk_request_finish(e, req, req->result);
    } while (count < min_done && e->in_flight > 0);
    return (int)count;
}

static int worker_event_fd(struct disk_engine *e)
{
    return worker_of(e)->event_fd;
}

static int worker_buffer_register(struct disk_engine *e, void *addr, uint64_t bytes)
{
    return -EOPNOTSUPP; /* pread has no registered buffers; this is no downgrade, so it is not counted */
}

static void worker_buffer_unregister(struct disk_engine *e, int buffer) {}

static void worker_free(struct disk_engine *e)
{
    struct worker *w = worker_of(e);
    w->closing = true;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    for (struct disk_read *req; (req = disk_queue_pop(&w->finished));)
        disk_request_finish(e, req, req->result);
    for (struct disk_read *req; (req = disk_queue_pop(&w->todo));)
        disk_request_finish(e, req, -ECANCELED);
    assert(e->in_flight == 0);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    close(w->event_fd);
    free(w);
}

static const struct disk_ops worker_ops = {
    .name = "worker",
    .submit = worker_submit,
    .reap = worker_reap,
    .event_fd = worker_event_fd,
    .buffer_register = worker_buffer_register,
    .buffer_unregister = worker_buffer_unregister,
    .free = worker_free,
};

/* Starts up to `depth` threads that take no signals; returns 0 if there is at least one. */
static int threads_start(struct worker *w, unsigned depth)
{
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    if (r)
        return -r;
    pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (w->n_threads < depth) {
        r = pthread_create(&w->threads[w->n_threads], &attr, thread_main, w);
        if (r)
            break;
        pthread_setname_np(w->threads[w->n_threads++], "leat-disk");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return w->n_threads > 0 ? 0 : -r;
}

int disk_worker_new(unsigned depth, struct disk_engine **ret_engine)
{
    if (depth == 0 || depth > WORKER_DEPTH_MAX)
        return -EINVAL;
    struct worker *w = calloc(1, sizeof(*w) + depth * sizeof(w->threads[0]));
    if (!w)
        return -ENOMEM;
    w->e.ops = &worker_ops;
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event_fd < 0) {
        int r = -errno;
        free(w);
        return r;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->done, NULL);
    int r = depth > 1 ? threads_start(w, depth) : 0;
    if (r < 0) {
        worker_free(&w->e);
        return r;
    }
    w->e.depth = MAX(w->n_threads, 1u);
    *ret_engine = &w->e;
    return 0;
}
