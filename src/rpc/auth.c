/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth.h"

#include "base/secret_file.h"

#include <stdio.h>
#include <sys/random.h>

enum { AUTH_NEW, AUTH_HELLO_SENT, AUTH_PROOF_SENT, AUTH_CHALLENGED, AUTH_DONE, AUTH_FAILED };

void net_auth_init(struct net_auth *auth, const void *token, size_t token_len)
{
    *auth = (struct net_auth){.token = token, .token_len = token_len};
}

void net_auth_fini(struct net_auth *auth)
{
    bytes_out_fini(&auth->hello);
    auth->state = AUTH_FAILED;
}

static int fresh_nonce(uint8_t nonce[32])
{
    ssize_t n;
    do
        n = getrandom(nonce, 32, 0);
    while (n < 0 && errno == EINTR);
    return n == 32 ? 0 : -EIO;
}

/* Moves to `next` when rc is 0 and the step was due, else to AUTH_FAILED for good. */
static int step(struct net_auth *auth, int next, int rc)
{
    auth->state = rc == 0 ? next : AUTH_FAILED;
    return rc;
}

static int mac(const struct net_auth *auth, bool server, uint8_t ret_mac[32])
{
    return proto_mac(auth->token, auth->token_len, server, auth->hello.data, auth->hello.len, auth->nonce_s,
                     ret_mac);
}

int net_auth_client_start(struct net_auth *auth, const struct proto_hello *hello, struct bytes_out *out)
{
    if (auth->state != AUTH_NEW)
        return step(auth, AUTH_FAILED, LEAT_DENIED);
    struct proto_hello h = *hello;
    int rc = fresh_nonce(h.nonce);
    if (rc < 0)
        return step(auth, AUTH_FAILED, rc);
    auth->version_min = h.version_min;
    auth->version_max = h.version_max;
    proto_hello_put(&auth->hello, &h);
    bytes_put(out, auth->hello.data, auth->hello.len);
    return step(auth, AUTH_HELLO_SENT, auth->hello.failed || out->failed ? -ENOMEM : 0);
}

int net_auth_client_welcome(struct net_auth *auth, const void *body, size_t len, uint8_t ret_proof[32])
{
    if (auth->state != AUTH_HELLO_SENT)
        return step(auth, AUTH_FAILED, LEAT_DENIED);
    struct proto_welcome welcome;
    int rc = proto_welcome_get(body, len, &welcome);
    auth->version = rc == 0 ? welcome.version : 0;
    if (rc == 0 && (auth->version < auth->version_min || auth->version > auth->version_max))
        rc = LEAT_UNSUPPORTED;
    if (rc == 0) {
        memcpy(auth->nonce_s, welcome.nonce, sizeof(auth->nonce_s));
        rc = mac(auth, false, ret_proof);
    }
    return step(auth, AUTH_PROOF_SENT, rc);
}

/* Does the other side's MAC prove the token? Then the handshake is complete. */
static int check_mac(struct net_auth *auth, bool server, const uint8_t given[32])
{
    uint8_t expected[32];
    int rc = mac(auth, server, expected);
    if (rc == 0 && !proto_mac_equal(expected, given))
        rc = LEAT_DENIED;
    return step(auth, AUTH_DONE, rc);
}

int net_auth_client_confirm(struct net_auth *auth, const struct proto_welcome *welcome)
{
    if (auth->state != AUTH_PROOF_SENT)
        return step(auth, AUTH_FAILED, LEAT_DENIED);
    return check_mac(auth, true, welcome->mac);
}

int net_auth_server_hello(struct net_auth *auth, const void *body, size_t len, struct proto_hello *ret_hello,
                          struct proto_welcome *ret_welcome)
{
    if (auth->state != AUTH_NEW)
        return step(auth, AUTH_FAILED, LEAT_DENIED);
    struct proto_hello hello;
    struct proto_welcome welcome = {0};
    int rc = proto_hello_get(body, len, &hello);
    if (rc < 0)
        return step(auth, AUTH_FAILED, rc);
    bytes_put(&auth->hello, body, len);
    rc = auth->hello.failed ? -ENOMEM : fresh_nonce(auth->nonce_s);
    if (rc < 0)
        return step(auth, AUTH_FAILED, rc);
    auth->version = (uint8_t)proto_version_common(hello.version_min, hello.version_max);
    welcome.version = auth->version;
    memcpy(welcome.nonce, auth->nonce_s, sizeof(welcome.nonce));
    *ret_hello = hello;
    *ret_welcome = welcome;
    return step(auth, AUTH_CHALLENGED, 0);
}

int net_auth_server_proof(struct net_auth *auth, const void *body, size_t len, uint8_t ret_mac[32])
{
    if (auth->state != AUTH_CHALLENGED || len != 32)
        return step(auth, AUTH_FAILED, LEAT_DENIED);
    int rc = check_mac(auth, false, body);
    return rc < 0 ? rc : step(auth, AUTH_DONE, mac(auth, true, ret_mac));
}

int net_auth_seal_key(const struct net_auth *auth, uint8_t ret_key[32])
{
    if (auth->state != AUTH_DONE)
        return LEAT_DENIED;
    return proto_seal_key(auth->token, auth->token_len, auth->hello.data, auth->hello.len, auth->nonce_s,
                          ret_key);
}

/* --- the token's file ------------------------------------------------------------------------------------------ */

int net_token_load(const char *path, void **ret_token, size_t *ret_len, struct leat_error *err)
{
    AUTO_CLOSE int fd = -1;
    char hint[LEAT_ERROR_MESSAGE_MAX];
    snprintf(hint, sizeof(hint),
             "; make one with: head -c 32 /dev/urandom | base64 > %.200s; chmod 600 %.200s", path, path);
    int rc = secret_file_open("token file", path, hint, false, &fd, err);
    if (rc < 0)
        return rc;
    char buf[NET_TOKEN_MAX + 1];
    size_t len = 0;
    ssize_t n = 0;
    while (len < sizeof(buf) && (n = read(fd, buf + len, sizeof(buf) - len)) > 0)
        len += (size_t)n;
    if (n < 0)
        rc = error_sys(err, -errno, "cannot read token file %s", path);
    else if (len > NET_TOKEN_MAX)
        rc = error_set(err, LEAT_INVALID, "token file %s is longer than %d bytes%s", path, NET_TOKEN_MAX,
                       hint);
    while (len > 0 && (buf[len - 1] == '\n' || buf[len - 1] == '\r'))
        len--;
    if (rc == 0 && len < NET_TOKEN_MIN)
        rc = error_set(err, LEAT_INVALID, "token file %s holds %zu bytes, at least %d are needed%s", path,
                       len, NET_TOKEN_MIN, hint);
    if (rc == 0) {
        void *token = malloc(len);
        if (token) {
            memcpy(token, buf, len);
            *ret_token = token;
            *ret_len = len;
        } else {
            rc = error_set(err, -ENOMEM, "no memory for token file %s", path);
        }
    }
    explicit_bzero(buf, sizeof(buf));
    return rc;
}

void net_token_free(void *token, size_t len)
{
    if (token)
        explicit_bzero(token, len);
    free(token);
}
