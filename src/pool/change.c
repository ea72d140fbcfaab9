/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets that are made from an index and not from a source: those that ranks push (CREATE), and the next
 * version of one that grows (APPEND).
 *
 *   request ─▶ checks (loop) ─▶ build: validate, or join two indexes (a thread) ─▶ place on the nodes, or prepare here ─▶ answer
 *
 * A version is immutable: readers of the old one keep it, its regions are shared, and the new samples lie in
 * new regions behind them. One append to a set at a time: `appender` is its maker; a second one is LEAT_BUSY.
 *
 * Failure modes: the requester goes, the set is dropped, a node is lost or the daemon ends while the index is
 * built: the new set is dropped, and the old version stays as it was.
 */
#include "pool/pool_internal.h"

#include "dataset/dataset.h"
#include "leat/leat.h"
#include "pool/source/access.h"
#include "pool/work.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <sys/mman.h>

struct change {
    struct work work;
    struct list node; /* pool.changes */
    struct pool *pool;
    struct open_request *request; /* answered at the end */
    int index_fd;                 /* CREATE: of the set; APPEND: of the added samples */
    struct wset *old;             /* APPEND: a reference */
    struct wset *ws;              /* built: not listed yet */
    struct leat_error err;
};

static void change_end(struct change *ch, struct wset *ws, const struct leat_error *err)
{
    if (ch->old && ch->old->appender == ch)
        ch->old->appender = NULL;
    wset_unref(ch->old);
    list_remove(&ch->node);
    if (ch->index_fd >= 0)
        close(ch->index_fd);
    pool_answer(ch->pool, ch->request, ws, err);
    free(ch);
}

static void placed(void *user, const struct leat_error *err)
{
    struct change *ch = user;
    struct wset *ws = TAKE_PTR(ch->ws);
    if (!err && ch->pool->nodes)
        ws->holding = true;
    else if (!err)
        pool_commit(ch->pool, ws);
    change_end(ch, err ? NULL : ws, err);
}

static int create_build(struct change *ch)
{
    int rc = pool_set_new(ch->pool, ch->index_fd, false, &ch->ws, &ch->err);
    if (rc == 0)
        ch->index_fd = -1;
    if (rc == 0 && ch->ws->index.header->kind != INDEX_KIND_PUSHED)
        rc = error_set(&ch->err, LEAT_INVALID, "the index of a pushed set must be of kind PUSHED");
    return rc;
}

static int append_build(struct change *ch)
{
    struct index added;
    int rc = index_map(ch->index_fd, &added, &ch->err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = memfd_create("leat-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    rc = fd < 0 ? error_sys(&ch->err, -errno, "cannot create an index")
                : index_append(&ch->old->index, &added, (uint64_t)ch->old->nregions * ch->old->region_bytes,
                               fd, &ch->err);
    index_close(&added);
    if (rc == 0)
        rc = pool_index_seal(fd, &ch->err);
    if (rc == 0)
        rc = pool_set_new(ch->pool, fd, true, &ch->ws, &ch->err);
    if (rc == 0)
        fd = -1;
    return rc;
}

static void build(struct work *work)
{
    struct change *ch = container_of(work, struct change, work);
    ch->err.code = ch->old ? append_build(ch) : create_build(ch);
}

static int finish_create(struct change *ch, struct leat_error *err)
{
    struct wset *ws = ch->ws;
    const struct open_request *r = ch->request;
    /* Again: other sets were built in parallel. */
    int rc = pool_sets_check(ch->pool, r->uid, err);
    if (rc == 0)
        rc = pool_creates_check(ch->pool, r->uid, err);
    if (rc < 0)
        return rc;
    pool_own(ws, r->uid, r->gid, r->groups, r->flags);
    ws->flags |= PROTO_WS_PUSHED;
    ws->region_bytes = ch->pool->config.region_bytes;
    return pool_name(ws, r->name, "") < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

static int finish_append(struct change *ch, struct leat_error *err)
{
    struct wset *ws = ch->ws, *old = ch->old;
    if (wset_has_ended(old))
        return error_set(err, LEAT_STALE, "'%s' was dropped in the meantime", old->name);
    /* The owner asks again, and has just read what is added: with its present groups. */
    pool_own(ws, old->owner_uid, old->owner_gid, ch->request->groups,
             old->mode & 0004 ? LEAT_OPEN_PUBLIC : 0);
    ws->version = old->version + 1;
    ws->region_bytes = old->region_bytes;
    ws->first_new_address = (uint64_t)old->nregions * old->region_bytes;
    ws->replaces = wset_ref(old);
    ws->access = access_ref(old->access ? old->access : ch->request->access);
    if (old->access && ch->request->access) {
        if (!access_same(old->access, ch->request->access))
            return error_set(err, LEAT_UNSUPPORTED,
                             "'%s' comes from another endpoint than what is to be added to it", old->name);
        access_freshen(ws->access, ch->request->access);
    }
    return pool_name(ws, old->name, old->spec) < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

static void built(struct work *work)
{
    struct change *ch = container_of(work, struct change, work);
    struct pool *pool = ch->pool;
    struct leat_error *err = &ch->err;
    if (work->cancelled)
        err->code = error_set(err, -ECANCELED, "the daemon is ending");
    else if (err->code == 0 && !ch->request->opened)
        err->code = error_set(err, -ECANCELED, "the requester is gone");
    if (err->code == 0)
        err->code = ch->old ? finish_append(ch, err) : finish_create(ch, err);
    if (err->code < 0) {
        wset_unref(ch->ws);
        change_end(ch, NULL, err);
        return;
    }
    int rc = pool->nodes ? pool->nodes->place(pool->cluster, ch->ws, 0, placed, ch)
                         : pool_prepare(pool, ch->ws, 0, placed, ch);
    if (rc < 0) {
        error_set(err, rc, "out of memory");
        change_end(ch, NULL, err);
    }
}

static int change_begin(struct pool *pool, struct open_request *r, int index_fd, struct wset *old)
{
    struct change *ch = calloc(1, sizeof(*ch));
    if (!ch) {
        close(index_fd);
        return -ENOMEM;
    }
    *ch = (struct change){.work = {.run = build, .done = built},
                          .pool = pool,
                          .request = r,
                          .index_fd = index_fd,
                          .old = old ? wset_ref(old) : NULL};
    if (old)
        old->appender = ch;
    list_push_back(&pool->changes, &ch->node);
    /* The thread takes reservations for tables, and cannot make room for them. */
    struct index index;
    if (index_map(index_fd, &index, NULL) == 0) {
        pool_evict_idle(pool, pool_bytes_wanted(pool, &index), false);
        index_close(&index);
    }
    work_start(pool, &ch->work);
    return 0;
}

void pool_create(struct pool *pool, struct open_request *r, int index_fd)
{
    struct leat_error err = {0};
    list_init(&r->node);
    int rc =
        !r->name[0] ? error_set(&err, LEAT_INVALID, "a set that ranks push needs a name")
        : pool_find_own_name(pool, r->name, r->uid)
            ? error_set(&err, LEAT_INVALID,
                        "there is a working set '%s' already: drop it first, or choose another name", r->name)
            : dataset_name_check(r->name, &err);
    if (rc == 0)
        rc = pool_sets_check(pool, r->uid, &err);
    if (rc == 0)
        rc = pool_creates_check(pool, r->uid, &err);
    if (rc < 0)
        close(index_fd);
    else if ((rc = change_begin(pool, r, index_fd, NULL)) < 0)
        error_set(&err, rc, "out of memory");
    if (rc < 0)
        pool_answer(pool, r, NULL, &err);
}

static int append_check(struct wset *old, const struct open_request *r, struct leat_error *err)
{
    if (!old)
        return error_set(err, LEAT_NOT_FOUND, "no working set '%s': preload it first", r->name);
    if (old->owner_uid != r->uid && r->uid != 0)
        return error_set(err, LEAT_DENIED, "working set '%s' belongs to another user", r->name);
    if (old->appender)
        return error_set(err, LEAT_BUSY, "'%s' is being appended to already: append when that is done",
                         r->name);
    if (old->flags & PROTO_WS_STREAMED)
        return error_set(err, LEAT_UNSUPPORTED,
                         "'%s' is larger than its pool: drop it and preload old and new data together",
                         r->name);
    if (old->nnodes && (old->flags & PROTO_WS_PUSHED))
        return error_set(err, LEAT_UNSUPPORTED,
                         "'%s' was pushed by ranks of several nodes, and what they pushed has no source: "
                         "create another set for the new samples",
                         r->name);
    if (old->peers.nlost)
        return error_set(err, LEAT_PEER_GONE,
                         "a node that holds part of '%s' is gone: append when it is back", r->name);
    if (!wset_is_loaded(old))
        return error_set(err, LEAT_BUSY,
                         "'%s' is still being loaded: append when it is complete (see `leat stat %s`)",
                         r->name, r->name);
    return 0;
}

void change_append(struct pool *pool, struct open_request *r, int index_fd)
{
    struct leat_error err = {0};
    struct wset *old = pool_find_name(pool, r->name, r->uid, r->gid);
    int rc = append_check(old, r, &err), fd = -1;
    if (rc == 0 && (fd = fcntl(index_fd, F_DUPFD_CLOEXEC, 0)) < 0)
        rc = error_sys(&err, -errno, "cannot keep the index");
    else if (rc == 0 && (rc = change_begin(pool, r, fd, old)) < 0)
        error_set(&err, rc, "out of memory");
    if (rc < 0)
        pool_answer(pool, r, NULL, &err);
}

void changes_forget(struct pool *pool, const void *user)
{
    list_for_each (node, &pool->changes) {
        struct change *ch = container_of(node, struct change, node);
        if (ch->request->user == user)
            ch->request->opened = NULL;
    }
}
