/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.h: of which parts an object was made, as its metadata has it since its upload was completed. Pure.
 *
 *   leat-parts       "3:8388608" (how many: bytes of each but the last) or "8388608,5242880,17"
 *   leat-part-sums   "AAAAAA==,BBBBBB==": base64, of the object's own algorithm; left out where it would be long
 */
#ifndef SERVE_S3_PARTS_H
#define SERVE_S3_PARTS_H

#include "wire/http/http.h"

#define PARTS_SUMS_MAX 4096u /* characters */

struct object_part {
    uint64_t first, bytes; /* of the object */
    struct http_text sum;  /* data NULL: not kept */
};

/* 0: it was put in one, or the layout was too long to be kept. */
unsigned parts_count(const void *meta, size_t len);
/* By number, from 1, in an object of so many bytes. False: there is none. */
bool parts_find(const void *meta, size_t len, uint64_t object_bytes, unsigned number,
                struct object_part *ret_part);

#endif
