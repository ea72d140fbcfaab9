/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.c: pieces to the kernel.
 *
 * Happy path: as many pieces of memory as stand together go with one sendmsg, with MSG_MORE where a file follows, so that a head shares its
 * segment with the first bytes of the body; files go by sendfile, but for a short one behind a head, which is copied along. With TLS in the kernel
 * files go the same way; without it, records of 16 KiB are gathered from memory and files, so that a head and a short body are one record.
 * Failure modes: a full socket (0, and the conn waits); a file that became shorter (LEAT_CORRUPT: the length was promised, the connection
 * has to go); a peer that went (LEAT_PEER_GONE).
 * Invariants: piece_at counts pieces that are out whole, p.bytes of the one at work what is left of it. A record that OpenSSL has taken but
 * not sent is gathered again from the same place and as long (`record`): fewer bytes would be an error to it.
 */
#include "http/server/server_internal.h"

#include <linux/sockios.h>
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
static void moved(struct http_server_conn *conn, size_t n)
{
    struct exchange *ex = conn->ex;
    conn->bytes_out += n;
    bump(&conn->reactor->stats.bytes_out, n);
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
static int send_memory(struct http_server_conn *conn, size_t *ret_moved)
{
    struct exchange *ex = conn->ex;
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
    ssize_t rc = sendmsg(conn->source.fd, &msg, flags);
    if (rc < 0)
        return failed(errno);
    moved(conn, (size_t)rc);
    *ret_moved += (size_t)rc;
    return (size_t)rc < bytes ? 0 : 1;
}

/*
 * Memory and a short file behind it, all that is left: one read of the page cache and one sendmsg, where looking whether the file is there,
 * sending the head and a sendfile cost three, and a splice of pages. -EAGAIN: that is not how it is; the usual way goes.
 */
static int send_short(struct http_server_conn *conn, size_t *ret_moved)
{
    struct exchange *ex = conn->ex;
    if (ex->npieces - ex->piece_at != 2 || ex->warming)
        return -EAGAIN;
    const struct http_piece *memory = &ex->pieces[ex->piece_at].p, *file = &ex->pieces[ex->piece_at + 1].p;
    if (!memory->data || file->data || memory->bytes > SCRATCH || file->bytes > SCRATCH)
        return -EAGAIN;
    struct iovec iov[2] = {{(void *)memory->data, (size_t)memory->bytes},
                           {conn->reactor->scratch, (size_t)file->bytes}};
    if (preadv2(file->fd, &iov[1], 1, (off_t)file->at, RWF_NOWAIT) != (ssize_t)file->bytes)
        return -EAGAIN;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    ssize_t rc = sendmsg(conn->source.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (rc < 0)
        return failed(errno);
    moved(conn, (size_t)rc);
    *ret_moved += (size_t)rc;
    return (size_t)rc < iov[0].iov_len + iov[1].iov_len ? 0 : 1;
}

static int send_file(struct http_server_conn *conn, size_t *ret_moved)
{
    struct http_piece *p = &conn->ex->pieces[conn->ex->piece_at].p;
    if (!warm_ready(conn->ex, p))
        return 0;
    off_t at = (off_t)p->at;
    size_t len = (size_t)MIN(p->bytes, (uint64_t)FILE_STEP);
    ssize_t rc = sendfile(conn->source.fd, p->fd, &at, len);
    if (rc < 0)
        return failed(errno);
    if (rc == 0)
        return LEAT_CORRUPT;
    moved(conn, (size_t)rc);
    *ret_moved += (size_t)rc;
    return 1; /* the file may cause a short one: the next call decides */
}

/* Of a file, without waiting for its disk where `now`: how many bytes; -EAGAIN: none is in the page cache; LEAT_CORRUPT: there are none. */
static ssize_t read_file(const struct http_piece *p, void *dst, size_t len, bool now)
{
    struct iovec iov = {dst, len};
    ssize_t n;
    do {
        n = preadv2(p->fd, &iov, 1, (off_t)p->at, now ? RWF_NOWAIT : 0);
        if (n < 0 && errno == EOPNOTSUPP && now) /* a file system that cannot say */
            n = preadv2(p->fd, &iov, 1, (off_t)p->at, 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return -EAGAIN;
    return n > 0 ? n : LEAT_CORRUPT;
}

/*
 * The next bytes of all pieces, up to a record, where they lie in one place already or in the reactor's scratch. 0: of a file that is being fetched; what
 * stands before it does not wait for it. Negative: the file. A record that is gathered again has the length it had, and waits for its file
 * rather than becoming shorter.
 */
static int gather(struct http_server_conn *conn, const void **ret_data, size_t *ret_len)
{
    struct exchange *ex = conn->ex;
    const struct http_piece *first = &ex->pieces[ex->piece_at].p;
    size_t want = ex->record ? ex->record : RECORD, have = 0;
    bool now = !ex->record && conn->reactor->server->config.workers;
    *ret_data = conn->reactor->scratch;
    if (first->data && first->bytes >= want) {
        *ret_data = first->data;
        *ret_len = want;
        return 1;
    }
    for (unsigned i = ex->piece_at; i < ex->npieces && have < want; i++) {
        const struct http_piece *p = &ex->pieces[i].p;
        ssize_t len = (ssize_t)MIN(p->bytes, want - have), n = len;
        char *dst = conn->reactor->scratch + have;
        if (p->data)
            memcpy(dst, p->data, (size_t)len);
        else
            n = read_file(p, dst, (size_t)len, now);
        if (n == -EAGAIN && have)
            break;
        if (n == -EAGAIN && !warm_ready(ex, p))
            return 0;
        if (n == -EAGAIN)
            n = read_file(p, dst, (size_t)len, false);
        if (n < 0)
            return LEAT_CORRUPT;
        have += (size_t)n;
        if (n < len)
            break;
    }
    *ret_len = have;
    return have < ex->record ? LEAT_CORRUPT : 1;
}

static int send_tls(struct http_server_conn *conn, size_t *ret_moved)
{
    struct exchange *ex = conn->ex;
    struct http_piece *p = &ex->pieces[ex->piece_at].p;
    ssize_t n;
    if (!p->data && p->bytes >= RECORD && sconn_tls_in_kernel(conn)) {
        if (!warm_ready(ex, p))
            return 0;
        n = sconn_tls_sendfile(conn, p->fd, p->at, (size_t)MIN(p->bytes, (uint64_t)FILE_STEP));
        if (n == 0)
            return LEAT_CORRUPT;
    } else {
        const void *data;
        size_t len;
        int rc = gather(conn, &data, &len);
        if (rc <= 0)
            return rc;
        n = sconn_tls_write(conn, data, len);
        ex->record = n == -EAGAIN ? len : 0;
    }
    if (n < 0)
        return n == -EAGAIN ? 0 : LEAT_PEER_GONE;
    moved(conn, (size_t)n);
    *ret_moved += (size_t)n;
    return 1;
}

int output_send(struct http_server_conn *conn, size_t *ret_moved)
{
    struct exchange *ex = conn->ex;
    int rc = 1;
    while (rc == 1 && ex->piece_at < ex->npieces && *ret_moved < QUANTUM_BYTES) {
        if (conn->ssl)
            rc = send_tls(conn, ret_moved);
        else if ((rc = send_short(conn, ret_moved)) != -EAGAIN)
            continue;
        else if (ex->pieces[ex->piece_at].p.data)
            rc = send_memory(conn, ret_moved);
        else
            rc = send_file(conn, ret_moved);
    }
    if (rc < 0 || ex->piece_at < ex->npieces)
        return rc < 0 ? rc : 0;
    ex->npieces = ex->piece_at = 0;
    return 1;
}
