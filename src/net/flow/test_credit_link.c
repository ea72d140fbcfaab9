/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the limit does to a link of so many bytes a second behind a queue of so many packets, in virtual time:
 * eight servers answer a reader's batches, each answer at once; what finds the queue full is retransmitted
 * 200 ms later. Servers and reader get their CPU late now and then, or are stopped once. Rails are such links
 * side by side.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "net/flow/credit.h"

#define SERVERS  8u
#define SAMPLE   (64 * KIB)
#define BATCH    (8 * SAMPLE)
#define BATCHES  4096u
#define OUT      64u
#define FRAME    1514u
#define PAYLOAD  1448u
#define RTO_NS   (200 * NS_PER_MS)
#define RAILS    2u
#define PAUSE_NS (200 * NS_PER_MS)

struct link {
    double bytes_per_ns;
    uint64_t queue_bytes, far_ns; /* beyond 40 us there and back */
    uint64_t lost_one_in;         /* packets lost to other traffic; 0: none */
    uint64_t stands_ns;           /* the reader stands still for a moment, so often; 0: it does not */
    uint64_t again_ns; /* after which such a packet is retransmitted; 0: as soon as the gap is reported */
};

struct result {
    double of_link; /* goodput */
    uint64_t p50_ns, p99_ns, losses, limit_bytes;
};

struct answer {
    uint64_t at_ns, sent_ns, bytes;
    unsigned rail, anew;              /* packets that were lost alone, and retransmitted at once */
    bool coming, sole_op, lost, used; /* coming: to the queue, at at_ns; else through at at_ns */
};

enum who { NOBODY, BETWEEN, EVERYTHING, READER, SERVER };

struct model {
    struct link link;
    unsigned rails;
    enum who pauses; /* from pause_ns on, once */
    uint64_t pause_ns;
    uint64_t free_ns[RAILS], losses, rng;
    struct credit credit[RAILS];
    struct answer out[OUT];
};

/* The model's inner loops, packet by packet: the code under test is not in them, and checks take most of their time. */
#define PLAIN __attribute__((no_sanitize("address", "undefined")))

/* How late a process gets its CPU: mostly at once; now and then another one has it. */
static uint64_t late(struct model *m)
{
    uint64_t dice = rng_below(&m->rng, 1000);
    uint64_t most = dice == 0 ? NS_PER_MS : dice < 20 ? 200 * NS_PER_US : 20 * NS_PER_US;
    return 5 * NS_PER_US + rng_below(&m->rng, most);
}

/* All of an answer comes to the queue at once: through when its last packet is, or 200 ms later. */
PLAIN static void arrive(struct model *m, struct answer *a)
{
    uint64_t come = a->at_ns, *free_ns = &m->free_ns[a->rail];
    a->coming = false;
    for (uint64_t left = a->bytes; left && !a->lost;) {
        uint64_t step = MIN(left, (uint64_t)PAYLOAD);
        uint64_t queued = *free_ns > come ? (uint64_t)((double)(*free_ns - come) * m->link.bytes_per_ns) : 0;
        a->lost = queued + FRAME > m->link.queue_bytes;
        if (!a->lost)
            *free_ns =
                MAX(*free_ns, come) + (uint64_t)((double)(step + FRAME - PAYLOAD) / m->link.bytes_per_ns);
        a->anew += m->link.lost_one_in && rng_below(&m->rng, m->link.lost_one_in) == 0;
        left -= step;
    }
    m->losses += a->lost + a->anew;
    a->at_ns = (a->lost ? come + RTO_NS : *free_ns) + 20 * NS_PER_US;
    if (a->anew)
        a->at_ns += 40 * NS_PER_US + m->link.far_ns + m->link.again_ns;
}

PLAIN static struct answer *first_of(struct model *m)
{
    struct answer *first = NULL;
    for (unsigned i = 0; i < OUT; i++)
        if (m->out[i].used && (!first || m->out[i].at_ns < first->at_ns))
            first = &m->out[i];
    return first;
}

/* The next answer that is complete by then. What reaches the queue before is put there, and nothing later:
 * requests made in between may be answered first. */
PLAIN static struct answer *next_through(struct model *m, uint64_t until_ns)
{
    struct answer *a;
    while ((a = first_of(m)) && a->coming && a->at_ns <= until_ns)
        arrive(m, a);
    return a && a->at_ns <= until_ns ? a : NULL;
}

static struct answer *free_of(struct model *m)
{
    for (unsigned i = 0; i < OUT; i++)
        if (!m->out[i].used)
            return &m->out[i];
    return NULL;
}

/* The reader is stopped: what comes waits in its sockets. Or all of the machine: what is on its way comes later by as much. */
static uint64_t paused(struct model *m, uint64_t now)
{
    if (now < m->pause_ns || (m->pauses != EVERYTHING && m->pauses != READER))
        return now;
    for (unsigned i = 0; m->pauses == EVERYTHING && i < OUT; i++)
        m->out[i].at_ns += PAUSE_NS;
    for (unsigned k = 0; k < m->rails; k++)
        m->free_ns[k] += m->pauses == EVERYTHING ? PAUSE_NS : 0;
    m->pauses = NOBODY;
    return now + PAUSE_NS;
}

/* A server is stopped: the request that was sent to it is answered when it continues. */
static uint64_t server_late(struct model *m, uint64_t now)
{
    if (m->pauses != SERVER || now < m->pause_ns)
        return late(m);
    m->pauses = NOBODY;
    return PAUSE_NS;
}

/* One batch from `now` on. Returns when it is there. */
static uint64_t batch(struct model *m, uint64_t now)
{
    uint64_t left = BATCH, sample = 0, coming = 0;
    while (left || coming) {
        for (unsigned k = 0; left && k < m->rails;) {
            struct credit *c = &m->credit[k];
            if (!sample)
                sample = SAMPLE;
            /* As gather.c cuts them: what is asked for first may have to be small. */
            uint64_t stage = credit_piece_bytes(c), most = left == BATCH ? credit_request(c, now) : stage;
            uint64_t bytes = credit_slice(MIN(most, stage), sample);
            struct answer *a = free_of(m);
            bool sole_op;
            if (!a || !credit_take(c, bytes, now, &sole_op)) {
                k++;
                continue;
            }
            *a = (struct answer){.at_ns = now + 20 * NS_PER_US + m->link.far_ns + server_late(m, now),
                                 .sent_ns = now,
                                 .bytes = bytes,
                                 .rail = k,
                                 .coming = true,
                                 .sole_op = sole_op,
                                 .used = true};
            left -= bytes;
            sample -= bytes;
            coming += bytes;
        }
        struct answer *a = next_through(m, UINT64_MAX);
        assert_non_null(a);
        now = paused(m, MAX(now, a->at_ns) + late(m));
        for (; a; a = next_through(m, now)) { /* all that is there by now */
            credit_done(&m->credit[a->rail], a->bytes, now - a->sent_ns, a->sole_op, now);
            credit_lost(&m->credit[a->rail], a->lost + a->anew);
            coming -= a->bytes;
            a->used = false;
        }
    }
    return now;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static struct result run(struct link link, unsigned rails, uint64_t fixed_limit, uint64_t seconds)
{
    static uint64_t took[BATCHES];
    struct model m = {.link = link, .rails = rails, .rng = rng_seed(7, rails)};
    uint64_t now = NS_PER_S, n = 0, start = now + 300 * NS_PER_MS, bytes = 0;
    struct result r = {0};
    for (unsigned k = 0; k < rails; k++)
        assert_int_equal(credit_init(&m.credit[k], NULL, 0, 0, fixed_limit, false), 0);
    while (now < start)
        now = batch(&m, now);
    start = now;
    while (now < start + seconds * NS_PER_S) {
        if (link.stands_ns && now >= m.pause_ns + link.stands_ns) {
            m.pauses = READER;
            m.pause_ns = now;
        }
        uint64_t end = batch(&m, now);
        took[n++ % BATCHES] = end - now;
        bytes += BATCH;
        now = end;
    }
    n = MIN(n, (uint64_t)BATCHES);
    qsort(took, n, sizeof(*took), by_value);
    r.of_link = (double)bytes / (double)(now - start) / link.bytes_per_ns * FRAME / PAYLOAD;
    r.p50_ns = took[n / 2];
    r.p99_ns = took[n * 99 / 100];
    r.losses = m.losses;
    r.limit_bytes = credit_limit(&m.credit[0]);
    for (unsigned k = 0; k < rails; k++)
        credit_fini(&m.credit[k]);
    return r;
}

static void tell(const char *what, struct result r)
{
    print_message("%-28s %3.0f %% of the link, p50 %5.2f ms, p99 %5.2f ms, %2llu losses, limit %llu KiB\n",
                  what, 100 * r.of_link, (double)r.p50_ns / 1e6, (double)r.p99_ns / 1e6,
                  (unsigned long long)r.losses, (unsigned long long)(r.limit_bytes / KIB));
}

static const struct link links[] = {{0.025, 30 * FRAME, 0},
                                    {0.025, 64 * FRAME, 0},
                                    {0.125, 30 * FRAME, 0},
                                    {0.125, 64 * FRAME, 0},
                                    {0.125, 128 * FRAME, 0}};

static void test_shallow(void **state)
{
    for (unsigned i = 0; i < ARRAY_LEN(links); i++) {
        char what[64];
        snprintf(what, sizeof(what), "%.0f MB/s, %llu packets", links[i].bytes_per_ns * 1000,
                 (unsigned long long)links[i].queue_bytes / FRAME);
        struct result ours = run(links[i], 1, 0, 8);
        tell(what, ours);
        /* A bare flow takes the link's time and a round trip; 1.15 of it, and 0.97 of the link, are what is wanted. */
        double wire_ns = (double)BATCH / PAYLOAD * FRAME / links[i].bytes_per_ns, bare_ns = wire_ns + 100e3;
        assert_true(ours.of_link > 0.97 * wire_ns / bare_ns);
        assert_true((double)ours.p99_ns < 1.15 * bare_ns);
        /* At the start of the slowest: two queues' worth are asked for at once, then 0.7 of that. */
        assert_true(ours.losses <= 3);
    }
}

/* What the model is worth: limits fixed by hand do in it what they do behind such queues (docs/benchmarks.md, incast.sweep). */
static void test_model(void **state)
{
    static const struct {
        unsigned link, limit_kib;
        bool good;
    } known[] = {{0, 24, true}, {0, 32, true},  {0, 64, false}, {1, 64, true},   {2, 24, true},
                 {2, 32, true}, {2, 64, false}, {3, 64, true},  {3, 256, false}, {4, 112, true}};
    for (unsigned i = 0; i < ARRAY_LEN(known); i++) {
        char what[64];
        struct result r = run(links[known[i].link], 1, known[i].limit_kib * KIB, 4);
        snprintf(what, sizeof(what), "%u KiB on link %u", known[i].limit_kib, known[i].link);
        tell(what, r);
        assert_int_equal(r.of_link > 0.95, known[i].good);
    }
}

/*
 * A path that is longer than its queue is deep: its limit is found by exceeding it. Afterwards throughput is
 * near that of the best fixed limit, from a sweep. (A ceiling of what the limit has faded to during the wait
 * for the lost answer starts at 22 KiB, and takes half a minute to come back.)
 */
static void test_overrun(void **state)
{
    static const struct {
        struct link link;
        unsigned best_kib;
    } path_stats[] = {{{0.125, 64 * FRAME, 500 * NS_PER_US}, 72},
                      {{0.125, 64 * FRAME, 2 * NS_PER_MS}, 72},
                      {{1.25, 256 * FRAME, 100 * NS_PER_US}, 340},
                      {{1.25, 256 * FRAME}, 340},
                      {{0.025, 64 * FRAME, 2 * NS_PER_MS}, 72}};
    for (unsigned i = 0; i < ARRAY_LEN(path_stats); i++) {
        char what[64];
        struct result best = run(path_stats[i].link, 1, path_stats[i].best_kib * KIB, 4);
        struct result ours = run(path_stats[i].link, 1, 0, 30);
        snprintf(what, sizeof(what), "%.3f GB/s, %.1f ms, fixed", path_stats[i].link.bytes_per_ns,
                 (double)path_stats[i].link.far_ns / 1e6);
        tell(what, best);
        tell("adapting", ours);
        assert_true(ours.of_link > 0.85 * best.of_link);
    }
}

static void test_rails(void **state)
{
    struct result one = run((struct link){0.05, 256 * FRAME, 0}, 1, 0, 8);
    struct result two = run((struct link){0.05, 256 * FRAME, 0}, 2, 0, 8);
    tell("one rail of 50 MB/s", one);
    tell("two", two);
    assert_true(two.of_link > 1.9 * one.of_link);
}

static const char *const pauses[] = {[NOBODY] = "nobody",
                                     [BETWEEN] = "between batches",
                                     [EVERYTHING] = "everything",
                                     [READER] = "the reader",
                                     [SERVER] = "a server"};

/* The least limit in the 64 batches after a process stood still, two seconds from the start. */
static uint64_t least_limit(struct link link, enum who who)
{
    struct model m = {.link = link, .rails = 1, .rng = rng_seed(7, 1)};
    uint64_t least = UINT64_MAX, now = NS_PER_S;
    assert_int_equal(credit_init(&m.credit[0], NULL, 0, 0, 0, false), 0);
    while (now < 3 * NS_PER_S)
        now = batch(&m, now);
    m.pause_ns = now;
    m.pauses = who == BETWEEN ? NOBODY : who;
    now += who == BETWEEN ? PAUSE_NS : 0;
    while (m.pauses)
        now = batch(&m, now);
    for (unsigned k = 0; k < 64; k++, now = batch(&m, now))
        least = MIN(least, credit_limit(&m.credit[0]));
    credit_fini(&m.credit[0]);
    return least;
}

/*
 * A pause of 200 ms on a host says nothing about the path: the limit stays within a tenth of what it would
 * be. (Where the pause fades the rate instead, it falls to the least there is and comes back within 15 ms,
 * some 300 round trips of the fast ones.)
 */
static void test_pause(void **state)
{
    static const struct link paths[] = {{0.025, 64 * FRAME, 0},
                                        {0.125, 64 * FRAME, 0},
                                        {1.25, 4096 * FRAME, 0},
                                        {3.0, 16384 * FRAME, 0},
                                        {1.25, 65536 * FRAME, 2 * NS_PER_MS}};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        uint64_t usual = least_limit(paths[i], NOBODY);
        /* Processes that get their CPU late one time in fifty do not drive it above what switches for such a link hold: half a millisecond. */
        if (!paths[i].far_ns)
            assert_true((double)usual <= MAX(32.0 * KIB, paths[i].bytes_per_ns * 500e3));
        for (enum who who = BETWEEN; who <= SERVER; who++) {
            uint64_t least = least_limit(paths[i], who);
            print_message("%.3f GB/s, %.1f ms: %s stood still: %llu KiB at least, %llu without\n",
                          paths[i].bytes_per_ns, (double)paths[i].far_ns / 1e6, pauses[who],
                          (unsigned long long)least / KIB, (unsigned long long)usual / KIB);
            assert_true(least * 10 >= usual * 9);
        }
    }
}

/* Losses of other traffic, one packet in so many, cost little: the limit must not make them cost more. */
static void test_lossy(void **state)
{
    static const struct link paths[] = {{1.25, 4096 * FRAME, 0, 100000},
                                        {1.25, 4096 * FRAME, 0, 10000},
                                        {3.0, 16384 * FRAME, 60 * NS_PER_US, 100000},
                                        {0.125, 256 * FRAME, 0, 10000},
                                        {1.25, 65536 * FRAME, 2 * NS_PER_MS, 100000},
                                        {1.25, 4096 * FRAME, 0, 1000000, 0, RTO_NS}};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        char what[64];
        struct link without = paths[i];
        without.lost_one_in = 0;
        struct result clean = run(without, 1, 0, 20), lossy = run(paths[i], 1, 0, 20);
        snprintf(what, sizeof(what), "%.3f GB/s, %.1f ms", paths[i].bytes_per_ns,
                 (double)paths[i].far_ns / 1e6);
        tell(what, clean);
        snprintf(what, sizeof(what), "one lost in %llu", (unsigned long long)paths[i].lost_one_in);
        tell(what, lossy);
        assert_true(lossy.limit_bytes * 8 > clean.limit_bytes);
        assert_true(lossy.of_link > (paths[i].again_ns ? 0.6 : 0.95) * clean.of_link);
    }
}

/* Nor must they where the reader stands still now and then: it did not wait for what it finds afterwards. */
static void test_lossy_and_late(void **state)
{
    static const struct link paths[] = {{1.25, 4096 * FRAME, 0, 100000, 2 * NS_PER_S},
                                        {3.0, 16384 * FRAME, 60 * NS_PER_US, 100000, 2 * NS_PER_S},
                                        {0.125, 256 * FRAME, 0, 10000, 2 * NS_PER_S}};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        struct link without = paths[i];
        without.lost_one_in = 0;
        struct result clean = run(without, 1, 0, 30), lossy = run(paths[i], 1, 0, 30);
        tell("a reader that stands still", clean);
        tell("and losses", lossy);
        assert_true(lossy.of_link > 0.95 * clean.of_link);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),          cmocka_unit_test(test_shallow), cmocka_unit_test(test_rails),
        cmocka_unit_test(test_pause),          cmocka_unit_test(test_lossy),   cmocka_unit_test(test_overrun),
        cmocka_unit_test(test_lossy_and_late),
    };
    return cmocka_run_group_tests_name("net_credit_link", tests, NULL, NULL);
}
