/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h: an outgoing connection to another daemon: TCP connect, the mutual proof of the token, then requests with replies. All
 * on the loop. README.md has its states.
 */
#ifndef RPC_PEER_H
#define RPC_PEER_H

#include "base/base.h"
#include "rpc/conn.h"
#include "wire/leat/messages.h"
#include "loop/resolve.h"

struct loop;
struct peer;

enum peer_state { PEER_DOWN, PEER_CONNECTING, PEER_HELLO, PEER_PROOF, PEER_UP, PEER_IDENTIFIED, PEER_STATES };

struct peer_ops {
    void (*up)(struct peer *peer);
    /* Was up, or could not come up by any address: every call out has been answered with -ECONNRESET. `message` for people. */
    void (*down)(struct peer *peer, int status, const char *message);
};

struct peer_config {
    /* "host:port[,host:port]": the next is tried when one does not answer, as each address that a name resolves to. */
    const char *address;
    /* [NET_ADDRESSES_MAX], by which each of them answered last: tried first, and kept here. The owner's, shared on the loop; NULL: none. */
    struct resolve_address *answered;
    int rail; /* the number of this one rail: by the interface in its subnet alone. -1: by whichever way */
    const char *listen;       /* our own addresses, for that */
    struct proto_hello hello; /* versions, role, acting user, working set */
    const void *token;
    size_t token_len;
    bool stay; /* connect again after a pause */
    const struct peer_ops *ops;
    void *user;
};

/* Which of its addresses it is connected by, or tried last. */
unsigned peer_address(const struct peer *peer);
/* UP: the other side's name of itself, which is its listening address unless it has a configured name. */
const char *peer_name(const struct peer *peer);
/* UP: of the connection. */
unsigned peer_version(const struct peer *peer);
/* Begins to connect. Names are looked up on a thread of their own, before each try. */
int peer_new(struct loop *loop, const struct peer_config *config, struct peer **ret_peer);
void peer_free(
    struct peer *peer); /* calls out are dropped without an answer; NULL is fine; safe in callbacks */
void *peer_user(const struct peer *peer);
/* IDENTIFIED counts as UP. */
enum peer_state peer_state(const struct peer *peer);

struct peer_reply {
    int status;
    const char *message; /* status < 0 */
    const uint8_t *body;
    size_t body_bytes;
    int payload_fd; /* memfd with the reply's payload, or -1; set to -1 to keep it */
    uint64_t payload_bytes;
};
typedef void (*peer_reply_fn)(void *user, struct peer_reply *reply);
/* Exactly one answer, later; payload_done may be NULL. 0, or -ENOTCONN (no answer then). */
int peer_call(struct peer *peer, uint16_t type, const struct bytes_out *body, const void *payload,
              uint64_t payload_bytes, void (*payload_done)(void *user, int status), peer_reply_fn answer,
              void *user);
/* Answers every call out and goes down, as if the connection had ended; connects again if asked to stay. */
void peer_fail(struct peer *peer, int status, const char *message);
/* UP, and the peer is the intended one (accept), or not (reject): then its next address is tried, and it goes
 * down when none is left. Until it is accepted, an address that leads to a peer counts as tried. */
void peer_accept(struct peer *peer);
void peer_reject(struct peer *peer, int status, const char *message);
/* Bytes that wait to be sent to it. */
uint64_t peer_queued(const struct peer *peer);
/* An event; done(user, status) once it was sent or dropped, which may be at once; NULL: no notice. */
void peer_event_done(struct peer *peer, uint16_t type, const struct bytes_out *body,
                     void (*done)(void *user, int status), void *user);
/* Appends `text` to the next message, sealed for this connection and to `aad` (rpc/seal.h). -ENOTCONN. */
int peer_seal(struct peer *peer, const void *aad, size_t aad_len, const void *text, size_t len,
              struct bytes_out *out);
/* Fire and forget. */
void peer_event(struct peer *peer, uint16_t type, const struct bytes_out *body);
/* A host that vanishes silently is noticed within about fifteen seconds, from either end of a connection. */
void peer_socket_watch(int fd);
/* UP, DATA role: the socket, which is the caller's from here on; the peer is DOWN and may be freed. */
int peer_release_fd(struct peer *peer);

#endif
