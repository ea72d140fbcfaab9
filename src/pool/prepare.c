/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a set is made, in two steps, so that several nodes (or one) have all of it or nothing.
 *
 *   pool_prepare: reservations, regions, fill's plan (loop) ─▶ memory behind pushed regions, what the version before knows (a thread)
 *                 ─▶ done: listed, but found by its uuid only
 *   pool_commit:  the version before ends, filling begins; cannot fail
 *
 * Failure modes: no room, a name that is taken, a node of the version before lost, or that version dropped,
 * in the meantime: each is an error to done, and what was taken goes back. Invariant: `prepared` sets are
 * listed, so that what happens to nodes is noted in them; everything that looks for sets by name or source
 * passes them over (wset_is_findable).
 */
#include "pool/pool_internal.h"

#include "base/clock.h"
#include "base/size.h"
#include "leat/leat.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "pool/work.h"
#include "pool/set/wset.h"

struct preparing {
    struct work work;
    struct wset *ws; /* a reference */
    uint64_t losses; /* of the version before, when we began */
    pool_prepared_fn done;
    void *user;
    struct leat_error err;
};

static void appender_clear(struct wset *ws)
{
    if (ws->replaces && ws->replaces->appender == ws)
        ws->replaces->appender = NULL;
}

static int regions_reserve(struct wset *ws, struct leat_error *err)
{
    for (uint32_t g = 0; g < ws->nregions; g++) {
        struct region *r = ws->regions[g].region;
        if (r && region_reserve(r, 0, r->used_bytes) < 0)
            return error_set(err, LEAT_NO_SPACE, "the host has no memory for the set");
    }
    return 0;
}

static void prepare_run(struct work *work)
{
    struct preparing *p = container_of(work, struct preparing, work);
    struct wset *ws = p->ws;
    if (p->err.code < 0)
        return;
    if (ws->flags & PROTO_WS_PUSHED)
        p->err.code = regions_reserve(ws, &p->err);
    if (p->err.code == 0 && ws->replaces)
        wset_inherit(ws, ws->replaces);
    if (p->err.code == 0 && ws->nsegments == 0)
        wset_settle_empty(ws);
}

static int still_good(struct preparing *p, struct leat_error *err)
{
    struct wset *ws = p->ws, *old = ws->replaces;
    if (p->work.cancelled)
        return error_set(err, -ECANCELED, "the daemon is ending");
    if (p->err.code < 0)
        return p->err.code;
    if (wset_has_ended(ws) || (old && wset_has_ended(old)))
        return error_set(err, LEAT_STALE, "'%s' was dropped in the meantime", ws->name);
    if (old && (old->peers.nlost || old->losses != p->losses))
        return error_set(err, LEAT_PEER_GONE, "a node that holds part of '%s' was lost in the meantime",
                         ws->name);
    return 0;
}

static void prepare_done(struct work *work)
{
    struct preparing *p = container_of(work, struct preparing, work);
    struct wset *ws = p->ws;
    int rc = still_good(p, &p->err);
    if (rc < 0)
        appender_clear(ws);
    if (rc == 0)
        wset_move(ws, ws->peers.orphaned_ns ? WSET_ORPHANED : WSET_PREPARED);
    else if (wset_phase_in(ws, 1u << WSET_NEW))
        wset_unref(ws); /* was never listed */
    else
        pool_drop(ws->pool, ws, POOL_SWEEP);
    p->done(p->user, rc < 0 ? &p->err : NULL);
    wset_unref(ws);
    free(p);
}

/* The regions of the version before are those of the new one, too; new ones follow behind. */
static int regions_share(struct pool *pool, struct wset *ws, struct leat_error *err)
{
    const struct wset *old = ws->replaces;
    uint64_t end = ws->index.header->address_end, need = 0;
    for (uint64_t g = old->nregions; g * ws->region_bytes < end; g++) {
        if (!ws->nnodes || wset_region_node(ws, (uint32_t)g) == ws->self_node)
            need += MIN(ws->region_bytes, align_up(end, 4096) - g * ws->region_bytes);
    }
    prefault_hold(pool->ready);
    pool_evict_idle(pool, need, false);
    if (pool_free_bytes(pool) < need) {
        char needs[32], has[32];
        size_format(need, needs);
        size_format(pool_free_bytes(pool), has);
        return error_set(err, LEAT_NO_SPACE, "the new samples need %s and the pool has %s free", needs, has);
    }
    if (!ws->regions) {
        ws->regions = calloc(MAX(old->nregions, 1u), sizeof(*ws->regions));
        if (!ws->regions)
            return error_set(err, -ENOMEM, "out of memory");
        ws->nregions = old->nregions;
    }
    for (uint32_t g = 0; g < old->nregions; g++)
        ws->regions[g].region = old->regions[g].region ? region_ref(old->regions[g].region) : NULL;
    return pool_regions_make(pool, ws, old->nregions, end, err);
}

static int begin(struct pool *pool, struct wset *ws, uint64_t limit, struct leat_error *err)
{
    struct wset *named = ws->name[0] ? pool_find_own_name(pool, ws->name, ws->owner_uid) : NULL;
    if (named && named != ws->replaces)
        return error_set(err, LEAT_INVALID,
                         "there is a working set '%s' already: drop it first, or choose another name",
                         ws->name);
    int rc = ws->replaces ? regions_share(pool, ws, err) : pool_begin(pool, ws, limit, err);
    if (rc == 0 && !(ws->flags & PROTO_WS_PUSHED) && (rc = fill_plan(pool->fill, ws)) < 0)
        error_set(err, rc, "out of memory while starting to load");
    return rc;
}

int pool_prepare(struct pool *pool, struct wset *ws, uint64_t limit, pool_prepared_fn done, void *user)
{
    struct preparing *p = calloc(1, sizeof(*p));
    if (!p) {
        appender_clear(ws);
        wset_unref(ws);
        return -ENOMEM;
    }
    *p = (struct preparing){.work = {.run = prepare_run, .done = prepare_done},
                            .ws = wset_ref(ws),
                            .losses = ws->replaces ? ws->replaces->losses : 0,
                            .done = done,
                            .user = user};
    ws->created_ns = clock_now_ns();
    p->err.code = begin(pool, ws, limit, &p->err);
    if (p->err.code == 0)
        pool_list(pool, ws, WSET_PREPARING);
    work_start(pool, &p->work);
    return 0;
}

void pool_commit(struct pool *pool, struct wset *ws)
{
    if (!wset_is_committable(ws))
        return;
    struct wset *old = TAKE_PTR(ws->replaces);
    wset_move(ws, WSET_LIVE);
    ws->peers.orphaned_ns = 0;
    if (old)
        pool_supersede(pool, old);
    wset_unref(old);
    if (ws->flags & PROTO_WS_PUSHED) {
        ws->loaded = true;
        wset_progressed(ws);
    } else {
        fill_go(pool->fill, ws);
    }
    if (pool->changed)
        pool->changed(pool->user);
}
