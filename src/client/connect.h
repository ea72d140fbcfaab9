/* SPDX-License-Identifier: Apache-2.0 */
/* connect.h: where the private daemon of a job lives and how it is started (find.c, spawn.c): parts of connect.c. */
#ifndef CLIENT_CONNECT_H
#define CLIENT_CONNECT_H

#include "base/base.h"

#define CONNECT_JOB_MAX 40
#define PATH_ROOM       4096

/* The job's name as part of a path, [A-Za-z0-9._-]: job, LEAT_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID or
 * "session-<sid>". A name that does not fit, or has other characters, is shortened and carries a hash of
 * the whole. */
void connect_job(const char *job, char ret_job[CONNECT_JOB_MAX + 1]);

/*
 * The folder of the job's socket, lock and log: $XDG_RUNTIME_DIR/leat/JOB, else /tmp/leat-UID/JOB (no runtime
 * directory, or a path too long for a socket). Made with mode 0700 when `make`. LEAT_DENIED when it is
 * another user's, a link, or open to others; LEAT_NOT_FOUND when it is not there and was not to be made.
 */
int connect_folder(const char *job, bool make, char ret_folder[PATH_ROOM], struct leat_error *err);

/*
 * Whose daemon is at the other end of a connection to `socket`? LEAT_DENIED unless it is this user's, root's, or that of the user who alone may
 * put sockets into that folder: any other may have bound the name before the daemon that was meant. No check over TCP.
 */
int connect_check_daemon(int fd, const char *socket, struct leat_error *err);

/* Finds other jobs of this user with a daemon that answers, beside `folder`: a command in another terminal
 * than the training's probably means one of these. Returns the rest of an error's sentence, never "". */
void connect_others(const char *folder, char *ret_text, size_t room);

struct connect_spawn {
    const char *socket, *folder, *job;
    uint64_t pool_bytes, region_bytes; /* 0: the daemon's own choice */
    int (*interrupt)(void *user);      /* NULL: none */
    void *interrupt_user;
};
/* Starts leatd, detached from everything of this process, and waits until it says that it listens. LEAT_PEER_GONE: it
 * ended without a word. */
int connect_spawn(const struct connect_spawn *what, uint64_t deadline_ns, struct leat_error *err);
/* Path of the leatd to run: LEAT_LEATD, beside this library, its build tree, where it was configured to be, PATH. */
int connect_find_leatd(char ret_path[PATH_ROOM], struct leat_error *err);

#endif
