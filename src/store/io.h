/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.h: how the store touches files: the real system calls (real.c), or ones that record and fail (testing_io.c). Each returns -errno where the
 * system call would set errno. Any thread.
 */
#ifndef STORE_IO_H
#define STORE_IO_H

#include "base/base.h"

struct store_io {
    int (*open)(const struct store_io *io, const char *path, int flags, unsigned mode);
    int (*close)(const struct store_io *io, int fd);
    int64_t (*pwrite)(const struct store_io *io, int fd, const void *data, size_t n, uint64_t offset);
    int64_t (*pread)(const struct store_io *io, int fd, void *dst, size_t n, uint64_t offset);
    int64_t (*copy)(const struct store_io *io, int from, uint64_t from_offset, int to, uint64_t to_offset,
                    uint64_t n); /* copy_file_range; 0 at the end of the file */
    int (*truncate)(const struct store_io *io, int fd, uint64_t bytes);
    int (*allocate)(const struct store_io *io, int fd, uint64_t bytes); /* the file's size stays as it is */
    int (*datasync)(const struct store_io *io, int fd);
    int (*syncdir)(const struct store_io *io, const char *path);
    int (*syncfs)(const struct store_io *io, const char *path);
    int (*rename)(const struct store_io *io, const char *from, const char *to);
    int (*unlink)(const struct store_io *io, const char *path);
    int (*chmod)(const struct store_io *io, const char *path, unsigned mode);
    int (*mkdir)(const struct store_io *io, const char *path, unsigned mode);
    int (*rmdir)(const struct store_io *io, const char *path);
    /* Free and total bytes of the file system. */
    int (*space)(const struct store_io *io, const char *path, uint64_t *ret_free, uint64_t *ret_total);
};

extern const struct store_io store_io_real;

/* All of it, or -errno: EINTR and short writes are retried. */
int store_io_write(const struct store_io *io, int fd, const void *data, size_t n, uint64_t offset);
/* All of it: -ENODATA where the file ends before. */
int store_io_read(const struct store_io *io, int fd, void *dst, size_t n, uint64_t offset);
/* A file that is there as a whole or not at all: written under another name, flushed, renamed, its folder
 * flushed. `dir`/`name`. *ret_named (may be NULL): it has its name, also where the flush of the folder
 * failed; later readers then find it. */
int store_io_replace(const struct store_io *io, const char *dir, const char *name, const void *data, size_t n,
                     bool *ret_named);

#endif
