/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli.c: the parts of `leat` that need no daemon: sizes, names nearby, JSON, the line of a bar. */
#include "apps/leat/top.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The table belongs to main.c: a small one for the tests. */
static const struct cli_option one_options[] = {{'l', "long", NULL, "x"}, {305, "limit", "N", "y"}, {0}};
const struct cli_command cli_commands[] = {{"one", "does", "[X]", NULL, one_options, "leat one", NULL}, {0}};

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: refused */
    } cases[] = {
        {"4096", 4096},
        {"1", 1},
        {"512M", 512 * MIB},
        {"1.5G", 3 * GIB / 2},
        {"2 GiB", 2 * GIB},
        {"10kb", 10000},
        {"1T", 1024 * GIB},
        {"7B", 7},
        {"", 0},
        {"-1", 0},
        {"M", 0},
        {"0", 0},
        {"1X", 0},
        {"1MM", 0},
        {"nan", 0},
        {"inf", 0},
        {"1e300", 0},
        {"99999P", 0},
        {"1 2", 0},
        {" 1", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 0;
        int rc = cli_parse_size(cases[i].text, &v);
        if (cases[i].bytes == 0)
            assert_int_equal(rc, -EINVAL);
        else
            assert_int_equal(v, cases[i].bytes);
    }
}

static void test_seconds(void **state)
{
    uint64_t v = 0;
    assert_int_equal(cli_parse_seconds("2.5", &v), 0);
    assert_int_equal(v, 2500000000);
    assert_int_equal(cli_parse_seconds("10m", &v), 0);
    assert_int_equal(v, 600000000000);
    assert_int_equal(cli_parse_seconds("none", &v), 0);
    assert_true(v == UINT64_MAX);
    static const char *const wrong[] = {"", "0", "-1", "x", "nan", "1e99"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_int_equal(cli_parse_seconds(wrong[i], &v), -EINVAL);
}

static void test_index(void **state)
{
    uint64_t v = 7;
    assert_int_equal(cli_parse_index("0", 10, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(cli_parse_index("-1", 10, &v), 0);
    assert_int_equal(v, 9);
    assert_int_equal(cli_parse_index("-10", 10, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(cli_parse_index("-0", 10, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(cli_parse_index("10", 10, &v), -ERANGE);
    assert_int_equal(cli_parse_index("-11", 10, &v), -ERANGE);
    assert_int_equal(cli_parse_index("-0", 0, &v), -ERANGE);
    assert_int_equal(cli_parse_index("99999999999999999999999", 10, &v), -ERANGE);
    assert_int_equal(cli_parse_index("a", 10, &v), -EINVAL);
    assert_int_equal(cli_parse_index("1a", 10, &v), -EINVAL);
    assert_int_equal(cli_parse_index("", 10, &v), -EINVAL);
    assert_int_equal(cli_parse_index("--1", 10, &v), -EINVAL);
}

static void test_text(void **state)
{
    char a[SIZE_TEXT_MAX], c[32];
    assert_string_equal(cli_count(0, c), "0");
    assert_string_equal(cli_count(999, c), "999");
    assert_string_equal(cli_count(1234567, c), "1,234,567");
    assert_string_equal(cli_count(UINT64_MAX, c), "18,446,744,073,709,551,615");
    assert_string_equal(cli_duration(0.124, a), "0.12 s");
    assert_string_equal(cli_duration(185, a), "3:05");
    assert_string_equal(cli_duration(3723, a), "1:02:03");
    assert_string_equal(cli_duration(1e300, a), "--:--");
    char bar[16];
    cli_bar(bar, sizeof(bar), 10, 0.55);
    assert_string_equal(bar, "[#####-----]");
    cli_bar(bar, sizeof(bar), 10, 7);
    assert_string_equal(bar, "[##########]");
    cli_bar(bar, 5, 10, 0.5);
    assert_string_equal(bar, "");
}

static void test_nearest(void **state)
{
    static const char *const names[] = {"preload", "append", "index", "ls", "stat", "status", "stop", "drop"};
    size_t n = ARRAY_LEN(names);
    assert_string_equal(cli_nearest("prelaod", names, n), "preload");
    assert_string_equal(cli_nearest("pre", names, n), "preload");
    assert_string_equal(cli_nearest("lss", names, n), "ls");
    assert_string_equal(cli_nearest("statsu", names, n), "status");
    assert_null(cli_nearest("frobnicate", names, n));
    assert_null(cli_nearest("", names, n));
    char endless[300];
    memset(endless, 'a', sizeof(endless) - 1);
    endless[sizeof(endless) - 1] = '\0';
    assert_null(cli_nearest(endless, names, n));
}

static void test_exit_codes(void **state)
{
    assert_int_equal(cli_exit_of(0), 0);
    assert_int_equal(cli_exit_of(LEAT_NOT_FOUND), 3);
    assert_int_equal(cli_exit_of(LEAT_DENIED), 4);
    assert_int_equal(cli_exit_of(LEAT_NO_SPACE), 5);
    assert_int_equal(cli_exit_of(LEAT_TIMED_OUT), 6);
    assert_int_equal(cli_exit_of(LEAT_PEER_GONE), 6);
    assert_int_equal(cli_exit_of(LEAT_CORRUPT), 7);
    assert_int_equal(cli_exit_of(LEAT_BUSY), 8);
    assert_int_equal(cli_exit_of(LEAT_STALE), 9);
    assert_int_equal(cli_exit_of(-EIO), 1);
    assert_int_equal(cli_exit_of(-ECANCELED), 130);
}

static void test_json(void **state)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    struct cli_json j;
    json_begin(&j, out, true);
    json_str(&j, "k\"", "a\n\x7f\\\xff\xc3\xa9\xed\xa0\x80", 10);
    json_text(&j, "none", NULL);
    json_open(&j, "list", '[');
    json_u64(&j, NULL, UINT64_MAX);
    json_double(&j, NULL, 0.5);
    json_double(&j, NULL, 1.0 / 0.0);
    json_bool(&j, NULL, true);
    json_close(&j, ']');
    json_open(&j, "empty", '{');
    json_close(&j, '}');
    json_base64(&j, "b0", "", 0);
    json_base64(&j, "b1", "M", 1);
    json_base64(&j, "b2", "Ma", 2);
    json_base64(&j, "b4", "Man\xff", 4);
    json_close(&j, '}');
    fclose(out);
    assert_string_equal(
        text, "{\"k\\\"\": \"a\\u000a\\u007f\\\\\\udcff\xc3\xa9\\udced\\udca0\\udc80\", \"none\": null, "
              "\"list\": [18446744073709551615, 0.5, null, true], \"empty\": {}, \"b0\": \"\", "
              "\"b1\": \"TQ==\", \"b2\": \"TWE=\", \"b4\": \"TWFu/w==\"}\n");
    free(text);
}

static void test_progress_line(void **state)
{
    char line[256];
    struct leat_progress r = {sizeof(r), LEAT_STAGE_LOAD, 10, 40, GIB, 4 * GIB};
    progress_line(&r, (double)GIB, 120, line, sizeof(line));
    assert_string_equal(
        line, "loading    25% [#######-----------------------] 1.0 GiB of 4.0 GiB  1.0 GiB/s  3.00 s left");
    progress_line(&r, 0, 60, line, sizeof(line));
    assert_string_equal(line, "loading    25% 1.0 GiB of 4.0 GiB  0 B/s  --:-- left");
    progress_line(&r, 0, 20, line, sizeof(line));
    assert_int_equal(strlen(line), 20);
    /* An index knows neither total. */
    r = (struct leat_progress){sizeof(r), LEAT_STAGE_INDEX, 1500, 0, 3 * MIB, 0};
    progress_line(&r, (double)MIB, 120, line, sizeof(line));
    assert_string_equal(line, "indexing  1,500 samples  3.0 MiB  1.0 MiB/s");
    /* Totals that turn out too small never show more than all. */
    r = (struct leat_progress){sizeof(r), LEAT_STAGE_VERIFY, 9, 4, 0, 0};
    progress_line(&r, 2, 70, line, sizeof(line));
    assert_string_equal(line, "verifying 100% 9 samples  2/s  0.00 s left");
}

static void test_set_uri(void **state)
{
    static const char *const cases[][2] = {
        {"train", "leat://train"}, {"leat://a", "leat://a"}, {"a/b", "a/b"}, {"x=y", "x=y"}, {".", "."},
        {"a.npy", "leat://a.npy"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *uri = cli_set_uri(cases[i][0]);
        assert_string_equal(uri, cases[i][1]);
        free(uri);
    }
}

static void test_top(void **state)
{
    json_t *before = json_pack("{s:{s:i, s:i}, s:{s:i}, s:i}", "disk", "bytes_direct", 0, "bytes_buffered", 0,
                               "net", "bytes_sent", 9000, "requests", 10);
    json_t *now = json_pack("{s:s, s:f, s:i, s:{s:i, s:i}, s:{s:I, s:i}, s:{s:i}, s:i}", "program", "leatd 1",
                            "uptime_seconds", 61.0, "clients", 3, "pool", "used_bytes", 1 << 20, "cap_bytes",
                            1 << 22, "disk", "bytes_direct", (json_int_t)(8 * MIB), "bytes_buffered", 1 << 20,
                            "net", "bytes_sent", 1000, "requests", 30);
    json_object_set_new(now, "rates", top_rates(NULL, now, 2));
    assert_true(json_is_null(json_object_get(now, "rates")));
    json_t *rates = top_rates(before, now, 2);
    assert_true(json_number_value(json_object_get(rates, "disk_bytes_per_s")) == 4.5 * 1024 * 1024);
    assert_true(json_number_value(json_object_get(rates, "requests_per_s")) == 10);
    assert_null(json_object_get(rates, "sent_bytes_per_s"));   /* it counts from 0 again */
    assert_null(json_object_get(rates, "remote_bytes_per_s")); /* no daemon counts it */
    json_object_set_new(now, "rates", rates);
    json_t *job =
        json_pack("{s:s, s:s, s:[{}], s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:s}", "job", "run", "set",
                  "a\x1b[31m/very/long/name/that/has/no/room/x.npy", "ranks", "world_size", 4, "epoch", 7,
                  "samples", 250, "length", 1000, "samples_per_s", 12.5, "bytes_per_s", 1048576.0,
                  "seconds_left", 60.0, "waiting", 0.25, "age_seconds", 30.0, "verdict", "fetch-bound");
    json_object_set_new(now, "jobs", json_pack("[o]", job));

    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    top_draw(out, now, 132);
    fclose(out);
    assert_non_null(strstr(text, "leatd 1         up 1:01, 3 processes\n"));
    assert_non_null(strstr(text, "] 1.0 MiB of 4.0 MiB"));
    assert_non_null(strstr(text, "disks 4.5 MiB/s, remote -/s; nodes: sent -/s"));
    assert_non_null(
        strstr(text, "run: a?[31m/v..no/room/x.npy     1/4      7 [##--------]  25%         12.5"));
    assert_non_null(strstr(text, "1.0 MiB/s     1:00    25%  fetch-bound, 0:30 ago\n"));
    assert_null(strchr(text, 27));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 132);
    free(text);
    out = open_memstream(&text, &bytes);
    top_draw(out, before, 40); /* of a release that says next to nothing */
    fclose(out);
    assert_non_null(strstr(text, "no loader runs"));
    free(text);
    json_decref(before);
    json_decref(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_seconds),       cmocka_unit_test(test_index),
        cmocka_unit_test(test_text),  cmocka_unit_test(test_nearest),       cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_json),  cmocka_unit_test(test_progress_line), cmocka_unit_test(test_set_uri),
        cmocka_unit_test(test_top),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
