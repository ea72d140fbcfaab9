/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of every kind, to readers of every speed: files, files that shrink, instalments, chunks, and those that break off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/socket.h>

#include "base/clock.h"
#include "http/server/testing.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

static void check_file(const struct answer *a, uint64_t bytes)
{
    assert_int_equal(a->status, 200);
    assert_false(a->cut);
    assert_int_equal(a->body_len, bytes);
    for (uint64_t i = 0; i < bytes; i++) {
        if (a->body[i] != (char)('a' + i % 23))
            fail_msg("byte %llu of the file", (unsigned long long)i);
    }
}

static void get(struct stream *s, const char *text, struct answer *ret_answer)
{
    rig_say(s->fd, text);
    assert_true(stream_answer(s, "GET", ret_answer));
}

static void test_file(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned i = 0; i < 5; i++) {
        get(&s, GET("/file"), &a);
        check_file(&a, rig.file_bytes);
        answer_fini(&a);
    }
    stream_fini(&s);
    rig_stop(&rig);
}

/* The socket is full again and again; a reader with a window of a few KiB. */
static void test_slow_reader(void **state)
{
    static const char *const paths[] = {GET("/file"), GET("/text?n=1000000"), GET("/flow?n=60"),
                                        GET("/flow?n=60&unknown")};
    static const size_t lengths[] = {1000000, 1000000, 600000, 600000};
    struct rig rig;
    rig_start(&rig, NULL);
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        struct stream s = {.fd = rig_connect_narrow(&rig, 4096)};
        struct answer a;
        char *text = malloc(1100000);
        size_t got = 0;
        rig_say(s.fd, paths[i]);
        shutdown(s.fd, SHUT_WR); /* half-closed: it is answered all the same */
        for (ssize_t n; (n = recv(s.fd, text + got, MIN((size_t)3001, 1100000 - got), 0)) > 0;)
            got += (size_t)n;
        s.buf = text;
        s.have = s.cap = got;
        s.end = true;
        assert_true(stream_answer(&s, "GET", &a));
        assert_false(a.cut);
        assert_int_equal(a.body_len, lengths[i]);
        assert_int_equal(a.chunked, i == 3);
        if (i == 0)
            check_file(&a, rig.file_bytes);
        answer_fini(&a);
        stream_fini(&s);
    }
    rig_stop(&rig);
}

/* It becomes shorter than what was promised, before or while it is sent: the peer sees that bytes are missing. */
static void test_file_shrinks(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    assert_int_equal(ftruncate(rig.file, 500001), 0);
    get(&s, GET("/file"), &a);
    assert_int_equal(a.length, 1000000);
    assert_true(a.cut);
    assert_int_equal(a.body_len, 500001);
    assert_true(stream_ended(&s));
    answer_fini(&a);
    stream_fini(&s);
    rig_await(&rig.over_corrupt, 1);

    rig.file_bytes = 400000000; /* more than any socket takes */
    assert_int_equal(ftruncate(rig.file, 400000000), 0);
    s = (struct stream){.fd = rig_connect(&rig)};
    rig_say(s.fd, GET("/file"));
    char byte;
    assert_int_equal(recv(s.fd, &byte, 1, MSG_PEEK), 1); /* it is on its way */
    assert_int_equal(ftruncate(rig.file, 10), 0);
    assert_true(stream_answer(&s, "GET", &a));
    assert_true(a.cut);
    assert_true(a.body_len < rig.file_bytes);
    answer_fini(&a);
    stream_fini(&s);
    rig_await(&rig.over_corrupt, 2);
    rig_stop(&rig);
}

static void test_instalments(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned i = 0; i < 3; i++) {
        get(&s, GET("/flow?n=100"), &a);
        assert_int_equal(a.length, 1000000);
        assert_int_equal(a.body_len, 1000000);
        answer_fini(&a);
        get(&s, GET("/flow?n=7&unknown"), &a);
        assert_true(a.chunked);
        assert_false(a.has_length);
        assert_int_equal(a.body_len, 70000);
        assert_true(a.keep_alive);
        answer_fini(&a);
    }
    stream_fini(&s);
    rig_stop(&rig);
}

static void test_broken_off(void **state)
{
    struct rig rig;
    struct answer a;
    rig_start(&rig, NULL);
    static const char *const paths[] = {GET("/flow?n=5&failing"), GET("/flow?n=5&failing&unknown"),
                                        GET("/flow?n=5&short")};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        struct stream s = {.fd = rig_connect(&rig)};
        get(&s, paths[i], &a);
        assert_int_equal(a.status, 200);
        assert_true(a.cut);
        assert_true(stream_ended(&s));
        answer_fini(&a);
        stream_fini(&s);
    }
    assert_int_equal(atomic_load(&rig.over_cancelled), 3);
    rig_stop(&rig);
}

/* A peer that takes nothing is closed; one that takes little by little is not. */
static void test_reader_stops(void **state)
{
    struct rig rig;
    static const int small = 4096;
    struct http_server_config config = {.slow_ns = 300 * NS_PER_MS, .slow_bytes = 1};
    rig_start(&rig, &config);
    assert_int_equal(ftruncate(rig.file, 400000000), 0);
    rig.file_bytes = 400000000;
    struct stream s = {.fd = rig_connect(&rig)};
    setsockopt(s.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    rig_say(s.fd, GET("/file"));
    rig_await(&rig.over_gone, 1);
    struct http_server_stats stats;
    http_server_stats(rig.server, &stats);
    assert_int_equal(stats.timeouts, 1);
    stream_fini(&s);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),         cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_file_shrinks), cmocka_unit_test(test_instalments),
        cmocka_unit_test(test_broken_off),   cmocka_unit_test(test_reader_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
