/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put.c: the other direction: the daemon writes into a client's view, after a request on the data connection.
 *
 * Happy path: on the data thread the ranges are resolved, their registrations kept in use, and a put goes to
 * its rail's thread. That writes every range, then flushes: once the flush is back the bytes are there, and
 * the request is answered.
 *
 * Failure modes: an invalid range, or an unknown view, refuses the whole request. A connection that breaks
 * ends its puts with LEAT_PEER_GONE. This error means that a byte may have been written: the client closes
 * its paths before it uses the destination again. A peer that is gone is not answered.
 *
 * Invariants: a put holds its peer and its registrations until UCX has given back everything that belongs to
 * it. Bytes are written only into views that the client registered itself.
 */
#include "net/ucx/serve.h"

#include "rpc/conn.h"

#include <inttypes.h>

#define VIEW_RAILS_MAX NET_RDMA_RAILS_MAX

struct put_range {
    const uint8_t *src;
    uint64_t dst;
    uint32_t bytes;
    struct net_rdma_memory *memory;
};

struct put {
    struct list node; /* rail->waiting */
    struct serve_rail *rail;
    struct net_rdma_peer *peer;
    const struct serve_view *view;
    struct net_later later;
    struct serve_ep *ep;
    unsigned out; /* callbacks to come, and one while it is being sent */
    int status;
    uint32_t n;
    struct put_range ranges[];
};

static void put_free(struct put *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->ranges[i].memory)
            serve_unuse(p->ranges[i].memory);
    net_rdma_peer_unref(p->peer);
    free(p);
}

/* --- on the rail's thread -------------------------------------------------------------------------------------------- */

static void put_over(struct put *p)
{
    struct net_rdma_server *server = p->rail->server;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n; i++)
        bytes += p->ranges[i].bytes;
    if (p->status == 0)
        atomic_fetch_add(&p->rail->put_bytes, bytes);
    pthread_mutex_lock(&server->lock);
    if (!p->peer->gone)
        net_server_answer(&p->later, p->status, p->status ? "the rail to the client broke" : NULL);
    pthread_mutex_unlock(&server->lock);
    p->rail->puts--;
    put_free(p);
}

static void put_back(struct put *p, ucs_status_t status)
{
    if (status != UCS_OK && p->status == 0)
        p->status = LEAT_PEER_GONE;
    if (--p->out == 0)
        put_over(p);
}

static void on_put(void *request, ucs_status_t status, void *arg)
{
    struct put *p = arg;
    struct serve_ep *e = p->ep;
    e->rail->rail.ucx->ucp_request_free(request);
    put_back(p, status);
    serve_ep_done(e);
}

static ucs_status_t key_of(struct serve_ep *e, const struct serve_view *view, ucp_rkey_h *ret_rkey)
{
    list_for_each (node, &e->keys) {
        const struct view_key *key = container_of(node, struct view_key, node);
        if (key->view == view) {
            *ret_rkey = key->rkey;
            return UCS_OK;
        }
    }
    struct view_key *key = e->far < view->n ? calloc(1, sizeof(*key)) : NULL;
    if (!key)
        return UCS_ERR_NO_MEMORY;
    ucs_status_t status = e->rail->rail.ucx->ucp_ep_rkey_unpack(e->ep, view->key[e->far], &key->rkey);
    if (status != UCS_OK) {
        free(key);
        return status;
    }
    key->view = view;
    list_push_front(&e->keys, &key->node);
    *ret_rkey = key->rkey;
    return UCS_OK;
}

static void put_send(struct put *p, struct serve_ep *e)
{
    const struct ucx_symbols *ucx = e->rail->rail.ucx;
    ucp_rkey_h rkey = NULL;
    p->ep = e;
    p->out = 1;
    ucs_status_t status = key_of(e, p->view, &rkey);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_MEMH,
                                 .cb.send = on_put,
                                 .user_data = p};
    for (uint32_t i = 0; status == UCS_OK && i < p->n; i++) {
        const struct put_range *r = &p->ranges[i];
        param.memh = r->memory->parts[e->rail->number].memh;
        if (!param.memh) { /* it was requested while the rail was closed */
            status = UCS_ERR_UNREACHABLE;
            break;
        }
        ucs_status_ptr_t request = ucx->ucp_put_nbx(e->ep, r->src, r->bytes, r->dst, rkey, &param);
        if (UCS_PTR_IS_PTR(request)) {
            p->out++;
            e->out++;
        } else {
            status = UCS_PTR_STATUS(request);
        }
    }
    if (status == UCS_OK) {
        param.op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMH;
        ucs_status_ptr_t request = ucx->ucp_ep_flush_nbx(e->ep, &param);
        if (UCS_PTR_IS_PTR(request)) {
            p->out++;
            e->out++;
        } else {
            status = UCS_PTR_STATUS(request);
        }
    }
    put_back(p, status);
}

/* False: its connection is not up yet. */
static bool put_try(struct put *p)
{
    struct serve_ep *e = serve_find(p->rail, p->peer->serial);
    if (e && !e->up)
        return false;
    list_remove(&p->node);
    if (e) {
        put_send(p, e);
    } else {
        p->out = 1;
        put_back(p, UCS_ERR_NOT_CONNECTED);
    }
    return true;
}

void serve_puts_look(struct serve_rail *r)
{
    list_for_each_safe (node, &r->waiting)
        put_try(container_of(node, struct put, node));
}

static void put_posted(void *arg)
{
    struct put *p = arg;
    p->rail->puts++;
    list_push_back(&p->rail->waiting, &p->node);
    put_try(p);
}

/* --- on the data thread, or a work thread of the pool ---------------------------------------------------------------------------------------------- */

void serve_view_free(struct serve_view *view)
{
    for (unsigned i = 0; view && i < view->n; i++)
        free(view->key[i]);
    free(view);
}

int net_rdma_peer_view(struct net_rdma_peer *peer, struct bytes_in *in, struct leat_error *err)
{
    uint32_t id = bytes_get_u32(in);
    struct serve_view *view = calloc(1, sizeof(*view));
    if (!view)
        return error_set(err, -ENOMEM, "out of memory for a view");
    view->addr = bytes_get_u64(in);
    view->bytes = bytes_get_u64(in);
    uint32_t n = bytes_get_u32(in);
    int rc = in->bad || id >= PROTO_VIEWS_MAX || peer->views[id] || n == 0 || n > VIEW_RAILS_MAX
                 ? LEAT_CORRUPT
                 : 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        uint32_t len = bytes_get_u32(in);
        const void *packed = len <= PROTO_KEY_BYTES ? bytes_get(in, len) : NULL;
        if (!packed || !ucx_shape_fits(&peer->server->shape, packed, len))
            rc = LEAT_CORRUPT;
        else if (!(view->key[i] = ucx_key_copy(packed, len)))
            rc = error_set(err, -ENOMEM, "out of memory for a view");
        view->n += rc == 0;
    }
    if (rc == 0)
        rc = bytes_in_done(in);
    if (rc) {
        serve_view_free(view);
        return rc;
    }
    peer->views[id] = view;
    return 0;
}

static int take_range(struct put *p, struct bytes_in *in, net_rdma_source_fn source, void *user,
                      struct leat_error *err)
{
    struct proto_range range;
    struct net_rdma_slot *slot;
    uint8_t *addr;
    uint64_t bytes;
    proto_range_get(in, &range);
    uint64_t offset = bytes_get_u64(in);
    struct put_range *r = &p->ranges[p->n];
    if (range.bytes > p->view->bytes || offset > p->view->bytes - range.bytes)
        return error_set(err, LEAT_INVALID, "offset %" PRIu64 " is not in the view", offset);
    int rc = source(user, &range, &slot, &addr, &bytes, err);
    if (rc == 0 && (range.bytes > bytes || range.offset > bytes - range.bytes))
        rc = error_set(err, LEAT_INVALID, "region %" PRIu32 " ends before %" PRIu64 " + %" PRIu32, range.gid,
                       range.offset, range.bytes);
    if (rc == 0)
        rc = serve_use(p->rail->server, slot, addr, bytes, &r->memory, err);
    if (rc)
        return rc;
    r->src = addr + range.offset;
    r->dst = p->view->addr + offset;
    r->bytes = range.bytes;
    p->n++;
    return 0;
}

int net_rdma_peer_put(struct net_rdma_peer *peer, struct bytes_in *in, net_rdma_source_fn source, void *user,
                      const struct net_later *later, struct leat_error *err)
{
    struct net_rdma_server *server = peer->server;
    uint32_t id = bytes_get_u32(in), rail = bytes_get_u32(in), n = bytes_get_u32(in);
    if (in->bad || id >= PROTO_VIEWS_MAX || !peer->views[id] || rail >= server->n || n == 0 ||
        n > PROTO_PUTS_MAX || bytes_left(in) != n * 24ull)
        return LEAT_CORRUPT;
    struct put *p = calloc(1, sizeof(*p) + n * sizeof(p->ranges[0]));
    if (!p)
        return error_set(err, -ENOMEM, "out of memory for a request");
    p->rail = &server->rails[rail];
    p->peer = peer;
    p->view = peer->views[id];
    p->later = *later;
    list_init(&p->node);
    net_rdma_peer_ref(peer);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = take_range(p, in, source, user, err);
    if (rc == 0 && (rc = loop_post(p->rail->loop, put_posted, p)) < 0)
        error_set(err, rc, "out of memory for a request");
    if (rc) {
        put_free(p);
        return rc;
    }
    return NET_LATER;
}
