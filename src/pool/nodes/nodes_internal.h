/* SPDX-License-Identifier: Apache-2.0 */
/* nodes_internal.h: between nodes.c (what we ask of others) and nodes_requests.c (what others ask of us). */
#ifndef POOL_NODES_INTERNAL_H
#define POOL_NODES_INTERNAL_H

#include "base/bytes.h"
#include "base/list.h"
#include "cluster/links.h"
#include "cluster/membership.h"
#include "loop/loop.h"
#include "rpc/addresses.h"
#include "pool/nodes/nodes.h"
#include "rpc/peer.h"
#include "rpc/session.h"
#include "pool/set/wset.h"

struct rail_state {
    enum cluster_rail_state state;
    char why[96];
};

struct node_link {
    struct cluster *cluster;
    struct rail_state rails[NET_ADDRESSES_MAX];
    struct resolve_address answered[NET_ADDRESSES_MAX]; /* which of a name's, last */
    struct peer *peer;                                  /* NULL: ourselves */
    struct cluster_link state;
    int logged_down;   /* the status that was logged last; 0: none since it was up */
    bool logged_wrong; /* that one of its addresses leads to somebody else */
    bool known;        /* what it answered last */
    uint64_t cap_bytes, used_bytes;
    struct list catchup_queue; /* nodes_requests.c: sets that it is told of, one after another */
};

struct cluster {
    struct loop *loop;
    struct pool *pool;
    struct cluster_config config;
    struct membership *members;
    unsigned self;
    uint64_t incarnation;    /* ours */
    struct node_link *links; /* one for each member */
    struct list describing, dials;
    struct list pending_installs; /* nodes_install.c: INSTALL requests without an answer */
    struct loop_timer tick;       /* are the others alive; are lost regions back */
    struct loop_timer urgent_timer;
};

#define RESYNC_TELL 1u /* and to say what it has filled */
#define RESYNC_HOLD 2u /* and to keep the set for us */

struct resync {
    struct cluster *cluster;
    unsigned node;
    uint8_t uuid[PROTO_UUID];
};

/* The node that this is a connection of keeps ws here; nothing when it has not said which one it is. */
void nodes_holder(struct wset *ws, const struct rpc_session *session);
/* What follows for ws from an event of node n (cluster/set_nodes.h) is done. It may end ws. */
void nodes_set_event(struct cluster *c, struct wset *ws, unsigned n, struct set_event event);
#define NODES_SET_EVENT(c, ws, n, ...) nodes_set_event(c, ws, n, (struct set_event){__VA_ARGS__})
/* This node has ws since now: SET_ON_TAKEN or SET_ON_COMMITTED, for each other node. */
void nodes_set_taken(struct cluster *c, struct wset *ws, enum set_event_type type);
/* NODE, to node n: who asks. 0, or -errno: there is no answer then. */
int nodes_ask(struct cluster *c, unsigned n, peer_reply_fn answer, void *user);
/* What follows for the link is done, but for LINK_REJECT, if that is returned. */
unsigned nodes_link_event(struct cluster *c, unsigned n, enum link_event event);
bool cluster_is_up(const struct cluster *c, unsigned n);
void cluster_send(struct cluster *c, unsigned n, uint16_t type, const struct bytes_out *body);
/* `bytes` of proto_ready_record as one message, to a node that is up; done (or NULL): when it was sent or dropped, which may be at once. */
void nodes_send_records(struct cluster *c, struct wset *ws, unsigned n, const void *records, size_t bytes,
                        void (*done)(void *user, int status), void *user);
void nodes_send_forget(struct cluster *c, const struct wset *ws, unsigned n, bool end, bool force);
/* Does node n hold regions of ws? */
bool cluster_hosts(const struct wset *ws, unsigned n);
/* Everything that this node has filled of ws, to node n, portion by portion as it is sent, and set by set. Nothing to one that is
 * not up: it is told when it is. */
void nodes_catch_up(struct cluster *c, struct wset *ws, unsigned n);
/* Regions of ws that have moved, to node n if it is up and can read that. */
void nodes_send_places(struct cluster *c, const struct wset *ws, unsigned n);
/* wset_region_move; a host that is one only since then is asked to keep the set, and what it has filled. */
bool nodes_place_take(struct cluster *c, struct wset *ws, uint32_t gid, uint32_t node, uint32_t generation);
/* Asks node n whether it has its regions of ws: RESYNC_*. */
void nodes_resync(struct cluster *c, struct wset *ws, unsigned n, uint32_t flags);
/* proto_ws of a set, for INSTALL and DESCRIBE. */
void nodes_describe(const struct wset *ws, struct bytes_out *out);
int cluster_name_nodes(struct cluster *c, struct wset *ws);
#define INSTALL_PREPARE 1u /* and wait for COMMIT; else it begins to fill */
/* Sends INSTALL to node n, with access and index; ws is kept until both are sent and answered. One answer, later; -errno: none. */
int nodes_install(struct cluster *c, struct wset *ws, unsigned n, uint32_t flags, peer_reply_fn answer,
                  void *user);
int nodes_on_install(struct cluster *c, struct rpc_session *session, struct conn_message *m);
/* The session closed: its installs end without an answer. */
void nodes_detach_installs(struct cluster *c, const struct rpc_session *session);
void nodes_end_pending_installs(struct cluster *c);
/* Here, and to all nodes; nothing when it is committed already. */
void nodes_commit(struct cluster *c, struct wset *ws);
/* To one node, that may have missed it. */
void nodes_send_commit(struct cluster *c, const struct wset *ws, unsigned n);
int nodes_on_commit(struct cluster *c, const void *body, size_t len);
/* Sets whose COMMIT cannot come any more. */
void nodes_drop_orphans(struct cluster *c);
/* nodes_access.c. Sealed to `aad`, for node n: appended to `out`. -ENOTCONN */
int nodes_seal_access(struct cluster *c, unsigned n, struct access *access, const void *aad, size_t aad_len,
                      struct bytes_out *out);
/* What a node sent us so; the reference is the caller's. LEAT_CORRUPT: it ends the connection. */
int nodes_unseal_access(struct cluster *c, struct rpc_session *session, const void *aad, size_t aad_len,
                        const void *sealed, size_t len, struct access **ret_access);
/* pool_nodes_ops.place and .share_access. */
int nodes_place(struct cluster *c, struct wset *ws, uint64_t limit, pool_prepared_fn done, void *user);
void nodes_share_access(struct cluster *c, unsigned n, uint32_t uid, const char *spec, struct access *access);
/* How a user reads a source: to one node that is up. Nothing when there are no credentials in it. */
void nodes_send_access(struct cluster *c, unsigned n, uint32_t uid, const char *spec, struct access *access);
int nodes_on_access(struct cluster *c, struct rpc_session *session, struct conn_message *m);
/* nodes_urgent.c. pool_nodes_ops.urge and .advanced. */
bool nodes_urge(struct cluster *c, struct wset *ws, uint64_t i);
void nodes_urgent_advanced(struct cluster *c, struct wset *ws);
/* The link to node n is up, perhaps again. */
void nodes_urgent_up(struct cluster *c, unsigned n);
void nodes_urgent_fire(struct loop_timer *timer);
int nodes_on_urgent(struct cluster *c, struct rpc_session *session, struct conn_message *m);
/* A set that another node described: ours already, or a replica of it. reply->payload_fd is taken. done: later or at once. */
typedef void (*nodes_adopted_fn)(void *user, struct wset *ws, const struct leat_error *err);
int nodes_adopt(struct cluster *c, struct peer_reply *reply, nodes_adopted_fn done, void *user,
                struct leat_error *err);

#endif
