/* SPDX-License-Identifier: Apache-2.0 */
/* v1_jobs.c: what the cold tier is told to do, and how far it is. */
#include "serve/admin/admin_internal.h"

#include <stdio.h>

static const char *const kinds[] = {
    [TIER_PREFETCH] = "prefetch", [TIER_EVICT] = "evict", [TIER_CHECK] = "check"};
static const char *const states[] = {[TIER_JOB_RUNNING] = "running",
                                     [TIER_JOB_DONE] = "done",
                                     [TIER_JOB_FAILED] = "failed",
                                     [TIER_JOB_CANCELLED] = "cancelled"};

static json_t *job_json(const struct tier_job_info *j)
{
    json_t *json = json_pack(
        "{s:I, s:s, s:s, s:s, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "id", (json_int_t)j->id, "kind",
        kinds[j->kind], "state", states[j->state], "bucket", j->bucket, "prefix", admin_text(j->prefix),
        "listed", j->listed, "objects", (json_int_t)j->objects, "done", (json_int_t)j->done, "bytes",
        (json_int_t)j->bytes, "skipped", (json_int_t)j->skipped, "newer", (json_int_t)j->newer, "gone",
        (json_int_t)j->gone, "failed", (json_int_t)j->failed);
    if (!json)
        return NULL;
    json_object_set_new(json, "error", j->error[0] ? admin_text(j->error) : json_null());
    json_object_set_new(json, "began", json_real((double)j->began_ns / 1e9));
    json_object_set_new(json, "ended", j->ended_ns ? json_real((double)j->ended_ns / 1e9) : json_null());
    return json;
}

static int add_job(void *user, const struct tier_job_info *info)
{
    return json_array_append_new(user, job_json(info)) < 0 ? -ENOMEM : 0;
}

json_t *jobs_array(struct tier *tier)
{
    json_t *jobs = json_array();
    if (jobs && tier_job_list(tier, add_job, jobs) < 0) {
        json_decref(jobs);
        return NULL;
    }
    return jobs;
}

int v1_jobs(struct admin_task *v)
{
    json_t *jobs = jobs_array(v->admin->config.tier);
    v->out = jobs ? json_pack("{s:o}", "jobs", jobs) : NULL;
    return v->out ? 0 : -ENOMEM;
}

static int parse_id(struct admin_task *v, uint64_t *ret_id)
{
    if (!http_text_u64((struct http_text){v->name, strlen(v->name)}, ret_id))
        return error_set(&v->err, LEAT_NOT_FOUND, "\"%.60s\" is no number of a job", v->name);
    return 0;
}

static int show(struct admin_task *v, uint64_t id)
{
    AUTO_FREE struct tier_job_info *info = malloc(sizeof(*info));
    if (!info)
        return -ENOMEM;
    if (tier_job_get(v->admin->config.tier, id, info) < 0)
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
    if (rc == 0 && tier_job_cancel(v->admin->config.tier, id) < 0)
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
