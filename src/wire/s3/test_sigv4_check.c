/* SPDX-License-Identifier: Apache-2.0 */
/* Requests signed by the client's side and by the examples of the S3 API reference, checked; and each way to be wrong, with its code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/s3/s3.h"
#include "wire/s3/sigv4_check.h"

#define ACCESS "AKIAIOSFODNN7EXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define NOW    1369353600 /* 20130524T000000Z */

static struct sigv4_key key;
static struct http_reader reader;
static struct s3_call call;
static struct sigv4_claim claim;
static bool other_region;

static int setup(void **state)
{
    return sigv4_key_derive(SECRET, NOW, "us-east-1", "s3", &key);
}

static enum s3_code check_at(const char *head, time_t now)
{
    http_reader_init_request(&reader, 0);
    assert_int_equal(http_head_feed(&reader, head, strlen(head), NULL, NULL), 1);
    s3_call_parse(&call, reader.method, http_target(&reader, head), http_header(&reader, head, "host"), NULL,
                  false);
    enum s3_code code = sigv4_claim_parse(&claim, &reader, head, &call, "us-east-1", now, &other_region);
    if (code != S3_OK || claim.how == SIGV4_ANONYMOUS)
        return code;
    assert_string_equal(claim.access_key, ACCESS);
    return sigv4_claim_check(&claim, &key, &reader, head);
}

static enum s3_code check(const char *head)
{
    return check_at(head, NOW);
}

#define SCOPE "20130524/us-east-1/s3/aws4_request"
#define AUTH(names, signature)                                                                               \
    "Authorization: AWS4-HMAC-SHA256 Credential=" ACCESS "/" SCOPE ",SignedHeaders=" names                   \
    ",Signature=" signature "\r\n"
#define GET_AUTH                                                                                             \
    AUTH("host;range;x-amz-content-sha256;x-amz-date",                                                       \
         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")
#define GET_HEAD                                                                                             \
    "GET /test.txt HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\nRange: bytes=0-9\r\n"                 \
    "x-amz-content-sha256: " SIGV4_EMPTY "\r\nx-amz-date: 20130524T000000Z\r\n"

static void test_reference(void **state)
{
    assert_int_equal(check(GET_HEAD GET_AUTH "\r\n"), S3_OK);
    assert_int_equal(claim.body, SIGV4_BODY_HASHED);
    assert_int_equal(
        check(
            "PUT /test%24file.text HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\n"
            "Date: Fri, 24 May 2013 00:00:00 GMT\r\nContent-Length: 21\r\n"
            "x-amz-date: 20130524T000000Z\r\nx-amz-storage-class:   REDUCED_REDUNDANCY \r\n"
            "x-amz-content-sha256: 44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072\r\n" AUTH(
                "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd") "\r\n"),
        S3_OK);
    /* Parameters in another order than they are signed in, and one without "=". */
    assert_int_equal(check("GET /?prefix=J&max-keys=2 HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\n"
                           "x-amz-content-sha256: " SIGV4_EMPTY "\r\nx-amz-date: 20130524T000000Z\r\n" AUTH(
                               "host;x-amz-content-sha256;x-amz-date",
                               "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7") "\r\n"),
                     S3_OK);
    assert_int_equal(check("GET /?lifecycle HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\n"
                           "x-amz-content-sha256: " SIGV4_EMPTY "\r\nx-amz-date: 20130524T000000Z\r\n" AUTH(
                               "host;x-amz-content-sha256;x-amz-date",
                               "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543") "\r\n"),
                     S3_OK);
}

#define SIGNED_URL                                                                                           \
    "GET "                                                                                                   \
    "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-" \
    "1%2Fs3"                                                                                                 \
    "%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-"        \
    "Signature="                                                                                             \
    "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
#define URL_END " HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\n\r\n"

static void test_presigned(void **state)
{
    assert_int_equal(check(SIGNED_URL URL_END), S3_OK);
    assert_int_equal(claim.how, SIGV4_QUERY);
    assert_int_equal(claim.body, SIGV4_BODY_PLAIN);
    assert_int_equal(check_at(SIGNED_URL URL_END, NOW + 86400), S3_OK);
    assert_int_equal(check_at(SIGNED_URL URL_END, NOW + 86401), S3_ACCESS_DENIED);
    assert_string_equal(claim.why, "Request has expired");
    assert_int_equal(check_at(SIGNED_URL URL_END, NOW - SIGV4_SKEW_S - 1), S3_TIME_SKEWED);
    assert_int_equal(check(SIGNED_URL "&response-content-type=text/html" URL_END), S3_SIGNATURE_MISMATCH);
    assert_int_equal(check(SIGNED_URL " HTTP/1.1\r\nHost: other\r\n\r\n"), S3_SIGNATURE_MISMATCH);
    assert_int_equal(
        check(SIGNED_URL " HTTP/1.1\r\nHost: examplebucket.s3.amazonaws.com\r\nx-amz-acl: private\r\n\r\n"),
        S3_ACCESS_DENIED);
    char text[2048], *at;
    static const char *const changes[][2] = {
        {"Expires=86400", "Expires=604801"},  {"Expires=86400", "Expires=0"},
        {"Expires=86400", "Expires=x"},       {"HMAC-SHA256", "HMAC-SHA1"},
        {"Date=2013", "Date=x013"},           {"SignedHeaders=host", "SignedHeaders="},
        {"X-Amz-Signature=", "X-Amz-Other="}, {"%2Fs3%2F", "%2Fsns%2F"},
        {"Date=20130524", "Date=20130523"}};
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        strcpy(text, SIGNED_URL URL_END);
        at = strstr(text, changes[i][0]);
        char rest[2048];
        strcpy(rest, at + strlen(changes[i][0]));
        sprintf(at, "%s%s", changes[i][1], rest);
        enum s3_code code = check(text);
        if (code != S3_AUTH_QUERY_MALFORMED)
            fail_msg("%s: %s", changes[i][1], s3_code_name(code));
    }
}

/* What s3.c signs, for every kind of key and query. */
static void test_our_client(void **state)
{
    static const struct s3_header headers[] = {{"x-amz-meta-b", "two words inside "}, {"x-amz-meta-a", ""}};
    static const char *const keys[] = {"a", "a b+c%d/e?f&g=h", "../x", "\xc3\xa4//~\x01'()*!"};
    struct s3_endpoint e;
    assert_int_equal(s3_endpoint_parse("http://127.0.0.1:9000", "us-east-1", "path", &e, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct bytes_out out = {0}, query = {0};
        struct s3_signer signer = {.access_key = ACCESS, .key = &key};
        s3_query_put(&query, "partNumber", "1");
        s3_query_put(&query, "uploadId", "x y/+");
        bytes_put(&query, "", 1);
        struct s3_request rq = {.method = "PUT",
                                .bucket = "b",
                                .key = keys[i],
                                .key_len = strlen(keys[i]),
                                .payload = SIGV4_STREAMING,
                                .query = (const char *)query.data,
                                .headers = headers,
                                .nheaders = 2,
                                .has_body = true};
        assert_int_equal(s3_request_put(&out, &e, &signer, &rq, NOW + 60), 0);
        bytes_put(&out, "", 1);
        assert_int_equal(check((const char *)out.data), S3_OK);
        assert_string_equal(call.key, keys[i]);
        assert_int_equal(claim.body, SIGV4_BODY_SIGNED);
        char *letter = strstr((char *)out.data, "two") + 1;
        *letter = 'W';
        assert_int_equal(check((const char *)out.data), S3_SIGNATURE_MISMATCH);
        bytes_out_fini(&out);
        bytes_out_fini(&query);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *head;
        enum s3_code code;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", S3_OK},
        {"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Basic YTpi\r\n\r\n", S3_INVALID_REQUEST},
        {"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: AWS key:sig\r\n\r\n", S3_INVALID_REQUEST},
        {"GET /?AWSAccessKeyId=a&Signature=b&Expires=1 HTTP/1.1\r\nHost: h\r\n\r\n", S3_INVALID_REQUEST},
        {"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: AWS4-HMAC-SHA256 x\r\n\r\n", S3_AUTH_HEADER_MALFORMED},
        {GET_HEAD AUTH("host;range;x-amz-content-sha256;x-amz-date",
                       "00e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41") "\r\n",
         S3_SIGNATURE_MISMATCH},
        {GET_HEAD AUTH("host;range;x-amz-content-sha256;x-amz-date", "f0e8") "\r\n",
         S3_AUTH_HEADER_MALFORMED},
        {GET_HEAD AUTH("range;x-amz-content-sha256;x-amz-date",
                       "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41") "\r\n",
         S3_ACCESS_DENIED},
        {GET_HEAD AUTH("host;range;x-amz-content-sha256",
                       "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41") "\r\n",
         S3_ACCESS_DENIED},
        {GET_HEAD AUTH("range;host;x-amz-content-sha256;x-amz-date",
                       "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41") "\r\n",
         S3_AUTH_HEADER_MALFORMED},
        {GET_HEAD GET_AUTH "x-amz-meta-more: 1\r\n\r\n", S3_ACCESS_DENIED},
        {GET_HEAD GET_AUTH "X-Leat-Remote: {}\r\n\r\n", S3_ACCESS_DENIED},
        {GET_HEAD GET_AUTH "x-amz-date: 20130524T000001Z\r\n\r\n", S3_SIGNATURE_MISMATCH},
        {"GET /test.txt HTTP/1.1\r\nHost: h\r\nx-amz-date: 20130524T000000Z\r\n" GET_AUTH "\r\n",
         S3_INVALID_REQUEST},
        {"GET /test.txt HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: " SIGV4_EMPTY "\r\n" GET_AUTH "\r\n",
         S3_ACCESS_DENIED},
        {"GET /test.txt HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: abc\r\nx-amz-date: "
         "20130524T000000Z\r\n" GET_AUTH "\r\n",
         S3_INVALID_ARGUMENT},
        {"GET /test.txt HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: " SIGV4_EMPTY
         "\r\nx-amz-date: 20130523T235959Z\r\n" GET_AUTH "\r\n",
         S3_AUTH_HEADER_MALFORMED},
        {"GET /?X-Amz-Signature=a HTTP/1.1\r\nHost: h\r\n" GET_AUTH "\r\n", S3_INVALID_ARGUMENT},
        {"PUT /b/k HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: " SIGV4_STREAMING "\r\n\r\n",
         S3_INVALID_REQUEST},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        enum s3_code code = check(cases[i].head);
        if (code != cases[i].code)
            fail_msg("case %zu: %s: %s", i, s3_code_name(code), claim.why);
    }
    assert_int_equal(check_at(GET_HEAD GET_AUTH "\r\n", NOW + SIGV4_SKEW_S), S3_OK);
    assert_int_equal(check_at(GET_HEAD GET_AUTH "\r\n", NOW + SIGV4_SKEW_S + 1), S3_TIME_SKEWED);
    assert_int_equal(check_at(GET_HEAD GET_AUTH "\r\n", NOW - SIGV4_SKEW_S - 1), S3_TIME_SKEWED);
    char text[1024];
    strcpy(text, GET_HEAD GET_AUTH "\r\n");
    memcpy(strstr(text, "us-east-1"), "eu-west-9", 9);
    assert_int_equal(check(text), S3_AUTH_HEADER_MALFORMED);
    assert_true(other_region);
    assert_non_null(strstr(claim.why, "expecting 'us-east-1'"));
}

/* Bodies of requests without a signature. */
static void test_anonymous_bodies(void **state)
{
    assert_int_equal(check("PUT /b/k HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: "
                           "STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n\r\n"),
                     S3_OK);
    assert_int_equal(claim.body, SIGV4_BODY_CHUNKS);
    assert_int_equal(check("PUT /b/k HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\r\n"),
                     S3_OK);
    assert_int_equal(claim.body, SIGV4_BODY_PLAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),        cmocka_unit_test(test_presigned),
        cmocka_unit_test(test_our_client),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_anonymous_bodies),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
