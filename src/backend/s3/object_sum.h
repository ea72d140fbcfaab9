/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_sum.h: is an object that came in several blocks the one that was stored? Checksums of its blocks, in whatever order they end, are joined to
 * that of all of it (s3_crcs_join), and compared with the server's, from a HEAD beside the first block: answers to ranges have none.
 *
 *   object_sum_begin ─▶ HEAD under way; all kinds are computed ─▶ answered: the one that the server has, or none
 *   object_sum_add(offset, block) ...  ─▶ object_sum_covered ─▶ object_sum_pending? wait for object_sum_settled() ─▶ object_sum_verdict
 *
 * Failure modes: no answer, or a checksum of checksums ("...-5"): nothing to compare with, the object counts as unchecked. Invariants: `runs` are
 * in order and do not touch; with more than RUNS_MAX of them (scattered reads) the check is dropped. A session's thread.
 */
#ifndef BACKEND_S3_WHOLE_H
#define BACKEND_S3_WHOLE_H

#include "backend/s3/session.h"

#define OBJECT_SUM_RUNS_MAX 256u

enum object_sum_state { WHOLE_ASKING, WHOLE_TOLD, WHOLE_GIVEN_UP };

struct object_sum_run {
    uint64_t begin, end;
    struct s3_crcs crcs; /* ASKING: all kinds; TOLD: the server's */
};

/* s3_crcs_add of what lies in pieces; S3_CRC_NONE: all kinds. */
void s3_crcs_add_pieces(struct s3_crcs *crcs, enum s3_crc_kind kind, struct pieces place, uint64_t bytes);

struct object_sum {
    struct s3_exchange head;
    enum object_sum_state state;
    uint64_t bytes;    /* of the object */
    struct s3_crc crc; /* TOLD: the server's */
    bool over;
    unsigned nruns;
    struct object_sum_run runs[OBJECT_SUM_RUNS_MAX];
    void (*settled)(void *user); /* the HEAD is answered */
    void *user;
};

/* Sends the HEAD. `target` and `etag` outlive it. -ENOMEM */
int object_sum_new(struct s3_session *b, struct target *target, const char *etag, uint64_t bytes,
                   void (*settled)(void *user), void *user, struct object_sum **ret_whole);
void object_sum_free(struct object_sum *w); /* NULL is fine */
/* [offset, +bytes) is there. */
void object_sum_add(struct object_sum *w, uint64_t offset, struct pieces place, uint64_t bytes);
/* All of it is. */
bool object_sum_covered(const struct object_sum *w);
/* 1: it is what was stored; 0: there is nothing to compare with; LEAT_CORRUPT. Covered, and settled. */
int object_sum_verdict(struct object_sum *w, struct leat_error *err);

#endif
