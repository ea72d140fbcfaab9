/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c: one schedule of a static cluster (sim.h).
 *
 * Time: a heap of events. An event is for one incarnation of one node, or for the world; a paused node gets its events later.
 * Network: a connection is a pair of ends with a queue each way. A cut delays messages, and ends connections after a while. Each
 * end notices the end of a connection by itself.
 * Faults end at FAULTS_NS. At END_NS all has to be settled (check_end); check_node holds at any time.
 */
#include "cluster/sim_internal.h"

#include <stdarg.h>
#include <stdio.h>

bool sim_trace;
const char *const sim_rule_names[SIM_RULES] = {
    "identity",       "restarted",     "lost",      "silence",       "expire",      "may_return",
    "held_by",        "hold_newest",   "hold",      "hold_lost",     "hold_placed", "commit_all",
    "commit_up",      "commit_taken",  "orphan",    "orphan_wait",   "forget",      "forget_late",
    "all_accept",     "hosts_check",   "catch_up",

    "catch_up_again", "ready_current", "ask_taken", "ask_committed", "ask",         "reinstall",
    "install_gone",   "install_known", "dial_next", "dial_patience", "dial_again",  "rail_up",
    "rail_down",      "rail_refused",
};

struct sim_state s;

void sim_violated(const char *format, ...)
{
    if (s.res->violation[0])
        return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(s.res->violation, sizeof(s.res->violation), format, ap);
    va_end(ap);
}

void sim_note(const char *format, ...)
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

void sim_put(struct event e)
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

void sim_later(uint64_t after, struct event e)
{
    e.t = s.now + after;
    e.seq = s.seq++;
    e.inc = e.node == NONE ? 0 : s.node[e.node].inc;
    sim_put(e);
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
    sim_note("node %u: starts, %s", n, multi ? "with two addresses" : "with one address");
    *a = (struct node){.alive = true, .multi = multi, .inc = rng_next(&s.rng) | 1};
    int rc = membership_static_new(addresses, s.n, text[n], a->inc, &a->m, NULL);
    assert(rc == 0);
    a->m->changed = sim_member_changed;
    a->m->user = a;
    for (unsigned k = 0; k < s.n; k++) {
        a->peer[k].conn = NONE;
        a->peer[k].dial = (struct dial){.naddresses = 1u + s.node[k].multi, .stay = true};
        if (k != n)
            sim_dial(a, k);
    }
    LATER(sim_below(2000) * NS_PER_MS, .type = EV_TICK, .node = n);
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
    sim_note("node %u: crashes", n);
    bool silent = sim_chance(25); /* the host, not only the process */
    for (unsigned k = 0; k < s.nconns; k++) {
        struct conn *c = &s.conn[k];
        for (unsigned side = 0; side < 2; side++) {
            if (c->open[side] && c->node[side] == n && c->inc[side] == a->inc) {
                c->open[side] = false;
                sim_notice(k, !side, silent);
            }
        }
    }
    halt(a);
    a->inc = 0;
    LATER(sim_chance(50) ? sim_delay() : sim_below(25) * NS_PER_S, .type = EV_RESTART, .node = NONE,
          .other = n);
}

static void cut_off(unsigned a, unsigned b)
{
    uint64_t until = s.now + (1 + sim_below(sim_chance(50) ? 10 : 45)) * NS_PER_S;
    sim_note("node %u: cut off node %u for %.3f s", b, a, (double)(until - s.now) / 1e9);
    s.cut_ns[a][b] = until;
    if (sim_chance(70))
        s.cut_ns[b][a] = until;
    for (unsigned k = 0; k < s.nconns && until > s.now + DEAD_NS; k++) {
        struct conn *c = &s.conn[k];
        if ((c->node[0] == a && c->node[1] == b) || (c->node[0] == b && c->node[1] == a)) {
            sim_notice(k, 0, true);
            sim_notice(k, 1, true);
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
        a->paused_ns = MAX(a->paused_ns, s.now + (1 + sim_below(40)) * NS_PER_S),
        sim_note("node %u: pauses", n);
    else if (e->type == EV_CUT)
        cut_off(n, (n + 1 + (unsigned)sim_below(s.n - 1)) % s.n);
    else if (e->type == EV_RESET && s.nconns) {
        unsigned id = (unsigned)sim_below(s.nconns);
        sim_notice(id, 0, sim_chance(30));
        sim_notice(id, 1, sim_chance(30));
    }
}

/* --- what has to hold -------------------------------------------------------------------------------------------------------------------- */

static void check_node(struct node *a)
{
    for (unsigned n = 0; n < s.n; n++) {
        const struct node *b = &s.node[n];
        if (n == a->m->self)
            continue;
        if (sim_is_up(a, n) && s.conn[a->peer[n].conn].node[1] != n)
            sim_violated("node %u takes node %u for node %u", a->m->self, s.conn[a->peer[n].conn].node[1], n);
        for (unsigned set = 0; set < SETS; set++) {
            const struct nset *ws = &a->set[set];
            if (ws->phase != LIVE || ws->nodes.at[n].lost || !sim_hosts(set, n))
                continue;
            for (unsigned p = 0; p < PIECES; p++) {
                if (s.set[set].host[p] == n && ws->known[p] && sim_is_up(a, n) && b->alive &&
                    a->m->members[n].incarnation == b->inc && !b->set[set].filled_ever[p])
                    sim_violated("node %u reads set %u at node %u, which was started again", a->m->self, set,
                                 n);
            }
            if (a->down_ns[n] && s.now - MAX(a->down_ns[n], ws->live_ns) > 60 * NS_PER_S &&
                a->paused_ns < s.now)
                sim_violated("node %u waits for set %u at node %u, which is down", a->m->self, set, n);
        }
    }
}

/* After each tick. */
static void check_silence(const struct node *a)
{
    for (unsigned n = 0; n < s.n; n++) {
        uint64_t since = MAX(a->answered_ns[n], a->paused_ns);
        if (sim_is_up(a, n) && s.now > since + LINK_SILENCE_NS + 3 * LINK_TICK_NS)
            sim_violated("node %u has not answered node %u for %llu s and is up", n, a->m->self,
                         (unsigned long long)((s.now - since) / NS_PER_S));
    }
}

static void check_set(const struct node *a, unsigned set)
{
    const struct nset *ws = &a->set[set];
    for (unsigned n = 0; n < s.n; n++) {
        const struct nset *theirs = &s.node[n].set[set];
        if (ws->nodes.at[n].holder && (theirs->phase == ABSENT || n == a->m->self))
            sim_violated("node %u keeps set %u for node %u, which does not have it", a->m->self, set, n);
        if (ws->nodes.at[n].unconfirmed)
            sim_violated("node %u still waits for holder %u of set %u", a->m->self, n, set);
        /* A set that no client of this node uses may go from its hosts. */
        if (n == a->m->self || !sim_hosts(set, n) || !(ws->holding || s.set[set].explicit))
            continue;
        bool there = sim_has_regions(&s.node[n], set);
        if (!there && !s.set[set].pushed)
            sim_violated("node %u has set %u, and its host %u has not", a->m->self, set, n);
        if (!there && !ws->nodes.at[n].lost)
            sim_violated("node %u waits for set %u at node %u, which does not have it", a->m->self, set, n);
        if (there && ws->holding && !theirs->nodes.at[a->m->self].holder)
            sim_violated("node %u does not keep set %u for node %u", n, set, a->m->self);
        if (there && ws->nodes.at[n].lost && !s.set[set].pushed)
            sim_violated("node %u takes set %u for lost at node %u, which has it", a->m->self, set, n);
        for (unsigned p = 0; p < PIECES; p++) {
            if (s.set[set].host[p] == n && there && theirs->filled[p] && !ws->known[p])
                sim_violated("node %u never learned that piece %u of set %u is at node %u", a->m->self, p,
                             set, n);
        }
    }
}

static void check_end(void)
{
    for (unsigned k = 0; k < s.n; k++) {
        const struct node *a = &s.node[k];
        for (unsigned n = 0; n < s.n; n++) {
            if (n != k && !sim_is_up(a, n))
                sim_violated("node %u is not up for node %u", n, k);
        }
        for (unsigned set = 0; set < SETS; set++) {
            if (a->set[set].is_placing)
                sim_violated("node %u still places set %u", k, set);
            if (a->set[set].phase == PREPARED)
                sim_violated("set %u is still prepared at node %u", set, k);
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
        s.set[set].pushed = sim_chance(35);
        s.set[set].explicit = s.set[set].pushed || sim_chance(60);
        for (unsigned k = 0; k < 12; k++) {
            struct event e = {.node = NONE,
                              .type = k < 6    ? EV_OPEN
                                      : k < 10 ? EV_READ
                                               : EV_RELEASE,
                              .other = (unsigned)sim_below(s.n),
                              .m.set = set};
            sim_later((2 + sim_below(90)) * NS_PER_S + sim_below(1000) * NS_PER_MS, e);
        }
    }
    for (unsigned k = 0; k < 60; k++) {
        struct event e = {.node = NONE,
                          .type = EV_RAIL,
                          .other = (unsigned)sim_below(s.n),
                          .conn = (unsigned)sim_below(s.n),
                          .side = (unsigned)sim_below(2),
                          .m.set = (unsigned)sim_below(SETS)};
        sim_later((5 + sim_below(180)) * NS_PER_S + sim_below(NS_PER_S), e);
    }
    for (unsigned k = (unsigned)sim_below(14); k > 0; k--) {
        struct event e = {.node = NONE,
                          .type = faults[sim_below(s.calm ? 5 : ARRAY_LEN(faults))],
                          .other = (unsigned)sim_below(s.n)};
        sim_later(sim_below(95000) * NS_PER_MS, e);
    }
}

static void deliver(struct event *e)
{
    if (e->node == NONE && e->type >= EV_OPEN && e->type <= EV_RAIL) {
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
        sim_put(*e);
        return;
    }
    sim_node_event(a, e);
    if (e->type == EV_TICK)
        check_silence(a);
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
    s.n = 2 + (unsigned)sim_below(NODES_MAX - 1);
    s.calm = sim_chance(30);
    s.misled = sim_chance(20) ? (unsigned)sim_below(s.n) : NONE;
    s.misled_ns = sim_chance(50) ? FAULTS_NS : UINT64_MAX;
    for (unsigned n = 0; n < s.n; n++)
        s.node[n].multi = sim_chance(60) || n == s.misled;
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
