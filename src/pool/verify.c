/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verification: every resident sample's bytes are checksummed again and compared with what was recorded when
 * they came; with `source`, what the source gives now as well. A thread of its own, a window of samples at a
 * time, and a sample that is larger in pieces; the set stays in use. Samples that failed to load or are lost
 * count as bad. The window is charged to the pool, like scratch. A full pool leaves it WINDOW_LEAST,
 * uncharged: a search for damage must not need room first.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/budget.h"
#include "loop/loop.h"
#include "pool/pool.h"
#include "pool/set/wset.h"
#include "pool/work.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#define WINDOW_BYTES (8 * MIB)
#define WINDOW_LEAST (1 * MIB)
#define REPORT_NS    (100 * NS_PER_MS)
#define VERIFIES_MAX 4u /* in all */

struct verify {
    struct work work;
    struct pool *pool;
    struct wset *ws;
    bool source;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void (*done)(void *user, const struct verify_result *result);
    void *user;
    struct verify_result result;
    uint64_t failed, lost, differ; /* of result.bad */
    uint64_t last_bad;             /* sample: several bad fields of it count once */
    uint64_t reported_ns;
    /* a load of the source */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool loaded;
    int load_status;
    char load_message[400];
    uint8_t *window;
    uint64_t window_bytes, paid;
};

static void bad_sample(struct verify *v, uint64_t i, uint64_t *kind, const char *what)
{
    if (v->result.bad > 0 && v->last_bad == i)
        return;
    (*kind)++;
    v->last_bad = i;
    if (v->result.bad++ > 0)
        return;
    snprintf(v->result.first_bad, sizeof(v->result.first_bad), "%.500s", what);
}

static void bad_part(struct verify *v, uint64_t i, unsigned f, const char *where)
{
    char scratch[24], what[600];
    size_t len;
    const struct index *index = &v->ws->index;
    const char *key = index_key(index, i, scratch, &len);
    snprintf(what, sizeof(what), "sample %" PRIu64 " (%.*s), field '%s', %s", i, (int)MIN(len, (size_t)120),
             key, index_string(index, index->fields[f].name), where);
    bad_sample(v, i, &v->differ, what);
}

/* A sample whose bytes should be there, and are not. */
static void check_state(struct verify *v, uint64_t i)
{
    struct leat_error err = {0};
    unsigned state = wset_sample_state(v->ws, i);
    if (state == LIVE_FAILED) {
        wset_failure_get(v->ws, i, &err);
        bad_sample(v, i, &v->failed, err.message);
    } else if (state == LIVE_LOST) {
        char scratch[24];
        size_t len;
        const char *key = index_key(&v->ws->index, i, scratch, &len);
        snprintf(err.message, sizeof(err.message), "sample %" PRIu64 " (%.*s): it was lost with its node", i,
                 (int)MIN(len, (size_t)120), key);
        bad_sample(v, i, &v->lost, err.message);
    }
}

/* The CRC of a part that lies in this host's regions; false when some of it is remote. */
static bool part_crc(const struct wset *ws, const struct index_part *part, uint32_t *ret_crc)
{
    uint32_t crc = 0;
    for (uint64_t at = 0; at < part->bytes;) {
        uint64_t address = part->address + at;
        uint64_t n = MIN(part->bytes - at, ws->region_bytes - address % ws->region_bytes);
        const uint8_t *data = wset_address(ws, address, n);
        if (!data)
            return false;
        crc = crc32c(crc, data, n);
        at += n;
    }
    *ret_crc = crc;
    return true;
}

struct source_load {
    struct fill_load load;
    struct verify *v;
};

static void load_done(struct fill_load *load, int status, const char *message)
{
    struct verify *v = container_of(load, struct source_load, load)->v;
    pthread_mutex_lock(&v->lock);
    v->loaded = true;
    v->load_status = status;
    snprintf(v->load_message, sizeof(v->load_message), "%s", message);
    pthread_cond_signal(&v->cond);
    pthread_mutex_unlock(&v->lock);
}

/* Tickets that would be refused are not asked for: operators count those as a full pool. */
static int window_take(struct verify *v)
{
    struct budget *budget = &v->pool->budget;
    v->window_bytes = WINDOW_BYTES;
    while (v->window_bytes > WINDOW_LEAST &&
           (atomic_load(&budget->used_bytes) + v->window_bytes > budget->cap_bytes ||
            budget_reserve(budget, v->window_bytes) < 0))
        v->window_bytes /= 2;
    v->paid = v->window_bytes > WINDOW_LEAST ? v->window_bytes : 0;
    atomic_fetch_add(&v->pool->scratch_bytes, v->paid);
    v->window = mmap(NULL, v->window_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (v->window != MAP_FAILED)
        return 0;
    v->window = NULL;
    return -ENOMEM;
}

static void window_give(struct verify *v)
{
    if (v->window)
        munmap(v->window, v->window_bytes);
    atomic_fetch_sub(&v->pool->scratch_bytes, v->paid);
    budget_release(&v->pool->budget, v->paid);
}

/* At most a window's bytes. */
static int load_range(struct verify *v, uint64_t begin, uint64_t end)
{
    struct source_load l = {
        .load = {.ws = v->ws, .address = begin, .bytes = end - begin, .dst = v->window, .done = load_done},
        .v = v};
    v->loaded = false;
    fill_load(v->pool->fill, &l.load);
    pthread_mutex_lock(&v->lock);
    while (!v->loaded)
        pthread_cond_wait(&v->cond, &v->lock);
    pthread_mutex_unlock(&v->lock);
    return v->load_status;
}

static bool part_of(struct verify *v, uint64_t i, unsigned f, struct index_part *part)
{
    return wset_sample_state(v->ws, i) == LIVE_RESIDENT && index_part(&v->ws->index, i, f, part) &&
           part->bytes > 0;
}

static bool given_up(const struct verify *v)
{
    return wset_is_revoked(v->ws) || atomic_load(&v->pool->stopping);
}

/* A part that is larger than the window. */
static void source_pieces(struct verify *v, uint64_t i, unsigned f, const struct index_part *part)
{
    uint32_t crc = 0;
    int rc = 0;
    for (uint64_t at = 0; at < part->bytes && rc == 0; at += v->window_bytes) {
        uint64_t n = MIN(v->window_bytes, part->bytes - at);
        if (given_up(v))
            return;
        rc = load_range(v, part->address + at, part->address + at + n);
        crc = crc32c(crc, v->window, n);
    }
    if (rc < 0 || crc != v->ws->crc[i * v->ws->index.header->nfields + f])
        bad_part(v, i, f, rc < 0 ? v->load_message : "differs in its source");
}

/* Samples from `first` whose parts of field f fit a window; compares each with the record. Returns the next sample. */
static uint64_t source_window(struct verify *v, uint64_t first, unsigned f)
{
    const struct index *index = &v->ws->index;
    uint64_t begin = UINT64_MAX, end = 0, i = first, n = index->header->nsamples;
    struct index_part part;
    for (; i < n; i++) {
        if (!part_of(v, i, f, &part))
            continue;
        if (begin != UINT64_MAX && part.address + part.bytes - begin > v->window_bytes)
            break;
        if (part.bytes > v->window_bytes) {
            source_pieces(v, i, f, &part);
            return i + 1;
        }
        begin = MIN(begin, part.address);
        end = part.address + part.bytes;
    }
    if (end == 0)
        return i;
    int rc = load_range(v, begin, end);
    for (uint64_t k = first; k < i; k++) {
        /* One that became resident since may lie outside of what was read. */
        if (part_of(v, k, f, &part) && part.address >= begin && part.address + part.bytes <= end &&
            (rc < 0 || crc32c(0, v->window + (part.address - begin), part.bytes) !=
                           v->ws->crc[k * index->header->nfields + f]))
            bad_part(v, k, f, rc < 0 ? v->load_message : "differs in its source");
    }
    return i;
}

struct progress_post {
    struct verify *v;
    uint64_t done;
};

static void progress_on_loop(void *arg)
{
    struct progress_post *p = arg;
    p->v->progress(p->v->user, p->done, p->v->ws->index.header->nsamples);
    free(p);
}

static void report(struct verify *v, uint64_t done)
{
    uint64_t now = clock_now_ns();
    if (now - v->reported_ns < REPORT_NS)
        return;
    v->reported_ns = now;
    struct progress_post *p = malloc(sizeof(*p));
    if (p) {
        *p = (struct progress_post){v, done};
        if (loop_post(v->pool->loop, progress_on_loop, p) < 0)
            free(p);
    }
}

static void verify_done(struct work *work)
{
    struct verify *v = container_of(work, struct verify, work);
    v->pool->verifying--;
    v->done(v->user, &v->result);
    pthread_mutex_destroy(&v->lock);
    pthread_cond_destroy(&v->cond);
    window_give(v);
    wset_unref(v->ws);
    free(v);
}

static void verify_run(struct work *work)
{
    struct verify *v = container_of(work, struct verify, work);
    const struct index_header *h = v->ws->index.header;
    struct index_part part;
    for (uint64_t i = 0; i < h->nsamples && !given_up(v); i++) {
        check_state(v, i);
        for (unsigned f = 0; f < h->nfields; f++) {
            uint32_t crc;
            if (part_of(v, i, f, &part) && part_crc(v->ws, &part, &crc) &&
                crc != v->ws->crc[i * h->nfields + f])
                bad_part(v, i, f, "differs in the pool");
        }
        report(v, i);
    }
    for (unsigned f = 0; v->source && f < h->nfields; f++) {
        for (uint64_t i = 0; i < h->nsamples && !given_up(v);) {
            i = source_window(v, i, f);
            report(v, i);
        }
    }
    size_t used = strlen(v->result.first_bad);
    if (v->result.bad > 1)
        snprintf(v->result.first_bad + used, sizeof(v->result.first_bad) - used,
                 "; in all %" PRIu64 " failed to load, %" PRIu64 " are lost, %" PRIu64
                 " differ from their checksum",
                 v->failed, v->lost, v->differ);
    if (atomic_load(&v->pool->stopping)) {
        v->result.status = -ECANCELED;
        snprintf(v->result.first_bad, sizeof(v->result.first_bad), "the daemon ended while it verified");
    }
    if (wset_written(v->ws)) {
        v->result.status = LEAT_STALE;
        snprintf(v->result.first_bad, sizeof(v->result.first_bad),
                 "the set was dropped by force while it was verified");
    }
}

int verify_start(struct pool *pool, struct wset *ws, bool source,
                 void (*progress)(void *user, uint64_t done, uint64_t total),
                 void (*done)(void *user, const struct verify_result *result), void *user)
{
    if (pool->verifying >= VERIFIES_MAX)
        return LEAT_BUSY;
    struct verify *v = calloc(1, sizeof(*v));
    if (!v)
        return -ENOMEM;
    *v = (struct verify){.work = {.run = verify_run, .done = verify_done},
                         .pool = pool,
                         .ws = wset_ref(ws),
                         .source = source && !(ws->flags & PROTO_WS_PUSHED),
                         .progress = progress,
                         .done = done,
                         .user = user,
                         .reported_ns = clock_now_ns()};
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->cond, NULL);
    int rc = v->source ? window_take(v) : 0;
    if (rc == 0)
        rc = work_start_now(pool, &v->work);
    if (rc < 0) {
        window_give(v);
        pthread_mutex_destroy(&v->lock);
        pthread_cond_destroy(&v->cond);
        wset_unref(ws);
        free(v);
        return rc;
    }
    pool->verifying++;
    return 0;
}
