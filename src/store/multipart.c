/* SPDX-License-Identifier: Apache-2.0 */
/*
 * multipart.c: uploads in parts.
 *
 * An upload, and each of its parts, is an object in a bucket of number 0 that no name leads to; so they are durable, logged and
 * found after a restart like all others:
 *
 *     index key:  | 0 u32 | bucket's id u32 | upload's id: 16 | part u16, big-endian |     part 0: the upload itself, whose payload says what for
 *
 * Happy path: begin; parts as PUTs, on the path that the object will have; complete copies them into one file within the kernel (file systems that
 * share blocks copy nothing) and takes their checksums over. One record of the log has the object in and the upload out.
 * Failure modes: what completes or aborts waits for parts being committed, and parts that come later are refused. Parts whose upload is gone
 * (a crash behind that record) are deleted at the next start. Uploads that nobody touched for a week go.
 */
#include "store/internal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/log.h"

struct upload {
    struct list node;
    unsigned refs;       /* the list's, and those of parts under way */
    unsigned committing; /* parts */
    bool ending, gone;   /* someone completes or aborts it; it is no more */
    char bucket[STORE_BUCKET_MAX + 1];
    uint32_t bucket_id;
    uint8_t id[16];
    char text[STORE_UPLOAD_ID_TEXT];
    struct path *path;
    int64_t begun_ns, touched_ns;
    uint32_t flags;
    char remote[STORE_REMOTE_MAX + 1];
    size_t key_len, meta_len;
    uint8_t data[]; /* key, meta */
};

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
    if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    for (unsigned i = 0; i < 16; i++) {
        unsigned v;
        if (sscanf(text + 2 * i, "%2x", &v) != 1)
            return false;
        ret_id[i] = (uint8_t)v;
    }
    return true;
}

/* uploads_lock is held. */
static void drop_ref(struct upload *u)
{
    if (--u->refs == 0)
        free(u);
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
    drop_ref(u);
    pthread_mutex_unlock(&s->uploads_lock);
}

static int no_upload(struct leat_error *err)
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
        return no_upload(err);
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
static int find(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
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
        list_for_each (at, &s->uploads) {
            struct upload *u = container_of(at, struct upload, node);
            if (memcmp(u->id, bytes, 16) == 0 && u->bucket_id == bucket_id && u->key_len == key_len &&
                memcmp(u->data, key, key_len) == 0)
                found = u;
        }
    if (found)
        found->refs++;
    pthread_mutex_unlock(&s->uploads_lock);
    if (!found)
        return no_upload(err);
    *ret = found;
    return 0;
}

/* From here on nobody else completes or aborts it, and no part is being committed. */
static int begin_end(struct store *s, struct upload *u, struct leat_error *err)
{
    pthread_mutex_lock(&s->uploads_lock);
    bool gone = u->gone, ending = u->ending;
    if (!gone && !ending) {
        u->ending = true;
        while (u->committing > 0)
            pthread_cond_wait(&s->uploads_cond, &s->uploads_lock);
    }
    pthread_mutex_unlock(&s->uploads_lock);
    if (gone)
        return no_upload(err);
    return ending ? error_set(err, LEAT_BUSY, "the upload is being completed or aborted") : 0;
}

static void end_end(struct store *s, struct upload *u, bool gone)
{
    pthread_mutex_lock(&s->uploads_lock);
    u->ending = false;
    if (gone) {
        u->gone = true;
        list_remove(&u->node);
        drop_ref(u);
    }
    pthread_mutex_unlock(&s->uploads_lock);
}

/* --- begin ---------------------------------------------------------------------------------------------------------------------- */

static struct upload *upload_new(const char *bucket, uint32_t bucket_id, const uint8_t id[16],
                                 const void *key, size_t key_len, const void *meta, size_t meta_len)
{
    struct upload *u = calloc(1, sizeof(*u) + key_len + meta_len);
    if (!u)
        return NULL;
    u->refs = 1;
    list_init(&u->node);
    snprintf(u->bucket, sizeof(u->bucket), "%s", bucket);
    u->bucket_id = bucket_id;
    memcpy(u->id, id, 16);
    for (unsigned i = 0; i < 16; i++)
        snprintf(u->text + 2 * i, 3, "%02x", id[i]);
    u->key_len = key_len;
    u->meta_len = meta_len;
    memcpy(u->data, key, key_len);
    if (meta_len)
        memcpy(u->data + key_len, meta, meta_len);
    u->begun_ns = u->touched_ns = store_wall_ns();
    return u;
}

/* The payload of part 0: | flags u32 | remote | key length u32 | key |; meta is the object's own. */
static int upload_write(struct store *s, struct upload *u, struct leat_error *err)
{
    struct bytes_out out = {0};
    bytes_put_u32(&out, u->flags);
    bytes_put_str(&out, u->remote);
    bytes_put_u32(&out, (uint32_t)u->key_len);
    bytes_put(&out, u->data, u->key_len);
    struct put_target t = {.bucket = u->bucket,
                           .bucket_id = u->bucket_id,
                           .bytes = out.len,
                           .flags = STORE_PUT_NO_MD5,
                           .path = u->path,
                           .entered = true};
    store_upload_key(u->bucket_id, u->id, 0, &t.key);
    struct store_put *put;
    int rc =
        out.failed ? error_set(err, -ENOMEM, "no memory for an upload") : store_put_new(s, &t, &put, err);
    if (rc == 0) {
        rc = store_put_write(put, out.data, out.len, err);
        struct store_commit c = {
            .etag = "upload", .meta = u->data + u->key_len, .meta_len = u->meta_len, .mtime_ns = u->begun_ns};
        if (rc == 0)
            rc = store_put_commit(put, &c, NULL, err);
        else
            store_put_abort(put);
    }
    bytes_out_fini(&out);
    return rc;
}

int store_upload_begin(struct store *s, const char *bucket, const void *key, size_t key_len,
                       const struct store_commit *commit, char ret_id[STORE_UPLOAD_ID_TEXT],
                       struct leat_error *err)
{
    static const struct store_commit plain;
    const struct store_commit *c = commit ? commit : &plain;
    uint32_t bucket_id;
    uint8_t id[16];
    struct ikey k;
    int rc = store_bucket_check_key(key, key_len, err);
    if (rc == 0)
        rc = store_bucket_find(s, bucket, &bucket_id, NULL, err);
    if (rc < 0)
        return rc;
    if (c->meta_len > STORE_META_MAX || (c->remote && strlen(c->remote) > STORE_REMOTE_MAX))
        return error_set(err, LEAT_INVALID, "metadata of %zu bytes; at most %u are kept", c->meta_len,
                         STORE_META_MAX);
    if (RAND_bytes(id, sizeof(id)) != 1)
        return error_set(err, -EIO, "OpenSSL has no random numbers");
    struct upload *u = upload_new(bucket, bucket_id, id, key, key_len, c->meta, c->meta_len);
    if (!u)
        return error_set(err, -ENOMEM, "no memory for an upload");
    u->flags = c->flags;
    snprintf(u->remote, sizeof(u->remote), "%s", c->remote ? c->remote : "");
    ikey_set(&k, bucket_id, key, key_len);
    u->path = store_place(s, &k, 0);
    rc = u->path ? store_bucket_enter(s, bucket, bucket_id, NULL, NULL, err)
                 : error_set(err, STORE_UNAVAILABLE, "no disk of the store is in order");
    if (rc < 0) {
        free(u);
        return rc;
    }
    /* Until it is in the list the bucket stays: a deletion that looked in between would leave an upload into no bucket. */
    rc = upload_write(s, u, err);
    if (rc == 0) {
        memcpy(ret_id, u->text, sizeof(u->text));
        pthread_mutex_lock(&s->uploads_lock);
        list_push_back(&s->uploads, &u->node);
        pthread_mutex_unlock(&s->uploads_lock);
    } else {
        free(u);
    }
    store_bucket_leave(s, bucket);
    return rc;
}

/* --- parts ---------------------------------------------------------------------------------------------------------------------- */

int store_part_begin(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                     unsigned number, uint64_t bytes, unsigned flags, struct store_put **ret_put,
                     struct leat_error *err)
{
    if (number < 1 || number > STORE_PARTS_MAX)
        return error_set(err, LEAT_INVALID, "part %u: parts are numbered from 1 to %u", number,
                         STORE_PARTS_MAX);
    struct upload *u;
    int rc = find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    struct put_target t = {.bucket = u->bucket,
                           .bucket_id = u->bucket_id,
                           .bytes = bytes,
                           .flags = flags,
                           .path = u->path,
                           .upload = u};
    store_upload_key(u->bucket_id, u->id, number, &t.key);
    rc = store_put_new(s, &t, ret_put, err);
    store_upload_unref(s, u);
    return rc;
}

static unsigned part_number(const struct index_item *item)
{
    return (unsigned)item->key[24] << 8 | item->key[25];
}

struct part {
    unsigned number;
    struct index_value value;
    char etag[STORE_ETAG_MAX + 1];
};

/* Up to `max` parts after number `after`, copied. */
static int parts_of(struct upload *u, unsigned after, unsigned max, struct part **ret, unsigned *ret_n,
                    bool *ret_more)
{
    struct index *x = &u->path->index;
    struct part *parts = malloc(MAX(MIN(max, STORE_PARTS_MAX), 1u) * sizeof(*parts));
    if (!parts)
        return -ENOMEM;
    struct ikey k;
    struct index_cursor c;
    unsigned n = 0;
    store_upload_key(u->bucket_id, u->id, after + 1, &k);
    *ret_more = false;
    pthread_rwlock_rdlock(&x->lock);
    for (store_index_seek(&c, x, k.bytes, k.len);
         c.valid && c.item.key_len == UPLOAD_KEY_BYTES && memcmp(c.item.key, k.bytes, 24) == 0;
         store_index_next(&c)) {
        if (n == MIN(max, STORE_PARTS_MAX)) {
            *ret_more = true;
            break;
        }
        parts[n] = (struct part){.number = part_number(&c.item), .value = c.item.value};
        store_etag_format(c.item.value.etag, c.item.value.parts,
                          store_extra_get(c.item.extra, c.item.extra_len, 'e'), parts[n++].etag);
    }
    pthread_rwlock_unlock(&x->lock);
    *ret = parts;
    *ret_n = n;
    return 0;
}

static int tell_part(struct store *s, struct upload *u, const struct part *p,
                     int (*part)(void *user, const struct store_part *part), void *user,
                     struct leat_error *err)
{
    struct ikey k;
    struct store_obj *obj;
    struct store_part told = {.number = p->number, .bytes = p->value.bytes, .mtime_ns = p->value.mtime_ns};
    memcpy(told.etag, p->etag, sizeof(told.etag));
    store_upload_key(u->bucket_id, u->id, p->number, &k);
    int rc = store_open(s, &k, u->bucket, &obj, err);
    if (rc < 0)
        return rc == LEAT_NOT_FOUND ? 0 : rc; /* replaced or gone just now */
    told.meta = obj->meta;
    told.meta_len = obj->meta_len;
    rc = part(user, &told);
    store_obj_unref(obj);
    return rc;
}

int store_part_list(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                    unsigned after, unsigned max, int (*part)(void *user, const struct store_part *part),
                    void *user, bool *ret_more, struct leat_error *err)
{
    struct upload *u;
    AUTO_FREE struct part *parts = NULL;
    unsigned n = 0;
    bool more = false;
    int rc = find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    if (after < STORE_PARTS_MAX)
        rc = parts_of(u, after, max, &parts, &n, &more);
    if (rc < 0)
        error_set(err, rc, "no memory for a list of parts");
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = tell_part(s, u, &parts[i], part, user, err);
    store_upload_unref(s, u);
    if (rc == 0 && ret_more)
        *ret_more = more;
    return rc;
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
    int rc = find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    rc = tell_upload(u, upload, user);
    store_upload_unref(s, u);
    return rc;
}

/* --- the end -------------------------------------------------------------------------------------------------------------------- */

/* Its parts, and with them its own record (`whole`), or what a completed one has left. */
static int remove_parts(struct store *s, struct upload *u, bool whole, struct leat_error *err)
{
    struct part *parts;
    unsigned n;
    bool more;
    int rc = parts_of(u, 0, STORE_PARTS_MAX, &parts, &n, &more);
    AUTO_FREE struct ikey *keys = rc == 0 ? calloc(n + 1, sizeof(*keys)) : NULL;
    AUTO_FREE int *codes = keys ? calloc(n + 1, sizeof(*codes)) : NULL;
    if (!codes) {
        if (rc == 0)
            free(parts);
        return error_set(err, -ENOMEM, "no memory to remove an upload");
    }
    for (unsigned i = 0; i < n; i++)
        store_upload_key(u->bucket_id, u->id, parts[i].number, &keys[i]);
    if (whole)
        store_upload_key(u->bucket_id, u->id, 0, &keys[n]);
    free(parts);
    rc = n + whole ? store_remove(s, keys, NULL, n + whole, codes, err) : 0;
    for (unsigned i = 0; rc == 0 && i < n + whole; i++)
        if (codes[i] < 0 && codes[i] != LEAT_NOT_FOUND)
            rc = error_set(err, codes[i], "an upload's parts cannot be removed");
    return rc;
}

static int give_up(struct store *s, struct upload *u, struct leat_error *err)
{
    int rc = begin_end(s, u, err);
    if (rc < 0)
        return rc;
    rc = remove_parts(s, u, true, err);
    end_end(s, u, rc == 0);
    return rc;
}

int store_upload_abort(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                       struct leat_error *err)
{
    struct upload *u;
    int rc = find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    rc = give_up(s, u, err);
    store_upload_unref(s, u);
    return rc;
}

/* Which parts there are of those named, in *ret (n of them); their sum; MD5 of their MD5s. */
static int check_parts(struct upload *u, const struct store_part *named, unsigned n, struct part **ret,
                       uint64_t *ret_bytes, uint8_t ret_md5[16], struct leat_error *err)
{
    AUTO_FREE struct part *there = NULL;
    unsigned have, at = 0;
    bool more, plain = true;
    if (n == 0 || n > STORE_PARTS_MAX)
        return error_set(err, LEAT_INVALID, "%u parts were named; an object is made of 1 to %u", n,
                         STORE_PARTS_MAX);
    int rc = parts_of(u, 0, STORE_PARTS_MAX, &there, &have, &more);
    EVP_MD_CTX *md5 = rc == 0 ? EVP_MD_CTX_new() : NULL;
    if (!md5 || EVP_DigestInit_ex(md5, EVP_md5(), NULL) != 1) {
        EVP_MD_CTX_free(md5);
        return error_set(err, -ENOMEM, "no memory to complete an upload");
    }
    uint64_t bytes = 0;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        if (i > 0 && named[i].number <= named[i - 1].number)
            rc = error_set(err, LEAT_INVALID, "part %u stands behind part %u: parts are named in order",
                           named[i].number, named[i - 1].number);
        while (at < have && there[at].number < named[i].number)
            at++;
        if (rc == 0 &&
            (at == have || there[at].number != named[i].number || strcmp(there[at].etag, named[i].etag) != 0))
            rc = error_set(err, LEAT_STALE, "part %u is not there, or has another ETag than '%.64s'",
                           named[i].number, named[i].etag);
        if (rc < 0)
            break;
        there[i] = there[at]; /* i <= at: both only grow */
        plain &= there[i].value.parts == 0;
        bytes += there[i].value.bytes;
        EVP_DigestUpdate(md5, there[i].value.etag, 16);
        at++;
    }
    EVP_DigestFinal_ex(md5, ret_md5, NULL);
    EVP_MD_CTX_free(md5);
    if (rc < 0)
        return rc;
    if (bytes > INT64_MAX / 4)
        return error_set(err, LEAT_INVALID, "the parts together are larger than any disk");
    *ret_bytes = bytes;
    *ret = TAKE_PTR(there);
    return 0;
}

static int copy_part(struct store *s, struct upload *u, const struct part *p, struct store_put *put,
                     struct leat_error *err)
{
    struct ikey k;
    struct store_obj *obj;
    store_upload_key(u->bucket_id, u->id, p->number, &k);
    int rc = store_open(s, &k, u->bucket, &obj, err);
    if (rc < 0)
        return error_prefix(err, rc, "part %u", p->number);
    uint64_t ncrcs;
    const uint32_t *crcs = store_obj_block_crcs(obj, &ncrcs);
    rc = obj->info.seq == p->value.seq ? store_put_copy(put, obj->fd, obj->info.bytes, crcs, obj->crc32c, err)
                                       : error_set(err, LEAT_STALE, "part %u was replaced", p->number);
    store_obj_unref(obj);
    return rc;
}

static int copy_parts(struct store *s, struct upload *u, const struct part *parts, unsigned n, uint64_t bytes,
                      struct store_put **ret_put, struct leat_error *err)
{
    struct put_target t = {.bucket = u->bucket,
                           .bucket_id = u->bucket_id,
                           .bytes = bytes,
                           .flags = STORE_PUT_NO_MD5 | STORE_PUT_BUFFERED,
                           .path = u->path};
    ikey_set(&t.key, u->bucket_id, u->data, u->key_len);
    struct store_put *put;
    int rc = store_put_new(s, &t, &put, err);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = copy_part(s, u, &parts[i], put, err);
    if (rc < 0)
        store_put_abort(put);
    else
        *ret_put = put;
    return rc;
}

static int assemble(struct store *s, struct upload *u, const struct store_part *named, unsigned n,
                    struct store_put **ret_put, struct leat_error *err)
{
    AUTO_FREE struct part *parts = NULL;
    uint64_t bytes = 0;
    uint8_t md5[16];
    int rc = check_parts(u, named, n, &parts, &bytes, md5, err);
    if (rc == 0)
        rc = copy_parts(s, u, parts, n, bytes, ret_put, err);
    if (rc < 0)
        return rc;
    struct put_ending ending = {.upload = u,
                                .id = u->text,
                                .commit = {.meta = u->data + u->key_len,
                                           .meta_len = u->meta_len,
                                           .remote = *u->remote ? u->remote : NULL,
                                           .flags = u->flags}};
    store_etag_format(md5, n, NULL, ending.etag);
    store_put_ends(*ret_put, &ending);
    return 0;
}

int store_upload_assemble(struct store *s, const char *bucket, const void *key, size_t key_len,
                          const char *id, const struct store_part *parts, unsigned n,
                          struct store_put **ret_put, struct leat_error *err)
{
    struct upload *u;
    int rc = find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    rc = begin_end(s, u, err);
    if (rc == 0) {
        rc = assemble(s, u, parts, n, ret_put, err);
        if (rc < 0)
            end_end(s, u, false);
    }
    if (rc < 0)
        store_upload_unref(s, u);
    return rc;
}

void store_upload_ended(struct store *s, struct upload *u, bool done)
{
    if (done && remove_parts(s, u, true, NULL) < 0)
        log_warning("%s: parts of a completed upload could not be removed; the next start will do it",
                    u->path->dir);
    end_end(s, u, done);
    store_upload_unref(s, u);
}

/* --- at start, and with age ----------------------------------------------------------------------------------------------------- */

static struct upload *known(struct store *s, uint32_t bucket_id, const uint8_t id[16])
{
    list_for_each (at, &s->uploads) {
        struct upload *u = container_of(at, struct upload, node);
        if (u->bucket_id == bucket_id && memcmp(u->id, id, 16) == 0)
            return u;
    }
    return NULL;
}

/* LEAT_CORRUPT: nothing can be made of it, its parts may go. Another error: it may be there, and its parts have to stay. */
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
    if (rc == 0 && (bytes_in_done(&in) < 0 || key_len < 1 || key_len > STORE_KEY_MAX ||
                    remote_len > STORE_REMOTE_MAX || !*bucket))
        rc = LEAT_CORRUPT;
    struct upload *u =
        rc == 0 ? upload_new(bucket, bucket_id, k->bytes + 8, key, key_len, obj->meta, obj->meta_len) : NULL;
    if (u) {
        memcpy(remote, text, remote_len);
        u->flags = flags;
        u->path = p;
        memcpy(u->remote, remote, sizeof(remote));
        u->begun_ns = u->touched_ns = obj->info.mtime_ns;
        list_push_back(&s->uploads, &u->node);
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
    size_t n = 0, cap = 0;
    int rc = 0;
    pthread_rwlock_rdlock(&p->index.lock);
    for (store_index_seek(&c, &p->index, "", 0); c.valid && memcmp(c.item.key, "\0\0\0", 4) == 0;
         store_index_next(&c)) {
        if (c.item.key_len != UPLOAD_KEY_BYTES)
            continue;
        if (n == cap) {
            cap = cap * 2 + 64;
            struct ikey *more = realloc(keys, cap * sizeof(*keys));
            keys = more ? more : keys;
            int64_t *times = more ? realloc(mtimes, cap * sizeof(*mtimes)) : NULL;
            mtimes = times ? times : mtimes;
            if (!times) {
                rc = -ENOMEM;
                break;
            }
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
    if (rc < 0 || unread < 0) /* which parts are nobody's is not known */
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
        struct upload *u = container_of(at, struct upload, node);
        list_remove(at);
        drop_ref(u);
    }
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
    return u->touched_ns < *(const int64_t *)arg && u->committing == 0;
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
        int rc = give_up(s, u, &err);
        store_key_text(u->bucket, u->data, u->key_len, text);
        if (rc == 0)
            log_info("the upload of %s is given up: nobody touched it for long", text);
        else if (rc != STORE_NO_UPLOAD && rc != LEAT_BUSY) /* those are over, or will be soon */
            log_debug("the old upload of %s cannot be removed yet: %s", text, err.message);
    }
    release(s, all, n);
}
