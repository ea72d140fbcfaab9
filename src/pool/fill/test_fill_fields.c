/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of several fields that lie one behind the other in a shard, as in WebDataset's: fields x sizes x (cached, direct, remote) x
 * the steps in which their pending_install is reported. Each sample must arrive, or fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "http/client/testing.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/testing.h"
#include "pool/fill/fill.h"
#include "pool/source/source.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#define SEED    1u
#define HEADER  512u /* before each member, as in a tar archive */
#define SAMPLES 12u

static struct web_server server;
static const struct source_opener opener;
static void advanced(struct wset *ws) {}

/* Any object: bytes of the one content. */
static void talk(struct web_peer *p)
{
    char path[256], text[200];
    while (web_hear(p, path)) {
        unsigned long long first = 0, last = 0;
        if (web_header(p, "range", text, sizeof(text)))
            sscanf(text, "bytes=%llu-%llu", &first, &last);
        size_t n = (size_t)(last - first + 1);
        uint8_t *body = malloc(n);
        testing_bytes(SEED, first, body, n);
        snprintf(text, sizeof(text),
                 "HTTP/1.1 206 Partial\r\nContent-Length: %zu\r\nContent-Range: bytes %llu-%llu/%s\r\n\r\n",
                 n, first, last, strrchr(path, '/') + 1);
        web_say(p, text);
        web_say_bytes(p, body, n);
        free(body);
    }
}

/* sizes: of each field of a sample, 0 at the end. */
static uint64_t shard_bytes(const uint32_t *sizes)
{
    uint64_t bytes = 0;
    for (unsigned f = 0; sizes[f]; f++)
        bytes += align_up(HEADER + sizes[f], HEADER);
    return bytes * SAMPLES + 2 * (uint64_t)HEADER;
}

/* Two shards of SAMPLES each, of which the samples take turns: each shard is one extent. */
static int shards_index(const char *root, const uint32_t *sizes)
{
    struct index_builder *b;
    char name[32], path[600];
    uint64_t bytes = shard_bytes(sizes), at[2];
    assert_int_equal(index_builder_new(INDEX_KIND_TAR, root, &b), 0);
    for (unsigned f = 0; sizes[f]; f++) {
        snprintf(name, sizeof(name), "f%02u", f);
        assert_int_equal(index_builder_field(b, name, "", INDEX_FIELD_TABLE, 0, NULL, 0, 0), f);
    }
    for (unsigned s = 0; s < 2; s++) {
        struct stat st = {.st_mode = S_IFREG, .st_size = (off_t)bytes};
        snprintf(name, sizeof(name), "shard%u/%llu", s, (unsigned long long)bytes);
        if (root[0] == '/') {
            testing_file(name, NULL, 0, SEED, bytes);
            snprintf(path, sizeof(path), "%s/%s", root, name);
            assert_int_equal(stat(path, &st), 0);
        }
        struct index_extent e = {.bytes = bytes, .source_bytes = bytes, .kind = INDEX_EXTENT_RAW};
        e.source = (uint32_t)index_builder_source(b, name, &st);
        e.address = at[s] = index_builder_reserve(b, bytes, INDEX_FILE_ALIGN, 0);
        assert_int_equal(index_builder_extent(b, &e), 0);
    }
    for (unsigned i = 0; i < 2 * SAMPLES; i++) {
        uint64_t *next = &at[i / SAMPLES];
        snprintf(name, sizeof(name), "%04u", i);
        index_builder_sample(b, name, strlen(name));
        for (unsigned f = 0; sizes[f]; f++) {
            index_builder_part(b, f, *next + HEADER, sizes[f]);
            *next += align_up(HEADER + sizes[f], HEADER);
        }
    }
    return testing_index_of(b);
}

static struct fill *fill_of(uint64_t segment)
{
    struct fill *fill;
    struct leat_error err = {0};
    struct fill_config config = {.threads = 2,
                                 .disk_engine = "worker",
                                 .segment_bytes = segment,
                                 .opener = &opener,
                                 .advanced = advanced};
    if (fill_new(&config, &fill, &err) < 0)
        fail_msg("%s", err.message);
    return fill;
}

static void check_samples(const struct wset *ws)
{
    const struct index *index = &ws->index;
    for (uint64_t i = 0; i < index->header->nsamples; i++) {
        if (wset_sample_state(ws, i) != LIVE_RESIDENT)
            fail_msg("sample %llu: state %d", (unsigned long long)i, (int)wset_sample_state(ws, i));
        for (unsigned f = 0; f < index->header->nfields; f++) {
            struct index_part part = {0};
            assert_true(index_part(index, i, f, &part));
            uint64_t offset = part.address - index->extents[index_extent_at(index, part.address)].address;
            uint8_t *got = malloc(part.bytes);
            testing_part(ws, i, f, got);
            testing_check_bytes(got, SEED, offset, part.bytes);
            assert_int_equal(ws->crc[i * index->header->nfields + f], crc32c(0, got, part.bytes));
            free(got);
        }
    }
    assert_int_equal(atomic_load(&ws->live->resident_bytes), index->header->payload_bytes);
}

enum road { CACHED, DIRECT, REMOTE, ROADS };

/* first: of the steps. */
static void check_road(enum road road, const uint32_t *sizes, unsigned first)
{
    static const uint64_t steps[][2] = {/* region, segment; 0: the default */
                                        {256 * KIB, 64 * KIB},
                                        {1 * MIB, 320 * KIB},
                                        {64 * MIB, 0}};
    char root[600];
    if (road == REMOTE)
        snprintf(root, sizeof(root), "http://127.0.0.1:%u/d", server.origin.port);
    else
        snprintf(root, sizeof(root), "%s", testing_folder());
    for (unsigned k = first; k < ARRAY_LEN(steps); k += test_step(ARRAY_LEN(steps))) {
        struct fill *fill = fill_of(steps[k][1]);
        struct wset *ws = testing_wset(shards_index(root, sizes), steps[k][0]);
        for (unsigned s = 0; s < 2 && road == CACHED; s++)
            testing_warm(index_string(&ws->index, ws->index.sources[s].path));
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        check_samples(ws);
        wset_unref(ws);
        fill_free(fill);
    }
}

static void test_every_field_arrives(void **state)
{
    static const uint32_t sizes[][17] = {
        {90000},
        {60000, 1200, 100}, /* a picture, its description, its caption */
        {100, 1200, 60000},
        {150001, 150000, 149999},
        {400000, 700, 400000, 700},
        {20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000,
         20000, 20000},
    };
    web_start(&server, talk, NULL);
    for (enum road road = CACHED; road < ROADS; road++) {
        for (unsigned k = 0; k < ARRAY_LEN(sizes); k++)
            check_road(road, sizes[k], test_step(2) > 1 ? (road + k) % 3 : 0);
    }
    web_stop(&server);
}

static _Atomic unsigned failures_sent;

static void count_failures(struct wset *ws, struct bytes_out *records)
{
    /* sample u64, field u32, crc u32, offset u64, bytes u64, status u32 */
    for (size_t at = 0; at + 36 <= records->len; at += 36) {
        uint32_t status;
        memcpy(&status, (const uint8_t *)records->data + at + 32, sizeof(status));
        atomic_fetch_add(&failures_sent, status != 0);
    }
}

/* A gap between segments, as a fault of the daemon would leave it: the samples in it fail once loading has ended, with a message, and
 * other nodes learn of it. */
static void test_what_nothing_loads_fails(void **state)
{
    static const uint32_t sizes[] = {30000, 700, 0};
    struct leat_error err = {0};
    struct fill *fill;
    struct fill_config config = {.threads = 2,
                                 .disk_engine = "worker",
                                 .segment_bytes = 64 * KIB,
                                 .opener = &opener,
                                 .ready = count_failures,
                                 .advanced = advanced};
    assert_int_equal(fill_new(&config, &fill, &err), 0);
    struct wset *ws = testing_wset(shards_index(testing_folder(), sizes), 1 * MIB);
    ws->nnodes = 1;
    assert_int_equal(fill_plan(fill, ws), 0);
    struct wset_segment *gap = &ws->segments[3];
    uint64_t begin = gap->address + 4096, end = gap->address + gap->bytes;
    atomic_fetch_sub(&ws->pending_bytes, gap->bytes - 4096);
    gap->bytes = 4096;
    log_set_level(LOG_LEVEL_ERROR);
    print_message("# an error is logged here:\n");
    fill_go(fill, ws);
    testing_wait_alone(ws);
    log_set_level(LOG_LEVEL_WARNING);
    unsigned failed = 0;
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        bool in_gap = false;
        struct index_part part;
        for (unsigned f = 0; f < 2; f++)
            in_gap |= index_part(&ws->index, i, f, &part) && part.address < end &&
                      begin < part.address + part.bytes;
        assert_int_equal(wset_sample_state(ws, i), in_gap ? LIVE_FAILED : LIVE_RESIDENT);
        if (in_gap && failed++ == 0) {
            assert_int_equal(wset_failure_get(ws, i, &err), -EIO);
            assert_non_null(strstr(err.message, "internal error"));
        }
    }
    assert_true(failed >= 2);
    assert_int_equal(failures_sent, failed);
    assert_true(wset_complete(ws));
    ws->nnodes = 0;
    wset_unref(ws);
    fill_free(fill);
}

static int teardown(void **state)
{
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_arrives),
        cmocka_unit_test(test_what_nothing_loads_fails),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
