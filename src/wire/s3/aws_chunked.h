/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aws_chunked.h: bodies in aws-chunked coding, where S3 clients put signatures and checksums that they know only at the end:
 *
 *   10000;chunk-signature=<64 hex>\r\n  65,536 bytes  \r\n
 *   ...
 *   0;chunk-signature=<64 hex>\r\n
 *   x-amz-checksum-crc32c:sOO8/Q==\r\n
 *   x-amz-trailer-signature:<64 hex>\r\n
 *   \r\n
 *
 * Each signature covers the one before it, so that none can be left out, repeated or moved; without signatures ";..." is not there. Pure but for
 * OpenSSL's hash; payload is handed on where it lies. "Signature calculations: transferring payload in multiple chunks", S3 API reference.
 */
#ifndef WIRE_S3_AWS_CHUNKED_H
#define WIRE_S3_AWS_CHUNKED_H

#include <openssl/sha.h>

#include "wire/s3/sigv4.h"

#define AWS_CHUNKED_LINE     256u  /* most bytes of a chunk's line */
#define AWS_CHUNKED_TRAILERS 2048u /* of all trailers */

enum aws_chunked_state {
    AWS_CHUNKED_IN_LINE,
    AWS_CHUNKED_IN_DATA,
    AWS_CHUNKED_IN_CR,
    AWS_CHUNKED_IN_LF,
    AWS_CHUNKED_IN_TRAILERS,
};

struct aws_chunked {
    /* What was said: x-amz-decoded-content-length. */
    uint64_t decoded_bytes;
    uint64_t got_bytes; /* payload so far */
    const char *why;    /* after a failure: a sentence */

    /* private */
    bool is_signed, has_trailers;
    enum aws_chunked_state state;
    int failed;
    struct sigv4_key key;
    char when[SIGV4_TIME], previous[SIGV4_SIGNATURE], expected[SIGV4_SIGNATURE];
    uint64_t left; /* of this chunk */
    SHA256_CTX hash;
    unsigned line_len, trailers_len;
    char line[AWS_CHUNKED_LINE];
    char trailers[AWS_CHUNKED_TRAILERS + 1];
};

/* key: NULL: chunks are not signed; else it is copied, with the request's time and signature, after which the
 * first chunk's comes. trailers: some may follow. aws_chunked_fini wipes it. */
void aws_chunked_init(struct aws_chunked *c, uint64_t decoded_bytes, bool trailers,
                      const struct sigv4_key *key, const char *when, const char *signature);
void aws_chunked_fini(struct aws_chunked *c);
/*
 * Bytes as received, cut anywhere. Payload goes to sink, whose negative answer ends all; it is not to be believed before aws_chunked_end.
 * LEAT_CORRUPT: no such coding; LEAT_INVALID: more than decoded_bytes; LEAT_DENIED: a chunk whose signature is another one.
 */
int aws_chunked_feed(struct aws_chunked *c, const void *data, size_t len,
                     int (*sink)(void *user, const void *data, size_t len), void *user);
/* The body has ended. Codes as above; LEAT_INVALID: fewer bytes than announced. */
int aws_chunked_end(struct aws_chunked *c);
/* A trailer's value after aws_chunked_end, spaces around left out. name: in lower case. False: none. */
bool aws_chunked_trailer(const struct aws_chunked *c, const char *name, const char **ret_value,
                         size_t *ret_len);

#endif
