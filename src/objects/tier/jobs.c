/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.c: prefetch, evict and check of many objects, with progress.
 *
 * Happy path: a job's thread walks its list (the remote's, or what is here, or the keys that were given), and keeps a window of fetches
 * going in the pool for prefetches, so that readers' own fetches never wait behind them.
 * Failure modes: an object that fails is counted, and the first one's error kept; a list that fails ends the job.
 * Invariants: a job is in the table from its start until 100 newer ones have ended; its thread ends before the tier is freed.
 */
#include "objects/tier/tier_internal.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"

#define RUNNING_MAX 16u
#define KEPT_MAX    100u
#define WINDOW      64u /* objects of one job under way */
#define PAGE        256u

struct ahead {
    struct fetch *f;
    uint64_t bytes;
    uint64_t if_seq; /* of what was here; 0: nothing was */
};

struct job {
    struct list node; /* tier.jobs, the newest first */
    struct tier *t;
    struct tier_bucket *bucket;
    struct tier_job_info info; /* under the lock */
    bool update, ended;
    atomic_bool cancelled;
    char **keys;
    unsigned nkeys;
    pthread_t thread;
    bool joined;
    /* the thread's */
    struct ahead window[WINDOW];
    unsigned first, n;
};

static int64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec * (int64_t)NS_PER_S + ts.tv_nsec;
}

static void job_free(struct job *job)
{
    for (unsigned i = 0; i < job->nkeys; i++)
        free(job->keys[i]);
    free(job->keys);
    tier_bucket_unref(job->t, job->bucket);
    free(job);
}

static bool over(struct job *job)
{
    return atomic_load(&job->cancelled) || atomic_load(&job->t->stopping);
}

static void add(struct job *job, uint64_t *to, uint64_t n)
{
    pthread_mutex_lock(&job->t->lock);
    *to += n;
    pthread_mutex_unlock(&job->t->lock);
}

static void failed(struct job *job, const struct leat_error *err)
{
    pthread_mutex_lock(&job->t->lock);
    if (job->info.failed++ == 0)
        memcpy(job->info.error, err->message, sizeof(job->info.error));
    pthread_mutex_unlock(&job->t->lock);
}

/* --- fetches ------------------------------------------------------------------------------------------------------------------- */

/* The oldest one of the window has ended, and is counted. */
static void settle(struct job *job)
{
    struct ahead *a = &job->window[job->first];
    struct fetch *f = a->f;
    struct tier *t = job->t;
    pthread_mutex_lock(&t->lock);
    while (f->state != FETCH_DONE && f->state != FETCH_FAILED)
        pthread_cond_wait(&t->changed_cond, &t->lock);
    struct tier_job_info *i = &job->info;
    bool gone = f->state == FETCH_FAILED && f->rc == LEAT_NOT_FOUND;
    bool bad = (f->state == FETCH_FAILED && !gone) || f->fallback;
    if (bad && i->failed++ == 0)
        memcpy(i->error, f->err.message, sizeof(i->error));
    if (gone) {
        i->gone++;
    } else if (!bad && f->obj && job->info.kind == TIER_PREFETCH) {
        i->skipped++; /* what is here was right */
    } else if (!bad) {
        i->done++;
        i->newer += a->if_seq != 0 && !f->obj;
        i->bytes += f->obj ? f->obj->info.bytes : f->info.bytes;
    }
    pthread_mutex_unlock(&t->lock);
    fetch_unref(f);
    job->first = (job->first + 1) % WINDOW;
    job->n--;
}

/* One key: fetched where it is not here, or compared. */
static void fetch_one(struct job *job, const void *key, size_t key_len, unsigned flags)
{
    struct tier *t = job->t;
    struct store_obj *local;
    struct fetch *f;
    struct leat_error err = {0};
    uint64_t seq;
    int rc;
    while (job->n == WINDOW)
        settle(job);
    rc = fetch_look(t, job->bucket->name, key, key_len, &local, &seq, &err);
    if (rc == 0 && local &&
        (key_state_of(local) == KEY_DIRTY || (job->info.kind == TIER_PREFETCH && !job->update))) {
        store_obj_unref(local);
        add(job, &job->info.skipped, 1);
        return;
    }
    while (rc == 0) {
        if (local)
            store_obj_ref(local);
        rc = fetch_get(t, job->bucket, key, key_len, &t->prefetchers, flags, local, seq, &f, &err);
        if (rc != LEAT_BUSY || over(job))
            break;
        if (job->n)
            settle(job);
        else
            usleep(20000);
        rc = 0;
    }
    if (local)
        store_obj_unref(local);
    if (rc < 0) {
        failed(job, &err);
        return;
    }
    job->window[(job->first + job->n++) % WINDOW] = (struct ahead){.f = f, .if_seq = seq};
}

/* --- lists ------------------------------------------------------------------------------------------------------------------------ */

static int prefetch_listed(void *user, const struct backend_object *o)
{
    struct job *job = user;
    char key[STORE_KEY_MAX + 1];
    if (over(job))
        return -ECANCELED;
    int n = snprintf(key, sizeof(key), "%s%s", job->info.prefix, o->name);
    if (n <= 0 || (size_t)n >= sizeof(key))
        return 0;
    add(job, &job->info.objects, 1);
    fetch_one(job, key, (size_t)n, 0);
    return 0;
}

static int prefetch_all(struct job *job, struct leat_error *err)
{
    struct tier_session *s;
    AUTO_FREE char *uri = NULL;
    int rc = tier_uri(job->bucket, job->info.prefix, strlen(job->info.prefix), &uri, err);
    if (rc == 0)
        rc = tier_session_get(job->t, job->bucket, &s, err);
    if (rc < 0)
        return rc;
    rc = backend_list(s->backend, uri, true, NULL, prefetch_listed, job, err);
    tier_session_put(job->t, job->bucket, s);
    return rc < 0 && !over(job) ? tier_remote_error(job->bucket, rc, err) : 0;
}

static void evict_one(struct job *job, const void *key, size_t key_len)
{
    struct store *store = job->t->config.store;
    struct store_info info = {0};
    struct leat_error err = {0};
    bool is = store_lookup(store, job->bucket->name, key, key_len, &info, NULL) == 0;
    int rc = is ? store_evict(store, job->bucket->name, key, key_len, &err) : LEAT_NOT_FOUND;
    if (rc == LEAT_BUSY || rc == LEAT_NOT_FOUND) {
        add(job, &job->info.skipped, 1);
    } else if (rc < 0) {
        failed(job, &err);
    } else {
        add(job, &job->info.bytes, info.bytes);
        add(job, &job->info.done, 1);
    }
}

static void one(struct job *job, const void *key, size_t key_len)
{
    add(job, &job->info.objects, 1);
    if (job->info.kind == TIER_EVICT)
        evict_one(job, key, key_len);
    else
        fetch_one(job, key, key_len,
                  job->info.kind == TIER_CHECK && !job->update ? FETCH_HEAD | FETCH_COMPARE : 0);
}

struct page {
    struct {
        char key[STORE_KEY_MAX];
        size_t len;
    } keys[PAGE];
    unsigned n;
};

static int take_key(void *user, const struct store_entry *e)
{
    struct page *p = user;
    memcpy(p->keys[p->n].key, e->key, e->key_len);
    p->keys[p->n++].len = e->key_len;
    return 0;
}

/* What is here, page by page. */
static int walk_local(struct job *job, struct leat_error *err)
{
    struct page *p = calloc(1, sizeof(*p));
    char after[STORE_KEY_MAX];
    struct store_list_spec spec = {
        .prefix = job->info.prefix, .prefix_len = strlen(job->info.prefix), .max = PAGE};
    bool more = true;
    int rc = p ? 0 : -ENOMEM;
    while (rc == 0 && more && !over(job)) {
        p->n = 0;
        rc = store_list(job->t->config.store, job->bucket->name, &spec, take_key, p, &more, err);
        for (unsigned i = 0; rc == 0 && i < p->n && !over(job); i++)
            one(job, p->keys[i].key, p->keys[i].len);
        if (p->n) {
            memcpy(after, p->keys[p->n - 1].key, p->keys[p->n - 1].len);
            spec.after = after;
            spec.after_len = p->keys[p->n - 1].len;
        }
    }
    free(p);
    return rc;
}

static void *job_main(void *arg)
{
    struct job *job = arg;
    struct tier *t = job->t;
    struct leat_error err = {0};
    int rc = 0;
    for (unsigned i = 0; i < job->nkeys && !over(job); i++)
        one(job, job->keys[i], strlen(job->keys[i]));
    if (job->nkeys == 0)
        rc = job->info.kind == TIER_PREFETCH ? prefetch_all(job, &err) : walk_local(job, &err);
    pthread_mutex_lock(&t->lock);
    job->info.listed = !over(job) && rc == 0;
    pthread_mutex_unlock(&t->lock);
    while (job->n)
        settle(job);
    pthread_mutex_lock(&t->lock);
    job->info.state = over(job) ? TIER_JOB_CANCELLED : rc < 0 ? TIER_JOB_FAILED : TIER_JOB_DONE;
    if (rc < 0)
        memcpy(job->info.error, err.message, sizeof(job->info.error));
    job->info.ended_ns = wall_ns();
    job->ended = true;
    t->njobs--;
    pthread_cond_broadcast(&t->changed_cond);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* --- the table ---------------------------------------------------------------------------------------------------------------------- */

static struct job *job_find(struct tier *t, uint64_t id)
{
    list_for_each (node, &t->jobs) {
        struct job *job = container_of(node, struct job, node);
        if (job->info.id == id)
            return job;
    }
    return NULL;
}

/* Under the lock: all but the newest KEPT_MAX that have ended go to `old`. */
static void forget_old(struct tier *t, struct list *old)
{
    unsigned n = 0;
    list_for_each_safe (node, &t->jobs) {
        if (!container_of(node, struct job, node)->ended || ++n <= KEPT_MAX)
            continue;
        list_remove(node);
        list_push_back(old, node);
    }
}

static void join_all(struct list *old)
{
    struct job *job;
    while ((job = list_first(old, struct job, node))) {
        list_remove(&job->node);
        pthread_join(job->thread, NULL);
        job_free(job);
    }
}

static int job_make(struct tier *t, const struct tier_job_spec *spec, struct job **ret_job,
                    struct leat_error *err)
{
    if (spec->prefix && strlen(spec->prefix) > STORE_KEY_MAX)
        return error_set(err, LEAT_INVALID, "a prefix of more than %u bytes", STORE_KEY_MAX);
    struct tier_bucket *b = tier_bucket_find(t, spec->bucket);
    if (!b)
        return error_set(err, LEAT_INVALID, "bucket %s has no remote", spec->bucket);
    struct job *job = calloc(1, sizeof(*job));
    char **keys = calloc(spec->nkeys + 1, sizeof(*keys));
    if (!job || !keys) {
        free(job);
        free(keys);
        tier_bucket_unref(t, b);
        return -ENOMEM;
    }
    *job = (struct job){.t = t, .bucket = b, .update = spec->update, .keys = keys};
    list_init(&job->node);
    job->info = (struct tier_job_info){.kind = spec->kind, .began_ns = wall_ns()};
    snprintf(job->info.bucket, sizeof(job->info.bucket), "%s", b->name);
    snprintf(job->info.prefix, sizeof(job->info.prefix), "%s", spec->prefix ? spec->prefix : "");
    int rc = 0;
    for (; job->nkeys < spec->nkeys && rc == 0; job->nkeys += rc == 0) {
        size_t n = strlen(spec->keys[job->nkeys]);
        if (n == 0 || n > STORE_KEY_MAX)
            rc = error_set(err, LEAT_INVALID, "a key has 1 to %u bytes", STORE_KEY_MAX);
        else if (!(keys[job->nkeys] = strdup(spec->keys[job->nkeys])))
            rc = -ENOMEM;
    }
    if (rc < 0) {
        job_free(job);
        return rc;
    }
    *ret_job = job;
    return 0;
}

int tier_job_start(struct tier *t, const struct tier_job_spec *spec, uint64_t *ret_id, struct leat_error *err)
{
    struct job *job = NULL;
    struct list old;
    sigset_t all, was;
    list_init(&old);
    int rc = job_make(t, spec, &job, err);
    if (rc < 0)
        return rc;
    sigfillset(&all);
    pthread_mutex_lock(&t->lock);
    rc = t->njobs < RUNNING_MAX && !atomic_load(&t->stopping) ? 0 : LEAT_BUSY;
    if (rc == 0) {
        job->info.id = ++t->next_job;
        pthread_sigmask(SIG_SETMASK, &all, &was);
        rc = -pthread_create(&job->thread, NULL, job_main, job);
        pthread_sigmask(SIG_SETMASK, &was, NULL);
    }
    if (rc == 0) {
        *ret_id = job->info.id;
        t->njobs++;
        list_push_front(&t->jobs, &job->node);
        forget_old(t, &old);
    }
    pthread_mutex_unlock(&t->lock);
    join_all(&old);
    if (rc < 0) {
        job_free(job);
        return rc == LEAT_BUSY
                   ? error_set(err, rc, "%u jobs run already: wait for one of them to end", RUNNING_MAX)
                   : error_sys(err, rc, "a thread for a job");
    }
    return 0;
}

int tier_job_get(struct tier *t, uint64_t id, struct tier_job_info *ret_info)
{
    pthread_mutex_lock(&t->lock);
    struct job *job = job_find(t, id);
    if (job)
        *ret_info = job->info;
    pthread_mutex_unlock(&t->lock);
    return job ? 0 : LEAT_NOT_FOUND;
}

int tier_job_cancel(struct tier *t, uint64_t id)
{
    pthread_mutex_lock(&t->lock);
    struct job *job = job_find(t, id);
    if (job)
        atomic_store(&job->cancelled, true);
    pthread_mutex_unlock(&t->lock);
    return job ? 0 : LEAT_NOT_FOUND;
}

int tier_job_list(struct tier *t, int (*job)(void *user, const struct tier_job_info *info), void *user)
{
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    list_for_each (node, &t->jobs) {
        rc = job(user, &container_of(node, struct job, node)->info);
        if (rc)
            break;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

void jobs_stop(struct tier *t)
{
    struct list all;
    list_init(&all);
    pthread_mutex_lock(&t->lock);
    while (t->njobs)
        pthread_cond_wait(&t->changed_cond, &t->lock);
    list_for_each_safe (node, &t->jobs) {
        list_remove(node);
        list_push_back(&all, node);
    }
    pthread_mutex_unlock(&t->lock);
    join_all(&all);
}
