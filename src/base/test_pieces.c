/* SPDX-License-Identifier: Apache-2.0 */
/* Cursors over pieces: every way to cut them gives the same bytes. */
#include "base/testing_pieces.h"

#define BYTES 3000u

static uint8_t data[BYTES];

static void test_cuts(void **state)
{
    uint64_t seed = 3;
    for (unsigned i = 0; i < 200; i++) {
        struct test_pieces t;
        struct iovec iov[7];
        uint8_t back[BYTES];
        test_pieces_make(&t, BYTES, 1 + i * 11, i);
        struct pieces p = pieces_of(t.iov, t.n);
        for (uint64_t at = 0; at < BYTES;) {
            uint64_t n = MIN(1 + rng_below(&seed, 700), BYTES - at);
            pieces_put(&p, data + at, n);
            at += n;
        }
        test_pieces_check(&t, data);
        p = pieces_of(t.iov, t.n);
        for (uint64_t at = 0; at < BYTES;) {
            uint64_t most = 1 + rng_below(&seed, 700), got = 0;
            size_t bytes;
            unsigned n = pieces_iov(p, most, iov, ARRAY_LEN(iov), &bytes);
            for (unsigned k = 0; k < n; k++, got += iov[k - 1].iov_len)
                memcpy(back + at + got, iov[k].iov_base, iov[k].iov_len);
            assert_true(n > 0 && got == bytes && bytes <= most);
            assert_true(bytes == MIN(most, BYTES - at) || n == ARRAY_LEN(iov));
            pieces_skip(&p, bytes);
            at += bytes;
        }
        assert_memory_equal(back, data, BYTES);
        char *end;
        assert_int_equal(pieces_next(&p, 1, &end), 0);
        test_pieces_free(&t);
    }
}

static void test_none(void **state)
{
    char *at, one[4] = "abc";
    struct pieces none = pieces_of(NULL, 0), p = pieces_one(one, 3);
    assert_null(none.at);
    assert_int_equal(pieces_next(&none, 5, &at), 0);
    pieces_skip(&p, 1);
    assert_int_equal(pieces_next(&p, 9, &at), 2);
    assert_ptr_equal(at, one + 1);
    pieces_skip(&p, 100); /* at most to the end */
    assert_int_equal(p.left, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts), cmocka_unit_test(test_none)};
    for (unsigned i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 11);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
