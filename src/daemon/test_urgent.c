/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client waits for what another node loads: two daemons on one loop, of which the second has its only fill thread held while the first
 * is asked. Then what a node may not send, and what it may send too much of.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/testing.h"
#include "cluster/urgent.h"
#include "daemon/testing_nodes.h"
#include "pool/nodes/nodes_internal.h"
#include "pool/set/testing.h"
#include "rpc/conn.h"

#include <poll.h>
#include <semaphore.h>
#include <stdio.h>

#include <cmocka.h>

enum { ROWS = 2400, ROW = 5003 };

/* --- two daemons, the second of which loads nothing --------------------------------------------------------------- */

static sem_t reached, go_on;

static void block(struct fill_load *load, int status, const char *message)
{
    sem_post(&reached);
    sem_wait(&go_on);
}

/* Records of what the second one has loaded: a call for each segment. */
static struct {
    struct pool_nodes_ops ops;
    const struct pool_nodes_ops *real;
    uint64_t sample; /* which it is about */
    unsigned segments, first_with, last_with;
} loaded;

static void on_filled(struct cluster *c, struct wset *ws, struct bytes_out *records)
{
    struct bytes_in in = bytes_in_of(records->data, records->len);
    struct proto_ready_record r;
    bool with = false;
    while (bytes_left(&in) > 0 && proto_ready_record_next(&in, &r) == 0)
        with = with || r.sample == loaded.sample;
    loaded.segments++;
    loaded.last_with = with ? loaded.segments : loaded.last_with;
    loaded.first_with = with && !loaded.first_with ? loaded.segments : loaded.first_with;
    loaded.real->filled(c, ws, records);
}

struct rig {
    struct host h[2];
    char self[2][80]; /* of each, all its addresses */
    char *nodes[3];
    struct wset *held, *ws, *theirs;
    struct fill_load load;
    struct opened o;
    uint64_t last; /* a sample of the second node alone, the last that it would load */
    int fd;        /* of a client of the first */
    uint64_t handle;
};

static void hold(struct rig *r)
{
    static uint8_t nothing[64];
    r->held = testing_wset(testing_index("held.npy"), 256 * KIB);
    r->load = (struct fill_load){.ws = r->held, .dst = nothing, .done = block};
    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
    fill_load(r->h[1].pool->fill, &r->load);
    sem_wait(&reached);
}

/* The last sample that begins on node `first` and ends on node `end`. */
static uint64_t last_on(const struct wset *ws, uint32_t first, uint32_t end)
{
    uint64_t last = UINT64_MAX;
    for (uint64_t i = 0; i < ROWS; i++) {
        struct index_part part = {0};
        assert_true(index_part(&ws->index, i, 0, &part));
        if (wset_region_node(ws, (uint32_t)(part.address / ws->region_bytes)) == first &&
            wset_region_node(ws, (uint32_t)((part.address + ROW - 1) / ws->region_bytes)) == end)
            last = i;
    }
    assert_int_not_equal(last, UINT64_MAX);
    return last;
}

/* The reply to the request that was sent last, if it is there. */
static bool replied(int fd, int *ret_status, struct net_reply *ret)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 0) == 1) {
        assert_int_equal(net_frame_receive(fd, ret, clock_now_ns() + 20 * NS_PER_S), 0);
        *ret_status = ret->frame.status;
        if (ret->frame.kind == PROTO_REPLY)
            return true;
        net_reply_fini(ret);
    }
    return false;
}

static void request(int fd, uint16_t type, struct bytes_out *body)
{
    assert_int_equal(net_frame_send(fd, PROTO_VERSION, PROTO_REQUEST, type, 1, body, NULL, 0, 0), 0);
    bytes_out_fini(body);
}

static struct net_reply call(int fd, uint16_t type, struct bytes_out *body)
{
    struct net_reply reply;
    int status = 1;
    request(fd, type, body);
    test_run_until(replied(fd, &status, &reply), loop_turn(loop, 10));
    assert_int_equal(status, 0);
    return reply;
}

static void client_open(struct rig *r)
{
    struct leat_error err;
    struct bytes_out body = {0};
    struct proto_hello hello = {
        .version_min = PROTO_VERSION, .version_max = PROTO_VERSION, .role = PROTO_ROLE_CONTROL};
    assert_int_equal(net_dial(r->h[0].socket, 0, &r->fd, &err), 0);
    proto_hello_put(&body, &hello);
    struct net_reply reply = call(r->fd, PROTO_HELLO, &body);
    net_reply_fini(&reply);
    struct proto_open open = {.name = (char *)"", .uri = r->ws->spec};
    proto_open_put(&body, &open);
    reply = call(r->fd, PROTO_OPEN, &body);
    AUTO_MESSAGE(ws) m;
    assert_int_equal(proto_ws_get(reply.body.data, reply.body.len, &m), 0);
    assert_memory_equal(m.uuid, r->ws->uuid, PROTO_UUID);
    r->handle = m.ws;
    net_reply_fini(&reply);
}

static void client_wait(struct rig *r, const uint64_t *samples, uint32_t n)
{
    struct bytes_out body = {0};
    proto_wait_put(&body, &(struct proto_wait){.ws = r->handle, .n = n});
    for (uint32_t k = 0; k < n; k++)
        proto_id_put(&body, &(struct proto_id){samples[k]});
    request(r->fd, PROTO_WAIT, &body);
}

/* naddresses: each node has 1, or 2 which lead to the same port. */
static void rig_start(struct rig *r, unsigned naddresses)
{
    *r = (struct rig){0};
    addresses(r->h, 2);
    for (unsigned k = 0; k < 2; k++) {
        const char *one = r->h[k].address;
        snprintf(r->self[k], sizeof(r->self[k]), naddresses > 1 ? "%.31s,%.31s" : "%.31s", one, one);
        r->nodes[k] = r->self[k];
    }
    for (unsigned k = 0; k < 2; k++)
        start_as(&r->h[k], r->self[k], token, r->nodes, 2);
    both_up(r->h);
    hold(r);
    memset(&loaded, 0, sizeof(loaded));
    loaded.real = r->h[1].pool->nodes;
    loaded.ops = *loaded.real;
    loaded.ops.filled = on_filled;
    r->h[1].pool->nodes = &loaded.ops;
    open_at(&r->h[0], "shared.npy", &r->o);
    assert_non_null(r->ws = r->o.ws);
    assert_non_null(r->theirs = pool_find_uuid(r->h[1].pool, r->ws->uuid));
    assert_true(r->theirs->nsegments > 15);
    loaded.sample = r->last = last_on(r->ws, 1, 1);
    client_open(r);
}

static void let_go(struct rig *r)
{
    if (!r->held)
        return;
    sem_post(&go_on);
    testing_wait_alone(r->held);
    wset_unref(TAKE_PTR(r->held));
}

static void rig_stop(struct rig *r)
{
    let_go(r);
    close(r->fd);
    pool_unlease(r->ws);
    stop(&r->h[1]);
    stop(&r->h[0]);
}

static bool has_reply(struct rig *r)
{
    struct net_reply reply;
    int status = 1;
    if (!replied(r->fd, &status, &reply))
        return false;
    net_reply_fini(&reply);
    assert_int_equal(status, 0);
    return true;
}

/* The sample that lies last on the other node is in the first segment that is loaded there, or the first two if it lies in both. */
static void test_first_there(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    client_wait(&r, &r.last, 1);
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    assert_int_equal(r.theirs->urgent_there.samples[0], r.last);
    let_go(&r);
    test_run_until(has_reply(&r), loop_turn(loop, 10));
    assert_int_equal(wset_sample_state(r.ws, r.last), LIVE_RESIDENT);
    test_run_until(wset_complete(r.ws) && wset_complete(r.theirs), loop_turn(loop, 10));
    assert_int_equal(loaded.segments, r.theirs->nsegments);
    assert_int_equal(loaded.first_with, 1);
    assert_in_range(loaded.last_with, 1, 2);
    rig_stop(&r);
}

/* The end of a sample is on the other node: its beginning is here, and known already. */
static void test_part_there(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    loaded.sample = last_on(r.ws, 0, 1);
    client_wait(&r, &loaded.sample, 1);
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    assert_int_equal(r.ws->wanted->at[0].nodes, 1 << 1);
    let_go(&r);
    test_run_until(has_reply(&r), loop_turn(loop, 10));
    test_run_until(wset_complete(r.ws), loop_turn(loop, 10));
    assert_int_equal(loaded.first_with, 1);
    rig_stop(&r);
}

/* All of them, in a row: no more than a receiver keeps is under way, and the rest follows. */
static void test_many(void **state)
{
    struct rig r;
    static uint64_t all[ROWS];
    for (uint64_t i = 0; i < ROWS; i++)
        all[i] = ROWS - 1 - i;
    rig_start(&r, 1);
    client_wait(&r, all, ROWS);
    test_run_until(r.theirs->urgent_there.n > 0, loop_turn(loop, 10));
    assert_in_range(r.ws->wanted->n, 100, PROTO_URGENT_MAX);
    for (uint32_t k = 0; k < r.theirs->urgent_there.n; k++)
        assert_true(r.theirs->urgent_there.samples[k] > ROWS - 300);
    let_go(&r);
    test_run_until(has_reply(&r), loop_turn(loop, 10));
    assert_int_equal(r.ws->live->resident_samples, ROWS);
    rig_stop(&r);
}

static bool is_wanted(const struct wset *ws, uint64_t i)
{
    uint32_t k = 0;
    while (k < ws->wanted->n && ws->wanted->at[k].sample != i)
        k++;
    return k < ws->wanted->n;
}

static unsigned waits(const struct wset *ws)
{
    unsigned n = 0;
    list_for_each (node, &ws->waiters)
        n++;
    return n;
}

/* Waits that are too many for the room that there is take turns: a short one does not wait for all of the long ones. */
static void test_waits_take_turns(void **state)
{
    enum { LONG = 6 };
    struct rig r;
    rig_start(&r, 1);
    for (unsigned k = 0; k < LONG; k++) {
        uint64_t some[ROWS / LONG];
        for (uint64_t i = 0; i < ROWS / LONG; i++)
            some[i] = i * LONG + k;
        client_wait(&r, some, ROWS / LONG);
    }
    test_run_until(r.ws->wanted && r.ws->wanted->n == PROTO_URGENT_MAX, loop_turn(loop, 10));
    client_wait(&r, &r.last, 1);
    test_run_until(waits(r.ws) == LONG + 1, loop_turn(loop, 10));
    assert_false(is_wanted(r.ws, r.last));
    for (unsigned k = 0; k <= LONG && !is_wanted(r.ws, r.last); k++) {
        r.ws->wanted->n -= 20; /* as if they had arrived */
        r.h[0].pool->advanced(r.h[0].pool->user, r.ws);
        assert_int_equal(r.ws->wanted->n, PROTO_URGENT_MAX);
    }
    assert_true(is_wanted(r.ws, r.last));
    let_go(&r);
    for (unsigned k = 0; k <= LONG; k++)
        test_run_until(has_reply(&r), loop_turn(loop, 10));
    rig_stop(&r);
}

/* What was under way is lost with a connection, and the other node is reached by its next address, so nothing of it is
 * lost and the wait continues: it asks again. */
static void test_link_lost(void **state)
{
    struct rig r;
    rig_start(&r, 2);
    client_wait(&r, &r.last, 1);
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    r.ws->wanted->again_ns = UINT64_MAX; /* it is the link that counts */
    r.theirs->urgent_there.n = 0;        /* as if it had not arrived */
    uint64_t losses = r.ws->losses;
    peer_reject(r.h[0].cluster->links[1].peer, LEAT_PEER_GONE, "for the test");
    assert_int_not_equal(peer_state(r.h[0].cluster->links[1].peer), PEER_DOWN);
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    assert_int_equal(r.ws->losses, losses);
    assert_int_equal(wset_sample_state(r.ws, r.last), LIVE_ABSENT);
    let_go(&r);
    test_run_until(has_reply(&r), loop_turn(loop, 10));
    rig_stop(&r);
}

/* A message that the other node ignored, as it did not have the set: it is sent again, in time. */
static void test_ignored(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    r.theirs->uuid[0] ^= 1;
    client_wait(&r, &r.last, 1);
    test_run_until(r.ws->wanted && r.ws->wanted->n && r.ws->wanted->at[0].sent, loop_turn(loop, 10));
    for (unsigned k = 0; k < 20; k++)
        loop_turn(loop, 1);
    assert_int_equal(r.theirs->urgent_there.n, 0);
    r.theirs->uuid[0] ^= 1;
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    rig_stop(&r);
}

/* The node dies: its samples are lost, which ends the wait, and nothing is wanted of it any more. */
static void test_node_dies(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    client_wait(&r, &r.last, 1);
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    let_go(&r);
    r.theirs = NULL;
    stop(&r.h[1]);
    test_run_until(has_reply(&r), loop_turn(loop, 10));
    test_run_until(r.ws->wanted->n == 0, loop_turn(loop, 10));
    assert_int_equal(r.ws->wanted->due_ns, 0);
    close(r.fd);
    pool_unlease(r.ws);
    stop(&r.h[0]);
}

/* The other node drops the set by force. */
static void test_set_dropped(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    client_wait(&r, &r.last, 1);
    test_run_until(r.theirs->urgent_there.n == 1, loop_turn(loop, 10));
    pool_drop(r.h[1].pool, r.theirs, POOL_DROP_FORCE);
    r.theirs = NULL;
    struct net_reply reply;
    int status = 0;
    test_run_until(replied(r.fd, &status, &reply), loop_turn(loop, 10));
    net_reply_fini(&reply);
    assert_int_equal(status, LEAT_STALE);
    rig_stop(&r);
}

/* --- what is sent by others ---------------------------------------------------------------------------------------------- */

static void send_urgent(struct rig *r, const uint8_t *uuid, uint64_t first, uint32_t n)
{
    struct bytes_out body = {0};
    struct proto_urgent m = {.n = n};
    memcpy(m.uuid, uuid, PROTO_UUID);
    proto_urgent_put(&body, &m);
    for (uint32_t k = 0; k < n; k++)
        proto_id_put(&body, &(struct proto_id){first + k});
    cluster_send(r->h[0].cluster, 1, PROTO_URGENT, &body);
    bytes_out_fini(&body);
}

/* An answer means that all that was sent before has been read. */
static void on_node(void *user, struct peer_reply *reply)
{
    *(int *)user = reply->status == 0 ? 1 : -1;
}

static int heard(struct rig *r)
{
    int answer = 0;
    if (nodes_ask(r->h[0].cluster, 1, on_node, &answer) < 0)
        return -1;
    test_run_until(answer != 0, loop_turn(loop, 10));
    return answer;
}

/* Sets that are not there, samples of other nodes, the same ones again and again: ignored. A flood takes no more than its queue. */
static void test_flood(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    const uint8_t unknown[PROTO_UUID] = {1};
    send_urgent(&r, unknown, UINT64_MAX - 1, 1);
    for (uint64_t i = 0, sent = 0; i < ROWS && sent < 40; i++) {
        struct index_part part = {0};
        index_part(&r.ws->index, i, 0, &part);
        if (!wset_address(r.ws, part.address, part.bytes))
            continue;
        send_urgent(&r, r.ws->uuid, i, 1);
        sent++;
    }
    send_urgent(&r, r.ws->uuid, 0, 0);
    assert_int_equal(heard(&r), 1);
    assert_int_equal(r.theirs->urgent_there.n, 0);
    for (unsigned k = 0; k < 50; k++)
        send_urgent(&r, r.ws->uuid, r.last, 1);
    assert_int_equal(heard(&r), 1);
    assert_int_equal(r.theirs->urgent_there.n, 1);
    for (unsigned k = 0; k < 100; k++)
        send_urgent(&r, r.ws->uuid, k * 17 % (ROWS - PROTO_URGENT_MAX), PROTO_URGENT_MAX);
    assert_int_equal(heard(&r), 1);
    assert_int_equal(r.theirs->urgent_there.n, PROTO_URGENT_MAX);
    let_go(&r);
    test_run_until(wset_complete(r.ws) && wset_complete(r.theirs), loop_turn(loop, 10));
    send_urgent(&r, r.ws->uuid, 0, PROTO_URGENT_MAX); /* all there */
    assert_int_equal(heard(&r), 1);
    rig_stop(&r);
}

/* A sample that the set does not have, and more of them than a message may have: the connection ends, and nothing else. */
static void test_refused(void **state)
{
    struct rig r;
    rig_start(&r, 1);
    pool_lease(r.theirs); /* or it would go with the connection */
    for (unsigned k = 0; k < 2; k++) {
        both_up(r.h);
        send_urgent(&r, r.ws->uuid, k ? 0 : ROWS - 1, k ? PROTO_URGENT_MAX + 1 : 2);
        test_run_until(!is_up(&r.h[0], 1), loop_turn(loop, 10));
        assert_int_equal(r.theirs->urgent_there.n, 0);
    }
    pool_unlease(r.theirs);
    rig_stop(&r);
}

static bool came_up, went_down;

static void on_up(struct peer *peer)
{
    came_up = true;
}

static void on_down(struct peer *peer, int status, const char *message)
{
    went_down = true;
}

/* Version 2 does not have it. */
static void test_of_version_2(void **state)
{
    static const struct peer_ops ops = {.up = on_up, .down = on_down};
    struct rig r;
    struct peer *peer;
    rig_start(&r, 1);
    struct peer_config pc = {.address = r.h[1].address,
                             .rail = -1,
                             .hello = {.version_min = 2, .version_max = 2, .role = PROTO_ROLE_PEER},
                             .token = token,
                             .token_len = sizeof(token) - 1,
                             .ops = &ops};
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    test_run_until(came_up, loop_turn(loop, 10));
    struct bytes_out body = {0};
    struct proto_urgent m = {0};
    memcpy(m.uuid, r.ws->uuid, PROTO_UUID);
    proto_urgent_put(&body, &m);
    peer_event(peer, PROTO_URGENT, &body);
    bytes_out_fini(&body);
    test_run_until(went_down, loop_turn(loop, 10));
    peer_free(peer);
    rig_stop(&r);
}

static int setup(void **state)
{
    setenv("XDG_CACHE_HOME", testing_folder(), 1);
    log_set_level(LOG_LEVEL_ERROR);
    testing_npy("held.npy", 1, 10, 1000);
    testing_npy("shared.npy", 1, ROWS, ROW);
    return loop_new(&loop);
}

static int teardown(void **state)
{
    loop_free(loop);
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_there),  cmocka_unit_test(test_part_there),
        cmocka_unit_test(test_many),         cmocka_unit_test(test_waits_take_turns),
        cmocka_unit_test(test_link_lost),    cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_node_dies),    cmocka_unit_test(test_set_dropped),
        cmocka_unit_test(test_flood),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_of_version_2),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
