/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.c: pieces to the kernel.
 *
 * Happy path: as many pieces of memory as stand together go with one sendmsg, with MSG_MORE where a file follows, so that a head shares its
 * segment with the first bytes of the body; files go by sendfile, but for a short one behind a head, which is copied along. With TLS in the kernel files go the same way; without it, records of
 * 16 KiB are gathered from memory and files, so that a head and a short body are one record.
 * Failure modes: a full socket (0, and the link waits); a file that became shorter (LEAT_CORRUPT: the length was promised, the connection
 * has to go); a peer that went (LEAT_PEER_GONE).
 * Invariants: piece_at counts pieces that are out whole, p.bytes of the one at work what is left of it. A record that OpenSSL has taken but
 * not sent is gathered again from the same place: the bytes are the same, and it only looks at how many they are.
 */
#include "serve/http/server_internal.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#define RECORD    (16 * KIB)
#define IOV       16u
#define FILE_STEP MIB

bool output_add(struct exchange *ex, const struct http_piece *piece, bool framing)
{
    if (!ex->pieces) {
        ex->pieces = ex->inline_pieces;
        ex->pieces_cap = PIECES_INLINE;
    }
    if (ex->npieces == ex->pieces_cap) {
        uint64_t cap = ex->pieces_cap * 2ull;
        bool moved = ex->pieces != ex->inline_pieces;
        struct out_piece *pieces = reallocarray(moved ? ex->pieces : NULL, cap, sizeof(*pieces));
        if (!pieces)
            return false;
        if (!moved)
            memcpy(pieces, ex->inline_pieces, sizeof(ex->inline_pieces));
        ex->pieces = pieces;
        ex->pieces_cap = (unsigned)cap;
    }
    ex->pieces[ex->npieces++] = (struct out_piece){*piece, framing};
    return true;
}

/* `n` more bytes, from the piece at work on, are with the kernel. */
static void moved(struct http_link *link, size_t n)
{
    struct exchange *ex = link->ex;
    link->bytes_out += n;
    bump(&link->door->stats.bytes_out, n);
    while (n || (ex->piece_at < ex->npieces && ex->pieces[ex->piece_at].p.bytes == 0)) {
        struct out_piece *o = &ex->pieces[ex->piece_at];
        uint64_t part = MIN((uint64_t)n, o->p.bytes);
        if (o->p.data)
            o->p.data = (const char *)o->p.data + part;
        o->p.at += part;
        o->p.bytes -= part;
        n -= part;
        if (!o->framing)
            ex->req.sent_bytes += part;
        if (o->p.bytes == 0) {
            ex->piece_at++;
            ex->warm_until = 0;
        }
    }
}

static int failed(int err)
{
    if (err == EAGAIN || err == EWOULDBLOCK || err == EINTR || err == ENOBUFS)
        return 0;
    return err == EIO ? LEAT_CORRUPT : LEAT_PEER_GONE;
}

/* 1: something went; 0: not now; negative: never. */
static int send_memory(struct http_link *link, size_t *ret_moved)
{
    struct exchange *ex = link->ex;
    struct iovec iov[IOV];
    unsigned n = 0, at = ex->piece_at;
    size_t bytes = 0;
    for (; at < ex->npieces && ex->pieces[at].p.data && n < IOV && bytes < FILE_STEP; at++) {
        size_t len = (size_t)MIN(ex->pieces[at].p.bytes, (uint64_t)FILE_STEP);
        iov[n++] = (struct iovec){(void *)ex->pieces[at].p.data, len};
        bytes += len;
        if (len < ex->pieces[at].p.bytes)
            break;
    }
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (at < ex->npieces ? MSG_MORE : 0);
    ssize_t rc = sendmsg(link->source.fd, &msg, flags);
    if (rc < 0)
        return failed(errno);
    moved(link, (size_t)rc);
    *ret_moved += (size_t)rc;
    return (size_t)rc < bytes ? 0 : 1;
}

/*
 * Memory and a short file behind it, all that is left: one read of the page cache and one sendmsg, where looking whether the file is there,
 * sending the head and a sendfile cost three, and a splice of pages. -EAGAIN: that is not how it is; the usual way goes.
 */
static int send_short(struct http_link *link, size_t *ret_moved)
{
    struct exchange *ex = link->ex;
    if (ex->npieces - ex->piece_at != 2 || ex->warming)
        return -EAGAIN;
    const struct http_piece *memory = &ex->pieces[ex->piece_at].p, *file = &ex->pieces[ex->piece_at + 1].p;
    if (!memory->data || file->data || memory->bytes > SCRATCH || file->bytes > SCRATCH)
        return -EAGAIN;
    struct iovec iov[2] = {{(void *)memory->data, (size_t)memory->bytes},
                           {link->door->scratch, (size_t)file->bytes}};
    if (preadv2(file->fd, &iov[1], 1, (off_t)file->at, RWF_NOWAIT) != (ssize_t)file->bytes)
        return -EAGAIN;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    ssize_t rc = sendmsg(link->source.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (rc < 0)
        return failed(errno);
    moved(link, (size_t)rc);
    *ret_moved += (size_t)rc;
    return (size_t)rc < iov[0].iov_len + iov[1].iov_len ? 0 : 1;
}

static int send_file(struct http_link *link, size_t *ret_moved)
{
    struct http_piece *p = &link->ex->pieces[link->ex->piece_at].p;
    if (!warm_ready(link->ex, p))
        return 0;
    off_t at = (off_t)p->at;
    size_t len = (size_t)MIN(p->bytes, (uint64_t)FILE_STEP);
    ssize_t rc = sendfile(link->source.fd, p->fd, &at, len);
    if (rc < 0)
        return failed(errno);
    if (rc == 0)
        return LEAT_CORRUPT;
    moved(link, (size_t)rc);
    *ret_moved += (size_t)rc;
    return 1; /* a short one may be the file's doing: the next call tells */
}

/* The next bytes of all pieces, up to a record, where they lie in one place already or in the door's scratch. Negative: the file. */
static int gather(struct http_link *link, const void **ret_data, size_t *ret_len)
{
    struct exchange *ex = link->ex;
    const struct http_piece *first = &ex->pieces[ex->piece_at].p;
    *ret_len = 0;
    if (first->data && first->bytes >= RECORD) {
        *ret_data = first->data;
        *ret_len = RECORD;
        return 1;
    }
    for (unsigned i = ex->piece_at; i < ex->npieces && *ret_len < RECORD; i++) {
        const struct http_piece *p = &ex->pieces[i].p;
        size_t len = (size_t)MIN(p->bytes, RECORD - *ret_len);
        if (p->data) {
            memcpy(link->door->scratch + *ret_len, p->data, len);
            *ret_len += len;
            continue;
        }
        if (i == ex->piece_at && !warm_ready(ex, p))
            return 0;
        for (size_t got = 0; got < len;) {
            ssize_t rc = pread(p->fd, link->door->scratch + *ret_len + got, len - got, (off_t)(p->at + got));
            if (rc < 0 && errno == EINTR)
                continue;
            if (rc <= 0)
                return LEAT_CORRUPT;
            got += (size_t)rc;
        }
        *ret_len += len;
    }
    *ret_data = link->door->scratch;
    return 1;
}

static int send_tls(struct http_link *link, size_t *ret_moved)
{
    struct http_piece *p = &link->ex->pieces[link->ex->piece_at].p;
    ssize_t n = -EOPNOTSUPP;
    if (!p->data && p->bytes >= RECORD) {
        if (!warm_ready(link->ex, p))
            return 0;
        n = link_tls_sendfile(link, p->fd, p->at, (size_t)MIN(p->bytes, (uint64_t)FILE_STEP));
        if (n == 0)
            return LEAT_CORRUPT;
    }
    if (n == -EOPNOTSUPP) {
        const void *data;
        size_t len;
        int rc = gather(link, &data, &len);
        if (rc <= 0)
            return rc;
        n = link_tls_write(link, data, len);
    }
    if (n < 0)
        return n == -EAGAIN ? 0 : LEAT_PEER_GONE;
    moved(link, (size_t)n);
    *ret_moved += (size_t)n;
    return 1;
}

int output_send(struct http_link *link, size_t *ret_moved)
{
    struct exchange *ex = link->ex;
    int rc = 1;
    while (rc == 1 && ex->piece_at < ex->npieces && *ret_moved < TURN_BYTES) {
        if (link->ssl)
            rc = send_tls(link, ret_moved);
        else if ((rc = send_short(link, ret_moved)) != -EAGAIN)
            continue;
        else if (ex->pieces[ex->piece_at].p.data)
            rc = send_memory(link, ret_moved);
        else
            rc = send_file(link, ret_moved);
    }
    if (rc < 0 || ex->piece_at < ex->npieces)
        return rc < 0 ? rc : 0;
    ex->npieces = ex->piece_at = 0;
    return 1;
}
