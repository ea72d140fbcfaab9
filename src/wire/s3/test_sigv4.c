/* SPDX-License-Identifier: Apache-2.0 */
/* The examples of the Amazon S3 API reference ("Authenticating Requests"), whose key pair is public. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/http/http.h"
#include "wire/s3/sigv4.h"

#define ACCESS "AKIAIOSFODNN7EXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define WHEN   "20130524T000000Z"
#define HOST                                                                                                 \
    {                                                                                                        \
        "host", "examplebucket.s3.amazonaws.com", 30                                                         \
    }

static struct sigv4_key key;

static int setup(void **state)
{
    return sigv4_key_derive(SECRET, 1369353600, "us-east-1", "s3", &key);
}

static void test_examples(void **state)
{
    static const struct {
        const char *method, *path, *query, *payload;
        struct sigv4_header headers[6];
        unsigned n;
        const char *signature;
    } cases[] = {
        {"GET",
         "/test.txt",
         "",
         SIGV4_EMPTY,
         {HOST,
          {"range", "bytes=0-9", 9},
          {"x-amz-content-sha256", SIGV4_EMPTY, 64},
          {"x-amz-date", WHEN, 16}},
         4,
         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
        {"PUT",
         "/test%24file.text",
         "",
         "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
         {{"date", "Fri, 24 May 2013 00:00:00 GMT", 29},
          HOST,
          {"x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072", 64},
          {"x-amz-date", WHEN, 16},
          {"x-amz-storage-class", "REDUCED_REDUNDANCY", 18}},
         5,
         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
        {"GET",
         "/",
         "lifecycle=",
         SIGV4_EMPTY,
         {HOST, {"x-amz-content-sha256", SIGV4_EMPTY, 64}, {"x-amz-date", WHEN, 16}},
         3,
         "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
        {"GET",
         "/",
         "max-keys=2&prefix=J",
         SIGV4_EMPTY,
         {HOST, {"x-amz-content-sha256", SIGV4_EMPTY, 64}, {"x-amz-date", WHEN, 16}},
         3,
         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char signature[SIGV4_SIGNATURE];
        struct sigv4_request rq = {.method = cases[i].method,
                                   .path = cases[i].path,
                                   .path_len = strlen(cases[i].path),
                                   .query = cases[i].query,
                                   .query_len = strlen(cases[i].query),
                                   .headers = cases[i].headers,
                                   .nheaders = cases[i].n,
                                   .payload = cases[i].payload};
        assert_int_equal(sigv4_sign(&key, &rq, WHEN, signature), 0);
        assert_string_equal(signature, cases[i].signature);
        assert_true(sigv4_equal(signature, cases[i].signature, 64));
        signature[63] ^= 1;
        assert_false(sigv4_equal(signature, cases[i].signature, 64));
    }
}

/* "get-header-value-trim" of AWS's test suite for signatures: several spaces are signed as one. */
static void test_spaces(void **state)
{
    struct sigv4_key of_suite;
    char signature[SIGV4_SIGNATURE];
    static const struct sigv4_header headers[] = {{"host", "example.amazonaws.com", 21},
                                                  {"my-header1", "value1", 6},
                                                  {"my-header2", "\"a   b   c\"", 11},
                                                  {"x-amz-date", "20150830T123600Z", 16}};
    struct sigv4_request rq = {.method = "GET",
                               .path = "/",
                               .path_len = 1,
                               .query = "",
                               .headers = headers,
                               .nheaders = 4,
                               .payload = SIGV4_EMPTY};
    assert_int_equal(sigv4_key_derive("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", 1440938160, "us-east-1",
                                      "service", &of_suite),
                     0);
    assert_int_equal(sigv4_sign(&of_suite, &rq, "20150830T123600Z", signature), 0);
    assert_string_equal(signature, "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
}

static void test_authorization(void **state)
{
    struct bytes_out out = {0};
    struct sigv4_header headers[] = {
        HOST, {"range", "bytes=0-9", 9}, {"x-amz-content-sha256", SIGV4_EMPTY, 64}, {"x-amz-date", WHEN, 16}};
    struct sigv4_request rq = {.method = "GET",
                               .path = "/test.txt",
                               .path_len = 9,
                               .query = "",
                               .headers = headers,
                               .nheaders = 4,
                               .payload = SIGV4_EMPTY};
    assert_int_equal(sigv4_authorization(&out, &key, ACCESS, &rq, WHEN), 0);
    bytes_put(&out, "", 1);
    assert_string_equal(out.data, "AWS4-HMAC-SHA256 Credential=" ACCESS
                                  "/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;range;"
                                  "x-amz-content-sha256;x-amz-date,Signature="
                                  "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    bytes_out_fini(&out);
    struct sigv4_header turned[] = {headers[1], headers[0]};
    rq.headers = turned;
    rq.nheaders = 2;
    char signature[SIGV4_SIGNATURE];
    assert_int_equal(sigv4_sign(&key, &rq, WHEN, signature), LEAT_INVALID);
}

/* The example of a link: its query is signed as it stands, but for the signature. */
static void test_presigned(void **state)
{
    static const char query[] = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" ACCESS
                                "%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
                                "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host";
    struct sigv4_header headers[] = {HOST};
    struct sigv4_request rq = {.method = "GET",
                               .path = "/test.txt",
                               .path_len = 9,
                               .query = query,
                               .query_len = sizeof(query) - 1,
                               .headers = headers,
                               .nheaders = 1,
                               .payload = SIGV4_UNSIGNED};
    char signature[SIGV4_SIGNATURE];
    assert_int_equal(sigv4_sign(&key, &rq, WHEN, signature), 0);
    assert_string_equal(signature, "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

static int sign_chunk(const char *previous, const void *data, size_t len, char ret[SIGV4_SIGNATURE])
{
    char hash[SIGV4_SIGNATURE];
    sigv4_sha256(data, len, hash);
    return sigv4_chunk(&key, WHEN, previous, hash, ret);
}

static void test_chunks(void **state)
{
    struct sigv4_header headers[] = {{"content-encoding", "aws-chunked", 11},
                                     {"content-length", "66824", 5},
                                     {"host", "s3.amazonaws.com", 16},
                                     {"x-amz-content-sha256", SIGV4_STREAMING, sizeof(SIGV4_STREAMING) - 1},
                                     {"x-amz-date", WHEN, 16},
                                     {"x-amz-decoded-content-length", "66560", 5},
                                     {"x-amz-storage-class", "REDUCED_REDUNDANCY", 18}};
    struct sigv4_request rq = {.method = "PUT",
                               .path = "/examplebucket/chunkObject.txt",
                               .path_len = 30,
                               .query = "",
                               .headers = headers,
                               .nheaders = 7,
                               .payload = SIGV4_STREAMING};
    char seed[SIGV4_SIGNATURE], next[SIGV4_SIGNATURE];
    AUTO_FREE char *data = malloc(65536);
    memset(data, 'a', 65536);
    assert_int_equal(sigv4_sign(&key, &rq, WHEN, seed), 0);
    assert_string_equal(seed, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9");
    assert_int_equal(sign_chunk(seed, data, 65536, next), 0);
    assert_string_equal(next, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648");
    assert_int_equal(sign_chunk(next, data, 1024, seed), 0);
    assert_string_equal(seed, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497");
    assert_int_equal(sign_chunk(seed, "", 0, next), 0);
    assert_string_equal(next, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9");
}

static void test_query(void **state)
{
    static const char *cases[][2] = {
        {"", ""},
        {"uploads", "uploads="},
        {"b=2&a=1", "a=1&b=2"},
        {"a=2&a=10&a", "a=&a=10&a=2"},
        {"key=a%2fb&key=a/b", "key=a%2Fb&key=a%2Fb"},
        {"x=*(&y=%7e", "x=%2A%28&y=~"},
        {"aa=1&a=1&&a-=3", "a=1&a-=3&aa=1"},
        {"=", "="},
        {"%41=1", "A=1"},
        {"a=b+c&d=e%2bf", "a=b%20c&d=e%2Bf"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct bytes_out out = {0};
        assert_int_equal(sigv4_query_canonical(&out, cases[i][0], strlen(cases[i][0]), NULL), 0);
        bytes_put(&out, "", 1);
        assert_string_equal(out.data, cases[i][1]);
        bytes_out_fini(&out);
    }
    struct bytes_out out = {0};
    assert_int_equal(sigv4_query_canonical(&out, "a=%4", 4, NULL), LEAT_INVALID);
    assert_int_equal(sigv4_query_canonical(&out, "a=1&X-Amz-Signature=f&b=2", 25, "X-Amz-Signature"), 0);
    assert_memory_equal(out.data, "a=1&b=2", out.len);
    bytes_out_fini(&out);
    char many[3 * SIGV4_QUERY_MAX + 8] = "";
    for (unsigned i = 0; i <= SIGV4_QUERY_MAX; i++)
        strcat(many, "a&");
    assert_int_equal(sigv4_query_canonical(&out, many, strlen(many), NULL), LEAT_INVALID);
}

static void test_refused(void **state)
{
    struct sigv4_key k;
    time_t t;
    char text[SIGV4_TIME];
    assert_int_equal(sigv4_key_derive(SECRET, 0, "us/east", "s3", &k), LEAT_INVALID);
    assert_int_equal(sigv4_key_derive(SECRET, 0, "", "s3", &k), LEAT_INVALID);
    sigv4_time(1369353600, text);
    assert_string_equal(text, WHEN);
    for (time_t at = 0; at < 253402300800; at += 86399 * 13 + 7) { /* as the C library has it */
        char want[SIGV4_TIME];
        struct tm tm;
        gmtime_r(&at, &tm);
        strftime(want, sizeof(want), "%Y%m%dT%H%M%SZ", &tm);
        sigv4_time(at, text);
        assert_string_equal(text, want);
    }
    sigv4_time(253402300799, text);
    assert_string_equal(text, "99991231T235959Z");
    sigv4_time(1369353600, text);
    assert_true(sigv4_time_parse(WHEN, 16, &t) && t == 1369353600);
    assert_false(sigv4_time_parse("20131324T000000Z", 16, &t));
    assert_false(sigv4_time_parse("20130524 000000Z", 16, &t));
    assert_false(sigv4_time_parse("20130524", 8, &t));
    sigv4_key_wipe(&k);
    assert_int_equal(k.key[0] | k.key[31], 0);
}

/* Every day that can be written, also those that a month has not, as the C library counts them. */
static void test_days(void **state)
{
    char text[SIGV4_TIME + 16], again[SIGV4_TIME];
    for (int year = 0; year <= 9999; year += year % 400 < 5 || year > 9990 ? 1 : 37) {
        for (int day = 0; day < 12 * 31; day++) {
            struct tm tm = {
                .tm_year = year - 1900, .tm_mon = day / 31, .tm_mday = day % 31 + 1, .tm_hour = 23};
            time_t t;
            snprintf(text, sizeof(text), "%04d%02d%02dT230000Z", year, tm.tm_mon + 1, tm.tm_mday);
            assert_true(sigv4_time_parse(text, SIGV4_TIME - 1, &t));
            assert_int_equal(t, timegm(&tm));
            sigv4_time(t, again);
            if (t >= 0 && tm.tm_mon == day / 31 && year < 9999)
                assert_string_equal(again, text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),  cmocka_unit_test(test_authorization), cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_presigned), cmocka_unit_test(test_chunks),        cmocka_unit_test(test_query),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_days),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
