/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members.h: where one member lies in an archive that is an object: tar (ustar, GNU, pax) and ZIP. Headers alone are read for it, once for
 * each version of an object; what they say is kept, within a cap, and goes when others need the room.
 *
 * Any thread that may block.
 */
#ifndef SERVE_S3_MEMBERS_H
#define SERVE_S3_MEMBERS_H

#include "base/base.h"

struct members;
struct budget;

/* budget: every byte of an index is charged there. The caller's, outlives it. */
int members_new(struct budget *budget, struct members **ret_members);
void members_free(struct members *m); /* NULL is fine; no thread may be inside */

/* One version of one object, open. */
struct members_archive {
    const char *bucket;
    const void *key;
    size_t key_len;
    uint64_t seq; /* names the version */
    int fd;
    uint64_t offset, bytes; /* the object, in fd */
};

struct member {
    uint64_t at;           /* of the payload, in the object */
    uint64_t header_at;    /* of what was read of its header: [header_at, at) */
    uint64_t stored_bytes; /* there */
    uint64_t bytes;        /* of the payload as it is to come out */
    bool deflated;         /* wire/archive/zip.h: zip_stream; else stored_bytes == bytes */
    uint32_t crc;          /* of ZIP: CRC-32 of the payload */
    bool has_crc;
};

/*
 * LEAT_NOT_FOUND: the archive has no such member. LEAT_INVALID: neither tar nor ZIP, or one with names that lead out of it. LEAT_CORRUPT.
 * LEAT_UNSUPPORTED: encrypted, compressed in another way, a link. LEAT_NO_SPACE: more members than an index may take; LEAT_BUSY: others take the
 * memory now. Messages name the member, and not the object.
 */
int members_find(struct members *m, const struct members_archive *archive, const char *path,
                 struct member *ret_member, struct leat_error *err);

struct members_stats {
    uint64_t indexes, members, bytes; /* now */
    uint64_t built, found, evicted;   /* since the start */
};
void members_stats(struct members *m, struct members_stats *ret_stats);

#endif
