/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c: the end of a put.
 *
 * Happy path: writes the rest of the bytes with the trailer, flushes the file, and appends a record to the
 * log, which is flushed together with others'. Only then the object is shown.
 * Failure modes: a condition that does not hold, a bucket that is gone or has another remote by now: nothing is shown, and the file goes.
 * Invariants: the bucket's properties (its remote, dirty) hold from store_bucket_enter until the object is
 * shown. A version never replaces a newer one.
 */
#include "store/put.h"

#include <sys/stat.h>

static int check_commit(struct store_put *put, const struct store_commit *c, struct leat_error *err)
{
    if (put->failed)
        return error_set(err, LEAT_INVALID, "the upload has failed before");
    if (put->expected != STORE_UNKNOWN_BYTES && put->bytes != put->expected)
        return error_set(err, LEAT_INVALID, "%llu bytes were announced, %llu received",
                         (unsigned long long)put->expected, (unsigned long long)put->bytes);
    if (c->meta_len > STORE_META_MAX)
        return error_set(err, LEAT_INVALID, "metadata of %zu bytes; at most %u are kept", c->meta_len,
                         STORE_META_MAX);
    if ((c->etag && strlen(c->etag) > STORE_ETAG_MAX) || (c->remote && strlen(c->remote) > STORE_REMOTE_MAX))
        return error_set(err, LEAT_INVALID, "an ETag of more than %u characters", STORE_ETAG_MAX);
    if (!c->etag && !put->md5)
        return error_set(err, LEAT_INVALID, "an object without MD5 needs an ETag");
    return 0;
}

int store_commit_condition(struct store *s, const struct ikey *k, const struct store_commit *c,
                           struct found *ret_found, bool *ret_there, struct leat_error *err)
{
    int rc = store_find(s, k, false, ret_found);
    *ret_there = rc == 0;
    bool conditional = c->if_none_match || c->if_match || c->if_seq;
    if (rc == STORE_UNAVAILABLE && conditional)
        return error_set(err, rc, "the condition cannot be checked: a path of the store has failed");
    if (c->if_none_match && *ret_there)
        return error_set(err, STORE_PRECONDITION, "there is an object of this name already");
    if (c->if_match && !*ret_there)
        return error_set(err, LEAT_NOT_FOUND, "there is no object of this name");
    if (c->if_match && strcmp(c->if_match, "*") != 0 && strcmp(c->if_match, ret_found->etag) != 0)
        return error_set(err, STORE_PRECONDITION, "there is no object of this name with that ETag");
    if (c->if_seq && (!*ret_there || ret_found->value.seq != c->if_seq))
        return error_set(err, STORE_PRECONDITION, "it is another version by now");
    return 0;
}

/* Block CRCs, with that of a short last one; the whole's. */
static uint32_t finish_crcs(struct store_put *put)
{
    uint32_t crc = store_put_crc32c(put);
    if (put->bytes % STORE_BLOCK)
        bytes_put_u32(&put->crcs, put->block_crc);
    return crc;
}

static void take_etag(struct store_put *put, const struct store_commit *c, struct index_value *v)
{
    if (c->etag)
        store_etag_pack(c->etag, v->etag, &v->parts);
    else
        EVP_DigestFinal_ex(put->md5, v->etag, NULL);
}

/* The file's end: what is left in the buffer, and the trailer behind it. Direct I/O writes whole pages, the trailer at their end. */
static int write_end(struct store_put *put, const struct bytes_out *trailer, struct leat_error *err)
{
    int rc = store_put_settle(put, err);
    if (rc < 0)
        return rc;
    size_t total = put->fill + trailer->len;
    if (put->direct)
        total = (size_t)align_up(total, 4096);
    if (total <= put->cap + PUT_SLACK) {
        memset(put->buf + put->fill, 0, total - put->fill - trailer->len);
        memcpy(put->buf + total - trailer->len, trailer->data, trailer->len);
        return store_put_out(put, put->buf, total, err);
    }
    store_put_leave_direct(put);
    rc = store_put_flush(put, err);
    if (rc < 0)
        return rc;
    rc = store_io_write(put->store->io, put->file.fd, trailer->data, trailer->len,
                        atomic_load_explicit(&put->written, memory_order_relaxed));
    return rc < 0 ? store_put_fail(put, rc, err) : 0;
}

/* All steps that can fail before the file is flushed. ret_node: for the index. */
static int seal(struct store_put *put, const struct store_commit *c, bool dirty, struct index_node **ret_node,
                struct leat_error *err)
{
    struct index_value v = {
        .file = put->file.id,
        .seq = store_next_seq(put->store),
        .bytes = put->bytes,
        .mtime_ns = c->mtime_ns ? c->mtime_ns : store_wall_ns(),
        .flags = dirty ? STORE_DIRTY : 0,
        .crc32c = finish_crcs(put),
    };
    take_etag(put, c, &v);
    struct trailer t = {
        .file = v.file,
        .seq = v.seq,
        .bytes = v.bytes,
        .mtime_ns = v.mtime_ns,
        .flags = v.flags,
        .crc32c = v.crc32c,
        .bucket_id = 0,
        .parts = v.parts,
        .key = put->key.bytes + 4,
        .key_len = (uint32_t)put->key.len - 4,
        .bucket = put->bucket,
        .etag_text = v.parts == INDEX_ETAG_TEXT ? c->etag : "",
        .remote = c->remote ? c->remote : "",
        .meta = c->meta,
        .meta_len = (uint32_t)c->meta_len,
        .crcs = (const uint32_t *)(const void *)put->crcs.data,
        .ncrcs = put->crcs.len / sizeof(uint32_t),
    };
    uint32_t big;
    memcpy(&big, put->key.bytes, 4);
    t.bucket_id = __builtin_bswap32(big);
    memcpy(t.etag, v.etag, sizeof(t.etag));
    struct bytes_out trailer = {0};
    uint8_t extra[INDEX_EXTRA_MAX];
    size_t len = v.parts == INDEX_ETAG_TEXT ? store_extra_put(extra, 0, 'e', c->etag) : 0;
    if (put->ending.upload)
        len = store_extra_put(extra, len, 'u', put->ending.id);
    int rc = put->crcs.failed ? -ENOMEM : store_trailer_put(&trailer, &t);
    v.trailer_bytes = (uint32_t)trailer.len;
    *ret_node = rc == 0
                    ? store_index_node_new(&put->path->index, &v, put->key.bytes, put->key.len, extra, len)
                    : NULL;
    if (!*ret_node)
        rc = error_set(err, -ENOMEM, "no memory to end an upload");
    if (rc == 0)
        rc = write_end(put, &trailer, err);
    bytes_out_fini(&trailer);
    if (rc == 0) {
        rc = put->store->io->datasync(put->store->io, put->file.fd);
        rc = rc < 0 ? store_put_fail(put, rc, err) : 0;
    }
    if (rc < 0)
        free(TAKE_PTR(*ret_node));
    return rc;
}

/*
 * The file got its number before it was flushed. If the key was deleted since then (or another of its stripe:
 * that costs a flush), that number is below the deletion's. A rebuilt index would take the object for
 * deleted, so it gets a new number.
 */
static int renumber(struct store_put *put, struct index_node *node, struct leat_error *err)
{
    const struct store_io *io = put->store->io;
    struct trailer t;
    AUTO_FREE uint8_t *data = NULL;
    struct bytes_out out = {0};
    uint32_t len;
    struct stat st;
    if (*store_deleted(put->store, put->key.bytes, put->key.len) < node->value.seq)
        return 0;
    store_put_leave_direct(put);
    int rc = fstat(put->file.fd, &st) < 0 ? -errno : 0;
    if (rc == 0)
        rc = store_trailer_read(put->path, put->file.fd, &data, &len, &t);
    if (rc == 0) {
        t.seq = node->value.seq = store_next_seq(put->store);
        rc = store_trailer_put(&out, &t);
    }
    if (rc == 0)
        rc = store_io_write(io, put->file.fd, out.data, out.len, (uint64_t)st.st_size - len);
    if (rc == 0)
        rc = io->datasync(io, put->file.fd);
    bytes_out_fini(&out);
    return rc < 0 ? store_put_fail(put, rc, err) : 0;
}

/* The index node of an upload's end: part of its object's record in the log. NULL: it is no upload's. */
static int upload_node(const struct store_put *put, uint64_t seq, struct index_node **ret_node,
                       struct leat_error *err)
{
    struct index_value dead = {.seq = seq, .flags = INDEX_DEAD};
    struct ikey k;
    uint8_t id[16];
    *ret_node = NULL;
    if (!put->ending.upload || !store_upload_id_parse(put->ending.id, id))
        return 0;
    store_upload_key(put->bucket_id, id, 0, &k);
    *ret_node = store_index_node_new(&put->path->index, &dead, k.bytes, k.len, NULL, 0);
    return *ret_node ? 0 : error_set(err, -ENOMEM, "no memory to end an upload");
}

/* commits and the stripe are held. The node is used up, or freed. *ret_seq: the object's number. */
static int show(struct store_put *put, const struct store_commit *c, struct index_node *node,
                uint64_t *ret_seq, struct leat_error *err)
{
    struct store *s = put->store;
    struct found there;
    bool had;
    int rc = store_commit_condition(s, &put->key, c, &there, &had, err);
    if (rc < 0 || (had && there.value.seq > node->value.seq)) {
        free(node); /* a later one was faster: it has replaced this one already */
        return rc;
    }
    struct change change = {.path = put->path, .node = node}, upload = {.path = put->path};
    rc = renumber(put, node, err);
    uint64_t seq = node->value.seq;
    if (rc == 0)
        rc = upload_node(put, seq, &upload.node, err);
    if (rc == 0)
        rc = store_change_make(&change, err);
    if (rc == 0) {
        store_file_settled(put->path, put->file.id);
        store_change_finish(s, &change);
    }
    if (rc == 0 && upload.node) { /* a snapshot that begins now contains the logs before it */
        store_change_apply(&upload);
        store_change_finish(s, &upload);
    }
    free(upload.node);
    free(change.node);
    if (rc < 0)
        return rc;
    s->io->close(s->io, put->file.fd);
    put->file.id = 0;
    *ret_seq = seq;
    if (s->npaths > 1) /* superseded already: they may stay */
        store_remove_older(s, &put->key, put->path, seq, NULL);
    return 0;
}

static void tell(const struct index_value *v, const char *etag_text, struct store_info *ret)
{
    *ret = (struct store_info){.bytes = v->bytes, .seq = v->seq, .mtime_ns = v->mtime_ns, .flags = v->flags};
    store_etag_format(v->etag, v->parts, etag_text, ret->etag);
}

/* Is it an object of the bucket that it was begun in? Parts, and what is noted of uploads, are not. */
static bool is_object(const struct store_put *put)
{
    uint32_t big = __builtin_bswap32(put->bucket_id);
    return memcmp(put->key.bytes, &big, 4) == 0;
}

static void leave(struct store_put *put)
{
    if (put->upload)
        store_upload_leave(put->store, put->upload);
    if (!put->entered)
        store_bucket_leave(put->store, put->bucket);
}

/* *ret_dirty: the committed object is dirty, as the bucket now has a remote without it. */
static int enter(struct store_put *put, const struct store_commit *c, bool *ret_dirty, struct leat_error *err)
{
    bool remote = false;
    uint64_t remote_id = 0;
    int rc = put->entered
                 ? 0
                 : store_bucket_enter(put->store, put->bucket, put->bucket_id, &remote, &remote_id, err);
    if (rc < 0)
        return rc;
    *ret_dirty = c->flags & STORE_DIRTY || (remote && !c->remote && is_object(put));
    if (put->upload && (rc = store_upload_enter(put->store, put->upload, err)) < 0) {
        store_bucket_leave(put->store, put->bucket);
        return rc;
    }
    uint64_t now = remote ? remote_id : 0;
    if (c->if_remote_id ? c->remote_id != now : c->remote && c->remote_id && c->remote_id != remote_id) {
        leave(put);
        return error_set(err, LEAT_STALE, "bucket '%s' has another remote by now", put->bucket);
    }
    return 0;
}

static int put_commit(struct store_put *put, const struct store_commit *c, struct store_info *ret_info,
                      struct leat_error *err)
{
    struct store *s = put->store;
    struct found there;
    bool had, dirty = false;
    int rc = check_commit(put, c, err);
    if (rc == 0) /* once before the work; the check under the stripe decides */
        rc = store_commit_condition(s, &put->key, c, &there, &had, err);
    if (rc == 0)
        rc = store_put_open(put, err);
    if (rc == 0)
        rc = enter(put, c, &dirty, err);
    if (rc < 0)
        return rc;
    struct index_node *node;
    rc = seal(put, c, dirty, &node, err);
    struct store_info info = {0};
    if (rc == 0) {
        tell(&node->value, c->etag, &info);
        struct stripe_set stripe;
        store_commits_enter(s);
        store_stripes_lock(s, &stripe, &put->key, 1);
        rc = show(put, c, node, &info.seq, err);
        store_stripes_unlock(s, &stripe);
        store_commits_leave(s);
    }
    leave(put);
    if (rc < 0)
        return rc;
    atomic_fetch_add(&s->puts, 1);
    atomic_fetch_add(&s->put_bytes, info.bytes);
    if (ret_info)
        *ret_info = info;
    return 0;
}

int store_put_commit(struct store_put *put, const struct store_commit *commit, struct store_info *ret_info,
                     struct leat_error *err)
{
    struct store_commit c = commit ? *commit : (struct store_commit){0};
    const struct put_ending *e = &put->ending;
    if (e->upload) {
        c.etag = c.etag ? c.etag : e->etag;
        c.meta_len = c.meta ? c.meta_len : e->commit.meta_len;
        c.meta = c.meta ? c.meta : e->commit.meta;
        c.flags |= c.remote ? 0 : e->commit.flags;
        c.remote = c.remote ? c.remote : e->commit.remote;
    }
    int rc = put_commit(put, &c, ret_info, err);
    if (rc == 0 && e->upload)
        store_upload_ended(put->store, TAKE_PTR(put->ending.upload), true);
    store_put_abort(put);
    return rc;
}
