/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes.h: a growable output buffer and a bounds-checked input cursor over little-endian bytes: for the wire
 * protocol and the child processes. A reader that ran over its end, or read a wrong value, keeps `bad` set
 * and returns zeros from there on. So a parser checks once at its end.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include "base/base.h"

struct bytes_out {
    uint8_t *data; /* owned; freed by bytes_out_fini */
    size_t len, cap;
    bool failed; /* an allocation failed; the contents are not to be sent */
};
void bytes_out_fini(struct bytes_out *out);
#define AUTO_BYTES __attribute__((cleanup(bytes_out_fini))) /* AUTO_BYTES struct bytes_out out = {0}; */
void bytes_out_reset(struct bytes_out *out);                /* len = 0, memory kept */
/* Room for `len` more bytes at the end, which then belong to the contents, for the caller to write; NULL when failed. Valid until
 * the next call. */
uint8_t *bytes_room(struct bytes_out *out, size_t len);
/* Inline, as heads of requests are made of fifty short pieces, most of them literals. */
static inline void bytes_put(struct bytes_out *out, const void *data, size_t len)
{
    if (len == 0)
        return;
    if (len <= out->cap - out->len && !out->failed) {
        memcpy(out->data + out->len, data, len);
        out->len += len;
        return;
    }
    uint8_t *at = bytes_room(out, len);
    if (at)
        memcpy(at, data, len);
}
void bytes_put_u8(struct bytes_out *out, uint8_t v);
void bytes_put_u32(struct bytes_out *out, uint32_t v);
void bytes_put_u64(struct bytes_out *out, uint64_t v);
/* u32 length and the bytes, no NUL. NULL is the empty string. */
void bytes_put_str(struct bytes_out *out, const char *s);

struct bytes_in {
    const uint8_t *data;
    size_t len, pos;
    bool bad;
};
static inline struct bytes_in bytes_in_of(const void *data, size_t len)
{
    return (struct bytes_in){.data = (const uint8_t *)data, .len = len};
}
static inline size_t bytes_left(const struct bytes_in *in)
{
    return in->len - in->pos;
}
uint8_t bytes_get_u8(struct bytes_in *in);
uint32_t bytes_get_u32(struct bytes_in *in);
uint64_t bytes_get_u64(struct bytes_in *in);
/* A pointer to the next `len` bytes inside the input, or NULL (and bad). */
const void *bytes_get(struct bytes_in *in, size_t len);
/* A copy with a NUL behind it: at most max_len bytes and no NUL inside, else bad and NULL. Caller frees. */
char *bytes_get_str(struct bytes_in *in, size_t max_len);
/* 0 if every byte was read and nothing was bad, else -EBADMSG. */
int bytes_in_done(const struct bytes_in *in);

#endif
