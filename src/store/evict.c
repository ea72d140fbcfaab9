/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c: what goes when a disk fills: clean objects of buckets with a remote, least recently used first.
 *
 * Happy path: above `high` a hand goes round the path's index (the clock of Corbato, 1968). An object used
 * since the hand passed is spared once, the others go, until the path is below `low`. Paths on one file
 * system, which is full for all of them at once, free each its share.
 * Failure modes: nothing that may go is left: PUTs are refused with LEAT_NO_SPACE, and the log has that once.
 * Invariants: dirty objects, and those of buckets without a remote, are never looked at twice. An object is
 * deleted as the version that was seen: one that was stored again since then stays. While it is deleted its
 * bucket keeps its remote: a bucket without one has the only copy.
 */
#include "store/internal.h"

#include "base/log.h"

enum { BATCH = 256, LOOKS = 4096 };

static uint64_t bytes_in(struct path *p)
{
    pthread_rwlock_rdlock(&p->index.lock);
    uint64_t bytes = p->index.bytes;
    pthread_rwlock_unlock(&p->index.lock);
    return bytes;
}

/* Bytes above `percent` of what its file system may hold, for all paths on it together; 0: not over. */
static uint64_t disk_excess(struct path *p, unsigned percent)
{
    struct store *s = p->store;
    uint64_t free_bytes, total;
    if (s->io->space(s->io, p->dir, &free_bytes, &total) < 0)
        return 0;
    uint64_t limit = total / 100 * percent, used = total - MIN(free_bytes, total);
    return used > limit ? used - limit : 0;
}

/* The same for the path's own limit. */
static uint64_t path_excess(struct path *p, unsigned percent)
{
    uint64_t limit = p->store->capacity_bytes / 100 * percent, used = limit ? bytes_in(p) : 0;
    return used > limit ? used - limit : 0;
}

/* This path's share of the bytes to free on its file system: in proportion to its bytes there. */
static uint64_t share(struct path *p, uint64_t over)
{
    struct store *s = p->store;
    uint64_t own = bytes_in(p), all = 0;
    for (unsigned i = 0; i < s->npaths; i++)
        if (s->paths[i] == p || (p->device && s->paths[i]->device == p->device && s->paths[i]->loaded))
            all += bytes_in(s->paths[i]);
    if (own == 0 && all > 0)
        return 0;
    return all ? (uint64_t)((double)over * ((double)own / (double)all)) + 1 : over;
}

struct victims {
    struct ikey keys[BATCH];
    uint64_t seqs[BATCH], sizes[BATCH];
    int codes[BATCH];
    unsigned n;
    uint64_t bytes;     /* of all of them */
    unsigned away;      /* so many stayed, as a path that has failed may have older versions */
    uint32_t bucket_id; /* the last one asked about */
    bool bucket_remote, wrapped;
};

static void take(struct victims *v, const struct index_item *item)
{
    memcpy(v->keys[v->n].bytes, item->key, item->key_len);
    v->keys[v->n].len = item->key_len;
    v->seqs[v->n] = item->value.seq;
    v->sizes[v->n] = item->value.bytes + item->value.trailer_bytes;
    v->bytes += v->sizes[v->n++];
}

static uint32_t bucket_of(const void *ikey)
{
    uint32_t big;
    memcpy(&big, ikey, 4);
    return __builtin_bswap32(big);
}

/* Clean objects of one bucket, which the caller has not entered; LEAT_INVALID: it has no remote any more. */
static int remove_clean(struct store *s, const struct ikey *keys, const uint64_t *seqs, unsigned n,
                        int *ret_codes, struct leat_error *err)
{
    char bucket[STORE_BUCKET_MAX + 1];
    uint32_t id = bucket_of(keys[0].bytes);
    bool remote;
    int rc = 0;
    for (unsigned i = 0; i < n; i++)
        ret_codes[i] = LEAT_INVALID;
    if (!store_bucket_is_remote(s, id, bucket) || store_bucket_enter(s, bucket, id, &remote, NULL, NULL) < 0)
        return 0;
    if (remote)
        rc = store_remove(s, keys, seqs, n, ret_codes, err);
    store_bucket_leave(s, bucket);
    return rc;
}

/* *ret_freed: of those that went; others may be another version by now, or a path that has failed may have an older one. */
static int remove_victims(struct path *p, struct victims *v, uint64_t *ret_freed)
{
    unsigned gone = 0;
    int rc = 0;
    *ret_freed = 0;
    for (unsigned from = 0, to; rc == 0 && from < v->n; from = to) {
        for (to = from + 1; to < v->n && bucket_of(v->keys[to].bytes) == bucket_of(v->keys[from].bytes);)
            to++;
        rc = remove_clean(p->store, &v->keys[from], &v->seqs[from], to - from, &v->codes[from], NULL);
    }
    for (unsigned i = 0; rc == 0 && i < v->n; i++) {
        gone += v->codes[i] == 0;
        v->away += v->codes[i] == STORE_UNAVAILABLE;
        *ret_freed += v->codes[i] == 0 ? v->sizes[i] : 0;
    }
    atomic_fetch_add(&p->evicted, gone);
    atomic_fetch_add(&p->evicted_bytes, *ret_freed);
    return rc;
}

/* Moves the hand on over at most LOOKS objects. Buckets are asked about before: store_bucket_is_remote takes a lock of its own, a short one. */
static void collect(struct path *p, struct victims *v, uint64_t wanted)
{
    struct index_cursor c;
    char name[STORE_BUCKET_MAX + 1];
    v->n = 0;
    v->bytes = 0;
    v->bucket_id = 0; /* no bucket's; the one before may have no remote by now */
    v->bucket_remote = false;
    pthread_rwlock_rdlock(&p->index.lock);
    store_index_seek(&c, &p->index, p->hand, p->hand_len);
    for (unsigned looks = 0; c.valid && looks < LOOKS && v->n < BATCH && v->bytes < wanted;
         store_index_next(&c), looks++) {
        const struct index_item *item = &c.item;
        uint32_t id = bucket_of(item->key);
        if (id != v->bucket_id) {
            v->bucket_id = id;
            v->bucket_remote = store_bucket_is_remote(p->store, id, name);
        }
        if (!v->bucket_remote || item->value.flags & STORE_DIRTY)
            continue;
        if (atomic_exchange_explicit(item->clock, 0, memory_order_relaxed))
            continue;
        take(v, item);
    }
    v->wrapped = !c.valid;
    p->hand_len = c.valid ? c.item.key_len : 0;
    if (c.valid)
        memcpy(p->hand, c.item.key, c.item.key_len);
    pthread_rwlock_unlock(&p->index.lock);
}

/* Until `target` bytes are freed, or no path is over any more. */
static void evict(struct path *p, uint64_t target)
{
    const unsigned low = p->store->low_percent;
    struct victims *v = calloc(1, sizeof(*v));
    unsigned rounds = 0;
    uint64_t freed = 0, now, before = atomic_load(&p->evicted);
    /* Twice round without a victim: the first round spared all that were used. */
    while (v && rounds < 3 && freed < target && (disk_excess(p, low) > 0 || path_excess(p, low) > 0)) {
        collect(p, v, target - freed);
        if (remove_victims(p, v, &now) < 0)
            break;
        freed += now;
        rounds = now ? 0 : rounds + v->wrapped;
    }
    if (rounds >= 3 && !atomic_exchange(&p->over_high, true))
        log_warning(
            "%s is fuller than %u %%, and nothing on it may be evicted: %s", p->dir, p->store->high_percent,
            v->away ? "another path of the store has failed or was not given, and may have older "
                      "versions, which would be there again: give it, or have it forgotten (forget_missing)"
                    : "what is there has no remote, or the remote has not got it");
    else if (freed)
        log_info("%s: %llu objects evicted", p->dir, (unsigned long long)(atomic_load(&p->evicted) - before));
    free(v);
}

void store_evict_turn(struct store *s)
{
    uint64_t targets[STORE_PATHS_MAX] = {0};
    /* All are asked before the first evicts: of paths on one file system it alone would make all of the room. */
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        if (!p->loaded || atomic_load(&p->failed))
            continue;
        if (disk_excess(p, s->high_percent) > 0)
            targets[i] = share(p, disk_excess(p, s->low_percent));
        if (path_excess(p, s->high_percent) > 0)
            targets[i] = MAX(targets[i], path_excess(p, s->low_percent));
    }
    for (unsigned i = 0; i < s->npaths; i++)
        if (targets[i])
            evict(s->paths[i], targets[i]);
        else
            atomic_store(&s->paths[i]->over_high, false);
}

bool store_give_up(struct store *s, const struct ikey *k, uint64_t seq)
{
    struct found f;
    int rc;
    return store_find(s, k, false, &f) == 0 && f.value.seq == seq && !(f.value.flags & STORE_DIRTY) &&
           remove_clean(s, k, &seq, 1, &rc, NULL) == 0 && rc == 0;
}

/* --- room for one object ------------------------------------------------------------------------------------------------------ */

enum { LOOKED_AT_TOO = 1 };

/* Some of a bucket's clean objects on this path, from `hand` on, which moves. Were these the last? */
static bool stretch(struct path *p, uint32_t bucket_id, struct ikey *hand, unsigned which, uint64_t wanted,
                    struct victims *v)
{
    struct index_cursor c;
    uint32_t big = __builtin_bswap32(bucket_id);
    v->n = 0;
    v->bytes = 0;
    pthread_rwlock_rdlock(&p->index.lock);
    store_index_seek(&c, &p->index, hand->bytes, hand->len);
    for (unsigned looks = 0;
         c.valid && memcmp(c.item.key, &big, 4) == 0 && looks < LOOKS && v->n < BATCH && v->bytes < wanted;
         store_index_next(&c), looks++) {
        bool looked_at = atomic_load_explicit(c.item.clock, memory_order_relaxed);
        if (!(c.item.value.flags & STORE_DIRTY) && (which & LOOKED_AT_TOO || !looked_at))
            take(v, &c.item);
    }
    bool last = !c.valid || memcmp(c.item.key, &big, 4) != 0;
    if (!last) {
        memcpy(hand->bytes, c.item.key, c.item.key_len);
        hand->len = c.item.key_len;
    }
    pthread_rwlock_unlock(&p->index.lock);
    return last;
}

/* Are there so many bytes to evict? */
static bool has_enough(struct path *p, uint32_t bucket_id, uint64_t wanted, struct victims *v)
{
    struct ikey hand;
    uint64_t there = 0;
    bool last = false;
    ikey_set(&hand, bucket_id, "", 0);
    while (!last && there < wanted) {
        last = stretch(p, bucket_id, &hand, LOOKED_AT_TOO, wanted - there, v);
        there += v->bytes;
    }
    return there >= wanted;
}

/* A little more than is missing, so that the next caller need not walk here again. */
static uint64_t free_on(struct path *p, uint32_t bucket_id, uint64_t missing, struct victims *v)
{
    uint64_t wanted = missing + MIN(missing, 16 * MIB), freed = 0, now;
    for (unsigned which = 0; which <= LOOKED_AT_TOO && freed < missing; which++) {
        struct ikey hand;
        bool last = false;
        ikey_set(&hand, bucket_id, "", 0);
        while (!last && freed < wanted) {
            last = stretch(p, bucket_id, &hand, which, wanted - freed, v);
            if (remove_victims(p, v, &now) < 0)
                return freed;
            freed += now;
        }
    }
    return freed;
}

int store_make_room(struct store *s, const char *bucket, uint64_t bytes, struct leat_error *err)
{
    uint32_t id, flags;
    uint64_t freed = 0;
    int rc = store_bucket_find(s, bucket, &id, &flags, err);
    if (rc < 0)
        return rc;
    struct victims *v = flags & STORE_BUCKET_REMOTE ? malloc(sizeof(*v)) : NULL;
    for (unsigned i = 0; v && freed == 0 && i < s->npaths; i++) {
        struct path *p = s->paths[i];
        if (!p->loaded || atomic_load(&p->failed))
            continue;
        uint64_t missing = store_shortage(p, bytes);
        missing = missing ? missing : bytes; /* the file system refused it nevertheless */
        if (has_enough(p, id, missing, v))
            freed = free_on(p, id, missing, v);
    }
    free(v);
    return freed ? 0
                 : error_set(err, LEAT_NO_SPACE,
                             "the store is full, and evicting from bucket '%s' would not make enough room",
                             bucket);
}

int store_evict(struct store *s, const char *bucket, const void *key, size_t key_len, struct leat_error *err)
{
    uint32_t id, flags;
    struct ikey k;
    struct found f;
    char text[KEY_TEXT_MAX];
    int code, rc = store_bucket_check_key(key, key_len, err);
    if (rc == 0)
        rc = store_bucket_find(s, bucket, &id, &flags, err);
    if (rc < 0)
        return rc;
    if (!(flags & STORE_BUCKET_REMOTE))
        return error_set(err, LEAT_INVALID, "bucket '%s' has no remote: what is evicted would be lost",
                         bucket);
    ikey_set(&k, id, key, key_len);
    rc = store_find(s, &k, false, &f);
    if (rc < 0)
        return error_set(err, rc, "%s cannot be evicted: %s", store_key_text(bucket, key, key_len, text),
                         rc == LEAT_NOT_FOUND ? "there is no such object" : "its disk has failed");
    if (f.value.flags & STORE_DIRTY)
        return error_set(err, LEAT_BUSY, "%s is not at the remote yet",
                         store_key_text(bucket, key, key_len, text));
    rc = remove_clean(s, &k, &f.value.seq, 1, &code, err);
    if (rc < 0 || code < 0)
        return rc < 0 ? rc
                      : error_set(err, code, "%s was changed in the meantime",
                                  store_key_text(bucket, key, key_len, text));
    atomic_fetch_add(&f.path->evicted, 1);
    atomic_fetch_add(&f.path->evicted_bytes, f.value.bytes + f.value.trailer_bytes);
    return 0;
}

/* --- deletions and marks by name -------------------------------------------------------------------------------------------- */

int store_delete_many(struct store *s, const char *bucket, const struct store_key *keys, unsigned n,
                      int *ret_codes, struct leat_error *err)
{
    uint32_t id;
    int rc = store_bucket_find(s, bucket, &id, NULL, err);
    if (rc < 0 || n == 0)
        return rc;
    AUTO_FREE struct ikey *k = calloc(n, sizeof(*k));
    if (!k)
        return error_set(err, -ENOMEM, "no memory to delete %u keys", n);
    for (unsigned i = 0; i < n; i++) {
        rc = store_bucket_check_key(keys[i].key, keys[i].key_len, err);
        if (rc < 0)
            return rc;
        ikey_set(&k[i], id, keys[i].key, keys[i].key_len);
    }
    return store_remove(s, k, NULL, n, ret_codes, err);
}

int store_delete(struct store *s, const char *bucket, const void *key, size_t key_len, uint64_t if_seq,
                 struct leat_error *err)
{
    uint32_t id;
    struct ikey k;
    char text[KEY_TEXT_MAX];
    int code, rc = store_bucket_check_key(key, key_len, err);
    if (rc == 0)
        rc = store_bucket_find(s, bucket, &id, NULL, err);
    if (rc < 0)
        return rc;
    ikey_set(&k, id, key, key_len);
    rc = store_remove(s, &k, &if_seq, 1, &code, err);
    if (rc < 0)
        return rc;
    if (code == LEAT_NOT_FOUND)
        return error_set(err, code, "there is no object %s", store_key_text(bucket, key, key_len, text));
    return code < 0 ? error_set(err, code == LEAT_STALE ? STORE_PRECONDITION : code,
                                "%s cannot be deleted: %s", store_key_text(bucket, key, key_len, text),
                                code == LEAT_STALE ? "it is another version by now" : leat_strerror(code))
                    : 0;
}

int store_mark_clean(struct store *s, const char *bucket, const void *key, size_t key_len, uint64_t seq,
                     uint64_t remote_id, const char *remote, struct leat_error *err)
{
    uint64_t now;
    uint32_t id;
    struct ikey k;
    int rc = store_bucket_check_key(key, key_len, err);
    if (rc == 0)
        rc = store_bucket_find(s, bucket, &id, NULL, err);
    if (rc < 0)
        return rc;
    if (remote && strlen(remote) > STORE_REMOTE_MAX)
        return error_set(err, LEAT_INVALID, "a remote's ETag of more than %u characters", STORE_REMOTE_MAX);
    rc = store_bucket_stay(s, bucket, id, &now, err);
    if (rc < 0)
        return rc;
    ikey_set(&k, id, key, key_len);
    rc = remote_id && remote_id != now
             ? error_set(err, LEAT_STALE, "bucket '%s' has another remote by now", bucket)
             : store_flag(s, &k, seq, STORE_DIRTY, 0, remote, true, err);
    store_bucket_leave(s, bucket);
    return rc == LEAT_NOT_FOUND ? error_set(err, LEAT_STALE, "it was deleted in the meantime") : rc;
}
