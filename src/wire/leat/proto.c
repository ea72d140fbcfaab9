/* SPDX-License-Identifier: Apache-2.0 */
/* proto.c: frames and ranges, bytes to structs and back; the proofs of a handshake. */
#include "wire/leat/proto.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define FRAME_USED 40 /* the rest is zeros */

static void put_le32(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static void put_le64(uint8_t *at, uint64_t v)
{
    put_le32(at, (uint32_t)v);
    put_le32(at + 4, (uint32_t)(v >> 32));
}

static uint32_t get_le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_le64(const uint8_t *at)
{
    return get_le32(at) | (uint64_t)get_le32(at + 4) << 32;
}

void proto_frame_put(uint8_t out[PROTO_FRAME], const struct proto_frame *frame)
{
    put_le32(out, PROTO_MAGIC);
    out[4] = frame->version;
    out[5] = frame->kind;
    out[6] = (uint8_t)frame->type;
    out[7] = (uint8_t)(frame->type >> 8);
    put_le32(out + 8, (uint32_t)frame->status);
    put_le32(out + 12, frame->lost);
    put_le64(out + 16, frame->id);
    put_le32(out + 24, frame->body_bytes);
    put_le32(out + 28, frame->nfds);
    put_le64(out + 32, frame->payload_bytes);
    memset(out + FRAME_USED, 0, PROTO_FRAME - FRAME_USED);
}

unsigned proto_version_common(unsigned min, unsigned max)
{
    unsigned version = MIN(max, (unsigned)PROTO_VERSION);
    return version >= MAX(min, (unsigned)PROTO_VERSION_MIN) ? version : 0;
}

int proto_frame_get(const uint8_t in[PROTO_FRAME], struct proto_frame *ret_frame)
{
    struct proto_frame f = {
        .version = in[4],
        .kind = in[5],
        .type = (uint16_t)(in[6] | in[7] << 8),
        .status = (int32_t)get_le32(in + 8),
        .lost = get_le32(in + 12),
        .id = get_le64(in + 16),
        .body_bytes = get_le32(in + 24),
        .nfds = get_le32(in + 28),
        .payload_bytes = get_le64(in + 32),
    };
    uint8_t rest = 0;
    for (unsigned i = FRAME_USED; i < PROTO_FRAME; i++)
        rest |= in[i];
    if (rest || get_le32(in) != PROTO_MAGIC || f.kind < PROTO_REQUEST || f.kind > PROTO_EVENT)
        return LEAT_CORRUPT;
    /* A status is 0 or -errno: a positive one would be taken for success by some and for a count by others. */
    if (f.status > 0 || f.status < -4095)
        return LEAT_CORRUPT;
    if (f.body_bytes > PROTO_BODY_MAX || f.nfds > PROTO_FDS_MAX || f.payload_bytes > PROTO_PAYLOAD_MAX)
        return LEAT_CORRUPT;
    *ret_frame = f;
    return 0;
}

void proto_range_write(uint8_t wire[PROTO_RANGE], const struct proto_range *m)
{
    put_le32(wire, m->gid);
    put_le32(wire + 4, m->bytes);
    put_le64(wire + 8, m->offset);
}

void proto_range_put(struct bytes_out *out, const struct proto_range *m)
{
    uint8_t *wire = bytes_room(out, PROTO_RANGE); /* one append a range: a READ has thousands */
    if (wire)
        proto_range_write(wire, m);
}

void proto_range_get(struct bytes_in *in, struct proto_range *ret)
{
    const uint8_t *wire = bytes_get(in, PROTO_RANGE);
    if (!wire) {
        *ret = (struct proto_range){0};
        return;
    }
    ret->gid = get_le32(wire);
    ret->bytes = get_le32(wire + 4);
    ret->offset = get_le64(wire + 8);
}

/* --- proofs ---------------------------------------------------------------------------------------------------- */

/* `label` has eleven characters, so that no text is another one's. */
static int transcript_mac(const char *label, const void *token, size_t token_len, const void *hello_body,
                          size_t hello_len, const uint8_t nonce_s[32], uint8_t ret_mac[32])
{
    const size_t label_len = 11;
    if (token_len == 0 || token_len > INT32_MAX || hello_len > PROTO_BODY_MAX)
        return -EIO;
    AUTO_FREE uint8_t *text = malloc(label_len + hello_len + 32);
    if (!text)
        return -ENOMEM;
    memcpy(text, label, label_len);
    if (hello_len)
        memcpy(text + label_len, hello_body, hello_len);
    memcpy(text + label_len + hello_len, nonce_s, 32);
    unsigned len = 0;
    uint8_t mac[EVP_MAX_MD_SIZE];
    if (!HMAC(EVP_sha256(), token, (int)token_len, text, label_len + hello_len + 32, mac, &len) || len != 32)
        return -EIO;
    memcpy(ret_mac, mac, 32);
    return 0;
}

int proto_mac(const void *token, size_t token_len, bool server, const void *hello_body, size_t hello_len,
              const uint8_t nonce_s[32], uint8_t ret_mac[32])
{
    return transcript_mac(server ? "leat server" : "leat client", token, token_len, hello_body, hello_len,
                          nonce_s, ret_mac);
}

int proto_seal_key(const void *token, size_t token_len, const void *hello_body, size_t hello_len,
                   const uint8_t nonce_s[32], uint8_t ret_key[32])
{
    return transcript_mac("leat sealed", token, token_len, hello_body, hello_len, nonce_s, ret_key);
}

bool proto_mac_equal(const uint8_t a[32], const uint8_t b[32])
{
    uint8_t diff = 0;
    for (int i = 0; i < 32; i++)
        diff |= a[i] ^ b[i];
    return diff == 0;
}
