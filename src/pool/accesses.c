/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accesses.c: whose access a source elsewhere is read with: of who opens it; of a client here, for a set that another node places for
 * the same user; of the daemon itself, where that is the same user or the administrator said so. Control loop.
 */
#include "pool/access.h"

#include "dataset/dataset.h"
#include "pool/pool.h"
#include "pool/pool_internal.h"
#include "wire/s3.h"

/* What a client here brought for a source: for sets of that user that other nodes place. */
struct known_access {
    struct list node; /* pool.accesses */
    uint32_t uid;
    char *spec;
    struct access *access;
};
#define ACCESSES_MAX 256u

static void known_free(struct pool *pool, struct known_access *k)
{
    list_remove(&k->node);
    pool->naccesses--;
    access_unref(k->access);
    free(k->spec);
    free(k);
}

static struct known_access *known_find(struct pool *pool, uint32_t uid, const char *spec)
{
    list_for_each (node, &pool->accesses) {
        struct known_access *k = container_of(node, struct known_access, node);
        if (k->uid == uid && strcmp(k->spec, spec) == 0)
            return k;
    }
    return NULL;
}

static void remember(struct pool *pool, const struct open_request *r, const char *spec)
{
    struct known_access *k = known_find(pool, r->uid, spec);
    if (!pool->cluster || r->local || !access_signed(r->access))
        return;
    if (k)
        known_free(pool, k);
    k = calloc(1, sizeof(*k));
    char *copy = k ? strdup(spec) : NULL;
    if (!copy) {
        free(k); /* then it is looked for elsewhere */
        return;
    }
    *k = (struct known_access){.uid = r->uid, .spec = copy, .access = access_ref(r->access)};
    list_push_front(&pool->accesses, &k->node);
    if (++pool->naccesses > ACCESSES_MAX)
        known_free(pool, container_of(pool->accesses.prev, struct known_access, node));
}

static int check(struct pool *pool, struct access *access, const struct dataset_spec *spec,
                 struct leat_error *err)
{
    int code = 0;
    for (unsigned k = 0; code == 0 && k < spec->n; k++) {
        if (dataset_is_remote(spec->sources[k].uri))
            code =
                access_check(&pool->config.s3, pool->config.opener.system, access, spec->sources[k].uri, err);
    }
    return code;
}

/* Of this node, for a set of another's. */
static int ours(struct pool *pool, uint32_t uid, const char *text, struct access **ret_access,
                struct leat_error *err)
{
    const struct access_config *config = &pool->config.s3;
    struct known_access *k = known_find(pool, uid, text);
    if (k) {
        *ret_access = access_ref(k->access);
        return 0;
    }
    if (!pool->config.opener.system || config->own)
        return access_own(config, ret_access, err);
    struct proto_access none = {0};
    int code = access_new(&none, false, ret_access); /* enough for a web server; S3 says what is missing */
    return code < 0 ? error_set(err, code, "out of memory") : 0;
}

int pool_access_for(struct pool *pool, uint32_t uid, const char *text, struct access **ret_access,
                    struct leat_error *err)
{
    struct dataset_spec spec;
    struct access *access = NULL;
    int code = dataset_spec_parse(text, &spec, err);
    if (code < 0)
        return code;
    code = ours(pool, uid, text, &access, err);
    if (code == 0)
        code = check(pool, access, &spec, err);
    dataset_spec_free(&spec);
    if (code < 0)
        access_unref(access);
    else
        *ret_access = access;
    return code;
}

static bool spec_is_remote(const struct dataset_spec *spec)
{
    for (unsigned k = 0; k < spec->n; k++) {
        if (dataset_is_remote(spec->sources[k].uri))
            return true;
    }
    return false;
}

/*
 * Who opens a source elsewhere brings how to read it. Without credentials a daemon of one user looks where that user's own tools do; one
 * of several users has none to lend, unless it was told to.
 */
static int take(struct pool *pool, struct open_request *r, const struct dataset_spec *spec, const char *text,
                struct leat_error *err)
{
    const struct access_config *config = &pool->config.s3;
    bool system = pool->config.opener.system, s3 = false;
    /* Another node asks for a user of its: it sends no keys. */
    int code = r->local && !r->access ? pool_access_for(pool, r->uid, text, &r->access, err) : 0;
    for (unsigned k = 0; k < spec->n; k++)
        s3 = s3 || s3_uri_is(spec->sources[k].uri);
    bool own = config->own && s3 && !access_signed(r->access);
    if (own) {
        access_unref(r->access);
        r->access = NULL;
    }
    if (s3 && system && !own && !access_signed(r->access))
        return error_set(
            err, LEAT_DENIED,
            "%.200s: this daemon has no credentials of its own, and none came from who opens it%s",
            spec->sources[0].uri,
            r->local ? " on this node: open it there as well, or let daemons have their own "
                       "(own_credentials in [s3] of leatd.conf)"
                     : "");
    if (code == 0 && !r->access)
        code = access_own(config, &r->access, err);
    return code < 0 ? code : check(pool, r->access, spec, err);
}

int accesses_take(struct pool *pool, struct open_request *r, const struct dataset_spec *spec,
                  const char *text, struct leat_error *err)
{
    if (!spec_is_remote(spec))
        return 0;
    int code = take(pool, r, spec, text, err);
    if (code == 0)
        remember(pool, r, text);
    return code;
}

void accesses_forget(struct pool *pool)
{
    while (!list_empty(&pool->accesses))
        known_free(pool, list_first(&pool->accesses, struct known_access, node));
}
