/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.c: one key of a caching bucket: the state of its version here, its lock, and when it was last compared
 * with the remote.
 *
 * Invariants: of the threads that lock a key with the same bit one has it, but for KEY_LOCK_KEEP, which
 * fetches share.
 */
#include "objects/tier/tier_internal.h"

#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"

/* --- what was compared a moment ago --------------------------------------------------------------------------------------------- */

uint64_t tier_key_hash(const struct tier_bucket *b, const void *key, size_t key_len)
{
    return XXH3_64bits_withSeed(key, key_len, XXH3_64bits(b->name, strlen(b->name)));
}

static uint32_t now_s(void)
{
    return (uint32_t)(clock_now_ns() / NS_PER_S) + 1;
}

void tier_fresh_mark(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len)
{
    uint64_t hash = tier_key_hash(b, key, key_len);
    atomic_store_explicit(&t->fresh[hash % FRESH_SLOTS], (hash & 0xffffffff00000000u) | now_s(),
                          memory_order_relaxed);
}

static bool was_compared(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len)
{
    if (b->remote.check != TIER_AGE)
        return b->remote.check == TIER_NEVER;
    uint64_t hash = tier_key_hash(b, key, key_len);
    uint64_t slot = atomic_load_explicit(&t->fresh[hash % FRESH_SLOTS], memory_order_relaxed);
    return (slot ^ hash) >> 32 == 0 && (uint32_t)slot && now_s() - (uint32_t)slot < b->remote.age_s;
}

/* --- states ------------------------------------------------------------------------------------------------------------------ */

#define P(state) (1u << KEY_##state)
static const uint32_t key_moves[KEY_STATES] = {
    [KEY_ABSENT] = P(CLEAN) | P(DIRTY), /* fetched, or put through; put back */
    [KEY_CLEAN] = P(UNKNOWN) | P(ABSENT),
    [KEY_UNKNOWN] = P(CLEAN) | P(ABSENT), /* CLEAN: the remote refused to change it */
    [KEY_DIRTY] = P(CLEAN) | P(ABSENT),   /* never UNKNOWN, which may be evicted */
};

void key_moved(const struct tier_bucket *b, const void *key, size_t key_len, enum key_state from,
               enum key_state to)
{
    static const char *const names[KEY_STATES] = {"absent", "clean", "unknown", "dirty"};
    assert(to < KEY_STATES && (key_moves[from] >> to & 1));
    log_debug("bucket %s: %.*s: %s -> %s", b->name, (int)MIN(key_len, (size_t)200), (const char *)key,
              names[from], names[to]);
}

int key_move(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len, uint64_t seq,
             enum key_state from, enum key_state to, const char *tag, struct leat_error *err)
{
    assert(key_moves[from] >> to & 1);
    int rc = store_mark_clean(t->config.store, b->name, key, key_len, seq, b->remote_id,
                              to == KEY_CLEAN ? tag : "", err);
    if (rc == 0)
        key_moved(b, key, key_len, from, to);
    return rc;
}

enum key_state key_state_of(const struct store_obj *obj)
{
    return obj->info.flags & STORE_DIRTY ? KEY_DIRTY : *obj->remote ? KEY_CLEAN : KEY_UNKNOWN;
}

bool key_is_current(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                    const struct store_obj *obj)
{
    enum key_state is = key_state_of(obj);
    return is == KEY_DIRTY || (is == KEY_CLEAN && was_compared(t, b, key, key_len));
}

bool tier_fresh(struct tier *t, const char *bucket, const void *key, size_t key_len,
                const struct store_obj *obj)
{
    struct tier_bucket *b = tier_bucket_find(t, bucket);
    bool fresh = !b || key_is_current(t, b, key, key_len, obj);
    tier_bucket_unref(t, b);
    return fresh;
}

/* --- locks ------------------------------------------------------------------------------------------------------------------- */

bool key_is_locked(const struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                   unsigned bits)
{
    list_for_each (node, &t->locks) {
        const struct key_lock *l = container_of(node, struct key_lock, node);
        if (l->bits & bits && l->key_len == key_len && strcmp(l->bucket->name, b->name) == 0 &&
            memcmp(l->key, key, key_len) == 0)
            return true;
    }
    return false;
}

void key_lock(struct tier *t, struct key_lock *l, const struct tier_bucket *b, const void *key,
              size_t key_len, unsigned bits)
{
    *l = (struct key_lock){.bucket = b, .key = key, .key_len = key_len, .bits = bits};
    pthread_mutex_lock(&t->lock);
    while (key_is_locked(t, b, key, key_len, bits))
        pthread_cond_wait(&t->changed_cond, &t->lock);
    list_push_back(&t->locks, &l->node);
    pthread_mutex_unlock(&t->lock);
}

void key_unlock(struct tier *t, struct key_lock *l)
{
    pthread_mutex_lock(&t->lock);
    list_remove(&l->node);
    pthread_cond_broadcast(&t->changed_cond);
    pthread_mutex_unlock(&t->lock);
}
