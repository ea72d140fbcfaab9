/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored.c: this node's own store as a place that datasets come from: "store://bucket/key". No protocol is spoken: names come from the
 * store's index, bytes from its files.
 *
 * Happy path: a list is the store's own, page by page; a handle holds one version of an object, which stays readable whatever happens to
 * its name. Failure modes: another version than the one that was seen is LEAT_STALE; an object that only a bucket's remote has is
 * LEAT_NOT_FOUND, and the message says how to bring it here. Nothing is written through here: objects come in by the S3 service.
 */
#include "backend/store/stored.h"

#include <stdio.h>

#define PAGE 1000u

/* "store://bucket/key": the key may be "" (all of the bucket), or what keys begin with. */
static int parse(const char *uri, char ret_bucket[STORE_BUCKET_MAX + 1], const char **ret_key,
                 struct leat_error *err)
{
    const char *bucket = uri + strlen(STORED_SCHEME);
    size_t len = strncmp(uri, STORED_SCHEME, strlen(STORED_SCHEME)) == 0 ? strcspn(bucket, "/") : 0;
    if (len == 0 || len > STORE_BUCKET_MAX)
        return error_set(err, LEAT_INVALID, "%.300s: an object of the store is store://BUCKET/KEY", uri);
    memcpy(ret_bucket, bucket, len);
    ret_bucket[len] = 0;
    *ret_key = bucket + len + (bucket[len] == '/');
    return 0;
}

static int no_object(struct stored *s, int rc, const char *bucket, const char *uri,
                     const struct leat_error *why, struct leat_error *err)
{
    struct store_bucket b = {0};
    if (rc == STORE_NO_BUCKET)
        return error_set(err, LEAT_NOT_FOUND, "%.300s: the store has no bucket \"%s\"", uri, bucket);
    rc = rc == STORE_BUCKET_DAMAGED ? LEAT_CORRUPT : rc;
    if (rc != LEAT_NOT_FOUND)
        return why->message[0] ? error_set(err, rc, "%.300s: %s", uri, why->message)
                               : error_sys(err, rc, "%.300s", uri);
    bool remote = store_bucket_get(s->store, bucket, &b, NULL) == 0 && (b.flags & STORE_BUCKET_REMOTE);
    store_bucket_fini(&b);
    return error_set(err, LEAT_NOT_FOUND, "%.300s: the store has no such object%s", uri,
                     remote ? "; its bucket has a remote, and what is only there has to be "
                              "fetched first (prefetch, or a GET)"
                            : "");
}

static void etag_quoted(const char *etag, char ret_etag[BACKEND_ETAG_MAX])
{
    snprintf(ret_etag, BACKEND_ETAG_MAX, "\"%s\"", etag);
}

static int stored_stat(struct stored *s, const char *uri, struct backend_stat *ret_stat,
                       struct leat_error *err)
{
    char bucket[STORE_BUCKET_MAX + 1];
    const char *key;
    struct store_info info;
    struct leat_error why = {0};
    int rc = parse(uri, bucket, &key, err);
    if (rc < 0)
        return rc;
    s->stats.requests++;
    rc = *key ? store_lookup(s->store, bucket, key, strlen(key), &info, &why) : LEAT_NOT_FOUND;
    if (rc < 0)
        return no_object(s, rc, bucket, uri, &why, err);
    *ret_stat = (struct backend_stat){.bytes = info.bytes, .modified = info.mtime_ns / 1000000000};
    etag_quoted(info.etag, ret_stat->etag);
    return 0;
}

/* --- lists ------------------------------------------------------------------------------------------------------------- */

/* An entry may not call the store, and its memory is the store's: a page is copied, and then handed on. */
struct page {
    char *text; /* each: key, NUL, ETag, NUL */
    size_t len, cap;
    struct page_entry {
        size_t key;
        uint64_t bytes;
        int64_t modified;
        bool prefix;
    } entries[PAGE];
    unsigned n;
    char last[STORE_KEY_MAX]; /* the next page continues after this key */
    size_t last_len;
    bool last_prefix;
};

static int page_text(struct page *p, const void *data, size_t len)
{
    if (p->len + len + 1 > p->cap) {
        size_t cap = MAX(2 * p->cap, p->len + len + 4096);
        char *text = realloc(p->text, cap);
        if (!text)
            return -ENOMEM;
        p->text = text;
        p->cap = cap;
    }
    memcpy(p->text + p->len, data, len);
    p->text[p->len + len] = 0;
    p->len += len + 1;
    return 0;
}

static int page_entry(void *user, const struct store_entry *e)
{
    struct page *p = user;
    memcpy(p->last, e->key, e->key_len);
    p->last_len = e->key_len;
    p->last_prefix = e->prefix;
    if (memchr(e->key, 0, e->key_len)) /* no address can name it */
        return 0;
    char etag[BACKEND_ETAG_MAX] = "";
    if (!e->prefix)
        etag_quoted(e->etag, etag);
    p->entries[p->n++] = (struct page_entry){
        .key = p->len, .bytes = e->bytes, .modified = e->mtime_ns / 1000000000, .prefix = e->prefix};
    int rc = page_text(p, e->key, e->key_len);
    return rc ? rc : page_text(p, etag, strlen(etag));
}

struct listing {
    const char *bucket, *prefix;
    int (*object)(void *user, const struct backend_object *object);
    void *user;
};

static int hand_on(const struct listing *l, const struct page *p)
{
    char uri[sizeof(STORED_SCHEME) + STORE_BUCKET_MAX + 1 + STORE_KEY_MAX];
    int rc = 0;
    for (unsigned i = 0; i < p->n && rc >= 0; i++) {
        const struct page_entry *e = &p->entries[i];
        const char *key = p->text + e->key;
        int at = snprintf(uri, sizeof(uri), STORED_SCHEME "%s/%s", l->bucket, key);
        struct backend_object o = {.uri = uri,
                                   .name = uri + at - strlen(key) + strlen(l->prefix),
                                   .bytes = e->bytes,
                                   .etag = key + strlen(key) + 1,
                                   .modified = e->modified,
                                   .prefix = e->prefix};
        rc = l->object(l->user, &o);
    }
    return rc;
}

static int stored_list(struct backend *base, const char *uri, bool recursive, const char *after,
                       int (*object)(void *user, const struct backend_object *object), void *user,
                       struct leat_error *err)
{
    struct stored *s = stored_of(base);
    char bucket[STORE_BUCKET_MAX + 1];
    const char *prefix;
    struct leat_error why = {0};
    int rc = parse(uri, bucket, &prefix, err);
    struct page *p = rc < 0 ? NULL : calloc(1, sizeof(*p));
    if (!p)
        return rc < 0 ? rc : -ENOMEM;
    if (after) {
        p->last_len = MIN(strlen(after), sizeof(p->last));
        memcpy(p->last, after, p->last_len);
    }
    struct listing l = {bucket, prefix, object, user};
    for (bool more = true; rc >= 0 && more;) {
        struct store_list_spec spec = {.prefix = prefix,
                                       .prefix_len = strlen(prefix),
                                       .after = p->last_len ? p->last : NULL,
                                       .after_len = p->last_len,
                                       .after_prefix = p->last_prefix,
                                       .delimiter = recursive ? NULL : "/",
                                       .delimiter_len = recursive ? 0 : 1,
                                       .max = PAGE};
        char last[STORE_KEY_MAX]; /* the callback writes where `after` is */
        memcpy(last, p->last, p->last_len);
        if (spec.after)
            spec.after = last;
        p->n = 0;
        p->len = 0;
        s->stats.requests++;
        rc = stored_cancelled(s) ? error_set(&why, -ECANCELED, "cancelled")
                                 : store_list(s->store, bucket, &spec, page_entry, p, &more, &why);
        if (rc < 0)
            rc = no_object(s, rc, bucket, uri, &why, err);
        else
            rc = hand_on(&l, p);
    }
    free(p->text);
    free(p);
    return rc;
}

/* --- handles ----------------------------------------------------------------------------------------------------------- */

static void stored_close(struct backend_file *base)
{
    struct stored_file *f = stored_file_of(base);
    store_obj_unref(f->obj);
    if (f->fd_direct >= 0)
        close(f->fd_direct);
    free(f->uri);
    free(f);
}

static int stored_open(struct backend *base, const char *uri, const char *etag, uint64_t bytes,
                       struct backend_file **ret_file, struct leat_error *err)
{
    struct stored *s = stored_of(base);
    char bucket[STORE_BUCKET_MAX + 1], have[BACKEND_ETAG_MAX] = "";
    const char *key;
    struct leat_error why = {0};
    int rc = parse(uri, bucket, &key, err);
    if (rc < 0)
        return rc;
    struct stored_file *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    *f = (struct stored_file){.base = {base->ops}, .session = s, .uri = strdup(uri), .fd_direct = -1};
    if (!f->uri)
        rc = -ENOMEM;
    if (rc == 0) {
        rc = *key ? store_get(s->store, bucket, key, strlen(key), &f->obj, &why) : LEAT_NOT_FOUND;
        if (rc < 0)
            rc = no_object(s, rc, bucket, uri, &why, err);
        else
            etag_quoted(f->obj->info.etag, have);
    }
    if (rc == 0 && ((etag && *etag && strcmp(etag, have) != 0) || (bytes && bytes != f->obj->info.bytes)))
        rc = error_set(err, LEAT_STALE, "%.300s: the object changed: its ETag was %s, now it is %s", uri,
                       etag && *etag ? etag : "another", have);
    if (rc < 0) {
        stored_close(&f->base);
        return rc;
    }
    *ret_file = &f->base;
    return 0;
}

/* --- the session ------------------------------------------------------------------------------------------------------- */

static int stored_put(struct backend *base, const char *uri, int fd, uint64_t offset, uint64_t bytes,
                      const char *headers, char *ret_etag, struct leat_error *err)
{
    return error_set(err, LEAT_UNSUPPORTED, "%.300s: objects come into the store by its S3 service", uri);
}

static int stored_op_run(struct backend *base, struct backend_op *op, struct leat_error *err)
{
    switch (op->kind) {
    case BACKEND_STAT:
        return stored_stat(stored_of(base), op->uri, op->stat, err);
    case BACKEND_DELETE:
        return error_set(err, LEAT_UNSUPPORTED, "%.300s: objects leave the store by its S3 service", op->uri);
    case BACKEND_COPY:
        break;
    }
    return error_set(err, LEAT_UNSUPPORTED, "%.300s: nothing is copied there", op->from);
}

/* The index is in memory: there is nothing to wait for. */
static void stored_op_submit(struct backend *base, struct backend_op *op)
{
    struct stored *s = stored_of(base);
    struct leat_error err = {0};
    int rc = stored_op_run(base, op, &err);
    s->npending++;
    backend_op_ended(op, rc, &err, &s->ended_ops);
}

static void stored_op_cancel(struct backend *base, struct backend_op *op)
{
    stored_of(base)->npending--;
}

static void stored_stats(const struct backend *base, struct backend_stats *ret_stats)
{
    *ret_stats = container_of(base, const struct stored, base)->stats;
}

static void stored_free(struct backend *base)
{
    struct stored *s = stored_of(base);
    disk_engine_free(s->engine); /* ends what is under way, and so what waits behind it */
    s->engine = NULL;
    stored_deliver(s);
    free(s);
}

static const struct backend_ops stored_ops = {
    .name = "store",
    .list = stored_list,
    .op_submit = stored_op_submit,
    .op_cancel = stored_op_cancel,
    .op_run = stored_op_run,
    .open = stored_open,
    .close = stored_close,
    .submit = stored_submit,
    .cancel = stored_cancel,
    .wait = stored_wait,
    .wake = stored_wake,
    .pread = stored_pread,
    .put = stored_put,
    .stats = stored_stats,
    .free = stored_free,
};

int backend_stored_new(const struct backend_config *config, struct backend **ret_backend,
                       struct leat_error *err)
{
    struct stored *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct stored){.base = {&stored_ops},
                         .store = config->store,
                         .engine_kind = config->disk_engine ? config->disk_engine : "auto",
                         .depth = config->disk_depth ? config->disk_depth : 16,
                         .cancelled = config->cancelled};
    list_init(&s->ended);
    list_init(&s->ended_ops);
    list_init(&s->waiting);
    *ret_backend = &s->base;
    return 0;
}
