/* SPDX-License-Identifier: Apache-2.0 */
/* What is built can be opened and asked; what was tampered with is refused, and never crashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "dataset/index_internal.h"

#define KEYS 6

/* A tree of files with labels, one absent field, keys out of order, one chunked extent. */
static int build_tree(const char *const keys[], unsigned n, int *ret_fd, struct leat_error *err)
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(INDEX_KIND_DIR, "/data", &b), 0);
    int image = index_builder_field(b, "image", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    int label = index_builder_field(b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
    int text = index_builder_field(b, "text", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    assert_true(image == 0 && label == 1 && text == 2);
    assert_int_equal(index_builder_field(b, "image", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0), 0);
    const char *classes[] = {"cat", "dog"};
    for (unsigned i = 0; i < n; i++) {
        char path[300];
        snprintf(path, sizeof(path), "%s.bin", keys[i]);
        struct stat st = {.st_mode = S_IFREG, .st_size = 1000 + i, .st_ino = i};
        int64_t source = index_builder_source(b, path, &st);
        uint64_t at = index_builder_reserve(b, 1000 + i, INDEX_SMALL_ALIGN, 0);
        index_builder_extent(b, &(struct index_extent){.address = at,
                                                       .bytes = 1000 + i,
                                                       .source_bytes = 1000 + i,
                                                       .source = (uint32_t)source,
                                                       .kind = INDEX_EXTENT_RAW});
        index_builder_sample(b, keys[i], strlen(keys[i]));
        index_builder_part(b, (unsigned)image, at, 900);
        if (i % 2)
            index_builder_part(b, (unsigned)text, at + 900, 100 + i);
        index_builder_label(b, index_builder_class(b, classes[i % 2]));
    }
    int fd = memfd_create("index", MFD_CLOEXEC);
    assert_true(fd >= 0);
    int rc = index_builder_finish(b, fd, err);
    index_builder_free(b);
    *ret_fd = fd;
    return rc;
}

static const char *const tree_keys[KEYS] = {"b/2", "b/10", "a/1", "c", "a/01", "a"};

static void open_tree(struct index *ix)
{
    int fd;
    struct leat_error err = {0};
    assert_int_equal(build_tree(tree_keys, KEYS, &fd, &err), 0);
    assert_int_equal(index_map(fd, ix, &err), 0);
    close(fd);
    assert_int_equal(index_validate(ix, &err), 0);
}

/* An array of 10 rows of 3 × 8 bytes: 4 rows of one RAW extent, 6 rows in chunks of 3 rows by 16 and by 8 bytes. */
static void build_array(int *ret_fd)
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(INDEX_KIND_ARRAY, "/data", &b), 0);
    struct stat st = {.st_mode = S_IFREG, .st_size = 4096};
    uint32_t source = (uint32_t)index_builder_source(b, "x.h5", &st);
    uint64_t at = index_builder_reserve(b, 240, INDEX_FILE_ALIGN, 100);
    assert_int_equal(at, 100);
    uint64_t shape[] = {3};
    assert_int_equal(index_builder_field(b, "x", "<f8", INDEX_FIELD_UNIFORM, 1, shape, at, 24), 0);
    index_builder_extent(b, &(struct index_extent){.address = at,
                                                   .bytes = 96,
                                                   .source_offset = 100,
                                                   .source_bytes = 96,
                                                   .source = source,
                                                   .kind = INDEX_EXTENT_RAW});
    for (unsigned band = 0; band < 2; band++) {
        uint64_t first = 0;
        for (unsigned col = 0; col < 2; col++) {
            struct index_shape s = {.decoded_bytes = 48,
                                    .run_bytes = col ? 8 : 16,
                                    .filters = INDEX_FILTER_DEFLATE | INDEX_FILTER_SHUFFLE,
                                    .element_bytes = 8,
                                    .fill = (uint32_t)index_builder_string(b, "000000000000f03f"),
                                    .nloops = 1,
                                    .loops = {{3, 16, 24}}};
            struct index_chunk c = {.source_offset = 1000,
                                    .source_bytes = col ? 0 : 40,
                                    .extent_offset = col ? 16 : 0,
                                    .shape = (uint32_t)index_builder_shape(b, &s)};
            int64_t number = index_builder_chunk(b, &c);
            first = col ? first : (uint64_t)number;
        }
        index_builder_extent(b, &(struct index_extent){.address = at + 96 + band * 72,
                                                       .bytes = 72,
                                                       .source = source,
                                                       .kind = INDEX_EXTENT_CHUNK,
                                                       .chunk = first,
                                                       .nchunk = 2});
    }
    index_builder_count(b, 10);
    int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(index_builder_finish(b, fd, NULL), 0);
    index_builder_free(b);
    *ret_fd = fd;
}

static void test_tree(void **state)
{
    struct index ix;
    open_tree(&ix);
    assert_int_equal(ix.header->nsamples, KEYS);
    assert_int_equal(ix.header->nclasses, 2);
    assert_int_equal(ix.header->max_sample_bytes, 1005);
    assert_int_equal(ix.header->payload_bytes, 6 * 900 + 101 + 103 + 105);
    assert_int_equal(index_field_find(&ix, "text"), 2);
    assert_int_equal(index_field_find(&ix, "none"), -1);

    char scratch[24];
    size_t len;
    for (unsigned i = 0; i < KEYS; i++) {
        const char *k = index_key(&ix, i, scratch, &len);
        assert_int_equal(len, strlen(tree_keys[i]));
        assert_memory_equal(k, tree_keys[i], len);
        assert_int_equal(index_find(&ix, tree_keys[i], len), i);
        const char *c = index_class(&ix, ix.labels[i], &len);
        assert_int_equal(len, 3);
        assert_memory_equal(c, i % 2 ? "dog" : "cat", 3);
        struct index_part part;
        assert_true(index_part(&ix, i, 0, &part));
        assert_int_equal(part.bytes, 900);
        assert_false(index_part(&ix, i, 1, &part));
        assert_int_equal(index_part(&ix, i, 2, &part), i % 2);
    }
    assert_true(index_find(&ix, "zz", 2) == UINT64_MAX);
    assert_true(index_find(&ix, "", 0) == UINT64_MAX);
    assert_true(index_find(&ix, "a/0", 3) == UINT64_MAX);

    char path[64];
    assert_int_equal(index_source_path(&ix, 3, path, sizeof(path)), (int)strlen("/data/c.bin"));
    assert_string_equal(path, "/data/c.bin");
    index_close(&ix);
}

static void test_addresses(void **state)
{
    struct index ix;
    open_tree(&ix);
    assert_int_equal(index_extent_at(&ix, 0), 0);
    assert_int_equal(index_extent_at(&ix, 999), 0);
    assert_int_equal(index_extent_at(&ix, 1000), 1); /* in the gap: the next */
    assert_int_equal(index_extent_at(&ix, ix.header->address_end), KEYS);
    /* The same by looking at all, for every address. */
    for (unsigned f = 0; f < 3; f += 2)
        for (uint64_t a = 0; a < ix.header->address_end + 10; a += 7) {
            uint64_t want = 0;
            struct index_part part;
            while (want < KEYS && (!index_part(&ix, want, f, &part) || part.address + part.bytes <= a))
                want++;
            assert_int_equal(index_sample_at(&ix, f, a), want);
        }
    index_close(&ix);
}

static void test_array(void **state)
{
    int fd;
    struct index ix;
    build_array(&fd);
    struct leat_error err = {0};
    assert_int_equal(index_map(fd, &ix, &err), 0);
    close(fd);
    assert_int_equal(index_validate(&ix, &err), 0);
    assert_int_equal(ix.header->nshapes, 4); /* each has its own copy of the fill string here */
    struct index_part part;
    assert_true(index_part(&ix, 9, 0, &part));
    assert_int_equal(part.address, 100 + 9 * 24);
    assert_int_equal(part.bytes, 24);
    char scratch[24];
    size_t len;
    assert_memory_equal(index_key(&ix, 7, scratch, &len), "7", 2);
    assert_int_equal(index_find(&ix, "7", 1), 7);
    assert_true(index_find(&ix, "07", 2) == UINT64_MAX);
    assert_true(index_find(&ix, "10", 2) == UINT64_MAX);
    assert_true(index_find(&ix, "99999999999999999999", 20) == UINT64_MAX);
    assert_int_equal(index_sample_at(&ix, 0, 0), 0);
    assert_int_equal(index_sample_at(&ix, 0, 100 + 23), 0);
    assert_int_equal(index_sample_at(&ix, 0, 100 + 24), 1);
    assert_int_equal(index_sample_at(&ix, 0, 1000), 10);
    index_close(&ix);
}

static void test_duplicate_and_empty(void **state)
{
    const char *const twice[] = {"b", "a", "c", "a"};
    int fd;
    struct leat_error err = {0};
    assert_int_equal(build_tree(twice, 4, &fd, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "\"a\""));
    close(fd);
    assert_int_equal(build_tree(twice, 0, &fd, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "empty"));
    close(fd);
}

static void test_fingerprint(void **state)
{
    struct index a, b;
    open_tree(&a);
    open_tree(&b);
    assert_memory_equal(a.header->fingerprint, b.header->fingerprint, 16);
    index_close(&b);
    const char *const other[KEYS] = {"b/2", "b/10", "a/1", "d", "a/01", "a"};
    int fd;
    assert_int_equal(build_tree(other, KEYS, &fd, NULL), 0);
    assert_int_equal(index_map(fd, &b, NULL), 0);
    close(fd);
    assert_memory_not_equal(a.header->fingerprint, b.header->fingerprint, 16);
    index_close(&a);
    index_close(&b);
}

static void test_reserve(void **state)
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(INDEX_KIND_TAR, "/", &b), 0);
    assert_int_equal(index_builder_reserve(b, 10, 4096, 0), 0);
    assert_int_equal(index_builder_reserve(b, 10, 64, 0), 64);
    assert_int_equal(index_builder_reserve(b, 10, 4096, 512), 512);
    assert_int_equal(index_builder_reserve(b, 10, 4096, 512), 4096 + 512);
    assert_int_equal(index_builder_reserve(b, 10, 4096, 0), 8192);
    index_builder_reserve(b, UINT64_MAX - 100, 4096, 0);
    index_builder_field(b, "x", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    index_builder_sample(b, "k", 1);
    assert_int_equal(index_builder_finish(b, -1, NULL), -EOVERFLOW);
    index_builder_free(b);
}

/* Every accessor, over everything: what must not crash whatever the tables hold. */
static void walk(const struct index *ix)
{
    char scratch[24], path[64];
    size_t len;
    struct index_part part;
    volatile uint64_t sum = 0;
    for (uint64_t i = 0; i < MIN(ix->header->nsamples, 1000ull); i++) {
        const char *k = index_key(ix, i, scratch, &len);
        sum += index_find(ix, k, len);
        for (unsigned f = 0; f < ix->header->nfields; f++) {
            if (index_part(ix, i, f, &part))
                sum += index_sample_at(ix, f, part.address + part.bytes);
        }
        if (ix->labels)
            index_class(ix, ix->labels[i], &len);
    }
    for (uint64_t s = 0; s < ix->header->nsources; s++)
        index_source_path(ix, s, path, sizeof(path));
    sum += index_extent_at(ix, 100);
    (void)sum;
}

/* A copy at the end of a page that cannot be read beyond: an overrun by one byte is a crash, with or without ASan. */
static char *guarded_copy(const void *blob, uint64_t bytes, void **ret_map, uint64_t *ret_map_bytes)
{
    uint64_t room = align_up(bytes, 4096);
    char *map = mmap(NULL, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    mprotect(map + room, 4096, PROT_NONE);
    *ret_map = map;
    *ret_map_bytes = room + 4096;
    return memcpy(map + room - bytes, blob, bytes);
}

/* Every aligned word of the blob set to hostile values, header checksum mended: refused, or harmless. */
static void mutate(int fd, bool fix_crc)
{
    struct index good, ix;
    assert_int_equal(index_map(fd, &good, NULL), 0);
    uint64_t bytes = good.blob_bytes, map_bytes, refused = 0, tried = 0;
    void *map;
    char *copy = guarded_copy(good.blob, bytes, &map, &map_bytes);
    const uint64_t values[] = {0,         1,          63,    0xffffffff, UINT64_MAX,
                               INT64_MAX, 1ull << 63, bytes, bytes + 64, 1ull << 40};
    for (uint64_t at = 0; at + 4 <= (fix_crc ? bytes : sizeof(struct index_header)); at += 4)
        for (size_t v = 0; v < ARRAY_LEN(values); v++) {
            size_t width = at % 8 == 0 && v % 2 ? 8 : 4;
            memcpy(copy, good.blob, bytes);
            memcpy(copy + at, &values[v], width);
            struct index_header *h = (struct index_header *)copy;
            h->root_mtime_ns = fix_crc ? h->root_mtime_ns : 0; /* in no checksum */
            if (!memcmp(copy, good.blob, bytes))
                continue;
            if (fix_crc && at != offsetof(struct index_header, header_crc))
                h->header_crc = index_header_crc(h);
            tried++;
            struct leat_error err = {0};
            if (index_open(copy, bytes, &ix, &err) < 0) {
                assert_int_equal(err.code, LEAT_CORRUPT);
                refused++;
                continue;
            }
            walk(&ix); /* ours is not validated, and must not crash either */
            refused += index_validate(&ix, &err) < 0;
        }
    assert_true(fix_crc ? refused > tried / 8
                        : refused == tried); /* the checksum sees any change of the header */
    for (uint64_t cut = 0; cut < bytes; cut += 13)
        assert_int_equal(index_open(good.blob, cut, &ix, NULL), LEAT_CORRUPT);
    munmap(map, map_bytes);
    index_close(&good);
}

static void test_hostile(void **state)
{
    int fd;
    assert_int_equal(build_tree(tree_keys, KEYS, &fd, NULL), 0);
    mutate(fd, true);
    mutate(fd, false);
    close(fd);
    build_array(&fd);
    mutate(fd, true);
    close(fd);
}

/* One tampering at a time, each of which index_validate must name. */
struct tampering {
    const char *what;
    void (*apply)(struct index *ix);
};
#define TAMPER(name, body)                                                                                   \
    static void tamper_##name(struct index *ix)                                                              \
    {                                                                                                        \
        body;                                                                                                \
    }
TAMPER(sorted, ((uint64_t *)(uintptr_t)ix->sorted)[0] = ix->sorted[1])
TAMPER(sorted_range, ((uint64_t *)(uintptr_t)ix->sorted)[0] = KEYS)
TAMPER(label, ((uint32_t *)(uintptr_t)ix->labels)[2] = 2)
TAMPER(key_end, ((uint64_t *)(uintptr_t)ix->key_ends)[2] = 1)
TAMPER(class_end, ((uint64_t *)(uintptr_t)ix->class_ends)[0] = 100)
TAMPER(part_order, ((struct index_part *)(uintptr_t)ix->parts)[4].address = 0)
TAMPER(part_outside, ((struct index_part *)(uintptr_t)ix->parts)[10].bytes = 1 << 20)
TAMPER(part_gap, ((struct index_part *)(uintptr_t)ix->parts)[10].address += 200)
TAMPER(extent_overlap, ((struct index_extent *)(uintptr_t)ix->extents)[1].address = 8)
TAMPER(extent_source, ((struct index_extent *)(uintptr_t)ix->extents)[1].source = 99)
TAMPER(extent_range, ((struct index_extent *)(uintptr_t)ix->extents)[1].source_offset = 8)
TAMPER(extent_kind, ((struct index_extent *)(uintptr_t)ix->extents)[1].kind = 9)
TAMPER(path, ((struct index_source *)(uintptr_t)ix->sources)[1].path = 1u << 30)
TAMPER(path_up, memcpy((char *)(uintptr_t)ix->strings + ix->sources[0].path, "../.bin", 7))
TAMPER(path_abs, memcpy((char *)(uintptr_t)ix->strings + ix->sources[0].path, "/", 1))
TAMPER(total, ((struct index_field *)(uintptr_t)ix->fields)[0].total_bytes++)
TAMPER(longest, ((struct index_field *)(uintptr_t)ix->fields)[0].max_bytes--)
static const struct tampering tree_tamperings[] = {
    {"sorted", tamper_sorted},
    {"sorted_range", tamper_sorted_range},
    {"label", tamper_label},
    {"key_end", tamper_key_end},
    {"class_end", tamper_class_end},
    {"part_order", tamper_part_order},
    {"part_outside", tamper_part_outside},
    {"part_gap", tamper_part_gap},
    {"extent_overlap", tamper_extent_overlap},
    {"extent_source", tamper_extent_source},
    {"extent_range", tamper_extent_range},
    {"extent_kind", tamper_extent_kind},
    {"path", tamper_path},
    {"path_up", tamper_path_up},
    {"path_abs", tamper_path_abs},
    {"total", tamper_total},
    {"longest", tamper_longest},
};
TAMPER(chunk_offset, ((struct index_chunk *)(uintptr_t)ix->chunks)[1].extent_offset = 17)
TAMPER(chunk_source, ((struct index_chunk *)(uintptr_t)ix->chunks)[0].source_offset = 4090)
TAMPER(chunk_shape, ((struct index_chunk *)(uintptr_t)ix->chunks)[0].shape = 4)
TAMPER(extent_chunks, ((struct index_extent *)(uintptr_t)ix->extents)[1].nchunk = 1)
TAMPER(extent_chunks_many, ((struct index_extent *)(uintptr_t)ix->extents)[2].nchunk = 3)
TAMPER(shape_loops, ((struct index_shape *)(uintptr_t)ix->shapes)[0].nloops = 9)
TAMPER(shape_count, ((struct index_shape *)(uintptr_t)ix->shapes)[0].loops[0].count = 4)
TAMPER(shape_step, ((struct index_shape *)(uintptr_t)ix->shapes)[0].loops[0].extent_step = 29)
TAMPER(shape_back, ((struct index_shape *)(uintptr_t)ix->shapes)[0].loops[0].extent_step = UINT64_MAX - 23)
TAMPER(shape_run, ((struct index_shape *)(uintptr_t)ix->shapes)[0].run_bytes = 24)
TAMPER(shape_width, ((struct index_shape *)(uintptr_t)ix->shapes)[0].element_bytes = 5)
TAMPER(shape_filter, ((struct index_shape *)(uintptr_t)ix->shapes)[0].filters = 8)
TAMPER(shape_size, ((struct index_shape *)(uintptr_t)ix->shapes)[0].decoded_bytes = 1ull << 31)
TAMPER(fill, *((char *)(uintptr_t)ix->strings + ix->shapes[0].fill) = 'x')
static const struct tampering array_tamperings[] = {
    {"chunk_offset", tamper_chunk_offset},
    {"chunk_source", tamper_chunk_source},
    {"chunk_shape", tamper_chunk_shape},
    {"extent_chunks", tamper_extent_chunks},
    {"extent_chunks_many", tamper_extent_chunks_many},
    {"shape_loops", tamper_shape_loops},
    {"shape_count", tamper_shape_count},
    {"shape_step", tamper_shape_step},
    {"shape_back", tamper_shape_back},
    {"shape_run", tamper_shape_run},
    {"shape_width", tamper_shape_width},
    {"shape_filter", tamper_shape_filter},
    {"shape_size", tamper_shape_size},
    {"fill", tamper_fill},
};

static void tamper(int fd, const struct tampering *t, size_t n)
{
    struct index good, ix;
    assert_int_equal(index_map(fd, &good, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        uint64_t map_bytes;
        void *map;
        char *copy = guarded_copy(good.blob, good.blob_bytes, &map, &map_bytes);
        assert_int_equal(index_open(copy, good.blob_bytes, &ix, NULL), 0);
        t[i].apply(&ix);
        struct leat_error err = {0};
        int rc = index_validate(&ix, &err);
        if (rc != LEAT_CORRUPT)
            fail_msg("tampering %s was not noticed: %d", t[i].what, rc);
        assert_non_null(strstr(err.message, "index"));
        munmap(map, map_bytes);
    }
    index_close(&good);
}

static void test_tampered(void **state)
{
    int fd;
    assert_int_equal(build_tree(tree_keys, KEYS, &fd, NULL), 0);
    tamper(fd, tree_tamperings, ARRAY_LEN(tree_tamperings));
    close(fd);
    build_array(&fd);
    tamper(fd, array_tamperings, ARRAY_LEN(array_tamperings));
    close(fd);
}

/* More classes than the first hash table holds, and more rows than the first tables. */
static void test_many(void **state)
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(INDEX_KIND_TAR, "/", &b), 0);
    index_builder_field(b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
    char name[32];
    for (unsigned i = 0; i < 20000; i++) {
        int len = snprintf(name, sizeof(name), "%06u", i);
        assert_int_equal(index_builder_sample(b, name, (size_t)len), 0);
        snprintf(name, sizeof(name), "class %u", i % 5000);
        assert_int_equal(index_builder_label(b, index_builder_class(b, name)), 0);
    }
    int fd = memfd_create("index", MFD_CLOEXEC);
    struct index ix;
    assert_int_equal(index_builder_finish(b, fd, NULL), 0);
    index_builder_free(b);
    assert_int_equal(index_map(fd, &ix, NULL), 0);
    close(fd);
    assert_int_equal(index_validate(&ix, NULL), 0);
    assert_null(ix.sorted);
    assert_int_equal(ix.header->nclasses, 5000);
    assert_int_equal(index_find(&ix, "012345", 6), 12345);
    assert_int_equal(ix.labels[12345], 2345);
    index_close(&ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_array),       cmocka_unit_test(test_duplicate_and_empty),
        cmocka_unit_test(test_fingerprint), cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_hostile),     cmocka_unit_test(test_tampered),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
