/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scans without a client: what is handed out through a window that is filled many times, what is asked that may not be, ends at any
 * moment, and one allocation after the other that fails. The server is a process of its own, which nothing fails in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "http/client/testing.h"
#include "base/clock.h"
#include "base/testing.h"
#include "failalloc.h"
#include "loop/loop.h"
#include "pool/source/access.h"
#include "pool/pool.h"
#include "pool/region/region.h"
#include "pool/scan.h"
#include "pool/set/testing.h"

#define OBJECTS      13u
#define PAGE         5u
#define WINDOW_BYTES (64 * KIB)
#define RUNS_MAX     900u /* testing.h's server ends with its thousandth connection */

static uint64_t size_of(unsigned i)
{
    static const uint64_t sizes[] = {0, 1, 20000, 63, 65, 4096, 31000, 64 * KIB, 100};
    return sizes[i % ARRAY_LEN(sizes)];
}

/* --- the server -------------------------------------------------------------------------------------------------------- */

/* In one piece: what comes in two waits for an acknowledgement between them. */
static void say(struct web_peer *p, const char *body, size_t len)
{
    static _Thread_local char text[64 * KIB + 120];
    int n = sprintf(text, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nETag: \"one\"\r\n\r\n", len);
    memcpy(text + n, body, len);
    web_say_bytes(p, text, (size_t)n + len);
}

static void say_page(struct web_peer *p)
{
    char text[4000];
    const char *token = strstr(p->head, "continuation-token="), *after = strstr(p->head, "start-after=");
    unsigned i = token ? (unsigned)atoi(token + 19) : 0, end = MIN(i + PAGE, OBJECTS);
    int n = sprintf(text, "<ListBucketResult>");
    for (; i < end && !after; i++)
        n += sprintf(text + n, "<Contents><Key>set/%04u</Key><Size>%u</Size><ETag>\"one\"</ETag></Contents>",
                     i, (unsigned)size_of(i));
    if (i < OBJECTS && !after)
        n += sprintf(text + n,
                     "<IsTruncated>true</IsTruncated><NextContinuationToken>%u</NextContinuationToken>", i);
    n += sprintf(text + n, "</ListBucketResult>");
    say(p, text, (size_t)n);
}

static void talk(struct web_peer *p)
{
    static _Thread_local char object[64 * KIB];
    char path[256];
    while (web_hear(p, path)) {
        const char *name = strstr(path, "set/");
        if (strstr(path, "list-type=2")) {
            say_page(p);
            continue;
        }
        unsigned i = name ? (unsigned)atoi(name + 4) : 0;
        for (uint64_t k = 0; k < size_of(i); k++)
            object[k] = (char)testing_byte(i, k);
        say(p, object, size_of(i));
    }
}

static pid_t child;
static char url[64];

static int server_begin(void **state)
{
    uint16_t port = 0;
    child = web_fork(talk, &port);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    return 0;
}

static int server_end(void **state)
{
    web_reap(child);
    return 0;
}

/* --- a pool ------------------------------------------------------------------------------------------------------------ */

struct fixture {
    struct loop *loop;
    struct pool *pool;
    struct access *access;
    struct pool_scan *scan;
    unsigned news;
    struct leat_error err;
};

static void advanced(void *user)
{
    struct fixture *x = user;
    x->news++;
}

static void fixture_open(struct fixture *x)
{
    *x = (struct fixture){0};
    struct pool_config pc = {.cap_bytes = 64 * MIB,
                             .region_bytes = 2 * MIB,
                             .pages = {.huge_dir = -1},
                             .fill_threads = 1,
                             .data_threads = 1,
                             .disk_depth = 8,
                             .disk_engine = "worker",
                             .s3.connections = 1};
    struct proto_access m = {
        .flags = PROTO_ACCESS_ANONYMOUS, .endpoint = strdup(url), .region = strdup("us-east-1")};
    assert_int_equal(loop_new(&x->loop), 0);
    assert_int_equal(pool_new(x->loop, &pc, &x->pool, &x->err), 0);
    assert_int_equal(access_new(&m, false, &x->access), 0);
}

static void fixture_close(struct fixture *x)
{
    access_unref(x->access);
    assert_int_equal(pool_stop(x->pool), 0);
    pool_free(x->pool);
    loop_free(x->loop);
}

static int begin(struct fixture *x, uint64_t window_bytes)
{
    struct pool_scan_spec spec = {.uri = "s3://bucket/set",
                                  .after = "",
                                  .window_bytes = window_bytes,
                                  .access = x->access,
                                  .advanced = advanced,
                                  .user = x};
    x->err = (struct leat_error){0};
    x->scan = NULL;
    return pool_scan_new(x->pool, &spec, &x->scan, &x->err);
}

/* Until its thread has gone, too: nothing of it is left. */
static void end(struct fixture *x)
{
    pool_scan_end(x->scan);
    test_run_until(list_empty(&x->pool->scans) && !atomic_load(&x->pool->threads), loop_turn(x->loop, 5));
    assert_int_equal(atomic_load(&x->pool->budget.used_bytes), 0);
    assert_int_equal(atomic_load(&x->pool->scratch_bytes), 0);
}

static void wait_for_news(struct fixture *x)
{
    unsigned before = x->news;
    test_run_until(x->news != before, loop_turn(x->loop, 5));
}

/* As pool_scan_take; waits for what comes. */
static int take(struct fixture *x, uint64_t from, uint64_t released, struct proto_scanned *ret)
{
    int rc;
    test_run_until((rc = pool_scan_take(x->scan, from, released, ret, &x->err)) != 0, wait_for_news(x));
    return rc;
}

static void check(const struct fixture *x, uint64_t number, const struct proto_scan_object *o)
{
    char key[8];
    const struct region *window = pool_scan_window(x->scan);
    snprintf(key, sizeof(key), "%04u", (unsigned)number);
    assert_string_equal(o->key, key);
    assert_string_equal(o->etag, "\"one\"");
    assert_int_equal(o->bytes, size_of((unsigned)number));
    assert_true(o->offset + o->bytes <= window->bytes);
    for (uint64_t k = 0; k < o->bytes; k++)
        assert_true(window->addr[o->offset + k] == testing_byte((uint32_t)number, k));
}

/* All of it, releasing each answer when the next one is asked for. */
static int read_all(struct fixture *x)
{
    struct proto_scanned m;
    uint64_t next = 0, released = 0;
    int rc;
    while ((rc = take(x, next, released, &m)) == 1) {
        for (uint32_t i = 0; i < m.n; i++)
            check(x, next + i, &m.objects[i]);
        released = next += m.n;
        free(m.objects);
        if (m.flags & PROTO_SCANNED_END)
            break;
    }
    assert_true(rc < 0 || next == OBJECTS);
    return rc;
}

/* --- tests ------------------------------------------------------------------------------------------------------------- */

static void test_a_window_that_is_filled_many_times(void **state)
{
    struct fixture x;
    fixture_open(&x);
    for (uint64_t window = WINDOW_BYTES; window <= 16 * WINDOW_BYTES; window += 15 * 4096) {
        assert_int_equal(begin(&x, window), 0);
        if (read_all(&x) != 1)
            fail_msg("%s", x.err.message);
        end(&x);
    }
    fixture_close(&x);
}

/* A client that counts wrongly, or means ill: nothing that was not handed out is released, and nothing that was released comes again. */
static void test_what_may_not_be_asked(void **state)
{
    struct fixture x;
    struct proto_scanned m;
    fixture_open(&x);
    assert_int_equal(begin(&x, WINDOW_BYTES), 0);
    assert_int_equal(take(&x, 0, 0, &m), 1);
    uint64_t n = m.n;
    free(m.objects);
    assert_true(n >= 1);
    assert_int_equal(take(&x, UINT64_MAX, 0, &m), LEAT_INVALID);
    assert_int_equal(take(&x, 0, 1, &m), LEAT_INVALID);
    assert_int_equal(take(&x, UINT64_MAX, UINT64_MAX, &m), LEAT_INVALID);
    assert_int_equal(take(&x, 1, 1, &m), 1);
    free(m.objects);
    assert_int_equal(take(&x, 0, 0, &m), LEAT_INVALID);
    assert_int_equal(take(&x, 1, 0, &m), 1); /* what was released stays so */
    check(&x, 1, &m.objects[0]);
    free(m.objects);
    end(&x);
    static const uint64_t too_large[] = {UINT64_MAX, UINT64_MAX - 4095, 1ull << 63, 64 * MIB};
    for (unsigned i = 0; i < ARRAY_LEN(too_large); i++) {
        assert_int_equal(begin(&x, too_large[i]), LEAT_NO_SPACE);
        assert_non_null(strstr(x.err.message, "window"));
    }
    fixture_close(&x);
}

static void test_ends_at_any_moment(void **state)
{
    struct fixture x;
    struct proto_scanned m;
    fixture_open(&x);
    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(begin(&x, WINDOW_BYTES), 0);
        test_pause_us(i * 97 % 4000);
        if (i % 4 == 1 && take(&x, 0, 0, &m) == 1)
            free(m.objects);
        for (unsigned k = 0; k < i % 3; k++)
            loop_turn(x.loop, 0);
        if (i == 39) { /* without a waiting user: the pool waits */
            pool_scan_end(x.scan);
            break;
        }
        end(&x);
    }
    fixture_close(&x);
}

static void test_allocations_that_fail(void **state)
{
    struct fixture x;
    unsigned refused = 0;
    fixture_open(&x);
    for (unsigned nth = 1; nth < RUNS_MAX; nth++) {
        size_t before = failalloc_live();
        failalloc_arm(nth);
        int rc = begin(&x, WINDOW_BYTES);
        if (rc == 0) {
            rc = read_all(&x);
            end(&x);
        }
        bool over = failalloc_disarm() < nth;
        if (rc != 1 && rc != -ENOMEM)
            fail_msg("allocation %u: %d, %s", nth, rc, x.err.message);
        if (failalloc_live() != before)
            fail_msg("allocation %u: %zu blocks are left", nth, failalloc_live() - before);
        refused += rc == -ENOMEM;
        if (over)
            break;
        assert_true(nth + 1 < RUNS_MAX);
    }
    assert_true(refused > 20);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_window_that_is_filled_many_times, server_begin, server_end),
        cmocka_unit_test_setup_teardown(test_what_may_not_be_asked, server_begin, server_end),
        cmocka_unit_test_setup_teardown(test_ends_at_any_moment, server_begin, server_end),
        cmocka_unit_test_setup_teardown(test_allocations_that_fail, server_begin, server_end),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
