/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h: an accepted connection with the identity of its peer. The acceptor owns it, and embeds it where it keeps more. Loop thread.
 */
#ifndef RPC_SESSION_H
#define RPC_SESSION_H

#include "rpc/auth.h"
#include "rpc/conn.h"
#include "rpc/seal.h"

#define RPC_NODE_UNKNOWN UINT32_MAX

struct rpc_session {
    struct conn *conn; /* owned */
    uint64_t serial;   /* unique in the process */
    uint32_t
        node; /* index in the list of nodes; RPC_NODE_UNKNOWN: a client, or a node before its NODE request */
    uint64_t incarnation; /* of that node; 0: it has not said, or speaks version 2 */
    struct net_auth auth;
    struct net_seal seal;
};

#endif
