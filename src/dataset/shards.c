/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.c: the files of a pattern. Braces first ("{000..017}", "{a,b}"), anywhere and several times, then
 * wildcards in the last component. A brace that is neither range nor list stands for itself, as in a shell.
 *
 * And which folders hold shards, not a tree: those where all files are .tar, or lie beside them
 * (docs/decisions/0138). The first file that is neither ends the search: of a tree one chain of folders is
 * read, down to a first file.
 *
 * Failure modes: LEAT_NOT_FOUND when a wildcard meets nothing; LEAT_INVALID past 1,000,000 files.
 */
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>

#include "dataset/scan.h"

#define SHARDS_MAX       1000000u
#define SHARDS_BYTES_MAX (256 * MIB) /* of all paths together */
#define POLL_ENTRIES     4096u

void scan_paths_fini(struct scan_paths *paths)
{
    for (unsigned i = 0; i < paths->n; i++)
        free(paths->items[i]);
    free(paths->items);
    *paths = (struct scan_paths){0};
}

int scan_paths_add(struct scan_paths *paths, const char *path)
{
    size_t len = strlen(path) + 1;
    if (paths->n >= SHARDS_MAX || len > SHARDS_BYTES_MAX - paths->bytes)
        return -E2BIG;
    if ((paths->n & (paths->n - 1)) == 0) { /* full at every power of two */
        char **items = realloc(paths->items, (paths->n ? paths->n * 2 : 1) * sizeof(*items));
        if (!items)
            return -ENOMEM;
        paths->items = items;
    }
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    paths->items[paths->n++] = copy;
    paths->bytes += len;
    return 0;
}

/* The last one; the caller frees it. */
static char *take_last(struct scan_paths *paths)
{
    char *path = paths->items[--paths->n];
    paths->bytes -= strlen(path) + 1;
    return path;
}

bool shards_is_pattern(const char *path)
{
    /* In an address of the web "?" begins a query, "[" an IPv6 host, and "*" is a character as others. */
    bool web = dataset_is_remote(path) && !dataset_has_lists(path);
    return strpbrk(path, web ? "{" : "{*?[") != NULL;
}

int shards_compare(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

/* The first "{...}" that is a range or a list: its inside. */
static bool find_brace(const char *s, const char **ret_open, const char **ret_close)
{
    for (const char *open = strchr(s, '{'); open; open = strchr(open + 1, '{')) {
        const char *close = strpbrk(open + 1, "{}");
        if (close && *close == '}' &&
            (memmem(open, (size_t)(close - open), "..", 2) || memchr(open, ',', (size_t)(close - open)))) {
            *ret_open = open;
            *ret_close = close;
            return true;
        }
    }
    return false;
}

static bool all_digits(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (s[i] < '0' || s[i] > '9')
            return false;
    return len > 0 && len < 10;
}

/* Puts `middle` in the place of the brace. */
static int add_joined(struct scan_paths *out, const char *s, const char *open, const char *close,
                      const char *middle, size_t middle_len)
{
    AUTO_FREE char *joined = NULL;
    if (asprintf(&joined, "%.*s%.*s%s", (int)(open - s), s, (int)middle_len, middle, close + 1) < 0)
        return -ENOMEM;
    return scan_paths_add(out, joined);
}

static int expand_range(struct scan_paths *out, const char *s, const char *open, const char *close)
{
    const char *a = open + 1, *dots = memmem(a, (size_t)(close - a), "..", 2);
    const char *b = dots + 2;
    size_t alen = (size_t)(dots - a), blen = (size_t)(close - b);
    if (!all_digits(a, alen) || !all_digits(b, blen))
        return -EINVAL;
    unsigned long from = strtoul(a, NULL, 10), to = strtoul(b, NULL, 10);
    /* As in bash: a leading zero asks for numbers of equal width. */
    int width = (alen > 1 && *a == '0') || (blen > 1 && *b == '0') ? (int)MAX(alen, blen) : 1;
    for (unsigned long n = from;; n += from <= to ? 1 : -1ul) {
        char text[24];
        int len = snprintf(text, sizeof(text), "%0*lu", width, n);
        int rc = add_joined(out, s, open, close, text, (size_t)len);
        if (rc < 0 || n == to)
            return rc;
    }
}

static int expand_list(struct scan_paths *out, const char *s, const char *open, const char *close)
{
    for (const char *p = open + 1; p <= close;) {
        size_t len = strcspn(p, ",}");
        int rc = add_joined(out, s, open, close, p, len);
        if (rc < 0)
            return rc;
        p += len + 1;
    }
    return 0;
}

/* One brace a round, over all that is there, until none is left. */
static int expand_braces(const char *pattern, struct scan_paths *ret)
{
    struct scan_paths now = {0};
    int rc = scan_paths_add(&now, pattern);
    for (bool again = rc == 0; again && rc == 0;) {
        struct scan_paths next = {0};
        again = false;
        for (unsigned i = 0; i < now.n && rc == 0; i++) {
            const char *open, *close;
            if (!find_brace(now.items[i], &open, &close)) {
                rc = scan_paths_add(&next, now.items[i]);
                continue;
            }
            again = true;
            bool range =
                memmem(open, (size_t)(close - open), "..", 2) && !memchr(open, ',', (size_t)(close - open));
            rc = range ? expand_range(&next, now.items[i], open, close)
                       : expand_list(&next, now.items[i], open, close);
        }
        scan_paths_fini(&now);
        now = next;
    }
    if (rc < 0)
        scan_paths_fini(&now);
    *ret = now;
    return rc;
}

/* NULL at the end, or with *rc an error: a folder that cannot be read to its end is no shorter set. */
static struct dirent *next_entry(DIR *dir, const char *path, int *rc, struct leat_error *err)
{
    errno = 0;
    struct dirent *d = readdir(dir);
    if (!d && errno)
        *rc = scan_error(-errno, path, err);
    return d;
}

static int expand_wildcard(struct scan *scan, const char *pattern, struct scan_paths *out,
                           struct leat_error *err)
{
    const char *slash = strrchr(pattern, '/');
    AUTO_FREE char *folder =
        slash ? strndup(pattern, (size_t)MAX(slash - pattern, (ptrdiff_t)1)) : strdup(".");
    const char *name = slash ? slash + 1 : pattern;
    if (!folder)
        return -ENOMEM;
    if (strpbrk(folder, "*?["))
        return error_set(err, LEAT_INVALID,
                         "%s: wildcards may stand in the file name only, not in a folder's", pattern);
    unsigned before = out->n;
    if (dataset_is_remote(pattern)) {
        int rc = remote_wildcard(scan, pattern, out, err);
        return rc == 0 && out->n == before
                   ? error_set(err, LEAT_NOT_FOUND, "%s: no object matches this pattern", pattern)
                   : rc;
    }
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    int rc = scan_open(scan, folder, &file, err);
    if (rc < 0)
        return rc;
    DIR *dir = fdopendir(file.fd);
    if (!dir)
        return scan_error(-errno, folder, err);
    file.fd = -1;
    for (struct dirent *d; rc == 0 && (d = next_entry(dir, folder, &rc, err));) {
        if (d->d_name[0] == '.' || fnmatch(name, d->d_name, FNM_PERIOD))
            continue;
        AUTO_FREE char *full = NULL;
        if (asprintf(&full, "%s/%s", strcmp(folder, "/") ? folder : "", d->d_name) < 0)
            rc = -ENOMEM;
        else
            rc = scan_paths_add(out, full);
    }
    closedir(dir);
    if (rc == 0 && out->n == before)
        return error_set(err, LEAT_NOT_FOUND, "%s: no file matches this pattern", pattern);
    if (rc == 0)
        qsort(out->items + before, out->n - before, sizeof(*out->items), shards_compare);
    return rc;
}

int shards_expand(struct scan *scan, const char *pattern, struct scan_paths *ret_paths,
                  struct leat_error *err)
{
    struct scan_paths plain = {0}, out = {0};
    int rc = expand_braces(pattern, &plain);
    if (rc == -EINVAL)
        return error_set(err, LEAT_INVALID, "%s: the range in braces is not of the form {000..017}", pattern);
    if (rc == 0 && dataset_is_remote(pattern))
        rc = remote_learn(scan, pattern, &plain);
    for (unsigned i = 0; i < plain.n && rc == 0; i++)
        rc = strpbrk(plain.items[i], "*?[") && shards_is_pattern(plain.items[i])
                 ? expand_wildcard(scan, plain.items[i], &out, err)
                 : scan_paths_add(&out, plain.items[i]);
    scan_paths_fini(&plain);
    if (rc < 0)
        scan_paths_fini(&out);
    if (rc == -E2BIG)
        return error_set(err, LEAT_INVALID,
                         "%.300s: it means more than %u files, or paths of more than 256 MiB", pattern,
                         SHARDS_MAX);
    if (rc == 0)
        *ret_paths = out;
    return rc;
}

/* --- a folder of shards ------------------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *end)
{
    size_t len = strlen(s), end_len = strlen(end);
    return len > end_len && !strcmp(s + len - end_len, end);
}

bool shards_beside(const char *name)
{
    return ends_with(name, ".leat-index") || ends_with(name, ".idx") || ends_with(name, ".json");
}

bool shards_is_one(const char *name)
{
    return ends_with(name, ".tar");
}

struct look {
    struct scan_paths shards, folders;
    uint64_t entries;
    bool tree; /* some file is neither a shard nor beside one */
};

/* A link to a folder is none: it counts by its name, as a file does. */
static bool is_folder(DIR *dir, const struct dirent *d)
{
    struct stat st;
    if (d->d_type != DT_UNKNOWN)
        return d->d_type == DT_DIR;
    return fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int look_at(struct look *look, const char *path, DIR *dir, const struct dirent *d)
{
    bool folder = is_folder(dir, d), shard = !folder && shards_is_one(d->d_name);
    AUTO_FREE char *full = NULL;
    look->tree = !folder && !shard && !shards_beside(d->d_name);
    if (!folder && !shard)
        return 0;
    if (asprintf(&full, "%s/%s", strcmp(path, "/") ? path : "", d->d_name) < 0) {
        full = NULL;
        return -ENOMEM;
    }
    int rc = scan_paths_add(folder ? &look->folders : &look->shards, full);
    look->tree = folder && rc == -E2BIG;
    return look->tree ? 0 : rc;
}

static int look_into(struct scan *scan, struct look *look, const char *path, int fd, struct leat_error *err)
{
    AUTO_CLOSE int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (!dir)
        return scan_error(-errno, path, err);
    again = -1;
    int rc = 0;
    for (struct dirent *d; rc == 0 && !look->tree && (d = next_entry(dir, path, &rc, err));) {
        if (d->d_name[0] != '.')
            rc = look_at(look, path, dir, d);
        if (rc == 0 && ++look->entries % POLL_ENTRIES == 0)
            rc = scan_poll(scan, err);
    }
    closedir(dir);
    return rc;
}

/* A folder that is gone holds nothing; the walk of the tree reports one that may not be read. */
static int look_below(struct scan *scan, struct look *look, const char *path, struct leat_error *err)
{
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    struct leat_error why = {0};
    int rc = scan_open(scan, path, &file, &why);
    if (rc == 0)
        rc = look_into(scan, look, path, file.fd, &why);
    if (rc == 0)
        return look->tree ? 0 : scan_poll(scan, err);
    look->tree = rc == LEAT_DENIED;
    if (rc == LEAT_NOT_FOUND || rc == LEAT_DENIED)
        return 0;
    if (err)
        *err = why;
    return rc;
}

int shards_in_directory(struct scan *scan, const char *path, int fd, struct scan_paths *ret_paths,
                        struct leat_error *err)
{
    struct look look = {0};
    int rc = look_into(scan, &look, path, fd, err);
    while (look.folders.n && !look.tree && rc == 0) {
        AUTO_FREE char *last = take_last(&look.folders); /* depth first, so that few folders lead to a file */
        rc = look_below(scan, &look, last, err);
    }
    scan_paths_fini(&look.folders);
    if (rc == -E2BIG)
        rc = error_set(err, LEAT_INVALID, "%.300s: more than %u shards, or paths of more than 256 MiB", path,
                       SHARDS_MAX);
    if (rc < 0 || look.tree || look.shards.n == 0) {
        scan_paths_fini(&look.shards);
        return rc;
    }
    qsort(look.shards.items, look.shards.n, sizeof(*look.shards.items), shards_compare);
    *ret_paths = look.shards;
    return 1;
}
