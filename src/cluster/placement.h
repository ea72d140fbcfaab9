/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.h: which node holds which region of a working set. Pure and deterministic.
 *
 * The mapping: at each turn every node's credit grows by its weight, and the chosen one pays the sum of all weights. Only a node
 * with credit may be chosen, and of those the one whose credit would be the first to reach the price of a region were it passed over
 * (Tijdeman's chairman assignment, Discrete Mathematics 32, 1980). So neighbouring regions lie on different nodes, any prefix is split
 * in proportion to the weights within one region, and equal inputs give equal maps on every host. A node that is full leaves,
 * and the others begin anew from there.
 */
#ifndef CLUSTER_PLACEMENT_H
#define CLUSTER_PLACEMENT_H

#include "base/base.h"

struct placement_node {
    uint64_t weight;       /* capacity offered, in bytes */
    uint64_t free_regions; /* most regions it takes */
};

/* Writes the node number of each region. 0, or -ENOSPC when the nodes cannot hold them all; -ENOMEM. */
int placement_map(const struct placement_node *nodes, unsigned nnodes, uint32_t nregions, uint32_t *ret_node);

#endif
