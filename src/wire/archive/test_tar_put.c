/* SPDX-License-Identifier: Apache-2.0 */
/* What is written is read by our own parser; Python's tarfile and GNU tar read it in tests/test_archives.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/archive/tar_put.h"

static void round_trip(const struct tar_put *e)
{
    static char buf[TAR_PUT_MAX];
    struct tar_parser p;
    struct tar_member m;
    struct leat_error err;
    size_t len = tar_put_header_bytes(e);
    assert_true(len > 0 && len <= sizeof(buf) && len % TAR_BLOCK == 0);
    memset(buf, 0xaa, sizeof(buf));
    tar_put_header(e, buf);
    for (size_t i = len; i < sizeof(buf); i++)
        assert_int_equal((uint8_t)buf[i], 0xaa);
    tar_parser_init(&p);
    int rc;
    do {
        assert_true(p.offset + p.want <= len);
        rc = tar_parser_feed(&p, buf + p.offset, p.want, &m, &err);
    } while (rc == TAR_MORE);
    assert_int_equal(rc, TAR_MEMBER);
    assert_string_equal(m.path, e->path);
    assert_int_equal(m.bytes, e->bytes);
    assert_int_equal(m.type, e->type);
    assert_int_equal(m.data_offset, len);
    assert_int_equal(p.offset, tar_put_bytes(e));
}

static void test_every_length_of_a_name(void **state)
{
    char name[TAR_PATH_MAX];
    for (size_t len = 1; len < sizeof(name); len += len < 1100 ? 1 : 97) {
        for (size_t i = 0; i < len; i++)
            name[i] = i % 50 == 49 && i + 1 < len ? '/' : 'n';
        name[len] = 0;
        round_trip(&(struct tar_put){.path = name, .type = '0', .bytes = len});
    }
}

static void test_sizes_and_records(void **state)
{
    static const uint64_t sizes[] = {0, 1, 511, 512, 513, 8 * GIB - 1, 8 * GIB, 1ull << 55};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        round_trip(&(struct tar_put){.path = "a", .type = '0', .bytes = sizes[i], .mtime = (int64_t)i << 40});
    round_trip(&(struct tar_put){.path = "d", .type = '5'});
    char value[TAR_PATH_MAX];
    for (size_t len = 0; len < 2000; len++) {
        memset(value, 'v', len);
        value[len] = 0;
        round_trip(&(struct tar_put){
            .path = "caf\xc3\xa9", .type = '0', .records = {{"LEAT.a", value}, {"b", value}}, .nrecords = 2});
    }
}

static void test_what_does_not_fit(void **state)
{
    char name[TAR_PATH_MAX + 1];
    memset(name, 'n', TAR_PATH_MAX);
    name[TAR_PATH_MAX] = 0;
    assert_int_equal(tar_put_header_bytes(&(struct tar_put){.path = name}), 0);
    assert_int_equal(tar_put_header_bytes(&(struct tar_put){.path = ""}), 0);
    assert_int_equal(tar_put_header_bytes(&(struct tar_put){.path = "a", .bytes = INT64_MAX}), 0);
    assert_int_equal(tar_put_bytes(&(struct tar_put){.path = "a", .bytes = UINT64_MAX}), 0);
    assert_int_equal(tar_put_bytes(&(struct tar_put){.path = "a", .records = {{"k", name}}, .nrecords = 1}),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_of_a_name),
        cmocka_unit_test(test_sizes_and_records),
        cmocka_unit_test(test_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
