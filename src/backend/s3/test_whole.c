/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>

#include "backend/s3/object_sum.h"
#include "base/rng.h"

#include <cmocka.h>

#define BYTES  50000u
#define BLOCKS 60u

static uint8_t data[BYTES];

static struct object_sum *fresh(enum s3_crc_kind kind)
{
    static struct object_sum w;
    uint64_t seed = 7;
    for (unsigned i = 0; i < BYTES; i++)
        data[i] = (uint8_t)rng_next(&seed);
    memset(&w, 0, sizeof(w));
    w.state = WHOLE_TOLD;
    w.bytes = BYTES;
    w.crc = (struct s3_crc){kind, s3_crc_add(kind, 0, data, BYTES)};
    return &w;
}

/* In three pieces, and an empty one. */
static void add(struct object_sum *w, uint64_t at, uint64_t bytes)
{
    struct iovec iov[] = {{data + at, bytes / 3}, {NULL, 0}, {data + at + bytes / 3, bytes / 5}, {0}};
    uint64_t end = bytes / 3 + bytes / 5;
    iov[3] = (struct iovec){data + at + end, bytes - end};
    object_sum_add(w, at, pieces_of(iov, ARRAY_LEN(iov)), bytes);
}

/* Blocks of many lengths, in any order; the kind becomes known after some of them. */
static void test_any_order(void **state)
{
    uint64_t seed = 1;
    for (unsigned turn = 0; turn < 200; turn++) {
        struct object_sum *w = fresh(1 + turn % (S3_CRC_KINDS - 1));
        struct s3_crc told = w->crc;
        uint64_t cuts[BLOCKS + 1] = {0};
        unsigned order[BLOCKS];
        for (unsigned k = 1; k <= BLOCKS; k++) {
            cuts[k] = k == BLOCKS ? BYTES : cuts[k - 1] + 1 + rng_next(&seed) % (BYTES / BLOCKS);
            order[k - 1] = k - 1;
        }
        for (unsigned k = BLOCKS - 1; k > 0; k--) {
            unsigned other = (unsigned)(rng_next(&seed) % (k + 1)), at = order[k];
            order[k] = order[other];
            order[other] = at;
        }
        w->state = WHOLE_ASKING;
        w->crc.kind = S3_CRC_NONE;
        for (unsigned k = 0; k < BLOCKS; k++) {
            assert_false(object_sum_covered(w));
            if (k == turn % BLOCKS) {
                w->state = WHOLE_TOLD;
                w->crc = told;
            }
            uint64_t at = cuts[order[k]];
            add(w, at, cuts[order[k] + 1] - at);
        }
        assert_true(object_sum_covered(w));
        assert_int_equal(object_sum_verdict(w, NULL), 1);
        w->crc.value ^= 1;
        assert_int_equal(object_sum_verdict(w, NULL), LEAT_CORRUPT);
    }
}

/* Unsupported cases are dropped, not judged. */
static void test_given_up(void **state)
{
    struct object_sum *w = fresh(S3_CRC32C);
    add(w, 100, 100);
    add(w, 150, 10); /* again */
    assert_int_equal(w->state, WHOLE_GIVEN_UP);
    w = fresh(S3_CRC32C);
    add(w, 100, 100);
    add(w, 50, 60); /* over its beginning */
    assert_int_equal(w->state, WHOLE_GIVEN_UP);
    w = fresh(S3_CRC32C);
    for (unsigned k = 0; k <= OBJECT_SUM_RUNS_MAX; k++)
        add(w, 10 * k, 5); /* here and there */
    assert_int_equal(w->state, WHOLE_GIVEN_UP);
    assert_false(object_sum_covered(w));
    assert_int_equal(object_sum_verdict(w, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
