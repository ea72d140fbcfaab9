/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of control groups as kernels show them, v1, v2 and both, written to a folder and read from there. */
#include <setjmp.h>
#include <stdarg.h>

#include "pool/region/memory.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

static char folder[64];

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", folder, path);
    for (char *slash = strchr(full + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int begin(void **state)
{
    strcpy(folder, "/tmp/leat-test-memory-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    put("meminfo", "MemTotal:       64000000 kB\nMemFree:         1000000 kB\nMemAvailable:   32000000 kB\n");
    return 0;
}

static int end(void **state)
{
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static uint64_t available(void)
{
    char meminfo[128], self[128], root[128];
    snprintf(meminfo, sizeof(meminfo), "%s/meminfo", folder);
    snprintf(self, sizeof(self), "%s/self", folder);
    snprintf(root, sizeof(root), "%s/cg", folder);
    return memory_available(&(struct memory_paths){meminfo, self, root});
}

#define HOST (32000000ull * 1024)

static void test_host_alone(void **state)
{
    assert_int_equal(available(), HOST);
    put("self", "0::/\n");
    assert_int_equal(available(), HOST);
    put("self", "garbage\n:\n::\n0:\n");
    assert_int_equal(available(), HOST);
}

static void test_nothing_readable(void **state)
{
    put("meminfo", "");
    assert_int_equal(available(), 1 * GIB);
}

/* A systemd scope under a slice with the tighter limit; page cache that can go counts as free. */
static void test_v2(void **state)
{
    put("self", "0::/user.slice/run-1.scope\n");
    put("cg/user.slice/run-1.scope/memory.max", "8589934592\n");
    put("cg/user.slice/run-1.scope/memory.current", "3221225472\n");
    put("cg/user.slice/run-1.scope/memory.stat", "anon 100\nfile 2147483648\ninactive_file 1073741824\n");
    assert_int_equal(available(), 6 * GIB);
    put("cg/user.slice/memory.max", "max\n");
    put("cg/user.slice/memory.current", "99999999999\n");
    assert_int_equal(available(), 6 * GIB);
    put("cg/user.slice/memory.max", "5368709120\n");
    put("cg/user.slice/memory.current", "3221225472\n");
    assert_int_equal(available(), 2 * GIB);
    /* Over its limit, a group has nothing left. */
    put("cg/user.slice/memory.current", "6442450944\n");
    assert_int_equal(available(), 0);
}

/* In a container's own namespace the path is "/" and the limits are at the root. */
static void test_v2_namespace(void **state)
{
    put("self", "0::/\n");
    put("cg/memory.max", "4294967296\n");
    put("cg/memory.current", "1073741824\n");
    assert_int_equal(available(), 3 * GIB);
}

static void test_v1(void **state)
{
    put("self",
        "12:cpuset:/\n9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n");
    put("cg/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
    put("cg/memory/docker/abc/memory.usage_in_bytes", "1610612736\n");
    put("cg/memory/docker/abc/memory.stat", "cache 1\ninactive_file 7\ntotal_inactive_file 536870912\n");
    put("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("cg/memory/memory.usage_in_bytes", "60000000000\n");
    assert_int_equal(available(), 1 * GIB);
}

/* The host's path is not there inside the container: the mount's root is the container's own group. */
static void test_v1_container(void **state)
{
    put("self", "4:memory:/docker/abc\n");
    put("cg/memory/memory.limit_in_bytes", "3221225472\n");
    put("cg/memory/memory.usage_in_bytes", "1073741824\n");
    assert_int_equal(available(), 2 * GIB);
}

/* Both hierarchies are mounted, and memory belongs to v1. */
static void test_hybrid(void **state)
{
    put("self", "5:hugetlb,memory:/job\n3:memory_like:/job\n0::/job\n");
    put("cg/memory/job/memory.limit_in_bytes", "1073741824\n");
    put("cg/memory/job/memory.usage_in_bytes", "0\n");
    assert_int_equal(available(), 1 * GIB);
    put("cg/unified/job/memory.max", "1\n");
    assert_int_equal(available(), 1 * GIB);
    put("self", "3:memory_like:/job\n");
    assert_int_equal(available(), HOST);
}

static void test_odd_numbers(void **state)
{
    put("self", "0::/g\n");
    put("cg/g/memory.max", "-1\n");
    assert_int_equal(available(), HOST);
    put("cg/g/memory.max", "\n");
    assert_int_equal(available(), HOST);
    put("cg/g/memory.max", "99999999999999999999999999\n");
    assert_int_equal(available(), HOST);
    put("cg/g/memory.max", "1048576\n"); /* no usage file: all of it */
    assert_int_equal(available(), 1 * MIB);
}

static void test_defaults(void **state)
{
    assert_true(pool_memory_available() > 0);
    uint64_t cap = pool_default_cap();
    assert_true(cap >= 16 * MIB && cap % (2 * MIB) == 0);
    assert_int_equal(pool_default_region(1024 * GIB), 512 * MIB);
    assert_int_equal(pool_default_region(4 * GIB), 512 * MIB);
    assert_int_equal(pool_default_region(4 * GIB - 1), 256 * MIB);
    assert_int_equal(pool_default_region(100 * MIB), 8 * MIB);
    assert_int_equal(pool_default_region(1), 2 * MIB);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_host_alone), TEST(test_nothing_readable), TEST(test_v2),     TEST(test_v2_namespace),
        TEST(test_v1),         TEST(test_v1_container),     TEST(test_hybrid), TEST(test_odd_numbers),
        TEST(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
