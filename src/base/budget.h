/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h: a reservation of bytes under a hard cap. A buffer's reservation is taken before the work that
 * needs the buffer starts, and given back after the buffer is gone. Thread-safe, lock-free, without waiting:
 * a refused caller reports it, or asks again after a release.
 */
#ifndef BASE_TICKET_H
#define BASE_TICKET_H

#include "base/base.h"

struct budget {
    uint64_t cap_bytes;
    _Atomic uint64_t used_bytes;
    _Atomic uint64_t peak_bytes;
    _Atomic uint64_t refused; /* count */
};

void budget_init(struct budget *budget, uint64_t cap_bytes);
/* 0, or -ENOSPC when `bytes` more would exceed the cap. */
int budget_reserve(struct budget *budget, uint64_t bytes);
void budget_release(struct budget *budget, uint64_t bytes);

#endif
