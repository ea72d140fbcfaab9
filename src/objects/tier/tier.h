/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h: caching buckets of a remote: another S3, another Leat, a folder. The store keeps objects that were fetched or written; the
 * remote has all of them.
 *
 *   GET   tier_open ─▶ here and fresh enough: the store's object
 *                   └▶ else one fetch for all readers ─▶ a file of the store that grows ─▶ each reader follows its end ─▶ committed, clean
 *   PUT   tier_put_begin ... tier_put_commit: on the remote and here ("through"), or here and later on the remote ("back": dirty until then)
 *
 * Calls are thread-safe. They may block on disks, and where stated on the remote; those marked [loop] do neither. Errors of the remote
 * differ from our own: TIER_DOWN, LEAT_TIMED_OUT (504), TIER_REFUSED name it, the address and the cause, and never a secret. They are for the log
 * and for administrators: users with read permission must not learn where the remote is.
 */
#ifndef OBJECTS_TIER_H
#define OBJECTS_TIER_H

#include "base/list.h"
#include "jobs/jobs.h"
#include "store/store.h"

#define TIER_DOWN    (-EHOSTUNREACH) /* the remote cannot be reached, or fails: 503 */
#define TIER_REFUSED (-EREMOTEIO)    /* it does not let us: credentials, permissions: 502 */
#define TIER_WAIT    (-EINPROGRESS)  /* not yet: the waiter will be called */

struct tier;

/* Zero means the value in brackets. */
struct tier_config {
    struct store *store;
    struct jobs *jobs; /* gets the kinds below; NULL: none */
    struct budget
        *budget; /* buffers of fetches, and what waits to be pushed [a budget of its own, 256 MiB] */
    unsigned
        fetchers; /* threads, each at one object for a reader; half of them at most for one remote [32] */
    unsigned prefetchers; /* the same for prefetches and checks [16] */
    unsigned pushers;     /* and for what is dirty [8] */
    unsigned connections; /* of one thread to a remote [8] */
    uint64_t block_bytes; /* most of one request [4 MiB] */
    unsigned
        push_queue; /* keys of a bucket that wait to be pushed in memory, half of them failed ones; more are dirty in the store alone [4096] */
    uint64_t retry_ns;     /* a push that failed is tried again after this, then twice as much ... [1 s] */
    uint64_t retry_max_ns; /* ... this [5 min] */
};
/* Starts the threads, and pushes objects that are dirty from before. */
int tier_new(const struct tier_config *config, struct tier **ret_tier, struct leat_error *err);
/* Cancels fetches and pushes under way; their waiters get an error. For callers whose threads have to end
 * before tier_free. */
void tier_stop(struct tier *t);
/* Stops; reads are closed by then, and jobs have ended (jobs_stop). NULL is fine. */
void tier_free(struct tier *t);

/* --- which buckets, and how ------------------------------------------------------------------------------------------------ */

/*
 * A bucket's property "remote" is a JSON object:
 *
 *   uri          "s3://BUCKET", "s3://BUCKET/PREFIX", "file:///FOLDER"; needed, the rest is not
 *   endpoint, region, style, ca_file     as in backend_config; "https://host:port" of another store or Leat
 *   profile                              of the AWS files of the server's user; or
 *   access_key, secret_key, token        or "anonymous": true; none: as AWS's tools find them
 *   insecure                             true: certificates are not checked
 *   mode         "through" (the default): a PUT is acknowledged when it is here and there; "back": when it is here
 *   check        "never" (the default), "age", "always": when a cached version is compared with the remote's
 *   age_s        with "age": not more often than this [60]
 *   timeout_s    of a request to the remote [30]
 *
 * tier_bucket_set checks it, keeps it in the bucket's properties beside the others, and uses it from then on; NULL takes the remote away (LEAT_BUSY
 * while something is dirty). LEAT_INVALID names the wrong setting; STORE_NOT_EMPTY: it has objects that are not
 * this remote's. The remote is not asked.
 */
int tier_bucket_set(struct tier *t, const char *bucket, const char *remote_json, struct leat_error *err);
/* The same, for showing: without secret_key and token. LEAT_NOT_FOUND: no remote. *ret_json is the caller's to free. */
int tier_bucket_get(struct tier *t, const char *bucket, char **ret_json, struct leat_error *err);
/* [loop] The server of its remote, as a number: the same for all buckets of that server. 0: no remote. */
uint64_t tier_bucket_remote(struct tier *t, const char *bucket);
/* The bucket was deleted. Until this returns no other bucket of its name may be made: it would be taken
 * for the caching bucket. */
void tier_bucket_forget(struct tier *t, const char *bucket);

/* --- reading --------------------------------------------------------------------------------------------------------------- */

/* Called once, later, on a thread of ours, after progress: ask again. It must not block nor call functions
 * of this header. Zeroed before its first use. */
struct tier_waiter {
    void (*ready)(struct tier_waiter *w);
    struct list node; /* private; in a list while it waits */
    bool waits;       /* private */
};

/* An object of a bucket with a remote, open. Fields are set once tier_read_head has said 0, and stay. */
struct tier_read {
    /* Its facts, as of a cached object. Its bytes lie in `fd`, as far as tier_read_ready says; -1:
     * TIER_HEAD. */
    struct store_obj view;
    /* It is here, whole: the store's, with its checks (store_obj_check). NULL: it arrives, and was checked. */
    struct store_obj *obj;
};

enum { TIER_HEAD = 1 }; /* only what is known of it: nothing is fetched */

/*
 * The object, whether here or not. Never waits for the remote: whether it exists is what tier_read_head says. LEAT_BUSY: too many fetches;
 * STORE_NO_BUCKET, LEAT_INVALID: no such bucket, not one with a remote.
 */
int tier_open(struct tier *t, const char *bucket, const void *key, size_t key_len, unsigned flags,
              struct tier_read **ret_read, struct leat_error *err);
/* [loop] 0: the fields are set. TIER_WAIT; LEAT_NOT_FOUND; an error of the remote. waiter NULL: no call
 * later. */
int tier_read_head(struct tier_read *read, struct tier_waiter *waiter, struct leat_error *err);
/*
 * [loop] So many bytes from `offset` on can be taken from the file: at least one, or TIER_WAIT. After an error no more come: what went out
 * already is cut off, as it is of one version and the rest cannot be had. Bytes are of one version and checked, the object's whole checksum
 * apart, which is known at its end: the last block is held back until then.
 */
int64_t tier_read_ready(struct tier_read *read, uint64_t offset, struct tier_waiter *waiter,
                        struct leat_error *err);
/* [loop] It will not be called any more, when this returns. */
void tier_read_unwait(struct tier_read *read, struct tier_waiter *waiter);
/* [loop] Its waiters have been called, or taken back. NULL is fine. */
void tier_read_close(struct tier_read *read);
/* Blocks until head, and then until [offset, +bytes) is there (0 bytes: the head alone). */
int tier_read_wait(struct tier_read *read, uint64_t offset, uint64_t bytes, struct leat_error *err);

/* Waits until all of it is here: the store's object, as store_get. */
int tier_get(struct tier *t, const char *bucket, const void *key, size_t key_len, struct store_obj **ret_obj,
             struct leat_error *err);
/* [loop] May a door answer at once with what store_get_cached gave it? Also true for buckets without a remote. */
bool tier_fresh(struct tier *t, const char *bucket, const void *key, size_t key_len,
                const struct store_obj *obj);

/* --- writing: these wait for the remote in mode "through" ---------------------------------------------------------------------- */

/* As store_put_begin, for buckets with a remote. */
int tier_put_begin(struct tier *t, const char *bucket, const void *key, size_t key_len, uint64_t bytes,
                   unsigned flags, struct store_put **ret_put, struct leat_error *err);
/* [loop] Would a remote take an object's metadata? Of a bucket that has one it is asked before an upload begins, too. LEAT_INVALID, -ENOMEM. */
int tier_check_meta(const char *bucket, const void *meta, size_t meta_len, struct leat_error *err);
/*
 * As store_put_commit, also of what store_upload_assemble gave. Conditions are about what the remote has,
 * where nothing is here. On failure the old version is what is visible. LEAT_BUSY: the bucket got another
 * remote during the call.
 */
int tier_put_commit(struct tier *t, const char *bucket, const void *key, size_t key_len,
                    struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                    struct leat_error *err);
/* There first, then here; in both modes. LEAT_NOT_FOUND: neither had it. */
int tier_delete(struct tier *t, const char *bucket, const void *key, size_t key_len, struct leat_error *err);

/* --- lists: these wait for the remote ------------------------------------------------------------------------------------------ */

enum { TIER_ELSEWHERE = 1u << 31 }; /* in store_entry.flags: only the remote has it */
/* As store_list, over the remote's objects and those that are not pushed yet. */
int tier_list(struct tier *t, const char *bucket, const struct store_list_spec *spec,
              int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
              struct leat_error *err);

/* --- jobs ------------------------------------------------------------------------------------------------------------------ */

enum tier_job_kind {
    TIER_PREFETCH, /* fetches objects that are not cached; with `update` also newer versions */
    TIER_EVICT,    /* removes cached objects that the remote has */
    TIER_CHECK, /* compares cached objects with the remote; with `update` fetches newer versions, forgets deleted ones */
};
/* What it counts beside what each job counts: there, compared to here. */
enum { TIER_JOB_NEWER = JOB_OWN, TIER_JOB_GONE };

struct tier_job_spec {
    enum tier_job_kind kind;
    const char *bucket;
    const char *prefix;      /* all below it; NULL or "": the bucket */
    const char *const *keys; /* or these alone */
    unsigned nkeys;
    bool update;
};
/*
 * A job of config.jobs, of the kind of that name; its subject is BUCKET/PREFIX. LEAT_BUSY as jobs_start. It may be run again after a restart:
 * objects that it fetched or evicted before are skipped.
 */
int tier_job_start(struct tier *t, const struct tier_job_spec *spec, uint64_t *ret_id,
                   struct leat_error *err);

struct tier_stats {
    uint64_t fetches, fetched_bytes, fetch_failed; /* since the start */
    uint64_t joined;                               /* readers that found a fetch under way */
    uint64_t checks, refreshed;                    /* the remote was asked; it had another version */
    uint64_t pushes, pushed_bytes, push_failed;
    uint64_t buffer_bytes; /* now */
    unsigned fetching, fetch_waiting, push_waiting;
    char push_error[LEAT_ERROR_MESSAGE_MAX]; /* of the last push that failed and is still waited for; "" */
};
void tier_stats(struct tier *t, struct tier_stats *ret_stats); /* [loop] */

#endif
