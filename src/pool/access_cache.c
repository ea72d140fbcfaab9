/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_cache.c: the access that reads a remote source. In order: the opener's; that of a client here, or of
 * one on another node, for a set that another node places for the same user; the daemon's own, for its own
 * user or where the configuration allows it.
 *
 *   OPEN ─▶ remembered ─▶ the set is there: sent to all nodes ─▶ keys changed (opened again, renewed): sent again
 *
 * Failure modes: an opening that fails is forgotten with its keys. An access that a client here brought wins
 * over another node's, until it expires. Invariants: at most ACCESSES_MAX, the ones used last; wiped when
 * they expired, when they fall out, and at the end. Control loop.
 */
#include "pool/source/access.h"

#include "base/clock.h"
#include "dataset/dataset.h"
#include "pool/pool_internal.h"
#include "pool/set/wset.h"
#include "pool/work.h"
#include "wire/s3/s3.h"

/* The access that a client here brought for a source: for sets of that user that other nodes place. */
struct cached_access {
    struct list node; /* pool.accesses */
    uint32_t uid;
    char *spec;
    struct access *access;
    bool brought;   /* by a client here; else another node sent it */
    bool opened;    /* the source was opened with it: may be sent to other nodes */
    unsigned told;  /* the version that was sent to them */
    uint64_t renew; /* not renewed before this */
};
#define ACCESSES_MAX   256u
#define RENEW_AGAIN_NS (30 * NS_PER_S)

static void known_free(struct pool *pool, struct cached_access *k)
{
    list_remove(&k->node);
    pool->naccess_cache--;
    access_unref(k->access);
    free(k->spec);
    free(k);
}

static struct cached_access *known_find(struct pool *pool, uint32_t uid, const char *spec)
{
    list_for_each (node, &pool->access_cache) {
        struct cached_access *k = container_of(node, struct cached_access, node);
        if (k->uid == uid && strcmp(k->spec, spec) == 0)
            return k;
    }
    return NULL;
}

/* In front of what was known for it. NULL: no memory, then the other sources of an access remain. */
static struct cached_access *known_add(struct pool *pool, uint32_t uid, const char *spec,
                                       struct access *access)
{
    struct cached_access *k = calloc(1, sizeof(*k));
    char *copy = k ? strdup(spec) : NULL;
    if (!copy) {
        free(k);
        return NULL;
    }
    *k = (struct cached_access){.uid = uid, .spec = copy, .access = access_ref(access)};
    list_push_front(&pool->access_cache, &k->node);
    if (++pool->naccess_cache > ACCESSES_MAX)
        known_free(pool, container_of(pool->access_cache.prev, struct cached_access, node));
    return k;
}

/* Not tried yet: an access that worked before stays behind it. */
static void remember(struct pool *pool, const struct open_request *r, const char *spec)
{
    if (!pool->nodes || r->local || !access_signed(r->access))
        return;
    struct cached_access *k = known_add(pool, r->uid, spec, r->access);
    if (k)
        k->brought = true;
}

/* --- what other nodes hear, and say ----------------------------------------------------------------------------------- */

/* Sets of that user and source read with fresher keys from here on. */
static void freshen(struct pool *pool, uint32_t uid, const char *spec, struct access *access)
{
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (ws->remote && ws->owner_uid == uid && strcmp(ws->spec, spec) == 0 &&
            access_same(ws->access, access))
            access_freshen(ws->access, access);
    }
}

static void tell(struct pool *pool, struct cached_access *k)
{
    k->told = access_version(k->access);
    pool->nodes->share_access(pool->cluster, POOL_ALL_NODES, k->uid, k->spec, k->access);
}

/* k worked: it is the known access from here on. */
static void opened(struct pool *pool, struct cached_access *k, const struct wset *ws)
{
    bool news = true;
    list_for_each_safe (node, &pool->access_cache) {
        struct cached_access *other = container_of(node, struct cached_access, node);
        if (other == k || other->uid != k->uid || strcmp(other->spec, k->spec) != 0 ||
            (other->brought && !other->opened))
            continue;
        /* Ranks of one job open one after another, with the same keys. */
        if (other->opened && other->told == access_version(other->access) &&
            access_equal(other->access, k->access) &&
            access_expires(other->access) == access_expires(k->access))
            news = false;
        known_free(pool, other);
    }
    k->opened = true;
    k->told = access_version(k->access);
    freshen(pool, k->uid, k->spec, k->access);
    if (news && ws->nnodes > 0)
        tell(pool, k);
}

void access_cache_opened(struct pool *pool, const struct open_request *r, struct wset *ws)
{
    if (!pool->nodes || r->local || !r->access)
        return;
    list_for_each_safe (node, &pool->access_cache) {
        struct cached_access *k = container_of(node, struct cached_access, node);
        if (k->access != r->access || k->opened)
            continue;
        if (ws)
            opened(pool, k, ws);
        else
            known_free(pool, k);
        return;
    }
}

void access_cache_received(struct pool *pool, uint32_t uid, const char *spec, struct access *access)
{
    struct cached_access *k = known_find(pool, uid, spec);
    if (k && k->brought && !access_expired(k->access))
        return;
    /* Two accesses for one source: the later keys stay. */
    int64_t before = k ? access_expires(k->access) : 0, now = access_expires(access);
    if (k && before && now && now < before)
        return;
    if (!known_add(pool, uid, spec, access))
        return;
    if (k)
        known_free(pool, k);
    freshen(pool, uid, spec, access);
}

void access_cache_share(struct pool *pool, unsigned n)
{
    list_for_each (node, &pool->access_cache) {
        struct cached_access *k = container_of(node, struct cached_access, node);
        if (k->brought && k->opened)
            pool->nodes->share_access(pool->cluster, n, k->uid, k->spec, k->access);
    }
}

struct renewal {
    struct work work;
    struct access *access; /* a reference */
};

static void renewal_run(struct work *work)
{
    access_renew(container_of(work, struct renewal, work)->access);
}

static void renewal_done(struct work *work)
{
    struct renewal *r = container_of(work, struct renewal, work);
    access_unref(r->access);
    free(r);
}

/* A renewal may run a program or ask an endpoint: off the loop. A later tick sends what it finds. */
static void renew(struct pool *pool, struct cached_access *k)
{
    struct renewal *r = calloc(1, sizeof(*r));
    if (!r)
        return;
    k->renew = clock_now_ns() + RENEW_AGAIN_NS;
    *r =
        (struct renewal){.work = {.run = renewal_run, .done = renewal_done}, .access = access_ref(k->access)};
    work_start(pool, &r->work);
}

static bool used(struct pool *pool, const struct cached_access *k)
{
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        if (ws->remote && ws->owner_uid == k->uid && strcmp(ws->spec, k->spec) == 0)
            return true;
    }
    return false;
}

void access_cache_tick(struct pool *pool)
{
    list_for_each_safe (node, &pool->access_cache) {
        struct cached_access *k = container_of(node, struct cached_access, node);
        if (k->brought && k->opened && access_version(k->access) != k->told) {
            freshen(pool, k->uid, k->spec, k->access);
            tell(pool, k);
        } else if (k->brought && k->opened && access_due(k->access) && clock_now_ns() >= k->renew &&
                   used(pool, k)) {
            renew(pool, k);
        } else if (access_expired(k->access) && !used(pool, k)) {
            known_free(pool, k);
        }
    }
}

/* --- whose it is ------------------------------------------------------------------------------------------------------ */

static int check(struct pool *pool, struct access *access, const struct dataset_spec *spec,
                 struct leat_error *err)
{
    int rc = 0;
    for (unsigned k = 0; rc == 0 && k < spec->n; k++) {
        if (dataset_is_remote(spec->sources[k].uri))
            rc =
                access_check(&pool->config.s3, pool->config.opener.system, access, spec->sources[k].uri, err);
    }
    return rc;
}

/* 1: all sources are in our own store; 0: none is. */
static int of_store(const struct dataset_spec *spec, struct leat_error *err)
{
    unsigned n = 0;
    for (unsigned k = 0; k < spec->n; k++)
        n += access_store_uri(spec->sources[k].uri);
    if (n && n < spec->n)
        return error_set(err, LEAT_INVALID,
                         "store:// and other sources cannot be in one set: name this node's endpoint "
                         "with s3:// to read both");
    return n > 0;
}

/* Openers bring no access: the user id counts. */
static int take_store(struct pool *pool, struct open_request *r, const struct dataset_spec *spec,
                      struct leat_error *err)
{
    int rc = 0;
    if (pool->nodes || r->local)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "%.200s: each node has a store of its own, and a set over several nodes cannot be of "
            "one of them: use s3://%.100s with the endpoint of the node that has it",
            spec->sources[0].uri, spec->sources[0].uri + 8);
    for (unsigned k = 0; rc == 0 && k < spec->n; k++)
        rc = access_store_check(&pool->store, r->uid, spec->sources[k].uri, err);
    access_unref(TAKE_PTR(r->access));
    return rc < 0 ? rc : access_stored(&pool->store, &r->access, err);
}

/* This node's store, for a set of another node. */
static int ours(struct pool *pool, uint32_t uid, const char *text, struct access **ret_access,
                struct leat_error *err)
{
    const struct access_config *config = &pool->config.s3;
    struct cached_access *k = known_find(pool, uid, text);
    if (k) {
        *ret_access = access_ref(k->access);
        return 0;
    }
    if (!pool->config.opener.system || config->own)
        return access_own(config, ret_access, err);
    struct proto_access none = {0};
    int rc = access_new(&none, false, ret_access); /* enough for a web server; S3 says what is missing */
    return rc < 0 ? error_set(err, rc, "out of memory") : 0;
}

int pool_access_for(struct pool *pool, uint32_t uid, const char *text, struct access **ret_access,
                    struct leat_error *err)
{
    struct dataset_spec spec;
    struct access *access = NULL;
    int rc = dataset_spec_parse(text, &spec, err);
    if (rc < 0)
        return rc;
    rc = of_store(&spec, err);
    if (rc > 0)
        rc = error_set(err, LEAT_UNSUPPORTED, "%.200s: a set of a store is on one node", text);
    if (rc == 0)
        rc = ours(pool, uid, text, &access, err);
    if (rc == 0)
        rc = check(pool, access, &spec, err);
    dataset_spec_free(&spec);
    if (rc < 0)
        access_unref(access);
    else
        *ret_access = access;
    return rc;
}

static bool spec_is_remote(const struct dataset_spec *spec)
{
    for (unsigned k = 0; k < spec->n; k++) {
        if (dataset_is_remote(spec->sources[k].uri))
            return true;
    }
    return false;
}

/* The opener of a remote source brings its access. Without credentials, a daemon of one user uses those of
 * that user's own tools. A daemon of several users has none to lend, unless the configuration allows it. */
static int take(struct pool *pool, struct open_request *r, const struct dataset_spec *spec, const char *text,
                struct leat_error *err)
{
    const struct access_config *config = &pool->config.s3;
    bool system = pool->config.opener.system, s3 = false;
    /* Another node asks for one of its users, which brought nothing. */
    int rc = r->local && !r->access ? pool_access_for(pool, r->uid, text, &r->access, err) : 0;
    for (unsigned k = 0; k < spec->n; k++)
        s3 = s3 || s3_uri_is(spec->sources[k].uri);
    bool own = config->own && s3 && !access_signed(r->access);
    if (own) {
        access_unref(r->access);
        r->access = NULL;
    }
    if (s3 && system && !own && !access_signed(r->access))
        return error_set(
            err, LEAT_DENIED,
            "%.200s: this daemon has no credentials of its own, and the opening process sent none%s",
            spec->sources[0].uri,
            r->local ? " on this node: open it there as well, or let daemons have their own "
                       "(own_credentials in [s3] of leatd.conf)"
                     : "");
    if (rc == 0 && !r->access)
        rc = access_own(config, &r->access, err);
    return rc < 0 ? rc : check(pool, r->access, spec, err);
}

int access_cache_take(struct pool *pool, struct open_request *r, const struct dataset_spec *spec,
                      const char *text, struct leat_error *err)
{
    if (!spec_is_remote(spec))
        return 0;
    int rc = of_store(spec, err);
    if (rc != 0)
        return rc < 0 ? rc : take_store(pool, r, spec, err);
    rc = take(pool, r, spec, text, err);
    if (rc == 0)
        remember(pool, r, text);
    return rc;
}

void access_cache_forget(struct pool *pool)
{
    while (!list_empty(&pool->access_cache))
        known_free(pool, list_first(&pool->access_cache, struct cached_access, node));
}
