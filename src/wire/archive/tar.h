/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar.h: member headers of ustar, GNU and pax archives (POSIX.1-2017 pax; GNU long names 'L', base-256 sizes,
 * pax path/size/linkpath records; global pax headers). A push parser that does no I/O: it says which bytes it wants
 * next, the caller brings them, and payload is skipped, never read.
 */
#ifndef WIRE_ARCHIVE_TAR_H
#define WIRE_ARCHIVE_TAR_H

#include "base/base.h"

#define TAR_BLOCK     512u
#define TAR_PATH_MAX  4096u
#define TAR_DEPTH_MAX 1000u

struct tar_member {
    /* NUL-terminated, as in the archive but "./" prefixes removed; checked by tar_path_check */
    char path[TAR_PATH_MAX];
    /* '0' regular, '5' directory, '1' hard link, '2' symbolic link, 'S' sparse (GNU or pax), others as in the archive */
    char type;
    /* of the first header block that belongs to the member (long-name blocks included) */
    uint64_t header_offset;
    uint64_t data_offset, bytes; /* of the payload */
};

struct tar_parser {
    uint64_t offset; /* in the archive, of the bytes wanted next */
    uint32_t want;   /* how many: a multiple of TAR_BLOCK */
    /* private */
    char long_path[TAR_PATH_MAX];
    uint64_t pax_size;
    uint64_t first_header;
    bool have_long_path, have_pax_size, sparse, in_member;
    int state;
    unsigned zero_blocks;
    uint32_t ext_bytes;
    char ext_type;
};

enum tar_step { TAR_MORE, TAR_MEMBER, TAR_END };

void tar_parser_init(struct tar_parser *p);
/*
 * Give the `want` bytes at `offset` (fewer only at the archive's end). Returns TAR_MORE (continue), TAR_MEMBER
 * (*ret_member is filled; continue after it), TAR_END (end mark, or end of the file at a member boundary: both are
 * accepted), or LEAT_CORRUPT (bad checksum, size overflow, truncated), LEAT_INVALID (a path that is refused).
 * It sees no payload: that data_offset + bytes lies within the file is the caller's to check.
 */
int tar_parser_feed(struct tar_parser *p, const void *buf, size_t len, struct tar_member *ret_member,
                    struct leat_error *err);

/* Refuses absolute paths, "..", empty ones, NUL, more than TAR_DEPTH_MAX components, and names that are not UTF-8. */
int tar_path_check(const char *path, struct leat_error *err);

/*
 * WebDataset's convention: key = directory + basename up to its *first* dot, field = the rest, lower-cased.
 * "a/b.seg.PNG" -> key "a/b", field "seg.png". Returns false for members that carry no sample (no dot, directories,
 * a path whose first component starts with "__" and ends with "__").
 */
bool tar_sample_key(const char *path, size_t *ret_key_len, char *ret_field, size_t field_cap);

#endif
