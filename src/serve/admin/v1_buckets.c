/* SPDX-License-Identifier: Apache-2.0 */
/* v1_buckets.c: buckets, their owners, and their remotes. */
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

static json_t *bucket_json(const struct objects_bucket *b)
{
    json_t *json = json_pack("{s:s, s:o, s:b}", "name", b->name, "owner",
                             b->owner[0] ? admin_text(b->owner) : json_null(), "cold", b->caching);
    if (json)
        put_time(json, "created", b->created_ns);
    return json;
}

static int add_bucket(void *user, const struct objects_bucket *b)
{
    return json_array_append_new(user, bucket_json(b)) < 0 ? -ENOMEM : 0;
}

int v1_buckets(struct admin_task *v)
{
    json_t *buckets = json_array();
    v->out = json_pack("{s:o}", "buckets", buckets);
    return v->out ? objects_bucket_list(v->admin->config.objects, add_bucket, buckets) : -ENOMEM;
}

int v1_bucket(struct admin_task *v)
{
    struct objects_bucket b;
    struct objects *objects = v->admin->config.objects;
    AUTO_FREE char *remote = NULL;
    int rc = objects_bucket_get(objects, v->name, &b, &v->err);
    if (rc < 0)
        return v->err.message[0] ? rc : error_set(&v->err, rc, "there is no bucket \"%s\"", v->name);
    v->out = bucket_json(&b);
    if (!v->out)
        return -ENOMEM;
    if (objects_bucket_remote(objects, v->name, &remote, NULL) == 0)
        json_object_set_new(v->out, "remote", json_loads(remote, 0, NULL));
    else
        json_object_set_new(v->out, "remote", json_null());
    return 0;
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

static int set_remote(struct admin_task *v, json_t *remote)
{
    AUTO_FREE char *text = json_is_null(remote) ? NULL : json_whole(remote);
    if (!text && !json_is_null(remote))
        return -ENOMEM;
    return objects_bucket_set_remote(v->admin->config.objects, v->name, text, &v->err);
}

/* Makes it, or changes what was named of one that is there. */
int v1_bucket_put(struct admin_task *v)
{
    struct objects *objects = v->admin->config.objects;
    int rc = check_fields(v);
    if (rc < 0)
        return rc;
    const char *owner = json_string_value(json_object_get(v->in, "owner"));
    json_t *remote = json_object_get(v->in, "remote");
    rc = objects_bucket_create(objects, v->name, owner ? owner : "", true, &v->err);
    bool made = rc == 0;
    if (rc == STORE_EXISTS) {
        v->err = (struct leat_error){0};
        rc = owner ? objects_bucket_set_owner(objects, v->name, owner, &v->err) : 0;
    }
    if (rc == 0 && remote)
        rc = set_remote(v, remote);
    if (rc < 0) {
        if (made)
            objects_bucket_delete(objects, v->name, NULL); /* as if nothing had been asked */
        return rc;
    }
    v->status = made ? 201 : 200;
    return v1_bucket(v);
}

int v1_bucket_delete(struct admin_task *v)
{
    int rc = objects_bucket_delete(v->admin->config.objects, v->name, &v->err);
    v->status = 204;
    return rc;
}
