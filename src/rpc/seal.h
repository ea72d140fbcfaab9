/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h: secrets on a connection between two daemons, which is itself in the clear. Both have proved the
 * cluster's token (auth.h). The key is derived from that token and from this connection's handshake. So no
 * process without the token can open a recording, and a recording cannot be sent again on another connection,
 * nor twice on this one:
 *
 *   key      HMAC-SHA256(token, "leat sealed" ‖ HELLO's body ‖ nonce_s)
 *   sealed   u64 count ‖ AES-256-GCM(key, nonce = 0⁴ ‖ count, text, aad) ‖ tag[16]
 *
 * One direction only: the connecting side seals, the accepting side opens, with counts that rise. There is no
 * forward secrecy: a later holder of the token can open old recordings. Pure but for the key's place in
 * memory; a connection's, so one thread.
 */
#ifndef RPC_SEAL_H
#define RPC_SEAL_H

#include "base/bytes.h"
#include "rpc/auth.h"

#define NET_SEAL_BYTES (8 + 16) /* a sealed text is so much longer */

struct net_seal {
    bool have_key;
    uint8_t key[32];
    uint64_t count; /* the last one that was used */
};
/* NULL bytes are a seal that has not begun. */
void net_seal_fini(struct net_seal *seal);

/* `auth` has been through its last step, and its token is still there. Appends to `out`; -EIO: libcrypto failed, or the counts are used up. */
int net_seal(struct net_seal *seal, const struct net_auth *auth, const void *aad, size_t aad_len,
             const void *text, size_t len, struct bytes_out *out);
/* The text, with a NUL behind it: the caller's to wipe and free. LEAT_CORRUPT: not sealed by the peer that
 * proved the token on this connection, or seen before. */
int net_unseal(struct net_seal *seal, const struct net_auth *auth, const void *aad, size_t aad_len,
               const void *sealed, size_t len, uint8_t **ret_text, size_t *ret_len);

#endif
