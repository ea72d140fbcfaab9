/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bundle.h: the body of an answer that is made of several objects, or of a member of one: as they are, or as the members of a tar archive. Its
 * length is known before its first byte. Made in instalments (http_server.h), each on a thread that may block: large members leave as
 * pieces of files, small or deflated ones through a buffer.
 *
 *   bundle_new ─▶ bundle_add ... ─▶ bundle_bytes ─▶ bundle_step ─▶ pieces ─▶ (sent) ─▶ bundle_step ... until `last`
 *
 * Every byte was compared with the store's checksums before it is handed out. One thread at a time.
 */
#ifndef SERVE_S3_BUNDLE_H
#define SERVE_S3_BUNDLE_H

#include "http/server/http_server.h"
#include "serve/s3/members.h"

struct objects;
struct store_obj;
struct tar_put;

#define BUNDLE_PIECES       64u
#define BUNDLE_BUFFER_BYTES (256 * KIB) /* a body's, for members that go through memory */

struct bundle;

/* The source of a part. */
struct bundle_part {
    struct store_obj *obj;       /* a reference, which becomes the body's; NULL: `text` is all of it */
    const struct member *member; /* a member of it; NULL: the object. Copied */
    uint64_t first, count;       /* of the payload */
    char *text;                  /* owned by the body from here on */
    const char *path,
        *opaque; /* name in the archive, and the entry's opaque text (NULL: none); the caller's, outlive the body */
    const char *prefix, *suffix; /* of the name: prefix + path + "/" + suffix; NULL: none */
    int64_t mtime_ns;
};

/* tar: parts are members of an archive. -ENOMEM. */
int bundle_new(struct objects *objects, bool tar, unsigned nparts, struct bundle **ret_bundle);
void bundle_free(struct bundle *b); /* NULL is fine */
/* In order; at most nparts. LEAT_INVALID: its name is too long for an archive (the part's reference and text are freed). */
int bundle_add(struct bundle *b, const struct bundle_part *part, struct leat_error *err);
/* Bytes of memory that it keeps, and of the whole body. */
uint64_t bundle_memory_bytes(unsigned nparts);
uint64_t bundle_bytes(const struct bundle *b);

/*
 * The next instalment, valid until the one after it is made. *ret_last: there is no more. LEAT_INVALID: a
 * member of a ZIP archive differs from its directory; LEAT_CORRUPT and the like: of the store. The body ends
 * here, short of its promised length.
 */
int bundle_step(struct bundle *b, const struct http_piece **ret_pieces, unsigned *ret_n, bool *ret_last,
                struct leat_error *err);
/* Is all of a member right by its archive's CRC? Reads it to the end. As bundle_step. */
int bundle_check(struct objects *objects, struct store_obj *obj, const struct member *member,
                 struct leat_error *err);

#endif
