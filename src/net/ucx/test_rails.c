/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails of both sides that break, go and come back, over UCX's own TCP. Reads continue on the remaining
 * rails, by the same endpoint, and a rail that came back carries bytes again.
 */
#include "net/ucx/testing.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/testing.h"

static void both_up(struct one *x)
{
    for (unsigned i = 0; i < 1000 && (x->ep->stripe[0].down || x->ep->stripe[1].down); i++)
        assert_int_equal(one_read(x, 0), 0);
    assert_int_equal(x->ep->paths[0].state, PATH_UP);
    assert_int_equal(x->ep->paths[1].state, PATH_UP);
}

static ucs_status_ptr_t no_get(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote_addr, ucp_rkey_h rkey,
                               const ucp_request_param_t *param)
{
    return UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
}

/* The only path that is up breaks amid an op, while another is being connected: the op waits for that one, or
 * for its deadline. */
static void without_a_path(bool comes)
{
    struct one x;
    struct net_event events[4];
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, &two_by_tcp), 0);
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    struct ucx_path *coming = &x.ep->paths[0];
    coming->state = PATH_CONNECTING;
    coming->began_ns = clock_now_ns() + 60 * NS_PER_S;
    x.ep->stripe[0].down = true;
    memset(dst, 0, sizeof(dst));
    x.done = x.quiesced = 0;
    const struct ucx_symbols *real = x.ep->ctx->ucx;
    struct ucx_symbols broken = *real;
    broken.ucp_get_nbx = no_get;
    x.ep->ctx->ucx = &broken;
    uint64_t deadline_ns = comes ? 0 : clock_now_ns() + NS_PER_S;
    x.op = (struct net_op){.reads = x.reads, .n = ARRAY_LEN(x.reads), .deadline_ns = deadline_ns};
    assert_int_equal(x.ctx->ops->submit(x.ep, &x.op), 0);
    x.ep->ctx->ucx = real;
    if (!comes) {
        one_wait(&x);
        assert_int_equal(x.op.status, LEAT_TIMED_OUT);
        assert_true(clock_now_ns() >= deadline_ns);
        assert_true(list_empty(&x.ep->lost));
        one_end(&x);
        return;
    }
    for (unsigned i = 0; i < 100 && x.ep->paths[1].state != PATH_CLOSED; i++)
        assert_int_equal(x.ctx->ops->poll(x.ctx, events, 4, 10), 0);
    assert_int_equal(x.ep->paths[1].state, PATH_CLOSED);
    assert_int_equal(x.ctx->ops->poll(x.ctx, events, 4, 10), 0);
    coming->state = PATH_UP;
    stripe_up(&x.ep->stripe[0]);
    x.ep->ctx->look = true;
    one_wait(&x);
    assert_int_equal(x.op.status, 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        assert_int_equal(x.reads[i].crc, crcs[i]);
    one_end(&x);
}

static void test_slices_without_a_path(void **state)
{
    NEEDS_UCX();
    without_a_path(true);
    without_a_path(false);
}

/* Reads continue when a rail breaks, and it carries bytes again after a while. It breaks between two reads:
 * UCX's emulation of puts over TCP aborts otherwise. */
static void comes_back(const struct net_rdma_config *config)
{
    struct one x;
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, config), 0);
    const struct ucx_path *path = &x.ep->paths[1];
    assert_int_equal(x.ep->npaths, 2);
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    uint64_t until = clock_now_ns() + 60 * NS_PER_S, before = x.ep->stripe[1].total_bytes, others = 0;
    assert_true(before > 0);
    far_tell(BREAK);
    while (clock_now_ns() < until && (path->serial == 0 || x.ep->stripe[1].total_bytes == before)) {
        assert_int_equal(one_read(&x, clock_now_ns() + 20 * NS_PER_S), 0);
        for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
            assert_int_equal(x.reads[i].crc, crcs[i]);
        if (path->serial == 0)
            before = x.ep->stripe[1].total_bytes;
        others += path->state == PATH_CLOSED;
        test_pause_us(1000);
    }
    assert_true(others > 0);
    assert_int_equal(path->serial, 1);
    assert_int_equal(path->state, PATH_UP);
    assert_true(x.ep->stripe[1].total_bytes > before);
    one_end(&x);
}

static void test_a_rail_comes_back(void **state)
{
    NEEDS_UCX();
    comes_back(&two_by_tcp);
    comes_back(&put_two_by_tcp);
}

/* A device that went: its context connects nothing any more. A later context is well. */
static const struct ucx_symbols *real_ucx;
static ucp_worker_h stale_worker;
static ucp_context_h stale_context;
static unsigned let_go, denied;

static ucs_status_t stale_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ret)
{
    if (let_go == 0 && worker == stale_worker) {
        denied++;
        return UCS_ERR_NO_DEVICE;
    }
    return real_ucx->ucp_ep_create(worker, params, ret);
}

static ucs_status_t stale_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
    let_go += context == stale_context;
    return real_ucx->ucp_mem_unmap(context, memh);
}

/* Reads until `done` holds, with no pause between tries of rail 1. */
static void read_until(struct one *x, const uint32_t *crcs, bool (*done)(const struct one *x))
{
    uint64_t until = clock_now_ns() + 120 * NS_PER_S;
    while (!done(x)) {
        assert_true(clock_now_ns() < until);
        x->ep->stripe[1].down_until_ns = MIN(x->ep->stripe[1].down_until_ns, clock_now_ns());
        x->ep->ctx->reconnect_ns = 1;
        assert_int_equal(one_read(x, clock_now_ns() + 60 * NS_PER_S), 0);
        for (unsigned i = 0; i < ARRAY_LEN(x->reads); i++)
            assert_int_equal(x->reads[i].crc, crcs[i]);
        assert_int_equal(x->ep->paths[0].serial, 0); /* which nothing happened to */
        test_pause_us(1000);
    }
}

static bool is_closed(const struct one *x)
{
    return !x->ep->ctx->rails[1].worker;
}

static bool is_up(const struct one *x)
{
    return x->ep->paths[1].state == PATH_UP && !x->ep->stripe[1].down;
}

static bool was_denied(const struct one *x)
{
    return denied > 0;
}

static uint64_t bytes_before;
static bool carries(const struct one *x)
{
    return x->ep->stripe[1].total_bytes > bytes_before;
}

/* Whatever uses the rail's present context is denied. */
static void device_goes(struct ucx_ctx *ctx, unsigned rail, struct ucx_symbols *stale)
{
    *stale = *(real_ucx = ctx->ucx);
    stale->ucp_ep_create = stale_ep_create;
    stale->ucp_mem_unmap = stale_mem_unmap;
    stale_worker = ctx->rails[rail].worker;
    stale_context = ctx->rails[rail].context;
    let_go = denied = 0;
    ctx->ucx = stale;
}

/* `away`: the device is not there yet when it is looked for first. */
static void comes_anew(const struct net_rdma_config *config, bool away)
{
    struct one x;
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, config), 0);
    struct ucx_ctx *ctx = x.ep->ctx;
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    const uint32_t id = x.memory->id;
    struct ucx_symbols stale;
    device_goes(ctx, 1, &stale);
    if (away)
        snprintf(ctx->wanted[1].name, sizeof(ctx->wanted[1].name), "nosuch0");
    far_tell(BREAK);
    read_until(&x, crcs, was_denied);
    if (away) {
        struct net_endpoint *second;
        struct net_memory *memory;
        read_until(&x, crcs, is_closed);
        assert_null(x.memory->memh[1]);
        /* What is registered and connected in between does without it, and gets it later. */
        assert_int_equal(x.ctx->ops->mem_register(x.ctx, aside, sizeof(aside), -1, &memory), 0);
        assert_null(memory->memh[1]);
        assert_int_equal(one_connect_second(&x, TWO, &second), 0);
        read_aside(&x, second);
        x.ctx->ops->disconnect(x.ctx, second);
        snprintf(ctx->wanted[1].name, sizeof(ctx->wanted[1].name), "lo");
        read_until(&x, crcs, is_up);
        assert_non_null(memory->memh[1]);
    }
    read_until(&x, crcs, is_up);
    assert_int_equal(denied, 2);
    assert_true(let_go > 0);
    assert_non_null(x.memory->memh[1]);
    assert_int_not_equal(x.memory->id, id); /* the far end gets it again */
    bytes_before = x.ep->stripe[1].total_bytes;
    read_until(&x, crcs, carries);
    ctx->ucx = real_ucx;
    one_end(&x);
}

static void test_a_device_comes_back(void **state)
{
    NEEDS_UCX();
    comes_anew(&two_by_tcp, false);
    comes_anew(&put_two_by_tcp, false);
    comes_anew(&two_by_tcp, true);
    comes_anew(&put_two_by_tcp, true);
}

static unsigned packs;
static ucs_status_t first_pack(ucp_context_h context, ucp_mem_h memh, void **ret_key, size_t *ret_bytes)
{
    return packs++ ? UCS_ERR_IO_ERROR : real_ucx->ucp_rkey_pack(context, memh, ret_key, ret_bytes);
}

/* A rail that comes, and cannot take all that is registered, is tried for ever: that may not use the numbers up. */
static void test_tries_take_no_numbers(void **state)
{
    NEEDS_UCX();
    struct one x;
    struct net_memory *second;
    assert_int_equal(one_connect(&x, TWO, &put_two_by_tcp), 0);
    struct ucx_ctx *ctx = x.ep->ctx;
    both_up(&x);
    assert_int_equal(x.ctx->ops->mem_register(x.ctx, aside, sizeof(aside), -1, &second), 0);
    far_tell(BREAK);
    const struct ucx_path *broken = &x.ep->paths[1];
    test_run_until(broken->state == PATH_CLOSED && !broken->out && !broken->asks,
                   assert_int_equal(one_read(&x, 0), 0));
    const uint32_t ids = ctx->ids, id = x.memory->id;
    real_ucx = ctx->ucx;
    struct ucx_symbols refusing = *real_ucx;
    refusing.ucp_rkey_pack = first_pack;
    ctx->ucx = &refusing;
    for (unsigned i = 0; i < 3; i++) {
        packs = 0;
        ctx->tries[1] = 2;
        rail_again(ctx, 1);
        assert_int_equal(packs, 2);
        assert_null(ctx->rails[1].worker);
    }
    ctx->ucx = real_ucx;
    assert_int_equal(ctx->ids, ids);
    assert_int_equal(x.memory->id, id);
    rail_again(ctx, 1);
    assert_non_null(ctx->rails[1].worker);
    assert_int_equal(ctx->ids, ids + 2);
    assert_int_not_equal(x.memory->id, id);
    one_end(&x);
}

/* The only rail's device went: the endpoint ends with it, and the next connection opens it again. */
static void test_the_only_device_comes_back(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    struct ucx_ctx *ctx = x.ep->ctx;
    assert_int_equal(one_read(&x, 0), 0);
    struct ucx_symbols stale;
    device_goes(ctx, 0, &stale);
    x.ctx->ops->disconnect(x.ctx, x.ep);
    int rc = -1;
    for (unsigned i = 0; i < 3 && rc; i++)
        rc = one_connect_second(&x, SERVE, &x.ep);
    assert_int_equal(rc, 0);
    assert_int_equal(denied, 2);
    assert_int_equal(let_go, 1);
    assert_int_equal(one_read(&x, 0), 0);
    ctx->ucx = real_ucx;
    one_end(&x);
}

static bool is_closed_there(const struct one *x)
{
    return x->ep->paths[1].state == PATH_CLOSED && x->ep->paths[1].incarnation == 0;
}

/* A client that does not know that the rail was opened again is refused, whatever address and keys it has. */
static void the_old_are_refused(struct one *x)
{
    struct net_endpoint *second;
    assert_int_equal(one_connect_second(x, TWO, &second), 0);
    assert_int_equal(second->npaths, 2);
    assert_int_equal(second->paths[1].incarnation, 0);
    read_aside(x, second); /* reads in between use the other rail */
    const struct sockaddr_in6 now = x->ep->paths[1].far;
    far_tell(BACK);
    struct ucx_path *p = &second->paths[1];
    for (unsigned i = 0; i < 200 && p->state != PATH_UP; i++) {
        second->stripe[1].down_until_ns = 1;
        x->ep->ctx->reconnect_ns = 1;
        read_aside(x, second);
        test_pause_us(100000);
    }
    assert_int_equal(p->state, PATH_UP);
    assert_true(p->incarnation > 1);
    assert_memory_not_equal(&p->far, &now, sizeof(now));
    const struct sockaddr_in6 far = p->far;
    x->ctx->ops->disconnect(x->ctx, second);
    /* A third one, with the rail's old address, connects to the new one. */
    struct ucx_path *old = &x->ep->paths[1];
    assert_int_equal(old->state, PATH_CLOSED);
    old->far = far;
    old->asked = true;
    old->incarnation = 1;
    old->failed = false;
    assert_int_equal(path_begin(old, NULL), 0);
    for (unsigned i = 0; i < 50 && old->state == PATH_CONNECTING; i++) {
        x->done = x->quiesced = 0;
        assert_int_equal(one_read(x, clock_now_ns() + 60 * NS_PER_S), 0);
        assert_int_not_equal(old->state, PATH_UP);
        test_pause_us(1000);
    }
    assert_int_not_equal(old->state, PATH_UP);
}

/* The daemon's device goes: reads continue on its other rail. It comes back: it listens at another address
 * with other keys, which the client requests, and carries bytes again by the same endpoint. */
static void comes_anew_there(const struct net_rdma_config *config)
{
    struct one x;
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, config), 0);
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    const uint32_t incarnation = x.ep->paths[1].incarnation;
    const struct sockaddr_in6 far = x.ep->paths[1].far;
    assert_true(incarnation > 0);
    far_tell(GO);
    read_until(&x, crcs, is_closed_there);
    the_old_are_refused(&x);
    read_until(&x, crcs, is_up);
    assert_int_equal(x.ep->paths[1].incarnation, incarnation + 1);
    assert_memory_not_equal(&x.ep->paths[1].far, &far, sizeof(far));
    for (unsigned g = 0; g < REGIONS; g++)
        if (x.ep->keys[g].state == KEY_HERE) {
            assert_int_equal(x.ep->keys[g].incarnation[0], 1);
            assert_int_equal(x.ep->keys[g].incarnation[1], incarnation + 1);
        }
    bytes_before = x.ep->stripe[1].total_bytes;
    read_until(&x, crcs, carries);
    one_end(&x);
}

static void test_a_device_of_the_daemon_comes_back(void **state)
{
    NEEDS_UCX();
    comes_anew_there(&two_by_tcp);
    comes_anew_there(&put_two_by_tcp);
}

static void told(struct bytes_out *body, const char *address)
{
    bytes_put_u32(body, 1); /* its incarnation */
    bytes_put_u32(body, (uint32_t)strlen(address));
    bytes_put(body, address, strlen(address));
}

/* The addresses of far rails are an answer to all closed paths: a path with slices out keeps its rail, which
 * is not closed under it. */
static void test_a_path_with_slices_out_keeps_its_rail(void **state)
{
    static struct ucx_ctx ctx;
    static struct net_endpoint ep;
    struct sockaddr_in6 mask;
    struct bytes_out body = {0};
    ctx = (struct ucx_ctx){.nrails = 2};
    ep = (struct net_endpoint){.ctx = &ctx, .npaths = 3, .connect_id = 5, .frame.id = 5};
    assert_int_equal(ucx_address_parse("255.255.255.0:1", &mask), 0);
    for (unsigned r = 0; r < 2; r++) {
        assert_int_equal(ucx_address_parse(r ? "10.1.0.1:1" : "10.0.0.1:1", &ctx.rails[r].address), 0);
        ctx.rails[r].netmask = mask;
    }
    for (unsigned i = 0; i < 3; i++)
        ep.paths[i] = (struct ucx_path){.endpoint = &ep, .state = PATH_CLOSED, .out = i == 1, .asks = i == 2};
    bytes_put_u32(&body, 1);
    told(&body, "10.1.0.2:7");
    ep.body = body.data;
    ep.frame.body_bytes = (uint32_t)body.len;
    assert_int_equal(rails_came(&ep), 0);
    assert_int_equal(ep.paths[0].rail, 1);
    assert_true(ep.paths[0].asked);
    for (unsigned i = 1; i < 3; i++) {
        assert_int_equal(ep.paths[i].rail, 0);
        assert_false(ep.paths[i].asked); /* it asks when nothing is out */
    }
    bytes_out_fini(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_without_a_path),
        cmocka_unit_test(test_a_path_with_slices_out_keeps_its_rail),
        cmocka_unit_test(test_a_rail_comes_back),
        cmocka_unit_test(test_a_device_comes_back),
        cmocka_unit_test(test_tries_take_no_numbers),
        cmocka_unit_test(test_the_only_device_comes_back),
        cmocka_unit_test(test_a_device_of_the_daemon_comes_back),
    };
    return cmocka_run_group_tests(tests, far_start, far_end);
}
