/* SPDX-License-Identifier: Apache-2.0 */
/* testing.c: see testing.h. */
#include "net/ucx/testing.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/testing.h"

pid_t far_child;
char far_ports[KINDS_OF_FAR][32];
const struct net_rdma_config by_tcp = {.rails = "lo", .tls = "tcp"},
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
    test_pause_us(200000);
}

static int far_request(struct net_serve_target *t, uint16_t type, struct bytes_in *in,
                       struct bytes_out *reply, const struct net_later *later, struct leat_error *err)
{
    struct target *target = container_of(t, struct target, pool.target);
    if (type == PROTO_RDMA_CONNECT || type == PROTO_RDMA_VIEW || target->far == SERVE || target->far == TWO)
        return target->serve(t, type, in, reply, later, err);
    if (target->far == SILENT)
        return NET_LATER; /* and never again */
    /* It writes long after the client got an error. */
    if (target->far == BEGUN && type == PROTO_RDMA_PUT)
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

int far_start(void **state)
{
    int listeners[KINDS_OF_FAR], pipes[2];
    char yes;
    for (unsigned i = 0; i < KINDS_OF_FAR; i++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof(a);
        assert_int_equal(net_listen("127.0.0.1:0", 0, &listeners[i], NULL), 0);
        assert_int_equal(getsockname(listeners[i], (struct sockaddr *)&a, &len), 0);
        ucx_address_print((struct sockaddr *)&a, far_ports[i]);
    }
    assert_int_equal(pipe(pipes), 0);
    far_child = fork(); /* UCX is loaded by neither yet */
    if (far_child == 0)
        far_main(listeners, pipes[1]);
    close(pipes[1]);
    if (read(pipes[0], &yes, 1) != 1) {
        print_message("no UCX here: skipped\n");
        far_child = 0;
    }
    close(pipes[0]);
    for (unsigned i = 0; i < KINDS_OF_FAR; i++)
        close(listeners[i]);
    return 0;
}

int far_end(void **state)
{
    if (far_child) {
        kill(far_child, SIGKILL);
        waitpid(far_child, NULL, 0);
    }
    return 0;
}

void far_tell(enum far what)
{
    char bye;
    int fd;
    assert_int_equal(net_dial(far_ports[what], 0, &fd, NULL), 0);
    assert_int_equal(read(fd, &bye, 1), 0);
    close(fd);
}

/* --- one op ---------------------------------------------------------------------------------------------------------- */

uint8_t dst[REGION_BYTES], aside[4000];

int one_connect(struct one *x, enum far far, const struct net_rdma_config *config)
{
    struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS, .connected_fd = -1};
    *x = (struct one){0};
    int rc = net_rdma_new(config, &x->ctx, NULL);
    if (rc < 0)
        return rc;
    rc = x->ctx->ops->mem_register(x->ctx, dst, sizeof(dst), -1, &x->memory);
    if (rc == 0)
        rc = net_dial(far_ports[far], 0, &peer.connected_fd, NULL);
    if (rc == 0)
        rc = x->ctx->ops->connect(x->ctx, &peer, clock_now_ns() + 20 * NS_PER_S, &x->ep, NULL);
    if (rc < 0) {
        if (peer.connected_fd >= 0)
            close(peer.connected_fd);
        net_free(x->ctx);
    }
    return rc;
}

int one_connect_second(struct one *x, enum far far, struct net_endpoint **ret_second)
{
    struct net_peer peer = {.generation = RIG_GENERATION, .nregions = REGIONS, .connected_fd = -1};
    assert_int_equal(net_dial(far_ports[far], 0, &peer.connected_fd, NULL), 0);
    int rc = x->ctx->ops->connect(x->ctx, &peer, clock_now_ns() + 60 * NS_PER_S, ret_second, NULL);
    if (rc)
        close(peer.connected_fd);
    return rc;
}

void one_wait(struct one *x)
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

int one_read(struct one *x, uint64_t deadline_ns)
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

void read_aside(struct one *x, struct net_endpoint *second)
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

void one_end(struct one *x)
{
    x->ctx->ops->disconnect(x->ctx, x->ep);
    net_free(x->ctx); /* and what is registered */
}
