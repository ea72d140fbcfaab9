/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and documents as a stranger sends them to the S3 service. The first byte chooses: a head, a document, a body in chunks (in pieces of that
 * length), a copy source, a Range.
 */
#include "wire/s3/aws_chunked.h"
#include "wire/http/http_cond.h"
#include "wire/s3/s3_server.h"
#include "wire/s3/sigv4_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void head(const char *text, size_t len)
{
    static struct s3_call call;
    static const char *const domains[] = {"localhost", NULL};
    struct http_reader r;
    struct sigv4_claim claim;
    struct sigv4_key key;
    bool other;
    http_reader_init_request(&r, 0);
    if (http_head_feed(&r, text, len, NULL, NULL) != 1)
        return;
    bool copy = http_header(&r, text, "x-amz-copy-source").data != NULL;
    bool good =
        s3_call_parse(&call, r.method, http_target(&r, text), http_header(&r, text, "host"), domains, copy);
    if (good != (call.op != S3_OP_NONE) || strlen(call.key) != call.key_len || call.nparams > S3_QUERY_PARAMS)
        abort();
    if (sigv4_claim_parse(&claim, &r, text, &call, "us-east-1", 1369353600, &other) != S3_OK ||
        claim.how == SIGV4_ANONYMOUS)
        return;
    if (sigv4_key_derive("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", 1369353600, "us-east-1", "s3", &key) ==
        0)
        sigv4_claim_check(&claim, &key, &r, text);
}

static void documents(const char *text, size_t len)
{
    struct s3_part_named *parts = NULL;
    struct s3_delete *d = NULL;
    char location[65];
    unsigned n = 0;
    if (s3_complete_parse(text, len, &parts, &n) == S3_OK) {
        for (unsigned i = 1; i < n; i++) {
            if (parts[i].number <= parts[i - 1].number || parts[i].number > S3_PARTS_MAX)
                abort();
        }
        free(parts);
    }
    if (s3_delete_parse(text, len, &d) == S3_OK) {
        if (d->n == 0 || d->n > S3_LIST_MAX)
            abort();
        s3_delete_free(d);
    }
    s3_create_bucket_parse(text, len, location);
}

static int count(void *user, const void *data, size_t len)
{
    (void)data;
    *(uint64_t *)user += len;
    return 0;
}

static void chunks(const char *text, size_t len, size_t step)
{
    struct aws_chunked c;
    struct sigv4_key key = {.date = "20130524"};
    const char *value;
    size_t n;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        uint64_t got = 0;
        int rc = 0;
        aws_chunked_init(&c, 100, true, is_signed ? &key : NULL, "20130524T000000Z", SIGV4_EMPTY);
        for (size_t i = 0; rc == 0 && i < len; i += step)
            rc = aws_chunked_feed(&c, text + i, MIN(step, len - i), count, &got);
        if (rc == 0)
            rc = aws_chunked_end(&c);
        if (got > 100 || (rc == 0 && got != 100))
            abort();
        if (rc == 0)
            aws_chunked_trailer(&c, "x-amz-checksum-crc32", &value, &n);
        aws_chunked_fini(&c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char bucket[S3_BUCKET_MAX + 1], key[S3_KEY_MAX + 1];
    if (size < 2)
        return 0;
    /* A copy of the exact length, so that a read past its end is seen. */
    char *text = malloc(size - 1);
    size_t len = size - 1, key_len;
    if (!text)
        return 0;
    memcpy(text, data + 1, len);
    struct http_text t = {text, len};
    uint64_t first, last;
    switch (data[0] % 5) {
    case 0:
        head(text, len);
        break;
    case 1:
        documents(text, len);
        break;
    case 2:
        chunks(text, len, 1 + data[0] / 5);
        break;
    case 3:
        if (s3_copy_source_parse(t, bucket, key, &key_len) == S3_OK && (strlen(key) != key_len || !bucket[0]))
            abort();
        break;
    default:
        if (http_range(t, 1000, &first, &last) == HTTP_RANGE_PART && (first > last || last > 999))
            abort();
        http_etag_in(t, "abc", t.len % 2);
        http_range_holds(t, "abc", 0);
    }
    free(text);
    return 0;
}
