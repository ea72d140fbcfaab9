/* SPDX-License-Identifier: Apache-2.0 */
/* v1_scrub.c: how far the disks are read again, what was found damaged, and to do it now. */
#include "serve/admin/admin_internal.h"

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
    v->out = json_pack("{s:o, s:o}", "paths", paths, "damaged", damaged);
    return rc < 0 || !v->out ? -ENOMEM : 0;
}

int v1_scrub_start(struct admin_task *v)
{
    if (json_object_size(v->in))
        return error_set(&v->err, LEAT_INVALID, "nothing is to be said of a scrub: {}");
    store_scrub_start(v->admin->config.store);
    v->status = 202;
    return v1_scrub(v);
}

int v1_scrub_stop(struct admin_task *v)
{
    store_scrub_stop(v->admin->config.store);
    v->status = 202;
    return v1_scrub(v);
}
