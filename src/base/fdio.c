/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fdio.h"

#include <sys/stat.h>

#define PIECE_MAX (1ull << 30) /* of one call: the kernel takes less than 2 GiB */

int64_t fd_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset)
{
    uint64_t done = 0;
    while (done < bytes && offset + done <= INT64_MAX) {
        ssize_t n = pread(fd, (char *)buf + done, MIN(bytes - done, PIECE_MAX), (off_t)(offset + done));
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return (int64_t)done;
}

/* offset UINT64_MAX: where the file stands. */
static int write_all(int fd, const char *data, uint64_t bytes, uint64_t offset)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = MIN(bytes - done, PIECE_MAX);
        ssize_t n = offset == UINT64_MAX ? write(fd, data + done, piece)
                                         : pwrite(fd, data + done, piece, (off_t)(offset + done));
        if (n == 0 || (n < 0 && errno != EINTR))
            return n < 0 ? -errno : -EIO;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

int fd_write_at(int fd, const void *data, uint64_t bytes, uint64_t offset)
{
    return write_all(fd, data, bytes, offset);
}

int fd_write(int fd, const void *data, uint64_t bytes)
{
    return write_all(fd, data, bytes, UINT64_MAX);
}

int fd_read_text(int fd, char *out, size_t cap)
{
    size_t len = 0;
    for (ssize_t n = 1; n && len < cap - 1;) {
        n = read(fd, out + len, cap - 1 - len);
        if (n < 0 && errno != EINTR)
            return -errno;
        len += n > 0 ? (size_t)n : 0;
    }
    while (len && strchr(" \t\n", out[len - 1]))
        len--;
    out[len] = 0;
    return 0;
}

void fd_make_parents(const char *path)
{
    AUTO_FREE char *copy = strdup(path);
    for (char *p = copy ? copy + 1 : NULL; p && (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(copy, 0700);
        *p = '/';
    }
}
