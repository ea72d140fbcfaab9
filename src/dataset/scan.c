/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: what the formats share: opening, reading, messages, progress. */
#include "dataset/scan.h"

#include <fcntl.h>
#include <stdio.h>

#include "wire/tar.h"

#define TICK_SAMPLES 4096

void scan_escape(const char *s, char *out, size_t cap)
{
    bool utf8 = tar_is_utf8(s);
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
    if (err && rc < 0 && !tar_is_utf8(err->message)) {
        char raw[sizeof(err->message)];
        memcpy(raw, err->message, sizeof(raw));
        scan_escape(raw, err->message, sizeof(err->message));
    }
    return rc;
}

int scan_error(int code, const char *path, struct leat_error *err)
{
    char shown[300];
    scan_escape(path, shown, sizeof(shown));
    switch (code) {
    case -ENOENT:
    case -ENOTDIR:
        return error_set(err, LEAT_NOT_FOUND, "%s: there is no such file or directory", shown);
    case -EACCES:
    case -EPERM:
        return error_set(err, LEAT_DENIED,
                         "%s: it may not be read by this user; check the permissions of it and of the "
                         "folders above it",
                         shown);
    case -ELOOP:
        return error_set(err, LEAT_INVALID,
                         "%s: a symbolic link that leads to itself, or that is not allowed here", shown);
    default:
        return error_sys(err, code, "%s", shown);
    }
}

int scan_open(struct scan *scan, const char *path, int *ret_fd, struct stat *ret_st, struct leat_error *err)
{
    int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    AUTO_CLOSE int fd = -1;
    if (scan->opener) {
        int rc = scan->opener->open(scan->opener->user, path, flags);
        if (rc < 0)
            return scan_error(rc, path, err);
        fd = rc;
    } else {
        fd = open(path, flags);
        if (fd < 0)
            return scan_error(-errno, path, err);
    }
    if (fstat(fd, ret_st) < 0)
        return scan_error(-errno, path, err);
    if (!S_ISREG(ret_st->st_mode) && !S_ISDIR(ret_st->st_mode)) {
        char shown[300];
        scan_escape(path, shown, sizeof(shown));
        return error_set(err, LEAT_INVALID, "%s: neither a file nor a directory", shown);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int scan_tick(struct scan *scan, uint64_t bytes, struct leat_error *err)
{
    scan->samples++;
    scan->bytes += bytes;
    if (!scan->progress || !scan->progress->report || scan->samples - scan->reported < TICK_SAMPLES)
        return 0;
    scan->reported = scan->samples;
    int rc = scan->progress->report(scan->progress->user, scan->samples, scan->bytes);
    return rc < 0 ? error_set(err, rc, "the scan was stopped") : 0;
}

int64_t scan_pread(int fd, void *buf, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    if (offset > INT64_MAX)
        return 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)buf + done, bytes - done, (off_t)(offset + done));
        if (n == 0)
            break;
        if (n > 0)
            done += (size_t)n;
        else if (errno != EINTR)
            return -errno;
    }
    return (int64_t)done;
}

char *scan_common_root(char *const *paths, unsigned n)
{
    const char *slash = strrchr(paths[0], '/');
    size_t len = slash ? (size_t)(slash - paths[0]) : 0; /* "/a/b" of "/a/b/c"; 0: "/" */
    for (unsigned i = 1; i < n; i++)
        while (len && (strncmp(paths[0], paths[i], len) || paths[i][len] != '/'))
            do
                len--;
            while (len && paths[0][len] != '/');
    return len ? strndup(paths[0], len) : strdup("/");
}

const char *scan_relative(const char *root, const char *path)
{
    size_t len = strlen(root);
    if (strncmp(path, root, len))
        return path;
    path += len;
    while (*path == '/')
        path++;
    return path;
}
