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

static uint64_t next_random(uint64_t *state)
{
    uint64_t v = *state; /* xorshift64: any noise will do */
    v ^= v << 13;
    v ^= v >> 7;
    v ^= v << 17;
    return *state = v;
}

#define GUARD 64

/* One buffer against the last implementation, the table: checksum, copy, and nothing touched around the copy. */
static void check_one(const struct crc32c_impl *impl, const struct crc32c_impl *table, uint32_t seed,
                      const uint8_t *src, size_t bytes, uint8_t *area, size_t dst_at)
{
    uint32_t want = table->crc(seed, src, bytes);
    assert_int_equal(impl->crc(seed, src, bytes), want);
    memset(area + dst_at - GUARD, 0xa5, bytes + 2 * GUARD);
    /* What comes next is only asked for, whatever its length. */
    const uint8_t *next = seed % 3 ? src + seed % 61 : NULL;
    assert_int_equal(impl->copy(seed, area + dst_at, src, bytes, next, next && bytes ? seed % bytes : 0),
                     want);
    assert_memory_equal(area + dst_at, src, bytes);
    for (unsigned i = 0; i < GUARD; i++) {
        assert_int_equal(area[dst_at - GUARD + i], 0xa5);
        assert_int_equal(area[dst_at + bytes + i], 0xa5);
    }
}

static void test_against_table(void **state)
{
    enum { MOST = 3 << 20 };
    AUTO_FREE uint8_t *src = malloc(MOST + 128), *area = aligned_alloc(64, MOST + 4 * GUARD + 128);
    assert_non_null(src);
    assert_non_null(area);
    uint64_t random = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < MOST + 128; i += 8)
        memcpy(src + i, &(uint64_t){next_random(&random)}, 8);
    const struct crc32c_impl *impls;
    unsigned n = crc32c_impls(&impls);
    for (unsigned i = 0; i < n; i++) {
        for (size_t bytes = 0; bytes <= 1100; bytes++) {
            for (unsigned shift = 0; shift < 16; shift++) {
                /* Sources and destinations of every alignment within 8 and many within 64. */
                unsigned from = (unsigned)(bytes + shift) % 64, to = (shift * 13 + (unsigned)bytes / 3) % 64;
                check_one(&impls[i], &impls[n - 1], (uint32_t)next_random(&random), src + from, bytes, area,
                          GUARD + to);
            }
        }
        for (unsigned round = 0; round < 60; round++) {
            size_t bytes = next_random(&random) % (round % 4 ? 20000 : MOST);
            check_one(&impls[i], &impls[n - 1], (uint32_t)next_random(&random),
                      src + next_random(&random) % 128, bytes, area, GUARD + next_random(&random) % 128);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_against_table),
        cmocka_unit_test(test_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
