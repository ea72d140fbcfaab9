/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples that are waited for on one node and loaded by another: what cluster/urgent.h decides is sent here, and what other nodes
 * send goes to the fill's queue for them.
 *
 *   a client's WAIT ─▶ nodes_urge ─▶ urgent.h ─▶ URGENT ─▶ nodes_on_urgent ─▶ fill_urgent_there ─▶ loaded ─▶ READY ─▶ the WAIT is answered
 *
 * Failure modes. A node is not up, speaks version 2, or takes too little of what is queued for it: nothing is sent, and its
 * segments come in their turn. Its process or its connection ends: its samples are LOST, which ends the wait, or the link comes
 * back by another address, and all is sent again. It does not have the set (yet): it ignores the message, and gets
 * another one while the wait lasts. A node that sends too much: its share of the queue is full, and the rest is ignored.
 */
#include "pool/nodes/nodes_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "cluster/urgent.h"
#include "rpc/conn.h"

#include <inttypes.h>

_Static_assert(CLUSTER_NODES_MAX <= URGENT_NODES, "a bit for each node");

#define URGENT_QUEUED (1 * MIB) /* waits for a node to be sent: no more is added for it */

/* urgent_nodes_fn: nodes with bytes of sample i that are not here. A region that moved counts from the next look on. */
static uint64_t nodes_of(const void *user, uint64_t i, uint64_t known)
{
    const struct wset *ws = user;
    enum live_state state = wset_sample_state(ws, i);
    struct index_part part;
    uint64_t mask = 0;
    if (state != LIVE_ABSENT && state != LIVE_LOADING)
        return 0;
    for (unsigned f = 0; !known && f < ws->index.header->nfields; f++) {
        if (!index_part(&ws->index, i, f, &part) || part.bytes == 0 || wset_part_known(ws, i, f))
            continue;
        uint64_t end = div_up(part.address + part.bytes, ws->region_bytes);
        for (uint64_t g = part.address / ws->region_bytes; g < MIN(end, ws->nregions); g++)
            mask |= UINT64_C(1) << wset_region_node(ws, (uint32_t)g) % URGENT_NODES;
    }
    return known ? known : mask & ~(UINT64_C(1) << ws->self_node);
}

/* The timer is set to the first step that is due, of all sets. */
static void timer_set(struct cluster *c, uint64_t due_ns)
{
    if (due_ns && (!c->urgent_timer.due_ns || due_ns < c->urgent_timer.due_ns))
        loop_timer_set(c->loop, &c->urgent_timer, due_ns);
}

/* Less those that cannot be asked: their samples would take the place of others. */
static uint64_t without_version_2(const struct cluster *c, uint64_t mask)
{
    for (uint64_t left = mask; left; left &= left - 1) {
        unsigned n = (unsigned)__builtin_ctzll(left);
        if (cluster_is_up(c, n) && peer_version(c->links[n].peer) < 3)
            mask &= ~(UINT64_C(1) << n);
    }
    return mask;
}

bool nodes_urge(struct cluster *c, struct wset *ws, uint64_t i)
{
    /* No daemon loads a set that ranks push. */
    bool loads = ws->nnodes && !(ws->flags & PROTO_WS_PUSHED);
    uint64_t mask = loads ? without_version_2(c, nodes_of(ws, i, 0)) : 0;
    if (!mask)
        return true;
    if (!ws->wanted) /* in SET_BYTES of wset.c */
        ws->wanted = calloc(1, sizeof(*ws->wanted));
    if (!ws->wanted || !urgent_add(ws->wanted, i, mask, clock_now_ns()))
        return false;
    timer_set(c, ws->wanted->due_ns);
    return true;
}

void nodes_urgent_advanced(struct cluster *c, struct wset *ws)
{
    if (!ws->wanted || !ws->wanted->n)
        return;
    urgent_advanced(ws->wanted, nodes_of, ws, clock_now_ns());
    timer_set(c, ws->wanted->due_ns);
}

void nodes_urgent_up(struct cluster *c, unsigned n)
{
    list_for_each (node, &c->pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (!ws->wanted)
            continue;
        urgent_up(ws->wanted, n, clock_now_ns());
        timer_set(c, ws->wanted->due_ns);
    }
}

static void wanted_send(struct cluster *c, const struct wset *ws, unsigned n)
{
    struct peer *peer = c->links[n].peer;
    if (n == c->self || !cluster_is_up(c, n) || peer_version(peer) < 3 || peer_queued(peer) > URGENT_QUEUED)
        return;
    uint64_t samples[PROTO_URGENT_MAX];
    struct proto_urgent m = {.n = urgent_take(ws->wanted, n, urgent_share(ws->nnodes), samples)};
    if (!m.n)
        return;
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    AUTO_BYTES struct bytes_out body = {0};
    proto_urgent_put(&body, &m);
    for (uint32_t k = 0; k < m.n; k++)
        proto_id_put(&body, &(struct proto_id){samples[k]});
    if (!body.failed) /* else it is sent with the next ones that are sent again */
        peer_event(peer, PROTO_URGENT, &body);
}

void nodes_urgent_fire(struct loop_timer *timer)
{
    struct cluster *c = container_of(timer, struct cluster, urgent_timer);
    uint64_t now_ns = clock_now_ns();
    list_for_each (node, &c->pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (!ws->wanted)
            continue;
        if (urgent_step(ws->wanted, nodes_of, ws, now_ns)) {
            for (unsigned n = 0; n < ws->nnodes; n++)
                wanted_send(c, ws, n);
        }
        timer_set(c, ws->wanted->due_ns);
    }
}

int nodes_on_urgent(struct cluster *c, struct rpc_session *session, struct conn_message *m)
{
    struct bytes_in in = bytes_in_of(m->body, m->frame.body_bytes);
    struct proto_urgent urgent;
    uint64_t samples[PROTO_URGENT_MAX];
    if (conn_version(session->conn) < 3 || proto_urgent_next(&in, &urgent) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = pool_find_uuid(c->pool, urgent.uuid);
    for (uint32_t k = 0; k < urgent.n; k++) {
        struct proto_id id;
        proto_id_next(&in, &id);
        if (ws && id.id >= ws->index.header->nsamples)
            return LEAT_CORRUPT;
        samples[k] = id.id;
    }
    if (!ws || session->node >= ws->nnodes || session->node == c->self || wset_is_uncommitted(ws))
        return 0; /* it sends them again, while they are waited for */
    log_debug("node %s waits for %" PRIu32 " samples of %s", c->config.nodes[session->node], urgent.n,
              ws->spec);
    fill_urgent_there(c->pool->fill, ws, samples, urgent.n, session->node, urgent_share(ws->nnodes));
    return 0;
}
