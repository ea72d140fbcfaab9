/* SPDX-License-Identifier: Apache-2.0 */
/* The registry with its threads: start, abort, restart, kill -9, disks that fail. */
#include "jobs/testing.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/log.h"
#include "base/testing.h"
#include "failalloc.h"
#include "jobs/jobs.h"

static struct fixture {
    char top[256], dir[300];
    struct jobs *jobs;
    atomic_uint runs, aborts;
    atomic_bool go;    /* jobs end by themselves */
    atomic_bool stuck; /* jobs do not look whether they are aborted */
} f;

/* Until it may end, or is to. Its spec is an answer: "bad" fails. */
static int run(void *user, struct job *job, struct leat_error *err)
{
    size_t len;
    const char *spec = job_spec_data(job, &len);
    atomic_fetch_add(&f.runs, 1);
    job_add(job, JOB_ITEMS_TOTAL, 10);
    job_add(job, JOB_ITEMS, 3);
    job_add(job, JOB_BYTES, 3000);
    while (!atomic_load(&f.go) && (atomic_load(&f.stuck) || !job_aborted(job)))
        if (atomic_load(&f.stuck))
            test_pause_us(500);
        else
            job_sleep(job, NS_PER_S);
    if (len == 3 && memcmp(spec, "bad", 3) == 0)
        return error_set(err, LEAT_CORRUPT, "it is bad");
    if (len == 4 && memcmp(spec, "item", 4) == 0) {
        job_item_failed(job, "first");
        job_item_failed(job, "second");
    }
    return 0;
}

static void on_abort(void *user)
{
    atomic_fetch_add(&f.aborts, 1);
}

static const struct job_kind again = {.name = "again", .run = run, .resumes = true, .abort = on_abort};
static const struct job_kind once = {.name = "once", .run = run};
static const struct job_kind single = {.name = "single", .run = run, .resumes = true, .single = true};

static void begin_with(const struct jobs_config *config)
{
    struct leat_error err = {0};
    assert_int_equal(jobs_new(config, &f.jobs, &err), 0);
    jobs_register(f.jobs, &again);
    jobs_register(f.jobs, &once);
    jobs_register(f.jobs, &single);
    jobs_begin(f.jobs);
}

static void begin(void)
{
    begin_with(&(struct jobs_config){.dir = f.dir});
}

static void stop(void)
{
    assert_int_equal(jobs_stop(f.jobs, TEST_WAIT_S * NS_PER_S), 0);
    jobs_free(TAKE_PTR(f.jobs));
}

static int setup(void **state)
{
    (void)state;
    f = (struct fixture){0};
    folder_make(f.top);
    snprintf(f.dir, sizeof(f.dir), "%s/jobs", f.top);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    atomic_store(&f.stuck, false);
    if (f.jobs)
        stop();
    folder_remove(f.top);
    return 0;
}

static uint64_t start(const char *kind, const char *spec)
{
    struct leat_error err = {0};
    uint64_t id = 0;
    if (jobs_start(f.jobs,
                   &(struct job_spec){.kind = kind, .subject = "it", .data = spec, .len = strlen(spec)}, &id,
                   &err) < 0)
        fail_msg("%s", err.message);
    return id;
}

static struct job_info get(uint64_t id)
{
    struct job_info info = {0};
    assert_int_equal(jobs_get(f.jobs, id, &info), 0);
    return info;
}

static struct job_info ended(uint64_t id)
{
    test_wait_until(get(id).state > JOB_ABORTING);
    return get(id);
}

static void test_life(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct job_info info, *all;
    struct jobs_stats stats;
    unsigned n;
    uint64_t unused;
    begin();
    uint64_t good = start("again", "good"), bad = start("once", "bad"), item = start("once", "item"),
             aborted = start("again", "good");
    assert_true(good == 1 && bad == 2 && item == 3 && aborted == 4);
    test_wait_until(atomic_load(&f.runs) == 4);
    info = get(good);
    assert_true(info.state == JOB_RUNNING && info.durable && info.began_ns > 0 && info.ended_ns == 0);
    assert_true(info.counts[JOB_ITEMS] == 3 && info.counts[JOB_ITEMS_TOTAL] == 10 && info.bytes_per_s > 0);
    assert_string_equal(info.kind, "again");
    assert_string_equal(info.subject, "it");
    assert_int_equal(jobs_abort(f.jobs, aborted), 0);
    assert_int_equal(ended(aborted).state, JOB_CANCELLED);
    assert_int_equal(atomic_load(&f.aborts), 1);
    assert_int_equal(jobs_abort(f.jobs, aborted), 0); /* it has ended */
    assert_int_equal(jobs_abort(f.jobs, 99), LEAT_NOT_FOUND);
    assert_int_equal(jobs_get(f.jobs, 99, &info), LEAT_NOT_FOUND);
    jobs_stats(f.jobs, &stats);
    assert_true(stats.running == 3 && stats.ended == 1 && stats.durable);
    atomic_store(&f.go, true);
    assert_int_equal(ended(good).state, JOB_DONE);
    info = ended(bad);
    assert_int_equal(info.state, JOB_FAILED);
    assert_string_equal(info.error, "it is bad");
    info = ended(item);
    assert_true(info.state == JOB_DONE && info.counts[JOB_FAILED_ITEMS] == 2 && info.ended_ns > 0);
    assert_string_equal(info.error, "first");
    assert_int_equal(jobs_list(f.jobs, &all, &n), 0);
    assert_int_equal(n, 4);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(all[i].id, 4 - i);
    free(all);
    assert_int_equal(jobs_start(f.jobs, &(struct job_spec){.kind = "none", .subject = ""}, &unused, &err),
                     LEAT_INVALID);
    assert_int_equal(jobs_start(f.jobs,
                                &(struct job_spec){.kind = "once", .subject = "", .len = JOB_SPEC_MAX + 1},
                                &unused, &err),
                     LEAT_INVALID);
    stop();
    begin(); /* those that have ended are known, and none runs again */
    assert_int_equal(get(good).state, JOB_DONE);
    assert_string_equal(get(bad).error, "it is bad");
    assert_int_equal(get(item).counts[JOB_FAILED_ITEMS], 2);
    assert_int_equal(atomic_load(&f.runs), 4);
    assert_int_equal(start("once", ""), 5);
}

static void test_bounds(void **state)
{
    (void)state;
    struct leat_error err = {0};
    struct job_info *all;
    unsigned n;
    uint64_t id, one;
    begin();
    for (unsigned i = 0; i < JOBS_RUNNING_MAX; i++)
        start("again", "");
    struct job_spec spec = {.kind = "again", .subject = ""};
    assert_int_equal(jobs_start(f.jobs, &spec, &id, &err), LEAT_BUSY);
    assert_non_null(strstr(err.message, "16 jobs run already"));
    one = start("single", "");
    assert_int_equal(start("single", ""), one);
    atomic_store(&f.go, true);
    assert_int_equal(ended(one).state, JOB_DONE);
    struct jobs_stats stats;
    test_wait_until((jobs_stats(f.jobs, &stats), stats.running == 0));
    for (unsigned i = 0; i < JOBS_ENDED_MAX + 40; i++)
        ended(start("once", ""));
    assert_int_equal(jobs_list(f.jobs, &all, &n), 0);
    free(all);
    assert_in_range(n, JOBS_ENDED_MAX, JOBS_ENDED_MAX + 2);
    stop();
    assert_int_equal(jobs_new(&(struct jobs_config){.dir = f.dir}, &f.jobs, &err), 0);
    jobs_halt(f.jobs);
    jobs_register(f.jobs, &again);
    assert_int_equal(jobs_start(f.jobs, &spec, &id, &err), LEAT_BUSY);
    assert_string_equal(err.message, "the service stops");
}

/* The service stops: jobs continue after the next start, as their kind says. */
static void test_restart(void **state)
{
    (void)state;
    begin();
    uint64_t a = start("again", "good"), b = start("once", "good");
    test_wait_until(atomic_load(&f.runs) == 2);
    stop();
    begin();
    test_wait_until(atomic_load(&f.runs) == 3);
    struct job_info info = get(a);
    assert_true(info.state == JOB_RUNNING && info.restarts == 1 && info.durable);
    info = get(b);
    assert_int_equal(info.state, JOB_INTERRUPTED);
    assert_non_null(strstr(info.error, "start it again"));
    atomic_store(&f.go, true);
    assert_int_equal(ended(a).state, JOB_DONE);
    assert_int_equal(ended(a).counts[JOB_ITEMS], 3);
    assert_int_equal(atomic_load(&f.runs), 3);
    stop();
    begin();
    assert_int_equal(get(a).state, JOB_DONE);
    assert_int_equal(get(b).state, JOB_INTERRUPTED);
}

/* One that does not end is named, and left; then it ends after all. */
static void test_stuck(void **state)
{
    (void)state;
    atomic_store(&f.stuck, true);
    begin();
    start("again", "");
    assert_int_equal(jobs_stop(f.jobs, NS_PER_MS), LEAT_TIMED_OUT);
    atomic_store(&f.stuck, false);
    stop();
}

/* A process that begins, and is killed at any moment of its starts, aborts and ends: what it said before is true for the next one. */
static void child(int to, unsigned round)
{
    uint64_t ids[200];
    unsigned n = 0, aborted = 0;
    atomic_store(&f.go, round % 3 == 0);
    begin();
    for (unsigned i = 0; i < ARRAY_LEN(ids); i++) {
        if (jobs_start(f.jobs, &(struct job_spec){.kind = "again", .subject = "it"}, &ids[n], NULL) == 0)
            dprintf(to, "s%llu\n", (unsigned long long)ids[n++]);
        if (i % 2 && aborted < n && jobs_abort(f.jobs, ids[aborted]) == 0)
            dprintf(to, "a%llu\n", (unsigned long long)ids[aborted++]);
    }
    raise(SIGKILL);
}

static void test_killed(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (unsigned round = 0; round < 12; round++) {
        int pipes[2], status;
        assert_int_equal(pipe(pipes), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(pipes[0]);
            child(pipes[1], round);
            _exit(1);
        }
        close(pipes[1]);
        FILE *said = fdopen(pipes[0], "r");
        char line[64];
        uint64_t started[256], aborted[256];
        unsigned nstarted = 0, naborted = 0, stop_at = 5 + round * 9;
        while (nstarted < 256 && naborted < 256 && fgets(line, sizeof(line), said)) {
            uint64_t id = strtoull(line + 1, NULL, 10);
            if (line[0] == 's')
                started[nstarted++] = id;
            else
                aborted[naborted++] = id;
            if (nstarted == stop_at)
                kill(pid, SIGKILL);
        }
        fclose(said);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        for (unsigned i = 0; i < nstarted; i++) {
            assert_true(started[i] > last);
            last = started[i];
        }
        atomic_store(&f.go, false);
        begin();
        struct job_info info;
        for (unsigned i = 0; i < nstarted; i++)
            if (nstarted - i < 60)
                assert_int_equal(jobs_get(f.jobs, started[i], &info), 0);
        for (unsigned i = 0; i < naborted; i++)
            if (jobs_get(f.jobs, aborted[i], &info) == 0)
                assert_true(info.state == JOB_CANCELLED || info.state == JOB_DONE);
        atomic_store(&f.go, true);
        stop();
    }
    assert_true(last > 12);
}

/* Damage, another version, a folder that cannot be: jobs run, ids are new ones, and what was there is kept. */
static void test_bad_journal(void **state)
{
    (void)state;
    struct jobs_stats stats;
    atomic_store(&f.go, true);
    begin();
    for (unsigned i = 0; i < 4; i++)
        ended(start("again", ""));
    stop();
    char path[400];
    snprintf(path, sizeof(path), "%s/journal", f.dir);
    FILE *file = fopen(path, "r+");
    assert_int_equal(fseek(file, -20, SEEK_END), 0);
    fputc('!', file);
    fclose(file);
    begin();
    assert_true(file_is(f.dir, "journal.unread", 0600));
    assert_int_equal(get(3).state, JOB_DONE);
    uint64_t id = start("again", "");
    assert_true(id > 1500000000000ull); /* from the clock: what was lost may have had any */
    assert_int_equal(start("again", ""), id + 1);
    stop();
    begin();
    assert_int_equal(ended(id).state, JOB_DONE);
    stop();
    file_write(f.dir, "journal", "leat-jobs 2\n...", 15);
    begin();
    struct job_info info;
    assert_int_equal(jobs_get(f.jobs, id, &info), LEAT_NOT_FOUND);
    assert_true(start("again", "") > id);
    stop();
    folder_remove(f.dir);
    file_write(f.top, "jobs", "no folder", 9);
    begin();
    id = start("again", "");
    assert_true(id > 1500000000000ull);
    info = ended(id);
    assert_true(info.state == JOB_DONE && !info.durable);
    jobs_stats(f.jobs, &stats);
    assert_false(stats.durable);
    /* There is a folder now: the next change writes all. */
    assert_int_equal(unlink(f.dir), 0);
    uint64_t next = start("again", "");
    assert_true(get(id).durable && get(next).durable);
    stop();
    begin();
    assert_int_equal(get(id).state, JOB_DONE);
}

/* Disks that come and go: what another folder has moves here, once. */
static void test_folders(void **state)
{
    (void)state;
    char other[300];
    const char *others[] = {other};
    snprintf(other, sizeof(other), "%s/other", f.top);
    atomic_store(&f.go, true);
    begin_with(&(struct jobs_config){.dir = other});
    uint64_t a = start("again", "");
    ended(a);
    stop();
    begin_with(&(struct jobs_config){.dir = f.dir, .others_missing = true});
    uint64_t b = start("again", ""); /* not 1: it may stand in the folder that is away */
    assert_true(b > 1500000000000ull);
    ended(b);
    stop();
    begin_with(&(struct jobs_config){.dir = f.dir, .others = others, .nothers = 1});
    assert_int_equal(get(a).state, JOB_DONE);
    assert_int_equal(get(b).state, JOB_DONE);
    assert_false(file_is(other, "journal", 0600));
    assert_int_equal(start("again", ""), b + 1);
    stop();
    begin_with(&(struct jobs_config){0}); /* in memory alone */
    uint64_t c = start("again", "");
    assert_false(ended(c).durable);
}

/* A folder whose journal cannot be removed is tried again; ids of one that is away are not given again. */
static void test_stale_folder(void **state)
{
    (void)state;
    char other[300], name[400];
    const char *others[] = {other};
    struct leat_error err;
    snprintf(other, sizeof(other), "%s/other", f.top);
    snprintf(name, sizeof(name), "%s/journal", other);
    atomic_store(&f.go, true);
    begin();
    ended(start("again", ""));
    stop();
    begin_with(&(struct jobs_config){.dir = f.dir, .others_missing = true});
    assert_true(start("again", "") > 1500000000000ull); /* one is found, and the other may have later ones */
    stop();
    begin_with(&(struct jobs_config){.dir = other});
    stop();
    struct jobs_config config = {.dir = f.dir, .others = others, .nothers = 1};
    assert_int_equal(jobs_new(&config, &f.jobs, &err), 0);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(mkdir(name, 0700), 0);
    jobs_begin(f.jobs); /* cannot remove a folder */
    assert_int_equal(rmdir(name), 0);
    file_write(other, "journal", "x", 1);
    stop();
    assert_int_equal(access(name, F_OK), -1);
}

static struct {
    atomic_bool armed, over;
    pthread_t thread;
    uint64_t id;
} aborter;

static void *abort_it(void *arg)
{
    assert_int_equal(jobs_abort(f.jobs, aborter.id), 0);
    atomic_store(&aborter.over, true);
    return arg;
}

/* In front of libc's: the record of a start is flushed, and an abort comes. */
int fdatasync(int fd)
{
    if (atomic_exchange(&aborter.armed, false)) {
        pthread_create(&aborter.thread, NULL, abort_it, NULL);
        test_wait_until(atomic_load(&aborter.over) || get(aborter.id).state == JOB_ABORTING);
    }
    return (int)syscall(SYS_fdatasync, fd);
}

/* An abort before the job's thread has begun is no less one, and the job does nothing. */
static void test_abort_at_once(void **state)
{
    (void)state;
    begin();
    aborter.id = start("again", "") + 1;
    test_wait_until(atomic_load(&f.runs) == 1);
    atomic_store(&aborter.armed, true);
    assert_int_equal(start("again", ""), aborter.id);
    assert_int_equal(ended(aborter.id).state, JOB_CANCELLED);
    pthread_join(aborter.thread, NULL);
    assert_false(atomic_load(&aborter.armed));
    assert_int_equal(atomic_load(&f.runs), 1);
    /* Also one that came before jobs_begin. */
    struct leat_error err;
    uint64_t id = start("again", "");
    stop();
    assert_int_equal(jobs_new(&(struct jobs_config){.dir = f.dir}, &f.jobs, &err), 0);
    jobs_register(f.jobs, &again);
    assert_int_equal(jobs_abort(f.jobs, id), 0);
    jobs_begin(f.jobs);
    assert_int_equal(ended(id).state, JOB_CANCELLED);
}

/* Each allocation fails in turn: nothing leaks, and a job that is shown as durable is there after a restart. */
static void test_no_memory(void **state)
{
    (void)state;
    struct jobs_config config = {.dir = f.dir};
    struct job_spec spec = {.kind = "again", .subject = "it", .data = "spec", .len = 4};
    struct leat_error err;
    bool refused = true;
    atomic_store(&f.go, true);
    log_set_level(LOG_LEVEL_ERROR);
    for (unsigned nth = 1; refused; nth++) {
        struct job_info info = {0}, after;
        uint64_t id = 0;
        begin();
        ended(start("again", ""));
        stop();
        size_t live = failalloc_live();
        failalloc_arm(nth);
        int rc = jobs_new(&config, &f.jobs, &err);
        if (rc == 0) {
            jobs_register(f.jobs, &again);
            jobs_begin(f.jobs);
            rc = jobs_start(f.jobs, &spec, &id, &err);
            if (rc == 0) {
                uint64_t second;
                rc = jobs_start(f.jobs, &spec, &second, &err);
                info = ended(id);
            }
            stop();
        }
        refused = failalloc_disarm() >= nth;
        assert_true(rc == 0 || rc == -ENOMEM);
        assert_int_equal(failalloc_live(), live);
        assert_int_equal(jobs_new(&config, &f.jobs, &err), 0);
        assert_true(!info.durable || jobs_get(f.jobs, id, &after) == 0);
        jobs_free(TAKE_PTR(f.jobs));
        folder_remove(f.dir);
    }
    log_set_level(LOG_LEVEL_WARNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stuck, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_journal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stale_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
