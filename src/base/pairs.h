/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.h: names and values as bytes: "name\0value\0" for each pair. So metadata of objects is kept: names in lower case by convention of HTTP,
 * "content-type", "x-amz-meta-...", "x-amz-checksum-crc64nvme".
 */
#ifndef BASE_PAIRS_H
#define BASE_PAIRS_H

#include "base/base.h"

/* The value of the first pair of that name, which lies in `pairs`; NULL: none. */
const char *pairs_get(const void *pairs, size_t len, const char *name);
/* Calls `pair` for each; its result other than 0 ends it and is returned. LEAT_CORRUPT: no pairs. */
int pairs_each(const void *pairs, size_t len, int (*pair)(void *user, const char *name, const char *value),
               void *user);

#endif
