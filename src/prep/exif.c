/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exif.c: the orientation out of a JPEG's APP1 marker, without libjpeg.
 * EXIF 2.32 (CIPA DC-008-2019), 4.5.4 and 4.6.2: "Exif\0\0", a TIFF header, IFD0 with entries of 12 bytes; tag 0x0112, type SHORT.
 */
#include "prep/decoder.h"

static unsigned get16(const uint8_t *p, bool little)
{
    return little ? p[0] | p[1] << 8 : p[0] << 8 | p[1];
}

static uint32_t get32(const uint8_t *p, bool little)
{
    return little ? get16(p, true) | (uint32_t)get16(p + 2, true) << 16
                  : (uint32_t)get16(p, false) << 16 | get16(p + 2, false);
}

static unsigned of_tiff(const uint8_t *t, size_t n)
{
    if (n < 8 || (memcmp(t, "II*\0", 4) && memcmp(t, "MM\0*", 4)))
        return 1;
    bool little = t[0] == 'I';
    uint32_t at = get32(t + 4, little);
    if (at > n - 2)
        return 1;
    unsigned entries = get16(t + at, little);
    at += 2;
    for (; entries && n - at >= 12; entries--, at += 12) {
        if (get16(t + at, little) != 0x0112)
            continue;
        unsigned value = get16(t + at + 8, little);
        return get16(t + at + 2, little) == 3 && value >= 1 && value <= 8 ? value : 1;
    }
    return 1;
}

unsigned exif_orientation(const uint8_t *bytes, size_t n)
{
    if (n < 4 || bytes[0] != 0xff || bytes[1] != 0xd8)
        return 1;
    for (size_t at = 2; n - at >= 4;) {
        if (bytes[at] != 0xff)
            return 1;
        unsigned marker = bytes[at + 1];
        if (marker == 0xff) { /* padding */
            at++;
            continue;
        }
        if (marker == 0xda || marker == 0xd9 || marker == 0) /* image data */
            return 1;
        if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) { /* no length */
            at += 2;
            continue;
        }
        size_t length = get16(bytes + at + 2, false);
        if (length < 2 || length > n - at - 2)
            return 1;
        const uint8_t *body = bytes + at + 4;
        if (marker == 0xe1 && length >= 8 && !memcmp(body, "Exif\0\0", 6))
            return of_tiff(body + 6, length - 8);
        at += 2 + length;
    }
    return 1;
}
