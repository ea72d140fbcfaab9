/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.c: a thread that writes one buffer of a put while the next one is received and hashed.
 *
 * Happy path: begin hands a buffer over; wait says what became of it, and the buffer is the owner's again.
 * Failure modes: a write that fails is what wait returns. No thread to be had: the put writes by itself.
 * Invariants: one buffer is under way at most; nothing else is done with the descriptor during that.
 */
#include "store/internal.h"

#include <signal.h>

struct writer {
    const struct store_io *io;
    int fd;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t cond;  /* both ways: there is work, or it is done */
    const void *data;     /* NULL: nothing under way */
    size_t n;
    uint64_t at;
    int rc; /* of the last one */
    bool stop;
};

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->data && !w->stop)
            pthread_cond_wait(&w->cond, &w->lock);
        if (!w->data)
            break;
        pthread_mutex_unlock(&w->lock);
        int rc = store_io_write(w->io, w->fd, w->data, w->n, w->at);
        pthread_mutex_lock(&w->lock);
        w->rc = rc;
        w->data = NULL;
        pthread_cond_signal(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int store_writer_new(const struct store_io *io, int fd, struct writer **ret_writer)
{
    struct writer *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->io = io;
    w->fd = fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->cond, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = -pthread_create(&w->thread, NULL, writer_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0) {
        pthread_cond_destroy(&w->cond);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return rc;
    }
    *ret_writer = w;
    return 0;
}

void store_writer_begin(struct writer *w, const void *data, size_t n, uint64_t at)
{
    pthread_mutex_lock(&w->lock);
    assert(!w->data);
    w->data = data;
    w->n = n;
    w->at = at;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

int store_writer_wait(struct writer *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->data)
        pthread_cond_wait(&w->cond, &w->lock);
    int rc = w->rc;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

void store_writer_free(struct writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
