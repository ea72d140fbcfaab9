/* SPDX-License-Identifier: Apache-2.0 */
/* admin_internal.h: between admin.c (authentication, choice of the route), v1_*.c (the routes), metrics.c
 * and page.c. */
#ifndef SERVE_ADMIN_INTERNAL_H
#define SERVE_ADMIN_INTERNAL_H

#include <jansson.h>
#include <pthread.h>

#include "serve/admin/admin.h"

struct admin {
    struct admin_config config;
    _Atomic(struct http_server *) server;
    uint64_t started_ns;
    struct job_kind scrub;
    pthread_mutex_t
        scrub_lock;   /* a pass begins, or is stopped: so that none begins for a job that was aborted */
    char policy[320]; /* the page's Content-Security-Policy */
};

#define NAME_MAX_BYTES 1024u

/* One request of /v1, or of /metrics and /readyz: its answer is made by a worker. */
struct admin_task {
    struct admin *admin;
    struct http_request *req; /* NULL: over */
    struct http_work work;
    bool working;
    const struct admin_route *route;
    struct bytes_out body; /* of the request */

    /* For the route, which sets `out` or `text`, or fails. */
    char name[NAME_MAX_BYTES + 1]; /* the part of the path at {name}, decoded */
    char query[512];               /* whole: a longer one is refused */
    json_t *in;                    /* the body, where there was one */
    unsigned status;
    json_t *out;
    struct bytes_out text;
    const char *type; /* of text */
    bool openmetrics;
    bool sees_all; /* of the pool: the client is authenticated */
    struct leat_error err;
};

struct admin_route {
    const char *method, *path;
    /* On a worker. 0: v->status (200 unless set) and v->out or v->text; else an error with a message. */
    int (*run)(struct admin_task *v);
    bool changes; /* it changes something */
    bool wants_body;
    bool hidden; /* not of /v1 */
};

/* v1_status.c */
int v1_status(struct admin_task *v);
int v1_ready(struct admin_task *v);
/* v1_buckets.c */
int v1_buckets(struct admin_task *v);
int v1_bucket(struct admin_task *v);
int v1_bucket_put(struct admin_task *v);
int v1_bucket_delete(struct admin_task *v);
/* v1_jobs.c */
int v1_jobs(struct admin_task *v);
int v1_job(struct admin_task *v);
int v1_job_start(struct admin_task *v);
int v1_job_cancel(struct admin_task *v);
/* The jobs as an array; NULL: no memory. */
json_t *jobs_array(struct jobs *jobs);
/* v1_scrub.c */
int v1_scrub(struct admin_task *v);
int v1_scrub_start(struct admin_task *v);
int v1_scrub_stop(struct admin_task *v);
void scrub_register(struct admin *admin);
/* Stops a pass that was asked for, unless a job runs that asks for it. */
void scrub_settle(struct admin *admin);
/* Of one path; NULL: no memory. */
json_t *scrub_json(const struct store_scrub_status *s);
/* v1_sets.c */
int v1_sets(struct admin_task *v);
int v1_set(struct admin_task *v);
int v1_set_drop(struct admin_task *v);
/* metrics.c */
int metrics_all(struct admin_task *v);
/* Prometheus's text 0.0.4 as OpenMetrics 1.0: families of counters lose their "_total", "# EOF" ends it. */
void metrics_to_openmetrics(const char *text, size_t len, struct bytes_out *out);

/* page.c */
int page_policy(char *out, size_t cap);
void page_answer(struct admin *admin, struct http_request *req);

/* made at build: tools/embed */
extern const unsigned char admin_page_html[], admin_openapi_json[];
extern const size_t admin_page_html_len, admin_openapi_json_len;

/* "not here" of a server without a pool. */
int admin_none(struct admin_task *v, const char *what);
/* Bytes of a name as JSON can have them: what is no UTF-8 is escaped. */
json_t *admin_text(const char *s);

#endif
