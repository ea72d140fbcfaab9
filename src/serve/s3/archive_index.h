/* SPDX-License-Identifier: Apache-2.0 */
/* archive_index.h: the members of one archive, by name. Used by members.c alone. */
#ifndef SERVE_S3_ARCHIVE_INDEX_H
#define SERVE_S3_ARCHIVE_INDEX_H

#include "serve/s3/members.h"

struct archive_file {
    int fd;
    uint64_t offset, bytes; /* the archive, in fd */
    /* Asked before memory is taken: 0, or the code that ends it. */
    int (*charge)(void *user, uint64_t bytes);
    void *user;
};

struct archive_entry {
    uint64_t header_at, at; /* ZIP: header_at alone is known */
    uint64_t stored_bytes, bytes;
    uint32_t name; /* in text */
    uint32_t crc;
    uint16_t method;
    bool encrypted;
    char type; /* '0': a file; else what tar calls it */
};

struct archive_index {
    struct archive_entry *entries;
    char *text;
    uint32_t *slots; /* hash table: number + 1, 0: free */
    uint64_t n, cap, text_len, text_cap, nslots;
    bool zip;
    uint64_t limit; /* ZIP: where the directory begins */
};

/* Reads headers. *ret_index is freed by archive_index_fini, also after a failure. */
int archive_index_build(const struct archive_file *file, struct archive_index *ret_index,
                        struct leat_error *err);
void archive_index_fini(struct archive_index *index);
/* Of two of one name, the later: it is what both formats mean by that. Any number of threads. */
int archive_index_find(const struct archive_index *index, const struct archive_file *file, const char *path,
                       struct member *ret_member, struct leat_error *err);

#endif
