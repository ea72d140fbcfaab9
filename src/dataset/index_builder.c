/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_builder.c: collects the finds of scanners, in tables that grow.
 *
 * Failure modes: an error is kept in `failed` and reported by index_builder_finish, so that a scanner's loops
 * need not check each call; those that return a number return it as well.
 */
#include <limits.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/array.h"
#include "dataset/builder_internal.h"

/* Room for n more rows, zeroed; NULL (and failed) when memory is short. */
static void *table_add(struct index_builder *b, struct table *t, uint64_t n, size_t row)
{
    if (b->failed || n == 0)
        return NULL;
    if (t->cap - t->len < n) {
        b->failed = array_grow(&t->data, &t->cap, t->len + n, UINT64_MAX, row);
        if (b->failed)
            return NULL;
    }
    void *p = t->data + t->len * row;
    memset(p, 0, n * row);
    t->len += n;
    return p;
}

static int fail(struct index_builder *b, int rc)
{
    if (!b->failed)
        b->failed = rc;
    return b->failed;
}

int index_builder_new(enum index_kind kind, const char *root, struct index_builder **ret_builder)
{
    struct index_builder *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->header.kind = kind;
    table_add(b, &b->strings, 1, 1); /* offset 0 is "" */
    int64_t at = index_builder_string(b, root);
    if (at < 0) {
        index_builder_free(b);
        return (int)at;
    }
    b->header.root = (uint32_t)at;
    *ret_builder = b;
    return 0;
}

void index_builder_free(struct index_builder *b)
{
    if (!b)
        return;
    struct table *tables[] = {&b->fields, &b->sources, &b->extents,    &b->parts,   &b->labels, &b->key_ends,
                              &b->keys,   &b->chunks,  &b->class_ends, &b->classes, &b->shapes, &b->strings};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        free(tables[i]->data);
    free(b->class_slots);
    free(b);
}

int64_t index_builder_string(struct index_builder *b, const char *s)
{
    size_t len = strlen(s);
    if (len == 0)
        return 0;
    if (b->strings.len + len + 1 > UINT32_MAX)
        return fail(b, -EOVERFLOW);
    char *p = table_add(b, &b->strings, len + 1, 1);
    if (!p)
        return b->failed;
    memcpy(p, s, len);
    return p - b->strings.data;
}

int index_builder_field(struct index_builder *b, const char *name, const char *dtype,
                        enum index_field_kind kind, unsigned ndim, const uint64_t *shape, uint64_t address,
                        uint64_t stride)
{
    struct index_field *fields = (struct index_field *)b->fields.data;
    for (uint64_t f = 0; f < b->fields.len; f++)
        if (!strcmp(b->strings.data + fields[f].name, name))
            return fields[f].kind == kind ? (int)f : fail(b, -EINVAL);
    if (b->fields.len == INDEX_MAX_FIELDS || ndim > INDEX_MAX_DIMS)
        return -E2BIG; /* the scanner names the file */
    int64_t name_at = index_builder_string(b, name);
    int64_t dtype_at = index_builder_string(b, dtype ? dtype : "");
    struct index_field *field =
        name_at < 0 || dtype_at < 0 ? NULL : table_add(b, &b->fields, 1, sizeof(*field));
    if (!field)
        return b->failed;
    *field = (struct index_field){.name = (uint32_t)name_at,
                                  .dtype = (uint32_t)dtype_at,
                                  .kind = kind,
                                  .ndim = ndim,
                                  .address = address,
                                  .stride = stride};
    for (unsigned d = 0; d < ndim; d++)
        field->shape[d] = shape[d];
    if (kind == INDEX_FIELD_TABLE)
        field->table_slot = b->header.ntable_fields++;
    return (int)(b->fields.len - 1);
}

static int64_t timespec_ns(struct timespec ts)
{
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t index_builder_source(struct index_builder *b, const char *relative_path, const struct stat *st)
{
    if (b->sources.len >= UINT32_MAX)
        return fail(b, -EOVERFLOW);
    int64_t path = index_builder_string(b, relative_path);
    struct index_source *s = path < 0 ? NULL : table_add(b, &b->sources, 1, sizeof(*s));
    if (!s)
        return b->failed;
    *s = (struct index_source){.path = (uint32_t)path,
                               .bytes = S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size,
                               .mtime_ns = timespec_ns(st->st_mtim),
                               .ctime_ns = timespec_ns(st->st_ctim),
                               .inode = st->st_ino};
    return (int64_t)b->sources.len - 1;
}

/* A server's text: kept only if it can be sent in a header again. */
bool index_etag_sound(const char *etag)
{
    size_t len = strlen(etag);
    for (size_t i = 0; i < len; i++)
        if (etag[i] < 0x21 || etag[i] == 0x7f)
            return false;
    return len <= INDEX_MAX_ETAG;
}

int index_builder_etag(struct index_builder *b, uint32_t source, const char *etag)
{
    int64_t at = index_etag_sound(etag) ? index_builder_string(b, etag) : 0;
    if (b->failed)
        return b->failed;
    ((struct index_source *)b->sources.data)[source].etag = (uint32_t)at;
    return 0;
}

uint64_t index_builder_reserve(struct index_builder *b, uint64_t bytes, uint64_t align, uint64_t phase)
{
    uint64_t at = align_down(b->header.address_end, align) + phase % align, end;
    if (at < b->header.address_end)
        at += align;
    if (add_overflows(at, bytes, &end) || end > INDEX_MAX_ADDRESS) {
        fail(b, -EOVERFLOW);
        return 0;
    }
    b->header.address_end = end;
    return at;
}

int index_builder_extent(struct index_builder *b, const struct index_extent *extent)
{
    struct index_extent *e = table_add(b, &b->extents, 1, sizeof(*e));
    if (e)
        *e = *extent;
    return b->failed;
}

int64_t index_builder_shape(struct index_builder *b, const struct index_shape *shape)
{
    /* A dataset has a handful of shapes (inside, and along each edge); looking at the latest ones finds them. */
    struct index_shape *shapes = (struct index_shape *)b->shapes.data;
    for (uint64_t i = b->shapes.len; i > 0 && b->shapes.len - i < 300; i--)
        if (!memcmp(&shapes[i - 1], shape, sizeof(*shape)))
            return (int64_t)i - 1;
    if (b->shapes.len >= UINT32_MAX)
        return fail(b, -EOVERFLOW);
    struct index_shape *s = table_add(b, &b->shapes, 1, sizeof(*s));
    if (!s)
        return b->failed;
    *s = *shape;
    return (int64_t)b->shapes.len - 1;
}

int64_t index_builder_chunk(struct index_builder *b, const struct index_chunk *chunk)
{
    struct index_chunk *c = table_add(b, &b->chunks, 1, sizeof(*c));
    if (!c)
        return b->failed;
    *c = *chunk;
    return (int64_t)b->chunks.len - 1;
}

void index_builder_flags(struct index_builder *b, uint32_t flags)
{
    b->header.flags |= flags;
}

static const char *class_name(const struct index_builder *b, uint64_t i, size_t *ret_len)
{
    const uint64_t *ends = (const uint64_t *)b->class_ends.data;
    uint64_t start = i ? ends[i - 1] : 0;
    *ret_len = ends[i] - start;
    return b->classes.data + start;
}

/* The slot that holds `name`, or the free one where it belongs. */
static uint64_t class_slot(const struct index_builder *b, const char *name, size_t len)
{
    uint64_t mask = b->nclass_slots - 1;
    for (uint64_t slot = XXH3_64bits(name, len) & mask;; slot = (slot + 1) & mask) {
        if (!b->class_slots[slot])
            return slot;
        size_t have_len;
        const char *have = class_name(b, b->class_slots[slot] - 1, &have_len);
        if (have_len == len && (len == 0 || !memcmp(have, name, len)))
            return slot;
    }
}

/* At most half full, so that a free slot is always near. */
static int class_slots_grow(struct index_builder *b)
{
    if (b->class_ends.len * 2 < b->nclass_slots)
        return 0;
    uint64_t n = MAX(b->nclass_slots * 2, 256ull);
    uint32_t *slots = calloc(n, sizeof(*slots));
    if (!slots)
        return fail(b, -ENOMEM);
    free(b->class_slots);
    b->class_slots = slots;
    b->nclass_slots = n;
    for (uint64_t i = 0; i < b->class_ends.len; i++) {
        size_t len;
        const char *name = class_name(b, i, &len);
        slots[class_slot(b, name, len)] = (uint32_t)i + 1;
    }
    return 0;
}

uint32_t index_builder_class(struct index_builder *b, const char *name)
{
    return index_builder_class_text(b, name, strlen(name));
}

uint32_t index_builder_class_text(struct index_builder *b, const char *name, size_t len)
{
    if (b->failed || class_slots_grow(b) < 0)
        return UINT32_MAX;
    uint64_t slot = class_slot(b, name, len);
    if (b->class_slots[slot])
        return b->class_slots[slot] - 1;
    char *text = table_add(b, &b->classes, len, 1);
    if (len && !text)
        return UINT32_MAX;
    if (len)
        memcpy(text, name, len);
    uint64_t *end = table_add(b, &b->class_ends, 1, sizeof(*end));
    if (!end || b->class_ends.len > UINT32_MAX - 1)
        return UINT32_MAX;
    *end = b->classes.len;
    b->class_slots[slot] = (uint32_t)b->class_ends.len;
    return (uint32_t)b->class_ends.len - 1;
}

int index_builder_sample(struct index_builder *b, const char *key, size_t key_len)
{
    if (b->header.nsamples == 0)
        b->keyed = key != NULL;
    if (b->keyed != (key != NULL))
        return fail(b, -EINVAL);
    uint32_t *label = table_add(b, &b->labels, 1, sizeof(*label));
    if (!label)
        return b->failed;
    if (key) {
        char *text = table_add(b, &b->keys, key_len, 1);
        uint64_t *end = table_add(b, &b->key_ends, 1, sizeof(*end));
        if (!end)
            return b->failed;
        if (text)
            memcpy(text, key, key_len);
        *end = b->keys.len;
    }
    b->header.nsamples++;
    return 0;
}

int index_builder_part(struct index_builder *b, unsigned field, uint64_t address, uint64_t bytes)
{
    struct builder_part *p = table_add(b, &b->parts, 1, sizeof(*p));
    if (p)
        *p = (struct builder_part){
            .sample = b->header.nsamples - 1, .address = address, .bytes = bytes, .field = field};
    return b->failed;
}

int index_builder_label(struct index_builder *b, uint32_t label)
{
    if (!b->failed)
        ((uint32_t *)b->labels.data)[b->header.nsamples - 1] = label;
    return b->failed;
}

void index_builder_count(struct index_builder *b, uint64_t nsamples)
{
    b->header.nsamples = nsamples;
}
