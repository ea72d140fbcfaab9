/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c_x86.c: CRC32C with the instructions of x86-64, alone and fused into a copy.
 *
 * sse42: the crc32 instruction has a latency of 3 cycles and a throughput of 1. So three stretches of a
 * buffer are checksummed side by side and joined by a carry-less multiplication each (Gopal et al., "Fast CRC
 * Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011).
 *
 * avx512: the message is folded (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel 2009), here with 16 accumulators of 128 bits in four registers: 256 bytes a turn.
 *
 * The algebra of both. A register of w bits holds a polynomial reflected: bit i is x^(w-1-i). The product of two
 * 64-bit registers, read as a 128-bit one, is a * b * x. A 32-bit remainder c, shifted left by one and read as a
 * 64-bit register, is c * x^31. So clmul(a, c << 1) = a * c * x^32. The first 64 bits of an accumulator are worth
 * a * x^64, the last 64 are worth a; moving the accumulator D bits towards the front of the message multiplies by
 * x^D. Hence the constants x^(D+32) and x^(D-32) modulo P.
 *
 * Copies: the checksum and the store use the same register. So a source that changes at the same time cannot
 * make the checksum differ from the destination.
 */
#include "base/base.h"
#include "base/crc32c_internal.h"

#ifdef __x86_64__
#    include <immintrin.h>

#    define INLINE        static inline __attribute__((always_inline))
#    define TARGET_SSE42  __attribute__((target("sse4.2,pclmul")))
#    define TARGET_AVX512 __attribute__((target("sse4.2,pclmul,avx,avx2,avx512f,vpclmulqdq")))

/* ---- sse42 ---- */

#    define LONG_STRETCH  1024
#    define SHORT_STRETCH 128

struct join {
    uint64_t one, two; /* x^(8n - 33) for n = one stretch and two */
};
static struct join join_long, join_short;

/* Plain, for heads, tails and short buffers. A register value in and out, not a finished CRC. */
INLINE TARGET_SSE42 uint64_t step_bytes(uint64_t c, uint8_t *dst, const uint8_t *src, size_t bytes,
                                        const bool copy)
{
    for (; bytes >= 8; bytes -= 8, src += 8) {
        uint64_t v;
        memcpy(&v, src, 8);
        if (copy) {
            memcpy(dst, &v, 8);
            dst += 8;
        }
        c = _mm_crc32_u64(c, v);
    }
    for (; bytes; bytes--, src++) {
        uint8_t v = *(const volatile uint8_t *)src; /* one load: see "Copies" above */
        if (copy)
            *dst++ = v;
        c = _mm_crc32_u8((uint32_t)c, v);
    }
    return c;
}

/* crc32 multiplies its operand by x^32, clmul of two 32-bit remainders gives a * b * x in 64 bits. */
INLINE TARGET_SSE42 uint64_t shift_register(uint64_t c, uint64_t k)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)c), _mm_cvtsi64_si128((long long)k), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

INLINE TARGET_SSE42 __m128i take_16(uint8_t *dst, const uint8_t *src, size_t at, const bool copy)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(src + at));
    if (copy)
        _mm_storeu_si128((__m128i *)(dst + at), v);
    return v;
}

INLINE TARGET_SSE42 uint64_t step_three(uint64_t c, uint8_t *dst, const uint8_t *src, const size_t stretch,
                                        const struct join *join, const bool copy, const bool ahead,
                                        const uint8_t *next)
{
    uint64_t c1 = 0, c2 = 0;
    for (size_t i = 0; i < stretch; i += 16) {
        if (ahead) { /* the same place of the next three stretches */
            _mm_prefetch((const char *)src + 3 * stretch + i, _MM_HINT_T0);
            _mm_prefetch((const char *)src + 4 * stretch + i, _MM_HINT_T0);
            _mm_prefetch((const char *)src + 5 * stretch + i, _MM_HINT_T0);
        } else if (copy && i % 64 == 0 && next) {
            for (unsigned part = 0; part < 3; part++)
                _mm_prefetch((const char *)next + part * stretch + i, _MM_HINT_T0);
        }
        __m128i v = take_16(dst, src, i, copy);
        __m128i v1 = take_16(dst, src, stretch + i, copy);
        __m128i v2 = take_16(dst, src, 2 * stretch + i, copy);
        c = _mm_crc32_u64(c, (uint64_t)_mm_cvtsi128_si64(v));
        c1 = _mm_crc32_u64(c1, (uint64_t)_mm_cvtsi128_si64(v1));
        c2 = _mm_crc32_u64(c2, (uint64_t)_mm_cvtsi128_si64(v2));
        c = _mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(v, 1));
        c1 = _mm_crc32_u64(c1, (uint64_t)_mm_extract_epi64(v1, 1));
        c2 = _mm_crc32_u64(c2, (uint64_t)_mm_extract_epi64(v2, 1));
    }
    return shift_register(c, join->two) ^ shift_register(c1, join->one) ^ c2;
}

/* The address of `bytes` of next, which moves on; NULL: it has fewer. */
INLINE const uint8_t *ask(const uint8_t **next, size_t *next_bytes, size_t bytes)
{
    const uint8_t *from = *next;
    if (*next_bytes < bytes)
        return NULL;
    *next += bytes;
    *next_bytes -= bytes;
    return from;
}

INLINE TARGET_SSE42 uint32_t sse42_run(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t bytes,
                                       const bool copy, const uint8_t *next, size_t next_bytes)
{
    uint64_t c = ~crc;
    for (; bytes >= 3 * LONG_STRETCH; bytes -= 3 * LONG_STRETCH) {
        if (copy && bytes >= 6 * LONG_STRETCH)
            c = step_three(c, dst, src, LONG_STRETCH, &join_long, copy, true, NULL);
        else
            c = step_three(c, dst, src, LONG_STRETCH, &join_long, copy, false,
                           ask(&next, &next_bytes, 3 * (size_t)LONG_STRETCH));
        src += 3 * LONG_STRETCH;
        dst = copy ? dst + 3 * LONG_STRETCH : NULL;
    }
    for (; bytes >= 3 * SHORT_STRETCH; bytes -= 3 * SHORT_STRETCH) {
        c = step_three(c, dst, src, SHORT_STRETCH, &join_short, copy, false,
                       ask(&next, &next_bytes, 3 * (size_t)SHORT_STRETCH));
        src += 3 * SHORT_STRETCH;
        dst = copy ? dst + 3 * SHORT_STRETCH : NULL;
    }
    return ~(uint32_t)step_bytes(c, dst, src, bytes, copy);
}

TARGET_SSE42 static uint32_t sse42_crc(uint32_t crc, const void *buf, size_t bytes)
{
    return sse42_run(crc, NULL, buf, bytes, false, NULL, 0);
}

TARGET_SSE42 static uint32_t sse42_copy(uint32_t crc, void *restrict dst, const void *restrict src,
                                        size_t bytes, const void *next, size_t next_bytes)
{
    return sse42_run(crc, dst, src, bytes, true, next, next_bytes);
}

static void sse42_init(void)
{
    join_long =
        (struct join){crc32c_power(8 * LONG_STRETCH - 33, 0), crc32c_power(16 * LONG_STRETCH - 33, 0)};
    join_short =
        (struct join){crc32c_power(8 * SHORT_STRETCH - 33, 0), crc32c_power(16 * SHORT_STRETCH - 33, 0)};
}

/* ---- avx512 ---- */

/* Pairs x^(D+32), x^(D-32), shifted left by one. */
static uint64_t fold_2048[2], fold_512[2];
static uint64_t fold_lanes[8]; /* D = 384, 256, 128, and nothing for the last lane */

/*
 * Copies from here on bypass the caches on their way out: the destination is not read first. That saves a
 * third of the traffic, and up to a fifth of the time when several threads gather (AMD EPYC 9005, random
 * samples out of 2 GiB). Smaller samples stay in the caches, where a consumer on the CPU finds them.
 */
#    define STREAM_BYTES (32 * 1024)
/* The hardware prefetchers stop at the end of a page; a streaming copy asks for the next one itself. */
#    define STREAM_AHEAD 4096

INLINE TARGET_AVX512 __m512i fold(__m512i acc, __m512i k, __m512i with)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(acc, k, 0x00),
                                     _mm512_clmulepi64_epi128(acc, k, 0x11), with,
                                     0x96); /* 0x96: exclusive or of three */
}

INLINE TARGET_AVX512 __m512i broadcast_pair(const uint64_t pair[2])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)pair));
}

/* 64 bytes out of src, and into dst on the way. A streaming store wants dst aligned to 64. */
INLINE TARGET_AVX512 __m512i take(uint8_t *dst, const uint8_t *src, size_t at, const bool copy,
                                  const bool stream)
{
    __m512i v = _mm512_loadu_si512(src + at);
    if (copy && stream)
        _mm512_stream_si512((__m512i *)(dst + at), v);
    else if (copy)
        _mm512_storeu_si512(dst + at, v);
    return v;
}

INLINE TARGET_AVX512 uint64_t reduce(__m512i acc)
{
    /* The first three lanes move onto the last one. */
    __m512i k = _mm512_loadu_si512(fold_lanes);
    __m512i moved =
        _mm512_xor_si512(_mm512_clmulepi64_epi128(acc, k, 0x00), _mm512_clmulepi64_epi128(acc, k, 0x11));
    __m128i last = _mm512_extracti32x4_epi32(acc, 3);
    last = _mm_xor_si128(last, _mm512_castsi512_si128(moved));
    last = _mm_xor_si128(last, _mm512_extracti32x4_epi32(moved, 1));
    last = _mm_xor_si128(last, _mm512_extracti32x4_epi32(moved, 2));
    /* 128 bits of message are left, and the crc32 instruction divides them. */
    uint64_t c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last));
    return _mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(last, 1));
}

INLINE void ask_256(const uint8_t *from)
{
    for (unsigned line = 0; from && line < 256; line += 64)
        _mm_prefetch((const char *)from + line, _MM_HINT_T0);
}

INLINE TARGET_AVX512 uint32_t avx512_run(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t bytes,
                                         const bool copy, const bool stream, const uint8_t *next,
                                         size_t next_bytes)
{
    uint64_t c = ~crc;
    if (stream) {
        size_t head = MIN((size_t)(-(uintptr_t)dst & 63), bytes);
        c = step_bytes(c, dst, src, head, copy);
        src += head;
        dst += head;
        bytes -= head;
    }
    if (bytes >= 64) {
        __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)(uint32_t)c));
        const __m512i k512 = broadcast_pair(fold_512);
        size_t at = 0;
        __m512i a0;
        if (bytes >= 512) {
            const __m512i k2048 = broadcast_pair(fold_2048);
            a0 = _mm512_xor_si512(take(dst, src, 0, copy, stream), first);
            __m512i a1 = take(dst, src, 64, copy, stream);
            __m512i a2 = take(dst, src, 128, copy, stream);
            __m512i a3 = take(dst, src, 192, copy, stream);
            at = 256;
            if (copy && stream) {
                /* Never past the end: there the next sample is asked for. */
                for (; bytes - at >= 256 + STREAM_AHEAD; at += 256) {
                    ask_256(src + at + STREAM_AHEAD);
                    a0 = fold(a0, k2048, take(dst, src, at, copy, stream));
                    a1 = fold(a1, k2048, take(dst, src, at + 64, copy, stream));
                    a2 = fold(a2, k2048, take(dst, src, at + 128, copy, stream));
                    a3 = fold(a3, k2048, take(dst, src, at + 192, copy, stream));
                }
            }
            for (; bytes - at >= 256; at += 256) {
                if (copy)
                    ask_256(ask(&next, &next_bytes, 256));
                a0 = fold(a0, k2048, take(dst, src, at, copy, stream));
                a1 = fold(a1, k2048, take(dst, src, at + 64, copy, stream));
                a2 = fold(a2, k2048, take(dst, src, at + 128, copy, stream));
                a3 = fold(a3, k2048, take(dst, src, at + 192, copy, stream));
            }
            a0 = fold(fold(fold(a0, k512, a1), k512, a2), k512, a3);
        } else {
            a0 = _mm512_xor_si512(take(dst, src, 0, copy, stream), first);
            at = 64;
        }
        for (; bytes - at >= 64; at += 64)
            a0 = fold(a0, k512, take(dst, src, at, copy, stream));
        c = reduce(a0);
        src += at;
        dst = copy ? dst + at : NULL;
        bytes -= at;
    }
    c = step_bytes(c, dst, src, bytes, copy);
    if (stream)
        _mm_sfence(); /* streaming stores are not ordered with the store that will publish the slot */
    return ~(uint32_t)c;
}

TARGET_AVX512 static uint32_t avx512_crc(uint32_t crc, const void *buf, size_t bytes)
{
    return avx512_run(crc, NULL, buf, bytes, false, false, NULL, 0);
}

TARGET_AVX512 static uint32_t avx512_copy(uint32_t crc, void *restrict dst, const void *restrict src,
                                          size_t bytes, const void *next, size_t next_bytes)
{
    const uint8_t *from = next;
    ask_256(ask(&from, &next_bytes, MIN(next_bytes, (size_t)256)));
    if (bytes >= STREAM_BYTES)
        return avx512_run(crc, dst, src, bytes, true, true, from, next_bytes);
    return avx512_run(crc, dst, src, bytes, true, false, from, next_bytes);
}

static void fold_constants(uint64_t ret_pair[2], uint64_t distance_bits)
{
    ret_pair[0] = (uint64_t)crc32c_power(distance_bits + 32, 0) << 1;
    ret_pair[1] = (uint64_t)crc32c_power(distance_bits - 32, 0) << 1;
}

static void avx512_init(void)
{
    fold_constants(fold_2048, 2048);
    fold_constants(fold_512, 512);
    fold_constants(fold_lanes + 0, 384);
    fold_constants(fold_lanes + 2, 256);
    fold_constants(fold_lanes + 4, 128);
}

unsigned crc32c_arch_impls(struct crc32c_impl impls[CRC32C_ARCH_IMPLS])
{
    unsigned n = 0;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul"))
        return 0;
    sse42_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
        avx512_init();
        impls[n++] = (struct crc32c_impl){.name = "avx512", .crc = avx512_crc, .copy = avx512_copy};
    }
    impls[n++] = (struct crc32c_impl){.name = "sse42", .crc = sse42_crc, .copy = sse42_copy};
    return n;
}
#else
typedef int crc32c_x86_is_empty; /* ISO C wants a declaration in every source */
#endif
