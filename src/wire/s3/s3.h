/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3.h: what a client of S3 says and hears, as bytes: addresses, signed request heads, lists, errors, multipart. Pure. "Amazon Simple
 * Storage Service API Reference"; where other stores differ (MinIO, Ceph, R2, Google's XML API) it is said.
 */
#ifndef WIRE_S3_H
#define WIRE_S3_H

#include "base/base.h"
#include "base/bytes.h"
#include "wire/http/http.h"
#include "wire/s3/sigv4.h"

#define S3_KEY_MAX    1024u  /* bytes of a key */
#define S3_BUCKET_MAX 255u   /* 63 with AWS; others and old ones allow more */
#define S3_PAGE_MAX   10000u /* keys of a page; AWS gives 1,000 at most */
#define S3_PARTS_MAX  10000u
#define S3_PART_MIN   (5 * MIB) /* but for the last part */

/* "s3://bucket/key/with any/bytes": the key stands as it is, nothing is unescaped (as the AWS CLI does). `key` may be empty. */
struct s3_uri {
    char bucket[S3_BUCKET_MAX + 1];
    char key[S3_KEY_MAX + 1];
};
bool s3_uri_is(const char *text);
/* LEAT_INVALID: no such address, with what is allowed. */
int s3_uri_parse(const char *text, struct s3_uri *ret_uri, struct leat_error *err);

/* Where requests go. A bucket is in the path ("path style"), or in front of the host. */
struct s3_endpoint {
    bool tls;
    bool path_style;
    bool aws; /* one of Amazon's: buckets go in front of the host unless they have a dot in them */
    uint16_t port;
    char host[254]; /* without brackets */
    char base[128]; /* path in front of all others, "" or "/minio" */
    char region[65];
};
/* url: "https://host[:port][/base]", or NULL or "" for Amazon's own of that region. style: "path", "virtual",
 * or "auto" (path for everything but Amazon). LEAT_INVALID. */
int s3_endpoint_parse(const char *url, const char *region, const char *style,
                      struct s3_endpoint *ret_endpoint, struct leat_error *err);
/* The host that a request on this bucket is sent to (no brackets around IPv6), and the value of its Host header. */
void s3_endpoint_host(const struct s3_endpoint *e, const char *bucket, char ret_host[320],
                      char ret_header[340]);

struct s3_header {
    const char *name; /* lower case */
    const char *value;
};

struct s3_request {
    const char *method;
    const char *bucket; /* NULL: of the service */
    const char *host;   /* s3_endpoint_host's header for that bucket, if at hand; NULL: found here */
    const char *key;    /* NULL or "": of the bucket */
    size_t key_len;
    const char *query; /* in canonical form (s3_query_put in the order of names), or NULL */
    bool ranged;
    uint64_t first, last;    /* where ranged: [first, last]; last UINT64_MAX: to the end */
    const char *if_match;    /* an ETag with its quotes, or NULL */
    const char *payload;     /* what sigv4_request.payload is; NULL: of an empty body */
    uint64_t content_length; /* written when `has_body` */
    bool has_body;
    const struct s3_header *headers; /* more of them, any order, none of those above */
    unsigned nheaders;
};

/* access_key NULL: nothing is signed (public buckets). */
struct s3_signer {
    const char *access_key;
    const char *token; /* or NULL */
    const struct sigv4_key *key;
};

/* Appends the request's head, with the empty line behind it. 0; -ENOMEM; LEAT_INVALID: a key or header that cannot be sent. */
int s3_request_put(struct bytes_out *out, const struct s3_endpoint *e, const struct s3_signer *signer,
                   const struct s3_request *request, time_t now);
/* "&name=value", escaped; without "&" at the start. value NULL: "name=". Add in the order of names. */
void s3_query_put(struct bytes_out *out, const char *name, const char *value);

/* --- answers ----------------------------------------------------------------------------------------------------------- */

struct s3_object {
    const char *key; /* NUL-terminated; a key with a NUL in it is refused */
    size_t key_len;
    uint64_t bytes;
    const char *etag; /* with its quotes; "" if unknown */
    int64_t modified; /* seconds since 1970; 0 if unknown */
    bool prefix;      /* a common prefix: no object */
};

/* One page of ListObjectsV2, asked for with encoding-type=url. First all of it is taken in, since some stores
 * say only at its end whether they encoded the keys; then its objects are handed on. */
struct s3_list;
/* NULL: out of memory. */
struct s3_list *s3_list_new(void);
void s3_list_free(struct s3_list *l);
/* `last`: these are the page's last bytes. 0; LEAT_CORRUPT: no list, or one that is contradictory; -ENOMEM. */
int s3_list_feed(struct s3_list *l, const void *data, size_t len, bool last, struct leat_error *err);
/* How many objects there are, once all of it was taken in; and one of them, in the order of the page (prefixes where they stand). */
size_t s3_list_count(const struct s3_list *l);
struct s3_object s3_list_at(const struct s3_list *l, size_t i);
/* Token of the next page, or NULL: this was the last one. */
const char *s3_list_next(const struct s3_list *l);

/* An <Error> document, or any other text. */
struct s3_error {
    char code[64]; /* "NoSuchKey"; "" if there was none */
    char message[256];
    char region[65]; /* of the bucket, where another one was asked */
    char endpoint[256];
    char request_id[128];
};
void s3_error_parse(const void *body, size_t len, struct s3_error *ret_error);
/* A LEAT_ code, and whether the same request may succeed later. `code` may be "". */
int s3_error_class(int status, const char *code, bool *ret_retry);

/* <UploadId> of InitiateMultipartUpload. LEAT_CORRUPT: none, or too long. */
int s3_upload_id_parse(const void *body, size_t len, char *ret_id, size_t cap, struct leat_error *err);
/* <ETag> of the answer to CompleteMultipartUpload, CopyObject or UploadPartCopy, with its quotes; "": it tells none. -ENOMEM. */
int s3_completed_parse(const void *body, size_t len, char *ret_etag, size_t cap);
/* The body of CompleteMultipartUpload. etags[i]: of part i + 1, with quotes. */
void s3_complete_put(struct bytes_out *out, char *const *etags, unsigned n);

/* "2013-05-24T00:00:00.000Z" to seconds; false: not of this form. */
bool s3_time_parse(const char *text, int64_t *ret);

#endif
