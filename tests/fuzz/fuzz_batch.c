/* SPDX-License-Identifier: Apache-2.0 */
/* What a batch asks for: whatever is taken is within its limits. */
#include "wire/s3/batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct batch_request r;
    struct leat_error err;
    int rc = batch_request_parse((const char *)data, size, &r, &err);
    if (rc < 0)
        return 0;
    if (r.n == 0 || r.n > BATCH_ENTRIES_MAX)
        abort();
    for (unsigned i = 0; i < r.n; i++) {
        const struct batch_entry *e = &r.entries[i];
        uint64_t first, count;
        if (!*e->key || strlen(e->key) > BATCH_KEY_MAX ||
            (e->member && (!*e->member || strlen(e->member) > BATCH_MEMBER_MAX)) ||
            (e->opaque && strlen(e->opaque) > BATCH_OPAQUE_MAX))
            abort();
        if (batch_entry_part(e, size, &first, &count) && (first > size || count > size - first))
            abort();
    }
    batch_request_fini(&r);
    return 0;
}
