/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: llhttp calls back with spans of the caller's buffer, which are kept as offsets. A span that was
 * cut by the end of the input continues there, as the buffer is one piece. llhttp pauses behind the head. A
 * chunked body is run through it as well; one of known length never is.
 *
 * Invariants: parsing never begins again, so a head that comes byte by byte costs its length; nothing of a message is believed before
 * its head is whole.
 */
#include "wire/http/http.h"

#include "base/hex.h"

#include <strings.h>

/* --- llhttp's callbacks ------------------------------------------------------------------------------------------------ */

static struct http_reader *reader_of(llhttp_t *parser)
{
    return container_of(parser, struct http_reader, parser);
}

static int on_url(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *r = reader_of(parser);
    if (r->url_len == 0)
        r->url_at = (uint32_t)(at - r->base);
    r->url_len += (uint32_t)len;
    return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *r = reader_of(parser);
    if (r->in_body) /* a trailer */
        return 0;
    if (r->nheaders == 0 || r->in_value) {
        if (r->nheaders == HTTP_HEADERS_MAX) {
            r->overflow = true;
            return -1;
        }
        r->headers[r->nheaders++] = (struct http_header_span){.name_at = (uint32_t)(at - r->base)};
        r->in_value = false;
    }
    r->headers[r->nheaders - 1].name_len += (uint32_t)len;
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *r = reader_of(parser);
    if (r->in_body)
        return 0;
    struct http_header_span *h = &r->headers[r->nheaders - 1];
    if (h->value_len == 0)
        h->value_at = (uint32_t)(at - r->base);
    /* A folded value has a gap between its spans; what lies between them belongs to it. */
    h->value_len = (uint32_t)(at - r->base) + (uint32_t)len - h->value_at;
    return 0;
}

static int on_header_value_complete(llhttp_t *parser)
{
    reader_of(parser)->in_value = true;
    return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
    reader_of(parser)->whole = true;
    return HPE_PAUSED;
}

static int on_body(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *r = reader_of(parser);
    r->sink_rc = r->sink(r->sink_user, at, len);
    return r->sink_rc < 0 ? -1 : 0;
}

static int on_message_complete(llhttp_t *parser)
{
    reader_of(parser)->ended = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* --- the head ---------------------------------------------------------------------------------------------------------- */

static void init(struct http_reader *r, llhttp_type_t type, size_t head_max)
{
    memset(r, 0, offsetof(struct http_reader, headers));
    r->in_value = r->whole = r->in_body = r->overflow = false;
    r->sink = NULL;
    r->sink_rc = 0;
    llhttp_init(&r->parser, type, &settings);
    r->head_max = head_max ? MIN(head_max, (size_t)UINT32_MAX) : HTTP_HEAD_MAX;
}

void http_reader_init_response(struct http_reader *r, size_t head_max)
{
    init(r, HTTP_RESPONSE, head_max);
}

void http_reader_init_request(struct http_reader *r, size_t head_max)
{
    init(r, HTTP_REQUEST, head_max);
}

void http_reader_reset(struct http_reader *r)
{
    init(r, r->parser.type, r->head_max);
}

static bool has_token(struct http_text list, const char *token)
{
    size_t n = strlen(token);
    for (size_t i = 0; i < list.len;) {
        while (i < list.len && (list.data[i] == ' ' || list.data[i] == ',' || list.data[i] == '\t'))
            i++;
        size_t end = i;
        while (end < list.len && list.data[end] != ',')
            end++;
        size_t last = end;
        while (last > i && (list.data[last - 1] == ' ' || list.data[last - 1] == '\t'))
            last--;
        if (last - i == n && strncasecmp(list.data + i, token, n) == 0)
            return true;
        i = end;
    }
    return false;
}

static int corrupt(const struct http_reader *r, struct leat_error *err)
{
    const char *reason = llhttp_get_error_reason(&r->parser);
    return error_set(err, LEAT_CORRUPT, "no HTTP/1.1 %s: %s%s%s",
                     r->parser.type == HTTP_RESPONSE ? "response" : "request",
                     llhttp_errno_name(llhttp_get_errno(&r->parser)), reason && *reason ? ", " : "",
                     reason && *reason ? reason : "");
}

/* The framing of the body, RFC 9112 6.3. An ambiguous one is refused here. */
static int frame_body(struct http_reader *r, const char *buf, const char *head_of, struct leat_error *err)
{
    bool response = r->parser.type == HTTP_RESPONSE;
    bool chunked = r->parser.flags & F_CHUNKED, coded = r->parser.flags & F_TRANSFER_ENCODING;
    bool length = r->parser.flags & F_CONTENT_LENGTH;
    if (coded && length)
        return error_set(err, LEAT_CORRUPT, "both Content-Length and Transfer-Encoding are given");
    if (coded && !chunked)
        return error_set(err, LEAT_CORRUPT, "a transfer coding whose last is not chunked");
    if (coded) {
        struct http_text te = http_header(r, buf, "transfer-encoding");
        if (!http_text_is_case(te, "chunked"))
            return error_set(err, LEAT_CORRUPT, "a transfer coding other than chunked was not requested");
    }
    if (response && (r->status / 100 == 1 || r->status == 204 || r->status == 304 ||
                     (head_of && strcmp(head_of, "HEAD") == 0))) {
        r->body = HTTP_BODY_NONE;
    } else if (chunked) {
        r->body = HTTP_BODY_CHUNKED;
    } else if (length) {
        r->body = HTTP_BODY_LENGTH;
        r->body_bytes = r->parser.content_length;
    } else if (response) {
        r->body = HTTP_BODY_UNTIL_CLOSE;
        r->keep_alive = false;
    } else {
        r->body = HTTP_BODY_NONE;
    }
    return 0;
}

/* llhttp's own answer assumes a body until the end of the connection even where there is none. */
static bool keeps_alive(const struct http_reader *r, const char *buf)
{
    struct http_text connection = http_header(r, buf, "connection");
    if (r->parser.http_major != 1)
        return false;
    if (r->parser.http_minor == 0)
        return has_token(connection, "keep-alive") && !has_token(connection, "close");
    return !(r->parser.flags & F_CONNECTION_CLOSE) && !has_token(connection, "close");
}

/* Without the port that its scheme has anyway. */
static struct http_text without_port(struct http_text host, const char *port)
{
    size_t n = strlen(port);
    if (host.len > n && memcmp(host.data + host.len - n, port, n) == 0)
        host.len -= n;
    return host;
}

/*
 * "GET http://host/path HTTP/1.1", as to a proxy: RFC 9112 3.2.2. The target becomes the path, and what it names stands in the place of Host's value; unless that
 * is the same, apart from case and the scheme's own port: then it stays as it came, which is what a client has signed. A target that
 * is no such thing, or has no host, stays whole; of "http://host?query" it is the query, until its path has been made.
 */
static void cut_absolute(struct http_reader *r, const char *buf)
{
    struct http_text url = {buf + r->url_at, r->url_len};
    bool tls = url.len > 8 && strncasecmp(url.data, "https://", 8) == 0;
    size_t scheme = tls ? 8 : 7;
    if (!tls && (url.len <= 7 || strncasecmp(url.data, "http://", 7) != 0))
        return;
    struct http_text host = {url.data + scheme, 0};
    while (scheme + host.len < url.len && !strchr("/?#", host.data[host.len]))
        host.len++;
    size_t path = scheme + host.len;
    if (host.len == 0 || (path < url.len && url.data[path] == '#'))
        return;
    r->rootless = path < url.len && url.data[path] == '?' ? (uint32_t)host.len : 0;
    if (path == url.len) { /* "/", which stands before the host, too */
        path = scheme - 1;
        r->url_len = (uint32_t)scheme;
    }
    r->url_len -= (uint32_t)path;
    r->url_at += (uint32_t)path;
    r->absolute = true;
    const char *port = tls ? ":443" : ":80";
    struct http_text named = without_port(host, port);
    for (unsigned i = 0; i < r->nheaders; i++) {
        struct http_text name, value;
        http_header_at(r, buf, i, &name, &value);
        struct http_text given = without_port(value, port);
        if (http_text_is_case(name, "host") &&
            (given.len != named.len || strncasecmp(given.data, named.data, named.len) != 0)) {
            r->headers[i].value_at = (uint32_t)(host.data - buf);
            r->headers[i].value_len = (uint32_t)host.len;
        }
    }
}

void http_target_root(struct http_reader *r, char *buf)
{
    if (!r->rootless)
        return;
    uint32_t host_at = r->url_at - r->rootless;
    memmove(buf + host_at - 1, buf + host_at, r->rootless);
    buf[--r->url_at] = '/';
    r->url_len++;
    r->rootless = 0;
    for (unsigned i = 0; i < r->nheaders; i++)
        r->headers[i].value_at -= r->headers[i].value_at == host_at;
}

int http_head_feed(struct http_reader *r, const char *buf, size_t len, const char *head_of,
                   struct leat_error *err)
{
    if (r->whole)
        return 1;
    size_t end = MIN(len, r->head_max);
    if (end > r->fed) {
        r->base = buf;
        llhttp_errno_t rc = llhttp_execute(&r->parser, buf + r->fed, end - r->fed);
        if (r->overflow)
            return error_set(err, LEAT_NO_SPACE, "more than %u headers", HTTP_HEADERS_MAX);
        if (rc != HPE_OK && !(rc == HPE_PAUSED && r->whole))
            return corrupt(r, err);
        r->fed = end;
        if (r->whole)
            r->head_bytes = (size_t)(llhttp_get_error_pos(&r->parser) - buf);
    }
    if (!r->whole)
        return end == r->head_max
                   ? error_set(err, LEAT_NO_SPACE, "a head of more than %zu bytes", r->head_max)
                   : 0;
    if (r->parser.type == HTTP_RESPONSE) {
        r->status = r->parser.status_code;
    } else {
        r->method = llhttp_method_name((llhttp_method_t)r->parser.method);
        cut_absolute(r, buf);
    }
    if (r->parser.http_major != 1)
        return error_set(err, LEAT_CORRUPT, "HTTP/%u.%u, where 1.1 is spoken", r->parser.http_major,
                         r->parser.http_minor);
    r->keep_alive = keeps_alive(r, buf);
    struct http_text expect = http_header(r, buf, "expect");
    r->expects_continue = http_text_is_case(expect, "100-continue");
    int rc = frame_body(r, buf, head_of, err);
    return rc < 0 ? rc : 1;
}

void http_header_at(const struct http_reader *r, const char *buf, unsigned i, struct http_text *ret_name,
                    struct http_text *ret_value)
{
    const struct http_header_span *h = &r->headers[i];
    *ret_name = (struct http_text){buf + h->name_at, h->name_len};
    *ret_value = (struct http_text){buf + h->value_at, h->value_len};
    while (ret_value->len &&
           (ret_value->data[ret_value->len - 1] == ' ' || ret_value->data[ret_value->len - 1] == '\t'))
        ret_value->len--;
}

struct http_text http_header(const struct http_reader *r, const char *buf, const char *name)
{
    size_t len = strlen(name);
    for (unsigned i = 0; i < r->nheaders; i++) {
        if (r->headers[i].name_len == len && strncasecmp(buf + r->headers[i].name_at, name, len) == 0) {
            struct http_text n, v;
            http_header_at(r, buf, i, &n, &v);
            return v;
        }
    }
    return (struct http_text){0};
}

struct http_text http_target(const struct http_reader *r, const char *buf)
{
    return (struct http_text){buf + r->url_at, r->url_len};
}

/* --- a chunked body ---------------------------------------------------------------------------------------------------- */

int http_body_feed(struct http_reader *r, const char *data, size_t len,
                   int (*sink)(void *user, const void *data, size_t len), void *user, size_t *ret_used,
                   struct leat_error *err)
{
    *ret_used = 0;
    if (r->ended)
        return 0;
    if (!r->in_body) {
        r->in_body = true;
        llhttp_resume(&r->parser);
    }
    r->sink = sink;
    r->sink_user = user;
    r->sink_rc = 0;
    llhttp_errno_t rc = llhttp_execute(&r->parser, data, len);
    if (r->sink_rc < 0)
        return r->sink_rc;
    if (rc == HPE_PAUSED && r->ended) {
        *ret_used = (size_t)(llhttp_get_error_pos(&r->parser) - data);
        return 0;
    }
    if (rc != HPE_OK)
        return corrupt(r, err);
    *ret_used = len;
    return 0;
}

/* --- values ------------------------------------------------------------------------------------------------------------ */

bool http_text_u64(struct http_text t, uint64_t *ret)
{
    uint64_t v = 0;
    if (t.len == 0)
        return false;
    for (size_t i = 0; i < t.len; i++) {
        if (t.data[i] < '0' || t.data[i] > '9' || mul_overflows(v, 10, &v) ||
            add_overflows(v, (uint64_t)(t.data[i] - '0'), &v))
            return false;
    }
    *ret = v;
    return true;
}

void http_text_copy(struct http_text t, char *out, size_t cap)
{
    size_t n = MIN(t.len, cap - 1);
    if (n)
        memcpy(out, t.data, n);
    out[n] = 0;
}

static bool take_u64(struct http_text *t, uint64_t *ret)
{
    size_t n = 0;
    while (n < t->len && t->data[n] >= '0' && t->data[n] <= '9')
        n++;
    if (!http_text_u64((struct http_text){t->data, n}, ret))
        return false;
    t->data += n;
    t->len -= n;
    return true;
}

static bool take_char(struct http_text *t, char c)
{
    if (t->len == 0 || t->data[0] != c)
        return false;
    t->data++;
    t->len--;
    return true;
}

bool http_content_range(struct http_text t, uint64_t *ret_first, uint64_t *ret_last, uint64_t *ret_total)
{
    if (t.len < 6 || strncasecmp(t.data, "bytes ", 6) != 0)
        return false;
    t.data += 6;
    t.len -= 6;
    if (!take_u64(&t, ret_first) || !take_char(&t, '-') || !take_u64(&t, ret_last) || !take_char(&t, '/'))
        return false;
    if (take_char(&t, '*'))
        *ret_total = UINT64_MAX;
    else if (!take_u64(&t, ret_total) || *ret_last >= *ret_total)
        return false;
    return t.len == 0 && *ret_first <= *ret_last;
}

static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

static void put_digits(char *out, unsigned n, unsigned value)
{
    for (; n; n--, value /= 10)
        out[n - 1] = (char)('0' + value % 10);
}

/*
 * By hand: strftime would speak the user's language, and gmtime_r takes the process's lock for time zones, which every answer of every thread would
 * wait for. Days become a date as in Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that the leap day is
 * the last of one, and 400 of them are an era.
 */
void http_date_format(time_t t, char out[HTTP_DATE_BYTES])
{
    static const char form[HTTP_DATE_BYTES] = "Sun, 06 Nov 1994 08:49:37 GMT";
    int64_t at = (int64_t)t, days_since_1970 = at / 86400 - (at % 86400 < 0);
    unsigned second = (unsigned)(at - days_since_1970 * 86400);
    int64_t since_march_0000 = days_since_1970 + 719468;
    int64_t era = since_march_0000 / 146097 - (since_march_0000 % 146097 < 0);
    unsigned of_era = (unsigned)(since_march_0000 - era * 146097);
    unsigned year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    unsigned of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    unsigned march_month = (5 * of_year + 2) / 153, day = of_year - (153 * march_month + 2) / 5 + 1;
    unsigned month = (march_month + 2) % 12;
    unsigned year = (unsigned)((era % 25 + 25) % 25 * 400 + year_of_era + (month < 2)) % 10000;
    memcpy(out, form, sizeof(form));
    memcpy(out, days[(days_since_1970 % 7 + 11) % 7], 3); /* the first day was a Thursday */
    put_digits(out + 5, 2, day);
    memcpy(out + 8, months[month], 3);
    put_digits(out + 12, 4, year);
    put_digits(out + 17, 2, second / 3600);
    put_digits(out + 20, 2, second / 60 % 60);
    put_digits(out + 23, 2, second % 60);
}

static bool digits(const char *s, int n, int *ret)
{
    *ret = 0;
    for (int i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        *ret = *ret * 10 + (s[i] - '0');
    }
    return true;
}

bool http_date_parse(struct http_text t, time_t *ret)
{
    struct tm tm = {0};
    if (t.len != 29 || memcmp(t.data + 3, ", ", 2) != 0 || memcmp(t.data + 25, " GMT", 4) != 0 ||
        t.data[7] != ' ' || t.data[11] != ' ' || t.data[16] != ' ' || t.data[19] != ':' || t.data[22] != ':')
        return false;
    int month = 0;
    while (month < 12 && memcmp(months[month], t.data + 8, 3) != 0)
        month++;
    if (month == 12 || !digits(t.data + 5, 2, &tm.tm_mday) || !digits(t.data + 12, 4, &tm.tm_year) ||
        !digits(t.data + 17, 2, &tm.tm_hour) || !digits(t.data + 20, 2, &tm.tm_min) ||
        !digits(t.data + 23, 2, &tm.tm_sec))
        return false;
    if (tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
        return false;
    tm.tm_mon = month;
    tm.tm_year -= 1900;
    *ret = timegm(&tm);
    return true;
}

bool http_retry_after(struct http_text t, time_t now, uint64_t *ret_seconds)
{
    time_t when;
    if (http_text_u64(t, ret_seconds))
        return true;
    if (!http_date_parse(t, &when))
        return false;
    *ret_seconds = when > now ? (uint64_t)(when - now) : 0;
    return true;
}

/* --- escapes ----------------------------------------------------------------------------------------------------------- */

/* Of RFC 3986; a table, as each byte of each signed request is looked at. */
static const bool unreserved[256] = {
    ['A' ... 'Z'] = true, ['a' ... 'z'] = true, ['0' ... '9'] = true, ['-'] = true,
    ['.'] = true,         ['_'] = true,         ['~'] = true,
};

static char *put_escaped(char *at, unsigned char c, bool slash)
{
    static const char hex[] = "0123456789ABCDEF";
    if (unreserved[c] || (slash && c == '/')) {
        *at++ = (char)c;
        return at;
    }
    *at++ = '%';
    *at++ = hex[c >> 4];
    *at++ = hex[c & 15];
    return at;
}

/* Room for `len` bytes, each escaped; what is not used of it is given back by room_end. */
static char *room_begin(struct bytes_out *out, size_t len)
{
    size_t most;
    if (mul_overflows(len, 3, &most))
        out->failed = true;
    return (char *)bytes_room(out, most);
}

static void room_end(struct bytes_out *out, const char *at)
{
    out->len = (size_t)(at - (const char *)out->data);
}

void http_escape(struct bytes_out *out, const void *data, size_t len, bool slash)
{
    const unsigned char *s = data;
    char *at = len ? room_begin(out, len) : NULL;
    if (!at)
        return;
    for (size_t i = 0; i < len; i++)
        at = put_escaped(at, s[i], slash);
    room_end(out, at);
}

int http_escaped_byte(const char *text, size_t len)
{
    int hi = len >= 3 ? hex_digit_any(text[1]) : -1;
    int lo = hi >= 0 ? hex_digit_any(text[2]) : -1;
    return lo >= 0 ? hi << 4 | lo : -1;
}

bool http_unescape(char *text, size_t len, size_t *ret_len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '%') {
            int byte = http_escaped_byte(text + i, len - i);
            if (byte < 0)
                return false;
            c = (char)byte;
            i += 2;
        }
        text[n++] = c;
    }
    *ret_len = n;
    return true;
}

bool http_escape_anew(struct bytes_out *out, const char *text, size_t len, bool slash, bool plus)
{
    char *at = len ? room_begin(out, len) : NULL;
    for (size_t i = 0; at && i < len; i++) {
        int byte = (unsigned char)text[i];
        if (byte == '%') {
            byte = http_escaped_byte(text + i, len - i);
            if (byte < 0) {
                room_end(out, at);
                return false;
            }
            i += 2;
        } else if (plus && byte == '+') {
            byte = ' ';
        }
        at = put_escaped(at, (unsigned char)byte, slash);
    }
    if (at)
        room_end(out, at);
    return true;
}

/* --- writing ----------------------------------------------------------------------------------------------------------- */

void http_put_header(struct bytes_out *out, const char *name, const char *value)
{
    size_t name_len = strlen(name), value_len = strlen(value);
    if (memchr(value, '\r', value_len) || memchr(value, '\n', value_len)) {
        out->failed = true;
        return;
    }
    char *at = (char *)bytes_room(out, name_len + 2 + value_len + 2);
    if (!at)
        return;
    at = mempcpy(at, name, name_len);
    at = mempcpy(at, ": ", 2);
    at = mempcpy(at, value, value_len);
    memcpy(at, "\r\n", 2);
}

void http_put_header_u64(struct bytes_out *out, const char *name, uint64_t value)
{
    char text[21], *at = text + sizeof(text) - 1;
    *at = 0;
    do {
        *--at = (char)('0' + value % 10);
    } while (value /= 10);
    http_put_header(out, name, at);
}
