/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c: which samples stand in which step of an epoch: leat_plan.
 *
 *   step ──▶ position ──▶ place: positions and skips ──▶ order ──▶ id
 *                                                   └──▶ part of a mixture, draw ──▶ order of that part ──▶ id
 *
 * A mixture is one endless stream, cut into epochs of n places. Which part a place P draws from depends on the weights:
 *
 *     for each part in turn, w its weight, W the sum of its and the later ones:
 *         c(P) = (P * w + W / 2) / W     of the first P samples are of this part, the others of later ones
 *         c(P + 1) > c(P): this part, and draw c(P) of it; else P -= c(P)
 *
 * Draw j of a part is position j % length of epoch j / length of its own order. The part's number changes the seed.
 *
 * Failure modes: none after leat_plan_init. Invariants: pure functions of the plan and of what it points to, all of it
 * integers; states of loaders rely on every value (tests/golden/training.json).
 */
#include "client/client.h"

#define PARTS_MAX   256u
#define WEIGHTS_MAX (1ull << 25)
#define PLACES_MAX  (1ull << 38) /* times a weight: below 2^63 */
#define PART_SEED   0x9e3779b97f4a7c15ull
#define CACHED      8u

/* The order of one epoch of a part. */
struct part_order {
    uint64_t part, round;
    struct leat_order order;
};

static int part_order_init(const struct leat_plan *plan, uint64_t part, uint64_t round,
                           struct part_order *ret, struct leat_error *err)
{
    char digits[33] = "";
    memcpy(digits, plan->fingerprint + 32 * part, 32);
    ret->part = part;
    ret->round = round;
    return leat_order_init(&ret->order, plan->lengths[part], plan->seed + part * PART_SEED, round,
                           plan->block, digits, err);
}

static int take_parts(struct leat_plan *plan, struct leat_error *err)
{
    uint64_t samples = 0;
    struct part_order order;
    if (plan->nparts > PARTS_MAX || !plan->weights || !plan->lengths || !plan->fingerprint ||
        strnlen(plan->fingerprint, 32 * PARTS_MAX + 1) != 32 * plan->nparts)
        return error_set(err, LEAT_INVALID,
                         "%llu parts: 1 to %u, each with weight, length and 32 digits of a fingerprint",
                         (unsigned long long)plan->nparts, PARTS_MAX);
    plan->weight = 0;
    for (uint64_t k = 0; k < plan->nparts; k++) {
        const uint64_t weight = plan->weights[k], length = plan->lengths[k];
        if (!weight || weight >= WEIGHTS_MAX - plan->weight || length > LEAT_PLAN_ID_MASK - samples)
            return error_set(err, LEAT_INVALID,
                             "part %u: weight %llu, %llu samples: from 1 on, together below 2^25 and 2^44",
                             (unsigned)k, (unsigned long long)weight, (unsigned long long)length);
        plan->weight += weight;
        samples += length;
        int rc = part_order_init(plan, k, 0, &order, err);
        if (rc)
            return rc;
    }
    if (plan->epoch >= div_up(PLACES_MAX, plan->n) - 1)
        return error_set(err, LEAT_INVALID, "epoch %llu of %llu samples is beyond the end of a mixture, 2^38",
                         (unsigned long long)plan->epoch, (unsigned long long)plan->n);
    plan->base = plan->epoch * plan->n;
    return 0;
}

static int take_skips(struct leat_plan *plan, struct leat_error *err)
{
    plan->length = plan->n;
    if (plan->nskips && !plan->skips)
        return error_set(err, LEAT_INVALID, "%llu skips, but no array of them",
                         (unsigned long long)plan->nskips);
    for (uint64_t i = 0, before = 0; i < plan->nskips; i++) {
        const uint64_t first = plan->skips[2 * i], end = plan->skips[2 * i + 1];
        if (first < before || end <= first)
            return error_set(err, LEAT_INVALID, "skips: [%llu, %llu) is empty, or not behind %llu",
                             (unsigned long long)first, (unsigned long long)end, (unsigned long long)before);
        before = end;
        plan->length -= first < plan->n ? MIN(end, plan->n) - first : 0;
    }
    return 0;
}

static int take_steps(struct leat_plan *plan, struct leat_error *err)
{
    const uint64_t first = plan->first_position, batch = plan->batch_size;
    plan->world_size = plan->world_size ? plan->world_size : 1;
    if (plan->rank >= plan->world_size)
        return error_set(err, LEAT_INVALID, "rank %u of a world of %u", plan->rank, plan->world_size);
    if (plan->keep_tail < 0 || plan->keep_tail > 2)
        return error_set(err, LEAT_INVALID, "keep_tail %d: 0, 1 and 2 are possible", plan->keep_tail);
    if (first > plan->length)
        return error_set(err, LEAT_INVALID, "first_position %llu of an epoch of %llu",
                         (unsigned long long)first, (unsigned long long)plan->length);
    const uint64_t global = batch * plan->world_size, left = plan->length - first;
    if (global > 1ull << 56)
        return error_set(err, LEAT_INVALID, "%u samples on %u ranks: at most 2^56 a step are possible",
                         plan->batch_size, plan->world_size);
    uint64_t share_first, share_end;
    plan->full_steps = global ? left / global : 0;
    plan->steps = plan->full_steps;
    plan->tail_first = first + plan->full_steps * global;
    plan->tail_count = global ? left % global : 0;
    if (plan->keep_tail == 2 && plan->tail_count) {
        plan->tail_first += plan->rank * batch;
        plan->tail_count = batch;
    } else {
        leat_share(plan->tail_count, plan->rank, plan->world_size, &share_first, &share_end);
        plan->tail_first += share_first;
        plan->tail_count = share_end - share_first;
    }
    plan->steps += plan->keep_tail && plan->tail_count;
    return 0;
}

int leat_plan_init(struct leat_plan *plan, struct leat_error *err)
{
    if (!plan)
        return error_set(err, LEAT_INVALID, "plan is NULL");
    for (unsigned i = 0; i < ARRAY_LEN(plan->reserved); i++)
        if (plan->reserved[i])
            return error_set(err, LEAT_UNSUPPORTED,
                             "leat_plan.reserved is not zero: set the whole struct to 0 first");
    struct leat_plan made = *plan;
    int rc = leat_order_init(&made.order, made.n, made.seed, made.epoch, made.block,
                             made.nparts ? NULL : made.fingerprint, err);
    if (!rc && made.nparts)
        rc = take_parts(&made, err);
    if (!rc)
        rc = take_skips(&made, err);
    if (!rc)
        rc = take_steps(&made, err);
    if (!rc)
        *plan = made;
    return rc;
}

int leat_plan_step(const struct leat_plan *plan, uint64_t step, uint64_t *ret_first, unsigned *ret_count)
{
    if (step >= plan->steps)
        return LEAT_INVALID;
    const uint64_t batch = plan->batch_size, at = step * plan->world_size + plan->rank;
    *ret_first = step < plan->full_steps ? plan->first_position + at * batch : plan->tail_first;
    *ret_count = step < plan->full_steps ? plan->batch_size : (unsigned)plan->tail_count;
    return 0;
}

/* The sample at a place of the stream. */
static uint64_t mixed_id(const struct leat_plan *plan, uint64_t place, struct part_order cache[CACHED])
{
    uint64_t begun = plan->base, weights = plan->weight, offset = 0;
    for (uint64_t k = 0;; k++) {
        const uint64_t weight = plan->weights[k], length = plan->lengths[k];
        const uint64_t sum = place * weight + weights / 2, drawn = sum / weights;
        const uint64_t before = (begun * weight + weights / 2) / weights; /* draws before this epoch */
        if (sum % weights + weight >= weights) { /* c(P + 1) > c(P): true of the last part */
            const uint64_t round = drawn / length;
            struct part_order *order = &cache[k % CACHED];
            if (order->part != k || order->round != round)
                part_order_init(plan, k, round, order, NULL);
            return (round - before / length) << LEAT_PLAN_ID_BITS |
                   (offset + leat_order_at(&order->order, drawn % length));
        }
        place -= drawn;
        begun -= before;
        weights -= weight;
        offset += length;
    }
}

static void mixed_ids(const struct leat_plan *plan, uint64_t place, uint64_t count, uint64_t *ret_ids)
{
    struct part_order cache[CACHED];
    for (unsigned i = 0; i < CACHED; i++)
        cache[i].part = UINT64_MAX;
    for (uint64_t i = 0; i < count; i++)
        ret_ids[i] = mixed_id(plan, place + i, cache);
}

int leat_plan_ids(const struct leat_plan *plan, uint64_t first, uint64_t count, uint64_t *ret_ids)
{
    if (count && !plan->length)
        return LEAT_INVALID;
    for (uint64_t done = 0, run, skip = 0, skipped = 0; done < count; done += run) {
        const uint64_t position = (first + done) % plan->length;
        run = MIN(count - done, plan->length - position);
        run = MIN(run, 1ull << 30);
        if (!position)
            skip = skipped = 0;
        for (; skip < plan->nskips && position + skipped >= plan->skips[2 * skip]; skip++)
            skipped += plan->skips[2 * skip + 1] - plan->skips[2 * skip];
        if (skip < plan->nskips)
            run = MIN(run, plan->skips[2 * skip] - position - skipped);
        if (plan->nparts)
            mixed_ids(plan, plan->base + position + skipped, run, ret_ids + done);
        else
            leat_order_fill(&plan->order, position + skipped, (unsigned)run, ret_ids + done);
    }
    return 0;
}

int leat_plan_find(const struct leat_plan *plan, const struct leat_plan_run *runs, uint64_t nruns,
                   uint64_t step, struct leat_plan_run *ret_run, uint64_t *ret_count, struct leat_error *err)
{
    uint64_t at = 0, first = 0, steps = 0;
    for (uint64_t i = 0; i < MAX(nruns, 1ull); i++)
        if (i >= nruns || !runs[i].global_batch ||
            (i && (runs[i].epoch < runs[i - 1].epoch ||
                   (runs[i].epoch == runs[i - 1].epoch && runs[i].position <= runs[i - 1].position))))
            return error_set(err, LEAT_INVALID, "run %llu of %llu is empty, or not behind the one before",
                             (unsigned long long)i, (unsigned long long)nruns);
    while (at + 1 < nruns && (runs[at + 1].epoch < plan->epoch ||
                              (runs[at + 1].epoch == plan->epoch && runs[at + 1].position == 0)))
        at++; /* the one that the epoch began in */
    for (;; at++) {
        const struct leat_plan_run *run = &runs[at];
        const bool last = at + 1 == nruns || runs[at + 1].epoch != plan->epoch;
        const uint64_t end = last ? plan->length : MIN(runs[at + 1].position, plan->length);
        const uint64_t here = end > first ? div_up(end - first, run->global_batch) : 0;
        if (step - steps < here) {
            first += (step - steps) * run->global_batch;
            *ret_run = (struct leat_plan_run){plan->epoch, first, run->global_batch, run->batch_size};
            *ret_count = MIN(run->global_batch, end - first);
            return 0;
        }
        steps += here;
        first = end;
        if (last)
            return error_set(err, LEAT_NOT_FOUND, "step %llu: epoch %llu has %llu steps",
                             (unsigned long long)step, (unsigned long long)plan->epoch,
                             (unsigned long long)steps);
    }
}

void leat_share(uint64_t nsamples, unsigned rank, unsigned world_size, uint64_t *ret_first, uint64_t *ret_end)
{
    uint64_t world = world_size ? world_size : 1, each = nsamples / world, extra = nsamples % world;
    *ret_first = rank * each + MIN((uint64_t)rank, extra);
    *ret_end = *ret_first + each + (rank < extra);
}
