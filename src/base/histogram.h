/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h: durations: counts in buckets that double, 1 us to 67 s, in the form that Prometheus reads.
 * Adding is one relaxed atomic increment or two; any thread.
 */
#ifndef BASE_HISTOGRAM_H
#define BASE_HISTOGRAM_H

#include "base/base.h"

#define HISTOGRAM_BUCKETS 27u /* bucket k: up to 2^k microseconds; the last: everything above */

struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_BUCKETS + 1];
    _Atomic uint64_t sum_ns;
};

static inline void histogram_add(struct histogram *h, uint64_t ns)
{
    uint64_t us = ns / 1000;
    unsigned k = us <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(us - 1); /* smallest k with us <= 2^k */
    atomic_fetch_add_explicit(&h->counts[MIN(k, HISTOGRAM_BUCKETS)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_ns, ns, memory_order_relaxed);
}

#endif
