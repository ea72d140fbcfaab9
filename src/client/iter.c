/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iter.c: the batches of an epoch, in order, read ahead by a thread into the ring of a view.
 *
 *   thread:   step ──▶ leat_plan_step ──▶ leat_plan_ids ──▶ batch_fill ──▶ queue (at most `ahead`)
 *   consumer: leat_next takes from the queue; while it computes nothing between two calls it fills its batch by itself (bypass_score)
 *
 *   Or the ids of each batch, as the caller gave them.
 *
 * Failure modes: an error stands in the queue at its batch's place; once delivered, the next leat_next tries that batch again.
 * A consumer that holds every slot gets LEAT_BUSY instead of waiting for itself. Closing cancels a read in progress, within
 * some 20 ms. The thread does not survive fork(): in the child, an iterator of the parent returns an error.
 * Invariants: batches come exactly once each and in order; everything here is under `lock` but `cancel`, and `ids`, which
 * belong to the thread that set `filling`.
 */
#include "client/client.h"

#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "net/topo/topo.h"

#define AUTO_GROUPS 3u
#define AHEAD_BYTES (64 * MIB) /* announced at most: several times what is in flight to a server 30 ms away */
#define AHEAD_MAX   32u
#define AUTO_BLOCK_BYTES                                                                                     \
    (4 * MIB) /* of a streamed set: long enough for a disk, 16 of them small beside a window */

/*
 * Reading ahead overlaps with the consumer's work, and costs a wake-up and another CPU's cache for each
 * batch. A consumer that came back within BYPASS_SOON_NS BYPASS_ALWAYS / BYPASS_SOON times running, and found
 * nothing there, reads its batches by itself until it was late BYPASS_ALWAYS / BYPASS_LATE times running (or
 * every other time: two batches a step of the loop are worth reading ahead): a batch of 64 samples of 4 KiB
 * is 24 us of copying, a wake-up in a virtual machine 5 to 20.
 */
#define BYPASS_SOON_NS 20000u
#define BYPASS_ALWAYS  9u
#define BYPASS_SOON    3u
#define BYPASS_LATE    3u

struct leat_iter {
    struct leat_view *view;
    struct leat_plan plan;
    unsigned ahead;
    uint64_t steps;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic bool cancel;
    struct leat_batch **queue; /* ring of `ahead` */
    unsigned head, queued;
    uint64_t next_step;    /* of the thread */
    uint64_t delivered;    /* steps handed out */
    bool failed;           /* the thread waits: `error` belongs to next_step */
    bool filling;          /* `filler` reads next_step */
    bool direct;           /* the thread waits: the consumer reads by itself */
    unsigned bypass_score; /* 0 to BYPASS_ALWAYS: more for a call that came soon, less for a late one */
    unsigned waiting;      /* consumers */
    pthread_t filler;
    uint64_t returned_ns;
    struct leat_error error;
    uint64_t block;               /* in which a streamed set is read; 0: sample by sample */
    uint64_t *given, *given_ends; /* the caller's ids instead of an order */
    uint64_t *ids;                /* the thread's */
    struct stream_range *ranges;  /* the thread's, of a streamed set */
    unsigned announce_ahead;      /* groups, or batches, that are announced beside the one that is read */
    uint64_t announced;           /* positions, or steps, below have been announced to the daemon */
};

static void step_positions(const struct leat_iter *it, uint64_t step, uint64_t *ret_first, unsigned *ret_n)
{
    if (it->given) {
        *ret_first = step ? it->given_ends[step - 1] : 0;
        *ret_n = (unsigned)(it->given_ends[step] - *ret_first);
    } else {
        leat_plan_step(&it->plan, step, ret_first, ret_n);
    }
}

static void step_ids(struct leat_iter *it, uint64_t first, unsigned n, uint64_t *ret_ids)
{
    if (it->given)
        memcpy(ret_ids, it->given + first, n * sizeof(*ret_ids));
    else
        leat_plan_ids(&it->plan, first, n, ret_ids);
}

static bool is_streamed(const struct leat_iter *it, uint64_t first, uint64_t count)
{
    return ws_state(it->view->ws, first) == LIVE_STREAMED ||
           ws_state(it->view->ws, first + count - 1) == LIVE_STREAMED;
}

/* Samples of a block, counted as the working set does. */
static struct stream_range block_range(const struct leat_iter *it, uint64_t number)
{
    uint64_t first = number * it->block, count = MIN(it->block, it->plan.n - first);
    return (struct stream_range){first * it->view->step, (count - 1) * it->view->step + it->view->window};
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/*
 * The samples of [first, first + n), or their blocks, that the pool does not hold. Neighbours are one range, as stream_read fetches them:
 * what is announced is found by its range. Uses ids.
 */
static uint32_t absent_samples(struct leat_iter *it, uint64_t first, unsigned n)
{
    uint32_t count = 0;
    step_ids(it, first, n, it->ids);
    qsort(it->ids, n, sizeof(*it->ids), by_number);
    for (unsigned i = 0; i < n; i++) {
        struct stream_range range = {it->ids[i] * it->view->step, it->view->window},
                            *last = count ? &it->ranges[count - 1] : NULL;
        if (!is_streamed(it, range.first, range.count))
            continue;
        if (it->block > 1)
            range = block_range(it, it->ids[i] / it->block);
        if (last && it->block > 1 && last->first == range.first)
            continue;
        if (last && it->block <= 1 && range.first <= last->first + last->count)
            last->count = MAX(range.first + range.count, last->first + last->count) - last->first;
        else
            it->ranges[count++] = range;
    }
    return count;
}

static void announce_step(struct leat_iter *it, uint64_t step)
{
    uint64_t start;
    unsigned count;
    step_positions(it, step, &start, &count);
    uint32_t n = absent_samples(it, start, count);
    if (n)
        stream_prefetch(it->view->ws, it->ranges, n);
}

static void announce_group(struct leat_iter *it, const uint64_t *blocks, unsigned nblocks)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < nblocks; i++) {
        struct stream_range range = block_range(it, blocks[i]);
        if (is_streamed(it, range.first, range.count))
            it->ranges[n++] = range;
    }
    if (n)
        stream_prefetch(it->view->ws, it->ranges, n);
}

/*
 * A streamed set: the daemon learns what comes next, so that it reads the source while this batch is copied and the consumer
 * computes. In block order the blocks of this group and of the next ones; in full order the samples of this batch and of the next ones.
 */
static void announce(struct leat_iter *it, uint64_t step, uint64_t position)
{
    uint64_t start, end, blocks[LEAT_ORDER_GROUP];
    if (it->block == 0 || it->given) {
        it->announced = MAX(it->announced, step);
        for (; it->announced < it->steps && it->announced <= step + it->announce_ahead; it->announced++)
            announce_step(it, it->announced);
        return;
    }
    for (unsigned k = 0; k <= it->announce_ahead && position < it->plan.n; k++, position = end) {
        unsigned nblocks = order_group(&it->plan.order, position, &start, &end, blocks);
        if (end <= it->announced)
            continue;
        it->announced = end;
        announce_group(it, blocks, nblocks);
    }
}

static void *read_ahead(void *arg)
{
    struct leat_iter *it = arg;
    pthread_mutex_lock(&it->lock);
    while (!it->cancel && it->next_step < it->steps) {
        if (it->failed || it->direct || it->filling || it->queued == it->ahead) {
            pthread_cond_wait(&it->changed, &it->lock);
            continue;
        }
        uint64_t step = it->next_step, first;
        unsigned n;
        it->filling = true;
        it->filler = pthread_self();
        pthread_mutex_unlock(&it->lock);

        struct leat_batch *batch = NULL;
        struct leat_error error = {0};
        step_positions(it, step, &first, &n);
        if (it->ranges)
            announce(it, step, first);
        step_ids(it, first, n, it->ids);
        int rc = batch_fill(it->view, it->ids, n,
                            &(struct fill_how){.iterator = true,
                                               .position = first,
                                               .block = it->block * it->view->step,
                                               .cancel = &it->cancel},
                            &batch, &error);

        pthread_mutex_lock(&it->lock);
        it->filling = false;
        if (rc) {
            it->failed = true;
            it->error = error;
            it->error.code = rc;
        } else {
            it->queue[(it->head + it->queued++) % it->ahead] = batch;
            it->next_step++;
        }
        pthread_cond_broadcast(&it->changed);
    }
    pthread_mutex_unlock(&it->lock);
    return NULL;
}

/* --- making one ------------------------------------------------------------------------------------------------------ */

/*
 * AUTO: three groups of blocks fit into the window: the one that is read, the next one, and what ranks or workers that are behind still
 * read. A block comes widened to whole pages, each field by itself, and its samples may be longer than others. A power of two, at least one
 * sample. Of a set on several nodes the windows differ and the order must not: a window there is a third of the node's part of
 * what is pinned, or more.
 */
static int choose_block(const struct leat_view *view, const struct leat_iter_options *o, uint64_t *ret_block,
                        struct leat_error *err)
{
    struct leat_ws *ws = view->ws;
    *ret_block = o->flags & LEAT_SHUFFLE_AUTO ? 0 : o->block;
    if (!(o->flags & LEAT_SHUFFLE_AUTO) || !(ws->info.flags & PROTO_WS_STREAMED))
        return 0;
    uint64_t window = ws->info.nnodes > 1 ? ws->info.pinned_end / (4 * (uint64_t)ws->info.nnodes) : 0;
    struct client_rpc_how how = {.deadline_ns = client_deadline(ws->client, 0)};
    int rc = ws->info.nnodes > 1 ? 0 : ws_window(ws, &how, &window, err);
    if (rc)
        return rc;
    const struct index_header *h = ws->index.header;
    const uint64_t share = window / ((uint64_t)AUTO_GROUPS * LEAT_ORDER_GROUP);
    const uint64_t pages = (uint64_t)h->nfields * INDEX_FILE_ALIGN;
    uint64_t mean = h->payload_bytes / h->nsamples, n = 1;
    mean = MAX(mean, 1ull) * view->step;
    uint64_t bytes = share > pages ? (share - pages) / 9 * 8 : 0;
    bytes = MIN(bytes, AUTO_BLOCK_BYTES);
    while (2 * n * mean <= bytes && 2 * n * LEAT_ORDER_GROUP <= view->length)
        n *= 2;
    *ret_block = n;
    return 0;
}

/*
 * As much as the window has room for beside what is read and as much again, which ranks or workers that are behind still read. All ranks
 * read the same groups, and each its own batches.
 */
static unsigned announce_ahead(const struct leat_iter *it)
{
    struct leat_ws *ws = it->view->ws;
    const struct index_header *h = ws->index.header;
    const bool groups = it->block > 0 && !it->given;
    if (!(ws->info.flags & PROTO_WS_STREAMED) || ws->info.nnodes > 1 || (it->given && it->block > 1))
        return 1;
    /* As choose_block has it: widened to whole pages, and of samples that may be longer than others. */
    const uint64_t mean = MAX(h->payload_bytes / h->nsamples, 1ull),
                   pages = (uint64_t)h->nfields * INDEX_FILE_ALIGN;
    const uint64_t run = groups ? it->block * it->view->step : it->view->window,
                   runs = groups ? LEAT_ORDER_GROUP : (uint64_t)it->view->batch_size * it->plan.world_size;
    const uint64_t bytes = runs * (run * mean / 8 * 9 + pages);
    struct client_rpc_how how = {.deadline_ns = client_deadline(ws->client, 0)};
    uint64_t window;
    if (ws_window(ws, &how, &window, NULL) < 0)
        return 1; /* it fails again where it matters */
    uint64_t fit = window / bytes, ahead = MIN(fit > 3 ? fit - 2 : 1, AHEAD_BYTES / bytes);
    return (unsigned)MIN(MAX(ahead, 1ull), AHEAD_MAX);
}

static int check_slots(const struct leat_iter *it, struct leat_error *err)
{
    if (it->view->nslots >= 2)
        return 0;
    return error_set(err, LEAT_INVALID, "an iterator needs a view with at least 2 slots, this one has %u",
                     it->view->nslots);
}

/* A plan of the caller's: checked here, so that the thread meets nothing that is out of bounds. */
static int plan_given(struct leat_iter *it, const struct leat_iter_options *o, struct leat_error *err)
{
    const uint64_t n = it->view->length, batch = it->view->batch_size;
    it->steps = o->ends ? o->nends : (o->nids + batch - 1) / batch;
    it->given = calloc(o->nids + 1, sizeof(*it->given));
    it->given_ends = calloc(it->steps + 1, sizeof(*it->given_ends));
    if (!it->given || !it->given_ends)
        return error_set(err, -ENOMEM, "out of memory for a plan of %llu samples",
                         (unsigned long long)o->nids);
    for (uint64_t i = 0; i < o->nids; i++) {
        if (o->ids[i] >= n)
            return error_set(err, LEAT_INVALID,
                             "sample %llu of a working set of %llu, at place %llu of the plan",
                             (unsigned long long)o->ids[i], (unsigned long long)n, (unsigned long long)i);
        it->given[i] = o->ids[i];
    }
    uint64_t before = 0;
    for (uint64_t s = 0; s < it->steps; s++) {
        uint64_t end = o->ends ? o->ends[s] : MIN((s + 1) * batch, o->nids);
        if (end <= before || end - before > batch || end > o->nids)
            return error_set(err, LEAT_INVALID,
                             "batch %llu of the plan has ids [%llu, %llu): 1 to %llu of %llu are possible",
                             (unsigned long long)s, (unsigned long long)before, (unsigned long long)end,
                             (unsigned long long)batch, (unsigned long long)o->nids);
        it->given_ends[s] = before = end;
    }
    it->plan.n = n;
    it->plan.world_size = 1;
    it->block = o->block == LEAT_ORDER_SEQUENTIAL ? 0 : MIN(o->block, n);
    return 0;
}

static int plan_order(struct leat_iter *it, const struct leat_iter_options *o, struct leat_error *err)
{
    it->plan = (struct leat_plan){.n = it->view->length,
                                  .seed = o->seed,
                                  .epoch = o->epoch,
                                  .fingerprint = it->view->fingerprint,
                                  .first_position = o->first_position,
                                  .batch_size = it->view->batch_size,
                                  .rank = o->rank,
                                  .world_size = o->world_size,
                                  .keep_tail = o->keep_tail};
    int rc = choose_block(it->view, o, &it->plan.block, err);
    if (!rc)
        rc = leat_plan_init(&it->plan, err);
    it->block = it->plan.order.block == LEAT_ORDER_SEQUENTIAL ? 0 : it->plan.order.block;
    it->steps = it->plan.steps;
    return rc;
}

static void iter_free(struct leat_iter *it)
{
    pthread_cond_destroy(&it->changed);
    pthread_mutex_destroy(&it->lock);
    view_unref(it->view);
    free(it->queue);
    free(it->given);
    free(it->given_ends);
    free(it->ids);
    free(it->ranges);
    free(it);
}

static int start_thread(struct leat_iter *it)
{
    sigset_t all, old; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&it->thread, NULL, read_ahead, it);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc) {
        pthread_setname_np(it->thread, "leat-ahead");
        topo_pin_to_gpu(it->thread);
    }
    return -rc;
}

int leat_iterate(struct leat_view *view, const struct leat_iter_options *options, struct leat_iter **ret_iter,
                 struct leat_error *err)
{
    struct leat_iter_options o;
    if (!view || !ret_iter)
        return error_set(err, LEAT_INVALID, "%s is NULL", view ? "ret_iter" : "view");
    if (view->fork_count != client_fork_count())
        return client_forked_error(err);
    int rc = options_take("leat_iter_options", options, offsetof(struct leat_iter_options, seed), &o,
                          sizeof(o), err);
    if (!rc)
        rc = options_flags("leat_iter_options", o.flags, LEAT_SHUFFLE_AUTO, err);
    if (rc)
        return rc;
    struct leat_iter *it = calloc(1, sizeof(*it));
    if (!it)
        return error_set(err, -ENOMEM, "out of memory for an iterator");
    atomic_fetch_add(&view->refs, 1);
    it->view = view;
    pthread_mutex_init(&it->lock, NULL);
    cond_init(&it->changed);
    rc = check_slots(it, err);
    if (!rc)
        rc = o.ids ? plan_given(it, &o, err) : plan_order(it, &o, err);
    if (!rc) {
        it->announce_ahead = announce_ahead(it);
        it->ahead = o.ahead && o.ahead < view->nslots ? o.ahead : view->nslots - 1;
        it->queue = calloc(it->ahead, sizeof(*it->queue));
        it->ids = calloc(view->batch_size, sizeof(*it->ids));
        bool streamed = view->ws->info.flags & PROTO_WS_STREAMED;
        if (streamed)
            it->ranges = calloc(MAX(view->batch_size, LEAT_ORDER_GROUP), sizeof(*it->ranges));
        rc = it->queue && it->ids && (it->ranges || !streamed) ? start_thread(it) : -ENOMEM;
        if (rc)
            error_sys(err, rc, "cannot start an iterator's thread");
    }
    if (rc) {
        iter_free(it);
        return rc;
    }
    *ret_iter = it;
    return 0;
}

void leat_iter_close(struct leat_iter *it)
{
    if (!it || it->view->fork_count != client_fork_count())
        return;
    atomic_store(&it->cancel, true);
    pthread_mutex_lock(&it->lock);
    pthread_cond_broadcast(&it->changed);
    pthread_mutex_unlock(&it->lock);
    pthread_mutex_lock(&it->view->lock); /* it may be waiting for a slot */
    pthread_cond_broadcast(&it->view->freed);
    pthread_mutex_unlock(&it->view->lock);
    pthread_join(it->thread, NULL);
    for (; it->queued; it->queued--, it->head++)
        leat_batch_release(it->queue[it->head % it->ahead]);
    iter_free(it);
}

uint64_t leat_iter_steps(const struct leat_iter *iter)
{
    return iter->steps;
}

uint64_t leat_iter_block(const struct leat_iter *iter)
{
    return iter->plan.order.block;
}

/* --- handing out ------------------------------------------------------------------------------------------------------ */

/* Under lock. 1: *ret_batch; 0: nothing yet; negative: the error at this place. */
static int take(struct leat_iter *it, struct leat_batch **ret_batch, struct leat_error *err)
{
    if (it->queued) {
        struct leat_batch *batch = it->queue[it->head];
        it->head = (it->head + 1) % it->ahead;
        it->queued--;
        it->delivered++;
        pthread_mutex_lock(&it->view->lock);
        batch->undelivered = false;
        pthread_mutex_unlock(&it->view->lock);
        pthread_cond_broadcast(&it->changed);
        *ret_batch = batch;
        return 1;
    }
    if (it->failed) {
        it->failed = false; /* the thread tries again, for the next call */
        pthread_cond_broadcast(&it->changed);
        if (err)
            *err = it->error;
        return it->error.code;
    }
    if (it->delivered == it->steps) {
        *ret_batch = NULL;
        return 1;
    }
    if (it->filling && pthread_equal(it->filler, pthread_self()))
        return error_set(err, LEAT_BUSY,
                         "this thread reads the next batch already (called from an interrupt hook?)");
    return view_starved(it->view, err) ? LEAT_BUSY : 0;
}

/* Under lock. Has the consumer anything to do between its calls? Wakes the thread when it has again. */
static void update_bypass(struct leat_iter *it)
{
    bool soon = it->returned_ns && clock_now_ns() - it->returned_ns < BYPASS_SOON_NS;
    if (!soon)
        it->bypass_score -= MIN(it->bypass_score,
                                BYPASS_LATE); /* one alone may have been another thread's turn on this CPU */
    else if (it->direct || !it->queued)
        it->bypass_score = MIN(it->bypass_score + (it->direct ? 1 : BYPASS_SOON), BYPASS_ALWAYS);
    if (it->ranges || it->view->memory != LEAT_MEMORY_HOST)
        return; /* what is announced ahead, or copied by a device, is worth a thread */
    if (!it->direct && it->bypass_score == BYPASS_ALWAYS)
        it->direct = true;
}

/* Called under lock, which it releases during the read. As leat_read_batch, interrupts as well; an error
 * leaves the step to the next call. */
static int fill_here(struct leat_iter *it, uint64_t timeout_ns, struct leat_batch **ret_batch,
                     struct leat_error *err)
{
    uint64_t first;
    unsigned n;
    it->filling = true;
    it->filler = pthread_self();
    pthread_mutex_unlock(&it->lock);
    step_positions(it, it->next_step, &first, &n);
    step_ids(it, first, n, it->ids);
    int rc = batch_fill(it->view, it->ids, n, &(struct fill_how){.timeout_ns = timeout_ns, .position = first},
                        ret_batch, err);
    pthread_mutex_lock(&it->lock);
    it->filling = false;
    if (!rc) {
        it->next_step++;
        it->delivered++;
    }
    if (rc || !it->bypass_score)
        it->direct = false; /* the next one is read while this one is computed with */
    if (!it->direct || it->waiting)
        pthread_cond_broadcast(&it->changed);
    return rc;
}

int leat_next(struct leat_iter *it, uint64_t timeout_ns, struct leat_batch **ret_batch,
              struct leat_error *err)
{
    if (!it || !ret_batch)
        return error_set(err, LEAT_INVALID, "%s is NULL", it ? "ret_batch" : "iter");
    if (it->view->fork_count != client_fork_count())
        return client_forked_error(err);
    const struct leat_client *client = it->view->ws->client;
    const struct client_rpc_how how = {.deadline_ns = client_deadline(client, timeout_ns)};
    uint64_t poll_ns = 0;
    int rc;
    pthread_mutex_lock(&it->lock);
    update_bypass(it);
    for (;;) {
        bool here = it->direct && !it->queued && !it->failed && !it->filling && it->next_step < it->steps;
        rc = here ? fill_here(it, timeout_ns, ret_batch, err) : take(it, ret_batch, err);
        if (here || rc)
            break;
        if (how.deadline_ns && clock_now_ns() >= how.deadline_ns) {
            rc = error_set(err, LEAT_TIMED_OUT, "the next batch was not there within the deadline");
            break;
        }
        it->waiting++;
        cond_wait_until(&it->changed, &it->lock, client_sleep_until(client, &how));
        it->waiting--;
        pthread_mutex_unlock(&it->lock);
        bool stop = client_cancelled(client, &how, &poll_ns);
        pthread_mutex_lock(&it->lock);
        if (stop) {
            rc = client_cancelled_error(err);
            break;
        }
    }
    it->returned_ns = clock_now_ns();
    pthread_mutex_unlock(&it->lock);
    return rc < 0 ? rc : 0;
}
