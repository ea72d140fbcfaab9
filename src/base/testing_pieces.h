/* SPDX-License-Identifier: Apache-2.0 */
/* testing_pieces.h: for tests: a place of pieces of odd lengths, some empty, with bytes between them that are
 * not to be written to. */
#ifndef BASE_TESTING_PIECES_H
#define BASE_TESTING_PIECES_H

#include "base/pieces.h"
#include "base/rng.h"
#include "base/testing.h"

#define TEST_GUARD 0x5a

struct test_pieces {
    uint8_t *memory;
    uint64_t memory_bytes;
    struct iovec *iov;
    unsigned n;
};

/* Of `bytes` together, each of at most `most`. */
static inline void test_pieces_make(struct test_pieces *t, uint64_t bytes, uint64_t most, uint64_t seed)
{
    unsigned cap = (unsigned)(4 * bytes / most) + 64;
    *t = (struct test_pieces){.memory_bytes = bytes + 8ull * cap,
                              .memory = malloc(bytes + 8ull * cap),
                              .iov = calloc(cap, sizeof(struct iovec))};
    memset(t->memory, TEST_GUARD, t->memory_bytes);
    for (uint64_t at = 0; bytes; t->n++) {
        bool last = t->n + 1 == cap, empty = t->n % 5 == 3;
        uint64_t len = last ? bytes : empty ? 0 : MIN(bytes, 1 + rng_below(&seed, most));
        at += 1 + t->n % 7;
        t->iov[t->n] = (struct iovec){len || t->n % 2 ? t->memory + at : NULL, len};
        at += len;
        bytes -= len;
    }
}

/* They hold these bytes, or (NULL) were not written to; what is between them was not. */
static inline void test_pieces_check(const struct test_pieces *t, const void *expected)
{
    const uint8_t *at = t->memory, *from = expected;
    for (unsigned k = 0; k <= t->n; k++) {
        const uint8_t *piece = k < t->n ? t->iov[k].iov_base : t->memory + t->memory_bytes;
        size_t len = k < t->n ? t->iov[k].iov_len : 0;
        if (k < t->n && len == 0)
            continue;
        assert_true(test_all_are(TEST_GUARD, at, (size_t)(piece - at)));
        at = piece;
        if (from) {
            assert_memory_equal(piece, from, len);
            from += len;
            at += len;
        }
    }
}

static inline void test_pieces_free(struct test_pieces *t)
{
    free(t->memory);
    free(t->iov);
}

#endif
