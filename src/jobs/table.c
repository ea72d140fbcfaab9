/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c: which jobs there are, and what is decided about them. No I/O, no clock, no thread: time is an argument.
 *
 * Invariants: ids only grow. What was ABORTING never runs again. A job that has ended stays until it is a day old, or 100 newer ones have ended.
 */
#include "jobs/jobs_internal.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"

#define REWRITE_MIN (1 * MIB)

#define P(state)    (1u << JOB_##state)
static const uint32_t job_moves[JOB_STATES] = {
    [JOB_RUNNING] = P(ABORTING) | P(DONE) | P(FAILED) | P(CANCELLED) | P(INTERRUPTED),
    [JOB_ABORTING] = P(CANCELLED),
    [JOB_DONE] = P(FORGOTTEN),
    [JOB_FAILED] = P(FORGOTTEN),
    [JOB_CANCELLED] = P(FORGOTTEN),
    [JOB_INTERRUPTED] = P(FORGOTTEN),
};

void jobs_table_init(struct jobs_table *t)
{
    *t = (struct jobs_table){.next_id = 1};
    list_init(&t->all);
}

void job_free(struct job *job)
{
    free(job->subject);
    free(job->spec);
    free(job);
}

void jobs_table_fini(struct jobs_table *t)
{
    struct job *job;
    while ((job = list_first(&t->all, struct job, node))) {
        list_remove(&job->node);
        job_free(job);
    }
}

struct job *jobs_table_find(const struct jobs_table *t, uint64_t id)
{
    list_for_each (node, &t->all) {
        struct job *job = container_of(node, struct job, node);
        if (job->id == id)
            return job;
    }
    return NULL;
}

struct job *jobs_table_single(const struct jobs_table *t, const char *kind)
{
    list_for_each (node, &t->all) {
        struct job *job = container_of(node, struct job, node);
        if (job->state == JOB_RUNNING && !atomic_load(&job->abort) && strcmp(job->kind, kind) == 0)
            return job;
    }
    return NULL;
}

bool job_may_move(const struct job *job, enum job_state to)
{
    return to < JOB_STATES && (to == job->state || (job_moves[job->state] >> to & 1));
}

void job_move(struct jobs_table *t, struct job *job, enum job_state to)
{
    static const char *const names[JOB_STATES] = {"running",   "aborting",    "done",     "failed",
                                                  "cancelled", "interrupted", "forgotten"};
    assert(to != job->state && job_may_move(job, to));
    log_debug("job %llu: %s: %s -> %s", (unsigned long long)job->id, job->kind, names[job->state], names[to]);
    bool had_ended = job_has_ended(job);
    job->state = to;
    if (had_ended || !job_has_ended(job))
        return;
    t->running--;
    free(TAKE_PTR(job->spec)); /* it is not run again */
    job->spec_len = 0;
}

void jobs_insert(struct jobs_table *t, struct job *job)
{
    struct list *at = t->all.next;
    while (at != &t->all && container_of(at, struct job, node)->id > job->id)
        at = at->next;
    list_add_before(at, &job->node);
    t->n++;
    t->running += !job_has_ended(job);
    t->next_id = MAX(t->next_id, job->id + 1);
}

void jobs_table_merge(struct jobs_table *to, struct jobs_table *from)
{
    to->next_id = MAX(to->next_id, from->next_id);
    list_for_each_safe (node, &from->all) {
        struct job *job = container_of(node, struct job, node);
        if (jobs_table_find(to, job->id))
            continue;
        list_remove(node);
        from->n--;
        from->running -= !job_has_ended(job);
        jobs_insert(to, job);
    }
}

int jobs_admit_step(const struct jobs_table *t, bool single, struct leat_error *err)
{
    unsigned most = single ? JOBS_THREADS_MAX : JOBS_RUNNING_MAX;
    return t->running < most
               ? 0
               : error_set(err, LEAT_BUSY, "%u jobs run already: wait for one of them to end", t->running);
}

struct job *jobs_start_step(struct jobs_table *t, const struct job_spec *spec, int64_t wall_ns)
{
    struct job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    job->subject = strdup(spec->subject);
    job->spec = malloc(MAX(spec->len, (size_t)1));
    if (!job->subject || !job->spec) {
        job_free(job);
        return NULL;
    }
    if (spec->len)
        memcpy(job->spec, spec->data, spec->len);
    job->spec_len = spec->len;
    snprintf(job->kind, sizeof(job->kind), "%s", spec->kind);
    job->id = t->next_id;
    job->began_ns = wall_ns;
    jobs_insert(t, job);
    return job;
}

static void end(struct jobs_table *t, struct job *job, enum job_state to, uint64_t now_ns, int64_t wall_ns)
{
    job_move(t, job, to);
    job->ended_at_ns = (int64_t)now_ns;
    job->ended_ns = wall_ns;
}

bool jobs_end_step(struct jobs_table *t, struct job *job, int rc, const char *message, bool stopping,
                   uint64_t now_ns, int64_t wall_ns)
{
    bool aborted = job->state == JOB_ABORTING || atomic_load(&job->abort);
    if (!aborted && stopping)
        return false;
    if (!aborted && rc < 0 && *message)
        snprintf(job->error, sizeof(job->error), "%s", message);
    end(t, job, aborted ? JOB_CANCELLED : rc < 0 ? JOB_FAILED : JOB_DONE, now_ns, wall_ns);
    return true;
}

bool jobs_restart_step(struct jobs_table *t, struct job *job, bool resumes, unsigned running, uint64_t now_ns,
                       int64_t wall_ns)
{
    if (job_has_ended(job))
        return false;
    if (job->state == JOB_ABORTING) {
        end(t, job, JOB_CANCELLED, now_ns, wall_ns);
        return false;
    }
    if (!resumes || running >= JOBS_THREADS_MAX) {
        snprintf(job->error, sizeof(job->error), "%s: start it again",
                 resumes ? "the service was restarted, and too many jobs continue already"
                         : "the service was restarted, and jobs of this kind do not continue");
        end(t, job, JOB_INTERRUPTED, now_ns, wall_ns);
        return false;
    }
    job->restarts++;
    job->error[0] = 0;
    for (unsigned i = 0; i < JOB_COUNTS; i++)
        atomic_store(&job->counts[i], 0);
    return true;
}

bool job_is_old(const struct job *job, uint64_t now_ns)
{
    return job_has_ended(job) && (int64_t)now_ns - job->ended_at_ns >= (int64_t)(JOBS_ENDED_S * NS_PER_S);
}

struct job *jobs_forget_step(struct jobs_table *t, uint64_t now_ns)
{
    unsigned newer = 0;
    list_for_each (node, &t->all) {
        struct job *job = container_of(node, struct job, node);
        if (!job_has_ended(job))
            continue;
        if ((++newer <= JOBS_ENDED_MAX && !job_is_old(job, now_ns)) || job->has_thread)
            continue;
        list_remove(&job->node);
        t->n--;
        job_move(t, job, JOB_FORGOTTEN);
        return job;
    }
    return NULL;
}

bool jobs_rewrite_step(uint64_t journal_bytes, uint64_t live_bytes)
{
    return journal_bytes > MAX(REWRITE_MIN, 4 * live_bytes);
}

void jobs_ids_step(struct jobs_table *t, bool lost, int64_t wall_ns)
{
    if (lost && wall_ns > 0)
        t->next_id = MAX(t->next_id, (uint64_t)wall_ns / NS_PER_MS);
}
