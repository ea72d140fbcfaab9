/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_leat: preload and open as a job calls them: `load_leat SOCKET`, then lines of its input (words, no spaces in them):
 *     preload NAME URI       leat_preload                                   -> {"ns", "bytes", "samples", "pool_bytes", "page_bytes"}
 *     open URI INDEX         leat_open, leat_read of a sample, leat_close   -> {"open_ns", "first_ns"}: since the call of open
 *     openas NAME URI INDEX  the same as explicit set NAME, loading in the background
 *     train NAME URI         opens cold, and reads all samples in batches of 64 into a view's buffers -> {"ns", "bytes"}
 *     drop NAME              by force                                       -> {}
 *     check NAME             verifies all of it against its CRCs            -> {"bad"}
 */
#include "base/clock.h"
#include "driver.h"
#include "leat/leat.h"

#include <stdio.h>

static struct leat_client *client;

static void check(int code, const char *what, const struct leat_error *err)
{
    if (code < 0)
        bench_die("%s: %s (%s)", what, err->message, leat_strerror(code));
}

static void preload(const char *name, const char *uri)
{
    struct leat_error err = {0};
    struct leat_ws *ws;
    struct leat_ws_stat st = {.size = sizeof(st)};
    struct leat_open_options oo = {.size = sizeof(oo), .name = name, .timeout_ns = 300 * NS_PER_S};
    uint64_t start = clock_now_ns();
    check(leat_preload(client, uri, &oo, &ws, &err), "preload", &err);
    uint64_t ns = clock_now_ns() - start;
    check(leat_ws_stat(ws, &st, &err), "stat", &err);
    printf("{\"ns\": %llu, \"bytes\": %llu, \"samples\": %llu, \"pool_bytes\": %llu, \"page_bytes\": %llu}\n",
           (unsigned long long)ns, (unsigned long long)st.payload_bytes, (unsigned long long)st.samples,
           (unsigned long long)st.pool_bytes, (unsigned long long)st.page_bytes);
    leat_close(ws);
}

static void open_first(const char *name, const char *uri, uint64_t index)
{
    static uint8_t sample[64 * MIB];
    struct leat_error err = {0};
    struct leat_ws *ws;
    struct leat_open_options oo = {.size = sizeof(oo), .name = name};
    uint64_t bytes, start = clock_now_ns();
    check(leat_open(client, uri, &oo, &ws, &err), "open", &err);
    uint64_t opened = clock_now_ns() - start;
    check(leat_read(ws, index, 0, sample, sizeof(sample), 0, &bytes, &err), "read", &err);
    uint64_t first = clock_now_ns() - start;
    bench_sample_check(sample, bytes, index);
    leat_close(ws);
    printf("{\"open_ns\": %llu, \"first_ns\": %llu}\n", (unsigned long long)opened,
           (unsigned long long)first);
}

/* Numbers are compared, contents are not: `check` does that. */
static void train(const char *name, const char *uri)
{
    struct leat_error err = {0};
    struct leat_ws *ws;
    struct leat_view *view;
    struct leat_batch *batch;
    struct leat_open_options oo = {.size = sizeof(oo), .name = name};
    struct leat_view_options vo = {.size = sizeof(vo), .batch_size = 64, .slots = 4};
    uint64_t bytes = 0, start = clock_now_ns();
    check(leat_open(client, uri, &oo, &ws, &err), "open", &err);
    check(leat_load(ws, &vo, &view, &err), "load", &err);
    for (uint64_t at = 0, n = leat_ws_length(ws); at < n; at += 64) {
        uint64_t ids[64], got, index;
        unsigned some = (unsigned)MIN(n - at, 64ul);
        for (unsigned i = 0; i < some; i++)
            ids[i] = at + i;
        check(leat_read_batch(view, ids, some, 0, &batch, &err), "read", &err);
        const char *data = leat_batch_data(batch, 0, &got);
        bytes += got;
        for (unsigned i = 0; i < some; i++) {
            memcpy(&index, data + i * (got / some), sizeof(index));
            if (index != at + i)
                bench_die("sample %llu came as %llu", (unsigned long long)(at + i),
                          (unsigned long long)index);
        }
        leat_batch_release(batch);
    }
    printf("{\"ns\": %llu, \"bytes\": %llu}\n", (unsigned long long)(clock_now_ns() - start),
           (unsigned long long)bytes);
    leat_view_close(view);
    leat_close(ws);
}

static void verify(const char *name)
{
    struct leat_error err = {0};
    struct leat_ws *ws;
    uint64_t bad = 0;
    char uri[4200];
    snprintf(uri, sizeof(uri), "leat://%s", name);
    check(leat_open(client, uri, NULL, &ws, &err), "open", &err);
    check(leat_verify(ws, 0, NULL, NULL, &bad, &err), "verify", &err);
    leat_close(ws);
    printf("{\"bad\": %llu}\n", (unsigned long long)bad);
}

int main(int argc, char **argv)
{
    struct leat_error err = {0};
    char line[8500], verb[16], one[4096], two[4096];
    unsigned long long index;
    if (argc != 2)
        bench_die("needs SOCKET");
    struct leat_client_options co = {.size = sizeof(co), .socket = argv[1], .flags = LEAT_CONNECT_NO_START};
    check(leat_connect(&co, &client, &err), "connect", &err);
    printf("{\"ready\": true, \"pid\": %d}\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        int n = sscanf(line, "%15s %4095s %4095s %llu", verb, one, two, &index);
        if (n == 3 && strcmp(verb, "preload") == 0) {
            preload(one, two);
        } else if (n == 3 && strcmp(verb, "train") == 0) {
            train(one, two);
        } else if (n == 3 && strcmp(verb, "open") == 0) {
            open_first(NULL, one, strtoull(two, NULL, 10));
        } else if (n == 4 && strcmp(verb, "openas") == 0) {
            open_first(one, two, index);
        } else if (n == 2 && strcmp(verb, "drop") == 0) {
            check(leat_drop(client, one, LEAT_DROP_FORCE, 10 * NS_PER_S, &err), "drop", &err);
            printf("{}\n");
        } else if (n == 2 && strcmp(verb, "check") == 0) {
            verify(one);
        } else {
            bench_die("what is '%s'?", line);
        }
        fflush(stdout);
    }
    leat_disconnect(client);
    return 0;
}
