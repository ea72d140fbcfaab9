/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catchup.h: READY records of one set sent again to one node, portion by portion, as decisions. Pure.
 *
 *   request ─▶ MAKE ── a portion ─▶ SEND ── sent ─▶ MAKE ... ── nothing is left ─▶ DONE, or from the start if there was a request since
 */
#ifndef CLUSTER_CATCHUP_H
#define CLUSTER_CATCHUP_H

#include "base/base.h"

/* A new request: all zero. */
struct catchup {
    bool sending;
    bool again;  /* requested again after it began: more was filled since */
    uint64_t at; /* the unit that the next portion begins with; counted by the maker */
};

enum catchup_action { CATCHUP_WAIT, CATCHUP_MAKE, CATCHUP_SEND, CATCHUP_DONE };

/* The set is to be sent to a node whose catch-up of it is under way. */
static inline void catchup_request(struct catchup *c)
{
    c->again = c->at > 0;
}

/* What to do when nothing else happened. `ended`: the set has. */
static inline enum catchup_action catchup_next(const struct catchup *c, bool ended)
{
    return c->sending ? CATCHUP_WAIT : ended ? CATCHUP_DONE : CATCHUP_MAKE;
}

/* After MAKE, which has moved `at`: is there a portion? */
static inline enum catchup_action catchup_made(struct catchup *c, bool any)
{
    c->sending = any;
    if (any)
        return CATCHUP_SEND;
    c->at = 0;
    return c->again ? (c->again = false, CATCHUP_MAKE) : CATCHUP_DONE;
}

/* The portion was sent. False: its connection ended, and the catch-up with it; the next connection begins with a new request. */
static inline bool catchup_sent(struct catchup *c, bool ok)
{
    c->sending = false;
    return ok;
}

/* New records for a node: with what is queued, more than `limit_bytes`? Then they come by a catch-up, at the pace of the node. */
static inline bool catchup_instead(uint64_t bytes, uint64_t queued_bytes, uint64_t limit_bytes)
{
    return bytes + queued_bytes > limit_bytes;
}

#endif
