/* SPDX-License-Identifier: Apache-2.0 */
/* fakecuda.c: see fakecuda.h. One lock for everything; each stream has a queue and a thread; an event counts how often it was recorded
 * and up to which of these it has come. */
#include "fakecuda.h"

#include "gpu/crc_kernel.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
enum {
    OK = 0,
    INVALID = 1,
    NO_MEMORY = 2,
    NOT_INIT = 3,
    BAD_DEVICE = 101,
    BAD_CONTEXT = 201,
    NOT_READY = 600,
    NOT_PINNED = 713,
    LOST = 719,
    UNSUPPORTED_IN_CAPTURE = 900,
    CAPTURE_ENDED = 901,
    CAPTURED_EVENT = 907,
};
enum { GLOBAL, THREAD_LOCAL, RELAXED }; /* capture modes of a thread */

#define DEVICES 2

struct event {
    struct event *next;
    unsigned long recorded, came;
    bool captured;
};
enum kind { COPY, RECORD, WAIT, KERNEL, FILL, LAUNCH };
struct op {
    struct op *next;
    enum kind kind;
    CUdeviceptr device;
    const void *from;
    void *to;
    size_t bytes;
    const volatile int *go;
    struct event *event;
    unsigned long number; /* LAUNCH: of blocks */
    int losses; /* as many as there were when it was asked for: else it is of a device that is gone */
};
struct stream {
    struct op *first, **last;
    bool busy, ends;
    pthread_t thread;
};
struct block {
    struct block *next;
    uintptr_t at;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, lock_of_child = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct block *pinned, *allocated;
static struct event *all_events; /* never freed: an operation may still name one */
static struct stream *default_stream;
static struct fakecuda_stat stat_;
static unsigned delay_us, fail_nth;
static char fail_name[64];
static int fail_result, frozen, lost, losses;
static pid_t inited; /* by this process */
static int contexts[DEVICES];
static unsigned long long stale_at;
static unsigned stale;
static _Thread_local int stack[16], depth, capture_mode;
static void *captured;                /* a stream */
static bool capturing, capture_ended; /* the second: by a query of another thread */
static char held_name[64];
static const volatile int *held_until;

/* --- control --------------------------------------------------------------------------------------------------------- */

void fakecuda_stat(struct fakecuda_stat *ret)
{
    pthread_mutex_lock(&lock);
    *ret = stat_;
    ret->contexts = (unsigned long)(contexts[0] + contexts[1]);
    ret->depth = depth;
    pthread_mutex_unlock(&lock);
}

static void set(int *what, int value)
{
    pthread_mutex_lock(&lock);
    *what = value;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

void fakecuda_delay(unsigned us)
{
    set((int *)&delay_us, (int)us);
}

void fakecuda_freeze(int value)
{
    set(&frozen, value);
}

void fakecuda_lose(int value)
{
    set(&lost, value);
    if (value)
        set(&losses, losses + 1);
}

void fakecuda_stale(unsigned long long at, unsigned n)
{
    pthread_mutex_lock(&lock);
    stale_at = at;
    stale = n;
    pthread_mutex_unlock(&lock);
}

void fakecuda_fail(const char *name, unsigned nth, int result)
{
    pthread_mutex_lock(&lock);
    strncpy(fail_name, name, sizeof(fail_name) - 1);
    fail_nth = nth;
    fail_result = result;
    pthread_mutex_unlock(&lock);
}

void fakecuda_capture(void *stream, int on)
{
    pthread_mutex_lock(&lock);
    captured = stream;
    capturing = on;
    capture_ended = false;
    pthread_mutex_unlock(&lock);
}

void fakecuda_hold(const char *name, const volatile int *go)
{
    pthread_mutex_lock(&lock);
    strncpy(held_name, name, sizeof(held_name) - 1);
    held_until = go;
    pthread_mutex_unlock(&lock);
}

/* --- every call ------------------------------------------------------------------------------------------------------- */

/* In the global mode of capture these end it, whichever thread calls them. */
static bool ends_capture(const char *name)
{
    static const char *const names[] = {"cuEventQuery",         "cuStreamQuery",        "cuMemAlloc_v2",
                                        "cuMemFree_v2",         "cuMemHostRegister_v2", "cuMemHostUnregister",
                                        "cuPointerSetAttribute"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (capturing && capture_mode != RELAXED && strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Under lock. 10 s are for ever. */
static CUresult hold(const char *name)
{
    for (unsigned ms = 0; held_until && !*held_until && strcmp(name, held_name) == 0; ms++) {
        stat_.held += ms == 0;
        if (ms == 10000) {
            stat_.wrong++;
            return NOT_READY;
        }
        pthread_mutex_unlock(&lock);
        usleep(1000);
        pthread_mutex_lock(&lock);
    }
    return OK;
}

/* Takes the lock; what the call says at once, or 0. */
static CUresult begin(const char *name, bool in_context)
{
    bool foreign = inited && inited != getpid(); /* a child of fork(): its lock may be held */
    pthread_mutex_lock(foreign ? &lock_of_child : &lock);
    if (foreign || (!inited && strcmp(name, "cuInit") != 0))
        return NOT_INIT;
    if (lost)
        return LOST;
    if (fail_nth && strcmp(name, fail_name) == 0 && (fail_nth == ~0u || --fail_nth == 0)) {
        stat_.refused++;
        return fail_result;
    }
    if (ends_capture(name)) {
        capture_ended = true;
        stat_.wrong++;
        return UNSUPPORTED_IN_CAPTURE;
    }
    if (in_context && depth == 0) {
        stat_.wrong++;
        return BAD_CONTEXT;
    }
    return hold(name);
}

static CUresult end(CUresult result)
{
    if (inited && inited != getpid()) {
        pthread_mutex_unlock(&lock_of_child);
        return result;
    }
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    return result;
}
#define BEGIN(in_context)                                                                                    \
    do {                                                                                                     \
        CUresult begun = begin(__func__, in_context);                                                        \
        if (begun)                                                                                           \
            return end(begun);                                                                               \
    } while (0)

static struct block *within(struct block *list, uintptr_t at, size_t bytes)
{
    for (; list; list = list->next)
        if (at >= list->at && bytes <= list->bytes && at - list->at <= list->bytes - bytes)
            return list;
    return NULL;
}

static bool add(struct block **list, uintptr_t at, size_t bytes)
{
    struct block *block = malloc(sizeof(*block));
    if (!block)
        return false;
    *block = (struct block){*list, at, bytes};
    *list = block;
    return true;
}

static size_t take(struct block **list, uintptr_t at)
{
    for (; *list; list = &(*list)->next)
        if ((*list)->at == at) {
            struct block *block = *list;
            size_t bytes = block->bytes;
            *list = block->next;
            free(block);
            return bytes;
        }
    return 0;
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

static const char *nic(void)
{
    const char *set = getenv("FAKECUDA_NIC");
    return set ? set : "";
}

/* Under lock: device memory is open only between these, so that any other access faults. */
static void open_block(struct block *block)
{
    mprotect((void *)block->at, block->bytes, PROT_READ | PROT_WRITE);
}

static void close_block(struct block *block)
{
    if (strcmp(nic(), "1") != 0)
        mprotect((void *)block->at, block->bytes, PROT_NONE);
}

static void touch(CUdeviceptr device, void *host, size_t bytes, bool to_device)
{
    struct block *block = within(allocated, (uintptr_t)device, bytes);
    if (!block || (to_device && !within(pinned, (uintptr_t)host, bytes))) {
        stat_.wrong++;
        return;
    }
    open_block(block);
    memcpy(to_device ? (void *)(uintptr_t)device : host, to_device ? host : (void *)(uintptr_t)device, bytes);
    close_block(block);
}

/* Under lock. */
static void launch(const struct op *op)
{
    const struct gpu_crc_piece *pieces = (const void *)(uintptr_t)op->device;
    if (!within(allocated, (uintptr_t)op->device, op->number * sizeof(*pieces)) ||
        !within(allocated, (uintptr_t)op->to, op->number * sizeof(unsigned))) {
        stat_.wrong++;
        return;
    }
    for (struct block *b = allocated; b; b = b->next)
        open_block(b);
    unsigned char *at = NULL;
    for (unsigned i = 0; stale && i < op->number; i++)
        if (stale_at - pieces[i].at < pieces[i].bytes)
            at = (unsigned char *)(uintptr_t)stale_at;
    stale -= at != NULL;
    if (at)
        *at ^= 1;
    for (unsigned i = 0; i < op->number; i++)
        if (pieces[i].bytes && within(allocated, pieces[i].at, pieces[i].bytes))
            gpu_crc_block(i, pieces, op->to);
        else
            stat_.wrong++;
    if (at)
        *at ^= 1;
    for (struct block *b = allocated; b; b = b->next)
        close_block(b);
    stat_.launches++;
}

/* Under lock. */
static bool gone(const struct op *op)
{
    return lost || op->losses != losses;
}

/* Under lock. */
static bool may_run(const struct op *op)
{
    if (gone(op))
        return true;
    if (frozen)
        return false;
    return op->kind == WAIT ? op->event->came >= op->number : op->kind != KERNEL || *op->go;
}

static void run_op(struct op *op)
{
    if ((op->kind == COPY || op->kind == FILL) && delay_us && !gone(op)) {
        unsigned us = delay_us;
        pthread_mutex_unlock(&lock);
        usleep(us);
        pthread_mutex_lock(&lock);
    }
    if (op->kind == COPY && !gone(op)) {
        touch(op->device, (void *)(uintptr_t)op->from, op->bytes, true);
        stat_.copies++;
        stat_.copied_bytes += op->bytes;
    }
    if (op->kind == LAUNCH && !gone(op))
        launch(op);
    if (op->kind == KERNEL && !gone(op))
        touch(op->device, op->to, op->bytes, false);
    if (op->kind == FILL && !gone(op)) {
        struct block *block = within(allocated, (uintptr_t)op->device, op->bytes);
        open_block(block);
        memset((void *)(uintptr_t)op->device, 0xA5, op->bytes);
        close_block(block);
    }
    if (op->kind == RECORD && op->event->came < op->number)
        op->event->came = op->number;
}

static void *worker(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct op *op = s->first;
        if (!op && s->ends)
            break;
        if (!op || !may_run(op)) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 1000000;
            if (until.tv_nsec >= 1000000000) {
                until.tv_sec++;
                until.tv_nsec -= 1000000000;
            }
            pthread_cond_timedwait(&moved, &lock, &until); /* `go` sends no notice */
            continue;
        }
        s->first = op->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        run_op(op);
        s->busy = false;
        free(op);
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
    free(s);
    return NULL;
}

static struct stream *stream_new(void)
{
    struct stream *s = calloc(1, sizeof(*s));
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, worker, s))
        abort();
    pthread_detach(s->thread);
    return s;
}

static struct stream *stream_of(void *stream)
{
    if ((uintptr_t)stream > 2)
        return stream;
    if (!default_stream)
        default_stream = stream_new();
    return default_stream;
}

static void push(void *stream, struct op value)
{
    struct stream *s = stream_of(stream);
    struct op *op = malloc(sizeof(*op));
    *op = value;
    op->next = NULL;
    op->losses = losses;
    *s->last = op;
    s->last = &op->next;
}

void fakecuda_kernel(void *stream, void *to, unsigned long long from, size_t bytes, const volatile int *go)
{
    pthread_mutex_lock(&lock);
    push(stream, (struct op){.kind = KERNEL, .device = from, .to = to, .bytes = bytes, .go = go});
    end(OK);
}

/* The driver's header would declare them. */
#pragma GCC visibility push(default)
CUresult cuInit(unsigned flags);
CUresult cuGetErrorName(CUresult error, const char **ret);
CUresult cuGetErrorString(CUresult error, const char **ret);
CUresult cuDeviceGetCount(int *ret);
CUresult cuDeviceGet(CUdevice *ret, int ordinal);
CUresult cuDevicePrimaryCtxRetain(void **ret, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDeviceGetAttribute(int *ret, int attribute, CUdevice device);
CUresult cuCtxPushCurrent_v2(void *context);
CUresult cuCtxPopCurrent_v2(void **ret);
CUresult cuMemAlloc_v2(CUdeviceptr *ret, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr at);
CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *at);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream);
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, void *stream);
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at);
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope);
CUresult cuModuleLoadData(void **ret, const void *image);
CUresult cuModuleUnload(void *module);
CUresult cuModuleGetFunction(void **ret, void *module, const char *name);
CUresult cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
                        void **parameters, void **extra);
CUresult cuStreamCreate(void **ret, unsigned flags);
CUresult cuStreamDestroy_v2(void *stream);
CUresult cuStreamQuery(void *stream);
CUresult cuStreamBeginCapture_v2(void *stream, int mode);
CUresult cuStreamEndCapture(void *stream, void **ret_graph);
CUresult cuStreamIsCapturing(void *stream, int *ret);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuStreamWaitEvent(void *stream, struct event *event, unsigned flags);
CUresult cuEventCreate(struct event **ret, unsigned flags);
CUresult cuEventRecord(struct event *event, void *stream);
CUresult cuEventQuery(struct event *event);
CUresult cuEventDestroy_v2(struct event *event);

/* --- the driver's calls ------------------------------------------------------------------------------------------------------ */

CUresult cuInit(unsigned flags)
{
    BEGIN(false);
    inited = getpid();
    return end(flags ? INVALID : OK);
}

CUresult cuGetErrorName(CUresult error, const char **ret)
{
    *ret = error == LOST        ? "CUDA_ERROR_LAUNCH_FAILED"
           : error == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                : "CUDA_ERROR_FAKE";
    return OK;
}

CUresult cuGetErrorString(CUresult error, const char **ret)
{
    *ret = error == LOST ? "unspecified launch failure" : error == NO_MEMORY ? "out of memory" : "told to";
    return OK;
}

CUresult cuDeviceGetCount(int *ret)
{
    BEGIN(false);
    const char *devices = getenv("FAKECUDA_DEVICES");
    *ret = devices ? atoi(devices) : DEVICES;
    return end(OK);
}

CUresult cuDeviceGet(CUdevice *ret, int ordinal)
{
    BEGIN(false);
    if (ordinal < 0 || ordinal >= DEVICES)
        return end(BAD_DEVICE);
    *ret = ordinal;
    return end(OK);
}

CUresult cuDevicePrimaryCtxRetain(void **ret, CUdevice device)
{
    BEGIN(false);
    contexts[device]++;
    *ret = &contexts[device];
    return end(OK);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    pthread_mutex_lock(&lock);
    contexts[device]--;
    return end(lost ? LOST : OK);
}

/* GPUDirect RDMA: possible by default, on a device that does not order the writes of NICs, but can on
 * request. */
CUresult cuDeviceGetAttribute(int *ret, int attribute, CUdevice device)
{
    BEGIN(false);
    *ret = attribute == 116 ? strcmp(nic(), "no") != 0 : attribute == 117 ? 1 : 0;
    return end(attribute < 116 || attribute > 118 ? INVALID : OK);
}

CUresult cuCtxPushCurrent_v2(void *context)
{
    BEGIN(false);
    stack[depth++] = (int)((int *)context - contexts);
    return end(OK);
}

CUresult cuCtxPopCurrent_v2(void **ret)
{
    pthread_mutex_lock(&lock);
    *ret = depth ? &contexts[stack[--depth]] : NULL;
    return end(*ret ? OK : BAD_CONTEXT);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ret, size_t bytes)
{
    BEGIN(true);
    bytes = (bytes + 4095) & ~4095ul;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || !add(&allocated, (uintptr_t)at, bytes))
        return end(NO_MEMORY);
    memset(at, 0xA5, bytes);
    close_block(allocated);
    stat_.allocated++;
    stat_.allocated_bytes += bytes;
    *ret = (uintptr_t)at;
    return end(OK);
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
    BEGIN(true);
    size_t bytes = take(&allocated, (uintptr_t)at);
    if (!bytes) {
        stat_.wrong++;
        return end(INVALID);
    }
    munmap((void *)(uintptr_t)at, bytes);
    stat_.allocated--;
    stat_.allocated_bytes -= bytes;
    return end(OK);
}

CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    BEGIN(true);
    if (((uintptr_t)at | bytes) & 4095 || !add(&pinned, (uintptr_t)at, bytes))
        return end(INVALID);
    stat_.pinned++;
    stat_.pinned_bytes += bytes;
    return end(OK);
}

CUresult cuMemHostUnregister(void *at)
{
    BEGIN(true);
    size_t bytes = take(&pinned, (uintptr_t)at);
    if (!bytes)
        return end(NOT_PINNED);
    stat_.pinned--;
    stat_.pinned_bytes -= bytes;
    return end(OK);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream)
{
    BEGIN(true);
    push(stream, (struct op){.kind = COPY, .device = to, .from = from, .bytes = bytes});
    return end(OK);
}

/* As the real one on the legacy default stream and memory that is not pinned: when it returns it is done. */
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    BEGIN(false);
    touch(from, to, bytes, false);
    return end(OK);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream)
{
    static const int at_once = 1;
    BEGIN(true);
    push(stream, (struct op){.kind = KERNEL, .device = from, .to = to, .bytes = bytes, .go = &at_once});
    return end(OK);
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, void *stream)
{
    BEGIN(true);
    push(stream, (struct op){.kind = FILL, .device = at, .bytes = bytes});
    return end(value == 0xA5 ? OK : INVALID);
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at)
{
    BEGIN(true);
    return end(attribute == 6 && within(allocated, (uintptr_t)at, 1) ? OK : INVALID);
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    BEGIN(true);
    stat_.flushes++;
    return end(target == 0 && scope == 100 ? OK : INVALID);
}

CUresult cuModuleLoadData(void **ret, const void *image)
{
    static int module;
    BEGIN(true);
    if (!strstr(image, ".target sm_") || !strstr(image, ".entry " GPU_CRC_KERNEL "("))
        return end(INVALID);
    stat_.modules++;
    *ret = &module;
    return end(OK);
}

CUresult cuModuleUnload(void *module)
{
    pthread_mutex_lock(&lock);
    stat_.modules--;
    return end(OK);
}

CUresult cuModuleGetFunction(void **ret, void *module, const char *name)
{
    BEGIN(true);
    *ret = module;
    return end(strcmp(name, GPU_CRC_KERNEL) == 0 ? OK : INVALID);
}

CUresult cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
                        void **parameters, void **extra)
{
    BEGIN(true);
    if (!kernel || !grid_x || grid_y != 1 || grid_z != 1 || block_x != GPU_CRC_THREADS || block_y != 1 ||
        block_z != 1 || shared_bytes || extra)
        return end(INVALID);
    push(stream, (struct op){.kind = LAUNCH,
                             .device = *(CUdeviceptr *)parameters[0],
                             .to = (void *)(uintptr_t) * (CUdeviceptr *)parameters[1],
                             .number = grid_x});
    return end(OK);
}

CUresult cuStreamCreate(void **ret, unsigned flags)
{
    BEGIN(true);
    *ret = stream_new();
    stat_.streams++;
    return end(OK);
}

CUresult cuStreamDestroy_v2(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct stream *)stream)->ends = true;
    stat_.streams--;
    return end(OK);
}

CUresult cuStreamQuery(void *stream)
{
    BEGIN(false);
    struct stream *s = stream_of(stream);
    return end(s->first || s->busy ? NOT_READY : OK);
}

CUresult cuStreamBeginCapture_v2(void *stream, int mode)
{
    BEGIN(true);
    captured = stream;
    capturing = mode == GLOBAL;
    capture_ended = false;
    return end(capturing ? OK : INVALID);
}

CUresult cuStreamEndCapture(void *stream, void **ret_graph)
{
    static int graph;
    BEGIN(true);
    if (!capturing || stream != captured)
        return end(INVALID);
    capturing = false;
    *ret_graph = &graph;
    return end(capture_ended ? CAPTURE_ENDED : OK);
}

CUresult cuStreamIsCapturing(void *stream, int *ret)
{
    BEGIN(true);
    *ret = capturing && stream == captured;
    return end(OK);
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    BEGIN(false);
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return end(OK);
}

CUresult cuStreamWaitEvent(void *stream, struct event *event, unsigned flags)
{
    BEGIN(true);
    push(stream, (struct op){.kind = WAIT, .event = event, .number = event->recorded});
    return end(OK);
}

CUresult cuEventCreate(struct event **ret, unsigned flags)
{
    BEGIN(true);
    if (!(*ret = calloc(1, sizeof(**ret))))
        return end(NO_MEMORY);
    (*ret)->next = all_events;
    all_events = *ret;
    stat_.events++;
    return end(OK);
}

CUresult cuEventRecord(struct event *event, void *stream)
{
    BEGIN(true);
    event->captured = capturing && stream == captured;
    if (!event->captured)
        push(stream, (struct op){.kind = RECORD, .event = event, .number = ++event->recorded});
    return end(OK);
}

CUresult cuEventQuery(struct event *event)
{
    BEGIN(false);
    stat_.wrong += event->captured && capturing;
    capture_ended |= event->captured && capturing;
    return end(event->captured ? CAPTURED_EVENT : event->came >= event->recorded ? OK : NOT_READY);
}

CUresult cuEventDestroy_v2(struct event *event)
{
    pthread_mutex_lock(&lock);
    stat_.events--;
    return end(OK);
}
