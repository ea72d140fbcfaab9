/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: how much memory this host and its control groups allow. Any thread. */
#ifndef POOL_REGION_MEMORY_H
#define POOL_REGION_MEMORY_H

#include "base/base.h"

/* Host memory that can be taken without pressure on others: MemAvailable and the cgroup's headroom. */
uint64_t pool_memory_available(void);
/* The cap of a daemon without one in its configuration: half of what is available. */
uint64_t pool_default_cap(void);
/* A region size for a pool of this cap: 512 MiB, smaller where fewer than eight would fit. */
uint64_t pool_default_region(uint64_t cap_bytes);

/* The same of named files, for tests with recorded trees. */
struct memory_paths {
    const char *meminfo;     /* /proc/meminfo */
    const char *self_cgroup; /* /proc/self/cgroup */
    const char *cgroup_root; /* /sys/fs/cgroup: v2 here, v1 in memory/ below it */
};
/* The smaller of MemAvailable and the headroom of our groups; 1 GiB when nothing can be read. */
uint64_t memory_available(const struct memory_paths *paths);

#endif
