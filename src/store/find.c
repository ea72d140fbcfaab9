/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c: the path that has a key, and the path that a new object gets.
 *
 * Look-up: every path's index is asked, the newest version counts. So nothing moves when paths come or go.
 * Placement: highest random weight (Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit
 * Rates", IEEE/ACM ToN 1998) over the paths that are in order and have room, weighted by what they may hold
 * (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005: the logarithmic method).
 */
#include "store/internal.h"

#include <math.h>
#include <time.h>
#include <xxhash.h>

#include "base/rng.h"

uint64_t store_ikey_hash(const struct ikey *k)
{
    return XXH3_64bits(k->bytes, k->len);
}

void store_stripes_lock(struct store *s, struct stripe_set *set, const struct ikey *keys, unsigned n)
{
    *set = (struct stripe_set){0};
    for (unsigned i = 0; i < n; i++) {
        uint64_t stripe = store_ikey_hash(&keys[i]) % STORE_STRIPES;
        set->bits[stripe / 64] |= 1ull << stripe % 64;
    }
    pthread_mutex_lock(&s->stripes_lock);
    for (unsigned i = 0; i < STORE_STRIPES; i++) {
        uint64_t bit = 1ull << i % 64;
        if (!(set->bits[i / 64] & bit))
            continue;
        while (s->stripes.bits[i / 64] & bit)
            pthread_cond_wait(&s->stripes_cond, &s->stripes_lock);
        s->stripes.bits[i / 64] |= bit;
    }
    pthread_mutex_unlock(&s->stripes_lock);
}

void store_stripes_unlock(struct store *s, const struct stripe_set *set)
{
    pthread_mutex_lock(&s->stripes_lock);
    for (unsigned i = 0; i < ARRAY_LEN(set->bits); i++)
        s->stripes.bits[i] &= ~set->bits[i];
    pthread_cond_broadcast(&s->stripes_cond);
    pthread_mutex_unlock(&s->stripes_lock);
}

uint64_t *store_deleted(struct store *s, const void *ikey, size_t len)
{
    return &s->deleted[XXH3_64bits(ikey, len) % STORE_STRIPES];
}

int64_t store_wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Numbers of versions grow on every path, also where one with higher numbers is not there just now: they follow the clock. */
uint64_t store_next_seq(struct store *s)
{
    uint64_t now = (uint64_t)store_wall_ns(), last = atomic_load(&s->seq), next;
    do
        next = MAX(last + 1, now);
    while (!atomic_compare_exchange_weak(&s->seq, &last, next));
    return next;
}

const char *store_key_text(const char *bucket, const void *key, size_t key_len, char out[KEY_TEXT_MAX])
{
    int n = snprintf(out, KEY_TEXT_MAX, "%s/", bucket);
    const uint8_t *k = key;
    for (size_t i = 0; i < key_len; i++) {
        if (n + 8 > (int)KEY_TEXT_MAX) {
            memcpy(out + n, "...", 4);
            break;
        }
        bool plain = k[i] >= 0x20 && k[i] < 0x7f && k[i] != '\\';
        n += snprintf(out + n, (size_t)(KEY_TEXT_MAX - n), plain ? "%c" : "\\x%02x", k[i]);
    }
    return out;
}

/* A failed path whose index was loaded is asked like the others; one that was not may hold anything. */
bool store_may_hold(struct path *p, const struct ikey *k)
{
    if (!p->loaded)
        return true;
    struct index_item item;
    pthread_rwlock_rdlock(&p->index.lock);
    bool found = store_index_find(&p->index, k->bytes, k->len, &item);
    pthread_rwlock_unlock(&p->index.lock);
    return found;
}

int store_find(struct store *s, const struct ikey *k, bool touch, struct found *ret)
{
    bool any = false, blind = false;
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        struct index_item item;
        if (!p->loaded) {
            blind = true;
            continue;
        }
        pthread_rwlock_rdlock(&p->index.lock);
        if (store_index_find(&p->index, k->bytes, k->len, &item) &&
            (!any || item.value.seq > ret->value.seq)) {
            any = true;
            const char *text = store_extra_get(item.extra, item.extra_len, 'e'),
                       *remote = store_extra_get(item.extra, item.extra_len, 'r');
            ret->path = p;
            ret->value = item.value;
            store_etag_format(item.value.etag, item.value.parts, text, ret->etag);
            ret->has_remote = remote;
            ret->remote[0] = 0;
            if (remote) /* rare: every GET runs this code */
                snprintf(ret->remote, sizeof(ret->remote), "%s", remote);
            if (touch)
                atomic_store_explicit(item.clock, 1, memory_order_relaxed);
        }
        pthread_rwlock_unlock(&p->index.lock);
    }
    if (any && atomic_load(&ret->path->failed))
        return STORE_UNAVAILABLE;
    return any ? 0 : blind ? STORE_UNAVAILABLE : LEAT_NOT_FOUND;
}

/* -weight / ln(h), for an h in (0, 1) that follows from path and key: the path with the greatest has the key, so that each gets its weight's share. */
static double score(const struct path *p, uint64_t hash)
{
    uint64_t id;
    memcpy(&id, p->id, sizeof(id));
    double h = ((double)(rng_mix64(hash ^ id) >> 11) + 0.5) * 0x1p-53;
    return -(double)MAX(p->weight_mib, 1u) / log(h);
}

static bool is_before(double a, unsigned a_number, double b, unsigned b_number)
{
    return a > b || (a == b && a_number < b_number);
}

/* The nth best path for a key among those in order; NULL: there are no more. */
struct path *store_place(struct store *s, const struct ikey *k, unsigned nth)
{
    uint64_t hash = store_ikey_hash(k);
    struct path *best = NULL;
    double score_above = 0, score_best = 0;
    for (unsigned round = 0, above = 0; round <= nth; round++) {
        best = NULL;
        for (unsigned i = 0; i < s->npaths; i++) {
            struct path *p = s->paths[i];
            if (atomic_load(&p->failed))
                continue;
            double now = score(p, hash);
            if ((round == 0 || is_before(score_above, above, now, i)) &&
                (!best || is_before(now, i, score_best, best->number))) {
                best = p;
                score_best = now;
            }
        }
        if (!best)
            return NULL;
        above = best->number;
        score_above = score_best;
    }
    return best;
}
