/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h: between pool.c (sets and their end), opening.c (from a source to a set), admission.c (what a set gets of the pool), and what changes sets. */
#ifndef POOL_POOL_INTERNAL_H
#define POOL_POOL_INTERNAL_H

#include "base/clock.h"
#include "pool/pool.h"

extern const struct wset_owner_ops pool_set_ops; /* pool.set_config.owner */
/* wset_new for this pool: takes index_fd on success. Any thread. LEAT_CORRUPT, LEAT_NO_SPACE, -ENOMEM. */
int pool_set_new(struct pool *pool, int index_fd, bool trusted, struct wset **ret_ws, struct leat_error *err);
/* A new set is there from here on. */
void pool_list(struct pool *pool, struct wset *ws, enum wset_phase phase);
/* Idle implicit sets make room for one that is wanted. `patient`: what is on its way back counts as there. */
void pool_evict_idle(struct pool *pool, uint64_t want, bool patient);
/* Drops the idle implicit set that was opened first: of this user, NULL: of any. False: there is none. */
bool pool_evict_oldest(struct pool *pool, const uint32_t *uid);
#define LEAVING_LOOK_NS (2 * NS_PER_MS) /* between looks whether what ended has gone */
/* What a set of this index takes of the pool when it gets all it asks for. */
uint64_t pool_bytes_wanted(const struct pool *pool, const struct index *index);
/* The regions of ws from first_gid on that are this host's, up to address `end`: reservations and mappings, no memory yet. */
int pool_regions_make(struct pool *pool, struct wset *ws, uint64_t first_gid, uint64_t end,
                      struct leat_error *err);
/* A region with its reservation, of which so much will be used: one that was made ready, if there is. LEAT_NO_SPACE, -ENOMEM. */
int pool_region(struct pool *pool, uint64_t region_bytes, uint64_t used, struct region **ret_region,
                struct leat_error *err);
/* What a session beside the fill threads did goes into the pool's counters. */
struct backend;
void pool_count_remote(struct pool *pool, struct access *access, const struct backend *backend);
/* How much may be made ready now; what is too much for the host is given up. Sets the timer for the next time. */
void pool_ready_tend(struct loop_timer *timer);
/* Memory beside a window of this size: its bookkeeping, and which checksums of the set are known. */
uint64_t pool_window_tables(const struct wset *ws, uint64_t window);
/* Takes what the set needs on this host, or what the cluster decided. `limit`: 0 for none. */
int pool_begin(struct pool *pool, struct wset *ws, uint64_t limit, struct leat_error *err);

/* A name stands for one set of its owner: that set, also while it is only prepared. */
struct wset *pool_find_own_name(struct pool *pool, const char *name, uint32_t uid);
void pool_own(struct wset *ws, uint32_t uid, uint32_t gid, struct source_groups *groups, uint32_t flags);
/* LEAT_BUSY when the user has as many sets that are not whole yet as they may. */
int pool_creates_check(struct pool *pool, uint32_t uid, struct leat_error *err);
int pool_index_seal(int fd, struct leat_error *err);
struct dataset_spec;
/*
 * access_cache.c: r->access becomes what `spec` (`text`) is to be read with, if it lies elsewhere: LEAT_DENIED when there is nothing, or the daemon
 * may not ask there. What the client brought is remembered for sets that other nodes place.
 */
int access_cache_take(struct pool *pool, struct open_request *r, const struct dataset_spec *spec,
                      const char *text, struct leat_error *err);
/* An opening that brought an access ended; with ws it went well, and that access is ws's, here and on all nodes. Does nothing where no
 * source lies elsewhere. */
struct wset;
void access_cache_opened(struct pool *pool, const struct open_request *r, struct wset *ws);
/* Another node says how a source is read. `access` stays the caller's. */
void access_cache_received(struct pool *pool, uint32_t uid, const char *spec, struct access *access);
/* Node n is there (again): it is told what clients here brought. */
void access_cache_share(struct pool *pool, unsigned n);
/* Now and then: what is about to expire is looked for anew where that is allowed, what changed is told, what has expired is wiped. */
void access_cache_tick(struct pool *pool);
void access_cache_forget(struct pool *pool);
/* Openings that no thread works at are answered: the daemon ends. */
void openings_cancel(struct pool *pool);
/* There is a later version: who reads this one keeps it. */
void pool_supersede(struct pool *pool, struct wset *ws);
/* Takes the request; index_fd, of the samples to add, stays the caller's. */
void change_append(struct pool *pool, struct open_request *request, int index_fd);
/* The requester is gone. */
void changes_forget(struct pool *pool, const void *user);

#endif
