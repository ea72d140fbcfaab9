/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h: reads of remote registered memory, behind one table. shm/ maps the region and gathers; tcp/ asks the
 * daemon that owns it; ucx/ reads by RDMA, over several rails and into a device's memory too, for which views are
 * registered once (mem_register); paths/ spreads ops over several connections. testing.h has two more, for tests.
 * What ranks push goes another way (rpc/conn.h, server.c).
 *
 *   submit(op) ──▶ in flight ──▶ poll: NET_DONE (bytes are there and checksummed, or a status)
 *                                 └──▶ NET_QUIESCED (nothing will touch the destinations any more)
 *
 * Both events come exactly once, in that order, possibly from the same poll. An op whose deadline passes is DONE
 * with LEAT_TIMED_OUT while its bytes may still arrive; until QUIESCED its destinations are in quarantine. A context
 * belongs to one thread at a time. How much may be asked for at once is its user's business (net/flow/credit.h); the
 * transport counts what is in flight.
 */
#ifndef NET_NET_H
#define NET_NET_H

#include "base/base.h"
#include "base/list.h"

struct net_ctx;
struct net_endpoint;
struct net_memory;

/* One contiguous remote range; never crosses a memory region. */
struct net_read {
    /* in */
    uint32_t mr_gid; /* region number within the working set */
    uint32_t bytes;
    uint64_t offset; /* within the region */
    void *dst;       /* inside registered memory where the transport asks for it */
    /* out, valid at NET_DONE */
    uint32_t crc;   /* CRC32C of the bytes as they landed; 0: of what landed in a device's memory */
    int32_t status; /* 0 or -errno */
};

enum net_event_kind { NET_DONE, NET_QUIESCED };

struct net_op {
    /* in */
    struct net_read *reads; /* the caller's, until NET_QUIESCED */
    uint32_t n;
    uint64_t deadline_ns; /* 0: none */
    void *user;
    /* net/paths.h: the path to use, from 1 on, uncut, while it is there; 0: those predicted best */
    unsigned path;
    /* out */
    int status; /* 0 when all reads are good, else the first failure */
    /* Segments that the server lost since the previous reply on that connection; 0 where unknown. */
    uint32_t lost_segments;
    /* the transport's */
    struct list node;
    struct net_endpoint *endpoint;
    uint64_t id, started_ns;
    uint32_t cursor, cursor_bytes;
    uint64_t total_bytes;
    unsigned state;
};

struct net_event {
    enum net_event_kind kind;
    struct net_op *op;
};

/* What identifies the far side: a node of the region table. `fds`/`maps` serve shm, `address` the others. */
struct net_peer {
    uint32_t node;
    const char *address; /* "host:port"; several rails comma-separated, nearest first */
    uint32_t generation; /* of the working set's descriptor: a stale one fails with -ESTALE */
    int connected_fd; /* tcp: an authenticated connection already open (the local daemon brokered it), or -1 */
    unsigned version;      /* of that connection; 0: PROTO_VERSION */
    unsigned path, npaths; /* net/paths.h: which of how many rails that is; others leave them alone */
    /* shm: region mr_gid is mapped at regions[mr_gid] (NULL where it is remote), region_bytes long. The array
     * is kept by reference: it outlives the endpoint, and regions may be mapped into it later */
    const void *const *regions;
    uint32_t nregions;
    uint64_t region_bytes;
};

enum net_caps {
    NET_CAP_INLINE = 1 << 0,    /* submit() completes at once: nothing is ever in flight (shm) */
    NET_CAP_ONE_SIDED = 1 << 1, /* the far CPU takes no part */
    NET_CAP_REGISTER = 1 << 2,  /* destinations must be registered */
};

struct net_ops {
    const char *name; /* "shm", "tcp", "rdma", "sim" */
    unsigned caps;
    /* Registers [addr, addr+bytes) on every rail, once in a view's life. device: a GPU's memory, which the
     * CPU must not touch; -1: the host's. LEAT_UNSUPPORTED: a rail does not reach that device. */
    int (*mem_register)(struct net_ctx *ctx, void *addr, uint64_t bytes, int device,
                        struct net_memory **ret_memory);
    void (*mem_deregister)(struct net_ctx *ctx, struct net_memory *memory);
    int (*connect)(struct net_ctx *ctx, const struct net_peer *peer, uint64_t deadline_ns,
                   struct net_endpoint **ret_endpoint, struct leat_error *err);
    /* Tears down: every op in flight is DONE (-ECONNRESET) if it was not, then QUIESCED, by the next poll. */
    void (*disconnect)(struct net_ctx *ctx, struct net_endpoint *endpoint);
    /* 0, or -errno and then the op was not taken. */
    int (*submit)(struct net_endpoint *endpoint, struct net_op *op);
    /* Progresses everything; fills up to `max` events. timeout_ms as in poll(2). Returns how many, or -errno; 0 at once when
     * nothing is in flight. May return 0 early. */
    int (*poll)(struct net_ctx *ctx, struct net_event *events, unsigned max, int timeout_ms);
    /* For a loop_source: a descriptor that turns readable on progress to make, or -1. */
    int (*event_fd)(struct net_ctx *ctx);
    void (*free)(struct net_ctx *ctx);
};

struct net_stats {
    uint64_t ops, reads, bytes, errors, timeouts, in_flight_bytes, in_flight_peak_bytes;
    /* Segments that servers report as lost, on all connections; 0 where unknown. */
    uint64_t lost_segments;
};

struct net_ctx {
    const struct net_ops *ops;
    struct net_stats stats;
    /* Set by the owner: a caller that polls with a timeout waits for the oldest op while the rest arrives
     * behind it, and the transport may report in that order. Only a hint: a slow or stopped endpoint delays
     * no other. */
    bool poll_in_order;
    /* The last obstacle, where more is known than the status; code 0: none. */
    struct leat_error why;
};

/* One of the ways to a node, of an endpoint that has several (net/paths.h, net/rdma.h). */
struct net_path_info {
    bool up;
    /* Bytes over it since its first connection; those of them that the far end wrote. */
    uint64_t bytes, put_bytes;
    uint64_t rate_bytes_per_s; /* measured last; 0: not yet */
    const char *name;          /* of our end; NULL: it has none of its own. As long as the context */
    const char *left;          /* why it was left last; NULL: never left, or unknown */
};

int net_shm_new(struct net_ctx **ret_ctx);
int net_tcp_new(struct net_ctx **ret_ctx);
void net_free(struct net_ctx *ctx);

#endif
