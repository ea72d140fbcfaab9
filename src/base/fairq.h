/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fairq.h: whose turn it is, where some threads do work that waits for several parties (remotes, peers), any of which may have fallen silent.
 *
 * A party gets one more thread only while fewer are at work for it than are idle: who is silent holds half of them, the next one half of what is left, and so
 * on. That is also what one party alone gets. Those who wait are served in turn, the work of each in order. (Dynamic thresholds; Choudhury and Hahne, 1998,
 * for the buffers of a switch.)
 *
 * An eighth of the threads is kept: nobody's second thread is one of them, and none at all of who is slow, that is whose last work took FAIRQ_SLOW_NS or
 * more. Who is slow has a first thread, while there are others than those kept, and more only while the slow hold fewer than half of all threads, together. So the slow,
 * however many, leave an eighth to all others; only those that fall silent at the same time, for the first time, can take those, too, one each.
 *
 * No threads, no clock and no lock of its own: the caller's lock guards all of it, and nothing waits.
 */
#ifndef BASE_TURNS_H
#define BASE_TURNS_H

#include "base/list.h"

#define FAIRQ_SLOW_NS 5000000000u

struct fairq {
    struct list parties; /* who has work, queued or running, or is slow */
    unsigned threads, running, queued;
    unsigned queue_max;           /* of each party */
    unsigned nslow, slow_running; /* parties that are slow, and the threads at work for them */
};
struct fairq_source;

/* Embedded in the work. */
struct fairq_item {
    struct list node;
};

void fairq_init(struct fairq *t, unsigned threads, unsigned queue_max);
/* Queues it. -EAGAIN: so much waits for this party already; -ENOMEM. */
int fairq_push(struct fairq *t, uint64_t party, struct fairq_item *turn);
/* Nothing runs or waits. */
void fairq_fini(struct fairq *t);
/* What may begin now, which counts as running until fairq_done, of *ret_party; NULL: nothing. To be asked after each fairq_push. */
struct fairq_item *fairq_pop(struct fairq *t, struct fairq_source **ret_party);
/* took_ns: since fairq_pop. For so many fairq_pop is to be asked now; 2 at least, by whoever ended this one and by others. */
unsigned fairq_done(struct fairq *t, struct fairq_source *party, uint64_t took_ns);
/* What is queued is given back, one by one, for who ends; NULL: there is none. */
struct fairq_item *fairq_drain(struct fairq *t);

#endif
