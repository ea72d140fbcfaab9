/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.c: happy path: decoder_run opens, body reads header and rows, the image is abandoned (libjpeg need not see its end).
 *
 * Failure modes: an error of libjpeg (damaged header, unknown kind, no memory) leaves by longjmp with a code; so does a warning about
 * damaged data, unless damage is accepted. Some warnings are no damage: see harmless(). The end of the bytes is answered with an EOI marker
 * made up; when libjpeg then misses data it warns, and that is the error. A progressive image is put together in memory before the
 * first row: its size is bounded by the header, its number of scans by a count.
 *
 * Invariant: after decoder_run the decompressor is idle, whatever happened, and owns no memory of an image.
 */
#include "prep/decoder.h"

#include <jerror.h>

#define MAX_SCANS                                                                                            \
    500 /* libjpeg-turbo's advice against images of nothing but scans (its fuzzers use it, too) */

_Noreturn static void leave(struct decoder *d, int rc)
{
    d->rc = rc;
    longjmp(d->back, 1);
}

static struct decoder *of(j_common_ptr info)
{
    return container_of(info->err, struct decoder, errors);
}

static int code_of(int msg)
{
    switch (msg) {
    case JERR_OUT_OF_MEMORY:
        return -ENOMEM;
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_ARITH_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_NOT_COMPILED:
        return LEAT_UNSUPPORTED;
    default:
        return LEAT_CORRUPT;
    }
}

static void say(struct decoder *d, int rc)
{
    char text[JMSG_LENGTH_MAX];
    d->errors.format_message((j_common_ptr)&d->info, text);
    /* A byte of text is no JPEG that was cut off; a file of nothing, or of half a marker, may be one. */
    bool other = d->errors.msg_code == JERR_NO_SOI && d->errors.msg_parm.i[0] != 0xff;
    if (d->ended && !other && rc == LEAT_CORRUPT)
        error_set(d->err, rc, "this JPEG is truncated");
    else if (d->errors.msg_code == JERR_BAD_PRECISION)
        error_set(d->err, rc, "a JPEG of %d bits a sample; only those of 8 are read",
                  d->errors.msg_parm.i[0]);
    else
        error_set(d->err, rc, "JPEG: %s", text);
}

static void on_error(j_common_ptr info)
{
    struct decoder *d = of(info);
    int rc = code_of(d->errors.msg_code);
    say(d, rc);
    leave(d, rc);
}

/* What a file may have, and the pixels are right all the same. */
static bool harmless(int msg)
{
    return msg == JWRN_EXTRANEOUS_DATA || msg == JWRN_ADOBE_XFORM || msg == JWRN_JFIF_MAJOR ||
           msg == JWRN_BOGUS_ICC || msg == JWRN_TOO_MUCH_DATA;
}

static void on_message(j_common_ptr info, int level)
{
    struct decoder *d = of(info);
    if (level >= 0)
        return;
    d->errors.num_warnings++;
    if (d->strict && !harmless(d->errors.msg_code)) {
        say(d, LEAT_CORRUPT);
        leave(d, LEAT_CORRUPT);
    }
}

static void on_progress(j_common_ptr info)
{
    struct decoder *d = of(info);
    if (d->info.input_scan_number > MAX_SCANS) {
        error_set(d->err, LEAT_UNSUPPORTED, "a JPEG of more than %d scans", MAX_SCANS);
        leave(d, LEAT_UNSUPPORTED);
    }
}

static void on_output(j_common_ptr info) {}
static void source_begin(j_decompress_ptr info) {}
static void source_end(j_decompress_ptr info) {}

static boolean source_more(j_decompress_ptr info)
{
    static const JOCTET end[2] = {0xff, JPEG_EOI};
    of((j_common_ptr)info)->ended = true;
    info->src->next_input_byte = end;
    info->src->bytes_in_buffer = sizeof(end);
    return TRUE;
}

static void source_skip(j_decompress_ptr info, long bytes)
{
    while (bytes > 0 && (size_t)bytes > info->src->bytes_in_buffer) {
        bytes -= (long)info->src->bytes_in_buffer;
        source_more(info);
        bytes = 0; /* an end made up is not skipped */
    }
    if (bytes > 0) {
        info->src->next_input_byte += bytes;
        info->src->bytes_in_buffer -= (size_t)bytes;
    }
}

int decoder_run(struct decoder *d, const uint8_t *bytes, size_t n, bool accept_damaged,
                int (*body)(struct decoder *, void *), void *arg, struct leat_error *err)
{
    d->err = err;
    d->strict = !accept_damaged;
    d->ended = false;
    if (!n)
        return error_set(err, LEAT_CORRUPT, "an empty file is no JPEG");
    if (setjmp(d->back)) {
        if (d->made)
            jpeg_abort_decompress(&d->info);
        else
            jpeg_destroy_decompress(&d->info);
        return d->rc;
    }
    if (!d->made) {
        d->info.err = jpeg_std_error(&d->errors);
        d->errors.error_exit = on_error;
        d->errors.emit_message = on_message;
        d->errors.output_message = on_output;
        jpeg_create_decompress(&d->info);
        d->made = true;
        d->source = (struct jpeg_source_mgr){.init_source = source_begin,
                                             .fill_input_buffer = source_more,
                                             .skip_input_data = source_skip,
                                             .resync_to_restart = jpeg_resync_to_restart,
                                             .term_source = source_end};
        d->progress.progress_monitor = on_progress;
        d->info.src = &d->source;
        d->info.progress = &d->progress;
    }
    d->source.next_input_byte = bytes;
    d->source.bytes_in_buffer = n;
    int rc = body(d, arg);
    jpeg_abort_decompress(&d->info);
    return rc;
}

void decoder_fini(struct decoder *d)
{
    if (d->made)
        jpeg_destroy_decompress(&d->info);
    d->made = false;
}

int decoder_header(struct decoder *d, uint64_t max_pixels)
{
    jpeg_read_header(&d->info, TRUE);
    uint64_t pixels = (uint64_t)d->info.image_width * d->info.image_height;
    if (pixels > (max_pixels ? max_pixels : PREP_MAX_PIXELS))
        return error_set(d->err, LEAT_INVALID,
                         "an image of %u x %u pixels: more than the limit of %llu (max_pixels)",
                         d->info.image_width, d->info.image_height,
                         (unsigned long long)(max_pixels ? max_pixels : PREP_MAX_PIXELS));
    switch (d->info.jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
    case JCS_CMYK:
    case JCS_YCCK:
        break;
    default:
        return error_set(d->err, LEAT_UNSUPPORTED, "a JPEG of %d components in no colour space that is known",
                         d->info.num_components);
    }
    d->partial = d->info.num_components <= 3;
    uint64_t coefficients = 0;
    for (int c = 0; c < d->info.num_components; c++) {
        const jpeg_component_info *part = &d->info.comp_info[c];
        coefficients += (uint64_t)part->width_in_blocks * part->height_in_blocks * sizeof(JBLOCK);
        /* Beyond the usual ratios, libjpeg's cropping is little trodden. */
        d->partial &= part->h_samp_factor <= 2 && part->v_samp_factor <= 2;
    }
    if (jpeg_has_multiple_scans(&d->info) && coefficients > PREP_MAX_COEFFICIENT)
        return error_set(
            d->err, LEAT_UNSUPPORTED,
            "a progressive JPEG that takes %llu bytes while it is put together; the limit is %llu",
            (unsigned long long)coefficients, (unsigned long long)PREP_MAX_COEFFICIENT);
    return 0;
}

int decoder_start(struct decoder *d, J_COLOR_SPACE space, unsigned shrink)
{
    bool four = d->info.jpeg_color_space == JCS_CMYK || d->info.jpeg_color_space == JCS_YCCK;
    d->info.out_color_space = four ? JCS_CMYK : space;
    d->info.scale_num = 8 / shrink;
    d->info.scale_denom = 8;
    d->info.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&d->info);
    if (d->strict && d->ended && jpeg_has_multiple_scans(&d->info))
        return error_set(d->err, LEAT_CORRUPT, "this JPEG is truncated: scans are missing");
    return 0;
}

void decoder_columns(struct decoder *d, unsigned left, unsigned width, unsigned *ret_left)
{
    /* One more on each side: chroma is interpolated between neighbours. */
    JDIMENSION from = left ? left - 1 : 0, columns = MIN(left + width + 1, d->info.output_width) - from;
    if (d->partial && columns < d->info.output_width)
        jpeg_crop_scanline(&d->info, &from, &columns);
    else
        from = 0;
    *ret_left = from;
}

void decoder_skip(struct decoder *d, unsigned rows, uint8_t *row)
{
    if (d->partial) {
        if (rows)
            jpeg_skip_scanlines(&d->info, rows);
    } else {
        for (; rows; rows--)
            jpeg_read_scanlines(&d->info, &row, 1);
    }
}

/* v / 255, rounded, for v up to 255 * 255. */
static uint8_t by255(unsigned v)
{
    v += 128;
    return (uint8_t)((v + (v >> 8)) >> 8);
}

void decoder_row(struct decoder *d, uint8_t *row)
{
    jpeg_read_scanlines(&d->info, &row, 1);
    if (d->info.out_color_space != JCS_CMYK)
        return;
    /* Stored inverted, as Adobe writes them and Pillow takes all of them to be: ink c = 255 - stored; red = (255 - k) * (255 - c) / 255. */
    for (uint8_t *p = row, *end = row + 4 * (size_t)d->info.output_width; p < end; p += 4) {
        for (unsigned c = 0; c < 3; c++)
            p[c] = by255((unsigned)p[c] * p[3]);
        p[3] = 255;
    }
}
