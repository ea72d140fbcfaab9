/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/source.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>

#define GROUPS_MAX 1024

/* File-system rights of this thread alone: glibc's wrappers would change all threads, so the system calls are made bare. */
static int thread_setgroups(size_t n, const gid_t *groups)
{
    return syscall(SYS_setgroups, n, groups) < 0 ? -errno : 0;
}

struct rights {
    gid_t groups[GROUPS_MAX];
    int ngroups;
};

static void rights_restore(const struct rights *saved)
{
    setfsuid(geteuid());
    setfsgid(getegid());
    if (thread_setgroups((size_t)saved->ngroups, saved->groups) < 0)
        abort(); /* a thread with foreign rights must not go on */
}

static int rights_take(const struct source_caller *caller, struct rights *saved)
{
    /* Only root's rights over files go with its fsuid; capabilities of another user would stay, and read everything. */
    if (geteuid() != 0)
        return -EPERM;
    saved->ngroups = getgroups(GROUPS_MAX, saved->groups);
    if (saved->ngroups < 0)
        return -EPERM;
    gid_t groups[GROUPS_MAX] = {caller->gid};
    int n = 1;
    char buf[4096];
    struct passwd pw, *found = NULL;
    if (getpwuid_r(caller->uid, &pw, buf, sizeof(buf), &found) == 0 && found) {
        n = GROUPS_MAX;
        if (getgrouplist(pw.pw_name, caller->gid, groups, &n) < 0)
            return -EPERM; /* in more groups than we can take on: no guess */
    }
    if (thread_setgroups((size_t)n, groups) < 0)
        return -EPERM; /* not allowed to act for others: nothing was changed */
    setfsgid(caller->gid);
    setfsuid(caller->uid);
    if (setfsuid((uid_t)-1) == (int)caller->uid && setfsgid((gid_t)-1) == (int)caller->gid)
        return 0;
    rights_restore(saved);
    return -EPERM;
}

static int open_beneath(const char *root, const char *path, int flags)
{
    AUTO_CLOSE int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    struct open_how how = {.flags = (uint64_t)(unsigned)flags,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, dir, *path ? path : ".", &how, sizeof(how));
    return fd >= 0 ? fd : errno == EXDEV ? -EACCES : -errno;
}

int source_check_system(struct leat_error *err)
{
    int fd = open_beneath("/", "", O_PATH | O_CLOEXEC);
    if (fd == -ENOSYS)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "a system daemon opens files with openat2, which is refused here: Linux before 5.6, or a "
            "seccomp filter (RestrictSUIDSGID= of systemd has one)");
    if (fd >= 0)
        close(fd);
    return 0;
}

int source_open(const struct source_opener *opener, const struct source_caller *caller,
                const char *absolute_path, int flags)
{
    flags |= O_RDONLY | O_CLOEXEC | O_NOCTTY;
    if (!opener || !opener->system) {
        int fd = open(absolute_path, flags);
        return fd < 0 ? -errno : fd;
    }
    const char *root = NULL, *rest = NULL;
    for (char **r = opener->roots; r && *r; r++) {
        size_t len = strlen(*r);
        if (strncmp(*r, absolute_path, len) == 0 && (absolute_path[len] == '/' || absolute_path[len] == 0)) {
            root = *r;
            rest = absolute_path + len + strspn(absolute_path + len, "/");
        }
    }
    if (!root)
        return -EACCES;
    if (caller->uid == geteuid())
        return open_beneath(root, rest, flags);
    struct rights *saved = malloc(sizeof(*saved));
    if (!saved)
        return -ENOMEM;
    int fd = rights_take(caller, saved);
    if (fd == 0) {
        fd = open_beneath(root, rest, flags);
        rights_restore(saved);
    }
    free(saved);
    return fd;
}

static int dataset_open(void *user, const char *absolute_path, int flags)
{
    struct source_binding *binding = user;
    return source_open(binding->opener, &binding->caller, absolute_path, flags);
}

struct dataset_opener source_dataset_opener(struct source_binding *binding)
{
    return (struct dataset_opener){.open = dataset_open, .user = binding};
}
