/* SPDX-License-Identifier: Apache-2.0 */
/* sim_node.c: the network of a simulated cluster, and its nodes: they carry out what the step functions say, as pool/nodes does. */
#include "cluster/sim_internal.h"

#include "cluster/placement.h"

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
    uint64_t t = MAX(s.now + sim_delay(), c->last[side] + 1);
    c->last[side] = t;
    sim_put((struct event){.t = t,
                           .seq = s.seq++,
                           .type = EV_MSG,
                           .node = c->node[!side],
                           .inc = c->inc[!side],
                           .conn = id,
                           .side = !side,
                           .m = m});
}

/* End `side` of a connection learns that the other one is gone. */
void sim_notice(unsigned id, unsigned side, bool silent)
{
    struct conn *c = &s.conn[id];
    if (!c->open[side])
        return;
    uint64_t after = silent || cut(c->node[0], c->node[1]) ? DEAD_NS + sim_below(3) * NS_PER_S : sim_delay();
    uint64_t t = s.now + after;
    if (sim_chance(70)) /* what was sent comes first; else the connection is reset */
        t = MAX(t, c->last[!side] + 1);
    sim_put((struct event){.t = t,
                           .seq = s.seq++,
                           .type = EV_BREAK,
                           .node = c->node[side],
                           .inc = c->inc[side],
                           .conn = id,
                           .side = side});
}

bool sim_is_up(const struct node *a, unsigned n)
{
    return a->link[n].state == LINK_UP && a->peer[n].conn != NONE;
}

static void event_to(struct node *a, unsigned n, struct msg m)
{
    if (sim_is_up(a, n))
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

void sim_dial(struct node *a, unsigned n)
{
    dial_begin(&a->peer[n].dial);
    dial_found(&a->peer[n].dial, 1, 0);
    LATER(sim_delay(), .type = EV_DIALED, .node = a->m->self, .other = n);
}

/* --- sets -------------------------------------------------------------------------------------------------------------------- */

bool sim_hosts(unsigned set, unsigned n)
{
    for (unsigned p = 0; p < PIECES; p++) {
        if (s.set[set].host[p] == n)
            return true;
    }
    return false;
}

bool sim_has_regions(const struct node *a, unsigned set)
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
    e.host = sim_hosts(set, n);
    e.up = sim_is_up(a, n);
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
    if (sim_is_up(a, n) && call(a, n, m))
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
        sim_violated("node %u released set %u although node %u holds it on an open connection", a->m->self,
                     set, n);
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
            LATER((50 + sim_below(3000)) * NS_PER_MS, .type = EV_FILL, .node = a->m->self, .m.set = set,
                  .other = p);
    }
}

static void take(struct node *a, unsigned set, enum phase phase)
{
    struct nset *ws = &a->set[set];
    assert(ws->phase == ABSENT);
    sim_note("node %u: set %u is %s", a->m->self, set, phase == LIVE ? "live" : "prepared");
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
    sim_note("node %u: set %u is dropped", a->m->self, set);
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
    sim_note("node %u: set %u is committed", a->m->self, set);
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
    LATER(sim_below(10) * NS_PER_MS, .type = EV_CRASH, .node = NONE, .other = a->m->self);
    LATER((100 + sim_below(1000)) * NS_PER_MS, .type = EV_READ, .node = NONE, .other = a->m->self,
          .m.set = set);
}

static void lease(struct node *a, unsigned set)
{
    struct nset *ws = &a->set[set];
    ws->lease = true;
    if (ws->holding)
        return;
    ws->holding = true;
    for (unsigned n = 0; n < s.n; n++) {
        if (n != a->m->self && sim_hosts(set, n))
            resync(a, set, n, true);
    }
    if (sim_chance(8))
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
            LATER(sim_delay(), .type = EV_SENT, .node = a->m->self, .conn = a->peer[n].conn, .other = n,
                  .m.set = set);
        }
    }
    if (action == CATCHUP_DONE)
        ws->catching[n] = false;
}

static void catch_up(struct node *a, unsigned set, unsigned n)
{
    struct nset *ws = &a->set[set];
    if (!sim_is_up(a, n))
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

/* Where it hurts: a process dies with records on their way, and they arrive as the set does, when the next
 * process is known. */
static void steer_late(struct node *a, unsigned set, unsigned n)
{
    uint64_t stall = (700 + sim_below(1200)) * NS_PER_MS;
    struct conn *c = &s.conn[a->peer[n].conn];
    c->last[0] = MAX(c->last[0], s.now + stall);
    LATER((1 + sim_below(5)) * NS_PER_MS, .type = EV_CRASH, .node = NONE, .other = a->m->self);
    LATER(stall - (5 + sim_below(60)) * NS_PER_MS, .type = EV_READ, .node = NONE, .other = n, .m.set = set);
}

static void filled(struct node *a, unsigned set, unsigned piece)
{
    struct nset *ws = &a->set[set];
    if (ws->phase != LIVE || ws->filled[piece])
        return;
    for (unsigned n = 0; n < s.n; n++) {
        const struct nset *other = &s.node[n].set[set];
        if (s.node[n].alive && sim_hosts(set, n) && !s.set[set].committed && other->phase == ABSENT)
            sim_violated("node %u fills set %u before node %u has it", a->m->self, set, n);
    }
    ws->filled[piece] = ws->filled_ever[piece] = ws->known[piece] = true;
    for (unsigned n = 0; n < s.n; n++) {
        if (!sim_is_up(a, n))
            continue;
        if (s.now < FAULTS_NS && s.n > 2 && s.node[n].alive && s.node[n].set[set].phase == ABSENT &&
            sim_chance(3))
            steer_late(a, set, n);
        if (catchup_instead(sim_chance(30) ? 8 : 1, 1, 4))
            catch_up(a, set, n);
        else
            ready(a, set, n, 1u << piece);
    }
}

/* --- links ----------------------------------------------------------------------------------------------------------------------- */

static void link_event(struct node *a, unsigned n, enum link_event event);

void sim_member_changed(void *user, uint32_t n, enum member_change change)
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
        sim_note("node %u: node %u is %s", a->m->self, n, names[change]);
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

static void node_down(struct node *a, unsigned n)
{
    dial_down(&a->peer[n].dial);
    if (on(SIM_DIAL_AGAIN))
        LATER(DIAL_PAUSE_NS, .type = EV_RETRY, .node = a->m->self, .other = n);
    link_event(a, n, LINK_ON_DISCONNECTED);
}

static void dial_next(struct node *a, unsigned n, bool accepted)
{
    struct dial *d = &a->peer[n].dial;
    if (dial_failed(d, accepted) == DIAL_DOWN) {
        node_down(a, n);
        return;
    }
    d->at = on(SIM_DIAL_NEXT) ? d->at : 0;
    sim_dial(a, n);
}

/* The dialing end of a connection is closed: the next address is tried, or the node is down. */
static void peer_lost(struct node *a, unsigned n, bool fail)
{
    unsigned id = a->peer[n].conn;
    if (id == NONE)
        return;
    struct conn *c = &s.conn[id];
    const bool accepted = a->link[n].state == LINK_UP;
    c->open[0] = false;
    a->peer[n].conn = NONE;
    sim_notice(id, 1, false);
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
    if (fail)
        node_down(a, n);
    else
        dial_next(a, n, accepted);
}

static void link_event(struct node *a, unsigned n, enum link_event event)
{
    unsigned actions = link_step(&a->link[n], event, s.now);
    if (actions & LINK_REJECT)
        peer_lost(a, n, false);
    if ((actions & LINK_ASK) && !call(a, n, (struct msg){.type = NODE}))
        link_event(a, n, LINK_ON_UNANSWERED);
    if (actions & LINK_BECAME_UP) {
        dial_accepted(&a->peer[n].dial);
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

/* Where address `at` of node n leads. */
static unsigned leads_to(unsigned n, unsigned at)
{
    return n == s.misled && at == 0 && s.now < s.misled_ns ? (n + s.n - 1) % s.n : n;
}

static bool is_silent(const struct node *a, unsigned to)
{
    return s.node[to].paused_ns > s.now || cut(a->m->self, to);
}

/* A client of node a is connected to node n, for a set, by the rail of one address or by any. */
static void rail_dialed(struct node *a, unsigned n, unsigned rail, unsigned set)
{
    enum cluster_rail_state *state = &a->rail[n][rail], before = *state;
    const struct node *b = &s.node[n];
    if (n == a->m->self || rail > b->multi || a->set[set].phase != LIVE || !sim_hosts(set, n))
        return;
    bool answers = leads_to(n, rail) == n && b->alive && !is_silent(a, n), by_rail = sim_chance(80);
    enum rail_event event = !answers                      ? RAIL_ON_DOWN
                            : b->set[set].phase == ABSENT ? RAIL_ON_STALE
                            : sim_chance(15)              ? RAIL_ON_REFUSED
                                                          : RAIL_ON_UP;
    enum rail_event seen = event;
    if (event >= RAIL_ON_REFUSED && !on(SIM_RAIL_REFUSED))
        seen = RAIL_ON_DOWN;
    if ((event == RAIL_ON_UP && !on(SIM_RAIL_UP)) || (event == RAIL_ON_DOWN && !on(SIM_RAIL_DOWN)))
        seen = RAIL_ON_REFUSED;
    if (rail_step(state, seen, by_rail) & RAIL_ASK)
        resync(a, set, n, true);
    if (answers && *state == CLUSTER_RAIL_DOWN && (event == RAIL_ON_UP || before != CLUSTER_RAIL_DOWN))
        sim_violated("node %u takes rail %u of node %u for down, which answered by it", a->m->self, rail, n);
    if (!answers && by_rail && *state != CLUSTER_RAIL_DOWN)
        sim_violated("node %u does not take rail %u of node %u for down", a->m->self, rail, n);
}

static void dialed(struct node *a, unsigned n)
{
    unsigned to = leads_to(n, a->peer[n].dial.at);
    struct node *b = &s.node[to];
    if (a->peer[n].conn != NONE)
        return;
    if (to == a->m->self || !b->alive || s.nconns == CONNS_MAX) {
        dial_next(a, n, false);
        return;
    }
    if (is_silent(a, to)) {
        if (on(SIM_DIAL_PATIENCE))
            LATER(dial_patience_ns(&a->peer[n].dial), .type = EV_SILENT, .node = a->m->self, .other = n);
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
    sim_note("node %u: connection %u of node %u ended", b->m->self, id, n);
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
            sim_violated("node %u released set %u at once when a connection of node %u ended", b->m->self,
                         set, n);
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
        sim_notice(e->conn, 0, false);
    } else {
        peer_lost(a, c->meant, false);
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
                    sim_violated("node %u drops set %u as an orphan, and node %u has it committed",
                                 a->m->self, set, n);
                if (s.node[n].alive && s.node[n].set[set].is_placing && sim_is_up(&s.node[n], a->m->self) &&
                    s.node[n].up_ns[a->m->self] + 5 * NS_PER_S < s.now)
                    sim_violated("node %u drops set %u as an orphan while node %u places it", a->m->self, set,
                                 n);
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
        if (sim_is_up(a, n) && call(a, n, (struct msg){.type = NODE, .offer = true, .set = set}))
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
            offer[n] = (struct placement_node){1 + sim_below(3), PIECES};
    }
    int rc = placement_map(offer, s.n, PIECES, s.set[set].host);
    assert(rc == 0);
    take(a, set, PREPARED);
    ws->nodes.placer = NONE;
    LATER(sim_delay(), .type = EV_PREPARED, .node = a->m->self, .m.set = set, .m.ok = true);
}

static bool hosts_are_there(struct node *a, unsigned set)
{
    const struct nset *ws = &a->set[set];
    for (unsigned n = 0; n < s.n; n++) {
        if (n != a->m->self && sim_hosts(set, n) && (!sim_is_up(a, n) || ws->nodes.at[n].lost))
            return false;
    }
    return true;
}

/* Where it hurts: the coordinator dies with one COMMIT on its way, and that node does not reach the others. */
static void steer_commit(struct node *a, unsigned set)
{
    unsigned b = (a->m->self + 1) % s.n, c = (a->m->self + 2) % s.n;
    LATER(sim_below(20) * NS_PER_MS, .type = EV_CRASH, .node = NONE, .other = a->m->self);
    LATER((500 + sim_below(3000)) * NS_PER_MS, .type = EV_READ, .node = NONE, .other = a->m->self,
          .m.set = set);
    if (!s.calm && sim_chance(30)) /* it comes when others do not wait any more */
        s.cut_ns[a->m->self][b] = s.now + (11 + sim_below(4)) * NS_PER_S;
    if (sim_chance(50))
        return;
    if ((s.calm || sim_chance(50)) && s.node[b].alive && s.node[b].peer[c].conn != NONE)
        sim_notice(s.node[b].peer[c].conn, 0, false);
    if (!s.calm)
        s.cut_ns[b][c] = s.cut_ns[c][b] = s.now + (1 + sim_below(12)) * NS_PER_S;
    if (sim_chance(40)) /* nor later */
        LATER((2000 + sim_below(6000)) * NS_PER_MS, .type = EV_CRASH, .node = NONE, .other = b);
}

static void placing_end(struct node *a, unsigned set, bool ok)
{
    struct nset *ws = &a->set[set];
    ws->is_placing = false;
    bool there = ws->phase == PREPARED && hosts_are_there(a, set);
    if (ok && (there || (ws->phase == PREPARED && !on(SIM_HOSTS_CHECK)))) {
        if (!there)
            sim_violated("node %u commits set %u although it has lost a host", a->m->self, set);
        for (unsigned n = 0; n < s.n; n++) {
            const struct node *b = &s.node[n];
            if (sim_hosts(set, n) && b->alive && b->inc == a->m->members[n].incarnation && !b->set[set].taken)
                sim_violated("node %u commits set %u, and its host %u does not have it", a->m->self, set, n);
        }
        s.set[set].committed = true;
        s.res->committed++;
        bool steer = s.now < FAULTS_NS && sim_chance(40);
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
            if (n == a->m->self || !sim_hosts(set, n))
                continue;
            if (sim_is_up(a, n) && call(a, n, (struct msg){.type = INSTALL, .set = set, .flag = true}))
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
    struct nset *ws = &b->set[m.set];
    const struct install i = {.gone = !s.conn[e->conn].open[1] && on(SIM_INSTALL_GONE),
                              .known = ws->phase != ABSENT && on(SIM_INSTALL_KNOWN),
                              .over_limit = m.flag && sim_chance(10),
                              .prepare = m.flag};
    enum install_action action = install_step(&i, s.now);
    m.ok = action == INSTALL_DO_PREPARE || action == INSTALL_DO_HOST;
    if (m.ok && ws->phase != ABSENT) {
        set_nodes_fini(&ws->nodes);
        ws->phase = ABSENT;
    }
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
    unsigned n = (unsigned)sim_below(s.n);
    if (!a->alive)
        return;
    if (!m.flag)
        LATER(3 * NS_PER_S, .type = EV_RELEASE, .node = NONE, .other = a->m->self, .m.set = m.set);
    else if (a->peer[n].conn != NONE)
        sim_notice(a->peer[n].conn, sim_chance(50), false);
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
        bool slow = sim_chance(8);
        LATER(slow ? sim_below(20) * NS_PER_S : 2 * sim_delay(), .type = EV_TAKE, .node = b->m->self,
              .conn = id, .m = m);
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
        m.ok = sim_has_regions(b, m.set) && c->known;
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
        if (on(SIM_READY_CURRENT) && !membership_is_current(b->m, from, c->inc[0]))
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
        if (sim_hosts(set, a->m->self) && s.set[set].pushed) {
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
        sim_notice(e->conn, !e->side, false);
        return;
    }
    uint64_t until = s.cut_ns[c->node[!e->side]][c->node[e->side]];
    if (until > s.now) {
        e->t = until;
        c->last[!e->side] = MAX(c->last[!e->side], until);
        sim_put(*e);
        return;
    }
    static const char *const names[] = {"NODE", "INSTALL", "COMMIT", "RESYNC", "DESCRIBE", "READY", "FORGET"};
    if (e->m.type != NODE || e->m.offer)
        sim_note("node %u <- node %u: %s%s set %u flag %d ok %d complete %d pieces %x (%u)", c->node[e->side],
                 c->node[!e->side], names[e->m.type], e->side ? "" : " answer", e->m.set, e->m.flag, e->m.ok,
                 e->m.complete, e->m.pieces, e->conn);
    if (e->side == 1) {
        request(a, e->conn, e->m);
    } else if (c->used[e->m.call]) {
        c->used[e->m.call] = false;
        reply(a, c->meant, e->m);
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
            if (sim_is_up(a, (a->m->self + k) % s.n))
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

void sim_node_event(struct node *a, struct event *e)
{
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
    case EV_SILENT:
        if (a->peer[e->other].conn == NONE)
            dial_next(a, e->other, false);
        break;
    case EV_RAIL:
        rail_dialed(a, e->conn, e->side, e->m.set);
        break;
    case EV_RETRY:
        sim_dial(a, e->other);
        break;
    case EV_TICK:
        tick(a);
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
}
