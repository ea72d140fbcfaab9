/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c: what readers hold: an object that is here, or a fetch that they follow.
 *
 * Happy path: what is here and fresh is the store's object. Else the read joins the key's fetch. A caller
 * that asks for its head or bytes too early is notified of progress.
 * Invariants: a read's fields are set once. A waiter is in one list at most, and is notified at most once for
 * each time it was put there.
 */
#include "objects/tier/tier_internal.h"

struct read {
    struct tier_read pub;
    struct tier *t;
    struct fetch *f; /* NULL: here */
    struct fetch_want want;
    bool headed;
};

static struct read *read_of(struct tier_read *pub)
{
    return container_of(pub, struct read, pub);
}

static void take_obj(struct read *r, struct store_obj *obj)
{
    r->pub = (struct tier_read){.view = *obj, .obj = obj};
    r->headed = true;
}

int tier_open(struct tier *t, const char *bucket, const void *key, size_t key_len, unsigned flags,
              struct tier_read **ret_read, struct leat_error *err)
{
    struct tier_bucket *b = tier_bucket_find(t, bucket);
    struct store_obj *local;
    uint64_t seq;
    if (!b)
        return error_set(err, LEAT_INVALID, "bucket %s has no remote", bucket);
    struct read *r = calloc(1, sizeof(*r));
    int rc = r ? fetch_look(t, bucket, key, key_len, &local, &seq, err) : -ENOMEM;
    if (rc == 0) {
        r->t = t;
        list_init(&r->want.node);
        r->pub.view.fd = -1;
        if (local && key_is_current(t, b, key, key_len, local))
            take_obj(r, local);
        else
            rc = fetch_get(t, b, key, key_len, &t->fetchers, flags & TIER_HEAD ? FETCH_HEAD : 0, local, seq,
                           &r->f, err);
    }
    tier_bucket_unref(t, b);
    if (rc < 0) {
        free(r);
        return rc;
    }
    *ret_read = &r->pub;
    return 0;
}

/* Under the lock. */
static int wait_for(struct fetch *f, struct tier_waiter *w)
{
    if (w && !w->waits) {
        w->waits = true;
        list_push_back(&f->waiters, &w->node);
    }
    return TIER_WAIT;
}

static int fetch_failed(const struct fetch *f, struct leat_error *err)
{
    if (err)
        *err = f->err;
    return f->rc;
}

int tier_read_head(struct tier_read *read, struct tier_waiter *waiter, struct leat_error *err)
{
    struct read *r = read_of(read);
    struct fetch *f = r->f;
    if (r->headed)
        return 0;
    int rc = 0;
    pthread_mutex_lock(&r->t->lock);
    if (f->state == FETCH_QUEUED)
        rc = wait_for(f, waiter);
    else if (f->state == FETCH_FAILED && !f->shown)
        rc = fetch_failed(f, err);
    pthread_mutex_unlock(&r->t->lock);
    if (rc < 0)
        return rc;
    if (f->obj)
        take_obj(r, store_obj_ref(f->obj));
    else
        r->pub.view = (struct store_obj){
            .info = f->info, .meta = f->meta, .meta_len = f->meta_len, .fd = f->fd, .remote = ""};
    r->headed = true;
    return 0;
}

int64_t tier_read_ready(struct tier_read *read, uint64_t offset, struct tier_waiter *waiter,
                        struct leat_error *err)
{
    struct read *r = read_of(read);
    int rc = tier_read_head(read, waiter, err);
    if (rc < 0)
        return rc;
    if (r->pub.obj || offset >= r->pub.view.info.bytes)
        return offset < r->pub.view.info.bytes ? (int64_t)(r->pub.view.info.bytes - offset) : 0;
    struct fetch *f = r->f;
    pthread_mutex_lock(&r->t->lock);
    int64_t n = (int64_t)fetch_readable(f, offset);
    if (n > 0)
        list_remove(&r->want.node);
    else if (f->state == FETCH_FAILED)
        n = fetch_failed(f, err);
    else {
        fetch_wants(f, &r->want, offset);
        n = wait_for(f, waiter);
    }
    pthread_mutex_unlock(&r->t->lock);
    return n;
}

void tier_read_unwait(struct tier_read *read, struct tier_waiter *waiter)
{
    struct read *r = read_of(read);
    if (!r->f)
        return;
    pthread_mutex_lock(&r->t->lock);
    if (waiter->waits)
        list_remove(&waiter->node);
    waiter->waits = false;
    pthread_mutex_unlock(&r->t->lock);
}

void tier_read_close(struct tier_read *read)
{
    if (!read)
        return;
    struct read *r = read_of(read);
    if (r->f) {
        pthread_mutex_lock(&r->t->lock);
        list_remove(&r->want.node);
        pthread_mutex_unlock(&r->t->lock);
    }
    store_obj_unref(r->pub.obj);
    fetch_unref(r->f);
    free(r);
}

int tier_read_wait(struct tier_read *read, uint64_t offset, uint64_t bytes, struct leat_error *err)
{
    struct read *r = read_of(read);
    uint64_t end = offset + bytes;
    for (;;) {
        int64_t n = bytes ? tier_read_ready(read, offset, NULL, err) : tier_read_head(read, NULL, err);
        if (n == 0 && bytes)
            return error_set(err, LEAT_INVALID, "bytes behind the end of the object");
        if (n > 0 && (uint64_t)n < end - offset) {
            offset += (uint64_t)n;
            continue;
        }
        if (n != TIER_WAIT)
            return (int)MIN(n, (int64_t)0);
        /* Asked again under the lock that every move is made under. */
        struct fetch *f = r->f;
        pthread_mutex_lock(&r->t->lock);
        bool still =
            f->state == FETCH_QUEUED || (f->state == FETCH_BODY && bytes && fetch_readable(f, offset) == 0);
        if (still)
            pthread_cond_wait(&r->t->changed_cond, &r->t->lock);
        pthread_mutex_unlock(&r->t->lock);
    }
}

int tier_get(struct tier *t, const char *bucket, const void *key, size_t key_len, struct store_obj **ret_obj,
             struct leat_error *err)
{
    struct tier_read *read;
    for (unsigned i = 0; i < 3; i++) {
        int rc = tier_open(t, bucket, key, key_len, 0, &read, err);
        if (rc < 0)
            return rc;
        rc = tier_read_wait(read, 0, 0, err);
        if (rc == 0 && read->obj)
            *ret_obj = store_obj_ref(read->obj);
        bool here = rc == 0 && read->obj;
        struct fetch *f = read_of(read)->f;
        if (rc == 0 && !here) { /* until it is committed */
            pthread_mutex_lock(&t->lock);
            while (f->state != FETCH_DONE && f->state != FETCH_FAILED)
                pthread_cond_wait(&t->changed_cond, &t->lock);
            rc = f->state == FETCH_FAILED ? fetch_failed(f, err) : 0;
            pthread_mutex_unlock(&t->lock);
        }
        tier_read_close(read);
        if (rc < 0 || here)
            return rc;
        rc = store_get(t->config.store, bucket, key, key_len, ret_obj, err);
        if (rc != LEAT_NOT_FOUND)
            return rc;
    }
    return error_set(err, LEAT_BUSY, "the object changes or is evicted again and again while it is fetched");
}
