/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c: structs of the API between programs and libraries of different releases. Each begins with its `size`:
 *
 *   caller older    │ size │ known │              the rest is taken as zero
 *   same            │ size │ known          │
 *   caller newer    │ size │ known          │ unknown │   which must be zero: what we cannot do is not passed over in silence
 *
 * Failure modes: a size that was not set, which shows as one that cannot be. Invariants: nothing past the caller's `size` is
 * read or written; no public struct ends in padding, so that every byte below `size` means something.
 */
#include "client/client.h"

#include "leat-config.h"

#define SIZE_MOST 4096u /* larger than any struct of the API will be: what was never set is mostly garbage */

static int check_size(const char *name, size_t size, size_t least, struct leat_error *err)
{
    if (size >= least && size <= SIZE_MOST)
        return 0;
    return error_set(err, LEAT_INVALID, "%s.size is %zu: set it to sizeof(struct %s)", name, size, name);
}

int options_take(const char *name, const void *given, size_t least, void *ret, size_t own,
                 struct leat_error *err)
{
    size_t size;
    memset(ret, 0, own);
    if (!given)
        return 0;
    memcpy(&size, given, sizeof(size));
    int rc = check_size(name, size, least, err);
    if (rc)
        return rc;
    for (size_t i = own; i < size; i++)
        if (((const uint8_t *)given)[i])
            return error_set(err, LEAT_UNSUPPORTED,
                             "%s asks for something that libleat " LEAT_VERSION
                             " does not know: it is older than the program",
                             name);
    memcpy(ret, given, MIN(size, own));
    memcpy(ret, &own, sizeof(own));
    return 0;
}

int options_take_array(const char *name, const void *given, unsigned n, size_t least, void *ret, size_t own,
                       struct leat_error *err)
{
    size_t stride, size;
    memcpy(&stride, given, sizeof(stride));
    int rc = n ? check_size(name, stride, least, err) : 0;
    for (unsigned i = 0; !rc && i < n; i++) {
        const uint8_t *at = (const uint8_t *)given + i * stride;
        memcpy(&size, at, sizeof(size));
        rc = size == stride
                 ? options_take(name, at, least, (uint8_t *)ret + i * own, own, err)
                 : error_set(err, LEAT_INVALID, "%s %u has another size (%zu) than the first (%zu)", name, i,
                             size, stride);
    }
    return rc;
}

int options_give(const char *name, void *given, size_t least, const void *own, size_t own_size,
                 struct leat_error *err)
{
    size_t size;
    memcpy(&size, given, sizeof(size));
    int rc = check_size(name, size, least, err);
    if (rc)
        return rc;
    memset(given, 0, size);
    memcpy(given, own, MIN(size, own_size));
    memcpy(given, &size, sizeof(size));
    return 0;
}

int options_flags(const char *name, unsigned flags, unsigned known, struct leat_error *err)
{
    if (!(flags & ~known))
        return 0;
    return error_set(err, LEAT_INVALID, "%s: flags 0x%x are not known, of 0x%x", name, flags & ~known, flags);
}
