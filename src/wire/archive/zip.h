/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip.h: what is in a ZIP archive (PKWARE's APPNOTE 6.3.10), by its central directory, zip64 and archives with something in front of them
 * (programs that unpack themselves) included. A push parser that does no I/O: it says which bytes it wants next, the caller brings them.
 *
 *   front │ local header, payload │ … │ central directory │ zip64 end, its locator │ end of directory, comment │
 *
 * The directory alone counts: local headers are read only for the begin of their payload (zip_data_offset),
 * as sizes behind the payload ("data descriptors") stand in the directory as well. Encrypted members and
 * archives over several disks are not read.
 */
#ifndef WIRE_ARCHIVE_ZIP_H
#define WIRE_ARCHIVE_ZIP_H

#include "base/base.h"
#include "wire/archive/tar.h"

#define ZIP_PATH_MAX TAR_PATH_MAX
#define ZIP_TAIL_MAX                                                                                         \
    (22u + 65535u + 20u + 56u) /* end of directory with its comment, and what zip64 has in front */
#define ZIP_WANT_MAX    (46u + 3 * 65535u)
#define ZIP_LOCAL_BYTES 30u
/* Deflate makes at most 258 bytes out of two bits. An entry that claims more is an attack. */
#define ZIP_RATIO_MAX 1032u

enum zip_method { ZIP_STORED = 0, ZIP_DEFLATED = 8 };

struct zip_member {
    /* NUL-terminated UTF-8, "./" in front and "/" at the end removed; checked by tar_path_check */
    char path[ZIP_PATH_MAX];
    bool directory, encrypted;
    uint16_t method;        /* enum zip_method, or one that is not read */
    uint32_t crc;           /* CRC-32 (IEEE) of the payload as it is to come out */
    uint64_t bytes;         /* of it */
    uint64_t stored_bytes;  /* in the archive */
    uint64_t header_offset; /* of the local header, in the file */
    int64_t mtime;          /* as if its clock had been UTC; 0: not a date */
};

struct zip_parser {
    uint64_t offset; /* in the file, of the bytes wanted next */
    uint32_t want;   /* how many: ZIP_TAIL_MAX or ZIP_WANT_MAX at most, and within the file */
    uint64_t directory_offset, directory_bytes, members; /* after the first feed */
    /* private */
    uint64_t file_bytes, base, left, seen;
    bool zip64;
    int state;
};

enum zip_step { ZIP_MORE, ZIP_MEMBER, ZIP_END };

/* LEAT_CORRUPT: a file of so many bytes is none. */
int zip_parser_init(struct zip_parser *p, uint64_t file_bytes, struct leat_error *err);
/*
 * Give exactly the `want` bytes at `offset`. Returns ZIP_MORE, ZIP_MEMBER (*ret_member is filled; continue after it), ZIP_END, or
 * LEAT_CORRUPT, LEAT_INVALID (a path that is refused), LEAT_UNSUPPORTED (several disks).
 */
int zip_parser_feed(struct zip_parser *p, const void *buf, size_t len, struct zip_member *ret_member,
                    struct leat_error *err);

/* Can its payload be read? LEAT_UNSUPPORTED: encrypted, or compressed in another way. */
int zip_member_readable(const struct zip_member *m, struct leat_error *err);
/* Where the payload begins. `local`: ZIP_LOCAL_BYTES at m->header_offset. `limit`: directory_offset, which payload does not reach into. */
int zip_data_offset(const struct zip_member *m, const void *local, uint64_t limit, uint64_t *ret_offset,
                    struct leat_error *err);

/* Payload that comes out while it goes in, in constant memory (about 45 KiB): inflated or as it is, counted,
 * and its CRC compared. One member each; a thread at a time. */
struct zip_stream;
int zip_stream_new(const struct zip_member *m, struct zip_stream **ret_stream);
void zip_stream_free(struct zip_stream *s); /* NULL is fine */
/*
 * Takes up to in_len stored bytes, gives up to cap of the payload. 0: continue, with more room or with more input (see *ret_used); 1: all of
 * the payload is out and it is right. LEAT_CORRUPT: it is not what its directory says. Something is used or made by each call that is
 * given input and room; no input at all when all stored bytes were given: 1 or LEAT_CORRUPT follow.
 */
int zip_stream_feed(struct zip_stream *s, const void *in, size_t in_len, size_t *ret_used, void *out,
                    size_t cap, size_t *ret_made, struct leat_error *err);

#endif
