/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_window.h: the window of a working set that is larger than its share of the pool. Ranges of samples are loaded into one
 * staging region, shared by all readers who ask for the same range while it is there, kept while somebody holds it, and after
 * that until the room is needed (oldest first). Belongs to the control loop; loading happens on fill threads.
 */
#ifndef POOL_FILL_STREAM_WINDOW_H
#define POOL_FILL_STREAM_WINDOW_H

#include "base/base.h"
#include "base/list.h"
#include "wire/leat/proto.h"

struct fill;
struct loop;
struct region;
struct staging;
struct wset;

enum staging_state { STAGING_LOADING, STAGING_READY, STAGING_FAILED };

struct staging_entry {
    struct list node; /* staging's */
    struct staging_entry *next_in_bucket;
    struct staging *staging;
    uint64_t first, count; /* samples */
    unsigned refs;
    enum staging_state state;
    int code;
    char *message; /* why it FAILED; NULL: for want of memory */
    struct proto_run *runs;
    uint32_t nruns, nplaces, loading;
    struct place *places; /* of the runs, in the window */
    uint64_t bytes;       /* of the window */
};

/* `ready` is called on the loop when an entry that was loading is READY or FAILED. `region` is taken. */
int staging_new(struct loop *loop, struct fill *fill, struct wset *ws, struct region *region,
                void (*ready)(struct wset *ws), struct staging **ret_staging);
/* No entry may be loading (the working set's last reference is gone). NULL is fine. */
void staging_free(struct staging *st);
/* The most memory that the entries of a window of this size take: a place begins a block, so there are no more than blocks. */
uint64_t staging_table_bytes(uint64_t window_bytes);
const struct region *staging_region(const struct staging *st);

/*
 * An entry for samples [first, first + count), with a reference. It may still be LOADING. LEAT_NO_SPACE: larger than the window;
 * -EAGAIN: the room is held by readers now; -ENOMEM.
 */
int staging_get(struct staging *st, uint64_t first, uint64_t count, struct staging_entry **ret_entry);
void staging_put(struct staging_entry *entry);
uint64_t staging_window_bytes(const struct staging *st);
/* What readers hold now. */
uint64_t staging_held_bytes(const struct staging *st);

#endif
