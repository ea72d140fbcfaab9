/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket.c: a bucket made at a Leat server, alone or in front of another one.
 *
 * Failure modes: Amazon gets no request: it would make a plain bucket, and learn the remote's keys. Another
 * server that speaks S3 makes a plain bucket too, which shows by what its answer lacks. Not asked twice: the
 * second time it would be there already.
 */
#include "backend/s3/session.h"

struct making {
    struct s3_exchange rq;
    struct target target;
    struct s3_header header;
    bool over, understood;
    int rc;
    struct leat_error err;
};

static int making_head(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                       struct leat_error *err)
{
    struct making *m = container_of(rq, struct making, rq);
    (void)err;
    m->understood = http_header(reader, buf, "x-leat-remote").data != NULL;
    return 0;
}

static void making_over(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct making *m = container_of(rq, struct making, rq);
    m->rc = rc;
    if (err)
        m->err = *err;
    m->over = true;
}

static int make(struct making *m, struct s3_session *b, const char *remote, struct leat_error *err)
{
    m->header = (struct s3_header){"x-leat-remote", remote};
    m->rq = (struct s3_exchange){
        .b = b,
        .target = &m->target,
        .say = {.method = "PUT",
                .has_body = true,
                .headers = remote ? &m->header : NULL,
                .nheaders = remote != NULL},
        .of_bucket = true,
        .on_head = making_head,
        .finished = making_over,
    };
    request_start(&m->rq);
    int rc = session_run(b, &m->over, err);
    if (rc < 0) {
        request_cancel(&m->rq);
        return rc;
    }
    if (m->rq.status == 409)
        return error_set(err, -EEXIST, "there is a bucket %s already", m->target.bucket->name);
    if (m->rc < 0 && err)
        *err = m->err;
    if (m->rc == 0 && remote && !m->understood)
        return error_set(err, LEAT_UNSUPPORTED,
                         "%s is no Leat server: it made a plain bucket %s, which has no remote",
                         m->target.bucket->endpoint.host, m->target.bucket->name);
    return m->rc;
}

int s3_bucket_create(struct backend *base, const char *uri, const char *remote, struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    struct making *m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    int rc = target_parse(b, uri, &m->target, err);
    if (rc == 0 && (!m->target.bucket || m->target.key[0]))
        rc = error_set(err, LEAT_INVALID, "%.300s: a bucket is s3://NAME", uri);
    else if (rc == 0 && m->target.bucket->endpoint.aws)
        rc = error_set(err, LEAT_UNSUPPORTED,
                       "buckets are made at a Leat server, and this is Amazon's S3: give the server's "
                       "address (--endpoint-url), as http://127.0.0.1:9000");
    if (rc == 0)
        rc = make(m, b, remote, err);
    request_fini(&m->rq);
    target_fini(&m->target);
    free(m);
    return rc;
}
