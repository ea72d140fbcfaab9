/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode.c: extents whose bytes are not simply the file's: HDF5 chunks, and space that was never written.
 *
 *   pread ──▶ stored ──(fletcher32 checked, cut off)──▶ inflate ──▶ unshuffle ──▶ runs to their place in dst
 *
 * The last filter writes straight to dst where the chunk is one run there. Every offset is checked against the extent
 * first, also for an index that was not validated: nothing is ever written outside of [dst, dst + extent->bytes).
 *
 * Failure modes: LEAT_CORRUPT names the file offset of the chunk (checksum, damaged deflate stream, truncated file);
 * -ENOMEM; errors of pread.
 */
#include <libdeflate.h>

#include "base/fdio.h"
#include "base/hex.h"
#include "base/ledger.h"
#include "dataset/index_internal.h"
#include "dataset/scan.h"

void dataset_scratch_fini(struct dataset_scratch *scratch)
{
    free(scratch->stored);
    free(scratch->decoded);
    if (scratch->inflate)
        libdeflate_free_decompressor(scratch->inflate);
    *scratch = (struct dataset_scratch){0};
}

uint64_t dataset_scratch_bytes(const struct index *ix)
{
    uint64_t stored = 0, decoded = 0, whole = 0, sum;
    for (uint64_t k = 0; k < ix->header->nextents; k++) {
        if (ix->extents[k].kind == INDEX_EXTENT_CHUNK)
            whole = MAX(whole, ix->extents[k].bytes);
    }
    if (!whole)
        return 0;
    for (uint64_t k = 0; k < ix->header->nchunks; k++)
        stored = MAX(stored, ix->chunks[k].source_bytes);
    for (uint64_t k = 0; k < ix->header->nshapes; k++)
        decoded = MAX(decoded, ix->shapes[k].decoded_bytes);
    if (mul_overflows(decoded, 2, &sum) || add_overflows(sum, stored, &sum) ||
        add_overflows(sum, whole, &sum))
        return UINT64_MAX;
    return sum;
}

static int scratch_grow(void **buf, uint64_t *cap, uint64_t bytes)
{
    if (bytes <= *cap)
        return 0;
    free(*buf);
    *cap = 0;
    *buf = malloc(bytes);
    if (!*buf)
        return -ENOMEM;
    *cap = bytes;
    return 0;
}

/* HDF5's Fletcher-32: over 16-bit words, high byte first, folded to ones' complement (H5checksum.c; RFC 1146 has the
 * idea). 360 words is how many sums fit 32 bits. */
static uint32_t fletcher32(const uint8_t *p, uint64_t bytes)
{
    uint32_t a = 0, b = 0;
    for (uint64_t words = bytes / 2; words;) {
        uint64_t n = MIN(words, (uint64_t)360);
        words -= n;
        for (; n; n--, p += 2) {
            a += (uint32_t)(p[0] << 8 | p[1]);
            b += a;
        }
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    if (bytes % 2) {
        a += (uint32_t)(p[0] << 8);
        b += a;
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    a = (a & 0xffff) + (a >> 16);
    b = (b & 0xffff) + (b >> 16);
    return b << 16 | a;
}

/* Byte j of all elements lies together; put each element together again. */
static void unshuffle(uint8_t *restrict out, const uint8_t *restrict in, uint64_t bytes, uint32_t width)
{
    uint64_t n = bytes / width;
    for (uint32_t j = 0; j < width; j++) {
        const uint8_t *plane = in + j * n;
        for (uint64_t i = 0; i < n; i++)
            out[i * width + j] = plane[i];
    }
}

/* Calls for every run: from `src` (a run at its decoded offset), or, when src is NULL, the fill element repeated. */
static void scatter(uint8_t *dst, const struct index_chunk *chunk, const struct index_shape *s,
                    const uint8_t *src, const uint8_t *fill)
{
    uint64_t counter[INDEX_MAX_DIMS] = {0}, to = chunk->extent_offset, from = 0, moved = 0;
    for (;;) {
        if (src)
            memcpy(dst + to, src + from, s->run_bytes);
        else if (!fill)
            memset(dst + to, 0, s->run_bytes);
        else
            for (uint64_t i = 0; i < s->run_bytes; i += s->element_bytes)
                memcpy(dst + to + i, fill, s->element_bytes);
        moved += s->run_bytes;
        int d = (int)s->nloops - 1;
        for (; d >= 0; d--) {
            to += s->loops[d].extent_step;
            from += s->loops[d].decoded_step;
            if (++counter[d] < s->loops[d].count)
                break;
            to -= s->loops[d].count * s->loops[d].extent_step;
            from -= s->loops[d].count * s->loops[d].decoded_step;
            counter[d] = 0;
        }
        if (d < 0)
            break;
    }
    if (src)
        ledger_add(LEDGER_DECODE, moved);
}

static int fill_chunk(const struct index *ix, uint8_t *dst, const struct index_chunk *chunk,
                      const struct index_shape *s, struct leat_error *err)
{
    const char *hex = s->fill < ix->header->sections[INDEX_STRINGS].bytes ? index_string(ix, s->fill) : "";
    AUTO_FREE uint8_t *fill = NULL;
    if (*hex) {
        fill = malloc(s->element_bytes);
        if (!fill)
            return -ENOMEM;
        if (strlen(hex) != 2 * (size_t)s->element_bytes || !hex_get(hex, s->element_bytes, fill))
            return error_set(err, LEAT_CORRUPT, "the index holds a wrong fill value");
    }
    scatter(dst, chunk, s, NULL, fill);
    return 0;
}

static int damaged(const struct index_chunk *chunk, struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "the chunk at offset %llu %s",
                     (unsigned long long)chunk->source_offset, what);
}

static bool is_shuffled(const struct index_shape *s)
{
    return (s->filters & INDEX_FILTER_SHUFFLE) && s->element_bytes > 1;
}

/* Undoes the filters: *ret_out is `decoded_bytes` of the chunk, in `direct` if that is given and a filter ran. */
static int undo_filters(const struct index_chunk *chunk, const struct index_shape *s, uint8_t *direct,
                        struct dataset_scratch *scratch, const uint8_t **ret_out, struct leat_error *err)
{
    const uint8_t *data = scratch->stored;
    uint64_t bytes = chunk->source_bytes;
    bool shuffled = is_shuffled(s);
    if (s->filters & INDEX_FILTER_FLETCHER32) {
        if (bytes < 4)
            return damaged(chunk, err, "is too short for its checksum");
        bytes -= 4;
        uint32_t want;
        memcpy(&want, data + bytes, 4);
        if (fletcher32(data, bytes) != want)
            return damaged(chunk, err, "does not match its checksum");
    }
    if (s->filters & INDEX_FILTER_DEFLATE) {
        uint8_t *out = shuffled || !direct ? scratch->decoded : direct;
        if (libdeflate_zlib_decompress(scratch->inflate, data, bytes, out, s->decoded_bytes, NULL) !=
            LIBDEFLATE_SUCCESS)
            return damaged(chunk, err, "is damaged: it does not inflate to its size");
        data = out;
    } else if (bytes != s->decoded_bytes) {
        return damaged(chunk, err, "has the wrong size");
    }
    if (shuffled) {
        uint64_t behind = s->filters & INDEX_FILTER_DEFLATE ? s->decoded_bytes : 0;
        uint8_t *out = direct ? direct : (uint8_t *)scratch->decoded + behind;
        unshuffle(out, data, s->decoded_bytes, s->element_bytes);
        data = out;
    }
    *ret_out = data;
    return 0;
}

static int decode_chunk(const struct index *ix, const struct index_chunk *chunk, const struct index_shape *s,
                        int fd, uint8_t *dst, struct dataset_scratch *scratch, struct leat_error *err)
{
    if (chunk->source_bytes == 0)
        return fill_chunk(ix, dst, chunk, s, err);
    if (!index_stored_plausible(chunk->source_bytes, s->decoded_bytes, s->filters))
        return damaged(chunk, err, "has an impossible size");
    if (!scratch->inflate && !(scratch->inflate = libdeflate_alloc_decompressor()))
        return -ENOMEM;
    bool one_run = s->nloops == 0 && s->run_bytes == s->decoded_bytes;
    bool inflated = s->filters & INDEX_FILTER_DEFLATE, shuffled = is_shuffled(s);
    /* In `decoded`: inflated bytes, if not yet in their place, and behind them unshuffled ones, likewise. */
    uint64_t room = (inflated && (shuffled || !one_run) ? s->decoded_bytes : 0) +
                    (shuffled && !one_run ? s->decoded_bytes : 0);
    int rc = scratch_grow(&scratch->stored, &scratch->stored_cap, chunk->source_bytes);
    if (rc == 0)
        rc = scratch_grow(&scratch->decoded, &scratch->decoded_cap, room);
    if (rc < 0)
        return rc;
    int64_t n = fd_read_at(fd, scratch->stored, chunk->source_bytes, chunk->source_offset);
    if (n < 0)
        return error_sys(err, (int)n, "the chunk at offset %llu cannot be read",
                         (unsigned long long)chunk->source_offset);
    if ((uint64_t)n != chunk->source_bytes)
        return damaged(chunk, err, "is cut off: the file is shorter than it was");
    const uint8_t *data = NULL;
    rc = undo_filters(chunk, s, one_run ? dst + chunk->extent_offset : NULL, scratch, &data, err);
    if (rc == 0 && data != dst + chunk->extent_offset)
        scatter(dst, chunk, s, data, NULL);
    return rc;
}

int dataset_extent_decode(const struct index *ix, const struct index_extent *extent, int fd, void *dst,
                          struct dataset_scratch *scratch, struct leat_error *err)
{
    if (extent->kind == INDEX_EXTENT_ZERO) {
        memset(dst, 0, extent->bytes);
        return 0;
    }
    uint64_t nchunks = ix->header->nchunks;
    if (extent->kind != INDEX_EXTENT_CHUNK || extent->chunk > nchunks ||
        extent->nchunk > nchunks - extent->chunk)
        return error_set(err, LEAT_CORRUPT, "the index holds an extent that cannot be decoded");
    for (uint64_t c = extent->chunk; c < extent->chunk + extent->nchunk; c++) {
        const struct index_chunk *chunk = &ix->chunks[c];
        const struct index_shape *s = chunk->shape < ix->header->nshapes ? &ix->shapes[chunk->shape] : NULL;
        if (!s || !index_shape_sound(s) || !index_chunk_fits(chunk, s, extent->bytes))
            return error_set(err, LEAT_CORRUPT, "the index holds a chunk that lies outside of its extent");
        int rc = decode_chunk(ix, chunk, s, fd, dst, scratch, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
