/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h: transports that exist for tests alone: a network in virtual time, and failures stacked on any other transport. */
#ifndef NET_TESTING_H
#define NET_TESTING_H

#include "net/net.h"

/* Virtual time, from a seed: each node has a latency, a rate and a queue; nodes can freeze, die, or answer late. */
struct net_sim_node {
    const uint8_t *memory; /* the node's regions, one after another */
    uint64_t region_bytes;
    uint32_t nregions;
    uint64_t latency_ns, bytes_per_s;
    uint64_t freeze_at_ns, thaw_at_ns, die_at_ns; /* virtual; 0 = never */
};
struct net_sim_config {
    uint64_t seed;
    const struct net_sim_node *nodes;
    unsigned nnodes;
    /* Incast: what overruns the queue costs a retry timeout. */
    uint64_t receiver_bytes_per_s, receiver_queue_bytes;
    uint64_t retry_ns;
};
int net_sim_new(const struct net_sim_config *config, struct net_ctx **ret_ctx);
uint64_t net_sim_now_ns(struct net_ctx *ctx);

/* Stacked on another context, which it then owns. Nth counts ops from 1; 0 = never. */
struct net_fault_rules {
    uint64_t fail_nth;
    int fail_code;
    uint64_t corrupt_nth; /* one byte of the payload is flipped after the checksum of the sender */
    uint64_t late_nth;    /* DONE with -ETIMEDOUT, and its bytes land late_polls polls later, then QUIESCED */
    unsigned late_polls;
};
int net_fault_new(struct net_ctx *lower, const struct net_fault_rules *rules, struct net_ctx **ret_ctx);

#endif
