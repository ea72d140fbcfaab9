/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/pairs.h"

static void test_pairs(void **state)
{
    static const char text[] = "a\0one\0b\0\0a\0two\0cut";
    const size_t whole = sizeof("a\0one\0b\0\0a\0two") /* its last NUL is the value's */;
    struct pair pair = {0};
    (void)state;
    assert_true(pairs_next(text, whole, &pair));
    assert_string_equal(pair.name, "a");
    assert_string_equal(pair.value, "one");
    assert_true(pairs_next(text, whole, &pair));
    assert_string_equal(pair.value, "");
    assert_true(pairs_next(text, whole, &pair));
    assert_string_equal(pair.value, "two");
    assert_false(pairs_next(text, whole, &pair));
    assert_string_equal(pairs_get(text, sizeof(text), "a"), "one");
    assert_null(pairs_get(text, sizeof(text), "cut")); /* it has no value */
    assert_null(pairs_get(text, whole - 1, "c"));
    assert_null(pairs_get("", 0, "a"));
    assert_false(pairs_next(text, 5, &(struct pair){0})); /* "one" does not end */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
