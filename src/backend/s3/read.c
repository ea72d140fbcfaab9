/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranged reads. A read is cut in blocks as requests become free, by what is wanted at that moment: few bytes for many connections make
 * small blocks, many make large ones (BLOCK_MIN to BLOCK_MAX).
 *
 * Invariants: a byte is asked for once at a time; a block's bytes are of the file's pinned ETag; a read ends when its last block has,
 * with the first error that any of them met. Requests under way never exceed what the throttle allows.
 */
#include <stdio.h>

#include "backend/s3/session.h"
#include "backend/s3/object_sum.h"
#include "base/clock.h"

#define BLOCK_MIN (256 * KIB)
#define BLOCK_MAX (8 * MIB)
/* Answers up to this share a connection: 10 ms away, ranges of 128 KiB come 2.5 times as fast. Larger ones gain nothing by it, and would keep each
 * other waiting. */
#define SMALL_BYTES (256 * KIB)

struct s3_file {
    struct backend_file base;
    struct s3_session *b;
    struct target target;
    char etag[BACKEND_ETAG_MAX];
    uint64_t bytes;                 /* of the object; 0: not known */
    uint64_t total;                 /* as the first answer said it; 0: nothing was said */
    char modified[HTTP_DATE_BYTES]; /* where there is no ETag: as the first answer said it */
    int64_t written; /* where none was given: time of the last write, from the opener; 0: unknown */
    bool all;        /* of it will be read through this handle */
    struct object_sum
        *whole; /* it comes in several blocks: NULL before the first, or if it is not to be checked */
    struct backend_read *last; /* has all its bytes, and waits for the server's checksum */
};

struct block {
    struct s3_exchange rq;
    struct list node; /* backend.free_blocks */
    struct backend_read *read;
    uint64_t offset, bytes;
    bool whole;
    struct s3_crc crc; /* the server's, of a block that is all of the object */
};

uint64_t backend_session_bytes(unsigned connections)
{
    uint64_t n = connections ? connections : CONNECTIONS_DEFAULT, head = 2 * KIB;
    return n * http_connection_bytes() + n * BLOCKS_EACH * (sizeof(struct block) + head);
}

/* --- files ------------------------------------------------------------------------------------------------------------- */

static struct s3_file *file_of(const struct backend_read *read)
{
    return container_of(read->file, struct s3_file, base);
}

int s3_open(struct backend *base, const char *uri, const char *etag, uint64_t bytes,
            struct backend_file **ret_file, struct leat_error *err)
{
    struct s3_file *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    struct s3_session *b = session_of(base);
    f->base.ops = base->ops;
    f->b = b;
    f->bytes = bytes;
    int rc = target_parse(b, uri, &f->target, err);
    if (rc == 0 && etag && strlen(etag) >= sizeof(f->etag))
        rc = error_set(err, LEAT_INVALID, "%.200s: an ETag of %zu bytes", f->target.shown, strlen(etag));
    if (rc == 0 && f->target.bucket && !*f->target.key)
        rc = error_set(err, LEAT_INVALID, "%.200s: a bucket, where an object is wanted", uri);
    if (rc < 0) {
        s3_close(&f->base);
        return rc;
    }
    if (etag && strncmp(etag, "W/", 2) != 0) /* no server lets a weak one match (RFC 9110 13.1.1) */
        strcpy(f->etag, etag);
    *ret_file = &f->base;
    return 0;
}

void s3_close(struct backend_file *file)
{
    struct s3_file *f = container_of(file, struct s3_file, base);
    object_sum_free(f->whole);
    target_fini(&f->target);
    free(f);
}

void s3_expect_all(struct backend_file *file)
{
    container_of(file, struct s3_file, base)->all = true;
}

void s3_expect_modified(struct backend_file *file, int64_t modified)
{
    struct s3_file *f = container_of(file, struct s3_file, base);
    if (!f->etag[0])
        f->written = modified;
}

/* --- one block --------------------------------------------------------------------------------------------------------- */

static void pump(struct s3_session *b);

/* Compares versions where there is no ETag. */
static int modified_check(const struct s3_file *f, struct http_text modified, struct leat_error *err)
{
    char was[HTTP_DATE_BYTES];
    time_t is;
    if (!f->etag[0] && f->modified[0] && !http_text_is(modified, f->modified))
        return error_set(err, LEAT_STALE, "the object changed: it was written at %s", f->modified);
    if (!f->written || !http_date_parse(modified, &is) || is == (time_t)f->written)
        return 0;
    http_date_format((time_t)f->written, was);
    return error_set(err, LEAT_STALE, "the object changed: it was written at %s, and again at %.*s", was,
                     (int)modified.len, modified.data);
}

static int block_head(struct s3_exchange *rq, const struct http_reader *reader, const char *buf,
                      struct leat_error *err)
{
    struct block *k = container_of(rq, struct block, rq);
    struct s3_file *f = file_of(k->read);
    uint64_t first, last, total = UINT64_MAX;
    struct http_text etag = http_header(reader, buf, "etag");
    if (f->etag[0] && etag.data && !http_text_is(etag, f->etag))
        return error_set(err, LEAT_STALE, "the object changed: its ETag was %s", f->etag);
    /* An answer to a range says the ETag that all of the object would have (RFC 9110 15.3.7). */
    if (f->etag[0] && !etag.len)
        return error_set(err, LEAT_CORRUPT, "an answer without an ETag, which was %s before", f->etag);
    struct http_text modified = http_header(reader, buf, "last-modified");
    int rc = modified_check(f, modified, err);
    if (rc < 0)
        return rc;
    if (reader->status == 206) {
        if (!http_content_range(http_header(reader, buf, "content-range"), &first, &last, &total))
            return error_set(err, LEAT_CORRUPT, "an answer without a Content-Range that makes sense");
        uint64_t is = f->bytes ? f->bytes : f->total;
        if (is && total != UINT64_MAX && total != is)
            return error_set(err, LEAT_STALE, "the object changed: it had %llu bytes, now it has %llu",
                             (unsigned long long)is, (unsigned long long)total);
        if (first != k->offset || last - first + 1 != k->bytes)
            return error_set(err,
                             last < k->offset + k->bytes && first == k->offset ? LEAT_STALE : LEAT_CORRUPT,
                             "requested %llu bytes from %llu on, received %llu from %llu on: the "
                             "object is shorter than it was",
                             (unsigned long long)k->bytes, (unsigned long long)k->offset,
                             (unsigned long long)(last - first + 1), (unsigned long long)first);
    } else if (k->rq.say.ranged &&
               !(k->offset == 0 && reader->body == HTTP_BODY_LENGTH && reader->body_bytes == k->bytes)) {
        return error_set(err, LEAT_UNSUPPORTED,
                         "the server does not answer ranges: it gave all of the object (status %d)",
                         reader->status);
    }
    if (reader->body != HTTP_BODY_LENGTH && reader->body != HTTP_BODY_CHUNKED)
        return error_set(err, LEAT_CORRUPT, "a response without its length");
    if (reader->body == HTTP_BODY_LENGTH && reader->body_bytes != k->bytes)
        return error_set(err, k->whole ? LEAT_STALE : LEAT_CORRUPT, "%llu bytes, where %llu were requested",
                         (unsigned long long)reader->body_bytes, (unsigned long long)k->bytes);
    if (reader->status == 206 && total != UINT64_MAX)
        f->total = total;
    if (!f->etag[0] && etag.len && etag.len < sizeof(f->etag) &&
        !(etag.len > 2 && memcmp(etag.data, "W/", 2) == 0))
        http_text_copy(etag, f->etag, sizeof(f->etag));
    else if (!f->etag[0] && modified.len && modified.len < sizeof(f->modified))
        http_text_copy(modified, f->modified, sizeof(f->modified));
    if (k->whole)
        k->crc = s3_crc_of(reader, buf);
    return 0;
}

static void read_end(struct backend_read *read)
{
    struct s3_session *b = file_of(read)->b;
    struct leat_error *why = read->why;
    struct leat_error none;
    list_remove(&read->node);
    read->why = NULL;
    b->npending--;
    b->ended++;
    if (read->rc < 0 && !why)
        error_sys(&none, read->rc, "GET %.300s", file_of(read)->target.shown);
    read->done(read, read->rc, read->rc < 0 ? (why ? why : &none) : NULL);
    free(why);
}

/* The first thing that goes wrong is what a read ends with; no more of it is asked for. */
static void read_spoil(struct backend_read *read, int rc, const struct leat_error *err)
{
    if (read->rc < 0)
        return;
    read->rc = rc;
    read->why = err ? malloc(sizeof(*err)) : NULL;
    if (read->why)
        *read->why = *err;
    struct s3_session *b = file_of(read)->b;
    b->waiting_bytes -= read->offset + read->bytes - read->next;
    read->next = read->offset + read->bytes;
    list_remove(&read->node);
    list_push_back(&b->asked, &read->node);
}

/* All of the object is there, and compared, or cannot be. */
static void judge(struct s3_file *f, struct backend_read *read)
{
    struct leat_error err = {0}, said;
    int rc = object_sum_verdict(f->whole, &said);
    if (rc > 0)
        f->b->stats.checked++;
    else if (rc == 0)
        f->b->stats.unchecked++;
    else
        read_spoil(read, error_set(&err, rc, "GET %.300s: %s", f->target.shown, said.message), &err);
}

/* None of its blocks is left. */
static void read_over(struct backend_read *read)
{
    struct s3_file *f = file_of(read);
    if (f->whole && read->rc == 0 && object_sum_covered(f->whole)) {
        if (!f->whole->over) {
            f->last = read;
            return;
        }
        judge(f, read);
    }
    read_end(read);
}

static void object_sum_settled(void *user)
{
    struct s3_file *f = user;
    struct backend_read *read = TAKE_PTR(f->last);
    if (!read)
        return;
    judge(f, read);
    read_end(read); /* may close the file, and so free what calls here */
}

static void block_free(struct s3_session *b, struct block *k)
{
    bytes_out_fini(&k->rq.text); /* what an error said; the head's memory is used again */
    b->nblocks--;
    b->nsmall -= k->rq.small;
    b->asked_bytes -= k->bytes;
    list_push_back(&b->free_blocks, &k->node);
}

/* Bytes that are wrong on the way may be right the next time. */
static int block_check(struct s3_exchange *rq, struct leat_error *err)
{
    struct block *k = container_of(rq, struct block, rq);
    if (rq->call.received != k->bytes)
        return error_set(err, LEAT_CORRUPT, "%llu bytes received, where %llu were requested",
                         (unsigned long long)rq->call.received, (unsigned long long)k->bytes);
    struct s3_crcs ours = {0};
    if (k->crc.kind != S3_CRC_NONE)
        s3_crcs_add_pieces(&ours, k->crc.kind, rq->dst, k->bytes);
    if (k->crc.kind != S3_CRC_NONE && ours.of[k->crc.kind] != k->crc.value)
        return error_set(err, LEAT_CORRUPT, "the received bytes do not match the server's %s",
                         s3_crc_name(k->crc.kind));
    return 0;
}

static void block_end(struct s3_exchange *rq, int rc, const struct leat_error *err)
{
    struct block *k = container_of(rq, struct block, rq);
    struct s3_session *b = rq->b;
    struct backend_read *read = k->read;
    if (rc == 0 && k->whole)
        k->crc.kind != S3_CRC_NONE ? b->stats.checked++ : b->stats.unchecked++;
    struct s3_file *f = file_of(read);
    if (rc < 0)
        read_spoil(read, rc, err);
    else if (f->whole)
        object_sum_add(f->whole, k->offset, rq->dst, k->bytes);
    read->inside--;
    read->left -= k->bytes;
    block_free(b, k);
    if (read->inside == 0 && (read->rc < 0 || read->left == 0))
        read_over(read);
    pump(b);
}

static struct block *block_new(struct s3_session *b)
{
    struct block *k = list_first(&b->free_blocks, struct block, node);
    if (k) {
        list_remove(&k->node);
        return k;
    }
    k = calloc(1, sizeof(*k));
    if (k)
        list_init(&k->node);
    return k;
}

/* All that is wanted, spread over the connections: a read alone is there soonest in many small pieces, above all on connections that are new,
 * and many reads cost least in large ones. */
static uint64_t block_bytes(const struct s3_session *b, const struct backend_read *read)
{
    const uint64_t rest = read->offset + read->bytes - read->next;
    if (b->config.block_bytes)
        return MIN(rest, b->config.block_bytes);
    if (read->shared) /* equal parts, with no crumb at the end */
        return div_up(rest, div_up(rest, SMALL_BYTES));
    uint64_t share = align_up((b->waiting_bytes + b->asked_bytes) / b->config.connections, 64 * KIB);
    uint64_t bytes = MIN(MAX(share, BLOCK_MIN), BLOCK_MAX);
    bytes = MIN(bytes, rest);
    return rest - bytes < BLOCK_MIN / 2 && rest <= BLOCK_MAX ? rest : bytes; /* no crumb at the end */
}

static void block_start(struct block *k, struct backend_read *read, uint64_t bytes)
{
    static const struct s3_header checked = {"x-amz-checksum-mode", "ENABLED"};
    struct s3_file *f = file_of(read);
    struct s3_session *b = f->b;
    bool whole = f->bytes && read->offset == 0 && bytes == f->bytes;
    k->rq = (struct s3_exchange){
        .b = b,
        .target = &f->target,
        .say = {.method = "GET",
                .ranged = !whole,
                .first = read->next,
                .last = read->next + bytes - 1,
                .if_match = f->etag[0] ? f->etag : NULL,
                .headers = &checked,
                .nheaders = whole && f->target.bucket ? 1 : 0},
        .small = bytes <= SMALL_BYTES,
        .repeatable = true,
        .on_head = block_head,
        .check = block_check,
        .dst = read->rest,
        .dst_bytes = bytes,
        .finished = block_end,
        .head = k->rq.head, /* memory that is used again */
        .text = k->rq.text,
    };
    /* Of an object that is to be read to its end, and not in one piece. Without memory it is not checked. */
    bool all = f->bytes && (f->all || (read->offset == 0 && read->bytes == f->bytes));
    if (all && !whole && !f->whole && f->target.bucket &&
        object_sum_new(b, &f->target, f->etag, f->bytes, object_sum_settled, f, &f->whole) < 0)
        f->all = false;
    k->read = read;
    k->offset = read->next;
    k->bytes = bytes;
    k->whole = whole;
    k->crc.kind = S3_CRC_NONE;
    read->next += bytes;
    pieces_skip(&read->rest, bytes);
    read->inside++;
    b->nblocks++;
    b->nsmall += k->rq.small;
    b->asked_bytes += bytes;
    if (read->next == read->offset + read->bytes) {
        list_remove(&read->node);
        list_push_back(&b->asked, &read->node);
    }
    request_start(&k->rq);
}

/* Starts requests while there is room. */
static void pump(struct s3_session *b)
{
    struct backend_read *read;
    if (b->ending)
        return;
    uint64_t until = throttle_until(b->throttle);
    /* What has ended waits for no pause: its timer stands at once, and comes back here. */
    if (until && !list_empty(&b->asking) && list_empty(&b->ended_ops))
        loop_timer_set(b->loop, &b->pump, until);
    /* One goes through in a pause: a read has no deadline before it has begun. */
    while ((!until || !b->nblocks) && b->nblocks < (unsigned)throttle_limit(b->throttle, b->max_blocks) &&
           (read = list_first(&b->asking, struct backend_read, node))) {
        uint64_t bytes = block_bytes(b, read);
        if (bytes > SMALL_BYTES && b->nblocks - b->nsmall >= b->config.connections)
            return; /* a block that only waited for a connection would use up its time */
        struct block *k = block_new(b);
        if (!k && b->nblocks)
            return; /* one that ends comes back here */
        if (!k) {
            read_spoil(read, -ENOMEM, NULL);
            read_end(read);
            continue;
        }
        b->waiting_bytes -= bytes;
        block_start(k, read, bytes);
    }
}

void s3_pump_now(struct loop_timer *timer)
{
    struct s3_session *b = container_of(timer, struct s3_session, pump);
    b->ended += backend_ops_deliver(&b->ended_ops, &b->npending);
    pump(b);
    http_client_flush(b->http);
}

void s3_submit(struct backend *base, struct backend_read *read)
{
    struct s3_session *b = session_of(base);
    read->next = read->offset;
    read->left = read->bytes;
    read->rest = backend_read_place(read);
    read->inside = 0;
    read->rc = 0;
    read->why = NULL;
    list_push_back(&b->asking, &read->node);
    b->npending++;
    b->waiting_bytes += read->bytes;
    loop_timer_set(b->loop, &b->pump, 1);
}

int s3_wait(struct backend *base, unsigned min_done, int timeout_ms)
{
    struct s3_session *b = session_of(base);
    uint64_t before = b->ended, end = timeout_ms < 0 ? 0 : clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    const atomic_bool *cancelled = b->config.cancelled;
    if (!b->npending) { /* a list may be under way, from whose callback we are called: its deadlines go on */
        int rc = loop_turn(b->loop, 0);
        if (rc < 0)
            return rc;
    }
    while (b->npending && b->ended - before < min_done && !b->woken) {
        int ms = clock_poll_ms(end);
        int rc = loop_turn(b->loop, cancelled && (ms < 0 || ms > CANCEL_MS) ? CANCEL_MS : ms);
        if (rc < 0)
            return rc;
        if (cancelled && atomic_load(cancelled))
            return -ECANCELED;
        if (end && clock_now_ns() >= end)
            break;
    }
    b->woken = false;
    return (int)(b->ended - before);
}

static void woken(void *arg)
{
    ((struct s3_session *)arg)->woken = true;
}

void s3_wake(struct backend *base)
{
    struct s3_session *b = session_of(base);
    while (loop_post(b->loop, woken, b) < 0)
        usleep(1000); /* out of memory: retry, as a waiting thread must stop */
}

void s3_cancel(struct backend *base, struct backend_read *read)
{
    struct s3_session *b = session_of(base);
    struct s3_file *f = file_of(read);
    f->last = f->last == read ? NULL : f->last;
    /* First nothing more of it is asked for: others' requests may end in here, and make room. */
    b->waiting_bytes -= read->offset + read->bytes - read->next;
    read->next = read->offset + read->bytes;
    list_remove(&read->node);
    struct list *node = b->requests.next;
    while (node != &b->requests) {
        struct s3_exchange *rq = container_of(node, struct s3_exchange, node);
        node = node->next;
        if (rq->finished != block_end || container_of(rq, struct block, rq)->read != read)
            continue;
        struct block *k = container_of(rq, struct block, rq);
        request_cancel(rq);
        block_free(b, k);
        node = b->requests.next; /* other requests may have ended during that */
    }
    free(read->why);
    read->why = NULL;
    b->npending--;
    loop_timer_set(b->loop, &b->pump, 1); /* others may have waited for its place */
}

struct waited {
    struct backend_read read;
    struct leat_error err;
    bool over;
};

static void waited_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct waited *w = container_of(read, struct waited, read);
    if (err)
        w->err = *err;
    w->over = true;
}

int64_t s3_pread(struct backend *base, struct backend_file *file, void *dst, uint64_t bytes, uint64_t offset,
                 struct leat_error *err)
{
    struct s3_session *b = session_of(base);
    uint64_t is = container_of(file, struct s3_file, base)->bytes;
    if (is && offset >= is)
        return 0;
    if (is)
        bytes = MIN(bytes, is - offset);
    if (bytes == 0)
        return 0;
    struct waited w = {
        .read = {.file = file, .offset = offset, .bytes = bytes, .dst = dst, .done = waited_done}};
    s3_submit(base, &w.read);
    int rc = session_run(b, &w.over, err);
    if (rc < 0) {
        s3_cancel(base, &w.read);
        return rc;
    }
    if (w.read.rc < 0 && err)
        *err = w.err;
    return w.read.rc < 0 ? w.read.rc : (int64_t)bytes;
}

/* --- the end ----------------------------------------------------------------------------------------------------------- */

void s3_free(struct backend *base)
{
    struct s3_session *b = session_of(base);
    struct s3_exchange *rq;
    struct leat_error err;
    error_set(&err, -ECANCELED, "the session was closed");
    b->ending = true; /* nothing new is begun */
    while ((rq = list_first(&b->requests, struct s3_exchange, node))) {
        request_cancel(rq);
        rq->finished(rq, -ECANCELED, &err);
    }
    struct backend_read *read;
    while ((read = list_first(&b->asking, struct backend_read, node))) {
        read_spoil(read, -ECANCELED, &err);
        read_end(read);
    }
    backend_ops_deliver(&b->ended_ops, &b->npending);
    if (b->loop)
        loop_timer_clear(&b->pump);
    http_client_free(b->http);
    if (b->loop)
        loop_turn(b->loop, 0); /* a late answer of the resolver frees its memory */
    loop_free(b->loop);
    struct block *k;
    while ((k = list_first(&b->free_blocks, struct block, node))) {
        list_remove(&k->node);
        request_fini(&k->rq);
        free(k);
    }
    struct bucket *bucket;
    while ((bucket = list_first(&b->buckets, struct bucket, node))) {
        list_remove(&bucket->node);
        sigv4_key_wipe(&bucket->key);
        free(bucket);
    }
    throttle_unref(b->throttle);
    credentials_fini(&b->credentials);
    aws_settings_fini(&b->settings);
    free(b->profile);
    free(b);
}
