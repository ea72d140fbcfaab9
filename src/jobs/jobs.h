/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.h: the registry of long work that a client starts, watches and aborts: prefetch, evict, check, scrub; later a sort, a rebalance.
 *
 *   jobs_start ─▶ RUNNING, in the journal ─▶ run() on its own thread: job_add, job_aborted ─▶ DONE, FAILED, CANCELLED
 *                       │ process ends, or is killed
 *                       └▶ next start: run() again, or INTERRUPTED, as the kind says
 *
 * Ids are unique for as long as the journal's folder lives. A job that has ended is remembered for a day of service, and as long as fewer
 * than 100 newer ones have ended. Any thread may call; [disk] marks calls that wait for the journal's disk, the others never do.
 */
#ifndef JOBS_JOBS_H
#define JOBS_JOBS_H

#include "base/base.h"

#define JOBS_RUNNING_MAX 16u         /* at the same time; kinds of which one runs at a time come on top */
#define JOBS_THREADS_MAX 24u         /* with those */
#define JOBS_ENDED_MAX   100u        /* remembered */
#define JOBS_ENDED_S     86400u      /* and not longer than this */
#define JOB_KIND_MAX     15u         /* bytes of a kind's name */
#define JOB_SUBJECT_MAX  1100u       /* bytes */
#define JOB_SPEC_MAX     (256 * KIB) /* bytes */

/* The moves are in README.md. ABORTING is a running job that was asked to end; a restart does not run it again. */
enum job_state {
    JOB_RUNNING,
    JOB_ABORTING,
    JOB_DONE,
    JOB_FAILED,
    JOB_CANCELLED,
    JOB_INTERRUPTED,
    JOB_FORGOTTEN, /* never seen from outside */
    JOB_STATES,
};

/* What a job counts. JOB_OWN and those behind it mean what the kind says. */
enum job_count {
    JOB_ITEMS,       /* done */
    JOB_ITEMS_TOTAL, /* to look at, as far as known */
    JOB_TOTAL_KNOWN, /* 1: the totals stay as they are */
    JOB_BYTES,       /* of those done */
    JOB_BYTES_TOTAL, /* 0: not known */
    JOB_SKIPPED,     /* items that needed nothing */
    JOB_FAILED_ITEMS,
    JOB_OWN,
    JOB_COUNTS = JOB_OWN + 4,
};

struct jobs;
struct job; /* one that runs: its thread's */

struct job_kind {
    const char *name; /* constant; at most JOB_KIND_MAX bytes */
    void *user;
    /*
     * On a thread of its own. Ends soon after job_aborted says true. 0 or an error, whose message is kept. An error after job_aborted is
     * none. Called again after a restart where `resumes` is set: what was done before is found done.
     */
    int (*run)(void *user, struct job *job, struct leat_error *err);
    /* A restart runs an unfinished one again; else it is INTERRUPTED, and stays as it is. */
    bool resumes;
    /* One at a time: jobs_start gives the id of the one that runs. */
    bool single;
    /* NULL, or what an abort does at once, on the caller's thread. */
    void (*abort)(void *user);
};

struct jobs_config {
    /* Where the journal lies: made with mode 0700 if missing; its parent is there. NULL: in memory only. Copied. */
    const char *dir;
    /* Other folders that may have one, as disks come and go: read, then removed. At most 64. */
    const char *const *others;
    unsigned nothers;
    /* A folder that may have a journal cannot be read: ids continue with the clock, so that none comes twice. */
    bool others_missing;
};
/*
 * Reads the journal; nothing runs before jobs_begin. A journal that is damaged, or of another version, or that cannot be written, is
 * named in the log with what is lost, and no error. [disk] -ENOMEM.
 */
int jobs_new(const struct jobs_config *config, struct jobs **ret_jobs, struct leat_error *err);
/* Before jobs_begin. `kind` is the caller's, constant, and outlives the registry's threads. At most 16 kinds. */
void jobs_register(struct jobs *jobs, const struct job_kind *kind);
/* Unfinished jobs of before continue, each as its kind says. [disk] */
void jobs_begin(struct jobs *jobs);
/* Asks all jobs to end, without an abort: they continue after the next start. None begins from here on. NULL is fine. */
void jobs_halt(struct jobs *jobs);
/*
 * The same, and waits for them, at most grace_ns. LEAT_TIMED_OUT: some still run, and are
 * named in the log; neither the registry nor what they work on may be freed then. [disk] NULL is fine.
 */
int jobs_stop(struct jobs *jobs, uint64_t grace_ns);
/* After jobs_stop. NULL is fine. */
void jobs_free(struct jobs *jobs);

struct job_spec {
    const char *kind;    /* of a registered one */
    const char *subject; /* what it works on, for people: at most JOB_SUBJECT_MAX bytes */
    const void *data;    /* what run() needs to know, in the kind's own form: at most JOB_SPEC_MAX bytes */
    size_t len;
};
/*
 * The id is on the disk before it is returned; where that cannot be, the job runs all the same, with `durable` false. [disk] LEAT_BUSY:
 * JOBS_RUNNING_MAX run, or the service stops. LEAT_INVALID, -ENOMEM.
 */
int jobs_start(struct jobs *jobs, const struct job_spec *spec, uint64_t *ret_id, struct leat_error *err);
/* Asks it to end; 0 also where it has ended. LEAT_NOT_FOUND. [disk] */
int jobs_abort(struct jobs *jobs, uint64_t id);

struct job_info {
    uint64_t id;
    char kind[JOB_KIND_MAX + 1];
    enum job_state state;
    bool durable;                      /* the journal has this state, so that a restart knows it */
    unsigned restarts;                 /* how often it was run again after a restart */
    uint64_t counts[JOB_COUNTS];       /* since it began, or was run again */
    uint64_t items_per_s, bytes_per_s; /* the same, on average */
    int64_t began_ns, ended_ns;        /* since 1970, for people; 0: not yet */
    char subject[JOB_SUBJECT_MAX + 1];
    char error[LEAT_ERROR_MESSAGE_MAX]; /* of the job, or of its first failed item; "" */
};
int jobs_get(struct jobs *jobs, uint64_t id, struct job_info *ret_info); /* LEAT_NOT_FOUND */
/* All of one moment, the newest first. *ret_infos is the caller's to free. -ENOMEM. */
int jobs_list(struct jobs *jobs, struct job_info **ret_infos, unsigned *ret_n);

struct jobs_stats {
    unsigned running, ended;
    bool durable; /* the journal is whole on the disk */
};
void jobs_stats(struct jobs *jobs, struct jobs_stats *ret_stats);

/* --- for run(), on any thread that works for it --------------------------------------------------------------------------- */

const void *job_spec_data(const struct job *job, size_t *ret_len);
unsigned job_restarts(const struct job *job); /* 0: the first run */
int64_t job_began_ns(const struct job *job);  /* since 1970: when it was first started */
/* It was aborted, or the service stops: end. */
bool job_aborted(const struct job *job);
/* Sleeps, until job_aborted says true at most. Returns that. */
bool job_sleep(struct job *job, uint64_t ns);
/* count: an enum job_count, or one of the kind's own. */
void job_add(struct job *job, unsigned count, uint64_t n);
void job_set(struct job *job, unsigned count, uint64_t n);
/* An item failed: counted, and the first message kept. */
void job_item_failed(struct job *job, const char *message);

#endif
