/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation fails in turn: opening a set, making a view, batches, an epoch. The fake daemon's
 * thread allocates too, so it must be idle: regions are mapped before, and the set's handle is one that is
 * not closed at the daemon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <fcntl.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/fake_daemon.h"
#include "failalloc.h"

struct fixture {
    struct fake_daemon *daemon;
    struct leat_client *client;
    struct leat_ws *ws;
};

static int setup(void **state)
{
    static struct fixture x;
    x.daemon = fake_start(&(struct fake_options){0});
    struct leat_client_options o = {.size = sizeof(o), .socket = x.daemon->path};
    assert_int_equal(leat_connect(&o, &x.client, NULL), 0);
    assert_int_equal(leat_open(x.client, "set", NULL, &x.ws, NULL), 0);
    for (uint32_t r = 0; r < x.ws->info.nregions; r++)
        assert_int_equal(ws_map_region(x.ws, r, &(struct client_rpc_how){0}, NULL), 0);
    *state = &x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    leat_close(x->ws);
    leat_disconnect(x->client);
    fake_stop(x->daemon);
    return 0;
}

static int load_and_read(void *arg)
{
    struct fixture *x = arg;
    struct leat_view *view;
    struct leat_batch *batch;
    const uint64_t ids[] = {1, 400 - 1, 77, 77, 200, 201, 202, 9};
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 8, .slots = 3};
    int rc = leat_load(x->ws, &o, &view, NULL);
    for (unsigned i = 0; !rc && i < 4; i++) {
        rc = leat_read_batch(view, ids, 8, 0, &batch, NULL);
        if (!rc)
            leat_batch_release(batch);
        if (rc)
            leat_view_close(view);
    }
    if (!rc)
        leat_view_close(view);
    return rc;
}

static void test_view(void **state)
{
    assert_true(failalloc_run(load_and_read, *state) > 20);
}

/* The steady state allocates nothing at all. */
static void test_hot_path(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view;
    struct leat_batch *batch;
    uint64_t ids[16];
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 16, .slots = 3};
    assert_int_equal(leat_load(x->ws, &o, &view, NULL), 0);
    for (unsigned i = 0; i < 16; i++)
        ids[i] = i * 20 + 1;
    assert_int_equal(leat_read_batch(view, ids, 16, 0, &batch, NULL), 0);
    leat_batch_release(batch);
    failalloc_arm(0);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(leat_read_batch(view, ids, 16, 0, &batch, NULL), 0);
        leat_batch_release(batch);
    }
    assert_int_equal(failalloc_disarm(), 0);
    leat_view_close(view);
}

static int one_epoch(void *arg)
{
    struct fixture *x = arg;
    struct leat_view *view;
    struct leat_iter *it;
    struct leat_view_options o = {.size = sizeof(o), .batch_size = 64, .slots = 3};
    struct leat_iter_options i = {.size = sizeof(i), .block = 8, .keep_tail = 1};
    int rc = leat_load(x->ws, &o, &view, NULL);
    if (rc)
        return rc;
    rc = leat_iterate(view, &i, &it, NULL);
    leat_view_close(view);
    if (rc)
        return rc;
    for (struct leat_batch *batch = NULL;; leat_batch_release(batch)) {
        rc = leat_next(it, 0, &batch, NULL);
        if (rc || !batch)
            break;
    }
    leat_iter_close(it);
    return rc;
}

static void test_epoch(void **state)
{
    failalloc_run(one_epoch, *state);
}

static int open_by_hand(void *arg)
{
    struct fixture *x = arg;
    struct proto_ws info = x->ws->info;
    struct net_reply reply = {.nfds = 2};
    info.ws = 0; /* no handle: nothing is posted when it is closed */
    proto_ws_put(&reply.body, &info);
    if (reply.body.failed) {
        bytes_out_fini(&reply.body);
        return -ENOMEM;
    }
    reply.fds[0] = fcntl(x->daemon->index_fd, F_DUPFD_CLOEXEC, 0);
    reply.fds[1] = fcntl(x->daemon->live_fd, F_DUPFD_CLOEXEC, 0);
    struct leat_ws *ws;
    int rc = ws_new(x->client, &reply, &ws, NULL);
    net_reply_fini(&reply);
    if (rc)
        return rc;
    leat_close(ws);
    return 0;
}

static void test_open(void **state)
{
    assert_true(failalloc_run(open_by_hand, *state) > 5);
}

static int hold_and_read(void *arg)
{
    struct fixture *x = arg;
    struct leat_hold *hold;
    const void *data;
    uint64_t bytes;
    uint8_t buf[6000];
    int rc = leat_hold(x->ws, 3, 0, 0, &hold, &data, &bytes, NULL);
    if (rc)
        return rc;
    leat_hold_release(hold);
    for (uint64_t i = 0; i < 30 && !rc; i++) /* some cross a region: the rails of single reads, made once */
        if (i % 7 != 6)
            rc = leat_read(x->ws, i, 1, buf, sizeof(buf), 0, &bytes, NULL);
    gather_free(x->ws->gather);
    rails_free(x->ws->rails);
    x->ws->gather = NULL;
    x->ws->rails = NULL;
    return rc;
}

static void test_single(void **state)
{
    assert_true(failalloc_run(hold_and_read, *state) > 5);
}

/* Arrays for pieces of other nodes come when the first region leaves: one that is missing still is made with
 * the next part. */
static void test_widened(void **state)
{
    struct fixture *x = *state;
    struct rails *rails;
    struct gather *g;
    struct index_part part;
    uint8_t buf[60];
    const struct client_rpc_how how = {0};
    assert_int_equal(rails_new(x->ws, 0, &(struct transport_set){.shm = true, .tcp = true}, &rails, NULL), 0);
    assert_int_equal(gather_new(rails, 4, 4, &g), 0);
    assert_int_equal(rails_widen(rails, NULL), 0);
    gather_reset(g);
    assert_true(index_part(&x->ws->index, 0, 0, &part));
    for (unsigned at = 1; at <= 4; at++) {
        failalloc_arm(at);
        int rc = gather_add(g, 0, 0, &part, buf, &how, NULL);
        failalloc_disarm();
        assert_int_equal(rc, -ENOMEM);
    }
    assert_int_equal(gather_add(g, 0, 0, &part, buf, &how, NULL), 0);
    gather_free(g);
    rails_free(rails);
}

int main(void)
{
    setenv("LEAT_PIN", "0", 1); /* on a host of several nodes, what is read of them once is kept */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_view), cmocka_unit_test(test_hot_path), cmocka_unit_test(test_epoch),
        cmocka_unit_test(test_open), cmocka_unit_test(test_single),   cmocka_unit_test(test_widened),
    };
    return cmocka_run_group_tests_name("client_alloc", tests, setup, teardown);
}
