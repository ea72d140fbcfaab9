/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/urgent.h"

uint32_t urgent_share(uint32_t nnodes)
{
    return nnodes < 3 ? PROTO_URGENT_MAX : MAX(PROTO_URGENT_MAX / (nnodes - 1), 1u);
}

static void due(struct urgent *u, uint64_t at_ns)
{
    u->due_ns = u->due_ns ? MIN(u->due_ns, at_ns) : at_ns;
}

bool urgent_add(struct urgent *u, uint64_t sample, uint64_t nodes, uint64_t now_ns)
{
    for (uint32_t k = 0; k < u->n; k++) {
        if (u->at[k].sample == sample)
            return true;
    }
    if (u->n == PROTO_URGENT_MAX)
        return false;
    if (u->n == 0)
        u->again_ns = now_ns + URGENT_AGAIN_NS;
    u->at[u->n++] = (struct urgent_sample){.sample = sample, .nodes = nodes};
    due(u, now_ns + URGENT_GATHER_NS);
    return true;
}

/* Returns whether a node is still to be asked for one of them. `again`: all are to be. */
static bool drop_ended(struct urgent *u, urgent_nodes_fn nodes_of, const void *user, bool again)
{
    uint32_t kept = 0;
    bool unsent = false;
    for (uint32_t k = 0; k < u->n; k++) {
        struct urgent_sample s = u->at[k];
        s.nodes = nodes_of(user, s.sample, again ? 0 : s.nodes);
        s.sent = again ? 0 : s.sent;
        if (!s.nodes)
            continue;
        unsent = unsent || (s.nodes & ~s.sent);
        u->at[kept++] = s;
    }
    u->n = kept;
    if (!kept)
        u->due_ns = 0;
    return unsent;
}

void urgent_advanced(struct urgent *u, urgent_nodes_fn nodes_of, const void *user, uint64_t now_ns)
{
    if (drop_ended(u, nodes_of, user, false))
        due(u, now_ns + URGENT_GATHER_NS);
}

void urgent_up(struct urgent *u, uint32_t node, uint64_t now_ns)
{
    if (node >= URGENT_NODES || !u->n)
        return;
    for (uint32_t k = 0; k < u->n; k++)
        u->at[k].sent &= ~(UINT64_C(1) << node);
    due(u, now_ns + URGENT_GATHER_NS);
}

bool urgent_step(struct urgent *u, urgent_nodes_fn nodes_of, const void *user, uint64_t now_ns)
{
    if (!u->due_ns || now_ns < u->due_ns)
        return false;
    bool again = now_ns >= u->again_ns;
    if (again)
        u->again_ns = now_ns + URGENT_AGAIN_NS;
    bool unsent = drop_ended(u, nodes_of, user, again);
    u->due_ns = u->n ? MAX(u->again_ns, now_ns + URGENT_GATHER_NS) : 0;
    return unsent;
}

uint32_t urgent_take(struct urgent *u, uint32_t node, uint32_t share, uint64_t *ret_samples)
{
    uint32_t n = 0, under_way = 0;
    const uint64_t bit = node < URGENT_NODES ? UINT64_C(1) << node : 0;
    for (uint32_t k = 0; k < u->n; k++)
        under_way += (u->at[k].sent & bit) > 0;
    for (uint32_t k = 0; k < u->n && under_way < share; k++) {
        if (!(u->at[k].nodes & ~u->at[k].sent & bit))
            continue;
        u->at[k].sent |= bit;
        ret_samples[n++] = u->at[k].sample;
        under_way++;
    }
    return n;
}
