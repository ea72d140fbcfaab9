/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan_requests.c: requests of clients for scans (scan.h): SCAN begins one, SCAN_NEXT takes what is there, or
 * waits, SCAN_END releases it, as does the end of the connection. One SCAN_NEXT of a scan waits at a time; a
 * later one replaces it, since its requester has cancelled.
 */
#include "daemon/server_internal.h"

#include "dataset/dataset.h"
#include "pool/source/access.h"
#include "pool/pool_internal.h"
#include "pool/scan.h"

struct client_scan {
    struct list node; /* client.scans */
    struct client *client;
    struct pool_scan *scan;
    uint64_t id;
    struct proto_frame asked; /* the SCAN_NEXT that waits; id 0: none */
    uint64_t from, released;
};

static struct client_scan *scan_of(struct client *c, uint64_t id)
{
    list_for_each (node, &c->scans) {
        struct client_scan *s = container_of(node, struct client_scan, node);
        if (s->id == id)
            return s;
    }
    return NULL;
}

static void scan_close(struct client_scan *s)
{
    list_remove(&s->node);
    pool_scan_end(s->scan);
    free(s);
}

void scans_client_gone(struct client *c)
{
    list_for_each_safe (node, &c->scans)
        scan_close(container_of(node, struct client_scan, node));
}

/* --- beginning ------------------------------------------------------------------------------------------------------------------ */

static void advanced(void *user);

/* With the same permission as for an OPEN; it is not remembered for sets. */
static int access_for(struct client *c, struct proto_open *open, struct access **ret_access,
                      struct leat_error *err)
{
    struct pool *pool = c->server->pool;
    struct open_request r = {.uid = c->uid, .gid = c->gid};
    struct dataset_spec spec;
    list_init(&r.node);
    int rc = dataset_spec_parse(open->uri, &spec, err);
    if (rc < 0)
        return rc;
    if (spec.n != 1 || spec.sources[0].field || !dataset_has_lists(spec.sources[0].uri))
        rc = error_set(err, LEAT_UNSUPPORTED,
                       "%.300s: a scan reads what lies below one s3://bucket/prefix or "
                       "store://bucket/prefix; anything else "
                       "is opened",
                       open->uri);
    if (rc == 0 && open->has_access && access_new(&open->access, !pool->config.opener.system, &r.access) < 0)
        rc = error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = access_cache_take(pool, &r, &spec, open->uri, err);
    access_cache_opened(pool, &r, NULL);
    dataset_spec_free(&spec);
    if (rc < 0)
        access_unref(r.access);
    else
        *ret_access = r.access;
    return rc;
}

static int scan_begin(struct client *c, struct proto_open *open, const char *after,
                      struct client_scan **ret_scan, struct leat_error *err)
{
    struct access *access = NULL;
    int rc = access_for(c, open, &access, err);
    struct client_scan *s = rc == 0 ? calloc(1, sizeof(*s)) : NULL;
    if (rc == 0 && !s)
        rc = error_set(err, -ENOMEM, "out of memory");
    if (rc == 0) {
        *s = (struct client_scan){.client = c, .id = c->next_id++};
        list_init(&s->node);
        struct pool_scan_spec spec = {.uid = c->uid,
                                      .uri = open->uri,
                                      .after = after,
                                      .window_bytes = open->pool_bytes,
                                      .access = access,
                                      .advanced = advanced,
                                      .user = s};
        rc = pool_scan_new(c->server->pool, &spec, &s->scan, err);
    }
    access_unref(access);
    if (rc < 0) {
        free(s);
        return rc;
    }
    list_push_back(&c->scans, &s->node);
    *ret_scan = s;
    return 0;
}

int requests_scan(struct client *c, struct conn_message *m, struct leat_error *err)
{
    AUTO_MESSAGE(scan) asked;
    struct client_scan *s;
    if (proto_scan_get(m->body, m->frame.body_bytes, &asked) < 0)
        return LEAT_CORRUPT;
    int rc = scan_begin(c, &asked.open, asked.after, &s, err);
    explicit_bzero((void *)(uintptr_t)m->body, m->frame.body_bytes); /* it may hold keys */
    if (rc < 0)
        return rc;
    const struct region *window = pool_scan_window(s->scan);
    AUTO_BYTES struct bytes_out body = {0};
    proto_scan_reply_put(&body, &(struct proto_scan_reply){.id = s->id, .window_bytes = window->bytes});
    return requests_reply(c, m, &body, &window->fd_ro, 1);
}

/* --- advancing ------------------------------------------------------------------------------------------ */

static void scan_answer(struct client_scan *s)
{
    struct proto_scanned m = {0};
    struct leat_error err = {0};
    int rc = pool_scan_take(s->scan, s->from, s->released, &m, &err);
    if (rc == 0)
        return;
    struct proto_frame asked = s->asked;
    s->asked.id = 0;
    if (rc < 0) {
        conn_send_error(s->client->session.conn, asked.type, asked.id, &err);
        return;
    }
    AUTO_BYTES struct bytes_out body = {0};
    proto_scanned_put(&body, &m);
    free(m.objects);
    conn_send(s->client->session.conn, PROTO_REPLY, PROTO_SCAN_NEXT, asked.id, 0, &body, NULL, 0);
}

static void advanced(void *user)
{
    struct client_scan *s = user;
    if (s->asked.id)
        scan_answer(s);
}

static void give_up(struct client_scan *s)
{
    struct leat_error err;
    struct proto_frame asked = s->asked;
    s->asked.id = 0;
    error_set(&err, -ECANCELED, "cancelled");
    conn_send_error(s->client->session.conn, asked.type, asked.id, &err);
}

int requests_scan_next(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_scan_next next;
    if (proto_scan_next_get(m->body, m->frame.body_bytes, &next) < 0 || m->frame.id == 0)
        return LEAT_CORRUPT;
    struct client_scan *s = scan_of(c, next.id);
    if (!s)
        return error_set(err, LEAT_STALE, "this scan is not open (any more)");
    if (s->asked.id)
        give_up(s);
    s->asked = m->frame;
    s->from = next.from;
    s->released = next.released;
    scan_answer(s);
    return 0;
}

void scans_cancel(struct client *c, uint64_t id)
{
    list_for_each (node, &c->scans) {
        struct client_scan *s = container_of(node, struct client_scan, node);
        if (s->asked.id == id && id) {
            give_up(s);
            return;
        }
    }
}

int requests_scan_end(struct client *c, struct conn_message *m, struct leat_error *err)
{
    struct proto_id scan;
    if (proto_id_get(m->body, m->frame.body_bytes, &scan) < 0)
        return LEAT_CORRUPT;
    struct client_scan *s = scan_of(c, scan.id);
    if (s)
        scan_close(s);
    return 0;
}
