/* SPDX-License-Identifier: Apache-2.0 */
/* put.h: internals of a put: between put.c (its bytes, on their way to a file) and commit.c (its end). */
#ifndef STORE_PUT_H
#define STORE_PUT_H

#include <openssl/evp.h>

#include "store/internal.h"

#define PUT_SLACK 4096u /* of the buffer: so that a small object's trailer goes with it */

struct store_put {
    struct store *store;
    struct path *only;      /* where it has to go; NULL: as the key's weights say */
    struct path *path;      /* where it goes, from store_put_open on */
    struct spare_file file; /* id 0: none yet */
    uint64_t pending;       /* bytes announced to the path */
    char bucket[STORE_BUCKET_MAX + 1];
    uint32_t bucket_id;
    struct ikey key;
    uint64_t expected;
    unsigned flags;
    bool direct, failed;
    uint8_t *buf;
    size_t cap, fill; /* cap: for payload; PUT_SLACK behind it */
    uint64_t charged;
    struct writer *writer;    /* of a large put; NULL: none */
    uint8_t *other;           /* with it: the buffer that it writes, or none */
    size_t writing;           /* bytes of it that the writer has; not in `written` yet */
    _Atomic uint64_t written; /* bytes of payload in the file */
    uint64_t bytes;           /* handed over */
    struct bytes_out crcs;    /* of whole blocks */
    uint32_t block_crc, crc;  /* of the block under way; of all whole blocks */
    EVP_MD_CTX *md5;
    struct upload *upload;
    struct put_ending ending; /* upload NULL: it is no upload's object */
    bool entered;             /* see put_target */
};

/* A path and a file for it, if it has none yet. After a failure the put is of no use any more. */
int store_put_open(struct store_put *put, struct leat_error *err);
/* Waits for what the writer has. */
int store_put_settle(struct store_put *put, struct leat_error *err);
/* `n` bytes to the file at the put's end. Not aligned any more, or refused: direct I/O ends. */
int store_put_out(struct store_put *put, const void *data, size_t n, struct leat_error *err);
/* What the buffer has, to the file or the writer. */
int store_put_flush(struct store_put *put, struct leat_error *err);
void store_put_leave_direct(struct store_put *put);
/* What an I/O error of its path means; the put has failed. */
int store_put_fail(struct store_put *put, int rc, struct leat_error *err);

#endif
