/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons' pools, servers and clusters on one loop, over TCP of this host: one set on both, and what they refuse each other. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "loop/loop.h"
#include "pool/cluster.h"
#include "pool/peer.h"
#include "pool/server.h"
#include "pool/testing.h"
#include "pool/wset.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#include <cmocka.h>

static const char token[] = "0123456789abcdef0123456789abcdef", other[] = "0123456789abcdef0123456789abcdeX";

static struct loop *loop;

struct host {
    char address[32], socket[600];
    struct pool *pool;
    struct server *server;
    struct cluster *cluster;
};

/* Ports that nobody has just now. */
static void addresses(struct host *hosts, unsigned n)
{
    int fds[4];
    for (unsigned k = 0; k < n; k++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof(a);
        fds[k] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fds[k], (struct sockaddr *)&a, sizeof(a)), 0);
        assert_int_equal(getsockname(fds[k], (struct sockaddr *)&a, &len), 0);
        hosts[k] = (struct host){0};
        snprintf(hosts[k].address, sizeof(hosts[k].address), "127.0.0.1:%u", ntohs(a.sin_port));
        snprintf(hosts[k].socket, sizeof(hosts[k].socket), "%s/%u.sock", testing_folder(), k);
    }
    for (unsigned k = 0; k < n; k++)
        close(fds[k]);
}

static void start(struct host *h, const char *secret, char **nodes, unsigned nnodes)
{
    struct leat_error err = {0};
    struct pool_config pc = {.cap_bytes = 16 * MIB,
                             .region_bytes = 256 * KIB,
                             .pages = {.huge_dir = -1},
                             .fill_threads = 1,
                             .data_threads = 1,
                             .disk_depth = 4,
                             .disk_engine = "worker"};
    struct server_config sc = {.socket = h->socket,
                               .socket_mode = 0600,
                               .listen = h->address,
                               .token = secret,
                               .token_len = sizeof(token) - 1,
                               .node_name = h->address,
                               .program = "test"};
    struct cluster_config cc = {.nodes = nodes,
                                .nnodes = nnodes,
                                .self = h->address,
                                .token = secret,
                                .token_len = sizeof(token) - 1};
    if (pool_new(loop, &pc, &h->pool, &err) < 0 || server_new(loop, h->pool, &sc, &h->server, &err) < 0 ||
        cluster_new(loop, h->pool, &cc, &h->cluster, &err) < 0)
        fail_msg("%s", err.message);
}

static void stop(struct host *h)
{
    server_free(h->server);
    assert_int_equal(pool_stop(h->pool), 0);
    cluster_free(h->cluster);
    pool_free(h->pool);
    h->pool = NULL;
    h->server = NULL;
    h->cluster = NULL;
}

static bool is_up(struct host *h, unsigned n)
{
    const char *address;
    bool self;
    return cluster_node(h->cluster, n, &address, &self);
}

struct opened {
    bool done;
    struct wset *ws;
    int code;
    char message[LEAT_ERROR_MESSAGE_MAX];
};

static void on_opened(struct open_request *request, struct wset *ws, const struct leat_error *err)
{
    struct opened *o = request->user;
    o->done = true;
    o->ws = ws;
    if (ws) {
        pool_lease(ws);
    } else {
        o->code = err->code;
        snprintf(o->message, sizeof(o->message), "%s", err->message);
    }
}

static void on_progress(struct open_request *request, uint64_t samples, uint64_t bytes) {}

static void open_at(struct host *h, const char *file, struct opened *o)
{
    char uri[700];
    *o = (struct opened){0};
    struct open_request *r = calloc(1, sizeof(*r));
    snprintf(uri, sizeof(uri), "%s/%s", testing_folder(), file);
    *r = (struct open_request){.uid = geteuid(),
                               .gid = getegid(),
                               .name = strdup(""),
                               .uri = strdup(uri),
                               .opened = on_opened,
                               .progress = on_progress,
                               .user = o,
                               .began_ns = clock_now_ns()};
    pool_open(h->pool, r);
    while (!o->done)
        loop_turn(loop, 100);
}

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
    while (!is_up(&h[0], 1) || !is_up(&h[1], 0))
        loop_turn(loop, 100);
    open_at(&h[0], "both.npy", &o);
    if (!o.ws)
        fail_msg("%d: %s", o.code, o.message);
    struct wset *ws = o.ws, *theirs = pool_find_uuid(h[1].pool, ws->uuid);
    assert_non_null(theirs);
    while (!wset_complete(ws) || !wset_complete(theirs))
        loop_turn(loop, 100);
    assert_int_equal(ws->nnodes, 2);
    unsigned on[2] = {0};
    for (uint32_t g = 0; g < ws->nregions; g++) {
        unsigned n = ws->regions[g].node;
        on[n]++;
        assert_int_equal(theirs->regions[g].node, n);
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
    while (ws->live->lost_samples == 0)
        loop_turn(loop, 100);
    assert_false(is_up(&h[0], 1));
    for (uint64_t i = 0; i < ROWS; i++) {
        struct index_part part = {0};
        index_part(&ws->index, i, 0, &part);
        bool there = ws->regions[part.address / ws->region_bytes].node == 1 ||
                     ws->regions[(part.address + ROW - 1) / ws->region_bytes].node == 1;
        assert_int_equal(wset_sample_state(ws, i), there ? LIVE_LOST : LIVE_RESIDENT);
    }
    /* It is started anew and knows nothing: they stay lost. */
    start(&h[1], token, nodes, 2);
    while (!is_up(&h[0], 1))
        loop_turn(loop, 100);
    for (unsigned k = 0; k < 20; k++)
        loop_turn(loop, 1);
    assert_true(ws->live->lost_samples > 0);
    pool_unlease(ws);
    stop(&h[1]);
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
    while (!down_status && !came_up)
        loop_turn(loop, 100);
    assert_false(came_up);
    assert_int_equal(down_status, LEAT_DENIED);
    assert_non_null(strstr(down_message, "token"));
    peer_free(peer);
    /* With the right one, the same road leads in. */
    down_status = 0;
    pc.token = token;
    assert_int_equal(peer_new(loop, &pc, &peer), 0);
    while (!down_status && !came_up)
        loop_turn(loop, 100);
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

static void test_other_list(void **state)
{
    struct host h[2];
    struct opened o = {0};
    testing_npy("list.npy", 1, 600, 5003);
    addresses(h, 2);
    char *nodes[] = {h[0].address, h[1].address, NULL}, *swapped[] = {h[1].address, h[0].address, NULL};
    start(&h[0], token, nodes, 2);
    start(&h[1], token, swapped, 2);
    while (!is_up(&h[0], 1) || !is_up(&h[1], 1))
        loop_turn(loop, 100);
    for (unsigned k = 0; k < 2 && !o.code; k++)
        open_at(&h[k], "list.npy", &o);
    assert_null(o.ws);
    if (!strstr(o.message, "the lists must be the same"))
        fail_msg("%d: %s", o.code, o.message);
    print_message("# \"%s\"\n", o.message);
    stop(&h[0]);
    stop(&h[1]);
    /* One that is not on its own list. */
    struct pool_config pc = {.cap_bytes = 16 * MIB,
                             .region_bytes = 256 * KIB,
                             .pages = {.huge_dir = -1},
                             .fill_threads = 1,
                             .data_threads = 1,
                             .disk_depth = 4,
                             .disk_engine = "worker"};
    struct cluster_config cc = {
        .nodes = nodes, .nnodes = 2, .self = "elsewhere:1", .token = token, .token_len = 32};
    struct pool *pool;
    struct cluster *cluster;
    struct leat_error err = {0};
    assert_int_equal(pool_new(loop, &pc, &pool, &err), 0);
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
        cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_other_list),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
