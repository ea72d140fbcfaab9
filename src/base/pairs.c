/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pairs.h"

bool pairs_next(const void *pairs, size_t len, struct pair *pair)
{
    const char *name = pair->name ? pair->value + strlen(pair->value) + 1 : pairs;
    const char *end = (const char *)pairs + len;
    const char *value = name < end ? memchr(name, 0, (size_t)(end - name)) : NULL;
    if (!value || !memchr(value + 1, 0, (size_t)(end - value - 1)))
        return false;
    *pair = (struct pair){name, value + 1};
    return true;
}

const char *pairs_get(const void *pairs, size_t len, const char *name)
{
    struct pair pair = {0};
    while (pairs_next(pairs, len, &pair))
        if (strcmp(pair.name, name) == 0)
            return pair.value;
    return NULL;
}
