/* SPDX-License-Identifier: Apache-2.0 */
/* The map of regions to nodes: shares, prefixes, full nodes, and the same answer every time; random rings from a fixed seed. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/rng.h"
#include "failalloc.h"
#include "cluster/placement.h"

#include <cmocka.h>

#define REGIONS 2000u

static uint32_t map[REGIONS], again[REGIONS];

static void check_prefixes(const struct placement_node *nodes, unsigned n, double most)
{
    double sum = 0;
    uint64_t got[64] = {0};
    for (unsigned k = 0; k < n; k++)
        sum += (double)nodes[k].weight;
    for (uint32_t r = 0; r < REGIONS; r++) {
        assert_true(map[r] < n);
        got[map[r]]++;
        for (unsigned k = 0; k < n; k++) {
            double off = (double)got[k] - (r + 1) * ((double)nodes[k].weight / sum);
            if (off > most || off < -most)
                fail_msg("after %u regions node %u of %u is %.3f regions off its share", r + 1, k, n, off);
        }
    }
}

static void test_proportions(void **state)
{
    struct placement_node nodes[] = {{100 * GIB, 9999}, {200 * GIB, 9999}, {100 * GIB, 9999}};
    assert_int_equal(placement_map(nodes, 3, REGIONS, map), 0);
    unsigned got[3] = {0};
    for (uint32_t r = 0; r < REGIONS; r++)
        got[map[r]]++;
    assert_int_equal(got[0], REGIONS / 4);
    assert_int_equal(got[1], REGIONS / 2);
    assert_int_equal(got[2], REGIONS / 4);
    check_prefixes(nodes, 3, 1.0);
}

static void test_equal_nodes_alternate(void **state)
{
    struct placement_node nodes[8];
    for (unsigned k = 0; k < 8; k++)
        nodes[k] = (struct placement_node){64 * GIB, 9999};
    assert_int_equal(placement_map(nodes, 8, REGIONS, map), 0);
    for (uint32_t r = 0; r < REGIONS; r++)
        assert_int_equal(map[r], r % 8);
}

static void test_prefixes(void **state)
{
    uint64_t rng = 7;
    for (unsigned round = 0; round < 300; round++) {
        struct placement_node nodes[64];
        unsigned n = 1 + (unsigned)rng_below(&rng, 64);
        for (unsigned k = 0; k < n; k++)
            nodes[k] = (struct placement_node){
                round % 2 ? GIB << rng_below(&rng, 10) : GIB + rng_below(&rng, 512 * GIB), REGIONS};
        assert_int_equal(placement_map(nodes, n, REGIONS, map), 0);
        check_prefixes(nodes, n, 1.0 + 1e-2);
    }
}

static void test_full_nodes_leave(void **state)
{
    struct placement_node nodes[] = {{GIB, 10}, {GIB, 1000}, {8 * GIB, 3}};
    assert_int_equal(placement_map(nodes, 3, 1013, map), 0);
    unsigned got[3] = {0};
    for (uint32_t r = 0; r < 1013; r++)
        got[map[r]]++;
    assert_int_equal(got[0], 10);
    assert_int_equal(got[1], 1000);
    assert_int_equal(got[2], 3);
    /* Behind the last region that the others took, the one that has room takes all. */
    for (uint32_t r = 100; r < 1013; r++)
        assert_int_equal(map[r], 1);
}

static void test_no_room(void **state)
{
    struct placement_node nodes[] = {{GIB, 2}, {GIB, 3}};
    assert_int_equal(placement_map(nodes, 2, 5, map), 0);
    assert_int_equal(placement_map(nodes, 2, 6, map), -ENOSPC);
    assert_int_equal(placement_map(NULL, 0, 1, map), -ENOSPC);
    assert_int_equal(placement_map(NULL, 0, 0, map), 0);
}

static void test_zero_weights(void **state)
{
    struct placement_node nodes[] = {{0, 1000}, {GIB, 1000}, {0, 1000}};
    assert_int_equal(placement_map(nodes, 3, 1000, map), 0);
    for (uint32_t r = 0; r < 1000; r++)
        assert_int_equal(map[r], 1);
    assert_int_equal(placement_map(nodes, 3, 1001, map), -ENOSPC);
    nodes[1].weight = 0;
    assert_int_equal(placement_map(nodes, 3, 1, map), -ENOSPC);
}

static void test_extreme_weights(void **state)
{
    struct placement_node nodes[] = {{UINT64_MAX, 1500}, {1, 1000}, {UINT64_MAX, 1500}};
    assert_int_equal(placement_map(nodes, 3, REGIONS, map), 0);
    for (uint32_t r = 0; r < 1000; r++)
        assert_true(map[r] != 1);
}

static void test_deterministic(void **state)
{
    struct placement_node nodes[] = {{3 * GIB, 900}, {5 * GIB, 700}, {7 * GIB, 800}, {1 * GIB, 50}};
    assert_int_equal(placement_map(nodes, 4, REGIONS, map), 0);
    memset(again, 0xff, sizeof(again));
    assert_int_equal(placement_map(nodes, 4, REGIONS, again), 0);
    assert_memory_equal(map, again, sizeof(map));
    /* A longer set has the shorter one's map as its prefix. */
    assert_int_equal(placement_map(nodes, 4, 100, again), 0);
    assert_memory_equal(map, again, 100 * sizeof(*map));
}

static int map_once(void *ctx)
{
    struct placement_node nodes[] = {{GIB, 90}, {GIB, 70}};
    return placement_map(nodes, 2, 50, map);
}

static void test_allocations(void **state)
{
    assert_int_equal(failalloc_run(map_once, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proportions),     cmocka_unit_test(test_equal_nodes_alternate),
        cmocka_unit_test(test_prefixes),        cmocka_unit_test(test_full_nodes_leave),
        cmocka_unit_test(test_no_room),         cmocka_unit_test(test_zero_weights),
        cmocka_unit_test(test_extreme_weights), cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
