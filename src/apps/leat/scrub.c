/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c: `leat scrub`: asks a server by /v1 how far its disks are read again, has it done now, and names what is damaged.
 *
 * Happy path: --now starts a pass on all disks, and waits with a bar until it has ended; the scrub is the server's, so Ctrl-C ends the waiting alone.
 * Failure modes: a server that may not be asked says what it wants (a token, or its unix socket); damaged objects are exit code 7.
 */
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "apps/leat/remote.h"
#include "http/client/once.h"
#include "base/clock.h"
#include "rpc/auth.h"
#include "wire/http/http.h"

#define ANSWER_MAX (8 * MIB) /* 64 damaged objects of each of 64 disks, with names of 1,024 bytes */
#define POLL_MS    200

enum { OPT_NOW = 440, OPT_STOP, OPT_NO_WAIT, OPT_TOKEN };

const struct cli_option scrub_options[] = {
    {OPT_NOW, "now", NULL, "read every object again now, as fast as the server may, and wait for the end"},
    {OPT_STOP, "stop", NULL, "let it continue at its usual pace"},
    {OPT_NO_WAIT, "no-wait", NULL, "with --now: do not wait"},
    {OPT_TOKEN, "token", "FILE", "the server's token file (see --admin-token of leat serve)"},
    {360, "endpoint-url", "URL", "the server: http[s]://HOST:PORT or unix:PATH (default: AWS_ENDPOINT_URL)"},
    {364, "no-verify-ssl", NULL, "do not check certificates"},
    {365, "ca-bundle", "FILE", "certificates to trust (default: AWS_CA_BUNDLE, or the system's)"},
    {0},
};

struct scrub {
    struct cli *cli;
    struct backend_config remote; /* endpoint, insecure, ca_file */
    const char *token_file;
    bool now, stop, no_wait;
};

/* --- asking ---------------------------------------------------------------------------------------------------------- */

static int receive(int fd, struct bytes_out *out)
{
    char buf[16 * KIB];
    ssize_t n;
    while ((n = recv(fd, buf, sizeof(buf), 0)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? LEAT_TIMED_OUT : -errno;
        bytes_put(out, buf, (size_t)n);
        if (out->failed || out->len > ANSWER_MAX)
            return -ENOMEM;
    }
    bytes_put(out, "", 1);
    return out->failed ? -ENOMEM : 0;
}

/* By a unix socket, where the server knows its user without a token. */
static int ask_socket(const struct http_once *once, const char *path, int *ret_status, char **ret_text,
                      struct leat_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = (time_t)(once->timeout_ns / NS_PER_S)};
    if (strlen(path) >= sizeof(address.sun_path))
        return error_set(err, LEAT_INVALID, "unix:%.200s: longer than a socket's name may be", path);
    strcpy(address.sun_path, path);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return error_set(err, errno == ENOENT || errno == ECONNREFUSED ? LEAT_NOT_FOUND : -errno,
                         "%s: no server answers there: %s", path, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    struct bytes_out bytes = {0};
    http_put(&bytes, once->method);
    http_put(&bytes, " /v1/scrub HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    http_put(&bytes, once->headers);
    http_put(&bytes, "\r\n");
    bytes_put(&bytes, once->body, once->body_len);
    int rc = bytes.failed ? -ENOMEM : 0;
    if (rc == 0 && send(fd, bytes.data, bytes.len, MSG_NOSIGNAL) != (ssize_t)bytes.len)
        rc = error_set(err, LEAT_PEER_GONE, "%s: the server is gone", path);
    bytes.len = 0;
    if (rc == 0)
        rc = receive(fd, &bytes);
    struct http_reader reader;
    http_reader_init_response(&reader, 0);
    if (rc == 0 && http_head_feed(&reader, (char *)bytes.data, bytes.len - 1, once->method, err) != 1)
        rc = error_set(err, LEAT_CORRUPT, "%s: what answers there does not speak HTTP", path);
    if (rc == 0) {
        *ret_status = reader.status;
        *ret_text = strdup((char *)bytes.data + reader.head_bytes);
        rc = *ret_text ? 0 : -ENOMEM;
    }
    bytes_out_fini(&bytes);
    return rc;
}

static int put_token(const struct scrub *s, struct bytes_out *headers)
{
    void *token = NULL;
    size_t len = 0;
    if (!s->token_file)
        return 0;
    int rc = net_token_load(s->token_file, &token, &len, &s->cli->err);
    if (rc < 0)
        return rc;
    http_put(headers, "authorization: Bearer ");
    bytes_put(headers, token, len);
    http_put(headers, "\r\n");
    net_token_free(token, len);
    return memchr(headers->data, 0, headers->len)
               ? error_set(&s->cli->err, LEAT_INVALID, "%s: no token of a server", s->token_file)
               : 0;
}

static int code_of(int status)
{
    switch (status) {
    case 401:
    case 403:
        return LEAT_DENIED;
    case 404:
    case 405:
        return LEAT_NOT_FOUND;
    case 503:
        return LEAT_BUSY;
    default:
        return LEAT_INVALID;
    }
}

/* The server's document. */
static int ask(const struct scrub *s, const char *method, json_t **ret_json)
{
    const char *given = s->remote.endpoint, *url = given ? given : getenv("AWS_ENDPOINT_URL");
    struct leat_error *err = &s->cli->err;
    char address[600];
    AUTO_FREE char *text = NULL;
    int status = 0;
    bool post = strcmp(method, "POST") == 0;
    struct bytes_out headers = {0};
    http_put(&headers, post ? "content-type: application/json\r\ncontent-length: 2\r\n" : "");
    int rc = put_token(s, &headers);
    bytes_put(&headers, "", 1);
    if (!url || !*url)
        url = "http://127.0.0.1:9000";
    size_t n = strlen(url);
    snprintf(address, sizeof(address), "%s%s", url, n && url[n - 1] == '/' ? "v1/scrub" : "/v1/scrub");
    struct http_once once = {.method = method,
                             .url = address,
                             .headers = (char *)headers.data,
                             .body = "{}",
                             .body_len = post ? 2 : 0,
                             .text_max = ANSWER_MAX,
                             .timeout_ns = s->cli->timeout_ns ? s->cli->timeout_ns : 30 * NS_PER_S,
                             .ca_file = s->remote.ca_file ? s->remote.ca_file : getenv("AWS_CA_BUNDLE"),
                             .insecure = s->remote.insecure};
    if (rc == 0 && headers.failed)
        rc = -ENOMEM;
    if (rc == 0)
        rc = strncmp(url, "unix:", 5) == 0 ? ask_socket(&once, url + 5, &status, &text, err)
                                           : http_once(&once, &status, &text, err);
    if (headers.data)
        explicit_bzero(headers.data, headers.len);
    bytes_out_fini(&headers);
    if (rc == -ECONNREFUSED)
        return error_set(
            err, rc, "%.200s: no server listens there: --endpoint-url names the one of `leat serve`", url);
    if (rc < 0)
        return rc;
    json_t *json = json_loads(text, 0, NULL);
    if (status / 100 == 2 && json_is_array(json_object_get(json, "paths"))) {
        *ret_json = json;
        return 0;
    }
    const char *why = json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    rc = error_set(err, status / 100 == 2 ? LEAT_CORRUPT : code_of(status), "%.100s: %.300s", url,
                   why ? why : "this is no server of Leat, or one of another version");
    json_decref(json);
    return rc;
}

/* --- showing --------------------------------------------------------------------------------------------------------- */

static uint64_t number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) && json_number_value(v) > 0 ? (uint64_t)json_number_value(v) : 0;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void show_pass(const json_t *pass, const char *what)
{
    char bytes[SIZE_TEXT_MAX], objects[32], when[24];
    bool over = !json_is_null(json_object_get(pass, "ended"));
    remote_time((int64_t)number(pass, over ? "ended" : "began"), when);
    printf("  %s %s: %s objects, %s; damaged %llu, unreadable %llu, repaired %llu\n", what, when,
           cli_count(number(pass, "objects"), objects), size_format(number(pass, "bytes"), bytes),
           (unsigned long long)number(pass, "damaged"), (unsigned long long)number(pass, "unreadable"),
           (unsigned long long)number(pass, "repaired"));
}

static void show_path(const json_t *path)
{
    const json_t *scrub = json_object_get(path, "scrub"), *pass = json_object_get(scrub, "pass");
    const json_t *last = json_object_get(scrub, "last");
    char when[24];
    uint64_t of = number(scrub, "of_bytes");
    cli_print_key(stdout, text_of(path, "path"), strlen(text_of(path, "path")));
    printf(": %s", text_of(scrub, "state"));
    if (json_is_object(pass) && of)
        printf(", %.0f %%%s", MIN(100.0 * (double)number(pass, "bytes") / (double)of, 100.0),
               json_is_true(json_object_get(scrub, "asked")) ? ", as fast as it may" : "");
    else if (number(scrub, "next")) {
        remote_time((int64_t)number(scrub, "next"), when);
        printf(", the next pass begins %s", when);
    }
    putchar('\n');
    if (json_is_object(pass))
        show_pass(pass, "began");
    if (json_is_object(last))
        show_pass(last, "ended");
}

/* Everything, and the exit code that says whether it is well. */
static int show(const struct scrub *s, const json_t *doc)
{
    const json_t *paths = json_object_get(doc, "paths"), *damaged = json_object_get(doc, "damaged");
    if (s->cli->json) {
        json_dumpf(doc, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        for (size_t i = 0; !s->cli->quiet && i < json_array_size(paths); i++)
            show_path(json_array_get(paths, i));
        for (size_t i = 0; i < json_array_size(damaged); i++) {
            const json_t *d = json_array_get(damaged, i);
            printf("%s: s3://%s/", text_of(d, "what"), text_of(d, "bucket"));
            cli_print_key(stdout, text_of(d, "key"), strlen(text_of(d, "key")));
            printf(" on %s\n", text_of(d, "path"));
        }
    }
    return json_array_size(damaged) ? CLI_CORRUPT : CLI_OK;
}

/* Sums of those passes that were asked for. false: none is under way. */
static bool measure(const json_t *doc, struct leat_progress *ret)
{
    const json_t *paths = json_object_get(doc, "paths");
    bool any = false;
    *ret = (struct leat_progress){.size = sizeof(*ret), .stage = LEAT_STAGE_VERIFY};
    for (size_t i = 0; i < json_array_size(paths); i++) {
        const json_t *scrub = json_object_get(json_array_get(paths, i), "scrub");
        const json_t *pass = json_object_get(scrub, "pass");
        bool runs = json_is_object(pass) && json_is_true(json_object_get(scrub, "asked"));
        ret->bytes_total += number(scrub, "of_bytes");
        ret->bytes_done +=
            runs ? MIN(number(pass, "bytes"), number(scrub, "of_bytes")) : number(scrub, "of_bytes");
        any |= runs && strcmp(text_of(scrub, "state"), "running") == 0;
    }
    return any;
}

static int wait_for_end(const struct scrub *s, json_t **doc)
{
    struct progress progress;
    struct leat_progress report;
    int rc = 0;
    progress_begin(&progress, s->cli);
    while (rc == 0 && measure(*doc, &report)) {
        rc = progress_report(&report, &progress);
        if (rc == 0)
            nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000l}, NULL);
        json_t *fresh = NULL;
        if (rc == 0)
            rc = ask(s, "GET", &fresh);
        if (rc == 0) {
            json_decref(*doc);
            *doc = fresh;
        }
    }
    progress_end(&progress);
    return rc;
}

static int run(const struct scrub *s)
{
    AUTO_JSON json_t *doc = NULL;
    int rc = ask(s, s->now ? "POST" : s->stop ? "DELETE" : "GET", &doc);
    if (rc == 0 && s->now && !s->no_wait)
        rc = wait_for_end(s, &doc);
    if (rc == -ECANCELED)
        return cli_error(s->cli, CLI_INTERRUPTED, "the scrub continues; leat scrub --stop slows it down");
    return rc < 0 ? cli_fail(s->cli, rc) : cli_finish(s->cli, show(s, doc));
}

int cmd_scrub(struct cli *cli)
{
    struct scrub s = {.cli = cli};
    for (const struct cli_given *o = cli->given; o->id; o++) {
        s.now |= o->id == OPT_NOW;
        s.stop |= o->id == OPT_STOP;
        s.no_wait |= o->id == OPT_NO_WAIT;
        if (o->id == OPT_TOKEN)
            s.token_file = o->arg;
        remote_option(&s.remote, o);
    }
    if (s.now && s.stop)
        return cli_usage_error(cli, "--now and --stop exclude each other");
    if (s.no_wait && !s.now)
        return cli_usage_error(cli, "--no-wait goes with --now");
    return run(&s);
}
