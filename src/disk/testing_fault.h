/* SPDX-License-Identifier: Apache-2.0 */
/* testing_fault.h: a disk engine in front of another one, with errors, short reads and delays. */
#ifndef DISK_TESTING_FAULT_H
#define DISK_TESTING_FAULT_H

#include "disk/disk.h"

/* Stacks faults on `lower`, which it then owns (not on failure): each rule fires on the Nth request (1 = first, 0 = never). */
struct disk_fault_rules {
    uint64_t fail_nth;
    int fail_code;       /* -EIO, -ENOSPC, ... */
    uint64_t fail_every; /* and on every multiple of this, 0 = no */
    uint64_t other_nth;  /* fails as well, with other_code */
    int other_code;
    uint64_t short_nth; /* a result of half the bytes, as if the file had been truncated */
    uint64_t delay_ns;  /* each request */
};
int disk_fault_new(struct disk_engine *lower, const struct disk_fault_rules *rules,
                   struct disk_engine **ret_engine);

#endif
