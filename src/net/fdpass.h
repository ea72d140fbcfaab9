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

/* Room for as many as one recvmsg may bring, SCM_MAX_FD: those that had none, the kernel would close in the thread that receives. */
union fdpass_room {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * 253)];
};

/* After recvmsg (with MSG_CMSG_CLOEXEC): appends what came to fds[*n]. More than fits is closed: LEAT_CORRUPT. */
int fdpass_take(struct msghdr *msg, int *fds, unsigned cap, unsigned *n);

/* Closes what another process made, without waiting for it: now, or soon, in a thread of its own. Any thread. */
void fdpass_close(int fd);
/* All but those that are -1. */
void fdpass_close_all(const int *fds, unsigned n);
/* Closes our end of a connection, without waiting for descriptors that its peer sent and that were not received. */
void fdpass_hang_up(int fd);

#endif
