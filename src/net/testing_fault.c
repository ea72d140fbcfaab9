/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing_fault.c: failures stacked on another transport: the Nth op fails, arrives damaged, or times out and lands
 * late.
 *
 * Ops that no rule names go to the lower context as they are. A late one is read into a buffer of ours by a
 * shadow op; its owner gets DONE (-ETIMEDOUT) when the shadow completes. The bytes reach their destination
 * late_polls polls later, then QUIESCED follows. poll() may return 0 early while a late op counts its polls.
 */
#include "net/testing.h"

#include "base/crc32c.h"
#include "net/events.h"

struct fault_op { /* of a late op */
    struct list node;
    struct net_op shadow;
    struct net_op *op;
    struct net_endpoint *ep;
    struct net_read *reads;
    uint8_t *bounce;
    unsigned polls_left;
    bool landing; /* the shadow has completed; waits for its polls */
};

struct net_endpoint {
    struct fault_ctx *ctx;
    struct net_endpoint *lower;
};

struct fault_ctx {
    struct net_ctx base;
    struct net_ctx own; /* statistics of the ops that the lower context does not count as such */
    struct net_ops ops; /* of this context: name and caps are the lower one's */
    struct net_ctx *lower;
    struct net_fault_rules rules;
    uint64_t count;
    struct net_op *corrupt; /* on its way below */
    struct list late, events, told;
};

static void sum_stats(struct fault_ctx *ctx)
{
    struct net_stats *s = &ctx->base.stats;
    *s = ctx->lower->stats;
    s->ops += ctx->own.stats.ops;
    s->errors += ctx->own.stats.errors;
    s->timeouts += ctx->own.stats.timeouts;
}

static void late_free(struct fault_op *f)
{
    list_remove(&f->node);
    free(f->reads);
    free(f->bounce);
    free(f);
}

static void own_done(struct fault_ctx *ctx, struct net_op *op, int status)
{
    for (uint32_t i = 0; i < op->n; i++)
        op->reads[i].status = status;
    op->status = status;
    net_op_done(&ctx->own, op, &ctx->events);
}

static void own_quiesced(struct fault_ctx *ctx, struct net_op *op)
{
    if (op->state == NET_OP_TOLD)
        list_remove(&op->node);
    net_op_quiesced(op, &ctx->events);
}

static int submit_late(struct net_endpoint *ep, struct net_op *op)
{
    struct fault_ctx *ctx = ep->ctx;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < op->n; i++)
        bytes += op->reads[i].bytes;
    struct fault_op *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    list_init(&f->node);
    f->reads = calloc(op->n ? op->n : 1, sizeof(*f->reads));
    f->bounce = malloc(bytes ? bytes : 1);
    int rc = f->reads && f->bounce ? 0 : -ENOMEM;
    bytes = 0;
    for (uint32_t i = 0; rc == 0 && i < op->n; i++) {
        f->reads[i] = op->reads[i];
        f->reads[i].dst = f->bounce + bytes;
        bytes += op->reads[i].bytes;
    }
    f->op = op;
    f->ep = ep;
    f->polls_left = ctx->rules.late_polls;
    f->shadow = (struct net_op){.reads = f->reads, .n = op->n, .user = f};
    if (rc == 0)
        rc = ctx->lower->ops->submit(ep->lower, &f->shadow);
    if (rc < 0) {
        late_free(f);
        return rc;
    }
    net_op_begin(&ctx->own, ep, op, 0);
    list_init(&op->node);
    list_push_back(&ctx->late, &f->node);
    return 0;
}

static int fault_submit(struct net_endpoint *ep, struct net_op *op)
{
    struct fault_ctx *ctx = ep->ctx;
    int rc = 0;
    uint64_t nth = ctx->count + 1;
    if (nth == ctx->rules.fail_nth) {
        net_op_begin(&ctx->own, ep, op, 0);
        list_init(&op->node);
        own_done(ctx, op, ctx->rules.fail_code ? ctx->rules.fail_code : -EIO);
        own_quiesced(ctx, op);
    } else if (nth == ctx->rules.late_nth) {
        rc = submit_late(ep, op);
    } else {
        rc = ctx->lower->ops->submit(ep->lower, op);
        if (rc == 0 && nth == ctx->rules.corrupt_nth)
            ctx->corrupt = op;
    }
    if (rc == 0)
        ctx->count = nth;
    sum_stats(ctx);
    return rc;
}

/* A bit flips on the way: the checksum is of what landed, so it is no longer the sample's. */
static void damage(struct net_op *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        struct net_read *r = &op->reads[i];
        if (r->bytes == 0 || r->status < 0)
            continue;
        ((uint8_t *)r->dst)[r->bytes / 2] ^= 0x10;
        r->crc = crc32c(0, r->dst, r->bytes);
        return;
    }
}

static struct fault_op *late_of(struct fault_ctx *ctx, const struct net_op *op)
{
    list_for_each (node, &ctx->late) {
        struct fault_op *f = container_of(node, struct fault_op, node);
        if (&f->shadow == op)
            return f;
    }
    return NULL;
}

static void land_late(struct fault_ctx *ctx)
{
    list_for_each_safe (node, &ctx->late) {
        struct fault_op *f = container_of(node, struct fault_op, node);
        if (!f->landing || f->polls_left-- > 0)
            continue;
        for (uint32_t i = 0; i < f->op->n; i++)
            if (f->reads[i].status == 0)
                memcpy(f->op->reads[i].dst, f->reads[i].dst, f->reads[i].bytes);
        own_quiesced(ctx, f->op);
        late_free(f);
    }
}

static int fault_poll(struct net_ctx *base, struct net_event *events, unsigned max, int timeout_ms)
{
    struct fault_ctx *ctx = container_of(base, struct fault_ctx, base);
    land_late(ctx);
    unsigned n = net_events_take(&ctx->events, &ctx->told, events, max);
    bool counting = false;
    list_for_each (node, &ctx->late)
        counting |= container_of(node, struct fault_op, node)->landing;
    if (n == max)
        return (int)n;
    int k = ctx->lower->ops->poll(ctx->lower, events + n, max - n, n || counting ? 0 : timeout_ms);
    sum_stats(ctx);
    if (k < 0)
        return n ? (int)n : k;
    unsigned out = n;
    for (unsigned i = n; i < n + (unsigned)k; i++) {
        struct net_event e = events[i];
        struct fault_op *f = late_of(ctx, e.op);
        if (!f) {
            if (e.kind == NET_DONE && e.op == ctx->corrupt) {
                damage(e.op);
                ctx->corrupt = NULL;
            }
            events[out++] = e;
        } else if (e.kind == NET_QUIESCED) {
            f->landing = true;
            if (f->op->state == NET_OP_IN_FLIGHT)
                own_done(ctx, f->op, LEAT_TIMED_OUT);
        }
    }
    out += net_events_take(&ctx->events, &ctx->told, events + out, max - out);
    return (int)out;
}

static int fault_connect(struct net_ctx *base, const struct net_peer *peer, uint64_t deadline_ns,
                         struct net_endpoint **ret_endpoint, struct leat_error *err)
{
    struct fault_ctx *ctx = container_of(base, struct fault_ctx, base);
    struct net_endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return error_set(err, -ENOMEM, "no memory for an endpoint");
    ep->ctx = ctx;
    int rc = ctx->lower->ops->connect(ctx->lower, peer, deadline_ns, &ep->lower, err);
    if (rc < 0) {
        free(ep);
        return rc;
    }
    *ret_endpoint = ep;
    return 0;
}

/* Late bytes of a torn-down connection never land: the contract of disconnect. */
static void fault_disconnect(struct net_ctx *base, struct net_endpoint *ep)
{
    struct fault_ctx *ctx = container_of(base, struct fault_ctx, base);
    if (!ep)
        return;
    ctx->lower->ops->disconnect(ctx->lower, ep->lower);
    list_for_each_safe (node, &ctx->late) {
        struct fault_op *f = container_of(node, struct fault_op, node);
        if (f->ep != ep)
            continue;
        for (uint32_t i = 0; i < f->op->n; i++)
            f->reads[i].status = LEAT_PEER_GONE;
        if (f->op->state == NET_OP_IN_FLIGHT)
            own_done(ctx, f->op, LEAT_PEER_GONE);
        f->polls_left = 0;
    }
    free(ep);
}

static int fault_mem_register(struct net_ctx *base, void *addr, uint64_t bytes, int device,
                              struct net_memory **ret_memory)
{
    struct net_ctx *lower = container_of(base, struct fault_ctx, base)->lower;
    return lower->ops->mem_register(lower, addr, bytes, device, ret_memory);
}

static void fault_mem_deregister(struct net_ctx *base, struct net_memory *memory)
{
    struct net_ctx *lower = container_of(base, struct fault_ctx, base)->lower;
    lower->ops->mem_deregister(lower, memory);
}

static int fault_event_fd(struct net_ctx *base)
{
    struct net_ctx *lower = container_of(base, struct fault_ctx, base)->lower;
    return lower->ops->event_fd(lower);
}

static void fault_free(struct net_ctx *base)
{
    struct fault_ctx *ctx = container_of(base, struct fault_ctx, base);
    net_free(ctx->lower);
    list_for_each_safe (node, &ctx->late)
        late_free(container_of(node, struct fault_op, node));
    free(ctx);
}

int net_fault_new(struct net_ctx *lower, const struct net_fault_rules *rules, struct net_ctx **ret_ctx)
{
    struct fault_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx)
        return -ENOMEM;
    ctx->ops = (struct net_ops){
        .name = lower->ops->name,
        /* A late op is in flight, whatever is below. */
        .caps = rules->late_nth ? lower->ops->caps & ~(unsigned)NET_CAP_INLINE : lower->ops->caps,
        .mem_register = fault_mem_register,
        .mem_deregister = fault_mem_deregister,
        .connect = fault_connect,
        .disconnect = fault_disconnect,
        .submit = fault_submit,
        .poll = fault_poll,
        .event_fd = fault_event_fd,
        .free = fault_free,
    };
    ctx->base.ops = &ctx->ops;
    ctx->lower = lower;
    ctx->rules = *rules;
    list_init(&ctx->late);
    list_init(&ctx->events);
    list_init(&ctx->told);
    *ret_ctx = &ctx->base;
    return 0;
}
