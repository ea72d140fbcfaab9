/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the server receives straight into the put's own buffer (or, of aws-chunked bodies and documents, into one of ours); a worker
 * hashes, decodes and writes it, and the next buffer is given; at the end every checksum that was promised is compared.
 * Failure modes: each lie has its code: IncompleteBody, BadDigest, XAmzContentSHA256Mismatch, SignatureDoesNotMatch, MalformedTrailerError. The
 * put is not committed, so nothing of it is ever seen.
 * Invariants: a buffer belongs to the server or to a worker, never to both; documents are bounded, and charged before they are received.
 */
#include "base/crc32c.h"
#include "base/crc64.h"
#include "base/hex.h"
#include "serve/s3/task.h"

#include <libdeflate.h>
#include <stdio.h>

#define OBJECT_MAX   (5ull * 1024 * GIB)
#define CHUNK_BUFFER (256 * KIB)
#define UNKNOWN_DOC  (1 * MIB) /* a document of unknown length */

/* --- what was said ----------------------------------------------------------------------------------------------------------- */

static bool read_md5(struct s3_task *v)
{
    struct http_text t = s3_task_header(v, "content-md5");
    if (!t.data)
        return true;
    v->body.has_md5 = true;
    return sum_parse(t.data, t.len, 16, v->body.md5) || s3_task_fail(v, S3_INVALID_DIGEST, NULL);
}

/* Other checksum headers of SDKs have to name the same algorithm. */
static bool check_sdk_algorithm(struct s3_task *v)
{
    struct http_text t = s3_task_header(v, "x-amz-sdk-checksum-algorithm");
    if (!t.data || sum_by_name(t.data, t.len) == v->body.sum)
        return true;
    return s3_task_fail(v, S3_INVALID_REQUEST,
                        v->body.sum == SUM_NONE
                            ? "x-amz-sdk-checksum-algorithm specified, but no corresponding "
                              "x-amz-checksum-* or x-amz-trailer headers were found."
                            : "Value for x-amz-sdk-checksum-algorithm header is invalid.");
}

/* A part's checksum is of its upload's algorithm, if that has one. Where the whole's is made of bytes, not of checksums, the server computes one that is
 * missing, as S3 does. */
static bool agree_with_upload(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    if (!v->part || v->declared == SUM_NONE || b->sum == v->declared)
        return true;
    if (b->sum == SUM_NONE && v->declared_full) {
        b->sum = v->declared;
        b->computed = true;
        return true;
    }
    return sum_mismatch(v, b->sum);
}

/* x-amz-checksum-*, or the one that x-amz-trailer announces. */
static bool read_sum(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    struct http_text trailer = s3_task_header(v, "x-amz-trailer");
    for (unsigned k = 0; k < SUM_KINDS; k++) {
        struct http_text t = sum_demand(v, (enum sum_kind)k);
        uint8_t raw[32];
        bool told = trailer.data && http_text_is_case(trailer, sum_names[k].header);
        if (!t.data && !told)
            continue;
        if (b->sum != SUM_NONE || (t.data && told))
            return s3_task_fail(
                v, S3_INVALID_REQUEST,
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.");
        b->sum = (enum sum_kind)k;
        b->trailing = told;
        if (told)
            continue;
        if (!sum_parse(t.data, t.len, sum_names[k].bytes, raw)) {
            char message[100];
            snprintf(message, sizeof(message), "Value for %s header is invalid.", sum_names[k].header);
            return s3_task_fail(v, S3_INVALID_REQUEST, message);
        }
        http_text_copy(t, b->value, sizeof(b->value));
    }
    if (trailer.data && b->sum == SUM_NONE)
        return s3_task_fail(v, S3_INVALID_REQUEST,
                            "The value specified in the x-amz-trailer header is not supported");
    if (b->trailing && b->how != SIGV4_BODY_CHUNKS && b->how != SIGV4_BODY_SIGNED_TRAILER)
        return s3_task_fail(v, S3_INVALID_REQUEST,
                            "x-amz-trailer needs an x-amz-content-sha256 that ends with -TRAILER");
    return check_sdk_algorithm(v) && agree_with_upload(v);
}

static bool read_length(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    uint64_t wire = v->req->body_bytes;
    if (b->how >= SIGV4_BODY_CHUNKS) {
        struct http_text t = s3_task_header(v, "x-amz-decoded-content-length");
        if (!t.data)
            return s3_task_fail(v, S3_MISSING_LENGTH,
                                "You must provide the x-amz-decoded-content-length HTTP header.");
        if (!http_text_u64(t, &b->bytes))
            return s3_task_fail(v, S3_INVALID_ARGUMENT, "x-amz-decoded-content-length is no number");
    } else if (wire == HTTP_BODY_UNKNOWN) {
        b->bytes = STORE_UNKNOWN_BYTES;
    } else {
        b->bytes = wire;
        if (wire == 0 && !s3_task_header(v, "content-length").data && strcmp(v->req->method, "PUT") == 0 &&
            v->call.op != S3_OP_CREATE_BUCKET)
            return s3_task_fail(v, S3_MISSING_LENGTH, NULL);
    }
    if (b->bytes != STORE_UNKNOWN_BYTES && b->bytes > OBJECT_MAX)
        return s3_task_fail(v, S3_ENTITY_TOO_LARGE, NULL);
    return true;
}

static bool make_buffer(struct s3_task *v, size_t bytes)
{
    struct s3_task_body *b = &v->body;
    if (budget_reserve(v->service->budget, bytes) < 0)
        return s3_task_fail(v, S3_SLOW_DOWN, NULL);
    b->charged += bytes;
    b->buffer = malloc(bytes);
    b->buffer_bytes = bytes;
    return b->buffer || s3_task_fail(v, S3_SLOW_DOWN, NULL);
}

bool body_hash_begin(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    bool good = true;
    if (b->how == SIGV4_BODY_HASHED || b->sum == SUM_SHA256) {
        b->sha256 = EVP_MD_CTX_new();
        good = b->sha256 && EVP_DigestInit_ex(b->sha256, EVP_sha256(), NULL) == 1;
    }
    if (good && b->sum == SUM_SHA1) {
        b->sha1 = EVP_MD_CTX_new();
        good = b->sha1 && EVP_DigestInit_ex(b->sha1, EVP_sha1(), NULL) == 1;
    }
    return good || s3_task_fail(v, S3_SLOW_DOWN, NULL);
}

bool body_begin(struct s3_task *v, uint64_t document_max)
{
    struct s3_task_body *b = &v->body;
    bool of_whole = v->call.op == S3_OP_COMPLETE_UPLOAD; /* a checksum in its head is not of its body */
    if (!read_md5(v) || (!of_whole && !read_sum(v)) || !read_length(v) || !body_hash_begin(v))
        return false;
    bool chunked = b->how >= SIGV4_BODY_CHUNKS;
    if (document_max && b->bytes != STORE_UNKNOWN_BYTES && b->bytes > document_max)
        return s3_task_fail(v, S3_MALFORMED_XML, "The XML you provided is too long");
    if (document_max) {
        size_t most = b->bytes == STORE_UNKNOWN_BYTES ? UNKNOWN_DOC : (size_t)b->bytes;
        if (budget_reserve(v->service->budget, most) < 0)
            return s3_task_fail(v, S3_SLOW_DOWN, NULL);
        b->charged += most;
    }
    uint64_t room = MIN(v->req->body_bytes, chunked ? CHUNK_BUFFER : 64 * KIB);
    if ((chunked || document_max) && !make_buffer(v, (size_t)MAX(room, 1u)))
        return false;
    if (chunked) {
        b->aws = malloc(sizeof(*b->aws));
        if (!b->aws)
            return s3_task_fail(v, S3_SLOW_DOWN, NULL);
        bool is_signed = b->how >= SIGV4_BODY_SIGNED;
        aws_chunked_init(b->aws, b->bytes, b->how != SIGV4_BODY_SIGNED, is_signed ? &b->key : NULL, b->when,
                         b->signature);
    }
    return true;
}

void body_fini(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    if (b->aws)
        aws_chunked_fini(b->aws);
    free(b->aws);
    free(b->buffer);
    bytes_out_fini(&b->document);
    EVP_MD_CTX_free(b->sha1);
    EVP_MD_CTX_free(b->sha256);
    if (b->charged)
        budget_release(v->service->budget, b->charged);
    sigv4_key_wipe(&b->key);
    objects_put_abort(TAKE_PTR(b->put));
}

/* --- payload --------------------------------------------------------------------------------------------------------------------- */

void body_hash(struct s3_task_body *b, const void *data, size_t len)
{
    b->got += len;
    if (b->sum == SUM_CRC32)
        b->crc32 = libdeflate_crc32(b->crc32, data, len);
    else if (b->sum == SUM_CRC32C && !b->put)
        b->crc32c = crc32c(b->crc32c, data, len);
    else if (b->sum == SUM_CRC64)
        b->crc64 = crc64nvme(b->crc64, data, len);
    else if (b->sum == SUM_SHA1)
        EVP_DigestUpdate(b->sha1, data, len);
    if (b->sha256)
        EVP_DigestUpdate(b->sha256, data, len);
}

/* Payload outside the put's buffer. */
static int take(void *user, const void *data, size_t len)
{
    struct s3_task *v = user;
    struct s3_task_body *b = &v->body;
    body_hash(b, data, len);
    if (!b->put) {
        uint64_t most = b->bytes == STORE_UNKNOWN_BYTES ? UNKNOWN_DOC : b->bytes;
        if (b->got > most) {
            s3_task_fail(v, S3_MALFORMED_XML, "The XML you provided is too long");
            return -EMSGSIZE;
        }
        bytes_put(&b->document, data, len);
        return b->document.failed ? -ENOMEM : 0;
    }
    struct leat_error err = {0};
    int rc = objects_put_write(b->put, data, len, &err);
    if (rc < 0)
        s3_task_fail_store(v, rc, &err);
    return rc;
}

static bool fail_chunks(struct s3_task *v, int rc, const char *why)
{
    enum s3_code code = rc == LEAT_DENIED ? S3_SIGNATURE_MISMATCH
                        : rc == LEAT_CORRUPT && v->body.aws->state == AWS_CHUNKED_IN_TRAILERS
                            ? S3_MALFORMED_TRAILER
                        : rc == LEAT_CORRUPT || rc == LEAT_INVALID ? S3_INCOMPLETE_BODY
                                                                   : S3_SLOW_DOWN;
    return s3_task_fail(v, code, code == S3_SLOW_DOWN ? NULL : why);
}

static void compute(struct s3_task_body *b, uint8_t raw[32])
{
    uint64_t crc = b->sum == SUM_CRC32    ? b->crc32
                   : b->sum == SUM_CRC32C ? (b->put ? objects_put_crc32c(b->put) : b->crc32c)
                                          : b->crc64;
    unsigned bytes = sum_names[b->sum].bytes;
    if (b->sum == SUM_SHA1)
        EVP_DigestFinal_ex(b->sha1, raw, NULL);
    else
        for (unsigned i = 0; i < bytes && bytes <= 8; i++)
            raw[i] = (uint8_t)(crc >> (8 * (bytes - 1 - i)));
}

void body_hash_end(struct s3_task_body *b)
{
    uint8_t raw[32];
    if (b->sum == SUM_SHA256)
        EVP_DigestFinal_ex(b->sha256, raw, NULL);
    else
        compute(b, raw);
    sum_format(raw, sum_names[b->sum].bytes, b->value);
}

static bool compare_sum(struct s3_task *v, const uint8_t sha256[32])
{
    struct s3_task_body *b = &v->body;
    uint8_t raw[32], told[32];
    char value[SUM_TEXT];
    const char *text = b->value;
    size_t len = strlen(b->value);
    if (b->sum == SUM_NONE)
        return true;
    const struct sum_name *name = &sum_names[b->sum];
    if (b->trailing && !aws_chunked_trailer(b->aws, name->header, &text, &len))
        return s3_task_fail(v, S3_MALFORMED_TRAILER, NULL);
    if (b->sum == SUM_SHA256)
        memcpy(raw, sha256, 32);
    else
        compute(b, raw);
    if (!b->computed && !sum_parse(text, len, name->bytes, told))
        return s3_task_fail(v, b->trailing ? S3_MALFORMED_TRAILER : S3_INVALID_REQUEST, NULL);
    if (!b->computed && memcmp(raw, told, name->bytes) != 0) {
        char message[100];
        snprintf(message, sizeof(message), "The %s you specified did not match the calculated checksum.",
                 name->name);
        return s3_task_fail(v, S3_CHECKSUM_MISMATCH, message);
    }
    sum_format(raw, name->bytes, value);
    memcpy(b->value, value, sizeof(value));
    return true;
}

static bool compare_md5(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    uint8_t md5[16];
    bool known = true;
    if (!b->has_md5)
        return true;
    if (b->put)
        known = objects_put_md5(b->put, md5);
    else
        known = EVP_Digest(b->document.data ? b->document.data : (const uint8_t *)"", b->document.len, md5,
                           NULL, EVP_md5(), NULL) == 1;
    return (known && memcmp(md5, b->md5, sizeof(md5)) == 0) || s3_task_fail(v, S3_BAD_DIGEST, NULL);
}

/* All of it is here: was it what was said? */
static bool compare(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    uint8_t sha256[32] = {0};
    int rc = b->aws ? aws_chunked_end(b->aws) : 0;
    if (rc < 0)
        return fail_chunks(v, rc, b->aws->why);
    if (b->bytes != STORE_UNKNOWN_BYTES && b->got != b->bytes)
        return s3_task_fail(v, S3_INCOMPLETE_BODY, NULL);
    if (b->sha256)
        EVP_DigestFinal_ex(b->sha256, sha256, NULL);
    if (b->how == SIGV4_BODY_HASHED) {
        char hex[SIGV4_SIGNATURE];
        hex_put(hex, sha256, 32);
        if (memcmp(hex, b->payload, 64) != 0)
            return s3_task_fail(v, S3_CONTENT_SHA_MISMATCH, NULL);
    }
    return compare_sum(v, sha256) && compare_md5(v);
}

/* --- buffer by buffer -------------------------------------------------------------------------------------------------------------- */

static int digest(struct s3_task *v, struct leat_error *err)
{
    struct s3_task_body *b = &v->body;
    int rc = 0;
    if (b->aws) {
        rc = aws_chunked_feed(b->aws, b->buffer, b->filled, take, v);
        if (rc < 0)
            return fail_chunks(v, rc, b->aws->why);
    } else if (!b->put) {
        if (take(v, b->buffer, b->filled) < 0)
            return s3_task_fail(v, S3_SLOW_DOWN, NULL);
    } else if (b->filled) {
        body_hash(b, b->target, b->filled);
        rc = objects_put_advance(b->put, b->filled, err);
    }
    if (rc < 0 || v->code != S3_OK || !b->last)
        return rc;
    return compare(v) && b->end ? b->end(v, err) : 0;
}

static void next_buffer(struct s3_task *v)
{
    struct s3_task_body *b = &v->body;
    size_t n = b->buffer_bytes;
    b->target = b->buffer ? b->buffer : objects_put_room(b->put, &n);
    http_body_into(v->req, b->target, n);
}

static void digested(struct s3_task *v)
{
    if (!v->body.last)
        next_buffer(v);
    else if (v->body.then)
        v->body.then(v);
}

static void start_digest(struct s3_task *v)
{
    enum http_priority priority = v->body.bytes > 8 * MIB ? HTTP_PRIORITY_LONG : HTTP_PRIORITY_SHORT;
    if (v->body.last) /* what is done with all of it */
        s3_task_run_remote(v, priority, digest, digested);
    else
        s3_task_run(v, priority, digest, digested);
}

void body_full(struct s3_task *v, size_t got, bool last)
{
    v->body.filled = got;
    v->body.last = last;
    start_digest(v);
}

void body_receive(struct s3_task *v, s3_task_fn *end, void (*then)(struct s3_task *v))
{
    v->body.end = end;
    v->body.then = then;
    if (v->req->body_bytes == 0)
        body_full(v, 0, true);
    else
        next_buffer(v);
}
