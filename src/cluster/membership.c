/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/membership.h"

#include <xxhash.h>

void membership_free(struct membership *m)
{
    for (uint32_t n = 0; m && n < m->n; n++)
        free(m->members[n].address);
    free(m ? m->members : NULL);
    free(m);
}

uint32_t membership_find(const struct membership *m, const char *address)
{
    for (uint32_t n = 0; n < m->n; n++) {
        if (strcmp(m->members[n].address, address) == 0)
            return n;
    }
    return MEMBER_NONE;
}

static void notify(struct membership *m, uint32_t at, enum member_change change)
{
    if (m->changed)
        m->changed(m->user, at, change);
}

void membership_up(struct membership *m, uint32_t at)
{
    notify(m, at, MEMBER_UP);
}

void membership_down(struct membership *m, uint32_t at)
{
    notify(m, at, MEMBER_DOWN);
}

/*
 * A process that was started again and answers by another address than the old one's comes up without having gone down. Its
 * regions are gone all the same, even if another node had it install our sets since.
 */
void membership_incarnation(struct membership *m, uint32_t at, uint64_t incarnation)
{
    uint64_t before = m->members[at].incarnation;
    if (incarnation == 0 || incarnation == before)
        return;
    m->members[at].incarnation = incarnation;
    if (before)
        notify(m, at, MEMBER_RESTARTED);
}

bool membership_is_current(const struct membership *m, uint32_t at, uint64_t incarnation)
{
    return incarnation == 0 || (at < m->n && m->members[at].incarnation == incarnation);
}

uint32_t membership_coordinator(const struct membership *m, const char *key,
                                bool (*may)(const void *user, uint32_t at), const void *user)
{
    uint32_t best = MEMBER_NONE;
    uint64_t best_score = 0;
    for (uint32_t n = 0; n < m->n; n++) {
        if (!may(user, n))
            continue;
        uint64_t score = XXH3_64bits_withSeed(key, strlen(key), m->members[n].id);
        if (best == MEMBER_NONE || score > best_score) {
            best = n;
            best_score = score;
        }
    }
    return best;
}
