/* SPDX-License-Identifier: Apache-2.0 */
/*
 * push.c: what is written here, to the remote.
 *
 *   "through"  put, not committed ─▶ the remote has it ─▶ commit, clean ─▶ acknowledged
 *              (what an upload's parts were put together to is a put like others)
 *   "back"     commit, dirty ─▶ acknowledged ... a thread of ours: the remote has it ─▶ clean
 *
 * Failure modes: a push that fails in "through" leaves what was; in "back" it is tried again, for ever, with growing pauses, and the
 * object stays dirty until then, over restarts too. A crash in "through" after the remote took the new version and before it is here: the old
 * version here was marked UNKNOWN beforehand, and is compared before it is served again.
 * Invariants: writes of one key reach the remote one after the other, in the order in which they become visible here (KEY_LOCK_REMOTE_WRITE).
 */
#include "objects/tier/tier_internal.h"

#include <stdio.h>

/* Are its settings others by now? */
static bool is_gone(struct tier *t, const struct tier_bucket *b)
{
    pthread_mutex_lock(&t->lock);
    bool gone = b->gone;
    pthread_mutex_unlock(&t->lock);
    return gone;
}

/* --- to the remote ----------------------------------------------------------------------------------------------------------- */

static int send(struct tier *t, struct tier_bucket *b, const char *uri, int fd, uint64_t offset,
                uint64_t bytes, const void *meta, size_t meta_len, char ret_tag[BACKEND_ETAG_MAX],
                struct leat_error *err)
{
    struct tier_session *s = NULL;
    struct backend_stat stat;
    AUTO_FREE char *headers = malloc(BACKEND_HEADERS_MAX);
    int rc = headers ? tier_headers_of(meta, meta_len, headers) : -ENOMEM;
    if (rc == LEAT_INVALID)
        error_set(err, rc, "%.300s: more metadata than the remote takes (%u names, %u bytes)", uri,
                  BACKEND_HEADERS, BACKEND_HEADERS_MAX);
    if (rc == 0)
        rc = tier_session_get(t, b, &s, err);
    if (rc == 0) {
        rc = backend_put(s->backend, uri, fd, offset, bytes, headers, ret_tag, err);
        if (rc == 0 && !*ret_tag) { /* a server that does not say */
            rc = backend_stat_object(s->backend, uri, &stat, err);
            if (rc == 0)
                tier_tag_of(&stat, ret_tag);
        }
        tier_session_put(t, b, s);
        rc = rc < 0 ? tier_remote_error(b, rc, err) : 0;
    }
    pthread_mutex_lock(&t->lock);
    t->stats.pushes += rc == 0;
    t->stats.push_failed += rc < 0;
    t->stats.pushed_bytes += rc == 0 ? bytes : 0;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* The version that is here, if it is dirty. The key is locked. */
static int push_version(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len,
                        struct leat_error *err)
{
    struct store *store = t->config.store;
    struct store_obj *obj;
    char tag[BACKEND_ETAG_MAX] = "";
    AUTO_FREE char *uri = NULL;
    int rc = tier_uri(b, key, key_len, &uri, err);
    if (rc == 0)
        rc = store_get(store, b->name, key, key_len, &obj, err);
    if (rc == LEAT_NOT_FOUND || rc == STORE_NO_BUCKET)
        return 0; /* it was deleted during the push, there too */
    if (rc < 0)
        return rc;
    if (key_state_of(obj) == KEY_DIRTY) {
        rc = store_obj_check(store, obj, 0, obj->info.bytes, err);
        if (rc == 0)
            rc = send(t, b, uri, obj->fd, obj->offset, obj->info.bytes, obj->meta, obj->meta_len, tag, err);
        fetch_supersede(t, b, key, key_len);
        if (rc == 0)
            rc = key_move(t, b, key, key_len, obj->info.seq, KEY_DIRTY, KEY_CLEAN, tag, err);
        if (rc == 0)
            tier_fresh_mark(t, b, key, key_len);
    }
    store_obj_unref(obj);
    return rc;
}

int push_key(struct tier *t, const char *bucket, const void *key, size_t key_len, struct leat_error *err)
{
    struct key_lock lock;
    struct tier_bucket *b = tier_bucket_find(t, bucket); /* settings may have changed since it was queued */
    if (!b)
        return 0;
    key_lock(t, &lock, b, key, key_len, KEY_LOCK_REMOTE_WRITE);
    /* They may have changed while it was waited for, too, and what is here by then is not this remote's: again, with the new ones. */
    int rc = is_gone(t, b) ? LEAT_STALE : push_version(t, b, key, key_len, err);
    key_unlock(t, &lock);
    tier_bucket_unref(t, b);
    return rc;
}

/* --- PUT ------------------------------------------------------------------------------------------------------------------------- */

int tier_put_begin(struct tier *t, const char *bucket, const void *key, size_t key_len, uint64_t bytes,
                   unsigned flags, struct store_put **ret_put, struct leat_error *err)
{
    struct tier_bucket *b = tier_bucket_find(t, bucket);
    /* In "through" it is read before it is committed. */
    if (b && b->remote.mode == TIER_THROUGH)
        flags |= STORE_PUT_BUFFERED;
    int rc = b ? tier_bucket_check(b, err) : 0;
    tier_bucket_unref(t, b);
    return rc < 0 ? rc : store_put_begin(t->config.store, bucket, key, key_len, bytes, flags, ret_put, err);
}

static bool conditional(const struct store_commit *c)
{
    return c->if_none_match || c->if_match || c->if_seq;
}

/* Conditions hold for what a GET would say now. The key is locked. */
static int check_conditions(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                            const struct store_commit *c, struct leat_error *err)
{
    struct tier_read *read;
    int rc = tier_open(t, b->name, key, key_len, TIER_HEAD, &read, err);
    if (rc == 0) {
        rc = tier_read_wait(read, 0, 0, err);
        if (rc == 0 && c->if_none_match)
            rc = error_set(err, STORE_PRECONDITION, "there is an object of this name already");
        else if (rc == 0 && c->if_match && strcmp(c->if_match, "*") != 0 &&
                 strcmp(c->if_match, read->view.info.etag) != 0)
            rc = error_set(err, STORE_PRECONDITION, "there is no object of this name with that ETag");
        tier_read_close(read);
    }
    if (rc == LEAT_NOT_FOUND)
        rc = c->if_match ? error_set(err, rc, "there is no object of this name") : 0;
    return rc;
}

/*
 * A clean version is KEY_UNKNOWN from here on: a crash must not leave it as the newest. *ret_old: it, whose tag was ret_tag, to be put back; or 0. An error:
 * that could not be noted, and the remote must not be asked to change it.
 */
static int doubt(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                 uint64_t *ret_old, char ret_tag[STORE_REMOTE_MAX + 1], struct leat_error *err)
{
    struct store_obj *old;
    struct store_info info;
    char tag[STORE_REMOTE_MAX + 1] = "";
    *ret_old = 0;
    *ret_tag = 0;
    enum key_state is = KEY_CLEAN; /* whatever its tag, where it cannot be read */
    int rc = store_get(t->config.store, b->name, key, key_len, &old, err);
    bool read = rc == 0;
    if (read) {
        info = old->info;
        is = key_state_of(old);
        snprintf(tag, sizeof(tag), "%s", old->remote);
        store_obj_unref(old);
    } else if (rc == LEAT_CORRUPT || rc == STORE_UNAVAILABLE) {
        rc = store_lookup(t->config.store, b->name, key, key_len, &info, err);
        if (rc == 0 && info.flags & STORE_DIRTY)
            is = KEY_DIRTY;
    }
    /* A version on a failed disk takes no mark. A PUT replaces it all the same; a DELETE does not come
     * this far. */
    if (rc == LEAT_NOT_FOUND || rc == STORE_NO_BUCKET || rc == STORE_UNAVAILABLE)
        return 0;
    if (rc < 0 || is != KEY_CLEAN)
        return rc;
    rc = key_move(t, b, key, key_len, info.seq, KEY_CLEAN, KEY_UNKNOWN, NULL, err);
    if (rc == 0 && read) {
        snprintf(ret_tag, STORE_REMOTE_MAX + 1, "%s", tag);
        *ret_old = info.seq;
    }
    return rc == LEAT_STALE ? 0 : rc;
}

/* The store's code if the bucket's remote is not the one that was asked. */
static int moved(int rc, const char *bucket, struct leat_error *err)
{
    return rc == LEAT_STALE
               ? error_set(err, LEAT_BUSY,
                           "bucket %s was given another remote, its first, or none, while this was "
                           "written: try again",
                           bucket)
               : rc;
}

/* Consumes the put. The key is locked. */
static int through(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len,
                   struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                   struct leat_error *err)
{
    AUTO_CLOSE int fd = -1;
    AUTO_FREE char *uri = NULL;
    char tag[BACKEND_ETAG_MAX] = "", old_tag[STORE_REMOTE_MAX + 1];
    uint64_t old;
    int rc = tier_uri(b, key, key_len, &uri, err);
    if (rc == 0)
        rc = store_put_push(put, err);
    if (rc == 0)
        rc = store_put_reader(put, &fd, err);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    fetch_supersede(t, b, key, key_len); /* what is on its way here would be taken for certain again */
    rc = doubt(t, b, key, key_len, &old, old_tag, err);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    rc = send(t, b, uri, fd, 0, store_put_bytes(put), commit->meta, commit->meta_len, tag, err);
    fetch_supersede(t, b, key, key_len);
    if (rc < 0) {
        store_put_abort(put);
        /* A remote that refused has the old one still; one that fell silent may have either. */
        if (old && rc == TIER_REFUSED)
            key_move(t, b, key, key_len, old, KEY_UNKNOWN, KEY_CLEAN, old_tag, NULL);
        else if (rc != TIER_REFUSED) /* and a GET may have brought the old one since */
            doubt(t, b, key, key_len, &old, old_tag, NULL);
        return rc;
    }
    struct store_commit c = *commit;
    c.remote = tag;
    c.remote_id = b->remote_id;
    c.flags &= ~(uint32_t)STORE_DIRTY;
    c.if_none_match = false; /* looked at before, there and here */
    c.if_match = NULL;
    c.if_seq = 0;
    rc = store_put_commit(put, &c, ret_info, err);
    if (rc == 0) {
        key_moved(b, key, key_len, KEY_ABSENT, KEY_CLEAN);
        tier_fresh_mark(t, b, key, key_len);
    }
    return moved(rc, b->name, err);
}

/* The bucket had no remote a moment ago. If it has one now, this is dirty, and is to be pushed: by us, or by tier_bucket_set, which looks for what is dirty
 * once we find the bucket. A condition was about what is here alone then: with one, it is refused. */
static int commit_plain(struct tier *t, const char *bucket, const void *key, size_t key_len,
                        struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                        struct leat_error *err)
{
    struct store_info info;
    struct store_commit c = *commit;
    c.if_remote_id = conditional(commit);
    c.remote_id = 0;
    int rc = moved(store_put_commit(put, &c, &info, err), bucket, err);
    struct tier_bucket *b = rc == 0 && info.flags & STORE_DIRTY ? tier_bucket_find(t, bucket) : NULL;
    if (b) {
        key_moved(b, key, key_len, KEY_ABSENT, KEY_DIRTY);
        push_add(t, b, key, key_len);
    }
    tier_bucket_unref(t, b);
    if (rc == 0 && ret_info)
        *ret_info = info;
    return rc;
}

int tier_check_meta(const char *bucket, const void *meta, size_t meta_len, struct leat_error *err)
{
    if (!meta_len)
        return 0;
    AUTO_FREE char *headers = malloc(BACKEND_HEADERS_MAX);
    int rc = headers ? tier_headers_of(meta, meta_len, headers) : -ENOMEM;
    return rc == LEAT_INVALID
               ? error_set(err, rc, "more metadata than the remote of bucket %s takes (%u names, %u bytes)",
                           bucket, BACKEND_HEADERS, BACKEND_HEADERS_MAX)
               : rc;
}

/* Consumes the put. The key is locked for others of mode "back". */
static int back(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len, struct store_put *put,
                const struct store_commit *commit, struct store_info *ret_info, struct leat_error *err)
{
    struct store_commit c = *commit; /* dirty, says the store, if the bucket has a remote still */
    c.if_remote_id = conditional(commit);
    c.remote_id = c.if_remote_id ? b->remote_id : 0;
    /* Looked at; what it is about may be there alone. That there is none is checked again: a writer that
     * knew of no remote holds no key. */
    c.if_match = NULL;
    /* A version that the remote never takes would be dirty for ever. */
    int rc = tier_key_check(b, key, key_len, err);
    if (rc == 0)
        rc = tier_check_meta(b->name, commit->meta, commit->meta_len, err);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    rc = moved(store_put_commit(put, &c, ret_info, err), b->name, err);
    fetch_supersede(t, b, key, key_len);
    if (rc == 0) {
        key_moved(b, key, key_len, KEY_ABSENT, KEY_DIRTY);
        push_add(t, b, key, key_len);
    }
    return rc;
}

int tier_put_commit(struct tier *t, const char *bucket, const void *key, size_t key_len,
                    struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                    struct leat_error *err)
{
    for (;;) {
        struct tier_bucket *b = tier_bucket_find(t, bucket);
        struct key_lock lock;
        if (!b)
            return commit_plain(t, bucket, key, key_len, put, commit, ret_info, err);
        /* In "back" no commit waits for a push of the version before: a push sends the version that is
         * here by then. But no other commit may come between the check of a condition and its commit. */
        bool through_it = b->remote.mode == TIER_THROUGH;
        key_lock(t, &lock, b, key, key_len, through_it ? KEY_LOCK_REMOTE_WRITE : KEY_LOCK_COMMIT);
        int rc = conditional(commit) ? check_conditions(t, b, key, key_len, commit, err) : 0;
        /* Its settings were changed while the key was waited for, or the conditions looked at. */
        bool anew = rc != STORE_PRECONDITION && is_gone(t, b);
        if (!anew && rc < 0)
            store_put_abort(put);
        else if (!anew)
            rc = (through_it ? through : back)(t, b, key, key_len, put, commit, ret_info, err);
        key_unlock(t, &lock);
        tier_bucket_unref(t, b);
        if (!anew)
            return rc;
    }
}

/* There, and then here what was here before. The key is locked with both bits. */
static int delete_held(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len,
                       struct leat_error *err)
{
    struct tier_session *s;
    struct store_info info = {0};
    AUTO_FREE char *uri = NULL;
    char old_tag[STORE_REMOTE_MAX + 1];
    int is = store_lookup(t->config.store, b->name, key, key_len, &info, err);
    if (is < 0 && is != LEAT_NOT_FOUND && is != STORE_NO_BUCKET)
        return is; /* it may be here, and would be pushed again: the remote is not asked */
    if (tier_key_check(b, key, key_len, NULL) == LEAT_INVALID) /* it is not there, and never was */
        return is == 0 ? store_delete(t->config.store, b->name, key, key_len, info.seq, err) : LEAT_NOT_FOUND;
    int rc = tier_uri(b, key, key_len, &uri, err);
    if (rc == 0)
        rc = tier_session_get(t, b, &s, err);
    if (rc < 0)
        return rc;
    fetch_supersede(t, b, key, key_len);
    uint64_t old;
    rc = doubt(t, b, key, key_len, &old, old_tag, err); /* a crash may come when it is gone there alone */
    if (rc < 0) {
        tier_session_put(t, b, s);
        return rc;
    }
    rc = backend_delete(s->backend, uri, err);
    tier_session_put(t, b, s);
    bool gone = rc == LEAT_NOT_FOUND;
    if (rc < 0 && !gone)
        rc = tier_remote_error(b, rc, err);
    fetch_supersede(t, b, key, key_len);
    if (rc == TIER_REFUSED && old)
        key_move(t, b, key, key_len, old, KEY_UNKNOWN, KEY_CLEAN, old_tag, NULL);
    else if (rc < 0 && !gone) /* it may be gone there */
        doubt(t, b, key, key_len, &old, old_tag, NULL);
    if (rc < 0 && !gone)
        return rc;
    /* A version stored since then stays, and is pushed. */
    int here = is == 0 ? store_delete(t->config.store, b->name, key, key_len, info.seq, err) : LEAT_NOT_FOUND;
    return here == STORE_PRECONDITION || (here == LEAT_NOT_FOUND && !gone) ? 0 : here;
}

int tier_delete(struct tier *t, const char *bucket, const void *key, size_t key_len, struct leat_error *err)
{
    for (;;) {
        struct tier_bucket *b = tier_bucket_find(t, bucket);
        struct key_lock remote, commit;
        if (!b)
            return store_delete(t->config.store, bucket, key, key_len, 0, err);
        /* Also for those of mode "back": a condition would see what is gone there, and is about to be gone here.
         * One lock after the other: if it waited for both at once, writers that take one of them could delay it for ever. */
        key_lock(t, &remote, b, key, key_len, KEY_LOCK_REMOTE_WRITE);
        key_lock(t, &commit, b, key, key_len, KEY_LOCK_COMMIT);
        /* Its settings were changed while the key was waited for: it is to be gone at the remote that is there now. */
        bool again = is_gone(t, b);
        int rc = again ? 0 : delete_held(t, b, key, key_len, err);
        key_unlock(t, &commit);
        key_unlock(t, &remote);
        tier_bucket_unref(t, b);
        if (!again)
            return rc;
    }
}
