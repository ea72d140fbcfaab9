/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h: what a batch asks for: objects, parts of them, members of archives, in the order in which they are to come. JSON (RFC 8259), a
 * list of objects or one object a line:
 *
 *   [{"key": "a/1.jpg"}, {"key": "shard-7.tar", "archpath": "0012.jpg"}, {"key": "big", "range": "bytes=0-4095", "opaque": "mine"}]
 *
 * Pure. Elements are looked at one by one, so that a parser's memory is that of one of them.
 */
#ifndef WIRE_S3_BATCH_H
#define WIRE_S3_BATCH_H

#include "base/base.h"

#define BATCH_BYTES_MAX   (4 * MIB)
#define BATCH_ENTRIES_MAX 4096u
#define BATCH_ELEMENT_MAX (32 * KIB) /* of one element, as it is written */
#define BATCH_KEY_MAX     1024u
#define BATCH_MEMBER_MAX  2048u
#define BATCH_OPAQUE_MAX  1024u
#define BATCH_RANGE_MAX   64u

struct batch_entry {
    const char *key, *member, *range, *opaque; /* NUL-terminated UTF-8; NULL where there is none */
};

struct batch_request {
    struct batch_entry *entries;
    unsigned n;
    char *text; /* theirs */
};

/* LEAT_INVALID: what is wrong, with the number of the element (from 1). LEAT_NO_SPACE: more elements than may be, or longer ones. */
int batch_request_parse(const char *json, size_t len, struct batch_request *ret_request,
                        struct leat_error *err);
void batch_request_fini(struct batch_request *request);

/* Of a payload of `bytes` bytes: what is wanted. False: nothing of it exists. */
bool batch_entry_part(const struct batch_entry *entry, uint64_t bytes, uint64_t *ret_first,
                      uint64_t *ret_count);

#endif
