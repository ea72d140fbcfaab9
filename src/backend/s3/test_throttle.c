/* SPDX-License-Identifier: Apache-2.0 */
/* What is shared by name, and how fast it goes down and up again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "backend/s3/throttle.h"
#include "base/clock.h"
#include "base/testing.h"

#define MOST 100u

static void test_share(void **state)
{
    struct throttle *one, *same, *other, *own;
    (void)state;
    assert_int_equal(throttle_get("a", &one), 0);
    assert_int_equal(throttle_get("a", &same), 0);
    assert_int_equal(throttle_get("b", &other), 0);
    assert_int_equal(throttle_get(NULL, &own), 0);
    assert_ptr_equal(one, same);
    throttle_busy(one, MOST, 1000 * NS_PER_S);
    throttle_busy(own, MOST, 1000 * NS_PER_S);
    assert_true(throttle_limit(same, MOST) < 71 && throttle_limit(same, 10) < 7.1);
    assert_true(throttle_limit(other, MOST) == MOST && throttle_limit(own, MOST) < 71);
    /* A pause has an end, and is not that of those who share with none. */
    uint64_t until = throttle_until(same);
    assert_true(until > 0 && until <= clock_now_ns() + 5 * NS_PER_S);
    assert_true(throttle_until(other) == 0 && throttle_until(own) == 0);
    /* One that runs is not made longer: each request that is let through would be refused, and do so. */
    test_pause_us(1000);
    throttle_busy(same, MOST, 1000 * NS_PER_S);
    assert_int_equal(throttle_until(one), until);
    throttle_unref(one);
    assert_true(throttle_limit(same, MOST) < 50);
    throttle_unref(same);
    assert_int_equal(throttle_get("a", &one), 0); /* its last one has gone */
    assert_true(throttle_limit(one, MOST) == MOST && throttle_until(one) == 0);
    throttle_unref(one);
    throttle_unref(other);
    throttle_unref(own);
}

static void test_down_and_up(void **state)
{
    struct throttle *t;
    (void)state;
    assert_int_equal(throttle_get(NULL, &t), 0);
    for (unsigned i = 0; i < 1000; i++)
        throttle_busy(t, MOST, 0);
    assert_true(throttle_limit(t, MOST) >= 1 && throttle_limit(t, MOST) < 1.1);
    throttle_busy(t, 4, 0); /* a small session's: a quarter is its least, and more than there is */
    assert_true(throttle_limit(t, MOST) < 1.1);
    unsigned n = 0;
    for (; throttle_limit(t, MOST) < MOST; n++)
        throttle_good(t, MOST);
    assert_true(n > MOST * MOST / 2 - MOST &&
                n < MOST * MOST / 2 + MOST); /* one more after as many as there may be */
    throttle_unref(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_share), cmocka_unit_test(test_down_and_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
