/* SPDX-License-Identifier: Apache-2.0 */
/* events.h: what every transport does with an op that is over: keep its two events for a poll. */
#ifndef NET_EVENTS_H
#define NET_EVENTS_H

#include "net/net.h"

/* In flight; DONE known but not reported; DONE reported, QUIESCED to come; both known, one reported. */
enum net_op_state { NET_OP_IN_FLIGHT, NET_OP_DONE, NET_OP_TOLD, NET_OP_QUIESCED_AFTER_DONE, NET_OP_QUIESCED };

/* Takes the op into flight: outputs cleared, statistics counted. */
static inline void net_op_begin(struct net_ctx *ctx, struct net_endpoint *endpoint, struct net_op *op,
                                uint64_t bytes)
{
    op->status = 0;
    op->lost_segments = 0;
    op->endpoint = endpoint;
    op->cursor = op->cursor_bytes = 0;
    op->total_bytes = bytes;
    op->state = NET_OP_IN_FLIGHT;
    ctx->stats.ops++;
    ctx->stats.reads += op->n;
    ctx->stats.in_flight_bytes += bytes;
    if (ctx->stats.in_flight_bytes > ctx->stats.in_flight_peak_bytes)
        ctx->stats.in_flight_peak_bytes = ctx->stats.in_flight_bytes;
}

/* DONE with op->status; to the end of `events`. The op must be on no list. */
static inline void net_op_done(struct net_ctx *ctx, struct net_op *op, struct list *events)
{
    assert(op->state == NET_OP_IN_FLIGHT);
    op->state = NET_OP_DONE;
    ctx->stats.in_flight_bytes -= op->total_bytes;
    if (op->status == 0)
        ctx->stats.bytes += op->total_bytes;
    else
        ctx->stats.errors++;
    if (op->status == LEAT_TIMED_OUT)
        ctx->stats.timeouts++;
    list_push_back(events, &op->node);
}

/* QUIESCED, after its DONE was queued or told. A told op must be on no list. */
static inline void net_op_quiesced(struct net_op *op, struct list *events)
{
    assert(op->state == NET_OP_DONE || op->state == NET_OP_TOLD);
    if (op->state == NET_OP_TOLD) {
        op->state = NET_OP_QUIESCED;
        list_push_back(events, &op->node);
    } else {
        op->state = NET_OP_QUIESCED_AFTER_DONE;
    }
}

/* Fills `events` from the queue. An op that is DONE but not quiesced moves to `told` (NULL: cannot be). After
 * its QUIESCED an op is the caller's again. */
static inline unsigned net_events_take(struct list *queue, struct list *told, struct net_event *events,
                                       unsigned max)
{
    unsigned n = 0;
    struct net_op *op;
    while (n < max && (op = list_first(queue, struct net_op, node))) {
        if (op->state == NET_OP_DONE) {
            list_remove(&op->node);
            op->state = NET_OP_TOLD;
            list_push_back(told, &op->node);
            events[n++] = (struct net_event){NET_DONE, op};
        } else if (op->state == NET_OP_QUIESCED_AFTER_DONE) {
            op->state = NET_OP_QUIESCED;
            events[n++] = (struct net_event){NET_DONE, op};
        } else {
            list_remove(&op->node);
            events[n++] = (struct net_event){NET_QUIESCED, op};
        }
    }
    return n;
}

#endif
