/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.c: the registry: a thread for each job that runs, and the journal written at each change.
 *
 * Happy path: `change` is taken for a change of the table and its record, `lock` for the table alone, so that the ones who look never wait
 * for a disk. Records stand in the journal in the order of the changes.
 * Failure modes: a journal that cannot be written makes jobs that a restart does not know; it is said once, shown with each of them, and each
 * change tries to write all of it again. A job that does not end when the service stops is named, and nothing is freed below it.
 * Invariants: an id is returned after its record is on the disk, or the job is shown as not durable. A job's thread is joined before it is forgotten.
 */
#include "jobs/jobs_internal.h"

#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"

#define KINDS_MAX  16u
#define OTHERS_MAX 64u

struct jobs {
    struct job_kind const *kinds[KINDS_MAX];
    unsigned nkinds;
    char *others[OTHERS_MAX]; /* folders whose journals go when ours has what they had */
    unsigned nothers;

    pthread_mutex_t change; /* before lock */
    struct journal journal;
    bool warned; /* that the journal cannot be written */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t moved; /* broadcast: a thread ended, a job is aborted, the service stops */
    struct jobs_table table;
    unsigned threads; /* that have not ended */
    atomic_bool stopping;
};

static int64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec * (int64_t)NS_PER_S + ts.tv_nsec;
}

/* --- the journal: under `change` ------------------------------------------------------------------------------------------------ */

static uint64_t table_put(struct jobs *jobs, struct bytes_out *out)
{
    pthread_mutex_lock(&jobs->lock);
    jobs_table_put(&jobs->table, clock_now_ns(), out);
    pthread_mutex_unlock(&jobs->lock);
    return out->len;
}

static void rewrite(struct jobs *jobs)
{
    AUTO_BYTES struct bytes_out out = {0};
    if (!jobs->journal.dir)
        return;
    table_put(jobs, &out);
    int rc = out.failed ? -ENOMEM : journal_rewrite(&jobs->journal, out.data, out.len);
    if (rc < 0) {
        if (!jobs->warned)
            log_warning("jobs: the journal in %s cannot be written: %s; jobs run, and a restart forgets what "
                        "is not in it; each change tries again",
                        jobs->journal.dir, strerror(-rc));
        jobs->warned = true;
        return;
    }
    if (jobs->warned)
        log_warning("jobs: the journal in %s is written again", jobs->journal.dir);
    jobs->warned = false;
    pthread_mutex_lock(&jobs->lock);
    list_for_each (node, &jobs->table.all)
        container_of(node, struct job, node)->durable = true;
    pthread_mutex_unlock(&jobs->lock);
    unsigned left = 0; /* that cannot be removed now: a later start would read them again */
    for (unsigned i = 0; i < jobs->nothers; i++) {
        int gone = journal_remove(jobs->others[i]);
        if (gone == 0 || gone == -ENOENT)
            free(jobs->others[i]);
        else
            jobs->others[left++] = jobs->others[i];
    }
    jobs->nothers = left;
}

/* A record of a change that the table has already; `job` NULL: of one that is forgotten. */
static void record(struct jobs *jobs, struct job *job, const struct bytes_out *out)
{
    if (!jobs->journal.dir)
        return;
    bool durable = !out->failed && journal_append(&jobs->journal, out->data, out->len) == 0;
    pthread_mutex_lock(&jobs->lock);
    if (job)
        job->durable = durable;
    pthread_mutex_unlock(&jobs->lock);
    AUTO_BYTES struct bytes_out all = {0};
    if (!durable) /* also where there was no memory for the record: those that follow may be about it */
        journal_drop(&jobs->journal);
    if (!durable || (jobs_rewrite_step(jobs->journal.bytes, 0) &&
                     jobs_rewrite_step(jobs->journal.bytes, table_put(jobs, &all))))
        rewrite(jobs);
}

static void record_state(struct jobs *jobs, struct job *job)
{
    AUTO_BYTES struct bytes_out out = {0};
    pthread_mutex_lock(&jobs->lock); /* of its error */
    job_put_state(job, clock_now_ns(), &out);
    pthread_mutex_unlock(&jobs->lock);
    record(jobs, job, &out);
}

/* Frees those that are old. Under `change`. */
static void forget_old(struct jobs *jobs)
{
    AUTO_BYTES struct bytes_out out = {0};
    struct job *job;
    pthread_mutex_lock(&jobs->lock);
    while ((job = jobs_forget_step(&jobs->table, clock_now_ns()))) {
        job_put_state(job, clock_now_ns(), &out);
        job_free(job);
    }
    pthread_mutex_unlock(&jobs->lock);
    if (out.len)
        record(jobs, NULL, &out);
}

/* --- threads ---------------------------------------------------------------------------------------------------------------- */

static void *job_main(void *arg)
{
    struct job *job = arg;
    struct jobs *jobs = job->jobs;
    struct leat_error err = {0};
    int rc = atomic_load(&job->abort) ? 0 : job->ops->run(job->ops->user, job, &err);
    if (rc < 0 && !err.message[0])
        error_sys(&err, rc, "it failed");
    pthread_mutex_lock(&jobs->change);
    pthread_mutex_lock(&jobs->lock);
    bool moved = jobs_end_step(&jobs->table, job, rc, err.message, jobs->stopping, clock_now_ns(), wall_ns());
    pthread_mutex_unlock(&jobs->lock);
    if (moved)
        record_state(jobs, job);
    pthread_mutex_unlock(&jobs->change);
    pthread_mutex_lock(&jobs->lock);
    job->thread_over = true;
    jobs->threads--;
    pthread_cond_broadcast(&jobs->moved);
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

/* Under `change`. */
static int run(struct jobs *jobs, struct job *job)
{
    sigset_t all, was;
    sigfillset(&all);
    job->run_ns = clock_now_ns();
    pthread_mutex_lock(&jobs->lock);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    int rc = jobs->stopping ? LEAT_BUSY : -pthread_create(&job->thread, NULL, job_main, job);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    job->has_thread = rc == 0;
    jobs->threads += rc == 0;
    pthread_mutex_unlock(&jobs->lock);
    return rc;
}

/* Joins the threads that are over. */
static void reap(struct jobs *jobs)
{
    pthread_t over[JOBS_THREADS_MAX];
    unsigned n = 0;
    pthread_mutex_lock(&jobs->lock);
    list_for_each (node, &jobs->table.all) {
        struct job *job = container_of(node, struct job, node);
        if (!job->thread_over || n == JOBS_THREADS_MAX)
            continue;
        over[n++] = job->thread;
        job->thread_over = job->has_thread = false;
    }
    pthread_mutex_unlock(&jobs->lock);
    while (n)
        pthread_join(over[--n], NULL);
}

/* --- the beginning and the end ---------------------------------------------------------------------------------------------------- */

/* One folder's journal into the table. *ret_lost: a part of it could not be read. */
static bool load(struct jobs *jobs, const char *dir, bool *ret_lost)
{
    AUTO_FREE uint8_t *data = NULL;
    struct jobs_table t;
    size_t len = 0, good = 0;
    int rc = journal_load(dir, &data, &len);
    if (rc == -ENOENT)
        return false;
    jobs_table_init(&t);
    enum journal_verdict verdict =
        rc < 0 ? JOURNAL_FOREIGN : jobs_table_read(&t, data, len, clock_now_ns(), &good);
    if (verdict != JOURNAL_WHOLE) {
        *ret_lost = true;
        bool kept = journal_keep(dir) == 0;
        log_warning("jobs: %s/journal %s%s: %u jobs were read, later changes and jobs are lost%s", dir,
                    rc < 0                       ? "cannot be read: "
                    : verdict == JOURNAL_FOREIGN ? "is none of this version"
                                                 : "is damaged, or was cut off",
                    rc < 0 ? strerror(-rc) : "", t.n, kept ? "; it is kept as journal.unread" : "");
    }
    jobs_table_merge(&jobs->table, &t);
    jobs_table_fini(&t);
    return true;
}

static void load_all(struct jobs *jobs, const struct jobs_config *config)
{
    bool lost = false;
    load(jobs, config->dir, &lost);
    for (unsigned i = 0; i < config->nothers && jobs->nothers < OTHERS_MAX; i++) {
        if (load(jobs, config->others[i], &lost) && (jobs->others[jobs->nothers] = strdup(config->others[i])))
            jobs->nothers++;
    }
    jobs_ids_step(&jobs->table, lost || config->others_missing, wall_ns());
}

int jobs_new(const struct jobs_config *config, struct jobs **ret_jobs, struct leat_error *err)
{
    struct jobs *jobs = calloc(1, sizeof(*jobs));
    char *dir = config->dir ? strdup(config->dir) : NULL;
    if (!jobs || (config->dir && !dir)) {
        free(jobs);
        free(dir);
        return error_set(err, -ENOMEM, "no memory for the registry of jobs");
    }
    pthread_mutex_init(&jobs->change, NULL);
    pthread_mutex_init(&jobs->lock, NULL);
    cond_init(&jobs->moved);
    jobs_table_init(&jobs->table);
    jobs->journal = (struct journal){.dir = dir, .fd = -1};
    if (dir)
        load_all(jobs, config);
    *ret_jobs = jobs;
    return 0;
}

static const struct job_kind *kind_of(const struct jobs *jobs, const char *name)
{
    for (unsigned i = 0; i < jobs->nkinds; i++)
        if (strcmp(jobs->kinds[i]->name, name) == 0)
            return jobs->kinds[i];
    return NULL;
}

void jobs_register(struct jobs *jobs, const struct job_kind *kind)
{
    assert(jobs->nkinds < KINDS_MAX && strlen(kind->name) <= JOB_KIND_MAX && !kind_of(jobs, kind->name));
    jobs->kinds[jobs->nkinds++] = kind;
}

/* Under `change`. A thread could not be had. */
static int not_run(struct jobs *jobs, struct job *job, int rc, struct leat_error *err)
{
    rc = rc == LEAT_BUSY ? error_set(err, rc, "the service stops") : error_sys(err, rc, "a thread for a job");
    pthread_mutex_lock(&jobs->lock);
    bool moved = jobs_end_step(&jobs->table, job, rc, err->message, false, clock_now_ns(), wall_ns());
    pthread_mutex_unlock(&jobs->lock);
    if (moved)
        record_state(jobs, job);
    return rc;
}

void jobs_begin(struct jobs *jobs)
{
    struct job *again[JOBS_THREADS_MAX];
    unsigned n = 0;
    pthread_mutex_lock(&jobs->change);
    pthread_mutex_lock(&jobs->lock);
    for (struct list *node = jobs->table.all.prev; node != &jobs->table.all; node = node->prev) {
        struct job *job = container_of(node, struct job, node);
        const struct job_kind *kind = kind_of(jobs, job->kind);
        if (!jobs_restart_step(&jobs->table, job, kind && kind->resumes, n, clock_now_ns(), wall_ns()))
            continue;
        job->jobs = jobs;
        job->ops = kind;
        again[n++] = job;
    }
    pthread_mutex_unlock(&jobs->lock);
    forget_old(jobs);
    rewrite(jobs);
    for (unsigned i = 0; i < n; i++) {
        struct leat_error err = {0};
        int rc = run(jobs, again[i]);
        if (rc < 0)
            not_run(jobs, again[i], rc, &err);
        log_info("jobs: %s %s (%llu) continues", again[i]->kind, again[i]->subject,
                 (unsigned long long)again[i]->id);
    }
    pthread_mutex_unlock(&jobs->change);
}

void jobs_halt(struct jobs *jobs)
{
    if (!jobs)
        return;
    pthread_mutex_lock(&jobs->lock);
    jobs->stopping = true;
    pthread_cond_broadcast(&jobs->moved);
    pthread_mutex_unlock(&jobs->lock);
}

int jobs_stop(struct jobs *jobs, uint64_t grace_ns)
{
    if (!jobs)
        return 0;
    uint64_t until_ns = clock_now_ns() + grace_ns;
    jobs_halt(jobs);
    pthread_mutex_lock(&jobs->lock);
    while (jobs->threads && cond_wait_until(&jobs->moved, &jobs->lock, until_ns) != ETIMEDOUT)
        ;
    unsigned left = jobs->threads;
    list_for_each (node, &jobs->table.all) {
        struct job *job = container_of(node, struct job, node);
        if (left && job->has_thread && !job->thread_over)
            log_error("jobs: %s %s (%llu) does not end: it is left, and continues after the next start",
                      job->kind, job->subject, (unsigned long long)job->id);
    }
    pthread_mutex_unlock(&jobs->lock);
    if (left)
        return LEAT_TIMED_OUT;
    reap(jobs);
    pthread_mutex_lock(&jobs->change);
    if (jobs->journal.fd >= 0)
        rewrite(jobs); /* with the ages of those that have ended */
    pthread_mutex_unlock(&jobs->change);
    return 0;
}

void jobs_free(struct jobs *jobs)
{
    if (!jobs)
        return;
    assert(jobs->threads == 0);
    reap(jobs);
    jobs_table_fini(&jobs->table);
    while (jobs->nothers)
        free(jobs->others[--jobs->nothers]);
    if (jobs->journal.fd >= 0)
        close(jobs->journal.fd);
    free(jobs->journal.dir);
    pthread_cond_destroy(&jobs->moved);
    pthread_mutex_destroy(&jobs->lock);
    pthread_mutex_destroy(&jobs->change);
    free(jobs);
}

/* --- start and abort ---------------------------------------------------------------------------------------------------------------- */

static int check_spec(const struct jobs *jobs, const struct job_spec *spec, struct leat_error *err)
{
    if (!kind_of(jobs, spec->kind))
        return error_set(err, LEAT_INVALID, "there are no jobs of kind \"%.40s\" here", spec->kind);
    if (strlen(spec->subject) > JOB_SUBJECT_MAX || spec->len > JOB_SPEC_MAX)
        return error_set(
            err, LEAT_INVALID,
            "a job of %zu bytes, named by %zu: %llu and %u are allowed; name fewer objects in it", spec->len,
            strlen(spec->subject), JOB_SPEC_MAX, JOB_SUBJECT_MAX);
    return 0;
}

/* Under `change`: into the table. *ret_job NULL: one of a kind of which one runs at a time runs already, and *ret_id is its. */
static int admit(struct jobs *jobs, const struct job_kind *kind, const struct job_spec *spec,
                 struct job **ret_job, uint64_t *ret_id, struct leat_error *err)
{
    struct job *job = kind->single ? jobs_table_single(&jobs->table, kind->name) : NULL;
    if (jobs->stopping)
        return error_set(err, LEAT_BUSY, "the service stops");
    if (job) {
        *ret_id = job->id;
        return 0;
    }
    int rc = jobs_admit_step(&jobs->table, kind->single, err);
    if (rc < 0)
        return rc;
    if (jobs->journal.dir && jobs->journal.fd < 0)
        jobs_ids_step(&jobs->table, true,
                      wall_ns()); /* a restart does not know it, and is not to use its id */
    *ret_job = jobs_start_step(&jobs->table, spec, wall_ns());
    if (!*ret_job)
        return error_set(err, -ENOMEM, "no memory for a job");
    (*ret_job)->jobs = jobs; /* an abort may come while its record is written */
    (*ret_job)->ops = kind;
    *ret_id = (*ret_job)->id;
    return 0;
}

int jobs_start(struct jobs *jobs, const struct job_spec *spec, uint64_t *ret_id, struct leat_error *err)
{
    struct leat_error unused = {0};
    struct job *job = NULL;
    err = err ? err : &unused;
    int rc = check_spec(jobs, spec, err);
    if (rc < 0)
        return rc;
    const struct job_kind *kind = kind_of(jobs, spec->kind);
    reap(jobs);
    pthread_mutex_lock(&jobs->change);
    forget_old(jobs);
    AUTO_BYTES struct bytes_out out = {0};
    pthread_mutex_lock(&jobs->lock);
    rc = admit(jobs, kind, spec, &job, ret_id, err);
    if (job)
        job_put(job, clock_now_ns(), &out);
    pthread_mutex_unlock(&jobs->lock);
    if (job) {
        record(jobs, job, &out);
        rc = run(jobs, job);
        if (rc < 0)
            rc = not_run(jobs, job, rc, err);
    }
    pthread_mutex_unlock(&jobs->change);
    return rc;
}

int jobs_abort(struct jobs *jobs, uint64_t id)
{
    pthread_mutex_lock(&jobs->lock);
    struct job *job = jobs_table_find(&jobs->table, id);
    bool lives = job && !job_has_ended(job);
    const struct job_kind *kind = lives ? job->ops : NULL; /* NULL: jobs_begin comes, and cancels it */
    if (lives) {
        atomic_store(&job->abort, true); /* before the disk is waited for */
        pthread_cond_broadcast(&jobs->moved);
    }
    pthread_mutex_unlock(&jobs->lock);
    if (!lives)
        return job ? 0 : LEAT_NOT_FOUND;
    if (kind && kind->abort)
        kind->abort(kind->user);
    pthread_mutex_lock(&jobs->change);
    pthread_mutex_lock(&jobs->lock);
    job = jobs_table_find(&jobs->table, id);
    bool moves = job && job->state == JOB_RUNNING;
    if (moves)
        job_move(&jobs->table, job, JOB_ABORTING);
    pthread_mutex_unlock(&jobs->lock);
    if (moves)
        record_state(jobs, job);
    pthread_mutex_unlock(&jobs->change);
    return 0;
}

/* --- looking: under `lock` ----------------------------------------------------------------------------------------------------------- */

static void info_of(const struct job *job, uint64_t now_ns, struct job_info *ret)
{
    *ret = (struct job_info){.id = job->id,
                             .state = job->state == JOB_RUNNING && atomic_load(&job->abort) ? JOB_ABORTING
                                                                                            : job->state,
                             .durable = job->durable,
                             .restarts = job->restarts,
                             .began_ns = job->began_ns,
                             .ended_ns = job->ended_ns};
    memcpy(ret->kind, job->kind, sizeof(ret->kind));
    memcpy(ret->error, job->error, sizeof(ret->error));
    snprintf(ret->subject, sizeof(ret->subject), "%s", job->subject);
    for (unsigned i = 0; i < JOB_COUNTS; i++)
        ret->counts[i] = atomic_load_explicit(&job->counts[i], memory_order_relaxed);
    uint64_t end_ns = job_has_ended(job) ? (uint64_t)job->ended_at_ns : now_ns;
    if (!job->run_ns || end_ns <= job->run_ns)
        return;
    double seconds = (double)(end_ns - job->run_ns) / NS_PER_S;
    ret->items_per_s = (uint64_t)((double)(ret->counts[JOB_ITEMS] + ret->counts[JOB_SKIPPED]) / seconds);
    ret->bytes_per_s = (uint64_t)((double)ret->counts[JOB_BYTES] / seconds);
}

int jobs_get(struct jobs *jobs, uint64_t id, struct job_info *ret_info)
{
    uint64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&jobs->lock);
    const struct job *job = jobs_table_find(&jobs->table, id);
    int rc = job && !job_is_old(job, now_ns) ? 0 : LEAT_NOT_FOUND;
    if (rc == 0)
        info_of(job, now_ns, ret_info);
    pthread_mutex_unlock(&jobs->lock);
    return rc;
}

int jobs_list(struct jobs *jobs, struct job_info **ret_infos, unsigned *ret_n)
{
    uint64_t now_ns = clock_now_ns();
    unsigned n = 0;
    pthread_mutex_lock(&jobs->lock);
    struct job_info *infos = calloc(jobs->table.n + 1, sizeof(*infos));
    list_for_each (node, &jobs->table.all) {
        const struct job *job = container_of(node, struct job, node);
        if (infos && !job_is_old(job, now_ns))
            info_of(job, now_ns, &infos[n++]);
    }
    pthread_mutex_unlock(&jobs->lock);
    if (!infos)
        return -ENOMEM;
    *ret_infos = infos;
    *ret_n = n;
    return 0;
}

void jobs_stats(struct jobs *jobs, struct jobs_stats *ret)
{
    pthread_mutex_lock(&jobs->lock);
    *ret = (struct jobs_stats){.running = jobs->table.running,
                               .ended = jobs->table.n - jobs->table.running,
                               .durable = jobs->journal.dir != NULL};
    list_for_each (node, &jobs->table.all)
        ret->durable &= container_of(node, struct job, node)->durable;
    pthread_mutex_unlock(&jobs->lock);
}

/* --- for run() ------------------------------------------------------------------------------------------------------------------------- */

const void *job_spec_data(const struct job *job, size_t *ret_len)
{
    *ret_len = job->spec_len;
    return job->spec;
}

unsigned job_restarts(const struct job *job)
{
    return job->restarts;
}

int64_t job_began_ns(const struct job *job)
{
    return job->began_ns;
}

bool job_aborted(const struct job *job)
{
    return atomic_load_explicit(&job->abort, memory_order_relaxed) || atomic_load(&job->jobs->stopping);
}

bool job_sleep(struct job *job, uint64_t ns)
{
    struct jobs *jobs = job->jobs;
    uint64_t until_ns = clock_now_ns() + ns;
    pthread_mutex_lock(&jobs->lock);
    while (!job_aborted(job) && cond_wait_until(&jobs->moved, &jobs->lock, until_ns) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&jobs->lock);
    return job_aborted(job);
}

void job_add(struct job *job, unsigned count, uint64_t n)
{
    atomic_fetch_add_explicit(&job->counts[count], n, memory_order_relaxed);
}

void job_set(struct job *job, unsigned count, uint64_t n)
{
    atomic_store_explicit(&job->counts[count], n, memory_order_relaxed);
}

void job_item_failed(struct job *job, const char *message)
{
    job_add(job, JOB_FAILED_ITEMS, 1);
    pthread_mutex_lock(&job->jobs->lock);
    if (!job->error[0])
        snprintf(job->error, sizeof(job->error), "%s", message);
    pthread_mutex_unlock(&job->jobs->lock);
}
