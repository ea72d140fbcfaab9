/* SPDX-License-Identifier: Apache-2.0 */
/* dir.h: inside of a folder's session: between dir.c (session, paths, reads), list.c and put.c. */
#ifndef BACKEND_DIR_DIR_H
#define BACKEND_DIR_DIR_H

#include <sys/stat.h>

#include "backend/ops.h"
#include "base/list.h"
#include "wire/s3/s3.h"

#define DIR_TEMP    ".leat-put-" /* names that begin so are ours while they are written: no objects */
#define DIR_HEADERS "user.leat.headers"

struct dir {
    struct backend base;
    char *folder; /* as given, without a "/" at its end: what addresses begin with */
    int root;
    const atomic_bool *cancelled;
    struct disk_engine *engine; /* NULL: nothing was read yet */
    int wake_fd;
    struct list jobs;  /* under way */
    struct list ended; /* done() is due */
    unsigned nreads;
    struct backend_stats stats;
};

static inline struct dir *dir_of(struct backend *b)
{
    return container_of(b, struct dir, base);
}

/* What follows the folder in an address: a key, or a prefix of keys. LEAT_INVALID: another folder's. */
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

int dir_list(struct backend *base, const char *uri, bool recursive, const char *after,
             int (*object)(void *user, const struct backend_object *object), void *user,
             struct leat_error *err);
int dir_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
            const char *headers, char *ret_etag, struct leat_error *err);
int dir_delete(struct backend *base, const char *uri, struct leat_error *err);

#endif
