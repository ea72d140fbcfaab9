/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hugefs.h: a private tmpfs with huge=always, for regions on hosts whose shmem_enabled keeps huge pages from
 * memfds (the default of most distributions). It is mounted nowhere: fsmount(2) gives a detached mount, known
 * by its descriptor only. Files in it are O_TMPFILE: nothing has a name, and everything goes with its last
 * descriptor, kill -9 included.
 */
#ifndef POOL_REGION_HUGEFS_H
#define POOL_REGION_HUGEFS_H

/*
 * A directory to open region files in (openat, O_TMPFILE), or -errno where the kernel or a container does not allow it. Without
 * CAP_SYS_ADMIN a short-lived child makes it in a user namespace of its own: call it before threads are started.
 */
int hugefs_open(void);

#endif
