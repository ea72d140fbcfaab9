/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons' pools, servers and clusters on one loop, over TCP of this host: one set on both, and what they refuse each other. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/testing.h"
#include "cluster/urgent.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/nodes/nodes.h"
#include "pool/nodes/nodes_internal.h"
#include "rpc/peer.h"
#include "daemon/server.h"
#include "daemon/testing_nodes.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char other[] = "0123456789abcdef0123456789abcdeX";

static void test_set_on_both(void **state)
{
    enum { ROWS = 600, ROW = 5003 };
    struct host h[2];
    struct opened o;
    testing_npy("both.npy", 1, ROWS, ROW);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2; k++)
        start(&h[k], token, nodes, 2);
    test_run_until(is_up(&h[0], 1) && is_up(&h[1], 0), loop_turn(loop, 100));
    open_at(&h[0], "both.npy", &o);
    if (!o.ws)
        fail_msg("%d: %s", o.code, o.message);
    struct wset *ws = o.ws, *theirs = pool_find_uuid(h[1].pool, ws->uuid);
    assert_non_null(theirs);
    test_run_until(wset_complete(ws) && wset_complete(theirs), loop_turn(loop, 100));
    assert_int_equal(ws->nnodes, 2);
    unsigned on[2] = {0};
    for (uint32_t g = 0; g < ws->nregions; g++) {
        unsigned n = wset_region_node(ws, g);
        on[n]++;
        assert_int_equal(wset_region_node(theirs, g), n);
        assert_int_equal(!!ws->regions[g].region, n == 0);
        assert_int_equal(!!theirs->regions[g].region, n == 1);
    }
    assert_true(on[0] >= ws->nregions / 2 && on[1] >= ws->nregions / 2);
    /* Both know every checksum, also of samples that lie on both. */
    unsigned both = 0;
    static uint8_t row[ROW];
    for (uint64_t i = 0; i < ROWS; i++) {
        for (unsigned b = 0; b < ROW; b++)
            row[b] = testing_byte(1, i * ROW + b);
        uint32_t crc = crc32c(0, row, ROW);
        assert_int_equal(ws->crc[i], crc);
        assert_int_equal(theirs->crc[i], crc);
        struct index_part part = {0};
        assert_true(index_part(&ws->index, i, 0, &part));
        both += part.address / ws->region_bytes != (part.address + ROW - 1) / ws->region_bytes;
    }
    assert_true(both > 5);
    /* One of them dies. */
    stop(&h[1]);
    test_run_until(ws->live->lost_samples != 0, loop_turn(loop, 100));
    assert_false(is_up(&h[0], 1));
    for (uint64_t i = 0; i < ROWS; i++) {
        struct index_part part = {0};
        index_part(&ws->index, i, 0, &part);
        bool there = wset_region_node(ws, (uint32_t)(part.address / ws->region_bytes)) == 1 ||
                     wset_region_node(ws, (uint32_t)((part.address + ROW - 1) / ws->region_bytes)) == 1;
        assert_int_equal(wset_sample_state(ws, i), there ? LIVE_LOST : LIVE_RESIDENT);
    }
    /* It is started again and knows nothing: they stay lost. */
    start(&h[1], token, nodes, 2);
    test_run_until(is_up(&h[0], 1), loop_turn(loop, 100));
    for (unsigned k = 0; k < 20; k++)
        loop_turn(loop, 1);
    assert_true(ws->live->lost_samples > 0);
    pool_unlease(ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A sample's error is reported again unchanged: for its content, say, and then the set stays. */
static void test_tells_why(void **state)
{
    struct host h[2];
    struct opened o;
    testing_npy("why.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2; k++)
        start(&h[k], token, nodes, 2);
    both_up(h);
    open_at(&h[0], "why.npy", &o);
    assert_non_null(o.ws);
    struct wset *theirs = pool_find_uuid(h[1].pool, o.ws->uuid);
    assert_non_null(theirs);
    test_run_until(wset_complete(o.ws) && wset_complete(theirs), loop_turn(loop, 10));
    uint64_t i = 0;
    struct index_part part = {0};
    while (index_part(&o.ws->index, i, 0, &part) && !wset_address(o.ws, part.address, part.bytes))
        i++;
    wset_failure(o.ws, i, LEAT_CORRUPT, "a checksum is wrong");
    wset_piece(o.ws, i, 0, 0, 0, 0, LEAT_CORRUPT);
    assert_int_equal(wset_sample_state(o.ws, i), LIVE_FAILED);
    nodes_catch_up(h[0].cluster, o.ws, 1);
    test_run_until(wset_sample_state(theirs, i) == LIVE_FAILED, loop_turn(loop, 10));
    assert_int_equal(wset_failure_get(theirs, i, NULL), LEAT_CORRUPT);
    assert_false(wset_failed_transient(theirs));
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A dead node comes back as another, before the others noticed its end: what it held is lost at once. */
static void test_another_incarnation(void **state)
{
    struct host h[2];
    struct opened o;
    testing_npy("again.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2; k++)
        start(&h[k], token, nodes, 2);
    test_run_until(is_up(&h[0], 1) && is_up(&h[1], 0), loop_turn(loop, 100));
    open_at(&h[0], "again.npy", &o);
    assert_non_null(o.ws);
    test_run_until(wset_complete(o.ws), loop_turn(loop, 100));
    assert_int_equal(o.ws->live->lost_samples, 0);
    struct node_link *link = &h[0].cluster->links[1];
    const uint64_t *incarnation = &h[0].cluster->members->members[1].incarnation;
    test_run_until(*incarnation != 0 && !link->state.asked, loop_turn(loop, 100));
    assert_int_equal(*incarnation, h[1].cluster->incarnation);
    NODES_SET_EVENT(h[0].cluster, o.ws, 1, .type = SET_ON_HOLD, .conn = UINT64_MAX);
    NODES_SET_EVENT(h[0].cluster, o.ws, 1, .type = SET_ON_INBOUND_LOST, .conn = UINT64_MAX,
                    .may_return = true); /* as when a connection of one with several addresses ended */
    unsigned losses = o.ws->losses;
    h[1].cluster->incarnation++; /* it has the set and all its samples, as another node told it to fill */
    test_run_until(*incarnation == h[1].cluster->incarnation, loop_turn(loop, 100));
    assert_int_equal(o.ws->losses, losses + 1);
    assert_true(o.ws->live->lost_samples > 0);
    assert_false(o.ws->peers.at[1].holder);
    /* It reports that they are there. */
    test_run_until(!o.ws->live->lost_samples, loop_turn(loop, 100));
    assert_int_equal(o.ws->losses, losses + 1);
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A region moves: each node of the set learns where it is, the later of two moves holds, and who was away
 * hears of it when it is back. */
static void test_regions_move(void **state)
{
    struct host h[2];
    struct opened o;
    testing_npy("moves.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, nodes, 2);
    both_up(h);
    open_at(&h[0], "moves.npy", &o);
    assert_non_null(o.ws);
    struct wset *theirs = pool_find_uuid(h[1].pool, o.ws->uuid);
    assert_non_null(theirs);
    struct stat st;
    assert_int_equal(fstat(o.ws->live_fd_ro, &st), 0);
    assert_true((uint64_t)st.st_size >= o.ws->live->places_offset + o.ws->nregions * sizeof(uint64_t));
    assert_int_equal(o.ws->live->nplaces, o.ws->nregions);
    const uint32_t from = 0, to = 1;
    uint32_t g = 0;
    while (wset_region_node(o.ws, g) != from)
        g++;
    assert_false(nodes_region_move(h[0].cluster, o.ws, o.ws->nregions, to, 1));
    assert_false(nodes_region_move(h[0].cluster, o.ws, g, 2, 1));
    assert_true(nodes_region_move(h[0].cluster, o.ws, g, to, 2));
    test_run_until(theirs->live->moves, loop_turn(loop, 10));
    assert_int_equal(wset_region_node(o.ws, g), to);
    assert_int_equal(wset_region_node(theirs, g), to);
    assert_false(nodes_region_move(h[0].cluster, o.ws, g, from, 2));
    assert_false(nodes_region_move(h[1].cluster, theirs, g, from, 1)); /* an older one, late */
    assert_int_equal(theirs->live->moves, 1);
    /* What was sent while the other one was away comes with the next connection. */
    peer_fail(h[0].cluster->links[1].peer, LEAT_TIMED_OUT, "for the test");
    assert_true(nodes_region_move(h[0].cluster, o.ws, g, from, 3));
    assert_int_equal(wset_region_node(theirs, g), to);
    test_run_until((theirs = pool_find_uuid(h[1].pool, o.ws->uuid)) &&
                       atomic_load(&theirs->places[g]) == live_place(from, 3),
                   loop_turn(loop, 10)); /* it may have released the set, and have been sent it again */
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* The node that moves a region asks one that was no host until then for what it has filled, as the
 * others do. */
static void test_mover_asks_new_host(void **state)
{
    struct host h[2];
    struct opened o;
    testing_npy("mover.npy", 1, 10, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2; k++)
        start(&h[k], token, nodes, 2);
    both_up(h);
    open_at(&h[0], "mover.npy", &o);
    assert_non_null(o.ws);
    assert_int_equal(o.ws->nregions, 1);
    const unsigned from = wset_region_node(o.ws, 0), to = 1 - from;
    struct wset *at = from ? pool_find_uuid(h[1].pool, o.ws->uuid) : o.ws;
    assert_non_null(at);
    test_run_until(wset_complete(at) && !at->peers.at[to].asked, loop_turn(loop, 10));
    assert_true(nodes_region_move(h[from].cluster, at, 0, to, 1));
    assert_true(at->peers.at[to].asked);
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A node to which a set is described after its region moved learns the number of that move, from the host. */
static void test_described_after_moves(void **state)
{
    struct host h[4];
    struct opened o, late;
    char *nodes[5] = {NULL};
    testing_npy("described.npy", 1, 10, 5003);
    addresses(h, 4);
    for (unsigned k = 0; k < 4; k++)
        nodes[k] = h[k].address;
    for (unsigned k = 0; k < 4; k++)
        start(&h[k], token, nodes, 4);
    for (unsigned k = 0; k < 16; k++)
        test_run_until(k / 4 == k % 4 || is_up(&h[k / 4], k % 4), loop_turn(loop, 10));
    open_at(&h[0], "described.npy", &o);
    assert_non_null(o.ws);
    const unsigned from = wset_region_node(o.ws, 0);
    unsigned fourth = 0; /* the opener, the host and the node that placed it have the set: one does not */
    for (unsigned k = 0; k < 4; k++) {
        struct wset *ws = pool_find_uuid(h[k].pool, o.ws->uuid);
        assert_true(!ws || (wset_region_move(ws, 0, (from + 1) % 4, 1) && wset_region_move(ws, 0, from, 2)));
        fourth = ws ? fourth : k;
    }
    assert_null(pool_find_uuid(h[fourth].pool, o.ws->uuid));
    open_at(&h[fourth], "described.npy", &late);
    assert_non_null(late.ws);
    assert_memory_equal(late.ws->uuid, o.ws->uuid, sizeof(o.ws->uuid));
    test_run_until(atomic_load(&late.ws->places[0]) == live_place(from, 2), loop_turn(loop, 10));
    pool_unlease(late.ws);
    pool_unlease(o.ws);
    for (unsigned k = 0; k < 4; k++)
        stop(&h[k]);
}

static void on_install_answer(void *user, struct peer_reply *reply)
{
    snprintf(user, LEAT_ERROR_MESSAGE_MAX, "%d %s", reply->status, reply->message ? reply->message : "");
}

/* A next version whose index reaches further than its regions, as if its rest were streamed: it has no place. */
static void test_next_version_without_places(void **state)
{
    struct host h[2];
    struct opened o;
    struct leat_error err = {0};
    struct index_builder *b;
    struct wset *next;
    char answer[LEAT_ERROR_MESSAGE_MAX] = "";
    testing_npy("next.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2; k++)
        start(&h[k], token, nodes, 2);
    both_up(h);
    open_at(&h[0], "next.npy", &o);
    assert_non_null(o.ws);
    struct wset *old = o.ws, *theirs = pool_find_uuid(h[1].pool, old->uuid);
    test_run_until(theirs && wset_complete(theirs), loop_turn(loop, 10));
    assert_true(wset_region_move(old, 0, 1 - wset_region_node(old, 0), 1)); /* goes ahead of INSTALL */
    const uint64_t end = old->nregions * old->region_bytes;
    assert_int_equal(index_builder_new(INDEX_KIND_PUSHED, "", &b), 0);
    assert_int_equal(index_builder_field(b, "f", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0), 0);
    uint64_t at = index_builder_reserve(b, 4 * end, 64, 0);
    for (unsigned i = 0; i < 600; i++) {
        index_builder_sample(b, NULL, 0);
        index_builder_part(b, 0, at + i * (4 * end / 600), 100);
    }
    assert_int_equal(wset_new(NULL, testing_index_of(b), true, &next, &err), 0);
    assert_true(next->index.header->address_end > end);
    next->region_bytes = old->region_bytes;
    next->nregions = old->nregions;
    next->regions = calloc(next->nregions, sizeof(*next->regions));
    next->pinned_end = end;
    next->flags = PROTO_WS_PUSHED;
    next->owner_uid = old->owner_uid;
    next->first_new_address = end;
    next->replaces = wset_ref(old);
    assert_int_equal(cluster_name_nodes(h[0].cluster, next), 0);
    for (uint32_t g = 0; g < next->nregions; g++)
        wset_region_put(next, g, wset_region_node(old, g));
    assert_int_equal(nodes_install(h[0].cluster, next, 1, INSTALL_PREPARE, on_install_answer, answer), 0);
    test_run_until(answer[0], loop_turn(loop, 10));
    assert_non_null(strstr(answer, "does not fit the version that it follows"));
    assert_null(pool_find_uuid(h[1].pool, next->uuid));
    assert_int_equal(atomic_load(&theirs->places[0]), atomic_load(&old->places[0]));
    wset_unref(next);
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* One that speaks version 3 and hides which life of it this is gets no records in. */
static void test_ready_of_no_incarnation(void **state)
{
    struct host h[2];
    struct opened o;
    testing_npy("hidden.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2; k++)
        start(&h[k], token, nodes, 2);
    h[0].cluster->incarnation = 0;
    both_up(h);
    open_at(&h[0], "hidden.npy", &o);
    assert_non_null(o.ws);
    test_run_until(!is_up(&h[0], 1), loop_turn(loop, 10));
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

struct dialed {
    bool done;
    int fd;
    char message[320];
};

static void on_dialed(void *user, int fd, unsigned version, const char *message)
{
    struct dialed *d = user;
    d->done = true;
    d->fd = fd;
    snprintf(d->message, sizeof(d->message), "%s", message);
}

static int dial(struct host *h, struct wset *ws, uint32_t rail, struct dialed *ret)
{
    *ret = (struct dialed){0};
    const struct cluster_dial_to to = {
        .node = 1, .rail = rail, .uid = geteuid(), .gid = getegid(), .version_max = PROTO_VERSION};
    assert_int_equal(cluster_dial(h->cluster, ws, &to, on_dialed, ret), 0);
    test_run_until(ret->done, loop_turn(loop, 100));
    if (ret->fd >= 0)
        close(ret->fd);
    return ret->fd;
}

/* Of a node's two addresses the first leads to another process, which knows the token: the node is reached by
 * the second, and read by it alone. */
static void test_first_address_leads_elsewhere(void **state)
{
    struct host h[2];
    char both[80];
    addresses(h, 2);
    snprintf(both, sizeof(both), "%s,%s", h[0].address, h[1].address);
    char *nodes[] = {h[0].address, both, NULL};
    start(&h[0], token, nodes, 2);
    start_as(&h[1], both, token, nodes, 2);
    test_run_until(is_up(&h[0], 1) && is_up(&h[1], 0), loop_turn(loop, 100));
    const char *why;
    assert_int_equal(cluster_rail(h[0].cluster, 1, 1, &why), CLUSTER_RAIL_UP);
    struct opened o;
    struct dialed d;
    testing_npy("rails.npy", 1, 600, 5003);
    open_at(&h[0], "rails.npy", &o);
    assert_non_null(o.ws);
    assert_int_equal(dial(&h[0], o.ws, 0, &d), LEAT_PEER_GONE);
    assert_non_null(strstr(d.message, "answers there"));
    assert_int_equal(cluster_rail(h[0].cluster, 1, 0, &why), CLUSTER_RAIL_DOWN);
    assert_true(dial(&h[0], o.ws, 1, &d) >= 0);
    assert_true(dial(&h[0], o.ws, CLUSTER_ANY_RAIL, &d) >= 0);
    pool_unlease(o.ws);
    stop(&h[1]);
    test_run_until(!is_up(&h[0], 1), loop_turn(loop, 100));
    stop(&h[0]);
}

static int down_status;
static char down_message[256];
static bool came_up;

static void on_up(struct peer *peer)
{
    came_up = true;
}

static void on_down(struct peer *peer, int status, const char *message)
{
    down_status = status;
    snprintf(down_message, sizeof(down_message), "%s", message);
}

static void test_wrong_token(void **state)
{
    struct host h[2];
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    static const struct peer_ops ops = {.up = on_up, .down = on_down};
    struct peer_config pc = {
        .address = h[0].address,
        .hello = {.version_min = PROTO_VERSION, .version_max = PROTO_VERSION, .role = PROTO_ROLE_PEER},
        .token = other,
        .token_len = sizeof(other) - 1,
        .ops = &ops};
    struct peer *peer;
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    test_run_until(down_status || came_up, loop_turn(loop, 100));
    assert_false(came_up);
    assert_int_equal(down_status, LEAT_DENIED);
    assert_non_null(strstr(down_message, "token"));
    peer_free(peer);
    /* With the right one, the same road leads in. */
    down_status = 0;
    pc.token = token;
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    test_run_until(down_status || came_up, loop_turn(loop, 100));
    assert_true(came_up);
    peer_free(peer);
    /* A node with another token stands alone, and works. */
    struct opened o;
    start(&h[1], other, nodes, 2);
    testing_npy("alone.npy", 1, 10, 1000);
    open_at(&h[0], "alone.npy", &o);
    assert_non_null(o.ws);
    assert_false(is_up(&h[0], 1) || is_up(&h[1], 0));
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A node of an older and of a newer release: what both speak is spoken, and else both sides are named. */
static void test_other_versions(void **state)
{
    static const struct {
        unsigned min, max, spoken;
    } others[] = {{2, 2, 2}, {1, 2, 2}, {3, 9, 3}, {1, 1, 0}, {4, 9, 0}};
    static const struct peer_ops ops = {.up = on_up, .down = on_down};
    struct host h[2];
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    for (unsigned k = 0; k < ARRAY_LEN(others); k++) {
        struct peer *peer;
        struct peer_config pc = {.address = h[0].address,
                                 .rail = -1,
                                 .hello = {.version_min = (uint8_t)others[k].min,
                                           .version_max = (uint8_t)others[k].max,
                                           .role = PROTO_ROLE_PEER},
                                 .token = token,
                                 .token_len = sizeof(token) - 1,
                                 .ops = &ops};
        came_up = false;
        down_status = 0;
        assert_int_equal(peer_new(loop, &pc, &peer), 0);
        test_run_until(down_status || came_up, loop_turn(loop, 100));
        assert_int_equal(came_up, others[k].spoken > 0);
        if (came_up) {
            assert_int_equal(peer_version(peer), others[k].spoken);
        } else {
            char both[64];
            snprintf(both, sizeof(both), "2 to 3, the other side %u to %u: stop it", others[k].min,
                     others[k].max);
            assert_int_equal(down_status, LEAT_UNSUPPORTED);
            assert_non_null(strstr(down_message, both));
        }
        peer_free(peer);
    }
    stop(&h[0]);
}

static void hear(int fd, uint64_t id, struct net_reply *reply);

static void answer_as(int fd, unsigned version, const struct net_reply *to, struct bytes_out *body)
{
    assert_int_equal(net_frame_send(fd, version, PROTO_REPLY, to->frame.type, to->frame.id, body, NULL, 0, 0),
                     0);
    bytes_out_fini(body);
}

/* A sample of node 1, which is up, is waited for: it takes no place of others. */
static void check_nothing_urged(struct host *h)
{
    struct wset *ws;
    struct leat_error err;
    testing_npy("urged.npy", 1, 10, 1000);
    assert_int_equal(wset_new(NULL, testing_index("urged.npy"), true, &ws, &err), 0);
    ws->region_bytes = 1 * MIB;
    ws->regions = calloc(1, sizeof(*ws->regions));
    ws->nregions = 1;
    assert_int_equal(cluster_name_nodes(h->cluster, ws), 0);
    wset_region_put(ws, 0, 1);
    list_push_back(&h->pool->sets, &ws->node);
    assert_true(nodes_urge(h->cluster, ws, 3));
    assert_null(ws->wanted);
    list_remove(&ws->node);
    wset_unref(ws);
}

/* The node that is dialled chooses: version 2, as the release does that knows no other; or one that was
 * not offered. */
static void test_dialled_versions(void **state)
{
    struct host h[2];
    struct leat_error err;
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    int listener;
    assert_int_equal(net_listen(h[1].address, 0, &listener, &err), 0);
    start(&h[0], token, nodes, 2);
    for (unsigned k = 0; k < 2; k++) {
        const unsigned version = k ? 2 : 9;
        struct net_auth auth;
        struct proto_hello hello;
        struct proto_welcome w;
        struct proto_proof proof;
        struct net_reply m;
        struct bytes_out body = {0};
        struct pollfd p = {.fd = listener, .events = POLLIN};
        test_run_until(poll(&p, 1, 0) == 1, loop_turn(loop, 10));
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        net_auth_init(&auth, token, sizeof(token) - 1);
        hear(fd, 0, &m);
        assert_int_equal(m.frame.version, PROTO_VERSION_MIN); /* nothing is agreed on yet */
        assert_int_equal(net_auth_server_hello(&auth, m.body.data, m.body.len, &hello, &w), 0);
        assert_int_equal(hello.version_min, PROTO_VERSION_MIN);
        assert_int_equal(hello.version_max, PROTO_VERSION);
        w.version = (uint8_t)version;
        proto_welcome_put(&body, &w);
        answer_as(fd, 2, &m, &body);
        net_reply_fini(&m);
        if (version == 2) {
            hear(fd, 0, &m);
            assert_int_equal(m.frame.version, 2);
            assert_int_equal(proto_proof_get(m.body.data, m.body.len, &proof), 0);
            assert_int_equal(net_auth_server_proof(&auth, proof.mac, sizeof(proof.mac), w.mac), 0);
            proto_welcome_put(&body, &w);
            answer_as(fd, 2, &m, &body);
            net_reply_fini(&m);
            hear(fd, 1, &m);
            assert_int_equal(m.frame.type, PROTO_NODE);
            assert_int_equal(m.frame.version, 2);
            AUTO_MESSAGE(node_ask) who; /* with nothing behind it */
            assert_int_equal(proto_node_ask_get(m.body.data, m.body.len, &who), 0);
            assert_false(who.says);
            assert_string_equal(who.name, h[0].address);
            proto_node_reply_put(&body, &(struct proto_node_reply){.name = h[1].address, .incarnation = 5});
            answer_as(fd, 2, &m, &body);
            net_reply_fini(&m);
            test_run_until(is_up(&h[0], 1), loop_turn(loop, 10));
            check_nothing_urged(&h[0]);
        } else {
            p = (struct pollfd){.fd = fd, .events = POLLIN};
            test_run_until(poll(&p, 1, 0) == 1, loop_turn(loop, 10));
            assert_int_not_equal(net_frame_receive(fd, &m, 0), 0); /* closed */
            assert_false(is_up(&h[0], 1));
        }
        net_auth_fini(&auth);
        close(fd);
    }
    close(listener);
    stop(&h[0]);
}

/* By name: looked up beside the loop. */
static void test_names(void **state)
{
    struct host h[1];
    addresses(h, 1);
    char *nodes[] = {h[0].address, NULL}, by_name[64];
    start(&h[0], token, nodes, 1);
    snprintf(by_name, sizeof(by_name), "localhost%s", strrchr(h[0].address, ':'));
    static const struct peer_ops ops = {.up = on_up, .down = on_down};
    struct peer_config pc = {
        .address = by_name,
        .hello = {.version_min = PROTO_VERSION, .version_max = PROTO_VERSION, .role = PROTO_ROLE_PEER},
        .token = token,
        .token_len = sizeof(token) - 1,
        .stay = true, /* localhost may be ::1 first, where nothing listens */
        .ops = &ops};
    struct peer *peer;
    came_up = false;
    down_status = 0;
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    assert_false(came_up);
    test_run_until(down_status || came_up, loop_turn(loop, 100));
    peer_free(peer);
    pc.stay = false;
    down_status = 0;
    pc.address = "no-such-host.invalid:1";
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    assert_int_equal(down_status, 0);
    test_run_until(down_status, loop_turn(loop, 100));
    assert_true(down_status < 0);
    peer_free(peer);
    /* Freed while a thread looks it up. */
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    peer_free(peer);
    stop(&h[0]);
}

/* "two.test" has two addresses; all else is as it is. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    typedef int (*getaddrinfo_fn)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    getaddrinfo_fn real = (getaddrinfo_fn)dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(name, "two.test") != 0 || (hints->ai_flags & AI_NUMERICHOST))
        return real(name, service, hints, ret);
    int rc = real("127.0.0.2", service, hints, ret);
    return rc ? rc : real("127.0.0.1", service, hints, &(*ret)->ai_next);
}

static void come_up(const struct peer_config *config)
{
    struct peer *peer;
    came_up = false;
    down_status = 0;
    assert_int_equal(peer_new(loop, config, &peer), 0);
    test_run_until(down_status || came_up, loop_turn(loop, 100));
    assert_true(came_up);
    peer_accept(peer);
    peer_free(peer);
}

/* Whether a peer dialled. */
static bool was_dialled(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Of a name's two addresses the first one refuses, then is silent: the second is tried, and is the first one next time. */
static void test_name_of_two_addresses(void **state)
{
    struct host h[1];
    addresses(h, 1);
    char *nodes[] = {h[0].address, NULL}, by_name[64];
    start(&h[0], token, nodes, 1);
    snprintf(by_name, sizeof(by_name), "two.test%s", strrchr(h[0].address, ':'));
    static const struct peer_ops ops = {.up = on_up, .down = on_down};
    struct resolve_address answered[NET_ADDRESSES_MAX] = {0};
    struct peer_config pc = {
        .address = by_name,
        .rail = -1,
        .hello = {.version_min = PROTO_VERSION, .version_max = PROTO_VERSION, .role = PROTO_ROLE_PEER},
        .token = token,
        .token_len = sizeof(token) - 1,
        .ops = &ops};
    come_up(&pc);
    struct sockaddr_in silent = {.sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1),
                                 .sin_port = htons((uint16_t)atoi(strrchr(h[0].address, ':') + 1))};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&silent, sizeof(silent)), 0);
    assert_int_equal(listen(listener, 4), 0);
    pc.answered = answered;
    come_up(&pc);
    assert_true(was_dialled(listener));
    come_up(&pc);
    assert_false(was_dialled(listener));
    close(listener);
    stop(&h[0]);
}

static int pushed_index(uint64_t nsamples)
{
    struct index_builder *b;
    struct leat_error err = {0};
    uint64_t shape[] = {1024};
    int fd = memfd_create("index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(index_builder_new(INDEX_KIND_PUSHED, "p", &b), 0);
    uint64_t address = index_builder_reserve(b, nsamples * 1024, INDEX_FILE_ALIGN, 0);
    assert_int_equal(index_builder_field(b, "x", "|u1", INDEX_FIELD_UNIFORM, 1, shape, address, 1024), 0);
    index_builder_count(b, nsamples);
    assert_int_equal(index_builder_finish(b, fd, &err), 0);
    index_builder_free(b);
    return fd;
}

static struct open_request *ask(struct opened *o, const char *name, const char *file)
{
    char uri[700] = "";
    *o = (struct opened){0};
    struct open_request *r = calloc(1, sizeof(*r));
    if (file)
        snprintf(uri, sizeof(uri), "%s/%s", testing_folder(), file);
    *r = (struct open_request){.uid = geteuid(),
                               .gid = getegid(),
                               .name = strdup(name),
                               .uri = strdup(uri),
                               .opened = on_opened,
                               .progress = on_progress,
                               .user = o,
                               .began_ns = clock_now_ns()};
    return r;
}

static struct wset *named(struct host *h, const char *name)
{
    return pool_find_name(h->pool, name, geteuid(), getegid());
}

static void turns(unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        loop_turn(loop, 1);
}

static void on_asked(void *user, struct peer_reply *reply)
{
    *(bool *)user = reply->status == 0;
}

/* READY of sample i, which is at node 1, as a process sends it that says this of itself. */
static void ready_from(struct host h[2], const struct wset *ws, uint64_t i, uint8_t version,
                       uint64_t incarnation)
{
    static const struct peer_ops ops = {.up = on_up, .down = on_down};
    struct peer_config pc = {.address = h[0].address,
                             .rail = -1,
                             .hello = {.version_min = 2, .version_max = version, .role = PROTO_ROLE_PEER},
                             .token = token,
                             .token_len = sizeof(token) - 1,
                             .ops = &ops};
    struct peer *peer;
    bool answered = false;
    struct bytes_out body = {0};
    came_up = false;
    down_status = 0;
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    test_run_until(came_up, loop_turn(loop, 100));
    proto_node_ask_put(&body, &(struct proto_node_ask){h[1].address, version > 2, incarnation});
    assert_int_equal(peer_call(peer, PROTO_NODE, &body, NULL, 0, NULL, on_asked, &answered), 0);
    test_run_until(answered, loop_turn(loop, 10));
    struct proto_ready m = {.n = 1};
    memcpy(m.uuid, ws->uuid, PROTO_UUID);
    bytes_out_reset(&body);
    proto_ready_put(&body, &m);
    proto_ready_record_put(&body, &(struct proto_ready_record){.sample = i, .crc = 7, .bytes = 1024});
    peer_event(peer, PROTO_READY, &body);
    bytes_out_reset(&body);
    proto_node_ask_put(&body, &(struct proto_node_ask){h[1].address, version > 2, incarnation});
    answered = false; /* behind it */
    assert_int_equal(peer_call(peer, PROTO_NODE, &body, NULL, 0, NULL, on_asked, &answered), 0);
    test_run_until(answered, loop_turn(loop, 10));
    bytes_out_fini(&body);
    peer_free(peer);
}

/* What a process sent before it died arrives when the next one is known, or before it is: nothing of that
 * is there. */
static void test_late_ready(void **state)
{
    struct host h[2];
    struct opened o;
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, nodes, 2);
    both_up(h);
    pool_create(h[0].pool, ask(&o, "p", NULL), pushed_index(2000));
    test_run_until(o.done, loop_turn(loop, 10));
    assert_non_null(o.ws);
    const uint64_t *known = &h[0].cluster->members->members[1].incarnation;
    test_run_until(*known == h[1].cluster->incarnation, loop_turn(loop, 10));
    uint64_t at[3];
    unsigned n = 0;
    for (uint64_t i = 0; i < 2000 && n < 3; i++)
        if (wset_region_node(o.ws, (uint32_t)(i * 1024 / o.ws->region_bytes)) == 1)
            at[n++] = i;
    assert_int_equal(n, 3);
    ready_from(h, o.ws, at[0], 3, *known + 1);
    assert_int_equal(wset_sample_state(o.ws, at[0]), LIVE_ABSENT);
    ready_from(h, o.ws, at[1], 3, *known);
    assert_int_equal(wset_sample_state(o.ws, at[1]), LIVE_RESIDENT);
    ready_from(h, o.ws, at[2], 2, 0); /* of the release before, which does not say */
    assert_int_equal(wset_sample_state(o.ws, at[2]), LIVE_RESIDENT);
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* One of the two goes after any number of turns: the other has all of the set, or nothing that could be found. */
static void test_gone_while_placed(void **state)
{
    static const unsigned after[] = {0, 3, 6, 12, 25};
    struct host h[2];
    struct opened o;
    unsigned there = 0, nothing = 0;
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    for (unsigned k = 0; k < 2 * ARRAY_LEN(after); k++) {
        unsigned dead = k & 1;
        start(&h[0], token, nodes, 2);
        start(&h[1], token, nodes, 2);
        both_up(h);
        pool_create(h[0].pool, ask(&o, "p", NULL), pushed_index(2000));
        turns(after[k / 2]);
        /* A pool that ends must not call requesters back. */
        if (dead == 0)
            pool_open_forget(h[0].pool, &o);
        if (dead == 0 && o.ws)
            pool_unlease(o.ws);
        stop(&h[dead]);
        test_run_until(dead != 1 || o.done, loop_turn(loop, 10));
        struct host *left = &h[1 - dead];
        struct wset *ws = named(left, "p");
        assert_true(dead == 0 || !o.ws == !ws);
        there += ws != NULL;
        nothing += ws == NULL;
        if (dead == 1 && !ws)
            assert_int_equal(left->pool->budget.used_bytes, 0);
        if (ws)
            assert_true(ws->nnodes == 2 && cluster_nodes(left->cluster) == 2 && !wset_is_uncommitted(ws));
        if (dead == 1 && o.ws)
            pool_unlease(o.ws);
        stop(left);
    }
    assert_true(there > 0 && nothing > 0);
}

static struct wset *prepared(struct host *h)
{
    struct wset *ws = list_first(&h->pool->sets, struct wset, node);
    return ws && wset_phase_in(ws, 1u << WSET_PREPARED) ? ws : NULL;
}

/* The node that is to commit a set is lost, and returns before the set is dropped as an orphan. */
static void test_orphan_returns(void **state)
{
    struct host h[2];
    struct opened o;
    struct wset *ws;
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, nodes, 2);
    both_up(h);
    pool_create(h[0].pool, ask(&o, "p", NULL), pushed_index(2000));
    test_run_until((ws = prepared(&h[1])) != NULL, loop_turn(loop, 1));
    NODES_SET_EVENT(h[1].cluster, ws, 0, .type = SET_ON_FORGET);
    assert_true(wset_phase_in(ws, 1u << WSET_ORPHANED));
    NODES_SET_EVENT(h[1].cluster, ws, 0, .type = SET_ON_HOLD, .conn = UINT64_MAX);
    assert_true(wset_phase_in(ws, 1u << WSET_PREPARED));
    test_run_until(o.done, loop_turn(loop, 10));
    assert_non_null(o.ws);
    test_run_until(wset_is_findable(ws), loop_turn(loop, 10));
    pool_unlease(o.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A later version is committed where the one before it still waits for its own COMMIT: that one is late,
 * and changes nothing. */
static void test_superseded_before_its_commit(void **state)
{
    struct host h[2];
    struct opened o;
    struct wset *ws;
    for (unsigned orphaned = 0; orphaned < 2; orphaned++) {
        addresses(h, 2);
        char *nodes[] = {h[0].address, h[1].address, NULL};
        start(&h[0], token, nodes, 2);
        start(&h[1], token, nodes, 2);
        both_up(h);
        pool_create(h[0].pool, ask(&o, "p", NULL), pushed_index(2000));
        test_run_until((ws = prepared(&h[1])) != NULL, loop_turn(loop, 1));
        if (orphaned) {
            NODES_SET_EVENT(h[1].cluster, ws, 0, .type = SET_ON_FORGET);
            NODES_SET_EVENT(h[1].cluster, ws, 1, .type = SET_ON_HOLD, .conn = UINT64_MAX);
            assert_true(wset_phase_in(ws, 1u << WSET_ORPHANED));
        }
        struct proto_commit later = {.uuid = {1}};
        struct bytes_out body = {0};
        memcpy(later.replaces, ws->uuid, PROTO_UUID);
        proto_commit_put(&body, &later);
        wset_ref(ws);
        assert_int_equal(nodes_on_commit(h[1].cluster, body.data, body.len), 0);
        bytes_out_fini(&body);
        assert_true(wset_phase_in(ws, 1u << WSET_SUPERSEDED));
        test_run_until(o.done, loop_turn(loop, 10));
        turns(20); /* its COMMIT */
        assert_null(named(&h[1], "p"));
        assert_true(wset_phase_in(ws, 1u << WSET_SUPERSEDED | 1u << WSET_ENDED));
        wset_unref(ws);
        if (o.ws)
            pool_unlease(o.ws);
        stop(&h[1]);
        stop(&h[0]);
    }
}

/* A new version for both or for none, and one at a time. */
static void test_append(void **state)
{
    struct host h[2];
    struct opened first, a, b;
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, nodes, 2);
    both_up(h);
    testing_npy("one.npy", 1, 500, 5003);
    testing_npy("two.npy", 2, 300, 5003);
    pool_open(h[0].pool, ask(&first, "s", "one.npy"));
    test_run_until(first.done, loop_turn(loop, 10));
    if (!first.ws)
        fail_msg("%s", first.message);
    struct wset *one = first.ws;
    test_run_until(wset_complete(one), loop_turn(loop, 10));
    struct open_request *ra = ask(&a, "s", "two.npy"), *rb = ask(&b, "s", "two.npy");
    ra->append = rb->append = true;
    pool_open(h[0].pool, ra);
    pool_open(h[1].pool, rb);
    test_run_until(a.done && b.done, loop_turn(loop, 10));
    /* They met at one node, or came one after the other. */
    unsigned done = !!a.ws + !!b.ws;
    assert_true(done >= 1);
    for (unsigned n = 0; n < 2; n++) {
        struct wset *ws = named(&h[n], "s");
        assert_non_null(ws);
        assert_int_equal(ws->index.header->nsamples, 500 + 300 * done);
        assert_int_equal(ws->version, 1 + done);
        test_run_until(wset_complete(ws), loop_turn(loop, 10));
        assert_int_equal(ws->live->resident_samples, 500 + 300 * done);
        static uint8_t row[5003];
        for (uint64_t i = 500; i < 800; i++) {
            testing_bytes(2, (i - 500) * sizeof(row), row, sizeof(row));
            assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
            assert_int_equal(wset_part_crc(ws, i, 0), crc32c(0, row, sizeof(row)));
        }
        assert_int_equal(wset_part_crc(ws, 7, 0), wset_part_crc(one, 7, 0));
    }
    /* The version before stays while it has readers. */
    assert_true(wset_phase_in(one, 1u << WSET_SUPERSEDED));
    assert_ptr_equal(pool_find_uuid(h[0].pool, one->uuid), one);
    pool_unlease(one);
    if (a.ws)
        pool_unlease(a.ws);
    if (b.ws)
        pool_unlease(b.ws);
    stop(&h[1]);
    stop(&h[0]);
}

/* A client by hand, beside the loop that answers it. */
static void say(int fd, uint16_t type, uint64_t id, struct bytes_out *body)
{
    assert_int_equal(net_frame_send(fd, PROTO_VERSION, PROTO_REQUEST, type, id, body, NULL, 0, 0), 0);
    bytes_out_fini(body);
}

static void hear(int fd, uint64_t id, struct net_reply *reply)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    test_run_until(poll(&p, 1, 0) != 0, loop_turn(loop, 10));
    assert_int_equal(net_frame_receive(fd, reply, 0), 0);
    assert_int_equal(reply->frame.id, id);
}

/* For the first n samples; 0: for all. */
static void say_wait(int fd, uint64_t id, uint64_t ws, uint32_t n)
{
    struct bytes_out body = {0};
    bytes_put_u64(&body, ws);
    bytes_put_u32(&body, n);
    for (uint32_t k = 0; k < n; k++)
        bytes_put_u64(&body, k);
    say(fd, PROTO_WAIT, id, &body);
}

static void hear_stale(int fd, uint64_t id)
{
    struct net_reply reply;
    hear(fd, id, &reply);
    assert_int_equal(reply.frame.status, LEAT_STALE);
    net_reply_fini(&reply);
}

/* Dropped before it is whole, by a node that does not read it: waiting clients of the other node get the
 * error, and later ones too. */
static void test_dropped_elsewhere(void **state)
{
    struct host h[2];
    struct opened o;
    struct leat_error err;
    struct net_reply reply;
    struct bytes_out body = {0};
    int fd;
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, nodes, 2);
    both_up(h);
    pool_create(h[0].pool, ask(&o, "p", NULL), pushed_index(2000));
    test_run_until(o.done && named(&h[1], "p") && !wset_is_uncommitted(named(&h[1], "p")),
                   loop_turn(loop, 10));
    assert_int_equal(net_dial(h[1].socket, 0, &fd, &err), 0);
    proto_hello_put(&body, &(struct proto_hello){.version_min = PROTO_VERSION,
                                                 .version_max = PROTO_VERSION,
                                                 .role = PROTO_ROLE_CONTROL});
    say(fd, PROTO_HELLO, 1, &body);
    hear(fd, 1, &reply);
    net_reply_fini(&reply);
    proto_open_put(&body, &(struct proto_open){.name = (char *)"", .uri = (char *)"leat://p"});
    say(fd, PROTO_OPEN, 2, &body);
    hear(fd, 2, &reply);
    struct proto_ws ws;
    assert_int_equal(proto_ws_get(reply.body.data, reply.body.len, &ws), 0);
    net_reply_fini(&reply);
    say_wait(fd, 3, ws.ws, 0);
    say_wait(fd, 4, ws.ws, 1);
    turns(20);
    pool_unlease(o.ws);
    pool_drop(h[0].pool, o.ws, POOL_DROP);
    hear_stale(fd, 3);
    hear_stale(fd, 4);
    say_wait(fd, 5, ws.ws, 0);
    hear_stale(fd, 5);
    say_wait(fd, 6, ws.ws, 1);
    hear_stale(fd, 6);
    proto_ws_fini(&ws);
    close(fd);
    turns(20);
    stop(&h[1]);
    stop(&h[0]);
}

/* A large index is validated off the loop, which continues. */
static void test_loop_goes_on(void **state)
{
    struct host h[1];
    struct opened o;
    addresses(h, 1);
    char *nodes[] = {h[0].address, NULL};
    start(&h[0], token, nodes, 1);
    unsigned turned = 0;
    pool_create(h[0].pool, ask(&o, "p", NULL), pushed_index(12000));
    assert_false(o.done);
    test_run_until(o.done, (loop_turn(loop, 0), turned++));
    assert_non_null(o.ws);
    assert_true(turned > 1);
    pool_unlease(o.ws);
    stop(&h[0]);
}

static void test_other_list(void **state)
{
    struct host h[2];
    struct opened o = {0};
    testing_npy("list.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL}, *swapped[] = {h[1].address, h[0].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, swapped, 2);
    test_run_until(is_up(&h[0], 1) && is_up(&h[1], 1), loop_turn(loop, 100));
    for (unsigned k = 0; k < 2 && !o.code; k++)
        open_at(&h[k], "list.npy", &o);
    assert_null(o.ws);
    if (!strstr(o.message, "the lists must be the same"))
        fail_msg("%d: %s", o.code, o.message);
    print_message("# \"%s\"\n", o.message);
    stop(&h[0]);
    stop(&h[1]);
    /* One that is not on its own list. */
    struct cluster_config cc = {
        .nodes = nodes, .nnodes = 2, .self = "elsewhere:1", .token = token, .token_len = 32};
    struct pool *pool;
    struct cluster *cluster;
    struct leat_error err = {0};
    assert_int_equal(pool_new(loop, &settings, &pool, &err), 0);
    assert_int_equal(cluster_new(loop, pool, &cc, &cluster, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "nodes does not contain listen = elsewhere:1"));
    assert_int_equal(pool_stop(pool), 0);
    pool_free(pool);
}

static int setup(void **state)
{
    setenv("XDG_CACHE_HOME", testing_folder(), 1);
    log_set_level(LOG_LEVEL_ERROR);
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
        cmocka_unit_test(test_set_on_both),
        cmocka_unit_test(test_tells_why),
        cmocka_unit_test(test_another_incarnation),
        cmocka_unit_test(test_first_address_leads_elsewhere),
        cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_other_list),
        cmocka_unit_test(test_regions_move),
        cmocka_unit_test(test_mover_asks_new_host),
        cmocka_unit_test(test_described_after_moves),
        cmocka_unit_test(test_next_version_without_places),
        cmocka_unit_test(test_ready_of_no_incarnation),
        cmocka_unit_test(test_late_ready),
        cmocka_unit_test(test_other_versions),
        cmocka_unit_test(test_dialled_versions),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_name_of_two_addresses),
        cmocka_unit_test(test_gone_while_placed),
        cmocka_unit_test(test_orphan_returns),
        cmocka_unit_test(test_superseded_before_its_commit),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_dropped_elsewhere),
        cmocka_unit_test(test_loop_goes_on),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
