/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: cut "AWS4-HMAC-SHA256 Credential=K/20130524/us-east-1/s3/aws4_request, SignedHeaders=a;b, Signature=..." (or the X-Amz- parameters
 * of a presigned URL) into a claim; later put the canonical request together from the head and compare.
 * Failure modes: each has its code of S3, so that a client says what is wrong: a clock, a region, a key, an expired link.
 * Invariants: the comparison takes the same time wherever the difference is; a header that counts (host, x-amz-*, x-leat-*) is signed or the request is
 * refused, so that no proxy on the way adds one.
 */
#include "wire/s3/sigv4_check.h"

#include <stdio.h>
#include <strings.h>

#define ALGORITHM "AWS4-HMAC-SHA256"
/* For clients that sign by Version 2, as boto3 and awscli make links by default. */
#define USE_V4                                                                                               \
    "Signature Version 2 is not supported. Please use " ALGORITHM                                            \
    ": Config(signature_version='s3v4') of boto3, aws configure set default.s3.signature_version s3v4, "     \
    "signature_v2 = False of s3cmd, no sigv2 of s3fs."
static_assert(sizeof(USE_V4) <= sizeof(((struct sigv4_claim *)0)->why), "said whole");

static enum s3_code refuse(struct sigv4_claim *c, enum s3_code code, const char *why)
{
    snprintf(c->why, sizeof(c->why), "%s", why);
    return code;
}

static bool copy(struct http_text t, char *out, size_t cap)
{
    if (t.len == 0 || t.len >= cap)
        return false;
    http_text_copy(t, out, cap);
    return true;
}

static bool is_hex64(struct http_text t)
{
    if (t.len != 64)
        return false;
    for (size_t i = 0; i < t.len; i++) {
        if (!((t.data[i] >= '0' && t.data[i] <= '9') || (t.data[i] >= 'a' && t.data[i] <= 'f')))
            return false;
    }
    return true;
}

/* The last part of t, behind its last "/"; t becomes what stands before it. False: there is no "/". */
static bool pop(struct http_text *t, struct http_text *ret_part)
{
    const char *slash = t->len ? memrchr(t->data, '/', t->len) : NULL;
    if (!slash)
        return false;
    *ret_part = (struct http_text){slash + 1, t->len - (size_t)(slash + 1 - t->data)};
    t->len = (size_t)(slash - t->data);
    return true;
}

/* "KEY/20130524/us-east-1/s3/aws4_request"; a key may have a "/" in it. */
static enum s3_code parse_credential(struct sigv4_claim *c, struct http_text t, const char *region,
                                     enum s3_code malformed, bool *ret_other_region)
{
    struct http_text end, service, where, date;
    if (!pop(&t, &end) || !pop(&t, &service) || !pop(&t, &where) || !pop(&t, &date))
        return refuse(
            c, malformed,
            "the Credential is mal-formed; expecting \"<access key>/YYYYMMDD/REGION/SERVICE/aws4_request\".");
    if (!http_text_is(end, "aws4_request") || !http_text_is(service, "s3"))
        return refuse(c, malformed,
                      "the Credential is for another service; expecting \".../s3/aws4_request\".");
    if (!http_text_is(where, region)) {
        *ret_other_region = true;
        snprintf(c->why, sizeof(c->why), "the region '%.*s' is wrong; expecting '%.64s'",
                 (int)MIN(where.len, (size_t)40), where.data, region);
        return malformed;
    }
    if (date.len != 8 || !copy(date, c->date, sizeof(c->date)))
        return refuse(c, malformed, "the date of the Credential is not of the form YYYYMMDD.");
    if (!copy(t, c->access_key, sizeof(c->access_key)))
        return refuse(c, S3_INVALID_ACCESS_KEY, "");
    return S3_OK;
}

/* The value of "name=" in "a=x, b=y"; data NULL: none. */
static struct http_text field(struct http_text t, const char *name)
{
    size_t n = strlen(name), i = 0;
    while (i < t.len) {
        while (i < t.len && (t.data[i] == ' ' || t.data[i] == ',' || t.data[i] == '\t'))
            i++;
        const char *comma = i < t.len ? memchr(t.data + i, ',', t.len - i) : NULL;
        size_t end = comma ? (size_t)(comma - t.data) : t.len;
        if (end - i > n && memcmp(t.data + i, name, n) == 0 && t.data[i + n] == '=') {
            size_t last = end;
            while (last > i + n + 1 && (t.data[last - 1] == ' ' || t.data[last - 1] == '\t'))
                last--;
            return (struct http_text){t.data + i + n + 1, last - i - n - 1};
        }
        i = end;
    }
    return (struct http_text){0};
}

static enum s3_code parse_date(struct sigv4_claim *c, const struct http_reader *r, const char *buf)
{
    struct http_text t = http_header(r, buf, "x-amz-date");
    if (!t.data) {
        t = http_header(r, buf, "date");
        if (t.data && http_date_parse(t, &c->time)) {
            sigv4_time(c->time, c->when);
            return S3_OK;
        }
    }
    if (!t.data || !sigv4_time_parse(t.data, t.len, &c->time))
        return refuse(c, S3_ACCESS_DENIED, "AWS authentication requires a valid Date or x-amz-date header");
    http_text_copy(t, c->when, sizeof(c->when));
    return S3_OK;
}

static enum s3_code parse_header(struct sigv4_claim *c, const struct http_reader *r, const char *buf,
                                 struct http_text value, const char *region, time_t now,
                                 bool *ret_other_region)
{
    size_t n = sizeof(ALGORITHM) - 1;
    if (value.len > 4 && memcmp(value.data, "AWS ", 4) == 0)
        return refuse(c, S3_INVALID_REQUEST, USE_V4);
    if (value.len <= n || memcmp(value.data, ALGORITHM, n) != 0 || value.data[n] != ' ')
        return refuse(c, S3_INVALID_REQUEST,
                      "The authorization mechanism you have provided is not supported. Please use " ALGORITHM
                      ".");
    struct http_text rest = {value.data + n, value.len - n};
    struct http_text credential = field(rest, "Credential"), names = field(rest, "SignedHeaders"),
                     signature = field(rest, "Signature");
    if (!credential.data || !copy(names, c->names, sizeof(c->names)) || !is_hex64(signature))
        return refuse(
            c, S3_AUTH_HEADER_MALFORMED,
            "The authorization header is malformed; Credential, SignedHeaders and Signature are needed.");
    http_text_copy(signature, c->signature, sizeof(c->signature));
    enum s3_code code = parse_credential(c, credential, region, S3_AUTH_HEADER_MALFORMED, ret_other_region);
    if (code == S3_OK)
        code = parse_date(c, r, buf);
    if (code != S3_OK)
        return code;
    if (memcmp(c->when, c->date, 8) != 0)
        return refuse(c, S3_AUTH_HEADER_MALFORMED,
                      "The authorization header is malformed; its date is not that of the request.");
    if (c->time > now + SIGV4_SKEW_S || c->time < now - SIGV4_SKEW_S)
        return refuse(c, S3_TIME_SKEWED, "");
    return S3_OK;
}

static struct http_text param(const struct s3_call *call, const char *name)
{
    struct http_text t = {0};
    t.data = s3_call_param(call, name, &t.len);
    return t;
}

static enum s3_code parse_query(struct sigv4_claim *c, const struct s3_call *call, const char *region,
                                time_t now, bool *ret_other_region)
{
    struct http_text signature = param(call, "X-Amz-Signature"), when = param(call, "X-Amz-Date");
    uint64_t expires;
    if (!http_text_is(param(call, "X-Amz-Algorithm"), ALGORITHM))
        return refuse(c, S3_AUTH_QUERY_MALFORMED, "X-Amz-Algorithm only supports \"" ALGORITHM "\"");
    if (!copy(param(call, "X-Amz-SignedHeaders"), c->names, sizeof(c->names)) || !is_hex64(signature) ||
        !param(call, "X-Amz-Credential").data || !param(call, "X-Amz-Expires").data)
        return refuse(c, S3_AUTH_QUERY_MALFORMED,
                      "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, "
                      "X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.");
    if (!sigv4_time_parse(when.data ? when.data : "", when.len, &c->time))
        return refuse(c, S3_AUTH_QUERY_MALFORMED,
                      "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"");
    http_text_copy(when, c->when, sizeof(c->when));
    http_text_copy(signature, c->signature, sizeof(c->signature));
    if (!http_text_u64(param(call, "X-Amz-Expires"), &expires) || expires < 1 || expires > SIGV4_EXPIRES_MAX)
        return refuse(c, S3_AUTH_QUERY_MALFORMED,
                      "X-Amz-Expires must be a number of seconds, from 1 to a week (604800)");
    c->expires = (uint32_t)expires;
    enum s3_code code = parse_credential(c, param(call, "X-Amz-Credential"), region, S3_AUTH_QUERY_MALFORMED,
                                         ret_other_region);
    if (code != S3_OK)
        return code;
    if (memcmp(c->when, c->date, 8) != 0)
        return refuse(c, S3_AUTH_QUERY_MALFORMED, "The date of the Credential is not that of X-Amz-Date.");
    if (c->time > now + SIGV4_SKEW_S)
        return refuse(c, S3_TIME_SKEWED, "");
    if (now > c->time + (time_t)c->expires)
        return refuse(c, S3_ACCESS_DENIED, "Request has expired");
    return S3_OK;
}

/* What is said of the body. */
static enum s3_code parse_payload(struct sigv4_claim *c, struct http_text t)
{
    static const struct {
        const char *name;
        enum sigv4_body body;
    } known[] = {
        {SIGV4_UNSIGNED, SIGV4_BODY_PLAIN},
        {SIGV4_STREAMING, SIGV4_BODY_SIGNED},
        {SIGV4_STREAMING "-TRAILER", SIGV4_BODY_SIGNED_TRAILER},
        {"STREAMING-UNSIGNED-PAYLOAD-TRAILER", SIGV4_BODY_CHUNKS},
    };
    if (!t.data) {
        if (c->how == SIGV4_HEADER)
            return refuse(c, S3_INVALID_REQUEST,
                          "Missing required header for this request: x-amz-content-sha256");
        c->body = SIGV4_BODY_PLAIN;
        memcpy(c->payload, SIGV4_UNSIGNED, sizeof(SIGV4_UNSIGNED));
        return S3_OK;
    }
    if (is_hex64(t)) {
        c->body = SIGV4_BODY_HASHED;
        http_text_copy(t, c->payload, sizeof(c->payload));
        return S3_OK;
    }
    for (unsigned i = 0; i < ARRAY_LEN(known); i++) {
        if (!http_text_is(t, known[i].name))
            continue;
        c->body = known[i].body;
        memcpy(c->payload, known[i].name, strlen(known[i].name) + 1);
        if (c->how != SIGV4_HEADER && c->body >= SIGV4_BODY_SIGNED)
            return refuse(c, S3_INVALID_REQUEST,
                          "chunks can be signed where the request is, in its Authorization header");
        return S3_OK;
    }
    return refuse(c, S3_INVALID_ARGUMENT,
                  "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- value that S3 knows, or a "
                  "valid sha256 value.");
}

enum s3_code sigv4_claim_parse(struct sigv4_claim *c, const struct http_reader *r, const char *buf,
                               const struct s3_call *call, const char *region, time_t now,
                               bool *ret_other_region)
{
    c->how = SIGV4_ANONYMOUS;
    c->why[0] = c->access_key[0] = 0;
    c->expires = 0;
    *ret_other_region = false;
    struct http_text value = http_header(r, buf, "authorization");
    bool query = param(call, "X-Amz-Signature").data || param(call, "X-Amz-Algorithm").data ||
                 param(call, "X-Amz-Credential").data;
    if (value.data && query)
        return refuse(c, S3_INVALID_ARGUMENT,
                      "Only one auth mechanism allowed: a signed URL, or an Authorization header");
    if (param(call, "Signature").data && param(call, "AWSAccessKeyId").data)
        return refuse(c, S3_INVALID_REQUEST, USE_V4);
    enum s3_code code = S3_OK;
    if (value.data) {
        c->how = SIGV4_HEADER;
        code = parse_header(c, r, buf, value, region, now, ret_other_region);
    } else if (query) {
        c->how = SIGV4_QUERY;
        code = parse_query(c, call, region, now, ret_other_region);
    }
    if (code != S3_OK)
        return code;
    c->token = http_header(r, buf, "x-amz-security-token");
    if (!c->token.data)
        c->token = param(call, "X-Amz-Security-Token");
    struct http_text payload = http_header(r, buf, "x-amz-content-sha256");
    if (!payload.data && c->how == SIGV4_QUERY)
        payload = param(call, "X-Amz-Content-Sha256");
    return parse_payload(c, payload);
}

/* --- the check -------------------------------------------------------------------------------------------------------------- */

/* Is this header among the signed ones? `names` is cut at ";" already. */
static bool is_signed(const char *const *names, unsigned n, struct http_text name)
{
    for (unsigned i = 0; i < n; i++) {
        if (http_text_is_case(name, names[i]))
            return true;
    }
    return false;
}

/* Cuts c->names; 0: too many, an empty one, or out of order. */
static unsigned cut_names(char *names, const char **ret_names, unsigned most)
{
    unsigned n = 0;
    char *save = NULL;
    for (char *name = strtok_r(names, ";", &save); name; name = strtok_r(NULL, ";", &save)) {
        for (char *p = name; *p; p++) {
            if (*p >= 'A' && *p <= 'Z')
                *p = (char)(*p | 0x20);
        }
        if (n == most || (n && strcmp(ret_names[n - 1], name) >= 0))
            return 0;
        ret_names[n++] = name;
    }
    return n;
}

/* Does a header change what is done? S3's own do, and ours, which name files of the server. */
static bool counts(struct http_text name)
{
    static const char *const prefixes[] = {"x-amz-", "x-leat-"};
    for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++) {
        size_t n = strlen(prefixes[i]);
        if (name.len > n && strncasecmp(name.data, prefixes[i], n) == 0)
            return true;
    }
    return false;
}

static enum s3_code check_coverage(struct sigv4_claim *c, const char *const *names, unsigned n,
                                   const struct http_reader *r, const char *buf)
{
    if (!is_signed(names, n, (struct http_text){"host", 4}))
        return refuse(c, S3_ACCESS_DENIED,
                      "There were headers present in the request which were not signed: host");
    for (unsigned i = 0; i < r->nheaders; i++) {
        struct http_text name, value;
        http_header_at(r, buf, i, &name, &value);
        if (counts(name) && !is_signed(names, n, name)) {
            snprintf(c->why, sizeof(c->why),
                     "There were headers present in the request which were not signed: %.*s",
                     (int)MIN(name.len, (size_t)60), name.data);
            return S3_ACCESS_DENIED;
        }
    }
    return S3_OK;
}

struct sealed {
    struct bytes_out text; /* path, query and values, one behind the other */
    size_t path_end, query_end;
    size_t ends[HTTP_HEADERS_MAX];
};

/* The values of the signed headers behind each other; false: one is not there. */
static bool put_values(struct sealed *s, const char *const *names, unsigned n, const struct http_reader *r,
                       const char *buf)
{
    for (unsigned i = 0; i < n; i++) {
        bool found = false;
        for (unsigned k = 0; k < r->nheaders; k++) {
            struct http_text name, value;
            http_header_at(r, buf, k, &name, &value);
            if (!http_text_is_case(name, names[i]))
                continue;
            if (found)
                bytes_put(&s->text, ",", 1);
            bytes_put(&s->text, value.data, value.len);
            found = true;
        }
        if (!found)
            return false;
        s->ends[i] = s->text.len;
    }
    return true;
}

static bool matches(const struct sigv4_claim *c, const struct sigv4_key *key, const struct sealed *s,
                    const char *const *names, unsigned n, const struct http_reader *r, struct http_text path)
{
    struct sigv4_header headers[HTTP_HEADERS_MAX];
    const char *text = (const char *)s->text.data;
    char signature[SIGV4_SIGNATURE];
    for (unsigned i = 0; i < n; i++) {
        size_t start = i ? s->ends[i - 1] : s->query_end;
        headers[i] = (struct sigv4_header){names[i], text + start, s->ends[i] - start};
    }
    struct sigv4_request rq = {.method = r->method,
                               .path = path.data,
                               .path_len = path.len,
                               .query = text + s->path_end,
                               .query_len = s->query_end - s->path_end,
                               .headers = headers,
                               .nheaders = n,
                               .payload = c->payload};
    return sigv4_sign(key, &rq, c->when, signature) == 0 &&
           sigv4_equal(signature, c->signature, strlen(c->signature));
}

enum s3_code sigv4_claim_check(struct sigv4_claim *c, const struct sigv4_key *key,
                               const struct http_reader *r, const char *buf)
{
    const char *names[HTTP_HEADERS_MAX];
    struct sealed s = {.path_end = 0};
    struct http_text target = http_target(r, buf), path = target, query = {0};
    const char *mark = memchr(target.data, '?', target.len);
    if (mark) {
        path.len = (size_t)(mark - target.data);
        query = (struct http_text){mark + 1, target.len - path.len - 1};
    }
    unsigned n = cut_names(c->names, names, ARRAY_LEN(names));
    if (n == 0)
        return refuse(c, c->how == SIGV4_QUERY ? S3_AUTH_QUERY_MALFORMED : S3_AUTH_HEADER_MALFORMED,
                      "SignedHeaders must name headers in lower case, sorted, none twice.");
    enum s3_code code = check_coverage(c, names, n, r, buf);
    if (code != S3_OK)
        return code;
    bool good = http_escape_anew(&s.text, path.data, path.len, true, false);
    s.path_end = s.text.len;
    good = good && sigv4_query_canonical(&s.text, query.data ? query.data : "", query.len,
                                         c->how == SIGV4_QUERY ? "X-Amz-Signature" : NULL) == 0;
    s.query_end = s.text.len;
    good = good && put_values(&s, names, n, r, buf) && !s.text.failed;
    /* Most clients sign what they send; where that is not in canonical form, either is taken: both name the same object. */
    struct http_text canonical = {(const char *)s.text.data, s.path_end};
    code = good && (matches(c, key, &s, names, n, r, canonical) || matches(c, key, &s, names, n, r, path))
               ? S3_OK
               : refuse(c, S3_SIGNATURE_MISMATCH, "");
    bytes_out_fini(&s.text);
    return code;
}
