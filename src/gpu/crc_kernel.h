/* SPDX-License-Identifier: Apache-2.0 */
/* crc_kernel.h: CRC32C on a device, as gpu.c launches it and tests run it. See crc_kernel.c. */
#ifndef GPU_CRC_KERNEL_H
#define GPU_CRC_KERNEL_H

#define GPU_CRC_THREADS 256u /* of a block: as many as the table has entries */
#define GPU_CRC_PIECE                                                                                        \
    (64u * 1024u) /* most bytes of one: longer ones are cut, for all of the device to have work */
#define GPU_CRC_KERNEL "leat_crc32c"

struct gpu_crc_piece {
    unsigned long long at, bytes; /* at least 1 */
};

/* What block number `block` of the kernel does, on the host. */
void gpu_crc_block(unsigned block, const struct gpu_crc_piece *pieces, unsigned *ret_crcs);

#endif
