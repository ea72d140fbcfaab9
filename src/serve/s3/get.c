/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetObject and HeadObject.
 *
 * Happy path: an object that is open and verified is answered on the reactor's thread: one head, one piece of
 * a file. Others are opened by a worker; what was not verified since is, in steps, each while the one before
 * is on its way out.
 * Failure modes: a damaged block in the first step is a 500, or the remote's object where there is one; in a
 * later one the connection is aborted, so that no client takes a part for the whole.
 * Invariants: no byte leaves that was not verified since the object was opened.
 */
#include "serve/s3/parts.h"
#include "serve/s3/task.h"

#include <stdio.h>
#include <strings.h>

#define STEP (8 * MIB) /* verified ahead of what is sent */

/* The part of an object that a request wants. */
struct wanted {
    enum s3_code code; /* S3_OK, or 304, 412, 416 ... */
    unsigned status;
    uint64_t first, bytes;
    bool whole;           /* all of it */
    unsigned parts;       /* of the object, where one of them is asked for; 0 */
    struct http_text sum; /* that part's; data NULL: not known */
};

/* One part, which is the whole of an object that was put in one, or whose parts are not known. */
static bool part_range(const struct store_obj *obj, unsigned number, struct wanted *w)
{
    struct object_part part;
    w->parts = parts_count(obj->meta, obj->meta_len);
    if (!w->parts)
        return number == 1;
    if (!parts_find(obj->meta, obj->meta_len, obj->info.bytes, number, &part))
        return false;
    w->whole = false;
    w->first = part.first;
    w->bytes = part.bytes;
    w->sum = part.sum;
    return true;
}

static void weigh(const struct http_request *req, const struct s3_call *call, const struct store_obj *obj,
                  struct wanted *w)
{
    struct http_text range = http_header(req->reader, req->head, "range");
    struct http_conditions conditions = {
        .if_match = http_header(req->reader, req->head, "if-match"),
        .if_none_match = http_header(req->reader, req->head, "if-none-match"),
        .if_modified_since = http_header(req->reader, req->head, "if-modified-since"),
        .if_unmodified_since = http_header(req->reader, req->head, "if-unmodified-since"),
    };
    const char *part = s3_call_param(call, "partNumber", NULL);
    uint64_t last, number;
    *w = (struct wanted){.status = 200, .whole = true, .bytes = obj->info.bytes};
    unsigned status =
        http_conditions_check(&conditions, obj->info.etag, obj->info.mtime_ns / 1000000000, true);
    if (status) {
        w->code = status == 304 ? S3_NOT_MODIFIED : S3_PRECONDITION_FAILED;
        return;
    }
    struct http_text if_range = http_header(req->reader, req->head, "if-range");
    if (range.data && if_range.data &&
        !http_range_holds(if_range, obj->info.etag, obj->info.mtime_ns / 1000000000))
        range.data = NULL;
    if (part) {
        if (range.data || !http_text_u64((struct http_text){part, strlen(part)}, &number) || number < 1 ||
            number > STORE_PARTS_MAX)
            w->code = S3_INVALID_ARGUMENT;
        else if (!part_range(obj, (unsigned)number, w))
            w->code = S3_INVALID_PART_NUMBER;
        w->status = 206;
        return;
    }
    enum http_ranged ranged =
        range.data ? http_range(range, obj->info.bytes, &w->first, &last) : HTTP_RANGE_NONE;
    if (ranged == HTTP_RANGE_BEYOND) {
        w->code = S3_INVALID_RANGE;
    } else if (ranged == HTTP_RANGE_PART) {
        w->bytes = last - w->first + 1;
        w->status = 206;
        w->whole = false;
    }
}

/* --- the head -------------------------------------------------------------------------------------------------------------- */

struct putting {
    struct bytes_out *headers;
    bool checksums, has_type;
    unsigned overridden; /* bit: of `overrides` */
};

static const struct {
    const char *param, *header;
} overrides[] = {
    {"response-content-type", "content-type"},
    {"response-content-language", "content-language"},
    {"response-expires", "expires"},
    {"response-cache-control", "cache-control"},
    {"response-content-disposition", "content-disposition"},
    {"response-content-encoding", "content-encoding"},
};

static void put_pair(struct putting *p, const char *name, const char *value)
{
    if (strncmp(name, "leat-", 5) == 0 || (strncmp(name, "x-amz-checksum-", 15) == 0 && !p->checksums))
        return;
    for (unsigned i = 0; i < ARRAY_LEN(overrides); i++) {
        if ((p->overridden >> i & 1) && strcmp(name, overrides[i].header) == 0)
            return;
    }
    p->has_type |= strcmp(name, "content-type") == 0;
    http_put_header(p->headers, name, value);
}

/* The checksum of the part that is sent, as the client compares what it receives. */
static void put_part_sum(struct bytes_out *headers, const struct store_obj *obj, struct http_text sum)
{
    const char *whole;
    char text[SUM_TEXT];
    bool full;
    enum sum_kind kind = sum_of_meta(obj->meta, obj->meta_len, &whole, &full);
    if (kind == SUM_NONE || sum.len >= sizeof(text))
        return;
    http_text_copy(sum, text, sizeof(text));
    http_put_header(headers, sum_names[kind].header, text);
    http_put_header(headers, "x-amz-checksum-type", full ? "FULL_OBJECT" : "COMPOSITE");
}

static void put_head(const struct s3_service *service, struct http_request *req, const struct s3_call *call,
                     const struct store_obj *obj, const struct wanted *w, const char *id)
{
    struct putting p = {.headers = service_answer(req, w->status, id)};
    char text[80], date[HTTP_DATE_BYTES];
    struct http_text mode = http_header(req->reader, req->head, "x-amz-checksum-mode");
    p.checksums = w->whole && http_text_is_case(mode, "enabled");
    http_put_header(p.headers, "Accept-Ranges", "bytes");
    if (service_encrypts(service, call->bucket))
        http_put_header(p.headers, "x-amz-server-side-encryption", "AES256");
    etag_header(p.headers, obj->info.etag);
    http_date_format((time_t)(obj->info.mtime_ns / 1000000000), date);
    http_put_header(p.headers, "Last-Modified", date);
    for (unsigned i = 0; call->nparams && i < ARRAY_LEN(overrides); i++) {
        const char *value = s3_call_param(call, overrides[i].param, NULL);
        if (value && !strpbrk(value, "\r\n")) {
            p.overridden |= 1u << i;
            p.has_type |= i == 0;
            http_put_header(p.headers, overrides[i].header, value);
        }
    }
    for (struct pair pair = {0}; pairs_next(obj->meta, obj->meta_len, &pair);)
        put_pair(&p, pair.name, pair.value);
    if (!p.has_type)
        http_put_header(p.headers, "Content-Type", "binary/octet-stream");
    if (w->status == 206 && w->bytes) { /* an empty last part has no first byte to report */
        snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)w->first,
                 (unsigned long long)(w->first + w->bytes - 1), (unsigned long long)obj->info.bytes);
        http_put_header(p.headers, "Content-Range", text);
    }
    if (w->parts)
        http_put_header_u64(p.headers, "x-amz-mp-parts-count", w->parts);
    if (w->sum.data && http_text_is_case(mode, "enabled"))
        put_part_sum(p.headers, obj, w->sum);
}

/* 304, 412, 416: with what belongs to them. */
static void put_refusal(struct http_request *req, const struct store_obj *obj, enum s3_code code,
                        const char *id)
{
    if (code == S3_NOT_MODIFIED) {
        char date[HTTP_DATE_BYTES];
        struct bytes_out *headers = service_answer(req, 304, id);
        etag_header(headers, obj->info.etag);
        http_date_format((time_t)(obj->info.mtime_ns / 1000000000), date);
        http_put_header(headers, "Last-Modified", date);
        /* How long an answer may be kept belongs to "not modified" as to the object. */
        for (struct pair pair = {0}; pairs_next(obj->meta, obj->meta_len, &pair);)
            if (strcmp(pair.name, "cache-control") == 0 || strcmp(pair.name, "expires") == 0)
                http_put_header(headers, pair.name, pair.value);
        http_send_head(req, HTTP_BODY_UNKNOWN);
        return;
    }
    if (code == S3_INVALID_RANGE)
        service_refuse_range(req, obj->info.bytes, id);
    else
        service_refuse(req, code, NULL, NULL, id);
}

/* From memory where the store keeps it there, else from the file. */
static struct http_piece piece_of(const struct store_obj *obj, uint64_t first, uint64_t bytes)
{
    const char *body = obj->body;
    return (struct http_piece){
        .data = body ? body + first : NULL, .fd = obj->fd, .at = obj->offset + first, .bytes = bytes};
}

/* --- at once ----------------------------------------------------------------------------------------------------------------- */

static void at_once_over(struct http_request *req, int rc)
{
    (void)rc;
    objects_unref(req->user);
}

static const struct http_ops at_once = {.over = at_once_over};

/* Unsigned requests may not choose the headers of an answer: a link could show another author's page under
 * our name. */
static bool overrides_refused(const struct s3_call *call, bool is_signed)
{
    for (unsigned i = 0; !is_signed && call->nparams && i < ARRAY_LEN(overrides); i++) {
        if (s3_call_param(call, overrides[i].param, NULL))
            return true;
    }
    return false;
}

static const char overrides_message[] =
    "Request specific response headers cannot be used for anonymous GET requests.";

bool get_at_once(struct s3_service *service, struct http_request *req, const struct s3_call *call,
                 bool is_signed, const char id[S3_TASK_ID_TEXT])
{
    struct store_obj *obj;
    struct wanted w;
    if ((call->op != S3_OP_GET_OBJECT && call->op != S3_OP_HEAD_OBJECT) ||
        s3_call_param(call, "archpath", NULL))
        return false;
    if (overrides_refused(call, is_signed)) {
        service_refuse(req, S3_INVALID_REQUEST, overrides_message, NULL, id);
        return true;
    }
    int rc = objects_get_cached(service->objects,
                                &(struct objects_key){call->bucket, call->key, call->key_len}, &obj, NULL);
    if (rc == LEAT_NOT_FOUND || rc == STORE_NO_BUCKET) {
        service_refuse(req, code_of_store(rc), NULL, NULL, id);
        return true;
    }
    if (rc < 0)
        return false;
    weigh(req, call, obj, &w);
    if (w.code != S3_OK) {
        put_refusal(req, obj, w.code, id);
        objects_unref(obj);
        return true;
    }
    if (!req->is_head && !objects_checked(obj, w.first, w.bytes)) {
        objects_unref(obj);
        return false;
    }
    req->ops = &at_once;
    req->user = obj;
    put_head(service, req, call, obj, &w, id);
    struct http_piece piece = piece_of(obj, w.first, w.bytes);
    if (req->is_head)
        http_send_head(req, w.bytes);
    else
        http_send(req, w.bytes, &piece, w.bytes ? 1 : 0, true);
    return true;
}

/* --- by a worker --------------------------------------------------------------------------------------------------------------- */

static int open_object(struct s3_task *v, struct leat_error *err)
{
    return objects_open(v->service->objects, &v->at, v->call.op == S3_OP_HEAD_OBJECT, &v->obj, &v->read, err);
}

static int check_step(struct s3_task *v, struct leat_error *err)
{
    uint64_t bytes = MIN(v->end - v->checked, STEP);
    int rc = objects_check(v->service->objects, v->obj, v->checked, bytes, err);
    if (rc == 0) {
        v->checked += bytes;
    } else if ((rc == LEAT_CORRUPT || rc == STORE_UNAVAILABLE) && !v->answered && !v->anew &&
               objects_remote(v->service->objects, v->call.bucket)) {
        v->anew = true;
        objects_unref(TAKE_PTR(v->obj));
        return open_object(v, err);
    }
    return rc;
}

static void step_checked(struct s3_task *v);

static void send_step(struct s3_task *v)
{
    struct http_piece piece = piece_of(v->obj, v->sent, v->checked - v->sent);
    bool first = v->sent == v->first, last = v->checked == v->end;
    v->sent = v->checked;
    v->idle = false;
    if (first)
        http_send(v->req, v->end - v->first, &piece, piece.bytes ? 1 : 0, last);
    else
        http_send_more(v->req, &piece, 1, last);
    if (!last && v->req && !v->working)
        s3_task_run(v, HTTP_PRIORITY_SHORT, check_step, step_checked);
}

/* A step was checked while the one before was sent, or it was waited for. */
static void step_checked(struct s3_task *v)
{
    if (v->idle)
        send_step(v);
}

static void send_arriving(struct s3_task *v);

void get_more(struct http_request *req)
{
    struct s3_task *v = req->user;
    if (v->bundling) {
        bundling_more(v);
        return;
    }
    v->idle = true;
    if (v->read) {
        send_arriving(v);
        return;
    }
    if (!v->working && v->checked > v->sent)
        send_step(v);
}

static void opened(struct s3_task *v);

static void first_checked(struct s3_task *v)
{
    struct wanted w;
    if (v->checked == v->first && v->end > v->first) { /* opened again */
        opened(v);
        return;
    }
    weigh(v->req, &v->call, v->obj, &w);
    v->answered = true;
    put_head(v->service, v->req, &v->call, v->obj, &w, v->id);
    send_step(v);
}

/* --- on its way from a remote ---------------------------------------------------------------------------------------------------- */

static void arriving(struct s3_task *v);

static void asked_again(struct http_message *message, struct http_request *req)
{
    struct s3_task *v = container_of(message, struct s3_task, told);
    v->posted = false;
    if (!req || !v->req)
        s3_task_free(v);
    else if (v->end == UINT64_MAX)
        arriving(v);
    else
        send_arriving(v);
}

/* On a thread of the tier. */
static void told(struct tier_waiter *w)
{
    struct s3_task *v = container_of(w, struct s3_task, waiter);
    v->posted = true;
    v->told = (struct http_message){.ref = v->ref, .fn = asked_again};
    http_post(&v->told);
}

bool get_unwait(struct s3_task *v)
{
    if (v->read)
        objects_stream_unwait(v->read, &v->waiter);
    return v->posted;
}

static void lost(struct s3_task *v, int rc, const struct leat_error *err)
{
    s3_task_fail_store(v, rc, err);
    s3_task_refuse(v);
}

/* The next bytes that have come; none: the waiter calls us. */
static void send_arriving(struct s3_task *v)
{
    struct leat_error err = {0};
    struct wanted w;
    if (!v->idle)
        return; /* `more` comes */
    int64_t n = v->sent < v->end ? objects_stream_ready(v->read, v->sent, &v->waiter, &err) : 0;
    if (n == TIER_WAIT)
        return;
    if (n < 0) {
        lost(v, (int)n, &err);
        return;
    }
    uint64_t bytes = MIN((uint64_t)n, STEP);
    bytes = MIN(bytes, v->end - v->sent);
    struct http_piece piece = piece_of(&v->read->view, v->sent, bytes);
    bool begins = !v->answered;
    v->sent += bytes;
    v->idle = false;
    if (begins) {
        weigh(v->req, &v->call, &v->read->view, &w);
        v->answered = true;
        put_head(v->service, v->req, &v->call, &v->read->view, &w, v->id);
        http_send(v->req, v->end - v->first, &piece, bytes ? 1 : 0, v->sent == v->end);
    } else {
        http_send_more(v->req, &piece, 1, v->sent == v->end);
    }
}

/* Is there such an object, and what is it like? */
static void arriving(struct s3_task *v)
{
    struct leat_error err = {0};
    struct wanted w;
    v->waiter.ready = told;
    v->end = UINT64_MAX;
    int rc = objects_stream_head(v->read, &v->waiter, &v->obj, &err);
    if (rc == TIER_WAIT)
        return;
    if (rc < 0) {
        lost(v, rc, &err);
        return;
    }
    if (v->obj) { /* what is here was right */
        objects_stream_close(TAKE_PTR(v->read));
        opened(v);
        return;
    }
    const struct store_obj *view = &v->read->view;
    weigh(v->req, &v->call, view, &w);
    v->first = v->sent = w.first;
    v->end = w.first + w.bytes;
    if (w.code != S3_OK) {
        v->answered = true;
        put_refusal(v->req, view, w.code, v->id);
    } else if (v->req->is_head) {
        v->answered = true;
        put_head(v->service, v->req, &v->call, view, &w, v->id);
        http_send_head(v->req, w.bytes);
    } else {
        v->idle = true;
        send_arriving(v);
    }
}

static void opened(struct s3_task *v)
{
    struct wanted w;
    if (v->read) {
        arriving(v);
        return;
    }
    weigh(v->req, &v->call, v->obj, &w);
    if (w.code != S3_OK) {
        v->answered = true;
        put_refusal(v->req, v->obj, w.code, v->id);
        return;
    }
    v->first = v->sent = v->checked = w.first;
    v->end = w.first + w.bytes;
    if (v->req->is_head) {
        v->answered = true;
        put_head(v->service, v->req, &v->call, v->obj, &w, v->id);
        http_send_head(v->req, w.bytes);
    } else if (objects_checked(v->obj, w.first, w.bytes)) {
        v->checked = v->end;
        first_checked(v);
    } else {
        s3_task_run(v, HTTP_PRIORITY_SHORT, check_step, first_checked);
    }
}

void op_get(struct s3_task *v)
{
    if (s3_call_param(&v->call, "archpath", NULL)) {
        op_member(v);
        return;
    }
    s3_task_run(v, HTTP_PRIORITY_SHORT, open_object, opened);
}
