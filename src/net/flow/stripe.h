/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripe.h: which of several paths to a node the next slice takes: the one that is predicted to bring it first.
 *
 *   finish = (bytes asked for on the path and not here yet + the slice) / the path's rate + its penalty
 *
 * Rates are measured while a path is busy; before that the link's nominal one is believed. The estimate of an
 * unmeasured path rises slowly, or a path that looked slow once would never be tried again. A path that fails
 * is left at once and tried again after a pause, which doubles from 1 to 32 s with each further failure.
 * Pure: the caller gives the time and owns the paths; one thread at a time. Reasons:
 * docs/decisions/0051-rails.md.
 */
#ifndef NET_FLOW_STRIPE_H
#define NET_FLOW_STRIPE_H

#include "base/base.h"

struct stripe_path {
    uint64_t nominal_bytes_per_s; /* 0: unknown */
    uint64_t penalty_ns;          /* of a rail on another NUMA node than the destination */
    /* this module's */
    uint64_t out_bytes;
    uint64_t rate_bytes_per_s; /* measured; 0: not yet */
    uint64_t down_until_ns, pause_ns;
    uint64_t window_start_ns, window_bytes;
    uint64_t measured_ns;   /* when the rate was measured, or raised, last */
    uint64_t idle_since_ns; /* with nothing out */
    uint64_t total_bytes;   /* that came over it */
    bool down;
    bool ran_dry, spare; /* nothing was out on it for a while in this stretch; in the one before */
    bool came;           /* bytes, since the last turn */
};

/* What crossing from one NUMA node to the other costs a slice: some microseconds of the interconnect's queue. */
#define STRIPE_NUMA_PENALTY_NS 5000ull

/* Index of the path for a slice of so many bytes; -1: none is up. */
int stripe_choose(struct stripe_path *paths, unsigned n, uint64_t bytes, uint64_t now_ns);
/* How long a path is predicted to take for that many more bytes. */
double stripe_seconds(const struct stripe_path *paths, unsigned n, unsigned path, uint64_t bytes);
void stripe_sent(struct stripe_path *path, uint64_t bytes, uint64_t now_ns);
/* The slice is here. */
void stripe_done(struct stripe_path *path, uint64_t bytes, uint64_t now_ns);
/*
 * For a transport that finds arrivals when it polls, and may poll late: stripe_came instead of stripe_done,
 * then one stripe_turn when all arrivals are counted. Only turns know how long a slice took. So a path is
 * slow when it was the last with slices out, or never ran dry. Paths found in the same turn say nothing, and
 * their estimates converge.
 */
void stripe_came(struct stripe_path *path, uint64_t bytes, uint64_t now_ns);
void stripe_turn(struct stripe_path *paths, unsigned n, uint64_t now_ns);
/* It was answered with an error, which says nothing about the path. */
void stripe_missed(struct stripe_path *path, uint64_t bytes, uint64_t now_ns);
/* The path broke: its requests in flight are repeated on other paths. */
void stripe_failed(struct stripe_path *path, uint64_t now_ns);
/* Down, and its pause is over: connect it again, then call stripe_up, or stripe_failed again. */
bool stripe_try(const struct stripe_path *path, uint64_t now_ns);
void stripe_up(struct stripe_path *path);

#endif
