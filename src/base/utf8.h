/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h: names from the kernel are bytes; in text, bytes that are no UTF-8 are shown escaped. Any thread. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/base.h"

/* Bytes of the character that begins at s: 1 to 4; 0: none does (RFC 3629: no overlong forms, surrogates, or past U+10FFFF). */
unsigned utf8_length(const unsigned char *s, size_t len);
bool utf8_valid(const char *s);
/* Text as it is when all of it is UTF-8; else each byte that is not part of a character as \xNN, and a
 * backslash as two, as `ls -b` does: so the name can be recovered. The caller frees; NULL: out of memory. */
char *utf8_escape(const char *s);
/* Bytes of the character at s if a terminal may get it: 0 for control characters (C0, DEL, C1) and for bytes of no character. */
unsigned utf8_printable(const unsigned char *s, size_t len);
/*
 * For terminals, logs and messages, which names of other users reach: all but what is printable as \xNN. Cut, with whole characters, where out is
 * too small (cap > 0). Returns how many bytes of s are in it. s may not lie in out.
 */
size_t utf8_show(const char *s, size_t len, char *out, size_t cap);

#endif
