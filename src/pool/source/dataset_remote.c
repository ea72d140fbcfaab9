/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_remote.c: each operation is one of backend.h, which retries, pins ETags and words its errors. */
#include "pool/source/dataset_remote.h"

#include <stdio.h>

static int remote_stat_object(void *user, const char *uri, struct dataset_stat *ret_stat,
                              struct leat_error *err)
{
    struct backend_stat stat;
    int rc = backend_stat_object(user, uri, &stat, err);
    if (rc < 0)
        return rc;
    ret_stat->bytes = stat.bytes;
    ret_stat->modified = stat.modified;
    _Static_assert(sizeof(ret_stat->etag) == sizeof(stat.etag), "one limit");
    memcpy(ret_stat->etag, stat.etag, sizeof(stat.etag));
    return 0;
}

struct list_ctx {
    int (*object)(void *ctx, const struct dataset_object *object);
    void *ctx;
};

static int listed(void *user, const struct backend_object *o)
{
    struct list_ctx *l = user;
    struct dataset_object object = {.uri = o->uri,
                                    .name = o->name,
                                    .bytes = o->bytes,
                                    .etag = o->etag ? o->etag : "",
                                    .modified = o->modified,
                                    .prefix = o->prefix};
    return l->object(l->ctx, &object);
}

static int remote_list(void *user, const char *uri, bool recursive,
                       int (*object)(void *ctx, const struct dataset_object *object), void *ctx,
                       struct leat_error *err)
{
    struct list_ctx l = {object, ctx};
    return backend_list(user, uri, recursive, NULL, listed, &l, err);
}

static int remote_open(void *user, const char *uri, const char *etag, uint64_t bytes, void **ret_file,
                       struct leat_error *err)
{
    struct backend_file *file;
    int rc = backend_open(user, uri, etag, bytes, &file, err);
    if (rc == 0)
        *ret_file = file;
    return rc;
}

static void remote_close(void *user, void *file)
{
    backend_close(file);
}

struct remote_read {
    struct backend_read read;
    int rc;
    struct leat_error err;
    bool over;
};

static void read_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct remote_read *r = container_of(read, struct remote_read, read);
    r->rc = rc;
    if (err)
        r->err = *err;
    r->over = true;
}

static int remote_begin(void *user, void *file, void *dst, uint64_t bytes, uint64_t offset, void **ret_read,
                        struct leat_error *err)
{
    struct remote_read *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->read =
        (struct backend_read){.file = file, .offset = offset, .bytes = bytes, .dst = dst, .done = read_done};
    backend_submit(user, &r->read);
    *ret_read = r;
    return 0;
}

static void remote_cancel(void *user, void *read)
{
    struct remote_read *r = read;
    if (!r->over)
        backend_cancel(user, &r->read);
    free(r);
}

static int remote_end(void *user, void *read, struct leat_error *err)
{
    struct remote_read *r = read;
    while (!r->over) {
        int rc = backend_wait(user, 1, -1);
        if (rc < 0) {
            remote_cancel(user, r);
            return rc == -ECANCELED ? error_set(err, rc, "the scan was stopped")
                                    : error_sys(err, rc, "waiting for the network");
        }
    }
    int rc = r->rc;
    if (rc < 0 && err)
        *err = r->err;
    free(r);
    return rc;
}

static int remote_put(void *user, const char *uri, int fd, uint64_t bytes, struct leat_error *err)
{
    return backend_put(user, uri, fd, 0, bytes, NULL, NULL, err);
}

void remote_opener(struct backend *b, struct dataset_opener *opener)
{
    static const struct dataset_remote remote = {
        .stat = remote_stat_object,
        .list = remote_list,
        .open = remote_open,
        .close = remote_close,
        .begin = remote_begin,
        .end = remote_end,
        .cancel = remote_cancel,
        .put = remote_put,
    };
    opener->remote = &remote;
    opener->remote_user = b;
}
