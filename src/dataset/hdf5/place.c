/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c: the place of an HDF5 dataset in the address space: always as one C-ordered array.
 *
 *   contiguous               one RAW extent, as that of a .npy file
 *   chunks of whole rows,    one RAW extent a chunk, clipped at the end of the array
 *   no filters
 *   any other chunks         one CHUNK extent a band of rows (as many as a chunk is high), all its chunks in it
 *   never written            ZERO, or chunks without a source that hold the fill value
 */
#include "dataset/hdf5/table.h"
#include "dataset/scan.h"

#define FILL_PIECE (64 * MIB) /* of an array that was never written: what a reader fills at a time */

static uint64_t row_bytes(const struct hdf5_dataset *d)
{
    uint64_t bytes = d->itemsize;
    for (unsigned i = 1; i < d->ndim; i++)
        bytes *= d->dims[i];
    return bytes;
}

/* Whole elements of fill over [address, +bytes). */
static int add_fill(const struct hdf5_dataset *d, struct index_builder *b, uint32_t source, uint64_t address,
                    uint64_t bytes)
{
    struct index_extent e = {.address = address, .bytes = bytes, .source = source, .kind = INDEX_EXTENT_ZERO};
    if (*d->fill) {
        int64_t fill = index_builder_string(b, d->fill);
        if (fill < 0)
            return (int)fill;
        struct index_shape s = {
            .decoded_bytes = bytes, .run_bytes = bytes, .element_bytes = d->itemsize, .fill = (uint32_t)fill};
        int64_t shape = index_builder_shape(b, &s);
        int64_t chunk =
            shape < 0 ? shape : index_builder_chunk(b, &(struct index_chunk){.shape = (uint32_t)shape});
        if (chunk < 0)
            return (int)chunk;
        e.kind = INDEX_EXTENT_CHUNK;
        e.chunk = (uint64_t)chunk;
        e.nchunk = 1;
    }
    return index_builder_extent(b, &e);
}

static int place_absent(const struct hdf5_dataset *d, struct index_builder *b, uint32_t source,
                        uint64_t *ret_address)
{
    uint64_t total = d->dims[0] * row_bytes(d), at = index_builder_reserve(b, total, INDEX_FILE_ALIGN, 0);
    *ret_address = at;
    /* At most some thousand pieces, whatever size a file claims for data that it does not hold. */
    uint64_t piece = MAX(FILL_PIECE, total >> 12);
    piece -= piece % d->itemsize;
    if (*d->fill && piece > INDEX_CHUNK_MAX)
        return -EOVERFLOW;
    int rc = 0;
    for (uint64_t done = 0; done < total && rc == 0; done += piece)
        rc = add_fill(d, b, source, at + done, MIN(piece, total - done));
    return rc;
}

/* How the chunk at grid position k lies in the array: loops for what is not contiguous on both sides. */
static void make_shape(const struct hdf5_dataset *d, const uint64_t *k, struct index_shape *s,
                       uint64_t *ret_offset)
{
    uint64_t decoded_step = d->itemsize, extent_step = d->itemsize;
    bool contiguous = true;
    *s = (struct index_shape){.run_bytes = d->itemsize, .element_bytes = d->itemsize};
    *ret_offset = 0;
    uint64_t counts[INDEX_MAX_DIMS + 1], from[INDEX_MAX_DIMS + 1], to[INDEX_MAX_DIMS + 1];
    unsigned n = 0; /* loops, innermost first */
    for (unsigned i = d->ndim; i-- > 0;) {
        uint64_t kept = MIN(d->chunk_dims[i], d->dims[i] - k[i] * d->chunk_dims[i]);
        if (i > 0)
            *ret_offset += k[i] * d->chunk_dims[i] * extent_step;
        contiguous = contiguous && decoded_step == s->run_bytes && extent_step == s->run_bytes;
        if (contiguous) {
            s->run_bytes *= kept;
        } else if (kept > 1) {
            counts[n] = kept;
            from[n] = decoded_step;
            to[n++] = extent_step;
        }
        decoded_step *= d->chunk_dims[i];
        extent_step *= d->dims[i];
    }
    s->decoded_bytes = decoded_step;
    s->nloops = n; /* at most ndim - 1: the innermost dimension is always part of the run */
    for (unsigned i = 0; i < n; i++) {
        s->loops[i].count = counts[n - 1 - i];
        s->loops[i].decoded_step = from[n - 1 - i];
        s->loops[i].extent_step = to[n - 1 - i];
    }
}

static int add_chunk(const struct hdf5_dataset *d, struct index_builder *b, const uint64_t *k,
                     const struct hdf5_chunk *c, uint32_t fill, uint64_t *ret_number)
{
    struct index_shape s;
    struct index_chunk chunk = {.source_offset = c->bytes ? c->offset : 0, .source_bytes = c->bytes};
    make_shape(d, k, &s, &chunk.extent_offset);
    s.filters = c->filters;
    s.fill = fill;
    int64_t shape = index_builder_shape(b, &s);
    if (shape < 0)
        return (int)shape;
    chunk.shape = (uint32_t)shape;
    int64_t number = index_builder_chunk(b, &chunk);
    if (number < 0)
        return (int)number;
    *ret_number = (uint64_t)number;
    return 0;
}

/* The chunks of one band of rows, in the order of the grid. */
static int add_band(const struct hdf5_dataset *d, struct index_builder *b, uint64_t band, uint64_t per_band,
                    uint32_t fill, struct index_extent *e)
{
    uint64_t k[INDEX_MAX_DIMS + 1] = {band}, number = 0;
    for (uint64_t c = 0; c < per_band; c++) {
        int rc = add_chunk(d, b, k, &d->chunks[band * per_band + c], fill, &number);
        if (rc < 0)
            return rc;
        if (c == 0)
            e->chunk = number;
        for (unsigned i = d->ndim - 1; i > 0; i--) {
            if (++k[i] < div_up(d->dims[i], d->chunk_dims[i]))
                break;
            k[i] = 0;
        }
    }
    e->kind = INDEX_EXTENT_CHUNK;
    e->nchunk = (uint32_t)per_band;
    return index_builder_extent(b, e);
}

static int place_chunked(const struct hdf5_dataset *d, struct index_builder *b, uint32_t source,
                         uint64_t *ret_address)
{
    uint64_t row = row_bytes(d), per_band = 1;
    bool whole_rows = true;
    for (unsigned i = 1; i < d->ndim; i++) {
        per_band *= div_up(d->dims[i], d->chunk_dims[i]);
        whole_rows = whole_rows && d->chunk_dims[i] == d->dims[i];
    }
    int64_t fill = index_builder_string(b, d->fill);
    if (fill < 0)
        return (int)fill;
    uint64_t at = index_builder_reserve(b, d->dims[0] * row, INDEX_FILE_ALIGN, 0);
    *ret_address = at;
    int rc = 0;
    for (uint64_t first = 0, band = 0; first < d->dims[0] && rc == 0; first += d->chunk_dims[0], band++) {
        const struct hdf5_chunk *c = &d->chunks[band * per_band];
        uint64_t bytes = MIN(d->chunk_dims[0], d->dims[0] - first) * row;
        struct index_extent e = {.address = at + first * row, .bytes = bytes, .source = source};
        if (whole_rows && c->bytes && c->filters == 0) {
            e.kind = INDEX_EXTENT_RAW;
            e.source_offset = c->offset;
            e.source_bytes = bytes;
            rc = index_builder_extent(b, &e);
        } else if (whole_rows && !c->bytes && !*d->fill) {
            rc = add_fill(d, b, source, e.address, bytes);
        } else {
            rc = add_band(d, b, band, per_band, (uint32_t)fill, &e);
        }
    }
    return rc;
}

int hdf5_place(const struct hdf5_dataset *d, uint64_t rows, struct index_builder *b, uint32_t source,
               uint64_t *ret_address, struct leat_error *err)
{
    uint64_t row = row_bytes(d);
    switch (d->layout) {
    case HDF5_CONTIGUOUS:
        return scan_place_raw(b, source, d->offset, d->dims[0] * row, row * rows, ret_address);
    case HDF5_CHUNKED:
        return place_chunked(d, b, source, ret_address);
    default:
        return place_absent(d, b, source, ret_address);
    }
}
