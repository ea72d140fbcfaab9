/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.h: libjpeg-turbo, fenced: bytes in memory, errors as codes, no way out but one.
 *
 * libjpeg leaves by longjmp. decoder_run is the only place that it comes back to, and nothing between here and there owns anything:
 * what is allocated meanwhile belongs to the scratch, or to libjpeg, which is told to let go in the same place.
 */
#ifndef PREP_DECODER_H
#define PREP_DECODER_H

#include "prep/prep.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

struct decoder {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    bool made;    /* info is a decompressor */
    bool strict;  /* damage is an error */
    bool ended;   /* the decoder asked for more than there was */
    bool partial; /* rows may be skipped and columns left out */
    int rc;
    struct leat_error *err;
};

/* EXIF's orientation, 1..8; 1 where there is none or it makes no sense. Reads markers only; any bytes will do. */
unsigned exif_orientation(const uint8_t *bytes, size_t n);

/* Calls body between opening and abandoning an image; what libjpeg or decoder_fail says ends it. Returns body's code, or theirs. */
int decoder_run(struct decoder *d, const uint8_t *bytes, size_t n, bool accept_damaged,
                int (*body)(struct decoder *d, void *arg), void *arg, struct leat_error *err);
void decoder_fini(struct decoder *d);

/* Within body: */
/* Reads the header and refuses what may not be decoded; afterwards info.image_width and so on are valid. */
int decoder_header(struct decoder *d, uint64_t max_pixels);
/* Starts decoding to `space` (CMYK images come as CMYK whatever it is), shrunk by 1, 2, 4 or 8. */
int decoder_start(struct decoder *d, J_COLOR_SPACE space, unsigned shrink);
/* Leaves out columns as far as whole blocks allow: `left` and `width` are wanted, *ret_left is where rows begin instead. */
void decoder_columns(struct decoder *d, unsigned left, unsigned width, unsigned *ret_left);
/* Leaves out rows; `row` is room for one. */
void decoder_skip(struct decoder *d, unsigned rows, uint8_t *row);
/* The next row, of info.output_width pixels; CMYK becomes R, G, B and 255 in place. */
void decoder_row(struct decoder *d, uint8_t *row);

#endif
