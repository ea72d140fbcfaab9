/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/base.h"
#include "base/crc32c.h"

#include <cmocka.h>

/* RFC 3720 appendix B.4, and the usual check value. */
static void test_known(void **state)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    memset(ones, 0xff, sizeof(ones));
    for (unsigned i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    const struct crc32c_impl *impls;
    unsigned n = crc32c_impls(&impls);
    assert_true(n >= 1);
    assert_string_equal(impls[n - 1].name, "table");
    assert_string_equal(impls[0].name, crc32c_impl());
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(impls[i].crc(0, "", 0), 0);
        assert_int_equal(impls[i].crc(0, zeros, 32), 0x8a9136aa);
        assert_int_equal(impls[i].crc(0, ones, 32), 0x62a8ab43);
        assert_int_equal(impls[i].crc(0, up, 32), 0x46dd794e);
        assert_int_equal(impls[i].crc(0, down, 32), 0x113fdb5c);
        assert_int_equal(impls[i].crc(0, "123456789", 9), 0xe3069283);
    }
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
}

static void test_combine(void **state)
{
    uint8_t buf[3000];
    for (unsigned i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)(i * 131 + (i >> 7));
    uint32_t whole = crc32c(0, buf, sizeof(buf));
    for (size_t cut = 0; cut <= sizeof(buf); cut += 37) {
        uint32_t a = crc32c(0, buf, cut), b = crc32c(0, buf + cut, sizeof(buf) - cut);
        assert_int_equal(crc32c_combine(a, b, sizeof(buf) - cut), whole);
        assert_int_equal(crc32c(a, buf + cut, sizeof(buf) - cut), whole);
    }
    /* Lengths no buffer has: shifting by 2^62 four times is shifting by 2^64, that is by 2^64 - 1 and 1. */
    uint32_t four = 0x12345678, other = 0x12345678;
    for (unsigned i = 0; i < 4; i++)
        four = crc32c_combine(four, 0, 1ull << 62);
    other = crc32c_combine(crc32c_combine(other, 0, UINT64_MAX), 0, 1);
    assert_int_equal(four, other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
