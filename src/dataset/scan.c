/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: shared by the formats: opening, reading, messages, progress. */
#include "dataset/scan.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>

#include "base/fdio.h"
#include "base/utf8.h"

#define TICK_SAMPLES  4096
#define SETTLE_ROUNDS 5

void scan_escape(const char *s, char *out, size_t cap)
{
    bool utf8 = utf8_valid(s);
    size_t used = 0;
    for (; *s && used + 8 < cap; s++) {
        if ((uint8_t)*s < 0x20 || *s == 0x7f || ((uint8_t)*s >= 0x80 && !utf8))
            used += (size_t)snprintf(out + used, cap - used, "\\x%02x", (uint8_t)*s);
        else
            out[used++] = *s;
    }
    while (*s && utf8 && used && ((uint8_t)*s & 0xc0) == 0x80)
        s--, used--; /* cut between characters, not inside of one */
    snprintf(out + used, cap - used, "%s", *s ? "..." : "");
}

int scan_fail(int rc, struct leat_error *err)
{
    if (err && rc < 0 && !utf8_valid(err->message)) {
        char raw[sizeof(err->message)];
        memcpy(raw, err->message, sizeof(raw));
        scan_escape(raw, err->message, sizeof(err->message));
    }
    return rc;
}

int scan_error(int rc, const char *path, struct leat_error *err)
{
    char shown[300];
    scan_escape(path, shown, sizeof(shown));
    switch (rc) {
    case -ENOENT:
    case -ENOTDIR:
        return error_set(
            err, LEAT_NOT_FOUND, "%s: there is no such file or directory%s", shown,
            strstr(path, "/~/") ? "; ~ is taken as it stands: os.path.expanduser() knows your home" : "");
    case -EACCES:
    case -EPERM:
        return error_set(err, LEAT_DENIED,
                         "%s: it may not be read by this user; check the permissions of it and of the "
                         "folders above it",
                         shown);
    case -EXDEV:
        return error_set(
            err, LEAT_DENIED,
            "%s: a symbolic link in it is absolute, or leads out of the folders that this daemon "
            "reads; only relative links that stay below one of its roots are followed: make it "
            "one, or mount or copy its target there",
            shown);
    case -ELOOP:
        return error_set(err, LEAT_INVALID,
                         "%s: a symbolic link that leads to itself, or that is not allowed here", shown);
    default:
        return error_sys(err, rc, "%s", shown);
    }
}

void scan_close(struct scan_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    if (file->handle)
        file->opener->remote->close(file->opener->remote_user, file->handle);
    free(file->uri);
    *file = (struct scan_file){.fd = -1};
}

static int open_remote(struct scan *scan, const char *uri, struct scan_file *ret_file, struct leat_error *err)
{
    struct dataset_stat st;
    struct leat_error why = {0};
    int rc = remote_stat(scan, uri, &st, &why);
    if (rc < 0 && (rc != LEAT_NOT_FOUND || !dataset_has_lists(uri))) {
        if (err)
            *err = why;
        return rc;
    }
    ret_file->opener = scan->opener;
    if (!(ret_file->uri = strdup(uri)))
        return -ENOMEM;
    if (rc == LEAT_NOT_FOUND) {
        ret_file->st.st_mode = S_IFDIR;
        return 0;
    }
    if (st.bytes > INT64_MAX)
        return error_set(err, LEAT_CORRUPT, "%.300s: the server gives it an impossible size", uri);
    ret_file->st.st_mode = S_IFREG;
    ret_file->st.st_size = (off_t)st.bytes;
    ret_file->st.st_mtim.tv_sec = st.modified;
    memcpy(ret_file->etag, st.etag, sizeof(st.etag));
    return 0;
}

int scan_open(struct scan *scan, const char *path, struct scan_file *ret_file, struct leat_error *err)
{
    int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    if (dataset_is_remote(path))
        return open_remote(scan, path, ret_file, err);
    if (scan->opener && scan->opener->open) {
        int rc = scan->opener->open(scan->opener->user, path, flags);
        if (rc < 0)
            return scan_error(rc, path, err);
        ret_file->fd = rc;
    } else {
        ret_file->fd = open(path, flags);
        if (ret_file->fd < 0)
            return scan_error(-errno, path, err);
    }
    if (fstat(ret_file->fd, &ret_file->st) < 0)
        return scan_error(-errno, path, err);
    if (!S_ISREG(ret_file->st.st_mode) && !S_ISDIR(ret_file->st.st_mode)) {
        char shown[300];
        scan_escape(path, shown, sizeof(shown));
        return error_set(err, LEAT_INVALID, "%s: neither a file nor a directory", shown);
    }
    return 0;
}

int scan_handle(struct scan_file *f, struct leat_error *err)
{
    if (f->handle)
        return 0;
    return f->opener->remote->open(f->opener->remote_user, f->uri, f->etag, (uint64_t)f->st.st_size,
                                   &f->handle, err);
}

int64_t scan_file_pread(struct scan_file *f, void *buf, uint64_t bytes, uint64_t offset,
                        struct leat_error *err)
{
    if (f->fd >= 0) {
        int64_t n = fd_read_at(f->fd, buf, bytes, offset);
        return n < 0 ? error_sys(err, (int)n, "it cannot be read") : n;
    }
    uint64_t size = (uint64_t)f->st.st_size;
    void *read;
    if (offset >= size || bytes == 0)
        return 0;
    bytes = MIN(bytes, size - offset);
    const struct dataset_remote *remote = f->opener->remote;
    int rc = scan_handle(f, err);
    if (rc == 0)
        rc = remote->begin(f->opener->remote_user, f->handle, buf, bytes, offset, &read, err);
    if (rc == 0)
        rc = remote->end(f->opener->remote_user, read, err);
    return rc < 0 ? rc : (int64_t)bytes;
}

void scan_wait_tick(void)
{
    struct timespec left = {.tv_nsec = SCAN_TICK_NS};
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

int scan_stat_folder(int fd, struct stat *ret_st)
{
    for (int round = 0; round <= SETTLE_ROUNDS; round++) {
        struct timespec now;
        if (round > 0)
            scan_wait_tick();
        if (fstat(fd, ret_st) < 0)
            return -errno;
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t age_ns =
            (now.tv_sec - ret_st->st_mtim.tv_sec) * 1000000000ll + now.tv_nsec - ret_st->st_mtim.tv_nsec;
        if (age_ns < 0 || age_ns >= SCAN_TICK_NS) /* the clock of a server may be ahead of ours */
            return 0;
    }
    /* No folder has this time: a folder that is written all the time is never fresh. */
    ret_st->st_mtim = (struct timespec){.tv_nsec = 1};
    return 0;
}

int scan_poll(struct scan *scan, struct leat_error *err)
{
    if (!scan->progress || !scan->progress->report)
        return 0;
    int rc = scan->progress->report(scan->progress->user, scan->samples, scan->bytes);
    return rc < 0 ? error_set(err, rc, "the scan was stopped") : 0;
}

int scan_tick(struct scan *scan, uint64_t bytes, struct leat_error *err)
{
    scan->samples++;
    scan->bytes += bytes;
    if (scan->samples - scan->reported < TICK_SAMPLES)
        return 0;
    scan->reported = scan->samples;
    return scan_poll(scan, err);
}

/* Of an address, what no root may be shorter than: "s3://bucket". */
static size_t least_root(const char *path)
{
    if (!dataset_is_remote(path))
        return 0;
    const char *host = strstr(path, "//") + 2;
    return (size_t)(host - path) + strcspn(host, "/");
}

char *scan_common_root(char *const *paths, unsigned n)
{
    const char *slash = strrchr(paths[0], '/');
    size_t len = slash ? (size_t)(slash - paths[0]) : 0; /* "/a/b" of "/a/b/c"; 0: "/" */
    size_t least = least_root(paths[0]);
    for (unsigned i = 1; i < n; i++)
        while (len && (strncmp(paths[0], paths[i], len) || paths[i][len] != '/'))
            do
                len--;
            while (len && paths[0][len] != '/');
    bool remote = false;
    for (unsigned i = 0; i < n; i++)
        remote |= dataset_is_remote(paths[i]);
    if (!remote)
        return len ? strndup(paths[0], len) : strdup("/");
    /* Joined by one "/" the address must come out again. */
    for (unsigned i = 0; i < n; i++)
        if (paths[i][len] != '/' || paths[i][len + 1] == '/')
            len = 0;
    if (len < MAX(least, 1u) || paths[0][len - 1] == '/')
        len = 0;
    return strndup(paths[0], len);
}

const char *scan_relative(const char *root, const char *path)
{
    size_t len = strlen(root);
    if (len == 0 || strncmp(path, root, len))
        return path;
    path += len;
    while (*path == '/')
        path++;
    return path;
}
