/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip_stream.c: a member's payload on its way out. zlib inflates, in pieces of any size: libdeflate, which is
 * faster, needs all of a member in memory at once, twice.
 *
 * Invariants: never more than the directory's bytes come out, and success needs a matching CRC.
 */
#include <libdeflate.h>
#include <zlib.h>

#include "wire/archive/zip.h"

struct zip_stream {
    uint64_t in_left, out_left;
    uint32_t crc, want_crc;
    bool deflated, over; /* over: deflate's own end has come */
    z_stream z;
};

int zip_stream_new(const struct zip_member *m, struct zip_stream **ret_stream)
{
    int rc = zip_member_readable(m, NULL);
    if (rc < 0)
        return rc;
    struct zip_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->in_left = m->stored_bytes;
    s->out_left = m->bytes;
    s->want_crc = m->crc;
    s->deflated = m->method == ZIP_DEFLATED;
    if (s->deflated && inflateInit2(&s->z, -MAX_WBITS) != Z_OK) {
        free(s);
        return -ENOMEM;
    }
    *ret_stream = s;
    return 0;
}

void zip_stream_free(struct zip_stream *s)
{
    if (s && s->deflated)
        inflateEnd(&s->z);
    free(s);
}

/* One call of zlib, which may stop for want of either. */
static int inflate_once(struct zip_stream *s, const uint8_t *in, size_t in_len, size_t *ret_used, void *out,
                        size_t cap, size_t *ret_made, struct leat_error *err)
{
    s->z.next_in = (Bytef *)(uintptr_t)in;
    s->z.avail_in = (unsigned)MIN(in_len, (size_t)UINT32_MAX);
    s->z.next_out = out;
    s->z.avail_out = (unsigned)MIN(cap, (size_t)UINT32_MAX);
    unsigned given = s->z.avail_in, room = s->z.avail_out;
    int rc = inflate(&s->z, Z_NO_FLUSH);
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return rc == Z_MEM_ERROR ? -ENOMEM
                                 : error_set(err, LEAT_CORRUPT, "the member's deflated bytes are damaged");
    s->over = rc == Z_STREAM_END;
    *ret_used += given - s->z.avail_in;
    *ret_made += room - s->z.avail_out;
    return 0;
}

static int inflate_some(struct zip_stream *s, const void *in, size_t in_len, size_t *ret_used, void *out,
                        size_t cap, size_t *ret_made, struct leat_error *err)
{
    int rc = cap ? inflate_once(s, in, in_len, ret_used, out, cap, ret_made, err) : 0;
    if (rc < 0 || s->over || *ret_made < s->out_left)
        return rc;
    /* All that the directory tells of is out: what follows is deflate's end, or a byte too many. */
    uint8_t beyond;
    size_t more = 0;
    rc = inflate_once(s, (const uint8_t *)in + *ret_used, in_len - *ret_used, ret_used, &beyond, 1, &more,
                      err);
    if (rc == 0 && more)
        return error_set(err, LEAT_CORRUPT, "the member is longer than in the directory");
    return rc;
}

int zip_stream_feed(struct zip_stream *s, const void *in, size_t in_len, size_t *ret_used, void *out,
                    size_t cap, size_t *ret_made, struct leat_error *err)
{
    in_len = MIN((uint64_t)in_len, s->in_left);
    cap = MIN((uint64_t)cap, s->out_left);
    *ret_used = *ret_made = 0;
    if (s->deflated && !s->over) {
        int rc = inflate_some(s, in, in_len, ret_used, out, cap, ret_made, err);
        if (rc < 0)
            return rc;
    } else if (!s->deflated) {
        *ret_used = *ret_made = MIN(in_len, cap);
        if (*ret_made)
            memcpy(out, in, *ret_made);
    }
    s->crc = libdeflate_crc32(s->crc, out, *ret_made);
    s->in_left -= *ret_used;
    s->out_left -= *ret_made;
    bool ended = s->deflated ? s->over : s->out_left == 0;
    if (ended ? s->in_left || s->out_left : s->in_left == 0 && in_len == 0 && *ret_made == 0 && cap)
        return error_set(err, LEAT_CORRUPT, "the member does not end as in the directory");
    if (!ended && s->in_left == 0 && s->out_left == 0)
        return error_set(err, LEAT_CORRUPT, "the member's deflated bytes have no end");
    if (!ended)
        return 0;
    if (s->crc != s->want_crc)
        return error_set(err, LEAT_CORRUPT, "the member's CRC-32 is wrong: damaged in the archive");
    return 1;
}
