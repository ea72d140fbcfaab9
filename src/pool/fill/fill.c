/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues and threads of fill.h. One lock guards every queue; it is held to pick work and to note that it
 * ended, never during I/O. A thread picks, in this order: loads (a client waits for a streamed sample), other
 * samples that a client waits for (fill_urgent.c), then the next segment of the sets in turn. With remote
 * loads in flight it takes more of the same set (fill_load_join).
 *
 * Invariants: a set is on `sets` while it has segments left and is not cancelled, or a thread is inside; it carries one reference
 * for that time. A segment's state moves TODO -> TAKEN -> DONE, before that any number of times TODO -> PARTLY -> TODO.
 */
#include "pool/fill/fill.h"

#include "backend/backend.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/crc32c.h"
#include "base/histogram.h"
#include "base/log.h"
#include "base/budget.h"
#include "pool/fill/fill_internal.h"
#include "pool/region/region.h"
#include "pool/set/wset.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

/* Bytes of loads that a thread has in flight before idle threads take theirs, as a distant server needs
 * connections; and at most, then it leaves them to threads that are busy with other work. */
#define LOADS_SPREAD (8 * MIB)
#define LOADS_BYTES  (64 * MIB)

#define REMOTE_IDLE_S                                                                                        \
    10 /* sessions are kept so long for the next segment: a handshake costs several round trips */

/* Wide bounce buffers: of a thread, of all threads, and of the pool's cap, which samples are to have. */
#define WIDE_BYTES     (4 * MIB)
#define WIDE_ALL_BYTES (32 * MIB)
#define WIDE_SHARE     64u

struct fill {
    struct fill_config config;
    struct fill_counters counters;
    struct histogram segment_times;
    const char *engine;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct list sets;  /* wset.fill_node */
    struct list loads; /* fill_load.node */
    bool stopping, loads_cancelled;
    unsigned nthreads, nidle;
    pthread_t *threads;
    struct fill_thread **thread; /* of each: NULL once it has ended */
};

/* Below next_segment all are begun for good. */
static void pass_begun(struct wset *ws)
{
    while (ws->next_segment < ws->nsegments && ws->segments[ws->next_segment].state >= SEGMENT_TAKEN)
        ws->next_segment++;
}

/* The next one in the order of addresses. */
static bool pick_segment(struct wset *ws, uint32_t *ret_segment)
{
    pass_begun(ws);
    uint32_t s = ws->next_segment;
    while (s < ws->nsegments && ws->segments[s].state != SEGMENT_TODO)
        s++;
    if (s == ws->nsegments)
        return false;
    *ret_segment = s;
    return true;
}

/* How many segments from `first` on are read together. */
static uint32_t run_of(const struct fill_thread *t, const struct wset *ws, uint32_t first)
{
    const struct wset_segment *s = &ws->segments[first];
    bool alone = !ws->remote || t->fill->config.segment_bytes;
    uint64_t most = alone ? 0 : wset_run_bytes(&ws->index, fill_remote_first_byte_ns(t, ws));
    uint64_t end = s->address + s->bytes, region_end = (s->address / ws->region_bytes + 1) * ws->region_bytes;
    uint32_t n = 1;
    while (first + n < ws->nsegments && s[n].state == SEGMENT_TODO && s[n].address == end &&
           end + s[n].bytes <= MIN(region_end, s->address + most))
        end += s[n++].bytes;
    return n;
}

/* Only as many threads at a time as there are reservations for their scratch. */
static bool decoder_free(const struct wset *ws)
{
    return ws->decoders == 0 || ws->decoding < ws->decoders;
}

/* Under the lock: is there a thread that streams ws, and must be woken for its next load? */
static bool join_wake(struct fill *fill, const struct wset *ws)
{
    unsigned k = 0;
    while (k < fill->nthreads && !(fill->thread[k] && fill->thread[k]->joins == ws))
        k++;
    if (k == fill->nthreads)
        return false;
    fill->thread[k]->joins = NULL; /* until it has looked */
    backend_wake(fill->thread[k]->waits);
    return true;
}

/* A load leaves the queue: the thread that may take the next one found it behind this one, and waits. */
static void load_take(struct fill *fill, struct fill_load *load)
{
    list_remove(&load->node);
    list_for_each (node, &fill->loads) {
        const struct wset *ws = container_of(node, struct fill_load, node)->ws;
        if (join_wake(fill, ws) || decoder_free(ws))
            break;
    }
}

static bool pick(struct fill_thread *t, struct fill_pick *ret)
{
    struct fill *fill = t->fill;
    *ret = (struct fill_pick){0};
    list_for_each (node, &fill->loads) {
        struct fill_load *load = container_of(node, struct fill_load, node);
        if (!decoder_free(load->ws))
            continue;
        ret->load = load;
        load_take(fill, load);
        load->ws->decoding++;
        return true;
    }
    for (int urgent = 1; urgent >= 0; urgent--) {
        list_for_each (node, &fill->sets) {
            struct wset *ws = container_of(node, struct wset, fill_node);
            if (ws->fill_cancelled || !decoder_free(ws) ||
                !(urgent ? fill_urgent_pick(ws, fill->nthreads, ret) : pick_segment(ws, &ret->segment)))
                continue;
            ret->nsegments = ret->nfiles ? 0 : run_of(t, ws, ret->segment);
            for (uint32_t k = 0; k < ret->nsegments; k++)
                ws->segments[ret->segment + k].state = SEGMENT_TAKEN;
            pass_begun(ws);
            ws->active++;
            ws->decoding++;
            ret->ws = ws;
            list_remove(&ws->fill_node); /* to the end of the queue: sets take turns */
            list_push_back(&fill->sets, &ws->fill_node);
            return true;
        }
    }
    return false;
}

/* The bytes of a part so far; this segment has more of it. bytes 0: none is open. */
struct open_part {
    uint64_t sample, offset, bytes;
    unsigned field;
    uint32_t crc;
};

struct report {
    struct bytes_out records; /* for other nodes */
    struct fill_thread *thread;
    struct wset *ws;
    const struct wset_segment *segment;
    const uint8_t *data;
    uint64_t begin,
        end; /* addresses of this step; below `begin` all is reported, but for the part that is open */
    /* Parts come field by field: one that reaches over `end` may come before the one that reaches over `begin`. */
    struct open_part before, after;
    uint64_t extent; /* index_covered */
};

static void report_piece(struct report *r, uint64_t i, unsigned f, const struct index_part *part,
                         uint64_t offset, uint64_t bytes, uint32_t crc)
{
    uint64_t begin = part->address + offset;
    const struct fill_bad *bad = r->thread->nbad ? fill_bad_in(r->thread, begin, begin + bytes) : NULL;
    if (bad)
        wset_failure(r->ws, i, bad->code, bad->message);
    int status = bad ? bad->code : 0;
    crc = bad ? 0 : crc;
    wset_piece(r->ws, i, f, offset, bytes, crc, status);
    if (r->ws->nnodes)
        proto_ready_record_put(&r->records, &(struct proto_ready_record){i, f, crc, offset, bytes, status});
}

static void report_part(void *user, uint64_t i, unsigned f, const struct index_part *part, uint64_t offset,
                        uint64_t bytes)
{
    struct report *r = user;
    uint64_t from = part->address + offset, to = from + bytes;
    if (bytes == part->bytes &&
        wset_part_known(r->ws, i, f)) { /* it was read alone: other nodes may not know */
        report_piece(r, i, f, part, 0, bytes, wset_part_crc(r->ws, i, f));
        return;
    }
    bool continued = r->before.bytes && r->before.sample == i && r->before.field == f;
    /* Its memory may not be there: reading it would allocate it */
    bool bad = fill_bad_in(r->thread, from, to);
    if (!bad && !index_covered(&r->ws->index, from, bytes, &r->extent)) {
        bad = true; /* the index changed, and nothing was read here */
        fill_bad_add(r->thread, from, to, LEAT_CORRUPT, INDEX_DAMAGED);
        dataset_index_forget(r->ws->spec);
    }
    uint32_t crc =
        bad ? 0 : crc32c(continued ? r->before.crc : 0, r->data + (from - r->segment->address), bytes);
    if (continued) {
        offset = r->before.offset;
        bytes += r->before.bytes;
        r->before.bytes = 0;
    }
    /* Should parts overlap, the second that reaches over the end is a piece of its own. */
    bool more = to == r->end && to < r->segment->address + r->segment->bytes && offset + bytes < part->bytes;
    if (more && !r->after.bytes)
        r->after = (struct open_part){.sample = i, .field = f, .offset = offset, .bytes = bytes, .crc = crc};
    else
        report_piece(r, i, f, part, offset, bytes, crc);
}

/* Fill thread: the segment is there up to `address`. Addresses only go up. */
static void report_up_to(void *user, uint64_t address)
{
    struct report *r = user;
    if (address <= r->end)
        return;
    r->begin = r->end;
    r->end = address;
    r->before = r->after;
    r->after.bytes = 0;
    wset_parts_in(r->ws, r->begin, r->end, report_part, r);
}

static void note_bad(struct fill_thread *t, const struct wset *ws)
{
    if (!t->nbad)
        return;
    atomic_fetch_add(&t->fill->counters.errors, t->nbad);
    if (strcmp(t->logged, t->bad[0].message) != 0 && t->bad[0].code != -ECANCELED)
        log_warning_limited("%s: %s%s", ws->spec, t->bad[0].message, t->nbad > 1 ? " (and more)" : "");
    memcpy(t->logged, t->bad[0].message, sizeof(t->logged));
}

/* ret_records: for other nodes. */
static void segment_fill(struct fill_thread *t, struct wset *ws, const struct wset_segment *segment,
                         struct bytes_out *ret_records)
{
    struct fill *fill = t->fill;
    uint64_t gid = segment->address / ws->region_bytes, offset = segment->address % ws->region_bytes;
    struct region *region = ws->regions[gid].region;
    struct report report = {.thread = t,
                            .ws = ws,
                            .segment = segment,
                            .data = region->addr + offset,
                            .begin = segment->address,
                            .end = segment->address};
    int rc = region_reserve(region, offset, segment->bytes);
    if (rc < 0) {
        t->nbad = 1;
        t->bad[0] = (struct fill_bad){
            .begin = segment->address, .end = segment->address + segment->bytes, .code = LEAT_NO_SPACE};
        snprintf(t->bad[0].message, sizeof(t->bad[0].message), "no memory for it in the pool (%s)",
                 strerror(-rc));
    } else {
        bool small_pages =
            region->pages == REGION_BASE && offset + segment->bytes > atomic_load(&region->prefault_bytes);
        struct fill_target target = {region->addr + offset, small_pages ? region->fd : -1, offset};
        t->arrived = report_up_to;
        t->arrived_user = &report;
        fill_read_range(t, ws, segment->address, segment->bytes, &target, fill->config.opener,
                        &fill->counters);
        t->arrived = NULL;
    }
    report_up_to(&report, segment->address + segment->bytes);
    note_bad(t, ws);
    *ret_records = report.records;
    region_written(region);
    wset_note_pages(ws, region);
}

/* Files of one region that a client waits for. */
static void files_fill(struct fill_thread *t, const struct fill_pick *p, struct bytes_out *ret_records)
{
    struct wset *ws = p->ws;
    struct region *region = ws->regions[ws->segments[p->files[0].segment].address / ws->region_bytes].region;
    struct report report = {.thread = t, .ws = ws};
    fill_read_files(t, p, region, t->fill->config.opener, &t->fill->counters);
    note_bad(t, ws);
    for (unsigned k = 0; k < p->nfiles; k++) {
        const struct fill_file *file = &p->files[k];
        const struct index_part *part = &file->part;
        const uint8_t *data = region->addr + part->address % ws->region_bytes;
        bool bad = fill_bad_in(t, part->address, part->address + part->bytes);
        report_piece(&report, file->sample, file->field, part, 0, part->bytes,
                     bad ? 0 : crc32c(0, data, part->bytes));
    }
    *ret_records = report.records;
    region_written(region);
    wset_note_pages(ws, region);
}

/* All segments of the set have ended. A sample that still lacks bytes of this host fails: nothing loads them,
 * and a client would wait without end. Only a fault of the daemon itself leads here. */
static void settle(struct wset *ws, struct bytes_out *records)
{
    uint64_t missed = 0, first = 0;
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        enum live_state state = wset_sample_state(ws, i);
        unsigned f = 0;
        if (state != LIVE_ABSENT && state != LIVE_LOST)
            continue;
        while (f < ws->index.header->nfields && !wset_part_missing(ws, i, f))
            f++;
        if (f == ws->index.header->nfields)
            continue;
        first = missed++ ? first : i;
        wset_failure(ws, i, -EIO, "the daemon never loaded it: an internal error, please report it");
        wset_piece(ws, i, f, 0, 0, 0, -EIO);
        if (ws->nnodes)
            proto_ready_record_put(records, &(struct proto_ready_record){i, f, 0, 0, 0, -EIO});
    }
    if (missed)
        log_error("%s: internal error: loading ended without %" PRIu64 " samples, the first is %" PRIu64
                  ": they are failed",
                  ws->spec, missed, first);
    wset_settle_empty(ws);
}

/* Under the lock: segments, or files of some, have ended. */
static void mark_ended(struct fill *fill, const struct fill_pick *p)
{
    struct wset *ws = p->ws;
    for (unsigned k = 0; k < p->nfiles; k++)
        ws->segments[p->files[k].segment].state = SEGMENT_TODO;
    if (p->nfiles) /* for threads that had nothing else to do */
        pthread_cond_broadcast(&fill->work);
    for (uint32_t k = p->segment; k < p->segment + p->nsegments; k++) {
        ws->segments[k].state = SEGMENT_DONE;
        atomic_fetch_sub(&ws->pending_bytes, ws->segments[k].bytes);
    }
    ws->segments_left -= p->nsegments;
    atomic_fetch_add(&fill->counters.segments, p->nsegments);
}

static void pick_ended(struct fill *fill, const struct fill_pick *p, struct bytes_out *records)
{
    struct wset *ws = p->ws;
    pthread_mutex_lock(&fill->lock);
    mark_ended(fill, p);
    ws->active--;
    bool complete = ws->segments_left == 0;
    bool over = ws->active == 0 && (complete || ws->fill_cancelled) && !list_empty(&ws->fill_node);
    if (over)
        list_remove(&ws->fill_node);
    pthread_mutex_unlock(&fill->lock);
    if (complete)
        settle(ws, records);
    /* After it is marked done: a node that asks in between for all that is done (fill_segment_done) gets it
     * twice, not never. */
    if (records->len && fill->config.ready)
        fill->config.ready(ws, records);
    bytes_out_fini(records);
    fill->config.advanced(ws);
    if (over)
        wset_unref(ws);
}

/* What was charged to the set goes before the set may. */
static void decoder_done(struct fill_thread *t, struct wset *ws)
{
    struct fill *fill = t->fill;
    if (t->band_cap + t->scratch.stored_cap + t->scratch.decoded_cap > FILL_SCRATCH_KEPT) {
        dataset_scratch_fini(&t->scratch);
        free(t->band);
        t->band = NULL;
        t->band_cap = 0;
    }
    pthread_mutex_lock(&fill->lock);
    ws->decoding--;
    if (ws->decoders) /* a thread that passed it over may take it now */
        pthread_cond_signal(&fill->work);
    pthread_mutex_unlock(&fill->lock);
}

bool fill_load_backed(struct fill_load *load)
{
    if (!load->region ||
        region_reserve(load->region, (uint64_t)(load->dst - load->region->addr), load->bytes) == 0)
        return true;
    load->done(load, LEAT_NO_SPACE, "the host has no memory for it");
    return false;
}

struct fill_load *fill_load_join(struct fill_thread *t, const struct wset *ws, uint64_t loading_bytes)
{
    struct fill *fill = t->fill;
    struct fill_load *load = NULL;
    pthread_mutex_lock(&fill->lock);
    list_for_each (node, &fill->loads) {
        load = container_of(node, struct fill_load, node);
        if (load->ws == ws || decoder_free(load->ws))
            break;
        load = NULL;
    }
    /* A load of another set waits only for loads in flight, should no other thread be free. */
    const bool helped = fill->nidle && decoder_free(load ? load->ws : ws);
    bool ours = !load || load->ws == ws, room = loading_bytes < (helped ? LOADS_SPREAD : LOADS_BYTES);
    t->joins = !(load && ours) && room && loading_bytes > 0 ? ws : NULL;
    if (load && ours && room) {
        load_take(fill, load);
    } else {
        if (load && helped) /* this thread may be the only one that was woken for it */
            pthread_cond_signal(&fill->work);
        load = NULL;
    }
    pthread_mutex_unlock(&fill->lock);
    return load;
}

static void load_run(struct fill_thread *t, struct fill_load *load)
{
    struct fill *fill = t->fill;
    struct wset *ws = wset_ref(load->ws);
    if (ws->remote && !ws->local) {
        fill_remote_loads(t, ws, load, &fill->counters);
        decoder_done(t, ws);
    } else {
        struct fill_target target = {load->dst, -1, 0};
        bool backed = fill_load_backed(load);
        unsigned nbad = backed ? fill_read_range(t, ws, load->address, load->bytes, &target,
                                                 fill->config.opener, &fill->counters)
                               : 0;
        decoder_done(t, ws);
        if (backed)
            load->done(load, nbad ? t->bad[0].code : 0, nbad ? t->bad[0].message : "");
    }
    wset_unref(ws);
}

static uint64_t wide_bytes(const struct fill_config *config)
{
    uint64_t all = config->budget ? MIN(WIDE_ALL_BYTES, config->budget->cap_bytes / WIDE_SHARE) : 0;
    return align_down(MIN(WIDE_BYTES, all / MAX(config->threads, 1u)), REGION_HUGE_BYTES);
}

/* A reservation that would be refused is not tried: operators count refusals as a full pool. */
uint8_t *fill_wide(struct fill_thread *t, uint64_t *ret_bytes)
{
    struct budget *budget = t->fill->config.budget;
    uint64_t bytes = wide_bytes(&t->fill->config);
    *ret_bytes = bytes;
    if (t->wide || !bytes)
        return t->wide;
    if (atomic_load(&budget->used_bytes) + bytes > budget->cap_bytes || budget_reserve(budget, bytes) < 0)
        return NULL;
    t->wide = aligned_alloc(REGION_HUGE_BYTES, bytes);
    if (!t->wide) {
        budget_release(budget, bytes);
        return NULL;
    }
    madvise(t->wide, bytes, MADV_HUGEPAGE);
    atomic_fetch_add(&t->fill->counters.wide_bytes, bytes);
    return t->wide;
}

void fill_wide_give(struct fill_thread *t)
{
    uint64_t bytes = wide_bytes(&t->fill->config);
    if (!t->wide)
        return;
    madvise(t->wide, bytes, MADV_DONTNEED); /* the allocator may keep the addresses, not the memory */
    free(t->wide);
    t->wide = NULL;
    atomic_fetch_sub(&t->fill->counters.wide_bytes, bytes);
    budget_release(t->fill->config.budget, bytes);
}

bool fill_all_begun(const struct fill_thread *t, const struct wset *ws)
{
    pthread_mutex_lock(&t->fill->lock);
    bool all = ws->next_segment == ws->nsegments;
    pthread_mutex_unlock(&t->fill->lock);
    return all;
}

void fill_remote_waits(struct fill_thread *t, struct backend *backend)
{
    pthread_mutex_lock(&t->fill->lock);
    t->waits = backend;
    t->joins = NULL;
    pthread_mutex_unlock(&t->fill->lock);
}

unsigned fill_connections(const struct fill_thread *t)
{
    return t->fill->config.connections;
}

bool fill_remote_cancelled(struct fill_thread *t, const struct wset *ws)
{
    pthread_mutex_lock(&t->fill->lock);
    bool over = t->fill->stopping || wset_is_revoked(ws) ||
                (t->loading ? t->fill->loads_cancelled : ws->fill_cancelled);
    pthread_mutex_unlock(&t->fill->lock);
    return over;
}

/* Under the lock: threads that wait for a server check whether to continue. */
static void remote_wake(struct fill *fill)
{
    for (unsigned k = 0; k < fill->nthreads; k++) {
        if (fill->thread[k] && fill->thread[k]->waits)
            backend_wake(fill->thread[k]->waits);
    }
}

/* Idle, under the lock: hold no file open, so that its file system can be unmounted, and nothing charged; sessions go a while later. */
static void idle(struct fill_thread *t, bool *open_sources)
{
    struct fill *fill = t->fill;
    if (*open_sources) {
        pthread_mutex_unlock(&fill->lock);
        fill_sources_close(t);
        fill_wide_give(t);
        *open_sources = false;
        pthread_mutex_lock(&fill->lock);
    } else if (fill_remote_open(t)) {
        uint64_t until_ns = clock_now_ns() + REMOTE_IDLE_S * NS_PER_S;
        fill->nidle++;
        int rc = cond_wait_until(&fill->work, &fill->lock, until_ns);
        fill->nidle--;
        if (rc == ETIMEDOUT) {
            pthread_mutex_unlock(&fill->lock);
            fill_remote_close(t);
            pthread_mutex_lock(&fill->lock);
        }
    } else {
        fill->nidle++;
        pthread_cond_wait(&fill->work, &fill->lock);
        fill->nidle--;
    }
}

static void *thread_main(void *arg)
{
    struct fill_thread *t = arg;
    struct fill *fill = t->fill;
    bool open_sources = false;
    pthread_mutex_lock(&fill->lock);
    for (;;) {
        struct fill_pick p;
        while (!pick(t, &p)) {
            if (fill->stopping)
                goto out;
            idle(t, &open_sources);
        }
        open_sources = true;
        pthread_mutex_unlock(&fill->lock);
        t->loading = p.load != NULL;
        if (p.load) {
            load_run(t, p.load);
        } else {
            struct wset *ws = wset_ref(p.ws);
            uint64_t began_ns = clock_now_ns();
            struct bytes_out records;
            struct wset_segment run = {.address = ws->segments[p.segment].address}; /* without its state */
            for (uint32_t k = 0; k < p.nsegments; k++)
                run.bytes += ws->segments[p.segment + k].bytes;
            if (p.nfiles)
                files_fill(t, &p, &records);
            else
                segment_fill(t, ws, &run, &records);
            histogram_add(&fill->segment_times, clock_now_ns() - began_ns);
            decoder_done(t, ws);
            pick_ended(fill, &p, &records);
            wset_unref(ws);
        }
        pthread_mutex_lock(&fill->lock);
    }
out:
    for (unsigned k = 0; k < fill->nthreads; k++) {
        if (fill->thread[k] == t)
            fill->thread[k] = NULL;
    }
    pthread_mutex_unlock(&fill->lock);
    fill_sources_close(t);
    fill_remote_close(t);
    dataset_scratch_fini(&t->scratch);
    free(t->band);
    free(t->bounce);
    fill_wide_give(t);
    disk_engine_free(t->engine);
    free(t);
    return NULL;
}

static int thread_start(struct fill *fill, struct leat_error *err)
{
    struct fill_thread *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, -ENOMEM, "out of memory for a fill thread");
    t->fill = fill;
    int rc = fill->config.engine_new
                 ? fill->config.engine_new(fill->config.depth, &t->engine)
                 : disk_engine_new(fill->config.disk_engine, fill->config.depth, &t->engine);
    if (rc < 0) {
        error_sys(err, rc, "cannot start the disk engine '%s'", fill->config.disk_engine);
        free(t);
        return rc;
    }
    fill->engine = t->engine->ops->name;
    fill->thread[fill->nthreads] = t;
    rc = -pthread_create(&fill->threads[fill->nthreads], NULL, thread_main, t);
    if (rc < 0) {
        fill->thread[fill->nthreads] = NULL;
        disk_engine_free(t->engine);
        free(t);
        return error_sys(err, rc, "cannot start a fill thread");
    }
    pthread_mutex_lock(&fill->lock);
    fill->nthreads++;
    pthread_mutex_unlock(&fill->lock);
    return 0;
}

int fill_new(const struct fill_config *config, struct fill **ret_fill, struct leat_error *err)
{
    struct fill *fill = calloc(1, sizeof(*fill));
    if (!fill)
        return error_set(err, -ENOMEM, "out of memory");
    fill->config = *config;
    if (!fill->config.depth)
        fill->config.depth = 16;
    if (!fill->config.disk_engine)
        fill->config.disk_engine = "auto";
    list_init(&fill->sets);
    list_init(&fill->loads);
    pthread_mutex_init(&fill->lock, NULL);
    cond_init(&fill->work);
    unsigned threads = config->threads ? config->threads : 1;
    fill->threads = calloc(threads, sizeof(*fill->threads));
    fill->thread = calloc(threads, sizeof(struct fill_thread *));
    int rc = fill->threads && fill->thread ? 0 : error_set(err, -ENOMEM, "out of memory");
    for (unsigned k = 0; rc == 0 && k < threads; k++)
        rc = thread_start(fill, err);
    if (rc < 0) {
        fill_free(fill);
        return rc;
    }
    *ret_fill = fill;
    return 0;
}

void fill_stop(struct fill *fill)
{
    if (!fill)
        return;
    pthread_mutex_lock(&fill->lock);
    fill->stopping = true;
    list_for_each (node, &fill->sets)
        container_of(node, struct wset, fill_node)->fill_cancelled = true;
    pthread_cond_broadcast(&fill->work);
    remote_wake(fill);
    pthread_mutex_unlock(&fill->lock);
    for (unsigned k = 0; k < fill->nthreads; k++)
        pthread_join(fill->threads[k], NULL);
    fill->nthreads = 0;
    list_for_each_safe (node, &fill->sets) {
        struct wset *ws = container_of(node, struct wset, fill_node);
        list_remove(node);
        wset_unref(ws);
    }
}

void fill_free(struct fill *fill)
{
    if (!fill)
        return;
    fill_stop(fill);
    free(fill->threads);
    free((void *)fill->thread);
    pthread_mutex_destroy(&fill->lock);
    pthread_cond_destroy(&fill->work);
    free(fill);
}

/* Cuts [begin, end) of one region at multiples of segment_bytes, but never inside a chunked extent that fits,
 * nor inside a small file, which would be opened twice. */
static int segments_cut(struct fill *fill, struct wset *ws, uint64_t begin, uint64_t end, uint32_t *cap)
{
    const struct index *index = &ws->index;
    uint64_t bytes = fill->config.segment_bytes ? fill->config.segment_bytes : wset_segment_bytes(index);
    const bool files = index->header->flags & INDEX_FLAG_SMALL_FILES;
    while (begin < end) {
        uint64_t stop = MIN(align_down(begin, bytes) + bytes, end);
        uint64_t k = index_extent_at(index, stop);
        struct index_extent e = k < index->header->nextents ? index->extents[k] : (struct index_extent){0};
        /* A wrong end could lead back, and the cuts never end. */
        if (stop < end && index_extent_sound(index, &e) && e.address < stop && e.address + e.bytes > stop &&
            (e.kind == INDEX_EXTENT_CHUNK || (files && e.bytes <= bytes)))
            stop = MIN(e.address + e.bytes, end);
        if (array_reserve(&ws->segments, cap, ws->nsegments + 1) < 0)
            return -ENOMEM;
        ws->segments[ws->nsegments++] = (struct wset_segment){.address = begin, .bytes = stop - begin};
        atomic_fetch_add(&ws->pending_bytes, stop - begin);
        begin = stop;
    }
    return 0;
}

int fill_plan(struct fill *fill, struct wset *ws)
{
    uint32_t cap = 0;
    uint64_t end = MIN(align_up(ws->index.header->address_end, 4096), ws->pinned_end);
    for (uint32_t g = 0; g < ws->nregions; g++) {
        uint64_t begin = MAX((uint64_t)g * ws->region_bytes, ws->first_new_address);
        uint64_t stop = MIN((uint64_t)(g + 1) * ws->region_bytes, end);
        int rc = ws->regions[g].region && begin < stop ? segments_cut(fill, ws, begin, stop, &cap) : 0;
        if (rc < 0)
            return rc;
    }
    if (fill_urgent_plan(ws) < 0)
        return -ENOMEM;
    ws->segments_left = ws->nsegments;
    return 0;
}

void fill_go(struct fill *fill, struct wset *ws)
{
    if (ws->nsegments == 0) {
        fill->config.advanced(ws);
        return;
    }
    wset_ref(ws);
    pthread_mutex_lock(&fill->lock);
    list_push_back(&fill->sets, &ws->fill_node);
    pthread_cond_broadcast(&fill->work);
    pthread_mutex_unlock(&fill->lock);
}

int fill_start(struct fill *fill, struct wset *ws)
{
    int rc = fill_plan(fill, ws);
    if (rc < 0)
        return rc;
    if (ws->nsegments == 0)
        wset_settle_empty(ws);
    fill_go(fill, ws);
    return 0;
}

void fill_urgent(struct fill *fill, struct wset *ws, uint64_t i)
{
    pthread_mutex_lock(&fill->lock);
    fill_urgent_add(ws, i);
    pthread_mutex_unlock(&fill->lock);
}

void fill_urgent_there(struct fill *fill, struct wset *ws, const uint64_t *samples, uint32_t n, unsigned from,
                       uint32_t share)
{
    struct wset_urgent queue = {0};
    if (!ws->nsegments || (!ws->urgent_there.samples && fill_urgent_there_plan(&queue) < 0))
        return;
    pthread_mutex_lock(&fill->lock);
    if (queue.samples)
        ws->urgent_there = queue;
    fill_urgent_there_add(ws, samples, n, (uint8_t)from, share);
    pthread_mutex_unlock(&fill->lock);
}

bool fill_segment_done(struct fill *fill, struct wset *ws, uint32_t s, uint64_t *ret_begin, uint64_t *ret_end)
{
    pthread_mutex_lock(&fill->lock);
    bool done = ws->segments[s].state == SEGMENT_DONE;
    pthread_mutex_unlock(&fill->lock);
    *ret_begin = ws->segments[s].address;
    *ret_end = ws->segments[s].address + ws->segments[s].bytes;
    return done;
}

void fill_cancel(struct fill *fill, struct wset *ws)
{
    pthread_mutex_lock(&fill->lock);
    ws->fill_cancelled = true;
    remote_wake(fill);
    bool over = ws->active == 0 && !list_empty(&ws->fill_node);
    if (over)
        list_remove(&ws->fill_node);
    pthread_mutex_unlock(&fill->lock);
    if (over)
        wset_unref(ws);
}

void fill_load(struct fill *fill, struct fill_load *load)
{
    pthread_mutex_lock(&fill->lock);
    list_push_back(&fill->loads, &load->node);
    if (!join_wake(fill, load->ws))
        pthread_cond_signal(&fill->work);
    pthread_mutex_unlock(&fill->lock);
}

void fill_loads_cancel(struct fill *fill)
{
    pthread_mutex_lock(&fill->lock);
    fill->loads_cancelled = true;
    remote_wake(fill);
    pthread_mutex_unlock(&fill->lock);
}

struct histogram *fill_segment_times(struct fill *fill)
{
    return &fill->segment_times;
}

void fill_stats(struct fill *fill, struct fill_stats *ret_stats)
{
    struct fill_counters *c = &fill->counters;
    *ret_stats = (struct fill_stats){
        .bytes_direct = atomic_load(&c->bytes_direct),
        .bytes_buffered = atomic_load(&c->bytes_buffered),
        .bytes_decoded = atomic_load(&c->bytes_decoded),
        .files_opened = atomic_load(&c->files_opened),
        .segments = atomic_load(&c->segments),
        .errors = atomic_load(&c->errors),
        .bytes_stored = atomic_load(&c->bytes_stored),
        .bytes_padding = atomic_load(&c->bytes_padding),
        .wide_bytes = atomic_load(&c->wide_bytes),
        .bytes_remote = atomic_load(&c->bytes_remote),
        .remote_requests = atomic_load(&c->remote_requests),
        .remote_retries = atomic_load(&c->remote_retries),
        .remote_throttled = atomic_load(&c->remote_throttled),
        .remote_checked = atomic_load(&c->remote_checked),
        .remote_unchecked = atomic_load(&c->remote_unchecked),
        .remote_connections = atomic_load(&c->remote_connections),
        .engine = fill->engine,
    };
}
