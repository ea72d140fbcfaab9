/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdpass.c: the end of descriptors that another process made.
 *
 * close() may wait for as long as their maker likes: a TCP socket with SO_LINGER and a peer that does not read, a file of a
 * FUSE server that does not answer. So a thread of its own, the closer, closes all of them but memfds, which never wait.
 * A unix socket closes what lies unread in its queue. So its end is read empty first, and then has nothing to wait for.
 *
 * Failure modes: no memory or no thread: the caller closes, and may wait. The closer waits for one descriptor: those behind it
 * stay open. The process ends: the closer ends with it, wherever it is.
 */
#include "net/fdpass.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock; /* guards all */
    pthread_cond_t more;
    int *fds;
    size_t n, cap;
    bool runs;
} closer = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static void *closer_run(void *user)
{
    pthread_mutex_lock(&closer.lock);
    for (;;) {
        while (closer.n == 0)
            pthread_cond_wait(&closer.more, &closer.lock);
        int fd = closer.fds[--closer.n];
        pthread_mutex_unlock(&closer.lock);
        close(fd);
        pthread_mutex_lock(&closer.lock);
    }
    return user;
}

static bool closer_start(void)
{
    pthread_t thread;
    if (!closer.runs && pthread_create(&thread, NULL, closer_run, NULL) == 0) {
        pthread_detach(thread);
        closer.runs = true;
    }
    return closer.runs;
}

static bool closer_reserve(void)
{
    if (closer.n < closer.cap)
        return true;
    size_t cap = MAX(closer.cap * 2, (size_t)64);
    int *fds = realloc(closer.fds, cap * sizeof(*fds));
    if (!fds)
        return false;
    closer.fds = fds;
    closer.cap = cap;
    return true;
}

void fdpass_close(int fd)
{
    bool waits = fcntl(fd, F_GET_SEALS) < 0;
    if (waits) {
        pthread_mutex_lock(&closer.lock);
        waits = closer_start() && closer_reserve();
        if (waits) {
            closer.fds[closer.n++] = fd;
            pthread_cond_signal(&closer.more);
        }
        pthread_mutex_unlock(&closer.lock);
    }
    if (!waits)
        close(fd);
}

void fdpass_close_all(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (fds[i] >= 0)
            fdpass_close(fds[i]);
}

int fdpass_take(struct msghdr *msg, int *fds, unsigned cap, unsigned *n)
{
    int rc = msg->msg_flags & MSG_CTRUNC ? LEAT_CORRUPT : 0;
    if (!msg->msg_control)
        return rc;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (*n < cap) {
                fds[(*n)++] = fd;
            } else {
                fdpass_close(fd);
                rc = LEAT_CORRUPT;
            }
        }
    }
    return rc;
}

void fdpass_hang_up(int fd)
{
    int domain = 0;
    socklen_t len = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX) {
        char bytes[16 * KIB];
        ssize_t n;
        shutdown(fd, SHUT_RDWR); /* nothing can join the queue from here on */
        do {
            union fdpass_room room;
            struct iovec iov = {bytes, sizeof(bytes)};
            struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
            unsigned none = 0;
            n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
            if (n > 0)
                fdpass_take(&msg, NULL, 0, &none);
        } while (n > 0 || (n < 0 && errno == EINTR));
    }
    close(fd);
}
