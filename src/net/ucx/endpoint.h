/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h: between ucx.c (contexts, data connections, poll, paths) and flight.c (ops in flight). */
#ifndef NET_UCX_ENDPOINT_H
#define NET_UCX_ENDPOINT_H

#include "base/forkfd.h"
#include "rpc/conn.h"
#include "net/events.h"
#include "net/flow/stripe.h"
#include "net/ucx/rail.h"

struct net_memory {
    struct list node;
    uint32_t id; /* within its context, never used again; PROTO_VIEWS_MAX: no puts */
    uint8_t *addr;
    uint64_t bytes;
    int device; /* the far end writes its memory, and no CPU; -1: the host's */
    ucp_mem_h memh[NET_RDMA_RAILS_MAX];
    void *key[NET_RDMA_RAILS_MAX]; /* packed, for puts */
    size_t key_bytes[NET_RDMA_RAILS_MAX];
};

enum path_state { PATH_CONNECTING, PATH_UP, PATH_CLOSING, PATH_CLOSED };

struct ucx_path;

/* The flush that shows that a path is up. UCX may return it after the path was closed by force and freed, as
 * late as when its worker is destroyed, or never. So its callback, or ucx_free, frees it; it has the path as
 * long as there is one. */
struct coming {
    struct list node; /* ctx->comings */
    struct ucx_path *path;
    const struct ucx_symbols *ucx;
};

struct ucx_path {
    struct net_endpoint *endpoint;
    struct coming *coming;   /* NULL: reported */
    unsigned rail, far_rail; /* ours, theirs */
    enum path_state state;
    bool failed; /* by a callback: to be closed */
    ucp_ep_h ep;
    struct sockaddr_in6 far;
    uint32_t incarnation; /* of their rail, as last reported; 0: it is closed */
    bool asked, renewing; /* CLOSED: where it is; and for its keys */
    unsigned serial;      /* of its connection: it is tried again after it broke */
    unsigned out, asks;   /* slices that are out on it; PUTs that were not answered */
    uint64_t began_ns;    /* CONNECTING: since when */
    uint64_t put_bytes;   /* of the bytes over it: those that the far end wrote */
};

enum key_state { KEY_NONE, KEY_ASKED, KEY_HERE, KEY_REFUSED };

struct key {
    enum key_state state;
    int status; /* REFUSED */
    uint64_t asked_id, addr, bytes;
    bool renewed;                             /* HERE, and asked for again */
    uint8_t *packed[NET_RDMA_RAILS_MAX];      /* by their rail; padded; NULL: that is closed */
    uint32_t incarnation[NET_RDMA_RAILS_MAX]; /* of their rail, that the key belongs to */
    ucp_rkey_h rkey[NET_RDMA_RAILS_MAX];      /* by path */
};

struct cut {
    uint32_t gid, bytes, first, last; /* first, last: the reads that it touches */
    uint64_t offset;
    uint8_t *dst;
};

struct slice {
    struct list node;
    struct flight *flight;
    struct ucx_path *path; /* on which it is out; NULL: on none */
    struct cut cut;
    /* The path that lost it: it goes out again when that connection is closed. NULL: it was never out. */
    const struct ucx_path *was;
    unsigned was_serial, tries;
};

/* A PUT in flight. */
struct ask {
    struct list node;
    uint64_t id;
    struct ucx_path *path;
    struct list slices; /* none: its path was closed, and they went by another */
};

struct flight {
    struct list node;
    struct net_endpoint *endpoint;
    struct net_op *op;
    struct net_memory *memory; /* its destinations, when the far end is to put them there; NULL: gets */
    struct list slices;        /* reserved, not out */
    unsigned out;              /* and one while it is being sent */
    bool over;                 /* DONE was queued */
    bool failed;               /* a slice was */
};

struct net_endpoint {
    struct list node;
    struct ucx_ctx *ctx;
    int fd; /* the data connection; -1: torn down */
    struct forkfd forkfd;
    bool want_out, disconnected;
    uint8_t version; /* of it */
    uint32_t node_id, generation;
    unsigned npaths;
    struct ucx_path paths[NET_RDMA_RAILS_MAX];
    struct stripe_path stripe[NET_RDMA_RAILS_MAX]; /* down unless its path is UP and has not failed */
    struct list lost;                              /* slices whose path broke, or that found none */
    bool came;                                     /* something, since the last stripe_turn */
    uint32_t nkeys;
    struct key *keys;
    bool refused; /* some key is KEY_REFUSED */
    struct list waiting, flying, held, asks;
    uint8_t told[PROTO_VIEWS_MAX / 8]; /* the views that it knows, a bit each */

    uint64_t next_id, connect_id; /* connect_id: of the RDMA_CONNECT that is out; 0: none */
    struct bytes_out out;
    size_t out_sent;
    uint8_t head[PROTO_FRAME];
    size_t have; /* of head, then of the body */
    bool in_body;
    struct proto_frame frame;
    uint8_t *body;
};

struct ucx_ctx {
    struct net_ctx base;
    const struct ucx_symbols *ucx;
    int epoll_fd;
    struct forkfd forkfd;
    bool put;          /* the far end writes */
    unsigned ndevices; /* memories that are not the host's */
    uint32_t ids;
    unsigned nrails;
    struct ucx_rail rails[NET_RDMA_RAILS_MAX]; /* without a worker: closed, as its device went */
    uint64_t secrets[NET_RDMA_RAILS_MAX];
    struct ucx_wanted wanted[NET_RDMA_RAILS_MAX];
    unsigned tries[NET_RDMA_RAILS_MAX]; /* at connecting by it, since something was connected */
    char *tls;
    struct ucx_shape shape; /* of the keys that we believe */
    struct list endpoints, memories, spares, comings;
    struct list events, told;
    uint64_t min_deadline_ns; /* as in tcp.c: may be too early, never too late */
    uint64_t reconnect_ns;    /* when some path needs attention; 0: all are up */
    uint64_t connect_ns;      /* most time for a path to come up, where the caller gives more */
    unsigned in_flight;       /* ops not yet QUIESCED */
    bool look;                /* a callback left a mark somewhere */
};

/* --- path.c ------------------------------------------------------------------------------------------------------ */

/* The body of RDMA_CONNECT: our secrets. */
void rails_tell(const struct ucx_ctx *ctx, struct bytes_out *body);
/* The next rail of theirs in an answer to it. LEAT_CORRUPT. */
struct far_rail {
    uint32_t incarnation; /* 0: closed, and no address */
    struct sockaddr_in6 address;
};
int rails_take(struct bytes_in *in, struct far_rail *ret_rail);
/* The answer to a later RDMA_CONNECT is in `frame` and `body`. LEAT_CORRUPT: the endpoint is of no use. */
int rails_came(struct net_endpoint *ep);
/* Our rail for one of theirs. */
unsigned rail_choose(const struct net_endpoint *ep, const struct sockaddr_in6 *far);
/* Connects it: it is UP, or has failed, later. */
int path_begin(struct ucx_path *p, struct leat_error *err);
void path_close(struct ucx_path *p);
/* Some path needs attention by then. */
void reconnect_at(struct ucx_ctx *ctx, uint64_t ns);
/* Ends connections that do not come about; tries paths whose pause is over. The caller settles afterwards. */
void paths_reconnect(struct ucx_ctx *ctx);
/* Without reads nothing is polled: connections that could not progress get their time from now on. */
void paths_time_anew(struct ucx_ctx *ctx);
int rail_watch(struct ucx_ctx *ctx, unsigned rail);
/* Opens it again if it is closed, or if nothing could be connected by it for a while, and nothing uses it. */
void rail_again(struct ucx_ctx *ctx, unsigned rail);

/* --- memory.c ---------------------------------------------------------------------------------------------------- */

int ucx_mem_register(struct net_ctx *base, void *addr, uint64_t bytes, int device,
                     struct net_memory **ret_memory);
void ucx_mem_deregister(struct net_ctx *base, struct net_memory *memory);
/* With a rail that is open; whatever is returned, memory_leave is harmless. */
int memory_join(struct ucx_ctx *ctx, struct net_memory *m, unsigned rail, struct leat_error *err);
void memory_leave(struct ucx_ctx *ctx, struct net_memory *m, unsigned rail);
/* Another number than any before. */
void memory_number(struct ucx_ctx *ctx, struct net_memory *m);

/* --- keys.c ------------------------------------------------------------------------------------------------------ */

/* The answer to RDMA_KEYS is in `frame` and `body`. LEAT_CORRUPT, LEAT_STALE, -ENOMEM: the endpoint is of no use. */
int keys_came(struct net_endpoint *ep);
/* Whether the keys that are here fit the present rail that `p` leads to. */
enum keys_fit { KEYS_FIT, KEYS_ASKED, KEYS_LACK } keys_fit(const struct ucx_path *p);
/* Requests those again that do not. -ENOMEM: the endpoint is of no use. */
int keys_renew(const struct ucx_path *p);

/* --- flight.c ---------------------------------------------------------------------------------------------------- */

/* Takes the op in: 0, -ENOMEM. It waits until endpoint_start finds that it can go. */
int flight_new(struct net_endpoint *ep, struct net_op *op);
void flight_done(struct flight *f, int status);
void flight_quiesced(struct flight *f);
/* The answer to a PUT, or its end. */
void ask_over(struct net_endpoint *ep, struct ask *ask, int status);
/* Its path broke: another path asks for the same. */
void ask_lost(struct net_endpoint *ep, struct ask *ask);
/* Slices that were lost and can land no more go out again; completed ones come back. The caller flushes. */
void endpoint_resend(struct net_endpoint *ep);
/* By a callback: it is closed later, and takes nothing from now on. */
static inline void path_broke(struct ucx_path *p)
{
    p->failed = p->endpoint->ctx->look = true;
    p->endpoint->stripe[p - p->endpoint->paths].down = true;
}
/* Its connection, as it was then, is closed: nothing lands by it any more. */
static inline bool path_is_quiet(const struct ucx_path *p, unsigned serial)
{
    return p->state == PATH_CLOSED || p->serial != serial;
}
struct ask *ask_find(struct net_endpoint *ep, uint64_t id);
/* Queues a request; its id is ep->next_id then. For the caller to flush. -ENOMEM. */
int endpoint_request(struct net_endpoint *ep, uint16_t type, const struct bytes_out *body);
int endpoint_ask_keys(struct net_endpoint *ep, const uint32_t *gids, uint32_t n);
/* Sends what can be sent, in order; asks for keys. -ENOMEM: the endpoint is of no use. What it wrote is for the caller to flush. */
int endpoint_start(struct net_endpoint *ep);

#endif
