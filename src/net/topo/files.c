/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c: a tree below a folder, which is not trusted: only regular files are read, at most TOPO_TEXT_MAX
 * bytes of each, and no link is followed (openat2 where there is one, so not in the middle of a path either).
 */
#include "base/fdio.h"
#include "net/topo/topo.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define ENTRIES_MAX 65536u

static int open_below(const struct topo_dir *dir, const char *path, int flags)
{
    flags |= O_CLOEXEC | O_NOFOLLOW | (flags & O_PATH ? 0 : O_NONBLOCK | O_NOCTTY); /* a pipe would wait */
    struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    while (*path == '/')
        path++;
    long fd = syscall(SYS_openat2, dir->fd, path, &how, sizeof(how));
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* an old kernel; a sandbox */
        fd = openat(dir->fd, path, flags);
    return fd < 0 ? -errno : (int)fd;
}

static int dir_text(void *ctx, const char *path, char *out, size_t cap)
{
    AUTO_CLOSE int fd = open_below(ctx, path, O_RDONLY);
    struct stat st;
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    return fd_read_text(fd, out, cap);
}

static int dir_link(void *ctx, const char *path, char *out, size_t cap)
{
    AUTO_CLOSE int fd = open_below(ctx, path, O_PATH);
    ssize_t n = fd < 0 ? fd : readlinkat(fd, "", out, cap);
    if (fd < 0)
        return fd;
    if (n < 0)
        return errno == ENOENT ? -EINVAL : -errno; /* there, and not a link */
    if ((size_t)n >= cap)
        return -ENAMETOOLONG;
    out[n] = '\0';
    return 0;
}

static int dir_list(void *ctx, const char *path, bool (*each)(void *arg, const char *name), void *arg)
{
    AUTO_CLOSE int fd = open_below(ctx, path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fd;
    DIR *d = fdopendir(fd);
    if (!d)
        return -errno;
    fd = -1;
    const struct dirent *e;
    for (unsigned i = 0; i < ENTRIES_MAX && (e = readdir(d)); i++)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && !each(arg, e->d_name))
            break;
    closedir(d);
    return 0;
}

int topo_dir_open(const char *root, struct topo_dir *ret_dir, struct topo_files *ret_files,
                  struct leat_error *err)
{
    int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_sys(err, -errno, "%s", root);
    ret_dir->fd = fd;
    *ret_files = (struct topo_files){.ctx = ret_dir, .text = dir_text, .link = dir_link, .list = dir_list};
    return 0;
}

void topo_dir_close(struct topo_dir *dir)
{
    if (dir->fd >= 0)
        close(dir->fd);
    dir->fd = -1;
}
