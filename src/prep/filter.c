/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filter.c: tables of weights, as Pillow's precompute_coeffs (src/libImaging/Resample.c, 9.4) places and normalises them; rounded to 14
 * bits, the rest of the rounding given to the heaviest weight.
 *
 * The cache is two-way: a table's neighbour in its pair is the one that was used longest ago. Two tables in use at a time never push
 * each other out, since filter_get for the second marks the first as used last.
 */
#include "prep/filter.h"

#include <math.h>

#include "base/rng.h"

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

struct span {
    int low, high;
};

/* The source pixels within reach of a centre; at least one. */
static struct span reach(const struct filter_key *key, double centre, double support)
{
    int low = MAX(0, (int)(centre - support + 0.5)),
        high = MIN((int)key->source, (int)(centre + support + 0.5));
    low = MIN(low, (int)key->source - 1);
    return (struct span){low, MAX(high, low + 1)};
}

static void weigh(struct filter *f, double centre, double stretch, struct span span, unsigned out)
{
    double (*curve)(double) = f->key.kind == PREP_BICUBIC ? cubic : triangle;
    unsigned n = (unsigned)(span.high - span.low), heaviest = 0;
    int16_t *weights = f->weights + (size_t)out * f->taps;
    double sum = 0, by = 1 / stretch, at = span.low - centre + 0.5;
    for (unsigned t = 0; t < n; t++)
        sum += curve((at + t) * by);
    int left = FILTER_ONE;
    double unit = sum != 0 ? FILTER_ONE / sum : 0;
    for (unsigned t = 0; t < n; t++) {
        weights[t] = (int16_t)rint(curve((at + t) * by) * unit);
        left -= weights[t];
        if (weights[t] > weights[heaviest])
            heaviest = t;
    }
    weights[heaviest] = (int16_t)(weights[heaviest] + left);
    memset(weights + n, 0, (f->taps - n) * sizeof(*weights));
    f->first[out] = span.low;
}

static int fill(struct filter *f, const struct filter_key *key, struct leat_error *err)
{
    double scale = key->extent / key->full, stretch = MAX(scale, 1.0);
    double support = (key->kind == PREP_BICUBIC ? 2 : 1) * stretch;
    int most = 0;
    if (support > FILTER_MAX_TAPS / 2)
        return error_set(err, LEAT_UNSUPPORTED,
                         "shrinking %.0f pixels to %u: more than this filter does at once", key->extent,
                         key->full);
    for (unsigned i = 0; i < key->outs; i++) {
        struct span span = reach(key, key->start + (key->skip + i + 0.5) * scale, support);
        most = MAX(most, span.high - span.low);
    }
    unsigned taps = (unsigned)align_up((unsigned)most, 2);
    size_t firsts = align_up(key->outs, 16) * sizeof(int32_t),
           room = firsts + (size_t)key->outs * taps * sizeof(int16_t);
    if (room > f->room) {
        free(f->first);
        *f = (struct filter){.first = aligned_alloc(64, align_up(room, 64))};
        if (!f->first)
            return error_sys(err, -ENOMEM, "filter table");
        f->room = room;
    }
    f->key = *key;
    f->taps = taps;
    f->weights = (int16_t *)((char *)f->first + firsts);
    f->low = key->source;
    f->high = 0;
    for (unsigned i = 0; i < key->outs; i++) {
        double centre = key->start + (key->skip + i + 0.5) * scale;
        struct span span = reach(key, centre, support);
        weigh(f, centre, stretch, span, key->reverse ? key->outs - 1 - i : i);
        f->low = MIN(f->low, (unsigned)span.low);
        f->high = MAX(f->high, (unsigned)span.high);
    }
    for (unsigned i = 0; i < key->outs; i++)
        f->first[i] -= (int32_t)f->low;
    return 0;
}

static bool same(const struct filter_key *a, const struct filter_key *b)
{
    return a->start == b->start && a->extent == b->extent && a->source == b->source && a->full == b->full &&
           a->skip == b->skip && a->outs == b->outs && a->kind == b->kind && a->reverse == b->reverse;
}

int filter_get(struct filter_cache *cache, const struct filter_key *key, struct filter *ret_filter,
               struct leat_error *err)
{
    uint64_t start_bits, hash;
    memcpy(&start_bits, &key->start, 8);
    hash =
        rng_mix64(start_bits ^ ((uint64_t)key->source << 32) ^ ((uint64_t)key->full << 17) ^
                  ((uint64_t)key->skip << 9) ^ (key->outs << 2) ^ ((unsigned)key->kind << 1) ^ key->reverse);
    struct filter *pair = &cache->entries[hash % (FILTER_CACHE / 2) * 2];
    if (!(pair[0].first && same(&pair[0].key, key))) {
        struct filter moved = pair[1];
        pair[1] = pair[0];
        pair[0] = moved;
        if (!(pair[0].first && same(&pair[0].key, key))) {
            int rc = fill(&pair[0], key, err);
            if (rc) {
                pair[0].key = (struct filter_key){0}; /* matches nothing: outs is never 0 */
                return rc;
            }
        }
    }
    *ret_filter = pair[0];
    return 0;
}

void filter_cache_fini(struct filter_cache *cache)
{
    for (unsigned i = 0; i < FILTER_CACHE; i++)
        free(cache->entries[i].first);
    *cache = (struct filter_cache){0};
}
