/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA over UCX's own TCP, between this process and a child of it: what the library may do to us, every allocation of the client failed
 * in turn, a server that freezes, dies, refuses or lies. What holds for every transport is in test_transport.c.
 */
#include "net/test_rig.h"

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "failalloc.h"
#include "net/ucx/endpoint.h"
#include "net/ucx/serve.h"

/* What the child is told to do by the port that a connection comes to. */
/* TWO: serves by two rails. BREAK: the second of those loses its connections. GO: its device goes, and is not back until BACK. */
enum far { SERVE, SILENT, LIE, OTHER_GENERATION, FALSE_KEY, BEGUN, TWO, BREAK, GO, BACK, KINDS_OF_FAR };
static pid_t child;
static char ports[KINDS_OF_FAR][32];
static const struct net_rdma_config by_tcp = {.rails = "lo", .tls = "tcp"},
                                    put_by_tcp = {.rails = "lo", .tls = "tcp", .put = true},
                                    two_by_tcp = {.rails = "lo,lo", .tls = "tcp"},
                                    put_two_by_tcp = {.rails = "lo,lo", .tls = "tcp", .put = true};

/* --- the child ------------------------------------------------------------------------------------------------------ */

struct target {
    struct pool pool;
    enum far far;
    int (*serve)(struct net_serve_target *target, uint16_t type, struct bytes_in *in, struct bytes_out *reply,
                 const struct net_later *later, struct leat_error *err);
};

static void nap(void *unused)
{
    usleep(200000);
}

static int far_request(struct net_serve_target *t, uint16_t type, struct bytes_in *in,
                       struct bytes_out *reply, const struct net_later *later, struct leat_error *err)
{
    struct target *target = container_of(t, struct target, pool.target);
    if (type == PROTO_RDMA_CONNECT || type == PROTO_RDMA_VIEW || target->far == SERVE || target->far == TWO)
        return target->serve(t, type, in, reply, later, err);
    if (target->far == SILENT)
        return NET_LATER; /* and never again */
    if (target->far == BEGUN &&
        type == PROTO_RDMA_PUT) /* it writes when the client has long heard that it failed */
        loop_post(rig_rdma->rails[0].loop, nap, NULL);
    int rc = target->serve(t, type, in, reply, later, err);
    if (target->far == BEGUN && type == PROTO_RDMA_PUT)
        return rc == NET_LATER ? error_set(err, LEAT_PEER_GONE, "a rail broke") : LEAT_CORRUPT;
    if (target->far == LIE && reply->len > 8)
        reply->data[4] ^= 1; /* another region than was asked for */
    if (target->far == FALSE_KEY && reply->len > 40)
        reply->data[40] ^= 0xff; /* the key's first byte: which devices it is for */
    if (target->far == OTHER_GENERATION && reply->len > 12)
        reply->data[8] ^= 1;
    return rc;
}

struct breaking {
    struct serve_rail *rail;
    enum far what;
    int fd; /* closed when it is done */
};

static ucs_status_t dead_arm(ucp_worker_h worker)
{
    return UCS_ERR_IO_ERROR;
}

/* At once, between two reads: UCX's emulation of gets over TCP aborts otherwise. */
static void go(struct serve_rail *r)
{
    static struct ucx_symbols dead;
    dead = *r->rail.ucx;
    dead.ucp_worker_arm = dead_arm;
    r->rail.ucx = &dead;
    snprintf(r->wanted.name, sizeof(r->wanted.name), "nosuch0");
    r->source.arm(&r->source);
    r->timer.fire(&r->timer);
}

static void break_rail(void *arg)
{
    struct breaking *b = arg;
    if (b->what == GO)
        go(b->rail);
    if (b->what == BACK)
        snprintf(b->rail->wanted.name, sizeof(b->rail->wanted.name), "lo");
    if (b->what == BREAK)
        list_for_each (node, &b->rail->eps)
            container_of(node, struct serve_ep, node)->failed = b->rail->look = true;
    serve_look(b->rail);
    ucx_rail_progress(&b->rail->rail);
    close(b->fd);
    free(b);
}

static void far_main(const int listeners[KINDS_OF_FAR], int ready)
{
    struct net_server *server;
    struct net_rdma_server *two;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rig_setup(NULL);
    if (!rig_rdma || net_rdma_server_new(&two_by_tcp, &two, NULL) < 0 || net_server_new(1, &server) < 0 ||
        write(ready, "y", 1) != 1)
        _exit(1);
    for (;;) {
        struct pollfd fds[KINDS_OF_FAR];
        for (unsigned i = 0; i < KINDS_OF_FAR; i++)
            fds[i] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
        if (poll(fds, KINDS_OF_FAR, -1) < 0)
            continue;
        for (unsigned i = 0; i < KINDS_OF_FAR; i++) {
            if (!fds[i].revents)
                continue;
            if (i == BREAK || i == GO || i == BACK) {
                struct breaking *b = malloc(sizeof(*b));
                *b = (struct breaking){&two->rails[1], (enum far)i, accept(listeners[i], NULL, NULL)};
                loop_post(two->rails[1].loop, break_rail, b);
                continue;
            }
            struct target *target = calloc(1, sizeof(*target)); /* goes with the process */
            rig_pool_init(&target->pool);
            target->pool.rdma = i == TWO ? two : rig_rdma;
            target->far = (enum far)i;
            target->serve = target->pool.target.request;
            target->pool.target.request = far_request;
            net_server_add(server, accept(listeners[i], NULL, NULL), &target->pool.target);
        }
    }
}

static int start_child(void **state)
{
    int listeners[KINDS_OF_FAR], pipes[2];
    char yes;
    for (unsigned i = 0; i < KINDS_OF_FAR; i++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof(a);
        assert_int_equal(net_listen("127.0.0.1:0", 0, &listeners[i], NULL), 0);
        assert_int_equal(getsockname(listeners[i], (struct sockaddr *)&a, &len), 0);
        ucx_address_print((struct sockaddr *)&a, ports[i]);
    }
    assert_int_equal(pipe(pipes), 0);
    child = fork(); /* UCX is loaded by neither yet */
    if (child == 0)
        far_main(listeners, pipes[1]);
    close(pipes[1]);
    if (read(pipes[0], &yes, 1) != 1) {
        print_message("no UCX here: skipped\n");
        child = 0;
    }
    close(pipes[0]);
    for (unsigned i = 0; i < KINDS_OF_FAR; i++)
        close(listeners[i]);
    return 0;
}

static int end_child(void **state)
{
    if (child) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return 0;
}

/* --- one op ---------------------------------------------------------------------------------------------------------- */

static uint8_t dst[REGION_BYTES];

struct one {
    struct net_ctx *ctx;
    struct net_endpoint *ep;
    struct net_memory *memory;
    struct net_read reads[50];
    struct net_op op;
    unsigned done, quiesced;
};

static int one_connect(struct one *x, enum far far, const struct net_rdma_config *config)
{
    struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS, .connected_fd = -1};
    *x = (struct one){0};
    int rc = net_rdma_new(config, &x->ctx, NULL);
    if (rc < 0)
        return rc;
    rc = x->ctx->ops->mem_register(x->ctx, dst, sizeof(dst), -1, &x->memory);
    if (rc == 0)
        rc = net_dial(ports[far], 0, &peer.connected_fd, NULL);
    if (rc == 0)
        rc = x->ctx->ops->connect(x->ctx, &peer, clock_now_ns() + 20 * NS_PER_S, &x->ep, NULL);
    if (rc < 0) {
        if (peer.connected_fd >= 0)
            close(peer.connected_fd);
        net_free(x->ctx);
    }
    return rc;
}

static void one_wait(struct one *x)
{
    struct net_event events[4];
    for (unsigned i = 0; x->quiesced == 0 && i < 100; i++) {
        int n = x->ctx->ops->poll(x->ctx, events, 4, 1000);
        for (int e = 0; e < n; e++) {
            x->done += events[e].kind == NET_DONE;
            x->quiesced += events[e].kind == NET_QUIESCED;
        }
    }
    assert_int_equal(x->done, 1);
    assert_int_equal(x->quiesced, 1);
}

static int one_read(struct one *x, uint64_t deadline_ns)
{
    memset(dst, 0, sizeof(dst));
    x->done = x->quiesced = 0;
    for (unsigned i = 0; i < ARRAY_LEN(x->reads); i++)
        x->reads[i] = (struct net_read){
            .mr_gid = i % REGIONS, .offset = i * 4001, .bytes = 4000, .dst = dst + i * 4000ull};
    x->op = (struct net_op){.reads = x->reads, .n = ARRAY_LEN(x->reads), .deadline_ns = deadline_ns};
    int rc = x->ctx->ops->submit(x->ep, &x->op);
    if (rc == 0) {
        one_wait(x);
        rc = x->op.status;
    }
    return rc;
}

static void one_end(struct one *x)
{
    x->ctx->ops->disconnect(x->ctx, x->ep);
    net_free(x->ctx); /* and what is registered */
}

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

/* --- tests --------------------------------------------------------------------------------------------------------------- */

#define NEEDS_UCX()                                                                                          \
    if (!child)                                                                                              \
    skip()

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
    kill(child, SIGSTOP);
    assert_int_equal(waitpid(child, &stopped, WUNTRACED), child); /* all of its threads */
    int rc = one_read(&x, clock_now_ns() + 100 * NS_PER_MS);
    memset(dst, 0x5a, sizeof(dst)); /* QUIESCED: it is ours again */
    kill(child, SIGCONT);
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

/* Reads by another endpoint of the same context, into memory of its own: what moves the context's rails on. */
static uint8_t aside[4000];
static void read_aside(struct one *x, struct net_endpoint *second)
{
    for (unsigned i = 0; i < 20; i++) {
        x->done = x->quiesced = 0;
        x->reads[0] = (struct net_read){.bytes = sizeof(aside), .dst = aside};
        x->op = (struct net_op){.reads = x->reads, .n = 1};
        assert_int_equal(x->ctx->ops->submit(second, &x->op), 0);
        one_wait(x);
        assert_int_equal(x->op.status, 0);
    }
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
    struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS, .connected_fd = -1};
    struct net_endpoint *second;
    assert_int_equal(net_dial(ports[SERVE], 0, &peer.connected_fd, NULL), 0);
    assert_int_equal(x.ctx->ops->connect(x.ctx, &peer, clock_now_ns() + 20 * NS_PER_S, &second, NULL), 0);
    read_aside(&x, second);
    for (size_t i = 0; i < sizeof(dst); i++)
        assert_int_equal(dst[i], 0x5a);
    assert_int_equal(x.ctx->ops->submit(x.ep, &x.op), LEAT_PEER_GONE);
    x.ctx->ops->disconnect(x.ctx, second);
    one_end(&x);
}

static void tell_child(enum far what)
{
    char bye;
    int fd;
    assert_int_equal(net_dial(ports[what], 0, &fd, NULL), 0);
    assert_int_equal(read(fd, &bye, 1), 0);
    close(fd);
}

static void both_up(struct one *x)
{
    for (unsigned i = 0; i < 1000 && (x->ep->stripe[0].down || x->ep->stripe[1].down); i++)
        assert_int_equal(one_read(x, 0), 0);
    assert_int_equal(x->ep->paths[0].state, PATH_UP);
    assert_int_equal(x->ep->paths[1].state, PATH_UP);
}

static ucs_status_ptr_t no_get(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote_addr, ucp_rkey_h rkey,
                               const ucp_request_param_t *param)
{
    return UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
}

/* The only path that is up breaks in the midst of an op, while another is on its way: the op waits for that one, or for its deadline. */
static void without_a_path(bool comes)
{
    struct one x;
    struct net_event events[4];
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, &two_by_tcp), 0);
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    struct path *coming = &x.ep->paths[0];
    coming->state = PATH_CONNECTING;
    coming->began_ns = clock_now_ns() + 60 * NS_PER_S;
    x.ep->stripe[0].down = true;
    memset(dst, 0, sizeof(dst));
    x.done = x.quiesced = 0;
    const struct ucx_symbols *real = x.ep->ctx->ucx;
    struct ucx_symbols broken = *real;
    broken.ucp_get_nbx = no_get;
    x.ep->ctx->ucx = &broken;
    uint64_t deadline_ns = comes ? 0 : clock_now_ns() + NS_PER_S;
    x.op = (struct net_op){.reads = x.reads, .n = ARRAY_LEN(x.reads), .deadline_ns = deadline_ns};
    assert_int_equal(x.ctx->ops->submit(x.ep, &x.op), 0);
    x.ep->ctx->ucx = real;
    if (!comes) {
        one_wait(&x);
        assert_int_equal(x.op.status, LEAT_TIMED_OUT);
        assert_true(clock_now_ns() >= deadline_ns);
        assert_true(list_empty(&x.ep->lost));
        one_end(&x);
        return;
    }
    for (unsigned i = 0; i < 100 && x.ep->paths[1].state != PATH_CLOSED; i++)
        assert_int_equal(x.ctx->ops->poll(x.ctx, events, 4, 10), 0);
    assert_int_equal(x.ep->paths[1].state, PATH_CLOSED);
    assert_int_equal(x.ctx->ops->poll(x.ctx, events, 4, 10), 0);
    coming->state = PATH_UP;
    stripe_up(&x.ep->stripe[0]);
    x.ep->ctx->look = true;
    one_wait(&x);
    assert_int_equal(x.op.status, 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        assert_int_equal(x.reads[i].crc, crcs[i]);
    one_end(&x);
}

static void test_slices_without_a_path(void **state)
{
    NEEDS_UCX();
    without_a_path(true);
    without_a_path(false);
}

/* Reads go on when a rail breaks (between two of them: UCX's emulation of puts over TCP aborts otherwise), and it carries bytes again after a while. */
static void comes_back(const struct net_rdma_config *config)
{
    struct one x;
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, config), 0);
    const struct path *path = &x.ep->paths[1];
    assert_int_equal(x.ep->npaths, 2);
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    uint64_t until = clock_now_ns() + 60 * NS_PER_S, before = x.ep->stripe[1].total_bytes, others = 0;
    assert_true(before > 0);
    tell_child(BREAK);
    while (clock_now_ns() < until && (path->serial == 0 || x.ep->stripe[1].total_bytes == before)) {
        assert_int_equal(one_read(&x, clock_now_ns() + 20 * NS_PER_S), 0);
        for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
            assert_int_equal(x.reads[i].crc, crcs[i]);
        if (path->serial == 0)
            before = x.ep->stripe[1].total_bytes;
        others += path->state == PATH_CLOSED;
        usleep(1000);
    }
    assert_true(others > 0);
    assert_int_equal(path->serial, 1);
    assert_int_equal(path->state, PATH_UP);
    assert_true(x.ep->stripe[1].total_bytes > before);
    one_end(&x);
}

static void test_a_rail_comes_back(void **state)
{
    NEEDS_UCX();
    comes_back(&two_by_tcp);
    comes_back(&put_two_by_tcp);
}

/* A device that went: nothing is connected by the context that was opened on it. One opened after that one let go of it is well. */
static const struct ucx_symbols *real_ucx;
static ucp_worker_h stale_worker;
static ucp_context_h stale_context;
static unsigned let_go, denied;

static ucs_status_t stale_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ret)
{
    if (let_go == 0 && worker == stale_worker) {
        denied++;
        return UCS_ERR_NO_DEVICE;
    }
    return real_ucx->ucp_ep_create(worker, params, ret);
}

static ucs_status_t stale_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
    let_go += context == stale_context;
    return real_ucx->ucp_mem_unmap(context, memh);
}

/* Reads until `done` says so, with no pause between tries of rail 1. */
static void read_until(struct one *x, const uint32_t *crcs, bool (*done)(const struct one *x))
{
    uint64_t until = clock_now_ns() + 120 * NS_PER_S;
    while (!done(x)) {
        assert_true(clock_now_ns() < until);
        x->ep->stripe[1].down_until_ns = MIN(x->ep->stripe[1].down_until_ns, clock_now_ns());
        x->ep->ctx->mend_ns = 1;
        assert_int_equal(one_read(x, clock_now_ns() + 60 * NS_PER_S), 0);
        for (unsigned i = 0; i < ARRAY_LEN(x->reads); i++)
            assert_int_equal(x->reads[i].crc, crcs[i]);
        assert_int_equal(x->ep->paths[0].serial, 0); /* which nothing happened to */
        usleep(1000);
    }
}

static bool is_closed(const struct one *x)
{
    return !x->ep->ctx->rails[1].worker;
}

static bool is_up(const struct one *x)
{
    return x->ep->paths[1].state == PATH_UP && !x->ep->stripe[1].down;
}

static bool was_denied(const struct one *x)
{
    return denied > 0;
}

static uint64_t bytes_before;
static bool carries(const struct one *x)
{
    return x->ep->stripe[1].total_bytes > bytes_before;
}

/* `away`: the device is not there yet when it is looked for first. */
static void comes_anew(const struct net_rdma_config *config, bool away)
{
    struct one x;
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, config), 0);
    struct ucx_ctx *ctx = x.ep->ctx;
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    const uint32_t id = x.memory->id;
    real_ucx = ctx->ucx;
    struct ucx_symbols stale = *real_ucx;
    stale.ucp_ep_create = stale_ep_create;
    stale.ucp_mem_unmap = stale_mem_unmap;
    stale_worker = ctx->rails[1].worker;
    stale_context = ctx->rails[1].context;
    let_go = denied = 0;
    ctx->ucx = &stale;
    if (away)
        snprintf(ctx->wanted[1].name, sizeof(ctx->wanted[1].name), "nosuch0");
    tell_child(BREAK);
    read_until(&x, crcs, was_denied);
    if (away) {
        struct net_endpoint *second;
        struct net_memory *memory;
        read_until(&x, crcs, is_closed);
        assert_null(x.memory->memh[1]);
        /* What is registered and connected meanwhile does without it, and has it later. */
        assert_int_equal(x.ctx->ops->mem_register(x.ctx, aside, sizeof(aside), -1, &memory), 0);
        assert_null(memory->memh[1]);
        struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS};
        assert_int_equal(net_dial(ports[TWO], 0, &peer.connected_fd, NULL), 0);
        assert_int_equal(x.ctx->ops->connect(x.ctx, &peer, clock_now_ns() + 60 * NS_PER_S, &second, NULL), 0);
        read_aside(&x, second);
        x.ctx->ops->disconnect(x.ctx, second);
        snprintf(ctx->wanted[1].name, sizeof(ctx->wanted[1].name), "lo");
        read_until(&x, crcs, is_up);
        assert_non_null(memory->memh[1]);
    }
    read_until(&x, crcs, is_up);
    assert_int_equal(denied, 2);
    assert_true(let_go > 0);
    assert_non_null(x.memory->memh[1]);
    assert_int_not_equal(x.memory->id, id); /* the far end is told of it anew */
    bytes_before = x.ep->stripe[1].total_bytes;
    read_until(&x, crcs, carries);
    ctx->ucx = real_ucx;
    one_end(&x);
}

static void test_a_device_comes_back(void **state)
{
    NEEDS_UCX();
    comes_anew(&two_by_tcp, false);
    comes_anew(&put_two_by_tcp, false);
    comes_anew(&two_by_tcp, true);
    comes_anew(&put_two_by_tcp, true);
}

static unsigned packs;
static ucs_status_t first_pack(ucp_context_h context, ucp_mem_h memh, void **ret_key, size_t *ret_bytes)
{
    return packs++ ? UCS_ERR_IO_ERROR : real_ucx->ucp_rkey_pack(context, memh, ret_key, ret_bytes);
}

/* A rail that comes, and cannot take all that is registered, is tried for ever: that may not use the numbers up. */
static void test_tries_take_no_numbers(void **state)
{
    NEEDS_UCX();
    struct one x;
    struct net_memory *second;
    assert_int_equal(one_connect(&x, TWO, &put_two_by_tcp), 0);
    struct ucx_ctx *ctx = x.ep->ctx;
    both_up(&x);
    assert_int_equal(x.ctx->ops->mem_register(x.ctx, aside, sizeof(aside), -1, &second), 0);
    tell_child(BREAK);
    while (x.ep->paths[1].state != PATH_CLOSED)
        assert_int_equal(one_read(&x, 0), 0);
    const uint32_t ids = ctx->ids, id = x.memory->id;
    real_ucx = ctx->ucx;
    struct ucx_symbols refusing = *real_ucx;
    refusing.ucp_rkey_pack = first_pack;
    ctx->ucx = &refusing;
    for (unsigned i = 0; i < 3; i++) {
        packs = 0;
        ctx->tries[1] = 2;
        rail_again(ctx, 1);
        assert_int_equal(packs, 2);
        assert_null(ctx->rails[1].worker);
    }
    ctx->ucx = real_ucx;
    assert_int_equal(ctx->ids, ids);
    assert_int_equal(x.memory->id, id);
    rail_again(ctx, 1);
    assert_non_null(ctx->rails[1].worker);
    assert_int_equal(ctx->ids, ids + 2);
    assert_int_not_equal(x.memory->id, id);
    one_end(&x);
}

/* The only rail's device went: the endpoint ends with it, and the next one that is connected opens it anew. */
static void test_the_only_device_comes_back(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    struct ucx_ctx *ctx = x.ep->ctx;
    assert_int_equal(one_read(&x, 0), 0);
    real_ucx = ctx->ucx;
    struct ucx_symbols stale = *real_ucx;
    stale.ucp_ep_create = stale_ep_create;
    stale.ucp_mem_unmap = stale_mem_unmap;
    stale_worker = ctx->rails[0].worker;
    stale_context = ctx->rails[0].context;
    let_go = denied = 0;
    ctx->ucx = &stale;
    x.ctx->ops->disconnect(x.ctx, x.ep);
    int rc = -1;
    for (unsigned i = 0; i < 3 && rc; i++) {
        struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS};
        assert_int_equal(net_dial(ports[SERVE], 0, &peer.connected_fd, NULL), 0);
        rc = x.ctx->ops->connect(x.ctx, &peer, clock_now_ns() + 60 * NS_PER_S, &x.ep, NULL);
        if (rc)
            close(peer.connected_fd);
    }
    assert_int_equal(rc, 0);
    assert_int_equal(denied, 2);
    assert_int_equal(let_go, 1);
    assert_int_equal(one_read(&x, 0), 0);
    ctx->ucx = real_ucx;
    one_end(&x);
}

static bool is_closed_there(const struct one *x)
{
    return x->ep->paths[1].state == PATH_CLOSED && x->ep->paths[1].incarnation == 0;
}

/* Who was not told that the rail was opened anew is turned away, whatever address and keys it has. */
static void the_old_are_refused(struct one *x)
{
    struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS};
    struct net_endpoint *second;
    assert_int_equal(net_dial(ports[TWO], 0, &peer.connected_fd, NULL), 0);
    assert_int_equal(x->ctx->ops->connect(x->ctx, &peer, clock_now_ns() + 60 * NS_PER_S, &second, NULL), 0);
    assert_int_equal(second->npaths, 2);
    assert_int_equal(second->paths[1].incarnation, 0);
    read_aside(x, second); /* what comes meanwhile reads by the other */
    const struct sockaddr_in6 now = x->ep->paths[1].far;
    tell_child(BACK);
    struct path *p = &second->paths[1];
    for (unsigned i = 0; i < 200 && p->state != PATH_UP; i++) {
        second->stripe[1].down_until_ns = 1;
        x->ep->ctx->mend_ns = 1;
        read_aside(x, second);
        usleep(100000);
    }
    assert_int_equal(p->state, PATH_UP);
    assert_true(p->incarnation > 1);
    assert_memory_not_equal(&p->far, &now, sizeof(now));
    const struct sockaddr_in6 far = p->far;
    x->ctx->ops->disconnect(x->ctx, second);
    /* A third one, told of the rail as it was before, connects to where it is now. */
    struct path *old = &x->ep->paths[1];
    assert_int_equal(old->state, PATH_CLOSED);
    old->far = far;
    old->asked = true;
    old->incarnation = 1;
    old->failed = false;
    assert_int_equal(path_begin(old, NULL), 0);
    for (unsigned i = 0; i < 50 && old->state == PATH_CONNECTING; i++) {
        x->done = x->quiesced = 0;
        assert_int_equal(one_read(x, clock_now_ns() + 60 * NS_PER_S), 0);
        assert_int_not_equal(old->state, PATH_UP);
        usleep(1000);
    }
    assert_int_not_equal(old->state, PATH_UP);
}

/* The daemon's device goes: reads go on by its other rail. It comes back: that is listened on elsewhere, by other keys, which are asked
 * for, and carries bytes again by the same endpoint. */
static void comes_anew_there(const struct net_rdma_config *config)
{
    struct one x;
    uint32_t crcs[ARRAY_LEN(x.reads)];
    assert_int_equal(one_connect(&x, TWO, config), 0);
    both_up(&x);
    assert_int_equal(one_read(&x, 0), 0);
    for (unsigned i = 0; i < ARRAY_LEN(crcs); i++)
        crcs[i] = x.reads[i].crc;
    const uint32_t incarnation = x.ep->paths[1].incarnation;
    const struct sockaddr_in6 far = x.ep->paths[1].far;
    assert_true(incarnation > 0);
    tell_child(GO);
    read_until(&x, crcs, is_closed_there);
    the_old_are_refused(&x);
    read_until(&x, crcs, is_up);
    assert_int_equal(x.ep->paths[1].incarnation, incarnation + 1);
    assert_memory_not_equal(&x.ep->paths[1].far, &far, sizeof(far));
    for (unsigned g = 0; g < REGIONS; g++)
        if (x.ep->keys[g].state == KEY_HERE) {
            assert_int_equal(x.ep->keys[g].incarnation[0], 1);
            assert_int_equal(x.ep->keys[g].incarnation[1], incarnation + 1);
        }
    bytes_before = x.ep->stripe[1].total_bytes;
    read_until(&x, crcs, carries);
    one_end(&x);
}

static void test_a_device_of_the_daemon_comes_back(void **state)
{
    NEEDS_UCX();
    comes_anew_there(&two_by_tcp);
    comes_anew_there(&put_two_by_tcp);
}

static void test_turned_away(void **state)
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

/* A client that lies about its keys is cut off; the server goes on. */
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
        assert_int_equal(net_dial(ports[SERVE], 0, &fd, NULL), 0);
        bytes_put_u32(&body, 1);
        bytes_put_u64(&body, 4711);
        struct net_reply reply;
        assert_int_equal(net_frame_send(fd, PROTO_REQUEST, PROTO_RDMA_CONNECT, 1, &body, NULL, 0, 0), 0);
        assert_int_equal(net_frame_receive(fd, &reply, 0), 0);
        net_reply_fini(&reply);
        bytes_out_reset(&body);
        bytes_put_u32(&body, 0);
        bytes_put_u64(&body, 4096);
        bytes_put_u64(&body, 4096);
        bytes_put_u32(&body, 1);
        bytes_put_u32(&body, len);
        bytes_put(&body, key, len);
        assert_int_equal(net_frame_send(fd, PROTO_REQUEST, PROTO_RDMA_VIEW, 2, &body, NULL, 0, 0), 0);
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

#define MANY  200
#define SLOTS 200
struct askers {
    struct net_rdma_server *server;
    struct net_rdma_slot slots[SLOTS];
    _Atomic unsigned given, stale, other;
};

static void *ask_for_keys(void *arg)
{
    struct askers *a = arg;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct bytes_out reply = {0};
        int rc = net_rdma_put_keys(a->server, &a->slots[i], dst, sizeof(dst), &reply, NULL);
        bool good = (rc == 0) == (reply.len > 0);
        atomic_fetch_add(good && rc == 0 ? &a->given : good && rc == LEAT_STALE ? &a->stale : &a->other, 1);
        bytes_out_fini(&reply);
    }
    return NULL;
}

/* Many ask for the keys of the same regions, each is registered once; they are closed amid that, and nothing stays registered. */
static void test_slots(void **state)
{
    static struct askers a;
    pthread_t threads[3];
    struct net_rdma_stats stats;
    NEEDS_UCX();
    assert_int_equal(net_rdma_server_new(&by_tcp, &a.server, NULL), 0);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_keys, &a), 0);
    for (unsigned i = 0; i < SLOTS; i += 2)
        net_rdma_slot_close(&a.slots[i]);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    net_rdma_server_stats(a.server, &stats);
    assert_int_equal(stats.registrations, SLOTS / 2);
    assert_int_equal(a.other, 0);
    assert_int_equal(a.given + a.stale, SLOTS * ARRAY_LEN(threads));
    for (unsigned i = 0; i < SLOTS; i++)
        net_rdma_slot_close(&a.slots[i]);
    net_rdma_server_stats(a.server, &stats);
    assert_int_equal(stats.registrations, 0);
    net_rdma_server_free(a.server);
}

/* Closes the rail, or opens it anew, without its pauses. */
static void go_or_come(void *arg)
{
    struct serve_rail *r = arg;
    atomic_store(&r->lost, r->rail.worker != NULL);
    r->again_ns = 0;
    loop_timer_set(r->loop, &r->timer, clock_now_ns());
}

/* The same while one of two rails goes and comes: each region has parts of those that are open, and none is left over. */
static void test_slots_while_a_rail_goes(void **state)
{
    static struct askers a;
    pthread_t threads[3];
    struct net_rdma_stats stats;
    NEEDS_UCX();
    assert_int_equal(net_rdma_server_new(&two_by_tcp, &a.server, NULL), 0);
    struct serve_rail *r = &a.server->rails[1];
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_keys, &a), 0);
    for (unsigned i = 0; i < SLOTS; i++) {
        if (i % 10 == 0)
            assert_int_equal(loop_post(r->loop, go_or_come, r), 0);
        if (i % 2 == 0)
            net_rdma_slot_close(&a.slots[i]);
        usleep(500);
    }
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(a.other, 0);
    assert_int_equal(a.given + a.stale, SLOTS * ARRAY_LEN(threads));
    for (unsigned tries = 0; !atomic_load(&r->up); tries++) {
        assert_true(tries < 100);
        assert_int_equal(loop_post(r->loop, go_or_come, r), 0);
        usleep(100000);
    }
    assert_true(atomic_load(&r->incarnation) > 1);
    net_rdma_server_stats(a.server, &stats);
    assert_int_equal(stats.registrations, SLOTS / 2);
    assert_true(stats.rails[0].up && stats.rails[1].up);
    for (unsigned i = 1; i < SLOTS; i += 2)
        for (unsigned k = 0; k < 2; k++) {
            assert_non_null(a.slots[i].memory->parts[k].memh);
            assert_int_equal(a.slots[i].memory->parts[k].incarnation,
                             atomic_load(&a.server->rails[k].incarnation));
        }
    for (unsigned i = 0; i < SLOTS; i++)
        net_rdma_slot_close(&a.slots[i]);
    assert_true(list_empty(&a.server->memories));
    net_rdma_server_free(a.server);
}

static void come(void *arg)
{
    struct serve_rail *r = arg;
    snprintf(r->wanted.name, sizeof(r->wanted.name), "lo");
    go_or_come(r);
}

/* A rail that cannot be opened at first is taken in when it can, with what was registered before. */
static void test_a_rail_that_comes_late(void **state)
{
    const struct net_rdma_config config = {.rails = "lo,nosuch0", .tls = "tcp"};
    struct net_rdma_server *server;
    struct net_rdma_slot slot = {0};
    struct bytes_out reply = {0};
    NEEDS_UCX();
    assert_int_equal(net_rdma_server_new(&config, &server, NULL), 0);
    assert_int_equal(server->n, 2);
    struct serve_rail *r = &server->rails[1];
    assert_true(atomic_load(&server->rails[0].up) && !atomic_load(&r->up));
    assert_int_equal(net_rdma_put_keys(server, &slot, dst, sizeof(dst), &reply, NULL), 0);
    assert_null(slot.memory->parts[1].memh);
    assert_int_equal(loop_post(r->loop, come, r), 0);
    for (unsigned i = 0; i < 1000 && !atomic_load(&r->up); i++)
        usleep(10000);
    assert_true(atomic_load(&r->up));
    assert_non_null(slot.memory->parts[1].memh);
    net_rdma_slot_close(&slot);
    net_rdma_server_free(server);
    bytes_out_fini(&reply);
}

/* As a GPU's: the far end writes it, though nobody asked for puts, and no checksum is taken. What cannot be written is refused. */
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

/* Numbers run out, as rails were opened anew again and again, under an op that waits for a path: nothing is asked for by a number
 * that there is none of, and the next op reads. */
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

/* Who connects again and again leaves nothing, here or there. */
static void test_many_connections(void **state)
{
    NEEDS_UCX();
    struct one x, y;
    unsigned here = 0, there = 0;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    for (unsigned i = 0; i < MANY; i++) {
        struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS};
        struct net_endpoint *second;
        assert_int_equal(net_dial(ports[SERVE], 0, &peer.connected_fd, NULL), 0);
        assert_int_equal(x.ctx->ops->connect(x.ctx, &peer, clock_now_ns() + 60 * NS_PER_S, &second, NULL), 0);
        x.ctx->ops->disconnect(x.ctx, second);
        assert_int_equal(one_read(&x, 0), 0); /* moves on what it closes with */
        if (i == MANY / 4) {
            here = open_files(getpid());
            there = open_files(child);
        }
    }
    for (unsigned i = 0; i < 500 && open_files(child) > there + 8; i++)
        usleep(10000);
    assert_true(open_files(getpid()) <= here + 8);
    assert_true(open_files(child) <= there + 8);
    assert_int_equal(one_connect(&y, SERVE, &by_tcp), 0);
    assert_true(list_empty(&x.ep->ctx->comings));
    one_end(&y);
    one_end(&x);
}

/* The last: nobody is there afterwards. */
static void test_dies(void **state)
{
    NEEDS_UCX();
    struct one x;
    assert_int_equal(one_connect(&x, SERVE, &by_tcp), 0);
    assert_int_equal(one_read(&x, 0), 0);
    end_child(NULL);
    assert_int_equal(one_read(&x, clock_now_ns() + 20 * NS_PER_S), LEAT_PEER_GONE);
    one_end(&x);
    child = 0;
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
        cmocka_unit_test(test_slices_without_a_path),
        cmocka_unit_test(test_a_rail_comes_back),
        cmocka_unit_test(test_a_device_comes_back),
        cmocka_unit_test(test_tries_take_no_numbers),
        cmocka_unit_test(test_the_only_device_comes_back),
        cmocka_unit_test(test_a_device_of_the_daemon_comes_back),
        cmocka_unit_test(test_turned_away),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_subnets),
        cmocka_unit_test(test_kept_keys_are_small),
        cmocka_unit_test(test_false_keys),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_slots_while_a_rail_goes),
        cmocka_unit_test(test_a_rail_that_comes_late),
        cmocka_unit_test(test_gpu_memory),
        cmocka_unit_test(test_numbers_run_out_under_an_op),
        cmocka_unit_test(test_many_connections),
        cmocka_unit_test(test_dies), /* the last */
    };
    return cmocka_run_group_tests(tests, start_child, end_child);
}
