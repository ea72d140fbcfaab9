/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c: `leat serve`: a store and its S3 service in the foreground.
 *
 * Happy path: options set the keys of [serve] and [store] of leatd.conf. By default objects lie below the
 * user's data folder, and the command makes a keys file in the user's configuration folder. Its output can be
 * pasted and has no secret, as the keys file has AWS's form.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "apps/leat/cli.h"
#include "base/fdio.h"
#include "base/log.h"
#include "serve/s3/keys.h"
#include "serve/serve.h"

enum {
    OPT_STORE = 400,
    OPT_LISTEN,
    OPT_KEYS,
    OPT_NEW_KEYS,
    OPT_ANONYMOUS,
    OPT_CERT,
    OPT_KEY,
    OPT_REGION,
    OPT_DOMAIN,
    OPT_CAPACITY,
    OPT_MEMORY,
    OPT_THREADS,
    OPT_ADMIN_TOKEN,
    OPT_SCRUB,
    OPT_SCRUB_RATE,
    OPT_UPLOAD_AGE,
    OPT_FORGET_MISSING,
    OPT_DISKS_ENCRYPTED
};

static const struct {
    int id;
    const char *section, *key;
} settings[] = {
    {OPT_STORE, "store", "paths"},
    {OPT_LISTEN, "serve", "listen"},
    {OPT_KEYS, "serve", "keys_file"},
    {OPT_CERT, "serve", "tls_cert"},
    {OPT_KEY, "serve", "tls_key"},
    {OPT_REGION, "serve", "region"},
    {OPT_DOMAIN, "serve", "domains"},
    {OPT_CAPACITY, "store", "capacity"},
    {OPT_MEMORY, "store", "memory"},
    {OPT_THREADS, "serve", "threads"},
    {OPT_ADMIN_TOKEN, "serve", "admin_token_file"},
    {OPT_SCRUB, "store", "scrub"},
    {OPT_SCRUB_RATE, "store", "scrub_rate"},
    {OPT_UPLOAD_AGE, "store", "upload_age"},
};

const struct cli_option serve_options[] = {
    {OPT_STORE, "store", "DIR", "where objects lie; one a disk, may be given several times"},
    {OPT_LISTEN, "listen", "ADDR", "HOST:PORT or unix:PATH; may be given several times (127.0.0.1:9000)"},
    {OPT_KEYS, "keys", "FILE", "users and permissions, in the form of AWS's credentials; see the man page"},
    {OPT_NEW_KEYS, "new-keys", NULL, "make that file first, with one key that may do everything"},
    {OPT_ANONYMOUS, "anonymous", NULL, "no keys: all processes of this machine may do everything"},
    {OPT_CERT, "tls-cert", "FILE", "serve by HTTPS, with this certificate (PEM)"},
    {OPT_KEY, "tls-key", "FILE", "and its private key"},
    {OPT_REGION, "region", "NAME", "what clients sign for (us-east-1)"},
    {OPT_DOMAIN, "domain", "NAME",
     "a name of this server; BUCKET.NAME is a bucket; may be repeated (localhost)"},
    {OPT_CAPACITY, "capacity", "SIZE", "most that objects may take in each DIR (what the disk has)"},
    {OPT_MEMORY, "memory", "SIZE", "for bodies of requests under way (256MiB)"},
    {OPT_THREADS, "threads", "N", "that serve connections (one a CPU, at most 4)"},
    {OPT_ADMIN_TOKEN, "admin-token", "FILE", "the token for administration by /v1; see the man page"},
    {OPT_SCRUB, "scrub", "TIME", "all objects are read again and verified once in so long, or off (30d)"},
    {OPT_SCRUB_RATE, "scrub-rate", "SIZE", "most that this reads of each DIR in a second (64MiB)"},
    {OPT_UPLOAD_AGE, "upload-age", "TIME",
     "uploads in parts without a new part for this time are aborted (7d)"},
    {OPT_FORGET_MISSING, "forget-missing", NULL,
     "a disk of it that no --store names is gone for good, and all that was on it"},
    {OPT_DISKS_ENCRYPTED, "disks-encrypted", NULL,
     "the disks are encrypted: requests for server-side encryption AES256 are met"},
    {0},
};

/* "$XDG_DATA_HOME/leat/store" and the like. Caller frees; NULL: there is no home. */
static char *home_path(const char *variable, const char *below_home, const char *name)
{
    const char *base = getenv(variable), *home = getenv("HOME");
    char *path = NULL;
    if (base && base[0] == '/')
        return asprintf(&path, "%s/leat/%s", base, name) < 0 ? NULL : path;
    if (!home || home[0] != '/')
        return NULL;
    return asprintf(&path, "%s/%s/leat/%s", home, below_home, name) < 0 ? NULL : path;
}

static int set(struct cli *cli, struct serve_config *c, const char *section, const char *key,
               const char *value)
{
    struct ini_part parts[] = {{.keys = serve_config_keys, .into = c}, {0}};
    return ini_set(parts, section, key, value, &cli->err);
}

/* Defaults of options that were not given. */
static int defaults(struct cli *cli, struct serve_config *c, bool *ret_new_keys)
{
    int rc = 0;
    if (!c->npaths) {
        AUTO_FREE char *path = home_path("XDG_DATA_HOME", ".local/share", "store");
        if (!path)
            return error_set(&cli->err, LEAT_INVALID, "no --store, and no HOME to make one in");
        fd_make_parents(path);
        rc = set(cli, c, "store", "paths", path);
    }
    if (rc == 0 && !c->keys_file && !c->anonymous) {
        AUTO_FREE char *path = home_path("XDG_CONFIG_HOME", ".config", "keys");
        if (!path)
            return error_set(&cli->err, LEAT_INVALID, "no --keys, and no HOME to make some in");
        *ret_new_keys = access(path, F_OK) != 0;
        rc = set(cli, c, "serve", "keys_file", path);
    }
    return rc;
}

static void say_json(const struct serve *serve, const struct serve_config *c)
{
    struct cli_json j;
    json_begin(&j, stdout, true);
    json_open(&j, "endpoints", '[');
    for (unsigned i = 0; serve_endpoint(serve, i); i++)
        json_text(&j, NULL, serve_endpoint(serve, i));
    json_close(&j, ']');
    json_open(&j, "stores", '[');
    for (unsigned i = 0; i < c->npaths; i++)
        json_text(&j, NULL, c->paths[i]);
    json_close(&j, ']');
    json_text(&j, "keys", c->keys_file);
    json_text(&j, "region", c->region);
    json_u64(&j, "pid", (uint64_t)getpid());
    json_close(&j, '}');
}

/* As a shell reads it back: what is not plain stands between quotes. */
static void put_word(const char *word)
{
    if (*word &&
        !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,-")]) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, stdout);
    putchar('\'');
}

/* The first address that tools can call, "" if there is none. "All of this host's" is no address to call. */
static void for_tools(const struct serve *serve, char *ret_endpoint, size_t room)
{
    static const char *const all[] = {"://0.0.0.0:", "://127.0.0.1:", "://[::]:", "://[::1]:"};
    *ret_endpoint = 0;
    for (unsigned i = 0; serve_endpoint(serve, i) && !*ret_endpoint; i++) {
        const char *endpoint = serve_endpoint(serve, i);
        if (strncmp(endpoint, "http", 4) != 0)
            continue;
        snprintf(ret_endpoint, room, "%s", endpoint);
        for (unsigned k = 0; k < ARRAY_LEN(all); k += 2) {
            const char *at = strstr(endpoint, all[k]);
            if (at)
                snprintf(ret_endpoint, room, "%.*s%s%s", (int)(at - endpoint), endpoint, all[k + 1],
                         at + strlen(all[k]));
        }
    }
}

static void say_lines(const struct serve_config *c, const char *endpoint)
{
    printf("\nIn another terminal:\n\n");
    printf("  export %s=",
           c->keys_file ? "AWS_SHARED_CREDENTIALS_FILE" : "AWS_SECRET_ACCESS_KEY=any AWS_ACCESS_KEY_ID");
    put_word(c->keys_file ? c->keys_file : "any");
    printf(" AWS_REGION=%s AWS_ENDPOINT_URL=%s\n", c->region, endpoint);
    const char *unsigned_option = c->keys_file ? "" : " --no-sign-request";
    printf("  aws --endpoint-url %s%s s3 mb s3://bucket\n", endpoint, unsigned_option);
    printf("  leat cp -r FOLDER s3://bucket/FOLDER%s\n", unsigned_option);
    printf("\nIn a browser %s shows its disks, buckets and jobs.\n", endpoint);
}

static void say(const struct cli *cli, const struct serve *serve, const struct serve_config *c, bool new_keys)
{
    char endpoint[300];
    for_tools(serve, endpoint, sizeof(endpoint));
    if (cli->json) {
        say_json(serve, c);
        return;
    }
    if (cli->quiet)
        return;
    printf("Serving S3 at");
    for (unsigned i = 0; serve_endpoint(serve, i); i++)
        printf(" %s", serve_endpoint(serve, i));
    printf(", objects in");
    for (unsigned i = 0; i < c->npaths; i++)
        printf(" %s", c->paths[i]);
    printf("\n");
    if (new_keys)
        printf("Made %s, with one key that may do everything\n", c->keys_file);
    if (*endpoint)
        say_lines(c, endpoint);
    else
        printf("\nTools of S3 call by TCP: --listen 127.0.0.1:9000 beside it gives them an address.\n");
    printf("Ctrl-C ends it.\n");
}

/* Until a signal ends it. SIGHUP: reload keys and certificates. */
static int wait_for_end(struct serve *serve, const sigset_t *set)
{
    for (;;) {
        int number = 0;
        if (sigwait(set, &number) != 0)
            return CLI_FAILURE;
        if (number != SIGHUP)
            return CLI_OK;
        serve_reload(serve);
    }
}

static int run(struct cli *cli, struct serve_config *c, bool new_keys)
{
    struct serve *serve = NULL;
    sigset_t set;
    struct rlimit files;
    int rc = defaults(cli, c, &new_keys);
    if (rc == 0)
        rc = serve_config_finish(c, &cli->err);
    if (rc == 0 && new_keys)
        rc = keys_create(c->keys_file, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    /* Before there are threads, so that none of them is interrupted. */
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    umask(077);
    log_set_output(STDERR_FILENO, "leat serve");
    rc = serve_new(c, &serve, &cli->err);
    if (rc == -EADDRINUSE || rc == -EADDRNOTAVAIL)
        return cli_error(cli, CLI_FAILURE, "%s; --listen HOST:PORT chooses another address of this host",
                         cli->err.message);
    if (rc < 0)
        return cli_fail(cli, rc);
    say(cli, serve, c, new_keys);
    fflush(stdout);
    rc = wait_for_end(serve, &set);
    serve_free(serve);
    return rc;
}

static int set_option(struct cli *cli, struct serve_config *c, int id, const char *arg)
{
    for (unsigned i = 0; i < ARRAY_LEN(settings); i++) {
        if (settings[i].id == id)
            return set(cli, c, settings[i].section, settings[i].key, arg);
    }
    return 0;
}

int cmd_serve(struct cli *cli)
{
    struct serve_config c;
    int rc = 0;
    bool new_keys = false;
    serve_config_init(&c);
    for (const struct cli_given *o = cli->given; rc == 0 && o->id; o++) {
        new_keys |= o->id == OPT_NEW_KEYS;
        c.anonymous |= o->id == OPT_ANONYMOUS;
        c.forget_missing |= o->id == OPT_FORGET_MISSING;
        c.disks_encrypted |= o->id == OPT_DISKS_ENCRYPTED;
        rc = set_option(cli, &c, o->id, o->arg);
    }
    int result;
    if (rc < 0)
        result = cli_usage_error(cli, "%s", cli->err.message);
    else if (new_keys && !c.keys_file)
        result = cli_usage_error(cli, "--new-keys makes the file that --keys names");
    else
        result = run(cli, &c, new_keys);
    ini_fini(serve_config_keys, &c);
    return result;
}
