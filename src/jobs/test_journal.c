/* SPDX-License-Identifier: Apache-2.0 */
/* The journal: cut off at each byte, each bit flipped; files that cannot be written. */
#include "jobs/testing.h"

#include <signal.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "jobs/jobs_internal.h"

#define NOW (100000 * NS_PER_S)

/* Four jobs after a rewrite, then changes of them; ends[i]: where record i ends. */
static unsigned sample(struct bytes_out *out, size_t ends[16])
{
    struct jobs_table t;
    struct job *jobs[4];
    unsigned n = 0;
    jobs_table_init(&t);
    for (unsigned i = 0; i < 3; i++) {
        char subject[] = "bucket/prefix-0";
        subject[14] = (char)('0' + i);
        struct job_spec spec = {.kind = "prefetch", .subject = subject, .data = "\0\1\2\3", .len = 1 + i};
        jobs[i] = jobs_start_step(&t, &spec, 7);
        atomic_store(&jobs[i]->counts[JOB_ITEMS], 1000 + i);
    }
    jobs_end_step(&t, jobs[0], LEAT_CORRUPT, "why", false, NOW - 500 * NS_PER_S, 9);
    jobs_table_put(&t, NOW, out);
    ends[n++] = out->len;
    jobs[3] = jobs_start_step(&t, &(struct job_spec){.kind = "evict", .subject = ""}, 8);
    job_put(jobs[3], NOW, out);
    ends[n++] = out->len;
    job_move(&t, jobs[1], JOB_ABORTING);
    job_put_state(jobs[1], NOW, out);
    ends[n++] = out->len;
    jobs_end_step(&t, jobs[1], 0, "", false, NOW, 11);
    job_put_state(jobs[1], NOW, out);
    ends[n++] = out->len;
    jobs_end_step(&t, jobs[2], 0, "", false, NOW, 12);
    job_put_state(jobs[2], NOW, out);
    ends[n++] = out->len;
    job_move(&t, jobs[0], JOB_FORGOTTEN);
    job_put_state(jobs[0], NOW, out);
    ends[n++] = out->len;
    assert_false(out->failed);
    jobs_table_fini(&t);
    return n;
}

static enum job_state state_of(const struct jobs_table *t, uint64_t id)
{
    const struct job *job = jobs_table_find(t, id);
    return job ? job->state : JOB_FORGOTTEN;
}

/* What is there after the first `records` of the changes. */
static void assert_prefix(const struct jobs_table *t, unsigned records)
{
    assert_int_equal(state_of(t, 1), records >= 6 ? JOB_FORGOTTEN : JOB_FAILED);
    assert_int_equal(state_of(t, 2), records >= 4   ? JOB_CANCELLED
                                     : records >= 3 ? JOB_ABORTING
                                                    : JOB_RUNNING);
    assert_int_equal(state_of(t, 3), records >= 5 ? JOB_DONE : JOB_RUNNING);
    assert_int_equal(state_of(t, 4), records >= 2 ? JOB_RUNNING : JOB_FORGOTTEN);
    assert_int_equal(t->next_id, records >= 2 ? 5 : 4);
    assert_int_equal(t->running, (records < 4) + (records < 5) + (records >= 2));
}

static void test_whole(void **state)
{
    (void)state;
    AUTO_BYTES struct bytes_out out = {0};
    size_t ends[16], good;
    unsigned n = sample(&out, ends);
    struct jobs_table t;
    jobs_table_init(&t);
    assert_int_equal(jobs_table_read(&t, out.data, ends[0], 2000 * NS_PER_S, &good), JOURNAL_WHOLE);
    const struct job *job = jobs_table_find(&t, 1);
    assert_string_equal(job->kind, "prefetch");
    assert_string_equal(job->subject, "bucket/prefix-0");
    assert_string_equal(job->error, "why");
    assert_true(job->began_ns == 7 && job->ended_ns == 9 && job->counts[JOB_ITEMS] == 1000 && !job->spec);
    assert_int_equal(job->ended_at_ns, (int64_t)(1500 * NS_PER_S));
    job = jobs_table_find(&t, 3);
    assert_true(job->spec_len == 3 && memcmp(job->spec, "\0\1\2", 3) == 0 && job->durable);
    assert_prefix(&t, 1);
    jobs_table_fini(&t);
    jobs_table_init(&t);
    assert_int_equal(jobs_table_read(&t, out.data, out.len, NOW, &good), JOURNAL_WHOLE);
    assert_prefix(&t, n);
    jobs_table_fini(&t);
}

/* A power cut leaves any beginning of what was not flushed: the records before are read, and the cut is noticed within one. */
static void test_cut(void **state)
{
    (void)state;
    AUTO_BYTES struct bytes_out out = {0};
    size_t ends[16], good;
    unsigned n = sample(&out, ends);
    for (size_t len = ends[0]; len <= out.len; len++) {
        struct jobs_table t;
        unsigned whole = 0;
        while (whole < n && ends[whole] <= len)
            whole++;
        uint8_t *exact = malloc(len);
        memcpy(exact, out.data, len);
        jobs_table_init(&t);
        enum journal_verdict verdict = jobs_table_read(&t, exact, len, NOW, &good);
        assert_int_equal(good, ends[whole - 1]);
        assert_int_equal(verdict, len == ends[whole - 1] ? JOURNAL_WHOLE : JOURNAL_DAMAGED);
        assert_prefix(&t, whole);
        jobs_table_fini(&t);
        free(exact);
    }
    for (size_t len = 0; len < ends[0]; len++) {
        struct jobs_table t;
        jobs_table_init(&t);
        enum journal_verdict verdict = jobs_table_read(&t, out.data, len, NOW, &good);
        assert_true(good <= len && (verdict != JOURNAL_WHOLE || good == len));
        assert_true(len >= 12 || verdict == JOURNAL_FOREIGN);
        jobs_table_fini(&t);
    }
}

/* Each bit: nothing but what stands before it is believed. */
static void test_flips(void **state)
{
    (void)state;
    AUTO_BYTES struct bytes_out out = {0};
    size_t ends[16], good;
    unsigned n = sample(&out, ends);
    for (size_t bit = 0; bit < 8 * out.len; bit++) {
        struct jobs_table t;
        unsigned whole = 0;
        while (whole < n && ends[whole] <= bit / 8)
            whole++;
        jobs_table_init(&t);
        out.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        enum journal_verdict verdict = jobs_table_read(&t, out.data, out.len, NOW, &good);
        out.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(verdict, bit / 8 < 12 ? JOURNAL_FOREIGN : JOURNAL_DAMAGED);
        assert_true(good <= bit / 8);
        if (whole) {
            assert_int_equal(good, ends[whole - 1]);
            assert_prefix(&t, whole);
        }
        jobs_table_fini(&t);
    }
}

/* Records whose sum is right, and which no table would write: they end what is read, and no assertion. */
static void test_senseless(void **state)
{
    (void)state;
    struct jobs_table t;
    size_t good;
    struct job job = {.id = 3, .kind = "k", .state = JOB_DONE, .subject = (char[]){"s"}};
    static const struct {
        uint64_t id;
        enum job_state state;
        bool whole, good;
    } next[] = {
        {3, JOB_RUNNING, false, false}, /* it has ended */
        {3, JOB_DONE, false, true},
        {3, JOB_FORGOTTEN, false, true},
        {4, JOB_DONE, false, false},
        {2, JOB_RUNNING, true, false}, /* ids grow */
        {3, JOB_RUNNING, true, false},
        {4, JOB_RUNNING, true, true},
        {4, JOB_FORGOTTEN, true, false},
        {0, JOB_RUNNING, true, false},
        {UINT64_MAX, JOB_RUNNING, true, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(next); i++) {
        AUTO_BYTES struct bytes_out out = {0};
        jobs_table_init(&t);
        jobs_table_put(&t, NOW, &out);
        job_put(&job, NOW, &out);
        struct job other = {.id = next[i].id, .kind = "k", .state = next[i].state, .subject = (char[]){"s"}};
        if (next[i].whole)
            job_put(&other, NOW, &out);
        else
            job_put_state(&other, NOW, &out);
        enum journal_verdict verdict = jobs_table_read(&t, out.data, out.len, NOW, &good);
        assert_int_equal(verdict, next[i].good ? JOURNAL_WHOLE : JOURNAL_DAMAGED);
        jobs_table_fini(&t);
    }
    jobs_table_init(&t);
    assert_int_equal(jobs_table_read(&t, "leat-jobs 2\nwhatever", 20, NOW, &good), JOURNAL_FOREIGN);
    assert_int_equal(jobs_table_read(&t, "", 0, NOW, &good), JOURNAL_FOREIGN);
}

/* --- files ------------------------------------------------------------------------------------------------------------------------ */

static void assert_file(const char *dir, const char *wanted)
{
    AUTO_FREE uint8_t *data = NULL;
    size_t len;
    assert_int_equal(journal_load(dir, &data, &len), 0);
    assert_int_equal(len, strlen(wanted));
    assert_memory_equal(data, wanted, len);
}

static void test_files(void **state)
{
    (void)state;
    char top[256], dir[300];
    uint8_t *data;
    size_t len;
    folder_make(top);
    snprintf(dir, sizeof(dir), "%s/jobs", top);
    struct journal j = {.dir = dir, .fd = -1};
    assert_int_equal(journal_load(dir, &data, &len), -ENOENT);
    assert_int_equal(journal_append(&j, "x", 1), -EBADF);
    assert_int_equal(journal_rewrite(&j, "one", 3), 0);
    assert_true(file_is(top, "jobs", 0700) && file_is(dir, "journal", 0600));
    assert_int_equal(journal_append(&j, "two", 3), 0);
    assert_file(dir, "onetwo");
    assert_int_equal(journal_rewrite(&j, "three", 5), 0);
    assert_int_equal(journal_append(&j, "four", 4), 0);
    assert_file(dir, "threefour");
    assert_int_equal(journal_keep(dir), 0);
    assert_int_equal(journal_rewrite(&j, "five", 4), 0);
    assert_int_equal(journal_keep(dir), 0); /* the one kept before goes */
    assert_true(file_is(dir, "journal.unread", 0600));
    /* A disk that is full in the middle of a record, and then has room again. */
    struct rlimit was, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = (struct rlimit){.rlim_cur = 6, .rlim_max = was.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int appended = journal_append(&j, "a record", 8);
    int again = journal_append(&j, "b", 1), rewritten = journal_rewrite(&j, "all of it", 9);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(appended, -EFBIG);
    assert_int_equal(again, -EBADF); /* nothing stands behind what may be half a record */
    assert_int_equal(rewritten, -EFBIG);
    assert_file(dir, "fivea ");
    assert_int_equal(access("journal#tmp", F_OK), -1);
    assert_int_equal(journal_rewrite(&j, "all of it", 9), 0);
    assert_file(dir, "all of it");
    assert_int_equal(journal_remove(dir), 0);
    assert_int_equal(journal_load(dir, &data, &len), -ENOENT);
    close(j.fd);
    /* No folder, and no file: neither is followed, nor waited for. */
    snprintf(dir, sizeof(dir), "%s/file", top);
    file_write(top, "file", "x", 1);
    j = (struct journal){.dir = dir, .fd = -1};
    assert_int_equal(journal_rewrite(&j, "one", 3), -ENOTDIR);
    assert_int_equal(journal_load(dir, &data, &len), -ENOTDIR);
    snprintf(dir, sizeof(dir), "%s/jobs/journal", top);
    assert_int_equal(mkfifo(dir, 0600), 0);
    snprintf(dir, sizeof(dir), "%s/jobs", top);
    assert_int_equal(journal_load(dir, &data, &len), -EFBIG);
    assert_int_equal(journal_remove(dir), 0);
    snprintf(dir, sizeof(dir), "%s/jobs/journal", top);
    assert_int_equal(symlink("../file", dir), 0);
    snprintf(dir, sizeof(dir), "%s/jobs", top);
    assert_int_equal(journal_load(dir, &data, &len), -ELOOP);
    folder_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),     cmocka_unit_test(test_cut),   cmocka_unit_test(test_flips),
        cmocka_unit_test(test_senseless), cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
