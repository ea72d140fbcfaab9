/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fairq.h"

#define SLOW_MAX 64u /* sources that are remembered as slow while they have no work */

struct fairq_source {
    struct list node, queue;
    uint64_t id;
    unsigned queued, running;
    bool slow;
};

void fairq_init(struct fairq *t, unsigned threads, unsigned queue_max)
{
    *t = (struct fairq){.threads = threads, .queue_max = queue_max};
    list_init(&t->parties);
}

static struct fairq_source *find(struct fairq *t, uint64_t id)
{
    list_for_each (node, &t->parties) {
        struct fairq_source *p = container_of(node, struct fairq_source, node);
        if (p->id == id)
            return p;
    }
    struct fairq_source *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->id = id;
    list_init(&p->queue);
    list_push_back(&t->parties, &p->node);
    return p;
}

static void set_slow(struct fairq *t, struct fairq_source *p, bool slow)
{
    if (p->slow == slow)
        return;
    p->slow = slow;
    t->nslow += slow ? 1 : -1u;
    t->slow_running += slow ? p->running : -p->running;
}

static void forget_if_idle(struct fairq *t, struct fairq_source *p)
{
    if (p->queued || p->running || (p->slow && t->nslow <= SLOW_MAX))
        return;
    set_slow(t, p, false);
    list_remove(&p->node);
    free(p);
}

void fairq_fini(struct fairq *t)
{
    list_for_each_safe (node, &t->parties)
        free(container_of(node, struct fairq_source, node));
}

int fairq_push(struct fairq *t, uint64_t party, struct fairq_item *turn)
{
    struct fairq_source *p = find(t, party);
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

static struct fairq_item *take(struct fairq *t, struct fairq_source *p)
{
    struct fairq_item *turn = list_first(&p->queue, struct fairq_item, node);
    list_remove(&turn->node);
    p->queued--;
    t->queued--;
    return turn;
}

static bool may_begin(const struct fairq *t, const struct fairq_source *p)
{
    unsigned idle = t->threads - t->running, kept = t->threads / 8;
    if (!p->queued || p->running >= idle)
        return false;
    if (p->slow)
        return idle > kept && (p->running == 0 || t->slow_running < t->threads / 2);
    return idle > kept || p->running == 0;
}

struct fairq_item *fairq_pop(struct fairq *t, struct fairq_source **ret_party)
{
    list_for_each (node, &t->parties) {
        struct fairq_source *p = container_of(node, struct fairq_source, node);
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

unsigned fairq_done(struct fairq *t, struct fairq_source *p, uint64_t took_ns)
{
    bool was_slow = p->slow;
    p->running--;
    t->running--;
    t->slow_running -= p->slow;
    set_slow(t, p, took_ns >= FAIRQ_SLOW_NS);
    unsigned more = was_slow && !p->slow ? t->threads : 2;
    forget_if_idle(t, p);
    return more;
}

struct fairq_item *fairq_drain(struct fairq *t)
{
    list_for_each (node, &t->parties) {
        struct fairq_source *p = container_of(node, struct fairq_source, node);
        if (!p->queued)
            continue;
        struct fairq_item *turn = take(t, p);
        forget_if_idle(t, p);
        return turn;
    }
    return NULL;
}
