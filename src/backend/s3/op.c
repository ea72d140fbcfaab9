/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c: what is asked of one object beside its bytes (copies: put.c), any number at a time.
 *
 * Happy path: HEAD says what an object is: length, ETag, time, checksums, and what was stored with it. DELETE
 * takes it away.
 * Failure modes: a link is signed for one method, GET, and some servers have no other: then a GET of one byte
 * is asked what HEAD was, or (an object of no bytes has no first one: 416) of all. If that is refused too,
 * the first answer counts.
 * Invariants: done() runs once, in s3_wait; after s3_op_cancel nothing of an operation is touched.
 */
#include <ctype.h>

#include "backend/s3/session.h"

enum way { WAY_HEAD, WAY_RANGE, WAY_WHOLE, WAY_DELETE };

struct s3_op {
    struct s3_exchange rq;
    struct target target;
    struct backend_op *op;
    enum way way;
    struct backend_stat stat;
    int first_rc; /* what HEAD was answered with, and why */
    struct leat_error first;
};

void s3_stat_headers(const struct http_reader *reader, const char *buf, struct backend_stat *stat)
{
    struct bytes_out lines = {0};
    struct http_text etag = http_header(reader, buf, "etag");
    time_t modified;
    if (etag.len < sizeof(stat->etag) && !(etag.len > 2 && memcmp(etag.data, "W/", 2) == 0))
        http_text_copy(etag, stat->etag, sizeof(stat->etag));
    if (http_date_parse(http_header(reader, buf, "last-modified"), &modified))
        stat->modified = modified;
    for (unsigned i = 0; i < reader->nheaders; i++) {
        struct http_text name, value;
        char lower[S3_HEADER_NAME_MAX];
        http_header_at(reader, buf, i, &name, &value);
        if (name.len >= sizeof(lower))
            continue;
        for (size_t c = 0; c < name.len; c++)
            lower[c] = (char)tolower((unsigned char)name.data[c]);
        lower[name.len] = 0;
        if (!backend_header_kept(lower) || lines.len + name.len + value.len + 2 >= sizeof(stat->headers))
            continue;
        bytes_put(&lines, lower, name.len);
        bytes_put(&lines, ":", 1);
        bytes_put(&lines, value.data, value.len);
        bytes_put(&lines, "\n", 1);
    }
    if (lines.len && !lines.failed)
        memcpy(stat->headers, lines.data, lines.len);
    stat->headers[lines.failed ? 0 : lines.len] = 0;
    bytes_out_fini(&lines);
    stat->crc = s3_crc_of(reader, buf);
}

static struct s3_op *s3_op_of(struct s3_exchange *rq)
{
    return container_of(rq, struct s3_op, rq);
}

static int stat_head(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                     struct leat_error *err)
{
    struct backend_stat *stat = &s3_op_of(rq)->stat;
    uint64_t first, last;
    bool told =
        reader->status == 206
            ? http_content_range(http_header(reader, buf, "content-range"), &first, &last, &stat->bytes)
            : http_text_u64(http_header(reader, buf, "content-length"), &stat->bytes);
    if (told && *rq->say.method == 'G' && reader->status != 206 && stat->bytes)
        return error_set(err, LEAT_UNSUPPORTED, "all of the object, where its length was requested");
    if (!told || stat->bytes == UINT64_MAX) /* "bytes 0-0/" and a star */
        return error_set(err, LEAT_UNSUPPORTED, "the server does not report its length");
    s3_stat_headers(reader, buf, stat);
    return 0;
}

static void s3_op_free(struct s3_op *o)
{
    request_fini(&o->rq);
    target_fini(&o->target);
    free(o);
}

void s3_op_over(struct s3_session *b, struct backend_op *op, int rc, const struct leat_error *err)
{
    b->npending--;
    b->ended++;
    op->rc = rc;
    op->done(op, rc, rc < 0 ? err : NULL);
}

static void op_finished(struct s3_exchange *rq, int rc, const struct leat_error *err);

static void op_ask(struct s3_session *b, struct s3_op *o, enum way way)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    bool stat = way != WAY_DELETE;
    o->way = way;
    o->stat = (struct backend_stat){0};
    request_fini(&o->rq);
    o->rq = (struct s3_exchange){.b = b,
                                 .target = &o->target,
                                 .say = {.method = way == WAY_DELETE ? "DELETE"
                                                   : way == WAY_HEAD ? "HEAD"
                                                                     : "GET",
                                         .headers = &checked,
                                         .nheaders = stat && o->target.bucket ? 1 : 0,
                                         .ranged = way == WAY_RANGE},
                                 .repeatable = true,
                                 .until_ns = o->op->deadline_ns,
                                 .on_head = stat ? stat_head : NULL,
                                 .finished = op_finished};
    request_start(&o->rq);
}

static void op_finished(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct s3_op *o = s3_op_of(rq);
    struct s3_session *b = rq->b;
    struct leat_error why = err ? *err : (struct leat_error){0};
    int status = rq->status;
    bool other = rc < 0 && rc != -ECANCELED && !o->target.bucket;
    if (other && o->way == WAY_HEAD && (status == 403 || status == 405 || status == 501)) {
        o->first_rc = rc;
        o->first = why;
        op_ask(b, o, WAY_RANGE);
        return;
    }
    if (other && o->way == WAY_RANGE && status == 416) {
        op_ask(b, o, WAY_WHOLE);
        return;
    }
    if (rc < 0 && rc != -ECANCELED && o->first_rc < 0) {
        rc = o->first_rc;
        why = o->first;
    }
    if (rc == 0 && o->way != WAY_DELETE)
        *o->op->stat = o->stat;
    struct backend_op *op = o->op;
    s3_op_free(o);
    s3_op_over(b, op, rc, &why);
}

static int op_start(struct s3_session *b, struct backend_op *op, struct leat_error *err)
{
    struct s3_op *o = calloc(1, sizeof(*o));
    if (!o)
        return -ENOMEM;
    o->op = op;
    int rc = target_parse(b, op->uri, &o->target, err);
    if (rc == 0 && !o->target.bucket && op->kind == BACKEND_DELETE)
        rc = error_set(err, LEAT_UNSUPPORTED, "%.300s: a plain web server is read only", o->target.shown);
    else if (rc == 0 && o->target.bucket && !*o->target.key)
        rc = error_set(err, LEAT_INVALID, "%.300s: a bucket, where an object is wanted", op->uri);
    if (rc < 0) {
        s3_op_free(o);
        return rc;
    }
    op->work = o;
    op_ask(b, o, op->kind == BACKEND_STAT ? WAY_HEAD : WAY_DELETE);
    return 0;
}

void s3_op_submit(struct backend *base, struct backend_op *op)
{
    struct s3_session *b = session_of(base);
    struct leat_error err = {0};
    int rc = op->kind == BACKEND_COPY ? s3_copy_start(b, op, &err) : op_start(b, op, &err);
    b->npending++;
    if (rc == 0)
        return;
    backend_op_ended(op, rc, &err, &b->ended_ops);
    loop_timer_set(b->loop, &b->pump, 1);
}

void s3_op_cancel(struct backend *base, struct backend_op *op)
{
    struct s3_session *b = session_of(base);
    b->npending--;
    if (!op->work)
        return;
    if (op->kind == BACKEND_COPY) {
        s3_copy_cancel(op);
        return;
    }
    struct s3_op *o = TAKE_PTR(op->work);
    request_cancel(&o->rq);
    s3_op_free(o);
}

struct waited {
    bool over;
    struct leat_error err;
};

static void waited_done(struct backend_op *op, int rc, const struct leat_error *err)
{
    struct waited *w = op->user;
    w->over = true;
    if (rc < 0)
        w->err = *err;
}

int s3_op_run(struct backend *base, struct backend_op *op, struct leat_error *err)
{
    struct waited w = {0};
    op->done = waited_done;
    op->user = &w;
    backend_op_submit(base, op);
    int rc = session_run(session_of(base), &w.over, err);
    if (rc < 0) {
        backend_op_cancel(base, op);
        return rc;
    }
    if (op->rc < 0 && err)
        *err = w.err;
    return op->rc;
}
