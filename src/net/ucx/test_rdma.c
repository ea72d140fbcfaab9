/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA over UCX's own TCP, between this process and a child of it: what the library may do to us, every allocation of the client failed
 * in turn, a server that freezes, dies, refuses or lies. What holds for every transport is in test_transport.c, rails that go and come in
 * test_rails.c, the daemon's registrations in test_slots.c.
 */
#include "net/ucx/testing.h"

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "failalloc.h"

static int whole(void *user)
{
    struct one x;
    int rc = one_connect(&x, SERVE, user);
    if (rc < 0)
        return rc;
    rc = one_read(&x, 0);
    one_end(&x);
    return rc;
}

/* First of all: it is loaded here. */
static void test_the_process_stays_as_it_was(void **state)
{
    NEEDS_UCX();
    const void *functions[] = {dlsym(RTLD_DEFAULT, "mmap"), dlsym(RTLD_DEFAULT, "munmap"),
                               dlsym(RTLD_DEFAULT, "madvise"), dlsym(RTLD_DEFAULT, "mremap")};
    uint8_t code[ARRAY_LEN(functions)][32];
    struct sigaction segv, bus, now;
    const char *path = getenv("PATH");
    const struct ucx_symbols *ucx;
    for (unsigned i = 0; i < ARRAY_LEN(functions); i++)
        memcpy(code[i], functions[i], sizeof(code[i]));
    sigaction(SIGSEGV, NULL, &segv);
    sigaction(SIGBUS, NULL, &bus);
    assert_int_equal(ucx_load(&ucx, NULL), 0);
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(functions); i++)
        assert_memory_equal(code[i], functions[i], sizeof(code[i]));
    one_end(&x);
    sigaction(SIGSEGV, NULL, &now);
    assert_true(now.sa_handler == segv.sa_handler);
    sigaction(SIGBUS, NULL, &now);
    assert_true(now.sa_handler == bus.sa_handler);
    assert_null(getenv("UCX_MEM_EVENTS"));
    assert_null(getenv("UCX_HANDLE_ERRORS"));
    assert_string_equal(getenv("PATH"), path);
}

static void test_allocations_fail(void **state)
{
    NEEDS_UCX();
    assert_true(failalloc_run(whole, (void *)&by_tcp) > 5);
    assert_true(failalloc_run(whole, (void *)&put_by_tcp) > 5);
}

static void stays_silent(const struct net_rdma_config *config)
{
    struct one x;
    assert_int_equal(one_connect(&x, SILENT, config), 0);
    assert_int_equal(one_read(&x, clock_now_ns() + 50 * NS_PER_MS), LEAT_TIMED_OUT);
    assert_int_equal(x.ctx->stats.timeouts, 1);
    assert_int_equal(x.ctx->stats.in_flight_bytes, 0);
    assert_int_equal(x.ctx->ops->submit(x.ep, &x.op), LEAT_PEER_GONE);
    one_end(&x);
}

static void test_silence(void **state)
{
    NEEDS_UCX();
    stays_silent(&by_tcp);
    stays_silent(&put_by_tcp);
}

static void test_lies(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, LIE, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), LEAT_CORRUPT);
    one_end(&x);
    assert_int_equal(one_connect(&x, FALSE_KEY, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), LEAT_CORRUPT);
    one_end(&x);
    assert_int_equal(one_connect(&x, OTHER_GENERATION, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), LEAT_STALE);
    one_end(&x);
}

/* What is asked for while the server is frozen times out; what it does when it thaws changes nothing any more. (Puts: gets over TCP
 * are emulated in the server, where UCX 1.13 aborts when it cannot answer any more. On verbs there is nothing to answer.) */
static void test_freezes(void **state)
{
    const struct net_rdma_config *config = &put_by_tcp;
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, config), 0);
    assert_int_equal(one_read(&x, 0), 0);
    int stopped;
    kill(far_child, SIGSTOP);
    assert_int_equal(waitpid(far_child, &stopped, WUNTRACED), far_child); /* all of its threads */
    int rc = one_read(&x, clock_now_ns() + 100 * NS_PER_MS);
    memset(dst, 0x5a, sizeof(dst)); /* QUIESCED: it is ours again */
    kill(far_child, SIGCONT);
    assert_int_equal(rc, LEAT_TIMED_OUT);
    struct one y;
    assert_int_equal(one_connect(&y, SERVE, config), 0); /* it is awake */
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(x.ctx->ops->poll(x.ctx, (struct net_event[1]){{0}}, 1, 1), 0);
    for (size_t i = 0; i < sizeof(dst); i++)
        assert_int_equal(dst[i], 0x5a);
    assert_int_equal(one_read(&y, 0), 0);
    one_end(&x);
    one_end(&y);
}

/* A put that failed may have begun: what it still writes lands nowhere once its op is QUIESCED. */
static void test_late_put(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, BEGUN, &put_by_tcp), 0);
    assert_int_equal(one_read(&x, 0), LEAT_PEER_GONE);
    memset(dst, 0x5a, sizeof(dst));
    /* The rail's thread takes this connection after it has written; to read by it drives what would let those bytes in. */
    struct net_endpoint *second;
    assert_int_equal(one_connect_second(&x, SERVE, &second), 0);
    read_aside(&x, second);
    for (size_t i = 0; i < sizeof(dst); i++)
        assert_int_equal(dst[i], 0x5a);
    assert_int_equal(x.ctx->ops->submit(x.ep, &x.op), LEAT_PEER_GONE);
    x.ctx->ops->disconnect(x.ctx, second);
    one_end(&x);
}

/* A daemon that is frozen just when a rail is connected to it: it answers when it thaws, or never. */
static const struct ucx_symbols *real_ucx;
static bool thaws;
static pthread_t thawing;

static void *thaw(void *unused)
{
    test_pause_us(4000000); /* longer than the default wait */
    kill(far_child, SIGCONT);
    return NULL;
}

static ucs_status_t freeze_and_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ret)
{
    int stopped;
    kill(far_child, SIGSTOP);
    assert_int_equal(waitpid(far_child, &stopped, WUNTRACED), far_child);
    if (thaws)
        assert_int_equal(pthread_create(&thawing, NULL, thaw, NULL), 0);
    return real_ucx->ucp_ep_create(worker, params, ret);
}

static int connect_frozen(const char *seconds)
{
    struct one x;
    struct net_endpoint *second = NULL;
    setenv("LEAT_RDMA_CONNECT", seconds, 1);
    int rc = one_connect(&x, SERVE, &put_by_tcp);
    unsetenv("LEAT_RDMA_CONNECT");
    if (rc)
        return rc;
    struct ucx_ctx *ctx = x.ep->ctx;
    struct ucx_symbols freezing = *(real_ucx = ctx->ucx);
    freezing.ucp_ep_create = freeze_and_create;
    ctx->ucx = &freezing;
    rc = one_connect_second(&x, SERVE, &second);
    ctx->ucx = real_ucx;
    if (thaws)
        pthread_join(thawing, NULL);
    kill(far_child, SIGCONT);
    x.ctx->ops->disconnect(x.ctx, second);
    assert_int_equal(one_read(&x, 0), 0);
    one_end(&x);
    return rc;
}

static void test_a_rail_that_answers_late(void **state)
{
    NEEDS_UCX();
    assert_int_equal(connect_frozen("0"), LEAT_INVALID);
    assert_int_equal(connect_frozen("soon"), LEAT_INVALID);
    thaws = false;
    assert_int_equal(connect_frozen("1"), LEAT_UNSUPPORTED);
    thaws = true;
    assert_int_equal(connect_frozen("50"), 0);
}

static void test_over_limit(void **state)
{
    NEEDS_UCX();
    struct net_ctx *ctx;
    struct leat_error err = {0};
    struct net_rdma_config config = {.rails = "nosuch0", .tls = "tcp"};
    assert_int_equal(net_rdma_new(&config, &ctx, &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "nosuch0"));
    config = (struct net_rdma_config){.rails = "nosuch_0:1", .tls = "rc_verbs"};
    assert_true(net_rdma_new(&config, &ctx, &err) < 0);
    assert_non_null(strstr(err.message, "nosuch_0"));
    config = (struct net_rdma_config){.rails = "lo", .tls = "smoke"};
    assert_true(net_rdma_new(&config, &ctx, &err) < 0);
    assert_true(err.message[0]);
}

static void test_addresses(void **state)
{
    static const char *const good[] = {"10.1.2.3:4567", "[::1]:80", "[fe80::1:2]:65535"};
    static const char *const bad[] = {"",         "10.1.2.3", "10.1.2.3:0", "10.1.2.3:65536",
                                      "10.1.2:5", "::1:80",   "[::1]",      "[10.0.0.1]:5",
                                      "[:5",      "]:5",      ":5"};
    struct sockaddr_in6 a;
    char text[80];
    for (unsigned i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(ucx_address_parse(good[i], &a), 0);
        ucx_address_print((struct sockaddr *)&a, text);
        assert_string_equal(text, good[i]);
    }
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(ucx_address_parse(bad[i], &a), LEAT_CORRUPT);
}

static void test_subnets(void **state)
{
    struct ucx_rail rail = {0};
    struct sockaddr_in6 near, far, other;
    ucx_address_parse("10.1.2.3:1", &rail.address);
    ucx_address_parse("255.255.0.0:1", &rail.netmask);
    ucx_address_parse("10.1.9.9:1", &near);
    ucx_address_parse("10.2.2.3:1", &far);
    ucx_address_parse("[::1]:1", &other);
    assert_true(ucx_same_subnet(&rail, &near));
    assert_false(ucx_same_subnet(&rail, &far));
    assert_false(ucx_same_subnet(&rail, &other));
}

/* A connection may have 1,024 views kept, each with keys of 16 rails. */
static void test_kept_keys_are_small(void **state)
{
    const uint8_t packed[64] = {1};
    uint8_t *copy = ucx_key_copy(packed, sizeof(packed));
    assert_memory_equal(copy, packed, sizeof(packed));
    assert_int_equal(copy[sizeof(packed)], 0);
    assert_true(malloc_usable_size(copy) < 1024);
    free(copy);
}

/* A client that sends false keys is disconnected; the server continues. */
static void test_false_keys(void **state)
{
    NEEDS_UCX();
    for (unsigned i = 0; i < 40; i++) {
        struct one x;
        struct bytes_out body = {0};
        uint8_t key[64];
        uint32_t len = i < 20 ? 10 : (uint32_t)(rig_rng() % sizeof(key));
        for (unsigned k = 0; k < sizeof(key); k++)
            key[k] = (uint8_t)rig_rng();
        int fd;
        assert_int_equal(net_dial(far_ports[SERVE], 0, &fd, NULL), 0);
        bytes_put_u32(&body, 1);
        bytes_put_u64(&body, 4711);
        struct net_reply reply;
        assert_int_equal(
            net_frame_send(fd, PROTO_VERSION, PROTO_REQUEST, PROTO_RDMA_CONNECT, 1, &body, NULL, 0, 0), 0);
        assert_int_equal(net_frame_receive(fd, &reply, 0), 0);
        net_reply_fini(&reply);
        bytes_out_reset(&body);
        bytes_put_u32(&body, 0);
        bytes_put_u64(&body, 4096);
        bytes_put_u64(&body, 4096);
        bytes_put_u32(&body, 1);
        bytes_put_u32(&body, len);
        bytes_put(&body, key, len);
        assert_int_equal(
            net_frame_send(fd, PROTO_VERSION, PROTO_REQUEST, PROTO_RDMA_VIEW, 2, &body, NULL, 0, 0), 0);
        assert_int_equal(net_frame_receive(fd, &reply, clock_now_ns() + 20 * NS_PER_S), LEAT_PEER_GONE);
        bytes_out_fini(&body);
        close(fd);
        if (i == 39) {
            assert_int_equal(one_connect(&x, SERVE, &put_by_tcp), 0);
            assert_int_equal(one_read(&x, 0), 0);
            one_end(&x);
        }
    }
}

/* Like a GPU's: the far end writes it, though puts were not requested, and takes no checksum. Memory that
 * cannot be written is refused. */
static void test_gpu_memory(void **state)
{
    NEEDS_UCX();
    struct one x;
    struct net_path_info paths[NET_RDMA_RAILS_MAX];
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), 0);
    assert_int_equal(net_rdma_paths(x.ep, paths), 1);
    assert_int_equal(paths[0].put_bytes, 0);
    const uint32_t crc = x.reads[0].crc;
    x.ctx->ops->mem_deregister(x.ctx, x.memory);
    assert_int_equal(x.ctx->ops->mem_register(x.ctx, dst, sizeof(dst), 0, &x.memory), 0);
    assert_true(net_rdma_may_put(x.memory));
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(x.reads); i++)
        assert_int_equal(x.reads[i].crc, 0);
    assert_int_equal(crc32c(0, dst, x.reads[0].bytes), crc);
    net_rdma_paths(x.ep, paths);
    assert_int_equal(paths[0].put_bytes, x.op.n * 4000);
    x.memory->id = PROTO_VIEWS_MAX; /* its numbers are used up */
    assert_false(net_rdma_may_put(x.memory));
    assert_int_equal(one_read(&x, 0), LEAT_UNSUPPORTED);
    one_end(&x);
}

/* Numbers run out under an op that waits for a path, as rails were opened again and again: no request uses a
 * number that does not exist, and the next op reads. */
static void test_numbers_run_out_under_an_op(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, &put_by_tcp), 0);
    assert_int_equal(one_read(&x, 0), 0);
    const uint32_t crc = x.reads[0].crc;
    const uint64_t requests = x.ep->next_id;
    x.done = x.quiesced = 0;
    x.ep->stripe[0].down = true;
    x.op = (struct net_op){.reads = x.reads, .n = ARRAY_LEN(x.reads)};
    assert_int_equal(x.ctx->ops->submit(x.ep, &x.op), 0);
    x.memory->id = PROTO_VIEWS_MAX;
    x.ep->stripe[0].down = false;
    x.ep->ctx->look = true;
    one_wait(&x);
    assert_int_equal(x.op.status, LEAT_PEER_GONE);
    assert_int_equal(x.ep->next_id, requests);
    assert_int_equal(one_read(&x, 0), 0);
    assert_int_equal(x.reads[0].crc, crc);
    one_end(&x);
}

#define MANY 200

static unsigned open_files(pid_t pid)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

/* A client that connects again and again leaves nothing, here or there. */
static void test_many_connections(void **state)
{
    NEEDS_UCX();
    struct one x, y;
    unsigned here = 0, there = 0;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    for (unsigned i = 0; i < MANY; i++) {
        struct net_endpoint *second;
        assert_int_equal(one_connect_second(&x, SERVE, &second), 0);
        x.ctx->ops->disconnect(x.ctx, second);
        assert_int_equal(one_read(&x, 0), 0); /* moves on what it closes with */
        if (i == MANY / 4) {
            here = open_files(getpid());
            there = open_files(far_child);
        }
    }
    test_wait_until(open_files(far_child) <= there + 8);
    assert_true(open_files(getpid()) <= here + 8);
    assert_int_equal(one_connect(&y, SERVE, &by_tcp), 0);
    assert_true(list_empty(&x.ep->ctx->comings));
    one_end(&y);
    one_end(&x);
}

/* The last one: no far end is left afterwards. */
static void test_dies(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), 0);
    far_end(NULL);
    assert_int_equal(one_read(&x, clock_now_ns() + 20 * NS_PER_S), LEAT_PEER_GONE);
    one_end(&x);
    far_child = 0;
    assert_true(one_connect(&x, SERVE, &by_tcp) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_process_stays_as_it_was), /* the first */
        cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_freezes),
        cmocka_unit_test(test_late_put),
        cmocka_unit_test(test_a_rail_that_answers_late),
        cmocka_unit_test(test_over_limit),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_subnets),
        cmocka_unit_test(test_kept_keys_are_small),
        cmocka_unit_test(test_false_keys),
        cmocka_unit_test(test_gpu_memory),
        cmocka_unit_test(test_numbers_run_out_under_an_op),
        cmocka_unit_test(test_many_connections),
        cmocka_unit_test(test_dies), /* the last */
    };
    return cmocka_run_group_tests(tests, far_start, far_end);
}
