/* SPDX-License-Identifier: Apache-2.0 */
/* Two references: who asked, and the thread; the last one frees. The thread tells by an eventfd, so that no loop needs to be there
 * any more when a name server answers after a minute. */
#include "pool/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>

struct resolve {
    _Atomic unsigned refs;
    int fd;
    char address[320];
    int status;
    struct sockaddr_storage found;
    socklen_t found_len;
};

static int look_up(const char *address, int flags, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    char host[256];
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
    if (getaddrinfo(name, colon + 1, &hints, &list) != 0 || !list)
        return -EHOSTUNREACH;
    memcpy(ret, list->ai_addr, list->ai_addrlen);
    *ret_len = list->ai_addrlen;
    freeaddrinfo(list);
    return 0;
}

int resolve_numeric(const char *address, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    return look_up(address, AI_NUMERICHOST | AI_NUMERICSERV, ret, ret_len);
}

static void *resolve_main(void *arg)
{
    struct resolve *r = arg;
    r->status = look_up(r->address, 0, &r->found, &r->found_len);
    eventfd_write(r->fd, 1);
    resolve_free(r);
    return NULL;
}

int resolve_start(const char *address, struct resolve **ret_resolve)
{
    struct resolve *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->refs = 2;
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int code = r->fd < 0 ? -errno : strlen(address) >= sizeof(r->address) ? -EINVAL : 0;
    if (code == 0) {
        snprintf(r->address, sizeof(r->address), "%s", address);
        pthread_t thread;
        code = -pthread_create(&thread, NULL, resolve_main, r);
        if (code == 0)
            pthread_detach(thread);
    }
    if (code < 0) {
        r->refs = 1;
        resolve_free(r);
        return code;
    }
    *ret_resolve = r;
    return 0;
}

int resolve_fd(const struct resolve *r)
{
    return r->fd;
}

int resolve_result(const struct resolve *r, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    eventfd_t n;
    if (eventfd_read(r->fd, &n) < 0)
        return -EAGAIN;
    if (r->status == 0) {
        *ret = r->found;
        *ret_len = r->found_len;
    }
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
