/* SPDX-License-Identifier: Apache-2.0 */
/* Membership and the step functions, one transition at a time; test_sim.c runs them together. */
#include <setjmp.h>
#include <stdarg.h>

#include "cluster/catchup.h"
#include "cluster/installs.h"
#include "cluster/links.h"
#include "cluster/membership.h"
#include "cluster/placing.h"
#include "cluster/rails.h"
#include "cluster/set_nodes.h"
#include "failalloc.h"
#include "rpc/dial.h"

#include <cmocka.h>
#include <stdio.h>
#include <xxhash.h>

static char *addresses[] = {(char *)"a:1", (char *)"b:1,b:2", (char *)"c:1"};

static unsigned changes[3][3];

static void changed(void *user, uint32_t at, enum member_change change)
{
    changes[at][change]++;
}

static int make_members(void *ctx)
{
    struct membership *m;
    int rc = membership_static_new(addresses, 3, "b:1,b:2", 77, &m, NULL);
    if (rc == 0)
        membership_free(m);
    return rc;
}

static void test_members(void **state)
{
    struct membership *m;
    struct leat_error err;
    assert_int_equal(membership_static_new(addresses, 3, "b:1", 77, &m, &err), LEAT_INVALID);
    assert_non_null(strstr(err.message, "nodes does not contain listen = b:1"));
    assert_int_equal(failalloc_run(make_members, NULL), 5);
    assert_int_equal(membership_static_new(addresses, 3, "b:1,b:2", 77, &m, &err), 0);
    assert_int_equal(m->self, 1);
    assert_int_equal(m->members[1].incarnation, 77);
    assert_int_equal(membership_find(m, "c:1"), 2);
    assert_int_equal(membership_find(m, "b:2"), MEMBER_NONE);
    m->changed = changed;
    memset(changes, 0, sizeof(changes));
    membership_up(m, 0);
    membership_incarnation(m, 0, 0);
    membership_incarnation(m, 0, 5); /* the first that is known */
    membership_up(m, 0);             /* by another address, without having gone down */
    membership_incarnation(m, 0, 5);
    membership_incarnation(m, 0, 4);
    assert_true(membership_is_current(m, 0, 4));
    assert_true(membership_is_current(m, 0, 0));  /* it does not say */
    assert_false(membership_is_current(m, 0, 5)); /* before this one */
    assert_false(membership_is_current(m, 0, 6)); /* or after it */
    assert_false(membership_is_current(m, 2, 6)); /* nothing is known */
    assert_false(membership_is_current(m, MEMBER_NONE, 6));
    membership_down(m, 0);
    membership_down(m, 0); /* another attempt */
    assert_int_equal(changes[0][MEMBER_UP], 2);
    assert_int_equal(changes[0][MEMBER_RESTARTED], 1);
    assert_int_equal(changes[0][MEMBER_DOWN], 2);
    membership_free(m);
}

static bool may(const void *user, uint32_t at)
{
    return !((const bool *)user)[at];
}

/* By id, and the same node as ever: ids begin with 1, as the seeds by position did. */
static void test_coordinator(void **state)
{
    struct membership *m;
    assert_int_equal(membership_static_new(addresses, 3, "a:1", 1, &m, NULL), 0);
    unsigned chosen[3] = {0};
    for (unsigned k = 0; k < 300; k++) {
        char key[16];
        snprintf(key, sizeof(key), "source-%u", k);
        uint64_t score[3];
        unsigned best = 0;
        for (unsigned n = 0; n < 3; n++) {
            score[n] = XXH3_64bits_withSeed(key, strlen(key), n + 1);
            best = score[n] > score[best] ? n : best;
        }
        assert_int_equal(membership_coordinator(m, key, may, (bool[3]){0}), best);
        chosen[best]++;
        bool out[3] = {[0] = best == 0, [1] = best == 1, [2] = best == 2};
        unsigned second = membership_coordinator(m, key, may, out);
        assert_true(second != best && second < 3);
        assert_true(score[second] >= score[3 - best - second]);
    }
    assert_true(chosen[0] > 50 && chosen[1] > 50 && chosen[2] > 50);
    assert_int_equal(membership_coordinator(m, "x", may, (bool[3]){true, true, true}), MEMBER_NONE);
    membership_free(m);
}

static void test_link(void **state)
{
    struct cluster_link l = {0};
    uint64_t t = NS_PER_S;
    assert_int_equal(link_step(&l, LINK_ON_TICK, t), 0);
    assert_int_equal(link_step(&l, LINK_ON_CONNECTED, t), LINK_ASK);
    assert_int_equal(link_step(&l, LINK_ON_OTHER, t), LINK_REJECT);
    assert_int_equal(link_step(&l, LINK_ON_CONNECTED, t), LINK_ASK);
    assert_int_equal(link_step(&l, LINK_ON_TICK, t + LINK_SILENCE_NS), 0);
    assert_int_equal(link_step(&l, LINK_ON_TICK, t + LINK_SILENCE_NS + 1), LINK_DISCONNECT);
    assert_int_equal(link_step(&l, LINK_ON_UNANSWERED, t), 0);
    assert_int_equal(link_step(&l, LINK_ON_DISCONNECTED, t), LINK_WENT_DOWN);
    assert_int_equal(link_step(&l, LINK_ON_IDENTIFIED, t), 0); /* late */
    assert_int_equal(link_step(&l, LINK_ON_CONNECTED, t), LINK_ASK);
    assert_int_equal(link_step(&l, LINK_ON_IDENTIFIED, t), LINK_BECAME_UP);
    assert_int_equal(link_step(&l, LINK_ON_TICK, t), LINK_ASK);
    assert_int_equal(link_step(&l, LINK_ON_TICK, t), 0); /* it is asked */
    assert_int_equal(link_step(&l, LINK_ON_IDENTIFIED, t), 0);
    /* By another address without having gone down: it identifies itself again. */
    assert_int_equal(link_step(&l, LINK_ON_CONNECTED, t), LINK_ASK);
    assert_int_equal(link_step(&l, LINK_ON_IDENTIFIED, t), LINK_BECAME_UP);
    /* Inbound connections: the first loss counts. */
    assert_int_equal(link_step(&l, LINK_ON_INBOUND_LOST, t), 0);
    assert_int_equal(link_step(&l, LINK_ON_INBOUND_LOST, t + NS_PER_S), 0);
    assert_int_equal(link_step(&l, LINK_ON_TICK, t + LINK_UNCONFIRMED_NS - 1), LINK_ASK);
    assert_int_equal(link_step(&l, LINK_ON_IDENTIFIED, t), 0);
    assert_int_equal(link_step(&l, LINK_ON_TICK, t + LINK_UNCONFIRMED_NS), LINK_ASK | LINK_EXPIRE);
    assert_int_equal(link_step(&l, LINK_ON_RESTARTED, t), LINK_EXPIRE);
}

static unsigned step(struct set_nodes *s, uint32_t at, uint64_t now_ns, struct set_event e)
{
    return set_nodes_step(s, at, &e, now_ns);
}
#define STEP(at, now_ns, ...) step(&s, at, now_ns, (struct set_event){__VA_ARGS__})

static int make_set(void *ctx)
{
    struct set_nodes s;
    int rc = set_nodes_init(&s, 3);
    set_nodes_fini(&s);
    return rc;
}

static void test_hosts(void **state)
{
    struct set_nodes s = {0};
    assert_int_equal(STEP(0, 1, SET_ON_LOST, .host = true), 0); /* on one node alone */
    assert_int_equal(failalloc_run(make_set, NULL), 1);
    assert_int_equal(set_nodes_init(&s, 200), 0); /* more than a word has bits */
    assert_int_equal(STEP(200, 1, SET_ON_LOST, .host = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_UP), SET_CATCH_UP);
    assert_int_equal(STEP(150, 1, SET_ON_UP, .host = true), SET_COMMIT | SET_CATCH_UP | SET_ASK_ALL);
    assert_int_equal(STEP(150, 1, SET_ON_UP, .host = true, .prepared = true), SET_CATCH_UP | SET_ASK_ALL);
    assert_int_equal(STEP(150, 1, SET_ON_TAKEN, .up = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_TAKEN, .host = true, .up = true), SET_COMMIT | SET_ASK_ALL);
    assert_int_equal(STEP(150, 1, SET_ON_COMMITTED, .host = true, .up = true), SET_ASK_ALL);
    assert_int_equal(STEP(150, 1, SET_ON_TAKEN, .host = true), SET_LOSE);
    set_nodes_regain(&s, 150);
    assert_int_equal(STEP(150, 1, SET_ON_LOST), 0);
    assert_int_equal(STEP(150, 1, SET_ON_LOST, .host = true), SET_LOSE);
    assert_int_equal(STEP(150, 1, SET_ON_LOST, .host = true), 0);
    assert_int_equal(s.nlost, 1);
    assert_int_equal(STEP(150, 1, SET_ON_TICK), 0);
    assert_int_equal(STEP(150, 1, SET_ON_TICK, .up = true, .prepared = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_TICK, .up = true), SET_ASK);
    s.at[150].asked = true;
    assert_int_equal(STEP(150, 1, SET_ON_TICK, .up = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_SILENT), 0);
    assert_int_equal(STEP(150, 1, SET_ON_FILLING), 0);
    assert_true(s.at[150].lost && !s.at[150].asked);
    assert_int_equal(STEP(150, 1, SET_ON_COMPLETE), SET_REGAIN);
    assert_int_equal(STEP(150, 1, SET_ON_COMPLETE), 0);
    assert_int_equal(s.nlost, 0);
    assert_int_equal(STEP(150, 1, SET_ON_LACKING, .refill = true, .up = true), SET_LOSE | SET_REINSTALL);
    assert_int_equal(STEP(150, 1, SET_ON_LACKING, .refill = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_LACKING, .up = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_LACKING, .refill = true, .up = true, .prepared = true), 0);
    assert_int_equal(STEP(150, 1, SET_ON_REFUSED, .refill = true, .up = true), 0);
    set_nodes_fini(&s);
}

static void test_holders(void **state)
{
    struct set_nodes s;
    assert_int_equal(set_nodes_init(&s, 3), 0);
    STEP(1, 1, SET_ON_HOLD, .conn = 10);
    STEP(1, 1, SET_ON_HOLD, .conn = 11);
    STEP(2, 1, SET_ON_HOLD, .conn = 12);
    STEP(1, 1, SET_ON_HOLD, .conn = 9); /* late */
    assert_int_equal(s.at[1].held_by, 11);
    assert_int_equal(s.nholders, 2);
    /* The end of an older connection. */
    assert_int_equal(STEP(1, 1, SET_ON_INBOUND_LOST, .conn = 10), 0);
    assert_true(s.at[1].holder);
    assert_int_equal(STEP(1, 1, SET_ON_INBOUND_LOST, .conn = 11, .may_return = true), 0);
    assert_true(s.at[1].holder && s.at[1].unconfirmed);
    STEP(1, 1, SET_ON_HOLD, .conn = 13);
    assert_int_equal(STEP(1, 1, SET_ON_EXPIRE), 0);
    assert_true(s.at[1].holder);
    STEP(1, 1, SET_ON_INBOUND_LOST, .conn = 13, .may_return = true);
    assert_int_equal(STEP(1, 1, SET_ON_EXPIRE), 0); /* there is another holder */
    assert_false(s.at[1].holder);
    assert_int_equal(STEP(2, 1, SET_ON_INBOUND_LOST, .conn = 12, .in_use = true), 0);
    STEP(2, 1, SET_ON_HOLD, .conn = 14);
    assert_int_equal(STEP(2, 1, SET_ON_INBOUND_LOST, .conn = 14), SET_DROP);
    STEP(2, 1, SET_ON_HOLD, .conn = 15);
    assert_int_equal(STEP(2, 1, SET_ON_FORGET), SET_DROP);
    assert_int_equal(s.nholders, 0);
    /* Prepared: it waits for a COMMIT of others. */
    s.placer = 2;
    STEP(2, 1, SET_ON_HOLD, .conn = 16);
    assert_int_equal(STEP(1, 1, SET_ON_FORGET, .prepared = true), 0);
    assert_int_equal(s.orphaned_ns, 0);
    assert_int_equal(STEP(2, NS_PER_S, SET_ON_INBOUND_LOST, .conn = 16, .prepared = true), 0);
    assert_false(set_nodes_orphaned(&s, NS_PER_S + SET_ORPHAN_NS - 1));
    assert_true(set_nodes_orphaned(&s, NS_PER_S + SET_ORPHAN_NS));
    STEP(2, 1, SET_ON_HOLD, .conn = 17); /* the same, by another connection */
    assert_false(set_nodes_orphaned(&s, NS_PER_S + SET_ORPHAN_NS));
    set_nodes_fini(&s);
}

static void test_catchup(void **state)
{
    struct catchup c = {0};
    assert_int_equal(catchup_next(&c, true), CATCHUP_DONE);
    assert_int_equal(catchup_next(&c, false), CATCHUP_MAKE);
    catchup_request(&c); /* it has not begun: that is covered */
    c.at = 1;
    assert_int_equal(catchup_made(&c, true), CATCHUP_SEND);
    assert_int_equal(catchup_next(&c, false), CATCHUP_WAIT);
    catchup_request(&c);
    assert_true(catchup_sent(&c, true));
    assert_int_equal(catchup_next(&c, false), CATCHUP_MAKE);
    assert_int_equal(catchup_made(&c, false), CATCHUP_MAKE);
    assert_int_equal(c.at, 0);
    assert_int_equal(catchup_made(&c, false), CATCHUP_DONE);
    c.sending = true;
    assert_false(catchup_sent(&c, false));
    assert_true(catchup_instead(6, 5, 10));
    assert_false(catchup_instead(5, 5, 10));
}

static void test_placing(void **state)
{
    struct placing_state p = placing_begin();
    placing_sent(&p);
    assert_int_equal(placing_answered(&p, true), PLACING_WAIT);
    assert_int_equal(placing_answered(&p, true), PLACING_PREPARE);
    assert_int_equal(placing_answered(&p, true), PLACING_INSTALL);
    placing_sent(&p);
    assert_int_equal(placing_answered(&p, true), PLACING_WAIT);
    assert_int_equal(placing_answered(&p, true), PLACING_COMMIT);
    p = placing_begin();
    assert_int_equal(placing_answered(&p, true), PLACING_PREPARE);
    assert_int_equal(placing_answered(&p, false), PLACING_FORGET);
    p = placing_begin();
    assert_int_equal(placing_answered(&p, true), PLACING_PREPARE);
    assert_int_equal(placing_answered(&p, true), PLACING_INSTALL);
    placing_sent(&p);
    assert_int_equal(placing_answered(&p, false), PLACING_WAIT);
    assert_int_equal(placing_answered(&p, true), PLACING_FORGET);
    assert_int_equal(p.phase, PLACING_ENDED);
}

static void test_dial(void **state)
{
    struct dial d = {.naddresses = 2, .stay = true};
    dial_begin(&d);
    assert_int_equal(dial_patience_ns(&d),
                     DIAL_NEXT_NS); /* its name is looked up, and there is another address */
    dial_found(&d, 3, 2);
    assert_int_equal(dial_failed(&d, false), DIAL_FOUND);
    assert_int_equal(d.found_at, 0);
    assert_int_equal(dial_failed(&d, false), DIAL_FOUND);
    assert_int_equal(d.found_at, 1);
    assert_int_equal(dial_failed(&d, false), DIAL_ADDRESS);
    assert_int_equal(d.at, 1);
    dial_begin(&d);
    dial_found(&d, 1, 0);
    assert_int_equal(dial_patience_ns(&d), DIAL_HANDSHAKE_NS);
    assert_int_equal(dial_failed(&d, false), DIAL_DOWN);
    dial_down(&d);
    assert_int_equal(d.at, 0); /* the nearest first */
    /* One that was accepted is no failure of those before it. */
    dial_begin(&d);
    dial_found(&d, 1, 0);
    assert_int_equal(dial_failed(&d, false), DIAL_ADDRESS);
    dial_begin(&d);
    dial_found(&d, 1, 0);
    dial_accepted(&d);
    assert_int_equal(dial_failed(&d, true), DIAL_ADDRESS);
    assert_int_equal(d.at, 0);
    /* A connection that is not made again. */
    struct dial once = {.naddresses = 2};
    dial_begin(&once);
    dial_found(&once, 1, 0);
    dial_accepted(&once);
    assert_int_equal(dial_failed(&once, true), DIAL_DOWN);
}

static void test_rails(void **state)
{
    enum cluster_rail_state r = CLUSTER_RAIL_UNTRIED;
    assert_int_equal(rail_step(&r, RAIL_ON_DOWN, false), 0); /* which of them, is not known */
    assert_int_equal(rail_step(&r, RAIL_ON_REFUSED, true), 0);
    assert_int_equal(rail_step(&r, RAIL_ON_STALE, true), RAIL_ASK);
    assert_int_equal(r, CLUSTER_RAIL_UNTRIED);
    assert_int_equal(rail_step(&r, RAIL_ON_UP, false), 0); /* as it should be */
    assert_int_equal(r, CLUSTER_RAIL_UP);
    assert_int_equal(rail_step(&r, RAIL_ON_DOWN, true), RAIL_LOG_DOWN);
    assert_int_equal(rail_step(&r, RAIL_ON_DOWN, true), 0); /* once */
    assert_int_equal(rail_step(&r, RAIL_ON_STALE, true), RAIL_ASK);
    assert_int_equal(r, CLUSTER_RAIL_DOWN);
    assert_int_equal(rail_step(&r, RAIL_ON_UP, true), RAIL_LOG_UP);
    assert_int_equal(rail_step(&r, RAIL_ON_UP, true), 0);
}

static void test_installs(void **state)
{
    struct install i = {.since_ns = NS_PER_S};
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_DO_HOST);
    i.prepare = true;
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_DO_PREPARE);
    i.before = INSTALL_COMPLETE;
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_DO_PREPARE);
    i.before = INSTALL_INCOMPLETE;
    i.named = true;
    assert_int_equal(install_step(&i, NS_PER_S + INSTALL_COMPLETE_NS), INSTALL_WAIT);
    assert_int_equal(install_step(&i, NS_PER_S + INSTALL_COMPLETE_NS + 1), INSTALL_REFUSE_BEFORE);
    for (enum install_before b = INSTALL_MISSING; b <= INSTALL_LOST; b++) {
        i.before = b;
        assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_REFUSE_BEFORE);
    }
    i.before = INSTALL_COMPLETE;
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_REFUSE_NAMED);
    i.over_limit = true;
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_REFUSE_LIMIT);
    i.known = true;
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_REFUSE_KNOWN);
    i.gone = true;
    assert_int_equal(install_step(&i, 2 * NS_PER_S), INSTALL_REFUSE_GONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),  cmocka_unit_test(test_coordinator), cmocka_unit_test(test_link),
        cmocka_unit_test(test_hosts),    cmocka_unit_test(test_holders),     cmocka_unit_test(test_catchup),
        cmocka_unit_test(test_placing),  cmocka_unit_test(test_dial),        cmocka_unit_test(test_rails),
        cmocka_unit_test(test_installs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
