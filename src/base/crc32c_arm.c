/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c_arm.c: the CRC32C instructions of ARMv8 (optional in 8.0, required from 8.1 on). */
#include "base/base.h"
#include "base/crc32c_internal.h"

#ifdef __aarch64__
#    include <sys/auxv.h>

#    ifndef HWCAP_CRC32
#        define HWCAP_CRC32 (1 << 7)
#    endif

/* Written out, because clang before 16 hides the intrinsics of arm_acle.h from a build for plain ARMv8.0. */
static inline uint32_t step_8(uint32_t c, uint64_t v)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(c) : "r"(v));
    return c;
}

static inline uint32_t step_1(uint32_t c, uint8_t v)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(c) : "r"((uint32_t)v));
    return c;
}

static inline __attribute__((always_inline)) uint32_t
armv8_run(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t bytes, const bool copy)
{
    uint32_t c = ~crc;
    for (; bytes >= 8; bytes -= 8, src += 8) {
        uint64_t v;
        memcpy(&v, src, 8);
        if (copy) {
            memcpy(dst, &v, 8);
            dst += 8;
        }
        c = step_8(c, v);
    }
    for (; bytes; bytes--, src++) {
        uint8_t v = *src;
        if (copy)
            *dst++ = v;
        c = step_1(c, v);
    }
    return ~c;
}

static uint32_t armv8_crc(uint32_t crc, const void *buf, size_t bytes)
{
    return armv8_run(crc, NULL, buf, bytes, false);
}

static uint32_t armv8_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                           const void *next, size_t next_bytes)
{
    if (next)
        crc32c_copy_prefetch(next, next_bytes);
    return armv8_run(crc, dst, src, bytes, true);
}

unsigned crc32c_arch_impls(struct crc32c_impl impls[CRC32C_ARCH_IMPLS])
{
    if (!(getauxval(AT_HWCAP) & HWCAP_CRC32))
        return 0;
    impls[0] = (struct crc32c_impl){.name = "armv8", .crc = armv8_crc, .copy = armv8_copy};
    return 1;
}
#else
typedef int crc32c_arm_is_empty; /* ISO C wants a declaration in every source */
#endif
