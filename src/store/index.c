/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c: the sorted index of one path.
 *
 * Happy path: store_index_find looks at the changes, at the frozen ones, and in the snapshot by bisection; a cursor walks over the three in step.
 * Failure modes: none of its own: nodes are allocated before (store_index_node_new), so that a logged change
 * cannot fail.
 * Invariants: a key is once in each of the three; the newest counts, and a dead one hides those behind it.
 */
#include "store/index.h"

#include <sys/mman.h>

#include "base/rng.h"

int store_index_compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
    int order = memcmp(a, b, MIN(a_len, b_len));
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

/* --- the skip list (Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees", CACM 1990), p = 1/4 --------------- */

struct index_list *store_index_list_new(void)
{
    struct index_list *l = calloc(1, sizeof(*l));
    if (l)
        l->random = 1;
    return l;
}

void store_index_list_free(struct index_list *l)
{
    if (!l)
        return;
    for (struct index_node *n = l->head[0]; n;) {
        struct index_node *next = n->next[0];
        free(n);
        n = next;
    }
    free(l);
}

/* The first node that is not below the key; ret_links (may be NULL): on each level the link that points to it or past it. */
static struct index_node *list_seek(struct index_list *l, const void *key, size_t key_len,
                                    struct index_node ***ret_links)
{
    struct index_node **links = l->head, *past = NULL;
    for (int level = INDEX_LEVELS - 1; level >= 0; level--) {
        struct index_node *n;
        /* A node that was not below on the level above need not be compared again. */
        while ((n = links[level]) && n != past &&
               store_index_compare(index_node_key(n), n->key_len, key, key_len) < 0)
            links = n->next;
        past = n;
        if (ret_links)
            ret_links[level] = &links[level];
    }
    return links[0];
}

struct index_node *store_index_node_new(struct index *x, const struct index_value *value, const void *key,
                                        size_t key_len, const void *extra, size_t extra_len)
{
    assert(key_len <= INDEX_KEY_MAX && extra_len <= INDEX_EXTRA_MAX);
    /* The height follows from the key's own hash: the same in every run, and no lock for a generator. */
    uint64_t h = 0;
    for (size_t i = 0; i < key_len; i++)
        h = h * 0x100000001b3ull + ((const uint8_t *)key)[i] + 1;
    h = rng_mix64(h ^ value->seq);
    unsigned levels = 1;
    for (; levels < INDEX_LEVELS && (h & 3) == 0; h >>= 2)
        levels++;
    struct index_node *n = malloc(sizeof(*n) + levels * sizeof(n->next[0]) + key_len + extra_len);
    if (!n)
        return NULL;
    n->value = *value;
    atomic_init(&n->clock, 1);
    n->levels = (uint8_t)levels;
    n->key_len = (uint16_t)key_len;
    n->extra_len = (uint16_t)extra_len;
    memcpy(index_node_key(n), key, key_len);
    if (extra_len)
        memcpy(index_node_extra(n), extra, extra_len);
    return n;
}

/* Returns the node that had the same key, unlinked, or NULL. */
static struct index_node *list_put(struct index_list *l, struct index_node *node)
{
    struct index_node **links[INDEX_LEVELS];
    struct index_node *old = list_seek(l, index_node_key(node), node->key_len, links);
    if (old &&
        store_index_compare(index_node_key(old), old->key_len, index_node_key(node), node->key_len) == 0) {
        for (unsigned i = 0; i < old->levels; i++)
            *links[i] = old->next[i];
        l->count--;
    } else {
        old = NULL;
    }
    for (unsigned i = 0; i < node->levels; i++) {
        node->next[i] = *links[i];
        *links[i] = node;
    }
    l->count++;
    return old;
}

/* --- the snapshot ------------------------------------------------------------------------------------------------------- */

static const uint8_t *entry_key(const struct snapshot *s, uint64_t i)
{
    return s->strings + s->entries[i].key_offset;
}

static uint64_t snapshot_seek(const struct snapshot *s, const void *key, size_t key_len)
{
    uint64_t low = 0, high = s ? s->count : 0;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (store_index_compare(entry_key(s, mid), s->entries[mid].key_len, key, key_len) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void item_of_node(struct index_item *item, struct index_node *n)
{
    *item = (struct index_item){n->value,   index_node_key(n), index_node_extra(n),
                                n->key_len, n->extra_len,      &n->clock};
}

static void item_of_entry(struct index_item *item, const struct snapshot *s, uint64_t i)
{
    const struct snapshot_entry *e = &s->entries[i];
    const uint8_t *key = entry_key(s, i);
    *item = (struct index_item){e->value, key, key + e->key_len, e->key_len, e->extra_len, &s->clock[i]};
}

/* --- the index ---------------------------------------------------------------------------------------------------------- */

int store_index_init(struct index *x)
{
    *x = (struct index){.changed = store_index_list_new()};
    if (!x->changed)
        return -ENOMEM;
    pthread_rwlockattr_t attr;
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&x->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    return 0;
}

static void snapshot_free(struct snapshot *s)
{
    if (!s)
        return;
    if (s->map)
        munmap(s->map, s->map_bytes);
    free((void *)s->clock);
    free(s);
}

void store_index_fini(struct index *x)
{
    if (!x->changed)
        return;
    store_index_list_free(x->changed);
    store_index_list_free(x->frozen);
    snapshot_free(x->snapshot);
    pthread_rwlock_destroy(&x->lock);
    x->changed = NULL;
}

static bool find_in_list(struct index_list *l, const void *key, size_t key_len, struct index_item *ret_item)
{
    struct index_node *n = l ? list_seek(l, key, key_len, NULL) : NULL;
    if (!n || store_index_compare(index_node_key(n), n->key_len, key, key_len) != 0)
        return false;
    item_of_node(ret_item, n);
    return true;
}

bool store_index_find(struct index *x, const void *key, size_t key_len, struct index_item *ret_item)
{
    if (find_in_list(x->changed, key, key_len, ret_item) || find_in_list(x->frozen, key, key_len, ret_item))
        return !(ret_item->value.flags & INDEX_DEAD);
    uint64_t i = snapshot_seek(x->snapshot, key, key_len);
    if (!x->snapshot || i == x->snapshot->count ||
        store_index_compare(entry_key(x->snapshot, i), x->snapshot->entries[i].key_len, key, key_len) != 0)
        return false;
    item_of_entry(ret_item, x->snapshot, i);
    return true;
}

static void count_value(struct index *x, struct index_node *node, const struct index_value *v, int sign)
{
    x->objects += (uint64_t)(int64_t)sign;
    if (index_key_hidden(index_node_key(node), node->key_len))
        x->hidden += (uint64_t)(int64_t)sign;
    x->bytes += (uint64_t)sign * (v->bytes + v->trailer_bytes);
    if (v->flags & STORE_DIRTY)
        x->dirty += (uint64_t)(int64_t)sign;
}

bool store_index_apply(struct index *x, struct index_node *node, struct index_value *ret_old)
{
    pthread_rwlock_wrlock(&x->lock);
    struct index_item old;
    bool had = store_index_find(x, index_node_key(node), node->key_len, &old);
    if (had) {
        *ret_old = old.value;
        count_value(x, node, &old.value, -1);
    }
    if (!(node->value.flags & INDEX_DEAD))
        count_value(x, node, &node->value, 1);
    struct index_node *gone = list_put(x->changed, node);
    pthread_rwlock_unlock(&x->lock);
    free(gone);
    return had;
}

/* The smallest key under the three cursors; of equal keys the newest version counts. */
static void pick(struct index_cursor *c)
{
    struct snapshot *s = c->snapshot;
    struct index_node *n = c->changed;
    if (c->frozen && (!n || store_index_compare(index_node_key(c->frozen), c->frozen->key_len,
                                                index_node_key(n), n->key_len) < 0))
        n = c->frozen;
    bool old = s && c->at < s->count;
    c->valid = n || old;
    if (old && (!n || store_index_compare(entry_key(s, c->at), s->entries[c->at].key_len, index_node_key(n),
                                          n->key_len) < 0))
        item_of_entry(&c->item, s, c->at);
    else if (n)
        item_of_node(&c->item, n);
}

static bool same_key(const struct index_item *item, const uint8_t *key, size_t key_len)
{
    return key_len == item->key_len && memcmp(key, item->key, key_len) == 0;
}

/* Hands at the same key move on together. */
static void step(struct index_cursor *c)
{
    const struct index_item *item = &c->item;
    struct snapshot *s = c->snapshot;
    if (c->changed && same_key(item, index_node_key(c->changed), c->changed->key_len))
        c->changed = c->changed->next[0];
    if (c->frozen && same_key(item, index_node_key(c->frozen), c->frozen->key_len))
        c->frozen = c->frozen->next[0];
    if (s && c->at < s->count && same_key(item, entry_key(s, c->at), s->entries[c->at].key_len))
        c->at++;
}

static void over_the_dead(struct index_cursor *c)
{
    for (pick(c); c->valid && c->item.value.flags & INDEX_DEAD; pick(c))
        step(c);
}

void store_index_seek(struct index_cursor *c, struct index *x, const void *key, size_t key_len)
{
    c->snapshot = x->snapshot;
    c->changed = list_seek(x->changed, key, key_len, NULL);
    c->frozen = x->frozen ? list_seek(x->frozen, key, key_len, NULL) : NULL;
    c->at = snapshot_seek(x->snapshot, key, key_len);
    over_the_dead(c);
}

void store_index_next(struct index_cursor *c)
{
    step(c);
    over_the_dead(c);
}

void store_index_freeze(struct index *x, struct index_list *fresh)
{
    pthread_rwlock_wrlock(&x->lock);
    assert(!x->frozen);
    x->frozen = x->changed;
    x->changed = fresh;
    pthread_rwlock_unlock(&x->lock);
}

void store_index_thaw(struct index *x, struct snapshot *snapshot)
{
    pthread_rwlock_wrlock(&x->lock);
    struct index_list *frozen = x->frozen;
    struct snapshot *old = x->snapshot;
    x->frozen = NULL;
    x->snapshot = snapshot;
    pthread_rwlock_unlock(&x->lock);
    store_index_list_free(frozen);
    snapshot_free(old);
}
