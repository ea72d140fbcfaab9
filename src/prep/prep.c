/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prep.c: one image: which part, how it lies, and the pass over its rows.
 *
 * Happy path. The header gives the size; a crop is drawn; crop, flip and orientation become two axes (struct axis) in the frame of the
 * stored image, each with a filter table. The decoder gives only the rows and columns that the tables need. Rows go into a ring of as
 * many as a vertical filter reaches; whenever an output row has all of its rows: vertical sum, horizontal sum, store. A pixel is
 * touched while it is in the first-level cache, and no image is ever whole in memory (but a progressive one inside libjpeg).
 *
 * Orientation and flips cost nothing: mirrored columns are a reversed table, mirrored rows a negative stride, an image on its side
 * strides exchanged.
 *
 * Failure modes: decoder.h's; -ENOMEM; LEAT_UNSUPPORTED rows too many for the ring (a huge image to a few pixels with `exact`).
 */
#include "prep/prep.h"

#include <math.h>

#include "prep/decoder.h"
#include "prep/kernels.h"

#define RING_MAX (64 * MIB)
#define OFF_GRID 16

struct prep_scratch {
    struct decoder decoder;
    struct filter_cache filters;
    const struct kernels *kernels;
    uint8_t *room; /* rows; also the pointers to them */
    size_t room_bytes;
};

int prep_scratch_new(struct prep_scratch **ret_scratch)
{
    struct prep_scratch *scratch = calloc(1, sizeof(*scratch));
    if (!scratch)
        return -ENOMEM;
    scratch->kernels = kernels_best();
    *ret_scratch = scratch;
    return 0;
}

void prep_scratch_free(struct prep_scratch *scratch)
{
    if (!scratch)
        return;
    decoder_fini(&scratch->decoder);
    filter_cache_fini(&scratch->filters);
    free(scratch->room);
    free(scratch);
}

void prep_scratch_kernels(struct prep_scratch *scratch, const struct kernels *kernels)
{
    scratch->kernels = kernels ? kernels : kernels_best();
}

static int scratch_room(struct prep_scratch *scratch, size_t bytes, struct leat_error *err)
{
    if (bytes <= scratch->room_bytes)
        return 0;
    bytes = align_up(bytes + bytes / 4, 64);
    void *room = aligned_alloc(64, bytes);
    if (!room)
        return error_sys(err, -ENOMEM, "rows of an image");
    memset(room, 0,
           bytes); /* kernels read a little past a row; what is there does not count, but is defined */
    free(scratch->room);
    scratch->room = room;
    scratch->room_bytes = bytes;
    return 0;
}

/* One direction of the image. Positions in pixels of the frame in question. */
struct axis {
    unsigned size;             /* of the image */
    double start, extent;      /* the part that is resized */
    unsigned full, skip, outs; /* to `full` pixels, of which these are wanted */
    bool reverse;
};

static void mirror(struct axis *axis)
{
    axis->start = axis->size - axis->start - axis->extent;
    axis->skip = axis->full - axis->skip - axis->outs;
    axis->reverse = !axis->reverse;
}

struct job {
    const struct prep_params *params;
    struct prep_scratch *scratch;
    uint64_t seed, epoch, index;
    const struct prep_crop *crop; /* given, else drawn */
    const uint8_t *bytes;
    size_t n;
    uint8_t *dst;
    struct leat_error *err;
};

static bool on_its_side(unsigned orientation)
{
    return orientation >= 5;
}

static bool columns_reversed(unsigned orientation)
{
    return orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
}

static bool rows_reversed(unsigned orientation)
{
    return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

static int choose_axes(const struct job *job, unsigned width, unsigned height, struct axis *ret_x,
                       struct axis *ret_y)
{
    const struct prep_params *p = job->params;
    *ret_x = (struct axis){.size = width, .extent = width, .outs = p->out_width};
    *ret_y = (struct axis){.size = height, .extent = height, .outs = p->out_height};
    if (p->mode == PREP_CENTER_CROP && !job->crop) {
        uint64_t longer = (uint64_t)p->resize * MAX(width, height) / MIN(width, height);
        if (longer > 64ull * PREP_MAX_OUT)
            return error_set(job->err, LEAT_UNSUPPORTED, "an image of %u x %u pixels is too narrow to resize",
                             width, height);
        ret_x->full = width <= height ? p->resize : (unsigned)longer;
        ret_y->full = width <= height ? (unsigned)longer : p->resize;
        ret_x->skip = (unsigned)rint((ret_x->full - ret_x->outs) / 2.0);
        ret_y->skip = (unsigned)rint((ret_y->full - ret_y->outs) / 2.0);
        return 0;
    }
    struct prep_crop crop;
    if (job->crop)
        crop = *job->crop;
    else
        prep_random_crop(p, width, height, job->seed, job->epoch, job->index, &crop);
    if (!crop.width || !crop.height || crop.width > width || crop.left > width - crop.width ||
        crop.height > height || crop.top > height - crop.height)
        return error_set(job->err, LEAT_INVALID, "a crop of %u x %u pixels at %u, %u of an image of %u x %u",
                         crop.width, crop.height, crop.left, crop.top, width, height);
    ret_x->start = crop.left;
    ret_x->extent = crop.width;
    ret_x->full = ret_x->outs;
    ret_x->reverse = crop.flip;
    ret_y->start = crop.top;
    ret_y->extent = crop.height;
    ret_y->full = ret_y->outs;
    return 0;
}

/* The table of an axis of an image that the decoder shrinks; *ret_base is the first pixel that it may use. */
static int axis_filter(struct prep_scratch *scratch, const struct axis *axis, unsigned shrink,
                       unsigned shrunk_size, enum prep_filter_kind kind, bool reverse, unsigned *ret_base,
                       struct filter *ret_filter, struct leat_error *err)
{
    double start = axis->start / shrink, extent = axis->extent / shrink, base = floor(start);
    unsigned end = MIN((unsigned)ceil(start + extent), shrunk_size);
    struct filter_key key = {.start = start - base,
                             .extent = extent,
                             .source = end - (unsigned)base,
                             .full = axis->full,
                             .skip = axis->skip,
                             .outs = axis->outs,
                             .kind = kind,
                             .reverse = reverse};
    *ret_base = (unsigned)base;
    return filter_get(&scratch->filters, &key, ret_filter, err);
}

static struct store store_of(const struct prep_params *p, unsigned n, bool side)
{
    struct store store = {
        .format = p->format, .n = n, .x = side ? p->stride_y : p->stride_x, .c = p->stride_c};
    for (unsigned c = 0; c < 3; c++) {
        store.times[c] = (float)(1.0 / (255.0 * (1 << ACC_BITS) * (double)p->std[c]));
        store.plus[c] = (float)(-(double)p->mean[c] / (double)p->std[c]);
    }
    return store;
}

/* Where rows come from: a decoder, or pixels that lie there already (decoder is NULL). */
struct source {
    struct decoder *decoder;
    const uint8_t *pixels;
    size_t line;            /* bytes from row to row */
    unsigned width, height; /* as stored */
    unsigned column, row;   /* of pixels: the first column that is wanted, the next row */
};

/* R, G, B to R, G, B and one that does not count: the copy reads a byte beyond its pixel, so that the last goes by itself. */
static void expand(uint8_t *restrict to, const uint8_t *restrict from, unsigned n)
{
    for (unsigned x = 0; x + 1 < n; x++)
        memcpy(to + 4 * (size_t)x, from + 3 * (size_t)x, 4);
    memcpy(to + 4 * (size_t)(n - 1), from + 3 * (size_t)(n - 1), 3);
}

static void next_row(struct source *source, uint8_t *row, unsigned columns)
{
    if (source->decoder)
        decoder_row(source->decoder, row);
    else
        expand(row, source->pixels + source->row++ * source->line + 3 * (size_t)source->column, columns);
}

/* The axes of the image as it is stored. */
static int stored_axes(const struct job *job, const struct source *source, unsigned orientation,
                       struct axis *ret_x, struct axis *ret_y)
{
    bool side = on_its_side(orientation);
    struct axis upright[2]; /* x, y */
    int rc = choose_axes(job, side ? source->height : source->width, side ? source->width : source->height,
                         &upright[0], &upright[1]);
    if (rc)
        return rc;
    *ret_x = upright[side];
    *ret_y = upright[!side];
    if (columns_reversed(orientation))
        mirror(ret_x);
    if (rows_reversed(orientation))
        mirror(ret_y);
    return 0;
}

/* Scratch memory of a pass. */
struct room {
    uint8_t *ring; /* as many rows as the vertical filter reaches, row_bytes each */
    size_t row_bytes;
    int16_t *mid; /* a row after the vertical filter, from across.low on */
    int32_t *acc; /* one after both */
    const uint8_t **rows;
};

/* For rows of `width` pixels, to `outs`. */
static int make_room(const struct job *job, unsigned width, const struct filter *across,
                     const struct filter *down, unsigned outs, struct room *ret_room)
{
    struct prep_scratch *scratch = job->scratch;
    unsigned columns = across->high - across->low;
    size_t row_bytes = align_up(4 * (size_t)width, KERNEL_BLOCK) + KERNEL_BLOCK;
    size_t mid_bytes =
        2 * (align_up(4 * (size_t)columns, KERNEL_BLOCK) + align_up(4 * (size_t)across->taps, KERNEL_BLOCK));
    size_t acc_bytes = 16 * align_up(outs, 4), rows_bytes = align_up(down->taps * sizeof(uint8_t *), 64);
    if (down->taps * row_bytes > RING_MAX)
        return error_set(job->err, LEAT_UNSUPPORTED, "an output row needs %u rows of %u pixels", down->taps,
                         width);
    int rc = scratch_room(scratch, KERNEL_BLOCK + down->taps * row_bytes + mid_bytes + acc_bytes + rows_bytes,
                          job->err);
    if (rc)
        return rc;
    /* Off the grid of 32 bytes: to aligned rows libjpeg-turbo's colour conversion writes past the caches, and we read them at once. */
    uint8_t *mid = scratch->room + KERNEL_BLOCK + down->taps * row_bytes;
    memset(mid, 0, mid_bytes);
    *ret_room = (struct room){.ring = scratch->room + OFF_GRID,
                              .row_bytes = row_bytes,
                              .mid = (int16_t *)mid,
                              .acc = (int32_t *)(mid + mid_bytes),
                              .rows = (const uint8_t **)(mid + mid_bytes + acc_bytes)};
    return 0;
}

static int pass(const struct job *job, struct source *source, unsigned orientation)
{
    struct prep_scratch *scratch = job->scratch;
    const struct prep_params *p = job->params;
    struct decoder *d = source->decoder;
    struct axis x, y;
    int rc = stored_axes(job, source, orientation, &x, &y);
    if (rc)
        return rc;
    unsigned shrink = 1, width = source->width, height = source->height;
    if (d) {
        while (!p->exact && shrink < 8 && x.extent >= 2.0 * shrink * x.full &&
               y.extent >= 2.0 * shrink * y.full)
            shrink *= 2;
        rc = decoder_start(d, JCS_EXT_RGBX, shrink);
        if (rc)
            return rc;
        width = d->info.output_width;
        height = d->info.output_height;
    }

    struct filter across, down;
    unsigned left, top, from = 0;
    rc = axis_filter(scratch, &x, shrink, width, p->filter, x.reverse, &left, &across, job->err);
    if (!rc) /* rows are made in the order in which they are decoded: y.reverse is in the stride */
        rc = axis_filter(scratch, &y, shrink, height, p->filter, false, &top, &down, job->err);
    if (rc)
        return rc;
    unsigned columns = across.high - across.low;
    if (d) {
        decoder_columns(d, left + across.low, columns, &from);
        from = left + across.low - from; /* pixels of each row before those that count */
        width = d->info.output_width;
    } else {
        source->column = left + across.low;
        width = columns;
    }
    struct room room = {0};
    rc = make_room(job, width, &across, &down, x.outs, &room);
    if (rc)
        return rc;

    bool side = on_its_side(orientation);
    struct store store = store_of(p, x.outs, side);
    ptrdiff_t step = side ? p->stride_x : p->stride_y;
    uint8_t *dst = job->dst;
    if (y.reverse) {
        dst += step * (ptrdiff_t)(y.outs - 1);
        step = -step;
    }
    if (d)
        decoder_skip(d, top + down.low, room.ring);
    source->row = top + down.low;
    unsigned have = 0, most = down.high - down.low;
    const int16_t *weights = down.weights;
    for (unsigned i = 0; i < y.outs; i++, weights += down.taps, dst += step) {
        unsigned first = (unsigned)down.first[i];
        for (; have < MIN(first + down.taps, most); have++)
            next_row(source, room.ring + have % down.taps * room.row_bytes, columns);
        for (unsigned t = 0; t < down.taps; t++) /* behind the last row: a tap that weighs nothing */
            room.rows[t] =
                room.ring + MIN(first + t, most - 1) % down.taps * room.row_bytes + 4 * (size_t)from;
        scratch->kernels->vertical(room.mid, room.rows, weights, down.taps, 4 * (size_t)columns);
        scratch->kernels->horizontal(room.acc, room.mid, &across);
        scratch->kernels->store(&store, dst, room.acc);
    }
    return 0;
}

static int prepare(struct decoder *d, void *arg)
{
    struct job *job = arg;
    int rc = decoder_header(d, job->params->max_pixels);
    if (rc)
        return rc;
    struct source source = {.decoder = d, .width = d->info.image_width, .height = d->info.image_height};
    return pass(job, &source, job->params->ignore_orientation ? 1 : exif_orientation(job->bytes, job->n));
}

static int run(struct job *job)
{
    return decoder_run(&job->scratch->decoder, job->bytes, job->n, job->params->accept_damaged, prepare, job,
                       job->err);
}

int prep_jpeg(const struct prep_params *params, const uint8_t *bytes, size_t n, uint64_t seed, uint64_t epoch,
              uint64_t index, void *dst, struct prep_scratch *scratch, struct leat_error *err)
{
    struct job job = {params, scratch, seed, epoch, index, NULL, bytes, n, dst, err};
    return run(&job);
}

int prep_jpeg_crop(const struct prep_params *params, const uint8_t *bytes, size_t n,
                   const struct prep_crop *crop, void *dst, struct prep_scratch *scratch,
                   struct leat_error *err)
{
    struct job job = {params, scratch, 0, 0, 0, crop, bytes, n, dst, err};
    return run(&job);
}

/* ---- pixels ---- */

int prep_pixels(const struct prep_params *params, const uint8_t *pixels, unsigned width, unsigned height,
                uint64_t seed, uint64_t epoch, uint64_t index, void *dst, struct prep_scratch *scratch,
                struct leat_error *err)
{
    uint64_t most = params->max_pixels ? params->max_pixels : PREP_MAX_PIXELS;
    if (!width || !height || (uint64_t)width * height > most)
        return error_set(err, LEAT_INVALID, "an image of %u x %u pixels: at most %llu are taken", width,
                         height, (unsigned long long)most);
    struct job job = {params, scratch, seed, epoch, index, NULL, NULL, 0, dst, err};
    struct source source = {.pixels = pixels, .line = 3 * (size_t)width, .width = width, .height = height};
    return pass(&job, &source, 1);
}

/* A number of a PPM's header, behind at least one white space. 0: there is none. */
static unsigned header_number(const uint8_t *bytes, size_t n, size_t *at)
{
    size_t i = *at;
    unsigned found = 0, digits = 0;
    while (i < n && (bytes[i] == ' ' || bytes[i] == '\n' || bytes[i] == '\t' || bytes[i] == '\r'))
        i++;
    if (i == *at)
        return 0;
    for (; i < n && bytes[i] >= '0' && bytes[i] <= '9' && digits < 8; i++, digits++)
        found = found * 10 + (unsigned)(bytes[i] - '0');
    *at = i;
    return found;
}

int prep_image(const struct prep_params *params, const uint8_t *bytes, size_t n, uint64_t seed,
               uint64_t epoch, uint64_t index, void *dst, struct prep_scratch *scratch,
               struct leat_error *err)
{
    if (n < 2 || bytes[0] != 'P' || bytes[1] != '6')
        return prep_jpeg(params, bytes, n, seed, epoch, index, dst, scratch, err);
    size_t at = 2;
    unsigned width = header_number(bytes, n, &at), height = header_number(bytes, n, &at);
    if (!width || !height || header_number(bytes, n, &at) != 255 || at == n)
        return error_set(err, LEAT_UNSUPPORTED, "a PPM whose header is not width, height and 255");
    at++; /* one white space */
    if ((n - at) / 3 / width < height)
        return error_set(err, LEAT_CORRUPT, "a PPM of %u x %u pixels in %zu bytes", width, height, n);
    return prep_pixels(params, bytes + at, width, height, seed, epoch, index, dst, scratch, err);
}

/* ---- the whole image ---- */

struct whole {
    const uint8_t *bytes;
    size_t n;
    uint64_t max_pixels;
    bool ignore_orientation;
    struct prep_size *ret_size; /* then no more */
    uint8_t *dst;
    size_t dst_bytes;
    struct prep_scratch *scratch;
};

static int decode_whole(struct decoder *d, void *arg)
{
    struct whole *job = arg;
    int rc = decoder_header(d, job->max_pixels);
    if (rc)
        return rc;
    unsigned orientation = job->ignore_orientation ? 1 : exif_orientation(job->bytes, job->n);
    bool side = on_its_side(orientation);
    unsigned w = d->info.image_width, h = d->info.image_height;
    struct prep_size size = {side ? h : w, side ? w : h, orientation};
    if (job->ret_size) {
        *job->ret_size = size;
        return 0;
    }
    if ((uint64_t)w * h * 3 != job->dst_bytes)
        return error_set(d->err, LEAT_INVALID, "an image of %u x %u pixels takes %llu bytes, not %zu",
                         size.width, size.height, (unsigned long long)w * h * 3, job->dst_bytes);
    rc = decoder_start(d, JCS_EXT_RGBX, 1);
    if (!rc)
        rc = scratch_room(job->scratch, 4 * (size_t)w, d->err);
    if (rc)
        return rc;
    uint8_t *row = job->scratch->room;
    ptrdiff_t line = 3 * (ptrdiff_t)size.width, x_step = side ? line : 3, y_step = side ? 3 : line;
    uint8_t *origin = job->dst;
    if (columns_reversed(orientation)) {
        origin += x_step * (ptrdiff_t)(w - 1);
        x_step = -x_step;
    }
    if (rows_reversed(orientation)) {
        origin += y_step * (ptrdiff_t)(h - 1);
        y_step = -y_step;
    }
    for (unsigned y = 0; y < h; y++, origin += y_step) {
        decoder_row(d, row);
        uint8_t *to = origin;
        for (const uint8_t *p = row, *end = row + 4 * (size_t)w; p < end; p += 4, to += x_step)
            memcpy(to, p, 3);
    }
    return 0;
}

int prep_jpeg_size(const uint8_t *bytes, size_t n, uint64_t max_pixels, bool ignore_orientation,
                   struct prep_scratch *scratch, struct prep_size *ret_size, struct leat_error *err)
{
    struct whole job = {.bytes = bytes,
                        .n = n,
                        .max_pixels = max_pixels,
                        .ignore_orientation = ignore_orientation,
                        .ret_size = ret_size};
    return decoder_run(&scratch->decoder, bytes, n, false, decode_whole, &job, err);
}

int prep_jpeg_decode(const uint8_t *bytes, size_t n, uint64_t max_pixels, bool accept_damaged,
                     bool ignore_orientation, void *dst, size_t dst_bytes, struct prep_scratch *scratch,
                     struct leat_error *err)
{
    struct whole job = {bytes, n, max_pixels, ignore_orientation, NULL, dst, dst_bytes, scratch};
    return decoder_run(&scratch->decoder, bytes, n, accept_damaged, decode_whole, &job, err);
}
