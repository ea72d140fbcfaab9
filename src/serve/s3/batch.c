/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c: answers that are bundles: one member of an archive (?archpath=NAME), and many objects and members as one tar (POST /bucket?batch).
 *
 *   member   object opened, member found (worker) ─▶ conditions, range (service) ─▶ the first instalment (worker) ─▶ head and body
 *   batch    list parsed, everything opened and found, first instalment (worker) ─▶ head with the length of all ─▶ the rest, step by step
 *
 * Happy path: all entries are opened before the head is sent, so that a missing one is reported in its place, and no object
 * changes under the answer. Failure modes: an entry that is missing, or found damaged at its opening, becomes a member "__missing__/NAME" with the reason,
 * in JSON. The CRC of an archive's member is compared as its bytes are made: a wrong one refuses the request before the head, and breaks the
 * connection off, short of its length, after it. Invariants: an archive of n entries has n members, in their
 * order; descriptors and bytes that batches hold are counted, and past their cap the answer is 503.
 */
#include <jansson.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/log.h"
#include "serve/s3/bundle.h"
#include "serve/s3/task.h"
#include "wire/s3/batch.h"
#include "wire/json_whole.h"

#define MISSING           "__missing__/"
#define CHECK_FIRST_BYTES (16 * MIB) /* of a member's payload */
#define PINNED_MAX        16384u     /* objects that all batches together hold open */

struct bundling {
    struct s3_service *service;
    struct bundle *bundle;
    uint64_t charged;
    unsigned pinned;
    /* the instalment that is sent next */
    const struct http_piece *pieces;
    unsigned npieces;
    bool last;
    /* a batch */
    struct batch_request request;
    unsigned missing;
    /* a member */
    struct member member;
    char etag[STORE_ETAG_MAX + 1];
    char path[BATCH_MEMBER_MAX + 1], range[80];
    uint64_t first, count;
    bool ranged;
};

void bundling_free(struct bundling *b)
{
    if (!b)
        return;
    bundle_free(b->bundle);
    batch_request_fini(&b->request);
    budget_release(b->service->budget, b->charged);
    atomic_fetch_sub(&b->service->pinned, b->pinned);
    free(b);
}

static struct bundling *bundling_new(struct s3_task *v)
{
    struct bundling *b = calloc(1, sizeof(*b));
    if (b)
        b->service = v->service;
    v->bundling = b;
    return b;
}

/* False: there is no room for it now; the task has failed. */
static bool charge(struct s3_task *v, uint64_t bytes, unsigned pins)
{
    struct bundling *b = v->bundling;
    bool room = budget_reserve(v->service->budget, bytes) == 0;
    if (room)
        b->charged += bytes;
    b->pinned += pins;
    if (atomic_fetch_add(&v->service->pinned, pins) + pins > PINNED_MAX || !room)
        return s3_task_fail(v, S3_SLOW_DOWN, NULL);
    return true;
}

/* --- sending ------------------------------------------------------------------------------------------------------------- */

static int step(struct s3_task *v, struct leat_error *err)
{
    struct bundling *b = v->bundling;
    int rc = bundle_step(b->bundle, &b->pieces, &b->npieces, &b->last, err);
    if (rc == LEAT_INVALID && !v->answered)
        return s3_task_fail(v, S3_INVALID_REQUEST, err->message);
    if (rc < 0) {
        log_warning_limited("s3: %s of %s: %s", s3_op_name(v->call.op), v->call.bucket, err->message);
        s3_task_fail(v, S3_INTERNAL, NULL);
    }
    return 0;
}

static void stepped(struct s3_task *v)
{
    struct bundling *b = v->bundling;
    http_send_more(v->req, b->pieces, b->npieces, b->last);
}

void bundling_more(struct s3_task *v)
{
    s3_task_run(v, HTTP_PRIORITY_SHORT, step, stepped);
}

static void send_first(struct s3_task *v)
{
    struct bundling *b = v->bundling;
    http_send(v->req, bundle_bytes(b->bundle), b->pieces, b->npieces, b->last);
}

/* --- a member ------------------------------------------------------------------------------------------------------------ */

/* The S3 error for a result of members_find. */
static enum s3_code code_of_members(int rc)
{
    switch (rc) {
    case LEAT_NOT_FOUND:
        return S3_NO_SUCH_KEY;
    case LEAT_BUSY:
    case -ENOMEM:
        return S3_SLOW_DOWN;
    case LEAT_INVALID:
    case LEAT_UNSUPPORTED:
    case LEAT_CORRUPT:
    case LEAT_NO_SPACE:
        return S3_INVALID_REQUEST;
    case STORE_UNAVAILABLE:
        return S3_UNAVAILABLE;
    default:
        return S3_INTERNAL;
    }
}

static int find_member(struct s3_service *service, const char *bucket, const char *key, size_t key_len,
                       const struct store_obj *obj, const char *path, struct member *ret,
                       struct leat_error *err)
{
    struct members_archive archive = {.bucket = bucket,
                                      .key = key,
                                      .key_len = key_len,
                                      .seq = obj->info.seq,
                                      .fd = obj->fd,
                                      .offset = obj->offset,
                                      .bytes = obj->info.bytes};
    return members_find(service->members, &archive, path, ret, err);
}

static int open_member(struct s3_task *v, struct leat_error *err)
{
    struct bundling *b = v->bundling;
    int rc = objects_get(v->service->objects, &v->at, &v->obj, err);
    if (rc < 0)
        return rc;
    rc = find_member(v->service, v->call.bucket, v->call.key, v->call.key_len, v->obj, b->path, &b->member,
                     err);
    if (rc < 0)
        return s3_task_fail(v, code_of_members(rc), err->message);
    /* As another payload than the archive's, it has another tag. */
    snprintf(b->etag, sizeof(b->etag), "%.90s-%016llx", v->obj->info.etag,
             (unsigned long long)XXH3_64bits(b->path, strlen(b->path)));
    return 0;
}

/*
 * What the first instalment does not hold is compared with its CRC before the head is sent, so that damage is an error with a reason, and
 * a range is one of right bytes. Larger members would keep the client waiting: their body breaks off before its end.
 */
static int check_first(struct s3_task *v, struct leat_error *err)
{
    struct bundling *b = v->bundling;
    bool in_first = b->count == b->member.bytes && b->count <= BUNDLE_BUFFER_BYTES / 2;
    if (!b->member.has_crc || in_first || b->member.bytes > CHECK_FIRST_BYTES)
        return 0;
    int rc = bundle_check(v->service->objects, v->obj, &b->member, err);
    if (rc == LEAT_INVALID)
        return s3_task_fail(v, S3_INVALID_REQUEST, err->message);
    b->member.has_crc = false; /* it holds: a stored one may leave from the file */
    return rc;
}

static int make_member(struct s3_task *v, struct leat_error *err)
{
    struct bundling *b = v->bundling;
    int rc = check_first(v, err);
    if (rc < 0 || v->code != S3_OK)
        return rc;
    struct bundle_part part = {.obj = objects_ref(v->obj),
                               .member = &b->member,
                               .first = b->first,
                               .count = b->count,
                               .path = v->call.key};
    rc = charge(v, bundle_memory_bytes(1), 1) ? bundle_new(v->service->objects, false, 1, &b->bundle) : 0;
    if (!b->bundle) {
        objects_unref(part.obj);
        return rc;
    }
    rc = bundle_add(b->bundle, &part, err);
    return rc < 0 ? rc : step(v, err);
}

static void put_member_head(struct s3_task *v, unsigned status)
{
    struct bundling *b = v->bundling;
    char text[80];
    struct bytes_out *headers = s3_task_answer(v, status);
    etag_header(headers, b->etag);
    http_date_format((time_t)(v->obj->info.mtime_ns / 1000000000), text);
    http_put_header(headers, "Last-Modified", text);
    if (status == 304)
        return;
    http_put_header(headers, "Content-Type", "binary/octet-stream");
    http_put_header(headers, "Accept-Ranges", "bytes");
    if (b->ranged) {
        snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)b->first,
                 (unsigned long long)(b->first + b->count - 1), (unsigned long long)b->member.bytes);
        http_put_header(headers, "Content-Range", text);
    }
}

static void send_member(struct s3_task *v)
{
    put_member_head(v, v->bundling->ranged ? 206 : 200);
    send_first(v);
}

/* The reactor's thread: what the request's head wants of it. */
static void weigh_member(struct s3_task *v)
{
    struct bundling *b = v->bundling;
    int64_t modified = v->obj->info.mtime_ns / 1000000000;
    struct http_conditions conditions = {.if_match = s3_task_header(v, "if-match"),
                                         .if_none_match = s3_task_header(v, "if-none-match"),
                                         .if_modified_since = s3_task_header(v, "if-modified-since"),
                                         .if_unmodified_since = s3_task_header(v, "if-unmodified-since")};
    struct http_text range = s3_task_header(v, "range"), if_range = s3_task_header(v, "if-range");
    unsigned status = http_conditions_check(&conditions, b->etag, modified, true);
    uint64_t last;
    if (status == 304) {
        put_member_head(v, 304);
        http_send_head(v->req, HTTP_BODY_UNKNOWN);
        return;
    }
    if (status)
        s3_task_fail(v, S3_PRECONDITION_FAILED, NULL);
    if (if_range.data && !http_range_holds(if_range, b->etag, modified))
        range.data = NULL;
    b->count = b->member.bytes;
    enum http_ranged ranged =
        range.data ? http_range(range, b->member.bytes, &b->first, &last) : HTTP_RANGE_NONE;
    if (v->code == S3_OK && ranged == HTTP_RANGE_BEYOND) {
        v->answered = true;
        service_refuse_range(v->req, b->member.bytes, v->id);
        return;
    }
    if (ranged == HTTP_RANGE_PART) {
        b->ranged = true;
        b->count = last - b->first + 1;
    }
    if (v->code != S3_OK) {
        s3_task_refuse(v);
    } else if (v->req->is_head) {
        put_member_head(v, b->ranged ? 206 : 200);
        http_send_head(v->req, b->count);
    } else {
        s3_task_run(v, HTTP_PRIORITY_SHORT, make_member, send_member);
    }
}

void op_member(struct s3_task *v)
{
    size_t len;
    const char *path = s3_call_param(&v->call, "archpath", &len);
    struct bundling *b = bundling_new(v);
    if (!b)
        s3_task_fail(v, S3_SLOW_DOWN, NULL);
    else if (len == 0 || len > BATCH_MEMBER_MAX)
        s3_task_fail(v, S3_INVALID_ARGUMENT,
                     "archpath is the name of a member of the archive, of at most 2,048 bytes.");
    if (v->code != S3_OK) {
        s3_task_refuse(v);
        return;
    }
    memcpy(b->path, path, len + 1);
    s3_task_run_remote(v, HTTP_PRIORITY_LONG, open_member, weigh_member);
}

/* --- a batch ------------------------------------------------------------------------------------------------------------- */

/* The archive's text in place of an entry. NULL: out of memory. */
static char *missing_text(const struct batch_entry *e, enum s3_code code, const char *message)
{
    json_t *o = json_pack("{s:s, s:s, s:s}", "key", e->key, "code", s3_code_name(code), "message",
                          message && *message ? message : s3_code_message(code));
    int bad = o && e->member ? json_object_set_new(o, "archpath", json_string(e->member)) : 0;
    char *text = bad ? NULL : json_whole(o);
    json_decref(o);
    return text;
}

/* A failure that may pass: the entry is not missing, and a later request may get it. */
static bool not_now(enum s3_code code)
{
    return code == S3_NO_SUCH_BUCKET || code == S3_SLOW_DOWN || code == S3_UNAVAILABLE ||
           code == S3_REMOTE_REFUSED || code == S3_REMOTE_TIMEOUT;
}

/* Opens what an entry is of. S3_OK, or why it is missing. */
static enum s3_code open_entry(struct s3_task *v, const struct batch_entry *e, struct bundle_part *part,
                               struct member *member, struct leat_error *err)
{
    size_t key_len = strlen(e->key);
    int rc = objects_get(v->service->objects, &(struct objects_key){v->call.bucket, e->key, key_len},
                         &part->obj, err);
    if (rc < 0) {
        enum s3_code code = code_of_store(rc);
        if (not_now(code))
            s3_task_fail_store(v, rc, err);
        err->message[0] = 0; /* about our disks: not for clients */
        return code;
    }
    part->mtime_ns = part->obj->info.mtime_ns;
    uint64_t bytes = part->obj->info.bytes;
    if (e->member) {
        rc = find_member(v->service, v->call.bucket, e->key, key_len, part->obj, e->member, member, err);
        if (rc < 0)
            return code_of_members(rc);
        part->member = member;
        part->suffix = e->member;
        bytes = member->bytes;
    }
    return batch_entry_part(e, bytes, &part->first, &part->count) ? S3_OK : S3_INVALID_RANGE;
}

static void add_entry(struct s3_task *v, const struct batch_entry *e)
{
    struct bundling *b = v->bundling;
    struct bundle_part part = {.path = e->key, .opaque = e->opaque};
    struct member member;
    struct leat_error err = {0};
    enum s3_code code = open_entry(v, e, &part, &member, &err);
    if (not_now(code)) {
        objects_unref(part.obj);
        s3_task_fail(v, code, NULL);
        return;
    }
    if (code != S3_OK) {
        objects_unref(TAKE_PTR(part.obj));
        part.member = NULL;
        part.prefix = MISSING;
        part.suffix = e->member;
        part.text = missing_text(e, code, err.message);
        if (!part.text) {
            s3_task_fail(v, S3_SLOW_DOWN, NULL);
            return;
        }
        part.first = 0;
        part.count = strlen(part.text);
        b->missing++;
    }
    int rc = bundle_add(b->bundle, &part, &err);
    if (rc < 0)
        s3_task_fail(v, S3_INVALID_ARGUMENT, err.message);
}

static int plan(struct s3_task *v, struct leat_error *err)
{
    struct bundling *b = v->bundling;
    int rc = batch_request_parse((const char *)v->body.document.data, v->body.document.len, &b->request, err);
    if (rc < 0)
        return s3_task_fail(v, rc == -ENOMEM ? S3_SLOW_DOWN : S3_INVALID_REQUEST, err->message);
    /* Missing ones take what they were asked in, once more, and a sentence. */
    uint64_t bytes = bundle_memory_bytes(b->request.n) + b->request.n * (sizeof(struct batch_entry) + 512) +
                     2 * v->body.document.len;
    if (!charge(v, bytes, b->request.n))
        return 0;
    rc = bundle_new(v->service->objects, true, b->request.n, &b->bundle);
    for (unsigned i = 0; rc == 0 && i < b->request.n && v->code == S3_OK; i++)
        add_entry(v, &b->request.entries[i]);
    return rc == 0 && v->code == S3_OK ? step(v, err) : rc;
}

static void send_batch(struct s3_task *v)
{
    struct bytes_out *headers = s3_task_answer(v, 200);
    http_put_header(headers, "Content-Type", "application/x-tar");
    http_put_header_u64(headers, "x-leat-entries", v->bundling->request.n);
    http_put_header_u64(headers, "x-leat-missing", v->bundling->missing);
    send_first(v);
}

void op_batch(struct s3_task *v)
{
    if (!bundling_new(v))
        s3_task_fail(v, S3_SLOW_DOWN, NULL);
    if (v->code == S3_OK && body_begin(v, BATCH_BYTES_MAX))
        body_receive(v, plan, send_batch);
    else
        s3_task_refuse(v);
}
