/* SPDX-License-Identifier: Apache-2.0 */
/*
 * body.c: the bytes of one version of an object, from the remote into a put of the store, whose file readers follow.
 *
 *   requests go on from `cursor` ─▶ 8 blocks under way ─┬▶ those in their turn: into the put, in order
 *        ▲ a reader of another part moves it            └▶ those before their turn: into the file, where they belong; adopted later
 *
 * Happy path: blocks are received into buffers that are used again and again (fresh pages would cost a fault for each 4 KiB), and handed to
 * the put in the order of the object. They begin small and few, so that the first bytes of a slow remote are soon here, and grow. A part that
 * a reader waits for and that was not requested comes next, with what follows it; parts that were skipped are requested at the end.
 * Failure modes: the remote changes, or fails: received bytes are of one version, and readers get an error for the rest. The checksum of the whole
 * is wrong: the last block reaches no reader, unless it was requested before its turn.
 * Invariants: a byte is requested once. The put takes bytes in order: bytes that came before their turn are read back then, and checksummed. A fetch
 * holds one buffer or waits for it, and requests more only while it has one.
 */
#include "objects/tier/tier_internal.h"

#include "base/clock.h"

#define FLIGHTS  8u                /* requests under way at a time */
#define QUICK_NS (250 * NS_PER_MS) /* blocks are doubled while they come in this */
#define SLOW_NS  (1 * NS_PER_S)    /* halved when they take so long */

struct flight {
    struct backend_read read;
    struct tier_block *block; /* NULL: no request */
    uint64_t began_ns;
    bool early; /* before its turn */
    bool over;
    int rc;
    struct leat_error err;
};

struct body {
    struct fetch *f;
    struct backend *b;
    struct backend_file *file;
    struct store_put *put;
    struct backend_stat *stat;
    struct flight flights[FLIGHTS + FETCH_URGENT];
    unsigned n;          /* requests under way, or waiting for their turn */
    uint64_t cursor;     /* the next request, unless a reader waits for another part */
    uint64_t next;       /* all before it was asked for */
    uint64_t block;      /* bytes of the next request */
    unsigned width;      /* requests at a time */
    unsigned most;       /* ... at the most */
    struct s3_crcs crcs; /* but for CRC32C, which the put has */
    bool asking;         /* not known yet whether there is a checksum of the whole, and of which kind */
};

static bool bit(const uint64_t *bits, uint64_t unit)
{
    return bits[unit / 64] >> unit % 64 & 1;
}

/* Those of [offset, +bytes). */
static void bits_set(uint64_t *bits, uint64_t offset, uint64_t bytes)
{
    for (uint64_t unit = offset / FETCH_UNIT; unit * FETCH_UNIT < offset + bytes; unit++)
        bits[unit / 64] |= 1ull << unit % 64;
}

int fetch_body_begin(struct fetch *f)
{
    uint64_t words = f->info.bytes / FETCH_UNIT / 64 + 1;
    uint64_t *ahead = calloc(words, sizeof(*ahead)), *asked = calloc(words, sizeof(*asked));
    if (!ahead || !asked) {
        free(ahead);
        free(asked);
        return -ENOMEM;
    }
    pthread_mutex_lock(&f->t->lock);
    free(f->ahead);
    free(f->asked);
    f->ahead = ahead;
    f->asked = asked;
    pthread_mutex_unlock(&f->t->lock);
    return 0;
}

uint64_t fetch_readable(const struct fetch *f, uint64_t offset)
{
    if (offset < f->ready)
        return f->ready - offset;
    uint64_t end = offset, most = MIN(f->info.bytes, offset + 16 * MIB);
    while (f->ahead && end < most && bit(f->ahead, end / FETCH_UNIT))
        end = (end / FETCH_UNIT + 1) * FETCH_UNIT;
    return MIN(end, most) - MIN(offset, most);
}

bool fetch_is_whole(const struct fetch *f)
{
    uint64_t at = 0, n = f->state == FETCH_BODY;
    while (n && at < f->info.bytes)
        at += n = fetch_readable(f, at);
    return n > 0;
}

void fetch_wants(struct fetch *f, struct fetch_want *want, uint64_t offset)
{
    want->offset = offset;
    list_remove(&want->node);
    list_push_back(&f->wants, &want->node); /* behind readers that have waited longer */
    if (f->session && !bit(f->asked, offset / FETCH_UNIT))
        backend_wake(f->session);
}

/* --- what is asked for ------------------------------------------------------------------------------------------------------------ */

/* Under the lock. Where a reader waits for what the next request will not bring; UINT64_MAX: nowhere. */
static uint64_t wanted(const struct body *x)
{
    const struct fetch *f = x->f;
    list_for_each (node, &f->wants) {
        uint64_t at = container_of(node, struct fetch_want, node)->offset;
        if (at / FETCH_UNIT != x->cursor / FETCH_UNIT && !bit(f->asked, at / FETCH_UNIT))
            return at / FETCH_UNIT * FETCH_UNIT;
    }
    return UINT64_MAX;
}

static bool more(struct body *x)
{
    if (x->n < x->width && x->next < x->f->info.bytes)
        return true;
    pthread_mutex_lock(&x->f->t->lock);
    bool urgent = x->n < x->width + FETCH_URGENT && wanted(x) != UINT64_MAX;
    pthread_mutex_unlock(&x->f->t->lock);
    return urgent;
}

/* The next request: *ret_bytes from *ret_offset on, marked as requested. False: none. */
static bool pick(struct body *x, uint64_t *ret_offset, uint64_t *ret_bytes)
{
    struct fetch *f = x->f;
    uint64_t total = f->info.bytes;
    pthread_mutex_lock(&f->t->lock);
    uint64_t begin = wanted(x);
    bool urgent = begin != UINT64_MAX;
    if (!urgent) {
        begin = x->cursor;
        while (begin < total && bit(f->asked, begin / FETCH_UNIT))
            begin += FETCH_UNIT;
        if (begin >= total)
            begin = x->next; /* and what was passed over */
    }
    uint64_t end = begin;
    if (begin < total && x->n < x->width + (urgent ? FETCH_URGENT : 0)) {
        while (end < total && end - begin < x->block && !bit(f->asked, end / FETCH_UNIT))
            end += FETCH_UNIT;
        end = MIN(end, total);
        bits_set(f->asked, begin, end - begin);
    }
    pthread_mutex_unlock(&f->t->lock);
    *ret_offset = begin;
    *ret_bytes = end - begin;
    return end > begin;
}

static void flight_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct flight *k = container_of(read, struct flight, read);
    k->rc = rc;
    if (err)
        k->err = *err;
    k->over = true;
}

static struct flight *flight_new(struct body *x, struct tier_block *block, uint64_t offset, uint64_t bytes)
{
    struct flight *k = x->flights;
    while (k->block)
        k++;
    *k = (struct flight){.block = block, .began_ns = clock_now_ns(), .early = offset != x->next};
    k->read = (struct backend_read){
        .file = x->file, .offset = offset, .bytes = bytes, .dst = block->data, .done = flight_done};
    x->n++;
    x->cursor = offset + bytes;
    if (!k->early)
        x->next += bytes;
    const struct fetch *f = x->f; /* only this thread changes what was asked for */
    while (x->next < f->info.bytes && bit(f->asked, x->next / FETCH_UNIT))
        x->next = MIN((x->next / FETCH_UNIT + 1) * FETCH_UNIT, f->info.bytes);
    return k;
}

/* Asks for more while there is room and memory. */
static int launch(struct body *x, struct leat_error *err)
{
    uint64_t offset, bytes;
    while (more(x)) {
        struct tier_block *block = x->n ? tier_block_get(x->f->t) : NULL;
        if (!block && x->n)
            return 0;
        int rc = block ? 0 : fetch_block(x->f, &block, err);
        if (rc < 0)
            return rc;
        if (!pick(x, &offset, &bytes)) {
            tier_block_put(x->f->t, block);
            return 0;
        }
        backend_submit(x->b, &flight_new(x, block, offset, bytes)->read);
    }
    return 0;
}

/* Small and few as long as blocks come slowly. */
static void pace(struct body *x, const struct flight *k)
{
    uint64_t took = clock_now_ns() - k->began_ns, max = x->f->t->config.block_bytes;
    if (took < QUICK_NS) {
        x->block = MIN(x->block * 2, max);
        x->width = MIN(x->width * 2, x->most);
    } else if (took > SLOW_NS) {
        x->block = MAX(x->block / 2, FETCH_UNIT);
        x->width = MAX(x->width / 2, 1u);
    }
}

/* --- what has come ----------------------------------------------------------------------------------------------------------------- */

/* A checksum that the put does not make by itself is to be compared. */
static bool sum_beside(const struct body *x)
{
    return x->stat->crc.kind != S3_CRC_NONE && x->stat->crc.kind != S3_CRC32C;
}

static int whole_right(struct body *x, struct leat_error *err)
{
    struct s3_crc theirs = x->stat->crc;
    uint64_t ours = theirs.kind == S3_CRC32C ? store_put_crc32c(x->put) : x->crcs.of[theirs.kind];
    if (theirs.kind == S3_CRC_NONE || ours == theirs.value)
        return 0;
    return error_set(err, LEAT_CORRUPT, "the received bytes do not match the server's %s",
                     s3_crc_name(theirs.kind));
}

/* The put has more bytes: readers may have them. */
static int show(struct body *x, struct leat_error *err)
{
    struct fetch *f = x->f;
    int rc = store_put_bytes(x->put) == f->info.bytes ? whole_right(x, err) : 0;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&f->t->lock);
    f->ready = store_put_pushed(x->put);
    f->shown |= f->ready > 0;
    fetch_move(f, FETCH_BODY); /* not before there is a byte: until then another version may take its place */
    pthread_mutex_unlock(&f->t->lock);
    return 0;
}

/* Bytes of its turn, into the put. */
static int take(struct body *x, const void *data, uint64_t bytes, struct leat_error *err)
{
    if (x->asking || sum_beside(x))
        s3_crcs_add(&x->crcs, x->stat->crc.kind, data, bytes);
    int rc = store_put_write(x->put, data, bytes, err);
    return rc < 0 ? rc : store_put_push(x->put, err);
}

/* Those that came before their turn, and have it now, are read back. scratch: a unit's worth. */
static int adopt(struct body *x, void *scratch, struct leat_error *err)
{
    struct fetch *f = x->f;
    uint64_t total = f->info.bytes, at;
    int rc = 0;
    while (rc == 0 && (at = store_put_bytes(x->put)) < total && bit(f->ahead, at / FETCH_UNIT)) {
        uint64_t bytes = MIN((uint64_t)FETCH_UNIT, total - at);
        if (sum_beside(x)) {
            if (pread(f->fd, scratch, bytes, (off_t)at) != (ssize_t)bytes)
                return error_set(err, -EIO, "bytes that were fetched cannot be read back");
            s3_crcs_add(&x->crcs, x->stat->crc.kind, scratch, bytes);
        }
        rc = store_put_adopt(x->put, bytes, err);
        if (rc == 0)
            rc = show(x, err);
    }
    return rc;
}

static int take_early(struct body *x, const struct flight *k, struct leat_error *err)
{
    struct fetch *f = x->f;
    int rc = store_put_ahead(x->put, k->read.offset, k->block->data, k->read.bytes, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&f->t->lock);
    bits_set(f->ahead, k->read.offset, k->read.bytes);
    f->shown = true;
    fetch_move(f, FETCH_BODY);
    pthread_mutex_unlock(&f->t->lock);
    return 0;
}

static int land(struct body *x, struct flight *k, struct leat_error *err)
{
    struct fetch *f = x->f;
    int rc = k->rc;
    if (rc < 0 && err)
        *err = k->err;
    if (rc < 0)
        rc = tier_remote_error(f->bucket, rc, err);
    else if (k->early)
        rc = take_early(x, k, err);
    else if ((rc = take(x, k->block->data, k->read.bytes, err)) == 0)
        rc = show(x, err);
    if (rc == 0) {
        pthread_mutex_lock(&f->t->lock);
        f->t->stats.fetched_bytes += k->read.bytes;
        pthread_mutex_unlock(&f->t->lock);
        if (k->began_ns)
            pace(x, k);
    }
    if (rc == 0)
        rc = adopt(x, k->block->data, err);
    tier_block_put(f->t, TAKE_PTR(k->block));
    x->n--;
    return rc;
}

/* One whose turn it is, or that does not wait for it; NULL: none. */
static struct flight *landing(struct body *x)
{
    for (unsigned i = 0; i < FLIGHTS + FETCH_URGENT; i++) {
        struct flight *k = &x->flights[i];
        if (k->block && k->over && (k->early || k->read.offset == store_put_bytes(x->put)))
            return k;
    }
    return NULL;
}

/* The checksum of the whole, which answers to ranges do not bring: asked for while the first blocks are on their way. */
static int ask_sum(struct body *x, const char *uri, struct leat_error *err)
{
    struct backend_stat stat;
    struct leat_error why;
    int rc = backend_stat_object(x->b, uri, &stat, &why);
    if (rc < 0 || x->stat->crc.kind != S3_CRC_NONE)
        return 0; /* nothing to compare with; what is wrong with the object its blocks say */
    if (strcmp(stat.etag, x->stat->etag) != 0 || stat.bytes != x->stat->bytes)
        return error_set(err, LEAT_STALE, "bucket %s: the object changed while it was fetched",
                         x->f->bucket->name);
    x->stat->crc = stat.crc;
    return 0;
}

static int body_begin(struct body *x, const char *uri, struct tier_block *first, uint64_t first_bytes,
                      bool sum, struct leat_error *err)
{
    struct fetch *f = x->f;
    int rc = backend_open(x->b, uri, x->stat->etag, x->stat->bytes, &x->file, err);
    if (rc < 0)
        rc = tier_remote_error(f->bucket, rc, err);
    pthread_mutex_lock(&f->t->lock);
    f->session = x->b;
    if (first_bytes)
        bits_set(f->asked, 0, first_bytes);
    pthread_mutex_unlock(&f->t->lock);
    if (first_bytes) {
        struct flight *k = flight_new(x, TAKE_PTR(first), 0, first_bytes);
        k->began_ns = 0; /* says nothing of how fast others come */
        k->over = true;
    }
    x->asking = sum;
    /* Received bytes are for readers now, unless the object is complete and is to be compared. */
    if (rc == 0 && first_bytes && first_bytes < f->info.bytes)
        rc = land(x, landing(x), err);
    if (rc == 0)
        rc = launch(x, err);
    if (rc == 0 && sum)
        rc = ask_sum(x, uri, err);
    x->asking = false;
    return rc;
}

int fetch_body(struct fetch *f, struct backend *b, const char *uri, struct backend_stat *stat,
               struct store_put *put, struct tier_block *first, uint64_t first_bytes, bool sum,
               struct leat_error *err)
{
    struct body *x = calloc(1, sizeof(*x));
    if (!x) {
        if (first)
            tier_block_put(f->t, first);
        return -ENOMEM;
    }
    *x = (struct body){.f = f,
                       .b = b,
                       .put = put,
                       .stat = stat,
                       .width = 2,
                       .most = MIN(FLIGHTS, f->t->config.connections),
                       .block = FETCH_UNIT};
    int rc = body_begin(x, uri, first, first_bytes, sum, err);
    while (rc == 0 && store_put_bytes(put) < f->info.bytes) {
        struct flight *k = landing(x);
        if (k)
            rc = land(x, k, err);
        if (rc == 0)
            rc = launch(x, err);
        if (rc == 0 && store_put_bytes(put) < f->info.bytes && !landing(x))
            rc = backend_wait(b, 1, 1000) < 0 ? fetch_stopped(f, err) : 0;
    }
    pthread_mutex_lock(&f->t->lock);
    f->session = NULL;
    pthread_mutex_unlock(&f->t->lock);
    for (unsigned i = 0; i < FLIGHTS + FETCH_URGENT; i++) {
        struct flight *k = &x->flights[i];
        if (!k->block)
            continue;
        if (!k->over)
            backend_cancel(b, &k->read);
        tier_block_put(f->t, k->block);
    }
    if (x->file)
        backend_close(x->file);
    free(x);
    return rc;
}
