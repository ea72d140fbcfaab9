/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.h: names and values as bytes: "name\0value\0" for each pair. Metadata of objects has this form: names
 * in lower case by convention of HTTP, "content-type", "x-amz-meta-...", "x-amz-checksum-crc64nvme".
 */
#ifndef BASE_PAIRS_H
#define BASE_PAIRS_H

#include "base/base.h"

struct pair {
    const char *name, *value;
};
/* The pair behind *pair; {0}: the first one. False: no more follow, or what follows is no pair. */
bool pairs_next(const void *pairs, size_t len, struct pair *pair);
/* The value of the first pair of that name, which lies in `pairs`; NULL: none. */
const char *pairs_get(const void *pairs, size_t len, const char *name);

#endif
