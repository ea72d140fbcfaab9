/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.h: CRC32C (Castagnoli, RFC 3720 appendix B.4; reflected polynomial 0x82F63B78), alone and fused into
 * a copy. The fastest implementation for this CPU is chosen once at load time; every one gives the same values.
 * A fresh checksum starts from 0, and `crc32c(crc32c(0, a), b) == crc32c(0, a‖b)`. Any thread.
 */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *buf, size_t bytes);

/* Copies like memcpy and returns the CRC of what was copied: each byte is loaded once, checksummed and stored.
 * The caller counts the bytes in the copy ledger (base/ledger.h), once a batch. */
uint32_t crc32c_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes);

/* The same, and at the same time fetches `next`, which is copied after it: line by line as src goes by, at
 * most CRC32C_AHEAD bytes. A gather of many small samples out of a large pool waits for memory above all, and
 * the hardware's prefetcher begins again with each of them. `next` is only a hint, but has to be mapped to be
 * one. NULL: none. */
#define CRC32C_AHEAD 4096u
uint32_t crc32c_copy_ahead(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                           const void *next, size_t next_bytes);

/* Fetches the beginning of a source that another reader (the kernel, say) reads next. No more than 512 bytes,
 * because the lines a core can wait for at once are few. */
static inline void crc32c_copy_prefetch(const void *src, size_t bytes)
{
    const char *from = src, *border = from + (4096 - (uintptr_t)from % 4096);
    for (size_t at = 0; at < bytes && at < 512; at += 64)
        __builtin_prefetch(from + at);
    /* What fetches ahead in hardware stops at a page's end, and so may what the TLB knows. */
    if (border < from + bytes) {
        __builtin_prefetch(border);
        __builtin_prefetch(border + 64);
    }
}

/* CRC of a‖b from crc(a), crc(b) and b's length. O(log bytes_b), no memory touched. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);

/* Name of the implementation in use ("avx512", "sse42", "armv8", "table"), for `leat doctor`. */
const char *crc32c_impl(void);

/* Tests and benchmarks only: every implementation this CPU can run. Returns how many there are. */
struct crc32c_impl {
    const char *name;
    uint32_t (*crc)(uint32_t crc, const void *buf, size_t bytes);
    uint32_t (*copy)(uint32_t crc, void *restrict dst, const void *restrict src, size_t bytes,
                     const void *next, size_t next_bytes);
};
unsigned crc32c_impls(const struct crc32c_impl **ret_impls);

#endif
