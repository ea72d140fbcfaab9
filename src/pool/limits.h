/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h: what one user, and all users together, may have besides bytes of the pool: connections, working
 * sets, samples waited for. A user is the one that the kernel reports for the unix socket's peer; over TCP,
 * the one for which another node acts.
 */
#ifndef POOL_LIMITS_H
#define POOL_LIMITS_H

#include "base/base.h"

#include <pthread.h>

/* leatd.conf, [limits]; 0: the default. */
struct limits {
    /* Of all control connections of one user: unread replies, and half messages. */
    uint64_t user_buffers_bytes;
    /* counts, up to the last one */
    unsigned connections;      /* control connections on the unix socket, all users */
    unsigned user_connections; /* of one user */
    unsigned user_data;        /* data connections of one user: brokered, or made for them by other nodes */
    unsigned sets, user_sets;
    unsigned user_creates; /* sets of one user that ranks push and that are not whole yet */
    /* TCP connections before authentication, at most a quarter of `connections`: others wait until the oldest
     * has authenticated, or goes */
    unsigned handshakes;
};
void limits_default(struct limits *limits);

enum quota_kind {
    QUOTA_CONNECTIONS,
    QUOTA_DATA,
    QUOTA_WAITING /* samples */,
    QUOTA_RANGES /* fetched */,
    SHARES
};

/* What each user has. Any thread. */
struct quota {
    pthread_mutex_t lock;
    struct quota_user *users;
    unsigned n, cap;
};

void quota_init(struct quota *shares);
void quota_fini(struct quota *shares);
/* n more for this user: 0, -EDQUOT when that is past `most` (they have *ret_has), -ENOMEM. */
int quota_take(struct quota *shares, uint32_t uid, enum quota_kind kind, uint64_t n, uint64_t most,
               uint64_t *ret_has);
void quota_give(struct quota *shares, uint32_t uid, enum quota_kind kind, uint64_t n);

#endif
