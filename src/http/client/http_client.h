/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_client.h: requests over HTTP/1.1 with or without TLS, many at a time over a bounded set of connections, payload received straight
 * into its destination. One client belongs to one loop and its thread.
 *
 *   http_call_start ──▶ waiting ──▶ on a connection (behind up to `pipeline` - 1 others) ──▶ head() ──▶ payload ──▶ done()
 *
 * done() runs exactly once for each call that was started and not cancelled, never inside http_call_start. It may start calls, and may free
 * its own. After done(), or after http_call_cancel has returned, nothing touches the destination any more: a call whose
 * connection may still bring its bytes takes the connection with it.
 *
 * Not here: signatures, retries after a server's refusal, redirects: backend/s3 does those. The client repeats a request by itself if its peer had
 * closed the connection before, and if the request is marked as safe to repeat.
 */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include "base/base.h"
#include "base/bytes.h"
#include "base/list.h"
#include "base/pieces.h"
#include "wire/http/http.h"

struct loop;
struct http_client;
struct http_conn;
struct http_pool;
struct http_call;

struct http_origin {
    bool tls;
    uint16_t port;
    char host[320]; /* name or address, no brackets: also what the certificate must be for */
};

struct http_client_config {
    unsigned connections; /* to one origin at a time; 0: 16 */
    unsigned pipeline;    /* small calls on one connection at a time; 0: 8, 1: none */
    uint64_t connect_ns;  /* for name, connection and TLS; 0: 5 s */
    uint64_t silence_ns;  /* a connection with calls that brings nothing for this time is closed; 0: 20 s */
    uint64_t keep_ns;     /* an unused connection is kept; 0: 15 s */
    const char *ca_file;  /* PEM; NULL: the system's. SSL_CERT_FILE and SSL_CERT_DIR count as with OpenSSL */
    bool insecure;        /* do not check certificates: only on a user's demand */
    bool
        tls; /* will be spoken: a ca_file that is wrong fails http_client_new, else the first that needs it */
};

struct http_call {
    /* in; all of it stays the caller's, and stays as it is until done() */
    const struct http_origin *origin; /* used by http_call_start only */
    const char *method;               /* as in the head: what answer to expect */
    const void *head;                 /* the request up to and with the empty line */
    size_t head_len;
    const void *body;
    size_t body_len;
    bool repeatable; /* sending it twice does no harm: GET, HEAD, PUT of the same bytes */
    bool
        small; /* its answer is expected to be small: it may share a connection with others at the same time */
    uint64_t deadline_ns; /* clock_now_ns() at which it is over; 0: none */
    /*
     * The head of the answer is there (never an interim one): `reader` and `buf` may be read for headers
     * until it returns. It chooses the destination: sets dst and dst_bytes, or sink, or neither (then the
     * payload is kept in `text`, up to text_max). A negative answer ends the call with it. A body longer than
     * dst_bytes ends it with LEAT_CORRUPT. Neither this nor `sink` cancels calls.
     */
    int (*on_head)(struct http_call *call, const struct http_reader *reader, const char *buf,
                   struct leat_error *err);
    struct pieces dst; /* of dst_bytes */
    uint64_t dst_bytes;
    int (*sink)(struct http_call *call, const void *data,
                size_t len); /* a negative answer ends the call with it */
    size_t text_max;         /* 0: 64 KiB */
    void (*done)(struct http_call *call, int rc, const struct leat_error *err);

    /* out, once done */
    int status;            /* of the answer; 0: there was none */
    uint64_t received;     /* payload bytes */
    struct bytes_out text; /* bytes_out_fini is the caller's */
    uint64_t started_ns;

    /* the client's */
    struct list node;
    struct http_pool *pool;
    struct http_conn *conn;
    struct pieces place; /* what is left of dst */
    bool queued, sink_text;
    unsigned tries;
};

struct http_client_stats {
    uint64_t calls, connections, handshakes, resumed, repeated; /* made since the start */
    uint64_t bytes_in, bytes_straight; /* payload, and how much of it needed no copy of ours */
    uint64_t
        first_byte_ns; /* the least time from a request to the first byte of its answer; 0: none came yet */
    unsigned open, waiting; /* now */
};

/* The most that one connection holds while a call is under way: buffers, the text of an error, TLS. A page
 * of a list does not count. */
uint64_t http_connection_bytes(void);
/* Of a configuration with `tls`, LEAT_NOT_FOUND, LEAT_INVALID: ca_file; -ENOMEM. */
int http_client_new(struct loop *loop, const struct http_client_config *config,
                    struct http_client **ret_client, struct leat_error *err);
/* Calls that are not over end with -ECANCELED, here. NULL is fine. */
void http_client_free(struct http_client *client);
/* 0, or -ENOMEM, or -ECANCELED while the client ends (then done() will not run). */
int http_call_start(struct http_client *client, struct http_call *call);
/* Sends requests that were started outside of the client's callbacks now, instead of in the loop's next
 * turn. done() may run in here. */
void http_client_flush(struct http_client *client);
/* done() will not be called; `text` may be freed. Harmless for a call that is over or was never started. */
void http_call_cancel(struct http_client *client, struct http_call *call);
void http_client_stats(const struct http_client *client, struct http_client_stats *ret_stats);

#endif
