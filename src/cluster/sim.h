/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h: a static cluster in virtual time, for tests: nodes run the step functions of this room over a simulated network, with
 * crashes, pauses, cuts, resets, addresses that lead to another node, and messages in any order that TCP allows. All is chosen
 * by a seed. The simulator carries actions out as pool/nodes does, and can be made to break one rule of it.
 */
#ifndef CLUSTER_SIM_H
#define CLUSTER_SIM_H

#include "base/base.h"

enum sim_rule {
    SIM_IDENTITY,       /* a node that another one answers for is not up */
    SIM_RESTARTED,      /* another incarnation: the regions of the one before are lost */
    SIM_LOST,           /* so are those of a node that is down */
    SIM_SILENCE,        /* a node that does not answer is disconnected */
    SIM_EXPIRE,         /* holders that do not confirm in time hold nothing */
    SIM_MAY_RETURN,     /* one with several addresses gets that time */
    SIM_HELD_BY,        /* the end of an older connection releases nothing */
    SIM_HOLD_NEWEST,    /* nor does one replace a newer one */
    SIM_HOLD,           /* a holder repeats its request on each connection, */
    SIM_HOLD_LOST,      /* and to a host that it asks for lost regions */
    SIM_HOLD_PLACED,    /* and while its placement is under way */
    SIM_COMMIT_ALL,     /* a node that is sent COMMIT sends it to all */
    SIM_COMMIT_UP,      /* and to a node that comes up */
    SIM_COMMIT_TAKEN,   /* and a node that has the set since now to its hosts */
    SIM_ORPHAN,         /* a set that no node commits is dropped, */
    SIM_ORPHAN_WAIT,    /* after a while */
    SIM_FORGET,         /* a placement that failed is forgotten by the hosts that accepted it */
    SIM_FORGET_LATE,    /* so is a set that is installed again after it was dropped */
    SIM_ALL_ACCEPT,     /* one refusal ends a placement */
    SIM_HOSTS_CHECK,    /* so does a host that was lost since it accepted */
    SIM_CATCH_UP,       /* READY records are sent again to a node that comes up, */
    SIM_CATCH_UP_AGAIN, /* and once more when there was a request since */
    SIM_READY_CURRENT,  /* those of another incarnation than the one known are not believed */
    SIM_ASK_TAKEN,      /* a node that has a set since now asks its hosts what they have */
    SIM_ASK_COMMITTED,  /* so does one that was sent COMMIT */
    SIM_ASK,            /* lost hosts are asked until they are complete */
    SIM_REINSTALL,      /* a host that lacks a set is sent it again */
    SIM_INSTALL_GONE,   /* but not for a node whose connection has ended since, */
    SIM_INSTALL_KNOWN,  /* nor over one that is there */
    SIM_DIAL_NEXT, /* the next address of a node is dialled when one does not answer, or another node does, */
    SIM_DIAL_PATIENCE, /* also when it is silent, */
    SIM_DIAL_AGAIN,    /* and when none answered all of them, after a pause */
    SIM_RAIL_UP,       /* a rail by which the node answered is up, */
    SIM_RAIL_DOWN,     /* one by which it did not is down, */
    SIM_RAIL_REFUSED,  /* and a no is an answer */
    SIM_RULES,
};
extern bool sim_trace; /* print what happens */
extern const char *const sim_rule_names[SIM_RULES];

struct sim_result {
    char violation[256]; /* "": none */
    uint64_t events, ns; /* virtual time of the violation, or the end */
    unsigned committed, failed, crashes, restarts_unseen, refills, expired, orphans;
};

/* One schedule. `off`: the rule that is broken; SIM_RULES: none. */
void sim_run(uint64_t seed, enum sim_rule off, struct sim_result *ret_result);

#endif
