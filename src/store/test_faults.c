/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that fail, allocations that fail, disks that fill, bits that flip. After each: what was acknowledged is there. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "failalloc.h"
#include "store/testing_fault.h"

static int setup(void **state)
{
    return setup_with(state, "old", 5000);
}

static uint64_t bytes_in(struct fixture *f)
{
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    uint64_t bytes = st->paths[0].bytes;
    assert_int_equal(st->buffer_bytes, 0);
    free(st);
    return bytes;
}

/* What is done while calls fail: each step says 0 or why not. */
static int put_new(struct store *s)
{
    return testing_put(s, "photos", "new", 2, 300000);
}

static int put_over(struct store *s)
{
    return testing_put(s, "photos", "old", 3, 100);
}

static int delete_old(struct store *s)
{
    return store_delete(s, "photos", "old", 3, 0, NULL);
}

static int compact(struct store *s)
{
    return store_path_compact(s->paths[0]);
}

static int upload(struct store *s, char id[STORE_UPLOAD_ID_TEXT], struct store_part *ret_part)
{
    struct store_put *put;
    struct store_info info;
    uint8_t data[1000];
    testing_fill(data, sizeof(data), 4);
    int rc = store_upload_begin(s, "photos", "parts", 5, NULL, id, NULL);
    if (rc == 0)
        rc = store_part_begin(s, "photos", "parts", 5, id, 1, STORE_UNKNOWN_BYTES, 0, &put, NULL);
    if (rc < 0)
        return rc;
    rc = store_put_write(put, data, sizeof(data), NULL);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    rc = store_put_commit(put, NULL, &info, NULL);
    *ret_part = (struct store_part){.number = 1};
    if (rc == 0)
        strcpy(ret_part->etag, info.etag);
    return rc;
}

static int multipart(struct store *s)
{
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_part part;
    int rc = upload(s, id, &part);
    return rc < 0 ? rc : testing_complete(s, "photos", "parts", id, &part, 1, NULL);
}

static int props(struct store *s)
{
    return store_bucket_set(s, "photos", 0, "{1}", NULL);
}

struct step {
    const char *name;
    int (*run)(struct store *s);
};
static const struct step steps[] = {
    {"put", put_new},     {"overwrite", put_over},  {"delete", delete_old},
    {"compact", compact}, {"multipart", multipart}, {"props", props},
};

/* Each key is as before the step or as after it; after it for sure when the step said 0. */
static void check_after(struct fixture *f, const struct step *step, int rc)
{
    struct store *s = f->s;
    bool old = testing_check(s, "photos", "old", 1, 5000) == 0,
         over = testing_check(s, "photos", "old", 3, 100) == 0;
    bool gone = testing_check(s, "photos", "old", 1, 5000) == LEAT_NOT_FOUND;
    if (step->run == put_over)
        assert_true(over || (rc < 0 && old));
    else if (step->run == delete_old)
        assert_true(gone || (rc < 0 && old));
    else
        assert_true(old);
    int there = testing_check(s, "photos", "new", 2, 300000);
    assert_true(there == 0 ? step->run == put_new : there == LEAT_NOT_FOUND);
    assert_true(there == 0 || step->run != put_new || rc < 0);
    there = testing_check(s, "photos", "parts", 4, 1000);
    assert_true(there == 0 ? step->run == multipart : there == LEAT_NOT_FOUND);
    assert_true(there == 0 || step->run != multipart || rc < 0);
}

static void each_call(void **state, int code)
{
    for (unsigned i = 0; i < ARRAY_LEN(steps); i++) {
        bool failed = true;
        for (unsigned nth = 1; failed; nth++) {
            teardown(state);
            setup(state);
            struct fixture *f = *state;
            store_fault_fail(f->fault, nth, code);
            int rc = steps[i].run(f->s);
            failed = store_fault_calls(f->fault) >= nth;
            store_fault_fail(f->fault, 0, 0);
            if (code == -ENOSPC) { /* no disk is left for want of room, except by a failed flush */
                assert_true(!f->s->paths[0]->failed || strstr(f->s->paths[0]->error, "flushed"));
                if (!f->s->paths[0]->failed)
                    check_after(f, &steps[i], rc);
            } else if (rc < 0) {
                assert_true(rc == STORE_UNAVAILABLE || rc == code);
            }
            reopen(f);
            check_after(f, &steps[i], rc);
            assert_int_equal(testing_put(f->s, "photos", "after", 9, 10), 0);
            bytes_in(f);
            assert_true(nth < 2000);
        }
    }
}

static void test_each_call_eio(void **state)
{
    each_call(state, -EIO);
}

static void test_each_call_enospc(void **state)
{
    each_call(state, -ENOSPC);
}

static void test_short_writes(void **state)
{
    struct fixture *f = *state;
    store_fault_short(f->fault, true);
    assert_int_equal(put_new(f->s), 0);
    assert_int_equal(multipart(f->s), 0);
    assert_int_equal(compact(f->s), 0);
    assert_int_equal(put_over(f->s), 0);
    store_fault_short(f->fault, false);
    for (unsigned round = 0; round < 2; round++) {
        assert_int_equal(testing_check(f->s, "photos", "new", 2, 300000), 0);
        assert_int_equal(testing_check(f->s, "photos", "parts", 4, 1000), 0);
        assert_int_equal(testing_check(f->s, "photos", "old", 3, 100), 0);
        reopen(f);
    }
}

/* A disk of 2 MiB: PUTs until it is full, then a deletion makes room again. */
static void test_full_disk(void **state)
{
    struct fixture *f = *state;
    char key[16];
    unsigned n = 0;
    int rc;
    store_fault_capacity(f->fault, 2 * MIB);
    do {
        snprintf(key, sizeof(key), "fill-%u", n++);
        rc = testing_put(f->s, "photos", key, n, 100000);
    } while (rc == 0 && n < 100);
    assert_int_equal(rc, LEAT_NO_SPACE);
    assert_true(n > 10);
    assert_int_equal(testing_count_objects(f->dir),
                     n + f->s->paths[0]->nspare); /* and "old"; the last one's file is gone */
    assert_false(f->s->paths[0]->failed);
    assert_int_equal(testing_check(f->s, "photos", "fill-0", 1, 100000), 0);
    assert_int_equal(store_delete(f->s, "photos", "fill-0", 6, 0, NULL), 0);
    assert_int_equal(store_delete(f->s, "photos", "fill-1", 6, 0, NULL), 0);
    assert_int_equal(testing_put(f->s, "photos", "again", 7, 100000), 0);
    reopen(f);
    for (unsigned i = 2; i + 1 < n; i++) {
        snprintf(key, sizeof(key), "fill-%u", i);
        assert_int_equal(testing_check(f->s, "photos", key, i + 1, 100000), 0);
    }
    assert_int_equal(testing_check(f->s, "photos", "again", 7, 100000), 0);
}

/* Clean objects of buckets with a remote go, those looked at lately last; others never. */
static void test_eviction(void **state)
{
    struct fixture *f = *state;
    char key[16];
    struct store_info info;
    assert_int_equal(store_bucket_create(f->s, "cache", STORE_BUCKET_REMOTE, NULL, NULL), 0);
    for (unsigned i = 0; i < 20; i++) {
        struct store_put *put;
        struct store_commit c = {.flags = i % 5 == 0 ? STORE_DIRTY : 0, .remote = "v1"};
        uint8_t data[10000];
        testing_fill(data, sizeof(data), i);
        snprintf(key, sizeof(key), "c-%02u", i);
        assert_int_equal(store_put_begin(f->s, "cache", key, 4, sizeof(data), 0, &put, NULL), 0);
        assert_int_equal(store_put_write(put, data, sizeof(data), NULL), 0);
        assert_int_equal(store_put_commit(put, &c, NULL, NULL), 0);
    }
    assert_int_equal(store_evict(f->s, "photos", "old", 3, NULL), LEAT_INVALID);
    assert_int_equal(store_evict(f->s, "cache", "c-00", 4, NULL), LEAT_BUSY);
    assert_int_equal(store_evict(f->s, "cache", "c-01", 4, NULL), 0);
    assert_int_equal(store_evict(f->s, "cache", "c-01", 4, NULL), LEAT_NOT_FOUND);
    reopen(f);
    f->s->capacity_bytes = 200000; /* about 205,000 are there */
    f->s->high_percent = 90;
    f->s->low_percent = 60;
    /* The hand has to pass once: at first all count as looked at. */
    assert_int_equal(store_path_compact(f->s->paths[0]), 0);
    for (unsigned i = 0; i < f->s->paths[0]->index.snapshot->count; i++)
        f->s->paths[0]->index.snapshot->clock[i] = 0;
    assert_int_equal(testing_check(f->s, "cache", "c-02", 2, 10000), 0);
    assert_int_equal(testing_check(f->s, "cache", "c-03", 3, 10000), 0);
    store_tick(f->s);
    assert_true(f->s->paths[0]->index.bytes <= 120000);
    assert_int_equal(testing_check(f->s, "photos", "old", 1, 5000), 0);
    for (unsigned i = 0; i < 20; i += 5) {
        snprintf(key, sizeof(key), "c-%02u", i);
        assert_int_equal(testing_check(f->s, "cache", key, i, 10000), 0);
    }
    assert_int_equal(testing_check(f->s, "cache", "c-02", 2, 10000), 0);
    assert_int_equal(testing_check(f->s, "cache", "c-03", 3, 10000), 0);
    assert_int_equal(testing_check(f->s, "cache", "c-04", 4, 10000), LEAT_NOT_FOUND);
    /* What the remote has got by now may go as well; the rest is in the way for ever. */
    assert_int_equal(store_lookup(f->s, "cache", "c-05", 4, &info, NULL), 0);
    assert_int_equal(store_mark_clean(f->s, "cache", "c-05", 4, info.seq, 0, "v2", NULL), 0);
    f->s->capacity_bytes = 1000;
    store_tick(f->s);
    assert_int_equal(testing_check(f->s, "cache", "c-05", 5, 10000), LEAT_NOT_FOUND);
    assert_int_equal(testing_check(f->s, "cache", "c-02", 2, 10000), LEAT_NOT_FOUND);
    assert_int_equal(testing_check(f->s, "cache", "c-00", 0, 10000), 0);
    assert_int_equal(testing_check(f->s, "cache", "c-10", 10, 10000), 0);
    assert_int_equal(testing_check(f->s, "photos", "old", 1, 5000), 0);
    assert_int_equal(testing_put(f->s, "photos", "more", 1, 5000), LEAT_NO_SPACE);
}

/* A deletion of a bucket that fails half-way: what is stored in it afterwards is found after the next start. */
static void test_bucket_half_deleted(void **state)
{
    bool failed = true;
    for (unsigned nth = 1; failed; nth++) {
        teardown(state);
        setup(state);
        struct fixture *f = *state;
        assert_int_equal(store_bucket_create(f->s, "empty", 0, NULL, NULL), 0);
        store_fault_fail(f->fault, nth, -EIO);
        int rc = store_bucket_delete(f->s, "empty", NULL);
        failed = store_fault_calls(f->fault) >= nth;
        store_fault_fail(f->fault, 0, 0);
        int put = testing_put(f->s, "empty", "k", 1, 100);
        assert_true(rc < 0 || put == STORE_NO_BUCKET);
        reopen(f);
        if (put == 0)
            assert_int_equal(testing_check(f->s, "empty", "k", 1, 100), 0);
    }
}

/* An older version on another disk: either all of the key is deleted, or the deletion says that it was not. */
static void test_older_version_stays(void **state)
{
    struct fixture *f = *state;
    bool failed = true;
    for (unsigned nth = 1; failed; nth++) {
        char dirs[2][300];
        const char *paths[2] = {dirs[0], dirs[1]};
        struct store_info info;
        for (unsigned i = 0; i < 2; i++)
            snprintf(dirs[i], sizeof(dirs[i]), "%s/two-%u-%u", f->dir, nth, i);
        struct store *s = testing_open(paths, 2, store_fault_io(f->fault));
        assert_non_null(s);
        assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
        for (unsigned i = 0; i < 2; i++) {
            s->paths[i]->failed = true; /* away for a moment */
            assert_int_equal(testing_put(s, "photos", "k", i, 100), 0);
            s->paths[i]->failed = false;
        }
        store_fault_fail(f->fault, nth, -ENOSPC);
        int rc = store_delete(s, "photos", "k", 1, 0, NULL);
        failed = store_fault_calls(f->fault) >= nth;
        store_fault_fail(f->fault, 0, 0);
        if (rc == 0)
            assert_int_equal(store_lookup(s, "photos", "k", 1, &info, NULL), LEAT_NOT_FOUND);
        store_free(s);
    }
}

/* --- bits ---------------------------------------------------------------------------------------------------------------- */

static void test_flipped_bits(void **state)
{
    struct fixture *f = *state;
    char name[PATH_FILE_MAX];
    struct leat_error err;
    struct store_obj *obj;
    const size_t bytes = 3 * MIB + 1000;
    assert_int_equal(testing_put(f->s, "photos", "large", 5, bytes), 0);
    testing_object_file(f->s, "photos", "old", name, sizeof(name));
    testing_flip(name, 4999);
    assert_int_equal(store_get(f->s, "photos", "old", 3, &obj, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "photos/old"));
    testing_object_file(f->s, "photos", "large", name, sizeof(name));
    testing_flip(name, 2 * MIB + 7);
    assert_int_equal(store_get(f->s, "photos", "large", 5, &obj, &err), 0);
    assert_int_equal(store_obj_check(f->s, obj, MIB, MIB, &err), 0);
    assert_true(store_obj_checked(obj, MIB, MIB));
    assert_false(store_obj_checked(obj, MIB, MIB + 1));
    uint8_t byte;
    assert_int_equal(store_obj_read(f->s, obj, 2 * MIB - 1, &byte, 1, &err), 0);
    assert_int_equal(store_obj_read(f->s, obj, 2 * MIB, &byte, 1, &err), LEAT_CORRUPT);
    assert_non_null(strstr(err.message, "block 2 "));
    store_obj_unref(obj);
    for (unsigned round = 0; round < 2; round++) { /* and it is remembered */
        assert_int_equal(store_get(f->s, "photos", "large", 5, &obj, &err), LEAT_CORRUPT);
        assert_int_equal(store_get_cached(f->s, "photos", "large", 5, &obj, &err), LEAT_CORRUPT);
        assert_int_equal(store_get(f->s, "photos", "old", 3, &obj, &err), LEAT_CORRUPT);
        reopen(f);
    }
    /* Stored again, it is whole. */
    assert_int_equal(testing_put(f->s, "photos", "large", 6, 100), 0);
    assert_int_equal(testing_check(f->s, "photos", "large", 6, 100), 0);
    /* In the trailer; a file that is shorter, or gone. */
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(testing_put(f->s, "photos", "k", 7, 4000), 0);
        testing_object_file(f->s, "photos", "k", name, sizeof(name));
        if (i == 0)
            testing_flip(name, 4000 + 30);
        else
            assert_int_equal(i == 1 ? truncate(name, 3000) : unlink(name), 0);
        assert_int_equal(store_get(f->s, "photos", "k", 1, &obj, &err), LEAT_CORRUPT);
    }
    assert_false(f->s->paths[0]->failed);
}

/* One bad sector costs one object, however often it is asked for; a disk of which nothing can be read is left. */
static void test_unreadable_files(void **state)
{
    struct fixture *f = *state;
    char key[16], name[PATH_FILE_MAX];
    struct leat_error err;
    struct store_obj *obj;
    struct path *p = f->s->paths[0];
    for (unsigned i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k-%02u", i);
        assert_int_equal(testing_put(f->s, "photos", key, i, 3000), 0);
    }
    testing_object_file(f->s, "photos", "k-07", name, sizeof(name));
    store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
    for (unsigned i = 0; i < 3 * UNREADABLE_MAX; i++) {
        assert_int_equal(store_get(f->s, "photos", "k-07", 4, &obj, &err), STORE_UNAVAILABLE);
        assert_non_null(strstr(err.message, "photos/k-07 cannot be read"));
    }
    assert_false(p->failed);
    assert_int_equal(p->errors, 3 * UNREADABLE_MAX);
    assert_int_equal(testing_check(f->s, "photos", "k-08", 8, 3000), 0);
    assert_int_equal(testing_put(f->s, "photos", "k-20", 20, 3000), 0);
    /* It was a cable: nothing is held against the object. */
    store_fault_unreadable(f->fault, NULL, 0);
    assert_int_equal(testing_check(f->s, "photos", "k-07", 7, 3000), 0);
    reopen(f);
    p = f->s->paths[0];
    /* One that can be read between them: they were not in a row. */
    for (unsigned i = 0; i < 15; i++) {
        store_fault_unreadable(f->fault, i == 10 ? NULL : "", -EIO);
        snprintf(key, sizeof(key), "k-%02u", i);
        assert_int_equal(testing_check(f->s, "photos", key, i, 3000), i == 10 ? 0 : STORE_UNAVAILABLE);
    }
    for (unsigned i = 0; i < UNREADABLE_MAX; i++) {
        assert_false(p->failed);
        snprintf(key, sizeof(key), "k-%02u", i < 10 ? i : i + 1);
        assert_int_equal(testing_check(f->s, "photos", key, i, 3000), STORE_UNAVAILABLE);
    }
    assert_true(p->failed);
    assert_non_null(strstr(p->error, "16 objects in a row"));
    store_fault_unreadable(f->fault, NULL, 0);
    reopen(f);
    assert_int_equal(testing_check(f->s, "photos", "k-07", 7, 3000), 0);
    /* The index is rebuilt from the trailers, and that one cannot be read: it alone is missed. */
    testing_object_file(f->s, "photos", "k-07", name, sizeof(name));
    store_free(TAKE_PTR(f->s));
    char index[300], aside[PATH_FILE_MAX];
    snprintf(index, sizeof(index), "%s/index", f->dir);
    snprintf(aside, sizeof(aside), "%s/damaged%s", f->dir, strrchr(name, '/'));
    testing_rmdir(index);
    store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
    reopen(f);
    for (unsigned i = 0; i <= 20; i++) {
        snprintf(key, sizeof(key), "k-%02u", i);
        assert_int_equal(testing_check(f->s, "photos", key, i, 3000), i == 7 ? LEAT_NOT_FOUND : 0);
    }
    assert_int_equal(access(aside, F_OK), 0);
}

/* Every byte of the log and of the snapshot, now and then: the index comes out of the trailers, or of what is left. */
static void test_flipped_index(void **state)
{
    struct fixture *f = *state;
    char key[16], name[PATH_FILE_MAX];
    for (unsigned i = 0; i < 5; i++) {
        snprintf(key, sizeof(key), "k-%u", i);
        assert_int_equal(testing_put(f->s, "photos", key, i, 1000), 0);
        if (i == 2)
            assert_int_equal(compact(f->s), 0);
    }
    for (unsigned round = 0; round < testing_rounds(60); round++) {
        struct path *p = f->s->paths[0];
        unsigned long long snapshot = p->snapshot_number, log = p->log.number;
        store_free(f->s);
        if (round % 2)
            snprintf(name, sizeof(name), "%s/index/log.%016llx", f->dir, round % 4 == 1 ? snapshot : log);
        else
            snprintf(name, sizeof(name), "%s/index/snapshot.%016llx", f->dir, snapshot);
        struct stat st;
        assert_int_equal(stat(name, &st), 0);
        testing_flip(name, (off_t)(round * 37 % MIN((uint64_t)st.st_size, 500u)));
        f->s = testing_open(&f->path, 1, store_fault_io(f->fault));
        assert_non_null(f->s);
        for (unsigned i = 0; i < 5; i++) {
            snprintf(key, sizeof(key), "k-%u", i);
            assert_int_equal(testing_check(f->s, "photos", key, i, 1000), 0);
        }
        assert_int_equal(testing_check(f->s, "photos", "old", 1, 5000), 0);
        if (round % 8 == 0)
            assert_int_equal(compact(f->s), 0);
    }
}

/* --- allocations --------------------------------------------------------------------------------------------------------- */

static int all_steps(void *ctx)
{
    struct fixture *f = ctx;
    struct store_config c = {.paths = &f->path, .npaths = 1, .no_background = true, .reserve_bytes = 1};
    struct store *s;
    int rc = store_new(&c, &s, NULL);
    if (rc < 0)
        return rc;
    rc = store_bucket_create(s, "photos", 0, NULL, NULL);
    for (unsigned i = 0; i < ARRAY_LEN(steps) && rc == 0; i++)
        if (steps[i].run != delete_old)
            rc = steps[i].run(s);
    if (rc == 0) {
        struct store_obj *obj;
        rc = store_get(s, "photos", "new", 3, &obj, NULL);
        if (rc == 0) {
            rc = store_obj_check(s, obj, 0, 300000, NULL);
            store_obj_unref(obj);
        }
    }
    store_free(s);
    return rc;
}

/* So that a loop's thread may begin it: whatever happens to the disk is the commit's to say, and costs the client's bytes only then. */
static void test_small_put_waits_for_the_commit(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t bytes;
        bool small;
    } cases[] = {{0, true}, {5000, true}, {STORE_PUT_SMALL, true}, {STORE_PUT_SMALL + 1, false}};
    uint8_t *data = malloc(STORE_PUT_SMALL + 1);
    testing_fill(data, STORE_PUT_SMALL + 1, 9);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct store_put *put;
        reopen(f); /* no spare files */
        store_fault_fail_from(f->fault, 1, -ENOSPC);
        int rc = store_put_begin(f->s, "photos", "new", 3, cases[i].bytes, 0, &put, NULL);
        assert_int_equal(rc, cases[i].small ? 0 : LEAT_NO_SPACE);
        if (rc == 0) {
            assert_int_equal(store_put_write(put, data, cases[i].bytes, NULL), 0);
            assert_int_equal(store_fault_calls(f->fault), 0);
            assert_int_equal(store_put_commit(put, NULL, NULL, NULL), LEAT_NO_SPACE);
        }
        store_fault_fail(f->fault, 0, 0);
        assert_int_equal(testing_check(f->s, "photos", "new", 9, cases[i].bytes), LEAT_NOT_FOUND);
        assert_int_equal(testing_put(f->s, "photos", "old", i + 10, 5000), 0); /* the path is in order */
    }
    free(data);
}

/* A large object: while a thread writes the one buffer, the other is filled. If any of the calls fails, the
 * object is not reported as stored. */
#define LARGE_PUT (3 * MIB + 4321) /* each buffer of 1 MiB twice */
static int put_large(struct store *s)
{
    s->direct_bytes = MIB;
    return testing_put(s, "photos", "large", 20, LARGE_PUT);
}

static void test_large_puts(void **state)
{
    struct fixture *f = *state;
    const int codes[] = {-ENOSPC, -EINVAL, -EIO};
    store_fault_no_bytes(f->fault);
    for (unsigned i = 0; i < ARRAY_LEN(codes); i++) {
        bool refused = true;
        for (uint64_t nth = 1; refused; nth++) {
            store_fault_fail(f->fault, nth, codes[i]);
            int rc = put_large(f->s);
            refused = store_fault_calls(f->fault) >= nth;
            store_fault_fail(f->fault, 0, 0);
            bytes_in(f); /* all buffers are back */
            assert_int_equal(atomic_load(&f->s->writers), 0);
            if (rc < 0)
                reopen(f);
            int there = testing_check(f->s, "photos", "large", 20, LARGE_PUT);
            assert_true(there == 0 || (rc < 0 && there == LEAT_NOT_FOUND));
            assert_int_equal(store_delete(f->s, "photos", "large", 5, 0, NULL),
                             there == 0 ? 0 : LEAT_NOT_FOUND);
            assert_true(refused || rc == 0);
        }
    }
    store_fault_short(f->fault, true);
    assert_int_equal(put_large(f->s), 0);
    store_fault_short(f->fault, false);
    assert_int_equal(testing_check(f->s, "photos", "large", 20, LARGE_PUT), 0);
}

static void test_allocations(void **state)
{
    struct fixture *f = *state;
    store_free(TAKE_PTR(f->s));
    /* Not failalloc_run: calls that can do without (removing parts of a completed upload) may return 0. */
    unsigned nth = 1;
    for (bool refused = true; refused; nth++) {
        testing_rmdir(f->dir); /* what was left of the run before would need more of them */
        size_t live = failalloc_live();
        failalloc_arm(nth);
        int rc = all_steps(f);
        refused = failalloc_disarm() >= nth && nth < 1000;
        if ((rc != 0 && rc != -ENOMEM) || failalloc_live() != live)
            fail_msg("allocation %u: %d, %zu blocks are left", nth, rc, failalloc_live() - live);
    }
    assert_true(nth > 50 && nth < 1000);
    f->s = testing_open(&f->path, 1, store_fault_io(f->fault));
    assert_non_null(f->s);
    assert_int_equal(testing_check(f->s, "photos", "old", 3, 100), 0);
    assert_int_equal(testing_check(f->s, "photos", "new", 2, 300000), 0);
    assert_int_equal(testing_check(f->s, "photos", "parts", 4, 1000), 0);
}

static int count_part(void *user, const struct store_part *part)
{
    (void)part;
    ++*(unsigned *)user;
    return 0;
}

/* What was completed stays so, also where its parts could not be removed, and a snapshot came before the start that does it. */
static void test_completed_and_compacted(void **state)
{
    struct fixture *f = *state;
    bool all = false;
    for (uint64_t nth = 1; !all; nth++) {
        char id[STORE_UPLOAD_ID_TEXT];
        struct store_part part;
        assert_int_equal(upload(f->s, id, &part), 0);
        store_fault_fail(f->fault, nth, -ENOSPC);
        int rc = testing_complete(f->s, "photos", "parts", id, &part, 1, NULL);
        all = store_fault_calls(f->fault) < nth;
        store_fault_fail(f->fault, 0, 0);
        if (rc == 0 && !f->s->paths[0]->failed)
            assert_int_equal(compact(f->s), 0);
        atomic_store(&f->s->paths[0]->failed, true); /* nothing is closed in order */
        reopen(f);
        int gone = store_upload_abort(f->s, "photos", "parts", 5, id, NULL);
        if (rc == 0) {
            assert_int_equal(gone, STORE_NO_UPLOAD);
            assert_int_equal(testing_check(f->s, "photos", "parts", 4, 1000), 0);
        }
    }
}

/* An upload whose record cannot be read keeps its parts, and costs the others nothing. */
static void test_unreadable_upload(void **state)
{
    struct fixture *f = *state;
    char ids[3][STORE_UPLOAD_ID_TEXT], name[PATH_FILE_MAX];
    struct store_put *put;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(store_upload_begin(f->s, "photos", "k", 1, NULL, ids[i], NULL), 0);
        assert_int_equal(store_part_begin(f->s, "photos", "k", 1, ids[i], 1, 4, 0, &put, NULL), 0);
        assert_int_equal(store_put_write(put, "part", 4, NULL), 0);
        assert_int_equal(store_put_commit(put, NULL, NULL, NULL), 0);
    }
    for (unsigned bad = 0; bad < 3; bad++) {
        struct ikey k;
        struct found found;
        uint8_t id[16];
        uint32_t bucket;
        assert_int_equal(store_bucket_find(f->s, "photos", &bucket, NULL, NULL), 0);
        assert_true(store_upload_id_parse(ids[bad], id));
        store_upload_key(bucket, id, 0, &k);
        assert_int_equal(store_find(f->s, &k, false, &found), 0);
        store_path_file_name(found.path, found.value.file, name);
        store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
        reopen(f);
        for (unsigned i = 0; i < 3; i++) {
            unsigned n = 0;
            assert_int_equal(
                store_part_list(f->s, "photos", "k", 1, ids[i], 0, 9, count_part, &n, NULL, NULL),
                i == bad ? STORE_NO_UPLOAD : 0);
            assert_int_equal(n, i != bad);
        }
        store_fault_unreadable(f->fault, NULL, 0);
        reopen(f);
    }
    for (unsigned i = 0; i < 3; i++) {
        unsigned n = 0;
        assert_int_equal(store_part_list(f->s, "photos", "k", 1, ids[i], 0, 9, count_part, &n, NULL, NULL),
                         0);
        assert_int_equal(n, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_call_eio, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_call_enospc, setup, teardown),
        cmocka_unit_test_setup_teardown(test_short_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bucket_half_deleted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_older_version_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flipped_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_completed_and_compacted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable_upload, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flipped_index, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_put_waits_for_the_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_puts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_allocations, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
