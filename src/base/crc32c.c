/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.c: the portable implementation, combining, and the choice made at load time.
 *
 * A CRC register here holds a polynomial over GF(2) with bit 31 as x^0 (reflected). Appending n zero bytes to a
 * message multiplies its register by x^(8n) modulo P, and CRCs are linear, so
 *     crc(a‖b) = crc(a) * x^(8 |b|) + crc(b)
 * holds for the finished values too: the inversions before and after cancel (the identity zlib's crc32_combine
 * uses). Multiplying by x^(8n) walks the bits of n with x^(2^k) at hand.
 */
#include "base/base.h"
#include "base/crc32c_internal.h"

#define POLY 0x82f63b78u

static uint32_t slices[8][256]; /* slices[k][b]: the byte b followed by k zero bytes */
static uint32_t powers[31];     /* powers[k] = x^(2^k) mod P */

static struct crc32c_impl impls[CRC32C_ARCH_IMPLS + 1];
static unsigned impl_count;
static struct crc32c_impl chosen;

static uint32_t mulmod(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? (b >> 1) ^ POLY : b >> 1;
    }
    return product;
}

uint32_t crc32c_power(uint64_t n, unsigned k)
{
    uint32_t power = 1u << 31; /* x^0 */
    /* P = (x + 1) * (a primitive polynomial of degree 31), so x^(2^31) = x: the powers repeat with period 31. */
    for (; n; n >>= 1, k++) {
        if (n & 1)
            power = mulmod(powers[k % ARRAY_LEN(powers)], power);
    }
    return power;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b)
{
    return mulmod(crc32c_power(bytes_b, 3), crc_a) ^ crc_b;
}

static inline uint64_t load_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

/* Slicing by 8 (Kounavis and Berry, "A Systematic Approach to Building High Performance, Software-based, CRC
 * Generators", 2005). */
static uint32_t table_crc(uint32_t crc, const void *buf, size_t bytes)
{
    const uint8_t *p = buf;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t v = load_le64(p) ^ crc;
        crc = slices[7][v & 0xff] ^ slices[6][(v >> 8) & 0xff] ^ slices[5][(v >> 16) & 0xff] ^
              slices[4][(v >> 24) & 0xff] ^ slices[3][(v >> 32) & 0xff] ^ slices[2][(v >> 40) & 0xff] ^
              slices[1][(v >> 48) & 0xff] ^ slices[0][v >> 56];
    }
    for (; bytes; bytes--, p++)
        crc = (crc >> 8) ^ slices[0][(crc ^ *p) & 0xff];
    return ~crc;
}

/* Copies piece by piece, so that the checksum finds the piece in the first-level cache. */
static uint32_t table_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                           const void *next, size_t next_bytes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    if (next)
        crc32c_copy_prefetch(next, next_bytes);
    while (bytes) {
        size_t piece = MIN(bytes, (size_t)4096);
        memcpy(to, from, piece);
        crc = table_crc(crc, to, piece);
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return crc;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
unsigned crc32c_arch_impls(struct crc32c_impl arch[CRC32C_ARCH_IMPLS])
{
    return 0;
}
#endif

/* Before anything else of ours that runs at load time. */
__attribute__((constructor(101))) static void choose(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ POLY : crc >> 1;
        slices[0][i] = crc;
    }
    for (unsigned k = 1; k < 8; k++) {
        for (unsigned i = 0; i < 256; i++)
            slices[k][i] = (slices[k - 1][i] >> 8) ^ slices[0][slices[k - 1][i] & 0xff];
    }
    powers[0] = 1u << 30; /* x^1 */
    for (unsigned k = 1; k < ARRAY_LEN(powers); k++)
        powers[k] = mulmod(powers[k - 1], powers[k - 1]);

    impl_count = crc32c_arch_impls(impls);
    impls[impl_count++] = (struct crc32c_impl){.name = "table", .crc = table_crc, .copy = table_copy};
    chosen = impls[0];
}

uint32_t crc32c(uint32_t crc, const void *buf, size_t bytes)
{
    return chosen.crc(crc, buf, bytes);
}

uint32_t crc32c_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes)
{
    return chosen.copy(crc, dst, src, bytes, NULL, 0);
}

uint32_t crc32c_copy_ahead(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                           const void *next, size_t next_bytes)
{
    return chosen.copy(crc, dst, src, bytes, next, next ? MIN(next_bytes, (size_t)CRC32C_AHEAD) : 0);
}

const char *crc32c_impl(void)
{
    return chosen.name;
}

unsigned crc32c_impls(const struct crc32c_impl **ret_impls)
{
    *ret_impls = impls;
    return impl_count;
}
