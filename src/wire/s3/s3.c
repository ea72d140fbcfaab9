/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and request heads. What is signed is what is sent: both come from the same list of headers, in one order. */
#include "wire/s3/s3.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <strings.h>

#include "wire/address.h"
#include "wire/http/http.h"

/* --- addresses --------------------------------------------------------------------------------------------------------- */

bool s3_uri_is(const char *text)
{
    return address_of(text) == ADDRESS_S3;
}

static bool bucket_ok(const char *name, size_t len)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    if (len == 0 || len > S3_BUCKET_MAX || name[0] == '.' || name[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!strchr(allowed, name[i]) || (name[i] == '.' && i + 1 < len && name[i + 1] == '.'))
            return false;
    }
    return true;
}

int s3_uri_parse(const char *text, struct s3_uri *ret_uri, struct leat_error *err)
{
    if (!s3_uri_is(text))
        return error_set(err, LEAT_INVALID, "\"%.200s\" does not begin with s3://", text);
    const char *bucket = text + 5, *slash = strchrnul(bucket, '/');
    size_t len = (size_t)(slash - bucket);
    if (!bucket_ok(bucket, len))
        return error_set(err, LEAT_INVALID,
                         "\"%.200s\": \"%.*s\" is no bucket: s3://BUCKET/KEY, a bucket being letters, "
                         "digits, \".\", \"-\" and \"_\"",
                         text, (int)MIN(len, (size_t)100), bucket);
    const char *key = *slash ? slash + 1 : slash;
    size_t key_len = strlen(key);
    if (key_len > S3_KEY_MAX)
        return error_set(err, LEAT_INVALID, "\"%.100s...\": a key has at most %u bytes, this one %zu", text,
                         S3_KEY_MAX, key_len);
    memcpy(ret_uri->bucket, bucket, len);
    ret_uri->bucket[len] = 0;
    memcpy(ret_uri->key, key, key_len + 1);
    return 0;
}

static bool host_ok(const char *host, size_t len)
{
    if (len == 0 || len > 253)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = host[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                  c == '-' || c == '_';
        if (!ok)
            return false;
    }
    return true;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcasecmp(s + n - m, end) == 0;
}

/* "HOST", "HOST:PORT", "[ADDRESS]:PORT" of n bytes, in pieces; port NULL: none. */
struct authority {
    const char *host, *port;
    size_t host_len;
};

static int cut_authority(const char *url, const char *text, size_t n, struct authority *ret,
                         struct leat_error *err)
{
    struct authority a = {.host = text, .host_len = n};
    if (memchr(text, '@', n))
        return error_set(err, LEAT_INVALID,
                         "endpoint: a user or password (before an @) does not belong in an address");
    if (*text == '[') {
        const char *end = memchr(text, ']', n);
        char address[INET6_ADDRSTRLEN] = "";
        struct in6_addr parsed;
        a.host = text + 1;
        a.host_len = end ? (size_t)(end - a.host) : 0;
        if (a.host_len > 0 && a.host_len < sizeof(address))
            memcpy(address, a.host, a.host_len);
        if (inet_pton(AF_INET6, address, &parsed) != 1 || (end[1] != ':' && end + 1 != text + n))
            return error_set(err, LEAT_INVALID, "endpoint \"%.200s\": no IPv6 address in the brackets", url);
        a.port = end[1] == ':' ? end + 2 : NULL;
        *ret = a;
        return 0;
    }
    const char *colon = memchr(text, ':', n);
    if (colon) {
        a.host_len = (size_t)(colon - text);
        a.port = colon + 1;
    }
    if (!host_ok(a.host, a.host_len))
        return error_set(err, LEAT_INVALID, "endpoint \"%.200s\": \"%.*s\" is no host name", url,
                         (int)MIN(a.host_len, (size_t)100), a.host);
    *ret = a;
    return 0;
}

/* What stands behind the host, without "/" at its end. */
static int take_base(struct s3_endpoint *e, const char *url, const char *path, struct leat_error *err)
{
    size_t len = strcspn(path, "?#");
    bool query = path[len];
    while (len && path[len - 1] == '/')
        len--;
    if (query || len >= sizeof(e->base))
        return error_set(err, LEAT_INVALID, "endpoint \"%.200s\": a path of at most %zu bytes, and no query",
                         url, sizeof(e->base) - 1);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)path[i] <= ' ' || (unsigned char)path[i] >= 0x7f)
            return error_set(err, LEAT_INVALID, "endpoint: its path has to be escaped");
    }
    memcpy(e->base, path, len);
    return 0;
}

static int take_url(struct s3_endpoint *e, const char *url, struct leat_error *err)
{
    e->tls = strncasecmp(url, "https://", 8) == 0;
    if (!e->tls && strncasecmp(url, "http://", 7) != 0)
        return error_set(err, LEAT_INVALID, "endpoint \"%.200s\": http://HOST[:PORT] or https://HOST[:PORT]",
                         url);
    const char *text = url + (e->tls ? 8 : 7);
    size_t n = strcspn(text, "/?#");
    struct authority a = {0};
    uint64_t number = e->tls ? 443 : 80;
    int rc = cut_authority(url, text, n, &a, err);
    if (rc < 0)
        return rc;
    if (a.port && (!http_text_u64((struct http_text){a.port, (size_t)(text + n - a.port)}, &number) ||
                   number == 0 || number > 65535))
        return error_set(err, LEAT_INVALID, "endpoint \"%.200s\": a port is a number from 1 to 65535", url);
    memcpy(e->host, a.host, a.host_len);
    e->port = (uint16_t)number;
    e->aws = ends_with(e->host, ".amazonaws.com") || ends_with(e->host, ".amazonaws.com.cn");
    return take_base(e, url, text + n, err);
}

int s3_endpoint_parse(const char *url, const char *region, const char *style,
                      struct s3_endpoint *ret_endpoint, struct leat_error *err)
{
    struct s3_endpoint e = {0};
    if (!region || !*region)
        region = "us-east-1";
    if (strlen(region) >= sizeof(e.region) ||
        strspn(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(region))
        return error_set(err, LEAT_INVALID, "region \"%.80s\": letters, digits and \"-\"", region);
    memcpy(e.region, region, strlen(region) + 1);
    if (!url || !*url) {
        e.tls = e.aws = true;
        e.port = 443;
        snprintf(e.host, sizeof(e.host), "s3.%s.amazonaws.com%s", region,
                 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
    } else {
        int rc = take_url(&e, url, err);
        if (rc < 0)
            return rc;
    }
    if (!style || !*style || strcmp(style, "auto") == 0)
        e.path_style = !e.aws;
    else if (strcmp(style, "path") == 0 || strcmp(style, "virtual") == 0)
        e.path_style = style[0] == 'p';
    else
        return error_set(err, LEAT_INVALID, "addressing style \"%.40s\": \"path\", \"virtual\" or \"auto\"",
                         style);
    *ret_endpoint = e;
    return 0;
}

/* A certificate for *.host holds for one label, and an address has no names below it. */
static bool in_path(const struct s3_endpoint *e, const char *bucket)
{
    return e->path_style || (e->tls && strchr(bucket, '.')) || strchr(e->host, ':') || strlen(bucket) > 63;
}

void s3_endpoint_host(const struct s3_endpoint *e, const char *bucket, char ret_host[320],
                      char ret_header[340])
{
    const char *dot = bucket && !in_path(e, bucket) ? "." : "";
    snprintf(ret_host, 320, "%.63s%s%.253s", *dot ? bucket : "", dot, e->host);
    bool plain = e->port == (e->tls ? 443 : 80), v6 = strchr(ret_host, ':') != NULL;
    if (plain)
        snprintf(ret_header, 340, v6 ? "[%s]" : "%s", ret_host);
    else
        snprintf(ret_header, 340, v6 ? "[%s]:%u" : "%s:%u", ret_host, e->port);
}

/* --- requests ---------------------------------------------------------------------------------------------------------- */

void s3_query_put(struct bytes_out *out, const char *name, const char *value)
{
    if (out->len)
        bytes_put(out, "&", 1);
    http_escape(out, name, strlen(name), false);
    bytes_put(out, "=", 1);
    if (value)
        http_escape(out, value, strlen(value), false);
}

struct header_list {
    struct sigv4_header at[SIGV4_HEADERS_MAX];
    unsigned n;
    bool bad;
};

static void header_add(struct header_list *l, const char *name, const char *value)
{
    if (l->n == SIGV4_HEADERS_MAX || strpbrk(value, "\r\n") || !*name) {
        l->bad = true;
        return;
    }
    while (*value == ' ' || *value == '\t')
        value++;
    size_t len = strlen(value);
    while (len && (value[len - 1] == ' ' || value[len - 1] == '\t'))
        len--;
    unsigned i = l->n++;
    for (; i > 0 && strcmp(l->at[i - 1].name, name) > 0; i--)
        l->at[i] = l->at[i - 1];
    l->at[i] = (struct sigv4_header){name, value, len};
    if (i > 0 && strcmp(l->at[i - 1].name, name) == 0)
        l->bad = true;
}

/* Twenty digits and a NUL at most; the NUL's place. snprintf is a tenth of what a request takes. */
static char *put_number(char *at, uint64_t v)
{
    char digits[20];
    unsigned n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
    } while (v /= 10);
    while (n)
        *at++ = digits[--n];
    *at = 0;
    return at;
}

/* The texts that headers are made of, while they are needed. */
struct header_texts {
    char host[320], host_header[340], when[SIGV4_TIME], range[64], length[24];
};

/* What goes with it, all of it signed. */
static void collect_headers(struct header_list *headers, struct header_texts *texts,
                            const struct s3_endpoint *e, const struct s3_signer *signer,
                            const struct s3_request *request, const char *payload)
{
    if (!request->host)
        s3_endpoint_host(e, request->bucket, texts->host, texts->host_header);
    header_add(headers, "host", request->host ? request->host : texts->host_header);
    if (request->ranged) {
        char *end = put_number(stpcpy(texts->range, "bytes="), request->first);
        end = stpcpy(end, "-");
        if (request->last != UINT64_MAX)
            put_number(end, request->last);
        header_add(headers, "range", texts->range);
    }
    if (request->if_match)
        header_add(headers, "if-match", request->if_match);
    if (request->has_body) {
        put_number(texts->length, request->content_length);
        header_add(headers, "content-length", texts->length);
    }
    for (unsigned i = 0; i < request->nheaders; i++)
        header_add(headers, request->headers[i].name, request->headers[i].value);
    if (!signer)
        return;
    for (const char *c = signer->access_key; *c; c++)
        headers->bad |= (unsigned char)*c <= ' ' || *c == 0x7f || *c == ',';
    header_add(headers, "x-amz-content-sha256", payload);
    header_add(headers, "x-amz-date", texts->when);
    if (signer->token)
        header_add(headers, "x-amz-security-token", signer->token);
}

static void put_path(struct bytes_out *out, const struct s3_endpoint *e, const struct s3_request *request)
{
    http_put(out, e->base);
    bytes_put(out, "/", 1);
    if (request->bucket && in_path(e, request->bucket)) {
        http_escape(out, request->bucket, strlen(request->bucket), false);
        if (request->key_len)
            bytes_put(out, "/", 1);
    }
    if (request->key_len)
        http_escape(out, request->key, request->key_len, true);
}

static int put_authorization(struct bytes_out *out, const struct s3_signer *signer,
                             const struct sigv4_request *request, const char *when)
{
    struct bytes_out value = {0};
    int rc = sigv4_authorization(&value, signer->key, signer->access_key, request, when);
    if (rc == 0) {
        http_put(out, "authorization: ");
        bytes_put(out, value.data, value.len);
        bytes_put(out, "\r\n", 2);
    }
    bytes_out_fini(&value);
    return rc;
}

int s3_request_put(struct bytes_out *out, const struct s3_endpoint *e, const struct s3_signer *signer,
                   const struct s3_request *request, time_t now)
{
    struct header_texts texts;
    struct header_list headers = {.n = 0};
    const char *query = request->query ? request->query : "";
    const char *payload = request->payload ? request->payload : SIGV4_EMPTY;
    signer = signer && signer->access_key ? signer : NULL;
    if (request->key_len && memchr(request->key, 0, request->key_len))
        return LEAT_INVALID;
    sigv4_time(now, texts.when);
    collect_headers(&headers, &texts, e, signer, request, payload);
    if (headers.bad)
        return LEAT_INVALID;

    size_t start = out->len;
    http_put(out, request->method);
    bytes_put(out, " ", 1);
    size_t path = out->len;
    put_path(out, e, request);
    size_t path_end = out->len;
    if (*query) {
        bytes_put(out, "?", 1);
        http_put(out, query);
    }
    http_put(out, " HTTP/1.1\r\n");
    for (unsigned i = 0; i < headers.n; i++) {
        http_put(out, headers.at[i].name);
        bytes_put(out, ": ", 2);
        bytes_put(out, headers.at[i].value, headers.at[i].value_len);
        bytes_put(out, "\r\n", 2);
    }
    if (signer && !out->failed) {
        struct sigv4_request signed_request = {
            .method = request->method,
            .path = (const char *)out->data + path,
            .path_len = path_end - path,
            .query = query,
            .query_len = strlen(query),
            .headers = headers.at,
            .nheaders = headers.n,
            .payload = payload,
        };
        int rc = put_authorization(out, signer, &signed_request, texts.when);
        if (rc < 0) {
            out->len = start;
            return rc;
        }
    }
    bytes_put(out, "\r\n", 2);
    return out->failed ? -ENOMEM : 0;
}
