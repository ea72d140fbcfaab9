/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_draw.c: the picture of `leat top`.
 *
 * Invariants: the picture is a function of the status document alone, and a missing key (another release) is
 * a dash; no name moves a terminal's cursor, wherever it is from.
 */
#include "apps/leat/top.h"

#include <math.h>

#include "base/utf8.h"

/* --- numbers out of a document ------------------------------------------------------------------------------------- */

static double number_at(const json_t *object, const char *path)
{
    char name[64];
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
        object = json_object_get(object, name);
    }
    const json_t *v = json_object_get(object, path);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text ? text : "-";
}

/* Rates: their names, and their counters in the status. */
static const struct {
    const char *name, *path;
} counted[] = {
    {"disk_bytes_per_s", "disk.bytes_direct"},      {"disk_bytes_per_s", "disk.bytes_buffered"},
    {"remote_bytes_per_s", "remote.bytes"},         {"sent_bytes_per_s", "net.bytes_sent"},
    {"received_bytes_per_s", "net.bytes_received"}, {"requests_per_s", "requests"},
};

json_t *top_rates(const json_t *before, const json_t *now, double seconds)
{
    json_t *rates = before && seconds > 0 ? json_object() : NULL;
    if (!rates)
        return json_null();
    for (size_t i = 0; i < ARRAY_LEN(counted); i++) {
        double moved = number_at(now, counted[i].path) - number_at(before, counted[i].path);
        double so_far = number_at(rates, counted[i].name);
        /* A restarted daemon counts from 0; one of another release may not count this. */
        if (isfinite(moved) && moved >= 0)
            json_object_set_new(rates, counted[i].name,
                                json_real((isfinite(so_far) ? so_far : 0) + moved / seconds));
    }
    return rates;
}

/* --- the picture --------------------------------------------------------------------------------------------------- */

static const char *size_text(double bytes, char buf[SIZE_TEXT_MAX])
{
    return isfinite(bytes) && bytes >= 0 ? size_format((uint64_t)bytes, buf) : "-";
}

static const char *count_text(double n, char buf[32])
{
    if (!isfinite(n) || n < 0)
        return "-";
    if (n < 100 && n != floor(n)) {
        snprintf(buf, 32, "%.1f", n);
        return buf;
    }
    return cli_count((uint64_t)n, buf);
}

/*
 * A column of `columns`, left-justified: what is longer loses its middle, as names of samples and sets differ
 * at their ends. Unprintable characters become question marks, as any user can choose names.
 */
static void column(FILE *out, const char *text, unsigned columns)
{
    size_t len = strlen(text), skip_from = len, skip_to = len;
    if (len > columns && columns > 4) {
        skip_from = (columns - 2) / 2;
        skip_to = len - (columns - 2 - skip_from);
    }
    unsigned at = 0;
    for (size_t i = 0; i < len && at < columns;) {
        if (i == skip_from && skip_to < len) {
            fputs("..", out);
            at += 2;
            i = skip_to;
        }
        unsigned n = utf8_length((const unsigned char *)text + i, len - i);
        bool plain =
            n == 1 ? text[i] >= 0x20 && text[i] != 0x7f : n > 1 && (n > 2 || (unsigned char)text[i] != 0xc2);
        plain ? (void)fwrite(text + i, 1, n, out) : (void)fputc('?', out);
        i += MAX(n, 1u);
        at++;
    }
    fprintf(out, "%*s", (int)(columns - at), "");
}

static void draw_pool(FILE *out, const json_t *now)
{
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[32], bar[40], duration[16];
    double used = number_at(now, "pool.used_bytes"), cap = number_at(now, "pool.cap_bytes");
    cli_bar(bar, sizeof(bar), 30, cap > 0 && isfinite(used) ? used / cap : 0);
    double up = number_at(now, "uptime_seconds");
    column(out, text_at(now, "program"), 14);
    double clients = number_at(now, "clients");
    fprintf(out, "  up %s, %s process%s\n", isfinite(up) ? cli_duration(up, duration) : "-",
            count_text(clients, c), clients == 1 ? "" : "es");
    fprintf(out, "%-8s %s %s of %s", "pool", bar, size_text(used, a), size_text(cap, b));
    fprintf(out, "; windows %s, tables %s\n", size_text(number_at(now, "pool.window_bytes"), a),
            size_text(number_at(now, "pool.table_bytes"), b));
    const json_t *rates = json_object_get(now, "rates");
    if (!json_is_object(rates))
        return;
    fprintf(out, "%-8s disks %s/s, remote %s/s", "read", size_text(number_at(rates, "disk_bytes_per_s"), a),
            size_text(number_at(rates, "remote_bytes_per_s"), b));
    fprintf(out, "; nodes: sent %s/s, received %s/s\n", size_text(number_at(rates, "sent_bytes_per_s"), a),
            size_text(number_at(rates, "received_bytes_per_s"), b));
}

static void draw_sets(FILE *out, const json_t *sets, unsigned name_columns)
{
    char a[32], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];
    size_t i;
    json_t *set;
    fprintf(out, "\n");
    column(out, "SET", name_columns);
    fprintf(out, " %14s %10s %10s %6s %6s  %s\n", "SAMPLES", "SIZE", "POOL", "THERE", "USERS", "STATE");
    json_array_foreach((json_t *)sets, i, set)
    {
        const char *name = text_at(set, "name");
        double samples = number_at(set, "samples"), there = number_at(set, "resident_samples");
        column(out, strcmp(name, "-") == 0 ? text_at(set, "source") : name, name_columns);
        fprintf(out, " %14s %10s %10s %5.0f%%", count_text(samples, a),
                size_text(number_at(set, "payload_bytes"), b), size_text(number_at(set, "pool_bytes"), c),
                samples > 0 && isfinite(there) ? 100 * there / samples : 0.0);
        fprintf(out, " %6s  %s%s\n", count_text(number_at(set, "leases"), a),
                json_is_true(json_object_get(set, "streamed")) ? "streamed, " : "", text_at(set, "state"));
    }
}

static void draw_job(FILE *out, const json_t *job, unsigned name_columns)
{
    char a[32], b[SIZE_TEXT_MAX], bar[24], left[16], ranks[32], title[300];
    double samples = number_at(job, "samples"), length = number_at(job, "length");
    double seconds = number_at(job, "seconds_left"), waiting = number_at(job, "waiting");
    double age = number_at(job, "age_seconds");
    double share = length > 0 && isfinite(samples) ? MIN(samples / length, 1.0) : 0;
    cli_bar(bar, sizeof(bar), 10, share);
    snprintf(title, sizeof(title), "%s: %s", text_at(job, "job"), text_at(job, "set"));
    snprintf(ranks, sizeof(ranks), "%zu/%.0f", json_array_size(json_object_get(job, "ranks")),
             number_at(job, "world_size"));
    column(out, title, name_columns);
    fprintf(out, " %7s %6.0f %s %3.0f%% %12s", ranks, number_at(job, "epoch"), bar, 100 * share,
            count_text(number_at(job, "samples_per_s"), a));
    fprintf(out, " %10s/s %8s %5.0f%%  %s", size_text(number_at(job, "bytes_per_s"), b),
            isfinite(seconds) ? cli_duration(seconds, left) : "-", isfinite(waiting) ? 100 * waiting : 0.0,
            text_at(job, "verdict"));
    if (age > 5) /* validation, a checkpoint, or something that hangs */
        fprintf(out, ", %s ago", cli_duration(age, left));
    fputc('\n', out);
}

static void draw_jobs(FILE *out, const json_t *jobs, unsigned name_columns)
{
    size_t i;
    json_t *job;
    fprintf(out, "\n");
    column(out, "JOB: SET", name_columns);
    fprintf(out, " %7s %6s %-17s %12s %12s %8s %6s  %s\n", "RANKS", "EPOCH", "DONE", "SAMPLES/S", "HERE",
            "LEFT", "WAITS", "VERDICT");
    json_array_foreach((json_t *)jobs, i, job) draw_job(out, job, name_columns);
}

/* Lines as they are, cut at so many characters. */
static void cut_lines(FILE *out, const char *text, unsigned width)
{
    unsigned at = 0;
    for (const char *c = text; *c; c++) {
        bool begins = ((unsigned char)*c & 0xc0) != 0x80;
        at = *c == '\n' ? 0 : at + begins;
        if (*c == '\n' || at <= width)
            fputc(*c, out);
    }
}

void top_draw(FILE *out, const json_t *now, unsigned width)
{
    AUTO_FREE char *text = NULL;
    size_t bytes = 0;
    FILE *lines = open_memstream(&text, &bytes);
    if (!lines)
        return;
    const json_t *sets = json_object_get(now, "sets"), *jobs = json_object_get(now, "jobs");
    unsigned names = width > 132 ? MIN(width - 104, 60u) : 28;
    draw_pool(lines, now);
    if (json_array_size(sets))
        draw_sets(lines, sets, names);
    if (json_array_size(jobs))
        draw_jobs(lines, jobs, names);
    else
        fprintf(lines, "\nno loader runs\n");
    if (fclose(lines) == 0 && text)
        cut_lines(out, text, width);
}
