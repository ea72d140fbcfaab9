/* SPDX-License-Identifier: Apache-2.0 */
/* How samples become readable: pieces in every order, what fails, what is lost and comes back. Regions carry no memory here. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "failalloc.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

#define REGION 4096u

struct part {
    int64_t address; /* -1: absent */
    uint64_t bytes;
};

/* Samples of `nfields` parts each. */
static int make_index(const struct part *parts, unsigned nsamples, unsigned nfields)
{
    struct index_builder *b;
    uint64_t end = 64;
    assert_int_equal(index_builder_new(INDEX_KIND_PUSHED, "", &b), 0);
    for (unsigned f = 0; f < nfields; f++) {
        char name[16];
        snprintf(name, sizeof(name), "f%u", f);
        assert_int_equal(index_builder_field(b, name, "", INDEX_FIELD_TABLE, 0, NULL, 0, 0), f);
    }
    for (unsigned i = 0; i < nsamples; i++) {
        index_builder_sample(b, NULL, 0);
        for (unsigned f = 0; f < nfields; f++) {
            const struct part *p = &parts[i * nfields + f];
            if (p->address >= 0) {
                index_builder_part(b, f, (uint64_t)p->address, p->bytes);
                end = MAX(end, (uint64_t)p->address + p->bytes);
            }
        }
    }
    index_builder_reserve(b, end, 64, 0);
    return testing_index_of(b);
}

/* Region g is on node g % nnodes. */
static struct wset *make(const struct part *parts, unsigned nsamples, unsigned nfields, unsigned nnodes)
{
    struct wset *ws;
    struct leat_error err = {0};
    if (wset_new(NULL, make_index(parts, nsamples, nfields), true, &ws, &err) < 0)
        fail_msg("%s", err.message);
    ws->region_bytes = REGION;
    ws->nregions = (uint32_t)div_up(ws->index.header->address_end, ws->region_bytes);
    ws->regions = calloc(ws->nregions, sizeof(*ws->regions));
    ws->nnodes = nnodes;
    if (nnodes)
        assert_int_equal(wset_places_make(ws), 0);
    for (uint32_t g = 0; nnodes && g < ws->nregions; g++)
        wset_region_put(ws, g, g % nnodes);
    assert_int_equal(set_nodes_init(&ws->peers, nnodes), 0);
    return ws;
}

static uint8_t content[65536];

static uint32_t crc_of(uint64_t offset, uint64_t bytes)
{
    return crc32c(0, content + offset, bytes);
}

static void piece(struct wset *ws, uint64_t i, unsigned f, uint64_t offset, uint64_t bytes)
{
    wset_piece(ws, i, f, offset, bytes, crc_of(offset, bytes), 0);
}

#define STATE(ws, i, state) assert_int_equal(wset_sample_state(ws, i), state)
#define RESIDENT(ws, n)     assert_int_equal(atomic_load(&(ws)->live->resident_samples), n)
#define FAILED(ws, n)       assert_int_equal(atomic_load(&(ws)->live->failed_samples), n)

static void test_whole(void **state)
{
    const struct part parts[] = {{0, 100}, {128, 50}, {192, 100}, {320, 60}};
    struct wset *ws = make(parts, 2, 2, 0);
    STATE(ws, 0, LIVE_ABSENT);
    piece(ws, 0, 0, 0, 100);
    STATE(ws, 0, LIVE_ABSENT);
    assert_true(wset_part_known(ws, 0, 0));
    assert_false(wset_part_known(ws, 0, 1));
    piece(ws, 0, 0, 0, 100); /* again: nothing */
    STATE(ws, 0, LIVE_ABSENT);
    piece(ws, 0, 1, 0, 50);
    STATE(ws, 0, LIVE_RESIDENT);
    piece(ws, 0, 1, 0, 50);
    RESIDENT(ws, 1);
    assert_int_equal(atomic_load(&ws->live->resident_bytes), 150);
    assert_int_equal(ws->crc[0], crc_of(0, 100));
    assert_int_equal(ws->crc[1], crc_of(0, 50));
    assert_false(wset_complete(ws));
    piece(ws, 1, 1, 0, 60);
    piece(ws, 1, 0, 0, 100);
    assert_true(wset_complete(ws));
    assert_int_equal(ws->crc[2], crc_of(0, 100));
    wset_unref(ws);
}

/* Cut anywhere, in any order, with repeats and overlaps between: the CRC is that of the whole. */
static void test_straddling(void **state)
{
    const struct part parts[] = {{0, 20000}, {20032, 20000}};
    uint64_t rng = 11;
    for (unsigned round = 0; round < 200; round++) {
        struct wset *ws = make(parts, 1, 2, 0);
        uint64_t cuts[12], order[12], n = 2 + rng_below(&rng, 10);
        for (uint64_t k = 0; k <= n; k++)
            cuts[k] = k == 0 ? 0 : k == n ? 20000 : 1 + k * 1500 + rng_below(&rng, 1499);
        for (uint64_t k = 0; k < n; k++) {
            uint64_t at = rng_below(&rng, k + 1);
            order[k] = order[at];
            order[at] = k;
        }
        for (uint64_t k = 0; k < n; k++) {
            uint64_t o = order[k];
            STATE(ws, 0, LIVE_ABSENT);
            piece(ws, 0, 0, cuts[o], cuts[o + 1] - cuts[o]);
            piece(ws, 0, 0, cuts[o], cuts[o + 1] - cuts[o]); /* a host that was asked again */
            piece(ws, 0, 0, cuts[o] + 1, 7);                 /* inside */
            if (o > 0)
                piece(ws, 0, 0, cuts[o] - 1, 2); /* over its beginning */
            piece(ws, 0, 0, cuts[o], 0);
        }
        assert_true(wset_part_known(ws, 0, 0));
        assert_int_equal(ws->crc[0], crc_of(0, 20000));
        piece(ws, 0, 1, 0, 20000);
        RESIDENT(ws, 1);
        assert_int_equal(atomic_load(&ws->live->resident_bytes), 40000);
        wset_unref(ws);
    }
}

/* A piece that begins before one that is there and runs into it must not count for its bytes. */
static void test_overlap_from_before(void **state)
{
    const struct part parts[] = {{0, 300}};
    struct wset *ws = make(parts, 1, 1, 0);
    piece(ws, 0, 0, 100, 100);
    piece(ws, 0, 0, 0, 200);
    STATE(ws, 0, LIVE_ABSENT);
    piece(ws, 0, 0, 200, 100);
    STATE(ws, 0, LIVE_ABSENT);
    piece(ws, 0, 0, 0, 100);
    STATE(ws, 0, LIVE_RESIDENT);
    assert_int_equal(ws->crc[0], crc_of(0, 300));
    wset_unref(ws);
}

static void test_nonsense_is_ignored(void **state)
{
    const struct part parts[] = {{0, 100}, {-1, 0}};
    struct wset *ws = make(parts, 1, 2, 0);
    wset_piece(ws, 1, 0, 0, 100, 0, 0);
    wset_piece(ws, UINT64_MAX, 0, 0, 100, 0, -EIO);
    wset_piece(ws, 0, 2, 0, 100, 0, 0);
    wset_piece(ws, 0, 1, 0, 0, 0, 0);
    wset_piece(ws, 0, 1, 0, 0, 0, -EIO);
    wset_piece(ws, 0, 0, 101, 0, 0, -EIO);
    wset_piece(ws, 0, 0, 1, 100, 0, 0);
    wset_piece(ws, 0, 0, UINT64_MAX, 2, 0, 0);
    wset_piece(ws, 0, 0, 2, UINT64_MAX, 0, 0);
    STATE(ws, 0, LIVE_ABSENT);
    FAILED(ws, 0);
    piece(ws, 0, 0, 0, 100);
    STATE(ws, 0, LIVE_RESIDENT);
    wset_unref(ws);
}

static void test_failed_wins(void **state)
{
    const struct part parts[] = {{0, 100}, {128, 100}, {256, 100}, {384, 100}};
    struct wset *ws = make(parts, 2, 2, 0);
    piece(ws, 0, 0, 0, 100);
    wset_failure(ws, 0, LEAT_STALE, "the file changed");
    wset_piece(ws, 0, 1, 0, 100, 0, LEAT_STALE);
    STATE(ws, 0, LIVE_FAILED);
    piece(ws, 0, 1, 0, 100);
    wset_piece(ws, 0, 1, 50, 50, 0, -EIO);
    STATE(ws, 0, LIVE_FAILED);
    FAILED(ws, 1);
    struct leat_error err = {0};
    assert_int_equal(wset_failure_get(ws, 0, &err), LEAT_STALE);
    assert_string_equal(err.message, "sample 0 (0): the file changed");
    /* One without a reason of its own has the code that all reasons share. */
    assert_int_equal(wset_failure_get(ws, 1, &err), LEAT_STALE);
    assert_non_null(strstr(err.message, "daemon's log"));
    wset_failure(ws, 0, -EACCES, "and no rights");
    assert_int_equal(wset_failure_get(ws, 1, &err), -EIO);
    assert_int_equal(wset_failure_any(ws, &err), LEAT_STALE);
    assert_string_equal(err.message, "1 of 2 samples could not be loaded: sample 0 (0): the file changed");
    /* What was readable and fails later is not counted twice. */
    piece(ws, 1, 0, 0, 100);
    piece(ws, 1, 1, 0, 100);
    RESIDENT(ws, 1);
    wset_piece(ws, 1, 1, 0, 100, 0, -EIO);
    STATE(ws, 1, LIVE_FAILED);
    RESIDENT(ws, 0);
    FAILED(ws, 2);
    assert_true(wset_complete(ws));
    wset_unref(ws);
}

/* The first 256 reasons are kept; the rest have a general one. */
static void test_failures_are_bounded(void **state)
{
    struct part parts[300];
    for (unsigned i = 0; i < 300; i++)
        parts[i] = (struct part){i * 64, 64};
    struct wset *ws = make(parts, 300, 1, 0);
    char long_message[1000];
    memset(long_message, 'm', sizeof(long_message) - 1);
    long_message[sizeof(long_message) - 1] = 0;
    for (unsigned i = 0; i < 300; i++)
        wset_failure(ws, i, -EACCES, long_message);
    struct leat_error err = {0};
    assert_int_equal(wset_failure_get(ws, 255, &err), -EACCES);
    assert_non_null(strstr(err.message, "mmm"));
    assert_int_equal(wset_failure_get(ws, 256, &err), -EACCES);
    assert_non_null(strstr(err.message, "daemon's log"));
    wset_unref(ws);
}

static void test_empty_and_absent(void **state)
{
    /* sample 0: nothing at all; 1: an empty part alone; 2: an absent and a real one; 3: an empty and a real one */
    const struct part parts[] = {{-1, 0}, {-1, 0}, {0, 0}, {-1, 0}, {-1, 0}, {0, 64}, {64, 0}, {128, 64}};
    struct wset *ws = make(parts, 4, 2, 0);
    assert_int_equal(wset_parts_of(ws, 0), 0);
    assert_int_equal(wset_parts_of(ws, 1), 0);
    assert_int_equal(wset_parts_of(ws, 2), 1);
    assert_int_equal(wset_parts_of(ws, 3), 1);
    wset_settle_empty(ws);
    wset_settle_empty(ws);
    RESIDENT(ws, 2);
    STATE(ws, 0, LIVE_RESIDENT);
    STATE(ws, 1, LIVE_RESIDENT);
    STATE(ws, 2, LIVE_ABSENT);
    piece(ws, 2, 1, 0, 64);
    STATE(ws, 2, LIVE_RESIDENT);
    piece(ws, 3, 1, 0, 64);
    STATE(ws, 3, LIVE_RESIDENT);
    assert_true(wset_complete(ws));
    wset_unref(ws);
}

/* A mask of several bytes: every field counts, whichever is last. */
static void test_many_fields(void **state)
{
    enum { N = 19 };
    struct part parts[3 * N];
    for (unsigned k = 0; k < 3 * N; k++) /* rising field by field */
        parts[k] = (struct part){(int64_t)((k % N * 3 + k / N) * 64), 64};
    for (unsigned last = 0; last < N; last++) {
        struct wset *ws = make(parts, 3, N, 0);
        assert_int_equal(ws->mask_bytes, 3);
        for (unsigned f = 0; f < N; f++) {
            if (f != last)
                piece(ws, 1, f, 0, 64);
        }
        STATE(ws, 1, LIVE_ABSENT);
        piece(ws, 1, last, 0, 64);
        STATE(ws, 1, LIVE_RESIDENT);
        STATE(ws, 0, LIVE_ABSENT);
        STATE(ws, 2, LIVE_ABSENT);
        for (unsigned f = 0; f < N; f++) {
            assert_true(wset_part_known(ws, 1, f));
            assert_false(wset_part_known(ws, 0, f) || wset_part_known(ws, 2, f));
        }
        wset_unref(ws);
    }
}

static void test_streamed(void **state)
{
    const struct part parts[] = {{0, 100}, {128, 100}, {4000, 200}, {4224, 100}};
    struct wset *ws = make(parts, 4, 1, 0);
    wset_pin(ws, 4096);
    STATE(ws, 1, LIVE_ABSENT);
    STATE(ws, 2, LIVE_STREAMED); /* half of it is above the line */
    STATE(ws, 3, LIVE_STREAMED);
    assert_int_equal(ws->streamed_samples, 2);
    ws->crc_known = calloc(4, 1);
    assert_int_equal(wset_streamed(ws, 3, 0, 77), 0);
    assert_int_equal(wset_streamed(ws, 3, 0, 77), 0);
    assert_int_equal(wset_streamed(ws, 3, 0, 78), LEAT_CORRUPT);
    assert_int_equal(wset_streamed(ws, 3, 0, 77), 0);
    assert_int_equal(wset_streamed(ws, 2, 0, 5), 0);
    /* A resident part that is read from its source (its node is lost): the CRC it came with is what counts. */
    piece(ws, 0, 0, 0, 100);
    assert_int_equal(wset_streamed(ws, 0, 0, crc_of(0, 100)), 0);
    assert_int_equal(wset_streamed(ws, 0, 0, 1), LEAT_CORRUPT);
    /* The pinned piece of a sample that is streamed does not count for it, nor against it. */
    wset_piece(ws, 2, 0, 0, 96, 0, -EIO);
    STATE(ws, 2, LIVE_STREAMED);
    FAILED(ws, 0);
    assert_false(wset_complete(ws));
    piece(ws, 1, 0, 0, 100);
    assert_true(wset_complete(ws));
    wset_unref(ws);
}

/* Regions 0, 1, 2 on nodes 0, 1, 2: sample 1 lies on 0 and 1, sample 3 on 1 and 2. */
static const struct part spread[] = {{0, 4000}, {4032, 200}, {4288, 3000}, {7296, 2000}, {9344, 100}};

static void test_lost_and_back(void **state)
{
    struct wset *ws = make(spread, 5, 1, 3);
    for (unsigned i = 0; i < 4; i++)
        piece(ws, i, 0, 0, spread[i].bytes);
    wset_node_lost(ws, 1);
    static const uint8_t without_1[] = {LIVE_RESIDENT, LIVE_LOST, LIVE_LOST, LIVE_LOST, LIVE_ABSENT};
    for (unsigned i = 0; i < 5; i++)
        STATE(ws, i, without_1[i]);
    RESIDENT(ws, 1);
    assert_int_equal(ws->live->lost_samples, 3);
    wset_node_lost(ws, 1);
    assert_int_equal(ws->live->lost_samples, 3);
    assert_false(wset_complete(ws));
    wset_node_lost(ws, 2);
    STATE(ws, 4, LIVE_LOST);
    assert_int_equal(ws->live->lost_samples, 4);
    /* Sample 3 needs both. */
    wset_node_back(ws, 1);
    static const uint8_t without_2[] = {LIVE_RESIDENT, LIVE_RESIDENT, LIVE_RESIDENT, LIVE_LOST, LIVE_LOST};
    for (unsigned i = 0; i < 5; i++)
        STATE(ws, i, without_2[i]);
    wset_node_back(ws, 2);
    STATE(ws, 3, LIVE_RESIDENT);
    STATE(ws, 4, LIVE_ABSENT); /* never came */
    RESIDENT(ws, 4);
    assert_int_equal(ws->live->lost_samples, 0);
    assert_false(wset_complete(ws));
    piece(ws, 4, 0, 0, 100);
    assert_true(wset_complete(ws));
    wset_unref(ws);
}

/* What arrives or fails while a node is lost is known when it is back. */
static void test_pieces_while_lost(void **state)
{
    struct wset *ws = make(spread, 5, 1, 3);
    wset_node_lost(ws, 1);
    assert_int_equal(ws->live->lost_samples, 3);
    piece(ws, 1, 0, 0, 64);
    piece(ws, 1, 0, 64, 136);
    STATE(ws, 1, LIVE_LOST);
    wset_piece(ws, 3, 0, 896, 1104, 0, -EIO); /* on node 2 */
    STATE(ws, 3, LIVE_FAILED);
    assert_int_equal(ws->live->lost_samples, 2);
    wset_node_back(ws, 1);
    STATE(ws, 1, LIVE_RESIDENT);
    STATE(ws, 2, LIVE_ABSENT);
    STATE(ws, 3, LIVE_FAILED);
    RESIDENT(ws, 1);
    assert_int_equal(ws->live->lost_samples, 0);
    wset_unref(ws);
}

/* A version with more samples takes over what the one before knew, also for later losses. */
static void test_inherit(void **state)
{
    struct part more[6] = {{0}};
    memcpy(more, spread, sizeof(spread));
    more[5] = (struct part){12288, 64};
    struct wset *old = make(spread, 5, 1, 3), *ws = make(more, 6, 1, 3);
    for (unsigned i = 0; i < 4; i++)
        piece(old, i, 0, 0, spread[i].bytes);
    wset_piece(old, 4, 0, 0, 100, 0, -EIO);
    wset_inherit(ws, old);
    RESIDENT(ws, 4);
    FAILED(ws, 1);
    assert_memory_equal(ws->crc, old->crc, 4 * sizeof(*ws->crc));
    wset_unref(old);
    STATE(ws, 5, LIVE_ABSENT);
    wset_node_lost(ws, 1);
    wset_node_back(ws, 1);
    RESIDENT(ws, 4);
    piece(ws, 5, 0, 0, 64);
    assert_true(wset_complete(ws));
    wset_unref(ws);
}

struct feeder {
    struct wset *ws;
    unsigned first;
};

static void *feed(void *arg)
{
    struct feeder *feeder = arg;
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 512; i++) {
            uint64_t from = feeder->first * 24;
            piece(feeder->ws, i, 0, from, 24);
            if (i % 2 == feeder->first)
                piece(feeder->ws, i, 1, 0, 16);
        }
    }
    return NULL;
}

/* Halves from two threads while a node comes and goes: in the end everything is there, and every count agrees. */
static void test_threads(void **state)
{
    static struct part parts[1024];
    for (unsigned i = 0; i < 512; i++) {
        parts[2 * i] = (struct part){i * 64, 48};
        parts[2 * i + 1] = (struct part){512 * 64 + i * 64, 16};
    }
    struct wset *ws = make(parts, 512, 2, 4);
    struct feeder feeders[2] = {{ws, 0}, {ws, 1}};
    pthread_t threads[2];
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, feed, &feeders[k]), 0);
    for (unsigned k = 0; k < 50; k++) {
        wset_node_lost(ws, k % 4);
        wset_node_back(ws, k % 4);
    }
    for (unsigned k = 0; k < 2; k++)
        pthread_join(threads[k], NULL);
    RESIDENT(ws, 512);
    assert_int_equal(ws->live->lost_samples, 0);
    for (unsigned i = 0; i < 512; i++) {
        STATE(ws, i, LIVE_RESIDENT);
        assert_int_equal(ws->crc[2 * i], crc_of(0, 48));
    }
    wset_unref(ws);
}

static void *feed_rest(void *arg)
{
    for (unsigned i = 0; i < 512; i++)
        piece(arg, i, 0, 24, 24);
    return NULL;
}

/* The rest of a part comes from another node while a fill thread asks what this host lacks of it: at no moment anything. */
static void test_whole_at_once(void **state)
{
    static struct part parts[512];
    static uint8_t here[1];
    for (unsigned i = 0; i < 512; i++)
        parts[i] = (struct part){(2 * i + 1) * REGION - 24, 48};
    for (unsigned round = 0; round < 20; round++) {
        struct wset *ws = make(parts, 512, 1, 2);
        for (unsigned g = 0; g < ws->nregions; g += 2)
            ws->regions[g].region = (struct region *)here; /* never looked into */
        for (unsigned i = 0; i < 512; i++)
            piece(ws, i, 0, 0, 24);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, feed_rest, ws), 0);
        unsigned missing = 0;
        for (unsigned i = 0; i < 512; i++) {
            while (!wset_part_known(ws, i, 0))
                missing += wset_part_missing(ws, i, 0);
        }
        pthread_join(thread, NULL);
        for (unsigned g = 0; g < ws->nregions; g += 2)
            ws->regions[g].region = NULL;
        wset_unref(ws);
        assert_int_equal(missing, 0);
    }
}

struct seen {
    unsigned n;
    struct {
        uint64_t i, offset, bytes;
        unsigned f;
    } at[64];
};

static void see(void *user, uint64_t i, unsigned f, const struct index_part *part, uint64_t offset,
                uint64_t bytes)
{
    struct seen *seen = user;
    seen->at[seen->n].i = i;
    seen->at[seen->n].f = f;
    seen->at[seen->n].offset = offset;
    seen->at[seen->n++].bytes = bytes;
}

static void test_parts_in(void **state)
{
    const struct part parts[] = {{0, 100}, {1024, 10}, {-1, 0}, {1088, 0}, {128, 100}, {1088, 50}};
    struct wset *ws = make(parts, 3, 2, 0);
    struct seen seen = {0};
    wset_parts_in(ws, 50, 150, see, &seen);
    assert_int_equal(seen.n, 2);
    assert_int_equal(seen.at[0].i, 0);
    assert_int_equal(seen.at[0].offset, 50);
    assert_int_equal(seen.at[0].bytes, 50);
    assert_int_equal(seen.at[1].i, 2);
    assert_int_equal(seen.at[1].offset, 0);
    assert_int_equal(seen.at[1].bytes, 22);
    seen.n = 0;
    wset_parts_in(ws, 0, 4096, see, &seen);
    assert_int_equal(seen.n, 4); /* neither the absent nor the empty one */
    seen.n = 0;
    wset_parts_in(ws, 1034, 1088, see, &seen);
    assert_int_equal(seen.n, 0);
    wset_unref(ws);
}

static void test_rights(void **state)
{
    const struct part parts[] = {{0, 64}};
    struct wset *ws = make(parts, 1, 1, 0);
    ws->owner_uid = 1000;
    ws->owner_gid = 100;
    assert_true(wset_allows(ws, 1000, 1) && wset_allows(ws, 0, 0));
    assert_false(wset_allows(ws, 1001, 100));
    ws->mode = 0040;
    assert_true(wset_allows(ws, 1001, 100));
    assert_false(wset_allows(ws, 1001, 101));
    ws->mode = 0004;
    assert_true(wset_allows(ws, 1001, 101));
    wset_unref(ws);
}

static int index_of_one = -1;

static int new_once(void *ctx)
{
    struct wset *ws = NULL;
    struct leat_error err = {0};
    int fd = dup(index_of_one);
    int rc = wset_new(NULL, fd, false, &ws, &err);
    if (rc < 0) {
        assert_null(ws);
        assert_true(err.message[0]);
        close(fd); /* not taken */
        return rc;
    }
    wset_unref(ws);
    return 0;
}

/* Pieces that cannot be put together fail their sample and nothing else. */
static int pieces_once(void *ctx)
{
    struct wset *ws = ctx;
    atomic_store(&ws->sample_state[0], LIVE_ABSENT);
    atomic_store(&ws->parts_done[0], 0);
    for (unsigned k = 0; k < 6; k++)
        piece(ws, 0, 0, k * 10, 10);
    int rc = wset_sample_state(ws, 0) == LIVE_RESIDENT ? 0 : -ENOMEM;
    struct leat_error err = {0};
    if (rc < 0)
        assert_int_equal(wset_sample_state(ws, 0), LIVE_FAILED);
    for (unsigned k = 0; k < 6; k++) /* so that the next run begins with none */
        piece(ws, 0, 0, k * 10, 10);
    assert_true(wset_part_known(ws, 0, 0));
    (void)err;
    return rc;
}

static void test_allocations(void **state)
{
    const struct part parts[] = {{0, 60}};
    index_of_one = make_index(parts, 1, 1);
    assert_true(failalloc_run(new_once, NULL) >= 3);
    close(index_of_one);
    struct wset *ws = make(parts, 1, 1, 0);
    for (unsigned k = 0; k < 300; k++)
        wset_failure(ws, 0, -ENOMEM, "so that the list of reasons grows no more");
    assert_true(failalloc_run(pieces_once, ws) >= 3);
    wset_unref(ws);
}

static void test_hostile_index(void **state)
{
    int fd = memfd_create("index", MFD_CLOEXEC);
    struct leat_error err = {0};
    struct wset *ws;
    assert_true(wset_new(NULL, fd, false, &ws, &err) < 0);
    assert_int_equal(write(fd, content, sizeof(content)), sizeof(content));
    assert_int_equal(wset_new(NULL, fd, false, &ws, &err), LEAT_CORRUPT);
    close(fd);
}

/* Other nodes get each sample: of tiny ones a segment has fewer bytes, not more samples. */
static void test_segments_of_tiny_samples(void **state)
{
    struct index_header header = {.nsamples = 1000, .nfields = 1, .address_end = 1 * GIB};
    const struct index index = {.header = &header};
    assert_int_equal(wset_segment_bytes(&index), 8 * MIB);
    assert_int_equal(wset_run_bytes(&index, 0), 8 * MIB);
    assert_int_equal(wset_run_bytes(&index, 10 * NS_PER_MS), 20000000);
    assert_int_equal(wset_run_bytes(&index, UINT64_MAX), 64 * MIB);
    header.nsamples = 256 << 20; /* of 4 bytes */
    assert_int_equal(wset_segment_bytes(&index), 1 * MIB);
    assert_int_equal(wset_run_bytes(&index, UINT64_MAX), 1 * MIB);
    header.nsamples = 1 << 30;
    assert_int_equal(wset_segment_bytes(&index), 256 * KIB);
}

/* What can be done with a set in each phase, and that the setter takes the moves of the table. */
static void test_phases(void **state)
{
    static const enum wset_phase way[] = {WSET_PREPARING, WSET_PREPARED,   WSET_ORPHANED, WSET_PREPARED,
                                          WSET_LIVE,      WSET_SUPERSEDED, WSET_ENDED};
    struct wset *ws = make((struct part[]){{0, 64}}, 1, 1, 0);
    assert_false(wset_is_findable(ws) || wset_is_uncommitted(ws) || wset_has_ended(ws));
    for (unsigned k = 0; k < ARRAY_LEN(way); k++) {
        wset_move(ws, way[k]);
        assert_int_equal(wset_is_uncommitted(ws), k <= 3);
        assert_int_equal(wset_is_committable(ws), k >= 1 && k <= 3);
        assert_int_equal(wset_is_findable(ws), k == 4);
        assert_int_equal(wset_has_ended(ws), k == 6);
        assert_false(wset_is_revoked(ws));
    }
    wset_unref(ws);
    ws = make((struct part[]){{0, 64}}, 1, 1, 0);
    wset_move(ws, WSET_LIVE);
    wset_move(ws, WSET_REVOKED);
    assert_true(wset_has_ended(ws) && wset_is_revoked(ws));
    wset_unref(ws);
}

/* Where readers find the places, whatever the pages of their kernel. Of two moves with the same number all
 * nodes keep the same one, in whatever order they arrive. */
static void test_places(void **state)
{
    struct wset *a = make((struct part[]){{0, 64}}, 1, 1, 3), *b = make((struct part[]){{0, 64}}, 1, 1, 3);
    assert_int_equal(a->live->places_offset % (64 * KIB), 0);
    assert_true(a->live->places_offset >= a->live->total_bytes);
    assert_false(wset_region_move(a, 0, 2, 0)); /* no move is number 0 */
    assert_true(wset_region_move(a, 0, 1, 7));
    assert_true(wset_region_move(a, 0, 2, 7));
    assert_false(wset_region_move(a, 0, 2, 7));
    assert_true(wset_region_move(b, 0, 2, 7));
    assert_false(wset_region_move(b, 0, 1, 7));
    assert_int_equal(atomic_load(&a->places[0]), atomic_load(&b->places[0]));
    assert_true(wset_region_move(a, 0, 0, 8));
    assert_false(wset_region_move(a, 0, 2, 7));
    assert_false(wset_region_move(a, 1, 0, 9) || wset_region_move(a, 0, 3, 9));
    assert_int_equal(a->live->moves, 3);
    wset_unref(a);
    wset_unref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_straddling),
        cmocka_unit_test(test_overlap_from_before),
        cmocka_unit_test(test_nonsense_is_ignored),
        cmocka_unit_test(test_failed_wins),
        cmocka_unit_test(test_failures_are_bounded),
        cmocka_unit_test(test_empty_and_absent),
        cmocka_unit_test(test_many_fields),
        cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_lost_and_back),
        cmocka_unit_test(test_pieces_while_lost),
        cmocka_unit_test(test_inherit),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_whole_at_once),
        cmocka_unit_test(test_parts_in),
        cmocka_unit_test(test_rights),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_hostile_index),
        cmocka_unit_test(test_segments_of_tiny_samples),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_places),
    };
    testing_bytes(1, 0, content, sizeof(content));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
