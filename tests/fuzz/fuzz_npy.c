/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of .npy files: what is accepted is consistent. */
#include "wire/archive/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct leat_error err = {0};
    struct npy_header h;
    uint64_t bytes = npy_header_bytes(data, size, &err);
    if (bytes > NPY_MAX_HEADER || (bytes == 0) != (err.code != 0))
        abort();
    if (npy_parse(data, size, &h, &err) < 0)
        return 0;
    uint64_t product = h.itemsize;
    bool empty = false;
    for (uint32_t d = 0; d < h.ndim; d++)
        empty |= h.shape[d] == 0;
    for (uint32_t d = 0; d < h.ndim && !empty; d++)
        if (mul_overflows(product, h.shape[d], &product))
            abort();
    if (h.data_bytes != (empty ? 0 : product) || h.data_offset != bytes || h.ndim > NPY_MAX_DIMS ||
        strnlen(h.dtype, sizeof(h.dtype)) == sizeof(h.dtype))
        abort();
    return 0;
}
