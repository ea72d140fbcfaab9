/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon says of itself: JSON for `leat ls`, `stat` and `status`; the text for monitoring is metrics.c's. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/hex.h"
#include "base/utf8.h"
#include "leat/leat.h"
#include "rpc/conn.h"
#include "pool/nodes/nodes.h"
#include "pool/region/prefault.h"
#include "pool/region/region.h"
#include "daemon/server.h"
#include "pool/scan.h"
#include "pool/fill/stream_window.h"
#include "pool/set/wset.h"
#include "wire/json_whole.h"

#include <jansson.h>

static const char *state_name(const struct wset *ws)
{
    if (wset_has_ended(ws))
        return "ending";
    /* Pushed samples have no source to be read from again. */
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

/* Names are bytes, JSON is not: bytes that are no UTF-8 are escaped. NULL becomes null. */
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
        (json_int_t)(ws->window ? stream_window_held_bytes(ws->window) : 0));
    /* A name may look like an escaped one: this field distinguishes them. */
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
    hex_put(fingerprint, h->fingerprint, 16);
    uint64_t page = UINT64_MAX;
    json_t *regions = json_array();
    for (uint32_t g = 0; g < ws->nregions; g++) {
        const struct region *r = ws->regions[g].region;
        if (r)
            page = MIN(page, region_page_bytes(r));
        if (g < 64)
            json_array_append_new(regions, json_pack("{s:i, s:i, s:I}", "mr_gid", (int)g, "node",
                                                     (int)wset_region_node(ws, g), "used_bytes",
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
                        json_integer(ws->window ? (json_int_t)stream_window_bytes(ws->window) : 0));
    return json;
}

static json_t *sets_json(const struct pool *pool, uint32_t uid, uint32_t gid)
{
    json_t *sets = json_array();
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        if (wset_is_findable(ws) && wset_allows(ws, uid, gid))
            json_array_append_new(sets, set_summary(ws));
    }
    return sets;
}

/* Empty for a daemon without other nodes. The state of a node is its last report, or unknown. */
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

uint64_t report_windows_bytes(const struct pool *pool)
{
    uint64_t bytes = 0;
    list_for_each (node, &pool->sets) {
        const struct wset *ws = container_of(node, struct wset, node);
        bytes += ws->window ? stream_window_bytes(ws->window) : 0;
    }
    return bytes + pool_scans_window_bytes(pool);
}

/* null until a client asked to read by it. */
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
    return json_pack("{s:b, s:I, s:I, s:I, s:o}", "keys_may_write", (int)s.may_write, "registered_regions",
                     (json_int_t)s.registrations, "registered_bytes", (json_int_t)s.registered_bytes,
                     "key_requests", (json_int_t)s.key_requests, "rails", rails);
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
    uint64_t regions = 0, windows = report_windows_bytes(pool);
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
                  (json_int_t)pool->budget.cap_bytes, "used_bytes",
                  (json_int_t)atomic_load(&pool->budget.used_bytes), "peak_bytes",
                  (json_int_t)atomic_load(&pool->budget.peak_bytes), "table_bytes",
                  (json_int_t)atomic_load(&pool->table_bytes), "scratch_bytes",
                  (json_int_t)(atomic_load(&pool->scratch_bytes) + fill.wide_bytes), "window_bytes",
                  (json_int_t)windows, "region_bytes", (json_int_t)pool->config.region_bytes, "regions",
                  (json_int_t)regions, "huge_pages_asked", pool->config.pages.huge, "page_bytes",
                  (json_int_t)(huge ? 2 * MIB : page), "page_source",
                  region_pages_name(region_pages(&pool->config.pages, pool->config.region_bytes))));
    struct prefault_stats ready;
    prefault_stats(pool->ready, &ready);
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
    json_object_set_new(json, "jobs", loaders_json(view->all_clients, uid, gid));
    return json;
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
        text = report_metrics(view);
        break;
    default:
        return error_set(err, LEAT_UNSUPPORTED, "this daemon does not know query %u", query);
    }
    if (json) {
        text = json_whole(json);
        json_decref(json);
    }
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    *ret_text = text;
    return 0;
}
