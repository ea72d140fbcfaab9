/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/s3/s3_crc.h"

#include <strings.h>

#include <libdeflate.h>
#include <openssl/evp.h>
#include <zlib.h>

#include "base/crc32c.h"
#include "base/crc64.h"

/* In the order in which they are looked for: what costs least first. */
static const struct {
    const char *name, *header;
    unsigned bytes;
} kinds[S3_CRC_KINDS] = {
    [S3_CRC32C] = {"CRC32C", "x-amz-checksum-crc32c", 4},
    [S3_CRC64NVME] = {"CRC64NVME", "x-amz-checksum-crc64nvme", 8},
    [S3_CRC32] = {"CRC32", "x-amz-checksum-crc32", 4},
};

const char *s3_crc_name(enum s3_crc_kind kind)
{
    return kinds[kind].name;
}

const char *s3_crc_header(enum s3_crc_kind kind)
{
    return kinds[kind].header;
}

void s3_crc_format(struct s3_crc crc, char out[S3_CRC_TEXT])
{
    unsigned bytes = kinds[crc.kind].bytes;
    uint8_t raw[8];
    for (unsigned i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(crc.value >> (8 * (bytes - 1 - i)));
    EVP_EncodeBlock((uint8_t *)out, raw, (int)bytes);
}

bool s3_crc_parse(enum s3_crc_kind kind, struct http_text text, struct s3_crc *ret_crc)
{
    unsigned bytes = kinds[kind].bytes;
    struct s3_crc crc = {.kind = kind};
    char again[S3_CRC_TEXT];
    uint8_t raw[9];
    if (text.len != (bytes + 2) / 3 * 4 ||
        EVP_DecodeBlock(raw, (const uint8_t *)text.data, (int)text.len) < (int)bytes)
        return false;
    for (unsigned i = 0; i < bytes; i++)
        crc.value = crc.value << 8 | raw[i];
    s3_crc_format(crc, again); /* one text for each: padding and spare bits as they have to be */
    if (!http_text_is(text, again))
        return false;
    *ret_crc = crc;
    return true;
}

/* "crc32c=n03x6A==", alone or in a list with others; the header may come several times. */
static bool google_crc(const struct http_reader *reader, const char *buf, struct s3_crc *ret_crc)
{
    static const char prefix[] = "crc32c=";
    for (unsigned i = 0; i < reader->nheaders; i++) {
        struct http_text name, value;
        http_header_at(reader, buf, i, &name, &value);
        if (!http_text_is_case(name, "x-goog-hash"))
            continue;
        while (value.len) {
            const char *comma = memchr(value.data, ',', value.len);
            size_t len = comma ? (size_t)(comma - value.data) : value.len, skip = sizeof(prefix) - 1;
            struct http_text one = {value.data + skip, len > skip ? len - skip : 0};
            if (len > skip && strncasecmp(value.data, prefix, skip) == 0 &&
                s3_crc_parse(S3_CRC32C, one, ret_crc))
                return true;
            len += comma != NULL;
            while (len < value.len && value.data[len] == ' ')
                len++;
            value = (struct http_text){value.data + len, value.len - len};
        }
    }
    return false;
}

struct s3_crc s3_crc_of(const struct http_reader *reader, const char *buf)
{
    struct s3_crc crc = {.kind = S3_CRC_NONE};
    for (enum s3_crc_kind k = S3_CRC_NONE + 1; k < S3_CRC_KINDS; k++) {
        if (s3_crc_parse(k, http_header(reader, buf, kinds[k].header), &crc))
            return crc;
    }
    google_crc(reader, buf, &crc);
    return crc;
}

uint64_t s3_crc_add(enum s3_crc_kind kind, uint64_t crc, const void *data, size_t bytes)
{
    switch (kind) {
    case S3_CRC32C:
        return crc32c((uint32_t)crc, data, bytes);
    case S3_CRC64NVME:
        return crc64nvme(crc, data, bytes);
    case S3_CRC32:
        return libdeflate_crc32((uint32_t)crc, data, bytes);
    default:
        return 0;
    }
}

uint64_t s3_crc_join(enum s3_crc_kind kind, uint64_t a, uint64_t b, uint64_t bytes_b)
{
    switch (kind) {
    case S3_CRC32C:
        return crc32c_combine((uint32_t)a, (uint32_t)b, bytes_b);
    case S3_CRC64NVME:
        return crc64nvme_combine(a, b, bytes_b);
    case S3_CRC32:
        return crc32_combine((uLong)a, (uLong)b, (z_off_t)bytes_b);
    default:
        return 0;
    }
}

void s3_crcs_add(struct s3_crcs *crcs, enum s3_crc_kind kind, const void *data, size_t bytes)
{
    for (enum s3_crc_kind k = S3_CRC_NONE + 1; k < S3_CRC_KINDS; k++) {
        if (kind == S3_CRC_NONE || kind == k)
            crcs->of[k] = s3_crc_add(k, crcs->of[k], data, bytes);
    }
}

void s3_crcs_join(struct s3_crcs *a, const struct s3_crcs *b, uint64_t bytes_b)
{
    for (enum s3_crc_kind k = S3_CRC_NONE + 1; k < S3_CRC_KINDS; k++)
        a->of[k] = s3_crc_join(k, a->of[k], b->of[k], bytes_b);
}
