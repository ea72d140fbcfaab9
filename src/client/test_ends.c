/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a call: a set that is dropped, a daemon or a node that dies or falls silent, deadlines, interrupts, fork. */
#include "client/test_fixture.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/testing.h"

static struct leat_error err;

static void test_revoked(void **state)
{
    for (int with_event = 0; with_event < 2; with_event++) {
        struct fixture x;
        struct leat_batch *batch;
        const uint64_t ids[] = {10, 11};
        fixture_open(&x, (struct fake_options){0});
        struct leat_view *view = fixture_load(x.ws, 4, 2);
        assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), 0);
        leat_batch_release(batch);
        fake_revoke(x.daemon, with_event);
        assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_STALE);
        leat_view_close(view);
        fixture_close(&x);
    }
}

static void test_daemon_dies(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    struct leat_ws *ws;
    const uint64_t ids[] = {10, 11};
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 2);
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), 0);
    fake_hang_up(x.daemon);
    struct leat_batch *other;
    int rc = 0;
    /* The end of file takes a moment to arrive. */
    test_run_until((rc = leat_read_batch(view, ids, 2, 0, &other, &err)) != 0, leat_batch_release(other));
    assert_int_equal(rc, LEAT_PEER_GONE);
    assert_int_equal(leat_open(x.client, "set", NULL, &ws, &err), LEAT_PEER_GONE);
    struct leat_view *far;
    struct leat_view_options by_tcp = {.size = sizeof(by_tcp), .batch_size = 4, .transport = "tcp"};
    assert_int_equal(leat_load(x.ws, &by_tcp, &far, &err), LEAT_PEER_GONE);
    fixture_check_batch(batch); /* what was read stays */
    leat_batch_release(batch);
    leat_view_close(view);
    leat_close(x.ws);
    leat_disconnect(x.client);
    struct leat_client_options o = {.size = sizeof(o), .socket = x.daemon->path};
    assert_int_equal(leat_connect(&o, &x.client, &err), 0);
    assert_int_equal(leat_open(x.client, "set", NULL, &x.ws, &err), 0);
    fixture_read_all(x.ws);
    fixture_close(&x);
}

/* After so many looks at how far it is. */
static int gives_up(const struct leat_progress *progress, void *user)
{
    assert_int_equal(progress->stage, LEAT_STAGE_LOAD);
    return --*(int *)user == 0;
}

static void wait_for_cancels(const struct fake_daemon *f, unsigned n)
{
    test_wait_until(f->cancels >= n);
    assert_int_equal(f->cancels, n);
}

static void test_deadline(void **state)
{
    struct fixture x;
    uint8_t buf[100];
    uint64_t bytes;
    fixture_open(&x, (struct fake_options){.all_loading = true});
    x.daemon->mute = true;
    assert_int_equal(leat_read(x.ws, 3, 0, buf, sizeof(buf), 50 * NS_PER_MS, &bytes, &err), LEAT_TIMED_OUT);
    wait_for_cancels(x.daemon, 1);
    /* The daemon drops requests without a waiter; else a thousand of them would exhaust its limit. */
    int looks = 100;
    assert_int_equal(leat_ws_wait(x.ws, gives_up, &looks, 50 * NS_PER_MS, &err), LEAT_TIMED_OUT);
    wait_for_cancels(x.daemon, 2);
    looks = 2;
    assert_int_equal(leat_ws_wait(x.ws, gives_up, &looks, 0, &err), LEAT_CANCELED);
    wait_for_cancels(x.daemon, 3);
    x.daemon->mute = false;
    assert_int_equal(leat_read(x.ws, 3, 0, buf, sizeof(buf), 0, &bytes, &err), 0);
    fixture_close(&x);
}

static int count_progress(const struct leat_progress *progress, void *user)
{
    assert_int_equal(progress->samples_total, 2);
    return ++*(int *)user == 30; /* cancels */
}

/* A scan may take longer than a deadline as long as it moves; one that the caller gave stays. */
static void test_slow_open(void **state)
{
    struct fake_daemon *f = fake_start(&(struct fake_options){.slow_open = 20});
    struct leat_client *client;
    struct leat_ws *ws;
    int seen = 0;
    struct leat_client_options o = {.size = sizeof(o), .socket = f->path, .timeout_ns = 400 * NS_PER_MS};
    struct leat_open_options open = {
        .size = sizeof(open), .progress = count_progress, .progress_user = &seen};
    assert_int_equal(leat_connect(&o, &client, &err), 0);
    assert_int_equal(leat_open(client, "set", &open, &ws, &err), 0);
    assert_true(seen > 0);
    leat_close(ws);
    seen = 29;
    assert_int_equal(leat_open(client, "set", &open, &ws, &err), -ECANCELED);
    leat_disconnect(client);
    o.timeout_ns = 0;
    assert_int_equal(leat_connect(&o, &client, &err), 0);
    open.timeout_ns = 100 * NS_PER_MS;
    open.progress = NULL;
    unsigned closes = f->closes;
    assert_int_equal(leat_open(client, "set", &open, &ws, &err), LEAT_TIMED_OUT);
    char *text; /* its answer comes first, and what it opened is closed */
    assert_int_equal(leat_query(client, LEAT_QUERY_STATUS, NULL, &text, &err), 0);
    leat_free(text);
    test_wait_until(f->closes != closes);
    assert_int_equal(f->closes, closes + 1);
    leat_disconnect(client);
    fake_stop(f);
}

static void test_version(void **state)
{
    struct fake_daemon *f = fake_start(&(struct fake_options){.remote_odd = true});
    struct leat_client *client;
    struct leat_client_options o = {.size = sizeof(o), .socket = f->path};
    for (unsigned k = 0; k < 2; k++) {
        f->hello_version = k ? 9 : 1;
        assert_int_equal(leat_connect(&o, &client, &err), LEAT_INVALID);
        assert_non_null(strstr(err.message, k ? "protocol 9" : "protocol 1"));
        assert_non_null(strstr(err.message, leat_version()));
        assert_non_null(strstr(err.message, "speaks 2 to 3: stop it"));
    }
    /* One of the release before speaks version 2 alone: so does the client then. */
    for (unsigned version = PROTO_VERSION_MIN; version <= PROTO_VERSION; version++) {
        f->hello_version = (int)version;
        assert_int_equal(leat_connect(&o, &client, &err), 0);
        assert_int_equal(f->offered.version_min, PROTO_VERSION_MIN);
        assert_int_equal(f->offered.version_max, PROTO_VERSION);
        struct leat_ws *ws;
        uint8_t sample[60];
        uint64_t bytes;
        assert_int_equal(leat_open(client, "set", NULL, &ws, &err), 0);
        assert_int_equal(leat_read(ws, FAKE_SAMPLES - 1, 0, sample, sizeof(sample), 0, &bytes, &err), 0);
        assert_true(fake_matches(FAKE_SAMPLES - 1, 0, sample, bytes));
        assert_int_equal(f->brokers,
                         version - PROTO_VERSION_MIN + 1); /* by a data connection of that version */
        leat_close(ws);
        char *text;
        assert_int_equal(leat_query(client, LEAT_QUERY_STATUS, NULL, &text, &err), 0);
        leat_free(text);
        assert_int_equal(f->heard_version, version);
        leat_disconnect(client);
    }
    fake_stop(f);
}

static void test_nobody(void **state)
{
    struct leat_client *client;
    struct leat_client_options o = {
        .size = sizeof(o), .socket = "/tmp/leat-test-nobody.sock", .flags = LEAT_CONNECT_NO_START};
    assert_int_equal(leat_connect(&o, &client, &err), LEAT_NOT_FOUND);
}

static void test_fork(void **state)
{
    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 2);
    struct leat_batch *batch;
    const uint64_t ids[] = {10, 11};
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), 0);
    int parents_fd = x.client->fd;
    pid_t pid = fork();
    if (pid == 0) {
        struct leat_batch *other;
        struct leat_ws *ws;
        uint8_t buf[100];
        uint64_t bytes;
        int bad = !leat_forked(x.client) || x.client->fd != -1 || /* the daemon sees its parent die */
                  fcntl(parents_fd, F_GETFD) != -1 ||
                  leat_open(x.client, "set", NULL, &ws, &err) != LEAT_INVALID ||
                  leat_read_batch(view, ids, 2, 0, &other, &err) != LEAT_INVALID ||
                  leat_read(x.ws, 1, 0, buf, 100, 0, &bytes, &err) != LEAT_INVALID;
        leat_batch_release(batch); /* all without effect */
        leat_view_close(view);
        leat_close(x.ws);
        leat_disconnect(x.client);
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_false(leat_forked(x.client));
    leat_batch_release(batch);
    leat_view_close(view);
    fixture_read_all(x.ws);
    fixture_close(&x);
}

/* Every wait calls the hook, and ends when the hook returns non-zero, long before its deadline. */
#define HOOK_NEVER (1 << 30) /* on a busy machine a successful wait may call it any number of times */
static _Atomic int hook_left;
static struct leat_ws *hook_ws;

static int hook(void *user)
{
    assert_ptr_equal(user, &hook_left);
    return --hook_left <= 0;
}

static int hook_calls_back(void *user)
{
    struct leat_error e;
    if (leat_read(hook_ws, 1, 0, user, 60, 0, NULL, &e) == LEAT_BUSY)
        hook_left--;
    return hook_left <= 0;
}

static struct leat_iter *hook_it;
static int hook_found;

/* Requests a batch itself, and cancels. */
static int hook_takes_next(void *user)
{
    static bool inside;
    struct leat_batch *batch;
    struct leat_error e;
    if (!inside) {
        inside = true;
        hook_found = leat_next(hook_it, 0, &batch, &e);
        inside = false;
    }
    return 1;
}

static void open_hooked(struct fixture *x, struct fake_options options)
{
    hook_left = HOOK_NEVER;
    x->daemon = fake_start(&options);
    struct leat_client_options o = {.size = sizeof(o),
                                    .socket = x->daemon->path,
                                    .timeout_ns = UINT64_MAX,
                                    .interrupt = hook,
                                    .interrupt_user = &hook_left};
    assert_int_equal(leat_connect(&o, &x->client, &err), 0);
    assert_int_equal(leat_open(x->client, "set", NULL, &x->ws, &err), 0);
}

static void test_interrupt(void **state)
{
    struct fixture x;
    struct leat_ws *ws;
    struct leat_batch *batch, *held[3];
    struct leat_iter *it;
    uint8_t buf[60];
    const uint64_t ids[] = {5, 6};
    char *text;
    open_hooked(&x, (struct fake_options){.all_loading = true});
    struct leat_view *view = fixture_load(x.ws, 4, 3);
    x.daemon->mute = true;
    hook_left = 2;
    assert_int_equal(leat_read(x.ws, 3, 0, buf, sizeof(buf), 0, NULL, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_open(x.client, "set", NULL, &ws, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_ws_wait(x.ws, NULL, NULL, 0, &err), LEAT_CANCELED);
    hook_left = 1;
    assert_int_equal(leat_query(x.client, LEAT_QUERY_STATUS, NULL, &text, &err), LEAT_CANCELED);
    struct leat_iter_options io = {.size = sizeof(io), .block = LEAT_ORDER_SEQUENTIAL};
    hook_left = HOOK_NEVER;
    assert_int_equal(leat_iterate(view, &io, &it, &err), 0);
    hook_left = 1;
    assert_int_equal(leat_next(it, 0, &batch, &err), LEAT_CANCELED);
    leat_iter_close(it);
    x.daemon->mute = false;
    hook_left = HOOK_NEVER;

    /* A slot whose descriptor never becomes readable. */
    int fd = eventfd(0, EFD_CLOEXEC);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_read_batch(view, ids, 2, 0, &held[i], &err), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(leat_batch_release_after(held[i], &FD_EVENT(fd), &err), 0);
    hook_left = 1;
    assert_int_equal(leat_read_batch(view, ids, 2, 0, &batch, &err), LEAT_CANCELED);
    close(fd);
    leat_view_close(view);
    fixture_close(&x);

    /* A node that is silent; and a hook that calls back in. */
    open_hooked(&x, (struct fake_options){.remote_odd = true});
    uint64_t far = FAKE_REGION_BYTES / 60 + 1;
    x.daemon->hold_broker = true;
    hook_left = 1;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), LEAT_CANCELED);
    hook_left = 1;
    hook_ws = x.ws;
    x.client->interrupt = hook_calls_back;
    x.client->interrupt_user = buf;
    hook_left = 0;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), LEAT_CANCELED);
    x.client->interrupt = NULL;
    x.daemon->hold_broker = false;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), 0);
    fixture_close(&x);
}

/* A consumer without read-ahead, which reads by itself, is interrupted like one with it. */
static void test_interrupt_haste(void **state)
{
    enum { STEPS = 8000 };
    static uint64_t ids[STEPS];
    struct fixture x;
    struct leat_batch *batch, *held[3];
    open_hooked(&x, (struct fake_options){0});
    struct leat_view *view = fixture_load(x.ws, 4, 3);
    struct leat_iter_options o = {.size = sizeof(o), .ids = ids, .nids = STEPS};
    assert_int_equal(leat_iterate(view, &o, &hook_it, &err), 0);
    hook_found = 0;
    for (unsigned turn = 0; turn < 10 && hook_found != LEAT_BUSY;
         turn++) { /* how fast this thread runs is not certain */
        x.client->interrupt = NULL;
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(leat_next(hook_it, 0, &batch, &err), 0);
            leat_batch_release(batch);
        }
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(leat_next(hook_it, 0, &held[i], &err), 0);
        int fd = eventfd(0, EFD_CLOEXEC);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(leat_batch_release_after(held[i], &FD_EVENT(fd), &err), 0);
        x.client->interrupt = hook_takes_next;
        assert_int_equal(leat_next(hook_it, 10 * NS_PER_S, &batch, &err), LEAT_CANCELED);
        assert_int_equal(write(fd, &(uint64_t){1}, 8), 8);
        close(fd);
    }
    assert_int_equal(hook_found, LEAT_BUSY);
    x.client->interrupt = NULL;
    leat_iter_close(hook_it);
    leat_view_close(view);
    fixture_close(&x);
}

/* Another thread that is at it for long does not move our deadline. */
static void *read_for_long(void *arg)
{
    struct fixture *x = arg;
    uint8_t buf[60];
    struct leat_error e;
    return (void *)(intptr_t)leat_read(x->ws, FAKE_REGION_BYTES / 60 + 1, 0, buf, 60, 0, NULL, &e);
}

static void test_fairq(void **state)
{
    struct fixture x;
    pthread_t thread;
    uint8_t buf[60];
    void *rc;
    open_hooked(&x, (struct fake_options){.remote_odd = true});
    x.daemon->hold_broker = true;
    assert_int_equal(pthread_create(&thread, NULL, read_for_long, &x), 0);
    test_wait_until(x.daemon->brokers);
    test_pause_us(20000);
    assert_int_equal(leat_read(x.ws, FAKE_REGION_BYTES / 60 + 2, 0, buf, 60, 50 * NS_PER_MS, NULL, &err),
                     LEAT_TIMED_OUT);
    hook_left = 0;
    pthread_join(thread, &rc);
    assert_int_equal((int)(intptr_t)rc, LEAT_CANCELED);
    fixture_close(&x);
}

/* --- other nodes --------------------------------------------------------------------------------------------------------------- */

/* The connection breaks in the middle: brokered again, once; then the samples come from their source. */
static void test_node_dies(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint64_t ids[32];
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    struct leat_view *view = fixture_load(x.ws, 32, 2);
    for (unsigned i = 0; i < 32; i++)
        ids[i] = i * 12;
    x.daemon->broker_fails = 1;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    fixture_check_batch(batch);
    leat_batch_release(batch);
    assert_int_equal(x.daemon->brokers, 2);
    assert_int_equal(x.daemon->fetches, 0);
    fake_node_hangs_up(x.daemon);
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    fixture_check_batch(batch);
    leat_batch_release(batch);
    assert_int_equal(x.daemon->fetches, 0);
    fake_node_hangs_up(x.daemon);
    x.daemon->broker_fails = 100;
    int rc = leat_read_batch(view, ids, 32, 0, &batch, &err);
    if (rc)
        print_message("%s\n", err.message);
    assert_int_equal(rc, 0);
    fixture_check_batch(batch);
    leat_batch_release(batch);
    assert_true(x.daemon->fetches > 0);
    leat_view_close(view);
    fixture_close(&x);

    fixture_open(&x, (struct fake_options){.remote_odd = true, .pushed = true});
    view = fixture_load(x.ws, 32, 2);
    x.daemon->broker_fails = 100;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), LEAT_PEER_GONE);
    assert_non_null(strstr(err.message, "other:1"));
    leat_view_close(view);
    fixture_close(&x);
}

/* A peer frozen past the deadline: its slot is in quarantine, others continue, and nothing late lands in a
 * slot in use. */
static void test_frozen_node(void **state)
{
    struct fixture x;
    struct leat_batch *batch, *kept[2];
    const uint64_t local[] = {0, 1, 2, 3}; /* of field data: region 0 */
    uint64_t far = UINT64_MAX;
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    for (uint64_t i = 0; i < FAKE_SAMPLES && far == UINT64_MAX; i++)
        if (i * 60 / FAKE_REGION_BYTES == 1)
            far = i + 1;
    x.daemon->hold_broker = true;
    struct leat_view *view;
    const unsigned fields[] = {0};
    struct leat_view_options o = {
        .size = sizeof(o), .batch_size = 4, .slots = 2, .fields = fields, .nfields = 1};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
    assert_int_equal(leat_read_batch(view, &far, 1, 50 * NS_PER_MS, &batch, &err), LEAT_TIMED_OUT);
    /* One slot is in quarantine; the other serves. */
    assert_int_equal(leat_read_batch(view, local, 4, 0, &kept[0], &err), 0);
    /* Now nothing but the quarantined one is left: the connection is torn down and the slot used. */
    assert_int_equal(leat_read_batch(view, local, 4, 0, &kept[1], &err), 0);
    assert_int_not_equal(leat_batch_slot(kept[0]), leat_batch_slot(kept[1]));
    /* The peer wakes up and sends late data; no batch may contain it. */
    uint8_t late[256];
    memset(late, 0xee, sizeof(late));
    send(x.daemon->broker_peer, late, sizeof(late), MSG_NOSIGNAL | MSG_DONTWAIT);
    test_pause_us(20000);
    for (unsigned b = 0; b < 2; b++) {
        const uint8_t *data = leat_batch_data(kept[b], 0, NULL);
        for (unsigned i = 0; i < 4; i++)
            assert_true(fake_matches(local[i], 0, data + i * 60, 60));
        leat_batch_release(kept[b]);
    }
    x.daemon->hold_broker = false;
    assert_int_equal(leat_read_batch(view, &far, 1, 0, &batch, &err), 0);
    assert_true(fake_matches(far, 0, leat_batch_data(batch, 0, NULL), 60));
    leat_batch_release(batch);
    leat_view_close(view);

    /* The same for a single read: nothing is outstanding when it returns. */
    x.daemon->hold_broker = true;
    uint8_t buf[60];
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 50 * NS_PER_MS, NULL, &err), LEAT_TIMED_OUT);
    assert_int_equal(x.ws->rails->unquiesced, 0);
    x.daemon->hold_broker = false;
    assert_int_equal(leat_read(x.ws, far, 0, buf, 60, 0, NULL, &err), 0);
    fixture_close(&x);
}

static void *lose_soon(void *user)
{
    struct fake_daemon *f = user;
    test_pause_us(300000);
    memset(f->live_map + 4096, LIVE_LOST, FAKE_SAMPLES);
    return NULL;
}

/* A node that is stopped keeps its connections: once our daemon counts it as lost, a batch that waits for it comes from the source. */
static void test_frozen_node_is_lost(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint64_t ids[32];
    pthread_t thread;
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    struct leat_view *view = fixture_load(x.ws, 32, 2);
    for (unsigned i = 0; i < 32; i++)
        ids[i] = i * 12;
    x.daemon->hold_broker = true;
    assert_int_equal(pthread_create(&thread, NULL, lose_soon, x.daemon), 0);
    assert_int_equal(leat_read_batch(view, ids, 32, 20 * NS_PER_S, &batch, &err), 0);
    pthread_join(thread, NULL);
    fixture_check_batch(batch);
    assert_true(x.daemon->fetches > 0);
    assert_int_equal(x.daemon->brokers, 1);
    leat_batch_release(batch);
    leat_view_close(view);
    fixture_close(&x);
}

static int interrupted(void *user)
{
    (void)user;
    return 1;
}

/* Interrupted while a server is asked: the view may never be used again, others must not wait for its credit. */
static void test_given_up(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    const uint64_t far = FAKE_REGION_BYTES / 60 + 1;
    x.daemon->hold_broker = true;
    struct leat_view *view;
    const unsigned fields[] = {0};
    struct leat_view_options o = {
        .size = sizeof(o), .batch_size = 4, .slots = 2, .fields = fields, .nfields = 1};
    assert_int_equal(leat_load(x.ws, &o, &view, &err), 0);
    x.ws->client->interrupt = interrupted;
    assert_int_equal(leat_read_batch(view, &far, 1, 0, &batch, &err), LEAT_CANCELED);
    struct rails *r = view->rails;
    assert_int_equal(r->unquiesced, 1);
    assert_int_equal(r->credit[0].in_flight_bytes, 0);
    x.ws->client->interrupt = NULL;
    x.daemon->hold_broker = false;
    rails_disconnect(r, 1);
    assert_int_equal(leat_read_batch(view, &far, 1, 0, &batch, &err), 0);
    assert_int_equal(r->credit[0].in_flight_bytes, 0);
    leat_batch_release(batch);
    leat_view_close(view);
    fixture_close(&x);
}

static int brings_nothing(struct net_ctx *ctx, struct net_event *events, unsigned max, int timeout_ms)
{
    (void)ctx, (void)events, (void)max, (void)timeout_ms;
    return 0;
}

/* A NIC that hangs completes nothing: closing the view leaves it the memory that it may still write, and
 * the program continues. */
static void test_nothing_is_given_back(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    const uint64_t far = FAKE_REGION_BYTES / 60 + 1;
    x.daemon->hold_broker = true;
    struct leat_view *view = fixture_load(x.ws, 4, 2);
    x.ws->client->interrupt = interrupted;
    assert_int_equal(leat_read_batch(view, &far, 1, 0, &batch, &err), LEAT_CANCELED);
    x.ws->client->interrupt = NULL;
    struct net_ctx *tcp = view->rails->tcp;
    const struct net_ops *good = tcp->ops;
    struct net_ops hangs = *good;
    hangs.poll = brings_nothing;
    tcp->ops = &hangs;
    leat_view_close(view);
    assert_int_equal(view->rails->unquiesced, 1);
    /* It is given back after all: for the sake of who looks for leaks. */
    tcp->ops = good;
    view->refs = 1;
    view_unref(view);
    x.daemon->hold_broker = false;
    fixture_close(&x);
}

/* A rail that keeps to itself which operations with this status are over, until `says`: set, or after so
 * many polls. */
static struct {
    const struct net_ops *good;
    struct net_event events[32];
    unsigned n, polls;
    int status;
    bool says;
} kept;

static int keeps_some(struct net_ctx *ctx, struct net_event *events, unsigned max, int timeout_ms)
{
    int n = 0;
    kept.says = kept.says || (kept.polls && --kept.polls == 0);
    while (kept.says && kept.n && (unsigned)n < max)
        events[n++] = kept.events[--kept.n];
    if (n)
        return n;
    int got = kept.good->poll(ctx, events, max, timeout_ms);
    for (int i = 0; i < got; i++)
        if (events[i].kind == NET_QUIESCED && events[i].op->status == kept.status && !kept.says &&
            kept.n < ARRAY_LEN(kept.events))
            kept.events[kept.n++] = events[i];
        else
            events[n++] = events[i];
    return got < 0 ? got : n;
}

/* What may still land is not asked for again at the same place. */
static void test_no_second_try_over_the_first(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint64_t ids[32];
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    struct leat_view *view = fixture_load(x.ws, 32, 1);
    for (unsigned i = 0; i < 32; i++)
        ids[i] = i * 12;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    leat_batch_release(batch);
    struct net_ctx *tcp = view->rails->tcp;
    kept.good = tcp->ops;
    kept.status = LEAT_PEER_GONE;
    struct net_ops keeps = *kept.good;
    keeps.poll = keeps_some;
    tcp->ops = &keeps;
    fake_node_hangs_up(x.daemon);
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), LEAT_PEER_GONE);
    assert_true(kept.n > 0 && view->rails->unquiesced == kept.n);
    assert_int_equal(x.daemon->brokers, 1);
    assert_int_equal(x.daemon->fetches, 0); /* from the source neither */
    kept.says = true;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    fixture_check_batch(batch);
    assert_int_equal(view->rails->unquiesced, 0);
    leat_batch_release(batch);
    tcp->ops = kept.good;
    leat_view_close(view);
    fixture_close(&x);
}

/* A batch is whole, held and given back before its operations are quiesced: its slot is filled again after
 * that alone. */
static void test_held_before_it_is_quiesced(void **state)
{
    struct fixture x;
    struct leat_batch *batch;
    uint64_t ids[32];
    fixture_open(&x, (struct fake_options){.remote_odd = true});
    struct leat_view *view = fixture_load(x.ws, 32, 1);
    for (unsigned i = 0; i < 32; i++)
        ids[i] = i * 12;
    struct net_ctx *tcp = view->rails->tcp;
    memset(&kept, 0, sizeof(kept));
    kept.good = tcp->ops;
    struct net_ops keeps = *kept.good;
    keeps.poll = keeps_some;
    tcp->ops = &keeps;
    assert_int_equal(leat_read_batch(view, ids, 32, 0, &batch, &err), 0);
    assert_true(kept.n > 0 && view->slots[0].gather->unquiesced == kept.n);
    leat_batch_release(batch);
    kept.polls = 5;
    int rc = leat_read_batch(view, ids, 32, 0, &batch, &err);
    if (rc)
        fail_msg("%d: %s", rc, err.message);
    fixture_check_batch(batch);
    kept.says = true;
    leat_batch_release(batch);
    rails_progress(view->rails, 0);
    tcp->ops = kept.good;
    leat_view_close(view);
    fixture_close(&x);
}

/* Whatever rail is the first: a piece goes by one of them, and the slowest must not be busy with it when the others are through. */
static void test_pieces_of_a_slow_rail(void **state)
{
    const struct index_part part = {.address = 64 * KIB, .bytes = 64 * KIB}; /* all of region 1 */
    static uint8_t dst[64 * KIB];
    for (unsigned slow = 0; slow < 2; slow++) {
        struct fixture x;
        fixture_open(&x, (struct fake_options){.remote_odd = true});
        struct leat_view *view = fixture_load(x.ws, 4, 1);
        struct rails *r = view->rails;
        struct gather *g = view->slots[0].gather;
        assert_int_equal(r->ncredits, 1);
        assert_int_equal(credit_init(&r->credit[r->ncredits++], NULL, 0, 1, 0, false), 0);
        for (unsigned k = 0; k < 2; k++) {
            r->credit[k].rail->limit_bytes = 64 * MIB;
            r->credit[k].rail->rate_bytes_per_s = k == slow ? 32000000 : 1000000000;
        }
        x.ws->info.region_bytes = part.bytes; /* nothing is read */
        gather_reset(g);
        assert_int_equal(gather_add(g, 0, 0, &part, dst, &(struct client_rpc_how){0}, &err), 0);
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < g->nreads; i++) {
            assert_true(g->reads[i].bytes <= 16 * KIB);
            bytes += g->reads[i].bytes;
        }
        assert_int_equal(bytes, part.bytes);
        gather_reset(g);
        x.ws->info.region_bytes = FAKE_REGION_BYTES;
        leat_view_close(view);
        fixture_close(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_revoked),
        cmocka_unit_test(test_daemon_dies),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_slow_open),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_interrupt_haste),
        cmocka_unit_test(test_fairq),
        cmocka_unit_test(test_node_dies),
        cmocka_unit_test(test_frozen_node),
        cmocka_unit_test(test_frozen_node_is_lost),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_nothing_is_given_back),
        cmocka_unit_test(test_no_second_try_over_the_first),
        cmocka_unit_test(test_held_before_it_is_quiesced),
        cmocka_unit_test(test_pieces_of_a_slow_rail),
    };
    return cmocka_run_group_tests_name("client_ends", tests, NULL, NULL);
}
