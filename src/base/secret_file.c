/* SPDX-License-Identifier: Apache-2.0 */
#include "base/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>

int secret_file_open(const char *what, const char *path, const char *hint, bool roots_group, int *ret_fd,
                     struct leat_error *err)
{
    /* O_NONBLOCK: opening a fifo must not hang before fstat can refuse it. */
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 && errno == ENOENT)
        return error_set(err, LEAT_NOT_FOUND, "there is no %s %s%s", what, path, hint);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_sys(err, -errno, "cannot open %s %s", what, path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, LEAT_INVALID, "%s %s is not a regular file%s", what, path, hint);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return error_set(err, LEAT_DENIED, "%s %s belongs to user %u, neither to this user nor to root%s",
                         what, path, (unsigned)st.st_uid, hint);
    if (st.st_mode & (roots_group && st.st_uid == 0 ? 037 : 077))
        return error_set(err, LEAT_DENIED,
                         "%s %s has mode %03o, so other users may use what is in it: chmod 600 %s%s", what,
                         path, (unsigned)(st.st_mode & 0777), path, hint);
    *ret_fd = TAKE_FD(fd);
    return 0;
}
