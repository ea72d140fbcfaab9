/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: streamed, into buffers, chunked, held up, refused, cut short, expected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "http/server/testing.h"

#define BYTES 300000u

static char *pattern(size_t len)
{
    char *text = malloc(len);
    for (size_t i = 0; i < len; i++)
        text[i] = (char)('A' + i % 29);
    return text;
}

static void say_length(int fd, const char *path, const char *more, size_t len)
{
    char text[256];
    snprintf(text, sizeof(text), "PUT %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n", path, more,
             len);
    rig_say(fd, text);
}

static void send_chunked(int fd, const char *path, const char *data, size_t len, size_t chunk)
{
    char text[256];
    snprintf(text, sizeof(text), "PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", path);
    rig_say(fd, text);
    for (size_t at = 0; at < len; at += chunk) {
        size_t n = MIN(chunk, len - at);
        snprintf(text, sizeof(text), "%zx\r\n", n);
        rig_say(fd, text);
        rig_send(fd, data + at, n);
        rig_say(fd, "\r\n");
    }
    rig_say(fd, "0\r\n\r\n");
}

static void want_back(struct stream *s, const char *data, size_t len)
{
    struct answer a;
    assert_true(stream_answer(s, "PUT", &a));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body_len, len);
    assert_memory_equal(a.body, data, len);
    assert_true(a.keep_alive);
    answer_fini(&a);
}

static void test_there_and_back(void **state)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 8192, 65536, BYTES};
    static const char *const paths[] = {"/echo", "/into?size=4096", "/into?size=1000000", "/into?size=333"};
    struct rig rig;
    rig_start(&rig, NULL);
    char *data = pattern(BYTES);
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned p = 0; p < ARRAY_LEN(paths); p++) {
        for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
            say_length(s.fd, paths[p], "", sizes[i]);
            rig_send(s.fd, data, sizes[i]);
            want_back(&s, data, sizes[i]);
            send_chunked(s.fd, paths[p], data, sizes[i], 1 + sizes[i] / 7);
            want_back(&s, data, sizes[i]);
        }
    }
    send_chunked(s.fd, "/into?size=4096", data, 5000, 1);
    want_back(&s, data, 5000);
    stream_fini(&s);
    free(data);
    rig_stop(&rig);
}

/* The handler takes its time before it gives the next buffer: the peer is held up, not memory filled. */
static void test_slow(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    char *data = pattern(BYTES), want[16];
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned i = 0; i < 2; i++) {
        if (i == 0) {
            say_length(s.fd, "/slow", "", BYTES);
            rig_send(s.fd, data, BYTES);
        } else {
            send_chunked(s.fd, "/slow", data, BYTES, 70000);
        }
        assert_true(stream_answer(&s, "PUT", &a));
        snprintf(want, sizeof(want), "%u", BYTES);
        assert_string_equal(a.body, want);
        answer_fini(&a);
    }
    stream_fini(&s);
    free(data);
    rig_stop(&rig);
}

static bool sendable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, ms) == 1;
}

/* While the handler gives none, a sender of far more than sockets hold comes to a stop. */
static void test_backpressure(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    atomic_store(&rig.gated, true);
    char *data = pattern(BYTES);
    struct stream s = {.fd = rig_connect(&rig)};
    const size_t all = 400 * MIB;
    size_t sent = 0;
    say_length(s.fd, "/slow", "", all);
    while (sent < all) {
        ssize_t n = send(s.fd, data, MIN((size_t)BYTES, all - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && !sendable(s.fd, 500))
            break;
        sent += n > 0 ? (size_t)n : 0;
    }
    assert_true(sent < all);
    assert_true(atomic_load(&rig.streamed) <= 64 * KIB);
    struct http_server_stats stats;
    http_server_stats(rig.server, &stats);
    assert_true(stats.memory_peak_bytes < 256 * KIB);
    stream_fini(&s);
    free(data);
    rig_stop(&rig);
}

static void test_expectations(void **state)
{
    struct rig rig;
    struct answer a;
    char text[64];
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    say_length(s.fd, "/echo", "Expect: 100-continue\r\n", 5);
    assert_int_equal(recv(s.fd, text, 25, MSG_WAITALL), 25);
    assert_memory_equal(text, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    rig_say(s.fd, "12345");
    want_back(&s, "12345", 5);
    /* Sent without waiting: no need to say it. */
    rig_say(s.fd, "PUT /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n12345");
    want_back(&s, "12345", 5);
    /* Refused: no 100 is sent, and as the body may come or not, the connection ends. */
    say_length(s.fd, "/refuse", "Expect: 100-continue\r\n", 5);
    assert_int_equal(recv(s.fd, text, 12, MSG_WAITALL), 12);
    assert_memory_equal(text, "HTTP/1.1 403", 12);
    stream_fini(&s);
    s = (struct stream){.fd = rig_connect(&rig)};
    say_length(s.fd, "/refuse", "Expect: 100-continue\r\n", 5);
    assert_true(stream_answer(&s, "PUT", &a));
    assert_int_equal(a.status, 403);
    assert_false(a.keep_alive);
    assert_true(stream_ended(&s));
    answer_fini(&a);
    stream_fini(&s);
    rig_stop(&rig);
}

/* A short body is read away; a long one costs the connection, and a peer that continues to send still
 * reads the answer. */
static void test_refused(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    char *data = pattern(BYTES);
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned i = 0; i < 3; i++) {
        say_length(s.fd, "/refuse", "", 200000);
        rig_send(s.fd, data, 200000);
        assert_true(stream_answer(&s, "PUT", &a));
        assert_int_equal(a.status, 403);
        assert_true(a.keep_alive);
        answer_fini(&a);
    }
    say_length(s.fd, "/refuse", "", 20 * MIB);
    for (size_t sent = 0; sent < 20 * MIB; sent += BYTES)
        rig_send(s.fd, data, BYTES);
    assert_true(stream_answer(&s, "PUT", &a));
    assert_int_equal(a.status, 403);
    assert_false(a.keep_alive);
    answer_fini(&a);
    stream_fini(&s);
    free(data);
    rig_stop(&rig);
}

/* Cut at every length: the handler learns of it, and of nothing else. */
static void test_cut_short(void **state)
{
    static const char length[] = "PUT /into?size=16 HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n"
                                 "0123456789012345678901234567890123456789";
    static const char chunks[] =
        "PUT /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "14\r\n01234567890123456789\r\n14;a=b\r\n01234567890123456789\r\n0\r\nX: y\r\n\r\n";
    static const char *const texts[] = {length, chunks};
    struct rig rig;
    rig_start(&rig, NULL);
    unsigned begun = 0;
    for (unsigned t = 0; t < ARRAY_LEN(texts); t++) {
        size_t head = (size_t)(strstr(texts[t], "\r\n\r\n") + 4 - texts[t]);
        for (size_t len = 0; len < strlen(texts[t]); len++) {
            struct stream s = {.fd = rig_connect(&rig)};
            rig_send(s.fd, texts[t], len);
            shutdown(s.fd, SHUT_WR);
            assert_true(stream_ended(&s)); /* no answer */
            stream_fini(&s);
            begun += len >= head;
        }
    }
    rig_await(&rig.over_gone, begun);
    assert_int_equal(atomic_load(&rig.begun), begun);
    assert_int_equal(atomic_load(&rig.over_good), 0);
    rig_stop(&rig);
}

/* Heads and bodies that come too slowly are 408, those that come slowly enough are not hurried. */
static void test_slow_senders(void **state)
{
    static const char *const beginnings[] = {
        "GET /hel", "GET /hello HTTP/1.1\r\nHost: x\r\n",
        "PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n123",
        "PUT /into HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n12"};
    struct rig rig;
    struct http_server_config config = {.head_ns = 300 * NS_PER_MS, .slow_ns = 300 * NS_PER_MS};
    rig_start(&rig, &config);
    for (unsigned i = 0; i < ARRAY_LEN(beginnings); i++) {
        struct stream s = {.fd = rig_connect(&rig)};
        struct answer a;
        rig_say(s.fd, beginnings[i]);
        assert_true(stream_answer(&s, "GET", &a));
        assert_int_equal(a.status, 408);
        assert_false(a.keep_alive);
        assert_true(stream_ended(&s));
        answer_fini(&a);
        stream_fini(&s);
    }
    struct http_server_stats stats;
    http_server_stats(rig.server, &stats);
    assert_int_equal(stats.timeouts, 4);
    assert_int_equal(atomic_load(&rig.over_gone), 2);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_slow),
        cmocka_unit_test(test_backpressure),   cmocka_unit_test(test_expectations),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_slow_senders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
