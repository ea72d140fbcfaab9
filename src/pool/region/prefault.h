/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefault.h: memory prefaulted in advance. A new region must be found, cleared and mapped by the kernel
 * before a byte can be read into it: more work than reading a file from the page cache. A stock of regions
 * that no set has had yet takes this work out of a load. A thread that runs only when the CPU is idle backs
 * and maps them, and new sets take them first.
 *
 *   pool's room ── allow ──▶ maker ──▶ stock ── take ──▶ a set ──▶ freed (never back into the stock)
 *                                       └── cancel ──▶ freed: admission, or the host, needs the memory
 *
 * The stock's bytes are reserved in the pool's budget like any other. All functions are the control loop's,
 * but for prefault_stats.
 */
#ifndef POOL_REGION_PREFAULT_H
#define POOL_REGION_PREFAULT_H

#include "base/base.h"
#include "pool/region/region.h"

struct prefault;
struct budget;

struct prefault_config {
    struct region_source pages;
    uint64_t region_bytes; /* of the sets that will take them */
    uint64_t bytes;        /* the most to keep */
    struct budget *budget; /* outlives it */
    /* Tests: what backs the next `bytes` instead of region_prepare. */
    int (*prepare)(struct region *region, uint64_t bytes);
};

/* Starts the maker, which waits to be allowed. */
int prefault_new(const struct prefault_config *config, struct prefault **ret_ready, struct leat_error *err);
/* Ends the maker, frees the stock. NULL is fine, here and everywhere below. */
void prefault_free(struct prefault *ready);

/* The maker may take `bytes` more, as far as the stock lacks them, until the next call. */
void prefault_allow(struct prefault *ready, uint64_t bytes);
/* The maker takes nothing more: when this returns, only the caller moves reservations. Waits for a step of at
 * most 2 MiB. */
void prefault_hold(struct prefault *ready);
/* A region out of the stock for a set: of region_bytes, its reservation of used_bytes taken, its first
 * prefault_bytes ready. Never the same one twice. NULL: none fits, or the pool is full. Holds. */
struct region *prefault_take(struct prefault *ready, uint64_t region_bytes, uint64_t used_bytes);
/* Frees at least `bytes` of the stock and gives their reservations back, or all of it. Returns how many. Holds. */
uint64_t prefault_cancel(struct prefault *ready, uint64_t bytes);

struct prefault_stats {
    uint64_t target_bytes, bytes;                     /* to keep; kept now: reservations taken */
    uint64_t made_bytes, taken_bytes, given_up_bytes; /* since the start */
};
/* Any thread. */
void prefault_stats(struct prefault *ready, struct prefault_stats *ret_stats);
/* Bytes of reservations that the stock holds. Any thread. */
uint64_t prefault_bytes(struct prefault *ready);

#endif
