/* SPDX-License-Identifier: Apache-2.0 */
/* query.c: looking after the pool: one call to the daemon each. Errors are the daemon's, passed on as they are. */
#include "client/client.h"

#include "net/rdma.h"

#include <jansson.h>
#include <strings.h>

#include "base/ledger.h"
#include "wire/json_whole.h"

static int check_client(const struct leat_client *client, struct leat_error *err)
{
    if (!client)
        return error_set(err, LEAT_INVALID, "client is NULL");
    return client_forked(client) ? client_forked_error(err) : 0;
}

/* A call whose reply is ignored. */
static int call_plain(struct leat_client *client, uint16_t type, struct bytes_out *body, uint64_t deadline_ns,
                      struct leat_error *err)
{
    struct net_reply reply;
    int rc = client_rpc_call(client, type, body, NULL, 0,
                             &(struct client_rpc_how){.deadline_ns = deadline_ns}, &reply, err);
    bytes_out_fini(body);
    if (!rc)
        net_reply_fini(&reply);
    return rc;
}

int leat_query(struct leat_client *client, enum leat_query query, const char *arg, char **ret_text,
               struct leat_error *err)
{
    int rc = check_client(client, err);
    if (rc)
        return rc;
    if (!ret_text)
        return error_set(err, LEAT_INVALID, "ret_text is NULL");
    AUTO_FREE char *absolute = NULL;
    if (query == LEAT_QUERY_STAT && arg && (strpbrk(arg, "/=") || strncasecmp(arg, "file:", 5) == 0)) {
        rc = ws_absolute_uri(arg, &absolute, err); /* no name has these */
        if (rc)
            return rc;
        arg = absolute;
    }
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_query_put(&body, &(struct proto_query){.query = query, .arg = arg});
    const struct client_rpc_how how = {.deadline_ns = client_deadline(client, 0)};
    rc = client_rpc_call(client, PROTO_QUERY, &body, NULL, 0, &how, &reply, err);
    if (rc)
        return rc;
    struct bytes_in in = bytes_in_of(reply.body.data, reply.body.len);
    struct proto_query_reply m;
    rc = proto_query_reply_next(&in, &m);
    net_reply_fini(&reply);
    if (rc)
        return error_set(err, rc, "the daemon's answer cannot be read");
    *ret_text = m.text;
    return 0;
}

void leat_free(void *text)
{
    free(text);
}

int leat_drop(struct leat_client *client, const char *name, unsigned flags, uint64_t timeout_ns,
              struct leat_error *err)
{
    int rc = check_client(client, err);
    if (rc)
        return rc;
    if (!name || !*name)
        return error_set(err, LEAT_INVALID, "which working set is to be dropped? give its name");
    rc = options_flags("leat_drop", flags, LEAT_DROP_FORCE, err);
    if (rc)
        return rc;
    uint64_t wait_ns = timeout_ns ? timeout_ns : client->timeout_ns, allowed;
    /* The daemon waits that long for leases; its answer may take a little longer. */
    if (add_overflows(wait_ns, client->timeout_ns, &allowed))
        allowed = UINT64_MAX;
    struct bytes_out body = {0};
    proto_drop_put(&body, &(struct proto_drop){.flags = flags, .wait_ns = wait_ns, .name = name});
    return call_plain(client, PROTO_DROP, &body, client_deadline(client, allowed), err);
}

int leat_verify(struct leat_ws *ws, unsigned flags, leat_progress_fn progress, void *user, uint64_t *ret_bad,
                struct leat_error *err)
{
    if (!ws)
        return error_set(err, LEAT_INVALID, "ws is NULL");
    int rc = options_flags("leat_verify", flags, LEAT_VERIFY_SOURCE, err);
    if (!rc)
        rc = ws_check(ws, err);
    if (rc)
        return rc;
    AUTO_BYTES struct bytes_out body = {0};
    struct net_reply reply;
    proto_verify_put(&body, &(struct proto_verify){.ws = ws->info.ws, .flags = flags});
    rc = client_rpc_call(ws->client, PROTO_VERIFY, &body, NULL, 0,
                         &(struct client_rpc_how){.progress = progress, .progress_user = user}, &reply, err);
    if (rc)
        return rc;
    struct bytes_in in = bytes_in_of(reply.body.data, reply.body.len);
    AUTO_MESSAGE(verify_reply) m;
    rc = proto_verify_reply_next(&in, &m);
    net_reply_fini(&reply);
    if (rc)
        return error_set(err, rc, "the daemon's answer cannot be read");
    if (ret_bad)
        *ret_bad = m.bad;
    return m.bad ? error_set(err, LEAT_CORRUPT, "%llu sample%s of %s %s bad, the first is %s",
                             (unsigned long long)m.bad, m.bad == 1 ? "" : "s", ws->uri,
                             m.bad == 1 ? "is" : "are", m.first_bad)
                 : 0;
}

int leat_stop(struct leat_client *client, int force, struct leat_error *err)
{
    int rc = check_client(client, err);
    if (rc)
        return rc;
    struct bytes_out body = {0};
    proto_stop_put(&body, &(struct proto_stop){force ? 1 : 0});
    return call_plain(client, PROTO_STOP, &body, client_deadline(client, 0), err);
}

int leat_counters(char **ret_json, struct leat_error *err)
{
    if (!ret_json)
        return error_set(err, LEAT_INVALID, "ret_json is NULL");
    const struct client_counters *c = &client_counters;
    const struct {
        const char *name;
        uint64_t value;
    } values[] = {
        {"batches", c->batches},       {"samples", c->samples},
        {"bytes", c->bytes},           {"waits", c->waits},
        {"corrupt", c->corrupt},       {"stale", c->stale},
        {"timeouts", c->timeouts},     {"quarantined", c->quarantined},
        {"reconnects", c->reconnects}, {"fetched_bytes", c->fetched_bytes},
    };
    json_t *root = json_object(), *ledger = json_object();
    int bad = !root || !ledger;
    for (unsigned i = 0; !bad && i < ARRAY_LEN(values); i++)
        bad = json_object_set_new(root, values[i].name, json_integer((json_int_t)values[i].value));
    for (unsigned i = 0; !bad && i < LEDGER_REASONS; i++)
        bad = json_object_set_new(ledger, ledger_names[i], json_integer((json_int_t)ledger_bytes[i]));
    if (!bad)
        bad = json_object_set(root, "copied_bytes", ledger);
    const struct net_rdma_total *totals;
    unsigned ntotals = net_rdma_totals(&totals);
    json_t *rails = json_object();
    for (unsigned i = 0; !bad && i < ntotals; i++)
        bad = json_object_set_new(rails, totals[i].name,
                                  json_pack("{s:I, s:I}", "bytes", (json_int_t)totals[i].bytes, "failures",
                                            (json_int_t)totals[i].failures));
    if (!bad)
        bad = json_object_set(root, "rails", rails);
    json_decref(rails);
    json_t *path_stats = json_object();
    bad = bad || !path_stats;
    for (unsigned i = 0; !bad && i < DELIVERIES; i++)
        bad = json_object_set_new(path_stats, delivery_names[i], json_integer((json_int_t)c->delivered[i]));
    if (!bad)
        bad = json_object_set(root, "delivered", path_stats);
    json_decref(path_stats);
    char *text = bad ? NULL : json_whole(root);
    json_decref(ledger);
    json_decref(root);
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    *ret_json = text;
    return 0;
}
