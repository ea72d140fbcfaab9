/* SPDX-License-Identifier: Apache-2.0 */
/* A log that has lost its end: cut short, with zeros in its last page, or gone. No acknowledged object is deleted for it. */
#include <fcntl.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/testing_io.h"
#include "store/internal.h"
#include "store/testing.h"

enum { OBJECTS = 40 };

static const char *key_name(unsigned i)
{
    static char text[16];
    snprintf(text, sizeof(text), "k-%02u", i);
    return text;
}

static void fill(struct testing_store *f)
{
    for (unsigned i = 0; i < OBJECTS; i++)
        assert_int_equal(testing_put(f->s, "photos", key_name(i), i, 1000 + i), 0);
    assert_int_equal(testing_put(f->s, "photos", "deleted", 1, 10), 0);
    assert_int_equal(store_delete(f->s, "photos", "deleted", 7, 0, NULL), 0);
}

static unsigned whole(struct testing_store *f)
{
    unsigned n = 0;
    for (unsigned i = 0; i < OBJECTS; i++) {
        int rc = testing_check(f->s, "photos", key_name(i), i, 1000 + i);
        assert_true(rc == 0 || rc == LEAT_NOT_FOUND);
        n += rc == 0;
    }
    return n;
}

static unsigned count_files(struct testing_store *f, const char *folder)
{
    char dir[300];
    unsigned n = 0;
    snprintf(dir, sizeof(dir), "%s/%s", f->dir, folder);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* "": of the first path. */
static struct store_path_status status_of(struct testing_store *f)
{
    struct store_status *st = calloc(1, sizeof(*st));
    store_status(f->s, st);
    struct store_path_status path = st->paths[0];
    free(st);
    return path;
}

/* The end of its records: behind them are the zeros written ahead. */
static off_t end_of(struct testing_store *f, uint64_t number, char name[PATH_FILE_MAX])
{
    off_t at = LOG_HEADER_BYTES;
    snprintf(name, PATH_FILE_MAX, "%s/index/log.%016llx", f->dir, (unsigned long long)number);
    int fd = open(name, O_RDONLY);
    assert_true(fd >= 0);
    for (uint32_t bytes; pread(fd, &bytes, 4, at) == 4 && bytes;)
        at += bytes;
    close(fd);
    return at;
}

/* kind 0: as short as `left`; 1: that long, with zeros from `left` on; 2: no such file. */
static void lose_tail(struct testing_store *f, uint64_t number, unsigned kind, off_t left)
{
    char name[PATH_FILE_MAX];
    off_t end = end_of(f, number, name);
    assert_true(kind == 2 || left < end);
    assert_int_equal(kind == 2 ? unlink(name) : truncate(name, left), 0);
    if (kind == 1)
        assert_int_equal(truncate(name, end), 0);
}

static void restart(struct testing_store *f, bool clean, uint64_t number, unsigned kind, off_t left)
{
    if (!clean)
        atomic_store(&f->s->paths[0]->failed, true); /* as killed: nothing is closed in order */
    store_free(TAKE_PTR(f->s));
    lose_tail(f, number, kind, left);
    f->s = testing_open1(f->dir);
    assert_non_null(f->s);
}

/* Behind a clean end the next log says how long this one is: it is damaged, and all comes out of the files. */
static void test_after_a_clean_end(void **state)
{
    char name[PATH_FILE_MAX];
    for (unsigned round = 0; round < 13; round++) {
        testing_teardown(state);
        testing_setup(state);
        struct testing_store *f = *state;
        fill(f);
        uint64_t number = f->s->paths[0]->log.number;
        off_t end = end_of(f, number, name);
        const off_t left[] = {
            0,      LOG_HEADER_BYTES - 1, LOG_HEADER_BYTES, end / 2, align_up((uint64_t)end, 4096) - 4096,
            end - 1};
        restart(f, true, number, round / 6, round < 12 ? left[round % 6] : 0);
        assert_int_equal(whole(f), OBJECTS);
        assert_true(f->s->paths[0]->rebuilt);
        assert_int_equal(status_of(f).orphans, 0);
        assert_int_equal(count_files(f, "damaged"), 0);
        assert_int_equal(testing_put(f->s, "photos", "after", 1, 10), 0);
        testing_reopen(f);
        assert_false(f->s->paths[0]->rebuilt);
        assert_int_equal(whole(f), OBJECTS);
    }
}

/* The same where the next process was killed: its log has a record of the one before. */
static void test_of_an_older_log(void **state)
{
    for (unsigned clean = 0; clean < 2; clean++) {
        testing_teardown(state);
        testing_setup(state);
        struct testing_store *f = *state;
        fill(f);
        uint64_t number = f->s->paths[0]->log.number;
        if (!clean)
            atomic_store(&f->s->paths[0]->failed, true);
        testing_reopen(f);
        assert_int_equal(testing_put(f->s, "photos", "later", 1, 10), 0);
        restart(f, false, number, clean, 2000);
        assert_true(f->s->paths[0]->rebuilt);
        assert_int_equal(whole(f), OBJECTS);
        assert_int_equal(testing_check(f->s, "photos", "later", 1, 10), 0);
    }
}

/* Where a snapshot had begun, and did not come to its end. */
static void test_before_a_snapshot(void **state)
{
    struct testing_store *f = *state;
    struct store_fault *fault;
    const char *dir = f->dir;
    store_free(f->s);
    assert_int_equal(store_fault_new(dir, &fault), 0);
    f->s = testing_open(&dir, 1, store_fault_io(fault));
    assert_non_null(f->s);
    fill(f);
    uint64_t number = f->s->paths[0]->log.number;
    store_fault_fail(fault, 6, -ENOSPC); /* behind the new log: the snapshot's file */
    assert_int_equal(store_path_compact(f->s->paths[0]), -ENOSPC);
    store_fault_fail(fault, 0, 0);
    assert_int_equal(f->s->paths[0]->log.number, number + 1);
    assert_int_equal(testing_put(f->s, "photos", "later", 1, 10), 0);
    restart(f, false, number, 0, 2000);
    store_fault_free(fault);
    assert_true(f->s->paths[0]->rebuilt);
    assert_int_equal(whole(f), OBJECTS);
}

/* Where the process was killed between the new log and the header that knows the end of the one before: the next start writes that. */
static void test_killed_as_a_snapshot_begins(void **state)
{
    struct testing_store *f = *state;
    fill(f);
    uint64_t number = f->s->paths[0]->log.number;
    int fd;
    assert_int_equal(store_log_create(f->s->paths[0], &(struct log_header){.number = number + 1}, &fd), 0);
    close(fd);
    atomic_store(&f->s->paths[0]->failed, true);
    testing_reopen(f);
    assert_int_equal(f->s->paths[0]->log.number, number + 1);
    restart(f, true, number, 1, 2000);
    assert_true(f->s->paths[0]->rebuilt);
    assert_int_equal(whole(f), OBJECTS);
}

/* After a kill it is not known whether the log was longer. What it does not name is put aside, and counted: it is not deleted, and not written over. */
static void test_after_a_kill(void **state)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        testing_teardown(state);
        testing_setup(state);
        struct testing_store *f = *state;
        fill(f);
        testing_reopen(f);
        for (unsigned i = 0; i < 100;
             i++) { /* more than are made at a time: the log has lost that there are such numbers */
            char key[16];
            snprintf(key, sizeof(key), "more-%u", i);
            assert_int_equal(testing_put(f->s, "photos", key, i, 500), 0);
        }
        restart(f, false, f->s->paths[0]->log.number, kind, 1000);
        assert_false(f->s->paths[0]->rebuilt);
        assert_int_equal(whole(f), OBJECTS);
        unsigned there = (unsigned)status_of(f).objects - OBJECTS, orphans = (unsigned)status_of(f).orphans;
        assert_int_equal(there + orphans, 100);
        assert_true(orphans > 60);
        assert_int_equal(count_files(f, "orphans"), orphans);
        assert_int_equal(count_files(f, "damaged"), 0);
        assert_int_equal(status_of(f).corrupt, 0);
        for (unsigned i = 0; i < 150; i++) /* over numbers that orphans have */
            assert_int_equal(testing_put(f->s, "photos", "again", i, 700), 0);
        atomic_store(&f->s->paths[0]->failed, true);
        testing_reopen(f);
        assert_int_equal(status_of(f).orphans, orphans);
        assert_int_equal(count_files(f, "orphans"), orphans);
        testing_reopen(f);
        assert_int_equal(status_of(f).orphans, orphans);
    }
}

/* A PUT that was killed between trailer and record leaves one, which does not stay for ever. One that was refused leaves none. */
static void test_cut_short(void **state)
{
    struct testing_store *f = *state;
    struct store_fault *fault;
    const char *dir = f->dir;
    store_free(f->s);
    assert_int_equal(store_fault_new(dir, &fault), 0);
    f->s = testing_open(&dir, 1, store_fault_io(fault));
    assert_non_null(f->s);
    assert_int_equal(testing_put(f->s, "photos", "k", 1, 100), 0);
    struct store_put *put;
    assert_int_equal(store_put_begin(f->s, "photos", "k", 1, 3, 0, &put, NULL), 0);
    assert_int_equal(store_put_write(put, "abc", 3, NULL), 0);
    assert_int_equal(store_put_commit(put, &(struct store_commit){.if_none_match = true}, NULL, NULL),
                     STORE_PRECONDITION);
    store_fault_fail(fault, 3, -EIO); /* write, flush, record */
    assert_int_equal(testing_put(f->s, "photos", "new", 2, 200), STORE_UNAVAILABLE);
    store_fault_fail(fault, 0, 0);
    store_free(f->s);
    f->s = testing_open1(dir);
    store_fault_free(fault);
    assert_non_null(f->s);
    assert_int_equal(testing_check(f->s, "photos", "new", 2, 200), LEAT_NOT_FOUND);
    assert_int_equal(testing_check(f->s, "photos", "k", 1, 100), 0);
    assert_int_equal(status_of(f).orphans, 1);
    assert_int_equal(status_of(f).corrupt, 0);
    assert_int_equal(count_files(f, "damaged"), 0);
    assert_int_equal(testing_count_objects(f->dir), 1);
    store_tick(f->s); /* it is too young */
    assert_int_equal(status_of(f).orphans, 1);
    store_orphans_age(f->s->paths[0], store_wall_ns() + 1, NULL);
    assert_int_equal(status_of(f).orphans, 0);
    assert_int_equal(count_files(f, "orphans"), 0);
}

/* A restart in order is one log, not two: logs make snapshots due. */
static void test_logs_of_restarts(void **state)
{
    struct testing_store *f = *state;
    uint64_t number = f->s->paths[0]->log.number;
    for (unsigned i = 0; i < 4; i++)
        testing_reopen(f);
    assert_int_equal(f->s->paths[0]->log.number, number + 4);
    fill(f);
    testing_reopen(f);
    assert_int_equal(whole(f), OBJECTS);
    assert_int_equal(f->s->paths[0]->log.number, number + 5);
    assert_false(f->s->paths[0]->rebuilt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_after_a_clean_end, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_of_an_older_log, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_before_a_snapshot, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_killed_as_a_snapshot_begins, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_after_a_kill, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_cut_short, testing_setup, testing_teardown),
        cmocka_unit_test_setup_teardown(test_logs_of_restarts, testing_setup, testing_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
