/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing: one PUT, or parts where an object is large. Each request carries a CRC32C of its bytes, which the
 * server checks; over TLS the payload is not hashed a second time for the signature. A copy is the same with
 * requests that name their bytes (x-amz-copy-source), instead of carrying them.
 *
 * Failure modes: a part that fails is tried again as any request; when one fails for good the upload is
 * aborted, so that no invisible parts are left that cost money. An upload whose process is killed leaves its
 * parts to the bucket's lifecycle rule.
 */
#include <fcntl.h>
#include <stdio.h>

#include "backend/s3/session.h"
#include "base/clock.h"
#include "base/crc32c.h"

#define ONE_PUT         (16 * MIB)
#define CANCELLED_NS    (3 * NS_PER_S) /* for the DELETE of one that is cancelled */
#define PART_BYTES      (16 * MIB)
#define PARTS_AT_A_TIME 4u
#define ONE_COPY        (64 * MIB) /* a server may say nothing while it copies: not for long */

struct part {
    struct s3_exchange rq;
    struct upload *upload;
    unsigned number; /* from 1; 0: idle, or another request */
    char *buf;
    uint64_t bytes;
    char query[S3_KEY_MAX + 64], crc[S3_CRC_TEXT], sha[SIGV4_SIGNATURE];
    struct s3_header headers[3 + BACKEND_HEADERS];
    char range[64]; /* of a copy */
    char *etag;
};

/* All in one request; or: an upload is begun, its parts are sent, it is put together; or, after a failure, aborted. */
enum upload_step { UPLOAD_ONE, UPLOAD_BEGIN, UPLOAD_PARTS, UPLOAD_COMPLETE, UPLOAD_ABORT };

struct upload {
    struct s3_session *b;
    struct backend_op *op; /* a copy that is submitted; NULL: it is waited for here */
    enum upload_step step;
    struct target target;
    int fd;
    uint64_t offset, bytes, part_bytes; /* of the file: where the object begins */
    unsigned nparts, next, ndone;       /* next: the number of the part that is begun next */
    char *from;                         /* a copy: "/bucket/key", escaped; NULL: bytes are sent */
    const char *from_etag;              /* it is this version, or fails; "": any */
    char *lines;                        /* the object's headers, taken apart */
    struct s3_header headers[BACKEND_HEADERS];
    unsigned nheaders;
    char etag[BACKEND_ETAG_MAX];
    char id[1024]; /* "": none is begun */
    char **etags;
    struct bytes_out body; /* what puts it together */
    char query[2 * 1024 + 64], sha[SIGV4_SIGNATURE];
    bool over, cancelled;
    int rc; /* the first that went wrong, and why */
    struct leat_error err;
    struct part parts[PARTS_AT_A_TIME];
};

static void part_over(struct s3_exchange *rq, int rc, const struct leat_error *err);

static int part_head(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                     struct leat_error *err)
{
    struct part *p = container_of(rq, struct part, rq);
    struct http_text etag = http_header(reader, buf, "etag");
    free(p->etag);
    p->etag = etag.len ? strndup(etag.data, etag.len) : strdup("");
    return p->etag ? 0 : -ENOMEM;
}

/* 200 may be said before a copy is made: what became of it stands in the body. */
static int copied_check(struct s3_exchange *rq, struct leat_error *err)
{
    struct part *p = container_of(rq, struct part, rq);
    const struct bytes_out *text = &rq->call.text;
    const uint8_t *body = text->data ? text->data : (const uint8_t *)"";
    struct s3_error e;
    char etag[BACKEND_ETAG_MAX];
    bool retry;
    s3_error_parse(body, text->len, &e);
    if (e.code[0]) {
        int rc = s3_error_class(500, e.code, &retry);
        return error_set(err, retry ? LEAT_PEER_GONE : rc, "the server did not copy it: %s: %s", e.code,
                         e.message);
    }
    int rc = s3_completed_parse(body, text->len, etag, sizeof(etag));
    if (rc < 0)
        return rc;
    if (!etag[0])
        return error_set(err, LEAT_UNSUPPORTED, "the server does not copy objects by itself");
    free(p->etag);
    p->etag = strdup(etag);
    return p->etag ? 0 : -ENOMEM;
}

/* Begins the PUT of `bytes` that `rq` has the particulars of; p->headers[0..nheaders) go with it. */
static void part_ask(struct part *p, struct s3_exchange rq, unsigned nheaders, uint64_t bytes)
{
    struct upload *u = p->upload;
    p->bytes = bytes;
    rq.b = u->b;
    rq.target = &u->target;
    rq.say.method = "PUT";
    rq.say.query = p->query[0] ? p->query : NULL;
    rq.say.has_body = true;
    rq.say.headers = p->headers;
    rq.say.nheaders = nheaders;
    rq.repeatable = true;
    rq.until_ns = u->op ? u->op->deadline_ns : 0;
    rq.finished = part_over;
    request_fini(&p->rq);
    p->rq = rq;
    request_start(&p->rq);
}

/* Bytes [at, +bytes) of the object that is copied: all of it, or a part. */
static void copy_start(struct upload *u, struct part *p, uint64_t at, uint64_t bytes)
{
    unsigned n = 0;
    p->headers[n++] = (struct s3_header){"x-amz-copy-source", u->from};
    if (*u->from_etag)
        p->headers[n++] = (struct s3_header){"x-amz-copy-source-if-match", u->from_etag};
    if (p->query[0]) {
        snprintf(p->range, sizeof(p->range), "bytes=%llu-%llu", (unsigned long long)at,
                 (unsigned long long)(at + bytes - 1));
        p->headers[n++] = (struct s3_header){"x-amz-copy-source-range", p->range};
    }
    part_ask(p, (struct s3_exchange){.work_bytes = bytes, .check = copied_check}, n, bytes);
}

/* Bytes [at, +bytes) of the file into the part's buffer, and the request that carries them. */
static int part_start(struct upload *u, struct part *p, uint64_t at, uint64_t bytes, struct leat_error *err)
{
    if (u->from) {
        copy_start(u, p, at, bytes);
        return 0;
    }
    for (uint64_t got = 0; got < bytes;) {
        ssize_t n = pread(u->fd, p->buf + got, bytes - got, (off_t)(u->offset + at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? error_sys(err, -errno, "reading what is to be stored as %.300s", u->target.uri)
                         : error_set(err, LEAT_STALE, "%.300s: the file became shorter while it was stored",
                                     u->target.uri);
        got += (uint64_t)n;
    }
    s3_crc_format((struct s3_crc){S3_CRC32C, crc32c(0, p->buf, bytes)}, p->crc);
    const char *payload = SIGV4_UNSIGNED;
    if (!u->target.bucket->endpoint.tls) {
        int rc = sigv4_sha256(p->buf, bytes, p->sha);
        if (rc < 0)
            return rc;
        payload = p->sha;
    }
    p->headers[0] = (struct s3_header){s3_crc_header(S3_CRC32C), p->crc};
    unsigned more = p->query[0] ? 0 : u->nheaders; /* those of parts were said when the upload began */
    memcpy(p->headers + 1, u->headers, more * sizeof(u->headers[0]));
    struct s3_exchange rq = {.say = {.payload = payload, .content_length = bytes},
                             .body = p->buf,
                             .body_len = bytes,
                             .on_head = part_head};
    u->b->stats.bytes_out += bytes;
    part_ask(p, rq, 1 + more, bytes);
    return 0;
}

/* A request without payload of its own, or with some XML; part_over comes. */
static int say(struct upload *u, const char *method, const char *query, const struct bytes_out *body)
{
    struct part *p = &u->parts[0];
    bool begins = u->step == UPLOAD_BEGIN;
    int rc = body ? sigv4_sha256(body->data, body->len, u->sha) : 0;
    if (rc < 0)
        return rc;
    request_fini(&p->rq);
    p->rq = (struct s3_exchange){
        .b = u->b,
        .target = &u->target,
        .say = {.method = method,
                .query = query,
                .payload = body ? u->sha : NULL,
                .has_body = strcmp(method, "DELETE") != 0,
                .content_length = body ? body->len : 0,
                .headers = begins ? u->headers : NULL,
                .nheaders = begins ? u->nheaders : 0},
        .body = body ? body->data : NULL,
        .body_len = body ? body->len : 0,
        .repeatable = true,
        .until_ns = u->cancelled                       ? clock_now_ns() + CANCELLED_NS
                    : u->op && u->step != UPLOAD_ABORT ? u->op->deadline_ns
                                                       : 0,
        .finished = part_over,
    };
    request_start(&p->rq);
    return 0;
}

static void part_query(struct upload *u, unsigned number, char *out, size_t cap)
{
    struct bytes_out q = {0};
    char text[16];
    snprintf(text, sizeof(text), "%u", number);
    if (number)
        s3_query_put(&q, "partNumber", text);
    s3_query_put(&q, "uploadId", u->id);
    bytes_put(&q, "", 1);
    snprintf(out, cap, "%s", q.failed ? "" : (char *)q.data);
    bytes_out_fini(&q);
}

/* --- step by step ------------------------------------------------------------------------------------------------------ */

static void upload_end(struct upload *u);

static void upload_spoil(struct upload *u, int rc, const struct leat_error *err)
{
    if (rc == 0 || u->rc < 0)
        return;
    u->rc = rc;
    if (err)
        u->err = *err;
}

/* Its end; who waits for it frees it. */
static void upload_over(struct upload *u)
{
    struct backend_op *op = u->op;
    u->over = true;
    if (!op)
        return;
    struct s3_session *b = u->b;
    struct leat_error err = u->err;
    int rc = u->rc;
    upload_end(u);
    s3_op_over(b, op, rc, &err);
}

/* It failed, or is cancelled: nothing is sent any more, and no part stays there. */
static void upload_abort(struct upload *u)
{
    for (unsigned i = 0; i < PARTS_AT_A_TIME && u->step != UPLOAD_ABORT; i++) {
        request_cancel(&u->parts[i].rq);
        u->parts[i].number = 0;
    }
    if (u->step == UPLOAD_ABORT)
        return;
    u->step = UPLOAD_ABORT;
    part_query(u, 0, u->query, sizeof(u->query));
    if (!u->id[0] || u->b->ending || say(u, "DELETE", u->query, NULL) < 0)
        upload_over(u);
}

static void upload_complete(struct upload *u)
{
    u->step = UPLOAD_COMPLETE;
    part_query(u, 0, u->query, sizeof(u->query));
    s3_complete_put(&u->body, u->etags, u->nparts);
    int rc = u->body.failed ? -ENOMEM : say(u, "POST", u->query, &u->body);
    if (rc < 0) {
        upload_spoil(u, rc, NULL);
        upload_abort(u);
    }
}

/* The next parts, as many as there is room for. */
static void upload_parts(struct upload *u)
{
    for (unsigned i = 0; i < PARTS_AT_A_TIME && u->rc == 0 && u->next <= u->nparts; i++) {
        struct part *p = &u->parts[i];
        struct leat_error err = {0};
        if (p->number)
            continue;
        uint64_t at = (u->next - 1) * u->part_bytes;
        p->number = u->next++;
        part_query(u, p->number, p->query, sizeof(p->query));
        upload_spoil(u, part_start(u, p, at, MIN(u->part_bytes, u->bytes - at), &err), &err);
    }
    if (u->rc < 0)
        upload_abort(u);
    else if (u->ndone == u->nparts)
        upload_complete(u);
}

/* The id is here. */
static void upload_begun(struct upload *u, const struct bytes_out *text)
{
    struct leat_error err = {0};
    int rc = u->rc;
    if (rc == 0)
        rc = s3_upload_id_parse(text->data ? text->data : (uint8_t *)"", text->len, u->id, sizeof(u->id),
                                &err);
    if (rc < 0)
        u->id[0] = 0;
    for (unsigned i = 0; i < PARTS_AT_A_TIME && rc == 0 && !u->from; i++) {
        free(u->parts[i].buf);
        u->parts[i].buf = malloc(u->part_bytes);
        rc = u->parts[i].buf ? 0 : -ENOMEM;
    }
    upload_spoil(u, rc, &err);
    u->step = UPLOAD_PARTS;
    upload_parts(u);
}

/* 200 is said before the parts are put together: what went wrong then stands in the body. */
static void upload_completed(struct upload *u, const struct bytes_out *text)
{
    const uint8_t *body = text->data ? text->data : (uint8_t *)"";
    struct s3_error e;
    struct leat_error err;
    if (u->rc == 0) {
        s3_error_parse(body, text->len, &e);
        if (e.code[0])
            upload_spoil(u,
                         error_set(&err, -EIO, "%.300s: the upload was not completed: %s: %s", u->target.uri,
                                   e.code, e.message),
                         &err);
        else
            s3_completed_parse(body, text->len, u->etag, sizeof(u->etag));
    }
    if (u->rc < 0)
        upload_abort(u);
    else
        upload_over(u);
}

static void part_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct part *p = container_of(rq, struct part, rq);
    struct upload *u = p->upload;
    unsigned number = p->number;
    p->number = 0;
    if (u->step != UPLOAD_ABORT)
        upload_spoil(u, rc, err);
    switch (u->step) {
    case UPLOAD_ONE:
        if (rc == 0 && p->etag && strlen(p->etag) < sizeof(u->etag))
            strcpy(u->etag, p->etag);
        upload_over(u);
        return;
    case UPLOAD_BEGIN:
        upload_begun(u, &rq->text);
        return;
    case UPLOAD_PARTS:
        if (rc == 0) {
            u->etags[number - 1] = TAKE_PTR(p->etag);
            u->ndone++;
        }
        upload_parts(u);
        return;
    case UPLOAD_COMPLETE:
        upload_completed(u, &rq->text);
        return;
    case UPLOAD_ABORT:
        upload_over(u);
    }
}

/* All of it in one request, up to so many bytes. What fails here is over at once. */
static int upload_start(struct upload *u, uint64_t one_bytes, struct leat_error *err)
{
    struct part *p = &u->parts[0];
    if (u->bytes > one_bytes) {
        u->step = UPLOAD_BEGIN;
        u->part_bytes = MAX(u->from ? ONE_COPY : PART_BYTES, align_up(div_up(u->bytes, S3_PARTS_MAX), MIB));
        u->nparts = (unsigned)div_up(u->bytes, u->part_bytes);
        u->next = 1;
        u->etags = calloc(u->nparts, sizeof(*u->etags));
        return u->etags ? say(u, "POST", "uploads=", NULL) : -ENOMEM;
    }
    u->step = UPLOAD_ONE;
    if (!u->from && !(p->buf = malloc(u->bytes ? u->bytes : 1)))
        return -ENOMEM;
    return part_start(u, p, 0, u->bytes, err);
}

/* Its parts are taken away, which is waited for also if the user has gone: nothing else would do it. Not for
 * long: others wait for this thread. */
static void upload_cancel(struct upload *u)
{
    const atomic_bool *cancelled = u->b->config.cancelled;
    u->b->config.cancelled = NULL;
    u->op = NULL;
    u->cancelled = true;
    if (u->step == UPLOAD_ABORT && !u->over) { /* under way, with all the time of the world */
        request_cancel(&u->parts[0].rq);
        u->step = UPLOAD_PARTS;
    }
    upload_spoil(u, -ECANCELED, NULL);
    upload_abort(u);
    session_run(u->b, &u->over, NULL);
    u->b->config.cancelled = cancelled;
}

static int upload_new(struct s3_session *b, const char *uri, struct upload **ret_upload,
                      struct leat_error *err)
{
    struct upload *u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->b = b;
    for (unsigned i = 0; i < PARTS_AT_A_TIME; i++)
        u->parts[i].upload = u;
    int rc = target_parse(u->b, uri, &u->target, err);
    if (rc == 0 && !u->target.bucket)
        rc = error_set(err, LEAT_UNSUPPORTED, "%.300s: a plain web server is read only", u->target.shown);
    if (rc == 0 && !*u->target.key)
        rc = error_set(err, LEAT_INVALID, "%.300s: a bucket, where an object is wanted", uri);
    if (rc < 0) {
        upload_end(u);
        return rc;
    }
    *ret_upload = u;
    return 0;
}

static void upload_end(struct upload *u)
{
    for (unsigned i = 0; i < PARTS_AT_A_TIME; i++) {
        request_fini(&u->parts[i].rq);
        free(u->parts[i].buf);
        free(u->parts[i].etag);
    }
    for (unsigned i = 0; u->etags && i < u->nparts; i++)
        free(u->etags[i]);
    free(u->etags);
    free(u->from);
    free(u->lines);
    bytes_out_fini(&u->body);
    target_fini(&u->target);
    free(u);
}

static int upload_headers(struct upload *u, const char *headers, struct leat_error *err)
{
    static_assert(SIGV4_HEADERS_MAX >= BACKEND_HEADERS + 16, "what the requests themselves say comes along");
    u->lines = headers ? strdup(headers) : NULL;
    if (headers && !u->lines)
        return -ENOMEM;
    char *at = u->lines;
    struct backend_header h;
    while (backend_header_next(&at, &h)) {
        if (u->nheaders == ARRAY_LEN(u->headers))
            return error_set(err, LEAT_INVALID, "%.300s: more than %u headers of an object", u->target.uri,
                             BACKEND_HEADERS);
        u->headers[u->nheaders++] = (struct s3_header){h.name, h.value};
    }
    return 0;
}

/* The name of what is copied, as its request says it. */
static int source_name(struct s3_session *b, const char *uri, char **ret_name, struct leat_error *err)
{
    struct target source;
    struct bytes_out name = {0};
    int rc = target_parse(b, uri, &source, err);
    if (rc < 0)
        return rc;
    if (!source.bucket) {
        rc = error_set(err, LEAT_UNSUPPORTED, "%.300s: not an object of S3", source.shown);
    } else {
        bytes_put(&name, "/", 1);
        http_escape(&name, source.bucket->name, strlen(source.bucket->name), false);
        bytes_put(&name, "/", 1);
        http_escape(&name, source.key, strlen(source.key), true);
        bytes_put(&name, "", 1);
    }
    target_fini(&source);
    *ret_name = rc == 0 && !name.failed ? (char *)name.data : NULL;
    if (!*ret_name)
        bytes_out_fini(&name);
    return rc == 0 && !*ret_name ? -ENOMEM : rc;
}

int s3_copy_start(struct s3_session *b, struct backend_op *op, struct leat_error *err)
{
    struct upload *u;
    char *name;
    int rc = source_name(b, op->from, &name, err);
    if (rc < 0)
        return rc;
    rc = upload_new(b, op->uri, &u, err);
    if (rc < 0) {
        free(name);
        return rc;
    }
    u->op = op;
    u->from = name;
    u->from_etag = op->from_etag ? op->from_etag : "";
    u->bytes = op->bytes;
    rc = upload_start(u, ONE_COPY, err);
    if (rc < 0)
        upload_end(u);
    else
        op->work = u;
    return rc;
}

void s3_copy_cancel(struct backend_op *op)
{
    struct upload *u = TAKE_PTR(op->work);
    upload_cancel(u);
    upload_end(u);
}

int s3_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
           const char *headers, char *ret_etag, struct leat_error *err)
{
    struct upload *u;
    int rc = upload_new(session_of(base), uri, &u, err);
    if (rc < 0)
        return rc;
    u->fd = fd;
    u->offset = offset;
    u->bytes = bytes;
    rc = upload_headers(u, headers, err);
    if (rc == 0)
        rc = upload_start(u, ONE_PUT, err);
    if (rc == 0 && (rc = session_run(u->b, &u->over, err)) < 0)
        upload_cancel(u);
    else if (rc == 0 && (rc = u->rc) < 0 && err)
        *err = u->err;
    if (rc == 0 && ret_etag)
        strcpy(ret_etag, u->etag);
    upload_end(u);
    return rc;
}
