/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cp_get.c: objects into files of this machine, over one session on one thread.
 *
 * Happy path: a file is written under a hidden name beside its own (.leat-PID-N.tmp), in pieces that arrive in any order; when the last one is
 * there it gets the object's time, and takes its name in one step.
 * Failure modes: an object that fails, and what was under way at Ctrl-C, leave nothing. A link inside the target is not followed: a key
 * cannot lead out of it.
 * Invariants: pieces under way never hold more than MEMORY_MAX; an object that is under way has one of them at least, so files are few too.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "apps/leat/remote.h"
#include "base/fdio.h"

#define PIECE_BYTES (8 * MIB) /* what fits in one is checked against the server's checksum */
#define PIECES_MAX  128u
#define MEMORY_MAX  (128 * MIB)
#define STREAM_BYTES                                                                                         \
    (32 * MIB) /* of one read on the way to standard output: in blocks, over several connections */
#define ETAG_XATTR "user.leat.etag" /* where the file system has such: for --update */

struct cp_get {
    struct cp *cp;
    struct backend *b;
    const char *where; /* root, as it was given */
    int root;
    struct list pieces; /* under way */
    struct list idle;   /* buffers of PIECE_BYTES, kept */
    unsigned npieces, names;
    uint64_t memory;
};

struct file {
    struct cp_get *get;
    struct backend_file *remote;
    int folder, fd;
    const char *last; /* of name */
    char *name, etag[BACKEND_ETAG_MAX], temp[64];
    uint64_t bytes, next, done;
    int64_t modified;
    unsigned inside;
    int rc;
};

struct piece {
    struct list node;
    struct backend_read read;
    struct file *file;
    uint64_t cap;
    char buf[];
};

bool cp_name_ok(const char *name)
{
    if (!*name || *name == '/')
        return false;
    for (const char *at = name;;) {
        size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.') || n > 255)
            return false;
        if (!at[n])
            return true;
        at += n + 1;
    }
}

/* -errno with the path as the user would write it. */
static int error_at(const struct cp_get *get, int rc, const char *what, const char *name,
                    struct leat_error *err)
{
    bool here = strcmp(get->where, ".") == 0;
    size_t len = strlen(get->where);
    return error_sys(err, rc, "%s%s%s%s", what, here ? "" : get->where,
                     here || get->where[len - 1] == '/' ? "" : "/", name);
}

/* --- one file ---------------------------------------------------------------------------------------------------------- */

static void file_free(struct file *f)
{
    backend_close(f->remote);
    if (f->fd >= 0) {
        close(f->fd);
        unlinkat(f->folder, f->temp, 0);
    }
    if (f->folder >= 0)
        close(f->folder);
    free(f->name);
    free(f);
}

/* All of it is here, or it failed. */
static void file_end(struct file *f)
{
    struct cp *cp = f->get->cp;
    struct leat_error err;
    if (f->rc == 0) {
        struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)f->modified}};
        if (f->etag[0])
            (void)!fsetxattr(f->fd, ETAG_XATTR, f->etag, strlen(f->etag), 0);
        if (f->modified > 0)
            (void)!futimens(f->fd, times);
        if (renameat(f->folder, f->temp, f->folder, f->last) < 0) {
            cp_failed(cp, f->rc = error_at(f->get, -errno, "", f->name, &err), true, &err);
        } else {
            close(TAKE_FD(f->fd));
            cp->files++;
            cp->bytes += f->bytes;
        }
    }
    if (f->rc < 0) /* as if it had never been planned */
        cp->bytes_done -= f->done;
    file_free(f);
}

static void piece_free(struct cp_get *get, struct piece *p)
{
    list_remove(&p->node);
    get->npieces--;
    get->memory -= p->cap;
    if (p->cap == PIECE_BYTES)
        list_push_back(&get->idle, &p->node);
    else
        free(p);
}

static void piece_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct piece *p = container_of(read, struct piece, read);
    struct file *f = p->file;
    struct cp_get *get = f->get;
    struct leat_error local;
    if (rc == 0 && f->rc == 0) {
        rc = fd_write_at(f->fd, p->buf, read->bytes, read->offset);
        if (rc < 0) {
            error_at(get, rc, "writing ", f->name, &local);
            err = &local;
        }
        f->done += read->bytes;
        get->cp->bytes_done += read->bytes;
    }
    if (rc < 0 && f->rc == 0) {
        f->rc = rc;
        if (rc != -ECANCELED)
            cp_failed(get->cp, rc, err == &local, err);
    }
    piece_free(get, p);
    if (--f->inside == 0 && (f->rc < 0 || f->next == f->bytes))
        file_end(f);
}

/* --- where it goes ----------------------------------------------------------------------------------------------------- */

/* The folder of root/name, made where it is missing; no link on the way is followed. */
static int open_folder(const struct cp_get *get, const char *name, const char **ret_last, int *ret_folder,
                       struct leat_error *err)
{
    AUTO_CLOSE int at = fcntl(get->root, F_DUPFD_CLOEXEC, 0);
    const char *whole = name;
    char part[256];
    if (at < 0)
        return error_at(get, -errno, "", whole, err);
    for (const char *slash; (slash = strchr(name, '/')); name = slash + 1) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - name), name);
        if (mkdirat(at, part, 0777) < 0 && errno != EEXIST)
            return error_at(get, -errno, "", whole, err);
        int next = openat(at, part, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_PATH);
        if (next < 0) {
            int rc = -errno;
            return rc == -ELOOP || rc == -ENOTDIR
                       ? error_set(err, LEAT_INVALID,
                                   "%s: a link or a file stands where a folder is wanted; links inside the "
                                   "target are not followed",
                                   part)
                       : error_at(get, rc, "", whole, err);
        }
        close(at);
        at = next;
    }
    *ret_last = name;
    *ret_folder = TAKE_FD(at);
    return 0;
}

static bool is_same(int folder, const char *name, const struct backend_object *o)
{
    struct stat st;
    char path[300], etag[BACKEND_ETAG_MAX];
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size != o->bytes)
        return false;
    snprintf(path, sizeof(path), "/proc/self/fd/%d/", folder);
    size_t at = strlen(path);
    ssize_t n = -1;
    if (at + strlen(name) < sizeof(path)) {
        strcpy(path + at, name);
        n = lgetxattr(path, ETAG_XATTR, etag, sizeof(etag));
    }
    if (n > 0 && *o->etag && ((size_t)n != strlen(o->etag) || memcmp(etag, o->etag, (size_t)n) != 0))
        return false;
    return o->modified > 0 ? st.st_mtime == o->modified : n > 0 && *o->etag != 0;
}

static int file_open(struct cp_get *get, const struct backend_object *o, const char *name,
                     struct file **ret_file, bool *ret_same, struct leat_error *err)
{
    struct file *f = calloc(1, sizeof(*f));
    const char *last = "";
    struct stat st;
    if (!f)
        return -ENOMEM;
    *f = (struct file){.get = get, .folder = -1, .fd = -1, .bytes = o->bytes, .modified = o->modified};
    snprintf(f->etag, sizeof(f->etag), "%s", o->etag);
    int rc = open_folder(get, name, &last, &f->folder, err);
    *ret_same = rc == 0 && get->cp->update && is_same(f->folder, last, o);
    if (rc == 0 && !*ret_same) {
        rc = (f->name = strdup(name)) ? 0 : -ENOMEM;
        f->last = f->name ? f->name + (last - name) : NULL;
        if (rc == 0 && fstatat(f->folder, last, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
            rc = error_set(err, LEAT_INVALID, "%s: a folder of this name is there", name);
        if (rc == 0)
            rc = backend_open(get->b, o->uri, o->etag, o->bytes, &f->remote, err);
        if (rc == 0) {
            backend_expect_all(f->remote);
            snprintf(f->temp, sizeof(f->temp), ".leat-%d-%u.tmp", (int)getpid(), get->names++);
            f->fd = openat(f->folder, f->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
            rc = f->fd < 0 ? error_at(get, -errno, "", name, err) : 0;
        }
    }
    if (rc < 0 || *ret_same) {
        file_free(f);
        return rc;
    }
    *ret_file = f;
    return 0;
}

/* --- the session ------------------------------------------------------------------------------------------------------- */

int cp_get_begin(struct cp *cp, const char *folder, struct cp_get **ret_get, struct leat_error *err)
{
    struct cp_get *get = calloc(1, sizeof(*get));
    if (!get)
        return -ENOMEM;
    get->cp = cp;
    get->where = folder;
    list_init(&get->pieces);
    list_init(&get->idle);
    get->root = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = get->root < 0 ? error_sys(err, -errno, "%s", folder) : backend_new(&cp->config, &get->b, err);
    if (rc < 0) {
        cp_get_end(get, false);
        return rc;
    }
    *ret_get = get;
    return 0;
}

struct backend *cp_get_session(struct cp_get *get)
{
    return get->b;
}

static struct piece *piece_new(struct cp_get *get, struct file *f, uint64_t bytes)
{
    struct piece *p = NULL;
    uint64_t cap = bytes > 256 * KIB ? PIECE_BYTES : bytes;
    if (cap == PIECE_BYTES && (p = list_first(&get->idle, struct piece, node)))
        list_remove(&p->node);
    else
        p = malloc(sizeof(*p) + cap);
    if (!p)
        return NULL;
    list_init(&p->node);
    list_push_back(&get->pieces, &p->node);
    p->cap = cap;
    p->file = f;
    p->read = (struct backend_read){
        .file = f->remote, .offset = f->next, .bytes = bytes, .dst = p->buf, .done = piece_done};
    get->npieces++;
    get->memory += cap;
    return p;
}

/* Until there is room for another piece. */
static int wait_for_room(struct cp_get *get)
{
    int rc = cp_progress(get->cp);
    while (rc == 0 && (get->npieces >= PIECES_MAX || get->memory + PIECE_BYTES > MEMORY_MAX)) {
        rc = backend_wait(get->b, 1, 100);
        rc = rc < 0 ? rc : cp_progress(get->cp);
    }
    return rc;
}

int cp_get_add(struct cp_get *get, const struct backend_object *o, const char *name, struct leat_error *err)
{
    struct cp *cp = get->cp;
    struct file *f;
    struct leat_error local = {0};
    bool same = false;
    if (!cp_name_ok(name)) {
        error_set(&local, LEAT_INVALID,
                  "%.200s: its name cannot be a file's below the target (\"..\", \".\", empty or absolute)",
                  o->uri);
        cp_failed(cp, LEAT_INVALID, true, &local);
        return 0;
    }
    int rc = wait_for_room(get);
    if (rc < 0)
        return rc;
    rc = file_open(get, o, name, &f, &same, &local);
    if (rc < 0) { /* before any request */
        cp_failed(cp, rc, true, &local);
        return rc == -ENOMEM || rc == -ENOSPC || rc == -EMFILE ? rc : 0;
    }
    cp->skipped += same;
    if (same)
        return 0;
    cp->planned_files++;
    cp->planned_bytes += o->bytes;
    f->inside = 1; /* ours: it does not end while pieces are added */
    while (rc == 0 && f->rc == 0 && f->next < f->bytes) {
        rc = wait_for_room(get);
        struct piece *p = rc == 0 ? piece_new(get, f, MIN(PIECE_BYTES, f->bytes - f->next)) : NULL;
        if (rc == 0 && !p)
            rc = error_sys(err, -ENOMEM, "%s", name);
        if (rc == 0) {
            f->next += p->read.bytes;
            f->inside++;
            backend_submit(get->b, &p->read);
        }
    }
    if (rc < 0)
        f->rc = rc;
    if (--f->inside == 0)
        file_end(f);
    return rc;
}

void cp_get_end(struct cp_get *get, bool keep)
{
    struct piece *p;
    if (!get)
        return;
    while (keep && get->npieces) {
        int rc = backend_wait(get->b, 1, 100);
        if (rc < 0 || cp_progress(get->cp) < 0)
            break;
    }
    while ((p = list_first(&get->pieces, struct piece, node))) {
        backend_cancel(get->b, &p->read);
        piece_done(&p->read, -ECANCELED, NULL);
    }
    while ((p = list_first(&get->idle, struct piece, node))) {
        list_remove(&p->node);
        free(p);
    }
    backend_free(get->b);
    if (get->root >= 0)
        close(get->root);
    free(get);
}

/* --- to standard output ------------------------------------------------------------------------------------------------ */

/* A closed pipe ends us as it ends cat; a connection that breaks must not. */
static bool print_all(const char *buf, size_t bytes)
{
    signal(SIGPIPE, SIG_DFL);
    bool ok = fwrite(buf, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    signal(SIGPIPE, SIG_IGN);
    return ok;
}

int cp_get_print(struct cp *cp, struct backend *b, const struct backend_object *o, struct leat_error *err)
{
    AUTO_FREE char *buf = malloc(STREAM_BYTES);
    struct backend_file *remote = NULL;
    int rc = buf ? backend_open(b, o->uri, o->etag, o->bytes, &remote, err) : -ENOMEM;
    if (rc == 0)
        backend_expect_all(remote);
    for (uint64_t at = 0; rc == 0 && at < o->bytes;) {
        int64_t n = backend_pread(b, remote, buf, MIN(STREAM_BYTES, o->bytes - at), at, err);
        if (n <= 0)
            rc = n < 0 ? (int)n : error_set(err, LEAT_STALE, "%.300s: it became shorter", o->uri);
        else if (!print_all(buf, (size_t)n))
            rc = error_sys(err, -errno, "standard output");
        else
            rc = cp_progress(cp);
        at += n > 0 ? (uint64_t)n : 0;
        cp->bytes_done = cp->bytes = at;
    }
    backend_close(remote);
    return rc;
}
