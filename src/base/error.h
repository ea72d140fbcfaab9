/* SPDX-License-Identifier: Apache-2.0 */
/* error.h: filling a struct leat_error on the way up. Every function accepts err == NULL. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <leat/error.h>

/* Sets code and message and returns code, so that `return error_set(err, LEAT_INVALID, "...", ...)` reads well. */
int error_set(struct leat_error *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same, with ": " and the text of the errno value `-code` at the end. */
int error_sys(struct leat_error *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " in front of a message already there; sets one from the code if there is none. Returns code. */
int error_prefix(struct leat_error *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
