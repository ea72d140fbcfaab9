/* SPDX-License-Identifier: Apache-2.0 */
/* v1_buckets.c: buckets, who owns them, and what they stand in front of. */
#include "serve/admin/admin_internal.h"

#include <stdio.h>

#include "wire/json_whole.h"

static void put_time(json_t *json, const char *name, int64_t ns)
{
    char text[32];
    time_t t = (time_t)(ns / 1000000000);
    struct tm tm;
    gmtime_r(&t, &tm);
    snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02dZ", (tm.tm_year + 1900) % 10000, tm.tm_mon + 1,
             tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    json_object_set_new(json, name, json_string(text));
}

static json_t *bucket_json(const struct store_bucket *b)
{
    char owner[OBJECTS_OWNER_MAX + 1];
    objects_owner_of(b->props, owner);
    json_t *json =
        json_pack("{s:s, s:o, s:b}", "name", b->name, "owner", owner[0] ? admin_text(owner) : json_null(),
                  "cold", !!(b->flags & STORE_BUCKET_REMOTE));
    if (json)
        put_time(json, "created", b->created_ns);
    return json;
}

static int add_bucket(void *user, const struct store_bucket *b)
{
    return json_array_append_new(user, bucket_json(b)) < 0 ? -ENOMEM : 0;
}

int v1_buckets(struct admin_task *v)
{
    if (!v->admin->config.objects)
        return admin_none(v, "store");
    json_t *buckets = json_array();
    v->out = json_pack("{s:o}", "buckets", buckets);
    return v->out ? store_bucket_list(objects_store(v->admin->config.objects), add_bucket, buckets) : -ENOMEM;
}

static int look(struct admin_task *v)
{
    struct store_bucket b;
    struct admin_config *c = &v->admin->config;
    AUTO_FREE char *remote = NULL;
    int rc = store_bucket_get(objects_store(c->objects), v->name, &b, &v->err);
    if (rc < 0)
        return v->err.message[0] ? rc : error_set(&v->err, rc, "there is no bucket \"%s\"", v->name);
    v->out = bucket_json(&b);
    store_bucket_fini(&b);
    if (!v->out)
        return -ENOMEM;
    if (c->tier && c->tier->bucket_get(c->tier->tier, v->name, &remote, NULL) == 0)
        json_object_set_new(v->out, "remote", json_loads(remote, 0, NULL));
    else
        json_object_set_new(v->out, "remote", json_null());
    return 0;
}

int v1_bucket(struct admin_task *v)
{
    return v->admin->config.objects ? look(v) : admin_none(v, "store");
}

static int check_fields(struct admin_task *v)
{
    const char *key;
    json_t *value;
    json_object_foreach(v->in, key, value)
    {
        bool owner = strcmp(key, "owner") == 0, remote = strcmp(key, "remote") == 0;
        if (!owner && !remote)
            return error_set(&v->err, LEAT_INVALID, "a bucket has \"owner\" and \"remote\", not \"%.60s\"",
                             key);
        if (owner && !json_is_string(value))
            return error_set(&v->err, LEAT_INVALID, "\"owner\" is the name of a user of the keys file");
        if (owner && json_string_length(value) > OBJECTS_OWNER_MAX)
            return error_set(&v->err, LEAT_INVALID, "\"owner\" has at most %u bytes", OBJECTS_OWNER_MAX);
        if (remote && !json_is_object(value) && !json_is_null(value))
            return error_set(&v->err, LEAT_INVALID, "\"remote\" is an object with \"uri\", or null for none");
    }
    return 0;
}

/* The owner of one that is there already: the other properties stay. */
static int set_owner(struct admin_task *v, const char *owner)
{
    struct store *store = objects_store(v->admin->config.objects);
    struct store_bucket b;
    int rc = store_bucket_get(store, v->name, &b, &v->err);
    if (rc < 0)
        return rc;
    json_t *props = json_loads(b.props, 0, NULL);
    AUTO_FREE char *text = NULL;
    if (props && json_object_set_new(props, "owner", json_string(owner)) == 0)
        text = json_whole(props);
    rc = text ? store_bucket_set(store, v->name, b.version, text, &v->err) : -ENOMEM;
    json_decref(props);
    store_bucket_fini(&b);
    return rc;
}

static int set_remote(struct admin_task *v, json_t *remote)
{
    const struct admin_tier *tier = v->admin->config.tier;
    if (!tier)
        return error_set(&v->err, LEAT_UNSUPPORTED,
                         "this server has no cold tier: its buckets have no remote");
    AUTO_FREE char *text = json_is_null(remote) ? NULL : json_whole(remote);
    if (!text && !json_is_null(remote))
        return -ENOMEM;
    return tier->bucket_set(tier->tier, v->name, text, &v->err);
}

/* Makes it, or changes what was named of one that is there. */
int v1_bucket_put(struct admin_task *v)
{
    struct objects *objects = v->admin->config.objects;
    if (!objects)
        return admin_none(v, "store");
    int rc = check_fields(v);
    if (rc < 0)
        return rc;
    const char *owner = json_string_value(json_object_get(v->in, "owner"));
    json_t *remote = json_object_get(v->in, "remote");
    rc = objects_bucket_create(objects, v->name, owner ? owner : "", true, &v->err);
    bool made = rc == 0;
    if (rc == STORE_EXISTS) {
        v->err = (struct leat_error){0};
        rc = owner ? set_owner(v, owner) : 0;
    }
    if (rc == 0 && remote)
        rc = set_remote(v, remote);
    if (rc < 0) {
        if (made)
            objects_bucket_delete(objects, v->name, NULL); /* as if nothing had been asked */
        return rc;
    }
    v->status = made ? 201 : 200;
    return look(v);
}

int v1_bucket_delete(struct admin_task *v)
{
    struct admin_config *c = &v->admin->config;
    if (!c->objects)
        return admin_none(v, "store");
    int rc = objects_bucket_delete(c->objects, v->name, &v->err);
    v->status = 204;
    return rc;
}
