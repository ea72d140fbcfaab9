/* SPDX-License-Identifier: Apache-2.0 */
/* The input cursor: the first byte of each step says which getter comes next. */
#include "base/bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes_in in = bytes_in_of(data, size);
    while (!in.bad && bytes_left(&in)) {
        uint8_t step = bytes_get_u8(&in);
        const uint8_t *run;
        switch (step % 5) {
        case 0:
            bytes_get_u8(&in);
            break;
        case 1:
            bytes_get_u32(&in);
            break;
        case 2:
            bytes_get_u64(&in);
            break;
        case 3:
            run = bytes_get(&in, step);
            if (run && (run < data || run + step > data + size))
                abort();
            break;
        case 4:
            free(bytes_get_str(&in, step));
            break;
        }
    }
    if (bytes_in_done(&in) == 0 && in.pos != size)
        abort();
    return 0;
}
