/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings never change once made; credentials do, under the lock, and each session copies them when it asks.
 *
 * Failure modes: credentials expired and no client brought new ones: LEAT_DENIED, with that reason.
 * Invariants: secrets are in `said` and in sessions, and are wiped in both.
 */
#include "pool/source/access.h"

#include "backend/backend.h"
#include "aws/credentials.h"
#include "base/clock.h"
#include "wire/address.h"
#include "wire/s3/s3.h"

#include <pthread.h>
#include <stdio.h>
#include <strings.h>

#define RENEW_BEFORE_S 300
#define RENEW_EVERY_NS (30 * NS_PER_S) /* looking may ask an endpoint, or run a program */

struct access {
    _Atomic unsigned refs;
    const struct access_store *store; /* our own; NULL: remote */
    bool renew;
    _Atomic unsigned version; /* of the keys */
    _Atomic bool stay;        /* hosts were checked: redirections to others are refused */
    pthread_mutex_t lock;
    struct proto_access said; /* keys, token and expires: under lock */
    pthread_mutex_t looking;  /* held while they are looked for */
    uint64_t renewed_ns;      /* under it */
};

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

int access_new(struct proto_access *m, bool renew, struct access **ret_access)
{
    struct access *a = calloc(1, sizeof(*a));
    if (!a) {
        proto_access_fini(m);
        return -ENOMEM;
    }
    a->refs = 1;
    a->renew = renew && (m->flags & PROTO_ACCESS_FOUND);
    a->said = *m;
    *m = (struct proto_access){0};
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->looking, NULL);
    *ret_access = a;
    return 0;
}

int access_stored(const struct access_store *config, struct access **ret_access, struct leat_error *err)
{
    struct proto_access nobody = {0};
    int rc = access_new(&nobody, false, ret_access);
    if (rc < 0)
        return error_set(err, rc, "out of memory");
    (*ret_access)->store = config;
    return 0;
}

bool access_is_store(const struct access *a)
{
    return a && a->store;
}

bool access_store_uri(const char *uri)
{
    return address_of(uri) == ADDRESS_STORE;
}

int access_store_check(const struct access_store *config, uint32_t uid, const char *uri,
                       struct leat_error *err)
{
    char bucket[64];
    snprintf(bucket, sizeof(bucket), "%.*s", (int)strcspn(uri + 8, "/"), uri + 8);
    if (!config->store)
        return error_set(err, LEAT_UNSUPPORTED,
                         "%.200s: this daemon has no store of its own (leat serve, or paths in [store] of "
                         "leatd.conf); what another one serves is s3://%.100s with its endpoint",
                         uri, uri + 8);
    if (config->may_read ? config->may_read(config->user, uid, bucket) : uid == geteuid() || uid == 0)
        return 0;
    return error_set(
        err, LEAT_DENIED,
        "%.200s: user %u may not read bucket \"%s\" through this daemon; its owner may, and users that "
        "the keys file lets read it: a section with that user's name, or [anonymous]",
        uri, uid, bucket);
}

static bool env_is_true(const char *name)
{
    const char *v = getenv(name);
    return v && *v && strcmp(v, "0") != 0 && strcmp(v, "false") != 0 && strcmp(v, "no") != 0;
}

/* The configuration wins. `found` is taken or freed. */
static int pick(char **to, const char *said, char *found)
{
    *to = found;
    if (!said)
        return 0;
    free(found);
    *to = strdup(said);
    return *to ? 0 : -ENOMEM;
}

int access_own(const struct access_config *config, struct access **ret_access, struct leat_error *err)
{
    struct aws_settings s = {0};
    int rc = aws_settings_find(config->profile, &s, err);
    if (rc < 0)
        return rc;
    struct proto_access m = {.flags = PROTO_ACCESS_FOUND};
    int bad = pick(&m.endpoint, config->endpoint, TAKE_PTR(s.endpoint));
    bad |= pick(&m.region, config->region, TAKE_PTR(s.region));
    bad |= pick(&m.style, config->style, TAKE_PTR(s.style));
    bad |= pick(&m.ca_file, config->ca_file, TAKE_PTR(s.ca_file));
    bad |= pick(&m.profile, config->profile, NULL);
    if (config->anonymous || env_is_true("LEAT_S3_ANONYMOUS"))
        m.flags |= PROTO_ACCESS_ANONYMOUS;
    if (env_is_true("LEAT_S3_INSECURE"))
        m.flags |= PROTO_ACCESS_INSECURE;
    aws_settings_fini(&s);
    if (bad)
        proto_access_fini(&m);
    rc = bad ? -ENOMEM : access_new(&m, true, ret_access);
    return rc < 0 ? error_set(err, rc, "out of memory") : 0;
}

bool access_signed(struct access *a)
{
    if (!a)
        return false;
    pthread_mutex_lock(&a->lock);
    bool yes = (a->said.flags & PROTO_ACCESS_ANONYMOUS) || a->said.access_key;
    pthread_mutex_unlock(&a->lock);
    return yes;
}

static bool host_is(const char *host, const char *pattern)
{
    size_t n = strlen(host), m = strlen(pattern);
    if (strcmp(pattern, "*") == 0)
        return true;
    if (pattern[0] == '*')
        return n > m - 1 && strcasecmp(host + n - (m - 1), pattern + 1) == 0;
    return strcasecmp(host, pattern) == 0;
}

int access_check(const struct access_config *config, bool system, struct access *a, const char *uri,
                 struct leat_error *err)
{
    struct s3_endpoint e;
    int rc;
    if (!s3_uri_is(uri)) {
        const char *host = strstr(uri, "//") + 2;
        AUTO_FREE char *base = strndup(uri, (size_t)(host - uri) + strcspn(host, "/?#"));
        rc = base ? s3_endpoint_parse(base, NULL, "path", &e, err) : -ENOMEM;
    } else {
        rc = s3_endpoint_parse(a ? a->said.endpoint : NULL, a ? a->said.region : NULL,
                               a ? a->said.style : NULL, &e, err);
    }
    if (rc < 0)
        return rc;
    if (system && a && a->said.ca_file && !same_text(a->said.ca_file, config->ca_file))
        return error_set(
            err, LEAT_DENIED,
            "%.200s: this daemon serves several users and opens no certificates that one of them "
            "names: its administrator can, as ca_file in [s3] of leatd.conf",
            uri);
    if (!config->allowed && !system)
        return 0;
    for (unsigned k = 0; k < config->nallowed; k++) {
        if (!host_is(e.host, config->allowed[k]))
            continue;
        if (a && strcmp(config->allowed[k], "*") != 0)
            atomic_store(&a->stay, true);
        return 0;
    }
    return error_set(
        err, LEAT_DENIED,
        "%.200s: this daemon does not ask %s: its administrator can allow it, as allowed_hosts = %s in "
        "[s3] of leatd.conf",
        uri, e.host, e.aws ? "*.amazonaws.com" : e.host);
}

struct access *access_ref(struct access *a)
{
    if (a)
        atomic_fetch_add(&a->refs, 1);
    return a;
}

void access_unref(struct access *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) != 1)
        return;
    proto_access_fini(&a->said);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->looking);
    free(a);
}

bool access_same(const struct access *a, const struct access *b)
{
    if (!a || !b || a->store || b->store)
        return a == b || (a && b && a->store == b->store);
    return same_text(a->said.endpoint, b->said.endpoint);
}

bool access_equal(struct access *a, struct access *b)
{
    if (a == b || !access_same(a, b))
        return a == b;
    pthread_mutex_lock(&b->lock);
    AUTO_FREE char *key = b->said.access_key ? strdup(b->said.access_key) : NULL;
    AUTO_FREE char *token = b->said.token ? strdup(b->said.token) : NULL;
    bool whole = (key || !b->said.access_key) && (token || !b->said.token);
    pthread_mutex_unlock(&b->lock);
    const struct proto_access *x = &a->said, *y = &b->said;
    pthread_mutex_lock(&a->lock);
    bool equal = whole && x->flags == y->flags && same_text(x->access_key, key) &&
                 same_text(x->token, token) && same_text(x->region, y->region) &&
                 same_text(x->style, y->style) && same_text(x->ca_file, y->ca_file);
    pthread_mutex_unlock(&a->lock);
    if (token)
        explicit_bzero(token, strlen(token));
    return equal;
}

static void replace(char **to, char *from)
{
    if (*to)
        explicit_bzero(*to, strlen(*to));
    free(*to);
    *to = from;
}

static char *copy(const char *s, bool *failed)
{
    char *c = s ? strdup(s) : NULL;
    *failed = *failed || (s && !c);
    return c;
}

static int copy_keys(struct access *a, struct credentials *ret)
{
    bool failed = false;
    struct credentials c = {0};
    pthread_mutex_lock(&a->lock);
    c.access_key = copy(a->said.access_key, &failed);
    c.secret_key = copy(a->said.secret_key, &failed);
    c.token = copy(a->said.token, &failed);
    c.expires = (time_t)a->said.expires;
    pthread_mutex_unlock(&a->lock);
    snprintf(c.source, sizeof(c.source), "the process that opened the dataset");
    if (failed) {
        credentials_fini(&c);
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

/* Takes c's. */
static void set_keys(struct access *a, struct credentials *c)
{
    pthread_mutex_lock(&a->lock);
    replace(&a->said.access_key, TAKE_PTR(c->access_key));
    replace(&a->said.secret_key, TAKE_PTR(c->secret_key));
    replace(&a->said.token, TAKE_PTR(c->token));
    a->said.expires = (int64_t)c->expires;
    atomic_fetch_add(&a->version, 1);
    pthread_mutex_unlock(&a->lock);
}

void access_freshen(struct access *a, struct access *from)
{
    struct credentials c;
    if (!a || !from || a == from || copy_keys(from, &c) < 0)
        return;
    if (c.access_key)
        set_keys(a, &c);
    credentials_fini(&c);
}

static bool expired(const struct credentials *c)
{
    return c->expires && c->expires <= time(NULL);
}

static bool stale(const struct credentials *c)
{
    return !c->access_key || (c->expires && c->expires - RENEW_BEFORE_S <= time(NULL));
}

/* One thread looks, and the others wait for what it finds: each would find the same. */
static void renew(struct access *a, bool refused, struct leat_error *err)
{
    struct credentials c = {0}, found = {0};
    pthread_mutex_lock(&a->looking);
    uint64_t now = clock_now_ns();
    bool look = (!a->renewed_ns || now - a->renewed_ns > RENEW_EVERY_NS) && copy_keys(a, &c) == 0 &&
                (refused || stale(&c));
    credentials_fini(&c);
    if (look && credentials_find(a->said.profile, &found, err) == 0) {
        set_keys(a, &found);
        credentials_fini(&found);
    }
    if (look)
        a->renewed_ns = clock_now_ns();
    pthread_mutex_unlock(&a->looking);
}

int access_put(struct access *a, struct bytes_out *out)
{
    pthread_mutex_lock(&a->lock);
    const struct proto_access *m = &a->said;
    const char *all[] = {m->endpoint, m->region,     m->style,      m->ca_file,
                         m->profile,  m->access_key, m->secret_key, m->token};
    size_t bytes = sizeof(m->flags) + sizeof(m->expires);
    for (size_t k = 0; k < ARRAY_LEN(all); k++)
        bytes += sizeof(uint32_t) + (all[k] ? strlen(all[k]) : 0);
    /* All its room at once: what grows leaves copies behind. */
    size_t before = out->len;
    if (bytes_room(out, bytes)) {
        out->len = before;
        proto_access_put(out, m);
    }
    pthread_mutex_unlock(&a->lock);
    return out->failed ? -ENOMEM : 0;
}

unsigned access_version(const struct access *a)
{
    return atomic_load(&a->version);
}

int64_t access_expires(struct access *a)
{
    pthread_mutex_lock(&a->lock);
    int64_t expires = a->said.expires;
    pthread_mutex_unlock(&a->lock);
    return expires;
}

bool access_expired(struct access *a)
{
    int64_t expires = access_expires(a);
    return expires && expires <= time(NULL);
}

bool access_due(struct access *a)
{
    int64_t expires = access_expires(a);
    return a->renew && expires && expires - RENEW_BEFORE_S <= time(NULL);
}

void access_renew(struct access *a)
{
    struct leat_error why;
    if (a->renew)
        renew(a, false, &why);
}

/* Session's thread. Renews what is about to expire, where that is allowed. */
static int give(void *user, bool refused, struct credentials *ret, struct leat_error *err)
{
    struct access *a = user;
    struct credentials c = {0};
    int rc = copy_keys(a, &c);
    if (rc == 0 && a->renew && (refused || stale(&c))) {
        credentials_fini(&c);
        renew(a, refused, err);
        rc = copy_keys(a, &c);
    }
    if (rc < 0)
        return rc;
    if (!c.access_key)
        rc = error_set(err, LEAT_DENIED, "no credentials for S3 came with the opening, and none were found");
    else if (expired(&c))
        rc = error_set(err, LEAT_DENIED,
                       "the credentials that came with the opening have expired: open the dataset again "
                       "where fresh ones are found");
    if (rc < 0) {
        credentials_fini(&c);
        return rc;
    }
    *ret = c;
    return 0;
}

int access_backend(struct access *a, unsigned connections, const atomic_bool *cancelled,
                   struct backend **ret_backend, struct leat_error *err)
{
    struct backend_config config = {
        .given = true, .anonymous = !a, .connections = connections, .cancelled = cancelled};
    if (a && a->store) {
        config.store = a->store->store;
        config.disk_engine = a->store->disk_engine;
        config.disk_depth = a->store->disk_depth;
    } else if (a) {
        const struct proto_access *m = &a->said;
        config.endpoint = m->endpoint;
        config.region = m->region;
        config.style = m->style;
        config.ca_file = m->ca_file;
        config.anonymous = m->flags & PROTO_ACCESS_ANONYMOUS;
        config.insecure = m->flags & PROTO_ACCESS_INSECURE;
        config.credentials = give;
        config.user = a;
        config.stay = atomic_load(&a->stay);
    }
    int rc = backend_new(&config, ret_backend, err);
    return rc == -ENOMEM ? error_set(err, rc, "out of memory for a session with a server") : rc;
}
