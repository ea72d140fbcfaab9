/* SPDX-License-Identifier: Apache-2.0 */
/* Several paths: those that fail, or are left out; disks of different size, folders of one disk, stores from before paths had weights. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/rng.h"
#include "store/internal.h"
#include "store/testing.h"

enum { KEYS = 600 };

/* File systems of so many bytes, by the last character of a path's name: "0" is the first. */
static uint64_t totals[3], used[3];
/* So many are asked how much is free before `meanwhile` happens, once. */
static unsigned asked_before;
static void (*meanwhile)(void);

static int space(const struct store_io *io, const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    unsigned i = (unsigned)(path[strlen(path) - 1] - '0');
    if (meanwhile && asked_before-- == 0)
        TAKE_PTR(meanwhile)();
    *ret_total = totals[i];
    *ret_free = totals[i] - used[i];
    return 0;
}

struct fixture {
    char dir[256], dirs[3][300];
    const char *paths[3];
    struct store_io io;
    struct store *s;
};

static void reopen(struct fixture *f, unsigned n)
{
    store_free(f->s);
    f->s = testing_open(f->paths, n, &f->io);
    assert_non_null(f->s);
    for (unsigned i = 0; i < n; i++)
        f->s->paths[i]->device = i + 1; /* each a disk of its own, as far as the store can tell */
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    testing_mkdir_fast(f->dir);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(f->dirs[i], sizeof(f->dirs[i]), "%s/disk-%u", f->dir, i);
        f->paths[i] = f->dirs[i];
        totals[i] = (i == 1 ? 900 : 300) * GIB;
        used[i] = 0;
    }
    f->io = store_io_real;
    f->io.space = space;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    store_free(f->s);
    testing_rmdir(f->dir);
    free(f);
    return 0;
}

static const char *key_of(unsigned i)
{
    static char key[16];
    snprintf(key, sizeof(key), "k-%03u", i);
    return key;
}

/* A bucket that a path did not see made is known by it after the next start with both: it may be all that is left then. */
static void test_buckets_of_a_path_that_joins(void **state)
{
    struct fixture *f = *state;
    struct leat_error err = {0};
    char name[PATH_FILE_MAX + 32];
    reopen(f, 1);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, "{\"a\": 1}", NULL), 0);
    assert_int_equal(store_bucket_create(f->s, "gone", 0, NULL, NULL), 0);
    reopen(f, 2);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(testing_put(f->s, "photos", key_of(i), i, 100 + i), 0);
    store_path_fail(f->s->paths[1], "pulled out by a test");
    assert_int_equal(store_bucket_delete(f->s, "gone", NULL),
                     0); /* a mark, of which the second hears at the next start */
    reopen(f, 2);
    store_free(TAKE_PTR(f->s));
    snprintf(name, sizeof(name), "%s.away", f->paths[0]);
    assert_int_equal(rename(f->paths[0], name), 0);
    reopen(f, 2);
    unsigned there = 0;
    for (unsigned i = 0; i < 20; i++)
        there += testing_check(f->s, "photos", key_of(i), i, 100 + i) == 0;
    assert_true(there > 0);
    struct store_bucket b;
    assert_int_equal(store_bucket_get(f->s, "photos", &b, NULL), 0);
    assert_string_equal(b.props, "{\"a\": 1}");
    store_bucket_fini(&b);
    assert_int_equal(store_bucket_get(f->s, "gone", NULL, NULL), STORE_NO_BUCKET);
    /* A bucket of its name, with objects, may be on the path that is missing. */
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, &err), STORE_UNAVAILABLE);
    assert_non_null(strstr(err.message, "may have a bucket 'other'"));
    store_free(TAKE_PTR(f->s));
    testing_rmdir(f->paths[0]);
    assert_int_equal(rename(name, f->paths[0]), 0);
    reopen(f, 2);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(testing_check(f->s, "photos", key_of(i), i, 100 + i), 0);
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), 0);
}

static bool full;                                /* the second disk */
static const char *full_dir = "disk-1/buckets/"; /* or another */
static int open_unless_full(const struct store_io *io, const char *path, int flags, mode_t mode)
{
    return full && (flags & O_CREAT) && strstr(path, full_dir) ? -ENOSPC
                                                               : store_io_real.open(io, path, flags, mode);
}

/* What was refused for want of room on one path is not in force after the next start, either, though others had taken it. */
static void test_a_change_that_is_refused(void **state)
{
    struct fixture *f = *state;
    struct store_bucket b;
    uint64_t remote_id;
    f->io.open = open_unless_full;
    reopen(f, 2);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, "{\"a\": 1}", NULL), 0);
    for (unsigned i = 0; i < 2; i++) { /* the version in force continues from what was taken back */
        full = true;
        assert_int_equal(
            store_bucket_remote(f->s, "photos", 0, STORE_REMOTE_OTHER, "{\"a\": 2}", &remote_id, NULL),
            LEAT_NO_SPACE);
        assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), LEAT_NO_SPACE);
        full = false;
        reopen(f, 2);
        assert_int_equal(store_bucket_get(f->s, "other", NULL, NULL), STORE_NO_BUCKET);
        assert_int_equal(store_bucket_get(f->s, "photos", &b, NULL), 0);
        assert_string_equal(b.props, "{\"a\": 1}");
        assert_int_equal(b.flags, 0);
        store_bucket_fini(&b);
    }
    assert_int_equal(store_bucket_set(f->s, "photos", 0, "{\"a\": 3}", NULL), 0);
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), 0);
    reopen(f, 2);
    assert_int_equal(store_bucket_get(f->s, "photos", &b, NULL), 0);
    assert_string_equal(b.props, "{\"a\": 3}");
    store_bucket_fini(&b);
    assert_int_equal(store_bucket_get(f->s, "other", NULL, NULL), 0);
}

/* A deletion that is marked on one path, and for which another has no room, leaves a bucket that takes objects, as before. */
static void test_a_deletion_that_is_refused(void **state)
{
    struct fixture *f = *state;
    f->io.open = open_unless_full;
    reopen(f, 3);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    store_path_fail(f->s->paths[2], "pulled out by a test"); /* it has to learn of it at the next start */
    static const char *const dirs[] = {"disk-0/buckets/", "disk-1/buckets/"};
    for (unsigned i = 0; i < ARRAY_LEN(dirs); i++) {
        full_dir = dirs[i];
        full = true;
        assert_int_equal(store_bucket_delete(f->s, "photos", NULL), LEAT_NO_SPACE);
        full = false;
        assert_int_equal(testing_put(f->s, "photos", key_of(i), i, 100), 0);
        assert_int_equal(store_delete(f->s, "photos", key_of(i), strlen(key_of(i)), 0, NULL), 0);
    }
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 100), 0);
    reopen(f, 3);
    assert_int_equal(testing_check(f->s, "photos", "k", 1, 100), 0);
}

/* Names of files are there at once, but no folder is flushed: too many files are open. */
static bool no_folders;
static int syncdir_unless_many(const struct store_io *io, const char *path)
{
    return no_folders && strstr(path, "/buckets") ? -EMFILE : store_io_real.syncdir(io, path);
}

/* A file that has its name already counts as taken, though its folder could not be flushed: what was refused is not in force after the next start, and
 * nothing is stored in a bucket that may not be there then. When that is over, it takes objects again. */
static void test_a_folder_that_is_not_flushed(void **state)
{
    struct fixture *f = *state;
    struct store_bucket b;
    uint64_t remote_id;
    f->io.syncdir = syncdir_unless_many;
    reopen(f, 2);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, "{\"a\": 1}", NULL), 0);
    store_path_fail(f->s->paths[1], "pulled out by a test"); /* so that a deletion leaves a mark */
    for (unsigned i = 0; i < 3; i++) { /* with, and without an end to it; asked for twice */
        no_folders = true;
        assert_int_not_equal(store_bucket_delete(f->s, "photos", NULL), 0);
        if (i == 2)
            assert_int_not_equal(store_bucket_delete(f->s, "photos", NULL), 0);
        no_folders = false;
        if (i > 0)
            store_tick(f->s);
        int rc = testing_put(f->s, "photos", "k", i, 100);
        assert_int_equal(rc, i ? 0 : STORE_UNAVAILABLE);
        reopen(f, 2);
        assert_int_equal(store_bucket_get(f->s, "photos", NULL, NULL), 0);
        assert_int_equal(testing_check(f->s, "photos", "k", i, 100), rc ? LEAT_NOT_FOUND : 0);
        if (rc == 0)
            assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), 0);
        store_path_fail(f->s->paths[1], "pulled out by a test");
    }
    /* One path, and a bucket that gets a remote: its objects are not taken for copies of the remote's. */
    for (unsigned i = 0; i < 2; i++) {
        no_folders = true;
        assert_int_not_equal(
            store_bucket_remote(f->s, "photos", 0, STORE_REMOTE_OTHER, "{\"a\": 2}", &remote_id, NULL), 0);
        no_folders = false;
        if (i > 0)
            store_tick(f->s);
        int rc = testing_put(f->s, "photos", "k", i, 100);
        assert_int_equal(rc, i ? 0 : STORE_UNAVAILABLE);
        reopen(f, 2);
        assert_int_equal(store_bucket_get(f->s, "photos", &b, NULL), 0);
        assert_string_equal(b.props, "{\"a\": 1}");
        assert_int_equal(b.flags, 0);
        store_bucket_fini(&b);
        store_path_fail(f->s->paths[1], "pulled out by a test");
    }
    assert_int_equal(testing_check(f->s, "photos", "k", 1, 100), 0);
    /* Existing objects may be reported as uncertain for now: a request that changes a remote must ask. */
    struct store_info info;
    no_folders = true;
    assert_int_not_equal(store_bucket_set(f->s, "photos", 0, "{}", NULL), 0);
    no_folders = false;
    assert_int_equal(testing_put(f->s, "photos", "k", 2, 100), STORE_UNAVAILABLE);
    assert_int_equal(store_lookup(f->s, "photos", "k", 1, &info, NULL), 0);
    assert_int_equal(store_mark_clean(f->s, "photos", "k", 1, info.seq, 0, "", NULL), 0);
}

/* --- some that are there, some that are not ------------------------------------------------------------------------------ */

enum { FEW = 60 };

/* Three paths with FEW keys of their numbers' content. */
static void put_few(struct fixture *f)
{
    reopen(f, 3);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    for (unsigned i = 0; i < FEW; i++)
        assert_int_equal(testing_put(f->s, "photos", key_of(i), i, 100 + i), 0);
}

/* Objects on a failed path are unavailable, the other paths continue, and new objects go to these. Returns
 * how many keys it had. */
static unsigned fail_first(struct fixture *f)
{
    unsigned gone = 0;
    store_path_fail(f->s->paths[0], "pulled out by a test");
    for (unsigned i = 0; i < FEW; i++) {
        int rc = testing_check(f->s, "photos", key_of(i), i, 100 + i);
        assert_true(rc == 0 || rc == STORE_UNAVAILABLE);
        if (rc == 0)
            continue;
        gone++;
        assert_int_equal(store_delete(f->s, "photos", key_of(i), 5, 0, NULL), STORE_UNAVAILABLE);
        if (gone % 2)
            assert_int_equal(testing_put(f->s, "photos", key_of(i), 1000, 50), 0);
    }
    return gone;
}

static const struct path *sick;
static int flush_unless_sick(const struct store_io *io, int fd)
{
    return sick && fd == sick->log.fd ? -EIO : store_io_real.datasync(io, fd);
}

/* Some of many deleted keys are on a path that fails: those on the other paths leave no files there. */
static void test_one_fails_in_a_deletion(void **state)
{
    struct fixture *f = *state;
    struct store_key keys[FEW];
    char names[FEW][16];
    int codes[FEW];
    f->io.datasync = flush_unless_sick;
    put_few(f);
    for (unsigned i = 0; i < FEW; i++) {
        snprintf(names[i], sizeof(names[i]), "%s", key_of(i));
        keys[i] = (struct store_key){names[i], strlen(names[i])};
    }
    sick = f->s->paths[1];
    assert_int_equal(store_delete_many(f->s, "photos", keys, FEW, codes, NULL), STORE_UNAVAILABLE);
    sick = NULL;
    assert_true(f->s->paths[1]->failed && !f->s->paths[0]->failed && !f->s->paths[2]->failed);
    store_free(TAKE_PTR(f->s));
    assert_int_equal(testing_count_objects(f->dirs[0]), 0);
    assert_int_equal(testing_count_objects(f->dirs[2]), 0);
}

static void test_one_fails_and_comes_back(void **state)
{
    struct fixture *f = *state;
    put_few(f);
    AUTO_FREE struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    uint64_t all = 0;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(st->paths[i].objects >= 5);
        all += st->paths[i].objects;
    }
    assert_int_equal(all, FEW);
    unsigned gone = fail_first(f), newer = 0;
    assert_int_equal(gone, st->paths[0].objects);
    store_free(f->s);

    /* In another order, all there: the newest versions count, and the old ones are gone for good with a deletion. */
    const char *turned[3] = {f->paths[2], f->paths[0], f->paths[1]};
    f->s = testing_open(turned, 3, &f->io);
    assert_non_null(f->s);
    for (unsigned i = 0; i < FEW; i++) {
        if (testing_check(f->s, "photos", key_of(i), i, 100 + i) != 0) {
            assert_int_equal(testing_check(f->s, "photos", key_of(i), 1000, 50), 0);
            newer++;
        }
        assert_int_equal(store_delete(f->s, "photos", key_of(i), 5, 0, NULL), 0);
        assert_int_equal(testing_check(f->s, "photos", key_of(i), i, 100 + i), LEAT_NOT_FOUND);
    }
    assert_int_equal(newer, (gone + 1) / 2);
    assert_int_equal(store_bucket_delete(f->s, "photos", NULL), 0);
}

/* One that is not given may hold anything; an empty folder where one was is a disk that is not mounted. */
static void test_one_is_missing(void **state)
{
    struct fixture *f = *state;
    reopen(f, 3);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    reopen(f, 2);
    AUTO_FREE struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    assert_int_equal(st->npaths, 3);
    assert_int_equal(st->paths[2].state, STORE_PATH_FAILED);
    assert_int_equal(testing_check(f->s, "photos", "key-1", 0, 0), STORE_UNAVAILABLE);
    assert_int_equal(testing_put(f->s, "photos", "key-1", 1, 1), 0);
    assert_int_equal(testing_check(f->s, "photos", "key-1", 1, 1), 0);
    store_free(TAKE_PTR(f->s));
    testing_rmdir(f->paths[2]);
    reopen(f, 3);
    assert_non_null(strstr(f->s->paths[2]->error, "mounted"));
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), STORE_UNAVAILABLE);
    /* Lost for good: the rest continues without it, and a new disk takes its place. */
    store_free(TAKE_PTR(f->s));
    struct store_config c = {
        .paths = f->paths, .npaths = 2, .forget_missing = true, .no_background = true, .io = &f->io};
    assert_int_equal(store_new(&c, &f->s, NULL), 0);
    store_status(f->s, st);
    assert_int_equal(st->npaths, 2);
    assert_int_equal(testing_check(f->s, "photos", "key-2", 0, 0), LEAT_NOT_FOUND);
    assert_int_equal(testing_check(f->s, "photos", "key-1", 1, 1), 0);
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), 0);
    reopen(f, 3);
    store_status(f->s, st);
    assert_int_equal(st->npaths, 3);
    assert_int_equal(st->paths[2].state, st->paths[0].state);
    assert_int_equal(testing_check(f->s, "photos", "key-2", 0, 0), LEAT_NOT_FOUND);
}

/* Of a store that is open, and of another one. */
static void test_paths_of_others(void **state)
{
    struct fixture *f = *state;
    struct leat_error err;
    struct store *other;
    struct store_config c = {.paths = f->paths + 1, .npaths = 1, .no_background = true};
    reopen(f, 3);
    assert_int_equal(store_new(&c, &other, &err), LEAT_BUSY);
    store_free(TAKE_PTR(f->s));
    char stranger[256];
    testing_mkdir(stranger);
    const char *one = stranger, *mixed[2] = {f->paths[0], stranger};
    other = testing_open(&one, 1, NULL);
    store_free(other);
    c.paths = mixed;
    c.npaths = 2;
    assert_int_equal(store_new(&c, &other, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "another store"));
    testing_rmdir(stranger);
}

/* --- how much goes where ------------------------------------------------------------------------------------------------- */

/* Of KEYS keys, how many would go to path `at`; `same`: each as in `where`, which is filled else. */
static unsigned placed(struct store *s, unsigned at, uint8_t where[KEYS], bool same)
{
    unsigned n = 0;
    for (unsigned i = 0; i < KEYS; i++) {
        struct ikey k;
        ikey_set(&k, 1, key_of(i), 5);
        struct path *p = store_place(s, &k, 0);
        if (same)
            assert_int_equal(where[i], p->number);
        where[i] = (uint8_t)p->number;
        n += p->number == at;
    }
    return n;
}

static void check_all(struct fixture *f)
{
    for (unsigned i = 0; i < KEYS; i++)
        assert_int_equal(testing_check(f->s, "photos", key_of(i), i, 50), 0);
}

/* The identity of a path with its line of weight changed to `line` ("": none, as before there were weights). */
static void set_weight(const char *dir, const char *line)
{
    char name[400], text[4096] = "", out[4096];
    snprintf(name, sizeof(name), "%s/leat-store", dir);
    int fd = open(name, O_RDWR);
    assert_true(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
    char *weight = strstr(text, "\nweight "), *crc = strstr(text, "\ncrc ");
    assert_non_null(weight);
    assert_non_null(crc);
    char *rest = strchr(weight + 1, '\n');
    crc[1] = 0;
    weight[1] = 0;
    int n = snprintf(out, sizeof(out), "%s%s%s", text, line, rest + 1);
    n += snprintf(out + n, sizeof(out) - (size_t)n, "crc %08x\n", crc32c(0, out, (size_t)n));
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, out, (size_t)n, 0), n);
    close(fd);
}

/* A disk three times as large gets three times as much; what is there is found whatever the weights become. */
static void test_weights(void **state)
{
    struct fixture *f = *state;
    static uint8_t where[KEYS];
    f->s = testing_open(f->paths, 2, &f->io);
    assert_non_null(f->s);
    /* Both lie on one file system here, so that each counts half of what it says. */
    assert_int_equal(f->s->paths[0]->weight_mib, 150 * 1024);
    assert_int_equal(f->s->paths[1]->weight_mib, 450 * 1024);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    unsigned large = placed(f->s, 1, where, false);
    assert_in_range(large, KEYS * 68 / 100, KEYS * 82 / 100);
    for (unsigned i = 0; i < KEYS; i++)
        assert_int_equal(testing_put(f->s, "photos", key_of(i), i, 50), 0);
    assert_in_range(f->s->paths[1]->index.objects, KEYS * 68 / 100, KEYS * 82 / 100);
    /* A file system that says something else now (mkfs, a quota, a few blocks) moves nothing. */
    totals[0] = totals[1] = 500 * GIB;
    reopen(f, 2);
    placed(f->s, 1, where, true);
    check_all(f);
    /* One that joins takes its share, and only that: no key moves between the others. */
    reopen(f, 3);
    assert_int_equal(f->s->paths[2]->weight_mib, 100 * 1024);
    unsigned third = 0;
    for (unsigned i = 0; i < KEYS; i++) {
        struct ikey k;
        ikey_set(&k, 1, key_of(i), 5);
        unsigned now = store_place(f->s, &k, 0)->number;
        assert_true(now == where[i] || now == 2);
        third += now == 2;
    }
    assert_in_range(third, KEYS * 9 / 100, KEYS * 20 / 100);
    check_all(f);
    /* Other weights, by hand: all is found where it is, and deleted there. */
    store_free(TAKE_PTR(f->s));
    set_weight(f->dirs[0], "weight 900000\n");
    set_weight(f->dirs[1], "weight 1\n");
    reopen(f, 3);
    assert_true(placed(f->s, 0, where, false) > KEYS * 3 / 4);
    check_all(f);
    for (unsigned i = 0; i < KEYS; i += 2)
        assert_int_equal(testing_put(f->s, "photos", key_of(i), i, 50), 0);
    for (unsigned i = 0; i < KEYS; i += 3) {
        assert_int_equal(store_delete(f->s, "photos", key_of(i), 5, 0, NULL), 0);
        assert_int_equal(testing_check(f->s, "photos", key_of(i), i, 50), LEAT_NOT_FOUND);
    }
    reopen(f, 3);
    for (unsigned i = 0; i < KEYS; i++)
        assert_int_equal(testing_check(f->s, "photos", key_of(i), i, 50), i % 3 ? 0 : LEAT_NOT_FOUND);
}

/* A store from before: its paths are weighed once, and nothing of it is lost. Disks of one size share keys as they always did. */
static void test_store_without_weights(void **state)
{
    struct fixture *f = *state;
    static uint8_t where[KEYS];
    totals[1] = totals[0];
    f->s = testing_open(f->paths, 2, &f->io);
    assert_non_null(f->s);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    for (unsigned i = 0; i < KEYS; i++) {
        struct ikey k;
        uint64_t best = 0, id;
        ikey_set(&k, 1, key_of(i), 5);
        for (unsigned p = 0; p < 2; p++) {
            memcpy(&id, f->s->paths[p]->id, sizeof(id));
            uint64_t plain = rng_mix64(store_ikey_hash(&k) ^ id);
            where[i] = plain > best ? (uint8_t)p : where[i];
            best = MAX(best, plain);
        }
        assert_int_equal(testing_put(f->s, "photos", key_of(i), i, 50), 0);
    }
    placed(f->s, 0, where, true);
    store_free(TAKE_PTR(f->s));
    set_weight(f->dirs[0], "");
    set_weight(f->dirs[1], "");
    totals[1] = 3 * totals[0];
    reopen(f, 2);
    assert_int_equal(f->s->paths[0]->weight_mib, 150 * 1024);
    assert_int_equal(f->s->paths[1]->weight_mib, 450 * 1024);
    check_all(f);
    totals[1] = totals[0];
    reopen(f, 2);
    assert_int_equal(f->s->paths[1]->weight_mib, 450 * 1024);
    assert_in_range(placed(f->s, 1, where, false), KEYS * 68 / 100, KEYS * 82 / 100);
    check_all(f);
}

static void fill_cache(struct fixture *f)
{
    static uint8_t data[10000];
    struct store_commit clean = {.remote = "v1"};
    assert_int_equal(store_bucket_create(f->s, "cache", STORE_BUCKET_REMOTE, NULL, NULL), 0);
    for (unsigned i = 0; i < 200; i++)
        testing_put_bytes(f->s, "cache", key_of(i), data, sizeof(data), &clean);
}

/* One file system under two paths, with 92 of 100 in use: what has to go is counted once, and both give their share. */
static void test_one_disk_under_two_paths(void **state)
{
    struct fixture *f = *state;
    totals[0] = totals[1] = 10000000;
    f->s = testing_open(f->paths, 2, &f->io);
    assert_non_null(f->s);
    assert_int_equal(f->s->paths[0]->device, f->s->paths[1]->device);
    f->s->reserve_bytes = 1;
    fill_cache(f);
    uint64_t before[2];
    for (unsigned i = 0; i < 2; i++)
        before[i] = f->s->paths[i]->index.bytes;
    used[0] = used[1] = 9200000;
    for (unsigned turn = 0; turn < 3;
         turn++) { /* the hand has to pass once: at first all count as looked at */
        store_tick(f->s);
        uint64_t freed = before[0] + before[1] - f->s->paths[0]->index.bytes - f->s->paths[1]->index.bytes;
        used[0] = used[1] = 9200000 - freed;
    }
    for (unsigned i = 0; i < 2; i++) { /* 1.2 of 2 MB in all, of each 60 of 100 */
        uint64_t gone = before[i] - f->s->paths[i]->index.bytes;
        assert_in_range(gone * 100 / before[i], 55, 68);
    }
    assert_in_range(used[0], 7900000, 8000000);
    /* Two disks, and only one is over: the other keeps what it has. */
    f->s->paths[1]->device++;
    uint64_t other = f->s->paths[1]->index.bytes;
    used[0] = 9900000;
    used[1] = 100;
    store_tick(f->s);
    assert_int_equal(f->s->paths[1]->index.bytes, other);
    assert_true(f->s->paths[0]->index.bytes < 20000);
}

/* What is tried and stays is not counted as gone: a path that is away may have an older version of each. */
static void test_nothing_can_go(void **state)
{
    struct fixture *f = *state;
    struct store_status *st = calloc(1, sizeof(*st));
    totals[0] = totals[1] = 10000000;
    f->s = testing_open(f->paths, 2, &f->io);
    assert_non_null(f->s);
    fill_cache(f);
    reopen(f, 1);
    f->s->reserve_bytes = 1;
    uint64_t before = f->s->paths[0]->index.bytes;
    used[0] = 9900000;
    char said[1000] = "";
    AUTO_CLOSE int output = memfd_create("log", MFD_CLOEXEC);
    log_set_output(output, NULL);
    for (unsigned turn = 0; turn < 3; turn++)
        store_tick(f->s);
    log_set_output(STDERR_FILENO, NULL);
    assert_true(pread(output, said, sizeof(said) - 1, 0) > 0);
    assert_non_null(strstr(said, "another path of the store has failed or was not given"));
    store_status(f->s, st);
    assert_true(before > 0);
    assert_int_equal(f->s->paths[0]->index.bytes, before);
    assert_int_equal(st->paths[0].evicted, 0);
    assert_int_equal(st->paths[0].evicted_bytes, 0);
    assert_int_equal(store_make_room(f->s, "cache", 200000, NULL), LEAT_NO_SPACE);
    free(st);
}

static struct store *detached;

/* The bucket has no remote any more; what it gets from here on is nowhere else. */
static void detach(void)
{
    uint64_t remote_id;
    assert_int_equal(store_bucket_remote(detached, "cache", 0, STORE_REMOTE_NONE, NULL, &remote_id, NULL), 0);
    assert_int_equal(testing_put(detached, "cache", "the only copy", 1, 10000), 0);
}

/* An eviction in progress when a bucket's remote is removed does not treat its objects as copies. */
static void test_detached_while_evicting(void **state)
{
    struct fixture *f = *state;
    totals[0] = 10000000;
    for (unsigned way = 0; way < 2; way++) { /* all that may go; room for one */
        detached = f->s = testing_open(f->paths, 1, &f->io);
        assert_non_null(f->s);
        f->s->reserve_bytes = 1;
        f->s->low_percent = 50; /* more than all there is has to go */
        fill_cache(f);
        used[0] = 9900000;
        /* Two look whether the disk is over, one how much; then one before each round. */
        asked_before = way ? 0 : 3;
        meanwhile = detach;
        if (way)
            assert_int_equal(store_make_room(f->s, "cache", 200000, NULL), LEAT_NO_SPACE);
        else
            store_tick(f->s);
        assert_null(meanwhile);
        used[0] = 0;
        assert_int_equal(testing_check(f->s, "cache", "the only copy", 1, 10000), 0);
        store_free(TAKE_PTR(f->s));
        testing_rmdir(f->dirs[0]);
    }
}

/* Room for one object: on the path that can give it; none is made for what would not fit all the same. */
static void test_make_room(void **state)
{
    struct fixture *f = *state;
    totals[0] = totals[1] = 10000000;
    f->s = testing_open(f->paths, 2, &f->io);
    assert_non_null(f->s);
    f->s->reserve_bytes = 1;
    fill_cache(f); /* 200 of 10,000 bytes */
    assert_int_equal(testing_put(f->s, "cache", "dirty", 1, 500000), 0);
    uint64_t bytes[2];
    for (unsigned i = 0; i < 2; i++)
        bytes[i] = f->s->paths[i]->index.bytes;
    used[0] = used[1] = 9900000;
    assert_int_equal(store_make_room(f->s, "cache", 3000000, NULL), LEAT_NO_SPACE);
    assert_int_equal(store_make_room(f->s, "cache", UINT64_MAX / 8, NULL), LEAT_NO_SPACE);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(f->s->paths[i]->index.bytes, bytes[i]);
    /* 100,000 are missing on either: one gives them. */
    assert_int_equal(store_make_room(f->s, "cache", 200000, NULL), 0);
    uint64_t gone = bytes[0] + bytes[1] - f->s->paths[0]->index.bytes - f->s->paths[1]->index.bytes;
    assert_in_range(gone, 100000, 250000);
    assert_true(f->s->paths[0]->index.bytes == bytes[0] || f->s->paths[1]->index.bytes == bytes[1]);
    assert_int_equal(testing_check(f->s, "cache", "dirty", 1, 500000), 0);
    assert_int_equal(store_bucket_create(f->s, "plain", 0, NULL, NULL), 0);
    assert_int_equal(store_make_room(f->s, "plain", 1, NULL), LEAT_NO_SPACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_buckets_of_a_path_that_joins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_fails_and_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_fails_in_a_deletion, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_change_that_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_deletion_that_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_folder_that_is_not_flushed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_is_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_paths_of_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_without_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_disk_under_two_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_can_go, setup, teardown),
        cmocka_unit_test_setup_teardown(test_make_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detached_while_evicting, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
