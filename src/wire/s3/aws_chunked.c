/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: a line says how long a chunk is and how it is signed; its bytes are hashed and handed on; behind them the signature is
 * compared. The chunk of no bytes is the last; all that follows are trailers, and the body ends with them.
 * Invariants: lines and trailers have room of their own, so a body of any length takes no memory; after a failure nothing is handed on.
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* as in sigv4.c */
#include "wire/s3/aws_chunked.h"

#include "base/hex.h"

#include <openssl/crypto.h>
#include <strings.h>

static int fail(struct aws_chunked *c, int rc, const char *why)
{
    c->failed = rc;
    c->why = why;
    return rc;
}

void aws_chunked_init(struct aws_chunked *c, uint64_t decoded_bytes, bool trailers,
                      const struct sigv4_key *key, const char *when, const char *signature)
{
    memset(c, 0, offsetof(struct aws_chunked, line));
    c->decoded_bytes = decoded_bytes;
    c->has_trailers = trailers;
    c->is_signed = key != NULL;
    c->trailers[0] = 0;
    if (key) {
        c->key = *key;
        memcpy(c->when, when, SIGV4_TIME - 1);
        memcpy(c->previous, signature, SIGV4_SIGNATURE);
    }
}

void aws_chunked_fini(struct aws_chunked *c)
{
    sigv4_key_wipe(&c->key);
}

/* A line without its CR and LF: "10000" or "10000;chunk-signature=...". */
static int parse_line(struct aws_chunked *c)
{
    static const char name[] = ";chunk-signature=";
    unsigned i = 0;
    uint64_t bytes = 0;
    for (; i < c->line_len && hex_digit_any(c->line[i]) >= 0; i++) {
        if (bytes >> 56)
            return fail(c, LEAT_CORRUPT, "a chunk is too large");
        bytes = bytes << 4 | (unsigned)hex_digit_any(c->line[i]);
    }
    if (i == 0)
        return fail(c, LEAT_CORRUPT, "a chunk does not begin with its size");
    unsigned rest = c->line_len - i;
    if (!c->is_signed) {
        if (rest)
            return fail(c, LEAT_CORRUPT, "something stands behind the size of a chunk that is not signed");
    } else if (rest != sizeof(name) - 1 + SIGV4_SIGNATURE - 1 ||
               memcmp(c->line + i, name, sizeof(name) - 1) != 0) {
        return fail(c, LEAT_DENIED, "a chunk without a signature");
    } else {
        memcpy(c->expected, c->line + i + sizeof(name) - 1, SIGV4_SIGNATURE - 1);
    }
    if (bytes > c->decoded_bytes - c->got_bytes)
        return fail(c, LEAT_INVALID, "chunks of more bytes than x-amz-decoded-content-length said");
    c->left = bytes;
    c->line_len = 0;
    SHA256_Init(&c->hash);
    return 0;
}

/* All bytes of a chunk were seen. */
static int check_chunk(struct aws_chunked *c)
{
    uint8_t sum[SHA256_DIGEST_LENGTH];
    char hex[SIGV4_SIGNATURE], signature[SIGV4_SIGNATURE];
    if (!c->is_signed)
        return 0;
    SHA256_Final(sum, &c->hash);
    hex_put(hex, sum, sizeof(sum));
    int rc = sigv4_chunk(&c->key, c->when, c->previous, hex, signature);
    if (rc < 0)
        return fail(c, rc, "no hash");
    if (!sigv4_equal(signature, c->expected, SIGV4_SIGNATURE - 1))
        return fail(c, LEAT_DENIED, "the signature of a chunk does not match");
    memcpy(c->previous, signature, SIGV4_SIGNATURE);
    return 0;
}

static int feed_line(struct aws_chunked *c, const char **at, const char *end)
{
    while (*at < end) {
        char ch = *(*at)++;
        if (ch == '\n') {
            if (c->line_len == 0 || c->line[c->line_len - 1] != '\r')
                return fail(c, LEAT_CORRUPT, "a chunk's line does not end with CR LF");
            c->line_len--;
            int rc = parse_line(c);
            if (rc == 0 && c->left == 0)
                rc = check_chunk(c);
            c->state = c->left ? AWS_CHUNKED_IN_DATA : AWS_CHUNKED_IN_TRAILERS;
            return rc;
        }
        if (c->line_len == sizeof(c->line))
            return fail(c, LEAT_CORRUPT, "a chunk's line is too long");
        c->line[c->line_len++] = ch;
    }
    return 0;
}

static int feed_data(struct aws_chunked *c, const char **at, const char *end,
                     int (*sink)(void *user, const void *data, size_t len), void *user)
{
    size_t n = (size_t)MIN((uint64_t)(end - *at), c->left);
    if (c->is_signed)
        SHA256_Update(&c->hash, *at, n);
    int rc = sink(user, *at, n);
    if (rc < 0)
        return fail(c, rc, "");
    *at += n;
    c->left -= n;
    c->got_bytes += n;
    if (c->left)
        return 0;
    c->state = AWS_CHUNKED_IN_CR;
    return check_chunk(c);
}

static int feed_trailers(struct aws_chunked *c, const char **at, const char *end)
{
    size_t n = (size_t)(end - *at);
    if (n > AWS_CHUNKED_TRAILERS - c->trailers_len)
        return fail(c, LEAT_CORRUPT, "too much stands behind the last chunk");
    memcpy(c->trailers + c->trailers_len, *at, n);
    c->trailers_len += (unsigned)n;
    *at = end;
    return 0;
}

int aws_chunked_feed(struct aws_chunked *c, const void *data, size_t len,
                     int (*sink)(void *user, const void *data, size_t len), void *user)
{
    const char *at = data, *end = at + len;
    int rc = c->failed;
    while (rc == 0 && at < end) {
        switch (c->state) {
        case AWS_CHUNKED_IN_LINE:
            rc = feed_line(c, &at, end);
            break;
        case AWS_CHUNKED_IN_DATA:
            rc = feed_data(c, &at, end, sink, user);
            break;
        case AWS_CHUNKED_IN_CR:
        case AWS_CHUNKED_IN_LF:
            if (*at++ != (c->state == AWS_CHUNKED_IN_CR ? '\r' : '\n'))
                return fail(c, LEAT_CORRUPT, "no CR LF behind a chunk: it is longer than it said");
            c->state = c->state == AWS_CHUNKED_IN_CR ? AWS_CHUNKED_IN_LF : AWS_CHUNKED_IN_LINE;
            break;
        case AWS_CHUNKED_IN_TRAILERS:
            rc = feed_trailers(c, &at, end);
            break;
        }
    }
    return rc;
}

/* Trailers in place: "name:value\n" each, spaces left out, empty lines too (some clients send one between the
 * checksum and its signature). The signature's line is cut off, and compared. */
static int check_trailers(struct aws_chunked *c)
{
    static const char signature_name[] = "x-amz-trailer-signature:";
    char *signature = NULL;
    unsigned to = 0;
    for (unsigned at = 0; at < c->trailers_len;) {
        char *line = c->trailers + at, *newline = memchr(line, '\n', c->trailers_len - at);
        if (!newline)
            return fail(c, LEAT_CORRUPT, "a trailer is cut short");
        unsigned n = (unsigned)(newline - line);
        at += n + 1;
        while (n && (line[n - 1] == '\r' || line[n - 1] == ' ' || line[n - 1] == '\t'))
            n--;
        if (n == 0)
            continue;
        char *colon = memchr(line, ':', n);
        if (!colon || colon == line || memchr(line, 0, n) || memchr(line, '\r', n) || signature ||
            !c->has_trailers)
            return fail(c, LEAT_CORRUPT, "what stands behind the last chunk are no trailers");
        unsigned name = (unsigned)(colon - line) + 1, skip = name;
        while (skip < n && (line[skip] == ' ' || line[skip] == '\t'))
            skip++;
        for (unsigned i = 0; i < name; i++) {
            if (line[i] >= 'A' && line[i] <= 'Z')
                line[i] = (char)(line[i] | 0x20);
        }
        if (name == sizeof(signature_name) - 1 && memcmp(line, signature_name, name) == 0) {
            if (n - skip != SIGV4_SIGNATURE - 1)
                return fail(c, LEAT_DENIED, "the trailers' signature is none");
            signature = line + skip;
            continue;
        }
        memmove(c->trailers + to, line, name);
        memmove(c->trailers + to + name, line + skip, n - skip);
        to += name + n - skip;
        c->trailers[to++] = '\n';
    }
    c->trailers[to] = 0;
    if (c->is_signed && c->has_trailers) {
        char expected[SIGV4_SIGNATURE];
        if (!signature)
            return fail(c, LEAT_DENIED, "trailers without a signature");
        if (sigv4_trailer(&c->key, c->when, c->previous, c->trailers, to, expected) < 0 ||
            !sigv4_equal(expected, signature, SIGV4_SIGNATURE - 1))
            return fail(c, LEAT_DENIED, "the trailers' signature does not match");
    }
    c->trailers_len = to;
    return 0;
}

int aws_chunked_end(struct aws_chunked *c)
{
    if (c->failed)
        return c->failed;
    if (c->state != AWS_CHUNKED_IN_TRAILERS)
        return fail(c, LEAT_CORRUPT, "the body ended before its last chunk");
    if (c->got_bytes != c->decoded_bytes)
        return fail(c, LEAT_INVALID, "chunks of fewer bytes than x-amz-decoded-content-length said");
    return check_trailers(c);
}

bool aws_chunked_trailer(const struct aws_chunked *c, const char *name, const char **ret_value,
                         size_t *ret_len)
{
    size_t n = strlen(name);
    for (const char *line = c->trailers; *line;) {
        const char *newline = strchrnul(line, '\n');
        if ((size_t)(newline - line) > n && memcmp(line, name, n) == 0 && line[n] == ':') {
            *ret_value = line + n + 1;
            *ret_len = (size_t)(newline - line) - n - 1;
            return true;
        }
        line = *newline ? newline + 1 : newline;
    }
    return false;
}
