/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/bytes.h"
#include "base/hex.h"

#include <cmocka.h>

static void test_round_trip(void **state)
{
    struct bytes_out out = {0};
    bytes_put_u8(&out, 0xab);
    bytes_put_u32(&out, 0xdeadbeef);
    bytes_put_u64(&out, 0x0123456789abcdefull);
    bytes_put_str(&out, "weather");
    bytes_put_str(&out, NULL);
    for (unsigned i = 0; i < 1000; i++)
        bytes_put(&out, "0123456789", 10);
    assert_false(out.failed);
    assert_memory_equal(out.data, "\xab\xef\xbe\xad\xde\xef\xcd\xab\x89\x67\x45\x23\x01\x07\0\0\0weather",
                        24);

    struct bytes_in in = bytes_in_of(out.data, out.len);
    assert_int_equal(bytes_get_u8(&in), 0xab);
    assert_int_equal(bytes_get_u32(&in), 0xdeadbeef);
    assert_true(bytes_get_u64(&in) == 0x0123456789abcdefull);
    AUTO_FREE char *s = bytes_get_str(&in, 7), *empty = bytes_get_str(&in, 0);
    assert_string_equal(s, "weather");
    assert_string_equal(empty, "");
    assert_int_equal(bytes_in_done(&in), -EBADMSG); /* not at the end yet */
    for (unsigned i = 0; i < 1000; i++)
        assert_memory_equal(bytes_get(&in, 10), "0123456789", 10);
    assert_int_equal(bytes_in_done(&in), 0);

    size_t cap = out.cap;
    bytes_out_reset(&out);
    assert_int_equal(out.len, 0);
    assert_int_equal(out.cap, cap);
    bytes_out_fini(&out);
    bytes_out_fini(&out);
}

static void test_bad_input(void **state)
{
    struct bytes_in in = bytes_in_of("\1\2\3", 3);
    assert_int_equal(bytes_get_u32(&in), 0);
    assert_true(in.bad);
    assert_int_equal(bytes_get_u8(&in), 0); /* stays bad */
    assert_int_equal(bytes_in_done(&in), -EBADMSG);

    in = bytes_in_of("\xff\xff\xff\xff!", 5);
    assert_null(bytes_get_str(&in, SIZE_MAX));
    assert_true(in.bad);

    in = bytes_in_of("\3\0\0\0abc", 7);
    assert_null(bytes_get_str(&in, 2));
    assert_true(in.bad);

    in = bytes_in_of("\3\0\0\0a\0c", 7);
    assert_null(bytes_get_str(&in, 3));
    assert_true(in.bad);

    in = bytes_in_of(NULL, 0);
    assert_non_null(bytes_get(&in, 0));
    assert_int_equal(bytes_in_done(&in), 0);
}

/* A length that does not fit fails for good, and the contents so far can still be freed. */
static void test_out_too_large(void **state)
{
    volatile size_t most = SIZE_MAX; /* not known to the compiler, which would warn of it */
    struct bytes_out out = {0};
    bytes_put_u8(&out, 1);
    bytes_put(&out, &out, most);
    assert_true(out.failed);
    bytes_put_u8(&out, 2);
    assert_int_equal(out.len, 1);
    bytes_out_reset(&out);
    assert_false(out.failed);
    bytes_put_u8(&out, 3);
    assert_int_equal(out.len, 1);
    bytes_out_fini(&out);
}

static void test_hex(void **state)
{
    uint8_t all[256], back[256];
    char text[2 * sizeof(all) + 1];
    for (unsigned i = 0; i < sizeof(all); i++)
        all[i] = (uint8_t)i;
    hex_put(text, all, sizeof(all));
    assert_int_equal(strlen(text), 512);
    assert_memory_equal(text, "000102", 6);
    assert_string_equal(text + 508, "feff");
    assert_true(hex_get(text, sizeof(back), back));
    assert_memory_equal(all, back, sizeof(all));
    hex_put(text, all, 0);
    assert_string_equal(text, "");
    assert_true(hex_get("", 0, back));
    assert_true(hex_get("ab/", 1, back)); /* what is behind them is not looked at */
    assert_true(hex_digit('F') < 0 && hex_digit_any('F') == 15 && hex_digit_any('f') == 15);
    assert_true(hex_digit_any('G') < 0 && hex_digit_any('@') < 0 && hex_digit_any('9') == 9);
    static const char *const wrong[] = {"", "a", "0g", "g0", "AB", " 1", "1 ", "0x", "-1"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_false(hex_get(wrong[i], 1, back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_out_too_large),
        cmocka_unit_test(test_hex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
