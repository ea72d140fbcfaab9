/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h: the objects of one path, sorted by key: a mapped snapshot, and in front of it later changes, in
 * one skip list or two (`frozen` while a new snapshot is being written out of it).
 *
 *     look-up:  changed ─▶ frozen ─▶ snapshot            list: the three merged, the newest of equal keys wins
 *
 * A key here is the bucket's number, big-endian, and the object's key. 80 bytes and the key for each object of the snapshot (file-backed,
 * so the kernel may drop them), one byte of ours; about 130 bytes and the key for each change.
 * Readers take `lock` shared, store_index_apply takes it for a moment; no thread does I/O of its own under it.
 */
#ifndef STORE_INDEX_H
#define STORE_INDEX_H

#include <pthread.h>

#include "base/base.h"
#include "store/store.h"

#define INDEX_KEY_MAX   (STORE_KEY_MAX + 4)
#define INDEX_EXTRA_MAX 1024u

#define INDEX_ETAG_TEXT UINT32_MAX /* of `parts`: the ETag is text, in extra */
/* Of flags, in changes only. */
enum {
    INDEX_DEAD = 0x80000000u, /* the key is deleted */
    INDEX_UNKNOWN =
        0x40000000, /* a record of it could not be flushed: it may be this version, the one before, or none. Only on a path that has failed */
};

/* As it lies in snapshots and logs: little-endian, no holes. */
struct index_value {
    uint64_t file;  /* number of the file */
    uint64_t seq;   /* of the version */
    uint64_t bytes; /* of payload */
    int64_t mtime_ns;
    uint32_t trailer_bytes; /* behind it, padding not counted */
    uint32_t flags;         /* STORE_DIRTY, STORE_CORRUPT, INDEX_DEAD */
    uint32_t crc32c;        /* of the payload */
    uint32_t parts;         /* of the ETag: 0: MD5 alone; N: "-N" behind it */
    uint8_t etag[16];
};
static_assert(sizeof(struct index_value) == 64, "as on disk");

/* One found object; pointers are valid under the lock. extra: 'e' and an ETag's text, 'r' and the remote's, each with a NUL. */
struct index_item {
    struct index_value value;
    const uint8_t *key;
    const uint8_t *extra;
    uint16_t key_len, extra_len;
    _Atomic uint8_t *clock; /* looked at lately */
};

#define INDEX_LEVELS 20
struct index_node {
    struct index_value value;
    _Atomic uint8_t clock;
    uint8_t levels;
    uint16_t key_len, extra_len;
    uint32_t pad;
    struct index_node *next[]; /* `levels` of them, then the key, then extra */
};
struct index_list {
    struct index_node *head[INDEX_LEVELS];
    uint64_t count;
    uint64_t random;
};

struct snapshot_entry {
    struct index_value value;
    uint64_t key_offset; /* in strings; extra follows the key */
    uint16_t key_len, extra_len;
    uint32_t reserved;
};
static_assert(sizeof(struct snapshot_entry) == 80, "as on disk");

/* A snapshot in memory: sorted, checked as a whole when it was mapped. */
struct snapshot {
    void *map;
    size_t map_bytes;
    const struct snapshot_entry *entries;
    const uint8_t *strings;
    uint64_t count;
    _Atomic uint8_t *clock;
};

struct index {
    pthread_rwlock_t lock;
    struct index_list *changed, *frozen; /* frozen may be NULL */
    struct snapshot *snapshot;           /* may be NULL */
    /* of what is visible; under the lock */
    uint64_t objects, bytes, dirty;
    uint64_t hidden; /* of the objects: uploads and their parts */
};

int store_index_init(struct index *x);
void store_index_fini(struct index *x);

/* A change to be applied later: after that nothing can fail. NULL: out of memory. */
struct index_node *store_index_node_new(struct index *x, const struct index_value *value, const void *key,
                                        size_t key_len, const void *extra, size_t extra_len);
static inline uint8_t *index_node_key(struct index_node *n)
{
    return (uint8_t *)&n->next[n->levels];
}
static inline uint8_t *index_node_extra(struct index_node *n)
{
    return index_node_key(n) + n->key_len;
}
/* Of the bucket of number 0, to which no name leads (multipart.c). */
static inline bool index_key_hidden(const uint8_t *key, size_t key_len)
{
    return key_len >= 4 && memcmp(key, "\0\0\0", 4) == 0;
}
/* The node is the index's from here on. true: there was such a key, and *ret_old is its value. Takes the lock. */
bool store_index_apply(struct index *x, struct index_node *node, struct index_value *ret_old);
/* The caller holds the lock. */
bool store_index_find(struct index *x, const void *key, size_t key_len, struct index_item *ret_item);

/* Moves over the objects of one index in the order of keys; the caller holds the lock. */
struct index_cursor {
    struct index_item item; /* where it is, if `valid` */
    bool valid;
    struct index_node *changed, *frozen;
    struct snapshot *snapshot;
    uint64_t at;
};
void store_index_seek(struct index_cursor *c, struct index *x, const void *key,
                      size_t key_len); /* first >= key */
void store_index_next(struct index_cursor *c);

/* changed becomes frozen, a new empty list takes its place (`fresh`); frozen must be NULL. */
void store_index_freeze(struct index *x, struct index_list *fresh);
struct index_list *store_index_list_new(void);
void store_index_list_free(struct index_list *l);
/* The snapshot of snapshot + frozen takes their place. */
void store_index_thaw(struct index *x, struct snapshot *snapshot);

int store_index_compare(const void *a, size_t a_len, const void *b, size_t b_len);

#endif
