/* SPDX-License-Identifier: Apache-2.0 */
/* JPEGs, and PPMs: the first byte chooses what is made of the rest. Nothing beside the output is written (its surroundings are checked). */
#include "prep/prep.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EDGE  20
#define GUARD 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct prep_scratch *scratch; /* kept: one image must not spoil the next */
    static uint8_t out[GUARD + EDGE * EDGE * 3 * 4 + GUARD];
    if (!size || (!scratch && prep_scratch_new(&scratch)))
        return 0;
    unsigned how = *data++;
    size--;
    struct prep_params p;
    prep_params_init(&p);
    p.out_width = p.out_height = EDGE;
    p.resize = EDGE + 3;
    p.max_pixels = 1 << 18;
    p.mode = how & 1 ? PREP_CENTER_CROP : PREP_RANDOM_CROP;
    p.filter = how & 2 ? PREP_BICUBIC : PREP_BILINEAR;
    p.format = (enum prep_format)((how >> 2 & 3) % 3);
    p.accept_damaged = how & 16;
    p.exact = how & 32;
    prep_params_layout(&p, how & 64);
    memset(out, 0xa5, sizeof(out));
    struct leat_error err = {0};
    int rc = prep_image(&p, data, size, 1, 2, how, out + GUARD, scratch, &err);
    if (rc && !err.message[0])
        abort();
    size_t written = EDGE * EDGE * 3 * (p.format == PREP_F32 ? 4 : p.format == PREP_BF16 ? 2 : 1);
    for (size_t i = 0; i < sizeof(out); i++) {
        if ((i < GUARD || i >= GUARD + written) && out[i] != 0xa5)
            abort();
    }
    struct prep_size at;
    if (prep_jpeg_size(data, size, 1 << 18, how & 128, scratch, &at, &err) == 0) {
        size_t bytes = 3 * (size_t)at.width * at.height;
        uint8_t *whole = malloc(bytes); /* of this size exactly: for the sanitizer */
        if (whole)
            prep_jpeg_decode(data, size, 1 << 18, how & 16, how & 128, whole, bytes, scratch, &err);
        free(whole);
    }
    return 0;
}
