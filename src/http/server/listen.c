/* SPDX-License-Identifier: Apache-2.0 */
/* listen.c: addresses as people write them to sockets that listen, and back. */
#include "http/server/server_internal.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/un.h>

void http_address_text(const struct sockaddr_storage *addr, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "";
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(out, cap, "%s:%u", host, ntohs(in->sin_port));
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(out, cap, "[%s]:%u", host, ntohs(in6->sin6_port));
    } else {
        snprintf(out, cap, "unix");
    }
}

/* A socket file without a listener is in the way of a new one; one with a listener belongs to that process. */
static int remove_stale(const char *path, const struct sockaddr_un *addr, struct leat_error *err)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : error_sys(err, -errno, "socket %s", path);
    if (!S_ISSOCK(st.st_mode))
        return error_set(err, -EADDRINUSE, "%s is there already, and is no socket", path);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_sys(err, -errno, "socket %s", path);
    if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno == EAGAIN)
        return error_set(err, -EADDRINUSE, "another process listens at %s", path);
    return unlink(path) < 0 && errno != ENOENT ? error_sys(err, -errno, "socket %s", path) : 0;
}

static int listen_unix(struct listener *l, const char *path, struct leat_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (path[0] != '/' || strlen(path) >= sizeof(addr.sun_path))
        return error_set(err, LEAT_INVALID, "\"unix:%s\": an absolute path of at most %zu bytes is wanted",
                         path, sizeof(addr.sun_path) - 1);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    int rc = remove_stale(path, &addr, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_sys(err, -errno, "socket %s", path);
    /* Bound without any permission, so that there is no moment in which others may connect. */
    if (fchmod(fd, 0) < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
        return error_sys(err, errno == EACCES ? LEAT_DENIED : -errno, "cannot listen at unix:%s", path);
    l->unlink = strdup(path);
    l->address = strdup(l->what.address);
    if (!l->unlink || !l->address)
        return error_set(err, -ENOMEM, "no memory to listen at unix:%s", path);
    if (listen(fd, BACKLOG) < 0 || chmod(path, l->what.mode ? l->what.mode : 0600) < 0)
        return error_sys(err, -errno, "cannot listen at unix:%s", path);
    l->fd = TAKE_FD(fd);
    return 0;
}

/* "host:port", "[host]:port", ":port"; host into out, NUL-terminated. NULL: neither. */
static const char *split(const char *address, char *out, size_t cap)
{
    const char *colon = strrchr(address, ':'), *host = address, *end = colon;
    if (!colon || !colon[1])
        return NULL;
    if (address[0] == '[') {
        if (colon == address || colon[-1] != ']')
            return NULL;
        host++;
        end--;
    } else if (memchr(address, ':', (size_t)(colon - address))) {
        return NULL; /* an IPv6 address without brackets: its end looks like a port */
    }
    if ((size_t)(end - host) >= cap)
        return NULL;
    memcpy(out, host, (size_t)(end - host));
    out[end - host] = 0;
    return colon + 1;
}

static int listen_at(const struct addrinfo *ai, bool both_families)
{
    static const int on = 1, off = 0;
    AUTO_CLOSE int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (ai->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, both_families ? &off : &on, sizeof(on));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        return -errno;
    return TAKE_FD(fd);
}

static int listen_tcp(struct listener *l, struct leat_error *err)
{
    char host[256], *end;
    const char *address = l->what.address, *port = split(address, host, sizeof(host));
    unsigned long number = port ? strtoul(port, &end, 10) : 0;
    if (!port || *end || port[0] < '0' || port[0] > '9' || number > 65535)
        return error_set(err, LEAT_INVALID,
                         "\"%s\" is no address to listen at: \"127.0.0.1:9000\", \"[::1]:9000\", \":9000\" "
                         "or \"unix:/path\" is wanted",
                         address);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    bool all = host[0] == 0;
    int gai = getaddrinfo(all ? "::" : host, port, &hints, &found);
    if (gai)
        return error_set(err, LEAT_INVALID, "cannot listen at %s: %s", address, gai_strerror(gai));
    int fd = listen_at(found, all);
    freeaddrinfo(found);
    if (fd == -EAFNOSUPPORT && all) { /* a host without IPv6 */
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
        struct addrinfo v4 = {
            .ai_family = AF_INET, .ai_addr = (struct sockaddr *)&any, .ai_addrlen = sizeof(any)};
        fd = listen_at(&v4, false);
    }
    if (fd == -EACCES)
        return error_set(err, LEAT_DENIED,
                         "cannot listen at %s: %s; ports below 1024 take root, or CAP_NET_BIND_SERVICE",
                         address, strerror(EACCES));
    if (fd < 0)
        return error_sys(err, fd, "cannot listen at %s", address);
    l->fd = fd;
    struct sockaddr_storage got = {0};
    socklen_t len = sizeof(got);
    char text[64];
    if (getsockname(fd, (struct sockaddr *)&got, &len) < 0)
        return error_sys(err, -errno, "address of %s", address);
    http_address_text(&got, text, sizeof(text));
    l->address = strdup(text);
    return l->address ? 0 : error_set(err, -ENOMEM, "no memory to listen at %s", address);
}

int listener_open(struct listener *l, const struct http_listen *what, struct leat_error *err)
{
    l->what = *what;
    l->fd = -1;
    if (strncmp(what->address, "unix:", 5) == 0)
        return listen_unix(l, what->address + 5, err);
    return listen_tcp(l, err);
}

void listener_close(struct listener *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    if (l->unlink)
        unlink(l->unlink);
    free(TAKE_PTR(l->unlink));
}

void http_request_peer(const struct http_request *req, struct http_peer *ret_peer)
{
    const struct exchange *ex = container_of(req, struct exchange, req);
    struct sockaddr_storage addr = {0};
    struct ucred cred;
    socklen_t len = sizeof(addr), cred_len = sizeof(cred);
    *ret_peer = (struct http_peer){.uid = (uid_t)-1};
    if (getpeername(ex->conn->source.fd, (struct sockaddr *)&addr, &len) < 0)
        addr.ss_family = AF_UNSPEC;
    http_address_text(&addr, ret_peer->text, sizeof(ret_peer->text));
    if (addr.ss_family == AF_UNIX) {
        ret_peer->local = true;
        if (getsockopt(ex->conn->source.fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len) == 0)
            ret_peer->uid = cred.uid;
    } else if (addr.ss_family == AF_INET) {
        ret_peer->loopback = ntohl(((struct sockaddr_in *)&addr)->sin_addr.s_addr) >> 24 == 127;
    } else if (addr.ss_family == AF_INET6) {
        const struct in6_addr *in6 = &((struct sockaddr_in6 *)&addr)->sin6_addr;
        ret_peer->loopback =
            IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
    } else {
        snprintf(ret_peer->text, sizeof(ret_peer->text), "gone");
    }
}
