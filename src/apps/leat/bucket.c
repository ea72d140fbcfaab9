/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket.c: `leat bucket create`: a bucket of `leat serve`, alone or in front of a remote one.
 *
 * Happy path: options, and a file of settings under them, become the JSON that the server keeps; the bucket
 * is made by S3's CreateBucket, signed as any request; then its list is begun, which asks the remote: a wrong
 * name or key shows now, not when a job reads.
 * Failure modes: the server names a wrong setting; if the remote does not answer, the bucket stays and the
 * command reports the cause.
 * Invariants: nothing secret is an option (`ps` shows those), is printed, or goes to Amazon.
 */
#include <stdio.h>

#include "apps/leat/remote.h"
#include "store/store.h"

enum {
    OPT_REMOTE = 420,
    OPT_REMOTE_ENDPOINT,
    OPT_REMOTE_REGION,
    OPT_REMOTE_PROFILE,
    OPT_REMOTE_ANONYMOUS,
    OPT_MODE,
    OPT_CHECK,
    OPT_CHECK_AGE,
    OPT_REMOTE_TIMEOUT,
    OPT_REMOTE_SETTINGS,
    OPT_NO_TEST
};

const struct cli_option bucket_options[] = {
    {OPT_REMOTE, "remote", "URL", "the remote: s3://BUCKET/PREFIX or file:///FOLDER"},
    {OPT_REMOTE_ENDPOINT, "remote-endpoint", "URL", "the remote's server, where it is not Amazon's"},
    {OPT_REMOTE_REGION, "remote-region", "NAME", "and its region"},
    {OPT_REMOTE_PROFILE, "remote-profile", "NAME", "keys for it: of ~/.aws of the server's user"},
    {OPT_REMOTE_ANONYMOUS, "remote-anonymous", NULL, "it is public: no keys"},
    {OPT_MODE, "mode", "MODE",
     "a PUT is acknowledged when it is there and here: through (default); here: back"},
    {OPT_CHECK, "check", "WHEN", "is the remote asked whether it has changed: never (default), age, always"},
    {OPT_CHECK_AGE, "check-age", "SECONDS", "with --check=age: not more often than this (60)"},
    {OPT_REMOTE_TIMEOUT, "remote-timeout", "SECONDS", "of a request to the remote (30)"},
    {OPT_REMOTE_SETTINGS, "remote-settings", "FILE",
     "these and others as JSON, as keys; - for standard input"},
    {OPT_NO_TEST, "no-test", NULL, "do not ask the remote once, to see that it answers"},
    REMOTE_OPTIONS,
    {0},
};

/* Options that are a setting of the remote's by another name. */
static const struct {
    int id;
    const char *setting;
    enum { TEXT, SECONDS, TRUE } kind;
} settings[] = {
    {OPT_REMOTE, "uri", TEXT},
    {OPT_REMOTE_ENDPOINT, "endpoint", TEXT},
    {OPT_REMOTE_REGION, "region", TEXT},
    {OPT_REMOTE_PROFILE, "profile", TEXT},
    {OPT_REMOTE_ANONYMOUS, "anonymous", TRUE},
    {OPT_MODE, "mode", TEXT},
    {OPT_CHECK, "check", TEXT},
    {OPT_CHECK_AGE, "age_s", SECONDS},
    {OPT_REMOTE_TIMEOUT, "timeout_s", SECONDS},
};

/* 1: taken; 0: none of these; negative: said what is wrong. */
static int take(struct cli *cli, json_t *remote, const struct cli_given *o)
{
    uint64_t seconds = 0;
    size_t i = 0;
    while (i < ARRAY_LEN(settings) && settings[i].id != o->id)
        i++;
    if (i == ARRAY_LEN(settings))
        return 0;
    if (settings[i].kind == SECONDS && (cli_parse_index(o->arg, UINT32_MAX, &seconds) < 0 || seconds == 0)) {
        cli_usage_error(cli, "%s: give a whole number of seconds", o->arg);
        return -1;
    }
    json_t *value = settings[i].kind == TEXT      ? json_string(o->arg)
                    : settings[i].kind == SECONDS ? json_integer((json_int_t)seconds)
                                                  : json_true();
    if (!value) {
        cli_usage_error(cli, "%s: no UTF-8", o->arg);
        return -1;
    }
    return json_object_set_new(remote, settings[i].setting, value) < 0 ? -1 : 1;
}

/* Those of the file, under those of the options. */
static int take_file(struct cli *cli, json_t *remote, const char *path)
{
    json_error_t why;
    json_t *root = strcmp(path, "-") == 0 ? json_loadf(stdin, JSON_REJECT_DUPLICATES, &why)
                                          : json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root)) {
        const char *near = root ? NULL : strstr(why.text, " near "); /* what follows may be a key */
        json_decref(root);
        return error_set(
            &cli->err, LEAT_INVALID,
            "%.200s: settings are one JSON object, as {\"access_key\": ..., \"secret_key\": ...}%s%.*s", path,
            root ? "" : ": ", near ? (int)(near - why.text) : 200, root ? "" : why.text);
    }
    int bad = json_object_update_missing(remote, root);
    json_decref(root);
    return bad < 0 ? -ENOMEM : 0;
}

static int found_one(void *user, const struct backend_object *object)
{
    (void)user, (void)object;
    return -ECANCELED;
}

static void say(const struct cli *cli, const char *name, const json_t *remote)
{
    const char *uri = json_string_value(json_object_get(remote, "uri"));
    if (!cli->json) {
        if (!cli->quiet)
            printf(uri ? "%s: made, in front of %s\n" : "%s: made\n", name, uri);
        return;
    }
    json_t *shown = uri ? json_deep_copy(remote) : json_null();
    json_object_del(shown, "secret_key");
    json_object_del(shown, "token");
    json_t *root = json_pack("{s:s, s:o}", "bucket", name, "remote", shown);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

/* Makes it, and looks whether its remote answers. */
static int create(struct cli *cli, const struct backend_config *config, const char *name, json_t *remote,
                  bool test)
{
    struct backend *b;
    AUTO_FREE char *uri = NULL;
    /* One line of ASCII: it goes into a header. */
    AUTO_FREE char *text =
        json_object_size(remote) ? json_dumps(remote, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    if (asprintf(&uri, "s3://%s", name) < 0) {
        uri = NULL;
        return -ENOMEM;
    }
    int rc = backend_new(config, &b, &cli->err);
    if (rc < 0)
        return rc;
    rc = backend_bucket_create(b, uri, text, &cli->err);
    if (rc == 0)
        say(cli, name, remote);
    if (rc == 0 && text && test) {
        rc = backend_list(b, uri, true, NULL, found_one, NULL, &cli->err);
        rc = rc == -ECANCELED ? 0 : rc;
        if (rc < 0)
            error_prefix(&cli->err, rc,
                         "the bucket was created, but its remote cannot be listed: is its address "
                         "right, and are its keys?");
    }
    if (text)
        explicit_bzero(text, strlen(text));
    backend_free(b);
    return rc;
}

int cmd_bucket(struct cli *cli)
{
    struct backend_config config = {.tries = 2};
    const char *file = NULL;
    bool test = true;
    int rc = 0;
    json_t *remote = json_object();
    for (const struct cli_given *o = cli->given; rc == 0 && o->id; o++) {
        if (o->id == OPT_REMOTE_SETTINGS)
            file = o->arg;
        else if (o->id == OPT_NO_TEST)
            test = false;
        else if (!remote_option(&config, o))
            rc = take(cli, remote, o) < 0 ? CLI_USAGE : 0;
    }
    const char *name = cli->operands[1];
    if (rc == 0 && strcmp(cli->operands[0], "create") != 0)
        rc = cli_usage_error(cli, "create, and the new bucket's name");
    else if (rc == 0 && json_object_size(remote) && !json_object_get(remote, "uri") && !file)
        rc = cli_usage_error(cli, "no remote is given: add --remote URL");
    else if (rc == 0 && strchr(name, '/'))
        rc = cli_usage_error(cli, "%s: a bucket's name, without s3://", name);
    else if (rc == 0 && !store_bucket_name_ok(name))
        rc = cli_usage_error(
            cli, "%s: a bucket's name has 3 to 63 of a-z, 0-9, . and -; no . or - at an end, and no ..",
            name);
    if (rc > 0) {
        json_decref(remote);
        return rc;
    }
    remote_begin(cli, &config);
    rc = file ? take_file(cli, remote, file) : 0;
    if (rc == 0)
        rc = create(cli, &config, name, remote, test);
    json_decref(remote);
    return rc < 0 ? cli_fail(cli, rc) : CLI_OK;
}
