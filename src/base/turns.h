/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h: whose turn it is, where some threads do work that waits for several parties (remotes, peers), any of which may have fallen silent.
 *
 * A party gets one more thread only while fewer are at work for it than are idle: who is silent holds half of them, the next one half of what is left, and so
 * on; there is one for who comes with something new. That is also what one party alone gets. Those who wait are served in turn, the work of each in order.
 * (Dynamic thresholds; Choudhury and Hahne, 1998, for the buffers of a switch.)
 *
 * No threads and no lock of its own: the caller's lock guards all of it, and nothing waits.
 */
#ifndef BASE_TURNS_H
#define BASE_TURNS_H

#include "base/list.h"

struct turns {
    struct list parties; /* who has work, queued or running */
    unsigned threads, running, queued;
    unsigned queue_max; /* of each party */
};
struct turns_party;

/* Embedded in the work. */
struct turn {
    struct list node;
};

void turns_init(struct turns *t, unsigned threads, unsigned queue_max);
/* Queues it. -EAGAIN: so much waits for this party already; -ENOMEM. */
int turns_add(struct turns *t, uint64_t party, struct turn *turn);
/* What may begin now, which counts as running until turns_end, of *ret_party; NULL: nothing. To be asked after each turns_add, and after a turns_end for two, as
 * that many may begin. */
struct turn *turns_next(struct turns *t, struct turns_party **ret_party);
void turns_end(struct turns *t, struct turns_party *party);
/* What is queued is given back, one by one, for who ends; NULL: there is none. */
struct turn *turns_drop(struct turns *t);

#endif
