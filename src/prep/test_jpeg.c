/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Crops against golden values; partial decoding against whole decoding; refusals; allocations that fail. JPEGs are made here by libjpeg.
 * Pillow's view of the same is in tests/python/test_prep.py.
 */
#include "prep/prep.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "base/rng.h"
#include "prep/decoder.h"
#include "prep/kernels.h"
#include "prep/pool.h"

#include "failalloc.h"

#define GOLDEN_CROPS 0xef9a2d5c

struct picture {
    uint8_t *bytes;
    unsigned long n;
};

static struct picture encode(unsigned width, unsigned height, int components, int sampling, bool progressive)
{
    struct jpeg_compress_struct info;
    struct jpeg_error_mgr errors;
    struct picture made = {0};
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &made.bytes, &made.n);
    info.image_width = width;
    info.image_height = height;
    info.input_components = components;
    info.in_color_space = components == 1 ? JCS_GRAYSCALE : components == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, 88, TRUE);
    info.comp_info[0].h_samp_factor = sampling >= 1 ? 2 : 1;
    info.comp_info[0].v_samp_factor = sampling == 2 ? 2 : 1;
    if (progressive)
        jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    uint8_t *row = malloc((size_t)width * 4);
    assert_non_null(row);
    for (unsigned y = 0; y < height; y++) {
        for (unsigned x = 0; x < width; x++) {
            for (int c = 0; c < components; c++)
                row[x * (unsigned)components + (unsigned)c] =
                    (uint8_t)((x * 3 + y * (unsigned)(c + 1) + (x * y >> 5)) ^
                              ((x >> 4 ^ y >> 4) & 1 ? 0x60 : 0));
        }
        jpeg_write_scanlines(&info, &row, 1);
    }
    free(row);
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    return made;
}

/* What a crop must be without resizing: the bytes of the whole image. */
static void test_parts_are_of_the_whole(void **state)
{
    struct prep_scratch *scratch;
    struct leat_error err = {0};
    assert_int_equal(prep_scratch_new(&scratch), 0);
    uint64_t random = 3;
    for (int kind = 0; kind < 8; kind++) {
        unsigned w = 150 + 7 * (unsigned)kind, h = 101 + (unsigned)kind;
        struct picture jpeg = encode(w, h,
                                     kind == 6   ? 1
                                     : kind == 7 ? 4
                                                 : 3,
                                     kind % 3, kind >= 3 && kind < 6);
        size_t bytes = (size_t)w * h * 3;
        uint8_t *whole = malloc(bytes), *part = malloc(bytes);
        assert_int_equal(prep_jpeg_decode(jpeg.bytes, jpeg.n, 0, false, false, whole, bytes, scratch, &err),
                         0);
        for (unsigned n = 0; n < 60; n++) {
            struct prep_crop crop = {.width = 1 + (unsigned)rng_below(&random, w),
                                     .height = 1 + (unsigned)rng_below(&random, h)};
            crop.left = (unsigned)rng_below(&random, w - crop.width + 1);
            crop.top = (unsigned)rng_below(&random, h - crop.height + 1);
            crop.flip = n % 2;
            struct prep_params p;
            prep_params_init(&p);
            p.format = PREP_U8;
            p.out_width = crop.width;
            p.out_height = crop.height;
            prep_params_layout(&p, false);
            assert_int_equal(prep_jpeg_crop(&p, jpeg.bytes, jpeg.n, &crop, part, scratch, &err), 0);
            for (unsigned y = 0; y < crop.height; y++) {
                for (unsigned x = 0; x < crop.width; x++) {
                    unsigned from = crop.left + (crop.flip ? crop.width - 1 - x : x);
                    assert_memory_equal(part + 3 * ((size_t)y * crop.width + x),
                                        whole + 3 * ((size_t)(crop.top + y) * w + from), 3);
                }
            }
        }
        free(whole);
        free(part);
        free(jpeg.bytes);
    }
    prep_scratch_free(scratch);
}

static void test_kernels_agree_on_images(void **state)
{
    const struct kernels *const *all;
    unsigned count = kernels_all(&all);
    struct prep_scratch *scratch;
    assert_int_equal(prep_scratch_new(&scratch), 0);
    struct picture jpeg = encode(500, 375, 3, 2, false);
    static float out[3][3 * 224 * 224];
    struct prep_params p;
    prep_params_init(&p);
    for (uint64_t i = 0; i < 10; i++) {
        p.mode = i % 4 == 3 ? PREP_CENTER_CROP : PREP_RANDOM_CROP;
        p.filter = i % 2 ? PREP_BICUBIC : PREP_BILINEAR;
        for (unsigned k = 0; k < count; k++) {
            prep_scratch_kernels(scratch, all[k]);
            assert_int_equal(prep_jpeg(&p, jpeg.bytes, jpeg.n, 1, 2, i, out[k], scratch, NULL), 0);
            assert_memory_equal(out[0], out[k], sizeof(out[0]));
        }
    }
    free(jpeg.bytes);
    prep_scratch_free(scratch);
}

/* These never change: a run that is resumed next year must see the same crops. */
static void test_golden_crops(void **state)
{
    struct prep_params p;
    prep_params_init(&p);
    uint32_t crc = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        struct prep_crop crop;
        prep_random_crop(&p, 400 + (unsigned)i, 700 - (unsigned)i / 2, 7, i / 100, i, &crop);
        uint32_t words[5] = {crop.left, crop.top, crop.width, crop.height, crop.flip};
        crc = crc32c(crc, words, sizeof(words));
    }
    assert_int_equal(crc, GOLDEN_CROPS);
    struct prep_crop crop;
    prep_random_crop(&p, 1, 1, 0, 0, 0, &crop);
    assert_int_equal(crop.width, 1);
    assert_int_equal(crop.height, 1);
    prep_random_crop(&p, 60000, 1, 0, 0, 0, &crop); /* no attempt fits */
    assert_true(crop.width >= 1 && crop.height == 1);
}

static void test_orientation_marker(void **state)
{
    uint8_t exif[] = {0xff, 0xd8, 0xff, 0xe1, 0, 34, 'E', 'x', 'i', 'f',  0,    0,   'M', 'M',
                      0,    '*',  0,    0,    0, 8,  0,   1,   1,   0x12, 0,    3,   0,   0,
                      0,    1,    0,    6,    0, 0,  0,   0,   0,   0,    0xff, 0xd9};
    assert_int_equal(exif_orientation(exif, sizeof(exif)), 6);
    for (size_t n = 0; n < sizeof(exif); n++) {
        uint8_t *cut = malloc(n + 1);
        memcpy(cut, exif, n);
        assert_in_range(exif_orientation(cut, n), 1, 6);
        free(cut);
    }
    exif[31] = 9;
    assert_int_equal(exif_orientation(exif, sizeof(exif)), 1);
}

static void test_refusals(void **state)
{
    struct prep_scratch *scratch;
    struct leat_error err = {0};
    assert_int_equal(prep_scratch_new(&scratch), 0);
    struct picture jpeg = encode(300, 200, 3, 2, false);
    static uint8_t out[4 * 3 * 224 * 224];
    struct prep_params p;
    prep_params_init(&p);
    p.max_pixels = 59999;
    assert_int_equal(prep_jpeg(&p, jpeg.bytes, jpeg.n, 0, 0, 0, out, scratch, &err), LEAT_INVALID);
    p.max_pixels = 60000;
    assert_int_equal(prep_jpeg(&p, jpeg.bytes, jpeg.n, 0, 0, 0, out, scratch, &err), 0);
    struct prep_crop crop = {.left = 250, .width = 51, .height = 1};
    assert_int_equal(prep_jpeg_crop(&p, jpeg.bytes, jpeg.n, &crop, out, scratch, &err), LEAT_INVALID);
    assert_int_equal(
        prep_jpeg_decode(jpeg.bytes, jpeg.n, 0, false, false, out, 300 * 200 * 3 - 1, scratch, &err),
        LEAT_INVALID);
    /* Cut anywhere: an error or an image, never anything else; and the scratch is good afterwards. */
    struct picture small = encode(75, 50, 3, 2, false);
    for (unsigned long n = 0; n < small.n; n++) {
        uint8_t *cut = malloc(n + 1);
        memcpy(cut, small.bytes, n);
        int rc = prep_jpeg_decode(cut, n, 0, false, false, out, 75 * 50 * 3, scratch, &err);
        assert_true(rc == 0 || rc == LEAT_CORRUPT);
        assert_true(rc || n + 8 > small.n);
        free(cut);
    }
    free(small.bytes);
    assert_int_equal(prep_jpeg(&p, jpeg.bytes, jpeg.n, 0, 0, 0, out, scratch, &err), 0);
    free(jpeg.bytes);
    prep_scratch_free(scratch);
}

/* Pixels take the way of the JPEG that they are of, to the byte; nothing is read behind them (they end where their memory does). */
static void test_pixels_are_the_image(void **state)
{
    static uint8_t out[2][3 * 96 * 80];
    struct prep_scratch *scratch;
    struct leat_error err = {0};
    assert_int_equal(prep_scratch_new(&scratch), 0);
    static const unsigned sizes[][2] = {{401, 300}, {97, 33}, {1, 1}, {2, 500}, {640, 1}};
    for (unsigned s = 0; s < ARRAY_LEN(sizes); s++) {
        unsigned w = sizes[s][0], h = sizes[s][1];
        struct picture jpeg = encode(w, h, 3, 2, false);
        size_t bytes = (size_t)w * h * 3;
        char head[32];
        size_t start = (size_t)snprintf(head, sizeof(head), "P6\n%u %u\n255\n", w, h);
        uint8_t *pixels = malloc(bytes), *ppm = malloc(start + bytes);
        assert_true(pixels && ppm);
        assert_int_equal(prep_jpeg_decode(jpeg.bytes, jpeg.n, 0, false, false, pixels, bytes, scratch, &err),
                         0);
        memcpy(ppm, head, start);
        memcpy(ppm + start, pixels, bytes);
        for (uint64_t i = 0; i < 40; i++) {
            struct prep_params p;
            prep_params_init(&p);
            p.mode = i % 3 ? PREP_RANDOM_CROP : PREP_CENTER_CROP;
            p.format = PREP_U8;
            p.filter = i % 2 ? PREP_BICUBIC : PREP_BILINEAR;
            p.out_width = 96;
            p.out_height = 80;
            p.resize = 100;
            p.exact = true;
            prep_params_layout(&p, i % 4 == 0);
            int rc = prep_jpeg(&p, jpeg.bytes, jpeg.n, 1, 2, i, out[0], scratch, &err);
            assert_int_equal(prep_pixels(&p, pixels, w, h, 1, 2, i, out[1], scratch, &err), rc);
            if (!rc)
                assert_memory_equal(out[0], out[1], sizeof(out[0]));
            memset(out[1], 0, sizeof(out[1]));
            assert_int_equal(prep_image(&p, ppm, start + bytes, 1, 2, i, out[1], scratch, &err), rc);
            if (!rc)
                assert_memory_equal(out[0], out[1], sizeof(out[0]));
            assert_int_equal(prep_image(&p, jpeg.bytes, jpeg.n, 1, 2, i, out[1], scratch, &err), rc);
        }
        struct prep_params p;
        prep_params_init(&p);
        p.out_width = p.out_height = 30;
        prep_params_layout(&p, true);
        static float room[3 * 30 * 30];
        assert_int_equal(prep_image(&p, ppm, start + bytes - 1, 1, 2, 3, room, scratch, &err), LEAT_CORRUPT);
        p.max_pixels = (uint64_t)w * h - 1;
        if (p.max_pixels)
            assert_int_equal(prep_image(&p, ppm, start + bytes, 1, 2, 3, room, scratch, &err), LEAT_INVALID);
        free(pixels);
        free(ppm);
        free(jpeg.bytes);
    }
    prep_scratch_free(scratch);
}

static void test_headers_of_pixels(void **state)
{
    struct prep_scratch *scratch;
    struct leat_error err = {0};
    assert_int_equal(prep_scratch_new(&scratch), 0);
    static const struct {
        const char *text;
        int code;
    } refused[] = {{"P6", LEAT_UNSUPPORTED},
                   {"P6\n1 1\n255", LEAT_UNSUPPORTED},
                   {"P6\n1 1\n255\n", LEAT_CORRUPT},
                   {"P6\n0 1\n255\nxxx", LEAT_UNSUPPORTED},
                   {"P6\n1 1\n65535\nxxxxxx", LEAT_UNSUPPORTED},
                   {"P6\n# no\n1 1\n255\nxxx", LEAT_UNSUPPORTED},
                   {"P61 1 255 xxx", LEAT_UNSUPPORTED},
                   {"P6 99999999 99999999 255 xxx", LEAT_CORRUPT},
                   {"P6 999999999 1 255 xxx", LEAT_UNSUPPORTED},
                   {"P5\n1 1\n255\nx", LEAT_CORRUPT}};
    struct prep_params p;
    prep_params_init(&p);
    static float room[3 * 224 * 224];
    for (unsigned i = 0; i < ARRAY_LEN(refused); i++) {
        int rc = prep_image(&p, (const uint8_t *)refused[i].text, strlen(refused[i].text), 0, 0, 0, room,
                            scratch, &err);
        if (rc != refused[i].code)
            print_message("%s: %d %s\n", refused[i].text, rc, err.message);
        assert_int_equal(rc, refused[i].code);
    }
    assert_int_equal(prep_image(&p, (const uint8_t *)"P6 1 1 255 abc", 14, 0, 0, 0, room, scratch, &err), 0);
    assert_int_equal(prep_pixels(&p, (const uint8_t *)"", 0, 1, 0, 0, 0, room, scratch, &err), LEAT_INVALID);
    prep_scratch_free(scratch);
}

static int whole_way(void *ctx)
{
    const struct picture *jpeg = ctx;
    static float out[3 * 224 * 224];
    struct prep_scratch *scratch;
    struct prep_params p;
    prep_params_init(&p);
    int rc = prep_scratch_new(&scratch);
    if (rc)
        return rc;
    rc = prep_jpeg(&p, jpeg->bytes, jpeg->n, 0, 0, 0, out, scratch, NULL);
    prep_scratch_free(scratch);
    return rc;
}

static void test_allocations(void **state)
{
    struct picture jpeg = encode(300, 200, 3, 2, false);
    assert_true(failalloc_run(whole_way, &jpeg) >= 4);
    free(jpeg.bytes);
}

static void count_one(void *arg, size_t i, struct prep_scratch *scratch)
{
    assert_non_null(scratch);
    atomic_fetch_add(&((atomic_uint *)arg)[i], 1);
}

static void test_pool(void **state)
{
    atomic_uint counts[100] = {0};
    struct prep_pool *pool;
    assert_int_equal(prep_pool_new(0, &pool, NULL), LEAT_INVALID);
    for (unsigned threads = 1; threads <= 4; threads++) {
        assert_int_equal(prep_pool_new(threads, &pool, NULL), 0);
        for (unsigned n = 0; n <= 100; n += 20)
            prep_pool_run(pool, n, count_one, counts);
        prep_pool_free(pool);
    }
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(counts[i], 4 * (5 - i / 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_of_the_whole),
        cmocka_unit_test(test_kernels_agree_on_images),
        cmocka_unit_test(test_golden_crops),
        cmocka_unit_test(test_orientation_marker),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_pixels_are_the_image),
        cmocka_unit_test(test_headers_of_pixels),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
