/* SPDX-License-Identifier: Apache-2.0 */
/* Filter tables against their definition; every implementation of the inner loops against the plain one, bit by bit. */
#include "prep/kernels.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/rng.h"

static void test_weights(void **state)
{
    struct filter_cache cache = {0};
    struct filter f;
    /* 4 pixels to 2, bilinear: the triangle has a support of 2: 1/8 3/8 3/8 1/8, cut off and normalised at the borders. */
    struct filter_key key = {.extent = 4, .source = 4, .full = 2, .outs = 2};
    assert_int_equal(filter_get(&cache, &key, &f, NULL), 0);
    assert_int_equal(f.taps, 4);
    assert_int_equal(f.low, 0);
    assert_int_equal(f.high, 4);
    assert_int_equal(f.weights[0], FILTER_ONE - 7022 - 2341); /* 3/7 */
    assert_int_equal(f.weights[1], 7022);
    assert_int_equal(f.weights[2], 2341); /* 1/7; the rest of the rounding goes to the heaviest */
    key.kind = PREP_BICUBIC;
    key.extent = key.source = 3;
    key.full = key.outs = 3;
    assert_int_equal(filter_get(&cache, &key, &f, NULL), 0);
    for (unsigned i = 0; i < 3; i++) { /* nothing to do: 1 at the pixel itself */
        for (unsigned t = 0; t < f.taps; t++)
            assert_int_equal(f.weights[i * f.taps + t], (unsigned)f.first[i] + t == i ? FILTER_ONE : 0);
    }
    key = (struct filter_key){.extent = 1e6, .source = 1000000, .full = 1, .outs = 1};
    assert_int_equal(filter_get(&cache, &key, &f, NULL), LEAT_UNSUPPORTED);
    filter_cache_fini(&cache);
}

static void test_sums_and_reach(void **state)
{
    struct filter_cache cache = {0};
    uint64_t random = 5;
    for (unsigned n = 0; n < 3000; n++) {
        unsigned source = 1 + (unsigned)rng_below(&random, 700), full = 1 + (unsigned)rng_below(&random, 300);
        unsigned skip = (unsigned)rng_below(&random, full),
                 outs = 1 + (unsigned)rng_below(&random, full - skip);
        double cut = n % 3 ? 0 : (double)rng_below(&random, 8) / 8;
        struct filter_key key = {.start = cut,
                                 .extent = MAX(0.125, source - 2 * cut),
                                 .source = source,
                                 .full = full,
                                 .skip = skip,
                                 .outs = outs,
                                 .kind = n % 2 ? PREP_BICUBIC : PREP_BILINEAR,
                                 .reverse = n % 5 == 0};
        struct filter f;
        assert_int_equal(filter_get(&cache, &key, &f, NULL), 0);
        assert_int_equal(f.taps % 2, 0);
        assert_true(f.high <= source && f.low < f.high);
        for (unsigned i = 0; i < outs; i++) {
            int sum = 0;
            for (unsigned t = 0; t < f.taps; t++) {
                int w = f.weights[i * f.taps + t];
                sum += w;
                if (w)
                    assert_true(f.low + (unsigned)f.first[i] + t < f.high);
            }
            assert_int_equal(sum, FILTER_ONE);
            assert_true(f.first[i] >= 0);
            if (i)
                assert_true(key.reverse ? f.first[i] <= f.first[i - 1] : f.first[i] >= f.first[i - 1]);
        }
    }
    filter_cache_fini(&cache);
}

/* A row of every width, with all tap counts, through every implementation. */
static void test_same_bits(void **state)
{
    enum { WIDTH = 200, TAPS = 12 };
    const struct kernels *const *all;
    unsigned count = kernels_all(&all);
    assert_ptr_equal(all[count - 1], &kernels_plain);
    static uint8_t image[TAPS][4 * WIDTH + 2 * KERNEL_BLOCK];
    static int16_t mid[2][4 * WIDTH + 16 * KERNEL_BLOCK];
    static int32_t acc[2][4 * WIDTH + 64];
    static uint8_t out[2][WIDTH * 12 * 3 + 64];
    uint64_t random = 9;
    struct filter_cache cache = {0};
    for (unsigned round = 0; round < 600; round++) {
        for (unsigned t = 0; t < TAPS; t++) {
            for (unsigned i = 0; i < 4 * WIDTH; i++)
                image[t][i] = round % 3 ? (uint8_t)rng_next(&random) : (rng_next(&random) & 1 ? 255 : 0);
        }
        unsigned columns = 1 + (unsigned)rng_below(&random, WIDTH);
        struct filter_key key = {
            .extent = columns, .source = columns, .kind = round % 2 ? PREP_BICUBIC : PREP_BILINEAR};
        key.full = key.outs =
            MAX(1u, columns / (1 + (unsigned)rng_below(&random, 3)) + (unsigned)rng_below(&random, 9));
        if (key.full > WIDTH)
            key.full = key.outs = WIDTH;
        struct filter f;
        assert_int_equal(filter_get(&cache, &key, &f, NULL), 0);
        unsigned taps = MIN(f.taps, (unsigned)TAPS);
        const uint8_t *rows[TAPS];
        for (unsigned t = 0; t < taps; t++)
            rows[t] = image[t] + round % 5;
        struct store store = {.format = (enum prep_format)(round % 3),
                              .n = key.outs,
                              .times = {1e-6f, 2e-6f, 3e-6f},
                              .plus = {-1, -2, -3}};
        ptrdiff_t item = store.format == PREP_F32 ? 4 : store.format == PREP_BF16 ? 2 : 1;
        bool chw = round % 4 < 2;
        store.x = round % 7 == 0 ? 4 * item : chw ? item : 3 * item;
        store.c = chw && round % 7 ? item * WIDTH : item;
        for (unsigned k = 0; k < count; k++) {
            const struct kernels *kernel = all[count - 1 - k]; /* the plain one first */
            unsigned to = k > 0;
            kernel->vertical(mid[to], rows, f.weights, taps, 4 * (size_t)columns);
            memset(mid[to] + 4 * columns, 0x11, sizeof(mid[0]) - 8 * (size_t)columns);
            kernel->horizontal(acc[to], mid[to], &f);
            memset(out[to], 0xaa, sizeof(out[0]));
            kernel->store(&store, out[to], acc[to]);
            if (to) {
                assert_memory_equal(mid[0], mid[1], 8 * (size_t)columns);
                assert_memory_equal(acc[0], acc[1], 16 * (size_t)key.outs);
                assert_memory_equal(out[0], out[1], sizeof(out[0])); /* and nothing beside it is written */
            }
        }
    }
    filter_cache_fini(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights), cmocka_unit_test(test_sums_and_reach),
                                       cmocka_unit_test(test_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
