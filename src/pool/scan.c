/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c: a prefix read once, in the order of its list.
 *
 * Happy path: the thread lists; each object gets the next room in the window, and its read begins at once,
 * many in parallel. Reads continue while there is no room, or while the next page of the list is missing. The
 * loop hands out what has come without a gap, as often as it is asked for, until it is released.
 *
 * Failure modes: an object that cannot be read (gone, changed, damaged) ends the scan behind those before it,
 * with the backend's message; so does an error of the list. An object larger than the window is
 * LEAT_NO_SPACE. A user that keeps all of the window and asks for more gets LEAT_BUSY. When the user ends,
 * the thread is cancelled, which frees nothing itself: the loop does, when both have ended.
 *
 * Invariants: entries [first, last) are in order. So are their places: [oldest->place, head) must not be
 * written to. `lock` guards what both threads touch: entries' numbers and states, what was released, the
 * result, and the session's address (for waking it).
 */
#include "pool/scan.h"

#include "backend/backend.h"
#include "base/clock.h"
#include "base/cond.h"
#include "dataset/dataset.h"
#include "pool/pool_internal.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "pool/work.h"

#include <inttypes.h>
#include <stdio.h>

#define ANSWER_MAX   256u /* objects handed out at once */
#define WINDOW       (64 * MIB)
#define WINDOW_LEAST MIB
#define RESERVE_STEP (4 * MIB)
#define PLACE_ALIGN  64u
#define SCANS_MAX    32u
#define USER_SCANS   16u
#define KEY_BYTES    (1024u + BACKEND_ETAG_MAX + 2) /* what an entry holds besides itself */
#define LOOK_NS      (100 * NS_PER_MS) /* a session without reads is turned so often: see backend_wait */

enum entry_state { ENTRY_LOADING, ENTRY_THERE, ENTRY_FAILED };

struct entry {
    struct backend_read read;
    struct pool_scan *scan;
    struct backend_file *file;
    enum entry_state state;
    uint64_t place, bytes; /* in the window, counted on without wrapping */
    int64_t modified;
    char *key; /* behind its NUL: the ETag */
    struct leat_error *why;
};

struct pool_scan {
    struct work work; /* its thread */
    struct list node; /* pool.scans */
    struct pool *pool;
    uint32_t uid;
    struct access *access;
    char *uri, *after; /* "s3://bucket/prefix/"; the key behind which to continue, or NULL */
    struct region *window;
    uint64_t charged; /* in addition to the window */
    void (*advanced)(void *user);
    void *user;
    bool over; /* the thread has ended. Loop */
    atomic_bool cancelled, told;

    pthread_mutex_t lock;
    pthread_cond_t freed;
    struct backend *backend;       /* while the thread may be woken */
    uint64_t first, last, arrived; /* entries; those before `arrived` have all ended */
    uint64_t head;                 /* the next place */
    unsigned loading;
    bool stuck; /* nothing is in flight, and the next object finds no room */
    bool ended; /* the list, and all reads */
    int rc;     /* ... with this */
    struct leat_error err;

    uint64_t reserved; /* of the window, from its beginning. Thread */
    bool failed;       /* an object: nothing more is begun. Thread */
    struct entry entries[PROTO_SCAN_HELD];
};

static struct entry *entry_at(struct pool_scan *s, uint64_t number)
{
    return &s->entries[number % PROTO_SCAN_HELD];
}

static void advanced_on_loop(void *arg)
{
    struct pool_scan *s = arg;
    atomic_store(&s->told, false);
    if (s->user)
        s->advanced(s->user);
}

/* One message to the loop however much comes in between. */
static void tell(struct pool_scan *s)
{
    if (atomic_exchange(&s->told, true))
        return;
    while (loop_post(s->pool->loop, advanced_on_loop, s) < 0)
        usleep(1000); /* out of memory: the loop's user waits for this */
}

/* --- thread: room --------------------------------------------------------------------------------------------------------------- */

/* Under lock. A place for so many bytes in one piece, outside of what is not released. */
static bool place_find(struct pool_scan *s, uint64_t bytes, uint64_t *ret_place)
{
    uint64_t window = s->window->bytes, at = align_up(s->head, PLACE_ALIGN), offset = at % window;
    if (s->last - s->first == PROTO_SCAN_HELD)
        return false;
    if (bytes > window - offset)
        at += window - offset;
    if (s->first < s->last && at + bytes - entry_at(s, s->first)->place > window)
        return false;
    *ret_place = at;
    return true;
}

/* Until there is room: reads in flight continue. */
static int place_wait(struct pool_scan *s, uint64_t bytes, uint64_t *ret_place)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool found = place_find(s, bytes, ret_place), rests = !found && s->loading == 0;
        if (rests && !s->stuck) {
            s->stuck = true;
            tell(s);
        }
        if (rests) {
            cond_wait_until(&s->freed, &s->lock, clock_now_ns() + LOOK_NS);
        }
        pthread_mutex_unlock(&s->lock);
        if (found)
            return 0;
        int n = backend_wait(s->backend, 1, rests ? 0 : -1);
        if (n < 0 || s->failed || atomic_load(&s->cancelled))
            return n < 0 ? n : -ECANCELED;
    }
}

/* Memory behind a place, the first time that the ring comes by. */
static int place_back(struct pool_scan *s, uint64_t place, uint64_t bytes)
{
    uint64_t end = place % s->window->bytes + bytes;
    if (end <= s->reserved)
        return 0;
    uint64_t to = MIN(align_up(end, RESERVE_STEP), s->window->bytes);
    int rc = region_reserve(s->window, s->reserved, to - s->reserved);
    s->reserved = rc < 0 ? s->reserved : to;
    return rc;
}

/* --- thread: objects ------------------------------------------------------------------------------------------------------------ */

static void entry_ended(struct entry *e, int rc, const struct leat_error *err)
{
    struct pool_scan *s = e->scan;
    pthread_mutex_lock(&s->lock);
    e->state = rc < 0 ? ENTRY_FAILED : ENTRY_THERE;
    if (rc < 0) {
        e->why = calloc(1, sizeof(*e->why));
        if (e->why && err)
            *e->why = *err;
        if (e->why)
            e->why->code = rc;
        s->failed = true;
    }
    uint64_t before = s->arrived;
    while (s->arrived < s->last && entry_at(s, s->arrived)->state != ENTRY_LOADING)
        s->arrived++;
    bool news = s->arrived > before;
    pthread_mutex_unlock(&s->lock);
    if (news)
        tell(s);
}

static void read_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct entry *e = container_of(read, struct entry, read);
    backend_close(TAKE_PTR(e->file));
    e->scan->loading--;
    entry_ended(e, rc, err);
}

static int entry_add(struct pool_scan *s, const struct backend_object *o, uint64_t place,
                     struct entry **ret_entry)
{
    size_t key = strlen(o->name) + 1, etag = strlen(o->etag) + 1;
    char *text = malloc(key + etag);
    if (!text)
        return -ENOMEM;
    memcpy(text, o->name, key);
    memcpy(text + key, o->etag, etag);
    pthread_mutex_lock(&s->lock);
    struct entry *e = entry_at(s, s->last++);
    *e = (struct entry){.scan = s, .place = place, .bytes = o->bytes, .modified = o->modified, .key = text};
    s->head = place + o->bytes;
    pthread_mutex_unlock(&s->lock);
    *ret_entry = e;
    return 0;
}

static int object(void *user, const struct backend_object *o)
{
    struct pool_scan *s = user;
    uint64_t place;
    struct entry *e = NULL;
    if (o->prefix || dataset_left_out(o->name))
        return 0;
    if (s->failed)
        return -ECANCELED;
    if (o->bytes > s->window->bytes)
        return error_set(&s->err, LEAT_NO_SPACE,
                         "%.300s has %" PRIu64 " bytes, and the window of this scan %" PRIu64
                         ": give it a larger one (window=), or read that object by leat_open",
                         o->uri, o->bytes, s->window->bytes);
    int rc = place_wait(s, o->bytes, &place);
    if (rc == 0 && (rc = place_back(s, place, o->bytes)) < 0)
        return error_sys(&s->err, rc, "%.300s: no memory for its %" PRIu64 " bytes", o->uri, o->bytes);
    if (rc == 0)
        rc = entry_add(s, o, place, &e);
    if (rc < 0)
        return rc;
    struct leat_error err = {0};
    rc = o->bytes ? backend_open(s->backend, o->uri, o->etag, o->bytes, &e->file, &err) : 0;
    if (rc < 0 || o->bytes == 0) {
        entry_ended(e, rc, &err);
        return 0;
    }
    e->read = (struct backend_read){.file = e->file,
                                    .bytes = o->bytes,
                                    .dst = s->window->addr + place % s->window->bytes,
                                    .done = read_done};
    s->loading++;
    backend_submit(s->backend, &e->read);
    return 0;
}

/* --- thread --------------------------------------------------------------------------------------------------------------------- */

static int scan_run(struct pool_scan *s, struct backend *b)
{
    struct leat_error err = {0};
    int rc = backend_list(b, s->uri, true, s->after, object, s, &err);
    while (s->loading && !atomic_load(&s->cancelled)) {
        int n = backend_wait(b, s->loading, -1);
        if (n < 0)
            return n;
    }
    if (rc < 0 && s->err.code == 0)
        s->err = err;
    if (rc == 0 && s->last == 0 && !s->after)
        rc = error_set(&s->err, LEAT_NOT_FOUND,
                       "%.300s: there are no objects below it (hidden ones do not count)", s->uri);
    return rc;
}

static void scan_work(struct work *work)
{
    struct pool_scan *s = container_of(work, struct pool_scan, work);
    struct pool *pool = s->pool;
    struct backend *b = NULL;
    int rc = access_backend(s->access, pool->config.s3.connections, &s->cancelled, &b, &s->err);
    pthread_mutex_lock(&s->lock);
    s->backend = b;
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        rc = scan_run(s, b);
    pthread_mutex_lock(&s->lock);
    s->backend = NULL;
    pthread_mutex_unlock(&s->lock);
    if (b)
        pool_count_remote(pool, s->access, b);
    backend_free(b); /* reads that are still under way end in here */
    if (rc < 0 && s->err.code == 0)
        error_sys(&s->err, rc, "%.300s", s->uri);
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    s->rc = rc;
    pthread_mutex_unlock(&s->lock);
}

/* --- loop: its life ------------------------------------------------------------------------------------------------------------- */

static void entry_free(struct entry *e)
{
    free(TAKE_PTR(e->key));
    free(TAKE_PTR(e->why));
}

static void scan_free(struct pool_scan *s)
{
    list_remove(&s->node);
    for (; s->first < s->last; s->first++)
        entry_free(entry_at(s, s->first));
    region_unref(s->window);
    if (s->charged) {
        atomic_fetch_sub(&s->pool->scratch_bytes, s->charged);
        budget_release(&s->pool->budget, s->charged);
    }
    access_unref(s->access);
    pthread_cond_destroy(&s->freed);
    pthread_mutex_destroy(&s->lock);
    free(s->uri);
    free(s->after);
    free(s);
}

static void scan_over(struct work *work)
{
    struct pool_scan *s = container_of(work, struct pool_scan, work);
    s->over = true;
    if (!s->user)
        scan_free(s);
    else
        s->advanced(s->user);
}

void pool_scan_end(struct pool_scan *s)
{
    if (!s)
        return;
    s->user = NULL;
    if (s->over) {
        scan_free(s);
        return;
    }
    atomic_store(&s->cancelled, true);
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->freed);
    if (s->backend)
        backend_wake(s->backend);
    pthread_mutex_unlock(&s->lock);
}

/* --- loop: beginning ------------------------------------------------------------------------------------------------------------ */

static int scans_check(struct pool *pool, uint32_t uid, struct leat_error *err)
{
    unsigned all = 0, own = 0;
    list_for_each (node, &pool->scans) {
        all++;
        own += container_of(node, struct pool_scan, node)->uid == uid;
    }
    if (all < SCANS_MAX && own < USER_SCANS)
        return 0;
    return error_set(err, LEAT_BUSY,
                     "%u scans are open, %u of them of user %u, where %u and %u are allowed: end some", all,
                     own, uid, SCANS_MAX, USER_SCANS);
}

/* "s3://bucket/prefix/", and the whole key behind which it begins. */
static int names_make(struct pool_scan *s, const char *uri, const char *after, struct leat_error *err)
{
    const char *bucket = strstr(uri, "//") + 2;
    if (asprintf(&s->uri, "%s%s", uri, uri[strlen(uri) - 1] == '/' ? "" : "/") < 0 ||
        (*after && asprintf(&s->after, "%s%s", strchr(s->uri + (bucket - uri), '/') + 1, after) < 0))
        return error_set(err, -ENOMEM, "out of memory");
    return 0;
}

static int window_make(struct pool_scan *s, uint64_t most, struct leat_error *err)
{
    struct pool *pool = s->pool;
    uint64_t want = most ? most : WINDOW;
    uint64_t beside = sizeof(*s) + PROTO_SCAN_HELD * KEY_BYTES +
                      (access_is_store(s->access)
                           ? BACKEND_STORE_BYTES
                           : backend_session_bytes(pool->config.s3.connections) + BACKEND_LIST_BYTES);
    uint64_t cap = pool->budget.cap_bytes, most_left = cap > beside + 4096 ? cap - beside - 4096 : 0;
    if (most > most_left) /* no other set is evicted for what never fits */
        return error_set(err, LEAT_NO_SPACE,
                         "a window of %" PRIu64 " bytes does not fit into a pool of %" PRIu64
                         ", of which the scan itself takes %" PRIu64 ": give it a smaller window",
                         most, cap, beside);
    prefault_hold(pool->ready);
    pool_evict_idle(pool, want + beside, false);
    uint64_t room = pool_free_bytes(pool), left = room > beside ? room - beside : 0;
    want = align_up(most ? most : MIN(want, MAX(left / 2, (uint64_t)WINDOW_LEAST)), 4096);
    if (want > left)
        return error_set(err, LEAT_NO_SPACE,
                         "a scan with a window of %" PRIu64 " bytes takes %" PRIu64
                         " of the pool, which has %" PRIu64 " left: give it a smaller window, or make room",
                         want, want + beside, room);
    int rc = pool_region(pool, want, want, &s->window, err);
    if (rc == 0 && budget_reserve(&pool->budget, beside) < 0)
        rc = error_set(err, LEAT_NO_SPACE, "the pool is full");
    if (rc == 0) {
        s->charged = beside;
        atomic_fetch_add(&pool->scratch_bytes, beside);
    }
    return rc;
}

int pool_scan_new(struct pool *pool, const struct pool_scan_spec *spec, struct pool_scan **ret_scan,
                  struct leat_error *err)
{
    int rc = scans_check(pool, spec->uid, err);
    if (rc < 0)
        return rc;
    struct pool_scan *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    s->pool = pool;
    s->uid = spec->uid;
    s->access = access_ref(spec->access);
    s->advanced = spec->advanced;
    s->user = spec->user;
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->freed);
    list_init(&s->node);
    list_push_back(&pool->scans, &s->node);
    rc = names_make(s, spec->uri, spec->after, err);
    if (rc == 0)
        rc = window_make(s, spec->window_bytes, err);
    s->work = (struct work){.run = scan_work, .done = scan_over};
    if (rc == 0 && (rc = work_start_now(pool, &s->work)) < 0)
        error_sys(err, rc, "cannot start a thread for a scan");
    if (rc < 0) {
        scan_free(s);
        return rc;
    }
    *ret_scan = s;
    return 0;
}

const struct region *pool_scan_window(const struct pool_scan *s)
{
    return s->window;
}

uint64_t pool_scans_window_bytes(const struct pool *pool)
{
    uint64_t bytes = 0;
    list_for_each (node, &pool->scans)
        bytes += container_of(node, struct pool_scan, node)->window->bytes;
    return bytes;
}

/* --- loop: handing out ---------------------------------------------------------------------------------------------------------- */

/* Under lock. */
static void release(struct pool_scan *s, uint64_t released)
{
    if (released <= s->first)
        return;
    for (; s->first < released; s->first++)
        entry_free(entry_at(s, s->first));
    s->stuck = false;
    pthread_cond_signal(&s->freed);
    if (s->backend)
        backend_wake(s->backend);
}

/* Under lock: the next of them; false: it has not come, or failed. */
static bool entry_give(struct pool_scan *s, uint64_t number, struct proto_scan_object *ret)
{
    const struct entry *e = entry_at(s, number);
    if (number >= s->arrived || e->state != ENTRY_THERE)
        return false;
    *ret = (struct proto_scan_object){.offset = e->bytes ? e->place % s->window->bytes : 0,
                                      .bytes = e->bytes,
                                      .modified = e->modified,
                                      .key = e->key,
                                      .etag = e->key + strlen(e->key) + 1};
    return true;
}

/* Under lock: there is nothing at `number`. 1: that is the end; 0: something comes. */
static int entry_lacks(struct pool_scan *s, uint64_t number, struct leat_error *err)
{
    const struct entry *e = entry_at(s, number);
    if (number < s->arrived) {
        if (!e->why)
            return error_set(err, -ENOMEM, "out of memory");
        *err = *e->why;
        return e->why->code;
    }
    if (s->ended) {
        *err = s->err;
        return s->rc < 0 ? s->rc : 1;
    }
    if (!s->stuck || number < s->last)
        return 0;
    if (s->last - s->first == PROTO_SCAN_HELD)
        return error_set(err, LEAT_BUSY,
                         "%.200s%.200s is still held, and there are %u objects from it on, the most at a "
                         "time: release it, or copy it",
                         s->uri, entry_at(s, s->first)->key, PROTO_SCAN_HELD);
    return error_set(err, LEAT_BUSY,
                     "%.200s%.200s is still held, and with what came behind it the window of %" PRIu64
                     " bytes is full: release it, copy it, or give a larger window (window=)",
                     s->uri, entry_at(s, s->first)->key, s->window->bytes);
}

int pool_scan_take(struct pool_scan *s, uint64_t from, uint64_t released, struct proto_scanned *ret,
                   struct leat_error *err)
{
    struct proto_scanned m = {.objects = calloc(ANSWER_MAX, sizeof(*m.objects))};
    int rc = 0;
    if (!m.objects)
        return error_set(err, -ENOMEM, "out of memory");
    pthread_mutex_lock(&s->lock);
    if (from > s->arrived || released > from || from < s->first)
        rc = error_set(err, LEAT_INVALID,
                       "object %" PRIu64 " of a scan that has released %" PRIu64 " and handed out %" PRIu64,
                       from, MAX(released, s->first), s->arrived);
    if (rc == 0) {
        release(s, released);
        /* Not all of the window at once: the next ones are loaded while these are read. */
        for (uint64_t bytes = 0; m.n < ANSWER_MAX && bytes < s->window->bytes / 8; m.n++) {
            if (!entry_give(s, from + m.n, &m.objects[m.n]))
                break;
            bytes += m.objects[m.n].bytes;
        }
        rc = m.n ? 1 : entry_lacks(s, from, err);
        m.flags = rc == 1 && !m.n ? PROTO_SCANNED_END : 0;
    }
    pthread_mutex_unlock(&s->lock);
    if (rc == 1)
        *ret = m;
    else
        free(m.objects);
    return rc;
}
