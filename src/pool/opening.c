/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: from a client's request to a working set.
 *
 * Equal requests meet: a request for a source that is being indexed joins that opening. All users that may
 * read a set in the pool share it, as long as its index still matches the disk (names, sizes, times of the
 * sources). Failure modes: the scan fails (every request of the opening gets the error); there is no room
 * (the error of admission.c has what is needed and free). Invariant: every request is answered once, on the
 * loop, unless its requester has gone.
 */
#include "backend/backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "dataset/dataset.h"
#include "disk/disk.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "pool/pool_internal.h"
#include "pool/source/dataset_remote.h"
#include "pool/set/wset.h"
#include "wire/address.h"
#include "pool/work.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define INDEXING_MAX      8u
#define INDEXING_USER_MAX 2u /* so that one user's slow source does not delay all users */
#define PROGRESS_EVERY_NS (100 * NS_PER_MS)

enum opening_state {
    OPENING_QUEUED,   /* for a thread */
    OPENING_SCANNING, /* the index thread works */
    OPENING_WAITING,  /* for memory that is on its way back */
    OPENING_PLACING,  /* on several nodes */
    OPENING_DONE,     /* its requests are answered, and it is freed */
    OPENING_STATES
};

/* One scan (or look at the cache), and the requests that wait for it. */
struct opening {
    struct work work; /* the index thread */
    struct list node;
    struct pool *pool;
    enum opening_state state;
    char *spec; /* canonical */
    struct dataset_spec parsed;
    struct list requests;
    struct source_binding binding;
    struct source_groups *groups; /* that the binding has */
    struct access *access;        /* of the first request; NULL: nothing is remote */
    struct wset *placing;
    struct loop_timer room; /* looks whether ended sets have gone */
    uint64_t room_until_ns;
    uint64_t reported_ns;
    /* from the index thread */
    int index_fd;
    bool scanned;
    struct leat_error err;
};

#define P(state) (1u << OPENING_##state)
static const uint32_t opening_moves[OPENING_STATES] = {
    [OPENING_QUEUED] = P(SCANNING) | P(DONE),
    [OPENING_SCANNING] = P(WAITING) | P(PLACING) | P(DONE),
    [OPENING_WAITING] = P(PLACING) | P(DONE),
    [OPENING_PLACING] = P(DONE),
};
#undef P

static void opening_move(struct opening *o, enum opening_state to)
{
    static const char *const names[OPENING_STATES] = {"QUEUED", "SCANNING", "WAITING", "PLACING", "DONE"};
    assert(opening_moves[o->state] >> to & 1);
    log_debug("opening of %s: %s -> %s", o->spec, names[o->state], names[to]);
    o->state = to;
}

static void request_free(struct open_request *r)
{
    access_unref(r->access);
    source_groups_unref(r->groups);
    free(r->name);
    free(r->uri);
    free(r);
}

void pool_answer(struct pool *pool, struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    list_remove(&r->node);
    if (r->access)
        access_cache_opened(pool, r, ws);
    if (r->opened)
        r->opened(r, ws, err);
    request_free(r);
}

/* --- is it here already? ------------------------------------------------------------------------------------------- */

/* The same samples from the same, unchanged sources. */
static bool index_same(const struct index *a, const struct index *b)
{
    const struct index_header *x = a->header, *y = b->header;
    return memcmp(x->fingerprint, y->fingerprint, sizeof(x->fingerprint)) == 0 &&
           x->nsources == y->nsources && x->address_end == y->address_end &&
           memcmp(a->sources, b->sources, x->nsources * sizeof(*a->sources)) == 0;
}

/* ... of which ETags are text. */
static bool strings_same(const struct index *a, const struct index *b)
{
    uint64_t bytes = a->header->sections[INDEX_STRINGS].bytes;
    return bytes == b->header->sections[INDEX_STRINGS].bytes && memcmp(a->strings, b->strings, bytes) == 0;
}

static struct wset *find_same(struct pool *pool, const char *spec, const struct index *index,
                              const struct open_request *r)
{
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (!wset_is_findable(ws) || strcmp(ws->spec, spec) != 0 || !index_same(&ws->index, index))
            continue;
        if (ws->remote && (!access_same(ws->access, r->access) || !strings_same(&ws->index, index)))
            continue; /* the same names at another service, or with other content */
        /* Only the owner gives a name: it keeps the set, and its memory, for good. */
        bool named_otherwise =
            r->name[0] && (ws->owner_uid != r->uid || (ws->name[0] && strcmp(ws->name, r->name) != 0));
        if (!named_otherwise && wset_allows(ws, r->uid, r->gid))
            return ws;
    }
    return NULL;
}

/* Samples failed for a transient cause, as of a server or disk: the source is the same, but the set is
 * useless to later openers. While it has readers, here or on another node, it is shared all the same: each
 * job's processes would have a copy each. */
static bool lacks_transient(struct wset *ws)
{
    return wset_is_findable(ws) && !ws->appender && ws->leases == 0 && !ws->peers.nholders &&
           !(ws->flags & PROTO_WS_PUSHED) && wset_complete(ws) && wset_failed_transient(ws);
}

/* A node that is not reachable does not learn that the set ends: it would keep it under its name for good,
 * and refuse the new one. */
static bool all_hear(const struct pool *pool, const struct wset *ws)
{
    return ws->nnodes == 0 || pool->nodes->all_reachable(pool->cluster);
}

static void drop_to_reload(struct pool *pool, struct wset *ws)
{
    log_info("dropping %s, of which samples failed, to load it again", ws->spec);
    /* Other nodes keep a named set until they learn that it ends, and would refuse the new one. */
    pool_drop(pool, ws, ws->flags & PROTO_WS_EXPLICIT ? POOL_DROP : POOL_SWEEP);
}

/* A named set is loaded again for an opener that gives that name, with the old mode and limit. */
static void drop_failed(struct opening *o)
{
    struct pool *pool = o->pool;
    list_for_each_safe (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (!(ws->flags & PROTO_WS_EXPLICIT) && strcmp(ws->spec, o->spec) == 0 &&
            wset_allows(ws, o->binding.caller.uid, o->binding.caller.gid) && lacks_transient(ws))
            drop_to_reload(pool, ws);
    }
    struct index index;
    if (index_map(o->index_fd, &index, NULL) < 0)
        return;
    list_for_each (node, &o->requests) {
        struct open_request *r = container_of(node, struct open_request, node);
        struct wset *ws = r->opened && !r->append && r->name[0] ? find_same(pool, o->spec, &index, r) : NULL;
        if (!ws || ws->owner_uid != r->uid || strcmp(ws->name, r->name) != 0 || !lacks_transient(ws) ||
            !(ws->mode & 0004) != !(r->flags & LEAT_OPEN_PUBLIC) || !all_hear(pool, ws))
            continue;
        r->pool_bytes = r->pool_bytes ? r->pool_bytes : ws->limit_bytes;
        drop_to_reload(pool, ws);
    }
    index_close(&index);
}

/* --- what was asked for, once there is an index ------------------------------------------------------------------- */

/* A set for the first request of an opening that may have one: not listed, no memory yet. */
static int set_new(struct pool *pool, struct opening *o, struct open_request *r, struct wset **ret_ws,
                   struct leat_error *err)
{
    int rc = pool_sets_check(pool, r->uid, err);
    if (rc < 0)
        return rc;
    int fd = fcntl(o->index_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return error_sys(err, -errno, "cannot keep the index");
    struct wset *ws;
    rc = pool_set_new(pool, fd, true, &ws, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    pool_own(ws, r->uid, r->gid, r->groups, r->flags);
    ws->access = access_ref(r->access);
    ws->region_bytes = pool->config.region_bytes;
    ws->limit_bytes = r->pool_bytes;
    if (pool_name(ws, r->name, o->spec) < 0) {
        wset_unref(ws);
        return error_set(err, -ENOMEM, "out of memory");
    }
    *ret_ws = ws;
    return 0;
}

static int set_create(struct pool *pool, struct opening *o, struct open_request *r, struct wset **ret_ws,
                      struct leat_error *err)
{
    struct wset *ws;
    int rc = set_new(pool, o, r, &ws, err);
    if (rc < 0)
        return rc;
    rc = pool_host(pool, ws, r->pool_bytes, err);
    if (rc < 0) {
        wset_unref(ws);
        return error_prefix(err, rc, "%s", o->spec);
    }
    *ret_ws = ws;
    return 0;
}

static void openings_start(struct pool *pool);

static void opening_free(struct opening *o)
{
    list_remove(&o->node);
    if (o->index_fd >= 0)
        close(o->index_fd);
    dataset_spec_free(&o->parsed);
    access_unref(o->access);
    source_groups_unref(o->groups);
    free(o->spec);
    free(o);
}

static int request_serve(struct pool *pool, struct opening *o, struct open_request *r, struct wset **ret_ws,
                         struct leat_error *err)
{
    struct index index;
    int rc = index_map(o->index_fd, &index, err);
    if (rc < 0)
        return rc;
    struct wset *ws = find_same(pool, o->spec, &index, r);
    index_close(&index);
    struct wset *named = r->name[0] ? pool_find_own_name(pool, r->name, r->uid) : NULL;
    if (named && named != ws)
        return error_set(err, LEAT_INVALID,
                         "working set '%s' holds %.200s: drop it first, or choose another name", r->name,
                         strcmp(named->spec, o->spec) == 0 ? "an older state of this source" : named->spec);
    if (!ws)
        return set_create(pool, o, r, ret_ws, err);
    if (ws->owner_uid == r->uid)
        access_freshen(ws->access, r->access);
    if (r->name[0] && !ws->name[0] && pool_name(ws, r->name, o->spec) < 0)
        return error_set(err, -ENOMEM, "out of memory");
    *ret_ws = ws;
    return 0;
}

static void opening_serve(struct opening *o)
{
    struct pool *pool = o->pool;
    opening_move(o, OPENING_DONE);
    list_for_each_safe (node, &o->requests) {
        struct open_request *r = container_of(node, struct open_request, node);
        struct leat_error err = o->err;
        struct wset *ws = NULL;
        if (err.code == 0 && r->opened && r->append) {
            list_remove(&r->node);
            change_append(pool, r, o->index_fd);
            continue;
        }
        if (err.code == 0 && r->opened)
            err.code = request_serve(pool, o, r, &ws, &err);
        pool_answer(pool, r, ws, err.code < 0 ? &err : NULL);
    }
    opening_free(o);
    openings_start(pool);
}

static void opening_placed(void *user, const struct leat_error *err)
{
    struct opening *o = user;
    struct wset *ws = TAKE_PTR(o->placing);
    if (err)
        error_set(&o->err, err->code, "%s: %s", o->spec, err->message);
    else
        ws->holding = true; /* at the hosts, since they installed it for us */
    opening_serve(o);
}

/* The first request whose requester is still there; `append`: also one that appends. NULL: none. */
static struct open_request *first_request(struct opening *o, bool append)
{
    list_for_each (node, &o->requests) {
        struct open_request *r = container_of(node, struct open_request, node);
        if (r->opened && (append || !r->append))
            return r;
    }
    return NULL;
}

/* Several nodes: the set that the first request needs is placed before any request is answered. */
static bool opening_place(struct opening *o)
{
    struct pool *pool = o->pool;
    struct open_request *first = first_request(o, false);
    if (!pool->nodes || o->err.code || !first)
        return false;
    struct index index;
    if (index_map(o->index_fd, &index, NULL) < 0)
        return false;
    bool known = find_same(pool, o->spec, &index, first) ||
                 (first->name[0] && pool_find_own_name(pool, first->name, first->uid));
    index_close(&index);
    if (known || set_new(pool, o, first, &o->placing, &o->err) < 0)
        return false;
    opening_move(o, OPENING_PLACING);
    pool_evict_idle(pool, align_up(o->placing->index.header->address_end, 4096), false);
    return pool->nodes->place(pool->cluster, o->placing, first->pool_bytes, opening_placed, o) == 0;
}

/*
 * Memory of a set that made room comes back when the thread that loads it, or a connection that reads it,
 * releases it. An opening waits for that a moment: decided early, the set would be streamed for good. True:
 * look again later.
 */
static bool opening_waits(struct opening *o)
{
    struct pool *pool = o->pool;
    struct open_request *first = first_request(o, true);
    struct index index;
    if (o->err.code || !first || atomic_load(&pool->stopping) || index_map(o->index_fd, &index, NULL) < 0)
        return false;
    bool known = !first->append && find_same(pool, o->spec, &index, first);
    uint64_t want = pool_bytes_wanted(pool, &index);
    index_close(&index);
    if (known)
        return false;
    return pool_wait_for_free(pool, want, &o->room_until_ns);
}

static void opening_go_on(struct loop_timer *timer)
{
    struct opening *o = container_of(timer, struct opening, room);
    if (atomic_load(&o->pool->stopping) && !o->err.code)
        o->err.code = error_set(&o->err, -ECANCELED, "the daemon is ending");
    if (!opening_waits(o)) {
        if (!opening_place(o))
            opening_serve(o);
        return;
    }
    if (o->state != OPENING_WAITING)
        opening_move(o, OPENING_WAITING);
    loop_timer_set(o->pool->loop, &o->room, clock_now_ns() + LEAVING_LOOK_NS);
}

static void opening_done(struct work *work)
{
    struct opening *o = container_of(work, struct opening, work);
    struct pool *pool = o->pool;
    pool->indexing--;
    if (atomic_load(&pool->stopping))
        o->err.code = error_set(&o->err, -ECANCELED, "the daemon is ending");
    atomic_fetch_add(o->scanned ? &pool->index_scans : &pool->index_hits, o->err.code == 0);
    if (o->err.code == 0)
        drop_failed(o);
    opening_go_on(&o->room);
}

/* --- the index thread ------------------------------------------------------------------------------------------------ */

struct progress_post {
    struct opening *opening;
    uint64_t samples, bytes;
};

static void progress_on_loop(void *arg)
{
    struct progress_post *p = arg;
    list_for_each (node, &p->opening->requests) {
        struct open_request *r = container_of(node, struct open_request, node);
        if (r->opened && r->progress)
            r->progress(r, p->samples, p->bytes);
    }
    free(p);
}

/* Index thread. Posted before opening_done, so the opening is still there when it runs. */
static int progress_report(void *user, uint64_t samples, uint64_t bytes)
{
    struct opening *o = user;
    uint64_t now = clock_now_ns();
    if (atomic_load(&o->pool->stopping))
        return -ECANCELED;
    if (now - o->reported_ns < PROGRESS_EVERY_NS)
        return 0;
    o->reported_ns = now;
    struct progress_post *p = malloc(sizeof(*p));
    if (p) {
        *p = (struct progress_post){o, samples, bytes};
        if (loop_post(o->pool->loop, progress_on_loop, p) < 0)
            free(p);
    }
    return 0;
}

/* Clients get the descriptor: from here on no process can write it. */
int pool_index_seal(int fd, struct leat_error *err)
{
    int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    return fcntl(fd, F_ADD_SEALS, seals) < 0 ? error_sys(err, -errno, "cannot seal an index") : 0;
}

/* An index file of another user could change under us, or end where a page is still needed. One of our own
 * can vanish when another host overwrites it (NFS). So the daemon uses a sealed copy. */
static int index_keep(struct opening *o, struct leat_error *err)
{
    struct stat st;
    int seals = fcntl(o->index_fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_WRITE))
        return 0;
    if (fstat(o->index_fd, &st) < 0)
        return error_sys(err, -errno, "cannot look at the index");
    struct disk_file_traits traits;
    if (st.st_uid == geteuid() && disk_file_probe(o->index_fd, &traits) == 0 && !traits.network)
        return 0;
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_sys(err, -errno, "no memory for the index");
    for (off_t at = 0; at < st.st_size;) {
        ssize_t n = sendfile(fd, o->index_fd, &at, (size_t)MIN(st.st_size - at, (off_t)(64 * MIB)));
        if (n <= 0 && errno != EINTR)
            return error_sys(err, n < 0 ? -errno : LEAT_STALE, "cannot copy the index");
    }
    int rc = pool_index_seal(fd, err);
    struct index index;
    if (rc == 0 && (rc = index_map(fd, &index, err)) == 0) {
        rc = index_validate(&index, err);
        index_close(&index);
    }
    if (rc < 0)
        return rc;
    close(o->index_fd);
    o->index_fd = TAKE_FD(fd);
    return 0;
}

void pool_count_remote(struct pool *pool, struct access *access, const struct backend *backend)
{
    struct backend_stats stats;
    if (access_is_store(access))
        return;
    backend_stats(backend, &stats);
    atomic_fetch_add(&pool->remote_requests, stats.requests);
    atomic_fetch_add(&pool->remote_retries, stats.retries);
    atomic_fetch_add(&pool->remote_throttled, stats.throttled);
    atomic_fetch_add(&pool->remote_connections, stats.connections);
    atomic_fetch_add(&pool->remote_bytes, stats.bytes_in);
}

static void index_run(struct work *work)
{
    struct opening *o = container_of(work, struct opening, work);
    struct pool *pool = o->pool;
    struct dataset_opener opener = source_dataset_opener(&o->binding);
    struct dataset_progress progress = {progress_report, o};
    struct backend *backend = NULL;
    if (o->access && (o->err.code = access_backend(o->access, 0, &pool->stopping, &backend, &o->err)) == 0)
        remote_opener(backend, &opener);
    if (o->err.code == 0)
        o->err.code = dataset_index_open(&o->parsed, &opener, &progress, !o->binding.opener->system,
                                         &o->index_fd, &o->scanned, &o->err);
    if (backend)
        pool_count_remote(pool, o->access, backend);
    backend_free(backend);
    if (o->err.code == 0)
        o->err.code = index_keep(o, &o->err);
}

static unsigned indexing_of(const struct pool *pool, uint32_t uid)
{
    unsigned n = 0;
    list_for_each (node, &pool->openings) {
        const struct opening *o = container_of(node, struct opening, node);
        n += o->state != OPENING_QUEUED && o->binding.caller.uid == uid;
    }
    return n;
}

static void openings_start(struct pool *pool)
{
    if (atomic_load(&pool->stopping))
        return;
    list_for_each_safe (node, &pool->openings) {
        struct opening *o = container_of(node, struct opening, node);
        if (o->state != OPENING_QUEUED || pool->indexing >= INDEXING_MAX ||
            indexing_of(pool, o->binding.caller.uid) >= INDEXING_USER_MAX)
            continue;
        opening_move(o, OPENING_SCANNING);
        pool->indexing++;
        o->work = (struct work){.run = index_run, .done = opening_done};
        int rc = work_start_now(pool, &o->work);
        if (rc < 0) {
            o->err.code = error_sys(&o->err, rc, "cannot start an index thread");
            opening_done(&o->work);
            return;
        }
    }
}

/* --- asking ---------------------------------------------------------------------------------------------------------- */

/* The same source for the same user: its requests are answered together. */
static struct opening *opening_find(struct pool *pool, const struct open_request *r, const char *canonical)
{
    list_for_each (node, &pool->openings) {
        struct opening *o = container_of(node, struct opening, node);
        if (strcmp(o->spec, canonical) == 0 && o->binding.caller.uid == r->uid &&
            o->binding.caller.gid == r->gid && source_groups_same(o->groups, r->groups) &&
            access_equal(o->access, r->access))
            return o;
    }
    return NULL;
}

/* Takes both on success. */
static struct opening *opening_new(struct pool *pool, const struct open_request *r, char *canonical,
                                   struct dataset_spec *spec)
{
    struct opening *o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    o->pool = pool;
    o->spec = canonical;
    o->parsed = *spec;
    *spec = (struct dataset_spec){0};
    o->index_fd = -1;
    o->groups = source_groups_ref(r->groups);
    o->binding = (struct source_binding){&pool->config.opener, {r->uid, r->gid, o->groups}};
    o->access = access_ref(r->access);
    o->room.fire = opening_go_on;
    list_init(&o->requests);
    list_push_back(&pool->openings, &o->node);
    return o;
}

static int opening_join(struct pool *pool, struct open_request *r, struct leat_error *err)
{
    struct dataset_spec spec = {0};
    int rc = dataset_spec_parse(r->uri, &spec, err);
    if (rc < 0)
        return rc;
    AUTO_FREE char *canonical = dataset_spec_format(&spec);
    rc = canonical ? access_cache_take(pool, r, &spec, canonical, err)
                   : error_set(err, -ENOMEM, "out of memory");
    bool taken =
        rc == 0 && pool->nodes &&
        (r->append ? pool->nodes->append(pool->cluster, r) : pool->nodes->open(pool->cluster, r, canonical));
    if (rc == 0 && !taken) {
        struct opening *o = opening_find(pool, r, canonical);
        if (!o && (o = opening_new(pool, r, canonical, &spec)))
            canonical = NULL;
        if (o)
            list_push_back(&o->requests, &r->node);
        else
            rc = error_set(err, -ENOMEM, "out of memory");
    }
    dataset_spec_free(&spec);
    if (rc == 0 && !taken)
        openings_start(pool);
    return rc;
}

void pool_open(struct pool *pool, struct open_request *r)
{
    struct leat_error err = {0};
    struct wset *ws = NULL;
    list_init(&r->node);
    atomic_fetch_add(&pool->opens, 1);
    int rc = atomic_load(&pool->stopping) ? error_set(&err, -ECANCELED, "the daemon is ending")
             : r->name[0]                 ? dataset_name_check(r->name, &err)
                                          : 0;
    if (rc < 0) {
        pool_answer(pool, r, NULL, &err);
        return;
    }
    if (address_of(r->uri) == ADDRESS_SET && !r->append) {
        ws = pool_find_name(pool, r->uri + 7, r->uid, r->gid);
        if (!ws && pool->nodes && pool->nodes->open(pool->cluster, r, NULL))
            return;
        rc = !ws ? error_set(&err, LEAT_NOT_FOUND, "no working set '%s' in the pool: see `leat ls`",
                             r->uri + 7)
             : !wset_allows(ws, r->uid, r->gid)
                 ? error_set(&err, LEAT_DENIED, "working set '%s' belongs to another user", ws->name)
                 : 0;
    } else if ((r->flags & LEAT_OPEN_NO_LOAD) && !r->append) {
        ws = pool_find(pool, r->uri, r->uid, r->gid);
        rc = ws && wset_allows(ws, r->uid, r->gid)
                 ? 0
                 : error_set(&err, LEAT_NOT_FOUND, "%s is not in the pool", r->uri);
    } else {
        rc = opening_join(pool, r, &err);
        if (rc == 0)
            return;
    }
    pool_answer(pool, r, rc == 0 ? ws : NULL, rc < 0 ? &err : NULL);
}

void openings_cancel(struct pool *pool)
{
    list_for_each_safe (node, &pool->openings) {
        struct opening *o = container_of(node, struct opening, node);
        if (o->state == OPENING_QUEUED) {
            o->err.code = error_set(&o->err, -ECANCELED, "the daemon is ending");
            opening_serve(o);
        }
    }
}

void pool_open_forget(struct pool *pool, void *user)
{
    if (pool->nodes)
        pool->nodes->open_forget(pool->cluster, user);
    changes_forget(pool, user);
    list_for_each (node, &pool->openings) {
        list_for_each (at, &container_of(node, struct opening, node)->requests) {
            struct open_request *r = container_of(at, struct open_request, node);
            if (r->user == user)
                r->opened = NULL;
        }
    }
}
