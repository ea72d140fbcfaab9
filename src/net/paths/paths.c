/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.c: see paths.h.
 *
 * Happy path: an op of more than two slices is cut into parts, each of which is an op of the lower transport
 * on the path that stripe_choose names; a smaller one goes whole. Its owner gets DONE when the last part is
 * over; checksums of a read that was cut are combined then. An endpoint of one path hands ops down as they
 * are.
 *
 *   part: OUT ──▶ OVER                   op: DONE when every part is OVER, QUIESCED when every part's lower op is
 *          └──▶ LOST ──▶ OUT by another path, once its lower op is quiesced
 *
 * Failure modes. A path whose connection breaks is disconnected at once, and the others take over what it
 * owed. So is one that owes something and has brought nothing for a while, while another is idle or brings
 * bytes: a link that is down sends no error. If all owe and none brings, the server is the cause: it has
 * until the deadline. A path whose op timed out was closed below. The last path that breaks takes the
 * endpoint with it: ops fail with LEAT_PEER_GONE, as does submit, and the owner connects again. An error
 * reply fails its op, nothing else.
 *
 * Invariants:
 * 1. A destination is requested again only after the lower op that was to fill it is quiesced, and its
 *    connection closed.
 * 2. path->parts holds exactly the parts that are OUT on its present connection, in the order of asking.
 * 3. DONE of an op comes after DONE of all its parts: its deadline is theirs.
 */
#include "net/paths.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "net/events.h"
#include "net/flow/stripe.h"

#define SLICE_MIN    (64 * KIB)
#define SLICE_MAX    (1 * MIB)
#define SLICES       4u /* of one op on each path, so that rates are measured, and a slow path gets less */
#define STALL_MAX_NS (1 * NS_PER_S)
#define STALL_MIN_NS (50 * NS_PER_MS)
#define STALL_SHARE  4 /* of what an op was given, at most, before a silent path is left */
#define LOOK_NS      (50 * NS_PER_MS)
#define POLL_MS      50

struct flight;

enum part_state { PART_OUT, PART_LOST, PART_OVER };

struct part {
    struct list node; /* path->parts while OUT */
    struct net_op op; /* of the lower transport; user is &part_mark */
    struct flight *flight;
    enum part_state state;
    unsigned path;
    uint64_t bytes;
};

struct flight {
    struct list node; /* ctx->flights */
    struct paths_ctx *ctx;
    struct net_endpoint *endpoint; /* NULL: disconnected */
    struct net_op *op;
    uint64_t started_ns;
    unsigned left, below; /* parts that are not OVER; whose lower op is not quiesced */
    bool cut;             /* the parts' reads are ours, not the op's */
    struct net_read *pieces;
    unsigned nparts;
    struct part parts[];
};

struct rail_path {
    struct net_endpoint *lower; /* NULL: not there */
    bool asked;                 /* the owner is connecting it */
    struct list parts;
    uint64_t moved_ns; /* bytes came, or none were due */
    uint64_t seen;     /* progress of the first part at that time */
    const char *left;
};

struct net_endpoint {
    struct list node;
    struct paths_ctx *ctx;
    unsigned npaths, nup;
    struct rail_path paths[NET_PATHS_MAX];
    struct stripe_path stripe[NET_PATHS_MAX];
};

struct paths_ctx {
    struct net_ctx base;
    struct net_ops ops; /* of this context: name and caps are the lower one's */
    struct net_ctx *lower;
    struct net_ctx own;   /* statistics of ops that went by several paths */
    struct net_stats cut; /* and of what the lower transport counts of their parts */
    struct list endpoints, flights, events, told;
    unsigned missing; /* paths that are missing, of all endpoints */
    uint64_t poll_ns; /* when stalls were looked for last */
};

static char part_mark;

static struct paths_ctx *ctx_of(const struct net_ctx *base)
{
    return container_of(base, struct paths_ctx, base);
}

static void sum_stats(struct paths_ctx *ctx)
{
    struct net_stats *s = &ctx->base.stats;
    *s = ctx->lower->stats;
    s->ops += ctx->own.stats.ops - ctx->cut.ops;
    s->reads += ctx->own.stats.reads - ctx->cut.reads;
    s->errors += ctx->own.stats.errors - ctx->cut.errors;
    s->timeouts += ctx->own.stats.timeouts - ctx->cut.timeouts;
}

/* --- paths ------------------------------------------------------------------------------------------------------ */

/* Closed; the lower transport returns what it owes as failed, and other paths take it over then. */
static void path_leave(struct net_endpoint *ep, unsigned k, const char *why, uint64_t now)
{
    struct rail_path *path = &ep->paths[k];
    struct net_endpoint *lower = TAKE_PTR(path->lower);
    if (!lower)
        return;
    log_info("rail %u disconnected: %s", k, why);
    path->left = why;
    ep->nup--;
    ep->ctx->missing++;
    stripe_failed(&ep->stripe[k], now);
    list_for_each_safe (node, &path->parts) {
        list_remove(node);
        container_of(node, struct part, node)->state = PART_LOST;
    }
    ep->ctx->lower->ops->disconnect(ep->ctx->lower, lower);
}

/* Changes whenever a byte of the first part's payload lands. */
static uint64_t path_seen(const struct rail_path *path)
{
    const struct part *p = list_first(&path->parts, struct part, node);
    return p ? ((uint64_t)(uintptr_t)p << 20) ^ ((uint64_t)p->op.cursor << 32) ^ p->op.cursor_bytes : 0;
}

/* The longest silence that is tolerated. */
static uint64_t stall_ns(const struct rail_path *path)
{
    const struct part *p = list_first(&path->parts, struct part, node);
    const struct flight *f = p ? p->flight : NULL;
    if (!f)
        return UINT64_MAX;
    if (!f->op->deadline_ns || f->op->deadline_ns <= f->started_ns)
        return STALL_MAX_NS;
    uint64_t share = (f->op->deadline_ns - f->started_ns) / STALL_SHARE;
    return MAX(MIN(share, STALL_MAX_NS), STALL_MIN_NS);
}

static void look_at(struct net_endpoint *ep, uint64_t now)
{
    unsigned silent = 0, well = 0;
    for (unsigned k = 0; k < ep->npaths; k++) {
        struct rail_path *path = &ep->paths[k];
        uint64_t seen = path_seen(path);
        if (!path->lower)
            continue;
        if (seen != path->seen || list_empty(&path->parts)) {
            path->seen = seen;
            path->moved_ns = now;
        }
        uint64_t limit = stall_ns(path), quiet = now - path->moved_ns;
        if (quiet >= limit)
            silent |= 1u << k;
        else if (quiet < limit / 2) /* a path that is nearly silent takes nothing over */
            well |= 1u << k;
    }
    for (unsigned k = 0; k < ep->npaths && well; k++)
        if (silent >> k & 1)
            path_leave(ep, k, "it brought nothing, while another one could", now);
}

/* Nothing is done here where every endpoint has one path. */
static void look_for_stalls(struct paths_ctx *ctx)
{
    uint64_t now = list_empty(&ctx->flights) ? 0 : clock_now_ns();
    if (!now || now - ctx->poll_ns < LOOK_NS)
        return;
    ctx->poll_ns = now;
    list_for_each (node, &ctx->endpoints) {
        struct net_endpoint *ep = container_of(node, struct net_endpoint, node);
        if (ep->nup > 1)
            look_at(ep, now);
    }
}

/* --- flights ------------------------------------------------------------------------------------------------------ */

static void flight_quiesced(struct flight *f)
{
    struct net_op *op = f->op;
    if (op->state == NET_OP_TOLD)
        list_remove(&op->node);
    net_op_quiesced(op, &f->ctx->events);
    list_remove(&f->node);
    free(f);
}

/* The reads' checksums and statuses from those of the pieces that they were cut into. */
static void flight_join(struct flight *f)
{
    const struct net_read *piece = f->pieces;
    for (uint32_t i = 0; i < f->op->n; i++) {
        struct net_read *r = &f->op->reads[i];
        uint32_t have = piece->bytes;
        r->crc = piece->crc;
        r->status = piece->status;
        for (piece++; have < r->bytes; have += piece->bytes, piece++) {
            r->crc = crc32c_combine(r->crc, piece->crc, piece->bytes);
            r->status = r->status ? r->status : piece->status;
        }
    }
}

static void part_over(struct part *p, int status)
{
    struct flight *f = p->flight;
    struct net_op *op = f->op;
    p->state = PART_OVER;
    for (uint32_t i = 0; status && i < p->op.n; i++) {
        int32_t *known = &p->op.reads[i].status; /* the loss of a path is not the op's result */
        *known = *known && *known != LEAT_PEER_GONE ? *known : status;
    }
    if (op->status == 0)
        op->status = status;
    op->lost_segments += p->op.lost_segments;
    if (--f->left)
        return;
    if (f->cut)
        flight_join(f);
    net_op_done(&f->ctx->own, op, &f->ctx->events);
    if (f->below == 0)
        flight_quiesced(f);
}

/* By the path that is predicted to bring it first. LEAT_PEER_GONE: none is left. -ENOMEM. */
static int part_send(struct net_endpoint *ep, struct part *p, uint64_t now)
{
    struct paths_ctx *ctx = ep->ctx;
    const unsigned wanted = p->flight->op->path;
    for (;;) {
        int k = wanted && wanted <= ep->npaths && ep->paths[wanted - 1].lower
                    ? (int)wanted - 1
                    : stripe_choose(ep->stripe, ep->npaths, p->bytes, now);
        if (k < 0)
            return LEAT_PEER_GONE;
        struct rail_path *path = &ep->paths[k];
        int rc = ctx->lower->ops->submit(path->lower, &p->op);
        if (rc == LEAT_PEER_GONE) {
            path_leave(ep, (unsigned)k, "its connection is closed", now);
            continue;
        }
        if (rc)
            return rc;
        p->state = PART_OUT;
        p->path = (unsigned)k;
        p->flight->below++;
        if (list_empty(&path->parts))
            path->moved_ns = now;
        list_push_back(&path->parts, &p->node);
        stripe_sent(&ep->stripe[k], p->bytes, now);
        ctx->cut.ops++;
        ctx->cut.reads += p->op.n;
        return 0;
    }
}

static void part_done(struct part *p, uint64_t now)
{
    struct flight *f = p->flight;
    struct net_endpoint *ep = f->endpoint;
    int status = p->op.status;
    f->ctx->cut.errors += status != 0;
    f->ctx->cut.timeouts += status == LEAT_TIMED_OUT;
    if (p->state == PART_OUT) {
        if (status == LEAT_PEER_GONE) {
            path_leave(ep, p->path, "its connection broke", now);
            return;
        }
        list_remove(&p->node);
        ep->paths[p->path].moved_ns = now;
        if (status)
            stripe_missed(&ep->stripe[p->path], p->bytes, now);
        else
            stripe_done(&ep->stripe[p->path], p->bytes, now);
    }
    if (status != LEAT_PEER_GONE)
        part_over(p, status);
}

static void part_quiesced(struct part *p, uint64_t now)
{
    struct flight *f = p->flight;
    f->below--;
    if (p->state == PART_LOST) {
        bool late = f->op->deadline_ns && f->op->deadline_ns <= now;
        int rc = late ? LEAT_TIMED_OUT : f->endpoint ? part_send(f->endpoint, p, now) : LEAT_PEER_GONE;
        if (rc)
            part_over(p, rc); /* and with it the flight may be gone */
    } else if (f->left == 0 && f->below == 0) {
        flight_quiesced(f);
    }
}

/* --- cutting ------------------------------------------------------------------------------------------------------ */

static struct part *part_begin(struct flight *f, struct net_read *reads)
{
    struct part *p = &f->parts[f->nparts++];
    *p = (struct part){.flight = f,
                       .op = {.reads = reads, .deadline_ns = f->op->deadline_ns, .user = &part_mark}};
    list_init(&p->node);
    return p;
}

/* Reads stay whole where they are no longer than a slice. */
static void flight_cut(struct flight *f, uint64_t slice)
{
    struct net_read *piece = f->pieces;
    struct part *p = part_begin(f, piece);
    for (uint32_t i = 0; i < f->op->n; i++) {
        struct net_read rest = f->op->reads[i];
        rest.crc = 0;
        rest.status = 0;
        do {
            bool fits = p->bytes + rest.bytes <= slice + slice / 4;
            if (!fits && p->op.n && (rest.bytes <= slice || p->bytes >= slice)) {
                p = part_begin(f, piece);
                continue;
            }
            *piece = rest;
            piece->bytes = fits ? rest.bytes : (uint32_t)MIN(slice - p->bytes, (uint64_t)rest.bytes);
            rest.bytes -= piece->bytes;
            rest.offset += piece->bytes;
            rest.dst = (char *)rest.dst + piece->bytes;
            p->bytes += piece->bytes;
            p->op.n++;
            piece++;
        } while (rest.bytes);
    }
}

/* `most`: parts that cutting may make; 1: it is not cut. */
static struct flight *flight_new(struct net_endpoint *ep, struct net_op *op, uint64_t bytes, uint64_t slice,
                                 unsigned most)
{
    size_t pieces = most > 1 ? (size_t)op->n + most : 0;
    struct flight *f = malloc(sizeof(*f) + most * sizeof(struct part) + pieces * sizeof(struct net_read));
    if (!f)
        return NULL;
    *f = (struct flight){.ctx = ep->ctx,
                         .endpoint = ep,
                         .op = op,
                         .cut = most > 1,
                         .pieces = (struct net_read *)&f->parts[most]};
    if (f->cut) {
        flight_cut(f, slice);
    } else {
        struct part *p = part_begin(f, op->reads);
        p->op.n = op->n;
        p->bytes = bytes;
    }
    assert(f->nparts <= most);
    f->left = f->nparts;
    return f;
}

static int paths_submit(struct net_endpoint *ep, struct net_op *op)
{
    struct paths_ctx *ctx = ep->ctx;
    uint64_t bytes = 0;
    if (ep->npaths == 1) {
        int rc = ep->nup ? ctx->lower->ops->submit(ep->paths[0].lower, op) : LEAT_PEER_GONE;
        sum_stats(ctx);
        return rc;
    }
    if (ep->nup == 0)
        return LEAT_PEER_GONE;
    for (uint32_t i = 0; i < op->n; i++)
        bytes += op->reads[i].bytes;
    uint64_t slice = MIN(MAX(bytes / (ep->nup * SLICES), SLICE_MIN), SLICE_MAX);
    bool cut = ep->nup > 1 && !op->path && bytes >= 2 * SLICE_MIN;
    struct flight *f = flight_new(ep, op, bytes, slice, cut ? (unsigned)(2 * bytes / slice) + 2 : 1);
    if (!f)
        return -ENOMEM;
    f->started_ns = clock_now_ns();
    int rc = part_send(ep, &f->parts[0], f->started_ns);
    if (rc) { /* the op was never here */
        free(f);
        sum_stats(ctx);
        return rc;
    }
    net_op_begin(&ctx->own, ep, op, bytes);
    list_init(&op->node);
    list_push_back(&ctx->flights, &f->node);
    for (unsigned i = 1, n = f->nparts; i < n; i++)
        if ((rc = part_send(ep, &f->parts[i], f->started_ns)))
            part_over(&f->parts[i], rc); /* the first is not: the flight stays */
    sum_stats(ctx);
    return 0;
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

/* Keeps the events of ops that went down as they were. Returns how many. */
static unsigned sort_events(struct paths_ctx *ctx, struct net_event *events, unsigned n)
{
    unsigned kept = 0;
    uint64_t now = 0;
    for (unsigned i = 0; i < n; i++) {
        struct net_event e = events[i];
        if (e.op->user != &part_mark) {
            events[kept++] = e;
            continue;
        }
        now = now ? now : clock_now_ns();
        struct part *p = container_of(e.op, struct part, op);
        if (e.kind == NET_DONE)
            part_done(p, now);
        else
            part_quiesced(p, now);
    }
    return kept;
}

static int paths_poll(struct net_ctx *base, struct net_event *events, unsigned max, int timeout_ms)
{
    struct paths_ctx *ctx = ctx_of(base);
    uint64_t until = timeout_ms > 0 ? clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS : 0;
    unsigned n = net_events_take(&ctx->events, &ctx->told, events, max);
    ctx->lower->poll_in_order = base->poll_in_order;
    int wait = timeout_ms;
    while (n < max) {
        bool looking = !list_empty(&ctx->flights);
        if (looking && (wait < 0 || wait > POLL_MS))
            wait = POLL_MS;
        int k = ctx->lower->ops->poll(ctx->lower, events + n, max - n, n ? 0 : wait);
        if (k < 0) {
            sum_stats(ctx);
            return n ? (int)n : k;
        }
        n += sort_events(ctx, events + n, (unsigned)k);
        look_for_stalls(ctx);
        n += net_events_take(&ctx->events, &ctx->told, events + n, max - n);
        bool more = k > 0 || (looking && timeout_ms != 0 && (timeout_ms < 0 || clock_now_ns() < until));
        if (n || !more)
            break;
        wait = timeout_ms > 0 ? clock_poll_ms(until) : timeout_ms;
    }
    sum_stats(ctx);
    return (int)n;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static int path_connect(struct net_endpoint *ep, const struct net_peer *peer, uint64_t deadline_ns,
                        struct leat_error *err)
{
    struct paths_ctx *ctx = ep->ctx;
    unsigned k = peer->path;
    if (k >= ep->npaths || ep->paths[k].lower)
        return error_set(err, LEAT_INVALID, "rail %u is there already, or never was", k);
    int rc = ctx->lower->ops->connect(ctx->lower, peer, deadline_ns, &ep->paths[k].lower, err);
    if (rc)
        return rc;
    ep->paths[k].asked = false;
    ep->paths[k].moved_ns = clock_now_ns();
    stripe_up(&ep->stripe[k]);
    ep->nup++;
    return 0;
}

static int paths_connect(struct net_ctx *base, const struct net_peer *peer, uint64_t deadline_ns,
                         struct net_endpoint **ret_endpoint, struct leat_error *err)
{
    struct paths_ctx *ctx = ctx_of(base);
    struct net_endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return error_set(err, -ENOMEM, "no memory for an endpoint");
    ep->ctx = ctx;
    ep->npaths = MIN(MAX(peer->npaths, 1u), NET_PATHS_MAX);
    for (unsigned k = 0; k < ep->npaths; k++) {
        list_init(&ep->paths[k].parts);
        ep->stripe[k].down = true; /* to be tried at once */
    }
    int rc = path_connect(ep, peer, deadline_ns, err);
    if (rc) {
        free(ep);
        return rc;
    }
    ctx->missing += ep->npaths - 1;
    list_push_back(&ctx->endpoints, &ep->node);
    *ret_endpoint = ep;
    return 0;
}

static void paths_disconnect(struct net_ctx *base, struct net_endpoint *ep)
{
    struct paths_ctx *ctx = ctx_of(base);
    if (!ep)
        return;
    for (unsigned k = 0; k < ep->npaths; k++) {
        struct rail_path *path = &ep->paths[k];
        list_for_each_safe (node, &path->parts) {
            list_remove(node);
            container_of(node, struct part, node)->state = PART_LOST;
        }
        if (path->lower)
            ctx->lower->ops->disconnect(ctx->lower, path->lower);
    }
    list_for_each (node, &ctx->flights) {
        struct flight *f = container_of(node, struct flight, node);
        if (f->endpoint == ep)
            f->endpoint = NULL; /* its parts come back as failed, and end */
    }
    ctx->missing -= ep->npaths - ep->nup;
    list_remove(&ep->node);
    free(ep);
}

static int paths_mem_register(struct net_ctx *base, void *addr, uint64_t bytes, int device,
                              struct net_memory **ret_memory)
{
    struct net_ctx *lower = ctx_of(base)->lower;
    return lower->ops->mem_register(lower, addr, bytes, device, ret_memory);
}

static void paths_mem_deregister(struct net_ctx *base, struct net_memory *memory)
{
    struct net_ctx *lower = ctx_of(base)->lower;
    lower->ops->mem_deregister(lower, memory);
}

static int paths_event_fd(struct net_ctx *base)
{
    struct net_ctx *lower = ctx_of(base)->lower;
    return lower->ops->event_fd(lower);
}

static void paths_free(struct net_ctx *base)
{
    struct paths_ctx *ctx = ctx_of(base);
    list_for_each_safe (node, &ctx->endpoints)
        paths_disconnect(base, container_of(node, struct net_endpoint, node));
    net_free(ctx->lower);
    list_for_each_safe (node, &ctx->flights)
        free(container_of(node, struct flight, node));
    free(ctx);
}

int net_paths_new(struct net_ctx *lower, struct net_ctx **ret_ctx)
{
    struct paths_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx) {
        net_free(lower);
        return -ENOMEM;
    }
    ctx->lower = lower;
    ctx->ops = (struct net_ops){.name = lower->ops->name,
                                .caps = lower->ops->caps,
                                .mem_register = paths_mem_register,
                                .mem_deregister = paths_mem_deregister,
                                .connect = paths_connect,
                                .disconnect = paths_disconnect,
                                .submit = paths_submit,
                                .poll = paths_poll,
                                .event_fd = paths_event_fd,
                                .free = paths_free};
    ctx->base.ops = &ctx->ops;
    list_init(&ctx->endpoints);
    list_init(&ctx->flights);
    list_init(&ctx->events);
    list_init(&ctx->told);
    *ret_ctx = &ctx->base;
    return 0;
}

int net_paths_pick(struct net_endpoint *ep, uint64_t bytes, uint64_t left, unsigned refused, uint64_t now_ns)
{
    struct stripe_path others[NET_PATHS_MAX];
    if (ep->npaths == 1)
        return refused & 1 ? -1 : 0;
    int best = stripe_choose(ep->stripe, ep->npaths, bytes, now_ns);
    if (best < 0) /* none is up; submit reports it */
        return refused & 1 ? -1 : 0;
    if (!(refused >> best & 1))
        return best;
    memcpy(others, ep->stripe, ep->npaths * sizeof(*others));
    for (unsigned k = 0; k < ep->npaths; k++)
        others[k].down |= refused >> k & 1;
    int k = stripe_choose(others, ep->npaths, bytes, now_ns);
    bool worth = k >= 0 && stripe_seconds(ep->stripe, ep->npaths, (unsigned)k, bytes) <=
                               stripe_seconds(ep->stripe, ep->npaths, (unsigned)best, left);
    return worth ? k : -1;
}

/* --- for the owner ------------------------------------------------------------------------------------------------ */

bool net_paths_any_wanted(const struct net_ctx *ctx)
{
    return ctx_of(ctx)->missing > 0;
}

unsigned net_paths_wanted(struct net_endpoint *ep, uint64_t now_ns)
{
    unsigned wanted = 0;
    for (unsigned k = 0; k < ep->npaths; k++)
        if (!ep->paths[k].lower && !ep->paths[k].asked && stripe_try(&ep->stripe[k], now_ns)) {
            ep->paths[k].asked = true;
            wanted |= 1u << k;
        }
    return wanted;
}

int net_paths_add(struct net_endpoint *ep, const struct net_peer *peer, uint64_t deadline_ns,
                  struct leat_error *err)
{
    int rc = path_connect(ep, peer, deadline_ns, err);
    ep->ctx->missing -= rc == 0;
    return rc;
}

void net_paths_failed(struct net_endpoint *ep, unsigned k, uint64_t now_ns)
{
    if (k >= ep->npaths || ep->paths[k].lower)
        return;
    ep->paths[k].asked = false;
    ep->paths[k].left = "it cannot be connected";
    stripe_failed(&ep->stripe[k], now_ns);
}

void net_paths_hint(struct net_endpoint *ep, unsigned k, uint64_t bytes_per_s, uint64_t penalty_ns)
{
    if (k >= ep->npaths)
        return;
    ep->stripe[k].nominal_bytes_per_s = bytes_per_s;
    ep->stripe[k].penalty_ns = penalty_ns;
}

unsigned net_paths_info(const struct net_endpoint *ep, struct net_path_info ret_info[NET_PATHS_MAX])
{
    for (unsigned k = 0; k < ep->npaths; k++)
        ret_info[k] = (struct net_path_info){.up = ep->paths[k].lower,
                                             .bytes = ep->stripe[k].total_bytes,
                                             .rate_bytes_per_s = ep->stripe[k].rate_bytes_per_s,
                                             .left = ep->paths[k].left};
    return ep->npaths;
}
