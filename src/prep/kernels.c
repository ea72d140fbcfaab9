/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: the inner loops in plain C, which the others are measured against bit by bit; and the choice. */
#include "prep/kernels.h"

static void vertical(int16_t *mid, const uint8_t *const *rows, const int16_t *weights, unsigned taps,
                     size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t sum = 1 << (FILTER_BITS - MID_BITS - 1);
        for (unsigned t = 0; t < taps; t++)
            sum += weights[t] * rows[t][i];
        sum >>= FILTER_BITS - MID_BITS;
        mid[i] = (int16_t)MAX(INT16_MIN, MIN(INT16_MAX, sum));
    }
}

static void horizontal(int32_t *acc, const int16_t *mid, const struct filter *filter)
{
    const int16_t *weights = filter->weights;
    for (unsigned i = 0; i < filter->key.outs; i++, weights += filter->taps, acc += 4) {
        const int16_t *from = mid + 4 * (ptrdiff_t)filter->first[i];
        int32_t sum[4] = {0};
        for (unsigned t = 0; t < filter->taps; t++) {
            for (unsigned c = 0; c < 4; c++)
                sum[c] += weights[t] * from[4 * t + c];
        }
        memcpy(acc, sum, sizeof(sum));
    }
}

static void store(const struct store *s, uint8_t *dst, const int32_t *acc)
{
    for (unsigned i = 0; i < s->n; i++, dst += s->x, acc += 4) {
        for (unsigned c = 0; c < 3; c++) {
            uint8_t *to = dst + c * s->c;
            int32_t level = MAX(0, MIN(acc[c], 255 << ACC_BITS));
            if (s->format == PREP_U8) {
                *to = (uint8_t)((level + (1 << (ACC_BITS - 1))) >> ACC_BITS);
                continue;
            }
            float value = (float)level * s->times[c];
            value += s->plus[c];
            uint32_t bits;
            memcpy(&bits, &value, 4);
            if (s->format == PREP_F32) {
                memcpy(to, &bits, 4);
            } else {
                uint16_t half = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
                memcpy(to, &half, 2);
            }
        }
    }
}

const struct kernels kernels_plain = {"plain", vertical, horizontal, store};

static const struct kernels *all[3];
static unsigned count;

__attribute__((constructor)) static void choose(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        all[count++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2"))
        all[count++] = &kernels_avx2;
#endif
    all[count++] = &kernels_plain;
}

const struct kernels *kernels_best(void)
{
    return all[0];
}

unsigned kernels_all(const struct kernels *const **ret_all)
{
    *ret_all = all;
    return count;
}
