/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h: the inner loops, for one row at a time. Pixels are R, G, B and a fourth that is carried along and dropped.
 *
 *     vertical     rows of bytes  -> one row of int16: levels times 2^MID_BITS, rounded
 *     horizontal   that row       -> one row of int32: levels times 2^ACC_BITS, exact
 *     store        that row       -> clipped to [0, 255], normalised, converted, laid out
 *
 * Every implementation gives the same bits: sums of integers, then one product and one sum of floats, each rounded (the sources are
 * compiled without contraction). So a training run does not depend on the CPU that prepared its samples.
 */
#ifndef PREP_KERNELS_H
#define PREP_KERNELS_H

#include "prep/filter.h"

#define MID_BITS 6                        /* a cubic overshoots to 255 * 1.2 * 64 = 19584: fits an int16_t */
#define ACC_BITS (MID_BITS + FILTER_BITS) /* 255 * 1.2 * 1.2 * 2^20 fits an int32_t */

/* Rows may be read, and rows of int16 written, up to the next multiple of this many elements, and read 4 * taps more. */
#define KERNEL_BLOCK 64

struct store {
    enum prep_format format;
    unsigned n;              /* pixels */
    ptrdiff_t x, c;          /* strides, bytes */
    float times[4], plus[4]; /* float = sum * times + plus */
};

struct kernels {
    const char *name;
    /* mid[i] = (sum over t < taps of weights[t] * rows[t][i], rounded) >> (FILTER_BITS - MID_BITS), i < n; taps is even. */
    void (*vertical)(int16_t *mid, const uint8_t *const *rows, const int16_t *weights, unsigned taps,
                     size_t n);
    /* acc[4 * i + c] = sum over t of weights[i * taps + t] * mid[4 * (first[i] + t) + c], i < outs. */
    void (*horizontal)(int32_t *acc, const int16_t *mid, const struct filter *filter);
    void (*store)(const struct store *store, uint8_t *dst, const int32_t *acc);
};

extern const struct kernels kernels_plain;

/* The best that this CPU can run; all of them, the best first, for tests and the benchmark. */
const struct kernels *kernels_best(void);
unsigned kernels_all(const struct kernels *const **ret_all);

/* Makes a scratch use these (NULL: the best): for tests and the benchmark. */
void prep_scratch_kernels(struct prep_scratch *scratch, const struct kernels *kernels);

#ifdef __x86_64__
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

#endif
