/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs as text, and every allocation of a scan failing in turn: what is built of files is held against other programs in
 * tests/test_dataset_*.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#include "dataset/hdf5/table.h"
#include "dataset/scan.h"
#include "dataset/testing.h"
#include "failalloc.h"

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    return remove(path);
}

static void remove_tree(const char *path)
{
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static char folder[] = "/tmp/leat-test-build-XXXXXX";

static void write_file(const char *name, const void *data, size_t len)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    close(fd);
}

static void make_folder(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void write_npy(const char *name, const char *shape)
{
    char buf[TESTING_NPY_MAX];
    size_t bytes = testing_npy(buf, shape);
    write_file(name, buf, bytes);
}

static void write_tar(const char *name, const char *const *members, unsigned n)
{
    char buf[8192] = {0};
    for (unsigned i = 0; i < n; i++) {
        char *b = buf + 512 * i;
        unsigned sum = 0;
        snprintf(b, 100, "%s", members[i]);
        memcpy(b + 124, "0", 1);
        memset(b + 148, ' ', 8);
        for (unsigned k = 0; k < 512; k++)
            sum += (uint8_t)b[k];
        snprintf(b + 148, 8, "%06o", sum);
    }
    write_file(name, buf, 512 * (n + 2));
}

static int setup(void **state)
{
    if (!mkdtemp(folder))
        return -1;
    write_npy("a.npy", "(10, 3)");
    write_npy("b.npy", "(10,)");
    make_folder("tree");
    make_folder("tree/x");
    make_folder("tree/y");
    write_file("tree/x/1", "1", 1);
    write_file("tree/y/2", "22", 2);
    write_file("tree/z", "", 0);
    make_folder("tars");
    write_tar("tars/0.tar", (const char *const[]){"b.jpg", "b.cls", "a.jpg"}, 3);
    write_tar("tars/1.tar", (const char *const[]){"b.jpg", "a.jpg"}, 2);
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"a.npy",  "b.npy",      "tree/x/1",   "tree/y/2", "tree/z", "tree/x",
                                        "tree/y", "tars/0.tar", "tars/1.tar", "tree",     "tars",   "."};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char path[256];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        if (remove(i + 1 == ARRAY_LEN(names) ? folder : path) < 0)
            return -1;
    }
    return 0;
}

static int build(void *ctx)
{
    char text[600];
    struct dataset_spec spec;
    snprintf(text, sizeof(text), ctx, folder, folder);
    int rc = dataset_spec_parse(text, &spec, NULL);
    if (rc < 0)
        return rc;
    int fd = memfd_create("index", MFD_CLOEXEC);
    struct leat_error err = {0};
    rc = dataset_index_build(&spec, NULL, NULL, fd, &err);
    struct index ix;
    if (rc == 0) {
        assert_int_equal(index_map(fd, &ix, NULL), 0);
        rc = index_validate(&ix, NULL);
        index_close(&ix);
    }
    close(fd);
    dataset_spec_free(&spec);
    return rc;
}

static void test_allocations(void **state)
{
    static const char *const specs[] = {
        "a=%s/a.npy;b=%s/b.npy", "%s/tree",       "%s/tars",
        "%s/tars/{0..1}.tar",    "%s/tars/?.tar", "a=%s/a.npy#rows=3;b=%s/b.npy#rows=3",
        "%s/tree#pattern=1"};
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        assert_true(failalloc_run(build, (void *)(uintptr_t)specs[i]) > 10);
}

static int build_rows(const char *pattern, struct index *ret_ix, struct leat_error *err)
{
    char text[600];
    struct dataset_spec spec;
    snprintf(text, sizeof(text), pattern, folder, folder);
    assert_int_equal(dataset_spec_parse(text, &spec, NULL), 0);
    int fd = memfd_create("index", MFD_CLOEXEC);
    *err = (struct leat_error){0};
    int rc = dataset_index_build(&spec, NULL, NULL, fd, err);
    if (rc == 0)
        assert_int_equal(index_map(fd, ret_ix, NULL), 0);
    close(fd);
    dataset_spec_free(&spec);
    return rc;
}

/* Several rows make a sample; those that do not fill a last one are left out. */
static void test_rows(void **state)
{
    struct index ix, plain;
    struct leat_error err;
    assert_int_equal(build_rows("a=%s/a.npy#rows=3;b=%s/b.npy#rows=3", &ix, &err), 0);
    assert_int_equal(build_rows("a=%s/a.npy;b=%s/b.npy", &plain, &err), 0);
    assert_int_equal(index_validate(&ix, &err), 0);
    assert_int_equal(ix.header->nsamples, 3);
    const struct index_field *a = &ix.fields[0], *b = &ix.fields[1];
    assert_true(a->ndim == 2 && a->shape[0] == 3 && a->shape[1] == 3 && a->stride == 36);
    assert_true(b->ndim == 1 && b->shape[0] == 3 && b->stride == 12);
    assert_int_equal(a->address, plain.fields[0].address);
    assert_int_equal(ix.extents[0].bytes, plain.extents[0].bytes); /* the file is read as it is */
    assert_memory_not_equal(ix.header->fingerprint, plain.header->fingerprint, 16);
    index_close(&ix);
    index_close(&plain);
    assert_int_equal(build_rows("a=%s/a.npy#rows=5;b=%s/b.npy#rows=2", &ix, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "agree"));
    static const char *const refused[] = {"%s/a.npy#rows=11",     "%s/a.npy#rows=0",
                                          "%s/a.npy#rows=",       "%s/a.npy#rows=-1",
                                          "%s/a.npy#rows=3 ",     "%s/tree#rows=2",
                                          "%s/tars/0.tar#rows=2", "%s/a.npy#rows=99999999999999999999999"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        int rc = build_rows(refused[i], &ix, &err);
        if (rc != LEAT_INVALID)
            print_message("%s: %d %s\n", refused[i], rc, err.message);
        assert_int_equal(rc, LEAT_INVALID);
    }
}

static uint64_t pages_of(uint64_t address, uint64_t bytes)
{
    return (address + bytes - 1) / INDEX_FILE_ALIGN - address / INDEX_FILE_ALIGN + 1;
}

/* Samples of whole pages, or of a share of one, lie over no more pages than they must, however long the head of their file is; all others as far
 * behind a page's border as in the file. */
static void test_borders(void **state)
{
    static const uint64_t heads[] = {0, 64, 80, 128, 192, 2048, 4096, 5000};
    static const uint64_t strides[] = {1, 2, 8, 64, 128, 512, 2048, 4096, 8192, 65536, 3001, 150528};
    for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
        struct index_builder *b;
        assert_int_equal(index_builder_new(INDEX_KIND_ARRAY, "/", &b), 0);
        uint64_t end = 0;
        for (size_t s = 0; s < ARRAY_LEN(strides); s++) { /* each behind the others: fields of one set */
            uint64_t stride = strides[s], address, n = 9000 / stride + 3;
            assert_int_equal(scan_place_raw(b, 0, heads[h], n * stride, stride, &address), 0);
            assert_true(address >= end);
            end = address + n * stride;
            bool even = stride % 4096 == 0 || 4096 % stride == 0;
            for (uint64_t i = 0; i < n && even; i++)
                assert_int_equal(pages_of(address + i * stride, stride), div_up(stride, (uint64_t)4096));
            /* As in the file, where that is as good: direct reads then land in place on every disk. */
            if (!even || heads[h] % MIN(stride, (uint64_t)4096) == 0)
                assert_int_equal(address % 4096, heads[h] % 4096);
            /* Room for whole blocks. */
            assert_int_equal(index_builder_reserve(b, 0, 1, 0) % 4096, 0);
        }
        index_builder_free(b);
    }
}

/* The descriptor table of HDF5's child, with all kinds of layout. */
static int lay_out(void *ctx)
{
    struct bytes_out *out = ctx;
    struct hdf5_table table;
    int rc = hdf5_table_parse(out->data, out->len, 1 << 20, &table, NULL);
    if (rc < 0)
        return rc;
    struct index_builder *b;
    rc = index_builder_new(INDEX_KIND_ARRAY, "/", &b);
    if (rc == 0) {
        struct stat st = {.st_mode = S_IFREG, .st_size = 1 << 20};
        int64_t source = index_builder_source(b, "x.h5", &st);
        for (unsigned i = 0; i < table.n && source >= 0; i++) {
            uint64_t at;
            if (hdf5_place(&table.datasets[i], 1, b, (uint32_t)source, &at, NULL) == 0)
                index_builder_field(b, table.datasets[i].name, "<i4", INDEX_FIELD_UNIFORM, 1, (uint64_t[]){3},
                                    at, 12);
        }
        index_builder_count(b, 10);
        int fd = memfd_create("index", MFD_CLOEXEC);
        rc = index_builder_finish(b, fd, NULL);
        close(fd);
        index_builder_free(b);
    }
    hdf5_table_fini(&table);
    return rc;
}

static void put_dataset(struct bytes_out *out, const char *name, const char *fill, enum hdf5_layout layout)
{
    bytes_put_u8(out, HDF5_TABLE_DATASET);
    bytes_put_str(out, name);
    bytes_put_str(out, "<i4");
    bytes_put_u32(out, 4);
    bytes_put_u8(out, 2);
    bytes_put_u64(out, 10);
    bytes_put_u64(out, 3);
    bytes_put_str(out, fill);
    bytes_put_u8(out, layout);
}

static void put_table(struct bytes_out *out)
{
    bytes_put_u32(out, HDF5_TABLE_MAGIC);
    put_dataset(out, "contiguous", "", HDF5_CONTIGUOUS);
    bytes_put_u64(out, 5000);
    put_dataset(out, "absent", "07000000", HDF5_ABSENT);
    put_dataset(out, "chunked", "", HDF5_CHUNKED);
    bytes_put_u64(out, 6);
    bytes_put_u64(out, 2);
    for (unsigned c = 0; c < 4; c++) {
        bytes_put_u64(out, 6000 + 100 * c);
        bytes_put_u64(out, c ? 30 : 0);
        bytes_put_u32(out, INDEX_FILTER_DEFLATE | INDEX_FILTER_SHUFFLE);
    }
    bytes_put_u8(out, HDF5_TABLE_END);
}

static void test_table_allocations(void **state)
{
    struct bytes_out out = {0};
    put_table(&out);
    assert_true(failalloc_run(lay_out, &out) > 10);
    struct hdf5_table table;
    struct leat_error err;
    /* Every cut of it, and a file that is too short for it. */
    for (size_t len = 0; len < out.len; len++)
        assert_int_equal(hdf5_table_parse(out.data, len, 1 << 20, &table, &err), LEAT_CORRUPT);
    assert_int_equal(hdf5_table_parse(out.data, out.len, 5000 + 119, &table, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "truncated"));
    bytes_out_fini(&out);
}

static void check_spec(const char *text, const char *canonical)
{
    struct dataset_spec spec;
    assert_int_equal(dataset_spec_parse(text, &spec, NULL), 0);
    char *got = dataset_spec_format(&spec);
    assert_string_equal(got, canonical);
    free(got);
    dataset_spec_free(&spec);
}

static void test_spec(void **state)
{
    check_spec("/a/b.npy", "/a/b.npy");
    check_spec("file:///a//./b.npy", "/a/b.npy");
    check_spec("/", "/");
    check_spec("image=/a.npy;label=file:///b.npy", "image=/a.npy;label=/b.npy");
    check_spec("/odd=name;with=all", "/odd=name;with=all");
    check_spec("x=/a.h5#/train/y", "x=/a.h5#/train/y");
    char *cwd = getcwd(NULL, 0), *want = NULL;
    assert_true(asprintf(&want, "%s/x/../y", cwd) > 0);
    check_spec("./x/../y", want);
    free(cwd);
    free(want);
    struct dataset_spec spec;
    static const char *const refused[] = {"", "a=", "a=/x;a=/y", "a=/x;/y", "a=/x;;b=/y"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        assert_int_equal(dataset_spec_parse(refused[i], &spec, NULL), LEAT_INVALID);
}

static void test_names(void **state)
{
    static const char *const good[] = {"train", "a b", "train@2026-11", "..x", "\xc3\xa9"};
    static const char *const bad[] = {"", ".", "..", "a/b", "leat://a", "a=b", "a\nb", "\x7f"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_int_equal(dataset_name_check(good[i], NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(dataset_name_check(bad[i], NULL), LEAT_INVALID);
    char name[257];
    memset(name, 'n', sizeof(name));
    name[256] = '\0';
    assert_int_equal(dataset_name_check(name, NULL), LEAT_INVALID);
    assert_int_equal(dataset_name_check(name + 1, NULL), 0);
}

static void test_uri(void **state)
{
    check_spec("file:/a/b.npy", "/a/b.npy");
    check_spec("file://localhost/a", "/a");
    check_spec("FILE://LOCALHOST/a", "/a");
    check_spec("file:///", "/");
    check_spec("file:///a%20b/%c3%A9%25%3f%3B%3d%23", "/a b/\xc3\xa9%?;=#");
    check_spec("file:///x.h5#/train/images", "/x.h5#/train/images");
    check_spec("file:///s-{000..017}.tar", "/s-{000..017}.tar");
    check_spec("i=file:///a%20b;l=/a%20b", "i=/a b;l=/a%20b"); /* a plain path is not decoded */
    check_spec("/file:///a", "/file:/a");
    check_spec("/C:/a?b\\c", "/C:/a?b\\c");
    check_spec("/a%00%zz", "/a%00%zz");
    static const struct {
        const char *text, *says;
        int rc;
    } refused[] = {
        {"file://host/a", "\"host\"", LEAT_INVALID},
        {"file://localhost.example/a", "host", LEAT_INVALID},
        {"file://user@localhost/a", "host", LEAT_INVALID},
        {"file://localhost:80/a", "host", LEAT_INVALID},
        {"file://images.npy", "no file:// for a relative one", LEAT_INVALID},
        {"file:", "absolute", LEAT_INVALID},
        {"file://", "absolute", LEAT_INVALID},
        {"file://localhost", "absolute", LEAT_INVALID},
        {"file:a.npy", "absolute", LEAT_INVALID},
        {"file:./a.npy", "absolute", LEAT_INVALID},
        {"image=file:a.npy", "absolute", LEAT_INVALID},
        {"file:///a%00b", "NUL", LEAT_INVALID},
        {"file:///a%2Fb", "slash", LEAT_INVALID},
        {"file:///a%2", "hexadecimal", LEAT_INVALID},
        {"file:///a%", "hexadecimal", LEAT_INVALID},
        {"file:///a%zz", "hexadecimal", LEAT_INVALID},
        {"file:///a%+1", "hexadecimal", LEAT_INVALID},
        {"i=file:///a%2;l=/b", "hexadecimal", LEAT_INVALID}, /* not past the source's end */
        {"file:///a?b", "query", LEAT_INVALID},
        {"file:///a b", "encode", LEAT_INVALID},
        {"file:///a\tb", "encode", LEAT_INVALID},
        {"file:///a\\b", "encode", LEAT_INVALID},
        {"file:///C:/a", "Windows", LEAT_INVALID},
        {"file:///c%7C/a", "Windows", LEAT_INVALID},
        {"file:C:/a", "absolute", LEAT_INVALID},
        {"C:\\a", "Windows", LEAT_INVALID},
        {"c:/a", "Windows", LEAT_INVALID},
        {"image=c:/a", "Windows", LEAT_INVALID},
        {"\\\\server\\share", "Windows", LEAT_INVALID},
        {"i=file:///a%3Bb;l=/c", "semicolon", LEAT_INVALID},
        {"i=leat://x", "set in the pool", LEAT_INVALID},
        {"gs://bucket/x", "s3://", LEAT_UNSUPPORTED},
        {"image=ftp://x/y", "leat://NAME", LEAT_UNSUPPORTED},
        {"s3://", "no bucket", LEAT_INVALID},
        {"s3://a*b/x", "no bucket", LEAT_INVALID},
        {"S3://-b/x", "no bucket", LEAT_INVALID},
        {"s3://b/a/../c", "without", LEAT_INVALID},
        {"https://x", "a host and a file", LEAT_INVALID},
        {"https:///x", "a host and a file", LEAT_INVALID},
        {"http://x/a b", "encoded", LEAT_INVALID},
        {"http://x/a/..", "without", LEAT_INVALID},
        {"i=s3://b/a;l=s3://", "no bucket", LEAT_INVALID},
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        struct dataset_spec spec;
        struct leat_error err = {0};
        int rc = dataset_spec_parse(refused[i].text, &spec, &err);
        if (rc != refused[i].rc || !strstr(err.message, refused[i].says))
            fail_msg("%s: %d %s", refused[i].text, rc, err.message);
    }
    /* Addresses stay as they are. */
    check_spec("s3://bucket", "s3://bucket");
    check_spec("S3://bucket#pattern=*/x/*.jpg", "s3://bucket/#pattern=*/x/*.jpg");
    check_spec("store://bucket#extensions=jpg", "store://bucket/#extensions=jpg");
    check_spec("https://host#x/y", "https://host#x/y");
    check_spec("i=s3://bucket;l=/x#y", "i=s3://bucket;l=/x#y");
    check_spec("S3://bucket/a//b c%20#x", "s3://bucket/a//b c%20#x");
    check_spec("image=HTTPS://Host:1/A?b=c;l=s3://b/x-{0..9}.tar",
               "image=https://Host:1/A?b=c;l=s3://b/x-{0..9}.tar");
    char *cwd = getcwd(NULL, 0), *want = NULL;
    assert_true(asprintf(&want, "%s/C:/a", cwd) > 0);
    check_spec("./C:/a", want);
    free(want);
    assert_true(asprintf(&want, "%s/file:/a", cwd) > 0);
    check_spec("./file:///a", want);
    free(want);
    free(cwd);
}

static int cancel(void *user, uint64_t samples, uint64_t bytes)
{
    return -ECANCELED;
}

static void test_cancel(void **state)
{
    struct scan scan = {.progress = &(struct dataset_progress){.report = cancel}};
    int rc = 0;
    unsigned n = 0;
    for (; rc == 0 && n < 100000; n++)
        rc = scan_tick(&scan, 1, NULL);
    assert_int_equal(rc, -ECANCELED);
}

/* Opens on behalf: everything that is read goes through it. */
static unsigned opened;
static int refuse_y(void *user, const char *path, int flags)
{
    opened++;
    if (strstr(path, "/b.npy"))
        return -EACCES;
    int fd = open(path, flags);
    return fd < 0 ? -errno : fd;
}

static void test_opener(void **state)
{
    char text[300];
    struct dataset_opener opener = {.open = refuse_y};
    struct dataset_spec spec;
    struct leat_error err;
    snprintf(text, sizeof(text), "a=%s/a.npy;b=%s/b.npy", folder, folder);
    assert_int_equal(dataset_spec_parse(text, &spec, NULL), 0);
    int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(dataset_index_build(&spec, &opener, NULL, fd, &err), LEAT_DENIED);
    assert_non_null(strstr(err.message, "b.npy"));
    assert_true(opened > 1);
    bool scanned;
    int index_fd;
    assert_int_equal(dataset_index_open(&spec, &opener, NULL, false, &index_fd, &scanned, &err), LEAT_DENIED);
    close(fd);
    dataset_spec_free(&spec);
}

static const char *denied_name;
static int denied_rc;
static int refuse_name(void *user, const char *path, int flags)
{
    const char *name = strrchr(path, '/') + 1;
    int fd = denied_name && !strcmp(name, denied_name) ? denied_rc : open(path, flags);
    return fd == -1 ? -errno : fd;
}

/* Of a link that may not be followed: a class never goes missing, and a file does only where no filter wants it. */
static void test_denied_links(void **state)
{
    static const struct {
        const char *at, *filter;
        int why, rc;
    } cases[] = {
        {"bird", "#pattern=1", -EACCES, LEAT_DENIED},
        {"bird", "#extensions=jpg", -EACCES, LEAT_DENIED},
        {"bird.txt", "#pattern=1", -EACCES, LEAT_DENIED},
        {"bird", "#pattern=1", -EXDEV, LEAT_DENIED},
        {"bird", "", -EXDEV, LEAT_DENIED},
        {"bird", "", -EACCES, LEAT_DENIED},
        {"bird", "", -ENOENT, 0},
        {"x/young", "#pattern=1", -EACCES, LEAT_DENIED},
        {"x/v1.2", "#pattern=1", -EACCES, LEAT_DENIED},
        {"x/a.txt", "#pattern=1", -EACCES, 0},
        {"x/a.txt", "#pattern=*.txt", -EACCES, LEAT_DENIED},
        {"x/a.txt", "", -EACCES, LEAT_DENIED},
        {"x/young", "", -EXDEV, 0},
        {"x/young", "#pattern=1", -EXDEV, 0},
    };
    struct dataset_opener opener = {.open = refuse_name};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[300], link[300];
        struct dataset_spec spec;
        struct leat_error err = {0};
        snprintf(link, sizeof(link), "%s/tree/%s", folder, cases[i].at);
        snprintf(text, sizeof(text), "%s/tree%s", folder, cases[i].filter);
        assert_int_equal(symlink("y", link), 0);
        denied_name = strrchr(link, '/') + 1;
        denied_rc = cases[i].why;
        assert_int_equal(dataset_spec_parse(text, &spec, NULL), 0);
        int fd = memfd_create("index", MFD_CLOEXEC);
        int rc = dataset_index_build(&spec, &opener, NULL, fd, &err);
        close(fd);
        dataset_spec_free(&spec);
        unlink(link);
        if (rc != cases[i].rc || (rc < 0 && !strstr(err.message, link)) ||
            (rc < 0 && cases[i].why == -EXDEV && !strstr(err.message, "relative links")))
            fail_msg("%s%s %d: %d %s", cases[i].at, cases[i].filter, cases[i].why, rc, err.message);
    }
}

/* A child that says nothing is killed at the deadline, and the error says what happened. */
static void test_silent_child(void **state)
{
    char text[300], path[300];
    struct dataset_spec spec;
    struct leat_error err;
    write_file("x.h5", "\x89HDF\r\n\x1a\n        ", 16);
    write_file("leat-hdf5-table", "#!/bin/sh\nexec sleep 60\n", 24);
    snprintf(path, sizeof(path), "%s/leat-hdf5-table", folder);
    assert_int_equal(chmod(path, 0755), 0);
    setenv("LEAT_LIBEXEC", folder, 1);
    hdf5_idle_ns = 50000000;
    snprintf(text, sizeof(text), "%s/x.h5", folder);
    assert_int_equal(dataset_spec_parse(text, &spec, NULL), 0);
    int fd = memfd_create("index", MFD_CLOEXEC);
    assert_int_equal(dataset_index_build(&spec, NULL, NULL, fd, &err), LEAT_TIMED_OUT);
    assert_non_null(strstr(err.message, "x.h5"));
    close(fd);
    dataset_spec_free(&spec);
    unlink(text);
    unlink(path);
}

static void test_choices(void **state)
{
    static const struct {
        const char *text, *says;
    } refused[] = {
        {"%s/tree#extensions=,jpg", "none of them empty"},
        {"%s/tree#extensions=jpg,", "none of them empty"},
        {"%s/tree#extensions=jpg,.,png", "none of them empty"},
        {"%s/tree#extensions=.", "none of them empty"},
        {"%s/tree#extension=jpg", "\"#extension=jpg\" is not understood"},
        {"%s/tree#Pattern=1", "extensions="},
        {"%s/a.npy#row=2", "rows="},
    };
    struct leat_error err;
    struct index ix;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        assert_int_equal(build_rows(refused[i].text, &ix, &err), LEAT_INVALID);
        if (!strstr(err.message, refused[i].says))
            fail_msg("%s: \"%s\"", refused[i].text, err.message);
    }
}

/* What readdir is with offsets of 64 bits. The call with this number fails; 0: none. */
static unsigned fail_readdir;
struct dirent *__real_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir)
{
    if (fail_readdir == 0 || --fail_readdir > 0)
        return __real_readdir64(dir);
    errno = EIO;
    return NULL;
}

/* A folder that cannot be read to its end is an error, not a smaller set. */
static void test_broken_folder(void **state)
{
    static const char *const specs[] = {"%s/tars", "%s/tars/*.tar", "%s/tree/y"};
    struct leat_error err;
    struct index ix;
    for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
        for (unsigned nth = 1; nth <= 3; nth++) {
            fail_readdir = nth;
            assert_int_equal(build_rows(specs[i], &ix, &err), -EIO);
            assert_non_null(strstr(err.message, i < 2 ? "/tars" : "/tree/y"));
        }
        assert_int_equal(build_rows(specs[i], &ix, &err), 0);
        index_close(&ix);
    }
}

static int open_kept(const char *text, bool *ret_scanned)
{
    struct dataset_spec spec;
    int fd;
    assert_int_equal(dataset_spec_parse(text, &spec, NULL), 0);
    int rc = dataset_index_open(&spec, NULL, NULL, true, &fd, ret_scanned, NULL);
    dataset_spec_free(&spec);
    if (rc == 0)
        close(fd);
    return rc;
}

/* A kept index with links that may not be followed is as good as a scan: below a class it stands, and in the root it does not. */
static void test_denied_links_kept(void **state)
{
    char home[200], closed[300], text[300], cache[300], path[2][300];
    bool scanned;
    snprintf(home, sizeof(home), "%s/kept", folder);
    snprintf(closed, sizeof(closed), "%s/closed", home);
    snprintf(cache, sizeof(cache), "%s/cache", home);
    snprintf(text, sizeof(text), "%s/tree/#pattern=1", home);
    make_folder("kept");
    make_folder("kept/closed");
    make_folder("kept/cache");
    make_folder("kept/tree");
    make_folder("kept/tree/x");
    write_file("kept/tree/x/1", "1", 1);
    for (unsigned i = 0; i < 2; i++)
        snprintf(path[i], sizeof(path[i]), "%s/tree/%s", home, i ? "bird" : "x/a.txt");
    assert_int_equal(symlink("../../closed/a", path[0]), 0);
    setenv("XDG_CACHE_HOME", cache, 1);
    chmod(folder, 0755);
    chmod(cache, 0777);
    chmod(closed, 0);
    const bool root = geteuid() == 0; /* which may follow all of them */
    assert_true(!root || seteuid(65534) == 0);
    assert_int_equal(open_kept(text, &scanned), 0);
    assert_true(scanned);
    assert_int_equal(open_kept(text, &scanned), 0);
    assert_false(scanned);
    assert_true(!root || seteuid(0) == 0);
    chmod(closed, 0755);
    assert_int_equal(symlink("../closed/b", path[1]), 0);
    assert_true(!root || seteuid(65534) == 0);
    assert_int_equal(open_kept(text, &scanned), 0); /* both lead nowhere */
    assert_int_equal(open_kept(text, &scanned), 0);
    assert_false(scanned);
    assert_true(!root || seteuid(0) == 0);
    chmod(closed, 0);
    assert_true(!root || seteuid(65534) == 0);
    assert_int_equal(open_kept(text, &scanned), LEAT_DENIED);
    assert_true(!root || seteuid(0) == 0);
    chmod(closed, 0755);
    unsetenv("XDG_CACHE_HOME");
    remove_tree(home);
}

/* While this is not 0 it is the time, and only sleep moves it; after each of `busy` sleeps the folder changes. */
static time_t fake_ms;
static unsigned busy, sleeps;
static int busy_fd;

static struct timespec fake_now(void)
{
    return (struct timespec){fake_ms / 1000, fake_ms % 1000 * 1000000};
}

static int touch_busy(void)
{
    return futimens(busy_fd, (struct timespec[]){fake_now(), fake_now()});
}

int __real_clock_gettime(clockid_t clock, struct timespec *ret_now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    if (!fake_ms || clock != CLOCK_REALTIME)
        return __real_clock_gettime(clock, ret_now);
    *ret_now = fake_now();
    return 0;
}

int __real_nanosleep(const struct timespec *want, struct timespec *left);
int __wrap_nanosleep(const struct timespec *want, struct timespec *left);
int __wrap_nanosleep(const struct timespec *want, struct timespec *left)
{
    if (!fake_ms)
        return __real_nanosleep(want, left);
    if (++sleeps == 1) { /* a signal */
        if (left)
            *left = *want;
        errno = EINTR;
        return -1;
    }
    fake_ms += want->tv_nsec / 1000000;
    return busy && busy-- ? touch_busy() : 0;
}

/* A folder that is written while its time settles is waited for again, but not for good. */
static void test_busy_folder(void **state)
{
    static const struct {
        unsigned busy, slept;
        bool fresh;
    } cases[] = {{0, 1, true}, {2, 3, true}, {100, 5, false}};
    char path[300];
    snprintf(path, sizeof(path), "%s/tree/x", folder);
    busy_fd = open(path, O_RDONLY | O_DIRECTORY);
    fake_ms = 1000000000000;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct stat st, now;
        assert_int_equal(touch_busy(), 0);
        busy = cases[i].busy;
        sleeps = 0;
        assert_int_equal(scan_stat_folder(busy_fd, &st), 0);
        assert_int_equal(sleeps, cases[i].slept + 1); /* and the one that a signal ended */
        assert_int_equal(fstat(busy_fd, &now), 0);
        assert_int_equal(!memcmp(&st.st_mtim, &now.st_mtim, sizeof(now.st_mtim)), cases[i].fresh);
    }
    fake_ms = 0;
    busy = 0;
    close(busy_fd);
}

static int count_opened(void *user, const char *path, int flags)
{
    opened++;
    int fd = open(path, flags);
    return fd < 0 ? -errno : fd;
}

/* Whether a folder is one of shards takes one way down to a file, and asks often enough whether to stop. */
static void test_look_for_shards(void **state)
{
    enum { RECORDINGS = 40, FILES = 5000 };
    char root[200], path[300];
    snprintf(root, sizeof(root), "%s/recordings", folder);
    assert_int_equal(mkdir(root, 0755), 0);
    for (unsigned i = 0; i < RECORDINGS * 2; i++) { /* each with one folder in it, and a file in that */
        snprintf(path, sizeof(path), "%s/%02u%s", root, i / 2, i % 2 ? "/rgb" : "");
        assert_int_equal(mkdir(path, 0755), 0);
        if (i % 2) {
            strcat(path, "/0.png");
            assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0644)), 0);
        }
    }
    struct dataset_progress never = {.report = cancel};
    struct scan scan = {.opener = &(struct dataset_opener){.open = count_opened}};
    struct scan_paths paths = {0};
    int fd = open(root, O_RDONLY | O_DIRECTORY);
    opened = 0;
    assert_int_equal(shards_in_directory(&scan, root, fd, &paths, NULL), 0);
    assert_int_equal(opened, 2);
    close(fd);
    remove_tree(root);
    assert_int_equal(mkdir(root, 0755), 0);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "%s/%u.json", root, i);
        assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0644)), 0);
    }
    fd = open(root, O_RDONLY | O_DIRECTORY);
    scan.progress = &never;
    assert_int_equal(shards_in_directory(&scan, root, fd, &paths, NULL), -ECANCELED);
    close(fd);
    remove_tree(root);
}

/* Links to one folder: its files count as often as links lead there, those that lead nowhere too. */
static void test_linked_files(void **state)
{
    const uint64_t most = dir_linked_files_max;
    struct leat_error err;
    struct index ix;
    char path[4][300];
    for (unsigned i = 0; i < 4; i++) {
        snprintf(path[i], sizeof(path[i]), i < 3 ? "%s/tree/l%u" : "%s/tree/y/l", folder, i);
        assert_int_equal(symlink(i < 3 ? "y" : "nowhere", path[i]), 0);
    }
    dir_linked_files_max = 6;
    assert_int_equal(build_rows("%s/tree", &ix, &err), 0);
    assert_int_equal(ix.header->nsamples, 5);
    index_close(&ix);
    for (dir_linked_files_max = 5; dir_linked_files_max > 0; dir_linked_files_max--) {
        assert_int_equal(build_rows("%s/tree", &ix, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, "files lie behind symbolic links"));
    }
    dir_linked_files_max = most;
    for (unsigned i = 0; i < 4; i++)
        unlink(path[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spec),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_uri),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_table_allocations),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_opener),
        cmocka_unit_test(test_denied_links),
        cmocka_unit_test(test_denied_links_kept),
        cmocka_unit_test(test_silent_child),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_linked_files),
        cmocka_unit_test(test_broken_folder),
        cmocka_unit_test(test_look_for_shards),
        cmocka_unit_test(test_busy_folder),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
