/* SPDX-License-Identifier: Apache-2.0 */
/* cond.h: condition variables that wait until a time of clock.h: setting the clock back prolongs no wait. */
#ifndef BASE_COND_H
#define BASE_COND_H

#include "base/clock.h"

#include <pthread.h>

static inline void cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

/* 0 or ETIMEDOUT, as pthread_cond_timedwait; until_ns 0: without an end. Of one that cond_init made. */
static inline int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    if (!until_ns)
        return pthread_cond_wait(cond, lock);
    struct timespec ts = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};
    return pthread_cond_timedwait(cond, lock, &ts);
}

#endif
