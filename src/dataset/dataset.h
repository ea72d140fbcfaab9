/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.h: from a user's text to an index. Each format (npy/, hdf5/, dir/, tar/) is a function that scans
 * its sources and feeds an index_builder; dataset_index picks one by looking.
 *
 * A dataset is one or more sources. One source: a path to a .npy or HDF5 file ("x.h5#/train/images" names a dataset in
 * it; without it every dataset of the root group with the same first dimension is a field), a .tar file, a pattern of
 * tar files with brace ranges or globs ("s3-{000..017}.tar", "s3-*.tar"), a directory of .tar files, or a directory
 * tree (first folder name = label where there are folders; "DIR#pattern=*.jpg" and "DIR#extensions=jpg,png" choose files by name). Several sources, each with a field name, are arrays that
 * share their first dimension.
 *
 * All of these but HDF5 may be remote, as "s3://bucket/key", "http://…" or "https://…": the caller provides a
 * struct dataset_remote that fetches them. A prefix of S3 ("s3://bucket/prefix") is what a directory is here.
 */
#ifndef DATASET_DATASET_H
#define DATASET_DATASET_H

#include "base/base.h"
#include "dataset/index.h"

struct dataset_source {
    const char *field; /* NULL: named by the format ("data" for an array, the extension in tar, ...) */
    const char
        *uri; /* path; a relative one is seen from the working directory. Or an address, as it stands */
};

struct dataset_spec {
    const struct dataset_source *sources;
    unsigned n;
    bool
        all_files; /* dataset_index_build alone: files of a tree beside its class folders too; labels then mean nothing */
};

/* "image=a.npy;label=b.npy" or one path, file URI or address (uri.c); the canonical form (absolute paths, symlinks kept; addresses as
 * they are) is what identifies a dataset, and is read back as itself. LEAT_INVALID; LEAT_UNSUPPORTED: another scheme. dataset_spec_free
 * frees what parse made. */
int dataset_spec_parse(const char *text, struct dataset_spec *ret_spec, struct leat_error *err);
/* Whether a working set may have this name: LEAT_INVALID for one that reads as a path or FIELD=PATH, or would
 * spoil a list or a log. */
int dataset_name_check(const char *name, struct leat_error *err);
void dataset_spec_free(struct dataset_spec *spec);
char *dataset_spec_format(const struct dataset_spec *spec); /* caller frees; NULL: out of memory */

struct dataset_progress {
    /* Called periodically while scanning; a non-zero return (-ECANCELED) ends the scan with that. */
    int (*report)(void *user, uint64_t samples, uint64_t bytes);
    void *user;
};

/* Is this source remote ("s3://", "http://", "https://", in any case)? */
bool dataset_is_remote(const char *uri);
/* "s3://…" and "store://…", not of the web: objects below it can be listed. */
bool dataset_has_lists(const char *uri);
/* A name within a prefix that is no sample: hidden, or a folder's mark. */
bool dataset_left_out(const char *name);

#define DATASET_ETAG_MAX 160

/* What is known of a remote object. */
struct dataset_object {
    const char *uri;  /* the whole address; valid during the call */
    const char *name; /* what follows the address that was listed */
    uint64_t bytes;
    const char *etag; /* "": there is none */
    int64_t modified; /* seconds since 1970 */
    bool prefix;      /* a "folder": only in a list that is not recursive */
};
struct dataset_stat {
    uint64_t bytes;
    char etag[DATASET_ETAG_MAX];
    int64_t modified;
};

/*
 * Access to remote objects; pool/source/dataset_remote.h makes one of a session of backend.h. Called by the
 * thread that called dataset_index_*. Failing calls return -errno or a LEAT_ code and a message that names
 * the object and the cause.
 */
struct dataset_remote {
    /* LEAT_NOT_FOUND: there is no such object. */
    int (*stat)(void *user, const char *uri, struct dataset_stat *ret_stat, struct leat_error *err);
    /* Every object whose address begins with `uri`, in the order of their names, as they come; `recursive`
     * false: up to the next "/". A negative return of `object` ends the list with it. */
    int (*list)(void *user, const char *uri, bool recursive,
                int (*object)(void *ctx, const struct dataset_object *object), void *ctx,
                struct leat_error *err);
    /* A handle; all reads through it are of this version. */
    int (*open)(void *user, const char *uri, const char *etag, uint64_t bytes, void **ret_file,
                struct leat_error *err);
    void (*close)(void *user, void *file); /* no read of it is under way */
    /* [offset, +bytes), inside the object, to dst: any number at a time. Each is ended once, by end (which waits) or by cancel. */
    int (*begin)(void *user, void *file, void *dst, uint64_t bytes, uint64_t offset, void **ret_read,
                 struct leat_error *err);
    int (*end)(void *user, void *read, struct leat_error *err);
    void (*cancel)(void *user, void *read);
    /* All of a descriptor's [0, bytes) under this name, visible when it is whole. */
    int (*put)(void *user, const char *uri, int fd, uint64_t bytes, struct leat_error *err);
};

/* Opens source files on behalf of the requester: the user's own rights in a private daemon, openat2 beneath a root and
 * with the caller's rights in a system daemon. Returns a descriptor or -errno; -EXDEV: a link leads out of the roots. NULL, here or for
 * `open`: plain open.
 * `remote` NULL: an address is LEAT_UNSUPPORTED. */
struct dataset_opener {
    int (*open)(void *user, const char *absolute_path, int flags);
    void *user;
    const struct dataset_remote *remote;
    void *remote_user;
};

/*
 * Scans and writes the index to fd. LEAT_NOT_FOUND, LEAT_DENIED, LEAT_CORRUPT, LEAT_UNSUPPORTED, LEAT_INVALID (an
 * empty dataset too): every message names the file, and the offset where that helps. Any thread; takes long.
 */
int dataset_index_build(const struct dataset_spec *spec, const struct dataset_opener *opener,
                        const struct dataset_progress *progress, int fd, struct leat_error *err);

/*
 * An existing index, or a new one. Looks beside the data (".leat-index" in the directory, "FILE.leat-index"
 * by a file), then in the cache ($XDG_CACHE_HOME/leat/index, 0700). The sources must still be those that were
 * scanned: size and mtime of shards; mtimes of all directories of a tree, and of its files if they are 10,000
 * at most. Else it scans and, when `keep`, writes the index to the cache by rename. *ret_fd is read-only;
 * *ret_scanned says whether a scan was needed. A remote index that is named itself
 * ("s3://bucket/prefix/.leat-index", "….npy.leat-index") is taken as it is, without a list or a stat of its
 * sources. These must lie beside it (LEAT_INVALID). For remote data the cache comes first. The sources are
 * the same when a fresh list (of a prefix) or stat (of objects) has the sizes and ETags of the index.
 */
int dataset_index_open(const struct dataset_spec *spec, const struct dataset_opener *opener,
                       const struct dataset_progress *progress, bool keep, int *ret_fd, bool *ret_scanned,
                       struct leat_error *err);
/* A source differs from its index: removes the index of `spec` from the cache, if there is one. Any thread. */
void dataset_index_forget(const char *spec);
/* `leat index`: scans and writes beside the data (or into the cache when that directory cannot be written and
 * `cache_ok`). *ret_path is where, a path or an address; caller frees. *ret_fd: the index, read-only. */
int dataset_index_write(const struct dataset_spec *spec, const struct dataset_opener *opener,
                        const struct dataset_progress *progress, bool cache_ok, char **ret_path, int *ret_fd,
                        struct leat_error *err);

/* Fills `dst` (extent->bytes long) for a CHUNK or ZERO extent: reads the stored chunks with pread from fd, undoes the
 * filters, moves rows to their place. `scratch` grows as needed and is the caller's to keep. */
struct dataset_scratch {
    void *stored, *decoded;
    uint64_t stored_cap, decoded_cap;
    void *inflate; /* libdeflate decompressor */
};
void dataset_scratch_fini(struct dataset_scratch *scratch);
/* The most memory that decoding extents of this index takes besides their destination: scratch, and a whole
 * extent of which only a piece is wanted. 0 for an index without chunks. O(extents + chunks). */
uint64_t dataset_scratch_bytes(const struct index *ix);
int dataset_extent_decode(const struct index *index, const struct index_extent *extent, int fd, void *dst,
                          struct dataset_scratch *scratch, struct leat_error *err);

#endif
