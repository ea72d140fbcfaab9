/* SPDX-License-Identifier: Apache-2.0 */
/* client_internal.h: between client.c (calls, origins), conn.c (one connection) and tls.c. */
#ifndef HTTP_CLIENT_INTERNAL_H
#define HTTP_CLIENT_INTERNAL_H

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include "http/client/http_client.h"
#include "loop/loop.h"
#include "loop/resolve.h"

#define CONN_BUFFER (32 * KIB)
#define TRIES_MAX   3u
#define TICK_NS     (100 * 1000000ull) /* how often deadlines are looked at */
#define RESOLVED_NS (60 * 1000000000ull)
#define SHUNNED_NS  (30 * 1000000000ull) /* an address that failed is not tried, while there are others */

struct http_address {
    struct resolve_address to;
    uint64_t failed_ns; /* the last attempt, when it failed; 0: it did not */
};

/* Everything towards one origin. */
struct http_pool {
    struct list node; /* client.pools */
    struct http_client *client;
    struct http_origin origin;
    struct list conns;
    unsigned nconns, nconnecting;
    struct list waiting; /* http_call.node, in order */
    unsigned nwaiting;
    unsigned pipeline; /* 1 once the peer has shown that it does not like more */
    struct http_address addresses[RESOLVE_MAX];
    unsigned naddresses, next_address;
    unsigned failed_in_order; /* attempts to connect, since one succeeded or something was answered */
    uint64_t resolved_ns;     /* 0: not yet */
    struct resolve *resolving;
    struct loop_source resolved;
    SSL_SESSION *session;
};

enum conn_state { CONN_CONNECTING, CONN_HANDSHAKE, CONN_OPEN, CONN_DEAD };
enum conn_part { PART_HEAD, PART_DST, PART_SINK, PART_CHUNKED };

struct http_conn {
    struct list node;       /* pool.conns; client.dead once dead */
    struct list flush_node; /* client.flush: it has something to send */
    struct http_pool *pool;
    struct loop_source source;
    enum conn_state state;
    unsigned address; /* of pool.addresses, when it was opened */
    SSL *ssl;
    bool stuck;        /* TLS has taken bytes of `sending` that are not counted in `sent` */
    struct list calls; /* http_call.node, in the order of their requests */
    unsigned ncalls;
    struct http_call *sending; /* the first whose request is not out; NULL: all are */
    size_t sent;               /* of it */
    struct http_reader reader;
    char *buf;       /* NULL: nothing is under way */
    size_t at, have; /* received and not used: [at, have) */
    enum conn_part part;
    uint64_t body_left; /* UINT64_MAX: until the peer closes */
    bool more;          /* stopped for fairness, not for lack of bytes */
    bool patient;       /* the socket reports nothing before PATIENT bytes are there */
    bool hasty;         /* not for this answer: it came too slowly */
    bool last;          /* no call behind the first one will be answered */
    bool answering;     /* a byte of the first call's answer is here */
    uint64_t completed; /* calls */
    uint64_t heard_ns, began_ns;
    uint64_t
        asked_ns; /* the first call's answer has not begun, and no other call is before or behind it; 0: not so */
};

struct http_client {
    struct loop *loop;
    struct http_client_config config;
    char *ca_file; /* the configuration's */
    SSL_CTX *tls;
    struct list pools;
    struct list flush;
    struct list dead; /* connections that are freed when no call is inside one any more */
    struct loop_timer tick, kick;
    unsigned inside;
    bool kicked; /* calls wait, or there is new room: client_leave looks */
    bool freeing;
    struct http_client_stats stats;
};

/* client.c */
/* The call is over: out of its lists, and done() is called. */
void call_finish(struct http_client *client, struct http_call *call, int rc, const struct leat_error *err);
/* Back to where it waited, at the front, or over if it was tried too often or may not be repeated. */
void call_again(struct http_pool *pool, struct http_call *call, const struct leat_error *err);
/* No connection can be made: fails the waiting requests. */
void pool_fail(struct http_pool *pool, int rc, const struct leat_error *err);
/*
 * One attempt to connect failed. Another address is tried when the client is left; when all were, and nothing else is open or on its way, those
 * waiting requests fail.
 */
void pool_attempt_failed(struct http_pool *pool, unsigned address, int rc, const struct leat_error *err);
/* Around everything that may call back. The last to leave gives waiting calls to connections, sends, and frees. */
void client_enter(struct http_client *client);
void client_leave(struct http_client *client);

/* conn.c */
/* Received bytes are handled as they come: the connection is slower than expected. */
void http_conn_hasten(struct http_conn *conn);
/* Begins to connect to the pool's next address, whose number is in ret_address. 0 or -errno, with a message. */
int http_conn_open(struct http_pool *pool, unsigned *ret_address, struct leat_error *err);
/* Takes the call at its end; it is sent when the client is left. */
void http_conn_take(struct http_conn *conn, struct http_call *call);
/* Its calls end, or wait again; the connection is gone afterwards (freed a little later). */
void http_conn_close(struct http_conn *conn, int rc, const struct leat_error *err);
void http_conn_send(struct http_conn *conn);
void http_conn_free(struct http_conn *conn);

/* tls.c */
int tls_context(const struct http_client_config *config, SSL_CTX **ret_context, struct leat_error *err);
int tls_begin(struct http_conn *conn, struct leat_error *err);
/* 1: done; 0: continues, *ret_events is what to wait for; negative: failed. */
int tls_handshake(struct http_conn *conn, uint32_t *ret_events, struct leat_error *err);
/* OpenSSL writes without MSG_NOSIGNAL. Around all that may write; they nest. */
struct tls_quiet {
    sigset_t before;
    bool pending;
};
void tls_quiet_enter(struct tls_quiet *q);
void tls_quiet_leave(const struct tls_quiet *q);
void tls_bye(struct http_conn *conn);
/* As recv and send of a socket that does not block: bytes, 0 at the end, -EAGAIN, or another -errno. */
ssize_t tls_read(struct http_conn *conn, void *buf, size_t len, struct leat_error *err);
ssize_t tls_write(struct http_conn *conn, const void *buf, size_t len, struct leat_error *err);

#endif
