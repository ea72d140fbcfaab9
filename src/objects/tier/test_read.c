/* SPDX-License-Identifier: Apache-2.0 */
/* Reading through a caching bucket of a folder, or of an S3 server that follows a script (slow, changing,
 * lying, gone). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "base/testing.h"
#include "objects/tier/testing.h"

static void test_read_through(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct tier_read *r;
    char *back = malloc(WORLD_BIG);
    size_t n;
    world_front("bkt", "");
    world_there("small", "hello", 5);
    world_there("big", world_big, WORLD_BIG);
    world_there("empty", "", 0);
    world_get_is("bkt", "small", "hello");
    assert_true(world_gets_here("bkt", "small"));
    assert_int_equal(world_flags("bkt", "small"), 0);
    world_there("small", "other", 5); /* never compared */
    world_get_is("bkt", "small", "hello");
    assert_int_equal(world_get("bkt", "big", back, WORLD_BIG, &n, &err), 0);
    assert_int_equal(n, WORLD_BIG);
    assert_memory_equal(back, world_big, WORLD_BIG);
    world_get_is("bkt", "empty", "");
    assert_true(world_gets_here("bkt", "big"));
    assert_int_equal(tier_open(world.tier, "bkt", "big", 3, 0, &r, &err), 0);
    assert_int_equal(tier_read_head(r, NULL, &err), 0);
    assert_non_null(r->obj);
    assert_int_equal(store_obj_check(world.store, r->obj, 0, WORLD_BIG, &err), 0);
    tier_read_close(r);
    assert_int_equal(world_get("bkt", "nothing", back, WORLD_BIG, &n, &err), LEAT_NOT_FOUND);
    assert_int_equal(world_get("bkt", "no/thing/../x", back, WORLD_BIG, &n, &err), LEAT_NOT_FOUND);
    assert_int_equal(tier_open(world.tier, "bkt", "a\0b", 3, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), LEAT_INVALID);
    tier_read_close(r);
    /* HEAD fetches nothing. */
    world_there("head", "12345", 5);
    assert_int_equal(tier_open(world.tier, "bkt", "head", 4, TIER_HEAD, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), 0);
    assert_int_equal(r->view.info.bytes, 5);
    tier_read_close(r);
    assert_false(world_gets_here("bkt", "head"));
    free(back);
}

/* Many readers, one fetch; what is there may be read while the rest is still awaited. */
static void test_single_flight(void **state)
{
    (void)state;
    struct world_reader readers[12];
    struct tier_read *r;
    struct leat_error err;
    world_web_front("bkt", "");
    world_far.allowed = 2 * MIB;
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        assert_int_equal(pthread_create(&readers[i].thread, NULL, world_reader_main, &readers[i]), 0);
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 100 * KIB, &err), 0);
    assert_int_equal(r->view.info.bytes, WORLD_BIG);
    assert_string_equal(r->view.info.etag, "v1");
    assert_string_equal(pairs_get(r->view.meta, r->view.meta_len, "content-type"), "test/big");
    assert_string_equal(pairs_get(r->view.meta, r->view.meta_len, "x-amz-meta-colour"), "blue");
    char first[1000];
    assert_int_equal(pread(r->view.fd, first, sizeof(first), (off_t)r->view.offset), sizeof(first));
    assert_memory_equal(first, world_big, sizeof(first));
    assert_int_equal(tier_read_ready(r, WORLD_BIG - 1, NULL, &err), TIER_WAIT);
    assert_false(world_is_here("bkt", "k"));
    atomic_store(&world_far.allowed, UINT64_MAX);
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        pthread_join(readers[i].thread, NULL);
        assert_int_equal(readers[i].rc, 0);
        assert_true(readers[i].same);
    }
    tier_read_close(r);
    assert_true(world_gets_here("bkt", "k"));
    assert_int_equal(world_far.heads, 1);
    assert_int_equal(world_far.bytes, WORLD_BIG);
    struct store_obj *obj;
    assert_int_equal(store_get(world.store, "bkt", "k", 1, &obj, NULL), 0);
    assert_string_equal(obj->remote, "\"v1\"");
    assert_string_equal(obj->info.etag, "v1");
    assert_int_equal(obj->crc32c, crc32c(0, world_big, WORLD_BIG));
    store_obj_unref(obj);
    world_end();
    web_stop(&world_web);
}

/* Who waits for the end, or for another part, gets it while what stands before is still awaited; in the end each byte was asked for once. */
static void test_asked_for_first(void **state)
{
    (void)state;
    struct tier_read *r, *other;
    struct leat_error err = {0};
    struct store_obj *obj;
    char seen[1000];
    world_web_front("bkt", "");
    world_far.held_from = 256 * KIB;
    world_far.held_to = 4 * MIB;
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &other, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 0, &err), 0);
    assert_int_equal(tier_read_ready(other, 4 * MIB + 5, NULL, &err), TIER_WAIT);
    uint64_t at = WORLD_BIG - sizeof(seen);
    assert_int_equal(tier_read_wait(r, at, sizeof(seen), &err), 0);
    assert_int_equal(pread(r->view.fd, seen, sizeof(seen), (off_t)(r->view.offset + at)), sizeof(seen));
    assert_memory_equal(seen, world_big + at, sizeof(seen));
    assert_false(world_is_here("bkt", "k"));
    assert_int_equal(tier_read_wait(other, 4 * MIB + 5, MIB, &err), 0);
    assert_int_equal(tier_read_wait(other, 0, 100 * KIB, &err), 0);
    assert_int_equal(tier_read_ready(other, 2 * MIB, NULL, &err), TIER_WAIT);
    world_far.held_to = 0;
    assert_int_equal(tier_read_wait(other, 0, WORLD_BIG, &err), 0);
    tier_read_close(other);
    tier_read_close(r);
    assert_true(world_gets_here("bkt", "k"));
    assert_int_equal(world_far.bytes, WORLD_BIG);
    assert_int_equal(store_get(world.store, "bkt", "k", 1, &obj, NULL), 0);
    assert_int_equal(obj->crc32c, crc32c(0, world_big, WORLD_BIG));
    assert_int_equal(store_obj_check(world.store, obj, 0, WORLD_BIG, &err), 0);
    store_obj_unref(obj);
    world_end();
    web_stop(&world_web);
}

/* A miss is one request where objects are small, and large ones are found out; the checksum is compared all the same. */
static void test_one_request(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct world_reader me = {0};
    char key[20], buf[1000];
    size_t n;
    world_web_front("bkt", "");
    for (unsigned i = 0; i < 12; i++) {
        snprintf(key, sizeof(key), "small%u", i);
        assert_int_equal(world_get("bkt", key, buf, sizeof(buf), &n, &err), 0);
        assert_int_equal(n, 1000);
        assert_memory_equal(buf, world_big, n);
        assert_true(world_gets_here("bkt", key));
    }
    assert_int_equal(world_far.gets, 12);
    assert_int_equal(world_far.heads, 4); /* until it was seen that they are small */
    world_far.lie = true;
    assert_int_equal(world_get("bkt", "small-wrong", buf, sizeof(buf), &n, &err), LEAT_CORRUPT);
    world_far.lie = false;
    world_reader_main(&me);
    assert_true(me.same);
    assert_int_equal(world_far.heads, 5);
    assert_int_equal(world_get("bkt", "empty", buf, sizeof(buf), &n, &err), 0);
    assert_int_equal(n, 0);
    world_far.lie = true; /* and where it comes by a HEAD */
    assert_int_equal(world_get("bkt", "small-too", buf, sizeof(buf), &n, &err), LEAT_CORRUPT);
    world_end();
    web_stop(&world_web);
}

static void told(struct tier_waiter *w)
{
    atomic_bool *flag = (atomic_bool *)(w + 1);
    atomic_store(flag, true);
}

static void until_told(atomic_bool *flag)
{
    test_wait_until(atomic_load(flag));
    atomic_store(flag, false);
}

/* A reader that is notified, instead of waiting; one that leaves; one whose remote dies. */
static void test_waiters(void **state)
{
    (void)state;
    struct {
        struct tier_waiter w;
        atomic_bool told;
    } one = {.w.ready = told}, two = {.w.ready = told};
    struct tier_read *r, *other;
    struct leat_error err = {0};
    world_web_front("bkt", "");
    world_far.allowed = 2 * MIB;
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &other, &err), 0);
    test_run_until(tier_read_head(r, &one.w, &err) != TIER_WAIT, until_told(&one.told));
    test_wait_until(tier_read_ready(other, WORLD_BIG - 1, &two.w, &err) == TIER_WAIT);
    tier_read_unwait(other, &two.w);
    tier_read_close(other);
    two.told = false;
    int64_t n;
    atomic_store(&world_far.hang_up, true);
    atomic_store(&world_far.allowed, UINT64_MAX);
    test_run_until((n = tier_read_ready(r, WORLD_BIG - 1, &one.w, &err)) != TIER_WAIT, until_told(&one.told));
    assert_int_equal(n, TIER_DOWN);
    assert_non_null(strstr(err.message, "the remote of bucket bkt: "));
    assert_non_null(strstr(err.message, "s3://away/pre/k"));
    assert_false(two.told);
    assert_true(tier_read_ready(r, 0, NULL, &err) > 0); /* what came is of one version */
    tier_read_close(r);
    assert_false(world_gets_here("bkt", "k"));
    /* It is back. */
    atomic_store(&world_far.hang_up, false);
    struct world_reader again = {0};
    world_reader_main(&again);
    assert_true(again.same);
    world_end();
    web_stop(&world_web);
}

/* An object that changes while it is fetched; one whose checksum is another; remotes that refuse. */
static void test_bad_remotes(void **state)
{
    (void)state;
    struct tier_read *r;
    struct leat_error err = {0};
    struct world_reader me = {0};
    world_web_front("bkt", "");
    world_far.allowed = 2 * MIB;
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, 1000, &err), 0);
    atomic_store(&world_far.version, 2);
    atomic_store(&world_far.allowed, UINT64_MAX);
    /* What was asked for already was answered as version 1; what is asked for now is refused as changed. */
    int rc = tier_read_wait(r, 0, WORLD_BIG, &err);
    if (rc != 0)
        assert_int_equal(rc, LEAT_STALE);
    tier_read_close(r);
    assert_int_equal(world_gets_here("bkt", "k"), rc == 0);
    if (rc == 0)
        assert_int_equal(store_evict(world.store, "bkt", "k", 1, NULL), 0);

    atomic_store(&world_far.lie, true);
    assert_int_equal(tier_open(world.tier, "bkt", "k", 1, 0, &r, &err), 0);
    assert_int_equal(tier_read_wait(r, 0, WORLD_BIG, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "CRC32C"));
    assert_int_equal(tier_read_ready(r, WORLD_BIG - 1, NULL, &err), LEAT_CORRUPT); /* the end never arrives */
    tier_read_close(r);
    assert_false(world_gets_here("bkt", "k"));
    atomic_store(&world_far.lie, false);

    static const struct {
        unsigned status;
        int rc;
    } refusals[] = {{403, TIER_REFUSED}, {404, LEAT_NOT_FOUND}, {500, TIER_DOWN}};
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        atomic_store(&world_far.status, refusals[i].status);
        world_reader_main(&me);
        assert_int_equal(me.rc, refusals[i].rc);
    }
    atomic_store(&world_far.status, 0);
    world_reader_main(&me);
    assert_true(me.same);
    assert_true(world_gets_here("bkt", "k"));
    /* Here, it is served whatever the remote is like. */
    atomic_store(&world_far.hang_up, true);
    world_reader_main(&me);
    assert_true(me.same);
    world_end();
    web_stop(&world_web);
}

/* Where no ETag says of which version the beginning was, it is not put together with what comes after it. */
static void test_without_etags(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char *back = malloc(WORLD_BIG);
    size_t n;
    world_web_front("bkt", "");
    world_far.no_etags = true;
    world_far.changes = 1;
    if (world_get("bkt", "k", back, WORLD_BIG, &n, &err) < 0)
        fail_msg("%s", err.message);
    assert_int_equal(n, WORLD_BIG);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(back[i], 0);
    free(back);
    world_end();
    web_stop(&world_web);
}

static void test_check(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char buf[100];
    size_t n;
    world_front("always", ",\"check\":\"always\"");
    world_front("age", ",\"check\":\"age\",\"age_s\":3600");
    world_there("k", "one", 3);
    world_get_is("always", "k", "one");
    world_get_is("age", "k", "one");
    assert_true(world_gets_here("always", "k") && world_is_here("age", "k"));
    world_get_is("always", "k", "one");
    world_there("k", "two!", 4);
    world_get_is("always", "k", "two!");
    world_get_is("age", "k", "one"); /* not so soon */
    world_end();
    world_begin(); /* after a restart the time of its last comparison is unknown */
    world_get_is("age", "k", "two!");
    /* The remote cannot be asked: what is here is served. */
    char a[400], b[400];
    snprintf(a, sizeof(a), "%s/remote", world.top);
    snprintf(b, sizeof(b), "%s/gone", world.top);
    assert_true(world_gets_here("always", "k"));
    world_end();
    assert_int_equal(rename(a, b), 0);
    world_begin();
    world_get_is("always", "k", "two!");
    assert_int_equal(world_get("always", "other", buf, sizeof(buf), &n, &err), TIER_DOWN);
    world_end();
    assert_int_equal(rename(b, a), 0);
    world_begin();
    /* Gone there: gone here. */
    snprintf(a, sizeof(a), "%s/remote/k", world.top);
    assert_int_equal(unlink(a), 0);
    assert_int_equal(world_get("always", "k", buf, sizeof(buf), &n, &err), LEAT_NOT_FOUND);
    assert_false(world_gets_here("always", "k"));
}

/* A store that is full: what the remote has makes room, what it has not stays. */
static void test_full(void **state)
{
    (void)state;
    char key[20], *back = malloc(WORLD_BIG);
    size_t n;
    struct leat_error err = {0};
    world_end();
    world.capacity = 3 * WORLD_BIG + MIB;
    world_begin();
    world_front("bkt", "");
    world_front("dirty", ",\"mode\":\"back\"");
    for (unsigned i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "big%u", i);
        world_there(key, world_big, WORLD_BIG);
    }
    for (unsigned i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "big%u", i);
        if (world_get("bkt", key, back, WORLD_BIG, &n, &err) < 0)
            fail_msg("%s: %s", key, err.message);
        assert_memory_equal(back, world_big, WORLD_BIG);
        assert_true(world_gets_here("bkt", key));
    }
    assert_false(world_is_here("bkt", "big0") && world_is_here("bkt", "big1") &&
                 world_is_here("bkt", "big2"));
    free(back);
}

/* One that would not fit into an empty store costs the others nothing. */
static void test_larger_than_the_store(void **state)
{
    (void)state;
    char key[20], buf[100];
    size_t n;
    struct leat_error err = {0};
    world_end();
    world.capacity = WORLD_BIG - MIB;
    world_begin();
    world_front("bkt", "");
    world_there("k", world_big, WORLD_BIG);
    for (unsigned i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "s%u", i);
        world_there(key, key, strlen(key));
        assert_int_equal(world_get("bkt", key, buf, sizeof(buf), &n, &err), 0);
        assert_true(world_gets_here("bkt", key));
    }
    assert_int_equal(world_get("bkt", "k", NULL, 0, &n, &err), LEAT_NO_SPACE);
    for (unsigned i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "s%u", i);
        assert_true(world_is_here("bkt", key));
    }
}

/* Small ones meet the disk later than large ones. */
static void test_full_of_small(void **state)
{
    (void)state;
    enum { SMALL = 200 * 1024 };
    char key[20], *back = malloc(SMALL);
    size_t n;
    struct leat_error err = {0};
    world_end();
    world.capacity = 10 * SMALL;
    world_begin();
    world_front("bkt", "");
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "s%u", i);
        world_there(key, world_big, SMALL);
        if (world_get("bkt", key, back, SMALL, &n, &err) < 0)
            fail_msg("%s: %s", key, err.message);
        assert_memory_equal(back, world_big, SMALL);
    }
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_through, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_single_flight, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_asked_for_first, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_one_request, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_waiters, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_bad_remotes, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_without_etags, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_check, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_full, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_larger_than_the_store, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_full_of_small, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, world_group_setup, NULL);
}
