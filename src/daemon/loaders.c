/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loaders.c: progress reports of loaders, and their view for people: a row for each loader of a job, its
 * ranks below it.
 *
 *   REPORT ──▶ client.reports, the last one of each loader ──▶ loaders_json: by user, job, set and loader, ranks side by side
 *
 * Failure modes: a client with more than CLIENT_REPORTS_MAX loses the oldest; a report of a set that is not
 * open (any more) is dropped.
 * Invariants: a report ends with its handle, so that its set is there as long as it is. Only ranks of this
 * host are known here: each of them knows the progress of all, as all make the same steps.
 */
#include "daemon/server_internal.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "leat/leat.h"
#include "pool/set/wset.h"

struct loaders_report {
    struct list node; /* client.reports, the latest one last */
    struct client *client;
    struct wset *ws; /* the handle's */
    uint64_t told_ns;
    struct proto_report said;
};

static void report_free(struct loaders_report *r)
{
    list_remove(&r->node);
    r->client->nreports--;
    free(r);
}

void loaders_forget(struct client *c, uint64_t handle)
{
    list_for_each_safe (node, &c->reports) {
        struct loaders_report *r = container_of(node, struct loaders_report, node);
        if (r->said.ws == handle)
            report_free(r);
    }
}

static struct loaders_report *find(struct client *c, const struct proto_report *m)
{
    list_for_each (node, &c->reports) {
        struct loaders_report *r = container_of(node, struct loaders_report, node);
        if (r->said.ws == m->ws && r->said.loader == m->loader)
            return r;
    }
    return NULL;
}

int loaders_report_request(struct client *c, struct conn_message *message, struct leat_error *err)
{
    struct proto_report m;
    if (proto_report_get(message->body, message->frame.body_bytes, &m) < 0)
        return LEAT_CORRUPT;
    struct wset *ws = client_handle(c, m.ws, NULL);
    struct loaders_report *r = find(c, &m);
    if (!ws || (m.flags & PROTO_REPORT_ENDED)) {
        if (r)
            report_free(r);
        return 0;
    }
    if (!r && c->nreports == CLIENT_REPORTS_MAX)
        report_free(list_first(&c->reports, struct loaders_report, node));
    if (r) {
        list_remove(&r->node);
    } else {
        r = calloc(1, sizeof(*r));
        if (!r)
            return 0; /* the next one may fit */
        c->nreports++;
    }
    r->client = c;
    r->ws = ws;
    r->told_ns = clock_now_ns();
    r->said = m;
    list_push_back(&c->reports, &r->node);
    return 0;
}

/* --- shown --------------------------------------------------------------------------------------------------------- */

static json_t *text_json(const char *s)
{
    AUTO_FREE char *shown = utf8_escape(s);
    return shown ? json_string(shown) : NULL;
}

static const char *title_of(const struct loaders_report *r)
{
    return r->said.title[0] ? r->said.title : r->ws->name[0] ? r->ws->name : r->ws->spec;
}

/* Of one job's loader: 0. */
static int compare_loaders(const struct loaders_report *a, const struct loaders_report *b)
{
    int by = strcmp(a->said.job, b->said.job);
    if (!by)
        by = (a->client->uid > b->client->uid) - (a->client->uid < b->client->uid);
    if (!by)
        by = (a->said.loader > b->said.loader) - (a->said.loader < b->said.loader);
    if (!by)
        by = strcmp(title_of(a), title_of(b));
    return by ? by : (a->said.world_size > b->said.world_size) - (a->said.world_size < b->said.world_size);
}

static int compare(const void *left, const void *right)
{
    const struct loaders_report *a = *(struct loaders_report *const *)left,
                                *b = *(struct loaders_report *const *)right;
    int by = compare_loaders(a, b);
    return by ? by : (a->said.rank > b->said.rank) - (a->said.rank < b->said.rank);
}

static const char *verdict_name(uint32_t verdict)
{
    static const char *const names[] = {[LEAT_VERDICT_UNKNOWN] = "unknown",
                                        [LEAT_VERDICT_CONSUMER] = "consumer-bound",
                                        [LEAT_VERDICT_FETCH] = "fetch-bound",
                                        [LEAT_VERDICT_PREP] = "prep-bound",
                                        [LEAT_VERDICT_COPY] = "copy-bound"};
    return verdict < ARRAY_LEN(names) ? names[verdict] : "unknown";
}

static double age_s(const struct loaders_report *r, uint64_t now_ns)
{
    return (double)(now_ns - MIN(r->told_ns, now_ns)) / NS_PER_S;
}

static json_t *rank_json(const struct loaders_report *r, uint64_t now_ns)
{
    const struct proto_report *m = &r->said;
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:s, s:f, s:f}", "rank", (json_int_t)m->rank,
                     "pid", (json_int_t)r->client->pid, "epoch", (json_int_t)m->epoch, "samples",
                     (json_int_t)m->samples, "samples_per_s", (double)m->samples_per_ks / 1000, "bytes_per_s",
                     (double)m->bytes_per_s, "total_samples", (json_int_t)m->total_samples, "total_bytes",
                     (json_int_t)m->total_bytes, "verdict", verdict_name(m->verdict), "waiting",
                     (double)m->waiting_permille / 1000, "age_seconds", age_s(r, now_ns));
}

/* Of n ranks of one loader, in order: those in the foremost's epoch, if they do not all share the same order.
 * They overlap: each takes its slice of another list. */
static json_t *overlapping_json(struct loaders_report *const *reports, size_t n, uint64_t epoch)
{
    json_t *ranks = json_array();
    uint64_t order = 0;
    bool differ = false;
    for (size_t i = 0; i < n; i++) {
        const struct proto_report *m = &reports[i]->said;
        if (m->epoch != epoch || !m->order)
            continue;
        differ |= order && m->order != order;
        order = m->order;
        json_array_append_new(ranks, json_integer((json_int_t)m->rank));
    }
    if (!differ)
        json_array_clear(ranks);
    return ranks;
}

/* n ranks of one loader. Its progress is that of the foremost rank. The rank that waits most delays the
 * others, so the verdict is that rank's. Rates of all ranks are extrapolated from the ranks on this node. */
static json_t *loader_json(struct loaders_report *const *reports, size_t n, uint64_t now_ns)
{
    const struct loaders_report *first = reports[0], *foremost = first, *waits = first;
    double samples_per_s = 0, bytes_per_s = 0, age = age_s(first, now_ns);
    json_t *ranks = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct loaders_report *r = reports[i];
        const struct proto_report *m = &r->said, *f = &foremost->said;
        if (m->epoch > f->epoch || (m->epoch == f->epoch && m->samples > f->samples))
            foremost = r;
        if (m->waiting_permille > waits->said.waiting_permille)
            waits = r;
        samples_per_s += (double)m->samples_per_ks / 1000;
        bytes_per_s += (double)m->bytes_per_s;
        age = MIN(age, age_s(r, now_ns));
        json_array_append_new(ranks, rank_json(r, now_ns));
    }
    const struct proto_report *m = &foremost->said;
    double share = m->batch_samples ? (double)m->step_samples / (double)m->batch_samples / (double)n : 1;
    double all_per_s = samples_per_s * share, left = (double)(m->length - MIN(m->samples, m->length));
    json_t *json = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:f, s:f}", "job", text_json(m->job),
        "set", text_json(title_of(first)), "source", text_json(first->ws->spec), "loader",
        (json_int_t)m->loader, "uid", (json_int_t)first->client->uid, "world_size", (json_int_t)m->world_size,
        "epoch", (json_int_t)m->epoch, "samples", (json_int_t)m->samples, "length", (json_int_t)m->length,
        "samples_per_s", all_per_s, "bytes_per_s", bytes_per_s, "verdict", verdict_name(waits->said.verdict),
        "waiting", (double)waits->said.waiting_permille / 1000, "age_seconds", age);
    if (!json) {
        json_decref(ranks);
        return NULL;
    }
    json_object_set_new(json, "seconds_left", all_per_s > 0 ? json_real(left / all_per_s) : json_null());
    json_object_set_new(json, "overlapping_ranks", overlapping_json(reports, n, m->epoch));
    json_object_set_new(json, "ranks", ranks);
    return json;
}

json_t *loaders_json(const struct list *clients, uint32_t uid, uint32_t gid)
{
    size_t n = 0, most = 0;
    list_for_each (node, clients)
        most += container_of(node, struct client, node)->nreports;
    json_t *jobs = json_array();
    AUTO_FREE struct loaders_report **all = calloc(most + 1, sizeof(*all));
    if (!all)
        return jobs;
    list_for_each (node, clients) {
        const struct client *c = container_of(node, struct client, node);
        list_for_each (at, &c->reports) {
            struct loaders_report *r = container_of(at, struct loaders_report, node);
            if (wset_allows(r->ws, uid, gid))
                all[n++] = r;
        }
    }
    qsort(all, n, sizeof(struct loaders_report *), compare);
    uint64_t now_ns = clock_now_ns();
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && compare_loaders(all[i], all[end]) == 0;)
            end++;
        json_array_append_new(jobs, loader_json(all + i, end - i, now_ns));
    }
    return jobs;
}
