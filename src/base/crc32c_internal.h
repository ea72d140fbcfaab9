/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c_internal.h: between the implementations of crc32c and the place that chooses one. */
#ifndef BASE_CRC32C_INTERNAL_H
#define BASE_CRC32C_INTERNAL_H

#include "base/crc32c.h"

/* x^(n * 2^k) modulo the polynomial, reflected: bit 31 is x^0. */
uint32_t crc32c_power(uint64_t n, unsigned k);

/* Puts the implementations of this architecture that the CPU can run into impls[], best first, and returns how
 * many. Called once, by the constructor of crc32c.c, when crc32c_power works. */
#define CRC32C_ARCH_IMPLS 2
unsigned crc32c_arch_impls(struct crc32c_impl impls[CRC32C_ARCH_IMPLS]);

#endif
