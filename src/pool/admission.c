/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants memory of the pool to a set: all of it, or a pinned part and a window, under the cap and under the
 * host's memory. Idle implicit sets go first. Failure: LEAT_NO_SPACE, with what is needed and free; granted
 * memory stays with the set and goes back with it.
 *
 *   tables (wset_new) ── scratch for the threads that decode it ── window and its tables, if streamed ── regions
 *
 * All of it comes out of one budget. A set that needs much scratch is decoded by fewer threads at a time, not refused.
 */
#include "pool/pool_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "dataset/dataset.h"
#include "pool/region/memory.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "pool/fill/stream_window.h"
#include "pool/set/wset.h"

#include <inttypes.h>

#define MEMORY_MARGIN  (64 * MIB)        /* left to other processes when regions are taken */
#define TEND_EVERY_NS  (200 * NS_PER_MS) /* while the stock is not complete; */
#define WATCH_EVERY_NS NS_PER_S          /* then only the host's memory is looked at */
#define LOADING_NS     (5 * NS_PER_S)    /* a load is not disturbed for so long */
#define LEAVING_NS     NS_PER_S          /* the longest wait for memory that is coming back */
/* Share of the free memory for the threads that decode a set, if one thread needs no more. */
#define SCRATCH_SHARE 8

/* Host memory that can still be taken; prefaulted regions are not part of it any more. */
static uint64_t host_room(struct pool *pool)
{
    uint64_t memory = pool_memory_available();
    /* Memory that is promised to other sets, and not taken yet, still counts as available there. */
    list_for_each (node, &pool->sets)
        memory -= MIN(memory, atomic_load(&container_of(node, struct wset, node)->pending_bytes));
    return memory > MEMORY_MARGIN ? memory - MEMORY_MARGIN : 0;
}

/* Prefaulted memory counts as free: an admitted set gets it, or it is released. */
uint64_t pool_free_bytes(struct pool *pool)
{
    uint64_t used = atomic_load(&pool->budget.used_bytes), cap = pool->budget.cap_bytes,
             ready = prefault_bytes(pool->ready);
    used -= MIN(used, ready);
    return MIN(cap > used ? cap - used : 0, host_room(pool) + ready);
}

static bool loading_since(struct pool *pool, uint64_t when_ns)
{
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        if (atomic_load(&ws->pending_bytes) > 0 && ws->created_ns > when_ns)
            return true;
    }
    return false;
}

void pool_ready_tend(struct loop_timer *timer)
{
    struct pool *pool = container_of(timer, struct pool, prefault_timer);
    uint64_t now = clock_now_ns(), used = atomic_load(&pool->budget.used_bytes),
             memory = pool_memory_available();
    if (memory < MEMORY_MARGIN) {
        prefault_cancel(pool->ready, MEMORY_MARGIN - memory);
    } else if (prefault_bytes(pool->ready) < pool->config.prefault_bytes && list_empty(&pool->works) &&
               !loading_since(pool, now - MIN(now, (uint64_t)LOADING_NS))) {
        /* Twice the margin, or it would be released again at once. */
        uint64_t room = host_room(pool), cap = pool->budget.cap_bytes;
        room -= MIN(room, (uint64_t)MEMORY_MARGIN);
        prefault_allow(pool->ready, MIN(room, cap > used ? cap - used : 0));
    }
    bool complete = prefault_bytes(pool->ready) >= pool->config.prefault_bytes;
    loop_timer_set(pool->loop, timer, now + (complete ? WATCH_EVERY_NS : TEND_EVERY_NS));
}

/* A region for a set: a prefaulted one, else a new one, for which prefaulted ones are freed. */
int pool_region(struct pool *pool, uint64_t region_bytes, uint64_t used, struct region **ret_region,
                struct leat_error *err)
{
    struct region *region = prefault_take(pool->ready, region_bytes, used);
    if (region) {
        *ret_region = region;
        return 0;
    }
    uint64_t taken = atomic_load(&pool->budget.used_bytes), cap = pool->budget.cap_bytes;
    uint64_t lacking = taken + used > cap ? taken + used - cap : 0;
    if (prefault_bytes(pool->ready) > 0) {
        uint64_t room = host_room(pool);
        prefault_cancel(pool->ready, MAX(lacking, used > room ? used - room : 0));
    }
    if (budget_reserve(&pool->budget, used) < 0)
        return error_set(err, LEAT_NO_SPACE, "the pool is full");
    int rc = region_new(&pool->config.pages, region_bytes, used, &pool->budget, ret_region, err);
    if (rc < 0)
        budget_release(&pool->budget, used);
    return rc;
}

/* Stays only because it may be opened again. */
static bool is_idle(const struct wset *ws)
{
    return wset_is_findable(ws) && ws->leases == 0 && ws->peers.nholders == 0 &&
           !(ws->flags & PROTO_WS_EXPLICIT);
}

static void evict(struct pool *pool, struct wset *ws)
{
    log_info("dropping idle %s to make room", ws->spec);
    atomic_fetch_add(&pool->evictions, 1);
    pool_drop(pool, ws, POOL_SWEEP);
}

bool pool_evict_oldest(struct pool *pool, const uint32_t *uid)
{
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (is_idle(ws) && (!uid || ws->owner_uid == *uid)) {
            evict(pool, ws);
            return true;
        }
    }
    return false;
}

void pool_evict_idle(struct pool *pool, uint64_t want, bool patient)
{
    list_for_each_safe (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (pool_free_bytes(pool) + (patient ? atomic_load(&pool->leaving_bytes) : 0) >= want)
            return;
        if (is_idle(ws))
            evict(pool, ws);
    }
}

bool pool_wait_for_free(struct pool *pool, uint64_t want, uint64_t *until_ns)
{
    uint64_t now = clock_now_ns();
    pool_evict_idle(pool, want, true);
    if (!*until_ns)
        *until_ns = now + LEAVING_NS;
    if (pool_free_bytes(pool) < want && atomic_load(&pool->leaving_bytes) > 0 && now < *until_ns)
        return true;
    pool_evict_idle(pool, want, false);
    return false;
}

/* A reservation for memory other than regions: prefaulted memory is released for it. Any thread. */
static int budget_from_prefault(struct pool *pool, uint64_t bytes)
{
    int rc = budget_reserve(&pool->budget, bytes);
    if (rc < 0 && prefault_bytes(pool->ready) > 0) {
        prefault_cancel(pool->ready, bytes);
        rc = budget_reserve(&pool->budget, bytes);
    }
    return rc;
}

static int tables_refuse(const struct wset *ws, uint64_t bytes, struct leat_error *err)
{
    const struct budget *budget = &ws->pool->budget;
    char needs[32], each[32], has[32], cap[32];
    uint64_t n = MAX(ws->index.header->nsamples, (uint64_t)1), used = atomic_load(&budget->used_bytes);
    size_format(bytes, needs);
    size_format(div_up(bytes, n), each);
    size_format(budget->cap_bytes - MIN(used, budget->cap_bytes), has);
    size_format(budget->cap_bytes, cap);
    return error_set(
        err, LEAT_NO_SPACE,
        "the tables of its %" PRIu64 " samples need %s (%s a sample, beside its bytes) and the "
        "pool has %s free of %s: raise the pool's size, drop a set, or put several samples into one",
        n, needs, each, has, cap);
}

static int tables_take(struct wset *ws, uint64_t bytes, struct leat_error *err)
{
    struct pool *pool = ws->pool;
    if (budget_from_prefault(pool, bytes) < 0)
        return tables_refuse(ws, bytes, err);
    atomic_fetch_add(&ws->table_bytes, bytes);
    atomic_fetch_add(&pool->table_bytes, bytes);
    return 0;
}

static void tables_give(struct wset *ws, uint64_t bytes)
{
    budget_release(&ws->pool->budget, bytes);
    atomic_fetch_sub(&ws->table_bytes, bytes);
    atomic_fetch_sub(&ws->pool->table_bytes, bytes);
}

static void set_born(struct pool *pool)
{
    atomic_fetch_add(&pool->sets_alive, 1);
}

static void set_gone(struct wset *ws)
{
    struct pool *pool = ws->pool;
    uint64_t tables = atomic_load(&ws->table_bytes);
    budget_release(&pool->budget, tables + ws->scratch_bytes);
    atomic_fetch_sub(&pool->table_bytes, tables);
    atomic_fetch_sub(&pool->scratch_bytes, ws->scratch_bytes);
    atomic_fetch_sub(&pool->leaving_bytes, atomic_load(&ws->leaving_bytes));
    atomic_fetch_sub(&pool->sets_alive, 1);
}

const struct wset_owner_ops pool_set_ops = {.charge = tables_take, .born = set_born, .gone = set_gone};

/* Of a thread that decodes a set. */
static uint64_t scratch_bytes(const struct pool *pool, const struct index *index, bool remote)
{
    return dataset_scratch_bytes(index) +
           (remote ? fill_remote_bytes(index, pool->config.s3.connections) : 0);
}

int pool_set_new(struct pool *pool, int index_fd, bool trusted, struct wset **ret_ws, struct leat_error *err)
{
    int rc = wset_new(&pool->set_config, index_fd, trusted, ret_ws, err);
    if (rc == 0)
        (*ret_ws)->scratch_each = scratch_bytes(pool, &(*ret_ws)->index, (*ret_ws)->remote);
    return rc;
}

uint64_t pool_bytes_wanted(const struct pool *pool, const struct index *index)
{
    bool remote = index->header->nsources && index_source_is_remote(index, 0);
    uint64_t each = scratch_bytes(pool, index, remote),
             bytes = wset_table_bytes(index, true, &pool->set_config), sum;
    each = each > FILL_SCRATCH_KEPT ? each : 0;
    if (mul_overflows(each, pool->config.fill_threads, &sum) || sum > pool->budget.cap_bytes / SCRATCH_SHARE)
        sum = each;
    return add_overflows(bytes, sum, &sum) ||
                   add_overflows(sum, align_up(index->header->address_end, REGION_HUGE_BYTES), &sum)
               ? UINT64_MAX
               : sum;
}

/* Memory for samples on this host, if the set gets all that it may. */
static uint64_t samples_bytes(const struct wset *ws)
{
    uint64_t bytes = ws->window_bytes ? ws->window_bytes + pool_window_tables(ws, ws->window_bytes) : 0;
    if (ws->nnodes == 0)
        return align_up(ws->index.header->address_end, REGION_HUGE_BYTES);
    for (uint32_t g = 0; g < ws->nregions; g++)
        bytes += wset_region_node(ws, g) == ws->self_node ? ws->region_bytes : 0;
    return bytes;
}

/* Before regions: for as many threads at a time as fit beside the samples, and one at least. If the samples
 * do not fit anyway, a share of the free memory counts. */
static int scratch_take(struct pool *pool, struct wset *ws, struct leat_error *err)
{
    uint64_t each = ws->scratch_each;
    if (each <= FILL_SCRATCH_KEPT)
        return 0;
    pool_evict_idle(pool, each, false);
    uint64_t room = pool_free_bytes(pool), samples = samples_bytes(ws),
             spare = samples <= room && room - samples >= each ? room - samples : room / SCRATCH_SHARE,
             threads = MIN(MAX(spare / each, (uint64_t)1), MAX(pool->config.fill_threads, 1u));
    if (each > room || budget_from_prefault(pool, threads * each) < 0) {
        char needs[32], has[32], cap[32];
        size_format(each, needs);
        size_format(room, has);
        size_format(pool->budget.cap_bytes, cap);
        return error_set(
            err, LEAT_NO_SPACE,
            ws->remote ? "reading it takes %s of buffers and the pool has %s free of %s: raise the pool's "
                         "size, drop a set, or have fewer connections ([s3] connections)"
                       : "unpacking a chunk of it takes %s and the pool has %s free of %s: raise the pool's "
                         "size, drop a set, or write the file with smaller chunks",
            needs, has, cap);
    }
    ws->decoders = (unsigned)threads;
    ws->scratch_bytes = threads * each;
    atomic_fetch_add(&pool->scratch_bytes, ws->scratch_bytes);
    return 0;
}

int pool_regions_make(struct pool *pool, struct wset *ws, uint64_t first_gid, uint64_t end,
                      struct leat_error *err)
{
    uint32_t n = (uint32_t)div_up(end, ws->region_bytes);
    if (n > ws->nregions || !ws->regions) {
        struct wset_region *regions = realloc(ws->regions, MAX(n, 1u) * sizeof(*regions));
        if (!regions)
            return error_set(err, -ENOMEM, "out of memory for %u regions", n);
        ws->regions = regions;
        memset(regions + ws->nregions, 0, (n - MIN(n, ws->nregions)) * sizeof(*regions));
        ws->nregions = n;
    }
    for (uint64_t g = first_gid; g < ws->nregions; g++) {
        if (ws->nnodes && wset_region_node(ws, (uint32_t)g) != ws->self_node)
            continue;
        uint64_t used = region_charge(&pool->config.pages, ws->region_bytes,
                                      MIN(ws->region_bytes, align_up(end, 4096) - g * ws->region_bytes));
        int rc = pool_region(pool, ws->region_bytes, used, &ws->regions[g].region, err);
        if (rc < 0)
            return rc;
        ws->pool_bytes += used;
    }
    return 0;
}

/* The smallest window that the largest sample passes through: each field's run is widened to whole blocks. */
static uint64_t window_least(const struct wset *ws)
{
    const struct index_header *h = ws->index.header;
    return align_up(h->max_sample_bytes, 4096) + (h->nfields + 1) * 3ull * 4096;
}

/* Checksums that are known, a byte each, for a set that is streamed. */
static uint64_t known_bytes(const struct wset *ws)
{
    return ws->index.header->nsamples * ws->index.header->nfields;
}

uint64_t pool_window_tables(const struct wset *ws, uint64_t window)
{
    return stream_window_table_bytes(window) + known_bytes(ws);
}

/* The largest window that fits `bytes` with its tables. */
static uint64_t window_in(const struct wset *ws, uint64_t bytes, uint64_t page)
{
    uint64_t known = known_bytes(ws), window = bytes > known ? (bytes - known) / 9 * 8 : 0;
    window = align_down(window, page);
    return window + pool_window_tables(ws, window) <= bytes ? window : 0;
}

/* What the set gets: all of it, or a pinned part and a window of a quarter. Sets ws->pinned_end and
 * *ret_window. */
static int admit(struct pool *pool, struct wset *ws, uint64_t limit, uint64_t *ret_window,
                 struct leat_error *err)
{
    uint64_t page = region_charge(&pool->config.pages, ws->region_bytes, 1);
    uint64_t need = align_up(ws->index.header->address_end, page);
    pool_evict_idle(pool, MIN(need, limit), false);
    uint64_t grant = MIN(pool_free_bytes(pool), limit);
    *ret_window = 0;
    if (need <= grant)
        return 0;
    char needs[32], has[32], cap[32];
    size_format(need, needs);
    size_format(grant, has);
    size_format(pool->budget.cap_bytes, cap);
    uint64_t least = window_least(ws);
    uint64_t window = MIN(align_up(MAX(grant / 4, 4 * least), page), window_in(ws, grant, page));
    if (ws->flags & PROTO_WS_PUSHED)
        return error_set(
            err, LEAT_NO_SPACE,
            "the set needs %s and the pool has %s free of %s: raise the pool's size or drop a set", needs,
            has, cap);
    if (window < least)
        return error_set(err, LEAT_NO_SPACE,
                         "the set needs %s, the pool has %s free of %s, and not even a window for streaming "
                         "it fits: raise the pool's "
                         "size or drop a set",
                         needs, has, cap);
    ws->pinned_end = align_down(grant - window - pool_window_tables(ws, window), page);
    ws->flags |= PROTO_WS_STREAMED;
    *ret_window = window;
    return 0;
}

static void stream_window_ready(struct wset *ws)
{
    if (ws->pool->advanced)
        ws->pool->advanced(ws->pool->user, ws);
}

static int stream_window_make(struct pool *pool, struct wset *ws, uint64_t window, struct leat_error *err)
{
    struct region *region = NULL;
    uint64_t tables = pool_window_tables(ws, window);
    int rc = tables_take(ws, tables, err);
    if (rc < 0)
        return rc;
    rc = pool_region(pool, window, window, &region, err);
    if (rc < 0) {
        tables_give(ws, tables); /* each later request tries again */
        return error_prefix(err, rc, "no room for a window of %" PRIu64 " bytes", window);
    }
    if (!ws->crc_known)
        ws->crc_known = calloc(MAX(known_bytes(ws), (uint64_t)1), 1);
    rc = ws->crc_known
             ? stream_window_new(pool->loop, pool->fill, ws, region, stream_window_ready, &ws->window)
             : -ENOMEM;
    if (rc < 0) {
        region_unref(region);
        tables_give(ws, tables);
        return error_set(err, rc, "out of memory for a window");
    }
    ws->pool_bytes += window;
    return 0;
}

int pool_stream_window(struct pool *pool, struct wset *ws, struct stream_window **ret_window,
                       struct leat_error *err)
{
    if (!ws->window) {
        /* A sample that was lost with its node: read from its source again, through a small window. Or a streamed set that another
         * node placed: it left a third of this node's part for a window. */
        uint64_t window = MAX(64 * MIB, 4 * window_least(ws)), own = 0;
        for (uint32_t g = 0; (ws->flags & PROTO_WS_STREAMED) && g < ws->nregions; g++)
            own += wset_region_node(ws, g) == ws->self_node ? ws->region_bytes : 0;
        window = MAX(window, own / 3);
        prefault_hold(pool->ready);
        pool_evict_idle(pool, window + pool_window_tables(ws, window), false);
        window = align_down(MIN(window, window_in(ws, pool_free_bytes(pool), 4096)), 4096);
        if (window < window_least(ws))
            return error_set(err, LEAT_NO_SPACE, "the pool has no room to read lost samples again");
        int rc = stream_window_make(pool, ws, window, err);
        if (rc < 0)
            return rc;
    }
    *ret_window = ws->window;
    return 0;
}

/* Takes what the set needs on this host, or what the cluster decided. */
int pool_begin(struct pool *pool, struct wset *ws, uint64_t limit, struct leat_error *err)
{
    prefault_hold(pool->ready);
    int rc = scratch_take(pool, ws, err);
    if (rc == 0 && ws->nnodes == 0) {
        ws->region_bytes = pool->config.region_bytes;
        rc = admit(pool, ws, limit ? limit : UINT64_MAX, &ws->window_bytes, err);
    }
    if (rc == 0 && ws->window_bytes)
        rc = stream_window_make(pool, ws, ws->window_bytes, err);
    if (rc == 0)
        rc = pool_regions_make(pool, ws, 0, MIN(ws->index.header->address_end, ws->pinned_end), err);
    if (rc == 0 && (ws->flags & PROTO_WS_STREAMED))
        wset_pin(ws, ws->pinned_end);
    return rc;
}
