/* SPDX-License-Identifier: Apache-2.0 */
/*
 * input.c: heads and bodies of requests.
 *
 * Happy path: a head is received into the exchange's buffer, shown to the parser, and to the handler. A body of known length goes straight to the
 * memory that the handler gave, or through the reactor's scratch to its `data`. A chunked one goes through the exchange's buffer, behind the
 * head, so that what follows the body stays there.
 * Failure modes: a peer that ends too early is LEAT_PEER_GONE; framing that breaks is LEAT_CORRUPT and a 400.
 * Invariants: [at, have) of the buffer is received and not used; the head before it does not move once the handler has seen it. Chunks
 * never bring more payload than the bytes they come in, so what is fed is never more than there is room for. Framing may cost eight times
 * the payload and 64 KiB: more is an attack on the processor.
 */
#include "http/server/server_internal.h"

#include "base/clock.h"

#define FRAMING_MAX (64 * KIB)

ssize_t sconn_read(struct http_server_conn *conn, void *buf, size_t len)
{
    if (!conn->readable)
        return -EAGAIN;
    ssize_t n;
    if (conn->ssl) {
        n = sconn_tls_read(conn, buf, len);
        if (n > 0 && (size_t)n < len && !SSL_has_pending(conn->ssl))
            conn->readable = false;
    } else {
        n = recv(conn->source.fd, buf, len, MSG_DONTWAIT);
        if (n < 0)
            n = -errno;
        if (n > 0 && (size_t)n < len)
            conn->readable = false;
    }
    if (n == -EINTR)
        n = -EAGAIN;
    if (n == -EAGAIN)
        conn->readable = false;
    if (n > 0) {
        conn->bytes_in += (size_t)n;
        bump(&conn->reactor->stats.bytes_in, (size_t)n);
    }
    return n;
}

/* The bytes' end inside a message. */
static enum step cut_short(struct http_server_conn *conn, ssize_t n)
{
    if (n == -EAGAIN)
        return STEP_WAIT;
    sconn_close(conn, LEAT_PEER_GONE);
    return STEP_GONE;
}

static void show(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    struct http_request *req = &ex->req;
    struct http_reader *r = &ex->reader;
    struct http_text target = http_target(r, ex->buf);
    const char *mark = memchr(target.data, '?', target.len);
    req->method = r->method;
    req->target = req->path = target;
    req->query = (struct http_text){0};
    if (mark) {
        req->path.len = (size_t)(mark - target.data);
        req->query = (struct http_text){mark + 1, target.len - req->path.len - 1};
    }
    req->reader = r;
    req->head = ex->buf;
    req->listener = conn->listener;
    req->tls = conn->ssl != NULL;
    req->is_head = strcmp(r->method, "HEAD") == 0;
    req->body_bytes = ex->body_left;
    ex->body_ended = r->body == HTTP_BODY_NONE || (r->body == HTTP_BODY_LENGTH && r->body_bytes == 0);
    ex->continue_owed =
        r->expects_continue && r->parser.http_minor > 0 && !ex->body_ended && ex->at == ex->have;
    ex->shown = true;
    bump(&conn->reactor->stats.requests, 1);
    struct http_handler *h = &conn->reactor->server->config.handler;
    h->request(h->user, req);
}

static enum step head_whole(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    struct http_reader *r = &ex->reader;
    const char *message;
    ex->at = r->head_bytes;
    conn->state = SCONN_REQUEST;
    unsigned status = http_request_refusal(r, ex->buf, &message);
    if (status) {
        sconn_refuse(conn, status, message);
        return STEP_ON;
    }
    ex->body_left = r->body == HTTP_BODY_LENGTH    ? r->body_bytes
                    : r->body == HTTP_BODY_CHUNKED ? HTTP_BODY_UNKNOWN
                                                   : 0;
    if (r->body == HTTP_BODY_CHUNKED &&
        !exchange_grow(conn->reactor->server, ex, r->head_bytes + CHUNKED_BUFFER)) {
        sconn_refuse(conn, 503, "the server is overloaded: try again later");
        return STEP_ON;
    }
    show(conn);
    return STEP_ON;
}

enum step input_head(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    struct leat_error err = {0};
    size_t head_max = HTTP_HEAD_MAX;
    if (ex->have == ex->reader.fed) {
        if (ex->have == ex->cap && !exchange_grow(conn->reactor->server, ex, MIN(ex->cap * 2, head_max))) {
            conn->state = SCONN_REQUEST;
            sconn_refuse(conn, 503, "the server is overloaded: try again later");
            return STEP_ON;
        }
        ssize_t n = sconn_read(conn, ex->buf + ex->have, ex->cap - ex->have);
        if (n <= 0)
            return cut_short(conn, n);
        if (ex->have == 0)
            ex->req.began_ns = clock_now_ns();
        ex->have += (size_t)n;
    }
    int rc = http_head_feed(&ex->reader, ex->buf, ex->have, NULL, &err);
    if (rc == 0)
        return STEP_ON;
    if (rc > 0) {
        http_target_root(&ex->reader, ex->buf);
        return head_whole(conn);
    }
    conn->state = SCONN_REQUEST;
    if (rc == LEAT_NO_SPACE)
        sconn_refuse(conn, 431, "a head may have 64 KiB and 128 headers");
    else if (ex->reader.whole && ex->reader.parser.http_major != 1)
        sconn_refuse(conn, 505, "HTTP/1.1 is spoken here");
    else
        sconn_refuse(conn, 400, err.message);
    return STEP_ON;
}

bool input_wanted(const struct exchange *ex)
{
    if (ex->answered || ex->mode == BODY_UNWANTED)
        return false;
    return ex->mode == BODY_STREAM || ex->into;
}

/* --- to the handler ------------------------------------------------------------------------------------------------------ */

static void give_data(struct exchange *ex, const void *data, size_t len, bool last)
{
    if (last)
        ex->mode = BODY_UNWANTED;
    if (ex->req.ops && ex->req.ops->data)
        ex->req.ops->data(&ex->req, data, len, last);
}

static void give_full(struct exchange *ex)
{
    size_t got = ex->into_got;
    ex->into = NULL;
    if (ex->body_ended)
        ex->mode = BODY_UNWANTED;
    if (ex->req.ops && ex->req.ops->full)
        ex->req.ops->full(&ex->req, got, ex->body_ended);
}

/* Into the handler's buffer; or, to be streamed, together to where the chunks themselves begin: never past what is parsed already. */
static int take_chunk(void *user, const void *data, size_t len)
{
    struct exchange *ex = user;
    ex->payload += len;
    memmove(ex->into + ex->into_got, data, len);
    ex->into_got += len;
    return 0;
}

static enum step broken_framing(struct http_server_conn *conn, const char *message)
{
    if (conn->ex->shown)
        exchange_over(conn->ex, LEAT_CORRUPT);
    sconn_refuse(conn, 400, message);
    return STEP_ON;
}

/* Bytes of a chunked body, `most` at a time at most. */
static enum step feed_chunked(struct http_server_conn *conn, size_t most)
{
    struct exchange *ex = conn->ex;
    struct leat_error err = {0};
    if (ex->at == ex->have) {
        size_t begin = ex->reader.head_bytes;
        ex->at = ex->have = begin;
        ssize_t n = sconn_read(conn, ex->buf + begin, MIN(most, ex->cap - begin));
        if (n <= 0)
            return cut_short(conn, n);
        ex->have += (size_t)n;
    }
    if (ex->mode == BODY_STREAM) {
        ex->into = ex->buf + ex->at;
        ex->into_got = 0;
    }
    size_t used, len = MIN(most, ex->have - ex->at);
    int rc = http_body_feed(&ex->reader, ex->buf + ex->at, len, take_chunk, ex, &used, &err);
    if (rc < 0)
        return broken_framing(conn, err.message);
    ex->at += used;
    ex->raw += used;
    ex->body_ended = ex->reader.ended;
    if (ex->raw - ex->payload > FRAMING_MAX + 8 * ex->payload)
        return broken_framing(
            conn, "chunks are so small, or their extensions so long, that framing outweighs the body");
    return STEP_ON;
}

/*
 * The next bytes of a body of known length, `cap` at most: those that came with the head where they lie, others received into `to`. They count as
 * taken.
 */
static enum step take_plain(struct http_server_conn *conn, char *to, size_t cap, const char **ret_data,
                            size_t *ret_len)
{
    struct exchange *ex = conn->ex;
    size_t most = (size_t)MIN((uint64_t)cap, ex->body_left), len = MIN(most, ex->have - ex->at);
    *ret_data = ex->buf + ex->at;
    if (len) {
        ex->at += len;
    } else {
        ssize_t n = sconn_read(conn, to, most);
        if (n <= 0)
            return cut_short(conn, n);
        *ret_data = to;
        len = (size_t)n;
    }
    *ret_len = len;
    ex->body_left -= len;
    ex->body_ended = ex->body_left == 0;
    return STEP_ON;
}

static enum step stream_step(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    if (ex->body_ended) {
        give_data(ex, "", 0, true);
        return STEP_ON;
    }
    if (ex->reader.body == HTTP_BODY_CHUNKED) {
        enum step step = feed_chunked(conn, SCRATCH);
        if (step == STEP_ON && ex->shown && (ex->into_got || ex->body_ended))
            give_data(ex, ex->into, ex->into_got, ex->body_ended);
        return step;
    }
    const char *data;
    size_t len;
    enum step step = take_plain(conn, conn->reactor->scratch, SCRATCH, &data, &len);
    if (step == STEP_ON)
        give_data(ex, data, len, ex->body_ended);
    return step;
}

static enum step into_step(struct http_server_conn *conn)
{
    struct exchange *ex = conn->ex;
    size_t room = ex->into_len - ex->into_got;
    enum step step = STEP_ON;
    if (!ex->body_ended && room && ex->reader.body == HTTP_BODY_CHUNKED) {
        step = feed_chunked(conn, room);
        if (step != STEP_ON || !ex->shown)
            return step;
    } else if (!ex->body_ended && room) {
        const char *data;
        char *to = ex->into + ex->into_got;
        size_t len;
        step = take_plain(conn, to, room, &data, &len);
        if (step != STEP_ON)
            return step;
        if (data != to)
            memcpy(to, data, len);
        ex->into_got += len;
    }
    if (ex->body_ended || ex->into_got == ex->into_len)
        give_full(ex);
    return STEP_ON;
}

enum step input_body(struct http_server_conn *conn)
{
    return conn->ex->mode == BODY_INTO ? into_step(conn) : stream_step(conn);
}

/* The unwanted rest of a body, so that the next request can be read. */
enum step input_drain(struct http_server_conn *conn)
{
    const char *data;
    size_t len;
    return take_plain(conn, conn->reactor->scratch, SCRATCH, &data, &len);
}

/* --- what a handler asks for --------------------------------------------------------------------------------------------- */

static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";

static void want(struct http_request *req, enum body_mode mode)
{
    struct exchange *ex = container_of(req, struct exchange, req);
    assert(!ex->answered);
    ex->mode = mode;
    if (ex->continue_owed) {
        ex->continue_owed = false;
        if (!output_add(ex, &(struct http_piece){.data = go_on, .bytes = sizeof(go_on) - 1}, true))
            ex->abort_rc = -ENOMEM;
    }
    exchange_wake(ex);
}

void http_body_stream(struct http_request *req)
{
    want(req, BODY_STREAM);
}

void http_body_into(struct http_request *req, void *buf, size_t len)
{
    struct exchange *ex = container_of(req, struct exchange, req);
    assert(len > 0);
    ex->into = buf;
    ex->into_len = len;
    ex->into_got = 0;
    want(req, BODY_INTO);
}
