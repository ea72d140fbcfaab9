/* SPDX-License-Identifier: Apache-2.0 */
/* Two indexes become one: what was in the old one stays as it was, and what does not fit is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "dataset/index_internal.h"
#include "failalloc.h"

#define BASE (1ull << 20)

static struct index_builder *begin(enum index_kind kind, const char *root)
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(kind, root, &b), 0);
    return b;
}

static void end(struct index_builder *b, struct index *ret)
{
    struct leat_error err = {0};
    int fd = memfd_create("index", MFD_CLOEXEC);
    int rc = index_builder_finish(b, fd, &err);
    if (rc)
        fail_msg("%s", err.message);
    index_builder_free(b);
    assert_int_equal(index_map(fd, ret, &err), 0);
    close(fd);
    assert_int_equal(index_validate(ret, &err), 0);
}

static uint32_t add_source(struct index_builder *b, const char *path, uint64_t bytes)
{
    struct stat st = {.st_mode = path[strlen(path) - 1] == '/' ? S_IFDIR : S_IFREG,
                      .st_size = (off_t)bytes,
                      .st_mtim = {17, 4},
                      .st_ino = 5};
    return (uint32_t)index_builder_source(b, path, &st);
}

static uint64_t add_raw(struct index_builder *b, uint32_t source, uint64_t bytes)
{
    uint64_t at = index_builder_reserve(b, bytes, 64, 0);
    index_builder_extent(b, &(struct index_extent){.address = at,
                                                   .bytes = bytes,
                                                   .source_bytes = bytes,
                                                   .source = source,
                                                   .kind = INDEX_EXTENT_RAW});
    return at;
}

/* `n` rows of shape (3, 2) of `dtype`, 2 bytes each, and a column of u1 as a second field. */
static void array(const char *root, const char *dtype, uint64_t n, struct index *ret)
{
    struct index_builder *b = begin(INDEX_KIND_ARRAY, root);
    uint64_t shape[] = {3, 2};
    uint64_t x = add_raw(b, add_source(b, "x.npy", 12 * n), 12 * n);
    uint64_t y = add_raw(b, add_source(b, "y.npy", n), n);
    index_builder_field(b, "x", dtype, INDEX_FIELD_UNIFORM, 2, shape, x, 12);
    index_builder_field(b, "y", "|u1", INDEX_FIELD_UNIFORM, 0, NULL, y, 1);
    index_builder_count(b, n);
    end(b, ret);
}

struct file {
    const char *key, *class;
    unsigned bytes;
};

/* A tree as dir/scan.c makes it: all classes first, then files, then folders. */
static void tree(const char *root, const char *const *classes, const struct file *files, unsigned n,
                 struct index *ret)
{
    struct index_builder *b = begin(INDEX_KIND_DIR, root);
    index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    for (; *classes; classes++)
        index_builder_class(b, *classes);
    for (unsigned i = 0; i < n; i++) {
        uint64_t at = add_raw(b, add_source(b, files[i].key, files[i].bytes), files[i].bytes);
        index_builder_sample(b, files[i].key, strlen(files[i].key));
        index_builder_part(b, 0, at, files[i].bytes);
        index_builder_field(b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
        index_builder_label(b, index_builder_class(b, files[i].class));
    }
    add_source(b, "./", 0);
    index_builder_flags(b, INDEX_FLAG_SMALL_FILES);
    end(b, ret);
}

static int append(const struct index *old, const struct index *added, uint64_t base, struct index *ret,
                  struct leat_error *err)
{
    int fd = memfd_create("index", MFD_CLOEXEC);
    assert_true(fd >= 0);
    int rc = index_append(old, added, base, fd, err);
    if (rc == 0) {
        assert_int_equal(index_map(fd, ret, err), 0);
        if (index_validate(ret, err))
            fail_msg("%s", err->message);
    }
    close(fd);
    return rc;
}

static void append_ok(const struct index *old, const struct index *added, uint64_t base, struct index *ret)
{
    struct leat_error err = {0};
    if (append(old, added, base, ret, &err))
        fail_msg("%s", err.message);
}

static void refused(const struct index *old, const struct index *added, const char *word)
{
    struct leat_error err = {0};
    struct index none;
    assert_int_equal(append(old, added, BASE, &none, &err), LEAT_INVALID);
    if (!strstr(err.message, word))
        fail_msg("\"%s\" does not say \"%s\"", err.message, word);
}

static void check_part(const struct index *ix, uint64_t i, unsigned f, uint64_t address, uint64_t bytes)
{
    struct index_part part;
    assert_true(index_part(ix, i, f, &part));
    assert_int_equal(part.address, address);
    assert_int_equal(part.bytes, bytes);
}

static void test_arrays(void **state)
{
    struct index old, added, once, twice;
    array("/old", "<u2", 10, &old);
    array("/new", "<u2", 5, &added);
    append_ok(&old, &added, BASE, &once);
    append_ok(&once, &added, 2 * BASE, &twice);
    assert_int_equal(twice.header->nsamples, 20);
    assert_int_equal(twice.header->kind, INDEX_KIND_ARRAY);
    for (unsigned f = 0; f < 2; f++) {
        const struct index_field *field = &twice.fields[f];
        assert_int_equal(field->kind, INDEX_FIELD_TABLE);
        assert_int_equal(field->stride, f ? 1 : 12);
        assert_int_equal(field->max_bytes, f ? 1 : 12);
        assert_string_equal(index_string(&twice, field->dtype), f ? "|u1" : "<u2");
        assert_int_equal(field->ndim, f ? 0 : 2);
        assert_int_equal(field->shape[0], f ? 0 : 3);
    }
    uint64_t x = old.fields[0].address, x2 = added.fields[0].address, y2 = added.fields[1].address;
    check_part(&twice, 9, 0, x + 9 * 12, 12);
    check_part(&twice, 10, 0, BASE + x2, 12);
    check_part(&twice, 14, 1, BASE + y2 + 4, 1);
    check_part(&twice, 19, 0, 2 * BASE + x2 + 4 * 12, 12);
    char path[100];
    index_source_path(&twice, twice.extents[index_extent_at(&twice, BASE + y2)].source, path, sizeof(path));
    assert_string_equal(path, "/new/y.npy");
    index_source_path(&twice, 0, path, sizeof(path));
    assert_string_equal(path, "/old/x.npy");
    assert_int_equal(twice.sources[0].mtime_ns, old.sources[0].mtime_ns);
    assert_int_equal(index_find(&twice, "19", 2), 19); /* numbers continue */
    assert_true(index_find(&twice, "20", 2) == UINT64_MAX);
    index_close(&old);
    index_close(&added);
    index_close(&once);
    index_close(&twice);
}

static void test_labels_stay(void **state)
{
    /* "a-b/" sorts before "a/" as a path and after it as a name, and "empty" has no file. */
    static const char *const names[] = {"a", "a-b", "empty", NULL}, *const more[] = {"a-b", "z", NULL};
    static const struct file files[] = {{"a-b/1", "a-b", 3}, {"a/1", "a", 4}};
    static const struct file others[] = {{"a-b/2", "a-b", 5}, {"z/1", "z", 6}};
    struct index old, added, both;
    tree("/old", names, files, 2, &old);
    tree("/new", more, others, 2, &added);
    append_ok(&old, &added, BASE, &both);
    const uint32_t labels[] = {1, 0, 1, 3};
    static const char *const classes[] = {"a", "a-b", "empty", "z"};
    assert_int_equal(both.header->nclasses, 4);
    assert_int_equal(both.header->flags, INDEX_FLAG_SMALL_FILES);
    for (unsigned i = 0; i < 4; i++) {
        size_t len;
        assert_int_equal(both.labels[i], labels[i]);
        const char *name = index_class(&both, i, &len);
        assert_int_equal(len, strlen(classes[i]));
        assert_memory_equal(name, classes[i], len);
    }
    assert_int_equal(index_find(&both, "z/1", 3), 3);
    assert_int_equal(index_find(&both, "a/1", 3), 1);
    check_part(&both, 3, 0, BASE + 64, 6);
    index_close(&old);
    index_close(&added);
    index_close(&both);
}

/* Samples of tar shards: named fields, in the order of the first sample. */
static void shards(const char *const *fields, const char *const *keys, unsigned n, struct index *ret)
{
    struct index_builder *b = begin(INDEX_KIND_TAR, "/shards");
    uint64_t at = add_raw(b, add_source(b, "a.tar", 4096), 4096);
    for (unsigned i = 0; i < n; i++) {
        index_builder_sample(b, keys[i], strlen(keys[i]));
        for (unsigned f = 0; fields[f]; f++) {
            int field = index_builder_field(b, fields[f], "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
            if (i != 1 || f != 1) /* sample 1 lacks its second field */
                index_builder_part(b, (unsigned)field, at + i * 64 + f * 8, f + 1);
        }
    }
    end(b, ret);
}

static void test_fields_by_name(void **state)
{
    static const char *const jpg_cls[] = {"jpg", "cls", NULL}, *const cls_jpg[] = {"cls", "jpg", NULL};
    static const char *const keys[] = {"1", "2"}, *const more[] = {"4", "3"};
    struct index old, added, both;
    struct index_part part;
    shards(jpg_cls, keys, 2, &old);
    shards(cls_jpg, more, 2, &added);
    append_ok(&old, &added, BASE, &both);
    assert_string_equal(index_string(&both, both.fields[0].name), "jpg");
    check_part(&both, 0, 0, 0, 1);
    check_part(&both, 2, 0, BASE + 8, 2);
    check_part(&both, 2, 1, BASE, 1);
    assert_false(index_part(&both, 1, 1, &part));
    assert_false(index_part(&both, 3, 0, &part));
    assert_int_equal(index_find(&both, "3", 1), 3);
    index_close(&added);
    shards(jpg_cls, keys + 1, 1, &added);
    refused(&old, &added, "\"2\""); /* a key in both */
    index_close(&old);
    index_close(&added);
    index_close(&both);
}

static void test_refused(void **state)
{
    static const char *const names[] = {"a", NULL};
    static const char *const jpg[] = {"jpg", NULL}, *const jpg_cls[] = {"jpg", "cls", NULL};
    static const char *const x_y[] = {"x", "y", NULL}, *const keys[] = {"1", "2"};
    static const struct file files[] = {{"a/1", "a", 3}};
    struct index u2, f2, one, two, xy, dir;
    array("/a", "<u2", 10, &u2);
    array("/b", "<f2", 10, &f2);
    shards(jpg, keys, 1, &one);
    shards(jpg_cls, keys, 1, &two);
    shards(x_y, keys, 1, &xy);
    tree("/t", names, files, 1, &dir);
    refused(&u2, &f2, "'x' is <u2 of shape (3, 2) in the set and <f2 of shape (3, 2)");
    refused(&one, &two, "a field 'cls', and the set has none");
    refused(&two, &one, "a field 'cls', and the new samples have none");
    refused(&u2, &xy, "'x' is <u2 of shape (3, 2) in the set and raw bytes in");
    refused(&dir, &one, "'jpg'");
    struct index_builder *b = begin(INDEX_KIND_DIR, "/n"); /* the same fields, but numbered */
    index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    index_builder_field(b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
    index_builder_class(b, "a");
    index_builder_sample(b, NULL, 0);
    struct index numbered;
    end(b, &numbered);
    refused(&dir, &numbered, "have names and the new ones numbers");
    struct leat_error err = {0};
    assert_int_equal(append(&u2, &u2, 64, &one, &err), -EINVAL); /* on top of the old samples */
    assert_true(append(&u2, &u2, 1ull << 62, &one, &err) < 0);
    struct index *all[] = {&u2, &f2, &one, &two, &xy, &dir, &numbered};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        index_close(all[i]);
}

/* One band of two HDF5 chunks, with a fill value. */
static void chunked(const char *fill, struct index *ret)
{
    struct index_builder *b = begin(INDEX_KIND_ARRAY, "/h5");
    uint32_t source = add_source(b, "x.h5", 4096);
    uint64_t at = index_builder_reserve(b, 48, 64, 0), shape[] = {2}, first = 0;
    int64_t fill_at = index_builder_string(b, fill);
    for (unsigned col = 0; col < 2; col++) {
        struct index_shape s = {.decoded_bytes = 24,
                                .run_bytes = 8,
                                .element_bytes = 8,
                                .fill = (uint32_t)fill_at,
                                .nloops = 1,
                                .loops = {{3, 8, 16}}};
        struct index_chunk c = {.source_offset = col ? 0 : 100,
                                .source_bytes = col ? 0 : 24,
                                .extent_offset = col * 8,
                                .shape = (uint32_t)index_builder_shape(b, &s)};
        int64_t number = index_builder_chunk(b, &c);
        first = col ? first : (uint64_t)number;
    }
    index_builder_extent(b, &(struct index_extent){.address = at,
                                                   .bytes = 48,
                                                   .source = source,
                                                   .kind = INDEX_EXTENT_CHUNK,
                                                   .chunk = first,
                                                   .nchunk = 2});
    index_builder_field(b, "x", "<f8", INDEX_FIELD_UNIFORM, 1, shape, at, 16);
    index_builder_count(b, 3);
    end(b, ret);
}

static void test_chunks(void **state)
{
    struct index old, added, both;
    chunked("000000000000f03f", &old);
    chunked("0000000000000040", &added);
    append_ok(&old, &added, BASE, &both);
    assert_int_equal(both.header->nchunks, 4);
    assert_int_equal(both.header->nshapes, 2);
    const struct index_extent *e = &both.extents[index_extent_at(&both, BASE)];
    assert_int_equal(e->address, BASE);
    assert_int_equal(e->chunk, 2);
    assert_int_equal(e->source, 1);
    assert_int_equal(both.chunks[3].extent_offset, 8);
    assert_string_equal(index_string(&both, both.shapes[both.chunks[3].shape].fill), "0000000000000040");
    assert_string_equal(index_string(&both, both.shapes[both.chunks[1].shape].fill), "000000000000f03f");
    index_close(&old);
    index_close(&added);
    index_close(&both);
}

/* A field that promises one length, and does not keep it, is a lie that readers would trip over. */
static void test_stride_is_checked(void **state)
{
    for (unsigned wrong = 0; wrong < 3; wrong++) {
        struct index_builder *b = begin(INDEX_KIND_ARRAY, "/x");
        uint64_t at = add_raw(b, add_source(b, "x", 4096), 4096), shape[] = {4};
        index_builder_field(b, "x", "|u1", INDEX_FIELD_TABLE, 1, shape, 0, 4);
        for (unsigned i = 0; i < 3; i++) {
            index_builder_sample(b, NULL, 0);
            if (wrong != 1 || i != 1)
                index_builder_part(b, 0, at + i * 64, wrong == 2 && i == 2 ? 5 : 4);
        }
        int fd = memfd_create("index", MFD_CLOEXEC);
        struct index ix;
        assert_int_equal(index_builder_finish(b, fd, NULL), 0);
        index_builder_free(b);
        assert_int_equal(index_map(fd, &ix, NULL), 0);
        close(fd);
        assert_int_equal(index_validate(&ix, NULL), wrong ? LEAT_CORRUPT : 0);
        index_close(&ix);
    }
}

struct pair {
    struct index old, added;
};

static int append_pair(void *ctx)
{
    struct pair *p = ctx;
    int fd = memfd_create("index", MFD_CLOEXEC);
    int rc = index_append(&p->old, &p->added, BASE, fd, NULL);
    close(fd);
    return rc;
}

static void test_out_of_memory(void **state)
{
    static const char *const names[] = {"a", "b", NULL};
    static const struct file files[] = {{"a/1", "a", 3}, {"b/1", "b", 4}}, others[] = {{"a/2", "a", 5}};
    struct pair p;
    tree("/old", names, files, 2, &p.old);
    tree("/new", names, others, 1, &p.added);
    assert_true(failalloc_run(append_pair, &p) > 10);
    index_close(&p.old);
    index_close(&p.added);
    chunked("000000000000f03f", &p.old);
    chunked("0000000000000040", &p.added);
    assert_true(failalloc_run(append_pair, &p) > 10);
    index_close(&p.old);
    index_close(&p.added);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays),         cmocka_unit_test(test_labels_stay),
        cmocka_unit_test(test_fields_by_name), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_chunks),         cmocka_unit_test(test_stride_is_checked),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
