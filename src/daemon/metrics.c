/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text for monitoring: what the daemon counts. */
#include "base/ledger.h"
#include "rpc/conn.h"
#include "pool/nodes/nodes.h"
#include "pool/region/prefault.h"
#include "daemon/server.h"
#include "pool/set/wset.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

struct text {
    char *data;
    size_t len, cap;
    bool failed;
};

static void text_add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void text_add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    for (;;) {
        va_start(ap, fmt);
        int n = vsnprintf(t->data + t->len, t->cap - t->len, fmt, ap);
        va_end(ap);
        if (n >= 0 && t->len + (size_t)n < t->cap) {
            t->len += (size_t)n;
            return;
        }
        size_t cap = t->cap ? t->cap * 2 : 8192;
        char *more = t->failed ? NULL : realloc(t->data, cap);
        if (!more) {
            t->failed = true;
            return;
        }
        t->data = more;
        t->cap = cap;
    }
}

static void metric(struct text *t, const char *name, const char *type, const char *help, double value)
{
    text_add(t, "# HELP leat_%s %s\n# TYPE leat_%s %s\nleat_%s %.17g\n", name, help, name, type, name, value);
}

static void histogram_text(struct text *t, const char *name, const char *help, struct histogram *h)
{
    uint64_t total = 0;
    text_add(t, "# HELP leat_%s_seconds %s\n# TYPE leat_%s_seconds histogram\n", name, help, name);
    for (unsigned k = 0; k <= HISTOGRAM_BUCKETS; k++) {
        total += atomic_load_explicit(&h->counts[k], memory_order_relaxed);
        if (k < HISTOGRAM_BUCKETS)
            text_add(t, "leat_%s_seconds_bucket{le=\"%.9g\"} %" PRIu64 "\n", name, (double)(1ull << k) * 1e-6,
                     total);
    }
    text_add(t,
             "leat_%s_seconds_bucket{le=\"+Inf\"} %" PRIu64
             "\nleat_%s_seconds_sum %.9g\nleat_%s_seconds_count %" PRIu64 "\n",
             name, total, name, (double)atomic_load(&h->sum_ns) * 1e-9, name, total);
}

static void rail_text(struct text *t, const struct net_rdma_stats *s, const char *name, const char *type,
                      const char *help, uint64_t (*value)(const struct net_rdma_rail_stats *))
{
    text_add(t, "# HELP leat_rdma_%s %s\n# TYPE leat_rdma_%s %s\n", name, help, name, type);
    for (unsigned i = 0; i < s->nrails; i++)
        text_add(t, "leat_rdma_%s{rail=\"%s\"} %" PRIu64 "\n", name, s->rails[i].name, value(&s->rails[i]));
}

static uint64_t rail_up(const struct net_rdma_rail_stats *r)
{
    return r->up;
}
static uint64_t rail_connections(const struct net_rdma_rail_stats *r)
{
    return r->connections;
}
static uint64_t rail_refused(const struct net_rdma_rail_stats *r)
{
    return r->refused;
}
static uint64_t rail_errors(const struct net_rdma_rail_stats *r)
{
    return r->errors;
}
static uint64_t rail_written(const struct net_rdma_rail_stats *r)
{
    return r->put_bytes;
}

static void rdma_text(struct text *t, struct pool *pool)
{
    struct net_rdma_stats s;
    if (!pool_rdma_stats(pool, &s))
        return;
    metric(t, "rdma_registered_regions", "gauge", "Regions registered with every rail.",
           (double)s.registrations);
    metric(t, "rdma_registered_bytes", "gauge", "Their bytes, which are locked in memory.",
           (double)s.registered_bytes);
    rail_text(t, &s, "up", "gauge", "0: its device went, and is not back.", rail_up);
    rail_text(t, &s, "connections", "gauge", "RDMA connections of clients.", rail_connections);
    rail_text(t, &s, "refused_total", "counter", "RDMA connections of nobody who had been let in.",
              rail_refused);
    rail_text(t, &s, "errors_total", "counter", "RDMA connections that broke.", rail_errors);
    rail_text(t, &s, "written_bytes_total", "counter", "Sample bytes written into views of clients.",
              rail_written);
}

static void pool_text(struct text *t, struct pool *pool)
{
    struct prefault_stats ready;
    struct fill_stats fill;
    prefault_stats(pool->ready, &ready);
    fill_stats(pool->fill, &fill);
    metric(t, "pool_cap_bytes", "gauge",
           "Most memory that working sets may take: samples, windows, tables, scratch.",
           (double)pool->budget.cap_bytes);
    metric(t, "pool_used_bytes", "gauge", "Memory reserved for all of that.",
           (double)atomic_load(&pool->budget.used_bytes));
    metric(t, "pool_ready_bytes", "gauge",
           "Memory made ready ahead that no working set has yet; part of the used.", (double)ready.bytes);
    metric(t, "pool_ready_made_bytes_total", "counter", "Memory made ready ahead.", (double)ready.made_bytes);
    metric(t, "pool_ready_taken_bytes_total", "counter", "Of it, what working sets took.",
           (double)ready.taken_bytes);
    metric(t, "pool_ready_given_up_bytes_total", "counter",
           "Of it, what was given back unused: its room was needed, or a set's last region is shorter.",
           (double)ready.given_up_bytes);
    metric(t, "pool_table_bytes", "gauge", "Of it: indexes, states and checksums of samples, bookkeeping.",
           (double)atomic_load(&pool->table_bytes));
    metric(t, "pool_scratch_bytes", "gauge",
           "Of it: to unpack chunks, for sessions that list and read elsewhere, and to read what cannot land "
           "in its place.",
           (double)(atomic_load(&pool->scratch_bytes) + fill.wide_bytes));
    metric(t, "pool_window_bytes", "gauge", "Of it: windows of sets that are streamed, and of scans.",
           (double)report_windows_bytes(pool));
    metric(t, "pool_refused_total", "counter",
           "Reservations that found no room, those included for which something idle then gave way.",
           (double)atomic_load(&pool->budget.refused));
}

static void server_text(struct text *t, const struct server_view *view)
{
    struct pool *pool = view->pool;
    unsigned sets = 0;
    list_for_each (node, &pool->sets)
        sets++;
    metric(t, "working_sets", "gauge", "Working sets in the pool.", sets);
    metric(t, "clients", "gauge", "Processes connected.", view->clients);
    metric(t, "requests_total", "counter", "Requests on control connections.", (double)view->requests);
    metric(t, "rejected_total", "counter",
           "Connections turned away or closed: a wrong token, a late handshake, a limit, a broken protocol, "
           "answers not read.",
           (double)view->rejected);
    metric(t, "opens_total", "counter", "Working sets asked for by a path or name.",
           (double)atomic_load(&pool->opens));
    metric(t, "index_scans_total", "counter",
           "Sources scanned because no index at hand was of what lies there now.",
           (double)atomic_load(&pool->index_scans));
    metric(t, "index_hits_total", "counter", "Indexes found at hand.",
           (double)atomic_load(&pool->index_hits));
    metric(t, "drops_total", "counter", "Working sets that ended.", (double)atomic_load(&pool->drops));
    metric(t, "evictions_total", "counter", "Of them, idle implicit sets that made room.",
           (double)atomic_load(&pool->evictions));
}

static void remote_text(struct text *t, struct pool *pool, const struct fill_stats *fill)
{
    metric(t, "remote_requests_total", "counter",
           "Requests to S3 and web servers, tries again included, of loading and indexing.",
           (double)(fill->remote_requests + atomic_load(&pool->remote_requests)));
    metric(t, "remote_retries_total", "counter", "Of them, tries again.",
           (double)(fill->remote_retries + atomic_load(&pool->remote_retries)));
    metric(t, "remote_throttled_total", "counter", "Answers that said slow down.",
           (double)(fill->remote_throttled + atomic_load(&pool->remote_throttled)));
    metric(t, "remote_connections_total", "counter", "Connections made to them.",
           (double)(fill->remote_connections + atomic_load(&pool->remote_connections)));
    metric(t, "remote_checked_total", "counter",
           "Objects read whole that matched a checksum of their server's.", (double)fill->remote_checked);
    metric(t, "remote_unchecked_total", "counter", "Objects read whole of which the server has no checksum.",
           (double)fill->remote_unchecked);
}

static void load_text(struct text *t, struct pool *pool)
{
    struct fill_stats fill;
    fill_stats(pool->fill, &fill);
    text_add(t, "# HELP leat_loaded_bytes_total Bytes brought into the pool, by road.\n# TYPE "
                "leat_loaded_bytes_total counter\n");
    text_add(t, "leat_loaded_bytes_total{road=\"direct\"} %" PRIu64 "\n", fill.bytes_direct);
    text_add(t, "leat_loaded_bytes_total{road=\"buffered\"} %" PRIu64 "\n", fill.bytes_buffered);
    text_add(t, "leat_loaded_bytes_total{road=\"decoded\"} %" PRIu64 "\n", fill.bytes_decoded);
    text_add(t, "leat_loaded_bytes_total{road=\"remote\"} %" PRIu64 "\n", fill.bytes_remote);
    metric(t, "store_loaded_bytes_total", "counter",
           "Bytes brought into the pool from this node's own store.", (double)fill.bytes_stored);
    metric(t, "store_padding_bytes_total", "counter",
           "Read from it beside what was wanted, to align and to compare checksums, and left behind.",
           (double)fill.bytes_padding);
    remote_text(t, pool, &fill);
    metric(t, "source_opens_total", "counter", "Source files opened, and ranges of remote ones asked for.",
           (double)fill.files_opened);
    metric(t, "load_errors_total", "counter", "Ranges that could not be loaded.", (double)fill.errors);
}

static void data_text(struct text *t, const struct server_view *view)
{
    struct pool *pool = view->pool;
    struct net_server_stats net;
    net_server_stats(pool->server, &net);
    char rail[NET_ADDRESS_BYTES];
    metric(t, "data_connections", "gauge", "Connections of remote readers and of pushing ranks.",
           (double)net.connections);
    metric(t, "data_requests_total", "counter", "Read and write requests on them.", (double)net.requests);
    metric(t, "data_sent_bytes_total", "counter", "Sample bytes sent.", (double)net.bytes_sent);
    if (view->listen)
        text_add(t, "# HELP leat_rail_sent_bytes_total Sample bytes sent, by the address of this node that "
                    "was asked.\n# TYPE "
                    "leat_rail_sent_bytes_total counter\n");
    for (unsigned k = 0; view->listen && k < net_addresses_count(view->listen); k++) {
        net_addresses_at(view->listen, k, rail);
        text_add(t, "leat_rail_sent_bytes_total{address=\"%s\"} %" PRIu64 "\n", rail,
                 atomic_load(&pool->rail_sent_bytes[k]));
    }
    metric(t, "data_received_bytes_total", "counter", "Sample bytes received.", (double)net.bytes_received);
}

static void copied_text(struct text *t)
{
    text_add(t, "# HELP leat_copied_bytes_total Sample bytes copied in user space by the daemon.\n# TYPE "
                "leat_copied_bytes_total counter\n");
    for (unsigned k = 0; k < LEDGER_REASONS; k++)
        text_add(t, "leat_copied_bytes_total{reason=\"%s\"} %" PRIu64 "\n", ledger_names[k],
                 atomic_load(&ledger_bytes[k]));
}

static void times_text(struct text *t, const struct server_view *view)
{
    struct server_times *times = view->times;
    histogram_text(t, "open", "Time to answer an open: scan or index at hand, admission, placement.",
                   &times->open);
    histogram_text(t, "wait", "Time readers waited for samples that were not in the pool yet.", &times->wait);
    histogram_text(t, "fetch", "Time to bring streamed samples into the window.", &times->fetch);
    histogram_text(t, "segment", "Time to load and checksum a segment.",
                   fill_segment_times(view->pool->fill));
}

/* For an alert: a node that is not there, and what readers must get from its source meanwhile, or not at all. */
static void nodes_text(struct text *t, const struct pool *pool)
{
    const struct cluster *cluster = pool->cluster;
    uint64_t lost = 0;
    if (!cluster)
        return;
    text_add(t, "# HELP leat_node_up Whether this daemon is connected to a node of its list.\n# TYPE "
                "leat_node_up gauge\n");
    for (unsigned n = 0; n < cluster_nodes(cluster); n++) {
        struct cluster_node_view v;
        cluster_node(cluster, n, &v);
        if (!v.self)
            text_add(t, "leat_node_up{node=\"%s\"} %d\n", v.address, v.connected);
    }
    list_for_each (node, &pool->sets)
        lost += atomic_load(&container_of(node, struct wset, node)->live->lost_samples);
    metric(t, "lost_samples", "gauge", "Samples of sets here whose node is lost.", (double)lost);
}

char *report_metrics(const struct server_view *view)
{
    struct text t = {0};
    pool_text(&t, view->pool);
    server_text(&t, view);
    load_text(&t, view->pool);
    data_text(&t, view);
    nodes_text(&t, view->pool);
    rdma_text(&t, view->pool);
    copied_text(&t);
    times_text(&t, view);
    if (t.failed) {
        free(t.data);
        return NULL;
    }
    return t.data;
}
