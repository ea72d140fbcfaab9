/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc64.c: slicing by 8 (Kounavis and Berry 2005) everywhere; on x86-64 the message is folded by carry-less multiplication (Gopal et al., "Fast
 * CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
 *
 * The algebra of the folding. A 64-bit register holds a polynomial reflected: bit i is x^(63-i). clmul of two of them, read as a reflected
 * 128-bit register, is a * b * x. An accumulator's low half stands for a * x^64, its high half for b. Moving it D bits to the front of the message
 * multiplies by x^D: low by x^(D+64), high by x^D, each less one for the x that clmul brings. What is left at the end, 16 bytes, goes through
 * the tables.
 */
#include "base/crc64.h"

#include "base/base.h"

#define POLY 0x9a6c9329ac4bc9b5ull

static uint64_t slices[8][256];
static uint64_t (*chosen)(uint64_t crc, const void *buf, size_t bytes);

static uint64_t step_bytes(uint64_t c, const uint8_t *p, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap64(v);
#endif
        v ^= c;
        c = slices[7][v & 0xff] ^ slices[6][(v >> 8) & 0xff] ^ slices[5][(v >> 16) & 0xff] ^
            slices[4][(v >> 24) & 0xff] ^ slices[3][(v >> 32) & 0xff] ^ slices[2][(v >> 40) & 0xff] ^
            slices[1][(v >> 48) & 0xff] ^ slices[0][v >> 56];
    }
    for (; bytes; bytes--, p++)
        c = (c >> 8) ^ slices[0][(c ^ *p) & 0xff];
    return c;
}

uint64_t crc64nvme_table(uint64_t crc, const void *buf, size_t bytes)
{
    return ~step_bytes(~crc, buf, bytes);
}

/* a * b modulo the polynomial, reflected: bit 63 is x^0. */
static uint64_t mulmod(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (uint64_t bit = 1ull << 63; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? (b >> 1) ^ POLY : b >> 1;
    }
    return product;
}

/* As crc32c_combine: b's zero bytes behind a multiply it by x^(8 |b|), and the inversions cancel. */
uint64_t crc64nvme_combine(uint64_t crc_a, uint64_t crc_b, uint64_t bytes_b)
{
    uint64_t shift = 1ull << 63, square = 1ull << 55; /* x^0; x^8 */
    for (uint64_t n = bytes_b; n; n >>= 1) {
        if (n & 1)
            shift = mulmod(shift, square);
        square = mulmod(square, square);
    }
    return mulmod(shift, crc_a) ^ crc_b;
}

#ifdef __x86_64__
#    include <immintrin.h>
#    define TARGET __attribute__((target("sse4.1,pclmul")))

static uint64_t fold_512[2], fold_128[2]; /* for the low half, for the high half */

/* x^n modulo the polynomial, reflected. n > 63. */
static uint64_t power(unsigned n)
{
    uint64_t v = 1; /* x^63 */
    for (unsigned i = 63; i < n; i++)
        v = v & 1 ? (v >> 1) ^ POLY : v >> 1;
    return v;
}

TARGET static inline __m128i fold(__m128i acc, __m128i k, __m128i with)
{
    return _mm_xor_si128(
        with, _mm_xor_si128(_mm_clmulepi64_si128(acc, k, 0x00), _mm_clmulepi64_si128(acc, k, 0x11)));
}

TARGET static uint64_t pclmul_crc(uint64_t crc, const void *buf, size_t bytes)
{
    const uint8_t *p = buf;
    uint64_t c = ~crc;
    if (bytes >= 128) {
        const __m128i k512 = _mm_loadu_si128((const __m128i *)fold_512);
        const __m128i k128 = _mm_loadu_si128((const __m128i *)fold_128);
        __m128i a[4];
        for (int i = 0; i < 4; i++)
            a[i] = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        a[0] = _mm_xor_si128(a[0], _mm_cvtsi64_si128((long long)c));
        for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
            for (int i = 0; i < 4; i++)
                a[i] = fold(a[i], k512, _mm_loadu_si128((const __m128i *)(p + 16 * i)));
        }
        uint8_t rest[16];
        _mm_storeu_si128((__m128i *)rest, fold(fold(fold(a[0], k128, a[1]), k128, a[2]), k128, a[3]));
        c = step_bytes(0, rest, sizeof(rest));
    }
    return ~step_bytes(c, p, bytes);
}
#endif

__attribute__((constructor(101))) static void choose(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t crc = i;
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ POLY : crc >> 1;
        slices[0][i] = crc;
    }
    for (unsigned k = 1; k < 8; k++) {
        for (unsigned i = 0; i < 256; i++)
            slices[k][i] = (slices[k - 1][i] >> 8) ^ slices[0][slices[k - 1][i] & 0xff];
    }
    chosen = crc64nvme_table;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        fold_512[0] = power(512 + 64 - 1);
        fold_512[1] = power(512 - 1);
        fold_128[0] = power(128 + 64 - 1);
        fold_128[1] = power(128 - 1);
        chosen = pclmul_crc;
    }
#endif
}

uint64_t crc64nvme(uint64_t crc, const void *buf, size_t bytes)
{
    return chosen(crc, buf, bytes);
}
