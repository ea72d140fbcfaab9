/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put.c: files written and taken away, durably and each in one step.
 *
 * Happy path: the bytes go into a file without a name (O_TMPFILE) in the folder of its own, are flushed, and
 * get the name: by rename, from one that lists leave out, where there was a file before. The folder is
 * flushed too.
 * Failure modes: a killed process leaves nothing, but where the file system has no O_TMPFILE, or within the
 * moment of a replacement: then a file .leat-put-..., which is no object and may be deleted. A folder that
 * was removed since (the last object in it was deleted) is made again.
 * Invariants: a key's file is whole at any moment, the old one or the new one.
 */
#include "backend/dir/dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/xattr.h>

#define PIECE_BYTES (16 * MIB) /* copied at a time, between checks for cancellation */
#define BUFFER      (1 * MIB)
#define ATTEMPTS    8 /* at a folder that goes away again and again */

struct put {
    struct dir *d;
    const char *uri;
    int folder, fd;
    const char *last;
    char temp[64]; /* "": the file has no name yet */
};

static void temp_name(char ret[64])
{
    uint64_t r[2] = {0};
    if (getrandom(r, sizeof(r), 0) != sizeof(r))
        r[0] = (uint64_t)getpid(); /* O_EXCL detects a collision */
    snprintf(ret, 64, DIR_TEMP "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
}

static int temp_open(struct put *p)
{
    p->fd = openat(p->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (p->fd >= 0 && access("/proc/self/fd", X_OK) == 0)
        return 0;
    if (p->fd >= 0)
        close(TAKE_FD(p->fd));
    temp_name(p->temp);
    p->fd = openat(p->folder, p->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (p->fd < 0) {
        int rc = -errno;
        p->temp[0] = 0;
        return rc;
    }
    return 0;
}

/* By the file system itself where it can (the blocks may be shared then), else through a buffer. */
static int copy(struct put *p, int from, uint64_t offset, uint64_t bytes, struct leat_error *err)
{
    AUTO_FREE char *buf = NULL;
    for (uint64_t at = 0; at < bytes;) {
        if (dir_cancelled(p->d))
            return error_set(err, -ECANCELED, "cancelled");
        loff_t in = (loff_t)(offset + at), out = (loff_t)at;
        ssize_t n = -1;
        if (!buf) {
            n = copy_file_range(from, &in, p->fd, &out, MIN(bytes - at, PIECE_BYTES), 0);
            if (n < 0 && errno != EINTR && errno != ENOSPC && errno != EDQUOT && errno != EIO) {
                buf = malloc(BUFFER);
                if (!buf)
                    return -ENOMEM;
            }
        }
        if (buf) {
            n = pread(from, buf, MIN(bytes - at, BUFFER), (off_t)(offset + at));
            if (n > 0)
                n = pwrite(p->fd, buf, (size_t)n, (off_t)at);
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dir_error(err, -errno, "writing", p->uri);
        if (n == 0)
            return error_set(err, LEAT_STALE, "%.300s: the file became shorter while it was stored", p->uri);
        at += (uint64_t)n;
    }
    return 0;
}

/* The file gets its name. -EEXIST never. */
static int publish(struct put *p)
{
    char self[64];
    if (!p->temp[0]) {
        snprintf(self, sizeof(self), "/proc/self/fd/%d", p->fd);
        if (linkat(AT_FDCWD, self, p->folder, p->last, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        if (errno != EEXIST)
            return -errno;
        temp_name(p->temp);
        if (linkat(AT_FDCWD, self, p->folder, p->temp, AT_SYMLINK_FOLLOW) < 0) {
            int rc = -errno;
            p->temp[0] = 0;
            return rc;
        }
    }
    if (renameat(p->folder, p->temp, p->folder, p->last) < 0)
        return -errno;
    p->temp[0] = 0;
    return 0;
}

static int put_once(struct put *p, const char *key, int from, uint64_t offset, uint64_t bytes,
                    const char *headers, char *ret_etag, struct leat_error *err)
{
    struct stat st;
    int rc = dir_walk(p->d, key, true, &p->folder, &p->last);
    if (rc == -ENOTDIR)
        return error_set(
            err, LEAT_INVALID,
            "%.300s: a file stands where a folder is wanted: in a folder, a key and one below it "
            "(\"a\" and \"a/b\") cannot both be",
            p->uri);
    if (rc == 0)
        rc = temp_open(p);
    if (rc < 0)
        return rc == -ENOENT ? rc : dir_error(err, rc, "writing", p->uri);
    rc = copy(p, from, offset, bytes, err);
    if (rc < 0)
        return rc;
    /* Where the file system keeps no such attributes, the object is without headers. */
    if (headers && *headers)
        (void)!fsetxattr(p->fd, DIR_HEADERS, headers, strlen(headers), 0);
    if (fdatasync(p->fd) < 0)
        return dir_error(err, -errno, "writing", p->uri);
    rc = publish(p);
    if (rc == -EISDIR || rc == -ENOTEMPTY)
        return error_set(err, LEAT_INVALID,
                         "%.300s: a folder of this name is there: in a folder, a key and one below it (\"a\" "
                         "and \"a/b\") cannot both be",
                         p->uri);
    if (rc == -ENOENT)
        return rc;
    if (rc == 0 && (fsync(p->folder) < 0 || fstat(p->fd, &st) < 0))
        rc = -errno;
    if (rc < 0)
        return dir_error(err, rc, "writing", p->uri);
    p->d->stats.bytes_out += bytes;
    if (ret_etag)
        dir_etag(&st, ret_etag);
    return 0;
}

int dir_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
            const char *headers, char *ret_etag, struct leat_error *err)
{
    struct dir *d = dir_of(base);
    const char *key;
    int rc = dir_key(d, uri, &key, err);
    if (rc < 0)
        return rc;
    const char *wrong = dir_key_wrong(key);
    if (wrong)
        return error_set(err, LEAT_INVALID, "%.300s cannot be stored in a folder: %s", uri, wrong);
    d->stats.requests++;
    rc = -ENOENT;
    for (int i = 0; i < ATTEMPTS && rc == -ENOENT; i++) {
        struct put p = {.d = d, .uri = uri, .folder = -1, .fd = -1};
        rc = put_once(&p, key, fd, offset, bytes, headers, ret_etag, err);
        if (p.temp[0])
            unlinkat(p.folder, p.temp, 0);
        if (p.fd >= 0)
            close(p.fd);
        if (p.folder >= 0)
            close(p.folder);
    }
    return rc == -ENOENT ? error_set(err, -EIO, "%.300s: its folder vanishes again and again", uri) : rc;
}

/* Folders that nothing is in any more: a bucket has none. */
static void tidy(struct dir *d, const char *key)
{
    AUTO_FREE char *path = strdup(key);
    char *slash;
    while (path && (slash = strrchr(path, '/'))) {
        AUTO_CLOSE int folder = -1;
        const char *last;
        *slash = 0;
        if (dir_walk(d, path, false, &folder, &last) < 0 || unlinkat(folder, last, AT_REMOVEDIR) < 0)
            return;
    }
}

int dir_delete(struct dir *d, const char *uri, struct leat_error *err)
{
    const char *key, *last;
    struct stat st;
    AUTO_CLOSE int folder = -1;
    int rc = dir_key(d, uri, &key, err);
    if (rc < 0)
        return rc;
    if (!*key)
        return error_set(err, LEAT_INVALID, "%.300s: a folder, where an object is wanted", uri);
    if (dir_key_wrong(key))
        return 0;
    rc = dir_walk(d, key, false, &folder, &last);
    if (rc == 0 && fstatat(folder, last, &st, AT_SYMLINK_NOFOLLOW) < 0)
        rc = -errno;
    if (rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP || (rc == 0 && !S_ISREG(st.st_mode)))
        return 0; /* no object */
    if (rc == 0 && (unlinkat(folder, last, 0) < 0 || fsync(folder) < 0))
        rc = -errno;
    if (rc < 0 && rc != -ENOENT)
        return dir_error(err, rc, "deleting", uri);
    tidy(d, key);
    return 0;
}
