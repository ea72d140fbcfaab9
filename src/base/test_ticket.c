/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/ledger.h"
#include "base/ticket.h"

#include <pthread.h>

#include <cmocka.h>

static void test_cap(void **state)
{
    struct ticket_office office;
    ticket_office_init(&office, 100);
    assert_int_equal(ticket_take(&office, 60), 0);
    assert_int_equal(ticket_take(&office, 41), -ENOSPC);
    assert_int_equal(ticket_take(&office, UINT64_MAX), -ENOSPC); /* no wrap */
    assert_int_equal(ticket_take(&office, 40), 0);
    assert_int_equal(ticket_take(&office, 0), 0);
    assert_int_equal(ticket_take(&office, 1), -ENOSPC);
    assert_int_equal(office.refused, 3);
    assert_int_equal(office.peak_bytes, 100);
    ticket_give(&office, 60);
    assert_int_equal(office.used_bytes, 40);
    assert_int_equal(ticket_take(&office, 60), 0);
    ticket_give(&office, 100);
    assert_int_equal(office.used_bytes, 0);
    assert_int_equal(office.peak_bytes, 100);
}

static void *take_and_give(void *arg)
{
    struct ticket_office *office = arg;
    uint64_t held = 0;
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t bytes = 1 + i % 40;
        if (ticket_take(office, bytes) == 0)
            held += bytes;
        if (i % 3 == 0) {
            ticket_give(office, held);
            held = 0;
        }
    }
    ticket_give(office, held);
    return NULL;
}

static void test_threads(void **state)
{
    struct ticket_office office;
    pthread_t threads[4];
    ticket_office_init(&office, 100);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &office), 0);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(office.used_bytes, 0);
    assert_true(office.peak_bytes <= 100);
    assert_true(office.peak_bytes >= 40);
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
