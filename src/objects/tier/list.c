/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c: what a bucket with a remote holds: what is there, and what is not there yet.
 *
 *   the remote's list, in the order of keys ─┐
 *   the store's, in pages ───────────────────┴─▶ merged; keys with a delimiter rolled up; the first `max`
 *
 * Failure modes: a remote that cannot be asked fails the list: half of one would be taken for the whole. Invariants: an entry that is here
 * and dirty stands as it is here. What is here and clean stands as the remote has it, unless it is never compared (then as it is here, also
 * where the remote has it no more).
 */
#include "base/array.h"
#include "objects/tier/tier_internal.h"

#include <stdio.h>

#include "base/clock.h"
#include "wire/s3/s3.h"

#define PAGE 1000u

struct entry {
    char key[STORE_KEY_MAX + 1];
    size_t len;
    bool prefix;
    uint64_t bytes, seq;
    int64_t mtime_ns;
    uint32_t flags;
    char etag[STORE_ETAG_MAX + 1];
};

struct merge {
    struct tier *t;
    struct tier_bucket *b;
    const struct store_list_spec *spec;
    int (*entry)(void *user, const struct store_entry *entry);
    void *user;
    unsigned n; /* handed on */
    bool more;
    int rc; /* the callback's answer */
    /* the store's */
    struct entry *page;
    unsigned npage, at;
    bool local_more;
    char after[STORE_KEY_MAX + 1];
    size_t after_len;
    bool after_prefix;
    /* the last that was handed on, to roll up what belongs to it */
    char last[STORE_KEY_MAX + 1];
    size_t last_len;
    bool last_prefix;
};

static int take_local(void *user, const struct store_entry *e)
{
    struct merge *m = user;
    struct entry *to = &m->page[m->npage++];
    *to = (struct entry){.len = e->key_len,
                         .prefix = e->prefix,
                         .bytes = e->bytes,
                         .seq = e->seq,
                         .mtime_ns = e->mtime_ns,
                         .flags = e->flags};
    memcpy(to->key, e->key, e->key_len);
    snprintf(to->etag, sizeof(to->etag), "%s", e->etag ? e->etag : "");
    return 0;
}

/* The store's next entry, or NULL. */
static int local_peek(struct merge *m, struct entry **ret_entry, struct leat_error *err)
{
    if (m->at == m->npage && m->local_more) {
        struct store_list_spec spec = *m->spec;
        spec.max = PAGE;
        if (m->after_len) {
            spec.after = m->after;
            spec.after_len = m->after_len;
            spec.after_prefix = m->after_prefix;
        }
        m->npage = m->at = 0;
        int rc = store_list(m->t->config.store, m->b->name, &spec, take_local, m, &m->local_more, err);
        if (rc < 0)
            return rc;
        if (m->npage) {
            const struct entry *end = &m->page[m->npage - 1];
            memcpy(m->after, end->key, end->len);
            m->after_len = end->len;
            m->after_prefix = end->prefix;
        }
    }
    *ret_entry = m->at < m->npage ? &m->page[m->at] : NULL;
    return 0;
}

static int by_key(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, MIN(a_len, b_len));
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

/* Hands one on; 1: that was all that is wanted. */
static int emit(struct merge *m, const struct entry *e)
{
    const struct store_list_spec *spec = m->spec;
    size_t len = e->len;
    bool prefix = e->prefix;
    if (!prefix && spec->delimiter_len && len > spec->prefix_len) {
        const char *rest = e->key + spec->prefix_len;
        const char *at = memmem(rest, len - spec->prefix_len, spec->delimiter, spec->delimiter_len);
        prefix = at != NULL;
        if (at)
            len = (size_t)(at - e->key) + spec->delimiter_len;
    }
    if (prefix && m->last_prefix && m->last_len == len && memcmp(m->last, e->key, len) == 0)
        return 0;
    /* Behind `after` (the remote's list knows nothing of after_prefix). */
    if (spec->after_len && by_key(e->key, len, spec->after, spec->after_len) <= 0)
        return 0;
    if (spec->after_prefix && spec->after_len && len >= spec->after_len &&
        memcmp(e->key, spec->after, spec->after_len) == 0)
        return 0;
    if (m->n == spec->max) {
        m->more = true;
        return 1;
    }
    struct store_entry out = {.key = e->key, .key_len = len, .prefix = prefix, .etag = ""};
    if (!prefix) {
        out.bytes = e->bytes;
        out.seq = e->seq;
        out.mtime_ns = e->mtime_ns;
        out.flags = e->flags;
        out.etag = e->etag;
    }
    m->n++;
    memcpy(m->last, e->key, len);
    m->last_len = len;
    m->last_prefix = prefix;
    m->rc = m->entry(m->user, &out);
    return m->rc != 0;
}

/* Does an object of the store with these flags stand as it is here, whatever the remote's list has? */
static bool stands(const struct merge *m, uint32_t flags)
{
    return flags & STORE_DIRTY || m->b->remote.check == TIER_NEVER;
}

/* A rolled up entry of the store counts only if something in it does: looked at one by one. */
static int prefix_counts(void *user, const struct store_entry *e)
{
    const struct merge *m = user;
    return stands(m, e->flags);
}

static int emit_local(struct merge *m, const struct entry *e)
{
    if (e->prefix) {
        struct store_list_spec in = {.prefix = e->key, .prefix_len = e->len, .max = UINT32_MAX};
        bool more;
        if (store_list(m->t->config.store, m->b->name, &in, prefix_counts, m, &more, NULL) != 1)
            return 0;
    }
    return e->prefix || stands(m, e->flags) ? emit(m, e) : 0;
}

/* The remote's next entry, in the order of keys. Negative: enough, or what went wrong. */
static int merge_one(struct merge *m, struct entry *e)
{
    struct entry *l;
    int rc;
    while ((rc = local_peek(m, &l, NULL)) == 0 && l && by_key(l->key, l->len, e->key, e->len) < 0) {
        m->at++;
        if (emit_local(m, l) != 0)
            return -ECANCELED;
    }
    if (rc < 0)
        return rc;
    if (l && l->prefix == e->prefix && by_key(l->key, l->len, e->key, e->len) == 0) {
        m->at++;
        if (!e->prefix && stands(m, l->flags)) {
            *e = *l;
        } else if (!e->prefix && strcmp(l->etag, e->etag) == 0) {
            e->seq = l->seq; /* here, too */
            e->flags = l->flags;
        }
    }
    return emit(m, e) ? -ECANCELED : 0;
}

/* False: no key of ours. */
static bool entry_of(const struct merge *m, const struct backend_object *o, struct entry *ret_entry)
{
    struct entry *e = ret_entry;
    struct backend_stat stat = {.bytes = o->bytes, .modified = o->modified};
    char tag[BACKEND_ETAG_MAX];
    *e = (struct entry){.prefix = o->prefix,
                        .bytes = o->bytes,
                        .mtime_ns = o->modified * (int64_t)NS_PER_S,
                        .flags = TIER_ELSEWHERE};
    size_t n = strlen(o->name), at = m->spec->prefix_len;
    if (at + n == 0 || at + n > STORE_KEY_MAX)
        return false;
    if (at)
        memcpy(e->key, m->spec->prefix, at);
    memcpy(e->key + at, o->name, n);
    e->len = at + n;
    snprintf(stat.etag, sizeof(stat.etag), "%s", o->etag);
    tier_tag_of(&stat, tag);
    tier_etag_of(tag, e->etag);
    return true;
}

static int remote_one(void *user, const struct backend_object *o)
{
    struct entry e;
    return entry_of(user, o, &e) ? merge_one(user, &e) : 0;
}

/*
 * With a delimiter a page says objects and common prefixes one behind the other, each sorted: they are put in order here. Of pages that were
 * not taken whole the last may be missing something, so that a whole page more is taken than is wanted.
 */
struct collected {
    struct merge *m;
    struct entry **entries;
    size_t n, cap;
};

static int collect_one(void *user, const struct backend_object *o)
{
    struct collected *c = user;
    struct entry e;
    if (!entry_of(c->m, o, &e))
        return 0;
    if (array_reserve(&c->entries, &c->cap, c->n + 1) < 0 || !(c->entries[c->n] = malloc(sizeof(e))))
        return -ENOMEM;
    *c->entries[c->n++] = e;
    return c->n > c->m->spec->max + (size_t)S3_PAGE_MAX ? -EOVERFLOW : 0;
}

static int entry_order(const void *a, const void *b)
{
    const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
    return by_key(x->key, x->len, y->key, y->len);
}

static int list_collected(struct merge *m, struct backend *b, const char *uri, const char *after,
                          struct leat_error *err)
{
    struct collected c = {.m = m};
    int rc = backend_list(b, uri, false, after, collect_one, &c, err);
    if (rc == -EOVERFLOW)
        rc = 0;
    if (rc == 0 && c.n)
        qsort(c.entries, c.n, sizeof(c.entries[0]), entry_order);
    for (size_t i = 0; i < c.n; i++) {
        if (rc == 0)
            rc = merge_one(m, c.entries[i]);
        free(c.entries[i]);
    }
    free(c.entries);
    return rc;
}

static int remote_list(struct merge *m, struct leat_error *err)
{
    const struct store_list_spec *spec = m->spec;
    const struct tier_remote *r = &m->b->remote;
    struct tier_session *s;
    char *uri = NULL, *after = NULL;
    int rc = asprintf(&uri, "%s%.*s", r->uri, (int)spec->prefix_len,
                      spec->prefix_len ? (const char *)spec->prefix : "") < 0
                 ? -ENOMEM
                 : 0;
    /* Behind a prefix: behind the greatest character that UTF-8 has. */
    if (rc == 0 && spec->after_len &&
        asprintf(&after, "%s%.*s%s", r->base_key, (int)spec->after_len, (const char *)spec->after,
                 spec->after_prefix ? "\xf4\x8f\xbf\xbf" : "") < 0) {
        after = NULL;
        rc = -ENOMEM;
    }
    bool flat = spec->delimiter_len != 1 || *(const char *)spec->delimiter != '/';
    if (rc == 0)
        rc = tier_session_get(m->t, m->b, &s, err);
    if (rc == 0) {
        rc = flat ? backend_list(s->backend, uri, true, after, remote_one, m, err)
                  : list_collected(m, s->backend, uri, after, err);
        tier_session_put(m->t, m->b, s);
        bool ours = m->rc || m->more;
        rc = ours ? 0 : rc < 0 ? tier_remote_error(m->b, rc, err) : 0;
    }
    free(uri);
    free(after);
    return rc;
}

int tier_list(struct tier *t, const char *bucket, const struct store_list_spec *spec,
              int (*entry)(void *user, const struct store_entry *entry), void *user, bool *ret_more,
              struct leat_error *err)
{
    struct merge *m = calloc(1, sizeof(*m));
    struct entry *l;
    if (!m)
        return -ENOMEM;
    m->t = t;
    m->spec = spec;
    m->entry = entry;
    m->user = user;
    m->local_more = true;
    m->b = tier_bucket_find(t, bucket);
    m->page = calloc(PAGE, sizeof(*m->page));
    int rc = m->page ? 0 : -ENOMEM;
    if (rc == 0 && !m->b)
        rc = error_set(err, LEAT_INVALID, "bucket %s has no remote", bucket);
    if (rc == 0 && spec->max)
        rc = remote_list(m, err);
    while (rc == 0 && spec->max && !m->rc && !m->more && (rc = local_peek(m, &l, err)) == 0 && l) {
        m->at++;
        emit_local(m, l);
    }
    if (rc == 0)
        rc = m->rc;
    if (rc == 0)
        *ret_more = m->more;
    tier_bucket_unref(t, m->b);
    free(m->page);
    free(m);
    return rc;
}
