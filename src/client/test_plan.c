/* SPDX-License-Identifier: Apache-2.0 */
/* Plans against slow models that count one sample at a time. Seeds are fixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "client/client.h"

#define FINGERPRINT "0123456789abcdef0123456789abcdef"

static uint64_t seed = 1;

static uint64_t below(uint64_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % n;
}

/* What is left of an epoch, sample by sample. */
static uint64_t model_ids(const struct leat_plan *p, uint64_t *ret)
{
    struct leat_order order;
    uint64_t n = 0;
    assert_int_equal(leat_order_init(&order, p->n, p->seed, p->epoch, p->block, p->fingerprint, NULL), 0);
    for (uint64_t place = 0; place < p->n; place++) {
        bool skipped = false;
        for (uint64_t i = 0; i < p->nskips; i++)
            skipped |= place >= p->skips[2 * i] && place < p->skips[2 * i + 1];
        if (!skipped)
            ret[n++] = leat_order_at(&order, place);
    }
    return n;
}

/* The positions of a rank's steps, one after another, as a reader would deal them out. Returns the steps. */
static uint64_t model_steps(const struct leat_plan *p, uint64_t length, uint64_t (*ret)[2])
{
    uint64_t steps = 0;
    for (uint64_t first = p->first_position; first < length;
         first += (uint64_t)p->batch_size * p->world_size) {
        uint64_t left = length - first, mine = 0, before = 0;
        if (left >= (uint64_t)p->batch_size * p->world_size || p->keep_tail == 2) {
            mine = p->batch_size;
            before = (uint64_t)p->rank * p->batch_size;
        } else if (p->keep_tail == 1) {
            for (uint64_t i = 0; i < left; i++) { /* dealt out one by one */
                mine += i % p->world_size == p->rank;
                before += i % p->world_size < p->rank;
            }
        }
        if (!mine)
            break;
        ret[steps][0] = first + before;
        ret[steps++][1] = mine;
    }
    return steps;
}

static void check_plan(struct leat_plan *p)
{
    static uint64_t left[400], got[2000], (steps[2000])[2];
    struct leat_error err = {0};
    const uint64_t length = model_ids(p, left);
    if (p->first_position > length) {
        assert_int_equal(leat_plan_init(p, &err), LEAT_INVALID);
        return;
    }
    assert_int_equal(leat_plan_init(p, &err), 0);
    assert_int_equal(p->length, length);
    if (!length) {
        assert_int_equal(p->steps, 0);
        assert_int_equal(leat_plan_ids(p, 0, 1, got), LEAT_INVALID);
        assert_int_equal(leat_plan_ids(p, 0, 0, got), 0);
        return;
    }
    const uint64_t count = model_steps(p, length, steps);
    assert_int_equal(p->steps, count);
    for (uint64_t s = 0; s < count; s++) {
        uint64_t first;
        unsigned n;
        assert_int_equal(leat_plan_step(p, s, &first, &n), 0);
        assert_true(first == steps[s][0] && n == steps[s][1]);
        assert_int_equal(leat_plan_ids(p, first, n, got), 0);
        for (unsigned i = 0; i < n; i++)
            assert_int_equal(got[i], left[(first + i) % length]);
    }
    uint64_t first = below(3 * length), n = below(500); /* any range, also far behind the end */
    assert_int_equal(leat_plan_ids(p, first, n, got), 0);
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(got[i], left[(first + i) % length]);
}

static void random_skips(struct leat_plan *p, uint64_t skips[8])
{
    uint64_t at = 0;
    for (p->nskips = 0; p->nskips < below(5); p->nskips++) {
        skips[2 * p->nskips] = at + below(p->n);
        skips[2 * p->nskips + 1] = at = skips[2 * p->nskips] + 1 + below(p->n);
    }
    p->skips = skips;
}

static void test_against_a_model(void **state)
{
    static const uint64_t blocks[] = {0, 1, 3, 16, 64, LEAT_ORDER_SEQUENTIAL};
    for (unsigned round = 0; round < 20000; round++) {
        uint64_t skips[8];
        struct leat_plan p = {
            .n = 1 + below(300), .seed = below(9), .epoch = below(3), .block = blocks[below(6)]};
        p.fingerprint = below(2) ? FINGERPRINT : NULL;
        p.batch_size = (unsigned)(1 + below(below(2) ? 4 : 50));
        p.world_size = (unsigned)(1 + below(8));
        p.rank = (unsigned)below(p.world_size);
        p.keep_tail = (int)below(3);
        p.first_position = below(2) ? 0 : below(p.n + 3);
        random_skips(&p, skips);
        check_plan(&p);
    }
}

/* All ranks together have each sample once, before the padding; resumed anywhere on another number of ranks, exactly the rest. */
static void test_each_sample_once(void **state)
{
    for (unsigned round = 0; round < 3000; round++) {
        uint64_t skips[8], ids[128], seen[300] = {0};
        struct leat_plan p = {.n = 1 + below(300), .seed = below(99), .block = below(20)};
        random_skips(&p, skips);
        assert_int_equal(leat_plan_init(&p, NULL), 0);
        const uint64_t all = p.length;
        while (all && p.first_position < all) {
            uint64_t first, end = p.first_position;
            unsigned n, steps = (unsigned)below(4);
            p.world_size = (unsigned)(1 + below(5));
            p.batch_size = (unsigned)(1 + below(20));
            p.keep_tail = 1 + (int)below(2);
            for (p.rank = 0; p.rank < p.world_size; p.rank++) {
                assert_int_equal(leat_plan_init(&p, NULL), 0);
                for (uint64_t s = 0; s < MIN(steps, p.steps); s++) {
                    assert_int_equal(leat_plan_step(&p, s, &first, &n), 0);
                    assert_int_equal(leat_plan_ids(&p, first, n, ids), 0);
                    for (unsigned i = 0; i < n && first + i < all; i++)
                        seen[ids[i]]++;
                }
            }
            p.rank = 0;
            end += (uint64_t)steps * p.batch_size * p.world_size;
            p.first_position = MIN(end, all);
        }
        uint64_t once = 0;
        for (uint64_t i = 0; i < p.n; i++) {
            assert_true(seen[i] <= 1);
            once += seen[i];
        }
        assert_int_equal(once, all);
    }
}

/* --- mixtures --- */

struct model_part {
    uint64_t at, drawn; /* places offered to it and the later parts; draws from it */
};

/* The next draw: parts take turns by what they are owed, counted one by one. */
static unsigned model_draw(const struct leat_plan *p, struct model_part *parts)
{
    uint64_t weights = 0;
    for (uint64_t k = 0; k < p->nparts; k++)
        weights += p->weights[k];
    for (unsigned k = 0;; k++) {
        parts[k].at++;
        /* It gets this one if otherwise it had less than its share, to the nearest whole. */
        if (2 * parts[k].at * p->weights[k] + weights / 2 * 2 >= 2 * weights * (parts[k].drawn + 1))
            return k;
        weights -= p->weights[k];
    }
}

static void check_mixture(const uint64_t *weights, const uint64_t *lengths, unsigned nparts, uint64_t n,
                          uint64_t block)
{
    char digits[32 * 4 + 1] = "";
    struct model_part parts[4] = {{0}};
    for (unsigned k = 0; k < nparts; k++)
        sprintf(digits + 32 * k, "%032x", k + 7);
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        uint64_t rounds[4], *got = calloc(n, sizeof(*got));
        struct leat_plan p = {.n = n,
                              .seed = 3,
                              .epoch = epoch,
                              .block = block,
                              .fingerprint = digits,
                              .weights = weights,
                              .lengths = lengths,
                              .nparts = nparts};
        assert_int_equal(leat_plan_init(&p, NULL), 0);
        assert_int_equal(leat_plan_ids(&p, 0, n, got), 0);
        for (unsigned k = 0; k < nparts; k++)
            rounds[k] = parts[k].drawn / lengths[k];
        for (uint64_t i = 0; i < n; i++) {
            struct leat_order order;
            char one[33] = "";
            unsigned k = model_draw(&p, parts);
            uint64_t draw = parts[k].drawn++, offset = 0;
            memcpy(one, digits + 32 * k, 32);
            assert_int_equal(leat_order_init(&order, lengths[k], 3 + k * 0x9e3779b97f4a7c15ull,
                                             draw / lengths[k], block, one, NULL),
                             0);
            for (unsigned j = 0; j < k; j++)
                offset += lengths[j];
            uint64_t want = offset + leat_order_at(&order, draw % lengths[k]);
            assert_int_equal(got[i] & LEAT_PLAN_ID_MASK, want);
            assert_int_equal(got[i] >> LEAT_PLAN_ID_BITS, draw / lengths[k] - rounds[k]);
        }
        free(got);
    }
}

static void test_mixtures(void **state)
{
    static const uint64_t blocks[] = {0, 1, 5, 40, LEAT_ORDER_SEQUENTIAL};
    for (unsigned round = 0; round < 300; round++) {
        uint64_t weights[4], lengths[4];
        unsigned nparts = (unsigned)(1 + below(4));
        for (unsigned k = 0; k < nparts; k++) {
            weights[k] = 1 + below(below(2) ? 5 : 1 << 22);
            lengths[k] = 1 + below(below(2) ? 3 : 200);
        }
        check_mixture(weights, lengths, nparts, 1 + below(400), blocks[below(5)]);
    }
}

/* More parts than orders are kept: the same ids in whatever portions. */
static void test_mixtures_in_portions(void **state)
{
    enum { N = 40 };
    uint64_t weights[N], lengths[N], whole[5000], got[64];
    static char digits[32 * N + 1];
    for (unsigned k = 0; k < N; k++) {
        weights[k] = 1 + below(1000);
        lengths[k] = 1 + below(50);
        memcpy(digits + 32 * k, FINGERPRINT, 32);
    }
    const uint64_t skips[] = {5, 9, 700, 1400};
    struct leat_plan p = {.n = ARRAY_LEN(whole),
                          .fingerprint = digits,
                          .weights = weights,
                          .lengths = lengths,
                          .nparts = N,
                          .skips = skips,
                          .nskips = 2};
    assert_int_equal(leat_plan_init(&p, NULL), 0);
    assert_int_equal(p.length, ARRAY_LEN(whole) - 704);
    assert_int_equal(leat_plan_ids(&p, 0, p.length, whole), 0);
    for (unsigned round = 0; round < 500; round++) {
        uint64_t first = below(2 * p.length), n = below(65);
        assert_int_equal(leat_plan_ids(&p, first, n, got), 0);
        for (uint64_t i = 0; i < n; i++)
            assert_int_equal(got[i], whole[(first + i) % p.length]);
    }
}

/* --- ends of what is possible --- */

static void test_huge(void **state)
{
    static const uint64_t sizes[] = {1ull << 40, 1ull << 56};
    uint64_t ids[64];
    for (unsigned s = 0; s < ARRAY_LEN(sizes); s++) {
        const uint64_t n = sizes[s], skips[] = {1, n - 7, n - 2, UINT64_MAX};
        struct leat_plan p = {
            .n = n, .batch_size = 1 << 28, .world_size = 1 << 28, .rank = (1 << 28) - 1, .keep_tail = 2};
        uint64_t first;
        unsigned count;
        assert_int_equal(leat_plan_init(&p, NULL), 0);
        assert_int_equal(p.steps, 1);
        assert_int_equal(leat_plan_step(&p, 0, &first, &count), 0);
        assert_true(first == (1ull << 56) - (1 << 28) && count == 1 << 28);
        assert_int_equal(leat_plan_step(&p, 1, &first, &count), LEAT_INVALID);
        p.rank = 7, p.batch_size = 10, p.world_size = 8, p.keep_tail = 0, p.first_position = n - 161;
        assert_int_equal(leat_plan_init(&p, NULL), 0);
        assert_int_equal(p.steps, 2);
        assert_int_equal(leat_plan_step(&p, 1, &first, &count), 0);
        assert_true(first == n - 161 + 150 && count == 10);
        assert_int_equal(leat_plan_ids(&p, n - 32, 64, ids), 0);
        for (unsigned i = 0; i < 64; i++)
            assert_int_equal(ids[i], leat_order_at(&p.order, i < 32 ? n - 32 + i : i - 32));
        p.first_position = 0, p.skips = skips, p.nskips = 2, p.block = LEAT_ORDER_SEQUENTIAL;
        assert_int_equal(leat_plan_init(&p, NULL), 0);
        assert_int_equal(p.length, 6);
        assert_int_equal(leat_plan_ids(&p, 5, 8, ids), 0);
        const uint64_t want[] = {n - 3, 0, n - 7, n - 6, n - 5, n - 4, n - 3, 0};
        assert_memory_equal(ids, want, sizeof(want));
    }
}

static void test_the_end_of_a_mixture(void **state)
{
    const uint64_t weights[] = {(1 << 24) - 1, 1 << 24}, lengths[] = {1, 1ull << 43};
    struct leat_plan p = {.n = 1 << 10,
                          .epoch = (1ull << 28) - 2,
                          .fingerprint = FINGERPRINT FINGERPRINT,
                          .weights = weights,
                          .lengths = lengths,
                          .nparts = 2};
    uint64_t ids[1 << 10], of_first = 0;
    assert_int_equal(leat_plan_init(&p, NULL), 0);
    assert_int_equal(leat_plan_ids(&p, 0, p.n, ids), 0);
    for (uint64_t i = 0; i < p.n; i++) {
        uint64_t number = ids[i] & LEAT_PLAN_ID_MASK;
        assert_true(number <= 1ull << 43);
        if (!number)
            assert_int_equal(ids[i] >> LEAT_PLAN_ID_BITS, of_first++); /* again and again */
    }
    assert_true(of_first > 500 && of_first < 524);
    p = (struct leat_plan){
        .n = 1 << 21, .fingerprint = FINGERPRINT, .weights = weights, .lengths = lengths, .nparts = 1};
    assert_int_equal(leat_plan_init(&p, NULL), 0);
    assert_int_equal(leat_plan_ids(&p, (1 << 20) - 1, 3, ids), 0);
    assert_true(ids[0] >> LEAT_PLAN_ID_BITS == (1 << 20) - 1 && ids[1] == 0 &&
                ids[2] == 1ull << LEAT_PLAN_ID_BITS);
}

static void expect(struct leat_plan p, int rc, const char *text)
{
    struct leat_error err = {0};
    struct leat_plan before = p;
    assert_int_equal(leat_plan_init(&p, &err), rc);
    if (!strstr(err.message, text))
        fail_msg("\"%s\" is not in \"%s\"", text, err.message);
    assert_memory_equal(&p, &before, sizeof(p)); /* it stays as it was */
}

static void test_errors(void **state)
{
    struct leat_error err;
    const uint64_t crossed[] = {4, 9, 8, 10}, empty[] = {3, 3}, ones[] = {1, 1}, none[] = {1, 0};
    const uint64_t heavy[] = {1 << 24, 1 << 24}, wide[] = {LEAT_PLAN_ID_MASK, 1};
    const struct leat_plan good = {.n = 10, .batch_size = 2},
                           mixed = {.n = 10,
                                    .weights = ones,
                                    .lengths = ones,
                                    .nparts = 2,
                                    .fingerprint = FINGERPRINT FINGERPRINT};
    struct leat_plan p;
#define WITH(from, ...) (p = from, __VA_ARGS__, p)
    assert_int_equal(leat_plan_init(NULL, &err), LEAT_INVALID);
    expect(WITH(good, p.n = 0), LEAT_INVALID, "at least one sample");
    expect(WITH(good, p.n = UINT64_MAX), LEAT_INVALID, "at most 2^56");
    expect(WITH(good, p.fingerprint = "abc"), LEAT_INVALID, "32 hexadecimal digits");
    expect(WITH(good, p.rank = 1), LEAT_INVALID, "rank 1 of a world of 1");
    expect(WITH(good, p.batch_size = 1 << 29, p.world_size = 1 << 29), LEAT_INVALID,
           "536870912 samples on 536870912 ranks: at most 2^56");
    expect(WITH(good, p.nskips = 1), LEAT_INVALID, "1 skips, but no array");
    expect(WITH(good, p.keep_tail = 3), LEAT_INVALID, "keep_tail 3: 0, 1 and 2");
    expect(WITH(good, p.first_position = 11), LEAT_INVALID, "first_position 11 of an epoch of 10");
    expect(WITH(good, p.skips = crossed, p.nskips = 2), LEAT_INVALID, "[8, 10) is empty, or not behind 9");
    expect(WITH(good, p.skips = empty, p.nskips = 1), LEAT_INVALID, "[3, 3) is empty");
    expect(WITH(good, p.reserved[11] = 1), LEAT_UNSUPPORTED, "set the whole struct to 0");
    expect(WITH(mixed, p.nparts = 257), LEAT_INVALID, "257 parts: 1 to 256");
    expect(WITH(mixed, p.fingerprint = FINGERPRINT), LEAT_INVALID, "32 digits of a fingerprint");
    expect(WITH(mixed, p.fingerprint = FINGERPRINT "0123456789abcdef0123456789abcdeg"), LEAT_INVALID,
           "hexadecimal");
    expect(WITH(mixed, p.weights = none), LEAT_INVALID, "part 1: weight 0, 1 samples: from 1 on");
    expect(WITH(mixed, p.weights = heavy), LEAT_INVALID,
           "part 1: weight 16777216, 1 samples: from 1 on, together below 2^25");
    expect(WITH(mixed, p.lengths = none), LEAT_INVALID, "at least one sample");
    expect(WITH(mixed, p.lengths = wide), LEAT_INVALID, "together below 2^25 and 2^44");
    expect(WITH(mixed, p.n = 1ull << 38), LEAT_INVALID, "beyond the end of a mixture");
    expect(WITH(mixed, p.n = 1 << 10, p.epoch = (1 << 28) - 1), LEAT_INVALID,
           "epoch 268435455 of 1024 samples is beyond");
    expect(WITH(mixed, p.epoch = UINT64_MAX), LEAT_INVALID, "beyond the end of a mixture");
#undef WITH
}

/* --- steps of the past --- */

static void test_find(void **state)
{
    for (unsigned round = 0; round < 2000; round++) {
        const uint64_t n = 1 + below(200), epoch = below(3);
        struct leat_plan_run runs[6] = {{0}}, found;
        uint64_t nruns = 0, count, step = 0, at = 0, e = 0;
        for (; nruns < 1 + below(6); nruns++) {
            runs[nruns] = (struct leat_plan_run){e, at, 1 + below(30), below(4)};
            at += 1 + below(80);
            if (below(3) == 0)
                e += 1 + below(2), at = below(2) ? 0 : below(50);
        }
        struct leat_plan p = {.n = n, .epoch = epoch};
        struct leat_error err = {0};
        assert_int_equal(leat_plan_init(&p, NULL), 0);
        const struct leat_plan_run *run = runs;
        for (uint64_t first = 0; first < n; step++) { /* as a job goes through it */
            uint64_t end = n;
            for (uint64_t i = 0; i < nruns; i++) {
                if (runs[i].epoch < epoch || (runs[i].epoch == epoch && runs[i].position <= first))
                    run = &runs[i];
                else if (runs[i].epoch == epoch)
                    end = MIN(end, runs[i].position);
            }
            end = MIN(end, first + run->global_batch);
            assert_int_equal(leat_plan_find(&p, runs, nruns, step, &found, &count, &err), 0);
            assert_true(found.epoch == epoch && found.position == first && count == end - first);
            assert_true(found.global_batch == run->global_batch && found.batch_size == run->batch_size);
            first = end;
        }
        char text[80];
        snprintf(text, sizeof(text), "step %u: epoch %u has %u steps", (unsigned)step, (unsigned)epoch,
                 (unsigned)step);
        assert_int_equal(leat_plan_find(&p, runs, nruns, step, &found, &count, &err), LEAT_NOT_FOUND);
        assert_string_equal(err.message, text);
        assert_int_equal(leat_plan_find(&p, runs, nruns, UINT64_MAX, &found, &count, NULL), LEAT_NOT_FOUND);
        assert_int_equal(leat_plan_find(&p, runs, 0, 0, &found, &count, NULL), LEAT_INVALID);
        runs[nruns - 1].global_batch = 0;
        assert_int_equal(leat_plan_find(&p, runs, nruns, 0, &found, &count, NULL), LEAT_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_model),
        cmocka_unit_test(test_each_sample_once),
        cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_mixtures_in_portions),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_the_end_of_a_mixture),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_find),
    };
    return cmocka_run_group_tests_name("client_plan", tests, NULL, NULL);
}
