/* SPDX-License-Identifier: Apache-2.0 */
/* A user is in the table as long as it has something: so it has at most one for each connection. */
#include "pool/limits.h"

#include "base/array.h"

struct quota_user {
    uint32_t uid;
    uint64_t has[SHARES];
};

void limits_default(struct limits *l)
{
    static const struct limits usual = {.user_buffers_bytes = 512 * MIB,
                                        .connections = 4096,
                                        .user_connections = 1024,
                                        .user_data = 8192,
                                        .sets = 4096,
                                        .user_sets = 1024,
                                        .user_creates = 64,
                                        .handshakes = 1024};
    const unsigned *from = &usual.connections;
    unsigned *to = &l->connections;
    const size_t span = offsetof(struct limits, handshakes) - offsetof(struct limits, connections);
    for (size_t k = 0; k <= span / sizeof(*to); k++)
        to[k] = to[k] ? to[k] : from[k];
    /* Unauthenticated connections live as long as their peer likes: leave places to the others. */
    l->handshakes = MIN(l->handshakes, MAX(l->connections / 4, 1u));
    l->user_buffers_bytes = l->user_buffers_bytes ? l->user_buffers_bytes : usual.user_buffers_bytes;
}

void quota_init(struct quota *s)
{
    *s = (struct quota){0};
    pthread_mutex_init(&s->lock, NULL);
}

void quota_fini(struct quota *s)
{
    free(s->users);
    pthread_mutex_destroy(&s->lock);
}

static struct quota_user *user_find(struct quota *s, uint32_t uid)
{
    for (unsigned k = 0; k < s->n; k++) {
        if (s->users[k].uid == uid)
            return &s->users[k];
    }
    return NULL;
}

static struct quota_user *user_get(struct quota *s, uint32_t uid)
{
    struct quota_user *user = user_find(s, uid);
    if (user)
        return user;
    if (array_reserve(&s->users, &s->cap, s->n + 1) < 0)
        return NULL;
    s->users[s->n] = (struct quota_user){.uid = uid};
    return &s->users[s->n++];
}

static void user_forget_empty(struct quota *s, struct quota_user *user)
{
    for (unsigned k = 0; k < SHARES; k++) {
        if (user->has[k])
            return;
    }
    *user = s->users[--s->n];
}

int quota_take(struct quota *s, uint32_t uid, enum quota_kind kind, uint64_t n, uint64_t most,
               uint64_t *ret_has)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    struct quota_user *user = user_get(s, uid);
    if (!user) {
        rc = -ENOMEM;
    } else if (n > most || user->has[kind] > most - n) {
        *ret_has = user->has[kind];
        rc = -EDQUOT;
        user_forget_empty(s, user);
    } else {
        user->has[kind] += n;
        user_forget_empty(s, user); /* n may be 0 */
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void quota_give(struct quota *s, uint32_t uid, enum quota_kind kind, uint64_t n)
{
    pthread_mutex_lock(&s->lock);
    struct quota_user *user = user_find(s, uid);
    assert(n == 0 || (user && user->has[kind] >= n));
    if (user) {
        user->has[kind] -= n;
        user_forget_empty(s, user);
    }
    pthread_mutex_unlock(&s->lock);
}
