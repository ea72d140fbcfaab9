/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real files through real engines into real regions, byte by byte and checksum by checksum: every format, both engines, regions
 * so small that samples cross them, both roads to a file; and sources that are not any more what was indexed.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "disk/disk.h"
#include "pool/fill/fill.h"
#include "pool/region/region.h"
#include "pool/source/source.h"
#include "pool/set/testing.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char *const engines[] = {"uring", "worker"};
static const struct source_opener opener;

static void (*on_advanced)(struct wset *ws);

static void advanced(struct wset *ws)
{
    if (on_advanced)
        on_advanced(ws);
}

static struct fill *fill_of(const char *engine, unsigned threads, uint64_t segment_bytes)
{
    struct disk_engine *probe;
    if (disk_engine_new(engine, 1, &probe) < 0) {
        print_message("# no %s on this host\n", engine);
        return NULL;
    }
    disk_engine_free(probe);
    struct fill *fill;
    struct leat_error err = {0};
    struct fill_config config = {.threads = threads,
                                 .disk_engine = engine,
                                 .segment_bytes = segment_bytes,
                                 .opener = &opener,
                                 .advanced = advanced};
    if (fill_new(&config, &fill, &err) < 0)
        fail_msg("%s", err.message);
    struct fill_stats stats;
    fill_stats(fill, &stats);
    assert_string_equal(stats.engine, engine);
    return fill;
}

/* Seed of the content of field f of sample i, and where in it the sample begins. */
typedef uint32_t (*content_fn)(const char *key, unsigned f, uint64_t i, uint64_t bytes, uint64_t *ret_offset);

static void check_sample(const struct wset *ws, uint64_t i, content_fn content)
{
    char scratch[24], key[256];
    size_t len;
    const char *k = index_key(&ws->index, i, scratch, &len);
    snprintf(key, sizeof(key), "%.*s", (int)len, k);
    assert_int_equal(wset_sample_state(ws, i), LIVE_RESIDENT);
    for (unsigned f = 0; f < ws->index.header->nfields; f++) {
        struct index_part part;
        if (!index_part(&ws->index, i, f, &part))
            continue;
        uint8_t *got = malloc(part.bytes + 1);
        testing_part(ws, i, f, got);
        uint64_t offset = 0;
        uint32_t seed = content(key, f, i, part.bytes, &offset);
        testing_check_bytes(got, seed, offset, part.bytes);
        if (part.bytes)
            assert_int_equal(ws->crc[i * ws->index.header->nfields + f], crc32c(0, got, part.bytes));
        free(got);
    }
}

static void fill_and_check(const char *engine, int index_fd, uint64_t region, uint64_t segment,
                           content_fn content, struct fill_stats *ret_stats)
{
    struct fill *fill = fill_of(engine, 3, segment);
    if (!fill) {
        close(index_fd);
        return;
    }
    struct wset *ws = testing_wset(index_fd, region);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    struct leat_error err = {0};
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        if (wset_sample_state(ws, i) == LIVE_FAILED) {
            wset_failure_get(ws, i, &err);
            fail_msg("%s", err.message);
        }
        check_sample(ws, i, content);
    }
    assert_true(wset_complete(ws));
    assert_true(!ws->loaded && wset_is_loaded(ws)); /* no loop has a message yet, and clients know already */
    assert_int_equal(atomic_load(&ws->pending_bytes), 0);
    assert_int_equal(atomic_load(&ws->live->resident_bytes), ws->index.header->payload_bytes);
    struct fill_stats stats;
    fill_stats(fill, &stats);
    assert_int_equal(stats.errors, 0);
    assert_int_equal(stats.segments, ws->nsegments);
    if (ret_stats)
        *ret_stats = stats;
    wset_unref(ws);
    fill_free(fill);
}

static void with_engines(const char *spec, content_fn content)
{
    static const uint64_t sizes[][2] = {
        {64 * KIB, 16 * KIB}, {64 * KIB, 64 * KIB}, {1 * MIB, 96 * KIB}, {4 * MIB, 0}};
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        for (unsigned k = 0; k < ARRAY_LEN(sizes); k++)
            fill_and_check(engines[e], testing_index(spec), sizes[k][0], sizes[k][1], content, NULL);
    }
}

static uint32_t npy_content(const char *key, unsigned f, uint64_t i, uint64_t bytes, uint64_t *ret_offset)
{
    *ret_offset = i * bytes;
    return f + 1;
}

static void test_npy(void **state)
{
    testing_npy("a.npy", 1, 300, 5003); /* 1.4 MiB: by the engine */
    testing_npy("b.npy", 2, 300, 7);    /* small: opened, read and closed */
    with_engines("a.npy", npy_content);
    with_engines("x=a.npy;y=b.npy", npy_content);
    testing_npy("long.npy", 1, 3, 300001); /* each sample is many regions */
    with_engines("long.npy", npy_content);
}

/* What the page cache has is checksummed piece by piece, as it arrives: samples that begin in one piece and end in a later one, with
 * a second field between them. Memory that was ready takes the bytes straight. */
static void test_cached_in_pieces(void **state)
{
    testing_npy("wide.npy", 1, 9, 700001);
    testing_npy("tall.npy", 2, 9, 40003);
    int fd = testing_index("x=wide.npy;y=tall.npy");
    struct fill *fill = fill_of("worker", 2, 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        struct wset *ws = testing_wset(turn ? testing_index("x=wide.npy;y=tall.npy") : fd, 4 * MIB);
        for (uint32_t g = 0; turn && g < ws->nregions; g++)
            assert_int_equal(region_prepare(ws->regions[g].region, 3 * MIB), 0);
        testing_warm("wide.npy");
        testing_warm("tall.npy");
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (uint64_t i = 0; i < ws->index.header->nsamples; i++)
            check_sample(ws, i, npy_content);
        assert_true(wset_complete(ws));
        wset_unref(ws);
    }
    fill_free(fill);
}

static uint32_t number_in(const char *key, unsigned f, uint64_t i, uint64_t bytes, uint64_t *ret_offset)
{
    const char *digits = key + strcspn(key, "0123456789");
    return (uint32_t)atoi(digits) * 8 + f;
}

static void test_dir(void **state)
{
    static const uint64_t sizes[] = {0,    1,     63,     64,     65,     4095,
                                     4096, 70000, 131071, 131072, 200001, 1 * MIB + 3};
    for (unsigned k = 0; k < ARRAY_LEN(sizes); k++) {
        char name[64];
        snprintf(name, sizeof(name), "tree/%s/f%03u.bin", k % 2 ? "cat" : "dog", k);
        testing_file(name, NULL, 0, k * 8, sizes[k]);
    }
    with_engines("tree", number_in);
}

static void test_empty_files(void **state)
{
    testing_file("empty/0", NULL, 0, 0, 0);
    testing_file("empty/1", NULL, 0, 0, 0);
    with_engines("empty", number_in);
}

static void test_tar(void **state)
{
    static const uint64_t sizes[] = {10, 0, 511, 512, 513, 90000, 200000, 4096};
    struct testing_member members[16];
    static char names[16][32];
    for (unsigned shard = 0; shard < 2; shard++) {
        for (unsigned k = 0; k < 8; k++) {
            snprintf(names[2 * k], 32, "s%03u.cls", shard * 8 + k);
            snprintf(names[2 * k + 1], 32, "s%03u.jpg", shard * 8 + k);
            members[2 * k] = (struct testing_member){names[2 * k], (shard * 8 + k) * 8, 2};
            members[2 * k + 1] = (struct testing_member){names[2 * k + 1], (shard * 8 + k) * 8 + 1, sizes[k]};
        }
        testing_tar(shard ? "tars/1.tar" : "tars/0.tar", members, 16);
    }
    with_engines("tars", number_in);
}

/* Deflated chunks of 40 rows, as HDF5 stores them; the last one has fewer rows in the array. */
static int chunked_index(void)
{
    enum { ROWS = 150, ROW = 1000, HIGH = 40, CHUNKS = 4 };
    struct index_builder *b;
    static uint8_t rows[HIGH * ROW], packed[CHUNKS][2 * HIGH * ROW];
    size_t sizes[CHUNKS];
    struct libdeflate_compressor *z = libdeflate_alloc_compressor(6);
    char path[1024];
    snprintf(path, sizeof(path), "%s/chunks.h5", testing_folder());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (unsigned c = 0; c < CHUNKS; c++) {
        testing_bytes(1, c * sizeof(rows), rows, sizeof(rows));
        sizes[c] = libdeflate_zlib_compress(z, rows, sizeof(rows), packed[c], sizeof(packed[c]));
        assert_true(sizes[c] > 0 && fwrite(packed[c], 1, sizes[c], file) == sizes[c]);
    }
    libdeflate_free_compressor(z);
    fclose(file);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(index_builder_new(INDEX_KIND_ARRAY, testing_folder(), &b), 0);
    int64_t source = index_builder_source(b, "chunks.h5", &st);
    uint64_t at = index_builder_reserve(b, ROWS * ROW, 64, 0), offset = 0;
    for (unsigned c = 0; c < CHUNKS; c++) {
        uint64_t n = MIN((uint64_t)HIGH, (uint64_t)ROWS - c * HIGH);
        struct index_shape shape = {.decoded_bytes = sizeof(rows),
                                    .run_bytes = n * ROW,
                                    .filters = INDEX_FILTER_DEFLATE,
                                    .element_bytes = 1};
        struct index_chunk chunk = {.source_offset = offset, .source_bytes = sizes[c]};
        chunk.shape = (uint32_t)index_builder_shape(b, &shape);
        int64_t number = index_builder_chunk(b, &chunk);
        struct index_extent e = {.address = at + c * sizeof(rows),
                                 .bytes = n * ROW,
                                 .source_offset = offset,
                                 .source_bytes = sizes[c],
                                 .source = (uint32_t)source,
                                 .kind = INDEX_EXTENT_CHUNK,
                                 .chunk = (uint64_t)number,
                                 .nchunk = 1};
        assert_int_equal(index_builder_extent(b, &e), 0);
        offset += sizes[c];
    }
    assert_int_equal(
        index_builder_field(b, "data", "|u1", INDEX_FIELD_UNIFORM, 1, (uint64_t[]){ROW}, at, ROW), 0);
    index_builder_count(b, ROWS);
    return testing_index_of(b);
}

static uint32_t rows_content(const char *key, unsigned f, uint64_t i, uint64_t bytes, uint64_t *ret_offset)
{
    *ret_offset = i * 1000;
    return 1;
}

static void test_chunks(void **state)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct fill_stats stats = {0};
        fill_and_check(engines[e], chunked_index(), 64 * KIB, 16 * KIB, rows_content, &stats);
        fill_and_check(engines[e], chunked_index(), 1 * MIB, 0, rows_content, &stats);
        assert_true(!stats.engine || stats.bytes_decoded == 150000);
        assert_int_equal(stats.bytes_direct + stats.bytes_buffered, 0);
    }
}

/* A file that the page cache does not have is read past it, one that it has is copied out of it. */
static void test_roads(void **state)
{
    char path[1024];
    static uint8_t sink[2 * MIB];
    testing_npy("road.npy", 1, 400, 5000);
    snprintf(path, sizeof(path), "%s/road.npy", testing_folder());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct disk_file_traits traits;
    assert_int_equal(disk_file_probe(fd, &traits), 0);
    bool direct = traits.direct_align && !strcmp(traits.fs, "ext4");
    if (!direct)
        print_message("# %s: that direct reads are made is not tested\n", traits.fs);
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        for (unsigned small = 0; small < 2; small++) {
            struct fill_stats stats = {0};
            uint64_t region = small ? 64 * KIB : 4 * MIB, segment = small ? 32 * KIB : 0;
            int index = testing_index("road.npy");
            testing_cool("road.npy");
            bool cold = disk_cached_permille(fd, 0, sizeof(sink)) == 0;
            fill_and_check(engines[e], index, region, segment, npy_content, &stats);
            if (direct && cold && stats.engine) {
                assert_true(stats.bytes_direct >= 1900000);
                assert_true(disk_cached_permille(fd, 0, sizeof(sink)) < 100); /* and it left no copy there */
            }
            assert_true(pread(fd, sink, sizeof(sink), 0) > 0);
            fill_and_check(engines[e], testing_index("road.npy"), region, segment, npy_content, &stats);
            if (disk_cached_permille(fd, 0, 2000000) == 1000)
                assert_int_equal(stats.bytes_direct, 0);
        }
    }
    close(fd);
}

/* Changes one of the files of a set behind its index's back; only its samples fail, and say why. */
static void spoil(const char *spec, const char *file, void (*how)(const char *path), int rc, const char *says)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", testing_folder(), file);
    struct wset *ws = testing_wset(testing_index(spec), 64 * KIB);
    how(path);
    struct fill *fill = fill_of("worker", 2, 32 * KIB);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    unsigned nfailed = 0;
    for (uint64_t i = 0; i < ws->index.header->nsamples; i++) {
        struct index_part part;
        bool from_it = false;
        for (unsigned f = 0; f < ws->index.header->nfields; f++) {
            if (!index_part(&ws->index, i, f, &part) || part.bytes == 0)
                continue;
            uint64_t e = index_extent_at(&ws->index, part.address);
            char full[1024];
            index_source_path(&ws->index, ws->index.extents[e].source, full, sizeof(full));
            from_it |= !strcmp(full, path);
        }
        if (!from_it) {
            check_sample(ws, i, number_in);
            continue;
        }
        nfailed++;
        assert_int_equal(wset_sample_state(ws, i), LIVE_FAILED);
        struct leat_error err = {0};
        int got = wset_failure_get(ws, i, &err);
        if (got != rc || !strstr(err.message, says) || !strstr(err.message, file))
            fail_msg("%s: %d, \"%s\"", file, got, err.message);
    }
    assert_true(nfailed > 0 && nfailed < ws->index.header->nsamples);
    assert_int_equal(atomic_load(&ws->live->failed_samples), nfailed);
    assert_true(wset_complete(ws));
    struct fill_stats stats;
    fill_stats(fill, &stats);
    assert_true(stats.errors > 0);
    fill_free(fill);
    wset_unref(ws);
}

static void truncate_it(const char *path)
{
    assert_int_equal(truncate(path, 5), 0);
}

static void remove_it(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void touch_it(const char *path)
{
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
}

static void test_spoiled(void **state)
{
    static const struct {
        void (*how)(const char *path);
        int rc;
        const char *says;
    } ways[] = {{truncate_it, LEAT_STALE, "changed after it was indexed"},
                {touch_it, LEAT_STALE, "changed after it was indexed"},
                {remove_it, -ENOENT, "cannot open"}};
    const struct testing_member zero[] = {{"s0.jpg", 0, 200000}, {"s1.jpg", 8, 100}},
                                one[] = {{"s2.jpg", 16, 100}, {"s3.jpg", 24, 150000}};
    log_set_level(LOG_LEVEL_ERROR);
    for (unsigned k = 0; k < ARRAY_LEN(ways); k++) {
        testing_file("spoil/a/0", NULL, 0, 0, 1000);
        testing_file("spoil/a/1", NULL, 0, 8, 1000);
        testing_file("spoil/a/2", NULL, 0, 16, 300000);
        spoil("spoil", "spoil/a/1", ways[k].how, ways[k].rc, ways[k].says);
        testing_file("spoil/a/1", NULL, 0, 8, 1000);
        spoil("spoil", "spoil/a/2", ways[k].how, ways[k].rc, ways[k].says);
        testing_tar("spoilt/0.tar", zero, 2);
        testing_tar("spoilt/1.tar", one, 2);
        spoil("spoilt", "spoilt/1.tar", ways[k].how, ways[k].rc, ways[k].says);
    }
    /* However long the path is, the message has its end. */
    char name[400] = "deep/";
    memset(name + 5, 'd', 200);
    strcpy(name + 205, "/the-shard.bin");
    testing_file("deep/0", NULL, 0, 0, 10);
    testing_file(name, NULL, 0, 0, 10);
    struct wset *ws = testing_wset(testing_index("deep"), 64 * KIB);
    char full[1024];
    snprintf(full, sizeof(full), "%s/%s", testing_folder(), name);
    truncate_it(full);
    struct fill *fill = fill_of("worker", 1, 0);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    struct leat_error err = {0};
    for (uint64_t i = 0; i < 2; i++) {
        if (wset_sample_state(ws, i) == LIVE_FAILED)
            wset_failure_get(ws, i, &err);
    }
    assert_non_null(strstr(err.message, "the-shard.bin changed"));
    fill_free(fill);
    wset_unref(ws);
    log_set_level(LOG_LEVEL_WARNING);
}

static sem_t reached, go_on;
static struct wset *watched;
static unsigned nadvanced;

static void stop_at_second(struct wset *ws)
{
    if (ws == watched && ++nadvanced == 2) {
        sem_post(&reached);
        sem_wait(&go_on);
    }
}

static void test_cancel(void **state)
{
    testing_npy("cancel.npy", 1, 64, 16 * KIB);
    struct fill *fill = fill_of("worker", 1, 64 * KIB);
    struct wset *ws = watched = testing_wset(testing_index("cancel.npy"), 1 * MIB);
    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
    nadvanced = 0;
    on_advanced = stop_at_second;
    assert_int_equal(fill_start(fill, ws), 0);
    sem_wait(&reached);
    fill_cancel(fill, ws);
    fill_cancel(fill, ws);
    sem_post(&go_on);
    testing_wait_alone(ws);
    struct fill_stats stats;
    fill_stats(fill, &stats);
    assert_int_equal(stats.segments, 2);
    assert_true(ws->nsegments > 10);
    assert_int_equal(ws->active, 0);
    assert_false(wset_complete(ws));
    assert_int_equal(wset_sample_state(ws, 0), LIVE_RESIDENT);
    wset_unref(ws); /* a thread that touched it now would be seen by the sanitizers */
    on_advanced = NULL;
    /* The next set is filled as if nothing had been. */
    ws = testing_wset(testing_index("cancel.npy"), 1 * MIB);
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    assert_true(wset_complete(ws));
    wset_unref(ws);
    fill_free(fill);
}

/* The end of all threads in the middle of it: references come back. */
static void test_free_in_the_middle(void **state)
{
    struct wset *sets[3];
    struct fill *fill = fill_of("worker", 2, 16 * KIB);
    for (unsigned k = 0; k < 3; k++) {
        sets[k] = testing_wset(testing_index("cancel.npy"), 1 * MIB);
        assert_int_equal(fill_start(fill, sets[k]), 0);
    }
    fill_free(fill);
    for (unsigned k = 0; k < 3; k++) {
        assert_int_equal(atomic_load(&sets[k]->refs), 1);
        wset_unref(sets[k]);
    }
    fill_free(NULL);
}

static void test_done_ranges(void **state)
{
    struct fill *fill = fill_of("worker", 2, 16 * KIB);
    struct wset *ws = testing_wset(testing_index("cancel.npy"), 256 * KIB);
    ws->first_new_address = 512 * KIB; /* below: shared with an earlier version */
    assert_int_equal(fill_start(fill, ws), 0);
    testing_wait_alone(ws);
    uint64_t covered = 0, last_end = 0;
    for (uint32_t k = 0; k < ws->nsegments; k++) {
        uint64_t begin, end;
        assert_true(fill_segment_done(fill, ws, k, &begin, &end));
        assert_true(begin >= last_end && end > begin);
        covered += end - begin;
        last_end = end;
    }
    assert_int_equal(covered, align_up(ws->index.header->address_end, 4096) - 512 * KIB);
    assert_int_equal(wset_sample_state(ws, 0), LIVE_ABSENT);
    assert_int_equal(wset_sample_state(ws, 63), LIVE_RESIDENT);
    wset_unref(ws);
    fill_free(fill);
}

static struct {
    struct fill *fill;
    _Atomic unsigned told, early;
} catchup;

static void on_ready(struct wset *ws, struct bytes_out *records)
{
    unsigned done = 0, told = atomic_fetch_add(&catchup.told, 1) + 1;
    uint64_t begin, end;
    for (uint32_t k = 0; k < ws->nsegments; k++)
        done += fill_segment_done(catchup.fill, ws, k, &begin, &end);
    if (done < told)
        atomic_fetch_add(&catchup.early, 1);
}

/* Other nodes get a segment after it counts as done: a node that asks at that moment for all that is done
 * must not miss it. */
static void test_told_when_done(void **state)
{
    struct leat_error err;
    const struct fill_config config = {.threads = 1,
                                       .disk_engine = "worker",
                                       .segment_bytes = 16 * KIB,
                                       .opener = &opener,
                                       .advanced = advanced,
                                       .ready = on_ready};
    catchup.told = catchup.early = 0;
    assert_int_equal(fill_new(&config, &catchup.fill, &err), 0);
    struct wset *ws = testing_wset(testing_index("cancel.npy"), 256 * KIB);
    ws->nnodes = 1;
    assert_int_equal(fill_start(catchup.fill, ws), 0);
    testing_wait_alone(ws);
    ws->nnodes = 0;
    assert_true(catchup.told > 4);
    assert_int_equal(catchup.early, 0);
    wset_unref(ws);
    fill_free(catchup.fill);
}

/* The table of extents changes in the mapped index after it was opened: samples fail, and every load ends. */
static void test_index_changes_underneath(void **state)
{
    static const struct {
        size_t at, width;
        uint64_t value;
        bool both; /* source_bytes as well */
    } changes[] = {{offsetof(struct index_extent, source), 4, 0x7fffffff},
                   {offsetof(struct index_extent, address), 8, UINT64_MAX - 4095},
                   {offsetof(struct index_extent, bytes), 8, UINT64_MAX},
                   {offsetof(struct index_extent, bytes), 8, UINT64_MAX / 2},
                   {offsetof(struct index_extent, bytes), 8, 1000},
                   {offsetof(struct index_extent, bytes), 8, 1000, .both = true},
                   {offsetof(struct index_extent, source_offset), 8, UINT64_MAX - 4095},
                   {offsetof(struct index_extent, source_offset), 8, 256}};
    testing_npy("changes.npy", 1, 64, 4096);
    for (size_t k = 0; k < ARRAY_LEN(changes); k++) {
        struct fill *fill = fill_of("worker", 2, 16 * KIB);
        int fd = testing_index("changes.npy");
        struct wset *ws = testing_wset(fd, 64 * KIB);
        off_t at = (off_t)(ws->index.header->sections[INDEX_EXTENTS].offset + changes[k].at);
        assert_int_equal(pwrite(fd, &changes[k].value, changes[k].width, at), changes[k].width);
        at += (off_t)(offsetof(struct index_extent, source_bytes) - changes[k].at);
        if (changes[k].both)
            assert_int_equal(pwrite(fd, &changes[k].value, changes[k].width, at), changes[k].width);
        assert_int_equal(fill_start(fill, ws), 0);
        testing_wait_alone(ws);
        for (uint64_t i = 0; i < ws->index.header->nsamples; i++)
            assert_int_equal(wset_sample_state(ws, i), LIVE_FAILED);
        wset_unref(ws);
        fill_free(fill);
    }
}

static void test_refused(void **state)
{
    struct fill *fill;
    struct leat_error err = {0};
    struct fill_config config = {
        .threads = 1, .disk_engine = "tape", .opener = &opener, .advanced = advanced};
    log_set_level(LOG_LEVEL_ERROR);
    print_message("# an error is logged here:\n");
    assert_true(fill_new(&config, &fill, &err) < 0);
    log_set_level(LOG_LEVEL_WARNING);
    assert_non_null(strstr(err.message, "cannot start the disk engine 'tape'"));
}

static int teardown(void **state)
{
    testing_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy),
        cmocka_unit_test(test_cached_in_pieces),
        cmocka_unit_test(test_dir),
        cmocka_unit_test(test_empty_files),
        cmocka_unit_test(test_tar),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_roads),
        cmocka_unit_test(test_spoiled),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_free_in_the_middle),
        cmocka_unit_test(test_done_ranges),
        cmocka_unit_test(test_told_when_done),
        cmocka_unit_test(test_index_changes_underneath),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
