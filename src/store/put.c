/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put.c: one object on its way to a disk.
 *
 * Happy path: bytes are received into the put's buffer, checksummed there, and written when it is full, to a file whose name is durable; the
 * commit (commit.c) writes the rest with the trailer, flushes the file, appends to the log, flushes that together with others, and only then shows the
 * object. One that fits into the buffer touches no disk before its commit, and is one write and two flushes.
 * A large one has two buffers, and a thread that writes the one while the other is filled.
 * Failure modes: whatever fails unlinks the file; a disk that gives EIO is left. With direct I/O refused (EINVAL) the same bytes are written
 * buffered.
 * Invariants: until the log has its record the file is outstanding, so a crash at any point leaves the object or nothing.
 */
#include "store/put.h"

#include <fcntl.h>

#include "base/crc32c.h"

#define PUT_BUFFER        STORE_PUT_SMALL
#define PUT_BUFFER_DIRECT (1 * MIB)

uint64_t store_shortage(struct path *p, uint64_t bytes)
{
    uint64_t free_bytes, total, missing;
    struct store *s = p->store;
    if (s->io->space(s->io, p->dir, &free_bytes, &total) < 0)
        return 0; /* the write reports it */
    uint64_t want = bytes == STORE_UNKNOWN_BYTES ? 0 : bytes, pending = atomic_load(&p->pending_bytes);
    missing = s->reserve_bytes + want > free_bytes ? s->reserve_bytes + want - free_bytes : 0;
    if (!s->capacity_bytes)
        return missing;
    pthread_rwlock_rdlock(&p->index.lock);
    uint64_t used = p->index.bytes;
    pthread_rwlock_unlock(&p->index.lock);
    uint64_t wanted = used + pending + want;
    return MAX(missing, wanted > s->capacity_bytes ? wanted - s->capacity_bytes : 0);
}

static struct path *choose(const struct store_put *put, int *ret_rc)
{
    struct store *s = put->store;
    *ret_rc = STORE_UNAVAILABLE;
    for (unsigned nth = 0;; nth++) {
        struct path *p = put->only ? put->only : store_place(s, &put->key, nth);
        if (!p || (put->only && nth > 0))
            return NULL;
        *ret_rc = atomic_load(&p->failed)                ? STORE_UNAVAILABLE
                  : store_shortage(p, put->expected) > 0 ? LEAT_NO_SPACE
                                                         : 0;
        if (*ret_rc == 0)
            return p;
        store_kick(s);
    }
}

static int put_buffer(struct store_put *put, struct leat_error *err)
{
    uint64_t most = put->direct ? PUT_BUFFER_DIRECT : PUT_BUFFER;
    put->cap = (size_t)(put->expected <= most ? align_up(put->expected + 1, 4096) : most);
    put->charged = put->cap + PUT_SLACK;
    if (budget_reserve(put->store->budget, put->charged) < 0) {
        put->charged = 0;
        return error_set(err, LEAT_BUSY,
                         "too many uploads at a time: no room for another buffer; try again later");
    }
    /* Without an alignment the heap returns the same pages again and again; with one it maps and clears fresh
     * ones each time. */
    void *buf = put->direct ? NULL : malloc(put->charged);
    if (!buf && (!put->direct || posix_memalign(&buf, 4096, put->charged) != 0))
        return error_set(err, -ENOMEM, "no memory for a buffer of %zu bytes", put->cap);
    put->buf = buf;
    return 0;
}

/* A second buffer for a large object, and a thread that writes one while the other is filled and hashed.
 * Where there is no room, or other puts have enough of them, one thread does both in turn. */
static void start_writer(struct store_put *put)
{
    struct store *s = put->store;
    void *buf;
    if (put->writer || put->expected < 2 * put->cap)
        return;
    if (atomic_fetch_add(&s->writers, 1) >= STORE_WRITERS_MAX)
        goto no_more;
    if (budget_reserve(s->budget, put->cap + PUT_SLACK) < 0)
        goto no_more;
    if (posix_memalign(&buf, 4096, put->cap + PUT_SLACK) != 0)
        goto no_memory;
    if (store_writer_new(s->io, put->file.fd, &put->writer) < 0)
        goto no_writer;
    put->other = buf;
    return;
no_writer:
    free(buf);
no_memory:
    budget_release(s->budget, put->cap + PUT_SLACK);
no_more:
    atomic_fetch_sub(&s->writers, 1);
}

static void stop_writer(struct store_put *put)
{
    if (!put->writer)
        return;
    store_writer_free(TAKE_PTR(put->writer));
    free(put->other);
    budget_release(put->store->budget, put->cap + PUT_SLACK);
    atomic_fetch_sub(&put->store->writers, 1);
}

void store_put_abort(struct store_put *put)
{
    if (!put)
        return;
    stop_writer(put);
    if (put->file.id) {
        put->store->io->close(put->store->io, put->file.fd);
        store_file_drop(put->path, put->file.id);
    }
    if (put->pending)
        atomic_fetch_sub(&put->path->pending_bytes, put->pending);
    free(put->buf);
    if (put->charged)
        budget_release(put->store->budget, put->charged);
    if (put->upload)
        store_upload_unref(put->store, put->upload);
    if (put->ending.upload)
        store_upload_ended(put->store, put->ending.upload, false);
    bytes_out_fini(&put->crcs);
    EVP_MD_CTX_free(put->md5);
    free(put);
}

static int start_md5(struct store_put *put, struct leat_error *err)
{
    if (put->flags & STORE_PUT_NO_MD5)
        return 0;
    put->md5 = EVP_MD_CTX_new();
    if (put->md5 && EVP_DigestInit_ex(put->md5, EVP_md5(), NULL) == 1)
        return 0;
    return error_set(err, -ENOMEM, "MD5 cannot be computed here (OpenSSL refuses it)");
}

static void start_direct(struct store_put *put)
{
    int have = put->direct ? fcntl(put->file.fd, F_GETFL) : -1;
    put->direct = have >= 0 && fcntl(put->file.fd, F_SETFL, have | O_DIRECT) == 0;
}

/* A path and a file for it, if it has none yet. After a failure the put is of no use any more. */
int store_put_open(struct store_put *put, struct leat_error *err)
{
    if (put->file.id)
        return 0;
    int rc;
    struct path *p = choose(put, &rc);
    if (!p) {
        error_set(err, rc,
                  rc == LEAT_NO_SPACE ? "the store is full: delete objects, or give it more disks"
                                      : "no disk of the store is in order");
    } else {
        put->path = p;
        rc = store_file_take(p, &put->file, err);
    }
    put->failed = rc < 0;
    if (rc < 0)
        return rc;
    if (put->expected != STORE_UNKNOWN_BYTES) {
        put->pending = put->expected;
        atomic_fetch_add(&p->pending_bytes, put->pending);
    }
    start_direct(put);
    if (put->expected == STORE_UNKNOWN_BYTES || put->expected <= STORE_PUT_SMALL)
        return 0;
    rc = put->store->io->allocate(put->store->io, put->file.fd, put->expected);
    put->failed = rc == -ENOSPC;
    return put->failed ? error_set(err, LEAT_NO_SPACE, "%s has no room for %llu bytes", p->dir,
                                   (unsigned long long)put->expected)
                       : 0;
}

int store_put_new(struct store *s, const struct put_target *t, struct store_put **ret_put,
                  struct leat_error *err)
{
    struct store_put *put = calloc(1, sizeof(*put));
    if (!put)
        return error_set(err, -ENOMEM, "no memory for an upload");
    put->store = s;
    put->key = t->key;
    put->bucket_id = t->bucket_id;
    put->only = t->path;
    put->expected = t->bytes;
    put->flags = t->flags;
    snprintf(put->bucket, sizeof(put->bucket), "%s", t->bucket);
    put->direct =
        t->bytes != STORE_UNKNOWN_BYTES && t->bytes >= s->direct_bytes && !(t->flags & STORE_PUT_BUFFERED);
    put->entered = t->entered;
    put->upload = t->upload;
    if (put->upload)
        store_upload_ref(s, put->upload);
    int rc = put_buffer(put, err);
    if (rc == 0)
        rc = start_md5(put, err);
    if (rc == 0 && put->expected > STORE_PUT_SMALL) /* a large PUT learns at once that there is no room */
        rc = store_put_open(put, err);
    if (rc < 0) {
        store_put_abort(put);
        return rc;
    }
    *ret_put = put;
    return 0;
}

int store_put_begin(struct store *s, const char *bucket, const void *key, size_t key_len, uint64_t bytes,
                    unsigned flags, struct store_put **ret_put, struct leat_error *err)
{
    struct put_target t = {.bucket = bucket, .bytes = bytes, .flags = flags};
    int rc = store_bucket_check_key(key, key_len, err);
    if (rc == 0)
        rc = store_bucket_find(s, bucket, &t.bucket_id, NULL, err);
    if (rc < 0)
        return rc;
    if (bytes != STORE_UNKNOWN_BYTES && bytes > INT64_MAX / 4)
        return error_set(err, LEAT_INVALID, "an object of %llu bytes is larger than any disk",
                         (unsigned long long)bytes);
    ikey_set(&t.key, t.bucket_id, key, key_len);
    return store_put_new(s, &t, ret_put, err);
}

/* --- bytes -------------------------------------------------------------------------------------------------------------- */

int store_put_fail(struct store_put *put, int rc, struct leat_error *err)
{
    put->failed = true;
    return store_path_error(put->path, rc, "an object cannot be written", err);
}

void store_put_leave_direct(struct store_put *put)
{
    if (put->direct)
        fcntl(put->file.fd, F_SETFL, fcntl(put->file.fd, F_GETFL) & ~O_DIRECT);
    put->direct = false;
}

/* `n` bytes to the file at the put's end. Not aligned any more, or refused: direct I/O ends. */
int store_put_out(struct store_put *put, const void *data, size_t n, struct leat_error *err)
{
    const struct store_io *io = put->store->io;
    uint64_t at = atomic_load_explicit(&put->written, memory_order_relaxed);
    bool plain = put->direct && (n % 4096 || at % 4096);
    int rc = plain ? -EINVAL : store_io_write(io, put->file.fd, data, n, at);
    if (rc == -EINVAL && put->direct) {
        store_put_leave_direct(put);
        rc = store_io_write(io, put->file.fd, data, n, at);
    }
    return rc < 0 ? store_put_fail(put, rc, err) : 0;
}

/* Waits for what the writer has. */
int store_put_settle(struct store_put *put, struct leat_error *err)
{
    if (!put->writing)
        return 0;
    uint64_t at = atomic_load_explicit(&put->written, memory_order_relaxed);
    int rc = store_writer_wait(put->writer);
    if (rc == -EINVAL && put->direct) {
        store_put_leave_direct(put);
        rc = store_io_write(put->store->io, put->file.fd, put->other, put->writing, at);
    }
    if (rc < 0)
        return store_put_fail(put, rc, err);
    atomic_fetch_add_explicit(&put->written, put->writing, memory_order_release);
    put->writing = 0;
    return 0;
}

/* Gives the full buffer to the writer, and takes the other one for the next bytes. */
static void hand_over(struct store_put *put)
{
    store_writer_begin(put->writer, put->buf, put->fill,
                       atomic_load_explicit(&put->written, memory_order_relaxed));
    uint8_t *full = put->buf;
    put->buf = put->other;
    put->other = full;
    put->writing = put->fill;
    put->fill = 0;
}

int store_put_flush(struct store_put *put, struct leat_error *err)
{
    int rc = store_put_open(put, err);
    if (rc == 0)
        rc = store_put_settle(put, err);
    if (rc < 0)
        return rc;
    if (put->direct && put->fill == put->cap) {
        start_writer(put);
        if (put->writer) {
            hand_over(put);
            return 0;
        }
    }
    if (put->fill)
        rc = store_put_out(put, put->buf, put->fill, err);
    if (rc < 0)
        return rc;
    atomic_fetch_add_explicit(&put->written, put->fill, memory_order_release);
    put->fill = 0;
    return 0;
}

void *store_put_room(struct store_put *put, size_t *ret_bytes)
{
    *ret_bytes = put->cap - put->fill;
    return put->buf + put->fill;
}

/* The CRC of each block, and of all blocks: every byte is read once. */
static void put_checksum(struct store_put *put, const uint8_t *data, size_t n)
{
    while (n > 0) {
        uint64_t in_block = put->bytes % STORE_BLOCK;
        size_t now = (size_t)MIN((uint64_t)n, STORE_BLOCK - in_block);
        put->block_crc = crc32c(put->block_crc, data, now);
        put->bytes += now;
        if (in_block + now == STORE_BLOCK) {
            bytes_put_u32(&put->crcs, put->block_crc);
            put->crc = crc32c_combine(put->crc, put->block_crc, STORE_BLOCK);
            put->block_crc = 0;
        }
        data += now;
        n -= now;
    }
}

/* The next bytes of the object: counted and checksummed, wherever they lie. */
static int put_take(struct store_put *put, const uint8_t *data, size_t n, struct leat_error *err)
{
    assert(!put->failed);
    if (put->expected != STORE_UNKNOWN_BYTES && n > put->expected - put->bytes) {
        put->failed = true;
        return error_set(err, LEAT_INVALID, "more bytes received than the %llu that were announced",
                         (unsigned long long)put->expected);
    }
    put_checksum(put, data, n);
    if (put->md5)
        EVP_DigestUpdate(put->md5, data, n);
    if (put->crcs.failed) {
        put->failed = true;
        return error_set(err, -ENOMEM, "no memory for checksums");
    }
    return 0;
}

int store_put_advance(struct store_put *put, size_t n, struct leat_error *err)
{
    assert(n <= put->cap - put->fill);
    int rc = put_take(put, put->buf + put->fill, n, err);
    if (rc < 0)
        return rc;
    put->fill += n;
    return put->fill == put->cap ? store_put_flush(put, err) : 0;
}

int store_put_write(struct store_put *put, const void *data, size_t n, struct leat_error *err)
{
    int rc = 0;
    while (rc == 0 && n > 0) {
        size_t room;
        void *to = store_put_room(put, &room);
        room = MIN(room, n);
        if (room == put->cap && !put->direct) {
            /* A whole buffer's worth: written from where it lies, right after the checksum had it in the processor's cache. */
            rc = put_take(put, data, room, err);
            if (rc == 0)
                rc = store_put_out(put, data, room, err);
            if (rc == 0)
                atomic_fetch_add_explicit(&put->written, room, memory_order_release);
        } else {
            memcpy(to, data, room);
            rc = store_put_advance(put, room, err);
        }
        data = (const uint8_t *)data + room;
        n -= room;
    }
    return rc;
}

int store_put_ahead(struct store_put *put, uint64_t offset, const void *data, size_t n,
                    struct leat_error *err)
{
    assert(!put->failed && !put->direct && offset >= put->bytes);
    if (offset > put->expected || n > put->expected - offset)
        return error_set(err, LEAT_INVALID, "bytes behind the end of the object");
    int rc = store_put_open(put, err);
    if (rc < 0)
        return rc;
    rc = store_io_write(put->store->io, put->file.fd, data, n, offset);
    return rc < 0 ? store_put_fail(put, rc, err) : 0;
}

int store_put_adopt(struct store_put *put, uint64_t n, struct leat_error *err)
{
    int rc = store_put_flush(put, err);
    while (rc == 0 && n > 0) {
        size_t piece = (size_t)MIN(n, (uint64_t)put->cap);
        rc = store_io_read(put->store->io, put->file.fd, put->buf, piece, put->bytes);
        rc = rc < 0 ? store_put_fail(put, rc, err) : put_take(put, put->buf, piece, err);
        if (rc == 0)
            atomic_fetch_add_explicit(&put->written, piece, memory_order_release);
        n -= piece;
    }
    return rc;
}

int store_put_push(struct store_put *put, struct leat_error *err)
{
    return put->direct ? 0 : store_put_flush(put, err);
}

int store_put_reader(struct store_put *put, int *ret_fd, struct leat_error *err)
{
    char name[PATH_FILE_MAX];
    int rc = store_put_open(put, err);
    if (rc < 0)
        return rc;
    store_path_file_name(put->path, put->file.id, name);
    int fd = put->store->io->open(put->store->io, name, O_RDONLY, 0);
    if (fd < 0)
        return store_path_error(put->path, fd, "an open file cannot be opened again", err);
    *ret_fd = fd;
    return 0;
}

uint64_t store_put_pushed(const struct store_put *put)
{
    return atomic_load_explicit(&put->written, memory_order_acquire);
}

uint64_t store_put_bytes(const struct store_put *put)
{
    return put->bytes;
}

uint32_t store_put_crc32c(const struct store_put *put)
{
    return crc32c_combine(put->crc, put->block_crc, put->bytes % STORE_BLOCK);
}

bool store_put_md5(struct store_put *put, uint8_t ret_md5[16])
{
    EVP_MD_CTX *copy = put->md5 ? EVP_MD_CTX_new() : NULL;
    bool good =
        copy && EVP_MD_CTX_copy_ex(copy, put->md5) == 1 && EVP_DigestFinal_ex(copy, ret_md5, NULL) == 1;
    EVP_MD_CTX_free(copy);
    return good;
}

void store_put_ends(struct store_put *put, const struct put_ending *ending)
{
    put->ending = *ending;
}

/* --- parts put together ----------------------------------------------------------------------------------------------------- */

/* Through memory: for file systems that cannot copy, and where blocks do not fall on blocks. */
static int copy_through(struct store_put *put, int fd, uint64_t from, uint64_t bytes, uint32_t *crc,
                        struct leat_error *err)
{
    for (uint64_t at = from; at < bytes;) {
        size_t room;
        void *to = store_put_room(put, &room);
        room = (size_t)MIN((uint64_t)room, bytes - at);
        int rc = store_io_read(put->store->io, fd, to, room, at);
        if (rc < 0)
            return store_put_fail(put, rc, err);
        *crc = crc32c(*crc, to, room);
        rc = store_put_advance(put, room, err);
        if (rc < 0)
            return rc;
        at += room;
    }
    return 0;
}

/* Returns how many bytes the kernel copied: all of them, or none where it cannot. */
static int64_t copy_in_kernel(struct store_put *put, int fd, uint64_t bytes)
{
    const struct store_io *io = put->store->io;
    uint64_t to = atomic_load_explicit(&put->written, memory_order_relaxed);
    for (uint64_t at = 0; at < bytes;) {
        int64_t n = io->copy(io, fd, at, put->file.fd, to + at, bytes - at);
        if (n == -EINTR)
            continue;
        if (n < 0 && at == 0 && n != -ENOSPC && n != -EIO)
            return 0; /* EXDEV, EOPNOTSUPP, EINVAL ...: copied by other means */
        if (n <= 0)
            return n < 0 ? n : -EIO;
        at += (uint64_t)n;
    }
    return (int64_t)bytes;
}

int store_put_copy(struct store_put *put, int fd, uint64_t bytes, const uint32_t *crcs, uint32_t crc,
                   struct leat_error *err)
{
    uint32_t seen = 0;
    int rc = put->bytes % STORE_BLOCK ? store_put_open(put, err) : store_put_flush(put, err);
    if (rc < 0)
        return rc;
    int64_t copied =
        put->bytes % STORE_BLOCK || put->fill || put->direct ? 0 : copy_in_kernel(put, fd, bytes);
    if (copied < 0)
        return store_put_fail(put, (int)copied, err);
    if (copied == 0) {
        rc = copy_through(put, fd, 0, bytes, &seen, err);
        if (rc == 0 && seen != crc) {
            put->failed = true;
            rc = error_set(err, LEAT_CORRUPT, "a part is damaged on %s: its checksum does not match",
                           put->path->dir);
        }
        return rc;
    }
    for (uint64_t at = 0; at < bytes; at += STORE_BLOCK, crcs++) {
        if (bytes - at < STORE_BLOCK) {
            put->block_crc = *crcs;
            break;
        }
        bytes_put_u32(&put->crcs, *crcs);
        put->crc = crc32c_combine(put->crc, *crcs, STORE_BLOCK);
    }
    put->bytes += bytes;
    atomic_fetch_add_explicit(&put->written, bytes, memory_order_release);
    return put->crcs.failed ? error_set(err, -ENOMEM, "no memory for checksums") : 0;
}
