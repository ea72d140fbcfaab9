/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h: the used part of the CUDA driver API, declared here, because its headers are not free to carry and
 * not needed to build: names with the versions that libcuda.so.1 has exported since CUDA 7.0
 * (cuDevicePrimaryCtxRelease_v2: 11.0), and values that are ABI.
 * https://docs.nvidia.com/cuda/cuda-driver-api/ (groups CUDA_DEVICE, CUDA_PRIMARY_CTX, CUDA_CTX, CUDA_MODULE,
 * CUDA_MEM, CUDA_UNIFIED, CUDA_STREAM, CUDA_EVENT, CUDA_EXEC, and "Data types used by CUDA driver" for the
 * numbers).
 */
#ifndef GPU_CUDA_H
#define GPU_CUDA_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT =
        906, /* of the legacy default stream, while a stream is captured that waits for it */
    CUDA_ERROR_CAPTURED_EVENT = 907,
};
#define CU_STREAM_NON_BLOCKING         1u /* nothing waits for the legacy default stream */
#define CU_EVENT_DISABLE_TIMING        2u
#define CU_MEMHOSTREGISTER_PORTABLE    1u /* pinned for every context */
#define CU_STREAM_CAPTURE_MODE_RELAXED 2  /* of a thread: its calls are no part of a capture, and end none */
#define CU_STREAM_CAPTURE_STATUS_NONE  0
enum { /* attributes of a device, since CUDA 11.3 */
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117, /* bit 0: cuFlushGPUDirectRDMAWrites */
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
};
#define CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER           100 /* the device sees them in order by itself */
#define CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX 0
#define CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER           100
#define CU_POINTER_ATTRIBUTE_SYNC_MEMOPS                   6

/* X(name, parameters) */
#define CUDA_SYMBOLS(X)                                                                                      \
    X(cuInit, (unsigned flags))                                                                              \
    X(cuGetErrorName, (CUresult error, const char **ret))                                                    \
    X(cuGetErrorString, (CUresult error, const char **ret))                                                  \
    X(cuDeviceGetCount, (int *ret))                                                                          \
    X(cuDeviceGet, (CUdevice * ret, int ordinal))                                                            \
    X(cuDevicePrimaryCtxRetain, (CUcontext * ret, CUdevice device))                                          \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                       \
    X(cuDeviceGetAttribute, (int *ret, int attribute, CUdevice device))                                      \
    X(cuCtxPushCurrent_v2, (CUcontext context))                                                              \
    X(cuCtxPopCurrent_v2, (CUcontext * ret))                                                                 \
    X(cuMemAlloc_v2, (CUdeviceptr * ret, size_t bytes))                                                      \
    X(cuMemFree_v2, (CUdeviceptr at))                                                                        \
    X(cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags))                                        \
    X(cuMemHostUnregister, (void *at))                                                                       \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))               \
    X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                     \
    X(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr at))                             \
    X(cuModuleLoadData, (CUmodule * ret, const void *image))                                                 \
    X(cuModuleUnload, (CUmodule module))                                                                     \
    X(cuModuleGetFunction, (CUfunction * ret, CUmodule module, const char *name))                            \
    X(cuLaunchKernel, (CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,          \
                       CUstream stream, void **parameters, void **extra))                                    \
    X(cuStreamCreate, (CUstream * ret, unsigned flags))                                                      \
    X(cuStreamDestroy_v2, (CUstream stream))                                                                 \
    X(cuStreamQuery, (CUstream stream))                                                                      \
    X(cuStreamIsCapturing, (CUstream stream, int *ret_status))                                               \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                        \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                   \
    X(cuEventCreate, (CUevent * ret, unsigned flags))                                                        \
    X(cuEventRecord, (CUevent event, CUstream stream))                                                       \
    X(cuEventQuery, (CUevent event))                                                                         \
    X(cuEventDestroy_v2, (CUevent event))

/* Of later drivers: NULL where they are not there. */
#define CUDA_LATER_SYMBOLS(X) X(cuFlushGPUDirectRDMAWrites, (int target, int scope)) /* 11.3 */

struct cuda_symbols {
#define CUDA_SYMBOL(name, parameters) CUresult(*name) parameters;
    CUDA_SYMBOLS(CUDA_SYMBOL)
    CUDA_LATER_SYMBOLS(CUDA_SYMBOL)
#undef CUDA_SYMBOL
};

#endif
