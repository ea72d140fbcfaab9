/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h: between pool.c (sets and their end), opening.c (from a source to a set), admission.c
 * (memory granted to a set), and what changes sets. */
#ifndef POOL_POOL_INTERNAL_H
#define POOL_POOL_INTERNAL_H

#include "base/clock.h"
#include "pool/pool.h"

extern const struct wset_owner_ops pool_set_ops; /* pool.set_config.owner */
/* wset_new for this pool: takes index_fd on success. Any thread. LEAT_CORRUPT, LEAT_NO_SPACE, -ENOMEM. */
int pool_set_new(struct pool *pool, int index_fd, bool trusted, struct wset **ret_ws, struct leat_error *err);
/* Adds a new set to the pool. */
void pool_list(struct pool *pool, struct wset *ws, enum wset_phase phase);
/* Idle implicit sets make room for `want` bytes. `patient`: memory that is coming back counts as free. */
void pool_evict_idle(struct pool *pool, uint64_t want, bool patient);
/* Drops the idle implicit set that was opened first: of this user, NULL: of any. False: there is none. */
bool pool_evict_oldest(struct pool *pool, const uint32_t *uid);
#define LEAVING_LOOK_NS (2 * NS_PER_MS) /* between checks whether ended sets have gone */
/* Memory of the pool for a set of this index that gets all it asks for. */
uint64_t pool_bytes_wanted(const struct pool *pool, const struct index *index);
/* The regions of ws from first_gid on that are this host's, up to address `end`: reservations and mappings, no memory yet. */
int pool_regions_make(struct pool *pool, struct wset *ws, uint64_t first_gid, uint64_t end,
                      struct leat_error *err);
/* A region with its reservation, of which `used` is used: prefaulted if possible. LEAT_NO_SPACE, -ENOMEM. */
int pool_region(struct pool *pool, uint64_t region_bytes, uint64_t used, struct region **ret_region,
                struct leat_error *err);
/* Adds what a session outside the fill threads did to the pool's counters. */
struct backend;
void pool_count_remote(struct pool *pool, struct access *access, const struct backend *backend);
/* Sets how much may be prefaulted now, releases what is too much for the host, and sets the next timer. */
void pool_ready_tend(struct loop_timer *timer);
/* Memory in addition to a window of this size: its bookkeeping, and which checksums of the set are known. */
uint64_t pool_window_tables(const struct wset *ws, uint64_t window);
/* Takes what the set needs on this host, or what the cluster decided. `limit`: 0 for none. */
int pool_begin(struct pool *pool, struct wset *ws, uint64_t limit, struct leat_error *err);

/* A name stands for one set of its owner: that set, also while it is only prepared. */
struct wset *pool_find_own_name(struct pool *pool, const char *name, uint32_t uid);
void pool_own(struct wset *ws, uint32_t uid, uint32_t gid, struct source_groups *groups, uint32_t flags);
/* LEAT_BUSY when the user has the most unfinished sets that are allowed. */
int pool_creates_check(struct pool *pool, uint32_t uid, struct leat_error *err);
int pool_index_seal(int fd, struct leat_error *err);
struct dataset_spec;
/*
 * access_cache.c: r->access becomes the access for `spec` (`text`) if it is remote. LEAT_DENIED when there is
 * none, or the daemon may not ask there. The client's access is remembered for sets that other nodes place.
 */
int access_cache_take(struct pool *pool, struct open_request *r, const struct dataset_spec *spec,
                      const char *text, struct leat_error *err);
/* An opening that brought an access ended. With ws it succeeded, and that access is ws's, here and on all
 * nodes. Does nothing where no source is remote. */
struct wset;
void access_cache_opened(struct pool *pool, const struct open_request *r, struct wset *ws);
/* Another node sent the access for a source. `access` stays the caller's. */
void access_cache_received(struct pool *pool, uint32_t uid, const char *spec, struct access *access);
/* Node n is reachable (again): it gets what clients here brought. */
void access_cache_share(struct pool *pool, unsigned n);
/* Periodically: renews what expires soon, if that is allowed; sends what changed; wipes what has expired. */
void access_cache_tick(struct pool *pool);
void access_cache_forget(struct pool *pool);
/* Answers openings that have no thread: the daemon ends. */
void openings_cancel(struct pool *pool);
/* There is a later version: readers keep this one. */
void pool_supersede(struct pool *pool, struct wset *ws);
/* Takes the request; index_fd, of the samples to add, stays the caller's. */
void change_append(struct pool *pool, struct open_request *request, int index_fd);
/* The requester is gone. */
void changes_forget(struct pool *pool, const void *user);

#endif
