/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "wire/http/http_cond.h"

static struct http_text t(const char *s)
{
    return (struct http_text){s, s ? strlen(s) : 0};
}

static void test_ranges(void **state)
{
    static const struct {
        const char *range;
        uint64_t bytes;
        enum http_ranged is;
        uint64_t first, last;
    } cases[] = {
        {"bytes=0-0", 10, HTTP_RANGE_PART, 0, 0},
        {"bytes=0-", 10, HTTP_RANGE_PART, 0, 9},
        {"Bytes=3-100", 10, HTTP_RANGE_PART, 3, 9},
        {"bytes=-3", 10, HTTP_RANGE_PART, 7, 9},
        {"bytes=-30", 10, HTTP_RANGE_PART, 0, 9},
        {"bytes=9-9", 10, HTTP_RANGE_PART, 9, 9},
        {"bytes=10-", 10, HTTP_RANGE_BEYOND, 0, 0},
        {"bytes=0-0", 0, HTTP_RANGE_BEYOND, 0, 0},
        {"bytes=-0", 10, HTTP_RANGE_BEYOND, 0, 0},
        {"bytes=-5", 0, HTTP_RANGE_BEYOND, 0, 0},
        {"bytes=5-4", 10, HTTP_RANGE_NONE, 0, 0},
        {"bytes=0-1,3-4", 10, HTTP_RANGE_NONE, 0, 0},
        {"bytes=", 10, HTTP_RANGE_NONE, 0, 0},
        {"bytes=-", 10, HTTP_RANGE_NONE, 0, 0},
        {"bytes=a-b", 10, HTTP_RANGE_NONE, 0, 0},
        {"bytes=1-99999999999999999999", 10, HTTP_RANGE_NONE, 0, 0},
        {"lines=0-1", 10, HTTP_RANGE_NONE, 0, 0},
        {"", 10, HTTP_RANGE_NONE, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t first = 77, last = 77;
        assert_int_equal(http_range(t(cases[i].range), cases[i].bytes, &first, &last), cases[i].is);
        if (cases[i].is == HTTP_RANGE_PART) {
            assert_int_equal(first, cases[i].first);
            assert_int_equal(last, cases[i].last);
        }
    }
}

static void test_etags(void **state)
{
    static const char *const in[] = {"\"abc\"",         "abc", "*", "W/\"abc\"", "\"x\", \"abc\"", "x, abc ",
                                     " \"abc\" , \"y\""},
                             *const out[] = {"", "\"ab\"", "\"abcd\"", "\"*\"", "ab", "\"x\",\"y\"", "\"abc"};
    for (size_t i = 0; i < ARRAY_LEN(in); i++)
        assert_true(http_etag_in(t(in[i]), "abc", false));
    for (size_t i = 0; i + 1 < ARRAY_LEN(out); i++)
        assert_false(http_etag_in(t(out[i]), "abc", false));
    assert_true(http_etag_in(t("W/\"abc\", \"abc\""), "abc", true));
    assert_false(http_etag_in(t("W/\"abc\""), "abc", true));
}

#define OLD "Sun, 06 Nov 1994 08:49:37 GMT"
#define NEW "Thu, 01 Jan 2026 00:00:00 GMT"

static void test_conditions(void **state)
{
    const struct {
        struct http_conditions c;
        unsigned reads, writes;
    } cases[] = {
        {{.if_match = t("\"e\"")}, 0, 0},
        {{.if_match = t("\"x\"")}, 412, 412},
        {{.if_match = t("\"e\""), .if_unmodified_since = t(OLD)}, 0, 0}, /* the date is not looked at */
        {{.if_match = t("W/\"e\"")}, 412, 412},                          /* of other bytes, perhaps */
        {{.if_none_match = t("W/\"e\"")}, 304, 412},
        {{.if_unmodified_since = t(OLD)}, 412, 412},
        {{.if_unmodified_since = t(NEW)}, 0, 0},
        {{.if_unmodified_since = t("nonsense")}, 0, 0},
        {{.if_none_match = t("\"e\"")}, 304, 412},
        {{.if_none_match = t("*")}, 304, 412},
        {{.if_none_match = t("\"x\"")}, 0, 0},
        {{.if_none_match = t("\"x\""), .if_modified_since = t(NEW)}, 0, 0}, /* the date is not looked at */
        {{.if_modified_since = t(NEW)}, 304, 0},
        {{.if_modified_since = t(OLD)}, 0, 0},
        {{.if_match = t("\"x\""), .if_none_match = t("\"e\"")}, 412, 412},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(http_conditions_check(&cases[i].c, "e", 1000000000, true), cases[i].reads);
        assert_int_equal(http_conditions_check(&cases[i].c, "e", 1000000000, false), cases[i].writes);
    }
}

/* Another part of the same bytes, or none: a copy that is put together of two versions is no object. */
static void test_if_range(void **state)
{
    assert_true(http_range_holds(t("\"e\""), "e", 784111777));
    assert_true(http_range_holds(t(OLD), "e", 784111777));
    assert_false(http_range_holds(t("W/\"e\""), "e", 784111777));
    assert_false(http_range_holds(t("\"x\""), "e", 784111777));
    assert_false(http_range_holds(t(NEW), "e", 784111777));
    assert_false(http_range_holds(t(OLD), "e", 784111778));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_etags),
                                       cmocka_unit_test(test_conditions), cmocka_unit_test(test_if_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
