/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h: the layout of the store's files. Pure; input is checked, and fuzzed.
 *
 *   object     | payload | zeros, where direct I/O wants whole pages | trailer | footer |        trailer_bytes = trailer and footer
 *   log        | header | record | record ...                                                  a record: length, CRC, number, type, ...
 *   snapshot   | header, one page | entries, sorted | strings | outstanding file numbers |
 *
 * All little-endian; every one has a magic, a version and CRC32Cs.
 */
#ifndef STORE_FORMAT_H
#define STORE_FORMAT_H

#include "base/bytes.h"
#include "store/index.h"

/* --- object ------------------------------------------------------------------------------------------------------------- */

#define FOOTER_BYTES      40u
#define TRAILER_BYTES_MAX (64u * 1024 * 1024) /* 5 TiB have 20 MiB of block CRCs */

struct trailer {
    uint64_t file, seq, bytes;
    int64_t mtime_ns;
    uint32_t flags, crc32c, bucket_id, parts;
    uint8_t etag[16];
    /* what follows lies inside the parsed bytes */
    const uint8_t *key;
    const char *bucket, *etag_text, *remote; /* "" where there is none */
    const uint8_t *meta;
    const uint32_t *crcs; /* of each STORE_BLOCK; 4-byte aligned if the trailer's bytes are */
    uint64_t ncrcs;
    uint32_t key_len, meta_len;
};
/* Appends trailer and footer. */
int store_trailer_put(struct bytes_out *out, const struct trailer *t);
/* The last FOOTER_BYTES of a file: how long trailer and footer are together, and the payload. LEAT_CORRUPT. */
int store_footer_parse(const void *footer, uint32_t *ret_trailer_bytes, uint64_t *ret_bytes);
/* data: the last trailer_bytes of a file, which it points into. LEAT_CORRUPT. */
int store_trailer_parse(const void *data, size_t len, struct trailer *ret);
static inline uint64_t store_blocks(uint64_t bytes)
{
    return div_up(bytes, STORE_BLOCK);
}

/* --- ETags -------------------------------------------------------------------------------------------------------------- */

/* "0123...ef" and "0123...ef-12" become 16 bytes and a number; others stay text (INDEX_ETAG_TEXT). */
void store_etag_pack(const char *text, uint8_t ret_md5[16], uint32_t *ret_parts);
/* text: of INDEX_ETAG_TEXT. */
void store_etag_format(const uint8_t md5[16], uint32_t parts, const char *text, char out[STORE_ETAG_MAX + 1]);
/* The value of `type` in extra, or NULL. */
const char *store_extra_get(const uint8_t *extra, size_t len, char type);
/* Appends one; SIZE_MAX: no room. */
size_t store_extra_put(uint8_t *extra, size_t len, char type, const char *text);

/* --- log ---------------------------------------------------------------------------------------------------------------- */

#define LOG_HEADER_BYTES 64u
#define LOG_RECORD_HEAD  20u
#define LOG_RECORD_MAX   (LOG_RECORD_HEAD + sizeof(struct index_value) + 8 + INDEX_KEY_MAX + INDEX_EXTRA_MAX)

enum log_type {
    LOG_PUT = 1,  /* value, key, extra */
    LOG_DELETE,   /* value (its seq counts), key */
    LOG_ALLOCATE, /* value.file: the first of value.bytes numbers of files that are about to be made */
    LOG_CLOSE,    /* the store was closed in order; nothing is in flight */
    LOG_MARK,     /* only carries `unflushed` */
};
#define LOG_UNFLUSHED_MAX 255u
struct log_record {
    enum log_type type;
    /* So many records before it were not known to be on the disk when it was written; LOG_UNFLUSHED_MAX: that
     * many, or more. All earlier ones were flushed: if one of them is missing, the log is damaged. */
    uint8_t unflushed;
    struct index_value value;
    const uint8_t *key, *extra;
    uint16_t key_len, extra_len;
};
struct log_header {
    uint64_t number;
    /* Of the log before, as a second copy: its records on the disk, and the end of the last. 0: unknown. */
    uint64_t before_records, before_end;
};
void store_log_header_put(uint8_t out[LOG_HEADER_BYTES], const uint8_t path_id[16],
                          const struct log_header *h);
/* LEAT_CORRUPT: not the header of this path's log of that number. */
int store_log_header_parse(const uint8_t *data, size_t len, const uint8_t path_id[16], uint64_t number,
                           struct log_header *ret);
/* nth: of the record in its log, from 0. Returns how many bytes; `out` has room for LOG_RECORD_MAX. */
size_t store_log_record_put(uint8_t *out, uint64_t number, uint64_t nth, const struct log_record *r);
/* Bytes of the record at the start of data; 0: none that is whole and of this log and place. */
size_t store_log_record_parse(const uint8_t *data, size_t len, uint64_t number, uint64_t nth,
                              struct log_record *ret);

/* --- snapshot ----------------------------------------------------------------------------------------------------------- */

#define SNAPSHOT_HEADER_BYTES 4096u
#define OUTSTANDING_MAX       (1u << 20)

struct snapshot_header {
    uint64_t number; /* logs of lower numbers are in it */
    uint64_t count;  /* entries */
    uint64_t strings_bytes;
    uint64_t outstanding; /* files that were made or being written and belong to no object */
    uint64_t next_file, next_seq;
    uint32_t body_crc;
};
void store_snapshot_header_put(uint8_t out[SNAPSHOT_HEADER_BYTES], const uint8_t path_id[16],
                               const struct snapshot_header *h);
/* All of a snapshot: header, checksum, order of keys, bounds. ret_entries and so on point into data. LEAT_CORRUPT. */
int store_snapshot_parse(const uint8_t *data, size_t len, const uint8_t path_id[16],
                         struct snapshot_header *ret_header, const struct snapshot_entry **ret_entries,
                         const uint8_t **ret_strings, const uint64_t **ret_outstanding);

#endif
