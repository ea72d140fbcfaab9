/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The maker takes a reservation for a step of 2 MiB and backs it without the lock. It repeats this until the
 * stock is full or its allowance is used up. The stock has whole regions and, where there is more than one
 * region's worth, a ladder of regions prefaulted to a half, a quarter, ... of their size. These serve the
 * last region of a set, which is seldom whole: cutting a whole one would waste the rest.
 *
 * Failures: no reservation or no memory for a step ends the allowance; the pool asks again later. A region is
 * in `stock` or has been taken, and taking removes it, so that none can serve twice.
 *
 * The maker runs as SCHED_IDLE, where the kernel lets it be raised again (CAP_SYS_NICE, or RLIMIT_NICE of
 * 20): a thread that needs the lock, or the end of the step, raises it first. The control loop must not wait
 * for the host to be idle. Without that right it runs as SCHED_BATCH.
 */
#include "pool/region/prefault.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/budget.h"

#include <pthread.h>
#include <sched.h>

#define STEP_BYTES (2 * MIB)
#define RUNG_BYTES (16 * MIB) /* the least of the ladder */
#define AGAIN_NS   (1 * NS_PER_MS)
#define STOCK_MAX  1024u /* regions: each is two descriptors */

struct stocked {
    struct region *region; /* its used_bytes are the reservation's: prefault_bytes, and the step under way */
    uint64_t want_bytes;   /* ready when the maker is done with it */
};

struct prefault {
    struct prefault_config config;
    _Atomic uint64_t bytes, made_bytes, taken_bytes, given_up_bytes;
    _Atomic unsigned waiting; /* for the lock: the maker keeps its priority then */
    pthread_t thread;
    bool started, idles;
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    /* below the lock */
    struct stocked *stock;
    unsigned nstock, cap_stock;
    uint64_t allowed_bytes;
    bool making, stopping;
    int told; /* the failure that was logged last */
};

static int policy_set(pthread_t thread, int policy)
{
    return -pthread_setschedparam(thread, policy, &(struct sched_param){0});
}

/* In a thread of its own, which may not come back from SCHED_IDLE. */
static void *try_to_idle(void *arg)
{
    bool *ret_may = arg;
    *ret_may = policy_set(pthread_self(), SCHED_IDLE) == 0 && policy_set(pthread_self(), SCHED_OTHER) == 0;
    return NULL;
}

static bool may_idle(void)
{
    pthread_t thread;
    bool may = false;
    if (pthread_create(&thread, NULL, try_to_idle, &may) == 0)
        pthread_join(thread, NULL);
    return may;
}

static void enter(struct prefault *r)
{
    atomic_fetch_add(&r->waiting, 1);
    if (r->started && r->idles)
        policy_set(r->thread, SCHED_OTHER);
    pthread_mutex_lock(&r->lock);
}

static void leave(struct prefault *r)
{
    atomic_fetch_sub(&r->waiting, 1);
    pthread_mutex_unlock(&r->lock);
}

/* --- the maker --------------------------------------------------------------------------------------------------- */

static uint64_t wanted(const struct prefault *r)
{
    uint64_t bytes = 0;
    for (unsigned k = 0; k < r->nstock; k++)
        bytes += r->stock[k].want_bytes;
    return bytes;
}

static bool has_rung(const struct prefault *r, uint64_t bytes)
{
    for (unsigned k = 0; k < r->nstock; k++) {
        if (r->stock[k].want_bytes == bytes)
            return true;
    }
    return false;
}

/* How much of the next region is to be prefaulted; 0: the stock is complete. */
static uint64_t want_next(const struct prefault *r)
{
    uint64_t region = r->config.region_bytes, target = r->config.bytes, have = wanted(r);
    if (r->nstock == r->cap_stock || have >= target)
        return 0;
    uint64_t left = align_down(target - have, MIN(region, (uint64_t)STEP_BYTES));
    if (target < 2 * region || !has_rung(r, region))
        return MIN(left, region);
    for (uint64_t rung = region / 2; rung >= RUNG_BYTES; rung /= 2) {
        if (!has_rung(r, rung))
            return MIN(left, rung);
    }
    return MIN(left, region);
}

/* The region that the next step goes into; NULL: nothing to do, or nothing is allowed. */
static struct stocked *next_to_make(struct prefault *r)
{
    if (r->allowed_bytes == 0)
        return NULL;
    for (unsigned k = 0; k < r->nstock; k++) {
        if (r->stock[k].region->used_bytes < r->stock[k].want_bytes)
            return &r->stock[k];
    }
    uint64_t want = want_next(r);
    if (want == 0)
        return NULL;
    struct region *region;
    struct leat_error err = {0};
    int rc = region_new(&r->config.pages, r->config.region_bytes, 0, r->config.budget, &region, &err);
    if (rc < 0) {
        if (rc != r->told)
            log_warning("no memory is prefaulted: %s", err.message);
        r->told = rc;
        r->allowed_bytes = 0;
        return NULL;
    }
    r->stock[r->nstock] = (struct stocked){region, want};
    return &r->stock[r->nstock++];
}

static void account(struct prefault *r, struct region *region, int64_t bytes)
{
    region->used_bytes += (uint64_t)bytes;
    atomic_fetch_add(&r->bytes, (uint64_t)bytes);
}

static void remove_at(struct prefault *r, unsigned k)
{
    r->stock[k] = r->stock[--r->nstock];
}

static void step_failed(struct prefault *r, struct region *region, uint64_t step, int rc)
{
    if (rc != r->told)
        log_info("no more memory can be prefaulted for now: %s", strerror(-rc));
    r->told = rc;
    r->allowed_bytes = 0;
    /* Memory of the step goes; used_bytes first, as a reader of both counts reservations. */
    account(r, region, -(int64_t)step);
    region_trim(region, region->used_bytes);
    budget_release(r->config.budget, step);
}

static void make_step(struct prefault *r, struct stocked *s)
{
    struct region *region = s->region;
    uint64_t step = MIN(s->want_bytes - region->used_bytes, (uint64_t)STEP_BYTES);
    if (step > r->allowed_bytes || budget_reserve(r->config.budget, step) < 0) {
        r->allowed_bytes = 0;
        return;
    }
    account(r, region, (int64_t)step);
    r->allowed_bytes -= step;
    r->making = true;
    pthread_mutex_unlock(&r->lock);
    int rc = r->config.prepare(region, step);
    pthread_mutex_lock(&r->lock);
    r->making = false;
    pthread_cond_broadcast(&r->idle);
    if (rc < 0)
        step_failed(r, region, step, rc);
    else
        atomic_fetch_add(&r->made_bytes, step);
    if (rc == 0)
        r->told = 0;
}

static void *maker_main(void *arg)
{
    struct prefault *r = arg;
    pthread_setname_np(pthread_self(), "leat-ready");
    if (!r->idles)
        policy_set(pthread_self(), SCHED_BATCH);
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        struct stocked *s = next_to_make(r);
        if (s)
            make_step(r, s);
        else
            pthread_cond_wait(&r->work, &r->lock);
        if (atomic_load(&r->waiting) > 0) {
            /* Releasing the lock and taking it again at once would keep other threads out. */
            pthread_mutex_unlock(&r->lock);
            sched_yield();
            pthread_mutex_lock(&r->lock);
        } else if (r->idles) {
            policy_set(pthread_self(), SCHED_IDLE);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- the pool's side --------------------------------------------------------------------------------------------- */

int prefault_new(const struct prefault_config *config, struct prefault **ret_ready, struct leat_error *err)
{
    struct prefault *r = calloc(1, sizeof(*r));
    if (!r)
        return error_set(err, -ENOMEM, "out of memory");
    r->config = *config;
    if (!r->config.prepare)
        r->config.prepare = region_prepare;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    cond_init(&r->idle);
    r->cap_stock = (unsigned)MIN(config->bytes / config->region_bytes + 40, (uint64_t)STOCK_MAX);
    r->stock = calloc(r->cap_stock, sizeof(*r->stock));
    r->idles = may_idle();
    int rc = r->stock ? -pthread_create(&r->thread, NULL, maker_main, r) : -ENOMEM;
    if (rc < 0) {
        prefault_free(r);
        return error_sys(err, rc, "cannot start the thread that prefaults memory");
    }
    r->started = true;
    *ret_ready = r;
    return 0;
}

void prefault_free(struct prefault *r)
{
    if (!r)
        return;
    if (r->started) {
        enter(r);
        r->stopping = true;
        pthread_cond_signal(&r->work);
        leave(r);
        pthread_join(r->thread, NULL);
    }
    for (unsigned k = 0; k < r->nstock; k++)
        region_unref(r->stock[k].region);
    free(r->stock);
    pthread_cond_destroy(&r->idle);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void prefault_allow(struct prefault *r, uint64_t bytes)
{
    if (!r || bytes == 0)
        return;
    enter(r);
    r->allowed_bytes = bytes;
    pthread_cond_signal(&r->work);
    leave(r);
}

/* Below the lock. */
static void hold(struct prefault *r)
{
    r->allowed_bytes = 0;
    while (r->making) {
        /* Repeatedly: the maker may have gone idle just now, and would wait for the whole host. */
        if (r->idles)
            policy_set(r->thread, SCHED_OTHER);
        cond_wait_until(&r->idle, &r->lock, clock_now_ns() + AGAIN_NS);
    }
}

void prefault_hold(struct prefault *r)
{
    if (!r)
        return;
    enter(r);
    hold(r);
    leave(r);
}

/* The least that is enough, else the most; nstock when there is nothing. */
static unsigned best_for(const struct prefault *r, uint64_t used_bytes)
{
    unsigned best = r->nstock;
    for (unsigned k = 0; k < r->nstock; k++) {
        uint64_t has = r->stock[k].region->used_bytes,
                 most = best < r->nstock ? r->stock[best].region->used_bytes : 0;
        if (has == 0)
            continue;
        bool better = most < used_bytes ? has > most : has >= used_bytes && has < most;
        best = better ? k : best;
    }
    return best;
}

struct region *prefault_take(struct prefault *r, uint64_t region_bytes, uint64_t used_bytes)
{
    if (!r || region_bytes != r->config.region_bytes)
        return NULL;
    enter(r);
    hold(r);
    struct region *region = NULL;
    unsigned k = best_for(r, used_bytes);
    uint64_t has = k < r->nstock ? r->stock[k].region->used_bytes : 0;
    if (has > 0 && (has >= used_bytes || budget_reserve(r->config.budget, used_bytes - has) == 0)) {
        region = r->stock[k].region;
        remove_at(r, k);
        atomic_fetch_sub(&r->bytes, has);
        atomic_fetch_add(&r->taken_bytes, MIN(has, used_bytes));
        region->used_bytes = used_bytes;
        if (has > used_bytes) {
            region_trim(region, used_bytes);
            budget_release(r->config.budget, has - used_bytes);
            atomic_fetch_add(&r->given_up_bytes, has - used_bytes);
        }
    }
    leave(r);
    return region;
}

uint64_t prefault_cancel(struct prefault *r, uint64_t bytes)
{
    if (!r)
        return 0;
    enter(r);
    hold(r);
    uint64_t freed = 0;
    while (freed < bytes && r->nstock > 0) {
        struct region *region = r->stock[r->nstock - 1].region;
        uint64_t has = region->used_bytes, keep = has - MIN(has, align_up(bytes - freed, STEP_BYTES));
        atomic_fetch_sub(&r->bytes, has - keep);
        freed += has - keep;
        if (keep == 0) {
            remove_at(r, r->nstock - 1);
            region_unref(region);
        } else {
            region_trim(region, keep);
            region->used_bytes = keep;
            budget_release(r->config.budget, has - keep);
        }
    }
    atomic_fetch_add(&r->given_up_bytes, freed);
    leave(r);
    return freed;
}

uint64_t prefault_bytes(struct prefault *r)
{
    return r ? atomic_load(&r->bytes) : 0;
}

void prefault_stats(struct prefault *r, struct prefault_stats *ret_stats)
{
    *ret_stats = (struct prefault_stats){0};
    if (!r)
        return;
    *ret_stats = (struct prefault_stats){.target_bytes = r->config.bytes,
                                         .bytes = atomic_load(&r->bytes),
                                         .made_bytes = atomic_load(&r->made_bytes),
                                         .taken_bytes = atomic_load(&r->taken_bytes),
                                         .given_up_bytes = atomic_load(&r->given_up_bytes)};
}
