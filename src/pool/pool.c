/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: start, stop, finding sets, and how a set ends.
 *
 * Sets are made in opening.c (from a source) and prepare.c (pushed, longer, or placed by another node);
 * admission.c grants them memory. A set ends by sweep, by drop or by force, and its memory goes with the last
 * reference. Failure mode of the stop: a thread that hangs in a file system keeps it (pool_stop reports it).
 */
#include "pool/pool.h"

#include "base/clock.h"
#include "dataset/dataset.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "rpc/conn.h"
#include "pool/pool_internal.h"
#include "pool/region/prefault.h"
#include "pool/work.h"
#include "pool/set/wset.h"
#include "wire/address.h"

#define STOP_NS (10 * NS_PER_S)

static void advanced_on_loop(void *arg)
{
    struct wset *ws = arg;
    atomic_store(&ws->notify_pending, false);
    ws->loaded = wset_is_loaded(ws);
    if (ws->pool->nodes)
        ws->pool->nodes->advanced(ws->pool->cluster, ws);
    if (ws->pool->advanced)
        ws->pool->advanced(ws->pool->user, ws);
    wset_unref(ws);
}

/* One message to the loop however many segments end in between. */
void wset_progressed(struct wset *ws)
{
    if (atomic_exchange(&ws->notify_pending, true))
        return;
    wset_ref(ws);
    while (loop_post(ws->pool->loop, advanced_on_loop, ws) < 0)
        usleep(1000); /* out of memory: readers wait for this, and nothing else may come to wake them */
}

static void fill_ready(struct wset *ws, struct bytes_out *records)
{
    if (ws->pool->nodes)
        ws->pool->nodes->filled(ws->pool->cluster, ws, records);
}

int pool_new(struct loop *loop, const struct pool_config *config, struct pool **ret_pool,
             struct leat_error *err)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return error_set(err, -ENOMEM, "out of memory");
    pool->config = *config;
    pool->set_config = (struct wset_config){.owner = &pool_set_ops,
                                            .pool = pool,
                                            .region_bytes = config->region_bytes,
                                            .huge_dir = config->pages.huge_dir};
    pool->loop = loop;
    list_init(&pool->sets);
    list_init(&pool->openings);
    list_init(&pool->changes);
    list_init(&pool->works);
    list_init(&pool->scans);
    list_init(&pool->access_cache);
    pthread_mutex_init(&pool->rdma_lock, NULL);
    budget_init(&pool->budget, config->cap_bytes);
    limits_default(&pool->config.limits);
    quota_init(&pool->shares);
    struct fill_config fc = {.threads = config->fill_threads,
                             .depth = config->disk_depth,
                             .disk_engine = config->disk_engine,
                             .opener = &pool->config.opener,
                             .budget = &pool->budget,
                             .connections = config->s3.connections,
                             .advanced = wset_progressed,
                             .ready = fill_ready};
    int code = fill_new(&fc, &pool->fill, err);
    if (code == 0 && (code = net_server_new(config->data_threads, &pool->server)) < 0)
        error_sys(err, code, "cannot start the data threads");
    struct prefault_config rc = {.pages = config->pages,
                                 .region_bytes = config->region_bytes,
                                 .bytes = config->prefault_bytes,
                                 .budget = &pool->budget};
    pool->prefault_timer.fire = pool_ready_tend;
    if (code == 0 && config->prefault_bytes && (code = prefault_new(&rc, &pool->ready, err)) == 0)
        pool_ready_tend(&pool->prefault_timer);
    if (code < 0) {
        pool_free(pool);
        return code;
    }
    *ret_pool = pool;
    return 0;
}

void pool_store(struct pool *pool, struct store *store,
                bool (*may_read)(void *user, uint32_t uid, const char *bucket), void *user)
{
    pool->store = (struct access_store){.store = store,
                                        .may_read = may_read,
                                        .user = user,
                                        .disk_engine = pool->config.disk_engine,
                                        .disk_depth = pool->config.disk_depth};
}

/* Messages of fill threads and closed connections may hold last references. */
static void wait_for_sets(struct pool *pool)
{
    for (int turns = 0; atomic_load(&pool->sets_alive) > 0 && turns < 1000; turns++)
        loop_turn(pool->loop, 1);
}

int pool_stop(struct pool *pool)
{
    if (!pool || !pool->fill)
        return 0;
    atomic_store(&pool->stopping, true);
    openings_cancel(pool);
    work_cancel_waiting(pool);
    fill_loads_cancel(pool->fill); /* a verification may wait for one */
    uint64_t deadline_ns = clock_now_ns() + STOP_NS;
    while (atomic_load(&pool->threads) > 0 && clock_now_ns() < deadline_ns)
        loop_turn(pool->loop, 10);
    if (atomic_load(&pool->threads) > 0)
        return LEAT_TIMED_OUT;
    /* The last message of a thread that has ended may still wait its turn. */
    for (int turns = 0; turns < 1000 && (!list_empty(&pool->openings) || !list_empty(&pool->works) ||
                                         !list_empty(&pool->changes) || !list_empty(&pool->scans));
         turns++)
        loop_turn(pool->loop, 1);
    net_server_free(pool->server);
    pool->server = NULL;
    while (!list_empty(&pool->sets))
        pool_drop(pool, list_first(&pool->sets, struct wset, node), POOL_SWEEP);
    fill_stop(pool->fill);
    wait_for_sets(pool);
    loop_timer_clear(&pool->prefault_timer);
    prefault_free(pool->ready);
    pool->ready = NULL;
    return 0;
}

void pool_free(struct pool *pool)
{
    if (!pool || pool_stop(pool) < 0)
        return;
    net_server_free(pool->server);
    wait_for_sets(pool);
    fill_free(pool->fill);
    pool_rdma_stop(pool);
    pthread_mutex_destroy(&pool->rdma_lock);
    quota_fini(&pool->shares);
    access_cache_forget(pool);
    free(pool);
}

/* --- finding --------------------------------------------------------------------------------------------------- */

/* Which of two sets a user means by a word that fits both: its own, else one that it may read. */
static struct wset *prefer(struct wset *a, struct wset *b, uint32_t uid, uint32_t gid)
{
    if (!a || a->owner_uid == uid)
        return a ? a : b;
    return b->owner_uid == uid || (!wset_allows(a, uid, gid) && wset_allows(b, uid, gid)) ? b : a;
}

struct wset *pool_find_name(struct pool *pool, const char *name, uint32_t uid, uint32_t gid)
{
    struct wset *best = NULL;
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (wset_is_findable(ws) && ws->name[0] && strcmp(ws->name, name) == 0)
            best = prefer(best, ws, uid, gid);
    }
    return best;
}

struct wset *pool_find_own_name(struct pool *pool, const char *name, uint32_t uid)
{
    struct wset *found = NULL;
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if ((wset_is_findable(ws) || wset_is_uncommitted(ws)) && ws->owner_uid == uid && ws->name[0] &&
            strcmp(ws->name, name) == 0 &&
            (!found || wset_is_uncommitted(found))) /* of two versions the one that is there */
            found = ws;
    }
    return found;
}

struct wset *pool_find_uuid(struct pool *pool, const uint8_t uuid[PROTO_UUID])
{
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (memcmp(ws->uuid, uuid, PROTO_UUID) == 0)
            return ws;
    }
    return NULL;
}

struct wset *pool_find(struct pool *pool, const char *text, uint32_t uid, uint32_t gid)
{
    if (address_of(text) == ADDRESS_SET)
        return pool_find_name(pool, text + 7, uid, gid);
    struct wset *named = pool_find_name(pool, text, uid, gid), *best = NULL;
    if (named)
        return named;
    struct dataset_spec spec;
    if (dataset_spec_parse(text, &spec, NULL) < 0)
        return NULL;
    AUTO_FREE char *canonical = dataset_spec_format(&spec);
    dataset_spec_free(&spec);
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (canonical && wset_is_findable(ws) && strcmp(ws->spec, canonical) == 0)
            best = prefer(best, ws, uid, gid);
    }
    return best;
}

/* --- names, owners, limits --------------------------------------------------------------------------------------------------- */

int pool_name(struct wset *ws, const char *name, const char *spec)
{
    /* Fill threads use the spec in their messages: once given, it stays where it is. */
    bool same = strcmp(ws->spec, spec) == 0;
    assert(same || !ws->spec[0]);
    char *n = strdup(name), *s = same ? ws->spec : strdup(spec);
    if (!n || !s) {
        free(n);
        if (!same)
            free(s);
        return -ENOMEM;
    }
    free(ws->name);
    if (!same)
        free(ws->spec);
    ws->name = n;
    ws->spec = s;
    if (name[0])
        ws->flags |= PROTO_WS_EXPLICIT;
    return 0;
}

void pool_own(struct wset *ws, uint32_t uid, uint32_t gid, struct source_groups *groups, uint32_t flags)
{
    ws->owner_uid = uid;
    ws->owner_gid = gid;
    ws->owner_groups = source_groups_ref(groups);
    ws->mode = flags & LEAT_OPEN_PUBLIC ? 0644 : 0600;
}

/* Each set costs descriptors, which all users share. Idle ones make room: the limit counts sets in use. */
int pool_sets_check(struct pool *pool, uint32_t uid, struct leat_error *err)
{
    const struct limits *l = &pool->config.limits;
    unsigned all = 0, own = 0;
    list_for_each (node, &pool->sets) {
        all++;
        own += container_of(node, struct wset, node)->owner_uid == uid;
    }
    if (own >= l->user_sets && pool_evict_oldest(pool, &uid)) {
        own--;
        all--;
    }
    if (all >= l->sets && pool_evict_oldest(pool, NULL))
        all--;
    if (own >= l->user_sets)
        return error_set(err, LEAT_BUSY,
                         "user %u has %u working sets in use, and a user may have %u: close or drop some "
                         "(see `leat ls`), or "
                         "raise user_sets in [limits] of leatd.conf",
                         uid, own, l->user_sets);
    if (all >= l->sets)
        return error_set(err, LEAT_BUSY,
                         "there are %u working sets in use, and %u are allowed: close or drop some (see "
                         "`leat ls`), or raise "
                         "sets in [limits] of leatd.conf",
                         all, l->sets);
    return 0;
}

/* Memory that is taken and cannot be read yet. */
int pool_creates_check(struct pool *pool, uint32_t uid, struct leat_error *err)
{
    unsigned open = 0, most = pool->config.limits.user_creates;
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        open += ws->owner_uid == uid && (ws->flags & PROTO_WS_PUSHED) && !wset_complete(ws);
    }
    if (open < most)
        return 0;
    return error_set(err, LEAT_BUSY,
                     "user %u has %u sets that are being pushed, and a user may have %u: finish or drop one, "
                     "or raise user_creates in [limits] of leatd.conf",
                     uid, open, most);
}

/* --- beginning and ending ------------------------------------------------------------------------------------------------ */

void pool_list(struct pool *pool, struct wset *ws, enum wset_phase phase)
{
    wset_move(ws, phase);
    list_push_back(&pool->sets, &ws->node);
}

int pool_host(struct pool *pool, struct wset *ws, uint64_t limit_bytes, struct leat_error *err)
{
    ws->created_ns = clock_now_ns();
    int rc = pool_begin(pool, ws, limit_bytes, err);
    if (rc == 0 && (rc = fill_start(pool->fill, ws)) < 0)
        error_set(err, rc, "out of memory while starting to load");
    if (rc == 0)
        pool_list(pool, ws, WSET_LIVE);
    return rc;
}

/* Its last reader here is gone. */
static void superseded_sweep(struct wset *ws)
{
    if (!wset_phase_in(ws, 1u << WSET_SUPERSEDED) || ws->leases > 0)
        return;
    if (ws->peers.nholders == 0)
        pool_drop(ws->pool, ws, POOL_SWEEP);
    else
        ws->pool->nodes->release(ws->pool->cluster, ws);
}

void pool_supersede(struct pool *pool, struct wset *ws)
{
    if (ws->nnodes == 0) {
        pool_drop(pool, ws, POOL_SWEEP); /* readers here keep its memory by their references */
        return;
    }
    /* A later version was made of it, so it is committed on other nodes: its own COMMIT is late, and must not
     * bring it to life after this. */
    pool_commit(pool, ws);
    /* Readers on other nodes come for it by its uuid: it stays listed as long as one of them holds it. */
    if (wset_is_findable(ws)) { /* other nodes may say it several times, or of a set that has ended here */
        wset_move(ws, WSET_SUPERSEDED);
        ws->flags &= ~PROTO_WS_EXPLICIT;
    }
    superseded_sweep(ws);
}

void pool_lease(struct wset *ws)
{
    ws->leases++;
    wset_ref(ws);
    if (ws->pool->nodes)
        ws->pool->nodes->retain(ws->pool->cluster, ws);
}

void pool_unlease(struct wset *ws)
{
    assert(ws->leases > 0);
    ws->leases--;
    superseded_sweep(ws);
    wset_unref(ws);
}

void pool_sweep(struct pool *pool, uint32_t uid)
{
    list_for_each_safe (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (ws->leases > 0 || wset_is_uncommitted(ws) || (ws->flags & PROTO_WS_EXPLICIT) ||
            (uid != UINT32_MAX && ws->owner_uid != uid))
            continue;
        if (ws->peers.nholders == 0)
            pool_drop(pool, ws, POOL_SWEEP);
        else if (pool->nodes) /* or two nodes would keep it for each other, for ever */
            pool->nodes->release(pool->cluster, ws);
    }
}

/* A drop also means the version that is being made of the set. */
static void drop_successor(struct pool *pool, const struct wset *ws, enum pool_end end)
{
    list_for_each_safe (node, &pool->sets) {
        struct wset *next = container_of(node, struct wset, node);
        if (next->replaces == ws) {
            pool_drop(pool, next, end);
            return;
        }
    }
}

void pool_drop(struct pool *pool, struct wset *ws, enum pool_end end)
{
    if (!wset_has_ended(ws)) {
        atomic_fetch_add(&pool->drops, 1);
        if (end == POOL_DROP_FORCE)
            atomic_fetch_add(&ws->live->generation, 1);
        wset_move(ws, end == POOL_DROP_FORCE ? WSET_REVOKED : WSET_ENDED);
        list_remove(&ws->node);
        if (ws->leases == 0 && end != POOL_DROP_FORCE) {
            /* Back at once, or when a thread or a connection releases it. */
            uint64_t bytes = ws->pool_bytes + atomic_load(&ws->table_bytes) + ws->scratch_bytes;
            atomic_store(&ws->leaving_bytes, bytes);
            atomic_fetch_add(&pool->leaving_bytes, bytes);
        }
        if (pool->nodes)
            pool->nodes->forget(pool->cluster, ws, end != POOL_SWEEP, end == POOL_DROP_FORCE);
        wset_ref(ws);
        if (ws->replaces && ws->replaces->appender == ws)
            ws->replaces->appender = NULL;
        if (ws->appender && end != POOL_SWEEP)
            drop_successor(pool, ws, end);
        fill_cancel(pool->fill, ws); /* after the move: it wakes loads, which look at the phase once */
        if (end == POOL_DROP_FORCE) {
            if (pool->revoked)
                pool->revoked(pool->user, ws);
            for (uint32_t g = 0; g < ws->nregions; g++) {
                if (ws->regions[g].region)
                    region_give_up(ws->regions[g].region);
            }
        } else if (ws->leases > 0) {
            wset_progressed(ws); /* requests that wait for what is not loaded any more */
        }
        wset_unref(ws);
        wset_unref(ws); /* the pool's own */
        if (pool->changed)
            pool->changed(pool->user);
    }
}
