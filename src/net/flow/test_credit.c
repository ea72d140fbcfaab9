/* SPDX-License-Identifier: Apache-2.0 */
/* How much may be in flight: its promises one by one, several processes on one table, then a network in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <sys/mman.h>

#include "base/clock.h"
#include "leat/error.h"
#include "net/flow/credit.h"
#include "net/testing.h"

static bool take(struct credit *c, uint64_t bytes, uint64_t now_ns)
{
    bool sole_op;
    return credit_take(c, bytes, now_ns, &sole_op);
}

static void test_never_stalls(void **state)
{
    static const uint64_t limits[] = {0, 1, 100, 4096, 65536, 1 << 20, 1 << 26};
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++) {
        struct credit c;
        assert_int_equal(credit_init(&c, NULL, 0, 0, limits[i], false), 0);
        assert_true(credit_piece_bytes(&c) > 0 && credit_piece_bytes(&c) <= credit_limit(&c));
        assert_true(take(&c, 1 << 27, 1000)); /* one request larger than any limit */
        assert_false(take(&c, 1, 1000));
        credit_done(&c, 1 << 27, 1000, true, 2000);
        assert_true(take(&c, 1, 3000));
        if (limits[i])
            assert_int_equal(credit_limit(&c), limits[i]); /* what the user fixed stays */
        credit_fini(&c);
    }
}

static void test_outstanding(void **state)
{
    struct credit c;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 1000000, false), 0);
    uint64_t sent = 0, stage = credit_piece_bytes(&c);
    while (take(&c, stage, 1000))
        assert_int_equal(c.in_flight_bytes, sent += stage);
    assert_true(sent <= 1000000 && sent > 1000000 - stage);
    credit_done(&c, stage, 1000, false, 5000);
    assert_true(take(&c, stage, 5000));
    credit_done(&c, sent * 2, 1000, false, 6000); /* more than there is: stays at none */
    assert_int_equal(c.in_flight_bytes, 0);
    credit_fini(&c);
}

/* Whatever the limit and the length of what is read: it takes no more requests than it must, and two of them fit at any time. */
static void test_slices(void **state)
{
    for (uint64_t limit = 16 * KIB; limit < 4 * MIB; limit += limit / 16)
        for (uint64_t bytes = 1; bytes < 8 * MIB; bytes += bytes / 8 + 1) {
            struct credit c;
            assert_int_equal(credit_init(&c, NULL, 0, 0, limit, false), 0);
            const uint64_t stage = credit_piece_bytes(&c);
            uint64_t left = bytes, parts = 0, out = 0;
            while (left) {
                uint64_t part = credit_slice(stage, left);
                assert_true(part && part <= left && part <= stage);
                assert_true(take(&c, part, 1000)); /* the one before it is still out */
                credit_done(&c, out, 1000, false, 1000);
                out = part;
                left -= part;
                parts++;
            }
            assert_int_equal(parts, (bytes + stage - 1) / stage);
            credit_fini(&c);
        }
}

/* Servers on this host: a short round trip must not bring the limit down to what a shallow switch could take. */
static void test_same_host(void **state)
{
    struct credit far, near, fixed, *both[] = {&far, &near};
    assert_int_equal(credit_init(&far, NULL, 0, 0, 0, false), 0);
    assert_int_equal(credit_init(&near, NULL, 0, 0, 0, true), 0);
    assert_int_equal(credit_init(&fixed, NULL, 0, 0, 100000, true), 0);
    assert_int_equal(credit_limit(&near), 4 * MIB);
    assert_int_equal(credit_limit(&fixed), 100000);
    for (uint64_t t = 1; t < 1000; t++)
        for (unsigned i = 0; i < 2; i++) {
            bool sole_op;
            assert_true(credit_take(both[i], 8 * KIB, t * 20 * NS_PER_US + NS_PER_S, &sole_op));
            credit_done(both[i], 8 * KIB, 15 * NS_PER_US, sole_op,
                        t * 20 * NS_PER_US + NS_PER_S + 15 * NS_PER_US);
        }
    assert_true(credit_limit(&far) < MIB);
    assert_int_equal(credit_limit(&near), 4 * MIB);
    assert_int_equal(credit_piece_bytes(&near), MIB);
    credit_fini(&far);
    credit_fini(&near);
    credit_fini(&fixed);
}

/* A path of 1 GB/s and 100 us, kept busy; then its queue loses something. */
static void drive_late(struct credit *c, uint64_t from_ns, unsigned batches, uint64_t late_ns)
{
    uint64_t now = from_ns;
    for (unsigned b = 0; b < batches; b++) {
        bool sole_op;
        uint64_t stage = credit_piece_bytes(c), n = 0, own = stage; /* 1 byte a ns */
        assert_true(credit_take(c, stage, now, &sole_op));
        assert_true(sole_op);
        while (take(c, stage, now))
            n++;
        now += 100 * NS_PER_US + own;
        credit_done(c, stage, 100 * NS_PER_US + own, true, now);
        now += late_ns; /* for the link it is the same whether servers or reader did not get their CPU */
        for (; n; n--) {
            now += own;
            credit_done(c, stage, 100 * NS_PER_US + own * 2, false, now);
        }
    }
}

static void drive(struct credit *c, uint64_t from_ns, unsigned batches)
{
    drive_late(c, from_ns, batches, 0);
}

/* A link that turns out slow is known as such after a few answers, however long each takes. */
static void test_slows_down(void **state)
{
    struct credit c;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    drive(&c, NS_PER_S, 1000);
    uint64_t fast = atomic_load(&c.rail->rate_bytes_per_s), now = 4 * NS_PER_S;
    for (unsigned i = 0; i < 3; i++, now += NS_PER_S) {
        bool sole_op;
        assert_true(credit_take(&c, 8 * KIB, now, &sole_op));
        credit_done(&c, 8 * KIB, 250 * NS_PER_MS, sole_op, now + 250 * NS_PER_MS);
    }
    assert_true(atomic_load(&c.rail->rate_bytes_per_s) < fast / 8);
    assert_true(credit_limit(&c) <= 64 * KIB);
    credit_fini(&c);
}

/* What is worth a request of its own where rails share: little on a slow link, more on a fast one, much where nothing is known. */
static void test_share(void **state)
{
    struct credit c;
    bool sole_op;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    assert_int_equal(credit_share(&c), 64 * KIB);
    drive(&c, NS_PER_S, 1000);
    assert_int_equal(credit_share(&c), 64 * KIB);
    credit_fini(&c);
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    for (uint64_t i = 0, now = NS_PER_S; i < 100; i++, now += NS_PER_MS) { /* 32 MB/s */
        assert_true(credit_take(&c, 32000, now, &sole_op));
        credit_done(&c, 32000, NS_PER_MS, sole_op, now + NS_PER_MS);
    }
    assert_int_equal(credit_share(&c), 16 * KIB);
    credit_fini(&c);
}

/* Where the link idles though the path is as it was, more is asked for; and less again when it does not. */
static void test_boost(void **state)
{
    struct credit c;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    drive(&c, NS_PER_S, 1000);
    uint64_t still = credit_limit(&c);
    drive_late(&c, 3 * NS_PER_S, 400, 400 * NS_PER_US);
    uint64_t late = credit_limit(&c);
    print_message("late by 400 us: %llu KiB after %llu\n", (unsigned long long)(late / KIB),
                  (unsigned long long)(still / KIB));
    assert_true(late > still * 2);
    drive(&c, 4 * NS_PER_S, 2000);
    assert_true(credit_limit(&c) < late / 2);
    credit_fini(&c);
}

/* Many servers into one receiver that is as fast as the CPUs: what is asked for at once is worth its wake-ups. And what a
 * link of 1 Gb/s may have in flight stays what its shallow queue holds. */
static void test_fast_and_slow(void **state)
{
    static const struct {
        double bytes_per_ns;
        uint64_t delay_ns, least, most;
    } paths[] = {{3.0, 15 * NS_PER_US, 1 * MIB, 2 * MIB},
                 {1.2, 15 * NS_PER_US, 400 * KIB, 800 * KIB},
                 {0.118, 40 * NS_PER_US, 32 * KIB, 32 * KIB},
                 {0.024, 60 * NS_PER_US, 32 * KIB, 32 * KIB}};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        struct credit c;
        uint64_t now = NS_PER_S;
        assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
        while (now < 3 * NS_PER_S) {
            bool sole_op;
            uint64_t first = credit_request(&c, now), stage = credit_piece_bytes(&c), n = 0;
            assert_true(credit_take(&c, first, now, &sole_op));
            while (take(&c, stage, now))
                n++;
            now += paths[i].delay_ns + (uint64_t)((double)first / paths[i].bytes_per_ns);
            credit_done(&c, first, paths[i].delay_ns + (uint64_t)((double)first / paths[i].bytes_per_ns),
                        sole_op, now);
            for (; n; n--) {
                now += (uint64_t)((double)stage / paths[i].bytes_per_ns);
                credit_done(&c, stage, paths[i].delay_ns * 2, false, now);
            }
        }
        print_message("%.3f GB/s: %llu KiB, %llu KiB a request\n", paths[i].bytes_per_ns,
                      (unsigned long long)(credit_limit(&c) / KIB),
                      (unsigned long long)(credit_piece_bytes(&c) / KIB));
        assert_in_range(credit_limit(&c), paths[i].least, paths[i].most);
        credit_fini(&c);
    }
}

/* A reader that gets its CPU late finds much in its sockets, and takes it in no time: that is no faster link. */
static void test_late_reader(void **state)
{
    struct credit c;
    uint64_t now = NS_PER_S, worst = 0;
    const double bytes_per_ns = 0.05;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    for (unsigned b = 0; b < 2000; b++) {
        bool sole_op;
        uint64_t first = credit_request(&c, now), stage = credit_piece_bytes(&c), n = 0;
        assert_true(credit_take(&c, first, now, &sole_op));
        while (take(&c, stage, now))
            n++;
        now += 50 * NS_PER_US + (uint64_t)((double)(first + n * stage) / bytes_per_ns);
        credit_done(&c, first, 50 * NS_PER_US + (uint64_t)((double)first / bytes_per_ns), sole_op, now);
        for (unsigned i = 0; i < n; i++)
            credit_done(&c, stage, 60 * NS_PER_US, false, now += 500);
        worst = MAX(worst, atomic_load(&c.rail->rate_bytes_per_s));
    }
    print_message("50 MB/s, reported late: %llu MB/s at most\n", (unsigned long long)(worst / 1000000));
    assert_in_range(worst, 25000000, 75000000);
    credit_fini(&c);
}

/* What is alone is small now and then, and only then. */
static void test_request(void **state)
{
    struct credit c;
    uint64_t now = NS_PER_S;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    assert_int_equal(credit_request(&c, now), 8 * KIB); /* nothing is known */
    drive(&c, now, 1000);
    now += NS_PER_S / 2; /* after the last that was small */
    assert_true(take(&c, 8 * KIB, now));
    assert_int_equal(credit_request(&c, now), credit_piece_bytes(&c)); /* it would not be alone */
    credit_done(&c, 8 * KIB, 100 * NS_PER_US, true, now += NS_PER_MS);
    assert_true(credit_piece_bytes(&c) > 8 * KIB);
    assert_int_equal(credit_request(&c, now), credit_piece_bytes(&c));
    assert_int_equal(credit_request(&c, now + 50 * NS_PER_MS), credit_piece_bytes(&c));
    assert_int_equal(credit_request(&c, now + 200 * NS_PER_MS), 8 * KIB);
    credit_fini(&c);
}

static uint64_t ceiling_of(const struct credit *c)
{
    return atomic_load(&c->rail->ceiling_bytes);
}

/* The tail of an answer, which TCP misses only when its timer tells. */
static void lose(struct credit *c, uint64_t segments, uint64_t now)
{
    assert_true(take(c, 8 * KIB, now - 200 * NS_PER_MS));
    credit_done(c, 8 * KIB, 200 * NS_PER_MS, false, now);
    credit_lost(c, segments);
}

/* Losses that are retransmitted at once draw no ceiling, unless they are many. */
static void test_losses_of_others(void **state)
{
    struct credit c;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    drive(&c, NS_PER_S, 1000);
    uint64_t grown = credit_limit(&c), now = 3 * NS_PER_S;
    for (unsigned i = 0; i < 20; i++, now += NS_PER_S) {
        credit_lost(&c, 4);
        drive(&c, now, 100);
    }
    assert_int_equal(ceiling_of(&c), 0);
    assert_true(credit_limit(&c) > grown / 2);
    uint64_t before = credit_limit(&c);
    credit_lost(&c, 1000);
    drive(&c, now, 100);
    assert_true(ceiling_of(&c) && ceiling_of(&c) < before / 10 * 8);
    credit_fini(&c);
}

static void test_adapts_and_loses(void **state)
{
    struct credit c;
    assert_int_equal(credit_init(&c, NULL, 0, 0, 0, false), 0);
    assert_true(credit_limit(&c) <= 64 * KIB); /* starts low: the first queue's capacity is unknown */
    drive(&c, NS_PER_S, 1000);
    uint64_t grown = credit_limit(&c);
    print_message("1 GB/s and 100 us: %llu KiB\n", (unsigned long long)(grown / KIB));
    assert_true(grown > 100 * KIB && grown < 800 * KIB);
    lose(&c, 3, 3 * NS_PER_S);
    drive(&c, 3 * NS_PER_S, 100);
    uint64_t cut = ceiling_of(&c);
    assert_true(cut <= grown / 10 * 7 && cut > grown / 2 && credit_limit(&c) <= cut);
    /* Another server reports the same loss: one cut. */
    lose(&c, 2, 3 * NS_PER_S + 100 * NS_PER_MS);
    drive(&c, 3 * NS_PER_S + 100 * NS_PER_MS, 100);
    assert_int_equal(ceiling_of(&c), cut);
    /* Raised again, slowly; the next loss makes it slower. */
    drive(&c, 6 * NS_PER_S, 100);
    assert_int_equal(ceiling_of(&c), cut + cut / 4);
    lose(&c, 1, 8 * NS_PER_S);
    drive(&c, 8 * NS_PER_S, 100);
    uint64_t again = ceiling_of(&c);
    assert_true(again < cut + cut / 4 && credit_limit(&c) <= again);
    drive(&c, 11 * NS_PER_S, 100);
    assert_int_equal(ceiling_of(&c), again);
    drive(&c, 13 * NS_PER_S, 100);
    assert_int_equal(ceiling_of(&c), again + again / 4);
    credit_fini(&c);
}

/* --- processes ------------------------------------------------------------------------------------------------------- */

static struct credit_table *shared(void)
{
    struct credit_table *t;
    int fd;
    assert_int_equal(credit_table_new(&fd, &t), 0);
    close(fd);
    return t;
}

static void join(struct credit *c, struct credit_table *t, unsigned slot)
{
    credit_slot_begin(t, slot);
    assert_int_equal(credit_init(c, t, slot, 0, 0, false), 0);
}

static void test_processes_share(void **state)
{
    int fd;
    struct credit_table *mine, *other;
    struct credit a, b;
    assert_int_equal(credit_table_new(&fd, &mine), 0);
    assert_int_equal(credit_table_map(fd, &other), 0);
    join(&a, mine, 0);
    join(&b, other, 1);
    const uint64_t stage = 8 * KIB, limit = credit_limit(&a);
    uint64_t held = 0;
    while (take(&a, stage, 1000))
        held += stage;
    assert_true(held <= limit && held + stage > limit);
    assert_false(take(&b, stage, 1001)); /* it waits now, */
    assert_false(take(&b, stage, 1002));
    credit_done(&a, stage, 500, false, 1500);
    assert_false(take(&a, stage, 1600)); /* and goes before the process that holds so much */
    assert_true(take(&b, stage, 1700));
    credit_done(&a, stage, 500, false, 1800);
    credit_done(&a, stage, 500, false, 1801);
    assert_true(take(&b, stage, 1900));
    /* Neither takes more than its half while the other wants too. */
    assert_false(take(&b, stage, 1901) && take(&b, stage, 1902));
    /* Killed: what it had in flight no longer counts. */
    credit_slot_clear(mine, 1);
    credit_done(&a, held, 500, false, 2000);
    held = 0;
    while (take(&a, stage, 3000))
        held += stage;
    assert_true(held + stage > limit);
    credit_fini(&a);
    credit_table_unmap(mine);
    credit_table_unmap(other);
    close(fd);
}

/* Four that always have something in flight, on a path of 1 GB/s whose delay grows in that time. */
static void test_base_is_drained_for_again(void **state)
{
    struct out {
        struct credit *c;
        uint64_t bytes, sent_ns, at_ns;
        bool sole_op;
    } out[256];
    unsigned first = 0, last = 0, pauses = 0;
    uint64_t now = NS_PER_S, free_ns = 0, begin;
    struct credit c[4];
    struct credit_table *t = shared();
    for (unsigned i = 0; i < ARRAY_LEN(c); i++)
        join(&c[i], t, i);
    drive(&c[0], now, 1000);
    for (begin = now += NS_PER_S; now < begin + 25 * NS_PER_S;) {
        for (unsigned i = 0; i < ARRAY_LEN(c) && last - first < ARRAY_LEN(out); i++) {
            struct out o = {.c = &c[i], .bytes = credit_request(&c[i], now), .sent_ns = now};
            if (!credit_take(o.c, o.bytes, now, &o.sole_op))
                continue;
            free_ns = MAX(free_ns, now + (now < begin + NS_PER_S ? 100 : 400) * NS_PER_US) + o.bytes;
            o.at_ns = free_ns;
            out[last++ % ARRAY_LEN(out)] = o;
            i -= 1; /* as much as it may have */
        }
        assert_true(first != last); /* something is always on its way */
        /* The machine stands still just as the rail is to be empty for a moment. */
        bool due = now > atomic_load(&t->rails[0].base_stamp_ns) + 10 * NS_PER_S && pauses++ == 0;
        for (unsigned i = first; due && i != last; i++)
            free_ns = out[i % ARRAY_LEN(out)].at_ns += 300 * NS_PER_MS;
        struct out *o = &out[first++ % ARRAY_LEN(out)];
        now = MAX(now, o->at_ns);
        credit_done(o->c, o->bytes, now - o->sent_ns, o->sole_op, now);
    }
    assert_true(pauses > 0);
    /* Half of it at least: with the old base the rate is far below what the path could bring. */
    assert_in_range(atomic_load(&c[0].rail->base_ns), 200 * NS_PER_US, 500 * NS_PER_US);
    for (; first != last; first++)
        credit_done(out[first % ARRAY_LEN(out)].c, out[first % ARRAY_LEN(out)].bytes, 0, false, now);
    for (unsigned i = 0; i < ARRAY_LEN(c); i++)
        credit_fini(&c[i]);
    credit_table_unmap(t);
}

/* Of two that hold nothing, the one that waits longer goes first, whichever asks first. */
static void test_longest_first(void **state)
{
    struct credit_table *t = shared();
    struct credit a, b, c;
    join(&a, t, 0);
    join(&b, t, 1);
    join(&c, t, 2);
    const uint64_t bytes = 8 * KIB;
    while (take(&a, bytes, 1000))
        ;
    assert_false(take(&b, bytes, 1001));
    assert_false(take(&c, bytes, 1002));
    credit_done(&a, bytes, 500, false, 1500);
    assert_false(take(&c, bytes, 1600));
    assert_true(take(&b, bytes, 1700));
    credit_done(&a, bytes, 500, false, 1800);
    assert_true(take(&c, bytes, 1900));
    credit_fini(&a);
    credit_fini(&b);
    credit_fini(&c);
    credit_table_unmap(t);
}

/* One that waits and is stopped, or is killed while it adapts, delays no other. */
static void test_stopped_and_killed(void **state)
{
    struct credit_table *t = shared();
    struct credit a, b;
    join(&a, t, 0);
    join(&b, t, 1);
    uint64_t limit = credit_limit(&a), stage = credit_piece_bytes(&a), s = NS_PER_S;
    assert_true(take(&a, limit, s));
    assert_false(take(&b, stage, s));
    credit_done(&a, limit, 500, false, s + 1);
    assert_true(take(&a, stage, s + 2)); /* the rail was empty */
    assert_false(take(&a, stage, s + 3));
    assert_true(take(&a, stage, s + 30 * NS_PER_MS)); /* b did not ask again */
    atomic_store(&t->rails[0].adapting, 2);           /* b's mark */
    credit_done(&a, 2 * stage, 500, true, s + 31 * NS_PER_MS);
    assert_int_equal(atomic_load(&t->rails[0].adapting), 2);
    credit_slot_clear(t, 1);
    assert_int_equal(atomic_load(&t->rails[0].adapting), 0);
    credit_fini(&a);
    credit_table_unmap(t);
}

/* One that is stopped with all of the credit in its hands: its answers wait in its own sockets, not on the rail. */
static void test_stopped_holding(void **state)
{
    struct credit_table *t = shared();
    struct credit a, b;
    join(&a, t, 0);
    join(&b, t, 1);
    uint64_t limit = credit_limit(&a), stage = credit_piece_bytes(&a), s = NS_PER_S;
    assert_true(take(&a, limit, s));
    for (uint64_t ms = 1; ms < 500; ms++)
        assert_false(take(&b, stage, s + ms * NS_PER_MS));
    assert_true(take(&b, stage, 4 * s));
    assert_true(take(&b, stage, 4 * s + 1));
    credit_done(&b, 2 * stage, 500, false, 4 * s + 2);
    credit_done(&a, limit, 0, false, 5 * s); /* it continues */
    assert_true(take(&b, limit, 5 * s + 1));
    assert_false(take(&a, stage, 5 * s + 2));
    credit_fini(&a);
    credit_fini(&b);
    credit_table_unmap(t);
}

/* Two views of a process have one slot: the second sleeps while the first holds the credit, and is woken. */
static void test_one_slot(void **state)
{
    struct credit_table *t = shared();
    struct credit a, b;
    join(&a, t, 0);
    join(&b, t, 0);
    uint64_t now = clock_now_ns();
    assert_true(take(&a, credit_limit(&a), now));
    assert_false(take(&b, credit_piece_bytes(&b), now));
    credit_wait(&b, 30);
    assert_true(clock_now_ns() - now >= 30 * NS_PER_MS); /* it did sleep */
    uint32_t wake = atomic_load(&t->rails[0].wake);
    credit_done(&a, a.in_flight_bytes, 500, true, clock_now_ns());
    assert_int_not_equal(atomic_load(&t->rails[0].wake), wake);
    assert_true(take(&b, credit_piece_bytes(&b), clock_now_ns()));
    credit_fini(&a);
    credit_fini(&b);
    credit_table_unmap(t);
}

/* Two views of a process that both read share what is theirs; one alone has it all again. */
static void test_views_share(void **state)
{
    struct credit_table *t = shared();
    struct credit a, b;
    join(&a, t, 0);
    join(&b, t, 0);
    const uint64_t bytes = 4 * KIB, limit = credit_limit(&a);
    while (take(&a, bytes, 1000))
        ;
    assert_int_equal(a.in_flight_bytes, limit);
    assert_false(take(&b, bytes, 1001));
    while (b.in_flight_bytes < limit / 2) { /* what comes back goes to the process with less */
        credit_done(&a, bytes, 500, false, 1010);
        assert_false(take(&a, bytes, 1010) && a.in_flight_bytes > limit / 2);
        assert_true(take(&b, bytes, 1010));
    }
    assert_int_equal(a.in_flight_bytes, limit / 2);
    credit_done(&b, b.in_flight_bytes, 500, false, 2000);
    assert_false(take(&a, bytes, 2001)); /* it may come back at any moment, */
    credit_rest(&b);                     /* or says that it does not */
    while (take(&a, bytes, 2002))
        ;
    assert_int_equal(a.in_flight_bytes, limit);
    credit_done(&a, limit, 500, false, 3000);
    credit_fini(&a);
    credit_fini(&b);
    credit_table_unmap(t);
}

/* Refused once, and served by another rail since: no other process waits for it. */
static void test_rests(void **state)
{
    struct credit_table *t = shared();
    struct credit a, b;
    join(&a, t, 0);
    join(&b, t, 1);
    uint64_t stage = credit_piece_bytes(&a);
    assert_true(take(&a, credit_limit(&a) - stage, 1000));
    assert_false(take(&b, 2 * stage, 1001));
    assert_false(take(&a, stage, 1002)); /* b waits, and goes first */
    credit_rest(&b);
    assert_true(take(&a, stage, 1003));
    credit_fini(&a);
    credit_fini(&b);
    credit_table_unmap(t);
}

/* A neighbour of the same user that writes nonsense costs speed, nothing else. */
static void test_nonsense(void **state)
{
    struct credit_table *t = shared();
    struct credit a;
    join(&a, t, 0);
    memset(&t->rails[0], 0xff, offsetof(struct credit_rail, slots));
    memset(&t->rails[0].slots[1], 0xff, (CREDIT_SLOTS - 1) * sizeof(struct credit_slot));
    assert_true(credit_limit(&a) <= 64 * MIB && credit_piece_bytes(&a) <= MIB);
    assert_false(take(&a, 1 << 20, 1000)); /* others seem to have it all */
    credit_done(&a, 1 << 20, 1000, true, 2000);
    credit_slot_clear(t, 1);
    memset(&t->rails[0], 0, offsetof(struct credit_rail, slots));
    assert_true(credit_limit(&a) >= 8 * KIB);
    assert_true(take(&a, 1 << 20, 3000));
    credit_fini(&a);
    credit_table_unmap(t);
    struct credit_table *none;
    int not_one = memfd_create("x", 0);
    assert_true(credit_table_map(not_one, &none) < 0);
    close(not_one);
}

/* --- against testing_sim.c ----------------------------------------------------------------------------------------- */

#define NODES  8u
#define READS  2048u
#define PIECE  (64 * KIB)
#define REGION (16 * MIB)

struct run {
    uint64_t took_ns, peak_bytes, limit_bytes;
};

/* READS pieces spread over the nodes, asked for in turns as gather.c does. unlimited: everything at once. */
static struct run simulate(uint64_t latency_ns, uint64_t node_rate, uint64_t receiver_rate,
                           uint64_t queue_bytes, uint64_t fixed_limit, bool unlimited)
{
    uint8_t *memory = calloc(1, REGION), *dst = malloc(READS * PIECE);
    struct net_sim_node nodes[NODES];
    for (unsigned i = 0; i < NODES; i++)
        nodes[i] = (struct net_sim_node){.memory = memory,
                                         .region_bytes = REGION,
                                         .nregions = 1,
                                         .latency_ns = latency_ns,
                                         .bytes_per_s = node_rate};
    const struct net_sim_config config = {.seed = 3,
                                          .nodes = nodes,
                                          .nnodes = NODES,
                                          .receiver_bytes_per_s = receiver_rate,
                                          .receiver_queue_bytes = queue_bytes,
                                          .retry_ns = 5 * NS_PER_MS};
    struct net_ctx *ctx;
    struct net_endpoint *endpoints[NODES];
    struct net_read *reads = calloc(READS, sizeof(*reads));
    struct net_op *ops = calloc(READS, sizeof(*ops));
    uint64_t *sent_ns = calloc(READS, sizeof(*sent_ns)), in_flight = 0;
    unsigned next[NODES], finished = 0, used = 0;
    struct run out = {0};
    struct credit s;
    bool *sole_op = calloc(READS, sizeof(*sole_op));
    assert_int_equal(net_sim_new(&config, &ctx), 0);
    for (unsigned i = 0; i < NODES; i++) {
        struct net_peer peer = {.node = i, .connected_fd = -1};
        assert_int_equal(ctx->ops->connect(ctx, &peer, 0, &endpoints[i], NULL), 0);
        next[i] = i * (READS / NODES);
    }
    for (unsigned i = 0; i < READS; i++)
        reads[i] = (struct net_read){.bytes = PIECE, .offset = i % 256 * PIECE, .dst = dst + i * PIECE};
    assert_int_equal(credit_init(&s, NULL, 0, 0, fixed_limit, false), 0);
    while (finished < READS) {
        bool any = true;
        while (any) {
            any = false;
            for (unsigned node = 0; node < NODES; node++) {
                unsigned end = (node + 1) * (READS / NODES);
                unsigned n = (unsigned)MAX(credit_piece_bytes(&s) / PIECE, 1ull);
                n = MIN(n, end - next[node]); /* the tail is what remains */
                if (next[node] == end ||
                    (!unlimited && !credit_take(&s, n * PIECE, net_sim_now_ns(ctx), &sole_op[used])))
                    continue;
                struct net_op *op = &ops[used];
                *op = (struct net_op){.reads = &reads[next[node]], .n = n};
                sent_ns[used++] = net_sim_now_ns(ctx);
                assert_int_equal(ctx->ops->submit(endpoints[node], op), 0);
                in_flight += n * PIECE;
                out.peak_bytes = MAX(out.peak_bytes, in_flight);
                next[node] += n;
                any = true;
            }
        }
        struct net_event events[16];
        int got = ctx->ops->poll(ctx, events, 16, 1000);
        assert_true(got > 0); /* something is always on its way: no stall */
        for (int e = 0; e < got; e++) {
            if (events[e].kind != NET_DONE)
                continue;
            uint64_t now = net_sim_now_ns(ctx), bytes = events[e].op->n * PIECE;
            assert_int_equal(events[e].op->status, 0);
            if (!unlimited)
                credit_done(&s, bytes, now - sent_ns[events[e].op - ops], sole_op[events[e].op - ops], now);
            in_flight -= bytes;
            finished += events[e].op->n;
        }
    }
    out.took_ns = net_sim_now_ns(ctx);
    out.limit_bytes = credit_limit(&s);
    credit_fini(&s);
    for (unsigned i = 0; i < NODES; i++)
        ctx->ops->disconnect(ctx, endpoints[i]);
    net_free(ctx);
    free(sole_op);
    free(sent_ns);
    free(ops);
    free(reads);
    free(dst);
    free(memory);
    return out;
}

static double rate(struct run r)
{
    return (double)READS * PIECE / (double)r.took_ns; /* GB/s */
}

static void tell(const char *what, struct run r, double link)
{
    print_message("%s: %.2f GB/s (%.0f %% of the link), peak in flight %llu KiB, limit %llu KiB\n", what,
                  rate(r), 100 * rate(r) / link, (unsigned long long)(r.peak_bytes / KIB),
                  (unsigned long long)(r.limit_bytes / KIB));
}

/* Eight servers into one receiver with a shallow queue: asking for all at once loses segments and waits for retries. */
static void test_incast(void **state)
{
    struct run all = simulate(20 * NS_PER_US, 2000000000, 2000000000, 1 * MIB, 0, true);
    struct run ours = simulate(20 * NS_PER_US, 2000000000, 2000000000, 1 * MIB, 0, false);
    tell("incast, all at once", all, 2);
    tell("incast, adapting", ours, 2);
    assert_true(rate(ours) > 0.8 * 2);
    assert_true(rate(ours) > rate(all));
}

/* A long way: the limit must grow far past where it starts. */
static void test_long_path(void **state)
{
    struct run ours = simulate(2 * NS_PER_MS, 4000000000, 4000000000, 256 * MIB, 0, false);
    struct run start = simulate(2 * NS_PER_MS, 4000000000, 4000000000, 256 * MIB, 1 * MIB, false);
    tell("2 ms away, adapting", ours, 4);
    tell("2 ms away, 1 MiB fixed", start, 4);
    assert_true(rate(ours) > 3 * rate(start));
    assert_true(ours.limit_bytes > 4 * MIB);
}

/* A short way: no more in flight than helps. */
static void test_short_path(void **state)
{
    struct run ours = simulate(5 * NS_PER_US, 1000000000, 1000000000, 64 * MIB, 0, false);
    tell("5 us away, adapting", ours, 1);
    assert_true(rate(ours) > 0.85);
    assert_true(ours.limit_bytes <= 2 * MIB);
}

/* Limits below one request: one at a time, to the end. */
static void test_tiny_limit(void **state)
{
    struct run r = simulate(10 * NS_PER_US, 1000000000, 1000000000, 64 * MIB, 1000, false);
    assert_int_equal(r.peak_bytes, PIECE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_stalls),
        cmocka_unit_test(test_base_is_drained_for_again),
        cmocka_unit_test(test_outstanding),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_same_host),
        cmocka_unit_test(test_adapts_and_loses),
        cmocka_unit_test(test_losses_of_others),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_boost),
        cmocka_unit_test(test_slows_down),
        cmocka_unit_test(test_processes_share),
        cmocka_unit_test(test_longest_first),
        cmocka_unit_test(test_stopped_and_killed),
        cmocka_unit_test(test_stopped_holding),
        cmocka_unit_test(test_one_slot),
        cmocka_unit_test(test_views_share),
        cmocka_unit_test(test_rests),
        cmocka_unit_test(test_fast_and_slow),
        cmocka_unit_test(test_late_reader),
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_incast),
        cmocka_unit_test(test_long_path),
        cmocka_unit_test(test_short_path),
        cmocka_unit_test(test_tiny_limit),
    };
    return cmocka_run_group_tests_name("net_credit", tests, NULL, NULL);
}
