/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/s3/batch.h"

static int parse(const char *json, struct batch_request *r, struct leat_error *err)
{
    char *exact = malloc(strlen(json) + 1); /* no NUL behind it */
    memcpy(exact, json, strlen(json));
    int rc = batch_request_parse(exact, strlen(json), r, err);
    free(exact);
    return rc;
}

static void test_lists_and_lines(void **state)
{
    static const char *const forms[] = {
        "[{\"key\":\"a\"},{\"key\":\"s.tar\",\"archpath\":\"x/"
        "1\",\"opaque\":\"\"},{\"key\":\"b\",\"range\":\"bytes=5-9\"}]",
        " [ {\"key\" : \"a\"} ,\n{\"opaque\":\"\",\"archpath\":\"x\\/1\",\"key\":\"s.tar\"}, "
        "{\"range\":\"bytes=5-9\",\"key\":\"\\u0062\"} ] \n",
        "{\"key\":\"a\"}\n{\"key\":\"s.tar\",\"archpath\":\"x/"
        "1\",\"opaque\":\"\"}\r\n\n{\"key\":\"b\",\"range\":\"bytes=5-9\"}\n",
        "{\"key\":\"a\"}{\"key\":\"s.tar\",\"archpath\":\"x/"
        "1\",\"opaque\":\"\"}{\"key\":\"b\",\"range\":\"bytes=5-9\"}",
    };
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct batch_request r;
        struct leat_error err = {0};
        if (parse(forms[i], &r, &err) < 0)
            fail_msg("%s: %s", forms[i], err.message);
        assert_int_equal(r.n, 3);
        assert_string_equal(r.entries[0].key, "a");
        assert_true(!r.entries[0].member && !r.entries[0].opaque && !r.entries[0].range);
        assert_string_equal(r.entries[1].key, "s.tar");
        assert_string_equal(r.entries[1].member, "x/1");
        assert_string_equal(r.entries[1].opaque, "");
        assert_string_equal(r.entries[2].key, "b");
        assert_string_equal(r.entries[2].range, "bytes=5-9");
        batch_request_fini(&r);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *json, *why;
    } cases[] = {
        {"", "the batch names nothing"},
        {"[]", "the batch names nothing"},
        {"[", "no end"},
        {"[{\"key\":\"a\"}", "element 2"},
        {"[{\"key\":\"a\"},]", "element 2"},
        {"[{\"key\":\"a\"}]x", "behind the list"},
        {"[{\"key\":\"a\"} {\"key\":\"a\"}]", "a comma"},
        {"{\"key\":\"a\"},{\"key\":\"a\"}", "no comma"},
        {"[,{\"key\":\"a\"}]", "element 1"},
        {"\"key\"", "element 1"},
        {"[\"key\"]", "a list of objects"},
        {"[{\"key\":\"a\"}, 7]", "element 2"},
        {"[{\"key\":\"\"}]", "no key"},
        {"[{}]", "no key"},
        {"[{\"key\":7}]", "to be a string: key"},
        {"[{\"key\":\"a\",\"key\":\"b\"}]", "element 1"},
        {"[{\"key\":\"a\",\"objname\":\"b\"}]", "objname"},
        {"[{\"key\":\"a\",\"archpath\":\"\"}]", "archpath is empty"},
        {"[{\"key\":\"a\",\"archpath\":null}]", "to be a string"},
        {"[{\"key\":\"a\\u0000b\"}]", "element 1"},
        {"[{\"key\":\"\xff\"}]", "element 1"},
        {"[{\"key\":\"a\",\"range\":\"bytes=9-5\"}]", "a range is"},
        {"[{\"key\":\"a\",\"range\":\"bytes=0-1,4-5\"}]", "a range is"},
        {"[{\"key\":\"a\",\"range\":5}]", "to be a string: range"},
        {"[{\"key\":\"a", "no end"},
        {"[{\"key\":\"a]}", "no end"},
        {"{\"key\":\"a\"}}", "an object a line"},
        {"[{\"key\":\"a\"]]", "element 1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct batch_request r;
        struct leat_error err = {0};
        if (parse(cases[i].json, &r, &err) != LEAT_INVALID || !strstr(err.message, cases[i].why))
            fail_msg("%s: %s", cases[i].json, err.message);
    }
}

static void test_limits(void **state)
{
    struct batch_request r;
    struct leat_error err;
    char *many = malloc((BATCH_ENTRIES_MAX + 1) * 12 + 1), *at = many;
    for (unsigned i = 0; i < BATCH_ENTRIES_MAX; i++)
        at += sprintf(at, "{\"key\":\"k\"}\n");
    assert_int_equal(parse(many, &r, &err), 0);
    assert_int_equal(r.n, BATCH_ENTRIES_MAX);
    batch_request_fini(&r);
    sprintf(at, "{\"key\":\"k\"}");
    assert_int_equal(parse(many, &r, &err), LEAT_NO_SPACE);
    free(many);
    assert_int_equal(batch_request_parse("{", BATCH_BYTES_MAX + 1, &r, &err), LEAT_NO_SPACE);
    char *lengthy = malloc(BATCH_ELEMENT_MAX + 100);
    for (size_t len = BATCH_KEY_MAX; len <= BATCH_KEY_MAX + 1; len++) {
        sprintf(lengthy, "[{\"key\":\"%0*d\"}]", (int)len, 0);
        assert_int_equal(parse(lengthy, &r, &err), len <= BATCH_KEY_MAX ? 0 : LEAT_INVALID);
        if (len <= BATCH_KEY_MAX)
            batch_request_fini(&r);
    }
    sprintf(lengthy, "[{\"key\":\"k\"%*s}]", (int)BATCH_ELEMENT_MAX, "");
    assert_int_equal(parse(lengthy, &r, &err), LEAT_NO_SPACE);
    free(lengthy);
}

static void test_parts(void **state)
{
    static const struct {
        const char *range;
        uint64_t bytes, first, count;
        bool none;
    } cases[] = {
        {NULL, 10, 0, 10},
        {NULL, 0, 0, 0},
        {"bytes=0-0", 10, 0, 1},
        {"bytes=0-99", 10, 0, 10},
        {"bytes=9-", 10, 9, 1},
        {"bytes=-3", 10, 7, 3},
        {"bytes=-30", 10, 0, 10},
        {"bytes=10-", 10, .none = true},
        {"bytes=-0", 10, .none = true},
        {"bytes=0-", 0, .none = true},
        {"bytes=0-18446744073709551615", 10, 0, 10},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct batch_entry e = {.range = cases[i].range};
        uint64_t first = 0, count = 0;
        assert_int_equal(batch_entry_part(&e, cases[i].bytes, &first, &count), !cases[i].none);
        assert_true(first == cases[i].first && count == cases[i].count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_and_lines),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
