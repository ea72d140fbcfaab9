/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: store, operations, keys, workers, service, HTTP server, in this order; a reload_thread's thread looks once a second whether keys or
 * certificates are others.
 * Failure modes: what cannot start takes what was started with it, and says why. A keys file that is broken later is said once; the old keys stay.
 * Invariants: the server ends first, then the workers whose answers it needed, then what they worked on.
 */
#include "serve/serve.h"

#include "base/cond.h"
#include "base/log.h"
#include "base/budget.h"
#include "jobs/jobs.h"
#include "leat-config.h"
#include "rpc/auth.h"
#include "serve/admin/admin.h"
#include "http/server/http_server.h"
#include "http/server/workers.h"
#include "serve/s3/keys.h"
#include "objects/objects.h"
#include "serve/s3/service.h"
#include "http/server/site.h"
#include "objects/tier/tier.h"
#include "store/store.h"

#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define ENDPOINTS_MAX    16u
#define JOBS_GRACE_NS    (30 * NS_PER_S)
#define WAITERS          32u  /* threads that wait for the remotes of buckets, at most half of them for one */
#define WAITING_MAX      256u /* requests, for each remote */

#define OPEN_OBJECTS_MIN 64u
#define OPEN_OBJECTS_MAX 16384u

struct serve {
    struct budget budget;
    struct store *store;
    struct jobs *jobs;
    struct tier *tier;
    struct objects *objects;
    struct keyring *keys;
    struct site *site;
    struct http_workers *workers, *waiters;
    struct s3_service *service;
    struct admin *admin;
    char *token, node_name[256];
    struct http_server *http;
    uint64_t grace_ns;
    char *cert, *key;
    struct timespec cert_time;
    unsigned nendpoints;
    char endpoints[ENDPOINTS_MAX][160];

    pthread_t reload_thread;
    bool kept, ending; /* ending: under the lock */
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static void on_request(void *user, struct http_request *req)
{
    struct serve *s = user;
    if (admin_wants(req))
        admin_request(s->admin, req);
    else
        s3_service_request(s->service, req);
}

static void on_refuse(void *user, const struct http_refusal *refusal, struct bytes_out *headers,
                      struct bytes_out *body)
{
    struct serve *s = user;
    if (!admin_refuse(refusal, headers, body))
        s3_service_refuse(s->service, refusal, headers, body);
}

/* --- keys and certificates that change ---------------------------------------------------------------------------------------- */

static struct timespec time_of(const char *path)
{
    struct stat st;
    return path && stat(path, &st) == 0 ? st.st_mtim : (struct timespec){0};
}

void serve_reload(struct serve *s)
{
    struct leat_error err = {0};
    int rc = keyring_check(s->keys, &err);
    if (rc < 0)
        log_error("the keys stay as they were: %s", err.message);
    else if (rc > 0)
        log_info("the keys were read again");
    struct timespec now = time_of(s->cert);
    if (now.tv_sec == s->cert_time.tv_sec && now.tv_nsec == s->cert_time.tv_nsec)
        return;
    s->cert_time = now;
    if (http_server_reload_tls(s->http, &err) < 0)
        log_error("the certificate stays as it was: %s", err.message);
    else
        log_info("the certificate was read again");
}

static void *keep(void *user)
{
    struct serve *s = user;
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        if (cond_wait_until(&s->wake, &s->lock, clock_now_ns() + NS_PER_S) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&s->lock);
        serve_reload(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- start and end --------------------------------------------------------------------------------------------------------------- */

static int start_http(struct serve *s, const struct serve_config *c, struct leat_error *err)
{
    struct http_listen listen[ENDPOINTS_MAX];
    bool tls = c->tls_cert != NULL;
    if (c->nlisten > ENDPOINTS_MAX)
        return error_set(err, LEAT_INVALID, "listen: %u addresses; %u are allowed", c->nlisten,
                         ENDPOINTS_MAX);
    for (unsigned i = 0; i < c->nlisten; i++)
        listen[i] = (struct http_listen){.address = c->listen[i],
                                         .tls = tls && strncmp(c->listen[i], "unix:", 5) != 0};
    struct http_server_config config = {
        .listen = listen,
        .nlisten = c->nlisten,
        .reactors = c->threads,
        .cert_file = c->tls_cert,
        .key_file = c->tls_key,
        .handler = {.request = on_request, .refuse = on_refuse, .user = s},
        .workers = s->workers,
    };
    int rc = http_server_new(&config, &s->http, err);
    for (unsigned i = 0; rc == 0 && i < c->nlisten; i++) {
        const char *address = http_server_address(s->http, i);
        bool local = strncmp(address, "unix:", 5) == 0;
        snprintf(s->endpoints[i], sizeof(s->endpoints[i]), "%s%.140s",
                 local ? ""
                 : tls ? "https://"
                       : "http://",
                 address);
        s->nendpoints++;
    }
    return rc;
}

/* It goes into a header: text. */
static int load_token(struct serve *s, const char *path, struct leat_error *err)
{
    void *bytes = NULL;
    size_t len = 0;
    int rc = path ? net_token_load(path, &bytes, &len, err) : 0;
    if (rc < 0 || !path)
        return rc;
    s->token = strndup(bytes, len);
    net_token_free(bytes, len);
    if (!s->token)
        return error_set(err, -ENOMEM, "out of memory");
    for (const char *c = s->token; *c; c++) {
        if (*c <= ' ' || *c > '~')
            return error_set(err, LEAT_INVALID,
                             "admin_token_file %s: it goes into a header of HTTP, so only printable ASCII "
                             "without spaces is "
                             "allowed: openssl rand -hex 32",
                             path);
    }
    return strlen(s->token) == len
               ? 0
               : error_set(err, LEAT_INVALID, "admin_token_file %s: it has a NUL in it", path);
}

static int start_admin(struct serve *s, const struct serve_config *c, struct leat_error *err)
{
    int rc = load_token(s, c->admin_token_file, err);
    if (rc < 0)
        return rc;
    if (c->node_name)
        snprintf(s->node_name, sizeof(s->node_name), "%s", c->node_name);
    else if (gethostname(s->node_name, sizeof(s->node_name) - 1) < 0)
        snprintf(s->node_name, sizeof(s->node_name), "localhost");
    struct admin_config config = {.objects = s->objects,
                                  .tier = s->tier,
                                  .store = s->store,
                                  .jobs = s->jobs,
                                  .pool = c->pool,
                                  .site = s->site,
                                  .workers = s->workers,
                                  .token = s->token,
                                  .node_name = s->node_name,
                                  .version = LEAT_VERSION};
    return admin_new(&config, &s->admin, err);
}

/*
 * Objects that stay open: what is asked for again is answered on the reactor's thread then, without a worker that opens it. A quarter of the
 * descriptors that there may be, since connections want most of them; each costs about a kilobyte of ours, and an inode that the kernel keeps.
 */
static unsigned open_objects(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return 0;
    uint64_t quarter = MIN((uint64_t)files.rlim_cur / 4, (uint64_t)OPEN_OBJECTS_MAX);
    return (unsigned)MAX(quarter, (uint64_t)OPEN_OBJECTS_MIN);
}

/* The journal lies in the folder "jobs" of the first path that works; what other paths have of it goes there. */
static int start_jobs(struct serve *s, struct leat_error *err)
{
    AUTO_FREE struct store_status *status = malloc(sizeof(*status));
    char(*dirs)[PATH_MAX] = calloc(STORE_PATHS_MAX, sizeof(*dirs));
    const char *others[STORE_PATHS_MAX];
    unsigned n = 0;
    if (!status || !dirs) {
        free(dirs);
        return error_set(err, -ENOMEM, "out of memory");
    }
    store_status(s->store, status);
    for (unsigned i = 0; i < status->npaths; i++) {
        if (status->paths[i].state != STORE_PATH_OK)
            continue;
        snprintf(dirs[n], sizeof(*dirs), "%s/jobs", status->paths[i].path);
        others[n] = dirs[n];
        n++;
    }
    int rc = jobs_new(&(struct jobs_config){.dir = n ? others[0] : NULL,
                                            .others = others + 1,
                                            .nothers = n ? n - 1 : 0,
                                            .others_missing = n < status->npaths},
                      &s->jobs, err);
    free(dirs);
    return rc;
}

static int start(struct serve *s, const struct serve_config *c, struct leat_error *err)
{
    struct store_config store = {.paths = (const char *const *)c->paths,
                                 .npaths = c->npaths,
                                 .capacity_bytes = c->capacity_bytes,
                                 .high_percent = c->high_percent,
                                 .low_percent = c->low_percent,
                                 .scrub_period_s =
                                     c->scrub_ns == UINT64_MAX ? UINT64_MAX : c->scrub_ns / NS_PER_S,
                                 .scrub_rate = c->scrub_rate,
                                 .upload_age_s = c->upload_age_ns / NS_PER_S,
                                 .forget_missing = c->forget_missing,
                                 .fd_cache = open_objects(),
                                 .budget = &s->budget};
    int rc = keyring_new(c->keys_file, c->anonymous, &s->keys, err);
    if (rc == 0)
        rc = site_new((const char *const *)c->domains, (const char *const *)c->listen, &s->site);
    if (rc == 0)
        rc = store_new(&store, &s->store, err);
    if (rc == 0)
        rc = start_jobs(s, err);
    if (rc == 0)
        rc = tier_new(&(struct tier_config){.store = s->store, .jobs = s->jobs, .budget = &s->budget},
                      &s->tier, err);
    if (rc == 0)
        rc = objects_new(s->store, s->tier, &s->objects);
    if (rc == 0)
        rc = http_workers_new(0, 0, &s->workers, err);
    if (rc == 0)
        rc = http_workers_new(WAITERS, WAITING_MAX, &s->waiters, err);
    struct s3_service_config service = {.objects = s->objects,
                                        .keys = s->keys,
                                        .workers = s->workers,
                                        .waiters = s->waiters,
                                        .budget = &s->budget,
                                        .region = c->region,
                                        .disks_encrypted = c->disks_encrypted,
                                        .domains = (const char *const *)c->domains,
                                        .site = s->site};
    if (rc == 0)
        rc = s3_service_new(&service, &s->service);
    if (rc == 0)
        rc = start_admin(s, c, err);
    if (rc == 0) {
        jobs_begin(s->jobs);
        admin_begin(s->admin);
    }
    if (rc == 0)
        rc = start_http(s, c, err);
    if (rc == 0)
        admin_watch(s->admin, s->http);
    if (rc == 0 && c->tls_cert) {
        s->cert = strdup(c->tls_cert);
        s->cert_time = time_of(s->cert);
    }
    if (rc == 0) {
        rc = -pthread_create(&s->reload_thread, NULL, keep, s);
        s->kept = rc == 0;
    }
    return rc;
}

int serve_new(const struct serve_config *config, struct serve **ret_serve, struct leat_error *err)
{
    struct serve *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    s->grace_ns = config->grace_ns;
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->wake);
    budget_init(&s->budget, config->memory_bytes);
    int rc = start(s, config, err);
    if (rc < 0) {
        if (err && !err->message[0])
            error_sys(err, rc, "cannot serve");
        serve_free(s);
        return rc;
    }
    *ret_serve = s;
    return 0;
}

const char *serve_endpoint(const struct serve *serve, unsigned i)
{
    return i < serve->nendpoints ? serve->endpoints[i] : NULL;
}

struct store *serve_store(struct serve *s)
{
    return s->store;
}

bool serve_may_read(void *user, uint32_t uid, const char *bucket)
{
    struct serve *s = user;
    struct objects_bucket b;
    char text[4096];
    struct passwd pw, *found = NULL;
    if (uid == geteuid() || uid == 0)
        return true;
    struct keys *keys = keyring_get(s->keys);
    const struct keys_user *who = NULL;
    if (getpwuid_r(uid, &pw, text, sizeof(text), &found) == 0 && found)
        who = keys_named(keys, pw.pw_name);
    if (objects_bucket_get(s->objects, bucket, &b, NULL) < 0)
        b.owner[0] = 0;
    bool may = keys_may(keys, who ? who : keys_anonymous(keys), bucket, b.owner, KEYS_READ);
    keys_unref(keys);
    return may;
}

void serve_free(struct serve *s)
{
    if (!s)
        return;
    if (s->kept) {
        pthread_mutex_lock(&s->lock);
        s->ending = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->reload_thread, NULL);
    }
    if (s->http)
        http_server_stop(s->http, s->grace_ns);
    jobs_halt(s->jobs);
    tier_stop(s->tier); /* workers may wait for a remote */
    http_workers_free(s->workers);
    http_workers_free(s->waiters);
    http_server_free(s->http);
    if (jobs_stop(s->jobs, JOBS_GRACE_NS) < 0)
        return; /* what a job still works on is left to the end of the process */
    s3_service_free(s->service);
    admin_free(s->admin);
    if (s->token)
        explicit_bzero(s->token, strlen(s->token));
    free(s->token);
    objects_free(s->objects);
    tier_free(s->tier);
    jobs_free(s->jobs);
    store_free(s->store);
    keyring_free(s->keys);
    site_free(s->site);
    free(s->cert);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
