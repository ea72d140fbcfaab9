/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.c: how many bytes a batch may have in flight, over all servers together.
 *
 *   limit = 2 × rate × shortest round trip (bytes), asked for in `stages` steps of stage_bytes each.
 *
 * Rate is the best delivery rate of recent windows, delay the shortest round trip of the last ten seconds: together the
 * bytes that the path itself holds. Twice that keeps it busy while the receiver turns around; more only queues in
 * front of the receiver, which is what incast is.
 *
 * Failure modes: completions that never come leave in_flight_bytes up; the caller reports them with sched_done when the
 * operation ends for whatever reason. Invariants: in flight = sent - done; with nothing in flight something may
 * always be sent; the limit stays within [floor_bytes, LIMIT_MAX] unless the user fixed it.
 * docs/decisions/0020-inflight-limit.md tells how this came about.
 */
#include "client/client.h"

#include "base/clock.h"

#define STAGES          4u
#define STAGE_MIN       (64 * KIB)
#define STAGE_MAX       (1 * MIB)
#define LIMIT_MIN       (STAGES * STAGE_MIN)
#define LIMIT_START     (1 * MIB)
#define LIMIT_SAME_HOST (4 * MIB)
#define LIMIT_MAX       (64 * MIB)
#define RTT_WINDOW_NS   (10 * NS_PER_S)
#define RATE_WINDOW_NS  (5 * NS_PER_MS)

static void set_limit(struct sched *s, uint64_t limit_bytes)
{
    s->limit_bytes = limit_bytes;
    uint64_t stage = MAX(limit_bytes / s->stages, STAGE_MIN);
    stage = MIN(stage, STAGE_MAX);
    stage = MIN(stage, limit_bytes);
    s->stage_bytes =
        MAX(stage, 1ull); /* a limit below one stage: one request at a time, of the limit's size */
}

void sched_init(struct sched *s, uint64_t fixed_limit_bytes)
{
    *s = (struct sched){.stages = STAGES, .fixed_limit_bytes = fixed_limit_bytes, .floor_bytes = LIMIT_MIN};
    set_limit(s, fixed_limit_bytes ? fixed_limit_bytes : LIMIT_START);
}

/* Twice rate × delay is a few hundred KiB on loopback, in requests of 64 KiB: it has no queue to overrun, and each request costs
 * two wake-ups. With 4 MiB, batches of 4 MiB came at 9.2 GB/s instead of 5.9 (bench/run read --only tcp.64k). */
void sched_same_host(struct sched *s)
{
    s->floor_bytes = LIMIT_SAME_HOST;
    if (!s->fixed_limit_bytes)
        set_limit(s, LIMIT_SAME_HOST);
}

uint64_t sched_grant(const struct sched *s)
{
    if (s->in_flight_bytes == 0)
        return MAX(s->limit_bytes, s->stage_bytes);
    if (s->in_flight_bytes >= s->limit_bytes)
        return 0;
    uint64_t room = s->limit_bytes - s->in_flight_bytes;
    return room >= s->stage_bytes ? room : 0; /* whole stages: many small requests cost more than they hide */
}

void sched_sent(struct sched *s, uint64_t bytes)
{
    s->in_flight_bytes += bytes;
}

/* The delivery rate of a stretch in which something was always in flight. */
static void window_close(struct sched *s, uint64_t now_ns)
{
    uint64_t spent_ns = now_ns - s->window_start_ns;
    if (spent_ns > 0) {
        uint64_t rate = (uint64_t)((double)s->window_bytes * 1e9 / (double)spent_ns);
        uint64_t faded = s->rate_bytes_per_s - s->rate_bytes_per_s / 16;
        s->rate_bytes_per_s = MAX(rate, faded);
    }
    s->window_start_ns = now_ns;
    s->window_bytes = 0;
    if (s->fixed_limit_bytes || !s->rate_bytes_per_s || !s->min_rtt_ns)
        return;
    double bdp = (double)s->rate_bytes_per_s * (double)s->min_rtt_ns / 1e9;
    double limit = MIN(2 * bdp, (double)LIMIT_MAX);
    set_limit(s, MAX((uint64_t)limit, s->floor_bytes));
}

void sched_done(struct sched *s, uint64_t bytes, uint64_t rtt_ns, uint64_t now_ns)
{
    s->in_flight_bytes -= MIN(bytes, s->in_flight_bytes);
    if (!s->min_rtt_ns || rtt_ns <= s->min_rtt_ns || now_ns - s->rtt_stamp_ns > RTT_WINDOW_NS) {
        s->min_rtt_ns = MAX(rtt_ns, 1ull);
        s->rtt_stamp_ns = now_ns;
    }
    if (!s->window_start_ns) /* the first since the path was idle: the stretch began when it was sent */
        s->window_start_ns = now_ns > rtt_ns ? now_ns - rtt_ns : 1;
    s->window_bytes += bytes;
    bool idle = s->in_flight_bytes == 0;
    if (now_ns - s->window_start_ns >= MAX(RATE_WINDOW_NS, 2 * s->min_rtt_ns) ||
        (idle && s->window_bytes >= s->limit_bytes))
        window_close(s, now_ns);
    if (idle) { /* time with nothing asked for says nothing about the path */
        s->window_start_ns = 0;
        s->window_bytes = 0;
    }
}
