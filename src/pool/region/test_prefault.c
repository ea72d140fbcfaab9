/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/region/prefault.h"

#include "base/testing.h"
#include "base/budget.h"
#include "failalloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#define CAP (64 * MIB)

static const struct region_source base_pages = {.huge = false, .huge_dir = -1};

struct fixture {
    struct budget budget;
    struct prefault *ready;
};

static void start(struct fixture *f, uint64_t region_bytes, uint64_t bytes,
                  int (*prepare)(struct region *, uint64_t))
{
    struct leat_error err = {0};
    struct prefault_config config = {.pages = base_pages,
                                     .region_bytes = region_bytes,
                                     .bytes = bytes,
                                     .budget = &f->budget,
                                     .prepare = prepare};
    budget_init(&f->budget, CAP);
    if (prefault_new(&config, &f->ready, &err) < 0)
        fail_msg("%s", err.message);
}

static void end(struct fixture *f)
{
    prefault_free(f->ready);
    assert_int_equal(atomic_load(&f->budget.used_bytes), 0);
}

static struct prefault_stats stats(struct fixture *f)
{
    struct prefault_stats s;
    prefault_stats(f->ready, &s);
    return s;
}

static void wait_for(struct fixture *f, uint64_t bytes)
{
    test_wait_until(stats(f).bytes == bytes);
    prefault_hold(f->ready); /* the last step is over */
    assert_int_equal(stats(f).bytes, bytes);
    assert_int_equal(atomic_load(&f->budget.used_bytes), bytes);
}

static uint64_t backed_bytes(const struct region *r)
{
    struct stat st;
    assert_int_equal(fstat(r->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static ino_t inode(const struct region *r)
{
    struct stat st;
    assert_int_equal(fstat(r->fd, &st), 0);
    return st.st_ino;
}

/* Nothing is taken before it is allowed. Then it is backed, zero, and its taker has the reservation. */
static void makes_what_is_allowed(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 4 * MIB, 8 * MIB, NULL);
    assert_int_equal(stats(&f).bytes, 0);
    prefault_allow(f.ready, 4 * MIB);
    wait_for(&f, 4 * MIB);
    prefault_allow(f.ready, 100 * MIB);
    wait_for(&f, 8 * MIB);
    struct region *r = prefault_take(f.ready, 4 * MIB, 4 * MIB);
    assert_non_null(r);
    assert_int_equal(backed_bytes(r), 4 * MIB);
    assert_int_equal(atomic_load(&r->prefault_bytes), 4 * MIB);
    for (uint64_t k = 0; k < 4 * MIB; k++)
        assert_int_equal(r->addr[k], 0);
    assert_int_equal(stats(&f).bytes, 4 * MIB);
    assert_int_equal(stats(&f).taken_bytes, 4 * MIB);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 8 * MIB);
    region_unref(r);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 4 * MIB);
    end(&f);
}

/* What a set wrote is never seen by another: a region leaves the stock for good. */
static void none_serves_twice(void **state)
{
    (void)state;
    struct fixture f;
    ino_t seen[64];
    unsigned n = 0;
    start(&f, 2 * MIB, 8 * MIB, NULL);
    for (unsigned turn = 0; turn < 4; turn++) {
        prefault_allow(f.ready, CAP);
        wait_for(&f, 8 * MIB);
        struct region *held[4];
        for (unsigned k = 0; k < 4; k++) {
            held[k] = prefault_take(f.ready, 2 * MIB, 2 * MIB);
            assert_non_null(held[k]);
            for (uint64_t at = 0; at < 2 * MIB; at += 512)
                assert_int_equal(held[k]->addr[at], 0);
            memset(held[k]->addr, 0xee, 2 * MIB);
            assert_int_equal(atomic_load(&held[k]->refs), 1);
            seen[n] = inode(held[k]);
            for (unsigned i = n - n % 4; i < n; i++)
                assert_int_not_equal(seen[i], seen[n]);
            n++;
        }
        assert_null(prefault_take(f.ready, 2 * MIB, 2 * MIB));
        for (unsigned k = 0; k < 4; k++)
            region_unref(held[k]);
    }
    end(&f);
}

/* The last region of a set is short: what is behind it goes back, memory and reservation. */
static void short_region_is_cut(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 8 * MIB, 8 * MIB, NULL);
    prefault_allow(f.ready, CAP);
    wait_for(&f, 8 * MIB);
    assert_null(prefault_take(f.ready, 4 * MIB, 2 * MIB)); /* regions of another size */
    struct region *r = prefault_take(f.ready, 8 * MIB, 3 * MIB);
    assert_non_null(r);
    assert_int_equal(backed_bytes(r), 3 * MIB);
    assert_int_equal(r->used_bytes, 3 * MIB);
    assert_int_equal(r->bytes, 8 * MIB);
    assert_int_equal(atomic_load(&r->prefault_bytes), 3 * MIB);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 3 * MIB);
    assert_int_equal(stats(&f).given_up_bytes, 5 * MIB);
    region_unref(r);
    end(&f);
}

/* With more than one region's worth: whole ones and a ladder, of which a short region gets the rung that fits. */
static void ladder_for_short_regions(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 32 * MIB, 64 * MIB, NULL);
    prefault_allow(f.ready, CAP);
    wait_for(&f,
             64 * MIB); /* 32, and 16: rungs below that are not worth a descriptor; and what is left, 16 */
    struct region *r = prefault_take(f.ready, 32 * MIB, 10 * MIB);
    assert_non_null(r);
    assert_int_equal(stats(&f).given_up_bytes, 6 * MIB);
    assert_int_equal(stats(&f).bytes, 48 * MIB);
    region_unref(r);
    end(&f);
}

/* A region of which only a part is ready serves a set that needs more; the rest takes a reservation, and memory when it is filled. */
static void partly_ready_is_taken(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 8 * MIB, 8 * MIB, NULL);
    prefault_allow(f.ready, 4 * MIB);
    wait_for(&f, 4 * MIB);
    struct region *r = prefault_take(f.ready, 8 * MIB, 8 * MIB);
    assert_non_null(r);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 8 * MIB);
    assert_int_equal(backed_bytes(r), 4 * MIB);
    assert_int_equal(region_reserve(r, 0, 2 * MIB), 0);
    assert_int_equal(backed_bytes(r), 4 * MIB);
    assert_int_equal(region_reserve(r, 2 * MIB, 4 * MIB), 0);
    assert_int_equal(backed_bytes(r), 6 * MIB);
    region_unref(r);

    /* No reservation for the rest: it stays in the stock. */
    prefault_allow(f.ready, 4 * MIB);
    wait_for(&f, 4 * MIB);
    assert_int_equal(budget_reserve(&f.budget, CAP - 6 * MIB), 0);
    assert_null(prefault_take(f.ready, 8 * MIB, 8 * MIB));
    assert_int_equal(stats(&f).bytes, 4 * MIB);
    budget_release(&f.budget, CAP - 6 * MIB);
    end(&f);
}

static void gives_way(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 8 * MIB, 32 * MIB, NULL);
    prefault_allow(f.ready, CAP);
    wait_for(&f, 32 * MIB);
    assert_int_equal(prefault_cancel(f.ready, 10 * MIB), 10 * MIB);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 22 * MIB);
    assert_int_equal(stats(&f).bytes, 22 * MIB);
    /* Held: nothing is made until it is allowed again. */
    test_pause_us(5000);
    assert_int_equal(stats(&f).bytes, 22 * MIB);
    assert_int_equal(prefault_cancel(f.ready, CAP), 22 * MIB);
    assert_int_equal(prefault_cancel(f.ready, CAP), 0);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 0);
    prefault_allow(f.ready, CAP);
    wait_for(&f, 32 * MIB);
    end(&f);
}

/* The rest of the pool is taken: the maker gets what is left and no more. */
static void cap_holds(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 4 * MIB, 32 * MIB, NULL);
    assert_int_equal(budget_reserve(&f.budget, CAP - 6 * MIB), 0);
    prefault_allow(f.ready, CAP);
    test_wait_until(stats(&f).bytes == 6 * MIB);
    for (unsigned k = 0; k < 20; k++) {
        prefault_allow(f.ready, CAP);
        test_pause_us(200);
        assert_true(atomic_load(&f.budget.used_bytes) <= CAP);
    }
    assert_int_equal(atomic_load(&f.budget.peak_bytes), CAP);
    assert_int_equal(stats(&f).bytes, 6 * MIB);
    budget_release(&f.budget, CAP - 6 * MIB);
    end(&f);
}

static _Atomic int good_steps;

static int prepare_or_not(struct region *region, uint64_t bytes)
{
    if (atomic_fetch_sub(&good_steps, 1) <= 0)
        return -ENOSPC;
    return region_prepare(region, bytes);
}

/* The host has no memory for a step: its reservation goes back, and it continues when allowed again. */
static void no_memory_for_a_step(void **state)
{
    (void)state;
    struct fixture f;
    good_steps = 3;
    start(&f, 4 * MIB, 16 * MIB, prepare_or_not);
    prefault_allow(f.ready, CAP);
    test_wait_until(atomic_load(&good_steps) < 0);
    prefault_hold(f.ready);
    assert_int_equal(stats(&f).bytes, 6 * MIB);
    assert_int_equal(stats(&f).made_bytes, 6 * MIB);
    assert_int_equal(atomic_load(&f.budget.used_bytes), 6 * MIB);
    struct region *r = prefault_take(f.ready, 4 * MIB, 4 * MIB);
    assert_non_null(r);
    assert_int_equal(atomic_load(&r->prefault_bytes), 4 * MIB);
    region_unref(r);
    good_steps = 1000;
    prefault_allow(f.ready, CAP);
    wait_for(&f, 16 * MIB);
    end(&f);
}

static int make_and_free(void *ctx)
{
    struct fixture *f = ctx;
    struct prefault_config config = {
        .pages = base_pages, .region_bytes = 2 * MIB, .bytes = 2 * MIB, .budget = &f->budget};
    int rc = prefault_new(&config, &f->ready, NULL);
    if (rc == 0)
        prefault_free(f->ready);
    return rc;
}

static void allocations_fail(void **state)
{
    (void)state;
    struct fixture f;
    budget_init(&f.budget, CAP);
    assert_true(failalloc_run(make_and_free, &f) >= 2);
}

/* No memory for the region itself: it is reported, nothing is lost, and later it works. */
static void no_memory_for_a_region(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, 2 * MIB, 2 * MIB, NULL);
    failalloc_arm(1);
    prefault_allow(f.ready, CAP);
    test_pause_us(20000);
    prefault_hold(f.ready);
    failalloc_disarm();
    assert_int_equal(stats(&f).bytes, 0);
    prefault_allow(f.ready, CAP);
    wait_for(&f, 2 * MIB);
    end(&f);
}

static void none_is_fine(void **state)
{
    (void)state;
    prefault_free(NULL);
    prefault_allow(NULL, MIB);
    prefault_hold(NULL);
    assert_null(prefault_take(NULL, MIB, MIB));
    assert_int_equal(prefault_cancel(NULL, MIB), 0);
    assert_int_equal(prefault_bytes(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_what_is_allowed),
        cmocka_unit_test(none_serves_twice),
        cmocka_unit_test(short_region_is_cut),
        cmocka_unit_test(ladder_for_short_regions),
        cmocka_unit_test(partly_ready_is_taken),
        cmocka_unit_test(gives_way),
        cmocka_unit_test(cap_holds),
        cmocka_unit_test(no_memory_for_a_step),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(no_memory_for_a_region),
        cmocka_unit_test(none_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
