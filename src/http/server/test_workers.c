/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads: priorities, full queues, an end with work waiting; and each allocation of a server and of its requests failing in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/socket.h>

#include "base/testing.h"
#include "failalloc.h"
#include "http/server/testing.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

struct task {
    struct http_work work;
    _Atomic bool *gate;
    _Atomic unsigned *run, *done, *cancelled;
};

static void task_run(struct http_work *work)
{
    struct task *t = container_of(work, struct task, work);
    test_wait_until(!t->gate || atomic_load(t->gate));
    atomic_fetch_add(t->run, 1);
}

static void task_done(struct http_work *work, struct http_request *req)
{
    struct task *t = container_of(work, struct task, work);
    assert_null(req);
    atomic_fetch_add(work->cancelled ? t->cancelled : t->done, 1);
}

static void test_priorities(void **state)
{
    enum { LONG = 20, SHORT = 50 };
    struct rig rig;
    struct http_workers *workers;
    static struct task tasks[LONG + SHORT];
    _Atomic unsigned run = 0, run_short = 0, done = 0, cancelled = 0;
    _Atomic bool gate = false;
    rig_start(&rig, NULL);
    rig_expect(&rig, GET("/hello"), 200, false);
    rig_await(&rig.over_good, 1);
    struct http_ref nobody =
        rig.last; /* all of it is for a request that is over long ago: done comes all the same */
    assert_int_equal(http_workers_new(4, LONG, &workers, NULL), 0);
    for (unsigned i = 0; i < LONG; i++) {
        tasks[i] = (struct task){{.run = task_run, .done = task_done}, &gate, &run, &done, &cancelled};
        assert_int_equal(http_work_start(workers, nobody, HTTP_PRIORITY_LONG, &tasks[i].work), 0);
    }
    /* Three of four threads are held by what is long; what is short gets by. */
    for (unsigned i = LONG; i < LONG + SHORT; i++) {
        tasks[i] = (struct task){{.run = task_run, .done = task_done}, NULL, &run_short, &done, &cancelled};
        test_wait_until(http_work_start(workers, nobody, HTTP_PRIORITY_SHORT, &tasks[i].work) != -EAGAIN);
    }
    rig_await(&done, SHORT);
    assert_int_equal(atomic_load(&run), 0);
    /* Full. */
    struct task more = tasks[0];
    struct http_workers_stats stats;
    test_wait_until((http_workers_stats(workers, &stats), stats.running >= 3));
    assert_int_equal(stats.queued[HTTP_PRIORITY_LONG], LONG - 3);
    static struct task fill[3];
    for (unsigned i = 0; i < 3; i++) {
        fill[i] = (struct task){{.run = task_run, .done = task_done}, &gate, &run, &done, &cancelled};
        assert_int_equal(http_work_start(workers, nobody, HTTP_PRIORITY_LONG, &fill[i].work), 0);
    }
    assert_int_equal(http_work_start(workers, nobody, HTTP_PRIORITY_LONG, &more.work), -EAGAIN);
    /* The end: running work completes, waiting work is cancelled, and each is notified. */
    atomic_store(&gate, true);
    http_workers_free(workers);
    assert_true(atomic_load(&run) >= 3);
    rig_stop(&rig); /* a reactor runs what was posted before it ends */
    assert_int_equal(atomic_load(&done), atomic_load(&run) + SHORT);
    assert_int_equal(atomic_load(&done) + atomic_load(&cancelled), LONG + SHORT + 3);
}

/* One end may let two begin, of two parties: no idle worker stays asleep. */
static void test_an_end_lets_two_begin(void **state)
{
    enum { X = 1, Y = 2 };
    static const uint64_t parties[] = {X, Y, X, X, Y};
    struct rig rig;
    struct http_workers *workers;
    static struct task tasks[ARRAY_LEN(parties)];
    _Atomic bool gates[ARRAY_LEN(parties)] = {false};
    _Atomic unsigned run = 0, done = 0, cancelled = 0;
    struct http_workers_stats stats;
    rig_start(&rig, NULL);
    rig_expect(&rig, GET("/hello"), 200, false);
    rig_await(&rig.over_good, 1);
    assert_int_equal(http_workers_new(3, 0, &workers, NULL), 0);
    for (unsigned i = 0; i < ARRAY_LEN(parties); i++) {
        tasks[i] = (struct task){
            {.run = task_run, .done = task_done, .party = parties[i]}, &gates[i], &run, &done, &cancelled};
        assert_int_equal(http_work_start(workers, rig.last, HTTP_PRIORITY_LONG, &tasks[i].work), 0);
        /* The first of each at once. */
        test_wait_until((http_workers_stats(workers, &stats), stats.running >= MIN(i + 1, 2u)));
    }
    /* The second of X follows the first; with its end the second of Y may begin, and the third of X. */
    for (unsigned i = 0; i < 3; i += 2) {
        atomic_store(&gates[i], true);
        rig_await(&done, i / 2 + 1);
    }
    atomic_store(&gates[3], true);
    rig_await(&done, 3);
    atomic_store(&gates[1], true);
    atomic_store(&gates[4], true);
    rig_await(&done, ARRAY_LEN(parties));
    http_workers_free(workers);
    rig_stop(&rig);
}

/* --- no memory ----------------------------------------------------------------------------------------------------------- */

static int start_and_stop(void *ctx)
{
    static const struct http_listen listen = {.address = "127.0.0.1:0"};
    struct http_server_config config = {.listen = &listen, .nlisten = 1, .reactors = 2};
    struct http_server *server;
    int rc = http_server_new(&config, &server, NULL);
    if (rc == 0)
        http_server_free(server);
    return rc;
}

static void test_start_without_memory(void **state)
{
    unsigned n = failalloc_run(start_and_stop, NULL);
    assert_true(n > 10);
}

/* The nth allocation fails, in any thread: that request may be lost, or refused; the server continues, and
 * all is over at the end. */
static void test_requests_without_memory(void **state)
{
    static const char *const texts[] = {GET("/hello"), GET("/file"), GET("/mixed"), GET("/flow?n=2&unknown"),
                                        GET("/text?n=20000")};
    struct rig rig;
    unsigned served = 0;
    rig_start(&rig, NULL);
    for (unsigned nth = 1; nth < 12; nth++) {
        for (unsigned t = 0; t < ARRAY_LEN(texts); t++) {
            struct stream s = {.fd = rig_connect(&rig), .buf = malloc(64 * KIB), .cap = 64 * KIB};
            char head[16];
            failalloc_arm(nth);
            rig_say(s.fd, texts[t]);
            ssize_t n = recv(s.fd, head, 12, MSG_WAITALL);
            failalloc_disarm();
            served += n == 12 && memcmp(head, "HTTP/1.1 200", 12) == 0;
            stream_fini(&s);
        }
        rig_expect(&rig, GET("/file"), 200, false);
    }
    assert_true(served > 0);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_an_end_lets_two_begin),
        cmocka_unit_test(test_start_without_memory),
        cmocka_unit_test(test_requests_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
