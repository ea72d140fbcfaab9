/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ticket.h"

/* Relaxed order throughout: the counters guard no memory. What a ticket pays for is handed between threads by
 * whoever owns it, with an ordering of its own. */

void ticket_office_init(struct ticket_office *office, uint64_t cap_bytes)
{
    office->cap_bytes = cap_bytes;
    atomic_init(&office->used_bytes, 0);
    atomic_init(&office->peak_bytes, 0);
    atomic_init(&office->refused, 0);
}

int ticket_take(struct ticket_office *office, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&office->used_bytes, memory_order_relaxed);
    do {
        /* used never exceeds the cap, so the subtraction does not wrap where an addition could. */
        if (bytes > office->cap_bytes - used) {
            atomic_fetch_add_explicit(&office->refused, 1, memory_order_relaxed);
            return -ENOSPC;
        }
    } while (!atomic_compare_exchange_weak_explicit(&office->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    uint64_t peak = atomic_load_explicit(&office->peak_bytes, memory_order_relaxed);
    while (used + bytes > peak &&
           !atomic_compare_exchange_weak_explicit(&office->peak_bytes, &peak, used + bytes,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    return 0;
}

void ticket_give(struct ticket_office *office, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&office->used_bytes, bytes, memory_order_relaxed);
    assert(before >= bytes);
    (void)before;
}
