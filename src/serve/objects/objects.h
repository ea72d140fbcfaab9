/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h: what a door may do with buckets and objects, and the one place that knows where they are: in the store of this node. Doors call
 * nothing of the store that writes or finds objects but through here; what they read is a store_obj.
 *
 * Every call is thread-safe and may block, but those marked [loop]. Codes are the store's.
 */
#ifndef SERVE_OBJECTS_H
#define SERVE_OBJECTS_H

#include "store/store.h"

struct objects;

int objects_new(struct store *store, struct objects **ret_objects);
void objects_free(struct objects *o); /* NULL is fine */
struct store *objects_store(struct objects *o);

/* --- buckets: properties are JSON; "owner" is the name of who made it ------------------------------------------------------- */

#define OBJECTS_OWNER_MAX 64u
int objects_bucket_create(struct objects *o, const char *bucket, const char *owner, struct leat_error *err);
int objects_bucket_delete(struct objects *o, const char *bucket, struct leat_error *err);
/* [loop] "" where nobody owns it. */
int objects_bucket_owner(struct objects *o, const char *bucket, char ret_owner[OBJECTS_OWNER_MAX + 1]);
/* The same of properties at hand. */
void objects_owner_of(const char *props, char ret_owner[OBJECTS_OWNER_MAX + 1]);

/* --- objects ------------------------------------------------------------------------------------------------------------------ */

/* [loop] STORE_AGAIN: ask objects_get on a thread that may block. */
int objects_get_cached(struct objects *o, const char *bucket, const void *key, size_t key_len,
                       struct store_obj **ret_obj, struct leat_error *err);
int objects_get(struct objects *o, const char *bucket, const void *key, size_t key_len,
                struct store_obj **ret_obj, struct leat_error *err);

/* Filled and aborted by store_put_*; committed here. */
int objects_put_begin(struct objects *o, const char *bucket, const void *key, size_t key_len, uint64_t bytes,
                      unsigned flags, struct store_put **ret_put, struct leat_error *err);
int objects_put_commit(struct objects *o, const char *bucket, const void *key, size_t key_len,
                       struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                       struct leat_error *err);
int objects_delete(struct objects *o, const char *bucket, const void *key, size_t key_len,
                   struct leat_error *err);
int objects_delete_many(struct objects *o, const char *bucket, const struct store_key *keys, unsigned n,
                        int *ret_codes, struct leat_error *err);
int objects_list(struct objects *o, const char *bucket, const struct store_list_spec *spec,
                 int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
                 struct leat_error *err);
/* Uploads are the store's alone until they are complete. */
int objects_upload_complete(struct objects *o, const char *bucket, const void *key, size_t key_len,
                            const char *id, const struct store_part *parts, unsigned n,
                            const struct store_commit *commit, struct store_info *ret_info,
                            struct leat_error *err);

#endif
