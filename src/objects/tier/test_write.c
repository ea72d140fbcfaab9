/* SPDX-License-Identifier: Apache-2.0 */
/* Writing through a caching bucket, in both modes, and a kill during that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/testing.h"
#include "objects/tier/testing.h"
#include "store/testing.h"

static void test_through(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char path[400], away[400];
    world_front("bkt", "");
    assert_int_equal(world_put("bkt", "k", "one", NULL, &err), 0);
    assert_true(world_is_there("k", "one"));
    assert_int_equal(world_flags("bkt", "k"), 0);
    world_get_is("bkt", "k", "one");
    assert_int_equal(store_evict(world.store, "bkt", "k", 1, &err), 0);
    world_get_is("bkt", "k", "one");
    assert_true(world_gets_here("bkt", "k"));
    /* Conditions are about what is there. */
    assert_int_equal(store_evict(world.store, "bkt", "k", 1, &err), 0);
    struct store_commit none = {.if_none_match = true}, match = {.if_match = "wrong"},
                        any = {.if_match = "*"};
    assert_int_equal(world_put("bkt", "k", "two", &none, &err), STORE_PRECONDITION);
    assert_int_equal(world_put("bkt", "k", "two", &match, &err), STORE_PRECONDITION);
    assert_int_equal(world_put("bkt", "new", "two", &any, &err), LEAT_NOT_FOUND);
    assert_true(world_is_there("k", "one"));
    assert_int_equal(world_put("bkt", "k", "two", &any, &err), 0);
    assert_int_equal(world_put("bkt", "new", "two", &none, &err), 0);
    assert_true(world_is_there("k", "two") && world_is_there("new", "two"));
    /* A push that fails leaves what was. */
    snprintf(path, sizeof(path), "%s/remote/new", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    assert_int_equal(world_put("bkt", "new/below", "x", NULL, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "cannot both be"));
    assert_false(world_is_here("bkt", "new/below"));
    world_end();
    snprintf(path, sizeof(path), "%s/remote", world.top);
    assert_int_equal(rename(path, away), 0);
    world_begin();
    assert_int_equal(world_put("bkt", "k", "three", NULL, &err), TIER_DOWN);
    assert_non_null(strstr(err.message, "the remote of bucket bkt"));
    world_get_is("bkt", "k", "two");
    assert_int_equal(world_put("bkt", "fresh", "x", NULL, &err), TIER_DOWN);
    assert_false(world_is_here("bkt", "fresh"));
    assert_int_equal(tier_delete(world.tier, "bkt", "k", 1, &err), TIER_DOWN);
    world_get_is("bkt", "k", "two");
    world_end();
    assert_int_equal(rename(away, path), 0);
    world_begin();
    assert_int_equal(tier_delete(world.tier, "bkt", "k", 1, &err), 0);
    assert_false(world_is_here("bkt", "k") || world_is_there("k", "two"));
    /* Only there. */
    world_there("far", "x", 1);
    assert_int_equal(tier_delete(world.tier, "bkt", "far", 3, &err), 0);
    assert_false(world_is_there("far", "x"));
}

static void lose_index(void)
{
    char dir[400];
    snprintf(dir, sizeof(dir), "%s/store/index", world.top);
    testing_rmdir(dir);
    world_begin();
    world_wait_pushed();
}

/* What the remote has got already is not pushed over what others have stored there since; what it has not got is. */
static void test_back_rebuilt(void **state)
{
    (void)state;
    char path[400], away[400];
    snprintf(path, sizeof(path), "%s/remote", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    world_front("bkt", ",\"mode\":\"back\"");
    assert_int_equal(world_put("bkt", "k", "one", NULL, NULL), 0);
    assert_int_equal(world_put("bkt", "l", "one", NULL, NULL), 0);
    world_wait_pushed();
    world_there("k", "from elsewhere", 14);
    world_end();
    lose_index();
    assert_true(world_is_there("k", "from elsewhere"));
    assert_int_equal(world_flags("bkt", "k"), 0);
    world_get_is("bkt", "k", "from elsewhere");
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(world_put("bkt", "l", "two", NULL, NULL), 0);
    world_end();
    assert_int_equal(rename(away, path), 0);
    lose_index();
    assert_true(world_is_there("l", "two"));
    assert_true(world_is_there("k", "from elsewhere"));
}

/* An old version whose successor may have reached the remote is asked about after a rebuild, too. */
static void test_through_rebuilt(void **state)
{
    (void)state;
    char path[400], away[400];
    snprintf(path, sizeof(path), "%s/remote", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    world_front("bkt", "");
    assert_int_equal(world_put("bkt", "k", "one", NULL, NULL), 0);
    world_end();
    assert_int_equal(rename(path, away), 0);
    world_begin();
    assert_int_equal(world_put("bkt", "k", "two", NULL, NULL), TIER_DOWN);
    world_end();
    assert_int_equal(rename(away, path), 0);
    world_there("k", "two", 3);
    lose_index();
    world_get_is("bkt", "k", "two");
}

struct writer {
    pthread_t thread;
    const char *text;
    struct store_commit commit;
    int rc;
};

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    w->rc = world_put("bkt", "k", w->text, &w->commit, NULL);
    return NULL;
}

/* While the remote is asked for a condition, no write comes in between: the later version stays. */
static void test_back_condition(void **state)
{
    (void)state;
    struct writer first = {.text = "on condition", .commit = {.if_match = "v1"}}, second = {.text = "later"};
    world_web_front("bkt", ",\"mode\":\"back\"");
    world_far.hold_heads = true;
    assert_int_equal(pthread_create(&first.thread, NULL, writer_main, &first), 0);
    world_far_hears(&world_far.heads);
    assert_int_equal(pthread_create(&second.thread, NULL, writer_main, &second), 0);
    test_pause_us(100000);
    world_far.hold_heads = false;
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    assert_true(first.rc == 0 && second.rc == 0);
    world_get_is("bkt", "k", "later");
    world_wait_pushed();
    world_end();
    web_stop(&world_web);
}

/*
 * A GET while a new version is on its way to the remote brings the old one. Were it kept as what the remote has, a crash after the remote's yes
 * would leave it here for good.
 */
static void test_through_and_get(void **state)
{
    (void)state;
    struct writer w = {.text = "new"};
    struct world_reader me = {0};
    struct store_obj *obj;
    world_web_front("bkt", "");
    world_far.hold_puts = true;
    assert_int_equal(pthread_create(&w.thread, NULL, writer_main, &w), 0);
    world_far_hears(&world_far.puts);
    world_reader_main(&me);
    assert_true(me.same);
    world_gets_here("bkt", "k");
    if (store_get(world.store, "bkt", "k", 1, &obj, NULL) == 0) {
        assert_string_equal(obj->remote, "");
        store_obj_unref(obj);
    }
    world_far.hold_puts = false;
    pthread_join(w.thread, NULL);
    assert_int_equal(w.rc, 0);
    world_get_is("bkt", "k", "new");
    world_end();
    web_stop(&world_web);
}

static void test_back(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char path[400], away[400];
    world_front("bkt", ",\"mode\":\"back\"");
    assert_int_equal(world_put("bkt", "k", "one", NULL, &err), 0);
    world_get_is("bkt", "k", "one");
    world_wait_pushed();
    assert_true(world_is_there("k", "one"));
    assert_int_equal(world_flags("bkt", "k"), 0);
    /* The remote is away: dirty, served, not evicted; tried again after a restart. */
    world_end();
    snprintf(path, sizeof(path), "%s/remote", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    assert_int_equal(rename(path, away), 0);
    world_begin();
    assert_int_equal(world_put("bkt", "k", "two", NULL, &err), 0);
    assert_int_equal(world_put("bkt", "l", "more", NULL, &err), 0);
    world_get_is("bkt", "k", "two");
    assert_int_equal(world_flags("bkt", "k"), STORE_DIRTY);
    assert_int_equal(store_evict(world.store, "bkt", "k", 1, &err), LEAT_BUSY);
    assert_int_equal(tier_bucket_set(world.tier, "bkt", NULL, &err), LEAT_BUSY);
    struct tier_stats s;
    test_wait_until((tier_stats(world.tier, &s), s.push_failed >= 2));
    assert_true(s.push_error[0] != 0 && s.push_waiting == 2);
    world_end();
    assert_int_equal(rename(away, path), 0);
    world_begin();
    world_wait_pushed();
    assert_true(world_is_there("k", "two") && world_is_there("l", "more"));
    assert_int_equal(world_flags("bkt", "k"), 0);
    assert_int_equal(store_evict(world.store, "bkt", "k", 1, &err), 0);
    world_get_is("bkt", "k", "two");
    /* Written again and again: the last one is what is there. */
    for (unsigned i = 0; i < 50; i++) {
        char text[20];
        snprintf(text, sizeof(text), "round %u", i);
        assert_int_equal(world_put("bkt", "k", text, NULL, &err), 0);
    }
    world_wait_pushed();
    assert_true(world_is_there("k", "round 49"));
    assert_int_equal(world_flags("bkt", "k"), 0);
}

/* What no remote takes is refused before it is dirty here for ever. */
static void test_back_metadata(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char meta[5000];
    struct store_commit c = {.meta = meta, .meta_len = sizeof(meta)};
    world_front("bkt", ",\"mode\":\"back\"");
    memset(meta, 'x', sizeof(meta));
    memcpy(meta, "x-amz-meta-k", 13);
    meta[sizeof(meta) - 1] = 0;
    assert_int_equal(world_put("bkt", "k", "one", &c, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "metadata"));
    assert_false(world_is_here("bkt", "k"));
    memcpy(meta, "leat-parts--", 13); /* is not sent */
    assert_int_equal(world_put("bkt", "k", "one", &c, &err), 0);
    world_wait_pushed();
    assert_true(world_is_there("k", "one"));
}

/* Nor is a key that the remote cannot have. One that is here all the same, from before this was asked, can be deleted. */
static void test_back_keys(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char longest[STORE_KEY_MAX + 1], part[257];
    memset(longest, 'k', sizeof(longest));
    longest[STORE_KEY_MAX] = 0;
    memset(part, 'p', sizeof(part));
    part[256] = 0;
    const char *const keys[] = {"a//b", "a/", "../x", "/x", part, longest};
    for (unsigned far = 0; far < 2; far++) {
        if (far)
            world_web_front("far", ",\"mode\":\"back\""); /* with a prefix */
        else
            world_front("bkt", ",\"mode\":\"back\"");
        const char *bucket = far ? "far" : "bkt";
        for (unsigned i = far ? 5 : 0; i < ARRAY_LEN(keys); i++) {
            assert_int_equal(world_put(bucket, keys[i], "one", NULL, &err), LEAT_INVALID);
            assert_non_null(strstr(err.message, "cannot have this key"));
            assert_false(world_is_here(bucket, keys[i]));
            assert_int_equal(tier_delete(world.tier, bucket, keys[i], strlen(keys[i]), &err), LEAT_NOT_FOUND);
            testing_put_bytes(world.store, bucket, keys[i], "one", 3, NULL);
            assert_int_equal(world_flags(bucket, keys[i]), STORE_DIRTY);
            assert_int_equal(tier_delete(world.tier, bucket, keys[i], strlen(keys[i]), &err), 0);
            assert_false(world_is_here(bucket, keys[i]));
        }
        assert_int_equal(world_put(bucket, "fine", "one", NULL, &err), 0);
        world_wait_pushed();
    }
    assert_int_equal(world_far.deletes, 0);
    world_end();
    web_stop(&world_web);
}

/* A disk fails under what the remote has not got yet: it cannot be deleted here, so it is not deleted
 * there, and the client gets the error. */
static void test_back_delete_unavailable(void **state)
{
    (void)state;
    char path[400], away[400];
    snprintf(path, sizeof(path), "%s/remote", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    world_end();
    assert_int_equal(store_fault_new(world.top, &world.fault), 0);
    world_begin();
    world_front("bkt", ",\"mode\":\"back\"");
    assert_int_equal(world_put("bkt", "k", "one", NULL, NULL), 0);
    world_wait_pushed();
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(world_put("bkt", "k", "two", NULL, NULL), 0);
    store_fault_fail_from(world.fault, 1, -EIO);
    assert_int_equal(world_put("bkt", "l", "x", NULL, NULL), STORE_UNAVAILABLE);
    assert_int_equal(rename(away, path), 0);
    assert_int_equal(tier_delete(world.tier, "bkt", "k", 1, NULL), STORE_UNAVAILABLE);
    assert_true(world_is_there("k", "one") ||
                world_is_there("k", "two")); /* a push had read it before the disk failed */
    store_fault_fail(world.fault, 0, 0);
    world_end();
    world_begin();
    world_wait_pushed();
    assert_true(world_is_there("k", "two"));
    assert_int_equal(tier_delete(world.tier, "bkt", "k", 1, NULL), 0);
    assert_false(world_is_here("bkt", "k") || world_is_there("k", "two"));
    world_end();
    store_fault_free(TAKE_PTR(world.fault));
}

static unsigned waiting(void)
{
    struct tier_stats s;
    tier_stats(world.tier, &s);
    return s.push_waiting;
}

/* The remote is away for long: a part of the objects written since waits in memory, and all of them
 * arrive. */
static void test_back_far_more(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct tier_stats s;
    char path[400], away[400], key[20];
    world_front("bkt", ",\"mode\":\"back\"");
    world_end();
    snprintf(path, sizeof(path), "%s/remote", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    assert_int_equal(rename(path, away), 0);
    world.push_queue = 8;
    for (unsigned round = 0; round < 2; round++) { /* also after a restart, which finds them */
        world_begin();
        for (unsigned i = 0; round == 0 && i < 50; i++) {
            snprintf(key, sizeof(key), "k%u", i);
            assert_int_equal(world_put("bkt", key, key, NULL, &err), 0);
            assert_in_range(waiting(), 0, 8);
        }
        test_wait_until(
            (tier_stats(world.tier, &s), assert_in_range(s.push_waiting, 0, 8), s.push_failed >= 60));
        assert_true(s.push_waiting > 0 && s.buffer_bytes > 0);
        world_end();
    }
    assert_int_equal(rename(away, path), 0);
    world_begin();
    world_wait_pushed();
    for (unsigned i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        assert_true(world_is_there(key, key));
    }
}

/* What waits for a remote that is away takes a quarter of the memory at most, though its bucket may have far more keys in the queue. */
static void test_back_in_little_memory(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct budget budget;
    char path[400], away[400], key[20];
    budget_init(&budget, 16 * KIB);
    world_end();
    world.budget = &budget;
    world_begin();
    world_front("bkt", ",\"mode\":\"back\"");
    snprintf(path, sizeof(path), "%s/remote", world.top);
    snprintf(away, sizeof(away), "%s/away", world.top);
    assert_int_equal(rename(path, away), 0);
    for (unsigned i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(world_put("bkt", key, key, NULL, &err), 0);
        assert_in_range(atomic_load(&budget.used_bytes), 0, 4 * KIB);
    }
    assert_true(waiting() > 0);
    assert_int_equal(rename(away, path), 0);
    world_wait_pushed();
    for (unsigned i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        assert_true(world_is_there(key, key));
    }
    world_end();
    assert_int_equal(atomic_load(&budget.used_bytes), 0);
    world.budget = NULL;
    world_begin();
}

/* More of them than there is room for can never be at the remote: others still get there. */
static void test_back_past_refused(void **state)
{
    (void)state;
    struct leat_error err = {0};
    char key[20];
    world_end();
    world.push_queue = 8;
    world_begin();
    world_front("bkt", ",\"mode\":\"back\"");
    assert_int_equal(world_put("bkt", "k", "k", NULL, &err), 0);
    world_wait_pushed();
    for (unsigned i = 0; i < 20; i++) { /* "k" is a file there */
        snprintf(key, sizeof(key), "k/%u", i);
        assert_int_equal(world_put("bkt", key, key, NULL, &err), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "l%u", i);
        assert_int_equal(world_put("bkt", key, key, NULL, &err), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "l%u", i);
        test_wait_until(world_is_there(key, key));
    }
    assert_in_range(waiting(), 0, 8);
}

/* --- kill -9 -------------------------------------------------------------------------------------------------------------------------- */

/* Writes in both modes and reads through, until it is killed; says each acknowledged round. */
static void child_main(int out)
{
    struct leat_error err;
    world_begin();
    for (unsigned i = 0;; i++) {
        char text[5000], key[20];
        memset(text, 'a' + (int)(i % 26), sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        memcpy(text, &(unsigned){'0' + i % 10}, 1);
        snprintf(key, sizeof(key), "k%u", i % 5);
        char buf[100], name[20];
        size_t n;
        snprintf(name, sizeof(name), "far%u", i % 40);
        if (world_put("back", key, text, NULL, &err) < 0 || world_put("through", key, text, NULL, &err) < 0 ||
            world_get("far", name, buf, sizeof(buf), &n, &err) < 0)
            _exit(1);
        store_evict(world.store, "far", name, strlen(name), NULL);
        if (write(out, &i, sizeof(i)) != sizeof(i))
            _exit(1);
    }
}

static void check_after_kill(unsigned acknowledged)
{
    char buf[6000];
    size_t n;
    struct leat_error err = {0};
    world_wait_pushed();
    for (unsigned k = 0; k < 5; k++) {
        char key[20];
        snprintf(key, sizeof(key), "k%u", k);
        static const char *const buckets[] = {"back", "through"};
        for (unsigned b = 0; b < 2; b++) {
            int rc = world_get(buckets[b], key, buf, sizeof(buf), &n, &err);
            if (rc == LEAT_NOT_FOUND && acknowledged < 5)
                continue;
            if (rc < 0)
                fail_msg("%s/%s: %s", buckets[b], key, err.message);
            assert_int_equal(n, 4999);
            for (size_t i = 2; i < n; i++)
                assert_int_equal(buf[i], buf[1]);
            if (b == 0)
                assert_int_equal(world_flags("back", key), 0);
        }
    }
    for (unsigned k = 0; k < 40; k++) {
        char name[20];
        snprintf(name, sizeof(name), "far%u", k);
        world_get_is("far", name, name);
    }
}

static void test_kill(void **state)
{
    (void)state;
    char path[400];
    char more[600];
    /* Three folders. */
    static const char *const buckets[] = {"back", "through", "far"};
    struct leat_error err;
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/remote-%s", world.top, buckets[i]);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(more, sizeof(more), "{\"uri\":\"file://%s\",\"mode\":\"%s\"}", path,
                 i == 0 ? "back" : "through");
        assert_int_equal(store_bucket_create(world.store, buckets[i], 0, NULL, &err), 0);
        assert_int_equal(tier_bucket_set(world.tier, buckets[i], more, &err), 0);
    }
    for (unsigned k = 0; k < 40; k++) {
        snprintf(path, sizeof(path), "%s/remote-far/far%u", world.top, k);
        FILE *f = fopen(path, "w");
        fprintf(f, "far%u", k);
        fclose(f);
    }
    world_end();
    for (unsigned round = 0; round < 8; round++) {
        int pipes[2];
        unsigned last = 0, got;
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            close(pipes[0]);
            child_main(pipes[1]);
        }
        close(pipes[1]);
        for (unsigned i = 0; i <= round && read(pipes[0], &got, sizeof(got)) == sizeof(got); i++)
            last = got;
        test_pause_us(round * 700);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        while (read(pipes[0], &got, sizeof(got)) == sizeof(got))
            last = got;
        close(pipes[0]);
        world_begin();
        check_after_kill(last);
        world_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_through, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_condition, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_through_and_get, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_rebuilt, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_metadata, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_through_rebuilt, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_keys, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_delete_unavailable, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_far_more, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_in_little_memory, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_back_past_refused, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_kill, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, world_group_setup, NULL);
}
