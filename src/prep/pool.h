/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h: threads that prepare the samples of a batch. Items are claimed one by one, so a slow one holds up nothing but itself; what an
 * item comes to depends on the item alone, never on who took it.
 */
#ifndef PREP_POOL_H
#define PREP_POOL_H

#include "prep/prep.h"

struct prep_pool;

/* `threads` in all, the caller of prep_pool_run among them: 1 starts none. 1..256, else LEAT_INVALID; -ENOMEM, -EAGAIN. */
int prep_pool_new(unsigned threads, struct prep_pool **ret_pool, struct leat_error *err);
/* No run may be under way. In a forked child, where the threads are not: do not call it. NULL: nothing. */
void prep_pool_free(struct prep_pool *pool);

/* Calls item(arg, i, scratch) once for each i < n and returns when all have returned. Concurrent runs take turns. */
void prep_pool_run(struct prep_pool *pool, size_t n,
                   void (*item)(void *arg, size_t i, struct prep_scratch *scratch), void *arg);

#endif
