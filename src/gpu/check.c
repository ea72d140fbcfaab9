/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c: checksums of a device's memory, computed there: for bytes that never were in the host's.
 *
 *   ranges ─ cut into pieces of GPU_CRC_PIECE ─▶ list, pinned ─ copy ─▶ device ─ crc_kernel, a block a piece ─▶ CRCs ─ copy ─▶ pinned
 *          ◀─ those of a range combined in order
 *
 * All of it on the library's stream, behind the copies to the buffer. A stream does not order a NIC's writes:
 * the CPU saw their completion before the launch, which most devices require; devices that do not order such
 * writes by themselves get cuFlushGPUDirectRDMAWrites. A write that is still missed makes a checksum differ.
 *
 * Failure modes: a driver that refuses the kernel, or a device that other devices cannot write to: LEAT_UNSUPPORTED, before
 * anything depends on it. As for copies otherwise (gpu.c).
 */
#include "gpu/internal.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"

/* made at build of crc_kernel.ptx: tools/embed. With a NUL */
extern const unsigned char gpu_crc_kernel_ptx[];

/* In its context. */
static int load_kernel(struct gpu *gpu, struct leat_error *err)
{
    struct leat_error why = {0};
    int rc = 0;
    pthread_mutex_lock(&gpu->lock);
    if (!gpu->module) {
        rc = GPU_CALL(gpu, &why, cuModuleLoadData, &gpu->module, gpu_crc_kernel_ptx);
        if (!rc && (rc = GPU_CALL(gpu, &why, cuModuleGetFunction, &gpu->crc32c, gpu->module, GPU_CRC_KERNEL)))
            gpu->cuda->cuModuleUnload(TAKE_PTR(gpu->module));
    }
    pthread_mutex_unlock(&gpu->lock);
    return rc ? error_set(err, rc == -ENOMEM ? rc : LEAT_UNSUPPORTED, "no checksums on the device: %s",
                          why.message)
              : 0;
}

/* Its pages are shared with a child of fork(): the device's stay ours. */
static int new_list(struct gpu_buffer *b, uint64_t most, struct leat_error *err)
{
    struct gpu_checks *c = &b->checks;
    const uint64_t each = sizeof(struct gpu_crc_piece) + sizeof(unsigned);
    if (most > UINT32_MAX / 2)
        return error_set(err, LEAT_INVALID, "%llu ranges are too many to check on a device",
                         (unsigned long long)most);
    uint64_t bytes = align_up(most * each, (uint64_t)sysconf(_SC_PAGESIZE));
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return error_set(err, -ENOMEM, "out of memory for a list of %llu ranges", (unsigned long long)most);
    *c = (struct gpu_checks){.host = at, .bytes = bytes, .most = (uint32_t)most};
    int rc = gpu_pin(b->gpu, at, bytes, err);
    c->pinned = !rc;
    return rc ? rc : GPU_CALL(b->gpu, err, cuMemAlloc_v2, &c->device, bytes);
}

int gpu_buffer_checks(struct gpu_buffer *b, uint64_t most, struct leat_error *err)
{
    assert(b->device && !b->checks.host);
    int rc = gpu_enter(b->gpu, err);
    if (rc)
        return rc;
    rc = load_kernel(b->gpu, err);
    rc = rc ? rc : new_list(b, most + b->bytes / GPU_CRC_PIECE, err);
    gpu_leave(b->gpu);
    return rc;
}

void gpu_buffer_no_checks(struct gpu_buffer *b)
{
    if (gpu_enter(b->gpu, NULL))
        return; /* gpu_buffer_free tries again */
    gpu_checks_free(b->gpu, &b->checks);
    gpu_leave(b->gpu);
    if (b->checks.host)
        munmap(b->checks.host, b->checks.bytes);
    b->checks = (struct gpu_checks){0};
}

void gpu_buffer_check_none(struct gpu_buffer *b)
{
    b->checks.n = b->checks.at = 0;
}

static uint64_t next_piece(uint64_t left)
{
    return MIN(left, (uint64_t)GPU_CRC_PIECE);
}

void gpu_buffer_check(struct gpu_buffer *b, uint64_t offset, uint64_t bytes)
{
    struct gpu_checks *c = &b->checks;
    struct gpu_crc_piece *pieces = c->host;
    assert(offset <= b->bytes && bytes <= b->bytes - offset);
    for (uint64_t piece; bytes; bytes -= piece, offset += piece) {
        assert(c->n < c->most);
        piece = next_piece(bytes);
        pieces[c->n++] = (struct gpu_crc_piece){.at = b->device + offset, .bytes = piece};
    }
}

/* In its context. */
static int launch(struct gpu_buffer *b, struct leat_error *err)
{
    const struct gpu_checks *c = &b->checks;
    const struct gpu *gpu = b->gpu;
    const uint64_t pieces_bytes = c->n * sizeof(struct gpu_crc_piece);
    CUdeviceptr pieces = c->device, crcs = c->device + pieces_bytes;
    void *parameters[] = {&pieces, &crcs};
    int rc = !gpu->flushes ? 0
                           : GPU_CALL(gpu, err, cuFlushGPUDirectRDMAWrites,
                                      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    rc = rc ? rc : GPU_CALL(gpu, err, cuMemcpyHtoDAsync_v2, pieces, c->host, pieces_bytes, gpu->stream);
    rc = rc ? rc
            : GPU_CALL(gpu, err, cuLaunchKernel, gpu->crc32c, c->n, 1, 1, GPU_CRC_THREADS, 1, 1, 0,
                       gpu->stream, parameters, NULL);
    return rc ? rc
              : GPU_CALL(gpu, err, cuMemcpyDtoHAsync_v2, (uint8_t *)c->host + pieces_bytes, crcs,
                         c->n * sizeof(unsigned), gpu->stream);
}

int gpu_buffer_check_run(struct gpu_buffer *b, struct leat_error *err)
{
    b->checks.at = 0;
    if (!b->checks.n)
        return 0;
    int rc = gpu_enter(b->gpu, err);
    if (rc)
        return rc;
    rc = launch(b, err);
    gpu_leave(b->gpu);
    return rc;
}

uint32_t gpu_buffer_checked(struct gpu_buffer *b, uint64_t bytes)
{
    struct gpu_checks *c = &b->checks;
    const unsigned *crcs = (const unsigned *)((const struct gpu_crc_piece *)c->host + c->n);
    uint32_t crc = 0;
    for (uint64_t left = bytes, piece; left; left -= piece) {
        assert(c->at < c->n);
        piece = next_piece(left);
        crc = left == bytes ? crcs[c->at] : crc32c_combine(crc, crcs[c->at], piece);
        c->at++;
    }
    return crc;
}

/* In its context. */
static int orders_writes(struct gpu *gpu, struct leat_error *err)
{
    int supported = 0, ordering = 0, options = 0;
    struct leat_error why = {0};
    int rc = GPU_CALL(gpu, &why, cuDeviceGetAttribute, &supported,
                      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, gpu->device);
    rc = rc ? rc
            : GPU_CALL(gpu, &why, cuDeviceGetAttribute, &ordering,
                       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, gpu->device);
    rc = rc ? rc
            : GPU_CALL(gpu, &why, cuDeviceGetAttribute, &options,
                       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, gpu->device);
    if (rc)
        return error_set(err, LEAT_UNSUPPORTED, "no GPUDirect RDMA, for which CUDA 11.3 is needed: %s",
                         why.message);
    if (!supported)
        return error_set(err, LEAT_UNSUPPORTED,
                         "CUDA device %d: the driver does not support GPUDirect RDMA with it", gpu->ordinal);
    gpu->flushes = ordering < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    if (gpu->flushes && !(gpu->cuda->cuFlushGPUDirectRDMAWrites && (options & 1)))
        return error_set(err, LEAT_UNSUPPORTED,
                         "CUDA device %d: no event shows when it sees what a NIC wrote into its memory",
                         gpu->ordinal);
    return 0;
}

int gpu_buffer_for_nic(struct gpu_buffer *b, struct leat_error *err)
{
    const unsigned yes = 1;
    int rc = gpu_enter(b->gpu, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&b->gpu->lock);
    rc = orders_writes(b->gpu, err);
    pthread_mutex_unlock(&b->gpu->lock);
    rc = rc ? rc
            : GPU_CALL(b->gpu, err, cuPointerSetAttribute, &yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b->device);
    gpu_leave(b->gpu);
    return rc;
}
