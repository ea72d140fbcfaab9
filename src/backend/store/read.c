/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c: ranges of an object into memory, straight from the disk where that pays.
 *
 *   object   │ block 0 │ block 1 │ block 2 │ block 3 │     a CRC32C each
 *   wanted          └──────────────────────┘
 *   read       whole     in place  in place   whole
 *              │                              │
 *              └── to a bounce buffer; the wanted part is copied, the rest (the padding) left behind
 *
 * The unit is the store's block, since only all of one can be compared with its checksum. A block that is wanted whole, in one piece, goes to its place:
 * with direct I/O, unless the page cache has it; where that cannot read to its place, by a bounce buffer. Every block is compared in the memory
 * that it came to, by whatever road: what the page cache holds may have gone bad as well.
 *
 * Failure modes: LEAT_CORRUPT names bucket, key and block; an I/O error its offset; a file that opens for direct I/O and refuses the reads (EINVAL,
 * EOPNOTSUPP) is read through the page cache from there on. Invariants: a read has ended when all of its blocks have; a bounce buffer is one
 * block's; done() runs in stored_wait, or when the session ends.
 */
#include <stdio.h>

#include "backend/store/stored.h"

#define WARM_PERMILLE 500 /* of a block: from here on by the page cache */
#define DIRECT_LEAST  (64 * KIB)

struct job;

struct block {
    struct disk_read disk;
    struct list node; /* stored.waiting */
    struct job *job;
    uint64_t number, at, bytes; /* of the object: all of the block */
    struct pieces place;        /* of what is wanted of it */
    int bounce;                 /* -1: in place */
    bool direct;
};

struct job {
    struct stored *session;
    struct backend_read *read;
    int rc;
    struct leat_error why;
    unsigned left;
    struct block blocks[];
};

/* --- how ---------------------------------------------------------------------------------------------------------------- */

/* Is there direct I/O on this file? Found out once. */
static bool has_direct(struct stored_file *f)
{
    struct disk_file_traits traits = {0};
    if (f->fd_direct == -1) {
        f->fd_direct = -2;
        if (disk_file_probe(f->obj->fd, &traits) == 0 && traits.direct_align && traits.direct_align <= 4096) {
            int fd = store_obj_open_direct(f->obj);
            f->align = fd >= 0 ? traits.direct_align : 0;
            f->memory_align = traits.direct_memory_align;
            f->fd_direct = fd >= 0 ? fd : -2;
        }
    }
    return f->fd_direct >= 0 && !f->refused;
}

static bool is_cold(const struct stored_file *f, const struct block *b)
{
    int cached = disk_cached_permille(f->obj->fd, f->obj->offset + b->at, b->bytes);
    return cached >= 0 && cached < WARM_PERMILLE;
}

static bool is_whole(const struct block *b)
{
    const struct backend_read *read = b->job->read;
    return b->at >= read->offset && b->at + b->bytes <= read->offset + read->bytes;
}

/* --- its end ------------------------------------------------------------------------------------------------------------ */

static void block_over(struct block *b, int rc, const struct leat_error *why)
{
    struct job *job = b->job;
    if (rc < 0 && job->rc == 0) {
        job->rc = rc;
        job->why = *why;
    }
    if (--job->left)
        return;
    job->read->rc = job->rc;
    job->read->why = NULL;
    if (job->rc < 0) {
        job->read->why = malloc(sizeof(*job->read->why)); /* NULL: the code is enough */
        if (job->read->why)
            *job->read->why = job->why;
    }
    list_push_back(&job->session->ended, &job->read->node);
    free(job);
}

/* The wanted part of a block that came to a buffer. */
static void copy_part(struct block *b, const uint8_t *from)
{
    const struct backend_read *read = b->job->read;
    uint64_t begin = MAX(b->at, read->offset), end = MIN(b->at + b->bytes, read->offset + read->bytes);
    pieces_put(&b->place, from + (begin - b->at), end - begin);
    b->job->session->stats.bytes_padding += b->bytes - (end - begin);
}

static bool block_start(struct block *b);

/* Gives this buffer to a waiting block. Some blocks need none any more: the page cache has their bytes by
 * now. */
static void bounce_give(struct stored *s, int bounce)
{
    struct block *next;
    s->bounce_busy[bounce] = false;
    while (!s->bounce_busy[bounce] && (next = list_first(&s->waiting, struct block, node))) {
        list_remove(&next->node);
        block_start(next);
    }
}

static void block_done(struct disk_read *disk, int64_t result)
{
    struct block *b = container_of(disk, struct block, disk);
    struct stored *s = b->job->session;
    struct stored_file *f = stored_file_of(b->job->read->file);
    struct leat_error why = {0};
    int bounce = b->bounce, rc = 0;
    if (b->direct && (result == -EINVAL || result == -EOPNOTSUPP)) {
        f->refused = true; /* which ends this: none is direct from here on */
        if (bounce >= 0)
            bounce_give(s, bounce);
        block_start(b);
        return;
    }
    uint64_t padding =
        b->direct && b->bounce >= 0 && result > (int64_t)b->bytes ? (uint64_t)result - b->bytes : 0;
    if (result < 0)
        rc = error_sys(&why, (int)result, "reading %.300s at offset %llu", f->uri, (unsigned long long)b->at);
    else if ((uint64_t)result < b->bytes)
        rc = error_set(&why, LEAT_CORRUPT, "%.300s: its file is shorter than it should be", f->uri);
    else
        rc = store_obj_verify_block(s->store, f->obj, b->number, disk->dst, b->bytes, &why);
    if (rc == 0) {
        uint64_t *road = b->direct ? &s->stats.bytes_direct : &s->stats.bytes_buffered;
        *road += b->bytes;
        s->stats.bytes_padding += padding;
        if (bounce >= 0)
            copy_part(b, disk->dst);
    }
    block_over(b, rc, &why);
    if (bounce >= 0)
        bounce_give(s, bounce);
}

/* --- its beginning ------------------------------------------------------------------------------------------------------ */

/* A free buffer; -1: all are taken, -ENOMEM. */
static int bounce_take(struct stored *s)
{
    for (int i = 0; i < (int)STORED_BOUNCES; i++) {
        if (s->bounce_busy[i])
            continue;
        if (!s->bounces[i] && !(s->bounces[i] = aligned_alloc(4096, STORE_BLOCK)))
            return -ENOMEM;
        s->bounce_busy[i] = true;
        return i;
    }
    return -1;
}

static int block_submit(struct block *b)
{
    struct stored *s = b->job->session;
    struct stored_file *f = stored_file_of(b->job->read->file);
    struct disk_read *request = &b->disk;
    bool cold = b->bytes >= DIRECT_LEAST && is_cold(f, b) && has_direct(f);
    bool in_place = is_whole(b) && b->place.left >= b->bytes;
    /* In place and direct: neither begin nor end may reach over the block. */
    bool fits = cold && in_place && (uintptr_t)b->place.at % f->memory_align == 0 && b->bytes % f->align == 0;
    b->bounce = -1;
    b->direct = fits;
    if (!in_place || (cold && !fits)) {
        b->bounce = bounce_take(s);
        if (b->bounce == -1) {
            list_push_back(&s->waiting, &b->node);
            return 0;
        }
        if (b->bounce < 0)
            return b->bounce;
        b->direct = cold;
    }
    b->disk = (struct disk_read){.fd = b->direct ? f->fd_direct : f->obj->fd,
                                 .offset = f->obj->offset + b->at,
                                 .dst = b->bounce >= 0 ? s->bounces[b->bounce] : (uint8_t *)b->place.at,
                                 .bytes = b->direct ? align_up(b->bytes, f->align) : b->bytes,
                                 .buffer = -1,
                                 .done = block_done};
    int rc = s->engine->ops->submit(s->engine, &request, 1);
    if (rc < 0 && b->bounce >= 0)
        s->bounce_busy[b->bounce] = false;
    return rc;
}

/* False: it could not be, and is over. */
static bool block_start(struct block *b)
{
    struct leat_error why = {0};
    int rc = block_submit(b);
    if (rc == 0)
        return true;
    error_sys(&why, rc, "reading %.300s", stored_file_of(b->job->read->file)->uri);
    block_over(b, rc, &why);
    return false;
}

void stored_submit(struct backend *base, struct backend_read *read)
{
    struct stored *s = stored_of(base);
    uint64_t first = read->offset / STORE_BLOCK, last = (read->offset + read->bytes - 1) / STORE_BLOCK;
    uint64_t n = last - first + 1, size = stored_file_of(read->file)->obj->info.bytes;
    int rc = s->engine ? 0 : disk_engine_new(s->engine_kind, s->depth, &s->engine);
    struct job *job = rc == 0 ? calloc(1, sizeof(*job) + n * sizeof(job->blocks[0])) : NULL;
    s->npending++;
    s->stats.requests++;
    read->rc = 0;
    read->why = NULL;
    if (!job) { /* it ends as all do, in wait() */
        read->rc = rc < 0 ? rc : -ENOMEM;
        list_push_back(&s->ended, &read->node);
        return;
    }
    job->session = s;
    job->read = read;
    struct pieces place = backend_read_place(read);
    job->left = (unsigned)n + 1; /* ours: until all of them have been started */
    list_init(&read->node);
    for (uint64_t i = 0; i < n; i++) {
        struct block *b = &job->blocks[i];
        uint64_t at = (first + i) * STORE_BLOCK;
        b->job = job;
        b->number = first + i;
        b->at = at;
        b->bytes = MIN(STORE_BLOCK, size - at);
        b->place = place;
        pieces_skip(&place, at + b->bytes - MAX(at, read->offset));
        list_init(&b->node);
        block_start(b);
    }
    static const struct leat_error none;
    block_over(&job->blocks[0], 0, &none);
}

/* --- waiting ------------------------------------------------------------------------------------------------------------ */

unsigned stored_deliver(struct stored *s)
{
    unsigned n = backend_ops_deliver(&s->ended_ops, &s->npending);
    struct backend_read *read;
    while ((read = list_first(&s->ended, struct backend_read, node))) {
        list_remove(&read->node);
        s->npending--;
        n++;
        struct leat_error *why = TAKE_PTR(read->why), bare = {0};
        if (read->rc == 0)
            s->stats.bytes_in += read->bytes;
        else if (!why)
            error_sys(&bare, read->rc, "reading %.300s", stored_file_of(read->file)->uri);
        read->done(read, read->rc, read->rc == 0 ? NULL : why ? why : &bare);
        free(why);
    }
    for (unsigned i = 0; s->npending == 0 && i < STORED_BOUNCES; i++)
        free(TAKE_PTR(s->bounces[i]));
    return n;
}

/* A disk answers, or fails, in a while: a deadline is looked at between its answers only. */
int stored_wait(struct backend *base, unsigned min_done, int timeout_ms)
{
    struct stored *s = stored_of(base);
    unsigned n = stored_deliver(s);
    while (s->npending && n < min_done && timeout_ms != 0) {
        if (stored_cancelled(s))
            return -ECANCELED;
        if (atomic_exchange(&s->woken, false))
            break;
        bool more = !list_empty(&s->ended) || !list_empty(&s->ended_ops); /* of a done() that submitted */
        int rc = more ? 0 : s->engine->ops->reap(s->engine, 1);
        if (rc < 0)
            return rc;
        n += stored_deliver(s);
        if (timeout_ms > 0 && !more)
            break;
    }
    return (int)n;
}

void stored_wake(struct backend *base)
{
    atomic_store(&stored_of(base)->woken, true);
}

void stored_cancel(struct backend *base, struct backend_read *read)
{
    struct stored *s = stored_of(base);
    for (bool ended = false; !ended;) { /* what a disk is at cannot be taken back */
        list_for_each (node, &s->ended)
            ended |= container_of(node, struct backend_read, node) == read;
        if (!ended && s->engine->ops->reap(s->engine, 1) < 0)
            abort(); /* reads are out, and their buffers cannot be given back */
    }
    list_remove(&read->node);
    free(TAKE_PTR(read->why));
    s->npending--;
}

int64_t stored_pread(struct backend *base, struct backend_file *file, void *dst, uint64_t bytes,
                     uint64_t offset, struct leat_error *err)
{
    struct stored *s = stored_of(base);
    struct stored_file *f = stored_file_of(file);
    uint64_t size = f->obj->info.bytes, got = 0;
    bytes = offset < size ? MIN(bytes, size - offset) : 0;
    s->stats.requests++;
    while (got < bytes) {
        uint64_t n = MIN(bytes - got, 4 * STORE_BLOCK);
        if (stored_cancelled(s))
            return error_set(err, -ECANCELED, "cancelled");
        int rc = store_obj_read(s->store, f->obj, offset + got, (char *)dst + got, n, err);
        if (rc < 0)
            return rc;
        got += n;
    }
    s->stats.bytes_in += got;
    s->stats.bytes_buffered += got;
    return (int64_t)got;
}
