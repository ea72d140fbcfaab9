/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's registrations: asked for by many at once, closed amid that, while rails go, come, and come late. */
#include "net/ucx/testing.h"

#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/testing.h"

#define SLOTS 200

struct requesters {
    struct net_rdma_server *server;
    struct net_rdma_slot slots[SLOTS];
    _Atomic unsigned given, stale, other;
};

static void *ask_for_keys(void *arg)
{
    struct requesters *a = arg;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct bytes_out reply = {0};
        int rc = net_rdma_put_keys(a->server, &a->slots[i], dst, sizeof(dst), &reply, NULL);
        bool good = (rc == 0) == (reply.len > 0);
        atomic_fetch_add(good && rc == 0 ? &a->given : good && rc == LEAT_STALE ? &a->stale : &a->other, 1);
        bytes_out_fini(&reply);
    }
    return NULL;
}

/* Many ask for the keys of the same regions, each is registered once; they are closed amid that, and nothing stays registered. */
static void test_slots(void **state)
{
    static struct requesters a;
    pthread_t threads[3];
    struct net_rdma_stats stats;
    NEEDS_UCX();
    assert_int_equal(net_rdma_server_new(&by_tcp, &a.server, NULL), 0);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_keys, &a), 0);
    for (unsigned i = 0; i < SLOTS; i += 2)
        net_rdma_slot_close(&a.slots[i]);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    net_rdma_server_stats(a.server, &stats);
    assert_int_equal(stats.registrations, SLOTS / 2);
    assert_int_equal(a.other, 0);
    assert_int_equal(a.given + a.stale, SLOTS * ARRAY_LEN(threads));
    for (unsigned i = 0; i < SLOTS; i++)
        net_rdma_slot_close(&a.slots[i]);
    net_rdma_server_stats(a.server, &stats);
    assert_int_equal(stats.registrations, 0);
    net_rdma_server_free(a.server);
}

/* Closes the rail, or opens it again, without its pauses. */
static void go_or_come(void *arg)
{
    struct serve_rail *r = arg;
    atomic_store(&r->lost, r->rail.worker != NULL);
    r->again_ns = 0;
    loop_timer_set(r->loop, &r->timer, clock_now_ns());
}

/* The same while one of two rails goes and comes: each region has parts of those that are open, and none is left over. */
static void test_slots_while_a_rail_goes(void **state)
{
    static struct requesters a;
    pthread_t threads[3];
    struct net_rdma_stats stats;
    NEEDS_UCX();
    assert_int_equal(net_rdma_server_new(&two_by_tcp, &a.server, NULL), 0);
    struct serve_rail *r = &a.server->rails[1];
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_keys, &a), 0);
    for (unsigned i = 0; i < SLOTS; i++) {
        if (i % 10 == 0)
            assert_int_equal(loop_post(r->loop, go_or_come, r), 0);
        if (i % 2 == 0)
            net_rdma_slot_close(&a.slots[i]);
        test_pause_us(500);
    }
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(a.other, 0);
    assert_int_equal(a.given + a.stale, SLOTS * ARRAY_LEN(threads));
    test_run_until(atomic_load(&r->up),
                   (assert_int_equal(loop_post(r->loop, go_or_come, r), 0), test_pause_us(100000)));
    assert_true(atomic_load(&r->incarnation) > 1);
    net_rdma_server_stats(a.server, &stats);
    assert_int_equal(stats.registrations, SLOTS / 2);
    assert_true(stats.rails[0].up && stats.rails[1].up);
    for (unsigned i = 1; i < SLOTS; i += 2)
        for (unsigned k = 0; k < 2; k++) {
            assert_non_null(a.slots[i].memory->parts[k].memh);
            assert_int_equal(a.slots[i].memory->parts[k].incarnation,
                             atomic_load(&a.server->rails[k].incarnation));
        }
    for (unsigned i = 0; i < SLOTS; i++)
        net_rdma_slot_close(&a.slots[i]);
    assert_true(list_empty(&a.server->memories));
    net_rdma_server_free(a.server);
}

static void come(void *arg)
{
    struct serve_rail *r = arg;
    snprintf(r->wanted.name, sizeof(r->wanted.name), "lo");
    go_or_come(r);
}

/* A rail that cannot be opened at first is taken in when it can, with what was registered before. */
static void test_a_rail_that_comes_late(void **state)
{
    const struct net_rdma_config config = {.rails = "lo,nosuch0", .tls = "tcp"};
    struct net_rdma_server *server;
    struct net_rdma_slot slot = {0};
    struct bytes_out reply = {0};
    NEEDS_UCX();
    assert_int_equal(net_rdma_server_new(&config, &server, NULL), 0);
    assert_int_equal(server->n, 2);
    struct serve_rail *r = &server->rails[1];
    assert_true(atomic_load(&server->rails[0].up) && !atomic_load(&r->up));
    assert_int_equal(net_rdma_put_keys(server, &slot, dst, sizeof(dst), &reply, NULL), 0);
    assert_null(slot.memory->parts[1].memh);
    assert_int_equal(loop_post(r->loop, come, r), 0);
    test_wait_until(atomic_load(&r->up));
    assert_non_null(slot.memory->parts[1].memh);
    net_rdma_slot_close(&slot);
    net_rdma_server_free(server);
    bytes_out_fini(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_slots_while_a_rail_goes),
        cmocka_unit_test(test_a_rail_that_comes_late),
    };
    return cmocka_run_group_tests(tests, far_start, far_end);
}
