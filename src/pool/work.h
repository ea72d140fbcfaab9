/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.h: work that takes too long for the loop (validating and joining large indexes, backing regions with
 * memory) runs on a thread of its own, and returns to the loop:
 *
 *   loop: work_start ──▶ thread: run(work) ──▶ loop: done(work)
 *
 * At most WORKS_MAX run at once, the others wait their turn. done comes exactly once, never from inside work_start. When the pool
 * ends, what has not begun is done without having run: `cancelled`. What run() touches is its own until done, or atomic.
 */
#ifndef POOL_WORK_H
#define POOL_WORK_H

#include "base/base.h"
#include "base/list.h"

struct pool;

struct work {
    struct list node; /* pool.works */
    struct pool *pool;
    void (*run)(struct work *work);  /* any thread */
    void (*done)(struct work *work); /* loop; frees */
    bool running, cancelled;
};

/* Control loop. run and done are set; a thread that cannot be started is no failure: the loop does it then. */
void work_start(struct pool *pool, struct work *work);
/* The same at once, outside that limit, for what has a limit of its own. -errno: there is no thread, and done does not come. */
int work_start_now(struct pool *pool, struct work *work);
/* The pool is ending: what waits is cancelled, what runs is heard out by pool_stop's turns of the loop. */
void work_cancel_waiting(struct pool *pool);

#endif
