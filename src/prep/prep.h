/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prep.h: a JPEG as stored -> an augmented, normalised image where the training loop wants it.
 *
 * Shapes and units. `dst` is the place of one sample in a view slot: out_height x out_width pixels of 3 channels (R, G, B), the
 * element (y, x, c) at dst + y * stride_y + x * stride_x + c * stride_c bytes. Any layout is a set of strides (HWC, CHW, a padded
 * row); prep_params_layout() fills them for the two usual ones. Nothing outside those elements is written.
 * Values: PREP_U8 the level 0..255, rounded; PREP_F32 and PREP_BF16 (level / 255 - mean[c]) / std[c], from the unrounded level,
 * clipped to [0, 255] (bf16: to nearest, ties to even).
 *
 * Random crop, the algorithm of torchvision.transforms.RandomResizedCrop.get_params (0.8 and later), with W, H the size after the
 * EXIF orientation was applied:
 *     ten times: area = W * H * uniform(scale); aspect = exp(uniform(log ratio)); w = round(sqrt(area * aspect)),
 *     h = round(sqrt(area / aspect)) (ties to even); if 0 < w <= W and 0 < h <= H: top = below(H - h + 1), left = below(W - w + 1), done.
 *     Else W/H < ratio[0]: w = W, h = round(W / ratio[0]); W/H > ratio[1]: h = H, w = round(H * ratio[1]); else all of it; centred.
 * then flip if uniform() < flip. The numbers come from splitmix64 (base/rng.h) started with
 * rng_seed(rng_seed(rng_seed(seed, epoch), index), PREP_RNG_CROP), exp and log from arithmetic written out in crop.c: the same
 * crop on every machine, whatever the number of workers and ranks.
 *
 * Validation: the shorter edge to `resize`, the longer to floor(resize * long / short), then the centre (round half to even), as
 * torchvision's Resize(resize) and CenterCrop do. Only what the centre needs is computed.
 *
 * Resampling is Pillow's and torchvision's antialias=True: a triangle (bilinear) or Keys' cubic with a = -0.5 (bicubic), stretched
 * by the scale when it shrinks, weights normalised at the borders. Tolerance against Pillow with the same libjpeg: see README.md.
 *
 * Threads: a scratch belongs to one thread at a time; params are only read. No function here blocks or takes a lock.
 */
#ifndef PREP_PREP_H
#define PREP_PREP_H

#include "base/base.h"

enum prep_mode { PREP_RANDOM_CROP, PREP_CENTER_CROP };
enum prep_filter_kind { PREP_BILINEAR, PREP_BICUBIC };
enum prep_format { PREP_U8, PREP_F32, PREP_BF16 };

#define PREP_MAX_OUT    8192                  /* pixels of an edge */
#define PREP_MAX_PIXELS (UINT64_C(178956970)) /* where Pillow refuses, too */
#define PREP_MAX_COEFFICIENT                                                                                 \
    (256 * MIB) /* bytes that a progressive image may take while it is put together */
#define PREP_RNG_CROP                                                                                        \
    UINT64_C(0x63726f70) /* "crop": so that other users of (seed, epoch, index) see other numbers */

struct prep_params {
    enum prep_mode mode;
    enum prep_filter_kind filter;
    enum prep_format format;
    unsigned out_width, out_height;         /* 1..PREP_MAX_OUT */
    ptrdiff_t stride_y, stride_x, stride_c; /* bytes */
    double scale[2], ratio[2];              /* random crop: share of the area; width / height */
    double flip;                            /* random crop: probability of a horizontal flip */
    unsigned resize;                        /* centre crop: the shorter edge; at least both out_... */
    float mean[3], std[3];                  /* of levels / 255; std > 0. Not for PREP_U8 */
    uint64_t max_pixels;                    /* refused beyond, by the header; 0: PREP_MAX_PIXELS */
    bool accept_damaged;                    /* what is missing is grey, what is damaged is as it comes */
    bool ignore_orientation;                /* EXIF's */
    bool exact;                             /* never let the decoder shrink by itself (prep_jpeg says when) */
};

/* Defaults: 224 x 224, random crop, scale 0.08..1, ratio 3/4..4/3, flip 0.5, bilinear, resize 256, PREP_F32 as CHW, ImageNet's mean
 * and std. */
void prep_params_init(struct prep_params *params);
/* Strides of a dense CHW or HWC image, from out_... and format. */
void prep_params_layout(struct prep_params *params, bool chw);
/* LEAT_INVALID and what is wrong with it. Everything below relies on a checked one. */
int prep_params_check(const struct prep_params *params, struct leat_error *err);

/* A rectangle in pixels of the upright image, and whether it is flipped. */
struct prep_crop {
    unsigned left, top, width, height;
    bool flip;
};
/* The random crop of one sample of an image of this size (both at least 1). */
void prep_random_crop(const struct prep_params *params, unsigned width, unsigned height, uint64_t seed,
                      uint64_t epoch, uint64_t index, struct prep_crop *ret_crop);

/* What one thread keeps between samples: a decoder, rows, filter tables. */
struct prep_scratch;
int prep_scratch_new(struct prep_scratch **ret_scratch);
void prep_scratch_free(struct prep_scratch *scratch); /* NULL: nothing */

/*
 * One sample. Reads only the rows and columns that the crop needs. Where the crop is at least twice the output in both directions
 * (and !params->exact), the decoder itself shrinks by 2, 4 or 8 in the DCT domain first, never below the output.
 * Errors: LEAT_CORRUPT damaged or truncated (as far as was read: damage behind the crop's last row is not seen); LEAT_UNSUPPORTED 12
 * bits, lossless, an unknown colour space; LEAT_INVALID more than max_pixels; -ENOMEM. After an error dst's bytes are undefined.
 */
int prep_jpeg(const struct prep_params *params, const uint8_t *bytes, size_t n, uint64_t seed, uint64_t epoch,
              uint64_t index, void *dst, struct prep_scratch *scratch, struct leat_error *err);

/* The same with a crop that the caller chose; it must lie within the upright image, else LEAT_INVALID. */
int prep_jpeg_crop(const struct prep_params *params, const uint8_t *bytes, size_t n,
                   const struct prep_crop *crop, void *dst, struct prep_scratch *scratch,
                   struct leat_error *err);

/* The same from pixels that were decoded before: uint8, R, G, B, rows of 3 * width bytes. Filters as with `exact`. LEAT_INVALID:
 * no pixels, or more than max_pixels; LEAT_UNSUPPORTED as above. */
int prep_pixels(const struct prep_params *params, const uint8_t *pixels, unsigned width, unsigned height,
                uint64_t seed, uint64_t epoch, uint64_t index, void *dst, struct prep_scratch *scratch,
                struct leat_error *err);

/* What the first bytes say: pixels behind the header of a binary PPM ("P6 width height 255", no comments), else a JPEG. */
int prep_image(const struct prep_params *params, const uint8_t *bytes, size_t n, uint64_t seed,
               uint64_t epoch, uint64_t index, void *dst, struct prep_scratch *scratch,
               struct leat_error *err);

/* The size that prep_jpeg_decode will give, from the header. max_pixels 0: PREP_MAX_PIXELS. */
struct prep_size {
    unsigned width, height; /* upright */
    unsigned orientation;   /* EXIF's, 1..8; 1 where there is none, or it is to be ignored */
};
int prep_jpeg_size(const uint8_t *bytes, size_t n, uint64_t max_pixels, bool ignore_orientation,
                   struct prep_scratch *scratch, struct prep_size *ret_size, struct leat_error *err);

/* The whole image, upright, uint8, HWC, rows of 3 * width bytes without a gap; dst_bytes must be their sum, else LEAT_INVALID. */
int prep_jpeg_decode(const uint8_t *bytes, size_t n, uint64_t max_pixels, bool accept_damaged,
                     bool ignore_orientation, void *dst, size_t dst_bytes, struct prep_scratch *scratch,
                     struct leat_error *err);

#endif
