/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c: the pool's numbers, and those of services, disks and cold tier, in Prometheus's text form, or as OpenMetrics where that is what
 * is asked for.
 */
#include "serve/admin/admin_internal.h"

#include "base/metrics_text.h"

static void services(struct bytes_out *out, struct http_server *server)
{
    static const char *const classes[] = {[2] = "2xx", "3xx", "4xx", "5xx"},
                             *const responses[][2] = {
                                 {"http_responses_total", "Responses, by class of their status."},
                                 {"http_answers_total", "Deprecated, use leat_http_responses_total."}};
    struct http_server_stats s;
    http_server_stats(server, &s);
    metrics_gauge(out, "http_connections", "Connections of HTTP.", s.connections);
    metrics_gauge(out, "http_busy_connections", "Of them, those with an open request.", s.busy);
    metrics_counter(out, "http_accepted_total", "Connections accepted.", s.accepted);
    metrics_counter(out, "http_requests_total", "Requests whose head was read.", s.requests);
    for (unsigned i = 0; i < ARRAY_LEN(responses); i++) {
        metrics_family(out, responses[i][0], "counter", responses[i][1]);
        for (unsigned k = 2; k < ARRAY_LEN(s.answers); k++)
            metrics_sample(out, responses[i][0], "class", classes[k], s.answers[k]);
    }
    metrics_counter(out, "http_aborted_total", "Requests that ended without a whole response.", s.answers[0]);
    metrics_counter(out, "http_broken_off_total", "Deprecated, use leat_http_aborted_total.", s.answers[0]);
    metrics_counter(out, "http_refused_total", "Requests that the server refused by itself.", s.refused);
    metrics_counter(out, "http_overload_total", "Of them, for lack of memory or connections.", s.overload);
    metrics_counter(out, "http_timeouts_total", "Peers that were too slow.", s.timeouts);
    metrics_counter(out, "http_received_bytes_total", "Bytes received.", s.bytes_in);
    metrics_counter(out, "http_sent_bytes_total", "Bytes sent.", s.bytes_out);
    metrics_counter(out, "http_tls_handshakes_total", "TLS handshakes.", s.handshakes);
    metrics_counter(out, "http_tls_resumed_total", "Of them, resumed ones.", s.resumed);
    metrics_counter(out, "http_tls_failed_total", "TLS handshakes that failed.", s.handshakes_failed);
    metrics_gauge(out, "http_memory_bytes", "Memory of connections and of open requests.", s.memory_bytes);
    metrics_histogram(out, "http_request", "From the first byte of a request to the last of its answer.",
                      &s.latency);
}

static void paths(struct bytes_out *out, const struct store_status *s)
{
    struct {
        uint64_t up, scrubbing, damaged, ended_s;
    } of[STORE_PATHS_MAX] = {0};
    for (unsigned i = 0; i < s->npaths; i++) {
        const struct store_scrub_status *scrub = &s->paths[i].scrub;
        const struct store_scrub_pass *pass = scrub->now.begun_ns ? &scrub->now : &scrub->last;
        of[i].up = s->paths[i].state == STORE_PATH_OK;
        of[i].scrubbing = scrub->state == STORE_SCRUB_RUNNING;
        of[i].damaged = pass->damaged + pass->unreadable - pass->repaired;
        of[i].ended_s = (uint64_t)(scrub->last.ended_ns / 1000000000);
    }
    const struct {
        const char *name, *type, *help;
        const uint64_t *values; /* of the first path */
        size_t stride;
    } families[] = {
#define MADE(field)  &of[0].field, sizeof(of[0])
#define FIELD(field) &s->paths[0].field, sizeof(s->paths[0])
        {"store_path_up", "gauge", "1: the path works; 0: it was left.", MADE(up)},
        {"store_objects", "gauge", "Objects on the path.", FIELD(objects)},
        {"store_bytes", "gauge", "Their bytes.", FIELD(bytes)},
        {"store_free_bytes", "gauge", "What its file system has free.", FIELD(free_bytes)},
        {"store_errors_total", "counter", "Errors of the disk.", FIELD(errors)},
        {"store_corrupt_total", "counter", "Objects found damaged.", FIELD(corrupt)},
        {"store_orphans", "gauge",
         "Whole files that no record of the index names, kept for 30 days in PATH/orphans.", FIELD(orphans)},
        {"store_dirty_objects", "gauge", "Objects that the remote has not got yet.", FIELD(dirty)},
        {"store_evicted_bytes_total", "counter", "Bytes evicted.", FIELD(evicted_bytes)},
        {"store_scrub_running", "gauge", "1: objects of the path are being read again.", MADE(scrubbing)},
        {"store_scrub_pass_bytes", "gauge", "Bytes that this pass has read, of store_bytes.",
         FIELD(scrub.now.bytes)},
        {"store_scrub_bytes_total", "counter", "Bytes read again.", FIELD(scrub.total_bytes)},
        {"store_scrub_damaged_objects", "gauge",
         "Objects that this pass (or the last) found damaged or unreadable, and could not mend.",
         MADE(damaged)},
        {"store_scrub_repaired_total", "counter",
         "Damaged objects that were evicted, as the remote has a copy.", FIELD(scrub.total_repaired)},
        {"store_scrub_mended_total", "counter", "Deprecated, use leat_store_scrub_repaired_total.",
         FIELD(scrub.total_repaired)},
        {"store_scrub_ended_timestamp_seconds", "gauge", "When a whole pass ended last; 0: none did.",
         MADE(ended_s)},
    };
    for (unsigned k = 0; k < ARRAY_LEN(families); k++) {
        const char *at = (const char *)families[k].values;
        metrics_family(out, families[k].name, families[k].type, families[k].help);
        for (unsigned i = 0; i < s->npaths; i++, at += families[k].stride)
            metrics_sample(out, families[k].name, "path", s->paths[i].path, *(const uint64_t *)at);
    }
}

static int disks(struct bytes_out *out, struct store *store)
{
    AUTO_FREE struct store_status *s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    store_status(store, s);
    paths(out, s);
    metrics_counter(out, "store_puts_total", "Objects stored.", s->puts);
    metrics_counter(out, "store_gets_total", "Objects opened.", s->gets);
    metrics_counter(out, "store_deletes_total", "Objects deleted.", s->deletes);
    metrics_counter(out, "store_put_bytes_total", "Bytes stored.", s->put_bytes);
    metrics_counter(out, "store_flushes_total", "Logs made durable; fewer than PUTs where they shared one.",
                    s->flushes);
    metrics_gauge(out, "store_damaged_buckets",
                  "Buckets that cannot be served, as their descriptions are damaged.", s->damaged_buckets);
    metrics_gauge(out, "store_buffer_bytes", "Buffers of open PUTs.", s->buffer_bytes);
    return 0;
}

static void cold(struct bytes_out *out, struct tier *tier)
{
    struct tier_stats s;
    tier_stats(tier, &s);
    metrics_counter(out, "tier_fetches_total", "Fetches of objects from remotes that began to bring bytes.",
                    s.fetches);
    metrics_counter(out, "tier_fetched_bytes_total", "Their bytes.", s.fetched_bytes);
    metrics_counter(out, "tier_fetch_failed_total", "Fetches that failed.", s.fetch_failed);
    metrics_counter(out, "tier_joined_total", "Readers that joined a running fetch.", s.joined);
    metrics_counter(out, "tier_checks_total",
                    "Times that a remote was asked for an object, or for a newer version of what is here.",
                    s.checks);
    metrics_counter(out, "tier_refreshed_total", "Of them, those that had one.", s.refreshed);
    metrics_counter(out, "tier_pushes_total", "Objects pushed to remotes.", s.pushes);
    metrics_counter(out, "tier_pushed_bytes_total", "Their bytes.", s.pushed_bytes);
    metrics_counter(out, "tier_push_failed_total", "Pushes that failed, and are tried again.", s.push_failed);
    metrics_gauge(out, "tier_fetching", "Running fetches.", s.fetching);
    metrics_gauge(out, "tier_fetch_waiting", "Fetches that wait.", s.fetch_waiting);
    metrics_gauge(out, "tier_push_waiting",
                  "Keys that wait in memory to be pushed; store_dirty_objects counts all.", s.push_waiting);
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

static void work(struct bytes_out *out, struct jobs *jobs)
{
    struct jobs_stats s;
    jobs_stats(jobs, &s);
    metrics_gauge(out, "jobs_running", "Jobs that run: prefetch, evict, check, scrub.", s.running);
    metrics_gauge(out, "jobs_durable", "0: their journal cannot be written, and a restart forgets some.",
                  s.durable);
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
    work(&text, c->jobs);
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
