/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same suite over every transport: what net.h promises. Then what only some of them can do: shared memory's
 * bounds, TCP's dead, frozen and lying peers, revoke under load.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/ledger.h"
#include "net/conn.h"
#include "net/net.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>

#include <cmocka.h>
#include <poll.h>

#define REGIONS      4u
#define REGION_BYTES (1u << 20)

static uint8_t *memory; /* REGIONS * REGION_BYTES, patterned */

static uint64_t rng_state = 88172645463325252ull;
static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    return rng_state ^= rng_state << 17;
}

/* --- a pool in miniature ----------------------------------------------------------------------------------------- */

struct pool {
    struct net_serve_target target;
    _Atomic unsigned unrefs, written;
    _Atomic bool stale;
    uint8_t *memory;
};

static void *pool_resolve(struct net_serve_target *t, uint32_t gid, uint64_t offset, uint64_t bytes,
                          bool write, int *ret_status)
{
    struct pool *p = container_of(t, struct pool, target);
    *ret_status = p->stale ? LEAT_STALE : LEAT_INVALID;
    if (p->stale || gid >= REGIONS || offset > REGION_BYTES || bytes > REGION_BYTES - offset)
        return NULL;
    return p->memory + (uint64_t)gid * REGION_BYTES + offset;
}

static int pool_written(struct net_serve_target *t, uint64_t first, uint32_t count)
{
    container_of(t, struct pool, target)->written += count;
    return first == 666 ? LEAT_INVALID : 0;
}

static void pool_unref(struct net_serve_target *t)
{
    container_of(t, struct pool, target)->unrefs++;
}

static void pool_init(struct pool *p)
{
    *p = (struct pool){.target = {pool_resolve, pool_written, pool_unref}, .memory = memory};
}

/* --- one context and endpoint over a transport -------------------------------------------------------------------- */

enum kind { SHM, TCP, TCP_UNIX, SIM, FAULT_SHM, FAULT_TCP, KINDS };
static const char *const kind_names[KINDS] = {"shm", "tcp",          "tcp over unix",
                                              "sim", "fault on shm", "fault on tcp"};

struct rig {
    enum kind kind;
    struct net_server *server;
    struct pool pool;
    const void *regions[REGIONS];
    struct net_ctx *ctx;
    struct net_endpoint *ep;
    int raw; /* the far end, where the test itself is the server; -1 */
};

static void tcp_pair(int fds[2])
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    int listener;
    assert_int_equal(net_listen("127.0.0.1:0", 0, &listener, NULL), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    fds[0] = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&a, len), 0);
    fds[1] = accept(listener, NULL, NULL);
    assert_true(fds[1] >= 0);
    close(listener);
}

static struct net_sim_node sim_node(void)
{
    return (struct net_sim_node){.memory = memory,
                                 .region_bytes = REGION_BYTES,
                                 .nregions = REGIONS,
                                 .latency_ns = 20000,
                                 .bytes_per_s = 10000000000};
}

static void rig_connect(struct rig *r, int connected_fd)
{
    struct net_peer peer = {.node = 0,
                            .connected_fd = connected_fd,
                            .regions = r->regions,
                            .nregions = REGIONS,
                            .region_bytes = REGION_BYTES};
    struct leat_error err = {0};
    assert_int_equal(r->ctx->ops->connect(r->ctx, &peer, 0, &r->ep, &err), 0);
}

static struct net_ctx *new_ctx(enum kind kind)
{
    struct net_ctx *ctx = NULL, *lower;
    struct net_sim_node node = sim_node();
    struct net_sim_config sim = {.seed = 1, .nodes = &node, .nnodes = 1, .retry_ns = 1000000};
    struct net_fault_rules none = {0};
    switch (kind) {
    case SHM:
        assert_int_equal(net_shm_new(&ctx), 0);
        break;
    case SIM:
        assert_int_equal(net_sim_new(&sim, &ctx), 0);
        break;
    case FAULT_SHM:
    case FAULT_TCP:
        lower = new_ctx(kind == FAULT_SHM ? SHM : TCP);
        assert_int_equal(net_fault_new(lower, &none, &ctx), 0);
        break;
    default:
        assert_int_equal(net_tcp_new(&ctx), 0);
    }
    return ctx;
}

static bool over_tcp(enum kind kind)
{
    return kind == TCP || kind == TCP_UNIX || kind == FAULT_TCP;
}

/* serve: a net_server is at the far end; else r->raw is. */
static void rig_init(struct rig *r, enum kind kind, bool serve)
{
    int fds[2] = {-1, -1};
    *r = (struct rig){.kind = kind, .raw = -1};
    pool_init(&r->pool);
    for (unsigned i = 0; i < REGIONS; i++)
        r->regions[i] = memory + (size_t)i * REGION_BYTES;
    if (over_tcp(kind)) {
        if (kind == TCP_UNIX)
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        else
            tcp_pair(fds);
        if (serve) {
            assert_int_equal(net_server_new(2, &r->server), 0);
            assert_int_equal(net_server_add(r->server, fds[1], &r->pool.target), 0);
        } else {
            r->raw = fds[1];
        }
    }
    r->ctx = new_ctx(kind);
    rig_connect(r, fds[0]);
}

static void rig_fini(struct rig *r)
{
    r->ctx->ops->disconnect(r->ctx, r->ep);
    net_free(r->ctx);
    net_server_free(r->server);
    if (r->server)
        assert_int_equal(r->pool.unrefs, 1);
    if (r->raw >= 0)
        close(r->raw);
}

/* --- ops --------------------------------------------------------------------------------------------------------- */

struct test_op {
    struct net_op op;
    struct net_read *reads;
    uint8_t *dst;
    size_t bytes;
    unsigned done, quiesced;
};

static struct test_op *op_new(const struct net_read *reads, uint32_t n)
{
    struct test_op *t = calloc(1, sizeof(*t));
    t->reads = calloc(n ? n : 1, sizeof(*t->reads));
    for (uint32_t i = 0; i < n; i++)
        t->bytes += reads[i].bytes;
    t->dst = malloc(t->bytes ? t->bytes : 1);
    memset(t->dst, 0xee, t->bytes);
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        t->reads[i] = reads[i];
        t->reads[i].dst = t->dst + at;
        t->reads[i].crc = 0xdead;
        t->reads[i].status = 77;
        at += reads[i].bytes;
    }
    t->op = (struct net_op){.reads = t->reads, .n = n, .user = t};
    return t;
}

static struct test_op *op_random(unsigned max_reads, unsigned max_bytes)
{
    uint32_t n = (uint32_t)(rng() % (max_reads + 1));
    AUTO_FREE struct net_read *reads = calloc(n ? n : 1, sizeof(*reads));
    for (uint32_t i = 0; i < n; i++) {
        reads[i].bytes = rng() % 8 == 0 ? 0 : (uint32_t)(rng() % max_bytes);
        if (i && rng() % 3 == 0 &&
            reads[i - 1].offset + reads[i - 1].bytes + reads[i].bytes <= REGION_BYTES) {
            reads[i].mr_gid = reads[i - 1].mr_gid; /* a neighbour: merged on the wire */
            reads[i].offset = reads[i - 1].offset + reads[i - 1].bytes;
        } else {
            reads[i].mr_gid = (uint32_t)(rng() % REGIONS);
            reads[i].offset = rng() % (REGION_BYTES - reads[i].bytes);
        }
    }
    return op_new(reads, n);
}

static void op_check_good(const struct test_op *t)
{
    assert_int_equal(t->op.status, 0);
    for (uint32_t i = 0; i < t->op.n; i++) {
        const struct net_read *r = &t->reads[i];
        const uint8_t *src = memory + (uint64_t)r->mr_gid * REGION_BYTES + r->offset;
        assert_int_equal(r->status, 0);
        assert_memory_equal(r->dst, src, r->bytes);
        assert_int_equal(r->crc, crc32c(0, src, r->bytes));
    }
}

static void op_free(struct test_op *t)
{
    assert_int_equal(t->done, 1);
    assert_int_equal(t->quiesced, 1);
    free(t->reads);
    free(t->dst);
    free(t);
}

/* Takes events until `want` QUIESCED came; checks their order. */
static void run_until(struct rig *r, unsigned want)
{
    unsigned quiesced = 0;
    while (quiesced < want) {
        struct net_event events[3]; /* few: events must survive from poll to poll */
        int n = r->ctx->ops->poll(r->ctx, events, ARRAY_LEN(events), 10000);
        assert_true(n > 0);
        for (int i = 0; i < n; i++) {
            struct test_op *t = events[i].op->user;
            if (events[i].kind == NET_DONE) {
                assert_int_equal(t->done++, 0);
                assert_int_equal(t->quiesced, 0);
            } else {
                assert_int_equal(t->done, 1);
                assert_int_equal(t->quiesced++, 0);
                quiesced++;
            }
        }
    }
    struct net_event more[4];
    if (r->ctx->stats.in_flight_bytes == 0)
        assert_int_equal(r->ctx->ops->poll(r->ctx, more, 4, 0), 0);
}

static void submit(struct rig *r, struct test_op *t)
{
    assert_int_equal(r->ctx->ops->submit(r->ep, &t->op), 0);
}

static void each_kind(void (*body)(struct rig *r))
{
    for (enum kind k = 0; k < KINDS; k++) {
        struct rig r;
        print_message("    over %s\n", kind_names[k]);
        rig_init(&r, k, true);
        body(&r);
        rig_fini(&r);
    }
}

static void many_ops(struct rig *r)
{
    struct test_op *ops[200];
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i] = i % 20 == 0 ? op_random(3, REGION_BYTES / 2) : op_random(100, i % 3 ? 300 : 9000);
        submit(r, ops[i]);
    }
    run_until(r, ARRAY_LEN(ops));
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        op_check_good(ops[i]);
        op_free(ops[i]);
    }
    assert_int_equal(r->ctx->stats.ops, ARRAY_LEN(ops));
    assert_int_equal(r->ctx->stats.in_flight_bytes, 0);
    assert_int_equal(r->ctx->stats.errors, 0);
}

static void test_many_ops(void **state)
{
    each_kind(many_ops);
}

static void errors(struct rig *r)
{
    struct net_read reads[] = {{.mr_gid = 0, .offset = 5, .bytes = 100},
                               {.mr_gid = REGIONS, .offset = 0, .bytes = 10},
                               {.mr_gid = 1, .offset = REGION_BYTES - 9, .bytes = 10},
                               {.mr_gid = 1, .offset = UINT64_MAX - 4, .bytes = 10},
                               {.mr_gid = 2, .offset = 7, .bytes = 70}};
    struct test_op *before = op_random(10, 1000), *bad = op_new(reads, 5), *after = op_random(10, 1000);
    submit(r, before);
    submit(r, bad);
    submit(r, after);
    run_until(r, 3);
    op_check_good(before);
    op_check_good(after);
    assert_int_equal(bad->op.status, LEAT_INVALID);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(bad->reads[i].status, LEAT_INVALID);
    op_free(before);
    op_free(bad);
    op_free(after);
    struct net_read edge[] = {{.mr_gid = REGIONS - 1, .offset = REGION_BYTES - 10, .bytes = 10},
                              {.mr_gid = 0, .offset = REGION_BYTES, .bytes = 0}};
    struct test_op *good = op_new(edge, 2);
    submit(r, good);
    run_until(r, 1);
    op_check_good(good);
    op_free(good);
}

static void test_errors(void **state)
{
    each_kind(errors);
}

static void disconnect_mid(struct rig *r)
{
    struct test_op *ops[8];
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i] = op_random(100, 9000);
        submit(r, ops[i]);
    }
    r->ctx->ops->disconnect(r->ctx, r->ep);
    run_until(r, ARRAY_LEN(ops));
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        if (ops[i]->op.status == 0)
            op_check_good(ops[i]);
        else
            assert_int_equal(ops[i]->op.status, LEAT_PEER_GONE);
        op_free(ops[i]);
    }
    r->ep = NULL;
}

static void test_disconnect(void **state)
{
    each_kind(disconnect_mid);
}

static void test_shm_ledger(void **state)
{
    struct rig r;
    rig_init(&r, SHM, true);
    r.regions[2] = NULL; /* lives elsewhere */
    struct net_read reads[] = {{.mr_gid = 2, .bytes = 10}, {.mr_gid = 1, .bytes = 1000}};
    uint64_t before = ledger_bytes[LEDGER_GATHER];
    struct test_op *t = op_new(reads, 2);
    submit(&r, t);
    run_until(&r, 1);
    assert_int_equal(t->op.status, LEAT_INVALID);
    assert_int_equal(t->reads[0].status, LEAT_INVALID);
    assert_int_equal(t->reads[1].status, 0);
    assert_memory_equal(t->reads[1].dst, memory + REGION_BYTES, 1000);
    assert_int_equal(ledger_bytes[LEDGER_GATHER] - before, 1000);
    op_free(t);
    rig_fini(&r);
}

/* More ranges than one READ may have. */
static void test_tcp_split(void **state)
{
    struct rig r;
    rig_init(&r, TCP, true);
    uint32_t n = PROTO_READS_MAX * 2 + 77;
    AUTO_FREE struct net_read *reads = calloc(n, sizeof(*reads));
    for (uint32_t i = 0; i < n; i++)
        reads[i] = (struct net_read){.mr_gid = i % REGIONS, .offset = i * 3, .bytes = i < n - 5 ? 3 : 0};
    struct test_op *t = op_new(reads, n), *bad;
    submit(&r, t);
    run_until(&r, 1);
    op_check_good(t);
    op_free(t);
    reads[PROTO_READS_MAX + 1].mr_gid = 99; /* in its second request: the op fails, the connection lives */
    bad = op_new(reads, n);
    submit(&r, bad);
    run_until(&r, 1);
    assert_int_equal(bad->op.status, LEAT_INVALID);
    assert_int_equal(bad->reads[0].status, 0);
    assert_int_equal(bad->reads[n - 6].status, 0);
    op_free(bad);
    rig_fini(&r);
}

/* The request that the transport sent; answered (or not) by the test. */
static uint64_t raw_request(struct rig *r)
{
    struct net_reply request;
    assert_int_equal(net_frame_receive(r->raw, &request, clock_now_ns() + 10 * NS_PER_S), 0);
    assert_int_equal(request.frame.type, PROTO_READ);
    net_reply_fini(&request);
    return request.frame.id;
}

static void raw_reply(struct rig *r, uint64_t id, int status, uint64_t payload, size_t sent)
{
    uint8_t wire[PROTO_FRAME];
    AUTO_FREE uint8_t *bytes = calloc(1, sent ? sent : 1);
    struct proto_frame frame = {.version = 1,
                                .kind = PROTO_REPLY,
                                .type = PROTO_READ,
                                .id = id,
                                .status = status,
                                .payload_bytes = payload};
    proto_frame_put(wire, &frame);
    assert_int_equal(write(r->raw, wire, sizeof(wire)), sizeof(wire));
    if (sent)
        assert_int_equal(write(r->raw, bytes, sent), (ssize_t)sent);
}

static struct test_op *op_plain(uint32_t bytes)
{
    struct net_read read = {.mr_gid = 0, .offset = 0, .bytes = bytes};
    return op_new(&read, 1);
}

static void test_tcp_merges(void **state)
{
    struct rig r;
    rig_init(&r, TCP, false);
    struct net_read reads[] = {{.mr_gid = 1, .offset = 10, .bytes = 5},
                               {.mr_gid = 1, .offset = 15, .bytes = 0},
                               {.mr_gid = 1, .offset = 15, .bytes = 6},
                               {.mr_gid = 2, .offset = 21, .bytes = 7},
                               {.mr_gid = 2, .offset = 27, .bytes = 8}};
    struct test_op *t = op_new(reads, 5);
    submit(&r, t);
    struct net_reply request;
    assert_int_equal(net_frame_receive(r.raw, &request, 0), 0);
    struct bytes_in in = bytes_in_of(request.body.data, request.body.len);
    assert_int_equal(bytes_get_u32(&in), 3);
    struct proto_range expected[] = {{1, 11, 10}, {2, 7, 21}, {2, 8, 27}};
    for (unsigned i = 0; i < 3; i++) {
        struct proto_range range;
        proto_range_get(&in, &range);
        assert_memory_equal(&range, &expected[i], sizeof(range));
    }
    net_reply_fini(&request);
    raw_reply(&r, request.frame.id, 0, 26, 26);
    run_until(&r, 1);
    assert_int_equal(t->op.status, 0);
    op_free(t);
    rig_fini(&r);
}

static void expect_dead(struct rig *r)
{
    struct test_op *t = op_plain(10);
    assert_int_equal(r->ctx->ops->submit(r->ep, &t->op), LEAT_PEER_GONE);
    t->done = t->quiesced = 1;
    op_free(t);
}

static void test_tcp_peer_dies(void **state)
{
    for (unsigned when = 0; when < 3; when++) {
        struct rig r;
        rig_init(&r, TCP, false);
        struct test_op *a = op_plain(1000), *b = op_plain(1000);
        submit(&r, a);
        submit(&r, b);
        uint64_t id = raw_request(&r);
        if (when == 1)
            raw_reply(&r, id, 0, 1000, 400); /* half a payload */
        if (when == 2)
            raw_reply(&r, id, 0, 1000, 1000);
        close(r.raw);
        r.raw = -1;
        run_until(&r, 2);
        assert_int_equal(a->op.status, when == 2 ? 0 : LEAT_PEER_GONE);
        assert_int_equal(b->op.status, LEAT_PEER_GONE);
        assert_int_equal(b->reads[0].status, LEAT_PEER_GONE);
        expect_dead(&r);
        op_free(a);
        op_free(b);
        rig_fini(&r);
    }
}

static void test_tcp_lies(void **state)
{
    for (unsigned lie = 0; lie < 5; lie++) {
        struct rig r;
        rig_init(&r, TCP, false);
        struct test_op *a = op_plain(1000), *b = op_plain(1000);
        submit(&r, a);
        submit(&r, b);
        uint64_t id = raw_request(&r);
        char garbage[100];
        memset(garbage, 'g', sizeof(garbage));
        switch (lie) {
        case 0:
            assert_int_equal(write(r.raw, garbage, sizeof(garbage)), sizeof(garbage));
            break;
        case 1:
            raw_reply(&r, id + 1, 0, 1000, 1000); /* the wrong request */
            break;
        case 2:
            raw_reply(&r, id, 0, 1001, 1000); /* more than was asked for */
            break;
        case 3:
            raw_reply(&r, id, 0, 999, 999);
            break;
        case 4:
            raw_reply(&r, id, LEAT_STALE, 1000, 1000); /* an error with a payload */
            break;
        }
        run_until(&r, 2);
        assert_int_equal(a->op.status, LEAT_CORRUPT);
        assert_int_equal(b->op.status, LEAT_PEER_GONE);
        expect_dead(&r);
        op_free(a);
        op_free(b);
        rig_fini(&r);
    }
}

/* A peer that is frozen half-way: the op times out, and what the peer sends when it thaws lands nowhere. */
static void test_tcp_deadline(void **state)
{
    struct rig r;
    rig_init(&r, TCP, false);
    struct test_op *a = op_plain(1000), *b = op_plain(1000);
    a->op.deadline_ns = clock_now_ns() + 30 * NS_PER_MS;
    b->op.deadline_ns = clock_now_ns() + 3600 * NS_PER_S;
    submit(&r, a);
    submit(&r, b);
    uint64_t id = raw_request(&r);
    raw_reply(&r, id, 0, 1000, 500);
    run_until(&r, 2);
    assert_int_equal(a->op.status, LEAT_TIMED_OUT);
    assert_int_equal(b->op.status, LEAT_PEER_GONE);
    assert_int_equal(r.ctx->stats.timeouts, 1);
    memset(a->dst, 0x5a, 1000); /* QUIESCED: it is ours again */
    memset(b->dst, 0x5a, 1000);
    uint8_t late[1600] = {0};
    ssize_t n = send(r.raw, late, sizeof(late), MSG_NOSIGNAL);
    (void)n; /* it may notice already that nobody listens */
    struct net_event event;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, 1), 0);
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(a->dst[i], 0x5a);
        assert_int_equal(b->dst[i], 0x5a);
    }
    expect_dead(&r);
    op_free(a);
    op_free(b);
    rig_fini(&r);
}

/* A process forked meanwhile has a duplicate of the connection: what is torn down here must not come back as an event. */
static void test_tcp_duplicate(void **state)
{
    struct rig r = {.kind = TCP_UNIX};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    r.ctx = new_ctx(TCP);
    rig_connect(&r, fds[0]);
    int duplicate = dup(fds[0]);
    r.ctx->ops->disconnect(r.ctx, r.ep);
    assert_int_equal(write(fds[1], "late", 4), 4);
    struct pollfd pfd = {.fd = r.ctx->ops->event_fd(r.ctx), .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 0), 0);
    close(duplicate);
    close(fds[1]);
    net_free(r.ctx);
}

static void test_tcp_stale(void **state)
{
    struct rig r;
    rig_init(&r, TCP, true);
    struct test_op *a = op_plain(1000);
    r.pool.stale = true;
    submit(&r, a);
    run_until(&r, 1);
    assert_int_equal(a->op.status, LEAT_STALE);
    op_free(a);
    rig_fini(&r);
}

/* --- the server's side --------------------------------------------------------------------------------------------- */

static void put_write(struct bytes_out *body, uint64_t first, uint32_t samples,
                      const struct proto_range *ranges, uint32_t n)
{
    bytes_out_reset(body);
    bytes_put_u64(body, first);
    bytes_put_u32(body, samples);
    bytes_put_u32(body, n);
    for (uint32_t i = 0; i < n; i++)
        proto_range_put(body, &ranges[i]);
}

static void test_server_write(void **state)
{
    int fds[2];
    struct net_server *server;
    struct pool pool;
    pool_init(&pool);
    AUTO_FREE uint8_t *region = calloc(REGIONS, REGION_BYTES);
    pool.memory = region;
    tcp_pair(fds);
    assert_int_equal(net_server_new(1, &server), 0);
    assert_int_equal(net_server_add(server, fds[1], &pool.target), 0);
    struct proto_range ranges[] = {{1, 100000, 50}, {2, 300000, 0}, {3, 7, 9}};
    AUTO_FREE uint8_t *payload = malloc(400007);
    for (size_t i = 0; i < 400007; i++)
        payload[i] = (uint8_t)(i * 31 + (i >> 8));
    struct bytes_out body = {0}, read = {0};
    put_write(&body, 5, 3, ranges, 3);
    assert_int_equal(net_frame_send_payload(fds[0], PROTO_REQUEST, PROTO_WRITE, 1, &body, payload, 400007, 0),
                     0);
    bytes_put_u32(&read, 1); /* a read behind it sees what was written */
    proto_range_put(&read, &ranges[2]);
    assert_int_equal(net_frame_send(fds[0], PROTO_REQUEST, PROTO_READ, 2, &read, NULL, 0, 0), 0);
    ranges[0].gid = 99;
    put_write(&body, 5, 3, ranges, 3);
    assert_int_equal(net_frame_send_payload(fds[0], PROTO_REQUEST, PROTO_WRITE, 3, &body, payload, 400007, 0),
                     0);
    ranges[0].gid = 0;
    put_write(&body, 666, 1, ranges, 3); /* written() refuses */
    assert_int_equal(net_frame_send_payload(fds[0], PROTO_REQUEST, PROTO_WRITE, 4, &body, payload, 400007, 0),
                     0);
    int statuses[] = {0, 0, LEAT_INVALID, LEAT_INVALID};
    for (unsigned i = 0; i < 4; i++) {
        struct net_reply reply;
        struct leat_error err;
        assert_int_equal(net_frame_receive(fds[0], &reply, 0), 0);
        assert_int_equal(reply.frame.id, i + 1);
        assert_int_equal(net_reply_status(&reply, &err), statuses[i]);
        if (i == 2)
            assert_non_null(strstr(err.message, "region 99"));
        if (i == 1) {
            uint8_t got[7];
            assert_int_equal(reply.frame.payload_bytes, 7);
            assert_int_equal(net_payload_receive(fds[0], got, 7, 0), 0);
            assert_memory_equal(got, payload + 400000, 7);
        }
        net_reply_fini(&reply);
    }
    assert_memory_equal(region + REGION_BYTES + 50, payload, 100000);
    assert_memory_equal(region + 2 * REGION_BYTES, payload + 100000, 300000);
    assert_int_equal(pool.written, 4);
    /* Nonsense ends the connection, not the server. */
    put_write(&body, 5, 3, ranges, 3);
    assert_int_equal(net_frame_send_payload(fds[0], PROTO_REQUEST, PROTO_WRITE, 5, &body, payload, 400006, 0),
                     0);
    struct net_reply reply;
    assert_int_equal(net_frame_receive(fds[0], &reply, 0), LEAT_PEER_GONE);
    struct net_server_stats stats;
    net_server_stats(server, &stats);
    assert_int_equal(stats.connections, 0);
    assert_int_equal(stats.errors, 2);
    assert_int_equal(pool.unrefs, 1);
    bytes_out_fini(&body);
    bytes_out_fini(&read);
    close(fds[0]);
    net_server_free(server);
}

struct reader {
    pthread_t thread;
    int fd;
};

static void *reader_main(void *arg)
{
    struct reader *reader = arg;
    struct rig r = {.kind = TCP, .raw = -1};
    r.ctx = new_ctx(TCP);
    rig_connect(&r, reader->fd);
    for (;;) {
        struct test_op *t = op_plain(REGION_BYTES);
        if (r.ctx->ops->submit(r.ep, &t->op) < 0) {
            t->done = t->quiesced = 1;
            op_free(t);
            break;
        }
        run_until(&r, 1);
        int status = t->op.status;
        op_free(t);
        if (status < 0) {
            assert_int_equal(status, LEAT_PEER_GONE);
            break;
        }
    }
    r.ctx->ops->disconnect(r.ctx, r.ep);
    net_free(r.ctx);
    return NULL;
}

static void test_revoke_under_load(void **state)
{
    struct net_server *server;
    struct pool keep, going;
    struct reader readers[4];
    pool_init(&keep);
    pool_init(&going);
    going.memory = malloc((size_t)REGIONS * REGION_BYTES);
    memcpy(going.memory, memory, (size_t)REGIONS * REGION_BYTES);
    assert_int_equal(net_server_new(2, &server), 0);
    for (unsigned i = 0; i < ARRAY_LEN(readers); i++) {
        int fds[2];
        tcp_pair(fds);
        readers[i].fd = fds[0];
        assert_int_equal(net_server_add(server, fds[1], i % 2 ? &keep.target : &going.target), 0);
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    struct net_server_stats stats;
    do
        net_server_stats(server, &stats);
    while (stats.bytes_sent < 64 * MIB);
    net_server_revoke(server, &going.target);
    assert_int_equal(going.unrefs, 2);
    free(going.memory); /* the sanitizers see to it that nobody reads it any more */
    assert_int_equal(keep.unrefs, 0);
    pthread_join(readers[0].thread, NULL);
    pthread_join(readers[2].thread, NULL);
    net_server_free(server);
    pthread_join(readers[1].thread, NULL);
    pthread_join(readers[3].thread, NULL);
    assert_int_equal(keep.unrefs, 2);
}

/* A client that asks and never reads costs the server nothing but its queue. */
static void test_server_slow_reader(void **state)
{
    struct net_server *server;
    struct pool pool;
    int fds[2];
    pool_init(&pool);
    tcp_pair(fds);
    assert_int_equal(net_server_new(1, &server), 0);
    assert_int_equal(net_server_add(server, fds[1], &pool.target), 0);
    struct bytes_out body = {0};
    struct proto_range range = {0, REGION_BYTES, 0};
    bytes_put_u32(&body, 1);
    proto_range_put(&body, &range);
    unsigned asked = 0;
    while (net_frame_send(fds[0], PROTO_REQUEST, PROTO_READ, asked, &body, NULL, 0,
                          clock_now_ns() + 200 * NS_PER_MS) == 0)
        asked++;
    assert_true(asked > 256);
    struct net_server_stats stats;
    net_server_stats(server, &stats);
    assert_true(stats.requests < asked);
    close(fds[0]);
    net_server_free(server);
    assert_int_equal(pool.unrefs, 1);
    bytes_out_fini(&body);
}

/* --- virtual time -------------------------------------------------------------------------------------------------- */

/* One reader, `nnodes` nodes; returns when every op is quiesced, or the network has nothing more to say. */
static void sim_rig(struct rig *r, const struct net_sim_config *config)
{
    *r = (struct rig){.kind = SIM, .raw = -1};
    assert_int_equal(net_sim_new(config, &r->ctx), 0);
    rig_connect(r, -1);
}

static void test_sim_time(void **state)
{
    struct rig r;
    struct net_sim_node node = {.memory = memory,
                                .region_bytes = REGION_BYTES,
                                .nregions = REGIONS,
                                .latency_ns = 1000,
                                .bytes_per_s = 1000000000};
    struct net_sim_config config = {.seed = 1, .nodes = &node, .nnodes = 1};
    sim_rig(&r, &config);
    struct test_op *a = op_plain(500000), *b = op_plain(500000);
    submit(&r, a);
    submit(&r, b);
    run_until(&r, 1);
    assert_int_equal(net_sim_now_ns(r.ctx), 1000 + 500000 + 1000);
    run_until(&r, 1);
    assert_int_equal(net_sim_now_ns(r.ctx), 1000 + 1000000 + 1000); /* one after the other */
    op_check_good(a);
    op_check_good(b);
    op_free(a);
    op_free(b);
    struct net_event event; /* waiting takes its time */
    uint64_t now = net_sim_now_ns(r.ctx);
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, 5), 0);
    assert_int_equal(net_sim_now_ns(r.ctx), now + 5 * NS_PER_MS);
    rig_fini(&r);
}

static void test_sim_freeze(void **state)
{
    struct rig r;
    struct net_event event;
    struct net_sim_node node = {.memory = memory,
                                .region_bytes = REGION_BYTES,
                                .nregions = REGIONS,
                                .latency_ns = 1000,
                                .bytes_per_s = 1000000000,
                                .freeze_at_ns = 200000,
                                .thaw_at_ns = 5000000};
    struct net_sim_config config = {.seed = 1, .nodes = &node, .nnodes = 1};
    sim_rig(&r, &config);
    struct test_op *t = op_plain(500000);
    t->op.deadline_ns = 1000000;
    submit(&r, t);
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 1);
    assert_int_equal(event.kind, NET_DONE);
    assert_int_equal(t->op.status, LEAT_TIMED_OUT);
    assert_int_equal(net_sim_now_ns(r.ctx), 1000000);
    memset(t->dst, 0x11, 500000); /* in quarantine: what a careless owner would write is overwritten */
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 1);
    assert_int_equal(event.kind, NET_QUIESCED);
    assert_true(net_sim_now_ns(r.ctx) >= 5000000);
    assert_memory_equal(t->dst + 400000, memory + 400000, 100000);
    t->done = t->quiesced = 1;
    op_free(t);
    rig_fini(&r);

    node.thaw_at_ns = 0; /* for ever: only hanging up gives the destination back */
    sim_rig(&r, &config);
    t = op_plain(500000);
    t->op.deadline_ns = 1000000;
    submit(&r, t);
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 1);
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 0);
    r.ctx->ops->disconnect(r.ctx, r.ep);
    r.ep = NULL;
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 1);
    assert_int_equal(event.kind, NET_QUIESCED);
    assert_int_equal(t->op.status, LEAT_TIMED_OUT);
    t->done = t->quiesced = 1;
    op_free(t);
    rig_fini(&r);
}

static void test_sim_death(void **state)
{
    struct rig r;
    struct net_sim_node node = {.memory = memory,
                                .region_bytes = REGION_BYTES,
                                .nregions = REGIONS,
                                .latency_ns = 1000,
                                .bytes_per_s = 1000000000,
                                .die_at_ns = 600000};
    struct net_sim_config config = {.seed = 1, .nodes = &node, .nnodes = 1};
    sim_rig(&r, &config);
    struct test_op *a = op_plain(500000), *b = op_plain(500000);
    submit(&r, a);
    submit(&r, b);
    run_until(&r, 2);
    op_check_good(a);
    assert_int_equal(b->op.status, LEAT_PEER_GONE);
    assert_int_equal(net_sim_now_ns(r.ctx), 601000);
    op_free(a);
    op_free(b);
    expect_dead(&r);
    struct net_peer peer = {.node = 0, .connected_fd = -1};
    struct net_endpoint *ep;
    assert_int_equal(r.ctx->ops->connect(r.ctx, &peer, 0, &ep, NULL), LEAT_PEER_GONE);
    rig_fini(&r);
}

/* Eight nodes answer at once: their segments overrun the queue, and the retries cost time; with credit they do not. */
static uint64_t incast(uint64_t seed, uint64_t queue_bytes)
{
    struct net_sim_node nodes[8];
    struct net_endpoint *eps[8];
    struct test_op *ops[8];
    struct rig r = {.kind = SIM, .raw = -1};
    for (unsigned i = 0; i < 8; i++)
        nodes[i] = (struct net_sim_node){.memory = memory,
                                         .region_bytes = REGION_BYTES,
                                         .nregions = REGIONS,
                                         .latency_ns = 1000,
                                         .bytes_per_s = 10000000000};
    struct net_sim_config config = {.seed = seed,
                                    .nodes = nodes,
                                    .nnodes = 8,
                                    .receiver_bytes_per_s = 10000000000,
                                    .receiver_queue_bytes = queue_bytes,
                                    .retry_ns = 200000};
    assert_int_equal(net_sim_new(&config, &r.ctx), 0);
    for (unsigned i = 0; i < 8; i++) {
        struct net_peer peer = {.node = i, .connected_fd = -1};
        assert_int_equal(r.ctx->ops->connect(r.ctx, &peer, 0, &eps[i], NULL), 0);
        ops[i] = op_plain(512 * 1024);
        assert_int_equal(r.ctx->ops->submit(eps[i], &ops[i]->op), 0);
    }
    run_until(&r, 8);
    uint64_t ns = net_sim_now_ns(r.ctx);
    for (unsigned i = 0; i < 8; i++) {
        op_check_good(ops[i]);
        op_free(ops[i]);
        r.ctx->ops->disconnect(r.ctx, eps[i]);
    }
    net_free(r.ctx);
    return ns;
}

static void test_sim_incast(void **state)
{
    uint64_t free_ns = incast(1, 0), crowded_ns = incast(1, 256 * 1024);
    assert_true(free_ns < 450000); /* 4 MiB at 10 GB/s */
    assert_true(crowded_ns > free_ns + 200000);
    assert_int_equal(incast(1, 256 * 1024), crowded_ns); /* replays from its seed */
    assert_int_not_equal(incast(2, 256 * 1024), crowded_ns);
}

/* --- faults -------------------------------------------------------------------------------------------------------- */

static void test_faults(void **state)
{
    enum kind kinds[] = {SHM, TCP, SIM};
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        struct rig r;
        struct net_ctx *lower;
        rig_init(&r, kinds[k], true);
        r.ctx->ops->disconnect(r.ctx, r.ep);
        lower = r.ctx;
        int fds[2] = {-1, -1};
        struct net_fault_rules rules = {
            .fail_nth = 2, .fail_code = LEAT_STALE, .corrupt_nth = 3, .late_nth = 4, .late_polls = 3};
        assert_int_equal(net_fault_new(lower, &rules, &r.ctx), 0);
        if (r.server) {
            tcp_pair(fds);
            assert_int_equal(net_server_add(r.server, fds[1], &r.pool.target), 0);
        }
        rig_connect(&r, fds[0]);
        struct test_op *ops[5];
        for (unsigned i = 0; i < 5; i++) {
            ops[i] = op_plain(1000);
            submit(&r, ops[i]);
        }
        unsigned quiesced = 0, polls_between = 0;
        while (quiesced < 5) {
            struct net_event e[2];
            int n = r.ctx->ops->poll(r.ctx, e, 2, 10);
            assert_true(n >= 0);
            if (ops[3]->done) {
                polls_between++;
                if (!ops[3]->quiesced && polls_between < 3)
                    assert_int_equal(ops[3]->dst[0], 0xee); /* not yet */
            }
            for (int i = 0; i < n; i++) {
                struct test_op *t = e[i].op->user;
                if (e[i].kind == NET_DONE) {
                    assert_int_equal(t->done++, 0);
                } else {
                    assert_int_equal(t->done, 1);
                    assert_int_equal(t->quiesced++, 0);
                    quiesced++;
                }
            }
        }
        op_check_good(ops[0]);
        op_check_good(ops[4]);
        assert_int_equal(ops[1]->op.status, LEAT_STALE);
        assert_int_equal(ops[1]->dst[0], 0xee);
        assert_int_equal(ops[2]->op.status, 0);
        assert_int_not_equal(ops[2]->reads[0].crc, crc32c(0, memory, 1000));
        assert_int_equal(ops[2]->reads[0].crc, crc32c(0, ops[2]->dst, 1000));
        assert_int_equal(ops[3]->op.status, LEAT_TIMED_OUT);
        assert_memory_equal(ops[3]->dst, memory, 1000); /* late, but before QUIESCED */
        assert_true(polls_between >= 3);
        assert_int_equal(r.ctx->stats.ops >= 5, 1);
        assert_int_equal(r.ctx->stats.timeouts, 1);
        for (unsigned i = 0; i < 5; i++)
            op_free(ops[i]);
        r.ctx->ops->disconnect(r.ctx, r.ep);
        net_free(r.ctx);
        net_server_free(r.server);
    }
}

static int setup(void **state)
{
    memory = malloc((size_t)REGIONS * REGION_BYTES);
    for (size_t i = 0; i < (size_t)REGIONS * REGION_BYTES; i += 8) {
        uint64_t v = rng();
        memcpy(memory + i, &v, 8);
    }
    return 0;
}

static int teardown(void **state)
{
    free(memory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ops),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_shm_ledger),
        cmocka_unit_test(test_tcp_split),
        cmocka_unit_test(test_tcp_merges),
        cmocka_unit_test(test_tcp_peer_dies),
        cmocka_unit_test(test_tcp_lies),
        cmocka_unit_test(test_tcp_deadline),
        cmocka_unit_test(test_tcp_stale),
        cmocka_unit_test(test_tcp_duplicate),
        cmocka_unit_test(test_server_write),
        cmocka_unit_test(test_revoke_under_load),
        cmocka_unit_test(test_server_slow_reader),
        cmocka_unit_test(test_sim_time),
        cmocka_unit_test(test_sim_freeze),
        cmocka_unit_test(test_sim_death),
        cmocka_unit_test(test_sim_incast),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
