/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, sharing and ending working sets.
 *
 * Equal requests meet: whoever asks for a source that is being indexed joins that opening, and a set in the pool is shared by
 * all who may read it as long as its index is still the one on disk (names, sizes, times of the sources). Failure modes: the
 * scan fails (every request of the opening hears it), the pool is full (idle implicit sets go first; then LEAT_NO_SPACE says
 * how much is needed and free).
 */
#include "pool/pool.h"

#include "backend/backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "dataset/dataset.h"
#include "leat/leat.h"
#include "loop/loop.h"
#include "net/conn.h"
#include "pool/access.h"
#include "pool/cluster.h"
#include "pool/pool_internal.h"
#include "pool/ready.h"
#include "pool/region.h"
#include "pool/remote.h"
#include "pool/staging.h"
#include "pool/work.h"
#include "pool/wset.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define INDEXING_MAX      8u
#define INDEXING_USER_MAX 2u /* so that one user's slow source does not hold up everybody */
#define NAME_MAX_BYTES    255u
#define PROGRESS_EVERY_NS (100 * NS_PER_MS)
#define STOP_NS           (10 * NS_PER_S)

/* One scan (or look at the cache), and everybody who waits for it. */
struct opening {
    struct list node;
    struct pool *pool;
    char *spec; /* canonical */
    struct dataset_spec parsed;
    struct list requests;
    bool running;
    struct source_binding binding;
    struct access *access; /* of the first request; NULL: nothing is elsewhere */
    struct wset *placing;
    struct loop_timer room; /* looks whether what ended has gone */
    uint64_t room_until_ns;
    uint64_t reported_ns;
    /* from the index thread */
    int index_fd;
    bool scanned;
    struct leat_error err;
};

static void request_free(struct open_request *r)
{
    access_unref(r->access);
    free(r->name);
    free(r->uri);
    free(r);
}

void pool_answer(struct pool *pool, struct open_request *r, struct wset *ws, const struct leat_error *err)
{
    list_remove(&r->node);
    if (r->access)
        accesses_opened(pool, r, ws);
    if (r->opened)
        r->opened(r, ws, err);
    request_free(r);
}

static void advanced_on_loop(void *arg)
{
    struct wset *ws = arg;
    atomic_store(&ws->notify_pending, false);
    wset_is_ready(ws);
    if (ws->pool->advanced)
        ws->pool->advanced(ws->pool->user, ws);
    wset_unref(ws);
}

/* One message to the loop however many segments end meanwhile. */
void wset_advanced(struct wset *ws)
{
    if (atomic_exchange(&ws->notify_pending, true))
        return;
    wset_ref(ws);
    while (loop_post(ws->pool->loop, advanced_on_loop, ws) < 0)
        usleep(1000); /* out of memory: readers wait for this, and nothing else may come to wake them */
}

static void fill_ready(struct wset *ws, struct bytes_out *records)
{
    if (ws->pool->cluster)
        cluster_ready(ws->pool->cluster, ws, records);
}

int pool_new(struct loop *loop, const struct pool_config *config, struct pool **ret_pool,
             struct leat_error *err)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return error_set(err, -ENOMEM, "out of memory");
    pool->config = *config;
    pool->loop = loop;
    list_init(&pool->sets);
    list_init(&pool->openings);
    list_init(&pool->changes);
    list_init(&pool->works);
    list_init(&pool->accesses);
    pthread_mutex_init(&pool->rdma_lock, NULL);
    ticket_office_init(&pool->office, config->cap_bytes);
    limits_default(&pool->config.limits);
    shares_init(&pool->shares);
    struct fill_config fc = {.threads = config->fill_threads,
                             .depth = config->disk_depth,
                             .disk_engine = config->disk_engine,
                             .opener = &pool->config.opener,
                             .connections = config->s3.connections,
                             .advanced = wset_advanced,
                             .ready = fill_ready};
    int code = fill_new(&fc, &pool->fill, err);
    if (code == 0 && (code = net_server_new(config->data_threads, &pool->server)) < 0)
        error_sys(err, code, "cannot start the data threads");
    struct ready_config rc = {.pages = config->pages,
                              .region_bytes = config->region_bytes,
                              .bytes = config->ready_bytes,
                              .office = &pool->office};
    pool->ready_timer.fire = pool_ready_tend;
    if (code == 0 && config->ready_bytes && (code = ready_new(&rc, &pool->ready, err)) == 0)
        pool_ready_tend(&pool->ready_timer);
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

static void opening_serve(struct opening *o);

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
    list_for_each_safe (node, &pool->openings) {
        struct opening *o = container_of(node, struct opening, node);
        if (!o->running) {
            o->err.code = error_set(&o->err, -ECANCELED, "the daemon is ending");
            opening_serve(o);
        }
    }
    work_cancel_waiting(pool);
    uint64_t deadline_ns = clock_now_ns() + STOP_NS;
    while (atomic_load(&pool->threads) > 0 && clock_now_ns() < deadline_ns)
        loop_turn(pool->loop, 10);
    if (atomic_load(&pool->threads) > 0)
        return LEAT_TIMED_OUT;
    /* The last message of a thread that has ended may still wait its turn. */
    for (int turns = 0; turns < 1000 && (!list_empty(&pool->openings) || !list_empty(&pool->works) ||
                                         !list_empty(&pool->changes));
         turns++)
        loop_turn(pool->loop, 1);
    net_server_free(pool->server);
    pool->server = NULL;
    while (!list_empty(&pool->sets))
        pool_drop(pool, list_first(&pool->sets, struct wset, node), POOL_SWEEP);
    fill_stop(pool->fill);
    wait_for_sets(pool);
    loop_timer_clear(&pool->ready_timer);
    ready_free(pool->ready);
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
    shares_fini(&pool->shares);
    accesses_forget(pool);
    free(pool);
}

/* --- finding --------------------------------------------------------------------------------------------------- */

/* What of two sets that both are meant by a word a user means: their own, else what they may read. */
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
        if (ws->state != WSET_ENDING && !ws->prepared && !ws->superseded && ws->name[0] &&
            strcmp(ws->name, name) == 0)
            best = prefer(best, ws, uid, gid);
    }
    return best;
}

struct wset *pool_find_own_name(struct pool *pool, const char *name, uint32_t uid)
{
    struct wset *found = NULL;
    list_for_each (node, &pool->sets) {
        struct wset *ws = container_of(node, struct wset, node);
        if (ws->state != WSET_ENDING && !ws->superseded && ws->owner_uid == uid && ws->name[0] &&
            strcmp(ws->name, name) == 0 &&
            (!found || found->prepared)) /* of two versions the one that is there */
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
    if (strncmp(text, "leat://", 7) == 0)
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
        if (canonical && ws->state != WSET_ENDING && !ws->prepared && !ws->superseded &&
            strcmp(ws->spec, canonical) == 0)
            best = prefer(best, ws, uid, gid);
    }
    return best;
}

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
        if (ws->state == WSET_ENDING || ws->prepared || ws->superseded || strcmp(ws->spec, spec) != 0 ||
            !index_same(&ws->index, index))
            continue;
        if (ws->remote && (!access_same(ws->access, r->access) || !strings_same(&ws->index, index)))
            continue; /* the same names at another service, or with other content */
        /* A name is given by the owner alone: it keeps the set, and its memory, for good. */
        bool named_otherwise =
            r->name[0] && (ws->owner_uid != r->uid || (ws->name[0] && strcmp(ws->name, r->name) != 0));
        if (!named_otherwise && wset_allows(ws, r->uid, r->gid))
            return ws;
    }
    return NULL;
}

/* --- creating --------------------------------------------------------------------------------------------------- */

int pool_host(struct pool *pool, struct wset *ws, struct leat_error *err)
{
    ws->created_ns = clock_now_ns();
    int code = pool_begin(pool, ws, 0, err);
    if (code == 0 && (code = fill_start(pool->fill, ws)) < 0)
        error_set(err, code, "out of memory while starting to load");
    if (code == 0)
        list_push_back(&pool->sets, &ws->node);
    return code;
}

int pool_name(struct wset *ws, const char *name, const char *spec)
{
    /* Fill threads say the spec in their messages: once given, it stays where it is. */
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

void pool_own(struct wset *ws, uint32_t uid, uint32_t gid, uint32_t flags)
{
    ws->owner_uid = uid;
    ws->owner_gid = gid;
    ws->mode = flags & LEAT_OPEN_PUBLIC ? 0644 : 0600;
}

/* Names go into messages, logs and other programs' output. */
int pool_name_check(const char *name, struct leat_error *err)
{
    size_t len = strlen(name);
    bool good = len <= NAME_MAX_BYTES;
    for (size_t k = 0; k < len; k++)
        good = good && (unsigned char)name[k] >= 0x20 && name[k] != 0x7f;
    return good ? 0
                : error_set(err, LEAT_INVALID,
                            "a name has at most %u bytes and no control characters: choose another",
                            NAME_MAX_BYTES);
}

/* Each set costs descriptors, which are everybody's. */
int pool_sets_check(struct pool *pool, uint32_t uid, struct leat_error *err)
{
    const struct limits *l = &pool->config.limits;
    unsigned all = 0, own = 0;
    list_for_each (node, &pool->sets) {
        all++;
        own += container_of(node, struct wset, node)->owner_uid == uid;
    }
    if (own >= l->user_sets)
        return error_set(err, LEAT_BUSY,
                         "user %u has %u working sets, and a user may have %u: drop some (see `leat ls`), or "
                         "raise user_sets in [limits] of leatd.conf",
                         uid, own, l->user_sets);
    if (all >= l->sets)
        return error_set(err, LEAT_BUSY,
                         "there are %u working sets, and %u are allowed: drop some (see `leat ls`), or raise "
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

/* A set for the first request of an opening that may have one: not listed, no memory yet. */
static int set_new(struct pool *pool, struct opening *o, struct open_request *r, struct wset **ret_ws,
                   struct leat_error *err)
{
    int code = pool_sets_check(pool, r->uid, err);
    if (code < 0)
        return code;
    int fd = fcntl(o->index_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return error_sys(err, -errno, "cannot keep the index");
    struct wset *ws;
    code = wset_new(pool, fd, true, &ws, err);
    if (code < 0) {
        close(fd);
        return code;
    }
    pool_own(ws, r->uid, r->gid, r->flags);
    ws->access = access_ref(r->access);
    ws->region_bytes = pool->config.region_bytes;
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
    int code = set_new(pool, o, r, &ws, err);
    if (code < 0)
        return code;
    ws->created_ns = clock_now_ns();
    code = pool_begin(pool, ws, r->pool_bytes, err);
    if (code == 0 && (code = fill_start(pool->fill, ws)) < 0)
        error_set(err, code, "out of memory while starting to load");
    if (code < 0) {
        wset_unref(ws);
        return error_prefix(err, code, "%s", o->spec);
    }
    list_push_back(&pool->sets, &ws->node);
    *ret_ws = ws;
    return 0;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void openings_start(struct pool *pool);

static void opening_free(struct opening *o)
{
    list_remove(&o->node);
    if (o->index_fd >= 0)
        close(o->index_fd);
    dataset_spec_free(&o->parsed);
    access_unref(o->access);
    free(o->spec);
    free(o);
}

static int request_serve(struct pool *pool, struct opening *o, struct open_request *r, struct wset **ret_ws,
                         struct leat_error *err)
{
    struct index index;
    int code = index_map(o->index_fd, &index, err);
    if (code < 0)
        return code;
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

/* Several nodes: the set that the first request needs is placed before anybody is answered. */
static bool opening_place(struct opening *o)
{
    struct pool *pool = o->pool;
    struct open_request *first = NULL;
    list_for_each_safe (node, &o->requests) {
        struct open_request *r = container_of(node, struct open_request, node);
        if (!first && r->opened && !r->append) /* the asker is still there */
            first = r;
    }
    if (!pool->cluster || o->err.code || !first)
        return false;
    struct index index;
    if (index_map(o->index_fd, &index, NULL) < 0)
        return false;
    bool known = find_same(pool, o->spec, &index, first) ||
                 (first->name[0] && pool_find_own_name(pool, first->name, first->uid));
    index_close(&index);
    if (known || set_new(pool, o, first, &o->placing, &o->err) < 0)
        return false;
    pool_evict_idle(pool, align_up(o->placing->index.header->address_end, 4096), false);
    return cluster_place(pool->cluster, o->placing, first->pool_bytes, opening_placed, o) == 0;
}

/*
 * Memory of a set that made room comes back when the thread that loads it, or a connection that reads it, has let go. What was
 * asked for waits for that a moment: streamed because it was early, it would be streamed for good. True: look again later.
 */
static bool opening_waits(struct opening *o)
{
    struct pool *pool = o->pool;
    struct open_request *first = NULL;
    list_for_each_safe (node, &o->requests) {
        struct open_request *r = container_of(node, struct open_request, node);
        if (!first && r->opened)
            first = r;
    }
    struct index index;
    if (o->err.code || !first || atomic_load(&pool->stopping) || index_map(o->index_fd, &index, NULL) < 0)
        return false;
    bool known = !first->append && find_same(pool, o->spec, &index, first);
    uint64_t want = pool_bytes_wanted(pool, &index);
    index_close(&index);
    if (known)
        return false;
    return pool_awaits_room(pool, want, &o->room_until_ns);
}

static void opening_go_on(struct loop_timer *timer)
{
    struct opening *o = container_of(timer, struct opening, room);
    if (atomic_load(&o->pool->stopping) && !o->err.code)
        o->err.code = error_set(&o->err, -ECANCELED, "the daemon is ending");
    if (opening_waits(o))
        loop_timer_set(o->pool->loop, &o->room, clock_now_ns() + LEAVING_LOOK_NS);
    else if (!opening_place(o))
        opening_serve(o);
}

static void opening_done(void *arg)
{
    struct opening *o = arg;
    struct pool *pool = o->pool;
    pool->indexing--;
    if (atomic_load(&pool->stopping))
        o->err.code = error_set(&o->err, -ECANCELED, "the daemon is ending");
    atomic_fetch_add(o->scanned ? &pool->index_scans : &pool->index_hits, o->err.code == 0);
    opening_go_on(&o->room);
}

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

/* Clients get the descriptor: from here on it cannot be written by anybody. */
int pool_index_seal(int fd, struct leat_error *err)
{
    int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    return fcntl(fd, F_ADD_SEALS, seals) < 0 ? error_sys(err, -errno, "cannot seal an index") : 0;
}

/* An index file of somebody else could change under us, or end where a page is still wanted: what we use is a copy that cannot. */
static int index_keep(struct opening *o, struct leat_error *err)
{
    struct stat st;
    int seals = fcntl(o->index_fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_WRITE))
        return 0;
    if (fstat(o->index_fd, &st) < 0)
        return error_sys(err, -errno, "cannot look at the index");
    if (st.st_uid == geteuid())
        return 0;
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_sys(err, -errno, "no memory for the index");
    for (off_t at = 0; at < st.st_size;) {
        ssize_t n = sendfile(fd, o->index_fd, &at, (size_t)MIN(st.st_size - at, (off_t)(64 * MIB)));
        if (n <= 0 && errno != EINTR)
            return error_sys(err, n < 0 ? -errno : LEAT_STALE, "cannot copy the index");
    }
    int code = pool_index_seal(fd, err);
    struct index index;
    if (code == 0 && (code = index_map(fd, &index, err)) == 0) {
        code = index_validate(&index, err);
        index_close(&index);
    }
    if (code < 0)
        return code;
    close(o->index_fd);
    o->index_fd = TAKE_FD(fd);
    return 0;
}

static void *index_main(void *arg)
{
    struct opening *o = arg;
    struct pool *pool = o->pool;
    struct dataset_opener opener = source_dataset_opener(&o->binding);
    struct dataset_progress progress = {progress_report, o};
    struct backend *backend = NULL;
    if (o->access && (o->err.code = access_backend(o->access, 0, &pool->stopping, &backend, &o->err)) == 0)
        remote_opener(backend, &opener);
    if (o->err.code == 0)
        o->err.code = dataset_index_open(&o->parsed, &opener, &progress, !o->binding.opener->system,
                                         &o->index_fd, &o->scanned, &o->err);
    if (backend && !access_is_store(o->access)) {
        struct backend_stats stats;
        backend_stats(backend, &stats);
        atomic_fetch_add(&pool->remote_requests, stats.requests);
        atomic_fetch_add(&pool->remote_retries, stats.retries);
        atomic_fetch_add(&pool->remote_throttled, stats.throttled);
        atomic_fetch_add(&pool->remote_connections, stats.connections);
        atomic_fetch_add(&pool->remote_bytes, stats.bytes_in);
    }
    backend_free(backend);
    if (o->err.code == 0)
        o->err.code = index_keep(o, &o->err);
    while (loop_post(pool->loop, opening_done, o) < 0)
        usleep(10000); /* out of memory: the askers are still there, and so are we */
    atomic_fetch_sub(&pool->threads, 1);
    return NULL;
}

static unsigned indexing_of(const struct pool *pool, uint32_t uid)
{
    unsigned n = 0;
    list_for_each (node, &pool->openings) {
        const struct opening *o = container_of(node, struct opening, node);
        n += o->running && o->binding.caller.uid == uid;
    }
    return n;
}

static void openings_start(struct pool *pool)
{
    if (atomic_load(&pool->stopping))
        return;
    list_for_each_safe (node, &pool->openings) {
        struct opening *o = container_of(node, struct opening, node);
        if (o->running || pool->indexing >= INDEXING_MAX ||
            indexing_of(pool, o->binding.caller.uid) >= INDEXING_USER_MAX)
            continue;
        o->running = true;
        pool->indexing++;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        pthread_t thread;
        atomic_fetch_add(&pool->threads, 1);
        int code = -pthread_create(&thread, &attr, index_main, o);
        pthread_attr_destroy(&attr);
        if (code < 0) {
            atomic_fetch_sub(&pool->threads, 1);
            o->err.code = error_sys(&o->err, code, "cannot start an index thread");
            opening_done(o);
            return;
        }
    }
}

static int opening_join(struct pool *pool, struct open_request *r, struct leat_error *err)
{
    struct dataset_spec spec = {0};
    int code = dataset_spec_parse(r->uri, &spec, err);
    if (code < 0)
        return code;
    char *canonical = dataset_spec_format(&spec);
    if (!canonical) {
        dataset_spec_free(&spec);
        return error_set(err, -ENOMEM, "out of memory");
    }
    code = accesses_take(pool, r, &spec, canonical, err);
    if (code < 0) {
        free(canonical);
        dataset_spec_free(&spec);
        return code;
    }
    bool taken = pool->cluster &&
                 (r->append ? cluster_append(pool->cluster, r) : cluster_open(pool->cluster, r, canonical));
    if (taken) {
        free(canonical);
        dataset_spec_free(&spec);
        return 0;
    }
    list_for_each (node, &pool->openings) {
        struct opening *o = container_of(node, struct opening, node);
        if (strcmp(o->spec, canonical) == 0 && o->binding.caller.uid == r->uid &&
            access_equal(o->access, r->access)) {
            free(canonical);
            dataset_spec_free(&spec);
            list_push_back(&o->requests, &r->node);
            return 0;
        }
    }
    struct opening *o = calloc(1, sizeof(*o));
    if (!o) {
        free(canonical);
        dataset_spec_free(&spec);
        return error_set(err, -ENOMEM, "out of memory");
    }
    o->pool = pool;
    o->spec = canonical;
    o->parsed = spec;
    o->index_fd = -1;
    o->binding = (struct source_binding){&pool->config.opener, {r->uid, r->gid}};
    o->access = access_ref(r->access);
    o->room.fire = opening_go_on;
    list_init(&o->requests);
    list_push_back(&o->requests, &r->node);
    list_push_back(&pool->openings, &o->node);
    openings_start(pool);
    return 0;
}

void pool_open(struct pool *pool, struct open_request *r)
{
    struct leat_error err = {0};
    struct wset *ws = NULL;
    list_init(&r->node);
    atomic_fetch_add(&pool->opens, 1);
    int code = atomic_load(&pool->stopping) ? error_set(&err, -ECANCELED, "the daemon is ending")
                                            : pool_name_check(r->name, &err);
    if (code < 0) {
        pool_answer(pool, r, NULL, &err);
        return;
    }
    if (strncmp(r->uri, "leat://", 7) == 0 && !r->append) {
        ws = pool_find_name(pool, r->uri + 7, r->uid, r->gid);
        if (!ws && pool->cluster && cluster_open(pool->cluster, r, NULL))
            return;
        code = !ws ? error_set(&err, LEAT_NOT_FOUND, "no working set '%s' in the pool: see `leat ls`",
                               r->uri + 7)
               : !wset_allows(ws, r->uid, r->gid)
                   ? error_set(&err, LEAT_DENIED, "working set '%s' belongs to another user", ws->name)
                   : 0;
    } else if ((r->flags & LEAT_OPEN_NO_LOAD) && !r->append) {
        ws = pool_find(pool, r->uri, r->uid, r->gid);
        code = ws && wset_allows(ws, r->uid, r->gid)
                   ? 0
                   : error_set(&err, LEAT_NOT_FOUND, "%s is not in the pool", r->uri);
    } else {
        code = opening_join(pool, r, &err);
        if (code == 0)
            return;
    }
    pool_answer(pool, r, code == 0 ? ws : NULL, code < 0 ? &err : NULL);
}

void pool_open_forget(struct pool *pool, void *user)
{
    if (pool->cluster)
        cluster_open_forget(pool->cluster, user);
    changes_forget(pool, user);
    list_for_each (node, &pool->openings) {
        list_for_each (at, &container_of(node, struct opening, node)->requests) {
            struct open_request *r = container_of(at, struct open_request, node);
            if (r->user == user)
                r->opened = NULL;
        }
    }
}

/* --- ending -------------------------------------------------------------------------------------------------------- */

/* Its last reader here is gone. */
static void superseded_sweep(struct wset *ws)
{
    if (!ws->superseded || ws->leases > 0 || ws->state == WSET_ENDING)
        return;
    if (ws->holders == 0)
        pool_drop(ws->pool, ws, POOL_SWEEP);
    else
        cluster_let_go(ws->pool->cluster, ws);
}

void pool_supersede(struct pool *pool, struct wset *ws)
{
    if (ws->nnodes == 0) {
        pool_drop(pool, ws, POOL_SWEEP); /* readers here keep its memory by their references */
        return;
    }
    /* Readers on other nodes come for it by its uuid: it stays listed as long as somebody holds it. */
    ws->superseded = true;
    ws->flags &= ~PROTO_WS_EXPLICIT;
    superseded_sweep(ws);
}

void pool_lease(struct wset *ws)
{
    ws->leases++;
    wset_ref(ws);
    if (ws->pool->cluster)
        cluster_hold(ws->pool->cluster, ws);
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
        if (ws->leases > 0 || ws->prepared || (ws->flags & PROTO_WS_EXPLICIT) ||
            (uid != UINT32_MAX && ws->owner_uid != uid))
            continue;
        if (ws->holders == 0)
            pool_drop(pool, ws, POOL_SWEEP);
        else if (pool->cluster) /* or two nodes would keep it for each other, for ever */
            cluster_let_go(pool->cluster, ws);
    }
}

/* Whoever drops a set means the version that is being made of it, too. */
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
    if (ws->state != WSET_ENDING) {
        atomic_fetch_add(&pool->drops, 1);
        ws->state = WSET_ENDING;
        list_remove(&ws->node);
        if (ws->leases == 0 && end != POOL_DROP_FORCE) {
            /* Back at once, or when a thread or a connection has let go of it. */
            uint64_t bytes = ws->pool_bytes + atomic_load(&ws->table_bytes) + ws->scratch_bytes;
            atomic_store(&ws->leaving_bytes, bytes);
            atomic_fetch_add(&pool->leaving_bytes, bytes);
        }
        if (pool->cluster)
            cluster_forget(pool->cluster, ws, end != POOL_SWEEP, end == POOL_DROP_FORCE);
        wset_ref(ws);
        if (ws->replaces && ws->replaces->appender == ws)
            ws->replaces->appender = NULL;
        if (ws->appender && end != POOL_SWEEP)
            drop_successor(pool, ws, end);
        fill_cancel(pool->fill, ws);
        if (end == POOL_DROP_FORCE) {
            atomic_fetch_add(&ws->live->generation, 1);
            atomic_store(&ws->revoked, true);
            if (pool->revoked)
                pool->revoked(pool->user, ws);
            for (uint32_t g = 0; g < ws->nregions; g++) {
                if (ws->regions[g].region)
                    region_give_up(ws->regions[g].region);
            }
        }
        wset_unref(ws);
        wset_unref(ws); /* the pool's own */
        if (pool->changed)
            pool->changed(pool->user);
    }
}

void pool_wset_born(struct pool *pool)
{
    atomic_fetch_add(&pool->sets_alive, 1);
}
