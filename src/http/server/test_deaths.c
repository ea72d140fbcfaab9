/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that leave at every point, workers that answer afterwards, and the calls to a handler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/testing.h"
#include "http/server/testing.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

static void reset(int fd)
{
    static const struct linger now = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* The peer leaves while a worker works: the worker's answer has no receiver, and nothing else happens. */
static void test_worker_answers_the_dead(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    atomic_store(&rig.gated, true);
    for (unsigned i = 0; i < 20; i++) {
        int fd = rig_connect(&rig);
        rig_say(fd, GET("/late"));
        rig_await(&rig.begun, i + 1);
        reset(fd);
        rig_await(&rig.over_gone, i + 1);
    }
    atomic_store(&rig.release, true);
    rig_await(&rig.dead_works, 20);
    assert_int_equal(atomic_load(&rig.works), 0);
    rig_expect(&rig, GET("/late"), 200, false);
    rig_stop(&rig);
}

/* An end without reset: the handler is notified that the peer has left, and it decides. */
static void test_left(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    rig_say(s.fd, GET("/hold"));
    rig_await(&rig.begun, 1);
    shutdown(s.fd, SHUT_WR);
    rig_await(&rig.lefts, 1);
    rig_await(&rig.over_cancelled, 1);
    assert_true(stream_ended(&s));
    stream_fini(&s);
    /* A handler without that callback answers the half-closed peer. */
    atomic_store(&rig.gated, true);
    s = (struct stream){.fd = rig_connect(&rig)};
    rig_say(s.fd, GET("/late"));
    rig_await(&rig.begun, 2);
    shutdown(s.fd, SHUT_WR);
    atomic_store(&rig.release, true);
    struct answer a;
    assert_true(stream_answer(&s, "GET", &a));
    assert_string_equal(a.body, "late");
    answer_fini(&a);
    stream_fini(&s);
    /* A pipeline's next request is not an end. */
    s = (struct stream){.fd = rig_connect(&rig)};
    rig_say(s.fd, GET("/hold"));
    rig_await(&rig.begun, 3);
    rig_say(s.fd, GET("/hello"));
    assert_int_equal(atomic_load(&rig.lefts), 1);
    stream_fini(&s);
    rig_await(&rig.over_cancelled, 2); /* by the end that follows the waiting request */
    rig_stop(&rig);
}

/* After so many bytes sent, and so many received. */
static void test_aborts_everywhere(void **state)
{
    static const char *const texts[] = {
        GET("/hello"),
        GET("/late") GET("/hello"),
        GET("/file"),
        GET("/mixed"),
        GET("/flow?n=50"),
        GET("/flow?n=50&unknown"),
        GET("/text?n=300000"),
        "PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n01234567890123456789",
        "PUT /into?size=7 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
        "chunked\r\n\r\n14\r\n01234567890123456789\r\n0\r\n\r\n",
        "PUT /slow HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
        "20\r\n\r\n01234567890123456789",
        "PUT /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n01234567890123456789",
    };
    struct rig rig;
    rig_start(&rig, NULL);
    for (unsigned t = 0; t < ARRAY_LEN(texts); t++) {
        for (size_t len = 1; len <= strlen(texts[t]); len += 3) {
            int fd = rig_connect(&rig);
            rig_send(fd, texts[t], len);
            (len / 3) % 2 ? reset(fd) : (void)close(fd);
        }
        for (size_t take = 1; take < 400000; take = take * 3 + 1) {
            struct stream s = {.fd = rig_connect(&rig)};
            AUTO_FREE char *sink = malloc(take);
            rig_say(s.fd, texts[t]);
            shutdown(s.fd, SHUT_WR); /* whose answer is shorter ends */
            ssize_t n = recv(s.fd, sink, take, MSG_WAITALL);
            assert_true(n >= 0 || errno == ECONNRESET);
            reset(s.fd);
        }
    }
    rig_expect(&rig, GET("/hello"), 200, false);
    rig_stop(&rig); /* wants each request over, no connection, no memory */
}

/* The server goes while everything is under way. */
static void test_server_goes(void **state)
{
    struct rig rig;
    struct stream streams[8];
    static const char *const texts[] = {GET("/hold"),
                                        GET("/file"),
                                        GET("/flow?n=1000"),
                                        GET("/late"),
                                        "PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n0123",
                                        "PUT /into HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n0123",
                                        "GET /hel",
                                        ""};
    for (unsigned round = 0; round < 5; round++) {
        struct http_server_config config = {.reactors = 2};
        rig_start(&rig, &config);
        atomic_store(&rig.gated, true);
        for (unsigned i = 0; i < 8; i++) {
            streams[i] = (struct stream){.fd = rig_connect(&rig)};
            rig_say(streams[i].fd, texts[i]);
        }
        rig_await(&rig.begun, round); /* at different moments */
        rig_stop(&rig);
        for (unsigned i = 0; i < 8; i++)
            stream_fini(&streams[i]);
    }
}

/* So many epolls of this process become something that cannot be waited for. */
static void break_loops(unsigned n)
{
    AUTO_CLOSE int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    for (struct dirent *e; n > 0 && (e = readdir(d));) {
        char name[64], what[64] = "";
        snprintf(name, sizeof(name), "/proc/self/fd/%.20s", e->d_name);
        if (readlink(name, what, sizeof(what) - 1) <= 0 || strcmp(what, "anon_inode:[eventpoll]") != 0)
            continue;
        assert_true(dup2(other, atoi(e->d_name)) >= 0);
        n--;
    }
    closedir(d);
}

static _Atomic unsigned stopped;

static void *stop_main(void *user)
{
    struct rig *rig = user;
    http_server_stop(rig->server, PATIENCE_NS);
    atomic_fetch_add(&stopped, 1);
    return NULL;
}

/* Its connections end, a worker that is busy for it still finds it, and stopping the server does not wait
 * for ever. */
static void test_a_loop_fails(void **state)
{
    struct rig rig;
    pthread_t thread;
    struct answer a;
    rig_start(&rig, NULL);
    atomic_store(&rig.gated, true);
    struct stream s = {.fd = rig_connect(&rig)}, idle = {.fd = rig_connect(&rig)};
    rig_say(idle.fd, GET("/hello"));
    assert_true(stream_answer(&idle, "GET", &a));
    answer_fini(&a);
    rig_say(s.fd, GET("/late"));
    rig_await(&rig.begun, 2);
    break_loops(UINT32_MAX); /* as each finds out in its next turn */
    assert_true(stream_ended(&s));
    assert_true(stream_ended(&idle));
    assert_int_equal(pthread_create(&thread, NULL, stop_main, &rig), 0);
    rig_await(&stopped, 1);
    pthread_join(thread, NULL);
    stream_fini(&s);
    stream_fini(&idle);
    rig_stop(&rig);
}

/* Others take all that come from then on, though it has the fewest. */
static void test_one_of_two_loops_fails(void **state)
{
    enum { BEFORE = 4, AFTER = 6 };
    struct http_server_config config = {.reactors = 2};
    struct http_server_stats stats;
    struct stream s[BEFORE + AFTER];
    struct answer a;
    struct rig rig;
    rig_start(&rig, &config);
    for (unsigned i = 0; i < BEFORE + AFTER; i++) {
        s[i] = (struct stream){.fd = rig_connect(&rig)};
        rig_say(s[i].fd, GET("/hello"));
        assert_true(stream_answer(&s[i], "GET", &a));
        assert_int_equal(a.status, 200);
        answer_fini(&a);
        if (i + 1 == BEFORE) {
            break_loops(1);
            test_wait_until((http_server_stats(rig.server, &stats), stats.connections != BEFORE));
        }
    }
    for (unsigned i = 0; i < BEFORE + AFTER; i++)
        stream_fini(&s[i]);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_answers_the_dead),
        cmocka_unit_test(test_left),
        cmocka_unit_test(test_aborts_everywhere),
        cmocka_unit_test(test_server_goes),
        cmocka_unit_test(test_a_loop_fails),
        cmocka_unit_test(test_one_of_two_loops_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
