/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.h: a memory region: a memfd (or a nameless file in a tmpfs of our own, for huge pages), which the
 * daemon maps read-write and passes on re-opened read-only. It belongs to one working set for its whole life
 * (several versions of it may share it), and is never used for another.
 */
#ifndef POOL_REGION_H
#define POOL_REGION_H

#include "base/base.h"
#include "net/rdma.h"

/* Where a region's memory comes from. */
enum region_pages {
    REGION_BASE,   /* memfd, base pages */
    REGION_ADVISE, /* memfd, huge pages by madvise: where shmem_enabled allows it */
    REGION_HUGEFS, /* a file in our own tmpfs with huge=always (pool/region/hugefs.h) */
};
#define REGION_HUGE_BYTES (2 * MIB)

struct region_source {
    bool huge;    /* ask for huge pages */
    int huge_dir; /* hugefs_open, or -1 */
};
/* The pages of a region of `bytes`: regions smaller than a huge page get base pages. */
enum region_pages region_pages(const struct region_source *source, uint64_t bytes);
/* "memfd", "memfd, huge pages advised", "private tmpfs with huge pages". */
const char *region_pages_name(enum region_pages pages);
/* Memory that the first `used_bytes` of a region take, in whole pages: what its reservation is for. */
uint64_t region_charge(const struct region_source *source, uint64_t bytes, uint64_t used_bytes);

struct region {
    _Atomic unsigned refs;
    int fd;              /* read-write: never leaves the daemon */
    int fd_ro;           /* what clients get: cannot be written, nor mapped writable */
    uint8_t *addr;       /* whole region, mapped shared */
    uint64_t bytes;      /* a multiple of 2 MiB, or of the system's page in tests */
    uint64_t used_bytes; /* the part that holds data: only this is ever backed by memory */
    _Atomic uint64_t
        prefault_bytes; /* from its beginning: backed, zero and mapped before a set had it (pool/region/prefault.h) */
    enum region_pages pages;
    atomic_bool given_up;      /* region_give_up */
    struct net_rdma_slot rdma; /* registered with the rails when the first client asks for its keys */
    struct budget *budget;     /* gets used_bytes back when the region goes */
};

/* Creates and maps; no memory is reserved yet. The caller has taken a reservation of used_bytes from budget (may be NULL). */
int region_new(const struct region_source *source, uint64_t bytes, uint64_t used_bytes, struct budget *budget,
               struct region **ret_region, struct leat_error *err);
/* Backs [offset, +bytes) with memory, so that lack of it is -ENOSPC or -ENOMEM here and never SIGBUS later. Any thread. */
int region_reserve(struct region *r, uint64_t offset, uint64_t bytes);
/* Backs [prefault_bytes, +bytes) and maps it here, all zeros, so that writing there neither faults nor clears: prefault_bytes goes up.
 * One thread, before a set has the region. 0, -ENOSPC, -ENOMEM. */
int region_prepare(struct region *r, uint64_t bytes);
/* Takes the memory at and above `bytes` away, a multiple of the page; prefault_bytes goes down to it. Before a set has the region. */
void region_trim(struct region *r, uint64_t bytes);
struct region *region_ref(struct region *r);
/* The last reference punches the memory out, so that a client that still maps it holds no memory, and gives the reservation back. */
void region_unref(struct region *r);
/* Takes the memory away at once (drop by force): mappings read zeros from here on. */
void region_punch(struct region *r);
/* The same for a region of a set that ends by force, and its reservation goes back too; not when another version of the set has it.
 * Control loop. */
void region_give_up(struct region *r);
/* For a thread that has written to the region: frees pages that it brought back after region_give_up. */
void region_written(struct region *r);
/* Page size that backs it: 2 MiB when huge pages map part of it, else the base page. Before 6.7 it reads smaps: slow. */
uint64_t region_page_bytes(const struct region *r);
/* Whether the kernel gives huge pages to memfds on madvise (or always): shmem_enabled. */
bool region_huge_available(void);

#endif
