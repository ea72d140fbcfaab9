/* SPDX-License-Identifier: Apache-2.0 */
/* http_cond.h: conditions and ranges of requests (RFC 9110, 13 and 14), over stored objects. Pure. */
#ifndef WIRE_HTTP_COND_H
#define WIRE_HTTP_COND_H

#include "wire/http/http.h"

enum http_ranged {
    HTTP_RANGE_NONE, /* no Range, or one to be ignored: another unit, several ranges, no range at all */
    HTTP_RANGE_PART,
    HTTP_RANGE_BEYOND, /* 416 */
};
/* "bytes=0-9", "bytes=10-", "bytes=-5" over `bytes`; *ret_first and *ret_last on HTTP_RANGE_PART. */
enum http_ranged http_range(struct http_text range, uint64_t bytes, uint64_t *ret_first, uint64_t *ret_last);

/*
 * Is the ETag (without quotes) in a list "\"a\", W/\"b\"", or the list "*"? Quotes may be missing, as some clients leave them out. strong: a weak one is
 * no such ETag, since the bytes may be others: If-Match and If-Range want that, If-None-Match does not.
 */
bool http_etag_in(struct http_text list, const char *etag, bool strong);
/* May a request with If-Range get a part: the same ETag, or the very date? */
bool http_range_holds(struct http_text if_range, const char *etag, int64_t modified);

struct http_conditions {
    struct http_text if_match, if_none_match, if_modified_since,
        if_unmodified_since; /* data NULL: not given */
};
/* 0: continue; 304; 412. In the order of RFC 9110, 13.2.2. reads: GET and HEAD. */
unsigned http_conditions_check(const struct http_conditions *c, const char *etag, int64_t modified,
                               bool reads);

#endif
