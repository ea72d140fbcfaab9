/* SPDX-License-Identifier: Apache-2.0 */
/* What an object is: length, ETag, time, checksums, and what was stored with it. */
#include <ctype.h>

#include "backend/s3/session.h"

struct head {
    struct s3_exchange rq;
    struct backend_stat stat;
    int rc;
    struct leat_error err;
    bool over;
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

static int head_arrived(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                        struct leat_error *err)
{
    struct head *h = container_of(rq, struct head, rq);
    uint64_t first, last;
    bool told =
        reader->status == 206
            ? http_content_range(http_header(reader, buf, "content-range"), &first, &last, &h->stat.bytes)
            : http_text_u64(http_header(reader, buf, "content-length"), &h->stat.bytes);
    if (told && *rq->say.method == 'G' && reader->status != 206 && h->stat.bytes)
        return error_set(err, LEAT_UNSUPPORTED, "all of the object, where its length was requested");
    if (!told || h->stat.bytes == UINT64_MAX) /* "bytes 0-0/" and a star */
        return error_set(err, LEAT_UNSUPPORTED, "the server does not report its length");
    s3_stat_headers(reader, buf, &h->stat);
    return 0;
}

static void head_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct head *h = container_of(rq, struct head, rq);
    h->rc = rc;
    if (err)
        h->err = *err;
    h->over = true;
}

/* HEAD, or a GET, of one byte or (of what should have none) of all. */
static int stat_ask(struct s3_session *b, struct target *target, const char *method, bool ranged,
                    struct backend_stat *ret_stat, int *ret_status, struct leat_error *err)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    struct head h = {.rq = {.b = b,
                            .target = target,
                            .say = {.method = method,
                                    .headers = &checked,
                                    .nheaders = target->bucket ? 1 : 0,
                                    .ranged = ranged},
                            .repeatable = true,
                            .on_head = head_arrived,
                            .finished = head_over}};
    request_start(&h.rq);
    int rc = session_run(b, &h.over, err);
    if (rc < 0) {
        request_cancel(&h.rq);
    } else if (h.rc < 0) {
        rc = h.rc;
        if (err)
            *err = h.err;
    } else {
        *ret_stat = h.stat;
    }
    *ret_status = h.rq.status;
    request_fini(&h.rq);
    return rc;
}

int s3_stat(struct backend *base, const char *uri, struct backend_stat *ret_stat, struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    struct target target;
    int status, rc = target_parse(b, uri, &target, err);
    if (rc < 0)
        return rc;
    if (target.bucket && !*target.key) {
        target_fini(&target);
        return error_set(err, LEAT_INVALID, "%.300s: a bucket, where an object is wanted", uri);
    }
    rc = stat_ask(b, &target, "HEAD", false, ret_stat, &status, err);
    /* A link is signed for one method, GET, and some servers have no other. An object of no bytes has no first one to ask for (416). If that is
     * refused too, the first answer is told. */
    if (rc < 0 && !target.bucket && (status == 403 || status == 405 || status == 501)) {
        int again = stat_ask(b, &target, "GET", true, ret_stat, &status, NULL);
        if (again < 0 && status == 416)
            again = stat_ask(b, &target, "GET", false, ret_stat, &status, NULL);
        rc = again == 0 || again == -ECANCELED ? again : rc;
    }
    target_fini(&target);
    return rc;
}
