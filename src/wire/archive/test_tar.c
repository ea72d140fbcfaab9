/* SPDX-License-Identifier: Apache-2.0 */
/* The parser on archives made by hand; whole archives of three dialects are in tests/test_dataset_tar.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/archive/tar.h"

static void set_checksum(char block[TAR_BLOCK])
{
    unsigned sum = 0;
    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += (uint8_t)block[i];
    snprintf(block + 148, 8, "%06o", sum);
}

/* A header of type `type` whose size field holds `size` as it stands. */
static void make_header(char block[TAR_BLOCK], const char *name, char type, const char *size)
{
    memset(block, 0, TAR_BLOCK);
    strncpy(block, name, 100);
    memcpy(block + 124, size, strlen(size));
    memcpy(block + 257,
           "ustar\0"
           "00",
           8);
    block[156] = type;
    set_checksum(block);
}

static int feed(struct tar_parser *p, const char *block, struct tar_member *m, struct leat_error *err)
{
    return tar_parser_feed(p, block, p->want, m, err);
}

static void test_member(void **state)
{
    struct tar_parser p;
    struct tar_member m;
    char block[TAR_BLOCK];
    tar_parser_init(&p);
    make_header(block, "././a/b.jpg", '0', "00000001001");
    assert_int_equal(feed(&p, block, &m, NULL), TAR_MEMBER);
    assert_string_equal(m.path, "a/b.jpg");
    assert_int_equal(m.bytes, 513);
    assert_int_equal(m.data_offset, 512);
    assert_int_equal(p.offset, 512 + 1024);
    make_header(block, "d/", '5', "00000000777"); /* a folder has no payload */
    assert_int_equal(feed(&p, block, &m, NULL), TAR_MEMBER);
    assert_string_equal(m.path, "d");
    assert_int_equal(m.bytes, 0);
    assert_int_equal(p.offset, 512 + 1024 + 512);
    make_header(block, "./", '5', "0");
    assert_int_equal(feed(&p, block, &m, NULL), TAR_MEMBER);
    assert_string_equal(m.path, ".");
    memset(block, 0, sizeof(block));
    assert_int_equal(feed(&p, block, &m, NULL), TAR_MORE);
    assert_int_equal(feed(&p, block, &m, NULL), TAR_END);
    assert_int_equal(feed(&p, block, &m, NULL), TAR_END);
}

static void test_sizes(void **state)
{
    static const struct {
        const char *size;
        size_t len;
        uint64_t want; /* UINT64_MAX: refused */
    } cases[] = {
        {"77777777777 ", 12, 8589934591},
        {"\x80\0\0\0\0\0\0\2\0\0\0\0", 12, 8589934592},
        {"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12, UINT64_MAX},
        {"\x80\0\0\0\x80\0\0\0\0\0\0\0", 12, UINT64_MAX},
        {"\x80\0\0\1\0\0\0\0\0\0\0\0", 12, UINT64_MAX},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12, UINT64_MAX},
        {"0000000009", 10, UINT64_MAX},
        {"-1", 2, UINT64_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tar_parser p;
        struct tar_member m;
        struct leat_error err;
        char block[TAR_BLOCK];
        tar_parser_init(&p);
        make_header(block, "a.x", '0', "0");
        memcpy(block + 124, cases[i].size, cases[i].len);
        set_checksum(block);
        int rc = feed(&p, block, &m, &err);
        if (cases[i].want == UINT64_MAX)
            assert_int_equal(rc, LEAT_CORRUPT);
        else
            assert_true(rc == TAR_MEMBER && m.bytes == cases[i].want);
    }
}

/* A pax record "size=..." and "path=...", an overflow of it, and malformed ones. */
static int feed_pax(const char *records, char type, struct tar_member *m, struct leat_error *err)
{
    struct tar_parser p;
    char block[TAR_BLOCK], size[16];
    tar_parser_init(&p);
    snprintf(size, sizeof(size), "%o", (unsigned)strlen(records));
    make_header(block, "PaxHeader", type, size);
    int rc = feed(&p, block, m, err);
    assert_int_equal(rc, TAR_MORE);
    memset(block, 0, sizeof(block));
    memcpy(block, records, strlen(records));
    rc = feed(&p, block, m, err);
    if (rc < 0)
        return rc;
    make_header(block, "short.x", '0', "1");
    return feed(&p, block, m, err);
}

static void test_pax(void **state)
{
    struct tar_member m;
    struct leat_error err;
    assert_int_equal(feed_pax("18 path=./a/b.JPG\n13 size=1234\n", 'x', &m, &err), TAR_MEMBER);
    assert_string_equal(m.path, "a/b.JPG");
    assert_int_equal(m.bytes, 1234);
    assert_int_equal(m.header_offset, 0);
    assert_int_equal(m.data_offset, 3 * 512);
    assert_int_equal(feed_pax("12 comment=x\n", 'g', &m, &err), LEAT_CORRUPT); /* 13 */
    assert_int_equal(feed_pax("13 comment=x\n", 'g', &m, &err), TAR_MEMBER);
    assert_int_equal(m.header_offset, 1024); /* a global header belongs to no member */
    assert_int_equal(feed_pax("10 path=x\n", 'g', &m, &err), LEAT_CORRUPT);
    assert_int_equal(feed_pax("22 GNU.sparse.major=1\n", 'x', &m, &err), TAR_MEMBER);
    assert_int_equal(m.type, 'S');
    static const char *const malformed[] = {
        "29 size=18446744073709551616\n",
        "28 size=9223372036854775807\n",
        "10 size=-1\n",
        "99 path=x\n",
        "x",
        "5 =x\n",
        "0 path=x\n",
        "10path=xx\n",
        "99999999999999999999 path=x\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(malformed); i++)
        assert_int_equal(feed_pax(malformed[i], 'x', &m, &err), LEAT_CORRUPT);
    assert_int_equal(feed_pax("14 path=../a.x\n", 'x', &m, &err), LEAT_CORRUPT); /* 15 */
    assert_int_equal(feed_pax("15 path=../a.x\n", 'x', &m, &err), LEAT_INVALID);
}

static void test_damaged(void **state)
{
    struct tar_parser p;
    struct tar_member m;
    struct leat_error err;
    char block[TAR_BLOCK];
    for (size_t at = 0; at < TAR_BLOCK; at++) {
        make_header(block, "a.x", '0', "1");
        block[at] ^= 0x40;
        tar_parser_init(&p);
        int rc = feed(&p, block, &m, &err);
        if (at < 148 || at >= 156)
            assert_int_equal(rc, LEAT_CORRUPT);
    }
    make_header(block, "a.x", '0', "1");
    for (size_t len = 1; len < TAR_BLOCK; len += 51) {
        tar_parser_init(&p);
        assert_int_equal(tar_parser_feed(&p, block, len, &m, &err), LEAT_CORRUPT);
        assert_non_null(strstr(err.message, "truncated"));
    }
    tar_parser_init(&p);
    assert_int_equal(tar_parser_feed(&p, block, 0, &m, &err), TAR_END);
    make_header(block, "x", 'L', "77777777"); /* an extension of 16 MiB */
    tar_parser_init(&p);
    assert_int_equal(feed(&p, block, &m, &err), LEAT_CORRUPT);
}

static void test_paths(void **state)
{
    static const char *const refused[] = {"",       "/a",      "..",       "../a",         "a/..",
                                          "a/../b", "caf\xe9", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                          "a\xff"};
    static const char *const fine[] = {"a",  "a/b", "...", "..a", "a..", "caf\xc3\xa9", "\xf0\x9f\x98\x80",
                                       "a b"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        assert_int_equal(tar_path_check(refused[i], NULL), LEAT_INVALID);
    for (size_t i = 0; i < ARRAY_LEN(fine); i++)
        assert_int_equal(tar_path_check(fine[i], NULL), 0);
    char deep[2 * (TAR_DEPTH_MAX + 1) + 1] = "";
    for (unsigned i = 0; i < TAR_DEPTH_MAX; i++)
        memcpy(deep + 2 * i, "d/", 3);
    assert_int_equal(tar_path_check(deep, NULL), 0);
    strcat(deep, "x");
    assert_int_equal(tar_path_check(deep, NULL), LEAT_INVALID);
}

static void test_keys(void **state)
{
    static const struct {
        const char *path, *key, *field; /* key NULL: no sample */
    } cases[] = {
        {"a/b.seg.PNG", "a/b", "seg.png"},
        {"b.jpg", "b", "jpg"},
        {"a.b/c.x", "a.b/c", "x"},
        {"README", NULL, NULL},
        {"a.b/README", NULL, NULL},
        {".hidden", NULL, NULL},
        {"a/.x.y", NULL, NULL},
        {"a.", NULL, NULL},
        {"__meta__", NULL, NULL},
        {"__m__/a.x", NULL, NULL},
        {"x/__m__/a.x", "x/__m__/a", "x"}, /* only at the root, as WebDataset has it */
        {"a/__m__", NULL, NULL},
        {"__a.jpg", "__a", "jpg"},
        {"___/a.x", "___/a", "x"},
        {"a..x", "a", ".x"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t len;
        char field[32];
        bool is = tar_sample_key(cases[i].path, &len, field, sizeof(field));
        if (is != (cases[i].key != NULL))
            fail_msg("%s", cases[i].path);
        if (is) {
            assert_int_equal(len, strlen(cases[i].key));
            assert_memory_equal(cases[i].path, cases[i].key, len);
            assert_string_equal(field, cases[i].field);
        }
    }
    size_t len;
    char small[4];
    assert_true(tar_sample_key("a.jpg", &len, small, sizeof(small)));
    assert_false(tar_sample_key("a.jpeg", &len, small, sizeof(small)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member),  cmocka_unit_test(test_sizes), cmocka_unit_test(test_pax),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_paths), cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
