/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets: made, looked at, taken away, listed; and the settings that no bucket here has. */
#include "base/log.h"
#include "serve/s3/task.h"

#define CREATE_MAX (64 * KIB)

/* --- ListBuckets ------------------------------------------------------------------------------------------------------------------ */

static int put_bucket(void *user, const struct objects_bucket *bucket)
{
    struct s3_task *v = user;
    if (keys_may(v->keys, v->user, bucket->name, bucket->owner, KEYS_READ))
        s3_buckets_put(&v->out, bucket->name, bucket->created_ns / 1000000000);
    return 0;
}

static int list_buckets(struct s3_task *v, struct leat_error *err)
{
    s3_buckets_begin(&v->out, v->user->name);
    objects_bucket_list(v->service->objects, put_bucket, v);
    s3_buckets_end(&v->out);
    return 0;
}

void op_list_buckets(struct s3_task *v)
{
    s3_task_run(v, HTTP_PRIORITY_SHORT, list_buckets, s3_task_send_xml);
}

/* --- CreateBucket, DeleteBucket ----------------------------------------------------------------------------------------------------- */

/*
 * Whose is the bucket that is there already? Its owner may make it again in us-east-1, as on AWS, where old tools do so before each upload; not where a
 * remote is given, which the bucket that is there would not get.
 */
static enum s3_code taken(struct s3_task *v)
{
    struct objects_bucket bucket;
    int rc = objects_bucket_get(v->service->objects, v->call.bucket, &bucket, NULL);
    if (rc < 0 || !v->user->access || strcmp(bucket.owner, v->user->name) != 0)
        return S3_BUCKET_EXISTS;
    return strcmp(v->service->region, "us-east-1") == 0 && !v->remote ? S3_OK : S3_BUCKET_OWNED;
}

static int create(struct s3_task *v, struct leat_error *err)
{
    char location[65];
    enum s3_code code = s3_create_bucket_parse(v->body.document.data, v->body.document.len, location);
    if (code == S3_OK && location[0] && strcmp(location, v->service->region) != 0)
        code = S3_ILLEGAL_LOCATION;
    if (code != S3_OK)
        return s3_task_fail(v, code, NULL);
    const char *owner = v->user->access ? v->user->name : "";
    bool restore = v->user->admin && v->user->access;
    int rc = objects_bucket_create(v->service->objects, v->call.bucket, owner, restore, err);
    if (rc == 0 && v->remote &&
        (rc = objects_bucket_set_remote(v->service->objects, v->call.bucket, v->remote, err)) < 0)
        objects_bucket_delete(v->service->objects, v->call.bucket, NULL);
    if (rc == STORE_EXISTS && (code = taken(v)) == S3_OK)
        return 0;
    if (rc == STORE_EXISTS)
        return s3_task_fail(v, code, NULL);
    if (rc == LEAT_INVALID && v->remote)
        return s3_task_fail(v, S3_INVALID_ARGUMENT, err->message);
    if (rc == LEAT_INVALID)
        return s3_task_fail(v, S3_INVALID_BUCKET, NULL);
    if (rc == 0)
        log_info("s3: %s made bucket %s", v->user->name, v->call.bucket);
    return rc;
}

static void created(struct s3_task *v)
{
    char location[S3_BUCKET_MAX + 2] = "/";
    strcat(location, v->call.bucket);
    struct bytes_out *headers = s3_task_answer(v, 200);
    http_put_header(headers, "Location", location);
    if (v->remote) /* confirms the setting: other S3 servers make a plain bucket */
        http_put_header(headers, "x-leat-remote", "set");
    http_send_copy(v->req, NULL, 0);
}

/* Names of paths that the server has for itself. */
static bool reserved(const char *name)
{
    static const char *const names[] = {"healthz", "metrics", "readyz"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/*
 * A caching bucket: an extension of ours, for administrators only, as it names files and profiles of this
 * server. Never without a key: a store that is open to all must not open the server's files as well.
 */
static void read_remote(struct s3_task *v)
{
    struct http_text remote = s3_task_header(v, "x-leat-remote");
    if (remote.data && (!v->user->admin || !v->user->access))
        s3_task_fail(v, S3_ACCESS_DENIED,
                     "Only an administrator with a key makes buckets in front of others.");
    else if (remote.data && !(v->remote = strndup(remote.data, remote.len)))
        s3_task_fail(v, S3_SLOW_DOWN, NULL);
}

void op_create_bucket(struct s3_task *v)
{
    if (!s3_bucket_valid(v->call.bucket) || reserved(v->call.bucket))
        s3_task_fail(v, S3_INVALID_BUCKET, NULL);
    read_remote(v);
    if (v->code == S3_OK && body_begin(v, CREATE_MAX))
        body_receive(v, create, created);
    else
        s3_task_refuse(v);
}

static int delete_bucket(struct s3_task *v, struct leat_error *err)
{
    int rc = objects_bucket_delete(v->service->objects, v->call.bucket, err);
    if (rc == 0)
        log_info("s3: %s took bucket %s away", v->user->name, v->call.bucket);
    return rc;
}

static void gone(struct s3_task *v)
{
    s3_task_send_empty(v, 204);
}

void op_delete_bucket(struct s3_task *v)
{
    s3_task_run_remote(v, HTTP_PRIORITY_SHORT, delete_bucket, gone);
}

/* --- what there is to say of one ------------------------------------------------------------------------------------------------------ */

static bool exists(struct s3_task *v)
{
    struct objects_bucket bucket;
    int rc = objects_bucket_get(v->service->objects, v->call.bucket, &bucket, NULL);
    if (rc < 0) {
        s3_task_fail_store(v, rc, NULL);
        s3_task_refuse(v);
    }
    return rc == 0;
}

void op_head_bucket(struct s3_task *v)
{
    if (!exists(v))
        return;
    http_put_header(s3_task_answer(v, 200), "x-amz-bucket-region", v->service->region);
    http_send_head(v->req, 0);
}

void op_location(struct s3_task *v)
{
    if (!exists(v))
        return;
    s3_location_put(&v->out, v->service->region);
    s3_task_send_xml(v);
}

static int find_key(struct s3_task *v, struct leat_error *err)
{
    return objects_get(v->service->objects, &v->at, &v->obj, err);
}

static void say_default(struct s3_task *v)
{
    struct objects_bucket bucket = {.owner = ""};
    objects_bucket_get(v->service->objects, v->call.bucket, &bucket, NULL);
    if (strcmp(v->call.subject, "encryption") == 0 && service_encrypts(v->service, v->call.bucket)) {
        s3_encryption_put(&v->out);
        s3_task_send_xml(v);
    } else if (s3_default_put(&v->out, &v->call, bucket.owner)) {
        s3_task_send_xml(v);
    } else {
        s3_task_fail(v, v->call.code, NULL);
        s3_task_refuse(v);
    }
}

void op_default_read(struct s3_task *v)
{
    if (!exists(v))
        return;
    if (v->call.has_key)
        s3_task_run_remote(v, HTTP_PRIORITY_SHORT, find_key, say_default);
    else
        say_default(v);
}
