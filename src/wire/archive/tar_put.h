/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar_put.h: the headers of an archive, written: ustar (POSIX.1-1988) where the name is of at most 100 printable ASCII characters and the size
 * below 8 GiB, else with a pax header (POSIX.1-2001) in front. Writes no payload: behind each header come `bytes` bytes of it, then zeros up to a multiple of TAR_BLOCK; behind the
 * last member come TAR_END_BYTES of zeros.
 */
#ifndef WIRE_ARCHIVE_TAR_PUT_H
#define WIRE_ARCHIVE_TAR_PUT_H

#include "wire/archive/tar.h"

#define TAR_END_BYTES   (2 * TAR_BLOCK)
#define TAR_PUT_RECORDS 4u
/* No header is longer: path and records are TAR_PATH_MAX - 1 bytes each at most, key included. */
#define TAR_PUT_MAX (3 * TAR_BLOCK + (TAR_PUT_RECORDS + 2) * (TAR_PATH_MAX + 32))

struct tar_put {
    const char *path; /* as it is to stand there: it is not looked at, but for its length */
    char type;        /* '0' a file; '5' a folder, bytes 0 */
    unsigned mode;    /* 0: 0644, of a folder 0755 */
    uint64_t bytes;   /* of payload, INT64_MAX - TAR_PUT_MAX at most */
    int64_t mtime;    /* seconds since 1970; before it: 0 is written */
    struct {
        const char *key, *value; /* pax records of our own: "LEAT.opaque" */
    } records[TAR_PUT_RECORDS];
    unsigned nrecords;
};

/* Bytes of the header, a multiple of TAR_BLOCK; 0: LEAT_INVALID, a text is too long. */
size_t tar_put_header_bytes(const struct tar_put *entry);
/* Header, payload and what fills it up; 0 as above. */
uint64_t tar_put_bytes(const struct tar_put *entry);
/* Writes all tar_put_header_bytes(entry) bytes of it. */
void tar_put_header(const struct tar_put *entry, void *buf);
/* What fills up a payload of so many bytes. */
static inline unsigned tar_put_padding(uint64_t bytes)
{
    return (unsigned)(align_up(bytes, TAR_BLOCK) - bytes);
}

#endif
