/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text for monitoring: what the daemon counts. */
#include "base/ledger.h"
#include "base/metrics_text.h"
#include "rpc/conn.h"
#include "pool/nodes/nodes.h"
#include "pool/region/prefault.h"
#include "daemon/server.h"
#include "pool/set/wset.h"

/* A family with a sample for each rail; `values` is the first rail's. */
static void rail_text(struct bytes_out *t, const struct net_rdma_stats *s, const char *name, const char *type,
                      const char *help, const uint64_t *values)
{
    metrics_family(t, name, type, help);
    for (unsigned i = 0; i < s->nrails; i++)
        metrics_sample(t, name, "rail", s->rails[i].name,
                       *(const uint64_t *)((const char *)values + i * sizeof(s->rails[0])));
}

static void rdma_text(struct bytes_out *t, struct pool *pool)
{
    struct net_rdma_stats s;
    if (!pool_rdma_stats(pool, &s))
        return;
    metrics_gauge(t, "rdma_registered_regions", "Regions registered with every rail.", s.registrations);
    metrics_gauge(t, "rdma_registered_bytes", "Their bytes, which are locked in memory.", s.registered_bytes);
    metrics_family(t, "rdma_up", "gauge", "0: its device went, and is not back.");
    for (unsigned i = 0; i < s.nrails; i++)
        metrics_sample(t, "rdma_up", "rail", s.rails[i].name, s.rails[i].up);
    rail_text(t, &s, "rdma_connections", "gauge", "RDMA connections of clients.", &s.rails[0].connections);
    rail_text(t, &s, "rdma_refused_total", "counter", "RDMA connections refused before authentication.",
              &s.rails[0].refused);
    rail_text(t, &s, "rdma_errors_total", "counter", "RDMA connections that broke.", &s.rails[0].errors);
    rail_text(t, &s, "rdma_written_bytes_total", "counter", "Sample bytes written into views of clients.",
              &s.rails[0].put_bytes);
}

static void pool_text(struct bytes_out *t, struct pool *pool)
{
    struct prefault_stats ready;
    struct fill_stats fill;
    prefault_stats(pool->ready, &ready);
    fill_stats(pool->fill, &fill);
    metrics_gauge(t, "pool_cap_bytes",
                  "Most memory that working sets may take: samples, windows, tables, scratch.",
                  pool->budget.cap_bytes);
    metrics_gauge(t, "pool_used_bytes", "Memory reserved for all of that.",
                  atomic_load(&pool->budget.used_bytes));
    metrics_gauge(t, "pool_ready_bytes",
                  "Memory made ready ahead that no working set has yet; part of the used.", ready.bytes);
    metrics_counter(t, "pool_ready_made_bytes_total", "Memory made ready ahead.", ready.made_bytes);
    metrics_counter(t, "pool_ready_taken_bytes_total", "Of it, what working sets took.", ready.taken_bytes);
    metrics_counter(
        t, "pool_ready_given_up_bytes_total",
        "Of it, what was given back unused: its room was needed, or a set's last region is shorter.",
        ready.given_up_bytes);
    metrics_gauge(t, "pool_table_bytes", "Of it: indexes, states and checksums of samples, bookkeeping.",
                  atomic_load(&pool->table_bytes));
    metrics_gauge(t, "pool_scratch_bytes",
                  "Of it: to unpack chunks, for sessions that list and read remote sources, and to read what "
                  "cannot land in its place.",
                  atomic_load(&pool->scratch_bytes) + fill.wide_bytes);
    metrics_gauge(t, "pool_window_bytes", "Of it: windows of sets that are streamed, and of scans.",
                  report_windows_bytes(pool));
    metrics_counter(t, "pool_refused_total",
                    "Reservations that found no room, those included for which something idle then gave way.",
                    atomic_load(&pool->budget.refused));
}

static void server_text(struct bytes_out *t, const struct server_view *view)
{
    struct pool *pool = view->pool;
    unsigned sets = 0;
    list_for_each (node, &pool->sets)
        sets++;
    metrics_gauge(t, "working_sets", "Working sets in the pool.", sets);
    metrics_gauge(t, "clients", "Processes connected.", view->clients);
    metrics_counter(t, "requests_total", "Requests on control connections.", view->requests);
    metrics_counter(t, "rejected_total",
                    "Connections refused or closed: a wrong token, a late handshake, a limit, a broken "
                    "protocol, answers not read.",
                    view->rejected);
    metrics_counter(t, "opens_total", "Working sets requested by a path or name.", atomic_load(&pool->opens));
    metrics_counter(t, "index_scans_total",
                    "Sources scanned because no existing index described their present content.",
                    atomic_load(&pool->index_scans));
    metrics_counter(t, "index_hits_total", "Existing indexes used.", atomic_load(&pool->index_hits));
    metrics_counter(t, "drops_total", "Working sets that ended.", atomic_load(&pool->drops));
    metrics_counter(t, "evictions_total", "Of them, idle implicit sets that made room.",
                    atomic_load(&pool->evictions));
}

static void remote_text(struct bytes_out *t, struct pool *pool, const struct fill_stats *fill)
{
    metrics_counter(t, "remote_requests_total",
                    "Requests to S3 and web servers, tries again included, of loading and indexing.",
                    fill->remote_requests + atomic_load(&pool->remote_requests));
    metrics_counter(t, "remote_retries_total", "Of them, tries again.",
                    fill->remote_retries + atomic_load(&pool->remote_retries));
    metrics_counter(t, "remote_throttled_total", "Answers that said slow down.",
                    fill->remote_throttled + atomic_load(&pool->remote_throttled));
    metrics_counter(t, "remote_connections_total", "Connections made to them.",
                    fill->remote_connections + atomic_load(&pool->remote_connections));
    metrics_counter(t, "remote_checked_total",
                    "Objects read whole that matched a checksum of their server's.", fill->remote_checked);
    metrics_counter(t, "remote_unchecked_total", "Objects read whole of which the server has no checksum.",
                    fill->remote_unchecked);
}

static void load_text(struct bytes_out *t, struct pool *pool)
{
    struct fill_stats fill;
    fill_stats(pool->fill, &fill);
    metrics_family(t, "loaded_bytes_total", "counter", "Bytes brought into the pool, by road.");
    metrics_sample(t, "loaded_bytes_total", "road", "direct", fill.bytes_direct);
    metrics_sample(t, "loaded_bytes_total", "road", "buffered", fill.bytes_buffered);
    metrics_sample(t, "loaded_bytes_total", "road", "decoded", fill.bytes_decoded);
    metrics_sample(t, "loaded_bytes_total", "road", "remote", fill.bytes_remote);
    metrics_counter(t, "store_loaded_bytes_total", "Bytes brought into the pool from this node's own store.",
                    fill.bytes_stored);
    metrics_counter(
        t, "store_padding_bytes_total",
        "Read from it in addition to what was wanted, to align and to compare checksums, and skipped.",
        fill.bytes_padding);
    remote_text(t, pool, &fill);
    metrics_counter(t, "source_opens_total", "Source files opened, and ranges of remote ones requested.",
                    fill.files_opened);
    metrics_counter(t, "load_errors_total", "Ranges that could not be loaded.", fill.errors);
}

static void data_text(struct bytes_out *t, const struct server_view *view)
{
    struct pool *pool = view->pool;
    struct net_server_stats net;
    net_server_stats(pool->server, &net);
    char rail[NET_ADDRESS_BYTES];
    metrics_gauge(t, "data_connections", "Connections of remote readers and of pushing ranks.",
                  net.connections);
    metrics_counter(t, "data_requests_total", "Read and write requests on them.", net.requests);
    metrics_counter(t, "data_sent_bytes_total", "Sample bytes sent.", net.bytes_sent);
    if (view->listen)
        metrics_family(t, "rail_sent_bytes_total", "counter",
                       "Sample bytes sent, by the address of this node that was asked.");
    for (unsigned k = 0; view->listen && k < net_addresses_count(view->listen); k++) {
        net_addresses_at(view->listen, k, rail);
        metrics_sample(t, "rail_sent_bytes_total", "address", rail, atomic_load(&pool->rail_sent_bytes[k]));
    }
    metrics_counter(t, "data_received_bytes_total", "Sample bytes received.", net.bytes_received);
}

static void copied_text(struct bytes_out *t)
{
    metrics_family(t, "copied_bytes_total", "counter", "Sample bytes copied in user space by the daemon.");
    for (unsigned k = 0; k < LEDGER_REASONS; k++)
        metrics_sample(t, "copied_bytes_total", "reason", ledger_names[k], atomic_load(&ledger_bytes[k]));
}

static void times_text(struct bytes_out *t, const struct server_view *view)
{
    struct server_times *times = view->times;
    metrics_histogram(t, "open", "Time to answer an open: scan or existing index, admission, placement.",
                      &times->open);
    metrics_histogram(t, "wait", "Time readers waited for samples that were not in the pool yet.",
                      &times->wait);
    metrics_histogram(t, "fetch", "Time to bring streamed samples into the window.", &times->fetch);
    metrics_histogram(t, "segment", "Time to load and checksum a segment.",
                      fill_segment_times(view->pool->fill));
}

/* For an alert: a node that is not reachable; its samples are read from their source, or not at all. */
static void nodes_text(struct bytes_out *t, const struct pool *pool)
{
    const struct cluster *cluster = pool->cluster;
    uint64_t lost = 0;
    if (!cluster)
        return;
    metrics_family(t, "node_up", "gauge", "Whether this daemon is connected to a node of its list.");
    for (unsigned n = 0; n < cluster_nodes(cluster); n++) {
        struct cluster_node_view v;
        cluster_node(cluster, n, &v);
        if (!v.self)
            metrics_sample(t, "node_up", "node", v.address, v.connected);
    }
    list_for_each (node, &pool->sets)
        lost += atomic_load(&container_of(node, struct wset, node)->live->lost_samples);
    metrics_gauge(t, "lost_samples", "Samples of sets here whose node is lost.", lost);
}

char *report_metrics(const struct server_view *view)
{
    struct bytes_out t = {0};
    pool_text(&t, view->pool);
    server_text(&t, view);
    load_text(&t, view->pool);
    data_text(&t, view);
    nodes_text(&t, view->pool);
    rdma_text(&t, view->pool);
    copied_text(&t);
    times_text(&t, view);
    bytes_put(&t, "", 1);
    if (t.failed)
        bytes_out_fini(&t);
    return (char *)t.data;
}
