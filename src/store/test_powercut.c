/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts: a day in the life of a store is recorded call by call, with several operations of one key in flight, then cut at hundreds of places with any
 * subset of what was not flushed. After each, every acknowledged change is there, whole, and nothing that was never asked for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/testing.h"
#include "store/testing_io.h"
#include "store/internal.h"
#include "store/testing.h"

enum { KEYS = 12, OPS_MAX = 2048 };
#define GONE UINT64_MAX

struct op {
    unsigned key;
    char name[16];
    uint64_t seed; /* of its bytes; GONE: deleted */
    size_t bytes;
    uint64_t from, until; /* events before it began, and when it was acknowledged (UINT64_MAX: refused) */
    char upload[STORE_UPLOAD_ID_TEXT]; /* "": in one piece */
};

struct day {
    char dir[256];
    struct store_fault *fault;
    struct store *s;
    struct op ops[OPS_MAX];
    unsigned n;
    uint64_t rng, born;             /* the bucket's acknowledgement */
    unsigned starts, rebuilt, torn; /* after cuts */
};

static const char *key_name(unsigned key)
{
    static char text[16];
    snprintf(text, sizeof(text), "key-%u", key);
    return text;
}

static struct op *begin(struct day *d, unsigned key, uint64_t seed, size_t bytes)
{
    assert_true(d->n < OPS_MAX);
    struct op *o = &d->ops[d->n++];
    *o = (struct op){.key = key, .seed = seed, .bytes = bytes, .from = store_fault_events(d->fault)};
    o->until = UINT64_MAX;
    strcpy(o->name, key_name(key));
    return o;
}

static void acknowledged(struct day *d, struct op *o)
{
    o->until = store_fault_events(d->fault);
}

static void day_open(struct day *d)
{
    const char *dir = d->dir;
    d->s = testing_open(&dir, 1, store_fault_io(d->fault));
    assert_non_null(d->s);
}

static void do_put(struct day *d)
{
    static const size_t sizes[] = {0, 1, 100, 4000, 5000, 20000, 70000};
    uint64_t seed = rng_next(&d->rng);
    struct op *o =
        begin(d, (unsigned)rng_below(&d->rng, KEYS), seed, sizes[rng_below(&d->rng, ARRAY_LEN(sizes))]);
    assert_int_equal(testing_put(d->s, "photos", key_name(o->key), seed, o->bytes), 0);
    acknowledged(d, o);
}

static void do_delete(struct day *d)
{
    struct op *o = begin(d, (unsigned)rng_below(&d->rng, KEYS), GONE, 0);
    const char *key = key_name(o->key);
    int rc = store_delete(d->s, "photos", key, strlen(key), 0, NULL);
    assert_true(rc == 0 || rc == LEAT_NOT_FOUND);
    acknowledged(d, o);
}

static void do_abort(struct day *d)
{
    struct store_put *put;
    assert_int_equal(store_put_begin(d->s, "photos", "key-0", 5, 10, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, "01234", 5, NULL), 0);
    store_put_abort(put);
}

static void do_multipart(struct day *d)
{
    uint64_t seed = rng_next(&d->rng);
    struct op *o = begin(d, (unsigned)rng_below(&d->rng, KEYS), seed, 40000);
    const char *key = key_name(o->key);
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_part parts[3] = {{.number = 1}, {.number = 2}, {.number = 3}};
    uint8_t data[40000];
    testing_fill(data, sizeof(data), seed);
    assert_int_equal(store_upload_begin(d->s, "photos", key, strlen(key), NULL, id, NULL), 0);
    for (unsigned i = 0; i < 3; i++) {
        static const size_t at[4] = {0, 10000, 33333, 40000};
        struct store_put *put;
        struct store_info info;
        assert_int_equal(
            store_part_begin(d->s, "photos", key, strlen(key), id, i + 1, at[i + 1] - at[i], 0, &put, NULL),
            0);
        assert_int_equal(store_put_write(put, data + at[i], at[i + 1] - at[i], NULL), 0);
        assert_int_equal(store_put_commit(put, NULL, &info, NULL), 0);
        strcpy(parts[i].etag, info.etag);
    }
    assert_int_equal(testing_complete(d->s, "photos", key, id, parts, 3, NULL), 0);
    acknowledged(d, o);
    strcpy(o->upload, id);
}

static void do_many(struct day *d)
{
    unsigned first = d->n;
    struct store_key keys[3];
    char names[3][16];
    int codes[3];
    for (unsigned i = 0; i < 3; i++) {
        struct op *o = begin(d, (unsigned)((rng_next(&d->rng) / 3 * 3 + i) % KEYS), GONE, 0);
        strcpy(names[i], key_name(o->key));
        keys[i] = (struct store_key){names[i], strlen(names[i])};
    }
    assert_int_equal(store_delete_many(d->s, "photos", keys, 3, codes, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        acknowledged(d, &d->ops[first + i]);
}

/* Records over several pages that no thread waits for: they reach the disk in any order, or not at all. */
static void do_notes(struct day *d)
{
    uint32_t id;
    struct ikey k;
    const char *key = key_name((unsigned)rng_below(&d->rng, KEYS));
    assert_int_equal(store_bucket_find(d->s, "photos", &id, NULL, NULL), 0);
    ikey_set(&k, id, key, strlen(key));
    for (unsigned i = 0; i < 60; i++) {
        int rc = store_flag(d->s, &k, 0, 0, 0, "as the remote calls it", false, NULL);
        assert_true(rc == 0 || rc == LEAT_NOT_FOUND);
    }
}

struct in_flight {
    struct day *d;
    struct op *op;
    unsigned batch;
    atomic_uint *done;
};

static void *one_of_several(void *arg)
{
    struct in_flight *t = arg;
    const char *key = t->op->name;
    struct store_key keys[] = {{key, strlen(key)}};
    int code = 0, rc;
    if (t->op->seed != GONE)
        rc = testing_put(t->d->s, "photos", key, t->op->seed, t->op->bytes);
    else if (t->batch)
        rc = store_delete_many(t->d->s, "photos", keys, 1, &code, NULL);
    else
        rc = store_delete(t->d->s, "photos", key, strlen(key), 0, NULL);
    rc = rc ? rc : code;
    if (rc == 0 || rc == LEAT_NOT_FOUND)
        acknowledged(t->d, t->op);
    atomic_fetch_add(t->done, 1);
    return NULL;
}

/* Several operations of one key at the same time, the first of which waits for its flush. */
static void do_together(struct day *d)
{
    enum { THREADS = 4 };
    struct in_flight t[THREADS];
    pthread_t threads[THREADS];
    atomic_uint done = 0;
    unsigned key = (unsigned)rng_below(&d->rng, KEYS);
    for (unsigned i = 0; i < THREADS; i++) {
        uint64_t what = rng_below(&d->rng, 4), seed = rng_next(&d->rng);
        t[i] = (struct in_flight){
            .d = d, .op = begin(d, key, what < 2 ? GONE : seed, 3000), .batch = what == 1, .done = &done};
    }
    store_fault_hold(d->fault, "index/log");
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_of_several, &t[i]), 0);
    test_wait_until(store_fault_holds(d->fault) || atomic_load(&done) >= THREADS);
    test_pause_us(1000); /* for the others to answer too early */
    store_fault_release(d->fault);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&done), THREADS);
    for (unsigned i = 0; i < THREADS; i++)
        assert_true(t[i].op->until != UINT64_MAX);
}

static void live(struct day *d, unsigned ops)
{
    for (unsigned i = 0; i < ops; i++) {
        uint64_t what = rng_below(&d->rng, 124);
        if (what >= 108)
            do_together(d);
        else if (what >= 100)
            do_notes(d);
        else if (what < 60)
            do_put(d);
        else if (what < 75)
            do_delete(d);
        else if (what < 80)
            do_abort(d);
        else if (what < 88)
            do_multipart(d);
        else if (what < 92)
            do_many(d);
        else if (what < 96)
            assert_int_equal(store_path_compact(d->s->paths[0]), 0);
        else {
            store_free(d->s);
            day_open(d);
        }
    }
}

static int setup(void **state)
{
    struct day *d = calloc(1, sizeof(*d));
    testing_mkdir_fast(d->dir);
    assert_int_equal(store_fault_new(d->dir, &d->fault), 0);
    d->rng = 42;
    day_open(d);
    assert_int_equal(store_bucket_create(d->s, "photos", 0, NULL, NULL), 0);
    d->born = store_fault_events(d->fault);
    live(d, 160);
    *state = d;
    return 0;
}

static int teardown(void **state)
{
    struct day *d = *state;
    store_free(d->s);
    store_fault_free(d->fault);
    testing_rmdir(d->dir);
    free(d);
    return 0;
}

static int seen_upload(void *user, const struct store_upload *u)
{
    return 0;
}

/* Was another operation of its key begun after this one had ended, and acknowledged before the cut? forgotten: deletions may be, and with one what the
 * operations before it did. */
static bool is_superseded(const struct day *d, const struct op *o, uint64_t cut, bool forgotten)
{
    bool superseded = false;
    for (const struct op *next = o + 1; next < d->ops + d->n && next->from < cut; next++) {
        if (next->key != o->key || next->from < o->until)
            continue;
        if (forgotten && next->seed == GONE)
            return false;
        superseded |= next->until <= cut;
    }
    return superseded;
}

/* Is it one of the states that the key may be in after a cut behind `cut` events? rebuilt: a deletion may be forgotten. */
static bool allowed(const struct day *d, struct store *s, unsigned key, uint64_t cut, bool rebuilt)
{
    bool maybe_gone = false, any = false;
    struct store_info info;
    int there = store_lookup(s, "photos", key_name(key), strlen(key_name(key)), &info, NULL);
    assert_true(there == 0 || there == LEAT_NOT_FOUND);
    bool good = false;
    for (unsigned i = 0; i < d->n && d->ops[i].from < cut; i++) {
        const struct op *o = &d->ops[i];
        if (o->key != key)
            continue;
        bool is = o->seed != GONE && there == 0 &&
                  testing_check(s, "photos", key_name(key), o->seed, o->bytes) == 0;
        any |= o->until <= cut;
        if (*o->upload && !rebuilt &&
            (o->until <= cut || (is && !s->paths[0]->rebuilt))) /* the object was there, the upload is not */
            assert_int_equal(store_upload_get(s, "photos", key_name(key), strlen(key_name(key)), o->upload,
                                              seen_upload, NULL, NULL),
                             STORE_NO_UPLOAD);
        maybe_gone |= o->seed == GONE && !is_superseded(d, o, cut, false);
        good |= is && !is_superseded(d, o, cut, rebuilt);
    }
    return there == 0 ? good : maybe_gone || !any; /* nothing was acknowledged yet */
}

static void explain(const struct day *d, struct store *s, unsigned key, uint64_t cut)
{
    struct store_info info = {0};
    int there = store_lookup(s, "photos", key_name(key), strlen(key_name(key)), &info, NULL);
    print_message("key-%u after a cut behind %llu events: %d, %llu bytes\n", key, (unsigned long long)cut,
                  there, (unsigned long long)info.bytes);
    for (unsigned i = 0; i < d->n && d->ops[i].from < cut; i++)
        if (d->ops[i].key == key)
            print_message("  from %llu until %lld: %s, %zu bytes: %d\n", (unsigned long long)d->ops[i].from,
                          (long long)d->ops[i].until, d->ops[i].seed == GONE ? "deleted" : "put",
                          d->ops[i].bytes,
                          testing_check(s, "photos", key_name(key), d->ops[i].seed, d->ops[i].bytes));
    fail();
}

static int count(void *user, const struct store_entry *e)
{
    ++*(unsigned *)user;
    return 0;
}

static void check_state(struct day *d, const char *dir, uint64_t cut, bool rebuilt)
{
    struct store *s = testing_open(&dir, 1, NULL);
    assert_non_null(s);
    assert_int_equal(s->paths[0]->failed, 0);
    d->starts++;
    d->rebuilt += s->paths[0]->rebuilt;
    d->torn += s->paths[0]->torn;
    bool bucket = store_bucket_get(s, "photos", NULL, NULL) == 0;
    assert_true(bucket || cut < d->born);
    if (bucket) {
        unsigned there = 0, listed = 0;
        struct store_list_spec all = {.max = 1000};
        for (unsigned key = 0; key < KEYS; key++) {
            struct store_info info;
            if (!allowed(d, s, key, cut, rebuilt))
                explain(d, s, key, cut);
            there += store_lookup(s, "photos", key_name(key), strlen(key_name(key)), &info, NULL) == 0;
        }
        assert_int_equal(store_list(s, "photos", &all, count, &listed, NULL, NULL), 0);
        assert_int_equal(listed, there);
        assert_int_equal(testing_put(s, "photos", "after", 5, 5000), 0);
        assert_int_equal(testing_check(s, "photos", "after", 5, 5000), 0);
    }
    store_free(s);
}

/* Nothing leaks: what lies in objects/ after a start is an object. */
static void check_no_strays(const char *dir)
{
    struct store *s = testing_open(&dir, 1, NULL);
    assert_non_null(s);
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(s, st);
    uint64_t wanted = st->paths[0].objects;
    free(st);
    pthread_rwlock_rdlock(&s->paths[0]->index.lock);
    wanted = s->paths[0]->index.objects; /* parts of uploads too */
    pthread_rwlock_unlock(&s->paths[0]->index.lock);
    store_free(s);
    assert_int_equal(testing_count_objects(dir), wanted);
}

/* The disk as a cut at this call leaves it, in a new folder. */
static void replay(const struct day *d, uint64_t cut, uint64_t seed, bool lose_index, char dir[256])
{
    testing_mkdir_fast(dir);
    assert_int_equal(store_fault_replay(d->fault, cut, seed, dir), 0);
    if (lose_index) {
        char index[300];
        snprintf(index, sizeof(index), "%s/index", dir);
        testing_rmdir(index);
    }
}

static void cut_at(struct day *d, uint64_t cut, uint64_t seed, bool lose_index)
{
    char dir[256];
    replay(d, cut, seed, lose_index, dir);
    check_state(d, dir, cut, lose_index);
    check_no_strays(dir);
    testing_rmdir(dir);
}

static void test_cuts(void **state)
{
    struct day *d = *state;
    uint64_t rng = 1, events = store_fault_events(d->fault);
    unsigned n = test_seeds(testing_rounds(400));
    for (unsigned i = 0; i < n; i++)
        cut_at(d, rng_below(&rng, events + 1), i, false);
    print_message("%u starts, %u of them with a log torn in the middle, %u rebuilt\n", d->starts, d->torn,
                  d->rebuilt);
    assert_true(d->torn > 0);
    assert_int_equal(d->rebuilt, 0); /* a start is quick after a cut at any moment */
}

/* Right behind each acknowledgement, with nothing but what was flushed: where promises are kept or not. */
static void test_cuts_at_promises(void **state)
{
    struct day *d = *state;
    for (unsigned i = 0; i<d->n; i += testing_rounds(2)> 1 ? 1 : test_seeds(2) < 2 ? 16 : 4)
        cut_at(d, d->ops[i].until, i % 3 ? 0 : i + 7, false);
    assert_int_equal(d->rebuilt, 0);
}

/* --- rot is no power cut ----------------------------------------------------------------------------------------------------- */

/* Of the record that the log, of one that was just begun, holds at `nth`. */
static void flip_record(struct testing_store *f, uint64_t number, unsigned nth)
{
    char name[PATH_FILE_MAX];
    off_t at = LOG_HEADER_BYTES;
    snprintf(name, sizeof(name), "%s/index/log.%016llx", f->dir, (unsigned long long)number);
    FILE *log = fopen(name, "r");
    assert_non_null(log);
    for (uint32_t bytes; nth > 0; nth--, at += bytes)
        assert_true(fseeko(log, at, SEEK_SET) == 0 && fread(&bytes, sizeof(bytes), 1, log) == 1);
    fclose(log);
    testing_flip(name, at + 30);
}

/* A log of their own for what is stored next. */
static uint64_t fresh_log(struct testing_store *f)
{
    assert_int_equal(store_path_compact(f->s->paths[0]), 0);
    return f->s->paths[0]->log.number;
}

static void kill_flip_start(struct testing_store *f, uint64_t number, unsigned nth)
{
    atomic_store(&f->s->paths[0]->failed, true); /* nothing is closed in order */
    store_free(TAKE_PTR(f->s));
    flip_record(f, number, nth);
    f->s = testing_open1(f->dir);
    assert_non_null(f->s);
}

/* Records: files made, "a", "b". */
static void test_rot_before_a_later_record(void **state)
{
    struct testing_store *f = *state;
    uint64_t number = fresh_log(f);
    assert_int_equal(testing_put(f->s, "photos", "a", 1, 100), 0);
    assert_int_equal(testing_put(f->s, "photos", "b", 2, 100), 0);
    kill_flip_start(f, number, 1);
    assert_true(f->s->paths[0]->rebuilt);
    assert_int_equal(testing_check(f->s, "photos", "a", 1, 100), 0);
    assert_int_equal(testing_check(f->s, "photos", "b", 2, 100), 0);
}

/* The last one has none behind it, unless there was time to say that it was flushed. */
static void test_rot_at_the_end(void **state)
{
    struct testing_store *f = *state;
    uint64_t number = fresh_log(f);
    assert_int_equal(testing_put(f->s, "photos", "b", 2, 100), 0);
    store_tick(f->s);
    kill_flip_start(f, number, 1);
    assert_true(f->s->paths[0]->rebuilt);
    assert_int_equal(testing_check(f->s, "photos", "b", 2, 100), 0);
}

static void *put_it(void *arg)
{
    struct testing_store *f = arg;
    return (void *)(intptr_t)testing_put(f->s, "photos", "it", 2, 100);
}

/* A deletion that came while the object was flushed, and before it was there, says nothing of it. Records: the deletion, "it", "b", "c". */
static void test_rot_after_a_deletion(void **state)
{
    struct testing_store *f = *state;
    struct store_fault *fault;
    pthread_t writer;
    void *rc;
    store_free(f->s);
    const char *dir = f->dir;
    assert_int_equal(store_fault_new(dir, &fault), 0);
    f->s = testing_open(&dir, 1, store_fault_io(fault));
    assert_non_null(f->s);
    assert_int_equal(testing_put(f->s, "photos", "it", 1, 100), 0);
    uint64_t number = fresh_log(f);
    store_fault_hold(fault, "objects/");
    assert_int_equal(pthread_create(&writer, NULL, put_it, f), 0);
    test_wait_until(store_fault_holds(fault));
    assert_int_equal(store_delete(f->s, "photos", "it", 2, 0, NULL), 0);
    store_fault_release(fault);
    pthread_join(writer, &rc);
    assert_null(rc);
    assert_int_equal(testing_check(f->s, "photos", "it", 2, 100), 0);
    assert_int_equal(testing_put(f->s, "photos", "b", 3, 100), 0);
    assert_int_equal(testing_put(f->s, "photos", "c", 4, 100), 0);
    kill_flip_start(f, number, 2);
    store_fault_free(fault);
    assert_true(f->s->paths[0]->rebuilt);
    assert_int_equal(testing_check(f->s, "photos", "it", 2, 100), 0);
    assert_int_equal(testing_check(f->s, "photos", "b", 3, 100), 0);
}

/* Files were made, and their record never came: they go, with what lies in them. */
static void test_files_of_a_lost_record(void **state)
{
    struct testing_store *f = *state;
    uint64_t number = fresh_log(f);
    assert_int_equal(testing_put(f->s, "photos", "a", 1, 100), 0);
    kill_flip_start(f, number, 0);
    assert_true(f->s->paths[0]->torn);
    assert_int_equal(testing_count_objects(f->dir), 0);
}

/* An idle store says it once. */
static void test_one_mark_is_enough(void **state)
{
    struct testing_store *f = *state;
    assert_int_equal(testing_put(f->s, "photos", "a", 1, 100), 0);
    store_tick(f->s);
    uint64_t end = f->s->paths[0]->log.end;
    store_tick(f->s);
    assert_int_equal(f->s->paths[0]->log.end, end);
}

/* And the index is lost too: all out of the trailers. Then deletions may be forgotten, objects not. */
static void test_cuts_without_index(void **state)
{
    struct day *d = *state;
    uint64_t rng = 2, events = store_fault_events(d->fault);
    for (unsigned i = 0; i < test_seeds(testing_rounds(80)); i++)
        cut_at(d, d->born + rng_below(&rng, events - d->born), i, true);
}

/* --- killed, started again, and then the power goes ------------------------------------------------------------------------ */

/* A process that dies leaves in the page cache what no flush has seen; the next one reads it there. */
static void die(struct day *d, struct store_fault *fault)
{
    store_fault_fail_from(fault, 1, -EIO); /* not one more word to the disk */
    store_free(TAKE_PTR(d->s));
    store_fault_fail(fault, 0, 0);
}

enum { FIRST_PUT, OVERWRITE, DELETE_IT, NEW_BUCKET, LAST_WORDS };

static int last_words(struct day *d, unsigned what)
{
    if (what == NEW_BUCKET)
        return store_bucket_create(d->s, "letters", 0, NULL, NULL);
    if (what == DELETE_IT)
        return store_delete(d->s, "photos", "it", 2, 0, NULL);
    return testing_put(d->s, "photos", "it", 2, 3000);
}

static void check_last_words(const struct day *d, unsigned what, int rc, unsigned nth, uint64_t cut,
                             uint64_t seed, bool lose_index)
{
    char dir[256];
    const char *path = dir;
    replay(d, cut, seed, lose_index, dir);
    struct store *s = testing_open(&path, 1, NULL);
    assert_non_null(s);
    const char *bucket = what == NEW_BUCKET ? "letters" : "photos";
    bool before = testing_check(s, "photos", "it", 1, 5000) == 0,
         after = testing_check(s, "photos", "it", 2, 3000) == 0;
    int there = testing_check(s, "photos", "it", 1, 5000);
    bool good =
        what == FIRST_PUT || what == DELETE_IT ? before || after || there == LEAT_NOT_FOUND : before || after;
    if (rc == 0 && (what == FIRST_PUT || what == OVERWRITE))
        good = after;
    if (cut == store_fault_events(d->fault))
        good &= testing_check(s, bucket, "later", 3, 100) == 0;
    if (!good)
        fail_msg("last words %u, call %u failed, cut %llu, seed %llu%s: before %d, after %d, later %d", what,
                 nth, (unsigned long long)cut, (unsigned long long)seed, lose_index ? ", no index" : "",
                 before, after, testing_check(s, bucket, "later", 3, 100));
    store_free(s);
    testing_rmdir(dir);
}

static bool die_at(unsigned what, unsigned nth, bool lose_index)
{
    struct day *d = calloc(1, sizeof(*d));
    testing_mkdir_fast(d->dir);
    assert_int_equal(store_fault_new(d->dir, &d->fault), 0);
    day_open(d);
    assert_int_equal(store_bucket_create(d->s, "photos", 0, NULL, NULL), 0);
    if (what != FIRST_PUT)
        assert_int_equal(testing_put(d->s, "photos", "it", 1, 5000), 0);
    store_fault_fail(d->fault, nth, -EIO);
    int rc = last_words(d, what);
    bool failed = store_fault_calls(d->fault) >= nth;
    die(d, d->fault);
    if (lose_index) { /* of the running system too: it is rebuilt out of what the page cache has */
        char index[300];
        snprintf(index, sizeof(index), "%s/index", d->dir);
        testing_rmdir(index);
        assert_int_equal(mkdir(index, 0700), 0);
    }
    uint64_t dead = store_fault_events(d->fault);
    day_open(d);
    uint64_t again = store_fault_events(d->fault);
    if (what == NEW_BUCKET && store_bucket_get(d->s, "letters", NULL, NULL) < 0)
        assert_int_equal(store_bucket_create(d->s, "letters", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(d->s, what == NEW_BUCKET ? "letters" : "photos", "later", 3, 100), 0);
    for (uint64_t seed = 0; seed < 12; seed += seed ? testing_rounds(2) > 1 ? 1 : 4 : 1)
        check_last_words(d, what, rc, nth, store_fault_events(d->fault), seed, lose_index);
    for (uint64_t cut = dead; cut<again; cut += testing_rounds(2)> 1 ? 1 : 3)
        check_last_words(d, what, rc, nth, cut, cut + 2, lose_index);
    teardown((void **)&d);
    return failed;
}

static void test_killed_then_cut(void **state)
{
    for (unsigned what = 0; what < LAST_WORDS; what++)
        for (unsigned nth = 1; die_at(what, nth, false); nth += nth > 8 || test_seeds(2) < 2 ? 5 : 1)
            assert_true(nth < 200);
}

static void test_killed_then_cut_without_index(void **state)
{
    for (unsigned nth = 1; die_at(OVERWRITE, nth, true); nth += test_seeds(2) < 2 ? 5 : 1)
        assert_true(nth < 200);
}

/* --- no room for zeros ahead of the log -------------------------------------------------------------------------------------- */

/* Records that went where no zeros were written are not zeroed when there is room again. */
static void test_zeros_ahead(void **state)
{
    struct day *d = calloc(1, sizeof(*d));
    testing_mkdir_fast(d->dir);
    assert_int_equal(store_fault_new(d->dir, &d->fault), 0);
    day_open(d);
    assert_int_equal(store_bucket_create(d->s, "photos", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(d->s, "photos", "it", 1, 10), 0);
    assert_int_equal(store_path_compact(d->s->paths[0]), 0);
    store_fault_capacity(d->fault, 8 * KIB);
    assert_int_equal(testing_put(d->s, "photos", "one", 2, 10), 0);
    assert_int_equal(testing_put(d->s, "photos", "two", 3, 10), 0);
    store_fault_capacity(d->fault, 0);
    uint64_t from = store_fault_events(d->fault);
    assert_int_equal(testing_put(d->s, "photos", "three", 4, 10), 0);
    for (uint64_t cut = from; cut <= store_fault_events(d->fault); cut++) {
        char dir[256];
        const char *path = dir;
        testing_mkdir_fast(dir);
        assert_int_equal(store_fault_replay(d->fault, cut, 1, dir), 0);
        struct store *s = testing_open(&path, 1, NULL);
        assert_non_null(s);
        assert_int_equal(testing_check(s, "photos", "it", 1, 10), 0);
        assert_int_equal(testing_check(s, "photos", "one", 2, 10), 0);
        assert_int_equal(testing_check(s, "photos", "two", 3, 10), 0);
        store_free(s);
        testing_rmdir(dir);
    }
    teardown((void **)&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_then_cut),
        cmocka_unit_test(test_killed_then_cut_without_index),
        cmocka_unit_test(test_zeros_ahead),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_cuts_at_promises),
        cmocka_unit_test(test_cuts_without_index),
        cmocka_unit_test_setup_teardown(test_rot_before_a_later_record, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_rot_at_the_end, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_rot_after_a_deletion, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_files_of_a_lost_record, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_one_mark_is_enough, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
