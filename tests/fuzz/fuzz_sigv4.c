/* SPDX-License-Identifier: Apache-2.0 */
/* Queries as a stranger sends them: the canonical form of a canonical form is itself. */
#include "wire/http/http.h"
#include "wire/s3/sigv4.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes_out once = {0}, twice = {0};
    time_t t;
    if (sigv4_query_canonical(&once, (const char *)data, size, NULL) == 0) {
        const char *text = once.data ? (const char *)once.data : "";
        if (sigv4_query_canonical(&twice, text, once.len, NULL) < 0 || once.len != twice.len ||
            (once.len && memcmp(once.data, twice.data, once.len) != 0))
            abort();
        if (once.len > 3 * size + SIGV4_QUERY_MAX)
            abort();
    }
    bytes_out_fini(&once);
    bytes_out_fini(&twice);
    sigv4_time_parse((const char *)data, size, &t);
    return 0;
}
