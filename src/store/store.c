/* SPDX-License-Identifier: Apache-2.0 */
/* store.c: a store from its opening to its end, its background work, and its status. */
#include "store/internal.h"

#include <time.h>

#include "base/cond.h"
#include "base/log.h"

#define SCRUB_PERIOD_MAX_S (100ull * 365 * 24 * 3600)

enum { TICK_S = 2 };

static uint64_t given(uint64_t value, uint64_t otherwise)
{
    return value ? value : otherwise;
}

void store_tick(struct store *s)
{
    store_open_close(s);
    pthread_mutex_lock(&s->work_lock);
    store_evict_turn(s);
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        if (!p->loaded || atomic_load(&p->failed))
            continue;
        store_log_mark(p);
        if (atomic_load(&p->orphans) && p->orphans_since_ns < store_wall_ns() - ORPHAN_AGE_NS)
            store_orphans_age(p, store_wall_ns() - ORPHAN_AGE_NS, NULL);
        int rc = store_path_wants_compaction(p) ? store_path_compact(p) : 0;
        if (rc < 0) {
            struct leat_error err;
            store_path_error(p, rc, "a snapshot of the index cannot be written", &err);
            log_warning("%s", err.message);
        }
    }
    store_uploads_age(s, store_wall_ns() - (int64_t)s->upload_age_ns);
    pthread_mutex_unlock(&s->work_lock);
    store_buckets_tick(s);
}

void store_kick(struct store *s)
{
    pthread_mutex_lock(&s->tick_lock);
    s->kicked = true;
    pthread_cond_signal(&s->tick_cond);
    pthread_mutex_unlock(&s->tick_lock);
}

static void *background(void *arg)
{
    struct store *s = arg;
    pthread_mutex_lock(&s->tick_lock);
    while (!s->stop) {
        if (!s->kicked)
            cond_wait_until(&s->tick_cond, &s->tick_lock, clock_now_ns() + TICK_S * NS_PER_S);
        s->kicked = false;
        if (s->stop)
            break;
        pthread_mutex_unlock(&s->tick_lock);
        store_tick(s);
        pthread_mutex_lock(&s->tick_lock);
    }
    pthread_mutex_unlock(&s->tick_lock);
    return NULL;
}

static int configure(struct store *s, const struct store_config *c, struct leat_error *err)
{
    s->io = c->io ? c->io : &store_io_real;
    s->capacity_bytes = c->capacity_bytes;
    s->reserve_bytes = given(c->reserve_bytes, 32 * MIB);
    s->direct_bytes = given(c->direct_bytes, 8 * MIB);
    s->high_percent = (unsigned)given(c->high_percent, 90);
    s->low_percent = (unsigned)given(c->low_percent, MIN(80u, s->high_percent));
    s->scrub_period_s = given(c->scrub_period_s, 30 * 24 * 3600);
    if (s->scrub_period_s != UINT64_MAX) /* so that no sum of times is more than 64 bits hold */
        s->scrub_period_s = MIN(s->scrub_period_s, SCRUB_PERIOD_MAX_S);
    s->scrub_rate = given(c->scrub_rate, 64 * MIB);
    s->upload_age_ns = given(c->upload_age_s, 7 * 24 * 3600) * 1000000000ull;
    budget_init(&s->own_budget, 256 * MIB);
    s->budget = c->budget ? c->budget : &s->own_budget;
    budget_init(&s->uploads_room, s->budget->cap_bytes / 4);
    if (s->high_percent > 100 || s->low_percent > s->high_percent)
        return error_set(err, LEAT_INVALID, "watermarks %u %% and %u %%: low <= high <= 100 is allowed",
                         s->low_percent, s->high_percent);
    if (store_open_init(&s->open, (unsigned)given(c->fd_cache, 1024)) < 0)
        return error_set(err, -ENOMEM, "no memory for a store");
    return 0;
}

static void init_locks(struct store *s)
{
    pthread_mutex_t *const locks[] = {&s->buckets_write, &s->buckets_lock, &s->uploads_lock, &s->open.lock,
                                      &s->tick_lock,     &s->work_lock,    &s->stripes_lock};
    for (unsigned i = 0; i < ARRAY_LEN(locks); i++)
        pthread_mutex_init(locks[i], NULL);
    pthread_cond_init(&s->buckets_cond, NULL);
    pthread_cond_init(&s->uploads_cond, NULL);
    pthread_cond_init(&s->stripes_cond, NULL);
    cond_init(&s->tick_cond);
    list_init(&s->uploads);
    for (unsigned i = 0; i < UPLOAD_CHAINS; i++)
        list_init(&s->upload_chains[i]);
    list_init(&s->open.lru);
    list_init(&s->open.closing);
}

static void fini_locks(struct store *s)
{
    pthread_mutex_t *const locks[] = {&s->buckets_write, &s->buckets_lock, &s->uploads_lock, &s->open.lock,
                                      &s->tick_lock,     &s->work_lock,    &s->stripes_lock};
    for (unsigned i = 0; i < ARRAY_LEN(locks); i++)
        pthread_mutex_destroy(locks[i]);
    pthread_cond_destroy(&s->buckets_cond);
    pthread_cond_destroy(&s->uploads_cond);
    pthread_cond_destroy(&s->stripes_cond);
    pthread_cond_destroy(&s->tick_cond);
}

/* Marks the store as closed in order, so that the next start need not look for unfinished work. Unlinked
 * files are gone from the disk before that. */
static void say_closed(struct path *p)
{
    if (p->loaded && !atomic_load(&p->failed) && p->store->io->syncfs(p->store->io, p->dir) == 0)
        store_log_end(p);
}

void store_free(struct store *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < s->npaths; i++) /* first: they leave files to the thread to close */
        store_scrub_end(s->paths[i]);
    if (s->has_thread) {
        pthread_mutex_lock(&s->tick_lock);
        s->stop = true;
        pthread_cond_signal(&s->tick_cond);
        pthread_mutex_unlock(&s->tick_lock);
        pthread_join(s->thread, NULL);
        s->has_thread = false;
    }
    store_open_close(s);
    store_open_fini(s);
    store_uploads_free(s);
    store_buckets_free(s);
    for (unsigned i = 0; i < s->npaths; i++) {
        store_files_close(s->paths[i]);
        say_closed(s->paths[i]);
        store_path_close(s->paths[i]);
    }
    free(s->paths);
    fini_locks(s);
    free(s);
}

int store_new(const struct store_config *config, struct store **ret_store, struct leat_error *err)
{
    struct store *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, -ENOMEM, "no memory for a store");
    init_locks(s);
    int rc = configure(s, config, err);
    if (rc == 0)
        rc = store_paths_open(s, config, err);
    if (rc == 0)
        rc = store_buckets_load(s, err);
    if (rc == 0)
        rc = store_uploads_load(s, err);
    for (unsigned i = 0; rc == 0 && i < s->npaths; i++) {
        struct path *p = s->paths[i];
        rc = p->loaded && !atomic_load(&p->failed) ? store_scrub_new(p, err) : 0;
    }
    if (rc == 0 && !config->no_background) {
        s->has_thread = true; /* before it looks */
        rc = -pthread_create(&s->thread, NULL, background, s);
        s->has_thread = rc == 0;
        if (rc < 0)
            error_sys(err, rc, "the store's thread cannot be started");
    }
    for (unsigned i = 0; rc == 0 && !config->no_background && i < s->npaths; i++)
        rc = s->paths[i]->scrub ? store_scrub_run(s->paths[i], err) : 0;
    if (rc < 0) {
        store_free(s);
        return rc;
    }
    *ret_store = s;
    return 0;
}

/* --- status --------------------------------------------------------------------------------------------------------------- */

static void path_status(struct path *p, struct store_path_status *ret)
{
    *ret = (struct store_path_status){
        .path = p->dir,
        .state = atomic_load(&p->failed) ? STORE_PATH_FAILED : STORE_PATH_OK,
        .errors = atomic_load(&p->errors),
        .corrupt = atomic_load(&p->corrupt),
        .orphans = atomic_load(&p->orphans),
        .evicted = atomic_load(&p->evicted),
        .evicted_bytes = atomic_load(&p->evicted_bytes),
    };
    pthread_mutex_lock(&p->fail_lock);
    memcpy(ret->error, p->error, sizeof(ret->error));
    pthread_mutex_unlock(&p->fail_lock);
    pthread_rwlock_rdlock(&p->index.lock);
    ret->objects = p->index.objects - p->index.hidden;
    ret->bytes = p->index.bytes;
    ret->dirty = p->index.dirty;
    pthread_rwlock_unlock(&p->index.lock);
    pthread_mutex_lock(&p->log.lock);
    ret->log_bytes = p->log.end;
    pthread_mutex_unlock(&p->log.lock);
    store_scrub_status(p, &ret->scrub);
    p->store->io->space(p->store->io, p->dir, &ret->free_bytes, &ret->total_bytes);
}

void store_status(struct store *s, struct store_status *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->npaths = s->npaths;
    for (unsigned i = 0; i < s->npaths; i++)
        path_status(s->paths[i], &ret->paths[i]);
    ret->puts = atomic_load(&s->puts);
    ret->gets = atomic_load(&s->gets);
    ret->deletes = atomic_load(&s->deletes);
    ret->put_bytes = atomic_load(&s->put_bytes);
    ret->open_hits = atomic_load(&s->open_hits);
    ret->open_misses = atomic_load(&s->open_misses);
    ret->flushes = atomic_load(&s->flushes);
    uint64_t uploads = atomic_load(&s->uploads_room.used_bytes), used = atomic_load(&s->budget->used_bytes);
    ret->buffer_bytes = used - MIN(used, uploads); /* those are charged for as long as they are open */
    pthread_mutex_lock(&s->buckets_lock);
    ret->damaged_buckets = s->ndamaged;
    pthread_mutex_unlock(&s->buckets_lock);
    pthread_mutex_lock(&s->open.lock);
    ret->open_objects = s->open.count;
    pthread_mutex_unlock(&s->open.lock);
}
