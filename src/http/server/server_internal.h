/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_internal.h: between server.c (addresses, start, stop), reactor.c (a thread and what it owns), conn.c (one connection's states),
 * input.c, output.c, answer.c (a request's bytes), request.c (what is refused), tls.c and workers.c.
 */
#ifndef HTTP_SERVER_INTERNAL_H
#define HTTP_SERVER_INTERNAL_H

#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/list.h"
#include "base/budget.h"
#include "loop/loop.h"
#include "http/server/http_server.h"
#include "http/server/workers.h"

#define HEAD_BUFFER    (8 * KIB)  /* a request begins with so much, and may have eight times that */
#define CHUNKED_BUFFER (64 * KIB) /* behind the head, for chunked bodies as they come */
#define SCRATCH        (64 * KIB) /* a reactor's, for bytes that are used before it does anything else */
#define SPARE_MAX      64u        /* exchanges that a reactor keeps */
#define PIECES_INLINE  8u
#define QUANTUM_BYTES  (4 * MIB) /* a connection moves so many before the next one has its turn */
#define LINGER_NS      (5 * 1000000000ull)
#define LINGER_BYTES   (64 * MIB)
#define BACKLOG        4096 /* connections that the kernel holds for a listener */
#define LINGERERS_MAX  64u  /* connections over the limit that a reactor answers at a time */

/*
 * HANDSHAKE ─▶ IDLE ─▶ HEAD ─▶ REQUEST ─┬─▶ (DRAIN ─▶) IDLE, or HEAD where the next one is here already
 *                                       └─▶ LINGER ─▶ closed
 */
enum sconn_state { SCONN_HANDSHAKE, SCONN_IDLE, SCONN_HEAD, SCONN_REQUEST, SCONN_DRAIN, SCONN_LINGER };

/* One connection. While it is idle this is all there is to it (with TLS: and OpenSSL's own, without its buffers). */
struct http_server_conn {
    struct list node;       /* reactor.idle or reactor.active, by its state */
    struct list ready_node; /* reactor.ready: it can continue without waiting for its socket */
    struct loop_source source;
    struct http_reactor *reactor;
    struct exchange *ex; /* NULL while idle */
    SSL *ssl;
    uint64_t since_ns;                /* idle, shaking hands, lingering: since */
    uint64_t window_ns, window_bytes; /* slow peers: when the window began, and how much had moved by then */
    uint64_t bytes_in, bytes_out;     /* on the socket */
    struct http_message message;      /* on its way to another reactor */
    uint16_t listener;
    uint8_t state;    /* enum sconn_state */
    bool readable;    /* the socket may have something */
    bool driving;     /* sconn_drive is at work on it */
    bool io_other;    /* TLS waits for the other direction than what was tried */
    bool read_closed; /* the peer has closed its side */
    bool extra;       /* over the limit: counted in reactor.lingerers */
};

enum body_mode { BODY_UNWANTED, BODY_STREAM, BODY_INTO };

struct out_piece {
    struct http_piece p;
    bool framing; /* not body */
};

/* A message under way and its answer. */
struct exchange {
    struct http_request req;
    struct http_server_conn *conn;
    struct list spare_node;
    uint32_t slot;
    bool shown;   /* to the handler: over is owed */
    int abort_rc; /* negative: it ends with this when the handler returns */

    /* in */
    struct http_reader reader;
    char *buf; /* the head, then what came with it and is not used: [at, have) */
    size_t cap, at, have;
    enum body_mode mode;
    bool body_ended, continue_owed;
    uint64_t body_left, raw, payload;
    char *into;
    size_t into_len, into_got;

    /* out */
    struct bytes_out head;
    bool answered, close_after, last, chunked, asked, no_body;
    uint64_t total, given;
    struct out_piece inline_pieces[PIECES_INLINE], *pieces;
    unsigned npieces, pieces_cap, piece_at;
    char chunk_head[24];
    uint64_t head_charged;
    size_t record;       /* TLS has taken so many bytes and not sent them; 0: none */
    uint64_t warm_until; /* of the piece at work: what is before it is in the page cache */
    struct warming *warming;
};

struct slot {
    struct exchange *ex;
    uint32_t generation, next_free;
};

struct reactor_stats {
    _Atomic uint64_t accepted, handshakes, handshakes_failed, resumed, requests, answers[6], refused,
        overload, timeouts, aborted, bytes_in, bytes_out, conns, busy;
    struct histogram latency;
};

struct listener {
    struct http_listen what;
    int fd;
    char *address; /* as it came out */
    char *unlink;  /* of a unix socket */
};

struct reactor_listener {
    struct loop_source source;
    struct http_reactor *reactor;
    unsigned index;
    bool resting; /* not in the loop until the next tick */
};

enum stop_level { STOP_NOT, STOP_NO_MORE, STOP_BREAK, STOP_END };

struct http_reactor {
    struct http_server *server;
    struct loop *loop;
    pthread_t thread;
    bool started;
    struct loop_source wake; /* eventfd; its arm() says whether `ready` has any */
    struct loop_timer tick;
    struct http_message *_Atomic posted; /* newest first */
    atomic_int stop;                     /* enum stop_level */
    int stopped;                         /* what of it was done */
    atomic_bool failed;                  /* its loop: it has no connections, and takes none */
    struct reactor_listener *listeners;
    struct list idle, active, ready, spare;
    unsigned nspare, lingerers;
    struct slot *slots;
    uint32_t nslots, free_slot; /* UINT32_MAX: none */
    char *scratch;
    int spare_fd; /* to be closed when no descriptor is left, to take and close what waits */
    uint64_t emfile_logged_ns;
    time_t date_at;
    char date[HTTP_DATE_BYTES];
    struct reactor_stats stats;
};

struct http_server {
    struct http_server_config config;
    struct listener *listeners;
    unsigned nlisteners;
    struct http_reactor *reactors;
    unsigned nreactors;
    char *cert_file, *key_file, *name;
    pthread_mutex_t tls_lock;
    SSL_CTX *tls;
    struct budget budget;
    _Atomic uint64_t conns;
    struct bytes_out overload; /* the 503 that needs no memory */
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_cond;          /* links became 0, or a reactor stop_acked */
    unsigned stop_acked[STOP_END + 1]; /* reactors, by level; under stop_lock */
    _Atomic bool stopping;             /* http_server_stop was called */
};

static inline void bump(_Atomic uint64_t *counter, uint64_t n)
{
    /* A reactor's counters have one writer. */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* request.c: pure */
/* 0, or the status with which a head that could be read in two ways, or not by us, is refused; *ret_message says why. */
unsigned http_request_refusal(const struct http_reader *r, const char *buf, const char **ret_message);

/* listen.c */
int listener_open(struct listener *l, const struct http_listen *what, struct leat_error *err);
void listener_close(struct listener *l); /* the address stays to be read */
void http_address_text(const struct sockaddr_storage *addr, char *out, size_t cap);

/* reactor.c */
int reactor_init(struct http_reactor *reactor, struct http_server *server);
int reactor_start(struct http_reactor *reactor);
void reactor_fini(struct http_reactor *reactor); /* joins; NULL memory is fine */
void reactor_stop(struct http_reactor *reactor, int level);
void reactor_ready(struct http_server_conn *conn);
/* NULL: no memory, or the cap. */
struct exchange *exchange_take(struct http_reactor *reactor, struct http_server_conn *conn);
void exchange_give(struct http_reactor *reactor, struct exchange *ex);
bool exchange_grow(struct http_server *server, struct exchange *ex, size_t cap);
/* References to it find nothing from now on. */
void exchange_forget(struct http_reactor *reactor, struct exchange *ex);
struct http_request *reactor_find(struct http_ref ref);
const char *reactor_date(struct http_reactor *reactor);

/* conn.c */
/* Takes the descriptor, whatever it answers. */
void sconn_open(struct http_reactor *reactor, unsigned listener, int fd, bool over_limit);
void sconn_arrive(struct http_message *message, struct http_request *none);
void sconn_close(struct http_server_conn *conn, int rc);
void sconn_drive(struct http_server_conn *conn);
void sconn_tick(struct http_server_conn *conn, uint64_t now);
void sconn_refuse(struct http_server_conn *conn, unsigned status, const char *message);
/* A call by the handler has changed what is to be done. */
void exchange_wake(struct exchange *ex);
/* over(rc), and no reference finds it any more. */
void exchange_over(struct exchange *ex, int rc);

/* input.c */
enum step { STEP_ON, STEP_WAIT, STEP_GONE };
/* Bytes, 0 at the end, -EAGAIN, or another -errno. */
ssize_t sconn_read(struct http_server_conn *conn, void *buf, size_t len);
enum step input_head(struct http_server_conn *conn);
enum step input_body(struct http_server_conn *conn);
enum step input_drain(struct http_server_conn *conn);
bool input_wanted(const struct exchange *ex);

/* output.c */
/* 1: all pieces are with the kernel; 0: it waits; LEAT_CORRUPT: a file is too short; LEAT_PEER_GONE. */
int output_send(struct http_server_conn *conn, size_t *ret_moved);
bool output_add(struct exchange *ex, const struct http_piece *piece, bool framing);

/* answer.c */
void respond_refusal(struct http_server *server, struct exchange *ex, unsigned status, const char *message);
void put_status(struct bytes_out *out, unsigned status, const char *date, const char *server_name);

/* tls.c */
int server_tls_context(const char *cert_file, const char *key_file, SSL_CTX **ret_context,
                       struct leat_error *err);
int sconn_tls_begin(struct http_server_conn *conn);
/* 1: done; 0: continues; negative: failed. */
int sconn_tls_handshake(struct http_server_conn *conn);
ssize_t sconn_tls_read(struct http_server_conn *conn, void *buf, size_t len);
ssize_t sconn_tls_write(struct http_server_conn *conn, const void *buf, size_t len);
bool sconn_tls_in_kernel(const struct http_server_conn *conn);
/* Only there. */
ssize_t sconn_tls_sendfile(struct http_server_conn *conn, int fd, uint64_t at, size_t len);
void sconn_tls_bye(struct http_server_conn *conn);

/* warm.c */
/* Is what comes next of a file in the page cache? false: it is being fetched, and the conn will be woken. */
bool warm_ready(struct exchange *ex, const struct http_piece *piece);
void warm_forget(struct exchange *ex);

#endif
