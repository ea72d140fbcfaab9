/* SPDX-License-Identifier: Apache-2.0 */
/* v1_jobs.c: jobs: which there are, how far they are; prefetch, evict and check are started here, the scrub by v1_scrub.c. */
#include "serve/admin/admin_internal.h"

#include <stdio.h>

#define MATCH_MAX 100u

static const char *const kinds[] = {
    [TIER_PREFETCH] = "prefetch", [TIER_EVICT] = "evict", [TIER_CHECK] = "check"};
static const char *const states[] = {
    [JOB_RUNNING] = "running", [JOB_ABORTING] = "running",    [JOB_DONE] = "done",
    [JOB_FAILED] = "failed",   [JOB_CANCELLED] = "cancelled", [JOB_INTERRUPTED] = "interrupted"};

static json_t *job_json(const struct job_info *j)
{
    const char *slash = strchr(j->subject, '/'); /* BUCKET/PREFIX, or nothing */
    char bucket[STORE_BUCKET_MAX + 1] = "";
    snprintf(bucket, sizeof(bucket), "%.*s", (int)(slash ? slash - j->subject : 0), j->subject);
    json_t *json = json_pack(
        "{s:I, s:s, s:s, s:b, s:o, s:s, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}",
        "id", (json_int_t)j->id, "kind", j->kind, "state", states[j->state], "aborting",
        j->state == JOB_ABORTING, "subject", admin_text(j->subject), "bucket", bucket, "prefix",
        admin_text(slash ? slash + 1 : ""), "listed", j->counts[JOB_TOTAL_KNOWN] != 0, "objects",
        (json_int_t)j->counts[JOB_ITEMS_TOTAL], "done", (json_int_t)j->counts[JOB_ITEMS], "bytes",
        (json_int_t)j->counts[JOB_BYTES], "skipped", (json_int_t)j->counts[JOB_SKIPPED], "newer",
        (json_int_t)j->counts[TIER_JOB_NEWER], "gone", (json_int_t)j->counts[TIER_JOB_GONE], "failed",
        (json_int_t)j->counts[JOB_FAILED_ITEMS], "objects_per_s", (json_int_t)j->items_per_s, "bytes_per_s",
        (json_int_t)j->bytes_per_s, "restarts", (json_int_t)j->restarts, "durable", j->durable);
    if (!json)
        return NULL;
    json_object_set_new(json, "error", j->error[0] ? admin_text(j->error) : json_null());
    json_object_set_new(json, "began", json_real((double)j->began_ns / 1e9));
    json_object_set_new(json, "ended", j->ended_ns ? json_real((double)j->ended_ns / 1e9) : json_null());
    return json;
}

/* --- lists ------------------------------------------------------------------------------------------------------------------- */

struct filter {
    char kind[JOB_KIND_MAX + 1], match[MATCH_MAX + 1];
    bool running;
};

/* A parameter of the request, decoded. 1: it is there. */
static int parameter(struct admin_task *v, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name), len;
    for (const char *at = v->query; *at; at += strcspn(at, "&"), at += *at == '&') {
        size_t whole = strcspn(at, "&");
        if (whole <= n || strncmp(at, name, n) != 0 || at[n] != '=')
            continue;
        char text[sizeof(v->query)];
        memcpy(text, at + n + 1, whole - n - 1);
        if (!http_unescape(text, whole - n - 1, &len) || memchr(text, 0, len))
            return error_set(&v->err, LEAT_INVALID, "\"%s\" is not encoded as a URL has it", name);
        if (len >= cap)
            return error_set(&v->err, LEAT_INVALID, "\"%s\" has %zu bytes: at most %zu are allowed", name,
                             len, cap - 1);
        memcpy(out, text, len);
        out[len] = 0;
        return 1;
    }
    return 0;
}

static int filter_of(struct admin_task *v, struct filter *ret)
{
    char text[8];
    *ret = (struct filter){0};
    int rc = parameter(v, "kind", ret->kind, sizeof(ret->kind));
    if (rc >= 0)
        rc = parameter(v, "running", text, sizeof(text));
    if (rc > 0)
        ret->running = strcmp(text, "true") == 0;
    if (rc > 0 && !ret->running && strcmp(text, "false") != 0)
        rc = error_set(&v->err, LEAT_INVALID, "\"running\" is true or false");
    if (rc >= 0)
        rc = parameter(v, "match", ret->match, sizeof(ret->match));
    return MIN(rc, 0);
}

static bool passes(const struct filter *f, const struct job_info *j)
{
    return (!f->kind[0] || strcmp(f->kind, j->kind) == 0) && (!f->running || j->state <= JOB_ABORTING) &&
           (strstr(j->subject, f->match) || strstr(j->kind, f->match));
}

static json_t *list(struct jobs *jobs, const struct filter *filter)
{
    AUTO_FREE struct job_info *infos = NULL;
    unsigned n = 0;
    json_t *array = jobs_list(jobs, &infos, &n) < 0 ? NULL : json_array();
    for (unsigned i = 0; array && i < n; i++) {
        if (passes(filter, &infos[i]) && json_array_append_new(array, job_json(&infos[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *jobs_array(struct jobs *jobs)
{
    return list(jobs, &(struct filter){0});
}

int v1_jobs(struct admin_task *v)
{
    struct filter filter;
    int rc = filter_of(v, &filter);
    if (rc < 0)
        return rc;
    json_t *jobs = list(v->admin->config.jobs, &filter);
    v->out = jobs ? json_pack("{s:o}", "jobs", jobs) : NULL;
    return v->out ? 0 : -ENOMEM;
}

/* --- one --------------------------------------------------------------------------------------------------------------------- */

static int parse_id(struct admin_task *v, uint64_t *ret_id)
{
    if (!http_text_u64((struct http_text){v->name, strlen(v->name)}, ret_id))
        return error_set(&v->err, LEAT_NOT_FOUND, "\"%.60s\" is no number of a job", v->name);
    return 0;
}

static int show(struct admin_task *v, uint64_t id)
{
    AUTO_FREE struct job_info *info = malloc(sizeof(*info));
    if (!info)
        return -ENOMEM;
    if (jobs_get(v->admin->config.jobs, id, info) < 0)
        return error_set(&v->err, LEAT_NOT_FOUND, "there is no job %llu, or it ended long ago",
                         (unsigned long long)id);
    v->out = job_json(info);
    return v->out ? 0 : -ENOMEM;
}

int v1_job(struct admin_task *v)
{
    uint64_t id;
    int rc = parse_id(v, &id);
    return rc < 0 ? rc : show(v, id);
}

int v1_job_cancel(struct admin_task *v)
{
    uint64_t id;
    int rc = parse_id(v, &id);
    if (rc == 0 && jobs_abort(v->admin->config.jobs, id) < 0)
        rc = error_set(&v->err, LEAT_NOT_FOUND, "there is no job %llu, or it ended long ago",
                       (unsigned long long)id);
    v->status = 202;
    return rc < 0 ? rc : show(v, id);
}

static int kind_of(struct admin_task *v, enum tier_job_kind *ret_kind)
{
    const char *kind = json_string_value(json_object_get(v->in, "kind"));
    for (unsigned i = 0; kind && i < ARRAY_LEN(kinds); i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            *ret_kind = (enum tier_job_kind)i;
            return 0;
        }
    }
    return error_set(&v->err, LEAT_INVALID, "\"kind\" is \"prefetch\", \"evict\" or \"check\"");
}

/* The keys stay v->in's; *ret_keys is the caller's to free. */
static int keys_of(struct admin_task *v, const char ***ret_keys, unsigned *ret_n)
{
    json_t *keys = json_object_get(v->in, "keys");
    if (!keys)
        return 0;
    size_t n = json_array_size(keys);
    if (!json_is_array(keys) || n == 0)
        return error_set(&v->err, LEAT_INVALID,
                         "\"keys\" is a list of one name at least; leave it out for all of \"prefix\"");
    const char **all = calloc(n, sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        all[i] = json_string_value(json_array_get(keys, i));
        if (!all[i]) {
            free(all);
            return error_set(&v->err, LEAT_INVALID, "\"keys\" are texts; number %zu is none", i);
        }
    }
    *ret_keys = all;
    *ret_n = (unsigned)n;
    return 0;
}

static int check_fields(struct admin_task *v)
{
    static const char *const known[] = {"kind", "bucket", "prefix", "keys", "update"};
    const char *key;
    json_t *value;
    json_object_foreach(v->in, key, value)
    {
        unsigned i = 0;
        while (i < ARRAY_LEN(known) && strcmp(key, known[i]) != 0)
            i++;
        if (i == ARRAY_LEN(known))
            return error_set(&v->err, LEAT_INVALID,
                             "a job has kind, bucket, prefix, keys and update, not \"%.60s\"", key);
    }
    if (!json_is_string(json_object_get(v->in, "bucket")))
        return error_set(&v->err, LEAT_INVALID, "\"bucket\" is wanted: the name of one with a remote");
    json_t *prefix = json_object_get(v->in, "prefix"), *update = json_object_get(v->in, "update");
    if ((prefix && !json_is_string(prefix)) || (update && !json_is_boolean(update)))
        return error_set(&v->err, LEAT_INVALID, "\"prefix\" is a text, \"update\" is true or false");
    return 0;
}

int v1_job_start(struct admin_task *v)
{
    enum tier_job_kind kind = TIER_PREFETCH;
    AUTO_FREE const char **keys = NULL;
    unsigned nkeys = 0;
    uint64_t id = 0;
    int rc = check_fields(v);
    if (rc == 0)
        rc = kind_of(v, &kind);
    if (rc == 0)
        rc = keys_of(v, &keys, &nkeys);
    if (rc < 0)
        return rc;
    struct tier_job_spec spec = {.kind = kind,
                                 .bucket = json_string_value(json_object_get(v->in, "bucket")),
                                 .prefix = json_string_value(json_object_get(v->in, "prefix")),
                                 .keys = keys,
                                 .nkeys = nkeys,
                                 .update = json_is_true(json_object_get(v->in, "update"))};
    rc = tier_job_start(v->admin->config.tier, &spec, &id, &v->err);
    v->status = 202;
    return rc < 0 ? rc : show(v, id);
}
