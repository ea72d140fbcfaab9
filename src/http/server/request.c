/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c: which heads a server does not answer, though they were parsed: those that another parser on the way (a proxy, a balancer)
 * may have cut or routed differently. That is how requests are smuggled, so the answer is 400 and the end of the connection.
 */
#include "http/server/server_internal.h"

/* Lines end with CR LF, and neither stands anywhere else: llhttp 8.1 takes a lone CR for an end (CVE-2023-30589). None is folded. */
static bool lines_are_plain(const char *buf, size_t len)
{
    for (size_t at = 0; at < len;) {
        const char *lf = memchr(buf + at, '\n', len - at);
        if (!lf)
            return false;
        size_t end = (size_t)(lf - buf);
        if (end == at || buf[end - 1] != '\r' || memchr(buf + at, '\r', end - 1 - at))
            return false;
        at = end + 1;
        if (at < len && (buf[at] == ' ' || buf[at] == '\t' || buf[at] == ':'))
            return false; /* folded, or a header without a name, which llhttp would give to the one before */
    }
    return true;
}

/* The classes of a byte. A table, as each byte of each head is checked. */
enum { IN_VALUE = 1, IN_TARGET = 2, IN_HOST = 4, IN_PATH = IN_VALUE | IN_TARGET, IN_ALL = 7 };
/* clang-format off */
static const uint8_t fine[256] = {
    ['\t'] = IN_VALUE,  [' '] = IN_VALUE,      ['!' ... '"'] = IN_PATH, ['#'] = IN_VALUE,
    ['$'] = IN_PATH,    ['%'] = IN_ALL,        ['&' ... ','] = IN_PATH, ['-' ... '.'] = IN_ALL,
    ['/'] = IN_PATH,    ['0' ... ':'] = IN_ALL, [';' ... '@'] = IN_PATH, ['A' ... '['] = IN_ALL,
    ['\\'] = IN_PATH,   [']'] = IN_ALL,        ['^'] = IN_PATH,         ['_'] = IN_ALL,
    ['`'] = IN_PATH,    ['a' ... 'z'] = IN_ALL, ['{' ... '}'] = IN_PATH, ['~'] = IN_ALL,
    [0x80 ... 0xff] = IN_PATH,
};
/* clang-format on */

static bool is_plain(struct http_text text, uint8_t in)
{
    uint8_t all = in;
    for (size_t i = 0; i < text.len; i++)
        all &= fine[(unsigned char)text.data[i]];
    return all;
}

static bool target_is_path(const struct http_reader *r, struct http_text target)
{
    if (http_text_is(target, "*"))
        return strcmp(r->method, "OPTIONS") == 0;
    if (target.len == 0 || target.data[0] != '/' || strcmp(r->method, "CONNECT") == 0)
        return false;
    return is_plain(target, IN_TARGET);
}

unsigned http_request_refusal(const struct http_reader *r, const char *buf, const char **ret_message)
{
    unsigned hosts = 0, lengths = 0, codings = 0, expects = 0;
    struct http_text host = {0};
    *ret_message = "lines of a head end with CR LF, have a name, are not folded, and hold neither CR nor LF "
                   "anywhere else";
    if (!lines_are_plain(buf, r->head_bytes))
        return 400;
    for (unsigned i = 0; i < r->nheaders; i++) {
        struct http_text name, value;
        http_header_at(r, buf, i, &name, &value);
        *ret_message = "a header's value has a control character";
        if (!is_plain(value, IN_VALUE))
            return 400;
        if (http_text_is_case(name, "host")) {
            hosts++;
            host = value;
        }
        lengths += http_text_is_case(name, "content-length");
        codings += http_text_is_case(name, "transfer-encoding");
        expects += http_text_is_case(name, "expect");
    }
    bool old = r->parser.http_minor == 0;
    *ret_message = "one Content-Length or one Transfer-Encoding is allowed";
    if (lengths + codings > 1 || (old && codings))
        return 400;
    *ret_message = "the only Transfer-Encoding that is understood is chunked";
    if (codings &&
        r->body != HTTP_BODY_CHUNKED) /* one without a value: llhttp sees no body, another parser may */
        return 400;
    *ret_message = "one header Host is wanted, with a name or an address and a port";
    if (hosts > 1 || (hosts == 0 && (!old || r->absolute)) || !is_plain(host, IN_HOST))
        return 400;
    *ret_message = "the target of a request is a path that begins with /, alone or behind http://host";
    if (!target_is_path(r, http_target(r, buf)))
        return 400;
    *ret_message = "no expectation but 100-continue can be met";
    if (expects > 1 || (expects && !r->expects_continue))
        return 417;
    return 0;
}
