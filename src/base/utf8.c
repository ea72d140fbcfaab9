/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <stdio.h>

unsigned utf8_length(const unsigned char *s, size_t len)
{
    if (len == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    unsigned n = s[0] >= 0xc2 && s[0] < 0xe0   ? 2
                 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                               : 0;
    if (n == 0 || len < n)
        return 0;
    for (unsigned i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    /* Overlong forms, surrogates, past U+10FFFF. */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

unsigned utf8_printable(const unsigned char *s, size_t len)
{
    unsigned n = utf8_length(s, len);
    bool c1 = n == 2 && s[0] == 0xc2 && s[1] < 0xa0; /* ISO 6429: U+009B begins commands as ESC [ does */
    return n == 0 || c1 || s[0] < 0x20 || s[0] == 0x7f ? 0 : n;
}

size_t utf8_show(const char *s, size_t len, char *out, size_t cap)
{
    size_t at = 0, i = 0;
    while (i < len) {
        unsigned n = utf8_printable((const unsigned char *)s + i, len - i);
        if (cap - at <= (n ? n : 4u))
            break;
        if (n == 0)
            at += (size_t)snprintf(out + at, 5, "\\x%02x", (unsigned char)s[i++]);
        for (; n > 0; n--)
            out[at++] = s[i++];
    }
    out[at] = 0;
    return i;
}

bool utf8_valid(const char *s)
{
    size_t len = strlen(s);
    for (size_t i = 0; i < len;) {
        uint64_t eight;
        if (len - i >= sizeof(eight)) { /* ASCII is most of what there is */
            memcpy(&eight, s + i, sizeof(eight));
            if ((eight & 0x8080808080808080) == 0) {
                i += sizeof(eight);
                continue;
            }
        }
        unsigned n = utf8_length((const unsigned char *)s + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

char *utf8_escape(const char *s)
{
    if (utf8_valid(s))
        return strdup(s);
    size_t len = strlen(s), at = 0;
    char *out = malloc(4 * len + 1);
    for (size_t i = 0; out && i < len;) {
        unsigned n = utf8_length((const unsigned char *)s + i, len - i);
        if (n == 0)
            at += (size_t)snprintf(out + at, 5, "\\x%02x", (unsigned char)s[i++]);
        else if (s[i] == '\\')
            at += (size_t)snprintf(out + at, 3, "\\\\"), i++;
        else
            for (; n > 0; n--)
                out[at++] = s[i++];
    }
    if (out)
        out[at] = 0;
    return out;
}
