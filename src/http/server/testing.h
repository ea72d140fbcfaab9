/* SPDX-License-Identifier: Apache-2.0 */
/*
 * testing.h: a server for tests, and a client that sends exactly the given bytes. Paths and what they do:
 *
 *   /hello          "hello" at once                    /late     the same, from a worker
 *   /echo           the body back, streamed in         /into     the body back, received into buffers of ?size= bytes
 *   /hold           nothing, until rig_release         /refuse   403 at once, the body unread
 *   /file           rig.file, by sendfile              /mixed    "head-", bytes 10-19 of rig.file, "-tail", several times
 *   /flow?n=        n instalments of 10,000 bytes, each after `more`; &unknown: chunked; &short: less than announced
 *   /slow           the body is counted; a worker gives the next buffer
 *   /text?n=        n bytes, copied; &failing of /flow: http_abort half-way
 */
#ifndef HTTP_SERVER_TESTING_H
#define HTTP_SERVER_TESTING_H

#include "http/server/http_server.h"
#include "http/server/workers.h"

#define PATIENCE_NS (120 * 1000000000ull) /* a test that hangs ends after so long */

struct rig {
    struct http_server *server;
    struct http_workers *workers;
    int file;
    uint64_t file_bytes;
    char folder[64];
    /* Observations. */
    _Atomic unsigned begun, over_good, over_gone, over_cancelled, over_corrupt, lefts, works, dead_works;
    _Atomic uint64_t streamed;
    _Atomic bool release; /* workers of /late wait for it where `gated` */
    _Atomic bool gated;
    struct http_ref last; /* of the last request that was begun; refers to none after its answer */
};

/* config may be NULL; listens at 127.0.0.1 and any port unless it says otherwise. */
void rig_start(struct rig *rig, const struct http_server_config *config);
/* All that was begun must be over by then. */
void rig_stop(struct rig *rig);
/* Waits until the counter is at least n; fails the test after TEST_WAIT_S. */
void rig_await(_Atomic unsigned *counter, unsigned n);
unsigned rig_overs(struct rig *rig);

/* A connection, blocking with a deadline. */
int rig_connect(struct rig *rig);
int rig_connect_narrow(struct rig *rig, int bytes); /* that the client has room for; small segments */
void rig_send(int fd, const void *data, size_t len);
static inline void rig_say(int fd, const char *text)
{
    rig_send(fd, text, strlen(text));
}

struct answer {
    int status;
    bool keep_alive, chunked, has_length;
    uint64_t length;
    char *head;
    char *body; /* with a NUL behind it */
    size_t body_len;
    bool cut; /* it ended before its end */
};
/* Bytes that were read behind an answer stay for the next. */
struct stream {
    int fd;
    char *buf;
    size_t have, cap;
    bool end;
};
void stream_fini(struct stream *s); /* closes */
/* One answer; false: the connection ended before its head was whole. method: of its request. */
bool stream_answer(struct stream *s, const char *method, struct answer *ret_answer);
void answer_fini(struct answer *a);
/* Says `text`, wants this status, and the connection closed behind it where `closed`. */
void rig_expect(struct rig *rig, const char *text, int status, bool closed);
/* Nothing more comes, and the peer has closed. */
bool stream_ended(struct stream *s);

#endif
