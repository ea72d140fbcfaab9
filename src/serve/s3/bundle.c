/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bundle.c: a cursor over parts, each of which is a header (of tar), its payload, and what fills up its last block.
 *
 *   HEADER ─▶ PAYLOAD (text | stored bytes | inflated) ─▶ PADDING ─▶ next part … ─▶ the archive's end
 *
 * Payload of up to COPY_BYTES goes through the buffer with its header, since a system call each would cost more than the copy; more leaves
 * from the file. Failure modes: what the store and zip_stream say; the message names the object. Invariants: the sum of all pieces is
 * bundle_bytes; an instalment holds at most BUNDLE_PIECES pieces and CHECK_BYTES bytes of files, so that a peer that reads slowly does not
 * make us verify more than it takes.
 */
#include "serve/s3/bundle.h"

#include <stdio.h>

#include "objects/objects.h"
#include "wire/archive/tar_put.h"
#include "wire/archive/zip.h"

#define COPY_BYTES  (32 * KIB)
#define CHECK_BYTES (4 * MIB)
#define ZIP_IN      (32 * KIB) /* of stored bytes, at the buffer's end while something is inflated */

enum phase { PHASE_HEADER, PHASE_PAYLOAD, PHASE_PADDING, PHASE_END, PHASE_OVER };

struct part {
    struct store_obj *obj;
    char *text;
    const char *prefix, *path, *suffix, *opaque;
    uint64_t at, stored, bytes; /* of the payload: in the object, there, as it comes out */
    uint64_t first, count;
    int64_t mtime_ns;
    uint32_t crc;
    bool deflated, crc_wanted; /* a member of a ZIP archive, all of it: its CRC is compared */
};

struct bundle {
    struct objects *objects;
    bool tar;
    unsigned n, cap;
    uint64_t bytes;
    /* where we are */
    unsigned i;
    enum phase phase;
    uint64_t done; /* of the phase */
    struct zip_stream *zip;
    uint64_t zip_in, zip_out; /* so far */
    /* of this instalment */
    struct http_piece pieces[BUNDLE_PIECES];
    unsigned npieces;
    uint64_t used, from_files;
    uint8_t *buffer;
    char header[TAR_PUT_MAX]; /* of this part, while it does not fit */
    size_t header_bytes;
    struct part parts[];
};

uint64_t bundle_memory_bytes(unsigned nparts)
{
    return sizeof(struct bundle) + nparts * sizeof(struct part) + BUNDLE_BUFFER_BYTES + 48 * KIB; /* zlib's */
}

int bundle_new(struct objects *objects, bool tar, unsigned nparts, struct bundle **ret_bundle)
{
    struct bundle *b = calloc(1, sizeof(*b) + nparts * sizeof(struct part));
    if (!b)
        return -ENOMEM;
    b->buffer = malloc(BUNDLE_BUFFER_BYTES);
    if (!b->buffer) {
        free(b);
        return -ENOMEM;
    }
    b->objects = objects;
    b->tar = tar;
    b->cap = nparts;
    b->bytes = tar ? TAR_END_BYTES : 0;
    *ret_bundle = b;
    return 0;
}

void bundle_free(struct bundle *b)
{
    if (!b)
        return;
    for (unsigned i = 0; i < b->n; i++) {
        objects_unref(b->parts[i].obj);
        free(b->parts[i].text);
    }
    zip_stream_free(b->zip);
    free(b->buffer);
    free(b);
}

/* `name` holds the path while the entry is used. */
static struct tar_put tar_entry(const struct part *p, char name[TAR_PATH_MAX])
{
    int n = snprintf(name, TAR_PATH_MAX, "%s%s%s%s", p->prefix ? p->prefix : "", p->path,
                     p->suffix ? "/" : "", p->suffix ? p->suffix : "");
    struct tar_put e = {.path = name, .type = '0', .bytes = p->count, .mtime = p->mtime_ns / 1000000000};
    if (n < 0 || n >= (int)TAR_PATH_MAX)
        name[0] = 0; /* does not fit: no header of it is made */
    else if (p->count == 0 && name[n - 1] == '/')
        e.type = '5'; /* as tools of S3 mark a folder */
    if (p->opaque) {
        e.records[0].key = "LEAT.opaque";
        e.records[0].value = p->opaque;
        e.nrecords = 1;
    }
    return e;
}

int bundle_add(struct bundle *b, const struct bundle_part *part, struct leat_error *err)
{
    assert(b->n < b->cap);
    struct part p = {.obj = part->obj,
                     .text = part->text,
                     .prefix = part->prefix,
                     .path = part->path,
                     .suffix = part->suffix,
                     .opaque = part->opaque,
                     .first = part->first,
                     .count = part->count,
                     .mtime_ns = part->mtime_ns};
    if (part->member) {
        p.at = part->member->at;
        p.stored = part->member->stored_bytes;
        p.bytes = part->member->bytes;
        p.deflated = part->member->deflated;
        p.crc = part->member->crc;
        p.crc_wanted = part->member->has_crc && part->first == 0 && part->count == p.bytes;
    } else {
        p.bytes = p.stored = part->obj ? part->obj->info.bytes : strlen(part->text);
    }
    assert(p.first <= p.bytes && p.count <= p.bytes - p.first);
    uint64_t bytes = p.count;
    if (b->tar) {
        char name[TAR_PATH_MAX];
        struct tar_put e = tar_entry(&p, name);
        bytes = tar_put_bytes(&e);
    }
    if ((b->tar && bytes == 0) || add_overflows(b->bytes, bytes, &b->bytes) || b->bytes > INT64_MAX) {
        objects_unref(p.obj);
        free(p.text);
        return error_set(err, LEAT_INVALID, "a name of more than %u bytes, or more than 2^63 bytes in all",
                         TAR_PATH_MAX - 1);
    }
    b->parts[b->n++] = p;
    return 0;
}

uint64_t bundle_bytes(const struct bundle *b)
{
    return b->bytes;
}

/* --- an instalment ------------------------------------------------------------------------------------------------- */

/* The buffer's free room, for the piece that is filled now. */
static size_t room(const struct bundle *b)
{
    size_t end = BUNDLE_BUFFER_BYTES - (b->zip ? ZIP_IN : 0);
    return b->used < end ? (size_t)(end - b->used) : 0;
}

/* `len` bytes at the buffer's `used` belong to the body: they lengthen the piece before, or are one. False: no piece is left. */
static bool took(struct bundle *b, size_t len)
{
    const uint8_t *at = b->buffer + b->used;
    struct http_piece *last = b->npieces ? &b->pieces[b->npieces - 1] : NULL;
    if (len == 0)
        return true;
    if (last && last->data && (const uint8_t *)last->data + last->bytes == at) {
        last->bytes += len;
    } else {
        if (b->npieces == BUNDLE_PIECES)
            return false;
        b->pieces[b->npieces++] = (struct http_piece){.data = at, .fd = -1, .bytes = len};
    }
    b->used += len;
    return true;
}

/* As much as fits of [data + done, len). */
static void put(struct bundle *b, const void *data, uint64_t len)
{
    size_t n = MIN(len - b->done, (uint64_t)room(b));
    memcpy(b->buffer + b->used, (const uint8_t *)data + b->done, n);
    if (took(b, n))
        b->done += n;
}

static void next_phase(struct bundle *b)
{
    b->done = 0;
    if (b->phase == PHASE_PADDING || (b->phase == PHASE_PAYLOAD && !b->tar)) {
        b->i++;
        b->phase = b->i < b->n ? PHASE_HEADER : b->tar ? PHASE_END : PHASE_OVER;
    } else {
        b->phase++;
    }
    if (b->phase == PHASE_HEADER && !b->tar)
        b->phase = PHASE_PAYLOAD;
}

static void step_header(struct bundle *b, const struct part *p)
{
    if (b->done == 0) {
        char name[TAR_PATH_MAX];
        struct tar_put e = tar_entry(p, name);
        b->header_bytes = tar_put_header_bytes(&e);
        tar_put_header(&e, b->header);
    }
    put(b, b->header, b->header_bytes);
    if (b->done == b->header_bytes)
        next_phase(b);
}

static void step_zeros(struct bundle *b, uint64_t bytes)
{
    static const char zeros[TAR_END_BYTES];
    put(b, zeros, bytes);
    if (b->done == bytes)
        next_phase(b);
}

/* The rest of the payload, or a window of it: through the buffer if it is short, else from the file. */
static int step_stored(struct bundle *b, const struct part *p, struct leat_error *err)
{
    uint64_t left = p->count - b->done, at = p->at + p->first + b->done;
    int rc = 0;
    if (p->count <= COPY_BYTES) {
        size_t n = MIN(left, (uint64_t)room(b));
        rc = n ? objects_read(b->objects, p->obj, at, b->buffer + b->used, n, err) : 0;
        if (rc == 0 && took(b, n))
            b->done += n;
    } else if (b->npieces < BUNDLE_PIECES && b->from_files < CHECK_BYTES) {
        uint64_t n = MIN(left, CHECK_BYTES - b->from_files);
        uint64_t block_end = align_down(at + n, STORE_BLOCK); /* they are verified whole: end with one */
        if (n < left && block_end > at)
            n = block_end - at;
        rc = objects_check(b->objects, p->obj, at, n, err);
        if (rc == 0)
            b->pieces[b->npieces++] =
                (struct http_piece){.fd = p->obj->fd, .at = p->obj->offset + at, .bytes = n};
        b->from_files += n;
        b->done += rc == 0 ? n : 0;
    }
    if (rc == 0 && b->done == p->count)
        next_phase(b);
    return rc;
}

/* Output before `first` is dropped. */
static void keep_inflated(struct bundle *b, const struct part *p, size_t made)
{
    uint64_t from = MAX(b->zip_out, p->first), to = MIN(b->zip_out + made, p->first + p->count);
    if (from < to) {
        uint8_t *at = b->buffer + b->used;
        memmove(at, at + (from - b->zip_out), to - from);
        if (took(b, to - from)) /* room for a piece was seen to */
            b->done += to - from;
    }
    b->zip_out += made;
}

/* From the payload's begin on, whatever range is wanted, and not beyond the range's end; the CRC is compared where that is the end of all. */
static int step_zip(struct bundle *b, const struct part *p, struct leat_error *err)
{
    struct zip_member m = {.method = p->deflated ? ZIP_DEFLATED : ZIP_STORED,
                           .crc = p->crc,
                           .bytes = p->bytes,
                           .stored_bytes = p->stored};
    uint8_t *in = b->buffer + BUNDLE_BUFFER_BYTES - ZIP_IN;
    if (!b->zip) {
        if (b->used > BUNDLE_BUFFER_BYTES - 2 * ZIP_IN)
            return 0; /* in the next instalment, which has room */
        int rc = zip_stream_new(&m, &b->zip);
        if (rc < 0)
            return rc;
        b->zip_in = b->zip_out = 0;
    }
    while (room(b) > 0 && b->npieces < BUNDLE_PIECES) {
        size_t n = MIN(p->stored - b->zip_in, (uint64_t)ZIP_IN), used, made;
        int rc = n ? objects_read(b->objects, p->obj, p->at + b->zip_in, in, n, err) : 0;
        if (rc < 0)
            return rc;
        rc = zip_stream_feed(b->zip, in, n, &used, b->buffer + b->used, room(b), &made, err);
        if (rc < 0)
            return rc == LEAT_CORRUPT && err ? (err->code = LEAT_INVALID) : rc;
        b->zip_in += used;
        keep_inflated(b, p, made);
        if (rc == 1 || (b->done == p->count && p->first + p->count < p->bytes)) {
            zip_stream_free(TAKE_PTR(b->zip));
            next_phase(b);
            return 0;
        }
    }
    return 0;
}

static int step_payload(struct bundle *b, struct leat_error *err)
{
    const struct part *p = &b->parts[b->i];
    if (p->deflated || p->crc_wanted)
        return step_zip(b, p, err);
    if (p->obj)
        return step_stored(b, p, err);
    put(b, p->text + p->first, p->count);
    if (b->done == p->count)
        next_phase(b);
    return 0;
}

int bundle_check(struct objects *objects, struct store_obj *obj, const struct member *member,
                 struct leat_error *err)
{
    struct bundle *b;
    struct bundle_part part = {
        .obj = objects_ref(obj), .member = member, .count = member->bytes, .path = "the member"};
    const struct http_piece *pieces;
    unsigned n;
    bool last = false;
    int rc = bundle_new(objects, false, 1, &b);
    if (rc < 0) {
        objects_unref(part.obj);
        return error_set(err, rc, "out of memory");
    }
    rc = bundle_add(b, &part, err);
    while (rc == 0 && !last)
        rc = bundle_step(b, &pieces, &n, &last, err);
    bundle_free(b);
    return rc;
}

int bundle_step(struct bundle *b, const struct http_piece **ret_pieces, unsigned *ret_n, bool *ret_last,
                struct leat_error *err)
{
    b->npieces = 0;
    b->used = b->from_files = 0;
    if (b->phase == PHASE_HEADER && !b->tar)
        b->phase = b->n ? PHASE_PAYLOAD : PHASE_OVER;
    if (b->phase == PHASE_HEADER && b->n == 0)
        b->phase = PHASE_END;
    for (bool moved = true; moved && b->phase != PHASE_OVER;) {
        enum phase phase = b->phase;
        unsigned i = b->i;
        uint64_t done = b->done, in = b->zip_in;
        int rc = 0;
        if (phase == PHASE_HEADER)
            step_header(b, &b->parts[b->i]);
        else if (phase == PHASE_PAYLOAD)
            rc = step_payload(b, err);
        else
            step_zeros(b, phase == PHASE_END ? TAR_END_BYTES : tar_put_padding(b->parts[b->i].count));
        const struct part *p = &b->parts[i];
        if (rc < 0)
            return error_prefix(err, rc, "%.100s%s%.100s", p->path, p->suffix ? "/" : "",
                                p->suffix ? p->suffix : "");
        moved = phase != b->phase || i != b->i || done != b->done || in != b->zip_in;
    }
    *ret_pieces = b->pieces;
    *ret_n = b->npieces;
    *ret_last = b->phase == PHASE_OVER;
    return 0;
}
