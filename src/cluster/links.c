/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/links.h"

static unsigned ask(struct cluster_link *link, uint64_t now_ns)
{
    link->asked = true;
    link->asked_ns = now_ns;
    return LINK_ASK;
}

static unsigned identified(struct cluster_link *link)
{
    link->asked = false;
    if (link->state != LINK_CONNECTED)
        return 0;
    link->state = LINK_UP;
    return LINK_BECAME_UP;
}

static unsigned tick(struct cluster_link *link, uint64_t now_ns)
{
    unsigned actions = 0;
    if (link->asked && now_ns - link->asked_ns > LINK_SILENCE_NS)
        actions |= LINK_DISCONNECT;
    else if (!link->asked && link->state != LINK_DOWN)
        actions |= ask(link, now_ns);
    if (link->inbound_lost_ns && now_ns - link->inbound_lost_ns >= LINK_UNCONFIRMED_NS) {
        link->inbound_lost_ns = 0;
        actions |= LINK_EXPIRE;
    }
    return actions;
}

unsigned link_step(struct cluster_link *link, enum link_event event, uint64_t now_ns)
{
    switch (event) {
    case LINK_ON_CONNECTED:
        link->state = LINK_CONNECTED;
        return ask(link, now_ns);
    case LINK_ON_IDENTIFIED:
        return identified(link);
    case LINK_ON_OTHER:
        link->asked = false;
        return link->state == LINK_CONNECTED ? LINK_REJECT : 0;
    case LINK_ON_UNANSWERED:
        link->asked = false;
        return 0;
    case LINK_ON_DISCONNECTED:
        link->state = LINK_DOWN;
        link->asked = false;
        return LINK_WENT_DOWN;
    case LINK_ON_INBOUND_LOST:
        if (link->inbound_lost_ns == 0)
            link->inbound_lost_ns = now_ns;
        return 0;
    case LINK_ON_RESTARTED:
        link->inbound_lost_ns = 0;
        return LINK_EXPIRE;
    case LINK_ON_TICK:
        return tick(link, now_ns);
    }
    return 0;
}
