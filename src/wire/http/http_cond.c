/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/http/http_cond.h"

#include <strings.h>

enum http_ranged http_range(struct http_text range, uint64_t bytes, uint64_t *ret_first, uint64_t *ret_last)
{
    static const char unit[] = "bytes=";
    size_t n = sizeof(unit) - 1;
    uint64_t first, last;
    if (range.len <= n || strncasecmp(range.data, unit, n) != 0)
        return HTTP_RANGE_NONE;
    struct http_text spec = {range.data + n, range.len - n};
    const char *dash = memchr(spec.data, '-', spec.len);
    if (!dash)
        return HTTP_RANGE_NONE;
    struct http_text from = {spec.data, (size_t)(dash - spec.data)};
    struct http_text to = {dash + 1, spec.len - from.len - 1};
    if (from.len == 0) { /* the last so many */
        if (!http_text_u64(to, &last))
            return HTTP_RANGE_NONE;
        if (last == 0 || bytes == 0)
            return HTTP_RANGE_BEYOND;
        *ret_first = bytes - MIN(last, bytes);
        *ret_last = bytes - 1;
        return HTTP_RANGE_PART;
    }
    if (!http_text_u64(from, &first) || (to.len && (!http_text_u64(to, &last) || last < first)))
        return HTTP_RANGE_NONE;
    if (first >= bytes)
        return HTTP_RANGE_BEYOND;
    *ret_first = first;
    *ret_last = to.len ? MIN(last, bytes - 1) : bytes - 1;
    return HTTP_RANGE_PART;
}

bool http_etag_in(struct http_text list, const char *etag, bool strong)
{
    size_t n = strlen(etag);
    for (size_t i = 0; i < list.len;) {
        while (i < list.len && (list.data[i] == ' ' || list.data[i] == ',' || list.data[i] == '\t'))
            i++;
        bool weak = i + 2 < list.len && list.data[i] == 'W' && list.data[i + 1] == '/';
        if (weak)
            i += 2;
        bool quoted = i < list.len && list.data[i] == '"';
        size_t start = i + quoted, end = start;
        while (end < list.len && (quoted ? list.data[end] != '"' : list.data[end] != ','))
            end++;
        i = end + quoted;
        while (!quoted && end > start && list.data[end - 1] == ' ')
            end--;
        if (!quoted && end - start == 1 && list.data[start] == '*')
            return true;
        if (!(weak && strong) && end - start == n && memcmp(list.data + start, etag, n) == 0)
            return true;
    }
    return false;
}

bool http_range_holds(struct http_text if_range, const char *etag, int64_t modified)
{
    time_t date;
    if (http_date_parse(if_range, &date))
        return date == modified;
    return http_etag_in(if_range, etag, true);
}

unsigned http_conditions_check(const struct http_conditions *c, const char *etag, int64_t modified,
                               bool reads)
{
    time_t t;
    if (c->if_match.data) {
        if (!http_etag_in(c->if_match, etag, true))
            return 412;
    } else if (c->if_unmodified_since.data && http_date_parse(c->if_unmodified_since, &t) && modified > t) {
        return 412;
    }
    if (c->if_none_match.data) {
        if (http_etag_in(c->if_none_match, etag, false))
            return reads ? 304 : 412;
    } else if (reads && c->if_modified_since.data && http_date_parse(c->if_modified_since, &t) &&
               modified <= t) {
        return 304;
    }
    return 0;
}
