/* SPDX-License-Identifier: Apache-2.0 */
/*
 * urgent.h: samples of one set that clients of this node wait for and other nodes have to load: which are sent to which
 * node (URGENT), and when. Decisions alone: the caller sends. Pure.
 *
 *   a wait ─▶ urgent_add ─▶ wanted ── all that came within URGENT_GATHER_NS, a message a node ─▶ sent ── there, or lost ─▶ dropped
 *               └ full: it offers the rest      ▲                                                  │
 *                 when samples arrived          └─ the link is up (again), or URGENT_AGAIN_NS are over ┘
 *
 * A receiver may ignore what it is sent: the set is not there yet, there is no room, its process or its connection ended. It
 * does not answer. So what is still waited for is sent again, and nothing is known of the receiver but the share of its
 * queue that this node has: no more than that is under way. A wait that ends early leaves its samples wanted: the receiver
 * has them in its queue as well.
 */
#ifndef CLUSTER_URGENT_H
#define CLUSTER_URGENT_H

#include "base/base.h"
#include "base/clock.h"
#include "wire/leat/proto.h"

#define URGENT_NODES     64u             /* at most: a bit each */
#define URGENT_GATHER_NS (1 * NS_PER_MS) /* between two messages about a set to one node, at least */
#define URGENT_AGAIN_NS  (2 * NS_PER_S)

struct urgent_sample {
    uint64_t sample;
    uint64_t nodes; /* that have bytes of it to load: a bit each */
    uint64_t sent;  /* those of them that were asked */
};

/* All zero at first. */
struct urgent {
    uint64_t due_ns; /* of the next urgent_step; 0: there is none */
    uint64_t again_ns;
    uint32_t n;
    struct urgent_sample at[PROTO_URGENT_MAX]; /* the oldest first */
};

/* The nodes that have bytes of a sample to load. 0: it is not waited for any more. known: the last answer, which will do as well;
 * 0: there is none. */
typedef uint64_t (*urgent_nodes_fn)(const void *user, uint64_t sample, uint64_t known);

/* Of the queue of a receiver, for each other node. */
uint32_t urgent_share(uint32_t nnodes);
/* `nodes` is not 0. False: there is no room before the next urgent_advanced. */
bool urgent_add(struct urgent *u, uint64_t sample, uint64_t nodes, uint64_t now_ns);
/* Samples of the set have arrived, failed or been lost. */
void urgent_advanced(struct urgent *u, urgent_nodes_fn nodes_of, const void *user, uint64_t now_ns);
/* The link to a node is up, perhaps again: what was under way on the last one may be lost. */
void urgent_up(struct urgent *u, uint32_t node, uint64_t now_ns);
/* At due_ns. True: urgent_take of each node that can be sent to. */
bool urgent_step(struct urgent *u, urgent_nodes_fn nodes_of, const void *user, uint64_t now_ns);
/* What is to be sent to a node now, PROTO_URGENT_MAX at most. Returns how many. */
uint32_t urgent_take(struct urgent *u, uint32_t node, uint32_t share, uint64_t *ret_samples);

#endif
