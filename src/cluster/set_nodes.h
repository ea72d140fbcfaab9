/* SPDX-License-Identifier: Apache-2.0 */
/*
 * set_nodes.h: what this node knows of each node of one set, and what follows from it, as a step function. Pure.
 *
 * Two roles of another node are kept apart. A *host* has regions of the set: they are lost while it is, until it has filled them
 * again. A *holder* has asked this node to keep the set, on a connection of its own: until it says FORGET, or that connection
 * ends. A holder that may come back by another address is *unconfirmed* for a while instead.
 */
#ifndef CLUSTER_SET_NODES_H
#define CLUSTER_SET_NODES_H

#include "base/base.h"
#include "base/clock.h"

#define SET_ORPHAN_NS                                                                                        \
    (10 * NS_PER_S) /* for a COMMIT of another node, when the one that was to commit a set is lost */

struct set_node {
    uint64_t held_by; /* holder: the connection of its last request to keep the set */
    bool holder, unconfirmed;
    bool lost;  /* its regions cannot be read */
    bool asked; /* a RESYNC is not answered yet */
};

/* All zero: a set on one node alone. */
struct set_nodes {
    struct set_node *at; /* n, in the order of the set's node table */
    uint32_t n, nholders, nlost;
    uint32_t placer;      /* prepared: the node that is to commit it */
    uint64_t orphaned_ns; /* prepared: when that one was lost; 0: it was not */
};

enum set_event_type {
    SET_ON_UP,        /* its link is identified */
    SET_ON_TAKEN,     /* this node has the set since now: described, or installed again */
    SET_ON_COMMITTED, /* this node was sent COMMIT, and has committed it */
    SET_ON_LOST,      /* its link is down, or it was started again */
    SET_ON_FILLING,   /* it answered RESYNC: it has its regions, */
    SET_ON_COMPLETE,  /* and all of them are filled; */
    SET_ON_LACKING,   /* it does not have them; */
    SET_ON_REFUSED,   /* something else; */
    SET_ON_SILENT,    /* nothing, as its connection ended */
    SET_ON_HOLD,      /* it asks this node to keep the set, on `conn`: numbers rise */
    SET_ON_FORGET,
    SET_ON_INBOUND_LOST, /* connection `conn`, that it made to this node, ended; it may_return by another address */
    SET_ON_EXPIRE,       /* it did not return in time, or was started again */
    SET_ON_TICK,
};

struct set_event {
    enum set_event_type type;
    uint64_t conn;
    bool may_return;
    /* Of the set, now: */
    bool host;     /* the node has regions of it */
    bool up;       /* the node is */
    bool prepared; /* not committed yet */
    bool in_use;   /* this node keeps it for itself */
    bool refill;   /* its samples have a source, and it is the last version */
};

enum {
    SET_COMMIT = 1 << 0,   /* send COMMIT, before all else: it may have missed it */
    SET_CATCH_UP = 1 << 1, /* send all READY records */
    SET_ASK_ALL = 1 << 2, /* send RESYNC, to be sent its READY records, and held if this node holds the set */
    SET_ASK = 1 << 3,     /* send RESYNC */
    SET_LOSE = 1 << 4,    /* samples with bytes there are lost */
    SET_REGAIN = 1 << 5,  /* they are there again */
    SET_REINSTALL = 1 << 6, /* send INSTALL again */
    SET_DROP = 1 << 7,      /* no node needs it */
};

int set_nodes_init(struct set_nodes *s, uint32_t n); /* -ENOMEM */
void set_nodes_fini(struct set_nodes *s);
/* Node `at` loses its regions, or has them again. Returns whether that was news. */
bool set_nodes_lose(struct set_nodes *s, uint32_t at);
bool set_nodes_regain(struct set_nodes *s, uint32_t at);
/* SET_* actions for node `at`, in the order of their values; 0 for one that the set's table does not have. */
unsigned set_nodes_step(struct set_nodes *s, uint32_t at, const struct set_event *event, uint64_t now_ns);
/* A prepared set whose COMMIT cannot come any more. */
bool set_nodes_orphaned(const struct set_nodes *s, uint64_t now_ns);

#endif
