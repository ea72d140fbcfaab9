/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c_arm.c: the CRC32C instructions of ARMv8 (optional in 8.0, required from 8.1 on). */
#include "base/base.h"
#include "base/crc32c_internal.h"

#ifdef __aarch64__
#    include <arm_acle.h>
#    include <sys/auxv.h>

#    ifndef HWCAP_CRC32
#        define HWCAP_CRC32 (1 << 7)
#    endif
#    ifdef __clang__
#        define TARGET __attribute__((target("crc")))
#    else
#        define TARGET __attribute__((target("+crc")))
#    endif

TARGET static uint32_t armv8_run(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t bytes)
{
    uint32_t c = ~crc;
    for (; bytes >= 8; bytes -= 8, src += 8) {
        uint64_t v;
        memcpy(&v, src, 8);
        if (dst) {
            memcpy(dst, &v, 8);
            dst += 8;
        }
        c = __crc32cd(c, v);
    }
    for (; bytes; bytes--, src++) {
        uint8_t v = *src;
        if (dst)
            *dst++ = v;
        c = __crc32cb(c, v);
    }
    return ~c;
}

static uint32_t armv8_crc(uint32_t crc, const void *buf, size_t bytes)
{
    return armv8_run(crc, NULL, buf, bytes);
}

static uint32_t armv8_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes)
{
    return armv8_run(crc, dst, src, bytes);
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
