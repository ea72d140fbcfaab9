/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#define FIRST_CAP 256

void bytes_out_fini(struct bytes_out *out)
{
    free(out->data);
    *out = (struct bytes_out){0};
}

void bytes_out_reset(struct bytes_out *out)
{
    out->len = 0;
    out->failed = false;
}

uint8_t *bytes_room(struct bytes_out *out, size_t len)
{
    if (out->failed)
        return NULL;
    if (len > out->cap - out->len) {
        size_t need, cap;
        if (__builtin_add_overflow(out->len, len, &need))
            goto fail;
        cap = MAX(out->cap, (size_t)FIRST_CAP);
        while (cap < need) {
            if (__builtin_mul_overflow(cap, (size_t)2, &cap))
                cap = need;
        }
        uint8_t *data = realloc(out->data, cap);
        if (!data)
            goto fail;
        out->data = data;
        out->cap = cap;
    }
    uint8_t *at = out->data + out->len;
    out->len += len;
    return at;
fail:
    out->failed = true;
    return NULL;
}

static void put_le(struct bytes_out *out, uint64_t v, unsigned bytes)
{
    uint8_t *at = bytes_room(out, bytes);
    for (unsigned i = 0; at && i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

void bytes_put_u8(struct bytes_out *out, uint8_t v)
{
    put_le(out, v, 1);
}

void bytes_put_u32(struct bytes_out *out, uint32_t v)
{
    put_le(out, v, 4);
}

void bytes_put_u64(struct bytes_out *out, uint64_t v)
{
    put_le(out, v, 8);
}

void bytes_put_str(struct bytes_out *out, const char *s)
{
    size_t len = s ? strlen(s) : 0;
    if (len > UINT32_MAX) {
        out->failed = true;
        return;
    }
    bytes_put_u32(out, (uint32_t)len);
    bytes_put(out, s, len);
}

const void *bytes_get(struct bytes_in *in, size_t len)
{
    if (in->bad || len > bytes_left(in)) {
        in->bad = true;
        return NULL;
    }
    /* Zero bytes of an empty input still give a pointer: NULL means bad. */
    const uint8_t *at = in->data ? in->data + in->pos : (const uint8_t *)"";
    in->pos += len;
    return at;
}

static uint64_t get_le(struct bytes_in *in, unsigned bytes)
{
    const uint8_t *at = bytes_get(in, bytes);
    uint64_t v = 0;
    for (unsigned i = 0; at && i < bytes; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

uint8_t bytes_get_u8(struct bytes_in *in)
{
    return (uint8_t)get_le(in, 1);
}

uint32_t bytes_get_u32(struct bytes_in *in)
{
    return (uint32_t)get_le(in, 4);
}

uint64_t bytes_get_u64(struct bytes_in *in)
{
    return get_le(in, 8);
}

char *bytes_get_str(struct bytes_in *in, size_t max_len)
{
    uint32_t len = bytes_get_u32(in);
    if (!in->bad && len > max_len)
        in->bad = true;
    const char *at = bytes_get(in, len);
    if (!at)
        return NULL;
    if (memchr(at, 0, len)) {
        in->bad = true;
        return NULL;
    }
    char *s = malloc((size_t)len + 1);
    if (!s) {
        in->bad = true;
        return NULL;
    }
    memcpy(s, at, len);
    s[len] = 0;
    return s;
}

int bytes_in_done(const struct bytes_in *in)
{
    return in->bad || in->pos != in->len ? -EBADMSG : 0;
}
