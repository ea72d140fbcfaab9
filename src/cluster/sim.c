/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c: one schedule of a static cluster (sim.h).
 *
 * Time: a heap of events. An event is for one incarnation of one node, or for the world; a paused node gets its events later.
 * Network: a connection is a pair of ends with a queue each way. A cut delays messages, and ends connections after a while. Each
 * end notices the end of a connection by itself.
 * Faults end at FAULTS_NS. At END_NS all has to be settled (check_end); check_node holds at any time.
 */
#include "cluster/sim.h"

#include "base/rng.h"
#include "cluster/catchup.h"
#include "cluster/links.h"
#include "cluster/membership.h"
#include "cluster/placement.h"
#include "cluster/placing.h"
#include "cluster/set_nodes.h"

#include <stdarg.h>
#include <stdio.h>

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

bool sim_trace;
const char *const sim_rule_names[SIM_RULES] = {
    "identity",       "restarted",    "lost",          "silence",     "expire",      "may_return",
    "held_by",        "hold_newest",  "hold",          "hold_lost",   "hold_placed", "commit_all",
    "commit_up",      "commit_taken", "orphan",        "orphan_wait", "forget",      "forget_late",
    "all_accept",     "hosts_check",  "catch_up",

    "catch_up_again", "ask_taken",    "ask_committed", "ask",         "reinstall",
};

enum msg_type { NODE, INSTALL, COMMIT, RESYNC, DESCRIBE, READY, FORGET };

struct msg {
    enum msg_type type;
    bool reply, ok, complete,
        flag;   /* flag: INSTALL: prepare; RESYNC: send all; FORGET: for all. ok: RESYNC: hold */
    bool offer; /* NODE: of a placement */
    unsigned set, call, pieces; /* pieces: READY, a bit each */
    uint64_t inc;
};

enum event_type {
    EV_MSG,
    EV_BREAK,
    EV_DIALED,
    EV_RETRY,
    EV_TICK,
    EV_SENT,
    EV_FILL,
    EV_TAKE,
    EV_PREPARED,
    EV_OPEN,
    EV_READ,
    EV_RELEASE,
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
        unsigned conn, address, tried;
    } peer[NODES_MAX];
    struct nset set[SETS];
    uint64_t answered_ns[NODES_MAX], down_ns[NODES_MAX], up_ns[NODES_MAX];
};

static struct {
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
    unsigned
        misled; /* the node whose first address leads to the one before it, while there are faults; NONE */
    struct {
        bool begun, pushed, explicit, committed;
        unsigned host[PIECES];
    } set[SETS];
} s;

static uint64_t below(uint64_t n)
{
    return rng_below(&s.rng, n);
}
static bool chance(unsigned percent)
{
    return below(100) < percent;
}
static bool on(enum sim_rule rule)
{
    return s.off != rule;
}
static uint64_t delay(void)
{
    return (chance(8) ? below(1500) : 1 + below(20)) * NS_PER_MS + below(NS_PER_MS);
}

__attribute__((format(printf, 1, 2))) static void violated(const char *format, ...)
{
    if (s.res->violation[0])
        return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(s.res->violation, sizeof(s.res->violation), format, ap);
    va_end(ap);
}

/* What happens, with sim_trace. */
__attribute__((format(printf, 1, 2))) static void trace(const char *format, ...)
{
    if (!sim_trace)
        return;
    printf("# %10.6f ", (double)s.now / 1e9);
    va_list ap;
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
    putchar('\n');
}

/* --- time ---------------------------------------------------------------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->t != b->t ? a->t < b->t : a->seq < b->seq;
}

static void heap_put(struct event e)
{
    if (s.nheap == s.heap_cap) {
        s.heap_cap = s.heap_cap ? 2 * s.heap_cap : 1024;
        s.heap = realloc(s.heap, s.heap_cap * sizeof(*s.heap));
        assert(s.heap);
    }
    unsigned i = s.nheap++;
    for (; i && before(&e, &s.heap[(i - 1) / 2]); i = (i - 1) / 2)
        s.heap[i] = s.heap[(i - 1) / 2];
    s.heap[i] = e;
}

static struct event heap_take(void)
{
    struct event first = s.heap[0], e = s.heap[--s.nheap];
    unsigned i = 0;
    for (unsigned k = 1; k < s.nheap; k = 2 * i + 1) {
        k += k + 1 < s.nheap && before(&s.heap[k + 1], &s.heap[k]);
        if (!before(&s.heap[k], &e))
            break;
        s.heap[i] = s.heap[k];
        i = k;
    }
    s.heap[i] = e;
    return first;
}

static void later(uint64_t after, struct event e)
{
    e.t = s.now + after;
    e.seq = s.seq++;
    e.inc = e.node == NONE ? 0 : s.node[e.node].inc;
    heap_put(e);
}
#define LATER(after, ...) later(after, (struct event){__VA_ARGS__})

/* --- network --------------------------------------------------------------------------------------------------------------- */

static bool cut(unsigned a, unsigned b)
{
    return s.cut_ns[a][b] > s.now || s.cut_ns[b][a] > s.now;
}

static void send(unsigned id, unsigned side, struct msg m)
{
    struct conn *c = &s.conn[id];
    if (!c->open[side])
        return;
    uint64_t t = MAX(s.now + delay(), c->last[side] + 1);
    c->last[side] = t;
    heap_put((struct event){.t = t,
                            .seq = s.seq++,
                            .type = EV_MSG,
                            .node = c->node[!side],
                            .inc = c->inc[!side],
                            .conn = id,
                            .side = !side,
                            .m = m});
}

/* End `side` of a connection learns that the other one is gone. */
static void notice(unsigned id, unsigned side, bool silent)
{
    struct conn *c = &s.conn[id];
    if (!c->open[side])
        return;
    uint64_t after = silent || cut(c->node[0], c->node[1]) ? DEAD_NS + below(3) * NS_PER_S : delay();
    heap_put((struct event){.t = s.now + after,
                            .seq = s.seq++,
                            .type = EV_BREAK,
                            .node = c->node[side],
                            .inc = c->inc[side],
                            .conn = id,
                            .side = side});
}

static bool is_up(const struct node *a, unsigned n)
{
    return a->link[n].state == LINK_UP && a->peer[n].conn != NONE;
}

static void event_to(struct node *a, unsigned n, struct msg m)
{
    if (is_up(a, n))
        send(a->peer[n].conn, 0, m);
}

/* On the connection of a link, also before it is up. False: there is none. */
static bool call(struct node *a, unsigned n, struct msg m)
{
    if (a->peer[n].conn == NONE)
        return false;
    struct conn *c = &s.conn[a->peer[n].conn];
    m.call = 0;
    while (m.call < CALLS && c->used[m.call])
        m.call++;
    if (m.call == CALLS)
        return false; /* as without memory */
    c->used[m.call] = true;
    c->calls[m.call] = m;
    send(a->peer[n].conn, 0, m);
    return true;
}

static void answer(unsigned id, struct msg m)
{
    m.reply = true;
    send(id, 1, m);
}

static void dial(struct node *a, unsigned n)
{
    LATER(delay(), .type = EV_DIALED, .node = a->m->self, .other = n);
}

/* --- sets -------------------------------------------------------------------------------------------------------------------- */

static bool hosts(unsigned set, unsigned n)
{
    for (unsigned p = 0; p < PIECES; p++) {
        if (s.set[set].host[p] == n)
            return true;
    }
    return false;
}

static bool has_regions(const struct node *a, unsigned set)
{
    return a->set[set].phase != ABSENT && !a->set[set].gone;
}

static bool is_complete(const struct node *a, unsigned set)
{
    for (unsigned p = 0; p < PIECES; p++) {
        if (s.set[set].host[p] == a->m->self && !a->set[set].filled[p] && !s.set[set].pushed)
            return false;
    }
    return true;
}

static void catch_up(struct node *a, unsigned set, unsigned n);
static void drop(struct node *a, unsigned set);
static void act(struct node *a, unsigned set, unsigned n, unsigned actions);

static void set_event(struct node *a, unsigned set, unsigned n, struct set_event e)
{
    struct nset *ws = &a->set[set];
    if (ws->phase == ABSENT)
        return;
    e.host = hosts(set, n);
    e.up = is_up(a, n);
    e.prepared = ws->phase == PREPARED;
    e.in_use = ws->lease || s.set[set].explicit;
    e.refill = !s.set[set].pushed;
    act(a, set, n, set_nodes_step(&ws->nodes, n, &e, s.now));
}
#define SET_EVENT(a, set, n, ...) set_event(a, set, n, (struct set_event){__VA_ARGS__})

/* Hosts are to keep it: for clients of this node, or until it is placed. */
static bool keeps(const struct nset *ws)
{
    return ws->holding || (ws->is_placing && ws->phase == PREPARED && on(SIM_HOLD_PLACED));
}

static void resync(struct node *a, unsigned set, unsigned n, bool all)
{
    struct msg m = {.type = RESYNC,
                    .set = set,
                    .flag = all,
                    .ok = keeps(&a->set[set]) && on(all ? SIM_HOLD : SIM_HOLD_LOST)};
    if (is_up(a, n) && call(a, n, m))
        a->set[set].nodes.at[n].asked = true;
}

static void install(struct node *a, unsigned set, unsigned n)
{
    s.res->refills++;
    call(a, n, (struct msg){.type = INSTALL, .set = set});
}

static void act(struct node *a, unsigned set, unsigned n, unsigned actions)
{
    if ((actions & SET_COMMIT) && on(actions & SET_CATCH_UP ? SIM_COMMIT_UP : SIM_COMMIT_TAKEN))
        event_to(a, n, (struct msg){.type = COMMIT, .set = set});
    if ((actions & SET_CATCH_UP) && on(SIM_CATCH_UP))
        catch_up(a, set, n);
    if (actions & SET_ASK_ALL)
        resync(a, set, n, true);
    if ((actions & SET_ASK) && on(SIM_ASK))
        resync(a, set, n, false);
    if ((actions & SET_REINSTALL) && on(SIM_REINSTALL))
        install(a, set, n);
    if (actions & SET_DROP)
        drop(a, set);
}

/* This node holds the set, on connection `id` of node n: it is gone only if it may be. */
static void check_release(struct node *a, unsigned set, unsigned n, bool was, uint64_t id)
{
    const struct nset *ws = &a->set[set], *theirs = &s.node[n].set[set];
    bool holder = ws->phase != ABSENT && ws->nodes.at[n].holder;
    const struct conn *c = &s.conn[id];
    if (was && !holder && c->open[0] && c->open[1] && c->inc[0] == s.node[n].inc && theirs->holding &&
        theirs->phase != ABSENT)
        violated("node %u released set %u although node %u holds it on an open connection", a->m->self, set,
                 n);
}

static void expire(struct node *a, unsigned n)
{
    for (unsigned set = 0; set < SETS; set++) {
        struct nset *ws = &a->set[set];
        if (ws->phase == ABSENT)
            continue;
        struct set_node before = ws->nodes.at[n];
        s.res->expired += before.unconfirmed;
        SET_EVENT(a, set, n, .type = SET_ON_EXPIRE);
        check_release(a, set, n, before.holder, before.held_by);
    }
}

static void fills(struct node *a, unsigned set)
{
    for (unsigned p = 0; p < PIECES; p++) {
        if (s.set[set].host[p] == a->m->self && !a->set[set].filled[p])
            LATER((50 + below(3000)) * NS_PER_MS, .type = EV_FILL, .node = a->m->self, .m.set = set,
                  .other = p);
    }
}

static void take(struct node *a, unsigned set, enum phase phase)
{
    struct nset *ws = &a->set[set];
    assert(ws->phase == ABSENT);
    trace("node %u: set %u is %s", a->m->self, set, phase == LIVE ? "live" : "prepared");
    bool ever[PIECES];
    memcpy(ever, ws->filled_ever, sizeof(ever));
    *ws = (struct nset){.phase = phase,
                        .taken = true,
                        .live_ns = s.now,
                        .placing = ws->placing,
                        .is_placing = ws->is_placing};
    memcpy(ws->accepted, (bool[NODES_MAX]){0}, sizeof(ws->accepted));
    memcpy(ws->filled_ever, ever, sizeof(ever));
    int rc = set_nodes_init(&ws->nodes, s.n);
    assert(rc == 0);
}

static void taken(struct node *a, unsigned set, enum set_event_type type)
{
    for (unsigned n = 0; n < s.n; n++) {
        if (n != a->m->self)
            SET_EVENT(a, set, n, .type = type);
    }
}

static void forget_all(struct node *a, unsigned set)
{
    for (unsigned n = 0; n < s.n; n++)
        event_to(a, n, (struct msg){.type = FORGET, .set = set});
}

static void drop(struct node *a, unsigned set)
{
    struct nset *ws = &a->set[set];
    if (ws->phase == ABSENT)
        return;
    trace("node %u: set %u is dropped", a->m->self, set);
    forget_all(a, set);
    set_nodes_fini(&ws->nodes);
    ws->phase = ABSENT;
    ws->holding = ws->lease = false;
    memset(ws->filled, 0, sizeof(ws->filled));
    memset(ws->known, 0, sizeof(ws->known));
}

/* `only`: it dies before it has sent COMMIT to the others; NONE: it does not. */
static void commit(struct node *a, unsigned set, bool tell, unsigned only)
{
    struct nset *ws = &a->set[set];
    if (ws->phase != PREPARED)
        return;
    trace("node %u: set %u is committed", a->m->self, set);
    ws->phase = LIVE;
    ws->live_ns = s.now;
    ws->nodes.orphaned_ns = 0;
    fills(a, set);
    for (unsigned n = 0; tell && n < s.n; n++)
        if (only == NONE || n == only)
            event_to(a, n, (struct msg){.type = COMMIT, .set = set});
}

/* Where it hurts: a process is started again while its last messages are on their way. */
static void steer_restart(struct node *a, unsigned set)
{
    LATER(below(10) * NS_PER_MS, .type = EV_CRASH, .node = NONE, .other = a->m->self);
    LATER((100 + below(1000)) * NS_PER_MS, .type = EV_READ, .node = NONE, .other = a->m->self, .m.set = set);
}

static void lease(struct node *a, unsigned set)
{
    struct nset *ws = &a->set[set];
    ws->lease = true;
    if (ws->holding)
        return;
    ws->holding = true;
    for (unsigned n = 0; n < s.n; n++) {
        if (n != a->m->self && hosts(set, n))
            resync(a, set, n, true);
    }
    if (chance(8))
        steer_restart(a, set);
}

/* --- READY records ------------------------------------------------------------------------------------------------------------- */

static void ready(struct node *a, unsigned set, unsigned n, unsigned pieces)
{
    event_to(a, n, (struct msg){.type = READY, .set = set, .pieces = pieces});
}

static void catchup_run(struct node *a, unsigned set, unsigned n, enum catchup_action action)
{
    struct nset *ws = &a->set[set];
    struct catchup *c = &ws->catchup[n];
    while (action == CATCHUP_MAKE) {
        unsigned pieces = 0;
        for (unsigned k = 0; k < PORTION && c->at < PIECES; c->at++, k++)
            pieces |= ws->filled[c->at] ? 1u << c->at : 0;
        bool more = c->at < PIECES;
        if (!pieces && more)
            continue;
        if (!on(SIM_CATCH_UP_AGAIN))
            c->again = false;
        action = catchup_made(c, pieces != 0);
        if (action == CATCHUP_SEND) {
            ready(a, set, n, pieces);
            LATER(delay(), .type = EV_SENT, .node = a->m->self, .conn = a->peer[n].conn, .other = n,
                  .m.set = set);
        }
    }
    if (action == CATCHUP_DONE)
        ws->catching[n] = false;
}

static void catch_up(struct node *a, unsigned set, unsigned n)
{
    struct nset *ws = &a->set[set];
    if (!is_up(a, n))
        return;
    if (ws->catching[n]) {
        catchup_request(&ws->catchup[n]);
        return;
    }
    ws->catching[n] = true;
    ws->catchup[n] = (struct catchup){0};
    catchup_run(a, set, n, catchup_next(&ws->catchup[n], false));
}

static void sent(struct node *a, const struct event *e)
{
    struct nset *ws = &a->set[e->m.set];
    if (!ws->catching[e->other] || !ws->catchup[e->other].sending || a->peer[e->other].conn != e->conn)
        return; /* the end of that connection has ended it */
    catchup_sent(&ws->catchup[e->other], true);
    catchup_run(a, e->m.set, e->other, catchup_next(&ws->catchup[e->other], ws->phase == ABSENT));
}

static void catchups_failed(struct node *a, unsigned n)
{
    for (unsigned set = 0; set < SETS; set++) {
        a->set[set].catching[n] = a->set[set].catching[n] && catchup_sent(&a->set[set].catchup[n], false);
    }
}

static void filled(struct node *a, unsigned set, unsigned piece)
{
    struct nset *ws = &a->set[set];
    if (ws->phase != LIVE || ws->filled[piece])
        return;
    for (unsigned n = 0; n < s.n; n++) {
        const struct nset *other = &s.node[n].set[set];
        if (s.node[n].alive && hosts(set, n) && !s.set[set].committed && other->phase == ABSENT)
            violated("node %u fills set %u before node %u has it", a->m->self, set, n);
    }
    ws->filled[piece] = ws->filled_ever[piece] = ws->known[piece] = true;
    for (unsigned n = 0; n < s.n; n++) {
        if (!is_up(a, n))
            continue;
        if (catchup_instead(chance(30) ? 8 : 1, 1, 4))
            catch_up(a, set, n);
        else
            ready(a, set, n, 1u << piece);
    }
}

/* --- links ----------------------------------------------------------------------------------------------------------------------- */

static void link_event(struct node *a, unsigned n, enum link_event event);

static void member_changed(void *user, uint32_t n, enum member_change change)
{
    struct node *a = user;
    if (change == MEMBER_RESTARTED && !on(SIM_RESTARTED))
        return;
    if (change == MEMBER_DOWN && a->down_ns[n] == 0)
        a->down_ns[n] = s.now;
    if (change == MEMBER_UP)
        a->down_ns[n] = 0;
    static const char *const names[] = {"up", "another incarnation", "down"};
    if (change != MEMBER_DOWN || a->down_ns[n] == s.now)
        trace("node %u: node %u is %s", a->m->self, n, names[change]);
    for (unsigned set = 0; set < SETS; set++) {
        if (change == MEMBER_UP)
            SET_EVENT(a, set, n, .type = SET_ON_UP);
        else if (change == MEMBER_RESTARTED || on(SIM_LOST))
            SET_EVENT(a, set, n, .type = SET_ON_LOST);
    }
    if (change == MEMBER_RESTARTED) {
        s.res->restarts_unseen++;
        link_event(a, n, LINK_ON_RESTARTED);
    }
}

/* The dialing end of a connection is closed: the next address is tried, or the node is down. */
static void peer_lost(struct node *a, unsigned n, bool down)
{
    unsigned id = a->peer[n].conn;
    if (id == NONE)
        return;
    struct conn *c = &s.conn[id];
    c->open[0] = false;
    a->peer[n].conn = NONE;
    notice(id, 1, false);
    down = down || ++a->peer[n].tried >= 1u + s.node[n].multi;
    for (unsigned k = 0; k < CALLS; k++) {
        struct msg m = c->calls[k];
        if (!c->used[k])
            continue;
        c->used[k] = false;
        struct nset *ws = &a->set[m.set];
        if (m.type == NODE && !m.offer)
            link_event(a, n, LINK_ON_UNANSWERED);
        else if (m.type == RESYNC)
            SET_EVENT(a, m.set, n, .type = SET_ON_SILENT);
        else if (m.type == NODE || (m.type == INSTALL && m.flag))
            ws->offers[n] = false;
        if (ws->is_placing && (m.offer || (m.type == INSTALL && m.flag)))
            LATER(0, .type = EV_PREPARED, .node = a->m->self, .m.set = m.set, .m.ok = m.offer);
    }
    catchups_failed(a, n);
    if (down) {
        link_event(a, n, LINK_ON_DISCONNECTED);
        a->peer[n].tried = a->peer[n].address = 0;
        LATER(NS_PER_S / 2, .type = EV_RETRY, .node = a->m->self, .other = n);
    } else {
        a->peer[n].address ^= 1;
        dial(a, n);
    }
}

static void link_event(struct node *a, unsigned n, enum link_event event)
{
    unsigned actions = link_step(&a->link[n], event, s.now);
    if (actions & LINK_REJECT)
        peer_lost(a, n, false);
    if ((actions & LINK_ASK) && !call(a, n, (struct msg){.type = NODE}))
        link_event(a, n, LINK_ON_UNANSWERED);
    if (actions & LINK_BECAME_UP) {
        a->peer[n].tried = 0;
        a->answered_ns[n] = a->up_ns[n] = s.now;
        membership_up(a->m, n);
    }
    if (actions & LINK_WENT_DOWN)
        membership_down(a->m, n);
    if ((actions & LINK_DISCONNECT) && on(SIM_SILENCE))
        peer_lost(a, n, true);
    if ((actions & LINK_EXPIRE) && on(SIM_EXPIRE))
        expire(a, n);
}

static void dialed(struct node *a, unsigned n)
{
    unsigned to = n == s.misled && a->peer[n].address == 0 && s.now < FAULTS_NS ? (n + s.n - 1) % s.n : n;
    struct node *b = &s.node[to];
    if (a->peer[n].conn != NONE)
        return;
    if (to == a->m->self || !b->alive || b->paused_ns > s.now || cut(a->m->self, to) ||
        s.nconns == CONNS_MAX) {
        if (++a->peer[n].tried < 1u + s.node[n].multi) {
            a->peer[n].address ^= 1;
            dial(a, n);
            return;
        }
        a->peer[n].tried = a->peer[n].address = 0;
        link_event(a, n, LINK_ON_DISCONNECTED);
        LATER(NS_PER_S / 2, .type = EV_RETRY, .node = a->m->self, .other = n);
        return;
    }
    unsigned id = s.nconns++;
    s.conn[id] =
        (struct conn){.node = {a->m->self, to}, .inc = {a->inc, b->inc}, .open = {true, true}, .meant = n};
    a->peer[n].conn = id;
    link_event(a, n, LINK_ON_CONNECTED);
}

static void inbound_lost(struct node *b, unsigned id)
{
    struct conn *c = &s.conn[id];
    unsigned n = c->node[0];
    c->open[1] = false;
    trace("node %u: connection %u of node %u ended", b->m->self, id, n);
    if (!c->known)
        return;
    bool multi = s.node[n].multi && on(SIM_MAY_RETURN);
    if (multi)
        link_event(b, n, LINK_ON_INBOUND_LOST);
    for (unsigned set = 0; set < SETS; set++) {
        struct nset *ws = &b->set[set];
        if (ws->phase == ABSENT)
            continue;
        struct set_node was = ws->nodes.at[n];
        uint64_t conn = on(SIM_HELD_BY) ? id : was.held_by;
        if (s.node[n].multi && !multi && was.holder && was.held_by == conn && s.node[n].alive &&
            s.node[n].inc == c->inc[0] && s.node[n].set[set].holding)
            violated("node %u released set %u at once when a connection of node %u ended", b->m->self, set,
                     n);
        SET_EVENT(b, set, n, .type = SET_ON_INBOUND_LOST, .conn = conn, .may_return = multi);
        check_release(b, set, n, was.holder, was.held_by);
    }
}

static void broken(struct node *a, const struct event *e)
{
    struct conn *c = &s.conn[e->conn];
    if (!c->open[e->side])
        return;
    if (e->side == 1) {
        inbound_lost(a, e->conn);
        notice(e->conn, 0, false);
    } else {
        peer_lost(a, c->meant, !s.node[c->meant].multi);
    }
}

static void tick(struct node *a)
{
    for (unsigned n = 0; n < s.n; n++) {
        if (n != a->m->self)
            link_event(a, n, LINK_ON_TICK);
    }
    for (unsigned set = 0; set < SETS; set++) {
        struct nset *ws = &a->set[set];
        for (unsigned n = 0; n < s.n; n++)
            SET_EVENT(a, set, n, .type = SET_ON_TICK);
        bool orphaned = ws->phase == PREPARED && ws->nodes.orphaned_ns &&
                        (!on(SIM_ORPHAN_WAIT) || set_nodes_orphaned(&ws->nodes, s.now));
        if (orphaned && on(SIM_ORPHAN)) {
            s.res->orphans++;
            drop(a, set);
            for (unsigned n = 0; s.calm && n < s.n; n++) {
                if (s.node[n].alive && s.node[n].set[set].phase == LIVE)
                    violated("node %u drops set %u as an orphan, and node %u has it committed", a->m->self,
                             set, n);
                if (s.node[n].alive && s.node[n].set[set].is_placing && is_up(&s.node[n], a->m->self) &&
                    s.node[n].up_ns[a->m->self] + 5 * NS_PER_S < s.now)
                    violated("node %u drops set %u as an orphan while node %u places it", a->m->self, set, n);
            }
        }
    }
    LATER(LINK_TICK_NS, .type = EV_TICK, .node = a->m->self);
}

/* --- placing ----------------------------------------------------------------------------------------------------------------------- */

static void placing_go(struct node *a, unsigned set, enum placing_action action);

static void placing_answer(struct node *a, unsigned set, bool ok)
{
    struct nset *ws = &a->set[set];
    placing_go(a, set, placing_answered(&ws->placing, ok || !on(SIM_ALL_ACCEPT)));
}

static void place(struct node *a, unsigned set)
{
    struct nset *ws = &a->set[set];
    s.set[set].begun = true;
    ws->placing = placing_begin();
    ws->is_placing = true;
    memset(ws->offers, 0, sizeof(ws->offers));
    memset(ws->accepted, 0, sizeof(ws->accepted));
    for (unsigned n = 0; n < s.n; n++) {
        if (is_up(a, n) && call(a, n, (struct msg){.type = NODE, .offer = true, .set = set}))
            placing_sent(&ws->placing);
    }
    placing_answer(a, set, true);
}

static void placing_map(struct node *a, unsigned set)
{
    struct nset *ws = &a->set[set];
    struct placement_node offer[NODES_MAX] = {0};
    for (unsigned n = 0; n < s.n; n++) {
        if (n == a->m->self || ws->offers[n])
            offer[n] = (struct placement_node){1 + below(3), PIECES};
    }
    int rc = placement_map(offer, s.n, PIECES, s.set[set].host);
    assert(rc == 0);
    take(a, set, PREPARED);
    ws->nodes.placer = NONE;
    LATER(delay(), .type = EV_PREPARED, .node = a->m->self, .m.set = set, .m.ok = true);
}

static bool hosts_are_there(struct node *a, unsigned set)
{
    const struct nset *ws = &a->set[set];
    for (unsigned n = 0; n < s.n; n++) {
        if (n != a->m->self && hosts(set, n) && (!is_up(a, n) || ws->nodes.at[n].lost))
            return false;
    }
    return true;
}

/* Where it hurts: the coordinator dies with one COMMIT on its way, and that node does not reach the others. */
static void steer_commit(struct node *a, unsigned set)
{
    unsigned b = (a->m->self + 1) % s.n, c = (a->m->self + 2) % s.n;
    LATER(below(20) * NS_PER_MS, .type = EV_CRASH, .node = NONE, .other = a->m->self);
    LATER((500 + below(3000)) * NS_PER_MS, .type = EV_READ, .node = NONE, .other = a->m->self, .m.set = set);
    if (chance(50))
        return;
    if (!s.calm)
        s.cut_ns[b][c] = s.cut_ns[c][b] = s.now + (1 + below(12)) * NS_PER_S;
    else if (s.node[b].alive && s.node[b].peer[c].conn != NONE)
        notice(s.node[b].peer[c].conn, 0, false);
}

static void placing_end(struct node *a, unsigned set, bool ok)
{
    struct nset *ws = &a->set[set];
    ws->is_placing = false;
    bool there = ws->phase == PREPARED && hosts_are_there(a, set);
    if (ok && (there || (ws->phase == PREPARED && !on(SIM_HOSTS_CHECK)))) {
        if (!there)
            violated("node %u commits set %u although it has lost a host", a->m->self, set);
        for (unsigned n = 0; n < s.n; n++) {
            const struct node *b = &s.node[n];
            if (hosts(set, n) && b->alive && b->inc == a->m->members[n].incarnation && !b->set[set].taken)
                violated("node %u commits set %u, and its host %u does not have it", a->m->self, set, n);
        }
        s.set[set].committed = true;
        s.res->committed++;
        bool steer = s.now < FAULTS_NS && chance(40);
        commit(a, set, true, steer ? (a->m->self + 1) % s.n : NONE);
        lease(a, set);
        if (steer)
            steer_commit(a, set);
        return;
    }
    s.res->failed++;
    for (unsigned n = 0; n < s.n; n++) {
        if (ws->accepted[n] && on(SIM_FORGET))
            event_to(a, n, (struct msg){.type = FORGET, .set = set, .flag = true});
    }
    if (ws->phase == PREPARED) {
        if (on(SIM_FORGET))
            drop(a, set);
        else
            ws->phase = ABSENT, set_nodes_fini(&ws->nodes);
    }
}

static void placing_go(struct node *a, unsigned set, enum placing_action action)
{
    struct nset *ws = &a->set[set];
    if (action == PLACING_PREPARE) {
        placing_map(a, set);
    } else if (action == PLACING_INSTALL) {
        for (unsigned n = 0; n < s.n; n++) {
            if (n == a->m->self || !hosts(set, n))
                continue;
            if (is_up(a, n) && call(a, n, (struct msg){.type = INSTALL, .set = set, .flag = true}))
                placing_sent(&ws->placing);
            else
                ws->placing.failed = true;
        }
        placing_answer(a, set, true);
    } else if (action != PLACING_WAIT) {
        placing_end(a, set, action == PLACING_COMMIT);
    }
}

/* --- messages ------------------------------------------------------------------------------------------------------------------------ */

/* INSTALL, after the index was validated. */
static void take_install(struct node *b, const struct event *e)
{
    struct msg m = e->m;
    unsigned from = s.conn[e->conn].node[0];
    m.ok = s.conn[e->conn].open[1] && b->set[m.set].phase == ABSENT && !(m.flag && chance(10));
    if (m.ok) {
        take(b, m.set, m.flag ? PREPARED : LIVE);
        SET_EVENT(b, m.set, from, .type = SET_ON_HOLD, .conn = e->conn);
        b->set[m.set].nodes.placer = from;
        if (!m.flag) {
            fills(b, m.set);
            if (on(SIM_ASK_TAKEN))
                taken(b, m.set, SET_ON_TAKEN);
        }
    }
    answer(e->conn, m);
}

/* Where it hurts: an INSTALL of node a takes long, and the set is released there, or another host loses its connection. */
static void steer_slow(struct node *a, struct msg m)
{
    unsigned n = (unsigned)below(s.n);
    if (!a->alive)
        return;
    if (!m.flag)
        LATER(3 * NS_PER_S, .type = EV_RELEASE, .node = NONE, .other = a->m->self, .m.set = m.set);
    else if (a->peer[n].conn != NONE)
        notice(a->peer[n].conn, chance(50), false);
}

/* On a connection that another node made. */
static void request(struct node *b, unsigned id, struct msg m)
{
    struct conn *c = &s.conn[id];
    struct nset *ws = &b->set[m.set];
    unsigned from = c->node[0];
    switch (m.type) {
    case NODE:
        c->known = true;
        m.inc = b->inc;
        m.pieces = b->m->self;
        answer(id, m);
        break;
    case INSTALL: {
        bool slow = chance(8);
        LATER(slow ? below(20) * NS_PER_S : 2 * delay(), .type = EV_TAKE, .node = b->m->self, .conn = id,
              .m = m);
        if (slow)
            steer_slow(&s.node[from], m);
        break;
    }
    case COMMIT:
        if (ws->phase != PREPARED)
            break;
        commit(b, m.set, on(SIM_COMMIT_ALL), NONE);
        if (on(SIM_ASK_COMMITTED))
            taken(b, m.set, SET_ON_COMMITTED);
        break;
    case RESYNC: {
        bool hold = m.ok;
        m.ok = has_regions(b, m.set) && c->known;
        m.complete = m.ok && ws->phase == LIVE && is_complete(b, m.set);
        if (m.ok && hold)
            SET_EVENT(b, m.set, from, .type = SET_ON_HOLD, .conn = id);
        if (m.ok && hold && !on(SIM_HOLD_NEWEST))
            ws->nodes.at[from].held_by = id;
        if (m.ok && m.flag)
            catch_up(b, m.set, from);
        answer(id, m);
        break;
    }
    case DESCRIBE:
        m.ok = ws->phase == LIVE;
        if (m.ok)
            SET_EVENT(b, m.set, from, .type = SET_ON_HOLD, .conn = id);
        answer(id, m);
        break;
    case READY:
        /* Not modelled: late records of a process that is gone. Readers of what they name get an error there, and ask again. */
        if (c->inc[0] != s.node[from].inc)
            break;
        for (unsigned p = 0; ws->phase != ABSENT && p < PIECES; p++)
            ws->known[p] = ws->known[p] || (m.pieces >> p & 1);
        break;
    case FORGET:
        if (m.flag)
            drop(b, m.set);
        else
            SET_EVENT(b, m.set, from, .type = SET_ON_FORGET);
    }
}

/* A replica, or a set whose regions here went with an earlier incarnation: they are filled again. */
static void adopt(struct node *a, unsigned set)
{
    struct nset *ws = &a->set[set];
    if (ws->phase == PREPARED)
        commit(a, set, true, NONE);
    if (ws->phase == ABSENT) {
        take(a, set, LIVE);
        if (hosts(set, a->m->self) && s.set[set].pushed) {
            set_nodes_lose(&ws->nodes, a->m->self);
            ws->gone = true;
        } else {
            fills(a, set);
        }
        ws->holding = true;
        if (on(SIM_ASK_TAKEN))
            taken(a, set, SET_ON_TAKEN);
    }
    lease(a, set);
}

static void reply(struct node *a, unsigned n, struct msg m)
{
    struct nset *ws = &a->set[m.set];
    if (m.type == NODE && m.offer) {
        ws->offers[n] = m.pieces == n;
        if (ws->is_placing)
            placing_answer(a, m.set, true);
    } else if (m.type == NODE) {
        bool right = m.pieces == n || !on(SIM_IDENTITY);
        a->answered_ns[n] = s.now;
        link_event(a, n, right ? LINK_ON_IDENTIFIED : LINK_ON_OTHER);
        if (right)
            membership_incarnation(a->m, n, m.inc);
    } else if (m.type == INSTALL && m.flag) {
        ws->accepted[n] = m.ok;
        if (ws->is_placing)
            placing_answer(a, m.set, m.ok);
    } else if (m.type == INSTALL) {
        if (m.ok && ws->phase == ABSENT && on(SIM_FORGET_LATE))
            event_to(a, n, (struct msg){.type = FORGET, .set = m.set});
    } else if (m.type == RESYNC) {
        SET_EVENT(a, m.set, n,
                  .type = !m.ok        ? SET_ON_LACKING
                          : m.complete ? SET_ON_COMPLETE
                                       : SET_ON_FILLING);
    } else if (m.type == DESCRIBE && m.ok) {
        adopt(a, m.set);
    }
}

static void arrived(struct node *a, struct event *e)
{
    struct conn *c = &s.conn[e->conn];
    if (!c->open[e->side]) {
        notice(e->conn, !e->side, false);
        return;
    }
    uint64_t until = s.cut_ns[c->node[!e->side]][c->node[e->side]];
    if (until > s.now) {
        e->t = until;
        c->last[!e->side] = MAX(c->last[!e->side], until);
        heap_put(*e);
        return;
    }
    static const char *const names[] = {"NODE", "INSTALL", "COMMIT", "RESYNC", "DESCRIBE", "READY", "FORGET"};
    if (e->m.type != NODE || e->m.offer)
        trace("node %u <- node %u: %s%s set %u flag %d ok %d complete %d pieces %x (%u)", c->node[e->side],
              c->node[!e->side], names[e->m.type], e->side ? "" : " answer", e->m.set, e->m.flag, e->m.ok,
              e->m.complete, e->m.pieces, e->conn);
    if (e->side == 1) {
        request(a, e->conn, e->m);
    } else if (c->used[e->m.call]) {
        c->used[e->m.call] = false;
        reply(a, c->meant, e->m);
    }
}

/* --- the world --------------------------------------------------------------------------------------------------------------------------- */

static void boot(unsigned n)
{
    struct node *a = &s.node[n];
    char text[NODES_MAX][32], *addresses[NODES_MAX];
    for (unsigned k = 0; k < s.n; k++) {
        snprintf(text[k], sizeof(text[k]), s.node[k].multi ? "n%u:1,n%u:2" : "n%u:1", k, k);
        addresses[k] = text[k];
    }
    bool multi = a->multi;
    trace("node %u: starts, %s", n, multi ? "with two addresses" : "with one address");
    *a = (struct node){.alive = true, .multi = multi, .inc = rng_next(&s.rng) | 1};
    int rc = membership_static_new(addresses, s.n, text[n], a->inc, &a->m, NULL);
    assert(rc == 0);
    a->m->changed = member_changed;
    a->m->user = a;
    for (unsigned k = 0; k < s.n; k++) {
        a->peer[k].conn = NONE;
        if (k != n)
            dial(a, k);
    }
    LATER(below(2000) * NS_PER_MS, .type = EV_TICK, .node = n);
}

static void halt(struct node *a)
{
    for (unsigned set = 0; set < SETS; set++) {
        if (a->set[set].phase != ABSENT)
            set_nodes_fini(&a->set[set].nodes);
    }
    membership_free(a->m);
    a->m = NULL;
    a->alive = false;
}

static void crash(unsigned n)
{
    struct node *a = &s.node[n];
    if (!a->alive)
        return;
    s.res->crashes++;
    trace("node %u: crashes", n);
    bool silent = chance(25); /* the host, not only the process */
    for (unsigned k = 0; k < s.nconns; k++) {
        struct conn *c = &s.conn[k];
        for (unsigned side = 0; side < 2; side++) {
            if (c->open[side] && c->node[side] == n && c->inc[side] == a->inc) {
                c->open[side] = false;
                notice(k, !side, silent);
            }
        }
    }
    halt(a);
    a->inc = 0;
    LATER(chance(50) ? delay() : below(25) * NS_PER_S, .type = EV_RESTART, .node = NONE, .other = n);
}

static void cut_off(unsigned a, unsigned b)
{
    uint64_t until = s.now + (1 + below(chance(50) ? 10 : 45)) * NS_PER_S;
    trace("node %u: cut off node %u for %.3f s", b, a, (double)(until - s.now) / 1e9);
    s.cut_ns[a][b] = until;
    if (chance(70))
        s.cut_ns[b][a] = until;
    for (unsigned k = 0; k < s.nconns && until > s.now + DEAD_NS; k++) {
        struct conn *c = &s.conn[k];
        if ((c->node[0] == a && c->node[1] == b) || (c->node[0] == b && c->node[1] == a)) {
            notice(k, 0, true);
            notice(k, 1, true);
        }
    }
}

static void world(const struct event *e)
{
    unsigned n = e->other;
    struct node *a = &s.node[n];
    if (e->type == EV_RESTART) {
        boot(n);
        return;
    }
    if (s.now >= FAULTS_NS)
        return;
    if (e->type == EV_CRASH)
        crash(n);
    else if (e->type == EV_PAUSE && a->alive)
        a->paused_ns = MAX(a->paused_ns, s.now + (1 + below(40)) * NS_PER_S), trace("node %u: pauses", n);
    else if (e->type == EV_CUT)
        cut_off(n, (n + 1 + (unsigned)below(s.n - 1)) % s.n);
    else if (e->type == EV_RESET && s.nconns) {
        unsigned id = (unsigned)below(s.nconns);
        notice(id, 0, chance(30));
        notice(id, 1, chance(30));
    }
}

static void client(struct node *a, const struct event *e)
{
    unsigned set = e->m.set;
    struct nset *ws = &a->set[set];
    if (e->type == EV_OPEN) {
        if (!s.set[set].begun && ws->phase == ABSENT && !ws->is_placing)
            place(a, set);
    } else if (e->type == EV_READ) {
        for (unsigned k = 1; ws->phase == ABSENT && !ws->is_placing && k < s.n; k++)
            if (is_up(a, (a->m->self + k) % s.n))
                call(a, (a->m->self + k) % s.n, (struct msg){.type = DESCRIBE, .set = set});
        if (ws->phase == LIVE)
            lease(a, set);
    } else if (ws->lease && ws->phase == LIVE) {
        ws->lease = false;
        if (!ws->nodes.nholders && !s.set[set].explicit) {
            drop(a, set);
        } else {
            ws->holding = false;
            forget_all(a, set);
        }
    }
}

/* --- what has to hold -------------------------------------------------------------------------------------------------------------------- */

static void check_node(struct node *a)
{
    for (unsigned n = 0; n < s.n; n++) {
        const struct node *b = &s.node[n];
        if (n == a->m->self)
            continue;
        if (is_up(a, n) && s.conn[a->peer[n].conn].node[1] != n)
            violated("node %u takes node %u for node %u", a->m->self, s.conn[a->peer[n].conn].node[1], n);
        for (unsigned set = 0; set < SETS; set++) {
            const struct nset *ws = &a->set[set];
            if (ws->phase != LIVE || ws->nodes.at[n].lost || !hosts(set, n))
                continue;
            for (unsigned p = 0; p < PIECES; p++) {
                if (s.set[set].host[p] == n && ws->known[p] && is_up(a, n) && b->alive &&
                    a->m->members[n].incarnation == b->inc && !b->set[set].filled_ever[p])
                    violated("node %u reads set %u at node %u, which was started again", a->m->self, set, n);
            }
            if (a->down_ns[n] && s.now - MAX(a->down_ns[n], ws->live_ns) > 60 * NS_PER_S &&
                a->paused_ns < s.now)
                violated("node %u waits for set %u at node %u, which is down", a->m->self, set, n);
        }
    }
}

/* After each tick. */
static void check_silence(const struct node *a)
{
    for (unsigned n = 0; n < s.n; n++) {
        uint64_t since = MAX(a->answered_ns[n], a->paused_ns);
        if (is_up(a, n) && s.now > since + LINK_SILENCE_NS + 3 * LINK_TICK_NS)
            violated("node %u has not answered node %u for %llu s and is up", n, a->m->self,
                     (unsigned long long)((s.now - since) / NS_PER_S));
    }
}

static void check_set(const struct node *a, unsigned set)
{
    const struct nset *ws = &a->set[set];
    for (unsigned n = 0; n < s.n; n++) {
        const struct nset *theirs = &s.node[n].set[set];
        if (ws->nodes.at[n].holder && (theirs->phase == ABSENT || n == a->m->self))
            violated("node %u keeps set %u for node %u, which does not have it", a->m->self, set, n);
        if (ws->nodes.at[n].unconfirmed)
            violated("node %u still waits for holder %u of set %u", a->m->self, n, set);
        /* A set that no client of this node uses may go from its hosts. */
        if (n == a->m->self || !hosts(set, n) || !(ws->holding || s.set[set].explicit))
            continue;
        bool there = has_regions(&s.node[n], set);
        if (!there && !s.set[set].pushed)
            violated("node %u has set %u, and its host %u has not", a->m->self, set, n);
        if (!there && !ws->nodes.at[n].lost)
            violated("node %u waits for set %u at node %u, which does not have it", a->m->self, set, n);
        if (there && ws->holding && !theirs->nodes.at[a->m->self].holder)
            violated("node %u does not keep set %u for node %u", n, set, a->m->self);
        if (there && ws->nodes.at[n].lost && !s.set[set].pushed)
            violated("node %u takes set %u for lost at node %u, which has it", a->m->self, set, n);
        for (unsigned p = 0; p < PIECES; p++) {
            if (s.set[set].host[p] == n && there && theirs->filled[p] && !ws->known[p])
                violated("node %u never learned that piece %u of set %u is at node %u", a->m->self, p, set,
                         n);
        }
    }
}

static void check_end(void)
{
    for (unsigned k = 0; k < s.n; k++) {
        const struct node *a = &s.node[k];
        for (unsigned n = 0; n < s.n; n++) {
            if (n != k && !is_up(a, n))
                violated("node %u is not up for node %u", n, k);
        }
        for (unsigned set = 0; set < SETS; set++) {
            if (a->set[set].is_placing)
                violated("node %u still places set %u", k, set);
            if (a->set[set].phase == PREPARED)
                violated("set %u is still prepared at node %u", set, k);
            if (a->set[set].phase == LIVE)
                check_set(a, set);
        }
    }
}

static void schedule(void)
{
    static const enum event_type faults[] = {EV_CRASH, EV_CRASH, EV_RESET, EV_RESET,
                                             EV_RESET, EV_PAUSE, EV_CUT,   EV_CUT};
    for (unsigned set = 0; set < SETS; set++) {
        s.set[set].pushed = chance(35);
        s.set[set].explicit = s.set[set].pushed || chance(60);
        for (unsigned k = 0; k < 12; k++) {
            struct event e = {.node = NONE,
                              .type = k < 6    ? EV_OPEN
                                      : k < 10 ? EV_READ
                                               : EV_RELEASE,
                              .other = (unsigned)below(s.n),
                              .m.set = set};
            later((2 + below(90)) * NS_PER_S + below(1000) * NS_PER_MS, e);
        }
    }
    for (unsigned k = (unsigned)below(14); k > 0; k--) {
        struct event e = {.node = NONE,
                          .type = faults[below(s.calm ? 5 : ARRAY_LEN(faults))],
                          .other = (unsigned)below(s.n)};
        later(below(95000) * NS_PER_MS, e);
    }
}

static void deliver(struct event *e)
{
    if (e->node == NONE && e->type >= EV_OPEN && e->type <= EV_RELEASE) {
        e->node = e->other; /* to the incarnation that is there now */
        e->inc = s.node[e->node].inc;
    }
    if (e->node == NONE) {
        world(e);
        return;
    }
    struct node *a = &s.node[e->node];
    if (!a->alive || a->inc != e->inc)
        return;
    if (a->paused_ns > s.now) {
        e->t = a->paused_ns;
        heap_put(*e);
        return;
    }
    switch (e->type) {
    case EV_MSG:
        arrived(a, e);
        break;
    case EV_BREAK:
        broken(a, e);
        break;
    case EV_DIALED:
        dialed(a, e->other);
        break;
    case EV_RETRY:
        dial(a, e->other);
        break;
    case EV_TICK:
        tick(a);
        check_silence(a);
        break;
    case EV_SENT:
        sent(a, e);
        break;
    case EV_FILL:
        filled(a, e->m.set, e->other);
        break;
    case EV_TAKE:
        take_install(a, e);
        break;
    case EV_PREPARED:
        if (a->set[e->m.set].is_placing)
            placing_answer(a, e->m.set, e->m.ok);
        break;
    default:
        client(a, e);
    }
    check_node(a);
}

void sim_run(uint64_t seed, enum sim_rule off, struct sim_result *ret_result)
{
    struct event *heap = s.heap;
    unsigned cap = s.heap_cap;
    memset(&s, 0, sizeof(s));
    *ret_result = (struct sim_result){0};
    s.heap = heap;
    s.heap_cap = cap;
    s.rng = rng_mix64(seed + 1);
    s.off = off;
    s.res = ret_result;
    s.n = 2 + (unsigned)below(NODES_MAX - 1);
    s.calm = chance(30);
    s.misled = chance(20) ? (unsigned)below(s.n) : NONE;
    for (unsigned n = 0; n < s.n; n++)
        s.node[n].multi = chance(60) || n == s.misled;
    for (unsigned n = 0; n < s.n; n++)
        boot(n);
    schedule();
    while (s.nheap && s.heap[0].t <= END_NS && !ret_result->violation[0]) {
        struct event e = heap_take();
        s.now = e.t;
        ret_result->events++;
        deliver(&e);
    }
    ret_result->ns = s.now;
    if (!ret_result->violation[0])
        check_end();
    for (unsigned n = 0; n < s.n; n++) {
        if (s.node[n].alive)
            halt(&s.node[n]);
    }
    free(s.heap);
    s.heap = NULL;
    s.heap_cap = 0;
}
