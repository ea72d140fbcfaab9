/* SPDX-License-Identifier: Apache-2.0 */
/* sim_internal.h: between sim.c (time, faults, what has to hold) and sim_node.c (the network, and what a node does). */
#ifndef CLUSTER_SIM_INTERNAL_H
#define CLUSTER_SIM_INTERNAL_H

#include "cluster/sim.h"

#include "base/rng.h"
#include "cluster/catchup.h"
#include "cluster/installs.h"
#include "cluster/links.h"
#include "cluster/membership.h"
#include "cluster/placing.h"
#include "cluster/rails.h"
#include "cluster/set_nodes.h"
#include "rpc/dial.h"

#define NODES_MAX 4u
#define SETS      4u
#define PIECES    6u /* of a set: one region each */
#define PORTION   2u /* pieces in a message of a catch-up */
#define CALLS     24u
#define CONNS_MAX 4000u
#define FAULTS_NS (100 * NS_PER_S)
#define END_NS    (240 * NS_PER_S)
#define DEAD_NS   (15 * NS_PER_S) /* until an end of a connection notices that nothing comes through */
#define NONE      UINT32_MAX

enum msg_type { NODE, INSTALL, COMMIT, RESYNC, DESCRIBE, READY, FORGET };

struct msg {
    enum msg_type type;
    bool reply, ok, complete, flag;
    bool offer;                 /* NODE: of a placement */
    unsigned set, call, pieces; /* pieces: READY, a bit each */
    uint64_t inc;
};

enum event_type {
    EV_MSG,
    EV_BREAK,
    EV_DIALED,
    EV_SILENT,
    EV_RETRY,
    EV_TICK,
    EV_SENT,
    EV_FILL,
    EV_TAKE,
    EV_PREPARED,
    EV_OPEN,
    EV_READ,
    EV_RELEASE,
    EV_RAIL,
    EV_CRASH,
    EV_RESTART,
    EV_PAUSE,
    EV_CUT,
    EV_RESET,
};

struct event {
    uint64_t t, seq;
    enum event_type type;
    unsigned node; /* NONE: the world */
    uint64_t inc;
    unsigned conn, side, other;
    struct msg m;
};

struct conn {
    unsigned node[2]; /* 0 has dialed 1 */
    uint64_t inc[2], last[2];
    bool open[2];
    bool known;     /* end 1 knows which node end 0 is */
    unsigned meant; /* by end 0 */
    struct msg calls[CALLS];
    bool used[CALLS];
};

enum phase { ABSENT, PREPARED, LIVE };

struct nset { /* a set at a node */
    enum phase phase;
    struct set_nodes nodes;
    bool filled[PIECES], known[PIECES], filled_ever[PIECES]; /* ever: in this incarnation */
    bool holding, lease,
        gone;   /* gone: its regions went with an earlier incarnation, and cannot be filled again */
    bool taken; /* in this incarnation */
    uint64_t live_ns;
    bool catching[NODES_MAX];
    struct catchup catchup[NODES_MAX];
    /* of a placement by this node */
    struct placing_state placing;
    bool is_placing, accepted[NODES_MAX], offers[NODES_MAX];
};

struct node {
    bool alive, multi; /* multi: it has two addresses */
    uint64_t inc, paused_ns;
    struct membership *m;
    struct cluster_link link[NODES_MAX];
    struct {
        unsigned conn;
        struct dial dial;
    } peer[NODES_MAX];
    enum cluster_rail_state rail[NODES_MAX][2];
    struct nset set[SETS];
    uint64_t answered_ns[NODES_MAX], down_ns[NODES_MAX], up_ns[NODES_MAX];
};

struct sim_state {
    uint64_t now, seq, rng;
    enum sim_rule off;
    struct sim_result *res;
    unsigned n, nconns;
    bool calm; /* no cut and no pause: every message takes at most a few seconds */
    struct node node[NODES_MAX];
    struct conn conn[CONNS_MAX];
    struct event *heap;
    unsigned nheap, heap_cap;
    uint64_t cut_ns[NODES_MAX][NODES_MAX]; /* messages from a to b: until then */
    unsigned misled; /* the node whose first address leads to the one before it, until then; NONE */
    uint64_t misled_ns;
    struct {
        bool begun, pushed, explicit, committed;
        unsigned host[PIECES];
    } set[SETS];
};
extern struct sim_state s;

static inline uint64_t sim_below(uint64_t n)
{
    return rng_below(&s.rng, n);
}
static inline bool sim_chance(unsigned percent)
{
    return sim_below(100) < percent;
}
static inline bool on(enum sim_rule rule)
{
    return s.off != rule;
}
static inline uint64_t sim_delay(void)
{
    return (sim_chance(8) ? sim_below(1500) : 1 + sim_below(20)) * NS_PER_MS + sim_below(NS_PER_MS);
}

void sim_violated(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What happens, with sim_trace. */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_put(struct event e);
void sim_later(uint64_t after, struct event e);
#define LATER(after, ...) sim_later(after, (struct event){__VA_ARGS__})

/* sim_node.c. End `side` of a connection learns that the other one is gone. */
void sim_notice(unsigned id, unsigned side, bool silent);
void sim_dial(struct node *a, unsigned n);
void sim_member_changed(void *user, uint32_t n, enum member_change change);
bool sim_is_up(const struct node *a, unsigned n);
bool sim_hosts(unsigned set, unsigned n);
bool sim_has_regions(const struct node *a, unsigned set);
/* An event of a node that is there and not paused. */
void sim_node_event(struct node *a, struct event *e);

#endif
