/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a remote source is kept, in a cache or beside it, and used while the source is the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#include <cmocka.h>

#include "dataset/index_internal.h"
#include "dataset/testing.h"
#include "failalloc.h"

/* In the place of libc's: what the disk says. */
static int flush_fails;

int fdatasync(int fd)
{
    errno = flush_fails;
    return flush_fails ? -1 : 0;
}

/* After a rename the index has a name: from then on any reader may look at it. */
static const char *watched;  /* in a tree */
static char added_then[600]; /* a folder that comes right behind the name; "": none */
static unsigned watched_writes;

int rename(const char *from, const char *to)
{
    int rc = renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (rc == 0 && watched && *added_then)
        assert_int_equal(mkdir(added_then, 0755), 0);
    return rc;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    const struct iovec v = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    ssize_t n = pwritev(fd, &v, 1, at);
    AUTO_CLOSE int beside = watched ? open(watched, O_RDONLY | O_CLOEXEC) : -1;
    struct index ix;
    if (beside < 0)
        return n;
    watched_writes++;
    assert_int_equal(index_map(beside, &ix, NULL), 0);
    assert_int_equal(index_check_body(beside, &ix, NULL), 0);
    index_close(&ix);
    return n;
}

static const struct dataset_progress *progress;

static bool opened(const char *text, uint64_t samples)
{
    struct dataset_spec spec;
    struct leat_error err = {0};
    struct index ix;
    bool scanned;
    int fd = -1;
    assert_int_equal(dataset_spec_parse(text, &spec, &err), 0);
    if (dataset_index_open(&spec, &testing_opener, progress, true, &fd, &scanned, &err) < 0)
        fail_msg("%s: %s", text, err.message);
    dataset_spec_free(&spec);
    assert_int_equal(index_map(fd, &ix, &err), 0);
    assert_int_equal(ix.header->nsamples, samples);
    index_close(&ix);
    close(fd);
    return scanned;
}

static void test_freshness(void **state)
{
    static const struct {
        const char *spec;
        uint64_t samples;
        const char *one; /* of its objects */
    } sets[] = {{"s3://bucket/tree", 5, "s3://bucket/tree/cat/1"},
                {"s3://bucket/tars", 5, "s3://bucket/tars/1.tar"},
                {"s3://bucket/tars/{0..2}.tar", 5, "s3://bucket/tars/2.tar"},
                {"s3://bucket/tars/*.tar", 5, "s3://bucket/tars/1.tar"},
                {"a=s3://bucket/a.npy;b=s3://bucket/b.npy", 10, "s3://bucket/b.npy"},
                {"s3://bucket/a.npy", 10, "s3://bucket/a.npy"}};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        struct far_object *o = far_find(sets[i].one);
        assert_true(opened(sets[i].spec, sets[i].samples));
        far.reads = 0;
        assert_false(opened(sets[i].spec, sets[i].samples));
        assert_int_equal(far.reads, 0);
        o->modified++; /* the ETag says more */
        assert_false(opened(sets[i].spec, sets[i].samples));
        far_put(o->uri, o->data, o->bytes); /* another ETag */
        assert_true(opened(sets[i].spec, sets[i].samples));
        assert_false(opened(sets[i].spec, sets[i].samples));
        far.no_etags = true; /* then times */
        assert_false(opened(sets[i].spec, sets[i].samples));
        o->modified++;
        assert_true(opened(sets[i].spec, sets[i].samples));
        far.no_etags = false;
    }
    assert_false(opened("s3://bucket/tree", 5));
    far_put("s3://bucket/tree/zz", "", 0); /* beside the class folders */
    assert_false(opened("s3://bucket/tree", 5));
    far_put("s3://bucket/tree/dog/zz", "", 0);
    assert_true(opened("s3://bucket/tree", 6));
    far_remove("s3://bucket/tree/dog/zz");
    far_remove("s3://bucket/tree/zz");
    assert_true(opened("s3://bucket/tree", 5));
    /* A folder whose objects are not wanted is a class all the same. */
    assert_true(opened("s3://bucket/tree#pattern=[1-3]", 3));
    assert_false(opened("s3://bucket/tree#pattern=[1-3]", 3));
    far_put("s3://bucket/tree/dog/zz", "", 0);
    assert_false(opened("s3://bucket/tree#pattern=[1-3]", 3));
    far_put("s3://bucket/tree//zz", "", 0); /* an empty name is none */
    assert_false(opened("s3://bucket/tree#pattern=[1-3]", 3));
    far_remove("s3://bucket/tree//zz");
    far_put("s3://bucket/tree/cow/zz", "", 0);
    assert_true(opened("s3://bucket/tree#pattern=[1-3]", 3));
    far_remove("s3://bucket/tree/cow/zz");
    assert_true(opened("s3://bucket/tree#pattern=[1-3]", 3));
    far_remove("s3://bucket/tree/dog/zz");
    far_put("s3://bucket/tree/.zz", "", 0);
    assert_false(opened("s3://bucket/tree", 5));
    opened("s3://bucket/tars", 5);
    far_put("s3://bucket/tars/x.json", "", 0);
    assert_false(opened("s3://bucket/tars", 5));
    far_put("s3://bucket/tars/x.txt", "", 0); /* a tree now */
    assert_true(opened("s3://bucket/tars", 5));
    far_remove("s3://bucket/tars/x.txt");
    far_remove("s3://bucket/tars/x.json");
}

/* An object that no tree would have as a sample decides whether the prefix is a tree. */
static void test_kind_changes(void **state)
{
    const struct far_object t = *far_find("s3://bucket/tars/2.tar"); /* it moves */
    far_put("s3://bucket/p/train/0.tar", t.data, t.bytes);
    far_put("s3://bucket/p/README.txt", "x", 1);
    assert_true(opened("s3://bucket/p", 1)); /* the whole archive */
    assert_false(opened("s3://bucket/p", 1));
    far_remove("s3://bucket/p/README.txt");
    assert_true(opened("s3://bucket/p", 1)); /* the one member */
    assert_false(opened("s3://bucket/p", 1));
    far_put("s3://bucket/p/README.txt", "x", 1);
    assert_true(opened("s3://bucket/p", 1));

    far_put("s3://bucket/docs/a/0.json", "{}", 2);
    far_put("s3://bucket/docs/b/0.json", "{}", 2);
    assert_true(opened("s3://bucket/docs", 2));
    assert_false(opened("s3://bucket/docs", 2));
    assert_true(opened("s3://bucket/docs#extensions=json", 2));
    far_put("s3://bucket/docs/x.tar", t.data, t.bytes); /* beside the class folders, were it a tree */
    assert_true(opened("s3://bucket/docs", 1));
    assert_false(opened("s3://bucket/docs#extensions=json", 2)); /* is a tree always */
}

static int write_index(const char *text, bool cache_ok, char **ret_path, struct leat_error *err)
{
    struct dataset_spec spec;
    int fd = -1;
    assert_int_equal(dataset_spec_parse(text, &spec, err), 0);
    int rc = dataset_index_write(&spec, &testing_opener, NULL, cache_ok, ret_path, &fd, err);
    dataset_spec_free(&spec);
    if (rc == 0) {
        struct index ix;
        assert_int_equal(index_map(fd, &ix, NULL), 0);
        index_close(&ix);
        close(fd);
    }
    return rc;
}

static void test_beside(void **state)
{
    static const struct {
        const char *spec, *beside;
        uint64_t samples;
    } sets[] = {{"s3://bucket/tree", "s3://bucket/tree/.leat-index", 5},
                {"s3://bucket/tree/", "s3://bucket/tree/.leat-index", 5},
                {"s3://bucket/tars", "s3://bucket/tars/.leat-index", 5},
                {"s3://bucket/a.npy", "s3://bucket/a.npy.leat-index", 10},
                {"s3://bucket/tars/0.tar", "s3://bucket/tars/0.tar.leat-index", 2}};
    struct leat_error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        char *path;
        testing_forget_cache();
        assert_int_equal(write_index(sets[i].spec, false, &path, &err), 0);
        assert_string_equal(path, sets[i].beside);
        free(path);
        struct far_object *o = far_find(sets[i].beside);
        assert_non_null(o);
        assert_false(opened(sets[i].spec, sets[i].samples));
        far.reads = 0; /* kept here now */
        assert_false(opened(sets[i].spec, sets[i].samples));
        assert_int_equal(far.reads, 0);
        testing_forget_cache();
        o->data[o->bytes / 2] ^= 0x55;
        o->data[600] ^= 0x55;
        opened(sets[i].spec, sets[i].samples); /* whatever: no error */
        testing_forget_cache();
        far_put(o->uri, "garbage", 7);
        assert_true(opened(sets[i].spec, sets[i].samples));
    }
    /* Of something else; put there by any user that may write there. */
    testing_forget_cache();
    char *path;
    assert_int_equal(write_index("s3://bucket/flat", false, &path, &err), 0);
    free(path);
    struct far_object *flat = far_find("s3://bucket/flat/.leat-index");
    far_put("s3://bucket/tree/.leat-index", flat->data, flat->bytes);
    assert_true(opened("s3://bucket/tree", 5));
    testing_forget_cache();
    far_put("s3://bucket/flat/x.jpg", "34", 2); /* stale */
    assert_true(opened("s3://bucket/flat", 2));
    /* No right to write: the cache, if that will do. */
    far.put_rc = LEAT_DENIED;
    testing_forget_cache();
    assert_int_equal(write_index("s3://bucket/flat", false, &path, &err), LEAT_DENIED);
    assert_non_null(strstr(err.message, "s3://bucket/flat/.leat-index"));
    far.lists = 0;
    assert_int_equal(write_index("s3://bucket/flat", true, &path, &err), 0);
    assert_int_equal(far.lists, 1);
    assert_int_equal(path[0], '/');
    free(path);
    assert_false(opened("s3://bucket/flat", 2));
    struct far_object *t = far_find("s3://bucket/tars/2.tar");
    far_put("http://host/x.tar", t->data, t->bytes);
    assert_int_equal(write_index("http://host/x.tar", false, &path, &err), LEAT_UNSUPPORTED);
    assert_int_equal(write_index("http://host/x.tar", true, &path, &err), 0);
    free(path);
}

static int open_one(const char *text)
{
    struct dataset_spec spec;
    struct leat_error err = {0};
    bool scanned;
    int fd = -1;
    int rc = dataset_spec_parse(text, &spec, &err);
    if (rc < 0)
        return rc;
    rc = dataset_index_open(&spec, &testing_opener, NULL, false, &fd, &scanned, &err);
    dataset_spec_free(&spec);
    if (fd >= 0)
        close(fd);
    assert_int_equal(far.open, 0);
    assert_int_equal(far.under_way, 0);
    return rc;
}

/* An index that cannot be looked at is made again: so an allocation that fails may still end well. */
static void test_allocations(void **state)
{
    struct leat_error err = {0};
    char *path;
    assert_int_equal(write_index("s3://bucket/tree", false, &path, &err), 0);
    free(path);
    for (unsigned nth = 1, n = 1; n >= nth; nth++) {
        size_t before = failalloc_live();
        failalloc_arm(nth);
        int rc = open_one("s3://bucket/tree");
        n = failalloc_disarm();
        assert_true(rc == 0 || rc == -ENOMEM);
        assert_int_equal(failalloc_live(), before);
    }
}

static int make_old(const char *path, const struct stat *st, int type, struct FTW *at)
{
    struct index_header h;
    int fd = type == FTW_F ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    assert_int_equal(pread(fd, &h, sizeof(h), 0), sizeof(h));
    h.layout = 0;
    h.header_crc = index_header_crc(&h);
    assert_int_equal(pwrite(fd, &h, sizeof(h), 0), sizeof(h));
    close(fd);
    return 0;
}

/* What an older Leat left in the cache is made again, once, if samples would have other addresses now. */
static void test_older_layout(void **state)
{
    char local[600];
    snprintf(local, sizeof(local), "%s/old.npy", testing_folder);
    testing_add_npy("old.npy", "(10, 3)");
    const struct {
        const char *spec;
        uint64_t samples;
        bool anew;
    } sets[] = {{local, 10, true}, {"s3://bucket/old.npy", 10, true}, {"s3://bucket/tars", 5, false}};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        assert_true(opened(sets[i].spec, sets[i].samples));
        assert_false(opened(sets[i].spec, sets[i].samples));
        assert_int_equal(nftw(getenv("XDG_CACHE_HOME"), make_old, 16, FTW_PHYS), 0);
        assert_int_equal(opened(sets[i].spec, sets[i].samples), sets[i].anew);
        assert_false(opened(sets[i].spec, sets[i].samples));
    }
}

/* What the disk may not have gets no name; the index is made in memory. */
static void test_not_on_disk(void **state)
{
    char local[600];
    snprintf(local, sizeof(local), "%s/flush.npy", testing_folder);
    testing_add_npy("flush.npy", "(10, 3)");
    flush_fails = EIO;
    assert_true(opened(local, 10));
    assert_true(opened(local, 10));
    flush_fails = 0;
    assert_true(opened(local, 10));
    assert_false(opened(local, 10));
}

/* An index in a tree touches the tree's root. It is whole at any moment, and true if nothing else touched the root. */
static void test_in_a_tree(void **state)
{
    char root[600], beside[600], *path;
    struct leat_error err = {0};
    snprintf(root, sizeof(root), "%s/tree", testing_folder);
    snprintf(beside, sizeof(beside), "%s/tree/.leat-index", testing_folder);
    watched = beside;
    assert_int_equal(write_index(root, false, &path, &err), 0);
    assert_string_equal(path, beside);
    free(path);
    assert_int_equal(watched_writes, 1);
    assert_false(opened(root, 5));
    assert_int_equal(unlink(beside), 0);
    snprintf(added_then, sizeof(added_then), "%s/tree/cow", testing_folder);
    assert_int_equal(write_index(root, false, &path, &err), 0);
    free(path);
    watched = NULL;
    assert_true(opened(root, 5)); /* it has a class more */
    assert_false(opened(root, 5));
}

/* As a clock with ticks of 9 ms would have it. */
static void set_time(const char *folder)
{
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_nsec -= times[0].tv_nsec % 9000000;
    times[1] = times[0];
    assert_int_equal(utimensat(AT_FDCWD, folder, times, 0), 0);
}

/* Comes when a folder has been read: the root, then its one class. */
static int add_behind(void *user, uint64_t samples, uint64_t bytes)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/tick/a", testing_folder);
    if (++*(unsigned *)user == 2) {
        testing_add("tick/a/2", "2", 1);
        set_time(path);
    }
    return 0;
}

/* A file that comes behind the reading of its folder, in the same tick of the clock, makes the index stale. */
static void test_same_tick(void **state)
{
    char root[600], folder[600], file[600];
    snprintf(root, sizeof(root), "%s/tick", testing_folder);
    snprintf(folder, sizeof(folder), "%s/tick/a", testing_folder);
    snprintf(file, sizeof(file), "%s/tick/a/2", testing_folder);
    testing_add("tick/a/1", "1", 1);
    for (unsigned i = 0; i < 20; i++) {
        unsigned calls = 0;
        struct dataset_progress adding = {.report = add_behind, .user = &calls};
        testing_forget_cache();
        set_time(folder);
        progress = &adding;
        assert_true(opened(root, 1));
        progress = NULL;
        assert_true(opened(root, 2));
        assert_false(opened(root, 2));
        assert_int_equal(unlink(file), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_freshness, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_kind_changes, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_beside, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_older_layout, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_not_on_disk, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_in_a_tree, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_same_tick, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_allocations, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
