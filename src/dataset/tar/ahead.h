/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.h: the member headers of remote shards, several shards at a time. Only tar/ includes this. */
#ifndef DATASET_TAR_AHEAD_H
#define DATASET_TAR_AHEAD_H

#include "dataset/scan.h"
#include "dataset/tar/walk.h"

struct tar_ahead;
/* `paths` stay the caller's. */
int tar_ahead_new(struct scan *scan, char *const *paths, unsigned n, struct tar_ahead **ret_ahead);
void tar_ahead_free(struct tar_ahead *a);
/* Shards are asked for in their order. Returns when all headers of this one are known; *ret_file is valid until tar_ahead_members. */
int tar_ahead_shard(struct tar_ahead *a, unsigned number, const struct scan_file **ret_file,
                    struct leat_error *err);
/* Its members, in order; then the shard is forgotten. The first negative answer ends it. */
int tar_ahead_members(struct tar_ahead *a, unsigned number, tar_member_fn member, void *ctx,
                      struct leat_error *err);

#endif
