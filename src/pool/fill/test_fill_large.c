/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large files that the page cache does not have: rows as far behind a page's border as in their file, and rows placed at borders;
 * disks that read to anywhere in memory, and disks that do not; ranges that begin anywhere; and what fails on the way through the
 * bounce buffer.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/crc32c.h"
#include "base/ledger.h"
#include "base/log.h"
#include "base/testing.h"
#include "base/budget.h"
#include "disk/testing_fault.h"
#include "failalloc.h"
#include "pool/fill/fill.h"
#include "pool/region/region.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#define NAME       "large.npy"
#define DATA_BYTES (2 * MIB)
#define SEGMENT    (256 * KIB)

/* Of wide bounce buffers; NULL: none are to be had. */
static struct budget *budget;
static _Atomic uint64_t used_at_end; /* of it, when the last set was complete */

static void advanced(struct wset *ws)
{
    if (budget && wset_complete(ws))
        used_at_end = atomic_load(&budget->used_bytes);
}

/* --- disks ----------------------------------------------------------------------------------------------------------------- */

static int (*worker_submit)(struct disk_engine *e, struct disk_read **reqs, unsigned n);
static struct disk_ops lenient_ops;
static _Atomic unsigned lenient_reads;

/* Reads to wherever memory is aligned as said, but of whole blocks. */
static int lenient_submit(struct disk_engine *e, struct disk_read **reqs, unsigned n)
{
    for (unsigned k = 0; k < n; k++) {
        if (reqs[k]->offset % 512 || reqs[k]->bytes % 512 || (uintptr_t)reqs[k]->dst % disk_memory_align)
            abort(); /* not the test's thread */
        if (fcntl(reqs[k]->fd, F_SETFL, 0) < 0)
            abort();
        posix_fadvise(reqs[k]->fd, 0, 0,
                      POSIX_FADV_RANDOM); /* nothing into the page cache but what is asked for */
    }
    atomic_fetch_add(&lenient_reads, n);
    return worker_submit(e, reqs, n);
}

static int lenient_engine(unsigned depth, struct disk_engine **ret_engine)
{
    int rc = disk_worker_new(depth, ret_engine);
    if (rc < 0)
        return rc;
    worker_submit = (*ret_engine)->ops->submit;
    lenient_ops = *(*ret_engine)->ops;
    lenient_ops.submit = lenient_submit;
    (*ret_engine)->ops = &lenient_ops;
    return 0;
}

static const struct disk_kind {
    uint32_t memory_align;
    int (*engine_new)(unsigned depth, struct disk_engine **ret_engine);
} kinds[] = {{4, lenient_engine}, {512, lenient_engine}, {4096, NULL}};

/* --- sets ------------------------------------------------------------------------------------------------------------------ */

static struct fill *fill_of(unsigned threads, uint64_t segment_bytes,
                            int (*engine_new)(unsigned depth, struct disk_engine **ret_engine))
{
    struct fill_config config = {.threads = threads,
                                 .depth = 8,
                                 .segment_bytes = segment_bytes,
                                 .budget = budget,
                                 .advanced = advanced,
                                 .engine_new = engine_new};
    struct fill *fill;
    assert_int_equal(fill_new(&config, &fill, NULL), 0);
    return fill;
}

static void fill_wait(struct wset *ws)
{
    test_wait_until(wset_complete(ws));
    testing_wait_alone(ws);
}

/* Of how many bytes direct reads are made here. Skips where there are none, or the page cache keeps what it has. */
static uint32_t needs_direct(void)
{
    char path[4096];
    struct disk_file_traits traits;
    snprintf(path, sizeof(path), "%s/%s", testing_folder(), NAME);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(disk_file_probe(fd, &traits), 0);
    if (disk_cached_permille(fd, 0, DATA_BYTES) == 0 && traits.direct_align)
        return traits.direct_align;
    print_message("%s: no direct reads, or it stays in the page cache: set TMPDIR to a folder on a disk\n",
                  path);
    skip();
    return 0;
}

static struct wset *array(uint64_t row, uint64_t region)
{
    testing_npy(NAME, 1, DATA_BYTES / row, row);
    struct wset *ws = testing_wset(testing_index(NAME), region);
    testing_cool(NAME); /* its head has been read */
    return ws;
}

static void advise(struct wset *ws)
{
    for (uint32_t g = 0; g < ws->nregions; g++)
        ws->regions[g].region->pages = REGION_ADVISE;
}

/* 0, or why sample i is not there. */
static int row_state(struct wset *ws, uint64_t i, struct leat_error *ret_err)
{
    uint64_t row = ws->index.fields[0].stride;
    if (wset_sample_state(ws, i) == LIVE_FAILED)
        return wset_failure_get(ws, i, ret_err);
    assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
    uint8_t *got = malloc(row), *want = malloc(row);
    testing_part(ws, i, 0, got);
    testing_bytes(1, i * row, want, row);
    assert_memory_equal(got, want, row);
    assert_int_equal(ws->crc[i], crc32c(0, want, row));
    free(got);
    free(want);
    return 0;
}

static void check_rows(struct wset *ws)
{
    struct leat_error err = {0};
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        if (row_state(ws, i, &err) < 0)
            fail_msg("%llu: %s", (unsigned long long)i, err.message);
    }
}

static uint64_t bounced_bytes(void)
{
    return atomic_load(&ledger_bytes[LEDGER_BOUNCE]);
}

/* --- what arrives ---------------------------------------------------------------------------------------------------------- */

static void fill_one(const struct disk_kind *kind, uint64_t row, uint64_t region, uint64_t segment, bool huge)
{
    disk_memory_align = kind->memory_align;
    struct wset *ws = array(row, region);
    uint32_t align = needs_direct();
    if (huge)
        advise(ws);
    struct fill *fill = fill_of(2, segment, kind->engine_new);
    uint64_t before = bounced_bytes();
    assert_int_equal(fill_start(fill, ws), 0);
    fill_wait(ws);
    uint64_t bounced = bounced_bytes() - before, payload = ws->index.header->payload_bytes;
    check_rows(ws);
    struct fill_stats stats;
    fill_stats(fill, &stats);
    uint64_t data = ws->index.extents[0].bytes;
    assert_int_equal(stats.bytes_direct, data);
    assert_true(data >= payload);
    bool placed = ws->index.fields[0].address % 4096 == 0;
    assert_true(placed == (row > 128 && (row % 4096 == 0 || 4096 % row == 0)));
    if (!placed)
        assert_int_equal(bounced, 0);
    else if (kind->memory_align > 128)
        assert_int_equal(bounced, data);
    else /* a block at each end of a segment */
        assert_true(bounced > 0 && bounced <= 2ull * align * ws->nsegments);
    fill_free(fill);
    wset_unref(ws);
    disk_memory_align = 0;
}

static void test_roads(void **state)
{
    (void)state;
    static const uint64_t rows[] = {128, 256, 512, 2048, 3001, 4096, 8192, 150528};
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        for (unsigned r = 0; r < ARRAY_LEN(rows); r++) {
            fill_one(&kinds[k], rows[r], 4 * MIB, 0, r % 2);
            fill_one(&kinds[k], rows[r], 64 * KIB, 32 * KIB, r % 2 == 0);
        }
    }
}

/* With as much in flight as the pool has room for, which is charged, and given back before the set is complete. */
static void test_wide(void **state)
{
    (void)state;
    static const struct {
        uint64_t cap, used, wide;
    } pools[] = {
        {1024 * MIB, 0, 4 * MIB},
        {256 * MIB, 0, 2 * MIB}, /* a 64th, for two threads */
        {128 * MIB, 0, 0},
        {1024 * MIB, 1021 * MIB, 0},
    };
    disk_memory_align = 4096;
    for (unsigned k = 0; k < ARRAY_LEN(pools); k++) {
        struct budget rooms;
        budget_init(&rooms, pools[k].cap);
        assert_int_equal(budget_reserve(&rooms, pools[k].used), 0);
        struct wset *ws = array(4096, 2 * MIB);
        needs_direct();
        budget = &rooms;
        used_at_end = UINT64_MAX;
        struct fill *fill = fill_of(2, 2 * MIB, NULL);
        assert_int_equal(fill_start(fill, ws), 0);
        fill_wait(ws);
        check_rows(ws);
        assert_int_equal(used_at_end, pools[k].used);
        assert_int_equal(atomic_load(&rooms.peak_bytes), pools[k].used + pools[k].wide);
        assert_int_equal(atomic_load(&rooms.refused), 0);
        fill_free(fill);
        budget = NULL;
        wset_unref(ws);
    }
    disk_memory_align = 0;
}

struct load {
    struct fill_load load;
    sem_t over;
    int status;
};

static void load_done(struct fill_load *load, int status, const char *message)
{
    struct load *l = container_of(load, struct load, load);
    (void)message;
    l->status = status;
    sem_post(&l->over);
}

/* Loads [begin, +bytes) of the addresses: bytes are right, and nothing around them is touched. */
static void load_range(struct fill *fill, struct wset *ws, uint64_t begin, uint64_t bytes, uint64_t phase)
{
    enum { BESIDE = 8192 };
    const struct index_extent *e = &ws->index.extents[0];
    uint8_t *room = aligned_alloc(4096, align_up(bytes + 4 * BESIDE, 4096)), *dst = room + BESIDE + phase;
    memset(room, 0xa5, bytes + 4 * BESIDE);
    struct load l = {.load = {.ws = ws, .address = begin, .bytes = bytes, .dst = dst, .done = load_done}};
    sem_init(&l.over, 0, 0);
    fill_load(fill, &l.load);
    while (sem_wait(&l.over) < 0)
        ;
    assert_int_equal(l.status, 0);
    for (uint64_t k = 0; k < BESIDE; k++)
        assert_true(dst[-1 - (int64_t)k] == 0xa5 && dst[bytes + k] == 0xa5);
    for (uint64_t k = 0; k < bytes; k++) {
        uint64_t address = begin + k;
        if (address >= e->address && address < e->address + e->bytes &&
            dst[k] != testing_byte(1, address - e->address))
            fail_msg("byte %llu of [%llu, +%llu) differs", (unsigned long long)k, (unsigned long long)begin,
                     (unsigned long long)bytes);
    }
    sem_destroy(&l.over);
    free(room);
}

static void test_any_range(void **state)
{
    (void)state;
    static const uint64_t rows[] = {3001, 4096};
    uint64_t x = 20261123;
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        for (unsigned r = 0; r < ARRAY_LEN(rows); r++) {
            disk_memory_align = kinds[k].memory_align;
            struct wset *ws = array(rows[r], 4 * MIB);
            needs_direct();
            struct fill *fill = fill_of(1, 0, kinds[k].engine_new);
            uint64_t end = align_up(ws->index.header->address_end, 4096);
            for (unsigned n = 0; n < 60; n++) {
                x = x * 6364136223846793005ull + 1442695040888963407ull;
                uint64_t begin = (x >> 33) % end, bytes = 1 + (x >> 20) % MIN(end - begin, (uint64_t)300000);
                if (n % 3 == 0) /* as regions and windows have them */
                    begin = align_down(begin, 4096), bytes = MIN(align_up(bytes, 4096), end - begin);
                testing_cool(NAME);
                load_range(fill, ws, begin, bytes, n % 3 ? (x >> 13) % 4096 : 0);
            }
            fill_free(fill);
            wset_unref(ws);
            disk_memory_align = 0;
        }
    }
}

/* A sample that is streamed: a row lies over blocks of the file that have no room at both of its ends. */
static void test_one_row(void **state)
{
    (void)state;
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        if (kinds[k].engine_new != lenient_engine)
            continue;
        disk_memory_align = kinds[k].memory_align;
        struct wset *ws = array(4096, 4 * MIB);
        needs_direct();
        struct fill *fill = fill_of(1, 0, kinds[k].engine_new);
        atomic_store(&lenient_reads, 0);
        for (unsigned i = 0; i < 8; i++) {
            testing_cool(NAME);
            load_range(fill, ws, ws->index.fields[0].address + 40960ull * i, 4096, 0);
        }
        assert_int_equal(lenient_reads, 8);
        fill_free(fill);
        wset_unref(ws);
        disk_memory_align = 0;
    }
}

/* What was indexed before samples were placed keeps its layout, and stays right. */
static void test_image(void **state)
{
    (void)state;
    struct index_builder *b;
    struct stat st;
    char path[4096];
    wset_unref(array(4096, 4 * MIB));
    needs_direct();
    snprintf(path, sizeof(path), "%s/%s", testing_folder(), NAME);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(index_builder_new(INDEX_KIND_ARRAY, testing_folder(), &b), 0);
    struct index_extent e = {.bytes = 128 + DATA_BYTES, .kind = INDEX_EXTENT_RAW};
    e.source = (uint32_t)index_builder_source(b, NAME, &st);
    e.source_bytes = e.bytes;
    e.address = index_builder_reserve(b, align_up(e.bytes, 4096), 4096, 0);
    assert_int_equal(index_builder_extent(b, &e), 0);
    assert_int_equal(index_builder_field(b, "data", "|u1", INDEX_FIELD_UNIFORM, 1, (uint64_t[]){4096},
                                         e.address + 128, 4096),
                     0);
    index_builder_count(b, DATA_BYTES / 4096);
    struct wset *ws = testing_wset(testing_index_of(b), 4 * MIB);
    struct fill *fill = fill_of(2, SEGMENT, NULL);
    uint64_t before = bounced_bytes();
    assert_int_equal(fill_start(fill, ws), 0);
    fill_wait(ws);
    check_rows(ws);
    assert_int_equal(bounced_bytes(), before);
    fill_free(fill);
    wset_unref(ws);
}

/* --- what does not --------------------------------------------------------------------------------------------------------- */

/* One of the bounced reads goes wrong: the rows in it fail, and no others. */
static void spoil(const struct disk_fault_rules *how, int rc, const char *says)
{
    disk_memory_align = 4096;
    for (unsigned huge = 0; huge < 2; huge++) {
        struct wset *ws = array(4096, 4 * MIB);
        needs_direct();
        if (huge)
            advise(ws);
        testing_rules = *how;
        struct fill *fill = fill_of(1, SEGMENT, testing_faulty_engine);
        assert_int_equal(fill_start(fill, ws), 0);
        fill_wait(ws);
        uint64_t nfailed = 0, first = 0, last = 0;
        for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
            struct leat_error err = {0};
            if (row_state(ws, i, &err) == 0)
                continue;
            assert_int_equal(row_state(ws, i, &err), rc);
            if (!strstr(err.message, says) || !strstr(err.message, NAME))
                fail_msg("\"%s\"", err.message);
            first = nfailed++ ? first : i;
            last = i;
        }
        assert_true(nfailed > 0 && nfailed <= 65 &&
                    last - first + 1 == nfailed); /* 256 KiB, which begin and end inside of rows */
        struct fill_stats stats;
        fill_stats(fill, &stats);
        assert_int_equal(stats.errors, 1);
        fill_free(fill);
        wset_unref(ws);
    }
    disk_memory_align = 0;
}

static void test_disk_error(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 7; nth++)
        spoil(&(struct disk_fault_rules){.fail_nth = nth, .fail_code = -EIO}, -EIO, "cannot read");
}

static void test_short_read(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 5; nth += 2) /* of the last block of a segment half is enough */
        spoil(&(struct disk_fault_rules){.short_nth = nth}, LEAT_STALE, "became shorter");
}

/* Memory of base pages is written to by its descriptor. */
static void test_place_refuses(void **state)
{
    (void)state;
    disk_memory_align = 4096;
    struct wset *ws = array(4096, 1 * MIB);
    needs_direct();
    struct region *r = ws->regions[0].region;
    struct fill *fill = fill_of(1, SEGMENT, NULL);
    assert_int_equal(region_reserve(r, 0, r->bytes), 0);
    assert_int_equal(dup2(r->fd_ro, r->fd), r->fd);
    assert_int_equal(fill_start(fill, ws), 0);
    fill_wait(ws);
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        struct leat_error err = {0};
        assert_int_equal(row_state(ws, i, &err) < 0, i < MIB / 4096);
    }
    fill_free(fill);
    wset_unref(ws);
    disk_memory_align = 0;
}

/* Whichever allocation fails: samples are there, or say that there was no memory; and nothing stays charged. */
static bool no_memory(uint64_t nth, uint64_t region, uint64_t segment, bool *ret_rows_failed)
{
    struct budget rooms;
    budget_init(&rooms, 1024 * MIB);
    struct wset *ws = array(4096, region);
    needs_direct();
    budget = &rooms;
    struct fill *fill = fill_of(1, segment, NULL);
    budget = NULL;
    failalloc_arm(nth);
    int rc = fill_start(fill, ws);
    if (rc == 0)
        fill_wait(ws);
    bool refused = failalloc_disarm() >= nth;
    for (uint64_t i = 0; rc == 0 && i < ws->index.header->nsamples; i++) {
        struct leat_error err = {0};
        int row = row_state(ws, i, &err);
        assert_true(row == 0 || row == -ENOMEM);
        *ret_rows_failed |= row < 0;
    }
    fill_free(fill);
    wset_unref(ws);
    assert_int_equal(atomic_load(&rooms.used_bytes), 0);
    return refused;
}

static void test_no_memory(void **state)
{
    (void)state;
    disk_memory_align = 4096;
    bool narrow_failed = false, wide_failed = false;
    for (uint64_t nth = 1; no_memory(nth, 4 * MIB, SEGMENT, &narrow_failed); nth++)
        ;
    assert_true(narrow_failed);
    for (uint64_t nth = 1; no_memory(nth, 2 * MIB, 2 * MIB, &wide_failed); nth++)
        ;
    assert_false(wide_failed); /* there is the narrow one */
    disk_memory_align = 0;
}

/* It ends while reads are under way: they are waited for, and nothing is written after. */
static void test_stopped(void **state)
{
    (void)state;
    disk_memory_align = 4096;
    testing_rules = (struct disk_fault_rules){.delay_ns = 20 * 1000 * 1000};
    struct wset *ws = array(4096, 4 * MIB);
    needs_direct();
    struct fill *fill = fill_of(2, SEGMENT, testing_faulty_engine);
    assert_int_equal(fill_start(fill, ws), 0);
    fill_free(fill);
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        if (wset_sample_state(ws, i) != LIVE_ABSENT)
            assert_int_equal(row_state(ws, i, NULL), 0);
    }
    wset_unref(ws);
    disk_memory_align = 0;
}

static int teardown(void **state)
{
    (void)state;
    testing_folder_remove();
    return 0;
}

static struct disk_fault_rules faults;

static int faulty_engine(unsigned depth, struct disk_engine **ret_engine)
{
    struct disk_engine *lower;
    int rc = disk_worker_new(depth, &lower);
    if (rc < 0)
        return rc;
    rc = disk_fault_new(lower, &faults, ret_engine);
    if (rc < 0)
        disk_engine_free(lower);
    return rc;
}

/* Of reads that are out together one is refused and another fails: all is read again, and nothing has failed. */
static void test_refused_beside_a_failure(void **state)
{
    (void)state;
    static const unsigned nths[][2] = {{1, 2}, {2, 1}}; /* refused, failed */
    disk_memory_align = 4;
    for (unsigned k = 0; k < ARRAY_LEN(nths); k++) {
        struct wset *ws = array(4000, 4 * MIB);
        needs_direct();
        faults = (struct disk_fault_rules){
            .fail_nth = nths[k][0], .fail_code = -EINVAL, .other_nth = nths[k][1], .other_code = -EIO};
        struct fill *fill = fill_of(1, 4 * MIB, faulty_engine);
        assert_int_equal(fill_start(fill, ws), 0);
        fill_wait(ws);
        for (unsigned i = 0; i < ws->index.header->nsamples; i++) {
            struct leat_error err = {0};
            if (row_state(ws, i, &err) < 0)
                fail_msg("%u: row %u: %s", k, i, err.message);
        }
        fill_free(fill);
        wset_unref(ws);
    }
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roads),
        cmocka_unit_test(test_any_range),
        cmocka_unit_test(test_one_row),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_image),
        cmocka_unit_test(test_disk_error),
        cmocka_unit_test(test_short_read),
        cmocka_unit_test(test_place_refuses),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_refused_beside_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
