/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c: ops on their way: cut into slices, sent as gets or asked for as puts, checksummed where they lie. See ucx.c. */
#include "net/ucx/endpoint.h"

#include "base/clock.h"
#include "base/crc32c.h"

#define SLICE (64 * KIB)
#define TRIES 3 /* paths that a slice may break before its read fails: the slice may be the cause */

/* --- flights ------------------------------------------------------------------------------------------------------ */

void flight_quiesced(struct flight *f)
{
    struct ucx_ctx *ctx = f->endpoint->ctx;
    assert(f->over && f->out == 0);
    list_remove(&f->node);
    list_for_each_safe (node, &f->slices) {
        list_remove(node);
        list_push_front(&ctx->spares, node);
    }
    if (f->op->state == NET_OP_TOLD)
        list_remove(&f->op->node);
    net_op_quiesced(f->op, &ctx->events);
    ctx->in_flight--;
    free(f);
}

void flight_done(struct flight *f, int status)
{
    f->over = true;
    if (f->op->status == 0)
        f->op->status = status;
    net_op_done(&f->endpoint->ctx->base, f->op, &f->endpoint->ctx->events);
}

/* Every slice is back, and each error is known by read. */
static void flight_landed(struct flight *f)
{
    struct net_op *op = f->op;
    for (uint32_t i = 0; i < op->n; i++) {
        struct net_read *r = &op->reads[i];
        if (r->status == 0)
            r->crc = f->memory && f->memory->device >= 0 ? 0 : crc32c(0, r->dst, r->bytes);
        else if (op->status == 0)
            op->status = r->status;
    }
    flight_done(f, 0);
}

static void flight_back(struct flight *f)
{
    struct net_endpoint *ep = f->endpoint;
    if (--f->out)
        return;
    ep->ctx->look = true;
    if (f->over)
        return;
    flight_landed(f);
    if (!f->failed) {
        flight_quiesced(f);
    } else { /* until the paths that failed are closed */
        list_remove(&f->node);
        list_push_back(&ep->held, &f->node);
    }
}

/* It is not out on its path any more. */
static void slice_left(struct slice *s, int status)
{
    struct ucx_path *p = TAKE_PTR(s->path);
    if (!p)
        return;
    struct net_endpoint *ep = p->endpoint;
    struct net_rdma_total *total = ep->ctx->rails[p->rail].total;
    struct stripe_path *stripe = &ep->stripe[p - ep->paths];
    if (status)
        stripe_missed(stripe, s->cut.bytes, clock_now_ns());
    else
        stripe_came(stripe, s->cut.bytes, clock_now_ns());
    ep->came = ep->ctx->look = true;
    if (total)
        atomic_fetch_add_explicit(status ? &total->failures : &total->bytes, status ? 1 : s->cut.bytes,
                                  memory_order_relaxed);
    if (!status && s->flight->memory)
        p->put_bytes += s->cut.bytes;
    p->out--;
    s->was = p;
}

static void slice_back(struct slice *s, int status)
{
    struct flight *f = s->flight;
    slice_left(s, status);
    list_remove(&s->node);
    list_push_front(&f->endpoint->ctx->spares, &s->node);
    if (status)
        f->failed = true;
    if (status && !f->over)
        for (uint32_t i = s->cut.first; i <= s->cut.last; i++)
            if (f->op->reads[i].status == 0)
                f->op->reads[i].status = status;
    flight_back(f);
}

/* Its path broke, and is closed before it goes out again. */
static void slice_lost(struct slice *s)
{
    struct net_endpoint *ep = s->flight->endpoint;
    slice_left(s, LEAT_PEER_GONE);
    if (s->flight->over || s->tries == TRIES) {
        slice_back(s, LEAT_PEER_GONE);
        return;
    }
    list_remove(&s->node);
    list_push_back(&ep->lost, &s->node);
    ep->ctx->look = true;
}

/* UCX may give a failed get back before it says that the path broke, and another part of it may still land until that is closed. */
static void get_back(struct slice *s, ucs_status_t status)
{
    if (status == UCS_OK) {
        slice_back(s, 0);
    } else {
        path_broke(s->path);
        slice_lost(s);
    }
}

static void on_slice(void *request, ucs_status_t status, void *arg)
{
    struct slice *s = arg;
    s->flight->endpoint->ctx->ucx->ucp_request_free(request);
    get_back(s, status);
}

/* --- cutting --------------------------------------------------------------------------------------------------------- */

/*
 * The next slice behind the cursor; false: none is left. Neighbours (in the region and at the destination)
 * are combined up to a slice. A large read is split; a tail shorter than a quarter stays with the slice
 * before it.
 */
static bool next_cut(const struct net_op *op, uint32_t *at, uint32_t *skip, struct cut *ret)
{
    while (*at < op->n && op->reads[*at].bytes == *skip) {
        ++*at;
        *skip = 0;
    }
    if (*at == op->n)
        return false;
    const struct net_read *r = &op->reads[*at];
    *ret = (struct cut){.gid = r->mr_gid,
                        .first = *at,
                        .last = *at,
                        .offset = r->offset + *skip,
                        .dst = (uint8_t *)r->dst + *skip};
    for (;;) {
        uint32_t left = r->bytes - *skip, room = (uint32_t)SLICE - ret->bytes;
        uint32_t take = left <= room + SLICE / 4 ? left : room;
        ret->bytes += take;
        ret->last = *at;
        *skip += take;
        if (take < left || ret->bytes >= SLICE || *at + 1 == op->n)
            return true;
        const struct net_read *next = r + 1;
        if (next->bytes == 0 || next->mr_gid != r->mr_gid || next->offset != r->offset + r->bytes ||
            (uint8_t *)next->dst != (uint8_t *)r->dst + r->bytes)
            return true;
        ++*at;
        *skip = 0;
        r = next;
    }
}

static bool reserve_slices(struct ucx_ctx *ctx, const struct net_op *op, struct list *slices)
{
    uint32_t at = 0, skip = 0;
    struct cut cut;
    while (next_cut(op, &at, &skip, &cut)) {
        struct slice *s = list_first(&ctx->spares, struct slice, node);
        if (s)
            list_remove(&s->node);
        else if (!(s = malloc(sizeof(*s))))
            return false;
        list_push_back(slices, &s->node);
    }
    return true;
}

/* --- requests on the data connection ------------------------------------------------------------------------------------- */

int endpoint_request(struct net_endpoint *ep, uint16_t type, const struct bytes_out *body)
{
    uint8_t head[PROTO_FRAME];
    struct proto_frame frame = {.version = ep->version,
                                .kind = PROTO_REQUEST,
                                .type = type,
                                .id = ++ep->next_id,
                                .body_bytes = (uint32_t)body->len};
    size_t before = ep->out.len;
    proto_frame_put(head, &frame);
    bytes_put(&ep->out, head, sizeof(head));
    bytes_put(&ep->out, body->data, body->len);
    if (!ep->out.failed && !body->failed)
        return 0;
    ep->out.len = before;
    ep->out.failed = false;
    return -ENOMEM;
}

int endpoint_ask_keys(struct net_endpoint *ep, const uint32_t *gids, uint32_t n)
{
    struct bytes_out body = {0};
    bytes_put_u32(&body, n);
    for (uint32_t i = 0; i < n; i++)
        bytes_put_u32(&body, gids[i]);
    int rc = endpoint_request(ep, PROTO_RDMA_KEYS, &body);
    bytes_out_fini(&body);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct key *key = &ep->keys[gids[i]];
        key->renewed = key->state == KEY_HERE;
        key->state = key->renewed ? KEY_HERE : KEY_ASKED;
        key->asked_id = ep->next_id;
    }
    return rc;
}

static int tell_view(struct net_endpoint *ep, const struct net_memory *m)
{
    struct bytes_out body = {0};
    if (ep->told[m->id / 8] & 1u << m->id % 8)
        return 0;
    bytes_put_u32(&body, m->id);
    bytes_put_u64(&body, (uintptr_t)m->addr);
    bytes_put_u64(&body, m->bytes);
    bytes_put_u32(&body, ep->ctx->nrails);
    for (unsigned i = 0, stand_in = 0; i < ep->ctx->nrails; i++) {
        /* The key of a closed rail is never used: another one fills its place. */
        while (!m->key[stand_in] && stand_in + 1 < ep->ctx->nrails)
            stand_in++;
        const unsigned k = m->key[i] ? i : stand_in;
        bytes_put_u32(&body, (uint32_t)m->key_bytes[k]);
        bytes_put(&body, m->key[k], m->key_bytes[k]);
    }
    int rc = endpoint_request(ep, PROTO_RDMA_VIEW, &body);
    bytes_out_fini(&body);
    if (rc == 0)
        ep->told[m->id / 8] |= (uint8_t)(1u << m->id % 8);
    return rc;
}

struct ask *ask_find(struct net_endpoint *ep, uint64_t id)
{
    list_for_each (node, &ep->asks) {
        struct ask *ask = container_of(node, struct ask, node);
        if (ask->id == id)
            return ask;
    }
    return NULL;
}

void ask_over(struct net_endpoint *ep, struct ask *ask, int status)
{
    list_remove(&ask->node);
    ask->path->asks--;
    list_for_each_safe (node, &ask->slices)
        slice_back(container_of(node, struct slice, node), status);
    free(ask);
}

void ask_lost(struct net_endpoint *ep, struct ask *ask)
{
    list_for_each_safe (node, &ask->slices)
        slice_lost(container_of(node, struct slice, node));
}

/* Takes slices off the list, as many as one PUT may have, and asks for them; all of them come back if that fails. */
static void ask_put(struct flight *f, struct ucx_path *p, struct list *slices)
{
    struct net_endpoint *ep = f->endpoint;
    struct bytes_out ranges = {0}, body = {0};
    struct ask *ask = calloc(1, sizeof(*ask));
    struct list taken;
    struct slice *s;
    uint32_t n = 0;
    list_init(&taken);
    while (n < PROTO_PUTS_MAX && (s = list_first(slices, struct slice, node))) {
        struct proto_range range = {.gid = s->cut.gid, .bytes = s->cut.bytes, .offset = s->cut.offset};
        list_remove(&s->node);
        list_push_back(&taken, &s->node);
        proto_range_put(&ranges, &range);
        bytes_put_u64(&ranges, (uint64_t)(s->cut.dst - f->memory->addr));
        n++;
    }
    bytes_put_u32(&body, f->memory->id);
    bytes_put_u32(&body, p->far_rail);
    bytes_put_u32(&body, n);
    bytes_put(&body, ranges.data, ranges.len);
    int rc = !ask || ranges.failed ? -ENOMEM
             : !net_rdma_may_put(f->memory)
                 ? LEAT_PEER_GONE /* its last number went with a rail: it comes otherwise */
                 : tell_view(ep, f->memory);
    if (rc == 0)
        rc = endpoint_request(ep, PROTO_RDMA_PUT, &body);
    bytes_out_fini(&ranges);
    bytes_out_fini(&body);
    if (rc) {
        free(ask);
        while ((s = list_first(&taken, struct slice, node)))
            slice_back(s, rc);
        return;
    }
    ask->id = ep->next_id;
    ask->path = p;
    p->asks++;
    list_init(&ask->slices);
    while ((s = list_first(&taken, struct slice, node))) {
        list_remove(&s->node);
        list_push_back(&ask->slices, &s->node);
    }
    list_push_back(&ep->asks, &ask->node);
}

/* --- starting -------------------------------------------------------------------------------------------------------- */

static bool any_path(const struct net_endpoint *ep)
{
    for (unsigned i = 0; i < ep->npaths; i++)
        if (!ep->stripe[i].down)
            return true;
    return false;
}

/* On the path that is predicted to bring it first. False: none is up. */
static bool take_path(struct slice *s)
{
    struct net_endpoint *ep = s->flight->endpoint;
    uint64_t now = clock_now_ns();
    int k = stripe_choose(ep->stripe, ep->npaths, s->cut.bytes, now);
    if (k < 0)
        return false;
    stripe_sent(&ep->stripe[k], s->cut.bytes, now);
    s->path = &ep->paths[k];
    s->was_serial = s->path->serial;
    s->path->out++;
    s->tries++;
    return true;
}

static struct net_memory *memory_of(const struct ucx_ctx *ctx, const uint8_t *at, uint64_t bytes)
{
    list_for_each (node, &ctx->memories) {
        struct net_memory *m = container_of(node, struct net_memory, node);
        if (at >= m->addr && bytes <= m->bytes && (uint64_t)(at - m->addr) <= m->bytes - bytes)
            return m;
    }
    return NULL;
}

static ucs_status_t unpack_key(struct net_endpoint *ep, struct key *key, const struct ucx_path *p,
                               ucp_rkey_h *ret_rkey)
{
    ucp_rkey_h *rkey = &key->rkey[p - ep->paths];
    ucs_status_t status = UCS_OK;
    if (!*rkey && (!key->packed[p->far_rail] || key->incarnation[p->far_rail] != p->incarnation))
        return UCS_ERR_UNREACHABLE;
    if (!*rkey)
        status = ep->ctx->ucx->ucp_ep_rkey_unpack(p->ep, key->packed[p->far_rail], rkey);
    *ret_rkey = *rkey;
    return status;
}

static void send_get(struct slice *s)
{
    struct net_endpoint *ep = s->flight->endpoint;
    struct key *key = &ep->keys[s->cut.gid];
    ucp_rkey_h rkey = NULL;
    ucs_status_t status = unpack_key(ep, key, s->path, &rkey);
    if (status == UCS_ERR_NO_MEMORY) {
        slice_back(s, ucx_errno(status));
        return;
    }
    if (status != UCS_OK) {
        /* UCX reports a broken path by this first; or the far rail is another one */
        get_back(s, status);
        return;
    }
    const struct net_memory *m = memory_of(ep->ctx, s->cut.dst, s->cut.bytes);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 (m ? UCP_OP_ATTR_FIELD_MEMH : 0),
                                 .cb.send = on_slice,
                                 .user_data = s,
                                 .memh = m ? m->memh[s->path->rail] : NULL};
    ucs_status_ptr_t request = ep->ctx->ucx->ucp_get_nbx(s->path->ep, s->cut.dst, s->cut.bytes,
                                                         key->addr + s->cut.offset, rkey, &param);
    if (!UCS_PTR_IS_PTR(request))
        get_back(s, UCS_PTR_STATUS(request));
}

/* By a path of its own, or with others when ask_puts comes. */
static void slice_send(struct net_endpoint *ep, struct slice *s, struct list by_path[NET_RDMA_RAILS_MAX])
{
    if (!take_path(s)) /* the last one broke just now: the slice waits for another, or for the end */
        list_push_back(&ep->lost, &s->node);
    else if (s->flight->memory)
        list_push_back(&by_path[s->path - ep->paths], &s->node);
    else
        send_get(s);
}

static void ask_puts(struct flight *f, struct list by_path[NET_RDMA_RAILS_MAX])
{
    for (unsigned i = 0; i < f->endpoint->npaths; i++)
        while (!list_empty(&by_path[i]))
            ask_put(f, &f->endpoint->paths[i], &by_path[i]);
}

/* It may be over, and gone, when this returns. */
static void fly(struct flight *f)
{
    struct net_endpoint *ep = f->endpoint;
    struct list by_path[NET_RDMA_RAILS_MAX];
    uint32_t at = 0, skip = 0;
    struct cut cut;
    list_remove(&f->node);
    list_push_back(&ep->flying, &f->node);
    for (unsigned i = 0; i < ep->npaths; i++)
        list_init(&by_path[i]);
    f->out++;
    while (next_cut(f->op, &at, &skip, &cut)) {
        struct slice *s = list_first(&f->slices, struct slice, node);
        list_remove(&s->node);
        *s = (struct slice){.flight = f, .cut = cut};
        list_init(&s->node);
        f->out++;
        slice_send(ep, s, by_path);
    }
    ask_puts(f, by_path);
    flight_back(f);
}

/* Those of one flight at the head of the list. */
static void resend(struct net_endpoint *ep, struct flight *f, struct list *again)
{
    struct list by_path[NET_RDMA_RAILS_MAX];
    struct slice *s;
    for (unsigned i = 0; i < ep->npaths; i++)
        list_init(&by_path[i]);
    f->out++;
    while ((s = list_first(again, struct slice, node)) && s->flight == f) {
        list_remove(&s->node);
        if (f->over)
            slice_back(s, LEAT_PEER_GONE);
        else
            slice_send(ep, s, by_path);
    }
    ask_puts(f, by_path);
    flight_back(f);
}

void endpoint_resend(struct net_endpoint *ep)
{
    struct list again;
    struct slice *s;
    list_init(&again);
    list_for_each_safe (node, &ep->lost) {
        s = container_of(node, struct slice, node);
        bool quiet = !s->was || path_is_quiet(s->was, s->was_serial);
        if (quiet && (s->flight->over || any_path(ep))) {
            list_remove(node);
            list_push_back(&again, node);
        }
    }
    while ((s = list_first(&again, struct slice, node)))
        resend(ep, s->flight, &again);
}

enum ready { READY, NOT_READY, REFUSED };

/* Whether all of a flight's keys are here; those not requested yet are put into `gids`. */
static enum ready check_keys(struct flight *f, uint32_t gids[PROTO_KEYS_MAX], uint32_t *n)
{
    struct net_endpoint *ep = f->endpoint;
    bool missing = false, refused = false;
    for (uint32_t i = 0; i < f->op->n; i++) {
        struct net_read *r = &f->op->reads[i];
        struct key *key = r->mr_gid < ep->nkeys ? &ep->keys[r->mr_gid] : NULL;
        if (f->memory) /* the far end looks after it */
            continue;
        if (!key || (key->state == KEY_HERE && (r->bytes > key->bytes || r->offset > key->bytes - r->bytes)))
            r->status = LEAT_INVALID;
        else if (key->state == KEY_REFUSED)
            r->status = key->status;
        else if (key->state != KEY_HERE)
            missing = true;
        refused |= r->status != 0;
        if (key && key->state == KEY_NONE && *n < PROTO_KEYS_MAX) {
            gids[(*n)++] = r->mr_gid;
            key->state = KEY_ASKED;
        }
    }
    /* Reported together: which reads cannot be done */
    return missing ? NOT_READY : refused ? REFUSED : READY;
}

int endpoint_start(struct net_endpoint *ep)
{
    uint32_t gids[PROTO_KEYS_MAX], n = 0;
    list_for_each_safe (node, &ep->waiting) {
        struct flight *f = container_of(node, struct flight, node);
        enum ready ready = check_keys(f, gids, &n);
        if (ready == REFUSED) {
            for (uint32_t i = 0; i < f->op->n; i++)
                if (f->op->reads[i].status && !f->op->status)
                    f->op->status = f->op->reads[i].status;
            flight_done(f, 0);
            flight_quiesced(f);
        } else if (ready == READY && any_path(ep)) {
            fly(f);
        }
    }
    for (uint32_t i = 0; ep->refused && i < ep->nkeys; i++)
        if (ep->keys[i].state == KEY_REFUSED) /* the next op may ask again */
            ep->keys[i].state = KEY_NONE;
    ep->refused = false;
    return n ? endpoint_ask_keys(ep, gids, n) : 0;
}

/* What the far end is to write a read into; NULL: it is read, or lands in memory that is not registered. */
static struct net_memory *put_memory(const struct ucx_ctx *ctx, const struct net_read *r)
{
    struct net_memory *m = ctx->put || ctx->ndevices ? memory_of(ctx, r->dst, r->bytes) : NULL;
    return m && (ctx->put || m->device >= 0) ? m : NULL;
}

/* One that nothing was asked for yet. */
static void flight_drop(struct flight *f)
{
    list_for_each_safe (node, &f->slices) {
        list_remove(node);
        list_push_front(&f->endpoint->ctx->spares, node);
    }
    free(f);
}

int flight_new(struct net_endpoint *ep, struct net_op *op)
{
    struct ucx_ctx *ctx = ep->ctx;
    uint64_t bytes = 0;
    bool device = false;
    struct flight *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->endpoint = ep;
    f->op = op;
    list_init(&f->slices);
    if (!reserve_slices(ctx, op, &f->slices)) {
        flight_drop(f);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < op->n; i++) {
        struct net_read *r = &op->reads[i];
        struct net_memory *m = r->bytes ? put_memory(ctx, r) : f->memory;
        bool first = bytes == 0;
        r->crc = 0;
        r->status = 0;
        bytes += r->bytes;
        device |= m && m->device >= 0;
        if (r->bytes && first)
            f->memory = m && m->id < PROTO_VIEWS_MAX ? m : NULL;
        else if (m != f->memory) /* not all of it can be put: then nothing is */
            f->memory = NULL;
    }
    if (device && !f->memory) { /* UCX may bring what is short by the CPU */
        flight_drop(f);
        return LEAT_UNSUPPORTED;
    }
    net_op_begin(&ctx->base, ep, op, bytes);
    ctx->in_flight++;
    list_init(&op->node);
    list_push_back(&ep->waiting, &f->node);
    if (op->deadline_ns && (ctx->min_deadline_ns == 0 || op->deadline_ns < ctx->min_deadline_ns))
        ctx->min_deadline_ns = op->deadline_ns;
    if (bytes == 0) {
        flight_done(f, 0);
        flight_quiesced(f);
    }
    return 0;
}
