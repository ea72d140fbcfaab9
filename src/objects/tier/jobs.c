/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.c: prefetch, evict and check of many objects, as kinds of jobs (jobs/jobs.h).
 *
 * Happy path: a job's thread walks its list (the remote's, or what is here, or the keys that were given), and keeps a window of fetches
 * going in the pool for prefetches, so that readers' own fetches never wait behind them.
 * Failure modes: an object that fails is counted, and the first one's error kept; a list that fails ends the job. After a restart a job begins
 * its list again: what it did before is found done, and skipped.
 * Invariants: its thread ends before the tier is freed, as jobs_stop waits for it.
 */
#include "objects/tier/tier_internal.h"

#include <stdio.h>

#include "base/bytes.h"

#define WINDOW 64u /* objects of one job under way */
#define PAGE   256u

struct ahead {
    struct fetch *f;
    uint64_t bytes;
    uint64_t if_seq; /* of what was here; 0: nothing was */
};

/* One job while it runs: its thread's. */
struct work {
    struct job *job;
    struct tier *t;
    struct tier_bucket *bucket;
    enum tier_job_kind kind;
    bool update;
    char *prefix;
    char **keys;
    unsigned nkeys;
    struct ahead window[WINDOW];
    unsigned first, n;
};

static bool over(struct work *w)
{
    return job_aborted(w->job) || atomic_load(&w->t->stopping);
}

/* --- fetches ------------------------------------------------------------------------------------------------------------------- */

/* The oldest one of the window has ended, and is counted. */
static void settle(struct work *w)
{
    struct ahead *a = &w->window[w->first];
    struct fetch *f = a->f;
    struct tier *t = w->t;
    pthread_mutex_lock(&t->lock);
    while (f->state != FETCH_DONE && f->state != FETCH_FAILED)
        pthread_cond_wait(&t->changed_cond, &t->lock);
    bool gone = f->state == FETCH_FAILED && f->rc == LEAT_NOT_FOUND;
    bool bad = (f->state == FETCH_FAILED && !gone) || f->fallback;
    if (bad) {
        job_item_failed(w->job, f->err.message);
    } else if (gone) {
        job_add(w->job, TIER_JOB_GONE, 1);
    } else if (f->obj && w->kind == TIER_PREFETCH) {
        job_add(w->job, JOB_SKIPPED, 1); /* what is here was right */
    } else {
        job_add(w->job, JOB_ITEMS, 1);
        job_add(w->job, TIER_JOB_NEWER, a->if_seq != 0 && !f->obj);
        job_add(w->job, JOB_BYTES, f->obj ? f->obj->info.bytes : f->info.bytes);
    }
    pthread_mutex_unlock(&t->lock);
    fetch_unref(f);
    w->first = (w->first + 1) % WINDOW;
    w->n--;
}

/* One key: fetched where it is not here, or compared. */
static void fetch_one(struct work *w, const void *key, size_t key_len, unsigned flags)
{
    struct tier *t = w->t;
    struct store_obj *local;
    struct fetch *f;
    struct leat_error err = {0};
    uint64_t seq;
    int rc;
    while (w->n == WINDOW)
        settle(w);
    rc = fetch_look(t, w->bucket->name, key, key_len, &local, &seq, &err);
    if (rc == 0 && local && (key_state_of(local) == KEY_DIRTY || (w->kind == TIER_PREFETCH && !w->update))) {
        store_obj_unref(local);
        job_add(w->job, JOB_SKIPPED, 1);
        return;
    }
    while (rc == 0) {
        if (local)
            store_obj_ref(local);
        rc = fetch_get(t, w->bucket, key, key_len, &t->prefetchers, flags, local, seq, &f, &err);
        if (rc != LEAT_BUSY || over(w))
            break;
        if (w->n)
            settle(w);
        else
            usleep(20000);
        rc = 0;
    }
    if (local)
        store_obj_unref(local);
    if (rc < 0) {
        job_item_failed(w->job, err.message);
        return;
    }
    w->window[(w->first + w->n++) % WINDOW] = (struct ahead){.f = f, .if_seq = seq};
}

/* --- lists ------------------------------------------------------------------------------------------------------------------------ */

static int prefetch_listed(void *user, const struct backend_object *o)
{
    struct work *w = user;
    char key[STORE_KEY_MAX + 1];
    if (over(w))
        return -ECANCELED;
    int n = snprintf(key, sizeof(key), "%s%s", w->prefix, o->name);
    if (n <= 0 || (size_t)n >= sizeof(key))
        return 0;
    job_add(w->job, JOB_ITEMS_TOTAL, 1);
    fetch_one(w, key, (size_t)n, 0);
    return 0;
}

static int prefetch_all(struct work *w, struct leat_error *err)
{
    struct tier_session *s;
    AUTO_FREE char *uri = NULL;
    int rc = tier_uri(w->bucket, w->prefix, strlen(w->prefix), &uri, err);
    if (rc == 0)
        rc = tier_session_get(w->t, w->bucket, &s, err);
    if (rc < 0)
        return rc;
    rc = backend_list(s->backend, uri, true, NULL, prefetch_listed, w, err);
    tier_session_put(w->t, w->bucket, s);
    return rc < 0 && !over(w) ? tier_remote_error(w->bucket, rc, err) : 0;
}

static void evict_one(struct work *w, const void *key, size_t key_len)
{
    struct store *store = w->t->config.store;
    struct store_info info = {0};
    struct leat_error err = {0};
    bool is = store_lookup(store, w->bucket->name, key, key_len, &info, NULL) == 0;
    int rc = is ? store_evict(store, w->bucket->name, key, key_len, &err) : LEAT_NOT_FOUND;
    if (rc == LEAT_BUSY || rc == LEAT_NOT_FOUND) {
        job_add(w->job, JOB_SKIPPED, 1);
    } else if (rc < 0) {
        job_item_failed(w->job, err.message);
    } else {
        job_add(w->job, JOB_BYTES, info.bytes);
        job_add(w->job, JOB_ITEMS, 1);
    }
}

static void one(struct work *w, const void *key, size_t key_len)
{
    job_add(w->job, JOB_ITEMS_TOTAL, 1);
    if (w->kind == TIER_EVICT)
        evict_one(w, key, key_len);
    else
        fetch_one(w, key, key_len, w->kind == TIER_CHECK && !w->update ? FETCH_HEAD | FETCH_COMPARE : 0);
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
static int walk_local(struct work *w, struct leat_error *err)
{
    struct page *p = calloc(1, sizeof(*p));
    char after[STORE_KEY_MAX];
    struct store_list_spec spec = {.prefix = w->prefix, .prefix_len = strlen(w->prefix), .max = PAGE};
    bool more = true;
    int rc = p ? 0 : -ENOMEM;
    while (rc == 0 && more && !over(w)) {
        p->n = 0;
        rc = store_list(w->t->config.store, w->bucket->name, &spec, take_key, p, &more, err);
        for (unsigned i = 0; rc == 0 && i < p->n && !over(w); i++)
            one(w, p->keys[i].key, p->keys[i].len);
        if (p->n) {
            memcpy(after, p->keys[p->n - 1].key, p->keys[p->n - 1].len);
            spec.after = after;
            spec.after_len = p->keys[p->n - 1].len;
        }
    }
    free(p);
    return rc;
}

/* --- what a job is to do, as bytes: the registry keeps it over a restart ----------------------------------------------------------- */

static void spec_put(const struct tier_job_spec *spec, struct bytes_out *out)
{
    bytes_put_str(out, spec->bucket);
    bytes_put_str(out, spec->prefix);
    bytes_put_u8(out, spec->update);
    bytes_put_u32(out, spec->nkeys);
    for (unsigned i = 0; i < spec->nkeys; i++)
        bytes_put_str(out, spec->keys[i]);
}

/* work_fini is due whatever it returns. */
static int work_init(struct work *w, struct leat_error *err)
{
    size_t len;
    const void *data = job_spec_data(w->job, &len);
    struct bytes_in in = bytes_in_of(data, len);
    AUTO_FREE char *bucket = bytes_get_str(&in, STORE_BUCKET_MAX);
    w->prefix = bytes_get_str(&in, STORE_KEY_MAX);
    w->update = bytes_get_u8(&in);
    uint32_t n = bytes_get_u32(&in);
    if (in.bad || n > bytes_left(&in) / 4)
        return error_set(err, LEAT_INVALID, "what this job is to do cannot be read: start it again");
    w->keys = calloc(n + 1, sizeof(*w->keys));
    for (; w->keys && w->nkeys < n && (w->keys[w->nkeys] = bytes_get_str(&in, STORE_KEY_MAX)); w->nkeys++)
        ;
    if (!w->keys || w->nkeys < n)
        return -ENOMEM;
    w->bucket = tier_bucket_find(w->t, bucket);
    return w->bucket ? 0 : error_set(err, LEAT_INVALID, "bucket %s has no remote any more", bucket);
}

static void work_fini(struct work *w)
{
    for (unsigned i = 0; i < w->nkeys; i++)
        free(w->keys[i]);
    free(w->keys);
    free(w->prefix);
    if (w->bucket)
        tier_bucket_unref(w->t, w->bucket);
    free(w);
}

static int run(struct tier *t, struct job *job, enum tier_job_kind kind, struct leat_error *err)
{
    struct work *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->job = job;
    w->t = t;
    w->kind = kind;
    int rc = work_init(w, err);
    for (unsigned i = 0; rc == 0 && i < w->nkeys && !over(w); i++)
        one(w, w->keys[i], strlen(w->keys[i]));
    if (rc == 0 && w->nkeys == 0)
        rc = kind == TIER_PREFETCH ? prefetch_all(w, err) : walk_local(w, err);
    job_set(job, JOB_TOTAL_KNOWN, !over(w) && rc == 0);
    while (w->n)
        settle(w);
    work_fini(w);
    return rc;
}

static int run_prefetch(void *user, struct job *job, struct leat_error *err)
{
    return run(user, job, TIER_PREFETCH, err);
}

static int run_evict(void *user, struct job *job, struct leat_error *err)
{
    return run(user, job, TIER_EVICT, err);
}

static int run_check(void *user, struct job *job, struct leat_error *err)
{
    return run(user, job, TIER_CHECK, err);
}

void tier_jobs_register(struct tier *t)
{
    static const struct job_kind kinds[] = {
        [TIER_PREFETCH] = {.name = "prefetch", .run = run_prefetch, .resumes = true},
        [TIER_EVICT] = {.name = "evict", .run = run_evict, .resumes = true},
        [TIER_CHECK] = {.name = "check", .run = run_check, .resumes = true},
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        t->job_kinds[i] = kinds[i];
        t->job_kinds[i].user = t;
        jobs_register(t->config.jobs, &t->job_kinds[i]);
    }
}

static int check_spec(struct tier *t, const struct tier_job_spec *spec, struct leat_error *err)
{
    if (spec->prefix && strlen(spec->prefix) > STORE_KEY_MAX)
        return error_set(err, LEAT_INVALID, "a prefix of more than %u bytes", STORE_KEY_MAX);
    for (unsigned i = 0; i < spec->nkeys; i++) {
        size_t n = strlen(spec->keys[i]);
        if (n == 0 || n > STORE_KEY_MAX)
            return error_set(err, LEAT_INVALID, "a key has 1 to %u bytes", STORE_KEY_MAX);
    }
    struct tier_bucket *b = tier_bucket_find(t, spec->bucket);
    if (!b)
        return error_set(err, LEAT_INVALID, "bucket %s has no remote", spec->bucket);
    tier_bucket_unref(t, b);
    return 0;
}

int tier_job_start(struct tier *t, const struct tier_job_spec *spec, uint64_t *ret_id, struct leat_error *err)
{
    char subject[STORE_BUCKET_MAX + STORE_KEY_MAX + 2];
    AUTO_BYTES struct bytes_out out = {0};
    if (!t->config.jobs)
        return error_set(err, LEAT_UNSUPPORTED, "there are no jobs here");
    int rc = check_spec(t, spec, err);
    if (rc < 0)
        return rc;
    snprintf(subject, sizeof(subject), "%s/%s", spec->bucket, spec->prefix ? spec->prefix : "");
    spec_put(spec, &out);
    struct job_spec js = {
        .kind = t->job_kinds[spec->kind].name, .subject = subject, .data = out.data, .len = out.len};
    return out.failed ? -ENOMEM : jobs_start(t->config.jobs, &js, ret_id, err);
}
