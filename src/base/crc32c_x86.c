/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/crc32c_internal.h"

#ifdef __x86_64__
#    include <immintrin.h>

__attribute__((target("sse4.2"))) static uint32_t sse42_crc(uint32_t crc, const void *buf, size_t bytes)
{
    const uint8_t *p = buf;
    uint64_t c = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = _mm_crc32_u64(c, v);
    }
    for (; bytes; bytes--, p++)
        c = _mm_crc32_u8((uint32_t)c, *p);
    return ~(uint32_t)c;
}

static uint32_t sse42_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    while (bytes) {
        size_t piece = MIN(bytes, (size_t)4096);
        memcpy(to, from, piece);
        crc = sse42_crc(crc, to, piece);
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return crc;
}

unsigned crc32c_arch_impls(struct crc32c_impl impls[CRC32C_ARCH_IMPLS])
{
    unsigned n = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        impls[n++] = (struct crc32c_impl){.name = "sse42", .crc = sse42_crc, .copy = sse42_copy};
    return n;
}
#else
unsigned crc32c_arch_impls(struct crc32c_impl impls[CRC32C_ARCH_IMPLS])
{
    return 0;
}
#endif
