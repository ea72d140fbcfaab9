/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of the module failed in turn: -ENOMEM, nothing leaked, and the next try works. */
#include <setjmp.h>
#include <stdarg.h>

#include "rpc/auth.h"
#include "rpc/conn.h"
#include "net/testing.h"

#include "failalloc.h"

#include <sys/socket.h>

#include <cmocka.h>

static uint8_t region[100000];
static const void *const regions[] = {region};

/* Connects, submits one op of 2000 small reads, polls. */
static int one_op(struct net_ctx *ctx, const struct net_peer *peer)
{
    static struct net_read reads[2000];
    static uint8_t dst[sizeof(region)];
    struct net_endpoint *ep;
    struct net_event events[4];
    int rc = ctx->ops->connect(ctx, peer, 0, &ep, NULL);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < ARRAY_LEN(reads); i++)
        reads[i] = (struct net_read){.offset = i * 40, .bytes = 30, .dst = dst + i * 40};
    struct net_op op = {.reads = reads, .n = ARRAY_LEN(reads)};
    rc = ctx->ops->submit(ep, &op);
    bool quiesced = rc < 0;
    for (unsigned polls = 0; !quiesced; polls++) {
        assert_true(polls < 10);
        int n = ctx->ops->poll(ctx, events, 4, 10000);
        for (int i = 0; i < n; i++)
            quiesced |= events[i].kind == NET_QUIESCED;
    }
    if (rc == 0 && op.status < 0)
        rc = op.status;
    ctx->ops->disconnect(ctx, ep);
    return rc;
}

static int with_shm(void *user)
{
    struct net_ctx *ctx;
    struct net_peer peer = {
        .regions = regions, .nregions = 1, .region_bytes = sizeof(region), .connected_fd = -1};
    int rc = net_shm_new(&ctx);
    if (rc < 0)
        return rc;
    rc = one_op(ctx, &peer);
    net_free(ctx);
    return rc;
}

static int with_sim(void *user)
{
    struct net_ctx *ctx, *lower;
    struct net_sim_node node = {
        .memory = region, .region_bytes = sizeof(region), .nregions = 1, .die_at_ns = 1ull << 40};
    struct net_sim_config config = {.nodes = &node, .nnodes = 1};
    struct net_fault_rules rules = {.late_nth = 1};
    struct net_peer peer = {.connected_fd = -1};
    int rc = net_sim_new(&config, &lower);
    if (rc < 0)
        return rc;
    rc = net_fault_new(lower, &rules, &ctx);
    if (rc < 0) {
        net_free(lower);
        return rc;
    }
    rc = one_op(ctx, &peer);
    net_free(ctx);
    return rc == LEAT_TIMED_OUT ? 0 : rc; /* as the rules say */
}

/* The client's side only: a reply lies ready in the socket before it asks. */
static int with_tcp(void *user)
{
    struct net_ctx *ctx;
    int fds[2];
    uint8_t wire[PROTO_FRAME];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0)
        return -errno;
    proto_frame_put(wire, &(struct proto_frame){.version = PROTO_VERSION,
                                                .kind = PROTO_REPLY,
                                                .type = PROTO_READ,
                                                .payload_bytes = 2000 * 30});
    if (write(fds[1], wire, sizeof(wire)) != sizeof(wire) || write(fds[1], region, 60000) != 60000)
        return -EIO;
    int rc = net_tcp_new(&ctx);
    if (rc == 0) {
        struct net_peer peer = {.connected_fd = fds[0]};
        rc = one_op(ctx, &peer);
        if (rc == 0)
            fds[0] = -1; /* taken */
        net_free(ctx);
    }
    if (rc < 0 && fds[0] >= 0)
        close(fds[0]); /* may be closed already when submit failed: no other thread opens descriptors here */
    close(fds[1]);
    return rc;
}

static int on_message(struct conn *conn, struct conn_message *m)
{
    struct bytes_out body = {0};
    bytes_put_str(&body, "answer");
    conn_send(conn, PROTO_REPLY, m->frame.type, m->frame.id, 0, &body, NULL, 0);
    bytes_out_fini(&body);
    return 0;
}

static void on_closed(struct conn *conn, int status)
{
    *(int *)conn_user(conn) = status;
}

static int with_conn(void *user)
{
    static const struct conn_ops ops = {on_message, on_closed};
    int fds[2], status = 0;
    struct loop *loop = NULL;
    struct conn *conn = NULL;
    struct bytes_out body = {0};
    struct net_reply reply;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0)
        return -errno;
    bytes_put(&body, region, 40000);
    int rc = body.failed ? -ENOMEM : loop_new(&loop);
    if (rc == 0)
        rc = conn_new(loop, fds[1], &ops, &status, NULL, &conn);
    if (rc == 0)
        rc = net_frame_send(fds[0], PROTO_VERSION, PROTO_REQUEST, PROTO_QUERY, 1, &body, NULL, 0, 0);
    for (unsigned i = 0; rc == 0 && i < 5; i++) {
        loop_turn(loop, 1);
        rc = status;
    }
    if (rc == 0)
        rc = net_frame_receive(fds[0], &reply, 0);
    if (rc == 0)
        net_reply_fini(&reply);
    if (conn)
        conn_free(conn);
    else
        close(fds[1]);
    loop_free(loop);
    close(fds[0]);
    bytes_out_fini(&body);
    return rc;
}

static int with_messages(void *user)
{
    struct proto_node nodes[] = {{1, "a:1"}};
    struct proto_region table[] = {{0, 0, 4096, 1}};
    struct proto_ws ws = {.name = (char *)"n",
                          .uri = (char *)"u",
                          .nnodes = 1,
                          .nregions = 1,
                          .nodes = nodes,
                          .regions = table},
                    got;
    struct bytes_out body = {0};
    proto_ws_put(&body, &ws);
    int rc = body.failed ? -ENOMEM : proto_ws_get(body.data, body.len, &got);
    if (rc == 0)
        proto_ws_fini(&got);
    bytes_out_fini(&body);
    return rc;
}

static int with_auth(void *user)
{
    static const char token[] = "0123456789abcdef0123456789abcdef";
    struct proto_hello hello = {.version_min = PROTO_VERSION_MIN,
                                .version_max = PROTO_VERSION,
                                .role = PROTO_ROLE_PEER},
                       said;
    struct proto_welcome welcome;
    struct net_auth client, server;
    struct bytes_out body = {0}, answer = {0};
    uint8_t proof[32];
    net_auth_init(&client, token, 32);
    net_auth_init(&server, token, 32);
    int rc = net_auth_client_start(&client, &hello, &body);
    if (rc == 0)
        rc = net_auth_server_hello(&server, body.data, body.len, &said, &welcome);
    if (rc == 0) {
        proto_welcome_put(&answer, &welcome);
        rc = answer.failed ? -ENOMEM : net_auth_client_welcome(&client, answer.data, answer.len, proof);
    }
    if (rc == 0)
        rc = net_auth_server_proof(&server, proof, 32, welcome.mac);
    if (rc == 0)
        rc = net_auth_client_confirm(&client, &welcome);
    net_auth_fini(&client);
    net_auth_fini(&server);
    bytes_out_fini(&body);
    bytes_out_fini(&answer);
    return rc;
}

static void test_each(void **state)
{
    failalloc_run(with_shm, NULL);
    failalloc_run(with_sim, NULL);
    failalloc_run(with_tcp, NULL);
    failalloc_run(with_conn, NULL);
    failalloc_run(with_messages, NULL);
    failalloc_run(with_auth, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
