/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and numbers: ten thousand idle connections, caps, deadlines, descriptors that run out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/testing.h"
#include "http/server/testing.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SANITIZED true
#else
#    define SANITIZED false
#endif

/* Raises the limit as far as it goes; how many descriptors there may be. */
static unsigned descriptors(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    return (unsigned)MIN((uint64_t)limit.rlim_cur, (uint64_t)1000000);
}

/* False: the connection ended before. */
static bool try_hello(int fd)
{
    char text[512];
    size_t have = 0;
    rig_say(fd, GET("/hello"));
    while (have < 5 || memcmp(text + have - 5, "hello", 5) != 0) {
        ssize_t n = recv(fd, text + have, sizeof(text) - have, 0);
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    return true;
}

static void hello(int fd)
{
    assert_true(try_hello(fd));
}

static void test_idle_connections(void **state)
{
    unsigned n = SANITIZED ? 500 : 10000;
    n = MIN(n, (descriptors() - 200) / 2); /* both ends are ours */
    struct rig rig;
    struct http_server_stats before, after;
    struct http_server_config config = {.idle_ns = 3600 * NS_PER_S};
    AUTO_FREE int *fds = malloc(n * sizeof(*fds));
    rig_start(&rig, &config);
    int warm = rig_connect(&rig);
    hello(warm);
    http_server_stats(rig.server, &before);
    struct mallinfo2 heap = mallinfo2();
    /* Each has asked once, and is still answered at the end. */
    for (unsigned i = 0; i < n; i++) {
        fds[i] = rig_connect(&rig);
        hello(fds[i]);
    }
    struct mallinfo2 heap_after = mallinfo2();
    http_server_stats(rig.server, &after);
    assert_int_equal(after.connections, n + 1);
    assert_int_equal(after.accepted, n + 1);
    uint64_t charged = (after.memory_bytes - before.memory_bytes) / n;
    uint64_t taken = (heap_after.uordblks + heap_after.hblkhd - heap.uordblks - heap.hblkhd) / n;
    print_message("# %u idle connections: %llu bytes each charged, %llu in the heap\n", n,
                  (unsigned long long)charged, (unsigned long long)taken);
    assert_true(charged < KIB);
    if (!SANITIZED)
        assert_true(taken < KIB);
    for (unsigned i = 0; i < n; i += 97)
        hello(fds[i]);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    close(warm);
    rig_stop(&rig);
}

static void test_idle_ends(void **state)
{
    struct rig rig;
    struct http_server_config config = {.idle_ns = 200 * NS_PER_MS};
    rig_start(&rig, &config);
    struct stream never = {.fd = rig_connect(&rig)}, once = {.fd = rig_connect(&rig)};
    while (!try_hello(once.fd)) { /* a machine so busy that its time was over before it could ask */
        stream_fini(&once);
        once = (struct stream){.fd = rig_connect(&rig)};
    }
    assert_true(stream_ended(&once));
    assert_true(stream_ended(&never));
    stream_fini(&once);
    stream_fini(&never);
    rig_stop(&rig);
}

static void test_too_many(void **state)
{
    struct rig rig;
    struct answer a;
    struct http_server_config config = {.connections_max = 10, .reactors = 2, .retry_after_s = 7};
    struct stream streams[10];
    rig_start(&rig, &config);
    for (unsigned i = 0; i < 10; i++) {
        streams[i] = (struct stream){.fd = rig_connect(&rig)};
        hello(streams[i].fd);
    }
    for (unsigned i = 0; i < 20; i++) {
        struct stream s = {.fd = rig_connect(&rig)};
        assert_true(stream_answer(&s, "GET", &a));
        assert_int_equal(a.status, 503);
        assert_non_null(strstr(a.head, "Retry-After: 7\r\n"));
        assert_true(stream_ended(&s));
        answer_fini(&a);
        stream_fini(&s);
    }
    for (unsigned i = 0; i < 10; i++) {
        hello(streams[i].fd);
        stream_fini(&streams[i]);
    }
    struct http_server_stats stats;
    test_wait_until((http_server_stats(rig.server, &stats), !stats.connections));
    assert_int_equal(stats.overload, 20);
    rig_expect(&rig, GET("/hello"), 200, false);
    rig_stop(&rig);
}

/* Requests that hold memory, up to the cap: further requests get 503, and the cap holds. */
static void test_memory_cap(void **state)
{
    enum { N = 60 };
    struct rig rig;
    struct answer a;
    struct http_server_config config = {.memory_bytes = 400 * KIB};
    struct stream held[N];
    unsigned refused = 0;
    rig_start(&rig, &config);
    for (unsigned i = 0; i < N; i++) {
        held[i] = (struct stream){.fd = rig_connect(&rig)};
        rig_say(held[i].fd, GET("/hold"));
    }
    /* Each reached the handler, or got 503. */
    struct http_server_stats stats;
    test_wait_until((http_server_stats(rig.server, &stats), stats.overload + atomic_load(&rig.begun) >= N));
    refused = (unsigned)stats.overload;
    assert_true(refused > 0 && refused < N);
    assert_true(stats.memory_peak_bytes <= config.memory_bytes);
    unsigned told = 0;
    for (unsigned i = 0; i < N; i++) {
        struct pollfd p = {.fd = held[i].fd, .events = POLLIN};
        if (poll(&p, 1, 0) == 1 && stream_answer(&held[i], "GET", &a)) {
            assert_int_equal(a.status, 503);
            assert_non_null(strstr(a.head, "Retry-After: 2\r\n"));
            answer_fini(&a);
            told++;
        }
        stream_fini(&held[i]);
    }
    assert_true(told > 0 && told <= refused);
    rig_await(&rig.over_cancelled, N - refused);
    rig_expect(&rig, GET("/hello"), 200, false);
    /* A copied body that would be too much is refused as a whole. */
    rig_expect(&rig, GET("/text?n=1000000"), 503, false);
    rig_expect(&rig, GET("/text?n=100000"), 200, false);
    rig_stop(&rig);
}

/* No descriptor left: others continue, and later ones are served again. */
static void test_no_descriptor(void **state)
{
    struct rig rig;
    struct rlimit before, few;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    hello(s.fd);
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct stream streams[100];
    unsigned n = 0;
    /* The last descriptor is ours: the server's end of it has none. */
    for (int fd; n < ARRAY_LEN(streams) && (fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0; n++)
        streams[n] = (struct stream){.fd = fd};
    assert_true(n > 0);
    stream_fini(&streams[--n]);
    struct stream unlucky = {.fd = rig_connect(&rig)};
    assert_true(stream_ended(&unlucky)); /* taken and closed */
    hello(s.fd);
    stream_fini(&unlucky);
    while (n)
        stream_fini(&streams[--n]);
    setrlimit(RLIMIT_NOFILE, &before);
    rig_expect(&rig, GET("/hello"), 200, false);
    stream_fini(&s);
    rig_stop(&rig);
}

static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* The spare descriptor is gone too: a waiting connection costs no CPU, and is served when descriptors are
 * free again. */
static void test_nothing_to_accept_with(void **state)
{
    struct rig rig;
    struct rlimit before, none;
    rig_start(&rig, NULL);
    struct stream s = {.fd = rig_connect(&rig)};
    hello(s.fd);
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    assert_int_equal(getpeername(s.fd, (struct sockaddr *)&addr, &len), 0);
    struct stream waits = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(connect(waits.fd, (struct sockaddr *)&addr, len), 0);
    hello(s.fd);
    uint64_t spent = cpu_ns();
    test_pause_us(1000000);
    spent = cpu_ns() - spent;
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(spent < NS_PER_S / 10);
    hello(waits.fd);
    stream_fini(&waits);
    stream_fini(&s);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_connections), cmocka_unit_test(test_idle_ends),
        cmocka_unit_test(test_too_many),         cmocka_unit_test(test_memory_cap),
        cmocka_unit_test(test_no_descriptor),    cmocka_unit_test(test_nothing_to_accept_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
