/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/setting.h"

static void test_values(void **state)
{
    struct leat_error err = {0};
    bool yes = false;
    unsigned n = 7;
    uint64_t bytes = 5;
    char *text = NULL;
    assert_int_equal(setting_bool(&yes, "k", "on", &err), 0);
    assert_true(yes);
    assert_int_equal(setting_bool(&yes, "k", "maybe", &err), LEAT_INVALID);
    assert_string_equal(err.message, "k = maybe: give yes or no");
    assert_true(yes);
    static const char *const bad[] = {"", "0", "11", "3x", "-3", "99999999999999999999"};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(setting_count(&n, "k", bad[i], 1, 10, &err), LEAT_INVALID);
    assert_int_equal(n, 7);
    assert_int_equal(setting_count(&n, "k", "10", 1, 10, &err), 0);
    assert_int_equal(n, 10);
    assert_int_equal(setting_bytes(&bytes, "k", "1MiB", 2 * MIB, &err), LEAT_INVALID);
    assert_int_equal(setting_bytes(&bytes, "k", "1 elephant", 0, &err), LEAT_INVALID);
    assert_int_equal(bytes, 5);
    assert_int_equal(setting_bytes(&bytes, "k", "2MiB", 2 * MIB, &err), 0);
    assert_int_equal(bytes, 2 * MIB);
    assert_int_equal(setting_text(&text, "one", &err), 0);
    assert_int_equal(setting_text(&text, "two", &err), 0);
    assert_string_equal(text, "two");
    free(text);
}

static void test_words(void **state)
{
    char **words = NULL;
    unsigned n = 0;
    assert_int_equal(setting_add_words(&words, &n, " , ", NULL), 0);
    assert_int_equal(n, 0);
    assert_int_equal(setting_add_words(&words, &n, "a, b\tc,,d", NULL), 0);
    assert_int_equal(setting_add_word(&words, &n, "e f, g", NULL), 0);
    static const char *const expected[] = {"a", "b", "c", "d", "e f, g"};
    assert_int_equal(n, ARRAY_LEN(expected));
    for (unsigned i = 0; i < n; i++)
        assert_string_equal(words[i], expected[i]);
    assert_null(words[n]);
    setting_words_free(words);
    setting_words_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
