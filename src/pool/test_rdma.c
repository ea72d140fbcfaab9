/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of RDMA as data threads take them in: they never wait for memory to be registered. UCX's own TCP, within this process. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/testing.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool.h"
#include "pool/region/region.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cmocka.h>

enum { ROWS = 300, ROW = 4000, REGION = 256 * 1024 };
static const struct net_rdma_config by_tcp = {.rails = "lo", .tls = "tcp"},
                                    put_by_tcp = {.rails = "lo", .tls = "tcp", .put = true};
static struct loop *loop;
static uint8_t dst[ROWS * ROW];

struct watched {
    struct net_serve_target target;
    struct wset *ws;
    struct net_rdma_peer *peer;
    _Atomic unsigned parked, registered, ended;
};

static int watch_request(struct net_serve_target *target, uint16_t type, struct bytes_in *in,
                         struct bytes_out *reply, const struct net_later *later, struct leat_error *err)
{
    struct watched *w = container_of(target, struct watched, target);
    struct net_rdma_stats stats = {0};
    int rc = pool_rdma_request(w->ws->pool, w->ws, geteuid(), &w->peer, type, in, reply, later, err);
    pool_rdma_stats(w->ws->pool, &stats);
    atomic_fetch_add(&w->registered, (unsigned)stats.registrations);
    if (type == PROTO_RDMA_PUT || type == PROTO_RDMA_KEYS)
        atomic_fetch_add(&w->parked, rc == NET_LATER);
    return rc;
}

static void watch_unref(struct net_serve_target *target)
{
    struct watched *w = container_of(target, struct watched, target);
    net_rdma_peer_free(w->peer);
    atomic_store(&w->ended, 1);
}

static void on_opened(struct open_request *request, struct wset *ws, const struct leat_error *err)
{
    if (ws)
        pool_lease(ws);
    *(struct wset **)request->user = ws;
}

static void on_progress(struct open_request *request, uint64_t samples, uint64_t bytes) {}

static struct pool *start(struct wset **ret_ws)
{
    struct pool *pool;
    struct pool_config config = {.cap_bytes = 16 * MIB,
                                 .region_bytes = REGION,
                                 .pages = {.huge_dir = -1},
                                 .fill_threads = 1,
                                 .data_threads = 1,
                                 .disk_depth = 4,
                                 .disk_engine = "worker",
                                 .rdma = {.net = by_tcp, .users = RDMA_SAME_USER}};
    char uri[700];
    testing_npy("rows.npy", 1, ROWS, ROW);
    snprintf(uri, sizeof(uri), "%s/rows.npy", testing_folder());
    assert_int_equal(pool_new(loop, &config, &pool, NULL), 0);
    struct open_request *r = calloc(1, sizeof(*r));
    *r = (struct open_request){.uid = geteuid(),
                               .gid = getegid(),
                               .name = strdup(""),
                               .uri = strdup(uri),
                               .opened = on_opened,
                               .progress = on_progress,
                               .user = ret_ws,
                               .began_ns = clock_now_ns()};
    *ret_ws = NULL;
    pool_open(pool, r);
    test_run_until(*ret_ws && wset_complete(*ret_ws), loop_turn(loop, 100));
    return pool;
}

/* The pool's loop stands still while the client asks: what the data thread answers then, it did by itself. */
static void asks(const struct net_rdma_config *config)
{
    struct net_ctx *ctx;
    if (net_rdma_new(config, &ctx, NULL) < 0)
        skip();
    struct wset *ws;
    struct pool *pool = start(&ws);
    struct watched w = {.target = {.unref = watch_unref, .request = watch_request}, .ws = ws};
    struct net_read reads[ROWS * 2];
    struct net_event events[4];
    struct net_memory *memory;
    struct net_endpoint *ep;
    struct net_peer peer = {.generation = atomic_load(&ws->live->generation), .nregions = ws->nregions};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(net_server_add(pool->server, pair[0], &w.target), 0);
    peer.connected_fd = pair[1];
    assert_int_equal(ctx->ops->mem_register(ctx, dst, sizeof(dst), -1, &memory), 0);
    assert_int_equal(ctx->ops->connect(ctx, &peer, 0, &ep, NULL), 0);
    struct net_op op = {.reads = reads};
    for (uint64_t at = 0; at < ROWS * ROW; op.n++) {
        struct index_part part = {0};
        assert_true(index_part(&ws->index, at / ROW, 0, &part));
        uint64_t address = part.address + at % ROW, left = REGION - address % REGION;
        reads[op.n] = (struct net_read){.mr_gid = (uint32_t)(address / REGION),
                                        .offset = address % REGION,
                                        .bytes = (uint32_t)MIN(left, ROW - at % ROW),
                                        .dst = dst + at};
        at += reads[op.n].bytes;
    }
    assert_int_equal(ctx->ops->submit(ep, &op), 0);
    test_run_until(atomic_load(&w.parked) != 0, assert_int_equal(ctx->ops->poll(ctx, events, 4, 10), 0));
    assert_int_equal(ctx->ops->poll(ctx, events, 4, 100), 0);
    assert_int_equal(w.registered, 0);
    for (unsigned quiesced = 0, turns = 0; !quiesced; turns++) {
        assert_true(turns < 15000);
        loop_turn(loop, 1);
        int n = ctx->ops->poll(ctx, events, 4, 1);
        for (int i = 0; i < n; i++)
            quiesced += events[i].kind == NET_QUIESCED;
    }
    assert_int_equal(op.status, 0);
    for (uint64_t i = 0; i < sizeof(dst); i++)
        assert_int_equal(dst[i], testing_byte(1, i));
    ctx->ops->disconnect(ctx, ep);
    net_free(ctx);
    test_run_until(atomic_load(&w.ended), loop_turn(loop, 1));
    pool_unlease(ws);
    assert_int_equal(pool_stop(pool), 0);
    pool_free(pool);
    memset(dst, 0, sizeof(dst));
}

/* Where UCX is. */
static struct pool *start_or_skip(struct wset **ret_ws)
{
    struct net_ctx *ctx;
    if (net_rdma_new(&by_tcp, &ctx, NULL) < 0)
        skip();
    net_free(ctx);
    return start(ret_ws);
}

static int connect_to(struct wset *ws, struct net_rdma_peer **peer)
{
    struct bytes_out body = {0}, reply = {0};
    const struct net_later later = {0};
    bytes_put_u32(&body, 1);
    bytes_put_u64(&body, 4711);
    struct bytes_in in = bytes_in_of(body.data, body.len);
    int rc = pool_rdma_request(ws->pool, ws, geteuid(), peer, PROTO_RDMA_CONNECT, &in, &reply, &later, NULL);
    bytes_out_fini(&body);
    bytes_out_fini(&reply);
    return rc;
}

/* A host whose NIC comes after the first request: a failure is remembered for a while, not for ever. */
static void test_rails_that_come_late(void **state)
{
    struct wset *ws;
    struct pool *pool = start_or_skip(&ws);
    struct net_rdma_peer *peer = NULL;
    char why[LEAT_ERROR_MESSAGE_MAX];
    pool->config.rdma.net.rails = "nosuch0";
    assert_int_equal(connect_to(ws, &peer), LEAT_UNSUPPORTED);
    assert_true(pool_rdma_why(pool, why, sizeof(why)) && strstr(why, "nosuch0"));
    pool->config.rdma.net.rails = "lo";
    assert_int_equal(connect_to(ws, &peer), LEAT_UNSUPPORTED);
    pool->rdma_again_ns = 0;
    assert_int_equal(connect_to(ws, &peer), 0);
    assert_false(pool_rdma_why(pool, why, sizeof(why)));
    net_rdma_peer_free(peer);
    pool_unlease(ws);
    assert_int_equal(pool_stop(pool), 0);
    pool_free(pool);
}

static _Atomic(struct wset *) dropped; /* files get their memory on any thread */

/* In the place of libc's: the set is dropped by force while memory for it is asked for. */
int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    struct wset *ws = mode == 0 ? atomic_exchange(&dropped, NULL) : NULL;
    if (ws) {
        atomic_store(&ws->phase, WSET_REVOKED); /* not on the loop, and the pool still lists it */
        region_give_up(ws->regions[0].region);
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

static int ask(int fd, uint16_t type, struct bytes_out *body)
{
    struct net_reply reply;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(net_frame_send(fd, PROTO_VERSION, PROTO_REQUEST, type, type, body, NULL, 0, 0), 0);
    bytes_out_fini(body);
    test_run_until(poll(&p, 1, 0) != 0, loop_turn(loop, 10));
    assert_int_equal(net_frame_receive(fd, &reply, clock_now_ns() + 20 * NS_PER_S), 0);
    int status = reply.frame.status;
    net_reply_fini(&reply);
    return status;
}

/* Dropped by force between the look whether it was and the memory that is made sure of. */
static void test_forced_drop_while_reserved(void **state)
{
    struct wset *ws;
    struct pool *pool = start_or_skip(&ws);
    struct watched w = {.target = {.unref = watch_unref, .request = watch_request}, .ws = ws};
    struct bytes_out body = {0};
    struct stat st;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(net_server_add(pool->server, pair[0], &w.target), 0);
    bytes_put_u32(&body, 1);
    bytes_put_u64(&body, 4711);
    assert_int_equal(ask(pair[1], PROTO_RDMA_CONNECT, &body), 0);
    bytes_put_u32(&body, 1);
    bytes_put_u32(&body, 0);
    atomic_store(&dropped, ws);
    assert_int_equal(ask(pair[1], PROTO_RDMA_KEYS, &body), LEAT_STALE);
    assert_null(atomic_load(&dropped));
    assert_int_equal(fstat(ws->regions[0].region->fd, &st), 0);
    assert_int_equal(st.st_blocks, 0);
    close(pair[1]);
    test_run_until(atomic_load(&w.ended), loop_turn(loop, 1));
    atomic_store(&ws->phase, WSET_LIVE);
    pool_unlease(ws);
    assert_int_equal(pool_stop(pool), 0);
    pool_free(pool);
}

static void test_puts_are_parked(void **state)
{
    asks(&put_by_tcp);
}

static void test_keys_are_parked(void **state)
{
    asks(&by_tcp);
}

static int setup(void **state)
{
    return loop_new(&loop);
}

static int teardown(void **state)
{
    loop_free(loop);
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rails_that_come_late),
        cmocka_unit_test(test_puts_are_parked),
        cmocka_unit_test(test_keys_are_parked),
        cmocka_unit_test(test_forced_drop_while_reserved),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
