/* SPDX-License-Identifier: Apache-2.0 */
/* How much may be in flight, asked by several threads at the same moment: beside test_credit.c, which starts none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/clock.h"
#include "net/flow/credit.h"

struct racer {
    struct credit_table *t;
    unsigned slot;
    _Atomic uint64_t *in_flight, *worst;
    uint64_t taken;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    struct credit c;
    credit_slot_begin(r->t, r->slot);
    assert_int_equal(credit_init(&c, r->t, r->slot, 0, 0, false), 0);
    for (unsigned i = 0; i < 20000; i++) {
        bool sole_op;
        uint64_t bytes = 4 * KIB;
        if (!credit_take(&c, bytes, clock_now_ns(), &sole_op)) {
            credit_wait(&c, 1);
            continue;
        }
        uint64_t now = atomic_fetch_add(r->in_flight, bytes) + bytes, worst = atomic_load(r->worst);
        while (now > worst && !atomic_compare_exchange_weak(r->worst, &worst, now))
            ;
        r->taken++;
        atomic_fetch_sub(r->in_flight, bytes);
        credit_done(&c, bytes, 0, false, clock_now_ns());
    }
    credit_fini(&c);
    return NULL;
}

/* However they interleave, what is granted never exceeds the limit. */
static void test_race(void **state)
{
    struct credit_table *t;
    int fd;
    assert_int_equal(credit_table_new(&fd, &t), 0);
    close(fd);
    _Atomic uint64_t in_flight = 0, worst = 0;
    struct racer racers[6];
    pthread_t threads[6];
    atomic_store(&t->rails[0].limit_bytes, 12 * KIB);
    for (unsigned i = 0; i < 6; i++) {
        racers[i] = (struct racer){.t = t, .slot = i, .in_flight = &in_flight, .worst = &worst};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (unsigned i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_true(racers[i].taken > 0);
    }
    assert_true(worst <= 12 * KIB);
    credit_table_unmap(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_race),
    };
    return cmocka_run_group_tests_name("net_credit_race", tests, NULL, NULL);
}
