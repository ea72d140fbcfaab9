/* SPDX-License-Identifier: Apache-2.0 */
/* fdpass.h: descriptors beside bytes on a unix socket (SCM_RIGHTS), what passes them and how they are closed. */
#ifndef BASE_FDPASS_H
#define BASE_FDPASS_H

#include "base/base.h"

#include <sys/socket.h>

#define FDPASS_MAX 64u /* descriptors with one sendmsg */

union fdpass_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
};

/* Before sendmsg: n <= FDPASS_MAX; n == 0 sends none. */
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

/* As many as one recvmsg may bring, SCM_MAX_FD: the kernel would close the rest in the receiving thread. */
#define FDPASS_MESSAGE_MAX 253
union fdpass_room {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * FDPASS_MESSAGE_MAX)];
};

/* After recvmsg (with MSG_CMSG_CLOEXEC): appends what came to fds[*n]. More than fits is closed, here: LEAT_CORRUPT. */
int fdpass_take(struct msghdr *msg, int *fds, unsigned cap, unsigned *n);

/*
 * --- from untrusted processes -----------------------------------------------------------------------------
 *
 * Any thread. `uid`: passed the descriptors, and is charged for those that wait to be closed.
 */

#define FDPASS_WAITING_MAX 256 /* of one user */
/* So many of this user's wait to be closed that no more are received. */
bool fdpass_full(uint32_t uid);
/* Once, before the first receive: otherwise out-of-band bytes would lose their descriptors in the receiving
 * thread. False: no unix socket, with nothing to prepare. */
bool fdpass_prepare(int fd);
/*
 * recvmsg of a stream socket, without waiting: bytes, 0 at the end, or -errno. Appends descriptors to fds[*n], at most to fds[cap]. More came:
 * LEAT_CORRUPT. Some wait to be received, and fdpass_full: LEAT_BUSY.
 */
ssize_t fdpass_receive(int fd, uint32_t uid, struct iovec *iov, size_t niov, int *fds, unsigned cap,
                       unsigned *n);
/* Closes another process's descriptor, without waiting for it: now, or soon, in a thread of its own. */
void fdpass_close(int fd, uint32_t uid);
/* All but those that are -1. */
void fdpass_close_all(const int *fds, unsigned n, uint32_t uid);
/* Closes our end of a connection, without waiting for descriptors that its peer sent and that were not received. */
void fdpass_hang_up(int fd, uint32_t uid);

#endif
