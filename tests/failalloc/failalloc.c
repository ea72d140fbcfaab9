/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failalloc.c: the wrapped allocator. Every call asks refuse() first, then goes to the real one; the block's address
 * goes into a table of live blocks. A free() of an address that is not in the table (getline's, a library's) passes
 * through uncounted, so the count speaks of our own blocks only.
 *
 * Invariants: the table's own memory comes from the real allocator; it is locked by one mutex, which is never held
 * over a call of the allocator that could come back here.
 */
#include "failalloc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
int __real_posix_memalign(void **ret, size_t align, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
int __wrap_posix_memalign(void **ret, size_t align, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t max);
int __wrap_asprintf(char **ret, const char *fmt, ...);
int __wrap_vasprintf(char **ret, const char *fmt, va_list ap);
int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...);
int __wrap___vasprintf_chk(char **ret, int flag, const char *fmt, va_list ap);
void __wrap_free(void *p);

#define MAX_ALLOCATIONS 100000u /* a run with more than that would take too long */

extern const char __executable_start[]; /* the linker's */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned asked, refuse_nth;
static uintptr_t refused_at; /* the refused call's place in the executable, for addr2line */

/* Open addressing; 0 is empty, 1 a tombstone. Room is made when live and tombstones fill half of it. */
static uintptr_t *table;
static size_t table_size, table_used, live;

static size_t slot_of(uintptr_t key)
{
    return (size_t)((key >> 4) * 0x9e3779b97f4a7c15ull) & (table_size - 1);
}

static void table_put(uintptr_t key)
{
    size_t i = slot_of(key);
    while (table[i] > 1)
        i = (i + 1) & (table_size - 1);
    table_used += table[i] == 0;
    table[i] = key;
}

static void remember(void *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&lock);
    if (table_used * 2 >= table_size) {
        uintptr_t *old = table;
        size_t old_size = table_size, want = 256;
        while (want < live * 4)
            want *= 2;
        table = __real_calloc(want, sizeof(*table));
        if (!table)
            abort();
        table_size = want;
        table_used = 0;
        for (size_t i = 0; i < old_size; i++)
            if (old[i] > 1)
                table_put(old[i]);
        __real_free(old);
    }
    table_put((uintptr_t)p);
    live++;
    pthread_mutex_unlock(&lock);
}

static bool forget(const void *p)
{
    if (!p)
        return false;
    bool found = false;
    pthread_mutex_lock(&lock);
    if (table_size) {
        size_t i = slot_of((uintptr_t)p);
        while (table[i] && table[i] != (uintptr_t)p)
            i = (i + 1) & (table_size - 1);
        found = table[i] == (uintptr_t)p;
        if (found) {
            table[i] = 1;
            live--;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool refuse(const void *caller)
{
    pthread_mutex_lock(&lock);
    bool no = ++asked == refuse_nth;
    if (no)
        refused_at = (uintptr_t)caller - (uintptr_t)__executable_start;
    pthread_mutex_unlock(&lock);
    if (no)
        errno = ENOMEM;
    return no;
}
#define REFUSE() refuse(__builtin_return_address(0))

void *__wrap_malloc(size_t size)
{
    void *p = REFUSE() ? NULL : __real_malloc(size);
    remember(p);
    return p;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = REFUSE() ? NULL : __real_calloc(n, size);
    remember(p);
    return p;
}

static void *resize(void *p, size_t size)
{
    bool ours = forget(p);
    void *grown = __real_realloc(p, size);
    if (grown)
        remember(grown);
    else if (ours && size)
        remember(p); /* a failed realloc leaves the block as it was */
    return grown;
}

void *__wrap_realloc(void *p, size_t size)
{
    return REFUSE() ? NULL : resize(p, size);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (REFUSE())
        return NULL;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return resize(p, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    void *p = REFUSE() ? NULL : __real_aligned_alloc(align, size);
    remember(p);
    return p;
}

int __wrap_posix_memalign(void **ret, size_t align, size_t size)
{
    if (REFUSE())
        return ENOMEM;
    int rc = __real_posix_memalign(ret, align, size);
    if (rc == 0)
        remember(*ret);
    return rc;
}

static char *copy_string(const char *s, size_t len)
{
    char *p = __real_malloc(len + 1);
    if (p) {
        memcpy(p, s, len);
        p[len] = 0;
        remember(p);
    }
    return p;
}

char *__wrap_strdup(const char *s)
{
    return REFUSE() ? NULL : copy_string(s, strlen(s));
}

char *__wrap_strndup(const char *s, size_t max)
{
    return REFUSE() ? NULL : copy_string(s, strnlen(s, max));
}

static int format_string(char **ret, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    char *p = len < 0 ? NULL : __real_malloc((size_t)len + 1);
    if (p)
        vsnprintf(p, (size_t)len + 1, fmt, again);
    va_end(again);
    remember(p);
    *ret = p;
    return p ? len : -1;
}

int __wrap_vasprintf(char **ret, const char *fmt, va_list ap)
{
    *ret = NULL;
    return REFUSE() ? -1 : format_string(ret, fmt, ap);
}

int __wrap___vasprintf_chk(char **ret, int flag, const char *fmt, va_list ap)
{
    *ret = NULL;
    return REFUSE() ? -1 : format_string(ret, fmt, ap);
}

#define FORMAT_ARGUMENTS(ret, fmt)                                                                           \
    *(ret) = NULL;                                                                                           \
    if (REFUSE())                                                                                            \
        return -1;                                                                                           \
    va_list ap;                                                                                              \
    va_start(ap, fmt);                                                                                       \
    int len = format_string(ret, fmt, ap);                                                                   \
    va_end(ap);                                                                                              \
    return len

int __wrap_asprintf(char **ret, const char *fmt, ...)
{
    FORMAT_ARGUMENTS(ret, fmt);
}

int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...)
{
    FORMAT_ARGUMENTS(ret, fmt);
}

void __wrap_free(void *p)
{
    forget(p);
    __real_free(p);
}

void failalloc_arm(unsigned nth)
{
    pthread_mutex_lock(&lock);
    asked = 0;
    refuse_nth = nth;
    pthread_mutex_unlock(&lock);
}

unsigned failalloc_disarm(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = asked;
    refuse_nth = 0;
    pthread_mutex_unlock(&lock);
    return n;
}

size_t failalloc_live(void)
{
    pthread_mutex_lock(&lock);
    size_t n = live;
    pthread_mutex_unlock(&lock);
    return n;
}

unsigned failalloc_run(int (*fn)(void *ctx), void *ctx)
{
    bool again = false;
    for (unsigned nth = 1; nth <= MAX_ALLOCATIONS; nth += !again) {
        size_t before = failalloc_live();
        failalloc_arm(nth);
        int rc = fn(ctx);
        unsigned n = failalloc_disarm();
        size_t after = failalloc_live();
        bool refused = n >= nth;
        int want = refused ? -ENOMEM : 0;
        char place[64] = "";
        if (refused)
            snprintf(place, sizeof(place), " (refused at %#lx, see addr2line)", (unsigned long)refused_at);
        if (rc != want)
            fail_msg("allocation %u%s: returned %d instead of %d", nth, place, rc, want);
        /* A thread of the test's (a fake daemon's) may have been about to free something: a fault of ours comes twice. */
        bool differs = after != before;
        if (differs && again)
            fail_msg("allocation %u%s: %zu blocks live before, %zu after", nth, place, before, after);
        again = differs;
        if (!refused && !again)
            return n;
    }
    fail_msg("still allocating after %u runs", MAX_ALLOCATIONS);
    return 0;
}
