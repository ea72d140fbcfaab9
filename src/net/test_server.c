/* SPDX-License-Identifier: Apache-2.0 */
/* The server's side: writes, an end under load, clients that never read. */
#include "net/test_rig.h"

#include <pthread.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/testing.h"

/* --- the server's side --------------------------------------------------------------------------------------------- */

static void put_write(struct bytes_out *body, uint64_t first, uint32_t samples,
                      const struct proto_range *ranges, uint32_t n)
{
    bytes_out_reset(body);
    bytes_put_u64(body, first);
    bytes_put_u32(body, samples);
    bytes_put_u32(body, n);
    for (uint32_t i = 0; i < n; i++)
        proto_range_put(body, &ranges[i]);
}

/* A WRITE and its payload, in pieces as they come. */
static void send_write(int fd, uint64_t id, const struct bytes_out *body, const void *payload, size_t bytes)
{
    uint8_t head[PROTO_FRAME];
    proto_frame_put(head, &(struct proto_frame){.version = PROTO_VERSION,
                                                .kind = PROTO_REQUEST,
                                                .type = PROTO_WRITE,
                                                .id = id,
                                                .body_bytes = (uint32_t)body->len,
                                                .payload_bytes = bytes});
    assert_int_equal(send(fd, head, sizeof(head), 0), sizeof(head));
    assert_int_equal(send(fd, body->data, body->len, 0), (ssize_t)body->len);
    assert_int_equal(send(fd, payload, bytes, 0), (ssize_t)bytes);
}

static void test_server_write(void **state)
{
    int fds[2];
    struct net_server *server;
    struct pool pool;
    rig_pool_init(&pool);
    AUTO_FREE uint8_t *region = calloc(REGIONS, REGION_BYTES);
    pool.memory = region;
    rig_tcp_pair(fds);
    assert_int_equal(net_server_new(1, &server), 0);
    assert_int_equal(net_server_add(server, fds[1], &pool.target), 0);
    struct proto_range ranges[] = {{1, 100000, 50}, {2, 300000, 0}, {3, 7, 9}};
    AUTO_FREE uint8_t *payload = malloc(400007);
    for (size_t i = 0; i < 400007; i++)
        payload[i] = (uint8_t)(i * 31 + (i >> 8));
    struct bytes_out body = {0}, read = {0};
    put_write(&body, 5, 3, ranges, 3);
    send_write(fds[0], 1, &body, payload, 400007);
    bytes_put_u32(&read, 1); /* a read behind it sees what was written */
    proto_range_put(&read, &ranges[2]);
    assert_int_equal(net_frame_send(fds[0], PROTO_VERSION, PROTO_REQUEST, PROTO_READ, 2, &read, NULL, 0, 0),
                     0);
    ranges[0].gid = 99;
    put_write(&body, 5, 3, ranges, 3);
    send_write(fds[0], 3, &body, payload, 400007);
    ranges[0].gid = 0;
    put_write(&body, 666, 1, ranges, 3); /* written() refuses */
    send_write(fds[0], 4, &body, payload, 400007);
    int statuses[] = {0, 0, LEAT_INVALID, LEAT_INVALID};
    for (unsigned i = 0; i < 4; i++) {
        struct net_reply reply;
        struct leat_error err;
        assert_int_equal(net_frame_receive(fds[0], &reply, 0), 0);
        assert_int_equal(reply.frame.id, i + 1);
        assert_int_equal(net_reply_status(&reply, &err), statuses[i]);
        if (i == 2)
            assert_non_null(strstr(err.message, "region 99"));
        if (i == 1) {
            uint8_t got[7];
            assert_int_equal(reply.frame.payload_bytes, 7);
            assert_int_equal(recv(fds[0], got, 7, MSG_WAITALL), 7);
            assert_memory_equal(got, payload + 400000, 7);
        }
        net_reply_fini(&reply);
    }
    assert_memory_equal(region + REGION_BYTES + 50, payload, 100000);
    assert_memory_equal(region + 2 * REGION_BYTES, payload + 100000, 300000);
    assert_int_equal(pool.written, 4);
    /* Nonsense ends the connection, not the server. */
    put_write(&body, 5, 3, ranges, 3);
    send_write(fds[0], 5, &body, payload, 400006);
    struct net_reply reply;
    assert_int_equal(net_frame_receive(fds[0], &reply, 0), LEAT_PEER_GONE);
    struct net_server_stats stats;
    net_server_stats(server, &stats);
    assert_int_equal(stats.connections, 0);
    assert_int_equal(stats.errors, 2);
    assert_int_equal(pool.unrefs, 1);
    bytes_out_fini(&body);
    bytes_out_fini(&read);
    close(fds[0]);
    net_server_free(server);
}

struct reader {
    pthread_t thread;
    int fd;
};

static void *reader_main(void *arg)
{
    struct reader *reader = arg;
    struct rig r = {.kind = TCP, .raw = -1};
    r.ctx = rig_ctx(TCP);
    rig_connect(&r, reader->fd);
    for (;;) {
        struct test_op *t = op_plain(REGION_BYTES);
        if (r.ctx->ops->submit(r.ep, &t->op) < 0) {
            t->done = t->quiesced = 1;
            op_free(t);
            break;
        }
        rig_run(&r, 1);
        int status = t->op.status;
        op_free(t);
        if (status < 0) {
            assert_int_equal(status, LEAT_PEER_GONE);
            break;
        }
    }
    r.ctx->ops->disconnect(r.ctx, r.ep);
    net_free(r.ctx);
    return NULL;
}

static void test_end_under_load(void **state)
{
    struct net_server *server;
    struct pool pool;
    struct reader readers[4];
    rig_pool_init(&pool);
    pool.memory = malloc((size_t)REGIONS * REGION_BYTES);
    memcpy(pool.memory, rig_memory, (size_t)REGIONS * REGION_BYTES);
    assert_int_equal(net_server_new(2, &server), 0);
    for (unsigned i = 0; i < ARRAY_LEN(readers); i++) {
        int fds[2];
        rig_tcp_pair(fds);
        readers[i].fd = fds[0];
        assert_int_equal(net_server_add(server, fds[1], &pool.target), 0);
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    struct net_server_stats stats;
    test_wait_until((net_server_stats(server, &stats), stats.bytes_sent >= 64 * MIB));
    net_server_free(server);
    assert_int_equal(pool.unrefs, ARRAY_LEN(readers));
    free(pool.memory); /* the sanitizers check that no thread reads it any more */
    for (unsigned i = 0; i < ARRAY_LEN(readers); i++)
        pthread_join(readers[i].thread, NULL);
}

/* The server sees that a client has gone, also when the end comes with one edge together with its last request. */
static void test_server_last_words(void **state)
{
    struct bytes_out body = {0};
    struct proto_range range = {0, 10, 0};
    bytes_put_u32(&body, 1);
    proto_range_put(&body, &range);
    for (unsigned asked = 0; asked < 3; asked++) {
        struct net_server *server;
        struct pool pool;
        uint8_t reply[PROTO_FRAME + 10];
        int fds[2];
        rig_pool_init(&pool);
        rig_tcp_pair(fds);
        for (unsigned i = 0; i < asked; i++)
            assert_int_equal(net_frame_send(fds[0], PROTO_VERSION, PROTO_REQUEST, PROTO_READ, i, &body, NULL,
                                            0, clock_now_ns() + 10 * NS_PER_S),
                             0);
        assert_int_equal(shutdown(fds[0], SHUT_WR), 0);
        assert_int_equal(net_server_new(1, &server), 0);
        assert_int_equal(net_server_add(server, fds[1], &pool.target), 0);
        for (unsigned i = 0; i < asked; i++)
            assert_int_equal(recv(fds[0], reply, sizeof(reply), MSG_WAITALL), sizeof(reply));
        assert_int_equal(recv(fds[0], reply, 1, 0), 0);
        test_wait_until(atomic_load(&pool.unrefs));
        close(fds[0]);
        net_server_free(server);
    }
    bytes_out_fini(&body);
}

/* More than the server sends in a turn, to two at once. */
static void test_server_turns(void **state)
{
    struct rig r;
    rig_init(&r, TCP, true);
    enum { N = 64 };
    struct net_read reads[N];
    for (unsigned i = 0; i < N; i++)
        reads[i] = (struct net_read){.mr_gid = i % REGIONS, .bytes = REGION_BYTES};
    for (uint64_t sent = 0; sent < 48 * MIB; sent += (uint64_t)N * REGION_BYTES) {
        struct test_op *t = op_new(reads, N), *u = op_new(reads, N);
        rig_submit(&r, t);
        rig_submit(&r, u);
        rig_run(&r, 2);
        op_check_good(t);
        op_check_good(u);
        op_free(t);
        op_free(u);
    }
    rig_fini(&r);
}

/* A client that asks and never reads costs the server nothing but its queue. */
static void test_server_slow_reader(void **state)
{
    struct net_server *server;
    struct pool pool;
    int fds[2];
    rig_pool_init(&pool);
    rig_tcp_pair(fds);
    assert_int_equal(net_server_new(1, &server), 0);
    assert_int_equal(net_server_add(server, fds[1], &pool.target), 0);
    struct bytes_out body = {0};
    struct proto_range range = {0, REGION_BYTES, 0};
    bytes_put_u32(&body, 1);
    proto_range_put(&body, &range);
    unsigned asked = 0;
    while (net_frame_send(fds[0], PROTO_VERSION, PROTO_REQUEST, PROTO_READ, asked, &body, NULL, 0,
                          clock_now_ns() + 200 * NS_PER_MS) == 0)
        asked++;
    assert_true(asked > 256);
    struct net_server_stats stats;
    net_server_stats(server, &stats);
    assert_true(stats.requests < asked);
    close(fds[0]);
    net_server_free(server);
    assert_int_equal(pool.unrefs, 1);
    bytes_out_fini(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_write),       cmocka_unit_test(test_end_under_load),
        cmocka_unit_test(test_server_slow_reader), cmocka_unit_test(test_server_last_words),
        cmocka_unit_test(test_server_turns),
    };
    return cmocka_run_group_tests_name("net_server", tests, rig_setup, rig_teardown);
}
