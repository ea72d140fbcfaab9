/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h: whose rights open a source. A private daemon opens as its user. A system daemon opens only below
 * the roots in its configuration (openat2, RESOLVE_BENEATH). Its thread has taken on the caller's user, group
 * and supplementary groups for the file system (setfsuid). Callers for which it cannot act are refused. The
 * groups are those of the process that asks, as the kernel has them (SO_PEERGROUPS): the group database may
 * know more of its user, or, in a container, nothing.
 */
#ifndef POOL_SOURCE_H
#define POOL_SOURCE_H

#include "base/base.h"
#include "dataset/dataset.h"

struct source_opener {
    bool system;
    char **roots; /* absolute, no trailing slash; NULL-terminated */
};

/* Supplementary groups of a process. Never change; shared. */
struct source_groups {
    _Atomic unsigned refs;
    unsigned n;
    uint32_t ids[];
};
/* Of the process at the other end of a unix socket. -ENOMEM, or what getsockopt says. */
int source_groups_of(int fd, struct source_groups **ret_groups);
struct source_groups *source_groups_ref(struct source_groups *groups); /* NULL is fine */
void source_groups_unref(struct source_groups *groups);                /* NULL is fine */
bool source_groups_same(const struct source_groups *a, const struct source_groups *b);

struct source_caller {
    uint32_t uid, gid;
    const struct source_groups
        *groups; /* NULL: another node named the user; this host's group database knows */
};

/* Whether a system daemon can open anything here: LEAT_UNSUPPORTED with the reason. */
int source_check_system(struct leat_error *err);
/* Opens read-only (O_CLOEXEC is added). A descriptor or -errno: -EACCES outside the roots or where the caller may not read,
 * -EPERM when the daemon lacks the rights to act for this caller. Any thread. */
int source_open(const struct source_opener *opener, const struct source_caller *caller,
                const char *absolute_path, int flags);

/* The same as a dataset_opener, for scanning. `binding` must outlive it. */
struct source_binding {
    const struct source_opener *opener;
    struct source_caller caller;
};
struct dataset_opener source_dataset_opener(struct source_binding *binding);

#endif
