/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/region/hugefs.h"
#include "pool/region/region.h"

#include "base/budget.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define NOBODY 65534

static struct region_source private_fs = {.huge = true, .huge_dir = -1};
static struct region_source base_pages = {.huge = false, .huge_dir = -1};

/* Both kinds of memory; the second only where this host allows it. */
static unsigned sources(struct region_source *ret_sources[2])
{
    ret_sources[0] = &base_pages;
    ret_sources[1] = &private_fs;
    return private_fs.huge_dir >= 0 ? 2 : 1;
}

static struct region *region_of(const struct region_source *source, uint64_t bytes, uint64_t used)
{
    struct leat_error err = {0};
    struct region *r = NULL;
    if (region_new(source, bytes, used, NULL, &r, &err) < 0)
        fail_msg("%s", err.message);
    return r;
}

static uint64_t backed_bytes(const struct region *r)
{
    struct stat st;
    assert_int_equal(fstat(r->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void reserve_backs_it(void **state)
{
    (void)state;
    struct region_source *source[2];
    for (unsigned k = 0, n = sources(source); k < n; k++) {
        uint64_t used = region_charge(source[k], 8 * MIB, 5 * MIB + 12288);
        assert_int_equal(used, k ? 6 * MIB : 5 * MIB + 12288);
        struct region *r = region_of(source[k], 8 * MIB, used);
        assert_int_equal(backed_bytes(r), 0);
        assert_int_equal(region_reserve(r, 0, 2 * MIB), 0);
        assert_int_equal(backed_bytes(r), 2 * MIB);
        assert_int_equal(region_reserve(r, 2 * MIB, 3 * MIB + 12288), 0);
        assert_int_equal(backed_bytes(r), used); /* what its reservation is for */
        for (uint64_t at = 0; at < used; at += 4096)
            assert_int_equal(r->addr[at], 0);
        memset(r->addr, 0x5a, used);
        assert_int_equal(backed_bytes(r), used);
        region_unref(r);
    }
}

/* A region smaller than a huge page takes none. */
static void small_costs_little(void **state)
{
    (void)state;
    struct region_source *source[2];
    for (unsigned k = 0, n = sources(source); k < n; k++) {
        assert_int_equal(region_charge(source[k], 64 * KIB, 8192), 8192);
        struct region *r = region_of(source[k], 64 * KIB, 8192);
        assert_int_equal(region_reserve(r, 0, 8192), 0);
        memset(r->addr, 1, 8192);
        assert_int_equal(backed_bytes(r), 8192);
        region_unref(r);
    }
}

/* What a client gets can be read, and that is all. */
static void read_only_for_clients_one(const struct region_source *source)
{
    struct region *r = region_of(source, 2 * MIB, 2 * MIB);
    assert_int_equal(region_reserve(r, 0, 2 * MIB), 0);
    memcpy(r->addr + 4096, "leat", 4);
    assert_int_equal(pwrite(r->fd_ro, "x", 1, 0), -1);
    assert_int_equal(errno, EBADF);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd_ro, 0), MAP_FAILED);
    assert_int_equal(errno, EACCES);
    assert_true(ftruncate(r->fd_ro, 0) < 0);
    uint8_t *map = mmap(NULL, r->bytes, PROT_READ, MAP_SHARED, r->fd_ro, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    assert_memory_equal(map + 4096, "leat", 4);
    assert_true(mprotect(map, 4096, PROT_READ | PROT_WRITE) < 0);

    /* Another user, by /proc. */
    if (geteuid() == 0) {
        pid_t pid = fork();
        if (pid == 0) {
            char path[64];
            snprintf(path, sizeof(path), "/proc/self/fd/%d", r->fd_ro);
            if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
                _exit(3);
            _exit(open(path, O_RDWR) >= 0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    } else {
        print_message("not root: that another user cannot re-open it is not tested\n");
    }

    /* Taken away: an existing mapping reads zeros. */
    region_punch(r);
    assert_int_equal(backed_bytes(r), 0);
    assert_int_equal(map[4096], 0);
    munmap(map, r->bytes);
    region_unref(r);
}

static void read_only_for_clients(void **state)
{
    (void)state;
    struct region_source *source[2];
    for (unsigned k = 0, n = sources(source); k < n; k++)
        read_only_for_clients_one(source[k]);
}

static void last_reference_takes_the_memory(void **state)
{
    (void)state;
    struct region_source *source[2];
    for (unsigned k = 0, n = sources(source); k < n; k++) {
        struct region *r = region_of(source[k], 2 * MIB, 2 * MIB);
        assert_int_equal(region_reserve(r, 0, 2 * MIB), 0);
        AUTO_CLOSE int fd = dup(r->fd_ro); /* a client that is still there */
        region_ref(r);
        region_unref(r);
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_blocks * 512, 2 * MIB);
        region_unref(r);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_blocks, 0);
    }
    region_unref(NULL);
}

static void releases_its_bytes(void **state)
{
    (void)state;
    struct budget budget;
    budget_init(&budget, 1 * MIB);
    assert_int_equal(budget_reserve(&budget, 65536), 0);
    struct region *r;
    assert_int_equal(region_new(&private_fs, 128 * KIB, 65536, &budget, &r, NULL), 0);
    region_unref(r);
    assert_int_equal(atomic_load(&budget.used_bytes), 0);
}

/* fallocate of a region that no address space nor disk could hold. */
static void errors_are_told(void **state)
{
    (void)state;
    struct budget budget;
    budget_init(&budget, 1 * MIB);
    assert_int_equal(budget_reserve(&budget, 4096), 0);
    struct region *r = NULL;
    struct leat_error err = {0};
    assert_true(region_new(&private_fs, 1ull << 62, 4096, &budget, &r, &err) < 0);
    assert_null(r);
    assert_non_null(strstr(err.message, "cannot"));
    assert_int_equal(atomic_load(&budget.used_bytes), 4096); /* stays the caller's */
}

static void page_size_is_measured(void **state)
{
    (void)state;
    struct region_source *source[2];
    for (unsigned k = 0, n = sources(source); k < n; k++) {
        struct region *r = region_of(source[k], 8 * MIB, 8 * MIB);
        assert_int_equal(region_reserve(r, 0, 8 * MIB), 0);
        memset(r->addr, 1, 8 * MIB);
        uint64_t page = region_page_bytes(r), base = (uint64_t)sysconf(_SC_PAGESIZE);
        print_message("%s: pages of %llu bytes\n", region_pages_name(r->pages), (unsigned long long)page);
        assert_true(page == base || (k == 1 && page == REGION_HUGE_BYTES));
        assert_int_equal(r->pages, k ? REGION_HUGEFS : REGION_BASE);
        region_unref(r);
    }
}

/* Nothing of the file system is to be seen in our mount table, and its files have no name. */
static void hugefs_leaves_nothing(void **state)
{
    (void)state;
    if (private_fs.huge_dir < 0)
        skip();
    struct region *r = region_of(&private_fs, 2 * MIB, 2 * MIB);
    struct stat st;
    assert_int_equal(fstat(r->fd, &st), 0);
    assert_int_equal(st.st_nlink, 0);
    assert_true(fcntl(r->fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(private_fs.huge_dir, F_GETFD) & FD_CLOEXEC);
    char text[32];
    snprintf(text, sizeof(text), " %u:%u ", major(st.st_dev), minor(st.st_dev));
    FILE *f = fopen("/proc/self/mountinfo", "re");
    assert_non_null(f);
    char line[4096];
    while (fgets(line, sizeof(line), f))
        assert_null(strstr(line, text));
    fclose(f);
    region_unref(r);
}

/* As a user without rights: the way by a child and a user namespace. */
static void hugefs_without_root(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("not root: the other tests tested this already\n");
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
            _exit(3);
        prctl(PR_SET_DUMPABLE, 1); /* or /proc/self stays root's: a program that a user started has this */
        struct region_source source = {.huge = true, .huge_dir = hugefs_open()};
        struct region *r;
        if (source.huge_dir < 0)
            _exit(2);
        if (region_new(&source, 4 * MIB, 4 * MIB, NULL, &r, NULL) < 0 || region_reserve(r, 0, 4 * MIB) < 0)
            _exit(4);
        memset(r->addr, 7, 4 * MIB);
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", r->fd_ro);
        if (open(path, O_RDWR) >= 0)
            _exit(5);
        region_unref(r);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        print_message("no user namespaces for ordinary users here: not tested\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);
}

static int setup(void **state)
{
    (void)state;
    private_fs.huge_dir = hugefs_open();
    if (private_fs.huge_dir < 0)
        print_message("no private tmpfs here (%s): only base pages are tested\n",
                      strerror(-private_fs.huge_dir));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (private_fs.huge_dir >= 0)
        close(private_fs.huge_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hugefs_without_root),
        cmocka_unit_test(reserve_backs_it),
        cmocka_unit_test(small_costs_little),
        cmocka_unit_test(read_only_for_clients),
        cmocka_unit_test(last_reference_takes_the_memory),
        cmocka_unit_test(releases_its_bytes),
        cmocka_unit_test(errors_are_told),
        cmocka_unit_test(page_size_is_measured),
        cmocka_unit_test(hugefs_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
