/* SPDX-License-Identifier: Apache-2.0 */
/*
 * multipart.c: uploads in parts: begin, parts, the end. uploads.c has the list of them.
 *
 * An upload, and each of its parts, is an object in a bucket of number 0 that no name leads to; so they are durable, logged and
 * found after a restart like all others:
 *
 *     index key:  | 0 u32 | bucket's id u32 | upload's id: 16 | part u16, big-endian |     part 0: the upload itself, whose payload says what for
 *
 * Happy path: begin; parts as PUTs, on the path that the object will have; complete copies them into one file within the kernel (file systems that
 * share blocks copy nothing) and takes their checksums over. One record of the log has the object in and the upload out.
 * Failure modes: a crash behind that record leaves parts, which the next start deletes.
 */
#include "store/uploads.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/log.h"

/* --- begin ---------------------------------------------------------------------------------------------------------------------- */

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
    struct upload *u = store_upload_new(bucket, bucket_id, id, key, key_len, c->meta, c->meta_len);
    if (!u)
        return error_set(err, -ENOMEM, "no memory for an upload");
    rc = store_upload_charge(s, u, err);
    if (rc < 0) {
        store_upload_free(s, u);
        return rc;
    }
    u->flags = c->flags;
    snprintf(u->remote, sizeof(u->remote), "%s", c->remote ? c->remote : "");
    ikey_set(&k, bucket_id, key, key_len);
    u->path = store_place(s, &k, 0);
    rc = u->path ? store_bucket_enter(s, bucket, bucket_id, NULL, NULL, err)
                 : error_set(err, STORE_UNAVAILABLE, "no disk of the store is in order");
    if (rc < 0) {
        store_upload_free(s, u);
        return rc;
    }
    /* The bucket stays until the upload is in the list: a deletion in between would orphan it. */
    rc = upload_write(s, u, err);
    if (rc == 0) {
        memcpy(ret_id, u->text, sizeof(u->text));
        store_upload_listed(s, u);
    } else {
        store_upload_free(s, u);
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
    int rc = store_upload_find(s, bucket, key, key_len, id, &u, err);
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
    int rc = store_upload_find(s, bucket, key, key_len, id, &u, err);
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

int store_upload_give_up(struct store *s, struct upload *u, bool wait, struct leat_error *err)
{
    int rc = store_upload_end_begin(s, u, wait, err);
    if (rc < 0)
        return rc;
    rc = remove_parts(s, u, true, err);
    store_upload_end_done(s, u, rc == 0);
    return rc;
}

int store_upload_abort(struct store *s, const char *bucket, const void *key, size_t key_len, const char *id,
                       struct leat_error *err)
{
    struct upload *u;
    int rc = store_upload_find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    rc = store_upload_give_up(s, u, false, err);
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
            rc = error_set(err, LEAT_INVALID,
                           "part %u is listed behind part %u: list parts in ascending order", named[i].number,
                           named[i - 1].number);
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
    int rc = store_upload_find(s, bucket, key, key_len, id, &u, err);
    if (rc < 0)
        return rc;
    rc = store_upload_end_begin(s, u, true, err);
    if (rc == 0) {
        rc = assemble(s, u, parts, n, ret_put, err);
        if (rc < 0)
            store_upload_end_done(s, u, false);
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
    store_upload_end_done(s, u, done);
    store_upload_unref(s, u);
}
