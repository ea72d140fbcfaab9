/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h: buffers that a CUDA device copies from, and memory of the device that they are copied to.
 *
 * A buffer is pinned host memory of the caller's and, where wanted, as much memory of the device. gpu_buffer_copy puts copies on
 * the library's own stream, gpu_buffer_mark an event behind them; gpu_buffer_busy asks. The caller's thread has its own CUDA
 * context current before and after each call. All of it may be called from any thread; one buffer is filled by one at a time.
 */
#ifndef GPU_GPU_H
#define GPU_GPU_H

#include "base/base.h"

struct gpu;
struct gpu_buffer;

/*
 * The device's primary context, which PyTorch and the CUDA runtime use as well, and a stream of its own. LEAT_UNSUPPORTED: no driver
 * library (which, and what was wrong), or no device; LEAT_INVALID: no device of this ordinal.
 */
int gpu_open(int ordinal, struct gpu **ret_gpu, struct leat_error *err);
struct gpu *gpu_ref(struct gpu *gpu);
void gpu_unref(struct gpu *gpu); /* NULL is fine */

/* Pins [host, +bytes), whole pages, which must stay mapped until gpu_buffer_free; `device`: allocates as much there. -ENOMEM. */
int gpu_buffer_new(struct gpu *gpu, void *host, uint64_t bytes, bool device, struct gpu_buffer **ret_buffer,
                   struct leat_error *err);
/* Nothing may be copied or used any more (gpu_buffer_busy, gpu_buffer_used). Keeps the gpu as long as it needs. NULL is fine. */
void gpu_buffer_free(struct gpu_buffer *buffer);
/* Address in the device's memory; NULL without one. Not for the CPU. */
void *gpu_buffer_device(const struct gpu_buffer *buffer);

/* [offset, +bytes) to the same place in the device's memory, later. -EIO: the driver refused. */
int gpu_buffer_copy(struct gpu_buffer *buffer, uint64_t offset, uint64_t bytes, struct leat_error *err);
/* After the copies, also when one of them failed: gpu_buffer_busy refers to it. */
int gpu_buffer_mark(struct gpu_buffer *buffer, struct leat_error *err);
/* 1: not yet copied. 0: copied. -EIO: the copy failed, or the device is lost: nothing will land any more. */
int gpu_buffer_busy(struct gpu_buffer *buffer, struct leat_error *err);
/* What is put on `stream` (a CUstream) from now on waits for the copy. Returns at once. */
int gpu_buffer_wait_on(struct gpu_buffer *buffer, void *stream, struct leat_error *err);
/* What is on `stream` by now uses the buffer: gpu_buffer_used returns whether that has finished (or the
 * device is lost). -EIO: the stream takes no event, so its progress is unknown; gpu_buffer_used tries again
 * until it does. The same, and 0, while the stream is captured. */
int gpu_buffer_use(struct gpu_buffer *buffer, void *stream, struct leat_error *err);
int gpu_buffer_used(void *buffer); /* as leat_event.finished */
/* -EIO: the stream has refused the event, each time so far. 0: not so. */
int gpu_buffer_refused(const struct gpu_buffer *buffer, struct leat_error *err);

/*
 * CRC32C of ranges of the device's memory, computed there, behind the copies that were put on the stream before.
 *
 *   gpu_buffer_checks, once ─▶ [ check … check ─ check_run ─ mark ─▶ busy? ─▶ checked … checked ] …
 *
 * check_run may come again, with mark and busy: the same ranges, looked at once more. gpu_buffer_check_none forgets them.
 */
/* Makes room for `most` ranges that do not overlap. LEAT_UNSUPPORTED: the driver does not take the kernel. -ENOMEM. */
int gpu_buffer_checks(struct gpu_buffer *buffer, uint64_t most, struct leat_error *err);
/* Gives that room back. Harmless without. */
void gpu_buffer_no_checks(struct gpu_buffer *buffer);
void gpu_buffer_check_none(struct gpu_buffer *buffer);
void gpu_buffer_check(struct gpu_buffer *buffer, uint64_t offset, uint64_t bytes);
int gpu_buffer_check_run(struct gpu_buffer *buffer, struct leat_error *err);
/* Of the first range, then of the next, each with its bytes. */
uint32_t gpu_buffer_checked(struct gpu_buffer *buffer, uint64_t bytes);
/* Makes a buffer's memory writable for a NIC, and its writes visible to the kernel's run. LEAT_UNSUPPORTED,
 * with the reason. */
int gpu_buffer_for_nic(struct gpu_buffer *buffer, struct leat_error *err);
/* Nothing moves on the device any more: it fell off the bus, or a kernel left its context broken. */
bool gpu_buffer_lost(struct gpu_buffer *buffer);

#endif
