/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a real GPU has of a batch: skipped where there is none. Slots in turn under load, on a stream of our own: each is poisoned
 * when it was read, and what comes back from the device is compared with the source. $LEAT_LIBCUDA may name tests/fakecuda, which
 * shows that this test is right, not that a GPU is.
 */
#include "client/test_fixture.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/testing.h"
#include "gpu/cuda.h"
#include "gpu/load.h"

#define BATCHES 2000u
#define BATCH   64u

static struct leat_error err;

static void test_load(void **state)
{
    const struct cuda_symbols *cuda;
    CUcontext context;
    CUstream stream;
    CUdevice device;
    int count = 0;
    if (cuda_load(&cuda, &err) || cuda->cuInit(0) || cuda->cuDeviceGetCount(&count) || count == 0) {
        print_message("no GPU here: %s\n", err.message[0] ? err.message : "no device");
        skip();
    }
    const char *name = secure_getenv("LEAT_LIBCUDA");
    void *lib = dlopen(name ? name : "libcuda.so.1", RTLD_NOW);
    CUresult (*copy_back)(void *, CUdeviceptr, size_t, CUstream) =
        (__typeof__(copy_back))dlsym(lib, "cuMemcpyDtoHAsync_v2");
    CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream) =
        (__typeof__(fill))dlsym(lib, "cuMemsetD8Async");
    assert_int_equal(cuda->cuDeviceGet(&device, 0), 0);
    assert_int_equal(cuda->cuDevicePrimaryCtxRetain(&context, device), 0);
    assert_int_equal(cuda->cuCtxPushCurrent_v2(context), 0);
    assert_int_equal(cuda->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);

    struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    uint8_t(*seen)[BATCH][60] = calloc(BATCHES, sizeof(*seen));
    uint64_t ids[BATCH];
    for (unsigned async = 0; async < 2; async++) {
        struct leat_view *view;
        struct leat_view_options o = {.size = sizeof(o),
                                      .batch_size = BATCH,
                                      .slots = 3,
                                      .memory = LEAT_MEMORY_CUDA,
                                      .flags = async ? LEAT_LOAD_ASYNC : 0};
        int rc = leat_load(x.ws, &o, &view, &err);
        if (rc)
            print_message("load: %s\n", err.message);
        assert_int_equal(rc, 0);
        uint64_t begun_ns = clock_now_ns();
        for (unsigned b = 0; b < BATCHES; b++) {
            struct leat_batch *batch;
            uint64_t bytes;
            for (unsigned i = 0; i < BATCH; i++)
                ids[i] = (b + 7 * i) % FAKE_SAMPLES;
            assert_int_equal(leat_read_batch(view, ids, BATCH, 0, &batch, &err), 0);
            CUdeviceptr at = (uintptr_t)leat_batch_data(batch, 0, &bytes);
            assert_int_equal(bytes, sizeof(seen[b]));
            if (async)
                assert_int_equal(leat_batch_wait_on_stream(batch, stream, &err), 0);
            assert_int_equal(copy_back(seen[b], at, bytes, stream), 0);
            assert_int_equal(fill(at, 0xA5, bytes, stream), 0);
            assert_int_equal(leat_batch_release_on_stream(batch, stream, &err), 0);
        }
        test_wait_until(cuda->cuStreamQuery(stream) != CUDA_ERROR_NOT_READY);
        print_message("%s: %.1f us a batch of %u\n", async ? "async" : "complete",
                      (double)(clock_now_ns() - begun_ns) / 1e3 / BATCHES, BATCH);
        for (unsigned b = 0; b < BATCHES; b++)
            for (unsigned i = 0; i < BATCH; i++)
                assert_true(fake_matches((b + 7 * i) % FAKE_SAMPLES, 0, seen[b][i], 60));
        memset(seen, 0, BATCHES * sizeof(*seen));
        leat_view_close(view);
    }
    free(seen);
    fixture_close(&x);
    cuda->cuStreamDestroy_v2(stream);
    cuda->cuCtxPopCurrent_v2(&context);
    cuda->cuDevicePrimaryCtxRelease_v2(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load)};
    return cmocka_run_group_tests_name("client_gpu_real", tests, NULL, NULL);
}
