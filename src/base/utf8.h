/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h: names that the kernel gives are bytes; where text is due, what is none is shown escaped. Any thread. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/base.h"

/* Bytes of the character that begins at s: 1 to 4; 0: none does (RFC 3629: no overlong forms, surrogates, or past U+10FFFF). */
unsigned utf8_length(const unsigned char *s, size_t len);
bool utf8_valid(const char *s);
/*
 * Text as it is when all of it is UTF-8; else each byte that is not part of a character as \xNN, and a backslash as two, as `ls -b`
 * has it: so it can be told what the name was. The caller frees; NULL: out of memory.
 */
char *utf8_escape(const char *s);

#endif
