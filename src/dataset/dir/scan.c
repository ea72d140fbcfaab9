/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir/scan.c: a directory tree: every file is a sample, its key the path from the root, its label the first folder.
 *
 * Trees of objects elsewhere come out of a list: objects.c.
 *
 * Happy path: a stack of folders, each a sorted list of names; a file at the top of the stack is stat'ed and becomes a
 * sample, a folder is read and pushed. A folder sorts as "name/", so keys come out in the order of their bytes. Only the
 * root stays open: deep trees cost no descriptors. No file is opened.
 *
 * Hidden files and folders are skipped. Symbolic links are followed to files, not to folders: so there are no cycles.
 * Classes are the names of all folders in the root, sorted, as torchvision numbers them; files beside these folders
 * have class "". When no file lies in a folder there is no label field.
 *
 * Failure modes: LEAT_DENIED or LEAT_NOT_FOUND names the folder or the file; LEAT_INVALID names a path that is too deep
 * or not UTF-8.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "dataset/scan.h"
#include "wire/tar.h"

struct entry {
    uint32_t name; /* in the folder's names */
    bool folder, link;
};

struct folder {
    struct entry *entries;
    char *names;
    uint32_t n, next;
    uint32_t names_len, names_cap, cap;
    size_t path_len; /* of the path up to and with this folder's "/" */
};

/* Folders are told to the builder after all files: a check of freshness reads the end of a table, not all of it. */
struct visited {
    char *path;
    struct stat st;
};

struct walk {
    struct scan *scan;
    struct index_builder *b;
    const char *root;
    int root_fd;
    struct folder *stack;
    unsigned depth, stack_cap;
    char path[PATH_MAX]; /* from the root, of what is being looked at */
    int data_field, label_field;
    struct visited *visited;
    uint64_t nvisited, visited_cap;
    uint64_t nfiles, nlarge;
};

static void folder_fini(struct folder *f)
{
    free(f->entries);
    free(f->names);
}

static int walk_error(struct walk *w, int code, struct leat_error *err)
{
    AUTO_FREE char *full = NULL;
    if (asprintf(&full, "%s/%s", w->root, w->path) < 0)
        return -ENOMEM;
    return scan_error(code, full, err);
}

static int folder_add(struct folder *f, const char *name, bool is_folder, bool link)
{
    size_t len = strlen(name) + 1;
    if (f->n == f->cap) {
        uint32_t cap = f->cap ? f->cap * 2 : 64;
        struct entry *entries = cap > f->cap ? realloc(f->entries, cap * sizeof(*entries)) : NULL;
        if (!entries)
            return -ENOMEM;
        f->entries = entries;
        f->cap = cap;
    }
    if (f->names_cap - f->names_len < len) {
        uint32_t cap = f->names_cap ? f->names_cap * 2 : 4096;
        char *names = cap > f->names_cap ? realloc(f->names, cap) : NULL;
        if (!names)
            return -ENOMEM;
        f->names = names;
        f->names_cap = cap;
    }
    f->entries[f->n++] = (struct entry){.name = f->names_len, .folder = is_folder, .link = link};
    memcpy(f->names + f->names_len, name, len);
    f->names_len += (uint32_t)len;
    return 0;
}

/* By bytes of the path: a folder counts as if "/" stood behind its name. */
static int compare_entries(const void *x, const void *y, void *arg)
{
    const struct entry *a = x, *b = y;
    const struct folder *f = arg;
    const uint8_t *p = (const uint8_t *)f->names + a->name, *q = (const uint8_t *)f->names + b->name;
    while (*p && *p == *q)
        p++, q++;
    unsigned pc = *p ? *p : a->folder ? '/' : 0, qc = *q ? *q : b->folder ? '/' : 0;
    return pc < qc ? -1 : pc > qc;
}

static int open_folder(struct walk *w)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
    if (w->depth == 0)
        return openat(w->root_fd, ".", flags);
    /* Beneath the root and through no link, even if somebody moves folders around meanwhile. */
    struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, w->root_fd, w->path, &how, sizeof(how));
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        fd = openat(w->root_fd, w->path, flags);
    return fd;
}

static int read_folder(struct walk *w, DIR *dir, struct folder *f)
{
    for (;;) {
        errno = 0;
        struct dirent *d = readdir(dir);
        if (!d)
            return errno ? -errno : 0;
        if (d->d_name[0] == '.')
            continue;
        unsigned char type = d->d_type;
        if (type == DT_UNKNOWN) {
            struct stat st;
            if (fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                if (errno == ENOENT)
                    continue;
                return -errno;
            }
            type = S_ISDIR(st.st_mode)   ? DT_DIR
                   : S_ISREG(st.st_mode) ? DT_REG
                   : S_ISLNK(st.st_mode) ? DT_LNK
                                         : DT_FIFO;
        }
        if (type != DT_DIR && type != DT_REG && type != DT_LNK)
            continue;
        int rc = folder_add(f, d->d_name, type == DT_DIR, type == DT_LNK);
        if (rc < 0)
            return rc;
    }
}

static int remember_folder(struct walk *w, const char *path, const struct stat *st)
{
    if (w->nvisited == w->visited_cap) {
        uint64_t cap = w->visited_cap ? w->visited_cap * 2 : 64;
        struct visited *visited = realloc(w->visited, cap * sizeof(*visited));
        if (!visited)
            return -ENOMEM;
        w->visited = visited;
        w->visited_cap = cap;
    }
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    w->visited[w->nvisited++] = (struct visited){copy, *st};
    return 0;
}

/* Opens, reads and sorts the folder that w->path names (empty, or ending with "/"), and pushes it. */
static int push_folder(struct walk *w, struct leat_error *err)
{
    if (w->depth >= TAR_DEPTH_MAX) {
        char shown[160];
        scan_escape(w->path, shown, sizeof(shown));
        return error_set(err, LEAT_INVALID, "%s: the folder \"%s\" is more than 1000 folders deep", w->root,
                         shown);
    }
    if (w->depth == w->stack_cap) {
        unsigned cap = w->stack_cap ? w->stack_cap * 2 : 16;
        struct folder *stack = realloc(w->stack, cap * sizeof(*stack));
        if (!stack)
            return -ENOMEM;
        w->stack = stack;
        w->stack_cap = cap;
    }
    AUTO_CLOSE int fd = open_folder(w);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return walk_error(w, -errno, err);
    DIR *dir = fdopendir(fd);
    if (!dir)
        return walk_error(w, -errno, err);
    fd = -1;
    struct folder f = {.path_len = strlen(w->path)};
    int rc = read_folder(w, dir, &f);
    closedir(dir);
    if (rc < 0) {
        folder_fini(&f);
        return walk_error(w, rc, err);
    }
    if (f.n)
        qsort_r(f.entries, f.n, sizeof(*f.entries), compare_entries, &f);
    w->stack[w->depth++] = f;
    return remember_folder(w, f.path_len ? w->path : "./", &st);
}

static int compare_names(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Names of the root's folders, sorted as plain strings: number = place. */
static int make_classes(struct walk *w)
{
    const struct folder *root = &w->stack[0];
    AUTO_FREE const char **names = calloc(root->n + 1u, sizeof(*names));
    if (!names)
        return -ENOMEM;
    uint32_t n = 0;
    for (uint32_t i = 0; i < root->n; i++)
        if (root->entries[i].folder)
            names[n++] = root->names + root->entries[i].name;
    if (n == 0)
        return 0;
    if (n < root->n)
        names[n++] = ""; /* for the files beside the folders */
    qsort(names, n, sizeof(*names), compare_names);
    for (uint32_t i = 0; i < n; i++)
        if (index_builder_class(w->b, names[i]) == UINT32_MAX)
            return -ENOMEM;
    return 0;
}

/* A link is looked at through whoever opens files for us, so that it leads nowhere its owner may not go. */
static int stat_file(struct walk *w, const struct entry *e, struct stat *st)
{
    if (!e->link || !w->scan->opener || !w->scan->opener->open)
        return fstatat(w->root_fd, w->path, st, 0) < 0 ? -errno : 0;
    AUTO_FREE char *full = NULL;
    if (asprintf(&full, "%s/%s", w->root, w->path) < 0)
        return -ENOMEM;
    AUTO_CLOSE int fd = w->scan->opener->open(w->scan->opener->user, full, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return fd;
    return fstat(fd, st) < 0 ? -errno : 0;
}

uint64_t dir_place(struct index_builder *b, uint32_t source, uint64_t bytes)
{
    uint64_t at = bytes >= DIR_LARGE_FILE
                      ? index_builder_reserve(b, align_up(bytes, INDEX_FILE_ALIGN), INDEX_FILE_ALIGN, 0)
                      : index_builder_reserve(b, bytes, INDEX_SMALL_ALIGN, 0);
    if (bytes)
        index_builder_extent(b, &(struct index_extent){.address = at,
                                                       .bytes = bytes,
                                                       .source_bytes = bytes,
                                                       .source = source,
                                                       .kind = INDEX_EXTENT_RAW});
    return at;
}

static int visit_file(struct walk *w, const struct entry *e, struct leat_error *err)
{
    int rc = tar_path_check(w->path, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", w->root);
    struct stat st;
    rc = stat_file(w, e, &st);
    if (rc < 0)
        return walk_error(w, rc, err);
    if (!S_ISREG(st.st_mode))
        return 0; /* a link to something else */
    int64_t source = index_builder_source(w->b, w->path, &st);
    if (source < 0)
        return (int)source;
    w->nfiles++;
    w->nlarge += (uint64_t)st.st_size >= DIR_LARGE_FILE;
    uint64_t at = dir_place(w->b, (uint32_t)source, (uint64_t)st.st_size);
    index_builder_sample(w->b, w->path, strlen(w->path));
    index_builder_part(w->b, (unsigned)w->data_field, at, (uint64_t)st.st_size);

    if (w->depth > 1 && w->label_field < 0)
        w->label_field = index_builder_field(w->b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
    size_t first = w->depth > 1 ? strcspn(w->path, "/") : 0;
    char class_name[NAME_MAX + 1];
    snprintf(class_name, sizeof(class_name), "%.*s", (int)first, w->path);
    if (w->stack[0].n > 0) {
        uint32_t class = index_builder_class(w->b, class_name);
        if (class == UINT32_MAX)
            return -ENOMEM;
        index_builder_label(w->b, class);
    }
    return scan_tick(w->scan, (uint64_t)st.st_size, err);
}

static int visit(struct walk *w, const struct entry *e, const struct folder *f, struct leat_error *err)
{
    const char *name = f->names + e->name;
    size_t len = strlen(name);
    if (f->path_len + len + 2 > sizeof(w->path)) {
        char shown[160];
        scan_escape(w->path, shown, sizeof(shown));
        return error_set(err, LEAT_INVALID, "%s: the path \"%s\" is longer than %d bytes", w->root, shown,
                         PATH_MAX);
    }
    memcpy(w->path + f->path_len, name, len + 1);
    if (!e->folder)
        return visit_file(w, e, err);
    memcpy(w->path + f->path_len + len, "/", 2);
    return push_folder(w, err);
}

static int walk_tree(struct walk *w, struct leat_error *err)
{
    int rc = push_folder(w, err);
    if (rc == 0)
        rc = make_classes(w);
    while (rc == 0 && w->depth) {
        struct folder *f = &w->stack[w->depth - 1];
        if (f->next == f->n) {
            folder_fini(f);
            w->depth--;
            continue;
        }
        rc = visit(w, &f->entries[f->next++], f, err);
    }
    return rc;
}

int dir_scan(struct scan *scan, const char *path, int fd, const struct stat *st,
             struct index_builder **ret_builder, struct leat_error *err)
{
    struct index_builder *b;
    if (index_builder_new(INDEX_KIND_DIR, path, &b) < 0)
        return -ENOMEM;
    struct walk w = {.scan = scan, .b = b, .root = path, .root_fd = fd, .label_field = -1};
    w.data_field = index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    int rc = w.data_field < 0 ? w.data_field : walk_tree(&w, err);
    while (w.depth)
        folder_fini(&w.stack[--w.depth]);
    free(w.stack);
    for (uint64_t i = 0; i < w.nvisited; i++) {
        index_builder_source(b, w.visited[i].path, &w.visited[i].st);
        free(w.visited[i].path);
    }
    free(w.visited);
    if (rc == 0 && w.nfiles == 0)
        rc = error_set(err, LEAT_INVALID,
                       "the dataset is empty: there is no file in %s (hidden ones do not count)", path);
    if (rc < 0) {
        index_builder_free(b);
        return rc;
    }
    if (w.nlarge * 2 < w.nfiles)
        index_builder_flags(b, INDEX_FLAG_SMALL_FILES);
    *ret_builder = b;
    return 0;
}
