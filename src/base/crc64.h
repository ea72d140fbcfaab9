/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc64.h: CRC-64/NVME (NVM Express, "64b CRC"; reflected polynomial 0x9a6c9329ac4bc9b5), which S3 keeps of objects. A fresh one starts
 * from 0, and `crc64nvme(crc64nvme(0, a), b) == crc64nvme(0, a‖b)`. By carry-less multiplication where the CPU has it. Any thread.
 */
#ifndef BASE_CRC64_H
#define BASE_CRC64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t crc64nvme(uint64_t crc, const void *buf, size_t bytes);
/* CRC of a‖b from crc(a), crc(b) and b's length. O(log bytes_b), no memory touched. */
uint64_t crc64nvme_combine(uint64_t crc_a, uint64_t crc_b, uint64_t bytes_b);
/* Tests: the portable one. */
uint64_t crc64nvme_table(uint64_t crc, const void *buf, size_t bytes);

#endif
