/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c_internal.h: between the implementations of crc32c and the place that chooses one. */
#ifndef BASE_CRC32C_INTERNAL_H
#define BASE_CRC32C_INTERNAL_H

#include "base/crc32c.h"

/* a * b modulo the polynomial, and x^(8 * bytes): reflected, bit 31 is x^0. */
uint32_t crc32c_mulmod(uint32_t a, uint32_t b);
uint32_t crc32c_shift_of(uint64_t bytes);

/* How many implementations of this architecture the CPU can run, put into impls[], best first. Called once, by
 * the constructor of crc32c.c, after the tables above work. */
#define CRC32C_ARCH_IMPLS 2
unsigned crc32c_arch_impls(struct crc32c_impl impls[CRC32C_ARCH_IMPLS]);

#endif
