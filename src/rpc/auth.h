/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auth.h: the handshake of wire/leat/proto.h over TCP as pure steps: bytes in, bytes out, no I/O.
 *
 *   client                              server
 *   net_auth_client_start   ── HELLO ─▶ net_auth_server_hello   (judges versions, role, uuid from ret_hello)
 *   net_auth_client_welcome ◀─ reply ── its nonce
 *        │                  ── PROOF ─▶ net_auth_server_proof   (0: serve it; LEAT_DENIED: close)
 *   net_auth_client_confirm ◀─ reply ── its mac
 *
 * The client, which chose where to connect, proves first. A server computes nothing from the token for an
 * unauthenticated peer, which could search for a weak token at leisure. A step out of order is LEAT_DENIED.
 * After a failure the struct refuses every further step. What HELLO says (role, acting user, working set) is
 * covered by both MACs; a recorded handshake is worth nothing, as both sides bring a fresh nonce.
 */
#ifndef RPC_AUTH_H
#define RPC_AUTH_H

#include "wire/leat/messages.h"

#define NET_TOKEN_MIN 32
#define NET_TOKEN_MAX 4096

struct net_auth {
    const void *token; /* the caller's, until the last step, or the first seal */
    size_t token_len;
    int state;
    uint8_t version_min, version_max; /* a client's offer */
    uint8_t version;                  /* of the connection, once it is agreed on */
    struct bytes_out hello;           /* the transcript's first part */
    uint8_t nonce_s[32];
};
void net_auth_init(struct net_auth *auth, const void *token, size_t token_len);
void net_auth_fini(struct net_auth *auth);

/* Appends HELLO's body to `out`, with a fresh nonce in it. */
int net_auth_client_start(struct net_auth *auth, const struct proto_hello *hello, struct bytes_out *out);
/* The first reply's body; ret_proof is PROOF's body. LEAT_DENIED, LEAT_CORRUPT; LEAT_UNSUPPORTED:
 * auth->version was not offered. */
int net_auth_client_welcome(struct net_auth *auth, const void *body, size_t len, uint8_t ret_proof[32]);
/* The second reply: 0: the server knows the token. LEAT_DENIED: it does not; nothing may be sent to it. */
int net_auth_client_confirm(struct net_auth *auth, const struct proto_welcome *welcome);

/* HELLO's body: fills nonce and version of ret_welcome (0: none is common; the rest is zero), and what the
 * client says of itself. */
int net_auth_server_hello(struct net_auth *auth, const void *body, size_t len, struct proto_hello *ret_hello,
                          struct proto_welcome *ret_welcome);
/* PROOF's body. 0: the client knows the token; ret_mac is for the second reply. LEAT_DENIED otherwise. */
int net_auth_server_proof(struct net_auth *auth, const void *body, size_t len, uint8_t ret_mac[32]);
/* Of this handshake, the same on both sides once it is complete; LEAT_DENIED before. For seal.h; the token
 * has to be there still. */
int net_auth_seal_key(const struct net_auth *auth, uint8_t ret_key[32]);

/*
 * Reads a token: a regular file of this user or root that no other user may read, >= NET_TOKEN_MIN bytes
 * without its last newlines. Caller clears and frees *ret_token (net_token_free). LEAT_NOT_FOUND,
 * LEAT_DENIED, LEAT_INVALID.
 */
int net_token_load(const char *path, void **ret_token, size_t *ret_len, struct leat_error *err);
void net_token_free(void *token, size_t len);

#endif
