/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual time: the simulated network's latency, freezes, deaths and incast. */
#include "net/test_rig.h"

#include "base/clock.h"

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
    struct net_sim_node node = {.memory = rig_memory,
                                .region_bytes = REGION_BYTES,
                                .nregions = REGIONS,
                                .latency_ns = 1000,
                                .bytes_per_s = 1000000000};
    struct net_sim_config config = {.seed = 1, .nodes = &node, .nnodes = 1};
    sim_rig(&r, &config);
    struct test_op *a = op_plain(500000), *b = op_plain(500000);
    rig_submit(&r, a);
    rig_submit(&r, b);
    rig_run(&r, 1);
    assert_int_equal(net_sim_now_ns(r.ctx), 1000 + 500000 + 1000);
    rig_run(&r, 1);
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
    struct net_sim_node node = {.memory = rig_memory,
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
    rig_submit(&r, t);
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 1);
    assert_int_equal(event.kind, NET_DONE);
    assert_int_equal(t->op.status, LEAT_TIMED_OUT);
    assert_int_equal(net_sim_now_ns(r.ctx), 1000000);
    memset(t->dst, 0x11, 500000); /* in quarantine: what a careless owner would write is overwritten */
    assert_int_equal(r.ctx->ops->poll(r.ctx, &event, 1, -1), 1);
    assert_int_equal(event.kind, NET_QUIESCED);
    assert_true(net_sim_now_ns(r.ctx) >= 5000000);
    assert_memory_equal(t->dst + 400000, rig_memory + 400000, 100000);
    t->done = t->quiesced = 1;
    op_free(t);
    rig_fini(&r);

    node.thaw_at_ns = 0; /* for ever: only hanging up gives the destination back */
    sim_rig(&r, &config);
    t = op_plain(500000);
    t->op.deadline_ns = 1000000;
    rig_submit(&r, t);
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
    struct net_sim_node node = {.memory = rig_memory,
                                .region_bytes = REGION_BYTES,
                                .nregions = REGIONS,
                                .latency_ns = 1000,
                                .bytes_per_s = 1000000000,
                                .die_at_ns = 600000};
    struct net_sim_config config = {.seed = 1, .nodes = &node, .nnodes = 1};
    sim_rig(&r, &config);
    struct test_op *a = op_plain(500000), *b = op_plain(500000);
    rig_submit(&r, a);
    rig_submit(&r, b);
    rig_run(&r, 2);
    op_check_good(a);
    assert_int_equal(b->op.status, LEAT_PEER_GONE);
    assert_int_equal(net_sim_now_ns(r.ctx), 601000);
    op_free(a);
    op_free(b);
    rig_expect_dead(&r);
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
        nodes[i] = (struct net_sim_node){.memory = rig_memory,
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
    rig_run(&r, 8);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_time),
        cmocka_unit_test(test_sim_freeze),
        cmocka_unit_test(test_sim_death),
        cmocka_unit_test(test_sim_incast),
    };
    return cmocka_run_group_tests_name("net_sim", tests, rig_setup, rig_teardown);
}
