/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/set_nodes.h"

int set_nodes_init(struct set_nodes *s, uint32_t n)
{
    *s = (struct set_nodes){.at = calloc(MAX(n, 1u), sizeof(*s->at)), .n = n, .placer = UINT32_MAX};
    return s->at ? 0 : -ENOMEM;
}

void set_nodes_fini(struct set_nodes *s)
{
    free(s->at);
    *s = (struct set_nodes){0};
}

bool set_nodes_lose(struct set_nodes *s, uint32_t at)
{
    if (at >= s->n || s->at[at].lost)
        return false;
    s->at[at].lost = true;
    s->nlost++;
    return true;
}

bool set_nodes_regain(struct set_nodes *s, uint32_t at)
{
    if (at >= s->n || !s->at[at].lost)
        return false;
    s->at[at].lost = false;
    s->nlost--;
    return true;
}

/* A message that an older connection still had, perhaps of an earlier incarnation, does not replace what a newer one said. */
static void hold(struct set_nodes *s, uint32_t at, uint64_t conn)
{
    struct set_node *node = &s->at[at];
    if (node->holder && !node->unconfirmed && conn < node->held_by)
        return;
    s->nholders += !node->holder;
    node->holder = true;
    node->unconfirmed = false;
    node->held_by = conn;
    if (at == s->placer)
        s->orphaned_ns = 0;
}

/* It does not hold the set any more. */
static unsigned release(struct set_nodes *s, uint32_t at, const struct set_event *e, uint64_t now_ns)
{
    struct set_node *node = &s->at[at];
    s->nholders -= node->holder;
    node->holder = node->unconfirmed = false;
    if (e->prepared && at == s->placer && !s->orphaned_ns)
        s->orphaned_ns = now_ns;
    return !e->prepared && !s->nholders && !e->in_use ? SET_DROP : 0;
}

/*
 * What it asked for on a connection that it made since stays: when a link was silent, both ends may notice in either order that
 * the old connection is dead.
 */
static unsigned inbound_lost(struct set_nodes *s, uint32_t at, const struct set_event *e, uint64_t now_ns)
{
    struct set_node *node = &s->at[at];
    if (!node->holder || node->held_by != e->conn)
        return 0;
    if (!e->may_return)
        return release(s, at, e, now_ns);
    node->unconfirmed = true;
    return 0;
}

static unsigned up(const struct set_event *e)
{
    return SET_CATCH_UP | (e->host ? SET_ASK_ALL : 0) | (e->host && !e->prepared ? SET_COMMIT : 0);
}

/*
 * What the host sent before was dropped here, so it sends that again. It may still wait for COMMIT; or COMMIT came here so late
 * that the host has dropped its part as an orphan.
 */
static unsigned taken(struct set_nodes *s, uint32_t at, const struct set_event *e)
{
    if (!e->host)
        return 0;
    if (!e->up)
        return set_nodes_lose(s, at) ? SET_LOSE : 0;
    return (e->type == SET_ON_TAKEN ? SET_COMMIT : 0) | SET_ASK_ALL;
}

/* It answered that it does not have the set: it was started again. */
static unsigned lacking(struct set_nodes *s, uint32_t at, const struct set_event *e)
{
    bool again = e->type == SET_ON_LACKING && e->refill && !e->prepared && e->up;
    return (set_nodes_lose(s, at) ? SET_LOSE : 0) | (again ? SET_REINSTALL : 0);
}

unsigned set_nodes_step(struct set_nodes *s, uint32_t at, const struct set_event *e, uint64_t now_ns)
{
    if (at >= s->n)
        return 0;
    struct set_node *node = &s->at[at];
    if (e->type >= SET_ON_FILLING && e->type <= SET_ON_SILENT)
        node->asked = false;
    switch (e->type) {
    case SET_ON_UP:
        return up(e);
    case SET_ON_TAKEN:
    case SET_ON_COMMITTED:
        return taken(s, at, e);
    case SET_ON_LOST:
        return e->host && set_nodes_lose(s, at) ? SET_LOSE : 0;
    case SET_ON_FILLING:
    case SET_ON_SILENT:
        return 0;
    case SET_ON_COMPLETE:
        return set_nodes_regain(s, at) ? SET_REGAIN : 0;
    case SET_ON_LACKING:
    case SET_ON_REFUSED:
        return lacking(s, at, e);
    case SET_ON_HOLD:
        hold(s, at, e->conn);
        return 0;
    case SET_ON_FORGET:
        return release(s, at, e, now_ns);
    case SET_ON_INBOUND_LOST:
        return inbound_lost(s, at, e, now_ns);
    case SET_ON_EXPIRE:
        return node->unconfirmed ? release(s, at, e, now_ns) : 0;
    case SET_ON_TICK:
        return node->lost && !node->asked && !e->prepared && e->up ? SET_ASK : 0;
    }
    return 0;
}

bool set_nodes_orphaned(const struct set_nodes *s, uint64_t now_ns)
{
    return s->orphaned_ns && now_ns - s->orphaned_ns >= SET_ORPHAN_NS;
}
