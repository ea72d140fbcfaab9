/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.c: what a handler says. Nothing is sent from here: pieces are noted, and the conn continues once the handler has returned.
 *
 * Happy path: http_respond begins the head, the handler adds lines, http_send... ends it with what frames the body, and notes the pieces.
 * Failure modes: no memory for them, or sums that contradict what was announced, break the exchange off; a peer then sees a body that is
 * too short, never one that is whole and wrong.
 */
#include "http/server/server_internal.h"

#include <stdio.h>

static struct exchange *exchange_of(struct http_request *req)
{
    return container_of(req, struct exchange, req);
}

static const struct {
    unsigned status;
    const char *reason;
} reasons[] = {
    {200, "OK"},
    {206, "Partial Content"},
    {304, "Not Modified"},
    {404, "Not Found"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {303, "See Other"},
    {307, "Temporary Redirect"},
    {308, "Permanent Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {410, "Gone"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {421, "Misdirected Request"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
    {507, "Insufficient Storage"},
};

const char *http_reason(unsigned status)
{
    for (unsigned i = 0; i < ARRAY_LEN(reasons); i++) {
        if (reasons[i].status == status)
            return reasons[i].reason;
    }
    return "Unknown";
}

void put_status(struct bytes_out *out, unsigned status, const char *date, const char *server_name)
{
    char line[] = "HTTP/1.1 000 ";
    for (unsigned i = 0, rest = status; i < 3; i++, rest /= 10)
        line[11 - i] = (char)('0' + rest % 10);
    http_put(out, line);
    http_put(out, http_reason(status));
    http_put(out, "\r\n");
    http_put_header(out, "Date", date);
    http_put_header(out, "Server", server_name);
}

struct bytes_out *http_respond(struct http_request *req, unsigned status)
{
    struct exchange *ex = exchange_of(req);
    assert(!ex->answered && status >= 200 && status <= 599);
    struct http_reactor *reactor = ex->conn->reactor;
    req->status = status;
    bytes_out_reset(&ex->head);
    put_status(&ex->head, status, reactor_date(reactor), reactor->server->name);
    return &ex->head;
}

/* Is the rest of the request's body small enough to be read, so that the connection can stay? */
static bool rest_is_short(const struct exchange *ex)
{
    if (ex->body_ended)
        return true;
    return !ex->continue_owed && ex->reader.body == HTTP_BODY_LENGTH &&
           ex->body_left <= ex->conn->reactor->server->config.drain_bytes;
}

/* Large heads and copied bodies count against the cap as well. */
static bool charge_head(struct exchange *ex)
{
    if (ex->head.cap <= ex->head_charged + HEAD_BUFFER)
        return true;
    if (budget_reserve(&ex->conn->reactor->server->budget, ex->head.cap - ex->head_charged) < 0)
        return false;
    ex->head_charged = ex->head.cap;
    return true;
}

/* The end of the head. total: of the body, or HTTP_BODY_UNKNOWN. */
static void end_head(struct exchange *ex, uint64_t total, bool bodiless)
{
    struct http_request *req = &ex->req;
    struct http_reactor *reactor = ex->conn->reactor;
    bool old = ex->reader.whole && ex->reader.parser.http_minor == 0;
    ex->no_body = bodiless || req->is_head || req->status == 204 || req->status == 304;
    if (total != HTTP_BODY_UNKNOWN && req->status != 204) {
        http_put_header_u64(&ex->head, "Content-Length", total);
    } else if (total == HTTP_BODY_UNKNOWN && !ex->no_body) {
        ex->chunked = !old;
        if (old)
            ex->close_after = true;
        else
            http_put(&ex->head, "Transfer-Encoding: chunked\r\n");
    }
    if (!ex->reader.whole || !ex->reader.keep_alive || !rest_is_short(ex) ||
        atomic_load(&reactor->stop) != STOP_NOT)
        ex->close_after = true;
    if (ex->close_after)
        http_put(&ex->head, "Connection: close\r\n");
    else if (old)
        http_put(&ex->head, "Connection: keep-alive\r\n");
    http_put(&ex->head, "\r\n");
    ex->answered = true;
    ex->total = total;
    ex->mode = BODY_UNWANTED;
    if (ex->head.failed)
        ex->abort_rc = -ENOMEM;
}

static void add(struct exchange *ex, const struct http_piece *piece, bool framing)
{
    if (piece->bytes && !output_add(ex, piece, framing))
        ex->abort_rc = -ENOMEM;
}

static void add_text(struct exchange *ex, const char *text)
{
    add(ex, &(struct http_piece){.data = text, .bytes = strlen(text)}, true);
}

static void add_head(struct exchange *ex, size_t body_bytes)
{
    if (!ex->abort_rc)
        add(ex, &(struct http_piece){.data = ex->head.data, .bytes = ex->head.len - body_bytes}, true);
}

static void instalment(struct exchange *ex, const struct http_piece *pieces, unsigned npieces, bool last)
{
    uint64_t bytes = 0;
    if (ex->no_body || ex->abort_rc)
        return;
    for (unsigned i = 0; i < npieces; i++) {
        if (add_overflows(bytes, pieces[i].bytes, &bytes))
            ex->abort_rc = -ECANCELED;
    }
    if (ex->chunked && bytes) {
        /* One chunk an instalment: the size before this one must be out, or this has a memory of its own. */
        assert(ex->npieces == 0 || ex->given == 0);
        snprintf(ex->chunk_head, sizeof(ex->chunk_head), "%llx\r\n", (unsigned long long)bytes);
        add_text(ex, ex->chunk_head);
    }
    for (unsigned i = 0; i < npieces; i++)
        add(ex, &pieces[i], false);
    if (ex->chunked && bytes)
        add_text(ex, "\r\n");
    if (ex->chunked && last)
        add_text(ex, "0\r\n\r\n");
    ex->given += bytes;
    bool lies = ex->given > ex->total || (last && ex->total != HTTP_BODY_UNKNOWN && ex->given != ex->total);
    if (lies)
        ex->abort_rc = -ECANCELED;
}

void http_send_copy(struct http_request *req, const void *data, size_t len)
{
    struct exchange *ex = exchange_of(req);
    end_head(ex, len, false);
    if (!ex->no_body)
        bytes_put(&ex->head, data, len);
    if (ex->head.failed)
        ex->abort_rc = -ENOMEM;
    ex->last = true;
    if (!charge_head(ex)) {
        /* Refused as a whole, while nothing of it is out. */
        ex->answered = false;
        bytes_out_fini(&ex->head);
        respond_refusal(ex->conn->reactor->server, ex, 503, "the server is overloaded: try again later");
        return;
    }
    if (!ex->no_body && !ex->abort_rc) {
        add_head(ex, len);
        add(ex, &(struct http_piece){.data = ex->head.data + ex->head.len - len, .bytes = len}, false);
    } else {
        add_head(ex, 0);
    }
    exchange_wake(ex);
}

void http_send_head(struct http_request *req, uint64_t bytes)
{
    struct exchange *ex = exchange_of(req);
    end_head(ex, bytes, true);
    ex->last = true;
    add_head(ex, 0);
    exchange_wake(ex);
}

void http_send(struct http_request *req, uint64_t total, const struct http_piece *pieces, unsigned npieces,
               bool last)
{
    struct exchange *ex = exchange_of(req);
    end_head(ex, total, false);
    if (!charge_head(ex))
        ex->abort_rc = -ENOMEM;
    ex->last = last || ex->no_body;
    add_head(ex, 0);
    instalment(ex, pieces, npieces, last);
    exchange_wake(ex);
}

void http_send_more(struct http_request *req, const struct http_piece *pieces, unsigned npieces, bool last)
{
    struct exchange *ex = exchange_of(req);
    assert(ex->answered && (!ex->last || ex->no_body));
    ex->asked = false;
    ex->last = ex->last || last;
    instalment(ex, pieces, npieces, last);
    exchange_wake(ex);
}

void http_abort(struct http_request *req)
{
    struct exchange *ex = exchange_of(req);
    if (!ex->abort_rc)
        ex->abort_rc = -ECANCELED;
    exchange_wake(ex);
}

void http_close_after(struct http_request *req)
{
    exchange_of(req)->close_after = true;
}

void respond_refusal(struct http_server *server, struct exchange *ex, unsigned status, const char *message)
{
    struct bytes_out body = {0};
    struct http_request *req = &ex->req;
    struct bytes_out *head = http_respond(req, status);
    bump(&ex->conn->reactor->stats.refused, 1);
    if (status == 503) {
        bump(&ex->conn->reactor->stats.overload, 1);
        http_put_header_u64(head, "Retry-After", server->config.retry_after_s);
    }
    struct http_refusal refusal = {.status = status,
                                   .message = message,
                                   .method = ex->reader.whole ? ex->reader.method : NULL,
                                   .target = ex->reader.whole ? http_target(&ex->reader, ex->buf)
                                                              : (struct http_text){0},
                                   .listener = ex->conn->listener};
    if (server->config.handler.refuse) {
        server->config.handler.refuse(server->config.handler.user, &refusal, head, &body);
    } else {
        http_put_header(head, "Content-Type", "text/plain; charset=utf-8");
        http_put(&body, message);
        http_put(&body, "\n");
    }
    ex->close_after = ex->close_after || status != 503;
    end_head(ex, body.len, false);
    if (!ex->no_body)
        bytes_put(&ex->head, body.data, body.len);
    ex->last = true;
    if (body.failed || ex->head.failed)
        ex->abort_rc = -ENOMEM;
    bytes_out_fini(&body);
    add_head(ex, 0);
    exchange_wake(ex);
}
