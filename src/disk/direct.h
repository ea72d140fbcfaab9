/* SPDX-License-Identifier: Apache-2.0 */
/* direct.h: a second descriptor of an open file, for direct I/O. */
#ifndef DISK_DIRECT_H
#define DISK_DIRECT_H

/*
 * Opens the same file again through /proc/self/fd with O_DIRECT | O_RDONLY | O_CLOEXEC: a new file
 * description, so the flags and position of `fd` stay as they are. Returns the descriptor, which is the
 * caller's, or -errno: -EINVAL where the file system has no direct I/O, -EACCES where this process could not
 * have opened the file itself (a descriptor from another process). Some file systems (tmpfs since 6.6) accept
 * the flag and read buffered: ask disk_file_probe first. Any thread.
 */
int disk_open_direct(int fd);

#endif
