/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon says of itself: JSON for `leat ls`, `stat` and `status`, Prometheus text for monitoring. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/ledger.h"
#include "base/utf8.h"
#include "leat/leat.h"
#include "net/conn.h"
#include "pool/cluster.h"
#include "pool/ready.h"
#include "pool/region.h"
#include "pool/server.h"
#include "pool/scan.h"
#include "pool/staging.h"
#include "pool/wset.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>

static const char *state_name(const struct wset *ws)
{
    if (ws->state == WSET_ENDING)
        return "ending";
    /* What ranks pushed has no source to come from again. */
    bool gone = (ws->flags & PROTO_WS_PUSHED) && atomic_load(&ws->live->lost_samples) > 0;
    if ((gone || atomic_load(&ws->live->failed_samples) > 0) && wset_complete(ws))
        return "damaged";
    return wset_complete(ws) ? "ready" : "loading";
}

static const char *kind_name(const struct wset *ws)
{
    switch (ws->index.header->kind) {
    case INDEX_KIND_ARRAY:
        return "array";
    case INDEX_KIND_DIR:
        return "directory";
    case INDEX_KIND_TAR:
        return "tar";
    case INDEX_KIND_PUSHED:
        return "pushed";
    default:
        return "unknown";
    }
}

/* Names are bytes, JSON is not: what is no UTF-8 is escaped. NULL becomes null. */
static json_t *json_bytes(const char *s)
{
    if (!s)
        return json_null();
    AUTO_FREE char *shown = utf8_escape(s);
    return shown ? json_string(shown) : NULL;
}

static json_t *set_summary(const struct wset *ws)
{
    const struct index_header *h = ws->index.header;
    json_t *json = json_pack(
        "{s:o, s:o, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:i, s:s, s:i, s:I}",
        "name", json_bytes(ws->name), "source", json_bytes(ws->spec), "kind", kind_name(ws), "state",
        state_name(ws),                                                           //
        "version", (int)ws->version, "samples", (json_int_t)h->nsamples,          //
        "resident_samples", (json_int_t)atomic_load(&ws->live->resident_samples), //
        "failed_samples", (json_int_t)atomic_load(&ws->live->failed_samples),     //
        "lost_samples", (json_int_t)atomic_load(&ws->live->lost_samples),         //
        "payload_bytes", (json_int_t)h->payload_bytes,                            //
        "resident_bytes", (json_int_t)atomic_load(&ws->live->resident_bytes),     //
        "pool_bytes", (json_int_t)ws->pool_bytes, "table_bytes",
        (json_int_t)(atomic_load(&ws->table_bytes) + ws->scratch_bytes), "streamed",
        !!(ws->flags & PROTO_WS_STREAMED),                                        //
        "explicit", !!(ws->flags & PROTO_WS_EXPLICIT), "leases", (int)ws->leases, //
        "mode", ws->mode & 0004 ? "public" : "private", "owner_uid", (int)ws->owner_uid, "window_held_bytes",
        (json_int_t)(ws->staging ? staging_held_bytes(ws->staging) : 0));
    /* A name may look like an escaped one: this tells them apart. */
    if (!utf8_valid(ws->name) || !utf8_valid(ws->spec))
        json_object_set_new(json, "escaped", json_true());
    return json;
}

static json_t *fields_json(const struct index *index)
{
    json_t *fields = json_array();
    for (unsigned f = 0; f < index->header->nfields; f++) {
        const struct index_field *field = &index->fields[f];
        json_t *shape = json_array();
        for (unsigned d = 0; d < field->ndim; d++)
            json_array_append_new(shape, json_integer((json_int_t)field->shape[d]));
        bool label = field->kind == INDEX_FIELD_LABEL;
        json_array_append_new(fields, json_pack("{s:o, s:o, s:o, s:b, s:I, s:I}", "name",
                                                json_bytes(index_string(index, field->name)), "dtype",
                                                json_bytes(label ? "<u4" : index_string(index, field->dtype)),
                                                "shape", shape, "label", label, "max_bytes",
                                                (json_int_t)field->max_bytes, "total_bytes",
                                                (json_int_t)field->total_bytes));
    }
    return fields;
}

static json_t *set_details(struct wset *ws)
{
    json_t *json = set_summary(ws);
    const struct index_header *h = ws->index.header;
    char fingerprint[33];
    for (unsigned k = 0; k < 16; k++)
        snprintf(fingerprint + 2 * k, 3, "%02x", h->fingerprint[k]);
    uint64_t page = UINT64_MAX;
    json_t *regions = json_array();
    for (uint32_t g = 0; g < ws->nregions; g++) {
        const struct region *r = ws->regions[g].region;
        if (r)
            page = MIN(page, region_page_bytes(r));
        if (g < 64)
            json_array_append_new(regions, json_pack("{s:i, s:i, s:I}", "mr_gid", (int)g, "node",
                                                     (int)ws->regions[g].node, "used_bytes",
                                                     (json_int_t)(r ? r->used_bytes : 0)));
    }
    json_object_set_new(json, "fingerprint", json_string(fingerprint));
    json_object_set_new(json, "fields", fields_json(&ws->index));
    json_object_set_new(json, "classes", json_integer((json_int_t)h->nclasses));
    json_object_set_new(json, "sources", json_integer((json_int_t)h->nsources));
    json_object_set_new(json, "region_bytes", json_integer((json_int_t)ws->region_bytes));
    json_object_set_new(json, "region_count", json_integer(ws->nregions));
    json_object_set_new(json, "regions", regions);
    json_object_set_new(json, "page_bytes", json_integer(page == UINT64_MAX ? 0 : (json_int_t)page));
    json_object_set_new(json, "generation", json_integer(atomic_load(&ws->live->generation)));
    json_object_set_new(json, "window_bytes",
                        json_integer(ws->staging ? (json_int_t)staging_window_bytes(ws->staging) : 0));
    return json;
}

static json_t *sets_json(const struct pool *pool, uint32_t uid, uint32_t gid)
{
    json_t *sets = json_array();
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        if (!ws->prepared && !ws->superseded && wset_allows(ws, uid, gid))
            json_array_append_new(sets, set_summary(ws));
    }
    return sets;
}

/* Empty for a daemon that knows no others. What a node has is what it last said; unknown before it said anything. */
static json_t *rails_json(const struct cluster *cluster, unsigned n, const struct cluster_node_view *v)
{
    static const char *const names[] = {
        [CLUSTER_RAIL_UNTRIED] = "untried", [CLUSTER_RAIL_UP] = "up", [CLUSTER_RAIL_DOWN] = "down"};
    json_t *rails = json_array();
    char address[NET_ADDRESS_BYTES];
    for (unsigned k = 0; k < net_addresses_count(v->address); k++) {
        const char *why = "";
        enum cluster_rail_state state = v->self ? CLUSTER_RAIL_UP : cluster_rail(cluster, n, k, &why);
        net_addresses_at(v->address, k, address);
        json_t *rail = json_pack("{s:o, s:s}", "address", json_bytes(address), "state", names[state]);
        if (rail && state == CLUSTER_RAIL_DOWN)
            json_object_set_new(rail, "why", json_bytes(why));
        json_array_append_new(rails, rail);
    }
    return rails;
}

static json_t *nodes_json(const struct cluster *cluster)
{
    json_t *nodes = json_array();
    for (unsigned n = 0; cluster && n < cluster_nodes(cluster); n++) {
        struct cluster_node_view v;
        cluster_node(cluster, n, &v);
        json_t *node = json_pack("{s:o, s:s, s:b, s:b}", "address", json_bytes(v.address), "state",
                                 v.self        ? "self"
                                 : v.connected ? "up"
                                               : "down",
                                 "self", v.self, "connected", v.connected);
        if (node)
            json_object_set_new(node, "rails", rails_json(cluster, n, &v));
        if (node && v.known) {
            json_object_set_new(node, "used_bytes", json_integer((json_int_t)v.used_bytes));
            json_object_set_new(node, "cap_bytes", json_integer((json_int_t)v.cap_bytes));
        }
        json_array_append_new(nodes, node);
    }
    return nodes;
}

static uint64_t windows_bytes(const struct pool *pool)
{
    uint64_t bytes = 0;
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        bytes += ws->staging ? staging_window_bytes(ws->staging) : 0;
    }
    return bytes + pool_scans_window_bytes(pool);
}

/* null until somebody asked to read by it. */
static json_t *rdma_json(struct pool *pool)
{
    struct net_rdma_stats s;
    char why[LEAT_ERROR_MESSAGE_MAX];
    if (pool_rdma_why(pool, why, sizeof(why)))
        return json_pack("{s:s}", "unavailable", why);
    if (!pool_rdma_stats(pool, &s))
        return json_null();
    json_t *rails = json_array();
    for (unsigned i = 0; i < s.nrails; i++)
        json_array_append_new(
            rails, json_pack("{s:s, s:b, s:I, s:I, s:I, s:I}", "name", s.rails[i].name, "up",
                             (int)s.rails[i].up, "connections", (json_int_t)s.rails[i].connections, "refused",
                             (json_int_t)s.rails[i].refused, "errors", (json_int_t)s.rails[i].errors,
                             "written_bytes", (json_int_t)s.rails[i].put_bytes));
    return json_pack("{s:I, s:I, s:I, s:o}", "registered_regions", (json_int_t)s.registrations,
                     "registered_bytes", (json_int_t)s.registered_bytes, "key_requests",
                     (json_int_t)s.key_requests, "rails", rails);
}

/* Of loading and of indexing. */
static json_t *remote_json(struct pool *pool, const struct fill_stats *fill)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "requests",
                     (json_int_t)(fill->remote_requests + atomic_load(&pool->remote_requests)), "retries",
                     (json_int_t)(fill->remote_retries + atomic_load(&pool->remote_retries)), "throttled",
                     (json_int_t)(fill->remote_throttled + atomic_load(&pool->remote_throttled)),
                     "connections_made",
                     (json_int_t)(fill->remote_connections + atomic_load(&pool->remote_connections)), "bytes",
                     (json_int_t)(fill->bytes_remote + atomic_load(&pool->remote_bytes)), "checked",
                     (json_int_t)fill->remote_checked, "unchecked", (json_int_t)fill->remote_unchecked);
}

static json_t *status_json(const struct server_view *view, uint32_t uid, uint32_t gid)
{
    struct pool *pool = view->pool;
    struct fill_stats fill;
    struct net_server_stats net;
    fill_stats(pool->fill, &fill);
    net_server_stats(pool->server, &net);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    bool huge = false;
    uint64_t regions = 0, windows = windows_bytes(pool);
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        for (uint32_t g = 0; g < ws->nregions; g++) {
            regions += ws->regions[g].region != NULL;
            huge =
                huge || (g == 0 && ws->regions[g].region && region_page_bytes(ws->regions[g].region) > page);
        }
    }
    json_t *json = json_pack("{s:s, s:i, s:o, s:o, s:o, s:f, s:i, s:I}", "program", view->program, "pid",
                             (int)getpid(), "socket", json_bytes(view->socket), "listen",
                             json_bytes(view->listen), "node", json_bytes(view->node_name), "uptime_seconds",
                             (double)(clock_now_ns() - view->started_ns) / NS_PER_S, "clients",
                             (int)view->clients, "requests", (json_int_t)view->requests);
    json_object_set_new(
        json, "pool",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:s}", "cap_bytes",
                  (json_int_t)pool->office.cap_bytes, "used_bytes",
                  (json_int_t)atomic_load(&pool->office.used_bytes), "peak_bytes",
                  (json_int_t)atomic_load(&pool->office.peak_bytes), "table_bytes",
                  (json_int_t)atomic_load(&pool->table_bytes), "scratch_bytes",
                  (json_int_t)atomic_load(&pool->scratch_bytes), "window_bytes", (json_int_t)windows,
                  "region_bytes", (json_int_t)pool->config.region_bytes, "regions", (json_int_t)regions,
                  "huge_pages_asked", pool->config.pages.huge, "page_bytes",
                  (json_int_t)(huge ? 2 * MIB : page), "page_source",
                  region_pages_name(region_pages(&pool->config.pages, pool->config.region_bytes))));
    struct ready_stats ready;
    ready_stats(pool->ready, &ready);
    json_object_set_new(json_object_get(json, "pool"), "ready",
                        json_pack("{s:I, s:I, s:I, s:I, s:I}", "target_bytes", (json_int_t)ready.target_bytes,
                                  "bytes", (json_int_t)ready.bytes, "made_bytes",
                                  (json_int_t)ready.made_bytes, "taken_bytes", (json_int_t)ready.taken_bytes,
                                  "given_up_bytes", (json_int_t)ready.given_up_bytes));
    json_object_set_new(json, "disk",
                        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "engine", fill.engine, "bytes_direct",
                                  (json_int_t)fill.bytes_direct, "bytes_buffered",
                                  (json_int_t)fill.bytes_buffered, "bytes_decoded",
                                  (json_int_t)fill.bytes_decoded, "files_opened",
                                  (json_int_t)fill.files_opened, "errors", (json_int_t)fill.errors));
    json_object_set_new(json, "remote", remote_json(pool, &fill));
    if (pool->store.store)
        json_object_set_new(json, "store",
                            json_pack("{s:I, s:I}", "loaded_bytes", (json_int_t)fill.bytes_stored,
                                      "padding_bytes", (json_int_t)fill.bytes_padding));
    json_object_set_new(json, "net",
                        json_pack("{s:I, s:I, s:I, s:I, s:I}", "connections", (json_int_t)net.connections,
                                  "requests", (json_int_t)net.requests, "bytes_sent",
                                  (json_int_t)net.bytes_sent, "bytes_received",
                                  (json_int_t)net.bytes_received, "errors", (json_int_t)net.errors));
    json_object_set_new(json, "rdma", rdma_json(pool));
    json_object_set_new(json, "checksum", json_string(crc32c_impl()));
    json_object_set_new(json, "nodes", nodes_json(pool->cluster));
    json_object_set_new(json, "credits", credits_json(view->credits, uid));
    json_object_set_new(json, "sets", sets_json(pool, uid, gid));
    json_object_set_new(json, "jobs", jobs_json(view->all_clients, uid, gid));
    return json;
}

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

static char *metrics_text(const struct server_view *view)
{
    struct pool *pool = view->pool;
    struct fill_stats fill;
    struct net_server_stats net;
    fill_stats(pool->fill, &fill);
    net_server_stats(pool->server, &net);
    struct text t = {0};
    unsigned sets = 0;
    list_for_each (node, &pool->sets)
        sets++;
    metric(&t, "pool_cap_bytes", "gauge",
           "Most memory that working sets may take: samples, windows, tables, scratch.",
           (double)pool->office.cap_bytes);
    metric(&t, "pool_used_bytes", "gauge", "Memory reserved for all of that.",
           (double)atomic_load(&pool->office.used_bytes));
    struct ready_stats ready;
    ready_stats(pool->ready, &ready);
    metric(&t, "pool_ready_bytes", "gauge",
           "Memory made ready ahead that no working set has yet; part of the used.", (double)ready.bytes);
    metric(&t, "pool_ready_made_bytes_total", "counter", "Memory made ready ahead.",
           (double)ready.made_bytes);
    metric(&t, "pool_ready_taken_bytes_total", "counter", "Of it, what working sets took.",
           (double)ready.taken_bytes);
    metric(&t, "pool_ready_given_up_bytes_total", "counter",
           "Of it, what was given back unused: its room was needed, or a set's last region is shorter.",
           (double)ready.given_up_bytes);
    metric(&t, "pool_table_bytes", "gauge", "Of it: indexes, states and checksums of samples, bookkeeping.",
           (double)atomic_load(&pool->table_bytes));
    metric(&t, "pool_scratch_bytes", "gauge",
           "Of it: to unpack chunks, and for sessions that list and read elsewhere.",
           (double)atomic_load(&pool->scratch_bytes));
    metric(&t, "pool_window_bytes", "gauge", "Of it: windows of sets that are streamed, and of scans.",
           (double)windows_bytes(pool));
    metric(&t, "pool_refused_total", "counter", "Reservations refused because the pool was full.",
           (double)atomic_load(&pool->office.refused));
    metric(&t, "working_sets", "gauge", "Working sets in the pool.", sets);
    metric(&t, "clients", "gauge", "Processes connected.", view->clients);
    metric(&t, "requests_total", "counter", "Requests on control connections.", (double)view->requests);
    metric(&t, "rejected_total", "counter", "Connections closed for a wrong token or a broken protocol.",
           (double)view->rejected);
    metric(&t, "opens_total", "counter", "Working sets asked for.", (double)atomic_load(&pool->opens));
    metric(&t, "index_scans_total", "counter", "Sources scanned because no current index was at hand.",
           (double)atomic_load(&pool->index_scans));
    metric(&t, "index_hits_total", "counter", "Indexes found at hand.",
           (double)atomic_load(&pool->index_hits));
    metric(&t, "drops_total", "counter", "Working sets that ended.", (double)atomic_load(&pool->drops));
    metric(&t, "evictions_total", "counter", "Idle implicit sets that made room.",
           (double)atomic_load(&pool->evictions));
    text_add(&t, "# HELP leat_loaded_bytes_total Bytes brought into the pool, by road.\n# TYPE "
                 "leat_loaded_bytes_total counter\n");
    text_add(&t, "leat_loaded_bytes_total{road=\"direct\"} %" PRIu64 "\n", fill.bytes_direct);
    text_add(&t, "leat_loaded_bytes_total{road=\"buffered\"} %" PRIu64 "\n", fill.bytes_buffered);
    text_add(&t, "leat_loaded_bytes_total{road=\"decoded\"} %" PRIu64 "\n", fill.bytes_decoded);
    text_add(&t, "leat_loaded_bytes_total{road=\"remote\"} %" PRIu64 "\n", fill.bytes_remote);
    metric(&t, "store_loaded_bytes_total", "counter",
           "Bytes brought into the pool from this node's own store.", (double)fill.bytes_stored);
    metric(&t, "store_padding_bytes_total", "counter",
           "Read from it beside what was wanted, to align and to compare checksums, and left behind.",
           (double)fill.bytes_padding);
    metric(&t, "remote_requests_total", "counter",
           "Requests to S3 and web servers, tries again included, of loading and indexing.",
           (double)(fill.remote_requests + atomic_load(&pool->remote_requests)));
    metric(&t, "remote_retries_total", "counter", "Of them, tries again.",
           (double)(fill.remote_retries + atomic_load(&pool->remote_retries)));
    metric(&t, "remote_throttled_total", "counter", "Answers that said slow down.",
           (double)(fill.remote_throttled + atomic_load(&pool->remote_throttled)));
    metric(&t, "remote_connections_total", "counter", "Connections made to them.",
           (double)(fill.remote_connections + atomic_load(&pool->remote_connections)));
    metric(&t, "remote_checked_total", "counter",
           "Objects read whole that matched a checksum of their server's.", (double)fill.remote_checked);
    metric(&t, "remote_unchecked_total", "counter", "Objects read whole of which the server has no checksum.",
           (double)fill.remote_unchecked);
    metric(&t, "source_opens_total", "counter", "Source files opened.", (double)fill.files_opened);
    metric(&t, "load_errors_total", "counter", "Ranges that could not be loaded.", (double)fill.errors);
    metric(&t, "data_connections", "gauge", "Connections of remote readers and of pushing ranks.",
           (double)net.connections);
    metric(&t, "data_requests_total", "counter", "Read and write requests on them.", (double)net.requests);
    metric(&t, "data_sent_bytes_total", "counter", "Sample bytes sent.", (double)net.bytes_sent);
    char rail[NET_ADDRESS_BYTES];
    if (view->listen)
        text_add(&t, "# HELP leat_rail_sent_bytes_total Sample bytes sent, by the address of this node that "
                     "was asked.\n# TYPE "
                     "leat_rail_sent_bytes_total counter\n");
    for (unsigned k = 0; view->listen && k < net_addresses_count(view->listen); k++) {
        net_addresses_at(view->listen, k, rail);
        text_add(&t, "leat_rail_sent_bytes_total{address=\"%s\"} %" PRIu64 "\n", rail,
                 atomic_load(&pool->rail_sent_bytes[k]));
    }
    metric(&t, "data_received_bytes_total", "counter", "Sample bytes received.", (double)net.bytes_received);
    rdma_text(&t, pool);
    text_add(&t, "# HELP leat_copied_bytes_total Sample bytes copied in user space by the daemon.\n# TYPE "
                 "leat_copied_bytes_total counter\n");
    for (unsigned k = 0; k < LEDGER_REASONS; k++)
        text_add(&t, "leat_copied_bytes_total{reason=\"%s\"} %" PRIu64 "\n", ledger_names[k],
                 atomic_load(&ledger_bytes[k]));
    struct server_times *times = view->times;
    histogram_text(&t, "open", "Time to answer an open: scan or index at hand, admission, placement.",
                   &times->open);
    histogram_text(&t, "wait", "Time readers waited for samples that were not in the pool yet.",
                   &times->wait);
    histogram_text(&t, "fetch", "Time to bring streamed samples into the window.", &times->fetch);
    histogram_text(&t, "segment", "Time to load and checksum a segment.", fill_segment_times(pool->fill));
    if (t.failed) {
        free(t.data);
        return NULL;
    }
    return t.data;
}

int report_query(const struct server_view *view, uint32_t query, const char *arg, uint32_t uid, uint32_t gid,
                 char **ret_text, struct leat_error *err)
{
    json_t *json = NULL;
    char *text = NULL;
    struct wset *ws;
    switch (query) {
    case LEAT_QUERY_LIST:
        json = sets_json(view->pool, uid, gid);
        break;
    case LEAT_QUERY_STAT:
        ws = pool_find(view->pool, arg, uid, gid);
        if (!ws || !wset_allows(ws, uid, gid))
            return error_set(err, LEAT_NOT_FOUND, "no working set '%s' in the pool: see `leat ls`", arg);
        json = set_details(ws);
        break;
    case LEAT_QUERY_STATUS:
        json = status_json(view, uid, gid);
        break;
    case LEAT_QUERY_METRICS:
        text = metrics_text(view);
        break;
    default:
        return error_set(err, LEAT_UNSUPPORTED, "this daemon does not know query %u", query);
    }
    if (json) {
        text = json_dumps(json, JSON_COMPACT);
        json_decref(json);
    }
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    *ret_text = text;
    return 0;
}
