/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pairs.h"

int pairs_each(const void *pairs, size_t len, int (*pair)(void *user, const char *name, const char *value),
               void *user)
{
    const char *at = pairs, *end = at + len;
    while (at < end) {
        const char *name_end = memchr(at, 0, (size_t)(end - at));
        const char *value_end = name_end ? memchr(name_end + 1, 0, (size_t)(end - name_end - 1)) : NULL;
        if (!value_end)
            return LEAT_CORRUPT;
        int rc = pair(user, at, name_end + 1);
        if (rc != 0)
            return rc;
        at = value_end + 1;
    }
    return 0;
}

struct wanted {
    const char *name, *value;
};

static int match(void *user, const char *name, const char *value)
{
    struct wanted *w = user;
    if (strcmp(name, w->name) != 0)
        return 0;
    w->value = value;
    return 1;
}

const char *pairs_get(const void *pairs, size_t len, const char *name)
{
    struct wanted w = {.name = name};
    pairs_each(pairs, len, match, &w);
    return w.value;
}
