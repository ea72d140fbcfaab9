/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/s3/parts.h"

#include <stdio.h>

#include "base/pairs.h"

/* Element `i`, from 0, of a list with commas; data NULL: it has fewer. */
static struct http_text element(const char *list, unsigned i)
{
    for (; i && list; i--) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    return (struct http_text){list, list ? strcspn(list, ",") : 0};
}

static bool even(const char *text, unsigned *ret_n, uint64_t *ret_bytes)
{
    unsigned long long bytes;
    int used = 0;
    if (sscanf(text, "%u:%llu%n", ret_n, &bytes, &used) != 2 || text[used])
        return false;
    *ret_bytes = bytes;
    return true;
}

unsigned parts_count(const void *meta, size_t len)
{
    const char *text = pairs_get(meta, len, "leat-parts");
    unsigned n;
    uint64_t bytes;
    if (!text || even(text, &n, &bytes))
        return text ? n : 0;
    for (n = 1; (text = strchr(text, ',')); n++)
        text++;
    return n;
}

/* Where it begins, and its bytes; false: there is none, or the text is no layout of such an object. */
static bool place(const char *text, uint64_t object_bytes, unsigned number, struct object_part *ret)
{
    unsigned n;
    uint64_t each;
    if (even(text, &n, &each)) {
        if (number > n || mul_overflows(each, number - 1, &ret->first) || ret->first > object_bytes)
            return false;
        ret->bytes = number == n ? object_bytes - ret->first : MIN(each, object_bytes - ret->first);
        return true;
    }
    ret->first = 0;
    for (unsigned i = 1;; i++) {
        char *end;
        ret->bytes = strtoull(text, &end, 10);
        if (i == number)
            return ret->bytes <= object_bytes && ret->first <= object_bytes - ret->bytes;
        if (*end != ',')
            return false;
        ret->first += ret->bytes;
        text = end + 1;
    }
}

bool parts_find(const void *meta, size_t len, uint64_t object_bytes, unsigned number,
                struct object_part *ret_part)
{
    const char *layout = pairs_get(meta, len, "leat-parts"), *sums = pairs_get(meta, len, "leat-part-sums");
    if (!layout || number < 1 || !place(layout, object_bytes, number, ret_part))
        return false;
    ret_part->sum = element(sums, number - 1);
    return true;
}
