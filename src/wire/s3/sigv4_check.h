/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigv4_check.h: the identity that a request claims in its Authorization header or its query (presigned), and
 * its check. Two steps, between which the caller looks the secret up:
 *
 *   sigv4_claim_parse   what it claims; whether it is whole, of our region, and made about now
 *   sigv4_claim_check   whether the signature is the one that this key gives
 *
 * Pure; times are given. Nothing of a claim is to be believed before its check.
 */
#ifndef WIRE_S3_SIGV4_CHECK_H
#define WIRE_S3_SIGV4_CHECK_H

#include "wire/http/http.h"
#include "wire/s3/s3_server.h"
#include "wire/s3/sigv4.h"

#define SIGV4_SKEW_S     900 /* a request's clock may be off by so much */
#define SIGV4_ACCESS_MAX 128u

enum sigv4_how { SIGV4_ANONYMOUS, SIGV4_HEADER, SIGV4_QUERY };
/* How the body comes: by x-amz-content-sha256. */
enum sigv4_body {
    SIGV4_BODY_PLAIN,  /* as it is; nothing said of its hash */
    SIGV4_BODY_HASHED, /* as it is, of the hash in claim->payload */
    SIGV4_BODY_CHUNKS, /* aws-chunked: unsigned, with trailers */
    SIGV4_BODY_SIGNED, /* aws-chunked, each chunk signed */
    SIGV4_BODY_SIGNED_TRAILER,
};

struct sigv4_claim {
    enum sigv4_how how;
    enum sigv4_body body;
    time_t time;
    uint32_t expires; /* SIGV4_QUERY */
    char access_key[SIGV4_ACCESS_MAX + 1];
    char date[9], when[SIGV4_TIME];
    char signature[SIGV4_SIGNATURE];
    char payload[SIGV4_SIGNATURE]; /* as it enters the signature */
    struct http_text token;        /* x-amz-security-token; of temporary keys, which we never issue */
    char names[2048];              /* signed headers, as they came: "host;x-amz-date" */
    char why[256];                 /* a sentence for the refused client; "" */
};

/*
 * S3_OK; else what to answer, with claim->why. `buf` is where the head is. region and service are those that must stand in the scope; now: seconds
 * since 1970. With S3_AUTH_HEADER_MALFORMED for another region, *ret_other_region is true.
 */
enum s3_code sigv4_claim_parse(struct sigv4_claim *claim, const struct http_reader *r, const char *buf,
                               const struct s3_call *call, const char *region, time_t now,
                               bool *ret_other_region);
/* Does `key` (of the claim's date) give this signature? Also refused: a host or x-amz- header that is not
 * among the signed ones. Claims that are anonymous are not for here. */
enum s3_code sigv4_claim_check(struct sigv4_claim *claim, const struct sigv4_key *key,
                               const struct http_reader *r, const char *buf);

#endif
