/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir/scan.c: a directory tree: every file is a sample, its key the path from the root, its label the first folder.
 *
 * Trees of remote objects come out of a list: objects.c. Both have the order of torchvision's ImageFolder (dir_compare).
 *
 * Happy path: the root is read; its folders are the classes, numbered in the order of their names. Class by class, all folders below
 * are read and sorted by their paths; the files of each are sorted, stat'ed and become samples. Only the root stays open, and
 * one folder while its files are looked at: deep trees cost no descriptors. No file is opened.
 *
 * Hidden files and folders are skipped. Symbolic links are followed, to files and to folders; a folder that a link leads back to from below
 * itself (same device and inode) is not entered again. Files beside the class folders have no class and are left out, with a
 * warning; where no folder holds a sample they are the samples, and there is no label field.
 *
 * Failure modes: LEAT_DENIED or LEAT_NOT_FOUND names the folder or the file; LEAT_INVALID names a path that
 * is too deep or not UTF-8, or too many folders or files behind links. A link that leads nowhere costs its
 * own sample, with a warning; the index has it as an absent source, so that a target that appears later is
 * noticed. Below a class, so does one that leads out of a system daemon's roots. So does one that may not be
 * followed, if its name is a file's that the filter does not accept. Any other denied link denies the set.
 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "base/array.h"
#include "dataset/scan.h"
#include "wire/archive/tar.h"

/* Links to folders with links in them can make many paths of few folders. */
#define LINKED_MAX (1u << 20)
uint64_t dir_linked_files_max = 1u << 24;

struct entry {
    uint64_t name; /* in the folder's names */
    bool link;
};

struct folder {
    char *path; /* from the root: "", "cat", "cat/young"; owned */
    uint64_t parent;
    unsigned depth;
    bool linked; /* a link is part of its path */
    dev_t dev;
    ino_t ino;
    struct entry *files;
    char *names;
    uint64_t n, cap, names_len, names_cap;
};

/* Folders go to the builder after all files: a check of freshness reads the end of a table, not all of it. */
struct visited {
    char *path;
    struct stat st;
};

struct walk {
    struct scan *scan;
    struct index_builder *b;
    const char *root;
    int root_fd;
    struct folder *folders; /* the root, the class folders, then what lies below one of these */
    uint64_t nfolders, folders_cap;
    char path[PATH_MAX]; /* from the root, of what is being looked at */
    int data_field, label_field;
    struct visited *visited;
    uint64_t nvisited, visited_cap;
    uint64_t nfiles, nlarge;
    uint64_t nlinked, nlinked_files; /* folders and files behind links */
    struct dir_left_out beside, dangling, denied, cycles;
};

static void folder_fini(struct folder *f)
{
    free(f->path);
    free(f->files);
    free(f->names);
}

static int walk_error(struct walk *w, int rc, struct leat_error *err)
{
    AUTO_FREE char *full = NULL;
    if (asprintf(&full, "%s/%s", w->root, w->path) < 0)
        return -ENOMEM;
    return scan_error(rc, full, err);
}

/* w->path becomes the folder's path and this name. */
static int enter_path(struct walk *w, const struct folder *f, const char *name, struct leat_error *err)
{
    int len = snprintf(w->path, sizeof(w->path), "%s%s%s", f->path, *f->path && *name ? "/" : "", name);
    if ((size_t)len + 2 <= sizeof(w->path))
        return 0;
    char shown[160];
    scan_escape(w->path, shown, sizeof(shown));
    return error_set(err, LEAT_INVALID, "%s: the path \"%s\" is longer than %d bytes", w->root, shown,
                     PATH_MAX);
}

/* LEAT_INVALID: w->path is behind a link, and the most that are allowed are there. */
static int too_many(struct walk *w, const char *what, uint64_t most, struct leat_error *err)
{
    char shown[160];
    scan_escape(w->path, shown, sizeof(shown));
    return error_set(err, LEAT_INVALID,
                     "%s: more than %llu %s lie behind symbolic links to folders, the last is \"%s\"; put "
                     "copies or mounts in the place of links",
                     w->root, (unsigned long long)most, what, shown);
}

/* Folders behind links are read as often as links lead to them: their number has a limit. */
static int count_linked(struct walk *w, const struct folder *f, struct leat_error *err)
{
    if (!f->linked || ++w->nlinked_files <= dir_linked_files_max)
        return 0;
    return too_many(w, "files", dir_linked_files_max, err);
}

static int add_file(struct walk *w, struct folder *f, const char *name, bool link, struct leat_error *err)
{
    size_t len = strlen(name) + 1;
    int rc = count_linked(w, f, err);
    if (rc == 0)
        rc = array_reserve(&f->files, &f->cap, f->n + 1);
    if (rc == 0)
        rc = array_reserve(&f->names, &f->names_cap, f->names_len + len);
    if (rc < 0)
        return rc;
    f->files[f->n++] = (struct entry){.name = f->names_len, .link = link};
    memcpy(f->names + f->names_len, name, len);
    f->names_len += len;
    return 0;
}

/* The folder that w->path names. */
static int add_folder(struct walk *w, uint64_t parent, bool link, struct leat_error *err)
{
    const struct folder *above = w->nfolders ? &w->folders[parent] : NULL;
    bool linked = link || (above && above->linked);
    if (linked && ++w->nlinked > LINKED_MAX)
        return too_many(w, "folders", LINKED_MAX, err);
    int rc = array_reserve(&w->folders, &w->folders_cap, w->nfolders + 1);
    char *path = rc == 0 ? strdup(w->path) : NULL;
    if (!path)
        return -ENOMEM;
    above = w->nfolders ? &w->folders[parent] : NULL; /* it may have moved */
    struct folder *f = &w->folders[w->nfolders++];
    *f = (struct folder){
        .path = path, .parent = parent, .depth = above ? above->depth + 1 : 0, .linked = linked};
    char shown[160];
    scan_escape(w->path, shown, sizeof(shown));
    if (f->depth >= TAR_DEPTH_MAX)
        return error_set(err, LEAT_INVALID, "%s: the folder \"%s\" is more than 1000 folders deep", w->root,
                         shown);
    return 0;
}

static bool guarded(const struct walk *w)
{
    return w->scan->opener && w->scan->opener->open;
}

/* Through the caller's opener, where there is one, so that the path leads only where its owner may go. */
static int open_guarded(struct walk *w, int flags)
{
    AUTO_FREE char *full = NULL;
    if (asprintf(&full, "%s/%s", w->root, w->path) < 0)
        return -ENOMEM;
    return w->scan->opener->open(w->scan->opener->user, full, flags);
}

static int open_folder(struct walk *w, const struct folder *f)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (f->linked ? 0 : O_NOFOLLOW);
    int fd;
    if (!*f->path) {
        fd = openat(w->root_fd, ".", flags);
    } else if (guarded(w)) {
        return open_guarded(w, flags);
    } else if (f->linked) {
        fd = openat(w->root_fd, w->path, flags);
    } else {
        /* Beneath the root and through no link, even if a folder is moved concurrently. */
        struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
        fd = (int)syscall(SYS_openat2, w->root_fd, w->path, &how, sizeof(how));
        if (fd < 0 && (errno == ENOSYS || errno == EPERM))
            fd = openat(w->root_fd, w->path, flags);
    }
    return fd < 0 ? -errno : fd;
}

/* The folder, for fstatat of what lies in it; -1: not guarded. The way by its "." takes the caller's right to
 * search it: then a stat of a name in it tells no more than the caller may know. */
static int open_searched(struct walk *w, const struct folder *f, int *ret_fd, struct leat_error *err)
{
    *ret_fd = -1;
    int rc = guarded(w) ? enter_path(w, f, ".", err) : 0;
    if (rc < 0 || !guarded(w))
        return rc;
    int fd = open_guarded(w, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        rc = enter_path(w, f, "", err);
        return rc < 0 ? rc : walk_error(w, fd, err);
    }
    *ret_fd = fd;
    return 0;
}

/* stat of w->path. `dir`, `name`: the same, if it may be no link, in a folder of open_searched; else -1. */
static int stat_path(struct walk *w, int dir, const char *name, struct stat *st)
{
    if (!guarded(w))
        return fstatat(w->root_fd, w->path, st, 0) < 0 ? -errno : 0;
    if (dir >= 0 && fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISLNK(st->st_mode))
        return 0;
    AUTO_CLOSE int fd = open_guarded(w, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return fd;
    return fstat(fd, st) < 0 ? -errno : 0;
}

static int remember_source(struct walk *w, const struct stat *st)
{
    int rc = array_reserve(&w->visited, &w->visited_cap, w->nvisited + 1);
    char *path = NULL;
    if (rc < 0 || asprintf(&path, "%s/", *w->path ? w->path : ".") < 0)
        return -ENOMEM;
    w->visited[w->nvisited++] = (struct visited){path, *st};
    return 0;
}

/* "notes.txt": letters and digits behind the last dot, a letter first. A folder may be called so, and few are. */
static bool has_file_extension(const char *path)
{
    const char *dot = strrchr(path, '.');
    size_t len = dot && dot > path && dot[-1] != '/' ? strlen(dot + 1) : 0;
    if (len == 0 || len > 5 || !isalpha((unsigned char)dot[1]))
        return false;
    for (size_t i = 1; i <= len; i++)
        if (!isalnum((unsigned char)dot[i]))
            return false;
    return true;
}

/*
 * The reason for which a link in `f` that stat_path refused with `rc` is left out. NULL: it is not. In the
 * root it may be a class, without which all later ones have other numbers. Below a class it may be a folder,
 * about whose name a filter of files says nothing.
 */
static struct dir_left_out *link_left_out(struct walk *w, const struct folder *f, int rc)
{
    if (rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP)
        return &w->dangling;
    if (!*f->path)
        return NULL;
    bool denied =
        rc == -EXDEV || (rc == -EACCES && !dir_wanted(w->scan, w->path) && has_file_extension(w->path));
    return denied ? &w->denied : NULL;
}

/* One entry of folder number `at`, which w->path names with its own name. */
static int add_entry(struct walk *w, uint64_t at, int dir, const char *name, unsigned char type,
                     struct leat_error *err)
{
    struct folder *f = &w->folders[at];
    bool link = type == DT_LNK;
    if (type == DT_UNKNOWN || link) {
        struct stat st;
        if (!link && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return errno == ENOENT ? 0 : walk_error(w, -errno, err);
        link = link || S_ISLNK(st.st_mode);
        int rc = link ? stat_path(w, -1, NULL, &st) : 0;
        struct dir_left_out *kind = link_left_out(w, f, rc);
        if (kind) {
            dir_leave_out(kind, w->path);
            rc = count_linked(w, f, err);
            return rc < 0 ? rc : remember_source(w, &(struct stat){.st_mode = S_IFDIR});
        }
        if (rc < 0)
            return walk_error(w, rc, err);
        type = S_ISDIR(st.st_mode) ? DT_DIR : S_ISREG(st.st_mode) ? DT_REG : DT_FIFO;
    }
    if (type == DT_DIR)
        return add_folder(w, at, link, err);
    return type == DT_REG && dir_wanted(w->scan, w->path) ? add_file(w, f, name, link, err) : 0;
}

static int read_entries(struct walk *w, uint64_t at, DIR *dir, struct leat_error *err)
{
    for (;;) {
        errno = 0;
        struct dirent *d = readdir(dir);
        if (!d)
            return errno ? walk_error(w, -errno, err) : 0;
        if (d->d_name[0] == '.')
            continue;
        int rc = enter_path(w, &w->folders[at], d->d_name, err);
        if (rc == 0)
            rc = add_entry(w, at, dirfd(dir), d->d_name, d->d_type, err);
        if (rc < 0)
            return rc;
    }
}

/* Is this folder one of those above it? Only a link leads there. */
static bool is_cycle(const struct walk *w, const struct folder *f)
{
    for (const struct folder *above = f; f->linked && above->depth > 0;) {
        above = &w->folders[above->parent];
        if (above->dev == f->dev && above->ino == f->ino)
            return true;
    }
    return false;
}

/* Folder number `at`: its files, and the folders in it behind all others. */
static int read_folder(struct walk *w, uint64_t at, struct leat_error *err)
{
    struct folder *f = &w->folders[at];
    int rc = enter_path(w, f, "", err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = open_folder(w, f);
    struct stat st;
    if (fd < 0)
        return walk_error(w, fd, err);
    if ((rc = scan_stat_folder(fd, &st)) < 0)
        return walk_error(w, rc, err);
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    if (is_cycle(w, f)) {
        dir_leave_out(&w->cycles, w->path);
        return 0;
    }
    rc = remember_source(w, &st);
    if (rc < 0)
        return rc;
    DIR *dir = fdopendir(fd);
    if (!dir)
        return walk_error(w, -errno, err);
    fd = -1;
    rc = read_entries(w, at, dir, err);
    closedir(dir);
    return rc < 0 ? rc : scan_poll(w->scan, err);
}

static int compare_files(const void *x, const void *y, void *arg)
{
    const struct entry *a = x, *b = y;
    const struct folder *f = arg;
    return strcmp(f->names + a->name, f->names + b->name);
}

static int compare_folders(const void *x, const void *y, void *arg)
{
    const struct walk *w = arg;
    return strcmp(w->folders[*(const uint64_t *)x].path, w->folders[*(const uint64_t *)y].path);
}

/* `dir`, `name`: of stat_path. `label`: of its class; UINT32_MAX: it has none. */
static int visit_file(struct walk *w, int dir, const char *name, uint32_t label, struct leat_error *err)
{
    int rc = tar_path_check(w->path, err);
    if (rc < 0)
        return error_prefix(err, rc, "%s", w->root);
    struct stat st;
    rc = stat_path(w, dir, name, &st);
    if (rc < 0)
        return walk_error(w, rc, err);
    if (!S_ISREG(st.st_mode))
        return 0;
    int64_t source = index_builder_source(w->b, w->path, &st);
    if (source < 0)
        return (int)source;
    w->nfiles++;
    w->nlarge += (uint64_t)st.st_size >= DIR_LARGE_FILE;
    uint64_t at = dir_place(w->b, (uint32_t)source, (uint64_t)st.st_size);
    index_builder_sample(w->b, w->path, strlen(w->path));
    index_builder_part(w->b, (unsigned)w->data_field, at, (uint64_t)st.st_size);
    if (label != UINT32_MAX) {
        if (w->label_field < 0)
            w->label_field = index_builder_field(w->b, "label", "<u4", INDEX_FIELD_LABEL, 0, NULL, 0, 0);
        index_builder_label(w->b, label);
    }
    return scan_tick(w->scan, (uint64_t)st.st_size, err);
}

static int visit_files(struct walk *w, struct folder *f, uint32_t label, struct leat_error *err)
{
    if (!f->n)
        return 0;
    qsort_r(f->files, f->n, sizeof(*f->files), compare_files, f);
    AUTO_CLOSE int dir = -1;
    int rc = open_searched(w, f, &dir, err);
    for (uint64_t i = 0; i < f->n && rc == 0; i++) {
        const char *name = f->names + f->files[i].name;
        rc = enter_path(w, f, name, err);
        if (rc == 0)
            rc = visit_file(w, f->files[i].link ? -1 : dir, name, label, err);
    }
    return rc;
}

/* Folder number `at`, all that lies below it, and then its samples. */
static int walk_class(struct walk *w, uint64_t at, uint32_t label, struct leat_error *err)
{
    uint64_t before = w->nfolders;
    int rc = read_folder(w, at, err);
    for (uint64_t i = before; i < w->nfolders && rc == 0; i++)
        rc = read_folder(w, i, err);
    if (rc < 0)
        return rc;
    uint64_t n = w->nfolders - before + 1;
    AUTO_FREE uint64_t *order = malloc(n * sizeof(*order));
    if (!order)
        return -ENOMEM;
    order[0] = at;
    for (uint64_t i = 1; i < n; i++)
        order[i] = before + i - 1;
    qsort_r(order, n, sizeof(*order), compare_folders, w);
    for (uint64_t i = 0; i < n && rc == 0; i++)
        rc = visit_files(w, &w->folders[order[i]], label, err);
    while (w->nfolders > before)
        folder_fini(&w->folders[--w->nfolders]);
    return rc;
}

static int walk_tree(struct walk *w, struct leat_error *err)
{
    int rc = add_folder(w, 0, false, err);
    if (rc == 0)
        rc = read_folder(w, 0, err);
    if (rc < 0)
        return rc;
    uint64_t n = w->nfolders - 1;
    AUTO_FREE uint64_t *classes = malloc((n + 1) * sizeof(*classes));
    if (!classes)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++)
        classes[i] = i + 1;
    qsort_r(classes, n, sizeof(*classes), compare_folders, w);
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        uint32_t label = index_builder_class(w->b, w->folders[classes[i]].path);
        rc = label == UINT32_MAX ? -ENOMEM : walk_class(w, classes[i], label, err);
    }
    struct folder *root = &w->folders[0];
    if (rc == 0 && (w->nfiles == 0 || w->scan->all_files))
        return visit_files(w, root, UINT32_MAX, err);
    for (uint64_t i = 0; i < root->n; i++)
        dir_leave_out(&w->beside, root->names + root->files[i].name);
    return rc;
}

int dir_scan(struct scan *scan, const char *path, int fd, struct index_builder **ret_builder,
             struct leat_error *err)
{
    struct index_builder *b;
    if (index_builder_new(INDEX_KIND_DIR, path, &b) < 0)
        return -ENOMEM;
    struct walk w = {.scan = scan, .b = b, .root = path, .root_fd = fd, .label_field = -1};
    w.data_field = index_builder_field(b, "data", "", INDEX_FIELD_TABLE, 0, NULL, 0, 0);
    int rc = w.data_field < 0 ? w.data_field : walk_tree(&w, err);
    while (w.nfolders)
        folder_fini(&w.folders[--w.nfolders]);
    free(w.folders);
    for (uint64_t i = 0; i < w.nvisited; i++) {
        index_builder_source(b, w.visited[i].path, &w.visited[i].st);
        free(w.visited[i].path);
    }
    free(w.visited);
    if (rc == 0) {
        dir_report(path, &w.beside, DIR_BESIDE);
        dir_report(path, &w.dangling, "symbolic links that lead nowhere are left out");
        dir_report(path, &w.denied,
                   "symbolic links to where this daemon or its user may not read are left out");
        dir_report(path, &w.cycles, "symbolic links back to a folder above them are not followed");
    }
    if (rc == 0 && w.nfiles == 0)
        rc = dir_empty(scan, path, err);
    if (rc < 0) {
        index_builder_free(b);
        return rc;
    }
    if (w.nlarge * 2 < w.nfiles)
        index_builder_flags(b, INDEX_FLAG_SMALL_FILES);
    *ret_builder = b;
    return 0;
}
