/* SPDX-License-Identifier: Apache-2.0 */
/* size.h: sizes and durations as people write them. Any thread. */
#ifndef BASE_SIZE_H
#define BASE_SIZE_H

#include "base/base.h"

/*
 * A number, with a fraction if need be, and a unit in any case, with or without a space between: K, M, G, T and
 * KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB powers of 1000; B or nothing is bytes. "512MiB", "1.5 g",
 * "10GB". The result is rounded down to a whole byte. LEAT_INVALID with a message otherwise.
 */
int size_parse(const char *text, uint64_t *ret_bytes, struct leat_error *err);

/* The same for a time: ns, us, ms, s, m (or min), h, d; a unit is required except for 0. "120s", "1.5h", "500ms". */
int duration_parse_ns(const char *text, uint64_t *ret_ns, struct leat_error *err);

#define SIZE_TEXT_MAX 32
/* "0 B", "1023 B", "1.5 GiB", "16.0 EiB": one digit after the point from 1 KiB on. Returns out. */
const char *size_format(uint64_t bytes, char out[SIZE_TEXT_MAX]);

#endif
