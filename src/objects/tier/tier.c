/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.c: the threads of the cold tier, its buckets, and their sessions with remotes.
 *
 * Three pools of threads, so that no work waits behind another kind: fetches that a reader waits for;
 * prefetches and checks; pushes of what is dirty; in each of them remotes share the threads (base/fairq.h). A
 * session is one thread's for one object, and kept for the next.
 * Failure modes: settings that are wrong are refused when they are given. Those that the server finds when it
 * starts (another version's) are reported, and their bucket is asked for nothing that is not here, and takes
 * nothing, until it is given others; sessions of settings that have changed are closed when they come back.
 * Invariants: a bucket that the store says to have a remote is in the table; it is freed with its last
 * reference. Nothing is waited for under the lock.
 */
#include "objects/tier/tier_internal.h"

#include <signal.h>
#include <stdio.h>
#include <xxhash.h>

#include "aws/credentials.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"

#define OFFICE_BYTES (256 * MIB)
#define QUEUE_MAX    4096u
#define BLOCKS_IDLE  16u             /* buffers kept for the next fetch */
#define SESSION_NS   (60 * NS_PER_S) /* and sessions, so long */
#define SESSIONS_MAX 64u             /* of a bucket */

/* --- buckets ----------------------------------------------------------------------------------------------------------------- */

static void session_free(struct tier_session *s)
{
    list_remove(&s->node);
    backend_free(s->backend);
    free(s);
}

void tier_bucket_unref(struct tier *t, struct tier_bucket *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&t->lock);
    bool last = --b->refs == 0;
    pthread_mutex_unlock(&t->lock);
    struct tier_session *s;
    if (!last)
        return;
    while ((s = list_first(&b->sessions, struct tier_session, node)))
        session_free(s);
    tier_remote_fini(&b->remote);
    free(b->config_error);
    free(b);
}

struct tier_bucket *tier_bucket_look(struct tier *t, const char *bucket)
{
    list_for_each (node, &t->buckets) {
        struct tier_bucket *b = container_of(node, struct tier_bucket, node);
        if (strcmp(b->name, bucket) == 0)
            return b;
    }
    return NULL;
}

struct tier_bucket *tier_bucket_find(struct tier *t, const char *bucket)
{
    if (atomic_load_explicit(&t->nbuckets, memory_order_relaxed) == 0)
        return NULL;
    pthread_mutex_lock(&t->lock);
    struct tier_bucket *b = tier_bucket_look(t, bucket);
    if (b)
        b->refs++;
    pthread_mutex_unlock(&t->lock);
    return b;
}

uint64_t tier_bucket_remote(struct tier *t, const char *bucket)
{
    struct tier_bucket *b = tier_bucket_find(t, bucket);
    uint64_t server = b ? b->server : 0;
    tier_bucket_unref(t, b);
    return server;
}

/* Puts `fresh` (may be NULL) in the place of what is in the table. */
static void replace(struct tier *t, const char *bucket, struct tier_bucket *fresh)
{
    pthread_mutex_lock(&t->lock);
    struct tier_bucket *old = tier_bucket_look(t, bucket);
    if (old) {
        list_remove(&old->node);
        old->gone = true;
        t->nbuckets--;
    }
    if (fresh) {
        list_push_back(&t->buckets, &fresh->node);
        t->nbuckets++;
    }
    pthread_mutex_unlock(&t->lock);
    tier_bucket_unref(t, old);
}

/* found: it is so in the store, whatever is wrong with it; json NULL: there are no settings. */
static int bucket_make(const char *name, const char *json, bool found, struct tier_bucket **ret_bucket,
                       struct leat_error *err)
{
    struct tier_bucket *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    list_init(&b->node);
    list_init(&b->sessions);
    list_init(&b->dirty_backlog);
    b->refs = 1;
    snprintf(b->name, sizeof(b->name), "%s", name);
    struct leat_error why = {0};
    int rc = json ? tier_remote_parse(json, &b->remote, &why)
                  : error_set(&why, LEAT_INVALID, "remote: there are no settings");
    if (rc < 0 && rc != -ENOMEM && found) {
        b->config_error = strdup(why.message);
        rc = b->config_error ? tier_remote_guess(json, &b->remote) : -ENOMEM;
    }
    if (rc < 0) {
        if (err)
            *err = why;
        free(b->config_error);
        free(b);
        return rc;
    }
    const char *server = b->remote.endpoint ? b->remote.endpoint : b->remote.uri;
    b->server = XXH3_64bits(server, strlen(server)) | 1;
    *ret_bucket = b;
    return 0;
}

static bool is_same(struct tier *t, const struct tier_bucket *b)
{
    struct tier_bucket *old = tier_bucket_find(t, b->name);
    bool same = old && strcmp(old->remote.uri, b->remote.uri) == 0 &&
                strcmp(old->remote.endpoint ? old->remote.endpoint : "",
                       b->remote.endpoint ? b->remote.endpoint : "") == 0;
    tier_bucket_unref(t, old);
    return same;
}

/* What is in a bucket is nowhere else, or at another remote: it would be taken for what this remote has, and be evicted or deleted. So the store wants it
 * to be empty. */
static int keep_settings(struct tier *t, const char *bucket, const char *remote_json,
                         enum store_remote remote_id, uint64_t *ret_remote_id, struct leat_error *err)
{
    struct store_bucket is;
    int rc;
    do {
        AUTO_FREE char *props = NULL;
        rc = store_bucket_get(t->config.store, bucket, &is, err);
        if (rc < 0)
            return rc;
        rc = tier_remote_into(is.props, remote_json, &props);
        if (rc == 0)
            rc = store_bucket_remote(t->config.store, bucket, is.version, remote_id, props, ret_remote_id,
                                     err);
        store_bucket_fini(&is);
    } while (rc == STORE_PRECONDITION); /* another thread has changed other settings */
    return rc;
}

/* Nothing is dirty: no list of all objects need be walked. */
static bool all_clean(struct store *store)
{
    AUTO_FREE struct store_status *status = malloc(sizeof(*status));
    uint64_t dirty = status ? 0 : 1;
    if (status)
        store_status(store, status);
    for (unsigned i = 0; status && i < status->npaths; i++)
        dirty += status->paths[i].dirty;
    return dirty == 0;
}

int tier_bucket_set(struct tier *t, const char *bucket, const char *remote_json, struct leat_error *err)
{
    struct tier_bucket *b = NULL;
    uint64_t number = 0;
    int rc = remote_json ? bucket_make(bucket, remote_json, false, &b, err) : 0;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&t->settings);
    enum store_remote remote_id = !b              ? STORE_REMOTE_NONE
                                  : is_same(t, b) ? STORE_REMOTE_SAME
                                                  : STORE_REMOTE_OTHER;
    rc = keep_settings(t, bucket, remote_json, remote_id, &number, err);
    if (rc < 0) {
        pthread_mutex_unlock(&t->settings);
        tier_bucket_unref(t, b);
        return rc;
    }
    if (b)
        b->remote_id = number;
    replace(t, bucket, b);
    pthread_mutex_unlock(&t->settings);
    /* Objects that were stored between the two are dirty without a remote, as are those that the old
     * settings' queue had no room for. */
    if (b && !all_clean(t->config.store))
        push_bucket(t, bucket);
    return 0;
}

int tier_bucket_get(struct tier *t, const char *bucket, char **ret_json, struct leat_error *err)
{
    struct store_bucket is;
    int rc = store_bucket_get(t->config.store, bucket, &is, err);
    if (rc < 0)
        return rc;
    AUTO_FREE char *json = tier_remote_of(is.props);
    store_bucket_fini(&is);
    if (!json)
        return error_set(err, LEAT_NOT_FOUND, "bucket %s has no remote", bucket);
    *ret_json = tier_remote_shown(json);
    return *ret_json ? 0 : -ENOMEM;
}

void tier_bucket_forget(struct tier *t, const char *bucket)
{
    /* A thread that set it before the bucket was deleted has put it into the table by then. */
    pthread_mutex_lock(&t->settings);
    replace(t, bucket, NULL);
    pthread_mutex_unlock(&t->settings);
}

int tier_bucket_check(const struct tier_bucket *b, struct leat_error *err)
{
    return b->config_error
               ? error_set(err, TIER_REFUSED,
                           "bucket %s has a remote with settings that this version does not "
                           "take: %s; what is not here cannot be had, and nothing is stored, until "
                           "PUT /v1/buckets/%s gives it others",
                           b->name, b->config_error, b->name)
               : 0;
}

int tier_uri(const struct tier_bucket *b, const void *key, size_t key_len, char **ret_uri,
             struct leat_error *err)
{
    int rc = tier_bucket_check(b, err);
    if (rc < 0)
        return rc;
    if (memchr(key, 0, key_len))
        return error_set(err, LEAT_INVALID, "bucket %s has a remote: keys with a NUL cannot be there",
                         b->name);
    return asprintf(ret_uri, "%s%.*s", b->remote.uri, (int)key_len, (const char *)key) < 0 ? -ENOMEM : 0;
}

int tier_key_check(const struct tier_bucket *b, const void *key, size_t key_len, struct leat_error *err)
{
    AUTO_FREE char *uri = NULL;
    int rc = tier_uri(b, key, key_len, &uri, err);
    if (rc == 0)
        rc = backend_key_check(uri, b->remote.folder ? uri + strlen(b->remote.uri) : NULL, err);
    return rc == LEAT_INVALID ? error_prefix(err, rc, "the remote of bucket %s cannot have this key", b->name)
                              : rc;
}

/* --- sessions ---------------------------------------------------------------------------------------------------------------- */

static int say_credentials(void *user, bool refused, struct credentials *ret_credentials,
                           struct leat_error *err)
{
    const struct tier_bucket *b = user;
    const struct tier_remote *r = &b->remote;
    if (refused)
        return error_set(err, LEAT_DENIED, "the keys that are given for bucket %s have expired", b->name);
    int rc =
        credentials_set(ret_credentials, r->access_key, r->secret_key, r->token, "the bucket's settings");
    return MIN(rc, 0);
}

int tier_session_get(struct tier *t, struct tier_bucket *b, struct tier_session **ret_session,
                     struct leat_error *err)
{
    const struct tier_remote *r = &b->remote;
    int rc = tier_bucket_check(b, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&t->lock);
    struct tier_session *s = list_first(&b->sessions, struct tier_session, node);
    if (s)
        list_remove(&s->node);
    pthread_mutex_unlock(&t->lock);
    if (s) {
        *ret_session = s;
        return 0;
    }
    /* With the bucket: servers count the requests of each, and a busy one says nothing of another. */
    AUTO_FREE char *identity = NULL;
    const char *who = r->access_key ? r->access_key : r->profile ? r->profile : "";
    const char *place = strstr(r->uri, "//");
    place = place ? place + 2 : "";
    if (asprintf(&identity, "%s %.*s", who, (int)strcspn(place, "/"), place) < 0) {
        identity = NULL; /* undefined */
        return -ENOMEM;
    }
    s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    list_init(&s->node);
    struct backend_config config = {
        .folder = r->folder ? r->uri : NULL,
        .connections = t->config.connections + FETCH_URGENT,
        .block_bytes = MAX(t->config.block_bytes, MIB), /* what we ask for is one request */
        .timeout_ns = r->timeout_s * NS_PER_S,
        .tries = 4,
        .endpoint = r->endpoint,
        .region = r->region,
        .profile = r->profile,
        .style = r->style,
        .ca_file = r->ca_file,
        .anonymous = r->anonymous,
        .insecure = r->insecure,
        .given = r->anonymous || r->access_key,
        .credentials = r->access_key ? say_credentials : NULL,
        .user = b,
        .identity = identity,
        .cancelled = &t->stopping,
    };
    rc = backend_new(&config, &s->backend, err);
    if (rc < 0) {
        free(s);
        /* That there is no such folder or profile says nothing of its objects. */
        return tier_remote_error(b, rc == LEAT_NOT_FOUND ? LEAT_PEER_GONE : rc, err);
    }
    *ret_session = s;
    return 0;
}

void tier_session_put(struct tier *t, struct tier_bucket *b, struct tier_session *s)
{
    if (!s)
        return;
    uint64_t now = s->used_ns = clock_now_ns();
    struct list old;
    list_init(&old);
    pthread_mutex_lock(&t->lock);
    if (b->gone)
        list_push_back(&old, &s->node);
    else
        list_push_front(&b->sessions, &s->node); /* the ones used last are taken first */
    unsigned n = 0;
    list_for_each_safe (node, &b->sessions) {
        if (++n <= SESSIONS_MAX && now - container_of(node, struct tier_session, node)->used_ns < SESSION_NS)
            continue;
        list_remove(node);
        list_push_back(&old, node);
    }
    pthread_mutex_unlock(&t->lock);
    while ((s = list_first(&old, struct tier_session, node)))
        session_free(s);
}

int tier_remote_error(const struct tier_bucket *b, int rc, struct leat_error *err)
{
    switch (rc) {
    case LEAT_NOT_FOUND:
    case LEAT_INVALID:
    case LEAT_STALE:
    case LEAT_CORRUPT:
    case LEAT_TIMED_OUT:
    case -ENOMEM:
        break;
    case LEAT_DENIED:
    case LEAT_NO_SPACE:
    case LEAT_UNSUPPORTED:
        rc = TIER_REFUSED;
        break;
    default:
        rc = TIER_DOWN;
    }
    if (err)
        err->code = rc; /* its message is kept under our code */
    error_prefix(err, rc, "the remote of bucket %s", b->name);
    if (err && tier_remote_down(rc)) { /* where it is, and what to do */
        const struct tier_remote *r = &b->remote;
        size_t n = strlen(err->message);
        const char *at = r->endpoint ? r->endpoint : r->folder ? "this host" : "Amazon's S3";
        if (rc == LEAT_TIMED_OUT)
            snprintf(err->message + n, sizeof(err->message) - n,
                     " (%s at %s did not answer in time: is it up, and reached from here? timeout_s of the "
                     "bucket is %llu)",
                     r->uri, at, (unsigned long long)r->timeout_s);
        else
            snprintf(err->message + n, sizeof(err->message) - n, " (%s at %s: %s)", r->uri, at,
                     rc == TIER_DOWN ? "is it up, and reached from here?"
                                     : "are the bucket's profile or keys, and their permissions, right?");
    }
    return rc;
}

/* --- threads ----------------------------------------------------------------------------------------------------------------- */

static void *pool_main(void *arg)
{
    struct tier_pool *pool = arg;
    struct tier *t = pool->t;
    struct fairq_source *remote;
    struct fairq_item *turn;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!(turn = fairq_pop(&pool->fairq, &remote)) && !atomic_load(&t->stopping))
            pthread_cond_wait(&pool->work, &t->lock);
        if (!turn)
            break; /* what was queued is ended first, quickly: `stopping` is seen by all that wait */
        struct tier_task *task = container_of(turn, struct tier_task, turn);
        pthread_mutex_unlock(&t->lock);
        uint64_t began_ns = clock_now_ns();
        task->run(task);
        pthread_mutex_lock(&t->lock);
        unsigned more = fairq_done(&pool->fairq, remote, clock_now_ns() - began_ns);
        for (more = MIN(more - 1, pool->fairq.queued); more; more--) /* this one takes one of them */
            pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int pool_start(struct tier *t, struct tier_pool *pool, unsigned n, unsigned queue_max)
{
    sigset_t all, old;
    pool->t = t;
    fairq_init(&pool->fairq, n, queue_max);
    pool->threads = calloc(n, sizeof(*pool->threads));
    if (!pool->threads)
        return -ENOMEM;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    for (; pool->nthreads < n && rc == 0; pool->nthreads += rc == 0)
        rc = -pthread_create(&pool->threads[pool->nthreads], NULL, pool_main, pool);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return pool->nthreads ? 0 : rc;
}

static void pool_stop(struct tier_pool *pool)
{
    for (unsigned i = 0; i < pool->nthreads; i++)
        pthread_join(pool->threads[i], NULL);
    if (pool->threads) /* started */
        fairq_fini(&pool->fairq);
    free(pool->threads);
}

int tier_pool_add(struct tier_pool *pool, const struct tier_bucket *b, struct tier_task *task)
{
    if (atomic_load(&pool->t->stopping) || fairq_push(&pool->fairq, b->server, &task->turn) < 0)
        return LEAT_BUSY;
    pthread_cond_signal(&pool->work);
    return 0;
}

struct tier_block *tier_block_get(struct tier *t)
{
    pthread_mutex_lock(&t->lock);
    struct tier_block *k = list_first(&t->blocks, struct tier_block, node);
    if (k) {
        list_remove(&k->node);
        t->nblocks--;
    }
    pthread_mutex_unlock(&t->lock);
    if (k || budget_reserve(t->config.budget, t->config.block_bytes) < 0)
        return k;
    k = malloc(sizeof(*k));
    if (!k || posix_memalign(&k->data, 4096, t->config.block_bytes) != 0) {
        free(k);
        budget_release(t->config.budget, t->config.block_bytes);
        return NULL;
    }
    list_init(&k->node);
    return k;
}

static void block_free(struct tier *t, struct tier_block *k)
{
    free(k->data);
    free(k);
    budget_release(t->config.budget, t->config.block_bytes);
}

void tier_block_put(struct tier *t, struct tier_block *k)
{
    pthread_mutex_lock(&t->lock);
    bool keep = t->nblocks < BLOCKS_IDLE;
    if (keep) {
        list_push_front(&t->blocks, &k->node);
        t->nblocks++;
    }
    pthread_cond_broadcast(&t->changed_cond);
    pthread_mutex_unlock(&t->lock);
    if (!keep)
        block_free(t, k);
}

/* --- its life ---------------------------------------------------------------------------------------------------------------- */

struct found {
    struct found_bucket {
        char name[STORE_BUCKET_MAX + 1];
        char *props;
        uint64_t remote_id;
    } * all;
    unsigned n;
    bool failed;
};

static int found_one(void *user, const struct store_bucket *is)
{
    struct found *f = user;
    if (!(is->flags & STORE_BUCKET_REMOTE))
        return 0;
    struct found_bucket *all = realloc(f->all, (f->n + 1) * sizeof(*all));
    char *props = all ? strdup(is->props) : NULL;
    f->all = all ? all : f->all;
    f->failed = !props;
    if (!props)
        return 1;
    all[f->n] = (struct found_bucket){.props = props, .remote_id = is->remote_id};
    memcpy(all[f->n++].name, is->name, sizeof(is->name));
    return 0;
}

/* The buckets that the store knows; of one whose settings are wrong it is said loudly. */
static int load(struct tier *t)
{
    struct found f = {0};
    bool clean = all_clean(t->config.store);
    store_bucket_list(t->config.store, found_one, &f);
    int rc = f.failed ? -ENOMEM : 0;
    for (struct found_bucket *is = f.all; is < f.all + f.n; is++) {
        struct tier_bucket *b;
        struct leat_error err = {0};
        AUTO_FREE char *json = tier_remote_of(is->props);
        if (rc == 0)
            rc = bucket_make(is->name, json, true, &b, NULL);
        if (rc == 0) {
            if (tier_bucket_check(b, &err) < 0)
                log_error("%s", err.message);
            b->remote_id = is->remote_id;
            replace(t, is->name, b);
            if (!clean && !b->config_error) /* setting others has checked for dirty objects */
                push_bucket(t, is->name);
        }
        free(is->props);
    }
    free(f.all);
    return rc;
}

int tier_new(const struct tier_config *config, struct tier **ret_tier, struct leat_error *err)
{
    struct tier *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->config = *config;
    struct tier_config *c = &t->config;
    if (!c->budget) {
        budget_init(&t->own_budget, OFFICE_BYTES);
        c->budget = &t->own_budget;
    }
    budget_init(&t->push_room, c->budget->cap_bytes / 4);
    c->fetchers = c->fetchers ? c->fetchers : 32;
    c->prefetchers = c->prefetchers ? c->prefetchers : 16;
    c->pushers = c->pushers ? c->pushers : 8;
    c->connections = c->connections ? c->connections : 8;
    c->block_bytes = c->block_bytes ? align_up(c->block_bytes, FETCH_UNIT) : 4 * MIB;
    c->retry_ns = c->retry_ns ? c->retry_ns : NS_PER_S;
    c->retry_max_ns = c->retry_max_ns ? c->retry_max_ns : 300 * NS_PER_S;
    c->push_queue = c->push_queue ? c->push_queue : 4096;
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->settings, NULL);
    cond_init(&t->changed_cond);
    cond_init(&t->push_changed_cond);
    struct list *lists[] = {&t->buckets, &t->blocks, &t->fetches, &t->locks, &t->dirty_backlog};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    for (size_t i = 0; i < PUSH_CHAINS; i++)
        list_init(&t->pushes[i]);
    for (size_t i = 0; i < PUSH_PAUSES; i++)
        list_init(&t->pauses[i]);
    struct tier_pool *pools[] = {&t->fetchers, &t->prefetchers, &t->pushers};
    for (size_t i = 0; i < ARRAY_LEN(pools); i++)
        pthread_cond_init(&pools[i]->work, NULL);
    int rc = pool_start(t, &t->fetchers, c->fetchers, QUEUE_MAX);
    if (rc == 0)
        rc = pool_start(t, &t->prefetchers, c->prefetchers, QUEUE_MAX);
    if (rc == 0)
        rc = pool_start(t, &t->pushers, c->pushers, UINT32_MAX) /* queue.c bounds it */;
    if (rc == 0)
        rc = -pthread_create(&t->push_timer, NULL, push_timer_main, t);
    t->has_push_timer = rc == 0;
    if (rc == 0)
        rc = load(t);
    if (rc < 0) {
        tier_free(t);
        return error_sys(err, rc, "the cold tier");
    }
    if (t->config.jobs)
        tier_jobs_register(t);
    *ret_tier = t;
    return 0;
}

void tier_stop(struct tier *t)
{
    if (!t)
        return;
    struct tier_pool *pools[] = {&t->fetchers, &t->prefetchers, &t->pushers};
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->stopping, true);
    for (size_t i = 0; i < ARRAY_LEN(pools); i++)
        pthread_cond_broadcast(&pools[i]->work);
    pthread_cond_broadcast(&t->changed_cond);
    pthread_cond_broadcast(&t->push_changed_cond);
    pthread_mutex_unlock(&t->lock);
}

void tier_free(struct tier *t)
{
    if (!t)
        return;
    struct tier_pool *pools[] = {&t->fetchers, &t->prefetchers, &t->pushers};
    tier_stop(t);
    for (size_t i = 0; i < ARRAY_LEN(pools); i++) {
        pool_stop(pools[i]);
        pthread_cond_destroy(&pools[i]->work);
    }
    if (t->has_push_timer)
        pthread_join(t->push_timer, NULL);
    push_stop(t);
    struct tier_bucket *b;
    while ((b = list_first(&t->buckets, struct tier_bucket, node)))
        replace(t, b->name, NULL);
    struct tier_block *k;
    while ((k = list_first(&t->blocks, struct tier_block, node))) {
        list_remove(&k->node);
        block_free(t, k);
    }
    pthread_cond_destroy(&t->changed_cond);
    pthread_cond_destroy(&t->push_changed_cond);
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->settings);
    free(t);
}

void tier_stats(struct tier *t, struct tier_stats *ret_stats)
{
    pthread_mutex_lock(&t->lock);
    *ret_stats = t->stats;
    ret_stats->fetching = t->fetchers.fairq.running + t->prefetchers.fairq.running;
    ret_stats->fetch_waiting = t->fetchers.fairq.queued + t->prefetchers.fairq.queued;
    ret_stats->buffer_bytes = t->config.budget->used_bytes;
    pthread_mutex_unlock(&t->lock);
}
