/* SPDX-License-Identifier: Apache-2.0 */
/* dir.h: inside of a folder's session: between dir.c (session, paths, reads), threads.c, list.c and put.c. */
#ifndef BACKEND_DIR_DIR_H
#define BACKEND_DIR_DIR_H

#include <pthread.h>
#include <sys/stat.h>

#include "backend/ops.h"
#include "base/list.h"
#include "wire/s3/s3.h"

#define DIR_TEMP    ".leat-put-" /* names that begin so are ours while they are written: no objects */
#define DIR_HEADERS "user.leat.headers"

#define DIR_THREADS 4u

struct dir;

/* What may wait for a disk. */
struct dir_work {
    struct list node;
    int (*run)(struct dir *d, struct dir_work *work);   /* on a thread; it changes nothing of the session */
    void (*over)(struct dir *d, struct dir_work *work); /* then, on the session's; it may be freed in there */
    int rc;                                             /* run's; -ECANCELED: the session ended first */
};

struct dir {
    struct backend base;
    char *folder; /* as given, without a "/" at its end: what addresses begin with */
    int root;
    const atomic_bool *cancelled;
    struct list jobs;             /* reads under way */
    struct list ended, ended_ops; /* done() is due */
    unsigned npending;            /* of all these, and operations under way */
    struct backend_stats stats;
    atomic_bool woken;
    /* threads.c */
    int wake_fd;
    unsigned nthreads;
    pthread_t threads[DIR_THREADS];
    pthread_mutex_t lock; /* of these */
    pthread_cond_t changed;
    struct list todo, finished;
    bool stop;
};

static inline struct dir *dir_of(struct backend *b)
{
    return container_of(b, struct dir, base);
}

/* The part of an address after the folder: a key, or a prefix of keys. LEAT_INVALID: another folder's. */
int dir_key(const struct dir *d, const char *uri, const char **ret_key, struct leat_error *err);
/* Can it be a file's name below the root? NULL, or why not. */
const char *dir_key_wrong(const char *key);
/*
 * The folder that `key` is in, opened for reading, and its last part, which points into `key`. No link is followed on the way; `make`: what
 * is missing is made, durably. -errno.
 */
int dir_walk(const struct dir *d, const char *key, bool make, int *ret_folder, const char **ret_last);
/* LEAT_PEER_GONE: the root was deleted. */
int dir_gone(const struct dir *d, struct leat_error *err);
/* The error of an operation on `uri`, from the errno value `-code`. */
int dir_error(struct leat_error *err, int rc, const char *what, const char *uri);
void dir_etag(const struct stat *st, char ret_etag[BACKEND_ETAG_MAX]);
static inline bool dir_cancelled(const struct dir *d)
{
    return d->cancelled && atomic_load(d->cancelled);
}

/* threads.c */
void dir_threads_init(struct dir *d);
int dir_threads(struct dir *d); /* 0: there are some */
/* What runs is waited for, and the rest ends. */
void dir_threads_end(struct dir *d);
void dir_work_add(struct dir *d, struct dir_work *work); /* there are threads */
/* over() of what has ended; where nothing has, it waits so long for something, or to be woken. 0 or -errno */
int dir_work_reap(struct dir *d, int timeout_ms);
void dir_work_wake(struct dir *d); /* any thread */

int dir_list(struct backend *base, const char *uri, bool recursive, const char *after,
             int (*object)(void *user, const struct backend_object *object), void *user,
             struct leat_error *err);
int dir_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
            const char *headers, char *ret_etag, struct leat_error *err);
/* Any thread. */
int dir_delete(struct dir *d, const char *uri, struct leat_error *err);

#endif
