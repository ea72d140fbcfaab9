/* SPDX-License-Identifier: Apache-2.0 */
/* tier_internal.h: inside of the cold tier: between tier.c (threads, buckets, sessions), remote_settings.c, fetch.c, read.c, key.c, push.c, queue.c, list.c, jobs.c. */
#ifndef OBJECTS_TIER_INTERNAL_H
#define OBJECTS_TIER_INTERNAL_H

#include <pthread.h>

#include "backend/backend.h"
#include "base/fairq.h"
#include "objects/tier/tier.h"

/* --- remote_settings.c: what a bucket's property "remote" says ------------------------------------------------------------------------ */

enum tier_mode { TIER_THROUGH, TIER_BACK };
enum tier_check_policy { TIER_NEVER, TIER_AGE, TIER_ALWAYS };

struct tier_remote {
    char *uri;      /* with "/" at its end: a key's address is this and the key */
    char *base_key; /* what of `uri` belongs to keys: "", or "prefix/" */
    char *endpoint, *region, *style, *ca_file, *profile, *access_key, *secret_key, *token; /* or NULL */
    bool folder, anonymous, insecure;
    enum tier_mode mode;
    enum tier_check_policy check;
    uint64_t age_s, timeout_s;
};
int tier_remote_parse(const char *json, struct tier_remote *ret_remote, struct leat_error *err);
/* Of settings that tier_remote_parse refuses: where they lead, as far as they say it; asked each time, as what they say of that is not known. -ENOMEM. */
int tier_remote_guess(const char *json, struct tier_remote *ret_remote);
void tier_remote_fini(struct tier_remote *r); /* wipes */
/* The property out of all of a bucket's; NULL: there is none (or no memory). The caller frees. */
char *tier_remote_of(const char *props);
/* All properties with "remote" replaced; json NULL: without it. */
int tier_remote_into(const char *props, const char *json, char **ret_props);
/* Without what is secret. NULL: no memory. */
char *tier_remote_shown(const char *json);

/* meta ("name\0value\0") from backend_stat.headers, and back. Checksums from the remote's server come
 * along. */
int tier_meta_of(const struct backend_stat *stat, void **ret_meta, size_t *ret_len);
int tier_headers_of(const void *meta, size_t meta_len, char ret_headers[BACKEND_HEADERS_MAX]);
/* The values stored as an object's `remote`, and as its ETag. */
void tier_tag_of(const struct backend_stat *stat, char ret_tag[BACKEND_ETAG_MAX]);
void tier_etag_of(const char *tag, char ret_etag[STORE_ETAG_MAX + 1]);

/* --- tier.c ------------------------------------------------------------------------------------------------------------------ */

struct tier_bucket {
    struct list node; /* tier.buckets */
    unsigned refs;
    char name[STORE_BUCKET_MAX + 1];
    struct tier_remote remote;
    char *config_error;   /* what is wrong with its settings, which nothing is done by then; NULL: nothing */
    uint64_t remote_id;   /* store_bucket.front of it */
    uint64_t server;      /* a number for the remote's; never 0 */
    struct list sessions; /* idle ones */
    bool gone;            /* not in the table any more */
    _Atomic unsigned
        small_run; /* objects fetched of late that fitted into one request, one after the other */
    /* queue.c: keys in the queue of pushes, and those of them that failed and wait */
    unsigned npushes, npaused;
    struct list dirty_backlog; /* tier.behind, with a reference; alone: all that is dirty is in the queue */
    bool missed; /* something is not since the look under way began: the next begins at missed_ns */
    uint64_t missed_ns;
    bool midway;      /* of the look, the timer's alone: the last key that was looked at */
    uint64_t poll_ns; /* and when it continues: there was no memory */
    size_t after_len;
    uint8_t after[STORE_KEY_MAX];
};

/* A connection to a remote: one thread's at a time. */
struct tier_session {
    struct list node;
    struct backend *backend;
    uint64_t used_ns;
};

struct tier_task {
    struct fairq_item turn;
    void (*run)(struct tier_task *task); /* on a thread of the pool */
};

struct tier_pool {
    struct tier *t;
    pthread_t *threads;
    unsigned nthreads;
    struct fairq fairq; /* of remotes: one that is silent has half of the threads at most */
    pthread_cond_t work;
};

struct tier_block {
    struct list node;
    void *data; /* block_bytes of them, aligned to pages */
};

#define FRESH_SLOTS 65536u
#define PUSH_CHAINS 4096u
#define PUSH_PAUSES 32u

struct tier {
    struct tier_config config;
    struct budget own_budget;
    struct budget push_room; /* of config.budget: what the queue of pushes may take */
    uint64_t paused_bytes;   /* of it: half at most */
    atomic_bool stopping;
    pthread_mutex_t settings;    /* one change of a bucket's remote at a time; before `lock` */
    pthread_mutex_t lock;        /* of all that follows, and of buckets, fetches and pushes */
    pthread_cond_t changed_cond; /* broadcast: a fetch, a locked key, a block */
    struct list buckets;
    _Atomic unsigned nbuckets; /* 0: no lookup is needed */
    struct tier_pool fetchers, prefetchers, pushers;
    struct list blocks; /* idle buffers */
    unsigned nblocks;
    struct list fetches;             /* under way, to be joined */
    struct list locks;               /* of keys: key_lock.node */
    struct list pushes[PUSH_CHAINS]; /* keys to be pushed, by their hash */
    struct list pauses[PUSH_PAUSES]; /* those of them that failed, by how often: each in the order of time */
    struct list dirty_backlog;       /* buckets of which more is dirty than is in the queue */
    pthread_cond_t push_changed_cond;
    pthread_t push_timer;
    bool has_push_timer;
    struct job_kind job_kinds[TIER_CHECK + 1];
    struct tier_stats stats;
    _Atomic uint64_t warned_s; /* that old objects are served: once in ten seconds */
    _Atomic uint64_t
        fresh[FRESH_SLOTS]; /* 32 bits of a key's hash, and the second of CLOCK_MONOTONIC it was checked at */
};

/* A reference, or NULL: no such bucket, or one without a remote. */
struct tier_bucket *tier_bucket_find(struct tier *t, const char *bucket);
void tier_bucket_unref(struct tier *t, struct tier_bucket *b);
/* The same without a reference. Under the lock. */
struct tier_bucket *tier_bucket_look(struct tier *t, const char *bucket);
/* TIER_REFUSED: its settings are wrong. */
int tier_bucket_check(const struct tier_bucket *b, struct leat_error *err);
/* The key's address at the remote; LEAT_INVALID: keys with NUL; TIER_REFUSED. The caller frees. */
int tier_uri(const struct tier_bucket *b, const void *key, size_t key_len, char **ret_uri,
             struct leat_error *err);
/* Can the remote have such a key? LEAT_INVALID: never; TIER_REFUSED, -ENOMEM: that is not known. */
int tier_key_check(const struct tier_bucket *b, const void *key, size_t key_len, struct leat_error *err);
int tier_session_get(struct tier *t, struct tier_bucket *b, struct tier_session **ret_session,
                     struct leat_error *err);
void tier_session_put(struct tier *t, struct tier_bucket *b, struct tier_session *s);
/* A backend's error in the terms of our callers. */
int tier_remote_error(const struct tier_bucket *b, int rc, struct leat_error *err);
static inline bool tier_remote_down(int rc)
{
    return rc == TIER_DOWN || rc == LEAT_TIMED_OUT || rc == TIER_REFUSED;
}

/* LEAT_BUSY: more than 4,096 wait for this bucket's remote (pushes have a limit of their own). Under the lock. */
int tier_pool_add(struct tier_pool *pool, const struct tier_bucket *b, struct tier_task *task);
/* NULL: none now. */
struct tier_block *tier_block_get(struct tier *t);
void tier_block_put(struct tier *t, struct tier_block *k);

/* --- key.c ------------------------------------------------------------------------------------------------------------------- */

/*
 * The version of a key that is here, as the store keeps it (its flags and its `remote`); README.md shows the moves. A version that replaces
 * another one begins as ABSENT.
 */
enum key_state {
    KEY_ABSENT,
    KEY_CLEAN, /* the remote has it, by the tag that is kept with it */
    KEY_UNKNOWN, /* a change of the remote was cut off: it may have this one or another. Compared before it is served */
    KEY_DIRTY, /* the remote has not got it: never evicted */
    KEY_STATES,
};
enum key_state key_state_of(const struct store_obj *obj);
/* May it be served, and the remote not be asked? */
bool key_is_current(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                    const struct store_obj *obj);
/* The version `seq` in the store, durable. tag: with KEY_CLEAN. LEAT_STALE: another version is here, or the bucket has another remote. */
int key_move(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len, uint64_t seq,
             enum key_state from, enum key_state to, const char *tag, struct leat_error *err);
/* The same was done by a commit. */
void key_moved(const struct tier_bucket *b, const void *key, size_t key_len, enum key_state from,
               enum key_state to);

/* A thread's work on a key; other threads wait to do the same. */
enum {
    KEY_LOCK_REMOTE_WRITE = 1, /* writes it at the remote: what that has may be replaced at any moment */
    KEY_LOCK_COMMIT = 2,       /* commits it here, in a bucket of mode "back" */
    KEY_LOCK_KEEP = 4,         /* commits a version that was fetched; only waited for */
};
struct key_lock {
    struct list node; /* tier.locks */
    const struct tier_bucket *bucket;
    const void *key;
    size_t key_len;
    unsigned bits;
};
/* Waits until no other thread has one of these bits. The key stays the caller's until key_unlock. */
void key_lock(struct tier *t, struct key_lock *l, const struct tier_bucket *b, const void *key,
              size_t key_len, unsigned bits);
void key_unlock(struct tier *t, struct key_lock *l);
/* Under the lock. */
bool key_is_locked(const struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                   unsigned bits);

uint64_t tier_key_hash(const struct tier_bucket *b, const void *key, size_t key_len);
void tier_fresh_mark(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len);

/* --- fetch.c ----------------------------------------------------------------------------------------------------------------- */

enum fetch_state { FETCH_QUEUED, FETCH_BODY, FETCH_DONE, FETCH_FAILED, FETCH_STATES };

#define FETCH_URGENT                                                                                         \
    2u /* requests for readers of other parts, beside those under way; and connections for them */
#define FETCH_UNIT                                                                                           \
    (256 * KIB) /* of what is noted to have come before its turn; requests are of whole units */

/* Where a reader waits, which says what is asked for next. */
struct fetch_want {
    struct list node; /* fetch.wants; alone: it does not wait */
    uint64_t offset;
};

/* One object on its way here, for all its readers. Under the lock, but for what its thread alone uses. */
struct fetch {
    struct tier_task task;
    struct list node; /* tier.fetches, while it may be joined */
    struct tier *t;
    struct tier_bucket *bucket;
    unsigned refs; /* readers, and its thread until it is over */
    bool head_only, compare;
    bool fallback;   /* the remote could not be asked (err says why): `obj` is what was here */
    bool superseded; /* another version was stored since: this one is for its readers, and not kept */
    enum fetch_state state;
    int rc;
    struct leat_error err;
    struct list waiters; /* tier_waiter.node */
    /* what is here, and may be old; the version that is replaced */
    struct store_obj *local;
    uint64_t if_seq;
    /* set before FETCH_BODY, and constant then */
    struct store_info info;
    void *meta;
    size_t meta_len;
    int fd;
    struct store_obj *obj; /* what is here was right */
    bool shown;            /* readers may have had bytes of it */
    uint64_t ready;        /* of these, from the first on */
    /* a bit a unit: readers may have it, though what stands before it has not come; it was asked for */
    uint64_t *ahead, *asked;
    struct list wants;
    struct backend *session; /* to be woken when a reader wants another part; NULL: no parts are requested */
    size_t key_len;
    char key[];
};
enum {
    FETCH_HEAD = 1,    /* no more than is known of it; not joined by others */
    FETCH_COMPARE = 2, /* with FETCH_HEAD: what is gone there stays here */
};
/*
 * The fetch of this key: one under way, or a new one. `pool`: whose turn a new one waits for. local: consumed, may be NULL. The reference is
 * the caller's.
 */
int fetch_get(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len, struct tier_pool *pool,
              unsigned flags, struct store_obj *local, uint64_t if_seq, struct fetch **ret_fetch,
              struct leat_error *err);
void fetch_unref(struct fetch *f);
/* Under the lock: so many bytes from `offset` on lie in the file. */
uint64_t fetch_readable(const struct fetch *f, uint64_t offset);
/* Under the lock: a reader may have had all of it. It is being committed. */
bool fetch_is_whole(const struct fetch *f);
/* Under the lock: a reader waits for this one. */
void fetch_wants(struct fetch *f, struct fetch_want *want, uint64_t offset);
/* Something else is, or will be, stored under this key: what a fetch of it brings from here on is not kept, and what one is about to keep is waited for. */
void fetch_supersede(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len);
/* The cached version of a key, whole and not damaged, or NULL; *ret_seq: of the version that a fetch would
 * replace, 0: none. Negative: neither. */
int fetch_look(struct tier *t, const char *bucket, const void *key, size_t key_len,
               struct store_obj **ret_local, uint64_t *ret_seq, struct leat_error *err);

/* Under the lock. Readers are called to ask again. */
void fetch_move(struct fetch *f, enum fetch_state to);
/* The server stops: what a fetch ends with. */
int fetch_stopped(const struct fetch *f, struct leat_error *err);
/* A buffer, waited for where others have them all. */
int fetch_block(struct fetch *f, struct tier_block **ret_block, struct leat_error *err);

/* --- body.c ------------------------------------------------------------------------------------------------------------------ */

/*
 * All bytes of a version into the put. first, first_bytes: the beginning, which came with what is known of it; consumed; NULL, 0: it is to be fetched like
 * the rest. sum: the remote is asked for a checksum of the whole, which goes to stat.
 */
int fetch_body(struct fetch *f, struct backend *b, const char *uri, struct backend_stat *stat,
               struct store_put *put, struct tier_block *first, uint64_t first_bytes, bool sum,
               struct leat_error *err);
/* Nothing has come or was requested: also after a version that changed before a reader had a byte. */
int fetch_body_begin(struct fetch *f);

/* --- push.c ------------------------------------------------------------------------------------------------------------------ */

/* The version that is here, if it is dirty. */
int push_key(struct tier *t, const char *bucket, const void *key, size_t key_len, struct leat_error *err);
/* --- queue.c ----------------------------------------------------------------------------------------------------------------- */

/* This key is dirty, and pushed in the background until it is not. */
void push_add(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len);
/* Finds dirty objects of this bucket, and pushes them. */
void push_bucket(struct tier *t, const char *bucket);
void push_stop(struct tier *t);
void *push_timer_main(void *arg);

/* --- jobs.c ------------------------------------------------------------------------------------------------------------------ */

void tier_jobs_register(struct tier *t);

#endif
