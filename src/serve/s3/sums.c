/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of S3: names, texts, and where they are kept. */
#include "serve/s3/task.h"

#include <stdio.h>
#include <strings.h>

const struct sum_name sum_names[SUM_KINDS] = {
    [SUM_CRC32] = {"x-amz-checksum-crc32", "ChecksumCRC32", "CRC32", 4, "AAAAAA=="},
    [SUM_CRC32C] = {"x-amz-checksum-crc32c", "ChecksumCRC32C", "CRC32C", 4, "AAAAAA=="},
    [SUM_CRC64] = {"x-amz-checksum-crc64nvme", "ChecksumCRC64NVME", "CRC64NVME", 8, "AAAAAAAAAAA="},
    [SUM_SHA1] = {"x-amz-checksum-sha1", "ChecksumSHA1", "SHA1", 20, "2jmj7l5rSw0yVb/vlWAYkK/YBwk="},
    [SUM_SHA256] = {"x-amz-checksum-sha256", "ChecksumSHA256", "SHA256", 32,
                    "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
};

enum sum_kind sum_by_name(const char *name, size_t len)
{
    for (unsigned k = 0; k < SUM_KINDS; k++) {
        if (strlen(sum_names[k].name) == len && strncasecmp(sum_names[k].name, name, len) == 0)
            return (enum sum_kind)k;
    }
    return SUM_NONE;
}

void sum_format(const uint8_t *raw, unsigned bytes, char out[SUM_TEXT])
{
    EVP_EncodeBlock((uint8_t *)out, raw, (int)bytes);
}

bool sum_parse(const char *text, size_t len, unsigned bytes, uint8_t *ret_raw)
{
    uint8_t raw[48];
    char again[SUM_TEXT];
    if (len != (bytes + 2) / 3 * 4 || len > 44 ||
        EVP_DecodeBlock(raw, (const uint8_t *)text, (int)len) < (int)bytes)
        return false;
    sum_format(raw, bytes, again); /* one text for each: padding and spare bits as they have to be */
    if (memcmp(again, text, len) != 0)
        return false;
    memcpy(ret_raw, raw, bytes);
    return true;
}

/* SDKs that make a link sign the checksum of an empty body into it, as they have seen no other: that one is no demand. */
struct http_text sum_demand(const struct s3_task *v, enum sum_kind kind)
{
    struct http_text t = s3_task_demand(v, sum_names[kind].header);
    bool linked = !s3_task_header(v, sum_names[kind].header).data;
    return linked && http_text_is(t, sum_names[kind].empty) ? (struct http_text){0} : t;
}

enum sum_kind sum_of_meta(const void *meta, size_t len, const char **ret_value, bool *ret_full)
{
    for (unsigned k = 0; k < SUM_KINDS; k++) {
        const char *value = pairs_get(meta, len, sum_names[k].header);
        if (!value)
            continue;
        *ret_value = value;
        *ret_full = !strchr(value, '-');
        return (enum sum_kind)k;
    }
    return SUM_NONE;
}

bool sum_mismatch(struct s3_task *v, enum sum_kind actual)
{
    char message[160];
    snprintf(message, sizeof(message),
             "Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s",
             sum_names[v->declared].header + sizeof("x-amz-checksum-") - 1,
             actual == SUM_NONE ? "null" : sum_names[actual].header + sizeof("x-amz-checksum-") - 1);
    return s3_task_fail(v, S3_INVALID_REQUEST, message);
}
