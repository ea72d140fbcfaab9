/* SPDX-License-Identifier: Apache-2.0 */
/* Headers as NumPy writes them, and malformed ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/archive/npy.h"

static size_t make(char *buf, size_t cap, int version, const char *dict)
{
    size_t dict_len = strlen(dict), head = version == 1 ? 10 : 12;
    memcpy(buf, "\x93NUMPY", 6);
    buf[6] = (char)version;
    buf[7] = 0;
    for (size_t i = 8; i < head; i++)
        buf[i] = (char)(dict_len >> (8 * (i - 8)));
    assert_true(head + dict_len < cap);
    memcpy(buf + head, dict, dict_len);
    return head + dict_len;
}

static int parse(int version, const char *dict, struct npy_header *h, struct leat_error *err)
{
    char buf[8192];
    size_t len = make(buf, sizeof(buf), version, dict);
    char *exact = malloc(len); /* so that ASan sees a read past the end */
    memcpy(exact, buf, len);
    assert_int_equal(npy_header_bytes(exact, len, err), len);
    int rc = npy_parse(exact, len, h, err);
    for (size_t cut = 0; rc == 0 && cut < len; cut++) {
        struct npy_header other;
        char *shorter = malloc(cut + 1);
        memcpy(shorter, buf, cut);
        assert_true(npy_parse(shorter, cut, &other, NULL) < 0);
        free(shorter);
    }
    free(exact);
    return rc;
}

static void test_good(void **state)
{
    struct npy_header h;
    struct leat_error err;
    for (int version = 1; version <= 3; version++) {
        assert_int_equal(
            parse(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4, 5), }   \n", &h, &err),
            0);
        assert_string_equal(h.dtype, "<f4");
        assert_int_equal(h.itemsize, 4);
        assert_int_equal(h.ndim, 3);
        assert_int_equal(h.shape[2], 5);
        assert_int_equal(h.data_bytes, 240);
    }
    assert_int_equal(parse(1, "{'shape': (7L,), 'fortran_order': False, 'descr': \"|u1\"}", &h, &err), 0);
    assert_int_equal(h.data_bytes, 7);
    assert_int_equal(parse(1, "{'descr': '>M8[ns]', 'fortran_order': False, 'shape': ()}", &h, &err), 0);
    assert_int_equal(h.ndim, 0);
    assert_int_equal(h.data_bytes, 8);
    assert_string_equal(h.dtype, ">M8[ns]");
    /* One spelling, as NumPy's, and never cut. */
    static const char *const units[][2] = {{"<M8[1ns]", "<M8[ns]"},
                                           {"<M8[025us]", "<M8[25us]"},
                                           {"<m8[0000000000000000001ns]", "<m8[ns]"},
                                           {"|M8[2147483647ms]", "<M8[2147483647ms]"}};
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        char dtype[NPY_DTYPE_CAP];
        uint32_t itemsize;
        assert_int_equal(npy_dtype(units[i][0], strlen(units[i][0]), dtype, &itemsize, &err), 0);
        assert_string_equal(dtype, units[i][1]);
    }
    assert_int_equal(parse(1, "{'descr': '<U12', 'fortran_order': False, 'shape': (2, 3)}", &h, &err), 0);
    assert_int_equal(h.itemsize, 48);
    assert_int_equal(parse(1, "{'descr': '|S5', 'fortran_order': False, 'shape': (2,)}", &h, &err), 0);
    assert_int_equal(h.data_bytes, 10);
    assert_int_equal(
        parse(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 9223372036854775807)}", &h, &err), 0);
    assert_int_equal(h.data_bytes, 0);
}

static void test_refused(void **state)
{
    static const struct {
        const char *dict;
        int code;
        const char *says;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4)}", LEAT_UNSUPPORTED, "ascontiguousarray"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", LEAT_UNSUPPORTED, "objects"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", LEAT_UNSUPPORTED, "structured"},
        {"{'descr': '<f3', 'fortran_order': False, 'shape': (3,)}", LEAT_UNSUPPORTED, "<f3"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3)}", LEAT_CORRUPT,
         "overflow"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808, 2)}", LEAT_CORRUPT,
         "overflow"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", LEAT_CORRUPT,
         "overflow"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", LEAT_CORRUPT,
         "overflow"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", LEAT_CORRUPT, "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5)}", LEAT_CORRUPT, "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 5}", LEAT_CORRUPT, "tuple"},
        {"{'descr': '<f4', 'fortran_order': False}", LEAT_CORRUPT, "missing"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", LEAT_CORRUPT, "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), 'more': 1}", LEAT_CORRUPT, "unknown"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)} x", LEAT_CORRUPT, "follows"},
        {"{'descr': '<f4aaaaaaaaaaaaaaaaaaaaaaaa', 'fortran_order': False, 'shape': (5,)}", LEAT_UNSUPPORTED,
         "is none that is read"},
        {"{'descr': '', 'fortran_order': False, 'shape': (5,)}", LEAT_UNSUPPORTED, "is none that is read"},
        {"{'descr': '<f', 'fortran_order': False, 'shape': (5,)}", LEAT_UNSUPPORTED, "is none that is read"},
        {"[]", LEAT_CORRUPT, "dictionary"},
        {"", LEAT_CORRUPT, "dictionary"},
        {"{'descr", LEAT_CORRUPT, "key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': "
         "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
         "1,1,1,1)}",
         LEAT_CORRUPT, "32 dimensions"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct npy_header h;
        struct leat_error err = {0};
        int rc = parse(2, cases[i].dict, &h, &err);
        if (rc != cases[i].code || !strstr(err.message, cases[i].says))
            fail_msg("%s: %d %s", cases[i].dict, rc, err.message);
    }
    struct leat_error err;
    struct npy_header h;
    assert_int_equal(npy_parse("hello, world, hello", 19, &h, &err), LEAT_INVALID);
    assert_int_equal(npy_parse("\x93NUMPY\x09\x00....", 12, &h, &err), LEAT_UNSUPPORTED);
    assert_int_equal(npy_parse("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12, &h, &err), LEAT_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
