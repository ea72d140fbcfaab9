/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/crc64.h"
#include "base/rng.h"

/* Bit by bit, from the definition. */
static uint64_t slow(const uint8_t *p, size_t n)
{
    uint64_t c = ~0ull;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? (c >> 1) ^ 0x9a6c9329ac4bc9b5ull : c >> 1;
    }
    return ~c;
}

static void test_vectors(void **state)
{
    (void)state;
    static uint8_t buf[4096];
    /* The check value of the catalogue of parametrised CRCs; then those of the NVM Command Set Specification. */
    assert_true(crc64nvme(0, "123456789", 9) == 0xae8b14860a799888ull);
    assert_true(crc64nvme(0, buf, 4096) == 0x6482d367eb22b64eull);
    memset(buf, 0xff, sizeof(buf));
    assert_true(crc64nvme(0, buf, 4096) == 0xc0ddba7302eca3acull);
    for (unsigned i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)i;
    assert_true(crc64nvme(0, buf, 4096) == 0x3e729f5f6750449cull);
    assert_true(crc64nvme(0, buf, 0) == 0);
}

static void test_lengths(void **state)
{
    (void)state;
    static uint8_t buf[1100];
    uint64_t rng = 7;
    for (size_t i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)rng_below(&rng, 256);
    for (size_t n = 0; n <= 1024; n++) {
        size_t at = n % 17, cut = n ? rng_below(&rng, n + 1) : 0;
        uint64_t want = slow(buf + at, n);
        assert_true(crc64nvme(0, buf + at, n) == want);
        assert_true(crc64nvme_table(0, buf + at, n) == want);
        assert_true(crc64nvme(crc64nvme(0, buf + at, cut), buf + at + cut, n - cut) == want);
    }
}

static void test_combine(void **state)
{
    static uint8_t buf[5000];
    for (size_t i = 0; i < sizeof(buf); i++)
        buf[i] = (uint8_t)(i * 31 + i / 7);
    uint64_t whole = crc64nvme(0, buf, sizeof(buf));
    for (size_t cut = 0; cut <= sizeof(buf); cut += 13) {
        uint64_t a = crc64nvme(0, buf, cut), b = crc64nvme(0, buf + cut, sizeof(buf) - cut);
        assert_true(crc64nvme_combine(a, b, sizeof(buf) - cut) == whole);
    }
    /* As many zero bytes in two steps as in one, also very many. */
    uint64_t once = crc64nvme_combine(whole, 0, 1ull << 63);
    uint64_t twice = crc64nvme_combine(crc64nvme_combine(whole, 0, 1ull << 62), 0, 1ull << 62);
    assert_true(once == twice);
    assert_true(crc64nvme_combine(whole, 0, 0) == whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
