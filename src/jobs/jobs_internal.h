/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs_internal.h: between table.c (which jobs there are, what is decided about them: pure), journal.c (bytes and files) and jobs.c (threads).
 * Functions of the table take the time, do no I/O, and are called under jobs.lock.
 */
#ifndef JOBS_INTERNAL_H
#define JOBS_INTERNAL_H

#include <pthread.h>

#include "base/bytes.h"
#include "base/list.h"
#include "jobs/jobs.h"

struct job {
    struct list node; /* jobs_table.all */
    uint64_t id;
    char kind[JOB_KIND_MAX + 1];
    enum job_state state;
    bool durable;
    uint32_t restarts;
    int64_t began_ns, ended_ns; /* wall clock: shown, never compared */
    int64_t ended_at_ns;        /* monotonic clock, less than 0 where it was before that began */
    char *subject;
    uint8_t *spec; /* NULL: it has ended */
    size_t spec_len;
    char error[LEAT_ERROR_MESSAGE_MAX];
    _Atomic uint64_t counts[JOB_COUNTS];

    /* jobs.c */
    struct jobs *jobs;
    const struct job_kind *ops;
    pthread_t thread;
    bool has_thread, thread_over;
    atomic_bool abort;
    uint64_t run_ns; /* monotonic: when this run began */
};

/* --- table.c ---------------------------------------------------------------------------------------------------------------- */

struct jobs_table {
    struct list all; /* by id, the newest first */
    unsigned n, running;
    uint64_t next_id;
};
void jobs_table_init(struct jobs_table *t);
void jobs_table_fini(struct jobs_table *t);
struct job *jobs_table_find(const struct jobs_table *t, uint64_t id);
/* By its id, which the table has not got; later ids are larger. */
void jobs_insert(struct jobs_table *t, struct job *job);
/* The one that runs, of a kind of which one runs at a time. NULL: none. */
struct job *jobs_table_single(const struct jobs_table *t, const char *kind);
/* Is it one of the moves in README.md, or none at all? */
bool job_may_move(const struct job *job, enum job_state to);
void job_move(struct jobs_table *t, struct job *job, enum job_state to);
static inline bool job_has_ended(const struct job *job)
{
    return job->state > JOB_ABORTING;
}

/* May one more run? LEAT_BUSY. */
int jobs_admit_step(const struct jobs_table *t, bool single, struct leat_error *err);
/* A new job, RUNNING, with the next id. NULL: no memory. */
struct job *jobs_start_step(struct jobs_table *t, const struct job_spec *spec, int64_t wall_ns);
/* run() has returned. stopping: the service ends, which is no end of the job: it stays RUNNING. True: it has moved. */
bool jobs_end_step(struct jobs_table *t, struct job *job, int rc, const char *message, bool stopping,
                   uint64_t now_ns, int64_t wall_ns);
/*
 * A restart found it. resumes: its kind is known, and may run again. True: run it. running: how many run already.
 */
bool jobs_restart_step(struct jobs_table *t, struct job *job, bool resumes, unsigned running, uint64_t now_ns,
                       int64_t wall_ns);
/* It ended a day ago. */
bool job_is_old(const struct job *job, uint64_t now_ns);
/* The next one that need not be remembered any more, taken out of the table and FORGOTTEN; the caller frees it. NULL: none. */
struct job *jobs_forget_step(struct jobs_table *t, uint64_t now_ns);
/* Is a rewrite due? live: bytes that it would have. */
bool jobs_rewrite_step(uint64_t journal_bytes, uint64_t live_bytes);
/* Jobs of `from` that `to` has not got move to it. */
void jobs_table_merge(struct jobs_table *to, struct jobs_table *from);
/* After what was read: the next id. lost: a part of the journal is, so that they begin with the clock. */
void jobs_ids_step(struct jobs_table *t, bool lost, int64_t wall_ns);
void job_free(struct job *job);

/* --- journal.c: bytes --------------------------------------------------------------------------------------------------------- */

#define JOURNAL_MAX (64 * MIB) /* that is read */

/* The whole table, as the journal has it after a rewrite. */
void jobs_table_put(const struct jobs_table *t, uint64_t now_ns, struct bytes_out *out);
/* One record: all of a job, or its state alone. */
void job_put(const struct job *job, uint64_t now_ns, struct bytes_out *out);
void job_put_state(const struct job *job, uint64_t now_ns, struct bytes_out *out);

enum journal_verdict {
    JOURNAL_WHOLE,
    JOURNAL_DAMAGED, /* *ret_good bytes were read, the rest is lost */
    JOURNAL_FOREIGN, /* another version, or no journal */
};
/* Fills an empty table. now_ns: for the age of ended ones. A job for which there is no memory ends it, like damage. */
enum journal_verdict jobs_table_read(struct jobs_table *t, const void *data, size_t len, uint64_t now_ns,
                                     size_t *ret_good);

/* --- journal.c: files. Each returns 0 or -errno. --------------------------------------------------------------------------------- */

struct journal {
    char *dir;      /* NULL: in memory only */
    int fd;         /* -1: not written yet, or what is there cannot be relied upon */
    uint64_t bytes; /* of it */
};
/* *ret_data is the caller's to free. -ENOENT: there is none; -EFBIG. */
int journal_load(const char *dir, uint8_t **ret_data, size_t *ret_len);
/* On the disk when it returns. After an error the journal is to be rewritten. */
int journal_append(struct journal *j, const void *data, size_t len);
/* The whole content is another one, at once, on the disk. */
int journal_rewrite(struct journal *j, const void *data, size_t len);
/* A record is missing in it: it is not appended to any more. */
void journal_drop(struct journal *j);
/* Kept under a second name, which a rewrite leaves alone. */
int journal_keep(const char *dir);
int journal_remove(const char *dir);

#endif
