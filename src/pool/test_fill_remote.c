/* SPDX-License-Identifier: Apache-2.0 */
/* Sources elsewhere, from a server that follows a script: what arrives, what is told of what does not, and that a wait can be ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

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

/* Objects are called "KIND-NUMBER-BYTES", and have the content of their number. */
#define ETAG    "\"v1\""
#define WEAK    "W/\"v\""
#define WRITTEN 784111777

static struct {
    _Atomic unsigned busy;    /* so many requests are answered 503 first */
    _Atomic unsigned half;    /* so many get half of the body and an end */
    _Atomic unsigned changed; /* this object has another ETag now */
    _Atomic bool weak;        /* no ETags but weak ones, and times */
    _Atomic bool stall, refuse, expired, elsewhere;
    _Atomic unsigned late_us; /* each answer begins so much later */
    _Atomic unsigned requests, stalled;
    _Atomic unsigned gather; /* nothing is answered until so many requests are there */
} script;

static void say_error(struct web_peer *p, int status, const char *code, const char *message)
{
    char body[400], head[200];
    snprintf(body, sizeof(body), "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message);
    snprintf(head, sizeof(head), "HTTP/1.1 %d No\r\nContent-Length: %zu\r\n\r\n", status, strlen(body));
    web_say(p, head);
    web_say(p, body);
}

static bool take_one(_Atomic unsigned *n)
{
    unsigned left = atomic_load(n);
    while (left && !atomic_compare_exchange_weak(n, &left, left - 1)) {
    }
    return left > 0;
}

static void talk(struct web_peer *p)
{
    char path[256], text[400];
    while (web_hear(p, path)) {
        unsigned number = 0;
        unsigned long long bytes = 0, first = 0, last;
        const char *name = strrchr(path, '/') + 1;
        atomic_fetch_add(&script.requests, 1);
        test_pause_us(script.late_us);
        if (sscanf(name, "o-%u-%llu", &number, &bytes) != 2) {
            say_error(p, 404, "NoSuchKey", "nothing here");
            continue;
        }
        if (script.elsewhere && web_header(p, "host", text, sizeof(text)) && strncmp(text, "127.", 4) == 0) {
            char head[400];
            snprintf(head, sizeof(head),
                     "HTTP/1.1 302 Found\r\nLocation: http://localhost%s%s\r\nContent-Length: 0\r\n\r\n",
                     strchr(text, ':'), path);
            web_say(p, head);
            continue;
        }
        if (script.stall) {
            atomic_fetch_add(&script.stalled, 1);
            while (web_read(p, p->buf, sizeof(p->buf)) > 0) {
            }
            return;
        }
        test_wait_until(script.requests >= script.gather);
        if (take_one(&script.busy)) {
            say_error(p, 503, "SlowDown", "please reduce your request rate");
            continue;
        }
        if (script.refuse || script.expired) {
            say_error(p, 403, script.refuse ? "SignatureDoesNotMatch" : "ExpiredToken", "as the script says");
            continue;
        }
        bool other = script.changed && number == script.changed;
        if (other && web_header(p, "if-match", text, sizeof(text)) && strcmp(text, "\"v2\"") != 0) {
            say_error(p, 412, "PreconditionFailed", "changed");
            continue;
        }
        char tag[100];
        snprintf(tag, sizeof(tag), "%s", other ? "\"v2\"" : ETAG);
        if (script.weak)
            snprintf(tag, sizeof(tag), WEAK "\r\nLast-Modified: Sun, 06 Nov 1994 08:49:%s GMT",
                     other ? "38" : "37");
        last = bytes - 1;
        bool range =
            web_header(p, "range", text, sizeof(text)) && sscanf(text, "bytes=%llu-%llu", &first, &last) == 2;
        uint64_t n = last - first + 1, say = take_one(&script.half) ? n / 2 : n;
        if (range)
            snprintf(text, sizeof(text),
                     "HTTP/1.1 206 Partial\r\nETag: %s\r\nContent-Length: %llu\r\nContent-Range: bytes "
                     "%llu-%llu/%llu\r\n\r\n",
                     tag, (unsigned long long)n, first, last, bytes);
        else
            snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nETag: %s\r\nContent-Length: %llu\r\n\r\n", tag,
                     (unsigned long long)n);
        uint8_t *body = malloc(n ? n : 1);
        for (uint64_t k = 0; k < n; k++)
            body[k] = testing_byte(number, first + k);
        web_say(p, text);
        web_say_bytes(p, body, say);
        free(body);
        if (say < n)
            return;
    }
}

/* No local file is in the page cache. */
ssize_t preadv2(int fd, const struct iovec *iov, int n, off_t offset, int flags)
{
    errno = EAGAIN;
    return -1;
}

static struct web_server server;

/* A tree of objects, one a sample. */
static int index_of(const char *root, unsigned n, uint64_t (*bytes_of)(unsigned i))
{
    struct index_builder *b;
    assert_int_equal(index_builder_new(INDEX_KIND_DIR, root, &b), 0);
    int field = index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    for (unsigned i = 0; i < n; i++) {
        char name[64];
        uint64_t bytes = bytes_of(i);
        struct stat st = {.st_mode = S_IFREG, .st_size = (off_t)bytes, .st_mtim = {.tv_sec = WRITTEN}};
        snprintf(name, sizeof(name), "o-%u-%llu", i, (unsigned long long)bytes);
        uint32_t source = (uint32_t)index_builder_source(b, name, &st);
        index_builder_etag(b, source, script.weak ? (i % 2 ? "" : WEAK) : ETAG);
        struct index_extent e = {
            .bytes = bytes, .source_bytes = bytes, .source = source, .kind = INDEX_EXTENT_RAW};
        e.address = index_builder_reserve(b, bytes, INDEX_SMALL_ALIGN, 0);
        index_builder_extent(b, &e);
        index_builder_sample(b, name, strlen(name));
        index_builder_part(b, (unsigned)field, e.address, bytes);
    }
    return testing_index_of(b);
}

static int index_here(unsigned n, uint64_t (*bytes_of)(unsigned i))
{
    char root[64];
    snprintf(root, sizeof(root), "http://127.0.0.1:%u/d", server.origin.port);
    return index_of(root, n, bytes_of);
}

static const struct source_opener opener;
static void advanced(struct wset *ws) {}

static struct fill *fill_of(unsigned threads, uint64_t segment)
{
    struct fill *fill;
    struct leat_error err = {0};
    struct fill_config config = {.threads = threads,
                                 .disk_engine = "worker",
                                 .segment_bytes = segment,
                                 .opener = &opener,
                                 .advanced = advanced};
    if (fill_new(&config, &fill, &err) < 0)
        fail_msg("%s", err.message);
    return fill;
}

static void check_sample(const struct wset *ws, unsigned i)
{
    struct index_part part = {0};
    struct leat_error err;
    if (wset_sample_state(ws, i) != LIVE_RESIDENT) {
        wset_failure_get((struct wset *)(uintptr_t)ws, i, &err);
        fail_msg("sample %u: %s", i, err.message);
    }
    assert_true(index_part(&ws->index, i, 0, &part));
    uint8_t *got = malloc(part.bytes + 1);
    testing_part(ws, i, 0, got);
    for (uint64_t k = 0; k < part.bytes; k++) {
        if (got[k] != testing_byte(i, k))
            fail_msg("sample %u: byte %llu differs", i, (unsigned long long)k);
    }
    assert_int_equal(ws->crc[i], crc32c(0, got, part.bytes));
    free(got);
}

static uint64_t mixed(unsigned i)
{
    return i % 50 == 7 ? 3 * MIB + i : 1 + (i * 977) % 9000;
}
static uint64_t tiny(unsigned i)
{
    return 1 + i % 200;
}
static uint64_t large(unsigned i)
{
    return 5 * MIB + i;
}

static void begin(void)
{
    memset(&script, 0, sizeof(script));
    web_start(&server, talk, NULL);
}

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
    web_stop(&server); /* nobody there any more */
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

static void wait_stalled(void)
{
    test_wait_until(script.stalled);
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
        for (unsigned k = 0; k < LABEL; k++)
            want[k] = testing_byte(seed, (uint64_t)i * LABEL + k);
        assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
        testing_part(ws, i, f, got);
        assert_memory_equal(got, want, LABEL);
        assert_int_equal(ws->crc[2 * i + f], crc32c(0, want, LABEL));
    }
}

/* A small cold file here beside an object there: neither is checksummed before its bytes have come, nor believed if it changed. */
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

/* Dropped in the middle: nobody waits for a server that says nothing. */
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
    for (uint64_t k = 0; k < 2 * MIB; k++)
        assert_int_equal(dst[k], testing_byte(0, k));
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

/* Sample i of a set, by a load of its own. */
struct one_load {
    struct fill_load load;
    unsigned i;
    _Atomic unsigned times; /* it was done */
    int status;
    char message[200];
};

static void one_done(struct fill_load *load, int status, const char *message)
{
    struct one_load *one = container_of(load, struct one_load, load);
    one->status = status;
    snprintf(one->message, sizeof(one->message), "%s", message);
    atomic_fetch_add(&one->times, 1);
}

static struct one_load *loads_start(struct fill *fill, struct wset *ws, unsigned n)
{
    struct one_load *loads = calloc(n, sizeof(*loads));
    for (unsigned i = 0; i < n; i++) {
        struct index_part part = {0};
        assert_true(index_part(&ws->index, i, 0, &part));
        loads[i].i = i;
        loads[i].load = (struct fill_load){.ws = ws,
                                           .address = part.address,
                                           .bytes = part.bytes,
                                           .dst = calloc(1, part.bytes),
                                           .done = one_done};
        fill_load(fill, &loads[i].load);
    }
    return loads;
}

static void loads_wait(const struct one_load *loads, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        test_wait_until(atomic_load(&loads[i].times));
    }
}

/* Each was done once, with this status; 0: and has its bytes. */
static void loads_end(struct one_load *loads, unsigned n, int status)
{
    loads_wait(loads, n);
    test_pause_us(2000); /* a second call would come soon */
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(loads[i].times, 1);
        if (loads[i].status != status)
            fail_msg("load %u: %d, %s", i, loads[i].status, loads[i].message);
        for (uint64_t k = 0; status == 0 && k < loads[i].load.bytes; k++)
            assert_int_equal(loads[i].load.dst[k], testing_byte(loads[i].i, k));
        free(loads[i].load.dst);
    }
    free(loads);
}

static uint64_t middling(unsigned i)
{
    return 40000 + 17 * i;
}
static uint64_t long_ones(unsigned i)
{
    return i % 3 ? 700000 + i : 90 + i;
}

/* One thread has many under way: this server answers none before many are asked for. */
static void test_loads_at_a_time(void **state)
{
    enum { N = 60 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(N, middling), 4 * MIB);
    script.gather = N / 8; /* a connection has eight at most, of which this server sees the first */
    loads_end(loads_start(fill, ws, N), N, 0);
    assert_int_equal(script.requests, N);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* More than there is room for at a time, by several threads; a load of many objects; passing errors. */
static void test_loads_many(void **state)
{
    enum { N = 300 };
    begin();
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        struct fill *fill = fill_of(threads, 0);
        struct wset *ws = testing_wset(index_here(N, long_ones), 4 * MIB);
        uint64_t end = ws->index.header->address_end;
        struct one_load all = {.load = {.ws = ws, .bytes = end, .dst = calloc(1, end), .done = one_done}};
        script.busy = 5;
        script.half = 7;
        struct one_load *loads = loads_start(fill, ws, N);
        fill_load(fill, &all.load);
        loads_end(loads, N, 0);
        loads_wait(&all, 1);
        assert_int_equal(all.status, 0);
        for (unsigned i = 0; i < N; i++) {
            struct index_part part = {0};
            assert_true(index_part(&ws->index, i, 0, &part));
            for (uint64_t k = 0; k < part.bytes; k++)
                assert_int_equal(all.load.dst[part.address + k], testing_byte(i, k));
        }
        free(all.load.dst);
        assert_int_equal(atomic_load(&ws->refs), 1);
        wset_unref(ws);
        fill_free(fill);
    }
    web_stop(&server);
}

/* What is wrong with one is not wrong with its neighbours. */
static void test_loads_fail_alone(void **state)
{
    enum { N = 40 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(N, middling), 4 * MIB);
    script.changed = 7;
    struct one_load *loads = loads_start(fill, ws, N);
    loads_wait(loads, N);
    assert_int_equal(loads[7].status, LEAT_STALE);
    assert_non_null(strstr(loads[7].message, "o-7-"));
    loads[7].status = 0;
    memset(loads[7].load.dst, 0, loads[7].load.bytes);
    for (uint64_t k = 0; k < loads[7].load.bytes; k++)
        loads[7].load.dst[k] = testing_byte(7, k);
    loads_end(loads, N, 0);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* Dropped by force while some are under way and others wait, and those of another set behind them: these come. */
static void test_loads_dropped(void **state)
{
    enum { N = 30, LATER = 5 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws = testing_wset(index_here(N, large), 16 * MIB);
    struct wset *other = testing_wset(index_here(LATER, middling), 4 * MIB);
    script.stall = true;
    struct one_load *loads = loads_start(fill, ws, N), *later;
    wait_stalled();
    later = loads_start(fill, other, LATER);
    script.stall = false;
    atomic_store(&ws->revoked, true);
    fill_cancel(fill, ws);
    loads_end(loads, N, -ECANCELED);
    loads_end(later, LATER, 0);
    assert_int_equal(atomic_load(&ws->refs), 1);
    wset_unref(other);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

static struct wset *dropping;

/* The first write to the live table of a set that is being dropped: by then what was woken has gone back to its wait. */
static void write_late(int signal, siginfo_t *info, void *context)
{
    test_pause_us(200 * 1000);
    mprotect(dropping->live, 4096, PROT_READ | PROT_WRITE);
}

/* The pool drops a set by force: a load that waits for a silent server ends, however slow the drop is. */
static void test_load_dropped_slowly(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip(); /* a fault ends the program there */
#endif
    begin();
    script.stall = true;
    struct pool pool = {.fill = fill_of(1, 0)};
    struct wset *ws = wset_ref(testing_wset(index_here(1, large), 16 * MIB));
    list_init(&pool.sets);
    list_push_back(&pool.sets, &ws->node);
    struct one_load *load = loads_start(pool.fill, ws, 1);
    wait_stalled();
    struct sigaction late = {.sa_sigaction = write_late, .sa_flags = SA_SIGINFO}, before;
    dropping = ws;
    assert_int_equal(sigaction(SIGSEGV, &late, &before), 0);
    assert_int_equal(mprotect(ws->live, 4096, PROT_READ), 0);
    pool_drop(&pool, ws, POOL_DROP_FORCE);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    test_wait_until(load->times);
    loads_end(load, 1, -ECANCELED);
    wset_unref(ws);
    fill_free(pool.fill);
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

/* The daemon ends: each load ends once. */
static void test_loads_stopped(void **state)
{
    enum { N = 30 };
    begin();
    struct fill *fill = fill_of(2, 0);
    struct wset *ws = testing_wset(index_here(N, large), 16 * MIB);
    script.stall = true;
    struct one_load *loads = loads_start(fill, ws, N);
    wait_stalled();
    fill_stop(fill);
    loads_end(loads, N, -ECANCELED);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

static sem_t held, let_go;

static void hold(struct fill_load *load, int status, const char *message)
{
    sem_post(&held);
    sem_wait(&let_go);
}

/*
 * A thread that waits for a silent server has as much under way as it may beside idle threads, and was to be woken for the next load,
 * as all others were busy then: one that is idle by now takes it.
 */
static void test_loads_left_to_idle_threads(void **state)
{
    enum { N = 4 };
    begin();
    sem_init(&held, 0, 0);
    sem_init(&let_go, 0, 0);
    struct fill *fill = fill_of(2, 0);
    struct wset *ws = testing_wset(index_here(N, large), 32 * MIB);
    struct wset *other = testing_wset(index_here(N, middling), 4 * MIB);
    struct fill_load busy = {.ws = other, .dst = malloc(1), .done = hold};
    fill_load(fill, &busy);
    sem_wait(&held);
    script.stall = true;
    struct one_load *silent = loads_start(fill, ws, 2);
    test_wait_until(script.stalled >= 2);
    test_pause_us(50000); /* until it waits */
    sem_post(&let_go);
    test_pause_us(50000); /* until the other one is idle */
    script.stall = false;
    struct one_load *next = loads_start(fill, ws, 1);
    test_wait_until(next->times);
    assert_int_equal(next->times, 1);
    loads_end(next, 1, 0);
    fill_stop(fill);
    loads_end(silent, 2, -ECANCELED);
    wset_unref(other);
    wset_unref(ws);
    fill_free(fill);
    free(busy.dst);
    web_stop(&server);
}

/* As above, with a load of another set in front of the next one: once another thread has taken that, the next one is looked at. */
static void test_load_behind_another_set(void **state)
{
    begin();
    sem_init(&held, 0, 0);
    sem_init(&let_go, 0, 0);
    struct fill *fill = fill_of(2, 0);
    struct wset *ws = testing_wset(index_here(2, large), 32 * MIB);
    struct wset *other = testing_wset(index_here(1, middling), 4 * MIB);
    struct fill_load busy = {.ws = other, .dst = malloc(1), .done = hold}, front = busy;
    fill_load(fill, &busy);
    sem_wait(&held);
    script.stall = true;
    struct one_load *silent = loads_start(fill, ws, 1);
    wait_stalled();
    test_pause_us(50000); /* until it waits */
    fill_load(fill, &front);
    struct one_load next = {.load = {.ws = ws, .dst = busy.dst, .done = one_done}}; /* of no bytes */
    fill_load(fill, &next.load);
    test_pause_us(50000); /* until it has looked */
    sem_post(&let_go);
    sem_wait(&held);
    test_wait_until(next.times);
    assert_int_equal(next.times, 1);
    sem_post(&let_go);
    assert_int_equal(next.status, 0);
    fill_stop(fill);
    loads_end(silent, 1, -ECANCELED);
    wset_unref(other);
    wset_unref(ws);
    fill_free(fill);
    free(busy.dst);
    web_stop(&server);
}

/* An extent of the mapped index moves past the end of what is loaded: the load fails, as its bytes do not come. */
static void test_loads_of_changed_index(void **state)
{
    enum { N = 5 };
    begin();
    struct fill *fill = fill_of(1, 0);
    int fd = index_here(N, middling);
    struct wset *ws = testing_wset(fd, 4 * MIB);
    struct index_extent e = ws->index.extents[2];
    off_t at = (off_t)(ws->index.header->sections[INDEX_EXTENTS].offset + 2 * sizeof(e));
    e.address = UINT64_MAX - 4095;
    assert_int_equal(pwrite(fd, &e, sizeof(e), at), sizeof(e));
    struct one_load *loads = loads_start(fill, ws, N);
    loads_wait(loads, N);
    assert_int_equal(loads[2].status, LEAT_CORRUPT);
    for (unsigned i = 0; i < N; i++)
        free(loads[i].load.dst);
    free(loads);
    wset_unref(ws);
    fill_free(fill);
    web_stop(&server);
}

/* One thread, two sets whose loads alternate: neither waits for the other without end. */
static void test_loads_of_two_sets(void **state)
{
    enum { N = 20 };
    begin();
    struct fill *fill = fill_of(1, 0);
    struct wset *ws[2] = {testing_wset(index_here(N, middling), 4 * MIB),
                          testing_wset(index_here(N, tiny), 4 * MIB)};
    for (unsigned times = 0; times < 10; times++) {
        struct one_load *first = loads_start(fill, ws[0], N), *second = loads_start(fill, ws[1], N),
                        *third = loads_start(fill, ws[0], N);
        loads_end(first, N, 0);
        loads_end(second, N, 0);
        loads_end(third, N, 0);
    }
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(atomic_load(&ws[k]->refs), 1);
        wset_unref(ws[k]);
    }
    fill_free(fill);
    web_stop(&server);
}

/* A daemon that was told whom it may ask is not sent elsewhere. */
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
        /* Somebody opens it again with fresh ones. */
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
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_local_beside_remote),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_denied),
        cmocka_unit_test(test_redirected),
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_changed_weak),
        cmocka_unit_test(test_slow_answers),
        cmocka_unit_test(test_loads_at_a_time),
        cmocka_unit_test(test_loads_many),
        cmocka_unit_test(test_loads_fail_alone),
        cmocka_unit_test(test_loads_dropped),
        cmocka_unit_test(test_load_dropped_slowly),
        cmocka_unit_test(test_loads_stopped),
        cmocka_unit_test(test_verify_stopped),
        cmocka_unit_test(test_loads_of_two_sets),
        cmocka_unit_test(test_loads_left_to_idle_threads),
        cmocka_unit_test(test_load_behind_another_set),
        cmocka_unit_test(test_loads_of_changed_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
