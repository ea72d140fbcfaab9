/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc_kernel.c: CRC32C of many pieces of memory at once, as CUDA devices compute it: one block of threads for each piece.
 *
 * Two compilers read this: clang, for NVPTX (tools/ptx makes crc_kernel.ptx of it, which is what the library carries and a driver
 * compiles for its device), and the host's, for tests: there the threads of a block are a loop, between what are barriers on a device.
 *
 * A piece is taken to be filled up with zeros in front, to as many bytes as there are threads times `each`, so that all threads have
 * runs of one length: zeros in front of a CRC that starts from 0 change nothing. Whose run holds the first byte starts as CRC32C
 * does, from all ones. Neighbours are joined pair by pair: crc(a‖b) = crc(a) * x^(8 * bytes of b) + crc(b), and as all runs of a
 * level are of one length, the power is the same for all of them, and is squared from level to level.
 */
#include "gpu/crc_kernel.h"

#define CRC_POLYNOMIAL 0x82F63B78u /* reflected: bit 31 is x^0 */

#ifdef __NVPTX__
#    define KERNEL   extern "C" __attribute__((global))
#    define FUNCTION static __attribute__((device))
#    define SHARED   static __attribute__((shared))
#    define BLOCK()  __nvvm_read_ptx_sreg_ctaid_x()
#    define EACH_THREAD(t)                                                                                   \
        for (unsigned t = __nvvm_read_ptx_sreg_tid_x(), go = 1; go; go = 0, __syncthreads())
#else
#    define KERNEL
#    define FUNCTION       static
#    define SHARED         static _Thread_local
#    define BLOCK()        block
#    define EACH_THREAD(t) for (unsigned t = 0; t < GPU_CRC_THREADS; t++)
#endif

/* Of polynomials over GF(2), modulo CRC32C's. */
FUNCTION unsigned times(unsigned a, unsigned b)
{
    unsigned product = 0;
    for (int i = 0; i < 32; i++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = b >> 1 ^ (CRC_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* x^(8 * bytes) */
FUNCTION unsigned power(unsigned bytes)
{
    unsigned result = 1u << 31, square = 1u << 23; /* x^0, x^8 */
    for (; bytes; bytes >>= 1) {
        if (bytes & 1)
            result = times(result, square);
        square = times(square, square);
    }
    return result;
}

FUNCTION unsigned entry(unsigned byte)
{
    for (int i = 0; i < 8; i++)
        byte = byte >> 1 ^ (CRC_POLYNOMIAL & (0u - (byte & 1)));
    return byte;
}

/* Of the run of thread `t`: what of it is before the piece is not there. */
FUNCTION unsigned run(const struct gpu_crc_piece *piece, unsigned t, unsigned each, const unsigned *table)
{
    const unsigned char *at = (const unsigned char *)piece->at;
    unsigned bytes = (unsigned)piece->bytes, ahead = GPU_CRC_THREADS * each - bytes;
    unsigned from = t * each > ahead ? t * each - ahead : 0;
    unsigned to = (t + 1) * each > ahead ? (t + 1) * each - ahead : 0;
    unsigned crc = from == 0 && to > 0 ? 0xFFFFFFFFu : 0;
    for (unsigned i = from; i < to; i++)
        crc = crc >> 8 ^ table[(crc ^ at[i]) & 0xFF];
    return crc;
}

#ifdef __NVPTX__
KERNEL void leat_crc32c(const struct gpu_crc_piece *pieces, unsigned *ret_crcs)
#else
void gpu_crc_block(unsigned block, const struct gpu_crc_piece *pieces, unsigned *ret_crcs)
#endif
{
    SHARED unsigned table[256], crc[GPU_CRC_THREADS];
    const struct gpu_crc_piece *piece = &pieces[BLOCK()];
    unsigned each = (unsigned)((piece->bytes + GPU_CRC_THREADS - 1) / GPU_CRC_THREADS), shift = power(each);

    EACH_THREAD(t)
    table[t] = entry(t);
    EACH_THREAD(t)
    crc[t] = run(piece, t, each, table);
    for (unsigned step = 1; step < GPU_CRC_THREADS; step *= 2) {
        EACH_THREAD(t)
        if (t % (2 * step) == 0)
            crc[t] = times(crc[t], shift) ^ crc[t + step];
        shift = times(shift, shift);
    }
    EACH_THREAD(t)
    if (t == 0)
        ret_crcs[BLOCK()] = ~crc[0];
}
