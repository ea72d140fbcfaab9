/* SPDX-License-Identifier: Apache-2.0 */
/* real.c: the store's files by system calls, and functions over any table of operations. */
#include "store/io.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static int real_open(const struct store_io *io, const char *path, int flags, unsigned mode)
{
    int fd = open(path, flags | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static int real_close(const struct store_io *io, int fd)
{
    return close(fd) < 0 ? -errno : 0;
}

static int64_t real_pwrite(const struct store_io *io, int fd, const void *data, size_t n, uint64_t offset)
{
    ssize_t got = pwrite(fd, data, n, (off_t)offset);
    return got < 0 ? -errno : got;
}

static int64_t real_pread(const struct store_io *io, int fd, void *dst, size_t n, uint64_t offset)
{
    ssize_t got = pread(fd, dst, n, (off_t)offset);
    return got < 0 ? -errno : got;
}

static int64_t real_copy(const struct store_io *io, int from, uint64_t from_offset, int to,
                         uint64_t to_offset, uint64_t n)
{
    off_t in = (off_t)from_offset, out = (off_t)to_offset;
    ssize_t got = copy_file_range(from, &in, to, &out, MIN(n, 1 * GIB), 0);
    return got < 0 ? -errno : got;
}

static int real_truncate(const struct store_io *io, int fd, uint64_t bytes)
{
    return ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
}

static int real_allocate(const struct store_io *io, int fd, uint64_t bytes)
{
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) < 0 ? -errno : 0;
}

static int real_datasync(const struct store_io *io, int fd)
{
    return fdatasync(fd) < 0 ? -errno : 0;
}

static int real_syncdir(const struct store_io *io, const char *path)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int real_syncfs(const struct store_io *io, const char *path)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || syncfs(fd) < 0 ? -errno : 0;
}

static int real_rename(const struct store_io *io, const char *from, const char *to)
{
    return rename(from, to) < 0 ? -errno : 0;
}

static int real_unlink(const struct store_io *io, const char *path)
{
    return unlink(path) < 0 ? -errno : 0;
}

static int real_chmod(const struct store_io *io, const char *path, unsigned mode)
{
    return chmod(path, mode) < 0 ? -errno : 0;
}

static int real_mkdir(const struct store_io *io, const char *path, unsigned mode)
{
    return mkdir(path, mode) < 0 ? -errno : 0;
}

static int real_rmdir(const struct store_io *io, const char *path)
{
    return rmdir(path) < 0 ? -errno : 0;
}

static int real_space(const struct store_io *io, const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    struct statvfs v;
    if (statvfs(path, &v) < 0)
        return -errno;
    *ret_free = (uint64_t)v.f_bavail * v.f_frsize;
    *ret_total = (uint64_t)v.f_blocks * v.f_frsize;
    return 0;
}

const struct store_io store_io_real = {
    .open = real_open,
    .close = real_close,
    .pwrite = real_pwrite,
    .pread = real_pread,
    .copy = real_copy,
    .truncate = real_truncate,
    .allocate = real_allocate,
    .datasync = real_datasync,
    .syncdir = real_syncdir,
    .syncfs = real_syncfs,
    .rename = real_rename,
    .unlink = real_unlink,
    .chmod = real_chmod,
    .mkdir = real_mkdir,
    .rmdir = real_rmdir,
    .space = real_space,
};

int store_io_write(const struct store_io *io, int fd, const void *data, size_t n, uint64_t offset)
{
    while (n > 0) {
        int64_t got = io->pwrite(io, fd, data, n, offset);
        if (got == -EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? (int)got : -EIO;
        data = (const char *)data + got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int store_io_read(const struct store_io *io, int fd, void *dst, size_t n, uint64_t offset)
{
    while (n > 0) {
        int64_t got = io->pread(io, fd, dst, n, offset);
        if (got == -EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? (int)got : -ENODATA;
        dst = (char *)dst + got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int store_io_replace(const struct store_io *io, const char *dir, const char *name, const void *data, size_t n,
                     bool *ret_named)
{
    char tmp[PATH_MAX], path[PATH_MAX];
    if (ret_named)
        *ret_named = false;
    if ((size_t)snprintf(tmp, sizeof(tmp), "%s/%s#tmp", dir, name) >= sizeof(tmp) ||
        (size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
        return -ENAMETOOLONG;
    int fd = io->open(io, tmp, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return fd;
    int rc = store_io_write(io, fd, data, n, 0);
    if (rc == 0)
        rc = io->datasync(io, fd);
    io->close(io, fd);
    if (rc == 0)
        rc = io->rename(io, tmp, path);
    if (rc == 0) {
        if (ret_named)
            *ret_named = true;
        return io->syncdir(io, dir);
    }
    io->unlink(io, tmp);
    return rc;
}
