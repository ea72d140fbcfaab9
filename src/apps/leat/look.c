/* SPDX-License-Identifier: Apache-2.0 */
/* look.c: the commands that look at sets: ls, stat, cat. None of them starts a daemon or loads anything. */
#include "apps/leat/remote.h"

#include "base/utf8.h"
#include "wire/address.h"

#include <inttypes.h>

/* A path that is there, but in no pool: what makes a set of it. */
static int say_how_to_load(struct cli *cli, const char *text, int rc)
{
    if (access(text, F_OK) != 0)
        return rc;
    return error_set(&cli->err, rc, "%.200s is not in the pool: leat preload %.200s --name NAME loads it",
                     text, text);
}

int cli_open_set(struct cli *cli, const char *text, struct leat_client **ret_client, struct leat_ws **ret_ws)
{
    int rc = 0;
    AUTO_FREE char *uri = cli_set_uri(text);
    if (!uri)
        return -ENOMEM;
    if (address_of(uri) != ADDRESS_SET) {
        AUTO_FREE char *path = uri;
        uri = cli_canonical(cli, path, &rc);
        if (!uri)
            return rc;
    }
    rc = cli_connect(cli, LEAT_CONNECT_NO_START, ret_client);
    if (rc < 0)
        return rc;
    struct leat_open_options options = {
        .size = sizeof(options), .flags = LEAT_OPEN_NO_LOAD, .timeout_ns = cli->timeout_ns};
    rc = leat_open(*ret_client, uri, &options, ret_ws, &cli->err);
    return rc == LEAT_NOT_FOUND ? say_how_to_load(cli, text, rc) : rc;
}

/* --- ls ------------------------------------------------------------------------------------------------------ */

static uint64_t number_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    if (json_is_integer(v))
        return json_integer_value(v) < 0 ? 0 : (uint64_t)json_integer_value(v);
    return json_is_real(v) && json_real_value(v) > 0 ? (uint64_t)json_real_value(v) : 0;
}

static void list_row(const json_t *set, bool full)
{
    const char *name = json_string_value(json_object_get(set, "name"));
    const char *uri = json_string_value(json_object_get(set, "source"));
    const char *shown = name && *name ? name : uri ? uri : "?";
    if (!full) {
        cli_print_key(stdout, shown, strlen(shown));
        putchar('\n');
        return;
    }
    char count[32], payload[SIZE_TEXT_MAX], pool[SIZE_TEXT_MAX];
    uint64_t samples = number_of(set, "samples"), resident = number_of(set, "resident_samples");
    printf("%14s %10s %10s  %3.0f%% %7" PRIu64 "  ", cli_count(samples, count),
           size_format(number_of(set, "payload_bytes"), payload),
           size_format(number_of(set, "pool_bytes"), pool),
           samples ? 100.0 * (double)resident / (double)samples : 0.0, number_of(set, "leases"));
    cli_print_text(stdout, shown);
    if (name && *name && uri && *uri) {
        fputs("  ", stdout);
        cli_print_text(stdout, uri);
    }
    putchar('\n');
}

void look_print_sets(const json_t *sets, bool full)
{
    if (full && json_array_size(sets))
        printf("%14s %10s %10s %5s %7s  %s\n", "samples", "size", "pool", "there", "leases", "name");
    for (size_t i = 0; i < json_array_size(sets); i++)
        list_row(json_array_get(sets, i), full);
}

static int list_sets(struct cli *cli, bool full)
{
    AUTO_CLIENT struct leat_client *client = NULL;
    int rc = cli_connect(cli, LEAT_CONNECT_NO_START, &client);
    AUTO_TEXT char *text = NULL;
    if (rc == 0)
        rc = leat_query(client, LEAT_QUERY_LIST, NULL, &text, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (cli->json) {
        puts(text);
        return CLI_OK;
    }
    AUTO_JSON json_t *root = json_loads(text, 0, NULL);
    const json_t *sets = json_is_array(root) ? root : json_object_get(root, "sets");
    if (!json_is_array(sets))
        return cli_error(cli, CLI_FAILURE, "the daemon's answer is not a list of sets: another version?");
    look_print_sets(sets, full);
    return CLI_OK;
}

static uint64_t sample_bytes(const struct leat_ws *ws, uint64_t index)
{
    uint64_t sum = 0, bytes;
    for (unsigned f = 0; f < leat_ws_fields(ws); f++) {
        if (leat_ws_field_bytes(ws, index, f, &bytes) == 0)
            sum += bytes;
    }
    return sum;
}

static int list_keys(struct cli *cli, const char *name, const char *prefix, bool full, uint64_t limit)
{
    AUTO_CLIENT struct leat_client *client = NULL;
    AUTO_WS struct leat_ws *ws = NULL;
    int rc = cli_open_set(cli, name, &client, &ws);
    if (rc < 0)
        return cli_fail(cli, rc);
    struct cli_json j = {0};
    if (cli->json) {
        json_begin(&j, stdout, false);
        json_text(&j, "name", name);
        json_open(&j, "keys", '[');
    }
    size_t prefix_len = strlen(prefix);
    uint64_t n = leat_ws_length(ws), shown = 0;
    for (uint64_t i = 0; i < n && shown < limit && !ferror(stdout); i++) {
        char scratch[24], size[SIZE_TEXT_MAX];
        size_t len;
        const char *key = leat_ws_key(ws, i, scratch, sizeof(scratch), &len);
        if (!key || len < prefix_len || memcmp(key, prefix, prefix_len) != 0)
            continue;
        shown++;
        if (cli->json && full) {
            json_open(&j, NULL, '{');
            json_str(&j, "key", key, len);
            json_u64(&j, "index", i);
            json_u64(&j, "bytes", sample_bytes(ws, i));
            json_close(&j, '}');
        } else if (cli->json) {
            json_str(&j, NULL, key, len);
        } else {
            if (full)
                printf("%10" PRIu64 " %10s  ", i, size_format(sample_bytes(ws, i), size));
            cli_print_key(stdout, key, len);
            putchar('\n');
        }
    }
    if (cli->json) {
        json_close(&j, ']');
        json_close(&j, '}');
    }
    return CLI_OK;
}

int cmd_ls(struct cli *cli)
{
    struct backend_config remote = {0};
    bool full = false, recursive = false, of_s3 = false;
    uint64_t limit = UINT64_MAX;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        if (o->id == 'l')
            full = true;
        else if (o->id == 'r')
            of_s3 = recursive = true;
        else if (remote_option(&remote, o))
            of_s3 = true;
        else if (cli_parse_index(o->arg, UINT64_MAX, &limit) < 0 || *o->arg == '-')
            return cli_usage_error(cli, "--limit %s: give a number", o->arg);
    }
    const char *name = cli->noperands ? cli->operands[0] : NULL;
    const char *prefix = cli->noperands > 1 ? cli->operands[1] : "";
    if (name && backend_uri(name)) {
        if (cli->noperands > 1)
            return cli_usage_error(cli, "%s: one address at a time", prefix);
        if (strcasecmp(name, "s3://") == 0)
            return cli_usage_error(cli, "s3://: give a bucket, s3://BUCKET; `aws s3 ls` lists buckets");
        remote_begin(cli, &remote);
        return remote_list(cli, &remote, name, full, recursive, limit);
    }
    if (of_s3)
        return cli_usage_error(cli, "-r and the options of S3 are for s3://BUCKET/PREFIX");
    return name ? list_keys(cli, name, prefix, full, limit) : list_sets(cli, full);
}

/* --- stat ---------------------------------------------------------------------------------------------------- */

static void shape_text(const struct leat_field *f, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (unsigned d = 0; d < f->ndim && d < 8 && at < cap; d++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRIu64, d ? "x" : "", f->shape[d]);
}

/* How what this process read of it came. */
static void delivery_json(struct cli_json *j, struct leat_ws *ws, const struct leat_ws_stat *stat)
{
    json_open(j, "delivered", '{');
    json_u64(j, "shm", stat->shm_bytes);
    json_u64(j, "tcp", stat->tcp_bytes);
    json_u64(j, "rdma_read", stat->rdma_read_bytes);
    json_u64(j, "rdma_write", stat->rdma_write_bytes);
    json_u64(j, "streamed", stat->streamed_bytes);
    json_u64(j, "bounced", stat->bounced_bytes);
    json_close(j, '}');
    json_open(j, "rails", '[');
    for (uint64_t i = 0; i < stat->rails; i++) {
        struct leat_rail r = {.size = sizeof(r)};
        if (leat_ws_rail(ws, i, &r) < 0)
            break;
        json_open(j, NULL, '{');
        json_text(j, "node", r.node);
        json_text(j, "name", r.name);
        json_text(j, "transport", r.transport);
        json_text(j, "state", r.state);
        json_u64(j, "bytes", r.bytes);
        json_u64(j, "rate", r.rate_bytes_per_s);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void stat_json(struct leat_ws *ws, const struct leat_ws_stat *stat)
{
    struct cli_json j;
    json_begin(&j, stdout, false);
    json_text(&j, "uri", leat_ws_uri(ws));
    json_text(&j, "fingerprint", leat_ws_fingerprint(ws));
    json_u64(&j, "samples", stat->samples);
    json_u64(&j, "resident_samples", stat->resident_samples);
    json_u64(&j, "failed_samples", stat->failed_samples);
    json_u64(&j, "lost_samples", stat->lost_samples);
    json_u64(&j, "payload_bytes", stat->payload_bytes);
    json_u64(&j, "resident_bytes", stat->resident_bytes);
    json_u64(&j, "pool_bytes", stat->pool_bytes);
    json_u64(&j, "regions", stat->regions);
    json_u64(&j, "region_bytes", stat->region_bytes);
    json_u64(&j, "page_bytes", stat->page_bytes);
    json_bool(&j, "streamed", stat->streamed);
    json_u64(&j, "generation", stat->generation);
    json_u64(&j, "version", stat->version);
    json_text(&j, "transport", stat->transport);
    delivery_json(&j, ws, stat);
    json_u64(&j, "classes", leat_ws_classes(ws));
    json_open(&j, "fields", '[');
    for (unsigned i = 0; i < leat_ws_fields(ws); i++) {
        struct leat_field f = {.size = sizeof(f)};
        if (leat_ws_field(ws, i, &f) < 0)
            continue;
        json_open(&j, NULL, '{');
        json_text(&j, "name", f.name);
        json_text(&j, "dtype", f.dtype);
        json_open(&j, "shape", '[');
        for (unsigned d = 0; d < f.ndim && d < 8; d++)
            json_u64(&j, NULL, f.shape[d]);
        json_close(&j, ']');
        json_u64(&j, "max_bytes", f.max_bytes);
        json_u64(&j, "fixed_bytes", f.fixed_bytes);
        json_bool(&j, "is_label", f.is_label);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

static void stat_text(const struct leat_ws *ws, const struct leat_ws_stat *s)
{
    char a[32], b[32], c[SIZE_TEXT_MAX], d[SIZE_TEXT_MAX], bar[40];
    printf("%-12s ", "set");
    cli_print_text(stdout, leat_ws_uri(ws));
    putchar('\n');
    printf("%-12s %s, version %u\n", "fingerprint", leat_ws_fingerprint(ws), s->version);
    printf("%-12s %s, %s\n", "samples", cli_count(s->samples, a), size_format(s->payload_bytes, c));
    double share = s->samples ? (double)s->resident_samples / (double)s->samples : 0;
    cli_bar(bar, sizeof(bar), 30, share);
    printf("%-12s %s %3.0f%%, %s\n", "in the pool", bar, share * 100, size_format(s->resident_bytes, c));
    if (s->failed_samples)
        printf("%-12s %s samples could not be read\n", "failed", cli_count(s->failed_samples, a));
    if (s->lost_samples)
        printf("%-12s %s samples went with a node; what has a source is read from there\n", "lost",
               cli_count(s->lost_samples, a));
    if (s->streamed)
        printf("%-12s larger than its share of the pool: the rest is streamed\n", "streamed");
    printf("%-12s %s in %s region%s of up to %s; pages of %s\n", "pool", size_format(s->pool_bytes, c),
           cli_count(s->regions, b), s->regions == 1 ? "" : "s", size_format(s->region_bytes, d),
           s->page_bytes ? size_format(s->page_bytes, a) : "unknown size");
    printf("%-12s %s\n", "transport", s->transport ? s->transport : "-");
    for (unsigned i = 0; i < leat_ws_fields(ws); i++) {
        struct leat_field f = {.size = sizeof(f)};
        if (leat_ws_field(ws, i, &f) < 0)
            continue;
        char shape[200];
        shape_text(&f, shape, sizeof(shape));
        printf("%-12s ", i ? "" : "fields");
        cli_print_text(stdout, f.name);
        fputs(": ", stdout);
        if (f.is_label)
            printf("label, %s classes\n", cli_count(leat_ws_classes(ws), a));
        else if (f.dtype && *f.dtype)
            printf("%s%s%s, %s a sample\n", f.dtype, *shape ? " " : "", shape, size_format(f.max_bytes, c));
        else
            printf("bytes, at most %s a sample\n", size_format(f.max_bytes, c));
    }
}

int cmd_stat(struct cli *cli)
{
    AUTO_CLIENT struct leat_client *client = NULL;
    AUTO_WS struct leat_ws *ws = NULL;
    struct leat_ws_stat stat = {.size = sizeof(stat)};
    int rc = cli_open_set(cli, cli->operands[0], &client, &ws);
    if (rc == 0)
        rc = leat_ws_stat(ws, &stat, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (cli->json)
        stat_json(ws, &stat);
    else
        stat_text(ws, &stat);
    return CLI_OK;
}

/* --- cat ----------------------------------------------------------------------------------------------------- */

/* The field asked for; else the only one, or the only one that is not a label. -1 after a message. */
static int choose_field(const struct cli *cli, const struct leat_ws *ws, const char *name)
{
    if (name) {
        int f = leat_ws_find_field(ws, name);
        if (f >= 0)
            return f;
    }
    char list[300];
    size_t at = 0;
    int found = -1;
    unsigned candidates = 0;
    list[0] = '\0';
    for (unsigned i = 0; i < leat_ws_fields(ws); i++) {
        struct leat_field f = {.size = sizeof(f)};
        if (leat_ws_field(ws, i, &f) < 0)
            continue;
        if (at < sizeof(list))
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", at ? ", " : "", f.name);
        if (f.is_label && leat_ws_fields(ws) > 1)
            continue;
        found = (int)i;
        candidates++;
    }
    if (name) {
        cli_error(cli, CLI_NOT_FOUND, "no field %s; there are: %s", name, list);
        return -1;
    }
    if (candidates == 1)
        return found;
    cli_error(cli, CLI_USAGE, "the set has several fields (%s): choose one with --field", list);
    return -2;
}

/* Key first, then a number, unless `number` says that it is one. Exit code, 0 with *ret_index. */
static int choose_sample(const struct cli *cli, const struct leat_ws *ws, const char *set, const char *text,
                         bool number, uint64_t *ret_index)
{
    if (!number && leat_ws_index(ws, text, strlen(text), ret_index) == 0)
        return 0;
    int rc = cli_parse_index(text, leat_ws_length(ws), ret_index);
    if (rc == 0)
        return 0;
    char count[32];
    if (rc == -ERANGE)
        return cli_error(cli, CLI_NOT_FOUND, "%s: the set has %s samples", text,
                         cli_count(leat_ws_length(ws), count));
    if (number)
        return cli_usage_error(cli, "%s is not a number", text);
    return cli_error(cli, CLI_NOT_FOUND, "no sample %s: `leat ls %s` lists the keys", text, set);
}

static bool looks_binary(const unsigned char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        unsigned n = utf8_length(s + i, len - i);
        if (n == 0 || (s[i] < 0x20 && s[i] != '\n' && s[i] != '\t' && s[i] != '\r') || s[i] == 0x7f)
            return true;
        i += n;
    }
    return false;
}

static void cat_json(const struct leat_ws *ws, uint64_t index, unsigned field, const void *data,
                     uint64_t bytes)
{
    struct leat_field f = {.size = sizeof(f)};
    char scratch[24];
    size_t len = 0;
    const char *key = leat_ws_key(ws, index, scratch, sizeof(scratch), &len);
    leat_ws_field(ws, field, &f);
    struct cli_json j;
    json_begin(&j, stdout, false);
    json_str(&j, "key", key ? key : "", key ? len : 0);
    json_u64(&j, "index", index);
    json_text(&j, "field", f.name);
    json_text(&j, "dtype", f.dtype);
    json_open(&j, "shape", '[');
    for (unsigned d = 0; d < f.ndim && d < 8; d++)
        json_u64(&j, NULL, f.shape[d]);
    json_close(&j, ']');
    json_u64(&j, "bytes", bytes);
    json_base64(&j, "base64", data, bytes);
    json_close(&j, '}');
}

int cmd_cat(struct cli *cli)
{
    const char *field_name = NULL, *set = cli->operands[0], *sample = cli->operands[1];
    bool number = false, force = false;
    for (const struct cli_given *o = cli->given; o->id; o++) {
        if (o->id == 306)
            field_name = o->arg;
        else if (o->id == 307)
            number = true;
        else
            force = true;
    }
    AUTO_CLIENT struct leat_client *client = NULL;
    AUTO_WS struct leat_ws *ws = NULL;
    int rc = cli_open_set(cli, set, &client, &ws);
    if (rc < 0)
        return cli_fail(cli, rc);
    int field = choose_field(cli, ws, field_name);
    if (field < 0)
        return field == -2 ? CLI_USAGE : CLI_NOT_FOUND;
    uint64_t index, bytes = 0, got = 0;
    rc = choose_sample(cli, ws, set, sample, number, &index);
    if (rc)
        return rc;
    rc = leat_ws_field_bytes(ws, index, (unsigned)field, &bytes);
    if (rc == LEAT_NOT_FOUND)
        return cli_error(cli, CLI_NOT_FOUND, "sample %s has no such field", sample);
    if (rc < 0)
        return cli_fail(cli, rc);
    AUTO_FREE unsigned char *data = malloc(bytes ? bytes : 1);
    if (!data)
        return cli_error(cli, CLI_FAILURE, "out of memory");
    rc = leat_read(ws, index, (unsigned)field, data, bytes, cli->timeout_ns, &got, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (cli->json) {
        cat_json(ws, index, (unsigned)field, data, got);
        return CLI_OK;
    }
    if (!force && isatty(STDOUT_FILENO) && looks_binary(data, got))
        return cli_error(cli, CLI_FAILURE,
                         "%s is binary and this is a terminal: send it to a file, or insist with -f", sample);
    fwrite(data, 1, got, stdout);
    return CLI_OK;
}
