/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h: between gpu.c (devices, copies) and check.c (checksums on the device). */
#ifndef GPU_INTERNAL_H
#define GPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu/crc_kernel.h"
#include "gpu/gpu.h"
#include "gpu/load.h"

struct gpu {
    _Atomic unsigned refs;
    const struct cuda_symbols *cuda;
    int ordinal;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    pthread_mutex_t lock; /* of the next two */
    CUmodule module;      /* NULL: no checksums were wanted yet */
    CUfunction crc32c;
    bool flushes; /* a NIC's writes must be flushed before kernels read them */
};

/* Pieces that are to be checksummed, and then their checksums: pinned, and the same on the device. */
struct gpu_checks {
    void *host;
    CUdeviceptr device; /* 0: none */
    uint64_t bytes;     /* of each */
    bool pinned;
    uint32_t most, n;
    uint32_t at; /* read up to */
};

struct gpu_buffer {
    struct gpu *gpu;
    void *host; /* pinned */
    uint64_t bytes;
    CUdeviceptr device; /* 0: none */
    CUevent copied, used;
    struct gpu_checks checks;
    bool unmarked; /* copies are under way behind which no event could be put */
    CUstream stream;
    bool unrecorded;  /* used on `stream`, which has not taken the event yet */
    CUresult refused; /* the stream's last refusal; 0 while it is captured */
};

int gpu_failed(const struct gpu *gpu, const char *call, CUresult result, struct leat_error *err);
/* The call's rc, with the driver's words. */
#define GPU_CALL(gpu, err, name, ...)                                                                        \
    ({                                                                                                       \
        CUresult call_result = (gpu)->cuda->name(__VA_ARGS__);                                               \
        call_result ? gpu_failed(gpu, #name, call_result, err) : 0;                                          \
    })
/* Its context is the thread's current one from a successful gpu_enter to gpu_leave, and calls in between end
 * no capture of a CUDA graph. Otherwise every query would, in any thread, as long as a stream is captured in
 * the "global" mode. */
int gpu_enter(const struct gpu *gpu, struct leat_error *err);
void gpu_leave(const struct gpu *gpu);
/* In its context. */
int gpu_pin(const struct gpu *gpu, void *host, uint64_t bytes, struct leat_error *err);
/* In its context. Harmless on what is zeroed. */
void gpu_checks_free(const struct gpu *gpu, struct gpu_checks *checks);

#endif
