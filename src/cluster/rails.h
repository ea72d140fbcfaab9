/* SPDX-License-Identifier: Apache-2.0 */
/* rails.h: what a dial of one rail of another node says about that rail and about a set there, as a step
 * function. Pure. */
#ifndef CLUSTER_RAILS_H
#define CLUSTER_RAILS_H

#include "base/base.h"

/* All zero at first. */
enum cluster_rail_state { CLUSTER_RAIL_UNTRIED, CLUSTER_RAIL_UP, CLUSTER_RAIL_DOWN };

enum rail_event {
    RAIL_ON_UP,      /* the node that is meant answered by it */
    RAIL_ON_DOWN,    /* nothing did, or another node */
    RAIL_ON_REFUSED, /* the node answered, with a no: neither it nor the rail is down */
    RAIL_ON_STALE,   /* with this no: it does not hold the set any more */
};

enum {
    RAIL_LOG_UP = 1 << 0,
    RAIL_LOG_DOWN = 1 << 1,
    RAIL_ASK = 1 << 2, /* send RESYNC: it released the set, and this node did not learn of it */
};

/* RAIL_* actions. `by_rail`: this rail was asked for; else any address would do, and only the one that
 * answered is known. */
static inline unsigned rail_step(enum cluster_rail_state *rail, enum rail_event event, bool by_rail)
{
    enum cluster_rail_state before = *rail;
    if (event == RAIL_ON_STALE)
        return RAIL_ASK;
    if (event == RAIL_ON_REFUSED || (event == RAIL_ON_DOWN && !by_rail))
        return 0;
    *rail = event == RAIL_ON_UP ? CLUSTER_RAIL_UP : CLUSTER_RAIL_DOWN;
    if (*rail == before)
        return 0;
    return *rail == CLUSTER_RAIL_DOWN ? RAIL_LOG_DOWN : before == CLUSTER_RAIL_DOWN ? RAIL_LOG_UP : 0;
}

#endif
