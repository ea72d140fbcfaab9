/* SPDX-License-Identifier: Apache-2.0 */
/* The epoch order: a bijection always, and statistically a fair one. Seeds are fixed, so a verdict never changes by chance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <math.h>
#include <cmocka.h>

#include "client/client.h"

static struct leat_order make(uint64_t n, uint64_t seed, uint64_t epoch, uint64_t block)
{
    struct leat_order o;
    struct leat_error err;
    assert_int_equal(leat_order_init(&o, n, seed, epoch, block, NULL, &err), 0);
    return o;
}

static void check_bijection(uint64_t n, uint64_t seed, uint64_t block)
{
    struct leat_order o = make(n, seed, seed / 3, block);
    uint8_t *seen = calloc(n, 1);
    for (uint64_t p = 0; p < n; p++) {
        uint64_t id = leat_order_at(&o, p);
        assert_true(id < n);
        assert_int_equal(seen[id], 0);
        seen[id] = 1;
    }
    free(seen);
}

static void test_bijection(void **state)
{
    for (uint64_t n = 1; n <= 2000; n++)
        check_bijection(n, n * 7, 0);
    for (uint64_t n = 1; n <= 700; n++) {
        static const uint64_t blocks[] = {1, 2, 3, 5, 7, 16, 31, 64, 100};
        for (unsigned b = 0; b < ARRAY_LEN(blocks); b++)
            check_bijection(n, n * 13 + b, blocks[b]);
    }
    check_bijection(1000003, 1, 0);
    check_bijection(1 << 20, 2, 0);
    check_bijection(1000003, 3, 1000);
    check_bijection(1000003, 4, 4096);
}

static void test_arguments(void **state)
{
    struct leat_order o;
    struct leat_error err;
    assert_int_equal(leat_order_init(&o, 0, 1, 1, 0, NULL, &err), LEAT_INVALID);
    assert_int_equal(leat_order_init(NULL, 5, 1, 1, 0, NULL, &err), LEAT_INVALID);
    assert_int_equal(leat_order_init(&o, 5, 1, 1, 0, "xyz", &err), LEAT_INVALID);
    assert_int_equal(leat_order_init(&o, 5, 1, 1, 0, "0123456789abcdef0123456789abcdef0", &err),
                     LEAT_INVALID);
    assert_int_equal(leat_order_init(&o, 5, 1, 1, 0, "0123456789abcdef0123456789abcde", &err), LEAT_INVALID);
    assert_int_equal(leat_order_init(&o, 5, 1, 1, 0, "0123456789ABCDEF0123456789abcdef", &err), 0);
    o = make(100, 1, 1, LEAT_ORDER_SEQUENTIAL);
    for (uint64_t p = 0; p < 100; p++)
        assert_int_equal(leat_order_at(&o, p), p);
}

/* Every permutation of n elements equally often: chi-square over all n!. z beyond 4.5 has a chance of 1 in 10^5. */
static void chi_square_permutations(unsigned n, unsigned seeds)
{
    unsigned factorial = 1;
    for (unsigned i = 2; i <= n; i++)
        factorial *= i;
    unsigned *count = calloc(factorial, sizeof(*count));
    for (unsigned seed = 0; seed < seeds; seed++) {
        struct leat_order o = make(n, seed, seed % 5, 0);
        unsigned rank = 0;
        for (unsigned i = 0; i < n; i++) { /* Lehmer code */
            unsigned smaller = 0;
            for (unsigned j = i + 1; j < n; j++)
                smaller += leat_order_at(&o, j) < leat_order_at(&o, i);
            rank = rank * (n - i) + smaller;
        }
        count[rank]++;
    }
    double expected = (double)seeds / factorial, chi2 = 0;
    for (unsigned i = 0; i < factorial; i++)
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    double z = (chi2 - (factorial - 1)) / sqrt(2.0 * (factorial - 1));
    print_message("n = %u: chi-square %.1f over %u permutations, %u seeds, z = %+.2f\n", n, chi2, factorial,
                  seeds, z);
    assert_true(fabs(z) < 4.5);
    free(count);
}

static void test_all_permutations(void **state)
{
    chi_square_permutations(3, 60000);
    chi_square_permutations(4, 60000);
    chi_square_permutations(5, 120000);
}

/* Where one element lands, and where two neighbours land together (this sees what positions alone do not). */
static void chi_square_positions(uint64_t n, uint64_t block, unsigned seeds)
{
    unsigned *one = calloc(n, sizeof(*one)), *two = calloc(n * n, sizeof(*two));
    for (unsigned seed = 0; seed < seeds; seed++) {
        struct leat_order o = make(n, seed, 0, block);
        uint64_t a = leat_order_at(&o, 0), b = leat_order_at(&o, 1);
        one[a]++;
        two[a * n + b]++;
    }
    double e1 = (double)seeds / (double)n, e2 = (double)seeds / (double)(n * (n - 1)), c1 = 0, c2 = 0;
    for (uint64_t i = 0; i < n; i++)
        c1 += (one[i] - e1) * (one[i] - e1) / e1;
    for (uint64_t i = 0; i < n * n; i++)
        if (i / n != i % n)
            c2 += (two[i] - e2) * (two[i] - e2) / e2;
    double d1 = (double)n - 1, d2 = (double)(n * (n - 1)) - 1;
    double z1 = (c1 - d1) / sqrt(2 * d1), z2 = (c2 - d2) / sqrt(2 * d2);
    print_message("n = %llu block %llu: position z = %+.2f, pair z = %+.2f, %u seeds\n",
                  (unsigned long long)n, (unsigned long long)block, z1, z2, seeds);
    assert_true(fabs(z1) < 4.5);
    if (block == 0)
        assert_true(fabs(z2) < 4.5);
    free(one);
    free(two);
}

static void test_positions(void **state)
{
    static const uint64_t sizes[] = {6, 16, 17, 18, 23, 33, 64, 65, 100};
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
        chi_square_positions(sizes[i], 0, 200000);
    chi_square_positions(64, 4, 100000);
    chi_square_positions(40, 2, 100000);
    chi_square_positions(81, 4, 100000); /* short tail block */
}

/* Half of all permutations are odd: a network of odd moduli would reach even ones only. */
static void test_parity(void **state)
{
    static const unsigned sizes[] = {5, 17, 24, 30, 64};
    for (unsigned s = 0; s < ARRAY_LEN(sizes); s++) {
        unsigned n = sizes[s], odd = 0, seeds = 20000;
        for (unsigned seed = 0; seed < seeds; seed++) {
            struct leat_order o = make(n, seed, 1, 0);
            uint64_t seen = 0;
            unsigned cycles = 0;
            for (unsigned i = 0; i < n; i++) {
                cycles += !(seen >> i & 1);
                for (uint64_t x = i; !(seen >> x & 1); x = leat_order_at(&o, x))
                    seen |= 1ull << x;
            }
            odd += (n - cycles) & 1;
        }
        double z = (odd - seeds / 2.0) / sqrt(seeds / 4.0);
        print_message("n = %u: %u of %u permutations are odd, z = %+.2f\n", n, odd, seeds, z);
        assert_true(fabs(z) < 4.5);
    }
}

static void test_serial_correlation(void **state)
{
    static const uint64_t sizes[] = {1000, 65536, 1000003};
    for (unsigned s = 0; s < ARRAY_LEN(sizes); s++) {
        uint64_t n = sizes[s];
        struct leat_order o = make(n, 42, 7, 0);
        for (unsigned lag = 1; lag <= 3; lag++) {
            double sum = 0, mean = ((double)n - 1) / 2, var = ((double)n * (double)n - 1) / 12;
            for (uint64_t p = 0; p + lag < n; p++)
                sum += ((double)leat_order_at(&o, p) - mean) * ((double)leat_order_at(&o, p + lag) - mean);
            double z = sum / var / sqrt((double)n);
            print_message("n = %llu lag %u: serial correlation z = %+.2f\n", (unsigned long long)n, lag, z);
            assert_true(fabs(z) < 4.5);
        }
    }
}

static void test_epochs_and_seeds_differ(void **state)
{
    const uint64_t n = 10000;
    struct leat_order a = make(n, 1, 0, 0), b = make(n, 1, 1, 0), c = make(n, 2, 0, 0), d;
    assert_int_equal(leat_order_init(&d, n, 1, 0, 0, "00000000000000000000000000000001", NULL), 0);
    const struct leat_order *others[] = {&b, &c, &d};
    for (unsigned i = 0; i < 3; i++) {
        unsigned same = 0;
        for (uint64_t p = 0; p < n; p++)
            same += leat_order_at(&a, p) == leat_order_at(others[i], p);
        assert_true(same < 12); /* Poisson with mean 1 */
    }
    struct leat_order again = make(n, 1, 0, 0);
    for (uint64_t p = 0; p < n; p++)
        assert_int_equal(leat_order_at(&a, p), leat_order_at(&again, p));
}

/* The samples of a group are exactly the union of its 16 blocks, mixed. */
static void test_block_groups(void **state)
{
    const uint64_t n = 10007, block = 25; /* 401 blocks, the last one of 7 */
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct leat_order o = make(n, seed, 3, block);
        uint8_t *group_of_block = malloc(401);
        memset(group_of_block, 255, 401);
        uint64_t p = 0;
        unsigned groups = 0, runs = 0;
        while (p < n) {
            unsigned members = 0;
            uint64_t end = p, expect = 0;
            uint8_t in_block[401] = {0};
            /* A group ends when its 16 blocks have given all their samples. */
            do {
                uint64_t b = leat_order_at(&o, end) / block;
                if (end > p)
                    runs += leat_order_at(&o, end) == leat_order_at(&o, end - 1) + 1;
                if (in_block[b]++ == 0) {
                    assert_int_equal(group_of_block[b], 255);
                    group_of_block[b] = (uint8_t)groups;
                    members++;
                    expect += b == 400 ? 7 : block;
                }
                end++;
            } while (end < n &&
                     (members < MIN(LEAT_ORDER_GROUP, 401 - groups * LEAT_ORDER_GROUP) || end - p < expect));
            assert_int_equal(end - p, expect);
            p = end;
            groups++;
        }
        assert_int_equal(groups, 26);
        assert_true(runs < n / 20); /* mixed: neighbours in order are rare (1 in 400 by chance) */
        free(group_of_block);
    }
}

/* The short tail block lands in every slot about equally often. */
static void test_tail_block(void **state)
{
    const unsigned n = 81, seeds = 42000;
    unsigned where[21] = {0};
    for (unsigned seed = 0; seed < seeds; seed++) {
        struct leat_order o = make(n, seed, 0, 4);
        assert_true(o.tail_slot < 21);
        where[o.tail_slot]++;
    }
    double chi2 = 0, e = seeds / 21.0;
    for (unsigned i = 0; i < 21; i++)
        chi2 += (where[i] - e) * (where[i] - e) / e;
    assert_true(fabs((chi2 - 20) / sqrt(40)) < 4.5);
}

/* fill = at, in whatever portions: what a rank sees depends on positions alone. */
static void test_portions(void **state)
{
    static const uint64_t blocks[] = {0, 1, 10, 333, LEAT_ORDER_SEQUENTIAL};
    for (unsigned b = 0; b < ARRAY_LEN(blocks); b++) {
        struct leat_order o = make(5003, 9, 9, blocks[b]);
        for (unsigned step = 1; step < 600; step = step * 3 + 1) {
            uint64_t ids[600];
            for (uint64_t p = 0; p < o.n; p += step) {
                unsigned count = (unsigned)MIN(step, o.n - p);
                leat_order_fill(&o, p, count, ids);
                for (unsigned i = 0; i < count; i++)
                    assert_int_equal(ids[i], leat_order_at(&o, p + i));
            }
        }
    }
}

/* Many at once are computed another way than one: the same numbers, whatever the size of the domain. */
static void test_many_at_once(void **state)
{
    static const uint64_t sizes[] = {17, 1000, 4095, 4096, 65536, 65537, (1ull << 40) + 12345, 1ull << 56};
    for (unsigned s = 0; s < ARRAY_LEN(sizes); s++) {
        for (unsigned seed = 0; seed < 8; seed++) {
            const uint64_t first[] = {0, sizes[s] - MIN(sizes[s], 257ull)};
            struct leat_order o = make(sizes[s], seed, 1, 0);
            for (unsigned f = 0; f < ARRAY_LEN(first); f++) {
                uint64_t ids[257];
                unsigned count = (unsigned)MIN(sizes[s], ARRAY_LEN(ids));
                assert_int_equal(leat_order_fill(&o, first[f], count, ids), 0);
                for (unsigned i = 0; i < count; i++)
                    assert_int_equal(ids[i], leat_order_at(&o, first[f] + i));
            }
        }
    }
}

static void test_huge(void **state)
{
    static const uint64_t blocks[] = {0, 4096, 1000};
    for (unsigned b = 0; b < ARRAY_LEN(blocks); b++) {
        const uint64_t n = (1ull << 40) + 12345;
        struct leat_order o = make(n, 1, 1, blocks[b]);
        double sum = 0;
        uint64_t last = 0;
        for (unsigned i = 0; i < 20000; i++) {
            uint64_t id = leat_order_at(&o, (n / 20000) * i);
            assert_true(id < n && id != last);
            last = id;
            sum += (double)id / (double)n;
        }
        assert_true(fabs(sum / 20000 - 0.5) < 4.5 * sqrt(1.0 / 12 / 20000));
        assert_true(leat_order_at(&o, n - 1) < n);
    }
    struct leat_order o;
    assert_int_equal(leat_order_init(&o, UINT64_MAX, 1, 1, 0, NULL, NULL), LEAT_INVALID);
}

/* The order is an agreement between hosts and releases: these values must never change. */
static void test_pinned(void **state)
{
    struct leat_order o;
    assert_int_equal(leat_order_init(&o, 1000000, 1, 2, 0, "0123456789abcdef0123456789abcdef", NULL), 0);
    assert_int_equal(leat_order_at(&o, 0), 345769);
    assert_int_equal(leat_order_at(&o, 999999), 702684);
    assert_int_equal(leat_order_init(&o, 1000000, 1, 2, 100, "0123456789abcdef0123456789abcdef", NULL), 0);
    assert_int_equal(leat_order_at(&o, 0), 624537);
    assert_int_equal(leat_order_at(&o, 999999), 877585);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijection),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_all_permutations),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_parity),
        cmocka_unit_test(test_serial_correlation),
        cmocka_unit_test(test_epochs_and_seeds_differ),
        cmocka_unit_test(test_block_groups),
        cmocka_unit_test(test_tail_block),
        cmocka_unit_test(test_portions),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_pinned),
    };
    return cmocka_run_group_tests_name("client_order", tests, NULL, NULL);
}
