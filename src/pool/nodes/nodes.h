/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes.h: daemons that hold one working set together. Membership is a static list (the interface stays when it comes from
 * elsewhere); every node keeps a connection to every other one for its own requests.
 *
 *   OPEN at L ─▶ coordinator of the source (rendezvous hash over live nodes) ── is it L? scan, place, INSTALL at the hosts
 *                                                                              └ no: DESCRIBE, keep a replica, RESYNC with the hosts
 *   each host fills its own regions and tells all nodes which pieces of which samples are there (READY)
 *
 * A host keeps a set as long as somebody holds it: its own clients' leases, and the nodes that installed or described it
 * (wset.peers), each until it says FORGET or its connection ends. When a host is lost its samples turn LOST: readers get
 * them from the source through their own daemon. When it is back with the set still in its memory, they are read from it again.
 */
#ifndef POOL_NODES_H
#define POOL_NODES_H

#include "base/base.h"
#include "cluster/rails.h"
#include "pool/pool.h"

struct cluster;
struct conn_message;
struct loop;
struct rpc_session;

#define CLUSTER_NODES_MAX 64u /* of a list: each node keeps a connection to each other one */

struct cluster_config {
    char **nodes; /* "host:port[,host:port]", the same list in the same order on every node */
    unsigned nnodes;
    const char *self; /* one of them: what we listen on */
    const void *token;
    size_t token_len;
};

/* The pool asks it from now on, by pool_nodes_ops. Control loop. LEAT_INVALID, -ENOMEM. */
int cluster_new(struct loop *loop, struct pool *pool, const struct cluster_config *config,
                struct cluster **ret_cluster, struct leat_error *err);
void cluster_free(struct cluster *cluster); /* NULL is fine */

/* How a dial ended: the node answered, with a no. It is not gone, nor is the rail. */
static inline bool cluster_refused(int rc)
{
    return rc == LEAT_STALE || rc == LEAT_DENIED || rc == LEAT_BUSY;
}

#define CLUSTER_ANY_RAIL UINT32_MAX
struct cluster_dial_to {
    uint32_t node,
        rail; /* of the set; by one rail of it, from our interface in that subnet, or by any address that answers */
    uint32_t uid, gid;
    unsigned version_max; /* that its user speaks */
};
/* An authenticated data connection to a node of ws, for a client: done(user, fd or -errno, its version,
 * message) later. */
typedef void (*cluster_dialed_fn)(void *user, int fd, unsigned version, const char *message);
int cluster_dial(struct cluster *cluster, struct wset *ws, const struct cluster_dial_to *to,
                 cluster_dialed_fn done, void *user);

/*
 * Region gid of ws is at `node` from now on, here and wherever the set is known: what has to be there for
 * that is the caller's matter. Readers find it without opening the set again. Nodes that speak version 2 of
 * the protocol do not learn of it. False: it is known. Control loop.
 */
bool nodes_region_move(struct cluster *cluster, struct wset *ws, uint32_t gid, uint32_t node,
                       uint32_t generation);

/* A message of another node, on a connection that it made. Control loop. 0; -errno: the caller closes the connection. */
int cluster_message(struct cluster *cluster, struct rpc_session *session, struct conn_message *message);
/* The connection ended, before its conn is freed: nothing here refers to the session afterwards. */
void nodes_session_closed(struct cluster *cluster, struct rpc_session *session);

/* For status. */
struct cluster_node_view {
    const char *address;
    bool self, connected;
    bool known;                     /* it has said what it has */
    uint64_t cap_bytes, used_bytes; /* of its pool; as it said last */
};
unsigned cluster_nodes(const struct cluster *cluster);
void cluster_node(const struct cluster *cluster, unsigned n, struct cluster_node_view *ret_view);
/* Rail k of node n: how its last connection went. `why` of a rail that is down. */
enum cluster_rail_state cluster_rail(const struct cluster *cluster, unsigned n, unsigned k,
                                     const char **ret_why);

#endif
