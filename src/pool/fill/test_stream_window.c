/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of a streamed set: what is loaded, where it lies, which readers share it, what goes when there
 * is no room. One loop in this thread, real files, a real fill thread; fill's totals show how much was read.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/testing.h"
#include "failalloc.h"
#include "loop/loop.h"
#include "pool/fill/fill.h"
#include "pool/region/region.h"
#include "pool/source/source.h"
#include "pool/fill/stream_window.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

static struct loop *loop;
static struct fill *fill;
static unsigned nready;

static void advanced(struct wset *ws) {}

static void ready(struct wset *ws)
{
    nready++;
}

static uint64_t bytes_read(void)
{
    struct fill_stats s;
    fill_stats(fill, &s);
    return s.bytes_direct + s.bytes_buffered + s.bytes_decoded;
}

/* A set that is streamed as a whole, with a window. */
static struct wset *streamed(const char *spec, uint64_t window_bytes)
{
    struct wset *ws = testing_wset(testing_index(spec), 1 * MIB);
    for (uint32_t g = 0; g < ws->nregions; g++)
        region_unref(ws->regions[g].region);
    ws->nregions = 0;
    wset_pin(ws, 0);
    uint64_t n = ws->index.header->nsamples * ws->index.header->nfields;
    ws->crc_known = calloc(n, 1);
    struct region *window;
    struct region_source source = {.huge = false, .huge_dir = -1};
    assert_int_equal(region_new(&source, window_bytes, window_bytes, NULL, &window, NULL), 0);
    assert_int_equal(stream_window_new(loop, fill, ws, window, ready, &ws->window), 0);
    return ws;
}

static void release(struct wset *ws)
{
    test_run_until(atomic_load(&ws->refs) == 1, loop_turn(loop, 10));
    assert_int_equal(stream_window_held_bytes(ws->window), 0);
    wset_unref(ws);
}

static void wait_loaded(const struct stream_window_entry *entry)
{
    test_run_until(entry->state != STREAM_WINDOW_LOADING, loop_turn(loop, 1000));
}

static struct stream_window_entry *get(struct wset *ws, uint64_t first, uint64_t count)
{
    struct stream_window_entry *entry = NULL;
    int rc = stream_window_get(ws->window, first, count, &entry);
    if (rc < 0)
        fail_msg("samples %u+%u: %d", (unsigned)first, (unsigned)count, rc);
    wait_loaded(entry);
    return entry;
}

/* Every part of the range lies in one run of the entry, and is the file's. */
static void check(const struct wset *ws, const struct stream_window_entry *entry)
{
    struct index_part part;
    assert_int_equal(entry->state, STREAM_WINDOW_READY);
    for (uint32_t r = 0; r < entry->nruns; r++) {
        assert_int_equal(entry->runs[r].gid, PROTO_STREAM_WINDOW);
        assert_int_equal(entry->runs[r].offset % 4096, entry->runs[r].address % 4096);
        assert_true(entry->runs[r].offset + entry->runs[r].bytes <= stream_window_bytes(ws->window));
        assert_true(r == 0 || entry->runs[r].address > entry->runs[r - 1].address + entry->runs[r - 1].bytes);
    }
    for (uint64_t i = entry->first; i < entry->first + entry->count; i++) {
        for (unsigned f = 0; f < ws->index.header->nfields; f++) {
            if (!index_part(&ws->index, i, f, &part) || part.bytes == 0)
                continue;
            unsigned found = 0;
            for (uint32_t r = 0; r < entry->nruns; r++) {
                const struct proto_run *run = &entry->runs[r];
                if (part.address < run->address || part.address + part.bytes > run->address + run->bytes)
                    continue;
                found++;
                const uint8_t *at =
                    stream_window_region(ws->window)->addr + run->offset + (part.address - run->address);
                testing_check_bytes(at, f + 1, i * part.bytes, part.bytes);
            }
            assert_int_equal(found, 1);
        }
    }
}

static void test_runs(void **state)
{
    struct wset *ws = streamed("x=a.npy;y=b.npy", 1 * MIB);
    /* Neighbours are one run, in each array. */
    struct stream_window_entry *e = get(ws, 10, 20);
    assert_int_equal(e->nruns, 2);
    assert_true(e->runs[0].bytes >= 20 * 5003 && e->runs[0].bytes < 20 * 5003 + 8192);
    check(ws, e);
    stream_window_put(e);
    e = get(ws, 0, 1);
    check(ws, e);
    stream_window_put(e);
    e = get(ws, 299, 1);
    check(ws, e);
    stream_window_put(e);
    e = get(ws, 7, 0);
    assert_int_equal(e->nruns, 0);
    stream_window_put(e);
    release(ws);
}

/* Small files are packed: what lies between two that are near is read along. */
static void test_merging(void **state)
{
    struct wset *ws = streamed("small", 1 * MIB);
    struct stream_window_entry *e = get(ws, 0, 8);
    assert_int_equal(e->nruns, 1);
    assert_int_equal(e->state, STREAM_WINDOW_READY);
    stream_window_put(e);
    release(ws);
}

static void test_sharing(void **state)
{
    struct wset *ws = streamed("a.npy", 1 * MIB);
    uint64_t before = bytes_read();
    struct stream_window_entry *one, *two, *three;
    assert_int_equal(stream_window_get(ws->window, 20, 4, &one), 0);
    assert_int_equal(one->state, STREAM_WINDOW_LOADING);
    assert_int_equal(stream_window_get(ws->window, 20, 4, &two), 0); /* while it loads */
    assert_ptr_equal(one, two);
    wait_loaded(one);
    check(ws, one);
    uint64_t once = bytes_read() - before;
    uint64_t held = stream_window_held_bytes(ws->window);
    assert_true(held > 0);
    stream_window_put(one);
    assert_int_equal(stream_window_held_bytes(ws->window), held);
    stream_window_put(two);
    assert_int_equal(stream_window_held_bytes(ws->window), 0);
    three = get(ws, 20, 4); /* it is still there */
    assert_ptr_equal(three, one);
    assert_int_equal(bytes_read() - before, once);
    assert_int_equal(stream_window_held_bytes(ws->window), held);
    stream_window_put(three);
    release(ws);
}

/* One run of 36 or 40 KiB in each: three fit with their blocks, and a fourth does not. */
static void test_room(void **state)
{
    struct wset *ws = streamed("a.npy", 128 * KIB);
    struct stream_window_entry *a = get(ws, 0, 7), *b = get(ws, 50, 7), *c = get(ws, 100, 7), *d = NULL, *e;
    check(ws, a);
    check(ws, b);
    check(ws, c);
    assert_true(a->runs[0].offset < b->runs[0].offset && b->runs[0].offset < c->runs[0].offset);
    /* Everybody holds: the fourth waits, and takes nothing with it. */
    uint64_t held = stream_window_held_bytes(ws->window);
    assert_int_equal(stream_window_get(ws->window, 150, 7, &d), -EAGAIN);
    assert_int_equal(stream_window_held_bytes(ws->window), held);
    check(ws, a);
    check(ws, b);
    check(ws, c);
    /* The middle one is released: the fourth takes its place. */
    uint64_t place = b->runs[0].offset, before = bytes_read();
    stream_window_put(b);
    d = get(ws, 150, 7);
    assert_true(d->runs[0].offset / 4096 == place / 4096);
    check(ws, d);
    check(ws, a);
    check(ws, c);
    assert_true(bytes_read() > before);
    /* The ring continues behind the fourth: c makes room though a is older, and a stays. */
    stream_window_put(a);
    stream_window_put(c);
    b = get(ws, 50, 7);
    check(ws, b);
    check(ws, d);
    before = bytes_read();
    e = get(ws, 0, 7);
    assert_ptr_equal(e, a);
    check(ws, e);
    assert_int_equal(bytes_read(), before);
    assert_int_equal(stream_window_get(ws->window, 100, 7, &c), -EAGAIN);
    stream_window_put(e);
    c = get(ws, 100, 7);
    assert_true(bytes_read() > before);
    check(ws, c);
    stream_window_put(b);
    stream_window_put(c);
    stream_window_put(d);
    release(ws);
}

/* A loading entry is not replaced, though its last waiter has left. */
static void test_let_go_while_loading(void **state)
{
    struct wset *ws = streamed("a.npy", 128 * KIB);
    struct stream_window_entry *e[3], *d;
    for (unsigned k = 0; k < 3; k++) {
        assert_int_equal(stream_window_get(ws->window, k * 50, 7, &e[k]), 0);
        stream_window_put(e[k]);
    }
    assert_int_equal(stream_window_get(ws->window, 150, 7, &d), -EAGAIN);
    unsigned before = nready;
    test_run_until(nready >= before + 3, loop_turn(loop, 1000));
    d = get(ws, 150, 7);
    check(ws, d);
    stream_window_put(d);
    release(ws);
}

static void test_larger_than_the_window(void **state)
{
    struct wset *ws = streamed("a.npy", 64 * KIB);
    struct stream_window_entry *e;
    assert_int_equal(stream_window_get(ws->window, 0, 14, &e), LEAT_NO_SPACE);
    assert_int_equal(stream_window_get(ws->window, 0, 300, &e), LEAT_NO_SPACE);
    assert_int_equal(stream_window_held_bytes(ws->window), 0);
    e = get(ws, 0, 8);
    check(ws, e);
    stream_window_put(e);
    release(ws);
}

/* An hour of a window: ranges at random, some held for a while; what is handed out is always right. */
static void test_churn(void **state)
{
    struct wset *ws = streamed("x=a.npy;y=b.npy", 256 * KIB);
    struct stream_window_entry *held[8] = {NULL}, *e;
    uint64_t rng = 5, refused = 0;
    for (unsigned k = 0; k < 1500; k++) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        unsigned slot = (unsigned)(rng >> 33) % 8;
        if (held[slot]) {
            check(ws, held[slot]);
            stream_window_put(held[slot]);
            held[slot] = NULL;
            continue;
        }
        uint64_t count = 1 + (rng >> 40) % 9, first = (rng >> 20) % (300 - count);
        int rc = stream_window_get(ws->window, first, count, &e);
        if (rc == -EAGAIN) {
            refused++;
            loop_turn(loop, 0);
            continue;
        }
        assert_int_equal(rc, 0);
        wait_loaded(e);
        check(ws, e);
        held[slot] = e;
    }
    assert_true(refused > 0 && refused < 1000);
    for (unsigned k = 0; k < 8; k++) {
        if (held[k])
            stream_window_put(held[k]);
    }
    release(ws);
}

static void touch(const char *name, time_t seconds)
{
    char path[1024];
    struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    snprintf(path, sizeof(path), "%s/%s", testing_folder(), name);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_failed_is_not_kept(void **state)
{
    touch("f.npy", 1000);
    struct wset *ws = streamed("f.npy", 1 * MIB);
    touch("f.npy", 2000);
    struct stream_window_entry *one = get(ws, 0, 4), *two;
    assert_int_equal(one->state, STREAM_WINDOW_FAILED);
    assert_int_equal(one->code, LEAT_STALE);
    assert_non_null(strstr(one->message, "f.npy changed after it was indexed"));
    /* Requested again while a reader still looks at the failure: it is tried again. */
    touch("f.npy", 1000);
    two = get(ws, 0, 4);
    assert_ptr_not_equal(one, two);
    check(ws, two);
    stream_window_put(one);
    stream_window_put(two);
    two = get(ws, 0, 4);
    check(ws, two);
    stream_window_put(two);
    release(ws);
}

/* An extent of the mapped index shrinks: what it leaves out is not taken for read. */
static void test_index_changes_underneath(void **state)
{
    touch("f.npy", 1000);
    struct wset *ws = streamed("f.npy", 1 * MIB);
    struct index_extent e = ws->index.extents[0];
    off_t at = (off_t)ws->index.header->sections[INDEX_EXTENTS].offset;
    e.bytes = e.source_bytes = 1000;
    assert_int_equal(pwrite(ws->index_fd, &e, sizeof(e), at), sizeof(e));
    struct stream_window_entry *entry = get(ws, 0, 4);
    assert_int_equal(entry->state, STREAM_WINDOW_FAILED);
    assert_int_equal(entry->code, LEAT_CORRUPT);
    assert_non_null(strstr(entry->message, "its index is damaged"));
    stream_window_put(entry);
    release(ws);
}

/* A source that was rewritten with its times put back: the second reading reports it. */
static void test_reads_differently(void **state)
{
    touch("f.npy", 1000);
    struct wset *ws = streamed("f.npy", 64 * KIB);
    stream_window_put(get(ws, 0, 4));
    stream_window_put(get(ws, 20, 8)); /* pushes the first out */
    stream_window_put(get(ws, 30, 8));
    char path[1024];
    snprintf(path, sizeof(path), "%s/f.npy", testing_folder());
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "XXXXXXXXXXXX", 12, 5000), 12);
    close(fd);
    touch("f.npy", 1000);
    struct stream_window_entry *e = get(ws, 0, 4);
    assert_int_equal(e->state, STREAM_WINDOW_FAILED);
    assert_int_equal(e->code, LEAT_CORRUPT);
    assert_non_null(strstr(e->message, "reads differently than the first time"));
    stream_window_put(e);
    release(ws);
}

/* Allocations of the fill threads count as well: the entry has their error. */
static void test_allocations(void **state)
{
    struct wset *ws = streamed("a.npy", 64 * KIB);
    unsigned nrefused = 0;
    for (unsigned nth = 1; nth < 40; nth++) {
        struct stream_window_entry *e = NULL;
        failalloc_arm(nth);
        int rc = stream_window_get(ws->window, nth, 3, &e);
        if (rc == 0)
            wait_loaded(e);
        unsigned asked = failalloc_disarm();
        if (rc < 0) {
            assert_int_equal(rc, -ENOMEM);
            nrefused++;
        } else {
            if (e->state == STREAM_WINDOW_FAILED)
                assert_int_equal(e->code, -ENOMEM);
            else
                check(ws, e);
            stream_window_put(e);
        }
        assert_int_equal(stream_window_held_bytes(ws->window), 0);
        if (asked < nth)
            break;
        assert_true(nth < 39);
    }
    assert_true(nrefused >= 3);
    release(ws);
}

static int setup(void **state)
{
    struct leat_error err = {0};
    static const struct source_opener opener;
    struct fill_config config = {
        .threads = 2, .disk_engine = "worker", .opener = &opener, .advanced = advanced};
    testing_npy("a.npy", 1, 300, 5003);
    testing_npy("b.npy", 2, 300, 7);
    testing_npy("f.npy", 1, 100, 5003);
    for (unsigned k = 0; k < 8; k++) {
        char name[32];
        snprintf(name, sizeof(name), "small/%u", k);
        testing_file(name, NULL, 0, k, 500);
    }
    return loop_new(&loop) < 0 ? -1 : fill_new(&config, &fill, &err);
}

static int teardown(void **state)
{
    fill_free(fill);
    loop_free(loop);
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_merging),
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_let_go_while_loading),
        cmocka_unit_test(test_larger_than_the_window),
        cmocka_unit_test(test_churn),
        cmocka_unit_test(test_failed_is_not_kept),
        cmocka_unit_test(test_index_changes_underneath),
        cmocka_unit_test(test_reads_differently),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
