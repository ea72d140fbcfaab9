/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions, addresses, and one request with its tries.
 *
 * Happy path: request_start signs a head and gives it to the HTTP client; a 2xx answer goes where the owner
 * says; finished().
 * Failure modes: what may pass (connection lost, 500, 503, timeouts) is tried again after a pause that grows
 * and is random within its bounds, behind what the server asks for; requests for a bucket in another region
 * go there; credentials that expired are found again, and a clock that is off is corrected by the server's,
 * each once a request. Everything else is the owner's error.
 * Invariants: finished() runs once, and nothing of a request is touched after it; no secret is in a message.
 */
#include "backend/s3/session.h"

#include <stdio.h>
#include <strings.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"

#define PAUSE_NS     (100 * NS_PER_MS) /* doubled with each try */
#define PAUSE_MAX_NS (20 * NS_PER_S)
#define REST_NS      (10 * NS_PER_S) /* between two attempts to find credentials */
#define SLOW_BYTES                                                                                           \
    (64 *                                                                                                    \
     KIB) /* a second: a request of many bytes has so much longer than timeout_ns, unless that was given */
#define RETRY_MAX_S  3600ull /* what a server may ask for */
#define SKEW_S       60      /* tolerated by all servers */
#define LOCATION_MAX 4096u
#define RENEW_S      300 /* credentials are renewed so long before they expire */

/* --- addresses --------------------------------------------------------------------------------------------------------- */

static int bucket_place(struct bucket *bucket, const struct s3_endpoint *e)
{
    bucket->endpoint = *e;
    bucket->origin.tls = e->tls;
    bucket->origin.port = e->port;
    bucket->generation = 0;
    s3_endpoint_host(e, bucket->name, bucket->origin.host, bucket->host_header);
    return 0;
}

static int bucket_get(struct s3_session *b, const char *name, struct bucket **ret_bucket,
                      struct leat_error *err)
{
    list_for_each (node, &b->buckets) {
        struct bucket *bucket = container_of(node, struct bucket, node);
        if (strcmp(bucket->name, name) == 0) {
            *ret_bucket = bucket;
            return 0;
        }
    }
    struct s3_endpoint e;
    int rc = s3_endpoint_parse(b->settings.endpoint, b->settings.region, b->settings.style, &e, err);
    if (rc < 0)
        return rc;
    struct bucket *bucket = calloc(1, sizeof(*bucket));
    if (!bucket)
        return -ENOMEM;
    snprintf(bucket->name, sizeof(bucket->name), "%s", name);
    bucket_place(bucket, &e);
    list_push_back(&b->buckets, &bucket->node);
    *ret_bucket = bucket;
    return 0;
}

int target_parse(struct s3_session *b, const char *uri, struct target *ret_target, struct leat_error *err)
{
    size_t cap = strlen(uri) + 4;
    struct target t = {.uri = strdup(uri), .shown = malloc(cap)};
    int rc = t.uri && t.shown ? 0 : -ENOMEM;
    if (rc == 0)
        backend_uri_shown(uri, t.shown, cap);
    if (rc == 0 && s3_uri_is(uri)) {
        struct s3_uri parsed;
        rc = s3_uri_parse(uri, &parsed, err);
        if (rc == 0)
            rc = bucket_get(b, parsed.bucket, &t.bucket, err);
        if (rc == 0 && !(t.key = strdup(parsed.key)))
            rc = -ENOMEM;
    } else if (rc == 0 && backend_uri(uri)) {
        /* Host and port as an endpoint's; then path and query, as they are. */
        const char *rest = strstr(uri, "//") + 2;
        size_t n = strcspn(rest, "/?#");
        AUTO_FREE char *base = strndup(uri, (size_t)(rest - uri) + n);
        struct s3_endpoint e;
        if (base && strchr(base, '@'))
            rc = error_set(err, LEAT_INVALID, "\"%.200s\": a user or password does not belong in an address",
                           t.shown);
        else
            rc = base ? s3_endpoint_parse(base, NULL, "path", &e, err) : -ENOMEM;
        for (const char *c = rest + n; rc == 0 && *c; c++) {
            if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f)
                rc = error_set(err, LEAT_INVALID,
                               "\"%.200s\": spaces and other odd bytes have to be percent-encoded", t.shown);
        }
        if (rc == 0) {
            t.origin = (struct http_origin){.tls = e.tls, .port = e.port};
            s3_endpoint_host(&e, NULL, t.origin.host, t.host_header);
            t.key = strndup(rest + n, strcspn(rest + n, "#"));
            if (t.key && t.key[0] != '/') { /* "http://host?query" */
                char *with = malloc(strlen(t.key) + 2);
                if (with)
                    sprintf(with, "/%s", t.key);
                free(t.key);
                t.key = with;
            }
            rc = t.key ? 0 : -ENOMEM;
        }
    } else if (rc == 0) {
        rc = error_set(err, LEAT_INVALID, "\"%.200s\": s3://BUCKET/KEY, http:// or https://", uri);
    }
    if (rc < 0) {
        target_fini(&t);
        return rc;
    }
    *ret_target = t;
    return 0;
}

void target_fini(struct target *t)
{
    free(t->key);
    free(t->uri);
    free(t->shown);
    if (t->moved)
        target_fini(t->moved); /* which has not moved in turn */
    free(t->moved);
    *t = (struct target){0};
}

/* --- credentials ------------------------------------------------------------------------------------------------------- */

int session_credentials(struct s3_session *b, struct leat_error *err)
{
    time_t now = time(NULL);
    if (b->config.anonymous ||
        (b->have_credentials && (b->credentials.expires == 0 || b->credentials.expires - RENEW_S > now)))
        return 0;
    /* It may take seconds, and stops everything: not for each request. */
    uint64_t ns = clock_now_ns();
    if (b->have_credentials && b->credentials.expires > now && ns < b->renew_ns)
        return 0;
    if (b->no_credentials && !b->refused && ns < b->renew_ns) {
        if (err)
            *err = b->why_none;
        return b->no_credentials;
    }
    b->renew_ns = ns + REST_NS;
    b->no_credentials = 0;
    struct credentials found = {0};
    bool refused = b->refused;
    b->refused = false;
    int rc = b->config.credentials ? b->config.credentials(b->config.user, refused, &found, err)
                                   : credentials_find(b->profile, &found, err);
    if (rc < 0 && b->have_credentials && b->credentials.expires > now)
        return 0; /* they still hold for a while */
    if (rc < 0) {
        b->no_credentials = rc;
        b->why_none = (struct leat_error){.code = rc};
        if (err)
            b->why_none = *err;
        return rc;
    }
    if (refused && b->credentials.token && found.token && strcmp(found.token, b->credentials.token) == 0) {
        credentials_fini(&found);
        b->refused = true;
        return error_set(err, LEAT_DENIED,
                         "the credentials have expired: open the dataset again where fresh ones are found");
    }
    credentials_fini(&b->credentials);
    b->credentials = found;
    b->have_credentials = true;
    b->generation++;
    log_debug("S3: credentials from %s", found.source);
    return 0;
}

static int bucket_key(struct s3_session *b, struct bucket *bucket, time_t now, struct leat_error *err)
{
    char when[SIGV4_TIME];
    sigv4_time(now, when);
    if (bucket->generation == b->generation && memcmp(bucket->key.date, when, 8) == 0)
        return 0;
    int rc = sigv4_key_derive(b->credentials.secret_key, now, bucket->endpoint.region, "s3", &bucket->key);
    if (rc < 0)
        return error_set(err, rc, "S3: no signature can be made for region \"%s\"", bucket->endpoint.region);
    bucket->generation = b->generation;
    return 0;
}

/* --- one try ----------------------------------------------------------------------------------------------------------- */

static void request_send(struct s3_exchange *rq);

static const struct target *place_of(const struct s3_exchange *rq)
{
    return rq->target->moved ? rq->target->moved : rq->target;
}

static void put_plain_head(struct s3_exchange *rq)
{
    const struct s3_request *say = &rq->say;
    const struct target *place = place_of(rq);
    char range[64];
    http_put(&rq->head, say->method);
    bytes_put(&rq->head, " ", 1);
    http_put(&rq->head, place->key);
    http_put(&rq->head, " HTTP/1.1\r\n");
    http_put_header(&rq->head, "host", place->host_header);
    http_put_header(&rq->head, "user-agent", "leat");
    http_put_header(&rq->head, "accept-encoding", "identity");
    if (say->ranged) {
        snprintf(range, sizeof(range), say->last == UINT64_MAX ? "bytes=%llu-" : "bytes=%llu-%llu",
                 (unsigned long long)say->first, (unsigned long long)say->last);
        http_put_header(&rq->head, "range", range);
    }
    if (say->if_match)
        http_put_header(&rq->head, "if-match", say->if_match);
    http_put(&rq->head, "\r\n");
}

static int request_head(struct s3_exchange *rq, struct leat_error *err)
{
    struct s3_session *b = rq->b;
    struct bucket *bucket = rq->target->bucket;
    bytes_out_reset(&rq->head);
    if (!bucket) {
        put_plain_head(rq);
        return rq->head.failed ? -ENOMEM : 0;
    }
    time_t now = time(NULL) + b->skew_s;
    int rc = session_credentials(b, err);
    if (rc == 0 && b->have_credentials)
        rc = bucket_key(b, bucket, now, err);
    rq->generation = b->generation;
    if (rc < 0)
        return rc;
    struct s3_signer signer = {
        .access_key = b->credentials.access_key, .token = b->credentials.token, .key = &bucket->key};
    rq->say.bucket = bucket->name;
    rq->say.host = bucket->host_header;
    rq->say.key = rq->of_bucket ? "" : rq->target->key;
    rq->say.key_len = strlen(rq->say.key);
    rc = s3_request_put(&rq->head, &bucket->endpoint, b->config.anonymous ? NULL : &signer, &rq->say, now);
    return rc == LEAT_INVALID ? error_set(err, rc, "a key or a header that cannot be sent") : rc;
}

static void request_end(struct s3_exchange *rq, int rc, const struct leat_error *why)
{
    struct leat_error err;
    const struct s3_request *say = &rq->say;
    list_remove(&rq->node);
    loop_timer_clear(&rq->again);
    bytes_out_fini(&rq->call.text);
    free(TAKE_PTR(rq->location));
    rq->running = false;
    if (rc < 0) {
        char range[80] = "";
        if (say->ranged)
            snprintf(range, sizeof(range), " [%llu, +%llu)", (unsigned long long)say->first,
                     (unsigned long long)(say->last - say->first + 1));
        if (why && why->message[0])
            error_set(&err, rc, "%s %.300s%s: %s", say->method, rq->target->shown, range, why->message);
        else
            error_sys(&err, rc, "%s %.300s%s", say->method, rq->target->shown, range);
    }
    rq->finished(rq, rc, rc < 0 ? &err : NULL);
}

static void try_again(struct loop_timer *timer)
{
    struct s3_exchange *rq = container_of(timer, struct s3_exchange, again);
    struct http_client *http = rq->b->http;
    request_send(rq); /* may be its end */
    http_client_flush(http);
}

/* Another try after a pause, or the end. `least_ns`: what the server asked for; it asked everybody, in whole seconds, so the pause comes on top. */
static void request_retry(struct s3_exchange *rq, int rc, const struct leat_error *err, uint64_t least_ns)
{
    struct s3_session *b = rq->b;
    uint64_t now = clock_now_ns(), pause = PAUSE_NS << MIN(rq->tries, 10u);
    pause = MIN(pause, PAUSE_MAX_NS);
    pause = pause / 2 + rng_below(&b->rng, pause / 2 + 1);
    pause += least_ns;
    if (rq->tries >= b->config.tries || now + pause >= rq->deadline_ns ||
        (!rq->repeatable && rq->call.status == 0)) {
        request_end(rq, rc, err);
        return;
    }
    rq->before = rc;
    snprintf(rq->before_why, sizeof(rq->before_why), "%.199s", err ? err->message : "");
    b->stats.retries++;
    log_debug("S3: %s: try %u failed (%s); again in %llu ms", rq->target->shown, rq->tries,
              err ? err->message : "", (unsigned long long)(pause / NS_PER_MS));
    loop_timer_set(b->loop, &rq->again, now + pause);
}

static int on_head(struct http_call *call, const struct http_reader *reader, const char *buf,
                   struct leat_error *err)
{
    struct s3_exchange *rq = container_of(call, struct s3_exchange, call);
    time_t date;
    uint64_t seconds;
    rq->status = reader->status;
    rq->good = reader->status / 100 == 2;
    rq->retry_after_s = 0;
    rq->server_time = 0;
    rq->region[0] = 0;
    free(TAKE_PTR(rq->location));
    if (rq->good)
        return rq->on_head ? rq->on_head(rq, reader, buf, err) : 0;
    /* The body of an error goes to `text`. */
    if (http_retry_after(http_header(reader, buf, "retry-after"), time(NULL), &seconds))
        rq->retry_after_s = MIN(seconds, RETRY_MAX_S);
    struct http_text location = http_header(reader, buf, "location");
    if (reader->status / 100 == 3 && location.len && location.len <= LOCATION_MAX)
        rq->location = strndup(location.data, location.len);
    if (http_date_parse(http_header(reader, buf, "date"), &date))
        rq->server_time = date;
    http_text_copy(http_header(reader, buf, "x-amz-bucket-region"), rq->region, sizeof(rq->region));
    call->dst = (struct pieces){0};
    call->sink = NULL;
    return 0;
}

static int call_sink(struct http_call *call, const void *data, size_t len)
{
    struct s3_exchange *rq = container_of(call, struct s3_exchange, call);
    return rq->sink(rq, data, len);
}

/* "https://bucket.s3.eu-west-1.amazonaws.com/...": a new bucket of Amazon's whose own name is not known everywhere yet. */
static bool amazon_host(const struct s3_exchange *rq, struct s3_endpoint *ret)
{
    const struct bucket *bucket = rq->target->bucket;
    struct s3_endpoint e;
    if (!rq->location || !bucket->endpoint.aws)
        return false;
    const char *rest = strstr(rq->location, "://");
    AUTO_FREE char *base =
        rest ? strndup(rq->location, (size_t)(rest + 3 + strcspn(rest + 3, "/?#") - rq->location)) : NULL;
    if (!base || s3_endpoint_parse(base, bucket->endpoint.region, "virtual", &e, NULL) < 0 || !e.aws ||
        e.tls < bucket->endpoint.tls)
        return false;
    size_t n = strlen(bucket->name);
    if (strncmp(e.host, bucket->name, n) != 0 || e.host[n] != '.')
        return false;
    memmove(e.host, e.host + n + 1, strlen(e.host + n + 1) + 1);
    *ret = e;
    return strcmp(e.host, bucket->endpoint.host) != 0;
}

/* The bucket is in another region. True: the request is sent there. */
static bool request_redirect(struct s3_exchange *rq, const struct s3_error *e)
{
    struct bucket *bucket = rq->target->bucket;
    const char *region = rq->region[0] ? rq->region : e->region;
    if (!bucket)
        return false;
    struct s3_endpoint there = bucket->endpoint;
    bool named = *region && strcmp(region, rq->sent_region) != 0;
    if ((!named && !amazon_host(rq, &there)) || ++rq->redirects > REDIRECTS_MAX)
        return false;
    if (!named) {
        bucket_place(bucket, &there);
        request_send(rq);
        return true;
    }
    if (strcmp(region, bucket->endpoint.region) == 0) { /* another request has heard it before */
        request_send(rq);
        return true;
    }
    /* Any other but Amazon is the same server, which wants its own region in signatures. A name that is none is not believed. */
    const struct aws_settings *settings = &rq->b->settings;
    if (s3_endpoint_parse(there.aws ? NULL : settings->endpoint, region, settings->style, &there, NULL) < 0)
        return false;
    log_info("S3: bucket %s is in region %s", bucket->name, region);
    bucket_place(bucket, &there);
    request_send(rq);
    return true;
}

/* A redirection of a plain server. 1: the request is sent there; 0: it has no address; negative: it may
 * not be followed. */
static int request_follow(struct s3_exchange *rq, struct leat_error *err)
{
    struct target *t = rq->target, to;
    if (rq->moves != t->moves) { /* another request was redirected since */
        request_send(rq);
        return 1;
    }
    if (!rq->location)
        return 0;
    if (++rq->redirects > REDIRECTS_MAX)
        return error_set(err, LEAT_INVALID, "more than %u redirections: without end", REDIRECTS_MAX);
    const struct target *from = place_of(rq);
    struct bytes_out url = {0};
    bool secure = from->origin.tls;
    if (strstr(rq->location, "://") == NULL || rq->location[0] == '/') {
        http_put(&url, secure ? "https:" : "http:");
        if (strncmp(rq->location, "//", 2) != 0) {
            http_put(&url, "//");
            http_put(&url, from->host_header);
        }
        if (rq->location[0] != '/') { /* beside it */
            size_t n = strcspn(from->key, "?");
            while (n && from->key[n - 1] != '/')
                n--;
            bytes_put(&url, from->key, n);
        }
    }
    http_put(&url, rq->location);
    bytes_put(&url, "", 1);
    const char *text = (const char *)url.data;
    int rc = url.failed ? -ENOMEM : 0;
    if (rc == 0 && (!backend_uri(text) || s3_uri_is(text)))
        rc =
            error_set(err, LEAT_INVALID, "a redirection to \"%.100s\", which is no address of the web", text);
    if (rc == 0)
        rc = target_parse(rq->b, text, &to, err);
    bytes_out_fini(&url);
    if (rc < 0)
        return rc;
    if (rq->b->config.stay && strcasecmp(to.origin.host, from->origin.host) != 0) {
        rc = error_set(err, LEAT_DENIED, "a redirection to %.200s, which is not among the allowed hosts",
                       to.origin.host);
        target_fini(&to);
        return rc;
    }
    struct target *moved = to.origin.tls || !secure ? malloc(sizeof(*moved)) : NULL;
    if (!moved) {
        rc = secure && !to.origin.tls
                 ? error_set(err, LEAT_DENIED, "a redirection from https to http, which is not followed")
                 : -ENOMEM;
        target_fini(&to);
        return rc;
    }
    if (t->moved)
        target_fini(t->moved);
    free(t->moved);
    *moved = to;
    t->moved = moved;
    t->moves++;
    request_send(rq);
    return 1;
}

/* The server of a redirection does not serve it (any more): back to the first one, once. True: the request
 * is sent there. */
static bool request_return(struct s3_exchange *rq)
{
    struct target *t = rq->target;
    if (rq->returned || (!t->moved && rq->moves == t->moves) || rq->status < 400 || rq->status >= 500 ||
        rq->status == 412 || rq->status == 416 || rq->status == 408 || rq->status == 429)
        return false;
    rq->returned = true;
    if (rq->moves == t->moves) {
        target_fini(t->moved);
        free(TAKE_PTR(t->moved));
        t->moves++;
    }
    request_send(rq);
    return true;
}

/* HEAD has no body to say why. */
static const char *status_text(int status)
{
    switch (status) {
    case 400:
        return "bad request: expired credentials, or a wrong region, perhaps";
    case 401:
    case 403:
        return "access denied, or no such object where lists are not allowed";
    case 404:
        return "no such object";
    case 412:
        return "the object changed";
    case 416:
        return "the object is shorter";
    case 503:
        return "the server is too busy";
    default:
        return status >= 500 ? "the server failed" : "";
    }
}

static void request_refused(struct s3_exchange *rq)
{
    struct s3_session *b = rq->b;
    struct s3_error e;
    struct leat_error err;
    bool retry;
    s3_error_parse(rq->call.text.data ? rq->call.text.data : (const uint8_t *)"", rq->call.text.len, &e);
    int rc = s3_error_class(rq->status, e.code, &retry);
    bool moved = rq->status / 100 == 3 && rq->status != 304;
    if (moved && !rq->target->bucket) {
        rc = request_follow(rq, &err);
        if (rc == 0)
            rc = error_set(&err, LEAT_INVALID, "answered with %d, a redirection to nowhere", rq->status);
        if (rc < 0)
            request_end(rq, rc, &err);
        return;
    }
    if (!rq->target->bucket && request_return(rq))
        return;
    if ((moved || rq->status == 400 || rq->status == 403) && request_redirect(rq, &e))
        return;
    /* HEAD does not say why: a clock is seen to be off, and credentials that can expire may have. */
    bool mute = strcmp(rq->say.method, "HEAD") == 0 && !e.code[0] && (rq->status == 400 || rq->status == 403);
    int64_t off = rq->server_time ? (int64_t)rq->server_time - (int64_t)time(NULL) - b->skew_s : 0;
    bool skewed = strcmp(e.code, "RequestTimeTooSkewed") == 0 || (mute && (off > SKEW_S || off < -SKEW_S));
    bool expired = strncmp(e.code, "ExpiredToken", 12) == 0 || strcmp(e.code, "TokenRefreshRequired") == 0 ||
                   (mute && !skewed && (b->credentials.token || b->credentials.expires));
    if (expired && !rq->renewed) {
        rq->renewed = true;
        /* Requests that were under way with the same ones hear it too, later: one renewal serves them all. */
        if (rq->generation == b->generation) {
            b->have_credentials = false;
            b->refused = true;
        }
        request_send(rq);
        return;
    }
    if (skewed && rq->server_time && !rq->skewed) {
        rq->skewed = true;
        b->skew_s += off;
        if (off > SKEW_S || off < -SKEW_S)
            log_warning_limited(
                "S3: the clock of this machine is off by %lld s by the server's: signing with the "
                "server's time",
                (long long)b->skew_s);
        request_send(rq);
        return;
    }
    if (moved)
        rc = error_set(&err, LEAT_INVALID, "answered with %d, a redirection%s%s%s", rq->status,
                       rq->redirects > REDIRECTS_MAX ? " without end" : "", e.endpoint[0] ? " to " : "",
                       e.endpoint);
    else
        error_set(&err, rc, "%s%d%s%s%s%s%s",
                  rq->status == 412 && rq->say.if_match ? "the object changed since: " : "", rq->status,
                  e.code[0] ? " " : "", e.code,
                  e.message[0] || (!e.code[0] && *status_text(rq->status)) ? ": " : "",
                  e.message[0] || e.code[0] ? e.message : status_text(rq->status),
                  strcmp(e.code, "RequestTimeTooSkewed") == 0 ? " (the clock of this machine is wrong)" : "");
    if (rc == LEAT_BUSY) {
        b->stats.throttled++;
        throttle_busy(b->throttle, b->max_blocks, rq->retry_after_s * NS_PER_S);
    }
    if (retry)
        request_retry(rq, rc, &err, rq->retry_after_s * NS_PER_S);
    else
        request_end(rq, rc, &err);
}

static void on_done(struct http_call *call, int rc, const struct leat_error *err)
{
    struct s3_exchange *rq = container_of(call, struct s3_exchange, call);
    if (rc == 0 && !rq->good) {
        request_refused(rq);
        return;
    }
    struct leat_error wrong = {0};
    if (rc == 0 && rq->check && (rc = rq->check(rq, &wrong)) < 0)
        err = &wrong;
    if (rc == 0) {
        bytes_out_fini(&rq->text);
        rq->text = call->text;
        call->text = (struct bytes_out){0};
        throttle_good(rq->b->throttle, rq->b->max_blocks);
        request_end(rq, 0, NULL);
        return;
    }
    /* A last try that had no time to fail says nothing: the one before it says why. */
    const uint64_t now = clock_now_ns();
    if (rc == LEAT_TIMED_OUT && rq->before && now >= rq->deadline_ns && now - rq->sent_ns < NS_PER_S) {
        error_set(&wrong, rq->before, "%s", rq->before_why);
        request_end(rq, rq->before, &wrong);
        return;
    }
    switch (rc) {
    case LEAT_PEER_GONE:
    case LEAT_TIMED_OUT:
    case LEAT_CORRUPT: /* framing, lengths: a broken middleman, perhaps */
    case -ECONNREFUSED:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -EPROTO:
        request_retry(rq, rc, err, 0);
        return;
    default:
        request_end(rq, rc, err);
    }
}

static int request_try(struct s3_exchange *rq, struct leat_error *err)
{
    struct s3_session *b = rq->b;
    const struct bucket *bucket = rq->target->bucket;
    bytes_out_fini(&rq->call.text);
    int rc = request_head(rq, err);
    if (rc < 0)
        return rc;
    rq->good = false;
    rq->sent_ns = clock_now_ns();
    rq->moves = rq->target->moves;
    memcpy(rq->sent_region, bucket ? bucket->endpoint.region : (char[sizeof(rq->sent_region)]){0},
           sizeof(rq->sent_region));
    rq->call = (struct http_call){
        .origin = bucket ? &bucket->origin : &place_of(rq)->origin,
        .method = rq->say.method,
        .head = rq->head.data,
        .head_len = rq->head.len,
        .body = rq->body,
        .body_len = rq->body_len,
        .repeatable = rq->repeatable,
        .small = rq->small,
        .deadline_ns = rq->deadline_ns,
        .on_head = on_head,
        .dst = rq->dst,
        .dst_bytes = rq->dst_bytes,
        .sink = rq->sink ? call_sink : NULL,
        /* A page of 1,000 keys of 1,024 bytes, each of them escaped; else what an error says. */
        .text_max = rq->text_max    ? rq->text_max
                    : rq->of_bucket ? 8 * MIB
                                    : 64 * KIB,
        .done = on_done,
    };
    rc = http_call_start(b->http, &rq->call);
    b->stats.requests += rc == 0;
    return rc;
}

static void request_send(struct s3_exchange *rq)
{
    struct leat_error err = {0};
    if (rq->tries++ && rq->restart)
        rq->restart(rq);
    int rc = request_try(rq, &err);
    if (rc < 0)
        request_end(rq, rc, &err);
}

void request_start(struct s3_exchange *rq)
{
    rq->tries = rq->redirects = 0;
    rq->renewed = rq->skewed = rq->returned = false;
    rq->running = true;
    rq->location = NULL;
    rq->before = 0;
    rq->deadline_ns = clock_now_ns() + rq->b->config.timeout_ns;
    uint64_t sent = MAX(rq->body_len, rq->work_bytes), moved = MAX(rq->dst_bytes, sent);
    if (!rq->b->timeout_given)
        rq->deadline_ns += moved * NS_PER_S / SLOW_BYTES;
    if (rq->until_ns)
        rq->deadline_ns = MIN(rq->deadline_ns, rq->until_ns);
    rq->again = (struct loop_timer){.fire = try_again};
    list_push_back(&rq->b->requests, &rq->node);
    /* finished() never runs in here: what cannot be sent is tried again, and fails, from the loop. */
    struct leat_error err;
    err.message[0] = 0; /* not all of it: clearing half a kilobyte each time shows with small objects */
    if (request_try(rq, &err) == 0)
        rq->tries = 1;
    else
        loop_timer_set(rq->b->loop, &rq->again, 1);
}

void request_cancel(struct s3_exchange *rq)
{
    if (!rq->running)
        return;
    rq->running = false;
    loop_timer_clear(&rq->again);
    http_call_cancel(rq->b->http, &rq->call);
    list_remove(&rq->node);
    bytes_out_fini(&rq->call.text);
    free(TAKE_PTR(rq->location));
}

void request_fini(struct s3_exchange *rq)
{
    bytes_out_fini(&rq->head);
    bytes_out_fini(&rq->text);
    bytes_out_fini(&rq->call.text);
}

int session_run(struct s3_session *b, const bool *over, struct leat_error *err)
{
    const atomic_bool *cancelled = b->config.cancelled;
    http_client_flush(b->http);
    while (!*over) {
        int rc = loop_turn(b->loop, cancelled ? CANCEL_MS : -1);
        if (rc < 0)
            return error_sys(err, rc, "waiting for the network");
        if (!*over && cancelled && atomic_load(cancelled))
            return error_set(err, -ECANCELED, "cancelled");
    }
    return 0;
}

/* --- the session ------------------------------------------------------------------------------------------------------- */

static int copy(char **to, const char *from)
{
    if (!from)
        return 0;
    char *text = strdup(from);
    if (!text)
        return -ENOMEM;
    free(*to);
    *to = text;
    return 0;
}

static void s3_stats(const struct backend *base, struct backend_stats *ret_stats)
{
    const struct s3_session *b = container_of(base, const struct s3_session, base);
    struct http_client_stats http;
    http_client_stats(b->http, &http);
    *ret_stats = b->stats;
    ret_stats->bytes_in = http.bytes_in;
    ret_stats->bytes_straight = http.bytes_straight;
    ret_stats->connections = http.connections;
    ret_stats->handshakes = http.handshakes;
    ret_stats->resumed = http.resumed;
    ret_stats->first_byte_ns = http.first_byte_ns;
}

static const struct backend_ops s3_ops = {
    .name = "s3",
    .list = s3_list,
    .op_submit = s3_op_submit,
    .op_cancel = s3_op_cancel,
    .op_run = s3_op_run,
    .first = s3_first,
    .open = s3_open,
    .close = s3_close,
    .expect_all = s3_expect_all,
    .expect_modified = s3_expect_modified,
    .submit = s3_submit,
    .cancel = s3_cancel,
    .wait = s3_wait,
    .wake = s3_wake,
    .pread = s3_pread,
    .put = s3_put,
    .bucket_create = s3_bucket_create,
    .stats = s3_stats,
    .free = s3_free,
};

static int throttle_of(struct s3_session *b)
{
    AUTO_FREE char *name = NULL;
    const char *endpoint = b->settings.endpoint ? b->settings.endpoint : "";
    const char *region = b->settings.region ? b->settings.region : "";
    if (b->config.identity && asprintf(&name, "%s %s %s", endpoint, region, b->config.identity) < 0)
        return -ENOMEM;
    return throttle_get(name, &b->throttle);
}

int backend_s3_new(const struct backend_config *config, struct backend **ret_backend, struct leat_error *err)
{
    struct s3_session *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->base.ops = &s3_ops;
    b->config = *config;
    b->pump.fire = s3_pump_now;
    list_init(&b->buckets);
    list_init(&b->requests);
    list_init(&b->asking);
    list_init(&b->asked);
    list_init(&b->ended_ops);
    list_init(&b->free_blocks);
    b->config.connections = config->connections ? config->connections : CONNECTIONS_DEFAULT;
    b->config.tries = config->tries ? config->tries : 6;
    b->timeout_given = config->timeout_ns != 0;
    b->config.timeout_ns = config->timeout_ns ? config->timeout_ns : 60 * NS_PER_S;
    b->max_blocks = b->config.connections * BLOCKS_EACH;
    if (getrandom(&b->rng, sizeof(b->rng), 0) != sizeof(b->rng))
        b->rng = clock_now_ns();
    const char *anonymous = config->given ? NULL : getenv("LEAT_S3_ANONYMOUS");
    b->config.anonymous |= anonymous && (strcmp(anonymous, "1") == 0 || strcasecmp(anonymous, "true") == 0);
    int rc = copy(&b->profile, config->profile);
    if (rc == 0 && !config->given)
        rc = aws_settings_find(config->profile, &b->settings, err);
    if (rc == 0)
        rc = copy(&b->settings.endpoint, config->endpoint);
    if (rc == 0)
        rc = copy(&b->settings.region, config->region);
    if (rc == 0)
        rc = copy(&b->settings.style, config->style);
    if (rc == 0)
        rc = copy(&b->settings.ca_file, config->ca_file);
    struct s3_endpoint tried;
    if (rc == 0)
        rc = s3_endpoint_parse(b->settings.endpoint, b->settings.region, b->settings.style, &tried, err);
    if (rc == 0)
        rc = throttle_of(b);
    if (rc == 0)
        rc = loop_new(&b->loop);
    struct http_client_config http = {
        .connections = b->config.connections, .ca_file = b->settings.ca_file, .insecure = config->insecure};
    http.tls = rc == 0 && tried.tls;
    if (rc == 0)
        rc = http_client_new(b->loop, &http, &b->http, err);
    b->config.endpoint = b->config.region = b->config.profile = b->config.style = b->config.ca_file =
        b->config.identity = NULL; /* the caller's */
    if (rc < 0) {
        s3_free(&b->base);
        return rc;
    }
    *ret_backend = &b->base;
    return 0;
}
