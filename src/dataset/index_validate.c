/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_validate.c: walks every table of a blob that index_open accepted. Afterwards no content by a peer or
 * another user can lead a reader outside of its buffers, around in circles, or to bytes that no extent ever
 * fills.
 *
 * Happy path: one pass over each table, O(samples + extents + chunks), and a bitmap for `sorted`.
 * Failure modes: LEAT_CORRUPT with the table's name and the row; -ENOMEM for the bitmap.
 */

#include "dataset/index_internal.h"

static int bad(struct leat_error *err, const char *table, uint64_t row, const char *why)
{
    return error_set(err, LEAT_CORRUPT, "not a usable index: %s %llu %s; build it again with `leat index`",
                     table, (unsigned long long)row, why);
}

static uint64_t section_size(const struct index *ix, enum index_section s)
{
    return ix->header->sections[s].bytes;
}

static bool is_directory(const char *path)
{
    size_t len = strlen(path);
    return len && path[len - 1] == '/';
}

/* A path is opened below the root: nothing in it may lead out. An appended set has no root, and absolute paths. */
static bool path_stays_below(const char *root, const char *path)
{
    if (path[0] == '/' && *root)
        return false;
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");
        if (len == 2 && p[0] == '.' && p[1] == '.')
            return false;
        p += len;
        p += *p == '/';
    }
    return true;
}

static int validate_sources(const struct index *ix, struct leat_error *err)
{
    for (uint64_t i = 0; i < ix->header->nsources; i++) {
        const struct index_source *s = &ix->sources[i];
        if (s->path >= section_size(ix, INDEX_STRINGS))
            return bad(err, "source", i, "has no path");
        if (!path_stays_below(index_string(ix, ix->header->root), index_string(ix, s->path)))
            return bad(err, "source", i, "leads out of the dataset");
        if (s->etag >= section_size(ix, INDEX_STRINGS) || !index_etag_sound(index_string(ix, s->etag)))
            return bad(err, "source", i, "has an impossible ETag");
        if (s->bytes > INT64_MAX)
            return bad(err, "source", i, "has an impossible size");
    }
    return 0;
}

bool index_shape_sound(const struct index_shape *shape)
{
    if (shape->decoded_bytes == 0 || shape->decoded_bytes > INDEX_CHUNK_MAX || shape->run_bytes == 0 ||
        shape->run_bytes > shape->decoded_bytes || shape->nloops > INDEX_MAX_DIMS)
        return false;
    if (shape->filters & ~(INDEX_FILTER_DEFLATE | INDEX_FILTER_SHUFFLE | INDEX_FILTER_FLETCHER32))
        return false;
    if (shape->element_bytes == 0 || shape->element_bytes > INDEX_ELEMENT_MAX ||
        shape->decoded_bytes % shape->element_bytes || shape->run_bytes % shape->element_bytes)
        return false;
    uint64_t last = 0; /* where the last run begins */
    for (uint32_t d = 0; d < shape->nloops; d++) {
        uint64_t step;
        if (shape->loops[d].count == 0 ||
            mul_overflows(shape->loops[d].count - 1, shape->loops[d].decoded_step, &step) ||
            add_overflows(last, step, &last))
            return false;
        /* A loop that does not move forward would only repeat, to waste time. */
        if (shape->loops[d].count > 1 && (shape->loops[d].decoded_step < shape->run_bytes ||
                                          shape->loops[d].extent_step < shape->run_bytes))
            return false;
    }
    return last <= shape->decoded_bytes - shape->run_bytes;
}

bool index_chunk_fits(const struct index_chunk *chunk, const struct index_shape *shape, uint64_t extent_bytes)
{
    uint64_t last = chunk->extent_offset;
    for (uint32_t d = 0; d < shape->nloops; d++) {
        uint64_t step;
        if (mul_overflows(shape->loops[d].count - 1, shape->loops[d].extent_step, &step) ||
            add_overflows(last, step, &last))
            return false;
    }
    return shape->run_bytes <= extent_bytes && last <= extent_bytes - shape->run_bytes;
}

static int validate_shapes(const struct index *ix, struct leat_error *err)
{
    for (uint32_t i = 0; i < ix->header->nshapes; i++) {
        const struct index_shape *s = &ix->shapes[i];
        if (!index_shape_sound(s))
            return bad(err, "shape", i, "is impossible");
        if (s->fill >= section_size(ix, INDEX_STRINGS))
            return bad(err, "shape", i, "has no fill value");
        const char *fill = index_string(ix, s->fill);
        size_t len = strlen(fill);
        if (len && (len != 2 * (size_t)s->element_bytes || strspn(fill, "0123456789abcdef") != len))
            return bad(err, "shape", i, "has a wrong fill value");
    }
    return 0;
}

static int validate_chunks(const struct index *ix, const struct index_extent *e, struct leat_error *err)
{
    for (uint64_t c = e->chunk; c < e->chunk + e->nchunk; c++) {
        const struct index_chunk *chunk = &ix->chunks[c];
        if (chunk->shape >= ix->header->nshapes)
            return bad(err, "chunk", c, "has no shape");
        const struct index_shape *shape = &ix->shapes[chunk->shape];
        uint64_t end;
        if (!index_chunk_fits(chunk, shape, e->bytes))
            return bad(err, "chunk", c, "writes outside of its extent");
        if (add_overflows(chunk->source_offset, chunk->source_bytes, &end) ||
            end > ix->sources[e->source].bytes)
            return bad(err, "chunk", c, "lies outside of its source");
        if (chunk->source_bytes &&
            !index_stored_plausible(chunk->source_bytes, shape->decoded_bytes, shape->filters))
            return bad(err, "chunk", c, "has an impossible size");
    }
    return 0;
}

static int validate_extents(const struct index *ix, struct leat_error *err)
{
    uint64_t end = 0, next_chunk = 0;
    for (uint64_t i = 0; i < ix->header->nextents; i++) {
        const struct index_extent *e = &ix->extents[i];
        uint64_t e_end, src_end;
        if (e->address < end || add_overflows(e->address, e->bytes, &e_end) ||
            e_end > ix->header->address_end || e->bytes == 0)
            return bad(err, "extent", i, "is out of order");
        end = e_end;
        if (e->source >= ix->header->nsources)
            return bad(err, "extent", i, "has no source");
        if (add_overflows(e->source_offset, e->source_bytes, &src_end) ||
            src_end > ix->sources[e->source].bytes)
            return bad(err, "extent", i, "lies outside of its source");
        if (is_directory(index_string(ix, ix->sources[e->source].path)))
            return bad(err, "extent", i, "reads a directory");
        switch (e->kind) {
        case INDEX_EXTENT_RAW:
            if (e->source_bytes != e->bytes)
                return bad(err, "extent", i, "has two sizes");
            break;
        case INDEX_EXTENT_ZERO:
            break;
        case INDEX_EXTENT_CHUNK:
            /* Chunks belong to one extent each, in order: so all work is bounded by the size of the blob. */
            if (e->chunk != next_chunk || e->nchunk == 0 || e->nchunk > ix->header->nchunks - next_chunk)
                return bad(err, "extent", i, "has no chunks");
            next_chunk += e->nchunk;
            int rc = validate_chunks(ix, e, err);
            if (rc < 0)
                return rc;
            break;
        default:
            return bad(err, "extent", i, "is of an unknown kind");
        }
    }
    return next_chunk == ix->header->nchunks ? 0 : bad(err, "chunk", next_chunk, "belongs to no extent");
}

static int validate_parts(const struct index *ix, unsigned f, struct leat_error *err)
{
    const struct index_field *field = &ix->fields[f];
    const char *name = index_string(ix, field->name);
    uint64_t n = ix->header->nsamples, extent = 0, before = 0, total = 0, longest = 0;
    bool pushed = ix->header->kind == INDEX_KIND_PUSHED; /* pushed by clients: no extents */
    if (field->kind == INDEX_FIELD_UNIFORM) {
        total = n * field->stride;
        longest = field->stride;
        if (!pushed && !index_covered(ix, field->address, total, &extent))
            return error_set(err, LEAT_CORRUPT, "not a usable index: field %s has bytes without a source",
                             name);
    }
    for (uint64_t i = 0; field->kind == INDEX_FIELD_TABLE && i < n; i++) {
        struct index_part part = {0};
        uint64_t end;
        if (!index_part(ix, i, f, &part)) {
            if (part.bytes)
                return bad(err, name, i, "has a length and no address");
            if (field->stride)
                return bad(err, name, i, "is absent, in a field of fixed length");
            continue;
        }
        if (field->stride && part.bytes != field->stride)
            return bad(err, name, i, "has another length than all others");
        if (part.address < before || add_overflows(part.address, part.bytes, &end) ||
            end > ix->header->address_end)
            return bad(err, name, i, "is out of order");
        if (!pushed && part.bytes && !index_covered(ix, part.address, part.bytes, &extent))
            return bad(err, name, i, "has bytes without a source");
        before = end;
        total += part.bytes; /* cannot wrap: parts do not overlap */
        longest = MAX(longest, part.bytes);
    }
    if (field->kind == INDEX_FIELD_LABEL)
        return 0;
    if (total != field->total_bytes || longest != field->max_bytes)
        return error_set(err, LEAT_CORRUPT, "not a usable index: the totals of field %s are wrong", name);
    return 0;
}

static int validate_totals(const struct index *ix, struct leat_error *err)
{
    uint64_t total = 0, longest = 0;
    for (unsigned f = 0; f < ix->header->nfields; f++)
        if (ix->fields[f].kind != INDEX_FIELD_LABEL &&
            add_overflows(total, ix->fields[f].total_bytes, &total))
            return error_set(err, LEAT_CORRUPT, "not a usable index: its totals overflow");
    for (uint64_t i = 0; i < ix->header->nsamples; i++) {
        uint64_t bytes = 0;
        struct index_part part;
        for (unsigned f = 0; f < ix->header->nfields; f++)
            if (index_part(ix, i, f, &part))
                bytes += part.bytes;
        longest = MAX(longest, bytes);
        if (ix->header->ntable_fields == 0)
            break; /* all samples are alike */
    }
    if (total != ix->header->payload_bytes || longest != ix->header->max_sample_bytes)
        return error_set(err, LEAT_CORRUPT, "not a usable index: its totals are wrong");
    return 0;
}

/* Ends rise, and the last is the end of the text. */
static int validate_ends(const uint64_t *ends, uint64_t n, uint64_t text_bytes, const char *table,
                         struct leat_error *err)
{
    uint64_t before = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (ends[i] < before || ends[i] > text_bytes)
            return bad(err, table, i, "is out of order");
        before = ends[i];
    }
    return before == text_bytes ? 0 : bad(err, table, n, "is missing");
}

static int validate_order(const struct index *ix, struct leat_error *err)
{
    uint64_t n = ix->header->nsamples;
    AUTO_FREE uint8_t *seen = ix->sorted ? calloc(div_up(n, 8), 1) : NULL;
    if (ix->sorted && !seen)
        return -ENOMEM;
    for (uint64_t p = 0; ix->sorted && p < n; p++) {
        uint64_t i = ix->sorted[p];
        if (i >= n || (seen[i / 8] >> (i % 8) & 1))
            return bad(err, "sorted position", p, "is no permutation");
        seen[i / 8] |= (uint8_t)(1u << (i % 8));
    }
    char a_scratch[24], b_scratch[24];
    for (uint64_t p = 1; ix->key_ends && p < n; p++) {
        size_t alen, blen;
        const char *a = index_key(ix, index_sorted(ix, p - 1), a_scratch, &alen);
        const char *b = index_key(ix, index_sorted(ix, p), b_scratch, &blen);
        if (index_key_compare(a, alen, b, blen) >= 0)
            return bad(err, "sorted position", p, "is out of order");
    }
    return 0;
}

static int validate_labels(const struct index *ix, struct leat_error *err)
{
    for (uint64_t i = 0; ix->labels && i < ix->header->nsamples; i++)
        if (ix->labels[i] >= ix->header->nclasses)
            return bad(err, "label", i, "has no class");
    return 0;
}

int index_validate(const struct index *ix, struct leat_error *err)
{
    int rc = validate_sources(ix, err);
    if (rc == 0)
        rc = validate_shapes(ix, err);
    if (rc == 0)
        rc = validate_extents(ix, err);
    for (unsigned f = 0; rc == 0 && f < ix->header->nfields; f++)
        rc = validate_parts(ix, f, err);
    if (rc == 0)
        rc = validate_totals(ix, err);
    if (rc == 0 && ix->key_ends)
        rc = validate_ends(ix->key_ends, ix->header->nsamples, section_size(ix, INDEX_KEYS), "key", err);
    if (rc == 0)
        rc = validate_ends(ix->class_ends, ix->header->nclasses, section_size(ix, INDEX_CLASSES), "class",
                           err);
    if (rc == 0)
        rc = validate_order(ix, err);
    if (rc == 0)
        rc = validate_labels(ix, err);
    return rc;
}
