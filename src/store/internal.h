/* SPDX-License-Identifier: Apache-2.0 */
/*
 * internal.h: shared by the sources of the store.
 *
 * Locks, in the order in which they are taken: every path's commits (shared) ─▶ a key's stripe ─▶ path.files
 * ─▶ log.lock | index.lock | open.lock. `commits` is held shared from a record's append to its effects (the
 * index, files unlinked), and exclusively while a new log begins. So a snapshot contains all logs before it,
 * and no change is half done at that point.
 */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/list.h"
#include "store/format.h"
#include "store/index.h"
#include "store/io.h"
#include "store/store.h"

#define STORE_STRIPES     1024u
#define PATH_NAME_MAX     512u
#define PATH_FILE_MAX     (PATH_NAME_MAX + 64u)
#define STORE_WRITERS_MAX 32u
#define UPLOAD_CHAINS     1024u
#define FILES_PER_DIR     4096u
#define FILE_MODE         0600u
#define FILE_MODE_PUSHED                                                                                     \
    (FILE_MODE |                                                                                             \
     S_ISVTX) /* what its trailer says of the remote (dirty, or its tag) is not so any more; not flushed */
#define ORPHAN_AGE_NS   (30ll * 24 * 3600 * 1000000000) /* files that no record names are kept for so long */
#define FILES_AT_A_TIME 64u                             /* names made durable by one flush of their folder */
#define UNREADABLE_MAX                                                                                       \
    16u /* files of a path that cannot be read, and none between that could: then it is left */

/* The log of a path: appends under `lock`; a thread that waits for the disk shares one flush with those that came in the meantime. */
struct store_log {
    pthread_mutex_t lock;
    int fd;
    uint64_t number, nth; /* of the file; of the next record */
    uint64_t end;         /* of records */
    uint64_t zeroed;      /* written ahead with zeros, so that a flush has no sizes to store */
    /* A record confirms that those before this one are on the disk; a number like nth */
    uint64_t marked;
    pthread_mutex_t sync_lock;
    pthread_cond_t synced_cond;
    uint64_t synced, synced_nth; /* records before this offset, and before this number, are on the disk */
    bool syncing;
    int sync_rc;    /* a flush failed: later records are never known to be on the disk */
    uint64_t first; /* number of the oldest log that is needed */
};

struct spare_file {
    uint64_t id;
    int fd;
};

struct path {
    struct store *store;
    unsigned number;
    char dir[PATH_NAME_MAX];
    uint8_t id[16];
    bool member; /* a member of the store that was not given or is missing: nothing of it is loaded */
    int lock_fd;
    uint64_t device;     /* of its file system; 0: not known */
    uint64_t weight_mib; /* its share of new objects, from leat-store; 0: not known, counts as 1 */
    _Atomic bool failed;
    bool loaded;  /* the index is all of what the path holds */
    bool rebuilt; /* at this start, out of the files */
    bool torn; /* a log's end reached the disk out of order: what follows its first gap was never flushed */
    pthread_mutex_t fail_lock;
    char error[200];
    uint64_t
        unreadable[UNREADABLE_MAX]; /* different files, since the last that could be read; under fail_lock */
    _Atomic unsigned nunreadable;
    struct index index;
    pthread_rwlock_t commits;
    struct store_log log;
    uint64_t snapshot_number;
    /* Of the snapshot being written, while there is frozen_outstanding */
    struct snapshot_header frozen_header;
    uint64_t *frozen_outstanding;
    /* files made and not in the index: spare ones, and those being written */
    pthread_mutex_t files_lock;
    struct spare_file spare[FILES_AT_A_TIME];
    unsigned nspare;
    uint64_t *busy;
    size_t nbusy, busy_cap;
    uint64_t next_file;
    bool folder_synced; /* the folder of the files made last has a durable name */
    _Atomic uint64_t errors, corrupt, evicted, evicted_bytes;
    _Atomic uint64_t orphans;       /* files in orphans/ */
    int64_t orphans_since_ns;       /* when the oldest of them was moved there; of the background thread */
    _Atomic uint64_t pending_bytes; /* of puts in flight, not in the index yet */
    _Atomic bool over_high;
    struct scrub *scrub;         /* NULL: not loaded */
    uint8_t hand[INDEX_KEY_MAX]; /* of the eviction's clock */
    size_t hand_len;
};

struct bucket {
    struct store_bucket b;
    unsigned commits; /* in flight: a change of the bucket waits for them */
    bool deleting;
    bool changing;   /* later commits wait */
    uint64_t has[2]; /* of each copy: bits of paths that have this version; known when all were read */
    uint64_t
        astray; /* of paths where it says what was refused: nothing is stored in it until that is written over */
};

struct open_files {
    pthread_mutex_t lock;
    struct list lru;     /* most recent first */
    struct list closing; /* without a record, and their files are unlinked */
    struct obj **table;
    unsigned buckets, count, cap;
    struct budget bodies; /* what small objects keep in memory */
};

struct upload;

/* Of keys' hashes. */
struct stripe_set {
    uint64_t bits[STORE_STRIPES / 64];
};

struct store {
    const struct store_io *io;
    struct path **paths;
    unsigned npaths;
    uint8_t id[16];
    uint64_t capacity_bytes, reserve_bytes, direct_bytes, upload_age_ns;
    unsigned high_percent, low_percent;
    uint64_t scrub_period_s, scrub_rate;
    struct budget *budget, own_budget;
    pthread_mutex_t stripes_lock;
    pthread_cond_t stripes_cond;
    struct stripe_set stripes;       /* that are locked */
    uint64_t deleted[STORE_STRIPES]; /* the highest number of a deletion under each, which guards it */
    _Atomic uint64_t seq;

    /* One change at a time; before buckets_lock, which guards what readers see */
    pthread_mutex_t buckets_write;
    pthread_mutex_t buckets_lock;
    pthread_cond_t buckets_cond;
    struct bucket **buckets; /* by name */
    unsigned nbuckets;
    char (*damaged)[STORE_BUCKET_MAX + 1]; /* buckets of which all descriptions are damaged */
    unsigned ndamaged;
    uint32_t last_bucket_id;

    pthread_mutex_t uploads_lock;
    pthread_cond_t uploads_cond;
    struct list uploads, upload_chains[UPLOAD_CHAINS]; /* all; by id */
    atomic_bool uploads_full;   /* no room was left for another upload, and none has ended since */
    struct budget uploads_room; /* their part of the budget */

    _Atomic unsigned writers; /* threads of large PUTs; those beyond STORE_WRITERS_MAX go without */
    struct open_files open;
    _Atomic uint64_t puts, gets, deletes, put_bytes, open_hits, open_misses, flushes;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t tick_lock; /* guards stop; work_lock: one turn at a time */
    pthread_mutex_t work_lock;
    pthread_cond_t tick_cond;
    bool stop, kicked;
};

/* --- index keys --------------------------------------------------------------------------------------------------------- */

struct ikey {
    uint8_t bytes[INDEX_KEY_MAX];
    size_t len;
};
static inline void ikey_set(struct ikey *k, uint32_t bucket_id, const void *key, size_t key_len)
{
    assert(key_len <= STORE_KEY_MAX);
    uint32_t big = __builtin_bswap32(bucket_id);
    memcpy(k->bytes, &big, 4);
    if (key_len)
        memcpy(k->bytes + 4, key, key_len);
    k->len = 4 + key_len;
}
uint64_t store_ikey_hash(const struct ikey *k);
/* The stripes of these keys, in the order of their numbers: two batches never wait for each other. */
void store_stripes_lock(struct store *s, struct stripe_set *set, const struct ikey *keys, unsigned n);
void store_stripes_unlock(struct store *s, const struct stripe_set *set);
/* The highest number of a deletion of this key, or of others of its stripe, since the start. Its stripe is held. */
uint64_t *store_deleted(struct store *s, const void *ikey, size_t len);
uint64_t store_next_seq(struct store *s);
int64_t store_wall_ns(void);
/* "bucket/key", with odd bytes escaped and cut where too long: for messages. */
#define KEY_TEXT_MAX 200
const char *store_key_text(const char *bucket, const void *key, size_t key_len, char out[KEY_TEXT_MAX]);

/* --- buckets ------------------------------------------------------------------------------------------------------------ */

int store_bucket_parse(const void *data, size_t len, struct store_bucket *ret, bool *ret_deleted);
int store_buckets_load(struct store *s, struct leat_error *err);
void store_buckets_free(struct store *s);
/* restore.c: of a bucket whose description is damaged. 0: it has no objects. */
uint32_t store_bucket_lost_id(struct store *s, const char *name);
/* Refused changes that could not be undone are tried again. */
void store_buckets_tick(struct store *s);
/* id and flags of a bucket. STORE_NO_BUCKET. */
int store_bucket_find(struct store *s, const char *name, uint32_t *ret_id, uint32_t *ret_flags,
                      struct leat_error *err);
/* Between the two calls the bucket stays, and so does its remote. STORE_NO_BUCKET: it is gone, or another one
 * by now; STORE_UNAVAILABLE: not all disks have an answer. A thread must not enter twice: a change would wait
 * for the first, and the second for the change. */
int store_bucket_enter(struct store *s, const char *name, uint32_t id, bool *ret_remote,
                       uint64_t *ret_remote_id, struct leat_error *err);
/* As store_bucket_enter, for callers that store nothing, but note something of what is there already. */
int store_bucket_stay(struct store *s, const char *name, uint32_t id, uint64_t *ret_remote_id,
                      struct leat_error *err);
void store_bucket_leave(struct store *s, const char *name);
bool store_bucket_is_remote(struct store *s, uint32_t id, char ret_name[STORE_BUCKET_MAX + 1]);
int store_bucket_check_key(const void *key, size_t key_len, struct leat_error *err);

/* --- paths -------------------------------------------------------------------------------------------------------------- */

/* path.c: folders, identity, lock */
int store_paths_open(struct store *s, const struct store_config *config, struct leat_error *err);
void store_path_close(struct path *p);
/* Leaves the path, with one line in the log. */
void store_path_fail(struct path *p, const char *why);
/* The meaning of an I/O error: LEAT_NO_SPACE, -ENOMEM, -EMFILE; others leave the path: STORE_UNAVAILABLE. */
int store_path_error(struct path *p, int rc, const char *what, struct leat_error *err);
/* One file cannot be opened or read: that object is STORE_UNAVAILABLE (-ENOMEM, -EMFILE: try again), and the
 * path continues. The path is left when UNREADABLE_MAX different files failed and none could be read between
 * them: repeated failures of one file count once. */
int store_path_unreadable(struct path *p, uint64_t file, int rc, const char *text, struct leat_error *err);
void store_path_readable(struct path *p); /* a file was read */
void store_path_file_name(const struct path *p, uint64_t file, char out[PATH_FILE_MAX]);

/* recover.c: the index out of snapshot and logs, or out of the files */
int store_path_load(struct path *p, struct leat_error *err);
int store_trailer_read(struct path *p, int fd, uint8_t **ret_data, uint32_t *ret_bytes, struct trailer *ret);

/* orphans.c: files with a trailer that no record names. t NULL: it cannot be read. */
void store_orphan_keep(struct path *p, uint64_t file, const struct trailer *t);
/* Counts them, and drops those that were moved there before this moment (since 1970). ret_highest (may be NULL): their highest number. */
void store_orphans_age(struct path *p, int64_t before_ns, uint64_t *ret_highest);

/* files.c: numbers of files whose names are on the disk already */
int store_file_take(struct path *p, struct spare_file *ret_file, struct leat_error *err);
void store_file_settled(struct path *p, uint64_t id); /* it is in the index, or gone */
void store_file_drop(struct path *p, uint64_t id);    /* unlinked, and settled */
void store_files_close(struct path *p);
int store_files_outstanding(struct path *p, uint64_t **ret_ids, uint64_t *ret_n);

/* log.c */
int store_log_start(struct path *p, const struct log_header *h, struct leat_error *err);
/* The same with an existing, empty log. h: the header that it gets, on the disk before a record is; NULL: its
 * own is right. */
int store_log_resume(struct path *p, uint64_t number, const struct log_header *h, struct leat_error *err);
/* The clean end: recorded in this log; the next one has its length. */
void store_log_end(struct path *p);
int store_log_append(struct path *p, const struct log_record *r, uint64_t *ret_end, struct leat_error *err);
int store_log_sync(struct path *p, uint64_t end, struct leat_error *err);
/* Appends a record that confirms the flushed ones, if none does; not flushed. For times without writes. */
void store_log_mark(struct path *p);
int store_log_switch(struct path *p, int fd, uint64_t number); /* commits is held alone */
int store_log_create(struct path *p, const struct log_header *h, int *ret_fd);
void store_log_close(struct path *p);

/* snapshot.c */
int store_snapshot_load(struct path *p, const char *name, struct snapshot **ret_snapshot,
                        struct snapshot_header *ret_header, uint64_t **ret_outstanding);
/* The path's index as a snapshot; logs before it go. */
int store_path_compact(struct path *p);
bool store_path_wants_compaction(struct path *p);

/* --- objects ------------------------------------------------------------------------------------------------------------ */

/* The place of the newest version of a key. found: item's value is copied, texts are not. Failed paths:
 * STORE_UNAVAILABLE where they may matter. */
struct found {
    struct path *path;
    struct index_value value;
    char etag[STORE_ETAG_MAX + 1];
    char remote[STORE_REMOTE_MAX + 1];
    bool has_remote;
};
int store_find(struct store *s, const struct ikey *k, bool touch, struct found *ret);
bool store_may_hold(struct path *p, const struct ikey *k);
struct path *store_place(struct store *s, const struct ikey *k, unsigned nth);

int store_open_init(struct open_files *o, unsigned cap);
void store_open_fini(struct store *s);
void store_open_close(struct store *s); /* those in `closing`: may free much of a disk */
void store_open_forget(struct store *s, struct path *p, uint64_t file);
struct store_obj *store_open_find(struct store *s, struct path *p, uint64_t file, uint64_t seq);
int store_open(struct store *s, const struct ikey *k, const char *bucket, struct store_obj **ret_obj,
               struct leat_error *err);
/* Whether the trailer agrees with the index. */
bool store_trailer_belongs(const struct trailer *t, const struct index_value *v, const struct ikey *k);
/* This version is damaged: evicted where the remote has it, else marked. */
void store_found_corrupt(struct store *s, struct path *p, const struct ikey *k, uint64_t seq);

/* change.c: the effects of a change on log, index and files. The caller holds commits and the stripe. */
struct change {
    struct path *path;
    struct index_node *node;
    uint64_t end;      /* of its record in the log */
    uint64_t old_file; /* to be unlinked after the flush; 0: none */
};
/* commits of all paths, shared: before a key's stripe. In the other order, with a snapshot waiting in
 * between, a thread that holds one would wait for ever. */
void store_commits_enter(struct store *s);
void store_commits_leave(struct store *s);
int store_change_append(struct change *c, struct leat_error *err);
void store_change_apply(struct change *c);
/* Appended, flushed, and only then applied. The node is used up in any case: after a flush that failed the key's state is unknown. */
int store_change_make(struct change *c, struct leat_error *err);
void store_change_finish(struct store *s, struct change *c);
/* Removes versions of the key from paths other than `newest`, durably; `seq`: of these deletions. Failed
 * paths are skipped. */
int store_remove_older(struct store *s, const struct ikey *k, const struct path *newest, uint64_t seq,
                       struct leat_error *err);
int store_remove(struct store *s, const struct ikey *keys, const uint64_t *seqs, unsigned n, int *ret_codes,
                 struct leat_error *err);
int store_flag(struct store *s, const struct ikey *k, uint64_t seq, uint32_t clear, uint32_t set,
               const char *remote, bool sync, struct leat_error *err);

/* Bytes that are missing on this path for an object of so many (or STORE_UNKNOWN_BYTES); 0: it has room. */
uint64_t store_shortage(struct path *p, uint64_t bytes);
struct put_target {
    const char *bucket;
    uint32_t bucket_id; /* of the bucket that has to be there at the commit */
    struct ikey key;
    uint64_t bytes;
    unsigned flags;
    struct path *path;     /* NULL: as HRW says */
    bool entered;          /* the caller is between store_bucket_enter and _leave */
    struct upload *upload; /* a part of it; the put takes a reference */
};
int store_commit_condition(struct store *s, const struct ikey *k, const struct store_commit *c,
                           struct found *ret_found, bool *ret_there, struct leat_error *err);
int store_put_new(struct store *s, const struct put_target *target, struct store_put **ret_put,
                  struct leat_error *err);

/* writer.c: writes one buffer while its owner, one thread, fills another. free waits. */
struct writer;
int store_writer_new(const struct store_io *io, int fd, struct writer **ret_writer);
/* Nothing is under way. `data` is the writer's until store_writer_wait has returned. */
void store_writer_begin(struct writer *w, const void *data, size_t n, uint64_t at);
int store_writer_wait(struct writer *w); /* 0 or -errno, of the last one */
void store_writer_free(struct writer *w);

/* Adds an open file's bytes, whose block CRCs are known, without reading them where blocks fall on blocks. */
int store_put_copy(struct store_put *put, int fd, uint64_t bytes, const uint32_t *crcs, uint32_t crc,
                   struct leat_error *err);
/* The put is the object of an upload: with its record the upload's is deleted, at once or not at all; then, or when it is cancelled, store_upload_ended. */
struct put_ending {
    struct upload *upload;
    const char *id;
    char etag[STORE_ETAG_MAX + 1];
    struct store_commit commit; /* from the upload's begin: meta, remote, flags */
};
void store_put_ends(struct store_put *put, const struct put_ending *ending);

/* multipart.c */
#define UPLOAD_KEY_BYTES                                                                                     \
    26u /* of an index key: 0, the bucket's id, the upload's, the part's number (0: the upload itself) */
void store_upload_key(uint32_t bucket_id, const uint8_t id[16], unsigned part, struct ikey *ret);
bool store_upload_id_parse(const char *text, uint8_t ret_id[16]);
void store_upload_ended(struct store *s, struct upload *u, bool done); /* takes the reference */
/* Between the two calls no thread completes or aborts it. */
int store_upload_enter(struct store *s, struct upload *u, struct leat_error *err);
void store_upload_leave(struct store *s, struct upload *u);
void store_upload_ref(struct store *s, struct upload *u);
void store_upload_unref(struct store *s, struct upload *u);
int store_uploads_load(struct store *s, struct leat_error *err);
void store_uploads_free(struct store *s);
/* Aborts those without a change since then (store_wall_ns): begun, or had a part committed. */
void store_uploads_age(struct store *s, int64_t before_ns);
bool store_uploads_any(struct store *s, uint32_t bucket_id);
/* Of a bucket that is being deleted: all of them go. */
int store_uploads_abort(struct store *s, uint32_t bucket_id, struct leat_error *err);

/* evict.c: one turn, over all paths */
void store_evict_turn(struct store *s);
/* Drops this version, unreadable or damaged, where the remote has it. True: gone, and fetched again on demand. */
bool store_give_up(struct store *s, const struct ikey *k, uint64_t seq);
void store_kick(struct store *s);

/* scrub.c: of a loaded path; its thread is started separately */
int store_scrub_new(struct path *p, struct leat_error *err);
int store_scrub_run(struct path *p, struct leat_error *err);
void store_scrub_end(struct path *p); /* also of one that has none */
void store_scrub_note(struct path *p, const struct ikey *k,
                      uint64_t seq); /* another thread found it damaged */
void store_scrub_status(struct path *p, struct store_scrub_status *ret);
/* For tests, with no_background: reads up to so many objects of each path of a pass that was started. */
void store_scrub_some(struct store *s, unsigned objects);

#endif
