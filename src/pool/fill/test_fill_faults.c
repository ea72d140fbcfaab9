/* SPDX-License-Identifier: Apache-2.0 */
/* What a disk and a lack of memory do to a fill, and the two ways by which warm bytes come into a region. */
#include <setjmp.h>
#include <stdarg.h>

#include "base/crc32c.h"
#include "base/ledger.h"
#include "base/testing.h"
#include "disk/disk.h"
#include "pool/fill/fill.h"
#include "pool/region/region.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define ROWS    400u
#define ROW     3001u
#define SEGMENT (16 * KIB)
#define REGION  (64 * KIB)

static void advanced(struct wset *ws)
{
    (void)ws;
}

/* A file system whose server knows that a file was written again, and reports it only when it is asked. */
static _Atomic bool rewritten;

int statx(int dirfd, const char *restrict path, int flags, unsigned mask, struct statx *restrict st)
{
    long code = syscall(SYS_statx, dirfd, path, flags, mask, st);
    if (code == 0 && rewritten && (flags & AT_STATX_FORCE_SYNC))
        st->stx_mtime.tv_sec++;
    return (int)code;
}

static uint64_t segment_bytes = SEGMENT;

/* Fills with one thread; returns the statistics. */
static struct fill_stats fill_with(struct wset *ws,
                                   int (*engine_new)(unsigned depth, struct disk_engine **ret_engine))
{
    struct fill_config config = {.threads = 1,
                                 .depth = 4,
                                 .segment_bytes = segment_bytes,
                                 .advanced = advanced,
                                 .engine_new = engine_new};
    struct fill *fill;
    struct fill_stats stats;
    assert_int_equal(fill_new(&config, &fill, NULL), 0);
    assert_int_equal(fill_start(fill, ws), 0);
    test_wait_until(wset_complete(ws));
    testing_wait_alone(ws);
    fill_stats(fill, &stats);
    fill_free(fill);
    return stats;
}

static struct fill_stats fill_all(struct wset *ws, bool faulty)
{
    return fill_with(ws, faulty ? testing_faulty_engine : NULL);
}

static void check_row(const struct wset *ws, uint64_t i)
{
    uint8_t want[ROW], got[ROW];
    testing_bytes(1, i * ROW, want, ROW);
    assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
    testing_part(ws, i, 0, got);
    assert_memory_equal(got, want, ROW);
    assert_int_equal(ws->crc[i], crc32c(0, want, ROW));
}

static bool row_in(const struct wset *ws, uint64_t i, uint64_t begin, uint64_t end)
{
    struct index_part part = {0};
    assert_true(index_part(&ws->index, i, 0, &part));
    return part.address < end && part.address + part.bytes > begin;
}

static struct wset *array(const char *name)
{
    testing_npy(name, 1, ROWS, ROW);
    struct wset *ws = testing_wset(testing_index(name), REGION);
    testing_cool(name); /* its head has been read */
    return ws;
}

/* What the page cache has is read past the engine; a file system that lives there (TMPDIR) gives it nothing to fail. */
static void needs_engine(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", testing_folder(), name);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (disk_cached_permille(fd, 0, ROWS * ROW) == 0)
        return;
    print_message("%s stays in the page cache: set TMPDIR to a folder on a disk\n", path);
    skip();
}

/* As if they had huge pages: bytes are then read into them, never written. */
static void advise(struct wset *ws)
{
    for (uint32_t g = 0; g < ws->nregions; g++)
        ws->regions[g].region->pages = REGION_ADVISE;
}

/* One read fails: the samples with bytes in it, and no others. */
static void test_disk_error(void **state)
{
    (void)state;
    struct wset *ws = array("bad.npy");
    needs_engine("bad.npy");
    advise(ws);
    testing_rules = (struct disk_fault_rules){.fail_nth = 5, .fail_code = -EIO};
    struct fill_stats stats = fill_all(ws, true);
    unsigned failed = 0;
    for (uint64_t i = 0; i < ROWS; i++) {
        if (!row_in(ws, i, 4 * SEGMENT, 5 * SEGMENT)) { /* a read a segment */
            check_row(ws, i);
            continue;
        }
        struct leat_error err = {0};
        failed++;
        assert_int_equal(wset_sample_state(ws, i), LIVE_FAILED);
        assert_int_equal(wset_failure_get(ws, i, &err), -EIO);
        assert_non_null(strstr(err.message, "cannot read"));
    }
    assert_true(failed >= 5 && failed <= 7);
    assert_int_equal(stats.errors, 1);
    wset_unref(ws);
}

/* A file that can be opened for direct reads and then refuses one: by the page cache from there on, and only once. */
static void test_refuses_direct(void **state)
{
    (void)state;
    static const uint64_t segments[] = {SEGMENT, 4 * MIB};
    for (unsigned k = 0; k < 4; k++) {
        struct wset *ws = array("refuses.npy");
        needs_engine("refuses.npy");
        advise(ws);
        segment_bytes = segments[k % 2];
        /* The first, or with some behind that were read */
        testing_rules =
            (struct disk_fault_rules){.fail_nth = k < 2 ? 1 : 2, .fail_code = k < 2 ? -EINVAL : -EOPNOTSUPP};
        struct fill_stats stats = fill_all(ws, true);
        segment_bytes = SEGMENT;
        for (uint64_t i = 0; i < ROWS; i++)
            check_row(ws, i);
        assert_int_equal(stats.errors, 0);
        assert_true(stats.bytes_direct <= (k < 2 ? 0 : REGION));
        assert_true(stats.bytes_buffered >= ROWS * ROW - REGION);
        wset_unref(ws);
    }
    /* What the page cache refuses as well has failed. */
    struct wset *ws = array("refuses.npy");
    struct leat_error err = {0};
    advise(ws);
    testing_rules = (struct disk_fault_rules){.fail_every = 1, .fail_code = -EINVAL};
    segment_bytes = 4 * MIB;
    fill_all(ws, true);
    segment_bytes = SEGMENT;
    assert_int_equal(wset_failure_get(ws, 0, &err), -EINVAL);
    wset_unref(ws);
}

/* A read that ends early: the file shrank under us. */
static void test_short_read(void **state)
{
    (void)state;
    struct wset *ws = array("short.npy");
    needs_engine("short.npy");
    advise(ws);
    testing_rules = (struct disk_fault_rules){.short_nth = 3};
    fill_all(ws, true);
    for (uint64_t i = 0; i < ROWS; i++) {
        struct leat_error err = {0};
        if (!row_in(ws, i, 2 * SEGMENT, 3 * SEGMENT))
            check_row(ws, i);
        else
            assert_int_equal(wset_failure_get(ws, i, &err), LEAT_STALE);
    }
    wset_unref(ws);
}

/* A region that cannot be backed with memory. */
static void test_no_memory(void **state)
{
    (void)state;
    struct wset *ws = array("none.npy");
    struct region *r = ws->regions[2].region;
    assert_int_equal(dup2(r->fd_ro, r->fd), r->fd); /* fallocate refuses it */
    /* Nor is it read, which would take memory. */
    assert_int_equal(mprotect(r->addr, REGION, PROT_NONE), 0);
    fill_all(ws, false);
    for (uint64_t i = 0; i < ROWS; i++) {
        struct leat_error err = {0};
        if (!row_in(ws, i, 2 * REGION, 3 * REGION)) {
            check_row(ws, i);
            continue;
        }
        assert_int_equal(wset_failure_get(ws, i, &err), LEAT_NO_SPACE);
        assert_non_null(strstr(err.message, "no memory"));
    }
    wset_unref(ws);
}

static int (*worker_submit)(struct disk_engine *e, struct disk_read **reqs, unsigned n);
static struct disk_ops dropping_ops;
static struct region *dropped;

/* The set is dropped by force while a segment is on its way. */
static int dropping_submit(struct disk_engine *e, struct disk_read **reqs, unsigned n)
{
    if (dropped)
        region_give_up(dropped);
    dropped = NULL;
    return worker_submit(e, reqs, n);
}

static int dropping_engine(unsigned depth, struct disk_engine **ret_engine)
{
    int rc = disk_worker_new(depth, ret_engine);
    if (rc < 0)
        return rc;
    worker_submit = (*ret_engine)->ops->submit;
    dropping_ops = *(*ret_engine)->ops;
    dropping_ops.submit = dropping_submit;
    (*ret_engine)->ops = &dropping_ops;
    return 0;
}

/* Bytes that arrive after the memory was taken away take none, although a client still has the set open: its
 * reservation is gone. */
static void test_given_up(void **state)
{
    (void)state;
    struct wset *ws = array("given-up.npy");
    needs_engine("given-up.npy");
    advise(ws);
    struct stat st;
    dropped = ws->regions[0].region;
    fill_with(ws, dropping_engine);
    assert_null(dropped);
    assert_int_equal(fstat(ws->regions[0].region->fd, &st), 0);
    assert_int_equal(st.st_blocks, 0);
    assert_int_equal(fstat(ws->regions[1].region->fd, &st), 0);
    assert_int_equal(st.st_blocks * 512, REGION);
    wset_unref(ws);
}

/* What the page cache has goes to base pages through a buffer and write(2), which the ledger counts; to huge pages straight. */
static void test_bounce(void **state)
{
    (void)state;
    for (int huge = 0; huge < 2; huge++) {
        struct wset *ws = array("warm.npy");
        testing_warm("warm.npy");
        if (huge)
            advise(ws);
        uint64_t before = atomic_load(&ledger_bytes[LEDGER_BOUNCE]);
        struct fill_stats stats = fill_all(ws, false);
        uint64_t bounced = atomic_load(&ledger_bytes[LEDGER_BOUNCE]) - before;
        /* A file that does not stay in the cache is read past it: no warm bytes, no copies. */
        assert_int_equal(bounced, huge ? 0 : stats.bytes_buffered);
        for (uint64_t i = 0; i < ROWS; i++)
            check_row(ws, i);
        wset_unref(ws);
    }
}

/* More cold small files than are read ahead at a time; one of them is gone when its turn comes. */
static void test_small_cold(void **state)
{
    (void)state;
    enum { FILES = 50 };
    char name[64], path[4096];
    for (unsigned k = 0; k < FILES; k++) {
        snprintf(name, sizeof(name), "cold/%02u.bin", k);
        testing_file(name, NULL, 0, k, 1000 + 100 * k); /* out of the page cache */
    }
    struct wset *ws = testing_wset(testing_index("cold"), 16 * MIB);
    snprintf(path, sizeof(path), "%s/cold/20.bin", testing_folder());
    assert_int_equal(unlink(path), 0);
    struct fill_stats stats = fill_all(ws, false);
    assert_true(stats.files_opened >= FILES); /* once a segment that it lies in */
    for (unsigned k = 0; k < FILES; k++) {
        uint8_t got[1000 + 100 * FILES];
        struct leat_error err = {0};
        if (k == 20) {
            assert_int_equal(wset_failure_get(ws, k, &err), -ENOENT);
            assert_non_null(strstr(err.message, "cold/20.bin"));
            continue;
        }
        assert_int_equal(wset_sample_state(ws, k), LIVE_RESIDENT);
        testing_part(ws, k, 0, got);
        testing_check_bytes(got, k, 0, 1000 + 100 * k);
    }
    wset_unref(ws);
}

/* Small files that are still being read ahead, and behind them a large one that is there: nothing of them is reported before it is
 * read. The last byte of a large one is not lost either. */
static void test_large_behind_small(void **state)
{
    (void)state;
    enum { FILES = 12 };
    char name[64];
    uint64_t bytes[FILES];
    for (unsigned k = 0; k < FILES; k++) {
        bytes[k] = k % 4 == 3 ? 700001 + k : 30000 + k;
        snprintf(name, sizeof(name), "mixed/%02u.bin", k);
        testing_file(name, NULL, 0, k, bytes[k]);
    }
    int index_fd = testing_index("mixed");
    for (unsigned k = 0; k < FILES; k++) {
        snprintf(name, sizeof(name), "mixed/%02u.bin", k);
        k % 4 == 3 ? testing_warm(name) : testing_cool(name);
    }
    struct wset *ws = testing_wset(index_fd, 4 * MIB);
    advise(ws);
    segment_bytes = 0; /* as in the daemon */
    fill_all(ws, false);
    segment_bytes = SEGMENT;
    uint8_t *got = malloc(800000);
    for (unsigned k = 0; k < FILES; k++) {
        assert_int_equal(wset_sample_state(ws, k), LIVE_RESIDENT);
        testing_part(ws, k, 0, got);
        assert_int_equal(ws->crc[k], crc32c(0, got, bytes[k]));
        testing_check_bytes(got, k, 0, bytes[k]);
    }
    free(got);
    wset_unref(ws);
}

/* Written again by another host, with as many bytes: what this one remembers of the file is not believed. Read by direct I/O, through the page
 * cache, and as small files are. */
static void test_rewritten_elsewhere(void **state)
{
    (void)state;
    for (unsigned road = 0; road < 3; road++) {
        struct leat_error err = {0};
        if (road == 2)
            testing_file("far/small.bin", NULL, 0, 1, 1000);
        struct wset *ws = road == 2 ? testing_wset(testing_index("far"), 4 * MIB) : array("far.npy");
        if (road == 1)
            testing_warm("far.npy");
        rewritten = true;
        fill_all(ws, false);
        rewritten = false;
        for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
            assert_int_equal(wset_sample_state(ws, i), LIVE_FAILED);
            assert_int_equal(wset_failure_get(ws, i, &err), LEAT_STALE);
            if (i == 0) /* not all messages are kept */
                assert_non_null(strstr(err.message, "changed after it was indexed"));
        }
        wset_unref(ws);
    }
}

static int teardown(void **state)
{
    (void)state;
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_error),
        cmocka_unit_test(test_short_read),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_bounce),
        cmocka_unit_test(test_small_cold),
        cmocka_unit_test(test_large_behind_small),
        cmocka_unit_test(test_rewritten_elsewhere),
        cmocka_unit_test(test_refuses_direct),
        cmocka_unit_test(test_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
