/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrays.c: arrays that are opened together: one field each, sample i is row i of all, or so many rows
 * together. Their numbers of samples must agree; the formats place them.
 */
#include <stdio.h>

#include "dataset/scan.h"

void scan_arrays_fini(struct scan_arrays *arrays)
{
    for (unsigned i = 0; i < arrays->n; i++) {
        struct scan_array *a = &arrays->items[i];
        free(a->field);
        free(a->path);
        free(a->shown);
        if (a->format_fini)
            a->format_fini(a->format);
        free(a->format);
    }
    free(arrays->items);
    *arrays = (struct scan_arrays){0};
}

struct scan_array *scan_arrays_add(struct scan_arrays *arrays)
{
    struct scan_array *items = realloc(arrays->items, (arrays->n + 1) * sizeof(*items));
    if (!items)
        return NULL;
    arrays->items = items;
    items[arrays->n] = (struct scan_array){0};
    return &items[arrays->n++];
}

/* Formats check that the product of the shape does not overflow. */
uint64_t scan_array_row_bytes(const struct scan_array *array)
{
    uint64_t bytes = array->itemsize;
    for (unsigned d = 1; d < array->ndim; d++)
        bytes *= array->shape[d];
    return bytes;
}

uint64_t scan_array_sample_bytes(const struct scan_array *array)
{
    return scan_array_row_bytes(array) * MAX(array->rows, (uint64_t)1);
}

/*
 * Would samples lie over more pages than necessary, if addresses equal the offsets in the file, behind its
 * header? Then the first is put at a border. This helps only where the others then begin at one as well, or
 * lie between two.
 */
static bool better_at_border(uint64_t offset, uint64_t sample_bytes)
{
    const uint64_t page = INDEX_FILE_ALIGN;
    return sample_bytes % page == 0 ? offset % page != 0
                                    : page % sample_bytes == 0 && offset % sample_bytes != 0;
}

int scan_place_raw(struct index_builder *b, uint32_t source, uint64_t offset, uint64_t bytes,
                   uint64_t sample_bytes, uint64_t *ret_address)
{
    uint64_t phase = better_at_border(offset, sample_bytes) ? 0 : offset % INDEX_FILE_ALIGN;
    uint64_t at = index_builder_reserve(b, align_up(phase + bytes, INDEX_FILE_ALIGN), INDEX_FILE_ALIGN, 0);
    *ret_address = at + phase;
    return index_builder_extent(b, &(struct index_extent){.address = at + phase,
                                                          .bytes = bytes,
                                                          .source_offset = offset,
                                                          .source_bytes = bytes,
                                                          .source = source,
                                                          .kind = INDEX_EXTENT_RAW});
}

/* Rows that do not fill a last sample are left out. */
static uint64_t samples_of(const struct scan_array *a)
{
    return a->rows ? a->shape[0] / a->rows : a->shape[0];
}

static const char *show_shape(const struct scan_array *a, char *buf, size_t cap)
{
    size_t used = (size_t)snprintf(buf, cap, "(");
    for (unsigned d = 0; d < a->ndim && used < cap; d++)
        used +=
            (size_t)snprintf(buf + used, cap - used, d ? ", %llu" : "%llu", (unsigned long long)a->shape[d]);
    if (used < cap)
        snprintf(buf + used, cap - used, a->ndim == 1 ? ",)" : ")");
    return buf;
}

static int check_array(const struct scan_arrays *arrays, unsigned i, struct leat_error *err)
{
    const struct scan_array *a = &arrays->items[i], *first = &arrays->items[0];
    char shape[240], other[240];
    if (a->ndim == 0)
        return error_set(err, LEAT_INVALID, "%s is a single value, not an array: there are no samples in it",
                         a->shown);
    if (samples_of(a) != samples_of(first))
        return error_set(err, LEAT_INVALID,
                         "arrays that are opened together must agree in their first dimension: %s has "
                         "shape %s and %s has shape %s",
                         first->shown, show_shape(first, shape, sizeof(shape)), a->shown,
                         show_shape(a, other, sizeof(other)));
    if (a->shape[0] == 0)
        return error_set(err, LEAT_INVALID, "the dataset is empty: %s has shape %s", a->shown,
                         show_shape(a, shape, sizeof(shape)));
    if (samples_of(a) == 0)
        return error_set(err, LEAT_INVALID,
                         "%s has shape %s: it has fewer rows than one window or sample takes", a->shown,
                         show_shape(a, shape, sizeof(shape)));
    if (a->rows && a->ndim > INDEX_MAX_DIMS)
        return error_set(err, LEAT_UNSUPPORTED,
                         "%s has shape %s: samples of several rows have at most %u dimensions", a->shown,
                         show_shape(a, shape, sizeof(shape)), INDEX_MAX_DIMS);
    if (scan_array_row_bytes(a) == 0)
        return error_set(err, LEAT_INVALID, "the samples of %s (shape %s, dtype %s) have no bytes", a->shown,
                         show_shape(a, shape, sizeof(shape)), a->dtype);
    for (unsigned j = 0; j < i; j++)
        if (!strcmp(arrays->items[j].field, a->field))
            return error_set(err, LEAT_INVALID,
                             "%s and %s would both be field \"%s\"; name them, as in "
                             "\"image=a.npy;label=b.npy\"",
                             arrays->items[j].shown, a->shown, a->field);
    return 0;
}

static int place_arrays(struct scan_arrays *arrays, const char *root, struct index_builder *b,
                        struct leat_error *err)
{
    for (unsigned i = 0; i < arrays->n; i++) {
        struct scan_array *a = &arrays->items[i];
        int64_t source = -1;
        /* The datasets of one file share a source entry. */
        for (unsigned j = 0; j < i; j++)
            if (!strcmp(arrays->items[j].path, a->path))
                source = arrays->items[j].source;
        if (source < 0)
            source = index_builder_source(b, scan_relative(root, a->path), &a->st);
        if (source < 0)
            return (int)source;
        index_builder_etag(b, (uint32_t)source, a->etag);
        a->source = source;
        uint64_t address;
        int rc = a->place(a, b, (uint32_t)source, &address, err);
        if (rc < 0)
            return rc;
        uint64_t shape[INDEX_MAX_DIMS + 1] = {a->rows}; /* (rows, ...) of a sample */
        memcpy(shape + 1, a->shape + 1, (a->ndim - 1) * sizeof(*shape));
        int field = index_builder_field(b, a->field, a->dtype, INDEX_FIELD_UNIFORM, a->ndim - !a->rows,
                                        a->rows ? shape : shape + 1, address, scan_array_sample_bytes(a));
        if (field < 0)
            return field == -E2BIG ? error_set(err, LEAT_UNSUPPORTED, "more than %u arrays", INDEX_MAX_FIELDS)
                                   : field;
    }
    return 0;
}

int arrays_build(struct scan *scan, struct scan_arrays *arrays, struct index_builder **ret_builder,
                 struct leat_error *err)
{
    AUTO_FREE char **paths = calloc(arrays->n, sizeof(*paths));
    if (!paths)
        return -ENOMEM;
    for (unsigned i = 0; i < arrays->n; i++) {
        int rc = check_array(arrays, i, err);
        if (rc < 0)
            return rc;
        paths[i] = arrays->items[i].path;
    }
    AUTO_FREE char *root = scan_common_root(paths, arrays->n);
    struct index_builder *b;
    if (!root || index_builder_new(INDEX_KIND_ARRAY, root, &b) < 0)
        return -ENOMEM;
    index_builder_count(b, samples_of(&arrays->items[0]));
    int rc = place_arrays(arrays, root, b, err);
    if (rc < 0) {
        index_builder_free(b);
        return rc;
    }
    *ret_builder = b;
    return 0;
}
