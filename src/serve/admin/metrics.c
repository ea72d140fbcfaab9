/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c: the pool's numbers, and those of services, disks and cold tier, in Prometheus's text form, or as OpenMetrics where that is what
 * is asked for.
 */
#include "serve/admin/admin_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static void add(struct bytes_out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct bytes_out *out, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof(line))
        out->failed = true;
    else
        bytes_put(out, line, (size_t)n);
}

static void family(struct bytes_out *out, const char *name, const char *type, const char *help)
{
    add(out, "# HELP leat_%s %s\n# TYPE leat_%s %s\n", name, help, name, type);
}

static void counter(struct bytes_out *out, const char *name, const char *help, uint64_t value)
{
    family(out, name, "counter", help);
    add(out, "leat_%s %" PRIu64 "\n", name, value);
}

static void gauge(struct bytes_out *out, const char *name, const char *help, uint64_t value)
{
    family(out, name, "gauge", help);
    add(out, "leat_%s %" PRIu64 "\n", name, value);
}

/* A value of a label: backslash, quote and line feed are escaped. */
static void label(struct bytes_out *out, const char *value)
{
    for (const char *c = value; *c; c++) {
        if (*c == '\\' || *c == '"')
            bytes_put(out, "\\", 1);
        if (*c == '\n')
            bytes_put(out, "\\n", 2);
        else
            bytes_put(out, c, 1);
    }
}

static void latency(struct bytes_out *out, struct histogram *h)
{
    uint64_t total = 0;
    family(out, "http_request_seconds", "histogram",
           "From the first byte of a request to the last of its answer.");
    for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++) {
        total += h->counts[k];
        add(out, "leat_http_request_seconds_bucket{le=\"%.9g\"} %" PRIu64 "\n", (double)(1ull << k) * 1e-6,
            total);
    }
    total += h->counts[HISTOGRAM_BUCKETS];
    add(out,
        "leat_http_request_seconds_bucket{le=\"+Inf\"} %" PRIu64
        "\nleat_http_request_seconds_sum %.9g\nleat_http_request_seconds_count %" PRIu64 "\n",
        total, (double)h->sum_ns * 1e-9, total);
}

static void services(struct bytes_out *out, struct http_server *server)
{
    struct http_server_stats s;
    http_server_stats(server, &s);
    gauge(out, "http_connections", "Connections of HTTP.", s.connections);
    gauge(out, "http_busy_connections", "Of them, those with a request under way.", s.busy);
    counter(out, "http_accepted_total", "Connections accepted.", s.accepted);
    counter(out, "http_requests_total", "Requests whose head was read.", s.requests);
    family(out, "http_answers_total", "counter", "Answers, by class of their status.");
    for (unsigned k = 2; k < ARRAY_LEN(s.answers); k++)
        add(out, "leat_http_answers_total{class=\"%uxx\"} %" PRIu64 "\n", k, s.answers[k]);
    counter(out, "http_broken_off_total", "Requests that ended without a whole answer.", s.answers[0]);
    counter(out, "http_refused_total", "Requests that the server refused by itself.", s.refused);
    counter(out, "http_overload_total", "Of them, for lack of memory or connections.", s.overload);
    counter(out, "http_timeouts_total", "Peers that were too slow.", s.timeouts);
    counter(out, "http_received_bytes_total", "Bytes received.", s.bytes_in);
    counter(out, "http_sent_bytes_total", "Bytes sent.", s.bytes_out);
    counter(out, "http_tls_handshakes_total", "TLS handshakes.", s.handshakes);
    counter(out, "http_tls_resumed_total", "Of them, resumed ones.", s.resumed);
    counter(out, "http_tls_failed_total", "TLS handshakes that failed.", s.handshakes_failed);
    gauge(out, "http_memory_bytes", "Memory of connections and of requests under way.", s.memory_bytes);
    latency(out, &s.latency);
}

static void by_path(struct bytes_out *out, const struct store_status *s, const char *name, const char *type,
                    const char *help, uint64_t (*value)(const struct store_path_status *))
{
    family(out, name, type, help);
    for (unsigned i = 0; i < s->npaths; i++) {
        add(out, "leat_%s{path=\"", name);
        label(out, s->paths[i].path);
        add(out, "\"} %" PRIu64 "\n", value(&s->paths[i]));
    }
}

static uint64_t path_up(const struct store_path_status *p)
{
    return p->state == STORE_PATH_OK;
}
static uint64_t path_objects(const struct store_path_status *p)
{
    return p->objects;
}
static uint64_t path_bytes(const struct store_path_status *p)
{
    return p->bytes;
}
static uint64_t path_free(const struct store_path_status *p)
{
    return p->free_bytes;
}
static uint64_t path_errors(const struct store_path_status *p)
{
    return p->errors;
}
static uint64_t path_corrupt(const struct store_path_status *p)
{
    return p->corrupt;
}
static uint64_t path_orphans(const struct store_path_status *p)
{
    return p->orphans;
}
static uint64_t path_dirty(const struct store_path_status *p)
{
    return p->dirty;
}
static uint64_t path_evicted(const struct store_path_status *p)
{
    return p->evicted_bytes;
}

static uint64_t path_scrubbed(const struct store_path_status *p)
{
    return p->scrub.total_bytes;
}
static uint64_t path_scrubbing(const struct store_path_status *p)
{
    return p->scrub.state == STORE_SCRUB_RUNNING;
}
static uint64_t path_scrub_done(const struct store_path_status *p)
{
    return p->scrub.now.bytes;
}
static uint64_t path_scrub_damaged(const struct store_path_status *p)
{
    const struct store_scrub_pass *pass = p->scrub.now.begun_ns ? &p->scrub.now : &p->scrub.last;
    return pass->damaged + pass->unreadable - pass->repaired;
}
static uint64_t path_reconnected(const struct store_path_status *p)
{
    return p->scrub.total_repaired;
}
static uint64_t path_scrub_ended(const struct store_path_status *p)
{
    return (uint64_t)(p->scrub.last.ended_ns / 1000000000);
}

static void scrubs(struct bytes_out *out, const struct store_status *s)
{
    by_path(out, s, "store_scrub_running", "gauge", "1: objects of the path are being read again.",
            path_scrubbing);
    by_path(out, s, "store_scrub_pass_bytes", "gauge", "Bytes that this pass has read, of store_bytes.",
            path_scrub_done);
    by_path(out, s, "store_scrub_bytes_total", "counter", "Bytes read again.", path_scrubbed);
    by_path(out, s, "store_scrub_damaged_objects", "gauge",
            "Objects that this pass (or the last) found damaged or unreadable, and could not mend.",
            path_scrub_damaged);
    by_path(out, s, "store_scrub_mended_total", "counter",
            "Damaged objects that were given up for the remote's copy.", path_reconnected);
    by_path(out, s, "store_scrub_ended_timestamp_seconds", "gauge",
            "When a whole pass ended last; 0: none did.", path_scrub_ended);
}

static int disks(struct bytes_out *out, struct store *store)
{
    AUTO_FREE struct store_status *s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    store_status(store, s);
    by_path(out, s, "store_path_up", "gauge", "1: the path works; 0: it was left.", path_up);
    by_path(out, s, "store_objects", "gauge", "Objects on the path.", path_objects);
    by_path(out, s, "store_bytes", "gauge", "Their bytes.", path_bytes);
    by_path(out, s, "store_free_bytes", "gauge", "What its file system has free.", path_free);
    by_path(out, s, "store_errors_total", "counter", "Errors of the disk.", path_errors);
    by_path(out, s, "store_corrupt_total", "counter", "Objects found damaged.", path_corrupt);
    by_path(out, s, "store_orphans", "gauge",
            "Whole files that no record of the index names, kept for 30 days in PATH/orphans.", path_orphans);
    by_path(out, s, "store_dirty_objects", "gauge", "Objects that the remote has not got yet.", path_dirty);
    by_path(out, s, "store_evicted_bytes_total", "counter", "Bytes evicted.", path_evicted);
    scrubs(out, s);
    counter(out, "store_puts_total", "Objects stored.", s->puts);
    counter(out, "store_gets_total", "Objects opened.", s->gets);
    counter(out, "store_deletes_total", "Objects deleted.", s->deletes);
    counter(out, "store_put_bytes_total", "Bytes stored.", s->put_bytes);
    counter(out, "store_flushes_total", "Logs made durable; fewer than PUTs where they shared one.",
            s->flushes);
    gauge(out, "store_damaged_buckets", "Buckets that cannot be served, as their descriptions are damaged.",
          s->damaged_buckets);
    gauge(out, "store_buffer_bytes", "Buffers of PUTs under way.", s->buffer_bytes);
    return 0;
}

static void cold(struct bytes_out *out, struct tier *tier)
{
    struct tier_stats s;
    tier_stats(tier, &s);
    counter(out, "tier_fetches_total", "Fetches of objects from remotes that began to bring bytes.",
            s.fetches);
    counter(out, "tier_fetched_bytes_total", "Their bytes.", s.fetched_bytes);
    counter(out, "tier_fetch_failed_total", "Fetches that failed.", s.fetch_failed);
    counter(out, "tier_joined_total", "Readers who found a fetch under way.", s.joined);
    counter(out, "tier_checks_total",
            "Times that a remote was asked for an object, or for a newer version of what is here.", s.checks);
    counter(out, "tier_refreshed_total", "Of them, those that had one.", s.refreshed);
    counter(out, "tier_pushes_total", "Objects pushed to remotes.", s.pushes);
    counter(out, "tier_pushed_bytes_total", "Their bytes.", s.pushed_bytes);
    counter(out, "tier_push_failed_total", "Pushes that failed, and are tried again.", s.push_failed);
    gauge(out, "tier_fetching", "Fetches under way.", s.fetching);
    gauge(out, "tier_fetch_waiting", "Fetches that wait.", s.fetch_waiting);
    gauge(out, "tier_push_waiting", "Keys that wait in memory to be pushed; store_dirty_objects counts all.",
          s.push_waiting);
}

static bool take(const char **at, const char *end, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(end - *at) < n || memcmp(*at, word, n) != 0)
        return false;
    *at += n;
    return true;
}

void metrics_to_openmetrics(const char *text, size_t len, struct bytes_out *out)
{
    static const char total[] = "_total";
    const char *end = text + len, *help = NULL;
    size_t help_len = 0;
    /* HELP comes before TYPE, which alone says whether the name is a counter's: it waits for it. */
    for (const char *line = text; line < end;) {
        const char *lf = memchr(line, '\n', (size_t)(end - line));
        const char *next = lf ? lf + 1 : end, *at = line;
        if (take(&at, next, "# HELP ")) {
            help = at;
            help_len = (size_t)(next - at);
        } else if (take(&at, next, "# TYPE ")) {
            const char *space = memchr(at, ' ', (size_t)(next - at));
            size_t name = space ? (size_t)(space - at) : 0, n = sizeof(total) - 1;
            bool counts = space && (size_t)(next - space) >= 8 && memcmp(space, " counter", 8) == 0;
            size_t kept = counts && name > n && memcmp(at + name - n, total, n) == 0 ? name - n : name;
            bytes_put(out, "# TYPE ", 7);
            bytes_put(out, at, kept);
            bytes_put(out, at + name, (size_t)(next - at) - name);
            if (help && help_len > name && memcmp(help, at, name) == 0) {
                bytes_put(out, "# HELP ", 7);
                bytes_put(out, at, kept);
                bytes_put(out, help + name, help_len - name);
            }
            help = NULL;
        } else if (next - line > 1) {
            bytes_put(out, line, (size_t)(next - line));
        }
        line = next;
    }
    http_put(out, "# EOF\n");
}

int metrics_all(struct admin_task *v)
{
    struct admin_config *c = &v->admin->config;
    struct http_server *server = atomic_load(&v->admin->server);
    struct bytes_out text = {0};
    AUTO_FREE char *pool = NULL;
    int rc = 0;
    if (c->pool)
        rc = c->pool->query(c->pool->user, LEAT_QUERY_METRICS, NULL, v->sees_all, &pool, &v->err);
    if (pool)
        http_put(&text, pool);
    if (server)
        services(&text, server);
    if (rc == 0)
        rc = disks(&text, c->store);
    cold(&text, c->tier);
    if (rc == 0 && text.failed)
        rc = -ENOMEM;
    if (rc == 0 && v->openmetrics) {
        v->type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        metrics_to_openmetrics((const char *)text.data, text.len, &v->text);
    } else if (rc == 0) {
        v->type = "text/plain; version=0.0.4; charset=utf-8";
        bytes_put(&v->text, text.data, text.len);
    }
    bytes_out_fini(&text);
    return rc;
}
