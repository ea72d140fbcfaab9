/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c: the threads of a folder's session, started with the first read.
 *
 * Happy path: a work is run by the next thread that is free, comes back by a list, and is over in
 * dir_work_reap, on the session's thread.
 * Failure modes: fewer threads than wanted can be started: those that are do it all. A file system that hangs
 * keeps its thread, and the end.
 * Invariants: todo, finished and stop are under the lock; wake_fd is readable when `finished` is not empty,
 * or the session was woken.
 */
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "backend/dir/dir.h"

#define STACK_BYTES (256 * KIB)

void dir_threads_init(struct dir *d)
{
    d->wake_fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    list_init(&d->todo);
    list_init(&d->finished);
}

static void *thread_main(void *arg)
{
    struct dir *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        struct dir_work *work = list_first(&d->todo, struct dir_work, node);
        if (!work) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        list_remove(&work->node);
        pthread_mutex_unlock(&d->lock);
        work->rc = work->run(d, work);
        pthread_mutex_lock(&d->lock);
        if (list_empty(&d->finished))
            dir_work_wake(d);
        list_push_back(&d->finished, &work->node);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int dir_threads(struct dir *d)
{
    pthread_attr_t attr;
    sigset_t all, old;
    if (d->nthreads)
        return 0;
    int rc = pthread_attr_init(&attr);
    if (rc)
        return -rc;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (rc == 0 && d->nthreads < DIR_THREADS) {
        rc = pthread_create(&d->threads[d->nthreads], &attr, thread_main, d);
        if (rc == 0)
            pthread_setname_np(d->threads[d->nthreads++], "leat-dir");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return d->nthreads ? 0 : -rc;
}

void dir_work_add(struct dir *d, struct dir_work *work)
{
    pthread_mutex_lock(&d->lock);
    list_push_back(&d->todo, &work->node);
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void dir_work_wake(struct dir *d)
{
    uint64_t one = 1;
    (void)!write(d->wake_fd, &one, sizeof(one)); /* full: it is readable already */
}

/* over() of all in the list. */
static void end_all(struct dir *d, struct list *list)
{
    struct dir_work *work;
    while ((work = list_first(list, struct dir_work, node))) {
        list_remove(&work->node);
        work->over(d, work);
    }
}

/* All of one list to an empty one. */
static void move_all(struct list *from, struct list *to)
{
    list_for_each_safe (node, from) {
        list_remove(node);
        list_push_back(to, node);
    }
}

int dir_work_reap(struct dir *d, int timeout_ms)
{
    struct pollfd pfd = {.fd = d->wake_fd, .events = POLLIN};
    struct list now;
    uint64_t count;
    list_init(&now);
    if (poll(&pfd, 1, timeout_ms) < 0 && errno != EINTR)
        return -errno;
    if (pfd.revents)
        (void)!read(d->wake_fd, &count, sizeof(count));
    pthread_mutex_lock(&d->lock);
    move_all(&d->finished, &now);
    pthread_mutex_unlock(&d->lock);
    end_all(d, &now);
    return 0;
}

void dir_threads_end(struct dir *d)
{
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < d->nthreads; i++)
        pthread_join(d->threads[i], NULL);
    end_all(d, &d->finished);
    list_for_each (node, &d->todo)
        container_of(node, struct dir_work, node)->rc = -ECANCELED;
    end_all(d, &d->todo);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    if (d->wake_fd >= 0)
        close(d->wake_fd);
}
