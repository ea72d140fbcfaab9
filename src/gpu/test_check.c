/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums on a device: the kernel's source as the host runs it, against base/crc32c, and the calls around it, against tests/fakecuda. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "fakecuda.h"
#include "gpu/crc_kernel.h"
#include "gpu/gpu.h"

#define BYTES (1 * MIB)

static struct leat_error err;
static struct {
    void (*stat)(struct fakecuda_stat *);
    void (*refuse)(const char *, unsigned, int);
    void (*stale)(unsigned long long, unsigned);
} fake;

static void fill(uint8_t *at, size_t bytes)
{
    uint32_t x = 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525 + 1013904223;
        at[i] = (uint8_t)(x >> 24);
    }
}

static void test_the_kernel_is_crc32c(void **state)
{
    static uint8_t bytes[GPU_CRC_PIECE + 16];
    fill(bytes, sizeof(bytes));
    for (unsigned n = 1; n <= GPU_CRC_PIECE; n += n < 1100 || n > GPU_CRC_PIECE - 300 ? 1 : 251) {
        const uint8_t *at = bytes + n % 16;
        const struct gpu_crc_piece pieces[] = {{0}, {(uintptr_t)at, n}};
        unsigned crcs[] = {7, 7};
        gpu_crc_block(1, pieces, crcs);
        assert_int_equal(crcs[0], 7);
        if (crcs[1] != crc32c(0, at, n))
            fail_msg("%u bytes: %08x, not %08x", n, crcs[1], crc32c(0, at, n));
    }
}

struct fixture {
    struct gpu *gpu;
    struct gpu_buffer *buffer;
    uint8_t *host;
};

static int setup(void **state)
{
    static struct fixture x;
    x.host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(x.host, BYTES);
    assert_int_equal(gpu_open(0, &x.gpu, &err), 0);
    assert_int_equal(gpu_buffer_new(x.gpu, x.host, BYTES, true, &x.buffer, &err), 0);
    *state = &x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    struct fakecuda_stat s;
    gpu_buffer_free(x->buffer);
    gpu_unref(x->gpu);
    munmap(x->host, BYTES);
    fake.refuse("", 0, 0);
    fake.stat(&s);
    assert_true(s.pinned == 0 && s.allocated == 0 && s.modules == 0 && s.wrong == 0 && s.depth == 0);
    return 0;
}

static int finish(struct fixture *x)
{
    int rc;
    assert_int_equal(gpu_buffer_mark(x->buffer, &err), 0);
    test_wait_until((rc = gpu_buffer_busy(x->buffer, &err)) <= 0);
    return rc;
}

static const struct {
    uint64_t offset, bytes;
} ranges[] = {{0, 1}, {5, 4091}, {8192, GPU_CRC_PIECE}, {100000, 3 * GPU_CRC_PIECE + 17}, {BYTES - 3, 3}};

static unsigned wrong_ranges(struct fixture *x)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < ARRAY_LEN(ranges); i++)
        wrong += gpu_buffer_checked(x->buffer, ranges[i].bytes) !=
                 crc32c(0, x->host + ranges[i].offset, ranges[i].bytes);
    return wrong;
}

static void test_ranges(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(gpu_buffer_checks(x->buffer, ARRAY_LEN(ranges), &err), 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        x->host[0] = (uint8_t)turn; /* the list is used again */
        assert_int_equal(gpu_buffer_copy(x->buffer, 0, BYTES, &err), 0);
        gpu_buffer_check_none(x->buffer);
        for (unsigned i = 0; i < ARRAY_LEN(ranges); i++)
            gpu_buffer_check(x->buffer, ranges[i].offset, ranges[i].bytes);
        assert_int_equal(gpu_buffer_check_run(x->buffer, &err), 0);
        assert_int_equal(finish(x), 0);
        assert_int_equal(wrong_ranges(x), 0);
    }
    gpu_buffer_check_none(x->buffer);
    assert_int_equal(gpu_buffer_check_run(x->buffer, &err), 0);
}

/* A byte that the first launch does not see yet is seen by the second. */
static void test_looked_at_again(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(gpu_buffer_checks(x->buffer, ARRAY_LEN(ranges), &err), 0);
    assert_int_equal(gpu_buffer_copy(x->buffer, 0, BYTES, &err), 0);
    for (unsigned i = 0; i < ARRAY_LEN(ranges); i++)
        gpu_buffer_check(x->buffer, ranges[i].offset, ranges[i].bytes);
    fake.stale((uintptr_t)gpu_buffer_device(x->buffer) + 200000, 1);
    for (unsigned turn = 0; turn < 2; turn++) {
        assert_int_equal(gpu_buffer_check_run(x->buffer, &err), 0);
        assert_int_equal(finish(x), 0);
        assert_int_equal(wrong_ranges(x), turn == 0);
    }
}

static void test_what_a_nic_wrote_is_flushed_first(void **state)
{
    struct fixture *x = *state;
    struct fakecuda_stat before, after;
    assert_int_equal(gpu_buffer_checks(x->buffer, 1, &err), 0);
    gpu_buffer_check(x->buffer, 0, 10);
    fake.stat(&before);
    assert_int_equal(gpu_buffer_check_run(x->buffer, &err), 0);
    fake.stat(&after);
    assert_int_equal(after.flushes, before.flushes); /* no NIC was said to write */
    assert_int_equal(gpu_buffer_for_nic(x->buffer, &err), 0);
    assert_int_equal(gpu_buffer_check_run(x->buffer, &err), 0);
    assert_int_equal(finish(x), 0);
    fake.stat(&after);
    assert_int_equal(after.flushes, before.flushes + 1);
}

static void test_refused(void **state)
{
    static const char *const calls[] = {
        "cuModuleLoadData",     "cuModuleGetFunction",       "cuMemHostRegister_v2", "cuMemAlloc_v2",
        "cuDeviceGetAttribute", "cuPointerSetAttribute",     "cuMemcpyHtoDAsync_v2", "cuLaunchKernel",
        "cuMemcpyDtoHAsync_v2", "cuFlushGPUDirectRDMAWrites"};
    for (unsigned i = 0; i < ARRAY_LEN(calls); i++) {
        struct fixture *x = *state;
        err = (struct leat_error){0};
        fake.refuse(calls[i], 1, i == 3 ? 2 : 222);
        int rc = gpu_buffer_checks(x->buffer, 1, &err);
        rc = rc ? rc : gpu_buffer_for_nic(x->buffer, &err);
        if (!rc)
            gpu_buffer_check(x->buffer, 0, 10);
        rc = rc ? rc : gpu_buffer_check_run(x->buffer, &err);
        assert_int_equal(err.code, rc);
        assert_int_equal(finish(x), 0); /* what of it was begun */
        assert_int_equal(rc, i == 3 ? -ENOMEM : i < 2 || i == 4 ? LEAT_UNSUPPORTED : -EIO);
        if (!strstr(err.message, calls[i]))
            fail_msg("%s: %s", calls[i], err.message);
        teardown(state);
        setup(state);
    }
}

static void test_room_is_given_back(void **state)
{
    struct fixture *x = *state;
    struct fakecuda_stat before, with, after;
    fake.stat(&before);
    gpu_buffer_no_checks(x->buffer);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(gpu_buffer_checks(x->buffer, 100, &err), 0);
        fake.stat(&with);
        assert_int_equal(with.allocated, before.allocated + 1);
        assert_int_equal(with.pinned, before.pinned + 1);
        gpu_buffer_no_checks(x->buffer);
        fake.stat(&after);
        assert_int_equal(after.allocated_bytes, before.allocated_bytes);
        assert_int_equal(after.pinned_bytes, before.pinned_bytes);
    }
}

static void test_no_gpudirect(void **state)
{
    struct fixture *x = *state;
    setenv("FAKECUDA_NIC", "no", 1);
    assert_int_equal(gpu_buffer_for_nic(x->buffer, &err), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "does not support GPUDirect RDMA"));
    unsetenv("FAKECUDA_NIC");
}

int main(void)
{
    setenv("LEAT_LIBCUDA", FAKECUDA, 1);
    void *lib = dlopen(FAKECUDA, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return 1;
    fake.stat = (void (*)(struct fakecuda_stat *))dlsym(lib, "fakecuda_stat");
    fake.refuse = (void (*)(const char *, unsigned, int))dlsym(lib, "fakecuda_fail");
    fake.stale = (void (*)(unsigned long long, unsigned))dlsym(lib, "fakecuda_stale");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_kernel_is_crc32c),
        cmocka_unit_test_setup_teardown(test_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_looked_at_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_a_nic_wrote_is_flushed_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_room_is_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_gpudirect, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
