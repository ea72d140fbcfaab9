/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigv4.h: AWS Signature Version 4, for both sides: a request signed in its Authorization header or its query (presigned), and
 * bodies signed chunk by chunk. Pure but for the hashes of OpenSSL. "Signature Version 4 signing process" and "Authenticating Requests (AWS
 * Signature Version 4)" of the Amazon S3 API reference.
 *
 * What is signed is what goes over the wire: the path as it is sent (escaped once, as http_escape does with `slash`), and the query in the
 * canonical form that sigv4_query_canonical gives it. A signer never logs, and wipes its key at the end.
 */
#ifndef WIRE_S3_SIGV4_H
#define WIRE_S3_SIGV4_H

#include <time.h>

#include "base/base.h"
#include "base/bytes.h"

#define SIGV4_SIGNATURE   65 /* 64 hex digits and a NUL */
#define SIGV4_TIME        17 /* "20130524T000000Z" and a NUL */
#define SIGV4_EMPTY       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SIGV4_UNSIGNED    "UNSIGNED-PAYLOAD"
#define SIGV4_STREAMING   "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
#define SIGV4_HEADERS_MAX 80u     /* an object's own 64, and what goes with every request */
#define SIGV4_EXPIRES_MAX 604800u /* seven days */

/* The key of one day, region and service. Any number of threads may read it. */
struct sigv4_key {
    uint8_t key[32];
    char date[9];    /* "20130524" */
    char scope[160]; /* "20130524/us-east-1/s3/aws4_request" */
};
/* LEAT_INVALID: a region or service that cannot stand in a scope. -EIO: OpenSSL refuses. */
int sigv4_key_derive(const char *secret, time_t now, const char *region, const char *service,
                     struct sigv4_key *ret_key);
void sigv4_key_wipe(struct sigv4_key *key);

/* Names in lower case, sorted, none twice; values without spaces around (those inside are signed as one each). Host is among them, and all that begin with "x-amz-". */
struct sigv4_header {
    const char *name, *value;
    size_t value_len;
};
struct sigv4_request {
    const char *method;
    const char *path; /* "/bucket/a%20key"; "/" at least */
    size_t path_len;
    const char *query; /* canonical, without the "?" */
    size_t query_len;
    const struct sigv4_header *headers;
    unsigned nheaders;
    const char *payload; /* hex SHA-256, SIGV4_UNSIGNED, SIGV4_STREAMING... */
};

void sigv4_time(time_t t, char out[SIGV4_TIME]);
/* False: not of this form. */
bool sigv4_time_parse(const char *text, size_t len, time_t *ret);
/* 0 or -EIO. Lower-case hex and a NUL. */
int sigv4_sha256(const void *data, size_t len, char ret_hex[SIGV4_SIGNATURE]);

/* The signature of a request made at `time` (SIGV4_TIME's form). 0, -EIO, or LEAT_INVALID (headers out of order). */
int sigv4_sign(const struct sigv4_key *key, const struct sigv4_request *request, const char *time,
               char ret_signature[SIGV4_SIGNATURE]);
/* Appends the value of the Authorization header. */
int sigv4_authorization(struct bytes_out *out, const struct sigv4_key *key, const char *access_key,
                        const struct sigv4_request *request, const char *time);
/* Signature of one chunk of an aws-chunked body, by its SHA-256, after that of the chunk before (the request's, at first). */
int sigv4_chunk(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                const char sha256[SIGV4_SIGNATURE], char ret_signature[SIGV4_SIGNATURE]);
/* Signature of the trailers behind the last chunk ("x-amz-checksum-crc32c:sOO8/Q==\n", one line each), AWS4-HMAC-SHA256-TRAILER. */
int sigv4_trailer(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                  const void *trailers, size_t len, char ret_signature[SIGV4_SIGNATURE]);

/*
 * A query as it came, in canonical form: each name and value unescaped and escaped again, sorted, "=" behind names without a value.
 * `except` (or NULL) is left out. LEAT_INVALID: a broken escape, or more than SIGV4_QUERY_MAX parameters.
 */
#define SIGV4_QUERY_MAX 128u
int sigv4_query_canonical(struct bytes_out *out, const char *query, size_t len, const char *except);
/* Equal, in a time that does not tell where they differ. */
bool sigv4_equal(const char a[SIGV4_SIGNATURE], const char *b, size_t b_len);

#endif
