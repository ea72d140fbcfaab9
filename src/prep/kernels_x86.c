/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_x86.c: the inner loops with AVX2 and AVX-512BW. Sums go through pmaddwd, which multiplies int16 and adds neighbours:
 * two rows (vertical) or two pixels (horizontal) are interleaved so that neighbours belong together.
 */
#include "prep/kernels.h"

#ifdef __x86_64__
#    include <immintrin.h>

#    define AVX2   __attribute__((target("avx2")))
#    define AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512dq")))
#    define ROUND  (1 << (FILTER_BITS - MID_BITS - 1))
#    define SHIFT  (FILTER_BITS - MID_BITS)

static inline int32_t two(const int16_t *weights)
{
    int32_t pair;
    memcpy(&pair, weights, 4);
    return pair;
}

/* ---- vertical: unpacking and packing stay within lanes, so they undo each other ---- */

AVX2 static void vertical_avx2(int16_t *mid, const uint8_t *const *rows, const int16_t *weights,
                               unsigned taps, size_t n)
{
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(ROUND);
    for (size_t i = 0; i < n; i += 32) {
        __m256i a = half, b = half, c = half, d = half;
        for (unsigned t = 0; t < taps; t += 2) {
            __m256i w = _mm256_set1_epi32(two(weights + t));
            __m256i p = _mm256_loadu_si256((const __m256i *)(rows[t] + i));
            __m256i q = _mm256_loadu_si256((const __m256i *)(rows[t + 1] + i));
            __m256i low = _mm256_unpacklo_epi8(p, q), high = _mm256_unpackhi_epi8(p, q);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
            d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
        }
        __m256i ab = _mm256_packs_epi32(_mm256_srai_epi32(a, SHIFT), _mm256_srai_epi32(b, SHIFT));
        __m256i cd = _mm256_packs_epi32(_mm256_srai_epi32(c, SHIFT), _mm256_srai_epi32(d, SHIFT));
        _mm256_storeu_si256((__m256i *)(mid + i), _mm256_permute2x128_si256(ab, cd, 0x20));
        _mm256_storeu_si256((__m256i *)(mid + i + 16), _mm256_permute2x128_si256(ab, cd, 0x31));
    }
}

AVX512 static void vertical_avx512(int16_t *mid, const uint8_t *const *rows, const int16_t *weights,
                                   unsigned taps, size_t n)
{
    const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(ROUND);
    const __m512i front = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  back = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (size_t i = 0; i < n; i += 64) {
        __m512i a = half, b = half, c = half, d = half;
        for (unsigned t = 0; t < taps; t += 2) {
            __m512i w = _mm512_set1_epi32(two(weights + t));
            __m512i p = _mm512_loadu_si512(rows[t] + i), q = _mm512_loadu_si512(rows[t + 1] + i);
            __m512i low = _mm512_unpacklo_epi8(p, q), high = _mm512_unpackhi_epi8(p, q);
            a = _mm512_add_epi32(a, _mm512_madd_epi16(_mm512_unpacklo_epi8(low, zero), w));
            b = _mm512_add_epi32(b, _mm512_madd_epi16(_mm512_unpackhi_epi8(low, zero), w));
            c = _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_unpacklo_epi8(high, zero), w));
            d = _mm512_add_epi32(d, _mm512_madd_epi16(_mm512_unpackhi_epi8(high, zero), w));
        }
        __m512i ab = _mm512_packs_epi32(_mm512_srai_epi32(a, SHIFT), _mm512_srai_epi32(b, SHIFT));
        __m512i cd = _mm512_packs_epi32(_mm512_srai_epi32(c, SHIFT), _mm512_srai_epi32(d, SHIFT));
        _mm512_storeu_si512(mid + i, _mm512_permutex2var_epi64(ab, front, cd));
        _mm512_storeu_si512(mid + i + 32, _mm512_permutex2var_epi64(ab, back, cd));
    }
}

/* ---- horizontal: a lane of 128 bits for each output; two pixels of four int16 are shuffled to R R, G G, B B, X X ---- */

#    define PAIRS 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15

AVX2 static inline __m128i one_output(const int16_t *from, const int16_t *weights, unsigned taps)
{
    const __m128i pairs = _mm_setr_epi8(PAIRS);
    __m128i sum = _mm_setzero_si128();
    for (unsigned t = 0; t < taps; t += 2) {
        __m128i v = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(from + 4 * t)), pairs);
        sum = _mm_add_epi32(sum, _mm_madd_epi16(v, _mm_set1_epi32(two(weights + t))));
    }
    return sum;
}

AVX2 static inline __attribute__((always_inline)) void
horizontal_by(int32_t *acc, const int16_t *mid, const struct filter *f, const unsigned taps)
{
    const __m256i pairs = _mm256_setr_epi8(PAIRS, PAIRS);
    const int16_t *w = f->weights;
    unsigned i = 0;
    for (; i + 2 <= f->key.outs; i += 2, w += 2 * taps, acc += 8) {
        const int16_t *a = mid + 4 * (ptrdiff_t)f->first[i], *b = mid + 4 * (ptrdiff_t)f->first[i + 1];
        __m256i sum = _mm256_setzero_si256();
        for (unsigned t = 0; t < taps; t += 2) {
            __m256i v =
                _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(a + 4 * t))),
                                        _mm_loadu_si128((const __m128i *)(b + 4 * t)), 1);
            __m256i weights =
                _mm256_blend_epi32(_mm256_set1_epi32(two(w + t)), _mm256_set1_epi32(two(w + taps + t)), 0xf0);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(v, pairs), weights));
        }
        _mm256_storeu_si256((__m256i *)acc, sum);
    }
    if (i < f->key.outs)
        _mm_storeu_si128((__m128i *)acc, one_output(mid + 4 * (ptrdiff_t)f->first[i], w, taps));
}

AVX2 static void horizontal_avx2(int32_t *acc, const int16_t *mid, const struct filter *f)
{
    if (f->taps == 2)
        horizontal_by(acc, mid, f, 2);
    else if (f->taps == 4)
        horizontal_by(acc, mid, f, 4);
    else
        horizontal_by(acc, mid, f, f->taps);
}

AVX512 static inline __m512i four(const int16_t *a, const int16_t *b, const int16_t *c, const int16_t *d)
{
    __m256i ab = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                         _mm_loadu_si128((const __m128i *)b), 1);
    __m256i cd = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)c)),
                                         _mm_loadu_si128((const __m128i *)d), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(ab), cd, 1);
}

AVX512 static inline __attribute__((always_inline)) void
horizontal_by4(int32_t *acc, const int16_t *mid, const struct filter *f, const unsigned taps)
{
    const __m512i pairs = _mm512_broadcast_i32x4(_mm_setr_epi8(PAIRS));
    const __m512i spread0 = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i spread1 = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const int16_t *w = f->weights;
    unsigned i = 0;
    for (; i + 4 <= f->key.outs; i += 4, w += 4 * taps, acc += 16) {
        const int16_t *a = mid + 4 * (ptrdiff_t)f->first[i], *b = mid + 4 * (ptrdiff_t)f->first[i + 1];
        const int16_t *c = mid + 4 * (ptrdiff_t)f->first[i + 2], *d = mid + 4 * (ptrdiff_t)f->first[i + 3];
        __m512i sum;
        if (taps == 2) { /* the weights of four outputs lie side by side */
            __m512i weights =
                _mm512_permutexvar_epi32(spread, _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)w)));
            sum = _mm512_madd_epi16(_mm512_shuffle_epi8(four(a, b, c, d), pairs), weights);
        } else if (taps == 4) {
            __m512i all = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)w));
            sum = _mm512_add_epi32(
                _mm512_madd_epi16(_mm512_shuffle_epi8(four(a, b, c, d), pairs),
                                  _mm512_permutexvar_epi32(spread0, all)),
                _mm512_madd_epi16(_mm512_shuffle_epi8(four(a + 8, b + 8, c + 8, d + 8), pairs),
                                  _mm512_permutexvar_epi32(spread1, all)));
        } else {
            sum = _mm512_setzero_si512();
            for (unsigned t = 0; t < taps; t += 2) {
                __m128i four_w = _mm_setr_epi32(two(w + t), two(w + taps + t), two(w + 2 * taps + t),
                                                two(w + 3 * taps + t));
                __m512i v = four(a + 4 * t, b + 4 * t, c + 4 * t, d + 4 * t);
                sum = _mm512_add_epi32(
                    sum, _mm512_madd_epi16(_mm512_shuffle_epi8(v, pairs),
                                           _mm512_permutexvar_epi32(spread, _mm512_castsi128_si512(four_w))));
            }
        }
        _mm512_storeu_si512(acc, sum);
    }
    for (; i < f->key.outs; i++, w += taps, acc += 4)
        _mm_storeu_si128((__m128i *)acc, one_output(mid + 4 * (ptrdiff_t)f->first[i], w, taps));
}

AVX512 static void horizontal_avx512(int32_t *acc, const int16_t *mid, const struct filter *f)
{
    if (f->taps == 2)
        horizontal_by4(acc, mid, f, 2);
    else if (f->taps == 4)
        horizontal_by4(acc, mid, f, 4);
    else
        horizontal_by4(acc, mid, f, f->taps);
}

/* ---- store: eight pixels a turn; the rest, and layouts that are neither rows of planes nor dense pixels, in plain C ---- */

struct planes {
    __m256i c[3];
};

/* Eight pixels of four sums, clipped -> eight of each channel, in order. */
AVX2 static inline struct planes planes_of(const int32_t *acc)
{
    const __m256i top = _mm256_set1_epi32(255 << ACC_BITS), zero = _mm256_setzero_si256();
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i v[4];
    for (unsigned k = 0; k < 4; k++)
        v[k] = _mm256_max_epi32(zero, _mm256_min_epi32(top, _mm256_loadu_si256((const __m256i *)acc + k)));
    /* v[k] = pixels 2k | 2k+1. After the unpacks a lane holds R R' G G' of pixels 0 2 | 1 3, and so on. */
    __m256i rg02 = _mm256_unpacklo_epi32(v[0], v[1]), bx02 = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i rg46 = _mm256_unpacklo_epi32(v[2], v[3]), bx46 = _mm256_unpackhi_epi32(v[2], v[3]);
    return (struct planes){{_mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(rg02, rg46), order),
                            _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(rg02, rg46), order),
                            _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(bx02, bx46), order)}};
}

AVX2 static inline __m128i bytes_of(__m256i sums)
{
    __m256i level =
        _mm256_srai_epi32(_mm256_add_epi32(sums, _mm256_set1_epi32(1 << (ACC_BITS - 1))), ACC_BITS);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(level), _mm256_extracti128_si256(level, 1));
    return _mm_packus_epi16(words, words);
}

AVX2 static inline __m256i bf16_of(__m256 value) /* in the low halves of eight int32 */
{
    __m256i bits = _mm256_castps_si256(value),
            odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

AVX2 static inline void store_planes(const struct store *s, uint8_t *dst, const int32_t *acc)
{
    struct planes p = planes_of(acc);
    for (unsigned c = 0; c < 3; c++, dst += s->c) {
        if (s->format == PREP_U8) {
            _mm_storel_epi64((__m128i *)dst, bytes_of(p.c[c]));
            continue;
        }
        __m256 value = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(p.c[c]), _mm256_set1_ps(s->times[c])),
                                     _mm256_set1_ps(s->plus[c]));
        if (s->format == PREP_F32) {
            _mm256_storeu_ps((float *)dst, value);
        } else {
            __m256i half = bf16_of(value);
            _mm_storeu_si128((__m128i *)dst, _mm_packus_epi32(_mm256_castsi256_si128(half),
                                                              _mm256_extracti128_si256(half, 1)));
        }
    }
}

/* Dense pixels. The fourth of each is dropped by the next one's store, so a pixel must follow: the caller leaves one over. */
AVX2 static inline void store_pixels(const struct store *s, uint8_t *dst, const int32_t *acc)
{
    const __m256i top = _mm256_set1_epi32(255 << ACC_BITS), zero = _mm256_setzero_si256();
    const __m256 times = _mm256_broadcast_ps((const __m128 *)s->times),
                 plus = _mm256_broadcast_ps((const __m128 *)s->plus);
    for (unsigned k = 0; k < 4; k++, acc += 8) {
        __m256i v = _mm256_max_epi32(zero, _mm256_min_epi32(top, _mm256_loadu_si256((const __m256i *)acc)));
        if (s->format == PREP_U8) {
            __m128i bytes = _mm_shuffle_epi8(
                bytes_of(v), _mm_setr_epi8(0, 1, 2, 4, 5, 6, 3, 7, -1, -1, -1, -1, -1, -1, -1, -1));
            _mm_storel_epi64((__m128i *)(dst + 6 * k), bytes);
            continue;
        }
        __m256 value = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(v), times), plus);
        if (s->format == PREP_F32) {
            _mm_storeu_ps((float *)(dst + 24 * k), _mm256_castps256_ps128(value));
            _mm_storeu_ps((float *)(dst + 24 * k + 12), _mm256_extractf128_ps(value, 1));
        } else {
            __m256i half = bf16_of(value);
            __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
            words =
                _mm_shuffle_epi8(words, _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 6, 7, 14, 15));
            _mm_storeu_si128((__m128i *)(dst + 12 * k), words);
        }
    }
}

AVX2 static void store_avx2(const struct store *s, uint8_t *dst, const int32_t *acc)
{
    ptrdiff_t item = s->format == PREP_F32 ? 4 : s->format == PREP_BF16 ? 2 : 1;
    struct store rest = *s;
    /* 8 dense pixels: at most 4 further bytes (u8: 2; bf16: 4; f32: 4) are written, of the pixels behind; they come later. */
    if (s->x == item) {
        for (; rest.n >= 8; rest.n -= 8, dst += 8 * item, acc += 32)
            store_planes(s, dst, acc);
    } else if (s->x == 3 * item && s->c == item) {
        for (; rest.n >= 10; rest.n -= 8, dst += 24 * item, acc += 32)
            store_pixels(s, dst, acc);
    }
    kernels_plain.store(&rest, dst, acc);
}

const struct kernels kernels_avx2 = {"avx2", vertical_avx2, horizontal_avx2, store_avx2};
const struct kernels kernels_avx512 = {"avx512", vertical_avx512, horizontal_avx512, store_avx2};
#endif
