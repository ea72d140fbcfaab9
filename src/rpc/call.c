/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c: the blocking face of the protocol: dial, listen, frames with a deadline.
 *
 * Works on blocking and non-blocking sockets alike: every transfer is MSG_DONTWAIT and what has to wait,
 * waits in poll(2) until the deadline. A frame is read exactly, never past its end, so that a payload behind
 * it can be received straight into its destination. After any failure but LEAT_TIMED_OUT of a connect the
 * stream's position is lost: close the socket.
 */
#include "rpc/conn.h"
#include "base/clock.h"
#include "base/fdpass.h"
#include "wire/leat/messages.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

static int wait_fd(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int rc = poll(&p, 1, clock_poll_ms(deadline_ns));
        if (rc > 0)
            return 0;
        if (rc == 0 && clock_poll_ms(deadline_ns) == 0)
            return LEAT_TIMED_OUT;
        if (rc < 0 && errno != EINTR)
            return -errno;
    }
}

static int gone(int error)
{
    return error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNABORTED
               ? LEAT_PEER_GONE
               : -error;
}

static void iov_advance(struct iovec **iov, unsigned *n, size_t bytes)
{
    while (*n && bytes >= (*iov)->iov_len) {
        bytes -= (*iov)->iov_len;
        (*iov)++;
        (*n)--;
    }
    if (bytes) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + bytes;
        (*iov)->iov_len -= bytes;
    }
}

static int send_all(int fd, struct iovec *iov, unsigned n, const int *fds, unsigned nfds,
                    uint64_t deadline_ns)
{
    iov_advance(&iov, &n, 0);
    while (n) {
        union fdpass_control control;
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
        fdpass_attach(&msg, &control, fds, nfds);
        ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            nfds = 0; /* they went with the first byte */
            iov_advance(&iov, &n, (size_t)sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int rc = wait_fd(fd, POLLOUT, deadline_ns);
            if (rc < 0)
                return rc;
        } else if (errno != EINTR) {
            return gone(errno);
        }
    }
    return 0;
}

/* --- frames ---------------------------------------------------------------------------------------------------- */

int net_frame_send(int fd, unsigned version, uint8_t kind, uint16_t type, uint64_t id,
                   const struct bytes_out *body, const int *fds, unsigned nfds, uint64_t deadline_ns)
{
    size_t body_bytes = body ? body->len : 0;
    if (body && body->failed)
        return -ENOMEM;
    if (body_bytes > PROTO_BODY_MAX || nfds > PROTO_FDS_MAX)
        return LEAT_INVALID;
    struct proto_frame frame = {.version = (uint8_t)version,
                                .kind = kind,
                                .type = type,
                                .id = id,
                                .nfds = nfds,
                                .body_bytes = (uint32_t)body_bytes};
    uint8_t head[PROTO_FRAME];
    proto_frame_put(head, &frame);
    struct iovec iov[2] = {{head, sizeof(head)}, {body ? body->data : NULL, body_bytes}};
    return send_all(fd, iov, 2, fds, nfds, deadline_ns);
}

/* Some bytes of [at, +want) of the frame: their number, 0 when none are there now, or a negative code. */
static int64_t take_bytes(int fd, struct net_reply *reply, void *at, uint64_t want)
{
    union fdpass_control control;
    struct iovec iov = {at, (size_t)want};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t got = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : gone(errno);
    if (got == 0)
        return LEAT_PEER_GONE;
    int rc = fdpass_take(&msg, reply->fds, PROTO_FDS_MAX, &reply->nfds);
    if (msg.msg_flags & MSG_CTRUNC)
        return -EMFILE; /* descriptors were lost: out of step with the frame */
    return rc ? rc : got;
}

static int head_came(struct net_rx *rx)
{
    int rc = proto_frame_get(rx->head, &rx->reply.frame);
    size_t bytes = rx->reply.frame.body_bytes;
    if (rc < 0)
        return rc;
    rx->have = 0;
    rx->in_body = true;
    rx->reply.body.data = bytes ? malloc(bytes) : NULL;
    if (bytes && !rx->reply.body.data)
        return -ENOMEM;
    rx->reply.body.cap = bytes;
    return 0;
}

int net_frame_step(int fd, struct net_rx *rx, struct net_reply *ret_reply)
{
    while (!rx->in_body || rx->have < rx->reply.frame.body_bytes) {
        uint8_t *to = rx->in_body ? rx->reply.body.data : rx->head;
        uint64_t bytes = rx->in_body ? rx->reply.frame.body_bytes : PROTO_FRAME;
        int64_t got = take_bytes(fd, &rx->reply, to + rx->have, bytes - rx->have);
        if (got <= 0)
            return (int)got;
        rx->have += (uint64_t)got;
        int rc = !rx->in_body && rx->have == bytes ? head_came(rx) : 0;
        if (rc < 0)
            return rc;
    }
    if (rx->reply.nfds != rx->reply.frame.nfds)
        return LEAT_CORRUPT;
    rx->reply.body.len = rx->reply.frame.body_bytes;
    *ret_reply = rx->reply;
    *rx = (struct net_rx){0};
    return 1;
}

int net_frame_receive(int fd, struct net_reply *ret_reply, uint64_t deadline_ns)
{
    struct net_rx rx = {0};
    int rc;
    while ((rc = net_frame_step(fd, &rx, ret_reply)) == 0 && (rc = wait_fd(fd, POLLIN, deadline_ns)) == 0)
        continue;
    net_reply_fini(&rx.reply);
    return MIN(rc, 0);
}

void net_reply_fini(struct net_reply *reply)
{
    for (unsigned i = 0; i < reply->nfds; i++)
        if (reply->fds[i] >= 0)
            close(reply->fds[i]);
    reply->nfds = 0;
    bytes_out_fini(&reply->body);
}

int net_reply_status(const struct net_reply *reply, struct leat_error *err)
{
    if (reply->frame.status >= 0)
        return 0;
    AUTO_FREE char *message = proto_error_text(reply->body.data, reply->body.len);
    if (!message || !message[0])
        return error_set(err, reply->frame.status, "%s", leat_strerror(reply->frame.status));
    return error_set(err, reply->frame.status, "%s", message);
}

/* --- addresses ------------------------------------------------------------------------------------------------- */

static int unix_address(const char *path, struct sockaddr_un *ret, struct leat_error *err)
{
    size_t len = strlen(path);
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (len >= sizeof(ret->sun_path))
        return error_set(err, LEAT_INVALID, "socket path %s has %zu bytes, at most %zu are possible", path,
                         len, sizeof(ret->sun_path) - 1);
    memcpy(ret->sun_path, path, len + 1);
    return 0;
}

/* "host:port" or "[v6]:port"; host "" or "*" is any (NULL). */
static int split_address(const char *address, char host[256], char port[32], struct leat_error *err)
{
    const char *colon = strrchr(address, ':');
    size_t host_len = colon ? (size_t)(colon - address) : 0;
    const char *start = address;
    if (colon && address[0] == '[' && host_len >= 2 && address[host_len - 1] == ']') {
        start++;
        host_len -= 2;
    } else if (colon && memchr(address, ':', host_len)) {
        colon = NULL; /* a bare IPv6 address: the begin of its port is unknown */
    }
    if (!colon || !colon[1] || host_len >= 256 || strlen(colon + 1) >= 32)
        return error_set(err, LEAT_INVALID, "address '%s' is neither a /path, nor host:port, nor [ipv6]:port",
                         address);
    memcpy(host, start, host_len);
    host[host_len] = 0;
    if (strcmp(host, "*") == 0)
        host[0] = 0;
    strcpy(port, colon + 1);
    return 0;
}

static int resolve(const char *address, bool passive, struct addrinfo **ret_list, struct leat_error *err)
{
    char host[256], port[32];
    int rc = split_address(address, host, port, err);
    if (rc < 0)
        return rc;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    int gai = getaddrinfo(host[0] ? host : NULL, port, &hints, ret_list);
    if (gai == EAI_MEMORY)
        return error_set(err, -ENOMEM, "no memory to resolve '%s'", address);
    if (gai != 0)
        return error_set(err, gai == EAI_SYSTEM ? -errno : LEAT_NOT_FOUND, "cannot resolve '%s': %s", address,
                         gai_strerror(gai));
    return 0;
}

static void freeaddrinfo_auto(struct addrinfo **list)
{
    if (*list)
        freeaddrinfo(*list);
}

static int connect_one(const struct sockaddr *address, socklen_t len, uint64_t deadline_ns, int *ret_fd)
{
    AUTO_CLOSE int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    while (connect(fd, address, len) < 0) {
        if (errno == EINPROGRESS || errno == EINTR) {
            int error = 0;
            socklen_t error_len = sizeof(error);
            int rc = wait_fd(fd, POLLOUT, deadline_ns);
            if (rc < 0)
                return rc;
            if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) < 0)
                return -errno;
            if (error)
                return -error;
            break;
        }
        /* A unix listener whose backlog is full has nothing to poll for. */
        if (errno != EAGAIN || address->sa_family != AF_UNIX)
            return -errno;
        if (clock_poll_ms(deadline_ns) == 0)
            return LEAT_TIMED_OUT;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
        return -errno;
    int on = 1;
    if (address->sa_family != AF_UNIX && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
        return -errno;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int net_dial(const char *address, uint64_t deadline_ns, int *ret_fd, struct leat_error *err)
{
    int rc;
    if (address[0] == '/') {
        struct sockaddr_un un;
        rc = unix_address(address, &un, err);
        if (rc < 0)
            return rc;
        rc = connect_one((struct sockaddr *)&un, sizeof(un), deadline_ns, ret_fd);
        return rc < 0 ? error_sys(err, rc, "cannot connect to %s", address) : 0;
    }
    __attribute__((cleanup(freeaddrinfo_auto))) struct addrinfo *list = NULL;
    rc = resolve(address, false, &list, err);
    if (rc < 0)
        return rc;
    rc = LEAT_NOT_FOUND;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        rc = connect_one(a->ai_addr, a->ai_addrlen, deadline_ns, ret_fd);
        if (rc == 0)
            return 0;
        if (rc == LEAT_TIMED_OUT)
            break;
    }
    return error_sys(err, rc, "cannot connect to %s", address);
}

/*
 * Processes bind in a folder one at a time: between its bind and its listen a socket refuses like a dead one,
 * and would be taken for one. -1 (a process does not release the lock, or the file system has no locks):
 * continue without it.
 */
static int lock_folder(const char *path)
{
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s/", (int)(slash - path), path);
    AUTO_CLOSE int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t deadline_ns = clock_now_ns() + NS_PER_S;
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || clock_now_ns() > deadline_ns)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return TAKE_FD(fd);
}

static int listen_unix(const char *path, unsigned mode, int *ret_fd, struct leat_error *err)
{
    struct sockaddr_un un;
    int rc = unix_address(path, &un, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_sys(err, -errno, "cannot listen on %s", path);
    AUTO_CLOSE int lock = lock_folder(path);
    /* The bound file takes the socket inode's mode, so that it never is wider than asked, not even for a moment. */
    mode = mode ? mode : 0600;
    if (fchmod(fd, mode) < 0)
        return error_sys(err, -errno, "cannot set the mode of %s", path);
    rc = bind(fd, (struct sockaddr *)&un, sizeof(un)) < 0 ? -errno : 0;
    if (rc == -EADDRINUSE) {
        /* Left by a process that was killed? Then connecting fails. */
        int other = -1;
        int dialled = connect_one((struct sockaddr *)&un, sizeof(un), clock_now_ns() + NS_PER_S, &other);
        if (other >= 0)
            close(other);
        if (dialled == -ECONNREFUSED && unlink(path) == 0)
            rc = bind(fd, (struct sockaddr *)&un, sizeof(un)) < 0 ? -errno : 0;
    }
    if (rc == -EADDRINUSE)
        return error_set(err, rc,
                         "cannot listen on %s: a daemon answers there already (`leat --socket %s status`)",
                         path, path);
    if (rc < 0)
        return error_sys(err, rc, "cannot listen on %s", path);
    if (chmod(path, mode) < 0 || listen(fd, SOMAXCONN) < 0) {
        rc = error_sys(err, -errno, "cannot listen on %s", path);
        unlink(path);
        return rc;
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int listen_one(const struct addrinfo *a, int *ret_fd)
{
    AUTO_CLOSE int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0)
        return -errno;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int net_listen(const char *address, unsigned mode, int *ret_fd, struct leat_error *err)
{
    if (address[0] == '/')
        return listen_unix(address, mode, ret_fd, err);
    __attribute__((cleanup(freeaddrinfo_auto))) struct addrinfo *list = NULL;
    int rc = resolve(address, true, &list, err);
    if (rc < 0)
        return rc;
    rc = LEAT_NOT_FOUND;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        rc = listen_one(a, ret_fd);
        if (rc == 0)
            return 0;
    }
    if (rc == -EADDRINUSE)
        return error_set(err, rc, "cannot listen on %s: another process has this port (`ss -ltnp` names it)",
                         address);
    return error_sys(err, rc, "cannot listen on %s", address);
}
