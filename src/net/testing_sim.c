/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing_sim.c: a network in virtual time, the same for the same seed and calls: what decides about scheduling,
 * deadlines and quarantine is tested on it in microseconds.
 *
 *   submit ─latency─▶ node: segments leave one after another at its rate ─latency─▶ receiver's queue ─▶ destination
 *
 * A segment (64 KiB) that would overrun the receiver's queue is lost and comes again after retry_ns: incast.
 * A frozen node's segments leave when it thaws, so they land after a deadline that has passed: DONE with
 * -ETIMEDOUT, then the bytes, then QUIESCED. A node that dies sends nothing more; its ops end with
 * -ECONNRESET one latency later.
 *
 * poll() moves the clock to the next event, further while there is nothing to report and the timeout (virtual
 * too) allows; with timeout 0 by one event. Invariant: every segment on its way has exactly one entry in the
 * heap, paid for at submit, so that nothing can fail later.
 */
#include "net/testing.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "net/events.h"

#include <inttypes.h>

#define SEGMENT (64 * KIB)

enum event_kind { EVENT_ARRIVE, EVENT_LAND, EVENT_DEADLINE, EVENT_DEATH };

struct sim_op {
    struct list node;  /* ctx->ops, while its bytes may still land */
    struct net_op *op; /* NULL: the endpoint is gone, segments are dropped */
    unsigned node_index;
    unsigned entries;  /* in the heap */
    unsigned segments; /* that have not landed, those that never will included */
};

struct event {
    uint64_t at, sequence;
    enum event_kind kind;
    struct sim_op *so;
    unsigned node_index;
    uint32_t read, skip; /* the segment begins here, and continues through the reads behind it */
    uint64_t bytes;
};

struct sim_node {
    struct net_sim_node conf;
    uint64_t free_ns; /* its last segment leaves then */
    bool dead;
};

struct net_endpoint {
    struct sim_ctx *ctx;
    unsigned node_index;
};

struct sim_ctx {
    struct net_ctx base;
    struct net_sim_config conf;
    struct sim_node *nodes;
    uint64_t now_ns, sequence, random;
    uint64_t receiver_free_ns;
    struct event *heap;
    size_t heap_n, heap_cap;
    struct list ops, events, told;
};

static uint64_t next_random(struct sim_ctx *ctx)
{
    uint64_t z = (ctx->random += 0x9e3779b97f4a7c15ull); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    return bytes_per_s ? (uint64_t)((__uint128_t)bytes * NS_PER_S / bytes_per_s) : 0;
}

/* --- the heap ---------------------------------------------------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

static int heap_reserve(struct sim_ctx *ctx, size_t more)
{
    if (ctx->heap_n + more <= ctx->heap_cap)
        return 0;
    size_t cap = (ctx->heap_n + more) * 2;
    struct event *heap = realloc(ctx->heap, cap * sizeof(*heap));
    if (!heap)
        return -ENOMEM;
    ctx->heap = heap;
    ctx->heap_cap = cap;
    return 0;
}

static void heap_push(struct sim_ctx *ctx, struct event e)
{
    assert(ctx->heap_n < ctx->heap_cap);
    e.sequence = ctx->sequence++;
    size_t i = ctx->heap_n++;
    for (; i && before(&e, &ctx->heap[(i - 1) / 2]); i = (i - 1) / 2)
        ctx->heap[i] = ctx->heap[(i - 1) / 2];
    ctx->heap[i] = e;
    if (e.so)
        e.so->entries++;
}

static struct event heap_pop(struct sim_ctx *ctx)
{
    struct event top = ctx->heap[0], last = ctx->heap[--ctx->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= ctx->heap_n)
            break;
        if (child + 1 < ctx->heap_n && before(&ctx->heap[child + 1], &ctx->heap[child]))
            child++;
        if (!before(&ctx->heap[child], &last))
            break;
        ctx->heap[i] = ctx->heap[child];
        i = child;
    }
    ctx->heap[i] = last;
    return top;
}

/* --- ops --------------------------------------------------------------------------------------------------------- */

static void so_release(struct sim_op *so)
{
    if (so->op || so->entries)
        return;
    list_remove(&so->node);
    free(so);
}

/* DONE if it was not. */
static void op_done(struct sim_ctx *ctx, struct net_op *op, int status)
{
    if (op->state != NET_OP_IN_FLIGHT)
        return;
    if (status < 0) {
        for (uint32_t i = 0; i < op->n; i++)
            if (op->reads[i].status == 0)
                op->reads[i].status = status;
        op->status = status;
    }
    net_op_done(&ctx->base, op, &ctx->events);
}

/* Nothing will land any more. */
static void op_quiesced(struct sim_ctx *ctx, struct sim_op *so, int status)
{
    struct net_op *op = so->op;
    op_done(ctx, op, status);
    if (op->state == NET_OP_TOLD)
        list_remove(&op->node);
    net_op_quiesced(op, &ctx->events);
    so->op = NULL;
}

static uint64_t depart(struct sim_node *node, uint64_t ready_ns, uint64_t bytes)
{
    uint64_t at = MAX(node->free_ns, ready_ns) + transfer_ns(bytes, node->conf.bytes_per_s);
    if (node->conf.freeze_at_ns && at >= node->conf.freeze_at_ns) {
        if (node->conf.thaw_at_ns == 0)
            at = UINT64_MAX / 2; /* never */
        else
            at = MAX(at, node->conf.thaw_at_ns);
    }
    node->free_ns = at;
    return at;
}

static bool read_is_bad(const struct net_sim_node *node, const struct net_read *r)
{
    return r->mr_gid >= node->nregions || r->offset > node->region_bytes ||
           r->bytes > node->region_bytes - r->offset;
}

static void send_segment(struct sim_ctx *ctx, struct sim_op *so, struct event segment)
{
    struct sim_node *node = &ctx->nodes[so->node_index];
    uint64_t at = depart(node, ctx->now_ns + node->conf.latency_ns, segment.bytes);
    so->segments++;
    if (at >= UINT64_MAX / 2 || (node->conf.die_at_ns && at >= node->conf.die_at_ns))
        return; /* never leaves: the op waits for the reset, or for its owner to hang up */
    segment.kind = EVENT_ARRIVE;
    segment.at = at + node->conf.latency_ns;
    segment.so = so;
    heap_push(ctx, segment);
}

static int sim_submit(struct net_endpoint *ep, struct net_op *op)
{
    struct sim_ctx *ctx = ep->ctx;
    struct sim_node *node = &ctx->nodes[ep->node_index];
    if (node->dead)
        return LEAT_PEER_GONE;
    uint64_t bytes = 0;
    int status = 0;
    for (uint32_t i = 0; i < op->n; i++)
        if (!read_is_bad(&node->conf, &op->reads[i]))
            bytes += op->reads[i].bytes;
    struct sim_op *so = calloc(1, sizeof(*so));
    if (!so || heap_reserve(ctx, bytes / SEGMENT + 3) < 0) {
        free(so);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < op->n; i++) {
        op->reads[i].crc = 0;
        op->reads[i].status = read_is_bad(&node->conf, &op->reads[i]) ? LEAT_INVALID : 0;
        status = status ? status : op->reads[i].status;
    }
    net_op_begin(&ctx->base, ep, op, bytes);
    op->status = status;
    op->started_ns = ctx->now_ns;
    list_init(&op->node);
    so->op = op;
    so->node_index = ep->node_index;
    list_push_back(&ctx->ops, &so->node);

    struct event segment = {.read = 0};
    uint32_t read = 0, skip = 0;
    while (read < op->n) {
        const struct net_read *r = &op->reads[read];
        uint64_t step = r->status < 0 ? 0 : MIN((uint64_t)(r->bytes - skip), SEGMENT - segment.bytes);
        segment.bytes += step;
        skip += (uint32_t)step;
        if (r->status < 0 || skip == r->bytes) {
            read++;
            skip = 0;
        }
        if (segment.bytes == SEGMENT) {
            send_segment(ctx, so, segment);
            segment = (struct event){.read = read, .skip = skip};
        }
    }
    if (segment.bytes || so->segments == 0)
        send_segment(ctx, so, segment);
    if (op->deadline_ns)
        heap_push(ctx,
                  (struct event){.at = MAX(op->deadline_ns, ctx->now_ns), .kind = EVENT_DEADLINE, .so = so});
    return 0;
}

/* --- events ------------------------------------------------------------------------------------------------------ */

static void arrive(struct sim_ctx *ctx, struct event e)
{
    uint64_t rate = ctx->conf.receiver_bytes_per_s, room = ctx->conf.receiver_queue_bytes;
    uint64_t wait_ns = ctx->receiver_free_ns > ctx->now_ns ? ctx->receiver_free_ns - ctx->now_ns : 0;
    uint64_t queued = rate ? (uint64_t)((__uint128_t)wait_ns * rate / NS_PER_S) : 0;
    if (room && queued && queued + e.bytes > room) {
        const struct sim_node *node = &ctx->nodes[e.so->node_index];
        e.at = ctx->now_ns + ctx->conf.retry_ns + next_random(ctx) % (ctx->conf.retry_ns / 8 + 1);
        /* A dead node sends nothing again. */
        if (node->conf.die_at_ns == 0 || e.at < node->conf.die_at_ns + node->conf.latency_ns)
            heap_push(ctx, e);
        return;
    }
    ctx->receiver_free_ns = ctx->now_ns + wait_ns + transfer_ns(e.bytes, rate);
    e.kind = EVENT_LAND;
    e.at = ctx->receiver_free_ns;
    heap_push(ctx, e);
}

static void land(struct sim_ctx *ctx, const struct event *e)
{
    struct sim_op *so = e->so;
    struct net_op *op = so->op;
    const struct net_sim_node *node = &ctx->nodes[so->node_index].conf;
    if (!op)
        return;
    uint64_t left = e->bytes;
    uint32_t skip = e->skip;
    for (uint32_t i = e->read; left; i++, skip = 0) {
        struct net_read *r = &op->reads[i];
        if (read_is_bad(node, r))
            continue;
        uint64_t step = MIN((uint64_t)(r->bytes - skip), left);
        if (step)
            memcpy((uint8_t *)r->dst + skip, node->memory + r->mr_gid * node->region_bytes + r->offset + skip,
                   step);
        left -= step;
    }
    if (--so->segments)
        return;
    for (uint32_t i = 0; i < op->n; i++)
        if (!read_is_bad(node, &op->reads[i]))
            op->reads[i].crc = crc32c(0, op->reads[i].dst, op->reads[i].bytes);
    op_quiesced(ctx, so, 0);
}

static void death(struct sim_ctx *ctx, unsigned node_index)
{
    ctx->nodes[node_index].dead = true;
    list_for_each_safe (node, &ctx->ops) {
        struct sim_op *so = container_of(node, struct sim_op, node);
        if (so->node_index != node_index || !so->op)
            continue;
        op_quiesced(ctx, so, LEAT_PEER_GONE);
        so_release(so);
    }
}

static void step(struct sim_ctx *ctx)
{
    struct event e = heap_pop(ctx);
    ctx->now_ns = MAX(ctx->now_ns, e.at);
    if (e.so)
        e.so->entries--;
    if (e.kind == EVENT_ARRIVE && e.so->op)
        arrive(ctx, e);
    else if (e.kind == EVENT_LAND)
        land(ctx, &e);
    else if (e.kind == EVENT_DEADLINE && e.so->op)
        op_done(ctx, e.so->op, LEAT_TIMED_OUT);
    else if (e.kind == EVENT_DEATH)
        death(ctx, e.node_index);
    if (e.so)
        so_release(e.so);
}

static int sim_poll(struct net_ctx *base, struct net_event *events, unsigned max, int timeout_ms)
{
    struct sim_ctx *ctx = container_of(base, struct sim_ctx, base);
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : ctx->now_ns + (uint64_t)timeout_ms * NS_PER_MS;
    if (timeout_ms == 0 && list_empty(&ctx->events) && ctx->heap_n)
        step(ctx);
    while (list_empty(&ctx->events) && ctx->heap_n && ctx->heap[0].at <= until)
        step(ctx);
    /* Waiting takes its time even when nothing comes; an endless wait without events returns at once. */
    if (list_empty(&ctx->events) && timeout_ms > 0)
        ctx->now_ns = MAX(ctx->now_ns, until);
    return (int)net_events_take(&ctx->events, &ctx->told, events, max);
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static int sim_connect(struct net_ctx *base, const struct net_peer *peer, uint64_t deadline_ns,
                       struct net_endpoint **ret_endpoint, struct leat_error *err)
{
    struct sim_ctx *ctx = container_of(base, struct sim_ctx, base);
    if (peer->node >= ctx->conf.nnodes)
        return error_set(err, LEAT_NOT_FOUND, "simulated network: there is no node %" PRIu32, peer->node);
    if (ctx->nodes[peer->node].dead)
        return error_set(err, LEAT_PEER_GONE, "simulated network: node %" PRIu32 " is dead", peer->node);
    struct net_endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return error_set(err, -ENOMEM, "no memory for an endpoint");
    ep->ctx = ctx;
    ep->node_index = peer->node;
    *ret_endpoint = ep;
    return 0;
}

static void sim_disconnect(struct net_ctx *base, struct net_endpoint *ep)
{
    struct sim_ctx *ctx = container_of(base, struct sim_ctx, base);
    if (!ep)
        return;
    list_for_each_safe (node, &ctx->ops) {
        struct sim_op *so = container_of(node, struct sim_op, node);
        if (!so->op || so->op->endpoint != ep)
            continue;
        op_quiesced(ctx, so, LEAT_PEER_GONE);
        so_release(so);
    }
    free(ep);
}

static int sim_mem_register(struct net_ctx *ctx, void *addr, uint64_t bytes, int device,
                            struct net_memory **ret_memory)
{
    *ret_memory = NULL;
    return 0;
}

static void sim_mem_deregister(struct net_ctx *ctx, struct net_memory *memory) {}

static int sim_event_fd(struct net_ctx *ctx)
{
    return -1;
}

static void sim_free(struct net_ctx *base)
{
    struct sim_ctx *ctx = container_of(base, struct sim_ctx, base);
    list_for_each_safe (node, &ctx->ops)
        free(container_of(node, struct sim_op, node));
    free(ctx->heap);
    free(ctx->nodes);
    free(ctx);
}

static const struct net_ops sim_ops = {
    .name = "sim",
    .mem_register = sim_mem_register,
    .mem_deregister = sim_mem_deregister,
    .connect = sim_connect,
    .disconnect = sim_disconnect,
    .submit = sim_submit,
    .poll = sim_poll,
    .event_fd = sim_event_fd,
    .free = sim_free,
};

int net_sim_new(const struct net_sim_config *config, struct net_ctx **ret_ctx)
{
    struct sim_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx)
        return -ENOMEM;
    ctx->base.ops = &sim_ops;
    ctx->conf = *config;
    ctx->conf.nodes = NULL; /* copied below */
    ctx->random = config->seed;
    list_init(&ctx->ops);
    list_init(&ctx->events);
    list_init(&ctx->told);
    ctx->nodes = calloc(config->nnodes ? config->nnodes : 1, sizeof(*ctx->nodes));
    if (!ctx->nodes || heap_reserve(ctx, config->nnodes + 1) < 0) {
        sim_free(&ctx->base);
        return -ENOMEM;
    }
    for (unsigned i = 0; i < config->nnodes; i++) {
        ctx->nodes[i].conf = config->nodes[i];
        if (config->nodes[i].die_at_ns)
            heap_push(ctx, (struct event){.at = config->nodes[i].die_at_ns + config->nodes[i].latency_ns,
                                          .kind = EVENT_DEATH,
                                          .node_index = i});
    }
    *ret_ctx = &ctx->base;
    return 0;
}

uint64_t net_sim_now_ns(struct net_ctx *base)
{
    return container_of(base, struct sim_ctx, base)->now_ns;
}
