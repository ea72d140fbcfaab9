/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As root: fsopen, fsconfig, fsmount, in this process. Otherwise the same in a child that has become root of a new user namespace in
 * which only our own user and group exist; it passes the mount's descriptor back and ends. The mount lives as long as that
 * descriptor, the namespace need not.
 */
#include "pool/region/hugefs.h"

#include "base/base.h"
#include "base/fdpass.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int mount_detached(void)
{
    AUTO_CLOSE int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
    if (fs < 0)
        return -errno;
    /* The pool's reservations bound its contents. */
    static const char *const options[][2] = {
        {"huge", "always"}, {"size", "0"}, {"nr_inodes", "0"}, {"mode", "0700"}};
    for (unsigned k = 0; k < ARRAY_LEN(options); k++) {
        if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, options[k][0], options[k][1], 0) < 0)
            return -errno;
    }
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -errno;
    int dir = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                           MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    return dir < 0 ? -errno : dir;
}

static int write_text(const char *path, const char *text)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int become_root_of_namespace(void)
{
    char uids[64], gids[64];
    snprintf(uids, sizeof(uids), "0 %u 1\n", geteuid());
    snprintf(gids, sizeof(gids), "0 %u 1\n", getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -errno;
    int rc = write_text("/proc/self/setgroups", "deny");
    if (rc == 0)
        rc = write_text("/proc/self/uid_map", uids);
    return rc == 0 ? write_text("/proc/self/gid_map", gids) : rc;
}

static int send_descriptor(int socket, int fd)
{
    union fdpass_control control;
    char byte = 0;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    fdpass_attach(&msg, &control, &fd, 1);
    return sendmsg(socket, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* The descriptor, or -EPERM: the child could not. */
static int receive_descriptor(int socket)
{
    union fdpass_control control;
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    int fd = -1;
    unsigned n = 0;
    if (recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) <= 0 || fdpass_take(&msg, &fd, 1, &n) < 0 || n != 1)
        return -EPERM;
    return fd;
}

static int mount_in_child(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    pid_t child = fork();
    if (child == 0) {
        int rc = become_root_of_namespace();
        int dir = rc < 0 ? rc : mount_detached();
        _exit(dir >= 0 && send_descriptor(pair[1], dir) == 0 ? 0 : 1);
    }
    close(pair[1]);
    int dir = child < 0 ? -errno : receive_descriptor(pair[0]);
    close(pair[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return dir;
}

/* It must take files, and give a huge page of memory: a container may allow the mount and nothing else. */
static int try_file(int dir)
{
    AUTO_CLOSE int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : 0;
}

int hugefs_open(void)
{
    AUTO_CLOSE int dir = mount_detached();
    if (dir < 0)
        dir = mount_in_child();
    if (dir < 0)
        return dir;
    int rc = try_file(dir);
    return rc < 0 ? rc : TAKE_FD(dir);
}
