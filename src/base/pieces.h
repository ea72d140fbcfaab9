/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pieces.h: memory that need not be one piece: where bytes that are read go. A cursor, by value: what it has
 * passed is not in it any more. The memory, and the list of the pieces behind the first, belong to the caller
 * and outlive it.
 */
#ifndef BASE_PIECES_H
#define BASE_PIECES_H

#include "base/base.h"

#include <sys/uio.h>

struct pieces {
    char *at; /* [at, +left); NULL: there is no place */
    uint64_t left;
    const struct iovec *more; /* and then these; some may be empty */
    unsigned nmore;
};

static inline struct pieces pieces_one(void *at, uint64_t bytes)
{
    return (struct pieces){.at = at, .left = bytes};
}

/* So many bytes further; at most to the end. What is left then begins at `at`, also where a piece ended
 * there. */
static inline void pieces_skip(struct pieces *p, uint64_t bytes)
{
    while (bytes >= p->left && p->nmore) {
        bytes -= p->left;
        p->at = p->more->iov_base;
        p->left = p->more->iov_len;
        p->more++;
        p->nmore--;
    }
    bytes = MIN(bytes, p->left);
    p->at = bytes ? p->at + bytes : p->at; /* which may be NULL */
    p->left -= bytes;
}

static inline struct pieces pieces_of(const struct iovec *iov, unsigned n)
{
    struct pieces p = n ? (struct pieces){iov->iov_base, iov->iov_len, iov + 1, n - 1} : (struct pieces){0};
    pieces_skip(&p, 0);
    return p;
}

/* The next ones in one piece, at most so many, which it passes. 0: none is left. */
static inline uint64_t pieces_next(struct pieces *p, uint64_t most, char **ret_at)
{
    pieces_skip(p, 0);
    uint64_t n = MIN(p->left, most);
    *ret_at = p->at;
    pieces_skip(p, n);
    return n;
}

/* Copies there, and passes it. There is room for it. */
static inline void pieces_put(struct pieces *p, const void *data, uint64_t bytes)
{
    while (bytes) {
        char *at;
        uint64_t n = pieces_next(p, bytes, &at);
        assert(n);
        memcpy(at, data, n);
        data = (const char *)data + n;
        bytes -= n;
    }
}

/* The next ones, at most so many bytes and `max` pieces, for readv: how many pieces, and of how many bytes.
 * */
static inline unsigned pieces_iov(struct pieces p, uint64_t most, struct iovec *iov, unsigned max,
                                  size_t *ret_bytes)
{
    unsigned n = 0;
    size_t bytes = 0;
    char *at;
    while (n < max && (iov[n].iov_len = pieces_next(&p, most - bytes, &at))) {
        iov[n].iov_base = at;
        bytes += iov[n++].iov_len;
    }
    *ret_bytes = bytes;
    return n;
}

#endif
