/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkfd.h: descriptors that a child of fork() must not keep. A socket that a child inherits stays open after
 * its parent died, so that the other end never learns of it. exec() closes them by their CLOEXEC flag; this
 * is for children that continue without exec (multiprocessing, DataLoader workers).
 *
 * Watched descriptors are closed in the child and their variables set to -1, by a pthread_atfork handler. Any thread.
 */
#ifndef BASE_FORKFD_H
#define BASE_FORKFD_H

#include "base/list.h"

struct forkfd {
    struct list node;
    int *fd;
};

void forkfd_watch(struct forkfd *watch, int *fd);
/* Closes *fd, sets it to -1 and forgets it, in one step with regard to forks of other threads: no child
 * closes a new descriptor of the same number. Does nothing to one that is not watched (any more). */
void forkfd_close(struct forkfd *watch);

#endif
