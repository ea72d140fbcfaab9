/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PutObject and UploadPart: begin a put, receive into it, compare, commit. A small one meets a worker once:
 * when all of it is here. DeleteObject and DeleteObjects stand here too.
 *
 * Invariants: an object is committed after every check of its body, in the same turn of a worker: if the peer
 * leaves at that moment, the object exists without an acknowledgement, never half of it.
 */
#include "serve/s3/task.h"

#include <strings.h>

#define USER_META_MAX 2048u
#define DELETE_MAX    (2 * MIB)

/* --- what is kept with an object ------------------------------------------------------------------------------------------------ */

void meta_put(struct bytes_out *meta, const char *name, size_t name_len, const char *value, size_t value_len)
{
    uint8_t *to = bytes_room(meta, name_len + value_len + 2);
    if (!to)
        return;
    for (size_t i = 0; i < name_len; i++)
        to[i] = (uint8_t)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] | 0x20 : name[i]);
    to[name_len] = 0;
    if (value_len)
        memcpy(to + name_len + 1, value, value_len);
    to[name_len + 1 + value_len] = 0;
}

/* The value of the pair of this name, whatever its case; NULL: there is none. */
static char *meta_find(const struct bytes_out *meta, const char *name, size_t name_len)
{
    for (char *at = (char *)meta->data, *end = at + meta->len; at < end;) {
        char *value = at + strlen(at) + 1;
        if (strlen(at) == name_len && strncasecmp(at, name, name_len) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

/* A name that comes again is one header, as HTTP has it (RFC 9110, 5.3): "a", then "b" is "a,b". */
static void meta_join(struct bytes_out *meta, const char *name, size_t name_len, const char *value,
                      size_t value_len)
{
    const char *there = meta->failed ? NULL : meta_find(meta, name, name_len);
    if (!there) {
        meta_put(meta, name, name_len, value, value_len);
        return;
    }
    size_t at = (size_t)(there - (char *)meta->data) + strlen(there), tail = meta->len - at;
    if (!bytes_room(meta, value_len + 1))
        return;
    memmove(meta->data + at + 1 + value_len, meta->data + at, tail);
    meta->data[at] = ',';
    memcpy(meta->data + at + 1, value, value_len);
}

/* "aws-chunked,gzip" was the coding of the way as well. */
static struct http_text without_chunked(struct http_text t)
{
    static const char name[] = "aws-chunked";
    size_t n = sizeof(name) - 1;
    if (t.len >= n && strncasecmp(t.data, name, n) == 0 &&
        (t.len == n || t.data[n] == ',' || t.data[n] == ' ')) {
        t.data += n;
        t.len -= n;
        while (t.len && (t.data[0] == ',' || t.data[0] == ' ')) {
            t.data++;
            t.len--;
        }
    } else if (t.len > n && strncasecmp(t.data + t.len - n, name, n) == 0) {
        t.len -= n;
        while (t.len && (t.data[t.len - 1] == ',' || t.data[t.len - 1] == ' '))
            t.len--;
    }
    return t;
}

/* The same in the query, where SDKs that make a link put it. A value that is not valid as a header is
 * refused, as it is returned as one. */
static bool read_linked_meta(struct s3_task *v, size_t *user_bytes)
{
    static const char token[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~";
    for (unsigned i = 0; i < v->call.nparams; i++) {
        const struct s3_param *p = &v->call.params[i];
        const char *name = v->call.text + p->name_at, *value = v->call.text + p->value_at;
        if (p->name_len <= 11 || strncasecmp(name, "x-amz-meta-", 11) != 0 || s3_task_header(v, name).data)
            continue;
        bool plain = name[strspn(name, token)] == 0;
        for (unsigned k = 0; plain && k < p->value_len; k++)
            plain = (unsigned char)value[k] >= ' ' && value[k] != 0x7f;
        if (!plain)
            return s3_task_fail(v, S3_INVALID_ARGUMENT,
                                "x-amz-meta- in the query has a character that no header has");
        *user_bytes += p->name_len - 11 + p->value_len;
        meta_join(&v->meta, name, p->name_len, value, p->value_len);
    }
    return true;
}

static bool read_meta(struct s3_task *v)
{
    static const char *const kept[] = {"content-type",     "content-encoding", "content-disposition",
                                       "content-language", "cache-control",    "expires"};
    size_t user_bytes = 0;
    const struct http_reader *r = v->req->reader;
    for (unsigned i = 0; i < r->nheaders; i++) {
        struct http_text name, value;
        http_header_at(r, v->req->head, i, &name, &value);
        if (name.len > 11 && strncasecmp(name.data, "x-amz-meta-", 11) == 0) {
            user_bytes += name.len - 11 + value.len;
            meta_join(&v->meta, name.data, name.len, value.data, value.len);
            continue;
        }
        for (unsigned k = 0; k < ARRAY_LEN(kept); k++) {
            if (!http_text_is_case(name, kept[k]))
                continue;
            if (k == 1)
                value = without_chunked(value);
            if (value.len)
                meta_join(&v->meta, name.data, name.len, value.data, value.len);
        }
    }
    if (!read_linked_meta(v, &user_bytes))
        return false;
    struct http_text class = s3_task_demand(v, "x-amz-storage-class");
    if (!http_text_is(class, "STANDARD"))
        http_text_copy(class, v->storage_class, sizeof(v->storage_class));
    put_class(v);
    if (v->meta.failed)
        s3_task_fail(v, S3_SLOW_DOWN, NULL);
    else if (user_bytes > USER_META_MAX || v->meta.len > STORE_META_MAX - 512)
        s3_task_fail(v, S3_METADATA_TOO_LARGE, NULL);
    else if (objects_check_meta(v->service->objects, v->call.bucket, v->meta.data, v->meta.len, NULL) < 0)
        s3_task_fail(v, S3_METADATA_TOO_LARGE,
                     "Metadata of an object in a bucket with a remote is at most 64 headers, "
                     "and below 4096 bytes, names included.");
    return v->code == S3_OK;
}

static bool read_conditions(struct s3_task *v)
{
    struct http_text none = s3_task_header(v, "if-none-match"), match = s3_task_header(v, "if-match");
    if (none.data && !http_text_is(none, "*"))
        return s3_task_fail(v, S3_NOT_IMPLEMENTED,
                            "If-None-Match of a write is \"*\": only if there is no such object");
    v->if_none_match = none.data != NULL;
    if (match.len >= 2 && match.data[0] == '"' && match.data[match.len - 1] == '"') {
        match.data++;
        match.len -= 2;
    }
    if (match.data && (match.len == 0 || match.len > STORE_ETAG_MAX))
        return s3_task_fail(v, S3_PRECONDITION_FAILED, NULL);
    http_text_copy(match, v->if_match, sizeof(v->if_match));
    return true;
}

void put_class(struct s3_task *v)
{
    if (v->storage_class[0])
        meta_put(&v->meta, "x-amz-storage-class", 19, v->storage_class, strlen(v->storage_class));
}

bool put_read_headers(struct s3_task *v)
{
    return read_meta(v) && read_conditions(v);
}

/* --- PutObject -------------------------------------------------------------------------------------------------------------------- */

int put_begin(struct s3_task *v, uint64_t bytes, struct leat_error *err)
{
    struct objects *o = v->service->objects;
    return v->part ? objects_part_begin(o, &v->at, v->upload, v->part, bytes, &v->body.put, err)
                   : objects_put_begin(o, &v->at, bytes, &v->body.put, err);
}

int put_commit(struct s3_task *v, struct leat_error *err)
{
    if (v->body.sum != SUM_NONE) {
        const char *header = sum_names[v->body.sum].header;
        meta_put(&v->meta, header, strlen(header), v->body.value, strlen(v->body.value));
        if (!v->part)
            meta_put(&v->meta, "x-amz-checksum-type", 19, "FULL_OBJECT", 11);
    }
    if (v->meta.failed)
        return -ENOMEM;
    struct store_commit c = {.meta = v->meta.data,
                             .meta_len = v->meta.len,
                             .if_none_match = v->if_none_match,
                             .if_match = v->if_match[0] ? v->if_match : NULL};
    struct store_put *put = TAKE_PTR(v->body.put);
    return v->part ? objects_part_commit(v->service->objects, put, &c, &v->info, err)
                   : objects_put_commit(v->service->objects, &v->at, put, &c, &v->info, err);
}

static int begin(struct s3_task *v, struct leat_error *err)
{
    return put_begin(v, v->body.bytes, err);
}

static void committed(struct s3_task *v)
{
    struct bytes_out *headers = s3_task_answer(v, 200);
    etag_header(headers, v->info.etag);
    if (v->body.sum != SUM_NONE) {
        http_put_header(headers, sum_names[v->body.sum].header, v->body.value);
        if (!v->part)
            http_put_header(headers, "x-amz-checksum-type", "FULL_OBJECT");
    }
    http_send_copy(v->req, NULL, 0);
}

static void begun(struct s3_task *v)
{
    body_receive(v, put_commit, committed);
}

/* Reads the head. */
static void receive(struct s3_task *v)
{
    if (v->body.bytes > STORE_PUT_SMALL)
        s3_task_run(v, HTTP_PRIORITY_SHORT, begin, begun);
    else if (s3_task_try(v, begin))
        begun(v);
    else
        s3_task_refuse(v);
}

void op_put(struct s3_task *v)
{
    if (put_read_headers(v) && body_begin(v, 0))
        receive(v);
    else
        s3_task_refuse(v);
}

/* --- UploadPart --------------------------------------------------------------------------------------------------------------------- */

void op_upload_part(struct s3_task *v)
{
    if (upload_read_part(v) && body_begin(v, 0))
        receive(v);
    else
        s3_task_refuse(v);
}

/* --- DeleteObject, DeleteObjects -------------------------------------------------------------------------------------------------------- */

static int delete_one(struct s3_task *v, struct leat_error *err)
{
    int rc = objects_delete(v->service->objects, &v->at, v->if_match[0] ? v->if_match : NULL, err);
    return rc == LEAT_NOT_FOUND ? 0 : rc;
}

static void deleted(struct s3_task *v)
{
    s3_task_send_empty(v, 204);
}

void op_delete(struct s3_task *v)
{
    if (read_conditions(v) &&
        (v->if_none_match || (v->if_match[0] && objects_remote(v->service->objects, v->call.bucket))))
        s3_task_fail(v, S3_NOT_IMPLEMENTED, "A DELETE may have If-Match, in buckets without a remote.");
    if (v->code == S3_OK)
        s3_task_run_remote(v, HTTP_PRIORITY_SHORT, delete_one, deleted);
    else
        s3_task_refuse(v);
}

static int delete_them(struct s3_task *v, const struct s3_delete *d, struct leat_error *err)
{
    struct store_key keys[S3_LIST_MAX];
    int codes[S3_LIST_MAX];
    unsigned map[S3_LIST_MAX], n = 0;
    enum s3_code refused[S3_LIST_MAX];
    const char *texts = (const char *)d->texts.data;
    for (unsigned i = 0; i < d->n; i++) {
        const struct s3_delete_key *k = &d->keys[i];
        bool version = k->version_len && strcmp(texts + k->version_at, "null") != 0;
        refused[i] = k->key_len > S3_KEY_MAX ? S3_KEY_TOO_LONG : version ? S3_NO_SUCH_VERSION : S3_OK;
        if (refused[i] == S3_OK) {
            keys[n] = (struct store_key){texts + k->key_at, k->key_len};
            map[n++] = i;
        }
    }
    int rc = n ? objects_delete_many(v->service->objects, v->call.bucket, keys, n, codes, err) : 0;
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < n; i++)
        refused[map[i]] = codes[i] == LEAT_NOT_FOUND ? S3_OK : code_of_store(codes[i]);
    s3_deleted_begin(&v->out);
    for (unsigned i = 0; i < d->n; i++) {
        if (refused[i] != S3_OK || !d->quiet)
            s3_deleted_key(&v->out, texts + d->keys[i].key_at, d->keys[i].key_len, refused[i]);
    }
    s3_deleted_end(&v->out);
    return 0;
}

static int delete_many(struct s3_task *v, struct leat_error *err)
{
    struct s3_delete *d;
    enum s3_code code = s3_delete_parse(v->body.document.data, v->body.document.len, &d);
    if (code != S3_OK)
        return s3_task_fail(v, code, NULL);
    int rc = delete_them(v, d, err);
    s3_delete_free(d);
    return rc;
}

void op_delete_many(struct s3_task *v)
{
    if (body_begin(v, DELETE_MAX))
        body_receive(v, delete_many, s3_task_send_xml);
    else
        s3_task_refuse(v);
}
