/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.c: what this node knows of one key: who works on it, and when it was last compared with the remote.
 *
 * Invariants: of the threads that lock a key with the same bit one has it, but for KEY_LOCK_KEEP, which fetches share.
 */
#include "objects/tier/tier_internal.h"

#include <xxhash.h>

#include "base/clock.h"

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

bool tier_fresh_is(struct tier *t, const struct tier_bucket *b, const void *key, size_t key_len,
                   const char *remote)
{
    if (!*remote || b->remote.check == TIER_ALWAYS)
        return false; /* "": a push of another version was cut off, and may have arrived */
    if (b->remote.check == TIER_NEVER)
        return true;
    uint64_t hash = tier_key_hash(b, key, key_len);
    uint64_t slot = atomic_load_explicit(&t->fresh[hash % FRESH_SLOTS], memory_order_relaxed);
    return (slot ^ hash) >> 32 == 0 && (uint32_t)slot && now_s() - (uint32_t)slot < b->remote.age_s;
}

bool tier_fresh(struct tier *t, const char *bucket, const void *key, size_t key_len,
                const struct store_obj *obj)
{
    struct tier_bucket *b = t ? tier_bucket_find(t, bucket) : NULL;
    bool fresh = !b || obj->info.flags & STORE_DIRTY || tier_fresh_is(t, b, key, key_len, obj->remote);
    tier_bucket_unref(t, b);
    return fresh;
}
