/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rig.h: what the suites of the transports share: patterned memory, a pool in miniature, one context and endpoint over
 * any transport, and ops whose results can be checked. Each suite is a group with rig_setup and rig_teardown.
 */
#ifndef NET_TEST_RIG_H
#define NET_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>

#include "rpc/conn.h"
#include "net/net.h"
#include "net/paths.h"
#include "net/rdma.h"
#include "net/testing.h"

#include <cmocka.h>

#define REGIONS      4u
#define REGION_BYTES (1u << 20)

extern uint8_t *rig_memory; /* REGIONS * REGION_BYTES, patterned */
uint64_t rig_rng(void);

struct pool {
    struct net_serve_target target;
    _Atomic unsigned unrefs, written;
    _Atomic bool stale;
    uint8_t *memory;
    struct net_rdma_server *rdma; /* NULL: it has no rails */
    struct net_rdma_slot slots[REGIONS];
    struct net_rdma_peer *peer;
};
#define RIG_GENERATION 7u
void rig_pool_init(struct pool *p);

enum kind {
    SHM,
    TCP,
    TCP_UNIX,
    SIM,
    FAULT_SHM,
    FAULT_TCP,
    PATHS_ONE,
    PATHS_TWO,
    RDMA,
    RDMA_PUT,
    FAULT_RDMA,
    KINDS
};
extern struct net_rdma_server
    *rig_rdma; /* UCX's own TCP in the place of verbs; NULL: no UCX, RDMA kinds are left out */
extern const struct net_rdma_config rig_by_tcp, rig_put_by_tcp;

struct rig {
    enum kind kind;
    struct net_server *server;
    struct pool pool;
    const void *regions[REGIONS];
    struct net_ctx *ctx;
    struct net_endpoint *ep;
    unsigned connections; /* that the server was given */
    int raw;              /* the far end, where the test itself is the server; -1 */
};
/* serve: a net_server is at the far end; else r->raw is. */
void rig_init(struct rig *r, enum kind kind, bool serve);
struct net_ctx *rig_ctx(enum kind kind);
void rig_connect(struct rig *r, int connected_fd);
void rig_add_path(struct rig *r, unsigned path); /* of PATHS_TWO: to the server */
void rig_fini(struct rig *r);
bool rig_over_tcp(enum kind kind);
struct net_sim_node rig_sim_node(void);
void rig_tcp_pair(int fds[2]);
void rig_each(void (*body)(struct rig *r)); /* over every transport */

struct test_op {
    struct net_op op;
    struct net_read *reads;
    uint8_t *dst;
    size_t bytes;
    unsigned done, quiesced;
    struct net_ctx *ctx; /* where its destination is registered */
    struct net_memory *memory;
};
struct test_op *op_new(const struct net_read *reads, uint32_t n);
struct test_op *op_plain(uint32_t bytes); /* one range, from the beginning */
struct test_op *op_random(unsigned max_reads, unsigned max_bytes);
void op_check_good(const struct test_op *t);
void op_free(struct test_op *t);
void rig_submit(struct rig *r, struct test_op *t);
/* Takes events until `want` QUIESCED came; checks their order. */
void rig_run(struct rig *r, unsigned want);
void rig_expect_dead(struct rig *r); /* nothing is taken any more */

int rig_setup(void **state);
int rig_teardown(void **state);

#endif
