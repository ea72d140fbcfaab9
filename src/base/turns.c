/* SPDX-License-Identifier: Apache-2.0 */
#include "base/turns.h"

struct turns_party {
    struct list node, queue;
    uint64_t id;
    unsigned queued, running;
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

static void forget_if_idle(struct turns_party *p)
{
    if (p->queued || p->running)
        return;
    list_remove(&p->node);
    free(p);
}

int turns_add(struct turns *t, uint64_t party, struct turn *turn)
{
    struct turns_party *p = find(t, party);
    if (!p)
        return -ENOMEM;
    if (p->queued >= t->queue_max) {
        forget_if_idle(p);
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

struct turn *turns_next(struct turns *t, struct turns_party **ret_party)
{
    list_for_each (node, &t->parties) {
        struct turns_party *p = container_of(node, struct turns_party, node);
        if (!p->queued || t->running >= t->threads || p->running >= t->threads - t->running)
            continue;
        p->running++;
        t->running++;
        list_remove(&p->node);
        list_push_back(&t->parties, &p->node);
        *ret_party = p;
        return take(t, p);
    }
    return NULL;
}

void turns_end(struct turns *t, struct turns_party *p)
{
    p->running--;
    t->running--;
    forget_if_idle(p);
}

struct turn *turns_drop(struct turns *t)
{
    list_for_each (node, &t->parties) {
        struct turns_party *p = container_of(node, struct turns_party, node);
        if (!p->queued)
            continue;
        struct turn *turn = take(t, p);
        forget_if_idle(p);
        return turn;
    }
    return NULL;
}
