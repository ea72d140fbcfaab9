/* SPDX-License-Identifier: Apache-2.0 */
/* walk.h: the members of a tar file, to the end of the file: also of archives put end to end. */
#ifndef DATASET_TAR_WALK_H
#define DATASET_TAR_WALK_H

#include "wire/archive/tar.h"

typedef int (*tar_member_fn)(void *ctx, const struct tar_member *m, struct leat_error *err);

/*
 * Bytes [from, +bytes) of the descriptor are the file; offsets of members count from there. In order; the first negative answer ends it.
 * Else 0, or what wire/archive/tar.h and reading fail with. `path` is for messages.
 */
int tar_walk(int fd, uint64_t from, uint64_t bytes, const char *path, tar_member_fn member, void *ctx,
             struct leat_error *err);

#endif
