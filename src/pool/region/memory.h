/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: pool_memory_available with the kernel's files named, so that trees recorded elsewhere can be tried. */
#ifndef POOL_REGION_MEMORY_H
#define POOL_REGION_MEMORY_H

#include "pool/pool.h"

struct memory_paths {
    const char *meminfo;     /* /proc/meminfo */
    const char *self_cgroup; /* /proc/self/cgroup */
    const char *cgroup_root; /* /sys/fs/cgroup: v2 here, v1 in memory/ below it */
};
/* The smaller of MemAvailable and the headroom of our groups; 1 GiB when nothing can be read. */
uint64_t memory_available(const struct memory_paths *paths);

#endif
