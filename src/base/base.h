/* SPDX-License-Identifier: Apache-2.0 */
/* base.h: included by every source: integer types, small helpers, clean-up by attribute. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)                                                                                            \
    ({                                                                                                       \
        __typeof__(a) min_a_ = (a);                                                                          \
        __typeof__(b) min_b_ = (b);                                                                          \
        min_a_ < min_b_ ? min_a_ : min_b_;                                                                   \
    })
#define MAX(a, b)                                                                                            \
    ({                                                                                                       \
        __typeof__(a) max_a_ = (a);                                                                          \
        __typeof__(b) max_b_ = (b);                                                                          \
        max_a_ > max_b_ ? max_a_ : max_b_;                                                                   \
    })
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define likely(x)                       __builtin_expect(!!(x), 1)
#define unlikely(x)                     __builtin_expect(!!(x), 0)
#define KIB                             1024ull
#define MIB                             (1024ull * 1024)
#define GIB                             (1024ull * 1024 * 1024)

/* `align` is a power of two. */
static inline uint64_t align_down(uint64_t v, uint64_t align)
{
    return v & ~(align - 1);
}
static inline uint64_t align_up(uint64_t v, uint64_t align)
{
    return align_down(v + align - 1, align);
}
static inline uint64_t div_up(uint64_t v, uint64_t by)
{
    return v / by + (v % by != 0);
}

/* true on overflow, and then *ret is not to be used. Sizes out of files and messages go through these. */
#define mul_overflows(a, b, ret) __builtin_mul_overflow((uint64_t)(a), (uint64_t)(b), (ret))
#define add_overflows(a, b, ret) __builtin_add_overflow((uint64_t)(a), (uint64_t)(b), (ret))

/* AUTO_FREE char *p = ...; AUTO_CLOSE int fd = -1; ownership moves on with TAKE_PTR(p) and TAKE_FD(fd). */
static inline void auto_free_(void *p)
{
    free(*(void **)p);
}
static inline void auto_close_(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
#define AUTO_FREE  __attribute__((cleanup(auto_free_)))
#define AUTO_CLOSE __attribute__((cleanup(auto_close_)))
#define TAKE_PTR(p)                                                                                          \
    ({                                                                                                       \
        __typeof__(p) take_ = (p);                                                                           \
        (p) = NULL;                                                                                          \
        take_;                                                                                               \
    })
#define TAKE_FD(fd)                                                                                          \
    ({                                                                                                       \
        int take_ = (fd);                                                                                    \
        (fd) = -1;                                                                                           \
        take_;                                                                                               \
    })

#endif
