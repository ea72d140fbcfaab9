/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.h: a memory region: a memfd that the daemon maps read-write and passes on re-opened read-only. It belongs to
 * one working set for its whole life (several versions of it may share it); it is never used again for another.
 */
#ifndef POOL_REGION_H
#define POOL_REGION_H

#include "base/base.h"

struct region {
    _Atomic unsigned refs;
    int fd;                       /* read-write: never leaves the daemon */
    int fd_ro;                    /* what clients get: cannot be written, nor mapped writable */
    uint8_t *addr;                /* whole region, mapped shared */
    uint64_t bytes;               /* a multiple of 2 MiB, or of the system's page in tests */
    uint64_t used_bytes;          /* the part that holds data: only this is ever backed by memory */
    bool huge;                    /* huge pages were asked for */
    struct ticket_office *office; /* gets used_bytes back when the region goes */
};

/* Creates and maps; no memory is reserved yet. The caller has taken a ticket of used_bytes from office (may be NULL). */
int region_new(uint64_t bytes, uint64_t used_bytes, bool huge, struct ticket_office *office,
               struct region **ret_region, struct leat_error *err);
/* Backs [offset, +bytes) with memory, so that lack of it is -ENOSPC or -ENOMEM here and never SIGBUS later. Any thread. */
int region_reserve(struct region *r, uint64_t offset, uint64_t bytes);
struct region *region_ref(struct region *r);
/* The last reference punches the memory out, so that a client that still maps it holds no memory, and gives the ticket back. */
void region_unref(struct region *r);
/* Takes the memory away at once (drop by force): mappings read zeros from here on. */
void region_punch(struct region *r);
/* Page size that backs it: 2 MiB when huge pages map part of it, else the base page. Reads smaps: slow. */
uint64_t region_page_bytes(const struct region *r);
/* Whether the kernel gives huge pages to memfds on madvise (or always): shmem_enabled. */
bool region_huge_available(void);

#endif
