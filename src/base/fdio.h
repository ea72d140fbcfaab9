/* SPDX-License-Identifier: Apache-2.0 */
/* fdio.h: reading and writing all of it: signals and short counts are no end. Any thread. */
#ifndef BASE_FDIO_H
#define BASE_FDIO_H

#include "base/base.h"

/* As many bytes as the file has of [offset, +bytes): how many, or -errno. Behind INT64_MAX there are none. */
int64_t fd_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset);
/* All of them: 0 or -errno. */
int fd_write_at(int fd, const void *data, uint64_t bytes, uint64_t offset);
int fd_write(int fd, const void *data, uint64_t bytes);
/* At most cap - 1 bytes from where it stands, without blanks and newlines at the end; `out` is NUL-terminated. 0 or -errno. */
int fd_read_text(int fd, char *out, size_t cap);
/* The folders on the way to `path` that are not there, for their owner alone. What cannot be made shows when `path` is. */
void fd_make_parents(const char *path);

#endif
