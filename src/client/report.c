/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c: a loader reports its progress to the daemon. A frame without an answer, sent only if the socket
 * takes it now: the next frame has the figures of one that was left out.
 */
#include "client/client.h"

#include <stdio.h>

/* Figures of the caller's that are no numbers, or less than nothing, are nothing. */
static uint64_t whole(double value, double unit)
{
    double scaled = value * unit;
    return scaled > 0 && scaled < 1e18 ? (uint64_t)scaled : 0;
}

/* A character that is cut in two is for the daemon to escape. */
static void cut(char *to, size_t cap, const char *text)
{
    snprintf(to, cap, "%.*s", (int)cap - 1, text ? text : "");
}

int leat_ws_report(struct leat_ws *ws, const struct leat_report *report, struct leat_error *err)
{
    struct leat_report o;
    if (!ws || !report)
        return error_set(err, LEAT_INVALID, "%s is NULL", ws ? "report" : "ws");
    if (client_forked(ws->client))
        return client_forked_error(err);
    int rc = options_take("leat_report", report, offsetof(struct leat_report, title), &o, sizeof(o), err);
    if (!rc)
        rc = options_flags("leat_report", o.flags, LEAT_REPORT_ENDED, err);
    if (rc)
        return rc;
    o.world_size = MAX(o.world_size, 1u);
    if (o.rank >= o.world_size)
        return error_set(err, LEAT_INVALID, "rank %u of a world of %u", o.rank, o.world_size);
    struct proto_report m = {.ws = ws->info.ws,
                             .loader = o.loader,
                             .flags = o.flags,
                             .verdict = (uint32_t)o.verdict,
                             .rank = o.rank,
                             .world_size = o.world_size,
                             .waiting_permille = (uint32_t)whole(MIN(o.waiting, 1.0), 1000),
                             .epoch = o.epoch,
                             .samples = o.samples,
                             .length = o.length,
                             .batch_samples = o.batch_samples,
                             .step_samples = o.step_samples,
                             .total_samples = o.total_samples,
                             .total_bytes = o.total_bytes,
                             .order = o.order,
                             .samples_per_ks = whole(o.samples_per_s, 1000),
                             .bytes_per_s = whole(o.bytes_per_s, 1)};
    cut(m.job, sizeof(m.job), ws->client->job);
    cut(m.title, sizeof(m.title), o.title);
    AUTO_BYTES struct bytes_out body = {0};
    proto_report_put(&body, &m);
    rc = client_rpc_post_now(ws->client, PROTO_REPORT, &body);
    if (rc == -EAGAIN)
        return error_set(err, LEAT_BUSY, "the daemon does not take a report now");
    return rc ? ws->client->dead ? client_rpc_dead_error(ws->client, err)
                                 : error_set(err, rc, "out of memory")
              : 0;
}
