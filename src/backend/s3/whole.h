/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole.h: is an object that came in several blocks the one that was stored? Checksums of its blocks, in whatever order they end, are joined to
 * that of all of it (s3_crcs_join), and compared with the server's, which a HEAD beside the first block tells: answers to ranges have none.
 *
 *   whole_begin ─▶ HEAD under way; all kinds are computed ─▶ answered: the one that the server has, or none
 *   whole_add(offset, block) ...  ─▶ whole_covered ─▶ whole_pending? wait for whole_settled() ─▶ whole_verdict
 *
 * Failure modes: no answer, or a checksum of checksums ("...-5"): nothing to compare with, the object counts as unchecked. Invariants: `runs` are
 * in order and do not touch; more than RUNS_MAX of them (reads here and there) and it is given up. A session's thread.
 */
#ifndef BACKEND_S3_WHOLE_H
#define BACKEND_S3_WHOLE_H

#include "backend/s3/session.h"

#define WHOLE_RUNS_MAX 256u

enum whole_state { WHOLE_ASKING, WHOLE_TOLD, WHOLE_GIVEN_UP };

struct whole_run {
    uint64_t begin, end;
    struct s3_crcs crcs; /* ASKING: all kinds; TOLD: the server's */
};

struct whole {
    struct request head;
    enum whole_state state;
    uint64_t bytes;    /* of the object */
    struct s3_crc crc; /* TOLD: the server's */
    bool over;
    unsigned nruns;
    struct whole_run runs[WHOLE_RUNS_MAX];
    void (*settled)(void *user); /* the HEAD is answered */
    void *user;
};

/* Sends the HEAD. `target` and `etag` outlive it. -ENOMEM */
int whole_new(struct session *b, struct target *target, const char *etag, uint64_t bytes,
              void (*settled)(void *user), void *user, struct whole **ret_whole);
void whole_free(struct whole *w); /* NULL is fine */
/* [offset, +bytes) is there. */
void whole_add(struct whole *w, uint64_t offset, const void *data, uint64_t bytes);
/* All of it is. */
bool whole_covered(const struct whole *w);
/* 1: it is what was stored; 0: there is nothing to compare with; LEAT_CORRUPT. Covered, and settled. */
int whole_verdict(struct whole *w, struct leat_error *err);

#endif
