/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.h: the state of a node, and its administration:
 *
 *   GET /healthz, /readyz      it lives; it can serve                      /                  a page for people
 *   GET /metrics               for Prometheus, also as OpenMetrics         /v1/...            JSON, described by /v1/openapi.json
 *
 * Access: with a token, clients that send it ("Authorization: Bearer ..."), and processes of the same user (or root) over a unix socket.
 * Without one, /v1 and /metrics answer such processes, and reads of other processes on this host. /healthz, /readyz and the page itself, which
 * holds no data, are for everybody. No page of another site may request more: see README.md of the folder above.
 */
#ifndef SERVE_ADMIN_H
#define SERVE_ADMIN_H

#include <leat/leat.h>

#include "http/server/http_server.h"
#include "http/server/workers.h"
#include "objects/objects.h"
#include "http/server/site.h"
#include "jobs/jobs.h"
#include "objects/tier/tier.h"

/* A pool of memory beside the store, in the same process. Calls come from workers and may block. */
struct admin_pool {
    void *user;
    /* JSON, or Prometheus text, as leat_query gives it; `all`: for a client that may see all sets and
     * jobs. *ret_text is the caller's to free. */
    int (*query)(void *user, enum leat_query query, const char *arg, bool all, char **ret_text,
                 struct leat_error *err);
    /* LEAT_BUSY: it is in use, and not `force`. */
    int (*drop)(void *user, const char *name, bool force, struct leat_error *err);
};

/* All of it is the caller's and outlives the admin. */
struct admin_config {
    struct objects *objects;
    struct tier *tier;             /* for its jobs and numbers */
    struct store *store;           /* for the state of this node's disks, and the scrub */
    struct jobs *jobs;             /* gets the kind "scrub" */
    const struct admin_pool *pool; /* NULL: none */
    const struct site *site;
    struct http_workers *workers;
    const char *token; /* NULL: none */
    const char *node_name;
    const char *version; /* of the program */
};

struct admin;
int admin_new(const struct admin_config *config, struct admin **ret_admin, struct leat_error *err);
void admin_free(struct admin *admin); /* after the server and the workers; NULL is fine */
/* After jobs_begin: ends a scrub that the store remembers, and no job asks for. Waits for the disk. */
void admin_begin(struct admin *admin);
/* Whose connections are counted. Before it, there are none in the status. */
void admin_watch(struct admin *admin, struct http_server *server);

/* Is it one of the paths above? "/" only for browsers (GET, text/html, not signed for S3). */
bool admin_wants(const struct http_request *req);
/* A handler's `request`, for what it wants. */
void admin_request(struct admin *admin, struct http_request *req);
/* A handler's `refuse`, for its own targets; false: another handler's. */
bool admin_refuse(const struct http_refusal *refusal, struct bytes_out *headers, struct bytes_out *body);

/* The routes of /v1, for a test to compare with its description: method and path of route i, "{name}" for
 * what varies; false: no such. */
bool admin_route(unsigned i, const char **ret_method, const char **ret_path);

#endif
