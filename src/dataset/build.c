/* SPDX-License-Identifier: Apache-2.0 */
/*
 * build.c: looks at each source, picks the format, runs its scanner and writes the index.
 *
 * A directory of nothing but .tar files is a set of shards, any other is a tree. A file is recognised by its
 * first bytes, not by its name; only tar, which may have none, is also recognised by its name.
 */
#include <stdio.h>
#include <strings.h>

#include "base/fdio.h"
#include "dataset/scan.h"

#define ROWS       "#rows="
#define PATTERN    "#pattern="
#define EXTENSIONS "#extensions="

#define HDF5_MAGIC "\x89HDF\r\n\x1a\n"

static const struct {
    const char *magic;
    size_t len;
    const char *advice;
} refused[] = {
    {"\x1f\x8b", 2, "is compressed with gzip, which has no random access; unpack it (gunzip) first"},
    {"\x28\xb5\x2f\xfd", 4, "is compressed with zstd, which has no random access; unpack it (zstd -d) first"},
    {"BZh", 3, "is compressed with bzip2, which has no random access; unpack it (bunzip2) first"},
    {"\xfd"
     "7zXZ",
     5, "is compressed with xz, which has no random access; unpack it (unxz) first"},
    {"PK\x03\x04", 4,
     "is a zip archive; save each array of an .npz with np.save, or unpack the archive to a directory"},
    {"PAR1", 4,
     "is a Parquet file, which Leat does not read; in Python leat.from_dataset takes it by way of any "
     "reader, or "
     "write its columns as .npy or its rows as tar shards"},
};

/* A query of an address is no part of the name. */
static bool has_suffix(const char *s, const char *end)
{
    size_t len = dataset_is_remote(s) && !dataset_has_lists(s) ? strcspn(s, "?") : strlen(s);
    size_t end_len = strlen(end);
    return len >= end_len && !strncmp(s + len - end_len, end, end_len);
}

/* HDF5 may stand behind a user block of 512, 1024, 2048... bytes. */
static bool is_hdf5(const char *head, size_t len, int fd)
{
    for (uint64_t at = 0; at <= 1 << 20; at = at ? at * 2 : 512) {
        char magic[8] = {0};
        if (at + sizeof(magic) <= len)
            memcpy(magic, head + at, sizeof(magic));
        else if (fd < 0 || fd_read_at(fd, magic, sizeof(magic), at) != (int64_t)sizeof(magic))
            continue;
        if (!memcmp(magic, HDF5_MAGIC, 8))
            return true;
    }
    return false;
}

int scan_format(const char *path, const char *bytes, size_t n, int fd, enum scan_format *ret_format,
                struct leat_error *err)
{
    char head[512] = {0}, shown[300];
    scan_escape(path, shown, sizeof(shown));
    memcpy(head, bytes, MIN(n, sizeof(head)));
    if (!memcmp(head, "\x93NUMPY", 6)) {
        *ret_format = SCAN_NPY;
        return 0;
    }
    if (is_hdf5(bytes, n, fd)) {
        *ret_format = SCAN_HDF5;
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (!memcmp(head, refused[i].magic, refused[i].len))
            return error_set(err, LEAT_UNSUPPORTED, "%s: %s", shown, refused[i].advice);
    if (!memcmp(head + 257, "ustar", 5) || has_suffix(path, ".tar")) {
        *ret_format = SCAN_TAR;
        return 0;
    }
    if (has_suffix(path, ".npy") || has_suffix(path, ".h5") || has_suffix(path, ".hdf5"))
        return error_set(err, LEAT_CORRUPT, "%s: %s", shown,
                         n == 0
                             ? "the file is empty"
                             : "it does not begin as its name promises; it is damaged or of another format");
    return error_set(err, LEAT_UNSUPPORTED,
                     "%s: not a format that Leat reads, which are .npy, HDF5, tar shards, and a directory "
                     "of files or of tar shards; what has a reader in Python is taken by leat.from_dataset",
                     shown);
}

static int sniff(const char *path, struct scan_file *file, enum scan_format *ret_format,
                 struct leat_error *err)
{
    AUTO_FREE char *head = malloc(SCAN_HEAD);
    if (!head)
        return -ENOMEM;
    struct leat_error why = {0};
    int64_t n = scan_file_pread(file, head, SCAN_HEAD, 0, &why);
    if (n < 0 && file->fd >= 0)
        return scan_error((int)n, path, err);
    if (n < 0)
        return error_set(err, (int)n, "%s", why.message);
    int rc = scan_format(path, head, (size_t)n, file->fd, ret_format, err);
    if (rc == 0 && *ret_format == SCAN_HDF5 && file->fd < 0)
        return error_set(
            err, LEAT_UNSUPPORTED,
            "%.300s: HDF5 is not read over a network, as its chunks are found by thousands of small reads; "
            "copy "
            "it here first (leat cp, aws s3 cp, curl), or convert it to .npy or tar shards (leat convert)",
            path);
    return rc;
}

/* A remote name costs a request: only names with odd characters in them are looked up. */
int scan_exists(struct scan *scan, const char *path)
{
    struct dataset_stat stat;
    if (dataset_is_remote(path)) {
        int rc = dataset_has_lists(path) ? remote_stat(scan, path, &stat, NULL) : LEAT_NOT_FOUND;
        return rc == -ENOMEM ? rc : rc == 0;
    }
    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    int rc = scan_open(scan, path, &file, NULL);
    return rc != LEAT_NOT_FOUND && rc != -ENAMETOOLONG; /* a pattern may be longer than any name */
}

/* "...#rows=N": cuts it off. */
static int split_rows(char *uri, uint64_t *ret_rows, struct leat_error *err)
{
    char *hash = strrchr(uri, '#'), *end;
    *ret_rows = 0;
    if (!hash || strncmp(hash, ROWS, strlen(ROWS)))
        return 0;
    const char *digits = hash + strlen(ROWS);
    errno = 0;
    *ret_rows = strtoull(digits, &end, 10);
    if (errno || *digits < '1' || *digits > '9' || *end)
        return error_set(err, LEAT_INVALID, "%s: behind \"" ROWS "\" stands how many rows make a sample",
                         uri);
    *hash = 0;
    return 0;
}

/* "jpg,.png": every piece has more than its dot. */
static bool extensions_good(const char *text)
{
    for (;; text++) {
        size_t len = strcspn(text, ",");
        if (len == 0 || (len == 1 && *text == '.') || strcspn(text, " \t;*?[/") < len)
            return false;
        text += len;
        if (!*text)
            return true;
    }
}

/* "#extension=jpg", "#Rows=2": nearly a word that is known here. "#extra=1" may be a dataset of an HDF5 file. */
static bool nearly_known(const char *inner)
{
    static const char *const words[] = {"pattern", "patterns", "extension", "extensions",
                                        "ext",     "exts",     "row",       "rows"};
    size_t len = strcspn(inner, "=");
    for (size_t i = 0; i < ARRAY_LEN(words) && inner[len]; i++)
        if (len == strlen(words[i]) && !strncasecmp(inner, words[i], len))
            return true;
    return false;
}

/* "...#pattern=GLOB", "...#extensions=LIST", both in any order: cuts them off. */
static int split_filter(char *uri, struct scan_filter *filter, struct leat_error *err)
{
    free(filter->pattern);
    free(filter->extensions);
    *filter = (struct scan_filter){0};
    for (;;) {
        char *hash = strrchr(uri, '#');
        bool pattern = hash && !strncmp(hash, PATTERN, strlen(PATTERN));
        if (!pattern && !(hash && !strncmp(hash, EXTENSIONS, strlen(EXTENSIONS))))
            return 0;
        const char *text = strchr(hash, '=') + 1;
        char **to = pattern ? &filter->pattern : &filter->extensions;
        if (*to || !text[strspn(text, ",.")] || (!pattern && !extensions_good(text)))
            return error_set(err, LEAT_INVALID, "%s: behind \"%.*s\" stands %s", uri, (int)(text - hash),
                             hash,
                             *to       ? "one choice, and here are two"
                             : pattern ? "what names of files look like, as in *.jpg"
                                       : "how names of files end, as in jpg,jpeg,png, none of them empty");
        if (!(*to = strdup(text)))
            return -ENOMEM;
        *hash = 0;
    }
}

int scan_split_inner(struct scan *scan, const char *uri, char **ret_file, char **ret_inner,
                     uint64_t *ret_rows, struct leat_error *err)
{
    AUTO_FREE char *text = strdup(uri);
    if (!text)
        return -ENOMEM;
    uint64_t rows = 0;
    int there = strchr(uri, '#') ? scan_exists(scan, uri) : 1;
    int rc = there == 0 ? split_filter(text, &scan->filter, err) : MIN(there, 0);
    if (rc == 0 && there == 0)
        rc = split_rows(text, &rows, err);
    if (rc)
        return rc;
    const char *hash = strrchr(text, '#');
    there = hash && hash[1] ? scan_exists(scan, text) : 1;
    if (there < 0)
        return there;
    bool split = there == 0;
    if (split && nearly_known(hash + 1))
        return error_set(
            err, LEAT_INVALID,
            "%.300s: \"%.60s\" is not understood; behind # may stand pattern=, extensions= or rows=, and "
            "a dataset of an HDF5 file with such a name is #/NAME",
            uri, hash);
    AUTO_FREE char *inner = split ? strdup(hash + 1) : NULL;
    char *file = spec_absolute(text, split ? (size_t)(hash - text) : strlen(text));
    if (!file || (split && !inner)) {
        free(file);
        return -ENOMEM;
    }
    *ret_file = file;
    *ret_inner = TAKE_PTR(inner);
    *ret_rows = rows;
    return 0;
}

int scan_no_shard(const char *path, struct leat_error *err)
{
    return error_set(err, LEAT_INVALID,
                     "%s: a pattern means tar shards, and this is none; arrays are opened together "
                     "by name, as in \"image=a.npy;label=b.npy\"",
                     path);
}

static int scan_shards(struct scan *scan, const char *pattern, struct index_builder **ret_builder,
                       struct leat_error *err)
{
    struct scan_paths paths;
    int rc = shards_expand(scan, pattern, &paths, err);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < paths.n && rc == 0; i++) {
        AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
        enum scan_format format = SCAN_TAR;
        if (dataset_is_remote(paths.items[i]))
            continue; /* tar_scan looks at the first bytes when it has them */
        rc = scan_open(scan, paths.items[i], &file, err);
        if (rc == 0 && S_ISREG(file.st.st_mode))
            rc = sniff(paths.items[i], &file, &format, err);
        if (rc == 0 && (format != SCAN_TAR || !S_ISREG(file.st.st_mode)))
            rc = scan_no_shard(paths.items[i], err);
    }
    if (rc == 0)
        rc = tar_scan(scan, paths.items, paths.n, ret_builder, err);
    scan_paths_fini(&paths);
    return rc;
}

static int scan_directory(struct scan *scan, const char *path, struct scan_file *file,
                          struct index_builder **ret_builder, struct leat_error *err)
{
    struct scan_paths paths;
    if (file->fd < 0)
        return remote_scan_prefix(scan, path, ret_builder, err);
    int rc = scan_filtered(scan) ? 0 : shards_in_directory(scan, path, file->fd, &paths, err);
    if (rc == 0)
        return dir_scan(scan, path, file->fd, ret_builder, err);
    if (rc < 0)
        return rc;
    rc = tar_scan(scan, paths.items, paths.n, ret_builder, err);
    scan_paths_fini(&paths);
    return rc;
}

static int no_folder(const char *path, struct leat_error *err)
{
    return error_set(
        err, LEAT_INVALID,
        "%s: pattern= and extensions= choose among the files of a folder (or prefix), and this is none",
        path);
}

/* Adds the arrays of one source; or, for a single source of another format, fills *ret_builder. */
static int scan_source(struct scan *scan, const struct dataset_source *source, bool single,
                       struct scan_arrays *arrays, struct index_builder **ret_builder, struct leat_error *err)
{
    AUTO_FREE char *path = NULL, *inner = NULL;
    uint64_t rows;
    int rc = scan_split_inner(scan, source->uri, &path, &inner, &rows, err);
    if (rc < 0)
        return rc;
    int there = single && !inner && !rows && shards_is_pattern(path) ? scan_exists(scan, path) : 1;
    if (there < 0)
        return there;
    if (there == 0)
        return scan_filtered(scan) ? no_folder(path, err) : scan_shards(scan, path, ret_builder, err);

    AUTO_SCAN_FILE struct scan_file file = {.fd = -1};
    enum scan_format format = SCAN_TAR;
    rc = scan_open(scan, path, &file, err);
    if (rc < 0)
        return rc;
    if (file.fd < 0 && S_ISDIR(file.st.st_mode) && (inner || rows || source->field || !single))
        return remote_no_object(path, err);
    if (scan_filtered(scan) && !S_ISDIR(file.st.st_mode))
        return no_folder(path, err);
    if (S_ISREG(file.st.st_mode))
        rc = sniff(path, &file, &format, err);
    if (rc < 0)
        return rc;
    if (inner && format != SCAN_HDF5)
        return error_set(err, LEAT_INVALID, "%s: not an HDF5 file, so there is no \"%s\" in it", path, inner);
    const unsigned before = arrays->n;
    if (format == SCAN_NPY || format == SCAN_HDF5) {
        rc = format == SCAN_NPY ? npy_scan(scan, path, source->field, &file, arrays, err)
                                : hdf5_scan(scan, path, inner, source->field, file.fd, &file.st, arrays, err);
        for (unsigned i = before; i < arrays->n; i++)
            arrays->items[i].rows = rows;
        return rc;
    }
    if (rows)
        return error_set(err, LEAT_INVALID,
                         "%s: several rows make a sample only of arrays (.npy, HDF5), and this is none",
                         path);
    if (source->field || !single)
        return error_set(err, LEAT_INVALID,
                         "%s: only arrays (.npy, HDF5) can be given a name and opened together; files and "
                         "tar shards are opened alone, and name their fields themselves",
                         path);
    if (S_ISDIR(file.st.st_mode))
        return scan_directory(scan, path, &file, ret_builder, err);
    return tar_scan(scan, &path, 1, ret_builder, err);
}

int scan_build(struct scan *scan, const struct dataset_spec *spec, int fd, struct leat_error *err)
{
    struct scan_arrays arrays = {0};
    struct index_builder *b = NULL;
    struct leat_error local = {0};
    err = err ? err : &local;
    *err = (struct leat_error){0};
    int rc = spec->n ? 0 : error_set(err, LEAT_INVALID, "a dataset needs a source");
    for (unsigned i = 0; i < spec->n && rc == 0; i++)
        rc = scan_source(scan, &spec->sources[i], spec->n == 1, &arrays, &b, err);
    if (rc == 0 && !b)
        rc = arrays_build(scan, &arrays, &b, err);
    if (rc == 0)
        rc = index_builder_finish(b, fd, err);
    scan_arrays_fini(&arrays);
    index_builder_free(b);
    /* A cause without a message (memory, mostly). */
    if (rc < 0 && !err->code)
        error_sys(err, rc, "the dataset could not be scanned");
    return scan_fail(rc, err);
}

int dataset_index_build(const struct dataset_spec *spec, const struct dataset_opener *opener,
                        const struct dataset_progress *progress, int fd, struct leat_error *err)
{
    struct scan scan = {.opener = opener, .progress = progress, .all_files = spec->all_files};
    int rc = scan_build(&scan, spec, fd, err);
    scan_fini(&scan);
    return rc;
}
