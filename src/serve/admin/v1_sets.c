/* SPDX-License-Identifier: Apache-2.0 */
/* v1_sets.c: working sets of the pool: what `leat ls`, `leat stat` and `leat drop` do. */
#include "serve/admin/admin_internal.h"

static int ask(struct admin_task *v, enum leat_query query, const char *arg, json_t **ret_json)
{
    const struct admin_pool *pool = v->admin->config.pool;
    AUTO_FREE char *text = NULL;
    if (!pool)
        return admin_none(v, "pool");
    int rc = pool->query(pool->user, query, arg, v->sees_all, &text, &v->err);
    if (rc < 0)
        return rc;
    *ret_json = json_loads(text, 0, NULL);
    return *ret_json ? 0 : -ENOMEM;
}

int v1_sets(struct admin_task *v)
{
    json_t *sets = NULL;
    if (!v->admin->config.pool) {
        v->out = json_pack("{s:[]}", "sets");
        return v->out ? 0 : -ENOMEM;
    }
    int rc = ask(v, LEAT_QUERY_LIST, NULL, &sets);
    if (rc < 0)
        return rc;
    v->out = json_pack("{s:o}", "sets", sets);
    return v->out ? 0 : -ENOMEM;
}

int v1_set(struct admin_task *v)
{
    return ask(v, LEAT_QUERY_STAT, v->name, &v->out);
}

int v1_set_drop(struct admin_task *v)
{
    const struct admin_pool *pool = v->admin->config.pool;
    if (!pool)
        return admin_none(v, "pool");
    bool force = strcmp(v->query, "force=true") == 0;
    if (v->query[0] && !force)
        return error_set(&v->err, LEAT_INVALID, "only ?force=true is known here");
    v->status = 204;
    return pool->drop(pool->user, v->name, force, &v->err);
}
