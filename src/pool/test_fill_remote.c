/* SPDX-License-Identifier: Apache-2.0 */
/* Remote sources, from a server that follows a script: what arrives, the errors of what does not, and that a
 * wait can be ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "http/client/testing.h"
#include "base/crc32c.h"
#include "base/histogram.h"
#include "base/testing.h"
#include "base/budget.h"
#include "loop/loop.h"
#include "pool/source/access.h"
#include "pool/fill/fill.h"
#include "pool/pool.h"
#include "pool/source/source.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"
#include "pool/fill/testing.h"

static void fill_whole(unsigned n, uint64_t (*bytes_of)(unsigned), uint64_t region, uint64_t segment,
                       struct fill_stats *ret_stats)
{
    struct fill *fill = fill_of(2, segment);
    struct wset *ws = testing_wset(index_here(n, bytes_of), region);
    assert_true(ws->remote);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    for (unsigned i = 0; i < n; i++)
        check_sample(ws, i);
    assert_true(wset_complete(ws));
    fill_stats(fill, ret_stats);
    assert_int_equal(ret_stats->errors, 0);
    assert_int_equal(ret_stats->bytes_buffered + ret_stats->bytes_direct, 0);
    assert_int_equal(ret_stats->segments, ws->nsegments);
    wset_unref(ws);
    fill_free(fill);
}

static void test_exact(void **state)
{
    static const uint64_t sizes[][2] = {{1 * MIB, 128 * KIB}, {4 * MIB, 0}, {64 * MIB, 0}};
    struct fill_stats stats;
    begin();
    for (unsigned k = 0; k < ARRAY_LEN(sizes); k++) {
        fill_whole(300, mixed, sizes[k][0], sizes[k][1], &stats);
        assert_true(stats.bytes_remote >= 6 * 3 * MIB);
        assert_int_equal(stats.remote_retries, 0);
        assert_true(stats.remote_connections <= 2 * 16);
    }
    web_stop(&server);
}

/* More than there are slots and places for. */
/* The longer a server takes to answer, the more is asked of it at once. */
static void test_slow_answers(void **state)
{
    struct fill_stats stats;
    begin();
    script.late_us = 30 * 1000;
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(16, large), 128 * MIB);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    for (unsigned i = 0; i < 16; i++)
        check_sample(ws, i);
    fill_stats(fill, &stats);
    uint64_t runs = 0;
    for (unsigned k = 0; k <= HISTOGRAM_BUCKETS; k++)
        runs += atomic_load(&fill_segment_times(fill)->counts[k]);
    assert_int_equal(stats.segments, ws->nsegments);
    assert_true(ws->nsegments >= 10);
    assert_in_range(runs, 2, 3); /* 8 MiB until the server was met, and up to 64 MiB from then on */
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

static void test_many(void **state)
{
    struct fill_stats stats;
    begin();
    fill_whole(6000, tiny, 4 * MIB, 0, &stats);
    assert_int_equal(stats.remote_requests, 6000);
    web_stop(&server);
}

static void test_passes(void **state)
{
    struct fill_stats stats;
    begin();
    script.busy = 5;
    fill_whole(40, mixed, 4 * MIB, 0, &stats);
    assert_int_equal(stats.remote_throttled, 5);
    assert_true(stats.remote_retries >= 5);
    script.half = 7; /* connections that end within a body */
    fill_whole(60, mixed, 4 * MIB, 0, &stats);
    assert_true(stats.remote_retries > 0);
    web_stop(&server);
}

static int failure_of(struct wset *ws, unsigned i, struct leat_error *err)
{
    assert_int_equal(wset_sample_state(ws, i), LIVE_FAILED);
    return wset_failure_get(ws, i, err);
}

static void test_changed(void **state)
{
    struct leat_error err;
    begin();
    script.changed = 7; /* 3 MiB: in several blocks */
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(20, mixed), 4 * MIB);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    for (unsigned i = 0; i < 20; i++) {
        if (i != 7)
            check_sample(ws, i);
    }
    assert_int_equal(failure_of(ws, 7, &err), LEAT_STALE);
    assert_non_null(strstr(err.message, "/d/o-7-"));
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* Of the same length, and nothing but its time tells it from the object that was indexed: each segment asks by a handle of its own, so none may
 * believe the first answer that it gets. */
static void test_changed_weak(void **state)
{
    struct leat_error err;
    begin();
    script.weak = true;
    for (script.changed = 7; script.changed <= 8; script.changed++) { /* without an ETag, with a weak one */
        struct fill *fill = fill_of(2, 1 * MIB);
        struct wset *ws = testing_wset(index_here(20, mixed), 4 * MIB);
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (unsigned i = 0; i < 20; i++) {
            if (i != script.changed)
                check_sample(ws, i);
        }
        assert_int_equal(failure_of(ws, script.changed, &err), LEAT_STALE);
        assert_non_null(strstr(err.message, "written at Sun, 06 Nov 1994 08:49:37 GMT, and again at"));
        wset_unref(ws);
        fill_free(fill);
    }
    web_stop(&server);
}

static void test_gone(void **state)
{
    struct leat_error err;
    begin();
    int fd = index_here(5, tiny);
    web_stop(&server); /* no server any more */
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(fd, 1 * MIB);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    for (unsigned i = 0; i < 5; i++) {
        assert_true(failure_of(ws, i, &err) < 0);
        assert_non_null(strstr(err.message, "127.0.0.1"));
    }
    wset_unref(ws);
    fill_free(fill);
}

#define LABELS     4u
#define LABEL      25000u
#define LABEL_SEED 9u

static uint32_t field_of(struct index_builder *b, const char *name, const char *path, const struct stat *st)
{
    static const uint64_t shape[] = {LABEL};
    uint32_t source = (uint32_t)index_builder_source(b, path, st);
    uint64_t bytes = (uint64_t)LABELS * LABEL, address = index_builder_reserve(b, bytes, INDEX_FILE_ALIGN, 0);
    struct index_extent e = {.address = address,
                             .bytes = bytes,
                             .source_bytes = bytes,
                             .source = source,
                             .kind = INDEX_EXTENT_RAW};
    index_builder_extent(b, &e);
    index_builder_field(b, name, "|u1", INDEX_FIELD_UNIFORM, 1, shape, address, LABEL);
    return source;
}

/* Images on the server, and labels in a small file here. */
static int index_of_both(bool local_first)
{
    struct index_builder *b;
    struct stat here, there = {.st_mode = S_IFREG, .st_size = (off_t)LABELS * LABEL};
    char path[600], uri[100];
    testing_file("label", NULL, 0, LABEL_SEED, (uint64_t)LABELS * LABEL);
    snprintf(path, sizeof(path), "%s/label", testing_folder());
    snprintf(uri, sizeof(uri), "http://127.0.0.1:%u/d/o-1-%u", server.origin.port, LABELS * LABEL);
    assert_int_equal(stat(path, &here), 0);
    assert_int_equal(index_builder_new(INDEX_KIND_ARRAY, "", &b), 0);
    if (local_first)
        field_of(b, "label", path, &here);
    index_builder_etag(b, field_of(b, "image", uri, &there), ETAG);
    if (!local_first)
        field_of(b, "label", path, &here);
    index_builder_count(b, LABELS);
    return testing_index_of(b);
}

static void check_both(const struct wset *ws, unsigned f, uint32_t seed)
{
    uint8_t want[LABEL], got[LABEL];
    for (unsigned i = 0; i < LABELS; i++) {
        testing_bytes(seed, (uint64_t)i * LABEL, want, LABEL);
        assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
        testing_part(ws, i, f, got);
        assert_memory_equal(got, want, LABEL);
        assert_int_equal(ws->crc[2 * i + f], crc32c(0, want, LABEL));
    }
}

/* A small cold local file beside a remote object: neither is checksummed before its bytes have come, nor
 * believed if it changed. */
static void test_local_beside_remote(void **state)
{
    struct leat_error err;
    begin();
    for (unsigned k = 0; k < 4; k++) {
        bool local_first = k % 2 == 0, touched = k >= 2;
        struct fill *fill = fill_of(1, 0);
        struct wset *ws = testing_wset(index_of_both(local_first), 4 * MIB);
        assert_true(ws->remote && ws->local);
        char path[600];
        snprintf(path, sizeof(path), "%s/label", testing_folder());
        if (touched)
            assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){{.tv_sec = 1}, {.tv_sec = 1}}, 0),
                             0);
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (unsigned i = 0; touched && i < LABELS; i++)
            assert_int_equal(failure_of(ws, i, &err), LEAT_STALE);
        if (!touched) {
            check_both(ws, !local_first, LABEL_SEED);
            check_both(ws, local_first, 1);
        }
        wset_unref(ws);
        fill_free(fill);
    }
    testing_folder_remove();
    web_stop(&server);
}

/* Dropped in the middle: no thread waits for a silent server. */
static void test_cancelled(void **state)
{
    begin();
    script.stall = true;
    struct fill *fill = fill_of(2, 4 * MIB);
    struct wset *ws = testing_wset(index_here(8, large), 4 * MIB);
    assert_int_equal(fill_start(fill, ws), 0);
    wait_stalled();
    fill_cancel(fill, ws);
    testing_wait_alone(ws);
    wset_unref(ws);
    /* and the threads are fit for the next one */
    script.stall = false;
    ws = testing_wset(index_here(8, mixed), 4 * MIB);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    for (unsigned i = 0; i < 8; i++)
        check_sample(ws, i);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

static _Atomic int loaded = 1;

static void load_done(struct fill_load *load, int status, const char *message)
{
    atomic_store(&loaded, status);
}

/* The daemon ends while a segment and a load of a window wait. */
static void test_stopped(void **state)
{
    begin();
    struct fill *fill = fill_of(2, 4 * MIB);
    struct wset *ws = testing_wset(index_here(8, large), 4 * MIB);
    uint8_t *dst = malloc(2 * MIB);
    struct fill_load load = {.ws = ws, .address = 0, .bytes = 2 * MIB, .dst = dst, .done = load_done};
    fill_load(fill, &load);
    test_wait_until(loaded != 1);
    assert_int_equal(loaded, 0);
    testing_check_bytes(dst, 0, 0, 2 * MIB);
    script.stall = true;
    loaded = 1;
    fill_load(fill, &load);
    assert_int_equal(fill_start(fill, ws), 0);
    test_wait_until(script.stalled >= 2);
    fill_stop(fill);
    assert_int_equal(loaded, -ECANCELED);
    fill_free(fill);
    free(dst);
    wset_unref(ws);
    web_stop(&server);
}

static int verified;

static void verify_progress(void *user, uint64_t done, uint64_t total) {}

static void verify_done(void *user, const struct verify_result *result)
{
    verified = result->status;
}

/* The daemon ends while a verification waits for a silent server. */
static void test_verify_stopped(void **state)
{
    begin();
    struct pool pool = {.fill = fill_of(1, 0)};
    struct wset *ws = testing_wset(index_here(1, large), 16 * MIB);
    assert_int_equal(fill_start(pool.fill, ws), 0);
    testing_wait_alone(ws);
    struct list *lists[] = {&pool.sets, &pool.openings, &pool.changes, &pool.works, &pool.scans};
    for (unsigned k = 0; k < ARRAY_LEN(lists); k++)
        list_init(lists[k]);
    budget_init(&pool.budget, 64 * MIB);
    assert_int_equal(loop_new(&pool.loop), 0);
    script.stall = true;
    assert_int_equal(verify_start(&pool, ws, true, verify_progress, verify_done, NULL), 0);
    wait_stalled();
    assert_int_equal(pool_stop(&pool), 0);
    test_run_until(!pool.verifying, loop_turn(pool.loop, 10));
    assert_int_equal(verified, -ECANCELED);
    wset_unref(ws);
    fill_free(pool.fill);
    loop_free(pool.loop);
    web_stop(&server);
}

/* A daemon with a list of allowed hosts does not follow a redirection. */
static void test_redirected(void **state)
{
    struct leat_error err = {0};
    static char *allowed[] = {(char *)"127.0.0.1", NULL};
    const struct access_config config = {.allowed = allowed, .nallowed = 1}, other = {0};
    begin();
    script.elsewhere = true;
    for (int told = 0; told < 2; told++) {
        struct fill *fill = fill_of(1, 0);
        struct wset *ws = testing_wset(index_here(5, mixed), 4 * MIB);
        struct proto_access m = {0};
        assert_int_equal(access_new(&m, false, &ws->access), 0);
        assert_int_equal(access_check(&other, true, ws->access, "http://127.0.0.1/x", &err), LEAT_DENIED);
        assert_int_equal(access_check(told ? &config : &other, told, ws->access, "http://127.0.0.1/x", &err),
                         0);
        if (told)
            assert_int_equal(access_check(&config, true, ws->access, "http://127.0.0.2/x", &err),
                             LEAT_DENIED);
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        if (told) {
            assert_int_equal(failure_of(ws, 1, &err), LEAT_DENIED);
            assert_non_null(strstr(err.message, "localhost"));
        } else {
            check_sample(ws, 1);
        }
        wset_unref(ws);
        fill_free(fill);
    }
    web_stop(&server);
}

static struct access *access_with(const char *key, const char *secret, const char *token)
{
    char endpoint[64];
    struct access *a;
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", server.origin.port);
    struct proto_access m = {.endpoint = strdup(endpoint),
                             .style = strdup("path"),
                             .access_key = strdup(key),
                             .secret_key = strdup(secret),
                             .token = token ? strdup(token) : NULL};
    assert_int_equal(access_new(&m, false, &a), 0);
    assert_null(m.secret_key);
    return a;
}

static void test_denied(void **state)
{
    struct leat_error err;
    for (int expired = 0; expired < 2; expired++) {
        begin();
        struct fill *fill = fill_of(1, 0);
        struct wset *ws = testing_wset(index_of("s3://bucket/d", 5, mixed), 4 * MIB);
        ws->access = access_with("AKEY", "a secret of ours", expired ? "a token of ours" : NULL);
        script.refuse = !expired;
        script.expired = expired;
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(failure_of(ws, i, &err), LEAT_DENIED);
            assert_non_null(strstr(err.message, "s3://bucket/d/o-"));
            assert_non_null(strstr(err.message, expired ? "expired" : "SignatureDoesNotMatch"));
            assert_null(strstr(err.message, "of ours"));
        }
        wset_unref(ws);
        /* A client opens it again with fresh ones. */
        ws = testing_wset(index_of("s3://bucket/d", 5, mixed), 4 * MIB);
        ws->access = access_with("AKEY", "a secret of ours", expired ? "a token of ours" : NULL);
        struct access *fresh = access_with("AKEY", "another secret", "another token");
        assert_true(access_same(ws->access, fresh));
        assert_false(access_equal(ws->access, fresh));
        access_freshen(ws->access, fresh);
        assert_true(access_equal(ws->access, fresh));
        access_unref(fresh);
        script.refuse = script.expired = false;
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (unsigned i = 0; i < 5; i++)
            check_sample(ws, i);
        wset_unref(ws);
        fill_free(fill);
        web_stop(&server);
    }
}

/* Keys that the daemon finds by itself, for several threads that want them at once. */
static void test_own(void **state)
{
    begin();
    char endpoint[64];
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", server.origin.port);
    char path[400], text[] = "[default]\ncredential_process = sleep 0.2; echo "
                             "'{\"AccessKeyId\": \"AKEY\", \"SecretAccessKey\": \"s\"}'\n";
    snprintf(path, sizeof(path), "%s/credentials", testing_folder());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_PROFILE");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    for (unsigned again = 0; again < 2; again++) {
        const struct access_config config = {.endpoint = endpoint};
        struct leat_error err;
        struct fill *fill = fill_of(6, 32 * KIB);
        struct wset *ws = testing_wset(index_of("s3://bucket/d", 60, mixed), 64 * KIB);
        assert_int_equal(access_own(&config, &ws->access, &err), 0);
        assert_false(access_signed(ws->access));
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (unsigned i = 0; i < 60; i++)
            check_sample(ws, i);
        assert_true(access_signed(ws->access));
        wset_unref(ws);
        fill_free(fill);
    }
    testing_folder_remove();
    web_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),        cmocka_unit_test(test_many),
        cmocka_unit_test(test_passes),       cmocka_unit_test(test_changed),
        cmocka_unit_test(test_gone),         cmocka_unit_test(test_local_beside_remote),
        cmocka_unit_test(test_cancelled),    cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_denied),       cmocka_unit_test(test_redirected),
        cmocka_unit_test(test_own),          cmocka_unit_test(test_changed_weak),
        cmocka_unit_test(test_slow_answers), cmocka_unit_test(test_verify_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
