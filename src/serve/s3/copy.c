/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CopyObject and UploadPartCopy: the source is opened, its conditions are looked at, and its bytes go through
 * a buffer of the put, verified on the way.
 *
 * Invariants: one version of the source is read from beginning to end, whatever happens to its key during
 * that. So a copy onto itself, which changes an object's metadata, is a copy like any other.
 */
#include "serve/s3/task.h"

#include <stdio.h>

/* --- what is asked for ----------------------------------------------------------------------------------------------------------------- */

static bool read_source(struct s3_task *v)
{
    enum s3_code code = s3_copy_source_parse(s3_task_header(v, "x-amz-copy-source"), v->from_bucket,
                                             v->from_key, &v->from_len);
    if (code == S3_OK)
        code = s3_task_may(v->service, v->keys, v->user, v->from_bucket, KEYS_READ);
    if (code == S3_OK && !s3_task_expected_owner(v->service, v->req, &v->call,
                                                 "x-amz-source-expected-bucket-owner", v->from_bucket))
        code = S3_ACCESS_DENIED;
    if (code != S3_OK)
        s3_task_fail(v, code,
                     code == S3_INVALID_ARGUMENT
                         ? "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"
                         : NULL);
    return code == S3_OK;
}

/* The text moves to where a worker may read it. */
static void keep(struct s3_task *v, const char *name, size_t *at, size_t *len)
{
    struct http_text t = s3_task_header(v, name);
    *at = t.data ? v->conditions_text.len : SIZE_MAX;
    *len = t.len;
    if (t.len)
        bytes_put(&v->conditions_text, t.data, t.len);
}

static struct http_text kept(const struct s3_task *v, size_t at, size_t len)
{
    return at == SIZE_MAX ? (struct http_text){0}
                          : (struct http_text){(const char *)v->conditions_text.data + at, len};
}

static bool read_source_conditions(struct s3_task *v)
{
    static const char *const names[] = {"x-amz-copy-source-if-match", "x-amz-copy-source-if-none-match",
                                        "x-amz-copy-source-if-modified-since",
                                        "x-amz-copy-source-if-unmodified-since"};
    size_t at[4], len[4];
    bytes_put(&v->conditions_text, "", 1); /* so that there is a place for empty ones */
    for (unsigned i = 0; i < 4; i++)
        keep(v, names[i], &at[i], &len[i]);
    if (v->conditions_text.failed)
        return s3_task_fail(v, S3_SLOW_DOWN, NULL);
    v->conditions = (struct http_conditions){kept(v, at[0], len[0]), kept(v, at[1], len[1]),
                                             kept(v, at[2], len[2]), kept(v, at[3], len[3])};
    return true;
}

/* "bytes=0-9", both ends given. */
static bool read_source_range(struct s3_task *v)
{
    struct http_text t = s3_task_header(v, "x-amz-copy-source-range");
    if (!t.data)
        return true;
    v->copy_ranged = http_range(t, UINT64_MAX, &v->copy_first, &v->copy_last) == HTTP_RANGE_PART &&
                     v->copy_last < UINT64_MAX - 1;
    if (!v->copy_ranged)
        s3_task_fail(v, S3_INVALID_ARGUMENT,
                     "The x-amz-copy-source-range value must be of the form bytes=first-last");
    return v->copy_ranged;
}

static bool read_directive(struct s3_task *v)
{
    struct http_text t = s3_task_demand(v, "x-amz-metadata-directive");
    v->replace_meta = http_text_is(t, "REPLACE");
    if (t.data && !v->replace_meta && !http_text_is(t, "COPY"))
        return s3_task_fail(v, S3_INVALID_ARGUMENT, "Unknown metadata directive.");
    bool changes = v->replace_meta || s3_task_demand(v, "x-amz-storage-class").data ||
                   s3_task_demand(v, "x-amz-server-side-encryption").data ||
                   s3_task_demand(v, "x-amz-checksum-algorithm").data;
    bool itself = strcmp(v->from_bucket, v->call.bucket) == 0 && v->from_len == v->call.key_len &&
                  memcmp(v->from_key, v->call.key, v->from_len) == 0;
    if (itself && !changes && !v->part)
        return s3_task_fail(
            v, S3_INVALID_REQUEST,
            "This copy request is illegal because it is trying to copy an object to itself without "
            "changing the "
            "object's metadata, storage class, website redirect location or encryption attributes.");
    return true;
}

/* The checksum that the copy is to have: that of the request, or its upload's; else it is the source's. */
static bool read_algorithm(struct s3_task *v)
{
    struct http_text name = s3_task_demand(v, "x-amz-checksum-algorithm");
    v->body.how = SIGV4_BODY_PLAIN; /* the request's own body is not read */
    if (v->part)
        v->body.sum = v->declared;
    else if (name.data)
        v->body.sum = sum_by_name(name.data, name.len); /* which one is here was checked before */
    return true;
}

static bool read_part(struct s3_task *v)
{
    return !s3_call_param(&v->call, "uploadId", NULL) || upload_read_part(v);
}

/* --- the copy ---------------------------------------------------------------------------------------------------------------------------- */

static int pump(struct s3_task *v, uint64_t at, uint64_t bytes, struct leat_error *err)
{
    while (bytes) {
        size_t n;
        void *room = objects_put_room(v->body.put, &n);
        n = (size_t)MIN((uint64_t)n, bytes);
        int rc = objects_read(v->service->objects, v->obj, at, room, n, err);
        if (rc == 0 && v->body.computed)
            body_hash(&v->body, room, n);
        if (rc == 0)
            rc = objects_put_advance(v->body.put, n, err);
        if (rc < 0)
            return rc;
        at += n;
        bytes -= n;
    }
    return 0;
}

static int copy_bytes(struct s3_task *v, uint64_t at, uint64_t bytes, struct leat_error *err)
{
    int rc = put_begin(v, bytes, err);
    if (rc == 0)
        rc = pump(v, at, bytes, err);
    if (rc == 0 && v->body.computed)
        body_hash_end(&v->body);
    return rc == 0 ? put_commit(v, err) : rc;
}

/* The client's metadata stays; parts, checksums and storage class are the copy's own. */
static void keep_meta(struct s3_task *v)
{
    for (struct pair p = {0}; pairs_next(v->obj->meta, v->obj->meta_len, &p);)
        if (strncmp(p.name, "leat-", 5) != 0 && strncmp(p.name, "x-amz-checksum-", 15) != 0 &&
            strcmp(p.name, "x-amz-storage-class") != 0)
            meta_put(&v->meta, p.name, strlen(p.name), p.value, strlen(p.value));
}

/*
 * Which checksum the copy gets: the source's, where no other was asked for, as S3 does. Where that one is of all bytes it stays; it is computed on
 * the way where it is another, was made of parts, or is a part's.
 */
static bool choose_sum(struct s3_task *v)
{
    const char *value;
    bool full;
    enum sum_kind kind = sum_of_meta(v->obj->meta, v->obj->meta_len, &value, &full);
    if (v->body.sum == SUM_NONE && !v->part)
        v->body.sum = kind;
    bool same = !v->part && kind == v->body.sum && kind != SUM_NONE && full;
    v->body.computed = v->body.sum != SUM_NONE && !same;
    if (same)
        snprintf(v->body.value, sizeof(v->body.value), "%s", value);
    return !v->body.computed || body_hash_begin(v);
}

static int copy(struct s3_task *v, struct leat_error *err)
{
    int rc = objects_get(v->service->objects, &(struct objects_key){v->from_bucket, v->from_key, v->from_len},
                         &v->obj, err);
    if (rc < 0)
        return rc;
    uint64_t at = 0, bytes = v->obj->info.bytes;
    if (http_conditions_check(&v->conditions, v->obj->info.etag, v->obj->info.mtime_ns / 1000000000, true) !=
        0)
        return s3_task_fail(v, S3_PRECONDITION_FAILED, NULL); /* 304 too: nothing was copied */
    if (v->copy_ranged) {
        if (v->copy_last >= bytes)
            return s3_task_fail(v, S3_INVALID_RANGE, NULL);
        at = v->copy_first;
        bytes = v->copy_last - v->copy_first + 1;
    }
    if (!v->part && !v->replace_meta) {
        bytes_out_reset(&v->meta);
        put_class(v);
        keep_meta(v);
    }
    if (v->part)
        bytes_out_reset(&v->meta);
    if (!choose_sum(v))
        return 0;
    rc = v->meta.failed ? -ENOMEM : copy_bytes(v, at, bytes, err);
    if (rc == 0)
        s3_copied_put(&v->out, v->part ? "CopyPartResult" : "CopyObjectResult", v->info.etag,
                      v->info.mtime_ns / 1000000000,
                      v->body.sum == SUM_NONE ? NULL : sum_names[v->body.sum].element, v->body.value);
    return rc;
}

void op_copy(struct s3_task *v)
{
    if (read_part(v) && read_source(v) && read_source_conditions(v) && read_source_range(v) &&
        read_directive(v) && read_algorithm(v) && put_read_headers(v))
        s3_task_run_remote(v, HTTP_PRIORITY_LONG, copy, s3_task_send_xml);
    else
        s3_task_refuse(v);
}
