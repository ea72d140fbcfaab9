/* SPDX-License-Identifier: Apache-2.0 */
/*
 * change.c: what every change goes through: a record in the log, the index, and the files that are nobody's any more.
 *
 *     PUT:     append ─▶ flush ─▶ index ─▶ unlink what was replaced            (visible only when it is durable)
 *     DELETE:  append ─▶ index, for all keys; one flush; ─▶ unlink
 *
 * Invariants: `commits` is held shared from the append to the last unlink, one key's stripe from the look at what is there until the index
 * has the change; so the log has a key's changes in the order of the index, and their numbers grow: a rebuild has no other order. A file
 * is unlinked only when its successor's (or deletion's) record is on the disk.
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

void store_change_finish(struct store *s, struct change *c)
{
    if (!c->old_file)
        return;
    char name[PATH_FILE_MAX];
    store_path_file_name(c->path, c->old_file, name);
    store_open_forget(s, c->path, c->old_file);
    s->io->unlink(s->io, name);
}

/* One deletion: appended and applied, not flushed. seq 0: any version. */
static int remove_one(struct store *s, const struct ikey *k, uint64_t seq, struct change *c,
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
    struct index_value dead = {.seq = store_next_seq(s), .flags = INDEX_DEAD};
    c->path = f.path;
    c->node = store_index_node_new(&f.path->index, &dead, k->bytes, k->len, NULL, 0);
    if (!c->node)
        return error_set(err, -ENOMEM, "no memory for a deletion");
    rc = store_change_append(c, err);
    if (rc < 0) {
        free(TAKE_PTR(c->node));
        return rc;
    }
    store_change_apply(c);
    return 0;
}

/* An older version on another path: one more round, until there is none. */
static int remove_all_versions(struct store *s, const struct ikey *k, uint64_t seq, struct change *changes,
                               unsigned *n, unsigned max, struct leat_error *err)
{
    int first = 0;
    pthread_mutex_t *stripe = store_stripe(s, k);
    pthread_mutex_lock(stripe);
    for (unsigned round = 0; *n < max; round++) {
        struct change c = {0};
        int rc = remove_one(s, k, round ? 0 : seq, &c, err);
        if (round == 0 || (rc < 0 && rc != LEAT_NOT_FOUND)) /* an older one that stays would be there again */
            first = rc;
        if (rc < 0)
            break;
        changes[(*n)++] = c;
        if (s->npaths == 1)
            break;
    }
    pthread_mutex_unlock(stripe);
    return first;
}

static int flush_changes(struct store *s, const struct change *changes, unsigned n, struct leat_error *err)
{
    int rc = 0;
    for (unsigned i = 0; i < s->npaths; i++) {
        uint64_t end = 0;
        for (unsigned k = 0; k < n; k++)
            if (changes[k].path == s->paths[i])
                end = MAX(end, changes[k].end);
        int now = end ? store_log_sync(s->paths[i], end, err) : 0;
        rc = rc ? rc : now;
    }
    return rc;
}

/* Keys in groups: one flush each. seqs may be NULL. */
int store_remove(struct store *s, const struct ikey *keys, const uint64_t *seqs, unsigned n, int *ret_codes,
                 struct leat_error *err)
{
    enum { GROUP = 1024 };
    unsigned max = MIN(n, (unsigned)GROUP) + s->npaths;
    AUTO_FREE struct change *changes = calloc(max, sizeof(*changes));
    if (!changes)
        return error_set(err, -ENOMEM, "no memory to delete %u keys", n);
    for (unsigned from = 0; from < n;) {
        unsigned done = 0, at = from;
        store_commits_enter(s);
        for (; at < n && done + s->npaths <= max; at++)
            ret_codes[at] = remove_all_versions(s, &keys[at], seqs ? seqs[at] : 0, changes, &done, max,
                                                n == 1 ? err : NULL);
        int rc = flush_changes(s, changes, done, err);
        for (unsigned i = 0; i < done; i++) /* one that could not be flushed has failed */
            if (rc == 0 || !atomic_load(&changes[i].path->failed))
                store_change_finish(s, &changes[i]);
        store_commits_leave(s);
        if (rc < 0)
            return rc;
        atomic_fetch_add(&s->deletes, done);
        from = at;
    }
    return 0;
}

/* For a rebuild, which has trailers alone: without it an old version that the remote had would be pushed over what others have stored there since, and one whose
 * standing is unknown would be taken for the newest again. */
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
    pthread_mutex_t *stripe = store_stripe(s, k);
    store_commits_enter(s);
    pthread_mutex_lock(stripe);
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
        store_open_forget(s, f.path, f.value.file); /* it says what was so before */
    }
    pthread_mutex_unlock(stripe);
    store_commits_leave(s);
    return rc;
}
