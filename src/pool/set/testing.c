/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/set/testing.h"

#include "base/testing.h"
#include "dataset/dataset.h"
#include "pool/region/region.h"
#include "pool/set/wset.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

static char folder[512];

const char *testing_folder(void)
{
    if (!folder[0]) {
        const char *tmp = getenv("TMPDIR");
        char path[sizeof(folder)], *real;
        snprintf(path, sizeof(path), "%s/leat-test-pool-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(path));
        real = realpath(path, NULL);
        assert_non_null(real);
        snprintf(folder, sizeof(folder), "%s", real);
        free(real);
    }
    return folder;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

void testing_folder_remove(void)
{
    if (folder[0])
        assert_int_equal(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    folder[0] = 0;
}

static int create(const char *name)
{
    char full[1024];
    snprintf(full, sizeof(full), "%s/%s", testing_folder(), name);
    for (char *slash = strchr(full + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0755);
        *slash = '/';
    }
    int fd = open(full, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    return fd;
}

static void put(int fd, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t n = write(fd, at, bytes);
        assert_true(n > 0);
        at += n;
        bytes -= (size_t)n;
    }
}

/* Millions of bytes: a check of each access for races would take most of the time of these tests. */
__attribute__((no_sanitize("thread"))) void testing_bytes(uint32_t seed, uint64_t first, void *dst,
                                                          uint64_t n)
{
    uint8_t *to = dst;
    for (uint64_t k = 0; k < n; k++)
        to[k] = testing_byte(seed, first + k);
}

__attribute__((no_sanitize("thread"))) static uint64_t first_difference(const uint8_t *got, uint32_t seed,
                                                                        uint64_t first, uint64_t n)
{
    uint64_t k = 0;
    while (k < n && got[k] == testing_byte(seed, first + k))
        k++;
    return k;
}

void testing_check_bytes(const void *got, uint32_t seed, uint64_t first, uint64_t n)
{
    uint64_t k = first_difference(got, seed, first, n);
    if (k < n)
        fail_msg("content %u: byte %llu of [%llu, +%llu) differs", seed, (unsigned long long)(first + k),
                 (unsigned long long)first, (unsigned long long)n);
}

static void put_content(int fd, uint32_t seed, uint64_t bytes)
{
    uint8_t *data = malloc(bytes + 1);
    assert_non_null(data);
    testing_bytes(seed, 0, data, bytes);
    put(fd, data, bytes);
    free(data);
}

static void finish(int fd)
{
    assert_int_equal(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

void testing_warm(const char *name)
{
    char full[1024], buf[4096];
    snprintf(full, sizeof(full), "%s/%s", folder, name);
    AUTO_CLOSE int fd = open(full, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    while (read(fd, buf, sizeof(buf)) > 0)
        ;
}

void testing_cool(const char *name)
{
    char full[1024];
    snprintf(full, sizeof(full), "%s/%s", folder, name);
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    finish(fd);
}

void testing_file(const char *name, const char *head, size_t head_bytes, uint32_t seed, uint64_t bytes)
{
    int fd = create(name);
    if (head)
        put(fd, head, head_bytes);
    put_content(fd, seed, bytes);
    finish(fd);
}

void testing_npy(const char *name, uint32_t seed, uint64_t rows, uint64_t row_bytes)
{
    char head[128] = "\x93NUMPY\1\0\x76\0";
    int n = snprintf(head + 10, sizeof(head) - 10,
                     "{'descr': '|u1', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }", rows,
                     row_bytes);
    memset(head + 10 + n, ' ', sizeof(head) - 11 - (size_t)n);
    head[127] = '\n';
    testing_file(name, head, sizeof(head), seed, rows * row_bytes);
}

void testing_tar(const char *name, const struct testing_member *members, unsigned n)
{
    static const char zeros[1024];
    int fd = create(name);
    for (unsigned k = 0; k < n; k++) {
        char head[512] = {0};
        unsigned sum = 0;
        snprintf(head, 100, "%s", members[k].name);
        snprintf(head + 100, 8, "%07o", 0644);
        snprintf(head + 124, 12, "%011" PRIo64, members[k].bytes);
        memcpy(head + 257,
               "ustar\0"
               "00",
               8);
        head[156] = '0';
        memset(head + 148, ' ', 8);
        for (unsigned b = 0; b < sizeof(head); b++)
            sum += (uint8_t)head[b];
        snprintf(head + 148, 8, "%06o", sum);
        put(fd, head, sizeof(head));
        put_content(fd, members[k].seed, members[k].bytes);
        put(fd, zeros, align_up(members[k].bytes, 512) - members[k].bytes);
    }
    put(fd, zeros, sizeof(zeros));
    finish(fd);
}

int testing_index(const char *text)
{
    struct dataset_spec spec;
    struct leat_error err = {0};
    char here[1024];
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(testing_folder()), 0);
    int rc = dataset_spec_parse(text, &spec, &err);
    assert_int_equal(chdir(here), 0);
    if (rc < 0)
        fail_msg("%s: %s", text, err.message);
    int fd = memfd_create("index", MFD_CLOEXEC);
    assert_true(fd >= 0);
    if (dataset_index_build(&spec, NULL, NULL, fd, &err) < 0)
        fail_msg("%s: %s", text, err.message);
    dataset_spec_free(&spec);
    return fd;
}

int testing_index_of(struct index_builder *b)
{
    struct leat_error err = {0};
    int fd = memfd_create("index", MFD_CLOEXEC);
    if (index_builder_finish(b, fd, &err) < 0)
        fail_msg("%s", err.message);
    index_builder_free(b);
    return fd;
}

struct wset *testing_wset(int index_fd, uint64_t region_bytes)
{
    struct region_source source = {.huge = false, .huge_dir = -1};
    struct leat_error err = {0};
    struct wset *ws;
    if (wset_new(NULL, index_fd, false, &ws, &err) < 0)
        fail_msg("%s", err.message);
    ws->region_bytes = region_bytes;
    ws->owner_uid = geteuid();
    ws->owner_gid = getegid();
    uint32_t n = (uint32_t)div_up(ws->index.header->address_end, ws->region_bytes);
    ws->regions = calloc(n, sizeof(*ws->regions));
    assert_non_null(ws->regions);
    for (ws->nregions = 0; ws->nregions < n; ws->nregions++) {
        if (region_new(&source, region_bytes, region_bytes, NULL, &ws->regions[ws->nregions].region, &err) <
            0)
            fail_msg("%s", err.message);
    }
    wset_move(ws, WSET_LIVE);
    return ws;
}

void testing_part(const struct wset *ws, uint64_t i, unsigned f, uint8_t *dst)
{
    struct index_part part = {0};
    assert_true(index_part(&ws->index, i, f, &part));
    for (uint64_t at = 0, n; at < part.bytes; at += n) {
        uint64_t address = part.address + at;
        n = MIN(part.bytes - at, ws->region_bytes - address % ws->region_bytes);
        const uint8_t *from = wset_address(ws, address, n);
        assert_non_null(from);
        memcpy(dst + at, from, n);
    }
}

void testing_wait_alone(const struct wset *ws)
{
    test_wait_until(atomic_load(&ws->refs) == 1);
}

struct disk_fault_rules testing_rules;

int testing_faulty_engine(unsigned depth, struct disk_engine **ret_engine)
{
    struct disk_engine *lower;
    int rc = disk_worker_new(depth, &lower);
    if (rc == 0 && (rc = disk_fault_new(lower, &testing_rules, ret_engine)) < 0)
        disk_engine_free(lower);
    return rc;
}
