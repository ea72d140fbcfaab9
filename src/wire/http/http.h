/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h: HTTP/1.1 messages, for both sides (RFC 9110, RFC 9112). Pure: the caller has the socket. Parsing is
 * llhttp's, in its strict mode; this module keeps the positions that it found, refuses ambiguous messages,
 * and leaves payload alone.
 *
 *   head    the caller collects bytes in one buffer, from the message's first byte on, and shows it with http_head_feed until the
 *           head is whole. Names and values stay in that buffer: offsets, no copies.
 *   body    LENGTH: body_bytes raw bytes follow, which the caller receives straight into their destination; the reader sees none
 *           of them. CHUNKED: shown with http_body_feed, which hands the payload on. UNTIL_CLOSE: until the peer closes.
 *   next    http_reader_reset, and the next message's head.
 */
#ifndef WIRE_HTTP_H
#define WIRE_HTTP_H

#include <llhttp.h>
#include <strings.h>
#include <time.h>

#include "base/base.h"
#include "base/bytes.h"

#define HTTP_HEAD_MAX    (64 * KIB) /* of a head, unless the reader is given less */
#define HTTP_HEADERS_MAX 128u
#define HTTP_DATE_BYTES  30 /* "Sun, 06 Nov 1994 08:49:37 GMT" and its NUL */

enum http_body { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };

/* Some bytes of the head; not NUL-terminated. */
struct http_text {
    const char *data;
    size_t len;
};

struct http_reader {
    /* Of the message whose head is whole. */
    int status;         /* of a response */
    const char *method; /* of a request: static string */
    enum http_body body;
    uint64_t body_bytes; /* LENGTH */
    bool keep_alive;     /* the connection may carry another message behind this one */
    bool expects_continue;
    size_t head_bytes; /* the payload begins here in the caller's buffer */
    unsigned nheaders;
    bool ended;    /* CHUNKED: the last chunk and the trailers were seen */
    bool absolute; /* of a request: its target had a host, which header Host has as its value now */

    /* private */
    llhttp_t parser;
    const char *base;
    size_t fed, head_max;
    uint32_t url_at, url_len;
    uint32_t rootless; /* the target was "http://host?query", which lacks its path: bytes of the host */
    struct http_header_span {
        uint32_t name_at, name_len, value_at, value_len;
    } headers[HTTP_HEADERS_MAX];
    bool in_value, whole, in_body, overflow;
    int (*sink)(void *user, const void *data, size_t len);
    void *sink_user;
    int sink_rc;
};

/* head_max: 0 is HTTP_HEAD_MAX. No memory is taken: a reader needs no clean-up. */
void http_reader_init_response(struct http_reader *r, size_t head_max);
void http_reader_init_request(struct http_reader *r, size_t head_max);
/* Ready for the next message of the connection. */
void http_reader_reset(struct http_reader *r);

/*
 * `buf` holds the first `len` bytes from the message's start on, the same bytes as in the call before and more; it may have moved. 1:
 * the head is whole; 0: more is wanted. LEAT_CORRUPT: no HTTP, or sizes that contradict each other; LEAT_NO_SPACE: longer than head_max, or
 * more than HTTP_HEADERS_MAX headers. `head_of` is a response's request method: to HEAD there is no body, whatever the head says.
 */
int http_head_feed(struct http_reader *r, const char *buf, size_t len, const char *head_of,
                   struct leat_error *err);
/* The value of a header by its name (any case), or data == NULL. buf: where the head is now. The first one, where there are several. */
struct http_text http_header(const struct http_reader *r, const char *buf, const char *name);
/* Header i, below nheaders. Names as the peer wrote them. */
void http_header_at(const struct http_reader *r, const char *buf, unsigned i, struct http_text *ret_name,
                    struct http_text *ret_value);
/* The target of a request: "/path?query", as it came; of "http://host/path?query" what stands behind the host. */
struct http_text http_target(const struct http_reader *r, const char *buf);
/* Makes "/?query" of the target "http://host?query" (RFC 9110 4.2.3), where the head is now: the host moves to the front by one. Before
 * that, such a target is "?query". Once, when the head is whole. */
void http_target_root(struct http_reader *r, char *buf);

/*
 * Payload of a CHUNKED body: `data` are bytes as received; what is payload among them is given to sink, whose negative answer ends all.
 * *ret_used: how many bytes belong to this message (fewer than len only when it has ended: r->ended). 0, LEAT_CORRUPT, or sink's.
 */
int http_body_feed(struct http_reader *r, const char *data, size_t len,
                   int (*sink)(void *user, const void *data, size_t len), void *user, size_t *ret_used,
                   struct leat_error *err);

/* Both are for each header of each request: inline, so that the length of a literal is known. */
static inline bool http_text_is(struct http_text t, const char *s) /* exactly */
{
    return t.data && strlen(s) == t.len && memcmp(t.data, s, t.len) == 0;
}
static inline bool http_text_is_case(struct http_text t, const char *s) /* ASCII case apart */
{
    return t.data && strlen(s) == t.len && strncasecmp(t.data, s, t.len) == 0;
}
/* A decimal number without sign; false: none, or too large. */
bool http_text_u64(struct http_text t, uint64_t *ret);
/* A copy with a NUL behind it, cut to cap - 1 bytes. */
void http_text_copy(struct http_text t, char *out, size_t cap);

/* "bytes 0-1023/146515": [first, last] of total; total is UINT64_MAX for "*". False: something else. */
bool http_content_range(struct http_text t, uint64_t *ret_first, uint64_t *ret_last, uint64_t *ret_total);
/* Seconds from `now` on: a number, or a date. False: neither. */
bool http_retry_after(struct http_text t, time_t now, uint64_t *ret_seconds);
/* IMF-fixdate, RFC 9110 5.6.7; the two obsolete forms are not read. */
void http_date_format(time_t t, char out[HTTP_DATE_BYTES]);
bool http_date_parse(struct http_text t, time_t *ret);

/* Percent-encoding (RFC 3986): all but A-Z a-z 0-9 - . _ ~, in upper-case hex; "/" stays where `slash`. */
void http_escape(struct bytes_out *out, const void *data, size_t len, bool slash);
/* Decodes in place; *ret_len: afterwards. False: a % without two hex digits behind it. */
bool http_unescape(char *text, size_t len, size_t *ret_len);
/* The byte that the "%41" at text stands for; negative: it is none. */
int http_escaped_byte(const char *text, size_t len);
/* Escapes an escaped text again, as http_escape does. plus: "+" is a space. False: a broken escape. */
bool http_escape_anew(struct bytes_out *out, const char *text, size_t len, bool slash, bool plus);

/* --- writing ----------------------------------------------------------------------------------------------------------- */

/* "name: value\r\n". A value with CR, LF or NUL in it is refused: out->failed is set, and nothing is sent. */
void http_put_header(struct bytes_out *out, const char *name, const char *value);
void http_put_header_u64(struct bytes_out *out, const char *name, uint64_t value);
/* Text without a NUL at its end. */
static inline void http_put(struct bytes_out *out, const char *text)
{
    bytes_put(out, text, strlen(text));
}

#endif
