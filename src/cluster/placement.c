/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/placement.h"

struct round_node {
    uint64_t left;
    int64_t weight, credit;
};

/* The node whose turn it is, or -1: all are full. */
static int choose(struct round_node *nodes, unsigned n, int64_t sum)
{
    int best = -1;
    for (unsigned i = 0; i < n; i++) {
        struct round_node *c = &nodes[i], *b = &nodes[best < 0 ? 0 : best];
        if (c->left == 0)
            continue;
        c->credit += c->weight;
        /* Turns until its credit is a whole region's: (sum - credit) / weight; without division. */
        if (c->credit > 0 && (best < 0 || (sum - c->credit) * b->weight < (sum - b->credit) * c->weight))
            best = (int)i;
    }
    return best;
}

int placement_map(const struct placement_node *nodes, unsigned nnodes, uint32_t nregions, uint32_t *ret_node)
{
    AUTO_FREE struct round_node *round = calloc(nnodes ? nnodes : 1, sizeof(*round));
    if (!round)
        return -ENOMEM;
    uint64_t largest = 1;
    int64_t sum = 0;
    for (unsigned i = 0; i < nnodes; i++)
        largest = MAX(largest, nodes[i].weight);
    for (unsigned i = 0; i < nnodes; i++) {
        /* Weights in 1/2^20 of the largest keep the arithmetic far from overflow. */
        int64_t weight = (int64_t)(((double)nodes[i].weight / (double)largest) * (1 << 20));
        round[i].left = nodes[i].weight ? nodes[i].free_regions : 0;
        round[i].weight = MAX(weight, 1);
        sum += round[i].left ? round[i].weight : 0;
    }
    for (uint32_t r = 0; r < nregions; r++) {
        int best = choose(round, nnodes, sum);
        if (best < 0)
            return -ENOSPC;
        round[best].credit -= sum;
        ret_node[r] = (uint32_t)best;
        if (--round[best].left == 0) {
            sum -= round[best].weight;
            for (unsigned i = 0; i < nnodes; i++)
                round[i].credit = 0;
        }
    }
    return 0;
}
