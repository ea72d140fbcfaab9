/* SPDX-License-Identifier: Apache-2.0 */
/* A session on a real store: what it lists and reads, by both roads, and that a byte that went bad is seen on either. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/testing.h"
#include "base/testing_pieces.h"
#include "disk/disk.h"
#include "store/testing.h"

#define LARGE (5 * MIB + 300 * KIB + 77)

static struct fixture {
    char folder[256];
    struct store *store;
    struct backend *session;
    uint8_t *large;
} f;

static void put(const char *key, const void *data, uint64_t bytes)
{
    testing_put_bytes(f.store, "data", key, data, bytes, NULL);
}

static int setup(void **state)
{
    struct leat_error err = {0};
    testing_mkdir(f.folder);
    f.store = testing_open1(f.folder);
    assert_int_equal(store_bucket_create(f.store, "data", 0, NULL, &err), 0);
    f.large = malloc(LARGE);
    testing_fill(f.large, LARGE, 7);
    put("large", f.large, LARGE);
    put("dir/a", "aaa", 3);
    put("dir/b", "", 0);
    put("dir/sub/c", "cc", 2);
    put("e", f.large, 300 * KIB);
    struct backend_config session = {.store = f.store};
    assert_int_equal(backend_new(&session, &f.session, &err), 0);
    return 0;
}

static int teardown(void **state)
{
    backend_free(f.session);
    store_free(f.store);
    free(f.large);
    testing_rmdir(f.folder);
    return 0;
}

/* --- names -------------------------------------------------------------------------------------------------------------- */

static int listed(void *user, const struct backend_object *o)
{
    char *out = user;
    sprintf(out + strlen(out), "%s%s %llu;", o->name, o->prefix ? "*" : "", (unsigned long long)o->bytes);
    assert_true(strncmp(o->uri, "store://data/", 13) == 0 && o->name >= o->uri + 13);
    return 0;
}

static void test_names(void **state)
{
    char out[1000] = "";
    struct backend_stat st;
    struct leat_error err;
    assert_int_equal(backend_list(f.session, "store://data/dir/", true, NULL, listed, out, &err), 0);
    assert_string_equal(out, "a 3;b 0;sub/c 2;");
    out[0] = 0;
    assert_int_equal(backend_list(f.session, "store://data/", false, NULL, listed, out, &err), 0);
    assert_string_equal(out, "dir/* 0;e 307200;large 5550157;");
    out[0] = 0;
    assert_int_equal(backend_list(f.session, "store://data/", true, "dir/b", listed, out, &err), 0);
    assert_string_equal(out, "dir/sub/c 2;e 307200;large 5550157;");
    assert_int_equal(backend_stat_object(f.session, "store://data/e", &st, &err), 0);
    assert_true(st.bytes == 300 * KIB && st.etag[0] == '"' && st.modified > 1600000000);
    assert_int_equal(backend_stat_object(f.session, "store://data/dir", &st, &err), LEAT_NOT_FOUND);
    assert_int_equal(backend_stat_object(f.session, "store://none/e", &st, &err), LEAT_NOT_FOUND);
    assert_non_null(strstr(err.message, "no bucket \"none\""));
    assert_int_equal(backend_stat_object(f.session, "store:///e", &st, &err), LEAT_INVALID);
    assert_int_equal(backend_put(f.session, "store://data/x", 0, 0, 1, NULL, NULL, &err), LEAT_UNSUPPORTED);
}

static bool refuses; /* A file system that opens for direct I/O, and refuses the reads. */
static _Atomic unsigned nrefused;

ssize_t pread(int fd, void *dst, size_t bytes, off_t offset)
{
    if (refuses && (fcntl(fd, F_GETFL) & O_DIRECT)) {
        nrefused++;
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_pread64, fd, dst, bytes, offset);
}

/* More than a page of them, and folders that are pages apart. */
static void test_long_list(void **state)
{
    char key[64], *out = calloc(1, 400000);
    struct leat_error err;
    for (unsigned i = 0; i < 1100; i++) {
        snprintf(key, sizeof(key), "many/%c/%04u", i < 600 ? 'x' : 'y', i);
        put(key, key, 5);
    }
    assert_int_equal(backend_list(f.session, "store://data/many/", true, NULL, listed, out, &err), 0);
    unsigned n = 0;
    for (const char *p = out; (p = strchr(p, ';')); p++)
        n++;
    assert_int_equal(n, 1100);
    assert_memory_equal(out, "x/0000 5;x/0001 5;", 18);
    out[0] = 0;
    assert_int_equal(backend_list(f.session, "store://data/many/", false, NULL, listed, out, &err), 0);
    assert_string_equal(out, "x/* 0;y/* 0;");
    free(out);
}

static unsigned ops_ended;

static void op_done(struct backend_op *op, int rc, const struct leat_error *err)
{
    assert_true(rc == 0 || strstr(err->message, "store://"));
    assert_int_equal(rc, (int)(intptr_t)op->user);
    ops_ended++;
}

static void test_ops(void **state)
{
    struct backend_stat stats[2];
    struct backend_op ops[] = {
        {.kind = BACKEND_STAT, .uri = "store://data/e", .stat = &stats[0]},
        {.kind = BACKEND_STAT,
         .uri = "store://data/none",
         .stat = &stats[1],
         .user = (void *)(intptr_t)LEAT_NOT_FOUND},
        {.kind = BACKEND_DELETE, .uri = "store://data/e", .user = (void *)(intptr_t)LEAT_UNSUPPORTED},
        {.kind = BACKEND_COPY,
         .uri = "store://data/f",
         .from = "store://data/e",
         .user = (void *)(intptr_t)LEAT_UNSUPPORTED},
        {.kind = BACKEND_STAT, .uri = "store://data/e", .stat = &stats[1]},
    };
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        ops[i].done = op_done;
        backend_op_submit(f.session, &ops[i]);
    }
    backend_op_cancel(f.session, &ops[4]);
    assert_int_equal(ops_ended, 0);
    assert_int_equal(backend_wait(f.session, 1, -1), 4);
    assert_int_equal(ops_ended, 4);
    assert_int_equal(stats[0].bytes, 300 * KIB);
    assert_int_equal(backend_wait(f.session, 1, -1), 0);
}

static void op_done_more(struct backend_op *op, int rc, const struct leat_error *err)
{
    op_done(op, rc, err);
    op->done = op_done;
    backend_op_submit(f.session, op);
}

/* done() submits, where there is nothing on a disk to wait for. */
static void test_op_from_done(void **state)
{
    struct backend_stat stat;
    struct backend_op op = {
        .kind = BACKEND_STAT, .uri = "store://data/e", .stat = &stat, .done = op_done_more};
    backend_op_submit(f.session, &op);
    assert_int_equal(backend_wait(f.session, 2, -1), 2);
    assert_int_equal(ops_ended, 2);
    ops_ended = 0;
}

/* --- bytes -------------------------------------------------------------------------------------------------------------- */

struct reading {
    struct backend_read read;
    int rc, times;
    char message[600];
};

static void read_done(struct backend_read *read, int rc, const struct leat_error *err)
{
    struct reading *r = container_of(read, struct reading, read);
    r->rc = rc;
    r->times++;
    snprintf(r->message, sizeof(r->message), "%s", err ? err->message : "");
}

static void begin(struct reading *r, struct backend_file *file, void *dst, uint64_t offset, uint64_t bytes)
{
    *r = (struct reading){
        .read = {.file = file, .offset = offset, .bytes = bytes, .dst = dst, .done = read_done}};
    backend_submit(f.session, &r->read);
}

/* The wait for a read that no thread works on has an end. */
static void wait_over(const struct reading *r)
{
    test_wait_until((backend_wait(f.session, 1, 1), r->times));
    assert_int_equal(r->times, 1);
}

static struct backend_file *open_key(const char *key, const char *etag)
{
    char uri[64];
    struct backend_file *file;
    struct leat_error err = {0};
    snprintf(uri, sizeof(uri), "store://data/%s", key);
    if (backend_open(f.session, uri, etag, 0, &file, &err) < 0)
        fail_msg("%s", err.message);
    return file;
}

/* Puts the files of the store out of the page cache, or into it. Returns a descriptor of the one of this size and more, for writing. */
static int each_file(const char *folder, int advice, uint64_t least)
{
    int found = -1;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || lstat(path, &st) < 0)
            continue;
        int fd = -1;
        if (S_ISDIR(st.st_mode)) {
            fd = each_file(path, advice, least);
        } else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size >= least) {
            fd = open(path, O_RDWR);
            fsync(fd);
            posix_fadvise(fd, 0, 0, advice);
        }
        if (fd >= 0 && found < 0)
            found = fd;
        else if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    return found;
}

static void warm(void)
{
    char buf[64 * 1024];
    AUTO_CLOSE int fd = each_file(f.folder, POSIX_FADV_NORMAL, LARGE);
    for (off_t at = 0; pread(fd, buf, sizeof(buf), at) > 0; at += (off_t)sizeof(buf)) {
    }
}

static void cold(void)
{
    AUTO_CLOSE int fd = each_file(f.folder, POSIX_FADV_DONTNEED, LARGE);
}

static void test_ranges(void **state)
{
    static const uint64_t ranges[][2] = {{0, LARGE},          {0, 1},
                                         {LARGE - 1, 1},      {MIB, MIB},
                                         {MIB - 1, MIB + 2},  {100, 3 * MIB},
                                         {4096, 2 * MIB},     {5 * MIB, LARGE - 5 * MIB},
                                         {5 * MIB + 1, 1000}, {2 * MIB, 3 * MIB},
                                         {MIB + 4096, 8192}};
    uint8_t *memory = aligned_alloc(4096, 6 * MIB + 4096);
    struct backend_file *file = open_key("large", NULL);
    for (unsigned is_warm = 0; is_warm < 2; is_warm++) {
        for (unsigned i = 0; i < ARRAY_LEN(ranges); i++) {
            for (unsigned shift = 0; shift < 2; shift++) {
                struct reading r;
                uint64_t offset = ranges[i][0], bytes = ranges[i][1];
                uint8_t *dst = memory + 2048 + (shift ? 1 : offset % 4096 + 2048) % 2047;
                if (!shift)
                    dst = memory + offset % 4096;
                is_warm ? warm() : cold();
                memset(memory, 0x5a, 6 * MIB + 4096);
                begin(&r, file, dst, offset, bytes);
                assert_int_equal(r.times, 0);
                assert_int_equal(backend_wait(f.session, 1, -1), 1);
                if (r.rc < 0)
                    fail_msg("%s", r.message);
                assert_memory_equal(dst, f.large + offset, bytes);
                if (!test_all_are(0x5a, memory, (size_t)(dst - memory)) ||
                    !test_all_are(0x5a, dst + bytes, (size_t)(memory + 6 * MIB + 4096 - dst) - bytes))
                    fail_msg("a byte outside of the range was written to");
            }
        }
    }
    struct backend_stats stats;
    backend_stats(f.session, &stats);
    assert_true(stats.bytes_padding > 0 && stats.bytes_in > 0);
    assert_true(stats.bytes_direct + stats.bytes_buffered >= stats.bytes_in && stats.bytes_buffered > 0);
    struct disk_file_traits traits;
    AUTO_CLOSE int fd = each_file(f.folder, POSIX_FADV_NORMAL, LARGE);
    if (disk_file_probe(fd, &traits) == 0 && traits.direct_align)
        assert_true(stats.bytes_direct > LARGE);
    else
        print_message("no direct I/O below %s: read through the page cache alone\n", f.folder);
    backend_close(file);
    free(memory);
}

/* Pieces that end in the middle of blocks; some blocks lie in one of them. */
static void test_pieces(void **state)
{
    static const uint64_t mosts[] = {LARGE, 4 * MIB, MIB + 1, 5000};
    struct backend_file *file = open_key("large", NULL);
    for (unsigned i = 0; i < 4 * ARRAY_LEN(mosts); i++) {
        struct test_pieces t;
        struct reading r = {0};
        uint64_t offset = i % 3 ? i * 7 : 0, bytes = LARGE - offset - i;
        i % 2 ? warm() : cold();
        test_pieces_make(&t, bytes, mosts[i / 4], i);
        r.read = (struct backend_read){.file = file,
                                       .offset = offset,
                                       .bytes = bytes,
                                       .pieces = t.iov,
                                       .npieces = t.n,
                                       .done = read_done};
        backend_submit(f.session, &r.read);
        if (i % 4 == 3) {
            backend_cancel(f.session, &r.read); /* nothing comes after that */
            memset(t.memory, TEST_GUARD, t.memory_bytes);
            assert_int_equal(backend_wait(f.session, 1, -1), 0);
        } else {
            wait_over(&r);
            assert_int_equal(r.rc, 0);
        }
        test_pieces_check(&t, i % 4 == 3 ? NULL : f.large + offset);
        test_pieces_free(&t);
    }
    backend_close(file);
}

/* Memory that a disk does not read to costs a copy, and leaves nothing in the page cache. */
static void test_misplaced(void **state)
{
    uint8_t *memory = aligned_alloc(4096, 4 * MIB), *dst = memory + 384;
    struct backend_file *file = open_key("large", NULL);
    struct backend_stats before, after;
    struct disk_file_traits traits;
    struct reading r;
    cold();
    AUTO_CLOSE int fd = each_file(f.folder, POSIX_FADV_NORMAL, LARGE);
    bool is_direct =
        disk_file_probe(fd, &traits) == 0 && traits.direct_align && disk_cached_permille(fd, 0, LARGE) == 0;
    backend_stats(f.session, &before);
    begin(&r, file, dst, 0, 3 * MIB);
    assert_int_equal(backend_wait(f.session, 1, -1), 1);
    assert_int_equal(r.rc, 0);
    assert_memory_equal(dst, f.large, 3 * MIB);
    backend_stats(f.session, &after);
    if (is_direct)
        assert_int_equal(after.bytes_direct - before.bytes_direct, 3 * MIB);
    else
        print_message("no direct I/O below %s, or it stays in the page cache\n", f.folder);
    backend_close(file);
    free(memory);
}

/* Blocks that wait for a bounce buffer, and need none when their turn comes, as another reader has read
 * the file since. */
static void test_warm_meanwhile(void **state)
{
    uint8_t *memory = aligned_alloc(4096, 6 * MIB), *dst = memory + 384;
    struct backend_file *file = open_key("large", NULL);
    struct reading r;
    cold();
    begin(&r, file, dst, 0, LARGE);
    warm();
    wait_over(&r);
    assert_int_equal(r.rc, 0);
    assert_memory_equal(dst, f.large, LARGE);
    backend_close(file);
    free(memory);
}

/* In its place and by bounce buffers; more blocks than there are of those. */
static void test_refuses_direct(void **state)
{
    uint8_t *memory = aligned_alloc(4096, 6 * MIB);
    struct backend_config config = {.store = f.store, .disk_engine = "worker"};
    struct backend *session = f.session;
    struct leat_error err;
    struct reading r;
    assert_int_equal(backend_new(&config, &f.session, &err), 0);
    refuses = true;
    for (unsigned shift = 0; shift < 2; shift++) {
        struct backend_file *file = open_key("large", NULL);
        cold();
        begin(&r, file, memory + shift * 384, 0, LARGE);
        wait_over(&r);
        assert_int_equal(r.rc, 0);
        assert_memory_equal(memory + shift * 384, f.large, LARGE);
        backend_close(file);
    }
    refuses = false;
    struct backend_stats stats;
    backend_stats(f.session, &stats);
    assert_int_equal(stats.bytes_direct, 0);
    if (!nrefused)
        print_message("no direct I/O below %s\n", f.folder);
    backend_free(f.session);
    f.session = session;
    free(memory);
}

static void test_many_at_once(void **state)
{
    enum { N = 40 };
    static struct reading r[N];
    static uint8_t dst[N][100 * KIB];
    struct backend_file *file = open_key("large", NULL);
    cold();
    for (unsigned i = 0; i < N; i++)
        begin(&r[i], file, dst[i], i * 130 * KIB, 100 * KIB);
    backend_cancel(f.session, &r[17].read);
    while (backend_wait(f.session, N, -1) > 0) {
    }
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(r[i].times, i != 17);
        if (i != 17) {
            assert_int_equal(r[i].rc, 0);
            assert_memory_equal(dst[i], f.large + i * 130 * KIB, 100 * KIB);
        }
    }
    /* A session that ends ends what it has under way. */
    struct backend_config config = {.store = f.store};
    struct backend *mine = f.session;
    struct leat_error err;
    assert_int_equal(backend_new(&config, &f.session, &err), 0);
    struct backend_file *other = open_key("large", NULL);
    for (unsigned i = 0; i < N; i++)
        begin(&r[i], other, dst[i], i * 130 * KIB, 100 * KIB);
    backend_free(f.session);
    f.session = mine;
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(r[i].times, 1);
    backend_close(other);
    backend_close(file);
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------------- */

static void expect_corrupt(struct backend_file *file, uint8_t *dst, uint64_t offset, uint64_t bytes)
{
    struct reading r;
    begin(&r, file, dst, offset, bytes);
    assert_int_equal(backend_wait(f.session, 1, -1), 1);
    assert_int_equal(r.rc, LEAT_CORRUPT);
    assert_non_null(strstr(r.message, "large"));
}

/* A bit of block 2 flips; in the page cache alone, or on the disk as well. */
static void test_flipped_bit(void **state)
{
    uint8_t *dst = aligned_alloc(4096, 6 * MIB);
    for (unsigned is_warm = 0; is_warm < 2; is_warm++) {
        struct reading r;
        put("large", f.large, LARGE); /* again, as a block found damaged stays so */
        struct backend_file *file = open_key("large", NULL);
        begin(&r, file, dst, 0, LARGE); /* good, and verified once */
        assert_int_equal(backend_wait(f.session, 1, -1), 1);
        assert_int_equal(r.rc, 0);
        warm();
        AUTO_CLOSE int fd = each_file(f.folder, POSIX_FADV_NORMAL, LARGE);
        uint8_t *all = malloc(LARGE + 1 * MIB);
        ssize_t n = pread(fd, all, LARGE + 1 * MIB, 0);
        uint8_t *at = memmem(all, (size_t)n, f.large + 2 * MIB + 5000, 64);
        assert_non_null(at);
        *at ^= 0x10;
        assert_int_equal(pwrite(fd, at, 1, at - all), 1);
        free(all);
        if (!is_warm)
            cold();
        expect_corrupt(file, dst, 2 * MIB, MIB);
        if (!is_warm)
            cold();
        expect_corrupt(file, dst, 0, LARGE);
        expect_corrupt(file, dst + 100, 2 * MIB + 9000, 10); /* of a block that is bad in another place */
        backend_close(file);
    }
    put("large", f.large, LARGE);
    free(dst);
}

static void test_changed(void **state)
{
    struct backend_stat st;
    struct leat_error err;
    struct backend_file *file, *old;
    struct reading r;
    char dst[8] = "";
    put("moves", "old", 3);
    assert_int_equal(backend_stat_object(f.session, "store://data/moves", &st, &err), 0);
    old = open_key("moves", st.etag);
    put("moves", "new!", 4);
    assert_int_equal(backend_open(f.session, "store://data/moves", st.etag, 0, &file, &err), LEAT_STALE);
    assert_int_equal(backend_open(f.session, "store://data/moves", NULL, 3, &file, &err), LEAT_STALE);
    assert_int_equal(backend_open(f.session, "store://data/none", NULL, 0, &file, &err), LEAT_NOT_FOUND);
    begin(&r, old, dst, 0, 3); /* what was opened stays as it was */
    assert_int_equal(backend_wait(f.session, 1, -1), 1);
    assert_string_equal(dst, "old");
    assert_int_equal(backend_pread(f.session, old, dst, 8, 1, &err), 2);
    assert_memory_equal(dst, "ld", 2);
    backend_close(old);
    assert_int_equal(store_bucket_create(f.store, "front", STORE_BUCKET_REMOTE, NULL, &err), 0);
    assert_int_equal(backend_stat_object(f.session, "store://front/x", &st, &err), LEAT_NOT_FOUND);
    assert_non_null(strstr(err.message, "remote"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_op_from_done), /* first: nothing was read yet */
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_long_list),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_misplaced),
        cmocka_unit_test(test_warm_meanwhile),
        cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_refuses_direct),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_ops),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
