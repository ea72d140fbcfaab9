/* SPDX-License-Identifier: Apache-2.0 */
/* fill_internal.h: between fill.c (queues and threads) and fill_read.c (one range of addresses into memory). */
#ifndef POOL_FILL_INTERNAL_H
#define POOL_FILL_INTERNAL_H

#include "dataset/dataset.h"
#include "dataset/index.h"
#include "disk/disk.h"
#include "pool/fill/fill.h"
#include "pool/set/wset.h"

#define SOURCES_CACHED 8u
#define RANGES_BAD_MAX 64u
#define AHEAD_MAX      16u
/* Of a thread: for bytes that cannot be read, or copied, straight to their place. */
#define FILL_BOUNCE_BYTES     (1 * MIB)
#define FILL_DIRECT_ALIGN_MAX 4096u /* a disk that asks for more is read through the page cache */
#define FILL_MESSAGE          400u  /* an address may be long */

struct backend;
struct fill_remote; /* fill_remote.c */

/* A range that did not arrive, and why. */
struct fill_bad {
    uint64_t begin, end;
    int code;
    char message[FILL_MESSAGE];
};

/* An open source file, kept by a thread between segments. */
struct fill_source {
    uint64_t serial; /* of the working set; 0: free */
    uint64_t source;
    int fd, fd_direct;
    struct disk_file_traits traits;
    uint64_t used; /* for least-recently-used */
};

/* Addresses, and where the first lies in memory. */
struct fill_range {
    uint64_t begin, end;
    uint8_t *dst; /* of begin */
};

/* Where a range goes. */
struct fill_target {
    uint8_t *addr;
    /* The file that addr maps, from `offset` on, or -1. Given for fresh memory of base pages: copies then go by write(2), which takes
     * pages without clearing them and without a fault each. */
    int fd;
    uint64_t offset;
};

/* Which thread may begin with a segment? PARTLY: none, while a thread reads some of its files; then it is TODO again. */
enum segment_state { SEGMENT_TODO, SEGMENT_PARTLY, SEGMENT_TAKEN, SEGMENT_DONE };

#define FILL_FILES_MAX 16u

/* A sample that is a file, and the segment that it lies in. */
struct fill_file {
    uint64_t sample;
    struct index_part part;
    struct index_extent extent; /* `number` of the index, and sound */
    uint64_t number;
    unsigned field;
    uint32_t segment;
};

/* The next work of a thread: a load; or some files of a set in one region; or else segments that lie one
 * behind the other in a region. */
struct fill_pick {
    struct fill_load *load;
    struct wset *ws;
    uint32_t segment, nsegments;
    struct fill_file files[FILL_FILES_MAX];
    unsigned nfiles;
};

/* A small file that was not in the page cache: open, being read ahead by the kernel. */
struct fill_ahead {
    struct wset *ws; /* of the range that is being read */
    uint64_t source;
    int fd;
    uint64_t begin, end, source_offset;
};

struct fill_thread {
    struct fill *fill;
    struct disk_engine *engine;
    struct fill_source sources[SOURCES_CACHED];
    uint64_t clock;
    struct dataset_scratch scratch;
    uint8_t *band; /* a decoded extent of which only a piece is wanted */
    uint64_t band_cap;
    struct fill_target target; /* of the range being read, which begins at target_begin */
    uint64_t target_begin;
    uint8_t *bounce;
    uint8_t *wide;                      /* fill_wide() */
    struct fill_ahead ahead[AHEAD_MAX]; /* oldest first */
    unsigned nahead;
    /* Everything of the range below `address` has arrived, or is in `bad`: it is checksummed while it is in
     * the cache. NULL: the caller looks when the range is over. */
    void (*arrived)(void *user, uint64_t address);
    void *arrived_user;
    struct fill_bad bad[RANGES_BAD_MAX];
    unsigned nbad;
    uint64_t bad_offset;        /* in the file, where the last read failed; UINT64_MAX: it was not the read */
    struct fill_remote *remote; /* sessions and reads of remote extents; NULL: there were none lately */
    struct backend *waits;      /* fill's lock: the session that the thread may be waiting for */
    const struct wset *joins;   /* fill's lock: waits is to be woken for a load of this set; NULL: for none */
    bool loading;               /* a load, and not a segment */
    char logged[FILL_MESSAGE]; /* the last message: a changed large file is logged once, not once a segment */
};

/* Totals: relaxed atomics, readable while threads run. */
struct fill_counters {
    _Atomic uint64_t bytes_direct, bytes_buffered, bytes_decoded, files_opened, segments, errors;
    _Atomic uint64_t bytes_remote, remote_requests, remote_retries, remote_throttled, remote_connections,
        remote_checked, remote_unchecked;
    _Atomic uint64_t bytes_stored, bytes_padding;
    _Atomic uint64_t wide_bytes;
};

/*
 * Reads [address, +bytes) of the set's linear space to target. Ranges that could not be read are in t->bad afterwards; the last
 * entry covers everything from there on when there are too many. Returns how many bad ranges.
 */
unsigned fill_read_range(struct fill_thread *t, struct wset *ws, uint64_t address, uint64_t bytes,
                         const struct fill_target *target, const struct source_opener *opener,
                         struct fill_counters *counters);
/* The same of the files of a pick, which lie in `region`: it is backed with memory first. */
void fill_read_files(struct fill_thread *t, const struct fill_pick *p, struct region *region,
                     const struct source_opener *opener, struct fill_counters *counters);
void fill_bad_add(struct fill_thread *t, uint64_t begin, uint64_t end, int rc, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The bad range that overlaps [begin, end), or NULL. */
const struct fill_bad *fill_bad_in(const struct fill_thread *t, uint64_t begin, uint64_t end);
/* Why a read failed, with file and place (t->bad_offset). */
void fill_read_error(const struct fill_thread *t, const struct index *index, uint64_t source, int rc,
                     char *why, size_t cap);
/* The thread's bounce buffer, FILL_BOUNCE_BYTES at a border of FILL_DIRECT_ALIGN_MAX; NULL: no memory. */
uint8_t *fill_bounce(struct fill_thread *t);
/* Copies bytes out of it to their address. */
int fill_bounce_out(struct fill_thread *t, const uint8_t *src, uint64_t address, uint64_t bytes);
/* fill_large.c: r, a part of a RAW extent, to its place; whole: the range that is being read. False: some of
 * it is bad. A source that refuses direct reads gets no more of them (traits.direct_align). */
bool fill_large(struct fill_thread *t, const struct index *index, uint64_t extent, struct fill_source *source,
                bool direct, const struct fill_range *whole, const struct fill_range *r);
/* fill_urgent.c, under fill's lock: the queue of samples that clients wait for; a thread's next work for
 * them. -ENOMEM; false: nothing. */
int fill_urgent_plan(struct wset *ws);
void fill_urgent_add(struct wset *ws, uint64_t i);
int fill_urgent_there_plan(struct wset_urgent *ret);
void fill_urgent_there_add(struct wset *ws, const uint64_t *samples, uint32_t n, uint8_t from,
                           uint32_t share);
bool fill_urgent_pick(struct wset *ws, unsigned threads, struct fill_pick *p);
/* fill.c: the thread's wide bounce buffer, which is charged, at a border of 2 MiB; NULL: there is no memory for it, or no share. */
uint8_t *fill_wide(struct fill_thread *t, uint64_t *ret_bytes);
/* Gives it back, and its reservation, if there is one. */
void fill_wide_give(struct fill_thread *t);
/* None of its segments is left to begin. */
bool fill_all_begun(const struct fill_thread *t, const struct wset *ws);
/* Closes the cached sources. */
void fill_sources_close(struct fill_thread *t);

/* [begin, end) of the remote extent e, to dst: begins, or waits until it can. In the order of addresses. */
void fill_remote_add(struct fill_thread *t, struct wset *ws, const struct index_extent *e, uint64_t begin,
                     uint64_t end, uint8_t *dst, struct fill_counters *counters);
/* Of the server of the set's sources, as this thread measured it: the least time to an answer. 0: unknown. */
uint64_t fill_remote_first_byte_ns(const struct fill_thread *t, const struct wset *ws);
bool fill_remote_busy(const struct fill_thread *t);
/* Waits for all that was begun. `end` of the range. */
void fill_remote_finish(struct fill_thread *t, struct wset *ws, uint64_t end, struct fill_counters *counters);
/* Loads of a set that is remote as a whole, until none is under way: this one, and those that fill_load_join gives. */
void fill_remote_loads(struct fill_thread *t, struct wset *ws, struct fill_load *load,
                       struct fill_counters *counters);
/* fill.c: the next load of ws, if it is that load's turn and there is room for it in addition to
 * loading_bytes. Else NULL, and the thread is woken for a later one while it has some. */
struct fill_load *fill_load_join(struct fill_thread *t, const struct wset *ws, uint64_t loading_bytes);
/* fill.c: memory for its bytes. False: there is none, and it has ended. */
bool fill_load_backed(struct fill_load *load);
/* Are there sessions? Then fill_remote_close ends them. */
bool fill_remote_open(const struct fill_thread *t);
void fill_remote_close(struct fill_thread *t);
/* fill.c: which session the thread may wait for from here on (NULL: none), so that it can be woken. */
void fill_remote_waits(struct fill_thread *t, struct backend *backend);
unsigned fill_connections(const struct fill_thread *t);
/* fill.c: whether the thread must stop reading for ws. */
bool fill_remote_cancelled(struct fill_thread *t, const struct wset *ws);

#endif
