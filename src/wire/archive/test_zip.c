/* SPDX-License-Identifier: Apache-2.0 */
/* An archive made by hand, cut and fed wrongly; what zipfile writes, and what lies, is in tests/test_archives.py. */
#include <libdeflate.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "failalloc.h"
#include "wire/archive/zip.h"

/* One stored member "a" of three bytes: local header, payload, entry, end. */
static const uint8_t ZIP[] = {
    'P', 'K', 3, 4, 20, 0, 0,  0, 0,    0,    0,    0,    33,  0,   0xc2, 0x41, 0x24, 0x35, 3,   0,   0,
    0,   3,   0, 0, 0,  1, 0,  0, 0,    'a',  'a',  'b',  'c', 'P', 'K',  1,    2,    20,   3,   20,  0,
    0,   0,   0, 0, 0,  0, 33, 0, 0xc2, 0x41, 0x24, 0x35, 3,   0,   0,    0,    3,    0,    0,   0,   1,
    0,   0,   0, 0, 0,  0, 0,  0, 0,    0,    0,    0,    0,   0,   0,    0,    0,    'a',  'P', 'K', 5,
    6,   0,   0, 0, 0,  1, 0,  1, 0,    47,   0,    0,    0,   34,  0,    0,    0,    0,    0};

static void test_member(void **state)
{
    struct zip_parser p;
    struct zip_member m;
    struct leat_error err;
    uint64_t at;
    assert_int_equal(zip_parser_init(&p, sizeof(ZIP), &err), 0);
    assert_int_equal(p.want, sizeof(ZIP));
    assert_int_equal(zip_parser_feed(&p, ZIP, p.want, &m, &err), ZIP_MORE);
    assert_int_equal(p.directory_offset, 34);
    assert_int_equal(zip_parser_feed(&p, ZIP + p.offset, p.want, &m, &err), ZIP_MORE);
    assert_int_equal(p.want, 47);
    assert_int_equal(zip_parser_feed(&p, ZIP + p.offset, p.want - 1, &m, &err), LEAT_CORRUPT);
    assert_int_equal(zip_parser_feed(&p, ZIP + p.offset, p.want, &m, &err), ZIP_MEMBER);
    assert_string_equal(m.path, "a");
    assert_true(m.bytes == 3 && m.stored_bytes == 3 && m.method == ZIP_STORED && m.mtime == 315532800);
    assert_int_equal(m.crc, libdeflate_crc32(0, "abc", 3));
    assert_int_equal(p.want, 0);
    assert_int_equal(zip_parser_feed(&p, NULL, 0, &m, &err), ZIP_END);
    assert_int_equal(zip_parser_feed(&p, NULL, 0, &m, &err), ZIP_END);
    assert_int_equal(zip_data_offset(&m, ZIP, p.directory_offset, &at, &err), 0);
    assert_int_equal(at, 31);
    assert_int_equal(zip_data_offset(&m, ZIP, 33, &at, &err), LEAT_CORRUPT);
}

static void test_no_archive(void **state)
{
    struct zip_parser p;
    struct zip_member m;
    struct leat_error err;
    assert_int_equal(zip_parser_init(&p, 21, &err), LEAT_CORRUPT);
    assert_int_equal(zip_parser_init(&p, 1ull << 63, &err), LEAT_CORRUPT);
    assert_int_equal(zip_parser_init(&p, INT64_MAX, &err), 0);
    assert_int_equal(p.offset + p.want, INT64_MAX);
    static const uint8_t empty[22] = {'P', 'K', 5, 6};
    assert_int_equal(zip_parser_init(&p, sizeof(empty), &err), 0);
    assert_int_equal(zip_parser_feed(&p, empty, sizeof(empty), &m, &err), ZIP_MORE);
    assert_int_equal(zip_parser_feed(&p, NULL, 0, &m, &err), ZIP_END);
}

static void test_empty_payload(void **state)
{
    struct zip_stream *s;
    struct leat_error err;
    size_t used, made;
    struct zip_member m = {.method = ZIP_STORED};
    assert_int_equal(zip_stream_new(&m, &s), 0);
    assert_int_equal(zip_stream_feed(s, "", 0, &used, NULL, 0, &made, &err), 1);
    zip_stream_free(s);
    m = (struct zip_member){.method = ZIP_DEFLATED, .stored_bytes = 2};
    assert_int_equal(zip_stream_new(&m, &s), 0);
    assert_int_equal(zip_stream_feed(s, "\3\0", 2, &used, NULL, 0, &made, &err), 1);
    zip_stream_free(s);
    zip_stream_free(NULL);
    m.method = 12;
    assert_int_equal(zip_stream_new(&m, &s), LEAT_UNSUPPORTED);
}

static int stream(void *ctx)
{
    struct zip_member m = {.method = ZIP_DEFLATED, .stored_bytes = 2};
    struct zip_stream *s = NULL;
    int rc = zip_stream_new(&m, &s);
    zip_stream_free(s);
    return rc;
}

static void test_no_memory(void **state)
{
    failalloc_run(stream, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member),
        cmocka_unit_test(test_no_archive),
        cmocka_unit_test(test_empty_payload),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
