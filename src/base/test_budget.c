/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/ledger.h"
#include "base/budget.h"

#include <pthread.h>

#include <cmocka.h>

static void test_cap(void **state)
{
    struct budget budget;
    budget_init(&budget, 100);
    assert_int_equal(budget_reserve(&budget, 60), 0);
    assert_int_equal(budget_reserve(&budget, 41), -ENOSPC);
    assert_int_equal(budget_reserve(&budget, UINT64_MAX), -ENOSPC); /* no wrap */
    assert_int_equal(budget_reserve(&budget, 40), 0);
    assert_int_equal(budget_reserve(&budget, 0), 0);
    assert_int_equal(budget_reserve(&budget, 1), -ENOSPC);
    assert_int_equal(budget.refused, 3);
    assert_int_equal(budget.peak_bytes, 100);
    budget_release(&budget, 60);
    assert_int_equal(budget.used_bytes, 40);
    assert_int_equal(budget_reserve(&budget, 60), 0);
    budget_release(&budget, 100);
    assert_int_equal(budget.used_bytes, 0);
    assert_int_equal(budget.peak_bytes, 100);
}

static void *take_and_give(void *arg)
{
    struct budget *budget = arg;
    uint64_t held = 0;
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t bytes = 1 + i % 40;
        if (budget_reserve(budget, bytes) == 0)
            held += bytes;
        if (i % 3 == 0) {
            budget_release(budget, held);
            held = 0;
        }
    }
    budget_release(budget, held);
    return NULL;
}

static void test_threads(void **state)
{
    struct budget budget;
    pthread_t threads[4];
    budget_init(&budget, 100);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &budget), 0);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(budget.used_bytes, 0);
    assert_true(budget.peak_bytes <= 100);
    assert_true(budget.peak_bytes >= 40);
}

static void test_ledger(void **state)
{
    uint64_t before = ledger_bytes[LEDGER_GATHER];
    ledger_add(LEDGER_GATHER, 7);
    assert_int_equal(ledger_bytes[LEDGER_GATHER] - before, 7);
    for (unsigned i = 0; i < LEDGER_REASONS; i++)
        assert_non_null(ledger_names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_ledger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
