/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get.c: objects, open: found in the index, opened once, shared by all readers, and kept open for the next.
 *
 * Happy path: a hot object is a look into the index and one into the table of open ones; no system call. A
 * cold one is opened, its trailer read and compared with the index; a small one is read whole, and verified.
 * Failure modes: a file that is replaced between the two is looked up again. A wrong checksum marks the object: from then on reads are
 * LEAT_CORRUPT, until it is stored again (or evicted and fetched, where the remote has it).
 * Invariants: a holder of an object holds its descriptor; the table holds one reference, and releases the least recently used above its cap.
 */
#include "store/internal.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "disk/direct.h"

#define BODIES_BYTES (64 * MIB) /* for the bodies of small objects, kept with open ones */

struct obj {
    struct store_obj pub;
    _Atomic unsigned refs;
    struct store *store;
    struct path *path;
    uint64_t file;
    struct obj *hash_next;
    struct list lru;
    bool in_table;
    struct ikey key;
    uint8_t *data; /* the trailer; meta and so on point into it */
    uint8_t *body; /* pub.body */
    struct trailer trailer;
    _Atomic uint64_t verified[]; /* a bit a block */
};

static struct obj *obj_of(const struct store_obj *pub)
{
    return container_of(pub, struct obj, pub);
}

/* --- the table of open objects --------------------------------------------------------------------------------------------- */

int store_open_init(struct open_files *o, unsigned cap)
{
    o->cap = cap;
    o->buckets = 64;
    while (o->buckets < cap)
        o->buckets *= 2;
    o->table = calloc(o->buckets, sizeof(*o->table));
    list_init(&o->lru);
    budget_init(&o->bodies, BODIES_BYTES);
    return o->table ? 0 : -ENOMEM;
}

static struct obj **slot(struct open_files *o, const struct path *p, uint64_t file)
{
    return &o->table[(file * 0x9e3779b97f4a7c15ull + p->number) >> 32 & (o->buckets - 1)];
}

/* The table's reference is the caller's now. lock is held. */
static struct obj *take_out(struct open_files *o, struct obj *obj)
{
    struct obj **link = slot(o, obj->path, obj->file);
    while (*link != obj)
        link = &(*link)->hash_next;
    *link = obj->hash_next;
    list_remove(&obj->lru);
    obj->in_table = false;
    o->count--;
    return obj;
}

struct store_obj *store_open_find(struct store *s, struct path *p, uint64_t file, uint64_t seq)
{
    struct open_files *o = &s->open;
    struct obj *found = NULL;
    pthread_mutex_lock(&o->lock);
    for (struct obj *obj = *slot(o, p, file); obj && !found; obj = obj->hash_next)
        if (obj->path == p && obj->file == file && obj->pub.info.seq == seq)
            found = obj;
    if (found) {
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
        list_remove(&found->lru);
        list_push_front(&o->lru, &found->lru);
    }
    pthread_mutex_unlock(&o->lock);
    return found ? &found->pub : NULL;
}

void store_open_forget(struct store *s, struct path *p, uint64_t file)
{
    struct open_files *o = &s->open;
    struct obj *gone = NULL;
    pthread_mutex_lock(&o->lock);
    for (struct obj *obj = *slot(o, p, file); obj && !gone; obj = obj->hash_next)
        if (obj->path == p && obj->file == file)
            gone = take_out(o, obj);
    pthread_mutex_unlock(&o->lock);
    if (gone)
        store_obj_unref(&gone->pub);
}

static void keep_open(struct store *s, struct obj *obj)
{
    struct open_files *o = &s->open;
    struct obj *gone = NULL;
    pthread_mutex_lock(&o->lock);
    bool twice = false;
    for (struct obj *other = *slot(o, obj->path, obj->file); other; other = other->hash_next)
        twice |= other->path == obj->path && other->file == obj->file;
    if (!twice && o->cap > 0) {
        if (o->count >= o->cap)
            gone = take_out(o, container_of(o->lru.prev, struct obj, lru));
        struct obj **link = slot(o, obj->path, obj->file);
        obj->hash_next = *link;
        *link = obj;
        list_push_front(&o->lru, &obj->lru);
        obj->in_table = true;
        o->count++;
        atomic_fetch_add_explicit(&obj->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&o->lock);
    if (gone)
        store_obj_unref(&gone->pub);
}

void store_open_fini(struct store *s)
{
    struct open_files *o = &s->open;
    while (o->table && !list_empty(&o->lru))
        store_obj_unref(&take_out(o, container_of(o->lru.next, struct obj, lru))->pub);
    free(o->table);
}

struct store_obj *store_obj_ref(struct store_obj *pub)
{
    atomic_fetch_add_explicit(&obj_of(pub)->refs, 1, memory_order_relaxed);
    return pub;
}

static void obj_free(struct obj *obj)
{
    obj->store->io->close(obj->store->io, obj->pub.fd);
    if (obj->body)
        budget_release(&obj->store->open.bodies, obj->pub.info.bytes);
    free(obj->body);
    free(obj->data);
    free(obj);
}

/* The last close of an unlinked file frees its blocks: milliseconds for a large one, too long for an event loop. */
static bool close_later(struct obj *obj)
{
    struct store *s = obj->store;
    struct stat st;
    if (!s->has_thread || obj->pub.info.bytes < STORE_BLOCK || fstat(obj->pub.fd, &st) < 0 || st.st_nlink > 0)
        return false;
    pthread_mutex_lock(&s->open.lock);
    list_push_back(&s->open.closing, &obj->lru);
    pthread_mutex_unlock(&s->open.lock);
    store_kick(s);
    return true;
}

void store_obj_unref(struct store_obj *pub)
{
    if (!pub || atomic_fetch_sub_explicit(&obj_of(pub)->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (!close_later(obj_of(pub)))
        obj_free(obj_of(pub));
}

void store_open_close(struct store *s)
{
    for (struct list *first = &s->open.closing; first;) {
        pthread_mutex_lock(&s->open.lock);
        first = list_empty(&s->open.closing) ? NULL : s->open.closing.next;
        if (first)
            list_remove(first);
        pthread_mutex_unlock(&s->open.lock);
        if (first)
            obj_free(container_of(first, struct obj, lru));
    }
}

/* --- verifying --------------------------------------------------------------------------------------------------------------- */

static bool give_up(struct store *s, const struct path *p, const struct ikey *k, uint64_t seq)
{
    if (!store_give_up(s, k, seq))
        return false;
    log_warning("%s: that object was evicted: the remote has it, and the next read fetches it again", p->dir);
    return true;
}

void store_found_corrupt(struct store *s, struct path *p, const struct ikey *k, uint64_t seq)
{
    atomic_fetch_add(&p->corrupt, 1);
    if (give_up(s, p, k, seq))
        return;
    store_flag(s, k, seq, 0, STORE_CORRUPT, NULL, false, NULL);
    store_scrub_note(p, k, seq);
}

static int corrupt(struct obj *obj, uint64_t block, struct leat_error *err)
{
    char text[KEY_TEXT_MAX];
    store_key_text(obj->trailer.bucket, obj->trailer.key, obj->trailer.key_len, text);
    log_error_limited("%s: block %llu of %s is damaged (file %012llx)", obj->path->dir,
                      (unsigned long long)block, text, (unsigned long long)obj->file);
    store_found_corrupt(obj->store, obj->path, &obj->key, obj->pub.info.seq);
    store_open_forget(obj->store, obj->path, obj->file);
    return error_set(
        err, LEAT_CORRUPT,
        "block %llu (1 MiB each) of %s is damaged on %s: its checksum does not match; store the object "
        "again, or delete it",
        (unsigned long long)block, text, obj->path->dir);
}

static bool is_verified(const struct obj *obj, uint64_t block)
{
    return atomic_load_explicit(&obj->verified[block / 64], memory_order_acquire) >> block % 64 & 1;
}

static void set_verified(struct obj *obj, uint64_t block)
{
    atomic_fetch_or_explicit(&obj->verified[block / 64], 1ull << block % 64, memory_order_release);
}

static uint64_t block_bytes(const struct obj *obj, uint64_t block)
{
    return MIN(STORE_BLOCK, obj->pub.info.bytes - block * STORE_BLOCK);
}

int store_obj_verify_block(struct store *s, struct store_obj *pub, uint64_t block, const void *data,
                           uint64_t bytes, struct leat_error *err)
{
    struct obj *obj = obj_of(pub);
    if (block >= obj->trailer.ncrcs || bytes != block_bytes(obj, block))
        return error_set(err, LEAT_INVALID, "block %llu of %llu bytes: there is none",
                         (unsigned long long)block, (unsigned long long)bytes);
    if (crc32c(0, data, bytes) != obj->trailer.crcs[block])
        return corrupt(obj, block, err);
    set_verified(obj, block);
    return 0;
}

const uint32_t *store_obj_block_crcs(const struct store_obj *pub, uint64_t *ret_n)
{
    *ret_n = obj_of(pub)->trailer.ncrcs;
    return obj_of(pub)->trailer.crcs;
}

/* One file cannot be read. It is never marked: an unreadable file may be a cable's fault (0100). */
static int unreadable(struct store *s, struct path *p, const struct ikey *k, uint64_t file, uint64_t seq,
                      int rc, const char *text, struct leat_error *err)
{
    rc = store_path_unreadable(p, file, rc, text, err);
    if (rc == STORE_UNAVAILABLE && !atomic_load(&p->failed) && give_up(s, p, k, seq))
        store_open_forget(s, p, file);
    return rc;
}

static int read_failed(struct obj *obj, int rc, struct leat_error *err)
{
    char text[KEY_TEXT_MAX];
    store_key_text(obj->trailer.bucket, obj->trailer.key, obj->trailer.key_len, text);
    if (rc == -ENODATA)
        return corrupt(obj, obj->trailer.ncrcs ? obj->trailer.ncrcs - 1 : 0, err);
    return unreadable(obj->store, obj->path, &obj->key, obj->file, obj->pub.info.seq, rc, text, err);
}

static int read_block(struct obj *obj, uint64_t block, uint8_t *dst, struct leat_error *err)
{
    struct store *s = obj->store;
    int rc = store_io_read(s->io, obj->pub.fd, dst, block_bytes(obj, block), block * STORE_BLOCK);
    if (rc < 0)
        return read_failed(obj, rc, err);
    store_path_readable(obj->path);
    return store_obj_verify_block(s, &obj->pub, block, dst, block_bytes(obj, block), err);
}

static int check_range(const struct obj *obj, uint64_t offset, uint64_t bytes, struct leat_error *err)
{
    if (offset <= obj->pub.info.bytes && bytes <= obj->pub.info.bytes - offset)
        return 0;
    return error_set(err, LEAT_INVALID, "bytes %llu + %llu of an object of %llu", (unsigned long long)offset,
                     (unsigned long long)bytes, (unsigned long long)obj->pub.info.bytes);
}

bool store_obj_checked(const struct store_obj *pub, uint64_t offset, uint64_t bytes)
{
    const struct obj *obj = obj_of(pub);
    if (check_range(obj, offset, bytes, NULL) < 0)
        return false;
    for (uint64_t b = offset / STORE_BLOCK; bytes && b <= (offset + bytes - 1) / STORE_BLOCK; b++)
        if (!is_verified(obj, b))
            return false;
    return true;
}

int store_obj_check(struct store *s, struct store_obj *pub, uint64_t offset, uint64_t bytes,
                    struct leat_error *err)
{
    struct obj *obj = obj_of(pub);
    int rc = check_range(obj, offset, bytes, err);
    if (rc < 0 || bytes == 0 || store_obj_checked(pub, offset, bytes))
        return rc;
    if (budget_reserve(s->budget, STORE_BLOCK) < 0)
        return error_set(err, LEAT_BUSY, "no room for a buffer to verify with; try again later");
    AUTO_FREE uint8_t *buf = malloc(STORE_BLOCK);
    rc = buf ? 0 : error_set(err, -ENOMEM, "no memory to verify an object");
    for (uint64_t b = offset / STORE_BLOCK; rc == 0 && b <= (offset + bytes - 1) / STORE_BLOCK; b++)
        if (!is_verified(obj, b))
            rc = read_block(obj, b, buf, err);
    budget_release(s->budget, STORE_BLOCK);
    return rc;
}

int store_obj_read(struct store *s, struct store_obj *pub, uint64_t offset, void *dst, uint64_t bytes,
                   struct leat_error *err)
{
    struct obj *obj = obj_of(pub);
    int rc = check_range(obj, offset, bytes, err);
    uint8_t *to = dst;
    while (rc == 0 && bytes > 0) {
        uint64_t block = offset / STORE_BLOCK, in = offset % STORE_BLOCK;
        uint64_t now = MIN(bytes, block_bytes(obj, block) - in);
        if (now == block_bytes(obj, block)) {
            rc = read_block(obj, block, to, err);
        } else {
            rc = store_obj_check(s, pub, offset, now, err);
            int got = rc < 0 ? 0 : store_io_read(s->io, pub->fd, to, now, offset);
            if (got < 0)
                rc = read_failed(obj, got, err);
        }
        to += now;
        offset += now;
        bytes -= now;
    }
    return rc;
}

int store_obj_open_direct(const struct store_obj *pub)
{
    return disk_open_direct(pub->fd);
}

/* --- opening ------------------------------------------------------------------------------------------------------------------ */

bool store_trailer_belongs(const struct trailer *t, const struct index_value *v, const struct ikey *k)
{
    struct ikey own;
    ikey_set(&own, t->bucket_id, t->key, t->key_len);
    return t->file == v->file && t->seq == v->seq && t->bytes == v->bytes && t->crc32c == v->crc32c &&
           own.len == k->len && memcmp(own.bytes, k->bytes, k->len) == 0;
}

static void tell(const struct found *f, struct store_info *ret)
{
    *ret = (struct store_info){
        .bytes = f->value.bytes,
        .seq = f->value.seq,
        .mtime_ns = f->value.mtime_ns,
        .flags = f->value.flags,
    };
    snprintf(ret->etag, sizeof(ret->etag), "%s", f->etag);
}

/* Owns fd and data from here on, also when it fails. */
static int obj_new(struct store *s, const struct ikey *k, const struct found *f, int fd, uint8_t *data,
                   const struct trailer *t, struct obj **ret)
{
    size_t words = (size_t)div_up(t->ncrcs, 64);
    size_t remote = f->has_remote ? strlen(f->remote) + 1 : 0;
    struct obj *obj = calloc(1, sizeof(*obj) + words * sizeof(obj->verified[0]) + remote);
    if (!obj) {
        s->io->close(s->io, fd);
        free(data);
        return -ENOMEM;
    }
    atomic_init(&obj->refs, 1);
    obj->store = s;
    obj->path = f->path;
    obj->file = f->value.file;
    obj->key = *k;
    list_init(&obj->lru);
    obj->data = data;
    obj->trailer = *t;
    tell(f, &obj->pub.info);
    obj->pub.crc32c = f->value.crc32c;
    obj->pub.fd = fd;
    obj->pub.meta = t->meta;
    obj->pub.meta_len = t->meta_len;
    obj->pub.remote = t->remote;
    if (remote) /* set after it was stored */
        obj->pub.remote = memcpy((char *)&obj->verified[words], f->remote, remote);
    *ret = obj;
    return 0;
}

/* -ENOENT: the file is gone. LEAT_CORRUPT: its trailer contradicts the index. */
static int open_file(struct store *s, const struct ikey *k, const struct found *f, struct obj **ret)
{
    char name[PATH_FILE_MAX];
    store_path_file_name(f->path, f->value.file, name);
    int fd = s->io->open(s->io, name, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    struct trailer t;
    uint8_t *data = NULL;
    uint32_t len;
    int rc = store_trailer_read(f->path, fd, &data, &len, &t);
    if (rc == 0 && !store_trailer_belongs(&t, &f->value, k))
        rc = LEAT_CORRUPT;
    if (rc < 0) {
        s->io->close(s->io, fd);
        free(data);
        return rc;
    }
    return obj_new(s, k, f, fd, data, &t, ret);
}

static int open_error(struct store *s, const struct ikey *k, const char *bucket, const struct found *f,
                      int rc, struct leat_error *err)
{
    char text[KEY_TEXT_MAX];
    store_key_text(bucket, k->bytes + 4, k->len - 4, text);
    if (rc == LEAT_CORRUPT || rc == -ENOENT || rc == -ENODATA) {
        log_error_limited("%s: the file of %s (%012llx) is %s", f->path->dir, text,
                          (unsigned long long)f->value.file, rc == -ENOENT ? "missing" : "damaged");
        store_found_corrupt(s, f->path, k, f->value.seq);
        return error_set(err, LEAT_CORRUPT,
                         "%s is damaged on %s: its file is %s; store it again, or delete it", text,
                         f->path->dir, rc == -ENOENT ? "missing" : "not as in the index");
    }
    return unreadable(s, f->path, k, f->value.file, f->value.seq, rc, text, err);
}

/* All of a small object, verified. It is kept with the object where it is short and there is room; the room
 * comes back when the object goes. */
static int read_small(struct obj *obj, struct leat_error *err)
{
    uint64_t bytes = obj->pub.info.bytes;
    struct budget *room = &obj->store->open.bodies;
    uint8_t *body = NULL;
    if (bytes > 0 && bytes <= STORE_BODY_MAX && budget_reserve(room, bytes) == 0) {
        body = malloc(bytes);
        if (!body)
            budget_release(room, bytes);
    }
    if (!body)
        return store_obj_check(obj->store, &obj->pub, 0, bytes, err);
    obj->pub.body = obj->body = body;
    return read_block(obj, 0, body, err);
}

/* The newest version of a key, open. */
int store_open(struct store *s, const struct ikey *k, const char *bucket, struct store_obj **ret_obj,
               struct leat_error *err)
{
    char text[KEY_TEXT_MAX];
    for (unsigned tries = 0;; tries++) {
        struct found f, again;
        int rc = store_find(s, k, true, &f);
        if (rc == LEAT_NOT_FOUND)
            return error_set(err, rc, "there is no object %s",
                             store_key_text(bucket, k->bytes + 4, k->len - 4, text));
        if (rc < 0)
            return error_set(err, rc, "%s is unavailable: a disk of the store has failed",
                             store_key_text(bucket, k->bytes + 4, k->len - 4, text));
        if (f.value.flags & STORE_CORRUPT)
            return error_set(err, LEAT_CORRUPT, "%s was found damaged on %s: store it again, or delete it",
                             store_key_text(bucket, k->bytes + 4, k->len - 4, text), f.path->dir);
        *ret_obj = store_open_find(s, f.path, f.value.file, f.value.seq);
        if (*ret_obj) {
            atomic_fetch_add_explicit(&s->open_hits, 1, memory_order_relaxed);
            return 0;
        }
        atomic_fetch_add_explicit(&s->open_misses, 1, memory_order_relaxed);
        struct obj *obj = NULL;
        rc = open_file(s, k, &f, &obj);
        /* Replaced or deleted since it was looked up: its file is gone, and that is no damage. */
        bool same = store_find(s, k, false, &again) == 0 && again.value.seq == f.value.seq;
        if (rc < 0 && !same && tries < 100)
            continue;
        if (rc < 0)
            return open_error(s, k, bucket, &f, rc, err);
        if (obj->pub.info.bytes <= STORE_BLOCK)
            rc = read_small(obj, err);
        if (rc < 0) {
            store_obj_unref(&obj->pub);
            return rc;
        }
        /* A later change drops it from the table; one during the verification found nothing there. */
        if (same)
            keep_open(s, obj);
        if (same && (store_find(s, k, false, &again) < 0 || again.value.seq != f.value.seq ||
                     again.value.flags != f.value.flags || strcmp(again.remote, f.remote) != 0))
            store_open_forget(s, f.path, f.value.file);
        *ret_obj = &obj->pub;
        return 0;
    }
}

static int key_of(struct store *s, const char *bucket, const void *key, size_t key_len, struct ikey *ret,
                  struct leat_error *err)
{
    uint32_t id;
    int rc = store_bucket_check_key(key, key_len, err);
    if (rc == 0)
        rc = store_bucket_find(s, bucket, &id, NULL, err);
    if (rc == 0)
        ikey_set(ret, id, key, key_len);
    return rc;
}

int store_get(struct store *s, const char *bucket, const void *key, size_t key_len,
              struct store_obj **ret_obj, struct leat_error *err)
{
    struct ikey k;
    int rc = key_of(s, bucket, key, key_len, &k, err);
    if (rc < 0)
        return rc;
    atomic_fetch_add_explicit(&s->gets, 1, memory_order_relaxed);
    return store_open(s, &k, bucket, ret_obj, err);
}

static int find_key(struct store *s, const char *bucket, const void *key, size_t key_len, bool touch,
                    struct found *ret, struct leat_error *err)
{
    struct ikey k;
    char text[KEY_TEXT_MAX];
    int rc = key_of(s, bucket, key, key_len, &k, err);
    if (rc == 0)
        rc = store_find(s, &k, touch, ret);
    else
        return rc;
    if (rc == LEAT_NOT_FOUND)
        return error_set(err, rc, "there is no object %s", store_key_text(bucket, key, key_len, text));
    if (rc < 0)
        return error_set(err, rc, "%s is unavailable: a disk of the store has failed",
                         store_key_text(bucket, key, key_len, text));
    return 0;
}

int store_get_cached(struct store *s, const char *bucket, const void *key, size_t key_len,
                     struct store_obj **ret_obj, struct leat_error *err)
{
    struct found f;
    int rc = find_key(s, bucket, key, key_len, true, &f, err);
    if (rc < 0)
        return rc;
    if (f.value.flags & STORE_CORRUPT) {
        char text[KEY_TEXT_MAX];
        return error_set(err, LEAT_CORRUPT, "%s was found damaged on %s: store it again, or delete it",
                         store_key_text(bucket, key, key_len, text), f.path->dir);
    }
    struct store_obj *obj = store_open_find(s, f.path, f.value.file, f.value.seq);
    if (!obj)
        return STORE_AGAIN;
    atomic_fetch_add_explicit(&s->gets, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->open_hits, 1, memory_order_relaxed);
    *ret_obj = obj;
    return 0;
}

int store_lookup(struct store *s, const char *bucket, const void *key, size_t key_len,
                 struct store_info *ret_info, struct leat_error *err)
{
    struct found f;
    int rc = find_key(s, bucket, key, key_len, false, &f, err);
    if (rc < 0)
        return rc;
    tell(&f, ret_info);
    return 0;
}
