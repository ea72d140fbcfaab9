/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.h: what the formats share. A scanner gets a struct scan, looks at its sources with scan_open, and feeds an
 * index_builder which it makes and hands back unfinished. Nothing outside of src/dataset includes this.
 */
#ifndef DATASET_SCAN_H
#define DATASET_SCAN_H

#include <sys/stat.h>

#include "dataset/dataset.h"

struct scan {
    const struct dataset_opener *opener; /* NULL: plain open */
    const struct dataset_progress *progress;
    uint64_t samples, bytes; /* so far */
    uint64_t reported;
};

/* O_RDONLY on a regular file or directory: never waits for a FIFO. LEAT_NOT_FOUND, LEAT_DENIED..., naming the path. */
int scan_open(struct scan *scan, const char *path, int *ret_fd, struct stat *ret_st, struct leat_error *err);
/* Counts a sample, and every so often tells the progress callback; its answer (0 or negative). */
int scan_tick(struct scan *scan, uint64_t bytes, struct leat_error *err);
/* The kind of message a failed file operation gets: LEAT_NOT_FOUND, LEAT_DENIED, or the plain errno. */
int scan_error(int code, const char *path, struct leat_error *err);
/* Reads all of [offset, +bytes); fewer only at the end of the file. Bytes read, or -errno. */
int64_t scan_pread(int fd, void *buf, size_t bytes, uint64_t offset);

/* Printable form of outside bytes: what is not printable UTF-8 as \xNN, cut with "..." when long. */
void scan_escape(const char *s, char *out, size_t cap);
/* Passes rc on; a message with bytes of a path in it that are no UTF-8 (or that were cut in two) is made printable. */
int scan_fail(int rc, struct leat_error *err);
/* Longest common directory of the paths, without a "/" at its end but for the root itself. Caller frees. */
char *scan_common_root(char *const *paths, unsigned n);
/* `path` seen from `root`: "" when equal. */
const char *scan_relative(const char *root, const char *path);

/* A path made absolute, without "//" and "/./". NULL: out of memory. Caller frees. */
char *spec_absolute(const char *path, size_t len);
/* uri.c: what a user wrote for one source, as a path. Caller frees. */
int spec_source_path(const char *text, size_t len, char **ret_path, struct leat_error *err);
/* "x.h5#/train/images" -> file and inner name, unless a file has just that name (*ret_inner NULL). Caller frees both. A "#rows=N"
 * at the end goes to *ret_rows (0: there is none); LEAT_INVALID for an N that is no number above 0. */
int scan_split_inner(struct scan *scan, const char *uri, char **ret_file, char **ret_inner,
                     uint64_t *ret_rows, struct leat_error *err);
bool scan_exists(struct scan *scan, const char *path);

/* --- formats ------------------------------------------------------------------------------------------------- */

/* One array: a .npy file, or a dataset of an HDF5 file. Filled by the format; laid out by arrays_build. */
struct scan_array {
    char *field; /* owned */
    char *path;  /* absolute, of its file; owned */
    char *shown; /* "x.h5#/train", for messages; owned */
    struct stat st;
    char dtype[16];
    unsigned ndim; /* with the first dimension */
    uint64_t shape[INDEX_MAX_DIMS + 1];
    uint32_t itemsize;
    /* Reserves addresses, adds extents, says where element 0 lies. */
    int (*place)(struct scan_array *array, struct index_builder *b, uint32_t source, uint64_t *ret_address,
                 struct leat_error *err);
    uint64_t data_offset; /* .npy, and HDF5 when contiguous */
    uint64_t rows;        /* that make one sample; 0: a row is a sample */
    int64_t source;       /* its number, once placed */
    void *format;         /* the format's own, freed with free() after format_fini */
    void (*format_fini)(void *format);
};
struct scan_arrays {
    struct scan_array *items;
    unsigned n;
};
void scan_arrays_fini(struct scan_arrays *arrays);
/* A zeroed array at the end, or NULL. */
struct scan_array *scan_arrays_add(struct scan_arrays *arrays);
uint64_t scan_array_row_bytes(const struct scan_array *array);

/* `field` NULL: the format's own name. fd stays the caller's. */
int npy_scan(struct scan *scan, const char *path, const char *field, int fd, const struct stat *st,
             struct scan_arrays *arrays, struct leat_error *err);
/* `inner`: path of a dataset in the file, or NULL for all of the root group. `field` demands a single one. */
int hdf5_scan(struct scan *scan, const char *path, const char *inner, const char *field, int fd,
              const struct stat *st, struct scan_arrays *arrays, struct leat_error *err);
int arrays_build(struct scan *scan, struct scan_arrays *arrays, struct index_builder **ret_builder,
                 struct leat_error *err);
/* fd: of the directory `path`. */
int dir_scan(struct scan *scan, const char *path, int fd, const struct stat *st,
             struct index_builder **ret_builder, struct leat_error *err);
int tar_scan(struct scan *scan, char *const *paths, unsigned n, struct index_builder **ret_builder,
             struct leat_error *err);

/* --- shards (shards.c) --------------------------------------------------------------------------------------- */

struct scan_paths {
    char **items;
    unsigned n;
    uint64_t bytes; /* of all paths */
};
void scan_paths_fini(struct scan_paths *paths);
int scan_paths_add(struct scan_paths *paths, const char *path);
/* Expands "a-{000..017}.tar", "{a,b}.tar" and, in the last component, "*", "?" and "[…]": sorted within each pattern.
 * LEAT_NOT_FOUND when a pattern meets no file. A path without any of these comes back as it is. */
int shards_expand(struct scan *scan, const char *pattern, struct scan_paths *ret_paths,
                  struct leat_error *err);
bool shards_is_pattern(const char *path);
/* 1: the directory holds .tar files and nothing else but hidden files (their paths are returned, sorted); 0: not so. */
int shards_in_directory(const char *path, int fd, struct scan_paths *ret_paths, struct leat_error *err);

#endif
