/* SPDX-License-Identifier: Apache-2.0 */
/* The same suite over every transport: what net.h promises; shared memory's ledger; faults. */
#include "net/test_rig.h"

#include "base/crc32c.h"
#include "base/ledger.h"
#include "base/testing.h"

static void many_ops(struct rig *r)
{
    struct test_op *ops[200];
    const unsigned n = test_seeds(ARRAY_LEN(ops));
    for (unsigned i = 0; i < n; i++) {
        ops[i] = i % 20 == 0 ? op_random(3, REGION_BYTES / 2) : op_random(100, i % 3 ? 300 : 9000);
        rig_submit(r, ops[i]);
    }
    rig_run(r, n);
    for (unsigned i = 0; i < n; i++) {
        op_check_good(ops[i]);
        op_free(ops[i]);
    }
    assert_int_equal(r->ctx->stats.ops, n);
    assert_int_equal(r->ctx->stats.in_flight_bytes, 0);
    assert_int_equal(r->ctx->stats.errors, 0);
}

static void test_many_ops(void **state)
{
    rig_each(many_ops);
}

static void errors(struct rig *r)
{
    struct net_read reads[] = {{.mr_gid = 0, .offset = 5, .bytes = 100},
                               {.mr_gid = REGIONS, .offset = 0, .bytes = 10},
                               {.mr_gid = 1, .offset = REGION_BYTES - 9, .bytes = 10},
                               {.mr_gid = 1, .offset = UINT64_MAX - 4, .bytes = 10},
                               {.mr_gid = 2, .offset = 7, .bytes = 70}};
    struct test_op *before = op_random(10, 1000), *bad = op_new(reads, 5), *after = op_random(10, 1000);
    rig_submit(r, before);
    rig_submit(r, bad);
    rig_submit(r, after);
    rig_run(r, 3);
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
    rig_submit(r, good);
    rig_run(r, 1);
    op_check_good(good);
    op_free(good);
}

static void test_errors(void **state)
{
    rig_each(errors);
}

static void disconnect_mid(struct rig *r)
{
    struct test_op *ops[8];
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i] = op_random(100, 9000);
        rig_submit(r, ops[i]);
    }
    r->ctx->ops->disconnect(r->ctx, r->ep);
    rig_run(r, ARRAY_LEN(ops));
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
    rig_each(disconnect_mid);
}

static void test_shm_ledger(void **state)
{
    struct rig r;
    rig_init(&r, SHM, true);
    r.regions[2] = NULL; /* is remote */
    struct net_read reads[] = {{.mr_gid = 2, .bytes = 10}, {.mr_gid = 1, .bytes = 1000}};
    uint64_t before = ledger_bytes[LEDGER_GATHER];
    struct test_op *t = op_new(reads, 2);
    rig_submit(&r, t);
    rig_run(&r, 1);
    assert_int_equal(t->op.status, LEAT_INVALID);
    assert_int_equal(t->reads[0].status, LEAT_INVALID);
    assert_int_equal(t->reads[1].status, 0);
    assert_memory_equal(t->reads[1].dst, rig_memory + REGION_BYTES, 1000);
    assert_int_equal(ledger_bytes[LEDGER_GATHER] - before, 1000);
    op_free(t);
    rig_fini(&r);
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
            rig_tcp_pair(fds);
            assert_int_equal(net_server_add(r.server, fds[1], &r.pool.target), 0);
        }
        rig_connect(&r, fds[0]);
        struct test_op *ops[5];
        for (unsigned i = 0; i < 5; i++) {
            ops[i] = op_plain(1000);
            rig_submit(&r, ops[i]);
        }
        unsigned quiesced = 0, polls_between = 0;
        for (unsigned polls = 0; quiesced < 5; polls++) {
            assert_true(polls < 3000);
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
        assert_int_not_equal(ops[2]->reads[0].crc, crc32c(0, rig_memory, 1000));
        assert_int_equal(ops[2]->reads[0].crc, crc32c(0, ops[2]->dst, 1000));
        assert_int_equal(ops[3]->op.status, LEAT_TIMED_OUT);
        assert_memory_equal(ops[3]->dst, rig_memory, 1000); /* late, but before QUIESCED */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ops),   cmocka_unit_test(test_errors), cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_shm_ledger), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests_name("net_transport", tests, rig_setup, rig_teardown);
}
