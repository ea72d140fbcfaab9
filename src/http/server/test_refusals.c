/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another parser on the way could read differently is refused with 400, and nothing behind it is read as a request: "GET /smuggled"
 * stands behind each. And what is too large, or not to be met.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/socket.h>

#include "http/server/testing.h"

#define H         "Host: x\r\n"
#define SMUGGLED  "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
#define CHUNKED   "Transfer-Encoding: chunked\r\n"
#define POST      "POST /echo HTTP/1.1\r\n" H
#define POST_LATE "POST /into?size=4096 HTTP/1.1\r\n" H

static const struct {
    const char *name, *text;
    int status;
} vectors[] = {
    {"length and coding", POST "Content-Length: 5\r\n" CHUNKED "\r\n0\r\n\r\n" SMUGGLED, 400},
    {"coding and length", POST CHUNKED "Content-Length: 5\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"two lengths", POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345" SMUGGLED, 400},
    {"two equal lengths", POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n12345" SMUGGLED, 400},
    {"a list of lengths", POST "Content-Length: 5, 5\r\n\r\n12345" SMUGGLED, 400},
    {"a negative length", POST "Content-Length: -5\r\n\r\n12345" SMUGGLED, 400},
    {"a length with a sign", POST "Content-Length: +5\r\n\r\n12345" SMUGGLED, 400},
    {"a hexadecimal length", POST "Content-Length: 0x5\r\n\r\n12345" SMUGGLED, 400},
    {"a length past 64 bits", POST "Content-Length: 18446744073709551621\r\n\r\n12345" SMUGGLED, 400},
    {"an empty length", POST "Content-Length:\r\n\r\n12345" SMUGGLED, 400},
    {"a length with a space inside", POST "Content-Length: 1 2\r\n\r\n12345" SMUGGLED, 400},
    {"a space before the colon", POST "Content-Length : 5\r\n\r\n12345" SMUGGLED, 400},
    {"a space before the name", POST " Content-Length: 5\r\n\r\n12345" SMUGGLED, 400},
    {"a space before the first name", "POST /echo HTTP/1.1\r\n Content-Length: 5\r\n" H "\r\n12345" SMUGGLED,
     400},
    {"another coding", POST "Transfer-Encoding: gzip\r\n\r\n" SMUGGLED, 400},
    {"no coding at all", POST "Transfer-Encoding:\r\n\r\n" SMUGGLED, 400},
    {"chunked, then another", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"another, then chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"chunked twice", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"two codings", POST CHUNKED CHUNKED "\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a coding that is nearly chunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a quoted coding", POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a vertical tab in a coding", POST "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a coding in HTTP/1.0", "POST /echo HTTP/1.0\r\n" CHUNKED "\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a folded header", POST "X-A: a\r\n b\r\n\r\n" SMUGGLED, 400},
    {"a folded coding", POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400},
    {"folded with a tab", POST "X-A: a\r\n\tb\r\n\r\n" SMUGGLED, 400},
    {"bare LF after a header", POST "X-A: a\nContent-Length: 5\r\n\r\n12345" SMUGGLED, 400},
    {"bare LF after the request line", "GET /hello HTTP/1.1\n" H "\r\n" SMUGGLED, 400},
    {"bare LF at the end", "GET /hello HTTP/1.1\r\n" H "\n" SMUGGLED, 400},
    {"bare CR inside a value", POST "X-A: a\rContent-Length: 5\r\n\r\n12345" SMUGGLED, 400},
    {"bare CR for an end", POST "X-A: a\r\rContent-Length: 5\r\n\r\n12345" SMUGGLED, 400},
    {"CR CR LF", POST "X-A: a\r\r\n\r\n" SMUGGLED, 400},
    {"a header without colon", POST "X-A\r\n\r\n" SMUGGLED, 400},
    {"a header without name", POST ": a\r\n\r\n" SMUGGLED, 400},
    {"a name with a space", POST "X A: a\r\n\r\n" SMUGGLED, 400},
    {"a control character in a value",
     POST "X-A: a\x01"
          "b\r\n\r\n" SMUGGLED,
     400},
    {"no Host", "GET /hello HTTP/1.1\r\n\r\n" SMUGGLED, 400},
    {"two Hosts", "GET /hello HTTP/1.1\r\n" H H "\r\n" SMUGGLED, 400},
    {"a Host with a path", "GET /hello HTTP/1.1\r\nHost: x/y\r\n\r\n" SMUGGLED, 400},
    {"a Host with a user", "GET /hello HTTP/1.1\r\nHost: a@x\r\n\r\n" SMUGGLED, 400},
    {"a Host with a space", "GET /hello HTTP/1.1\r\nHost: x y\r\n\r\n" SMUGGLED, 400},
    {"a list of Hosts", "GET /hello HTTP/1.1\r\nHost: x, y\r\n\r\n" SMUGGLED, 400},
    {"an absolute target without host", "GET http:///hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"an absolute target with a user", "GET http://a@x/hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"an absolute target with a user and a query alone",
     "GET http://a@x?hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"an absolute target of another scheme", "GET ftp://x/hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"an absolute target and no Host", "GET http://x/hello HTTP/1.0\r\n\r\n" SMUGGLED, 400},
    {"an absolute target and two Hosts", "GET http://x/hello HTTP/1.1\r\n" H H "\r\n" SMUGGLED, 400},
    {"CONNECT with an absolute target", "CONNECT http://x/hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"a target that is no path", "GET hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"CONNECT", "CONNECT x:443 HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"CONNECT with a path", "CONNECT / HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"a star for GET", "GET * HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"a fragment", "GET /hello#a HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"a target with a space", "GET /hel lo HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"a target with a tab", "GET /hel\tlo HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"no version", "GET /hello\r\n" H "\r\n" SMUGGLED, 505},
    {"HTTP/2 without asking", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
    {"HTTP/2.0", "GET /hello HTTP/2.0\r\n" H "\r\n" SMUGGLED, 505},
    {"HTTP/1.2", "GET /hello HTTP/1.2\r\n" H "\r\n" SMUGGLED, 400},
    {"an unknown method", "JUMP /hello HTTP/1.1\r\n" H "\r\n" SMUGGLED, 400},
    {"TLS to a plain port", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400},
    {"an expectation", POST "Expect: a-pony\r\nContent-Length: 5\r\n\r\n", 417},
    {"two expectations", POST "Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
     417},
    /* In the body: the request is the handler's already, and still the answer is 400. */
    {"a chunk without size", POST CHUNKED "\r\n\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a chunk of letters", POST CHUNKED "\r\nxyz\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a negative chunk", POST CHUNKED "\r\n-3\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a chunk past 64 bits", POST CHUNKED "\r\n10000000000000003\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a chunk with a sign", POST CHUNKED "\r\n+3\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a chunk with a space before its size", POST CHUNKED "\r\n 3\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a chunk with 0x", POST CHUNKED "\r\n0x3\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"a chunk longer than its size", POST CHUNKED "\r\n3\r\nabcd\r\n0\r\n\r\n" SMUGGLED, 400},
    {"bare LF after a chunk's size", POST CHUNKED "\r\n3\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"bare LF after a chunk", POST_LATE CHUNKED "\r\n3\r\nabc\n0\r\n\r\n" SMUGGLED, 400},
    {"bare LF after the last chunk", POST_LATE CHUNKED "\r\n3\r\nabc\r\n0\n\r\n" SMUGGLED, 400},
    {"bare CR after a chunk's size", POST CHUNKED "\r\n3\rabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"LF in a chunk's extension", POST CHUNKED "\r\n3;a=b\nc\r\nabc\r\n0\r\n\r\n" SMUGGLED, 400},
    {"bare LF in a trailer", POST_LATE CHUNKED "\r\n3\r\nabc\r\n0\r\nX: y\n\r\n" SMUGGLED, 400},
};

static void test_vectors(void **state)
{
    struct rig rig;
    unsigned bad = 0;
    rig_start(&rig, NULL);
    for (unsigned i = 0; i < ARRAY_LEN(vectors); i++) {
        struct stream s = {.fd = rig_connect(&rig)};
        struct answer a = {0};
        rig_say(s.fd, vectors[i].text);
        shutdown(s.fd, SHUT_WR); /* what waits for more must not wait for ever */
        bool any = stream_answer(&s, "GET", &a);
        if (!any || a.status != vectors[i].status || a.keep_alive || !stream_ended(&s)) {
            print_error("%s: %d, %s\n", vectors[i].name, a.status, a.keep_alive ? "kept" : "closed");
            bad++;
        }
        answer_fini(&a);
        stream_fini(&s);
    }
    assert_int_equal(bad, 0);
    rig_stop(&rig);
}

/* In the middle of a pipeline: what stood before it is answered, then it is, and nothing behind it is begun. */
static void test_vectors_in_a_pipeline(void **state)
{
    struct rig rig;
    unsigned bad = 0;
    rig_start(&rig, NULL);
    for (unsigned i = 0; i < ARRAY_LEN(vectors); i++) {
        struct stream s = {.fd = rig_connect(&rig)};
        struct answer first, second = {0};
        rig_say(s.fd, "GET /hello HTTP/1.1\r\n" H "\r\n");
        rig_say(s.fd, vectors[i].text);
        shutdown(s.fd, SHUT_WR);
        assert_true(stream_answer(&s, "GET", &first));
        bool any = stream_answer(&s, "GET", &second);
        if (first.status != 200 || !any || second.status != vectors[i].status || second.keep_alive ||
            !stream_ended(&s)) {
            print_error("%s: %d, %d\n", vectors[i].name, first.status, second.status);
            bad++;
        }
        answer_fini(&first);
        answer_fini(&second);
        stream_fini(&s);
    }
    assert_int_equal(bad, 0);
    rig_stop(&rig);
}

/* After a refused Expect the connection ends, so that the body cannot be read as a request. */
static void test_refused_expectation(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    rig_say(s.fd, "POST /refuse HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 38\r\n\r\n");
    assert_true(stream_answer(&s, "POST", &a));
    assert_int_equal(a.status, 403);
    assert_false(a.keep_alive);
    answer_fini(&a);
    send(s.fd, SMUGGLED, sizeof(SMUGGLED) - 1, MSG_NOSIGNAL);
    assert_true(stream_ended(&s));
    stream_fini(&s);
    assert_int_equal(atomic_load(&rig.begun), 1);
    rig_stop(&rig);
}

static void test_what_is_fine(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    rig_expect(&rig, "GET /hello?a=%20&b=/?c HTTP/1.1\r\nhOST: x:80\r\n\r\n", 200, false);
    rig_expect(&rig, "GET /hello HTTP/1.1\r\nHost: [::1]:9000\r\n\r\n", 200, false);
    rig_expect(&rig, "GET http://y:80/hello?a=http://z/ HTTP/1.1\r\n" H "\r\n", 200, false);
    rig_expect(&rig, "GET https://x HTTP/1.1\r\n" H "\r\n", 404, false);
    rig_expect(&rig, "\r\nGET /hello HTTP/1.1\r\n" H "X:\r\nY: \t a \t\r\n\r\n", 200, false);
    rig_expect(&rig, "OPTIONS * HTTP/1.1\r\n" H "\r\n", 404, false);
    rig_expect(&rig, "GET /hello HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", 200, false);
    rig_expect(&rig, "GET /hello HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", 200, false);
    rig_expect(&rig, POST CHUNKED "\r\n0000000000003\r\nabc\r\n000\r\n\r\n", 200, false);
    rig_expect(&rig, "POST /echo HTTP/1.1\r\n" H "Content-Length: 0005\r\n\r\n12345", 200, false);
    rig_expect(&rig, POST "Transfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", 200,
               false);
    rig_stop(&rig);
}

/* Answered, and the connection kept, where it is `good`; else 431, and closed. */
static void expect_of_head(struct rig *rig, const char *head, size_t len, bool good)
{
    struct stream s = {.fd = rig_connect(rig)};
    struct answer a;
    rig_send(s.fd, head, len);
    assert_true(stream_answer(&s, "GET", &a));
    assert_int_equal(a.status, good ? 200 : 431);
    assert_int_equal(a.keep_alive, good);
    answer_fini(&a);
    stream_fini(&s);
}

static void test_large_heads(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    AUTO_FREE char *head = malloc(80 * KIB);
    for (size_t value = 1000; value <= 70000; value += 3000) {
        int n = sprintf(head, "GET /hello HTTP/1.1\r\n" H "X-Long: ");
        memset(head + n, 'v', value);
        size_t len = (size_t)n + value;
        len += (size_t)sprintf(head + len, "\r\n\r\n");
        expect_of_head(&rig, head, len, len < 64 * KIB);
    }
    for (unsigned headers = 120; headers < 140; headers++) {
        size_t len = (size_t)sprintf(head, "GET /hello HTTP/1.1\r\n" H);
        for (unsigned i = 1; i < headers; i++)
            len += (size_t)sprintf(head + len, "X-%u: 1\r\n", i);
        len += (size_t)sprintf(head + len, "\r\n");
        expect_of_head(&rig, head, len, headers <= 128);
    }
    rig_stop(&rig);
}

/* Headers without end: answered and closed, whatever more is sent. */
static void test_flood(void **state)
{
    static const char line[] = "X-Flood: 0123456789012345678901234567890123456789\r\n";
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    rig_say(s.fd, "GET /hello HTTP/1.1\r\n" H);
    for (unsigned i = 0; i < 20000; i++)
        rig_say(s.fd, line);
    assert_true(stream_answer(&s, "GET", &a));
    assert_int_equal(a.status, 431);
    answer_fini(&a);
    stream_fini(&s);
    struct http_server_stats stats;
    http_server_stats(rig.server, &stats);
    assert_true(stats.memory_peak_bytes < 256 * KIB);
    rig_stop(&rig);
}

/* Framing that outweighs what it frames. */
static void test_chunk_overhead(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    rig_say(s.fd, POST CHUNKED "\r\n");
    for (unsigned i = 0; i < 10000; i++)
        rig_say(s.fd, "1;extension=0123456789012345678901234567890123456789\r\nx\r\n");
    assert_true(stream_answer(&s, "GET", &a));
    assert_int_equal(a.status, 400);
    answer_fini(&a);
    stream_fini(&s);
    /* One byte a chunk alone is slow, and allowed. */
    s = (struct stream){.fd = rig_connect(&rig)};
    rig_say(s.fd, POST CHUNKED "\r\n");
    for (unsigned i = 0; i < 30000; i++)
        rig_say(s.fd, "1\r\nx\r\n");
    rig_say(s.fd, "0\r\n\r\n");
    assert_true(stream_answer(&s, "GET", &a));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body_len, 30000);
    answer_fini(&a);
    stream_fini(&s);
    assert_int_equal(atomic_load(&rig.over_corrupt), 1);
    rig_stop(&rig);
}

static void say_as_xml(void *user, const struct http_refusal *refusal, struct bytes_out *headers,
                       struct bytes_out *body)
{
    char text[128];
    http_put_header(headers, "Content-Type", "application/xml");
    snprintf(text, sizeof(text), "<Error><Status>%u</Status><Path>%.*s</Path></Error>", refusal->status,
             (int)refusal->target.len, refusal->target.data ? refusal->target.data : "");
    http_put(body, text);
}

static void test_own_words(void **state)
{
    struct rig rig;
    struct answer a;
    struct http_server_config config = {.handler = {.refuse = say_as_xml}};
    rig_start(&rig, &config);
    struct stream s = {.fd = rig_connect(&rig)};
    rig_say(s.fd, "GET /hello HTTP/1.1\r\n" H "Expect: more\r\n\r\n");
    assert_true(stream_answer(&s, "GET", &a));
    assert_int_equal(a.status, 417);
    assert_string_equal(a.body, "<Error><Status>417</Status><Path>/hello</Path></Error>");
    assert_non_null(strstr(a.head, "Content-Type: application/xml\r\n"));
    answer_fini(&a);
    stream_fini(&s);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_vectors_in_a_pipeline),
        cmocka_unit_test(test_refused_expectation),
        cmocka_unit_test(test_what_is_fine),
        cmocka_unit_test(test_large_heads),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_chunk_overhead),
        cmocka_unit_test(test_own_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
