/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filter.h: which source pixels make an output pixel along one axis, and how much each counts.
 *
 * Output i of `outs` is the sum over t < taps of weights[i * taps + t] * source[low + first[i] + t], in units of 1 / FILTER_ONE; the weights of an
 * output add up to FILTER_ONE exactly, so that a flat area stays as it is. `taps` is even (kernels take two at a time): unused ones at
 * the end weigh 0 and may lie behind the source's end.
 */
#ifndef PREP_FILTER_H
#define PREP_FILTER_H

#include "prep/prep.h"

#define FILTER_BITS 14 /* 1.15, the peak of a cubic's weights, is below 2 in an int16_t */
#define FILTER_ONE  (1 << FILTER_BITS)

/* What a table depends on. Positions are relative to the first source pixel that may be used. */
struct filter_key {
    double start, extent;      /* the part of the source that is resized, in source pixels */
    unsigned source;           /* pixels that may be used: 0 .. source - 1 */
    unsigned full, skip, outs; /* resized to `full` pixels, of which skip .. skip + outs - 1 are wanted */
    enum prep_filter_kind kind;
    bool reverse; /* the last one first */
};

struct filter {
    struct filter_key key;
    unsigned taps;
    unsigned low, high; /* source pixels low .. high - 1 are all that is needed */
    int32_t *first;
    int16_t *weights;
    size_t room; /* bytes at `first`, of which `weights` is a part */
};

/* Tables that were needed lately, found by their key. Zeroed: empty. */
#define FILTER_CACHE 32
struct filter_cache {
    struct filter entries[FILTER_CACHE];
};

/* -ENOMEM; LEAT_UNSUPPORTED more than FILTER_MAX_TAPS. What it points to is good until the second call from now: two tables are in
 * use at a time. */
#define FILTER_MAX_TAPS 4096
int filter_get(struct filter_cache *cache, const struct filter_key *key, struct filter *ret_filter,
               struct leat_error *err);
void filter_cache_fini(struct filter_cache *cache);

#endif
