/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/fairq.h"

enum { PARTIES = 40, MANY = 64 };

struct work {
    struct fairq_item turn;
    unsigned party;
    struct fairq_source *running;
};
static struct work works[PARTIES][MANY];

static void add(struct fairq *t, unsigned party, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        works[party][i] = (struct work){.party = party};
        assert_int_equal(fairq_push(t, party, &works[party][i].turn), 0);
    }
}

/* Begins what may; how many of each. */
static void begin(struct fairq *t, unsigned ret_n[PARTIES])
{
    struct fairq_source *p;
    struct fairq_item *turn;
    memset(ret_n, 0, PARTIES * sizeof(*ret_n));
    while ((turn = fairq_pop(t, &p))) {
        struct work *w = container_of(turn, struct work, turn);
        w->running = p;
        ret_n[w->party]++;
    }
}

static void end_each(struct fairq *t, unsigned party, uint64_t took_ns)
{
    for (unsigned i = 0; i < MANY; i++)
        if (works[party][i].running)
            fairq_done(t, TAKE_PTR(works[party][i].running), took_ns);
}

static void end_all(struct fairq *t)
{
    for (unsigned p = 0; p < PARTIES; p++)
        end_each(t, p, 0);
}

/* Silent ones hold half of what is left, each; the last one still has one. */
static void test_silent_parties(void **state)
{
    (void)state;
    struct fairq t;
    unsigned n[PARTIES];
    fairq_init(&t, 16, MANY);
    static const unsigned gets[] = {8, 4, 2, 1, 1};
    for (unsigned p = 0; p < 5; p++) {
        assert_true(t.running < t.threads);
        add(&t, p, 40);
        begin(&t, n);
        assert_int_equal(n[p], gets[p]);
    }
    /* What ends makes place for work of its own party and of others, until there is none. */
    unsigned turns = 0;
    for (; t.queued; turns++) {
        assert_true(turns < 200);
        end_all(&t);
        begin(&t, n);
        assert_true(t.running > 0 && t.running <= 16);
    }
    end_all(&t);
    assert_true(list_empty(&t.parties));
}

/* Slow parties are remembered: all of them together leave threads to the others, for ever, and have half of
 * them again once they answer. */
static void test_slow_parties(void **state)
{
    (void)state;
    struct fairq t;
    unsigned n[PARTIES], slow = PARTIES - 2;
    fairq_init(&t, 32, MANY);
    for (unsigned p = 0; p < slow; p++) { /* each falls silent for the first time */
        add(&t, p, 40);
        begin(&t, n);
        assert_int_equal(n[p], 16);
        end_each(&t, p, FAIRQ_SLOW_NS);
        while (fairq_drain(&t))
            ;
    }
    assert_int_equal(t.running, 0);
    for (unsigned p = 0; p < slow; p++)
        add(&t, p, 20);
    begin(&t, n);
    assert_int_equal(t.running, 28);
    for (unsigned p = slow; p < PARTIES; p++) { /* two that come, and ask for much */
        add(&t, p, 20);
        begin(&t, n);
        assert_int_equal(n[p], 1);
    }
    end_each(&t, slow, 0); /* its next one, and no other's */
    begin(&t, n);
    assert_int_equal(n[slow], 1);
    assert_int_equal(t.running, 30);
    end_all(&t); /* all answer again */
    while (fairq_drain(&t))
        ;
    add(&t, 0, 40);
    begin(&t, n);
    assert_int_equal(n[0], 16);
    end_each(&t, 0, FAIRQ_SLOW_NS);
    begin(&t, n); /* slow, and alone: no fewer than before */
    assert_int_equal(n[0], 16);
    end_each(&t, 0, FAIRQ_SLOW_NS);
    while (fairq_drain(&t))
        ;
    assert_int_equal(t.nslow, slow - 28 + 1); /* those whose turn did not come are slow still */
    fairq_fini(&t);
}

static void test_in_order(void **state)
{
    (void)state;
    struct fairq t;
    struct fairq_source *p;
    fairq_init(&t, 1, MANY);
    add(&t, 0, 3);
    add(&t, 1, 3);
    for (unsigned i = 0; i < 6; i++) {
        struct fairq_item *turn = fairq_pop(&t, &p);
        assert_ptr_equal(turn, &works[i % 2][i / 2].turn);
        struct fairq_source *other;
        assert_null(fairq_pop(&t, &other)); /* the only thread */
        fairq_done(&t, p, 0);
    }
    assert_true(list_empty(&t.parties));
}

static void test_bound(void **state)
{
    (void)state;
    struct fairq t;
    struct work more = {.party = 0};
    fairq_init(&t, 2, 3);
    add(&t, 0, 3);
    assert_int_equal(fairq_push(&t, 0, &more.turn), -EAGAIN);
    add(&t, 1, 1); /* another's is another queue */
    for (unsigned i = 0; i < 4; i++)
        assert_non_null(fairq_drain(&t));
    assert_null(fairq_drain(&t));
    assert_true(list_empty(&t.parties) && t.queued == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_parties),
        cmocka_unit_test(test_slow_parties),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
