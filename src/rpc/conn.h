/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h: framed connections over unix sockets and TCP (wire/leat/proto.h). Two faces of one format:
 *  - struct conn: non-blocking, driven by a loop: the daemon's side, and daemon to daemon;
 *  - net_call_*: blocking with a deadline: the client's side.
 */
#ifndef RPC_CONN_H
#define RPC_CONN_H

#include "base/base.h"
#include "loop/loop.h"
#include "wire/leat/proto.h"

struct conn;

struct conn_message {
    struct proto_frame frame;
    const uint8_t *body; /* valid during the callback */
    int *fds; /* frame.nfds descriptors; taken ones are set to -1, the rest is closed after the callback */
};

struct conn_ops {
    /* One whole frame without its payload. 0, or -errno: the connection is closed with that reason. A frame with payload_bytes > 0
     * must be answered by conn_receive_payload before returning. */
    int (*message)(struct conn *conn, struct conn_message *message);
    /* Peer gone or protocol error (status < 0). The conn is still valid; the owner calls conn_free, now or later. */
    void (*closed)(struct conn *conn, int status);
};

struct conn_limits {
    uint64_t
        out_bytes; /* replies queued to a peer that does not read, until conn_trust: past this it is closed; 0: 64 MiB */
    uint32_t body_bytes; /* longest body taken, until conn_trust; 0: PROTO_BODY_MAX */
    bool no_fds;         /* none is taken until conn_trust */
};

/* Takes fd (a connected stream socket). Loop's thread only, as everything here. */
int conn_new(struct loop *loop, int fd, const struct conn_ops *ops, void *user,
             const struct conn_limits *limits, struct conn **ret_conn);
/* The peer has authenticated: bodies up to PROTO_BODY_MAX, and 64 MiB of queued replies, from here on. */
void conn_trust(struct conn *conn);
/*
 * What several connections may make this process keep together: long input that is no whole message yet,
 * replies that are not read. The connection that exceeds it is closed (LEAT_NO_SPACE). The owner's, which
 * frees it after them.
 */
struct conn_budget {
    uint64_t used_bytes, limit_bytes;
};
void conn_share_budget(struct conn *conn, struct conn_budget *budget);
/* Was it closed for that? In closed(), too. */
bool conn_over_budget(const struct conn *conn);
/* Closes at once; queued output is dropped; closed() is not called. Safe inside callbacks. NULL is fine. */
void conn_free(struct conn *conn);
/* Gives the descriptor away (to a data thread, to a client by SCM_RIGHTS) and frees the conn. Only when no
 * output is queued and no input is buffered, else -EBUSY. */
int conn_release_fd(struct conn *conn);
void *conn_user(const struct conn *conn);
int conn_fd(const struct conn *conn);
/* What its frames say: PROTO_VERSION_MIN until the handshake has agreed on one. */
void conn_set_version(struct conn *conn, unsigned version);
unsigned conn_version(const struct conn *conn);
/* SO_PEERCRED of a unix peer. */
int conn_credentials(const struct conn *conn, uint32_t *ret_uid, uint32_t *ret_gid, int32_t *ret_pid);

/* Bytes of frames that wait to be sent. */
uint64_t conn_queued(const struct conn *conn);
/* Queues a frame; fds are duplicated. On allocation failure the connection is closed (closed() later). */
void conn_send(struct conn *conn, uint8_t kind, uint16_t type, uint64_t id, int status,
               const struct bytes_out *body, const int *fds, unsigned nfds);
/* status < 0 with err's message as body. */
void conn_send_error(struct conn *conn, uint16_t type, uint64_t id, const struct leat_error *err);
/* The same with a payload taken by reference; done(user, status) exactly once: later, when it was sent or dropped; at once
 * when the message could not be taken (the connection is then closed, or will be). NULL: no notice. */
void conn_send_payload(struct conn *conn, uint8_t kind, uint16_t type, uint64_t id,
                       const struct bytes_out *body, const void *payload, uint64_t bytes,
                       void (*done)(void *user, int status), void *user);
/* From message(), bytes == frame.payload_bytes: the payload goes straight to dst; done(user, 0) when it is there, or with
 * a status when the connection ended first. Messages behind it wait. */
void conn_receive_payload(struct conn *conn, void *dst, uint64_t bytes, void (*done)(void *user, int status),
                          void *user);

/* --- blocking calls (client) --------------------------------------------------------------------------------- */

struct net_reply {
    struct proto_frame frame;
    struct bytes_out body; /* owned: net_reply_fini */
    int fds[PROTO_FDS_MAX];
    unsigned nfds; /* owned until taken (set to -1) */
};
void net_reply_fini(struct net_reply *reply);
/* Writes one frame. deadline_ns absolute, 0 none. LEAT_PEER_GONE, LEAT_TIMED_OUT. */
int net_frame_send(int fd, unsigned version, uint8_t kind, uint16_t type, uint64_t id,
                   const struct bytes_out *body, const int *fds, unsigned nfds, uint64_t deadline_ns);
/* A frame as far as it has come; zeroed at first. net_reply_fini(&rx.reply) when no more is to come. */
struct net_rx {
    uint8_t head[PROTO_FRAME];
    uint64_t have; /* bytes of head, then of body */
    bool in_body;
    struct net_reply reply;
};
/*
 * Without waiting. 1: a whole frame, moved to *ret_reply, and nothing behind it was read; 0: more has to come; LEAT_PEER_GONE, LEAT_CORRUPT,
 * -EMFILE (no room for its descriptors), -ENOMEM: the stream's position is lost.
 */
int net_frame_step(int fd, struct net_rx *rx, struct net_reply *ret_reply);
/* Reads one frame with its body and descriptors, and nothing behind it: a payload is the caller's to receive next. LEAT_PEER_GONE,
 * LEAT_TIMED_OUT (part of a frame may be gone then: close the socket), and what net_frame_step fails with. */
int net_frame_receive(int fd, struct net_reply *ret_reply, uint64_t deadline_ns);
/* The code and message of a reply: 0, or frame.status with err filled from the body. */
int net_reply_status(const struct net_reply *reply, struct leat_error *err);
/* Connects a stream socket: "/path" unix, "host:port" TCP (TCP_NODELAY). */
int net_dial(const char *address, uint64_t deadline_ns, int *ret_fd, struct leat_error *err);
/* Listens: "/path" unix (mode 0600 or as given), "host:port" TCP. */
int net_listen(const char *address, unsigned mode, int *ret_fd, struct leat_error *err);

/* --- the server side of PROTO_READ and PROTO_WRITE: data threads ----------------------------------------------- */

/* Where a later answer to a request goes: a value, kept by the code that will answer. */
struct net_later {
    struct data_thread *thread;
    uint64_t conn, id;
    uint16_t type;
};
#define NET_LATER 1

/* What a data connection may touch: implemented by the pool. Thread-safe, called from data threads. */
struct net_serve_target {
    /* Address of [offset, +bytes) of region gid, or NULL with *ret_status (LEAT_STALE, LEAT_INVALID). The memory stays valid
     * until `unref` of the target. */
    void *(*resolve)(struct net_serve_target *target, uint32_t gid, uint64_t offset, uint64_t bytes,
                     bool write, int *ret_status);
    /* After a WRITE's payload has landed. 0 or a status for its reply. */
    int (*written)(struct net_serve_target *target, uint64_t first_sample, uint32_t count);
    /* The connection ended; called once, on the data thread. */
    void (*unref)(struct net_serve_target *target);
    /* A request that is neither READ nor WRITE: appends the body of its reply, or answers with a status and
     * its message. LEAT_CORRUPT ends the connection, as NULL here does: nothing more is sent on it. On the
     * data thread, which waits for it; NET_LATER: it will be answered by net_server_answer, once, unless
     * unref comes first. */
    int (*request)(struct net_serve_target *target, uint16_t type, struct bytes_in *in,
                   struct bytes_out *reply, const struct net_later *later, struct leat_error *err);
    /* The user whose descriptors arrive here and are not taken. */
    uint32_t uid;
    /* Counts what is sent over this connection, with others; NULL: not counted. */
    _Atomic uint64_t *sent_bytes;
};

struct net_server;
/* `threads` loops that serve data connections. */
int net_server_new(unsigned threads, struct net_server **ret_server);
/* Takes fd (after its handshake) and the target's reference; on failure both stay the caller's. Least busy thread. Any
 * thread. */
int net_server_add(struct net_server *server, int fd, struct net_serve_target *target);
/* Any thread, while the server is there; after the target's unref it must not be called. `message` for status < 0. */
void net_server_answer(const struct net_later *later, int status, const char *message);
/* With the reply's body, which is taken; it has not failed. */
void net_server_answer_body(const struct net_later *later, int status, const char *message,
                            struct bytes_out *body);
/* Closes every connection and joins: afterwards no thread touches a target's memory. NULL is fine. */
void net_server_free(struct net_server *server);
struct net_server_stats {
    uint64_t connections, requests, bytes_sent, bytes_received, errors;
};
void net_server_stats(struct net_server *server, struct net_server_stats *ret_stats);

/* What a transport has queued for its socket, from *sent on, without waiting. 0: all of it went, and the queue is empty; -EAGAIN: wait for
 * EPOLLOUT; LEAT_PEER_GONE. */
int net_send_queued(int fd, struct bytes_out *out, size_t *sent);

#endif
