/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_append: joins an old index and an added one, by building a new one: old samples keep numbers,
 * addresses, labels and classes; the added ones follow with theirs moved up by `base`. Sources get absolute
 * paths, since the two may have different roots.
 *
 * Fields are matched by name, since tar shards name them in the order of their first sample. A UNIFORM field becomes a
 * TABLE whose stride stays: every part has just that length, so that readers still see an array of fixed shape.
 *
 * Failure modes: fields that differ (LEAT_INVALID, naming which), a key in both (from index_builder_finish), a damaged
 * index of our own (LEAT_CORRUPT), -ENOMEM.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "dataset/builder_internal.h"

/* Maps numbers of one of the two indexes to new ones. */
struct side {
    const struct index *index;
    uint64_t base;                    /* added to addresses */
    uint8_t fields[INDEX_MAX_FIELDS]; /* of this index, in the order of the old one's */
    int64_t source, chunk;            /* of the first one */
    uint32_t *classes, *shapes;       /* by number in this index; owned */
};

static const char *field_name(const struct index *index, unsigned f)
{
    return index_string(index, index->fields[f].name);
}

static const char *field_form(const struct index *index, unsigned f, char *buf, size_t cap)
{
    const struct index_field *field = &index->fields[f];
    const char *dtype = index_string(index, field->dtype);
    if (field->kind == INDEX_FIELD_LABEL)
        return "a label";
    if (field->kind == INDEX_FIELD_TABLE && !field->stride)
        return "raw bytes";
    size_t used = (size_t)snprintf(buf, cap, "%.40s of shape (", *dtype ? dtype : "bytes");
    for (unsigned d = 0; d < field->ndim && used < cap; d++)
        used += (size_t)snprintf(buf + used, cap - used, d ? ", %" PRIu64 : "%" PRIu64, field->shape[d]);
    if (used < cap)
        snprintf(buf + used, cap - used, field->ndim == 1 ? ",)" : ")");
    return buf;
}

static bool same_form(const struct index *old, const struct index_field *a, const struct index *added,
                      const struct index_field *b)
{
    return (a->kind == INDEX_FIELD_LABEL) == (b->kind == INDEX_FIELD_LABEL) && a->ndim == b->ndim &&
           a->stride == b->stride && !strcmp(index_string(old, a->dtype), index_string(added, b->dtype)) &&
           !memcmp(a->shape, b->shape, a->ndim * sizeof(a->shape[0]));
}

/* All fields of the old index are in the added one, in the same form, and there are no others. */
static int match_fields(const struct index *old, struct side *side, struct leat_error *err)
{
    const struct index *added = side->index;
    for (unsigned f = 0; f < added->header->nfields; f++)
        if (index_field_find(old, field_name(added, f)) < 0)
            return error_set(err, LEAT_INVALID, "the new samples have a field '%.200s', and the set has none",
                             field_name(added, f));
    for (unsigned f = 0; f < old->header->nfields; f++) {
        char a[240], b[240];
        int found = index_field_find(added, field_name(old, f));
        if (found < 0)
            return error_set(err, LEAT_INVALID, "the set has a field '%.200s', and the new samples have none",
                             field_name(old, f));
        if (!same_form(old, &old->fields[f], added, &added->fields[found]))
            return error_set(err, LEAT_INVALID, "field '%.200s' is %s in the set and %s in the new samples",
                             field_name(old, f), field_form(old, f, a, sizeof(a)),
                             field_form(added, (unsigned)found, b, sizeof(b)));
        side->fields[f] = (uint8_t)found;
    }
    return 0;
}

static int add_fields(struct index_builder *b, const struct index *old)
{
    int rc = 0;
    for (unsigned f = 0; f < old->header->nfields && rc >= 0; f++) {
        const struct index_field *field = &old->fields[f];
        rc = index_builder_field(b, field_name(old, f), index_string(old, field->dtype),
                                 field->kind == INDEX_FIELD_LABEL ? INDEX_FIELD_LABEL : INDEX_FIELD_TABLE,
                                 field->ndim, field->shape, 0, field->stride);
    }
    return MIN(rc, 0);
}

/* A fill value is mostly shared by all shapes of an array: it is copied once. */
static int add_shapes(struct index_builder *b, struct side *side)
{
    const struct index *index = side->index;
    uint32_t n = index->header->nshapes, last = 0;
    int64_t fill = 0;
    side->shapes = calloc(MAX(n, 1u), sizeof(*side->shapes));
    if (!side->shapes)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct index_shape shape = index->shapes[i];
        if (shape.fill >= index->header->sections[INDEX_STRINGS].bytes)
            return LEAT_CORRUPT;
        if (shape.fill != last)
            fill = index_builder_string(b, index_string(index, shape.fill));
        last = shape.fill;
        shape.fill = (uint32_t)fill;
        int64_t number = fill < 0 ? fill : index_builder_shape(b, &shape);
        if (number < 0)
            return (int)number;
        side->shapes[i] = (uint32_t)number;
    }
    return 0;
}

static int add_chunks(struct index_builder *b, struct side *side)
{
    const struct index *index = side->index;
    int rc = add_shapes(b, side);
    for (uint64_t c = 0; c < index->header->nchunks && rc == 0; c++) {
        struct index_chunk chunk = index->chunks[c];
        if (chunk.shape >= index->header->nshapes)
            return LEAT_CORRUPT;
        chunk.shape = side->shapes[chunk.shape];
        int64_t number = index_builder_chunk(b, &chunk);
        if (c == 0)
            side->chunk = number;
        rc = (int)MIN(number, (int64_t)0);
    }
    return rc;
}

static int64_t add_source(struct index_builder *b, const struct index *index, uint64_t s)
{
    const struct index_source *source = &index->sources[s];
    char path[2 * 4096];
    int len = index_source_path(index, s, path, sizeof(path));
    if (len <= 0 || (size_t)len >= sizeof(path))
        return LEAT_CORRUPT;
    /* For index_builder_source, which restores the old source from it. */
    struct stat st = {.st_mode = path[len - 1] == '/' ? S_IFDIR : S_IFREG,
                      .st_size = (off_t)source->bytes,
                      .st_ino = source->inode,
                      .st_mtim = {source->mtime_ns / 1000000000, source->mtime_ns % 1000000000},
                      .st_ctim = {source->ctime_ns / 1000000000, source->ctime_ns % 1000000000}};
    int64_t number = index_builder_source(b, path, &st);
    if (number >= 0)
        index_builder_etag(b, (uint32_t)number, index_string(index, source->etag));
    return number;
}

static int add_sources(struct index_builder *b, struct side *side)
{
    const struct index *index = side->index;
    for (uint64_t s = 0; s < index->header->nsources; s++) {
        int64_t number = add_source(b, index, s);
        if (number < 0)
            return (int)number;
        if (s == 0)
            side->source = number;
    }
    return 0;
}

/* All of them, in their order, whether a sample has them or not: so labels of the old index stay what they are. */
static int add_classes(struct index_builder *b, struct side *side)
{
    uint64_t n = side->index->header->nclasses;
    side->classes = calloc(MAX(n, (uint64_t)1), sizeof(*side->classes));
    if (!side->classes)
        return -ENOMEM;
    for (uint64_t c = 0; c < n; c++) {
        size_t len;
        const char *name = index_class(side->index, (uint32_t)c, &len);
        side->classes[c] = index_builder_class_text(b, name, len);
        if (side->classes[c] == UINT32_MAX)
            return -ENOMEM;
    }
    return 0;
}

static int add_extents(struct index_builder *b, const struct side *side)
{
    for (uint64_t e = 0; e < side->index->header->nextents; e++) {
        struct index_extent extent = side->index->extents[e];
        if (!index_extent_sound(side->index, &extent))
            return LEAT_CORRUPT;
        extent.address += side->base;
        extent.source += (uint32_t)side->source;
        if (extent.kind == INDEX_EXTENT_CHUNK)
            extent.chunk += (uint64_t)side->chunk;
        index_builder_extent(b, &extent);
    }
    return 0;
}

static int add_samples(struct index_builder *b, const struct side *side)
{
    const struct index *index = side->index;
    const struct index_header *h = index->header;
    int rc = 0;
    for (uint64_t i = 0; i < h->nsamples && rc == 0; i++) {
        char scratch[24];
        size_t len = 0;
        const char *key = index->key_ends ? index_key(index, i, scratch, &len) : NULL;
        rc = index_builder_sample(b, key, len);
        for (unsigned f = 0; f < h->nfields && rc == 0; f++) {
            struct index_part part;
            if (index->fields[side->fields[f]].kind != INDEX_FIELD_LABEL) {
                if (index_part(index, i, side->fields[f], &part))
                    rc = index_builder_part(b, f, part.address + side->base, part.bytes);
            } else if (index->labels[i] < h->nclasses) {
                rc = index_builder_label(b, side->classes[index->labels[i]]);
            } else {
                rc = LEAT_CORRUPT;
            }
        }
    }
    return rc;
}

static int add_both(struct index_builder *b, struct side sides[2])
{
    int rc = add_fields(b, sides[0].index);
    for (unsigned s = 0; s < 2 && rc == 0; s++) {
        rc = add_sources(b, &sides[s]);
        rc = rc ? rc : add_chunks(b, &sides[s]);
        rc = rc ? rc : add_classes(b, &sides[s]);
    }
    if (rc < 0)
        return rc;
    /* The space up to `base` is reserved as a whole: the old version's, with the rest of its last region. */
    index_builder_reserve(b, sides[1].base + sides[1].index->header->address_end, 1, 0);
    for (unsigned s = 0; s < 2 && rc == 0; s++) {
        rc = add_extents(b, &sides[s]);
        rc = rc ? rc : add_samples(b, &sides[s]);
    }
    index_builder_flags(b, sides[0].index->header->flags & sides[1].index->header->flags);
    return rc;
}

int index_append(const struct index *old, const struct index *added, uint64_t base, int fd,
                 struct leat_error *err)
{
    struct side sides[2] = {{.index = old}, {.index = added, .base = base}};
    for (unsigned f = 0; f < old->header->nfields; f++)
        sides[0].fields[f] = (uint8_t)f;
    int rc = match_fields(old, &sides[1], err);
    if (rc < 0)
        return rc;
    if (!old->key_ends != !added->key_ends)
        return error_set(err, LEAT_INVALID, "the set's samples have %s and the new ones %s",
                         old->key_ends ? "names" : "numbers", added->key_ends ? "names" : "numbers");
    if (base < old->header->address_end)
        return error_set(err, -EINVAL, "the new samples would lie on the old ones");
    struct index_builder *b;
    rc = index_builder_new((enum index_kind)old->header->kind, "", &b);
    if (rc < 0)
        return error_set(err, rc, "out of memory");
    rc = add_both(b, sides);
    if (rc == LEAT_CORRUPT)
        error_set(err, rc,
                  "the index of the set or of the new samples is damaged; drop the set and preload it again");
    else if (rc < 0)
        error_sys(err, rc, "the longer index could not be built");
    if (rc == 0)
        rc = index_builder_finish(b, fd, err);
    for (unsigned s = 0; s < 2; s++) {
        free(sides[s].classes);
        free(sides[s].shapes);
    }
    index_builder_free(b);
    return rc;
}
