/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client waits for goes first: segments, and of a folder the files that are meant, without their neighbours. The only thread is
 * held while the test asks, and what is there is looked at whenever something has arrived.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "pool/fill/fill.h"
#include "pool/source/source.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

static const struct source_opener opener;
static sem_t reached, go_on;
static void (*on_advanced)(struct wset *ws);
static _Atomic unsigned nadvanced;
static bool right;

static void advanced(struct wset *ws)
{
    if (on_advanced)
        on_advanced(ws);
    nadvanced++;
}

static struct fill *fill_of(unsigned threads, uint64_t segment_bytes,
                            void (*ready)(struct wset *ws, struct bytes_out *records))
{
    struct fill *fill;
    struct leat_error err = {0};
    struct fill_config config = {.threads = threads,
                                 .disk_engine = "worker",
                                 .segment_bytes = segment_bytes,
                                 .opener = &opener,
                                 .ready = ready,
                                 .advanced = advanced};
    if (fill_new(&config, &fill, &err) < 0)
        fail_msg("%s", err.message);
    return fill;
}

static void block(struct fill_load *load, int status, const char *message)
{
    sem_post(&reached);
    sem_wait(&go_on);
}

/* Holds the only thread, starts the set, asks for samples, lets the thread go and waits until all is loaded. */
static void fill_asking(struct fill *fill, struct wset *ws, const uint64_t *samples, unsigned n,
                        void (*look)(struct wset *ws))
{
    static uint8_t nothing[64];
    struct fill_load load = {.ws = ws, .dst = nothing, .done = block};
    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
    fill_load(fill, &load);
    sem_wait(&reached);
    nadvanced = 0;
    right = false;
    on_advanced = look;
    assert_int_equal(fill_start(fill, ws), 0);
    for (unsigned k = 0; k < n; k++)
        fill_urgent(fill, ws, samples[k]);
    sem_post(&go_on);
    testing_wait_alone(ws);
    on_advanced = NULL;
    uint32_t left = ws->urgent.n;
    fill_urgent(fill, ws, 0); /* there already: nothing */
    assert_int_equal(ws->urgent.n, left);
}

static void tree(const char *folder, unsigned files, uint64_t bytes)
{
    char name[64];
    for (unsigned k = 0; k < files; k++) {
        snprintf(name, sizeof(name), "%s/%03u.bin", folder, k);
        testing_file(name, NULL, 0, k, bytes + k);
    }
}

static void check_tree(const struct wset *ws, uint64_t bytes)
{
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        uint8_t *got = malloc(bytes + i);
        testing_part(ws, i, 0, got);
        assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
        assert_int_equal(wset_part_crc(ws, i, 0), crc32c(0, got, bytes + i));
        for (uint64_t k = 0; k < bytes + i; k += 97)
            assert_int_equal(got[k], testing_byte((uint32_t)i, k));
        free(got);
    }
}

static uint64_t files_opened(struct fill *fill)
{
    struct fill_stats stats;
    fill_stats(fill, &stats);
    return stats.files_opened;
}

/* --- segments --------------------------------------------------------------------------------------------------------- */

static void see_row(struct wset *ws)
{
    if (nadvanced == 0)
        right = wset_sample_state(ws, 41) == LIVE_RESIDENT && wset_sample_state(ws, 0) == LIVE_ABSENT;
}

static void test_segment(void **state)
{
    testing_npy("urgent.npy", 1, 64, 16 * KIB);
    struct fill *fill = fill_of(1, 64 * KIB, NULL);
    struct wset *ws = testing_wset(testing_index("urgent.npy"), 1 * MIB);
    /* In the middle of its segment: all of it is in one, as the header is 128 bytes. */
    fill_asking(fill, ws, (uint64_t[]){41, 41}, 2, see_row);
    assert_true(right);
    assert_int_equal(nadvanced, ws->nsegments);
    fill_free(fill);
    wset_unref(ws);
}

/* A sample of many segments: all of them go first. */
static void see_whole(struct wset *ws)
{
    if (wset_sample_state(ws, 1) == LIVE_RESIDENT && !right)
        right = wset_sample_state(ws, 0) == LIVE_ABSENT && wset_sample_state(ws, 2) == LIVE_ABSENT;
}

static void test_segments(void **state)
{
    testing_npy("urgent2.npy", 1, 3, 320 * KIB);
    struct fill *fill = fill_of(1, 32 * KIB, NULL);
    struct wset *ws = testing_wset(testing_index("urgent2.npy"), 256 * KIB);
    fill_asking(fill, ws, (uint64_t[]){1}, 1, see_whole);
    assert_true(right);
    fill_free(fill);
    wset_unref(ws);
}

/* --- files ------------------------------------------------------------------------------------------------------------ */

static const uint64_t asked[] = {150, 3, 77, 76, 150, 199};

static void see_asked(struct wset *ws)
{
    if (nadvanced == 0)
        right = atomic_load(&ws->live->resident_samples) == 5;
    for (unsigned k = 0; k < ARRAY_LEN(asked) && nadvanced == 0; k++)
        right = right && wset_sample_state(ws, asked[k]) == LIVE_RESIDENT;
}

/* A client that waits for files of a folder waits for these, whatever their segments are, and none is opened twice. */
static void test_files(void **state)
{
    static const struct {
        const char *folder;
        uint64_t bytes, region;
        bool warm;
    } trees[] = {{"small", 8000, 4 * MIB, false},
                 {"warm", 8000, 4 * MIB, true},
                 {"large", 150 * KIB, 64 * MIB, false},
                 {"direct", 300 * KIB, 128 * MIB, false}};
    for (unsigned t = 0; t < ARRAY_LEN(trees); t++) {
        enum { FILES = 200 };
        tree(trees[t].folder, FILES, trees[t].bytes);
        for (unsigned k = 0; k < FILES && trees[t].warm; k++) {
            char name[64];
            snprintf(name, sizeof(name), "%s/%03u.bin", trees[t].folder, k);
            testing_warm(name);
        }
        struct fill *fill = fill_of(1, 0, NULL);
        struct wset *ws = testing_wset(testing_index(trees[t].folder), trees[t].region);
        fill_asking(fill, ws, asked, ARRAY_LEN(asked), see_asked);
        assert_true(right);
        assert_int_equal(nadvanced, ws->nsegments + 1);
        if (trees[t].bytes < 128 * KIB) /* a large one may lie in two segments, and is opened for each */
            assert_int_equal(files_opened(fill), FILES);
        check_tree(ws, trees[t].bytes);
        assert_int_equal(atomic_load(&ws->live->resident_bytes), ws->index.header->payload_bytes);
        fill_free(fill);
        wset_unref(ws);
    }
}

/* Regions so small that files cross them: those come by their segments. */
static void test_files_across_regions(void **state)
{
    struct fill *fill = fill_of(1, 0, NULL);
    struct wset *ws = testing_wset(testing_index("small"), 64 * KIB);
    uint64_t all[200];
    for (unsigned k = 0; k < ARRAY_LEN(all); k++)
        all[k] = (k * 77) % ARRAY_LEN(all);
    fill_asking(fill, ws, all, ARRAY_LEN(all), NULL);
    assert_in_range(files_opened(fill), ARRAY_LEN(all), ARRAY_LEN(all) + ws->nregions - 1);
    check_tree(ws, 8000);
    fill_free(fill);
    wset_unref(ws);
}

/* Several threads, and questions all the time. */
static void test_files_by_threads(void **state)
{
    for (unsigned round = 0; round < 5; round++) {
        struct fill *fill = fill_of(4, 0, NULL);
        struct wset *ws = testing_wset(testing_index("small"), 4 * MIB);
        assert_int_equal(fill_start(fill, ws), 0);
        for (unsigned k = 0; k < 3000; k++)
            fill_urgent(fill, ws, (k * 77 + round) % 200);
        testing_wait_alone(ws);
        assert_int_equal(files_opened(fill), 200);
        check_tree(ws, 8000);
        fill_free(fill);
        wset_unref(ws);
    }
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------------- */

static void see_failed(struct wset *ws)
{
    if (nadvanced == 0)
        right = wset_sample_state(ws, 7) == LIVE_FAILED && wset_sample_state(ws, 8) == LIVE_RESIDENT &&
                wset_sample_state(ws, 9) == LIVE_ABSENT;
}

static void test_file_gone(void **state)
{
    char path[512];
    struct leat_error err = {0};
    tree("gone", 40, 5000);
    struct wset *ws = testing_wset(testing_index("gone"), 1 * MIB);
    struct fill *fill = fill_of(1, 0, NULL);
    snprintf(path, sizeof(path), "%s/gone/007.bin", testing_folder());
    assert_int_equal(unlink(path), 0);
    log_set_level(LOG_LEVEL_ERROR);
    fill_asking(fill, ws, (uint64_t[]){7, 8}, 2, see_failed);
    log_set_level(LOG_LEVEL_WARNING);
    assert_true(right);
    assert_int_equal(atomic_load(&ws->live->failed_samples), 1);
    assert_int_equal(atomic_load(&ws->live->resident_samples), 39);
    wset_failure_get(ws, 7, &err);
    assert_non_null(strstr(err.message, "007.bin"));
    fill_free(fill);
    wset_unref(ws);
}

static void stop_here(struct wset *ws)
{
    if (nadvanced == 0) {
        sem_post(&reached);
        sem_wait(&go_on);
    }
}

/* Nothing more is begun, and the reference of the set comes back. */
static void test_cancel(void **state)
{
    struct fill *fill = fill_of(1, 0, NULL);
    struct wset *ws = testing_wset(testing_index("small"), 4 * MIB);
    uint8_t buf[64];
    struct fill_load load = {.ws = ws, .dst = buf, .done = block};
    fill_load(fill, &load);
    sem_wait(&reached);
    nadvanced = 0;
    on_advanced = stop_here;
    assert_int_equal(fill_start(fill, ws), 0);
    fill_urgent(fill, ws, 100);
    sem_post(&go_on);
    sem_wait(&reached);
    fill_urgent(fill, ws, 5);
    fill_cancel(fill, ws);
    sem_post(&go_on);
    testing_wait_alone(ws);
    on_advanced = NULL;
    assert_int_equal(ws->active, 0);
    assert_int_equal(atomic_load(&ws->live->resident_samples), 1);
    wset_unref(ws);
    fill_free(fill);
}

static unsigned told[200];

static void on_ready(struct wset *ws, struct bytes_out *records)
{
    struct bytes_in in = bytes_in_of(records->data, records->len);
    while (bytes_left(&in) > 0) {
        uint64_t i = bytes_get_u64(&in);
        uint32_t f = bytes_get_u32(&in), crc = bytes_get_u32(&in);
        uint64_t offset = bytes_get_u64(&in), bytes = bytes_get_u64(&in);
        assert_int_equal(bytes_get_u32(&in), 0);
        assert_int_equal(crc, wset_part_crc(ws, i, f));
        assert_int_equal(offset, 0);
        assert_int_equal(bytes, 8000 + i);
        told[i]++;
    }
}

/* A node that came after a file was read alone gets it with its segment. */
static void test_told_again(void **state)
{
    struct fill *fill = fill_of(1, 0, on_ready);
    struct wset *ws = testing_wset(testing_index("small"), 4 * MIB);
    ws->nnodes = 1;
    fill_asking(fill, ws, (uint64_t[]){120, 60}, 2, NULL);
    ws->nnodes = 0;
    for (unsigned i = 0; i < ARRAY_LEN(told); i++)
        assert_int_equal(told[i], i == 120 || i == 60 ? 2 : 1);
    fill_free(fill);
    wset_unref(ws);
}

/* --- other nodes ---------------------------------------------------------------------------------------------------------- */

static bool noted[4096];
static uint64_t order[64];
static unsigned norder;

/* Of each segment the sample that was asked for. */
static void on_segment(struct wset *ws, struct bytes_out *records)
{
    struct bytes_in in = bytes_in_of(records->data, records->len);
    while (bytes_left(&in) > 0) {
        struct proto_ready_record r;
        assert_int_equal(proto_ready_record_next(&in, &r), 0);
        if (noted[r.sample])
            order[norder++] = r.sample;
    }
}

/* The only thread is held, and the set started. */
static struct fill *held(struct wset *ws, struct fill_load *load)
{
    static uint8_t nothing[64];
    struct fill *fill = fill_of(1, 64 * KIB, on_segment);
    *load = (struct fill_load){.ws = ws, .dst = nothing, .done = block};
    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
    fill_load(fill, load);
    sem_wait(&reached);
    ws->nnodes = 1; /* for the records */
    assert_int_equal(fill_start(fill, ws), 0);
    norder = 0;
    memset(noted, 0, sizeof(noted));
    return fill;
}

static void end_held(struct fill *fill, struct wset *ws)
{
    sem_post(&go_on);
    testing_wait_alone(ws);
    fill_free(fill);
    ws->nnodes = 0;
    wset_unref(ws);
}

/* Readers of this host and those of other nodes take turns, though one of them asked for much more, and before. */
static void test_turns(void **state)
{
    static const uint64_t here[] = {41, 45, 49, 53, 57}, there[] = {9, 21};
    struct fill_load load;
    struct wset *ws = testing_wset(testing_index("urgent.npy"), 1 * MIB);
    struct fill *fill = held(ws, &load);
    for (unsigned k = 0; k < ARRAY_LEN(here); k++) {
        fill_urgent(fill, ws, here[k]);
        noted[here[k]] = true;
    }
    for (unsigned k = 0; k < ARRAY_LEN(there); k++) {
        fill_urgent_there(fill, ws, &there[k], 1, 1, 10);
        noted[there[k]] = true;
    }
    end_held(fill, ws);
    static const uint64_t expected[] = {41, 9, 45, 21, 49, 53, 57};
    assert_int_equal(norder, ARRAY_LEN(expected));
    assert_memory_equal(order, expected, sizeof(expected));
}

/* A node that asks for all it can takes no other's place, and what is asked for twice takes one. */
static void test_shares(void **state)
{
    struct fill_load load;
    struct wset *ws = testing_wset(testing_index("urgent.npy"), 1 * MIB);
    struct fill *fill = held(ws, &load);
    uint64_t first[40];
    for (unsigned k = 0; k < ARRAY_LEN(first); k++)
        first[k] = k;
    for (unsigned round = 0; round < 100; round++)
        fill_urgent_there(fill, ws, first, ARRAY_LEN(first), 1, 16);
    assert_int_equal(ws->urgent_there.n, 16);
    fill_urgent_there(fill, ws, &(uint64_t){3}, 1, 2, 16); /* which is in the queue */
    assert_int_equal(ws->urgent_there.n, 16);
    fill_urgent_there(fill, ws, &(uint64_t){61}, 1, 2, 16);
    assert_int_equal(ws->urgent_there.n, 17);
    assert_int_equal(ws->urgent_there.from[16], 2);
    for (unsigned from = 3; from < 63; from++)
        fill_urgent_there(fill, ws, &(uint64_t){from - 3}, 1, from, 16);
    assert_in_range(ws->urgent_there.n, 17, PROTO_URGENT_MAX);
    noted[61] = noted[63] = true;
    end_held(fill, ws);
    assert_int_equal(norder, 2);
    assert_int_equal(order[0], 61);
}

/* As many as there may be: those of one node that has all of the queue to itself. */
static void test_full(void **state)
{
    struct fill_load load;
    testing_npy("many.npy", 1, 4096, 512);
    struct wset *ws = testing_wset(testing_index("many.npy"), 1 * MIB);
    struct fill *fill = held(ws, &load);
    for (uint64_t i = 0; i < 4096; i++)
        fill_urgent_there(fill, ws, &i, 1, 1, UINT32_MAX);
    assert_int_equal(ws->urgent_there.n, PROTO_URGENT_MAX);
    end_held(fill, ws);
}

static int teardown(void **state)
{
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segment),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_files_across_regions),
        cmocka_unit_test(test_files_by_threads),
        cmocka_unit_test(test_file_gone),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_told_again),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
