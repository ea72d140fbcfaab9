/* SPDX-License-Identifier: Apache-2.0 */
/* Two references: the caller's and the thread's; the last one frees. The thread reports by an eventfd, so
 * that no loop needs to exist any more when a name server answers after a minute. */
#include "loop/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>

struct resolve {
    _Atomic unsigned refs;
    int fd;
    char address[328];
    int flags, status;
    struct resolve_list list;
};

static int look_up(const char *address, int flags, struct resolve_list *ret_list)
{
    char host[320];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof(host))
        return -EINVAL;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    char *name = host;
    size_t len = strlen(host);
    if (len > 1 && host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = 0;
        name++;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *list = NULL;
    ret_list->gai = getaddrinfo(name, colon + 1, &hints, &list);
    if ((ret_list->gai == EAI_ADDRFAMILY || ret_list->gai == EAI_NONAME) && (flags & AI_ADDRCONFIG)) {
        hints.ai_flags &= ~AI_ADDRCONFIG;
        ret_list->gai = getaddrinfo(name, colon + 1, &hints, &list);
    }
    ret_list->n = 0;
    if (ret_list->gai != 0 || !list)
        return -EHOSTUNREACH;
    for (const struct addrinfo *a = list; a && ret_list->n < RESOLVE_MAX; a = a->ai_next) {
        struct resolve_address *to = &ret_list->found[ret_list->n++];
        memcpy(&to->at, a->ai_addr, a->ai_addrlen);
        to->len = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return 0;
}

int resolve_numeric(const char *address, struct resolve_address *ret_address)
{
    struct resolve_list list;
    int rc = look_up(address, AI_NUMERICHOST | AI_NUMERICSERV, &list);
    if (rc == 0)
        *ret_address = list.found[0];
    return rc;
}

static void *resolve_main(void *arg)
{
    struct resolve *r = arg;
    r->status = look_up(r->address, r->flags | AI_NUMERICSERV, &r->list);
    eventfd_write(r->fd, 1);
    resolve_free(r);
    return NULL;
}

int resolve_start(const char *address, int flags, struct resolve **ret_resolve)
{
    struct resolve *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->refs = 2;
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = r->fd < 0 ? -errno : strlen(address) >= sizeof(r->address) ? -EINVAL : 0;
    if (rc == 0) {
        snprintf(r->address, sizeof(r->address), "%s", address);
        r->flags = flags;
        pthread_t thread;
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        rc = -pthread_create(&thread, NULL, resolve_main, r);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (rc == 0)
            pthread_detach(thread);
    }
    if (rc < 0) {
        r->refs = 1;
        resolve_free(r);
        return rc;
    }
    *ret_resolve = r;
    return 0;
}

int resolve_fd(const struct resolve *r)
{
    return r->fd;
}

int resolve_result(const struct resolve *r, struct resolve_list *ret_list)
{
    eventfd_t n;
    if (eventfd_read(r->fd, &n) < 0)
        return -EAGAIN;
    *ret_list = r->list;
    return r->status;
}

void resolve_free(struct resolve *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}
