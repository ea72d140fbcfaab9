/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uploads.c: the uploads in parts: their holders, lists of them, those that a start finds, those that grew
 * old. multipart.c draws what is stored of them.
 *
 * Happy path: an upload is in the list with one reference from its begin to its end; a thread that works on
 * it has another.
 * Failure modes: where open uploads have a quarter of the budget's memory, no other begins. Parts whose
 * upload is gone (a crash behind the record that ended it) are deleted at the next start, unless an upload
 * could not be read. Uploads without a change for a week go.
 * Invariants: a completion or abort waits for parts being committed, and later parts are refused.
 */
#include "store/uploads.h"

#include "base/array.h"
#include "base/hex.h"
#include "base/log.h"

void store_upload_key(uint32_t bucket_id, const uint8_t id[16], unsigned part, struct ikey *ret)
{
    uint8_t key[22] = {[20] = (uint8_t)(part >> 8), [21] = (uint8_t)part};
    uint32_t big = __builtin_bswap32(bucket_id);
    memcpy(key, &big, 4);
    memcpy(key + 4, id, 16);
    ikey_set(ret, 0, key, sizeof(key));
}

bool store_upload_id_parse(const char *text, uint8_t ret_id[16])
{
    return strlen(text) == 32 && hex_get(text, 16, ret_id);
}

void store_upload_free(struct store *s, struct upload *u)
{
    if (u->charged) {
        budget_release(&s->uploads_room, u->charged);
        budget_release(s->budget, u->charged);
        atomic_store(&s->uploads_full, false);
    }
    free(u);
}

int store_upload_charge(struct store *s, struct upload *u, struct leat_error *err)
{
    uint64_t bytes = sizeof(*u) + u->key_len + u->meta_len;
    if (budget_reserve(&s->uploads_room, bytes) < 0) {
        static const char why[] =
            "uploads in parts that are neither completed nor aborted have all memory that they may take, "
            "a quarter of the server's: complete or abort some, or wait until old ones are aborted";
        if (!atomic_exchange(&s->uploads_full, true)) /* clients slow down, which does not help here */
            log_warning("%s", why);
        return error_set(err, LEAT_BUSY, "%s", why);
    }
    if (budget_reserve(s->budget, bytes) < 0) {
        budget_release(&s->uploads_room, bytes);
        return error_set(err, LEAT_BUSY, "no room for another upload in parts; try again later");
    }
    u->charged = bytes;
    return 0;
}

/* uploads_lock is held. */
static void drop_ref(struct store *s, struct upload *u)
{
    if (--u->refs == 0)
        store_upload_free(s, u);
}

static struct list *chain_of(struct store *s, const uint8_t id[16])
{
    return &s->upload_chains[(id[0] | (unsigned)id[1] << 8) % UPLOAD_CHAINS]; /* they are random */
}

/* uploads_lock is held. */
static struct upload *known(struct store *s, uint32_t bucket_id, const uint8_t id[16])
{
    list_for_each (at, chain_of(s, id)) {
        struct upload *u = container_of(at, struct upload, chain);
        if (u->bucket_id == bucket_id && memcmp(u->id, id, 16) == 0)
            return u;
    }
    return NULL;
}

void store_upload_listed(struct store *s, struct upload *u)
{
    pthread_mutex_lock(&s->uploads_lock);
    list_push_back(&s->uploads, &u->node);
    list_push_back(chain_of(s, u->id), &u->chain);
    pthread_mutex_unlock(&s->uploads_lock);
}

/* uploads_lock is held. */
static void unlist(struct store *s, struct upload *u)
{
    list_remove(&u->node);
    list_remove(&u->chain);
    drop_ref(s, u);
}

void store_upload_ref(struct store *s, struct upload *u)
{
    pthread_mutex_lock(&s->uploads_lock);
    u->refs++;
    pthread_mutex_unlock(&s->uploads_lock);
}

void store_upload_unref(struct store *s, struct upload *u)
{
    pthread_mutex_lock(&s->uploads_lock);
    drop_ref(s, u);
    pthread_mutex_unlock(&s->uploads_lock);
}

int store_upload_none(struct leat_error *err)
{
    return error_set(err, STORE_NO_UPLOAD,
                     "there is no such upload: it was completed, aborted, or never begun");
}

int store_upload_enter(struct store *s, struct upload *u, struct leat_error *err)
{
    pthread_mutex_lock(&s->uploads_lock);
    bool gone = u->gone, ending = u->ending;
    if (!gone && !ending)
        u->committing++;
    pthread_mutex_unlock(&s->uploads_lock);
    if (gone)
        return store_upload_none(err);
    return ending ? error_set(err, LEAT_BUSY, "the upload is being completed or aborted") : 0;
}

void store_upload_leave(struct store *s, struct upload *u)
{
    pthread_mutex_lock(&s->uploads_lock);
    u->touched_ns = store_wall_ns();
    if (--u->committing == 0)
        pthread_cond_broadcast(&s->uploads_cond);
    pthread_mutex_unlock(&s->uploads_lock);
}

/* A reference to the upload, if bucket and key are its own. */
int store_upload_find(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                      struct upload **ret, struct leat_error *err)
{
    uint32_t bucket_id;
    uint8_t bytes[16];
    int rc = store_bucket_find(s, bucket, &bucket_id, NULL, err);
    if (rc < 0)
        return rc;
    struct upload *found = NULL;
    pthread_mutex_lock(&s->uploads_lock);
    if (store_upload_id_parse(id, bytes))
        found = known(s, bucket_id, bytes);
    if (found && (found->key_len != key_len || memcmp(found->data, key, key_len) != 0))
        found = NULL;
    if (found)
        found->refs++;
    pthread_mutex_unlock(&s->uploads_lock);
    if (!found)
        return store_upload_none(err);
    *ret = found;
    return 0;
}

/* From here on no other thread completes or aborts it, and no part is being committed. */
int store_upload_end_begin(struct store *s, struct upload *u, bool wait, struct leat_error *err)
{
    pthread_mutex_lock(&s->uploads_lock);
    while (u->ending && wait) /* the other one may fail, and leave the upload as it was */
        pthread_cond_wait(&s->uploads_cond, &s->uploads_lock);
    bool gone = u->gone, busy = u->ending;
    if (!gone && !busy) {
        u->ending = true;
        while (u->committing > 0)
            pthread_cond_wait(&s->uploads_cond, &s->uploads_lock);
    }
    pthread_mutex_unlock(&s->uploads_lock);
    if (gone)
        return store_upload_none(err);
    return busy ? error_set(err, LEAT_BUSY, "the upload is being completed or aborted") : 0;
}

void store_upload_end_done(struct store *s, struct upload *u, bool gone)
{
    pthread_mutex_lock(&s->uploads_lock);
    u->ending = false;
    if (gone) {
        u->gone = true;
        unlist(s, u);
    }
    pthread_cond_broadcast(&s->uploads_cond);
    pthread_mutex_unlock(&s->uploads_lock);
}

struct upload *store_upload_new(const char *bucket, uint32_t bucket_id, const uint8_t id[16], const void *key,
                                size_t key_len, const void *meta, size_t meta_len)
{
    struct upload *u = calloc(1, sizeof(*u) + key_len + meta_len);
    if (!u)
        return NULL;
    u->refs = 1;
    list_init(&u->node);
    list_init(&u->chain);
    snprintf(u->bucket, sizeof(u->bucket), "%s", bucket);
    u->bucket_id = bucket_id;
    memcpy(u->id, id, 16);
    hex_put(u->text, id, 16);
    u->key_len = key_len;
    u->meta_len = meta_len;
    memcpy(u->data, key, key_len);
    if (meta_len)
        memcpy(u->data + key_len, meta, meta_len);
    u->begun_ns = u->touched_ns = store_wall_ns();
    return u;
}

/* --- lists ---------------------------------------------------------------------------------------------------------------------- */

static int order(const struct upload *u, const void *key, size_t key_len, const char *id)
{
    int o = store_index_compare(u->data, u->key_len, key, key_len);
    return o ? o : strcmp(u->text, id);
}

static int by_key_and_id(const void *a, const void *b)
{
    const struct upload *x = *(struct upload *const *)a, *y = *(struct upload *const *)b;
    return order(x, y->data, y->key_len, y->text);
}

static int tell_upload(const struct upload *u, int (*upload)(void *user, const struct store_upload *upload),
                       void *user)
{
    struct store_upload told = {.key = u->data,
                                .key_len = u->key_len,
                                .begun_ns = u->begun_ns,
                                .meta = u->data + u->key_len,
                                .meta_len = u->meta_len};
    memcpy(told.id, u->text, sizeof(told.id));
    return upload(user, &told);
}

/* References to those that `wanted` wants, sorted; freed by the caller. */
static int gather(struct store *s, bool (*wanted)(const struct upload *u, const void *arg), const void *arg,
                  struct upload ***ret, unsigned *ret_n)
{
    unsigned n = 0, cap = 1;
    pthread_mutex_lock(&s->uploads_lock);
    list_for_each (at, &s->uploads)
        cap++;
    struct upload **all = malloc(cap * sizeof(*all));
    if (all)
        list_for_each (at, &s->uploads) {
            struct upload *u = container_of(at, struct upload, node);
            if (!wanted(u, arg))
                continue;
            u->refs++;
            all[n++] = u;
        }
    pthread_mutex_unlock(&s->uploads_lock);
    if (!all)
        return -ENOMEM;
    qsort(all, n, sizeof(*all), by_key_and_id);
    *ret = all;
    *ret_n = n;
    return 0;
}

static void release(struct store *s, struct upload **all, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        store_upload_unref(s, all[i]);
    free(all);
}

struct upload_filter {
    uint32_t bucket_id;
    const void *prefix, *key_after;
    size_t prefix_len, key_after_len;
    const char *id_after;
};

static bool listed(const struct upload *u, const void *arg)
{
    const struct upload_filter *f = arg;
    if (u->bucket_id != f->bucket_id || u->key_len < f->prefix_len ||
        (f->prefix_len && memcmp(u->data, f->prefix, f->prefix_len) != 0))
        return false;
    /* Without an id: all uploads of that key are passed. */
    return !f->key_after || order(u, f->key_after, f->key_after_len, f->id_after ? f->id_after : "~") > 0;
}

int store_upload_list(struct store *s, const char *bucket, const void *prefix, size_t prefix_len,
                      const void *key_after, size_t key_after_len, const char *id_after, unsigned max,
                      int (*upload)(void *user, const struct store_upload *upload), void *user,
                      bool *ret_more, struct leat_error *err)
{
    struct upload_filter f = {0, prefix, key_after, prefix_len, key_after_len, id_after};
    struct upload **all;
    unsigned n;
    int rc = store_bucket_find(s, bucket, &f.bucket_id, NULL, err);
    if (rc < 0)
        return rc;
    rc = gather(s, listed, &f, &all, &n);
    if (rc < 0)
        return error_set(err, rc, "no memory for a list of uploads");
    for (unsigned i = 0; rc == 0 && i < MIN(n, max); i++)
        rc = tell_upload(all[i], upload, user);
    release(s, all, n);
    if (rc == 0 && ret_more)
        *ret_more = n > max;
    return rc;
}

int store_upload_get(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                     int (*upload)(void *user, const struct store_upload *upload), void *user,
                     struct leat_error *err)
{
    struct upload *u;
    int rc = store_upload_find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    rc = tell_upload(u, upload, user);
    store_upload_unref(s, u);
    return rc;
}

/* --- at start, and with age ----------------------------------------------------------------------------------------------------- */

/* LEAT_CORRUPT: it cannot be identified, its parts may go. Another error: its parts must stay. */
static int read_upload(struct store *s, struct path *p, const struct ikey *k)
{
    struct store_obj *obj;
    uint32_t big;
    memcpy(&big, k->bytes + 4, 4);
    uint32_t bucket_id = __builtin_bswap32(big);
    char bucket[STORE_BUCKET_MAX + 1] = "";
    store_bucket_is_remote(s, bucket_id, bucket);
    int rc = store_open(s, k, bucket, &obj, NULL);
    if (rc < 0)
        return rc;
    uint8_t data[2048];
    char remote[STORE_REMOTE_MAX + 1] = "";
    size_t len = (size_t)MIN(obj->info.bytes, sizeof(data));
    rc = store_obj_read(s, obj, 0, data, len, NULL);
    struct bytes_in in = bytes_in_of(data, rc == 0 ? len : 0);
    uint32_t flags = bytes_get_u32(&in), remote_len = bytes_get_u32(&in);
    const char *text = bytes_get(&in, remote_len);
    uint32_t key_len = bytes_get_u32(&in);
    const void *key = bytes_get(&in, key_len);
    if (rc == 0 && !*bucket && s->ndamaged) /* its bucket may be that one */
        rc = STORE_BUCKET_DAMAGED;
    if (rc == 0 && (bytes_in_done(&in) < 0 || key_len < 1 || key_len > STORE_KEY_MAX ||
                    remote_len > STORE_REMOTE_MAX || !*bucket))
        rc = LEAT_CORRUPT;
    struct upload *u =
        rc == 0 ? store_upload_new(bucket, bucket_id, k->bytes + 8, key, key_len, obj->meta, obj->meta_len)
                : NULL;
    if (u) {
        memcpy(remote, text, remote_len);
        u->flags = flags;
        u->path = p;
        memcpy(u->remote, remote, sizeof(remote));
        u->begun_ns = u->touched_ns = obj->info.mtime_ns;
        /* Existing uploads stay, even if they exceed the limit for new ones */
        store_upload_charge(s, u, NULL);
        store_upload_listed(s, u);
    } else if (rc == 0) {
        rc = -ENOMEM;
    }
    store_obj_unref(obj);
    return rc;
}

/* All index keys of the bucket of number 0. */
static int hidden_keys(struct path *p, struct ikey **ret, int64_t **ret_mtimes, size_t *ret_n)
{
    struct index_cursor c;
    struct ikey *keys = NULL;
    int64_t *mtimes = NULL;
    size_t n = 0, keys_cap = 0, mtimes_cap = 0;
    int rc = 0;
    pthread_rwlock_rdlock(&p->index.lock);
    for (store_index_seek(&c, &p->index, "", 0); c.valid && memcmp(c.item.key, "\0\0\0", 4) == 0;
         store_index_next(&c)) {
        if (c.item.key_len != UPLOAD_KEY_BYTES)
            continue;
        if (array_reserve(&keys, &keys_cap, n + 1) < 0 || array_reserve(&mtimes, &mtimes_cap, n + 1) < 0) {
            rc = -ENOMEM;
            break;
        }
        memcpy(keys[n].bytes, c.item.key, c.item.key_len);
        keys[n].len = c.item.key_len;
        mtimes[n++] = c.item.value.mtime_ns;
    }
    pthread_rwlock_unlock(&p->index.lock);
    *ret = keys;
    *ret_mtimes = mtimes;
    *ret_n = n;
    return rc;
}

static int load_path(struct store *s, struct path *p)
{
    AUTO_FREE struct ikey *keys = NULL;
    AUTO_FREE int64_t *mtimes = NULL;
    size_t n, orphans = 0;
    int rc = hidden_keys(p, &keys, &mtimes, &n), unread = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) { /* part 0 sorts before its parts */
        if (keys[i].bytes[24] == 0 && keys[i].bytes[25] == 0)
            rc = read_upload(s, p, &keys[i]);
        if (rc < 0 && rc != LEAT_CORRUPT && rc != -ENOMEM)
            unread = rc;
        rc = rc == LEAT_CORRUPT || rc == unread ? 0 : rc;
    }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint32_t big;
        memcpy(&big, keys[i].bytes + 4, 4);
        struct upload *u = known(s, __builtin_bswap32(big), keys[i].bytes + 8);
        if (u)
            u->touched_ns = MAX(u->touched_ns, mtimes[i]);
        else
            keys[orphans++] = keys[i];
    }
    if (rc < 0 || unread < 0) /* which parts belong to no upload is not known */
        return rc < 0 ? rc : unread;
    AUTO_FREE int *codes = orphans ? calloc(orphans, sizeof(*codes)) : NULL;
    if (orphans)
        rc = codes ? store_remove(s, keys, NULL, (unsigned)orphans, codes, NULL) : -ENOMEM;
    return rc;
}

int store_uploads_load(struct store *s, struct leat_error *err)
{
    for (unsigned i = 0; i < s->npaths; i++) {
        int rc = s->paths[i]->loaded ? load_path(s, s->paths[i]) : 0;
        if (rc == -ENOMEM)
            return error_set(err, -ENOMEM, "no memory for uploads");
        if (rc < 0)
            log_warning("%s: some uploads in parts cannot be read: %s", s->paths[i]->dir, leat_strerror(rc));
    }
    return 0;
}

void store_uploads_free(struct store *s)
{
    list_for_each_safe (at, &s->uploads) {
        unlist(s, container_of(at, struct upload, node));
    }
}

static bool is_of_bucket(const struct upload *u, const void *arg)
{
    return u->bucket_id == *(const uint32_t *)arg;
}

int store_uploads_abort(struct store *s, uint32_t bucket_id, struct leat_error *err)
{
    struct upload **all;
    unsigned n;
    int rc = gather(s, is_of_bucket, &bucket_id, &all, &n);
    if (rc < 0)
        return error_set(err, rc, "no memory for a list of uploads");
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        rc = store_upload_give_up(s, all[i], true, err);
        rc = rc == STORE_NO_UPLOAD ? 0 : rc; /* it was ended just now */
    }
    release(s, all, n);
    return rc;
}

bool store_uploads_any(struct store *s, uint32_t bucket_id)
{
    bool any = false;
    pthread_mutex_lock(&s->uploads_lock);
    list_for_each (at, &s->uploads)
        any |= container_of(at, struct upload, node)->bucket_id == bucket_id;
    pthread_mutex_unlock(&s->uploads_lock);
    return any;
}

static bool is_old(const struct upload *u, const void *arg)
{
    return u->touched_ns < *(const int64_t *)arg && u->committing == 0 && !u->ending;
}

void store_uploads_age(struct store *s, int64_t before_ns)
{
    struct upload **all;
    unsigned n;
    if (gather(s, is_old, &before_ns, &all, &n) < 0)
        return;
    for (unsigned i = 0; i < n; i++) {
        struct upload *u = all[i];
        char text[KEY_TEXT_MAX];
        struct leat_error err;
        int rc = store_upload_give_up(s, u, false, &err);
        store_key_text(u->bucket, u->data, u->key_len, text);
        if (rc == 0)
            log_info("the upload of %s is aborted: it got no part for too long", text);
        else if (rc != STORE_NO_UPLOAD && rc != LEAT_BUSY) /* those are over, or will be soon */
            log_debug("the old upload of %s cannot be removed yet: %s", text, err.message);
    }
    release(s, all, n);
}
