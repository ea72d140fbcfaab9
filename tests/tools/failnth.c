/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failnth.so, for LD_PRELOAD: the Nth allocation of the process fails, and FAILNTH_COUNT - 1 after it (default 1).
 *
 *   FAILNTH=100 FAILNTH_COUNT=3 FAILNTH_ARM=/tmp/armed LD_PRELOAD=failnth.so leatd ...
 *
 * Counting begins when the file FAILNTH_ARM exists (at once without it), so that what is tested is the work, not the start. When it is
 * over, the file is gone. malloc, calloc, realloc, reallocarray, the aligned ones and memfd_create fail; mmap does not.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic long seen;
static _Atomic int armed; /* 0 not yet, 1 counting, 2 over */
static long nth, count = 1;
static const char *arm;

__attribute__((constructor)) static void failnth_begin(void)
{
    const char *n = getenv("FAILNTH"), *c = getenv("FAILNTH_COUNT");
    nth = n ? atol(n) : 0;
    count = c ? atol(c) : 1;
    arm = getenv("FAILNTH_ARM");
    atomic_store(&armed, nth > 0 && !arm ? 1 : 0);
}

static int fails(void)
{
    int state = atomic_load_explicit(&armed, memory_order_relaxed);
    if (state == 2 || nth == 0)
        return 0;
    if (state == 0) {
        int saved = errno;
        int there = arm && access(arm, F_OK) == 0;
        errno = saved;
        if (!there)
            return 0;
        atomic_store(&armed, 1);
    }
    long mine = atomic_fetch_add(&seen, 1) + 1;
    if (mine < nth)
        return 0;
    if (mine >= nth + count) {
        if (atomic_exchange(&armed, 2) == 1 && arm) {
            int saved = errno;
            unlink(arm);
            errno = saved;
        }
        return 0;
    }
    /* Where: for `addr2line -fie leatd`. */
    void *frames[12];
    atomic_store(&armed, 2); /* what backtrace allocates does not count */
    backtrace_symbols_fd(frames, backtrace(frames, 12), STDERR_FILENO);
    atomic_store(&armed, 1);
    errno = ENOMEM;
    return 1;
}

#pragma GCC visibility push(default) /* the rest is what LD_PRELOAD is to find; the build hides all else */

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(p, bytes);
}

void *reallocarray(void *p, size_t n, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total)) {
        errno = ENOMEM;
        return NULL;
    }
    return fails() ? NULL : __libc_realloc(p, total);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **ret, size_t alignment, size_t bytes)
{
    void *p = fails() ? NULL : __libc_memalign(alignment, bytes);
    if (!p)
        return ENOMEM;
    *ret = p;
    return 0;
}

int memfd_create(const char *name, unsigned flags)
{
    static int (*real)(const char *, unsigned);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "memfd_create");
    return fails() ? -1 : real(name, flags);
}
