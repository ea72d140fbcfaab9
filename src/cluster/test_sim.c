/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules of the simulated cluster (sim.h): with all rules nothing is violated; with any one of them broken, something is.
 * LEAT_SIM_SEEDS: how many schedules instead of SEEDS; LEAT_SIM_SEED: one alone, with what
 * happens in it.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "cluster/sim.h"

#include <cmocka.h>
#include <stdio.h>

#define SEEDS     400u
#define SEEDS_OFF 3000u /* to find the violation of a broken rule in */

static unsigned number(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text && text[0] ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static void test_all_rules(void **state)
{
    struct sim_result r, sum = {0};
    unsigned first = number("LEAT_SIM_SEED", 0),
             n = getenv("LEAT_SIM_SEED") ? 1 : number("LEAT_SIM_SEEDS", SEEDS);
    sim_trace = getenv("LEAT_SIM_SEED") != NULL;
    for (unsigned seed = first; seed < first + n; seed++) {
        sim_run(seed, SIM_RULES, &r);
        if (r.violation[0])
            fail_msg("LEAT_SIM_SEED=%u, after %.3f s: %s", seed, (double)r.ns / 1e9, r.violation);
        sum.events += r.events;
        sum.committed += r.committed;
        sum.failed += r.failed;
        sum.crashes += r.crashes;
        sum.restarts_unseen += r.restarts_unseen;
        sum.refills += r.refills;
        sum.expired += r.expired;
        sum.orphans += r.orphans;
    }
    print_message("# %u schedules, %llu events: %u sets committed, %u placements failed, %u crashes, %u "
                  "restarts of nodes that were "
                  "not down, %u refills, %u holders expired, %u orphans\n",
                  n, (unsigned long long)sum.events, sum.committed, sum.failed, sum.crashes,
                  sum.restarts_unseen, sum.refills, sum.expired, sum.orphans);
    if (n >= SEEDS)
        assert_true(sum.committed && sum.failed && sum.restarts_unseen && sum.refills && sum.expired &&
                    sum.orphans);
}

static void test_each_rule_is_needed(void **state)
{
    sim_trace = false;
    struct sim_result r;
    unsigned needed = 0;
    for (unsigned rule = 0; rule < SIM_RULES; rule++) {
        unsigned seed = 0;
        do
            sim_run(seed, (enum sim_rule)rule, &r);
        while (!r.violation[0] && ++seed < SEEDS_OFF);
        print_message("# without %s: %s (seed %u)\n", sim_rule_names[rule],
                      r.violation[0] ? r.violation : "nothing", seed);
        needed += r.violation[0] != 0;
    }
    assert_int_equal(needed, SIM_RULES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_rules),
        cmocka_unit_test(test_each_rule_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
