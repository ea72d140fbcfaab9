/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c: one object from the remote into the store, for all its readers.
 *
 *   what it is, with its first bytes ─▶ a put of the store, whose file readers follow ─▶ all of its bytes (body.c) ─▶ commit, clean
 *
 * Happy path: the first request is a GET, whose answer says what the object is (a HEAD where an older version is here, or the remote is a folder).
 * Buckets of small objects are asked for whole ones, which bring their checksum along.
 * Failure modes: the object changes during the fetch: begun again as long as no reader has a byte of it, an error after that. The remote cannot be
 * reached, and an older version is here: that one is served. The store is full: clean objects make room. A checksum of the whole that is
 * wrong: the last block never reaches a reader, and nothing is kept.
 * Invariants: what is committed is the whole of one version; and not if anything else was stored under the key since the remote was
 * asked (`superseded`, if_seq).
 */
#include "objects/tier/tier_internal.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"

#define ATTEMPTS  3u /* at an object that changes all the time */
#define SMALL_RUN 4u /* so many small objects, one after the other, and the next is taken for one */

/* --- to be joined -------------------------------------------------------------------------------------------------------------- */

void fetch_unref(struct fetch *f)
{
    if (!f)
        return;
    struct tier *t = f->t;
    pthread_mutex_lock(&t->lock);
    bool last = --f->refs == 0;
    if (last)
        list_remove(&f->node);
    pthread_mutex_unlock(&t->lock);
    if (!last)
        return;
    if (f->fd >= 0)
        close(f->fd);
    store_obj_unref(f->local);
    store_obj_unref(f->obj);
    tier_bucket_unref(t, f->bucket);
    free(f->meta);
    free(f->ahead);
    free(f->asked);
    free(f);
}

static void fetch_wake(struct fetch *f)
{
    struct tier_waiter *w;
    while ((w = list_first(&f->waiters, struct tier_waiter, node))) {
        list_remove(&w->node);
        w->waits = false;
        w->ready(w);
    }
    pthread_cond_broadcast(&f->t->changed_cond);
}

static bool is_of(const struct fetch *f, const struct tier_bucket *b, const void *key, size_t key_len)
{
    return strcmp(f->bucket->name, b->name) == 0 && f->key_len == key_len &&
           memcmp(f->key, key, key_len) == 0;
}

void fetch_supersede(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len)
{
    pthread_mutex_lock(&t->lock);
    list_for_each_safe (node, &t->fetches) {
        struct fetch *f = container_of(node, struct fetch, node);
        if (!is_of(f, b, key, key_len)) /* settings from before may be of this remote */
            continue;
        f->superseded = true;
        list_remove(&f->node);
    }
    while (key_is_locked(t, b, key, key_len, KEY_LOCK_KEEP))
        pthread_cond_wait(&t->changed_cond, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static void fetch_run(struct tier_task *task);

int fetch_get(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len, struct tier_pool *pool,
              unsigned flags, struct store_obj *local, uint64_t if_seq, struct fetch **ret_fetch,
              struct leat_error *err)
{
    struct fetch *f = calloc(1, sizeof(*f) + key_len + 1);
    if (!f) {
        store_obj_unref(local);
        return -ENOMEM;
    }
    *f = (struct fetch){.task = {.run = fetch_run},
                        .t = t,
                        .bucket = b,
                        .refs = 2,
                        .head_only = flags & FETCH_HEAD,
                        .compare = flags & FETCH_COMPARE,
                        .local = local,
                        .if_seq = if_seq,
                        .fd = -1,
                        .key_len = key_len};
    memcpy(f->key, key, key_len);
    list_init(&f->node);
    list_init(&f->waiters);
    list_init(&f->wants);
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    list_for_each (node, &t->fetches) {
        struct fetch *there = container_of(node, struct fetch, node);
        if (there->bucket != b || !is_of(there, b, key, key_len) || f->compare)
            continue; /* settings from before may be of another remote */
        if (b->remote.check == TIER_ALWAYS && fetch_is_whole(there))
            continue; /* its reader may have finished, and the remote changed since */
        there->refs++;
        t->stats.joined++;
        pthread_mutex_unlock(&t->lock);
        store_obj_unref(local);
        free(f);
        *ret_fetch = there;
        return 0;
    }
    rc = tier_pool_add(pool, b, &f->task);
    if (rc == 0) {
        b->refs++;
        f->superseded = key_is_locked(t, b, key, key_len, KEY_LOCK_REMOTE_WRITE);
        if (!f->head_only && !f->superseded)
            list_push_back(&t->fetches, &f->node);
    }
    pthread_mutex_unlock(&t->lock);
    if (rc < 0) {
        store_obj_unref(local);
        free(f);
        return error_set(err, rc, "bucket %s: too many objects are being fetched; try again later", b->name);
    }
    *ret_fetch = f;
    return 0;
}

int fetch_look(struct tier *t, const char *bucket, const void *key, size_t key_len,
               struct store_obj **ret_local, uint64_t *ret_seq, struct leat_error *err)
{
    struct store_info info = {0};
    struct leat_error why = {0};
    *ret_local = NULL;
    *ret_seq = 0;
    int rc = store_get(t->config.store, bucket, key, key_len, ret_local, &why);
    if (rc == 0) {
        *ret_seq = (*ret_local)->info.seq;
        return 0;
    }
    *ret_local = NULL;
    if (rc == LEAT_NOT_FOUND)
        return 0;
    /* Damaged or not to be read, and clean: the remote has it. Mostly it was evicted by now. */
    if (rc == LEAT_CORRUPT || rc == STORE_UNAVAILABLE) {
        int there = store_lookup(t->config.store, bucket, key, key_len, &info, NULL);
        if (there == LEAT_NOT_FOUND || (there == 0 && !(info.flags & STORE_DIRTY))) {
            *ret_seq = there == 0 ? info.seq : 0;
            return 0;
        }
    }
    if (err)
        *err = why;
    return rc;
}

/* --- room -------------------------------------------------------------------------------------------------------------------- */

/* A put, and a descriptor of its file, with which it has one: a small one is not refused before that.
 * held: a buffer that is given back where we have to wait for others to give back theirs. */
static int put_begin(struct fetch *f, struct store_put **ret_put, int *ret_fd, struct tier_block **held,
                     struct leat_error *err)
{
    struct tier *t = f->t;
    for (unsigned i = 0;; i++) {
        int rc = store_put_begin(t->config.store, f->bucket->name, f->key, f->key_len, f->info.bytes,
                                 STORE_PUT_BUFFERED | STORE_PUT_NO_MD5, ret_put, err);
        if (rc == 0 && (rc = store_put_reader(*ret_put, ret_fd, err)) < 0)
            store_put_abort(TAKE_PTR(*ret_put));
        bool full = rc == LEAT_NO_SPACE && i < 8;
        if (full && store_make_room(t->config.store, f->bucket->name, f->info.bytes, NULL) < 0)
            return rc;
        if (rc == LEAT_BUSY && i < 600 && !atomic_load(&t->stopping)) {
            if (*held)
                tier_block_put(t, TAKE_PTR(*held));
            usleep(100000); /* other puts have the buffers for now */
        } else if (!full)
            return rc;
    }
}

/* --- buffers ----------------------------------------------------------------------------------------------------------------- */

int fetch_stopped(const struct fetch *f, struct leat_error *err)
{
    return error_set(err, TIER_DOWN, "bucket %s: cancelled, as the server stops", f->bucket->name);
}

int fetch_block(struct fetch *f, struct tier_block **ret_block, struct leat_error *err)
{
    while (!(*ret_block = tier_block_get(f->t))) { /* each holder of a buffer comes to an end */
        if (atomic_load(&f->t->stopping))
            return fetch_stopped(f, err);
        usleep(5000);
    }
    return 0;
}

/* --- one fetch ------------------------------------------------------------------------------------------------------------------- */

#define P(state) (1u << FETCH_##state)
static const uint32_t fetch_moves[FETCH_STATES] = {
    [FETCH_QUEUED] =
        P(BODY) | P(DONE) | P(FAILED), /* DONE at once: what is here was right, or no bytes are wanted */
    [FETCH_BODY] = P(BODY) | P(DONE) | P(FAILED), /* again for each block */
};

void fetch_move(struct fetch *f, enum fetch_state to)
{
    static const char *const names[FETCH_STATES] = {"queued", "body", "done", "failed"};
    assert(to < FETCH_STATES && (fetch_moves[f->state] >> to & 1));
    if (f->state != to)
        log_debug("bucket %s: fetch of %.*s: %s -> %s", f->bucket->name, (int)MIN(f->key_len, (size_t)200),
                  f->key, names[f->state], names[to]);
    f->state = to;
    fetch_wake(f);
}

/* The cached version is current, or the only one available. */
static void use_local(struct fetch *f)
{
    f->obj = TAKE_PTR(f->local);
}

static int take_head(struct fetch *f, const struct backend_stat *stat)
{
    char tag[BACKEND_ETAG_MAX];
    free(TAKE_PTR(f->meta));
    int rc = tier_meta_of(stat, &f->meta, &f->meta_len);
    tier_tag_of(stat, tag);
    f->info = (struct store_info){.bytes = stat->bytes, .mtime_ns = stat->modified * (int64_t)NS_PER_S};
    tier_etag_of(tag, f->info.etag);
    return rc;
}

static int fetch_commit(struct fetch *f, const struct backend_stat *stat, struct store_put *put,
                        struct leat_error *err)
{
    struct tier *t = f->t;
    char tag[BACKEND_ETAG_MAX];
    void *meta = NULL; /* as readers saw it, and the checksum, which may have come later */
    size_t meta_len = 0;
    tier_tag_of(stat, tag);
    int rc = tier_meta_of(stat, &meta, &meta_len);
    AUTO_FREE void *meta_owned = meta;
    struct store_commit commit = {.etag = f->info.etag,
                                  .meta = meta,
                                  .meta_len = meta_len,
                                  .remote = tag,
                                  .remote_id = f->bucket->remote_id,
                                  .mtime_ns = f->info.mtime_ns,
                                  .if_none_match = f->if_seq == 0,
                                  .if_seq = f->if_seq};
    struct key_lock lock = {.bucket = f->bucket, .key = f->key, .key_len = f->key_len, .bits = KEY_LOCK_KEEP};
    pthread_mutex_lock(&t->lock);
    bool keep = rc == 0 && !f->superseded;
    if (keep)
        list_push_back(&t->locks, &lock.node);
    pthread_mutex_unlock(&t->lock);
    if (!keep) {
        store_put_abort(put);
        return rc;
    }
    rc = store_put_commit(put, &commit, NULL, err);
    if (rc == 0) {
        key_moved(f->bucket, f->key, f->key_len, KEY_ABSENT, KEY_CLEAN);
        tier_fresh_mark(t, f->bucket, f->key, f->key_len);
    }
    key_unlock(t, &lock);
    /* Another version was stored here, or the bucket has another remote: this one was for its readers. */
    return rc == STORE_PRECONDITION || rc == LEAT_STALE ? 0 : rc;
}

/* The object's facts, and its first bytes by the same request where that is due: *ret_block, or NULL. */
static int fetch_head(struct fetch *f, struct backend *b, const char *uri, struct backend_stat *ret_stat,
                      struct tier_block **ret_block, uint64_t *ret_bytes, struct leat_error *err)
{
    struct tier_bucket *bucket = f->bucket;
    *ret_block = NULL;
    *ret_bytes = 0;
    int rc = LEAT_UNSUPPORTED;
    /* An older version is here: likely it is still the one, and none of it is wanted. */
    if (!f->head_only && !f->local && !bucket->remote.folder) {
        bool small = atomic_load(&bucket->small_run) >= SMALL_RUN;
        struct tier_block *block = tier_block_get(f->t); /* none: a HEAD needs none */
        if (block)
            rc = backend_first(b, uri, block->data, FETCH_UNIT, small, ret_stat, ret_bytes, err);
        if (rc == 0 && *ret_bytes < ret_stat->bytes && !*ret_stat->etag)
            *ret_bytes = 0; /* nothing ties them to what comes after them: all of it is asked for */
        if (block && rc == 0 && *ret_bytes)
            *ret_block = block;
        else if (block)
            tier_block_put(f->t, block);
    }
    bool stat = rc == LEAT_UNSUPPORTED || rc == LEAT_STALE || rc == LEAT_CORRUPT;
    if (stat)
        rc = backend_stat_object(b, uri, ret_stat, err);
    if (rc == 0 && !f->head_only)
        atomic_store(&bucket->small_run,
                     ret_stat->bytes <= FETCH_UNIT ? MIN(atomic_load(&bucket->small_run) + 1, SMALL_RUN) : 0);
    return rc < 0 ? tier_remote_error(bucket, rc, err) : 0;
}

static int fetch_once(struct fetch *f, struct backend *b, const char *uri, struct leat_error *err)
{
    struct tier *t = f->t;
    struct backend_stat stat;
    char tag[BACKEND_ETAG_MAX];
    struct store_put *put = NULL;
    struct tier_block *first;
    uint64_t first_bytes;
    int rc = fetch_head(f, b, uri, &stat, &first, &first_bytes, err);
    if (rc < 0)
        return rc;
    tier_tag_of(&stat, tag);
    if (f->local && f->local->info.bytes == stat.bytes && strcmp(f->local->remote, tag) == 0) {
        tier_fresh_mark(t, f->bucket, f->key, f->key_len);
        use_local(f);
        return 0;
    }
    bool sum = first && stat.crc.kind == S3_CRC_NONE; /* a HEAD would have said it */
    rc = take_head(f, &stat);
    if (rc < 0 || f->head_only)
        goto first_put;
    int fd;
    rc = fetch_body_begin(f);
    if (rc == 0)
        rc = put_begin(f, &put, &fd, &first, err);
    if (rc < 0)
        goto first_put;
    first_bytes = first ? first_bytes : 0;
    pthread_mutex_lock(&t->lock);
    if (f->fd >= 0)
        close(f->fd); /* of a version that changed before a reader had a byte */
    f->fd = fd;
    t->stats.fetches++;
    t->stats.refreshed += f->local != NULL;
    pthread_mutex_unlock(&t->lock);
    rc = fetch_body(f, b, uri, &stat, put, TAKE_PTR(first), first_bytes, sum, err);
    if (rc < 0) {
        store_put_abort(put);
        goto first_put;
    }
    /* Readers have all of it: that it could not be kept is our own trouble. */
    struct leat_error why = {0};
    if (fetch_commit(f, &stat, put, &why) < 0)
        log_warning("bucket %s: a fetched object was not kept: %s", f->bucket->name, why.message);
first_put:
    if (first)
        tier_block_put(t, first);
    return rc;
}

static void fetch_run(struct tier_task *task)
{
    struct fetch *f = container_of(task, struct fetch, task);
    struct tier *t = f->t;
    struct tier_session *s = NULL;
    struct leat_error err = {0};
    AUTO_FREE char *uri = NULL;
    int rc = tier_uri(f->bucket, f->key, f->key_len, &uri, &err);
    if (rc == 0)
        rc = tier_session_get(t, f->bucket, &s, &err);
    for (unsigned i = 0; rc == 0 && i < ATTEMPTS; i++) {
        rc = fetch_once(f, s->backend, uri, &err);
        if (rc != LEAT_STALE || f->shown || i + 1 == ATTEMPTS)
            break;
        rc = 0;
    }
    tier_session_put(t, f->bucket, s);
    if (rc == LEAT_NOT_FOUND && f->local && !f->compare)
        /* It is gone there, so it is here: unless it is dirty by now, or the bucket has no remote any more. */
        store_evict(t->config.store, f->bucket->name, f->key, f->key_len, NULL);
    else if (tier_remote_down(rc) && f->local && !f->shown) {
        if (atomic_exchange(&t->warned_s, clock_now_ns() / NS_PER_S / 10) != clock_now_ns() / NS_PER_S / 10)
            log_warning("%s: what is here is served, though it may be old", err.message);
        use_local(f);
        f->fallback = true;
        rc = 0;
    }
    pthread_mutex_lock(&t->lock);
    t->stats.checks++;
    t->stats.fetch_failed += rc < 0 && rc != LEAT_NOT_FOUND;
    f->rc = rc;
    f->err = err;
    list_remove(&f->node);
    fetch_move(f, rc < 0 ? FETCH_FAILED : FETCH_DONE);
    pthread_mutex_unlock(&t->lock);
    fetch_unref(f);
}
