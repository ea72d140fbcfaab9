/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdpass.c: the end of descriptors that another process made.
 *
 * close() may wait as long as the other process likes: a TCP socket with SO_LINGER and a peer that does not
 * read, a file of a FUSE server that does not answer. So a thread of its own, the closer, closes all of them
 * but small memfds, which never wait. A unix socket closes what lies unread in its queue. So the closer also
 * gets our end of one with unread descriptors.
 *
 * What waits is charged to the user that passed it. Above a limit, no more messages with descriptors are
 * received from this user.
 *
 * Failure modes: no memory or no thread: the caller closes, and may wait. The closer waits for one
 * descriptor: those behind it stay open, of all users. The process ends: it does not wait for a TCP socket,
 * but does for a FUSE server's answer.
 */
#include "base/fdpass.h"

#include "base/array.h"
#include "base/list.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL_BYTES (1 * MIB) /* of memory, to be freed inside close() */

struct backlog { /* of one user; never empty */
    struct list node;
    uint32_t uid;
    size_t n, cap;
    int *fds;
};

static struct {
    pthread_mutex_t lock; /* guards all */
    pthread_cond_t more;
    struct list backlogs; /* the next first */
    _Atomic size_t n;     /* in all of them; written under the lock */
    bool runs;
} closer = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .more = PTHREAD_COND_INITIALIZER,
            .backlogs = {&closer.backlogs, &closer.backlogs}};

static void backlog_free(struct backlog *b)
{
    list_remove(&b->node);
    free(b->fds);
    free(b);
}

/* One of each user in turn. */
static int closer_next(void)
{
    struct backlog *b = list_first(&closer.backlogs, struct backlog, node);
    int fd = b->fds[--b->n];
    closer.n--;
    list_remove(&b->node);
    list_push_back(&closer.backlogs, &b->node);
    if (b->n == 0)
        backlog_free(b);
    return fd;
}

static void *closer_run(void *user)
{
    pthread_mutex_lock(&closer.lock);
    for (;;) {
        while (list_empty(&closer.backlogs))
            pthread_cond_wait(&closer.more, &closer.lock);
        int fd = closer_next();
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

static struct backlog *backlog_find(uint32_t uid)
{
    list_for_each (node, &closer.backlogs) {
        struct backlog *b = container_of(node, struct backlog, node);
        if (b->uid == uid)
            return b;
    }
    return NULL;
}

static struct backlog *backlog_get(uint32_t uid)
{
    struct backlog *b = backlog_find(uid);
    if (!b && (b = calloc(1, sizeof(*b)))) {
        b->uid = uid;
        list_push_back(&closer.backlogs, &b->node);
    }
    return b;
}

static bool backlog_push(struct backlog *b, int fd)
{
    if (array_reserve(&b->fds, &b->cap, b->n + 1) < 0) {
        if (b->n == 0)
            backlog_free(b);
        return false;
    }
    b->fds[b->n++] = fd;
    closer.n++;
    return true;
}

static void close_soon(int fd, uint32_t uid)
{
    pthread_mutex_lock(&closer.lock);
    struct backlog *b = closer_start() ? backlog_get(uid) : NULL;
    bool taken = b && backlog_push(b, fd);
    if (taken)
        pthread_cond_signal(&closer.more);
    pthread_mutex_unlock(&closer.lock);
    if (!taken)
        close(fd);
}

bool fdpass_full(uint32_t uid)
{
    if (atomic_load_explicit(&closer.n, memory_order_relaxed) < FDPASS_WAITING_MAX)
        return false;
    pthread_mutex_lock(&closer.lock);
    const struct backlog *b = backlog_find(uid);
    bool full = b && b->n >= FDPASS_WAITING_MAX;
    pthread_mutex_unlock(&closer.lock);
    return full;
}

/* Only a memfd has seals, and none waits in fstat. */
static bool small_memory(int fd)
{
    struct stat st;
    return fcntl(fd, F_GET_SEALS) >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 <= SMALL_BYTES;
}

void fdpass_close(int fd, uint32_t uid)
{
    if (small_memory(fd))
        close(fd);
    else
        close_soon(fd, uid);
}

void fdpass_close_all(const int *fds, unsigned n, uint32_t uid)
{
    for (unsigned i = 0; i < n; i++)
        if (fds[i] >= 0)
            fdpass_close(fds[i], uid);
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
                close(fd);
                rc = LEAT_CORRUPT;
            }
        }
    }
    return rc;
}

/* The bytes that can be received without descriptors, at most iov's; 0, -errno; LEAT_BUSY: the next ones bring some. */
static ssize_t look_ahead(int fd, struct iovec *iov)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1}; /* no room for descriptors: they stay */
    ssize_t n;
    do
        n = recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    return msg.msg_flags & MSG_CTRUNC ? LEAT_BUSY : n;
}

ssize_t fdpass_receive(int fd, uint32_t uid, struct iovec *iov, size_t niov, int *fds, unsigned cap,
                       unsigned *n)
{
    union fdpass_room room;
    struct iovec some = iov[0];
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = niov};
    int came[FDPASS_MESSAGE_MAX];
    unsigned ncame = 0;
    ssize_t got;
    if (fdpass_full(uid)) {
        got = look_ahead(fd, &some);
        if (got <= 0)
            return got;
        some.iov_len = (size_t)got;
        msg.msg_iov = &some;
        msg.msg_iovlen = 1;
    }
    do {
        msg.msg_control = &room;
        msg.msg_controllen = sizeof(room);
        got = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    int rc = fdpass_take(&msg, came, FDPASS_MESSAGE_MAX, &ncame);
    unsigned taken = MIN(ncame, cap - *n);
    if (taken)
        memcpy(fds + *n, came, taken * sizeof(int));
    *n += taken;
    fdpass_close_all(came + taken, ncame - taken, uid);
    return rc < 0 || taken < ncame ? LEAT_CORRUPT : got;
}

bool fdpass_prepare(int fd)
{
    const int on = 1;
    int domain = 0;
    socklen_t len = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 || domain != AF_UNIX)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
    return true;
}

/* Reads up to the first descriptors. */
static bool has_unread(int fd)
{
    char bytes[16 * KIB];
    ssize_t n;
    do {
        struct iovec iov = {bytes, sizeof(bytes)};
        n = look_ahead(fd, &iov);
    } while (n > 0 && recv(fd, bytes, (size_t)n, MSG_DONTWAIT) > 0);
    return n == LEAT_BUSY;
}

void fdpass_hang_up(int fd, uint32_t uid)
{
    bool is_unix = fdpass_prepare(fd);
    if (is_unix)
        shutdown(fd, SHUT_RDWR); /* nothing can join the queue from here on */
    if (is_unix && has_unread(fd))
        close_soon(fd, uid);
    else
        close(fd);
}
