/* SPDX-License-Identifier: Apache-2.0 */
/* What only TCP can do: split and merge requests; peers that die, freeze, lie or come too late. */
#include "net/test_rig.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/crc32c.h"

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
    rig_submit(&r, t);
    rig_run(&r, 1);
    op_check_good(t);
    op_free(t);
    reads[PROTO_READS_MAX + 1].mr_gid = 99; /* in its second request: the op fails, the connection lives */
    bad = op_new(reads, n);
    rig_submit(&r, bad);
    rig_run(&r, 1);
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
    struct proto_frame frame = {.version = PROTO_VERSION,
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

/* An error's frame and text in one segment, with `stray` bytes of unexpected data behind. */
static void raw_error(struct rig *r, uint64_t id, int status, const char *text, size_t stray)
{
    uint8_t wire[PROTO_FRAME + 4 + 100] = {0};
    uint32_t len = (uint32_t)strlen(text);
    struct proto_frame frame = {.version = PROTO_VERSION,
                                .kind = PROTO_REPLY,
                                .type = PROTO_READ,
                                .id = id,
                                .status = status,
                                .body_bytes = 4 + len};
    proto_frame_put(wire, &frame);
    wire[PROTO_FRAME] = (uint8_t)len;
    memcpy(wire + PROTO_FRAME + 4, text, len);
    size_t bytes = PROTO_FRAME + 4 + len + stray;
    assert_int_equal(write(r->raw, wire, bytes), (ssize_t)bytes);
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
    rig_submit(&r, t);
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
    rig_run(&r, 1);
    assert_int_equal(t->op.status, 0);
    op_free(t);
    rig_fini(&r);
}

/* The frame of a lone reply is received together with what is behind it: the text of an error is not taken for a payload. */
static void test_tcp_lone_error(void **state)
{
    struct rig r;
    rig_init(&r, TCP, false);
    for (unsigned i = 0; i < 3; i++) {
        struct test_op *bad = op_plain(i == 2 ? 8 : 1000),
                       *good = op_plain(1000); /* 8: shorter than the text */
        rig_submit(&r, bad);
        raw_error(&r, raw_request(&r), LEAT_STALE, "gone with the wind", 0);
        rig_run(&r, 1);
        assert_int_equal(bad->op.status, LEAT_STALE);
        assert_int_equal(bad->reads[0].status, LEAT_STALE);
        rig_submit(&r, good);
        raw_reply(&r, raw_request(&r), 0, 1000, 1000);
        rig_run(&r, 1);
        assert_int_equal(good->op.status, 0);
        assert_int_equal(good->dst[999], 0);
        op_free(bad);
        op_free(good);
    }
    struct test_op *bad = op_plain(1000);
    rig_submit(&r, bad);
    raw_error(&r, raw_request(&r), LEAT_STALE, "and more", 5);
    rig_run(&r, 1);
    assert_int_equal(bad->op.status, LEAT_STALE);
    op_free(bad);
    rig_expect_dead(&r);
    rig_fini(&r);
}

/* A reply that comes byte by byte, around the border between frame and payload. */
static void test_tcp_in_crumbs(void **state)
{
    struct rig r;
    rig_init(&r, TCP, false);
    struct test_op *t = op_plain(1000);
    rig_submit(&r, t);
    uint8_t wire[PROTO_FRAME + 1000];
    struct proto_frame frame = {.version = PROTO_VERSION,
                                .kind = PROTO_REPLY,
                                .type = PROTO_READ,
                                .id = raw_request(&r),
                                .payload_bytes = 1000};
    proto_frame_put(wire, &frame);
    for (unsigned i = 0; i < 1000; i++)
        wire[PROTO_FRAME + i] = (uint8_t)(i * 7);
    struct net_event event;
    for (size_t at = 0, step; at < sizeof(wire); at += step) {
        step = at < PROTO_FRAME - 3 ? PROTO_FRAME - 3 : at < PROTO_FRAME + 3 ? 1 : sizeof(wire) - at;
        assert_int_equal(write(r.raw, wire + at, step), (ssize_t)step);
        if (at + step < sizeof(wire))
            assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, at % 2 ? 0 : 15),
                             0); /* by epoll, by recvmsg */
    }
    rig_run(&r, 1);
    assert_int_equal(t->op.status, 0);
    assert_memory_equal(t->dst, wire + PROTO_FRAME, 1000);
    assert_int_equal(t->reads[0].crc, crc32c(0, wire + PROTO_FRAME, 1000));
    op_free(t);
    rig_fini(&r);
}

static void test_tcp_peer_dies(void **state)
{
    for (unsigned when = 0; when < 3; when++) {
        struct rig r;
        rig_init(&r, TCP, false);
        struct test_op *a = op_plain(1000), *b = op_plain(1000);
        rig_submit(&r, a);
        rig_submit(&r, b);
        uint64_t id = raw_request(&r);
        if (when == 1)
            raw_reply(&r, id, 0, 1000, 400); /* half a payload */
        if (when == 2)
            raw_reply(&r, id, 0, 1000, 1000);
        close(r.raw);
        r.raw = -1;
        rig_run(&r, 2);
        assert_int_equal(a->op.status, when == 2 ? 0 : LEAT_PEER_GONE);
        assert_int_equal(b->op.status, LEAT_PEER_GONE);
        assert_int_equal(b->reads[0].status, LEAT_PEER_GONE);
        rig_expect_dead(&r);
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
        rig_submit(&r, a);
        rig_submit(&r, b);
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
        rig_run(&r, 2);
        assert_int_equal(a->op.status, LEAT_CORRUPT);
        assert_int_equal(b->op.status, LEAT_PEER_GONE);
        rig_expect_dead(&r);
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
    rig_submit(&r, a);
    rig_submit(&r, b);
    uint64_t id = raw_request(&r);
    raw_reply(&r, id, 0, 1000, 500);
    rig_run(&r, 2);
    assert_int_equal(a->op.status, LEAT_TIMED_OUT);
    assert_int_equal(b->op.status, LEAT_PEER_GONE);
    assert_int_equal(r.ctx->stats.timeouts, 1);
    memset(a->dst, 0x5a, 1000); /* QUIESCED: it is ours again */
    memset(b->dst, 0x5a, 1000);
    uint8_t late[1600] = {0};
    ssize_t n = send(r.raw, late, sizeof(late), MSG_NOSIGNAL);
    (void)n; /* it may notice already that the listener is gone */
    struct net_event event;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, 1), 0);
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(a->dst[i], 0x5a);
        assert_int_equal(b->dst[i], 0x5a);
    }
    rig_expect_dead(&r);
    op_free(a);
    op_free(b);
    rig_fini(&r);
}

/* A forked process has a duplicate of the connection: what is torn down here must not come back as an
 * event. */
static void test_tcp_duplicate(void **state)
{
    struct rig r = {.kind = TCP_UNIX};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    r.ctx = rig_ctx(TCP);
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
    rig_submit(&r, a);
    rig_run(&r, 1);
    assert_int_equal(a->op.status, LEAT_STALE);
    op_free(a);
    rig_fini(&r);
}

/* --- several endpoints, all of which are waited for ------------------------------------------------------------- */

/* Three far ends of one context; the rig's own is the first. */
struct three {
    struct rig rigs[3];
    struct test_op *ops[3];
    uint64_t ids[3];
};

static void three_begin(struct three *t, uint64_t deadline_ns)
{
    for (unsigned i = 0; i < 3; i++) {
        struct rig *r = &t->rigs[i];
        if (i == 0) {
            rig_init(r, TCP, false);
        } else {
            int fds[2];
            *r = (struct rig){.kind = TCP, .ctx = t->rigs[0].ctx};
            rig_tcp_pair(fds);
            rig_connect(r, fds[0]);
            r->raw = fds[1];
        }
        int on = 1; /* a reply's second segment does not wait for the first one's acknowledgement */
        assert_int_equal(setsockopt(r->raw, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
        t->ops[i] = op_plain(1000);
        t->ops[i]->op.deadline_ns = i == 0 ? deadline_ns : 0;
        rig_submit(r, t->ops[i]);
        t->ids[i] = raw_request(r);
    }
    t->rigs[0].ctx->poll_in_order = true;
}

static void three_answer(struct three *t, unsigned i)
{
    raw_reply(&t->rigs[i], t->ids[i], 0, 1000, 1000);
}

/* The next to be DONE. */
static struct test_op *three_next(struct three *t)
{
    struct net_event events[2];
    struct net_ctx *ctx = t->rigs[0].ctx;
    assert_int_equal(ctx->ops->poll(ctx, events, 2, 60000), 2);
    assert_int_equal(events[0].kind, NET_DONE);
    assert_int_equal(events[1].kind, NET_QUIESCED);
    assert_ptr_equal(events[0].op, events[1].op);
    struct test_op *op = events[0].op->user;
    op->done = op->quiesced = 1;
    return op;
}

static void three_end(struct three *t)
{
    for (unsigned i = 0; i < 3; i++)
        op_free(t->ops[i]);
    for (unsigned i = 3; i-- > 1;) {
        t->rigs[i].ctx->ops->disconnect(t->rigs[i].ctx, t->rigs[i].ep);
        if (t->rigs[i].raw >= 0)
            close(t->rigs[i].raw);
    }
    rig_fini(&t->rigs[0]);
}

/* In the order of asking, whatever came first. */
static void test_tcp_all_in_turn(void **state)
{
    struct three t;
    three_begin(&t, 0);
    for (unsigned i = 3; i-- > 0;)
        three_answer(&t, i);
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_equal(three_next(&t), t.ops[i]);
        assert_int_equal(t.ops[i]->op.status, 0);
    }
    three_end(&t);
}

/* The one that was asked first is stopped: events of the others are reported all the same, and its deadline
 * holds. */
static void test_tcp_all_but_a_frozen_one(void **state)
{
    struct three t;
    three_begin(&t, clock_now_ns() + 100 * NS_PER_MS);
    three_answer(&t, 2);
    three_answer(&t, 1);
    unsigned seen = 0;
    while (seen != 7) {
        struct test_op *next = three_next(&t);
        for (unsigned i = 0; i < 3; i++)
            seen |= (unsigned)(next == t.ops[i]) << i;
    }
    assert_int_equal(t.ops[0]->op.status, LEAT_TIMED_OUT);
    assert_int_equal(t.ops[1]->op.status, 0);
    assert_int_equal(t.ops[2]->op.status, 0);
    rig_expect_dead(&t.rigs[0]);
    three_end(&t);
}

/* Nor does one without a deadline hold the others up. */
static void test_tcp_all_behind_a_silent_one(void **state)
{
    struct three t;
    three_begin(&t, 0);
    three_answer(&t, 2);
    assert_ptr_equal(three_next(&t), t.ops[2]);
    three_answer(&t, 1);
    assert_ptr_equal(three_next(&t), t.ops[1]);
    three_answer(&t, 0);
    assert_ptr_equal(three_next(&t), t.ops[0]);
    three_end(&t);
}

/* The first dies while it is waited for. */
static void test_tcp_all_but_a_dead_one(void **state)
{
    struct three t;
    three_begin(&t, 0);
    close(t.rigs[0].raw);
    t.rigs[0].raw = -1;
    three_answer(&t, 2);
    three_answer(&t, 1);
    const int expected[] = {LEAT_PEER_GONE, 0, 0};
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_equal(three_next(&t), t.ops[i]);
        assert_int_equal(t.ops[i]->op.status, expected[i]);
    }
    three_end(&t);
}

/* How many sockets this process's epolls watch. */
static unsigned watched(void)
{
    unsigned n = 0;
    char path[64], line[256];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof(line), f))
            n += strncmp(line, "tfd:", 4) == 0;
        if (f)
            fclose(f);
    }
    return n;
}

static void three_again(struct three *t, unsigned i)
{
    op_free(t->ops[i]);
    t->ops[i] = op_plain(1000);
    rig_submit(&t->rigs[i], t->ops[i]);
    t->ids[i] = raw_request(&t->rigs[i]);
}

/* A reader that sleeps in a recvmsg now and then does not inform epoll each time: it waits so for all of a
 * batch's last answers. */
static void test_tcp_epoll_forgets_late(void **state)
{
    struct three t;
    three_begin(&t, 0);
    t.rigs[0].ctx->poll_in_order = false;
    const unsigned before = watched();
    for (unsigned batch = 0; batch < 3; batch++)
        for (unsigned i = 0; i < 3; i++) {
            three_answer(&t, i);
            assert_ptr_equal(three_next(&t), t.ops[i]);
            assert_int_equal(watched(), before);
            if (i == 2)
                for (unsigned k = 0; k < 3; k++)
                    three_again(&t, k);
        }
    t.rigs[0].ctx->poll_in_order = true;
    for (unsigned i = 0; watched() == before; i = (i + 1) % 3) { /* until epoll forgets it */
        three_answer(&t, i);
        assert_ptr_equal(three_next(&t), t.ops[i]);
        three_again(&t, i);
    }
    assert_int_equal(watched(), before - 3);
    t.rigs[0].ctx->poll_in_order = false;
    three_answer(&t, 1);
    assert_ptr_equal(three_next(&t), t.ops[1]);
    assert_int_equal(watched(), before);
    for (unsigned i = 0; i < 3; i += 2) {
        three_answer(&t, i);
        assert_ptr_equal(three_next(&t), t.ops[i]);
    }
    three_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp_split),
        cmocka_unit_test(test_tcp_merges),
        cmocka_unit_test(test_tcp_peer_dies),
        cmocka_unit_test(test_tcp_lies),
        cmocka_unit_test(test_tcp_deadline),
        cmocka_unit_test(test_tcp_duplicate),
        cmocka_unit_test(test_tcp_stale),
        cmocka_unit_test(test_tcp_lone_error),
        cmocka_unit_test(test_tcp_in_crumbs),
        cmocka_unit_test(test_tcp_all_in_turn),
        cmocka_unit_test(test_tcp_all_but_a_frozen_one),
        cmocka_unit_test(test_tcp_all_behind_a_silent_one),
        cmocka_unit_test(test_tcp_all_but_a_dead_one),
        cmocka_unit_test(test_tcp_epoll_forgets_late),
    };
    return cmocka_run_group_tests_name("net_tcp", tests, rig_setup, rig_teardown);
}
