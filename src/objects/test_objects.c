/* SPDX-License-Identifier: Apache-2.0 */
/* What objects decides by itself: buckets that are made and deleted while their remote is set; conditions of a DELETE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/testing.h"
#include "objects/objects.h"
#include "objects/tier/testing.h"
#include "store/testing.h"

struct caller {
    pthread_t thread;
    struct objects *objects;
    int rc;
};

static int attach(struct objects *o)
{
    char json[400];
    snprintf(json, sizeof(json), "{\"uri\":\"file://%s/remote\",\"check\":\"always\"}", world.top);
    return objects_bucket_set_remote(o, "bkt", json, NULL);
}

static void *attach_main(void *arg)
{
    struct caller *me = arg;
    me->rc = attach(me->objects);
    return NULL;
}

static void *delete_main(void *arg)
{
    struct caller *me = arg;
    me->rc = objects_bucket_delete(me->objects, "bkt", NULL);
    return NULL;
}

/* What is made as soon as the old one is gone has the settings that it is given: those of the old one are forgotten before, not after. */
static void test_made_again_at_once(void **state)
{
    (void)state;
    struct caller deleter = {0};
    struct objects *o;
    assert_int_equal(objects_new(world.store, world.tier, &o), 0);
    deleter.objects = o;
    for (unsigned round = 0; round < testing_rounds(400); round++) {
        assert_int_equal(objects_bucket_create(o, "bkt", "me", false, NULL), 0);
        assert_int_equal(attach(o), 0);
        assert_int_equal(pthread_create(&deleter.thread, NULL, delete_main, &deleter), 0);
        int rc = STORE_EXISTS;
        test_run_until(rc != STORE_EXISTS, rc = objects_bucket_create(o, "bkt", "me", false, NULL));
        assert_int_equal(rc, 0);
        assert_int_equal(objects_remote(o, "bkt"), 0);
        assert_int_equal(attach(o), 0);
        pthread_join(deleter.thread, NULL);
        assert_int_equal(deleter.rc, 0);
        assert_int_not_equal(objects_remote(o, "bkt"), 0);
        assert_int_equal(objects_bucket_delete(o, "bkt", NULL), 0);
    }
    objects_free(o);
}

/* Settings that come while the bucket is deleted are of the bucket that is there, or of none. */
static void test_set_while_deleted(void **state)
{
    (void)state;
    struct caller admin = {0}, deleter = {0};
    struct objects *o;
    unsigned set = 0;
    assert_int_equal(objects_new(world.store, world.tier, &o), 0);
    admin.objects = deleter.objects = o;
    for (unsigned round = 0; round < testing_rounds(400); round++) {
        assert_int_equal(objects_bucket_create(o, "bkt", "me", false, NULL), 0);
        assert_int_equal(pthread_create(&admin.thread, NULL, attach_main, &admin), 0);
        test_pause_us(round % 20 * 50);
        delete_main(&deleter);
        pthread_join(admin.thread, NULL);
        set += admin.rc == 0;
        assert_int_equal(deleter.rc, 0);
        assert_int_equal(objects_remote(o, "bkt"), 0);
    }
    assert_true(set > 0);
    objects_free(o);
}

static int delete_if(struct objects *o, const char *etag)
{
    return objects_delete(o, &(struct objects_key){"bkt", "k", 1}, etag, NULL);
}

static void test_delete_condition(void **state)
{
    (void)state;
    struct objects *o;
    struct store_commit commit = {.etag = "one"};
    assert_int_equal(objects_new(world.store, world.tier, &o), 0);
    assert_int_equal(objects_bucket_create(o, "bkt", "me", false, NULL), 0);
    assert_int_equal(delete_if(o, "*"), LEAT_NOT_FOUND);
    testing_put_bytes(world.store, "bkt", "k", "1", 1, &commit);
    assert_int_equal(delete_if(o, "two"), STORE_PRECONDITION);
    assert_int_equal(delete_if(o, "one"), 0);
    testing_put_bytes(world.store, "bkt", "k", "1", 1, &commit);
    assert_int_equal(delete_if(o, "*"), 0);
    /* The remote's version would stay. */
    assert_int_equal(attach(o), 0);
    assert_int_equal(delete_if(o, "*"), LEAT_BUSY);
    objects_free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_made_again_at_once, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_set_while_deleted, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete_condition, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, world_group_setup, NULL);
}
