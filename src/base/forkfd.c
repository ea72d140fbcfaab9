/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkfd.c: the list is locked over the fork, so that the child finds it whole whatever other threads were
 * at; the child closes what is in it and starts with an empty one. Its handles are of no use anyway: their
 * owners return errors.
 */
#include "base/forkfd.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list watched = {&watched, &watched};

static void before(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    list_for_each_safe (node, &watched) {
        int *fd = container_of(node, struct forkfd, node)->fd;
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        list_remove(node);
    }
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    pthread_atfork(before, in_parent, in_child);
}

void forkfd_watch(struct forkfd *watch, int *fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    watch->fd = fd;
    pthread_mutex_lock(&lock);
    list_push_back(&watched, &watch->node);
    pthread_mutex_unlock(&lock);
}

void forkfd_close(struct forkfd *watch)
{
    if (!watch->fd)
        return;
    pthread_mutex_lock(&lock);
    if (*watch->fd >= 0)
        close(*watch->fd);
    *watch->fd = -1;
    list_remove(&watch->node);
    pthread_mutex_unlock(&lock);
    watch->fd = NULL;
}
