/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.c: authentication, choice of the route, and the way to a worker and back.
 *
 * Happy path: a path is looked up, the requester judged, a body read (64 KiB at most), the route run by a
 * worker, its JSON sent.
 * Failure modes: each is {"error": {"code", "message"}} with the status that fits; an unknown path is 404, a
 * method that a path has not got 405 with what it has. A busy queue is 503.
 * Invariants: nothing is changed without right(); a token is compared in constant time and is in no message.
 */
#include "serve/admin/admin_internal.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <strings.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "wire/json_whole.h"

#define BODY_MAX (64 * KIB)

static int health(struct admin_task *v)
{
    v->type = "text/plain; charset=utf-8";
    http_put(&v->text, "ok\n");
    return 0;
}

static int openapi(struct admin_task *v)
{
    v->type = "application/json";
    bytes_put(&v->text, admin_openapi_json, admin_openapi_json_len);
    return 0;
}

static const struct admin_route routes[] = {
    {"GET", "/healthz", health, .hidden = true},
    {"GET", "/readyz", v1_ready, .hidden = true},
    {"GET", "/metrics", metrics_all, .hidden = true},
    {"GET", "/v1/openapi.json", openapi},
    {"GET", "/v1/status", v1_status},
    {"GET", "/v1/buckets", v1_buckets},
    {"GET", "/v1/buckets/{name}", v1_bucket},
    {"PUT", "/v1/buckets/{name}", v1_bucket_put, .changes = true, .wants_body = true},
    {"DELETE", "/v1/buckets/{name}", v1_bucket_delete, .changes = true},
    {"GET", "/v1/jobs", v1_jobs},
    {"POST", "/v1/jobs", v1_job_start, .changes = true, .wants_body = true},
    {"GET", "/v1/jobs/{name}", v1_job},
    {"DELETE", "/v1/jobs/{name}", v1_job_cancel, .changes = true},
    {"GET", "/v1/scrub", v1_scrub},
    {"POST", "/v1/scrub", v1_scrub_start, .changes = true, .wants_body = true},
    {"DELETE", "/v1/scrub", v1_scrub_stop, .changes = true},
    {"GET", "/v1/sets", v1_sets},
    {"GET", "/v1/sets/{name}", v1_set},
    {"DELETE", "/v1/sets/{name}", v1_set_drop, .changes = true},
};

bool admin_route(unsigned i, const char **ret_method, const char **ret_path)
{
    if (i >= ARRAY_LEN(routes))
        return false;
    *ret_method = routes[i].method;
    *ret_path = routes[i].path;
    return true;
}

json_t *admin_text(const char *s)
{
    AUTO_FREE char *shown = utf8_escape(s);
    return shown ? json_string(shown) : NULL;
}

int admin_none(struct admin_task *v, const char *what)
{
    return error_set(&v->err, LEAT_NOT_FOUND, "this server has no %s", what);
}

/* --- authentication ------------------------------------------------------------------------------------------------------ */

static bool token_is(const struct admin *admin, const struct http_request *req)
{
    static const char bearer[] = "Bearer ";
    struct http_text given = http_header(req->reader, req->head, "authorization");
    size_t n = sizeof(bearer) - 1, len = strlen(admin->config.token);
    return given.len == n + len && strncasecmp(given.data, bearer, n) == 0 &&
           CRYPTO_memcmp(given.data + n, admin->config.token, len) == 0;
}

/* Whom a proxy speaks for may be anywhere, though the proxy itself is on this host. */
static bool is_forwarded(const struct http_request *req)
{
    return http_header(req->reader, req->head, "forwarded").data ||
           http_header(req->reader, req->head, "x-forwarded-for").data ||
           http_header(req->reader, req->head, "via").data;
}

/* 0, or the status of the refusal and why. *ret_sees_all: it is the same user, root, or the token's owner. */
static unsigned right(const struct admin *admin, const struct http_request *req, bool changes,
                      bool *ret_sees_all, const char **ret_why)
{
    struct http_peer peer;
    http_request_peer(req, &peer);
    *ret_sees_all = true;
    if (peer.local && (peer.uid == geteuid() || peer.uid == 0))
        return 0;
    if (admin->config.token) {
        *ret_why = "a token is wanted: Authorization: Bearer TOKEN, as the server's token file has it";
        return token_is(admin, req) ? 0 : 401;
    }
    *ret_sees_all = false;
    *ret_why = "without a token file this is only for its user, over a unix socket; others on this host may "
               "look, but "
               "not through a proxy";
    struct http_text host = http_header(req->reader, req->head, "host");
    return !changes && peer.loopback && !is_forwarded(req) && site_is_ours(admin->config.site, host) ? 0
                                                                                                     : 403;
}

/* --- answers ------------------------------------------------------------------------------------------------------------- */

static const char *const secure[][2] = {{"Cache-Control", "no-store"},
                                        {"X-Content-Type-Options", "nosniff"},
                                        {"Cross-Origin-Resource-Policy", "same-origin"}};

static struct bytes_out *begin(struct http_request *req, unsigned status, const char *type)
{
    struct bytes_out *head = http_respond(req, status);
    http_put_header(head, "Content-Type", type);
    for (unsigned i = 0; i < ARRAY_LEN(secure); i++)
        http_put_header(head, secure[i][0], secure[i][1]);
    return head;
}

static char *error_text(unsigned status, const char *message)
{
    char code[64];
    snprintf(code, sizeof(code), "%s", http_reason(status));
    for (char *c = code; *c; c++)
        *c = *c == ' ' ? '_' : (char)(*c | 0x20);
    json_t *json = json_pack("{s:{s:s, s:o}}", "error", "code", code, "message", admin_text(message));
    char *text = json_whole(json);
    json_decref(json);
    return text;
}

static void send_error(struct http_request *req, unsigned status, const char *message, const char *header,
                       const char *value)
{
    AUTO_FREE char *text = error_text(status, message);
    struct bytes_out *head = begin(req, status, "application/json");
    if (header)
        http_put_header(head, header, value);
    http_send_copy(req, text ? text : "", text ? strlen(text) : 0);
}

static unsigned status_of(int rc)
{
    switch (rc) {
    case LEAT_NOT_FOUND:
    case STORE_NO_BUCKET:
        return 404;
    case STORE_EXISTS:
    case STORE_NOT_EMPTY:
    case LEAT_BUSY:
    case STORE_PRECONDITION:
        return 409;
    case LEAT_INVALID:
        return 400;
    case LEAT_DENIED:
        return 403;
    case LEAT_NO_SPACE:
        return 507;
    case LEAT_UNSUPPORTED:
        return 501;
    case TIER_REFUSED:
        return 502;
    case LEAT_TIMED_OUT:
        return 504;
    case TIER_DOWN:
    case STORE_UNAVAILABLE:
    case -ENOMEM:
        return 503;
    default:
        return 500;
    }
}

static void visit_put(struct admin_task *v)
{
    if (v->req || v->working)
        return;
    json_decref(v->in);
    json_decref(v->out);
    bytes_out_fini(&v->body);
    bytes_out_fini(&v->text);
    free(v);
}

static void on_over(struct http_request *req, int rc)
{
    struct admin_task *v = req->user;
    v->req = NULL;
    visit_put(v);
}

static void run(struct http_work *work)
{
    struct admin_task *v = container_of(work, struct admin_task, work);
    int rc = v->route->run(v);
    if (rc == 0 && v->out) {
        AUTO_FREE char *text = json_whole(v->out);
        v->type = "application/json";
        if (text)
            http_put(&v->text, text);
        else
            rc = -ENOMEM;
    }
    if (rc == 0 && v->text.failed)
        rc = -ENOMEM;
    if (rc < 0) {
        v->err.code = rc;
        v->status = status_of(rc);
    }
}

static void done(struct http_work *work, struct http_request *req)
{
    struct admin_task *v = container_of(work, struct admin_task, work);
    v->working = false;
    if (req && (v->err.code || work->cancelled)) {
        send_error(req, work->cancelled ? 503 : v->status,
                   v->err.message[0] ? v->err.message : "out of memory", NULL, NULL);
    } else if (req && v->status == 204) {
        http_respond(req, 204);
        http_send_head(req, HTTP_BODY_UNKNOWN);
    } else if (req) {
        begin(req, v->status, v->type);
        http_send_copy(req, v->text.data, v->text.len);
    }
    visit_put(v);
}

static void go(struct admin_task *v)
{
    struct http_request *req = v->req;
    v->work = (struct http_work){.run = run, .done = done};
    v->working = true;
    if (http_work_start(v->admin->config.workers, http_request_ref(req), HTTP_PRIORITY_SHORT, &v->work) < 0) {
        v->working = false;
        send_error(req, 503, "the server is overloaded: try again later", "Retry-After", "2");
    }
}

/* --- bodies -------------------------------------------------------------------------------------------------------------- */

static void on_data(struct http_request *req, const void *data, size_t len, bool last)
{
    struct admin_task *v = req->user;
    json_error_t why;
    if (v->body.len + len > BODY_MAX) {
        send_error(req, 413, "a body of at most 64 KiB is read", NULL, NULL);
        return;
    }
    bytes_put(&v->body, data, len);
    if (!last)
        return;
    v->in = v->body.failed
                ? NULL
                : json_loadb((const char *)v->body.data, v->body.len, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(v->in)) {
        send_error(req, 400, "the body is no JSON object (RFC 8259)", NULL, NULL);
        return;
    }
    go(v);
}

static bool is_json(const struct http_request *req)
{
    struct http_text type = http_header(req->reader, req->head, "content-type");
    static const char json[] = "application/json";
    size_t n = sizeof(json) - 1;
    return type.len >= n && strncasecmp(type.data, json, n) == 0 &&
           (type.len == n || type.data[n] == ';' || type.data[n] == ' ');
}

static const struct http_ops ops = {.data = on_data, .over = on_over};

/* --- which route --------------------------------------------------------------------------------------------------------- */

/* Does the path match? What stands for {name} goes, decoded, to out. */
static bool path_is(const char *pattern, struct http_text path, char out[NAME_MAX_BYTES + 1])
{
    const char *brace = strchr(pattern, '{');
    size_t fixed = brace ? (size_t)(brace - pattern) : strlen(pattern), len;
    if (path.len < fixed || memcmp(path.data, pattern, fixed) != 0 || (!brace && path.len != fixed))
        return false;
    if (!brace)
        return true;
    struct http_text name = {path.data + fixed, path.len - fixed};
    if (name.len == 0 || name.len > NAME_MAX_BYTES)
        return false;
    memcpy(out, name.data, name.len);
    if (memchr(out, '/', name.len) || !http_unescape(out, name.len, &len) || memchr(out, 0, len))
        return false;
    out[len] = 0;
    return true;
}

static const struct admin_route *find(struct http_request *req, char name[NAME_MAX_BYTES + 1], char *allow,
                                      size_t cap)
{
    const char *method = req->is_head ? "GET" : req->method;
    allow[0] = 0;
    for (unsigned i = 0; i < ARRAY_LEN(routes); i++) {
        if (!path_is(routes[i].path, req->path, name))
            continue;
        if (strcmp(routes[i].method, method) == 0)
            return &routes[i];
        size_t at = strlen(allow);
        snprintf(allow + at, cap - at, "%s%s%s", at ? ", " : "", routes[i].method,
                 strcmp(routes[i].method, "GET") ? "" : ", HEAD");
    }
    return NULL;
}

static bool accepts(const struct http_request *req, const char *type)
{
    struct http_text accept = http_header(req->reader, req->head, "accept");
    return accept.len && memmem(accept.data, accept.len, type, strlen(type));
}

static bool target_wants(struct http_text path)
{
    static const char v1[] = "/v1/";
    return http_text_is(path, "/healthz") || http_text_is(path, "/readyz") ||
           http_text_is(path, "/metrics") || http_text_is(path, "/v1") ||
           (path.len >= sizeof(v1) - 1 && memcmp(path.data, v1, sizeof(v1) - 1) == 0);
}

bool admin_wants(const struct http_request *req)
{
    if (target_wants(req->path))
        return true;
    return http_text_is(req->target, "/") && (req->is_head || strcmp(req->method, "GET") == 0) &&
           accepts(req, "text/html") && !http_header(req->reader, req->head, "authorization").data;
}

void admin_request(struct admin *admin, struct http_request *req)
{
    char name[NAME_MAX_BYTES + 1] = "", allow[64];
    const char *why = "";
    if (http_text_is(req->path, "/")) {
        page_answer(admin, req);
        return;
    }
    const struct admin_route *route = find(req, name, allow, sizeof(allow));
    if (!route) {
        if (allow[0])
            send_error(req, 405, "this path has other methods: see the header Allow", "Allow", allow);
        else
            send_error(req, 404, "there is no such path: see /v1/openapi.json", NULL, NULL);
        return;
    }
    bool open = route->run == health || route->run == v1_ready, sees_all = false;
    unsigned refused = open ? 0 : right(admin, req, route->changes, &sees_all, &why);
    if (refused) {
        send_error(req, refused, why, refused == 401 ? "WWW-Authenticate" : NULL, "Bearer");
        return;
    }
    if (route->wants_body && !is_json(req)) {
        send_error(req, 415, "Content-Type: application/json is wanted", NULL, NULL);
        return;
    }
    if (req->query.len >= sizeof(((struct admin_task *)0)->query)) {
        send_error(req, 400, "the query has more than 511 bytes: leave parameters out, or shorten them", NULL,
                   NULL);
        return;
    }
    struct admin_task *v = calloc(1, sizeof(*v));
    if (!v) {
        send_error(req, 503, "out of memory", "Retry-After", "2");
        return;
    }
    v->admin = admin;
    v->req = req;
    v->route = route;
    v->status = 200;
    v->sees_all = sees_all;
    v->openmetrics = accepts(req, "application/openmetrics-text");
    memcpy(v->name, name, sizeof(name));
    http_text_copy(req->query.data ? req->query : (struct http_text){"", 0}, v->query, sizeof(v->query));
    req->user = v;
    req->ops = &ops;
    if (route->wants_body)
        http_body_stream(req);
    else
        go(v);
}

bool admin_refuse(const struct http_refusal *refusal, struct bytes_out *headers, struct bytes_out *body)
{
    struct http_text path = refusal->target;
    const char *mark = path.data ? memchr(path.data, '?', path.len) : NULL;
    path.len = mark ? (size_t)(mark - path.data) : path.len;
    if (!path.data || !target_wants(path))
        return false;
    AUTO_FREE char *text = error_text(refusal->status, refusal->message);
    http_put_header(headers, "Content-Type", "application/json");
    http_put(body, text ? text : "");
    return true;
}

/* --- its beginning and end ----------------------------------------------------------------------------------------------- */

int admin_new(const struct admin_config *config, struct admin **ret_admin, struct leat_error *err)
{
    if (config->token && strlen(config->token) < 16)
        return error_set(err, LEAT_INVALID,
                         "the token of the administration has %zu characters: at least 16 are wanted",
                         strlen(config->token));
    struct admin *admin = calloc(1, sizeof(*admin));
    if (!admin)
        return error_set(err, -ENOMEM, "out of memory");
    admin->config = *config;
    admin->started_ns = clock_now_ns();
    int rc = page_policy(admin->policy, sizeof(admin->policy));
    if (rc < 0) {
        free(admin);
        return error_set(err, rc, "the page of the administration cannot be prepared");
    }
    pthread_mutex_init(&admin->scrub_lock, NULL);
    scrub_register(admin);
    *ret_admin = admin;
    return 0;
}

void admin_begin(struct admin *admin)
{
    scrub_settle(admin);
}

void admin_free(struct admin *admin)
{
    if (!admin)
        return;
    pthread_mutex_destroy(&admin->scrub_lock);
    free(admin);
}

void admin_watch(struct admin *admin, struct http_server *server)
{
    atomic_store(&admin->server, server);
}
