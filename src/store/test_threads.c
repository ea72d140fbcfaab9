/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on few keys, while snapshots are written and objects evicted; and processes killed in the middle of it. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/testing.h"
#include "store/internal.h"
#include "store/testing.h"

enum { THREADS = 6, KEYS = 5 };

struct worker {
    struct store *s;
    unsigned number, rounds;
    unsigned bad; /* things that must not be */
};

static const char *name_of(unsigned key, char out[16])
{
    snprintf(out, 16, "key-%u", key);
    return out;
}

/* The bytes of an object follow from its own length: so whichever version is read, it can be checked. */
static size_t some_bytes(uint64_t *rng)
{
    return 1 + rng_below(rng, 9000);
}

static bool whole(struct store *s, struct store_obj *obj)
{
    uint8_t data[10000], wanted[10000];
    size_t bytes = obj->info.bytes;
    if (bytes > sizeof(data) || store_obj_read(s, obj, 0, data, bytes, NULL) < 0)
        return false;
    testing_fill(wanted, bytes, bytes);
    return memcmp(data, wanted, bytes) == 0;
}

static int look(void *user, const struct store_entry *e)
{
    return e->key_len >= 4 && memcmp(e->key, "key-", 4) == 0 ? 0 : 1;
}

static void multipart(struct worker *w, uint64_t *rng, const char *key)
{
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_part part = {.number = 1};
    struct store_info info;
    struct store_put *put;
    size_t bytes = some_bytes(rng);
    uint8_t data[10000];
    testing_fill(data, bytes, bytes);
    if (store_upload_begin(w->s, "photos", key, strlen(key), NULL, id, NULL) < 0) {
        w->bad++;
        return;
    }
    if (store_part_begin(w->s, "photos", key, strlen(key), id, 1, bytes, 0, &put, NULL) < 0 ||
        store_put_write(put, data, bytes, NULL) < 0 || store_put_commit(put, NULL, &info, NULL) < 0) {
        w->bad++;
        return;
    }
    strcpy(part.etag, info.etag);
    w->bad += testing_complete(w->s, "photos", key, id, &part, 1, NULL) < 0;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t rng = w->number + 1;
    char key[16];
    for (unsigned i = 0; i < w->rounds; i++) {
        struct store_obj *obj;
        struct store_list_spec all = {.max = 100};
        name_of((unsigned)rng_below(&rng, KEYS), key);
        int rc = 0;
        switch (rng_below(&rng, 8)) {
        case 0:
        case 1:
        case 2: {
            size_t bytes = some_bytes(&rng);
            rc = testing_put(w->s, "photos", key, bytes, bytes);
            break;
        }
        case 3:
            rc = store_delete(w->s, "photos", key, strlen(key), 0, NULL);
            break;
        case 4:
            rc = store_list(w->s, "photos", &all, look, NULL, NULL, NULL);
            break;
        case 5:
            multipart(w, &rng, key);
            break;
        default:
            rc = store_get(w->s, "photos", key, strlen(key), &obj, NULL);
            if (rc == 0) {
                w->bad += !whole(w->s, obj);
                store_obj_unref(obj);
            }
        }
        w->bad += rc != 0 && rc != LEAT_NOT_FOUND;
    }
    return NULL;
}

static void test_threads(void **state)
{
    char dir[256], key[16];
    struct leat_error err;
    struct store *s;
    testing_mkdir_fast(dir);
    const char *path = dir;
    struct store_config c = {.paths = &path, .npaths = 1, .fd_cache = 3, .reserve_bytes = 1};
    assert_int_equal(store_new(&c, &s, &err), 0);
    assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.s = s, .number = i, .rounds = testing_rounds(400)};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 10; i++) {
        pthread_mutex_lock(&s->work_lock);
        assert_int_equal(store_path_compact(s->paths[0]), 0);
        pthread_mutex_unlock(&s->work_lock);
        struct store_status *st = calloc(1, sizeof(*st));
        store_status(s, st);
        assert_true(st->open_objects <= 3);
        free(st);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].bad, 0);
    }
    store_free(s);
    s = testing_open1(dir);
    assert_non_null(s);
    uint64_t objects = 0;
    for (unsigned i = 0; i < KEYS; i++) {
        struct store_obj *obj;
        name_of(i, key);
        int rc = store_get(s, "photos", key, strlen(key), &obj, NULL);
        assert_true(rc == 0 || rc == LEAT_NOT_FOUND);
        if (rc < 0)
            continue;
        assert_true(whole(s, obj));
        store_obj_unref(obj);
        objects++;
    }
    assert_int_equal(s->paths[0]->index.objects, objects); /* no part is left */
    store_free(s);
    assert_int_equal(testing_count_objects(dir), objects);
    testing_rmdir(dir);
}

/* One of many writers of "if there is none" wins, and only one. */
struct racer {
    struct store *s;
    const char *key;
    int rc;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    struct store_put *put;
    struct store_commit c = {.if_none_match = true};
    r->rc = store_put_begin(r->s, "photos", r->key, strlen(r->key), 1, 0, &put, NULL);
    if (r->rc == 0) {
        store_put_write(put, "x", 1, NULL);
        r->rc = store_put_commit(put, &c, NULL, NULL);
    }
    return NULL;
}

static void test_one_wins(void **state)
{
    char dir[256], key[16];
    testing_mkdir_fast(dir);
    struct store *s = testing_open1(dir);
    assert_non_null(s);
    assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
    for (unsigned i = 0; i < testing_rounds(20); i++) {
        struct racer racers[4];
        pthread_t threads[4];
        unsigned won = 0;
        name_of(i, key);
        for (unsigned k = 0; k < 4; k++) {
            racers[k] = (struct racer){.s = s, .key = key};
            assert_int_equal(pthread_create(&threads[k], NULL, race, &racers[k]), 0);
        }
        for (unsigned k = 0; k < 4; k++) {
            pthread_join(threads[k], NULL);
            assert_true(racers[k].rc == 0 || racers[k].rc == STORE_PRECONDITION);
            won += racers[k].rc == 0;
        }
        assert_int_equal(won, 1);
    }
    store_free(s);
    testing_rmdir(dir);
}

/* --- killed -------------------------------------------------------------------------------------------------------------- */

struct told { /* by the child, in shared memory */
    _Atomic uint64_t begun[KEYS], done[KEYS];
};

/* PUTs and uploads in parts, version by version: version n of a key has n + 1 bytes. Never returns. */
static void child(const char *dir, struct told *told, unsigned round)
{
    struct store *s = testing_open1(dir);
    char key[16];
    if (!s)
        _exit(2);
    for (uint64_t rng = round;;) {
        unsigned k = (unsigned)rng_below(&rng, KEYS);
        uint64_t version = atomic_load(&told->done[k]) + 1;
        size_t bytes = 1 + (size_t)(version % 9000);
        name_of(k, key);
        atomic_store(&told->begun[k], version);
        int rc;
        if (rng_below(&rng, 3)) {
            rc = testing_put(s, "photos", key, bytes, bytes);
        } else {
            char id[STORE_UPLOAD_ID_TEXT];
            struct store_part part = {.number = 7};
            struct store_info info;
            struct store_put *put;
            uint8_t data[10000];
            testing_fill(data, bytes, bytes);
            rc = store_upload_begin(s, "photos", key, strlen(key), NULL, id, NULL);
            rc = rc ? rc : store_part_begin(s, "photos", key, strlen(key), id, 7, bytes, 0, &put, NULL);
            rc = rc ? rc : store_put_write(put, data, bytes, NULL);
            rc = rc ? rc : store_put_commit(put, NULL, &info, NULL);
            if (rc == 0)
                strcpy(part.etag, info.etag);
            rc = rc ? rc : testing_complete(s, "photos", key, id, &part, 1, NULL);
        }
        if (rc < 0)
            _exit(3);
        atomic_store(&told->done[k], version);
        if (rng_below(&rng, 16) == 0 && store_path_compact(s->paths[0]) < 0)
            _exit(4);
    }
}

static uint64_t acknowledged(struct told *told)
{
    uint64_t all = 0;
    for (unsigned k = 0; k < KEYS; k++)
        all += atomic_load(&told->done[k]);
    return all;
}

static void test_killed(void **state)
{
    char dir[256], key[16];
    testing_mkdir_fast(dir);
    struct told *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(told, MAP_FAILED);
    struct store *s = testing_open1(dir);
    assert_non_null(s);
    assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
    store_free(s);
    uint64_t rng = 11;
    for (unsigned round = 0; round < testing_rounds(220); round++) {
        uint64_t before[KEYS], all = 0, wanted = rng_below(&rng, 12);
        for (unsigned k = 0; k < KEYS; k++)
            all += before[k] = atomic_load(&told->done[k]);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            child(dir, told, round);
        /* Killed a moment after so and so many were acknowledged: anywhere in the one that follows. */
        int status;
        test_run_until(acknowledged(told) >= all + wanted,
                       (assert_int_equal(waitpid(pid, &status, WNOHANG), 0), test_pause_us(50)));
        test_pause_us((useconds_t)rng_below(&rng, 700));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));

        s = testing_open1(dir);
        assert_non_null(s);
        uint64_t objects = 0;
        for (unsigned k = 0; k < KEYS; k++) {
            uint64_t done = atomic_load(&told->done[k]), begun = atomic_load(&told->begun[k]);
            struct store_info info;
            name_of(k, key);
            int rc = store_lookup(s, "photos", key, strlen(key), &info, NULL);
            assert_true(rc == 0 || (rc == LEAT_NOT_FOUND && done == 0));
            if (rc < 0)
                continue;
            size_t is = info.bytes, is_done = 1 + done % 9000, is_begun = 1 + begun % 9000;
            assert_true((done > 0 && is == is_done) || is == is_begun);
            assert_int_equal(testing_check(s, "photos", key, is, is), 0);
            if (is != is_done)
                atomic_store(&told->done[k], begun);
            objects++;
        }
        uint64_t files = s->paths[0]->index.objects;
        assert_true(files >= objects &&
                    files <= objects + 2 * (round + 1)); /* and uploads begun, and their part */
        assert_int_equal(testing_count_objects(dir), files);
        store_free(s);
    }
    munmap(told, sizeof(*told));
    testing_rmdir(dir);
}

struct beginning {
    struct store *s;
    char id[STORE_UPLOAD_ID_TEXT];
    int rc;
};

static void *begin_upload(void *arg)
{
    struct beginning *b = arg;
    b->rc = store_upload_begin(b->s, "photos", "k", 1, NULL, b->id, NULL);
    return NULL;
}

static uint64_t indexed(struct path *p)
{
    pthread_rwlock_rdlock(&p->index.lock);
    uint64_t n = p->index.objects;
    pthread_rwlock_unlock(&p->index.lock);
    return n;
}

/* An upload whose record is there, and which is held up on its way into the list: it goes with its bucket, as those in the list do. */
static void test_bucket_takes_an_upload_that_begins(void **state)
{
    char dir[256];
    testing_mkdir_fast(dir);
    struct store *s = testing_open1(dir);
    assert_non_null(s);
    for (unsigned round = 0; round < 10; round++) {
        struct beginning b = {.s = s};
        pthread_t thread;
        assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
        pthread_mutex_lock(&s->uploads_lock);
        assert_int_equal(pthread_create(&thread, NULL, begin_upload, &b), 0);
        test_wait_until(indexed(s->paths[0]) != 0);
        /* Until it waits for the lock; if it does not yet, nothing is lost but a chance to fail. */
        test_pause_us(2000);
        pthread_mutex_unlock(&s->uploads_lock);
        assert_int_equal(store_bucket_delete(s, "photos", NULL), 0);
        pthread_join(thread, NULL);
        assert_int_equal(b.rc, 0);
        assert_int_equal(indexed(s->paths[0]), 0);
    }
    store_free(s);
    testing_rmdir(dir);
}

struct ending {
    struct store *s;
    const char *id;
    struct store_part part;
    pthread_barrier_t *start;
    int rc;
};

static void *end_upload(void *arg)
{
    struct ending *e = arg;
    pthread_barrier_wait(e->start);
    e->rc = testing_complete(e->s, "photos", "k", e->id, &e->part, 1, NULL);
    return NULL;
}

static void *end_bucket(void *arg)
{
    struct ending *e = arg;
    pthread_barrier_wait(e->start);
    e->rc = store_bucket_delete(e->s, "photos", NULL);
    return NULL;
}

/* Completions of one upload at one moment: one makes the object, the others learn that it is made, and none
 * gets a temporary error. With `deleted` the bucket is deleted at that moment as well: it is empty, or stays
 * for the object. */
static void end_at_once(struct store *s, bool deleted)
{
    pthread_barrier_t start;
    pthread_t threads[THREADS];
    struct ending e[THREADS];
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_put *put;
    struct store_info info;
    unsigned done = 0;
    assert_int_equal(store_upload_begin(s, "photos", "k", 1, NULL, id, NULL), 0);
    assert_int_equal(store_part_begin(s, "photos", "k", 1, id, 1, 1, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, "x", 1, NULL), 0);
    assert_int_equal(store_put_commit(put, NULL, &info, NULL), 0);
    pthread_barrier_init(&start, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        e[i] = (struct ending){.s = s, .id = id, .part = {.number = 1}, .start = &start};
        strcpy(e[i].part.etag, info.etag);
        assert_int_equal(
            pthread_create(&threads[i], NULL, deleted && i == 0 ? end_bucket : end_upload, &e[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (deleted && i == 0)
            continue;
        done += e[i].rc == 0;
        assert_true(e[i].rc == 0 || e[i].rc == STORE_NO_UPLOAD || (deleted && e[i].rc == STORE_NO_BUCKET));
    }
    pthread_barrier_destroy(&start);
    assert_int_equal(done, deleted ? e[0].rc == STORE_NOT_EMPTY : 1);
    assert_int_equal(store_delete(s, "photos", "k", 1, 0, NULL), done ? 0 : STORE_NO_BUCKET);
    assert_int_equal(indexed(s->paths[0]), 0);
}

static void test_ended_at_once(void **state)
{
    char dir[256];
    testing_mkdir_fast(dir);
    struct store *s = testing_open1(dir);
    assert_non_null(s);
    for (unsigned round = 0; round < 100; round++) {
        int rc = store_bucket_create(s, "photos", 0, NULL, NULL);
        assert_true(rc == 0 || rc == STORE_EXISTS);
        end_at_once(s, round % 2);
    }
    store_free(s);
    testing_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed), /* forks: before there are threads */
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_one_wins),
        cmocka_unit_test(test_bucket_takes_an_upload_that_begins),
        cmocka_unit_test(test_ended_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
