/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of buckets that rot. One copy: it is repaired from the other. Both: the bucket is neither there nor not there, until it is restored. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/internal.h"
#include "store/testing.h"

static const char *const copies[] = {"photos", "photos#copy"};

static void copy_path(const char *dir, const char *copy, char name[300])
{
    snprintf(name, 300, "%.200s/buckets/%s", dir, copy);
}

/* how 0: a bit; 1: cut short; 2: empty; 3: gone; 4: another bucket's. */
static void damage(const char *dir, const char *copy, unsigned how, off_t at)
{
    char name[300], other[300];
    copy_path(dir, copy, name);
    copy_path(dir, "other", other);
    if (how == 0)
        testing_flip(name, at);
    else if (how < 3)
        assert_int_equal(truncate(name, how == 1 ? 20 : 0), 0);
    else
        assert_int_equal(unlink(name), 0);
    if (how == 4)
        assert_int_equal(link(other, name), 0);
}

static bool same_files(const char *dir)
{
    char data[2][1000], name[300];
    ssize_t n[2];
    for (unsigned i = 0; i < 2; i++) {
        copy_path(dir, copies[i], name);
        int fd = open(name, O_RDONLY);
        n[i] = fd < 0 ? -1 : read(fd, data[i], sizeof(data[i]));
        close(fd);
    }
    return n[0] > 0 && n[0] == n[1] && memcmp(data[0], data[1], (size_t)n[0]) == 0;
}

static unsigned damaged_buckets(struct store *s)
{
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(s, st);
    unsigned n = st->damaged_buckets;
    free(st);
    return n;
}

static void check_whole(struct testing_store *f, const char *props)
{
    struct store_bucket b;
    assert_int_equal(store_bucket_get(f->s, "photos", &b, NULL), 0);
    assert_string_equal(b.props, props);
    store_bucket_fini(&b);
    assert_int_equal(testing_check(f->s, "photos", "k", 1, 100), 0);
    assert_int_equal(damaged_buckets(f->s), 0);
    assert_true(same_files(f->dir));
}

static void stop(struct testing_store *f)
{
    store_free(TAKE_PTR(f->s));
}

static void start(struct testing_store *f)
{
    f->s = testing_open1(f->dir);
    assert_non_null(f->s);
}

static void prepare(struct testing_store *f)
{
    assert_int_equal(store_bucket_set(f->s, "photos", 0, "{\"owner\":\"me\"}", NULL), 0);
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 100), 0);
    assert_int_equal(testing_put(f->s, "other", "k", 2, 200), 0);
}

static void test_one_copy(void **state)
{
    struct testing_store *f = *state;
    char name[300];
    struct stat st;
    prepare(f);
    copy_path(f->dir, "photos", name);
    assert_int_equal(stat(name, &st), 0);
    for (unsigned copy = 0; copy < 2; copy++) {
        for (off_t at = 0; at < st.st_size; at += 5) {
            stop(f);
            damage(f->dir, copies[copy], 0, at);
            start(f);
            check_whole(f, "{\"owner\":\"me\"}");
        }
        for (unsigned how = 1; how <= 4; how++) {
            stop(f);
            damage(f->dir, copies[copy], how, 0);
            start(f);
            check_whole(f, "{\"owner\":\"me\"}");
        }
    }
    /* Deleted is deleted: no copy brings it back. */
    assert_int_equal(store_delete(f->s, "photos", "k", 1, 0, NULL), 0);
    assert_int_equal(store_bucket_delete(f->s, "photos", NULL), 0);
    testing_reopen(f);
    assert_int_equal(store_bucket_get(f->s, "photos", NULL, NULL), STORE_NO_BUCKET);
}

static int count(void *user, const struct store_entry *e)
{
    ++*(unsigned *)user;
    return 0;
}

/* Nothing is said of it, and a bucket of its name cannot be made by just any client. */
static void check_damaged(struct testing_store *f)
{
    struct store *s = f->s;
    struct store_obj *obj;
    struct store_info info;
    struct store_put *put;
    struct store_bucket b;
    struct store_list_spec all = {.max = 10};
    struct leat_error err = {0};
    char id[STORE_UPLOAD_ID_TEXT];
    unsigned n = 0;
    assert_int_equal(damaged_buckets(s), 1);
    assert_int_equal(store_bucket_get(s, "photos", &b, &err), STORE_BUCKET_DAMAGED);
    assert_non_null(strstr(err.message, "photos"));
    assert_non_null(strstr(err.message, f->dir));
    assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_bucket_delete(s, "photos", NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_bucket_set(s, "photos", 0, "{}", NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_get(s, "photos", "k", 1, &obj, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_get_cached(s, "photos", "k", 1, &obj, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_lookup(s, "photos", "k", 1, &info, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_put_begin(s, "photos", "k", 1, 1, 0, &put, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_delete(s, "photos", "k", 1, 0, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_list(s, "photos", &all, count, &n, NULL, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(store_upload_begin(s, "photos", "k", 1, NULL, id, NULL), STORE_BUCKET_DAMAGED);
    assert_int_equal(testing_check(s, "other", "k", 2, 200), 0);
}

static int count_part(void *user, const struct store_part *part)
{
    ++*(unsigned *)user;
    return 0;
}

static void test_all_copies(void **state)
{
    for (unsigned how = 0; how < 5; how++) {
        testing_teardown(state);
        testing_setup(state);
        struct testing_store *f = *state;
        char id[STORE_UPLOAD_ID_TEXT];
        struct store_put *put;
        prepare(f);
        assert_int_equal(store_upload_begin(f->s, "photos", "up", 2, NULL, id, NULL), 0);
        assert_int_equal(store_part_begin(f->s, "photos", "up", 2, id, 1, 4, 0, &put, NULL), 0);
        assert_int_equal(store_put_write(put, "part", 4, NULL), 0);
        assert_int_equal(store_put_commit(put, NULL, NULL, NULL), 0);
        stop(f);
        damage(f->dir, copies[0], how == 3 ? 0 : how, 30); /* both gone is no bucket at all */
        damage(f->dir, copies[1], how, 30);
        start(f);
        check_damaged(f);
        testing_reopen(f);
        check_damaged(f);
        assert_int_equal(store_bucket_restore(f->s, "photos", "{\"owner\":\"root\"}", NULL), 0);
        assert_int_equal(store_bucket_restore(f->s, "photos", NULL, NULL), STORE_EXISTS);
        for (unsigned round = 0; round < 2; round++) {
            check_whole(f, "{\"owner\":\"root\"}");
            assert_int_equal(testing_put(f->s, "photos", "new", 3, 300), 0);
            testing_reopen(f);
        }
        unsigned parts = 0;
        assert_int_equal(store_part_list(f->s, "photos", "up", 2, id, 0, 9, count_part, &parts, NULL, NULL),
                         0);
        assert_int_equal(parts, 1);
    }
}

/* Without objects it is just made again; and one that is not damaged is made as ever. */
static void test_restored_without_objects(void **state)
{
    struct testing_store *f = *state;
    assert_int_equal(store_bucket_create(f->s, "other", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(f->s, "other", "k", 2, 200), 0);
    stop(f);
    damage(f->dir, copies[0], 2, 0);
    damage(f->dir, copies[1], 2, 0);
    start(f);
    check_damaged(f);
    assert_int_equal(store_bucket_restore(f->s, "photos", NULL, NULL), 0);
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 100), 0);
    assert_int_equal(store_bucket_restore(f->s, "third", NULL, NULL), 0);
    testing_reopen(f);
    check_whole(f, "{}");
    assert_int_equal(store_bucket_get(f->s, "third", NULL, NULL), 0);
    assert_int_equal(testing_check(f->s, "other", "k", 2, 200), 0);
}

static int count_upload(void *user, const struct store_upload *upload)
{
    ++*(unsigned *)user;
    return 0;
}

/* A bucket that is made while another one's description is damaged has not that one's id, and so nothing of what is in it. */
static void test_id_of_damaged(void **state)
{
    struct testing_store *f = *state;
    static const char *const lost[] = {"lost-objects", "lost-uploads"};
    struct store_list_spec all = {.max = 10};
    char id[STORE_UPLOAD_ID_TEXT], name[300];
    for (unsigned i = 0; i < 30; i++) { /* ids ahead of the clock, for as many seconds */
        snprintf(name, sizeof(name), "bucket-%u", i);
        assert_int_equal(store_bucket_create(f->s, name, 0, NULL, NULL), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(store_bucket_create(f->s, lost[i], 0, NULL, NULL), 0);
    assert_int_equal(testing_put(f->s, lost[0], "k", 1, 100), 0);
    assert_int_equal(store_upload_begin(f->s, lost[1], "up", 2, NULL, id, NULL), 0);
    stop(f);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s#copy", lost[i]);
        damage(f->dir, lost[i], 0, 30);
        damage(f->dir, name, 0, 30);
    }
    start(f);
    assert_int_equal(damaged_buckets(f->s), 2);
    for (unsigned i = 0; i < 2; i++) {
        unsigned objects = 0, uploads = 0;
        bool more;
        snprintf(name, sizeof(name), "new-%u", i);
        assert_int_equal(store_bucket_create(f->s, name, 0, NULL, NULL), 0);
        assert_int_equal(store_list(f->s, name, &all, count, &objects, &more, NULL), 0);
        assert_int_equal(
            store_upload_list(f->s, name, NULL, 0, NULL, 0, NULL, 10, count_upload, &uploads, &more, NULL),
            0);
        assert_int_equal(objects + uploads, 0);
    }
    assert_int_equal(store_bucket_restore(f->s, lost[0], NULL, NULL), 0);
    assert_int_equal(testing_check(f->s, lost[0], "k", 1, 100), 0);
}

/* The other path has it. */
static void test_two_paths(void **state)
{
    struct testing_store *f = *state;
    char dirs[2][300];
    const char *paths[2] = {dirs[0], dirs[1]};
    for (unsigned i = 0; i < 2; i++)
        snprintf(dirs[i], sizeof(dirs[i]), "%s/two-%u", f->dir, i);
    struct store *s = testing_open(paths, 2, NULL);
    assert_non_null(s);
    assert_int_equal(store_bucket_create(s, "photos", 0, NULL, NULL), 0);
    assert_int_equal(testing_put(s, "photos", "k", 1, 100), 0);
    for (unsigned i = 0; i < 2; i++) {
        store_free(s);
        for (unsigned copy = 0; copy < 2; copy++)
            damage(dirs[i], copies[copy], 0, 30);
        s = testing_open(paths, 2, NULL);
        assert_non_null(s);
        assert_int_equal(damaged_buckets(s), 0);
        assert_int_equal(testing_check(s, "photos", "k", 1, 100), 0);
        assert_true(same_files(dirs[i]));
    }
    store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_copy, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_all_copies, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_restored_without_objects, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_id_of_damaged, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_two_paths, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
