/* SPDX-License-Identifier: Apache-2.0 */
/* Windows and leases over the protocol, and what they cost: in orders that a good client would not use. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/testing.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool.h"
#include "pool/region/region.h"
#include "daemon/server_internal.h"
#include "pool/set/wset.h"
#include "daemon/testing.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

static void test_lease_outlives_its_set(void **state)
{
    struct host h;
    host_start(&h, 4 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t lease, ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(fetch(fd, ws, ROWS - 8, 8, &lease), 0);
    assert_int_equal(close_set(fd, ws), 0);
    assert_int_equal(drop(fd, h.data, 0), 0);
    release(fd, lease);
    assert_int_equal(wait_for(fd, 99), LEAT_STALE); /* it is still there, and answers */
    close(fd);
    host_stop(&h, true);
}

static void test_failed_range(void **state)
{
    struct host h;
    host_start(&h, 4 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t lease, ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    assert_int_equal(truncate(h.data, 4096), 0);
    for (unsigned k = 0; k < 4; k++)
        assert_int_equal(fetch(fd, ws, ROWS - 8, 8, &lease), LEAT_STALE);
    close(fd);
    host_stop(&h, true);
}

/* Many small ranges through a small window: each finds a place, whatever was there before. */
static void test_window_turns_over(void **state)
{
    struct host h;
    host_start(&h, 4 * MIB);
    host_run(&h);
    int fd = dial(&h);
    uint64_t held, lease, ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(fetch(fd, ws, ROWS - 1, 1, &held), 0);
    for (unsigned k = 0; k < 3 * ROWS / 4; k++) {
        assert_int_equal(fetch(fd, ws, ROWS - 2 - k * 7919 % (ROWS / 4), 1 + k % 3 % 2, &lease), 0);
        release(fd, lease);
    }
    /* A count that no client may make us walk over, and a range past the window. */
    assert_int_equal(fetch(fd, ws, 0, ROWS, &lease), LEAT_NO_SPACE);
    release(fd, held);
    close(fd);
    host_stop(&h, true);
}

static void test_nothing_is_writable(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h), fds[2];
    open_set(fd, PROTO_OPEN, "set", h.data, NULL, fds);
    uint64_t ws = open_set(fd, PROTO_OPEN, "set", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    int more[2];
    ws = open_set(fd, PROTO_APPEND, "set", h.more, NULL, more);
    struct bytes_out body = {0};
    struct net_reply reply;
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 0);
    bytes_put_u32(&body, 4);
    assert_int_equal(ask(fd, PROTO_REGIONS, &body, &reply), 0);
    assert_int_equal(reply.nfds, 4);
    int all[] = {fds[0], fds[1], more[0], more[1], reply.fds[0], reply.fds[1]};
    for (unsigned k = 0; k < ARRAY_LEN(all); k++) {
        struct stat st;
        int seals = fcntl(all[k], F_GET_SEALS);
        assert_int_equal(fstat(all[k], &st), 0);
        bool sealed = seals >= 0 && (seals & F_SEAL_WRITE);
        assert_true(sealed || (st.st_mode & 0077) == 0);
        assert_true(sealed || (fcntl(all[k], F_GETFL) & O_ACCMODE) == O_RDONLY);
    }
    for (unsigned k = 0; k < 4; k++)
        close(all[k]);
    net_reply_fini(&reply);
    close(fd);
    host_stop(&h, true);
}

/* It is in the pool whole: the answer names its regions, and no window is made. */
static void test_fetch_of_what_is_there(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    host_run(&h);
    int fd = dial(&h);
    struct proto_fetched f;
    struct net_reply reply;
    uint64_t ws = open_set(fd, PROTO_OPEN, "", h.data, NULL, NULL);
    assert_int_equal(wait_for(fd, ws), 0);
    uint64_t used = atomic_load(&h.pool->budget.used_bytes);
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, 2);
    bytes_put_u64(&body, 1);
    bytes_put_u64(&body, 1);
    bytes_put_u64(&body, 2 * MIB / ROW_BYTES - 2);
    bytes_put_u64(&body, 4); /* across the end of a region */
    assert_int_equal(ask(fd, PROTO_FETCH, &body, &reply), 0);
    assert_int_equal(proto_fetched_get(reply.body.data, reply.body.len, &f), 0);
    net_reply_fini(&reply);
    assert_int_equal(f.nruns, 3);
    assert_int_equal(f.runs[0].gid, 0);
    assert_int_equal(f.runs[0].bytes, ROW_BYTES);
    assert_int_equal(f.runs[0].offset, f.runs[0].address);
    assert_int_equal(f.runs[2].gid, 1);
    assert_int_equal(f.runs[2].offset, 0);
    assert_int_equal(f.runs[1].bytes + f.runs[2].bytes, 4 * ROW_BYTES);
    proto_fetched_fini(&f);
    uint64_t lease;
    assert_int_equal(fetch(fd, ws, ROWS, 1, &lease), LEAT_INVALID);
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes), used);
    close(fd);
    host_stop(&h, true);
}

static void *let_go_later(void *arg)
{
    test_pause_us(50000);
    wset_unref(arg);
    return NULL;
}

/* A set that makes room may still be in use by a thread: the next one waits, and is not streamed. */
static void test_room_that_comes_back_late(void **state)
{
    struct host h;
    pthread_t reader;
    host_start(&h, 12 * MIB);
    struct answer a = open_as(&h, 1000, 0, "", h.data);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.ws->streamed_samples, 0);
    wset_ref(a.ws);
    assert_int_equal(pthread_create(&reader, NULL, let_go_later, a.ws), 0);
    struct answer b = open_as(&h, 1000, 0, "", h.more);
    pthread_join(reader, NULL);
    assert_int_equal(b.code, 0);
    assert_int_equal(b.ws->flags & PROTO_WS_STREAMED, 0);
    assert_int_equal(atomic_load(&h.pool->evictions), 1);
    /* The thread that releases last gives its room back. Then b is answered, and nothing more is leaving. */
    test_wait_until(!atomic_load(&h.pool->leaving_bytes));
    host_stop(&h, false);
}

/* Tables are paid for like samples, and so is the window's bookkeeping. */
static void test_tables_are_charged(void **state)
{
    struct host h;
    host_start(&h, 64 * MIB);
    struct answer a = open_as(&h, 1000, 0, "", h.data);
    assert_int_equal(a.code, 0);
    uint64_t tables = atomic_load(&h.pool->table_bytes);
    assert_true(tables >= live_bytes(ROWS, 1) + ROWS);
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes), a.ws->pool_bytes + tables);
    host_stop(&h, false);

    host_start(&h, 4 * MIB);
    a = open_as(&h, 1000, 0, "", h.data);
    assert_int_equal(a.code, 0);
    assert_true(a.ws->flags & PROTO_WS_STREAMED);
    assert_true(atomic_load(&h.pool->table_bytes) > tables + a.ws->window_bytes / 32);
    assert_true(atomic_load(&h.pool->budget.used_bytes) <= 4 * MIB);
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes),
                     a.ws->pool_bytes + atomic_load(&h.pool->table_bytes));
    host_stop(&h, false);
}

/* A window that cannot be had costs nothing, however often it is asked for. */
static void test_window_that_fails(void **state)
{
    struct host h;
    struct leat_error err;
    struct stream_window *staging;
    struct rlimit had, none = {0};
    host_start(&h, 64 * MIB);
    struct answer a = open_as(&h, geteuid(), 0, "", h.data);
    assert_int_equal(a.code, 0);
    pool_lease(a.ws); /* or it is what gives way */
    test_run_until(wset_complete(a.ws), loop_turn(h.loop, 1));
    uint64_t used = atomic_load(&h.pool->budget.used_bytes), tables = atomic_load(&h.pool->table_bytes);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    none.rlim_max = had.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0); /* no file for its memory */
    for (unsigned k = 0; k < 3; k++)
        assert_true(pool_stream_window(h.pool, a.ws, &staging, &err) < 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    assert_non_null(strstr(err.message, "no room for a window"));
    assert_int_equal(atomic_load(&h.pool->budget.used_bytes), used);
    assert_int_equal(atomic_load(&h.pool->table_bytes), tables);
    assert_int_equal(pool_stream_window(h.pool, a.ws, &staging, &err), 0);
    pool_unlease(a.ws);
    host_stop(&h, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease_outlives_its_set), cmocka_unit_test(test_failed_range),
        cmocka_unit_test(test_window_turns_over),      cmocka_unit_test(test_nothing_is_writable),
        cmocka_unit_test(test_fetch_of_what_is_there), cmocka_unit_test(test_room_that_comes_back_late),
        cmocka_unit_test(test_tables_are_charged),     cmocka_unit_test(test_window_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
