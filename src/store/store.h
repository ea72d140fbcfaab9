/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h: buckets and objects on one or more disk paths of this node.
 *
 *   put_begin ─▶ room/advance (or write) ... ─▶ commit: durable, then visible       get ─▶ obj: pinned, readable ─▶ obj_unref
 *
 * Every call is thread-safe. All may block on disks, but those marked [loop]: they take short locks and do no I/O, and may be called on an
 * event loop. Outputs are written on success only. `err` may be NULL.
 *
 * A key is 1 to 1,024 bytes of any value. A bucket's name is checked against S3's rules loosely (3 to 63 of [a-z0-9.-]; see
 * store_bucket_name_ok). Names of files are numbers, so nothing in a key can reach the file system.
 *
 * Codes in addition to those of leat/error.h, so that a service can tell them apart:
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/base.h"
#include "base/pairs.h"
#include "base/budget.h"

#define STORE_NO_BUCKET      (-ENXIO)     /* the bucket does not exist (LEAT_NOT_FOUND: the key does not) */
#define STORE_NO_UPLOAD      (-ESRCH)     /* no such multipart upload */
#define STORE_EXISTS         (-EEXIST)    /* the bucket exists already */
#define STORE_NOT_EMPTY      (-ENOTEMPTY) /* the bucket has objects (store_bucket_remote: or uploads) */
#define STORE_BUCKET_DAMAGED (-EUCLEAN) /* the bucket's description is damaged: neither there nor not there */
#define STORE_PRECONDITION   (-ECHRNG)  /* if_match, if_none_match: it is not so */
#define STORE_UNAVAILABLE                                                                                    \
    (-EIO) /* it lies on a path that failed, or may lie there, or a change of it could not be flushed: neither found nor not found */
#define STORE_AGAIN          (-EAGAIN) /* [loop] calls: not without I/O; ask a thread that may block */

#define STORE_KEY_MAX        1024u
#define STORE_BUCKET_MAX     63u
#define STORE_META_MAX       8192u /* bytes of an object's meta */
#define STORE_REMOTE_MAX     255u  /* bytes of an object's remote */
#define STORE_ETAG_MAX       127u  /* characters of an ETag, without its quotes */
#define STORE_PROPS_MAX      65536u
#define STORE_PATHS_MAX      64u
#define STORE_PARTS_MAX      10000u
#define STORE_UPLOAD_ID_TEXT 33        /* 32 hex digits and NUL */
#define STORE_BLOCK          (1 * MIB) /* bytes under one CRC32C */

struct store;
struct store_io; /* store/io.h: how files are touched; tests give their own */

struct store_config {
    const char *const *paths; /* folders, made if missing (their parents are not); one a disk */
    unsigned npaths;
    uint64_t capacity_bytes; /* most that objects of a path may take; 0: what the file system has */
    unsigned high_percent;   /* of capacity: above it is evicted ...; 0: 90 */
    unsigned low_percent;    /* ... down to it; 0: 80 */
    uint64_t
        reserve_bytes; /* PUTs leave so much free on a path's file system, for logs and deletes; 0: 32 MiB */
    uint64_t
        direct_bytes; /* PUTs of known size from here on bypass the page cache; 0: 8 MiB; UINT64_MAX: never */
    unsigned fd_cache;     /* objects kept open; 0: 1024 */
    struct budget *budget; /* buffers of PUTs are charged here; NULL: an budget of the store's own, 256 MiB */
    uint64_t upload_age_s; /* uploads without a change for so long are aborted; 0: 7 days */
    uint64_t
        scrub_period_s; /* each object is read again once in so long, 100 years at the most; 0: 30 days; UINT64_MAX: only when asked */
    uint64_t scrub_rate; /* bytes a second of one path that this may read; 0: 64 MiB */
    bool
        forget_missing; /* a path of the store that is not given is gone for good; else it counts as failed */
    const struct store_io *io; /* NULL: the real one */
    bool no_background;        /* tests: no thread; store_tick does its work */
};

/*
 * Opens (or makes) a store. A path that cannot be read is left, reported by store_status, and the others continue; it fails when none is
 * left. LEAT_BUSY: another process has a path. LEAT_INVALID: a path of another store, or one that was swapped with another, or a
 * folder that is no store's and not empty.
 */
int store_new(const struct store_config *config, struct store **ret_store, struct leat_error *err);
void store_free(struct store *s); /* objects and puts are gone by then; NULL is fine */
/* One turn of the background work: snapshots, eviction, old uploads. Of its thread; with no_background of a test. */
void store_tick(struct store *s);

/* --- buckets ----------------------------------------------------------------------------------------------------------- */

enum {
    STORE_BUCKET_REMOTE = 1, /* has a remote: clean objects in it may be evicted */
};

struct store_bucket {
    char name[STORE_BUCKET_MAX + 1];
    uint32_t id; /* never used twice */
    uint32_t flags;
    int64_t created_ns; /* since 1970 */
    uint64_t version;   /* up by one with every change of the properties */
    uint64_t remote_id; /* which remote it caches: another number for another remote; not over a restart */
    /* Opaque, NUL-terminated (JSON by convention); never NULL; freed with the struct by store_bucket_fini. */
    char *props;
    size_t props_len;
};
void store_bucket_fini(struct store_bucket *b);

bool store_bucket_name_ok(const char *name); /* [loop] */
/* Durable when it returns. props may be NULL ("{}"). STORE_EXISTS; LEAT_INVALID: the name; STORE_BUCKET_DAMAGED: it would be another with this name. */
int store_bucket_create(struct store *s, const char *name, uint32_t flags, const char *props,
                        struct leat_error *err);
/*
 * As store_bucket_create, also for one whose description is damaged, with the objects that it had; uploads in parts are there after the next start. Only an
 * administrator may: the bucket gets these properties, its owner among them.
 */
int store_bucket_restore(struct store *s, const char *name, const char *props, struct leat_error *err);
/* Uploads into it that are open are aborted. STORE_NOT_EMPTY: it has objects; STORE_NO_BUCKET. */
int store_bucket_delete(struct store *s, const char *name, struct leat_error *err);
/* [loop] ret_bucket NULL: does it exist? */
int store_bucket_get(struct store *s, const char *name, struct store_bucket *ret_bucket,
                     struct leat_error *err);
/* Atomic, durable. if_version 0: whatever is there; else STORE_PRECONDITION when it is another one. */
int store_bucket_set(struct store *s, const char *name, uint64_t if_version, const char *props,
                     struct leat_error *err);
/*
 * The same, and makes the bucket a cache of a remote one (STORE_BUCKET_REMOTE), or of none. Waits for commits
 * into it that are in flight; later ones wait: each is before it or after it. A bucket without a remote has
 * the only copy, so: STORE_NOT_EMPTY where its remote changes and it has objects or uploads; LEAT_BUSY where
 * the remote is removed and it has dirty objects.
 */
enum store_remote { STORE_REMOTE_NONE, STORE_REMOTE_SAME, STORE_REMOTE_OTHER };
int store_bucket_remote(struct store *s, const char *name, uint64_t if_version, enum store_remote remote_id,
                        const char *props, uint64_t *ret_remote_id, struct leat_error *err);
/* [loop] By name, sorted; each is the callback's only during the call; its answer other than 0 ends all and is returned. The callback
 * may not call the store. */
int store_bucket_list(struct store *s, int (*bucket)(void *user, const struct store_bucket *bucket),
                      void *user);

/* --- objects: reading -------------------------------------------------------------------------------------------------- */

enum {
    STORE_DIRTY = 1, /* the remote has not got it: never evicted */
    STORE_CORRUPT =
        2, /* a checksum did not match: reads are LEAT_CORRUPT until it is stored or fetched again */
};

/* What is known of an object without a look at its file. */
struct store_info {
    uint64_t bytes;
    uint64_t seq;     /* larger than that of every version of this key before; names this version */
    int64_t mtime_ns; /* since 1970 */
    uint32_t flags;   /* STORE_DIRTY ... */
    char etag[STORE_ETAG_MAX + 1]; /* without quotes */
};
/* [loop] LEAT_NOT_FOUND, STORE_NO_BUCKET, STORE_UNAVAILABLE. */
int store_lookup(struct store *s, const char *bucket, const void *key, size_t key_len,
                 struct store_info *ret_info, struct leat_error *err);

#define STORE_BODY_MAX (16 * KIB)

/*
 * One version of an object, open. It stays readable while it is overwritten, deleted or evicted. Constant but for what is private.
 * Bytes lie in `fd` from `offset` on (a multiple of 4,096); pread, sendfile, mmap them; `fd` is shared, so do not use its position.
 */
struct store_obj {
    struct store_info info;
    int fd;
    uint64_t offset;
    const void
        *body; /* all bytes, verified, where they are at most STORE_BODY_MAX and there was room; else NULL */
    uint32_t crc32c;  /* of all bytes */
    const void *meta; /* pairs (base/pairs.h); servers and the cold tier write the same names */
    size_t meta_len;
    const char *remote; /* the remote's ETag or version, as the cold tier gave it; "" if none */
};
/*
 * Small objects (one block) are verified when they are opened; for others see store_obj_check. LEAT_CORRUPT names bucket and key.
 * store_get_cached [loop]: only what is open already, else STORE_AGAIN (or LEAT_NOT_FOUND and the like, as store_lookup).
 */
int store_get(struct store *s, const char *bucket, const void *key, size_t key_len,
              struct store_obj **ret_obj, struct leat_error *err);
int store_get_cached(struct store *s, const char *bucket, const void *key, size_t key_len,
                     struct store_obj **ret_obj, struct leat_error *err);
struct store_obj *store_obj_ref(struct store_obj *obj); /* [loop] */
void store_obj_unref(struct store_obj *obj);            /* [loop]; NULL is fine */
/*
 * Sees to it that the blocks that [offset, offset + bytes) touches were verified since the object was opened: reads those that were not
 * (they are then in the page cache, for a sendfile to follow). LEAT_CORRUPT names bucket, key and block, and marks the object.
 */
int store_obj_check(struct store *s, struct store_obj *obj, uint64_t offset, uint64_t bytes,
                    struct leat_error *err);
bool store_obj_checked(const struct store_obj *obj, uint64_t offset,
                       uint64_t bytes); /* [loop] nothing is left to verify */
/* Reads into memory and verifies what it can: each whole block of the range, and the rest by store_obj_check. Returns 0 when all
 * `bytes` are there (LEAT_INVALID past the end). */
int store_obj_read(struct store *s, struct store_obj *obj, uint64_t offset, void *dst, uint64_t bytes,
                   struct leat_error *err);
/* For callers that read by themselves (direct I/O into registered memory): `data` is the whole block number
 * `block` (the last may be short). 0, or LEAT_CORRUPT, and the object is marked. */
int store_obj_verify_block(struct store *s, struct store_obj *obj, uint64_t block, const void *data,
                           uint64_t bytes, struct leat_error *err);
/* CRC32C of each block, the last may be short; *ret_n of them. [loop] */
const uint32_t *store_obj_block_crcs(const struct store_obj *obj, uint64_t *ret_n);
/* Another descriptor for direct I/O, the caller's; -errno where there is none (-EINVAL: the file system has no direct I/O). */
int store_obj_open_direct(const struct store_obj *obj);

/* --- objects: writing -------------------------------------------------------------------------------------------------- */

struct store_put;
#define STORE_UNKNOWN_BYTES UINT64_MAX
#define STORE_PUT_SMALL     (256 * KIB)

enum {
    STORE_PUT_BUFFERED =
        1, /* never direct I/O: what is written is to be read while it arrives (store_put_reader) */
    STORE_PUT_NO_MD5 = 2, /* the commit brings an ETag; none is computed on the way */
};

/*
 * bytes: of the whole object, or STORE_UNKNOWN_BYTES. STORE_NO_BUCKET; LEAT_NO_SPACE: disks are full;
 * LEAT_BUSY: no room for another buffer, later there is; LEAT_INVALID: the key; STORE_UNAVAILABLE. Up to
 * STORE_PUT_SMALL bytes are kept in memory until the commit (or store_put_push, store_put_reader): such a
 * begin waits for nothing [loop], and the commit returns the disk's errors, LEAT_NO_SPACE and
 * STORE_UNAVAILABLE.
 */
int store_put_begin(struct store *s, const char *bucket, const void *key, size_t key_len, uint64_t bytes,
                    unsigned flags, struct store_put **ret_put, struct leat_error *err);
/* Where the next bytes go: *ret_bytes (at least 1) of the put's own buffer, for the caller to fill (recv) and
 * to hand over with store_put_advance: n of them, from the start. A put belongs to one thread at a time. */
void *store_put_room(struct store_put *put, size_t *ret_bytes); /* [loop] */
/* May write to the disk when the buffer is full. After an error only abort is allowed. LEAT_INVALID: more than announced. */
int store_put_advance(struct store_put *put, size_t n, struct leat_error *err);
/* Room and advance with a copy. */
int store_put_write(struct store_put *put, const void *data, size_t n, struct leat_error *err);
/* Buffered puts: what was handed over is in the file now, readable through store_put_reader. */
int store_put_push(struct store_put *put, struct leat_error *err);
/*
 * Buffered puts of known size, once something was pushed: n bytes at `offset`, which the put has not reached.
 * Readers may have them at once. They become the object's when the put reaches them and adopts them: read
 * back and checksummed, n of them.
 */
int store_put_ahead(struct store_put *put, uint64_t offset, const void *data, size_t n,
                    struct leat_error *err);
int store_put_adopt(struct store_put *put, uint64_t n, struct leat_error *err);
/* A read-only descriptor of the file under way, the caller's; bytes from 0 on are the object's. */
int store_put_reader(struct store_put *put, int *ret_fd, struct leat_error *err);
uint64_t store_put_pushed(
    const struct store_put *put); /* [loop], any thread: so many bytes can be read from the file */
/* Of what was handed over so far. md5 is final: it may be asked for once, before the commit, after the last byte; false with STORE_PUT_NO_MD5. */
uint64_t store_put_bytes(const struct store_put *put);
uint32_t store_put_crc32c(const struct store_put *put);
bool store_put_md5(struct store_put *put, uint8_t ret_md5[16]);

struct store_commit {
    const char *etag; /* without quotes; NULL: MD5 of the bytes, in hex */
    const void *meta; /* pairs; may be NULL */
    size_t meta_len;
    /* The remote's name of it; NULL: only this node has it, so it is dirty in a bucket with a remote. */
    const char *remote;
    /* With remote: which one (store_bucket.remote_id); 0: not checked. LEAT_STALE: another by now. */
    uint64_t remote_id;
    /* Only if the bucket still has remote_id (0: none), else LEAT_STALE: conditions were checked there. */
    bool if_remote_id;
    uint32_t flags;     /* STORE_DIRTY or 0 */
    int64_t mtime_ns;   /* 0: now */
    bool if_none_match; /* "*": only if there is no such object */
    /* Only if there is one with this ETag (without quotes; "*": any); NULL: no condition. */
    const char *if_match;
    uint64_t if_seq; /* only if the version there is this one; 0: no condition */
};
/*
 * Durable when it returns 0, and only then visible; frees the put in any case. STORE_PRECONDITION; LEAT_NOT_FOUND: there is none for
 * if_match; LEAT_INVALID: fewer bytes than announced, meta too long; LEAT_NO_SPACE; STORE_UNAVAILABLE. ret_info may be NULL.
 */
int store_put_commit(struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                     struct leat_error *err);
void store_put_abort(struct store_put *put); /* NULL is fine */

/*
 * LEAT_NOT_FOUND when there is none (S3 answers 204 all the same). if_seq 0: any version. Durable before it is
 * visible; LEAT_NOT_FOUND is durable, too. STORE_UNAVAILABLE: a disk has failed, so the answer is unknown.
 */
int store_delete(struct store *s, const char *bucket, const void *key, size_t key_len, uint64_t if_seq,
                 struct leat_error *err);
/* Many, with one wait for the disk: ret_codes[i] is the result of store_delete alone. */
struct store_key {
    const void *key;
    size_t key_len;
};
int store_delete_many(struct store *s, const char *bucket, const struct store_key *keys, unsigned n,
                      int *ret_codes, struct leat_error *err);

/* The cold tier: the remote has this version (seq) now, and calls it `remote`. remote_id: which one
 * (store_bucket.remote_id); 0: not checked. LEAT_STALE: it is another version by now, or the bucket has
 * another remote. Durable. */
int store_mark_clean(struct store *s, const char *bucket, const void *key, size_t key_len, uint64_t seq,
                     uint64_t remote_id, const char *remote, struct leat_error *err);
/* Takes a clean object out of a bucket with STORE_BUCKET_REMOTE. LEAT_BUSY: it is dirty; LEAT_INVALID: the bucket has no remote. */
int store_evict(struct store *s, const char *bucket, const void *key, size_t key_len, struct leat_error *err);

/*
 * For an object of so many bytes that got LEAT_NO_SPACE: evicts clean objects of this bucket, which has a
 * remote, least recently used first, on one path, if that makes room there. LEAT_NO_SPACE, and nothing is
 * evicted, if no path would have room.
 */
int store_make_room(struct store *s, const char *bucket, uint64_t bytes, struct leat_error *err);

/* --- lists ------------------------------------------------------------------------------------------------------------- */

struct store_list_spec {
    const void *prefix; /* may be NULL */
    size_t prefix_len;
    const void *after; /* keys greater than this one; NULL: from the start */
    size_t after_len;
    bool after_prefix;     /* and none that begins with `after`: continues after a common prefix */
    const void *delimiter; /* keys with it behind the prefix are rolled up to a common prefix; NULL: none */
    size_t delimiter_len;
    unsigned max; /* entries, keys and common prefixes alike */
};
struct store_entry {
    const void *key; /* not NUL-terminated */
    size_t key_len;
    bool prefix; /* a common prefix: the rest is 0 */
    uint64_t bytes, seq;
    int64_t mtime_ns;
    uint32_t flags;
    const char *etag; /* NUL-terminated, without quotes */
};
/*
 * [loop] with a small max. Calls entry for each, sorted by the bytes of keys; an entry is the callback's only during the call, which may
 * not call the store. Its answer other than 0 ends the list and is returned. *ret_more: there was more than max.
 */
int store_list(struct store *s, const char *bucket, const struct store_list_spec *spec,
               int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
               struct leat_error *err);

/* --- multipart --------------------------------------------------------------------------------------------------------- */

/* Uploads and their parts survive restarts. meta, remote and flags of the commit are kept for the end; the rest of it is not looked at. */
int store_upload_begin(struct store *s, const char *bucket, const void *key, size_t key_len,
                       const struct store_commit *commit, char ret_id[STORE_UPLOAD_ID_TEXT],
                       struct leat_error *err);
/* A put like any other; its commit makes the part durable (of the commit only `etag` and `meta` count), and replaces one of that number. */
int store_part_begin(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                     unsigned number, uint64_t bytes, unsigned flags, struct store_put **ret_put,
                     struct leat_error *err);
struct store_part {
    unsigned number; /* 1 to 10,000 */
    uint64_t bytes;
    int64_t mtime_ns;
    char etag[STORE_ETAG_MAX + 1];
    const void *meta; /* of store_part_list, as given at the part's commit; ignored by other calls */
    size_t meta_len;
};
/* Parts after number `after`, in order; at most max. */
int store_part_list(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                    unsigned after, unsigned max, int (*part)(void *user, const struct store_part *part),
                    void *user, bool *ret_more, struct leat_error *err);
struct store_upload {
    const void *key;
    size_t key_len;
    char id[STORE_UPLOAD_ID_TEXT];
    int64_t begun_ns;
    const void *meta;
    size_t meta_len;
};
/* Sorted by key, then by id; those after (key_after, id_after). */
int store_upload_list(struct store *s, const char *bucket, const void *prefix, size_t prefix_len,
                      const void *key_after, size_t key_after_len, const char *id_after, unsigned max,
                      int (*upload)(void *user, const struct store_upload *upload), void *user,
                      bool *ret_more, struct leat_error *err);
/* One upload's meta, as store_upload_list gives it. STORE_NO_UPLOAD. */
int store_upload_get(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                     int (*upload)(void *user, const struct store_upload *upload), void *user,
                     struct leat_error *err);
/*
 * The object of an upload as a put, whole and not visible; no other call completes or aborts the upload until
 * store_put_commit has made the object, or store_put_abort has left the upload as it was. parts: what the
 * client named, in order; number and etag (without quotes) count. LEAT_INVALID: not in order, or none;
 * LEAT_STALE: a part that is not there or has another ETag. If another thread completes or aborts the upload,
 * the call waits for that. The commit's etag and meta may be NULL: "MD5 of the parts' MD5s-N", and what the
 * upload was begun with. Atomic and durable: object there and upload gone, or neither.
 */
int store_upload_assemble(struct store *s, const char *bucket, const void *key, size_t key_len,
                          const char *id, const struct store_part *parts, unsigned n,
                          struct store_put **ret_put, struct leat_error *err);
/* LEAT_BUSY: another thread completes or aborts it. */
int store_upload_abort(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                       struct leat_error *err);

/* --- status ------------------------------------------------------------------------------------------------------------ */

/*
 * The scrub reads every object of a path again, past the page cache, and compares it with its checksums. What is damaged, or cannot be read: a clean
 * object of a bucket with a remote is evicted, so that it is fetched again; another one is marked (STORE_CORRUPT), named in the log and in store_damaged.
 */
enum store_scrub_state {
    STORE_SCRUB_OFF,     /* not by itself; or the path has failed */
    STORE_SCRUB_WAITING, /* for the next pass */
    STORE_SCRUB_RUNNING,
};
struct store_scrub_pass {
    int64_t begun_ns, ended_ns; /* since 1970; 0: not yet */
    uint64_t objects, bytes;    /* read; parts of uploads too */
    uint64_t damaged, repaired, unreadable;
};
struct store_scrub_status {
    enum store_scrub_state state;
    bool asked;                        /* as fast as it may, because of store_scrub_start */
    struct store_scrub_pass now, last; /* begun_ns 0: none; last: the one that ended last */
    uint64_t of_objects, of_bytes;     /* on the path: where `now` is going to */
    int64_t next_ns;                   /* begin of the next pass, since 1970; 0: none is planned */
    uint64_t total_objects, total_bytes, total_repaired; /* since the start */
};
/* A pass over all paths begins now, from the first object on; a running one is ended for it. */
void store_scrub_start(struct store *s);
/*
 * The same on the paths where no pass began at `since_ns` (since 1970) or later: for the one who asked for it then, and does not know how far
 * that came before a restart.
 */
void store_scrub_resume(struct store *s, int64_t since_ns);
/* It continues at its usual pace; where the scrub does not run by itself, it ends. */
void store_scrub_stop(struct store *s);

struct store_damage {
    const char *path;
    char bucket[STORE_BUCKET_MAX + 1];
    const void *key; /* the callback's during the call */
    size_t key_len;
    bool unreadable; /* else its bytes are not those that were stored */
};
/* Objects found damaged, by readers or by the scrub, and neither repaired nor replaced since: the newest 64
 * of each path. The callback's answer other than 0 ends it and is returned. -ENOMEM. */
int store_damaged(struct store *s, int (*object)(void *user, const struct store_damage *damage), void *user);

enum store_path_state { STORE_PATH_OK, STORE_PATH_FAILED };
struct store_path_status {
    const char *path; /* the store's */
    enum store_path_state state;
    char error[200];  /* why it failed; "" */
    uint64_t objects; /* parts of uploads not counted */
    uint64_t bytes;   /* of objects and parts, as they lie on the disk (without the file system's own) */
    uint64_t total_bytes, free_bytes; /* of the file system */
    uint64_t errors;                  /* I/O errors seen */
    uint64_t corrupt;                 /* objects found damaged */
    uint64_t
        orphans; /* whole files that no record of the log names, in PATH/orphans: PUTs cut short, or objects whose records were lost */
    uint64_t evicted, evicted_bytes;
    uint64_t dirty;     /* objects the remote has not got */
    uint64_t log_bytes; /* since the last snapshot */
    struct store_scrub_status scrub;
};
struct store_status {
    unsigned npaths;
    struct store_path_status paths[STORE_PATHS_MAX];
    uint64_t puts, gets, deletes, put_bytes, open_hits, open_misses;
    unsigned open_objects;    /* in the cache of open files */
    unsigned damaged_buckets; /* of which all descriptions are damaged */
    uint64_t buffer_bytes;    /* of PUTs under way */
    uint64_t flushes;         /* of logs; fewer than PUTs where they shared one */
};
void store_status(struct store *s, struct store_status *ret_status);

#endif
