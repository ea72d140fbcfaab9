/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c: the commands that move bytes: preload, append, index, verify. Each shows how far it is, then one result. */
#include "apps/leat/cli.h"

#include <fcntl.h>

#include "apps/leat/remote.h"
#include "dataset/dataset.h"
#include "pool/source/dataset_remote.h"

/* "a=x b=y" -> "a=x;b=y". One operand is passed as it is. NULL after a message. */
char *cli_join_sources(const struct cli *cli, int n, char **operands)
{
    size_t bytes = 1;
    for (int i = 0; i < n; i++) {
        const char *equals = strchr(operands[i], '=');
        if (operands[i][0] == '\0') {
            cli_usage_error(cli, "the dataset's name is empty");
            return NULL;
        }
        if (n > 1 && (!equals || equals == operands[i] || !equals[1])) {
            cli_usage_error(cli, "%s: several sources are given as FIELD=PATH each", operands[i]);
            return NULL;
        }
        if (n > 1 && strchr(operands[i], ';')) {
            cli_usage_error(cli, "%s: a source's path cannot have a semicolon in it", operands[i]);
            return NULL;
        }
        bytes += strlen(operands[i]) + 1;
    }
    char *text = calloc(1, bytes);
    if (!text) {
        cli_error(cli, CLI_FAILURE, "out of memory");
        return NULL;
    }
    char *at = text;
    for (int i = 0; i < n; i++) {
        if (i)
            *at++ = ';';
        at = stpcpy(at, operands[i]);
    }
    return text;
}

/* Paths become absolute here: the daemon's working folder is not ours. */
char *cli_canonical(struct cli *cli, const char *text, int *ret_code)
{
    struct dataset_spec spec;
    int rc = dataset_spec_parse(text, &spec, &cli->err);
    if (rc < 0) {
        *ret_code = rc;
        return NULL;
    }
    char *uri = dataset_spec_format(&spec);
    dataset_spec_free(&spec);
    *ret_code = uri ? 0 : error_set(&cli->err, -ENOMEM, "out of memory");
    return uri;
}

/* The dataset that the operands name, for a daemon. An enum cli_exit, after a message unless it is CLI_OK. */
static int take_dataset(struct cli *cli, int n, char **operands, char **ret_uri)
{
    AUTO_FREE char *given = cli_join_sources(cli, n, operands);
    if (!given)
        return CLI_USAGE;
    int rc;
    *ret_uri = cli_canonical(cli, given, &rc);
    return *ret_uri ? CLI_OK : cli_fail(cli, rc);
}

/* What takes long takes as long as it takes, unless --timeout was given. */
static void open_begin(struct cli *cli, struct leat_open_options *options, struct progress *progress)
{
    progress_begin(progress, cli);
    options->progress = progress_report;
    options->progress_user = progress;
    options->timeout_ns = cli->timeout_ns ? cli->timeout_ns : UINT64_MAX;
}

static void print_loaded(const struct cli *cli, struct leat_ws *ws, const char *name, const char *uri,
                         bool complete, double seconds)
{
    struct leat_ws_stat stat = {.size = sizeof(stat)};
    bool known = leat_ws_stat(ws, &stat, NULL) == 0;
    if (cli->json) {
        struct cli_json j;
        json_result_begin(&j, cli);
        json_text(&j, "name", name);
        json_text(&j, "source", uri);
        json_text(&j, "uri", leat_ws_uri(ws));
        json_text(&j, "fingerprint", leat_ws_fingerprint(ws));
        json_u64(&j, "samples", leat_ws_length(ws));
        json_bool(&j, "complete", complete);
        if (known) {
            json_u64(&j, "resident_samples", stat.resident_samples);
            json_u64(&j, "failed_samples", stat.failed_samples);
            json_u64(&j, "payload_bytes", stat.payload_bytes);
            json_u64(&j, "pool_bytes", stat.pool_bytes);
            json_u64(&j, "page_bytes", stat.page_bytes);
            json_bool(&j, "streamed", stat.streamed);
            json_u64(&j, "version", stat.version);
        }
        json_result_end(&j, seconds);
        return;
    }
    if (cli->quiet)
        return;
    char count[32], payload[SIZE_TEXT_MAX], pool[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX], took[SIZE_TEXT_MAX];
    printf("%s: %s samples", name, cli_count(leat_ws_length(ws), count));
    if (known)
        printf(", %s, %s of pool", size_format(stat.payload_bytes, payload),
               size_format(stat.pool_bytes, pool));
    if (known && stat.streamed)
        printf(" (larger than its share of the pool: the rest is streamed)");
    if (!complete)
        printf("; loading continues\n");
    else if (known && seconds > 0.0005)
        printf(" in %s, %s/s\n", cli_duration(seconds, took),
               size_format((uint64_t)((double)stat.resident_bytes / seconds), rate));
    else
        printf("\n");
}

int cmd_preload(struct cli *cli)
{
    struct leat_open_options options = {.size = sizeof(options)};
    bool wait = true;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        switch (o->id) {
        case 'n':
            options.name = o->arg;
            break;
        case 300:
            if (cli_parse_size(o->arg, &options.pool_bytes) < 0)
                return cli_usage_error(cli, "--pool %s: give a size, as 512M or 4G", o->arg);
            break;
        case 301:
            options.flags |= LEAT_OPEN_PUBLIC;
            break;
        default:
            wait = o->id == 302;
        }
    }
    if (!options.name)
        return cli_usage_error(cli, "--name NAME is needed: a set without a name ends with this command");
    if (dataset_name_check(options.name, &cli->err) < 0)
        return cli_usage_error(cli, "\"%s\": %s", options.name, cli->err.message);
    AUTO_FREE char *uri = NULL;
    int rc = take_dataset(cli, cli->noperands, cli->operands, &uri);
    if (rc != CLI_OK)
        return rc;
    AUTO_CLIENT struct leat_client *client = NULL;
    rc = cli_connect(cli, 0, &client);
    if (rc < 0)
        return cli_fail(cli, rc);
    struct progress progress;
    open_begin(cli, &options, &progress);
    AUTO_WS struct leat_ws *ws = NULL;
    if (wait)
        rc = leat_preload(client, uri, &options, &ws, &cli->err);
    else
        rc = leat_open(client, uri, &options, &ws, &cli->err);
    progress_end(&progress);
    if (rc < 0)
        return cli_fail(cli, rc);
    print_loaded(cli, ws, options.name, uri, wait, progress_seconds(&progress));
    return CLI_OK;
}

int cmd_append(struct cli *cli)
{
    struct leat_open_options options = {.size = sizeof(options)};
    const char *name = cli->operands[0];
    if (dataset_name_check(name, &cli->err) < 0)
        return cli_usage_error(cli, "\"%s\": %s", name, cli->err.message);
    AUTO_FREE char *uri = NULL;
    int rc = take_dataset(cli, cli->noperands - 1, cli->operands + 1, &uri);
    if (rc != CLI_OK)
        return rc;
    AUTO_CLIENT struct leat_client *client = NULL;
    rc = cli_connect(cli, LEAT_CONNECT_NO_START, &client);
    if (rc < 0)
        return cli_fail(cli, rc);
    struct progress progress;
    open_begin(cli, &options, &progress);
    options.flags |= LEAT_OPEN_WAIT;
    uint64_t length = 0;
    rc = leat_append(client, name, uri, &options, &length, &cli->err);
    progress_end(&progress);
    if (rc < 0)
        return cli_fail(cli, rc);
    double seconds = progress_seconds(&progress);
    char count[32], took[SIZE_TEXT_MAX];
    if (cli->json) {
        struct cli_json j;
        json_result_begin(&j, cli);
        json_text(&j, "name", name);
        json_text(&j, "source", uri);
        json_u64(&j, "samples", length);
        json_result_end(&j, seconds);
    } else if (!cli->quiet) {
        printf("%s: %s samples now, in %s\n", name, cli_count(length, count), cli_duration(seconds, took));
    }
    return CLI_OK;
}

struct index_summary {
    uint64_t samples, payload_bytes, index_bytes;
};

/* Reads the written index back: one that cannot be opened again is not worth keeping. */
static int index_summarise(int fd, struct index_summary *ret_summary, struct leat_error *err)
{
    struct index index;
    int rc = index_map(fd, &index, err);
    if (rc < 0)
        return rc;
    *ret_summary =
        (struct index_summary){index.header->nsamples, index.header->payload_bytes, index.blob_bytes};
    index_close(&index);
    return 0;
}

/* This program reads remote sources itself: no daemon is needed. */
static int index_session(const struct dataset_spec *spec, const struct backend_config *config,
                         struct backend **ret_session, struct dataset_opener *opener, struct leat_error *err)
{
    bool elsewhere = false;
    for (unsigned i = 0; i < spec->n; i++)
        elsewhere |= dataset_is_remote(spec->sources[i].uri);
    if (!elsewhere)
        return 0;
    int rc = backend_new(config, ret_session, err);
    if (rc == 0)
        remote_opener(*ret_session, opener);
    return rc;
}

int cmd_index(struct cli *cli)
{
    struct backend_config remote = {.cancelled = progress_interrupted()};
    bool cache_ok = true;
    for (const struct cli_given *o = cli->given; o->id; o++)
        if (!remote_option(&remote, o))
            cache_ok = false;
    AUTO_FREE char *uri = cli_join_sources(cli, cli->noperands, cli->operands);
    if (!uri)
        return CLI_USAGE;
    struct dataset_spec spec;
    int rc = dataset_spec_parse(uri, &spec, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);

    struct progress progress;
    progress_begin(&progress, cli);
    struct dataset_progress scan = {.report = progress_scan, .user = &progress};
    AUTO_FREE char *path = NULL;
    AUTO_CLOSE int fd = -1;
    struct backend *session = NULL;
    struct dataset_opener opener = {0};
    rc = index_session(&spec, &remote, &session, &opener, &cli->err);
    if (rc == 0)
        rc = dataset_index_write(&spec, &opener, &scan, cache_ok, &path, &fd, &cli->err);
    backend_free(session);
    double seconds = progress_seconds(&progress);
    progress_end(&progress);
    dataset_spec_free(&spec);
    struct index_summary summary = {0};
    if (rc == 0)
        rc = index_summarise(fd, &summary, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    char count[32], payload[SIZE_TEXT_MAX], size[SIZE_TEXT_MAX], took[SIZE_TEXT_MAX];
    if (cli->json) {
        struct cli_json j;
        json_result_begin(&j, cli);
        json_text(&j, "source", uri);
        json_text(&j, "index", path);
        json_u64(&j, "samples", summary.samples);
        json_u64(&j, "payload_bytes", summary.payload_bytes);
        json_u64(&j, "index_bytes", summary.index_bytes);
        json_result_end(&j, seconds);
    } else if (!cli->quiet) {
        printf("%s: %s samples, %s; the index takes %s; %s\n", path, cli_count(summary.samples, count),
               size_format(summary.payload_bytes, payload), size_format(summary.index_bytes, size),
               cli_duration(seconds, took));
    }
    return CLI_OK;
}

int cmd_verify(struct cli *cli)
{
    unsigned flags = 0;
    for (const struct cli_given *o = cli->given; o->id; o++)
        flags |= LEAT_VERIFY_SOURCE;
    const char *name = cli->operands[0];
    AUTO_CLIENT struct leat_client *client = NULL;
    AUTO_WS struct leat_ws *ws = NULL;
    int rc = cli_open_set(cli, name, &client, &ws);
    if (rc < 0)
        return cli_fail(cli, rc);
    struct progress progress;
    progress_begin(&progress, cli);
    uint64_t bad = 0;
    rc = leat_verify(ws, flags, progress_report, &progress, &bad, &cli->err);
    double seconds = progress_seconds(&progress);
    progress_end(&progress);
    if (rc < 0 && rc != LEAT_CORRUPT)
        return cli_fail(cli, rc);
    char count[32], took[SIZE_TEXT_MAX];
    if (cli->json) {
        struct cli_json j;
        json_result_begin(&j, cli);
        json_text(&j, "name", name);
        json_u64(&j, "samples", leat_ws_length(ws));
        json_u64(&j, "bad", bad);
        json_bool(&j, "source_read", flags & LEAT_VERIFY_SOURCE);
        json_text(&j, "message", rc < 0 ? cli->err.message : NULL);
        json_result_end(&j, seconds);
    }
    if (rc < 0) {
        cli_error(cli, CLI_CORRUPT, "%s: %s bad: %s", name, cli_count(bad, count), cli->err.message);
        return CLI_CORRUPT;
    }
    if (!cli->json && !cli->quiet)
        printf("%s: %s samples are as they were loaded; %s\n", name, cli_count(leat_ws_length(ws), count),
               cli_duration(seconds, took));
    return CLI_OK;
}
