/* SPDX-License-Identifier: Apache-2.0 */
/* Batches in pinned memory and on a GPU, against a libcuda of ours (tests/fakecuda): when slots are copied, handed out and reused. */
#include "client/test_fixture.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/ledger.h"
#include "base/testing.h"
#include "failalloc.h"
#include "fakecuda.h"
#include "gpu/cuda.h"

static struct leat_error err;
static struct cuda_symbols cuda;
static CUresult (*copy_back)(void *, CUdeviceptr, size_t);
static struct {
    void (*stat)(struct fakecuda_stat *);
    void (*delay)(unsigned);
    void (*freeze)(int);
    void (*refuse)(const char *, unsigned, int);
    void (*lose)(int);
    void (*kernel)(void *, void *, unsigned long long, size_t, const volatile int *);
    void (*capture)(void *, int);
    void (*hold)(const char *, const volatile int *);
} fake;

static void *library(void)
{
    void *lib = dlopen(FAKECUDA, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(lib);
    return lib;
}

static void find_fake(void)
{
    void *lib = library();
    fake.stat = (void (*)(struct fakecuda_stat *))dlsym(lib, "fakecuda_stat");
    fake.delay = (void (*)(unsigned))dlsym(lib, "fakecuda_delay");
    fake.freeze = (void (*)(int))dlsym(lib, "fakecuda_freeze");
    fake.refuse = (void (*)(const char *, unsigned, int))dlsym(lib, "fakecuda_fail");
    fake.lose = (void (*)(int))dlsym(lib, "fakecuda_lose");
    fake.kernel = (void (*)(void *, void *, unsigned long long, size_t, const volatile int *))dlsym(
        lib, "fakecuda_kernel");
    fake.capture = (void (*)(void *, int))dlsym(lib, "fakecuda_capture");
    fake.hold = (void (*)(const char *, const volatile int *))dlsym(lib, "fakecuda_hold");
#define CUDA_SYMBOL(name, parameters) cuda.name = (__typeof__(cuda.name))dlsym(lib, #name);
    CUDA_SYMBOLS(CUDA_SYMBOL)
#undef CUDA_SYMBOL
    copy_back = (__typeof__(copy_back))dlsym(lib, "cuMemcpyDtoH_v2");
}

static int setup(void **state)
{
    static struct fixture x;
    fixture_open(&x, (struct fake_options){0});
    for (uint32_t r = 0; r < x.ws->info.nregions; r++)
        assert_int_equal(ws_map_region(x.ws, r, &(struct client_rpc_how){0}, NULL), 0);
    *state = &x;
    return 0;
}

/* What no test may leave behind. */
static int teardown(void **state)
{
    struct fixture *x = *state;
    struct fakecuda_stat s;
    fake.freeze(0); /* of a test that failed */
    fake.delay(0);
    fake.refuse("", 0, 0);
    fake.capture(NULL, 0);
    fake.hold("", NULL);
    /* What a closed view left to the next one. */
    test_run_until((fake.stat(&s), !s.pinned), leat_view_close(fixture_load(x->ws, 8, 1)));
    fixture_close(x);
    fake.stat(&s);
    assert_int_equal(s.wrong, 0);
    assert_int_equal(s.depth, 0);
    assert_true(s.pinned == 0 && s.allocated == 0 && s.streams == 0 && s.events == 0 && s.contexts == 0);
    return 0;
}

static int load(struct leat_ws *ws, unsigned memory, unsigned slots, unsigned flags, struct leat_view **ret)
{
    struct leat_view_options o = {
        .size = sizeof(o), .batch_size = 8, .slots = slots, .memory = memory, .device = 1, .flags = flags};
    return leat_load(ws, &o, ret, &err);
}

static struct leat_view *cuda_view(struct fixture *x, unsigned slots, unsigned flags)
{
    struct leat_view *view = NULL;
    int rc = load(x->ws, LEAT_MEMORY_CUDA, slots, flags, &view);
    if (rc)
        print_message("load: %s\n", err.message);
    assert_int_equal(rc, 0);
    return view;
}

static void ids_from(uint64_t ids[8], uint64_t first)
{
    for (unsigned i = 0; i < 8; i++)
        ids[i] = (first + 37 * i) % FAKE_SAMPLES;
}

static int read_from(struct leat_view *view, uint64_t first, struct leat_batch **ret)
{
    uint64_t ids[8];
    ids_from(ids, first);
    return leat_read_batch(view, ids, 8, 0, ret, &err);
}

/* The fixed field as the device has it. */
static bool device_matches(struct leat_batch *batch)
{
    uint8_t back[8 * 60];
    assert_int_equal(copy_back(back, (uintptr_t)leat_batch_data(batch, 0, NULL), sizeof(back)), 0);
    bool good = true;
    for (unsigned i = 0; i < 8; i++)
        good = good && fake_matches(leat_batch_ids(batch)[i], 0, back + 60 * i, 60);
    return good;
}

static void check_device(struct leat_batch *batch)
{
    assert_true(device_matches(batch));
    uint64_t bytes, labels_bytes;
    const uint64_t *offsets = leat_batch_offsets(batch, 1);
    uint8_t *blob = leat_batch_data(batch, 1, &bytes), *back = malloc(bytes + 1);
    assert_int_equal(copy_back(back, (uintptr_t)blob, bytes), 0);
    uint32_t labels[8];
    const void *at = leat_batch_data(batch, 2, &labels_bytes);
    assert_int_equal(labels_bytes, sizeof(labels));
    assert_int_equal(copy_back(labels, (uintptr_t)at, sizeof(labels)), 0);
    for (unsigned i = 0; i < 8; i++) {
        uint64_t id = leat_batch_ids(batch)[i];
        assert_true(!leat_batch_present(batch, 1, i) ||
                    fake_matches(id, 1, back + offsets[i], offsets[i + 1] - offsets[i]));
        assert_int_equal(labels[i], id % 3);
    }
    free(back);
}

static void test_delivery(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 2, 0);
    uint64_t before = ledger_bytes[LEDGER_BOUNCE], bytes = 0;
    fake.delay(2000);
    for (unsigned i = 0; i < 6; i++) {
        struct leat_batch *batch;
        int device;
        assert_int_equal(read_from(view, 3 * i, &batch), 0);
        assert_int_equal(leat_batch_memory(batch, &device), LEAT_MEMORY_CUDA);
        assert_int_equal(device, 1);
        check_device(batch);
        for (unsigned f = 0; f < 3; f++) {
            uint64_t n;
            assert_int_equal((uintptr_t)leat_batch_data(batch, f, &n) % 256, 0);
            bytes += n;
        }
        leat_batch_release(batch);
    }
    fake.delay(0);
    struct leat_view_stat s = {.size = sizeof(s)};
    assert_int_equal(leat_view_stat(view, &s, &err), 0);
    assert_string_equal(s.delivery, "bounce");
    assert_int_equal(s.bounced_bytes, bytes);
    assert_int_equal(s.copies, 18);
    assert_int_equal(s.lags, 0);
    assert_int_equal(ledger_bytes[LEDGER_BOUNCE] - before, bytes);
    assert_int_equal(s.pinned_bytes, 2 * s.slot_bytes);
    assert_int_equal(s.device_bytes, 2 * s.slot_bytes);
    leat_view_close(view);
}

static void test_pinned(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view;
    struct leat_batch *batch;
    struct fakecuda_stat f;
    struct leat_view_stat s = {.size = sizeof(s)};
    assert_int_equal(load(x->ws, LEAT_MEMORY_PINNED, 3, 0, &view), 0);
    assert_int_equal(read_from(view, 1, &batch), 0);
    fixture_check_batch(batch);
    assert_int_equal(leat_view_stat(view, &s, &err), 0);
    assert_string_equal(s.delivery, "pinned");
    fake.stat(&f);
    assert_true(f.pinned == 3 && f.pinned_bytes == s.pinned_bytes && f.allocated == 0);
    assert_int_equal(leat_batch_wait_on_stream(batch, NULL, &err), 0);
    assert_int_equal(leat_batch_release_on_stream(batch, NULL, &err), 0);
    leat_view_close(view);
}

/* The slot is free at last, and the kernel that read it has seen the batch that begins at `first`. */
static void saw_its_own(struct leat_view *view, uint64_t first, const uint8_t *seen)
{
    struct leat_batch *next;
    uint64_t ids[8];
    assert_int_equal(read_from(view, 100, &next), 0);
    ids_from(ids, first);
    for (unsigned i = 0; i < 8; i++)
        assert_true(fake_matches(ids[i], 0, seen + 60 * i, 60));
    leat_batch_release(next);
}

/* With one slot: a kernel that reads late sees its own batch, whatever was requested since. */
static void test_consumer_stream(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 1, LEAT_LOAD_ASYNC);
    struct leat_batch *batch, *next;
    uint64_t ids[8];
    uint8_t seen[8 * 60] = {0};
    volatile int go = 0;
    fake.freeze(1);
    assert_int_equal(read_from(view, 5, &batch), 0); /* at once, though nothing was copied */
    assert_false(device_matches(batch));
    void *data = leat_batch_data(batch, 0, NULL), *stream = (void *)2;
    assert_int_equal(leat_batch_wait_on_stream(batch, stream, &err), 0);
    fake.kernel(stream, seen, (uintptr_t)data, sizeof(seen), &go);
    assert_int_equal(leat_batch_release_on_stream(batch, stream, &err), 0);
    ids_from(ids, 100);
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
    fake.freeze(0);
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
    go = 1;
    saw_its_own(view, 5, seen);
    leat_view_close(view);
}

/* A stream that takes no event: the slot is not written as long as a kernel may read it, and who waits hears why. */
static void test_stream_refuses(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 1, 0);
    struct leat_batch *batch, *next;
    uint64_t ids[8];
    uint8_t seen[8 * 60] = {0};
    volatile int go = 0;
    void *stream = (void *)2;
    assert_int_equal(read_from(view, 5, &batch), 0);
    fake.kernel(stream, seen, (uintptr_t)leat_batch_data(batch, 0, NULL), sizeof(seen), &go);
    fake.refuse("cuEventRecord", ~0u, 999);
    assert_int_equal(leat_batch_release_on_stream(batch, stream, &err), 0);
    ids_from(ids, 100);
    assert_int_equal(leat_read_batch(view, ids, 8, 0, &next, &err), -EIO);
    assert_non_null(strstr(err.message, "no slot of the view is free"));
    assert_non_null(strstr(err.message, "event"));
    fake.refuse("", 0, 0); /* it takes one after all, behind the kernel */
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
    go = 1;
    saw_its_own(view, 5, seen);
    leat_view_close(view);
}

/* During the capture of a CUDA graph: our calls do not end the capture, and no event of ours becomes part
 * of it. */
static void test_capture(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 2, 0);
    struct leat_batch *batch[2], *next;
    uint64_t ids[8];
    void *stream = (void *)2;
    int mode = 0;
    fake.delay(1000);
    fake.capture(stream, 1);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(read_from(view, i, &batch[0]), 0);
        check_device(batch[0]);
        assert_int_equal(leat_batch_release_on_stream(batch[0], NULL, &err), 0);
    }
    leat_view_close(cuda_view(x, 1, 0)); /* memory comes and goes */
    assert_int_equal(read_from(view, 5, &batch[0]), 0);
    assert_int_equal(read_from(view, 6, &batch[1]), 0);
    assert_int_equal(leat_batch_release_on_stream(batch[0], stream, &err), 0);
    ids_from(ids, 100);
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
    assert_int_equal(cuda.cuThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(mode, 0); /* the caller's own, as before */
    fake.capture(NULL, 0);
    assert_int_equal(read_from(view, 100, &next), 0);
    check_device(next);
    leat_batch_release(next);
    leat_batch_release(batch[1]);
    leat_view_close(view);
}

static void *release_on_stream_2(void *batch)
{
    return (void *)(intptr_t)leat_batch_release_on_stream(batch, (void *)2, NULL);
}

/* As many calls as that were held. */
static void until_held(int number)
{
    struct fakecuda_stat s = {0};
    test_wait_until((fake.stat(&s), s.held >= number));
}

/* A capture begins between our question whether there is one and our event, which belongs to it; it may have ended when we ask again. */
static void test_capture_takes_the_event(void **state)
{
    struct fixture *x = *state;
    for (unsigned ended = 0; ended < 2; ended++) {
        struct leat_view *view = cuda_view(x, 1, 0);
        struct leat_batch *batch, *next;
        struct fakecuda_stat s;
        uint64_t ids[8];
        uint8_t seen[8 * 60] = {0};
        volatile int go = 0, gates[2] = {0};
        pthread_t thread;
        void *rc;
        assert_int_equal(read_from(view, 5, &batch), 0);
        fake.kernel((void *)2, seen, (uintptr_t)leat_batch_data(batch, 0, NULL), sizeof(seen), &go);
        fake.stat(&s);
        fake.hold("cuEventRecord", &gates[0]);
        assert_int_equal(pthread_create(&thread, NULL, release_on_stream_2, batch), 0);
        until_held(s.held + 1);
        fake.capture((void *)2, 1);
        if (ended) {
            fake.hold("cuStreamIsCapturing", &gates[1]);
            until_held(s.held + 2);
            fake.capture(NULL, 0);
        }
        gates[0] = gates[1] = 1;
        pthread_join(thread, &rc);
        assert_null(rc);
        fake.hold("", NULL);
        ids_from(ids, 100);
        assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
        fake.capture(NULL, 0);
        assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
        go = 1;
        saw_its_own(view, 5, seen);
        leat_view_close(view);
    }
}

static bool all_zero(const uint8_t *at, uint64_t bytes)
{
    return *at == 0 && memcmp(at, at + 1, bytes - 1) == 0;
}

/* A view that goes while one slot is in use keeps the pages of that one, though they are shared with those of all others. */
static void test_slot_in_use_keeps_its_own(void **state)
{
    enum { SLOTS = 3 };
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, SLOTS, 0);
    const uint64_t bytes = view->slot_bytes;
    struct leat_batch *batch[SLOTS];
    uint8_t seen[8 * 60] = {0};
    volatile int go = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        assert_int_equal(read_from(view, 5 + i, &batch[i]), 0);
    /* Of the same pages, to look at them afterwards. */
    uint8_t *pages = mremap(view->slots[0].memory, 0, SLOTS * bytes, MREMAP_MAYMOVE);
    assert_ptr_not_equal(pages, MAP_FAILED);
    for (unsigned i = 0; i < SLOTS; i++)
        assert_false(all_zero(pages + i * bytes, bytes));
    const unsigned used = leat_batch_slot(batch[1]);
    fake.kernel((void *)2, seen, (uintptr_t)leat_batch_data(batch[1], 0, NULL), sizeof(seen), &go);
    assert_int_equal(leat_batch_release_on_stream(batch[1], (void *)2, &err), 0);
    leat_batch_release(batch[0]);
    leat_batch_release(batch[2]);
    leat_view_close(view);
    for (unsigned i = 0; i < SLOTS; i++)
        assert_int_equal(all_zero(pages + i * bytes, bytes), i != used);
    go = 1;
    /* The next view looks whether it is still in use. */
    test_run_until(all_zero(pages + used * bytes, bytes), leat_view_close(fixture_load(x->ws, 8, 1)));
    assert_true(all_zero(pages, SLOTS * bytes));
    munmap(pages, SLOTS * bytes);
}

/* Pages that the device reads stay those that are written, after any fork. */
static void test_fork_keeps_pages(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view;
    struct leat_batch *batch;
    int status;
    assert_int_equal(load(x->ws, LEAT_MEMORY_PINNED, 2, 0, &view), 0);
    assert_int_equal(read_from(view, 1, &batch), 0);
    uint8_t *data = leat_batch_data(batch, 0, NULL), before = *data;
    pid_t child = fork();
    if (child == 0) {
        *data = before + 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(*data, (uint8_t)(before + 1));
    leat_batch_release(batch);
    leat_view_close(view);
}

/* Given back before its copy was done: the pinned half is not written until then. */
static void test_release_while_copying(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 1, LEAT_LOAD_ASYNC);
    struct leat_batch *batch, *next;
    const uint64_t id = 9;
    fake.freeze(1);
    assert_int_equal(read_from(view, 5, &batch), 0);
    leat_batch_release(batch);
    assert_int_equal(leat_read_batch(view, &id, 1, 20 * NS_PER_MS, &next, &err), LEAT_TIMED_OUT);
    fake.freeze(0);
    assert_int_equal(leat_read_batch(view, &id, 1, 0, &next, &err), 0);
    leat_batch_release(next);
    leat_view_close(view);
}

/* The deadline passes while the copy is under way: no batch, and the slot waits. */
static void test_deadline(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 1, 0);
    struct leat_batch *batch;
    uint64_t ids[8];
    ids_from(ids, 0);
    fake.freeze(1);
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &batch, &err), LEAT_TIMED_OUT);
    assert_non_null(strstr(err.message, "CUDA device 1"));
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &batch, &err), LEAT_TIMED_OUT);
    assert_non_null(strstr(err.message, "no slot"));
    fake.freeze(0);
    assert_int_equal(read_from(view, 7, &batch), 0);
    check_device(batch);
    leat_batch_release(batch);
    leat_view_close(view);
}

/* The deadline of a copy passes, with operations of rails that are reported and not quiesced. */
static void leave_in_quarantine(struct leat_view *view)
{
    struct view_slot *slot;
    struct client_rpc_how how = {.deadline_ns = clock_now_ns() + 20 * NS_PER_MS};
    assert_int_equal(view_slot_take(view, false, &how, &slot, &err), 0);
    slot->batch.n = 8;
    assert_int_equal(device_deliver(view, slot, &how, &err), LEAT_TIMED_OUT);
    slot->gather->unquiesced = 1;
    view_slot_drop(view, slot);
    assert_int_equal(slot->state, SLOT_QUARANTINE);
    slot->gather->unquiesced = 0;
    tlock_give(&view->fill_lock);
}

/* Quiesced is not enough: the slot is not filled, and its memory not freed, until its copy has ended as well. */
static void test_quarantine_while_copying(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 1, 0);
    struct leat_batch *batch;
    struct fakecuda_stat s;
    uint64_t ids[8];
    ids_from(ids, 0);
    fake.freeze(1);
    leave_in_quarantine(view);
    assert_int_equal(leat_read_batch(view, ids, 8, 20 * NS_PER_MS, &batch, &err), LEAT_TIMED_OUT);
    assert_non_null(strstr(err.message, "no slot"));
    fake.freeze(0);
    assert_int_equal(read_from(view, 7, &batch), 0);
    check_device(batch);
    leat_batch_release(batch);

    fake.freeze(1);
    leave_in_quarantine(view);
    leat_view_close(view);
    fake.stat(&s);
    assert_true(s.pinned == 1 && s.allocated == 1);
    fake.freeze(0);
    test_run_until((fake.stat(&s), !s.pinned), leat_view_close(fixture_load(x->ws, 8, 1)));
}

static void test_copy_fails(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 2, 0);
    struct leat_batch *batch;
    for (unsigned nth = 1; nth <= 3; nth++) {
        fake.refuse("cuMemcpyHtoDAsync_v2", nth, 999);
        assert_int_equal(read_from(view, nth, &batch), -EIO);
        assert_non_null(strstr(err.message, "cuMemcpyHtoDAsync_v2"));
        assert_int_equal(read_from(view, nth, &batch), 0);
        check_device(batch);
        leat_batch_release(batch);
    }
    fake.refuse("cuEventRecord", 1, 999); /* the copies run without an event: the stream is queried */
    fake.delay(1000);
    assert_int_equal(read_from(view, 50, &batch), -EIO);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(read_from(view, 60 + i, &batch), 0);
        check_device(batch);
        leat_batch_release(batch);
    }
    fake.delay(0);
    fake.delay(2000);
    for (unsigned nth = 1; nth <= 3;
         nth++) { /* one refused question is no lost device: memory is not freed on it */
        fake.refuse("cuEventQuery", nth, 999);
        assert_int_equal(read_from(view, 70, &batch), 0);
        check_device(batch);
        leat_batch_release(batch);
    }
    fake.refuse("", 0, 0);
    fake.delay(0);
    leat_view_close(view);
}

static void test_load_fails(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view;
    const struct {
        const char *call;
        unsigned nth;
        int result, rc;
        const char *says;
    } cases[] = {
        {"cuInit", 1, 100, LEAT_UNSUPPORTED, "cuInit"},
        {"cuInit", 1, 3, -EIO, "fork"},
        {"cuDeviceGetCount", 1, 999, -EIO, "cuDeviceGetCount"},
        {"cuDevicePrimaryCtxRetain", 1, 2, -ENOMEM, "CUDA device 1"},
        {"cuCtxPushCurrent_v2", 1, 999, -EIO, "cuCtxPushCurrent_v2"},
        {"cuStreamCreate", 1, 999, -EIO, "cuStreamCreate"},
        {"cuMemHostRegister_v2", 2, 2, -ENOMEM, "cannot pin"},
        {"cuMemAlloc_v2", 3, 2, -ENOMEM, "bytes for a batch"},
        {"cuEventCreate", 4, 2, -ENOMEM, "cuEventCreate"},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        fake.refuse(cases[i].call, cases[i].nth, cases[i].result);
        assert_int_equal(load(x->ws, LEAT_MEMORY_CUDA, 3, 0, &view), cases[i].rc);
        assert_non_null(strstr(err.message, cases[i].says));
    }
    setenv("FAKECUDA_DEVICES", "1", 1);
    assert_int_equal(load(x->ws, LEAT_MEMORY_PINNED, 3, 0, &view), LEAT_INVALID);
    assert_non_null(strstr(err.message, "there are 1"));
    setenv("FAKECUDA_DEVICES", "0", 1);
    assert_int_equal(load(x->ws, LEAT_MEMORY_CUDA, 3, 0, &view), LEAT_UNSUPPORTED);
    unsetenv("FAKECUDA_DEVICES");
    assert_int_equal(load(x->ws, LEAT_MEMORY_HOST, 3, LEAT_LOAD_ASYNC, &view), LEAT_INVALID);
    assert_int_equal(load(x->ws, LEAT_MEMORY_CUDA, 3, 8, &view), LEAT_INVALID);
    assert_int_equal(load(x->ws, LEAT_MEMORY_PINNED, 3, LEAT_LOAD_DIRECT_IF_POSSIBLE, &view), LEAT_INVALID);
    /* All of it is in this host's memory. */
    assert_int_equal(load(x->ws, LEAT_MEMORY_CUDA, 3, LEAT_LOAD_DIRECT, &view), LEAT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no NIC"));
    struct leat_view_stat stat = {.size = sizeof(stat)};
    assert_int_equal(load(x->ws, LEAT_MEMORY_CUDA, 3, LEAT_LOAD_DIRECT_IF_POSSIBLE, &view), 0);
    assert_int_equal(leat_view_stat(view, &stat, &err), 0);
    assert_string_equal(stat.delivery, "bounce");
    leat_view_close(view);
}

/* After the device is lost every call reports it, none hangs, and closing works. */
static void test_lost(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 2, LEAT_LOAD_ASYNC);
    struct leat_batch *batch[2];
    fake.freeze(1);
    assert_int_equal(read_from(view, 1, &batch[0]), 0);
    assert_int_equal(read_from(view, 2, &batch[1]), 0);
    assert_int_equal(leat_batch_release_on_stream(batch[0], NULL, &err), 0);
    fake.lose(1);
    fake.freeze(0);
    assert_int_equal(leat_batch_wait_on_stream(batch[1], NULL, &err), -EIO);
    assert_non_null(strstr(err.message, "CUDA_ERROR_LAUNCH_FAILED"));
    assert_int_equal(leat_batch_release_on_stream(batch[1], NULL, &err), -EIO);
    leat_batch_release(batch[1]);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(read_from(view, 3, &batch[0]), -EIO);
    fake.lose(0); /* so that further tests of this process can run; pinned memory is given back */
    leat_view_close(view);
}

/* The view is closed with a copy and a kernel under way: both memories stay until they are done. */
static void test_close_while_used(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 2, LEAT_LOAD_ASYNC);
    struct leat_batch *batch[2];
    struct fakecuda_stat s;
    uint8_t seen[8 * 60];
    volatile int go = 0;
    fake.freeze(1);
    assert_int_equal(read_from(view, 1, &batch[0]), 0);
    assert_int_equal(read_from(view, 2, &batch[1]), 0);
    assert_int_equal(leat_batch_wait_on_stream(batch[0], NULL, &err), 0);
    fake.kernel(NULL, seen, (uintptr_t)leat_batch_data(batch[0], 0, NULL), sizeof(seen), &go);
    assert_int_equal(leat_batch_release_on_stream(batch[0], NULL, &err), 0);
    leat_batch_release(batch[1]);
    leat_view_close(view);
    fake.stat(&s);
    assert_true(s.pinned == 2 && s.allocated == 2);
    fake.freeze(0);
    /* Views that come and go look after it. */
    test_run_until((fake.stat(&s), s.pinned <= 1), leat_view_close(cuda_view(x, 1, 0)));
    leat_view_close(cuda_view(x, 1, 0));
    fake.stat(&s);
    assert_true(s.pinned == 1 && s.allocated == 1);
    go = 1;
    test_run_until((fake.stat(&s), !s.pinned), leat_view_close(cuda_view(x, 1, 0)));
}

/* Slots in turn, at speed: every kernel sees the batch that it was given. */
static void test_reuse(void **state)
{
    struct fixture *x = *state;
    struct leat_view *view = cuda_view(x, 3, LEAT_LOAD_ASYNC);
    static uint8_t seen[300][8 * 60];
    struct leat_view *host = fixture_load(x->ws, 8, 1);
    volatile int go = 1;
    fake.delay(100);
    for (unsigned i = 0; i < ARRAY_LEN(seen); i++) {
        struct leat_batch *batch;
        assert_int_equal(read_from(view, i, &batch), 0);
        void *stream = (void *)(uintptr_t)(i % 3);
        assert_int_equal(leat_batch_wait_on_stream(batch, stream, &err), 0);
        fake.kernel(stream, seen[i], (uintptr_t)leat_batch_data(batch, 0, NULL), sizeof(seen[i]), &go);
        assert_int_equal(leat_batch_release_on_stream(batch, stream, &err), 0);
    }
    struct leat_batch *last[3]; /* holding all slots proves that all kernels are done */
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(read_from(view, i, &last[i]), 0);
    for (unsigned i = 0; i < 3; i++)
        leat_batch_release(last[i]);
    fake.delay(0);
    for (unsigned i = 0; i < ARRAY_LEN(seen); i++) {
        uint64_t ids[8];
        ids_from(ids, i);
        for (unsigned k = 0; k < 8; k++)
            assert_true(fake_matches(ids[k], 0, seen[i] + 60 * k, 60));
    }
    leat_view_close(host);
    leat_view_close(view);
}

/* What the checksum refuses never reaches the device. */
static void test_corrupt(void **state)
{
    struct fixture *x = *state;
    struct fakecuda_stat before, after;
    struct leat_view *view = cuda_view(x, 1, 0);
    struct leat_batch *batch;
    fake_corrupt(x->daemon, 5, 0);
    fake.stat(&before);
    assert_int_equal(read_from(view, 5, &batch), LEAT_CORRUPT);
    fake.stat(&after);
    assert_int_equal(before.copies, after.copies);
    leat_view_close(view);
}

static int load_and_read(void *arg)
{
    struct fixture *x = arg;
    struct leat_view *view;
    struct leat_batch *batch;
    int rc = load(x->ws, LEAT_MEMORY_CUDA, 2, 0, &view);
    if (rc)
        return rc;
    rc = read_from(view, 1, &batch);
    if (!rc)
        leat_batch_release(batch);
    leat_view_close(view);
    return rc;
}

static void test_alloc(void **state)
{
    size_t live = 0;
    for (unsigned same = 0; same < 20;
         same = live == failalloc_live() ? same + 1 : 0) { /* the daemon's thread */
        live = failalloc_live();
        test_pause_us(1000);
    }
    assert_true(failalloc_run(load_and_read, *state) > 20);
}

int main(void)
{
    setenv("LEAT_LIBCUDA", FAKECUDA, 1);
    setenv("LEAT_PIN", "0", 1);
    find_fake();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_delivery),
        TEST(test_pinned),
        TEST(test_consumer_stream),
        TEST(test_release_while_copying),
        TEST(test_deadline),
        TEST(test_quarantine_while_copying),
        TEST(test_copy_fails),
        TEST(test_load_fails),
        TEST(test_lost),
        TEST(test_close_while_used),
        TEST(test_reuse),
        TEST(test_stream_refuses),
        TEST(test_capture),
        TEST(test_capture_takes_the_event),
        TEST(test_slot_in_use_keeps_its_own),
        TEST(test_fork_keeps_pages),
        TEST(test_corrupt),
        TEST(test_alloc),
    };
    return cmocka_run_group_tests_name("client_gpu", tests, NULL, NULL);
}
