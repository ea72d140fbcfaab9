/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canonical request, string to sign, signature: each is hashed as it is put together, in one buffer on the stack where it fits.
 * Failure modes: OpenSSL has no memory or no SHA-256 (-EIO); nothing half-signed comes out.
 */
#include "wire/sigv4.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>

#include "wire/http.h"

#define ALGORITHM "AWS4-HMAC-SHA256"

static void to_hex(const uint8_t *in, size_t n, char *out)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = hex[in[i] >> 4];
        out[2 * i + 1] = hex[in[i] & 15];
    }
    out[2 * n] = 0;
}

static int hmac(const void *key, size_t key_len, const void *data, size_t len, uint8_t out[32])
{
    unsigned n = 0;
    return HMAC(EVP_sha256(), key, (int)key_len, data, len, out, &n) && n == 32 ? 0 : -EIO;
}

int sigv4_sha256(const void *data, size_t len, char ret_hex[SIGV4_SIGNATURE])
{
    uint8_t sum[32];
    if (!EVP_Digest(data, len, sum, NULL, EVP_sha256(), NULL))
        return -EIO;
    to_hex(sum, sizeof(sum), ret_hex);
    return 0;
}

/* --- time and key ------------------------------------------------------------------------------------------------------ */

void sigv4_time(time_t t, char out[SIGV4_TIME])
{
    struct tm tm;
    gmtime_r(&t, &tm);
    if (strftime(out, SIGV4_TIME, "%Y%m%dT%H%M%SZ", &tm) !=
        SIGV4_TIME - 1)                              /* digits only: the locale has no say */
        memcpy(out, "19700101T000000Z", SIGV4_TIME); /* a year of five digits: no server takes it */
}

bool sigv4_time_parse(const char *text, size_t len, time_t *ret)
{
    int v[6];
    static const int widths[6] = {4, 2, 2, 2, 2, 2};
    if (len != SIGV4_TIME - 1 || text[8] != 'T' || text[15] != 'Z')
        return false;
    for (int i = 0, at = 0; i < 6; at += widths[i] + (i == 2), i++) {
        v[i] = 0;
        for (int k = 0; k < widths[i]; k++) {
            char c = text[at + k];
            if (c < '0' || c > '9')
                return false;
            v[i] = v[i] * 10 + (c - '0');
        }
    }
    if (v[1] < 1 || v[1] > 12 || v[2] < 1 || v[2] > 31 || v[3] > 23 || v[4] > 59 || v[5] > 60)
        return false;
    struct tm tm = {.tm_year = v[0] - 1900,
                    .tm_mon = v[1] - 1,
                    .tm_mday = v[2],
                    .tm_hour = v[3],
                    .tm_min = v[4],
                    .tm_sec = v[5]};
    *ret = timegm(&tm);
    return true;
}

static bool scope_part(const char *text)
{
    size_t len = strlen(text);
    return len > 0 && len <= 64 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == len;
}

int sigv4_key_derive(const char *secret, time_t now, const char *region, const char *service,
                     struct sigv4_key *ret_key)
{
    char when[SIGV4_TIME], first[260];
    uint8_t k[32];
    if (!scope_part(region) || !scope_part(service) || strlen(secret) > 255)
        return LEAT_INVALID;
    sigv4_time(now, when);
    memcpy(ret_key->date, when, 8);
    ret_key->date[8] = 0;
    snprintf(ret_key->scope, sizeof(ret_key->scope), "%s/%s/%s/aws4_request", ret_key->date, region, service);
    int n = snprintf(first, sizeof(first), "AWS4%s", secret);
    int rc = hmac(first, (size_t)n, ret_key->date, 8, k);
    if (rc == 0)
        rc = hmac(k, 32, region, strlen(region), k);
    if (rc == 0)
        rc = hmac(k, 32, service, strlen(service), k);
    if (rc == 0)
        rc = hmac(k, 32, "aws4_request", 12, ret_key->key);
    OPENSSL_cleanse(first, sizeof(first));
    OPENSSL_cleanse(k, sizeof(k));
    return rc;
}

void sigv4_key_wipe(struct sigv4_key *key)
{
    OPENSSL_cleanse(key, sizeof(*key));
}

/* --- signing ----------------------------------------------------------------------------------------------------------- */

static void put_signed_names(struct bytes_out *out, const struct sigv4_request *rq, const char *between)
{
    for (unsigned i = 0; i < rq->nheaders; i++) {
        if (i)
            http_put(out, between);
        http_put(out, rq->headers[i].name);
    }
}

static int canonical(struct bytes_out *out, const struct sigv4_request *rq)
{
    for (unsigned i = 1; i < rq->nheaders; i++) {
        if (strcmp(rq->headers[i - 1].name, rq->headers[i].name) >= 0)
            return LEAT_INVALID;
    }
    http_put(out, rq->method);
    bytes_put(out, "\n", 1);
    bytes_put(out, rq->path, rq->path_len);
    bytes_put(out, "\n", 1);
    bytes_put(out, rq->query, rq->query_len);
    bytes_put(out, "\n", 1);
    for (unsigned i = 0; i < rq->nheaders; i++) {
        http_put(out, rq->headers[i].name);
        bytes_put(out, ":", 1);
        bytes_put(out, rq->headers[i].value, rq->headers[i].value_len);
        bytes_put(out, "\n", 1);
    }
    bytes_put(out, "\n", 1);
    put_signed_names(out, rq, ";");
    bytes_put(out, "\n", 1);
    http_put(out, rq->payload);
    return out->failed ? -ENOMEM : 0;
}

static int sign_text(const struct sigv4_key *key, const char *text, size_t len,
                     char ret_signature[SIGV4_SIGNATURE])
{
    uint8_t sum[32];
    int rc = hmac(key->key, 32, text, len, sum);
    if (rc == 0)
        to_hex(sum, sizeof(sum), ret_signature);
    return rc;
}

int sigv4_sign(const struct sigv4_key *key, const struct sigv4_request *request, const char *time,
               char ret_signature[SIGV4_SIGNATURE])
{
    struct bytes_out out = {0};
    char hash[SIGV4_SIGNATURE], text[64 + 160 + 80];
    int rc = canonical(&out, request);
    if (rc == 0)
        rc = sigv4_sha256(out.data, out.len, hash);
    bytes_out_fini(&out);
    if (rc < 0)
        return rc;
    int n = snprintf(text, sizeof(text), ALGORITHM "\n%s\n%s\n%s", time, key->scope, hash);
    return sign_text(key, text, (size_t)n, ret_signature);
}

int sigv4_authorization(struct bytes_out *out, const struct sigv4_key *key, const char *access_key,
                        const struct sigv4_request *request, const char *time)
{
    char signature[SIGV4_SIGNATURE];
    int rc = sigv4_sign(key, request, time, signature);
    if (rc < 0)
        return rc;
    http_put(out, ALGORITHM " Credential=");
    http_put(out, access_key);
    bytes_put(out, "/", 1);
    http_put(out, key->scope);
    http_put(out, ",SignedHeaders=");
    put_signed_names(out, request, ";");
    http_put(out, ",Signature=");
    http_put(out, signature);
    return out->failed ? -ENOMEM : 0;
}

int sigv4_presign(struct bytes_out *out, const struct sigv4_key *key, const char *access_key,
                  const char *token, const struct sigv4_request *request, const char *time, uint32_t expires)
{
    if (expires == 0 || expires > SIGV4_EXPIRES_MAX)
        return LEAT_INVALID;
    struct bytes_out q = {0}, sorted = {0};
    char number[16], signature[SIGV4_SIGNATURE];
    bytes_put(&q, request->query, request->query_len);
    http_put(&q, q.len ? "&X-Amz-Algorithm=" ALGORITHM "&X-Amz-Credential="
                       : "X-Amz-Algorithm=" ALGORITHM "&X-Amz-Credential=");
    http_escape(&q, access_key, strlen(access_key), false);
    http_put(&q, "%2F");
    http_escape(&q, key->scope, strlen(key->scope), false);
    http_put(&q, "&X-Amz-Date=");
    http_put(&q, time);
    snprintf(number, sizeof(number), "%u", expires);
    http_put(&q, "&X-Amz-Expires=");
    http_put(&q, number);
    if (token) {
        http_put(&q, "&X-Amz-Security-Token=");
        http_escape(&q, token, strlen(token), false);
    }
    http_put(&q, "&X-Amz-SignedHeaders=");
    put_signed_names(&q, request, "%3B");
    int rc = q.failed ? -ENOMEM : sigv4_query_canonical(&sorted, (const char *)q.data, q.len, NULL);
    if (rc == 0) {
        struct sigv4_request whole = *request;
        whole.query = (const char *)sorted.data;
        whole.query_len = sorted.len;
        rc = sigv4_sign(key, &whole, time, signature);
    }
    if (rc == 0) {
        bytes_put(out, sorted.data, sorted.len);
        http_put(out, "&X-Amz-Signature=");
        http_put(out, signature);
        rc = out->failed ? -ENOMEM : 0;
    }
    bytes_out_fini(&q);
    bytes_out_fini(&sorted);
    return rc;
}

int sigv4_chunk_hashed(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                       const char sha256[SIGV4_SIGNATURE], char ret_signature[SIGV4_SIGNATURE])
{
    char text[64 + 160 + 3 * 70];
    int n = snprintf(text, sizeof(text), ALGORITHM "-PAYLOAD\n%s\n%s\n%s\n" SIGV4_EMPTY "\n%s", time,
                     key->scope, previous, sha256);
    return sign_text(key, text, (size_t)n, ret_signature);
}

int sigv4_chunk(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                const void *data, size_t len, char ret_signature[SIGV4_SIGNATURE])
{
    char hash[SIGV4_SIGNATURE];
    int rc = sigv4_sha256(data, len, hash);
    return rc < 0 ? rc : sigv4_chunk_hashed(key, time, previous, hash, ret_signature);
}

int sigv4_trailer(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                  const void *trailers, size_t len, char ret_signature[SIGV4_SIGNATURE])
{
    char hash[SIGV4_SIGNATURE], text[64 + 160 + 2 * 70];
    int rc = sigv4_sha256(trailers, len, hash);
    if (rc < 0)
        return rc;
    int n =
        snprintf(text, sizeof(text), ALGORITHM "-TRAILER\n%s\n%s\n%s\n%s", time, key->scope, previous, hash);
    return sign_text(key, text, (size_t)n, ret_signature);
}

/* --- the query --------------------------------------------------------------------------------------------------------- */

struct parameter {
    const char *name, *value; /* escaped canonically */
    size_t name_len, value_len;
};

static int compare(const void *a, const void *b)
{
    const struct parameter *x = a, *y = b;
    int by = memcmp(x->name, y->name, MIN(x->name_len, y->name_len));
    if (by == 0)
        by = x->name_len < y->name_len ? -1 : x->name_len > y->name_len;
    if (by == 0)
        by = memcmp(x->value, y->value, MIN(x->value_len, y->value_len));
    return by ? by : x->value_len < y->value_len ? -1 : x->value_len > y->value_len;
}

/* Unescapes in `scratch`, and appends the canonical form. */
static bool put_canonical(struct bytes_out *out, char *scratch, const char *text, size_t len)
{
    size_t n;
    if (len)
        memcpy(scratch, text, len);
    if (!http_unescape(scratch, len, &n))
        return false;
    http_escape(out, scratch, n, false);
    return true;
}

int sigv4_query_canonical(struct bytes_out *out, const char *query, size_t len, const char *except)
{
    struct parameter params[SIGV4_QUERY_MAX];
    size_t ends[SIGV4_QUERY_MAX][2];
    unsigned n = 0;
    int rc = LEAT_INVALID;
    struct bytes_out text = {0};
    AUTO_FREE char *scratch = malloc(len + 1);
    if (!scratch)
        return -ENOMEM;
    bytes_put(&text, "", 1); /* so that no pointer into it is NULL */
    for (size_t at = 0; at < len;) {
        const char *amp = memchr(query + at, '&', len - at);
        size_t end = amp ? (size_t)(amp - query) : len;
        if (end > at) {
            const char *eq = memchr(query + at, '=', end - at);
            size_t name_end = eq ? (size_t)(eq - query) : end;
            if (n == SIGV4_QUERY_MAX || !put_canonical(&text, scratch, query + at, name_end - at))
                goto out;
            ends[n][0] = text.len;
            if (eq && !put_canonical(&text, scratch, eq + 1, end - name_end - 1))
                goto out;
            ends[n++][1] = text.len;
        }
        at = end + 1;
    }
    rc = text.failed ? -ENOMEM : 0;
    if (rc < 0)
        goto out;
    for (unsigned i = 0; i < n; i++) {
        size_t start = i ? ends[i - 1][1] : 1;
        params[i] = (struct parameter){(const char *)text.data + start, (const char *)text.data + ends[i][0],
                                       ends[i][0] - start, ends[i][1] - ends[i][0]};
    }
    qsort(params, n, sizeof(params[0]), compare);
    bool first = true;
    for (unsigned i = 0; i < n; i++) {
        if (except && strlen(except) == params[i].name_len &&
            memcmp(except, params[i].name, params[i].name_len) == 0)
            continue;
        if (!first)
            bytes_put(out, "&", 1);
        first = false;
        bytes_put(out, params[i].name, params[i].name_len);
        bytes_put(out, "=", 1);
        bytes_put(out, params[i].value, params[i].value_len);
    }
    rc = out->failed ? -ENOMEM : 0;
out:
    bytes_out_fini(&text);
    return rc;
}

bool sigv4_equal(const char a[SIGV4_SIGNATURE], const char *b, size_t b_len)
{
    return b_len == SIGV4_SIGNATURE - 1 && CRYPTO_memcmp(a, b, b_len) == 0;
}
