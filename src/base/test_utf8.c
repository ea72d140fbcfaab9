/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/utf8.h"

#include <cmocka.h>

static void test_lengths(void **state)
{
    static const struct {
        const char *s;
        unsigned n;
    } cases[] = {{"a", 1},
                 {"\xc3\xa9", 2},
                 {"\xe2\x82\xac", 3},
                 {"\xf0\x9f\x98\x80", 4},
                 {"\xf4\x8f\xbf\xbf", 4},
                 {"\xe9", 0},
                 {"\xc3", 0},
                 {"\xc0\x80", 0},
                 {"\xe0\x80\x80", 0},
                 {"\xed\xa0\x80", 0},
                 {"\xf4\x90\x80\x80", 0},
                 {"\xf5\x80\x80\x80", 0},
                 {"\x80", 0}};
    for (unsigned k = 0; k < ARRAY_LEN(cases); k++)
        assert_int_equal(utf8_length((const unsigned char *)cases[k].s, strlen(cases[k].s)), cases[k].n);
    assert_int_equal(utf8_length((const unsigned char *)"", 0), 0);
}

static void test_escapes(void **state)
{
    static const char *const cases[][2] = {{"", ""},
                                           {"/data/a.npy", "/data/a.npy"},
                                           {"/data/caf\xc3\xa9", "/data/caf\xc3\xa9"},
                                           {"/data/a\\xe9", "/data/a\\xe9"},
                                           {"/data/caf\xe9", "/data/caf\\xe9"},
                                           {"\xff\\n\xc3\xa9", "\\xff\\\\n\xc3\xa9"},
                                           {"\xff\xfe\xfd", "\\xff\\xfe\\xfd"}};
    for (unsigned k = 0; k < ARRAY_LEN(cases); k++) {
        char *got = utf8_escape(cases[k][0]);
        assert_string_equal(got, cases[k][1]);
        free(got);
    }
}

static void test_shown(void **state)
{
    static const char *const cases[][2] = {{"", ""},
                                           {"/data/caf\xc3\xa9 \\x", "/data/caf\xc3\xa9 \\x"},
                                           {"a\nb\x1b[31m\x7f\t", "a\\x0ab\\x1b[31m\\x7f\\x09"},
                                           {"\xc2\x9b"
                                            "31m\xc2\xa0",
                                            "\\xc2\\x9b"
                                            "31m\xc2\xa0"},
                                           {"\x9b\xff", "\\x9b\\xff"}};
    char out[64];
    for (unsigned k = 0; k < ARRAY_LEN(cases); k++) {
        size_t len = strlen(cases[k][0]);
        assert_int_equal(utf8_show(cases[k][0], len, out, sizeof(out)), len);
        assert_string_equal(out, cases[k][1]);
        /* Cut anywhere: a beginning of the whole, with no half of anything. */
        for (size_t cap = 1; cap <= strlen(cases[k][1]); cap++) {
            char cut[64];
            size_t used = utf8_show(cases[k][0], len, cut, cap);
            assert_true(used < len && strlen(cut) < cap);
            utf8_show(cases[k][0], used, out, sizeof(out));
            assert_string_equal(cut, out);
        }
    }
    assert_int_equal(utf8_printable((const unsigned char *)"\xe2\x82\xac", 3), 3);
    assert_int_equal(utf8_printable((const unsigned char *)"", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lengths), cmocka_unit_test(test_escapes),
                                       cmocka_unit_test(test_shown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
