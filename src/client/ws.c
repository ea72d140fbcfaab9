/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ws.c: working sets: the index and the live table of one, mapped, and its regions, mapped on first use in
 * runs of 64.
 *
 * Failure modes: the set is dropped by force: the generation in the live table moves (and REVOKED comes),
 * reads after that are LEAT_STALE; the daemon dies: its socket ends and every later read is LEAT_PEER_GONE,
 * though the mappings stay readable, so that no reader crashes. Invariants: mappings live as long as the
 * struct; a map pointer is published with release and read with acquire; the handle on the daemon is closed
 * with the last reference.
 */
#include "base/hex.h"
#include "client/client.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "dataset/dataset.h"
#include "wire/address.h"

#define REGION_RUN 64u
#define TELL_NS    (100 * NS_PER_MS) /* interval of progress reports to a waiting caller */

/* --- opening --------------------------------------------------------------------------------------------------- */

static int map_live(struct leat_ws *ws, int fd, struct leat_error *err)
{
    const struct index_header *h = ws->index.header;
    uint64_t bytes = live_bytes(h->nsamples, h->nfields);
    struct stat st;
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < bytes)
        return error_set(err, LEAT_CORRUPT, "the daemon's live table is shorter than its index asks for");
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return error_sys(err, -errno, "cannot map the live table");
    ws->live = at;
    ws->live_mapped = bytes;
    if (ws->live->magic != LIVE_MAGIC || ws->live->nsamples != h->nsamples ||
        ws->live->nfields != h->nfields || ws->live->state_offset != 4096 ||
        ws->live->crc_offset != live_crc_offset(h->nsamples))
        return error_set(err, LEAT_CORRUPT, "the daemon's live table does not belong to its index");
    ws->state = (const _Atomic uint8_t *)at + ws->live->state_offset;
    ws->crc = (const uint32_t *)((const uint8_t *)at + ws->live->crc_offset);
    return 0;
}

static int check_regions(struct leat_ws *ws, struct leat_error *err)
{
    const struct proto_ws *info = &ws->info;
    ws->local_node = UINT32_MAX;
    for (uint32_t i = 0; i < info->nnodes; i++)
        if (!info->nodes[i].address[0])
            ws->local_node = i;
    if (!info->region_bytes)
        return error_set(err, LEAT_CORRUPT, "the daemon describes a working set with regions of 0 bytes");
    bool local = false, remote = false;
    for (uint32_t i = 0; i < info->nregions; i++) {
        if (info->regions[i].node >= info->nnodes || info->regions[i].gid != i)
            return error_set(err, LEAT_CORRUPT, "the daemon's region table has a wrong entry %u", i);
        if (info->regions[i].node == ws->local_node)
            local = true;
        else
            remote = true;
    }
    ws->all_local = !remote;
    ws->transport = !remote ? "shm" : local ? "shm+tcp" : "tcp";
    return 0;
}

static int map_places(struct leat_ws *ws, int fd, struct leat_error *err)
{
    uint64_t n = ws->info.nregions, at = ws->live->places_offset, bytes = MAX(n, 1u) * sizeof(*ws->places);
    struct stat st;
    if (at == 0) {
        _Atomic uint64_t *own = calloc(1, bytes);
        for (uint32_t g = 0; own && g < n; g++)
            atomic_init(&own[g], live_place(ws->info.regions[g].node, 0));
        ws->places = own;
        ws->places_own = true;
        return own ? 0 : error_set(err, -ENOMEM, "out of memory");
    }
    if (ws->live->nplaces != n || at % (uint64_t)sysconf(_SC_PAGESIZE) || fstat(fd, &st) < 0 ||
        at > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - at)
        return error_set(err, LEAT_CORRUPT, "the daemon's live table does not place the regions of its set");
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)at);
    if (map == MAP_FAILED)
        return error_sys(err, -errno, "cannot map the places of regions");
    ws->places = map;
    return 0;
}

static int describe_source(struct leat_ws *ws)
{
    const char *name = ws->info.name;
    if (name && *name) {
        size_t room = strlen(name) + sizeof("leat://");
        ws->uri = malloc(room);
        if (ws->uri)
            snprintf(ws->uri, room, "leat://%s", name);
    } else {
        ws->uri = strdup(ws->info.uri ? ws->info.uri : "");
    }
    hex_put(ws->fingerprint, ws->index.header->fingerprint, 16);
    return ws->uri ? 0 : -ENOMEM;
}

static int fill_ws(struct leat_ws *ws, struct net_reply *reply, struct leat_error *err)
{
    int rc = proto_ws_get(reply->body.data, reply->body.len, &ws->info);
    if (rc)
        return error_set(err, rc, "the daemon's description of the working set cannot be read");
    if (reply->nfds != 2)
        return error_set(err, LEAT_CORRUPT, "the daemon sent %u descriptors with a working set, not 2",
                         reply->nfds);
    rc = index_map(reply->fds[0], &ws->index, err);
    if (rc)
        return error_prefix(err, rc, "index of the working set");
    rc = map_live(ws, reply->fds[1], err);
    if (!rc)
        rc = check_regions(ws, err);
    if (!rc)
        rc = map_places(ws, reply->fds[1], err);
    if (rc)
        return rc;
    ws->maps = calloc((size_t)ws->info.nregions + 1, sizeof(*ws->maps));
    ws->windows = calloc(WS_WINDOWS_MAX,
                         sizeof(*ws->windows)); /* of any set: what a lost node held comes through it too */
    return !ws->maps || !ws->windows || describe_source(ws) ? error_set(err, -ENOMEM, "out of memory") : 0;
}

int ws_new(struct leat_client *client, struct net_reply *reply, struct leat_ws **ret_ws,
           struct leat_error *err)
{
    struct leat_ws *ws = calloc(1, sizeof(*ws));
    if (!ws)
        return error_set(err, -ENOMEM, "out of memory");
    ws->refs = 1;
    ws->client = client_ref(client);
    tlock_init(&ws->map_lock);
    tlock_init(&ws->read_lock);
    pthread_mutex_init(&ws->path_stats_lock, NULL);
    list_init(&ws->node);
    int rc = fill_ws(ws, reply, err);
    if (rc) {
        ws_unref(ws);
        return rc;
    }
    pthread_mutex_lock(&client->lock);
    list_push_back(&client->sets, &ws->node);
    pthread_mutex_unlock(&client->lock);
    *ret_ws = ws;
    return 0;
}

struct leat_ws *ws_ref(struct leat_ws *ws)
{
    atomic_fetch_add(&ws->refs, 1);
    return ws;
}

void ws_unref(struct leat_ws *ws)
{
    if (!ws || atomic_fetch_sub(&ws->refs, 1) != 1)
        return;
    pthread_mutex_lock(&ws->client->lock);
    list_remove(&ws->node);
    pthread_mutex_unlock(&ws->client->lock);
    gather_free(ws->gather);
    rails_free(ws->rails);
    delivery_free(ws);
    pthread_mutex_destroy(&ws->path_stats_lock);
    for (uint32_t i = 0; ws->maps && i < ws->info.nregions; i++)
        if (ws->maps[i])
            munmap((void *)(uintptr_t)ws->maps[i], ws->info.region_bytes);
    for (uint32_t i = 0; ws->windows && i < WS_WINDOWS_MAX; i++)
        if (ws->windows[i].at)
            munmap((void *)(uintptr_t)ws->windows[i].at, ws->windows[i].bytes);
    if (ws->info.ws)
        client_rpc_post_id(ws->client, PROTO_CLOSE, ws->info.ws);
    if (ws->places_own)
        free((void *)(uintptr_t)ws->places);
    else if (ws->places)
        munmap((void *)(uintptr_t)ws->places, MAX(ws->info.nregions, 1u) * sizeof(*ws->places));
    if (ws->live)
        munmap((void *)(uintptr_t)ws->live, ws->live_mapped);
    if (ws->index.header)
        index_close(&ws->index);
    proto_ws_fini(&ws->info);
    free(ws->maps);
    free(ws->windows);
    free(ws->uri);
    tlock_fini(&ws->map_lock);
    tlock_fini(&ws->read_lock);
    client_unref(ws->client);
    free(ws);
}

/* The URI to send: the daemon's working directory differs from ours, so paths become absolute here. */
int ws_absolute_uri(const char *uri, char **ret_uri, struct leat_error *err)
{
    if (address_of(uri) == ADDRESS_SET) {
        *ret_uri = strdup(uri);
    } else {
        struct dataset_spec spec;
        int rc = dataset_spec_parse(uri, &spec, err);
        if (rc)
            return rc;
        *ret_uri = dataset_spec_format(&spec);
        dataset_spec_free(&spec);
    }
    if (!*ret_uri)
        return error_set(err, -ENOMEM, "out of memory");
    if (strlen(*ret_uri) <= PROTO_STR_MAX)
        return 0;
    free(TAKE_PTR(*ret_uri));
    return error_set(err, LEAT_INVALID, "uri of more than %d bytes", PROTO_STR_MAX);
}

int ws_ask(struct leat_client *client, uint16_t type, const char *head, const char *uri,
           const struct leat_s3_options *s3, struct proto_open *open, const struct client_rpc_how *how,
           struct net_reply *ret_reply, struct leat_error *err)
{
    struct leat_error why;
    AUTO_FREE char *absolute = NULL;
    int rc = ws_absolute_uri(uri, &absolute, err);
    if (!rc)
        rc = access_find(absolute, s3, open, &why, err);
    if (rc)
        return rc;
    open->uri = absolute;
    AUTO_BYTES struct bytes_out body = {0};
    /* Room for all of it at once: a buffer that grows leaves what it held behind. */
    body.len = bytes_room(&body, 64 * KIB) ? 0 : body.len;
    if (head)
        proto_scan_put(&body, &(struct proto_scan){.after = head, .open = *open});
    else
        proto_open_put(&body, open);
    proto_access_fini(&open->access);
    rc = client_rpc_call(client, type, &body, NULL, 0, how, ret_reply, err);
    if (body.data)
        explicit_bzero(body.data, body.len);
    return rc ? access_refused(rc, &why, absolute, err) : 0;
}

/* OPEN and APPEND: the same body, the same reply. */
static int call_open(struct leat_client *client, uint16_t type, const char *uri,
                     const struct leat_open_options *o, unsigned flags, struct leat_ws **ret_ws,
                     struct leat_error *err)
{
    struct proto_open open = {
        .flags = flags, .pool_bytes = o->pool_bytes, .name = (char *)(uintptr_t)(o->name ? o->name : "")};
    /* Scanning a source that has no index takes as long as it takes, while it moves. A deadline of the caller's stays. */
    const struct client_rpc_how how = {.deadline_ns = client_deadline(client, o->timeout_ns),
                                       .progress_extends_ns = o->timeout_ns ? 0 : client->timeout_ns,
                                       .progress = o->progress,
                                       .progress_user = o->progress_user};
    struct net_reply reply;
    int rc = ws_ask(client, type, NULL, uri, o->s3, &open, &how, &reply, err);
    if (rc)
        return rc;
    rc = ws_new(client, &reply, ret_ws, err);
    net_reply_fini(&reply);
    return rc;
}

static int take_open_options(const struct leat_client *client, const char *uri,
                             const struct leat_open_options *options, struct leat_open_options *ret,
                             struct leat_error *err)
{
    *ret = (struct leat_open_options){0};
    if (!client || !uri || !*uri)
        return error_set(err, LEAT_INVALID,
                         !client ? "client is NULL" : "uri is empty: give a path or leat://NAME");
    if (client_forked(client))
        return client_forked_error(err);
    int rc = options_take("leat_open_options", options, offsetof(struct leat_open_options, name), ret,
                          sizeof(*ret), err);
    if (!rc)
        rc = options_flags("leat_open_options", ret->flags,
                           LEAT_OPEN_NO_LOAD | LEAT_OPEN_WAIT | LEAT_OPEN_PUBLIC, err);
    if (rc)
        return rc;
    if (strlen(uri) > PROTO_STR_MAX || (ret->name && strlen(ret->name) > PROTO_STR_MAX))
        return error_set(err, LEAT_INVALID, "uri or name of more than %d bytes", PROTO_STR_MAX);
    return 0;
}

int leat_open(struct leat_client *client, const char *uri, const struct leat_open_options *options,
              struct leat_ws **ret_ws, struct leat_error *err)
{
    struct leat_open_options o;
    int rc = take_open_options(client, uri, options, &o, err);
    if (rc)
        return rc;
    if (!ret_ws)
        return error_set(err, LEAT_INVALID, "ret_ws is NULL");
    struct leat_ws *ws;
    rc = call_open(client, PROTO_OPEN, uri, &o, o.flags & ~LEAT_OPEN_WAIT, &ws, err);
    if (rc)
        return rc;
    if (o.flags & LEAT_OPEN_WAIT)
        rc = leat_ws_wait(ws, o.progress, o.progress_user, o.timeout_ns, err);
    if (rc) {
        ws_unref(ws);
        return rc;
    }
    *ret_ws = ws;
    return 0;
}

int leat_preload(struct leat_client *client, const char *uri, const struct leat_open_options *options,
                 struct leat_ws **ret_ws, struct leat_error *err)
{
    struct leat_open_options o;
    int rc = take_open_options(client, uri, options, &o, err);
    if (rc)
        return rc;
    o.size = sizeof(o);
    o.flags |= LEAT_OPEN_WAIT;
    struct leat_ws *ws;
    rc = leat_open(client, uri, &o, &ws, err);
    if (rc)
        return rc;
    if (ret_ws)
        *ret_ws = ws;
    else
        ws_unref(ws);
    return 0;
}

/* Each sample is there, has failed or is lost. */
static bool is_through(const struct leat_ws *ws)
{
    const struct live_header *live = ws->live;
    return live->resident_samples + live->failed_samples + live->lost_samples >= ws->index.header->nsamples;
}

int leat_append(struct leat_client *client, const char *name, const char *uri,
                const struct leat_open_options *options, uint64_t *ret_length, struct leat_error *err)
{
    struct leat_open_options o;
    int rc = take_open_options(client, uri, options, &o, err);
    if (rc)
        return rc;
    if (!name || !*name)
        return error_set(err, LEAT_INVALID, "only an explicit working set can be appended to: give its name");
    o.name = name;
    struct leat_ws *ws;
    rc = call_open(client, PROTO_APPEND, uri, &o, o.flags & ~LEAT_OPEN_WAIT, &ws, err);
    if (rc)
        return rc;
    if (ret_length)
        *ret_length = leat_ws_length(ws);
    if (o.flags & LEAT_OPEN_WAIT)
        rc = leat_ws_wait(ws, o.progress, o.progress_user, o.timeout_ns, err);
    /* Samples that failed, before or now, are errors of their reads: the version is there, and not to be added twice. */
    if (rc && is_through(ws)) {
        rc = 0;
        if (err)
            *err = (struct leat_error){0};
    }
    ws_unref(ws);
    return rc;
}

void leat_close(struct leat_ws *ws)
{
    if (ws && !client_forked(ws->client))
        ws_unref(ws);
}

/* --- is it still what it was ------------------------------------------------------------------------------------ */

int ws_check_generation(const struct leat_ws *ws, struct leat_error *err)
{
    atomic_thread_fence(memory_order_acquire); /* the bytes were read before the generation is */
    if (likely(atomic_load_explicit(&ws->live->generation, memory_order_acquire) == ws->info.generation) &&
        !atomic_load_explicit(&ws->revoked, memory_order_relaxed))
        return 0;
    return error_set(err, LEAT_STALE, "working set %s was dropped or replaced; open it again", ws->uri);
}

int ws_check(struct leat_ws *ws, struct leat_error *err)
{
    if (unlikely(client_forked(ws->client)))
        return client_forked_error(err);
    if (unlikely(client_rpc_look(ws->client)))
        return client_rpc_dead_error(ws->client, err);
    return ws_check_generation(ws, err);
}

int ws_wait(struct leat_ws *ws, const uint64_t *ids, uint32_t n, const struct client_rpc_how *how,
            struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_wait_put(&body, &(struct proto_wait){.ws = ws->info.ws, .n = n});
    for (uint32_t i = 0; i < n; i++)
        proto_id_put(&body, &(struct proto_id){ids[i]});
    int rc = client_rpc_call(ws->client, PROTO_WAIT, &body, NULL, 0, how, &reply, err);
    if (rc)
        return rc;
    net_reply_fini(&reply);
    return 0;
}

/* The daemon's counters in shared memory. */
static struct leat_progress loading(const struct leat_ws *ws)
{
    bool streamed = ws->info.flags & PROTO_WS_STREAMED; /* only what lies below pinned_end comes to stay */
    uint64_t payload = ws->index.header->payload_bytes;
    return (struct leat_progress){
        .size = sizeof(struct leat_progress),
        .stage = LEAT_STAGE_LOAD,
        .samples_done = ws->live->resident_samples + ws->live->failed_samples,
        .samples_total = streamed ? 0 : ws->index.header->nsamples,
        .bytes_done = ws->live->resident_bytes,
        .bytes_total = streamed ? MIN(payload, ws->info.pinned_end) : payload,
    };
}

/* For all of the set, telling every so often how far it is. */
static int wait_telling(struct leat_ws *ws, leat_progress_fn progress, void *user, uint64_t deadline_ns,
                        struct leat_error *err)
{
    struct leat_client *c = ws->client;
    struct client_rpc_pending *pending = NULL;
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_wait_put(&body, &(struct proto_wait){.ws = ws->info.ws});
    int rc = client_rpc_begin(c, PROTO_WAIT, &body, &pending);
    if (rc)
        return c->dead ? client_rpc_dead_error(c, err)
                       : error_set(err, rc, "cannot ask the daemon to report when all is loaded");
    do {
        uint64_t until = clock_now_ns() + TELL_NS;
        const struct client_rpc_how how = {.deadline_ns = deadline_ns ? MIN(deadline_ns, until) : until};
        rc = client_rpc_wait_any(c, &pending, 1, &how, err);
        const struct leat_progress now = loading(ws);
        if (rc == LEAT_TIMED_OUT && progress(&now, user))
            rc = client_cancelled_error(err);
    } while (rc == LEAT_TIMED_OUT && (!deadline_ns || clock_now_ns() < deadline_ns));
    if (rc < 0) {
        client_rpc_cancel(c, pending);
        return rc;
    }
    rc = client_rpc_take(c, pending, &reply, err);
    if (rc == 0)
        net_reply_fini(&reply);
    return rc;
}

int leat_ws_wait(struct leat_ws *ws, leat_progress_fn progress, void *user, uint64_t timeout_ns,
                 struct leat_error *err)
{
    int rc = ws_check(ws, err);
    if (rc)
        return rc;
    /* A preload may take longer than any one operation: without a deadline of its own the wait has none. */
    const struct client_rpc_how how = {.deadline_ns =
                                           timeout_ns ? client_deadline(ws->client, timeout_ns) : 0};
    return progress ? wait_telling(ws, progress, user, how.deadline_ns, err)
                    : ws_wait(ws, NULL, 0, &how, err);
}

/* --- data connections ----------------------------------------------------------------------------------- */

int ws_brokered(struct net_reply *reply, int *ret_fd, unsigned *ret_version, struct leat_error *err)
{
    struct proto_brokered m;
    int rc = proto_brokered_get(reply->body.data, reply->body.len, &m);
    unsigned version = rc < 0 ? 0 : m.says ? m.version : PROTO_VERSION_MIN;
    if (reply->nfds != 1)
        rc = error_set(err, LEAT_CORRUPT, "the daemon brokered a connection and sent no descriptor");
    else if (!proto_version_common(version, version))
        rc = error_set(err, LEAT_CORRUPT, "the daemon brokered a connection of protocol version %u", version);
    if (rc == 0) {
        *ret_fd = TAKE_FD(reply->fds[0]);
        *ret_version = version;
    }
    net_reply_fini(reply);
    return rc;
}

/* --- regions ------------------------------------------------------------------------------------------------------ */

static struct ws_window_map *stream_window_place(struct leat_ws *ws, uint32_t gid)
{
    return gid & PROTO_STREAM_WINDOW && (gid & ~PROTO_STREAM_WINDOW) < WS_WINDOWS_MAX
               ? &ws->windows[gid & ~PROTO_STREAM_WINDOW]
               : NULL;
}

static bool mapped(struct leat_ws *ws, uint32_t gid)
{
    struct ws_window_map *window = stream_window_place(ws, gid);
    return window ? window->at != NULL : gid < ws->info.nregions && ws->maps[gid];
}

/* Maps fd as region gid and publishes it. The caller holds map_lock. */
static int map_one(struct leat_ws *ws, uint32_t gid, int fd, struct leat_error *err)
{
    struct ws_window_map *window = stream_window_place(ws, gid);
    struct stat st;
    if (mapped(ws, gid))
        return 0;
    if (!window && gid >= ws->info.nregions)
        return error_set(err, LEAT_CORRUPT, "the daemon sent a region %u that cannot be", gid);
    if (fstat(fd, &st) < 0)
        return error_sys(err, -errno, "cannot look at a region");
    uint64_t bytes = window ? (uint64_t)st.st_size : ws->info.region_bytes;
    if ((uint64_t)st.st_size < bytes || !bytes)
        return error_set(err, LEAT_CORRUPT, "a region of %lld bytes where %llu were announced",
                         (long long)st.st_size, (unsigned long long)bytes);
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return error_sys(err, -errno, "cannot map a region of %llu bytes", (unsigned long long)bytes);
    madvise(p, bytes, MADV_HUGEPAGE); /* where the kernel gives them; `page_bytes` reports it */
    if (window) {
        window->bytes = bytes;
        __atomic_store_n(&window->at, p, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(&ws->maps[gid], p, __ATOMIC_RELEASE);
    }
    return 0;
}

static int call_regions(struct leat_ws *ws, uint32_t first, uint32_t count, const struct client_rpc_how *how,
                        struct net_reply *ret_reply, struct leat_error *err)
{
    AUTO_BYTES struct bytes_out body = {0};
    proto_regions_put(&body, &(struct proto_regions){.ws = ws->info.ws, .first = first, .count = count});
    return client_rpc_call(ws->client, PROTO_REGIONS, &body, NULL, 0, how, ret_reply, err);
}

/* Requests regions [first, +count) and maps them. The caller holds map_lock. */
static int fetch_regions(struct leat_ws *ws, uint32_t first, uint32_t count, const struct client_rpc_how *how,
                         struct leat_error *err)
{
    struct net_reply reply;
    int rc = call_regions(ws, first, count, how, &reply, err);
    if (rc)
        return rc;
    struct bytes_in in = bytes_in_of(reply.body.data, reply.body.len);
    struct proto_regions_reply m;
    struct proto_gid region;
    rc = proto_regions_reply_next(&in, &m);
    if (rc < 0)
        error_set(err, rc, "the daemon's list of regions is short");
    else if (m.n != reply.nfds)
        rc = error_set(err, LEAT_CORRUPT, "the daemon sent %u descriptors for %u regions", reply.nfds, m.n);
    for (uint32_t i = 0; !rc && i < m.n; i++) {
        proto_gid_next(&in, &region);
        rc = map_one(ws, region.gid, reply.fds[i], err);
    }
    net_reply_fini(&reply);
    return rc;
}

int ws_map_region(struct leat_ws *ws, uint32_t gid, const struct client_rpc_how *how, struct leat_error *err)
{
    int rc = tlock_take(&ws->map_lock, ws->client, how, "mapping a region", err);
    if (rc)
        return rc;
    if (!ws->maps[gid]) {
        uint32_t first = gid - gid % REGION_RUN;
        rc = fetch_regions(ws, first, MIN(REGION_RUN, ws->info.nregions - first), how, err);
        if (!rc && !ws->maps[gid])
            rc =
                error_set(err, LEAT_STALE, "the daemon does not have region %u of %s any more", gid, ws->uri);
    }
    tlock_give(&ws->map_lock);
    return rc;
}

int ws_window(struct leat_ws *ws, const struct client_rpc_how *how, uint64_t *ret_bytes,
              struct leat_error *err)
{
    int rc = tlock_take(&ws->map_lock, ws->client, how, "mapping the window", err);
    if (rc)
        return rc;
    rc = ws->windows[0].at ? 0 : fetch_regions(ws, PROTO_STREAM_WINDOW, 1, how, err);
    if (!rc)
        *ret_bytes = ws->windows[0].bytes;
    tlock_give(&ws->map_lock);
    return rc;
}

int ws_map_window(struct leat_ws *ws, const struct proto_fetched *fetched, struct net_reply *reply,
                  const struct client_rpc_how *how, struct leat_error *err)
{
    unsigned taken = 0;
    int rc = tlock_take(&ws->map_lock, ws->client, how, "mapping the window", err);
    if (rc)
        return rc;
    for (uint32_t i = 0; !rc && i < fetched->nruns; i++) {
        const struct proto_run *run = &fetched->runs[i];
        const struct ws_window_map *window = stream_window_place(ws, run->gid);
        if (!mapped(ws, run->gid)) /* descriptors, when they come along, are in the order of first use */
            rc = taken < reply->nfds ? map_one(ws, run->gid, reply->fds[taken++], err)
                                     : fetch_regions(ws, run->gid, 1, how, err);
        uint64_t bytes = window ? window->bytes : ws->info.region_bytes;
        if (!rc && (!mapped(ws, run->gid) || run->offset > bytes || run->bytes > bytes - run->offset))
            rc = error_set(err, LEAT_CORRUPT, "the daemon named a staging place that cannot be (region %u)",
                           run->gid);
    }
    tlock_give(&ws->map_lock);
    return rc;
}
