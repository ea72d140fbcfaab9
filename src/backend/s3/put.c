/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing: one PUT, or parts where an object is large. Each request carries a CRC32C of its bytes, which the server checks; over TLS the
 * payload is not hashed a second time for the signature. A copy is the same with requests that name their bytes (x-amz-copy-source), instead of
 * carrying them.
 *
 * Failure modes: a part that fails is tried again as any request; when one fails for good the upload is aborted, so that nobody pays for
 * parts that nobody sees. An upload whose process is killed leaves its parts to the bucket's lifecycle rule.
 */
#include <fcntl.h>
#include <stdio.h>

#include "backend/s3/session.h"
#include "base/crc32c.h"

#define ONE_PUT         (16 * MIB)
#define PART_BYTES      (16 * MIB)
#define PARTS_AT_A_TIME 4u
#define ONE_COPY        (64 * MIB) /* a server may say nothing while it copies: not for long */

struct part {
    struct s3_exchange rq;
    struct upload *upload;
    unsigned number; /* from 1; 0: idle */
    char *buf;
    uint64_t bytes;
    char query[S3_KEY_MAX + 64], crc[S3_CRC_TEXT], sha[SIGV4_SIGNATURE];
    struct s3_header headers[3 + BACKEND_HEADERS];
    char range[64]; /* of a copy */
    char *etag;
    int rc;
    struct leat_error err;
    bool over;
};

struct upload {
    struct s3_session *b;
    struct target target;
    int fd;
    uint64_t offset, bytes, part_bytes; /* of the file: where the object begins */
    unsigned nparts;
    char *from;            /* a copy: "/bucket/key", escaped; NULL: bytes are sent */
    const char *from_etag; /* it is this version, or fails; "": any */
    char *lines;           /* the object's headers, taken apart */
    struct s3_header headers[BACKEND_HEADERS];
    unsigned nheaders;
    char etag[BACKEND_ETAG_MAX];
    char id[1024];
    char **etags;
    bool turn; /* a request has ended */
    struct part parts[PARTS_AT_A_TIME];
};

static int part_head(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                     struct leat_error *err)
{
    struct part *p = container_of(rq, struct part, rq);
    struct http_text etag = http_header(reader, buf, "etag");
    free(p->etag);
    p->etag = etag.len ? strndup(etag.data, etag.len) : strdup("");
    return p->etag ? 0 : -ENOMEM;
}

static void part_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct part *p = container_of(rq, struct part, rq);
    p->rc = rc;
    if (err)
        p->err = *err;
    p->over = true;
    p->upload->turn = true;
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
    s3_completed_parse(body, text->len, etag, sizeof(etag));
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
    p->over = false;
    rq.b = u->b;
    rq.target = &u->target;
    rq.say.method = "PUT";
    rq.say.query = p->query[0] ? p->query : NULL;
    rq.say.has_body = true;
    rq.say.headers = p->headers;
    rq.say.nheaders = nheaders;
    rq.repeatable = true;
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

/* A request without payload of its own, or with some XML; waits for it. */
static int say(struct upload *u, const char *method, const char *query, const struct bytes_out *body,
               struct bytes_out *ret_text, struct leat_error *err)
{
    struct part *p = &u->parts[0];
    char sha[SIGV4_SIGNATURE];
    bool begins = query && strcmp(query, "uploads=") == 0;
    int rc = body ? sigv4_sha256(body->data, body->len, sha) : 0;
    if (rc < 0)
        return rc;
    p->over = false;
    request_fini(&p->rq);
    p->rq = (struct s3_exchange){
        .b = u->b,
        .target = &u->target,
        .say = {.method = method,
                .query = query,
                .payload = body ? sha : NULL,
                .has_body = strcmp(method, "DELETE") != 0,
                .content_length = body ? body->len : 0,
                .headers = begins ? u->headers : NULL,
                .nheaders = begins ? u->nheaders : 0},
        .body = body ? body->data : NULL,
        .body_len = body ? body->len : 0,
        .repeatable = true,
        .finished = part_over,
    };
    request_start(&p->rq);
    rc = session_run(u->b, &p->over, err);
    if (rc < 0) {
        request_cancel(&p->rq);
        return rc;
    }
    if (p->rc < 0 && err)
        *err = p->err;
    if (p->rc == 0 && ret_text) {
        *ret_text = p->rq.text;
        p->rq.text = (struct bytes_out){0};
    }
    return p->rc;
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

static int upload_parts(struct upload *u, struct leat_error *err)
{
    unsigned next = 1, done = 0;
    int rc = 0;
    while (rc == 0 && done < u->nparts) {
        for (unsigned i = 0; i < PARTS_AT_A_TIME && rc == 0; i++) {
            struct part *p = &u->parts[i];
            if (p->number && p->over) {
                rc = p->rc;
                if (rc < 0 && err)
                    *err = p->err;
                u->etags[p->number - 1] = TAKE_PTR(p->etag);
                p->number = 0;
                done++;
            }
            if (rc == 0 && !p->number && next <= u->nparts) {
                uint64_t at = (next - 1) * u->part_bytes;
                p->number = next++;
                part_query(u, p->number, p->query, sizeof(p->query));
                rc = part_start(u, p, at, MIN(u->part_bytes, u->bytes - at), err);
            }
        }
        bool moved = false;
        for (unsigned i = 0; i < PARTS_AT_A_TIME; i++)
            moved |= u->parts[i].number && u->parts[i].over;
        if (rc == 0 && done < u->nparts && !moved) {
            u->turn = false; /* one of them is over: any */
            rc = session_run(u->b, &u->turn, err);
        }
    }
    for (unsigned i = 0; i < PARTS_AT_A_TIME; i++) {
        request_cancel(&u->parts[i].rq);
        u->parts[i].number = 0;
    }
    return rc;
}

static int upload(struct upload *u, struct leat_error *err)
{
    struct bytes_out text = {0}, body = {0};
    char query[2 * sizeof(u->id) + 64];
    u->part_bytes = MAX(u->from ? ONE_COPY : PART_BYTES, align_up(div_up(u->bytes, S3_PARTS_MAX), MIB));
    u->nparts = (unsigned)div_up(u->bytes, u->part_bytes);
    u->etags = calloc(u->nparts, sizeof(*u->etags));
    int rc = u->etags ? say(u, "POST", "uploads=", NULL, &text, err) : -ENOMEM;
    if (rc == 0)
        rc = s3_upload_id_parse(text.data ? text.data : (uint8_t *)"", text.len, u->id, sizeof(u->id), err);
    bytes_out_fini(&text);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < PARTS_AT_A_TIME && rc == 0 && !u->from; i++) {
        free(u->parts[i].buf);
        u->parts[i].buf = malloc(u->part_bytes);
        rc = u->parts[i].buf ? 0 : -ENOMEM;
    }
    if (rc == 0)
        rc = upload_parts(u, err);
    part_query(u, 0, query, sizeof(query));
    if (rc == 0) {
        s3_complete_put(&body, u->etags, u->nparts);
        rc = body.failed ? -ENOMEM : say(u, "POST", query, &body, &text, err);
    }
    if (rc ==
        0) { /* 200 is said before the parts are put together: what went wrong then stands in the body */
        struct s3_error e;
        s3_error_parse(text.data ? text.data : (uint8_t *)"", text.len, &e);
        if (e.code[0])
            rc = error_set(err, -EIO, "%.300s: the upload was not completed: %s: %s", u->target.uri, e.code,
                           e.message);
        else
            s3_completed_parse(text.data ? text.data : (uint8_t *)"", text.len, u->etag, sizeof(u->etag));
    }
    if (rc < 0) { /* also when the user gave up: nobody else would take the parts away */
        const atomic_bool *cancelled = u->b->config.cancelled;
        u->b->config.cancelled = NULL;
        say(u, "DELETE", query, NULL, NULL, NULL);
        u->b->config.cancelled = cancelled;
    }
    bytes_out_fini(&text);
    bytes_out_fini(&body);
    return rc;
}

static int upload_begin(struct upload *u, const char *uri, struct leat_error *err)
{
    for (unsigned i = 0; i < PARTS_AT_A_TIME; i++)
        u->parts[i].upload = u;
    int rc = target_parse(u->b, uri, &u->target, err);
    if (rc == 0 && !u->target.bucket)
        rc = error_set(err, LEAT_UNSUPPORTED, "%.300s: a plain web server is read only", uri);
    if (rc == 0 && !*u->target.key)
        rc = error_set(err, LEAT_INVALID, "%.300s: a bucket, where an object is wanted", uri);
    return rc;
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

/* One request for all of it. */
static int put_once(struct upload *u, struct leat_error *err)
{
    struct part *p = &u->parts[0];
    int rc = 0;
    if (!u->from) {
        p->buf = malloc(u->bytes ? u->bytes : 1);
        rc = p->buf ? 0 : -ENOMEM;
    }
    if (rc == 0)
        rc = part_start(u, p, 0, u->bytes, err);
    if (rc < 0)
        return rc;
    rc = session_run(u->b, &p->over, err);
    if (rc < 0) {
        request_cancel(&p->rq);
    } else if (p->rc < 0) {
        rc = p->rc;
        if (err)
            *err = p->err;
    } else if (p->etag && strlen(p->etag) < sizeof(u->etag)) {
        strcpy(u->etag, p->etag);
    }
    return rc;
}

int s3_copy(struct backend *base, const char *from, const char *etag, uint64_t bytes, const char *uri,
            struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    struct target source;
    int rc = target_parse(b, from, &source, err);
    if (rc < 0)
        return rc;
    struct upload *u = source.bucket ? calloc(1, sizeof(*u)) : NULL;
    if (!u) {
        rc = source.bucket ? -ENOMEM
                           : error_set(err, LEAT_UNSUPPORTED, "%.300s: not an object of S3", source.shown);
        target_fini(&source);
        return rc;
    }
    struct bytes_out name = {0};
    bytes_put(&name, "/", 1);
    http_escape(&name, source.bucket->name, strlen(source.bucket->name), false);
    bytes_put(&name, "/", 1);
    http_escape(&name, source.key, strlen(source.key), true);
    bytes_put(&name, "", 1);
    target_fini(&source);
    u->b = b;
    u->from_etag = etag ? etag : "";
    u->bytes = bytes;
    rc = name.failed ? -ENOMEM : upload_begin(u, uri, err);
    if (rc == 0)
        u->from = strdup((const char *)name.data);
    bytes_out_fini(&name);
    if (rc == 0 && !u->from)
        rc = -ENOMEM;
    if (rc == 0)
        rc = bytes > ONE_COPY ? upload(u, err) : put_once(u, err);
    upload_end(u);
    return rc;
}

int s3_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
           const char *headers, char *ret_etag, struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    struct upload *u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->b = b;
    u->fd = fd;
    u->offset = offset;
    u->bytes = bytes;
    int rc = upload_begin(u, uri, err);
    if (rc == 0)
        rc = upload_headers(u, headers, err);
    if (rc == 0)
        rc = bytes > ONE_PUT ? upload(u, err) : put_once(u, err);
    if (rc == 0 && ret_etag)
        strcpy(ret_etag, u->etag);
    upload_end(u);
    return rc;
}

int s3_delete(struct backend *base, const char *uri, struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    struct upload *u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->b = b;
    int rc = upload_begin(u, uri, err);
    if (rc == 0)
        rc = say(u, "DELETE", NULL, NULL, NULL, err);
    upload_end(u);
    return rc;
}
