/* SPDX-License-Identifier: Apache-2.0 */
/* index_internal.h: shared by the sources of the index and their tests. */
#ifndef DATASET_INDEX_INTERNAL_H
#define DATASET_INDEX_INTERNAL_H

#include "dataset/index.h"

/* Far above anything real, and low enough that sums of a few of them cannot wrap. */
#define INDEX_MAX_SAMPLES (1ull << 48)
#define INDEX_MAX_ADDRESS (1ull << 62)
#define INDEX_ELEMENT_MAX 65536u /* bytes of one array element */

uint32_t index_header_crc(const struct index_header *header);
/* By bytes, the shorter first: the order of `sorted`. */
int index_key_compare(const char *a, size_t alen, const char *b, size_t blen);
/* XXH3-64 of the bytes behind the header, in a file of `total_bytes`. 0, LEAT_CORRUPT (it is shorter),
 * -ENOMEM or another errno. */
int index_body_hash(int fd, uint64_t total_bytes, uint64_t *ret_hash);
/* Is it allowed in a header of a request? */
bool index_etag_sound(const char *etag);
/* Of a stored chunk, after the filters: a reader holds it in memory, some of them twice. 4 MiB of a file could claim 4 GiB. */
#define INDEX_DECODED_MAX (1ull << 30)
/* Can the filters have made `source_bytes` of `decoded_bytes`? Deflate shrinks to 1/1032 at best, and grows
 * what it cannot shrink by a few bytes in a block: other sizes are false, and would only cost memory. */
static inline bool index_stored_plausible(uint64_t source_bytes, uint64_t decoded_bytes, uint32_t filters)
{
    if (decoded_bytes > INDEX_DECODED_MAX)
        return false;
    if (filters & INDEX_FILTER_DEFLATE)
        return decoded_bytes / 1100 <= source_bytes &&
               source_bytes <= decoded_bytes + decoded_bytes / 64 + 1024;
    return source_bytes == decoded_bytes + (filters & INDEX_FILTER_FLETCHER32 ? 4 : 0);
}
/* May this geometry be used on an extent of `extent_bytes`? Checks every offset that dataset_extent_decode computes. */
bool index_chunk_fits(const struct index_chunk *chunk, const struct index_shape *shape,
                      uint64_t extent_bytes);
/* Is it sound by itself: sizes, filters, every run inside the decoded bytes? */
bool index_shape_sound(const struct index_shape *shape);

#endif
