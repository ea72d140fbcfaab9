/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: monotonic time in nanoseconds; deadlines are absolute values of this clock, 0 meaning "none". */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull
#define NS_PER_US 1000ull

static inline uint64_t clock_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Milliseconds left for poll(2) at now_ns: -1 without a deadline, 0 when it has passed, rounded up otherwise. */
static inline int clock_left_ms(uint64_t deadline_ns, uint64_t now_ns)
{
    if (deadline_ns == 0)
        return -1;
    if (now_ns >= deadline_ns)
        return 0;
    uint64_t ms = (deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS;
    return ms > 0x7fffffff ? 0x7fffffff : (int)ms;
}

static inline int clock_poll_ms(uint64_t deadline_ns)
{
    return deadline_ns ? clock_left_ms(deadline_ns, clock_now_ns()) : -1;
}

#endif
