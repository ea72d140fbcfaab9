/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.h: what the tests of RDMA share: a child process that is the far end over UCX's own TCP, and one op
 * by one endpoint. The port that a connection comes to selects the child's behaviour. The child is forked
 * before UCX is loaded by either. Errors in here fail the running test.
 */
#ifndef NET_UCX_TESTING_H
#define NET_UCX_TESTING_H

#include "net/test_rig.h"

#include "net/ucx/endpoint.h"
#include "net/ucx/serve.h"

/* TWO: serves by two rails. BREAK: the second of those loses its connections. GO: its device goes, and is not back until BACK. */
enum far { SERVE, SILENT, LIE, OTHER_GENERATION, FALSE_KEY, BEGUN, TWO, BREAK, GO, BACK, KINDS_OF_FAR };
extern pid_t far_child; /* 0: no UCX here, or it was ended */
extern char far_ports[KINDS_OF_FAR][32];
extern const struct net_rdma_config by_tcp, put_by_tcp, two_by_tcp, put_two_by_tcp;

/* Fixtures of a group. */
int far_start(void **state);
int far_end(void **state);
/* BREAK, GO or BACK: it is done when this returns. */
void far_tell(enum far what);

#define NEEDS_UCX()                                                                                          \
    if (!far_child)                                                                                          \
    skip()

struct one {
    struct net_ctx *ctx;
    struct net_endpoint *ep;
    struct net_memory *memory;
    struct net_read reads[50];
    struct net_op op;
    unsigned done, quiesced;
};
extern uint8_t dst[REGION_BYTES]; /* of its reads */
extern uint8_t aside[4000];       /* of read_aside */

int one_connect(struct one *x, enum far far, const struct net_rdma_config *config);
/* Another endpoint of the same context, within a minute; returns what connect did. */
int one_connect_second(struct one *x, enum far far, struct net_endpoint **ret_second);
void one_wait(struct one *x);
int one_read(struct one *x, uint64_t deadline_ns);
/* Reads by another endpoint of the same context, into memory of its own: what moves the context's rails on. */
void read_aside(struct one *x, struct net_endpoint *second);
void one_end(struct one *x);

#endif
