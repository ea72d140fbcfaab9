/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fairq.h: a fair queue for threads whose work waits for several sources (remotes, peers), any of which may
 * have fallen silent.
 *
 * A source gets one more thread only while fewer work for it than are idle: a silent one holds half of them,
 * the next one half of what is left, and so on. A source that is alone gets the same. Waiting sources are
 * served in turn, the work of each in order. (Dynamic thresholds; Choudhury and Hahne, 1998, for the buffers
 * of a switch.)
 *
 * An eighth of the threads is reserved: for the first thread of each source that is not slow. A source is
 * slow when its last work took FAIRQ_SLOW_NS or more. A slow source has a first thread while others than the
 * reserved are idle. It gets more only while slow sources together hold fewer than half of all threads. So
 * slow sources, however many, leave an eighth to the others. Only sources that fall silent at the same time,
 * for the first time, can take the reserved threads too, one each.
 *
 * No threads, no clock and no lock of its own: the caller's lock guards all of it, and nothing waits.
 */
#ifndef BASE_TURNS_H
#define BASE_TURNS_H

#include "base/list.h"

#define FAIRQ_SLOW_NS 5000000000u

struct fairq {
    struct list parties; /* that have work, queued or running, or are slow */
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
/* Queues it. -EAGAIN: this party has the most items that may wait; -ENOMEM. */
int fairq_push(struct fairq *t, uint64_t party, struct fairq_item *turn);
/* Nothing runs or waits. */
void fairq_fini(struct fairq *t);
/* The item that may begin now, which counts as running until fairq_done, of *ret_party; NULL: none. Call it
 * after each fairq_push. */
struct fairq_item *fairq_pop(struct fairq *t, struct fairq_source **ret_party);
/* took_ns: since fairq_pop. Returns how many calls of fairq_pop are due now: by the caller and by other
 * threads, 2 at least. */
unsigned fairq_done(struct fairq *t, struct fairq_source *party, uint64_t took_ns);
/* For a queue that ends: returns what is queued, one by one; NULL: there is none. */
struct fairq_item *fairq_drain(struct fairq *t);

#endif
