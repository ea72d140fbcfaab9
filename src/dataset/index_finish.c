/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_finish.c: from the builder's tables to a blob.
 *
 * Happy path: statistics and fingerprint in one pass over the samples, the order of the keys, then the sections one
 * after another through a buffer, and the header last: a file without a header is not an index, so a writer that was
 * killed leaves nothing that opens.
 *
 * Failure modes: LEAT_INVALID (empty, a key twice), LEAT_NO_SPACE and other errors of write(2), -ENOMEM.
 */
#include <xxhash.h>

#include "base/fdio.h"
#include "dataset/builder_internal.h"

#define WRITER_BUFFER (1u << 20)

/* The fingerprint is of the data as a reader sees it. Raise this when its contents change. */
#define FINGERPRINT_VERSION "leat-fingerprint-1"

struct writer {
    int fd;
    int failed;
    uint64_t offset; /* in the file, of the buffer's start */
    size_t used;
    char *buffer;
    XXH3_state_t *hash; /* of all written bytes; NULL: not wanted */
};

static void writer_flush(struct writer *w)
{
    if (w->hash)
        XXH3_64bits_update(w->hash, w->buffer, w->used);
    if (!w->failed)
        w->failed = fd_write_at(w->fd, w->buffer, w->used, w->offset);
    w->offset += w->used;
    w->used = 0;
}

static void writer_put(struct writer *w, const void *data, uint64_t bytes)
{
    const char *p = data;
    while (bytes && !w->failed) {
        if (w->used == WRITER_BUFFER)
            writer_flush(w);
        size_t n = MIN(bytes, (uint64_t)(WRITER_BUFFER - w->used));
        memcpy(w->buffer + w->used, p, n);
        w->used += n;
        p += n;
        bytes -= n;
    }
}

static void writer_pad(struct writer *w)
{
    static const char zeros[64];
    uint64_t at = w->offset + w->used;
    writer_put(w, zeros, align_up(at, 64) - at);
}

static const char *builder_key(const struct index_builder *b, uint64_t i, size_t *ret_len)
{
    const uint64_t *ends = (const uint64_t *)b->key_ends.data;
    uint64_t start = i ? ends[i - 1] : 0;
    *ret_len = ends[i] - start;
    return b->keys.data + start;
}

static int compare_samples(const void *x, const void *y, void *arg)
{
    size_t alen, blen;
    const char *a = builder_key(arg, *(const uint64_t *)x, &alen);
    const char *c = builder_key(arg, *(const uint64_t *)y, &blen);
    return index_key_compare(a, alen, c, blen);
}

/* *ret_sorted is NULL when the samples are in key order as they are. */
static int sort_keys(struct index_builder *b, uint64_t **ret_sorted, struct leat_error *err)
{
    uint64_t n = b->header.nsamples, rising = 1;
    while (b->keyed && rising < n && compare_samples(&(uint64_t){rising - 1}, &(uint64_t){rising}, b) < 0)
        rising++;
    if (!b->keyed || rising >= n) {
        *ret_sorted = NULL;
        return 0;
    }
    AUTO_FREE uint64_t *sorted = malloc(n * sizeof(*sorted));
    if (!sorted)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++)
        sorted[i] = i;
    qsort_r(sorted, n, sizeof(*sorted), compare_samples, b);
    for (uint64_t i = 1; i < n; i++)
        if (compare_samples(&sorted[i - 1], &sorted[i], b) == 0) {
            size_t len;
            const char *key = builder_key(b, sorted[i], &len);
            return error_set(err, LEAT_INVALID, "two samples have the key \"%.*s\"",
                             (int)MIN(len, (size_t)200), key);
        }
    *ret_sorted = TAKE_PTR(sorted);
    return 0;
}

/* Totals of fields and of the set. */
static int sum_up(struct index_builder *b)
{
    struct index_field *fields = (struct index_field *)b->fields.data;
    const struct builder_part *parts = (const struct builder_part *)b->parts.data;
    struct index_header *h = &b->header;
    uint64_t uniform = 0, sample_bytes = 0;
    for (uint64_t f = 0; f < b->fields.len; f++)
        if (fields[f].kind == INDEX_FIELD_UNIFORM) {
            fields[f].max_bytes = fields[f].stride;
            if (mul_overflows(h->nsamples, fields[f].stride, &fields[f].total_bytes) ||
                add_overflows(h->payload_bytes, fields[f].total_bytes, &h->payload_bytes) ||
                add_overflows(uniform, fields[f].stride, &uniform))
                return -EOVERFLOW;
        }
    h->max_sample_bytes = uniform;
    for (uint64_t p = 0; p < b->parts.len; p++) {
        struct index_field *field = &fields[parts[p].field];
        field->max_bytes = MAX(field->max_bytes, parts[p].bytes);
        field->total_bytes += parts[p].bytes; /* addresses do not overlap, so sums do not wrap */
        h->payload_bytes += parts[p].bytes;
        if (p && parts[p].sample != parts[p - 1].sample)
            sample_bytes = 0;
        sample_bytes += parts[p].bytes;
        h->max_sample_bytes = MAX(h->max_sample_bytes, uniform + sample_bytes);
    }
    return 0;
}

/* Keys, field names, dtypes, shapes, lengths and labels; never addresses or times. */
static int fingerprint(struct index_builder *b)
{
    XXH3_state_t *x = XXH3_createState();
    if (!x)
        return -ENOMEM;
    const struct index_field *fields = (const struct index_field *)b->fields.data;
    XXH3_128bits_reset(x);
    XXH3_128bits_update(x, FINGERPRINT_VERSION, sizeof(FINGERPRINT_VERSION));
    XXH3_128bits_update(x, &b->header.nsamples, sizeof(uint64_t));
    for (uint64_t f = 0; f < b->fields.len; f++) {
        const char *name = b->strings.data + fields[f].name, *dtype = b->strings.data + fields[f].dtype;
        XXH3_128bits_update(x, name, strlen(name) + 1);
        XXH3_128bits_update(x, dtype, strlen(dtype) + 1);
        XXH3_128bits_update(x, &fields[f].kind, sizeof(uint32_t));
        XXH3_128bits_update(x, &fields[f].ndim, sizeof(uint32_t));
        XXH3_128bits_update(x, fields[f].shape, fields[f].ndim * sizeof(uint64_t));
        XXH3_128bits_update(x, &fields[f].stride, sizeof(uint64_t));
    }
    XXH3_128bits_update(x, b->key_ends.data, b->key_ends.len * sizeof(uint64_t));
    XXH3_128bits_update(x, b->keys.data, b->keys.len);
    const struct builder_part *parts = (const struct builder_part *)b->parts.data;
    for (uint64_t p = 0; p < b->parts.len; p++) {
        uint64_t row[3] = {parts[p].sample, parts[p].field, parts[p].bytes};
        XXH3_128bits_update(x, row, sizeof(row));
    }
    if (b->header.sections[INDEX_LABELS].bytes) {
        XXH3_128bits_update(x, b->labels.data, b->labels.len * sizeof(uint32_t));
        XXH3_128bits_update(x, b->class_ends.data, b->class_ends.len * sizeof(uint64_t));
        XXH3_128bits_update(x, b->classes.data, b->classes.len);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(x));
    _Static_assert(sizeof(canonical) == sizeof(b->header.fingerprint), "16 bytes");
    memcpy(b->header.fingerprint, &canonical, sizeof(canonical));
    XXH3_freeState(x);
    return 0;
}

/* Spreads the parts into one row of columns a sample. */
static void put_parts(struct index_builder *b, struct writer *w)
{
    const struct index_field *fields = (const struct index_field *)b->fields.data;
    const struct builder_part *parts = (const struct builder_part *)b->parts.data;
    uint32_t columns = b->header.ntable_fields;
    struct index_part row[INDEX_MAX_FIELDS];
    uint64_t p = 0;
    for (uint64_t i = 0; columns && i < b->header.nsamples; i++) {
        for (uint32_t c = 0; c < columns; c++)
            row[c] = (struct index_part){.address = INDEX_NO_ADDRESS};
        for (; p < b->parts.len && parts[p].sample == i; p++)
            row[fields[parts[p].field].table_slot] = (struct index_part){parts[p].address, parts[p].bytes};
        writer_put(w, row, columns * sizeof(row[0]));
    }
}

static bool has_label_field(const struct index_builder *b)
{
    const struct index_field *fields = (const struct index_field *)b->fields.data;
    for (uint64_t f = 0; f < b->fields.len; f++)
        if (fields[f].kind == INDEX_FIELD_LABEL)
            return true;
    return false;
}

static void set_counts(struct index_builder *b, const uint64_t *sorted)
{
    struct index_header *h = &b->header;
    h->magic = INDEX_MAGIC;
    h->version = INDEX_VERSION;
    h->layout = index_layout(h->kind);
    h->nfields = (uint32_t)b->fields.len;
    h->nsources = b->sources.len;
    h->nextents = b->extents.len;
    h->nchunks = b->chunks.len;
    h->nshapes = (uint32_t)b->shapes.len;
    h->nclasses = b->class_ends.len;
    const uint64_t sizes[INDEX_SECTIONS] = {
        [INDEX_FIELDS] = b->fields.len * sizeof(struct index_field),
        [INDEX_SOURCES] = b->sources.len * sizeof(struct index_source),
        [INDEX_EXTENTS] = b->extents.len * sizeof(struct index_extent),
        [INDEX_PARTS] = h->nsamples * h->ntable_fields * sizeof(struct index_part),
        [INDEX_LABELS] = has_label_field(b) ? b->labels.len * sizeof(uint32_t) : 0,
        [INDEX_KEY_ENDS] = b->key_ends.len * sizeof(uint64_t),
        [INDEX_KEYS] = b->keys.len,
        [INDEX_SORTED] = sorted ? h->nsamples * sizeof(uint64_t) : 0,
        [INDEX_CLASS_ENDS] = b->class_ends.len * sizeof(uint64_t),
        [INDEX_CLASSES] = b->classes.len,
        [INDEX_CHUNKS] = b->chunks.len * sizeof(struct index_chunk),
        [INDEX_SHAPES] = b->shapes.len * sizeof(struct index_shape),
        [INDEX_STRINGS] = b->strings.len,
    };
    uint64_t at = sizeof(*h);
    for (int s = 0; s < INDEX_SECTIONS; s++) {
        h->sections[s].offset = at;
        h->sections[s].bytes = sizes[s];
        at = align_up(at + sizes[s], 64);
    }
    h->total_bytes = at;
}

static int write_blob(struct index_builder *b, const uint64_t *sorted, int fd, struct leat_error *err)
{
    AUTO_FREE char *buffer = malloc(WRITER_BUFFER);
    struct writer w = {.fd = fd, .buffer = buffer, .offset = sizeof(b->header)};
    if (!buffer || !(w.hash = XXH3_createState()))
        return -ENOMEM;
    XXH3_64bits_reset(w.hash);
    const void *data[INDEX_SECTIONS] = {
        [INDEX_FIELDS] = b->fields.data,
        [INDEX_SOURCES] = b->sources.data,
        [INDEX_EXTENTS] = b->extents.data,
        [INDEX_LABELS] = b->labels.data,
        [INDEX_KEY_ENDS] = b->key_ends.data,
        [INDEX_KEYS] = b->keys.data,
        [INDEX_SORTED] = sorted,
        [INDEX_CLASS_ENDS] = b->class_ends.data,
        [INDEX_CLASSES] = b->classes.data,
        [INDEX_CHUNKS] = b->chunks.data,
        [INDEX_SHAPES] = b->shapes.data,
        [INDEX_STRINGS] = b->strings.data,
    };
    for (int s = 0; s < INDEX_SECTIONS; s++) {
        if (s == INDEX_PARTS)
            put_parts(b, &w);
        else
            writer_put(&w, data[s], b->header.sections[s].bytes);
        writer_pad(&w);
    }
    writer_flush(&w);
    b->header.body_hash = XXH3_64bits_digest(w.hash);
    XXH3_freeState(TAKE_PTR(w.hash));
    if (!w.failed && ftruncate(fd, (off_t)b->header.total_bytes) < 0)
        w.failed = -errno;
    b->header.header_crc = index_header_crc(&b->header);
    w.offset = 0;
    w.used = sizeof(b->header);
    memcpy(w.buffer, &b->header, sizeof(b->header));
    writer_flush(&w);
    return w.failed ? error_sys(err, w.failed, "the index could not be written") : 0;
}

int index_builder_finish(struct index_builder *b, int fd, struct leat_error *err)
{
    if (b->header.nsamples == 0 && !b->failed)
        return error_set(err, LEAT_INVALID, "the dataset is empty");
    AUTO_FREE uint64_t *sorted = NULL;
    uint64_t cells;
    int rc = b->failed;
    if (rc == 0 &&
        (b->header.nsamples > INDEX_MAX_SAMPLES || b->fields.len == 0 ||
         mul_overflows(b->header.nsamples, b->header.ntable_fields * sizeof(struct index_part), &cells)))
        rc = -EOVERFLOW;
    if (rc == 0)
        rc = sum_up(b);
    if (rc == 0)
        rc = sort_keys(b, &sorted, err);
    if (rc == LEAT_INVALID)
        return rc;
    if (rc == 0) {
        set_counts(b, sorted);
        rc = fingerprint(b);
    }
    if (rc < 0)
        return error_sys(err, rc, "the index could not be built");
    return write_blob(b, sorted, fd, err);
}
