/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/source/source.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define GROUPS_MAX 1024

static_assert(sizeof(gid_t) == sizeof(uint32_t), "source_groups.ids is given to the kernel as it is");

int source_groups_of(int fd, struct source_groups **ret_groups)
{
    socklen_t bytes = 0;
    /* This call returns the size they need; none: no error. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) < 0 && errno != ERANGE)
        return -errno;
    struct source_groups *groups = malloc(sizeof(*groups) + bytes);
    if (!groups)
        return -ENOMEM;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups->ids, &bytes) < 0) {
        int rc = -errno;
        free(groups);
        return rc;
    }
    groups->refs = 1;
    groups->n = (unsigned)(bytes / sizeof(groups->ids[0]));
    *ret_groups = groups;
    return 0;
}

struct source_groups *source_groups_ref(struct source_groups *groups)
{
    if (groups)
        atomic_fetch_add(&groups->refs, 1);
    return groups;
}

void source_groups_unref(struct source_groups *groups)
{
    if (groups && atomic_fetch_sub(&groups->refs, 1) == 1)
        free(groups);
}

bool source_groups_same(const struct source_groups *a, const struct source_groups *b)
{
    if (!a || !b)
        return a == b;
    return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof(a->ids[0])) == 0;
}

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
        abort(); /* a thread with foreign rights must not continue */
}

/* Of a user that another node named. */
static int known_groups(const struct source_caller *caller, gid_t groups[GROUPS_MAX])
{
    char buf[4096];
    struct passwd pw, *found = NULL;
    int n = GROUPS_MAX;
    groups[0] = caller->gid;
    if (getpwuid_r(caller->uid, &pw, buf, sizeof(buf), &found) != 0 || !found)
        return 1;
    /* In more groups than we can take on: no guess. */
    return getgrouplist(pw.pw_name, caller->gid, groups, &n) < 0 ? -EPERM : n;
}

static int rights_take(const struct source_caller *caller, struct rights *saved)
{
    /* Only root's rights over files go with its fsuid; capabilities of another user would stay, and read everything. */
    if (geteuid() != 0)
        return -EPERM;
    saved->ngroups = getgroups(GROUPS_MAX, saved->groups);
    if (saved->ngroups < 0)
        return -EPERM;
    gid_t known[GROUPS_MAX];
    int n = caller->groups ? (int)caller->groups->n : known_groups(caller, known);
    if (n < 0)
        return n;
    if (thread_setgroups((size_t)n, caller->groups ? caller->groups->ids : known) < 0)
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
    return fd < 0 ? -errno : fd;
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

/* As source_open, but -EXDEV for what lies below a root and leads out of it. */
static int open_source(const struct source_opener *opener, const struct source_caller *caller,
                       const char *absolute_path, int flags)
{
    flags |= O_RDONLY | O_CLOEXEC;
    if (!(flags & O_PATH))
        flags |= O_NOCTTY; /* openat2 refuses the two together */
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

int source_open(const struct source_opener *opener, const struct source_caller *caller,
                const char *absolute_path, int flags)
{
    int fd = open_source(opener, caller, absolute_path, flags);
    return fd == -EXDEV ? -EACCES : fd;
}

static int dataset_open(void *user, const char *absolute_path, int flags)
{
    struct source_binding *binding = user;
    return open_source(binding->opener, &binding->caller, absolute_path, flags);
}

struct dataset_opener source_dataset_opener(struct source_binding *binding)
{
    return (struct dataset_opener){.open = dataset_open, .user = binding};
}
