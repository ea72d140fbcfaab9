/* SPDX-License-Identifier: Apache-2.0 */
/*
 * first.c: an object's first bytes, and by the same answer what it is: one round trip, where a HEAD and a GET
 * are two.
 *
 * Happy path: the answer to a range has the object's length in Content-Range; one to a request for all of it
 * in Content-Length, with its checksum, which answers to ranges lack.
 * Failure modes: an answer that does not say how long the object is, or is longer than there is room for, is
 * LEAT_UNSUPPORTED, and ends its connection: s3_stat and ranges do it then.
 */
#include "backend/s3/session.h"

struct first {
    struct s3_exchange rq;
    struct target target;
    struct backend_stat stat;
    uint64_t room, bytes;
    bool over;
    int rc;
    struct leat_error err;
};

static int first_head(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                      struct leat_error *err)
{
    struct first *f = container_of(rq, struct first, rq);
    uint64_t begin = 0, last = 0, total = UINT64_MAX;
    f->stat = (struct backend_stat){0};
    if (reader->status == 206) {
        if (!http_content_range(http_header(reader, buf, "content-range"), &begin, &last, &total) || begin ||
            total == UINT64_MAX || last + 1 != MIN(total, f->room))
            return error_set(err, LEAT_UNSUPPORTED, "an answer without a Content-Range that makes sense");
        f->bytes = last + 1;
    } else {
        f->bytes = total = reader->body == HTTP_BODY_LENGTH ? reader->body_bytes : UINT64_MAX;
    }
    if (f->bytes > f->room)
        return error_set(err, LEAT_UNSUPPORTED, "all of the object, which is too much");
    f->stat.bytes = total;
    s3_stat_headers(reader, buf, &f->stat);
    if (f->bytes != total) /* of these bytes alone, if there is one */
        f->stat.crc.kind = S3_CRC_NONE;
    return 0;
}

static int first_check(struct s3_exchange *rq, struct leat_error *err)
{
    const struct first *f = container_of(rq, struct first, rq);
    return rq->call.received == f->bytes
               ? 0
               : error_set(err, LEAT_CORRUPT, "%llu bytes received, where %llu were announced",
                           (unsigned long long)rq->call.received, (unsigned long long)f->bytes);
}

static void first_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct first *f = container_of(rq, struct first, rq);
    f->rc = rc;
    if (err)
        f->err = *err;
    f->over = true;
}

int s3_first(struct backend *base, const char *uri, void *dst, uint64_t room, bool whole,
             struct backend_stat *ret_stat, uint64_t *ret_bytes, struct leat_error *err)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    struct s3_session *b = session_of(base);
    struct first *f = calloc(1, sizeof(*f));
    int rc = f ? target_parse(b, uri, &f->target, err) : -ENOMEM;
    if (rc < 0) {
        free(f);
        return rc;
    }
    bool ours = f->target.bucket && *f->target.key;
    if (!ours)
        rc = error_set(err, LEAT_UNSUPPORTED, "%.300s: no object of a bucket", uri);
    f->room = room;
    f->rq = (struct s3_exchange){.b = b,
                                 .target = &f->target,
                                 .say = {.method = "GET",
                                         .ranged = !whole,
                                         .last = room - 1,
                                         .headers = &checked,
                                         .nheaders = whole ? 1 : 0},
                                 .repeatable = true,
                                 .on_head = first_head,
                                 .dst = pieces_one(dst, room),
                                 .dst_bytes = room,
                                 .check = first_check,
                                 .finished = first_over};
    if (ours) {
        request_start(&f->rq);
        rc = session_run(b, &f->over, err);
        if (rc < 0)
            request_cancel(&f->rq);
        else if ((rc = f->rc) < 0 && err)
            *err = f->err;
    }
    if (rc == 0) {
        *ret_stat = f->stat;
        *ret_bytes = f->bytes;
    }
    request_fini(&f->rq);
    target_fini(&f->target);
    free(f);
    return rc;
}
