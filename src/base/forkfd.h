/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkfd.h: descriptors that a child of fork() must not keep. A socket that a child inherits stays open after its parent
 * died, so that whoever is at its other end never learns of it. exec() closes them by their CLOEXEC flag; here it is
 * for children that go on without exec (multiprocessing, DataLoader workers).
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
/* Closes *fd, sets it to -1 and forgets it: in one step as seen by a fork of another thread, so that no child closes what has got the
 * same number since. Does nothing to one that is not watched (any more). */
void forkfd_close(struct forkfd *watch);

#endif
