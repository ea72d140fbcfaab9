/* SPDX-License-Identifier: Apache-2.0 */
/* Lists and HEAD. The next page is asked for as soon as its token is known, before the objects of this one are handed on. */
#include <ctype.h>
#include <stdio.h>

#include "backend/s3/session.h"

struct page {
    struct request rq;
    struct bytes_out query;
    struct s3_list *list;
    int rc;
    struct leat_error err;
    bool over;
};

struct listing {
    struct session *b;
    struct target target;
    bool recursive;
    const char *after; /* or NULL */
    size_t prefix_len; /* of the key that was given */
    char *uri;         /* of an object: room for the longest */
    size_t bucket_len; /* "s3://bucket/" */
    int (*object)(void *user, const struct backend_object *object);
    void *user;
    char *token; /* of the page that is under way */
    struct leat_error *err;
};

static int on_object(void *user, const struct s3_object *o)
{
    struct listing *l = user;
    if (strncmp(o->key, l->target.key, l->prefix_len) != 0)
        return error_set(l->err, LEAT_CORRUPT, "list of objects: a key of another place than was asked for");
    memcpy(l->uri + l->bucket_len, o->key, o->key_len + 1);
    struct backend_object out = {
        .uri = l->uri,
        .name = l->uri + l->bucket_len + l->prefix_len,
        .bytes = o->bytes,
        .etag = strlen(o->etag) < BACKEND_ETAG_MAX ? o->etag : "",
        .modified = o->modified,
        .prefix = o->prefix,
    };
    return l->object(l->user, &out);
}

static void page_over(struct request *rq, int rc, const struct leat_error *err)
{
    struct page *p = container_of(rq, struct page, rq);
    p->rc = rc;
    if (err)
        p->err = *err;
    p->over = true;
}

/* `token`: of the page, or NULL for the first. */
static int page_begin(struct page *p, struct listing *l, const char *token)
{
    *p = (struct page){.rc = 0};
    if (token)
        s3_query_put(&p->query, "continuation-token", token);
    if (!l->recursive)
        s3_query_put(&p->query, "delimiter", "/");
    s3_query_put(&p->query, "encoding-type", "url");
    s3_query_put(&p->query, "list-type", "2");
    if (l->prefix_len)
        s3_query_put(&p->query, "prefix", l->target.key);
    if (l->after && !token)
        s3_query_put(&p->query, "start-after", l->after);
    bytes_put(&p->query, "", 1);
    if (p->query.failed) {
        bytes_out_fini(&p->query);
        return -ENOMEM;
    }
    p->rq = (struct request){
        .b = l->b,
        .target = &l->target,
        .say = {.method = "GET", .query = (const char *)p->query.data},
        .of_bucket = true,
        .repeatable = true,
        .finished = page_over,
    };
    request_start(&p->rq);
    return 0;
}

static void page_fini(struct page *p)
{
    request_cancel(&p->rq);
    request_fini(&p->rq);
    s3_list_free(p->list);
    bytes_out_fini(&p->query);
}

/* Waits for the page, begins the next one, and hands the objects on. 1: there is a next one. */
static int page_take(struct page *p, struct page *next, struct listing *l, struct leat_error *err)
{
    int rc = session_run(l->b, &p->over, err);
    if (rc < 0)
        return rc;
    if (p->rc < 0) {
        if (err)
            *err = p->err;
        return p->rc;
    }
    p->list = s3_list_new();
    if (!p->list)
        return -ENOMEM;
    rc = s3_list_feed(p->list, p->rq.text.data, p->rq.text.len, true, err);
    const char *token = rc == 0 ? s3_list_next(p->list) : NULL;
    if (token && strcmp(token, l->token ? l->token : "") == 0) {
        token = NULL;
        rc = error_set(err, LEAT_CORRUPT, "list of objects: it goes on where it was already, without end");
    }
    if (token) {
        free(l->token);
        l->token = strdup(token);
        rc = l->token ? page_begin(next, l, token) : -ENOMEM;
        if (rc < 0)
            token = NULL; /* there is no next page */
        /* It is on its way while the objects are handed on. A timer that a callback sets fires in the next turn. */
        for (int i = 0; i < 3 && rc == 0; i++)
            loop_turn(l->b->loop, 0);
    }
    if (rc == 0)
        rc = s3_list_objects(p->list, on_object, l, err);
    if (rc < 0) {
        if (token)
            page_fini(next);
        return err && err->message[0] && rc == LEAT_CORRUPT ? error_prefix(err, rc, "%.300s", l->target.shown)
                                                            : rc;
    }
    return token != NULL;
}

int s3_list(struct backend *base, const char *uri, bool recursive, const char *after,
            int (*object)(void *user, const struct backend_object *object), void *user,
            struct leat_error *err)
{
    struct session *b = session_of(base);
    struct listing l = {.b = b,
                        .recursive = recursive,
                        .after = after && *after ? after : NULL,
                        .object = object,
                        .user = user,
                        .err = err};
    struct page pages[2];
    unsigned now = 0;
    int rc = target_parse(b, uri, &l.target, err);
    if (rc == 0 && !l.target.bucket)
        rc = error_set(err, LEAT_UNSUPPORTED,
                       "%.300s: a plain web server has no lists: give the files one by one, or a pattern "
                       "like shard-{000..099}.tar",
                       uri);
    if (rc == 0) {
        l.prefix_len = strlen(l.target.key);
        l.bucket_len = strlen("s3://") + strlen(l.target.bucket->name) + 1;
        l.uri = malloc(l.bucket_len + S3_KEY_MAX + 1);
        rc = l.uri ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        snprintf(l.uri, l.bucket_len + 1, "s3://%s/", l.target.bucket->name);
        rc = page_begin(&pages[0], &l, NULL);
        if (rc < 0)
            bytes_out_fini(&pages[0].query);
    }
    if (rc == 0) {
        do {
            rc = page_take(&pages[now], &pages[!now], &l, err);
            page_fini(&pages[now]);
            now = !now;
        } while (rc == 1);
    }
    free(l.uri);
    free(l.token);
    target_fini(&l.target);
    return rc;
}

/* --- HEAD -------------------------------------------------------------------------------------------------------------- */

struct head {
    struct request rq;
    struct backend_stat stat;
    int rc;
    struct leat_error err;
    bool over;
};

void s3_stat_headers(const struct http_reader *reader, const char *buf, struct backend_stat *stat)
{
    struct bytes_out lines = {0};
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
    uint64_t sum;
    stat->has_crc32c = s3_sum_parse(http_header(reader, buf, "x-amz-checksum-crc32c"), 4, &sum);
    stat->crc32c = stat->has_crc32c ? (uint32_t)sum : 0;
    stat->has_crc64 = s3_sum_parse(http_header(reader, buf, "x-amz-checksum-crc64nvme"), 8, &stat->crc64);
}

static int head_arrived(struct request *rq, const struct http_reader *reader, const char *buf,
                        struct leat_error *err)
{
    struct head *h = container_of(rq, struct head, rq);
    struct http_text etag = http_header(reader, buf, "etag");
    time_t modified;
    if (!http_text_u64(http_header(reader, buf, "content-length"), &h->stat.bytes))
        return error_set(err, LEAT_UNSUPPORTED, "the server does not say how long it is");
    if (etag.len < sizeof(h->stat.etag) && !(etag.len > 2 && memcmp(etag.data, "W/", 2) == 0))
        http_text_copy(etag, h->stat.etag, sizeof(h->stat.etag));
    if (http_date_parse(http_header(reader, buf, "last-modified"), &modified))
        h->stat.modified = modified;
    s3_stat_headers(reader, buf, &h->stat);
    return 0;
}

static void head_over(struct request *rq, int rc, const struct leat_error *err)
{
    struct head *h = container_of(rq, struct head, rq);
    h->rc = rc;
    if (err)
        h->err = *err;
    h->over = true;
}

int s3_stat(struct backend *base, const char *uri, struct backend_stat *ret_stat, struct leat_error *err)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    struct session *b = session_of(base);
    struct target target;
    int rc = target_parse(b, uri, &target, err);
    if (rc < 0)
        return rc;
    if (target.bucket && !*target.key) {
        target_fini(&target);
        return error_set(err, LEAT_INVALID, "%.300s: a bucket, where an object is wanted", uri);
    }
    struct head h = {.rq = {.b = b,
                            .target = &target,
                            .say = {.method = "HEAD", .headers = &checked, .nheaders = target.bucket ? 1 : 0},
                            .repeatable = true,
                            .on_head = head_arrived,
                            .finished = head_over}};
    request_start(&h.rq);
    rc = session_run(b, &h.over, err);
    if (rc < 0) {
        request_cancel(&h.rq);
    } else if (h.rc < 0) {
        rc = h.rc;
        if (err)
            *err = h.err;
    } else {
        *ret_stat = h.stat;
    }
    request_fini(&h.rq);
    target_fini(&target);
    return rc;
}
