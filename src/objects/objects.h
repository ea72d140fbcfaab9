/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h: a server's operations on buckets and objects. This room alone knows where they are: in the store
 * of this node, or at a bucket's remote. Servers call neither the store nor the tier, but use their structs:
 * an object is a store_obj, one that is still on its way a tier_read.
 *
 * Every call is thread-safe and may block, but those marked [loop]. Codes are the store's.
 */
#ifndef OBJECTS_H
#define OBJECTS_H

#include "objects/tier/tier.h"
#include "store/store.h"

struct objects;

/* Store and tier are the caller's, and outlive it. */
int objects_new(struct store *store, struct tier *tier, struct objects **ret_objects);
void objects_free(struct objects *o); /* NULL is fine */
/* [loop] The remote that operations in this bucket wait for, as a number; 0: none. */
uint64_t objects_remote(const struct objects *o, const char *bucket);

/* --- buckets ---------------------------------------------------------------------------------------------------------------- */

#define OBJECTS_OWNER_MAX 64u
struct objects_bucket {
    char name[STORE_BUCKET_MAX + 1];
    char owner[OBJECTS_OWNER_MAX + 1]; /* name of a user of the keys file; "": no owner */
    int64_t created_ns;                /* since 1970 */
    bool caching;                      /* it has a remote */
};
/* [loop] STORE_NO_BUCKET, STORE_BUCKET_DAMAGED. */
int objects_bucket_get(struct objects *o, const char *bucket, struct objects_bucket *ret_bucket,
                       struct leat_error *err);
/* [loop] By name, sorted. A result of the callback other than 0 ends the list and is returned. The callback may not call objects. */
int objects_bucket_list(struct objects *o, int (*bucket)(void *user, const struct objects_bucket *bucket),
                        void *user);
/* restore: also one whose description is damaged, with the objects that it had. For administrators only:
 * its owner is not known any more. */
int objects_bucket_create(struct objects *o, const char *bucket, const char *owner, bool restore,
                          struct leat_error *err);
/* The other properties stay. STORE_PRECONDITION: another thread changed them at the same time. */
int objects_bucket_set_owner(struct objects *o, const char *bucket, const char *owner,
                             struct leat_error *err);
/* Its remote, as JSON (tier_bucket_set): NULL takes it away. The result of objects_bucket_remote has no
 * secrets, and is the caller's to free. */
int objects_bucket_set_remote(struct objects *o, const char *bucket, const char *remote,
                              struct leat_error *err);
int objects_bucket_remote(struct objects *o, const char *bucket, char **ret_remote, struct leat_error *err);
int objects_bucket_delete(struct objects *o, const char *bucket, struct leat_error *err);

/* Where an object is, or is to be. All three are the caller's during the call. */
struct objects_key {
    const char *bucket;
    const void *key;
    size_t key_len;
};

/* --- objects ------------------------------------------------------------------------------------------------------------------ */

/* [loop] STORE_AGAIN: ask objects_get on a thread that may block. */
int objects_get_cached(struct objects *o, const struct objects_key *k, struct store_obj **ret_obj,
                       struct leat_error *err);
int objects_get(struct objects *o, const struct objects_key *k, struct store_obj **ret_obj,
                struct leat_error *err);

/*
 * An object's bytes. objects_check compares those of the range with their checksums, and leaves them in the
 * page cache. objects_checked [loop]: all of the range was compared. objects_read: into memory, compared.
 * Results are those of store_obj_check and store_obj_read.
 */
int objects_check(struct objects *o, struct store_obj *obj, uint64_t offset, uint64_t bytes,
                  struct leat_error *err);
bool objects_checked(const struct store_obj *obj, uint64_t offset, uint64_t bytes);
int objects_read(struct objects *o, struct store_obj *obj, uint64_t offset, void *dst, uint64_t bytes,
                 struct leat_error *err);
struct store_obj *objects_ref(struct store_obj *obj); /* [loop] */
void objects_unref(struct store_obj *obj);            /* [loop]; NULL is fine */

/*
 * For callers that can follow a fetch: sets *ret_obj, or *ret_read (and the other to NULL) without a wait for
 * its bytes. head_only: it is not fetched. objects_get waits until all of it is here.
 */
int objects_open(struct objects *o, const struct objects_key *k, bool head_only, struct store_obj **ret_obj,
                 struct tier_read **ret_read, struct leat_error *err);

/* [loop] The object's facts, as tier_read_head. *ret_obj: a reference, if the object was cached after all;
 * else NULL. */
int objects_stream_head(struct tier_read *read, struct tier_waiter *waiter, struct store_obj **ret_obj,
                        struct leat_error *err);
/* [loop] Bytes that have come, as tier_read_ready. */
int64_t objects_stream_ready(struct tier_read *read, uint64_t offset, struct tier_waiter *waiter,
                             struct leat_error *err);
/* [loop] The waiter is not called any more once this returns. */
void objects_stream_unwait(struct tier_read *read, struct tier_waiter *waiter);
/* Until its head is known, or there is none. */
int objects_stream_wait(struct tier_read *read, struct leat_error *err);
void objects_stream_close(struct tier_read *read); /* [loop]; NULL is fine */

/* [loop] LEAT_INVALID: metadata that the bucket's remote never takes. */
int objects_check_meta(const struct objects *o, const char *bucket, const void *meta, size_t meta_len,
                       struct leat_error *err);
/*
 * A put: bytes of an object, or of a part of an upload, while they come. One thread at a time. _begin, then
 * _room and _advance, or _write; then a commit, which ends the put in any case, or _abort. They work as
 * store_put_begin, store_put_room ...
 */
int objects_put_begin(struct objects *o, const struct objects_key *k, uint64_t bytes,
                      struct store_put **ret_put, struct leat_error *err);
void *objects_put_room(struct store_put *put, size_t *ret_bytes); /* [loop] */
int objects_put_advance(struct store_put *put, size_t n, struct leat_error *err);
int objects_put_write(struct store_put *put, const void *data, size_t n, struct leat_error *err);
uint32_t objects_put_crc32c(const struct store_put *put);
bool objects_put_md5(struct store_put *put, uint8_t ret_md5[16]);
void objects_put_abort(struct store_put *put); /* NULL is fine */
int objects_put_commit(struct objects *o, const struct objects_key *k, struct store_put *put,
                       const struct store_commit *commit, struct store_info *ret_info,
                       struct leat_error *err);
/* if_match: only a version with this ETag ("*": any), else STORE_PRECONDITION; for buckets without a remote. NULL: whatever is there. */
int objects_delete(struct objects *o, const struct objects_key *k, const char *if_match,
                   struct leat_error *err);
int objects_delete_many(struct objects *o, const char *bucket, const struct store_key *keys, unsigned n,
                        int *ret_codes, struct leat_error *err);
int objects_list(struct objects *o, const char *bucket, const struct store_list_spec *spec,
                 int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
                 struct leat_error *err);

/* --- uploads in parts: the store's alone until they are complete. STORE_NO_UPLOAD where there is none ---------------------------- */

int objects_upload_begin(struct objects *o, const struct objects_key *k, const struct store_commit *commit,
                         char ret_id[STORE_UPLOAD_ID_TEXT], struct leat_error *err);
int objects_upload_abort(struct objects *o, const struct objects_key *k, const char *id,
                         struct leat_error *err);
/* Both as store_upload_get and store_upload_list. */
int objects_upload_get(struct objects *o, const struct objects_key *k, const char *id,
                       int (*upload)(void *user, const struct store_upload *upload), void *user,
                       struct leat_error *err);
int objects_upload_list(struct objects *o, const char *bucket, const void *prefix, size_t prefix_len,
                        const void *key_after, size_t key_after_len, const char *id_after, unsigned max,
                        int (*upload)(void *user, const struct store_upload *upload), void *user,
                        bool *ret_more, struct leat_error *err);
int objects_part_begin(struct objects *o, const struct objects_key *k, const char *id, unsigned number,
                       uint64_t bytes, struct store_put **ret_put, struct leat_error *err);
int objects_part_commit(struct objects *o, struct store_put *put, const struct store_commit *commit,
                        struct store_info *ret_info, struct leat_error *err);
/* As store_part_list. */
int objects_part_list(struct objects *o, const struct objects_key *k, const char *id, unsigned after,
                      unsigned max, int (*part)(void *user, const struct store_part *part), void *user,
                      bool *ret_more, struct leat_error *err);
/* Could it be completed of these parts? Returns the code of objects_upload_complete; waits if another
 * thread completes the upload. */
int objects_upload_check(struct objects *o, const struct objects_key *k, const char *id,
                         const struct store_part *parts, unsigned n, struct leat_error *err);
int objects_upload_complete(struct objects *o, const struct objects_key *k, const char *id,
                            const struct store_part *parts, unsigned n, const struct store_commit *commit,
                            struct store_info *ret_info, struct leat_error *err);

#endif
