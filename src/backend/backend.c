/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: hands each call on to the session's implementation, and what all of them share. */
#include "backend/dir/dir.h"
#include "backend/ops.h"

#include <stdio.h>

#include "wire/address.h"

bool backend_uri(const char *uri)
{
    return address_is_remote(address_of(uri));
}

char *backend_uri_shown(const char *uri, char *out, size_t cap)
{
    bool web = backend_uri(uri) && !s3_uri_is(uri);
    if (!web) {
        snprintf(out, cap, "%s", uri);
        return out;
    }
    size_t scheme = (size_t)(strstr(uri, "//") + 2 - uri), query = strcspn(uri, "?#"),
           host = scheme + strcspn(uri + scheme, "/?#");
    const char *at = memrchr(uri + scheme, '@', host - scheme);
    size_t from = at ? (size_t)(at + 1 - uri) : scheme;
    snprintf(out, cap, "%.*s%.*s%s", (int)scheme, uri, (int)(query - from), uri + from,
             uri[query] == '?' ? "?..." : "");
    return out;
}

int backend_key_check(const char *uri, const char *key, struct leat_error *err)
{
    struct s3_uri s3;
    const char *wrong = key ? dir_key_wrong(key) : NULL;
    return wrong ? error_set(err, LEAT_INVALID, "%.300s: %s", uri, wrong)
           : key ? 0
                 : s3_uri_parse(uri, &s3, err);
}

bool backend_header_kept(const char *name)
{
    static const char *const kept[] = {"content-type",        "content-encoding", "content-language",
                                       "content-disposition", "cache-control",    "expires"};
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        if (strcmp(name, kept[i]) == 0)
            return true;
    }
    return strncmp(name, "x-amz-meta-", 11) == 0;
}

bool backend_header_next(char **at, struct backend_header *ret_header)
{
    char *line = *at;
    if (!line || !*line)
        return false;
    char *end = strchr(line, '\n'), *colon = strchr(line, ':');
    if (!end || !colon || colon > end)
        return false;
    *end = *colon = 0;
    *ret_header = (struct backend_header){line, colon + 1};
    *at = end + 1;
    return true;
}

int backend_new(const struct backend_config *config, struct backend **ret_backend, struct leat_error *err)
{
    if (config->store)
        return backend_stored_new(config, ret_backend, err);
    return config->folder ? backend_dir_new(config, ret_backend, err)
                          : backend_s3_new(config, ret_backend, err);
}

void backend_free(struct backend *b)
{
    if (b)
        b->ops->free(b);
}

int backend_list(struct backend *b, const char *uri, bool recursive, const char *after,
                 int (*object)(void *user, const struct backend_object *object), void *user,
                 struct leat_error *err)
{
    return b->ops->list(b, uri, recursive, after, object, user, err);
}

int backend_stat_object(struct backend *b, const char *uri, struct backend_stat *ret_stat,
                        struct leat_error *err)
{
    struct backend_op op = {.kind = BACKEND_STAT, .uri = uri, .stat = ret_stat};
    return b->ops->op_run(b, &op, err);
}

int backend_first(struct backend *b, const char *uri, void *dst, uint64_t room, bool whole,
                  struct backend_stat *ret_stat, uint64_t *ret_bytes, struct leat_error *err)
{
    return b->ops->first ? b->ops->first(b, uri, dst, room, whole, ret_stat, ret_bytes, err)
                         : error_set(err, LEAT_UNSUPPORTED, "%.300s: this kind of source has no status", uri);
}

int backend_open(struct backend *b, const char *uri, const char *etag, uint64_t bytes,
                 struct backend_file **ret_file, struct leat_error *err)
{
    return b->ops->open(b, uri, etag, bytes, ret_file, err);
}

void backend_expect_all(struct backend_file *file)
{
    if (file->ops->expect_all)
        file->ops->expect_all(file);
}

void backend_expect_modified(struct backend_file *file, int64_t modified)
{
    if (file->ops->expect_modified)
        file->ops->expect_modified(file, modified);
}

void backend_close(struct backend_file *file)
{
    if (file)
        file->ops->close(file);
}

void backend_submit(struct backend *b, struct backend_read *read)
{
    b->ops->submit(b, read);
}

void backend_cancel(struct backend *b, struct backend_read *read)
{
    b->ops->cancel(b, read);
}

void backend_op_submit(struct backend *b, struct backend_op *op)
{
    op->work = NULL;
    op->why = NULL;
    list_init(&op->node);
    b->ops->op_submit(b, op);
}

void backend_op_cancel(struct backend *b, struct backend_op *op)
{
    b->ops->op_cancel(b, op);
    list_remove(&op->node);
    free(TAKE_PTR(op->why));
}

void backend_op_ended(struct backend_op *op, int rc, const struct leat_error *err, struct list *ended)
{
    op->work = NULL;
    op->rc = rc;
    op->why = rc < 0 && err->message[0] ? malloc(sizeof(*err)) : NULL;
    if (op->why)
        *op->why = *err;
    list_remove(&op->node);
    list_push_back(ended, &op->node);
}

unsigned backend_ops_deliver(struct list *ended, unsigned *pending)
{
    unsigned n = 0;
    struct backend_op *op;
    struct list now; /* a done() may cancel any of them, and may make others end */
    list_init(&now);
    while ((op = list_first(ended, struct backend_op, node))) {
        list_remove(&op->node);
        list_push_back(&now, &op->node);
    }
    for (; (op = list_first(&now, struct backend_op, node)); n++) {
        list_remove(&op->node);
        --*pending;
        struct leat_error *why = TAKE_PTR(op->why), bare = {0};
        char shown[BACKEND_SHOWN];
        if (op->rc < 0 && !why)
            error_sys(&bare, op->rc, "%s", backend_uri_shown(op->uri, shown, sizeof(shown)));
        op->done(op, op->rc, op->rc == 0 ? NULL : why ? why : &bare);
        free(why);
    }
    return n;
}

int backend_wait(struct backend *b, unsigned min_done, int timeout_ms)
{
    return b->ops->wait(b, min_done, timeout_ms);
}

void backend_wake(struct backend *b)
{
    b->ops->wake(b);
}

int64_t backend_pread(struct backend *b, struct backend_file *file, void *dst, uint64_t bytes,
                      uint64_t offset, struct leat_error *err)
{
    return b->ops->pread(b, file, dst, bytes, offset, err);
}

int backend_put(struct backend *b, const char *uri, int fd, uint64_t offset, uint64_t bytes,
                const char *headers, char ret_etag[BACKEND_ETAG_MAX], struct leat_error *err)
{
    return b->ops->put(b, uri, fd, offset, bytes, headers, ret_etag, err);
}

int backend_copy(struct backend *b, const char *from, const char *etag, uint64_t bytes, const char *to,
                 struct leat_error *err)
{
    struct backend_op op = {.kind = BACKEND_COPY, .uri = to, .from = from, .from_etag = etag, .bytes = bytes};
    return b->ops->op_run(b, &op, err);
}

int backend_delete(struct backend *b, const char *uri, struct leat_error *err)
{
    struct backend_op op = {.kind = BACKEND_DELETE, .uri = uri};
    return b->ops->op_run(b, &op, err);
}

int backend_bucket_create(struct backend *b, const char *uri, const char *remote, struct leat_error *err)
{
    return b->ops->bucket_create
               ? b->ops->bucket_create(b, uri, remote, err)
               : error_set(err, LEAT_UNSUPPORTED, "%.300s: buckets are made at S3 servers", uri);
}

void backend_stats(const struct backend *b, struct backend_stats *ret_stats)
{
    b->ops->stats(b, ret_stats);
}
