/* SPDX-License-Identifier: Apache-2.0 */
/*
 * change.c: the steps of every change: a record in the log, the index, and the files that have no record any
 * more.
 *
 *     append ─▶ flush ─▶ index ─▶ unlink what was replaced or deleted            (visible only when it is durable)
 *
 * Failure modes: a record that was written and could not be flushed may be on the disk or not; the next start finds out. Until then its key counts as
 * there on a path that has failed: every answer is STORE_UNAVAILABLE, unless a newer version is stored on another path.
 * Invariants: `commits` is held shared from the append to the last unlink, a key's stripe from the first
 * look-up until the index has the change; so the log has a key's changes in the order of the index, and their
 * numbers grow: a rebuild has no other order. No answer rests on a record that is not flushed. A file is
 * unlinked only when its successor's (or deletion's) record is on the disk.
 */
#include "store/internal.h"

#include "base/log.h"

void store_commits_enter(struct store *s)
{
    for (unsigned i = 0; i < s->npaths; i++)
        pthread_rwlock_rdlock(&s->paths[i]->commits);
}

void store_commits_leave(struct store *s)
{
    for (unsigned i = s->npaths; i-- > 0;)
        pthread_rwlock_unlock(&s->paths[i]->commits);
}

int store_change_append(struct change *c, struct leat_error *err)
{
    struct index_node *n = c->node;
    struct log_record r = {
        .type = n->value.flags & INDEX_DEAD ? LOG_DELETE : LOG_PUT,
        .value = n->value,
        .key = index_node_key(n),
        .extra = index_node_extra(n),
        .key_len = n->key_len,
        .extra_len = n->extra_len,
    };
    if (r.type == LOG_DELETE) {
        uint64_t *last = store_deleted(c->path->store, r.key, r.key_len);
        *last = MAX(*last, r.value.seq);
    }
    return store_log_append(c->path, &r, &c->end, err);
}

void store_change_apply(struct change *c)
{
    struct index_value old;
    struct index_node *n = TAKE_PTR(c->node);
    uint64_t file = n->value.flags & INDEX_DEAD ? 0 : n->value.file;
    c->old_file = store_index_apply(&c->path->index, n, &old) && old.file != file ? old.file : 0;
}

/* The record may be on the disk or not. A deletion leaves the version that it found, with its number: a newer
 * one on another path still counts. */
static void make_unknown(struct change *c)
{
    struct index_node *n = c->node;
    struct index_item there;
    pthread_rwlock_rdlock(&c->path->index.lock);
    if (n->value.flags & INDEX_DEAD &&
        store_index_find(&c->path->index, index_node_key(n), n->key_len, &there))
        n->value = there.value;
    pthread_rwlock_unlock(&c->path->index.lock);
    n->value.flags = (n->value.flags & ~(uint32_t)INDEX_DEAD) | INDEX_UNKNOWN;
}

/* rc: of the append and the flush. An append that was refused for want of room has changed nothing. */
static void settle(struct change *c, int rc)
{
    if (rc < 0 && !atomic_load(&c->path->failed)) {
        free(TAKE_PTR(c->node));
        return;
    }
    if (rc < 0)
        make_unknown(c);
    store_change_apply(c);
}

int store_change_make(struct change *c, struct leat_error *err)
{
    int rc = store_change_append(c, err);
    if (rc == 0)
        rc = store_log_sync(c->path, c->end, err);
    settle(c, rc);
    return rc;
}

void store_change_finish(struct store *s, struct change *c)
{
    if (!c->old_file)
        return;
    char name[PATH_FILE_MAX];
    store_path_file_name(c->path, c->old_file, name);
    store_open_forget(s, c->path, c->old_file);
    s->io->unlink(s->io, name);
}

int store_remove_older(struct store *s, const struct ikey *k, const struct path *newest, uint64_t seq,
                       struct leat_error *err)
{
    int first = 0;
    for (unsigned i = 0; i < s->npaths; i++) {
        struct path *p = s->paths[i];
        if (p == newest || atomic_load(&p->failed) || !store_may_hold(p, k))
            continue;
        struct index_value dead = {.seq = seq, .flags = INDEX_DEAD};
        struct change c = {.path = p,
                           .node = store_index_node_new(&p->index, &dead, k->bytes, k->len, NULL, 0)};
        int rc = c.node ? store_change_make(&c, err)
                        : error_set(err, -ENOMEM, "no memory to remove an older version");
        if (rc == 0)
            store_change_finish(s, &c);
        first = first ? first : rc;
    }
    return first;
}

/* One deletion: appended, not flushed, and no reader sees it yet. seq 0: any version. */
static int begin_removal(struct store *s, const struct ikey *k, uint64_t seq, struct change *c,
                         struct leat_error *err)
{
    struct found f;
    int rc = store_find(s, k, false, &f);
    if (rc < 0)
        return rc;
    if (seq && f.value.seq != seq)
        return LEAT_STALE;
    for (unsigned i = 0; i < s->npaths; i++)
        if (atomic_load(&s->paths[i]->failed) && store_may_hold(s->paths[i], k))
            return error_set(err, STORE_UNAVAILABLE, "%s has failed, and may hold an older version",
                             s->paths[i]->dir);
    /* Before the newest: a remaining older version would be visible again. */
    rc = s->npaths > 1 ? store_remove_older(s, k, f.path, store_next_seq(s), err) : 0;
    if (rc < 0)
        return rc;
    struct index_value dead = {.seq = store_next_seq(s), .flags = INDEX_DEAD};
    c->path = f.path;
    c->node = store_index_node_new(&f.path->index, &dead, k->bytes, k->len, NULL, 0);
    if (!c->node)
        return error_set(err, -ENOMEM, "no memory for a deletion");
    rc = store_change_append(c, err);
    if (rc < 0)
        settle(c, rc);
    return rc;
}

/* One flush for each path. What was flushed is gone, the rest is unknown. */
static int end_removals(struct store *s, struct change *changes, unsigned n, struct leat_error *err)
{
    int rcs[STORE_PATHS_MAX] = {0}, first = 0;
    for (unsigned i = 0; i < s->npaths; i++) {
        uint64_t end = 0;
        for (unsigned k = 0; k < n; k++)
            if (changes[k].path == s->paths[i])
                end = MAX(end, changes[k].end);
        rcs[i] = end ? store_log_sync(s->paths[i], end, err) : 0;
        first = first ? first : rcs[i];
    }
    for (unsigned k = 0; k < n; k++) {
        settle(&changes[k], rcs[changes[k].path->number]);
        if (rcs[changes[k].path->number] == 0)
            store_change_finish(s, &changes[k]);
    }
    return first;
}

/* Keys in groups: one flush each. seqs may be NULL. */
int store_remove(struct store *s, const struct ikey *keys, const uint64_t *seqs, unsigned n, int *ret_codes,
                 struct leat_error *err)
{
    enum { GROUP = 1024 };
    AUTO_FREE struct change *changes = calloc(MIN(n, (unsigned)GROUP), sizeof(*changes));
    if (!changes)
        return error_set(err, -ENOMEM, "no memory to delete %u keys", n);
    for (unsigned from = 0; from < n;) {
        unsigned done = 0, until = from + MIN(n - from, (unsigned)GROUP);
        struct stripe_set stripes;
        store_commits_enter(s);
        store_stripes_lock(s, &stripes, &keys[from], until - from);
        for (unsigned i = from; i < until; i++) {
            ret_codes[i] =
                begin_removal(s, &keys[i], seqs ? seqs[i] : 0, &changes[done], n == 1 ? err : NULL);
            done += ret_codes[i] == 0;
        }
        int rc = end_removals(s, changes, done, err);
        store_stripes_unlock(s, &stripes);
        store_commits_leave(s);
        if (rc < 0)
            return rc;
        atomic_fetch_add(&s->deletes, done);
        from = until;
    }
    return 0;
}

/* For a rebuild, which has only trailers. Without this mark it would push an old version, which the remote
 * had, over what others have stored there since. One whose sync state is unknown would count as the newest
 * again. */
static void note_pushed(struct path *p, uint64_t file)
{
    char name[PATH_FILE_MAX];
    store_path_file_name(p, file, name);
    if (p->store->io->chmod(p->store->io, name, FILE_MODE_PUSHED) < 0)
        log_debug("%s: it cannot be noted that the remote has got it", name);
}

/* Other flags, or another remote, for the version `seq` (0: whichever). LEAT_STALE: it is another by now. */
int store_flag(struct store *s, const struct ikey *k, uint64_t seq, uint32_t clear, uint32_t set,
               const char *remote, bool sync, struct leat_error *err)
{
    struct stripe_set stripe;
    store_commits_enter(s);
    store_stripes_lock(s, &stripe, k, 1);
    struct found f;
    int rc = store_find(s, k, false, &f);
    if (rc == 0 && seq && f.value.seq != seq)
        rc = error_set(err, LEAT_STALE, "it is another version by now");
    uint8_t extra[INDEX_EXTRA_MAX];
    size_t len = 0;
    if (rc == 0 && f.value.parts == INDEX_ETAG_TEXT)
        len = store_extra_put(extra, len, 'e', f.etag);
    if (rc == 0 && (remote || f.has_remote))
        len = store_extra_put(extra, len, 'r', remote ? remote : f.remote);
    struct change c = {.path = rc == 0 ? f.path : NULL};
    bool noted = rc == 0 && (f.value.flags & clear & STORE_DIRTY || (remote && !*remote));
    if (rc == 0) {
        f.value.flags = (f.value.flags & ~clear) | set;
        c.node = store_index_node_new(&f.path->index, &f.value, k->bytes, k->len, extra, len);
        if (!c.node)
            rc = error_set(err, -ENOMEM, "no memory for a change");
    }
    if (rc == 0) {
        rc = store_change_append(&c, err);
        if (rc == 0 && sync)
            rc = store_log_sync(f.path, c.end, err);
        if (rc == 0)
            store_change_apply(&c);
        if (rc == 0 && noted)
            note_pushed(f.path, f.value.file);
        free(c.node);
        store_open_forget(s, f.path, f.value.file); /* it has the state before the change */
    }
    store_stripes_unlock(s, &stripe);
    store_commits_leave(s);
    return rc;
}
