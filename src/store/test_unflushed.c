/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers and flushes. What was answered holds after a power cut and after a restart: nothing is answered from a record that is not flushed, and after a
 * flush that failed the state of its key is unknown.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/testing.h"
#include "store/testing_fault.h"

static int setup(void **state)
{
    return setup_with(state, "k", 100);
}

static int count(void *user, const struct store_entry *e)
{
    ++*(unsigned *)user;
    return 0;
}

/* How many keys a list has, or why there is none. */
static int listed(struct store *s)
{
    struct store_list_spec all = {.max = 1000};
    unsigned n = 0;
    int rc = store_list(s, "photos", &all, count, &n, NULL, NULL);
    return rc < 0 ? rc : (int)n;
}

static int head(struct store *s, const char *key)
{
    struct store_info info;
    return store_lookup(s, "photos", key, strlen(key), &info, NULL);
}

static int put_if(struct store *s, const char *key, const struct store_commit *commit)
{
    struct store_put *put;
    int rc = store_put_begin(s, "photos", key, strlen(key), 3, 0, &put, NULL);
    if (rc == 0)
        rc = store_put_write(put, "abc", 3, NULL);
    return rc < 0 ? rc : store_put_commit(put, commit, NULL, NULL);
}

/* --- while a flush is under way ---------------------------------------------------------------------------------------------- */

struct removal {
    struct fixture *f;
    unsigned batch; /* keys deleted with it; 0: one by one */
    int rc;
    uint64_t until; /* events recorded when it was answered */
};

static void *remove_it(void *arg)
{
    struct removal *r = arg;
    struct store_key keys[] = {{"other", 5}, {"k", 1}, {"k", 1}};
    int codes[ARRAY_LEN(keys)] = {0};
    if (r->batch)
        r->rc = store_delete_many(r->f->s, "photos", keys, r->batch, codes, NULL);
    else
        r->rc = store_delete(r->f->s, "photos", "k", 1, 0, NULL);
    if (r->rc == 0 && r->batch)
        r->rc = codes[1];
    r->until = store_fault_events(r->f->fault);
    return NULL;
}

/* The power goes right after the answer, and takes all that was not flushed: a key that was said to be gone is gone. */
static void check_cut(struct fixture *f, uint64_t cut)
{
    char dir[256];
    const char *path = dir;
    testing_mkdir_fast(dir);
    assert_int_equal(store_fault_replay(f->fault, cut, 0, dir), 0);
    struct store *s = testing_open(&path, 1, NULL);
    assert_non_null(s);
    assert_int_equal(head(s, "k"), LEAT_NOT_FOUND);
    store_free(s);
    testing_rmdir(dir);
}

static void second_answer(struct fixture *f, unsigned first_batch, unsigned second_batch)
{
    struct removal first = {.f = f, .batch = first_batch}, second = {.f = f, .batch = second_batch};
    pthread_t threads[2];
    store_fault_hold(f->fault, "index/log");
    assert_int_equal(pthread_create(&threads[0], NULL, remove_it, &first), 0);
    test_wait_until(store_fault_holds(f->fault));
    int there = head(f->s, "k"), read = testing_check(f->s, "photos", "k", 1, 100), keys = listed(f->s);
    assert_int_equal(pthread_create(&threads[1], NULL, remove_it, &second), 0);
    test_pause_us(20000); /* time to answer too early */
    store_fault_release(f->fault);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    /* The deletion was in the log and not on the disk: it had not happened yet. */
    assert_int_equal(there, 0);
    assert_int_equal(read, 0);
    assert_int_equal(keys, 1);
    assert_int_equal(first.rc, 0);
    assert_true(second.rc == 0 || second.rc == LEAT_NOT_FOUND);
    check_cut(f, first.until);
    check_cut(f, second.until);
    assert_int_equal(listed(f->s), 0);
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 100), 0);
}

static void test_second_deletion_waits(void **state)
{
    for (unsigned first = 0; first <= 3; first += first ? 1 : 2)
        for (unsigned second = 0; second <= 3; second += second ? 1 : 2)
            second_answer(*state, first, second);
}

struct conditional {
    struct fixture *f;
    int rc;
    uint64_t until;
};

static void *replace_it(void *arg)
{
    struct conditional *c = arg;
    c->rc = put_if(c->f->s, "k", &(struct store_commit){.if_match = "*"});
    c->until = store_fault_events(c->f->fault);
    return NULL;
}

/* "There is no such object" of a condition is such an answer, too. */
static void test_condition_waits(void **state)
{
    struct fixture *f = *state;
    struct removal first = {.f = f};
    struct conditional second = {.f = f};
    pthread_t threads[2];
    store_fault_hold(f->fault, "index/log");
    assert_int_equal(pthread_create(&threads[0], NULL, remove_it, &first), 0);
    test_wait_until(store_fault_holds(f->fault));
    assert_int_equal(pthread_create(&threads[1], NULL, replace_it, &second), 0);
    test_pause_us(20000);
    store_fault_release(f->fault);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(second.rc, LEAT_NOT_FOUND);
    check_cut(f, second.until);
}

/* --- after a flush that failed ------------------------------------------------------------------------------------------------ */

static int delete_k(struct store *s)
{
    return store_delete(s, "photos", "k", 1, 0, NULL);
}

static int delete_many(struct store *s)
{
    struct store_key keys[] = {{"k", 1}, {"none", 4}};
    int codes[2];
    int rc = store_delete_many(s, "photos", keys, 2, codes, NULL);
    return rc < 0 ? rc : codes[0];
}

static int put_new(struct store *s)
{
    return testing_put(s, "photos", "new", 2, 200);
}

static int put_over(struct store *s)
{
    return testing_put(s, "photos", "k", 3, 300);
}

/* Whatever is asked of the key, the answer is that it is not known. */
static void check_unknown(struct store *s, const char *key)
{
    struct store_obj *obj;
    struct store_key keys[] = {{key, strlen(key)}};
    int rc = 0;
    assert_int_equal(head(s, key), STORE_UNAVAILABLE);
    assert_int_equal(store_get(s, "photos", key, strlen(key), &obj, NULL), STORE_UNAVAILABLE);
    assert_int_equal(store_get_cached(s, "photos", key, strlen(key), &obj, NULL), STORE_UNAVAILABLE);
    assert_int_equal(listed(s), STORE_UNAVAILABLE);
    assert_int_equal(store_delete(s, "photos", key, strlen(key), 0, NULL), STORE_UNAVAILABLE);
    assert_int_equal(store_delete_many(s, "photos", keys, 1, &rc, NULL), 0);
    assert_int_equal(rc, STORE_UNAVAILABLE);
    assert_int_equal(put_if(s, key, &(struct store_commit){.if_none_match = true}), STORE_UNAVAILABLE);
    assert_int_equal(put_if(s, key, &(struct store_commit){.if_match = "*"}), STORE_UNAVAILABLE);
}

/* What was answered before the restart holds after it. */
static void check_promises(struct fixture *f, int (*run)(struct store *s), const char *key)
{
    int there = head(f->s, key), keys = listed(f->s),
        again = run == put_new || run == put_over ? -1 : run(f->s);
    int gone = store_delete(f->s, "photos", key, strlen(key), 0, NULL);
    reopen(f);
    int after = head(f->s, key);
    assert_true(after == 0 || after == LEAT_NOT_FOUND);
    if (again == 0 || again == LEAT_NOT_FOUND || gone == 0 || gone == LEAT_NOT_FOUND)
        assert_int_equal(after, LEAT_NOT_FOUND);
    else if (there != STORE_UNAVAILABLE)
        assert_int_equal(after, there);
    if (keys >= 0 && gone == STORE_UNAVAILABLE)
        assert_int_equal(listed(f->s), keys);
    assert_int_equal(testing_put(f->s, "photos", key, 9, 900), 0);
    assert_int_equal(testing_check(f->s, "photos", key, 9, 900), 0);
}

/* Each call fails in turn; one of them is the flush of the log. */
static void failed_calls(void **state, int (*run)(struct store *s), const char *key)
{
    unsigned unknown = 0;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        teardown(state);
        setup(state);
        struct fixture *f = *state;
        assert_int_equal(testing_put(f->s, "photos", "warm", 1, 10), 0);
        store_fault_fail(f->fault, nth, -EIO);
        int rc = run(f->s);
        failed = store_fault_calls(f->fault) >= nth;
        store_fault_fail(f->fault, 0, 0);
        if (rc == STORE_UNAVAILABLE && strstr(f->s->paths[0]->error, "cannot be flushed")) {
            unknown++;
            check_unknown(f->s, key);
            /* A snapshot of what is not known would make it known. */
            assert_true(store_path_compact(f->s->paths[0]) < 0);
        }
        check_promises(f, run, key);
    }
    assert_int_equal(unknown, 1);
}

static void test_failed_deletion(void **state)
{
    failed_calls(state, delete_k, "k");
}

static void test_failed_deletion_of_many(void **state)
{
    failed_calls(state, delete_many, "k");
}

static void test_failed_put(void **state)
{
    failed_calls(state, put_new, "new");
}

static void test_failed_overwrite(void **state)
{
    failed_calls(state, put_over, "k");
}

/* On the other path a newer version can be stored, and then it is known again. A deletion is not possible before the next start. */
static void test_failed_put_of_two_paths(void **state)
{
    struct fixture *f = *state;
    char dirs[2][300];
    const char *paths[2] = {dirs[0], dirs[1]};
    for (unsigned i = 0; i < 2; i++)
        snprintf(dirs[i], sizeof(dirs[i]), "%s/two-%u", f->dir, i);
    for (unsigned round = 0; round < 2;
         round++) { /* the key is new, or an older version is on the other path */
        struct store *s = testing_open(paths, 2, store_fault_io(f->fault));
        assert_non_null(s);
        if (round == 0)
            assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
        struct ikey k;
        uint32_t id;
        char key[16];
        snprintf(key, sizeof(key), "new-%u", round);
        assert_int_equal(store_bucket_find(s, "photos", &id, NULL, NULL), 0);
        ikey_set(&k, id, key, strlen(key));
        struct path *first = store_place(s, &k, 0), *other = s->paths[1 - first->number];
        first->failed = true;
        assert_int_equal(testing_put(s, "photos", "warm", 1, 10), 0);
        if (round == 1)
            assert_int_equal(testing_put(s, "photos", key, 1, 100), 0);
        first->failed = false;
        other->failed = true;
        assert_int_equal(testing_put(s, "photos", "warm", 1, 10), 0);
        other->failed = false;
        store_fault_fail(f->fault, 4,
                         -EIO); /* behind the write, its flush and the record: the flush of the log */
        assert_int_equal(testing_put(s, "photos", key, 2, 200), STORE_UNAVAILABLE);
        store_fault_fail(f->fault, 0, 0);
        assert_true(first->failed && !other->failed);
        check_unknown(s, key);
        assert_int_equal(testing_put(s, "photos", key, 3, 300), 0);
        assert_int_equal(testing_check(s, "photos", key, 3, 300), 0);
        assert_true(listed(s) > 0);
        assert_int_equal(store_delete(s, "photos", key, strlen(key), 0, NULL), STORE_UNAVAILABLE);
        store_free(s);
        s = testing_open(paths, 2, store_fault_io(f->fault));
        assert_non_null(s);
        assert_int_equal(testing_check(s, "photos", key, 3, 300), 0);
        assert_int_equal(store_delete(s, "photos", key, strlen(key), 0, NULL), 0);
        assert_int_equal(testing_check(s, "photos", key, 3, 300), LEAT_NOT_FOUND);
        store_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_second_deletion_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_condition_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_deletion, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_deletion_of_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_put, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_overwrite, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_put_of_two_paths, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
