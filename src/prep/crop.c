/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crop.c: parameters, and where the random crop of a sample lies.
 *
 * libm's exp and log differ in the last bit between its versions and between CPUs; rounded to pixels that is another crop once in a
 * great while. So they are written out here in sums and products, which IEEE 754 fixes (this file is compiled without
 * contraction into fused multiply-adds); sqrt is exact by the standard.
 */
#include "prep/prep.h"

#include <math.h>

#include "base/rng.h"

static double plain_exp(double x)
{
    const double ln2 = 0.693147180559945309417;
    int k = (int)rint(x / ln2);
    double r = x - k * ln2, sum = 1;
    for (int n = 16; n > 0; n--)
        sum = 1 + r / n * sum;
    return ldexp(sum, k);
}

/* Halley's iteration for exp(y) = x; it triples the digits, and |log x| < 10 is known. */
static double plain_log(double x)
{
    int k;
    double m = frexp(x, &k), y = m - 1;
    for (int n = 0; n < 5; n++) {
        double e = plain_exp(y);
        y += 2 * (m - e) / (m + e);
    }
    return y + k * 0.693147180559945309417;
}

void prep_params_init(struct prep_params *params)
{
    *params = (struct prep_params){.mode = PREP_RANDOM_CROP,
                                   .filter = PREP_BILINEAR,
                                   .format = PREP_F32,
                                   .out_width = 224,
                                   .out_height = 224,
                                   .scale = {0.08, 1},
                                   .ratio = {3. / 4, 4. / 3},
                                   .flip = 0.5,
                                   .resize = 256,
                                   .mean = {0.485f, 0.456f, 0.406f},
                                   .std = {0.229f, 0.224f, 0.225f}};
    prep_params_layout(params, true);
}

void prep_params_layout(struct prep_params *params, bool chw)
{
    ptrdiff_t item = params->format == PREP_F32 ? 4 : params->format == PREP_BF16 ? 2 : 1;
    params->stride_x = chw ? item : 3 * item;
    params->stride_y = params->stride_x * params->out_width;
    params->stride_c = chw ? params->stride_y * params->out_height : item;
}

static bool within(double low, double value, double high)
{
    return value >= low && value <= high; /* false for a NaN */
}

int prep_params_check(const struct prep_params *p, struct leat_error *err)
{
    if (!p->out_width || !p->out_height || p->out_width > PREP_MAX_OUT || p->out_height > PREP_MAX_OUT)
        return error_set(err, LEAT_INVALID, "an output of %d x %d pixels: each edge must be 1 to %u",
                         (int)p->out_width, (int)p->out_height, PREP_MAX_OUT);
    if ((unsigned)p->mode > PREP_CENTER_CROP || (unsigned)p->filter > PREP_BICUBIC ||
        (unsigned)p->format > PREP_BF16)
        return error_set(err, LEAT_INVALID, "no such mode, filter or format");
    if (p->mode == PREP_RANDOM_CROP) {
        if (!within(1e-6, p->scale[0], p->scale[1]) || !within(1e-6, p->scale[1], 1))
            return error_set(err, LEAT_INVALID, "scale (%g, %g): wanted is 0 < low <= high <= 1", p->scale[0],
                             p->scale[1]);
        if (!within(1e-3, p->ratio[0], p->ratio[1]) || !within(1e-3, p->ratio[1], 1e3))
            return error_set(err, LEAT_INVALID, "ratio (%g, %g): wanted is 0.001 <= low <= high <= 1000",
                             p->ratio[0], p->ratio[1]);
        if (!within(0, p->flip, 1))
            return error_set(err, LEAT_INVALID, "flip %g: a probability is 0 to 1", p->flip);
    } else if (p->resize < MAX(p->out_width, p->out_height) || p->resize > PREP_MAX_OUT) {
        return error_set(err, LEAT_INVALID,
                         "resize %u: wanted is at least the output (%u x %u) and at most %u", p->resize,
                         p->out_width, p->out_height, PREP_MAX_OUT);
    }
    for (unsigned c = 0; c < 3 && p->format != PREP_U8; c++) {
        if (!within(-1e6, p->mean[c], 1e6) || !within(1e-6, p->std[c], 1e6))
            return error_set(err, LEAT_INVALID, "mean %g, std %g: wanted are finite numbers, std above 0",
                             (double)p->mean[c], (double)p->std[c]);
    }
    return 0;
}

static double uniform(uint64_t *state, double low, double high)
{
    return low + (high - low) * ((double)(rng_next(state) >> 11) * 0x1p-53);
}

void prep_random_crop(const struct prep_params *p, unsigned width, unsigned height, uint64_t seed,
                      uint64_t epoch, uint64_t index, struct prep_crop *ret_crop)
{
    uint64_t state = rng_seed(rng_seed(rng_seed(seed, epoch), index), PREP_RNG_CROP);
    struct prep_crop crop = {.width = 0};
    double area = (double)width * height, log_low = plain_log(p->ratio[0]), log_high = plain_log(p->ratio[1]);
    for (unsigned attempt = 0; attempt < 10 && !crop.width; attempt++) {
        double target = area * uniform(&state, p->scale[0], p->scale[1]);
        double aspect = plain_exp(uniform(&state, log_low, log_high));
        double w = rint(sqrt(target * aspect)), h = rint(sqrt(target / aspect));
        if (w >= 1 && w <= width && h >= 1 && h <= height) {
            crop.width = (unsigned)w;
            crop.height = (unsigned)h;
            crop.top = (unsigned)rng_below(&state, height - crop.height + 1);
            crop.left = (unsigned)rng_below(&state, width - crop.width + 1);
        }
    }
    if (!crop.width) {
        double ratio = (double)width / height;
        crop.width = width;
        crop.height = height;
        /* At least one pixel: torchvision lets an image of 1 x 2 come to a height of 1 as well, but never to 0. */
        if (ratio < p->ratio[0])
            crop.height = (unsigned)MAX(1, MIN(rint(width / p->ratio[0]), (double)height));
        else if (ratio > p->ratio[1])
            crop.width = (unsigned)MAX(1, MIN(rint(height * p->ratio[1]), (double)width));
        crop.top = (height - crop.height) / 2;
        crop.left = (width - crop.width) / 2;
    }
    crop.flip = uniform(&state, 0, 1) < p->flip;
    *ret_crop = crop;
}
