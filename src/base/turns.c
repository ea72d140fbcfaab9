/* SPDX-License-Identifier: Apache-2.0 */
#include "base/turns.h"

#define SLOW_MAX 64u /* parties that are remembered to be slow while nothing is to be done for them */

struct turns_party {
    struct list node, queue;
    uint64_t id;
    unsigned queued, running;
    bool slow;
};

void turns_init(struct turns *t, unsigned threads, unsigned queue_max)
{
    *t = (struct turns){.threads = threads, .queue_max = queue_max};
    list_init(&t->parties);
}

static struct turns_party *find(struct turns *t, uint64_t id)
{
    list_for_each (node, &t->parties) {
        struct turns_party *p = container_of(node, struct turns_party, node);
        if (p->id == id)
            return p;
    }
    struct turns_party *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->id = id;
    list_init(&p->queue);
    list_push_back(&t->parties, &p->node);
    return p;
}

static void set_slow(struct turns *t, struct turns_party *p, bool slow)
{
    if (p->slow == slow)
        return;
    p->slow = slow;
    t->nslow += slow ? 1 : -1u;
    t->slow_running += slow ? p->running : -p->running;
}

static void forget_if_idle(struct turns *t, struct turns_party *p)
{
    if (p->queued || p->running || (p->slow && t->nslow <= SLOW_MAX))
        return;
    set_slow(t, p, false);
    list_remove(&p->node);
    free(p);
}

void turns_fini(struct turns *t)
{
    list_for_each_safe (node, &t->parties)
        free(container_of(node, struct turns_party, node));
}

int turns_add(struct turns *t, uint64_t party, struct turn *turn)
{
    struct turns_party *p = find(t, party);
    if (!p)
        return -ENOMEM;
    if (p->queued >= t->queue_max) {
        forget_if_idle(t, p);
        return -EAGAIN;
    }
    list_push_back(&p->queue, &turn->node);
    p->queued++;
    t->queued++;
    return 0;
}

static struct turn *take(struct turns *t, struct turns_party *p)
{
    struct turn *turn = list_first(&p->queue, struct turn, node);
    list_remove(&turn->node);
    p->queued--;
    t->queued--;
    return turn;
}

static bool may_begin(const struct turns *t, const struct turns_party *p)
{
    unsigned idle = t->threads - t->running, kept = t->threads / 8;
    if (!p->queued || p->running >= idle)
        return false;
    if (p->slow)
        return idle > kept && (p->running == 0 || t->slow_running < t->threads / 2);
    return idle > kept || p->running == 0;
}

struct turn *turns_next(struct turns *t, struct turns_party **ret_party)
{
    list_for_each (node, &t->parties) {
        struct turns_party *p = container_of(node, struct turns_party, node);
        if (!may_begin(t, p))
            continue;
        p->running++;
        t->running++;
        t->slow_running += p->slow;
        list_remove(&p->node);
        list_push_back(&t->parties, &p->node);
        *ret_party = p;
        return take(t, p);
    }
    return NULL;
}

unsigned turns_end(struct turns *t, struct turns_party *p, uint64_t took_ns)
{
    bool was_slow = p->slow;
    p->running--;
    t->running--;
    t->slow_running -= p->slow;
    set_slow(t, p, took_ns >= TURNS_SLOW_NS);
    unsigned more = was_slow && !p->slow ? t->threads : 2;
    forget_if_idle(t, p);
    return more;
}

struct turn *turns_drop(struct turns *t)
{
    list_for_each (node, &t->parties) {
        struct turns_party *p = container_of(node, struct turns_party, node);
        if (!p->queued)
            continue;
        struct turn *turn = take(t, p);
        forget_if_idle(t, p);
        return turn;
    }
    return NULL;
}
