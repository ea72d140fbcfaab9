/* SPDX-License-Identifier: Apache-2.0 */
/* hex.h: bytes as lower-case hexadecimal digits, and back. Any thread. */
#ifndef BASE_HEX_H
#define BASE_HEX_H

#include "base/base.h"

/* Two digits for each of n bytes, and a NUL. */
static inline void hex_put(char *out, const void *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = bytes;
    for (size_t i = 0; i < n; i++) {
        *out++ = digits[from[i] >> 4];
        *out++ = digits[from[i] & 15];
    }
    *out = 0;
}

static inline int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Of either case. -1: no digit. */
static inline int hex_digit_any(char c)
{
    return hex_digit(c >= 'A' && c <= 'F' ? (char)(c | 0x20) : c);
}

/* n bytes out of the first 2 * n characters; false: one of them is no digit, as where the text ends before. */
static inline bool hex_get(const char *text, size_t n, void *ret_bytes)
{
    uint8_t *to = ret_bytes;
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(text[2 * i]), low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        to[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

#endif
