/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/json_whole.h"

#include "base/bytes.h"

static int text_add(const char *text, size_t bytes, void *user)
{
    struct bytes_out *out = user;
    bytes_put(out, text, bytes);
    return out->failed ? -1 : 0;
}

char *json_whole(const json_t *json)
{
    struct bytes_out out = {0};
    int rc = json ? json_dump_callback(json, text_add, &out, JSON_COMPACT) : -1;
    bytes_put_u8(&out, 0);
    if (rc == 0 && !out.failed)
        return (char *)out.data;
    bytes_out_fini(&out);
    return NULL;
}
