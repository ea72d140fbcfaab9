/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members.c: the indexes that are kept, and how one of them is asked.
 *
 *   find ──▶ known? ──no──▶ listed as BUILDING, lock released, archive_index_build ──▶ READY, or removed from the list
 *              └──BUILDING by another: wait for it
 *
 * Failure modes: an archive that cannot be read is read again by the next request: nothing is kept of it. Invariants: an index in use
 * has refs and is not evicted; its bytes are charged while they are there, and nothing else is allocated for members.
 */
#include "serve/s3/members.h"

#include <pthread.h>
#include <xxhash.h>

#include "base/list.h"
#include "base/budget.h"
#include "serve/s3/archive_index.h"

#define BUCKETS 256u

struct kept {
    struct list node, lru;
    unsigned refs;
    bool building, failed;
    struct leat_error why; /* failed */
    struct archive_index archive;
    uint64_t charged;
    uint64_t seq;
    size_t id_len;
    char id[]; /* bucket, NUL, key */
};

struct members {
    struct budget *budget;
    pthread_mutex_t
        lock; /* all below, and of an index all but `archive`, which is constant once it is built */
    pthread_cond_t built;
    struct list buckets[BUCKETS];
    struct list lru; /* of those that are built; the one used last is at the back */
    struct members_stats stats;
};

int members_new(struct budget *budget, struct members **ret_members)
{
    struct members *m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    m->budget = budget;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->built, NULL);
    list_init(&m->lru);
    for (unsigned i = 0; i < BUCKETS; i++)
        list_init(&m->buckets[i]);
    *ret_members = m;
    return 0;
}

/* --- under the lock ------------------------------------------------------------------------------------------------ */

static void index_free(struct members *m, struct kept *x)
{
    budget_release(m->budget, x->charged);
    archive_index_fini(&x->archive);
    free(x);
}

static void index_unlist(struct members *m, struct kept *x)
{
    list_remove(&x->node);
    if (!list_empty(&x->lru)) {
        list_remove(&x->lru);
        m->stats.indexes--;
        m->stats.members -= x->archive.n;
        m->stats.bytes -= x->charged;
    }
}

/* The least recently used one; false: all are in use. */
static bool evict_one(struct members *m)
{
    list_for_each (node, &m->lru) {
        struct kept *x = container_of(node, struct kept, lru);
        if (x->refs)
            continue;
        index_unlist(m, x);
        index_free(m, x);
        m->stats.evicted++;
        return true;
    }
    return false;
}

static struct list *bucket_of(struct members *m, const char *id, size_t id_len, uint64_t seq)
{
    return &m->buckets[XXH3_64bits_withSeed(id, id_len, seq) % BUCKETS];
}

static struct kept *lookup(struct members *m, const char *id, size_t id_len, uint64_t seq)
{
    list_for_each (node, bucket_of(m, id, id_len, seq)) {
        struct kept *x = container_of(node, struct kept, node);
        if (x->seq == seq && x->id_len == id_len && !memcmp(x->id, id, id_len))
            return x;
    }
    return NULL;
}

static void index_unref(struct members *m, struct kept *x)
{
    if (--x->refs == 0 && x->failed)
        index_free(m, x);
}

void members_free(struct members *m)
{
    if (!m)
        return;
    while (evict_one(m))
        ;
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->built);
    free(m);
}

/* --- building ------------------------------------------------------------------------------------------------------ */

struct charging {
    struct members *m;
    struct kept *index;
};

/* archive_index.h: may so many more bytes be taken? Others' indexes go first. */
static int charge(void *user, uint64_t bytes)
{
    struct charging *c = user;
    struct members *m = c->m;
    while (budget_reserve(m->budget, bytes) < 0) {
        pthread_mutex_lock(&m->lock);
        bool again = evict_one(m);
        pthread_mutex_unlock(&m->lock);
        if (!again)
            return c->index->charged + bytes > m->budget->cap_bytes / 2 ? LEAT_NO_SPACE : LEAT_BUSY;
    }
    c->index->charged += bytes;
    return 0;
}

/* Listed, with a reference. The lock is held at entry and return, and released during the build. */
static int build(struct members *m, struct kept *x, const struct members_archive *a, struct leat_error *err)
{
    struct charging charging = {m, x};
    struct archive_file file = {
        .fd = a->fd, .offset = a->offset, .bytes = a->bytes, .charge = charge, .user = &charging};
    pthread_mutex_unlock(&m->lock);
    struct leat_error why = {0};
    int rc = charge(&charging, sizeof(*x) + x->id_len);
    if (rc == 0)
        rc = archive_index_build(&file, &x->archive, &why);
    if (rc == LEAT_NO_SPACE)
        error_set(&why, rc, "it has more members than can be looked up by name here; make smaller shards");
    else if (rc == LEAT_BUSY)
        error_set(&why, rc, "other archives are being looked into, and take the memory for it");
    else if (rc == -ENOMEM)
        error_set(&why, rc, "out of memory");
    pthread_mutex_lock(&m->lock);
    x->building = false;
    if (rc < 0) {
        x->failed = true;
        x->why = why;
        x->why.code = rc;
        index_unlist(m, x);
        if (err)
            *err = x->why;
    } else {
        list_push_back(&m->lru, &x->lru);
        m->stats.indexes++;
        m->stats.members += x->archive.n;
        m->stats.bytes += x->charged;
        m->stats.built++;
    }
    pthread_cond_broadcast(&m->built);
    return rc;
}

/* With a reference, built. */
static int get(struct members *m, const struct members_archive *a, const char *id, size_t id_len,
               struct kept **ret, struct leat_error *err)
{
    int rc = 0;
    struct kept *x = lookup(m, id, id_len, a->seq);
    if (x) {
        x->refs++;
        while (x->building)
            pthread_cond_wait(&m->built, &m->lock);
        if (x->failed) {
            rc = x->why.code;
            if (err)
                *err = x->why;
        }
    } else {
        x = calloc(1, sizeof(*x) + id_len);
        if (!x)
            return error_set(err, -ENOMEM, "out of memory");
        x->refs = 1;
        x->building = true;
        x->seq = a->seq;
        x->id_len = id_len;
        memcpy(x->id, id, id_len);
        list_init(&x->lru);
        list_push_back(bucket_of(m, id, id_len, a->seq), &x->node);
        rc = build(m, x, a, err);
    }
    if (rc < 0) {
        index_unref(m, x);
        return rc;
    }
    list_remove(&x->lru);
    list_push_back(&m->lru, &x->lru);
    *ret = x;
    return 0;
}

int members_find(struct members *m, const struct members_archive *a, const char *path,
                 struct member *ret_member, struct leat_error *err)
{
    char id[64 + 1 + 1024];
    size_t bucket = strlen(a->bucket) + 1;
    if (bucket + a->key_len > sizeof(id))
        return error_set(err, LEAT_INVALID, "a key of %zu bytes", a->key_len);
    memcpy(id, a->bucket, bucket);
    memcpy(id + bucket, a->key, a->key_len);
    struct kept *x = NULL;
    pthread_mutex_lock(&m->lock);
    int rc = get(m, a, id, bucket + a->key_len, &x, err);
    pthread_mutex_unlock(&m->lock);
    if (rc < 0)
        return rc;
    struct archive_file file = {.fd = a->fd, .offset = a->offset, .bytes = a->bytes};
    rc = archive_index_find(&x->archive, &file, path, ret_member, err);
    pthread_mutex_lock(&m->lock);
    m->stats.found += rc == 0;
    index_unref(m, x);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void members_stats(struct members *m, struct members_stats *ret_stats)
{
    pthread_mutex_lock(&m->lock);
    *ret_stats = m->stats;
    pthread_mutex_unlock(&m->lock);
}
