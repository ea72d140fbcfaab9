/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote sources: an index of a store equals one of the same files. Whatever the store does, an index is
 * whole or an error names the object.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "dataset/index_internal.h"
#include "dataset/testing.h"
#include "failalloc.h"

static void test_same_as_files(void **state)
{
    static const char *const specs[] = {
        "%s/tree",
        "%s/flat",
        "%s/tars",
        "%s/tars/{0..2}.tar",
        "%s/tars/?.tar",
        "%s/tars/[01].tar",
        "%s/tars/{0,2}.tar",
        "%s/tars/1.tar",
        "a=%s/a.npy;b=%s/b.npy",
        "%s/a.npy#rows=3",
        "%s",
        "%s/tree/",
        "%s/tree#pattern=[1-3]",
        "%s/tree#pattern=*/deep/*/?",
        "%s/tree#pattern=z", /* beside the class folders, which have none */
        "%s/flat#extensions=.JPG,png",
        "%s/tars#pattern=*.tar",
    };
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        testing_assert_same(specs[i]);
    /* Nothing of a folder's marks is left. */
    far_put("s3://bucket/tree/", "", 0);
    far_put("s3://bucket/tree/dog/", "", 0);
    testing_assert_same("%s/tree");
}

static enum index_kind kind_of(const char *text, bool remote)
{
    struct index ix;
    struct leat_error err = {0};
    if (testing_build(text, remote, &ix, &err) < 0)
        fail_msg("%s: %s", text, err.message);
    enum index_kind kind = ix.header->kind;
    index_close(&ix);
    return kind;
}

/* Shards or a tree: the files say it, not where they lie. */
static void test_same_kind(void **state)
{
    static const char *const a[] = {"1.jpg"}, *const b[] = {"2.jpg"}, *const c[] = {"3.jpg"};
    static const struct {
        const char *text;
        enum index_kind kind;
    } sets[] = {{"%s/wids", INDEX_KIND_TAR},  {"%s/nested", INDEX_KIND_TAR}, {"%s/beside", INDEX_KIND_TAR},
                {"%s/mixed", INDEX_KIND_DIR}, {"%s/below", INDEX_KIND_DIR},  {"%s/docs", INDEX_KIND_DIR},
                {"%s/named", INDEX_KIND_DIR}};
    testing_add_tar("wids/0.tar", a, 1);
    testing_add_tar("wids/1.tar", b, 1);
    testing_add("wids/index.json", "{}", 2);
    testing_add("wids/0.idx", "0", 1);
    testing_add("wids/0.tar.leat-index", "x", 1);
    testing_add_tar("nested/train/0.tar", a, 1);
    testing_add_tar("nested/train.tar", b, 1);
    testing_add_tar("nested/val/deep/0.tar", c, 1);
    testing_add("nested/.git/HEAD", "x", 1);
    testing_add_tar("beside/0.tar", a, 1);
    testing_add("beside/meta/index.json", "{}", 2);
    testing_add_tar("mixed/train/0.tar", a, 1);
    testing_add("mixed/README.txt", "x", 1);
    testing_add_tar("below/train/0.tar", a, 1);
    testing_add("below/train/deep/README.txt", "x", 1);
    testing_add("docs/a/0.json", "{}", 2);
    testing_add("docs/b/0.json", "{}", 2);
    testing_add("named/x.tar/1.jpg", "1", 1);
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        if (kind_of(sets[i].text, false) != sets[i].kind || kind_of(sets[i].text, true) != sets[i].kind)
            fail_msg("%s", sets[i].text);
        testing_assert_same(sets[i].text);
    }
}

static void test_prefixes(void **state)
{
    struct index ix;
    struct leat_error err = {0};
    /* Beside shards. */
    far_put("s3://bucket/tars/.leat-index", "x", 1);
    far_put("s3://bucket/tars/0.tar.leat-index", "x", 1);
    far_put("s3://bucket/tars/0.idx", "x", 1);
    far_put("s3://bucket/tars/meta.json", "x", 1);
    far_put("s3://bucket/tars/deep/9.tar", far_find("s3://bucket/tars/2.tar")->data, 1536);
    assert_int_equal(testing_build("%s/tars", true, &ix, &err), 0);
    assert_int_equal(ix.header->kind, INDEX_KIND_TAR);
    assert_int_equal(ix.header->nsources, 4);
    index_close(&ix);
    /* One that is no shard, behind all of them: a tree. */
    far_put("s3://bucket/tars/deep/readme", "x", 1);
    assert_int_equal(testing_build("%s/tars", true, &ix, &err), 0);
    assert_int_equal(ix.header->kind, INDEX_KIND_DIR);
    assert_int_equal(ix.header->nsources, 2); /* those in the folder */
    index_close(&ix);
    /* Nothing but what could lie beside shards. */
    far_put("s3://bucket/docs/0.json", "x", 1);
    assert_int_equal(testing_build("%s/docs", true, &ix, &err), 0);
    assert_int_equal(ix.header->kind, INDEX_KIND_DIR);
    index_close(&ix);
    /* Two slashes: no class has an empty name. */
    far_put("s3://bucket/pets//n.txt", "x", 1);
    far_put("s3://bucket/pets/cat/1.jpg", "x", 1);
    far_put("s3://bucket/pets/dog/1.jpg", "x", 1);
    assert_int_equal(testing_build("%s/pets#extensions=jpg", true, &ix, &err), 0);
    assert_int_equal(ix.header->nclasses, 2);
    assert_int_equal(ix.labels[0], 0);
    assert_int_equal(ix.labels[1], 1);
    index_close(&ix);
    assert_int_equal(testing_build("%s/pets", true, &ix, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "/n.txt"));
}

static void test_addresses(void **state)
{
    struct index ix;
    struct leat_error err = {0};
    char path[600];
    struct far_object *a = far_find("s3://bucket/a.npy");
    far_put("s3://other/a.npy", a->data, a->bytes);
    far_put("https://host:1/a.npy?sign=/x", a->data, a->bytes);
    /* Of several places: each source has its whole address. */
    assert_int_equal(
        testing_build("a=%s/a.npy;b=s3://other/a.npy;c=https://host:1/a.npy?sign=/x", false, &ix, &err), 0);
    assert_int_equal(ix.header->nsources, 3);
    index_source_path(&ix, 1, path, sizeof(path));
    assert_string_equal(path, "s3://other/a.npy");
    index_source_path(&ix, 2, path, sizeof(path));
    assert_string_equal(path, "https://host:1/a.npy?sign=/x");
    index_source_path(&ix, 0, path, sizeof(path));
    assert_memory_equal(path, testing_folder, strlen(testing_folder));
    /* Appended sets keep addresses and ETags. */
    struct index more, both;
    assert_int_equal(testing_build("a=%s/a.npy;b=%s/a.npy;c=%s/a.npy", true, &more, &err), 0);
    AUTO_CLOSE int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(index_append(&ix, &more, 1 << 20, fd, &err), 0);
    assert_int_equal(index_map(fd, &both, &err), 0);
    assert_int_equal(index_validate(&both, &err), 0);
    index_source_path(&both, 3, path, sizeof(path));
    assert_string_equal(path, "s3://bucket/a.npy");
    assert_string_equal(index_string(&both, both.sources[3].etag), far_find(path)->etag);
    index_close(&both);
    index_close(&more);
    index_close(&ix);
    /* Slashes that a path would lose. */
    struct far_object *t = far_find("s3://bucket/tars/2.tar");
    far_put("s3://bucket/odd//x.tar", t->data, t->bytes);
    assert_int_equal(testing_build("%s/odd//x.tar", true, &ix, &err), 0);
    index_source_path(&ix, 0, path, sizeof(path));
    assert_string_equal(path, "s3://bucket/odd//x.tar");
    index_close(&ix);
    far_put("https://h/x-{1..2}.tar?q=*[", t->data, t->bytes); /* never asked for */
    far_put("https://h/x-1.tar?q=*[", t->data, t->bytes);
    far_put("https://h/x-2.tar?q=*[", t->data, t->bytes);
    assert_int_equal(testing_build("https://h/x-{1..2}.tar?q=*[", false, &ix, &err), 0);
    assert_int_equal(ix.header->nsources, 2);
    index_close(&ix);
}

static void test_faults(void **state)
{
    testing_refused("%s/nothing", LEAT_NOT_FOUND, "s3://bucket/nothing");
    testing_refused("%s/nothing/", LEAT_NOT_FOUND, "s3://bucket/nothing");
    testing_refused("%s/tars/{0..9}.tar", LEAT_NOT_FOUND, "s3://bucket/tars/3.tar: there is no such object");
    testing_refused("%s/tars/x*.tar", LEAT_NOT_FOUND, "s3://bucket/tars/x*.tar");
    testing_refused("a=%s/a.npy;b=%s/nothing.npy", LEAT_NOT_FOUND,
                    "s3://bucket/nothing.npy: there is no such object");
    testing_refused("a=%s/tree", LEAT_NOT_FOUND, "s3://bucket/tree");
    testing_refused("%s/a.npy#/x", LEAT_INVALID, "s3://bucket/a.npy");
    testing_refused("%s/tree/cat/1", LEAT_UNSUPPORTED, "s3://bucket/tree/cat/1: not a format");
    testing_refused("%s/{a,b}.npy", LEAT_INVALID, "s3://bucket/a.npy: a pattern means tar shards");
    testing_refused("https://host/x.tar", LEAT_NOT_FOUND, "https://host/x.tar");
    char hdf5[600] = "";
    memcpy(hdf5 + 512, "\x89HDF\r\n\x1a\n", 8);
    far_put("s3://bucket/x.h5", hdf5, sizeof(hdf5));
    testing_refused("%s/x.h5", LEAT_UNSUPPORTED, "s3://bucket/x.h5: HDF5 is not read over a network");
    testing_refused("%s/x.h5#/train", LEAT_UNSUPPORTED, "leat cp");
    far_put("s3://bucket/bad/ok/x", "", 0);
    far_put("s3://bucket/bad/ok/a\xff", "", 0);
    testing_refused("%s/bad", LEAT_INVALID, "UTF-8");
    far_remove("s3://bucket/bad/ok/a\xff");
    far_put("s3://bucket/bad//x", "", 0);
    testing_refused("%s/bad", LEAT_INVALID, "absolute");
    /* Shards that are none, cut, or garbage behind a good beginning. */
    far_put("s3://bucket/badtars/0.tar", far_find("s3://bucket/tars/0.tar")->data, 3584);
    far_put("s3://bucket/badtars/1.tar", "\x1f\x8bxxxx", 6);
    testing_refused("%s/badtars", LEAT_UNSUPPORTED, "s3://bucket/badtars/1.tar: is compressed with gzip");
    char garbage[4096];
    memset(garbage, 'x', sizeof(garbage));
    memcpy(garbage, far_find("s3://bucket/tars/0.tar")->data, 512);
    far_put("s3://bucket/badtars/1.tar", garbage, sizeof(garbage));
    testing_refused("%s/badtars", LEAT_CORRUPT, "s3://bucket/badtars/1.tar");
    far_put("s3://bucket/badtars/1.tar", far_find("s3://bucket/tars/1.tar")->data, 1024);
    testing_refused("%s/badtars", LEAT_CORRUPT, "s3://bucket/badtars/1.tar");
    far_put("s3://bucket/badtars/1.tar", far_find("s3://bucket/a.npy")->data, 200);
    testing_refused("%s/badtars", LEAT_INVALID, "s3://bucket/badtars/1.tar");

    far.list_rc = LEAT_PEER_GONE;
    for (far.list_after = 0; far.list_after < 4; far.list_after++) {
        testing_refused("%s/tree", LEAT_PEER_GONE, "s3://bucket/tree/");
        testing_refused("%s/tars", far.list_after < 3 ? LEAT_PEER_GONE : 0, "");
        if (far.list_after == 2)
            break;
    }
    far.list_rc = 0;
    far.stat_rc = LEAT_DENIED;
    testing_refused("%s/a.npy", LEAT_DENIED, "s3://bucket/a.npy");
    far.stat_rc = 0;
    far.changed = "s3://bucket/tars/1.tar";
    testing_refused("%s/tars", LEAT_STALE, "s3://bucket/tars/1.tar: the object changed");
    testing_refused("%s/tars/{0..2}.tar", LEAT_STALE, "s3://bucket/tars/1.tar: the object changed");
    far.changed = "s3://bucket/a.npy";
    testing_refused("%s/a.npy", LEAT_STALE, "s3://bucket/a.npy: the object changed");
    far.changed = NULL;
    far.short_of = "s3://bucket/tars/0.tar";
    testing_refused("%s/tars", LEAT_CORRUPT, "s3://bucket/tars/0.tar");
    testing_refused("%s/tars/0.tar", LEAT_CORRUPT, "s3://bucket/tars/0.tar");
    far.short_of = NULL;

    /* The caller provided no remote operations. */
    struct dataset_spec spec;
    struct leat_error err = {0};
    static const struct dataset_opener none;
    const struct dataset_opener *const without[] = {NULL, &none};
    assert_int_equal(dataset_spec_parse("s3://bucket/a.npy", &spec, &err), 0);
    for (unsigned i = 0; i < 2; i++) {
        int fd = -1;
        bool scanned;
        assert_int_equal(dataset_index_open(&spec, without[i], NULL, true, &fd, &scanned, &err),
                         LEAT_UNSUPPORTED);
        assert_non_null(strstr(err.message, "s3://bucket/a.npy"));
        assert_non_null(strstr(err.message, "copy it"));
    }
    dataset_spec_free(&spec);
}

/* An ETag that would end a header's line, or is longer than any. */
static void test_etags(void **state)
{
    static const char *const bad[] = {"\"a\r\nb\"", "\"a b\"", "\"\x01\""};
    struct index ix;
    struct leat_error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(far_find("s3://bucket/flat/x.jpg")->etag, 40, "%s", bad[i]);
        assert_int_equal(testing_build("%s/flat", true, &ix, &err), 0);
        assert_string_equal(index_string(&ix, ix.sources[0].etag), "");
        /* Nor from a forged index. */
        AUTO_FREE char *blob = malloc(ix.blob_bytes);
        memcpy(blob, ix.blob, ix.blob_bytes);
        struct index forged;
        assert_int_equal(index_open(blob, ix.blob_bytes, &forged, &err), 0);
        struct index_source *s = (struct index_source *)(uintptr_t)&forged.sources[0];
        s->etag = (uint32_t)ix.header->sections[INDEX_STRINGS].bytes;
        assert_int_equal(index_validate(&forged, &err), LEAT_CORRUPT);
        s->etag = forged.sources[1].etag;
        assert_int_equal(index_validate(&forged, &err), 0);
        ((char *)(uintptr_t)index_string(&forged, s->etag))[1] = '\n';
        assert_int_equal(index_validate(&forged, &err), LEAT_CORRUPT);
        index_close(&ix);
    }
}

static int build_one(void *ctx)
{
    struct index ix;
    struct leat_error err = {0};
    int rc = testing_build(ctx, true, &ix, &err);
    if (rc == 0)
        index_close(&ix);
    assert_int_equal(far.open, 0);
    assert_int_equal(far.under_way, 0);
    return rc;
}

static void test_allocations(void **state)
{
    static const char *const specs[] = {
        "%s/tree",       "%s/tars",       "%s/tars/{0..2}.tar",
        "%s/tars/?.tar", "%s/tars/0.tar", "a=%s/a.npy#rows=3;b=%s/b.npy#rows=3"};
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        assert_true(failalloc_run(build_one, (void *)(uintptr_t)specs[i]) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_as_files, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_same_kind, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_prefixes, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_addresses, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_faults, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_etags, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_allocations, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
