/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h: the daemon's listeners: the unix socket for the processes of this host, and TCP for other hosts where the
 * configuration says `listen`. Speaks wire/leat/proto.h, turns requests into calls of pool.h. Control loop's thread.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "base/base.h"
#include "base/histogram.h"
#include "pool/pool.h"

struct loop;
struct server;

struct server_config {
    const char
        *socket; /* path of the unix socket; a system daemon's (pool_config.opener) is open to all users */
    const char *listen; /* "host:port[,host:port]", one for each rail, or NULL */
    const void *token;  /* needed with listen */
    size_t token_len;
    const char *node_name;
    uint64_t linger_ns;  /* a private daemon ends this long after its last client; 0: never */
    const char *program; /* "leatd 0.1.0", for status */
};

int server_new(struct loop *loop, struct pool *pool, const struct server_config *config,
               struct server **ret_server, struct leat_error *err);
/* Closes every connection; the socket file goes. NULL is fine. */
void server_free(struct server *server);

/*
 * Control loop. LEAT_QUERY_* and DROP for the daemon's own listeners, which check permission. `all`: every
 * set and job is visible; else a system daemon shows public sets only, and jobs that read these. *ret_text is
 * the caller's. server_drop does not wait: LEAT_BUSY.
 */
int server_query(struct server *server, uint32_t query, const char *arg, bool all, char **ret_text,
                 struct leat_error *err);
int server_drop(struct server *server, const char *name, bool force, struct leat_error *err);

/* JSON or Prometheus text of LEAT_QUERY_*, for a caller: daemon/status.c. Caller frees. */
/* How long waiting requests were open, on the control loop. */
struct server_times {
    struct histogram open, wait, fetch;
};

struct server_view {
    struct pool *pool;
    struct server_times *times;
    unsigned clients;
    uint64_t requests, rejected;
    const char *socket, *listen, *node_name, *program;
    uint64_t started_ns;
    const struct list *credits, *all_clients;
};
int report_query(const struct server_view *view, uint32_t query, const char *arg, uint32_t uid, uint32_t gid,
                 char **ret_text, struct leat_error *err);
/* metrics.c; NULL: no memory. The caller frees. */
char *report_metrics(const struct server_view *view);
/* Of streamed sets, and of scans. */
uint64_t report_windows_bytes(const struct pool *pool);

/* The bytes that processes of this user (0: of all) may have in flight, rail by rail, and their measurements.
 * A new reference, or NULL. */
struct json_t;
struct json_t *credits_json(const struct list *credits, uint32_t uid);
/* The progress that loaders reported, where this caller may see their sets. A new reference, or NULL. */
struct json_t *loaders_json(const struct list *clients, uint32_t uid, uint32_t gid);

#endif
