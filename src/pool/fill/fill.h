/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.h: the threads that bring sources into the pool. A working set's local addresses are cut into segments
 * of some MiB; each thread takes one, backs it with memory, and reads its extents straight into place. It
 * checksums the parts while they are in the cache, and reports them with wset_piece. Samples that a client
 * waits for go first (fill_urgent.c). Streamed samples come the same way into staging memory (fill_load); a
 * thread has many remote ones in flight at a time.
 *
 * Lifetime: a job is part of its working set; fill_start takes a reference that goes when the last segment has ended, or
 * after fill_cancel when no thread is inside.
 */
#ifndef POOL_FILL_H
#define POOL_FILL_H

#include "base/base.h"
#include "base/bytes.h"
#include "base/list.h"

struct disk_engine;
struct fill;
struct region;
struct budget;
struct wset;

/* Opens sources with the caller's rights: pool/source/source.h. */
struct source_opener;

/* What a thread keeps of its scratch between one range and the next; more is charged to the set that needs it. */
#define FILL_SCRATCH_KEPT (256 * KIB)
/* The error of a sample whose mapped index changed. */
#define INDEX_DAMAGED "its index is damaged: open the dataset again"

struct fill_config {
    unsigned threads;
    unsigned depth;          /* reads in flight per thread */
    const char *disk_engine; /* "auto", "uring", "worker" */
    unsigned connections;    /* of each thread to one remote host; 0: 16 */
    uint64_t segment_bytes;  /* 0: wset_segment_bytes */
    /* Tests: makes each thread's engine instead of disk_engine_new. */
    int (*engine_new)(unsigned depth, struct disk_engine **ret_engine);
    const struct source_opener *opener;
    /* Wide bounce buffers (docs/decisions/0111) are charged here while threads have them; NULL: there are none. */
    struct budget *budget;
    /* A segment of a set that spans nodes: what arrived, as READY records (wire/leat/proto.h). May take the buffer. Fill threads. */
    void (*ready)(struct wset *ws, struct bytes_out *records);
    /* Samples of this set became readable or failed: on a fill thread. */
    void (*advanced)(struct wset *ws);
};

int fill_new(const struct fill_config *config, struct fill **ret_fill, struct leat_error *err);
/* Cancels everything and joins: no thread is left; queued work is only freed by fill_free. NULL is fine. */
void fill_stop(struct fill *fill);
/* Stops, and frees. NULL is fine. */
void fill_free(struct fill *fill);

/* Queues all local segments of ws that are not shared with an earlier version. 0 or -ENOMEM. */
int fill_start(struct fill *fill, struct wset *ws);
/* The same in two steps, the second of which cannot fail. With no segments at all, wset_settle_empty is the caller's. */
int fill_plan(struct fill *fill, struct wset *ws);
void fill_go(struct fill *fill, struct wset *ws);
/* Sample i is waited for: it goes first, alone where it is a file of its own, else with its segments. Any thread. */
void fill_urgent(struct fill *fill, struct wset *ws, uint64_t i);
/*
 * The same for node `from`, below 256, which waits for it. Of all nodes together PROTO_URGENT_MAX are kept, and of each
 * at most `share`. What is there, is in the queue already, is not of this host, or has no room is ignored. Control loop.
 */
void fill_urgent_there(struct fill *fill, struct wset *ws, const uint64_t *samples, uint32_t n, unsigned from,
                       uint32_t share);
/* Is segment s (below ws->nsegments) filled, and which addresses is it? Control loop. */
bool fill_segment_done(struct fill *fill, struct wset *ws, uint32_t s, uint64_t *ret_begin,
                       uint64_t *ret_end);
/* No further segment is begun. Any thread; returns at once. */
void fill_cancel(struct fill *fill, struct wset *ws);

/* One range of addresses into `dst`, for staging and verify. done() on a fill thread, exactly once; status and message of the first
 * failure. The caller keeps a reference to ws. */
struct fill_load {
    struct list node;
    struct wset *ws;
    uint64_t address, bytes;
    uint8_t *dst;
    struct region *region; /* dst lies in it, and is backed with memory first; NULL: it is */
    void (*done)(struct fill_load *load, int status, const char *message);
    /* fill's: of a remote load that is under way */
    uint64_t next;   /* addresses below were asked for */
    unsigned inside; /* reads under way */
    int status;      /* the first failure, and why */
    char *message;
};
void fill_load(struct fill *fill, struct fill_load *load);
/* Loads no longer wait for a server: -ECANCELED, from now on. It ends before fill_stop. Any thread. */
void fill_loads_cancel(struct fill *fill);

struct index;
/* What a thread needs while it reads for a partly remote set: its session's buffers. Charged as scratch. */
uint64_t fill_remote_bytes(const struct index *index, unsigned connections);

struct histogram;
/* Time from taking a segment to its last checksum. */
struct histogram *fill_segment_times(struct fill *fill);

struct fill_stats {
    uint64_t bytes_direct, bytes_buffered, bytes_decoded, files_opened, segments, errors;
    /* remote: bytes; requests with their retries, those throttled, connections made */
    uint64_t bytes_remote, remote_requests, remote_retries, remote_throttled, remote_connections,
        remote_checked, remote_unchecked;
    /* of this host's store: by direct I/O and by the page cache, both in the above as well; read in addition
     * to what was wanted, and skipped */
    uint64_t bytes_stored, bytes_padding;
    uint64_t wide_bytes; /* bounce buffers that are charged now */
    const char *engine;  /* "uring" or "worker" */
};
void fill_stats(struct fill *fill, struct fill_stats *ret_stats);

#endif
