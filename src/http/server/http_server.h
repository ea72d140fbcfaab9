/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_server.h: HTTP/1.1 for any service. A few event-loop threads ("reactors") own the connections; each
 * request is shown to one handler, which answers at once or later, from memory, from files or piece by piece.
 *
 *   head whole ─▶ handler->request(req) ─┬─ http_send...()                          answered inside: the fast path
 *                                        ├─ http_body_stream / http_body_into ─▶ ops->data / ops->full ─▶ http_send...()
 *                                        └─ http_work_start(ref) ─▶ a thread ─▶ done() on the reactor ─▶ http_send...()
 *   sent to the last byte, or aborted ─▶ ops->over(req, rc)
 *
 * Threads: a request belongs to its reactor. Everything that takes a `struct http_request *` is called on that reactor's thread: from the
 * handler, from an op, or from an http_message that was posted to it. Other threads hold an http_ref and post. Handlers of different
 * reactors run at the same time; none may block: blocking work goes to http_workers (workers.h).
 *
 * Refused before a handler sees them: heads over 64 KiB or 128 headers (431); no or several Hosts; ambiguous heads
 * (Content-Length and Transfer-Encoding, two of either, folded headers, bare CR or LF, targets that are not a path) (400, closed),
 * expectations other than 100-continue (417), memory over the cap (503). See 0091.
 */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include <sys/types.h>

#include "base/base.h"
#include "base/bytes.h"
#include "base/histogram.h"
#include "wire/http/http.h"

struct http_server;
struct http_request;
struct http_reactor;

#define HTTP_BODY_UNKNOWN UINT64_MAX

/* --- handlers ------------------------------------------------------------------------------------------------------------ */

/* The server's own answer, where no request reached the handler. */
struct http_refusal {
    unsigned status;     /* 400, 408, 411, 413, 417, 431, 501, 503, 505 */
    const char *message; /* a sentence for a person; plain ASCII */
    const char *method;  /* NULL: the head was not understood */
    struct http_text target;
    unsigned listener;
};

struct http_handler {
    /*
     * A head is whole and good. A reactor's thread; `req` lives until ops->over. Sets req->ops and req->user
     * if it wants later callbacks. A request that is not answered inside stays until it is answered.
     */
    void (*request)(void *user, struct http_request *req);
    /* Puts header lines (Content-Type at least) and a body for a refusal. Any reactor's thread. NULL: plain text. */
    void (*refuse)(void *user, const struct http_refusal *refusal, struct bytes_out *headers,
                   struct bytes_out *body);
    void *user;
};

/* All optional. None is called after `over`, and `over` exactly once if ops are set; never from inside a call of ours. */
struct http_ops {
    /* http_body_stream: payload as it comes, valid until return. `last`: with len 0 where the end came alone. */
    void (*data)(struct http_request *req, const void *data, size_t len, bool last);
    /* http_body_into: the buffer is full, or the body has ended (`last`). `got` bytes of it were written. */
    void (*full)(struct http_request *req, size_t got, bool last);
    /* All pieces that were given are with the kernel, and http_send's `last` has not been: http_send_more now or later. */
    void (*more)(struct http_request *req);
    /* The peer closed its side before the answer. Nearly all such peers are gone: http_abort is fair. */
    void (*left)(struct http_request *req);
    /*
     * The end. 0: answered, and all of it is with the kernel. LEAT_PEER_GONE: the peer left, or was slower
     * than allowed; LEAT_CORRUPT: a body that breaks its framing, or a file that was shorter than its piece;
     * -ECANCELED: http_abort, or the server stops. Memory and descriptors that were lent to the server are
     * the handler's again. `req` is gone afterwards.
     */
    void (*over)(struct http_request *req, int rc);
};

/* --- a request ----------------------------------------------------------------------------------------------------------- */

/* From another thread: valid for ever, harmless when its request is over. */
struct http_ref {
    struct http_reactor *reactor;
    uint32_t slot, generation;
};

struct http_request {
    const struct http_ops *ops; /* the handler's to set */
    void *user;                 /* the handler's */

    /* Read only; all of the head stays where it is until over. Worker threads copy what they need before they begin. */
    const char *method; /* static */
    struct http_text
        target; /* "/path?query", not decoded; never empty, begins with '/' (or is "*" for OPTIONS) */
    struct http_text path, query; /* of it; query without '?', data NULL where there is none */
    const struct http_reader *reader;
    const char *head;    /* http_header(req->reader, req->head, "range") */
    uint64_t body_bytes; /* that come; HTTP_BODY_UNKNOWN: chunked; 0: none */
    unsigned listener;   /* index of the address that it came to */
    bool tls;
    bool is_head;        /* HEAD: no body is sent, whatever is given */
    uint64_t began_ns;   /* clock_now_ns() when its first byte was seen */
    unsigned status;     /* of the answer, once there is one */
    uint64_t sent_bytes; /* of the answer's body, in `over` */
};

struct http_ref http_request_ref(const struct http_request *req);

struct http_peer {
    bool local;    /* unix socket */
    bool loopback; /* 127.0.0.0/8 or ::1 */
    uid_t uid;     /* local: of the process at the other end; else (uid_t)-1 */
    char text[64]; /* "192.0.2.7:1234", "[2001:db8::1]:1234", "unix" */
};
void http_request_peer(const struct http_request *req, struct http_peer *ret_peer);

/* --- its body ------------------------------------------------------------------------------------------------------------ */

/*
 * Without either of these a body is not read; an answer given before closes the connection behind it unless
 * what is left is short (drain_bytes). The first call sends "100 Continue" to a peer that waits for it.
 * Payload is what chunked framing carries, never the framing.
 *
 * stream: ops->data, in pieces of up to 64 KiB, as they come. A handler that must slow the peer down gives
 * one buffer at a time instead.
 */
void http_body_stream(struct http_request *req);
/* into: received straight into `buf` (what came with the head, and chunked bodies, are copied); then ops->full, whose handler gives the
 * next buffer, now or later. Memory stays the server's until full or over. Aligned for O_DIRECT if the caller's is: byte 0 goes to buf[0]. */
void http_body_into(struct http_request *req, void *buf, size_t len);

/* --- the answer ---------------------------------------------------------------------------------------------------------- */

/*
 * Begins an answer: the caller puts header lines (http_put_header) into the result, then sends. Date, Server,
 * Content-Length, Transfer-Encoding, Connection and Keep-Alive are the server's own. Called again before
 * sending, it begins again.
 */
struct bytes_out *http_respond(struct http_request *req, unsigned status);

/* A part of a body. Memory and descriptors stay the handler's, and as they are, until over. */
struct http_piece {
    const void *data; /* NULL: from fd */
    int fd;
    uint64_t at; /* in the file */
    uint64_t bytes;
};

/* A whole body, copied: small ones, which leave with their head in one system call. Content-Length: len. */
void http_send_copy(struct http_request *req, const void *data, size_t len);
/* The head alone: to HEAD, or 204, 304. Content-Length is `bytes`, none where HTTP_BODY_UNKNOWN. */
void http_send_head(struct http_request *req, uint64_t bytes);
/*
 * Body from pieces: all of it (`last`), or the first of several instalments. total: of all instalments, or HTTP_BODY_UNKNOWN (chunked then; to
 * HTTP/1.0 until the end of the connection). The array is copied; files go by sendfile. npieces may be 0: the head goes, `more` follows.
 * To HEAD the head goes and that is all: `more` is not called.
 */
void http_send(struct http_request *req, uint64_t total, const struct http_piece *pieces, unsigned npieces,
               bool last);
/* The next instalment; only after `more`, or after http_send without pieces. A sum over `total`, or under it at `last`, aborts. */
void http_send_more(struct http_request *req, const struct http_piece *pieces, unsigned npieces, bool last);
/* Aborts it: the connection is closed, so that the peer sees a body that is too short. over(-ECANCELED)
 * follows. */
void http_abort(struct http_request *req);
/* The connection closes behind this answer. */
void http_close_after(struct http_request *req);
/* "OK", "Not Found" ...; "Unknown" */
const char *http_reason(unsigned status);

/* --- from other threads -------------------------------------------------------------------------------------------------- */

/* Zeroed, then ref and fn set by the poster; memory is the poster's until fn runs. */
struct http_message {
    struct http_message *next; /* the server's */
    struct http_ref ref;
    /* On the reactor's thread, exactly once, in the order of posting. req: NULL when that request is over. May free the message. */
    void (*fn)(struct http_message *message, struct http_request *req);
};
/* Any thread, until http_server_free begins. Cannot fail. */
void http_post(struct http_message *message);

/* --- the server ---------------------------------------------------------------------------------------------------------- */

struct http_listen {
    const char *
        address; /* "127.0.0.1:9000", "[::]:9000", ":9000" (all), "unix:/run/leat/http.sock"; port 0: any free one */
    bool tls;
    unsigned mode; /* of a unix socket; 0: 0600 */
};

/* Zero means the value in brackets. */
struct http_server_config {
    const struct http_listen *listen;
    unsigned nlisten;
    unsigned reactors;                /* threads [1 per CPU, 4 at most] */
    const char *cert_file, *key_file; /* PEM, for listeners with TLS */
    const char *server_name;          /* of the header Server ["leat"] */
    unsigned connections_max;         /* [65536] past it: 503, closed */
    unsigned retry_after_s;           /* of a 503 [2] */
    uint64_t memory_bytes;            /* of all connections, heads, answers [256 MiB] */
    uint64_t drain_bytes; /* of an unwanted body are read and dropped, to keep a connection [256 KiB] */
    uint64_t head_ns;     /* for a whole head, and for a handshake [20 s] */
    uint64_t idle_ns;     /* between requests [75 s] */
    uint64_t slow_ns;     /* in so long ... [30 s] */
    uint64_t slow_bytes;  /* ... a peer must send or take this many bytes, or is closed [32 KiB] */
    struct http_handler handler;
    /* Reads of files that are not in the page cache go through these instead of stalling a reactor. NULL: reactors read. */
    struct http_workers *workers;
};

/* Listens and starts the reactors. LEAT_INVALID, LEAT_DENIED, LEAT_NOT_FOUND: addresses, files; -EADDRINUSE; -ENOMEM. */
int http_server_new(const struct http_server_config *config, struct http_server **ret_server,
                    struct leat_error *err);
/* The bound address i, with its port. Valid as long as the server. */
const char *http_server_address(const struct http_server *server, unsigned i);
/* Reads certificate and key again; connections made from now on get them. On failure the old ones stay. Any thread. */
int http_server_reload_tls(struct http_server *server, struct leat_error *err);
/*
 * No new connections: listening sockets are closed at once, and earlier connections are served. Idle ones
 * close; those with a request get grace_ns to end it, and learn that the connection closes; the rest is
 * aborted. Returns when no connection is left; messages still arrive. Not from a reactor's thread.
 */
void http_server_stop(struct http_server *server, uint64_t grace_ns);
/* It is stopping: not ready any more. Any thread. */
bool http_server_stopping(const struct http_server *server);
/* Stops with no grace if http_server_stop was not called. Workers that post must have ended
 * (http_workers_free) between stop and free. NULL is fine. */
void http_server_free(struct http_server *server);

struct http_server_stats {
    uint64_t accepted, handshakes, handshakes_failed, resumed; /* since the start */
    uint64_t connections, busy; /* now: all, and those with a request under way */
    uint64_t requests;
    uint64_t answers[6]; /* by class: [2] is 2xx; [0]: aborted without one */
    uint64_t refused;    /* by the server itself, 4xx and 5xx */
    uint64_t overload;   /* 503 because of connections_max or memory_bytes */
    uint64_t timeouts;   /* peers that were too slow */
    uint64_t aborted;    /* peers that left during a request */
    uint64_t bytes_in, bytes_out;
    uint64_t memory_bytes, memory_peak_bytes;
    struct histogram latency; /* first byte of a request to last of its answer */
};
/* A snapshot; any thread. */
void http_server_stats(struct http_server *server, struct http_server_stats *ret_stats);

#endif
