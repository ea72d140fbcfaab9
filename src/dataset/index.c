/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c: opens a blob and looks things up in it.
 *
 * Happy path: index_open checks the header, its CRC and the place of every section, and points into the blob; the
 * accessors are a few loads or a binary search each.
 *
 * Failure modes: LEAT_CORRUPT with the reason. A blob of our own is not walked when it is opened:
 * index_check_body compares it with its checksum. The accessors themselves clamp what they read out of a
 * table before they use it as an offset, since a mapped file can change later. A blob of another user passes
 * index_validate (index_validate.c) first.
 *
 * Invariants: after index_open every section lies inside the blob and has exactly the size that the counts demand;
 * the strings end with NUL, so an offset in bounds is a string in bounds.
 */
#include "dataset/index.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/crc32c.h"
#include "base/fdio.h"
#include "dataset/index_internal.h"
#include "wire/address.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the blob is little-endian and used in place");
_Static_assert(sizeof(struct index_field) == 120, "field layout");
_Static_assert(sizeof(struct index_source) == 40, "source layout");
_Static_assert(sizeof(struct index_extent) == 56, "extent layout");
_Static_assert(sizeof(struct index_chunk) == 32, "chunk layout");
_Static_assert(sizeof(struct index_shape) == 224, "shape layout");
_Static_assert(sizeof(struct index_part) == 16, "part layout");

#define HASH_PIECE (256ull << 10) /* stays in the CPU's cache */

uint32_t index_header_crc(const struct index_header *header)
{
    struct index_header copy = *header;
    copy.header_crc = 0;
    copy.root_mtime_ns = 0;
    return crc32c(0, &copy, sizeof(copy));
}

static int corrupt(struct leat_error *err, const char *what)
{
    return error_set(err, LEAT_CORRUPT, "not a usable index: %s; build it again with `leat index`", what);
}

/* The size that the header's counts demand of a section, or UINT64_MAX when any size will do. */
static int section_bytes(const struct index_header *h, enum index_section s, uint64_t *ret_bytes)
{
    uint64_t count = 0, each = 0;
    switch (s) {
    case INDEX_FIELDS:
        count = h->nfields;
        each = sizeof(struct index_field);
        break;
    case INDEX_SOURCES:
        count = h->nsources;
        each = sizeof(struct index_source);
        break;
    case INDEX_EXTENTS:
        count = h->nextents;
        each = sizeof(struct index_extent);
        break;
    case INDEX_PARTS:
        if (mul_overflows(h->nsamples, h->ntable_fields, &count))
            return -EOVERFLOW;
        each = sizeof(struct index_part);
        break;
    case INDEX_CHUNKS:
        count = h->nchunks;
        each = sizeof(struct index_chunk);
        break;
    case INDEX_SHAPES:
        count = h->nshapes;
        each = sizeof(struct index_shape);
        break;
    case INDEX_CLASS_ENDS:
        count = h->nclasses;
        each = sizeof(uint64_t);
        break;
    case INDEX_LABELS:
        count = h->nsamples;
        each = sizeof(uint32_t);
        break;
    case INDEX_KEY_ENDS:
    case INDEX_SORTED:
        count = h->nsamples;
        each = sizeof(uint64_t);
        break;
    case INDEX_KEYS:
    case INDEX_CLASSES:
    case INDEX_STRINGS:
    case INDEX_SECTIONS:
        *ret_bytes = UINT64_MAX;
        return 0;
    }
    return mul_overflows(count, each, ret_bytes) ? -EOVERFLOW : 0;
}

static int check_sections(const struct index_header *h, uint64_t bytes, struct leat_error *err)
{
    uint64_t end = sizeof(*h);
    for (int s = 0; s < INDEX_SECTIONS; s++) {
        uint64_t offset = h->sections[s].offset, size = h->sections[s].bytes, want;
        if (offset % 64 || offset < end || offset > bytes || size > bytes - offset)
            return corrupt(err, "a section lies outside of it");
        if (section_bytes(h, (enum index_section)s, &want) < 0)
            return corrupt(err, "its counts overflow");
        bool optional = s == INDEX_LABELS || s == INDEX_KEY_ENDS || s == INDEX_SORTED;
        if (want != UINT64_MAX && size != want && !(optional && size == 0))
            return corrupt(err, "a section has the wrong size");
        end = offset + size;
    }
    bool keyed = h->sections[INDEX_KEY_ENDS].bytes != 0;
    if (!keyed && (h->sections[INDEX_KEYS].bytes || h->sections[INDEX_SORTED].bytes))
        return corrupt(err, "it has keys without their ends");
    return 0;
}

static int check_field(const struct index *ix, unsigned f, uint64_t *slots_seen, struct leat_error *err)
{
    const struct index_header *h = ix->header;
    const struct index_field *field = &ix->fields[f];
    uint64_t nstrings = h->sections[INDEX_STRINGS].bytes;
    if (field->name >= nstrings || field->dtype >= nstrings || !*index_string(ix, field->name))
        return corrupt(err, "a field has no name");
    for (unsigned g = 0; g < f; g++)
        if (!strcmp(index_string(ix, ix->fields[g].name), index_string(ix, field->name)))
            return corrupt(err, "two fields have one name");
    if (field->ndim > INDEX_MAX_DIMS)
        return corrupt(err, "a field has too many dimensions");

    switch (field->kind) {
    case INDEX_FIELD_UNIFORM: {
        uint64_t bytes, end;
        if (field->stride == 0 || mul_overflows(h->nsamples, field->stride, &bytes) ||
            add_overflows(field->address, bytes, &end) || end > h->address_end)
            return corrupt(err, "a field lies outside of the address space");
        return 0;
    }
    case INDEX_FIELD_TABLE:
        if (field->table_slot >= h->ntable_fields || (*slots_seen >> field->table_slot & 1))
            return corrupt(err, "a field has the wrong column");
        *slots_seen |= 1ull << field->table_slot;
        return 0;
    case INDEX_FIELD_LABEL:
        if (!ix->labels)
            return corrupt(err, "its labels are missing");
        return 0;
    default:
        return corrupt(err, "a field is of an unknown kind");
    }
}

static int check_fields(const struct index *ix, struct leat_error *err)
{
    uint64_t slots_seen = 0;
    unsigned labels = 0, tables = 0;
    for (unsigned f = 0; f < ix->header->nfields; f++) {
        int rc = check_field(ix, f, &slots_seen, err);
        if (rc < 0)
            return rc;
        labels += ix->fields[f].kind == INDEX_FIELD_LABEL;
        tables += ix->fields[f].kind == INDEX_FIELD_TABLE;
    }
    if (labels > 1 || tables != ix->header->ntable_fields)
        return corrupt(err, "its fields contradict its header");
    return 0;
}

static const void *section(const struct index_header *h, enum index_section s)
{
    return h->sections[s].bytes ? (const char *)h + h->sections[s].offset : NULL;
}

int index_open(const void *blob, uint64_t bytes, struct index *ret_index, struct leat_error *err)
{
    const struct index_header *h = blob;
    if (bytes < sizeof(*h) || h->magic != INDEX_MAGIC)
        return corrupt(err, "it does not begin like one");
    if (h->version != INDEX_VERSION)
        return error_set(err, LEAT_CORRUPT,
                         "the index is of version %u and this program reads version %u; "
                         "build it again with `leat index`",
                         h->version, INDEX_VERSION);
    if (index_header_crc(h) != h->header_crc)
        return corrupt(err, "the checksum of its header is wrong");
    if (h->total_bytes != bytes)
        return corrupt(err, "it is truncated");
    if (h->nfields == 0 || h->nfields > INDEX_MAX_FIELDS || h->ntable_fields > h->nfields)
        return corrupt(err, "it has no fields, or too many");
    if (h->nsamples == 0 || h->nsamples > INDEX_MAX_SAMPLES || h->address_end > INDEX_MAX_ADDRESS)
        return corrupt(err, "it has no samples, or too many");
    if (h->kind < INDEX_KIND_ARRAY || h->kind > INDEX_KIND_PUSHED)
        return corrupt(err, "it is of an unknown kind");
    int rc = check_sections(h, bytes, err);
    if (rc < 0)
        return rc;

    struct index ix = {
        .header = h,
        .fields = section(h, INDEX_FIELDS),
        .sources = section(h, INDEX_SOURCES),
        .extents = section(h, INDEX_EXTENTS),
        .parts = section(h, INDEX_PARTS),
        .labels = section(h, INDEX_LABELS),
        .key_ends = section(h, INDEX_KEY_ENDS),
        .keys = section(h, INDEX_KEYS),
        .sorted = section(h, INDEX_SORTED),
        .class_ends = section(h, INDEX_CLASS_ENDS),
        .classes = section(h, INDEX_CLASSES),
        .chunks = section(h, INDEX_CHUNKS),
        .shapes = section(h, INDEX_SHAPES),
        .strings = section(h, INDEX_STRINGS),
        .blob = blob,
        .blob_bytes = bytes,
    };
    uint64_t nstrings = h->sections[INDEX_STRINGS].bytes;
    if (nstrings == 0 || ix.strings[0] || ix.strings[nstrings - 1] || h->root >= nstrings)
        return corrupt(err, "its strings do not end");
    rc = check_fields(&ix, err);
    if (rc < 0)
        return rc;
    *ret_index = ix;
    return 0;
}

int index_map(int fd, struct index *ret_index, struct leat_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return error_sys(err, -errno, "the index cannot be read");
    if (st.st_size < (off_t)sizeof(struct index_header))
        return corrupt(err, "it does not begin like one");
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return error_sys(err, -errno, "the index cannot be mapped");
    struct index ix;
    int rc = index_open(p, (uint64_t)st.st_size, &ix, err);
    if (rc < 0) {
        munmap(p, (size_t)st.st_size);
        return rc;
    }
    ix.mapped = true;
    *ret_index = ix;
    return 0;
}

int index_body_hash(int fd, uint64_t total_bytes, uint64_t *ret_hash)
{
    AUTO_FREE char *buf = malloc(HASH_PIECE);
    XXH3_state_t *hash = XXH3_createState();
    int rc = buf && hash ? 0 : -ENOMEM;
    if (rc == 0)
        XXH3_64bits_reset(hash);
    for (uint64_t at = sizeof(struct index_header); rc == 0 && at < total_bytes;) {
        int64_t n = fd_read_at(fd, buf, MIN(HASH_PIECE, total_bytes - at), at);
        if (n > 0)
            XXH3_64bits_update(hash, buf, (size_t)n);
        else
            rc = n == 0 ? LEAT_CORRUPT : (int)n;
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (rc == 0)
        *ret_hash = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return rc;
}

int index_check_body(int fd, const struct index *index, struct leat_error *err)
{
    uint64_t hash = 0;
    int rc = index_body_hash(fd, index->header->total_bytes, &hash);
    if (rc < 0 && rc != LEAT_CORRUPT)
        return error_sys(err, rc, "the index cannot be read");
    if (rc == LEAT_CORRUPT || hash != index->header->body_hash)
        return corrupt(err, "the checksum of its tables is wrong");
    return 0;
}

void index_close(struct index *index)
{
    if (index && index->mapped)
        munmap((void *)index->blob, index->blob_bytes);
    if (index)
        *index = (struct index){0};
}

int index_source_path(const struct index *index, uint64_t source, char *buf, size_t cap)
{
    const char *root = index_string(index, index->header->root);
    const char *path =
        source < index->header->nsources ? index_string(index, index->sources[source].path) : "";
    /* An appended set, or arrays of several buckets: sources have different roots. */
    if (*path == '/' || (!*root && address_is_remote(address_of(path))))
        return snprintf(buf, cap, "%s", path);
    size_t len = strlen(root);
    const char *slash = !*path || (len && root[len - 1] == '/') ? "" : "/";
    return snprintf(buf, cap, "%s%s%s", root, slash, path);
}

bool index_source_is_remote(const struct index *index, uint64_t source)
{
    const char *root = index_string(index, index->header->root);
    return address_is_remote(address_of(*root ? root : index_string(index, index->sources[source].path)));
}

int index_field_find(const struct index *index, const char *name)
{
    for (unsigned f = 0; f < index->header->nfields; f++)
        if (!strcmp(index_string(index, index->fields[f].name), name))
            return (int)f;
    return -1;
}

/* Item i of a run of strings that lie end to end, clamped to the run. */
static const char *packed_string(const uint64_t *ends, const char *text, uint64_t text_bytes, uint64_t i,
                                 size_t *ret_len)
{
    uint64_t end = ends[i], start = i ? ends[i - 1] : 0;
    if (end > text_bytes || start > end)
        start = end = 0;
    *ret_len = end - start;
    return text ? text + start : "";
}

const char *index_key(const struct index *index, uint64_t i, char scratch[24], size_t *ret_len)
{
    if (!index->key_ends || i >= index->header->nsamples) {
        *ret_len = (size_t)snprintf(scratch, 24, "%llu", (unsigned long long)i);
        return scratch;
    }
    return packed_string(index->key_ends, index->keys, index->header->sections[INDEX_KEYS].bytes, i, ret_len);
}

const char *index_class(const struct index *index, uint32_t label, size_t *ret_len)
{
    *ret_len = 0;
    if (label >= index->header->nclasses)
        return "";
    return packed_string(index->class_ends, index->classes, index->header->sections[INDEX_CLASSES].bytes,
                         label, ret_len);
}

int index_key_compare(const char *a, size_t alen, const char *b, size_t blen)
{
    int c = memcmp(a, b, MIN(alen, blen));
    if (c == 0)
        c = alen < blen ? -1 : alen > blen;
    return c;
}

/* The number that `key` is the decimal form of ("0", "17", not "017"), or UINT64_MAX. */
static uint64_t parse_number(const char *key, size_t len)
{
    uint64_t n = 0;
    if (len == 0 || len > 19 || (key[0] == '0' && len > 1))
        return UINT64_MAX;
    for (size_t i = 0; i < len; i++) {
        if (key[i] < '0' || key[i] > '9')
            return UINT64_MAX;
        n = n * 10 + (uint64_t)(key[i] - '0');
    }
    return n;
}

/* First sorted position whose key is not below `key`. */
static uint64_t bound(const struct index *index, const char *key, size_t len)
{
    uint64_t lo = 0, hi = index->header->nsamples;
    char scratch[24];
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        size_t klen;
        const char *k = index_key(index, index_sorted(index, mid), scratch, &klen);
        if (index_key_compare(k, klen, key, len) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

uint64_t index_find(const struct index *index, const char *key, size_t len)
{
    uint64_t n = index->header->nsamples;
    if (!index->key_ends) {
        uint64_t number = parse_number(key, len);
        return number < n ? number : UINT64_MAX;
    }
    uint64_t position = bound(index, key, len);
    if (position == n)
        return UINT64_MAX;
    uint64_t i = index_sorted(index, position);
    char scratch[24];
    size_t klen;
    const char *k = index_key(index, i, scratch, &klen);
    return i < n && index_key_compare(k, klen, key, len) == 0 ? i : UINT64_MAX;
}

uint64_t index_extent_at(const struct index *index, uint64_t address)
{
    uint64_t lo = 0, hi = index->header->nextents;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct index_extent *e = &index->extents[mid];
        if (e->address <= address && address - e->address >= e->bytes)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* How many bytes from `address` on extent k has: 0 where it does not have that address. */
static uint64_t extent_has(const struct index *index, uint64_t k, uint64_t address)
{
    if (k >= index->header->nextents)
        return 0;
    const uint64_t begin = index->extents[k].address, bytes = index->extents[k].bytes;
    return begin <= address && address - begin < bytes ? bytes - (address - begin) : 0;
}

bool index_covered(const struct index *index, uint64_t address, uint64_t bytes, uint64_t *extent)
{
    if (bytes > 0 && !extent_has(index, *extent, address) && !extent_has(index, ++*extent, address))
        *extent = index_extent_at(index, address);
    while (bytes > 0) {
        const uint64_t n = MIN(bytes, extent_has(index, *extent, address));
        if (n == 0)
            return false;
        address += n;
        bytes -= n;
        *extent += bytes > 0;
    }
    return true;
}

uint64_t index_sample_at(const struct index *index, unsigned f, uint64_t address)
{
    const struct index_field *field = &index->fields[f];
    uint64_t n = index->header->nsamples;
    if (field->kind == INDEX_FIELD_UNIFORM)
        return address < field->address ? 0 : MIN((address - field->address) / field->stride, n);
    if (field->kind != INDEX_FIELD_TABLE)
        return n;
    /* A sample without the field gives no answer, so the middle moves on to the next that has it: O(log n)
     * where such gaps are short, and never more than the gap. */
    uint64_t lo = 0, hi = n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2, at = mid;
        struct index_part part;
        while (at < hi && !index_part(index, at, f, &part))
            at++;
        if (at < hi && part.address + part.bytes <= address)
            lo = at + 1;
        else
            hi = mid;
    }
    struct index_part part;
    while (lo < n && !index_part(index, lo, f, &part))
        lo++;
    return lo;
}
