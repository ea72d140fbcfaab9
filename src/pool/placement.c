/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/placement.h"

int placement_map(const struct placement_node *nodes, unsigned nnodes, uint32_t nregions, uint32_t *ret_node)
{
    AUTO_FREE int64_t *credit = calloc(nnodes ? nnodes : 1, sizeof(*credit));
    AUTO_FREE uint64_t *left = calloc(nnodes ? nnodes : 1, sizeof(*left));
    if (!credit || !left)
        return -ENOMEM;
    /* Weights in 1/2^20 of the largest keep the arithmetic far from overflow. */
    uint64_t largest = 1;
    for (unsigned i = 0; i < nnodes; i++) {
        left[i] = nodes[i].weight ? nodes[i].free_regions : 0;
        largest = MAX(largest, nodes[i].weight);
    }
    for (uint32_t r = 0; r < nregions; r++) {
        int64_t sum = 0;
        int best = -1;
        for (unsigned i = 0; i < nnodes; i++) {
            if (left[i] == 0)
                continue;
            int64_t w = (int64_t)(((double)nodes[i].weight / (double)largest) * (1 << 20));
            w = MAX(w, 1);
            credit[i] += w;
            sum += w;
            if (best < 0 || credit[i] > credit[best])
                best = (int)i;
        }
        if (best < 0)
            return -ENOSPC;
        credit[best] -= sum;
        left[best]--;
        ret_node[r] = (uint32_t)best;
    }
    return 0;
}
