/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and durations out of command lines, URIs and configuration files. */
#include "base/size.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    struct leat_error err;
    uint64_t value = 42;
    int rc = size_parse(text, &value, &err);
    if (rc != 0 && (rc != LEAT_INVALID || value != 42 || err.message[0] == 0))
        abort();
    char out[SIZE_TEXT_MAX];
    size_format(value, out);
    value = 42;
    rc = duration_parse_ns(text, &value, &err);
    if (rc != 0 && (rc != LEAT_INVALID || value != 42 || err.message[0] == 0))
        abort();
    return 0;
}
