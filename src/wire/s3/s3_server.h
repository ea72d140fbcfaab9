/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_server.h: what a server of S3 hears and says, as bytes: which operation a request means, the documents that come with it, the
 * answers, the errors. Pure. "Amazon Simple Storage Service API Reference"; s3.h is the same for a client.
 */
#ifndef WIRE_S3_SERVER_H
#define WIRE_S3_SERVER_H

#include "base/base.h"
#include "base/bytes.h"
#include "wire/http/http.h"
#include "wire/s3/s3.h"

#define S3_LIST_MAX     1000u /* keys of a page, uploads, and keys of one DeleteObjects */
#define S3_QUERY_PARAMS 32u
#define S3_QUERY_BYTES  6144u /* of all parameters, unescaped */
#define S3_NAMESPACE    "http://s3.amazonaws.com/doc/2006-03-01/"

/* --- errors ------------------------------------------------------------------------------------------------------------ */

enum s3_code {
    S3_OK,
    S3_ACCESS_DENIED,
    S3_AUTH_HEADER_MALFORMED,
    S3_AUTH_QUERY_MALFORMED,
    S3_BAD_DIGEST,
    S3_BUCKET_EXISTS,
    S3_BUCKET_OWNED,
    S3_BUCKET_NOT_EMPTY,
    S3_CHECKSUM_MISMATCH,
    S3_CONDITION_BUSY,
    S3_CONTENT_SHA_MISMATCH,
    S3_ENTITY_TOO_LARGE,
    S3_ENTITY_TOO_SMALL,
    S3_ILLEGAL_LOCATION,
    S3_INCOMPLETE_BODY,
    S3_INTERNAL,
    S3_INVALID_ACCESS_KEY,
    S3_INVALID_ARGUMENT,
    S3_INVALID_BUCKET,
    S3_INVALID_DIGEST,
    S3_INVALID_PART,
    S3_INVALID_PART_NUMBER,
    S3_INVALID_PART_ORDER,
    S3_INVALID_RANGE,
    S3_INVALID_REQUEST,
    S3_INVALID_STORAGE_CLASS,
    S3_INVALID_TOKEN,
    S3_INVALID_URI,
    S3_KEY_TOO_LONG,
    S3_MALFORMED_TRAILER,
    S3_MALFORMED_XML,
    S3_METADATA_TOO_LARGE,
    S3_METHOD_NOT_ALLOWED,
    S3_MISSING_LENGTH,
    S3_NO_SUCH_BUCKET,
    S3_NO_SUCH_KEY,
    S3_NO_SUCH_UPLOAD,
    S3_NO_SUCH_VERSION,
    S3_NO_BUCKET_POLICY,
    S3_NO_CORS,
    S3_NO_ENCRYPTION,
    S3_NO_LIFECYCLE,
    S3_NO_OBJECT_LOCK,
    S3_NO_OWNERSHIP,
    S3_NO_PUBLIC_ACCESS_BLOCK,
    S3_NO_REPLICATION,
    S3_NO_TAGS,
    S3_NO_WEBSITE,
    S3_NOT_IMPLEMENTED,
    S3_NOT_MODIFIED,
    S3_PRECONDITION_FAILED,
    S3_REMOTE_REFUSED, /* these two are not S3's: of a bucket with a remote */
    S3_REMOTE_TIMEOUT,
    S3_REQUEST_TIMEOUT,
    S3_SIGNATURE_MISMATCH,
    S3_SLOW_DOWN,
    S3_STORAGE_FULL,
    S3_TIME_SKEWED,
    S3_UNAVAILABLE,
    S3_CODES
};
const char *s3_code_name(enum s3_code code);    /* "NoSuchKey" */
unsigned s3_code_status(enum s3_code code);     /* 404 */
const char *s3_code_message(enum s3_code code); /* the usual sentence */
/* The whole document. message NULL: the usual one; resource: as it stood in the request, any bytes; region: where another one was meant, or NULL. */
void s3_error_put(struct bytes_out *out, enum s3_code code, const char *message, const char *resource,
                  size_t resource_len, const char *request_id, const char *region);

/* --- requests ---------------------------------------------------------------------------------------------------------- */

enum s3_op {
    S3_OP_NONE, /* s3_call.code says why */
    S3_OP_LIST_BUCKETS,
    S3_OP_CREATE_BUCKET,
    S3_OP_HEAD_BUCKET,
    S3_OP_DELETE_BUCKET,
    S3_OP_GET_LOCATION,
    S3_OP_LIST_OBJECTS,
    S3_OP_LIST_OBJECTS_V2,
    S3_OP_LIST_VERSIONS,
    S3_OP_LIST_UPLOADS,
    S3_OP_DELETE_OBJECTS,
    S3_OP_BATCH, /* not S3's: wire/s3/batch.h */
    S3_OP_GET_OBJECT,
    S3_OP_HEAD_OBJECT,
    S3_OP_GET_ATTRIBUTES,
    S3_OP_PUT_OBJECT,
    S3_OP_COPY_OBJECT,
    S3_OP_DELETE_OBJECT,
    S3_OP_CREATE_UPLOAD,
    S3_OP_UPLOAD_PART,
    S3_OP_UPLOAD_PART_COPY,
    S3_OP_COMPLETE_UPLOAD,
    S3_OP_ABORT_UPLOAD,
    S3_OP_LIST_PARTS,
    S3_OP_DEFAULT_READ, /* of a setting that no bucket or object has: what S3 says then; s3_call.code, or S3_OK and s3_default_put */
};

struct s3_param {
    uint16_t name_at, name_len, value_at, value_len; /* in s3_call.text, each with a NUL behind it */
};

/* Not zeroed whole: the counts show what is valid. */
struct s3_call {
    enum s3_op op;
    enum s3_code code;   /* of S3_OP_NONE and S3_OP_DEFAULT_READ */
    const char *subject; /* the sub-resource that was named ("acl"), static, or "" */
    bool has_key;
    size_t key_len, path_len; /* path_len: of the target, up to its "?" */
    unsigned nparams;
    char bucket[S3_BUCKET_MAX + 1]; /* "" : the service */
    char key[S3_KEY_MAX + 1];
    struct s3_param params[S3_QUERY_PARAMS];
    char text[S3_QUERY_BYTES];
};

/*
 * What a request means: the target as it came, the Host header (data NULL: none), and whether it has x-amz-copy-source. A bucket stands in
 * front of one of `domains` (NULL-terminated, or NULL) in the host, or first in the path. Fills in all but what is noted above; false: call->code says
 * what is wrong, and bucket and key are what could be read.
 */
bool s3_call_parse(struct s3_call *call, const char *method, struct http_text target, struct http_text host,
                   const char *const *domains, bool copy);
/* A parameter's value, or NULL. Names are compared as they are. */
const char *s3_call_param(const struct s3_call *call, const char *name, size_t *ret_len);
const char *s3_op_name(enum s3_op op); /* "GetObject" */

/* A name that a bucket may be given: 3 to 63 of a-z 0-9 - ., as AWS has it. */
bool s3_bucket_valid(const char *name);
/* The value of x-amz-copy-source: "/bucket/key" or "bucket/key", escaped; "?versionId=null" may follow. */
enum s3_code s3_copy_source_parse(struct http_text value, char ret_bucket[S3_BUCKET_MAX + 1],
                                  char ret_key[S3_KEY_MAX + 1], size_t *ret_key_len);

/* --- documents that come with a request --------------------------------------------------------------------------------- */

struct s3_part_named {
    unsigned number;
    char etag[72];      /* without quotes */
    char checksum[96];  /* base64, "" if none was named */
    char algorithm[12]; /* "CRC32C" */
};
/* CompleteMultipartUpload: in ascending order. *ret_parts: the caller frees. */
enum s3_code s3_complete_parse(const void *body, size_t len, struct s3_part_named **ret_parts,
                               unsigned *ret_n);

struct s3_delete_key {
    uint32_t key_at, key_len;         /* in texts */
    uint32_t version_at, version_len; /* 0: none was named */
};
struct s3_delete {
    bool quiet;
    unsigned n;
    struct bytes_out texts;
    struct s3_delete_key keys[S3_LIST_MAX];
};
/* Delete: at most S3_LIST_MAX keys. The caller frees with s3_delete_free. */
enum s3_code s3_delete_parse(const void *body, size_t len, struct s3_delete **ret_delete);
void s3_delete_free(struct s3_delete *d);
/* CreateBucketConfiguration; an empty body is fine. ret_location: "" if none was said. */
enum s3_code s3_create_bucket_parse(const void *body, size_t len, char ret_location[65]);

/* --- answers ----------------------------------------------------------------------------------------------------------- */

/* "2013-05-24T00:00:00.000Z" and a NUL. */
#define S3_TIME_TEXT 25
void s3_time_format(int64_t seconds, char out[S3_TIME_TEXT]);

void s3_buckets_begin(struct bytes_out *out, const char *owner);
void s3_buckets_put(struct bytes_out *out, const char *name, int64_t created);
void s3_buckets_end(struct bytes_out *out);

/* A page of ListObjects, or of ListObjectVersions of a bucket that keeps none but the newest; what the request said is said again. Texts may be NULL. */
struct s3_page {
    bool v2, versions, url, truncated, owners;
    bool next_is_prefix; /* versions: `next` is no key, and has no version */
    const char *bucket, *prefix, *delimiter, *after, *token,
        *next; /* after: V1's marker, V2's start-after, the key-marker of versions; next: opaque in V2 */
    const char *version_marker;
    size_t prefix_len, delimiter_len, after_len, token_len, next_len;
    unsigned max_keys, count; /* count: V2's KeyCount */
};
void s3_page_begin(struct bytes_out *out, const struct s3_page *page);
void s3_page_object(struct bytes_out *out, const struct s3_page *page, const char *key, size_t len,
                    uint64_t bytes, const char *etag, int64_t modified, const char *owner);
void s3_page_prefix(struct bytes_out *out, const struct s3_page *page, const char *prefix, size_t len);
void s3_page_end(struct bytes_out *out, const struct s3_page *page);

/* etag without quotes. `kind` "CopyObjectResult" or "CopyPartResult". checksum: element name of one of all bytes, and its base64; or NULL. */
void s3_copied_put(struct bytes_out *out, const char *kind, const char *etag, int64_t modified,
                   const char *checksum, const char *value);
void s3_created_upload_put(struct bytes_out *out, const char *bucket, const char *key, size_t key_len,
                           const char *id);
/* checksum: element name and base64 ("ChecksumCRC32C"), or NULL; type "COMPOSITE" or "FULL_OBJECT". */
void s3_completed_put(struct bytes_out *out, const char *location, const char *bucket, const char *key,
                      size_t key_len, const char *etag, const char *checksum, const char *value,
                      const char *type);
void s3_location_put(struct bytes_out *out, const char *region);
/* GetObjectAttributes: what was asked for, the rest is NULL, 0 or UINT64_MAX. sums: pairs of store.h, "x-amz-checksum-crc32" and its like among others. */
struct s3_attributes {
    const char *etag; /* without quotes */
    const void *sums;
    size_t sums_len;
    const char *storage_class;
    uint64_t bytes;
    /* A page of its parts, after number `parts_after`. total 0: it has none. part_sum: "ChecksumCRC32" or NULL. */
    unsigned parts_total, parts_after, parts_max, nparts;
    const struct s3_object_part *parts;
    const char *part_sum;
};
struct s3_object_part {
    unsigned number;
    uint64_t bytes;
    struct http_text sum; /* data NULL: not known */
};
void s3_attributes_put(struct bytes_out *out, const struct s3_attributes *attributes);
/* What S3_OP_DEFAULT_READ says where it is no error; false: nothing, an error after all. */
bool s3_default_put(struct bytes_out *out, const struct s3_call *call, const char *owner);

/* What S3 says of a bucket whose objects are all encrypted by the server: AES256. */
void s3_encryption_put(struct bytes_out *out);

/* DeleteResult: one of these for each key. code S3_OK: deleted. */
void s3_deleted_begin(struct bytes_out *out);
void s3_deleted_key(struct bytes_out *out, const char *key, size_t len, enum s3_code code);
void s3_deleted_end(struct bytes_out *out);

/* "<name>text</name>" with the text escaped. */
void s3_element(struct bytes_out *out, const char *name, const char *text, size_t len);
void s3_element_u64(struct bytes_out *out, const char *name, uint64_t v);
/* The same, URL-encoded where `url`. */
void s3_element_key(struct bytes_out *out, bool url, const char *name, const char *text, size_t len);

#endif
