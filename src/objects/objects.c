/* SPDX-License-Identifier: Apache-2.0 */
#include "objects/objects.h"

#include <pthread.h>
#include <stdio.h>

#include "wire/json_whole.h"

struct objects {
    struct store *store;
    struct tier *tier;
    pthread_mutex_t buckets; /* held until a deleted bucket's remote is forgotten: none is made then */
};

uint64_t objects_remote(const struct objects *o, const char *bucket)
{
    return tier_bucket_remote(o->tier, bucket);
}

static bool has_remote(const struct objects *o, const char *bucket)
{
    return objects_remote(o, bucket) != 0;
}

int objects_new(struct store *store, struct tier *tier, struct objects **ret_objects)
{
    struct objects *o = calloc(1, sizeof(*o));
    if (!o)
        return -ENOMEM;
    o->store = store;
    o->tier = tier;
    pthread_mutex_init(&o->buckets, NULL);
    *ret_objects = o;
    return 0;
}

void objects_free(struct objects *o)
{
    if (o)
        pthread_mutex_destroy(&o->buckets);
    free(o);
}

/* --- buckets ---------------------------------------------------------------------------------------------------------------- */

int objects_bucket_create(struct objects *o, const char *bucket, const char *owner, bool restore,
                          struct leat_error *err)
{
    json_t *props = json_pack("{s:s}", "owner", owner);
    char *text = json_whole(props);
    json_decref(props);
    pthread_mutex_lock(&o->buckets);
    int rc = !text     ? -ENOMEM
             : restore ? store_bucket_restore(o->store, bucket, text, err)
                       : store_bucket_create(o->store, bucket, 0, text, err);
    pthread_mutex_unlock(&o->buckets);
    free(text);
    return rc;
}

int objects_bucket_set_remote(struct objects *o, const char *bucket, const char *remote,
                              struct leat_error *err)
{
    return tier_bucket_set(o->tier, bucket, remote, err);
}

int objects_bucket_remote(struct objects *o, const char *bucket, char **ret_remote, struct leat_error *err)
{
    return tier_bucket_get(o->tier, bucket, ret_remote, err);
}

static int found_one(void *user, const struct store_entry *entry)
{
    (void)user, (void)entry;
    return 1;
}

int objects_bucket_delete(struct objects *o, const char *bucket, struct leat_error *err)
{
    struct store_list_spec any = {.max = 1};
    bool more;
    int rc = has_remote(o, bucket) ? tier_list(o->tier, bucket, &any, found_one, NULL, &more, err) : 0;
    if (rc == 1)
        return error_set(err, STORE_NOT_EMPTY, "bucket %s: its remote is not empty", bucket);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&o->buckets);
    rc = store_bucket_delete(o->store, bucket, err);
    if (rc == 0)
        tier_bucket_forget(o->tier, bucket);
    pthread_mutex_unlock(&o->buckets);
    return rc;
}

/* Properties are JSON. */
static struct objects_bucket bucket_of(const struct store_bucket *b)
{
    struct objects_bucket bucket = {.created_ns = b->created_ns, .caching = b->flags & STORE_BUCKET_REMOTE};
    json_t *props = json_loads(b->props, 0, NULL);
    const char *owner = json_string_value(json_object_get(props, "owner"));
    snprintf(bucket.owner, sizeof(bucket.owner), "%s", owner ? owner : "");
    memcpy(bucket.name, b->name, sizeof(bucket.name));
    json_decref(props);
    return bucket;
}

int objects_bucket_get(struct objects *o, const char *bucket, struct objects_bucket *ret_bucket,
                       struct leat_error *err)
{
    struct store_bucket b;
    int rc = store_bucket_get(o->store, bucket, &b, err);
    if (rc < 0)
        return rc;
    *ret_bucket = bucket_of(&b);
    store_bucket_fini(&b);
    return 0;
}

struct bucket_list {
    int (*bucket)(void *user, const struct objects_bucket *bucket);
    void *user;
};

static int list_bucket(void *user, const struct store_bucket *b)
{
    const struct bucket_list *l = user;
    struct objects_bucket bucket = bucket_of(b);
    return l->bucket(l->user, &bucket);
}

int objects_bucket_list(struct objects *o, int (*bucket)(void *user, const struct objects_bucket *bucket),
                        void *user)
{
    return store_bucket_list(o->store, list_bucket, &(struct bucket_list){bucket, user});
}

int objects_bucket_set_owner(struct objects *o, const char *bucket, const char *owner, struct leat_error *err)
{
    struct store_bucket b;
    int rc = store_bucket_get(o->store, bucket, &b, err);
    if (rc < 0)
        return rc;
    json_t *props = json_loads(b.props, 0, NULL);
    AUTO_FREE char *text = NULL;
    if (props && json_object_set_new(props, "owner", json_string(owner)) == 0)
        text = json_whole(props);
    rc = text ? store_bucket_set(o->store, bucket, b.version, text, err) : -ENOMEM;
    json_decref(props);
    store_bucket_fini(&b);
    return rc;
}

/* --- objects ---------------------------------------------------------------------------------------------------------------- */

int objects_get_cached(struct objects *o, const struct objects_key *k, struct store_obj **ret_obj,
                       struct leat_error *err)
{
    int rc = store_get_cached(o->store, k->bucket, k->key, k->key_len, ret_obj, err);
    if (rc == 0 && !tier_fresh(o->tier, k->bucket, k->key, k->key_len, *ret_obj)) {
        store_obj_unref(*ret_obj);
        rc = STORE_AGAIN;
    }
    return rc < 0 && rc != STORE_NO_BUCKET && has_remote(o, k->bucket) ? STORE_AGAIN : rc;
}

int objects_get(struct objects *o, const struct objects_key *k, struct store_obj **ret_obj,
                struct leat_error *err)
{
    return has_remote(o, k->bucket) ? tier_get(o->tier, k->bucket, k->key, k->key_len, ret_obj, err)
                                    : store_get(o->store, k->bucket, k->key, k->key_len, ret_obj, err);
}

int objects_open(struct objects *o, const struct objects_key *k, bool head_only, struct store_obj **ret_obj,
                 struct tier_read **ret_read, struct leat_error *err)
{
    struct store_obj *obj = NULL;
    struct tier_read *read = NULL;
    int rc = has_remote(o, k->bucket)
                 ? tier_open(o->tier, k->bucket, k->key, k->key_len, head_only ? TIER_HEAD : 0, &read, err)
                 : store_get(o->store, k->bucket, k->key, k->key_len, &obj, err);
    if (rc < 0)
        return rc;
    if (read && objects_stream_head(read, NULL, &obj, NULL) == 0 && obj) /* it is here */
        tier_read_close(TAKE_PTR(read));
    *ret_obj = obj;
    *ret_read = read;
    return 0;
}

int objects_check(struct objects *o, struct store_obj *obj, uint64_t offset, uint64_t bytes,
                  struct leat_error *err)
{
    return store_obj_check(o->store, obj, offset, bytes, err);
}

bool objects_checked(const struct store_obj *obj, uint64_t offset, uint64_t bytes)
{
    return store_obj_checked(obj, offset, bytes);
}

int objects_read(struct objects *o, struct store_obj *obj, uint64_t offset, void *dst, uint64_t bytes,
                 struct leat_error *err)
{
    return store_obj_read(o->store, obj, offset, dst, bytes, err);
}

struct store_obj *objects_ref(struct store_obj *obj)
{
    return store_obj_ref(obj);
}

void objects_unref(struct store_obj *obj)
{
    store_obj_unref(obj);
}

int objects_stream_head(struct tier_read *read, struct tier_waiter *waiter, struct store_obj **ret_obj,
                        struct leat_error *err)
{
    int rc = tier_read_head(read, waiter, err);
    if (rc == 0)
        *ret_obj = read->obj ? store_obj_ref(read->obj) : NULL;
    return rc;
}

int64_t objects_stream_ready(struct tier_read *read, uint64_t offset, struct tier_waiter *waiter,
                             struct leat_error *err)
{
    return tier_read_ready(read, offset, waiter, err);
}

void objects_stream_unwait(struct tier_read *read, struct tier_waiter *waiter)
{
    tier_read_unwait(read, waiter);
}

int objects_stream_wait(struct tier_read *read, struct leat_error *err)
{
    return tier_read_wait(read, 0, 0, err);
}

void objects_stream_close(struct tier_read *read)
{
    tier_read_close(read);
}

int objects_check_meta(const struct objects *o, const char *bucket, const void *meta, size_t meta_len,
                       struct leat_error *err)
{
    return has_remote(o, bucket) ? tier_check_meta(bucket, meta, meta_len, err) : 0;
}

int objects_put_begin(struct objects *o, const struct objects_key *k, uint64_t bytes,
                      struct store_put **ret_put, struct leat_error *err)
{
    return tier_put_begin(o->tier, k->bucket, k->key, k->key_len, bytes, 0, ret_put, err);
}

void *objects_put_room(struct store_put *put, size_t *ret_bytes)
{
    return store_put_room(put, ret_bytes);
}

int objects_put_advance(struct store_put *put, size_t n, struct leat_error *err)
{
    return store_put_advance(put, n, err);
}

int objects_put_write(struct store_put *put, const void *data, size_t n, struct leat_error *err)
{
    return store_put_write(put, data, n, err);
}

uint32_t objects_put_crc32c(const struct store_put *put)
{
    return store_put_crc32c(put);
}

bool objects_put_md5(struct store_put *put, uint8_t ret_md5[16])
{
    return store_put_md5(put, ret_md5);
}

void objects_put_abort(struct store_put *put)
{
    store_put_abort(put);
}

int objects_put_commit(struct objects *o, const struct objects_key *k, struct store_put *put,
                       const struct store_commit *commit, struct store_info *ret_info, struct leat_error *err)
{
    return tier_put_commit(o->tier, k->bucket, k->key, k->key_len, put, commit, ret_info, err);
}

int objects_delete(struct objects *o, const struct objects_key *k, const char *if_match,
                   struct leat_error *err)
{
    struct store_info info;
    if (!if_match)
        return tier_delete(o->tier, k->bucket, k->key, k->key_len, err);
    if (has_remote(o, k->bucket))
        return error_set(err, LEAT_BUSY, "bucket %s was given a remote: try again", k->bucket);
    int rc = store_lookup(o->store, k->bucket, k->key, k->key_len, &info, err);
    if (rc == 0 && strcmp(if_match, "*") != 0 && strcmp(if_match, info.etag) != 0)
        rc = STORE_PRECONDITION;
    return rc < 0 ? rc : store_delete(o->store, k->bucket, k->key, k->key_len, info.seq, err);
}

int objects_delete_many(struct objects *o, const char *bucket, const struct store_key *keys, unsigned n,
                        int *ret_codes, struct leat_error *err)
{
    if (!has_remote(o, bucket))
        return store_delete_many(o->store, bucket, keys, n, ret_codes, err);
    for (unsigned i = 0; i < n; i++)
        ret_codes[i] = tier_delete(o->tier, bucket, keys[i].key, keys[i].key_len, err);
    return 0;
}

int objects_list(struct objects *o, const char *bucket, const struct store_list_spec *spec,
                 int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
                 struct leat_error *err)
{
    return has_remote(o, bucket) ? tier_list(o->tier, bucket, spec, entry, user, ret_more, err)
                                 : store_list(o->store, bucket, spec, entry, user, ret_more, err);
}

int objects_upload_begin(struct objects *o, const struct objects_key *k, const struct store_commit *commit,
                         char ret_id[STORE_UPLOAD_ID_TEXT], struct leat_error *err)
{
    return store_upload_begin(o->store, k->bucket, k->key, k->key_len, commit, ret_id, err);
}

int objects_upload_abort(struct objects *o, const struct objects_key *k, const char *id,
                         struct leat_error *err)
{
    return store_upload_abort(o->store, k->bucket, k->key, k->key_len, id, err);
}

int objects_upload_get(struct objects *o, const struct objects_key *k, const char *id,
                       int (*upload)(void *user, const struct store_upload *upload), void *user,
                       struct leat_error *err)
{
    return store_upload_get(o->store, k->bucket, k->key, k->key_len, id, upload, user, err);
}

int objects_upload_list(struct objects *o, const char *bucket, const void *prefix, size_t prefix_len,
                        const void *key_after, size_t key_after_len, const char *id_after, unsigned max,
                        int (*upload)(void *user, const struct store_upload *upload), void *user,
                        bool *ret_more, struct leat_error *err)
{
    return store_upload_list(o->store, bucket, prefix, prefix_len, key_after, key_after_len, id_after, max,
                             upload, user, ret_more, err);
}

int objects_part_begin(struct objects *o, const struct objects_key *k, const char *id, unsigned number,
                       uint64_t bytes, struct store_put **ret_put, struct leat_error *err)
{
    return store_part_begin(o->store, k->bucket, k->key, k->key_len, id, number, bytes, 0, ret_put, err);
}

int objects_part_commit(struct objects *o, struct store_put *put, const struct store_commit *commit,
                        struct store_info *ret_info, struct leat_error *err)
{
    (void)o;
    return store_put_commit(put, commit, ret_info, err);
}

int objects_part_list(struct objects *o, const struct objects_key *k, const char *id, unsigned after,
                      unsigned max, int (*part)(void *user, const struct store_part *part), void *user,
                      bool *ret_more, struct leat_error *err)
{
    return store_part_list(o->store, k->bucket, k->key, k->key_len, id, after, max, part, user, ret_more,
                           err);
}

int objects_upload_check(struct objects *o, const struct objects_key *k, const char *id,
                         const struct store_part *parts, unsigned n, struct leat_error *err)
{
    struct store_put *put;
    int rc = store_upload_assemble(o->store, k->bucket, k->key, k->key_len, id, parts, n, &put, err);
    if (rc == 0)
        store_put_abort(put);
    return rc;
}

int objects_upload_complete(struct objects *o, const struct objects_key *k, const char *id,
                            const struct store_part *parts, unsigned n, const struct store_commit *commit,
                            struct store_info *ret_info, struct leat_error *err)
{
    struct store_put *put;
    int rc = store_upload_assemble(o->store, k->bucket, k->key, k->key_len, id, parts, n, &put, err);
    return rc < 0 ? rc : objects_put_commit(o, k, put, commit, ret_info, err);
}
