/* SPDX-License-Identifier: Apache-2.0 */
/* Two paths to one node: one of them is killed, falls silent, or is slow. Path 0 leads to a server, path 1 to the test. */
#include "net/test_rig.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/testing.h"

#include <limits.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>

#define ANSWERS UINT32_MAX

/* The far end of a path: serves `answers` requests, the last one to the half if so configured, and then is
 * silent or gone. */
struct far {
    pthread_t thread;
    int fd;
    unsigned answers, served;
    uint64_t delay_ns;
    bool half, die;
};

static bool serve_one(struct far *f, bool half)
{
    struct net_reply m;
    if (net_frame_receive(f->fd, &m, 0) < 0)
        return false;
    struct bytes_in in = bytes_in_of(m.body.data, m.body.len);
    uint64_t total = 0;
    uint32_t n = bytes_get_u32(&in);
    AUTO_FREE uint8_t *all = malloc((size_t)REGIONS * REGION_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        struct proto_range range;
        proto_range_get(&in, &range);
        memcpy(all + total, rig_memory + (uint64_t)range.gid * REGION_BYTES + range.offset, range.bytes);
        total += range.bytes;
    }
    uint8_t wire[PROTO_FRAME];
    struct proto_frame frame = {.version = PROTO_VERSION,
                                .kind = PROTO_REPLY,
                                .type = PROTO_READ,
                                .id = m.frame.id,
                                .payload_bytes = total};
    net_reply_fini(&m);
    proto_frame_put(wire, &frame);
    test_pause_us((unsigned)(f->delay_ns / NS_PER_US));
    size_t sent = half ? total / 2 : total;
    return send(f->fd, wire, sizeof(wire), MSG_NOSIGNAL) == sizeof(wire) &&
           send(f->fd, all, sent, MSG_NOSIGNAL) == (ssize_t)sent;
}

static void *far_main(void *arg)
{
    struct far *f = arg;
    while (f->served < f->answers && serve_one(f, f->half && f->served + 1 == f->answers))
        f->served++;
    if (f->die)
        shutdown(f->fd, SHUT_RDWR);
    return NULL;
}

static void far_start(struct rig *r, struct far *f, unsigned path)
{
    int fds[2];
    rig_tcp_pair(fds);
    f->fd = fds[1];
    const struct net_peer peer = {.connected_fd = fds[0], .path = path};
    assert_int_equal(net_paths_add(r->ep, &peer, 0, NULL), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, far_main, f), 0);
}

static void far_stop(struct far *f)
{
    shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->fd);
}

/* A rig whose path 0 is served, and path 1 is not there yet. */
static void half_rig(struct rig *r)
{
    rig_init(r, PATHS_TWO, true);
    r->ctx->ops->disconnect(r->ctx, r->ep);
    int fds[2];
    rig_tcp_pair(fds);
    assert_int_equal(net_server_add(r->server, fds[1], &r->pool.target), 0);
    r->connections++;
    rig_connect(r, fds[0]);
}

static struct test_op *large(uint64_t timeout_ns)
{
    struct net_read reads[8];
    for (unsigned i = 0; i < 8; i++)
        reads[i] = (struct net_read){
            .mr_gid = i % REGIONS, .offset = i * 1000, .bytes = i == 3 ? 0 : 200000 + i * 7};
    struct test_op *t = op_new(reads, 8);
    t->op.deadline_ns = timeout_ns ? clock_now_ns() + timeout_ns : 0;
    return t;
}

static uint64_t bytes_by(struct rig *r, unsigned path)
{
    struct net_path_info info[NET_PATHS_MAX];
    assert_int_equal(net_paths_info(r->ep, info), 2);
    return info[path].bytes;
}

static bool is_up(struct rig *r, unsigned path)
{
    struct net_path_info info[NET_PATHS_MAX];
    net_paths_info(r->ep, info);
    return info[path].up;
}

static void run_good(struct rig *r, struct test_op *t)
{
    rig_submit(r, t);
    rig_run(r, 1);
    op_check_good(t);
    op_free(t);
}

/* A read that is cut goes by both, and its checksum is of the whole. */
static void test_striped(void **state)
{
    struct rig r;
    rig_init(&r, PATHS_TWO, true);
    struct net_read whole = {.mr_gid = 2, .offset = 1, .bytes = REGION_BYTES - 1};
    for (unsigned i = 0; i < 20; i++) {
        run_good(&r, op_new(&whole, 1));
        run_good(&r, large(0));
        run_good(&r, op_plain(i % 2 ? 1 : 9000));
    }
    uint64_t a = bytes_by(&r, 0), b = bytes_by(&r, 1);
    assert_true(a && b);
    assert_int_equal(r.ctx->stats.bytes, a + b);
    assert_int_equal(r.ctx->stats.ops, 60);
    assert_int_equal(r.ctx->stats.errors, 0);
    rig_fini(&r);
}

static void test_killed_in_mid_op(void **state)
{
    struct rig r;
    half_rig(&r);
    assert_true(net_paths_any_wanted(r.ctx));
    assert_int_equal(net_paths_wanted(r.ep, clock_now_ns()), 2);
    assert_int_equal(net_paths_wanted(r.ep, clock_now_ns()), 0); /* it is ours to bring now */
    for (unsigned answers = 1; answers < 4; answers++) {
        struct far far = {.answers = answers, .half = true, .die = true};
        far_start(&r, &far, 1);
        assert_false(net_paths_any_wanted(r.ctx));
        test_run_until(!is_up(&r, 1), run_good(&r, large(10 * NS_PER_S)));
        far_stop(&far);
        assert_int_equal(far.served, answers);
        run_good(&r, large(0)); /* by the one that is left */
    }
    uint64_t now = clock_now_ns();
    assert_int_equal(net_paths_wanted(r.ep, now), 0);
    assert_int_equal(net_paths_wanted(r.ep, now + 40 * NS_PER_S), 2);
    net_paths_failed(r.ep, 1, now);
    assert_int_equal(net_paths_wanted(r.ep, now), 0);
    assert_int_equal(net_paths_wanted(r.ep, now + 40 * NS_PER_S), 2);
    uint64_t before = bytes_by(&r, 1);
    rig_add_path(&r, 1);
    for (unsigned i = 0; i < 10; i++)
        run_good(&r, large(0));
    assert_true(bytes_by(&r, 1) > before);
    assert_int_equal(r.ctx->stats.errors, 0);
    rig_fini(&r);
}

/* It keeps its connection and brings nothing: left well before the deadline. What it says later lands nowhere. */
static void test_silent(void **state)
{
    struct rig r;
    half_rig(&r);
    struct far far = {.answers = 1, .half = true};
    far_start(&r, &far, 1);
    struct test_op *ops[4];
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i] = large(4 * NS_PER_S);
        rig_submit(&r, ops[i]);
    }
    rig_run(&r, ARRAY_LEN(ops));
    assert_false(is_up(&r, 1));
    uint8_t late[5000] = {0};
    send(far.fd, late, sizeof(late), MSG_NOSIGNAL | MSG_DONTWAIT);
    run_good(&r, large(0));
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        op_check_good(ops[i]);
        op_free(ops[i]);
    }
    far_stop(&far);
    rig_fini(&r);
}

/* The server's doing, not a path's: until the deadline, as with one path. */
static void test_both_silent(void **state)
{
    struct rig r;
    rig_init(&r, PATHS_TWO, false);
    struct far far = {.answers = 0};
    far_start(&r, &far, 1);
    struct test_op *t = large(300 * NS_PER_MS);
    rig_submit(&r, t);
    rig_run(&r, 1);
    assert_int_equal(t->op.status, LEAT_TIMED_OUT);
    for (unsigned i = 0; i < t->op.n; i++)
        assert_int_equal(t->reads[i].status, i == 3 ? t->reads[i].status : LEAT_TIMED_OUT);
    op_free(t);
    rig_expect_dead(&r);
    far_stop(&far);
    rig_fini(&r);
}

static void test_both_killed(void **state)
{
    struct rig r;
    rig_init(&r, PATHS_TWO, false);
    struct far far = {.answers = 1, .half = true, .die = true};
    far_start(&r, &far, 1);
    struct test_op *ops[3];
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i] = large(0);
        rig_submit(&r, ops[i]);
    }
    shutdown(r.raw, SHUT_RDWR);
    rig_run(&r, ARRAY_LEN(ops));
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        assert_int_equal(ops[i]->op.status, LEAT_PEER_GONE);
        op_free(ops[i]);
    }
    rig_expect_dead(&r);
    far_stop(&far);
    rig_fini(&r);
}

/* It gets what it can bring in the same time, which is little. */
static void test_slow(void **state)
{
    struct rig r;
    half_rig(&r);
    struct far far = {.answers = ANSWERS, .delay_ns = 4 * NS_PER_MS};
    far_start(&r, &far, 1);
    for (unsigned turn = 0; turn < 60; turn++)
        run_good(&r, large(0));
    uint64_t slow = bytes_by(&r, 1), fast = bytes_by(&r, 0);
    print_message("    slow path %llu KiB, fast path %llu KiB\n", (unsigned long long)slow / 1024,
                  (unsigned long long)fast / 1024);
    assert_true(slow && slow < fast);
    assert_true(is_up(&r, 1)); /* slow is not silent */
    far_stop(&far);
    rig_fini(&r);
}

/* Paths that are refused twice, or were never there. */
static void test_adding(void **state)
{
    struct rig r;
    int fds[2];
    rig_init(&r, PATHS_TWO, true);
    rig_tcp_pair(fds);
    struct net_peer peer = {.connected_fd = fds[0], .path = 1};
    assert_int_equal(net_paths_add(r.ep, &peer, 0, NULL),
                     LEAT_INVALID); /* there already: the descriptor stays ours */
    peer.path = 2;
    assert_int_equal(net_paths_add(r.ep, &peer, 0, NULL), LEAT_INVALID);
    close(fds[0]);
    close(fds[1]);
    net_paths_failed(r.ep, 1, clock_now_ns()); /* a dial that was late to fail */
    assert_true(is_up(&r, 1));
    run_good(&r, large(0));
    rig_fini(&r);
}

/* An op whose owner says which path it takes goes by that one, whole; by another one where it is not there. */
static void test_named(void **state)
{
    struct rig r;
    half_rig(&r);
    struct far far = {.answers = 4, .die = true};
    far_start(&r, &far, 1);
    uint64_t before[2] = {0};
    for (unsigned i = 0; i < 8; i++) {
        struct test_op *t = large(0);
        t->op.path = 1 + i % 2;
        run_good(&r, t);
        for (unsigned k = 0; k < 2; k++) {
            assert_int_equal(bytes_by(&r, k) > before[k], k == i % 2);
            before[k] = bytes_by(&r, k);
        }
    }
    struct test_op *t = large(0);
    t->op.path = 2;
    run_good(&r, t);
    assert_true(bytes_by(&r, 0) > before[0] && bytes_by(&r, 1) == before[1]);
    far_stop(&far);
    assert_int_equal(far.served, 4); /* one request each */
    rig_fini(&r);
}

/* The next best where the best has no room; not where waiting for it is faster. */
static void test_pick(void **state)
{
    struct rig r;
    half_rig(&r);
    uint64_t now = clock_now_ns();
    assert_int_equal(net_paths_pick(r.ep, 64 * KIB, MIB, 0, now), 0); /* one is up */
    assert_int_equal(net_paths_pick(r.ep, 64 * KIB, MIB, 1, now), -1);
    struct far far = {.answers = ANSWERS, .delay_ns = 30 * NS_PER_MS};
    far_start(&r, &far, 1);
    for (unsigned turn = 0; turn < 60; turn++)
        run_good(&r, large(0));
    assert_int_equal(net_paths_pick(r.ep, 64 * KIB, 1000 * GIB, 1, clock_now_ns()), 1);
    assert_int_equal(net_paths_pick(r.ep, 64 * KIB, 1000 * GIB, 3, clock_now_ns()), -1);
    assert_int_equal(net_paths_pick(r.ep, 64 * KIB, 64 * KIB, 1, clock_now_ns()), -1);
    assert_int_equal(net_paths_pick(r.ep, 64 * KIB, 64 * KIB, 0, clock_now_ns()), 0);
    far_stop(&far);
    rig_fini(&r);
}

/* How long poll lets the transport below wait. */
static const struct net_ops *below;
static int longest_wait, rounds;

static int spy_poll(struct net_ctx *ctx, struct net_event *events, unsigned max, int timeout_ms)
{
    rounds++;
    longest_wait = MAX(longest_wait, timeout_ms < 0 ? INT_MAX : timeout_ms);
    return below->poll(ctx, events, max, timeout_ms);
}

/* A poll that is not to wait does not, also where parts have come and their op is not through. */
static void test_never_waits(void **state)
{
    struct net_ctx *lower = rig_ctx(TCP);
    struct net_ops spied = *lower->ops;
    struct rig r = {.kind = PATHS_TWO, .raw = -1};
    struct far far[2] = {{.answers = 1}, {.answers = 0}};
    struct net_event events[4];
    int fds[2];
    below = lower->ops;
    spied.poll = spy_poll;
    lower->ops = &spied;
    longest_wait = rounds = 0;
    assert_int_equal(net_paths_new(lower, &r.ctx), 0);
    rig_tcp_pair(fds);
    rig_connect(&r, fds[0]);
    far[0].fd = fds[1];
    assert_int_equal(pthread_create(&far[0].thread, NULL, far_main, &far[0]), 0);
    far_start(&r, &far[1], 1);
    struct test_op *t = large(0);
    rig_submit(&r, t);
    int before = 0;
    test_wait_until((before = rounds,
                     assert_int_equal(r.ctx->ops->poll(r.ctx, events, ARRAY_LEN(events), 0), 0),
                     rounds >= before + 2)); /* a second round: a part has come */
    assert_int_equal(longest_wait, 0);
    far_stop(&far[0]);
    far_stop(&far[1]);
    rig_run(&r, 1);
    assert_int_equal(t->op.status, LEAT_PEER_GONE);
    op_free(t);
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_striped),     cmocka_unit_test(test_killed_in_mid_op),
        cmocka_unit_test(test_silent),      cmocka_unit_test(test_both_silent),
        cmocka_unit_test(test_both_killed), cmocka_unit_test(test_slow),
        cmocka_unit_test(test_adding),      cmocka_unit_test(test_named),
        cmocka_unit_test(test_pick),        cmocka_unit_test(test_never_waits),
    };
    return cmocka_run_group_tests_name("net_paths", tests, rig_setup, rig_teardown);
}
