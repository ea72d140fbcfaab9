/* SPDX-License-Identifier: Apache-2.0 */
/* v1_scrub.c: how far the disks are read again, what was found damaged, and to do it now: a job of kind "scrub" for as long as that takes. */
#include "serve/admin/admin_internal.h"

#include "base/clock.h"

#define POLL_NS (500 * NS_PER_MS)

static const char scrub_name[] = "scrub";

/* --- the job: the passes that were asked for, until each path has ended its own --------------------------------------------------- */

/* True: some path still reads what was asked for. */
static bool scrub_progress(struct store *store, struct store_status *s, struct job *job)
{
    uint64_t counts[JOB_COUNTS] = {0};
    bool asked = false;
    store_status(store, s);
    for (unsigned i = 0; i < s->npaths; i++) {
        const struct store_scrub_status *sc = &s->paths[i].scrub;
        bool now = sc->asked && s->paths[i].state == STORE_PATH_OK;
        bool since = sc->last.begun_ns >= job_began_ns(job);
        const struct store_scrub_pass *pass = now ? &sc->now : &sc->last;
        asked |= now;
        if (!now && !since)
            continue;
        counts[JOB_ITEMS] += pass->objects;
        counts[JOB_BYTES] += pass->bytes;
        counts[JOB_ITEMS_TOTAL] += now ? MAX(sc->of_objects, pass->objects) : pass->objects;
        counts[JOB_BYTES_TOTAL] += now ? MAX(sc->of_bytes, pass->bytes) : pass->bytes;
        counts[JOB_FAILED_ITEMS] += pass->damaged + pass->unreadable - pass->repaired;
    }
    for (unsigned i = 0; i < JOB_COUNTS; i++)
        job_set(job, i, counts[i]);
    return asked;
}

/* Of the scrub that runs; 0: none. */
static uint64_t scrub_job(struct admin *admin)
{
    AUTO_FREE struct job_info *infos = NULL;
    unsigned n = 0;
    if (jobs_list(admin->config.jobs, &infos, &n) < 0)
        return 0;
    for (unsigned i = 0; i < n; i++)
        if (infos[i].state == JOB_RUNNING && strcmp(infos[i].kind, scrub_name) == 0)
            return infos[i].id;
    return 0;
}

static int scrub_run(void *user, struct job *job, struct leat_error *err)
{
    struct admin *admin = user;
    struct store *store = admin->config.store;
    AUTO_FREE struct store_status *s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    pthread_mutex_lock(&admin->scrub_lock);
    if (!job_aborted(job))
        store_scrub_resume(store, job_began_ns(job));
    pthread_mutex_unlock(&admin->scrub_lock);
    while (scrub_progress(store, s, job) && !job_sleep(job, POLL_NS))
        ;
    job_set(job, JOB_TOTAL_KNOWN, 1);
    for (unsigned i = 0; i < s->npaths; i++)
        if (s->paths[i].state != STORE_PATH_OK)
            job_item_failed(job, s->paths[i].error);
    return 0;
}

static void scrub_abort(void *user)
{
    scrub_settle(user);
}

void scrub_settle(struct admin *admin)
{
    pthread_mutex_lock(&admin->scrub_lock);
    if (!scrub_job(admin)) /* it is not of another one, begun since */
        store_scrub_stop(admin->config.store);
    pthread_mutex_unlock(&admin->scrub_lock);
}

void scrub_register(struct admin *admin)
{
    admin->scrub = (struct job_kind){.name = scrub_name,
                                     .user = admin,
                                     .run = scrub_run,
                                     .resumes = true,
                                     .single = true,
                                     .abort = scrub_abort};
    jobs_register(admin->config.jobs, &admin->scrub);
}

/* --- its JSON ------------------------------------------------------------------------------------------------------------------ */

static json_t *time_json(int64_t ns)
{
    return ns ? json_real((double)ns / 1e9) : json_null();
}

static json_t *pass_json(const struct store_scrub_pass *p)
{
    if (!p->begun_ns)
        return json_null();
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "began", time_json(p->begun_ns), "ended",
                     time_json(p->ended_ns), "objects", (json_int_t)p->objects, "bytes", (json_int_t)p->bytes,
                     "damaged", (json_int_t)p->damaged, "unreadable", (json_int_t)p->unreadable, "repaired",
                     (json_int_t)p->repaired, "mended",
                     (json_int_t)p->repaired); /* the old name, for one release */
}

json_t *scrub_json(const struct store_scrub_status *s)
{
    static const char *const states[] = {
        [STORE_SCRUB_OFF] = "off", [STORE_SCRUB_WAITING] = "waiting", [STORE_SCRUB_RUNNING] = "running"};
    return json_pack("{s:s, s:b, s:o, s:o, s:I, s:I, s:o}", "state", states[s->state], "asked", s->asked,
                     "pass", pass_json(&s->now), "last", pass_json(&s->last), "of_objects",
                     (json_int_t)s->of_objects, "of_bytes", (json_int_t)s->of_bytes, "next",
                     time_json(s->next_ns));
}

static int add_damage(void *user, const struct store_damage *d)
{
    char key[STORE_KEY_MAX + 1];
    memcpy(key, d->key, d->key_len);
    key[d->key_len] = 0;
    json_t *json = json_pack("{s:o, s:s, s:o, s:s}", "path", admin_text(d->path), "bucket", d->bucket, "key",
                             admin_text(key), "what", d->unreadable ? "unreadable" : "damaged");
    return json_array_append_new(user, json) < 0 ? -ENOMEM : 0;
}

int v1_scrub(struct admin_task *v)
{
    struct store *store = v->admin->config.store;
    AUTO_FREE struct store_status *s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    store_status(store, s);
    json_t *paths = json_array(), *damaged = json_array();
    for (unsigned i = 0; i < s->npaths; i++)
        json_array_append_new(paths, json_pack("{s:o, s:o}", "path", admin_text(s->paths[i].path), "scrub",
                                               scrub_json(&s->paths[i].scrub)));
    int rc = store_damaged(store, add_damage, damaged);
    uint64_t job = scrub_job(v->admin);
    v->out = json_pack("{s:o, s:o, s:o}", "paths", paths, "damaged", damaged, "job",
                       job ? json_integer((json_int_t)job) : json_null());
    return rc < 0 || !v->out ? -ENOMEM : 0;
}

/* Under scrub_lock: it has begun when this returns, for an answer that shows it. */
static int scrub_start(struct admin *admin, struct leat_error *err)
{
    AUTO_FREE struct job_info *info = malloc(sizeof(*info));
    uint64_t id = scrub_job(admin);
    if (!info)
        return -ENOMEM;
    if (id) {
        store_scrub_start(admin->config.store); /* the one that runs begins again */
        return 0;
    }
    int rc = jobs_start(admin->config.jobs, &(struct job_spec){.kind = scrub_name, .subject = ""}, &id, err);
    if (rc == 0 && jobs_get(admin->config.jobs, id, info) == 0 && info->state == JOB_RUNNING)
        store_scrub_resume(admin->config.store, info->began_ns);
    return rc;
}

int v1_scrub_start(struct admin_task *v)
{
    if (json_object_size(v->in))
        return error_set(&v->err, LEAT_INVALID, "nothing is to be said of a scrub: {}");
    pthread_mutex_lock(&v->admin->scrub_lock);
    int rc = scrub_start(v->admin, &v->err);
    pthread_mutex_unlock(&v->admin->scrub_lock);
    if (rc < 0)
        return rc;
    v->status = 202;
    return v1_scrub(v);
}

int v1_scrub_stop(struct admin_task *v)
{
    uint64_t id = scrub_job(v->admin);
    if (!id || jobs_abort(v->admin->config.jobs, id) < 0)
        store_scrub_stop(v->admin->config.store);
    v->status = 202;
    return v1_scrub(v);
}
