/* SPDX-License-Identifier: Apache-2.0 */
/* Administration of the pool: list, drop, verify, stop. */
#include "daemon/server_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "leat/leat.h"
#include "pool/set/wset.h"

#define DROP_FOREVER_NS (365ull * 24 * 3600 * NS_PER_S)

static struct server_view view_of(struct server *s)
{
    return (struct server_view){.pool = s->pool,
                                .times = &s->times,
                                .clients = s->nclients,
                                .requests = s->requests,
                                .rejected = s->rejected,
                                .socket = s->config.socket,
                                .listen = s->config.listen,
                                .node_name = s->config.node_name,
                                .program = s->config.program,
                                .started_ns = s->started_ns,
                                .credits = &s->credits,
                                .all_clients = &s->clients};
}

int server_query(struct server *s, uint32_t query, const char *arg, bool all, char **ret_text,
                 struct leat_error *err)
{
    struct server_view view = view_of(s);
    uint32_t id = all || !s->pool->config.opener.system ? 0 : WSET_NOBODY;
    return report_query(&view, query, arg, id, id, ret_text, err);
}

static int still_used(const struct wset *ws, struct leat_error *err)
{
    return error_set(err, LEAT_BUSY, "%u process%s still %s working set %s: try later, or drop it by force",
                     ws->leases, ws->leases == 1 ? "" : "es", ws->leases == 1 ? "uses" : "use",
                     ws->name[0] ? ws->name : ws->spec);
}

int server_drop(struct server *s, const char *name, bool force, struct leat_error *err)
{
    struct wset *ws = pool_find(s->pool, name, 0, 0);
    if (!ws)
        return error_set(err, LEAT_NOT_FOUND, "no working set '%s' in the pool: see `leat ls`", name);
    if (ws->leases > 0 && !force)
        return still_used(ws, err);
    pool_drop(s->pool, ws, force ? POOL_DROP_FORCE : POOL_DROP);
    return 0;
}

int requests_query(struct client *c, struct conn_message *m, struct leat_error *err)
{
    AUTO_MESSAGE(query) q;
    if (proto_query_get(m->body, m->frame.body_bytes, &q) < 0)
        return LEAT_CORRUPT;
    struct server_view view = view_of(c->server);
    AUTO_MESSAGE(query_reply) answer = {0};
    int rc = report_query(&view, q.query, q.arg, c->uid, c->gid, &answer.text, err);
    if (rc < 0)
        return rc;
    AUTO_BYTES struct bytes_out body = {0};
    proto_query_reply_put(&body, &answer);
    return requests_reply(c, m, &body, NULL, 0);
}

static void drop_timeout(struct loop_timer *timer)
{
    struct pending *p = container_of(timer, struct pending, timer);
    struct leat_error err;
    still_used(p->ws, &err);
    pending_refuse(p, &err);
}

int requests_drop(struct client *c, struct conn_message *m, struct leat_error *err)
{
    AUTO_MESSAGE(drop) d;
    if (proto_drop_get(m->body, m->frame.body_bytes, &d) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = pool_find(c->server->pool, d.name, c->uid, c->gid);
    /* Which private sources others have open is no one else's to learn. */
    if (!ws || !wset_allows(ws, c->uid, c->gid))
        return error_set(err, LEAT_NOT_FOUND, "no working set '%s' in the pool: see `leat ls`", d.name);
    if (c->uid != ws->owner_uid && c->uid != 0)
        return error_set(err, LEAT_DENIED, "working set '%s' belongs to another user", d.name);
    if (d.flags & LEAT_DROP_FORCE) {
        pool_drop(c->server->pool, ws, POOL_DROP_FORCE);
        return requests_reply(c, m, NULL, NULL, 0);
    }
    struct pending *p = pending_new(c, &m->frame, ws, PENDING_DROP, err);
    if (!p)
        return err->code;
    if (pending_drop_advance(p))
        return 0;
    p->timer.fire = drop_timeout;
    loop_timer_set(c->server->loop, &p->timer, clock_now_ns() + MIN(d.wait_ns, DROP_FOREVER_NS));
    return 0;
}

int requests_stop(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_stop stop;
    if (proto_stop_get(m->body, m->frame.body_bytes, &stop) < 0)
        return LEAT_CORRUPT;
    struct server *s = c->server;
    if (s->pool->config.opener.system && c->uid != 0 && c->uid != geteuid())
        return error_set(err, LEAT_DENIED, "only its own user or root may stop a system daemon");
    if (!stop.force && s->nclients > 1)
        return error_set(err, LEAT_BUSY,
                         "%u other process%s use%s this daemon: stop them first, or stop it by force",
                         s->nclients - 1, s->nclients == 2 ? "" : "es", s->nclients == 2 ? "s" : "");
    requests_reply(c, m, NULL, NULL, 0);
    log_info("stopped by pid %d", c->pid);
    loop_stop(s->loop);
    return 0;
}

struct verifying {
    struct pool *pool;
    uint64_t client; /* its serial: it may be gone */
    uint64_t id;
    uint16_t type;
};

static void verify_progress(void *user, uint64_t done, uint64_t total)
{
    struct verifying *v = user;
    struct client *c = client_alive(v->pool, v->client);
    if (!c)
        return;
    requests_progress(
        c, v->id,
        &(struct proto_progress){.stage = LEAT_STAGE_VERIFY, .samples_done = done, .samples_total = total});
}

static void verify_done(void *user, const struct verify_result *result)
{
    struct verifying *v = user;
    struct client *c = client_alive(v->pool, v->client);
    struct leat_error err;
    if (c)
        c->nverifying--;
    if (c && result->status < 0) {
        error_set(&err, result->status, "%s", result->first_bad);
        conn_send_error(c->session.conn, v->type, v->id, &err);
    } else if (c) {
        AUTO_BYTES struct bytes_out body = {0};
        proto_verify_reply_put(
            &body, &(struct proto_verify_reply){.bad = result->bad, .first_bad = result->first_bad});
        conn_send(c->session.conn, PROTO_REPLY, v->type, v->id, 0, &body, NULL, 0);
    }
    free(v);
}

int requests_verify(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_verify asked;
    if (proto_verify_get(m->body, m->frame.body_bytes, &asked) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = client_handle(c, asked.ws, err);
    if (!ws)
        return LEAT_STALE;
    if (c->nverifying > 0)
        return error_set(err, LEAT_BUSY, "this process runs a verification already");
    struct verifying *v = malloc(sizeof(*v));
    int rc = -ENOMEM;
    if (v) {
        *v = (struct verifying){c->server->pool, c->session.serial, m->frame.id, m->frame.type};
        rc = verify_start(c->server->pool, ws, asked.flags & LEAT_VERIFY_SOURCE, verify_progress, verify_done,
                          v);
    }
    if (rc < 0) {
        free(v);
        return rc == LEAT_BUSY ? error_set(err, rc, "several verifications run already: try later")
                               : error_sys(err, rc, "cannot start a verification");
    }
    c->nverifying++;
    return 0;
}
