/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credit.c: see credit.h.
 *
 * Happy path: take adds to the own slot, then sums all slots; above the limit it takes back what it added. So
 * two processes that take at once may both be refused, but never both be granted too much. done subtracts and
 * adds up what was delivered; a caller that finds no other process adapting closes the window when it is long
 * enough.
 *
 *   base    Only a request that was alone on the rail shows the path's own delay: under load the answer takes
 *           in flight / rate, and a limit computed from that would feed itself. Batches begin with such a
 *           request; where none comes for BASE_NS, the rail is drained for a moment to get one.
 *   limit   4 × rate × base: one product is on its way, the rest covers the turn-around of both sides.
 *   queue   Where the path is fast, at least what a queue in front of a link of that rate holds: half a
 *           millisecond of it from 0.5 GB/s on, and by the square of the rate less below. A request costs its
 *           wake-ups whatever it carries, and a link that is as fast as the CPUs is limited by them.
 *   stalls  Where nothing comes for 20 ms, and four times what an answer takes, a process stood still, not
 *           the path. Its window is not judged, once in 100 ms of others: a pause of 200 ms would fade the
 *           rate to a tenth.
 *   boost   1 where that keeps the path busy. Servers or readers that do not get their CPU in time leave the
 *           link idle. Where less comes than before, more is asked for: half as much again every 20 ms, up to
 *           16 times as much.
 *   losses  Servers report how many segments they retransmitted. If an answer waited long in that time, or
 *           they are many, a ceiling is drawn at 0.7 of what was allowed before the wait; rate and limit fade
 *           within it. It is raised by a quarter after a pause, which doubles when another loss follows
 *           within a minute: trying is rare because a lost tail costs a retransmission timeout (200 ms). A
 *           few losses without a wait draw none: other traffic on the path causes some, and 0.7 for each
 *           ended at 8 KiB, a tenth of the link. Nor do losses beside a reader that stood still: the answers
 *           it finds, several at once, waited for nothing.
 *
 * Fairness: each process that wants credit gets limit / their number at most. One that holds none and waits
 * longest goes first; one that has not asked again for WANT_NS (it may be stopped) is skipped.
 */
#include "net/flow/credit.h"

#include "base/clock.h"
#include "leat/error.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#define MAGIC           0x7264634cu /* "Lcdr" */
#define VERSION         6u
#define STAGES          4u
#define SLICES          2u
#define SLICES_LARGE    4u
#define LIMIT_MIN       (8 * KIB)  /* below a ceiling */
#define LIMIT_FLOOR     (32 * KIB) /* 23 packets: queues of 30 take them from eight servers at once */
#define LIMIT_START     (32 * KIB)
#define LIMIT_SAME_HOST (4 * MIB)
#define LIMIT_MAX       (64 * MIB)
#define QUEUE_NS        500000.0
#define QUEUE_RATE      5e8  /* bytes a second: from here on links have switches with room for QUEUE_NS */
#define QUEUE_SURE      0.25 /* share of that room that is free whatever the other traffic */
/* More of it falls out of the caches between server and reader where they share them. */
#define QUEUE_MAX       (2 * MIB)
#define BOOSTED_MAX     (2 * MIB)   /* more bytes do not help where CPU is short */
#define SLICE_LARGE     (512 * KIB) /* from here on four at a time, so that each of several servers has one */
#define SHARE_NS        250000.0
#define SHARE_MIN       (16 * KIB)
#define SHARE_MAX       (64 * KIB)
#define SLICE_ALIGN     64u /* a line of the cache */
#define CREDIT_BUSY_MAX 64u /* bound on what another process may claim */
#define WINDOW_NS       (5 * NS_PER_MS)
#define JUDGE_NS        (20 * NS_PER_MS)
#define PROBES_FIRST    8u
#define PROBE_NS        (100 * NS_PER_MS) /* interval of small requests among those that are alone */
#define IDLE_NS         (1 * NS_PER_S)
#define BASE_NS         (10 * NS_PER_S)
#define DRAIN_NS        (200 * NS_PER_MS) /* longest drain before the old base is kept */
#define STALL_NS        (20 * NS_PER_MS)  /* nothing came for so long, though something was asked for */
#define STALL_TIMES     4.0               /* and for so many times the longest answer */
#define MOVED_NS        (100 * NS_PER_MS) /* between two stalls that are forgotten */
#define WANT_NS         (20 * NS_PER_MS)
#define HELD_NS         (1 * NS_PER_S)    /* no progress for so long: it is stopped, or its server is */
#define LOSS_NS         (300 * NS_PER_MS) /* reports of one loss come from several servers, after a timeout */
#define HIGH_NS         (2 * LOSS_NS)     /* between asking for too much and the report of its loss */
/* An answer that took so long, and STALL_TIMES the usual time, waited for something. */
#define SLOW_NS          (5 * NS_PER_MS)
#define TOLD_NS          (20 * NS_PER_MS) /* after which losses are reported (losses.h) */
#define LOSSY            128u             /* one lost segment in so many is always too much */
#define LOSSY_MIN        8u               /* with at least so many lost */
#define SEGMENT          1448u            /* payload bytes of one, about */
#define BOOST_ONE        1024u
#define BOOST_MAX        (16 * BOOST_ONE)
#define PAUSE_MIN_NS     (2 * NS_PER_S)
#define PAUSE_MAX_NS     (64 * NS_PER_S)

#define load(at)         atomic_load_explicit(at, memory_order_relaxed)
#define store(at, value) atomic_store_explicit(at, value, memory_order_relaxed)

/* --- tables ------------------------------------------------------------------------------------------------------ */

static void table_init(struct credit_table *t)
{
    t->magic = MAGIC;
    t->version = VERSION;
    for (unsigned i = 0; i < CREDIT_RAILS; i++)
        store(&t->rails[i].limit_bytes, LIMIT_START);
}

int credit_table_new(int *ret_fd, struct credit_table **ret_table)
{
    AUTO_CLOSE int fd = memfd_create("leat-credits", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, sizeof(struct credit_table)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    void *at =
        mmap(NULL, sizeof(struct credit_table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    table_init(at);
    *ret_table = at;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int credit_table_map(int fd, struct credit_table **ret_table)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &st) < 0 || seals < 0)
        return -errno;
    if (st.st_size != (off_t)sizeof(struct credit_table) || !(seals & F_SEAL_SHRINK))
        return LEAT_CORRUPT;
    struct credit_table *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (t == MAP_FAILED)
        return -errno;
    if (t->magic != MAGIC || t->version != VERSION) {
        munmap(t, sizeof(*t));
        return LEAT_CORRUPT;
    }
    *ret_table = t;
    return 0;
}

void credit_table_unmap(struct credit_table *table)
{
    if (table)
        munmap(table, sizeof(*table));
}

static uint32_t used(const struct credit_rail *r)
{
    return MIN(load(&r->slots_used), CREDIT_SLOTS);
}

static void wake_all(struct credit_rail *r)
{
    atomic_fetch_add(&r->wake, 1);
    syscall(SYS_futex, &r->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void credit_slot_clear(struct credit_table *table, unsigned slot)
{
    for (unsigned i = 0; i < CREDIT_RAILS; i++) {
        struct credit_rail *r = &table->rails[i];
        struct credit_slot *s = &r->slots[slot];
        bool held = atomic_exchange(&s->in_flight_bytes, 0) != 0;
        store(&s->want_since_ns, 0);
        store(&s->busy, 0);
        uint32_t mine = slot + 1;
        atomic_compare_exchange_strong(&r->adapting, &mine, 0);
        if (held)
            wake_all(r);
    }
}

void credit_slot_begin(struct credit_table *table, unsigned slot)
{
    for (unsigned i = 0; i < CREDIT_RAILS; i++) {
        struct credit_rail *r = &table->rails[i];
        uint32_t was = load(&r->slots_used);
        while (was <= slot && !atomic_compare_exchange_weak(&r->slots_used, &was, slot + 1))
            ;
    }
}

/* --- one user of a rail --------------------------------------------------------------------------------------------- */

int credit_init(struct credit *c, struct credit_table *table, unsigned slot, unsigned rail,
                uint64_t fixed_limit_bytes, bool same_host)
{
    *c = (struct credit){.fixed_limit_bytes = fixed_limit_bytes, .floor_bytes = LIMIT_FLOOR};
    if (!table || same_host || slot >= CREDIT_SLOTS || rail >= CREDIT_RAILS) {
        c->own = aligned_alloc(64, sizeof(*c->own));
        if (!c->own)
            return -ENOMEM;
        memset(c->own, 0, sizeof(*c->own));
        table_init(c->own);
        table = c->own;
        slot = rail = 0;
        credit_slot_begin(table, slot);
    }
    c->rail = &table->rails[rail];
    c->slot = slot;
    if (same_host) {
        c->floor_bytes = LIMIT_SAME_HOST;
        store(&c->rail->limit_bytes, LIMIT_SAME_HOST);
    }
    return 0;
}

void credit_fini(struct credit *c)
{
    if (!c->rail)
        return;
    if (c->in_flight_bytes)
        credit_done(c, c->in_flight_bytes, 0, false, clock_now_ns());
    credit_rest(c);
    free(c->own);
    *c = (struct credit){0};
}

uint64_t credit_limit(const struct credit *c)
{
    if (c->fixed_limit_bytes)
        return c->fixed_limit_bytes;
    uint64_t limit = load(&c->rail->limit_bytes);
    return limit < LIMIT_MIN ? LIMIT_MIN : MIN(limit, (uint64_t)LIMIT_MAX);
}

static uint64_t stage_of(uint64_t limit)
{
    uint64_t stage = limit / SLICES;
    if (stage > SLICE_LARGE)
        stage = MAX(limit / SLICES_LARGE, (uint64_t)SLICE_LARGE);
    stage = MAX(stage, (uint64_t)CREDIT_PIECE_MIN);
    stage = MIN(stage, (uint64_t)CREDIT_PIECE_MAX);
    stage = MIN(stage, limit);
    return MAX(stage, 1ull);
}

uint64_t credit_piece_bytes(const struct credit *c)
{
    return stage_of(credit_limit(c));
}

/* Neither a stage plus the rest, nor slightly more than a stage: two such requests may not fit the limit, and
 * the link would idle between them. */
uint64_t credit_share(const struct credit *c)
{
    uint64_t rate = load(&c->rail->rate_bytes_per_s);
    uint64_t bytes = rate ? (uint64_t)((double)rate * SHARE_NS / 1e9) : SHARE_MAX;
    return MIN(MAX(bytes, (uint64_t)SHARE_MIN), (uint64_t)SHARE_MAX);
}

uint64_t credit_slice(uint64_t stage, uint64_t bytes)
{
    if (bytes <= stage)
        return bytes;
    uint64_t parts = (bytes + stage - 1) / stage;
    return MIN(align_up((bytes + parts - 1) / parts, SLICE_ALIGN), stage);
}

static bool is_probe(uint64_t bytes)
{
    return bytes <= 2 * CREDIT_PIECE_MIN;
}

uint64_t credit_request(const struct credit *c, uint64_t now_ns)
{
    const struct credit_rail *r = c->rail;
    uint64_t stamp = load(&r->base_stamp_ns);
    bool due = !stamp || load(&r->probes) < PROBES_FIRST || now_ns - MIN(stamp, now_ns) > BASE_NS ||
               now_ns - MIN(load(&r->probe_ns), now_ns) > PROBE_NS;
    if (c->fixed_limit_bytes || c->floor_bytes == LIMIT_SAME_HOST || !due ||
        load(&r->slots[c->slot].in_flight_bytes))
        return credit_piece_bytes(c);
    return MIN(credit_piece_bytes(c), CREDIT_PIECE_MIN);
}

bool credit_measured(const struct credit *c)
{
    return load(&c->rail->rate_bytes_per_s) != 0;
}

/* --- adapting -------------------------------------------------------------------------------------------------------- */

static bool adapt_begin(struct credit *c)
{
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong_explicit(&c->rail->adapting, &nobody, c->slot + 1,
                                                   memory_order_acquire, memory_order_relaxed);
}

static void adapt_end(struct credit *c)
{
    atomic_store_explicit(&c->rail->adapting, 0, memory_order_release);
}

static void window_open(struct credit_rail *r, uint64_t now_ns)
{
    r->window_start_ns = now_ns;
    r->window_delivered = load(&r->delivered_bytes);
    r->idle_since_ns = 0;
}

/* How long an answer takes with all that may be in flight ahead of it. */
static double usual_ns(const struct credit *c)
{
    double rate = (double)load(&c->rail->rate_bytes_per_s), base = (double)load(&c->rail->base_ns);
    double drained = (double)credit_limit(c) * 1e9 / MAX(rate, 1.0);
    return MAX(base, drained);
}

/*
 * A stopped machine, reader or server says nothing about the path, so the window begins again. What is still
 * in flight does not count in it: it may lie in a socket and arrive at once. Returns true for such a stall.
 * False if the rail has hardly moved since the last one: a path on which every answer takes as long has
 * become slow.
 */
static bool forget_stall(struct credit *c, uint64_t in_flight_bytes, uint64_t now_ns)
{
    struct credit_rail *r = c->rail;
    uint64_t since = r->moved_at_ns, gap = now_ns - MIN(since, now_ns);
    r->moved_at_ns = now_ns;
    if (!since || r->moved_ns < MOVED_NS || gap < STALL_NS || (double)gap < STALL_TIMES * usual_ns(c))
        return false;
    r->moved_ns = 0;
    window_open(r, now_ns);
    r->window_delivered += MIN(in_flight_bytes, (uint64_t)LIMIT_MAX);
    return true;
}

/*
 * Notes an answer that waited long. If several were out and nothing came for as long, the reader or the
 * servers were stopped, and the path was not the cause. Beside a few losses caused by other traffic such a
 * wait would look like too much in flight; if several losses are reported right then, it is.
 */
static void note_slow(struct credit *c, uint64_t rtt_ns, bool several, uint64_t now_ns)
{
    uint64_t gap = now_ns - MIN(c->moved_ns, now_ns), lost = load(&c->rail->lost_segments);
    c->moved_ns = now_ns;
    if (unlikely(now_ns - MIN(c->stood_ns, now_ns) < TOLD_NS) && lost >= c->stood_lost + 2)
        store(&c->rail->slow_ns, now_ns);
    if (likely(rtt_ns <= SLOW_NS) || (double)rtt_ns <= STALL_TIMES * usual_ns(c))
        return;
    if (several && gap > SLOW_NS && (double)gap > STALL_TIMES * usual_ns(c)) {
        c->stood_ns = now_ns;
        c->stood_lost = lost;
    }
    if (now_ns - MIN(rtt_ns, now_ns) >= c->stood_ns)
        store(&c->rail->slow_ns, now_ns);
}

/* Time without requests says nothing about the path, and is cut out of a window. */
static void window_pause(struct credit_rail *r, uint64_t now_ns)
{
    r->idle_since_ns = now_ns;
    r->idle_delivered = load(&r->delivered_bytes);
}

static void window_resume(struct credit_rail *r, uint64_t now_ns)
{
    uint64_t since = r->idle_since_ns;
    r->moved_at_ns = now_ns;
    if (!r->window_start_ns || !since || now_ns < since || now_ns - since > IDLE_NS) {
        window_open(r, now_ns);
        return;
    }
    r->window_start_ns += now_ns - since;
    r->window_delivered += load(&r->delivered_bytes) - r->idle_delivered; /* while no process adapted */
    r->idle_since_ns = 0;
}

static double queue_of(double rate)
{
    double bytes = rate * QUEUE_NS / 1e9 * MIN(rate / QUEUE_RATE, 1.0);
    return MIN(bytes, (double)QUEUE_MAX);
}

static void set_limit(struct credit *c)
{
    struct credit_rail *r = c->rail;
    uint32_t asked = MAX(r->boost, BOOST_ONE);
    double boost = (double)MIN(asked, BOOST_MAX) / BOOST_ONE;
    double rate = (double)load(&r->rate_bytes_per_s);
    double path = (double)STAGES * rate * (double)load(&r->base_ns) / 1e9;
    double most = MAX(path, (double)BOOSTED_MAX), boosted = MIN(path * boost, most), queue = queue_of(rate);
    double limit = MAX(boosted, queue);
    uint64_t bytes = limit < LIMIT_MAX ? (uint64_t)limit : LIMIT_MAX, ceiling = load(&r->ceiling_bytes);
    bytes = MAX(bytes, c->floor_bytes);
    if (ceiling)
        bytes = MIN(bytes, ceiling);
    store(&r->limit_bytes, bytes < LIMIT_MIN ? LIMIT_MIN : bytes);
}

/* Whether the segments lost since loss_stamp_ns show that too much was in flight: an answer waited long in
 * that time, or they are many. Other traffic on the path causes single losses, which TCP retransmits at once;
 * these say nothing. */
static bool too_much(const struct credit_rail *r, uint64_t lost, uint64_t now_ns)
{
    uint64_t delivered = load(&r->delivered_bytes);
    uint64_t segments = (delivered - MIN(r->loss_delivered, delivered)) / SEGMENT;
    bool waited = now_ns - MIN(load(&r->slow_ns), now_ns) < LOSS_NS;
    return lost && (waited || (lost > LOSSY_MIN && lost > segments / LOSSY));
}

/* A loss is reported later than it happens, when the limit may have changed already. */
static void note_high(struct credit_rail *r, uint64_t now_ns)
{
    uint64_t limit = load(&r->limit_bytes);
    if (limit < r->high_bytes / 8 * 7 && now_ns - r->high_ns < HIGH_NS)
        return;
    r->high_bytes = limit;
    r->high_ns = now_ns;
}

static void draw_ceiling(struct credit_rail *r, uint64_t now_ns)
{
    uint64_t limit = MIN(r->high_bytes, (uint64_t)LIMIT_MAX);
    uint64_t least =
        MAX((uint64_t)(queue_of((double)load(&r->rate_bytes_per_s)) * QUEUE_SURE), (uint64_t)LIMIT_MIN);
    bool again = r->ceiling_stamp_ns && now_ns - r->ceiling_stamp_ns < PAUSE_MAX_NS;
    uint64_t longer = MAX(r->ceiling_pause_ns * 2, PAUSE_MIN_NS);
    r->ceiling_pause_ns = again ? MIN(longer, PAUSE_MAX_NS) : PAUSE_MIN_NS;
    r->high_bytes = MAX(limit / 10 * 7, least);
    store(&r->ceiling_bytes, r->high_bytes);
    r->ceiling_stamp_ns = now_ns;
}

static void judge_losses(struct credit_rail *r, uint64_t now_ns)
{
    uint64_t all = load(&r->lost_segments), lost = all - MIN(r->lost_seen, all),
             ceiling = load(&r->ceiling_bytes);
    bool recent = r->ceiling_stamp_ns && now_ns - r->ceiling_stamp_ns < LOSS_NS, judged = true;
    note_high(r, now_ns);
    if (!recent && too_much(r, lost, now_ns))
        draw_ceiling(r, now_ns);
    else if (ceiling && now_ns - r->ceiling_stamp_ns > r->ceiling_pause_ns) {
        store(&r->ceiling_bytes, ceiling < LIMIT_MAX ? ceiling + ceiling / 4 : 0);
        r->ceiling_stamp_ns = now_ns;
    } else {
        /* Readers that wait for a lost segment report it only then. */
        judged = recent || now_ns - r->loss_stamp_ns > LOSS_NS;
    }
    if (!judged)
        return;
    r->lost_seen = all;
    r->loss_stamp_ns = now_ns;
    r->loss_delivered = load(&r->delivered_bytes);
}

/* Fades by 1/part for each window's length: where answers take long, windows are few. */
static uint64_t faded(uint64_t value, uint64_t part, uint64_t spent_ns)
{
    for (uint64_t n = MIN(spent_ns / WINDOW_NS, 256ull); n > 1; n--)
        value -= value / part;
    return value - value / part;
}

/* Judges stretches that are long compared to what lies in the queue. A late reader makes one short stretch
 * poor and the next rich, the more so the more is in flight. Compared to the richest of them, all others look
 * as if the path had been idle. */
static void judge_rate(struct credit_rail *r, uint64_t bytes, uint64_t spent_ns)
{
    r->judged_bytes += bytes;
    r->judged_ns += spent_ns;
    if (r->judged_ns < JUDGE_NS)
        return;
    uint64_t rate = (uint64_t)((double)r->judged_bytes * 1e9 / (double)r->judged_ns);
    uint64_t best = r->best_bytes_per_s = MAX(rate, faded(r->best_bytes_per_s, 256, r->judged_ns));
    uint32_t boost = MIN(MAX(r->boost, BOOST_ONE), BOOST_MAX);
    uint64_t ceiling = load(&r->ceiling_bytes);
    r->judged_bytes = r->judged_ns = 0;
    if (rate < best - best / 16)
        boost += ceiling && load(&r->limit_bytes) >= ceiling ? 0 : boost / 2; /* no more is to be had */
    else if (rate > best - best / 64)
        boost -= boost / 16;
    r->boost = MIN(MAX(boost, BOOST_ONE), BOOST_MAX);
}

static void take_base(struct credit_rail *r, uint64_t bytes, uint64_t rtt_ns, uint64_t now_ns)
{
    uint64_t rate = load(&r->rate_bytes_per_s), base = load(&r->base_ns), stamp = load(&r->base_stamp_ns);
    uint64_t own_ns = rate ? (uint64_t)((double)bytes * 1e9 / (double)rate) : 0;
    /* Half of it at least: the rate may still be far too low. A faster answer waited for nothing. */
    uint64_t found = rtt_ns <= own_ns ? rtt_ns : MAX(rtt_ns - own_ns, rtt_ns / 2);
    found = MAX(found, 1000ull);
    if (is_probe(bytes) && load(&r->probes) < PROBES_FIRST)
        atomic_fetch_add_explicit(&r->probes, 1, memory_order_relaxed);
    /* A large request may show that the base is less, not that it is more. */
    uint64_t age_ns = now_ns - MIN(stamp, now_ns);
    if (!base || !stamp || found <= base ||
        (is_probe(bytes) ? age_ns > BASE_NS : age_ns > 2 * BASE_NS && stamp)) {
        store(&r->base_ns, found);
        store(&r->base_stamp_ns, rate ? now_ns : 0); /* without a rate, judged again when there is one */
        store(&r->base_bytes, bytes);
    }
}

static void window_close(struct credit *c, uint64_t now_ns)
{
    struct credit_rail *r = c->rail;
    uint64_t spent_ns = now_ns > r->window_start_ns ? now_ns - r->window_start_ns : 0;
    uint64_t delivered = load(&r->delivered_bytes), bytes = delivered - MIN(r->window_delivered, delivered);
    r->moved_ns = MIN(r->moved_ns + spent_ns, MOVED_NS);
    if (spent_ns) {
        uint64_t rate = (uint64_t)((double)bytes * 1e9 / (double)spent_ns), old = load(&r->rate_bytes_per_s);
        store(&r->rate_bytes_per_s, MAX(rate, faded(old, 16, spent_ns)));
        judge_rate(r, bytes, spent_ns);
        if (rate && !load(&r->base_stamp_ns))
            take_base(r, MIN(load(&r->base_bytes), LIMIT_MAX), load(&r->base_ns), now_ns);
    }
    judge_losses(r, now_ns);
    set_limit(c);
    window_open(r, now_ns);
}

/* --- taking and giving back ------------------------------------------------------------------------------------------- */

struct look { /* at the other slots of the rail */
    uint64_t bytes;
    unsigned wanting;
    bool older; /* one that holds nothing waits for longer than this one */
};

static struct look look_at_others(const struct credit *c, uint64_t now_ns)
{
    const struct credit_rail *r = c->rail;
    uint64_t my_want_ns = load(&r->slots[c->slot].want_since_ns);
    struct look l = {0};
    for (uint32_t i = 0, n = used(r); i < n; i++) {
        const struct credit_slot *s = &r->slots[i];
        if (i == c->slot)
            continue;
        uint64_t held = atomic_load(&s->in_flight_bytes), since = load(&s->want_since_ns);
        if (now_ns - MIN(load(&s->moved_ns), now_ns) > HELD_NS)
            held = 0;
        bool wants = since && now_ns - MIN(load(&s->want_seen_ns), now_ns) < WANT_NS;
        l.bytes += MIN(held, (uint64_t)LIMIT_MAX * 2); /* a sum that cannot wrap */
        l.wanting += held || wants;
        l.older |= wants && !held && (!my_want_ns || since < my_want_ns);
    }
    return l;
}

static void busy_begin(struct credit *c)
{
    if (!c->busy)
        atomic_fetch_add_explicit(&c->rail->slots[c->slot].busy, 1, memory_order_relaxed);
    c->busy = true;
}

static void busy_end(struct credit *c)
{
    struct credit_slot *s = &c->rail->slots[c->slot];
    uint32_t was = load(&s->busy);
    if (!c->busy)
        return;
    c->busy = false;
    while (was && !atomic_compare_exchange_weak(&s->busy, &was, was - 1))
        ;
}

/* The base is old: all processes wait until the rail is empty, for one request alone. This repeats each
 * BASE_NS if no such request completed, as when a server was stopped just then. */
static bool draining(const struct credit_rail *r, uint64_t now_ns)
{
    uint64_t stamp = load(&r->base_stamp_ns), age = now_ns > stamp ? now_ns - stamp : 0;
    return stamp && age > BASE_NS && age % BASE_NS < DRAIN_NS;
}

bool credit_take(struct credit *c, uint64_t bytes, uint64_t now_ns, bool *ret_alone)
{
    struct credit_rail *r = c->rail;
    struct credit_slot *s = &r->slots[c->slot];
    *ret_alone = false;
    if (c->fixed_limit_bytes) {
        if (c->in_flight_bytes && c->in_flight_bytes + bytes > c->fixed_limit_bytes)
            return false;
        store(&s->moved_ns, now_ns);
        atomic_fetch_add(&s->in_flight_bytes, bytes);
        c->in_flight_bytes += bytes;
        return true;
    }
    const uint64_t limit = credit_limit(c);
    if (!c->in_flight_bytes)
        c->moved_ns = now_ns;
    busy_begin(c);
    store(&s->moved_ns, now_ns); /* first: a process that sees the bytes counts them */
    uint64_t mine = atomic_fetch_add(&s->in_flight_bytes, bytes) + bytes;
    struct look others = look_at_others(c, now_ns);
    uint64_t total = mine + others.bytes, share = MAX(limit / (others.wanting + 1), stage_of(limit));
    /* Each busy user of this process has the same share of it. */
    uint32_t busy = MIN(load(&s->busy), CREDIT_BUSY_MAX);
    uint64_t each = share / (busy ? busy : 1), own_share = MAX(each, stage_of(limit));
    bool sole_op = total == bytes;
    if (!sole_op && (total > limit || others.older || (others.wanting && mine != bytes && mine > share) ||
                     (c->in_flight_bytes && c->in_flight_bytes + bytes > own_share) || draining(r, now_ns))) {
        if (!load(&s->want_since_ns))
            store(&s->want_since_ns, now_ns);
        store(&s->want_seen_ns, now_ns);
        /* Last: a process that gives back from now on sees that this one waits */
        atomic_fetch_sub(&s->in_flight_bytes, bytes);
        return false;
    }
    store(&s->want_since_ns, 0);
    c->in_flight_bytes += bytes;
    if (total > load(&r->peak_bytes))
        store(&r->peak_bytes, total);
    if (sole_op && is_probe(bytes))
        store(&r->probe_ns, now_ns);
    if (sole_op && adapt_begin(c)) {
        window_resume(r, now_ns);
        adapt_end(c);
    }
    *ret_alone = sole_op;
    return true;
}

void credit_done(struct credit *c, uint64_t bytes, uint64_t rtt_ns, bool sole_op, uint64_t now_ns)
{
    struct credit_rail *r = c->rail;
    struct credit_slot *s = &r->slots[c->slot];
    uint64_t held = atomic_load(&s->in_flight_bytes);
    bool several = c->in_flight_bytes > bytes;
    bytes = MIN(bytes, c->in_flight_bytes);
    c->in_flight_bytes -= bytes;
    while (!atomic_compare_exchange_weak(&s->in_flight_bytes, &held, held - MIN(held, bytes)))
        ;
    atomic_fetch_add_explicit(&r->delivered_bytes, rtt_ns ? bytes : 0, memory_order_relaxed);
    store(&s->moved_ns, now_ns);
    struct look others = look_at_others(c, now_ns);
    if (others.wanting || load(&s->want_since_ns)) /* also another view of this process, in the same slot */
        wake_all(r);
    if (c->fixed_limit_bytes || !rtt_ns)
        return;
    note_slow(c, rtt_ns, several, now_ns);
    if (!adapt_begin(c)) {
        if (sole_op)
            take_base(r, bytes, rtt_ns, now_ns);
        return;
    }
    uint64_t in_flight = held - MIN(held, bytes) + others.bytes;
    if (!forget_stall(c, in_flight, now_ns) && sole_op)
        take_base(r, bytes, rtt_ns, now_ns);
    uint64_t spent_ns = now_ns - MIN(r->window_start_ns, now_ns);
    /* Never a shorter one: a late reader takes what waits in its sockets in no time. */
    if (r->window_start_ns && load(&r->base_ns) && spent_ns >= MAX(WINDOW_NS, 2 * load(&r->base_ns)))
        window_close(c, now_ns);
    if (!in_flight)
        window_pause(r, now_ns);
    adapt_end(c);
}

void credit_rest(struct credit *c)
{
    struct credit_rail *r = c->rail;
    if (!r)
        return;
    if (!c->in_flight_bytes)
        busy_end(c);
    if (load(&r->slots[c->slot].want_since_ns) && !load(&r->slots[c->slot].busy)) {
        store(&r->slots[c->slot].want_since_ns, 0);
        wake_all(r);
    }
}

void credit_lost(struct credit *c, uint64_t segments)
{
    if (segments && !c->fixed_limit_bytes)
        atomic_fetch_add_explicit(&c->rail->lost_segments, segments, memory_order_relaxed);
}

void credit_wait(struct credit *c, int timeout_ms)
{
    struct timespec t = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000l};
    uint32_t seen = atomic_load(&c->rail->wake);
    if (atomic_load(&c->rail->slots[c->slot].in_flight_bytes) || look_at_others(c, clock_now_ns()).bytes)
        syscall(SYS_futex, &c->rail->wake, FUTEX_WAIT, seen, &t, NULL, 0);
}
