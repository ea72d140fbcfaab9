/* SPDX-License-Identifier: Apache-2.0 */
/*
 * membership.h: the nodes that keep sets together: who they are, and what this node knows of each.
 *
 * A node is an id that is never given to another node, with an incarnation for each start of its process. `members` is a table
 * of nodes in a fixed order; a position in it stands for a node within this process. Identity is the id.
 *
 * The source of the table makes it: static.c from a list of addresses, later others. The links of this node report what they
 * find (membership_up, _down, _incarnation), and the watch learns each change. All on one thread.
 */
#ifndef CLUSTER_MEMBERSHIP_H
#define CLUSTER_MEMBERSHIP_H

#include "base/base.h"

#define MEMBER_NONE UINT32_MAX /* no position */

struct cluster_member {
    uint64_t id;          /* not 0 */
    uint64_t incarnation; /* 0: not known yet */
    char *address;        /* "host:port[,host:port]" */
};

enum member_change {
    MEMBER_UP, /* with each connection on which it identified itself, also when it was not down before */
    MEMBER_RESTARTED, /* another incarnation than the one known: what that one held is gone */
    MEMBER_DOWN,      /* with each attempt that fails: sets that came since are concerned, too */
};

struct membership {
    struct cluster_member *members;
    uint32_t n, self; /* self: the position of this node */
    /* Set by the owner; NULL: none. */
    void (*changed)(void *user, uint32_t at, enum member_change change);
    void *user;
};

/*
 * The first implementation: a list of addresses, the same in the same order on every node. The id of a node is its number in
 * the list, from 1. `self` is one of the addresses, `incarnation` that of this process, not 0. Strings are copied.
 * LEAT_INVALID: self is not in the list. -ENOMEM.
 */
int membership_static_new(char *const *addresses, uint32_t n, const char *self, uint64_t incarnation,
                          struct membership **ret_members, struct leat_error *err);
void membership_free(struct membership *m); /* NULL is fine */

/* The position of an address, which matches as text; MEMBER_NONE. */
uint32_t membership_find(const struct membership *m, const char *address);

/* Node `at` identified itself; no address of it answers; it reported its incarnation (0: it reported none). */
void membership_up(struct membership *m, uint32_t at);
void membership_down(struct membership *m, uint32_t at);
void membership_incarnation(struct membership *m, uint32_t at, uint64_t incarnation);

/*
 * Is this what is known of node `at`? What one says that is gone, or that is not known yet, is not believed:
 * it is said again on a connection that the node answers by then. 0, of a node of an older release that does
 * not say it: always.
 */
bool membership_is_current(const struct membership *m, uint32_t at, uint64_t incarnation);

/* Rendezvous hash: nodes that leave out the same ones choose alike for a key. `may`: not left out. MEMBER_NONE: all are. */
uint32_t membership_coordinator(const struct membership *m, const char *key,
                                bool (*may)(const void *user, uint32_t at), const void *user);

#endif
