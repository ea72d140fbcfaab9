/* SPDX-License-Identifier: Apache-2.0 */
/* Samples that are waited for, one transition at a time; then nodes in virtual time that lose what is under way, by a seed. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/rng.h"
#include "cluster/urgent.h"

#include <cmocka.h>
#include <stdio.h>

#define SAMPLES 4096u

/* Which nodes have bytes of a sample to load; 0: it is there. */
static uint64_t nodes[SAMPLES];
static unsigned looked_up;

static uint64_t nodes_of(const void *user, uint64_t sample, uint64_t known)
{
    looked_up += known == 0;
    return nodes[sample] && known ? known : nodes[sample];
}

static uint64_t got[PROTO_URGENT_MAX];

/* Gathers, and takes. */
static uint32_t send_to(struct urgent *u, uint32_t node, uint32_t share, uint64_t now_ns)
{
    urgent_step(u, nodes_of, NULL, now_ns);
    return urgent_take(u, node, share, got);
}

static void all_on(uint64_t mask)
{
    for (unsigned i = 0; i < SAMPLES; i++)
        nodes[i] = mask;
}

static void test_share(void **state)
{
    assert_int_equal(urgent_share(1), PROTO_URGENT_MAX);
    assert_int_equal(urgent_share(2), PROTO_URGENT_MAX);
    assert_int_equal(urgent_share(3), PROTO_URGENT_MAX / 2);
    assert_true(63 * urgent_share(64) <= PROTO_URGENT_MAX && urgent_share(64) >= 8);
    assert_int_equal(urgent_share(100000), 1);
}

/* Waits of several readers are one message, and a sample is in it once. */
static void test_gathered(void **state)
{
    struct urgent u = {0};
    uint64_t t = NS_PER_S;
    all_on(2);
    assert_false(urgent_step(&u, nodes_of, NULL, t));
    for (uint64_t i = 10; i < 14; i++)
        assert_true(urgent_add(&u, i, 2, t));
    for (uint64_t i = 12; i < 16; i++)
        assert_true(urgent_add(&u, i, 2, t + URGENT_GATHER_NS / 2));
    assert_int_equal(u.due_ns, t + URGENT_GATHER_NS);
    assert_false(urgent_step(&u, nodes_of, NULL, u.due_ns - 1));
    assert_true(urgent_step(&u, nodes_of, NULL, u.due_ns));
    assert_int_equal(urgent_take(&u, 1, 100, got), 6);
    for (unsigned k = 0; k < 6; k++)
        assert_int_equal(got[k], 10 + k);
    assert_int_equal(urgent_take(&u, 1, 100, got), 0);
    assert_int_equal(urgent_take(&u, 2, 100, got), 0);  /* has nothing of it, */
    assert_int_equal(urgent_take(&u, 64, 100, got), 0); /* and this one is none */
    assert_int_equal(u.due_ns, t + URGENT_AGAIN_NS);
    for (uint64_t i = 10; i < 16; i++)
        nodes[i] = 0;
    urgent_advanced(&u, nodes_of, NULL, t + NS_PER_S);
    assert_int_equal(u.n, 0);
    assert_int_equal(u.due_ns, 0);
}

/* Its regions are of two nodes: both load their part. */
static void test_of_two_nodes(void **state)
{
    struct urgent u = {0};
    all_on(6);
    urgent_add(&u, 5, 6, 1);
    assert_int_equal(send_to(&u, 1, 9, u.due_ns), 1);
    assert_int_equal(urgent_take(&u, 2, 9, got), 1);
    assert_int_equal(got[0], 5);
}

/* No more is under way to a node than its share, and the rest follows as samples arrive. */
static void test_window(void **state)
{
    struct urgent u = {0};
    uint64_t t = NS_PER_S, i = 0;
    all_on(2);
    while (urgent_add(&u, i, 2, t))
        i++;
    assert_int_equal(i, PROTO_URGENT_MAX);
    assert_true(urgent_add(&u, 7, 2, t)); /* is there */
    assert_int_equal(send_to(&u, 1, 100, u.due_ns), 100);
    assert_int_equal(got[99], 99);
    assert_int_equal(urgent_take(&u, 1, 100, got), 0);
    t += NS_PER_MS;
    for (unsigned k = 20; k < 50; k++)
        nodes[k] = 0;
    assert_false(urgent_add(&u, i, 2, t));
    urgent_advanced(&u, nodes_of, NULL, t);
    assert_int_equal(u.due_ns, t + URGENT_GATHER_NS);
    assert_true(urgent_add(&u, i, 2, t));
    assert_int_equal(send_to(&u, 1, 100, u.due_ns), 30);
    assert_int_equal(got[0], 100);
    assert_int_equal(got[29], 129);
}

/* A receiver that ignored a message gets it again, in time, and at once when its link is up: that node, no other. */
static void test_again(void **state)
{
    struct urgent u = {0};
    uint64_t t = NS_PER_S;
    all_on(6);
    urgent_add(&u, 1, 6, t);
    urgent_add(&u, 2, 6, t);
    assert_int_equal(send_to(&u, 1, 9, u.due_ns), 2);
    assert_int_equal(urgent_take(&u, 2, 9, got), 2);
    urgent_up(&u, 1, t + 5 * NS_PER_MS);
    assert_int_equal(u.due_ns, t + 5 * NS_PER_MS + URGENT_GATHER_NS);
    assert_int_equal(send_to(&u, 1, 9, u.due_ns), 2);
    assert_int_equal(urgent_take(&u, 2, 9, got), 0);
    urgent_up(&u, 64, t); /* no node */
    assert_int_equal(send_to(&u, 1, 9, t + URGENT_AGAIN_NS - 1), 0);
    assert_int_equal(u.due_ns, t + URGENT_AGAIN_NS);
    nodes[1] = 4; /* a region moved, or a part has arrived */
    looked_up = 0;
    assert_int_equal(send_to(&u, 1, 9, u.due_ns), 1);
    assert_int_equal(looked_up, 2);
    assert_int_equal(got[0], 2);
    assert_int_equal(urgent_take(&u, 2, 9, got), 2);
    assert_int_equal(u.due_ns, t + 2 * URGENT_AGAIN_NS);
    nodes[1] = nodes[2] = 0;
    assert_false(urgent_step(&u, nodes_of, NULL, u.due_ns));
    assert_int_equal(u.due_ns, 0);
    urgent_up(&u, 1, t); /* nothing is wanted */
    assert_int_equal(u.due_ns, 0);
}

/* --- nodes in virtual time ------------------------------------------------------------------------------------------- */

enum { HOSTS = 3, TICK_NS = 250 * 1000, CALM_NS = 6, WAITS = 300 };

struct sim_host {
    uint64_t queue[PROTO_URGENT_MAX]; /* of which this sender has a share */
    uint32_t n;
    bool up, has_set;
    struct {
        uint64_t samples[PROTO_URGENT_MAX], at_ns;
        uint32_t n;
    } under_way;
    uint64_t last_ns; /* of a message */
};

/* A host loads nothing but what it was asked for: a sample that it is not asked for never comes. Returns the loads, or 0: some
 * are still waited for when faults have long been over. */
static unsigned simulate(uint64_t seed, bool again)
{
    struct sim_host host[HOSTS] = {0};
    struct urgent u = {0};
    uint64_t rng = seed, now = NS_PER_S;
    const uint64_t calm = now + 4 * NS_PER_S, end = calm + CALM_NS * NS_PER_S;
    unsigned waits = 0, left = 0, loads = 0;
    const uint32_t share = urgent_share(HOSTS + 1);
    memset(nodes, 0, sizeof(nodes));
    for (; now < end; now += TICK_NS) {
        bool faults = now < calm;
        if (faults && waits < WAITS && rng_below(&rng, 40) == 0) { /* a batch */
            for (unsigned k = 0; k < 32; k++) {
                uint64_t i = rng_below(&rng, SAMPLES), mask = 1 + rng_below(&rng, (1 << HOSTS) - 1);
                if (!nodes[i] && urgent_add(&u, i, mask, now)) {
                    nodes[i] = mask;
                    left++;
                }
            }
            waits++;
        }
        for (unsigned h = 0; h < HOSTS; h++) {
            struct sim_host *at = &host[h];
            if (at->under_way.n && now >= at->under_way.at_ns) {
                for (uint32_t k = 0; at->has_set && k < at->under_way.n; k++) {
                    bool known = false;
                    for (uint32_t q = 0; q < at->n; q++)
                        known = known || at->queue[q] == at->under_way.samples[k];
                    if (!known && at->n < share && nodes[at->under_way.samples[k]] >> h & 1)
                        at->queue[at->n++] = at->under_way.samples[k];
                }
                at->under_way.n = 0;
            }
            if (at->n && rng_below(&rng, 8) == 0) { /* loads one */
                uint64_t i = at->queue[0];
                memmove(at->queue, at->queue + 1, --at->n * sizeof(at->queue[0]));
                nodes[i] &= ~(UINT64_C(1) << h);
                left -= nodes[i] == 0;
                loads++;
                urgent_advanced(&u, nodes_of, NULL, now);
            }
            uint64_t fault = faults ? rng_below(&rng, 4000) : 5000;
            if (fault < 3) { /* the link breaks, or the process ends, too */
                at->up = false;
                at->under_way.n = 0;
                at->n = fault == 0 ? 0 : at->n;
                at->has_set = fault > 0 && at->has_set;
            }
            if (!at->up && (!faults || rng_below(&rng, 400) == 0)) {
                at->up = true;
                urgent_up(&u, h, now);
            }
            at->has_set = at->has_set || (at->up && (!faults || rng_below(&rng, 800) == 0));
        }
        if (!urgent_step(&u, nodes_of, NULL, now))
            continue;
        for (unsigned h = 0; h < HOSTS; h++) {
            struct sim_host *at = &host[h];
            if (!at->up || at->under_way.n)
                continue;
            at->under_way.n = urgent_take(&u, h, share, at->under_way.samples);
            at->under_way.at_ns = now + rng_below(&rng, 3 * NS_PER_MS);
            if (!at->under_way.n)
                continue;
            assert_true(now - at->last_ns >= URGENT_GATHER_NS);
            at->last_ns = now;
        }
        if (!again)
            u.again_ns = UINT64_MAX;
    }
    return left ? 0 : loads + 1;
}

static void test_nodes_that_fail(void **state)
{
    unsigned stuck = 0, loads = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        unsigned n = simulate(seed, true);
        if (!n)
            fail_msg("seed %llu: a sample is waited for without end", (unsigned long long)seed);
        loads += n - 1;
        stuck += seed <= 10 && !simulate(seed, false);
    }
    assert_true(loads > 40 * 100);
    assert_true(stuck >
                0); /* without asking again, it would be: a host that had no set is not asked any more */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share),        cmocka_unit_test(test_gathered),
        cmocka_unit_test(test_of_two_nodes), cmocka_unit_test(test_window),
        cmocka_unit_test(test_again),        cmocka_unit_test(test_nodes_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
