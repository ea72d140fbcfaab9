/* SPDX-License-Identifier: Apache-2.0 */
/*
 * body.h: a request's body: an object's bytes into a put of the store, or a document into memory; plain or aws-chunked, and compared with every
 * checksum that came with it.
 *
 *   body_begin: reads the head ─▶ body_receive ─▶ a buffer full ─▶ worker: hashed, decoded, written ─▶ the next buffer ... ─▶ `end` on
 *   the worker, once all was good ─▶ `then` on the reactor's thread
 */
#ifndef SERVE_S3_BODY_H
#define SERVE_S3_BODY_H

#include <openssl/evp.h>

#include "base/bytes.h"
#include "objects/objects.h"
#include "wire/s3/aws_chunked.h"
#include "wire/s3/s3_server.h"
#include "wire/s3/sigv4_check.h"

struct s3_task;
/* What is done with a task on a worker: 0, or a code of the store with err set. */
typedef int s3_task_fn(struct s3_task *v, struct leat_error *err);

enum sum_kind { SUM_CRC32, SUM_CRC32C, SUM_CRC64, SUM_SHA1, SUM_SHA256, SUM_KINDS, SUM_NONE = SUM_KINDS };
struct sum_name {
    const char *header;  /* "x-amz-checksum-crc32c" */
    const char *element; /* "ChecksumCRC32C" */
    const char *name;    /* "CRC32C" */
    unsigned bytes;
    const char *empty; /* of no bytes */
};
extern const struct sum_name sum_names[SUM_KINDS];
#define SUM_TEXT 48 /* base64 of 32 bytes, and room for "-10000" */
/* By "CRC32C" in any case; SUM_NONE: no such. */
enum sum_kind sum_by_name(const char *name, size_t len);
/* Base64 of the raw sum. */
void sum_format(const uint8_t *raw, unsigned bytes, char out[SUM_TEXT]);
/* Its raw bytes; false: no such text. */
bool sum_parse(const char *text, size_t len, unsigned bytes, uint8_t *ret_raw);

struct s3_task_body {
    uint64_t bytes; /* of payload; STORE_UNKNOWN_BYTES */
    uint64_t got;   /* so far */
    enum sigv4_body how;
    char payload[SIGV4_SIGNATURE]; /* HASHED */
    char when[SIGV4_TIME], signature[SIGV4_SIGNATURE];
    struct sigv4_key key;
    bool has_md5, trailing;
    bool computed; /* `sum` was not demanded: it is computed and kept */
    uint8_t md5[16];
    enum sum_kind sum;    /* demanded or announced; SUM_NONE */
    char value[SUM_TEXT]; /* demanded; at the end: computed */

    struct store_put *put;     /* the destination; NULL: document */
    struct bytes_out document; /* its NUL is not counted */
    uint64_t charged;          /* bytes from the budget */

    /* private */
    struct aws_chunked *aws;
    uint8_t *buffer;
    size_t buffer_bytes, filled;
    void *target; /* where the server writes now */
    bool last;
    uint32_t crc32, crc32c;
    uint64_t crc64;
    EVP_MD_CTX *sha1, *sha256, *md;
    s3_task_fn *end;                 /* worker */
    void (*then)(struct s3_task *v); /* reactor's thread */
};

/* Reads the head's facts about the body. False: v->code is set. document_max 0: an object. */
bool body_begin(struct s3_task *v, uint64_t document_max);
/* All of it; then `end` (on a worker) and `then`. */
void body_receive(struct s3_task *v, s3_task_fn *end, void (*then)(struct s3_task *v));
/* The checksum b->sum of bytes that do not come from the request: of all that went into b->put. End: b->value is its text. */
bool body_hash_begin(struct s3_task *v);
void body_hash(struct s3_task_body *b, const void *data, size_t len);
void body_hash_end(struct s3_task_body *b);
/* The server's call: the buffer is full. */
void body_full(struct s3_task *v, size_t got, bool last);
void body_fini(struct s3_task *v);

#endif
