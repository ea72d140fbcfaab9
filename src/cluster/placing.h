/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placing.h: one set on several nodes, all of them or none, as decisions. Pure.
 *
 *   OFFERS: NODE to all ─▶ PREPARING: regions are mapped, and prepared here ─▶ INSTALLING on the hosts ─▶ COMMIT, or FORGET
 *
 * Each message has one answer. A step that failed waits for the answers that are still to come. Each step waits for its own
 * sending, too, which is its last answer.
 */
#ifndef CLUSTER_PLACING_H
#define CLUSTER_PLACING_H

#include "base/base.h"

enum placing_phase { PLACING_OFFERS, PLACING_PREPARING, PLACING_INSTALLING, PLACING_ENDED };

struct placing_state {
    enum placing_phase phase;
    bool failed;
    unsigned waiting;
};

enum placing_action {
    PLACING_WAIT,
    PLACING_PREPARE, /* map the regions, and prepare the set here */
    PLACING_INSTALL, /* send INSTALL to its hosts */
    PLACING_COMMIT,  /* send COMMIT to all, if every host is still up and not lost; else as FORGET */
    PLACING_FORGET,  /* send FORGET to the hosts that accepted it, and drop it here */
};

static inline struct placing_state placing_begin(void)
{
    return (struct placing_state){.waiting = 1};
}

static inline void placing_sent(struct placing_state *s)
{
    s->waiting++;
}

/* An answer, the end of sending, or that of preparing. */
static inline enum placing_action placing_answered(struct placing_state *s, bool ok)
{
    s->failed = s->failed || !ok;
    if (--s->waiting > 0)
        return PLACING_WAIT;
    s->waiting = 1;
    if (s->failed)
        s->phase = PLACING_INSTALLING;
    switch (s->phase++) {
    case PLACING_OFFERS:
        return PLACING_PREPARE;
    case PLACING_PREPARING:
        return PLACING_INSTALL;
    default:
        return s->failed ? PLACING_FORGET : PLACING_COMMIT;
    }
}

#endif
