/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.h: which node holds which region of a working set. Pure and deterministic.
 *
 * The mapping: smooth weighted round robin. Region 0, 1, 2, … each goes to the node with the largest credit, where before
 * each turn every node's credit grows by its weight and the chosen one pays the sum of all weights; a node that
 * is full leaves the round. So neighbouring regions lie on different nodes, any prefix is split in proportion to the
 * weights within one region, and equal inputs give equal maps on every host.
 */
#ifndef POOL_PLACEMENT_H
#define POOL_PLACEMENT_H

#include "base/base.h"

struct placement_node {
    uint64_t weight;       /* capacity offered, in bytes */
    uint64_t free_regions; /* most regions it takes */
};

/* Writes the node number of each region. 0, or -ENOSPC when the nodes cannot hold them all; -ENOMEM. */
int placement_map(const struct placement_node *nodes, unsigned nnodes, uint32_t nregions, uint32_t *ret_node);

#endif
