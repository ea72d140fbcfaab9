/* SPDX-License-Identifier: Apache-2.0 */
/* Two who come at the same time: writers, readers, and who puts the bucket in front of another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "base/rng.h"
#include "base/testing.h"
#include "objects/tier/testing.h"
#include "store/testing.h"

/* --- one of them ------------------------------------------------------------------------------------------------------------------ */

/* A thread with one call to make. */
struct caller {
    pthread_t thread;
    int (*call)(struct caller *me);
    const char *key, *text;
    struct store_commit commit;
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_part part;
    int rc;
};

static void *caller_main(void *arg)
{
    struct caller *me = arg;
    me->rc = me->call(me);
    return NULL;
}

static void begin(struct caller *me)
{
    assert_int_equal(pthread_create(&me->thread, NULL, caller_main, me), 0);
}

static int end(struct caller *me)
{
    pthread_join(me->thread, NULL);
    return me->rc;
}

static int put(struct caller *me)
{
    return world_put("bkt", me->key, me->text, &me->commit, NULL);
}

static int take_away(struct caller *me)
{
    return tier_delete(world.tier, "bkt", me->key, strlen(me->key), NULL);
}

static int attach(struct caller *me)
{
    char json[400];
    snprintf(json, sizeof(json), "{\"uri\":\"file://%s/remote\",\"check\":\"always\"}", world.top);
    return tier_bucket_set(world.tier, "bkt", json, NULL);
}

static int read_small(struct caller *me)
{
    char buf[2000];
    size_t n;
    return world_get("bkt", me->key, buf, sizeof(buf), &n, NULL);
}

static void upload(struct caller *me)
{
    struct store_put *p;
    struct store_info info;
    size_t n = strlen(me->key), len = strlen(me->text);
    assert_int_equal(store_upload_begin(world.store, "bkt", me->key, n, NULL, me->id, NULL), 0);
    assert_int_equal(store_part_begin(world.store, "bkt", me->key, n, me->id, 1, len, 0, &p, NULL), 0);
    assert_int_equal(store_put_write(p, me->text, len, NULL), 0);
    assert_int_equal(store_put_commit(p, NULL, &info, NULL), 0);
    me->part = (struct store_part){.number = 1};
    memcpy(me->part.etag, info.etag, sizeof(info.etag));
}

static int complete(struct caller *me)
{
    struct store_put *p;
    size_t n = strlen(me->key);
    int rc = store_upload_assemble(world.store, "bkt", me->key, n, me->id, &me->part, 1, &p, NULL);
    return rc < 0 ? rc : tier_put_commit(world.tier, "bkt", me->key, n, p, &me->commit, NULL, NULL);
}

static int one_upload(void *user, const struct store_upload *upload)
{
    return 1;
}

static bool uploads_are(void)
{
    bool more;
    return store_upload_list(world.store, "bkt", NULL, 0, NULL, 0, NULL, 10, one_upload, NULL, &more, NULL) ==
           1;
}

/* Long enough for a thread that does not wait to continue. */
static void a_moment(void)
{
    test_pause_us(100000);
}

static void wait_until_held(void)
{
    test_wait_until(store_fault_holds(world.fault));
}

/* As far as the remote, which has heard it and does not answer while `hold`. */
static void begin_held(struct caller *me, atomic_bool *hold, const _Atomic unsigned *heard)
{
    *hold = true;
    begin(me);
    world_far_hears(heard);
}

static int setup(void **state)
{
    world_setup(state);
    world_end();
    store_fault_new(world.top, &world.fault);
    world_begin();
    return 0;
}

static int teardown(void **state)
{
    store_fault_release(world.fault); /* a test that failed */
    world_far.hold_puts = world_far.hold_deletes = world_far.hold_heads = false;
    world_teardown(state);
    store_fault_free(TAKE_PTR(world.fault));
    return 0;
}

static void end_web(void)
{
    world_end();
    web_stop(&world_web);
}

/* --- a bucket is put in front of another ---------------------------------------------------------------------------------------- */

/* A commit that is under way is heard out: the bucket is not empty then. */
static void test_attach_waits(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "k", .text = "kept"}, admin = {.call = attach};
    assert_int_equal(store_bucket_create(world.store, "bkt", 0, NULL, NULL), 0);
    store_fault_hold(world.fault, "objects/");
    begin(&writer);
    wait_until_held();
    begin(&admin);
    a_moment();
    store_fault_release(world.fault);
    assert_int_equal(end(&writer), 0);
    assert_int_equal(end(&admin), STORE_NOT_EMPTY);
    assert_int_equal(tier_bucket_remote(world.tier, "bkt"), 0);
    struct store_obj *obj;
    assert_int_equal(store_get(world.store, "bkt", "k", 1, &obj, NULL), 0);
    store_obj_unref(obj);
}

/* One that comes after, of a writer who knew of no remote, is dirty: the remote, which has not got it, does not take it away. */
static void test_attached_before_commit(void **state)
{
    (void)state;
    struct caller admin = {.call = attach};
    struct store_put *p;
    struct store_info info;
    assert_int_equal(store_bucket_create(world.store, "bkt", 0, NULL, NULL), 0);
    assert_int_equal(store_put_begin(world.store, "bkt", "k", 1, 4, 0, &p, NULL), 0);
    assert_int_equal(store_put_write(p, "kept", 4, NULL), 0);
    assert_int_equal(attach(&admin), 0);
    assert_int_equal(store_put_commit(p, NULL, &info, NULL), 0);
    assert_int_equal(info.flags, STORE_DIRTY);
    assert_int_equal(world_flags("bkt", "k"), STORE_DIRTY);
    assert_int_equal(store_evict(world.store, "bkt", "k", 1, NULL), LEAT_BUSY);
    world_get_is("bkt", "k", "kept");
    world_end();
    world_begin(); /* what is dirty is pushed */
    world_wait_pushed();
    assert_true(world_is_there("k", "kept"));
}

struct crowd {
    pthread_t thread;
    const char *bucket;
    unsigned number;
    bool acknowledged;
    unsigned late_us;
};

static void *crowd_main(void *arg)
{
    struct crowd *me = arg;
    char key[40];
    snprintf(key, sizeof(key), "%s-%u", me->bucket, me->number);
    test_pause_us(me->late_us + (me->number * 997) % 3000);
    me->acknowledged = world_put(me->bucket, key, key, NULL, NULL) == 0;
    return NULL;
}

/* Whatever the order: what was acknowledged is served, and where there is a remote, it has it. */
static void test_attach_at_any_moment(void **state)
{
    (void)state;
    enum { WRITERS = 4 };
    unsigned attached = 0;
    uint64_t rng = 1;
    for (unsigned round = 0; round < testing_rounds(200); round++) {
        struct crowd crowd[WRITERS];
        char bucket[20], json[400];
        snprintf(bucket, sizeof(bucket), "b%u", round + 100);
        snprintf(json, sizeof(json), "{\"uri\":\"file://%s/remote\",\"check\":\"always\",\"mode\":\"%s\"}",
                 world.top, round % 2 ? "back" : "through");
        assert_int_equal(store_bucket_create(world.store, bucket, 0, NULL, NULL), 0);
        for (unsigned i = 0; i < WRITERS; i++) { /* late: a slow build finds the bucket empty at times, too */
            crowd[i] = (struct crowd){.bucket = bucket, .number = i, .late_us = round % 4 ? 0 : 20000};
            assert_int_equal(pthread_create(&crowd[i].thread, NULL, crowd_main, &crowd[i]), 0);
        }
        test_pause_us(rng_below(&rng, 3000));
        bool is = tier_bucket_set(world.tier, bucket, json, NULL) == 0;
        attached += is;
        for (unsigned i = 0; i < WRITERS; i++)
            pthread_join(crowd[i].thread, NULL);
        world_wait_pushed();
        for (unsigned i = 0; i < WRITERS; i++) {
            char key[40];
            snprintf(key, sizeof(key), "%s-%u", bucket, i);
            assert_true(crowd[i].acknowledged);
            assert_true(!is || world_is_there(key, key));
            if (is)
                world_get_is(bucket, key, key);
            assert_true(world_is_here(bucket, key));
        }
    }
    assert_true(attached > 0);
}

/* What one remote took, or gave, is not taken for what another has. */
static void test_another_remote(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small-put", .text = "for the first"},
                  admin = {.call = attach}, reader = {.call = read_small, .key = "small-get"};
    world_web_front("bkt", "");
    world_far.hold_puts = true;
    world_far.allowed = 0;
    begin(&writer);
    begin(&reader);
    world_far_hears(&world_far.puts);
    world_far_hears(&world_far.gets);
    assert_int_equal(attach(&admin), 0);
    world_far.hold_puts = false;
    world_far.allowed = UINT64_MAX;
    assert_int_equal(end(&writer), LEAT_BUSY);
    assert_int_equal(end(&reader), 0);
    assert_false(world_gets_here("bkt", "small-put") || world_is_here("bkt", "small-get"));
    end_web();
}

/* A push, or a DELETE, that waited for its key while the bucket was put in front of another has nothing to do with the former one: what is here by then is pushed
 * to the new remote, and what is gone is gone there. */
static void test_another_remote_for_who_waits(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small-k", .text = "through"},
                  deleter = {.call = take_away, .key = "small-k"};
    for (unsigned deletes = 0; deletes < 2; deletes++) {
        world_web_front("bkt", "");
        begin_held(&writer, &world_far.hold_puts, &world_far.puts); /* has the key */
        world_web_settings("bkt", ",\"mode\":\"back\"");
        if (deletes)
            begin(&deleter);
        else
            assert_int_equal(world_put("bkt", "small-k", "for the first", NULL, NULL), 0);
        a_moment();
        if (!deletes)
            assert_int_equal(store_delete(world.store, "bkt", "small-k", 7, 0, NULL), 0);
        world_front("bkt", ",\"mode\":\"back\"");
        if (deletes)
            world_there("small-k", "theirs", 6);
        else
            assert_int_equal(world_put("bkt", "small-k", "for the second", NULL, NULL), 0);
        world_far.hold_puts = false;
        assert_int_equal(end(&writer), LEAT_BUSY);
        if (deletes)
            assert_int_equal(end(&deleter), 0);
        world_wait_pushed();
        assert_true(world_is_there("small-k", "for the second") == !deletes);
        assert_false(world_is_there("small-k", "theirs"));
        assert_int_equal(world_far.puts, 1);
        assert_int_equal(world_far.deletes, 0);
        end_web();
        world_begin();
        store_delete(world.store, "bkt", "small-k", 7, 0, NULL);
        assert_int_equal(store_bucket_delete(world.store, "bkt", NULL), 0);
        tier_bucket_forget(world.tier, "bkt");
    }
}

/* Nor for what a new bucket of the same name has. */
static void test_another_bucket(void **state)
{
    (void)state;
    struct caller admin = {.call = attach}, reader = {.call = read_small, .key = "small"};
    world_web_front("bkt", "");
    world_far.allowed = 0;
    begin(&reader);
    world_far_hears(&world_far.gets);
    assert_int_equal(store_bucket_delete(world.store, "bkt", NULL), 0);
    tier_bucket_forget(world.tier, "bkt");
    assert_int_equal(store_bucket_create(world.store, "bkt", 0, NULL, NULL), 0);
    assert_int_equal(attach(&admin), 0);
    world_far.allowed = UINT64_MAX;
    assert_int_equal(end(&reader), 0);
    assert_false(world_gets_here("bkt", "small"));
    end_web();
}

/* Settings that change while a fetch is under way are no other remote, but an object deleted since is not
 * kept either. */
static void test_settings_between(void **state)
{
    (void)state;
    struct caller reader = {.call = read_small, .key = "small"},
                  deleter = {.call = take_away, .key = "small"};
    world_web_front("bkt", ",\"timeout_s\":20");
    world_far.allowed = 0;
    begin(&reader);
    world_far_hears(&world_far.gets);
    world_web_settings("bkt", ",\"timeout_s\":30");
    assert_int_equal(take_away(&deleter), 0);
    world_far.allowed = UINT64_MAX;
    assert_int_equal(end(&reader), 0);
    assert_false(world_gets_here("bkt", "small"));
    end_web();
}

/* What the remote says after the bucket was taken from it does not take away what is here, and may be nowhere else. */
static void test_detached_while_checked(void **state)
{
    (void)state;
    struct caller reader = {.call = read_small, .key = "small"};
    world_web_front("bkt", ",\"check\":\"always\"");
    assert_int_equal(read_small(&reader), 0);
    assert_true(world_gets_here("bkt", "small"));
    world_far.heads = 0;
    world_far.gone = true;
    begin_held(&reader, &world_far.hold_heads, &world_far.heads);
    assert_int_equal(tier_bucket_set(world.tier, "bkt", NULL, NULL), 0);
    world_far.hold_heads = false;
    assert_int_equal(end(&reader), LEAT_NOT_FOUND);
    assert_true(world_is_here("bkt", "small"));
    end_web();
}

/* What is committed when the bucket has no remote any more is not dirty: no thread would ever push it. */
static void test_detached_before_commit(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small", .text = "stays"},
                  deleter = {.call = take_away, .key = "small"};
    world_web_front("bkt", ",\"mode\":\"back\"");
    begin_held(&deleter, &world_far.hold_deletes, &world_far.deletes);
    begin(&writer); /* waits for the key */
    a_moment();
    assert_int_equal(tier_bucket_set(world.tier, "bkt", NULL, NULL), 0);
    world_far.hold_deletes = false;
    end(&deleter);
    assert_int_equal(end(&writer), 0);
    assert_true(world_is_here("bkt", "small"));
    assert_int_equal(world_flags("bkt", "small"), 0);
    end_web();
}

/* A conditional one that waits for its key during that is repeated: its condition is about the local
 * object, as there is nothing else. */
static void test_detached_before_condition(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small", .text = "stays", .commit = {.if_none_match = true}},
                  second = writer, deleter = {.call = take_away, .key = "small"};
    for (unsigned through = 0; through < 2; through++) {
        world_web_front("bkt", through ? "" : ",\"mode\":\"back\"");
        begin_held(&deleter, &world_far.hold_deletes, &world_far.deletes);
        begin(&writer);
        a_moment();
        assert_int_equal(tier_bucket_set(world.tier, "bkt", NULL, NULL), 0);
        world_far.hold_deletes = false;
        end(&deleter);
        assert_int_equal(end(&writer), 0);
        assert_int_equal(world_flags("bkt", "small"), 0);
        assert_int_equal(put(&second), STORE_PRECONDITION);
        end_web();
        world_begin();
        assert_int_equal(store_delete(world.store, "bkt", "small", 5, 0, NULL), 0);
        assert_int_equal(store_bucket_delete(world.store, "bkt", NULL), 0);
    }
}

/* And one whose condition is checked at the remote during that. */
static void test_detached_in_a_condition(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small", .text = "stays", .commit = {.if_none_match = true}};
    world_web_front("bkt", "");
    world_far.gone = true;
    begin_held(&writer, &world_far.hold_heads, &world_far.heads);
    assert_int_equal(tier_bucket_set(world.tier, "bkt", NULL, NULL), 0);
    world_far.hold_heads = false;
    assert_int_equal(end(&writer), 0);
    assert_int_equal(world_far.puts, 0);
    assert_int_equal(world_flags("bkt", "small"), 0);
    end_web();
}

/* A condition is about what a remote has, too: a commit that did not ask this one, or asks one that is
 * none any more, is refused. The store knows before the tier does: here the tier is not notified at all. */
static void test_conditions_of_another_remote(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "k", .text = "kept"}, nobody = writer, owner = writer;
    uint64_t remote_id;
    nobody.commit.if_none_match = true;
    owner.commit.if_match = "*";
    assert_int_equal(store_bucket_create(world.store, "bkt", 0, NULL, NULL), 0);
    assert_int_equal(store_bucket_remote(world.store, "bkt", 0, STORE_REMOTE_OTHER, "{}", &remote_id, NULL),
                     0);
    assert_int_equal(put(&nobody), LEAT_BUSY);
    assert_false(world_is_here("bkt", "k"));
    assert_int_equal(put(&writer), 0);
    assert_int_equal(world_flags("bkt", "k"), STORE_DIRTY);
    assert_int_equal(put(&owner), LEAT_BUSY);
    world_front("front", ",\"mode\":\"back\"");
    assert_int_equal(store_bucket_remote(world.store, "front", 0, STORE_REMOTE_NONE, "{}", &remote_id, NULL),
                     0);
    assert_int_equal(world_put("front", "k", "kept", &nobody.commit, NULL), LEAT_BUSY);
    assert_int_equal(world_put("front", "k", "kept", &writer.commit, NULL), 0);
}

/* --- readers and writers of one key --------------------------------------------------------------------------------------------- */

/* What a fetch is about to keep is kept before the remote is asked to replace it: so it can be marked as of unknown standing. */
static void test_fetch_ends_while_put_begins(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small", .text = "new"},
                  reader = {.call = read_small, .key = "small"};
    struct store_obj *obj;
    world_web_front("bkt", "");
    world_far.hold_puts = true;
    store_fault_hold(world.fault, "objects/");
    begin(&reader);
    wait_until_held();
    begin(&writer);
    a_moment();
    assert_int_equal(world_far.puts, 0);
    store_fault_release(world.fault);
    world_far_hears(&world_far.puts);
    assert_int_equal(store_get(world.store, "bkt", "small", 5, &obj, NULL), 0);
    assert_string_equal(obj->remote, "");
    store_obj_unref(obj);
    world_far.hold_puts = false;
    assert_int_equal(end(&writer), 0);
    assert_int_equal(end(&reader), 0);
    world_get_is("bkt", "small", "new");
    end_web();
}

/* "always": a version that a reader had before the remote changed, and that is still being committed, does not do for the next one. */
static void test_checked_while_one_is_kept(void **state)
{
    (void)state;
    world_front("bkt", ",\"check\":\"always\"");
    world_there("k", "one", 3);
    store_fault_hold(world.fault, "objects/");
    world_get_is("bkt", "k", "one");
    wait_until_held();
    world_there("k", "two!", 4);
    world_get_is("bkt", "k", "two!");
    store_fault_release(world.fault);
    world_get_is("bkt", "k", "two!");
}

/* A condition does not see what is gone there already, and is about to be gone here. */
static void test_delete_and_condition(void **state)
{
    (void)state;
    struct caller writer = {.call = put, .key = "small", .text = "on condition", .commit = {.if_match = "*"}},
                  deleter = {.call = take_away, .key = "small"};
    world_web_front("bkt", ",\"mode\":\"back\"");
    assert_int_equal(world_put("bkt", "small", "first", NULL, NULL), 0);
    world_wait_pushed();
    begin_held(&deleter, &world_far.hold_deletes, &world_far.deletes);
    begin(&writer);
    a_moment();
    world_far.hold_deletes = false;
    assert_int_equal(end(&deleter), 0);
    assert_int_equal(end(&writer), LEAT_NOT_FOUND);
    assert_false(world_is_here("bkt", "small"));
    assert_int_equal(world_far.puts, 1);
    end_web();
}

/* --- uploads in parts --------------------------------------------------------------------------------------------------------------- */

/* Not visible before the remote has it; refused, or not answered, the upload is as it was. */
static void test_upload_through(void **state)
{
    (void)state;
    struct caller up = {.call = complete, .key = "small", .text = "in parts"};
    world_web_front("bkt", "");
    world_far.gone = true;
    upload(&up);
    world_far.put_status = 403;
    assert_int_equal(complete(&up), TIER_REFUSED);
    assert_true(uploads_are() && !world_is_here("bkt", "small"));
    world_far.put_status = 0;
    world_far.puts = 0;
    begin_held(&up, &world_far.hold_puts, &world_far.puts);
    assert_false(world_is_here("bkt", "small"));
    assert_true(uploads_are());
    assert_int_equal(store_upload_abort(world.store, "bkt", "small", 5, up.id, NULL), LEAT_BUSY);
    world_far.hold_puts = false;
    assert_int_equal(end(&up), 0);
    assert_int_equal(world_flags("bkt", "small"), 0);
    assert_false(uploads_are());
    world_get_is("bkt", "small", "in parts");
    end_web();
}

/* Its condition holds at the commit, not when it was asked for. */
static void test_upload_condition(void **state)
{
    (void)state;
    struct caller up = {.call = complete, .key = "small", .text = "in parts", .commit = {.if_match = "v1"}},
                  writer = {.call = put, .key = "small", .text = "between"};
    world_web_front("bkt", "");
    upload(&up);
    begin_held(&writer, &world_far.hold_puts, &world_far.puts);
    begin(&up);
    a_moment();
    world_far.hold_puts = false;
    assert_int_equal(end(&writer), 0);
    assert_int_equal(end(&up), STORE_PRECONDITION);
    world_get_is("bkt", "small", "between");
    assert_true(uploads_are());
    end_web();
}

/* --- the Nth I/O fails ------------------------------------------------------------------------------------------------------------ */

/* What is said of the key is what its remote has. */
static void is_as_there(void)
{
    char got[16];
    size_t len;
    int rc = world_get("bkt", "k", got, sizeof(got), &len, NULL);
    if (rc == STORE_UNAVAILABLE)
        return; /* a flush failed, and the disk was left */
    assert_int_equal(rc, world_is_there("k", "one") || world_is_there("k", "two") ? 0 : LEAT_NOT_FOUND);
    assert_true(rc < 0 || (len == 3 && world_is_there("k", memcmp(got, "one", 3) == 0 ? "one" : "two")));
}

/* A disk that has no more room from any moment of a PUT or DELETE on, whatever they answer; and then has. */
static void test_no_room_at_any_moment(void **state)
{
    (void)state;
    world_front("bkt", "");
    for (unsigned k = 0; k < 2; k++) {
        bool reached = true;
        for (uint64_t nth = 1; reached; nth++) {
            assert_int_equal(world_put("bkt", "k", "one", NULL, NULL), 0);
            store_fault_fail_from(world.fault, nth, -ENOSPC);
            int rc =
                k ? tier_delete(world.tier, "bkt", "k", 1, NULL) : world_put("bkt", "k", "two", NULL, NULL);
            reached = store_fault_calls(world.fault) >= nth;
            store_fault_fail(world.fault, 0, 0);
            assert_true(rc == 0 || reached);
            assert_false(rc == 0 && world_is_there("k", "one"));
            is_as_there();
            world_end();
            world_begin();
            is_as_there();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_attach_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_attached_before_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_attach_at_any_moment, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_another_remote, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_remote_for_who_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_bucket, setup, teardown),
        cmocka_unit_test_setup_teardown(test_settings_between, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detached_while_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detached_before_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detached_before_condition, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detached_in_a_condition, setup, teardown),
        cmocka_unit_test_setup_teardown(test_conditions_of_another_remote, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fetch_ends_while_put_begins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_checked_while_one_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_delete_and_condition, setup, teardown),
        cmocka_unit_test_setup_teardown(test_upload_through, setup, teardown),
        cmocka_unit_test_setup_teardown(test_upload_condition, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_room_at_any_moment, setup, teardown),
    };
    return cmocka_run_group_tests(tests, world_group_setup, NULL);
}
