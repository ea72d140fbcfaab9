/* SPDX-License-Identifier: Apache-2.0 */
/* serve.h: between serve.c (connections, peers), serve_rail.c (rails), serve_memory.c (registrations) and put.c (writes into the
 * views of clients). */
#ifndef NET_UCX_SERVE_H
#define NET_UCX_SERVE_H

#include "base/list.h"
#include "loop/loop.h"
#include "net/ucx/rail.h"
#include "wire/leat/proto.h"

#include <pthread.h>

#define PEER_ENDPOINTS_MAX 64u /* connections of one data connection, on one rail */

struct view_key {
    struct list node;
    const struct serve_view *view;
    ucp_rkey_h rkey;
};

struct serve_ep {
    struct list node;
    struct serve_rail *rail;
    ucp_ep_h ep;
    uint64_t serial;  /* of its peer */
    unsigned far;     /* the client's rail */
    struct list keys; /* struct view_key */
    unsigned out;     /* callbacks of UCX that will come */
    bool up, failed, closed;
};

struct serve_rail {
    struct net_rdma_server *server;
    unsigned number;
    struct ucx_wanted wanted;
    pthread_t thread;
    bool running;
    struct loop *loop;
    _Atomic uint32_t incarnation; /* how often it was opened */
    _Atomic bool up;              /* clients get its address */
    _Atomic bool lost;            /* its device went: to be closed */
    _Atomic uint64_t connections, refused, errors, put_bytes;
    char address[80]; /* under the server's lock; "": closed */
    /* Under serve_memory.c's lock. */
    bool maps;        /* registrations are made with it */
    unsigned mappers; /* threads other than its own that are about to */
    /* Its thread's; `rail` is there for mappers as well, and without a worker when it is closed. */
    struct ucx_rail rail;
    ucp_listener_h listener;
    struct loop_source source;
    struct loop_timer timer;
    uint64_t again_ns, pause_ns; /* closed: when it is tried again */
    struct list eps;             /* struct serve_ep */
    struct list ended;           /* closed ones that UCX still has something of */
    struct list waiting;         /* struct put: their connection is not up yet */
    unsigned puts;               /* all there are */
    bool look;                   /* a callback left a mark */
};

/* A client's registered batch buffers. Immutable once it is in its peer. */
struct serve_view {
    uint64_t addr, bytes;
    unsigned n;
    uint8_t *key[NET_RDMA_RAILS_MAX]; /* by the client's rail; padded */
};

struct net_rdma_peer {
    struct list node;
    struct net_rdma_server *server;
    uint64_t serial;
    _Atomic unsigned refs; /* the data connection, and every put */
    bool gone;             /* under the server's lock: nothing is answered any more */
    unsigned n;
    uint64_t secrets[NET_RDMA_RAILS_MAX];
    /* The incarnation of each of our rails that it was sent */
    uint32_t told[NET_RDMA_RAILS_MAX];
    struct serve_view *_Atomic views[PROTO_VIEWS_MAX]; /* put there by the data thread, once each */
};

struct net_rdma_memory {
    struct list node; /* server->memories */
    struct net_rdma_server *server;
    void *addr;
    uint64_t bytes;
    unsigned users; /* puts out of it, and rails that add or take their part */
    bool making;    /* by a thread that visits all rails */
    struct part {
        ucp_mem_h memh; /* NULL: the rail is closed */
        void *key;
        size_t key_bytes;
        uint32_t incarnation;
    } parts[NET_RDMA_RAILS_MAX];
};

struct net_rdma_server {
    pthread_mutex_t lock;
    struct list peers; /* newest first; under lock, and what is in them */
    uint64_t serials;
    struct list memories;   /* under serve_memory.c's lock */
    char *tls;              /* as configured */
    struct ucx_shape shape; /* of the keys that we believe */
    bool may_write;         /* whether a holder of our keys may write, as far as we know */
    _Atomic uint64_t registrations, registered_bytes, key_requests;
    unsigned n;
    struct serve_rail rails[NET_RDMA_RAILS_MAX];
};

/* The registration of [addr, +bytes), made now if need be, and kept until serve_unuse. */
int serve_use(struct net_rdma_server *server, struct net_rdma_slot *slot, void *addr, uint64_t bytes,
              struct net_rdma_memory **ret_memory, struct leat_error *err);
void serve_unuse(struct net_rdma_memory *memory);
/* On the rail's thread: its part of every registration goes; comes again, for which -errno leaves it to serve_memories_leave. */
void serve_memories_leave(struct serve_rail *rail);
int serve_memories_join(struct serve_rail *rail, struct leat_error *err);
/* Opens it and starts its thread; where it cannot be opened err says why, and the thread tries it again. Ends that. */
int serve_rail_start(struct net_rdma_server *server, struct serve_rail *rail, const struct ucx_wanted *wanted,
                     struct leat_error *err);
void serve_rail_stop(struct serve_rail *rail);
/* On the rail's thread: a client connects (UCX's callback; arg: the rail). */
void serve_on_connection(ucp_conn_request_h request, void *arg);
/* On the rail's thread: what was out of it comes back by its callbacks. */
void serve_ep_close(struct serve_rail *rail, struct serve_ep *ep);
void serve_ep_forget_keys(struct serve_ep *ep);
/* On the rail's thread: the connection of a peer, or NULL. */
struct serve_ep *serve_find(struct serve_rail *rail, uint64_t serial);
/* On the rail's thread, after progress: closes what failed. */
void serve_look(struct serve_rail *rail);
/* One callback fewer to come: frees it when it was closed and this was the last. */
void serve_ep_done(struct serve_ep *ep);
/* put.c, on the rail's thread: connections came up or went. */
void serve_puts_look(struct serve_rail *rail);
void serve_view_free(struct serve_view *view);

#endif
