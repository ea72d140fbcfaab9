/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/seal.h"

#include <openssl/evp.h>

#define NONCE_BYTES 12
#define TAG_BYTES   16

void net_seal_fini(struct net_seal *seal)
{
    explicit_bzero(seal, sizeof(*seal));
}

static int key_make(struct net_seal *seal, const struct net_auth *auth)
{
    if (seal->have_key)
        return 0;
    int rc = net_auth_seal_key(auth, seal->key);
    seal->have_key = rc == 0;
    return rc;
}

static void nonce_of(uint64_t count, uint8_t ret_nonce[NONCE_BYTES])
{
    memset(ret_nonce, 0, NONCE_BYTES);
    for (unsigned k = 0; k < 8; k++)
        ret_nonce[4 + k] = (uint8_t)(count >> (8 * k));
}

/* Either way round; `tag` is written, or compared. */
static int gcm(const uint8_t key[32], bool encrypt, uint64_t count, const void *aad, size_t aad_len,
               const uint8_t *from, size_t len, uint8_t *to, uint8_t tag[TAG_BYTES])
{
    uint8_t nonce[NONCE_BYTES];
    int n = 0, last = 0;
    if (len > INT32_MAX || aad_len > INT32_MAX)
        return -EIO;
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    if (!ctx)
        return -ENOMEM;
    nonce_of(count, nonce);
    bool good = EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, nonce, encrypt) == 1 &&
                (aad_len == 0 || EVP_CipherUpdate(ctx, NULL, &n, aad, (int)aad_len) == 1) &&
                (len == 0 || EVP_CipherUpdate(ctx, to, &n, from, (int)len) == 1);
    if (good && !encrypt)
        good = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, tag) == 1;
    uint8_t rest[16];
    int rc = !good ? -EIO : EVP_CipherFinal_ex(ctx, rest, &last) == 1 ? 0 : LEAT_CORRUPT;
    if (rc == 0 && encrypt && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, tag) != 1)
        rc = -EIO;
    EVP_CIPHER_CTX_free(ctx);
    return rc;
}

int net_seal(struct net_seal *seal, const struct net_auth *auth, const void *aad, size_t aad_len,
             const void *text, size_t len, struct bytes_out *out)
{
    int rc = key_make(seal, auth);
    if (rc < 0 || seal->count == UINT64_MAX)
        return rc < 0 ? rc : -EIO;
    bytes_put_u64(out, ++seal->count); /* a number is never used twice, even when this fails */
    uint8_t *to = bytes_room(out, len + TAG_BYTES);
    if (!to)
        return -ENOMEM;
    return gcm(seal->key, true, seal->count, aad, aad_len, text, len, to, to + len);
}

int net_unseal(struct net_seal *seal, const struct net_auth *auth, const void *aad, size_t aad_len,
               const void *sealed, size_t len, uint8_t **ret_text, size_t *ret_len)
{
    struct bytes_in in = bytes_in_of(sealed, len);
    uint64_t count = bytes_get_u64(&in);
    if (in.bad || bytes_left(&in) < TAG_BYTES || count <= seal->count)
        return LEAT_CORRUPT;
    size_t n = bytes_left(&in) - TAG_BYTES;
    const uint8_t *from = bytes_get(&in, n);
    uint8_t tag[TAG_BYTES];
    memcpy(tag, bytes_get(&in, TAG_BYTES), TAG_BYTES);
    uint8_t *text = malloc(n + 1);
    int rc = text ? key_make(seal, auth) : -ENOMEM;
    if (rc == 0)
        rc = gcm(seal->key, false, count, aad, aad_len, from, n, text, tag);
    if (rc < 0) {
        if (text)
            explicit_bzero(text, n + 1);
        free(text);
        return rc;
    }
    seal->count = count;
    text[n] = 0;
    *ret_text = text;
    *ret_len = n;
    return 0;
}
