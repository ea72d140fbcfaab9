/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions about jobs, in virtual time: schedules by seed of starts, ends, aborts, clocks that jump, kills and power cuts, with the journal's bytes
 * for a disk. LEAT_SIM_SEEDS: how many schedules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "jobs/jobs_internal.h"

#define JOBS  3000u
#define STEPS 400u

/* What a client knows of a job, as it was answered. */
struct known {
    uint64_t id;
    bool resumes, aborted;
    enum job_state state;
    uint64_t ended_at_ns; /* of the service's time: a day of it */
};

struct sim {
    uint64_t rng;
    struct jobs_table t;
    struct bytes_out disk;
    uint64_t now_ns; /* monotonic */
    int64_t wall_ns;
    struct known known[JOBS];
    unsigned n;
    uint64_t last_id;
};

static uint64_t any(struct sim *s, uint64_t below)
{
    return rng_below(&s->rng, below);
}

static void start(struct sim *s)
{
    bool resumes = any(s, 3) != 0;
    struct job_spec spec = {.kind = resumes ? "again" : "once", .subject = "bkt/x", .data = "spec", .len = 4};
    unsigned running = s->t.running;
    struct leat_error err;
    if (jobs_admit_step(&s->t, false, &err) < 0) {
        assert_int_equal(running, JOBS_RUNNING_MAX);
        return;
    }
    assert_true(running < JOBS_RUNNING_MAX);
    struct job *job = jobs_start_step(&s->t, &spec, s->wall_ns);
    job_put(job, s->now_ns, &s->disk);
    assert_true(job->id > s->last_id);
    s->last_id = job->id;
    s->known[s->n++] = (struct known){.id = job->id, .resumes = resumes};
}

static struct known *a_known(struct sim *s)
{
    return s->n ? &s->known[any(s, MIN(s->n, 40u)) + (s->n > 40 ? s->n - 40 : 0)] : NULL;
}

static void end(struct sim *s)
{
    struct known *k = a_known(s);
    struct job *job = k ? jobs_table_find(&s->t, k->id) : NULL;
    bool stopping = any(s, 10) == 0;
    int rc = any(s, 4) ? 0 : LEAT_CORRUPT;
    if (!job || job_has_ended(job))
        return;
    if (!jobs_end_step(&s->t, job, rc, "broken", stopping, s->now_ns, s->wall_ns)) {
        assert_true(stopping && job->state == JOB_RUNNING);
        return;
    }
    assert_int_equal(job->state, k->aborted ? JOB_CANCELLED : rc < 0 ? JOB_FAILED : JOB_DONE);
    k->state = job->state;
    k->ended_at_ns = s->now_ns;
    job_put_state(job, s->now_ns, &s->disk);
}

static void abort_one(struct sim *s)
{
    struct known *k = a_known(s);
    struct job *job = k ? jobs_table_find(&s->t, k->id) : NULL;
    if (!job || job->state != JOB_RUNNING)
        return;
    atomic_store(&job->abort, true);
    job_move(&s->t, job, JOB_ABORTING);
    job_put_state(job, s->now_ns, &s->disk);
    k->aborted = true;
}

static void rewrite(struct sim *s)
{
    bytes_out_reset(&s->disk);
    jobs_table_put(&s->t, s->now_ns, &s->disk);
}

static void forget(struct sim *s)
{
    struct job *job;
    while ((job = jobs_forget_step(&s->t, s->now_ns))) {
        assert_int_equal(job->state, JOB_FORGOTTEN);
        job_put_state(job, s->now_ns, &s->disk);
        job_free(job);
    }
    assert_true(s->t.n - s->t.running <= JOBS_ENDED_MAX);
}

/* Each job that was answered for is there as it was answered, unless it may be forgotten. */
static void check(struct sim *s)
{
    unsigned newer = 0;
    for (unsigned i = s->n; i-- > 0;) {
        const struct known *k = &s->known[i];
        const struct job *job = jobs_table_find(&s->t, k->id);
        bool ended = k->state > JOB_ABORTING;
        if (!job) {
            assert_true(ended);
            assert_true(newer >= JOBS_ENDED_MAX || s->now_ns - k->ended_at_ns >= JOBS_ENDED_S * NS_PER_S);
        } else {
            assert_int_equal(job->state, ended ? k->state : k->aborted ? JOB_ABORTING : JOB_RUNNING);
            assert_true(ended || (job->spec_len == 4 && memcmp(job->spec, "spec", 4) == 0));
            assert_string_equal(job->subject, "bkt/x");
        }
        newer += ended;
    }
}

/* The process is killed. torn: the power went while a record was written that no client had an answer about. */
static void restart(struct sim *s, bool torn)
{
    uint64_t next_id = s->t.next_id;
    size_t good, whole = s->disk.len;
    if (torn) {
        struct job extra = {.id = s->t.next_id, .kind = "again", .subject = (char[]){"bkt/torn"}};
        job_put(&extra, s->now_ns, &s->disk);
        s->disk.len = whole + 1 + any(s, s->disk.len - whole - 1);
    }
    jobs_table_fini(&s->t);
    jobs_table_init(&s->t);
    enum journal_verdict verdict = jobs_table_read(&s->t, s->disk.data, s->disk.len, s->now_ns, &good);
    assert_int_equal(verdict, torn ? JOURNAL_DAMAGED : JOURNAL_WHOLE);
    assert_int_equal(good, whole);
    jobs_ids_step(&s->t, torn, s->wall_ns);
    assert_true(s->t.next_id >= next_id);
    check(s);
    unsigned running = 0;
    for (unsigned i = 0; i < s->n; i++) {
        struct known *k = &s->known[i];
        struct job *job = jobs_table_find(&s->t, k->id);
        if (!job || job_has_ended(job))
            continue;
        bool runs =
            jobs_restart_step(&s->t, job, strcmp(job->kind, "again") == 0, running, s->now_ns, s->wall_ns);
        assert_int_equal(runs, k->resumes && !k->aborted);
        running += runs;
        if (runs)
            continue;
        k->state = k->aborted ? JOB_CANCELLED : JOB_INTERRUPTED;
        k->ended_at_ns = s->now_ns;
    }
    forget(s);
    rewrite(s);
    check(s);
}

static void schedule(uint64_t seed)
{
    static struct sim s;
    s = (struct sim){
        .rng = rng_seed(seed, 1), .now_ns = 1000 * NS_PER_S, .wall_ns = 1800000000ll * (int64_t)NS_PER_S};
    jobs_table_init(&s.t);
    rewrite(&s);
    for (unsigned step = 0; step < STEPS; step++) {
        switch (any(&s, 12)) {
        case 0:
        case 1:
        case 2:
        case 3:
            start(&s);
            break;
        case 4:
        case 5:
        case 6:
        case 7:
            end(&s);
            break;
        case 8:
            abort_one(&s);
            break;
        case 9:
            s.now_ns += any(&s, 3600) * NS_PER_S;
            s.wall_ns += (int64_t)any(&s, 30 * JOBS_ENDED_S) * (int64_t)NS_PER_S -
                         15 * (int64_t)JOBS_ENDED_S * (int64_t)NS_PER_S;
            forget(&s);
            break;
        case 10:
            if (jobs_rewrite_step(s.disk.len, s.disk.len / 5) || any(&s, 20) == 0)
                rewrite(&s);
            break;
        default:
            restart(&s, any(&s, 4) == 0);
        }
        check(&s);
    }
    jobs_table_fini(&s.t);
    bytes_out_fini(&s.disk);
}

static void test_schedules(void **state)
{
    (void)state;
    const char *more = getenv("LEAT_SIM_SEEDS");
    unsigned n = more ? (unsigned)atoi(more) : 60;
    for (unsigned seed = 0; seed < n; seed++) {
        print_message("# seed %u\n", seed);
        schedule(seed);
    }
}

static void test_forgetting(void **state)
{
    (void)state;
    struct jobs_table t;
    struct job_spec spec = {.kind = "k", .subject = ""};
    uint64_t now = 5 * NS_PER_S;
    struct job *job, *first = NULL;
    jobs_table_init(&t);
    for (unsigned i = 0; i < JOBS_ENDED_MAX; i++) {
        job = jobs_start_step(&t, &spec, 1);
        first = first ? first : job;
        assert_true(jobs_end_step(&t, job, 0, "", false, now, 1));
    }
    assert_null(job->spec); /* it is not run again */
    assert_null(jobs_forget_step(&t, now + JOBS_ENDED_S * NS_PER_S - 1));
    job = jobs_start_step(&t, &spec, 1);
    assert_null(jobs_forget_step(&t, now)); /* it has not ended */
    assert_true(jobs_end_step(&t, job, LEAT_CORRUPT, "why", false, now, 1));
    assert_string_equal(job->error, "why");
    first->has_thread = true;
    assert_null(jobs_forget_step(&t, now)); /* its thread is not joined */
    first->has_thread = false;
    assert_ptr_equal(jobs_forget_step(&t, now), first);
    job_free(first);
    assert_null(jobs_forget_step(&t, now));
    unsigned n = 0;
    while ((job = jobs_forget_step(&t, now + JOBS_ENDED_S * NS_PER_S))) {
        job_free(job);
        n++;
    }
    assert_int_equal(n, JOBS_ENDED_MAX);
    assert_int_equal(t.n, 0);
}

static void test_bounds(void **state)
{
    (void)state;
    struct jobs_table t;
    struct job_spec spec = {.kind = "k", .subject = ""};
    struct leat_error err = {0};
    jobs_table_init(&t);
    for (unsigned i = 0; i < JOBS_THREADS_MAX; i++) {
        assert_int_equal(jobs_admit_step(&t, false, &err), i < JOBS_RUNNING_MAX ? 0 : LEAT_BUSY);
        assert_int_equal(jobs_admit_step(&t, true, &err), 0);
        jobs_start_step(&t, &spec, 1);
    }
    assert_int_equal(jobs_admit_step(&t, true, &err), LEAT_BUSY);
    assert_non_null(strstr(err.message, "wait for one"));
    /* More than may run, as two journals that met: the rest is interrupted, and says why. */
    struct job *job = list_first(&t.all, struct job, node);
    assert_true(jobs_restart_step(&t, job, true, JOBS_THREADS_MAX - 1, 1, 1));
    assert_int_equal(job->restarts, 1);
    assert_false(jobs_restart_step(&t, job, true, JOBS_THREADS_MAX, 1, 1));
    assert_int_equal(job->state, JOB_INTERRUPTED);
    assert_non_null(strstr(job->error, "start it again"));
    assert_false(jobs_rewrite_step(MIB, 0));
    assert_true(jobs_rewrite_step(MIB + 1, 0));
    assert_false(jobs_rewrite_step(MIB + 1, MIB));
    jobs_table_fini(&t);
}

static void test_merge(void **state)
{
    (void)state;
    struct jobs_table a, b;
    struct job_spec spec = {.kind = "k", .subject = ""};
    jobs_table_init(&a);
    jobs_table_init(&b);
    for (unsigned i = 0; i < 3; i++)
        jobs_start_step(&a, &spec, 1);
    b.next_id = 2;
    for (unsigned i = 0; i < 4; i++)
        jobs_start_step(&b, &spec, 2);
    jobs_table_merge(&a, &b);
    uint64_t id = 5;
    list_for_each (node, &a.all) {
        const struct job *job = container_of(node, struct job, node);
        assert_int_equal(job->id, id--);
        assert_int_equal(job->began_ns, job->id <= 3 ? 1 : 2);
    }
    assert_int_equal(id, 0);
    assert_true(a.n == 5 && a.running == 5 && a.next_id == 6 && b.n == 2 && b.running == 2);
    jobs_ids_step(&a, false, INT64_MAX);
    assert_int_equal(a.next_id, 6);
    jobs_ids_step(&a, true, -5);
    assert_int_equal(a.next_id, 6);
    jobs_ids_step(&a, true, 1800000000ll * (int64_t)NS_PER_S);
    assert_int_equal(a.next_id, 1800000000000ll);
    jobs_table_fini(&a);
    jobs_table_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_forgetting),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
