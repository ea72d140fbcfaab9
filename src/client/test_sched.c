/* SPDX-License-Identifier: Apache-2.0 */
/* How much may be in flight: its promises one by one, then against a network in virtual time with several servers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/clock.h"
#include "client/client.h"

static void test_never_stalls(void **state)
{
    static const uint64_t limits[] = {0, 1, 100, 4096, 65536, 1 << 20, 1 << 26};
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++) {
        struct sched s;
        sched_init(&s, limits[i]);
        assert_true(sched_grant(&s) > 0);
        assert_true(s.stage_bytes > 0 && s.stage_bytes <= sched_grant(&s));
        sched_sent(&s, 1 << 27); /* one request larger than any limit */
        assert_int_equal(sched_grant(&s), 0);
        sched_done(&s, 1 << 27, 1000, 2000);
        assert_true(sched_grant(&s) > 0);
        if (limits[i])
            assert_int_equal(s.limit_bytes, limits[i]); /* what the user fixed stays */
    }
}

static void test_outstanding(void **state)
{
    struct sched s;
    sched_init(&s, 1000000);
    uint64_t sent = 0;
    while (sched_grant(&s)) {
        uint64_t bytes = MIN(sched_grant(&s), s.stage_bytes);
        sched_sent(&s, bytes);
        sent += bytes;
        assert_int_equal(s.in_flight_bytes, sent);
        assert_true(sent <= 1000000);
    }
    assert_true(sent >= 1000000 - s.stage_bytes);
    /* Room for less than a stage is not worth a request. */
    sched_done(&s, s.stage_bytes / 2, 1000, 5000);
    assert_true(sched_grant(&s) == 0 || sched_grant(&s) >= s.stage_bytes);
    sched_done(&s, sent, 1000, 6000); /* more than there is: stays at none */
    assert_int_equal(s.in_flight_bytes, 0);
}

/* Servers on this host: a short round trip must not bring the limit down to what a shallow switch could take. */
static void test_same_host(void **state)
{
    struct sched far, near, fixed;
    sched_init(&far, 0);
    sched_init(&near, 0);
    sched_init(&fixed, 100000);
    sched_same_host(&near);
    sched_same_host(&fixed);
    assert_int_equal(near.limit_bytes, 4 * MIB);
    assert_int_equal(fixed.limit_bytes, 100000);
    for (uint64_t t = 1; t < 1000; t++) {
        struct sched *both[] = {&far, &near};
        for (unsigned i = 0; i < 2; i++) {
            sched_sent(both[i],
                       64 * KIB * (t == 1 ? 2 : 1)); /* never idle: idle stretches are not measured */
            sched_done(both[i], 64 * KIB, 20 * NS_PER_US, t * 20 * NS_PER_US + NS_PER_S);
        }
    }
    assert_true(far.limit_bytes < MIB);
    assert_int_equal(near.limit_bytes, 4 * MIB);
    assert_int_equal(near.stage_bytes, MIB);
}

/* --- against sim/ ---------------------------------------------------------------------------------------------------- */

#define NODES  8u
#define READS  2048u
#define PIECE  (64 * KIB)
#define REGION (16 * MIB)

struct run {
    uint64_t took_ns, peak_bytes, limit_bytes;
};

/* READS pieces spread over the nodes, asked for in turns as gather.c does. unlimited: everything at once. */
static struct run simulate(uint64_t latency_ns, uint64_t node_rate, uint64_t receiver_rate,
                           uint64_t queue_bytes, uint64_t fixed_limit, bool unlimited)
{
    uint8_t *memory = calloc(1, REGION), *dst = malloc(READS * PIECE);
    struct net_sim_node nodes[NODES];
    for (unsigned i = 0; i < NODES; i++)
        nodes[i] = (struct net_sim_node){.memory = memory,
                                         .region_bytes = REGION,
                                         .nregions = 1,
                                         .latency_ns = latency_ns,
                                         .bytes_per_s = node_rate};
    const struct net_sim_config config = {.seed = 3,
                                          .nodes = nodes,
                                          .nnodes = NODES,
                                          .receiver_bytes_per_s = receiver_rate,
                                          .receiver_queue_bytes = queue_bytes,
                                          .retry_ns = 5 * NS_PER_MS};
    struct net_ctx *ctx;
    struct net_endpoint *endpoints[NODES];
    struct net_read *reads = calloc(READS, sizeof(*reads));
    struct net_op *ops = calloc(READS, sizeof(*ops));
    uint64_t *sent_ns = calloc(READS, sizeof(*sent_ns)), in_flight = 0;
    unsigned next[NODES], finished = 0, used = 0;
    struct run out = {0};
    struct sched s;
    assert_int_equal(net_sim_new(&config, &ctx), 0);
    for (unsigned i = 0; i < NODES; i++) {
        struct net_peer peer = {.node = i, .connected_fd = -1};
        assert_int_equal(ctx->ops->connect(ctx, &peer, 0, &endpoints[i], NULL), 0);
        next[i] = i * (READS / NODES);
    }
    for (unsigned i = 0; i < READS; i++)
        reads[i] = (struct net_read){.bytes = PIECE, .offset = i % 256 * PIECE, .dst = dst + i * PIECE};
    sched_init(&s, fixed_limit);
    while (finished < READS) {
        bool any = true;
        while (any) {
            any = false;
            for (unsigned node = 0; node < NODES; node++) {
                uint64_t grant = unlimited ? UINT64_MAX : sched_grant(&s);
                unsigned end = (node + 1) * (READS / NODES);
                if (next[node] == end || !grant)
                    continue;
                unsigned n = (unsigned)MAX(MIN(grant, s.stage_bytes) / PIECE, 1ull);
                n = MIN(n, end - next[node]); /* the tail is what remains */
                struct net_op *op = &ops[used];
                *op = (struct net_op){.reads = &reads[next[node]], .n = n};
                sent_ns[used++] = net_sim_now_ns(ctx);
                assert_int_equal(ctx->ops->submit(endpoints[node], op), 0);
                sched_sent(&s, n * PIECE);
                in_flight += n * PIECE;
                out.peak_bytes = MAX(out.peak_bytes, in_flight);
                next[node] += n;
                any = true;
            }
        }
        struct net_event events[16];
        int got = ctx->ops->poll(ctx, events, 16, 1000);
        assert_true(got > 0); /* something is always on its way: no stall */
        for (int e = 0; e < got; e++) {
            if (events[e].kind != NET_DONE)
                continue;
            uint64_t now = net_sim_now_ns(ctx), bytes = events[e].op->n * PIECE;
            assert_int_equal(events[e].op->status, 0);
            sched_done(&s, bytes, now - sent_ns[events[e].op - ops], now);
            in_flight -= bytes;
            finished += events[e].op->n;
        }
    }
    out.took_ns = net_sim_now_ns(ctx);
    out.limit_bytes = s.limit_bytes;
    for (unsigned i = 0; i < NODES; i++)
        ctx->ops->disconnect(ctx, endpoints[i]);
    net_free(ctx);
    free(sent_ns);
    free(ops);
    free(reads);
    free(dst);
    free(memory);
    return out;
}

static double rate(struct run r)
{
    return (double)READS * PIECE / (double)r.took_ns; /* GB/s */
}

static void tell(const char *what, struct run r, double link)
{
    print_message("%s: %.2f GB/s (%.0f %% of the link), peak in flight %llu KiB, limit %llu KiB\n", what,
                  rate(r), 100 * rate(r) / link, (unsigned long long)(r.peak_bytes / KIB),
                  (unsigned long long)(r.limit_bytes / KIB));
}

/* Eight servers into one receiver with a shallow queue: asking for all at once loses segments and waits for retries. */
static void test_incast(void **state)
{
    struct run all = simulate(20 * NS_PER_US, 2000000000, 2000000000, 1 * MIB, 0, true);
    struct run ours = simulate(20 * NS_PER_US, 2000000000, 2000000000, 1 * MIB, 0, false);
    tell("incast, all at once", all, 2);
    tell("incast, adapting", ours, 2);
    assert_true(rate(ours) > 0.8 * 2);
    assert_true(rate(ours) > rate(all));
}

/* A long way: the limit must grow far past where it starts. */
static void test_long_path(void **state)
{
    struct run ours = simulate(2 * NS_PER_MS, 4000000000, 4000000000, 256 * MIB, 0, false);
    struct run start = simulate(2 * NS_PER_MS, 4000000000, 4000000000, 256 * MIB, 1 * MIB, false);
    tell("2 ms away, adapting", ours, 4);
    tell("2 ms away, 1 MiB fixed", start, 4);
    assert_true(rate(ours) > 3 * rate(start));
    assert_true(ours.limit_bytes > 4 * MIB);
}

/* A short way: no more in flight than helps. */
static void test_short_path(void **state)
{
    struct run ours = simulate(5 * NS_PER_US, 1000000000, 1000000000, 64 * MIB, 0, false);
    tell("5 us away, adapting", ours, 1);
    assert_true(rate(ours) > 0.85);
    assert_true(ours.limit_bytes <= 2 * MIB);
}

/* Limits below one request: one at a time, to the end. */
static void test_tiny_limit(void **state)
{
    struct run r = simulate(10 * NS_PER_US, 1000000000, 1000000000, 64 * MIB, 1000, false);
    assert_int_equal(r.peak_bytes, PIECE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_stalls), cmocka_unit_test(test_outstanding),
        cmocka_unit_test(test_same_host),    cmocka_unit_test(test_incast),
        cmocka_unit_test(test_long_path),    cmocka_unit_test(test_short_path),
        cmocka_unit_test(test_tiny_limit),
    };
    return cmocka_run_group_tests_name("client_sched", tests, NULL, NULL);
}
