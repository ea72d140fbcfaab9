/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's head as the server takes it: what http_request_refusal lets through is read again here by the simplest of parsers (lines
 * that end with CR LF, names up to the first colon), which must find the same headers, one Host, and one way to frame the body.
 */
#include <ctype.h>
#include <strings.h>

#include "http/server/server_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct simple {
    unsigned headers, hosts, lengths, codings;
};

static bool is(const char *line, size_t len, const char *name)
{
    return len == strlen(name) && strncasecmp(line, name, len) == 0;
}

/* Aborts where it does not understand a line. */
static struct simple read_simply(const char *buf, size_t len)
{
    struct simple s = {0};
    size_t at = 0;
    while (at + 1 < len && buf[at] == '\r' &&
           buf[at + 1] == '\n') /* empty lines before a request are allowed */
        at += 2;
    for (bool first = true;; first = false) {
        const char *end = memmem(buf + at, len - at, "\r\n", 2);
        if (!end)
            abort();
        size_t line = (size_t)(end - (buf + at));
        if (line == 0)
            break;
        if (memchr(buf + at, '\r', line) || memchr(buf + at, '\n', line))
            abort();
        if (!first) {
            const char *colon = memchr(buf + at, ':', line);
            if (!colon || colon == buf + at)
                abort();
            size_t name = (size_t)(colon - (buf + at));
            for (size_t i = 0; i < name; i++) {
                if (!isgraph((unsigned char)buf[at + i]))
                    abort();
            }
            s.headers++;
            s.hosts += is(buf + at, name, "host");
            s.lengths += is(buf + at, name, "content-length");
            s.codings += is(buf + at, name, "transfer-encoding");
        }
        at += line + 2;
    }
    if (at + 2 != len)
        abort(); /* the two do not agree on where the body begins */
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_reader r;
    const char *message = NULL, *buf = (const char *)data;
    http_reader_init_request(&r, 8192);
    if (http_head_feed(&r, buf, size, NULL, NULL) != 1)
        return 0;
    unsigned status = http_request_refusal(&r, buf, &message);
    if (status) {
        if ((status != 400 && status != 417) || !message)
            abort();
        return 0;
    }
    struct simple s = read_simply(buf, r.head_bytes);
    struct http_text target = http_target(&r, buf);
    if (s.headers != r.nheaders || s.hosts > 1 || s.lengths + s.codings > 1 ||
        (s.hosts == 0 && r.parser.http_minor))
        abort();
    if ((r.body == HTTP_BODY_CHUNKED) != (s.codings == 1) || (r.body == HTTP_BODY_LENGTH) != (s.lengths == 1))
        abort();
    if (target.len == 0 || (target.data[0] != '/' && target.data[0] != '*'))
        abort();
    return 0;
}
