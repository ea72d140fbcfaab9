/* SPDX-License-Identifier: Apache-2.0 */
/*
 * getaddrinfo blocks for as long as the network likes, so each question gets a thread. The thread and the requester share one object
 * with two holders; who lets go last frees it. Nothing waits for the thread. A message that is queued when its question is forgotten lets go in the loop's next
 * turn: who ends a client turns the loop once more before ending that too.
 */
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "http/client/client_internal.h"

struct resolve {
    pthread_mutex_t lock;
    unsigned holders;
    struct loop *loop; /* NULL once forgotten */
    char host[320], port[8];
    void (*done)(void *user, const struct http_address *addresses, unsigned n, int rc);
    void *user;
    struct http_address addresses[ADDRESSES_MAX];
    unsigned n;
    int rc; /* of getaddrinfo */
};

static void let_go(struct resolve *r)
{
    pthread_mutex_lock(&r->lock);
    bool last = --r->holders == 0;
    pthread_mutex_unlock(&r->lock);
    if (last) {
        pthread_mutex_destroy(&r->lock);
        free(r);
    }
}

static void answer(void *arg)
{
    struct resolve *r = arg;
    if (r->loop) { /* only the loop's thread forgets */
        r->loop = NULL;
        r->done(r->user, r->addresses, r->n, r->rc);
        let_go(r); /* the requester's part */
    }
    let_go(r);
}

unsigned http_resolve_numeric(const char *host, uint16_t port, struct http_address *ret_address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST}, *found;
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return 0;
    *ret_address = (struct http_address){.len = found->ai_addrlen};
    memcpy(&ret_address->addr, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 1;
}

static void *resolve_main(void *arg)
{
    struct resolve *r = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG},
                    *found = NULL;
    int rc = getaddrinfo(r->host, r->port, &hints, &found);
    if (rc == EAI_ADDRFAMILY || rc == EAI_NONAME) { /* a machine with nothing but loopback */
        hints.ai_flags = AI_NUMERICSERV;
        rc = getaddrinfo(r->host, r->port, &hints, &found);
    }
    r->rc = rc;
    for (struct addrinfo *a = rc == 0 ? found : NULL; a && r->n < ADDRESSES_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(r->addresses[0].addr))
            continue;
        memcpy(&r->addresses[r->n].addr, a->ai_addr, a->ai_addrlen);
        r->addresses[r->n++].len = a->ai_addrlen;
    }
    if (found)
        freeaddrinfo(found);
    pthread_mutex_lock(&r->lock);
    struct loop *loop = r->loop;
    /* Posting under the lock: whoever forgets waits for it, so the loop is still there. */
    bool posted = loop && loop_post(loop, answer, r) == 0;
    pthread_mutex_unlock(&r->lock);
    if (!posted)
        let_go(r);
    return NULL;
}

int http_resolve_start(struct loop *loop, const char *host, uint16_t port,
                       void (*done)(void *user, const struct http_address *addresses, unsigned n, int rc),
                       void *user, struct resolve **ret_resolve)
{
    struct resolve *r = calloc(1, sizeof(*r));
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    if (!r)
        return -ENOMEM;
    pthread_mutex_init(&r->lock, NULL);
    r->holders = 2;
    r->loop = loop;
    r->done = done;
    r->user = user;
    snprintf(r->host, sizeof(r->host), "%s", host);
    snprintf(r->port, sizeof(r->port), "%u", port);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, &attr, resolve_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        pthread_mutex_destroy(&r->lock);
        free(r);
        return -rc;
    }
    *ret_resolve = r;
    return 0;
}

void http_resolve_forget(struct resolve *r)
{
    pthread_mutex_lock(&r->lock);
    r->loop = NULL;
    pthread_mutex_unlock(&r->lock);
    let_go(r);
}
