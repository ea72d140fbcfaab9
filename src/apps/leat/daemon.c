/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c: status, stop, drop. The daemon's answers are JSON; for people they are shown by what their keys say: `_bytes` as
 * sizes, a pair used/cap as a bar, so that what a later daemon adds shows up here without a change.
 */
#include "apps/leat/cli.h"

#include "base/utf8.h"
#include "wire/address.h"

#define DEPTH_MAX 6

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* A scalar as its key asks for. */
static void value_text(const char *key, const json_t *v, char *out, size_t cap)
{
    char buf[32];
    if (json_is_string(v))
        utf8_show(json_string_value(v), json_string_length(v), out, cap); /* a name of any user's */
    else if (json_is_boolean(v))
        snprintf(out, cap, "%s", json_is_true(v) ? "yes" : "no");
    else if (json_is_integer(v) && json_integer_value(v) >= 0 &&
             (ends_with(key, "bytes") || strncmp(key, "bytes_", 6) == 0))
        snprintf(out, cap, "%s", size_format((uint64_t)json_integer_value(v), buf));
    else if (json_is_integer(v) && json_integer_value(v) >= 0 && ends_with(key, "_ns"))
        snprintf(out, cap, "%s", cli_duration((double)json_integer_value(v) / 1e9, buf));
    else if (json_is_number(v) && json_number_value(v) >= 0 && ends_with(key, "bytes_per_s"))
        snprintf(out, cap, "%s/s", size_format((uint64_t)json_number_value(v), buf));
    else if (json_is_number(v) && json_number_value(v) >= 1000 && ends_with(key, "_per_s"))
        snprintf(out, cap, "%s/s", cli_count((uint64_t)json_number_value(v), buf));
    else if (json_is_number(v) && json_number_value(v) >= 0 && ends_with(key, "_per_s"))
        snprintf(out, cap, "%.4g/s", json_number_value(v));
    else if (json_is_number(v) && json_number_value(v) >= 0 &&
             (ends_with(key, "_s") || ends_with(key, "seconds") || ends_with(key, "seconds_left")))
        snprintf(out, cap, "%s", cli_duration(json_number_value(v), buf));
    else if (json_is_integer(v) && (ends_with(key, "pid") || ends_with(key, "uid") || ends_with(key, "id")))
        snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_integer(v) && json_integer_value(v) >= 0)
        snprintf(out, cap, "%s", cli_count((uint64_t)json_integer_value(v), buf));
    else if (json_is_number(v))
        snprintf(out, cap, "%.4g", json_number_value(v));
    else
        snprintf(out, cap, "-");
}

/* "pool_used_bytes" -> "pool used": the unit went into the value. */
static void key_text(const char *key, char out[40])
{
    snprintf(out, 40, "%s", key);
    static const char *const units[] = {"_bytes", "_ns", "_seconds", "_per_s", "_s"};
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        if (strlen(out) > strlen(units[i]) && ends_with(out, units[i])) {
            out[strlen(out) - strlen(units[i])] = '\0';
            break;
        }
    }
    for (char *c = out; *c; c++)
        *c = *c == '_' ? ' ' : *c;
}

/* The cap that belongs to a "…used_bytes", by its usual names. */
static const json_t *cap_of(const json_t *object, const char *key)
{
    char name[64];
    size_t stem = strlen(key) - strlen("used_bytes");
    static const char *const caps[] = {"cap_bytes", "capacity_bytes", "total_bytes", "bytes"};
    for (size_t i = 0; i < ARRAY_LEN(caps); i++) {
        snprintf(name, sizeof(name), "%.*s%s", (int)MIN(stem, (size_t)40), key, caps[i]);
        const json_t *cap = json_object_get(object, name);
        if (json_is_integer(cap) && json_integer_value(cap) > 0)
            return cap;
    }
    return NULL;
}

static void show_object(const json_t *object, unsigned depth);

static void show_list(const json_t *list, unsigned depth)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        if (!json_is_object(row)) {
            char text[300];
            value_text("", row, text, sizeof(text));
            printf("%*s%s\n", (int)(2 * depth), "", text);
            continue;
        }
        /* One line an element: its scalars; then its lists, where there is more than one thing in them: rails of a node. */
        printf("%*s- ", (int)(2 * depth), "");
        const char *key, *gap = "";
        json_t *v;
        json_object_foreach((json_t *)row, key, v)
        {
            if (json_is_object(v) || json_is_array(v) || json_is_null(v))
                continue;
            char name[40], text[300];
            key_text(key, name);
            value_text(key, v, text, sizeof(text));
            printf("%s%s %s", gap, name, text);
            gap = ", ";
        }
        putchar('\n');
        json_object_foreach((json_t *)row, key, v)
        {
            if (depth < DEPTH_MAX && json_is_array(v) && json_array_size(v) > 1) {
                printf("%*s%s\n", (int)(2 * depth + 2), "", key);
                show_list(v, depth + 2);
            }
        }
    }
}

static void show_object(const json_t *object, unsigned depth)
{
    const char *key;
    json_t *v;
    if (depth >= DEPTH_MAX)
        return;
    json_object_foreach((json_t *)object, key, v)
    {
        char name[40], text[300], bar[40] = "";
        key_text(key, name);
        int width = MAX(22 - 2 * (int)depth, 1);
        if (strcmp(key, "sets") == 0 && json_is_array(v) && json_array_size(v)) {
            printf("%s\n", name);
            look_print_sets(v, true);
            continue;
        }
        if (json_is_object(v) || json_is_array(v)) {
            if (json_is_array(v) ? json_array_size(v) : json_object_size(v)) {
                printf("%*s%s\n", (int)(2 * depth), "", name);
                json_is_array(v) ? show_list(v, depth + 1) : show_object(v, depth + 1);
            } else {
                printf("%*s%-*s none\n", (int)(2 * depth), "", width, name);
            }
            continue;
        }
        value_text(key, v, text, sizeof(text));
        const json_t *cap = json_is_integer(v) && ends_with(key, "used_bytes") ? cap_of(object, key) : NULL;
        if (cap)
            cli_bar(bar, sizeof(bar), 30, (double)json_integer_value(v) / (double)json_integer_value(cap));
        printf("%*s%-*s %s%s%s\n", (int)(2 * depth), "", width, name, text, *bar ? "  " : "", bar);
    }
}

int cmd_status(struct cli *cli)
{
    enum leat_query query = LEAT_QUERY_STATUS;
    for (const struct cli_given *o = cli->given; o->id; o++)
        query = LEAT_QUERY_METRICS;
    AUTO_CLIENT struct leat_client *client = NULL;
    AUTO_TEXT char *text = NULL;
    int rc = cli_connect(cli, LEAT_CONNECT_NO_START, &client);
    if (rc == 0)
        rc = leat_query(client, query, NULL, &text, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (query == LEAT_QUERY_METRICS || cli->json) {
        size_t len = strlen(text);
        fputs(text, stdout);
        if (len == 0 || text[len - 1] != '\n')
            putchar('\n');
        return CLI_OK;
    }
    AUTO_JSON json_t *root = json_loads(text, 0, NULL);
    if (!json_is_object(root))
        return cli_error(cli, CLI_FAILURE, "the daemon's answer is not JSON: another version?");
    if (!json_object_get(root, "socket"))
        printf("%-22s %s\n", "socket", leat_client_socket(client));
    show_object(root, 0);
    return CLI_OK;
}

static int print_stopped(const struct cli *cli, bool stopped, const char *socket, const char *note)
{
    if (cli->json) {
        struct cli_json j;
        json_begin(&j, stdout, false);
        json_bool(&j, "stopped", stopped);
        json_text(&j, "socket", socket);
        json_close(&j, '}');
    } else if (!cli->quiet) {
        puts(note);
    }
    return CLI_OK;
}

int cmd_stop(struct cli *cli)
{
    int force = 0;
    for (const struct cli_given *o = cli->given; o->id; o++)
        force = 1;
    AUTO_CLIENT struct leat_client *client = NULL;
    int rc = cli_connect(cli, LEAT_CONNECT_NO_START, &client);
    if (rc == LEAT_NOT_FOUND)
        return print_stopped(cli, false, NULL, cli->err.message);
    AUTO_FREE char *socket = rc == 0 ? strdup(leat_client_socket(client)) : NULL;
    if (rc == 0)
        rc = leat_stop(client, force, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    char note[300];
    snprintf(note, sizeof(note), "stopped the daemon at %s", socket ? socket : "its socket");
    return print_stopped(cli, true, socket, note);
}

int cmd_drop(struct cli *cli)
{
    unsigned flags = 0;
    for (const struct cli_given *o = cli->given; o->id; o++)
        flags |= LEAT_DROP_FORCE;
    const char *name = cli->operands[0];
    if (address_of(name) == ADDRESS_SET)
        name += 7;
    AUTO_CLIENT struct leat_client *client = NULL;
    int rc = cli_connect(cli, LEAT_CONNECT_NO_START, &client);
    if (rc == 0)
        rc = leat_drop(client, name, flags, cli->timeout_ns, &cli->err);
    if (rc < 0)
        return cli_fail(cli, rc);
    if (cli->json) {
        struct cli_json j;
        json_begin(&j, stdout, false);
        json_text(&j, "dropped", name);
        json_close(&j, '}');
    } else if (!cli->quiet) {
        printf("%s: dropped\n", name);
    }
    return CLI_OK;
}
