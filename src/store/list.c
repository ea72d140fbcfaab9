/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c: the keys of a bucket in order, over all paths at once.
 *
 * Happy path: a cursor in each path's index, all moved in step; the newest version of equal keys speaks for
 * it. Behind a common prefix the cursors are set again, so that a folder of a million keys costs one step.
 * Failure modes: a path whose index was never loaded makes a list incomplete: STORE_UNAVAILABLE, as a mirror
 * would delete what is missing. So does a key whose state is unknown after a failed flush.
 * Invariants: the locks of all indexes are held (shared) from the first to the last entry of a page.
 */
#include "store/internal.h"

struct listing {
    struct store *s;
    struct index_cursor cursors[STORE_PATHS_MAX];
    uint8_t start[INDEX_KEY_MAX + 1];
};

static void seek_all(struct listing *l, const void *key, size_t key_len)
{
    for (unsigned i = 0; i < l->s->npaths; i++)
        store_index_seek(&l->cursors[i], &l->s->paths[i]->index, key, key_len);
}

/* The smallest key of all; NULL at the end. */
static struct index_cursor *least(struct listing *l)
{
    struct index_cursor *best = NULL;
    for (unsigned i = 0; i < l->s->npaths; i++) {
        struct index_cursor *c = &l->cursors[i];
        if (!c->valid)
            continue;
        int order =
            best ? store_index_compare(c->item.key, c->item.key_len, best->item.key, best->item.key_len) : -1;
        if (order < 0 || (order == 0 && c->item.value.seq > best->item.value.seq))
            best = c;
    }
    return best;
}

static void move_on(struct listing *l, const struct index_cursor *at)
{
    const struct index_item item = at->item;
    for (unsigned i = 0; i < l->s->npaths; i++) {
        struct index_cursor *c = &l->cursors[i];
        if (c == at ||
            (c->valid && store_index_compare(c->item.key, c->item.key_len, item.key, item.key_len) == 0))
            store_index_next(c);
    }
}

/* The smallest key above all those that begin with these bytes; 0: there is none. In place. */
static size_t behind(uint8_t *key, size_t len)
{
    while (len > 0 && key[len - 1] == 0xff)
        len--;
    if (len > 0)
        key[len - 1]++;
    return len;
}

static const uint8_t *find_bytes(const uint8_t *in, size_t len, const void *what, size_t what_len)
{
    return what_len == 1 ? memchr(in, *(const uint8_t *)what, len) : memmem(in, len, what, what_len);
}

/* The first position; false: the list is empty. */
static bool start(struct listing *l, uint32_t id, const struct store_list_spec *spec)
{
    struct ikey k, after;
    size_t len;
    ikey_set(&k, id, spec->prefix, spec->prefix_len);
    memcpy(l->start, k.bytes, k.len);
    len = k.len;
    if (spec->after) {
        ikey_set(&after, id, spec->after, spec->after_len);
        uint8_t next[INDEX_KEY_MAX + 1];
        size_t next_len = after.len;
        memcpy(next, after.bytes, after.len);
        if (spec->after_prefix)
            next_len = behind(next, next_len);
        else
            next[next_len++] = 0; /* the next possible key */
        if (next_len == 0)
            return false;
        if (store_index_compare(next, next_len, l->start, len) > 0) {
            memcpy(l->start, next, next_len);
            len = next_len;
        }
    }
    seek_all(l, l->start, len);
    return true;
}

static int list(struct listing *l, uint32_t id, const struct store_list_spec *spec,
                int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
                struct leat_error *err)
{
    struct ikey prefix;
    uint8_t skip[INDEX_KEY_MAX];
    unsigned n = 0;
    ikey_set(&prefix, id, spec->prefix, spec->prefix_len);
    *ret_more = false;
    if (!start(l, id, spec))
        return 0;
    for (struct index_cursor *c; (c = least(l));) {
        const struct index_item *item = &c->item;
        if (item->key_len < prefix.len || memcmp(item->key, prefix.bytes, prefix.len) != 0)
            return 0;
        if (item->value.flags & INDEX_UNKNOWN)
            return error_set(
                err, STORE_UNAVAILABLE,
                "the last change of a key could not be flushed, as its disk has failed: whether the key is "
                "there is known after the next start");
        if (n++ == spec->max) {
            *ret_more = true;
            return 0;
        }
        const uint8_t *cut = spec->delimiter_len
                                 ? find_bytes(item->key + prefix.len, item->key_len - prefix.len,
                                              spec->delimiter, spec->delimiter_len)
                                 : NULL;
        char etag[STORE_ETAG_MAX + 1] = "";
        struct store_entry e = {
            .key = item->key + 4, .key_len = item->key_len - 4u, .prefix = cut, .etag = etag};
        if (cut) {
            e.key_len = (size_t)(cut - item->key) + spec->delimiter_len - 4;
        } else {
            e.bytes = item->value.bytes;
            e.seq = item->value.seq;
            e.mtime_ns = item->value.mtime_ns;
            e.flags = item->value.flags;
            store_etag_format(item->value.etag, item->value.parts,
                              store_extra_get(item->extra, item->extra_len, 'e'), etag);
        }
        int rc = entry(user, &e);
        if (rc != 0)
            return rc;
        if (!cut) {
            move_on(l, c);
            continue;
        }
        memcpy(skip, item->key, e.key_len + 4);
        size_t len = behind(skip, e.key_len + 4);
        if (len == 0)
            return 0;
        seek_all(l, skip, len);
    }
    return 0;
}

int store_list(struct store *s, const char *bucket, const struct store_list_spec *spec,
               int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
               struct leat_error *err)
{
    uint32_t id;
    bool more;
    int rc = store_bucket_find(s, bucket, &id, NULL, err);
    if (rc < 0)
        return rc;
    if (spec->prefix_len > STORE_KEY_MAX || spec->after_len > STORE_KEY_MAX)
        return error_set(err, LEAT_INVALID, "keys have at most %u bytes", STORE_KEY_MAX);
    for (unsigned i = 0; i < s->npaths; i++)
        if (!s->paths[i]->loaded)
            return error_set(err, STORE_UNAVAILABLE, "%s has failed: a list would be incomplete",
                             s->paths[i]->dir);
    AUTO_FREE struct listing *l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(err, -ENOMEM, "no memory for a list");
    l->s = s;
    for (unsigned i = 0; i < s->npaths; i++)
        pthread_rwlock_rdlock(&s->paths[i]->index.lock);
    rc = list(l, id, spec, entry, user, &more, err);
    for (unsigned i = 0; i < s->npaths; i++)
        pthread_rwlock_unlock(&s->paths[i]->index.lock);
    if (rc == 0 && ret_more)
        *ret_more = more;
    return rc;
}
