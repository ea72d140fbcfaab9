/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_append: an old index and an added one become one, by building it anew: old samples keep numbers and addresses, the added
 * ones follow with theirs moved up by `base`. Sources get absolute paths, since the two may have different roots.
 *
 * Failure modes: fields that differ (LEAT_INVALID, naming which), a key in both (from index_builder_finish), -ENOMEM.
 */
#include "dataset/index.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

static int fields_check(const struct index *old, const struct index *added, struct leat_error *err)
{
    if (old->header->nfields != added->header->nfields)
        return error_set(err, LEAT_INVALID, "the set has %u fields and the new samples %u",
                         old->header->nfields, added->header->nfields);
    for (unsigned f = 0; f < old->header->nfields; f++) {
        const struct index_field *a = &old->fields[f], *b = &added->fields[f];
        const char *name = index_string(old, a->name);
        if (strcmp(name, index_string(added, b->name)))
            return error_set(err, LEAT_INVALID, "field %u is '%s' in the set and '%s' in the new samples", f,
                             name, index_string(added, b->name));
        bool label = a->kind == INDEX_FIELD_LABEL;
        if (label != (b->kind == INDEX_FIELD_LABEL) ||
            strcmp(index_string(old, a->dtype), index_string(added, b->dtype)) || a->ndim != b->ndim ||
            memcmp(a->shape, b->shape, sizeof(a->shape)))
            return error_set(err, LEAT_INVALID,
                             "field '%s' has another dtype or sample shape in the new samples", name);
    }
    return 0;
}

static int add_fields(struct index_builder *b, const struct index *old)
{
    int rc = 0;
    for (unsigned f = 0; f < old->header->nfields && rc >= 0; f++) {
        const struct index_field *field = &old->fields[f];
        rc = index_builder_field(b, index_string(old, field->name), index_string(old, field->dtype),
                                 field->kind == INDEX_FIELD_LABEL ? INDEX_FIELD_LABEL : INDEX_FIELD_TABLE,
                                 field->ndim, field->shape, 0, field->stride);
    }
    return rc;
}

/* Sources, shapes and chunks of one index are numbered behind those of the other. */
struct offsets {
    int64_t source, chunk;
};

static int64_t add_shape(struct index_builder *b, const struct index *index, uint32_t number)
{
    struct index_shape shape = index->shapes[number];
    int64_t fill = index_builder_string(b, index_string(index, shape.fill));
    if (fill < 0)
        return fill;
    shape.fill = (uint32_t)fill;
    return index_builder_shape(b, &shape);
}

static int add_sources(struct index_builder *b, const struct index *index, struct offsets *at,
                       struct leat_error *err)
{
    at->source = at->chunk = 0;
    for (uint64_t s = 0; s < index->header->nsources; s++) {
        const struct index_source *source = &index->sources[s];
        char path[2 * 4096];
        int len = index_source_path(index, s, path, sizeof(path));
        if (len < 0 || (size_t)len >= sizeof(path))
            return error_set(err, LEAT_INVALID, "a source has too long a path");
        bool dir = len > 0 && path[len - 1] == '/';
        struct stat st = {.st_mode = dir ? S_IFDIR : S_IFREG,
                          .st_size = (off_t)source->bytes,
                          .st_ino = source->inode,
                          .st_mtim = {source->mtime_ns / 1000000000, source->mtime_ns % 1000000000},
                          .st_ctim = {source->ctime_ns / 1000000000, source->ctime_ns % 1000000000}};
        int64_t number = index_builder_source(b, path, &st);
        if (number < 0)
            return error_set(err, (int)number, "out of memory");
        if (s == 0)
            at->source = number;
    }
    for (uint64_t c = 0; c < index->header->nchunks; c++) {
        struct index_chunk chunk = index->chunks[c];
        int64_t shape = add_shape(b, index, chunk.shape);
        chunk.shape = (uint32_t)shape;
        int64_t number = shape < 0 ? shape : index_builder_chunk(b, &chunk);
        if (number < 0)
            return error_set(err, (int)number, "out of memory");
        if (c == 0)
            at->chunk = number;
    }
    return 0;
}

static void add_extents(struct index_builder *b, const struct index *index, const struct offsets *at,
                        uint64_t base)
{
    for (uint64_t e = 0; e < index->header->nextents; e++) {
        struct index_extent extent = index->extents[e];
        extent.address += base;
        extent.source += (uint32_t)at->source;
        extent.chunk += (uint64_t)at->chunk;
        index_builder_extent(b, &extent);
    }
}

static void add_samples(struct index_builder *b, const struct index *index, uint64_t base)
{
    const struct index_header *h = index->header;
    for (uint64_t i = 0; i < h->nsamples; i++) {
        char scratch[24];
        size_t len;
        const char *key = index->key_ends ? index_key(index, i, scratch, &len) : NULL;
        index_builder_sample(b, key, key ? len : 0);
        for (unsigned f = 0; f < h->nfields; f++) {
            struct index_part part;
            if (index->fields[f].kind == INDEX_FIELD_LABEL) {
                size_t name_len;
                const char *name = index_class(index, index->labels[i], &name_len);
                char text[4096];
                snprintf(text, sizeof(text), "%.*s", (int)name_len, name);
                index_builder_label(b, index_builder_class(b, text));
            } else if (index_part(index, i, f, &part)) {
                index_builder_part(b, f, part.address + base, part.bytes);
            }
        }
    }
}

int index_append(const struct index *old, const struct index *added, uint64_t base, int fd,
                 struct leat_error *err)
{
    int rc = fields_check(old, added, err);
    if (rc < 0)
        return rc;
    if (!old->key_ends != !added->key_ends)
        return error_set(err, LEAT_INVALID, "the set's samples have %s and the new ones %s",
                         old->key_ends ? "names" : "numbers", added->key_ends ? "names" : "numbers");
    struct index_builder *b;
    rc = index_builder_new((enum index_kind)old->header->kind, "", &b);
    if (rc < 0)
        return error_set(err, rc, "out of memory");
    struct offsets at_old, at_added;
    rc = add_fields(b, old);
    rc = rc < 0 ? error_set(err, rc, "out of memory") : add_sources(b, old, &at_old, err);
    if (rc == 0)
        rc = add_sources(b, added, &at_added, err);
    if (rc == 0) {
        /* The space up to `base` is taken as a whole: it is the old version's, with what its last region leaves over. */
        index_builder_reserve(b, base + added->header->address_end, 1, 0);
        add_extents(b, old, &at_old, 0);
        add_extents(b, added, &at_added, base);
        add_samples(b, old, 0);
        add_samples(b, added, base);
        index_builder_flags(b, old->header->flags & added->header->flags);
        rc = index_builder_finish(b, fd, err);
    }
    index_builder_free(b);
    return rc;
}
