/* SPDX-License-Identifier: Apache-2.0 */
/* What rots is found without anybody reading it; what has another copy is mended, what has none is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "base/testing.h"
#include "store/testing_io.h"
#include "store/internal.h"
#include "store/testing.h"

enum { LARGE = 3 * 1024 * 1024 + 1000 };

struct fixture {
    char dir[256];
    const char *path;
    struct store_fault *fault;
    struct store *s;
};

static void reopen(struct fixture *f)
{
    store_free(f->s);
    f->s = testing_open(&f->path, 1, store_fault_io(f->fault));
    assert_non_null(f->s);
}

/* photos: k-00 to k-09 and "large"; cache, with a remote: clean, and "dirty" which is not. */
static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    static uint8_t data[LARGE];
    testing_mkdir(f->dir);
    f->path = f->dir;
    assert_int_equal(store_fault_new(f->dir, &f->fault), 0);
    reopen(f);
    assert_int_equal(store_bucket_create(f->s, "photos", 0, NULL, NULL), 0);
    assert_int_equal(store_bucket_create(f->s, "cache", STORE_BUCKET_REMOTE, NULL, NULL), 0);
    for (unsigned i = 0; i < 10; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k-%02u", i);
        assert_int_equal(testing_put(f->s, "photos", key, i, 1000 * i), 0);
    }
    assert_int_equal(testing_put(f->s, "photos", "large", 7, LARGE), 0);
    for (unsigned i = 0; i < 3; i++) {
        static const char *const keys[] = {"clean", "clean-too", "dirty"};
        struct store_commit c = {.flags = i == 2 ? STORE_DIRTY : 0, .remote = i == 2 ? NULL : "v1"};
        testing_fill(data, LARGE, i);
        testing_put_bytes(f->s, "cache", keys[i], data, LARGE, &c);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    store_free(f->s);
    store_fault_free(f->fault);
    testing_rmdir(f->dir);
    free(f);
    return 0;
}

static void flip(struct fixture *f, const char *bucket, const char *key, off_t at)
{
    char name[PATH_FILE_MAX];
    testing_object_file(f->s, bucket, key, name, sizeof(name));
    testing_flip(name, at);
}

static struct store_scrub_status status_of(struct fixture *f)
{
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    assert_int_equal(st->buffer_bytes, 0);
    struct store_scrub_status scrub = st->paths[0].scrub;
    free(st);
    return scrub;
}

/* A whole pass. */
static struct store_scrub_pass scrubbed(struct fixture *f)
{
    store_scrub_start(f->s);
    store_scrub_some(f->s, UINT32_MAX);
    struct store_scrub_status st = status_of(f);
    assert_int_equal(st.now.begun_ns, 0);
    assert_true(st.last.ended_ns >= st.last.begun_ns && st.last.begun_ns > 0);
    return st.last;
}

struct names {
    char text[400];
};

static int add_name(void *user, const struct store_damage *d)
{
    struct names *n = user;
    size_t at = strlen(n->text);
    snprintf(n->text + at, sizeof(n->text) - at, "%s/%.*s%s ", d->bucket, (int)d->key_len,
             (const char *)d->key, d->unreadable ? "?" : "");
    return 0;
}

static void assert_damaged(struct fixture *f, const char *wanted)
{
    struct names n = {""};
    assert_int_equal(store_damaged(f->s, add_name, &n), 0);
    assert_string_equal(n.text, wanted);
}

static uint32_t flags_of(struct fixture *f, const char *bucket, const char *key)
{
    struct store_info info;
    assert_int_equal(store_lookup(f->s, bucket, key, strlen(key), &info, NULL), 0);
    return info.flags;
}

static void test_nothing_wrong(void **state)
{
    struct fixture *f = *state;
    char id[STORE_UPLOAD_ID_TEXT];
    struct store_put *put;
    assert_int_equal(store_upload_begin(f->s, "photos", "parts", 5, NULL, id, NULL), 0);
    assert_int_equal(store_part_begin(f->s, "photos", "parts", 5, id, 1, STORE_UNKNOWN_BYTES, 0, &put, NULL),
                     0);
    assert_int_equal(store_put_write(put, "part", 4, NULL), 0);
    assert_int_equal(store_put_commit(put, NULL, NULL, NULL), 0);
    struct store_scrub_pass p = scrubbed(f);
    assert_int_equal(p.objects, 10 + 1 + 3 + 2); /* the upload and its part too */
    assert_int_equal(p.bytes, f->s->paths[0]->index.bytes);
    assert_int_equal(p.damaged + p.repaired + p.unreadable, 0);
    assert_damaged(f, "");
    assert_int_equal(f->s->gets, 0);
}

/* Bits that flip unnoticed: a clean object with a remote goes, so that it is fetched again; the others are
 * marked and named. */
static void test_flipped_bits(void **state)
{
    struct fixture *f = *state;
    flip(f, "photos", "k-03", 2999);
    flip(f, "photos", "large", 2 * MIB + 5);
    flip(f, "photos", "k-05", 5000 + 20); /* of the trailer */
    flip(f, "cache", "clean", LARGE - 1);
    flip(f, "cache", "dirty", 0);
    struct store_scrub_pass p = scrubbed(f);
    assert_int_equal(f->s->gets, 0);
    assert_int_equal(p.objects, 14);
    assert_int_equal(p.damaged, 5);
    assert_int_equal(p.repaired, 1);
    assert_int_equal(f->s->paths[0]->corrupt, 5);
    for (unsigned round = 0; round < 2; round++) {
        assert_damaged(f, "photos/k-03 photos/k-05 photos/large cache/dirty ");
        assert_true(flags_of(f, "photos", "k-03") & STORE_CORRUPT);
        assert_true(flags_of(f, "cache", "dirty") & STORE_CORRUPT);
        assert_int_equal(flags_of(f, "photos", "k-04"), 0);
        assert_int_equal(testing_check(f->s, "photos", "large", 7, LARGE), LEAT_CORRUPT);
        assert_int_equal(testing_check(f->s, "cache", "clean", 0, LARGE),
                         LEAT_NOT_FOUND); /* the tier fetches it */
        assert_int_equal(testing_check(f->s, "cache", "clean-too", 1, LARGE), 0);
        reopen(f);
    }
    assert_int_equal(testing_check(f->s, "photos", "k-04", 4, 4000), 0);
    /* Stored again, it is whole; deleted, it no longer counts. With its bytes right again it loses its
     * mark. */
    assert_int_equal(testing_put(f->s, "photos", "k-03", 3, 3000), 0);
    assert_int_equal(store_delete(f->s, "cache", "dirty", 5, 0, NULL), 0);
    flip(f, "photos", "large", 2 * MIB + 5);
    assert_damaged(f, "photos/k-05 photos/large ");
    p = scrubbed(f);
    assert_int_equal(p.damaged, 1);
    assert_damaged(f, "photos/k-05 ");
    assert_int_equal(testing_check(f->s, "photos", "large", 7, LARGE), 0);
}

/* What readers find stands in the same list; a file that is gone is damage, one that was deleted is none. */
static void test_found_by_others(void **state)
{
    struct fixture *f = *state;
    char name[PATH_FILE_MAX];
    struct store_obj *obj;
    flip(f, "photos", "k-08", 17);
    assert_int_equal(store_get(f->s, "photos", "k-08", 4, &obj, NULL), LEAT_CORRUPT);
    assert_damaged(f, "photos/k-08 ");
    testing_object_file(f->s, "photos", "k-02", name, sizeof(name));
    assert_int_equal(unlink(name), 0);
    assert_int_equal(store_delete(f->s, "photos", "k-01", 4, 0, NULL), 0);
    struct store_scrub_pass p = scrubbed(f);
    assert_int_equal(p.objects, 13);
    assert_int_equal(p.damaged, 2);
    assert_damaged(f, "photos/k-02 photos/k-08 ");
}

/* A sector that cannot be read: one object's misfortune. Nothing is marked, as the next read may succeed. */
static void test_unreadable(void **state)
{
    struct fixture *f = *state;
    char name[PATH_FILE_MAX];
    testing_object_file(f->s, "photos", "k-06", name, sizeof(name));
    store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
    struct store_scrub_pass p = scrubbed(f);
    assert_int_equal(p.objects, 14);
    assert_int_equal(p.unreadable, 1);
    assert_int_equal(p.damaged, 0);
    assert_false(f->s->paths[0]->failed);
    assert_damaged(f, "photos/k-06? ");
    assert_int_equal(flags_of(f, "photos", "k-06"), 0);
    testing_object_file(f->s, "cache", "clean", name, sizeof(name));
    store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
    p = scrubbed(f);
    assert_int_equal(p.repaired, 1);
    assert_damaged(f, "");
    assert_int_equal(testing_check(f->s, "photos", "k-06", 6, 6000), 0);
    /* A disk that is dead is left, not emptied. */
    for (unsigned i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof(key), "m-%02u", i);
        assert_int_equal(testing_put(f->s, "photos", key, i, 10), 0);
    }
    store_fault_unreadable(f->fault, "", -EIO);
    store_scrub_start(f->s);
    store_scrub_some(f->s, UINT32_MAX);
    assert_true(f->s->paths[0]->failed);
    struct store_scrub_status st = status_of(f);
    assert_int_equal(st.state, STORE_SCRUB_OFF);
    store_fault_unreadable(f->fault, NULL, 0);
    reopen(f);
    assert_int_equal(testing_check(f->s, "photos", "m-39", 39, 10), 0);
    assert_int_equal(testing_check(f->s, "photos", "k-00", 0, 0), 0);
}

/* Where it was goes over a restart, within a large object too; a position that cannot be read is a pass from the start. */
static void test_restart(void **state)
{
    struct fixture *f = *state;
    store_scrub_start(f->s);
    store_scrub_some(f->s, 5);
    for (unsigned done = 5; done < 11; done += 2) {
        struct store_scrub_status st = status_of(f);
        assert_int_equal(st.state, STORE_SCRUB_RUNNING);
        assert_true(st.asked);
        assert_int_equal(st.now.objects, done);
        reopen(f);
        store_scrub_some(f->s, 2);
    }
    flip(f, "photos", "k-00", 0); /* of its trailer, and behind us */
    store_scrub_some(f->s, UINT32_MAX);
    struct store_scrub_status st = status_of(f);
    assert_int_equal(st.state, STORE_SCRUB_WAITING);
    assert_int_equal(st.last.objects, 14);
    assert_int_equal(st.last.damaged, 0);
    reopen(f);
    assert_int_equal(status_of(f).last.objects, 14);
    assert_int_equal(status_of(f).last.ended_ns, st.last.ended_ns);
    /* A replaced file of a position is no position. */
    store_scrub_start(f->s);
    store_scrub_some(f->s, 5);
    store_free(TAKE_PTR(f->s));
    char name[400];
    snprintf(name, sizeof(name), "%s/scrub", f->dir);
    testing_flip(name, 30);
    reopen(f);
    assert_int_equal(status_of(f).now.begun_ns, 0);
    assert_int_equal(scrubbed(f).damaged, 1);
}

static void wait_for(struct fixture *f, bool (*is)(const struct store_scrub_status *))
{
    struct store_scrub_status st = {0};
    test_wait_until((store_scrub_status(f->s->paths[0], &st), is(&st)));
}

static bool is_over(const struct store_scrub_status *st)
{
    return !st->now.begun_ns && st->last.begun_ns;
}

static bool has_small_ones(const struct store_scrub_status *st)
{
    return st->now.objects >= 10;
}

static bool is_behind_a_block(const struct store_scrub_status *st)
{
    return st->now.objects == 10 && st->now.bytes > MIB;
}

static bool is_through_large(const struct store_scrub_status *st)
{
    return st->now.objects >= 11 || !st->now.begun_ns;
}

static void assert_not_asked(struct fixture *f)
{
    char name[400], text[200] = "", asked;
    snprintf(name, sizeof(name), "%s/scrub", f->dir);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    assert_int_equal(sscanf(text, "leat-scrub 1\nnext %*d %c\nnow 0 ", &asked), 1);
    assert_int_equal(asked, '0');
    assert_non_null(strstr(text, "\nnow 0 "));
}

/* Its own thread begins when asked, at the allowed pace, and ends amid an object when the store does. */
static void test_thread(void **state)
{
    struct fixture *f = *state;
    struct store_config c = {.paths = &f->path, .npaths = 1, .scrub_period_s = UINT64_MAX};
    flip(f, "photos", "k-03", 0);
    store_free(TAKE_PTR(f->s));
    assert_int_equal(store_new(&c, &f->s, NULL), 0);
    struct store_scrub_status st;
    store_scrub_status(f->s->paths[0], &st);
    assert_int_equal(st.state, STORE_SCRUB_OFF);
    store_scrub_start(f->s);
    wait_for(f, is_over);
    assert_damaged(f, "photos/k-03 ");
    store_free(TAKE_PTR(f->s));
    /* 256 KiB a second, of 13 MB: the ten small ones, which cost 64 KiB each, are through at last, and then it is stopped. */
    c.scrub_rate = 256 * KIB;
    assert_int_equal(store_new(&c, &f->s, NULL), 0);
    uint64_t begun = clock_now_ns();
    store_scrub_start(f->s);
    wait_for(f, has_small_ones);
    assert_true(clock_now_ns() - begun > NS_PER_S); /* at most a second's worth is given at once */
    store_scrub_status(f->s->paths[0], &st);
    assert_int_equal(st.state, STORE_SCRUB_RUNNING);
    assert_true(st.now.objects < 14);
    store_free(TAKE_PTR(f->s));
    assert_int_equal(store_new(&c, &f->s, NULL), 0);
    store_scrub_status(f->s->paths[0], &st);
    assert_true(st.asked);
    store_scrub_stop(f->s);
    assert_not_asked(f); /* on the disk: a kill now does not bring it back */
    store_scrub_status(f->s->paths[0], &st);
    assert_int_equal(st.state, STORE_SCRUB_OFF);
    store_free(TAKE_PTR(f->s));
    /* Ended in the middle of an object it continues there: what rots behind it is for the next pass. */
    c.scrub_rate = 1 * MIB;
    assert_int_equal(store_new(&c, &f->s, NULL), 0);
    store_scrub_start(f->s);
    wait_for(f, is_behind_a_block);
    store_free(TAKE_PTR(f->s));
    reopen(f);
    flip(f, "photos", "large", 100);
    flip(f, "photos", "large", LARGE - 100);
    store_scrub_some(f->s, 1);
    assert_int_equal(status_of(f).now.objects, 11);
    assert_damaged(f, "photos/k-03 photos/large ");
    flip(f, "photos", "large", LARGE - 100);
    store_scrub_some(f->s, UINT32_MAX);
    assert_int_equal(status_of(f).last.objects, 14);
    assert_int_equal(status_of(f).last.bytes, f->s->paths[0]->index.bytes);
    assert_int_equal(scrubbed(f).damaged, 2);
    assert_true(flags_of(f, "photos", "large") & STORE_CORRUPT);
}

/* What a reader found while the scrub was past it is still damaged when the scrub has come to the object's end. */
static void test_found_behind_it(void **state)
{
    struct fixture *f = *state;
    struct store_config c = {.paths = &f->path, .npaths = 1, .scrub_period_s = UINT64_MAX, .scrub_rate = MIB};
    for (unsigned restart = 0; restart < 2; restart++) {
        store_free(TAKE_PTR(f->s));
        assert_int_equal(store_new(&c, &f->s, NULL), 0);
        store_scrub_start(f->s);
        wait_for(f, is_behind_a_block);
        flip(f, "photos", "large", 100);
        assert_int_equal(testing_check(f->s, "photos", "large", 7, LARGE), LEAT_CORRUPT);
        assert_damaged(f, "photos/large ");
        if (restart) {
            reopen(f);
            store_scrub_some(f->s, 1);
            assert_int_equal(status_of(f).now.objects, 11);
        } else {
            wait_for(f, is_through_large);
        }
        assert_damaged(f, "photos/large ");
        assert_true(flags_of(f, "photos", "large") & STORE_CORRUPT);
        flip(f, "photos", "large", 100);
        reopen(f);
        scrubbed(f);
        assert_damaged(f, "");
    }
}

/* --- found by a reader
 * -------------------------------------------------------------------------------------------------------- */

/* The middle block of an object of three, by a reader that has the object open. */
static int read_middle(struct fixture *f, const char *key)
{
    struct store_obj *obj;
    struct leat_error err = {0};
    int rc = store_get(f->s, "cache", key, strlen(key), &obj, &err);
    if (rc < 0)
        return rc;
    rc = store_obj_check(f->s, obj, STORE_BLOCK, 1, &err);
    if (rc < 0)
        assert_non_null(strstr(err.message, "again")); /* what to do without another copy */
    store_obj_unref(obj);
    return rc;
}

static int cached_flags(struct fixture *f, const char *key)
{
    struct store_info info;
    int rc = store_lookup(f->s, "cache", key, strlen(key), &info, NULL);
    return rc < 0 ? rc : (int)info.flags;
}

/* An object that the remote has goes at once, so that it is fetched again; the only copy stays. */
static void test_readers_find_rot(void **state)
{
    struct fixture *f = *state;
    flip(f, "cache", "clean", STORE_BLOCK + 5);
    flip(f, "cache", "dirty", STORE_BLOCK + 5);
    assert_int_equal(read_middle(f, "clean"), LEAT_CORRUPT);
    assert_int_equal(read_middle(f, "clean"), LEAT_NOT_FOUND);
    assert_int_equal(read_middle(f, "dirty"), LEAT_CORRUPT);
    assert_int_equal(cached_flags(f, "dirty"), STORE_DIRTY | STORE_CORRUPT);
}

static void test_readers_find_a_bad_sector(void **state)
{
    struct fixture *f = *state;
    static const char *const keys[] = {"clean", "dirty"};
    for (unsigned i = 0; i < 2; i++) {
        char name[PATH_FILE_MAX];
        struct store_obj *obj;
        testing_object_file(f->s, "cache", keys[i], name, sizeof(name));
        assert_int_equal(store_get(f->s, "cache", keys[i], strlen(keys[i]), &obj, NULL), 0);
        store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
        assert_int_equal(read_middle(f, keys[i]), STORE_UNAVAILABLE);
        store_fault_unreadable(f->fault, NULL, 0);
        store_obj_unref(obj);
    }
    assert_int_equal(cached_flags(f, "clean"), LEAT_NOT_FOUND);
    assert_int_equal(read_middle(f, "dirty"), 0); /* the cable was mended */
    /* And of one that cannot even be opened. */
    char name[PATH_FILE_MAX];
    testing_object_file(f->s, "cache", "clean-too", name, sizeof(name));
    store_fault_unreadable(f->fault, strrchr(name, '/'), -EIO);
    assert_int_equal(read_middle(f, "clean-too"), STORE_UNAVAILABLE);
    assert_int_equal(cached_flags(f, "clean-too"), LEAT_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flipped_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_found_by_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_readers_find_rot, setup, teardown),
        cmocka_unit_test_setup_teardown(test_readers_find_a_bad_sector, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(test_found_behind_it, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
