/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

/* Relaxed order throughout: the counters guard no memory. The owner of a reserved buffer hands it between
 * threads with an ordering of its own. */

void budget_init(struct budget *budget, uint64_t cap_bytes)
{
    budget->cap_bytes = cap_bytes;
    atomic_init(&budget->used_bytes, 0);
    atomic_init(&budget->peak_bytes, 0);
    atomic_init(&budget->refused, 0);
}

int budget_reserve(struct budget *budget, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
    do {
        /* used never exceeds the cap, so the subtraction does not wrap where an addition could. */
        if (bytes > budget->cap_bytes - used) {
            atomic_fetch_add_explicit(&budget->refused, 1, memory_order_relaxed);
            return -ENOSPC;
        }
    } while (!atomic_compare_exchange_weak_explicit(&budget->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    uint64_t peak = atomic_load_explicit(&budget->peak_bytes, memory_order_relaxed);
    while (used + bytes > peak &&
           !atomic_compare_exchange_weak_explicit(&budget->peak_bytes, &peak, used + bytes,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    return 0;
}

void budget_release(struct budget *budget, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
    assert(before >= bytes);
    (void)before;
}
