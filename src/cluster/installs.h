/* SPDX-License-Identifier: Apache-2.0 */
/*
 * installs.h: does this node take a set over that another node described, or why not, as a decision. Pure.
 *
 *   validated ─▶ WAIT, while the version before is not complete here ─▶ PREPARE (until COMMIT), or HOST at once
 */
#ifndef CLUSTER_INSTALLS_H
#define CLUSTER_INSTALLS_H

#include "base/base.h"
#include "base/clock.h"

#define INSTALL_COMPLETE_NS                                                                                  \
    (10 * NS_PER_S) /* for READY records of the version before, that are on their way */

/* The version before the set, whose regions it shares. */
enum install_before {
    INSTALL_FIRST,      /* there is none */
    INSTALL_MISSING,    /* it is not here, */
    INSTALL_MISFIT,     /* or another one than was described; */
    INSTALL_APPENDING,  /* another set is being made from it; */
    INSTALL_LOST,       /* a node that holds part of it is lost here; */
    INSTALL_INCOMPLETE, /* what it holds is not all known yet */
    INSTALL_COMPLETE,
};

struct install {
    bool gone;       /* the node that asked, or this pool, is ending */
    bool known;      /* the set is here */
    bool over_limit; /* of sets */
    bool named;      /* its name is another set's, which is not the version before */
    bool prepare;    /* it is placed: all of its hosts, or none */
    enum install_before before;
    uint64_t since_ns; /* when it was validated */
};

enum install_action {
    INSTALL_DO_PREPARE, /* and answer when it is prepared */
    INSTALL_DO_HOST,    /* list it, and begin to fill */
    INSTALL_WAIT, /* and decide again; it is the one that is made from the version before, as with those above */
    INSTALL_REFUSE_GONE,
    INSTALL_REFUSE_KNOWN,
    INSTALL_REFUSE_LIMIT,
    INSTALL_REFUSE_BEFORE, /* says `before`; INCOMPLETE: for too long */
    INSTALL_REFUSE_NAMED,
};

static inline enum install_action install_step(const struct install *i, uint64_t now_ns)
{
    if (i->gone)
        return INSTALL_REFUSE_GONE;
    if (i->known)
        return INSTALL_REFUSE_KNOWN;
    if (i->over_limit)
        return INSTALL_REFUSE_LIMIT;
    if (i->before == INSTALL_INCOMPLETE && now_ns - i->since_ns <= INSTALL_COMPLETE_NS)
        return INSTALL_WAIT;
    if (i->before != INSTALL_FIRST && i->before != INSTALL_COMPLETE)
        return INSTALL_REFUSE_BEFORE;
    if (i->named)
        return INSTALL_REFUSE_NAMED;
    return i->prepare ? INSTALL_DO_PREPARE : INSTALL_DO_HOST;
}

#endif
