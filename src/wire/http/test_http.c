/* SPDX-License-Identifier: Apache-2.0 */
/* Heads in pieces of every size, bodies of every framing, and what could be read in two ways. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "wire/http/http.h"

static const char ok_head[] =
    "HTTP/1.1 206 Partial Content\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nX-Empty:\r\n"
    "ETag:   \"abc\"  \r\ncontent-range: bytes 5-9/100\r\nContent-Length: 5\r\n\r\n";

static int head(struct http_reader *r, bool response, const char *text, const char *method,
                struct leat_error *err)
{
    response ? http_reader_init_response(r, 0) : http_reader_init_request(r, 0);
    return http_head_feed(r, text, strlen(text), method, err);
}

static void test_head_in_pieces(void **state)
{
    size_t len = sizeof(ok_head) - 1;
    for (size_t step = 1; step <= len; step++) {
        struct http_reader r;
        http_reader_init_response(&r, 0);
        /* The buffer moves between calls, as one that grows does. */
        for (size_t have = step;; have += step) {
            char *buf = malloc(MIN(have, len) + 5);
            memcpy(buf, ok_head, MIN(have, len));
            memcpy(buf + MIN(have, len), "12345", 5);
            int rc = http_head_feed(&r, buf, MIN(have, len) + (have >= len ? 5 : 0), "GET", NULL);
            if (have < len) {
                assert_int_equal(rc, 0);
                free(buf);
                continue;
            }
            assert_int_equal(rc, 1);
            assert_int_equal(r.status, 206);
            assert_int_equal(r.body, HTTP_BODY_LENGTH);
            assert_int_equal(r.body_bytes, 5);
            assert_int_equal(r.head_bytes, len);
            assert_true(r.keep_alive);
            assert_int_equal(r.nheaders, 5);
            assert_true(http_text_is(http_header(&r, buf, "etag"), "\"abc\""));
            struct http_text empty = http_header(&r, buf, "x-empty");
            assert_int_equal(empty.len, 0);
            assert_null(http_header(&r, buf, "x-none").data);
            free(buf);
            break;
        }
    }
}

/* The target's host stands in the place of Host's, unless it is the same: then Host is what a client has signed. */
static void test_absolute_targets(void **state)
{
    static const struct {
        const char *target, *host, *path,
            *ret_host; /* path NULL: it stays whole, and is refused where that matters */
    } cases[] = {
        {"http://a.example/b/k?x=http://c/", "a.example", "/b/k?x=http://c/", "a.example"},
        {"http://a.example/k", "b.example", "/k", "a.example"},
        {"http://a.example/k", "", "/k", "a.example"},
        {"HTTP://A.Example:80/k", "a.example", "/k", "a.example"},
        {"https://a.example/k", "a.example:443", "/k", "a.example:443"},
        {"https://a.example:80/k", "a.example", "/k", "a.example:80"},
        {"http://a.example:443/k", "a.example", "/k", "a.example:443"},
        {"http://[::1]:9000/k", "[::1]:9000", "/k", "[::1]:9000"},
        {"http://a.example", "b", "/", "a.example"},
        {"https://a.example", "b", "/", "a.example"},
        {"http://a.example?x=/k", "b", "/?x=/k", "a.example"},
        {"https://a.example?", "a.example:443", "/?", "a.example:443"},
        {"http://a.example#/k", "b", NULL, "b"},
        {"http://?x", "b", NULL, "b"},
        {"http:///k", "b", NULL, "b"},
        {"http://", "b", NULL, "b"},
        {"ftp://a.example/k", "b", NULL, "b"},
        {"/http://a.example/k", "b", "/http://a.example/k", "b"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[256];
        int len = snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nX: http://c/\r\nHost: %s\r\n\r\n",
                           cases[i].target, cases[i].host);
        struct http_reader r;
        http_reader_init_request(&r, 0);
        int rc = 0;
        for (int have = 1; rc == 0 && have <= len; have++)
            rc = http_head_feed(&r, text, (size_t)have, NULL, NULL);
        if (rc < 0 && !cases[i].path)
            continue; /* llhttp has refused it */
        assert_int_equal(rc, 1);
        http_target_root(&r, text);
        assert_true(http_text_is(http_target(&r, text), cases[i].path ? cases[i].path : cases[i].target));
        assert_true(http_text_is(http_header(&r, text, "host"), cases[i].ret_host));
        assert_true(http_text_is(http_header(&r, text, "x"), "http://c/"));
        assert_int_equal(r.absolute, cases[i].path && cases[i].target[0] != '/');
    }
}

struct collected {
    char text[256];
    size_t len;
    int fail;
};

static int collect(void *user, const void *data, size_t len)
{
    struct collected *c = user;
    assert_true(c->len + len < sizeof(c->text));
    memcpy(c->text + c->len, data, len);
    c->len += len;
    return c->fail;
}

static void test_chunked(void **state)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Sum: 1\r\n\r\nHTTP/1.1 204";
    for (size_t step = 1; step < 40; step++) {
        struct http_reader r;
        struct collected c = {.len = 0};
        assert_int_equal(head(&r, true, text, "GET", NULL), 1);
        assert_int_equal(r.body, HTTP_BODY_CHUNKED);
        size_t at = r.head_bytes, used;
        while (!r.ended) {
            assert_int_equal(
                http_body_feed(&r, text + at, MIN(step, sizeof(text) - 1 - at), collect, &c, &used, NULL), 0);
            at += used;
        }
        assert_int_equal(c.len, 11);
        assert_memory_equal(c.text, "hello world", 11);
        assert_string_equal(text + at, "HTTP/1.1 204");
        assert_int_equal(http_body_feed(&r, text + at, 3, collect, &c, &used, NULL), 0);
        assert_int_equal(used, 0);
    }
    struct http_reader r;
    struct collected c = {.fail = -ECANCELED};
    size_t used;
    assert_int_equal(head(&r, true, text, "GET", NULL), 1);
    assert_int_equal(http_body_feed(&r, text + r.head_bytes, 20, collect, &c, &used, NULL), -ECANCELED);
    assert_int_equal(head(&r, true, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", NULL), 1);
    assert_int_equal(http_body_feed(&r, "zz\r\n", 4, collect, &c, &used, NULL), LEAT_CORRUPT);
}

static void test_framing(void **state)
{
    static const struct {
        const char *text, *method; /* method NULL: a request */
        int rc;
        enum http_body body;
        bool keep_alive;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD", 1, HTTP_BODY_NONE, true},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "GET", 1, HTTP_BODY_NONE, true},
        {"HTTP/1.1 204 No Content\r\n\r\n", "GET", 1, HTTP_BODY_NONE, true},
        {"HTTP/1.1 200 OK\r\n\r\n", "GET", 1, HTTP_BODY_UNTIL_CLOSE, false},
        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "GET", 1, HTTP_BODY_LENGTH,
         false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "GET", 1, HTTP_BODY_LENGTH, false},
        {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", "GET", 1, HTTP_BODY_LENGTH,
         true},
        {"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", NULL, 1, HTTP_BODY_NONE, true},
        {"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n", NULL, 1,
         HTTP_BODY_LENGTH, true},
        /* two lengths, two framings, none that ends: what smuggling is made of */
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n", "GET", LEAT_CORRUPT},
        {"HTTP/1.1 200 OK\r\nContent Length: 5\r\n\r\n", "GET", LEAT_CORRUPT},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", NULL,
         LEAT_CORRUPT},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n", NULL, LEAT_CORRUPT},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", NULL, LEAT_CORRUPT},
        {"SSH-2.0-OpenSSH_9.2\r\n", "GET", LEAT_CORRUPT},
        {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", NULL, LEAT_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_reader r;
        struct leat_error err = {0};
        int rc = head(&r, cases[i].method != NULL, cases[i].text, cases[i].method, &err);
        if (rc != cases[i].rc)
            fail_msg("%s gave %d (%s)", cases[i].text, rc, err.message);
        if (rc == 1) {
            assert_int_equal(r.body, cases[i].body);
            assert_int_equal(r.keep_alive, cases[i].keep_alive);
        }
    }
    struct http_reader r;
    assert_int_equal(head(&r, false, cases[8].text, NULL, NULL), 1);
    assert_true(r.expects_continue);
    assert_string_equal(r.method, "PUT");
    assert_true(http_text_is(http_target(&r, cases[8].text), "/a"));
}

static void test_limits(void **state)
{
    struct http_reader r;
    struct leat_error err;
    AUTO_FREE char *big = malloc(200 * 1024);
    strcpy(big, "HTTP/1.1 200 OK\r\nX: ");
    memset(big + 20, 'a', 190 * 1024);
    http_reader_init_response(&r, 1000);
    assert_int_equal(http_head_feed(&r, big, 999, "GET", &err), 0);
    assert_int_equal(http_head_feed(&r, big, 190 * 1024, "GET", &err), LEAT_NO_SPACE);
    char *at = big + sprintf(big, "HTTP/1.1 200 OK\r\n");
    for (unsigned i = 0; i <= HTTP_HEADERS_MAX; i++)
        at += sprintf(at, "H%u: v\r\n", i);
    sprintf(at, "\r\n");
    assert_int_equal(head(&r, true, big, "GET", &err), LEAT_NO_SPACE);
}

static void test_values(void **state)
{
    uint64_t a, b, c;
    time_t t;
    char date[HTTP_DATE_BYTES];
#define TEXT(s) ((struct http_text){s, strlen(s)})
    assert_true(http_content_range(TEXT("bytes 0-1023/146515"), &a, &b, &c));
    assert_true(a == 0 && b == 1023 && c == 146515);
    assert_true(http_content_range(TEXT("bytes 7-7/*"), &a, &b, &c) && c == UINT64_MAX);
    assert_false(http_content_range(TEXT("bytes 9-7/100"), &a, &b, &c));
    assert_false(http_content_range(TEXT("bytes 0-100/100"), &a, &b, &c));
    assert_false(http_content_range(TEXT("bytes */100"), &a, &b, &c));
    assert_false(http_content_range(TEXT("bytes 0-9/10 "), &a, &b, &c));
    /* As the C library has it, also before 1970, on leap days and in years past 9999. */
    for (int64_t at = -62000000000; at < 400000000000; at += 86400 * 17 + 12345) {
        char theirs[64];
        struct tm tm;
        t = (time_t)at;
        http_date_format(t, date);
        strftime(theirs, sizeof(theirs), "%a, %d %b ", gmtime_r(&t, &tm));
        snprintf(theirs + 12, sizeof(theirs) - 12, "%04d %02d:%02d:%02d GMT", (tm.tm_year + 1900) % 10000,
                 tm.tm_hour, tm.tm_min, tm.tm_sec);
        assert_string_equal(date, theirs);
    }
    http_date_format(951782400, date);
    assert_string_equal(date, "Tue, 29 Feb 2000 00:00:00 GMT");
    http_date_format(784111777, date);
    assert_string_equal(date, "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_true(http_date_parse(TEXT(date), &t) && t == 784111777);
    assert_false(http_date_parse(TEXT("Sunday, 06-Nov-94 08:49:37 GMT"), &t));
    assert_false(http_date_parse(TEXT("Sun, 06 Nov 1994 08:49:37 CET"), &t));
    assert_true(http_retry_after(TEXT("120"), 0, &a) && a == 120);
    assert_true(http_retry_after(TEXT("Sun, 06 Nov 1994 08:49:37 GMT"), 784111700, &a) && a == 77);
    assert_true(http_retry_after(TEXT("Sun, 06 Nov 1994 08:49:37 GMT"), 784111800, &a) && a == 0);
    assert_false(http_retry_after(TEXT("soon"), 0, &a));
    assert_false(http_text_u64(TEXT("18446744073709551616"), &a));
    assert_true(http_text_u64(TEXT("18446744073709551615"), &a) && a == UINT64_MAX);
    assert_false(http_text_u64(TEXT(""), &a));
}

static void test_escapes(void **state)
{
    struct bytes_out out = {0};
    char all[256], text[800];
    size_t len;
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    http_escape(&out, all, 256, false);
    assert_int_equal(out.len, 66 + 3 * 190);
    memcpy(text, out.data, out.len);
    assert_true(http_unescape(text, out.len, &len));
    assert_int_equal(len, 256);
    assert_memory_equal(text, all, 256);
    bytes_out_reset(&out);
    http_escape(&out, "a/b *(é", 8, true);
    assert_memory_equal(out.data, "a/b%20%2A%28%C3%A9", out.len);
    bytes_out_fini(&out);
    strcpy(text, "%4");
    assert_false(http_unescape(text, 2, &len));
    strcpy(text, "%zz");
    assert_false(http_unescape(text, 3, &len));
    strcpy(text, "%41");
    assert_true(http_unescape(text, 3, &len) && len == 1 && text[0] == 'A');
}

/* Whatever was escaped, and in whatever hex: the form that http_escape gives of the same bytes. */
static void test_escapes_anew(void **state)
{
    static const struct {
        const char *text, *escaped;
        bool slash, plus;
    } cases[] = {
        {"", "", false, false},
        {"/a%62c/%2f%7E~", "/abc//~~", true, false},
        {"/a%62c/%2f%7E~", "%2Fabc%2F%2F~~", false, false},
        {"a+b%2bc d", "a%2Bb%2Bc%20d", false, false},
        {"a+b%2bc d", "a%20b%2Bc%20d", false, true},
        {"%c3%A9\xc3\xa9%00", "%C3%A9%C3%A9%00", false, false},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct bytes_out out = {0};
        http_put(&out, "before:");
        assert_true(
            http_escape_anew(&out, cases[i].text, strlen(cases[i].text), cases[i].slash, cases[i].plus));
        assert_int_equal(out.len, 7 + strlen(cases[i].escaped));
        assert_memory_equal(out.data + 7, cases[i].escaped, out.len - 7);
        bytes_out_fini(&out);
    }
    static const char *const broken[] = {"%", "a%4", "%4g", "%g4", "b%%41"};
    for (unsigned i = 0; i < ARRAY_LEN(broken); i++) {
        struct bytes_out out = {0};
        assert_false(http_escape_anew(&out, broken[i], strlen(broken[i]), true, false));
        bytes_out_fini(&out);
    }
}

static void test_injection(void **state)
{
    struct bytes_out out = {0};
    http_put_header(&out, "x", "a\r\nevil: 1");
    assert_true(out.failed);
    bytes_out_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_in_pieces), cmocka_unit_test(test_absolute_targets),
        cmocka_unit_test(test_chunked),        cmocka_unit_test(test_framing),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_values),
        cmocka_unit_test(test_escapes),        cmocka_unit_test(test_escapes_anew),
        cmocka_unit_test(test_injection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
