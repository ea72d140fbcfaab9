/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h: between pool.c (opening, sharing and ending sets) and admission.c (what a set gets of the pool). */
#ifndef POOL_POOL_INTERNAL_H
#define POOL_POOL_INTERNAL_H

#include "pool/pool.h"

/* Idle implicit sets make room for one that is wanted. */
void pool_evict_idle(struct pool *pool, uint64_t want);
/* The regions of ws from first_gid on that are this host's, up to address `end`: tickets and mappings, no memory yet. */
int pool_regions_make(struct pool *pool, struct wset *ws, uint64_t first_gid, uint64_t end,
                      struct leat_error *err);
/* Takes what the set needs on this host, or what the cluster decided. `limit`: 0 for none. */
int pool_begin(struct pool *pool, struct wset *ws, uint64_t limit, struct leat_error *err);

#endif
