/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripe.c: see stripe.h.
 *
 * A rate is a mean that fades: of bytes per stretch in which the path was always busy, each new stretch
 * counting a quarter. Not a maximum: a rail that slows down must lose its share within a few stretches. A
 * stretch of one small slice shows latency more than rate, so short ones are joined. Failure modes: none;
 * numbers saturate.
 */
#include "net/flow/stripe.h"

#include "base/clock.h"

#define WINDOW_NS     (2 * NS_PER_MS)
#define WINDOW_MAX_NS (20 * NS_PER_MS)
#define WINDOW_BYTES  (256 * KIB)
#define AGE_NS        (20 * NS_PER_MS)
#define PAUSE_MIN_NS  (1 * NS_PER_S)
#define PAUSE_MAX_NS  (32 * NS_PER_S)

/* For an unmeasured path: its link's rate, else the best of the others', else all are equal. */
static uint64_t believed(const struct stripe_path *paths, unsigned n, const struct stripe_path *p)
{
    if (p->rate_bytes_per_s)
        return p->rate_bytes_per_s;
    uint64_t best = 0;
    for (unsigned i = 0; i < n; i++)
        best = MAX(best, paths[i].rate_bytes_per_s);
    if (p->nominal_bytes_per_s && !best)
        return p->nominal_bytes_per_s;
    return best ? best : 1000000000ull;
}

/* Rates that differ by less than a quarter, or by half where the path could have done more, count as equal:
 * the difference is noise, and the path with more work looks faster. */
static double seconds(const struct stripe_path *paths, unsigned n, const struct stripe_path *p,
                      uint64_t bytes)
{
    uint64_t best = 0, rate = believed(paths, n, p);
    for (unsigned i = 0; i < n; i++)
        if (!paths[i].down)
            best = MAX(best, believed(paths, n, &paths[i]));
    if (rate > best - best / (p->spare ? 2 : 4))
        rate = best;
    return (double)(p->out_bytes + bytes) / (double)rate + (double)p->penalty_ns / 1e9;
}

double stripe_seconds(const struct stripe_path *paths, unsigned n, unsigned path, uint64_t bytes)
{
    return seconds(paths, n, &paths[path], bytes);
}

static void age(struct stripe_path *paths, unsigned n, uint64_t now_ns)
{
    uint64_t best = 0;
    for (unsigned i = 0; i < n; i++)
        best = MAX(best, paths[i].down ? 0 : paths[i].rate_bytes_per_s);
    for (unsigned i = 0; i < n; i++) {
        struct stripe_path *p = &paths[i];
        if (!p->rate_bytes_per_s || p->out_bytes || now_ns < p->measured_ns + AGE_NS)
            continue;
        p->rate_bytes_per_s =
            MIN(p->rate_bytes_per_s + p->rate_bytes_per_s / 4 + 1, MAX(best, p->rate_bytes_per_s));
        p->measured_ns = now_ns;
    }
}

int stripe_choose(struct stripe_path *paths, unsigned n, uint64_t bytes, uint64_t now_ns)
{
    int best = -1;
    double best_s = 0;
    age(paths, n, now_ns);
    for (unsigned i = 0; i < n; i++) {
        const struct stripe_path *p = &paths[i];
        if (p->down)
            continue;
        double s = seconds(paths, n, p, bytes);
        /* Of two equal paths the one that rested longer. */
        if (best < 0 || s < best_s || (s == best_s && p->idle_since_ns < paths[best].idle_since_ns)) {
            best = (int)i;
            best_s = s;
        }
    }
    return best;
}

void stripe_sent(struct stripe_path *p, uint64_t bytes, uint64_t now_ns)
{
    if (p->out_bytes == 0 && p->window_bytes == 0)
        p->window_start_ns = now_ns;
    else if (p->out_bytes == 0) /* time without work is cut out of the stretch */
        p->window_start_ns += now_ns - MIN(now_ns, p->idle_since_ns);
    p->out_bytes += bytes;
}

/* Whether a stretch is over: its rate. */
static bool measured(const struct stripe_path *p, uint64_t now_ns, uint64_t *ret_rate)
{
    uint64_t spent_ns = now_ns > p->window_start_ns ? now_ns - p->window_start_ns : 0;
    bool enough = spent_ns >= WINDOW_NS && p->window_bytes >= WINDOW_BYTES;
    if (!enough && spent_ns < WINDOW_MAX_NS)
        return false;
    *ret_rate = (uint64_t)((double)p->window_bytes * 1e9 / (double)spent_ns);
    return true;
}

static void next_stretch(struct stripe_path *p, uint64_t now_ns)
{
    p->window_start_ns = now_ns;
    p->window_bytes = 0;
    p->measured_ns = now_ns;
    p->spare = p->ran_dry;
    p->ran_dry = false;
    p->pause_ns = 0; /* it works: the next failure is a first one */
}

void stripe_done(struct stripe_path *p, uint64_t bytes, uint64_t now_ns)
{
    uint64_t rate;
    p->out_bytes -= MIN(bytes, p->out_bytes);
    p->window_bytes += bytes;
    p->ran_dry |= p->out_bytes == 0;
    p->total_bytes += bytes;
    if (measured(p, now_ns, &rate)) {
        uint64_t old = p->rate_bytes_per_s;
        /* A path that ran dry had no more to do, or waited for the server or for us: it counts as slower only
         * if by far. */
        unsigned share = rate > old ? 2 : !p->ran_dry ? 4 : rate < old / 4 ? 16 : 0;
        p->rate_bytes_per_s = MAX(!old ? rate : share ? old - old / share + rate / share : old, 1ull);
        next_stretch(p, now_ns);
    }
    p->idle_since_ns = now_ns;
}

void stripe_came(struct stripe_path *p, uint64_t bytes, uint64_t now_ns)
{
    p->out_bytes -= MIN(bytes, p->out_bytes);
    p->window_bytes += bytes;
    p->total_bytes += bytes;
    p->idle_since_ns = now_ns;
    p->came = true;
}

/* A path with spare time could have done more: its rate is at least what it did, and rises by an eighth, up
 * to the best. */
static uint64_t turn_rate(const struct stripe_path *p, uint64_t rate, uint64_t best)
{
    uint64_t old = p->rate_bytes_per_s;
    if (!p->ran_dry)
        return !old ? rate : rate > old ? old - old / 2 + rate / 2 : old - old / 4 + rate / 4;
    return !old ? 0 : rate > old ? old - old / 2 + rate / 2 : MIN(old + old / 8 + 1, MAX(best, old));
}

void stripe_turn(struct stripe_path *paths, unsigned n, uint64_t now_ns)
{
    unsigned busy = 0, dry = 0;
    uint64_t best = 0, rate;
    for (unsigned i = 0; i < n; i++) {
        busy += paths[i].out_bytes > 0;
        dry += paths[i].came && paths[i].out_bytes == 0;
        best = MAX(best, paths[i].down ? 0 : paths[i].rate_bytes_per_s);
    }
    for (unsigned i = 0; i < n; i++) {
        struct stripe_path *p = &paths[i];
        if (!p->came)
            continue;
        p->came = false;
        p->ran_dry |= p->out_bytes == 0 && busy + dry > 1;
        if (!measured(p, now_ns, &rate))
            continue;
        p->rate_bytes_per_s = turn_rate(p, MAX(rate, 1ull), best);
        next_stretch(p, now_ns);
    }
}

void stripe_missed(struct stripe_path *p, uint64_t bytes, uint64_t now_ns)
{
    p->out_bytes -= MIN(bytes, p->out_bytes);
    p->idle_since_ns = now_ns;
}

void stripe_failed(struct stripe_path *p, uint64_t now_ns)
{
    p->pause_ns = p->pause_ns ? MIN(p->pause_ns * 2, PAUSE_MAX_NS) : PAUSE_MIN_NS;
    p->down = true;
    p->down_until_ns = now_ns + p->pause_ns;
    p->out_bytes = p->window_bytes = 0;
    p->rate_bytes_per_s = 0;
}

bool stripe_try(const struct stripe_path *p, uint64_t now_ns)
{
    return p->down && now_ns >= p->down_until_ns;
}

void stripe_up(struct stripe_path *p)
{
    p->down = false;
    p->down_until_ns = 0;
}
