/* SPDX-License-Identifier: Apache-2.0 */
/* Requests in every arrangement: kept connections, pipelines, heads in pieces, HTTP/1.0, HEAD, two hundred at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/testing.h"
#include "http/server/testing.h"

static void want(struct stream *s, const char *method, int status, const char *body)
{
    struct answer a;
    assert_true(stream_answer(s, method, &a));
    assert_int_equal(a.status, status);
    assert_false(a.cut);
    assert_string_equal(a.body, body);
    answer_fini(&a);
}

static void test_kept(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned i = 0; i < 50; i++) {
        rig_say(s.fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        want(&s, "GET", 200, "hello");
        rig_say(s.fd, "GET /none?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
        want(&s, "GET", 404, "hello");
    }
    rig_say(s.fd, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    want(&s, "GET", 200, "hello");
    assert_true(stream_ended(&s));
    stream_fini(&s);
    struct http_server_stats stats;
    http_server_stats(rig.server, &stats);
    assert_int_equal(stats.accepted, 1);
    assert_int_equal(stats.requests, 101);
    assert_int_equal(stats.answers[2], 51);
    assert_int_equal(stats.answers[4], 50);
    rig_stop(&rig);
}

/* In order, though the second is answered by another thread and the first has a body that no handler
 * reads. */
static void test_pipelined(void **state)
{
    static const char text[] = "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
                               "GET /late HTTP/1.1\r\nHost: x\r\n\r\n"
                               "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                               "chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
                               "\r\nHEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n"
                               "PUT /into?size=3 HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\nabcdefg"
                               "GET /mixed HTTP/1.1\r\nHost: x\r\n\r\n"
                               "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    struct rig rig;
    rig_start(&rig, NULL);
    for (size_t step = 1; step < sizeof(text); step += step < 60 ? 1 : 37) {
        struct stream s = {.fd = rig_connect(&rig)};
        for (size_t at = 0; at < sizeof(text) - 1; at += step)
            rig_send(s.fd, text + at, MIN(step, sizeof(text) - 1 - at));
        want(&s, "POST", 403, "no");
        want(&s, "GET", 200, "late");
        want(&s, "POST", 200, "abcdefg");
        want(&s, "HEAD", 200, "");
        want(&s, "PUT", 200, "abcdefg");
        want(&s, "GET", 200,
             "head-klmnopqrst-tailhead-klmnopqrst-tailhead-klmnopqrst-tailhead-klmnopqrst-tailhead-"
             "klmnopqrst-tail");
        want(&s, "GET", 200, "hello");
        stream_fini(&s);
    }
    rig_stop(&rig);
}

/* A thousand small ones in one piece: fairness ends a turn, not the pipeline. */
static void test_long_pipeline(void **state)
{
    static const char one[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    struct rig rig;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    AUTO_FREE char *many = malloc(1000 * sizeof(one));
    for (unsigned i = 0; i < 1000; i++)
        memcpy(many + i * (sizeof(one) - 1), one, sizeof(one));
    rig_send(s.fd, many, 1000 * (sizeof(one) - 1));
    for (unsigned i = 0; i < 1000; i++)
        want(&s, "GET", 200, "hello");
    stream_fini(&s);
    rig_stop(&rig);
}

static void test_old(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    rig_expect(&rig, "GET /hello HTTP/1.0\r\n\r\n", 200, true);
    rig_expect(&rig, "GET /hello HTTP/1.0\r\nHost: x\r\n\r\n", 200, true);
    rig_expect(&rig, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, false);
    /* Of unknown length: until the end of the connection. */
    struct stream s = {.fd = rig_connect(&rig)};
    struct answer a;
    rig_say(s.fd, "GET /flow?n=3&unknown HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_true(stream_answer(&s, "GET", &a));
    assert_false(a.chunked);
    assert_int_equal(a.body_len, 30000);
    answer_fini(&a);
    stream_fini(&s);
    rig_stop(&rig);
}

static void test_head(void **state)
{
    static const char *const paths[] = {"/hello",        "/file", "/mixed", "/flow?n=3", "/flow?n=3&unknown",
                                        "/text?n=100000"};
    static const uint64_t lengths[] = {5, 1000000, 100, 30000, 0, 100000};
    struct rig rig;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        char text[128];
        struct answer a;
        snprintf(text, sizeof(text), "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[i]);
        rig_say(s.fd, text);
        assert_true(stream_answer(&s, "HEAD", &a));
        assert_int_equal(a.has_length, i != 4);
        assert_int_equal(a.length, lengths[i]);
        assert_int_equal(a.body_len, 0);
        answer_fini(&a);
    }
    rig_say(s.fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    want(&s, "GET", 200, "hello"); /* not a byte of a body stands before it */
    stream_fini(&s);
    rig_stop(&rig);
}

static void test_many_connections(void **state)
{
    enum { N = 200 };
    static struct stream streams[N];
    struct rig rig;
    struct http_server_config config = {.reactors = 3};
    rig_start(&rig, &config);
    for (unsigned i = 0; i < N; i++)
        streams[i] = (struct stream){.fd = rig_connect(&rig)};
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < N; i++)
            rig_say(streams[i].fd, (i + round) % 8 ? "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
                                                   : "GET /file HTTP/1.1\r\nHost: x\r\n\r\n");
        for (unsigned i = 0; i < N; i++) {
            struct answer a;
            assert_true(stream_answer(&streams[i], "GET", &a));
            assert_int_equal(a.body_len, (i + round) % 8 ? 5 : 1000000);
            answer_fini(&a);
        }
    }
    for (unsigned i = 0; i < N; i++)
        stream_fini(&streams[i]);
    rig_stop(&rig);
}

/* Connections with a request may end it; idle ones are closed; no new ones are accepted. */
static void test_graceful_end(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    atomic_store(&rig.gated, true);
    struct stream s = {.fd = rig_connect(&rig)}, idle = {.fd = rig_connect(&rig)};
    rig_say(idle.fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    want(&idle, "GET", 200, "hello");
    rig_say(s.fd, "GET /late HTTP/1.1\r\nHost: x\r\n\r\n");
    rig_await(&rig.begun, 2);
    /* The idle connection's end releases the worker that answers. */
    atomic_store(&rig.release, true);
    http_server_stop(rig.server, PATIENCE_NS);
    want(&s, "GET", 200, "late");
    assert_true(stream_ended(&s));
    assert_true(stream_ended(&idle));
    stream_fini(&s);
    stream_fini(&idle);
    assert_int_equal(atomic_load(&rig.over_good), 2);
    rig_stop(&rig);
}

static void *stop_now(void *user)
{
    struct rig *rig = user;
    http_server_stop(rig->server, PATIENCE_NS);
    return NULL;
}

/* True: the address still accepts. */
static bool is_taken(const struct sockaddr_in *addr)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect(fd, (const struct sockaddr *)addr, sizeof(*addr));
    assert_true(rc == 0 || errno == ECONNREFUSED || errno == ECONNRESET);
    return rc == 0;
}

/* While open requests end, no connection is accepted, not even by the kernel; their answers say that no
 * further request is possible. */
static void test_grace(void **state)
{
    struct rig rig;
    struct answer a;
    struct http_server_config config = {.reactors = 2};
    struct sockaddr_in addr;
    socklen_t len = sizeof(addr);
    pthread_t thread;
    rig_start(&rig, &config);
    atomic_store(&rig.gated, true);
    struct stream late = {.fd = rig_connect(&rig)}, half = {.fd = rig_connect(&rig)};
    assert_int_equal(getpeername(late.fd, (struct sockaddr *)&addr, &len), 0);
    rig_say(late.fd, "GET /late HTTP/1.1\r\nHost: x\r\n\r\n");
    rig_say(half.fd, "GET /hello HTTP/1.1\r\nHo");
    rig_await(&rig.begun, 1);
    struct http_server_stats stats;
    /* The head that is half there is a request under way. */
    test_wait_until((http_server_stats(rig.server, &stats), stats.busy >= 2));
    assert_false(http_server_stopping(rig.server));
    assert_int_equal(pthread_create(&thread, NULL, stop_now, &rig), 0);
    test_wait_until(!is_taken(&addr));
    assert_true(http_server_stopping(rig.server));
    rig_say(half.fd, "st: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(stream_answer(&half, "GET", &a));
    assert_int_equal(a.status, 200);
    assert_false(a.keep_alive);
    answer_fini(&a);
    assert_true(stream_ended(&half)); /* what stood behind it was not begun */
    atomic_store(&rig.release, true);
    assert_true(stream_answer(&late, "GET", &a));
    assert_string_equal(a.body, "late");
    assert_false(a.keep_alive);
    answer_fini(&a);
    assert_true(stream_ended(&late));
    pthread_join(thread, NULL);
    stream_fini(&half);
    stream_fini(&late);
    assert_int_equal(atomic_load(&rig.begun), 2);
    rig_stop(&rig);
}

/* A client that connected and sent a request before the stop is answered, even if no reactor had accepted
 * it yet. */
static void test_backlog_is_heard(void **state)
{
    enum { N = 100 };
    static struct stream streams[N];
    struct rig rig;
    struct answer a;
    pthread_t thread;
    rig_start(&rig, NULL);
    for (unsigned i = 0; i < N; i++) {
        streams[i] = (struct stream){.fd = rig_connect(&rig)};
        rig_say(streams[i].fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    assert_int_equal(pthread_create(&thread, NULL, stop_now, &rig), 0);
    for (unsigned i = 0; i < N; i++) {
        assert_true(stream_answer(&streams[i], "GET", &a));
        assert_int_equal(a.status, 200);
        answer_fini(&a);
        stream_fini(&streams[i]);
    }
    pthread_join(thread, NULL);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_long_pipeline),
        cmocka_unit_test(test_old),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_many_connections),
        cmocka_unit_test(test_graceful_end),
        cmocka_unit_test(test_grace),
        cmocka_unit_test(test_backlog_is_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
