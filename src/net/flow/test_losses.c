/* SPDX-License-Identifier: Apache-2.0 */
/* What was lost, and what only came late. */
#include "net/flow/losses.h"

#include <sys/socket.h>
#include <unistd.h>

#include "net/test_rig.h"

#define MS 1000000ull

/* A tail that was sent once more since its acknowledgement was late: the receiver had it. */
static void test_came_twice(void **state)
{
    struct losses l = {0};
    uint64_t now = 1000 * MS;
    uint32_t anew = 0;
    for (unsigned i = 0; i < 1000; i++) { /* again and again, the last of them never known to be one yet */
        anew += 3;
        assert_int_equal(losses_judge(&l, anew, anew - 3, now), 0);
        now += MS;
        assert_int_equal(losses_judge(&l, anew, anew, now), 0);
        now += MS;
    }
}

static void test_lost(void **state)
{
    struct losses l = {0};
    uint64_t now = 1000 * MS;
    assert_int_equal(losses_judge(&l, 2, 0, now), 0);
    assert_int_equal(losses_judge(&l, 2, 0, now + LOSSES_SETTLE_NS - 1), 0);
    assert_int_equal(losses_judge(&l, 2, 0, now + LOSSES_SETTLE_NS), 2);
    assert_int_equal(losses_judge(&l, 2, 0, now + 1000 * MS), 2);
    /* Of five more, two came twice. */
    assert_int_equal(losses_judge(&l, 7, 0, now + 1001 * MS), 2);
    assert_int_equal(losses_judge(&l, 7, 2, now + 1003 * MS), 2);
    assert_int_equal(losses_judge(&l, 8, 2, now + 1007 * MS), 5);
    /* What comes twice after it was reported is not taken back. */
    assert_int_equal(losses_judge(&l, 8, 7, now + 1010 * MS), 5);
    assert_int_equal(losses_judge(&l, 14, 7, now + 1011 * MS), 5);
    assert_int_equal(losses_judge(&l, 14, 7, now + 1020 * MS), 7);
}

/* It counts modulo 2^32, and the first figure of a connection may be past a wrap of either. */
static void test_wraps(void **state)
{
    struct losses l = {.told = UINT32_MAX - 1};
    assert_int_equal(losses_judge(&l, 1, 0, 1000 * MS), UINT32_MAX - 1);
    assert_int_equal(losses_judge(&l, 1, 0, 1010 * MS), 1);
    assert_int_equal(losses_judge(&l, 5, 4, 1020 * MS), 1);
    assert_int_equal(losses_judge(&l, 5, 4, 1040 * MS), 1);
}

static void test_no_tcp(void **state)
{
    struct losses l = {0};
    assert_int_equal(losses_of(&l, -1, 1000 * MS), 0);
    assert_int_equal(losses_of(&l, -1, 1010 * MS), 0);
}

/* The distance of the far end is known once it is asked for. */
static void test_near(void **state)
{
    struct losses l = {.min_rtt_us = UINT32_MAX};
    int pair[2];
    rig_tcp_pair(pair);
    assert_int_equal(losses_of(&l, pair[0], 1000 * MS), 0);
    assert_true(l.min_rtt_us < 60 * 1000 * 1000u);
    l.min_rtt_us = 7; /* not asked again so soon */
    assert_int_equal(losses_of(&l, pair[0], 1000 * MS + LOSSES_ASK_NS - 1), 0);
    assert_int_equal(l.min_rtt_us, 7);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    l = (struct losses){.min_rtt_us = UINT32_MAX};
    assert_int_equal(losses_of(&l, pair[0], 1000 * MS), 0);
    assert_int_equal(l.min_rtt_us, UINT32_MAX);
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_came_twice), cmocka_unit_test(test_lost), cmocka_unit_test(test_wraps),
        cmocka_unit_test(test_no_tcp),     cmocka_unit_test(test_near),
    };
    return cmocka_run_group_tests_name("net_losses", tests, NULL, NULL);
}
