/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.h: shared by the formats. A scanner gets a struct scan, looks at its sources with scan_open, and feeds
 * an index_builder which it makes and hands back unfinished. Nothing outside of src/dataset includes this.
 */
#ifndef DATASET_SCAN_H
#define DATASET_SCAN_H

#include <sys/stat.h>

#include "dataset/dataset.h"
#include "wire/archive/npy.h"

/* Remote objects that were looked at or listed: one scan requests each once, in one version. remote.c. */
struct scan_objects {
    struct scan_object *items;
    uint32_t *slots; /* hash table: number + 1, 0 = free */
    uint64_t n, cap, nslots;
};

/* Which files of a tree are samples, from "DIR#pattern=*.jpg#extensions=jpg,png"; NULL: all. */
struct scan_filter {
    char *
        pattern; /* fnmatch's, of the name; with a "/" of the path from the root, of which "*" matches one component */
    char *extensions; /* separated by commas, with or without the dot, in any case */
};

struct scan {
    const struct dataset_opener *opener; /* NULL: plain open, and nothing remote */
    bool all_files;                      /* of dataset_spec */
    struct scan_filter filter;           /* of the source that was split last (scan_split_inner) */
    const struct dataset_progress *progress;
    uint64_t samples, bytes; /* so far */
    uint64_t reported;
    struct scan_objects objects;
};
void scan_fini(struct scan *scan);
static inline bool scan_filtered(const struct scan *scan)
{
    return scan->filter.pattern || scan->filter.extensions;
}

/* A file, a directory, or a remote object. */
struct scan_file {
    int fd;         /* -1: remote */
    struct stat st; /* of an object: size, mtime and S_IFREG. S_IFDIR: no object, so perhaps a prefix */
    char etag[DATASET_ETAG_MAX];
    /* remote */
    const struct dataset_opener *opener;
    char *uri;    /* owned */
    void *handle; /* from the first read on */
};
void scan_close(struct scan_file *file);
#define AUTO_SCAN_FILE __attribute__((cleanup(scan_close)))

/* O_RDONLY on a regular file or directory: never waits for a FIFO. LEAT_NOT_FOUND, LEAT_DENIED..., naming the path. *ret_file is to be
 * empty before ({.fd = -1}), and closed whatever comes back. */
int scan_open(struct scan *scan, const char *path, struct scan_file *ret_file, struct leat_error *err);
/* Of an object: makes its handle. */
int scan_handle(struct scan_file *file, struct leat_error *err);
/* Reads all of [offset, +bytes); fewer only at the end of the file. Bytes read, or a negative code with a message. */
int64_t scan_file_pread(struct scan_file *file, void *buf, uint64_t bytes, uint64_t offset,
                        struct leat_error *err);
/* Counts a sample, and periodically calls the progress callback; its answer (0 or negative). */
int scan_tick(struct scan *scan, uint64_t bytes, struct leat_error *err);
/* Was the scan cancelled? For work that takes long and counts no samples. */
int scan_poll(struct scan *scan, struct leat_error *err);
/* The error of a failed file operation: LEAT_NOT_FOUND, LEAT_DENIED, or the plain errno. */
int scan_error(int rc, const char *path, struct leat_error *err);
/* fstat of a folder that is read next. The clock of its times has ticks of up to 10 ms. After a change in the
 * current tick this waits for its end, so that a change after the reading has another time. A folder that
 * changes in each of five ticks gets a time that no folder has. 0 or -errno. */
#define SCAN_TICK_NS 10000000
void scan_wait_tick(void); /* all of one, whatever signals come */
int scan_stat_folder(int fd, struct stat *ret_st);

/* Printable form of outside bytes: what is not printable UTF-8 as \xNN, cut with "..." when long. */
void scan_escape(const char *s, char *out, size_t cap);
/* Passes rc on; a message with bytes of a path in it that are no UTF-8 (or that were cut in two) is made printable. */
int scan_fail(int rc, struct leat_error *err);
/* Longest common directory of the paths, without a "/" at its end but for the root itself. "": they have none (two buckets), or it would be
 * less than a bucket or a host. Caller frees. */
char *scan_common_root(char *const *paths, unsigned n);
/* `path` seen from `root`: "" when equal. */
const char *scan_relative(const char *root, const char *path);

/* A path made absolute, without "//" and "/./". NULL: out of memory. Caller frees. */
char *spec_absolute(const char *path, size_t len);
/* uri.c: a user's text for one source, as a path. Caller frees. */
int spec_source_path(const char *text, size_t len, char **ret_path, struct leat_error *err);
/* "x.h5#/train/images" -> file and inner name, unless a file has just that name (*ret_inner NULL). Caller frees both. A "#rows=N"
 * at the end goes to *ret_rows (0: there is none); LEAT_INVALID for an N that is no number above 0. "#pattern=" and "#extensions=" go to
 * scan->filter. */
int scan_split_inner(struct scan *scan, const char *uri, char **ret_file, char **ret_inner,
                     uint64_t *ret_rows, struct leat_error *err);
int scan_exists(struct scan *scan, const char *path); /* 1, 0, or -ENOMEM */
/* dataset_index_build, with the scan's known objects. */
int scan_build(struct scan *scan, const struct dataset_spec *spec, int fd, struct leat_error *err);
/* LEAT_INVALID: a pattern means something that is no tar file. */
int scan_no_shard(const char *path, struct leat_error *err);

struct scan_paths {
    char **items;
    unsigned n;
    uint64_t bytes; /* of all paths */
};

/* --- formats ------------------------------------------------------------------------------------------------- */

/* One array: a .npy file, or a dataset of an HDF5 file. Filled by the format; laid out by arrays_build. */
struct scan_array {
    char *field; /* owned */
    char *path;  /* absolute, of its file; owned */
    char *shown; /* "x.h5#/train", for messages; owned */
    struct stat st;
    char etag[DATASET_ETAG_MAX];
    char dtype[NPY_DTYPE_CAP];
    unsigned ndim; /* with the first dimension */
    uint64_t shape[INDEX_MAX_DIMS + 1];
    uint32_t itemsize;
    /* Reserves addresses, adds extents, returns the address of element 0. */
    int (*place)(struct scan_array *array, struct index_builder *b, uint32_t source, uint64_t *ret_address,
                 struct leat_error *err);
    uint64_t data_offset; /* .npy */
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
uint64_t scan_array_sample_bytes(const struct scan_array *array);
/* One extent for an array that lies in its file as it is, from `offset` on; returns element 0's address. */
int scan_place_raw(struct index_builder *b, uint32_t source, uint64_t offset, uint64_t bytes,
                   uint64_t sample_bytes, uint64_t *ret_address);

/* `field` NULL: the format's own name. The file stays the caller's. */
int npy_scan(struct scan *scan, const char *path, const char *field, struct scan_file *file,
             struct scan_arrays *arrays, struct leat_error *err);
/* `inner`: path of a dataset in the file, or NULL for all of the root group. `field` demands a single one. */
int hdf5_scan(struct scan *scan, const char *path, const char *inner, const char *field, int fd,
              const struct stat *st, struct scan_arrays *arrays, struct leat_error *err);
int arrays_build(struct scan *scan, struct scan_arrays *arrays, struct index_builder **ret_builder,
                 struct leat_error *err);
/* Files in folders behind symbolic links; tests lower it. */
extern uint64_t dir_linked_files_max;
/* fd: of the directory `path`. */
int dir_scan(struct scan *scan, const char *path, int fd, struct index_builder **ret_builder,
             struct leat_error *err);
int tar_scan(struct scan *scan, char *const *paths, unsigned n, struct index_builder **ret_builder,
             struct leat_error *err);

enum scan_format { SCAN_NPY, SCAN_HDF5, SCAN_TAR };
/* The kind of a file, by its first `len` bytes (as many as it has, SCAN_HEAD at most) and, for tar, its name.
 * fd -1: no more can be had. LEAT_UNSUPPORTED, LEAT_CORRUPT. */
#define SCAN_HEAD 4096u
int scan_format(const char *path, const char *head, size_t len, int fd, enum scan_format *ret_format,
                struct leat_error *err);

/* Files from this size on are laid out as images of themselves, for direct I/O; smaller ones are packed. */
#define DIR_LARGE_FILE (128 * 1024u)
/* Reserves the address of a file of a tree, and adds the extent of its bytes. */
uint64_t dir_place(struct index_builder *b, uint32_t source, uint64_t bytes);
/* A tree out of the objects below a prefix: these are sorted, and names and ETags stay the caller's. */
int dir_objects(struct scan *scan, const char *root, struct dataset_object *objects, uint64_t n,
                struct index_builder **ret_builder, struct leat_error *err);
/* Does the scan's filter accept this file? `path`: from the root. */
bool dir_wanted(const struct scan *scan, const char *path);
/* LEAT_INVALID: no file of the tree is a sample. */
int dir_empty(const struct scan *scan, const char *root, struct leat_error *err);
/* Files of one kind that are left out: how many, and the first names. */
struct dir_left_out {
    uint64_t n;
    char names[420];
};
void dir_leave_out(struct dir_left_out *left_out, const char *path);
/* One warning, where there are any. */
void dir_report(const char *root, const struct dir_left_out *left_out, const char *what);
#define DIR_BESIDE "files beside the class folders have no class and are left out"

/* --- remote (remote.c) ----------------------------------------------------------------------------------------- */

/* Does the object exist? Requested once a scan. 0, LEAT_NOT_FOUND, or another code with a message. */
int remote_stat(struct scan *scan, const char *uri, struct dataset_stat *ret_stat, struct leat_error *err);
/* LEAT_NOT_FOUND, where a prefix would not do. */
int remote_no_object(const char *uri, struct leat_error *err);
/* All that lies below a prefix: shards, or a tree. */
int remote_scan_prefix(struct scan *scan, const char *root, struct index_builder **ret_builder,
                       struct leat_error *err);
/* "root/" and all behind it, in the order of names. */
int remote_list_below(struct scan *scan, const char *root,
                      int (*object)(void *ctx, const struct dataset_object *object), void *ctx,
                      struct leat_error *err);
/* The objects that a pattern of S3 means in its last component, sorted. */
int remote_wildcard(struct scan *scan, const char *pattern, struct scan_paths *out, struct leat_error *err);
/* One list in the place of a stat for each of these, where that is likely to pay. 0 or -ENOMEM: those not
 * known afterwards are requested one by one. */
int remote_learn(struct scan *scan, const char *pattern, const struct scan_paths *paths);
/* All of an object into a memfd, not sealed; `sound` sees its beginning (all of it, or a MiB) before the rest is fetched. */
int remote_fetch(struct scan *scan, const char *uri, bool (*sound)(const void *head, uint64_t bytes),
                 int *ret_fd, struct leat_error *err);
/* An object's address below its root: "s3://b/p" and "x" are "s3://b/p/x". Caller frees. */
char *remote_join(const char *root, const char *name);

/* --- shards (shards.c) --------------------------------------------------------------------------------------- */

void scan_paths_fini(struct scan_paths *paths);
int scan_paths_add(struct scan_paths *paths, const char *path);
/* Expands "a-{000..017}.tar", "{a,b}.tar" and, in the last component, "*", "?" and "[…]": sorted within each pattern.
 * LEAT_NOT_FOUND when a pattern meets no file. A path without any of these comes back as it is. */
int shards_expand(struct scan *scan, const char *pattern, struct scan_paths *ret_paths,
                  struct leat_error *err);
bool shards_is_pattern(const char *path);         /* of the web: only braces */
int shards_compare(const void *x, const void *y); /* qsort of scan_paths.items */
bool shards_is_one(const char *name);
/* Beside shards, and none of them: "x.idx", "x.json", "x.leat-index". */
bool shards_beside(const char *name);
/* 1: all files of the directory and of the folders below it are shards or lie beside them, hidden ones apart (the shards' paths are returned,
 * sorted); 0: not so. */
int shards_in_directory(struct scan *scan, const char *path, int fd, struct scan_paths *ret_paths,
                        struct leat_error *err);

#endif
