/* SPDX-License-Identifier: Apache-2.0 */
/* fill_internal.h: between fill.c (queues and threads) and fill_read.c (one range of addresses into memory). */
#ifndef POOL_FILL_INTERNAL_H
#define POOL_FILL_INTERNAL_H

#include "dataset/dataset.h"
#include "disk/disk.h"
#include "pool/fill.h"

#define SOURCES_CACHED 8u
#define RANGES_BAD_MAX 64u

/* A range that did not arrive, and why. */
struct fill_bad {
    uint64_t begin, end;
    int code;
    char message[200];
};

/* An open source file, kept by a thread between segments. */
struct fill_source {
    uint64_t serial; /* of the working set; 0: free */
    uint64_t source;
    int fd, fd_direct;
    struct disk_file_traits traits;
    uint64_t used; /* for least-recently-used */
};

struct fill_thread {
    struct fill *fill;
    struct disk_engine *engine;
    struct fill_source sources[SOURCES_CACHED];
    uint64_t clock;
    struct dataset_scratch scratch;
    uint8_t *band; /* a decoded extent of which only a piece is wanted */
    uint64_t band_cap;
    struct fill_bad bad[RANGES_BAD_MAX];
    unsigned nbad;
};

/* Totals: relaxed atomics, readable while threads run. */
struct fill_counters {
    _Atomic uint64_t bytes_direct, bytes_buffered, bytes_decoded, files_opened, segments, errors;
};

/*
 * Reads [address, +bytes) of the set's linear space to dst. Ranges that could not be read are in t->bad afterwards; the last
 * entry covers everything from there on when there are too many. Returns how many bad ranges.
 */
unsigned fill_read_range(struct fill_thread *t, struct wset *ws, uint64_t address, uint64_t bytes,
                         uint8_t *dst, const struct source_opener *opener, struct fill_counters *counters);
/* The bad range that overlaps [begin, end), or NULL. */
const struct fill_bad *fill_bad_in(const struct fill_thread *t, uint64_t begin, uint64_t end);
/* Closes the cached sources. */
void fill_sources_close(struct fill_thread *t);

#endif
