/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h: whose rights open a source. A private daemon opens as its user. A system daemon opens only below the roots its
 * configuration names (openat2, RESOLVE_BENEATH), in a thread that has taken on the caller's user, group and
 * supplementary groups for the file system (setfsuid), and refuses callers it cannot act for.
 */
#ifndef POOL_SOURCE_H
#define POOL_SOURCE_H

#include "base/base.h"
#include "dataset/dataset.h"

struct source_opener {
    bool system;
    char **roots; /* absolute, no trailing slash; NULL-terminated */
};

struct source_caller {
    uint32_t uid, gid;
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
