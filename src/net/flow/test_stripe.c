/* SPDX-License-Identifier: Apache-2.0 */
/* Which path a slice takes: against rails in virtual time, each a queue with a rate. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/clock.h"
#include "net/flow/stripe.h"

#define RAILS 4u
#define SLICE (64 * KIB)

struct rail {
    double rate; /* bytes a second */
    uint64_t free_ns, dies_ns, latency_ns;
};

/* Moves `slices` slices with `window` out at a time; returns ns it took. */
static uint64_t move(struct stripe_path *paths, const struct rail *rails_in, unsigned n, unsigned slices,
                     unsigned window, uint64_t start_ns)
{
    struct rail rails[RAILS];
    struct out {
        uint64_t at_ns;
        int rail;
    } out[64];
    unsigned nout = 0, left = slices, came = 0;
    uint64_t now = start_ns;
    memcpy(rails, rails_in, n * sizeof(*rails));
    while (came < slices) {
        while (left && nout < window) {
            int k = stripe_choose(paths, n, SLICE, now);
            if (k < 0)
                break;
            stripe_sent(&paths[k], SLICE, now);
            rails[k].free_ns = MAX(rails[k].free_ns, now) + (uint64_t)(SLICE * 1e9 / rails[k].rate);
            out[nout++] = (struct out){rails[k].free_ns + rails[k].latency_ns, k};
            left--;
        }
        assert_true(nout > 0);
        unsigned first = 0;
        for (unsigned i = 1; i < nout; i++)
            if (out[i].at_ns < out[first].at_ns)
                first = i;
        struct out done = out[first];
        out[first] = out[--nout];
        now = MAX(now, done.at_ns);
        if (rails[done.rail].dies_ns && done.at_ns >= rails[done.rail].dies_ns) {
            left++; /* asked for by another path */
            if (!paths[done.rail].down)
                stripe_failed(&paths[done.rail], now);
            continue;
        }
        stripe_done(&paths[done.rail], SLICE, now);
        came++;
    }
    return now - start_ns;
}

static void test_equal_rails_share(void **state)
{
    struct stripe_path paths[2] = {0};
    const struct rail rails[2] = {{.rate = 1e9, .latency_ns = 20000}, {.rate = 1e9, .latency_ns = 20000}};
    uint64_t two = move(paths, rails, 2, 4000, 16, 1);
    assert_true(paths[0].total_bytes > 1900 * SLICE && paths[1].total_bytes > 1900 * SLICE);
    struct stripe_path one[1] = {0};
    assert_true((double)move(one, rails, 1, 4000, 16, 1) / (double)two > 1.95);
}

static void test_shares_follow_rates(void **state)
{
    struct stripe_path paths[3] = {0};
    const struct rail rails[3] = {{.rate = 3e9}, {.rate = 1e9}, {.rate = 5e8}};
    uint64_t ns = move(paths, rails, 3, 9000, 24, 1);
    double rate = 9000.0 * SLICE * 1e9 / (double)ns;
    print_message("3 + 1 + 0.5 GB/s: %.2f GB/s\n", rate / 1e9);
    assert_true(rate > 0.95 * 4.5e9);
    assert_true(paths[0].total_bytes > 2 * paths[1].total_bytes &&
                paths[1].total_bytes > paths[2].total_bytes);
}

/* A single slice at a time goes to the near rail; under load the far one helps. */
static void test_far_rail(void **state)
{
    struct stripe_path paths[2] = {{.nominal_bytes_per_s = 1000000000},
                                   {.nominal_bytes_per_s = 1000000000, .penalty_ns = STRIPE_NUMA_PENALTY_NS}};
    const struct rail rails[2] = {{.rate = 1e9}, {.rate = 1e9}};
    move(paths, rails, 2, 1, 1, 1);
    assert_int_equal(paths[1].total_bytes, 0);
    move(paths, rails, 2, 4000, 16, NS_PER_S);
    assert_true(paths[1].total_bytes > 1500 * SLICE);
}

static void test_a_rail_dies_and_comes_back(void **state)
{
    struct stripe_path paths[2] = {0};
    struct rail rails[2] = {{.rate = 1e9}, {.rate = 1e9, .dies_ns = 20 * NS_PER_MS}};
    move(paths, rails, 2, 2000, 16, 1);
    assert_true(paths[1].down);
    assert_int_equal(paths[0].total_bytes + paths[1].total_bytes, 2000 * SLICE);
    uint64_t at = paths[1].down_until_ns;
    assert_true(at >= 20 * NS_PER_MS + NS_PER_S && !stripe_try(&paths[1], at - 1) &&
                stripe_try(&paths[1], at));
    assert_false(stripe_try(&paths[0], at));
    /* Fails again, and again: later each time, not for ever. */
    uint64_t pause = NS_PER_S;
    for (unsigned i = 0; i < 10; i++) {
        stripe_failed(&paths[1], at);
        assert_true(paths[1].down_until_ns - at >= pause);
        pause = paths[1].down_until_ns - at;
        at += pause;
    }
    assert_int_equal(pause, 32 * NS_PER_S);
    stripe_up(&paths[1]);
    rails[1].dies_ns = 0;
    uint64_t before = paths[1].total_bytes;
    move(paths, rails, 2, 2000, 16, at);
    assert_true(paths[1].total_bytes - before > 800 * SLICE);
    assert_false(paths[1].down);
    stripe_failed(&paths[1], at); /* it had worked: a first failure again */
    assert_int_equal(paths[1].down_until_ns - at, NS_PER_S);
}

static void test_none_is_up(void **state)
{
    struct stripe_path paths[2] = {0};
    stripe_failed(&paths[0], 1);
    stripe_failed(&paths[1], 2);
    assert_int_equal(stripe_choose(paths, 2, SLICE, 3), -1);
    assert_int_equal(stripe_choose(paths, 0, SLICE, 3), -1);
}

/* A rail that slows down loses its share soon. */
static void test_a_rail_slows_down(void **state)
{
    struct stripe_path paths[2] = {0};
    struct rail rails[2] = {{.rate = 1e9}, {.rate = 1e9}};
    move(paths, rails, 2, 2000, 16, 1);
    rails[1].rate = 1e8;
    uint64_t ns = move(paths, rails, 2, 2000, 16, NS_PER_S);
    assert_true(2000.0 * SLICE * 1e9 / (double)ns > 0.9 * 1.1e9);
}

/* As a transport that is polled every `gap_ns`, with `window` slices out; what came in between is found together. Bytes a second. */
static double move_by_turns(struct stripe_path *paths, const struct rail *rails_in, unsigned n,
                            unsigned slices, unsigned window, uint64_t gap_ns)
{
    struct rail rails[RAILS];
    struct out {
        uint64_t at_ns;
        int rail;
    } out[64];
    unsigned nout = 0, left = slices;
    const uint64_t start_ns = NS_PER_S + paths[0].idle_since_ns;
    uint64_t now = start_ns;
    memcpy(rails, rails_in, n * sizeof(*rails));
    for (; left || nout; now += gap_ns) {
        for (unsigned i = 0; i < nout;)
            if (out[i].at_ns <= now) {
                stripe_came(&paths[out[i].rail], SLICE, now);
                out[i] = out[--nout];
            } else {
                i++;
            }
        stripe_turn(paths, n, now);
        for (; left && nout < window; left--) {
            int k = stripe_choose(paths, n, SLICE, now);
            stripe_sent(&paths[k], SLICE, now);
            rails[k].free_ns = MAX(rails[k].free_ns, now) + (uint64_t)(SLICE * 1e9 / rails[k].rate);
            out[nout++] = (struct out){rails[k].free_ns + rails[k].latency_ns, k};
        }
    }
    return (double)slices * SLICE * 1e9 / (double)(now - start_ns);
}

/* A reader that polls seldom cannot tell them apart: a false start must not last, or the path with more work
 * would look faster for ever. */
static void test_turns_find_equal_rails_equal(void **state)
{
    const struct rail rails[2] = {{.rate = 1e9}, {.rate = 1e9}};
    for (uint64_t gap_ns = 10000; gap_ns <= 10 * NS_PER_MS; gap_ns *= 10) {
        struct stripe_path paths[2] = {{.rate_bytes_per_s = 1000000000}, {.rate_bytes_per_s = 20000000}};
        move_by_turns(paths, rails, 2, 8000, 8, gap_ns);
        uint64_t before = paths[1].total_bytes;
        move_by_turns(paths, rails, 2, 8000, 8, gap_ns);
        double share = (double)(paths[1].total_bytes - before) / (8000.0 * SLICE);
        print_message("a poll in %" PRIu64 " us: %.0f%%\n", gap_ns / 1000, 100 * share);
        assert_true(share > 0.4 && share < 0.6);
    }
}

static void test_turns_find_a_slow_rail(void **state)
{
    const struct rail rails[2] = {{.rate = 1e9}, {.rate = 1e8}};
    struct stripe_path paths[2] = {0};
    double rate = move_by_turns(paths, rails, 2, 8000, 16, 20000);
    print_message("1 + 0.1 GB/s, by turns: %.2f GB/s\n", rate / 1e9);
    assert_true(rate > 0.9 * 1.1e9);
    assert_true(paths[1].total_bytes < 1200 * SLICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_rails_share),
        cmocka_unit_test(test_shares_follow_rates),
        cmocka_unit_test(test_far_rail),
        cmocka_unit_test(test_a_rail_dies_and_comes_back),
        cmocka_unit_test(test_none_is_up),
        cmocka_unit_test(test_a_rail_slows_down),
        cmocka_unit_test(test_turns_find_equal_rails_equal),
        cmocka_unit_test(test_turns_find_a_slow_rail),
    };
    return cmocka_run_group_tests_name("net_stripe", tests, NULL, NULL);
}
