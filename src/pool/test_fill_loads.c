/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of samples from a server that follows a script: one at a time or many, that fail alone, are dropped, wait for no other one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>

#include "http/client/testing.h"
#include "base/testing.h"
#include "pool/fill/fill.h"
#include "pool/pool.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"
#include "pool/fill/testing.h"

/* Sample i of a set, by a load of its own. */
struct one_load {
    struct fill_load load;
    unsigned i;
    _Atomic unsigned times; /* it was done */
    int status;
    char message[200];
};

static void one_done(struct fill_load *load, int status, const char *message)
{
    struct one_load *one = container_of(load, struct one_load, load);
    one->status = status;
    snprintf(one->message, sizeof(one->message), "%s", message);
    atomic_fetch_add(&one->times, 1);
}

static struct one_load *loads_start(struct fill *fill, struct wset *ws, unsigned n)
{
    struct one_load *loads = calloc(n, sizeof(*loads));
    for (unsigned i = 0; i < n; i++) {
        struct index_part part = {0};
        assert_true(index_part(&ws->index, i, 0, &part));
        loads[i].i = i;
        loads[i].load = (struct fill_load){.ws = ws,
                                           .address = part.address,
                                           .bytes = part.bytes,
                                           .dst = calloc(1, part.bytes),
                                           .done = one_done};
        fill_load(fill, &loads[i].load);
    }
    return loads;
}

static void loads_wait(const struct one_load *loads, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        test_wait_until(atomic_load(&loads[i].times));
    }
}

/* Each was done once, with this status; 0: and has its bytes. */
static void loads_end(struct one_load *loads, unsigned n, int status)
{
    loads_wait(loads, n);
    test_pause_us(2000); /* a second call would come soon */
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(loads[i].times, 1);
        if (loads[i].status != status)
            fail_msg("load %u: %d, %s", i, loads[i].status, loads[i].message);
        if (status == 0)
            testing_check_bytes(loads[i].load.dst, loads[i].i, 0, loads[i].load.bytes);
        free(loads[i].load.dst);
    }
    free(loads);
}

static uint64_t middling(unsigned i)
{
    return 40000 + 17 * i;
}
static uint64_t long_ones(unsigned i)
{
    return i % 3 ? 700000 + i : 90 + i;
}

/* One thread has many under way: this server answers none before many are asked for. */
static void test_loads_at_a_time(void **state)
{
    enum { N = 60 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(N, middling), 4 * MIB);
    script.gather = N / 8; /* a connection has eight at most, of which this server sees the first */
    loads_end(loads_start(fill, ws, N), N, 0);
    assert_int_equal(script.requests, N);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* More than there is room for at a time, by several threads; a load of many objects; passing errors. */
static void test_loads_many(void **state)
{
    enum { N = 160 }; /* 75 MB, and a thread has 64 MiB under way */
    begin();
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        struct fill *fill = fill_of(threads, 0);
        struct wset *ws = testing_wset(index_here(N, long_ones), 4 * MIB);
        uint64_t end = ws->index.header->address_end;
        struct one_load all = {.load = {.ws = ws, .bytes = end, .dst = calloc(1, end), .done = one_done}};
        script.busy = 5;
        script.half = 7;
        struct one_load *loads = loads_start(fill, ws, N);
        fill_load(fill, &all.load);
        loads_end(loads, N, 0);
        loads_wait(&all, 1);
        assert_int_equal(all.status, 0);
        for (unsigned i = 0; i < N; i++) {
            struct index_part part = {0};
            assert_true(index_part(&ws->index, i, 0, &part));
            testing_check_bytes(all.load.dst + part.address, i, 0, part.bytes);
        }
        free(all.load.dst);
        assert_int_equal(atomic_load(&ws->refs), 1);
        wset_unref(ws);
        fill_free(fill);
    }
    web_stop(&server);
}

/* What is wrong with one is not wrong with its neighbours. */
static void test_loads_fail_alone(void **state)
{
    enum { N = 40 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(N, middling), 4 * MIB);
    script.changed = 7;
    struct one_load *loads = loads_start(fill, ws, N);
    loads_wait(loads, N);
    assert_int_equal(loads[7].status, LEAT_STALE);
    assert_non_null(strstr(loads[7].message, "o-7-"));
    loads[7].status = 0;
    memset(loads[7].load.dst, 0, loads[7].load.bytes);
    testing_bytes(7, 0, loads[7].load.dst, loads[7].load.bytes);
    loads_end(loads, N, 0);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* Dropped by force while some are under way and others wait, and those of another set behind them: these come. */
static void test_loads_dropped(void **state)
{
    enum { N = 30, LATER = 5 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(N, large), 16 * MIB);
    struct wset *other = testing_wset(index_here(LATER, middling), 4 * MIB);
    script.stall = true;
    struct one_load *loads = loads_start(fill, ws, N), *later;
    wait_stalled();
    later = loads_start(fill, other, LATER);
    script.stall = false;
    wset_move(ws, WSET_REVOKED);
    fill_cancel(fill, ws);
    loads_end(loads, N, -ECANCELED);
    loads_end(later, LATER, 0);
    assert_int_equal(atomic_load(&ws->refs), 1);
    wset_unref(other);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

static struct wset *dropping;

/* The first write to the live table of a set that is being dropped: by then what was woken has gone back to its wait. */
static void write_late(int signal, siginfo_t *info, void *context)
{
    test_pause_us(200 * 1000);
    mprotect(dropping->live, 4096, PROT_READ | PROT_WRITE);
}

/* The pool drops a set by force: a load that waits for a silent server ends, however slow the drop is. */
static void test_load_dropped_slowly(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip(); /* a fault ends the program there */
#endif
    begin();
    script.stall = true;
    struct pool pool = {.fill = fill_of(1, 0)};
    struct wset *ws = wset_ref(testing_wset(index_here(1, large), 16 * MIB));
    list_init(&pool.sets);
    list_push_back(&pool.sets, &ws->node);
    struct one_load *load = loads_start(pool.fill, ws, 1);
    wait_stalled();
    struct sigaction late = {.sa_sigaction = write_late, .sa_flags = SA_SIGINFO}, before;
    dropping = ws;
    assert_int_equal(sigaction(SIGSEGV, &late, &before), 0);
    assert_int_equal(mprotect(ws->live, 4096, PROT_READ), 0);
    pool_drop(&pool, ws, POOL_DROP_FORCE);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    test_wait_until(load->times);
    loads_end(load, 1, -ECANCELED);
    wset_unref(ws);
    fill_free(pool.fill);
    web_stop(&server);
}

/* The daemon ends: each load ends once. */
static void test_loads_stopped(void **state)
{
    enum { N = 30 };
    begin();
    struct fill *fill = fill_of(2, 0);
    struct wset *ws = testing_wset(index_here(N, large), 16 * MIB);
    script.stall = true;
    struct one_load *loads = loads_start(fill, ws, N);
    wait_stalled();
    fill_stop(fill);
    loads_end(loads, N, -ECANCELED);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

static sem_t held, let_go;

static void hold(struct fill_load *load, int status, const char *message)
{
    sem_post(&held);
    sem_wait(&let_go);
}

/* A thread that waits for a silent server has as much in flight as it may while other threads are idle. It
 * was to be woken for the next load while all others were busy: one that is idle by now takes it. */
static void test_loads_left_to_idle_threads(void **state)
{
    enum { N = 4 };
    begin();
    sem_init(&held, 0, 0);
    sem_init(&let_go, 0, 0);
    struct fill *fill = fill_of(2, 0);
    struct wset *ws = testing_wset(index_here(N, large), 32 * MIB);
    struct wset *other = testing_wset(index_here(N, middling), 4 * MIB);
    struct fill_load busy = {.ws = other, .dst = malloc(1), .done = hold};
    fill_load(fill, &busy);
    sem_wait(&held);
    script.stall = true;
    struct one_load *silent = loads_start(fill, ws, 2);
    test_wait_until(script.stalled >= 2);
    test_pause_us(50000); /* until it waits */
    sem_post(&let_go);
    test_pause_us(50000); /* until the other one is idle */
    script.stall = false;
    struct one_load *next = loads_start(fill, ws, 1);
    test_wait_until(next->times);
    assert_int_equal(next->times, 1);
    loads_end(next, 1, 0);
    fill_stop(fill);
    loads_end(silent, 2, -ECANCELED);
    wset_unref(other);
    wset_unref(ws);
    fill_free(fill);
    free(busy.dst);
    web_stop(&server);
}

/* As above, with a load of another set in front of the next one: once another thread has taken that, the next one is looked at. */
static void test_load_behind_another_set(void **state)
{
    begin();
    sem_init(&held, 0, 0);
    sem_init(&let_go, 0, 0);
    struct fill *fill = fill_of(2, 0);
    struct wset *ws = testing_wset(index_here(2, large), 32 * MIB);
    struct wset *other = testing_wset(index_here(1, middling), 4 * MIB);
    struct fill_load busy = {.ws = other, .dst = malloc(1), .done = hold}, front = busy;
    fill_load(fill, &busy);
    sem_wait(&held);
    script.stall = true;
    struct one_load *silent = loads_start(fill, ws, 1);
    wait_stalled();
    test_pause_us(50000); /* until it waits */
    fill_load(fill, &front);
    struct one_load next = {.load = {.ws = ws, .dst = busy.dst, .done = one_done}}; /* of no bytes */
    fill_load(fill, &next.load);
    test_pause_us(50000); /* until it has looked */
    sem_post(&let_go);
    sem_wait(&held);
    test_wait_until(next.times);
    assert_int_equal(next.times, 1);
    sem_post(&let_go);
    assert_int_equal(next.status, 0);
    fill_stop(fill);
    loads_end(silent, 1, -ECANCELED);
    wset_unref(other);
    wset_unref(ws);
    fill_free(fill);
    free(busy.dst);
    web_stop(&server);
}

/* An extent of the mapped index moves past the end of what is loaded: the load fails, as its bytes do not come. */
static void test_loads_of_changed_index(void **state)
{
    enum { N = 5 };
    begin();
    struct fill *fill = fill_of(1, 0);
    int fd = index_here(N, middling);
    struct wset *ws = testing_wset(fd, 4 * MIB);
    struct index_extent e = ws->index.extents[2];
    off_t at = (off_t)(ws->index.header->sections[INDEX_EXTENTS].offset + 2 * sizeof(e));
    e.address = UINT64_MAX - 4095;
    assert_int_equal(pwrite(fd, &e, sizeof(e), at), sizeof(e));
    struct one_load *loads = loads_start(fill, ws, N);
    loads_wait(loads, N);
    assert_int_equal(loads[2].status, LEAT_CORRUPT);
    for (unsigned i = 0; i < N; i++)
        free(loads[i].load.dst);
    free(loads);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* One thread, two sets whose loads alternate: neither waits for the other without end. */
static void test_loads_of_two_sets(void **state)
{
    enum { N = 20 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws[2] = {testing_wset(index_here(N, middling), 4 * MIB),
                          testing_wset(index_here(N, tiny), 4 * MIB)};
    for (unsigned times = 0; times < 10; times++) {
        struct one_load *first = loads_start(fill, ws[0], N), *second = loads_start(fill, ws[1], N),
                        *third = loads_start(fill, ws[0], N);
        loads_end(first, N, 0);
        loads_end(second, N, 0);
        loads_end(third, N, 0);
    }
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(atomic_load(&ws[k]->refs), 1);
        wset_unref(ws[k]);
    }
    fill_free(fill);
    web_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads_at_a_time),         cmocka_unit_test(test_loads_many),
        cmocka_unit_test(test_loads_fail_alone),        cmocka_unit_test(test_loads_dropped),
        cmocka_unit_test(test_load_dropped_slowly),     cmocka_unit_test(test_loads_stopped),
        cmocka_unit_test(test_loads_of_two_sets),       cmocka_unit_test(test_loads_left_to_idle_threads),
        cmocka_unit_test(test_load_behind_another_set), cmocka_unit_test(test_loads_of_changed_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
