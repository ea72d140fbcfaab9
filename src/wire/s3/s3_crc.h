/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_crc.h: the CRCs that services keep of whole objects, and whose parts can be joined in any order: CRC32C,
 * CRC64NVME (what AWS's command line stores), CRC32 (what SDKs store by default). Amazon's "Checking object
 * integrity in Amazon S3"; Google's `x-goog-hash`. What cannot be joined (MD5, SHA) is not here: it costs
 * several times what receiving the bytes does. Pure; any thread.
 */
#ifndef WIRE_S3_CRC_H
#define WIRE_S3_CRC_H

#include "wire/http/http.h"

enum s3_crc_kind { S3_CRC_NONE, S3_CRC32C, S3_CRC64NVME, S3_CRC32, S3_CRC_KINDS };

struct s3_crc {
    enum s3_crc_kind kind; /* S3_CRC_NONE: there is none */
    uint64_t value;
};

/* "CRC32C", for messages. Not of S3_CRC_NONE. */
const char *s3_crc_name(enum s3_crc_kind kind);
/* "x-amz-checksum-crc32c". */
const char *s3_crc_header(enum s3_crc_kind kind);

/* What an answer says of all of the object: the kind that is cheapest to compare. A checksum of parts ("...-5") is none. */
struct s3_crc s3_crc_of(const struct http_reader *reader, const char *buf);

/* `crc` continues with these bytes; 0 is a fresh one. Of S3_CRC_NONE it is 0. */
uint64_t s3_crc_add(enum s3_crc_kind kind, uint64_t crc, const void *data, size_t bytes);
/* Of a‖b, from those of a and of b, and b's length; no byte is touched. */
uint64_t s3_crc_join(enum s3_crc_kind kind, uint64_t a, uint64_t b, uint64_t bytes_b);

/* Where it is not known yet which one will be asked for. */
struct s3_crcs {
    uint64_t of[S3_CRC_KINDS];
};
/* S3_CRC_NONE: all kinds; else that one alone. */
void s3_crcs_add(struct s3_crcs *crcs, enum s3_crc_kind kind, const void *data, size_t bytes);
void s3_crcs_join(struct s3_crcs *a, const struct s3_crcs *b, uint64_t bytes_b);

/* A checksum in a header: base64 of its 4 or 8 bytes, the highest first. False: another thing, as that of parts is. */
#define S3_CRC_TEXT 13
void s3_crc_format(struct s3_crc crc, char out[S3_CRC_TEXT]);
bool s3_crc_parse(enum s3_crc_kind kind, struct http_text text, struct s3_crc *ret_crc);

#endif
