/* SPDX-License-Identifier: Apache-2.0 */
/* v1_status.c: all of a node in one document: its services, its disks, its cold tier, its pool. Missing
 * parts are null. */
#include "serve/admin/admin_internal.h"

#include "base/clock.h"

static json_t *doors_json(struct admin *admin)
{
    struct http_server *server = atomic_load(&admin->server);
    struct http_server_stats s;
    if (!server)
        return json_null();
    http_server_stats(server, &s);
    json_t *listen = json_array();
    for (unsigned i = 0; http_server_address(server, i); i++)
        json_array_append_new(listen, admin_text(http_server_address(server, i)));
    json_t *responses = json_pack("{s:I, s:I, s:I, s:I, s:I}", "2xx", (json_int_t)s.answers[2], "3xx",
                                  (json_int_t)s.answers[3], "4xx", (json_int_t)s.answers[4], "5xx",
                                  (json_int_t)s.answers[5], "aborted", (json_int_t)s.answers[0]);
    json_t *answers = json_copy(responses); /* the old names, for one release */
    json_object_set(answers, "broken_off", json_object_get(answers, "aborted"));
    json_object_del(answers, "aborted");
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "listen", listen,
                     "connections", (json_int_t)s.connections, "busy", (json_int_t)s.busy, "accepted",
                     (json_int_t)s.accepted, "requests", (json_int_t)s.requests, "responses", responses,
                     "answers", answers, "refused", (json_int_t)s.refused, "overload", (json_int_t)s.overload,
                     "timeouts", (json_int_t)s.timeouts, "bytes_in", (json_int_t)s.bytes_in, "bytes_out",
                     (json_int_t)s.bytes_out, "memory_bytes", (json_int_t)s.memory_bytes);
}

static json_t *path_json(const struct store_path_status *p)
{
    json_t *json =
        json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path", admin_text(p->path),
                  "state", p->state == STORE_PATH_OK ? "ok" : "failed", "objects", (json_int_t)p->objects,
                  "bytes", (json_int_t)p->bytes, "total_bytes", (json_int_t)p->total_bytes, "free_bytes",
                  (json_int_t)p->free_bytes, "errors", (json_int_t)p->errors, "corrupt",
                  (json_int_t)p->corrupt, "orphans", (json_int_t)p->orphans, "dirty", (json_int_t)p->dirty,
                  "evicted", (json_int_t)p->evicted, "evicted_bytes", (json_int_t)p->evicted_bytes);
    if (json)
        json_object_set_new(json, "scrub", scrub_json(&p->scrub));
    if (json && p->state != STORE_PATH_OK)
        json_object_set_new(json, "error", admin_text(p->error));
    return json;
}

static json_t *store_json(struct admin *admin)
{
    AUTO_FREE struct store_status *s = malloc(sizeof(*s));
    if (!s)
        return NULL;
    store_status(admin->config.store, s);
    json_t *paths = json_array();
    for (unsigned i = 0; i < s->npaths; i++)
        json_array_append_new(paths, path_json(&s->paths[i]));
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:i, s:I}", "paths", paths, "puts", (json_int_t)s->puts,
                     "gets", (json_int_t)s->gets, "deletes", (json_int_t)s->deletes, "put_bytes",
                     (json_int_t)s->put_bytes, "open_objects", (int)s->open_objects, "buffer_bytes",
                     (json_int_t)s->buffer_bytes);
}

static json_t *tier_json(struct admin *admin)
{
    struct tier_stats s;
    tier_stats(admin->config.tier, &s);
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i}", "fetches",
                             (json_int_t)s.fetches, "fetched_bytes", (json_int_t)s.fetched_bytes,
                             "fetch_failed", (json_int_t)s.fetch_failed, "joined", (json_int_t)s.joined,
                             "checks", (json_int_t)s.checks, "refreshed", (json_int_t)s.refreshed, "pushes",
                             (json_int_t)s.pushes, "pushed_bytes", (json_int_t)s.pushed_bytes, "push_failed",
                             (json_int_t)s.push_failed, "fetching", (int)s.fetching, "fetch_waiting",
                             (int)s.fetch_waiting, "push_waiting", (int)s.push_waiting);
    if (json)
        json_object_set_new(json, "push_error", s.push_error[0] ? admin_text(s.push_error) : json_null());
    return json;
}

/* As `leat status` has it; an error of the pool's is a field, so that the rest is still there. */
static json_t *pool_json(struct admin_task *v)
{
    const struct admin_pool *pool = v->admin->config.pool;
    AUTO_FREE char *text = NULL;
    struct leat_error err = {0};
    if (!pool)
        return json_null();
    if (pool->query(pool->user, LEAT_QUERY_STATUS, NULL, v->sees_all, &text, &err) < 0)
        return json_pack("{s:o}", "error", admin_text(err.message));
    return json_loads(text, 0, NULL);
}

int v1_status(struct admin_task *v)
{
    struct admin *admin = v->admin;
    json_t *jobs = jobs_array(admin->config.jobs);
    v->out =
        json_pack("{s:o, s:s, s:f, s:o, s:o, s:o, s:o, s:o}", "node", admin_text(admin->config.node_name),
                  "version", admin->config.version, "uptime_seconds",
                  (double)(clock_now_ns() - admin->started_ns) / NS_PER_S, "http", doors_json(admin), "store",
                  store_json(admin), "tier", tier_json(admin), "tier_jobs", jobs, "pool", pool_json(v));
    return v->out ? 0 : -ENOMEM;
}

/* It can serve: it does not end, a disk at least works, the buckets are known, and the pool answers. */
int v1_ready(struct admin_task *v)
{
    struct admin *admin = v->admin;
    v->type = "text/plain; charset=utf-8";
    if (atomic_load(&admin->server) && http_server_stopping(atomic_load(&admin->server)))
        return error_set(&v->err, -ENOMEM, "this server ends");
    AUTO_FREE struct store_status *s = malloc(sizeof(*s));
    unsigned good = 0;
    if (!s)
        return -ENOMEM;
    store_status(admin->config.store, s);
    for (unsigned i = 0; i < s->npaths; i++)
        good += s->paths[i].state == STORE_PATH_OK;
    if (good == 0)
        return error_set(&v->err, -ENOMEM, "no disk of the store works");
    if (s->damaged_buckets)
        return error_set(&v->err, -ENOMEM,
                         "%u buckets cannot be served: their descriptions are damaged, and the server's log "
                         "names them; restore them from a backup, or create them again as an administrator",
                         s->damaged_buckets);
    if (admin->config.pool) {
        AUTO_FREE char *text = NULL;
        if (admin->config.pool->query(admin->config.pool->user, LEAT_QUERY_LIST, NULL, false, &text,
                                      &v->err) < 0)
            return -ENOMEM; /* 503, with the pool's own words */
    }
    http_put(&v->text, "ready\n");
    return 0;
}
