/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c: dirty objects, on their way to their remotes in the background.
 *
 * Happy path: a key that was written goes to the threads at once. One whose push failed waits in the list of
 * keys with the same pause. Each list is in the order of time, so that no thread scans waiting keys.
 * Failure modes: the queue has room for so many keys of a bucket, half of it for those that failed, and their
 * memory is charged. Keys without room are dirty in the store alone, and their bucket is behind: it is looked
 * through, a page at a time, when there is room again; or later, if it was a failed one that went.
 * Invariants: a key is in the queue once. A dirty key is in the queue, or its bucket is behind.
 */
#include "objects/tier/tier_internal.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"

#define LOOK_KEYS 1000u /* of a bucket that is behind, at a time */

struct push {
    struct tier_task task;
    struct list node, pause_node; /* tier.pushes; tier.pauses, while it waits for its time */
    struct tier *t;
    struct tier_bucket *bucket;
    uint64_t due_ns;
    unsigned failures; /* one after the other */
    bool paused;       /* neither queued nor running */
    bool again;        /* it was written to while it ran */
    size_t key_len;
    char key[];
};

static uint64_t push_bytes(size_t key_len)
{
    return sizeof(struct push) + key_len;
}

/* A quarter of the budget, however many remotes are down: requests need the rest. */
static int charge(struct tier *t, uint64_t bytes)
{
    int rc = budget_reserve(&t->push_room, bytes);
    if (rc == 0 && (rc = budget_reserve(t->config.budget, bytes)) < 0)
        budget_release(&t->push_room, bytes);
    return rc;
}

static void discharge(struct tier *t, uint64_t bytes)
{
    budget_release(t->config.budget, bytes);
    budget_release(&t->push_room, bytes);
}

/* Without memory, or leave to use it: NULL. */
static struct push *push_new(struct tier *t, const void *key, size_t key_len, void (*run)(struct tier_task *))
{
    if (charge(t, push_bytes(key_len)) < 0)
        return NULL;
    struct push *p = calloc(1, push_bytes(key_len));
    if (!p) {
        discharge(t, push_bytes(key_len));
        return NULL;
    }
    *p = (struct push){.task = {.run = run}, .t = t, .key_len = key_len};
    list_init(&p->node);
    list_init(&p->pause_node);
    memcpy(p->key, key, key_len);
    return p;
}

static void push_free(struct push *p)
{
    if (!p)
        return;
    struct tier *t = p->t;
    tier_bucket_unref(t, p->bucket);
    discharge(t, push_bytes(p->key_len));
    free(p);
}

/* --- under the lock ---------------------------------------------------------------------------------------------------------- */

/* Something in this bucket is dirty and not in the queue: to be looked for, not before at_ns. */
static void miss(struct tier *t, struct tier_bucket *b, uint64_t at_ns)
{
    if (b->gone)
        b = tier_bucket_look(t, b->name);
    if (!b || (b->missed && b->missed_ns <= at_ns))
        return;
    b->missed = true;
    b->missed_ns = at_ns;
    if (list_empty(&b->dirty_backlog)) {
        b->refs++;
        list_push_back(&t->dirty_backlog, &b->dirty_backlog);
    }
    pthread_cond_signal(&t->push_changed_cond);
}

/* Worth a look: a quarter of it, which those that failed, who have half, leave sooner or later. */
static bool has_room(const struct tier *t, const struct tier_bucket *b)
{
    return b->npushes < t->config.push_queue - t->config.push_queue / 4;
}

static void leave(struct push *p)
{
    struct tier *t = p->t;
    bool had_room = has_room(t, p->bucket);
    list_remove(&p->node);
    p->bucket->npushes--;
    if (--t->stats.push_waiting == 0)
        t->stats.push_error[0] = 0;
    if (!had_room && has_room(t, p->bucket) && !list_empty(&p->bucket->dirty_backlog))
        pthread_cond_signal(&t->push_changed_cond);
}

static uint64_t pause_ns(const struct tier *t, unsigned failures)
{
    uint64_t first = t->config.retry_ns, max = t->config.retry_max_ns;
    return first > max >> failures ? max : first << failures;
}

/* False: those of its bucket that failed have no more room, or those of all: what is written for remotes that answer has the other half. */
static bool pause_it(struct push *p)
{
    struct tier *t = p->t;
    uint64_t bytes = push_bytes(p->key_len);
    if (p->bucket->npaused >= t->config.push_queue / 2 ||
        t->paused_bytes + bytes > t->push_room.cap_bytes / 2)
        return false;
    t->paused_bytes += bytes;
    unsigned k = MIN(p->failures, PUSH_PAUSES - 1);
    p->failures = k + 1;
    p->due_ns = clock_now_ns() + pause_ns(t, k);
    p->paused = true;
    p->bucket->npaused++;
    if (list_empty(&t->pauses[k])) /* others of this list come first */
        pthread_cond_signal(&t->push_changed_cond);
    list_push_back(&t->pauses[k], &p->pause_node);
    return true;
}

/* It ran. True: it stays in the queue. */
static bool settle(struct push *p, int rc, const struct leat_error *err)
{
    struct tier *t = p->t;
    bool failed = rc < 0 && rc != LEAT_STALE, again = p->again;
    bool stays = false;
    p->again = false;
    if (failed) {
        memcpy(t->stats.push_error, err->message, sizeof(err->message));
        stays = pause_it(p);
    } else if (rc < 0 || again) {
        p->failures = 0;
        stays = tier_pool_add(&t->pushers, p->bucket, &p->task) == 0;
    }
    if (!stays && (rc < 0 || again))
        miss(t, p->bucket, clock_now_ns() + t->config.retry_max_ns);
    if (!stays)
        leave(p);
    return stays;
}

/* --- the queue --------------------------------------------------------------------------------------------------------------- */

static void push_run(struct tier_task *task)
{
    struct push *p = container_of(task, struct push, task);
    struct tier *t = p->t;
    struct leat_error err = {0};
    /* A push reads all of its object before it asks for a connection. */
    int rc = atomic_load(&t->stopping) ? LEAT_BUSY : push_key(t, p->bucket->name, p->key, p->key_len, &err);
    bool stopping = atomic_load(&t->stopping);
    if (rc < 0 && rc != LEAT_STALE && !stopping)
        log_warning("bucket %s: %.*s is not at its remote yet, and tried again: %s", p->bucket->name,
                    (int)MIN(p->key_len, (size_t)200), p->key, err.message);
    pthread_mutex_lock(&t->lock);
    bool stays = settle(p, rc, &err);
    pthread_mutex_unlock(&t->lock);
    if (!stays)
        push_free(p);
}

static struct push *find(struct list *chain, const struct tier_bucket *b, const void *key, size_t key_len)
{
    list_for_each (node, chain) {
        struct push *p = container_of(node, struct push, node);
        if (p->key_len == key_len && memcmp(p->key, key, key_len) == 0 &&
            strcmp(p->bucket->name, b->name) == 0)
            return p;
    }
    return NULL;
}

/* written: just now, and not found by a look. LEAT_BUSY: no room; -ENOMEM. */
static int add(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len, bool written)
{
    struct push *p = push_new(t, key, key_len, push_run);
    struct list *chain = &t->pushes[tier_key_hash(b, key, key_len) % PUSH_CHAINS];
    pthread_mutex_lock(&t->lock);
    struct push *there = find(chain, b, key, key_len);
    int rc = there ? 0 : !p ? -ENOMEM : b->npushes >= t->config.push_queue ? LEAT_BUSY : 0;
    if (there && written)
        there->again |= !there->paused;
    else if (!there && rc == 0)
        rc = tier_pool_add(&t->pushers, b, &p->task) < 0 ? -ENOMEM : 0;
    if (!there && rc == 0) {
        b->refs++;
        b->npushes++;
        p->bucket = b;
        list_push_back(chain, &TAKE_PTR(p)->node);
        t->stats.push_waiting++;
    }
    if (rc < 0 && written)
        miss(t, b, rc == LEAT_BUSY ? 0 : clock_now_ns() + NS_PER_S);
    pthread_mutex_unlock(&t->lock);
    push_free(p);
    return rc;
}

void push_add(struct tier *t, struct tier_bucket *b, const void *key, size_t key_len)
{
    add(t, b, key, key_len, true);
}

void push_bucket(struct tier *t, const char *bucket)
{
    pthread_mutex_lock(&t->lock);
    struct tier_bucket *b = tier_bucket_look(t, bucket);
    if (b)
        miss(t, b, 0);
    pthread_mutex_unlock(&t->lock);
}

/* --- what has no room -------------------------------------------------------------------------------------------------------- */

struct look {
    struct tier *t;
    struct tier_bucket *b;
};

static int look_at(void *user, const struct store_entry *e)
{
    struct look *l = user;
    int rc = e->flags & STORE_DIRTY ? add(l->t, l->b, e->key, e->key_len, false) : 0;
    if (rc < 0)
        return rc;
    memcpy(l->b->after, e->key, e->key_len);
    l->b->after_len = e->key_len;
    return 0;
}

/* The next page of it. Its bucket has a backlog until one scan left nothing, and nothing was missed since
 * its begin. */
static void look_on(struct tier *t, struct tier_bucket *b)
{
    struct look l = {t, b};
    struct store_list_spec page = {.max = LOOK_KEYS};
    struct leat_error err = {0};
    bool more = false;
    if (b->midway) {
        page.after = b->after;
        page.after_len = b->after_len;
    } else {
        b->after_len = 0;
    }
    int rc = store_list(t->config.store, b->name, &page, look_at, &l, &more, &err);
    bool failed = rc < 0 && rc != LEAT_BUSY && rc != -ENOMEM && rc != STORE_NO_BUCKET;
    if (failed)
        log_warning("bucket %s: what its remote has not got yet cannot be looked for now: %s", b->name,
                    err.message);
    pthread_mutex_lock(&t->lock);
    b->midway = rc == LEAT_BUSY || rc == -ENOMEM || (rc == 0 && more);
    b->poll_ns = rc == -ENOMEM ? clock_now_ns() + NS_PER_S : 0;
    if (failed)
        miss(t, b, clock_now_ns() + t->config.retry_max_ns);
    bool done = b->gone || (!b->midway && !b->missed);
    if (done)
        list_remove(&b->dirty_backlog);
    pthread_mutex_unlock(&t->lock);
    if (done)
        tier_bucket_unref(t, b);
}

/* One that is behind, and has room: with a reference. Under the lock. */
static struct tier_bucket *next_behind(struct tier *t, uint64_t now_ns, uint64_t *next_ns)
{
    list_for_each (node, &t->dirty_backlog) {
        struct tier_bucket *b = container_of(node, struct tier_bucket, dirty_backlog);
        if (!has_room(t, b) && !b->gone)
            continue; /* the end of another push, which makes room, reports it */
        uint64_t at_ns = b->midway ? b->poll_ns : b->missed_ns;
        if (at_ns > now_ns && !b->gone) {
            *next_ns = MIN(*next_ns, at_ns);
            continue;
        }
        list_remove(node);
        list_push_back(&t->dirty_backlog, node);
        b->missed &= b->midway;
        b->refs++;
        return b;
    }
    return NULL;
}

/* Those whose pause is over go to the threads. When the next one's is. Under the lock. */
static uint64_t end_pauses(struct tier *t, uint64_t now_ns)
{
    uint64_t next_ns = now_ns + 3600 * NS_PER_S;
    for (unsigned k = 0; k < PUSH_PAUSES; k++) {
        struct push *p;
        while ((p = list_first(&t->pauses[k], struct push, pause_node)) && p->due_ns <= now_ns &&
               tier_pool_add(&t->pushers, p->bucket, &p->task) == 0) {
            list_remove(&p->pause_node);
            p->paused = false;
            p->bucket->npaused--;
            t->paused_bytes -= push_bytes(p->key_len);
        }
        if (p)
            next_ns = MIN(next_ns, p->due_ns > now_ns ? p->due_ns : now_ns + NS_PER_S); /* no memory */
    }
    return next_ns;
}

void *push_timer_main(void *arg)
{
    struct tier *t = arg;
    pthread_mutex_lock(&t->lock);
    while (!atomic_load(&t->stopping)) {
        uint64_t now_ns = clock_now_ns(), next_ns = end_pauses(t, now_ns);
        struct tier_bucket *b = next_behind(t, now_ns, &next_ns);
        if (!b) {
            cond_wait_until(&t->push_changed_cond, &t->lock, next_ns);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        look_on(t, b);
        tier_bucket_unref(t, b);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

void push_stop(struct tier *t)
{
    struct push *p;
    struct tier_bucket *b;
    for (size_t i = 0; i < PUSH_CHAINS; i++) {
        while ((p = list_first(&t->pushes[i], struct push, node))) {
            list_remove(&p->node);
            push_free(p);
        }
    }
    while ((b = list_first(&t->dirty_backlog, struct tier_bucket, dirty_backlog))) {
        list_remove(&b->dirty_backlog);
        tier_bucket_unref(t, b);
    }
}
