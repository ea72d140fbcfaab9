/* SPDX-License-Identifier: Apache-2.0 */
/* remote.c: options of S3, and `leat ls s3://...`: printed as the pages come, so that the first key does not wait for the last. */
#include "apps/leat/remote.h"

#include <signal.h>
#include <time.h>

bool remote_option(struct backend_config *config, const struct cli_given *option)
{
    const char *arg = option->arg;
    switch (option->id) {
    case 360:
        config->endpoint = arg;
        return true;
    case 361:
        config->region = arg;
        return true;
    case 362:
        config->profile = arg;
        return true;
    case 363:
        return config->anonymous = true;
    case 364:
        return config->insecure = true;
    case 365:
        config->ca_file = arg;
        return true;
    default:
        return false;
    }
}

void remote_begin(const struct cli *cli, struct backend_config *config)
{
    if (cli->timeout_ns && cli->timeout_ns != UINT64_MAX)
        config->timeout_ns = cli->timeout_ns;
    signal(SIGPIPE, SIG_IGN);
}

void remote_time(int64_t t, char out[24])
{
    time_t seconds = (time_t)t;
    struct tm tm;
    if (t <= 0 || !localtime_r(&seconds, &tm) || strftime(out, 24, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(out, 24, "%19s", "");
}

struct listing {
    struct cli_json *j; /* NULL: text */
    bool full;
    uint64_t shown, bytes, limit;
    size_t shown_from; /* of an object's address: names are shown from here on */
};

static int print_object(void *user, const struct backend_object *o)
{
    struct listing *l = user;
    const char *name = o->uri + MIN(l->shown_from, strlen(o->uri));
    if (l->shown == l->limit)
        return -ECANCELED; /* enough: not an error */
    if (ferror(stdout))
        return -EPIPE;
    l->shown++;
    l->bytes += o->bytes;
    if (l->j) {
        json_open(l->j, NULL, '{');
        json_str(l->j, "key", name, strlen(name));
        json_text(l->j, "uri", o->uri);
        json_bool(l->j, "prefix", o->prefix);
        if (!o->prefix) {
            json_u64(l->j, "bytes", o->bytes);
            json_text(l->j, "etag", o->etag);
            json_u64(l->j, "modified", o->modified > 0 ? (uint64_t)o->modified : 0);
        }
        json_close(l->j, '}');
        return 0;
    }
    if (l->full) {
        char size[SIZE_TEXT_MAX], when[24];
        remote_time(o->prefix ? 0 : o->modified, when);
        printf("%10s  %s  ", o->prefix ? "" : size_format(o->bytes, size), when);
    }
    cli_print_key(stdout, name, strlen(name));
    putchar('\n');
    return 0;
}

static int list_plain(struct backend *b, const char *uri, struct listing *l, struct leat_error *err)
{
    struct backend_stat stat;
    int rc = backend_stat_object(b, uri, &stat, err);
    if (rc < 0)
        return rc;
    struct backend_object o = {
        .uri = uri, .name = uri, .bytes = stat.bytes, .etag = stat.etag, .modified = stat.modified};
    l->shown_from = 0;
    return print_object(l, &o);
}

int remote_list(struct cli *cli, const struct backend_config *config, const char *uri, bool full,
                bool recursive, uint64_t limit)
{
    struct backend *b;
    struct cli_json j;
    struct listing l = {.full = full, .limit = limit};
    const char *slash = strrchr(uri, '/');
    l.shown_from = slash && slash - uri > 4 ? (size_t)(slash - uri) + 1 : strlen(uri) + 1;
    int rc = backend_new(config, &b, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (cli->json) {
        json_begin(&j, stdout, false);
        json_text(&j, "uri", uri);
        json_open(&j, "objects", '[');
        l.j = &j;
    }
    rc = strncasecmp(uri, "http", 4) == 0
             ? list_plain(b, uri, &l, &cli->err)
             : backend_list(b, uri, recursive, NULL, print_object, &l, &cli->err);
    if (rc == -ECANCELED && l.shown == limit)
        rc = 0;
    if (cli->json) {
        json_close(&j, ']');
        json_u64(&j, "count", l.shown);
        json_u64(&j, "bytes", l.bytes);
        json_close(&j, '}');
    }
    backend_free(b);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (l.shown == 0 && limit)
        return cli_error(cli, CLI_NOT_FOUND, "%.300s: nothing is there", uri);
    return CLI_OK;
}
