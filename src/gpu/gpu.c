/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c: one CUDA device as the copier of batches.
 *
 *   gpu_open ─ gpu_buffer_new ─▶ [ copy … copy, mark ─▶ busy? ─▶ handed out ─ use(stream) ─▶ used? ] ─▶ gpu_buffer_free
 *
 * Failure modes: each call of the driver may fail. After some errors all of them do, for good: an illegal
 * address in a kernel of the program, an ECC error, a GPU that fell off the bus. The result is -EIO with the
 * call and the driver's own words; what waits then is over, for nothing moves on that device any more. Where
 * an event could not be put behind copies that are already under way, the whole stream is asked instead. A
 * consumer's stream that takes no event is given it later: until then its buffer is in use.
 * Invariants: the thread's current context and capture mode are what they were when a call returns; the
 * copies of a gpu are in order, on one stream that waits for no other; no event of ours becomes part of a
 * graph that the program captures.
 */
#include "gpu/internal.h"

#include <sys/mman.h>
#include <sys/resource.h>

int gpu_failed(const struct gpu *gpu, const char *call, CUresult result, struct leat_error *err)
{
    const char *name = NULL, *text = NULL;
    gpu->cuda->cuGetErrorName(result, &name);
    gpu->cuda->cuGetErrorString(result, &text);
    int rc = result == CUDA_ERROR_OUT_OF_MEMORY    ? -ENOMEM
             : result == CUDA_ERROR_NO_DEVICE      ? LEAT_UNSUPPORTED
             : result == CUDA_ERROR_INVALID_DEVICE ? LEAT_INVALID
                                                   : -EIO;
    return error_set(
        err, rc, "CUDA device %d: %s said %s (%d): %s%s", gpu->ordinal, call,
        name ? name : "an unknown error", result, text ? text : "no text",
        result == CUDA_ERROR_NOT_INITIALIZED
            ? "; CUDA does not work in a child of fork() of a process that used it: use spawn or forkserver"
            : "");
}

static _Thread_local int mode_outside; /* the thread's capture mode; -1: as it was */

static CUresult enter(const struct gpu *gpu)
{
    CUresult result = gpu->cuda->cuCtxPushCurrent_v2(gpu->context);
    if (result)
        return result;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    mode_outside = gpu->cuda->cuThreadExchangeStreamCaptureMode(&mode) ? -1 : mode;
    return CUDA_SUCCESS;
}

int gpu_enter(const struct gpu *gpu, struct leat_error *err)
{
    CUresult result = enter(gpu);
    return result ? gpu_failed(gpu, "cuCtxPushCurrent_v2", result, err) : 0;
}

void gpu_leave(const struct gpu *gpu)
{
    CUcontext popped;
    int mode = mode_outside;
    if (mode >= 0)
        gpu->cuda->cuThreadExchangeStreamCaptureMode(&mode);
    gpu->cuda->cuCtxPopCurrent_v2(&popped);
}

/* --- the device ------------------------------------------------------------------------------------------------------ */

static int find_device(struct gpu *gpu, struct leat_error *err)
{
    int count = 0;
    int rc = GPU_CALL(gpu, err, cuInit, 0);
    rc = rc ? rc : GPU_CALL(gpu, err, cuDeviceGetCount, &count);
    if (!rc && count == 0)
        return error_set(err, LEAT_UNSUPPORTED,
                         "the driver knows no CUDA device here (CUDA_VISIBLE_DEVICES hides some)");
    if (!rc && gpu->ordinal >= count)
        return error_set(err, LEAT_INVALID, "CUDA device %d: there are %d, numbered from 0", gpu->ordinal,
                         count);
    return rc ? rc : GPU_CALL(gpu, err, cuDeviceGet, &gpu->device, gpu->ordinal);
}

int gpu_open(int ordinal, struct gpu **ret_gpu, struct leat_error *err)
{
    const struct cuda_symbols *cuda;
    int rc = cuda_load(&cuda, err);
    if (rc)
        return rc;
    struct gpu *gpu = calloc(1, sizeof(*gpu));
    if (!gpu)
        return error_set(err, -ENOMEM, "out of memory");
    *gpu = (struct gpu){.refs = 1, .cuda = cuda, .ordinal = ordinal};
    pthread_mutex_init(&gpu->lock, NULL);
    rc = find_device(gpu, err);
    rc = rc ? rc : GPU_CALL(gpu, err, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
    rc = rc ? rc : gpu_enter(gpu, err);
    if (!rc) {
        rc = GPU_CALL(gpu, err, cuStreamCreate, &gpu->stream, CU_STREAM_NON_BLOCKING);
        gpu_leave(gpu);
    }
    if (rc) {
        gpu_unref(gpu);
        return rc;
    }
    *ret_gpu = gpu;
    return 0;
}

struct gpu *gpu_ref(struct gpu *gpu)
{
    atomic_fetch_add(&gpu->refs, 1);
    return gpu;
}

void gpu_unref(struct gpu *gpu)
{
    if (!gpu || atomic_fetch_sub(&gpu->refs, 1) != 1)
        return;
    if (gpu->stream && gpu_enter(gpu, NULL) == 0) {
        if (gpu->module)
            gpu->cuda->cuModuleUnload(gpu->module);
        gpu->cuda->cuStreamDestroy_v2(gpu->stream);
        gpu_leave(gpu);
    }
    if (gpu->context)
        gpu->cuda->cuDevicePrimaryCtxRelease_v2(gpu->device);
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}

/* --- buffers --------------------------------------------------------------------------------------------------------- */

int gpu_pin(const struct gpu *gpu, void *host, uint64_t bytes, struct leat_error *err)
{
    struct leat_error why = {0};
    int rc = GPU_CALL(gpu, &why, cuMemHostRegister_v2, host, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (!rc)
        return 0;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        return error_set(err, rc, "cannot pin %llu bytes: %s", (unsigned long long)bytes, why.message);
    return error_set(err, rc, "cannot pin %llu bytes (RLIMIT_MEMLOCK, ulimit -l, is %llu): %s",
                     (unsigned long long)bytes, (unsigned long long)limit.rlim_cur, why.message);
}

int gpu_buffer_new(struct gpu *gpu, void *host, uint64_t bytes, bool device, struct gpu_buffer **ret_buffer,
                   struct leat_error *err)
{
    struct gpu_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(err, -ENOMEM, "out of memory");
    b->gpu = gpu_ref(gpu);
    b->bytes = bytes;
    int rc = gpu_enter(gpu, err);
    if (!rc) {
        rc = gpu_pin(gpu, host, bytes, err);
        b->host = rc ? NULL : host;
        rc = rc ? rc : GPU_CALL(gpu, err, cuEventCreate, &b->used, CU_EVENT_DISABLE_TIMING);
        if (!rc && device)
            rc = GPU_CALL(gpu, err, cuEventCreate, &b->copied, CU_EVENT_DISABLE_TIMING);
        if (!rc && device && (rc = GPU_CALL(gpu, err, cuMemAlloc_v2, &b->device, bytes)))
            error_prefix(err, rc, "no %llu bytes for a batch", (unsigned long long)bytes);
        gpu_leave(gpu);
    }
    if (rc) {
        gpu_buffer_free(b);
        return rc;
    }
    *ret_buffer = b;
    return 0;
}

void gpu_checks_free(const struct gpu *gpu, struct gpu_checks *c)
{
    if (c->device)
        gpu->cuda->cuMemFree_v2(c->device);
    if (c->pinned)
        gpu->cuda->cuMemHostUnregister(c->host);
    c->device = 0;
    c->pinned = false;
}

void gpu_buffer_free(struct gpu_buffer *b)
{
    if (!b)
        return;
    const struct cuda_symbols *cuda = b->gpu->cuda;
    if (gpu_enter(b->gpu, NULL) == 0) {
        gpu_checks_free(b->gpu, &b->checks);
        if (b->device)
            cuda->cuMemFree_v2(b->device);
        if (b->copied)
            cuda->cuEventDestroy_v2(b->copied);
        if (b->used)
            cuda->cuEventDestroy_v2(b->used);
        if (b->host)
            cuda->cuMemHostUnregister(b->host);
        gpu_leave(b->gpu);
    }
    if (b->checks.host)
        munmap(b->checks.host, b->checks.bytes);
    gpu_unref(b->gpu);
    free(b);
}

void *gpu_buffer_device(const struct gpu_buffer *b)
{
    return (void *)(uintptr_t)b->device;
}

int gpu_buffer_copy(struct gpu_buffer *b, uint64_t offset, uint64_t bytes, struct leat_error *err)
{
    assert(b->device && offset <= b->bytes && bytes <= b->bytes - offset);
    int rc = gpu_enter(b->gpu, err);
    if (rc)
        return rc;
    rc = GPU_CALL(b->gpu, err, cuMemcpyHtoDAsync_v2, b->device + offset, (const uint8_t *)b->host + offset,
                  bytes, b->gpu->stream);
    gpu_leave(b->gpu);
    return rc;
}

int gpu_buffer_mark(struct gpu_buffer *b, struct leat_error *err)
{
    int rc = gpu_enter(b->gpu, err);
    if (!rc) {
        rc = GPU_CALL(b->gpu, err, cuEventRecord, b->copied, b->gpu->stream);
        gpu_leave(b->gpu);
    }
    b->unmarked = rc != 0;
    return rc;
}

/* The progress of `event`, or without one of the whole stream. Only an error that comes twice counts: memory
 * may be freed on it. */
static CUresult ask(const struct gpu_buffer *b, CUevent event)
{
    const struct cuda_symbols *cuda = b->gpu->cuda;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 2; i++) {
        result = enter(b->gpu);
        if (result)
            continue;
        result = event ? cuda->cuEventQuery(event) : cuda->cuStreamQuery(b->gpu->stream);
        gpu_leave(b->gpu);
        if (!result || result == CUDA_ERROR_NOT_READY)
            break;
    }
    return result;
}

int gpu_buffer_busy(struct gpu_buffer *b, struct leat_error *err)
{
    CUresult result = ask(b, b->unmarked ? NULL : b->copied);
    return result == CUDA_ERROR_NOT_READY ? 1
           : result                       ? gpu_failed(b->gpu, "copying a batch", result, err)
                                          : 0;
}

int gpu_buffer_wait_on(struct gpu_buffer *b, void *stream, struct leat_error *err)
{
    int rc = gpu_enter(b->gpu, err);
    if (rc)
        return rc;
    rc = GPU_CALL(b->gpu, err, cuStreamWaitEvent, stream, b->copied, 0);
    gpu_leave(b->gpu);
    return rc;
}

/* A stream that is captured takes no event now: the event would be part of the graph, and must not be
 * queried. The check is repeated behind the event: a capture may have begun in between. */
static void record_use(struct gpu_buffer *b)
{
    const struct cuda_symbols *cuda = b->gpu->cuda;
    int capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = enter(b->gpu);
    if (!result) {
        result = cuda->cuStreamIsCapturing(b->stream, &capture);
        if (!result && capture == CU_STREAM_CAPTURE_STATUS_NONE) {
            result = cuda->cuEventRecord(b->used, b->stream);
            if (!result)
                result = cuda->cuStreamIsCapturing(b->stream, &capture);
            b->unrecorded = result || capture != CU_STREAM_CAPTURE_STATUS_NONE;
        }
        gpu_leave(b->gpu);
    }
    b->refused = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? CUDA_SUCCESS : result;
}

int gpu_buffer_use(struct gpu_buffer *b, void *stream, struct leat_error *err)
{
    b->stream = stream;
    b->unrecorded = true;
    record_use(b);
    return gpu_buffer_refused(b, err);
}

int gpu_buffer_refused(const struct gpu_buffer *b, struct leat_error *err)
{
    return b->unrecorded && b->refused
               ? gpu_failed(b->gpu, "putting an event on the stream of a batch", b->refused, err)
               : 0;
}

int gpu_buffer_used(void *buffer)
{
    struct gpu_buffer *b = buffer;
    if (b->unrecorded)
        record_use(b);
    if (!b->unrecorded) {
        CUresult result = ask(b, b->used);
        /* A capture that had ended when we asked for its state took the event. */
        b->unrecorded = result == CUDA_ERROR_CAPTURED_EVENT;
        return result != CUDA_ERROR_NOT_READY && !b->unrecorded;
    }
    b->unrecorded = !b->refused || !gpu_buffer_lost(b);
    return !b->unrecorded;
}

bool gpu_buffer_lost(struct gpu_buffer *b)
{
    CUresult result = ask(b, NULL);
    return result && result != CUDA_ERROR_NOT_READY;
}
