/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canonical request and string to sign are hashed as they are put together, a KiB at a time; nothing is allocated.
 *
 * SHA-256 by OpenSSL's plain functions: its EVP layer looks the algorithm up at each call, which cost a request of a small object more than all
 * of the hashing (2.4 of 3 microseconds).
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* they are the ones that are fast */
#include "wire/s3/sigv4.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>

#include "base/hex.h"
#include "wire/http/http.h"

#define ALGORITHM "AWS4-HMAC-SHA256"

/* Pieces are gathered, as a call of OpenSSL's costs as much as hashing twenty bytes: a request has fifty pieces, of which it takes one. */
struct hash {
    SHA256_CTX of;
    size_t have;
    char text[1024];
};

static void hash_begin(struct hash *h)
{
    SHA256_Init(&h->of);
    h->have = 0;
}

static void put(struct hash *h, const void *data, size_t len)
{
    if (len > sizeof(h->text) - h->have) {
        SHA256_Update(&h->of, h->text, h->have);
        h->have = 0;
    }
    if (len > sizeof(h->text)) {
        SHA256_Update(&h->of, data, len);
    } else if (len) {
        memcpy(h->text + h->have, data, len);
        h->have += len;
    }
}

/* Inline, so that the length of a literal is known. */
static inline void put_text(struct hash *h, const char *text)
{
    put(h, text, strlen(text));
}

static void hash_end(struct hash *h, uint8_t out[SHA256_DIGEST_LENGTH])
{
    SHA256_Update(&h->of, h->text, h->have);
    SHA256_Final(out, &h->of);
}

/* HMAC, RFC 2104: what is between begin and end is the message. Keys are of at most a block. */
struct hmac {
    struct hash hash;
    uint8_t outer[SHA256_CBLOCK];
};

static void hmac_begin(struct hmac *h, const void *key, size_t key_len)
{
    uint8_t inner[SHA256_CBLOCK] = {0}, digest[SHA256_DIGEST_LENGTH];
    if (key_len > sizeof(inner)) {
        SHA256(key, key_len, digest);
        key = digest;
        key_len = sizeof(digest);
    }
    memcpy(inner, key, key_len);
    for (size_t i = 0; i < sizeof(inner); i++) {
        h->outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    hash_begin(&h->hash);
    put(&h->hash, inner, sizeof(inner));
    OPENSSL_cleanse(inner, sizeof(inner));
}

static void hmac_end(struct hmac *h, uint8_t out[SHA256_DIGEST_LENGTH])
{
    uint8_t sum[SHA256_DIGEST_LENGTH];
    hash_end(&h->hash, sum);
    OPENSSL_cleanse(h->hash.text, sizeof(h->outer)); /* what is made of the key: its beginning */
    hash_begin(&h->hash);
    put(&h->hash, h->outer, sizeof(h->outer));
    put(&h->hash, sum, sizeof(sum));
    hash_end(&h->hash, out);
    OPENSSL_cleanse(&h->hash.of, sizeof(h->hash.of));
    OPENSSL_cleanse(h->hash.text, h->hash.have);
    OPENSSL_cleanse(h->outer, sizeof(h->outer));
}

static void hmac(const void *key, size_t key_len, const void *data, size_t len,
                 uint8_t out[SHA256_DIGEST_LENGTH])
{
    struct hmac h;
    hmac_begin(&h, key, key_len);
    put(&h.hash, data, len);
    hmac_end(&h, out);
}

int sigv4_sha256(const void *data, size_t len, char ret_hex[SIGV4_SIGNATURE])
{
    uint8_t sum[SHA256_DIGEST_LENGTH];
    SHA256(data, len, sum);
    hex_put(ret_hex, sum, sizeof(sum));
    return 0;
}

/* --- time and key ------------------------------------------------------------------------------------------------------ */

static void put_two(char *out, unsigned v)
{
    out[0] = (char)('0' + v / 10 % 10);
    out[1] = (char)('0' + v % 10);
}

/* By hand, as strftime takes as long as half of the hashing. Years begin with March here, and come in eras of 400. */
void sigv4_time(time_t t, char out[SIGV4_TIME])
{
    if (t < 0 || t >= 253402300800) { /* a year of five digits: no server takes it */
        memcpy(out, "19700101T000000Z", SIGV4_TIME);
        return;
    }
    unsigned second = (unsigned)(t % 86400), day = (unsigned)(t / 86400) + 719468;
    unsigned era = day / 146097;
    day %= 146097;
    unsigned year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    unsigned month = (5 * day + 2) / 153;
    day -= (153 * month + 2) / 5;
    month = month < 10 ? month + 3 : month - 9;
    year += era * 400 + (month <= 2);
    put_two(out, year / 100);
    put_two(out + 2, year);
    put_two(out + 4, month);
    put_two(out + 6, day + 1);
    out[8] = 'T';
    put_two(out + 9, second / 3600);
    put_two(out + 11, second / 60 % 60);
    put_two(out + 13, second % 60);
    memcpy(out + 15, "Z", 2);
}

/* The other way; a day that the month has not is one of the next, as timegm has it. */
static int64_t days_since_1970(int year, int month, int day)
{
    year += 400 - (month <= 2); /* so that none is negative */
    int month_of_march = (month + 9) % 12;
    return 365ll * year + year / 4 - year / 100 + year / 400 + (153 * month_of_march + 2) / 5 + day - 1 -
           719468 - 146097;
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
    *ret = days_since_1970(v[0], v[1], v[2]) * 86400 + v[3] * 3600 + v[4] * 60 + v[5];
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
    hmac(first, (size_t)n, ret_key->date, 8, k);
    hmac(k, 32, region, strlen(region), k);
    hmac(k, 32, service, strlen(service), k);
    hmac(k, 32, "aws4_request", 12, ret_key->key);
    OPENSSL_cleanse(first, sizeof(first));
    OPENSSL_cleanse(k, sizeof(k));
    return 0;
}

void sigv4_key_wipe(struct sigv4_key *key)
{
    OPENSSL_cleanse(key, sizeof(*key));
}

/* --- signing ----------------------------------------------------------------------------------------------------------- */

static void put_signed_names(struct bytes_out *out, const struct sigv4_request *rq)
{
    for (unsigned i = 0; i < rq->nheaders; i++) {
        if (i)
            bytes_put(out, ";", 1);
        http_put(out, rq->headers[i].name);
    }
}

/* Several spaces are one, as what stands between may have changed them ("Trimall"); those around are gone already. */
static void put_value(struct hash *hash, const char *value, size_t len)
{
    for (size_t from = 0; from < len;) {
        const char *two = memmem(value + from, len - from, "  ", 2);
        size_t end = two ? (size_t)(two + 1 - value) : len;
        put(hash, value + from, end - from);
        for (from = end; from < len && value[from] == ' ';)
            from++;
    }
}

static int hash_canonical(const struct sigv4_request *rq, char ret_hex[SIGV4_SIGNATURE])
{
    struct hash hash;
    uint8_t sum[SHA256_DIGEST_LENGTH];
    for (unsigned i = 1; i < rq->nheaders; i++) {
        if (strcmp(rq->headers[i - 1].name, rq->headers[i].name) >= 0)
            return LEAT_INVALID;
    }
    hash_begin(&hash);
    put_text(&hash, rq->method);
    put(&hash, "\n", 1);
    put(&hash, rq->path, rq->path_len);
    put(&hash, "\n", 1);
    put(&hash, rq->query, rq->query_len);
    put(&hash, "\n", 1);
    for (unsigned i = 0; i < rq->nheaders; i++) {
        put_text(&hash, rq->headers[i].name);
        put(&hash, ":", 1);
        put_value(&hash, rq->headers[i].value, rq->headers[i].value_len);
        put(&hash, "\n", 1);
    }
    put(&hash, "\n", 1);
    for (unsigned i = 0; i < rq->nheaders; i++) {
        if (i)
            put(&hash, ";", 1);
        put_text(&hash, rq->headers[i].name);
    }
    put(&hash, "\n", 1);
    put_text(&hash, rq->payload);
    hash_end(&hash, sum);
    hex_put(ret_hex, sum, sizeof(sum));
    return 0;
}

/* What is signed: the algorithm and these lines. */
static void sign_lines(const struct sigv4_key *key, const char *const *lines, unsigned n,
                       char ret_signature[SIGV4_SIGNATURE])
{
    uint8_t sum[SHA256_DIGEST_LENGTH];
    struct hmac h;
    hmac_begin(&h, key->key, sizeof(key->key));
    for (unsigned i = 0; i < n; i++) {
        if (i)
            put(&h.hash, "\n", 1);
        put_text(&h.hash, lines[i]);
    }
    hmac_end(&h, sum);
    hex_put(ret_signature, sum, sizeof(sum));
}

int sigv4_sign(const struct sigv4_key *key, const struct sigv4_request *request, const char *time,
               char ret_signature[SIGV4_SIGNATURE])
{
    char hash[SIGV4_SIGNATURE];
    int rc = hash_canonical(request, hash);
    if (rc == 0)
        sign_lines(key, (const char *[]){ALGORITHM, time, key->scope, hash}, 4, ret_signature);
    return rc;
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
    put_signed_names(out, request);
    http_put(out, ",Signature=");
    http_put(out, signature);
    return out->failed ? -ENOMEM : 0;
}

int sigv4_chunk(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                const char sha256[SIGV4_SIGNATURE], char ret_signature[SIGV4_SIGNATURE])
{
    sign_lines(key, (const char *[]){ALGORITHM "-PAYLOAD", time, key->scope, previous, SIGV4_EMPTY, sha256},
               6, ret_signature);
    return 0;
}

int sigv4_trailer(const struct sigv4_key *key, const char *time, const char previous[SIGV4_SIGNATURE],
                  const void *trailers, size_t len, char ret_signature[SIGV4_SIGNATURE])
{
    char hash[SIGV4_SIGNATURE];
    sigv4_sha256(trailers, len, hash);
    sign_lines(key, (const char *[]){ALGORITHM "-TRAILER", time, key->scope, previous, hash}, 5,
               ret_signature);
    return 0;
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

/* "+" is a space in a query: what is signed has to be what is read, or a link to "a%2Bb" is one to "a b" as well. */
static bool put_canonical(struct bytes_out *out, const char *text, size_t len)
{
    return http_escape_anew(out, text, len, false, true);
}

int sigv4_query_canonical(struct bytes_out *out, const char *query, size_t len, const char *except)
{
    struct parameter params[SIGV4_QUERY_MAX];
    size_t ends[SIGV4_QUERY_MAX][2];
    unsigned n = 0;
    int rc = LEAT_INVALID;
    struct bytes_out text = {0};
    bytes_put(&text, "", 1); /* so that no pointer into it is NULL */
    for (size_t at = 0; at < len;) {
        const char *amp = memchr(query + at, '&', len - at);
        size_t end = amp ? (size_t)(amp - query) : len;
        if (end > at) {
            const char *eq = memchr(query + at, '=', end - at);
            size_t name_end = eq ? (size_t)(eq - query) : end;
            if (n == SIGV4_QUERY_MAX || !put_canonical(&text, query + at, name_end - at))
                goto out;
            ends[n][0] = text.len;
            if (eq && !put_canonical(&text, eq + 1, end - name_end - 1))
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
