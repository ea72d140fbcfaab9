/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/objects/objects.h"

#include <jansson.h>
#include <stdio.h>

struct objects {
    struct store *store;
};

int objects_new(struct store *store, struct objects **ret_objects)
{
    struct objects *o = calloc(1, sizeof(*o));
    if (!o)
        return -ENOMEM;
    o->store = store;
    *ret_objects = o;
    return 0;
}

void objects_free(struct objects *o)
{
    free(o);
}

struct store *objects_store(struct objects *o)
{
    return o->store;
}

/* --- buckets ---------------------------------------------------------------------------------------------------------------- */

int objects_bucket_create(struct objects *o, const char *bucket, const char *owner, struct leat_error *err)
{
    json_t *props = json_pack("{s:s}", "owner", owner);
    char *text = props ? json_dumps(props, JSON_COMPACT) : NULL;
    json_decref(props);
    int rc = text ? store_bucket_create(o->store, bucket, 0, text, err) : -ENOMEM;
    free(text);
    return rc;
}

int objects_bucket_delete(struct objects *o, const char *bucket, struct leat_error *err)
{
    return store_bucket_delete(o->store, bucket, err);
}

void objects_owner_of(const char *props, char ret_owner[OBJECTS_OWNER_MAX + 1])
{
    json_t *root = json_loads(props, 0, NULL);
    const char *owner = json_string_value(json_object_get(root, "owner"));
    snprintf(ret_owner, OBJECTS_OWNER_MAX + 1, "%s", owner ? owner : "");
    json_decref(root);
}

int objects_bucket_owner(struct objects *o, const char *bucket, char ret_owner[OBJECTS_OWNER_MAX + 1])
{
    struct store_bucket b;
    int rc = store_bucket_get(o->store, bucket, &b, NULL);
    if (rc < 0)
        return rc;
    objects_owner_of(b.props, ret_owner);
    store_bucket_fini(&b);
    return 0;
}

/* --- objects ---------------------------------------------------------------------------------------------------------------- */

int objects_get_cached(struct objects *o, const char *bucket, const void *key, size_t key_len,
                       struct store_obj **ret_obj, struct leat_error *err)
{
    return store_get_cached(o->store, bucket, key, key_len, ret_obj, err);
}

int objects_get(struct objects *o, const char *bucket, const void *key, size_t key_len,
                struct store_obj **ret_obj, struct leat_error *err)
{
    return store_get(o->store, bucket, key, key_len, ret_obj, err);
}

int objects_put_begin(struct objects *o, const char *bucket, const void *key, size_t key_len, uint64_t bytes,
                      unsigned flags, struct store_put **ret_put, struct leat_error *err)
{
    return store_put_begin(o->store, bucket, key, key_len, bytes, flags, ret_put, err);
}

int objects_put_commit(struct objects *o, const char *bucket, const void *key, size_t key_len,
                       struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                       struct leat_error *err)
{
    (void)o, (void)bucket, (void)key, (void)key_len;
    return store_put_commit(put, commit, ret_info, err);
}

int objects_delete(struct objects *o, const char *bucket, const void *key, size_t key_len,
                   struct leat_error *err)
{
    return store_delete(o->store, bucket, key, key_len, 0, err);
}

int objects_delete_many(struct objects *o, const char *bucket, const struct store_key *keys, unsigned n,
                        int *ret_codes, struct leat_error *err)
{
    return store_delete_many(o->store, bucket, keys, n, ret_codes, err);
}

int objects_list(struct objects *o, const char *bucket, const struct store_list_spec *spec,
                 int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
                 struct leat_error *err)
{
    return store_list(o->store, bucket, spec, entry, user, ret_more, err);
}

int objects_upload_complete(struct objects *o, const char *bucket, const void *key, size_t key_len,
                            const char *id, const struct store_part *parts, unsigned n,
                            const struct store_commit *commit, struct store_info *ret_info,
                            struct leat_error *err)
{
    return store_upload_complete(o->store, bucket, key, key_len, id, parts, n, commit, ret_info, err);
}
