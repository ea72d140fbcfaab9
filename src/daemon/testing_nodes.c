/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/testing_nodes.h"

#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/testing.h"
#include "daemon/server.h"
#include "pool/set/testing.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#include <cmocka.h>

const char token[33] = "0123456789abcdef0123456789abcdef";
struct loop *loop;

void addresses(struct host *hosts, unsigned n)
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

const struct pool_config settings = {.cap_bytes = 16 * MIB,
                                     .region_bytes = 256 * KIB,
                                     .pages = {.huge_dir = -1},
                                     .fill_threads = 1,
                                     .data_threads = 1,
                                     .disk_depth = 4,
                                     .disk_engine = "worker"};

void start_as(struct host *h, char *self, const char *secret, char **nodes, unsigned nnodes)
{
    struct leat_error err = {0};
    struct server_config sc = {.socket = h->socket,
                               .listen = h->address,
                               .token = secret,
                               .token_len = sizeof(token) - 1,
                               .node_name = h->address,
                               .program = "test"};
    struct cluster_config cc = {
        .nodes = nodes, .nnodes = nnodes, .self = self, .token = secret, .token_len = sizeof(token) - 1};
    if (pool_new(loop, &settings, &h->pool, &err) < 0 ||
        server_new(loop, h->pool, &sc, &h->server, &err) < 0 ||
        cluster_new(loop, h->pool, &cc, &h->cluster, &err) < 0)
        fail_msg("%s", err.message);
}

void start(struct host *h, const char *secret, char **nodes, unsigned nnodes)
{
    start_as(h, h->address, secret, nodes, nnodes);
}

void stop(struct host *h)
{
    server_free(h->server);
    assert_int_equal(pool_stop(h->pool), 0);
    cluster_free(h->cluster);
    pool_free(h->pool);
    h->pool = NULL;
    h->server = NULL;
    h->cluster = NULL;
}

bool is_up(struct host *h, unsigned n)
{
    struct cluster_node_view v;
    cluster_node(h->cluster, n, &v);
    return v.connected;
}

void both_up(struct host h[2])
{
    test_run_until(is_up(&h[0], 1) && is_up(&h[1], 0), loop_turn(loop, 10));
}

void on_opened(struct open_request *request, struct wset *ws, const struct leat_error *err)
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

void on_progress(struct open_request *request, uint64_t samples, uint64_t bytes) {}

void open_at(struct host *h, const char *file, struct opened *o)
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
    test_run_until(o->done, loop_turn(loop, 100));
}
