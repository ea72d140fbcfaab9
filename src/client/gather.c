/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.c: parts of samples into their destinations, over whatever rails lead to them.
 *
 *   part ──▶ pieces (cut at region boundaries; for other nodes also into slices of a stage) ──▶ by node ──▶ operations
 *        ──▶ completions ──▶ CRCs of a part's pieces combined in order ──▶ compared with the live table's
 *
 * The local node is one operation of a transport that completes at once. Other nodes are asked in turns, as many
 * bytes as credit allows over all of them together, and half of that of one while others have work left; the local copy is made while the first answers are on their way.
 *
 * Failure modes: a connection that breaks is brokered again once, and its open reads are repeated; if that fails too the
 * samples are fetched through our own daemon, which reads them from their source; a set without one is LEAT_PEER_GONE. An
 * operation past its deadline is LEAT_TIMED_OUT and may leave `unquiesced` ones, which still own their destinations.
 * Invariants: nothing allocates once the arrays have grown to the largest batch; a destination is asked for twice only
 * after its first operation is quiesced.
 */
#include "client/client.h"

#include "base/clock.h"
#include "base/crc32c.h"

#define PENDING   1 /* net_read.status before it was asked for: no errno is positive */
#define LOCAL_MAX (1 * GIB)
#define LOST_MS   1000 /* of silence, before a check whether nodes were lost */
#define SHARES    2u   /* of what a node has left, for each rail */
#define IN_ORDER_BYTES                                                                                       \
    (512 * KIB) /* what is in flight then keeps all servers busy while one of them is waited for */

/* --- arrays --------------------------------------------------------------------------------------------------------- */

static int grow(void *array, uint32_t cap, size_t size)
{
    void *bigger = realloc(*(void **)array, (size_t)cap * size);
    if (!bigger)
        return -ENOMEM;
    *(void **)array = bigger;
    return 0;
}

static int reserve_reads(struct gather *g, uint32_t reads)
{
    if (likely(reads <= g->reads_cap) && (g->rails->all_local || g->sorted)) /* the last that is made */
        return 0;
    uint32_t cap = reads <= g->reads_cap ? g->reads_cap : MAX(reads, g->reads_cap + g->reads_cap / 2);
    if (grow(&g->reads, cap, sizeof(*g->reads)))
        return -ENOMEM;
    if (!g->rails->all_local &&
        (grow(&g->node, cap, sizeof(*g->node)) || grow(&g->place, cap, sizeof(*g->place)) ||
         grow(&g->sorted, cap, sizeof(*g->sorted))))
        return -ENOMEM; /* some are longer than reads_cap says, which does no harm */
    g->reads_cap = cap;
    return 0;
}

int gather_new(struct rails *rails, uint32_t parts, uint32_t reads, struct gather **ret_gather)
{
    struct gather *g = calloc(1, sizeof(*g));
    if (!g)
        return -ENOMEM;
    g->rails = rails;
    uint32_t nodes = rails->ws->info.nnodes + 1;
    g->parts = calloc(MAX(parts, 1u), sizeof(*g->parts));
    g->cursor = calloc(nodes, sizeof(*g->cursor));
    g->end = calloc(nodes, sizeof(*g->end));
    g->in_flight = calloc(nodes, sizeof(*g->in_flight));
    g->parts_cap = MAX(parts, 1u);
    if (!g->parts || !g->cursor || !g->end || !g->in_flight || reserve_reads(g, MAX(reads, 1u))) {
        gather_free(g);
        return -ENOMEM;
    }
    *ret_gather = g;
    return 0;
}

void gather_free(struct gather *g)
{
    if (!g)
        return;
    assert(!g->unquiesced);
    free(g->reads);
    free(g->node);
    free(g->place);
    free(g->sorted);
    free(g->parts);
    free(g->cursor);
    free(g->end);
    free(g->in_flight);
    free(g);
}

void gather_reset(struct gather *g)
{
    assert(!g->unquiesced);
    g->nreads = g->nparts = g->ndirect = 0;
    g->local_bytes = 0;
    g->remote = false;
    g->piece_bytes = g->rails->all_local ? UINT32_MAX : rails_piece_bytes(g->rails);
    g->share_bytes = UINT64_MAX;
    g->moves = ws_moves(g->rails->ws);
    for (unsigned k = 0; g->rails->ncredits > 1 && k < g->rails->ncredits; k++)
        g->share_bytes = MIN(g->share_bytes, credit_share(&g->rails->credit[k]));
}

/* --- cutting --------------------------------------------------------------------------------------------------------- */

/* Of so many bytes in all: where there are several rails, each gets a share of what is long. */
static uint64_t slice_of(const struct gather *g, uint64_t share, uint64_t stage, uint64_t bytes)
{
    unsigned n = g->rails->ncredits;
    return n > 1 ? MIN(stage, MAX(bytes / (SHARES * n), share)) : stage;
}

int gather_add(struct gather *g, uint64_t sample, unsigned field, const struct index_part *part, void *dst,
               const struct client_rpc_how *how, struct leat_error *err)
{
    struct leat_ws *ws = g->rails->ws;
    const uint64_t region_bytes = ws->info.region_bytes,
                   stage = slice_of(g, g->share_bytes, g->piece_bytes, part->bytes);
    uint64_t address = part->address, left = part->bytes;
    uint8_t *at = dst;

    if (unlikely(g->nparts == g->parts_cap)) {
        if (grow(&g->parts, g->parts_cap * 2, sizeof(*g->parts)))
            return error_set(err, -ENOMEM, "out of memory for the parts of a batch");
        g->parts_cap *= 2;
    }
    if (unlikely(!g->rails->all_local && !g->sorted) && reserve_reads(g, g->reads_cap)) /* widened since */
        return error_set(err, -ENOMEM, "out of memory for the pieces of a batch");
    struct gather_part *p = &g->parts[g->nparts];
    *p = (struct gather_part){.sample = sample, .field = field, .first = g->nreads};
    __builtin_prefetch(
        &ws->crc[sample * ws->index.header->nfields + field]); /* compared once the bytes are there */
    while (left) {
        uint64_t gid = (address | region_bytes) >> 32 ? address / region_bytes
                                                      : (uint32_t)address / (uint32_t)region_bytes;
        uint64_t offset = address - gid * region_bytes;
        if (unlikely(gid >= ws->info.nregions))
            return error_set(err, LEAT_CORRUPT, "the index places sample %llu outside of the pool",
                             (unsigned long long)sample);
        uint64_t bytes = MIN(left, region_bytes - offset);
        uint32_t node = ws_region_node(ws, gid);
        if (likely(node == g->rails->local_node)) {
            bytes = MIN(bytes, LOCAL_MAX);
            g->local_bytes += bytes;
            if (unlikely(!ws_region(ws, (uint32_t)gid))) {
                int rc = ws_map_region(ws, (uint32_t)gid, how, err);
                if (rc)
                    return ws_moves(ws) != g->moves ? GATHER_MOVED : rc;
            }
        } else if (unlikely(g->rails->near && node != ws->local_node)) {
            int rc = rails_widen(g->rails, err);
            return rc ? rc : GATHER_MOVED;
        } else {
            uint64_t most = stage;
            if (!g->remote) { /* what is asked for first may have to show the path's delay */
                most = MIN(stage, credit_request(&g->rails->credit[0], clock_now_ns()));
                g->next_node = node;
            }
            g->remote = true;
            bytes = credit_slice(most, bytes);
        }
        if (unlikely(g->nreads == g->reads_cap) && reserve_reads(g, g->nreads + 1))
            return error_set(err, -ENOMEM, "out of memory for the pieces of a batch");
        g->reads[g->nreads] = (struct net_read){.mr_gid = (uint32_t)gid,
                                                .bytes = (uint32_t)bytes,
                                                .offset = offset,
                                                .dst = at,
                                                .status = PENDING};
        if (!g->rails->all_local)
            g->node[g->nreads] = node;
        g->nreads++;
        p->npieces++;
        address += bytes;
        at += bytes;
        left -= bytes;
    }
    g->nparts++;
    return 0;
}

/* Reads of one node side by side: a counting sort. cursor and end delimit each node's. */
static void sort_by_node(struct gather *g)
{
    uint32_t nnodes = g->rails->ws->info.nnodes, at = 0;
    memset(g->end, 0, nnodes * sizeof(*g->end));
    for (uint32_t i = 0; i < g->nreads; i++)
        g->end[g->node[i]]++;
    for (uint32_t n = 0; n < nnodes; n++) {
        g->cursor[n] = at;
        at += g->end[n];
        g->end[n] = g->cursor[n];
    }
    for (uint32_t i = 0; i < g->nreads; i++) {
        g->place[i] = g->end[g->node[i]]++;
        g->sorted[g->place[i]] = g->reads[i];
    }
}

static struct net_read *read_of(struct gather *g, uint32_t i)
{
    return g->remote ? &g->sorted[g->place[i]] : &g->reads[i];
}

/* --- where they land ------------------------------------------------------------------------------------------------- */

const struct net_read *gather_read(struct gather *g, uint32_t i)
{
    return read_of(g, i);
}

bool gather_is_direct(const struct gather *g, const struct net_read *r)
{
    return (uintptr_t)r->dst - (uintptr_t)g->direct.device < g->direct.bytes;
}

bool gather_part_is_direct(struct gather *g, const struct gather_part *part)
{
    for (uint32_t k = 0; g->direct.bytes && k < part->npieces; k++)
        if (gather_is_direct(g, read_of(g, part->first + k)))
            return true;
    return false;
}

/* Before each request: its destination depends on the transport. */
static void aim(const struct gather *g, struct net_read *r, bool direct)
{
    const struct gather_direct *d = &g->direct;
    if (direct != gather_is_direct(g, r))
        r->dst =
            direct ? d->device + ((uint8_t *)r->dst - d->host) : d->host + ((uint8_t *)r->dst - d->device);
}

/* --- completions ------------------------------------------------------------------------------------------------------ */

static void on_event(struct rails *r, const struct net_event *event, uint64_t now_ns)
{
    struct gather_op *gop = event->op->user;
    if (event->kind == NET_DONE) {
        gop->done = true;
        gop->gather->unanswered--;
        gop->gather->failed |= gop->op.status != 0;
        gop->gather->in_flight[gop->node] -= gop->bytes;
        uint64_t rtt_ns = gop->op.status ? 0 : MAX(now_ns - gop->sent_ns, 1ull);
        struct stripe_path *sole_op = &r->ends[gop->node].sole_op;
        gop->op.status ? stripe_missed(sole_op, gop->bytes, now_ns)
                       : stripe_done(sole_op, gop->bytes, now_ns);
        if (!gop->given_up)
            credit_done(gop->credit, gop->bytes, rtt_ns, gop->sole_op, now_ns);
        credit_lost(gop->credit, gop->op.lost_segments);
    } else {
        gop->busy = false;
        gop->gather->unquiesced--;
        r->unquiesced--;
    }
}

void rails_progress(struct rails *r, int timeout_ms)
{
    struct net_event events[32];
    int n = rails_poll(r, events, ARRAY_LEN(events), timeout_ms);
    uint64_t now_ns = n > 0 ? clock_now_ns() : 0;
    for (int i = 0; i < n; i++)
        on_event(r, &events[i], now_ns);
}

/* --- the local node ---------------------------------------------------------------------------------------------------- */

static int run_local(struct gather *g, uint32_t node, struct net_read *reads, uint32_t n,
                     struct leat_error *err)
{
    struct rails *r = g->rails;
    int rc = rails_connect(r, node, &(struct client_rpc_how){0}, err);
    if (rc || !n)
        return rc;
    /* This transport is NET_CAP_INLINE: after submit and one poll nothing of the operation is left anywhere. */
    struct net_op op = {.reads = reads, .n = n};
    struct net_event events[2];
    rc = rails_submit(r, node, &op);
    for (unsigned seen = 0; !rc && seen < 2;) {
        int got = r->shm->ops->poll(r->shm, events, 2, 0);
        if (got <= 0)
            return error_set(err, got < 0 ? got : -EIO, "the shared memory transport lost an operation");
        seen += (unsigned)got;
    }
    if (rc || op.status) {
        int stale = ws_check_generation(r->ws, err);
        return stale ? stale
                     : error_sys(err, rc ? rc : op.status, "reading %s through shared memory", r->ws->uri);
    }
    return 0;
}

/* --- other nodes -------------------------------------------------------------------------------------------------------- */

static struct gather_op *free_op(struct gather *g)
{
    for (unsigned i = 0; i < GATHER_OPS; i++)
        if (!g->ops[i].busy)
            return &g->ops[i];
    return NULL;
}

struct run { /* the next request to a node */
    uint32_t node, first, n;
    unsigned rail;
    uint64_t bytes;
    bool sole_op;
};

/* Whole reads up to a stage, at least one. False: nothing is left. */
static bool next_run(struct gather *g, struct run *run, uint64_t stage)
{
    const uint32_t node = run->node;
    uint32_t at = g->cursor[node];
    while (at < g->end[node] && g->sorted[at].status != PENDING)
        at++;
    g->cursor[node] = at;
    if (at == g->end[node])
        return false;
    uint64_t bytes = g->sorted[at].bytes;
    uint32_t n = 1;
    while (at + n < g->end[node] && n < PROTO_READS_MAX && g->sorted[at + n].status == PENDING &&
           bytes + g->sorted[at + n].bytes <= stage)
        bytes += g->sorted[at + n++].bytes;
    run->first = at;
    run->n = n;
    run->bytes = bytes;
    return true;
}

/* The rest of a node's reads, as far as it matters for the next request by one of several rails. */
static uint64_t left_of(const struct gather *g, uint32_t node, uint64_t enough)
{
    uint64_t bytes = 0;
    for (uint32_t at = g->cursor[node]; at < g->end[node] && bytes < enough; at++)
        bytes += g->sorted[at].status == PENDING ? g->sorted[at].bytes : 0;
    return bytes;
}

static void fail_node(struct gather *g, uint32_t node, int rc)
{
    for (uint32_t i = g->cursor[node]; i < g->end[node]; i++)
        if (g->sorted[i].status == PENDING)
            g->sorted[i].status = rc;
    g->cursor[node] = g->end[node];
    g->failed = true;
}

/* Its credit is taken already. */
static int send_run(struct gather *g, const struct run *run, struct gather_op *gop,
                    const struct client_rpc_how *how, uint64_t now_ns, struct leat_error *err)
{
    struct rails *r = g->rails;
    const uint32_t node = run->node;
    const bool direct = rails_reach_device(r, node, g->direct.memory);
    for (uint32_t i = 0; g->direct.bytes && i < run->n; i++)
        aim(g, &g->sorted[run->first + i], direct);
    *gop = (struct gather_op){.gather = g,
                              .node = node,
                              .busy = true,
                              .credit = &r->credit[run->rail],
                              .bytes = run->bytes,
                              .sole_op = run->sole_op,
                              .sent_ns = now_ns};
    gop->op = (struct net_op){.reads = &g->sorted[run->first],
                              .n = run->n,
                              .deadline_ns = how->deadline_ns,
                              .user = gop,
                              .path = r->ncredits > 1 ? run->rail + 1 : 0};
    int rc = rails_submit(r, node, &gop->op);
    if (rc) {
        gop->busy = false;
        return error_sys(err, rc, "cannot ask node %s", r->ws->info.nodes[node].address);
    }
    g->cursor[node] = run->first + run->n;
    g->sent_ns = now_ns;
    g->unanswered++;
    g->unquiesced++;
    r->unquiesced++;
    g->in_flight[node] += run->bytes;
    stripe_sent(&r->ends[node].sole_op, run->bytes, gop->sent_ns);
    return 0;
}

static unsigned nodes_with_work(const struct gather *g)
{
    unsigned n = 0;
    for (uint32_t node = 0; node < g->rails->ws->info.nnodes; node++)
        n += !rails_is_local(g->rails, node) && g->cursor[node] < g->end[node];
    return n;
}

/* By the best rail that has credit. RUN_SENT, RUN_NONE: nothing is left; RUN_WAIT: not now; RUN_DRY: no
 * rail has credit for any read. */
enum run_code { RUN_SENT, RUN_NONE, RUN_WAIT, RUN_DRY };
static enum run_code run_one(struct gather *g, uint32_t node, bool others, struct gather_op *gop,
                             const struct client_rpc_how *how)
{
    struct rails *r = g->rails;
    struct run run = {.node = node};
    const unsigned all = (1u << r->ncredits) - 1;
    int rc = rails_connect(r, node, how, &g->cause);
    if (rc) {
        fail_node(g, node, rc);
        return RUN_SENT;
    }
    for (unsigned refused = 0;;) {
        uint64_t stage = credit_piece_bytes(&r->credit[run.rail]), left = 0;
        if (r->ncredits > 1) {
            left = left_of(g, node, (uint64_t)SHARES * r->ncredits * CREDIT_PIECE_MAX);
            int rail = rails_pick(r, node, slice_of(g, credit_share(&r->credit[run.rail]), stage, left), left,
                                  refused);
            if (rail < 0 || rail >= (int)r->ncredits)
                return refused == all ? RUN_DRY : RUN_WAIT;
            run.rail = (unsigned)rail;
            const struct credit *its = &r->credit[run.rail];
            stage = slice_of(g, credit_share(its), credit_piece_bytes(its), left);
        }
        struct credit *credit = &r->credit[run.rail];
        uint64_t now_ns = clock_now_ns();
        if (!next_run(g, &run, MIN(stage, credit_request(credit, now_ns))))
            return RUN_NONE;
        /* A server that is slow, or frozen, holds half of the credit at most while others could use it. */
        if (others && g->in_flight[node] && g->in_flight[node] + run.bytes > MAX(rails_limit(r) / 2, stage))
            return RUN_WAIT;
        if (credit_take(credit, run.bytes, now_ns, &run.sole_op)) {
            rc = send_run(g, &run, gop, how, now_ns, &g->cause);
            if (rc) {
                credit_done(credit, run.bytes, 0, false, now_ns);
                fail_node(g, node, rc);
            }
            return RUN_SENT;
        }
        g->refused = run.rail;
        refused |= 1u << run.rail;
        if (refused == all)
            return RUN_DRY;
    }
}

/* Asks all nodes in turns for what may be in flight. True: something is left to ask for. */
static bool dispatch(struct gather *g, const struct client_rpc_how *how)
{
    const uint32_t nnodes = g->rails->ws->info.nnodes;
    unsigned working = nodes_with_work(g);
    for (bool any = true; any && working;) {
        any = false;
        for (uint32_t k = 0; k < nnodes; k++) {
            uint32_t node = (g->next_node + k) % nnodes;
            if (rails_is_local(g->rails, node) || g->cursor[node] == g->end[node])
                continue;
            struct gather_op *gop = free_op(g);
            if (!gop)
                return true;
            enum run_code code = run_one(g, node, working > 1, gop, how);
            if (code == RUN_DRY) {
                g->next_node = node;
                return true;
            }
            any |= code == RUN_SENT;
            working -= code == RUN_NONE || (code == RUN_SENT && g->cursor[node] == g->end[node]);
        }
    }
    return nodes_with_work(g) > 0;
}

static bool has_lost(const struct gather *g)
{
    for (uint32_t i = 0; i < g->nparts; i++)
        if (ws_state(g->rails->ws, g->parts[i].sample) == LIVE_LOST)
            return true;
    return false;
}

/*
 * A server that is stopped keeps its connections, and only our daemon notices. True: samples were lost, and
 * no read is in flight any more.
 */
static bool leave_lost(struct gather *g)
{
    if (!has_lost(g))
        return false;
    for (uint32_t node = 0; node < g->rails->ws->info.nnodes; node++)
        if (g->in_flight[node] && !rails_is_local(g->rails, node))
            rails_disconnect(g->rails, node);
    for (unsigned i = 0; i < 1000 && g->unquiesced; i++)
        rails_progress(g->rails, 1);
    return !g->unquiesced;
}

/* One pass over all reads still pending. Returns when each was answered, or failed, or the deadline has passed. */
static int pass(struct gather *g, struct net_read *local, uint32_t nlocal, const struct client_rpc_how *how,
                struct leat_error *err)
{
    const struct leat_client *client = g->rails->ws->client;
    bool left = dispatch(g, how);
    uint64_t poll_ns = 0, lost_ns = g->sent_ns + LOST_MS * NS_PER_MS;
    if (nlocal) {
        int rc = run_local(g, g->rails->local_node, local, nlocal, err);
        if (rc)
            return rc;
    }
    while (left || g->unanswered) {
        if (client_cancelled(client, how, &poll_ns))
            return client_cancelled_error(err);
        int sleep_ms = client_sleep_ms(client, how); /* 0: the deadline has passed */
        if (sleep_ms == 0 && !g->unanswered)
            return error_set(err, LEAT_TIMED_OUT, "the deadline passed before every server was asked");
        /* Where little may be in flight every answer that is there gives way to the next request at once. */
        rails_poll_in_order(g->rails, !left || rails_limit(g->rails) >= IN_ORDER_BYTES);
        unsigned unanswered = g->unanswered;
        int wait_ms = sleep_ms < 0 ? LOST_MS : MIN(MAX(sleep_ms, 1), LOST_MS);
        if (unanswered) /* what others give back while we wait for our own is taken with it */
            rails_progress(g->rails, wait_ms);
        else
            credit_wait(&g->rails->credit[g->refused], 1);
        if (g->unanswered != unanswered) {
            lost_ns = 0;
        } else if (unanswered && clock_now_ns() >= lost_ns) {
            if (lost_ns && leave_lost(g))
                return GATHER_MOVED;
            lost_ns = clock_now_ns() + LOST_MS * NS_PER_MS;
        }
        if (sleep_ms != 0)
            left = dispatch(g, how);
    }
    return 0;
}

static bool broke_off(int status)
{
    return status == LEAT_PEER_GONE || status == -EPIPE || status == -ECONNREFUSED ||
           status == -ECONNABORTED || status == -EHOSTUNREACH || status == -ENETUNREACH;
}

/* First read of a remote node that is neither good nor worth another attempt; *ret_again: some are. */
static const struct net_read *judge(struct gather *g, bool *ret_again)
{
    *ret_again = false;
    for (uint32_t node = 0; node < g->rails->ws->info.nnodes; node++)
        for (uint32_t i = node ? g->end[node - 1] : 0; i < g->end[node]; i++) {
            int status = g->sorted[i].status;
            if (broke_off(status))
                *ret_again = true;
            else if (status)
                return &g->sorted[i];
        }
    return NULL;
}

/* Disconnects the nodes that broke off, waits until they are quiesced, and makes their reads pending again. */
static void rearm(struct gather *g, bool pending)
{
    struct rails *r = g->rails;
    for (uint32_t node = 0; node < r->ws->info.nnodes; node++) {
        uint32_t start = node ? g->end[node - 1] : 0;
        bool broke = false;
        g->cursor[node] = start;
        for (uint32_t i = start; i < g->end[node]; i++)
            if (broke_off(g->sorted[i].status)) {
                broke = true;
                g->sorted[i].status = pending ? PENDING : g->sorted[i].status;
            }
        if (broke)
            rails_disconnect(r, node);
    }
    for (unsigned i = 0; i < 1000 && g->unquiesced; i++)
        rails_progress(r, 1);
}

/* The last resort: our daemon reads those samples from their source. */
static int fetch_lost(struct gather *g, const struct client_rpc_how *how, struct leat_error *err)
{
    struct leat_ws *ws = g->rails->ws;
    if (client_rpc_poll(ws->client)) /* not just a connection: the daemon itself */
        return client_rpc_dead_error(ws->client, err);
    if (g->unquiesced)
        return error_set(err, LEAT_PEER_GONE, "a node holding part of %s is gone", ws->uri);
    uint32_t n = 0;
    AUTO_FREE struct stream_want *wants = malloc((size_t)g->nparts * sizeof(*wants));
    if (!wants)
        return error_set(err, -ENOMEM, "out of memory");
    const char *address = "";
    for (uint32_t p = 0; p < g->nparts; p++) {
        const struct gather_part *part = &g->parts[p];
        bool lost = false;
        for (uint32_t k = 0; k < part->npieces; k++)
            if (read_of(g, part->first + k)->status) {
                lost = true;
                address = ws->info.nodes[g->node[part->first + k]].address;
            }
        if (!lost)
            continue;
        for (uint32_t k = 0; k < part->npieces; k++)
            aim(g, read_of(g, part->first + k), false);
        wants[n] = (struct stream_want){
            .sample = part->sample, .field = part->field, .dst = read_of(g, part->first)->dst};
        index_part(&ws->index, part->sample, part->field, &wants[n].part);
        n++;
        g->parts[p].npieces = 0; /* checked by stream_read */
    }
    if (ws->info.flags & PROTO_WS_PUSHED)
        return error_set(err, LEAT_PEER_GONE,
                         "node %s is gone, and with it its part of %s, which has no source", address,
                         ws->uri);
    int rc = stream_read(ws, wants, n, 0, how, err);
    if (rc && rc != LEAT_TIMED_OUT && rc != LEAT_CANCELED) {
        rc = LEAT_PEER_GONE; /* what happened first; why its source did not help stands in the message */
        if (err)
            err->code = rc;
    }
    return rc ? error_prefix(err, rc, "node %s is gone, and its part could not be read from the source",
                             address)
              : 0;
}

/*
 * Reads in flight when the call fails: its view may stay unused for ever (in a traceback, say), and all other
 * views of the process, and of the user, would wait for the credit.
 */
static void give_up_credit(struct gather *g)
{
    uint64_t now_ns = clock_now_ns();
    for (unsigned i = 0; i < GATHER_OPS; i++) {
        struct gather_op *gop = &g->ops[i];
        if (gop->busy && !gop->done && !gop->given_up)
            credit_done(gop->credit, gop->bytes, 0, false, now_ns);
        gop->given_up = true;
    }
}

/* A read that failed for good, with what is known about why. */
static int bad_read(const struct gather *g, const struct net_read *bad, struct leat_error *err)
{
    const struct leat_ws *ws = g->rails->ws;
    const struct net_ctx *rdma = g->rails->rdma;
    if (bad->status == PENDING)
        return error_set(err, LEAT_TIMED_OUT, "the deadline passed before every server was asked");
    uint32_t node = 0; /* that was asked: the region may be at another one by now */
    while (bad >= g->sorted + g->end[node])
        node++;
    return error_set(err, bad->status, "reading region %u of %s from node %s: %s", bad->mr_gid, ws->uri,
                     ws->info.nodes[node].address,
                     g->cause.code == bad->status            ? g->cause.message
                     : rdma && rdma->why.code == bad->status ? rdma->why.message
                                                             : leat_strerror(bad->status));
}

static int run_remote(struct gather *g, const struct client_rpc_how *how, struct leat_error *err)
{
    bool again;
    g->cause.code = 0;
    sort_by_node(g);
    uint32_t local = g->rails->local_node;
    uint32_t nlocal = local == UINT32_MAX ? 0 : g->end[local] - g->cursor[local];
    struct net_read *local_reads = nlocal ? &g->sorted[g->cursor[local]] : NULL;

    for (unsigned attempt = 0; attempt < 2; attempt++) {
        g->failed = false;
        int rc = pass(g, local_reads, attempt ? 0 : nlocal, how, err);
        if (rc || !g->failed)
            return rc;
        const struct net_read *bad = judge(g, &again);
        bool moved = ws_moves(g->rails->ws) != g->moves; /* it may be another node that has it */
        if (bad && moved && bad->status != PENDING && bad->status != LEAT_TIMED_OUT) {
            rearm(g, false);
            if (!g->unquiesced)
                return GATHER_MOVED;
        }
        if (bad)
            return bad_read(g, bad, err);
        if (!again)
            return 0;
        atomic_fetch_add_explicit(&client_counters.reconnects, 1, memory_order_relaxed);
        rearm(g, attempt == 0);
        if (g->unquiesced) /* what is out may still land there */
            break;
        if (moved)
            return GATHER_MOVED;
    }
    return fetch_lost(g, how, err);
}

/* --- checking --------------------------------------------------------------------------------------------------------- */

int gather_mismatch(struct leat_ws *ws, uint64_t sample, unsigned field, uint32_t moves,
                    struct leat_error *err)
{
    char what[256];
    int rc = ws_check_generation(ws, err); /* wrong bytes are no error if the set ends */
    if (rc)
        return rc;
    if (ws_state(ws, sample) != LIVE_RESIDENT ||
        ws_moves(ws) != moves) /* nor those of a node that was lost, and now fills again */
        return GATHER_MOVED;
    atomic_fetch_add_explicit(&client_counters.corrupt, 1, memory_order_relaxed);
    return error_set(err, LEAT_CORRUPT, "checksum of %s does not match what was recorded at preload",
                     ws_describe(ws, sample, field, what));
}

static int check_crcs(struct gather *g, struct leat_error *err)
{
    struct leat_ws *ws = g->rails->ws;
    for (uint32_t i = 0; i < g->nparts; i++) {
        const struct gather_part *part = &g->parts[i];
        if (unlikely(!part->npieces))
            continue;
        if (unlikely(gather_part_is_direct(g, part))) {
            g->ndirect++;
            continue;
        }
        uint32_t crc = read_of(g, part->first)->crc;
        for (uint32_t k = 1; k < part->npieces; k++) {
            const struct net_read *r = read_of(g, part->first + k);
            crc = crc32c_combine(crc, r->crc, r->bytes);
        }
        if (unlikely(crc != ws_crc(ws, part->sample, part->field)))
            return gather_mismatch(ws, part->sample, part->field, g->moves, err);
    }
    return 0;
}

static void note_remote(struct rails *r)
{
    rails_rest(r);
    for (uint32_t node = 0; node < r->ws->info.nnodes; node++)
        if (!rails_is_local(r, node))
            delivery_note(r, node, false);
}

int gather_run(struct gather *g, const struct client_rpc_how *how, struct leat_error *err)
{
    if (!g->nreads)
        return 0;
    int rc =
        g->remote ? run_remote(g, how, err) : run_local(g, g->rails->local_node, g->reads, g->nreads, err);
    if (rc && g->unquiesced)
        give_up_credit(g);
    if (g->remote)
        note_remote(g->rails);
    if (!rc && g->local_bytes)
        delivered(g->rails->ws, DELIVERED_SHM, g->local_bytes);
    return rc ? rc : check_crcs(g, err);
}
