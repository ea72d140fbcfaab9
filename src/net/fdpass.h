/* SPDX-License-Identifier: Apache-2.0 */
/* fdpass.h: descriptors beside bytes on a unix socket (SCM_RIGHTS), for both faces of conn.h. */
#ifndef NET_FDPASS_H
#define NET_FDPASS_H

#include "base/base.h"
#include "wire/proto.h"

#include <sys/socket.h>

union fdpass_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * PROTO_FDS_MAX)];
};

/* Before sendmsg: n <= PROTO_FDS_MAX; n == 0 sends none. */
static inline void fdpass_attach(struct msghdr *msg, union fdpass_control *control, const int *fds,
                                 unsigned n)
{
    if (n == 0)
        return;
    memset(control, 0, sizeof(*control));
    msg->msg_control = control;
    msg->msg_controllen = CMSG_SPACE(sizeof(int) * n);
    struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * n);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
}

/* After recvmsg (with MSG_CMSG_CLOEXEC): appends what came to fds[*n]. More than fits is closed: LEAT_CORRUPT. */
static inline int fdpass_take(struct msghdr *msg, int *fds, unsigned cap, unsigned *n)
{
    int rc = msg->msg_flags & MSG_CTRUNC ? LEAT_CORRUPT : 0;
    if (!msg->msg_control)
        return rc;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (*n < cap) {
                fds[(*n)++] = fd;
            } else {
                close(fd);
                rc = LEAT_CORRUPT;
            }
        }
    }
    return rc;
}

#endif
