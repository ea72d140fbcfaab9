/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dial.h: which address of a node is dialled next, and for how long it may be silent, as decisions. Pure.
 *
 *   address 0 ─▶ all that its name leads to, the one that answered last first ─▶ address 1 ... ─▶ DOWN
 *     └────────────────────────────────── after a pause ◀────────────────────────────────────────────┘
 *
 * An address that answers counts as tried until the owner has accepted the node there.
 */
#ifndef RPC_DIAL_H
#define RPC_DIAL_H

#include "base/base.h"
#include "base/clock.h"

#define DIAL_PAUSE_NS     (NS_PER_S / 2)
#define DIAL_NEXT_NS      (2 * NS_PER_S) /* for one address to answer, while there are others to try */
#define DIAL_HANDSHAKE_NS (5 * NS_PER_S) /* for the only one, or the last */

struct dial {
    unsigned naddresses; /* of the node; 1: one rail of it */
    bool stay;           /* dialled again after a pause, for ever */
    unsigned at, tried;  /* the address that is dialled; how many have failed since the last was accepted */
    unsigned nfound, found_at, found_tried; /* the same of those that its name leads to */
};

enum dial_action {
    DIAL_ADDRESS, /* `at`: look its name up, dial_found() */
    DIAL_FOUND,   /* `found_at` of its name */
    DIAL_DOWN,    /* none answers: report it, dial_down(), and DIAL_ADDRESS after DIAL_PAUSE_NS if `stay` */
};

static inline void dial_begin(struct dial *d)
{
    d->nfound = d->found_tried = 0;
}

/* The name of `at` leads to n addresses, of which `first` answered last. */
static inline void dial_found(struct dial *d, unsigned n, unsigned first)
{
    d->nfound = n;
    d->found_at = first;
}

/* The node there is the one that is meant. */
static inline void dial_accepted(struct dial *d)
{
    d->tried = d->found_tried = 0;
}

/* The nearest comes first, next time. */
static inline void dial_down(struct dial *d)
{
    d->tried = d->at = 0;
}

/* This address does not answer, or not any more: `accepted`, it had been. One that is not to stay is down
 * then. */
static inline enum dial_action dial_failed(struct dial *d, bool accepted)
{
    bool of_name = ++d->found_tried < d->nfound;
    if ((!of_name && ++d->tried >= d->naddresses) || (accepted && !d->stay))
        return DIAL_DOWN;
    if (of_name) {
        d->found_at = (d->found_at + 1) % d->nfound;
        return DIAL_FOUND;
    }
    d->at = (d->at + 1) % d->naddresses;
    return DIAL_ADDRESS;
}

/* How long this address may be silent. */
static inline uint64_t dial_patience_ns(const struct dial *d)
{
    bool others = d->tried + 1 < d->naddresses || d->found_tried + 1 < d->nfound;
    return others ? DIAL_NEXT_NS : DIAL_HANDSHAKE_NS;
}

#endif
