/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links.h: decisions about the connection to one other node, as a step function: an event and the time in, actions out. Pure.
 *
 *   DOWN ── connected ─▶ CONNECTED ── NODE answered by the node that is meant ─▶ UP ── disconnected ─▶ DOWN
 *                          └ answered by another one: rejected, its next address is tried
 *
 * A process that is stopped or stuck keeps its connections, so each node is asked (NODE) every tick. One that leaves a question
 * unanswered for LINK_SILENCE_NS is disconnected. Connections that the other node made to this one are `inbound` here.
 */
#ifndef CLUSTER_LINKS_H
#define CLUSTER_LINKS_H

#include "base/base.h"
#include "base/clock.h"

#define LINK_TICK_NS    (2 * NS_PER_S)
#define LINK_SILENCE_NS (20 * NS_PER_S) /* readers wait 30 s, and then still have to get it from the source */
/* For an inbound connection by another address: longer than it takes to notice that one is dead, and to make it. */
#define LINK_UNCONFIRMED_NS (30 * NS_PER_S)

enum link_state { LINK_DOWN, LINK_CONNECTED, LINK_UP };

/* All zero at first. */
struct cluster_link {
    enum link_state state;
    bool asked; /* a NODE is not answered yet, */
    uint64_t asked_ns;
    uint64_t inbound_lost_ns; /* when one ended that did not say FORGET; 0: none since the last expiry */
};

enum link_event {
    LINK_ON_CONNECTED,    /* and the token is proved */
    LINK_ON_IDENTIFIED,   /* NODE is answered by the node that is meant */
    LINK_ON_OTHER,        /* NODE is answered by another node */
    LINK_ON_UNANSWERED,   /* NODE could not be sent, or ended with its connection */
    LINK_ON_DISCONNECTED, /* no address of it answers */
    LINK_ON_INBOUND_LOST, /* of a node that may come back by another address */
    LINK_ON_RESTARTED,    /* it has another incarnation */
    LINK_ON_TICK,
};

/* To be done in this order. */
enum {
    LINK_REJECT = 1 << 0,     /* try its next address */
    LINK_ASK = 1 << 1,        /* send NODE */
    LINK_BECAME_UP = 1 << 2,  /* accept the connection: membership_up() */
    LINK_WENT_DOWN = 1 << 3,  /* membership_down() */
    LINK_DISCONNECT = 1 << 4, /* silent for too long */
    LINK_EXPIRE = 1 << 5, /* sets that it held here and has not confirmed since are not held by it any more */
};

/* LINK_* actions. */
unsigned link_step(struct cluster_link *link, enum link_event event, uint64_t now_ns);

#endif
