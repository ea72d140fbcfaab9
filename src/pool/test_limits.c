/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "failalloc.h"
#include "pool/limits.h"

#include <cmocka.h>

static void test_each_user_has_their_own(void **state)
{
    struct quota s;
    uint64_t has = 99;
    quota_init(&s);
    assert_int_equal(quota_take(&s, 7, QUOTA_DATA, 2, 2, &has), 0);
    assert_int_equal(quota_take(&s, 7, QUOTA_DATA, 1, 2, &has), -EDQUOT);
    assert_int_equal(has, 2);
    assert_int_equal(quota_take(&s, 8, QUOTA_DATA, 1, 2, &has), 0);
    assert_int_equal(quota_take(&s, 7, QUOTA_WAITING, 1, 2, &has), 0);
    quota_give(&s, 7, QUOTA_DATA, 1);
    assert_int_equal(quota_take(&s, 7, QUOTA_DATA, 1, 2, &has), 0);
    quota_fini(&s);
}

static void test_no_sum_wraps(void **state)
{
    struct quota s;
    uint64_t has;
    quota_init(&s);
    assert_int_equal(quota_take(&s, 1, QUOTA_RANGES, 5, UINT64_MAX, &has), 0);
    assert_int_equal(quota_take(&s, 1, QUOTA_RANGES, UINT64_MAX, UINT64_MAX, &has), -EDQUOT);
    assert_int_equal(quota_take(&s, 1, QUOTA_RANGES, 11, 10, &has), -EDQUOT);
    quota_fini(&s);
}

/* A daemon that a thousand users have passed through remembers none of them. */
static void test_who_has_nothing_is_forgotten(void **state)
{
    struct quota s;
    uint64_t has;
    quota_init(&s);
    for (uint32_t uid = 0; uid < 1000; uid++) {
        assert_int_equal(quota_take(&s, uid, QUOTA_CONNECTIONS, 1, 1, &has), 0);
        assert_int_equal(quota_take(&s, uid, QUOTA_WAITING, 0, 1, &has), 0);
        assert_int_equal(quota_take(&s, uid + 5000, QUOTA_WAITING, 2, 1, &has), -EDQUOT);
        quota_give(&s, uid, QUOTA_CONNECTIONS, 1);
        quota_give(&s, uid, QUOTA_WAITING, 0);
        assert_int_equal(s.n, 0);
    }
    quota_fini(&s);
}

static int take_many(void *ctx)
{
    struct quota s;
    uint64_t has;
    int rc = 0;
    quota_init(&s);
    for (uint32_t uid = 0; rc == 0 && uid < 40; uid++)
        rc = quota_take(&s, uid, QUOTA_DATA, 1, 1, &has);
    quota_fini(&s);
    return rc;
}

static void test_allocations_that_fail(void **state)
{
    failalloc_run(take_many, NULL);
}

static void test_what_is_not_said_is_the_default(void **state)
{
    struct limits l = {.user_sets = 3};
    limits_default(&l);
    assert_int_equal(l.user_sets, 3);
    assert_int_equal(l.connections, 4096);
    assert_int_equal(l.handshakes, 1024);
    assert_int_equal(l.user_buffers_bytes, 512 * MIB);
    /* Unauthenticated connections cannot take all places, and lock this host's users out. */
    l = (struct limits){.connections = 100, .handshakes = 200};
    limits_default(&l);
    assert_int_equal(l.handshakes, 25);
    l = (struct limits){.connections = 2};
    limits_default(&l);
    assert_int_equal(l.handshakes, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_user_has_their_own),         cmocka_unit_test(test_no_sum_wraps),
        cmocka_unit_test(test_who_has_nothing_is_forgotten),    cmocka_unit_test(test_allocations_that_fail),
        cmocka_unit_test(test_what_is_not_said_is_the_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
