/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, request heads, pages of lists in pieces of every size, errors of several stores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "wire/s3/s3.h"
#include "wire/s3/xml.h"

static void test_uris(void **state)
{
    struct s3_uri u;
    struct leat_error err;
    assert_int_equal(s3_uri_parse("s3://bucket/a/b c%20?#", &u, &err), 0);
    assert_string_equal(u.bucket, "bucket");
    assert_string_equal(u.key, "a/b c%20?#");
    assert_int_equal(s3_uri_parse("s3://my.bucket-1", &u, &err), 0);
    assert_string_equal(u.key, "");
    static const char *bad[] = {"s3:/b/k",     "s3://",      "s3:///k",    "s3://.b/k",
                                "s3://a..b/k", "s3://a@b/k", "s3://a b/k", "http://b/k"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(s3_uri_parse(bad[i], &u, &err), LEAT_INVALID);
    char text[S3_KEY_MAX + 20] = "s3://b/";
    memset(text + 7, 'k', S3_KEY_MAX);
    assert_int_equal(s3_uri_parse(text, &u, &err), 0);
    text[7 + S3_KEY_MAX] = 'k';
    assert_int_equal(s3_uri_parse(text, &u, &err), LEAT_INVALID);
}

static void test_endpoints(void **state)
{
    static const struct {
        const char *url, *region, *style, *bucket, *host, *header;
        bool tls;
        int port;
    } cases[] = {
        {NULL, NULL, NULL, "b", "b.s3.us-east-1.amazonaws.com", "b.s3.us-east-1.amazonaws.com", true, 443},
        {"", "cn-north-1", "auto", "b", "b.s3.cn-north-1.amazonaws.com.cn",
         "b.s3.cn-north-1.amazonaws.com.cn", true, 443},
        {NULL, "eu-west-1", "", "a.b", "s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com", true, 443},
        {NULL, "eu-west-1", "path", "b", "s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com", true,
         443},
        {"http://127.0.0.1:9000/", NULL, NULL, "b", "127.0.0.1", "127.0.0.1:9000", false, 9000},
        {"http://minio", NULL, "virtual", "b", "b.minio", "b.minio", false, 80},
        {"HTTPS://[::1]:8443/x", NULL, "virtual", "b", "::1", "[::1]:8443", true, 8443},
        {"https://[::1]", NULL, NULL, "b", "::1", "[::1]", true, 443},
        {"https://s3.us-west-2.amazonaws.com", "us-west-2", NULL, "b", "b.s3.us-west-2.amazonaws.com",
         "b.s3.us-west-2.amazonaws.com", true, 443},
    };
    struct leat_error err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct s3_endpoint e;
        char host[320], header[340];
        assert_int_equal(s3_endpoint_parse(cases[i].url, cases[i].region, cases[i].style, &e, &err), 0);
        s3_endpoint_host(&e, cases[i].bucket, host, header);
        assert_string_equal(host, cases[i].host);
        assert_string_equal(header, cases[i].header);
        assert_int_equal(e.tls, cases[i].tls);
        assert_int_equal(e.port, cases[i].port);
    }
    static const char *bad[] = {"minio:9000",     "ftp://x",       "http://",         "http://a:0",
                                "http://a:70000", "http://a:x",    "http://u:p@host", "http://[::1",
                                "http://[zz]",    "http://[::1]9", "http://a/?q",     "http://a b",
                                "http://a/b c"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct s3_endpoint e;
        assert_int_equal(s3_endpoint_parse(bad[i], NULL, NULL, &e, &err), LEAT_INVALID);
    }
    struct s3_endpoint e;
    assert_int_equal(s3_endpoint_parse(NULL, "eu west", NULL, &e, &err), LEAT_INVALID);
    assert_int_equal(s3_endpoint_parse(NULL, NULL, "dns", &e, &err), LEAT_INVALID);
}

static void test_request(void **state)
{
    /* The reference's GET example again, now as a whole request. */
    struct sigv4_key key;
    struct s3_endpoint e;
    struct bytes_out out = {0};
    sigv4_key_derive("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", 1369353600, "us-east-1", "s3", &key);
    assert_int_equal(s3_endpoint_parse("https://s3.amazonaws.com", NULL, "virtual", &e, NULL), 0);
    struct s3_signer signer = {.access_key = "AKIAIOSFODNN7EXAMPLE", .key = &key};
    struct s3_request rq = {.method = "GET",
                            .bucket = "examplebucket",
                            .key = "test.txt",
                            .key_len = 8,
                            .ranged = true,
                            .first = 0,
                            .last = 9};
    assert_int_equal(s3_request_put(&out, &e, &signer, &rq, 1369353600), 0);
    bytes_put(&out, "", 1);
    assert_string_equal(out.data,
                        "GET /test.txt HTTP/1.1\r\nhost: examplebucket.s3.amazonaws.com\r\nrange: "
                        "bytes=0-9\r\nx-amz-content-sha256: " SIGV4_EMPTY
                        "\r\nx-amz-date: 20130524T000000Z\r\nauthorization: AWS4-HMAC-SHA256 "
                        "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
                        "aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature="
                        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41\r\n\r\n");
    /* Path style, below a base, unsigned, with odd bytes in the key and more headers. */
    bytes_out_reset(&out);
    assert_int_equal(s3_endpoint_parse("http://h:1/base/", NULL, NULL, &e, NULL), 0);
    struct s3_header more[] = {{"x-amz-meta-a", "1"}, {"content-type", "  text/plain "}};
    rq = (struct s3_request){.method = "PUT",
                             .bucket = "b",
                             .key = "a /*\xff",
                             .key_len = 5,
                             .query = "partNumber=1&uploadId=x",
                             .has_body = true,
                             .content_length = 7,
                             .if_match = "\"e\"",
                             .headers = more,
                             .nheaders = 2};
    assert_int_equal(s3_request_put(&out, &e, NULL, &rq, 0), 0);
    bytes_put(&out, "", 1);
    assert_string_equal(out.data, "PUT /base/b/a%20/%2A%FF?partNumber=1&uploadId=x "
                                  "HTTP/1.1\r\ncontent-length: 7\r\ncontent-type: text/plain\r\n"
                                  "host: h:1\r\nif-match: \"e\"\r\nx-amz-meta-a: 1\r\n\r\n");
    more[0].value = "a\r\nb: c";
    assert_int_equal(s3_request_put(&out, &e, NULL, &rq, 0), LEAT_INVALID);
    more[0] = more[1];
    assert_int_equal(s3_request_put(&out, &e, NULL, &rq, 0), LEAT_INVALID);
    bytes_out_fini(&out);
}

static void text_of(const struct s3_list *l, char text[2048])
{
    size_t len = 0;
    text[0] = 0;
    for (size_t i = 0; i < s3_list_count(l); i++) {
        struct s3_object o = s3_list_at(l, i);
        assert_int_equal(o.key_len, strlen(o.key));
        len += (size_t)snprintf(text + len, 2048 - len, "%s|%llu|%s|%lld%s\n", o.key,
                                (unsigned long long)o.bytes, o.etag, (long long)o.modified,
                                o.prefix ? "|prefix" : "");
    }
}

static const char page[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "
    "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
    "<IsTruncated>true</IsTruncated><NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</"
    "NextContinuationToken>"
    "<Contents><Key>a%2Fb+c%2B&amp;</Key><LastModified>2009-10-12T17:50:30.000Z</"
    "LastModified><ETag>&quot;fba9&quot;</ETag>"
    "<Size>434234</Size><Owner><ID>x</ID></Owner></Contents><Contents><Key>z</Key><Size>0</Size></Contents>"
    "<CommonPrefixes><Prefix>p%2F</Prefix></CommonPrefixes><EncodingType>url</EncodingType></"
    "ListBucketResult>";

static void test_list(void **state)
{
    for (size_t step = 1; step < sizeof(page); step += 1 + step / 8) {
        char got[2048];
        struct s3_list *l = s3_list_new();
        for (size_t at = 0; at < sizeof(page) - 1; at += step) {
            size_t n = MIN(step, sizeof(page) - 1 - at);
            assert_int_equal(s3_list_feed(l, page + at, n, at + n == sizeof(page) - 1, NULL), 0);
        }
        text_of(l, got);
        assert_string_equal(got, "a/b c+&|434234|\"fba9\"|1255369830\nz|0||0\np/|0||0|prefix\n");
        assert_string_equal(s3_list_next(l), "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
        s3_list_free(l);
    }
}

static void test_bad_lists(void **state)
{
#define ROOT(x) "<ListBucketResult>" x "</ListBucketResult>"
    static const char *bad[] = {
        "",
        "<html></html>",
        "no xml",
        "<ListBucketResult>",
        ROOT("<Contents><Size>1</Size></Contents>"),
        ROOT("<Contents><Key>a</Key><Size>x</Size></Contents>"),
        ROOT("<IsTruncated>true</IsTruncated>"),
        ROOT("<Contents><Key></Key></Contents>"),
        ROOT("<EncodingType>url</EncodingType><Contents><Key>%00</Key></Contents>"),
        ROOT("<EncodingType>url</EncodingType><Contents><Key>%zz</Key></Contents>"),
        "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>" ROOT("<Name>&b;</Name>"),
        ROOT("<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a></a></a></"
             "a></a></a></a></a></a></a>"),
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct leat_error err = {0};
        struct s3_list *l = s3_list_new();
        int rc = s3_list_feed(l, bad[i], strlen(bad[i]), true, &err);
        if (rc != LEAT_CORRUPT)
            fail_msg("taken: %s", bad[i]);
        assert_true(err.message[0]);
        s3_list_free(l);
    }
    /* a store that does not encode leaves the element out */
    char got[2048];
    static const char raw[] = ROOT("<Contents><Key>a%2F+b</Key><Size>1</Size></Contents>");
    struct s3_list *l = s3_list_new();
    assert_int_equal(s3_list_feed(l, raw, sizeof(raw) - 1, true, NULL), 0);
    text_of(l, got);
    assert_string_equal(got, "a%2F+b|1||0\n");
    assert_null(s3_list_next(l));
    s3_list_free(l);
}

static void test_errors(void **state)
{
    struct s3_error e;
    bool retry;
    static const char text[] =
        "<?xml version=\"1.0\"?><Error><Code>PermanentRedirect</Code><Message>use\nthe \x1b[31m "
        "endpoint</Message>";
    s3_error_parse(
        text, sizeof(text) - 1,
        &e); /* cut short, and with a control that XML does not allow: what was read before stays */
    assert_string_equal(e.code, "PermanentRedirect");
    static const char whole[] =
        "<Error><Code>AuthorizationHeaderMalformed</Code><Message>a\nb</Message><Region>eu-west-1</Region>"
        "<RequestId>R1</RequestId></Error>";
    s3_error_parse(whole, sizeof(whole) - 1, &e);
    assert_string_equal(e.message, "a b");
    assert_string_equal(e.region, "eu-west-1");
    assert_string_equal(e.request_id, "R1");
    s3_error_parse("<html>", 6, &e);
    assert_string_equal(e.code, "");
    assert_int_equal(s3_error_class(404, "NoSuchKey", &retry), LEAT_NOT_FOUND);
    assert_false(retry);
    assert_int_equal(s3_error_class(503, "SlowDown", &retry), LEAT_BUSY);
    assert_true(retry);
    assert_int_equal(s3_error_class(503, "", &retry), LEAT_BUSY);
    assert_true(retry);
    assert_int_equal(s3_error_class(403, "", &retry), LEAT_DENIED);
    assert_false(retry);
    assert_int_equal(s3_error_class(412, "PreconditionFailed", &retry), LEAT_STALE);
    assert_int_equal(s3_error_class(500, "InternalError", &retry), -EIO);
    assert_true(retry);
    assert_int_equal(s3_error_class(418, "Teapot", &retry), -EIO);
    assert_false(retry);
}

static void test_multipart(void **state)
{
    char id[64];
    struct leat_error err;
    static const char text[] =
        "<InitiateMultipartUploadResult "
        "xmlns=\"x\"><Bucket>b</Bucket><UploadId>VXBsb2Fk&amp;</UploadId></InitiateMultipartUploadResult>";
    assert_int_equal(s3_upload_id_parse(text, sizeof(text) - 1, id, sizeof(id), &err), 0);
    assert_string_equal(id, "VXBsb2Fk&");
    assert_int_equal(s3_upload_id_parse(text, sizeof(text) - 1, id, 9, &err), LEAT_CORRUPT);
    assert_int_equal(s3_upload_id_parse("<a/>", 4, id, sizeof(id), &err), LEAT_CORRUPT);
    static const char completed[] =
        "<CompleteMultipartUploadResult xmlns=\"x\"><Key>k</Key><ETag>&quot;ab-2&quot;</ETag></"
        "CompleteMultipartUploadResult>";
    s3_completed_parse(completed, sizeof(completed) - 1, id, sizeof(id));
    assert_string_equal(id, "\"ab-2\"");
    s3_completed_parse(completed, sizeof(completed) - 1, id, 6);
    assert_string_equal(id, "");
    s3_completed_parse("<a/>", 4, id, sizeof(id));
    assert_string_equal(id, "");
    struct bytes_out out = {0};
    char *etags[] = {(char *)"\"a\"", (char *)"<"};
    s3_complete_put(&out, etags, 2);
    bytes_put(&out, "", 1);
    assert_non_null(strstr((char *)out.data, "<Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag></"
                                             "Part><Part><PartNumber>2</PartNumber><ETag>&lt;"));
    bytes_out_fini(&out);
    int64_t t;
    assert_true(s3_time_parse("1970-01-02T00:00:00Z", &t) && t == 86400);
    assert_false(s3_time_parse("1970-01-02 00:00:00", &t));
    assert_false(s3_time_parse("1970-01-02T00:00:00.1", &t));
    assert_false(s3_time_parse("1970-01-02T00:00", &t));
    assert_false(s3_time_parse("1970-13-02T00:00:00Z", &t));
    assert_false(s3_time_parse("-970-01-02T00:00:00Z", &t));
    for (time_t want = 3599; want < 16725225600; want += 86400 / 2 + 61) { /* to the year 2500 */
        struct tm tm;
        char stamp[32];
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S.000Z", gmtime_r(&want, &tm));
        assert_true(s3_time_parse(stamp, &t) && t == want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uris),      cmocka_unit_test(test_endpoints), cmocka_unit_test(test_request),
        cmocka_unit_test(test_list),      cmocka_unit_test(test_bad_lists), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_multipart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
