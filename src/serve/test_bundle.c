/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies made of a real store's objects: every byte of them, in instalments, against what tar.h reads back; and what is damaged on the way. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <libdeflate.h>

#include "objects/objects.h"
#include "serve/s3/bundle.h"
#include "store/testing.h"
#include "wire/archive/tar_put.h"

#define LARGE (9 * MIB + 1234)

static struct fixture {
    char folder[256];
    struct store *store;
    struct objects *objects;
    uint8_t *large;
    uint8_t packed[64 * KIB]; /* `large`'s first 300 KiB of letters, deflated */
    uint8_t letters[300 * KIB];
    size_t packed_bytes;
} f;

static void put(const char *key, const void *data, uint64_t bytes)
{
    struct store_commit commit = {.mtime_ns = 1700000000ll * 1000000000};
    testing_put_bytes(f.store, "data", key, data, bytes, &commit);
}

static int setup(void **state)
{
    struct leat_error err = {0};
    testing_mkdir(f.folder);
    f.store = testing_open1(f.folder);
    assert_int_equal(store_bucket_create(f.store, "data", 0, NULL, &err), 0);
    assert_int_equal(objects_new(f.store, NULL, &f.objects), 0); /* no bucket is looked up */
    f.large = malloc(LARGE);
    for (uint64_t i = 0; i < LARGE; i++)
        f.large[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof(f.letters); i++)
        f.letters[i] = (uint8_t)('a' + i % 26 + (i / 5000) % 3);
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    f.packed_bytes = libdeflate_deflate_compress(c, f.letters, sizeof(f.letters), f.packed, sizeof(f.packed));
    libdeflate_free_compressor(c);
    assert_true(f.packed_bytes > 0);
    put("large", f.large, LARGE);
    put("small", "hello", 5);
    put("empty", "", 0);
    put("packed", f.packed, f.packed_bytes);
    return 0;
}

static int teardown(void **state)
{
    objects_free(f.objects);
    store_free(f.store);
    free(f.large);
    testing_rmdir(f.folder);
    return 0;
}

static struct store_obj *obj_of(const char *key)
{
    struct store_obj *obj;
    struct leat_error err = {0};
    if (store_get(f.store, "data", key, strlen(key), &obj, &err) < 0)
        fail_msg("%s", err.message);
    return obj;
}

/* All of a body. Pieces are looked at as a server does: before the next step. */
static uint8_t *all_of(struct bundle *b, uint64_t *ret_bytes)
{
    const struct http_piece *pieces;
    struct leat_error err = {0};
    uint64_t total = bundle_bytes(b), at = 0;
    uint8_t *out = malloc(total + 1);
    bool last = false;
    unsigned n, empty = 0;
    while (!last) {
        if (bundle_step(b, &pieces, &n, &last, &err) < 0)
            fail_msg("%s", err.message);
        assert_true(n <= BUNDLE_PIECES);
        empty = n ? 0 : empty + 1;
        assert_true(empty < 3);
        for (unsigned i = 0; i < n; i++) {
            assert_true(pieces[i].bytes > 0 && at + pieces[i].bytes <= total);
            if (pieces[i].data)
                memcpy(out + at, pieces[i].data, pieces[i].bytes);
            else
                assert_int_equal(pread(pieces[i].fd, out + at, pieces[i].bytes, (off_t)pieces[i].at),
                                 pieces[i].bytes);
            at += pieces[i].bytes;
        }
    }
    assert_int_equal(at, total);
    *ret_bytes = total;
    return out;
}

static void add(struct bundle *b, struct bundle_part part)
{
    struct leat_error err = {0};
    if (bundle_add(b, &part, &err) < 0)
        fail_msg("%s", err.message);
}

static struct member deflated(void)
{
    return (struct member){.stored_bytes = f.packed_bytes,
                           .bytes = sizeof(f.letters),
                           .deflated = true,
                           .has_crc = true,
                           .crc = libdeflate_crc32(0, f.letters, sizeof(f.letters))};
}

static void test_tar(void **state)
{
    enum { MANY = 300 };
    struct bundle *b;
    struct member m = deflated(), part = {.at = 1000, .stored_bytes = 2 * MIB, .bytes = 2 * MIB};
    assert_int_equal(bundle_new(f.objects, true, 7 + MANY, &b), 0);
    add(b, (struct bundle_part){.obj = obj_of("small"), .count = 5, .path = "small", .opaque = "mine"});
    add(b, (struct bundle_part){
               .obj = obj_of("large"), .count = LARGE, .path = "large", .mtime_ns = 5000000000});
    add(b, (struct bundle_part){.obj = obj_of("empty"), .path = "folder/"});
    add(b, (struct bundle_part){
               .obj = obj_of("packed"), .member = &m, .count = m.bytes, .path = "packed", .suffix = "x"});
    add(b, (struct bundle_part){
               .obj = obj_of("large"), .member = &part, .first = 77, .count = MIB, .path = "part"});
    add(b,
        (struct bundle_part){.text = strdup("{gone}"), .count = 6, .prefix = "__missing__/", .path = "gone"});
    add(b, (struct bundle_part){.obj = obj_of("large"), .first = 3 * MIB - 5, .count = 10, .path = "ten"});
    for (unsigned i = 0; i < MANY; i++)
        add(b,
            (struct bundle_part){.obj = obj_of("small"), .first = i % 5, .count = 5 - i % 5, .path = "many"});
    uint64_t bytes;
    uint8_t *out = all_of(b, &bytes);
    static const char *const names[] = {"small", "large", "folder", "packed/x", "part", "__missing__/gone",
                                        "ten"};
    const uint8_t *const payloads[] = {
        (const uint8_t *)"hello", f.large, NULL, f.letters, f.large + 1077, (const uint8_t *)"{gone}",
        f.large + 3 * MIB - 5};
    struct tar_parser p;
    struct tar_member got;
    struct leat_error err = {0};
    unsigned i = 0;
    int rc = TAR_MORE;
    tar_parser_init(&p);
    while (rc >= 0 && rc != TAR_END) {
        assert_true(p.offset + p.want <= bytes);
        rc = tar_parser_feed(&p, out + p.offset, p.want, &got, &err);
        if (rc != TAR_MEMBER)
            continue;
        assert_string_equal(got.path, i < 7 ? names[i] : "many");
        assert_true(i != 2 || got.type == '5');
        if (i < 7 && payloads[i])
            assert_memory_equal(out + got.data_offset, payloads[i], got.bytes);
        else if (i >= 7)
            assert_memory_equal(out + got.data_offset, "hello" + (i - 7) % 5, 5 - (i - 7) % 5);
        i++;
    }
    assert_int_equal(rc, TAR_END);
    assert_int_equal(i, 7 + MANY);
    assert_int_equal(p.offset, bytes);
    free(out);
    bundle_free(b);
}

static void expect_plain(struct bundle_part part, const uint8_t *want)
{
    struct bundle *b;
    uint64_t bytes;
    assert_int_equal(bundle_new(f.objects, false, 1, &b), 0);
    part.path = "x";
    add(b, part);
    uint8_t *out = all_of(b, &bytes);
    assert_int_equal(bytes, part.count);
    assert_memory_equal(out, want, bytes);
    free(out);
    bundle_free(b);
}

static void test_plain(void **state)
{
    struct member m = deflated();
    expect_plain((struct bundle_part){.obj = obj_of("small"), .count = 5}, (const uint8_t *)"hello");
    expect_plain((struct bundle_part){.obj = obj_of("empty")}, (const uint8_t *)"");
    expect_plain((struct bundle_part){.obj = obj_of("large"), .count = LARGE}, f.large);
    expect_plain((struct bundle_part){.obj = obj_of("packed"), .member = &m, .count = m.bytes}, f.letters);
    static const uint64_t ranges[][2] = {{0, 1}, {299 * KIB, KIB}, {12345, 200000}, {100, 32}};
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
        expect_plain(
            (struct bundle_part){
                .obj = obj_of("packed"), .member = &m, .first = ranges[i][0], .count = ranges[i][1]},
            f.letters + ranges[i][0]);
}

static int fails(struct bundle_part part, struct leat_error *err)
{
    struct bundle *b;
    const struct http_piece *pieces;
    unsigned n;
    bool last = false;
    int rc = 0;
    assert_int_equal(bundle_new(f.objects, false, 1, &b), 0);
    part.path = "asked for";
    add(b, part);
    while (rc == 0 && !last)
        rc = bundle_step(b, &pieces, &n, &last, err);
    bundle_free(b);
    return rc;
}

static void test_damaged(void **state)
{
    struct leat_error err = {0};
    struct member m = deflated();
    m.crc ^= 1;
    assert_int_equal(
        fails((struct bundle_part){.obj = obj_of("packed"), .member = &m, .count = m.bytes}, &err),
        LEAT_INVALID);
    assert_non_null(strstr(err.message, "asked for"));
    struct store_obj *packed = obj_of("packed");
    assert_int_equal(bundle_check(f.objects, packed, &m, &err), LEAT_INVALID);
    store_obj_unref(packed);
    /* The bits of an object that was read and verified before do not matter; one that was not is looked at. */
    put("bad", f.large, LARGE);
    struct store_obj *obj = obj_of("bad");
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", obj->fd);
    AUTO_CLOSE int fd = open(path, O_WRONLY);
    uint8_t other = (uint8_t)~f.large[5 * MIB];
    assert_int_equal(pwrite(fd, &other, 1, (off_t)(obj->offset + 5 * MIB)), 1);
    assert_int_equal(fails((struct bundle_part){.obj = obj, .count = LARGE}, &err), LEAT_CORRUPT);
}

static void test_names_that_do_not_fit(void **state)
{
    struct bundle *b;
    struct leat_error err;
    static char name[TAR_PATH_MAX];
    memset(name, 'n', sizeof(name) - 1);
    assert_int_equal(bundle_new(f.objects, true, 1, &b), 0);
    struct bundle_part part = {.obj = obj_of("small"), .count = 5, .path = name, .suffix = "x"};
    assert_int_equal(bundle_add(b, &part, &err), LEAT_INVALID);
    bundle_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tar),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_names_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
