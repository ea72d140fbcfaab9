/* SPDX-License-Identifier: Apache-2.0 */
/* test_rig.c: see test_rig.h */
#include "net/test_rig.h"

#include <stdio.h>
#include <sys/socket.h>

#include "base/crc32c.h"

uint8_t *rig_memory;

static uint64_t rng_state = 88172645463325252ull;
uint64_t rig_rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    return rng_state ^= rng_state << 17;
}

/* --- a pool in miniature ----------------------------------------------------------------------------------------- */

static void *pool_resolve(struct net_serve_target *t, uint32_t gid, uint64_t offset, uint64_t bytes,
                          bool write, int *ret_status)
{
    struct pool *p = container_of(t, struct pool, target);
    *ret_status = p->stale ? LEAT_STALE : LEAT_INVALID;
    if (p->stale || gid >= REGIONS || offset > REGION_BYTES || bytes > REGION_BYTES - offset)
        return NULL;
    return p->memory + (uint64_t)gid * REGION_BYTES + offset;
}

static int pool_written(struct net_serve_target *t, uint64_t first, uint32_t count)
{
    container_of(t, struct pool, target)->written += count;
    return first == 666 ? LEAT_INVALID : 0;
}

static void pool_unref(struct net_serve_target *t)
{
    struct pool *p = container_of(t, struct pool, target);
    net_rdma_peer_free(
        __atomic_exchange_n(&p->peer, NULL, __ATOMIC_ACQ_REL)); /* of the connections of any thread */
    p->unrefs++;
}

static int pool_source(void *user, const struct proto_range *range, struct net_rdma_slot **ret_slot,
                       uint8_t **ret_addr, uint64_t *ret_bytes, struct leat_error *err)
{
    struct pool *p = user;
    int status = LEAT_INVALID;
    *ret_addr = pool_resolve(&p->target, range->gid, 0, REGION_BYTES, false, &status);
    *ret_slot = &p->slots[range->gid % REGIONS];
    *ret_bytes = REGION_BYTES;
    return *ret_addr ? 0 : error_set(err, status, "region %u is refused", range->gid);
}

static int pool_request(struct net_serve_target *t, uint16_t type, struct bytes_in *in,
                        struct bytes_out *reply, const struct net_later *later, struct leat_error *err)
{
    struct pool *p = container_of(t, struct pool, target);
    int rc = 0;
    if (!p->rdma)
        return error_set(err, LEAT_UNSUPPORTED, "no rails");
    if (type == PROTO_RDMA_CONNECT) {
        if (!p->peer && (rc = net_rdma_peer_new(p->rdma, &p->peer)))
            return rc;
        return net_rdma_peer_connect(p->peer, in, reply, err);
    }
    if (type == PROTO_RDMA_VIEW)
        return net_rdma_peer_view(p->peer, in, err);
    if (type == PROTO_RDMA_PUT)
        return net_rdma_peer_put(p->peer, in, pool_source, p, later, err);
    uint32_t n = bytes_get_u32(in);
    bytes_put_u32(reply, n);
    for (uint32_t i = 0; !rc && i < n; i++) {
        uint32_t gid = bytes_get_u32(in);
        int status = LEAT_INVALID;
        uint8_t *at = pool_resolve(t, gid, 0, REGION_BYTES, false, &status);
        if (!at)
            return error_set(err, status, "region %u is refused", gid);
        bytes_put_u32(reply, gid);
        bytes_put_u32(reply, RIG_GENERATION);
        rc = net_rdma_put_keys(p->rdma, &p->slots[gid], at, REGION_BYTES, reply, err);
    }
    return rc;
}

void rig_pool_init(struct pool *p)
{
    *p =
        (struct pool){.target = {pool_resolve, pool_written, pool_unref, pool_request}, .memory = rig_memory};
}

/* --- one context and endpoint over a transport -------------------------------------------------------------------- */

static const char *const kind_names[KINDS] = {"shm",          "tcp",          "tcp over unix", "sim",
                                              "fault on shm", "fault on tcp", "one path",      "two paths",
                                              "rdma",         "rdma, put",    "fault on rdma"};

const struct net_rdma_config rig_by_tcp = {.rails = "lo", .tls = "tcp"};
const struct net_rdma_config rig_put_by_tcp = {.rails = "lo", .tls = "tcp", .put = true};
struct net_rdma_server *rig_rdma;

void rig_tcp_pair(int fds[2])
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    int listener;
    assert_int_equal(net_listen("127.0.0.1:0", 0, &listener, NULL), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    fds[0] = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&a, len), 0);
    fds[1] = accept(listener, NULL, NULL);
    assert_true(fds[1] >= 0);
    close(listener);
}

struct net_sim_node rig_sim_node(void)
{
    return (struct net_sim_node){.memory = rig_memory,
                                 .region_bytes = REGION_BYTES,
                                 .nregions = REGIONS,
                                 .latency_ns = 20000,
                                 .bytes_per_s = 10000000000};
}

void rig_connect(struct rig *r, int connected_fd)
{
    struct net_peer peer = {.node = 0,
                            .connected_fd = connected_fd,
                            .regions = r->regions,
                            .nregions = REGIONS,
                            .generation = RIG_GENERATION,
                            .npaths = r->kind == PATHS_TWO ? 2 : 1,
                            .region_bytes = REGION_BYTES};
    struct leat_error err = {0};
    assert_int_equal(r->ctx->ops->connect(r->ctx, &peer, 0, &r->ep, &err), 0);
}

struct net_ctx *rig_ctx(enum kind kind)
{
    struct net_ctx *ctx = NULL, *lower;
    struct net_sim_node node = rig_sim_node();
    struct net_sim_config sim = {.seed = 1, .nodes = &node, .nnodes = 1, .retry_ns = 1000000};
    struct net_fault_rules none = {0};
    switch (kind) {
    case SHM:
        assert_int_equal(net_shm_new(&ctx), 0);
        break;
    case SIM:
        assert_int_equal(net_sim_new(&sim, &ctx), 0);
        break;
    case PATHS_ONE:
    case PATHS_TWO:
        assert_int_equal(net_paths_new(rig_ctx(TCP), &ctx), 0);
        break;
    case RDMA:
    case RDMA_PUT:
        assert_int_equal(net_rdma_new(kind == RDMA ? &rig_by_tcp : &rig_put_by_tcp, &ctx, NULL), 0);
        break;
    case FAULT_SHM:
    case FAULT_TCP:
    case FAULT_RDMA:
        lower = rig_ctx(kind == FAULT_SHM ? SHM : kind == FAULT_TCP ? TCP : RDMA);
        assert_int_equal(net_fault_new(lower, &none, &ctx), 0);
        break;
    default:
        assert_int_equal(net_tcp_new(&ctx), 0);
    }
    return ctx;
}

bool rig_over_tcp(enum kind kind)
{
    return kind == TCP || kind == TCP_UNIX || kind == FAULT_TCP || kind >= PATHS_ONE;
}

void rig_init(struct rig *r, enum kind kind, bool serve)
{
    int fds[2] = {-1, -1};
    *r = (struct rig){.kind = kind, .raw = -1, .connections = 1};
    rig_pool_init(&r->pool);
    for (unsigned i = 0; i < REGIONS; i++)
        r->regions[i] = rig_memory + (size_t)i * REGION_BYTES;
    if (rig_over_tcp(kind)) {
        if (kind == TCP_UNIX)
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        else
            rig_tcp_pair(fds);
        if (serve) {
            r->pool.rdma = rig_rdma;
            assert_int_equal(net_server_new(2, &r->server), 0);
            assert_int_equal(net_server_add(r->server, fds[1], &r->pool.target), 0);
        } else {
            r->raw = fds[1];
        }
    }
    r->ctx = rig_ctx(kind);
    rig_connect(r, fds[0]);
    if (kind == PATHS_TWO && serve)
        rig_add_path(r, 1);
}

void rig_add_path(struct rig *r, unsigned path)
{
    int fds[2];
    rig_tcp_pair(fds);
    assert_int_equal(net_server_add(r->server, fds[1], &r->pool.target), 0);
    r->connections++;
    const struct net_peer peer = {.connected_fd = fds[0], .path = path};
    assert_int_equal(net_paths_add(r->ep, &peer, 0, NULL), 0);
}

void rig_fini(struct rig *r)
{
    r->ctx->ops->disconnect(r->ctx, r->ep);
    net_free(r->ctx);
    net_server_free(r->server);
    if (r->server)
        assert_int_equal(r->pool.unrefs, r->connections);
    for (unsigned i = 0; i < REGIONS; i++)
        net_rdma_slot_close(&r->pool.slots[i]);
    if (r->raw >= 0)
        close(r->raw);
}

/* --- ops --------------------------------------------------------------------------------------------------------- */

struct test_op *op_new(const struct net_read *reads, uint32_t n)
{
    struct test_op *t = calloc(1, sizeof(*t));
    t->reads = calloc(n ? n : 1, sizeof(*t->reads));
    for (uint32_t i = 0; i < n; i++)
        t->bytes += reads[i].bytes;
    t->dst = malloc(t->bytes ? t->bytes : 1);
    memset(t->dst, 0xee, t->bytes);
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        t->reads[i] = reads[i];
        t->reads[i].dst = t->dst + at;
        t->reads[i].crc = 0xdead;
        t->reads[i].status = 77;
        at += reads[i].bytes;
    }
    t->op = (struct net_op){.reads = t->reads, .n = n, .user = t};
    return t;
}

struct test_op *op_plain(uint32_t bytes)
{
    struct net_read read = {.mr_gid = 0, .offset = 0, .bytes = bytes};
    return op_new(&read, 1);
}

struct test_op *op_random(unsigned max_reads, unsigned max_bytes)
{
    uint32_t n = (uint32_t)(rig_rng() % (max_reads + 1));
    AUTO_FREE struct net_read *reads = calloc(n ? n : 1, sizeof(*reads));
    for (uint32_t i = 0; i < n; i++) {
        reads[i].bytes = rig_rng() % 8 == 0 ? 0 : (uint32_t)(rig_rng() % max_bytes);
        if (i && rig_rng() % 3 == 0 &&
            reads[i - 1].offset + reads[i - 1].bytes + reads[i].bytes <= REGION_BYTES) {
            reads[i].mr_gid = reads[i - 1].mr_gid; /* a neighbour: merged on the wire */
            reads[i].offset = reads[i - 1].offset + reads[i - 1].bytes;
        } else {
            reads[i].mr_gid = (uint32_t)(rig_rng() % REGIONS);
            reads[i].offset = rig_rng() % (REGION_BYTES - reads[i].bytes);
        }
    }
    return op_new(reads, n);
}

void op_check_good(const struct test_op *t)
{
    assert_int_equal(t->op.status, 0);
    for (uint32_t i = 0; i < t->op.n; i++) {
        const struct net_read *r = &t->reads[i];
        const uint8_t *src = rig_memory + (uint64_t)r->mr_gid * REGION_BYTES + r->offset;
        assert_int_equal(r->status, 0);
        assert_memory_equal(r->dst, src, r->bytes);
        assert_int_equal(r->crc, crc32c(0, src, r->bytes));
    }
}

void op_free(struct test_op *t)
{
    assert_int_equal(t->done, 1);
    assert_int_equal(t->quiesced, 1);
    if (t->memory)
        t->ctx->ops->mem_deregister(t->ctx, t->memory);
    free(t->reads);
    free(t->dst);
    free(t);
}

void rig_run(struct rig *r, unsigned want)
{
    unsigned quiesced = 0;
    while (quiesced < want) {
        struct net_event events[3]; /* few: events must survive from poll to poll */
        int n = r->ctx->ops->poll(r->ctx, events, ARRAY_LEN(events), 10000);
        assert_true(n > 0);
        for (int i = 0; i < n; i++) {
            struct test_op *t = events[i].op->user;
            if (events[i].kind == NET_DONE) {
                assert_int_equal(t->done++, 0);
                assert_int_equal(t->quiesced, 0);
            } else {
                assert_int_equal(t->done, 1);
                assert_int_equal(t->quiesced++, 0);
                quiesced++;
            }
        }
    }
    struct net_event more[4];
    if (r->ctx->stats.in_flight_bytes == 0)
        assert_int_equal(r->ctx->ops->poll(r->ctx, more, 4, 0), 0);
}

void rig_submit(struct rig *r, struct test_op *t)
{
    t->ctx = r->ctx;
    if ((r->ctx->ops->caps & NET_CAP_REGISTER) && t->bytes)
        assert_int_equal(r->ctx->ops->mem_register(r->ctx, t->dst, t->bytes, -1, &t->memory), 0);
    assert_int_equal(r->ctx->ops->submit(r->ep, &t->op), 0);
}

void rig_expect_dead(struct rig *r)
{
    struct test_op *t = op_plain(10);
    assert_int_equal(r->ctx->ops->submit(r->ep, &t->op), LEAT_PEER_GONE);
    t->done = t->quiesced = 1;
    op_free(t);
}

void rig_each(void (*body)(struct rig *r))
{
    for (enum kind k = 0; k < KINDS; k++) {
        struct rig r;
        if (k >= RDMA && !rig_rdma)
            continue;
        print_message("    over %s\n", kind_names[k]);
        rig_init(&r, k, true);
        body(&r);
        rig_fini(&r);
    }
}

int rig_setup(void **state)
{
    rig_memory = malloc((size_t)REGIONS * REGION_BYTES);
    for (size_t i = 0; i < (size_t)REGIONS * REGION_BYTES; i += 8) {
        uint64_t v = rig_rng();
        memcpy(rig_memory + i, &v, 8);
    }
    struct leat_error err = {0};
    if (net_rdma_server_new(&rig_by_tcp, &rig_rdma, &err) < 0)
        print_message("RDMA is left out: %s\n", err.message);
    return 0;
}

int rig_teardown(void **state)
{
    net_rdma_server_free(TAKE_PTR(rig_rdma));
    free(rig_memory);
    return 0;
}
