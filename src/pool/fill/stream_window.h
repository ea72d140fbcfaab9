/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_window.h: the window of a working set that is larger than its share of the pool. Ranges of samples
 * are loaded into one staging region and shared by all readers that request the same range. A range stays
 * while it has holders, and after that until the room is needed (oldest first). Belongs to the control loop;
 * loading happens on fill threads.
 */
#ifndef POOL_FILL_STREAM_WINDOW_H
#define POOL_FILL_STREAM_WINDOW_H

#include "base/base.h"
#include "base/list.h"
#include "wire/leat/messages.h"

struct fill;
struct loop;
struct region;
struct stream_window;
struct wset;

enum stream_window_state { STREAM_WINDOW_LOADING, STREAM_WINDOW_READY, STREAM_WINDOW_FAILED };

struct stream_window_entry {
    struct list node; /* staging's */
    struct stream_window_entry *next_in_bucket;
    struct stream_window *window;
    uint64_t first, count; /* samples */
    unsigned refs;
    enum stream_window_state state;
    int code;
    char *message; /* why it FAILED; NULL: for want of memory */
    struct proto_run *runs;
    uint32_t nruns, nplaces, loading;
    struct place *places; /* of the runs, in the window */
    uint64_t bytes;       /* of the window */
};

/* `ready` is called on the loop when an entry that was loading is READY or FAILED. `region` is taken. */
int stream_window_new(struct loop *loop, struct fill *fill, struct wset *ws, struct region *region,
                      void (*ready)(struct wset *ws), struct stream_window **ret_window);
/* No entry may be loading (the working set's last reference is gone). NULL is fine. */
void stream_window_free(struct stream_window *st);
/* The most memory that the entries of a window of this size take: a place begins a block, so there are no more than blocks. */
uint64_t stream_window_table_bytes(uint64_t window_bytes);
const struct region *stream_window_region(const struct stream_window *st);

/* An entry for samples [first, first + count), with a reference. It may still be LOADING. LEAT_NO_SPACE:
 * larger than the window; -EAGAIN: the room is held by readers now; -ENOMEM. */
int stream_window_get(struct stream_window *st, uint64_t first, uint64_t count,
                      struct stream_window_entry **ret_entry);
void stream_window_put(struct stream_window_entry *entry);
uint64_t stream_window_bytes(const struct stream_window *st);
/* What readers hold now. */
uint64_t stream_window_held_bytes(const struct stream_window *st);

#endif
