/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.h: large reads from files straight into pool memory. One engine belongs to one thread. Implementations
 * stand beside each other as equals: uring/ (io_uring, registered buffers), worker/ (pread in a small thread
 * pool, where containers refuse io_uring); tests stack testing_fault.h on one of them.
 *
 *   submit ──▶ in flight (at most `depth`) ──▶ reap: done(req, result), exactly once each, never inside submit
 *
 * Failure modes: a short read at end of file is a result smaller than `bytes`, not an error; -EIO and friends
 * are the request's result, the engine stays usable. disk_engine_free waits for requests in the kernel: no
 * buffer is written after it returns. It ends requests that had not started with -ECANCELED, so done() runs
 * for all. done() may submit again and may free its request; it may not reap, and may not free the engine.
 */
#ifndef DISK_DISK_H
#define DISK_DISK_H

#include "base/base.h"

struct disk_engine;

struct disk_read {
    /* in */
    int fd;
    uint64_t offset;
    void *dst;
    uint64_t bytes;
    int buffer; /* index of the registered buffer that contains dst, or -1 */
    void (*done)(struct disk_read *req, int64_t result); /* bytes read (short only at EOF) or -errno */
    /* the engine's until done */
    uint64_t got;
    void *link;
    int64_t result;
};

struct disk_ops {
    const char *name;
    /* Queues n requests, any number; the engine retries short reads itself until EOF and splits reads that
     * the kernel would not take at once (over 1 GiB). 0 or -errno (then none was queued; -ECANCELED while the
     * engine is being freed). */
    int (*submit)(struct disk_engine *e, struct disk_read **reqs, unsigned n);
    /* Calls done() for finished requests; waits for at least min_done of them (fewer if fewer are in flight).
     * Returns how many, or -errno. */
    int (*reap)(struct disk_engine *e, unsigned min_done);
    /* Readable when reap() would find something (now and then when not), for a loop_source; the same each time, the
     * engine's; -1 if it has none. An engine driven by waiting reaps alone need not ask, and saves the signals. */
    int (*event_fd)(struct disk_engine *e);
    /* Registers a buffer for fixed reads: returns its index, or -errno (then read with buffer = -1; nothing else
     * changes). io_uring pins the pages, so all of the buffer's memory is allocated now: reserve it first, and
     * unregister before a hole is punched. */
    int (*buffer_register)(struct disk_engine *e, void *addr, uint64_t bytes);
    void (*buffer_unregister)(struct disk_engine *e, int buffer);
    void (*free)(struct disk_engine *e);
};

struct disk_engine {
    const struct disk_ops *ops;
    unsigned depth;     /* most requests handed to the kernel at a time; submit queues the rest inside */
    unsigned in_flight; /* submitted and not done yet, queued ones included; owner thread */
    /* totals, readable from any thread */
    _Atomic uint64_t reads, bytes, errors;
    _Atomic uint64_t fixed_reads;      /* pieces read through a registered buffer */
    _Atomic uint64_t registered_bytes; /* now */
    _Atomic uint64_t
        register_failed;        /* buffers refused (RLIMIT_MEMLOCK, table full): their reads are plain ones */
    _Atomic int register_errno; /* the last refusal, as a positive errno; 0: none */
};

/* depth: requests in flight. -ENOSYS or -EPERM where the kernel or a container refuses io_uring. */
int disk_uring_new(unsigned depth, struct disk_engine **ret_engine);
/* depth threads, each a blocking pread at a time; depth 1 makes reads in the caller's thread at reap(). */
int disk_worker_new(unsigned depth, struct disk_engine **ret_engine);
/* "uring", "worker" or "auto" (uring where allowed). LEAT_DISK overrides "auto". Logs what was chosen once. */
int disk_engine_new(const char *kind, unsigned depth, struct disk_engine **ret_engine);
void disk_engine_free(struct disk_engine *e); /* NULL is fine */

/* Properties of reads from a file, found once a file. */
struct disk_file_traits {
    uint32_t
        /* Of offset, length and memory: the most that O_DIRECT requires; 0: no direct I/O here */
        direct_align;
    uint32_t direct_memory_align; /* of memory alone: NVMe requires 4 bytes, many others a block */
    const char *fs; /* "ext4", "xfs", "tmpfs", "overlay", "nfs", "fuse", "virtiofs", "other"; static string */
    bool network;   /* nfs, cifs, fuse...: pages cached here say nothing about the source */
};
/* Tests: the alignment of memory that files are taken to require; 0: their own. */
extern uint32_t disk_memory_align;
int disk_file_probe(int fd, struct disk_file_traits *ret_traits);
/* Share of [offset, offset+bytes) that the page cache holds, 0..1000 per mille (cachestat, else mincore);
 * -errno when the kernel does not report it. Never brings pages in. */
int disk_cached_permille(int fd, uint64_t offset, uint64_t bytes);

#endif
