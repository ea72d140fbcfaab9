/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.h: the two halves of `leat convert`. A source is a list of files to be: each some bytes at hand (`head`) and then a run of
 * bytes of a file; a sink writes them, in the order of the list, below a temporary name.
 *
 *   convert_source.c   folder, tar shards or arrays ──▶ struct convert_list
 *   convert_sink.c     struct convert_list ──▶ tar shards, a folder, or an array
 *   convert.c          the command: what becomes what, the name, the result
 */
#ifndef APPS_LEAT_CONVERT_H
#define APPS_LEAT_CONVERT_H

#include "apps/leat/cli.h"

enum convert_format { CONVERT_NONE, CONVERT_DIR, CONVERT_TAR, CONVERT_NPY };

struct convert_item {
    char *path; /* owned; relative, checked: no "..", not absolute */
    bool folder;
    uint32_t file; /* of list.files */
    uint64_t offset, bytes;
    const char *head; /* comes before them; shared or of `text` */
    uint32_t head_bytes;
    char text[12]; /* of the number of a class */
};

struct convert_list {
    enum convert_format from;
    struct convert_item *items;
    uint64_t n, cap;
    char **files; /* absolute */
    uint64_t nfiles, files_cap;
    char *row_heads[64]; /* of arrays: the .npy header of a row of each */
    uint64_t bytes;      /* of all items */
    uint64_t samples;    /* so many different keys */
    uint64_t left_out;   /* members that are neither files nor folders; links that lead nowhere */
    uint64_t nameless;   /* files whose name has no dot: readers of tar shards leave them out */
};

/* labels: with each file of a folder one "KEY.cls" with the number of its class. field: only files with this extension; NULL: all. */
int convert_list_read(struct convert_list *list, const char *uri, bool labels, const char *field,
                      struct progress *progress, struct leat_error *err);
void convert_list_free(struct convert_list *list);

struct convert_sink {
    enum convert_format format;
    const char *path;  /* the temporary name */
    const char *shown; /* the destination, in messages */
    bool single;       /* TAR: one file, not a folder of shards */
    uint64_t shard_bytes, shard_count;
    uint64_t shards; /* written */
    struct progress *progress;
    uint64_t files_done, bytes_done;
};
int convert_sink_write(struct convert_sink *sink, const struct convert_list *list, struct leat_error *err);

/* The header of a .npy file as NumPy writes it. Caller frees; NULL: out of memory. */
char *convert_npy_head(const char *dtype, const uint64_t *shape, unsigned ndim, uint32_t *ret_bytes);
/* Length of the key that a path belongs to: folder and name up to its first dot. */
size_t convert_key_len(const char *path);

#endif
