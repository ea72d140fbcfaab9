/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c: a folder as if it were a bucket: its session, its paths, and reads.
 *
 * Happy path: a key is walked to from the root, folder by folder; its file is opened once for all reads of a handle; a read is cut in
 * blocks, which a few threads bring with preadv (threads.c).
 * Failure modes: a file that another process writes to while it is read has another size or time afterwards: LEAT_STALE. One that is replaced
 * by rename goes on being read as it was. A file system that hangs keeps the read, and whoever cancels it.
 * Invariants: nothing outside the root is opened, as keys have no ".." and links are not followed, wherever they lead; only regular files
 * are objects. done() runs in wait() alone.
 */
#include "backend/dir/dir.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/xattr.h>

#include "base/clock.h"

#define BLOCK_BYTES (4 * MIB)
#define IOV_PIECES  64u /* of a place, in one call */
#define CANCEL_MS   100 /* so often backend_config.cancelled is looked at */

struct file {
    struct backend_file base;
    char *uri;
    int fd;
    char etag[BACKEND_ETAG_MAX];
    uint64_t bytes;
};

/* A read, cut in blocks, each of which a thread brings. */
struct job {
    struct list node; /* dir.jobs */
    struct backend_read *read;
    int rc;
    atomic_bool over; /* nothing more of it is wanted */
    unsigned left;    /* blocks */
    struct block {
        struct dir_work work;
        struct job *job;
        struct pieces place;
        uint64_t offset, bytes;
    } blocks[];
};

/* --- paths ------------------------------------------------------------------------------------------------------------- */

int dir_error(struct leat_error *err, int rc, const char *what, const char *uri)
{
    switch (rc) {
    case -ENOENT:
    case -ENOTDIR:
        return error_set(err, LEAT_NOT_FOUND, "%s %.300s: no such object", what, uri);
    case -EACCES:
    case -EPERM:
    case -EROFS:
        return error_set(err, LEAT_DENIED, "%s %.300s: %s", what, uri, strerror(-rc));
    case -ELOOP:
        return error_set(err, LEAT_DENIED,
                         "%s %.300s: a symbolic link is there, or on the way; links are not followed", what,
                         uri);
    case -ENOSPC:
    case -EDQUOT:
        return error_set(err, LEAT_NO_SPACE, "%s %.300s: %s", what, uri, strerror(-rc));
    default:
        return error_sys(err, rc, "%s %.300s", what, uri);
    }
}

/* A folder that was deleted has no objects, but that is not what its reader wants to hear. */
int dir_gone(const struct dir *d, struct leat_error *err)
{
    struct stat st;
    return fstat(d->root, &st) < 0 || st.st_nlink == 0
               ? error_set(err, LEAT_PEER_GONE, "the folder %.300s is gone", d->folder)
               : 0;
}

int dir_key(const struct dir *d, const char *uri, const char **ret_key, struct leat_error *err)
{
    size_t n = strlen(d->folder);
    if (strncmp(uri, d->folder, n) != 0 || (uri[n] && uri[n] != '/'))
        return error_set(err, LEAT_INVALID, "%.300s: this session is of %.300s and what is below it", uri,
                         d->folder);
    *ret_key = uri + n + (uri[n] == '/');
    return 0;
}

const char *dir_key_wrong(const char *key)
{
    if (!*key)
        return "a folder, where an object is wanted";
    if (strlen(key) > S3_KEY_MAX)
        return "a key has at most 1,024 bytes";
    for (const char *at = key;; at++) {
        size_t n = strcspn(at, "/");
        if (n == 0)
            return at[n] ? "a key that is to be a file has no empty part (\"//\", or \"/\" at its start)"
                         : "a key that is to be a file does not end in \"/\"";
        if ((n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.'))
            return "a key that is to be a file has no part \".\" or \"..\"";
        if (n > NAME_MAX)
            return "a key that is to be a file has parts of at most 255 bytes";
        if (strncmp(at, DIR_TEMP, strlen(DIR_TEMP)) == 0)
            return "names that begin with \"" DIR_TEMP "\" are for files that are being written";
        at += n;
        if (!*at)
            return NULL;
    }
}

int dir_walk(const struct dir *d, const char *key, bool make, int *ret_folder, const char **ret_last)
{
    AUTO_CLOSE int at = fcntl(d->root, F_DUPFD_CLOEXEC, 0);
    char part[NAME_MAX + 1];
    if (at < 0)
        return -errno;
    for (const char *slash; (slash = strchr(key, '/')); key = slash + 1) {
        if ((size_t)(slash - key) > NAME_MAX)
            return -ENAMETOOLONG;
        snprintf(part, sizeof(part), "%.*s", (int)(slash - key), key);
        if (make && mkdirat(at, part, 0777) == 0) {
            if (fsync(at) < 0)
                return -errno;
        } else if (make && errno != EEXIST) {
            return -errno;
        }
        int next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0) {
            struct stat st;
            int rc = -errno; /* of a link it says that it is no folder */
            if (rc == -ENOTDIR && fstatat(at, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
                rc = -ELOOP;
            return rc;
        }
        close(at);
        at = next;
    }
    *ret_last = key;
    *ret_folder = TAKE_FD(at);
    return 0;
}

void dir_etag(const struct stat *st, char ret_etag[BACKEND_ETAG_MAX])
{
    uint64_t ns = (uint64_t)st->st_mtim.tv_sec * NS_PER_S + (uint64_t)st->st_mtim.tv_nsec;
    snprintf(ret_etag, BACKEND_ETAG_MAX, "\"%llx-%llx-%llx\"", (unsigned long long)st->st_size,
             (unsigned long long)ns, (unsigned long long)st->st_ino);
}

/* A regular file, open for reading. */
static int open_object(const struct dir *d, const char *uri, int *ret_fd, struct stat *ret_stat,
                       struct leat_error *err)
{
    const char *key, *last;
    AUTO_CLOSE int folder = -1;
    int rc = dir_key(d, uri, &key, err);
    if (rc < 0)
        return rc;
    const char *wrong = dir_key_wrong(key);
    if (wrong)
        return error_set(err, *key ? LEAT_NOT_FOUND : LEAT_INVALID, "%.300s: no such object: %s", uri, wrong);
    rc = dir_gone(d, err);
    if (rc < 0)
        return rc;
    rc = dir_walk(d, key, false, &folder, &last);
    if (rc < 0)
        return dir_error(err, rc, "reading", uri);
    /* A pipe without a writer would wait. */
    AUTO_CLOSE int fd = openat(folder, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, ret_stat) < 0)
        return dir_error(err, errno == ENXIO ? -ENOENT : -errno, "reading", uri);
    if (!S_ISREG(ret_stat->st_mode))
        return dir_error(err, -ENOENT, "reading", uri);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* Any thread. */
static int dir_stat(struct dir *d, const char *uri, struct backend_stat *ret_stat, struct leat_error *err)
{
    AUTO_CLOSE int fd = -1;
    struct stat st;
    int rc = open_object(d, uri, &fd, &st, err);
    if (rc < 0)
        return rc;
    *ret_stat = (struct backend_stat){.bytes = (uint64_t)st.st_size, .modified = st.st_mtim.tv_sec};
    dir_etag(&st, ret_stat->etag);
    ssize_t n = fgetxattr(fd, DIR_HEADERS, ret_stat->headers, sizeof(ret_stat->headers) - 1);
    ret_stat->headers[MAX(n, (ssize_t)0)] = 0;
    return 0;
}

/* --- files ------------------------------------------------------------------------------------------------------------- */

static struct file *file_of(struct backend_file *base)
{
    return container_of(base, struct file, base);
}

static void dir_close(struct backend_file *base)
{
    struct file *f = file_of(base);
    if (f->fd >= 0)
        close(f->fd);
    free(f->uri);
    free(f);
}

static int dir_open(struct backend *base, const char *uri, const char *etag, uint64_t bytes,
                    struct backend_file **ret_file, struct leat_error *err)
{
    struct stat st;
    struct file *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    *f = (struct file){.base = {base->ops}, .fd = -1, .uri = strdup(uri)};
    int rc = f->uri ? open_object(dir_of(base), uri, &f->fd, &st, err) : -ENOMEM;
    if (rc == 0) {
        f->bytes = (uint64_t)st.st_size;
        dir_etag(&st, f->etag);
        if ((etag && *etag && strcmp(etag, f->etag) != 0) || (bytes && bytes != f->bytes))
            rc = error_set(err, LEAT_STALE, "%.300s: the object changed: its ETag was %s, now it is %s", uri,
                           etag && *etag ? etag : "another", f->etag);
    }
    if (rc < 0) {
        dir_close(&f->base);
        return rc;
    }
    *ret_file = &f->base;
    return 0;
}

/* The bytes read are of the opened version if the file is as it was. */
static int file_check(const struct file *f, struct leat_error *err)
{
    struct stat st;
    char etag[BACKEND_ETAG_MAX];
    if (fstat(f->fd, &st) < 0)
        return dir_error(err, -errno, "reading", f->uri);
    dir_etag(&st, etag);
    if (strcmp(etag, f->etag) != 0)
        return error_set(err, LEAT_STALE, "%.300s: the object changed while it was read: its ETag was %s",
                         f->uri, f->etag);
    return 0;
}

static int64_t dir_pread(struct backend *base, struct backend_file *file, void *dst, uint64_t bytes,
                         uint64_t offset, struct leat_error *err)
{
    struct dir *d = dir_of(base);
    struct file *f = file_of(file);
    uint64_t got = 0;
    bytes = offset < f->bytes ? MIN(bytes, f->bytes - offset) : 0;
    d->stats.requests++;
    while (got < bytes) {
        if (dir_cancelled(d))
            return error_set(err, -ECANCELED, "cancelled");
        ssize_t n = pread(f->fd, (char *)dst + got, MIN(bytes - got, BLOCK_BYTES), (off_t)(offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dir_error(err, -errno, "reading", f->uri);
        if (n == 0)
            break;
        got += (uint64_t)n;
    }
    int rc = file_check(f, err);
    if (rc == 0 && got < bytes)
        rc = error_set(err, LEAT_STALE, "%.300s: the object became shorter while it was read", f->uri);
    if (rc < 0)
        return rc;
    d->stats.bytes_in += got;
    return (int64_t)got;
}

/* --- reads ------------------------------------------------------------------------------------------------------------- */

/* All of its blocks have ended: done() is due. */
static void job_over(struct dir *d, struct job *job)
{
    struct backend_read *read = job->read;
    read->rc = job->rc;
    list_remove(&job->node);
    list_push_back(&d->ended, &read->node);
    free(job);
}

static void block_over(struct dir *d, struct dir_work *work)
{
    struct block *k = container_of(work, struct block, work);
    struct job *job = k->job;
    job->rc = job->rc < 0 ? job->rc : work->rc;
    if (--job->left == 0)
        job_over(d, job);
}

/* A thread's. */
static int block_read(struct dir *d, struct dir_work *work)
{
    struct block *k = container_of(work, struct block, work);
    int fd = file_of(k->job->read->file)->fd;
    uint64_t at = k->offset, end = k->offset + k->bytes;
    (void)d;
    while (at < end) {
        struct iovec iov[IOV_PIECES];
        size_t bytes;
        if (atomic_load(&k->job->over))
            return -ECANCELED;
        unsigned n = pieces_iov(k->place, end - at, iov, IOV_PIECES, &bytes);
        ssize_t got = preadv(fd, iov, (int)n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : LEAT_STALE;
        pieces_skip(&k->place, (uint64_t)got);
        at += (uint64_t)got;
    }
    return 0;
}

static void dir_submit(struct backend *base, struct backend_read *read)
{
    struct dir *d = dir_of(base);
    unsigned nblocks = (unsigned)div_up(read->bytes, BLOCK_BYTES);
    struct job *job = calloc(1, sizeof(*job) + nblocks * sizeof(job->blocks[0]));
    struct pieces place = backend_read_place(read);
    read->rc = job ? dir_threads(d) : -ENOMEM;
    read->why = NULL;
    d->npending++;
    d->stats.requests++;
    if (read->rc < 0) { /* it ends as all do, in wait() */
        free(job);
        list_push_back(&d->ended, &read->node);
        return;
    }
    job->read = read;
    job->left = nblocks;
    list_push_back(&d->jobs, &job->node);
    for (unsigned i = 0; i < nblocks; i++) {
        uint64_t at = i * BLOCK_BYTES, bytes = MIN(BLOCK_BYTES, read->bytes - at);
        job->blocks[i] = (struct block){.work = {.run = block_read, .over = block_over},
                                        .job = job,
                                        .place = place,
                                        .offset = read->offset + at,
                                        .bytes = bytes};
        pieces_skip(&place, bytes);
        dir_work_add(d, &job->blocks[i].work);
    }
}

/* --- operations -------------------------------------------------------------------------------------------------------- */

struct op {
    struct dir_work work;
    struct backend_op *op;
    struct leat_error err;
};

static int op_do(struct dir *d, const struct backend_op *op, struct leat_error *err)
{
    switch (op->kind) {
    case BACKEND_STAT:
        return dir_stat(d, op->uri, op->stat, err);
    case BACKEND_DELETE:
        return dir_delete(d, op->uri, err);
    case BACKEND_COPY:
        break;
    }
    return error_set(err, LEAT_UNSUPPORTED, "%.300s: nothing is copied there", op->from);
}

static int dir_op_run(struct backend *base, struct backend_op *op, struct leat_error *err)
{
    struct dir *d = dir_of(base);
    d->stats.requests++;
    return op_do(d, op, err);
}

static int op_work(struct dir *d, struct dir_work *work)
{
    struct op *o = container_of(work, struct op, work);
    if (o->op->deadline_ns && clock_now_ns() >= o->op->deadline_ns)
        return error_set(&o->err, LEAT_TIMED_OUT, "%.300s: its deadline passed before it was begun",
                         o->op->uri);
    return op_do(d, o->op, &o->err);
}

static void op_over(struct dir *d, struct dir_work *work)
{
    struct op *o = container_of(work, struct op, work);
    backend_op_ended(o->op, work->rc, &o->err, &d->ended_ops);
    free(o);
}

static void dir_op_submit(struct backend *base, struct backend_op *op)
{
    struct dir *d = dir_of(base);
    struct op *o = calloc(1, sizeof(*o));
    int rc = o ? dir_threads(d) : -ENOMEM;
    d->npending++;
    d->stats.requests++;
    if (rc < 0) {
        free(o);
        backend_op_ended(op, rc, &(struct leat_error){0}, &d->ended_ops);
        return;
    }
    *o = (struct op){.work = {.run = op_work, .over = op_over}, .op = op};
    op->work = o;
    dir_work_add(d, &o->work);
}

static void dir_op_cancel(struct backend *base, struct backend_op *op)
{
    struct dir *d = dir_of(base);
    while (op->work) /* what a thread is at cannot be taken back */
        dir_work_reap(d, -1);
    d->npending--;
}

/* --- what has ended ---------------------------------------------------------------------------------------------------- */

/* done() of it. How many. */
static unsigned deliver(struct dir *d)
{
    unsigned n = backend_ops_deliver(&d->ended_ops, &d->npending);
    struct backend_read *read;
    while ((read = list_first(&d->ended, struct backend_read, node))) {
        const struct file *f = file_of(read->file);
        struct leat_error err = {0};
        list_remove(&read->node);
        d->npending--;
        n++;
        if (read->rc == LEAT_STALE)
            error_set(&err, LEAT_STALE, "%.300s: the object became shorter while it was read", f->uri);
        else if (read->rc < 0)
            read->rc = dir_error(&err, read->rc, "reading", f->uri);
        else
            read->rc = file_check(f, &err);
        if (read->rc == 0)
            d->stats.bytes_in += read->bytes;
        read->done(read, read->rc, read->rc < 0 ? &err : NULL);
    }
    return n;
}

static int dir_wait(struct backend *base, unsigned min_done, int timeout_ms)
{
    struct dir *d = dir_of(base);
    uint64_t end = timeout_ms < 0 ? 0 : clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    unsigned n = 0;
    for (;;) {
        dir_work_reap(d, 0);
        n += deliver(d);
        bool woken = atomic_exchange(&d->woken, false);
        int ms = clock_poll_ms(end);
        if (d->npending == 0 || n >= min_done || woken || ms == 0)
            return (int)n;
        int rc = dir_work_reap(d, d->cancelled && (ms < 0 || ms > CANCEL_MS) ? CANCEL_MS : ms);
        if (rc < 0)
            return rc;
        if (dir_cancelled(d))
            return -ECANCELED;
    }
}

static void dir_wake(struct backend *base)
{
    struct dir *d = dir_of(base);
    atomic_store(&d->woken, true);
    dir_work_wake(d);
}

static void dir_cancel(struct backend *base, struct backend_read *read)
{
    struct dir *d = dir_of(base);
    for (bool found = true; found;) { /* what a thread is at cannot be taken back */
        found = false;
        list_for_each (node, &d->jobs) {
            struct job *job = container_of(node, struct job, node);
            if (job->read != read)
                continue;
            atomic_store(&job->over, true);
            found = true;
        }
        if (found)
            dir_work_reap(d, -1);
    }
    list_remove(&read->node);
    d->npending--;
}

/* --- the session ------------------------------------------------------------------------------------------------------- */

static void dir_stats(const struct backend *base, struct backend_stats *ret_stats)
{
    *ret_stats = container_of(base, const struct dir, base)->stats;
}

static void dir_free(struct backend *base)
{
    struct dir *d = dir_of(base);
    dir_threads_end(d); /* ends what is under way */
    deliver(d);
    if (d->root >= 0)
        close(d->root);
    free(d->folder);
    free(d);
}

static const struct backend_ops dir_ops = {
    .name = "dir",
    .list = dir_list,
    .op_submit = dir_op_submit,
    .op_cancel = dir_op_cancel,
    .op_run = dir_op_run,
    .open = dir_open,
    .close = dir_close,
    .submit = dir_submit,
    .cancel = dir_cancel,
    .wait = dir_wait,
    .wake = dir_wake,
    .pread = dir_pread,
    .put = dir_put,
    .stats = dir_stats,
    .free = dir_free,
};

/* "file:///srv/my%20data" to a path, RFC 8089. */
static int folder_path(const char *folder, char **ret_path, struct leat_error *err)
{
    size_t len;
    if (strncasecmp(folder, "file:///", 8) != 0)
        return error_set(err, LEAT_INVALID, "\"%.300s\": a folder is given as file:///PATH", folder);
    char *path = strdup(folder + strlen("file://"));
    if (!path)
        return -ENOMEM;
    if (!http_unescape(path, strlen(path), &len) || memchr(path, 0, len)) {
        free(path);
        return error_set(
            err, LEAT_INVALID,
            "\"%.300s\": in a file:// address, %% stands before two hexadecimal digits (%%25 is %%)", folder);
    }
    path[len] = 0;
    *ret_path = path;
    return 0;
}

int backend_dir_new(const struct backend_config *config, struct backend **ret_backend, struct leat_error *err)
{
    AUTO_FREE char *path = NULL;
    int rc = folder_path(config->folder, &path, err);
    if (rc < 0)
        return rc;
    struct dir *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    *d = (struct dir){.base = {&dir_ops}, .cancelled = config->cancelled};
    list_init(&d->jobs);
    list_init(&d->ended);
    list_init(&d->ended_ops);
    dir_threads_init(d);
    d->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = d->root < 0 ? error_sys(err, -errno, "the folder %.300s", path) : 0;
    if (rc == 0 && !(d->folder = strdup(config->folder)))
        rc = -ENOMEM;
    if (rc == 0 && (d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        rc = -errno;
    if (rc < 0) {
        dir_free(&d->base);
        return rc;
    }
    for (size_t n = strlen(d->folder); n > strlen("file://") && d->folder[n - 1] == '/'; n--)
        d->folder[n - 1] = 0;
    *ret_backend = &d->base;
    return 0;
}
