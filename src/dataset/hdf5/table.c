/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c: parses the child's table (table.h). Pure. What it accepts fits the file: every stored range lies inside it,
 * sizes do not overflow, and there is exactly one entry for each chunk of the grid.
 */
#include "dataset/hdf5/table.h"

#include "dataset/index_internal.h"
#include "wire/archive/npy.h"
#include "wire/archive/tar.h"

#define NAME_MAX_BYTES 255

void hdf5_table_fini(struct hdf5_table *table)
{
    for (unsigned i = 0; i < table->n; i++) {
        free(table->datasets[i].name);
        free(table->datasets[i].fill);
        free(table->datasets[i].chunks);
    }
    free(table->datasets);
    *table = (struct hdf5_table){0};
}

static int bad(struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "the HDF5 file is damaged: %s", what);
}

/* bytes_get_str; lack of memory is -ENOMEM, a bad string in->bad, with *ret_s NULL. */
static int get_text(struct bytes_in *in, size_t max, char **ret_s)
{
    uint32_t len = bytes_get_u32(in);
    const char *s = len <= max ? bytes_get(in, len) : NULL;
    if (!s || memchr(s, 0, len)) {
        in->bad = true;
        return 0;
    }
    *ret_s = strndup(s, len);
    return *ret_s ? 0 : -ENOMEM;
}

static int parse_error(struct bytes_in *in, struct leat_error *err)
{
    int32_t code = (int32_t)bytes_get_u32(in);
    AUTO_FREE char *message = NULL;
    if (get_text(in, LEAT_ERROR_MESSAGE_MAX - 1, &message) < 0)
        return -ENOMEM;
    if (in->bad)
        return bad(err, "its table is malformed");
    static const int allowed[] = {LEAT_CORRUPT, LEAT_UNSUPPORTED, LEAT_INVALID, LEAT_NOT_FOUND,
                                  LEAT_BUSY,    -ENOMEM,          -EIO};
    int rc = LEAT_CORRUPT;
    for (size_t i = 0; i < ARRAY_LEN(allowed); i++)
        if (code == allowed[i])
            rc = code;
    return error_set(err, rc, "%s", message);
}

static int parse_chunk(struct bytes_in *in, uint64_t decoded_bytes, bool whole_rows, uint64_t file_bytes,
                       struct hdf5_chunk *c, struct leat_error *err)
{
    *c = (struct hdf5_chunk){
        .offset = bytes_get_u64(in), .bytes = bytes_get_u64(in), .filters = bytes_get_u32(in)};
    if (in->bad)
        return bad(err, "its list of chunks is cut short");
    uint64_t end;
    if (add_overflows(c->offset, c->bytes, &end) || end > file_bytes)
        return bad(err, "a chunk lies behind the end of the file; it is truncated");
    if (c->filters & ~(INDEX_FILTER_DEFLATE | INDEX_FILTER_SHUFFLE | INDEX_FILTER_FLETCHER32))
        return bad(err, "a chunk has unknown filters");
    /* Whole rows as they are need no decoding, so they may be of any size. */
    if (whole_rows && c->filters == 0 && c->bytes == decoded_bytes)
        return 0;
    if (c->bytes && decoded_bytes > INDEX_DECODED_MAX)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "its chunks are of %llu bytes, and at most 1 GiB is decoded at a time; rewrite it with smaller "
            "ones (`h5repack -l CHUNK=...`)",
            (unsigned long long)decoded_bytes);
    if (c->bytes && !index_stored_plausible(c->bytes, decoded_bytes, c->filters))
        return bad(err, "a chunk has an impossible size");
    return 0;
}

static int parse_chunked(struct bytes_in *in, struct hdf5_dataset *d, uint64_t file_bytes,
                         struct leat_error *err)
{
    uint64_t decoded = d->itemsize, grid = 1;
    bool whole_rows = true;
    for (unsigned i = 0; i < d->ndim; i++) {
        d->chunk_dims[i] = bytes_get_u64(in);
        if (in->bad || d->chunk_dims[i] == 0 || mul_overflows(decoded, d->chunk_dims[i], &decoded) ||
            decoded > INDEX_CHUNK_MAX || mul_overflows(grid, div_up(d->dims[i], d->chunk_dims[i]), &grid) ||
            grid > HDF5_CHUNKS_MAX)
            return bad(err, "the shape of its chunks is impossible");
        whole_rows = whole_rows && (i == 0 || d->chunk_dims[i] == d->dims[i]);
    }
    /* Each takes 20 bytes of the table: a count that the table cannot hold is refused before memory is asked for. */
    if (grid > bytes_left(in) / 20)
        return bad(err, "its list of chunks is cut short");
    d->chunks = calloc(grid ? grid : 1, sizeof(*d->chunks));
    if (!d->chunks)
        return -ENOMEM;
    d->nchunks = grid;
    for (uint64_t c = 0; c < grid; c++) {
        int rc = parse_chunk(in, decoded, whole_rows, file_bytes, &d->chunks[c], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int parse_type(struct bytes_in *in, struct hdf5_dataset *d, struct leat_error *err)
{
    AUTO_FREE char *dtype = NULL;
    if (get_text(in, NAME_MAX_BYTES, &d->name) < 0 || get_text(in, sizeof(d->dtype) - 1, &dtype) < 0)
        return -ENOMEM;
    d->itemsize = bytes_get_u32(in);
    uint32_t itemsize;
    if (in->bad || !*d->name)
        return bad(err, "a dataset has no name");
    if (tar_path_check(d->name, NULL) < 0)
        return error_set(err, LEAT_INVALID,
                         "the name of one of its datasets is not UTF-8, so it cannot name a field");
    if (npy_dtype(dtype, strlen(dtype), d->dtype, &itemsize, err) < 0 || itemsize != d->itemsize ||
        itemsize == 0 || itemsize > INDEX_ELEMENT_MAX)
        return bad(err, "a dataset has an impossible dtype");
    return 0;
}

static int parse_dataset(struct bytes_in *in, struct hdf5_dataset *d, uint64_t file_bytes,
                         struct leat_error *err)
{
    int rc = parse_type(in, d, err);
    if (rc < 0)
        return rc;
    d->ndim = bytes_get_u8(in);
    if (d->ndim > INDEX_MAX_DIMS + 1)
        return bad(err, "a dataset has too many dimensions");
    uint64_t bytes = d->itemsize;
    bool empty = false;
    for (unsigned i = 0; i < d->ndim; i++) {
        d->dims[i] = bytes_get_u64(in);
        empty = empty || d->dims[i] == 0;
    }
    for (unsigned i = 0; i < d->ndim && !empty; i++)
        if (mul_overflows(bytes, d->dims[i], &bytes) || bytes > INDEX_MAX_ADDRESS)
            return bad(err, "the shape of a dataset overflows");
    if (empty)
        bytes = 0;
    if (get_text(in, 2 * (size_t)INDEX_ELEMENT_MAX, &d->fill) < 0)
        return -ENOMEM;
    if (in->bad || (*d->fill && (strlen(d->fill) != 2 * (size_t)d->itemsize ||
                                 strspn(d->fill, "0123456789abcdef") != 2 * (size_t)d->itemsize)))
        return bad(err, "a dataset has an impossible fill value");
    d->layout = (enum hdf5_layout)bytes_get_u8(in);
    uint64_t end;
    switch (d->layout) {
    case HDF5_CONTIGUOUS:
        d->offset = bytes_get_u64(in);
        if (in->bad || add_overflows(d->offset, bytes, &end) || end > file_bytes)
            return bad(err, "a dataset lies behind the end of the file; it is truncated");
        return 0;
    case HDF5_ABSENT:
        return in->bad ? bad(err, "its table is malformed") : 0;
    case HDF5_CHUNKED:
        return d->ndim ? parse_chunked(in, d, file_bytes, err) : bad(err, "a single value has chunks");
    default:
        return bad(err, "its table is malformed");
    }
}

static int parse_records(struct bytes_in *in, uint64_t file_bytes, struct hdf5_table *t,
                         struct leat_error *err)
{
    if (bytes_get_u32(in) != HDF5_TABLE_MAGIC)
        return bad(err, "leat-hdf5-table gave no table");
    for (;;) {
        uint8_t tag = bytes_get_u8(in);
        if (in->bad)
            return bad(err, "its table is cut short");
        if (tag == HDF5_TABLE_END)
            return bytes_in_done(in) < 0 ? bad(err, "something follows its table") : 0;
        if (tag == HDF5_TABLE_ERROR)
            return parse_error(in, err);
        if (tag != HDF5_TABLE_DATASET)
            return bad(err, "its table is malformed");
        if (t->n == INDEX_MAX_FIELDS)
            return error_set(err, LEAT_UNSUPPORTED,
                             "more than %u datasets lie together; name one, as in \"x.h5#/images\"",
                             INDEX_MAX_FIELDS);
        struct hdf5_dataset *grown = realloc(t->datasets, (t->n + 1) * sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        t->datasets = grown;
        grown[t->n] = (struct hdf5_dataset){0};
        int rc = parse_dataset(in, &grown[t->n++], file_bytes, err);
        if (rc < 0)
            return rc;
    }
}

int hdf5_table_parse(const void *data, size_t len, uint64_t file_bytes, struct hdf5_table *ret_table,
                     struct leat_error *err)
{
    struct bytes_in in = bytes_in_of(data, len);
    struct hdf5_table table = {0};
    int rc = parse_records(&in, file_bytes, &table, err);
    if (rc < 0) {
        hdf5_table_fini(&table);
        return rc;
    }
    *ret_table = table;
    return 0;
}
