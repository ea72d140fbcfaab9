/* SPDX-License-Identifier: Apache-2.0 */
/*
 * throttle.c: a share in [0, 1] of what each session may have under way, and a time before which nothing new
 * is begun.
 *
 * Invariants: the table has those with a name and a reference; `refs` and the table are under its lock, the
 * rest is atomic.
 */
#include "backend/s3/throttle.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/list.h"

#define ONE (1u << 30)
#define HOLD_MAX                                                                                             \
    (5 * NS_PER_S) /* reads that have not begun have no deadline yet: they are not held for longer */

struct throttle {
    struct list node; /* all */
    unsigned refs;
    _Atomic uint32_t share; /* of ONE */
    _Atomic uint64_t until_ns;
    char name[]; /* "": no one else's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list all = {&all, &all};

int throttle_get(const char *name, struct throttle **ret_throttle)
{
    struct throttle *t = NULL;
    pthread_mutex_lock(&lock);
    list_for_each (node, &all) {
        struct throttle *is = container_of(node, struct throttle, node);
        if (name && strcmp(is->name, name) == 0)
            t = is;
    }
    if (t) {
        t->refs++;
    } else if ((t = malloc(sizeof(*t) + (name ? strlen(name) : 0) + 1))) {
        *t = (struct throttle){.refs = 1, .share = ONE};
        strcpy(t->name, name ? name : "");
        list_init(&t->node);
        if (name)
            list_push_back(&all, &t->node);
    }
    pthread_mutex_unlock(&lock);
    *ret_throttle = t;
    return t ? 0 : -ENOMEM;
}

void throttle_unref(struct throttle *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&lock);
    bool last = --t->refs == 0;
    if (last)
        list_remove(&t->node);
    pthread_mutex_unlock(&lock);
    if (last)
        free(t);
}

static double limit_of(uint32_t share, unsigned most)
{
    return MAX(1.0, (double)share / ONE * most);
}

double throttle_limit(const struct throttle *t, unsigned most)
{
    return limit_of(atomic_load_explicit(&t->share, memory_order_relaxed), most);
}

void throttle_busy(struct throttle *t, unsigned most, uint64_t pause_ns)
{
    uint32_t share = atomic_load(&t->share), less;
    do {
        less = MIN(share, MAX((uint32_t)(share * 0.7), ONE / most));
    } while (!atomic_compare_exchange_weak(&t->share, &share, less));
    if (!t->name[0] || !pause_ns)
        return;
    /* One that runs stays as it is: what is let through may be refused as well, and there would be no end. */
    uint64_t now = clock_now_ns(), is = atomic_load(&t->until_ns);
    while (is <= now && !atomic_compare_exchange_weak(&t->until_ns, &is, now + MIN(pause_ns, HOLD_MAX))) {
    }
}

/* One more for each of them that is answered: as many again after `most` of them. */
void throttle_good(struct throttle *t, unsigned most)
{
    uint32_t share = atomic_load_explicit(&t->share, memory_order_relaxed), more;
    do {
        if (share == ONE)
            return;
        more = (uint32_t)MIN((double)ONE, share + ONE / limit_of(share, most) / most + 1);
    } while (!atomic_compare_exchange_weak(&t->share, &share, more));
}

uint64_t throttle_until(struct throttle *t)
{
    uint64_t until = atomic_load_explicit(&t->until_ns, memory_order_relaxed);
    if (until && until <= clock_now_ns()) {
        atomic_compare_exchange_strong(&t->until_ns, &until, 0);
        until = 0;
    }
    return until;
}
