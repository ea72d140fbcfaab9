/* SPDX-License-Identifier: Apache-2.0 */
/* array.h: arrays that grow. Memory is malloc's, and freed by free(). */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include "base/base.h"

/* More than `want` rows, so that adding one after another is cheap; at most `most`. -ENOMEM: nothing has changed. */
static inline int array_grow(void *array, uint64_t *cap, uint64_t want, uint64_t most, size_t row)
{
    uint64_t least = MAX(want, 16ull), n = MAX(*cap * 2, least), bytes;
    n = MIN(n, most);
    void *p = want > most || mul_overflows(n, row, &bytes) ? NULL : realloc(*(void **)array, bytes);
    if (!p)
        return -ENOMEM;
    *(void **)array = p;
    *cap = n;
    return 0;
}

/* Room for `want` elements in *array, which has room for *cap of them, an unsigned number of any width: 0 or -ENOMEM, as above. */
#define array_reserve(array, cap, want)                                                                      \
    ({                                                                                                       \
        uint64_t array_cap_ = *(cap), array_want_ = (want);                                                  \
        int array_rc_ = array_want_ <= array_cap_ ? 0                                                        \
                                                  : array_grow((array), &array_cap_, array_want_,            \
                                                               (__typeof__(*(cap)))-1, sizeof(**(array)));   \
        *(cap) = (__typeof__(*(cap)))array_cap_;                                                             \
        array_rc_;                                                                                           \
    })

#endif
