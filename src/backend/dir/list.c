/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c: a folder's files in the order of their keys, which is that of their bytes: a folder "a" is sorted as "a/", behind "a.b".
 *
 * Happy path: a folder is read whole and sorted; its files are handed on, its folders are gone into where they stand.
 * Failure modes: what is gone when its turn comes is left out, as if it had gone a moment earlier; a folder that may not be read ends the list.
 * Invariants: no more than two descriptors are open, however deep it goes; names of the folders on the way from the root are in memory,
 * no others.
 */
#include "backend/dir/dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

#include "base/log.h"

struct level {
    char **names; /* a folder's with "/" at its end */
    size_t n, cap, at;
    size_t path_len; /* of walk.key: the folder's, with its "/" */
};

struct walk {
    struct dir *d;
    const char *prefix; /* of the keys wanted */
    const char *after;  /* and greater than this one */
    bool recursive;
    int (*object)(void *user, const struct backend_object *object);
    void *user;
    char *uri;  /* folder, "/", key: room for the longest */
    char *key;  /* inside of uri */
    int folder; /* of the level that is being handed on, or -1: to be opened */
    struct level *levels;
    size_t nlevels, cap;
    bool told;    /* that some keys are too long */
    bool refused; /* the callback ends it */
};

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void level_fini(struct level *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->names[i]);
    free(l->names);
}

static int level_add(struct level *l, const char *name, bool folder)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        char **more = realloc(l->names, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        l->names = more;
        l->cap = cap;
    }
    char *copy = NULL;
    if (asprintf(&copy, "%s%s", name, folder ? "/" : "") < 0)
        return -ENOMEM;
    l->names[l->n++] = copy;
    return 0;
}

/* Could a key that begins with [key's first `at` bytes][name] be one of those wanted? */
static bool wanted(const struct walk *w, size_t at, const char *name)
{
    size_t n = strlen(w->prefix);
    if (at >= n)
        return true;
    size_t rest = n - at, len = strlen(name);
    return memcmp(w->prefix + at, name, MIN(rest, len)) == 0 &&
           (len >= rest || (name[len - 1] == '/' && len < rest));
}

/* Reads the folder that w->folder is, whose key is the first path_len bytes of w->key. */
static int level_read(struct walk *w, size_t path_len, struct level *ret_level)
{
    struct level l = {.path_len = path_len};
    int rc = 0, fd = openat(w->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    struct dirent *e;
    struct stat st;
    while (rc == 0 && (errno = 0, e = readdir(stream))) {
        unsigned char type = e->d_type;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            strncmp(e->d_name, DIR_TEMP, strlen(DIR_TEMP)) == 0)
            continue;
        if (type == DT_UNKNOWN && fstatat(w->folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            type = S_ISREG(st.st_mode) ? DT_REG : S_ISDIR(st.st_mode) ? DT_DIR : DT_UNKNOWN;
        if (type != DT_REG && type != DT_DIR)
            continue;
        if (path_len + strlen(e->d_name) + (type == DT_DIR) > S3_KEY_MAX) {
            if (!w->told)
                log_warning_limited("%s/%.*s%.60s...: longer than a key can be: left out, as all that are",
                                    w->d->folder, (int)MIN(path_len, (size_t)100), w->key, e->d_name);
            w->told = true;
            continue;
        }
        rc = level_add(&l, e->d_name, type == DT_DIR);
        if (rc == 0 && !wanted(w, path_len, l.names[l.n - 1]))
            free(l.names[--l.n]);
    }
    if (rc == 0 && errno)
        rc = -errno;
    closedir(stream);
    if (rc < 0) {
        level_fini(&l);
        return rc;
    }
    if (l.n)
        qsort(l.names, l.n, sizeof(l.names[0]), by_bytes);
    *ret_level = l;
    return 0;
}

/* Goes into the folder w->key[0, len), which ends in "/" or is the root. -ENOENT: there is none (any more). */
static int enter(struct walk *w, size_t len)
{
    const char *last;
    int folder;
    w->key[len] = 0;
    int rc = dir_walk(w->d, w->key, false, &folder, &last);
    if (rc < 0)
        return rc == -ENOTDIR || rc == -ELOOP ? -ENOENT : rc;
    if (w->folder >= 0)
        close(w->folder);
    w->folder = folder;
    if (w->nlevels == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 16;
        struct level *more = realloc(w->levels, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        w->levels = more;
        w->cap = cap;
    }
    rc = level_read(w, len, &w->levels[w->nlevels]);
    if (rc == 0)
        w->nlevels++;
    return rc;
}

static void leave(struct walk *w)
{
    level_fini(&w->levels[--w->nlevels]);
    if (w->folder >= 0)
        close(w->folder);
    w->folder = -1;
}

static int emit(struct walk *w, struct level *l, const char *name)
{
    size_t prefix_len = strlen(w->prefix), len = strlen(name);
    struct backend_object o = {.uri = w->uri, .name = w->key + prefix_len, .etag = ""};
    char etag[BACKEND_ETAG_MAX];
    struct stat st;
    memcpy(w->key + l->path_len, name, len + 1);
    if (strcmp(w->key, w->after) <= 0)
        return 0;
    o.prefix = name[len - 1] == '/';
    if (!o.prefix) {
        if (fstatat(w->folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return errno == ENOENT ? 0 : -errno;
        if (!S_ISREG(st.st_mode))
            return 0;
        dir_etag(&st, etag);
        o.bytes = (uint64_t)st.st_size;
        o.etag = etag;
        o.modified = st.st_mtim.tv_sec;
    }
    int rc = w->object(w->user, &o);
    w->refused = rc < 0;
    return MIN(rc, 0);
}

/* The next entry of the innermost folder, or out of it. */
static int step(struct walk *w)
{
    struct level *l = &w->levels[w->nlevels - 1];
    if (l->at == l->n) {
        leave(w);
        return 0;
    }
    if (w->folder < 0) {
        const char *last;
        w->key[l->path_len] = 0;
        int rc = dir_walk(w->d, w->key, false, &w->folder, &last);
        if (rc < 0) {
            l->at = l->n;
            return rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP ? 0 : rc;
        }
    }
    const char *name = l->names[l->at++];
    size_t len = strlen(name), path_len = l->path_len;
    bool folder = name[len - 1] == '/';
    /* A folder that is only a part of the prefix is no answer: what is wanted is inside. */
    if (!folder || (!w->recursive && path_len + len > strlen(w->prefix)))
        return emit(w, l, name);
    memcpy(w->key + path_len, name, len + 1);
    if (strncmp(w->key, w->after, path_len + len) < 0)
        return 0; /* all that is in it comes before */
    int rc = enter(w, path_len + len);
    return rc == -ENOENT ? 0 : rc;
}

int dir_list(struct backend *base, const char *uri, bool recursive, const char *after,
             int (*object)(void *user, const struct backend_object *object), void *user,
             struct leat_error *err)
{
    struct walk w = {.d = dir_of(base),
                     .recursive = recursive,
                     .after = after ? after : "",
                     .object = object,
                     .user = user,
                     .folder = -1};
    int rc = dir_key(w.d, uri, &w.prefix, err);
    if (rc == 0)
        rc = dir_gone(w.d, err);
    if (rc < 0)
        return rc;
    size_t n = strlen(w.d->folder), len = strlen(w.prefix);
    w.d->stats.requests++;
    while (len && w.prefix[len - 1] != '/') /* the folder to begin in */
        len--;
    AUTO_FREE char *first = strndup(w.prefix, len ? len - 1 : 0);
    w.uri = malloc(n + 1 + S3_KEY_MAX + NAME_MAX + 2);
    if (!first || !w.uri)
        rc = -ENOMEM;
    else if (strlen(w.prefix) > S3_KEY_MAX || (*first ? dir_key_wrong(first) != NULL : len > 0))
        goto out; /* no file has such a name */
    if (rc == 0) {
        sprintf(w.uri, "%s/", w.d->folder);
        w.key = w.uri + n + 1;
        memcpy(w.key, w.prefix, len);
        rc = enter(&w, len);
        rc = rc == -ENOENT ? 0 : rc;
    }
    while (rc == 0 && w.nlevels)
        rc = dir_cancelled(w.d) ? -ECANCELED : step(&w);
    if (rc == -ECANCELED && !w.refused)
        error_set(err, rc, "cancelled");
    else if (rc < 0 && !w.refused)
        rc = dir_error(err, rc, "listing", uri);
out:
    while (w.nlevels)
        leave(&w);
    if (w.folder >= 0)
        close(w.folder);
    free(w.levels);
    free(w.uri);
    return rc;
}
