/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/direct.h"
#include "base/base.h"

#include <fcntl.h>
#include <stdio.h>

int disk_open_direct(int fd)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int ret = open(path, O_DIRECT | O_RDONLY | O_CLOEXEC);
    if (ret < 0 && errno == ENOENT)
        return -EBADF; /* /proc names no such descriptor */
    return ret < 0 ? -errno : ret;
}
