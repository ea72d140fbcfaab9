/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/size.h"
#include "base/rng.h"

#include <cmocka.h>

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"7b", 7},
        {"512MiB", 512 * MIB},
        {"4g", 4 * GIB},
        {"4G", 4 * GIB},
        {"10GB", 10000000000},
        {"1.5 GiB", 1536 * MIB},
        {"2 tb", 2000000000000},
        {"3T", 3ull << 40},
        {"0.5k", 512},
        {"1.0009765625 K", 1025},
        {"0.0001k", 0},
        {"18446744073709551615", UINT64_MAX},
        {"16777215.99999999999999999t", UINT64_MAX}, /* less than a byte below 16 EiB */
    };
    for (unsigned i = 0; i < ARRAY_LEN(good); i++) {
        uint64_t bytes = 42;
        assert_int_equal(size_parse(good[i].text, &bytes, NULL), 0);
        assert_true(bytes == good[i].bytes);
    }
    static const char *const bad[] = {
        "",
        " ",
        "-1",
        "+1",
        "abc",
        "MiB",
        "1.",
        ".5G",
        "1e9",
        "5 MiB x",
        "1.5.5",
        "0x10",
        "1 KiBB",
        "1,5G",
        "18446744073709551616",
        "16777216T",
        "99999999999999999999999999999999",
        "18446745TB",
    };
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct leat_error err = {0};
        uint64_t bytes = 42;
        assert_int_equal(size_parse(bad[i], &bytes, &err), LEAT_INVALID);
        assert_int_equal(err.code, LEAT_INVALID);
        assert_true(strlen(err.message) > 20);
        assert_int_equal(bytes, 42);
    }
    assert_int_equal(size_parse(NULL, &(uint64_t){0}, NULL), LEAT_INVALID);
}

static void test_durations(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {
        {"0", 0},
        {"120s", 120000000000},
        {"500ms", 500000000},
        {"2m", 120000000000},
        {"2 min", 120000000000},
        {"1.5h", 5400000000000},
        {"1d", 86400000000000},
        {"7ns", 7},
        {"3us", 3000},
        {"0.0000000001s", 0},
    };
    for (unsigned i = 0; i < ARRAY_LEN(good); i++) {
        uint64_t ns = 42;
        assert_int_equal(duration_parse_ns(good[i].text, &ns, NULL), 0);
        assert_true(ns == good[i].ns);
    }
    static const char *const bad[] = {"", "120", "s", "-1s", "5 weeks", "213504d", "1.s", "00x"};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct leat_error err = {0};
        uint64_t ns = 42;
        assert_int_equal(duration_parse_ns(bad[i], &ns, &err), LEAT_INVALID);
        assert_true(strlen(err.message) > 20);
        assert_int_equal(ns, 42);
    }
}

static void test_format(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536 * MIB, "1.5 GiB"},
        {MIB - 1, "1.0 MiB"},
        {GIB * 1024 * 10, "10.0 TiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        char out[SIZE_TEXT_MAX];
        assert_string_equal(size_format(cases[i].bytes, out), cases[i].text);
    }
}

static void test_rng(void **state)
{
    /* The first values of splitmix64 from 1234567, as published with the xoshiro generators' test data. */
    uint64_t s = 1234567;
    assert_true(rng_next(&s) == 6457827717110365317ull);
    assert_true(rng_next(&s) == 3203168211198807973ull);
    assert_true(rng_next(&s) == 9817491932198370423ull);
    assert_true(rng_next(&s) == 4593380528125082431ull);
    assert_true(rng_next(&s) == 16408922859458223821ull);
    assert_true(rng_seed(rng_seed(1, 2), 3) != rng_seed(rng_seed(1, 3), 2));
    unsigned counts[7] = {0};
    for (unsigned i = 0; i < 70000; i++)
        counts[rng_below(&s, 7)]++;
    for (unsigned i = 0; i < 7; i++)
        assert_in_range(counts[i], 9500, 10500);
    assert_int_equal(rng_below(&s, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_durations),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_rng),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
